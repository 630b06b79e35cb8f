/* The token id that tokenizers, sessions and samplers share. */
#ifndef TENON_TOKEN_H
#define TENON_TOKEN_H

#include <stdint.h>

/* Index into a model's vocabulary; negative values mean "no token". */
typedef int32_t tn_token;
enum { TN_TOKEN_NONE = -1 };

#endif
