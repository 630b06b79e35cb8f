/* Granite: a Llama with four multipliers; Granite MoE: the same with experts. */
#include "llm/arch/arch.h"

static tn_status read_granite(const tn_gguf *file, tn__hparams *h) {
    h->embd_scale = tn_gguf_get_f32(file, tn__arch_key(file, "embedding_scale"), 0);
    h->residual_scale = tn_gguf_get_f32(file, tn__arch_key(file, "residual_scale"), 0);
    h->attn_scale = tn_gguf_get_f32(file, tn__arch_key(file, "attention.scale"), 0);
    float divisor = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    h->logit_scale = divisor != 0 ? 1 / divisor : 0;
    return TN_OK;
}

#define GRANITE .rope = TN_ROPE_NORMAL, .activation = TN_OP_SWIGLU, .no_ffn_scales = true, .read = read_granite
#define GRANITE_CONSTANTS                                                                                            \
    { .scale_output = 8, .scale_residual = 0.25f, .scale_embedding = 12, .scale_attention = -1 }

const tn__arch tn__arch_granite = {
    .info = {.name = "granite",
             .experts_sum_to_one = true,
             .typical = GRANITE_CONSTANTS,
             .classes = {{"GraniteForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
    GRANITE,
};
const tn__arch tn__arch_granitemoe = {
    .info = {.name = "granitemoe",
             .traits = TN_ARCH_EXPERTS,
             .one_ffn_key = true,
             .experts_sum_to_one = true,
             .typical = GRANITE_CONSTANTS,
             .classes = {{"GraniteMoeForCausalLM", TN_ARCH_HF_PAIRED_ROPE},
                         {"GraniteMoeSharedForCausalLM", TN_ARCH_HF_PAIRED_ROPE}}},
    GRANITE,
};
