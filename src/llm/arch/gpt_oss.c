/* gpt-oss: attention sinks, windows in every other layer, experts with biases and a clamped gate. */
#include "llm/arch/arch.h"

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    tn__window_pattern(file, h, 0, 2);
    h->gating = TN__GATING_SOFTMAX_OF_CHOSEN;
    return TN_OK;
}

/* The norm these files call "post attention" is the feed-forward part's own. */
static void adjust(const tn__hparams *h, tn__weights *w) {
    for (int32_t i = 0; i < h->n_layer; i++) {
        w->layers[i].ffn_norm = w->layers[i].attn_post_norm;
        w->layers[i].attn_post_norm = NULL;
    }
}

const tn__arch tn__arch_gpt_oss = {
    .name = "gpt-oss",
    .norm = TN__NORM_RMS,
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU_OAI,
    .no_ffn_scales = true,
    .read = read,
    .adjust = adjust,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_sinks", "ffn_norm", "ffn_gate_inp",
                 "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"},
};
