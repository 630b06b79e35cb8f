/* Gemma 1, 2 and 3: scaled embeddings, GeGLU, and from 2 on norms after each part and windows in most layers. */
#include "llm/arch/arch.h"

#include <math.h>

static tn_status read_gemma(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    h->embd_scale = sqrtf((float)h->n_embd);
    return TN_OK;
}

/* What the file says; else the largest of each family divides by the width per head instead of the head's own size.
 */
static float scale_by_width(const tn_gguf *file, const tn__hparams *h, int32_t layers_of_largest) {
    float scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.scale"), 0);
    if (scale > 0) return scale;
    return h->n_layer == layers_of_largest ? 1 / sqrtf((float)h->n_embd / (float)h->layers[0].n_head) : 0;
}

static tn_status read_gemma2(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read_gemma(file, h));
    tn__window_pattern(file, h, 4096, 2);
    h->attn_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "attn_logit_softcapping"), 50);
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 30);
    h->attn_scale = scale_by_width(file, h, 46);
    return TN_OK;
}

static tn_status read_gemma3(const tn_gguf *file, tn__hparams *h) {
    TN_TRY(read_gemma(file, h));
    tn__window_pattern(file, h, 0, 6);
    h->final_soft_cap = tn_gguf_get_f32(file, tn__arch_key(file, "final_logit_softcapping"), 0);
    h->attn_scale = scale_by_width(file, h, 62);
    float local = tn_gguf_get_f32(file, tn__arch_key(file, "rope.freq_base_swa"), 10000);
    for (int32_t i = 0; i < h->n_layer; i++) {
        if (!h->layers[i].window) continue;
        h->layers[i].rope_base = local;
        h->layers[i].rope_scale = 1;
    }
    return TN_OK;
}

#define GEMMA .norm = TN__NORM_RMS, .rope = TN_ROPE_NEOX, .activation = TN_OP_GEGLU, .no_ffn_scales = true

const tn__arch tn__arch_gemma = {
    .name = "gemma",
    GEMMA,
    .read = read_gemma,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
                 "ffn_down"},
};
const tn__arch tn__arch_gemma2 = {
    .name = "gemma2",
    GEMMA,
    .read = read_gemma2,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "post_attention_norm", "ffn_norm",
                 "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm"},
};
const tn__arch tn__arch_gemma3 = {
    .name = "gemma3",
    GEMMA,
    .read = read_gemma3,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm",
                 "post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm"},
};
