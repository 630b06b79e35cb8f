/* Falcon: attention and feed-forward in parallel; the larger models have a norm for each. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_falcon = {
    .info = {.name = "falcon",
             .traits =
                 TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_FUSED_QKV | TN_ARCH_NO_FFN_NORM,
             .output_q8_0 = true,
             .classes = {{"FalconForCausalLM", TN_ARCH_HF_GROUPED_QKV}, {"RWForCausalLM", TN_ARCH_HF_GROUPED_QKV}}},
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_PARALLEL,
    .activation = TN_OP_GELU_ERF,
    .no_ffn_scales = true,
};
