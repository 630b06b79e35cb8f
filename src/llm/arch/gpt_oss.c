/* gpt-oss: attention sinks, windows in every other layer, experts with biases and a clamped gate. */
#include "llm/arch/arch.h"

/* The softmax runs over the chosen experts only, so their weights sum to 1 by themselves. */
static tn_status read_gpt_oss(const tn_gguf *file, tn__hparams *h) {
    h->gating = TN__GATING_SOFTMAX_OF_CHOSEN;
    h->norm_expert_weights = tn_gguf_get_bool(file, tn__arch_key(file, "expert_weights_norm"), false);
    return TN_OK;
}

/* The norm that these files call "post attention" is the norm of the feed-forward part. */
static void adjust_gpt_oss(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        w->layers[i].ffn_norm = w->layers[i].attn_post_norm;
        w->layers[i].attn_post_norm = NULL;
    }
}

const tn__arch tn__arch_gpt_oss = {
    .info = {.name = "gpt-oss",
             .traits = TN_ARCH_QKV_BIAS | TN_ARCH_OUT_BIAS | TN_ARCH_SINKS | TN_ARCH_EXPERTS | TN_ARCH_EXPERT_BIAS |
                       TN_ARCH_WINDOW,
             .window_period = 2,
             .experts_sum_to_one = true,
             .typical = {.window = 128},
             .classes = {{"GptOssForCausalLM", TN_ARCH_HF_INTERLEAVED_EXPERTS}}},
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU_OAI,
    .no_ffn_scales = true,
    .read = read_gpt_oss,
    .adjust = adjust_gpt_oss,
};
