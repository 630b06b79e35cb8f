#!/bin/bash
# tenon convert turns the folder of an EAGLE-3 head into a file: names, order of rows, tokens, layers; in both spellings of
# folders. The text of the model with it is that without it.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"
command -v python3 > /dev/null || skip "no Python 3"
cat > "$work/make.py" << 'END'
"""make.py KIND FOLDER: a small Llama (model), or an EAGLE-3 head for it: head, named (other spelling and settings), wide (for
another width), outside (a token that the model does not have)."""
import json, os, random, struct, sys

kind, folder = sys.argv[1:3]
width, ffn, vocab, heads, kv, head, layers, guessed = 64, 96, 160, 2, 1, 32, 6, 40
tensors = {}
def add(name, *shape):
    rng = random.Random(name.split(".", 2)[-1] if "layers.0" in name or "midlayer" in name else name)
    n = 1
    for d in shape: n *= d
    tensors[name] = ("F32", shape, struct.pack("<%df" % n, *[rng.gauss(0, 0.2) + (len(shape) == 1) for _ in range(n)]))
def layer(at, inputs):
    add(at + "input_layernorm.weight", width)
    add(at + "post_attention_layernorm.weight", width)
    for name, rows in (("q", heads * head), ("k", kv * head), ("v", kv * head)): add(at + "self_attn.%s_proj.weight" % name, rows, inputs)
    add(at + "self_attn.o_proj.weight", width, heads * head)
    add(at + "mlp.gate_proj.weight", ffn, width)
    add(at + "mlp.up_proj.weight", ffn, width)
    add(at + "mlp.down_proj.weight", width, ffn)
config = {"hidden_size": width, "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head,
          "vocab_size": vocab, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False}
if kind == "model":
    add("model.embed_tokens.weight", vocab, width)
    add("lm_head.weight", vocab, width)
    add("model.norm.weight", width)
    for i in range(layers): layer("model.layers.%d." % i, width)
    config.update(architectures=["LlamaForCausalLM"], num_hidden_layers=layers)
else:
    at = "layers.0." if kind == "named" else "midlayer."
    layer(at, 2 * width)
    add(at + "hidden_norm.weight", width)
    add("fc.weight", width, 3 * width)
    add("norm.weight", width)
    add("lm_head.weight", guessed, width)
    tokens = [4 * i for i in range(guessed)]
    if kind == "outside": tokens[7] = vocab
    tensors["d2t"] = ("I64", (guessed,), struct.pack("<%dq" % guessed, *[t - i for i, t in enumerate(tokens)]))
    tensors["t2d"] = ("BOOL", (vocab,), bytes(i % 4 == 0 for i in range(vocab)))
    config.update(architectures=["LlamaForCausalLM"], num_hidden_layers=1, draft_vocab_size=guessed)
    if kind == "wide": config["target_hidden_size"] = 128
    if kind == "named":
        add("input_norm.weight", 3 * width)
        config = {"architectures": ["Eagle3Speculator"], "draft_vocab_size": guessed, "transformer_layer_config": config, "norm_before_fc": True,
                  "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 5]}
header, data = {}, b""
for name, (type, shape, values) in sorted(tensors.items()):
    header[name] = {"dtype": type, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    data += values
os.makedirs(folder)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(folder + "/model.safetensors", "wb") as out: out.write(struct.pack("<Q", len(text)) + text + data)
json.dump(config, open(folder + "/config.json", "w"))
if kind == "model":
    vocabulary = {chr(33 + i): i for i in range(94)}
    vocabulary.update({"x%d" % i: i for i in range(94, vocab)})
    json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
               "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}, open(folder + "/tokenizer.json", "w"))
END
cat > "$work/check.py" << 'END'
"""check.py FOLDER FILE: the file has what the folder has."""
import json, struct, sys

raw = open(sys.argv[1] + "/model.safetensors", "rb").read()
(n,) = struct.unpack("<Q", raw[:8])
header = json.loads(raw[8 : 8 + n])
def source(name):
    for at in ("", "midlayer.", "layers.0."):
        if at + name in header:
            h = header[at + name]
            begin, end = h["data_offsets"]
            return raw[8 + n + begin : 8 + n + end], h["shape"]
    sys.exit("no " + name)
data = open(sys.argv[2], "rb").read()
at = 24
def take(form):
    global at
    v = struct.unpack_from(form, data, at)
    at += struct.calcsize(form)
    return v[0] if len(v) == 1 else v
def text():
    global at
    n = take("<Q")
    at += n
    return data[at - n : at].decode("utf-8", "replace")
SIZES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
def value(kind):
    if kind == 8: return text()
    if kind == 9:
        inner, count = take("<IQ")
        return [value(inner) for _ in range(count)]
    return take(SIZES[kind])
_, _, n_tensors, n_keys = struct.unpack_from("<4sIQQ", data, 0)
for _ in range(n_keys): text(), value(take("<I"))
tensors = {}
for _ in range(n_tensors):
    name = text()
    shape = [take("<Q") for _ in range(take("<I"))]
    tensors[name] = (shape, take("<I"), take("<Q"))
base = (at + 31) // 32 * 32
def stored(name):
    shape, type, offset = tensors.pop(name)
    n = 8 if type == 27 else 4
    for d in shape: n *= d
    return data[base + offset : base + offset + n], shape, type
def rows(raw, columns): return [raw[i : i + 4 * columns] for i in range(0, len(raw), 4 * columns)]
def same(name, hf, pairs=0):
    have, shape, type = stored(name)
    want, dims = source(hf)
    assert type == 0 and shape == dims[::-1], (name, shape, dims, type)
    if pairs:  # halves of a head become pairs
        r = rows(want, shape[0])
        want = b"".join(r[h + i // 2 + pairs // 2 * (i % 2)] for h in range(0, len(r), pairs) for i in range(pairs))
    assert have == want, name
for a, b in (("attn_norm", "input_layernorm"), ("attn_norm_2", "hidden_norm"), ("ffn_norm", "post_attention_layernorm"), ("attn_v", "self_attn.v_proj"),
             ("attn_output", "self_attn.o_proj"), ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")):
    same("blk.0.%s.weight" % a, b + ".weight")
for a in "qk": same("blk.0.attn_%s.weight" % a, "self_attn.%s_proj.weight" % a, pairs=32)
same("fc.weight", "fc.weight"), same("output_norm.weight", "norm.weight"), same("output.weight", "lm_head.weight")
if "enc.output_norm.weight" in tensors: same("enc.output_norm.weight", "input_norm.weight")
have, shape, type = stored("d2t")
assert type == 27 and struct.unpack("<40q", have) == tuple(range(0, 160, 4)), "d2t"
assert not tensors, tensors
END
for kind in model head named wide outside; do python3 "$work/make.py" $kind "$work/$kind" || failed "the test's own folder"; done
"$tenon" convert "$work/model" "$work/model.gguf" --pre gpt-2 > "$work/out" 2>&1 || failed "model: $(cat "$work/out")"
"$tenon" convert "$work/head" "$work/no.gguf" > "$work/out" 2>&1 && failed "a head without its model"
grep -q -- "--base" "$work/out" || failed "not told what is missing: $(cat "$work/out")"
"$tenon" convert "$work/wide" "$work/no.gguf" --base "$work/model" --pre gpt-2 > "$work/out" 2>&1 && failed "a head for another width"
grep -q "width of 64" "$work/out" || failed "wide: $(cat "$work/out")"
"$tenon" convert "$work/outside" "$work/no.gguf" --base "$work/model" --pre gpt-2 > "$work/out" 2>&1 && failed "a token outside the vocabulary"
grep -q "token 160 of 160" "$work/out" || failed "outside: $(cat "$work/out")"
[ ! -e "$work/no.gguf" ] || failed "a file is left of a failed conversion"
"$tenon" run "$work/model.gguf" --repeatable --temp 0 -n 40 -p abc > "$work/plain" 2> "$work/out" || failed "run: $(cat "$work/out")"
for kind in head named; do
    "$tenon" convert "$work/$kind" "$work/$kind.gguf" --target-model-dir "$work/model" --pre gpt-2 > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
    grep -q warning "$work/out" && failed "$kind: $(cat "$work/out")"
    python3 "$work/check.py" "$work/$kind" "$work/$kind.gguf" || failed "$kind: other contents"
    for type in auto eagle3 draft-eagle3; do
        "$tenon" run "$work/model.gguf" -md "$work/$kind.gguf" --spec-type $type --draft-fixed --repeatable --temp 0 -n 40 -p abc > "$work/guessed" 2> "$work/out" ||
            failed "$kind, $type: $(cat "$work/out")"
        cmp -s "$work/plain" "$work/guessed" || failed "$kind, $type: another text"
        grep -q "guess" "$work/out" || failed "$kind, $type: no guesses: $(cat "$work/out")"
    done
    "$tenon" quantize "$work/$kind.gguf" "$work/small.gguf" Q8_0 --force > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
    "$tenon" run "$work/model.gguf" -md "$work/small.gguf" --draft-fixed --repeatable --temp 0 -n 40 -p abc > "$work/guessed" 2> "$work/out" || failed "$kind: $(cat "$work/out")"
    cmp -s "$work/plain" "$work/guessed" || failed "$kind, quantized: another text"
done
"$tenon" inspect "$work/head.gguf" --json > "$work/out"
python3 - "$work/out" << 'END' || failed "keys of the head"
import json, sys
keys = json.load(open(sys.argv[1]))
keys = keys.get("metadata", keys)
text = json.dumps(keys)
assert "eagle3.target_layers" in text and "eagle3.target_hidden_size" in text
END
[ "$("$tenon" inspect "$work/named.gguf" --key eagle3.norm_before_fc)" = true ] || failed "norm_before_fc"
"$tenon" inspect "$work/head.gguf" --key eagle3.target_layers | tr '\n' , | grep -q "^2,3,3,$" || failed "layers: $("$tenon" inspect "$work/head.gguf" --key eagle3.target_layers)"
"$tenon" inspect "$work/named.gguf" --key eagle3.target_layers | tr '\n' , | grep -q "^1,2,5,$" || failed "layers: $("$tenon" inspect "$work/named.gguf" --key eagle3.target_layers)"
"$tenon" run "$work/model.gguf" -md "$work/head.gguf" --spec-type draft -p abc > "$work/out" 2>&1 && failed "a head as a draft model"
grep -q "EAGLE-3 head" "$work/out" || failed "draft: $(cat "$work/out")"
"$tenon" run "$work/model.gguf" -md "$work/model.gguf" --spec-type eagle3 -p abc > "$work/out" 2>&1 && failed "a model as a head"
grep -q "not an EAGLE-3 head" "$work/out" || failed "eagle3: $(cat "$work/out")"
"$tenon" plan "$work/model.gguf" -md "$work/head.gguf" > "$work/out" 2>&1 || failed "plan: $(cat "$work/out")"
grep -q "Guesses (eagle3)" "$work/out" || failed "plan: $(cat "$work/out")"
finish
