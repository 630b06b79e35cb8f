/* MPT: ALiBi instead of RoPE. */
#include "llm/arch/arch.h"

static tn_status read_mpt(const tn_gguf *file, tn__hparams *h) {
    h->max_alibi = tn_gguf_get_f32(file, tn__arch_key(file, "attention.max_alibi_bias"), 0);
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}

const tn__arch tn__arch_mpt = {
    .info = {.name = "mpt",
             .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NO_GATE | TN_ARCH_FUSED_QKV | TN_ARCH_TIED | TN_ARCH_NO_ROPE,
             .typical = {.alibi = 8},
             .classes = {{"MptForCausalLM", 0}, {"MPTForCausalLM", 0}}},
    .activation = TN_OP_GELU_ERF,
    .no_ffn_scales = true,
    .read = read_mpt,
};
