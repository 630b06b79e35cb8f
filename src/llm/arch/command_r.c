/* Command R: one norm for both parts, scaled logits. */
#include "llm/arch/arch.h"

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    h->logit_scale = tn_gguf_get_f32(file, tn__arch_key(file, "logit_scale"), 0);
    return TN_OK;
}

const tn__arch tn__arch_command_r = {
    .name = "command-r",
    .norm = TN__NORM_LAYER,
    .rope = TN_ROPE_NORMAL,
    .residual = TN__RESIDUAL_PARALLEL,
    .activation = TN_OP_SWIGLU,
    .no_ffn_scales = true,
    .read = read,
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"},
};
