/* Falcon: attention and feed-forward side by side; the larger ones with a norm each. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_falcon = {
    .name = "falcon",
    .norm = TN__NORM_LAYER,
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_PARALLEL,
    .activation = TN_OP_GELU_ERF,
    .no_ffn_scales = true,
    .ungated = true,
    .required = {"attn_norm", "attn_qkv", "attn_output", "ffn_up", "ffn_down"},
};
