/* Qwen 2 and 3, dense and with experts. */
#include "llm/arch/arch.h"

#define QWEN .rope = TN_ROPE_NEOX, .activation = TN_OP_SWIGLU

const tn__arch tn__arch_qwen2 = {
    .info = {.name = "qwen2", .traits = TN_ARCH_QKV_BIAS, .classes = {{"Qwen2ForCausalLM", 0}}},
    QWEN,
    .no_ffn_scales = true,
};
const tn__arch tn__arch_qwen2moe = {
    .info = {.name = "qwen2moe",
             .traits = TN_ARCH_QKV_BIAS | TN_ARCH_EXPERTS | TN_ARCH_SHARED_EXPERT | TN_ARCH_SHARED_GATE,
             .classes = {{"Qwen2MoeForCausalLM", 0}}},
    QWEN,
    .no_ffn_scales = true,
};
const tn__arch tn__arch_qwen3 = {
    .info = {.name = "qwen3", .traits = TN_ARCH_QK_NORM, .classes = {{"Qwen3ForCausalLM", 0}}},
    QWEN,
};
const tn__arch tn__arch_qwen3moe = {
    .info = {.name = "qwen3moe",
             .traits = TN_ARCH_QK_NORM | TN_ARCH_EXPERTS,
             .experts_sum_to_one = true,
             .classes = {{"Qwen3MoeForCausalLM", 0}}},
    QWEN,
};
