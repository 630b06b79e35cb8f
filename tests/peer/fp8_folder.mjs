// fp8_folder.mjs TOKENIZER OUT: makes OUT/blocks, a Hugging Face folder with FP8 weights in blocks of 128 x 128, and
// OUT/floats, which has the values that they stand for. The tokenizer is that of the folder TOKENIZER.
import fs from "fs";

const [source, out] = process.argv.slice(2);
const W = 160, F = 200, H = 4, K = 2, vocab = JSON.parse(fs.readFileSync(`${source}/config.json`)).vocab_size;
const config = {
  _name_or_path: "fp8", architectures: ["LlamaForCausalLM"], hidden_size: W, intermediate_size: F, num_hidden_layers: 1,
  num_attention_heads: H, num_key_value_heads: K, vocab_size: vocab, max_position_embeddings: 128, rms_norm_eps: 1e-5,
  tie_word_embeddings: true,
};
const layer = "model.layers.0.";
const shapes = {
  "model.embed_tokens": [vocab, W], "model.norm": [W], [layer + "input_layernorm"]: [W],
  [layer + "post_attention_layernorm"]: [W], [layer + "self_attn.q_proj"]: [W, W], [layer + "self_attn.k_proj"]: [W * K / H, W],
  [layer + "self_attn.v_proj"]: [W * K / H, W], [layer + "self_attn.o_proj"]: [W, W], [layer + "mlp.gate_proj"]: [F, W],
  [layer + "mlp.up_proj"]: [F, W], [layer + "mlp.down_proj"]: [W, F],
};

const e4m3 = v => (v & 128 ? -1 : 1) * ((v >> 3 & 15) ? (1 + (v & 7) / 8) * 2 ** ((v >> 3 & 15) - 7) : (v & 7) / 8 * 2 ** -6);
let state = 1;
const random = n => (state = (state * 48271) % 2147483647) % n;

const floats = {}, blocks = {};
for (const [name, shape] of Object.entries(shapes)) {
  const n = shape.reduce((a, b) => a * b), key = name + ".weight", values = new Float32Array(n);
  if (!name.endsWith("_proj")) {
    for (let i = 0; i < n; i++) values[i] = random(2001) / 1000 - 1;
    floats[key] = blocks[key] = ["F32", shape, values];
    continue;
  }
  const [R, C] = shape, across = Math.ceil(C / 128), down = Math.ceil(R / 128);
  const scales = Float32Array.from({ length: down * across }, () => (1 + random(1000)) / 4000), bytes = new Uint8Array(n);
  for (let r = 0; r < R; r++)
    for (let c = 0; c < C; c++) {
      do bytes[r * C + c] = random(256); while ((bytes[r * C + c] & 127) === 127); // not a number
      values[r * C + c] = e4m3(bytes[r * C + c]) * scales[(r >> 7) * across + (c >> 7)];
    }
  floats[key] = ["F32", shape, values];
  blocks[key] = ["F8_E4M3", shape, bytes];
  blocks[key + "_scale_inv"] = ["F32", [down, across], scales];
}

for (const [name, tensors] of [["floats", floats], ["blocks", blocks]]) {
  const folder = `${out}/${name}`, header = {}, data = [];
  fs.mkdirSync(folder, { recursive: true });
  for (const file of fs.readdirSync(source)) if (file.includes("token")) fs.copyFileSync(`${source}/${file}`, `${folder}/${file}`);
  fs.writeFileSync(`${folder}/config.json`, JSON.stringify(config));
  let offset = 0;
  for (const [key, [dtype, shape, values]] of Object.entries(tensors)) {
    header[key] = { dtype, shape, data_offsets: [offset, offset += values.byteLength] };
    data.push(Buffer.from(values.buffer));
  }
  const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  fs.writeFileSync(`${folder}/model.safetensors`, Buffer.concat([size, text, ...data]));
}
