/* The token id that tokenizers, sessions and samplers share. */
#ifndef TENON_TOKEN_H
#define TENON_TOKEN_H

#include <stdint.h>

/* Index into a model's vocabulary; negative values mean "no token". */
typedef int32_t tn_token;
#define TN_TOKEN_NONE ((tn_token)-1)

#endif
