/* Tokens of one vocabulary as tokens of another, by their texts. */
#ifndef TN_LLM_SPECULATE_VOCABULARY_MAP_H
#define TN_LLM_SPECULATE_VOCABULARY_MAP_H

#include "tenon/tokenizer.h"

typedef struct tn__vocabulary_map {
    bool same;      /* tokens have the same numbers in both */
    tn_token *to;   /* of the other vocabulary, by token of the first; TN_TOKEN_NONE: it has none */
    tn_token *from; /* of the first, by token of the other */
    int32_t n_to, n_from;
    size_t bytes;
} tn__vocabulary_map;

/* Whether all tokens have the same texts; padding at the end of a vocabulary is ignored. */
bool tn__vocabulary_same(const tn_tokenizer *first, const tn_tokenizer *other);
/* TN_E_INVALID: they have less than half of the smaller one in common. */
tn_status tn__vocabulary_map_new(const tn_tokenizer *first, const tn_tokenizer *other, int32_t n_first,
                                 int32_t n_other, tn__vocabulary_map *map);
void tn__vocabulary_map_free(tn__vocabulary_map *map);
static inline tn_token tn__vocabulary_to(const tn__vocabulary_map *m, tn_token token) {
    return token < 0 || token >= m->n_to ? TN_TOKEN_NONE : m->same ? token : m->to[token];
}
static inline tn_token tn__vocabulary_from(const tn__vocabulary_map *m, tn_token token) {
    return token < 0 || token >= m->n_from ? TN_TOKEN_NONE : m->same ? token : m->from[token];
}

#endif
