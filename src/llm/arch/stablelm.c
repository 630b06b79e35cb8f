/* StableLM: a Llama with layer norms; a layer without a feed-forward norm runs both parts in parallel. */
#include "llm/arch/arch.h"

const tn__arch tn__arch_stablelm = {
    .info = {.name = "stablelm",
             .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS,
             .rotated = 0.25f,
             .classes = {{"StableLmForCausalLM", 0}, {"StableLMEpochForCausalLM", 0}}},
    .rope = TN_ROPE_NEOX,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .parallel_without_norm = true,
};
