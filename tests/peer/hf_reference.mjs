// Computes the models of hf_folders.mjs in float64 as the transformers library defines them: an independent reference for
// names, orders of rows, rotations and scales. Prints the normalized error of tenon's logits for each class.
// Usage: node hf_reference.mjs TENON WORK CLASS...
import fs from "node:fs";
import path from "node:path";
import { execFileSync } from "node:child_process";

const [tenon, work, ...names] = process.argv.slice(2);
const tokens = [5, 300, 301, 7, 12, 400, 301, 33, 90, 5, 6, 410, 411, 77, 78, 200, 3, 4, 19, 20, 21, 22, 300, 5];

// ---- Arithmetic ----
const dot = (a, b) => { let s = 0; for (let i = 0; i < a.length; i++) s += a[i] * b[i]; return s; };
const add = (a, b, s = 1) => a.map((x, i) => x + s * b[i]);
const scale = (a, s) => a.map((x) => x * s);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const silu = (x) => x * sigmoid(x);
const tanhGelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
function erf(x) { // series; the arguments are small
  if (Math.abs(x) > 5) return Math.sign(x);
  let sum = 0, term = x;
  for (let n = 0; n < 200; n++) { sum += term / (2 * n + 1); term *= -x * x / (n + 1); }
  return (2 / Math.sqrt(Math.PI)) * sum;
}
const erfGelu = (x) => 0.5 * x * (1 + erf(x / Math.SQRT2));
const softmax = (a) => { const m = Math.max(...a), e = a.map((x) => Math.exp(x - m)), s = e.reduce((x, y) => x + y, 0); return e.map((x) => x / s); };
const rms = (x, w, eps, one = 0) => { const s = 1 / Math.sqrt(dot(x, x) / x.length + eps); return x.map((v, i) => v * s * (w ? w[i] + one : 1)); };
function layerNorm(x, w, b, eps) {
  const mean = x.reduce((a, v) => a + v, 0) / x.length, c = x.map((v) => v - mean), s = 1 / Math.sqrt(dot(c, c) / x.length + eps);
  return c.map((v, i) => v * s * (w ? w[i] : 1) + (b ? b[i] : 0));
}

function load(dir) {
  const bytes = fs.readFileSync(path.join(dir, "model.safetensors")), length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length)), T = {};
  for (const [name, { shape, data_offsets: [a, b] }] of Object.entries(header)) {
    const flat = Array.from(new Float32Array(bytes.buffer.slice(bytes.byteOffset + 8 + length + a, bytes.byteOffset + 8 + length + b)));
    const cut = (data, dims) => dims.length === 1 ? data : [...Array(dims[0]).keys()].map((i) => { const n = data.length / dims[0]; return cut(data.slice(i * n, (i + 1) * n), dims.slice(1)); });
    T[name] = cut(flat, shape);
  }
  return T;
}
const linear = (T, name, x) => { const w = T[name + ".weight"], b = T[name + ".bias"]; return w.map((row, i) => dot(row, x) + (b ? b[i] : 0)); };
const conv1d = (T, name, x) => { const w = T[name + ".weight"], b = T[name + ".bias"]; return b.map((v, j) => { let s = v; for (let i = 0; i < x.length; i++) s += x[i] * w[i][j]; return s; }); };

// ---- Attention ----
// Rotation of the first `dims` elements, in halves or in adjacent pairs. `freqs(i)` is the angle per position.
function rotate(x, position, dims, freqs, pairs, factor = 1) {
  const out = x.slice();
  for (let i = 0; i < dims / 2; i++) {
    const angle = position * freqs(i), c = Math.cos(angle) * factor, s = Math.sin(angle) * factor;
    const [a, b] = pairs ? [2 * i, 2 * i + 1] : [i, i + dims / 2];
    out[a] = x[a] * c - x[b] * s;
    out[b] = x[b] * c + x[a] * s;
  }
  return out;
}
// q[token][head][d], k and v[token][kv head][d].
function attend(q, k, v, { scale: s, cap, window, alibi, sinks }) {
  const heads = q[0].length, share = heads / k[0].length;
  return q.map((row, t) => row.map((query, h) => {
    const g = Math.floor(h / share), scores = [];
    for (let j = 0; j <= t; j++) {
      let x = s * dot(query, k[j][g]);
      if (cap) x = cap * Math.tanh(x / cap);
      if (alibi) x += -(t - j) * 2 ** (-(h + 1) * alibi / heads);
      if (!window || t - j < window) scores.push([j, x]);
    }
    const p = softmax([...scores.map(([, x]) => x), ...(sinks ? [sinks[h]] : [])]);
    return v[0][g].map((_, d) => scores.reduce((a, [j], i) => a + p[i] * v[j][g][d], 0));
  }).flat());
}
const heads = (x, d) => [...Array(x.length / d).keys()].map((h) => x.slice(h * d, (h + 1) * d));
// Rows with q…q k v of each group together.
function grouped(x, kv, d, share) {
  const q = [], k = [], v = [], all = heads(x, d);
  for (let g = 0; g < kv; g++) {
    const at = g * (share + 2);
    q.push(...all.slice(at, at + share));
    k.push(all[at + share]);
    v.push(all[at + share + 1]);
  }
  return [q, k, v];
}

// ---- Experts ----
function route(logits, used, renormalize) {
  const p = softmax(logits), order = p.map((x, i) => [x, i]).sort((a, b) => b[0] - a[0]).slice(0, used);
  const sum = renormalize ? order.reduce((a, [x]) => a + x, 0) : 1;
  return order.map(([x, i]) => [x / sum, i]);
}
const gatedMlp = (T, p, x, act, names = ["gate_proj", "up_proj", "down_proj"]) => {
  const gate = linear(T, p + names[0], x), up = linear(T, p + names[1], x);
  return linear(T, p + names[2], gate.map((g, i) => act(g) * up[i]));
};

// ---- Models ----
// One description per class: the names of a layer, and the differences from the others.
function model(name, c, T) {
  const W = c.hidden_size ?? c.n_embd ?? c.d_model, H = c.num_attention_heads ?? c.n_head ?? c.n_heads, D = c.head_dim ?? W / H, L = c.num_hidden_layers ?? c.n_layer ?? c.n_layers;
  const K = name === "FalconForCausalLM" ? 1 : name === "RWForCausalLM" ? c.n_head_kv : c.num_key_value_heads ?? H;
  const theta = c.rope_parameters?.rope_theta ?? c.rope_theta ?? 10000;
  const eps = c.rms_norm_eps && !c.layer_norm_eps && !c.layer_norm_epsilon && !c.norm_epsilon ? c.rms_norm_eps : c.layer_norm_eps ?? c.layer_norm_epsilon ?? c.norm_epsilon ?? 1e-5;
  const gemma = name.startsWith("Gemma"), one = gemma ? 1 : 0, olmo = name === "OlmoForCausalLM";
  const classic = ["PhiForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "FalconForCausalLM", "RWForCausalLM", "MptForCausalLM", "GPTBigCodeForCausalLM", "Starcoder2ForCausalLM", "StableLmForCausalLM", "CohereForCausalLM"].includes(name) || olmo;
  const norm = (key, x) => classic ? layerNorm(x, T[key + ".weight"], T[key + ".bias"], olmo ? 1e-5 : eps) : rms(x, T[key + ".weight"], eps, one);
  const dims = Math.floor(D * (c.partial_rotary_factor ?? c.rotary_pct ?? 1));
  let freqs = (i) => theta ** (-2 * i / dims), factor = 1;
  const rope = c.rope_scaling ?? c.rope_parameters;
  if (name === "Phi3ForCausalLM") { // short texts
    freqs = (i) => theta ** (-2 * i / dims) / rope.short_factor[i];
    factor = Math.sqrt(1 + Math.log(c.max_position_embeddings / c.original_max_position_embeddings) / Math.log(c.original_max_position_embeddings));
  }
  if (rope?.rope_type === "yarn") {
    const correction = (turns) => dims * Math.log(rope.original_max_position_embeddings / (turns * 2 * Math.PI)) / (2 * Math.log(theta));
    let low = correction(rope.beta_fast), high = correction(rope.beta_slow);
    if (rope.truncate !== false) { low = Math.floor(low); high = Math.ceil(high); }
    low = Math.max(low, 0); high = Math.min(high, dims - 1);
    if (low === high) high += 0.001;
    freqs = (i) => { const ramp = Math.min(1, Math.max(0, (i - low) / (high - low))), f = theta ** (-2 * i / dims); return f * (1 - ramp) + f / rope.factor * ramp; };
    const m = (s) => 0.1 * s * Math.log(rope.factor) + 1;
    factor = rope.mscale && rope.mscale_all_dim ? m(rope.mscale) / m(rope.mscale_all_dim) : m(1);
  }
  const noRope = ["GPT2LMHeadModel", "GPTBigCodeForCausalLM", "MptForCausalLM"].includes(name);
  const clip = c.clip_qkv ?? c.attn_config?.clip_qkv;
  const clamp = (x) => clip ? x.map((v) => Math.min(clip, Math.max(-clip, v))) : x;
  const act = gemma || ["PhiForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "Starcoder2ForCausalLM"].includes(name) ? tanhGelu : classic && name !== "StableLmForCausalLM" && name !== "CohereForCausalLM" && !olmo ? erfGelu : silu;

  function qkv(i, x) {
    const s = `model.layers.${i}.self_attn.`;
    switch (name) {
      case "Phi3ForCausalLM": { const a = heads(linear(T, s + "qkv_proj", x), D); return [a.slice(0, H), a.slice(H, H + K), a.slice(H + K)]; }
      case "GPT2LMHeadModel": { const a = heads(conv1d(T, `h.${i}.attn.c_attn`, x), D); return [a.slice(0, H), a.slice(H, 2 * H), a.slice(2 * H)]; }
      case "GPTNeoXForCausalLM": return grouped(linear(T, `gpt_neox.layers.${i}.attention.query_key_value`, x), H, D, 1);
      case "FalconForCausalLM": case "RWForCausalLM": return grouped(linear(T, `transformer.h.${i}.self_attention.query_key_value`, x), K, D, H / K);
      case "MptForCausalLM": { const a = heads(clamp(linear(T, `transformer.blocks.${i}.attn.Wqkv`, x)), D); return [a.slice(0, H), a.slice(H, 2 * H), a.slice(2 * H)]; }
      case "GPTBigCodeForCausalLM": { const a = heads(linear(T, `transformer.h.${i}.attn.c_attn`, x), D); return [a.slice(0, H), a.slice(H, H + 1), a.slice(H + 1)]; }
      case "InternLM2ForCausalLM": return grouped(linear(T, `model.layers.${i}.attention.wqkv`, x), K, D, H / K);
    }
    let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map((n) => clamp(linear(T, s + n, x)));
    if (name === "Olmo2ForCausalLM" || name === "OlmoeForCausalLM") { q = rms(q, T[s + "q_norm.weight"], eps); k = rms(k, T[s + "k_norm.weight"], eps); }
    [q, k, v] = [q, k, v].map((x) => heads(x, D));
    const qn = T[s + "q_norm.weight"], kn = T[s + "k_norm.weight"];
    if (name === "CohereForCausalLM") { q = q.map((x, h) => layerNorm(x, qn[h], null, eps)); k = k.map((x, h) => layerNorm(x, kn[h], null, eps)); }
    else if (qn && qn.length === D) { q = q.map((x) => rms(x, qn, eps, one)); k = k.map((x) => rms(x, kn, eps, one)); }
    return [q, k, v];
  }
  function output(i, x) {
    const s = `model.layers.${i}.self_attn.`;
    switch (name) {
      case "PhiForCausalLM": return linear(T, s + "dense", x);
      case "GPT2LMHeadModel": return conv1d(T, `h.${i}.attn.c_proj`, x);
      case "GPTNeoXForCausalLM": return linear(T, `gpt_neox.layers.${i}.attention.dense`, x);
      case "FalconForCausalLM": case "RWForCausalLM": return linear(T, `transformer.h.${i}.self_attention.dense`, x);
      case "MptForCausalLM": return linear(T, `transformer.blocks.${i}.attn.out_proj`, x);
      case "GPTBigCodeForCausalLM": return linear(T, `transformer.h.${i}.attn.c_proj`, x);
      case "InternLM2ForCausalLM": return linear(T, `model.layers.${i}.attention.wo`, x);
    }
    return linear(T, s + "o_proj", x);
  }
  function mlp(i, x) {
    const p = `model.layers.${i}.`, two = (up, down) => linear(T, down, linear(T, up, x).map(act)), used = c.num_experts_per_tok;
    switch (name) {
      case "PhiForCausalLM": return two(p + "mlp.fc1", p + "mlp.fc2");
      case "GPT2LMHeadModel": return conv1d(T, `h.${i}.mlp.c_proj`, conv1d(T, `h.${i}.mlp.c_fc`, x).map(act));
      case "GPTNeoXForCausalLM": return two(`gpt_neox.layers.${i}.mlp.dense_h_to_4h`, `gpt_neox.layers.${i}.mlp.dense_4h_to_h`);
      case "FalconForCausalLM": case "RWForCausalLM": return two(`transformer.h.${i}.mlp.dense_h_to_4h`, `transformer.h.${i}.mlp.dense_4h_to_h`);
      case "MptForCausalLM": return two(`transformer.blocks.${i}.ffn.up_proj`, `transformer.blocks.${i}.ffn.down_proj`);
      case "GPTBigCodeForCausalLM": return two(`transformer.h.${i}.mlp.c_fc`, `transformer.h.${i}.mlp.c_proj`);
      case "Starcoder2ForCausalLM": return two(p + "mlp.c_fc", p + "mlp.c_proj");
      case "InternLM2ForCausalLM": return gatedMlp(T, p + "feed_forward.", x, silu, ["w1", "w3", "w2"]);
      case "Phi3ForCausalLM": { const a = linear(T, p + "mlp.gate_up_proj", x), f = a.length / 2; return linear(T, p + "mlp.down_proj", a.slice(0, f).map((g, j) => silu(g) * a[f + j])); }
      case "MixtralForCausalLM": return route(linear(T, p + "block_sparse_moe.gate", x), used, true).reduce((s, [w, e]) => add(s, gatedMlp(T, `${p}block_sparse_moe.experts.${e}.`, x, silu, ["w1", "w3", "w2"]), w), x.map(() => 0));
      case "Qwen2MoeForCausalLM": case "Qwen3MoeForCausalLM": case "OlmoeForCausalLM": {
        let s = route(linear(T, p + "mlp.gate", x), used, c.norm_topk_prob).reduce((s, [w, e]) => add(s, gatedMlp(T, `${p}mlp.experts.${e}.`, x, silu), w), x.map(() => 0));
        if (name === "Qwen2MoeForCausalLM") s = add(s, gatedMlp(T, p + "mlp.shared_expert.", x, silu), sigmoid(linear(T, p + "mlp.shared_expert_gate", x)[0]));
        return s;
      }
      case "GraniteMoeSharedForCausalLM": {
        const fused = (inn, out) => { const a = inn.map((r) => dot(r, x)), f = a.length / 2, h = a.slice(0, f).map((g, j) => silu(g) * a[f + j]); return out.map((r) => dot(r, h)); };
        const s = route(linear(T, p + "block_sparse_moe.router.layer", x), used, true).reduce((s, [w, e]) => add(s, fused(T[p + "block_sparse_moe.input_linear.weight"][e], T[p + "block_sparse_moe.output_linear.weight"][e]), w), x.map(() => 0));
        return add(s, fused(T[p + "shared_mlp.input_linear.weight"], T[p + "shared_mlp.output_linear.weight"]));
      }
      case "GptOssForCausalLM": return route(linear(T, p + "mlp.router", x), used, true).reduce((s, [w, e]) => {
        const inn = T[p + "mlp.experts.gate_up_proj"][e], bias = T[p + "mlp.experts.gate_up_proj_bias"][e], out = T[p + "mlp.experts.down_proj"][e], end = T[p + "mlp.experts.down_proj_bias"][e];
        const a = bias.map((b, j) => { let v = b; for (let d = 0; d < x.length; d++) v += x[d] * inn[d][j]; return v; });
        const h = out.map((_, j) => { const g = Math.min(a[2 * j], 7), u = Math.min(7, Math.max(-7, a[2 * j + 1])); return g * sigmoid(1.702 * g) * (u + 1); });
        return add(s, end.map((b, j) => { let v = b; for (let d = 0; d < h.length; d++) v += h[d] * out[d][j]; return v; }), w);
      }, x.map(() => 0));
    }
    return gatedMlp(T, p + "mlp.", x, act);
  }
  function layerKeys(i) {
    const p = `model.layers.${i}.`;
    switch (name) {
      case "GPT2LMHeadModel": return [`h.${i}.ln_1`, `h.${i}.ln_2`];
      case "GPTBigCodeForCausalLM": return [`transformer.h.${i}.ln_1`, `transformer.h.${i}.ln_2`];
      case "GPTNeoXForCausalLM": return [`gpt_neox.layers.${i}.input_layernorm`, `gpt_neox.layers.${i}.post_attention_layernorm`];
      case "FalconForCausalLM": return [`transformer.h.${i}.input_layernorm`, `transformer.h.${i}.input_layernorm`];
      case "RWForCausalLM": return [`transformer.h.${i}.ln_attn`, `transformer.h.${i}.ln_mlp`];
      case "MptForCausalLM": return [`transformer.blocks.${i}.norm_1`, `transformer.blocks.${i}.norm_2`];
      case "InternLM2ForCausalLM": return [p + "attention_norm", p + "ffn_norm"];
      case "PhiForCausalLM": case "CohereForCausalLM": return [p + "input_layernorm", p + "input_layernorm"];
      case "Gemma2ForCausalLM": case "Gemma3ForCausalLM": return [p + "input_layernorm", p + "pre_feedforward_layernorm"];
    }
    return [p + "input_layernorm", p + "post_attention_layernorm"];
  }
  const parallel = ["PhiForCausalLM", "GPTNeoXForCausalLM", "FalconForCausalLM", "RWForCausalLM", "CohereForCausalLM"].includes(name);
  const windowOf = (i) => { const types = c.layer_types; if (!c.sliding_window) return 0; if (types) return types[i] === "sliding_attention" ? c.sliding_window : 0; return name === "Gemma2ForCausalLM" && i % 2 ? 0 : c.sliding_window; };
  const table = T["model.embed_tokens.weight"] ?? T["wte.weight"] ?? T["transformer.wte.weight"] ?? T["gpt_neox.embed_in.weight"] ?? T["transformer.word_embeddings.weight"] ?? T["model.tok_embeddings.weight"];
  const positions = T["wpe.weight"] ?? T["transformer.wpe.weight"];
  let xs = tokens.map((t, p) => { let x = table[t].slice(); if (positions) x = add(x, positions[p]); if (gemma) x = scale(x, Math.sqrt(W)); if (c.embedding_multiplier) x = scale(x, c.embedding_multiplier); return x; });
  const residual = c.residual_multiplier ?? 1;
  for (let i = 0; i < L; i++) {
    const [first, second] = layerKeys(i), olmo2 = name === "Olmo2ForCausalLM";
    const inputs = xs.map((x) => (olmo2 ? x : norm(first, x))), window = windowOf(i);
    const local = name === "Gemma3ForCausalLM" && window ? (d) => c.rope_local_base_freq ** (-2 * d / dims) : freqs;
    const all = inputs.map((x) => qkv(i, x));
    const turn = (vs, p) => (noRope ? vs : vs.map((x) => rotate(x, p, dims, local, name === "CohereForCausalLM", factor)));
    const a = attend(all.map(([q], p) => turn(q, p)), all.map(([, k], p) => turn(k, p)), all.map(([, , v]) => v), { scale: c.attention_multiplier ?? 1 / Math.sqrt(c.query_pre_attn_scalar ?? D), cap: c.attn_logit_softcapping, window,
      alibi: c.attn_config?.alibi ? c.attn_config.alibi_bias_max : 0, sinks: T[`model.layers.${i}.self_attn.sinks`] }).map((x) => output(i, x));
    const post = name === "Gemma2ForCausalLM" || name === "Gemma3ForCausalLM" || olmo2, p = `model.layers.${i}.`;
    xs = xs.map((x, t) => {
      if (parallel) return add(add(x, a[t]), mlp(i, norm(second, x)));
      let y = add(x, post ? norm(p + "post_attention_layernorm", a[t]) : a[t], residual);
      const m = mlp(i, olmo2 ? y : norm(second, y));
      return add(y, post ? norm(p + "post_feedforward_layernorm", m) : m, residual);
    });
  }
  const last = ["model.norm", "ln_f", "transformer.ln_f", "gpt_neox.final_layer_norm", "transformer.norm_f", "model.final_layernorm"].find((k) => T[k + ".weight"]) ?? "model.norm";
  const head = c.tie_word_embeddings || name === "MptForCausalLM" ? table : T["lm_head.weight"] ?? T["embed_out.weight"] ?? T["output.weight"];
  return xs.map((x) => {
    const n = norm(last, x);
    let y = head.map((row, j) => dot(row, n) + (T["lm_head.bias"]?.[j] ?? 0));
    if (c.logits_scaling) y = scale(y, 1 / c.logits_scaling);
    if (c.logit_scale) y = scale(y, c.logit_scale);
    if (c.final_logit_softcapping) y = y.map((v) => c.final_logit_softcapping * Math.tanh(v / c.final_logit_softcapping));
    return y;
  }).flat();
}

let failures = 0;
for (const name of names) {
  const dir = path.join(work, name), config = JSON.parse(fs.readFileSync(path.join(dir, "config.json")));
  if (/Bert/.test(name)) continue; // they have no logits
  const expected = model(name, config, load(dir)), out = dir + ".f32";
  execFileSync(tenon, ["logits", dir + ".gguf", "--tokens", tokens.join(","), "--out", out]);
  const bytes = fs.readFileSync(out), got = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  let error = 0, square = 0;
  for (let i = 0; i < expected.length; i++) { error += (got[i] - expected[i]) ** 2; square += expected[i] ** 2; }
  const nmse = got.length === expected.length ? error / square : Infinity, bad = !(nmse <= 1e-6);
  failures += bad;
  console.log(`${bad ? "FAILED" : "ok    "} ${name} NMSE ${nmse.toExponential(2)}`);
}
process.exit(failures ? 1 : 0);
