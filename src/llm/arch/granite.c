/* Granite: a Llama with four multipliers; with experts: Granite MoE. */
#include "llm/arch/arch.h"

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    h->embd_scale = tn_gguf_get_f32(file, tn__arch_key(file, "embedding_scale"), 0);
    h->residual_scale = tn_gguf_get_f32(file, tn__arch_key(file, "residual_scale"), 0);
    h->attn_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.scale"), 0);
    float divisor = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    h->logit_scale = divisor != 0 ? 1 / divisor : 0;
    h->norm_expert_weights = true;
    return TN_OK;
}

#define GRANITE                                                                                                      \
    .norm = TN__NORM_RMS, .rope = TN_ROPE_NORMAL, .activation = TN_OP_SWIGLU, .no_ffn_scales = true, .read = read,   \
    .required = {"attn_norm", "attn_q|attn_qkv", "attn_output", "ffn_norm", "ffn_down|ffn_down_exps"}

const tn__arch tn__arch_granite = {.name = "granite", GRANITE};
const tn__arch tn__arch_granitemoe = {.name = "granitemoe", GRANITE};
