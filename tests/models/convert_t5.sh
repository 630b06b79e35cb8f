#!/bin/bash
# The encoder of T5: folders of both kinds (gates and tanh-GELU, or ReLU alone) are converted, and the states of all tokens are
# those that the definition gives: computed here in double precision, with tokens farther apart than the table of distances.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] && [ -x "$build/tests/zoo" ] || skip "tenon or zoo is not built"
command -v python3 > /dev/null || skip "no Python 3"
cat > "$work/make.py" << 'END'
"""make.py KIND FOLDER: a small encoder with random weights, and the states of its last layer in FOLDER/states."""
import json, math, os, random, struct, sys

kind, folder = sys.argv[1:3]
width, ffn, vocab, heads, size, layers, buckets, n = 32, 48, 40, 4, 8, 2, 8, 40
rng, tensors = random.Random(kind), {}
def add(name, rows, columns=None):
    values = [[rng.gauss(0, 0.3) + (columns is None) for _ in range(columns or rows)] for _ in range(rows if columns else 1)]
    values = [[struct.unpack("<f", struct.pack("<f", x))[0] for x in row] for row in values]
    tensors[name] = ([rows, columns] if columns else [rows], values)
    return values if columns else values[0]
def times(w, x): return [sum(a * b for a, b in zip(row, x)) for row in w]
def norm(w, x):
    r = 1 / math.sqrt(sum(v * v for v in x) / len(x) + 1e-6)
    return [a * b * r for a, b in zip(w, x)]
def bucket(distance):  # of cell − query
    half = buckets // 2
    base, d = (half if distance > 0 else 0), abs(distance)
    if d < half // 2: return base + d
    far = half // 2 + int(math.log(d / (half // 2)) / math.log(128 / (half // 2)) * (half - half // 2))
    return base + min(far, half - 1)
def gelu(x): return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

embedding = add("shared.weight", vocab, width)
tokens = [rng.randrange(vocab) for _ in range(n)]
x = [list(embedding[t]) for t in tokens]
for i in range(layers):
    at = "encoder.block.%d.layer." % i
    w = add(at + "0.layer_norm.weight", width)
    q, k, v = (add(at + "0.SelfAttention.%s.weight" % name, heads * size, width) for name in "qkv")
    o = add(at + "0.SelfAttention.o.weight", width, heads * size)
    if i == 0: table = add(at + "0.SelfAttention.relative_attention_bias.weight", buckets, heads)
    y = [norm(w, row) for row in x]
    qs, ks, vs = ([times(m, row) for row in y] for m in (q, k, v))
    for t in range(n):
        out = []
        for h in range(heads):
            cut = slice(h * size, (h + 1) * size)
            scores = [sum(a * b for a, b in zip(qs[t][cut], ks[c][cut])) + table[bucket(c - t)][h] for c in range(n)]
            most = max(scores)
            p = [math.exp(s - most) for s in scores]
            out += [sum(p[c] * vs[c][h * size + d] for c in range(n)) / sum(p) for d in range(size)]
        x[t] = [a + b for a, b in zip(x[t], times(o, out))]
    w = add(at + "1.layer_norm.weight", width)
    if kind == "gated":
        gate, up = (add(at + "1.DenseReluDense.wi_%d.weight" % j, ffn, width) for j in (0, 1))
    else:
        up = add(at + "1.DenseReluDense.wi.weight", ffn, width)
    down = add(at + "1.DenseReluDense.wo.weight", width, ffn)
    for t in range(n):
        y = norm(w, x[t])
        inner = [gelu(a) * b for a, b in zip(times(gate, y), times(up, y))] if kind == "gated" else [max(0, a) for a in times(up, y)]
        x[t] = [a + b for a, b in zip(x[t], times(down, inner))]
w = add("encoder.final_layer_norm.weight", width)
x = [norm(w, row) for row in x]
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
json.dump({"architectures": ["T5EncoderModel"], "d_model": width, "num_layers": layers, "d_ff": ffn, "num_heads": heads, "d_kv": size,
           "vocab_size": vocab, "relative_attention_num_buckets": buckets, "layer_norm_epsilon": 1e-6,
           "feed_forward_proj": "gated-gelu" if kind == "gated" else "relu", "eos_token_id": 1, "pad_token_id": 0},
          open(folder + "/config.json", "w"))
END
for kind in gated plain; do
    python3 "$work/make.py" $kind "$work/$kind" || failed "the test's own folder"
    "$tenon" convert "$work/$kind" "$work/$kind.gguf" --type f32 > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
    grep -q warning "$work/out" && failed "$kind: $(cat "$work/out")"
    "$build/tests/zoo" "$work/$kind.gguf" "$work/$kind/states" batch pairs fit > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
done
finish
