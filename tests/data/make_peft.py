"""Makes a tiny Hugging Face model, a PEFT adapter of it and the model with the adapter merged: make_peft.py FOLDER CLASS.
CLASS is LlamaForCausalLM (heads are reordered in GGUF) or GPT2LMHeadModel (transposed weights). Folders: base, adapter, merged."""
import json
import os
import random
import struct
import sys

folder, kind = sys.argv[1:3]
random.seed(5)
WIDTH, HEADS, FFN, VOCAB, LAYERS, RANK, ALPHA = 32, 2, 48, 96, 2, 4, 8
gpt2 = kind == "GPT2LMHeadModel"


def matrix(rows, columns, scale=0.3):
    return [[random.gauss(0, scale) for _ in range(columns)] for _ in range(rows)]


def save(path, tensors):
    header, data = {}, b""
    for name, rows in tensors.items():
        is_matrix = isinstance(rows[0], list)
        flat = [x for row in rows for x in row] if is_matrix else rows
        raw = struct.pack("<%df" % len(flat), *flat)
        shape = [len(rows), len(rows[0])] if is_matrix else [len(rows)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def save_model(name, tensors):
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    save(os.path.join(path, "model.safetensors"), tensors)
    if gpt2:
        config = {"architectures": [kind], "model_type": "gpt2", "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCAB,
                  "n_ctx": 64, "n_positions": 64, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True}
    else:
        config = {"architectures": [kind], "model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
                  "num_key_value_heads": 1, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
                  "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(config, file)
    vocab = {chr(33 + i) if i < 94 else "<%d>" % i: i for i in range(VOCAB)}
    with open(os.path.join(path, "tokenizer.json"), "w") as file:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                   "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}, file)


base, modules = {}, {}
if gpt2:
    ff = 4 * WIDTH
    base["transformer.wte.weight"] = matrix(VOCAB, WIDTH)
    base["transformer.wpe.weight"] = matrix(64, WIDTH)
    shapes = {"attn.c_attn": (3 * WIDTH, WIDTH), "attn.c_proj": (WIDTH, WIDTH), "mlp.c_fc": (ff, WIDTH), "mlp.c_proj": (WIDTH, ff)}
    for layer in range(LAYERS):
        block = "transformer.h.%d." % layer
        for norm in ("ln_1", "ln_2"):
            base[block + norm + ".weight"], base[block + norm + ".bias"] = [1.0] * WIDTH, [0.0] * WIDTH
        for module, (out, into) in shapes.items():
            base[block + module + ".weight"] = matrix(into, out)
            base[block + module + ".bias"] = [random.gauss(0, 0.1) for _ in range(out)]
            modules[block + module] = (out, into)
    base["transformer.ln_f.weight"], base["transformer.ln_f.bias"] = [1.0] * WIDTH, [0.0] * WIDTH
else:
    base["model.embed_tokens.weight"] = matrix(VOCAB, WIDTH)
    base["lm_head.weight"] = matrix(VOCAB, WIDTH)
    base["model.norm.weight"] = [1.0] * WIDTH
    shapes = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH // 2, WIDTH), "self_attn.v_proj": (WIDTH // 2, WIDTH),
              "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (FFN, WIDTH), "mlp.up_proj": (FFN, WIDTH), "mlp.down_proj": (WIDTH, FFN)}
    for layer in range(LAYERS):
        block = "model.layers.%d." % layer
        for norm in ("input_layernorm", "post_attention_layernorm"):
            base[block + norm + ".weight"] = [1.0] * WIDTH
        for module, (out, into) in shapes.items():
            base[block + module + ".weight"] = matrix(out, into)
            modules[block + module] = (out, into)
    modules["lm_head"] = (VOCAB, WIDTH)

merged, adapter = dict(base), {}
for module, (out, into) in modules.items():
    a, b = matrix(RANK, into, 0.2), matrix(out, RANK, 0.2)
    adapter["base_model.model.%s.lora_A.weight" % module] = a
    adapter["base_model.model.%s.lora_B.weight" % module] = b
    rows = [list(row) for row in base[module + ".weight"]]
    for o in range(out):
        for i in range(into):
            change = ALPHA / RANK * sum(b[o][k] * a[k][i] for k in range(RANK))
            if gpt2:
                rows[i][o] += change
            else:
                rows[o][i] += change
    merged[module + ".weight"] = rows
save_model("base", base)
save_model("merged", merged)
os.makedirs(os.path.join(folder, "adapter"), exist_ok=True)
save(os.path.join(folder, "adapter", "adapter_model.safetensors"), adapter)
with open(os.path.join(folder, "adapter", "adapter_config.json"), "w") as file:
    json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_rslora": False, "alpha_pattern": {}, "rank_pattern": {}}, file)
