#!/bin/bash
# tenon convert of folders with weights in few bits (AWQ, GPTQ, compressed-tensors, NVFP4, MXFP4, FP8): each gives the same
# file as a folder with the floats that its format defines. Large folders need little memory.
. "$(dirname "$0")/../support/checks.sh"
[ -x "$tenon" ] || skip "the tenon program is not built"
command -v python3 > /dev/null || skip "no Python 3"
cat > "$work/make.py" << 'END'
"""make.py FORMAT FOLDER PLAIN: a small model with linear layers in FORMAT, and the same one in floats."""
import json, os, random, struct, sys

form, folder, plain = sys.argv[1:4]
rng = random.Random(form)
experts = 4 if form.endswith("-experts") else 0
form = form.replace("-experts", "")
width, ffn, vocab, heads, layers = 128, 256, 300, 4, 1

def f16(x): return struct.unpack("<e", struct.pack("<e", x))[0]
def words(values): return struct.pack("<%dI" % len(values), *[v & 0xffffffff for v in values])
def halves(values): return struct.pack("<%de" % len(values), *values)
def floats(values): return struct.pack("<%df" % len(values), *values)
def e4m3(code):
    e, m = code >> 3 & 15, code & 7
    return (m / 512 if e == 0 else (8 + m) * 2.0 ** (e - 10)) * (-1 if code & 128 else 1)
LEVELS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]

def integers(rows, columns, bits, group, zero_points, order=None):
    """Codes, scales and zero points [group][row], and the floats."""
    groups = columns // group
    of = order or [c // group for c in range(columns)]
    q = [[rng.randrange(1 << bits) for _ in range(columns)] for _ in range(rows)]
    s = [[f16(rng.uniform(0.001, 0.02)) for _ in range(rows)] for _ in range(groups)]
    z = [[rng.randrange(1, 1 << bits) if zero_points else 1 << (bits - 1) for _ in range(rows)] for _ in range(groups)]
    w = [(q[r][c] - z[of[c]][r]) * s[of[c]][r] for r in range(rows) for c in range(columns)]
    return q, s, z, w

def along(matrix, bits, places=None):
    """Packs the values of every row of a matrix into words."""
    n = 32 // bits
    places = places or list(range(n))
    out = []
    for row in matrix:
        for i in range(0, len(row), n):
            out.append(sum(row[i + k] << bits * places[k] for k in range(n)))
    return out
def turned(matrix): return [list(row) for row in zip(*matrix)]

def linear(name, rows, columns):
    """The tensors of a layer in the format: (name, type, shape, bytes); and its floats."""
    if form == "awq":
        q, s, z, w = integers(rows, columns, 4, 32, True)
        places = [0, 4, 1, 5, 2, 6, 3, 7]
        return [(name + ".qweight", "I32", [columns, rows // 8], words(along(turned(q), 4, places))),
                (name + ".qzeros", "I32", [columns // 32, rows // 8], words(along(z, 4, places))),
                (name + ".scales", "F16", [columns // 32, rows], halves(sum(s, [])))], w
    if form in ("gptq", "gptq_v2"):
        bits, group = (4, 32) if form == "gptq" else (8, 64)
        order = [c // group for c in range(columns)]
        if form == "gptq": rng.shuffle(order)
        q, s, z, w = integers(rows, columns, bits, group, True, order)
        stored = [[v - (form == "gptq") for v in row] for row in z]
        return [(name + ".qweight", "I32", [columns * bits // 32, rows], words(sum(turned([along([r], bits) for r in q]), []))),
                (name + ".qzeros", "I32", [columns // group, rows * bits // 32], words(along(stored, bits))),
                (name + ".scales", "F16", [columns // group, rows], halves(sum(s, []))),
                (name + ".g_idx", "I32", [columns], words(order))], w
    if form in ("integers", "integers-zero"):
        q, s, z, w = integers(rows, columns, 4, 32, form != "integers")
        made = [(name + ".weight_packed", "I32", [rows, columns // 8], words(along(q, 4))),
                (name + ".weight_scale", "F16", [rows, columns // 32], halves(sum(turned(s), []))),
                (name + ".weight_shape", "I64", [2], struct.pack("<qq", rows, columns))]
        if form != "integers":
            made.append((name + ".weight_zero_point", "I32", [rows // 8, columns // 32], words(sum(turned(along_rows(z)), []))))
        return made, w
    if form in ("nvfp4", "nvfp4-compressed", "mxfp4"):
        block = 32 if form == "mxfp4" else 16
        q = [rng.randrange(16) for _ in range(rows * columns)]
        s = [rng.randrange(118, 126) if form == "mxfp4" else rng.randrange(1, 126) for _ in range(rows * columns // block)]
        scale = (lambda c: 2.0 ** (c - 127)) if form == "mxfp4" else (lambda c: e4m3(c) / 64)
        w = [LEVELS[v] * scale(s[i // block]) for i, v in enumerate(q)]
        data = bytes(q[i] | q[i + 1] << 4 for i in range(0, len(q), 2))
        packed = ".weight" if form == "nvfp4" else ".weight_packed"
        made = [(name + packed, "U8", [rows, columns // 2], data),
                (name + ".weight_scale", "F8_E8M0" if form == "mxfp4" else "F8_E4M3", [rows, columns // block], bytes(s))]
        if form == "nvfp4": made.append((name + ".weight_scale_2", "F32", [], floats([1 / 64])))
        if form == "nvfp4-compressed": made.append((name + ".weight_global_scale", "F32", [1], floats([64.0])))
        return made + [(name + ".input_scale", "F32", [], floats([1.0]))], w
    if form in ("fp8", "fp8-rows"):
        q = [rng.choice([c for c in range(256) if c & 127 != 127]) for _ in range(rows * columns)]
        if form == "fp8":
            across = (columns + 127) // 128
            s = [2.0 ** rng.randrange(-12, -6) for _ in range((rows + 127) // 128 * across)]
            w = [e4m3(c) * s[i // columns // 128 * across + i % columns // 128] for i, c in enumerate(q)]
            extra = (name + ".weight_scale_inv", "F32", [len(s) // across, across], floats(s))
        else:
            s = [2.0 ** rng.randrange(-12, -6) for _ in range(rows)]
            w = [e4m3(c) * s[i // columns] for i, c in enumerate(q)]
            extra = (name + ".weight_scale", "F32", [rows, 1], floats(s))
        return [(name + ".weight", "F8_E4M3", [rows, columns], bytes(q)), extra], w
    raise SystemExit("unknown format " + form)

def along_rows(z):
    """Zero points [group][row] as words [group][row / 8]."""
    return [[sum(row[i + k] << 4 * k for k in range(8)) for i in range(0, len(row), 8)] for row in z]

def write(path, tensors, files=1):
    os.makedirs(path, exist_ok=True)
    weight_map = {}
    for f in range(files):
        header, data = {}, b""
        name = "model.safetensors" if files == 1 else "model-%05d-of-%05d.safetensors" % (f + 1, files)
        for title, kind, shape, content in tensors[f::files]:
            header[title] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
            weight_map[title] = name
        text = json.dumps(header).encode()
        with open(os.path.join(path, name), "wb") as out: out.write(struct.pack("<Q", len(text)) + text + data)
    if files > 1:
        with open(os.path.join(path, "model.safetensors.index.json"), "w") as out: json.dump({"weight_map": weight_map}, out)

def model_files(path, quantization):
    config = {"architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"], "hidden_size": width, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": 2, "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "_name_or_path": "packed"}
    if experts: config.update({"num_local_experts": experts, "num_experts_per_tok": 2})
    if quantization: config["quantization_config"] = quantization
    with open(os.path.join(path, "config.json"), "w") as out: json.dump(config, out)
    letters = [chr(c) if 33 <= c <= 126 or 161 <= c <= 172 or 174 <= c <= 255 else None for c in range(256)]
    extra = iter(range(256, 512))
    tokens = [c or chr(next(extra)) for c in letters] + ["<extra%d>" % i for i in range(vocab - 256)]
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                 "post_processor": None, "decoder": {"type": "ByteLevel"},
                 "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": []}}
    with open(os.path.join(path, "tokenizer.json"), "w") as out: json.dump(tokenizer, out)

common = []
def vector(name, shape):
    n = 1
    for k in shape: n *= k
    common.append((name, "F32", shape, floats([rng.uniform(-1, 1) for _ in range(n)])))
vector("model.embed_tokens.weight", [vocab, width])
vector("lm_head.weight", [vocab, width])
vector("model.norm.weight", [width])
packed, dense = [], []
for l in range(layers):
    at = "model.layers.%d." % l
    vector(at + "input_layernorm.weight", [width])
    vector(at + "post_attention_layernorm.weight", [width])
    rows = [("self_attn.q_proj", width, width), ("self_attn.k_proj", width // 2, width), ("self_attn.v_proj", width // 2, width), ("self_attn.o_proj", width, width)]
    if experts:
        vector(at + "block_sparse_moe.gate.weight", [experts, width])
        for e in range(experts):
            rows += [("block_sparse_moe.experts.%d.w%d" % (e, k), width if k == 2 else ffn, ffn if k == 2 else width) for k in (1, 2, 3)]
    else:
        rows += [("mlp.gate_proj", ffn, width), ("mlp.up_proj", ffn, width), ("mlp.down_proj", width, ffn)]
    for name, n_rows, n_columns in rows:
        made, w = linear(at + name, n_rows, n_columns)
        packed += made
        dense.append((at + name + ".weight", "F32", [n_rows, n_columns], floats(w)))
write(folder, common + packed, files=3)
write(plain, common + dense)
method = {"awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
          "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
          "gptq_v2": {"quant_method": "gptq", "bits": 8, "group_size": 64, "checkpoint_format": "gptq_v2"},
          "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp8": {"quant_method": "fp8"}}.get(form)
model_files(folder, method or {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}})
model_files(plain, None)
END

for format in awq gptq gptq_v2 integers integers-zero nvfp4 nvfp4-compressed mxfp4 fp8 fp8-rows gptq-experts awq-experts nvfp4-experts; do
    python3 "$work/make.py" $format "$work/$format" "$work/$format-plain" || { failed "$format: the test's own folder"; continue; }
    check "$format" 0 '.' "$tenon" convert "$work/$format" "$work/a.gguf" --type f32 --threads 3
    grep -q warning "$work/out" && failed "$format: $(cat "$work/out")"
    check "$format in floats" 0 '.' "$tenon" convert "$work/$format-plain" "$work/b.gguf" --type f32
    cmp -s "$work/a.gguf" "$work/b.gguf" || failed "$format: not the floats that the format defines"
    "$tenon" convert "$work/$format" "$work/a.gguf" --type q4_1 > /dev/null 2>&1 || failed "$format --type q4_1"
    "$tenon" convert "$work/$format-plain" "$work/b.gguf" --type q4_1 > /dev/null 2>&1
    cmp -s "$work/a.gguf" "$work/b.gguf" || failed "$format: q4_1 differs"
done

# Broken folders are rejected with a message that names the tensor.
broken() { # what, pattern, sed expression for config.json or the names of tensors
    rm -rf "$work/broken"; cp -r "$work/gptq" "$work/broken"
    sed -i "$3" "$work"/broken/config.json "$work"/broken/*.index.json "$work"/broken/*.safetensors
    check "$1" 1 "$2" "$tenon" convert "$work/broken" "$work/x.gguf"
    [ -e "$work/x.gguf" ] && failed "$1 left a file"
}
broken "three bits" 'weights of 3 bits; 2, 4 and 8 are supported' 's/"bits": 4/"bits": 3/'
broken "eight bits instead of four" 'does not fit its scales' 's/"bits": 4/"bits": 8/'
broken "no zero points" 'has no scales or no qzeros' 's/k_proj\.qzeros/k_proj.qzerox/g'

# A folder of 250 MiB in three shards within 150 MB of address space.
python3 - "$work/large" << 'END'
import json, os, struct, sys
folder, width, ffn, vocab = sys.argv[1], 1024, 4096, 300
rows = {"model.embed_tokens.weight": [vocab, width], "lm_head.weight": [vocab, width], "model.norm.weight": [width]}
for l in range(8):
    at = "model.layers.%d." % l
    rows.update({at + "input_layernorm.weight": [width], at + "post_attention_layernorm.weight": [width]})
    rows.update({at + "self_attn.%s_proj.weight" % n: [width, width] for n in "qkvo"})
    rows.update({at + "mlp.gate_proj.weight": [ffn, width], at + "mlp.up_proj.weight": [ffn, width], at + "mlp.down_proj.weight": [width, ffn]})
os.makedirs(folder)
weight_map = {}
for f in range(3):
    header, end, name = {}, 0, "model-%d.safetensors" % f
    for title in sorted(rows)[f::3]:
        size = 2
        for n in rows[title]: size *= n
        header[title] = {"dtype": "BF16", "shape": rows[title], "data_offsets": [end, end + size]}
        end += size
        weight_map[title] = name
    text = json.dumps(header).encode()
    with open(os.path.join(folder, name), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end) # zeros that take no disk space
json.dump({"weight_map": weight_map}, open(os.path.join(folder, "model.safetensors.index.json"), "w"))
END
sed 's/"hidden_size": 128/"hidden_size": 1024/; s/"intermediate_size": 256/"intermediate_size": 4096/; s/"num_hidden_layers": 1/"num_hidden_layers": 8/; s/"num_attention_heads": 4/"num_attention_heads": 8/; s/"num_key_value_heads": 2/"num_key_value_heads": 8/' \
    "$work/gptq-plain/config.json" > "$work/large/config.json"
cp "$work/gptq-plain/tokenizer.json" "$work/large"
if (ulimit -v 150000 && "$tenon" version > /dev/null 2>&1); then # sanitizers need more
    (ulimit -v 150000 && "$tenon" convert "$work/large" "$work/large.gguf" --type q4_0 --threads 2 > "$work/out" 2>&1) ||
        failed "converting 250 MiB needs over 150 MB: $(tail -n 2 "$work/out")"
fi
finish
