// Makes small models that rank texts, as Hugging Face folders with random weights, and computes the relevance of texts
// by the definition of their classes: node rerankers.mjs WORK
// Prints a line per model: NAME, the scores of the documents, and the first values of an embedding where there is one.
import fs from "node:fs";
import path from "node:path";

const work = process.argv[2];
const W = 32, H = 4, D = W / H, F = 48, L = 2, C = 40;
let state = 12345;
const random = () => {
  let sum = 0;
  for (let i = 0; i < 4; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    sum += state / 4294967296 - 0.5;
  }
  return sum;
};
export const query = "hello world", documents = ["the world", "a cat", "hello hello the cat world", "zzz"];

// ---- Folders ----
function write(name, config, tensors, files) {
  const dir = path.join(work, name);
  fs.mkdirSync(dir, { recursive: true });
  fs.writeFileSync(path.join(dir, "config.json"), JSON.stringify(config));
  for (const [file, content] of Object.entries(files)) {
    fs.mkdirSync(path.dirname(path.join(dir, file)), { recursive: true });
    fs.writeFileSync(path.join(dir, file), typeof content === "string" || Buffer.isBuffer(content) ? content : JSON.stringify(content));
  }
  fs.writeFileSync(path.join(dir, "model.safetensors"), pack(tensors));
}
function pack(tensors) {
  const header = {}, pieces = [];
  let offset = 0;
  for (const [key, t] of Object.entries(tensors)) {
    header[key] = { dtype: "F32", shape: t.shape, data_offsets: [offset, (offset += 4 * t.data.length)] };
    pieces.push(Buffer.from(Float32Array.from(t.data).buffer));
  }
  const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([size, text, ...pieces]);
}
const tensor = (shape, scale = 0.5, centre = 0) => ({ shape, data: Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => Math.fround(centre + scale * random())) });

// ---- Arithmetic ----
const affine = (m, b, x) => Array.from({ length: m.shape[0] }, (_, o) => { let y = b ? b.data[o] : 0; for (let i = 0; i < x.length; i++) y += m.data[o * x.length + i] * x[i]; return y; });
function layerNorm(x, w, b, eps) {
  const mean = x.reduce((a, v) => a + v, 0) / x.length, v = x.reduce((a, y) => a + (y - mean) ** 2, 0) / x.length;
  return x.map((y, i) => ((y - mean) / Math.sqrt(v + eps)) * w.data[i] + b.data[i]);
}
const rmsNorm = (x, w, eps) => { const s = Math.sqrt(x.reduce((a, y) => a + y * y, 0) / x.length + eps); return x.map((y, i) => (y / s) * w.data[i]); };
function erf(x) {
  // Series; arguments here are small.
  let sum = 0, term = x;
  for (let n = 0; n < 60; n++) (sum += term / (2 * n + 1)), (term *= (-x * x) / (n + 1));
  return (2 / Math.sqrt(Math.PI)) * sum;
}
const gelu = (x) => 0.5 * x * (1 + (Math.abs(x) > 5 ? Math.sign(x) : erf(x / Math.SQRT2)));
function attend(q, k, v, causal, kvHeads = H) {
  return q.map((_, t) => {
    const out = [];
    for (let h = 0; h < H; h++) {
      const g = Math.floor((h * kvHeads) / H), n = causal ? t + 1 : q.length;
      const s = Array.from({ length: n }, (_, c) => { let dot = 0; for (let i = 0; i < D; i++) dot += q[t][h * D + i] * k[c][g * D + i]; return Math.exp(dot / Math.sqrt(D)); });
      const sum = s.reduce((a, b) => a + b, 0);
      for (let i = 0; i < D; i++) out.push(s.reduce((a, p, c) => a + (p / sum) * v[c][g * D + i], 0));
    }
    return out;
  });
}

// ---- BERT and RoBERTa ----
function bertTensors(prefix, vocab, positions, types) {
  const t = {}, linear = (n, o, i) => { t[prefix + n + ".weight"] = tensor([o, i]); t[prefix + n + ".bias"] = tensor([o], 0.1); };
  const norm = (n) => { t[prefix + n + ".weight"] = tensor([W], 0.2, 1); t[prefix + n + ".bias"] = tensor([W], 0.1); };
  t[prefix + "embeddings.word_embeddings.weight"] = tensor([vocab, W], 1);
  t[prefix + "embeddings.position_embeddings.weight"] = tensor([positions, W], 1);
  t[prefix + "embeddings.token_type_embeddings.weight"] = tensor([types, W], 1);
  norm("embeddings.LayerNorm");
  for (let i = 0; i < L; i++) {
    const p = `encoder.layer.${i}.`;
    for (const n of ["query", "key", "value"]) linear(p + "attention.self." + n, W, W);
    linear(p + "attention.output.dense", W, W), norm(p + "attention.output.LayerNorm"), linear(p + "intermediate.dense", F, W), linear(p + "output.dense", W, F), norm(p + "output.LayerNorm");
  }
  return t;
}
function bert(t, prefix, ids, types, first, eps) {
  const w = (n) => t[prefix + n], line = (n, x) => affine(w(n + ".weight"), w(n + ".bias"), x), norm = (n, x) => layerNorm(x, w(n + ".weight"), w(n + ".bias"), eps);
  const row = (n, r) => w(n + ".weight").data.slice(r * W, (r + 1) * W);
  let x = ids.map((id, i) => { const a = row("embeddings.word_embeddings", id), b = row("embeddings.position_embeddings", i + first), c = row("embeddings.token_type_embeddings", types[i]); return norm("embeddings.LayerNorm", a.map((v, k) => v + b[k] + c[k])); });
  for (let i = 0; i < L; i++) {
    const p = `encoder.layer.${i}.`, [q, k, v] = ["query", "key", "value"].map((n) => x.map((y) => line(p + "attention.self." + n, y)));
    x = attend(q, k, v, false).map((y, s) => norm(p + "attention.output.LayerNorm", line(p + "attention.output.dense", y).map((z, e) => z + x[s][e])));
    x = x.map((y) => norm(p + "output.LayerNorm", line(p + "output.dense", line(p + "intermediate.dense", y).map(gelu)).map((z, e) => z + y[e])));
  }
  return x;
}
const words = ["the", "hello", "world", "cat", "a"];
const added = (list) => list.map((content, id) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }));
const common = { hidden_size: W, num_hidden_layers: L, num_attention_heads: H, intermediate_size: F, hidden_act: "gelu", layer_norm_eps: 1e-5 };
const print = (name, scores) => console.log(name + " " + scores.map((s) => s.toFixed(6)).join(" "));

{
  const special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], vocab = Object.fromEntries([...special, ...words].map((x, i) => [x, i])), V = special.length + words.length;
  const tokenizer = { version: "1.0", added_tokens: added(special), normalizer: { type: "BertNormalizer", clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true }, pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: null, decoder: { type: "WordPiece", prefix: "##", cleanup: true }, model: { type: "WordPiece", unk_token: "[UNK]", continuing_subword_prefix: "##", max_input_chars_per_word: 100, vocab } };
  const t = bertTensors("bert.", V, C, 2);
  t["bert.pooler.dense.weight"] = tensor([W, W]), (t["bert.pooler.dense.bias"] = tensor([W], 0.1)), (t["classifier.weight"] = tensor([1, W])), (t["classifier.bias"] = tensor([1], 0.1));
  write("bert", { architectures: ["BertForSequenceClassification"], ...common, vocab_size: V, max_position_embeddings: C, type_vocab_size: 2, pad_token_id: 0, id2label: { 0: "LABEL_0" } }, t,
    { "tokenizer.json": tokenizer, "tokenizer_config.json": { cls_token: "[CLS]", sep_token: "[SEP]", unk_token: "[UNK]", pad_token: "[PAD]", mask_token: "[MASK]" } });
  const encode = (text) => text.split(" ").map((x) => vocab[x] ?? 1);
  // The same encoder with the modules of sentence-transformers: the first token's state, then two matrices; and prompts.
  const dense = [tensor([F, W]), tensor([W, F])], plain = Object.fromEntries(Object.entries(t).filter(([n]) => !n.startsWith("classifier")));
  write("embedder", { architectures: ["BertModel"], ...common, vocab_size: V, max_position_embeddings: C, type_vocab_size: 2, pad_token_id: 0 }, plain,
    { "tokenizer.json": tokenizer, "tokenizer_config.json": { cls_token: "[CLS]", sep_token: "[SEP]", unk_token: "[UNK]", pad_token: "[PAD]", mask_token: "[MASK]" },
      "modules.json": [{ idx: 0, path: "", type: "sentence_transformers.models.Transformer" }, { idx: 1, path: "1_Pooling", type: "sentence_transformers.models.Pooling" },
        ...[2, 3].map((i) => ({ idx: i, path: `${i}_Dense`, type: "sentence_transformers.models.Dense" })), { idx: 4, path: "4_Normalize", type: "sentence_transformers.models.Normalize" }],
      "1_Pooling/config.json": { word_embedding_dimension: W, pooling_mode_cls_token: true, pooling_mode_mean_tokens: false },
      ...Object.fromEntries([2, 3].flatMap((i) => [[`${i}_Dense/config.json`, { in_features: i === 2 ? W : F, out_features: i === 2 ? F : W, bias: false, activation_function: "torch.nn.modules.linear.Identity" }], [`${i}_Dense/model.safetensors`, pack({ "linear.weight": dense[i - 2] })]])),
      "config_sentence_transformers.json": { prompts: { query: "the cat ", document: "" } } });
  const ids = [2, ...encode("the cat hello world"), 3];
  fs.writeFileSync(path.join(work, "vector"), affine(dense[1], null, affine(dense[0], null, bert(t, "bert.", ids, ids.map(() => 0), 0, 1e-5)[0])).map((v) => v.toFixed(6)).join(" ") + "\n");
  print("bert", documents.map((d) => {
    const a = [2, ...encode(query), 3], b = [...encode(d), 3];
    const x = bert(t, "bert.", [...a, ...b], [...a.map(() => 0), ...b.map(() => 1)], 0, 1e-5);
    return affine(t["classifier.weight"], t["classifier.bias"], affine(t["bert.pooler.dense.weight"], t["bert.pooler.dense.bias"], x[0]).map(Math.tanh))[0];
  }));
}

// ---- XLM-RoBERTa: other special tokens, positions from 2 on, its own head ----
{
  const special = ["<s>", "<pad>", "</s>", "<unk>"], pieces = words.map((x) => "▁" + x), V = special.length + pieces.length + 1;
  const list = [...special.map((x) => [x, 0]), ...pieces.map((x, i) => [x, -2 - i / 10]), ["▁", -8]];
  const tokenizer = { version: "1.0", added_tokens: added(special), normalizer: null, pre_tokenizer: { type: "Metaspace", replacement: "▁", prepend_scheme: "always", split: true },
    post_processor: { type: "TemplateProcessing", single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }, { SpecialToken: { id: "</s>", type_id: 0 } }],
      pair: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }, { SpecialToken: { id: "</s>", type_id: 0 } }, { SpecialToken: { id: "</s>", type_id: 0 } }, { Sequence: { id: "B", type_id: 0 } }, { SpecialToken: { id: "</s>", type_id: 0 } }],
      special_tokens: { "<s>": { id: "<s>", ids: [0], tokens: ["<s>"] }, "</s>": { id: "</s>", ids: [2], tokens: ["</s>"] } } },
    decoder: { type: "Metaspace", replacement: "▁", prepend_scheme: "always", split: true }, model: { type: "Unigram", unk_id: 3, vocab: list, byte_fallback: false } };
  const t = bertTensors("roberta.", V, C + 2, 1);
  t["classifier.dense.weight"] = tensor([W, W]), (t["classifier.dense.bias"] = tensor([W], 0.1)), (t["classifier.out_proj.weight"] = tensor([1, W])), (t["classifier.out_proj.bias"] = tensor([1], 0.1));
  write("xlmr", { architectures: ["XLMRobertaForSequenceClassification"], ...common, vocab_size: V, max_position_embeddings: C + 2, type_vocab_size: 1, pad_token_id: 1, bos_token_id: 0, eos_token_id: 2 }, t,
    { "tokenizer.json": tokenizer, "tokenizer_config.json": { bos_token: "<s>", eos_token: "</s>", cls_token: "<s>", sep_token: "</s>", unk_token: "<unk>", pad_token: "<pad>" } });
  const encode = (text) => text.split(" ").flatMap((x) => (words.includes(x) ? [special.length + words.indexOf(x)] : [V - 1, 3]));
  print("xlmr", documents.map((d) => {
    const ids = [0, ...encode(query), 2, 2, ...encode(d), 2], x = bert(t, "roberta.", ids, ids.map(() => 0), 2, 1e-5);
    return affine(t["classifier.out_proj.weight"], t["classifier.out_proj.bias"], affine(t["classifier.dense.weight"], t["classifier.dense.bias"], x[0]).map(Math.tanh))[0];
  }));
}

// ---- Qwen 3: the probability of "yes" after a prompt, and a classifier's score ----
const bytes = Array.from({ length: 256 }, (_, b) => b), alphabet = [];
for (let b = 0, n = 0; b < 256; b++) alphabet.push(String.fromCharCode((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : 256 + n++));
function qwen(t, ids) {
  const K = 2, eps = 1e-6, half = D / 2;
  const rotate = (x, heads, at) => { const y = [...x]; for (let h = 0; h < heads; h++) for (let i = 0; i < half; i++) { const angle = at * 10000 ** ((-2 * i) / D), a = x[h * D + i], b = x[h * D + half + i]; (y[h * D + i] = a * Math.cos(angle) - b * Math.sin(angle)), (y[h * D + half + i] = a * Math.sin(angle) + b * Math.cos(angle)); } return y; };
  const heads = (x, n, w) => Array.from({ length: n }, (_, h) => rmsNorm(x.slice(h * D, (h + 1) * D), w, eps)).flat();
  let x = ids.map((id) => t["model.embed_tokens.weight"].data.slice(id * W, (id + 1) * W));
  for (let i = 0; i < L; i++) {
    const p = `model.layers.${i}.`, w = (n) => t[p + n + ".weight"], y = x.map((v) => rmsNorm(v, w("input_layernorm"), eps));
    const q = y.map((v, s) => rotate(heads(affine(w("self_attn.q_proj"), null, v), H, w("self_attn.q_norm")), H, s)), k = y.map((v, s) => rotate(heads(affine(w("self_attn.k_proj"), null, v), K, w("self_attn.k_norm")), K, s)), v = y.map((z) => affine(w("self_attn.v_proj"), null, z));
    x = attend(q, k, v, true, K).map((z, s) => affine(w("self_attn.o_proj"), null, z).map((a, e) => a + x[s][e]));
    x = x.map((z) => { const n = rmsNorm(z, w("post_attention_layernorm"), eps), g = affine(w("mlp.gate_proj"), null, n), u = affine(w("mlp.up_proj"), null, n); return affine(w("mlp.down_proj"), null, g.map((a, e) => (a / (1 + Math.exp(-a))) * u[e])).map((a, e) => a + z[e]); });
  }
  return rmsNorm(x[x.length - 1], t["model.norm.weight"], eps);
}
for (const kind of ["Qwen3-Reranker-tiny", "qwen3-classifier"]) {
  const special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], merges = [["y", "e"], ["ye", "s"], ["n", "o"]], K = 2;
  const vocab = Object.fromEntries([...bytes.map((b) => alphabet[b]), "ye", "yes", "no"].map((x, i) => [x, i])), V = 259 + special.length + 1;
  const marks = special.map((content, i) => ({ id: 259 + i, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true })).concat([{ id: 262, content: "<think>", single_word: false, lstrip: false, rstrip: false, normalized: false, special: false }]);
  const tokenizer = { version: "1.0", added_tokens: marks, normalizer: { type: "NFC" }, pre_tokenizer: { type: "Sequence", pretokenizers: [{ type: "Split", pattern: { Regex: "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" }, behavior: "Isolated", invert: false }, { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false }] },
    post_processor: null, decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: false }, model: { type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab, merges } };
  const t = { "model.embed_tokens.weight": tensor([V, W], 1), "model.norm.weight": tensor([W], 0.2, 1) };
  for (let i = 0; i < L; i++) {
    const p = `model.layers.${i}.`;
    for (const [n, o, k] of [["self_attn.q_proj", H * D, W], ["self_attn.k_proj", K * D, W], ["self_attn.v_proj", K * D, W], ["self_attn.o_proj", W, H * D], ["mlp.gate_proj", F, W], ["mlp.up_proj", F, W], ["mlp.down_proj", W, F]]) t[p + n + ".weight"] = tensor([o, k]);
    for (const n of ["input_layernorm", "post_attention_layernorm"]) t[p + n + ".weight"] = tensor([W], 0.2, 1);
    for (const n of ["self_attn.q_norm", "self_attn.k_norm"]) t[p + n + ".weight"] = tensor([D], 0.2, 1);
  }
  const reranker = kind.startsWith("Qwen3-R");
  if (!reranker) t["score.weight"] = tensor([1, W]);
  write(kind, { architectures: [reranker ? "Qwen3ForCausalLM" : "Qwen3ForSequenceClassification"], hidden_size: W, num_hidden_layers: L, num_attention_heads: H, num_key_value_heads: K, head_dim: D, intermediate_size: F, hidden_act: "silu", rms_norm_eps: 1e-6, rope_theta: 10000, vocab_size: V, max_position_embeddings: 2048, tie_word_embeddings: true, eos_token_id: 259 }, t,
    { "tokenizer.json": tokenizer, "tokenizer_config.json": { eos_token: "<|endoftext|>", add_bos_token: false } });
  // Words without merges are bytes; the texts contain "yes" and "no", which are tokens.
  const encode = (text) => { const ids = []; for (const part of text.split(/(<\|im_start\|>|<\|im_end\|>|<think>|yes|no)/)) { const mark = marks.find((m) => m.content === part); if (mark) ids.push(mark.id); else if (part === "yes") ids.push(257); else if (part === "no") ids.push(258); else ids.push(...[...part.replaceAll("ye", "\u0000")].flatMap((c) => (c === "\u0000" ? [256] : [...Buffer.from(c)]))); } return ids; };
  print(kind, documents.map((d) => {
    const prompt = `<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: ${query}\n<Document>: ${d}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n`;
    const h = qwen(t, reranker ? encode(prompt) : [...encode(query), ...encode(d)]);
    if (!reranker) return affine(t["score.weight"], null, h)[0];
    const logit = (id) => h.reduce((a, v, i) => a + v * t["model.embed_tokens.weight"].data[id * W + i], 0);
    return 1 / (1 + Math.exp(logit(258) - logit(257)));
  }));
}
