/* Phi 2: parallel and ungated. Phi 3: a Llama with fused matrices and long-context factors. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_phi2 = {
    .name = "phi2",
    .norm = TN__NORM_LAYER,
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_PARALLEL,
    .activation = TN_OP_GELU,
    .no_ffn_scales = true,
    .ungated = true,
    .required = {"attn_norm", "attn_q|attn_qkv", "attn_output", "ffn_up", "ffn_down"},
};
const tn__arch tn__arch_phi3 = {
    .name = "phi3",
    .norm = TN__NORM_RMS,
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .required = {"attn_norm", "attn_q|attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"},
};
