#!/bin/bash
# tenon convert keeps the layers that predict further tokens, under either spelling of their names; the model's logits are
# those of the folder without them.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"
command -v python3 > /dev/null || skip "no Python 3"
cat > "$work/make.py" << 'END'
"""make.py KIND FOLDER: a small Qwen 3 with a layer that predicts further tokens: none, mtp (names of Qwen 3.5), layer (of
DeepSeek V3)."""
import json, os, random, struct, sys

kind, folder = sys.argv[1:3]
width, ffn, vocab, heads, head, layers = 32, 64, 64, 2, 16, 2
tensors = {}
def add(name, *shape):
    rng = random.Random(name.replace("mtp.layers.0", "model.layers.2"))
    n = 1
    for d in shape: n *= d
    tensors[name] = (shape, struct.pack("<%df" % n, *[rng.gauss(0, 0.2) + (len(shape) == 1) for _ in range(n)]))
def layer(at):
    add(at + "input_layernorm.weight", width)
    add(at + "post_attention_layernorm.weight", width)
    for name in "qkvo":
        add(at + "self_attn.%s_proj.weight" % name, width, width)
    for name in "qk": add(at + "self_attn.%s_norm.weight" % name, head)
    add(at + "mlp.gate_proj.weight", ffn, width)
    add(at + "mlp.up_proj.weight", ffn, width)
    add(at + "mlp.down_proj.weight", width, ffn)
add("model.embed_tokens.weight", vocab, width)
add("lm_head.weight", vocab, width)
add("model.norm.weight", width)
for i in range(layers): layer("model.layers.%d." % i)
pairs = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
if kind != "none":
    layer("mtp.layers.0." if kind == "mtp" else "model.layers.2.")
    for a, b in pairs.items():
        add("model.layers.2.%s.weight" % b, *([width, 2 * width] if a == "fc" else [width]))
        if kind == "mtp": tensors["mtp.%s.weight" % a] = tensors.pop("model.layers.2.%s.weight" % b)
header, data = {}, b""
for name, (shape, values) in sorted(tensors.items()):
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    data += values
os.makedirs(folder)
text = json.dumps(header).encode()
with open(folder + "/model.safetensors", "wb") as out: out.write(struct.pack("<Q", len(text)) + text + data)
vocabulary = {chr(33 + i): i for i in range(vocab)}
json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
           "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}, open(folder + "/tokenizer.json", "w"))
json.dump({"architectures": ["Qwen3ForCausalLM"], "hidden_size": width, "num_hidden_layers": layers, "intermediate_size": ffn,
           "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head, "vocab_size": vocab,
           "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False},
          open(folder + "/config.json", "w"))
END
for kind in none mtp layer; do
    python3 "$work/make.py" $kind "$work/folder-$kind" || failed "the test's own folder"
    mv "$work/folder-$kind" "$work/folder"
    "$tenon" convert "$work/folder" "$work/$kind.gguf" --pre gpt-2 > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
    grep -q warning "$work/out" && failed "$kind: $(cat "$work/out")"
    "$tenon" logits "$work/$kind.gguf" --tokens 1,2,3,4,5 --out "$work/$kind.f32" > "$work/out" 2>&1 || failed "$kind: $(cat "$work/out")"
    rm -rf "$work/folder"
done
cmp -s "$work/mtp.gguf" "$work/layer.gguf" || failed "the two spellings give different files"
cmp -s "$work/mtp.f32" "$work/none.f32" || failed "the logits depend on layers that predict further tokens"
[ "$("$tenon" inspect "$work/mtp.gguf" --key qwen3.nextn_predict_layers)" = 1 ] || failed "no key of the number of layers"
[ "$("$tenon" inspect "$work/mtp.gguf" --key qwen3.block_count)" = 3 ] || failed "the layer is not counted"
"$tenon" inspect "$work/mtp.gguf" --json > "$work/out"
for name in eh_proj enorm hnorm shared_head_norm; do
    grep -q "blk.2.nextn.$name.weight" "$work/out" || failed "blk.2.nextn.$name.weight is missing"
done
finish
