/* Types of the KV cache by layer, and where rows are rotated before they are stored. */
#ifndef TN_LLM_MEMORY_CACHE_TYPES_H
#define TN_LLM_MEMORY_CACHE_TYPES_H

#include "tenon/llm.h"

/* The types of one layer, and the blocks in which its rows are rotated (0: they are not). */
typedef struct tn__cache_format {
    tn_type k, v;
    int32_t rotate_k, rotate_v;
} tn__cache_format;

/* Checks the types. A window type that is the same as the other becomes TN_TYPE_LIMIT, so that equal parameters have
 * equal values. */
tn_status tn__cache_types_check(tn_session_params *params);
/* Fails where heads do not divide into blocks of the type. */
tn_status tn__cache_format_of(const tn_session_params *params, int32_t head_k, int32_t head_v, bool window,
                              tn__cache_format *format);
/* A number that is equal for sessions of one model whose caches can be exchanged. */
uint32_t tn__cache_key(const tn_session_params *params);

#endif
