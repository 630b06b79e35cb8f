/* Architectures: one constant per family, listed here. */
#ifndef TN_LLM_ARCH_H
#define TN_LLM_ARCH_H

#include "llm/model_internal.h"

#define TN__ARCH_TABLE(X) X(llama)

#define TN_X(name) extern const tn__arch tn__arch_##name;
TN__ARCH_TABLE(TN_X)
#undef TN_X

#endif
