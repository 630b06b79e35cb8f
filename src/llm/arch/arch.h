/* The rows of the architecture table, and what several of them share. */
#ifndef TN_LLM_ARCH_H
#define TN_LLM_ARCH_H

#include "llm/model_internal.h"

/* Order of the table: error messages and lists follow it. */
/* clang-format off */
#define TN__ARCH_TABLE(X)                                                                                            \
    X(llama) X(mistral3) X(internlm2) X(smollm3) X(granite) X(granitemoe) X(qwen2)                                   \
    X(qwen2moe) X(qwen3) X(qwen3moe) X(gemma) X(gemma2) X(gemma3)                                                    \
    X(phi2) X(phi3) X(gpt2) X(starcoder) X(starcoder2) X(gptneox)                                                    \
    X(falcon) X(mpt) X(stablelm) X(olmo) X(olmo2) X(olmoe)                                                           \
    X(gpt_oss) X(command_r) X(bert) X(nomic_bert)
/* clang-format on */

#define TN_X(name) extern const tn__arch tn__arch_##name;
TN__ARCH_TABLE(TN_X)
#undef TN_X

/* Families before RMS norms and gates: layer norms and biases everywhere, a plain feed-forward part. */
#define TN__ARCH_CLASSIC                                                                                             \
    (TN_ARCH_LAYER_NORM | TN_ARCH_NORM_BIAS | TN_ARCH_NO_GATE | TN_ARCH_FFN_BIAS | TN_ARCH_OUT_BIAS |                \
     TN_ARCH_QKV_BIAS)

#endif
