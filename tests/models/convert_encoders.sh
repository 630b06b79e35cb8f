#!/bin/bash
# Encoders as their authors publish them are converted, and the states of all tokens are those that the definition gives, computed
# here in double precision: Jina's embeddings 2 (also the kind for code) and 3 (with and without an adapter), Nomic's with and
# without experts, NeoBERT, EuroBERT and EmbeddingGemma.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] && [ -x "$build/tests/zoo" ] || skip "tenon or zoo is not built"
command -v python3 > /dev/null || skip "no Python 3"
cat > "$work/make.py" << 'END'
"""make.py KIND FOLDER: a small encoder with random weights, and the states of its last layer in FOLDER/states."""
import json, math, os, random, struct, sys

kind, folder = sys.argv[1:3]
width, vocab, layers, n, experts, used, rank = 24, 40, 3, 21, 4, 2, 2
heads = 3 if kind.startswith("jina2") else 2  # of ALiBi: not a power of two
kv_heads = 1 if kind in ("eurobert", "gemma") else heads
size = 16 if kind == "gemma" else width // heads
ffn = {"neo": 32}.get(kind, 36)
rng, tensors, eps, base = random.Random(kind), {}, 1e-5, 10000.0
config = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ffn,
          "vocab_size": vocab, "max_position_embeddings": 64, "layer_norm_eps": eps, "type_vocab_size": 2}

def single(x): return struct.unpack("<f", struct.pack("<f", x))[0]
def add(name, rows, columns=None, mean=0.0, sigma=0.3):
    values = [[single(rng.gauss(mean, sigma)) for _ in range(columns or rows)] for _ in range(rows if columns else 1)]
    tensors[name] = ([rows, columns] if columns else [rows], values)
    return values if columns else values[0]
def add_stack(name, a, b, c):  # [a, b, c]
    values = [[[single(rng.gauss(0, 0.4)) for _ in range(c)] for _ in range(b)] for _ in range(a)]
    tensors[name] = ([a, b, c], [row for matrix in values for row in matrix])
    return values
def times(w, x, bias=None): return [sum(a * b for a, b in zip(row, x)) + (bias[i] if bias else 0) for i, row in enumerate(w)]
def plus(x, y): return [a + b for a, b in zip(x, y)]
def layer_norm(w, b, x):
    mean = sum(x) / len(x)
    r = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + eps)
    return [(v - mean) * r * a + c for v, a, c in zip(x, w, b)]
def rms_norm(w, x, one=0):
    r = 1 / math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [(a + one) * b * r for a, b in zip(w, x)]
def gelu(x): return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
def tanh_gelu(x): return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
def silu(x): return x / (1 + math.exp(-x))
def slopes(count):
    def power(m): return [2 ** (-8 * (i + 1) / m) for i in range(m)]
    if count & (count - 1) == 0: return power(count)
    near = 1 << (count.bit_length() - 1)
    return power(near) + slopes(2 * near)[0::2][:count - near]
def rotate(x, position, halves=True, base=base):
    half, out = len(x) // 2, list(x)
    for i in range(half):
        a, b = (i, i + half) if halves else (2 * i, 2 * i + 1)
        angle = position * base ** (-2 * i / len(x))
        out[a], out[b] = x[a] * math.cos(angle) - x[b] * math.sin(angle), x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out
def attend(qs, ks, vs, alibi=None, scale=None, window=None):
    """One row of heads × size per token."""
    out = []
    for t in range(n):
        row = []
        for h in range(heads):
            g = h * kv_heads // heads
            q = qs[t][h * size:(h + 1) * size]
            scores = [sum(a * b for a, b in zip(q, ks[c][g * size:(g + 1) * size])) * (scale or 1 / math.sqrt(size))
                      - (alibi[h] * abs(c - t) if alibi else 0) if not window or abs(c - t) <= window // 2 else -math.inf for c in range(n)]
            most = max(scores)
            p = [math.exp(s - most) for s in scores]
            row += [sum(p[c] * vs[c][g * size + d] for c in range(n)) / sum(p) for d in range(size)]
        out.append(row)
    return out
def turned(rows, count, halves=True, base=base):
    return [sum((rotate(row[h * size:(h + 1) * size], t, halves, base) for h in range(count)), []) for t, row in enumerate(rows)]
def norms(name, size=None): return add(name + ".weight", size or width, mean=1.0), add(name + ".bias", size or width)
def linear(name, out, inner, bias=True): return add(name + ".weight", out, inner), add(name + ".bias", out) if bias else None

tokens = [rng.randrange(vocab) for _ in range(n)]

def start_bert(words, types, norm):
    e, t = words, types
    w, b = norms(norm)
    return [layer_norm(w, b, plus(e[token], t[0])) for token in tokens]

def jina2(code):
    x = start_bert(add("embeddings.word_embeddings.weight", vocab, width, sigma=0.7), add("embeddings.token_type_embeddings.weight", 2, width),
                   "embeddings.LayerNorm")
    for i in range(layers):
        at = "encoder.layer.%d." % i
        (q, qb), (k, kb), (v, vb) = (linear(at + "attention.self." + name, width, width) for name in ("query", "key", "value"))
        o, ob = linear(at + "attention.output.dense", width, width)
        qs, ks, vs = ([times(w, row, b) for row in x] for w, b in ((q, qb), (k, kb), (v, vb)))
        if code:
            w, b = norms(at + "attention.self.layer_norm_q")
            qs = [layer_norm(w, b, row) for row in qs]
            w, b = norms(at + "attention.self.layer_norm_k")
            ks = [layer_norm(w, b, row) for row in ks]
        out = [times(o, row, ob) for row in attend(qs, ks, vs, slopes(heads))]
        w, b = norms(at + "attention.output.LayerNorm")
        y = [layer_norm(w, b, plus(a, c)) for a, c in zip(out, x)]
        if code:
            w, b = norms(at + "layer_norm_1")
            y = [layer_norm(w, b, plus(a, c)) for a, c in zip(y, x)]
        both = add(at + ("mlp.up_gated_layer.weight" if code else "mlp.gated_layers.weight"), 2 * ffn, width)
        gate, up = (both[ffn:], both[:ffn]) if code else (both[:ffn], both[ffn:])
        down, db = linear(at + ("mlp.down_layer" if code else "mlp.wo"), width, ffn)
        w, b = norms(at + ("layer_norm_2" if code else "mlp.layernorm"))
        for t in range(n):
            inner = [gelu(a) * c for a, c in zip(times(gate, y[t]), times(up, y[t]))]
            x[t] = layer_norm(w, b, plus(times(down, inner, db), y[t]))
    config.update(architectures=["JinaBertForMaskedLM"], feed_forward_type="geglu", position_embedding_type="alibi")
    return x

def jina3(task):
    tasks, at_root = ["near", "far", "same"], "roberta."
    def adapted(name, rows, columns, embedding=False):
        name = at_root + name + ".parametrizations.weight."
        w = add(name + "original", rows, columns)
        a = add_stack(name + "0.lora_A", len(tasks), *((rows, rank) if embedding else (rank, columns)))
        b = add_stack(name + "0.lora_B", len(tasks), *((rank, columns) if embedding else (rows, rank)))
        if task is None: return w
        left, right = (a, b) if embedding else (b, a)
        left, right = left[tasks.index(task)], right[tasks.index(task)]
        return [[w[r][c] + 2.0 / rank * sum(left[r][j] * right[j][c] for j in range(rank)) for c in range(columns)] for r in range(rows)]
    x = start_bert(adapted("embeddings.word_embeddings", vocab, width, True), adapted("embeddings.token_type_embeddings", 1, width, True),
                   at_root + "emb_ln")
    for i in range(layers):
        at = "encoder.layers.%d." % i
        qkv, b = adapted(at + "mixer.Wqkv", 3 * width, width), add(at_root + at + "mixer.Wqkv.bias", 3 * width)
        rows = [times(qkv, row, b) for row in x]
        qs, ks, vs = ([row[j * width:(j + 1) * width] for row in rows] for j in range(3))
        o, ob = adapted(at + "mixer.out_proj", width, width), add(at_root + at + "mixer.out_proj.bias", width)
        out = attend(turned(qs, heads, base=20000.0), turned(ks, heads, base=20000.0), vs)
        w, b = norms(at_root + at + "norm1")
        y = [layer_norm(w, b, plus(times(o, a, ob), c)) for a, c in zip(out, x)]
        up, ub = adapted(at + "mlp.fc1", ffn, width), add(at_root + at + "mlp.fc1.bias", ffn)
        down, db = adapted(at + "mlp.fc2", width, ffn), add(at_root + at + "mlp.fc2.bias", width)
        w, b = norms(at_root + at + "norm2")
        x = [layer_norm(w, b, plus(times(down, [gelu(v) for v in times(up, row, ub)], db), row)) for row in y]
    config.update(architectures=["XLMRobertaModel"], lora_adaptations=tasks, lora_rank=rank, lora_alpha=2, type_vocab_size=1,
                  rotary_emb_base=20000.0, max_position_embeddings=66, pad_token_id=1)
    return x

def nomic(moe):
    x = start_bert(add("embeddings.word_embeddings.weight", vocab, width, sigma=0.7), add("embeddings.token_type_embeddings.weight", 2, width),
                   "emb_ln")
    for i in range(layers):
        at = "encoder.layers.%d." % i
        qkv, b = linear(at + "attn.Wqkv", 3 * width, width, moe)
        rows = [times(qkv, row, b) for row in x]
        qs, ks, vs = ([row[j * width:(j + 1) * width] for row in rows] for j in range(3))
        o, ob = linear(at + "attn.out_proj", width, width, moe)
        w, b = norms(at + "norm1")
        y = [layer_norm(w, b, plus(times(o, a, ob), c)) for a, c in zip(attend(turned(qs, heads), turned(ks, heads), vs), x)]
        if moe and i % 2 == 1:
            router = add(at + "mlp.router.layer.weight", experts, width)
            first, second = (add(at + "mlp.experts.mlp." + name, experts * ffn, width) for name in ("w1", "w2"))
            shared = add(at + "mlp.experts.bias", width)
            def feed(row):
                logits = times(router, row)
                p = [math.exp(v - max(logits)) for v in logits]
                out = list(shared)
                for e in sorted(range(experts), key=lambda e: -p[e])[:used]:
                    inner = [gelu(v) for v in times(first[e * ffn:(e + 1) * ffn], row)]
                    for f in range(ffn):
                        for c in range(width): out[c] += p[e] / sum(p) * inner[f] * second[e * ffn + f][c]
                return out
        elif moe:
            (up, ub), (down, db) = linear(at + "mlp.fc1", ffn, width), linear(at + "mlp.fc2", width, ffn)
            def feed(row): return times(down, [gelu(v) for v in times(up, row, ub)], db)
        else:
            up, gate, down = (add(at + "mlp.%s.weight" % name, *shape) for name, shape in
                              (("fc11", (ffn, width)), ("fc12", (ffn, width)), ("fc2", (width, ffn))))
            def feed(row): return times(down, [a * silu(c) for a, c in zip(times(up, row), times(gate, row))])
        w, b = norms(at + "norm2")
        x = [layer_norm(w, b, plus(feed(row), row)) for row in y]
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings", "layer_norm_eps"):
        del config[name]
    config.update(architectures=["NomicBertModel"], n_embd=width, n_layer=layers, n_head=heads, n_inner=ffn, n_positions=64,
                  layer_norm_epsilon=eps, rotary_emb_base=10000, rotary_emb_fraction=1.0, num_experts=experts if moe else 0,
                  moe_top_k=used, moe_every_n_layers=2 if moe else 0, activation_function="gelu" if moe else "swiglu")
    return x

def neo():
    e = add("model.encoder.weight", vocab, width, sigma=0.7)
    x = [list(e[token]) for token in tokens]
    for i in range(layers):
        at = "model.transformer_encoder.%d." % i
        qkv, o = add(at + "qkv.weight", 3 * width, width), add(at + "wo.weight", width, width)
        w = add(at + "attention_norm.weight", width, mean=1.0)
        rows = [times(qkv, rms_norm(w, row)) for row in x]
        qs, ks, vs = ([sum((row[(3 * h + j) * size:(3 * h + j + 1) * size] for h in range(heads)), []) for row in rows] for j in range(3))
        x = [plus(times(o, a), c) for a, c in zip(attend(turned(qs, heads, False), turned(ks, heads, False), vs), x)]
        w = add(at + "ffn_norm.weight", width, mean=1.0)
        both, down = add(at + "ffn.w12.weight", 2 * ffn, width), add(at + "ffn.w3.weight", width, ffn)
        for t in range(n):
            inner = times(both, rms_norm(w, x[t]))
            x[t] = plus(times(down, [silu(a) * c for a, c in zip(inner[:ffn], inner[ffn:])]), x[t])
    w = add("model.layer_norm.weight", width, mean=1.0)
    del config["max_position_embeddings"]
    config.update(architectures=["NeoBERTLMHead"], norm_eps=eps, max_length=64, intermediate_size=46)  # ⌊2 · 46 / 3⌋ up to 32
    return [rms_norm(w, row) for row in x]

def llama_like(gemma):
    at_root, one, width_of = "" if gemma else "model.", 1 if gemma else 0, math.sqrt(width) if gemma else 1
    e = add(at_root + "embed_tokens.weight", vocab, width, sigma=0.5)
    x = [[v * width_of for v in e[token]] for token in tokens]
    mean = 0.0 if gemma else 1.0
    for i in range(layers):
        at = at_root + "layers.%d." % i
        q, k, v = (add(at + "self_attn.%s_proj.weight" % name, (heads if name == "q" else kv_heads) * size, width) for name in "qkv")
        o = add(at + "self_attn.o_proj.weight", width, heads * size)
        w = add(at + "input_layernorm.weight", width, mean=mean)
        y = [rms_norm(w, row, one) for row in x]
        qs, ks, vs = ([times(m, row) for row in y] for m in (q, k, v))
        if gemma:
            for rows, count, name in ((qs, heads, "q_norm"), (ks, kv_heads, "k_norm")):
                w = add(at + "self_attn.%s.weight" % name, size, mean=mean)
                for t in range(n): rows[t] = sum((rms_norm(w, rows[t][h * size:(h + 1) * size], 1) for h in range(count)), [])
        sliding = gemma and i != 1
        theta = 10000.0 if sliding else 1000000.0 if gemma else 250000.0
        out = attend(turned(qs, heads, base=theta), turned(ks, kv_heads, base=theta), vs, scale=1 / math.sqrt(12) if gemma else None,
                     window=8 if sliding else None)
        out = [times(o, row) for row in out]
        w = add(at + "post_attention_layernorm.weight", width, mean=mean)
        if gemma: out = [rms_norm(w, row, 1) for row in out]
        x = [plus(a, c) for a, c in zip(out, x)]
        if gemma: w = add(at + "pre_feedforward_layernorm.weight", width, mean=mean)
        gate, up, down = (add(at + "mlp.%s_proj.weight" % name, *shape) for name, shape in
                          (("gate", (ffn, width)), ("up", (ffn, width)), ("down", (width, ffn))))
        act = tanh_gelu if gemma else silu
        last = add(at + "post_feedforward_layernorm.weight", width, mean=mean) if gemma else None
        for t in range(n):
            y = rms_norm(w, x[t], one)
            y = times(down, [act(a) * c for a, c in zip(times(gate, y), times(up, y))])
            x[t] = plus(rms_norm(last, y, 1) if gemma else y, x[t])
    w = add(at_root + "norm.weight", width, mean=mean)
    config.update(num_key_value_heads=kv_heads, head_dim=size, rms_norm_eps=eps)
    if gemma:
        config.update(architectures=["Gemma3TextModel"], query_pre_attn_scalar=12, sliding_window=8, use_bidirectional_attention=True,
                      layer_types=["full_attention" if i == 1 else "sliding_attention" for i in range(layers)],
                      rope_theta=1000000.0, rope_local_base_freq=10000.0)
    else:
        config.update(architectures=["EuroBertModel"], rope_theta=250000.0)
    return [rms_norm(w, row, one) for row in x]

x = {"jina2": lambda: jina2(False), "jina2-code": lambda: jina2(True), "jina3": lambda: jina3(None), "jina3-far": lambda: jina3("far"),
     "nomic": lambda: nomic(False), "nomic-moe": lambda: nomic(True), "neo": neo, "eurobert": lambda: llama_like(False),
     "gemma": lambda: llama_like(True)}[kind]()
os.makedirs(folder)
with open(folder + "/states", "wb") as out:
    out.write(struct.pack("<ii%di" % n, n, width, *tokens) + b"".join(struct.pack("<%df" % width, *row) for row in x))
header, data = {}, b""
for name, (shape, rows) in sorted(tensors.items()):
    values = b"".join(struct.pack("<%df" % len(row), *row) for row in rows)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    data += values
text = json.dumps(header).encode()
with open(folder + "/model.safetensors", "wb") as out: out.write(struct.pack("<Q", len(text)) + text + data)
pieces = [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["▁", -2]] + [[chr(97 + i % 26) * (1 + i // 26), -3 - i] for i in range(vocab - 4)]
json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁"},
           "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces}}, open(folder + "/tokenizer.json", "w"))
json.dump(config, open(folder + "/config.json", "w"))
END
for kind in jina2 jina2-code jina3 jina3-far nomic nomic-moe neo eurobert gemma; do
    python3 "$work/make.py" $kind "$work/$kind" || failed "$kind: the test's own folder"
    task=(--task far)
    [ $kind = jina3-far ] || task=()
    "$tenon" convert "$work/$kind" "$work/$kind.gguf" --type f32 "${task[@]}" > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
    if [ $kind = jina3 ]; then
        grep -q 'near, far, same' "$work/out" || failed "$kind does not say which tasks there are: $(cat "$work/out")"
    else
        grep -q warning "$work/out" && failed "$kind: $(cat "$work/out")"
    fi
    "$build/tests/zoo" "$work/$kind.gguf" "$work/$kind/states" batch pairs fit > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
done
"$tenon" convert "$work/jina3" "$work/no.gguf" --type f32 --task up > "$work/out" 2>&1 && failed "an unknown task was accepted"
grep -q 'near, far, same' "$work/out" || failed "the message does not name the tasks: $(cat "$work/out")"
"$tenon" convert "$work/neo" "$work/no.gguf" --type f32 --task far > "$work/out" 2>&1 && failed "a task was accepted without adapters"
[ ! -e "$work/no.gguf" ] || failed "a file was written"
finish
