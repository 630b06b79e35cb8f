/* Tokens of one vocabulary as tokens of another: the same number where all texts agree, otherwise the token with the
 * same text, or with the same role at the end or beginning of texts. */
#include "llm/speculate/vocabulary_map.h"

#include "base/checked.h"
#include "base/hash.h"

#include <string.h>

/* Control tokens are compared as the file writes them: their text is empty. */
static const char *text_of(const tn_tokenizer *t, tn_token token, size_t *length) {
    const bool plain = tn_token_get_type(t, token) == TN_TOKEN_NORMAL || tn_token_get_type(t, token) == TN_TOKEN_BYTE;
    return plain ? tn_token_piece(t, token, length) : tn_token_text(t, token, length);
}

static bool same_text(const tn_tokenizer *a, tn_token x, const tn_tokenizer *b, tn_token y) {
    size_t n, m;
    const char *s = text_of(a, x, &n), *t = text_of(b, y, &m);
    return n == m && memcmp(s, t, n) == 0;
}

bool tn__vocabulary_same(const tn_tokenizer *a, const tn_tokenizer *b) {
    const int32_t n = TN__MIN(tn_tokenizer_size(a), tn_tokenizer_size(b));
    const int32_t most = TN__MAX(tn_tokenizer_size(a), tn_tokenizer_size(b));
    if (most - n > most / 100) return false;
    for (int32_t i = 0; i < n; i++)
        if (!same_text(a, i, b, i)) return false;
    return true;
}

static size_t text_slot(const tn_tokenizer *t, tn_token token, size_t mask) {
    size_t length;
    const char *text = text_of(t, token, &length);
    return (size_t)tn__hash_bytes(text, length, 1) & mask;
}

static tn_status map_by_text(const tn_tokenizer *a, const tn_tokenizer *b, tn__vocabulary_map *m, int32_t *n_common) {
    size_t slots = 16;
    while (slots < 2 * (size_t)m->n_from) slots *= 2;
    tn_token *table = tn_malloc(slots * sizeof *table);
    if (!table) return TN_E_NOMEM;
    for (size_t i = 0; i < slots; i++) table[i] = TN_TOKEN_NONE;
    for (tn_token t = TN__MIN(m->n_from, tn_tokenizer_size(b)) - 1; t >= 0; t--) {
        size_t slot = text_slot(b, t, slots - 1);
        while (table[slot] >= 0 && !same_text(b, table[slot], b, t)) slot = (slot + 1) & (slots - 1);
        table[slot] = t; /* the first of several with the same text */
    }
    for (tn_token t = 0; t < TN__MIN(m->n_to, tn_tokenizer_size(a)); t++) {
        size_t slot = text_slot(a, t, slots - 1);
        while (table[slot] >= 0 && !same_text(b, table[slot], a, t)) slot = (slot + 1) & (slots - 1);
        m->to[t] = table[slot];
        if (table[slot] < 0 || m->from[table[slot]] >= 0) continue;
        m->from[table[slot]] = t;
        ++*n_common;
    }
    tn_free(table);
    return TN_OK;
}

static void map_roles(const tn_tokenizer *a, const tn_tokenizer *b, tn__vocabulary_map *m) {
    static const tn_special roles[] = {TN_SPECIAL_BOS, TN_SPECIAL_EOS, TN_SPECIAL_EOT};
    for (size_t i = 0; i < TN__COUNT(roles); i++) {
        const tn_token x = tn_tokenizer_special(a, roles[i]), y = tn_tokenizer_special(b, roles[i]);
        if (x < 0 || y < 0 || x >= m->n_to || y >= m->n_from) continue;
        if (m->to[x] < 0) m->to[x] = y;
        if (m->from[y] < 0) m->from[y] = x;
    }
}

tn_status tn__vocabulary_map_new(const tn_tokenizer *a, const tn_tokenizer *b, int32_t n_a, int32_t n_b,
                                 tn__vocabulary_map *m) {
    *m = (tn__vocabulary_map){.n_to = n_a, .n_from = n_b};
    if (!a || !b) { /* no texts to compare: ids are assumed equal */
        m->same = n_a == n_b;
        m->n_to = m->n_from = TN__MIN(n_a, n_b);
        return m->same ? TN_OK
                       : tn_fail(TN_E_INVALID, "vocabularies of %d and %d tokens, and one has no texts", n_a, n_b);
    }
    if (tn__vocabulary_same(a, b)) {
        m->same = true;
        m->n_to = m->n_from = TN__MIN(n_a, n_b);
        return TN_OK;
    }
    int32_t common = 0;
    m->bytes = ((size_t)n_a + (size_t)n_b) * sizeof *m->to;
    m->to = tn_malloc((size_t)n_a * sizeof *m->to);
    m->from = tn_malloc((size_t)n_b * sizeof *m->from);
    if (!m->to || !m->from) return TN_E_NOMEM;
    for (int32_t i = 0; i < n_a; i++) m->to[i] = TN_TOKEN_NONE;
    for (int32_t i = 0; i < n_b; i++) m->from[i] = TN_TOKEN_NONE;
    TN_TRY(map_by_text(a, b, m, &common));
    map_roles(a, b, m);
    if (common < TN__MIN(n_a, n_b) / 2)
        return tn_fail(TN_E_INVALID,
                       "the vocabularies of %d and %d tokens have only %d in common: the draft model must know the "
                       "same tokens",
                       n_a, n_b, common);
    return TN_OK;
}

void tn__vocabulary_map_free(tn__vocabulary_map *m) {
    tn_free(m->to);
    tn_free(m->from);
}
