/* StableLM: layer norms in a Llama; without a feed-forward norm both parts run side by side. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_stablelm = {
    .name = "stablelm",
    .norm = TN__NORM_LAYER,
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .parallel_without_norm = true,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"},
};
