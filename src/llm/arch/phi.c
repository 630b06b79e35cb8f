/* Phi 2: attention and a plain feed-forward part in parallel. Phi 3: a Llama with fused matrices and factors for long
 * contexts. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_phi2 = {
    .info = {.name = "phi2",
             .traits = TN__ARCH_CLASSIC | TN_ARCH_NO_FFN_NORM | TN_ARCH_OUTPUT_BIAS,
             .rotated = 0.4f,
             .classes = {{"PhiForCausalLM", 0}}},
    .rope = TN_ROPE_NEOX,
    .residual = TN__RESIDUAL_PARALLEL,
    .activation = TN_OP_GELU,
    .no_ffn_scales = true,
};
const tn__arch tn__arch_phi3 = {
    .info = {.name = "phi3", .traits = TN_ARCH_FUSED_QKV | TN_ARCH_FUSED_UP, .classes = {{"Phi3ForCausalLM", 0}}},
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
};
