/* The texts of a vocabulary, by token and as a trie in depth-first order for masks. */
#include "base/checked.h"
#include "base/hash.h"
#include "tenon/tokenizer.h"
#include "text/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

tn_pieces *tn_pieces_retain(const tn_pieces *pieces) {
    tn_pieces *shared = (tn_pieces *)pieces; /* only the count changes */
    atomic_fetch_add(&shared->references, 1);
    return shared;
}

void tn_pieces_free(tn_pieces *p) {
    if (!p || atomic_fetch_sub(&p->references, 1) != 1) return;
    tn_free(p->offsets);
    tn_free(p->bytes);
    tn_free(p->nodes);
    tn_free(p->tokens);
    tn_free(p->ends);
    tn_free(p->is_end);
    tn_free(p);
}

size_t tn_pieces_count(const tn_pieces *p) { return p->count; }

tn_piece tn_pieces_get(const tn_pieces *p, tn_token token) {
    if (token < 0 || (size_t)token >= p->count) return (tn_piece){"", 0};
    return (tn_piece){p->bytes + p->offsets[token], p->offsets[token + 1] - p->offsets[token]};
}

static int compare_pieces(const tn_pieces *p, tn_token a, tn_token b) {
    tn_piece x = tn_pieces_get(p, a), y = tn_pieces_get(p, b);
    int order = memcmp(x.bytes, y.bytes, TN__MIN(x.length, y.length));
    if (order) return order;
    return x.length != y.length ? (x.length < y.length ? -1 : 1) : a < b ? -1 : a > b;
}

/* Merge sort with a scratch array: n log n comparisons at worst, for vocabularies of 100,000 tokens and more. */
static void sort_tokens(const tn_pieces *p, tn_token *tokens, tn_token *scratch, size_t n) {
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t from = 0; from < n; from += 2 * width) {
            size_t middle = TN__MIN(from + width, n), end = TN__MIN(from + 2 * width, n), i = from, j = middle;
            for (size_t k = from; k < end; k++)
                scratch[k] = j == end || (i < middle && compare_pieces(p, tokens[i], tokens[j]) < 0) ? tokens[i++]
                                                                                                     : tokens[j++];
        }
        memcpy(tokens, scratch, n * sizeof *tokens);
    }
}

/* Number of leading bytes that two neighbours in the sorted order share. */
static size_t shared_length(const tn_pieces *p, const tn_token *tokens, size_t i) {
    if (i == 0) return 0;
    tn_piece x = tn_pieces_get(p, tokens[i - 1]), y = tn_pieces_get(p, tokens[i]);
    size_t n = 0;
    while (n < x.length && n < y.length && x.bytes[n] == y.bytes[n]) n++;
    return n;
}

static tn_status build_piece_trie(tn_pieces *p, const tn_token *sorted, size_t n) {
    size_t n_nodes = 1;
    for (size_t i = 0; i < n; i++) n_nodes += tn_pieces_get(p, sorted[i]).length - shared_length(p, sorted, i);
    if (n_nodes >= UINT32_MAX) return tn_fail(TN_E_LIMIT, "the vocabulary's texts are too long");
    uint32_t *path = tn_malloc((p->max_depth + 1) * sizeof *path); /* open nodes by depth */
    p->nodes = tn_malloc(n_nodes * sizeof *p->nodes);
    p->tokens = tn_malloc((n ? n : 1) * sizeof *p->tokens);
    if (!path || !p->nodes || !p->tokens) {
        tn_free(path);
        return TN_E_NOMEM;
    }
    memcpy(p->tokens, sorted, n * sizeof *sorted);
    size_t at = 1, open = 0;
    p->nodes[0] = (tn__piece_node){0};
    for (size_t i = 0; i < n; i++) {
        tn_piece piece = tn_pieces_get(p, sorted[i]);
        size_t shared = shared_length(p, sorted, i);
        for (; open > shared; open--) p->nodes[path[open - 1]].skip = (uint32_t)at;
        for (; open < piece.length; open++) {
            p->nodes[at] = (tn__piece_node){
                .depth = (uint16_t)open, .byte = (uint8_t)piece.bytes[open], .token_end = (uint32_t)i};
            path[open] = (uint32_t)at++;
        }
        p->nodes[at - 1].token_end = (uint32_t)i + 1;
    }
    for (; open > 0; open--) p->nodes[path[open - 1]].skip = (uint32_t)at;
    p->nodes[0].skip = (uint32_t)at;
    p->n_nodes = at;
    tn_free(path);
    return TN_OK;
}

static tn_status copy_texts(tn_pieces *p, const tn_piece *pieces) {
    size_t total = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (pieces[i].length > UINT16_MAX)
            return tn_fail(TN_E_LIMIT, "the piece of token %zu has %zu bytes, which is too many", i,
                           pieces[i].length);
        total += pieces[i].length;
    }
    if (total > UINT32_MAX)
        return tn_fail(TN_E_LIMIT, "the vocabulary's texts have %zu bytes, which is too many", total);
    p->offsets = tn_malloc((p->count + 1) * sizeof *p->offsets);
    p->bytes = tn_malloc(total + 1);
    if (!p->offsets || !p->bytes) return TN_E_NOMEM;
    size_t at = 0;
    for (size_t i = 0; i < p->count; i++) {
        p->offsets[i] = (uint32_t)at;
        if (pieces[i].length) memcpy(p->bytes + at, pieces[i].bytes, pieces[i].length);
        at += pieces[i].length;
        p->max_depth = TN__MAX(p->max_depth, pieces[i].length);
    }
    p->offsets[p->count] = (uint32_t)at;
    return TN_OK;
}

static tn_status store_ends(tn_pieces *p, const tn_token *ends, size_t n_ends) {
    p->ends = tn_malloc((n_ends ? n_ends : 1) * sizeof *p->ends);
    p->is_end = tn_calloc(tn__bits_words(p->count), sizeof *p->is_end);
    if (!p->ends || !p->is_end) return TN_E_NOMEM;
    for (size_t i = 0; i < n_ends; i++) {
        if (ends[i] < 0 || (size_t)ends[i] >= p->count)
            return tn_fail(TN_E_INVALID, "end token %d is outside the vocabulary of %zu", ends[i], p->count);
        tn__bits_set(p->is_end, (size_t)ends[i]);
        p->ends[i] = ends[i];
    }
    p->n_ends = n_ends;
    return TN_OK;
}

static tn_status build_pieces(tn_pieces *p, const tn_piece *pieces, const tn_token *ends, size_t n_ends) {
    TN_TRY(copy_texts(p, pieces));
    TN_TRY(store_ends(p, ends, n_ends));
    tn_token *tokens = tn_malloc(p->count * sizeof *tokens), *scratch = tn_malloc(p->count * sizeof *scratch);
    tn_status status = tokens && scratch ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) {
        size_t n = 0;
        for (size_t i = 0; i < p->count; i++)
            if (pieces[i].length && !tn__bits_get(p->is_end, i)) tokens[n++] = (tn_token)i;
        sort_tokens(p, tokens, scratch, n);
        status = build_piece_trie(p, tokens, n);
    }
    tn_free(tokens);
    tn_free(scratch);
    return status;
}

tn_status tn_pieces_new(const tn_piece *pieces, size_t count, const tn_token *ends, size_t n_ends, tn_pieces **out) {
    if (!pieces || !out || (n_ends && !ends))
        return tn_fail(TN_E_INVALID, "tn_pieces_new: pieces, ends or out is NULL");
    *out = NULL;
    if (count == 0 || count > INT32_MAX) return tn_fail(TN_E_INVALID, "a vocabulary cannot have %zu tokens", count);
    tn_pieces *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    atomic_init(&p->references, 1);
    p->count = count;
    tn_status status = build_pieces(p, pieces, ends, n_ends);
    if (status == TN_OK)
        *out = p;
    else
        tn_pieces_free(p);
    return status;
}

tn_status tn_pieces_from_tokenizer(const tn_tokenizer *tokenizer, tn_pieces **out) {
    if (!tokenizer || !out) return tn_fail(TN_E_INVALID, "tn_pieces_from_tokenizer: tokenizer or out is NULL");
    *out = NULL;
    size_t n = (size_t)tn_tokenizer_size(tokenizer), n_ends = 0;
    tn_piece *pieces = tn_calloc(n, sizeof *pieces);
    tn_token *ends = tn_malloc(n * sizeof *ends);
    tn_status status = TN_E_NOMEM;
    if (!pieces || !ends) goto out;
    for (size_t i = 0; i < n; i++) {
        tn_token token = (tn_token)i;
        tn_token_type type = tn_token_get_type(tokenizer, token);
        if (tn_token_is_end(tokenizer, token)) ends[n_ends++] = token;
        if (type == TN_TOKEN_CONTROL || type == TN_TOKEN_UNUSED || type == TN_TOKEN_UNKNOWN) continue;
        pieces[i].bytes = tn_token_piece(tokenizer, token, &pieces[i].length);
    }
    status = tn_pieces_new(pieces, n, ends, n_ends, out);
out:
    tn_free(pieces);
    tn_free(ends);
    return status;
}
