/* The lists of architectures, and code that several of them use. */
#ifndef TN_LLM_ARCH_FAMILIES_H
#define TN_LLM_ARCH_FAMILIES_H

#include "llm/model_internal.h"

/* Lists of architectures, ended by a row without a name. A file of this folder holds one list with the functions that
 * only its rows use. */
extern const tn__arch tn__transformers[], tn__dense_families[], tn__moe_families[], tn__encoder_families[],
    tn__hybrids[], tn__latent_families[], tn__gemma_families[], tn__sparse_families[], tn__heads[];

/* For tn__arch.read. */
tn_status tn__read_logit_scale(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_mistral3(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_smollm3(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_granite(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_gemma(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_gemma2(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_gemma3(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_gptneox(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_mpt(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_olmo(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_gpt_oss(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_listed_windows(const tn_gguf *file, tn__hparams *h);
tn_status tn__read_olmo2(const tn_gguf *file, tn__hparams *h);
/* For tn__arch.adjust. */
void tn__adjust_mpt(const tn__hparams *h, tn__weights *w);

#endif
