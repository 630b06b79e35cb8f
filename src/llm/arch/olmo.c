/* OLMo: norms without weights. OLMo 2: norms after each part. OLMoE: experts. */
#include "llm/arch/arch.h"

static tn_status read_olmo(const tn_gguf *file, tn__hparams *h) {
    h->clamp_qkv = tn_gguf_get_f32(file, tn__arch_key(file, "attention.clamp_kqv"), 0);
    return TN_OK;
}
const tn__arch tn__arch_olmo = {
    .name = "olmo",
    .norm = TN__NORM_LAYER,
    .bare_norms = true,
    .rope = TN_ROPE_NORMAL,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .read = read_olmo,
    .required = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"},
};
const tn__arch tn__arch_olmo2 = {
    .name = "olmo2",
    .norm = TN__NORM_RMS,
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .required = {"attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "post_attention_norm",
                 "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm"},
};
const tn__arch tn__arch_olmoe = {
    .name = "olmoe",
    .norm = TN__NORM_RMS,
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm",
                 "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"},
};
