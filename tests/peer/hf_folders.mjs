// Writes tiny random Hugging Face folders, one for each model class that tenon convert supports, into WORK: config.json and
// model.safetensors with the names and shapes of the transformers library, and the tokenizer of FOLDER.
// Usage: node hf_folders.mjs FOLDER WORK
import fs from "node:fs";
import path from "node:path";

const [folder, work] = process.argv.slice(2);
let state = 7n;
function random() {
  state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
  return Number(state >> 40n) / 0x1000000 - 0.5;
}

const W = 64, F = 96, V = 512, L = 2, H = 4, K = 2, D = 16, E = 4, C = 128;
const layers = (make) => Object.assign({}, ...[...Array(L).keys()].map(make));
const linear = (name, out, inn, bias) => ({ [name + ".weight"]: [out, inn], ...(bias ? { [name + ".bias"]: [out] } : {}) });
const norm = (name, bias, n = W) => ({ [name + ".weight"]: [n], ...(bias ? { [name + ".bias"]: [n] } : {}) });
const base = { hidden_size: W, intermediate_size: F, vocab_size: V, num_hidden_layers: L, num_attention_heads: H, num_key_value_heads: K,
  max_position_embeddings: C, rms_norm_eps: 1e-6, rope_theta: 10000, tie_word_embeddings: false, bos_token_id: 0, eos_token_id: 1 };
const head = { "lm_head.weight": [V, W] };
const body = { "model.embed_tokens.weight": [V, W], "model.norm.weight": [W] };
const attention = (p, bias, outBias) => ({ ...linear(p + "q_proj", H * D, W, bias), ...linear(p + "k_proj", K * D, W, bias), ...linear(p + "v_proj", K * D, W, bias), ...linear(p + "o_proj", W, H * D, outBias) });
const gated = (p, f = F) => ({ ...linear(p + "gate_proj", f, W), ...linear(p + "up_proj", f, W), ...linear(p + "down_proj", W, f) });
const llama = (extra = () => ({}), bias) => layers((i) => ({ ...norm(`model.layers.${i}.input_layernorm`), ...norm(`model.layers.${i}.post_attention_layernorm`),
  ...attention(`model.layers.${i}.self_attn.`, bias), ...gated(`model.layers.${i}.mlp.`), ...extra(`model.layers.${i}.`) }));
const experts = (p) => Object.assign({}, ...[...Array(E).keys()].map((e) => gated(`${p}experts.${e}.`, F)), linear(p + "gate", E, W));
const moe = (extra = () => ({}), bias) => layers((i) => ({ ...norm(`model.layers.${i}.input_layernorm`), ...norm(`model.layers.${i}.post_attention_layernorm`),
  ...attention(`model.layers.${i}.self_attn.`, bias), ...experts(`model.layers.${i}.mlp.`), ...extra(`model.layers.${i}.`) }));
const qkNorm = (n, k = n) => (p) => ({ ...norm(p + "self_attn.q_norm", false, n), ...norm(p + "self_attn.k_norm", false, k) });
const postNorms = (p) => ({ ...norm(p + "pre_feedforward_layernorm"), ...norm(p + "post_feedforward_layernorm") });

const classes = {
  LlamaForCausalLM: [{ ...base, attention_bias: true, mlp_bias: true }, { ...body, ...head, ...layers((i) => ({ ...norm(`model.layers.${i}.input_layernorm`),
    ...norm(`model.layers.${i}.post_attention_layernorm`), ...attention(`model.layers.${i}.self_attn.`, true, true),
    ...linear(`model.layers.${i}.mlp.gate_proj`, F, W, true), ...linear(`model.layers.${i}.mlp.up_proj`, F, W, true), ...linear(`model.layers.${i}.mlp.down_proj`, W, F, true) })) }],
  MistralForCausalLM: [{ ...base, sliding_window: 16 }, { ...body, ...head, ...llama() }],
  MixtralForCausalLM: [{ ...base, num_local_experts: E, num_experts_per_tok: 2 }, { ...body, ...head, ...layers((i) => ({ ...norm(`model.layers.${i}.input_layernorm`),
    ...norm(`model.layers.${i}.post_attention_layernorm`), ...attention(`model.layers.${i}.self_attn.`), ...linear(`model.layers.${i}.block_sparse_moe.gate`, E, W),
    ...Object.assign({}, ...[...Array(E).keys()].map((e) => { const p = `model.layers.${i}.block_sparse_moe.experts.${e}.`; return { ...linear(p + "w1", F, W), ...linear(p + "w2", W, F), ...linear(p + "w3", F, W) }; })) })) }],
  Ministral3ForCausalLM: [{ ...base, rope_parameters: { rope_type: "yarn", rope_theta: 1e6, factor: 16, original_max_position_embeddings: 64, beta_fast: 32, beta_slow: 1, mscale: 1, mscale_all_dim: 1, llama_4_scaling_beta: 0.1 } },
    { ...body, ...head, ...llama() }],
  Qwen2ForCausalLM: [base, { ...body, ...head, ...llama(undefined, true) }],
  Qwen2MoeForCausalLM: [{ ...base, num_experts: E, num_experts_per_tok: 2, moe_intermediate_size: F, shared_expert_intermediate_size: 32, norm_topk_prob: false },
    { ...body, ...head, ...moe((p) => ({ ...gated(p + "mlp.shared_expert.", 32), ...linear(p + "mlp.shared_expert_gate", 1, W) }), true) }],
  Qwen3ForCausalLM: [{ ...base, head_dim: D }, { ...body, ...head, ...llama(qkNorm(D)) }],
  Qwen3MoeForCausalLM: [{ ...base, head_dim: D, num_experts: E, num_experts_per_tok: 2, moe_intermediate_size: F, norm_topk_prob: true, decoder_sparse_step: 1, mlp_only_layers: [] }, { ...body, ...head, ...moe(qkNorm(D)) }],
  GemmaForCausalLM: [{ ...base, head_dim: D, tie_word_embeddings: true }, { ...body, ...llama() }],
  Gemma2ForCausalLM: [{ ...base, head_dim: D, tie_word_embeddings: true, attn_logit_softcapping: 50, final_logit_softcapping: 30, sliding_window: 16, query_pre_attn_scalar: 20 }, { ...body, ...llama(postNorms) }],
  Gemma3ForCausalLM: [{ ...base, head_dim: D, tie_word_embeddings: true, sliding_window: 16, rope_local_base_freq: 10000, layer_types: ["full_attention", "sliding_attention"] },
    { ...body, ...llama((p) => ({ ...postNorms(p), ...qkNorm(D)(p) })) }],
  PhiForCausalLM: [{ ...base, num_key_value_heads: H, partial_rotary_factor: 0.5, layer_norm_eps: 1e-5 }, { "model.embed_tokens.weight": [V, W], ...norm("model.final_layernorm", true), ...linear("lm_head", V, W, true),
    ...layers((i) => { const p = `model.layers.${i}.`; return { ...norm(p + "input_layernorm", true), ...linear(p + "self_attn.q_proj", W, W, true), ...linear(p + "self_attn.k_proj", W, W, true),
      ...linear(p + "self_attn.v_proj", W, W, true), ...linear(p + "self_attn.dense", W, W, true), ...linear(p + "mlp.fc1", F, W, true), ...linear(p + "mlp.fc2", W, F, true) }; }) }],
  Phi3ForCausalLM: [{ ...base, original_max_position_embeddings: 64, rope_scaling: { type: "longrope", long_factor: Array(D / 2).fill(1.5), short_factor: Array(D / 2).fill(1.1) } }, { ...body, ...head, ...layers((i) => { const p = `model.layers.${i}.`;
    return { ...norm(p + "input_layernorm"), ...norm(p + "post_attention_layernorm"), ...linear(p + "self_attn.qkv_proj", (H + 2 * K) * D, W), ...linear(p + "self_attn.o_proj", W, H * D), ...linear(p + "mlp.gate_up_proj", 2 * F, W), ...linear(p + "mlp.down_proj", W, F) }; }) }],
  GPT2LMHeadModel: [{ n_embd: W, n_layer: L, n_head: H, n_positions: C, vocab_size: V, n_inner: F, layer_norm_epsilon: 1e-5, tie_word_embeddings: true }, { "wte.weight": [V, W], "wpe.weight": [C, W], ...norm("ln_f", true),
    ...layers((i) => { const p = `h.${i}.`, conv = (n, inn, out) => ({ [n + ".weight"]: [inn, out], [n + ".bias"]: [out] });
      return { ...norm(p + "ln_1", true), ...norm(p + "ln_2", true), ...conv(p + "attn.c_attn", W, 3 * W), ...conv(p + "attn.c_proj", W, W), ...conv(p + "mlp.c_fc", W, F), ...conv(p + "mlp.c_proj", F, W) }; }) }],
  GPTNeoXForCausalLM: [{ ...base, num_key_value_heads: undefined, rotary_pct: 0.25, layer_norm_eps: 1e-5, use_parallel_residual: true }, { "gpt_neox.embed_in.weight": [V, W], ...norm("gpt_neox.final_layer_norm", true), "embed_out.weight": [V, W],
    ...layers((i) => { const p = `gpt_neox.layers.${i}.`; return { ...norm(p + "input_layernorm", true), ...norm(p + "post_attention_layernorm", true), ...linear(p + "attention.query_key_value", 3 * W, W, true),
      ...linear(p + "attention.dense", W, W, true), ...linear(p + "mlp.dense_h_to_4h", F, W, true), ...linear(p + "mlp.dense_4h_to_h", W, F, true), [p + "attention.rotary_emb.inv_freq"]: [2] }; }) }],
  FalconForCausalLM: [{ ...base, multi_query: true, parallel_attn: true, new_decoder_architecture: false, bias: false, alibi: false, ffn_hidden_size: F, intermediate_size: undefined, layer_norm_epsilon: 1e-5 }, { "transformer.word_embeddings.weight": [V, W],
    ...norm("transformer.ln_f", true), ...head, ...layers((i) => { const p = `transformer.h.${i}.`; return { ...norm(p + "input_layernorm", true), ...linear(p + "self_attention.query_key_value", (H + 2) * D, W), ...linear(p + "self_attention.dense", W, W),
      ...linear(p + "mlp.dense_h_to_4h", F, W), ...linear(p + "mlp.dense_4h_to_h", W, F) }; }) }],
  RWForCausalLM: [{ ...base, new_decoder_architecture: true, n_head_kv: K, parallel_attn: true, ffn_hidden_size: F, intermediate_size: undefined, layer_norm_epsilon: 1e-5 }, { "transformer.word_embeddings.weight": [V, W],
    ...norm("transformer.ln_f", true), ...head, ...layers((i) => { const p = `transformer.h.${i}.`; return { ...norm(p + "ln_attn", true), ...norm(p + "ln_mlp", true), ...linear(p + "self_attention.query_key_value", (H + 2 * K) * D, W),
      ...linear(p + "self_attention.dense", W, W), ...linear(p + "mlp.dense_h_to_4h", F, W), ...linear(p + "mlp.dense_4h_to_h", W, F) }; }) }],
  MptForCausalLM: [{ d_model: W, n_heads: H, n_layers: L, vocab_size: V, max_seq_len: C, expansion_ratio: 1.5, attn_config: { alibi: true, alibi_bias_max: 8, clip_qkv: 6 }, no_bias: true }, { "transformer.wte.weight": [V, W], ...norm("transformer.norm_f"),
    ...layers((i) => { const p = `transformer.blocks.${i}.`; return { ...norm(p + "norm_1"), ...norm(p + "norm_2"), ...linear(p + "attn.Wqkv", 3 * W, W), ...linear(p + "attn.out_proj", W, W), ...linear(p + "ffn.up_proj", F, W), ...linear(p + "ffn.down_proj", W, F) }; }) }],
  GPTBigCodeForCausalLM: [{ n_embd: W, n_layer: L, n_head: H, n_positions: C, vocab_size: V, n_inner: F, multi_query: true, tie_word_embeddings: true }, { "transformer.wte.weight": [V, W], "transformer.wpe.weight": [C, W], ...norm("transformer.ln_f", true),
    ...layers((i) => { const p = `transformer.h.${i}.`; return { ...norm(p + "ln_1", true), ...norm(p + "ln_2", true), ...linear(p + "attn.c_attn", W + 2 * D, W, true), ...linear(p + "attn.c_proj", W, W, true), ...linear(p + "mlp.c_fc", F, W, true), ...linear(p + "mlp.c_proj", W, F, true) }; }) }],
  Starcoder2ForCausalLM: [{ ...base, norm_epsilon: 1e-5, use_bias: true, sliding_window: 64, tie_word_embeddings: true }, { "model.embed_tokens.weight": [V, W], ...norm("model.norm", true), ...layers((i) => { const p = `model.layers.${i}.`;
    return { ...norm(p + "input_layernorm", true), ...norm(p + "post_attention_layernorm", true), ...attention(p + "self_attn.", true, true), ...linear(p + "mlp.c_fc", F, W, true), ...linear(p + "mlp.c_proj", W, F, true) }; }) }],
  StableLmForCausalLM: [{ ...base, layer_norm_eps: 1e-5, partial_rotary_factor: 0.25, use_qkv_bias: true }, { "model.embed_tokens.weight": [V, W], ...norm("model.norm", true), ...head, ...layers((i) => { const p = `model.layers.${i}.`;
    return { ...norm(p + "input_layernorm", true), ...norm(p + "post_attention_layernorm", true), ...attention(p + "self_attn.", true), ...gated(p + "mlp.") }; }) }],
  SmolLM3ForCausalLM: [{ ...base, tie_word_embeddings: true }, { ...body, ...llama() }],
  OlmoForCausalLM: [{ ...base, clip_qkv: 8 }, { "model.embed_tokens.weight": [V, W], ...head, ...layers((i) => ({ ...attention(`model.layers.${i}.self_attn.`), ...gated(`model.layers.${i}.mlp.`) })) }],
  Olmo2ForCausalLM: [base, { ...body, ...head, ...layers((i) => { const p = `model.layers.${i}.`; return { ...norm(p + "post_attention_layernorm"), ...norm(p + "post_feedforward_layernorm"), ...attention(p + "self_attn."), ...gated(p + "mlp."), ...qkNorm(H * D, K * D)(p) }; }) }],
  OlmoeForCausalLM: [{ ...base, num_experts: E, num_experts_per_tok: 2, norm_topk_prob: false }, { ...body, ...head, ...moe(qkNorm(H * D, K * D)) }],
  GraniteForCausalLM: [{ ...base, embedding_multiplier: 12, logits_scaling: 8, residual_multiplier: 0.22, attention_multiplier: 0.0625 }, { ...body, ...head, ...llama() }],
  GraniteMoeSharedForCausalLM: [{ ...base, num_local_experts: E, num_experts_per_tok: 2, shared_intermediate_size: 32, embedding_multiplier: 12, logits_scaling: 8, residual_multiplier: 0.22, attention_multiplier: 0.0625 }, { ...body, ...head, ...layers((i) => { const p = `model.layers.${i}.`;
    return { ...norm(p + "input_layernorm"), ...norm(p + "post_attention_layernorm"), ...attention(p + "self_attn."), [p + "block_sparse_moe.input_linear.weight"]: [E, 2 * F, W], [p + "block_sparse_moe.output_linear.weight"]: [E, W, F],
      ...linear(p + "block_sparse_moe.router.layer", E, W), ...linear(p + "shared_mlp.input_linear", 64, W), ...linear(p + "shared_mlp.output_linear", W, 32) }; }) }],
  GptOssForCausalLM: [{ ...base, head_dim: D, num_local_experts: E, num_experts_per_tok: 2, sliding_window: 16, layer_types: ["sliding_attention", "full_attention"], rope_scaling: { rope_type: "yarn", factor: 32, original_max_position_embeddings: 64, beta_fast: 32, beta_slow: 1 } },
    { ...body, ...head, ...layers((i) => { const p = `model.layers.${i}.`; return { ...norm(p + "input_layernorm"), ...norm(p + "post_attention_layernorm"), ...attention(p + "self_attn.", true, true), [p + "self_attn.sinks"]: [H], ...linear(p + "mlp.router", E, W, true),
      [p + "mlp.experts.gate_up_proj"]: [E, W, 2 * F], [p + "mlp.experts.gate_up_proj_bias"]: [E, 2 * F], [p + "mlp.experts.down_proj"]: [E, F, W], [p + "mlp.experts.down_proj_bias"]: [E, W] }; }) }],
  InternLM2ForCausalLM: [base, { "model.tok_embeddings.weight": [V, W], "model.norm.weight": [W], "output.weight": [V, W], ...layers((i) => { const p = `model.layers.${i}.`; return { ...norm(p + "attention_norm"), ...norm(p + "ffn_norm"),
    ...linear(p + "attention.wqkv", (H + 2 * K) * D, W), ...linear(p + "attention.wo", W, H * D), ...linear(p + "feed_forward.w1", F, W), ...linear(p + "feed_forward.w2", W, F), ...linear(p + "feed_forward.w3", F, W) }; }) }],
  CohereForCausalLM: [{ ...base, layer_norm_eps: 1e-5, logit_scale: 0.0625, use_qk_norm: true, tie_word_embeddings: true }, { ...body, ...layers((i) => { const p = `model.layers.${i}.`; return { ...norm(p + "input_layernorm"), ...attention(p + "self_attn."), ...gated(p + "mlp."),
    [p + "self_attn.q_norm.weight"]: [H, D], [p + "self_attn.k_norm.weight"]: [K, D] }; }) }],
  BertModel: [{ ...base, num_key_value_heads: undefined, layer_norm_eps: 1e-12, type_vocab_size: 2 }, { "embeddings.word_embeddings.weight": [V, W], "embeddings.position_embeddings.weight": [C, W], "embeddings.token_type_embeddings.weight": [2, W], ...norm("embeddings.LayerNorm", true),
    ...linear("pooler.dense", W, W, true), ...layers((i) => { const p = `encoder.layer.${i}.`; return { ...linear(p + "attention.self.query", W, W, true), ...linear(p + "attention.self.key", W, W, true), ...linear(p + "attention.self.value", W, W, true), ...linear(p + "attention.output.dense", W, W, true),
      ...norm(p + "attention.output.LayerNorm", true), ...linear(p + "intermediate.dense", F, W, true), ...linear(p + "output.dense", W, F, true), ...norm(p + "output.LayerNorm", true) }; }) }],
  NomicBertModel: [{ n_embd: W, n_layer: L, n_head: H, n_positions: C, vocab_size: V, n_inner: F, layer_norm_epsilon: 1e-12, rotary_emb_base: 1000, type_vocab_size: 2 }, { "embeddings.word_embeddings.weight": [V, W], "embeddings.token_type_embeddings.weight": [2, W], ...norm("emb_ln", true),
    ...layers((i) => { const p = `encoder.layers.${i}.`; return { ...linear(p + "attn.Wqkv", 3 * W, W), ...linear(p + "attn.out_proj", W, W), ...norm(p + "norm1", true), ...linear(p + "mlp.fc11", F, W), ...linear(p + "mlp.fc12", F, W), ...linear(p + "mlp.fc2", W, F), ...norm(p + "norm2", true) }; }) }],
};

function write(name, config, tensors) {
  const dir = path.join(work, name);
  fs.mkdirSync(dir, { recursive: true });
  fs.writeFileSync(path.join(dir, "config.json"), JSON.stringify({ architectures: [name], ...config }));
  for (const file of ["tokenizer.json", "tokenizer_config.json"]) fs.copyFileSync(path.join(folder, file), path.join(dir, file));
  const header = {}, pieces = [];
  let offset = 0;
  for (const [key, shape] of Object.entries(tensors)) {
    const n = shape.reduce((a, b) => a * b, 1), data = new Float32Array(n);
    const isNorm = /norm|ln_|LayerNorm/.test(key) && shape.length < 3;
    for (let i = 0; i < n; i++) data[i] = isNorm && key.endsWith("weight") ? 1 + 0.2 * random() : random() * (shape.length > 1 ? 0.4 : 0.1);
    header[key] = { dtype: "F32", shape, data_offsets: [offset, (offset += 4 * n)] };
    pieces.push(Buffer.from(data.buffer));
  }
  const text = Buffer.from(JSON.stringify(header)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  fs.writeFileSync(path.join(dir, "model.safetensors"), Buffer.concat([size, text, ...pieces]));
}
for (const [name, [config, tensors]] of Object.entries(classes)) write(name, config, tensors);
console.log(Object.keys(classes).join("\n"));
