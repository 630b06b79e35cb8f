/* Llama and its many relatives (Mistral, TinyLlama, SmolLM, Yi, DeepSeek-LLM …), with experts: Mixtral. */
#include "llm/arch/arch.h"

static tn_status read(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    h->norm_expert_weights = true;
    return TN_OK;
}

const tn__arch tn__arch_llama = {
    .name = "llama",
    .norm = TN__NORM_RMS,
    .rope = TN_ROPE_NORMAL,
    .activation = TN_OP_SWIGLU,
    .required = {"attn_norm", "attn_q|attn_qkv", "attn_output", "ffn_norm", "ffn_down|ffn_down_exps"},
    .read = read,
};
