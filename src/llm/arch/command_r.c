/* Command R: one norm for attention and feed-forward in parallel, scaled logits. */
#include "llm/arch/arch.h"

static tn_status read_command_r(const tn_gguf *file, tn__hparams *h) {
    h->logit_scale = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    return TN_OK;
}

const tn__arch tn__arch_command_r = {
    .info = {.name = "command-r",
             .traits = TN_ARCH_LAYER_NORM | TN_ARCH_NO_FFN_NORM | TN_ARCH_TIED,
             .typical = {.scale_output = 0.0625f},
             .classes = {{"CohereForCausalLM", 0}}},
    .rope = TN_ROPE_NORMAL,
    .residual = TN__RESIDUAL_PARALLEL,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .read = read_command_r,
};
