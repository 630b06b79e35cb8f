/* PLaMo 2: the segmentation of lowest cost. A token costs its negative score in units of 1e-4, a character that no
 * token covers more than any token; it becomes bytes. Of segmentations with equal costs the one whose first token is
 * longest counts, then the second, and so on: the search runs from the end of the text. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <math.h>

enum { UNKNOWN_COST = 10000000, COST_LIMIT = 20000000 };
/* Added to paths through the middle of a character, which only tokens that are not UTF-8 can take. */
#define INNER_COST ((int64_t)1 << 40)

static bool token_cost(const tn_tokenizer *t, uint32_t token, int32_t *cost) {
    double units = round((double)t->scores[token] * 1e4);
    if (!(fabs(units) < COST_LIMIT)) return false;
    *cost = -(int32_t)units;
    return true;
}

tn_status tn__plamo_load(tn_tokenizer *t) {
    tn__trie_item *items = tn_malloc((size_t)t->size * sizeof *items);
    if (!items) return TN_E_NOMEM;
    size_t count = 0;
    int32_t cost;
    for (uint32_t i = 0; i < (uint32_t)t->size; i++) {
        if (t->types[i] != TN_TOKEN_NORMAL && t->types[i] != TN_TOKEN_USER_DEFINED) continue;
        if (!token_cost(t, i, &cost)) continue;
        items[count].data = tn__token_text(t, i, &items[count].size);
        items[count++].token = i;
    }
    tn_status status = tn__trie_build(&t->words, items, count);
    tn_free(items);
    return status;
}

/* One node per byte and one for the end. */
struct tn__plamo_node {
    int64_t cost;    /* of the rest of the text from here */
    uint32_t token;  /* first token of the rest; TN__NIL: a character as bytes */
    uint32_t length; /* of that token in bytes */
};

static size_t char_length(const char *text, size_t size) {
    uint32_t cp;
    unsigned n = tn__utf8_decode(text, size, &cp);
    return n ? n : 1; /* an invalid byte stands alone */
}

/* Finds the cheapest token at `at`. */
static void choose_token(const tn_tokenizer *t, const char *text, size_t size, size_t at,
                         struct tn__plamo_node *nodes) {
    size_t step = char_length(text + at, size - at);
    nodes[at] = (struct tn__plamo_node){UNKNOWN_COST + nodes[at + step].cost, TN__NIL, (uint32_t)step};
    uint32_t node = 0;
    for (size_t i = at; i < size; i++) {
        node = tn__trie_child(&t->words, node, (uint8_t)text[i]);
        if (node == TN__NIL) return;
        uint32_t token = t->words.nodes[node].token;
        int32_t own;
        if (token == TN__NIL || i + 1 - at < step || !token_cost(t, token, &own)) continue;
        int64_t cost = own + nodes[i + 1].cost;
        if (cost <= nodes[at].cost) nodes[at] = (struct tn__plamo_node){cost, token, (uint32_t)(i + 1 - at)};
    }
}

static tn_status encode_segment(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size,
                                tn_tokens *out) {
    TN_TRY(tn__grow((void **)&s->costs, &s->costs_capacity, size + 1, sizeof *s->costs));
    s->costs[size] = (struct tn__plamo_node){0};
    for (size_t at = size; at-- > 0;) {
        if (((uint8_t)text[at] & 0xc0) == 0x80 && at > 0) {
            /* A byte within a character is passed over, unless it is invalid there. */
            size_t start = at;
            while (start > 0 && at - start < 3 && ((uint8_t)text[start] & 0xc0) == 0x80) start--;
            if (start + char_length(text + start, size - start) > at) {
                s->costs[at] = (struct tn__plamo_node){INNER_COST + s->costs[at + 1].cost, TN__NIL, 1};
                continue;
            }
        }
        choose_token(t, text, size, at, s->costs);
    }
    for (size_t at = 0; at < size; at += s->costs[at].length) {
        if (s->costs[at].token != TN__NIL) {
            TN_TRY(tn__tokens_push(out, (tn_token)s->costs[at].token));
            continue;
        }
        for (size_t i = at; i < at + s->costs[at].length; i++) {
            tn_token byte = t->byte_token[(uint8_t)text[i]];
            if (byte < 0) byte = t->special[TN_SPECIAL_UNK];
            if (byte >= 0) TN_TRY(tn__tokens_push(out, byte));
        }
    }
    return TN_OK;
}

tn_status tn__plamo_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out) {
    /* Segments that no token spans are independent of each other. */
    size_t begin = 0, reach = 0;
    for (size_t at = 0; at < size;) {
        if (at > begin && at == reach) {
            TN_TRY(encode_segment(t, s, text + begin, at - begin, out));
            begin = at;
        }
        size_t step = char_length(text + at, size - at);
        reach = TN__MAX(reach, at + step);
        uint32_t node = 0;
        for (size_t i = at; i < size; i++) {
            node = tn__trie_child(&t->words, node, (uint8_t)text[i]);
            if (node == TN__NIL) break;
            if (t->words.nodes[node].token != TN__NIL) reach = TN__MAX(reach, i + 1);
        }
        at += step;
    }
    return begin < size ? encode_segment(t, s, text + begin, size - begin, out) : TN_OK;
}
