/* Architectures: one constant per family, listed here. */
#ifndef TN_LLM_ARCH_H
#define TN_LLM_ARCH_H

#include "llm/model_internal.h"

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

/* Windows as the file's sliding_window says (else `missing`): in all layers but every period-th, or in all. */
void tn__window_pattern(const tn_gguf *file, tn__hparams *h, int32_t missing, int32_t period);
void tn__window_all(const tn_gguf *file, tn__hparams *h);

#endif
