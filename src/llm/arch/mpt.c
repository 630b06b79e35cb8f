/* MPT: ALiBi instead of positions. */
#include "llm/arch/arch.h"

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, tn__arch_key(file, "attention.max_alibi_bias"), 0);
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}

const tn__arch tn__arch_mpt = {
    .name = "mpt",
    .norm = TN__NORM_LAYER,
    .no_rope = true,
    .activation = TN_OP_GELU_ERF,
    .no_ffn_scales = true,
    .ungated = true,
    .read = read,
    .required = {"attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"},
};
