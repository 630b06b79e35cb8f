/* Keys and tensors that only some families have. */
#include "llm/arch/families.h"

#include <math.h>

/* Queries beyond the context of the first training grow with their position. YaRN scales q and k with the logarithm
 * of the factor; a file with a multiplier of that logarithm undoes the scaling, whatever attention factor it gives.
 */
tn_status tn__read_mistral3(const tn_gguf *file, tn__hparams *h) {
    h->temperature_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.temperature_scale"), 0);
    h->temperature_length = tn_gguf_get_i32(file, tn__arch_key(file, "attention.temperature_length"), 0);
    if (h->temperature_length <= 0) h->temperature_length = h->rope_orig_ctx > 0 ? h->rope_orig_ctx : h->n_ctx_train;
    float log_mul = tn_gguf_get_f32(file, tn__arch_key(file, "rope.scaling.yarn_log_multiplier"), 0);
    if (h->rope_scaling == TN__ROPE_SCALING_YARN && h->rope_factor > 1 && log_mul > 0)
        h->yarn_attn = 1 / (1 + 0.1f * log_mul * logf(h->rope_factor));
    return TN_OK;
}

/* Every fourth layer has no RoPE. */
tn_status tn__read_smollm3(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    for (int32_t i = 3; i < h->n_layer; i += 4) h->layers[i].no_rope = true;
    return TN_OK;
}

tn_status tn__read_granite(const tn_gguf *file, tn__hparams *h) {
    h->embd_scale = tn_gguf_get_f32(file, tn__arch_key(file, "embedding_scale"), 0);
    h->residual_scale = tn_gguf_get_f32(file, tn__arch_key(file, "residual_scale"), 0);
    h->attn_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.scale"), 0);
    float divisor = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    h->logit_scale = divisor != 0 ? 1 / divisor : 0;
    return TN_OK;
}

tn_status tn__read_gemma(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    h->embd_scale = sqrtf((float)h->n_embd);
    return TN_OK;
}

/* The file's value. Without one, the largest model of each family divides by √(width per head) instead of √(size of a
 * head); its number of layers identifies it. */
static float query_scale(const tn_gguf *file, const tn__hparams *h, int32_t layers_of_largest) {
    float scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.scale"), 0);
    if (scale > 0) return scale;
    return h->n_layer == layers_of_largest ? 1 / sqrtf((float)h->n_embd / (float)h->layers[0].n_head) : 0;
}

tn_status tn__read_gemma2(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_gemma(file, h));
    h->attn_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "attn_logit_softcapping"), 50);
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 30);
    h->attn_scale = query_scale(file, h, 46);
    return TN_OK;
}

/* The scaling of RoPE is that of layers that see all positions. */
static void use_plain_rope_in_windows(tn__hparams *h) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        if (!h->layers[i].window) continue;
        h->layers[i].plain_rope = true;
        h->layers[i].rope_scale = 1;
    }
}

/* Phi 3: files of other programs give a window that those programs do not use. Files that list the layers mean it. */
tn_status tn__read_listed_windows(const tn_gguf *file, tn__hparams *h) {
    if (tn_gguf_find(file, tn__arch_key(file, "attention.sliding_window_pattern"))) return TN_OK;
    for (int32_t i = 0; i < h->n_layer; i++) {
        h->layers[i].window = 0;
        h->layers[i].no_rope = false;
    }
    return TN_OK;
}

tn_status tn__read_olmo2(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    use_plain_rope_in_windows(h);
    return TN_OK;
}

tn_status tn__read_gemma3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(tn__read_gemma(file, h));
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 0);
    h->attn_scale = query_scale(file, h, 62);
    float local = tn_gguf_get_f32(file, tn__arch_key(file, "rope.freq_base_swa"), 10000);
    for (int32_t i = 0; i < h->n_layer; i++)
        if (h->layers[i].window) h->layers[i].rope_base = local;
    use_plain_rope_in_windows(h);
    return TN_OK;
}

tn_status tn__read_gptneox(const tn_gguf *file, tn__hparams *h) {
    h->parallel = tn_gguf_get_bool(file, tn__arch_key(file, "use_parallel_residual"), true);
    return TN_OK;
}

/* A norm of k without one of q is not used. */
void tn__adjust_mpt(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++)
        if (!w->layers[i].q_norm) w->layers[i].k_norm = NULL;
}

tn_status tn__read_mpt(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, tn__arch_key(file, "attention.max_alibi_bias"), 0);
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}

tn_status tn__read_olmo(const tn_gguf *file, tn__hparams *h) {
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}

/* The softmax runs over the chosen experts only, so their weights sum to 1 by themselves. The models were trained
 * with the exact ends of YaRN's blend, which other programs' files do not say. */
tn_status tn__read_gpt_oss(const tn_gguf *file, tn__hparams *h) {
    h->gating = TN__GATING_SOFTMAX_OF_CHOSEN;
    h->yarn_exact = !tn_gguf_get_bool(file, tn__arch_key(file, "rope.scaling.yarn_truncate"), false);
    h->norm_expert_weights = tn_gguf_get_bool(file, tn__arch_key(file, "expert_weights_norm"), false);
    return TN_OK;
}

tn_status tn__read_logit_scale(const tn_gguf *file, tn__hparams *h) {
    h->logit_scale = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    return TN_OK;
}
