/* Qwen 2 and 3, dense and with experts. */
#include "llm/arch/arch.h"

static tn_status read_qwen3moe(const tn_gguf *file, tn__hparams *h) {
    (void)file;
    h->norm_expert_weights = true;
    return TN_OK;
}

#define QWEN                                                                                                         \
    .norm = TN__NORM_RMS, .rope = TN_ROPE_NEOX, .activation = TN_OP_SWIGLU, .no_ffn_scales = true,                   \
    .required = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_down|ffn_down_exps"}
#define QWEN3                                                                                                        \
    .norm = TN__NORM_RMS, .rope = TN_ROPE_NEOX, .activation = TN_OP_SWIGLU,                                          \
    .required = {"attn_norm",   "attn_q",      "attn_k",                                                             \
                 "attn_v",      "attn_output", "attn_q_norm",                                                        \
                 "attn_k_norm", "ffn_norm",    "ffn_down|ffn_down_exps"}

const tn__arch tn__arch_qwen2 = {.name = "qwen2", QWEN};
const tn__arch tn__arch_qwen2moe = {.name = "qwen2moe", QWEN};
const tn__arch tn__arch_qwen3 = {.name = "qwen3", QWEN3};
const tn__arch tn__arch_qwen3moe = {.name = "qwen3moe", QWEN3, .read = read_qwen3moe};
