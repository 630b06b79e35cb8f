/* The tables that merging uses: which symbols join, in which order, and the symbols of single characters.
 *
 * A symbol is a token, or a string that occurs in merges but is not a token (for example a letter that never stands
 * alone). The latter are numbered from the vocabulary's size on. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <string.h>

enum { LONGEST = 1024 }; /* bytes of a token that merges may form; the time per token grows with the square */

/* ---- Strings that are not tokens ---- */

typedef struct extras {
    tn_gguf_str *texts; /* point into the caller's strings */
    size_t count, capacity;
    uint32_t *slots;
    size_t mask;
} extras;

static tn_status extras_init(extras *e, size_t slots) {
    *e = (extras){.mask = 15};
    while (e->mask / 2 < slots) e->mask = e->mask * 2 + 1;
    e->slots = tn_malloc((e->mask + 1) * sizeof *e->slots);
    if (!e->slots) return TN_E_NOMEM;
    memset(e->slots, 0xff, (e->mask + 1) * sizeof *e->slots);
    return TN_OK;
}

static void extras_free(extras *e) {
    tn_free(e->texts);
    tn_free(e->slots);
}

/* The symbol of a text, or TN__NIL; then *slot, unless slot is NULL, is where to insert it. */
static uint32_t find_symbol(const tn_tokenizer *t, const extras *e, tn_gguf_str text, size_t *slot) {
    uint32_t id = tn__token_text_find(t, text.data, text.size);
    if (id != TN__NIL || (!slot && e->count == 0)) return id;
    size_t i = (size_t)tn__hash_bytes(text.data, text.size, t->seed) & e->mask;
    for (; e->slots[i] != TN__NIL; i = (i + 1) & e->mask) {
        const tn_gguf_str *have = &e->texts[e->slots[i]];
        if (have->size == text.size && memcmp(have->data, text.data, text.size) == 0)
            return (uint32_t)t->size + e->slots[i];
    }
    if (slot) *slot = i;
    return TN__NIL;
}

static tn_status intern_symbol(const tn_tokenizer *t, extras *e, tn_gguf_str text, uint32_t *symbol) {
    size_t slot = 0;
    *symbol = find_symbol(t, e, text, &slot);
    if (*symbol != TN__NIL) return TN_OK;
    TN_TRY(tn__grow((void **)&e->texts, &e->capacity, e->count + 1, sizeof *e->texts));
    e->slots[slot] = (uint32_t)e->count;
    e->texts[e->count] = text;
    *symbol = (uint32_t)t->size + (uint32_t)e->count++;
    return TN_OK;
}

/* ---- Characters ---- */

static size_t join_bit(const tn_tokenizer *t, uint32_t last, uint32_t first) {
    return (size_t)tn__mix64(((uint64_t)last << 32 | first) ^ t->seed) % TN__JOIN_BITS;
}

bool tn__may_join(const tn_tokenizer *t, uint32_t last, uint32_t first) {
    return tn__bits_get(t->joins, join_bit(t, last, first));
}

static uint32_t first_char(tn_gguf_str text) {
    uint32_t cp;
    return tn__utf8_decode(text.data, text.size, &cp) ? cp : TN__NIL;
}

static uint32_t last_char(tn_gguf_str text) {
    size_t at = text.size - 1;
    while (at > 0 && text.size - at < 4 && (text.data[at] & 0xc0) == 0x80) at--;
    return first_char((tn_gguf_str){text.data + at, text.size - at});
}

static tn_status joins_init(tn_tokenizer *t) {
    t->joins = tn_calloc(tn__bits_words(TN__JOIN_BITS), sizeof *t->joins);
    return t->joins ? TN_OK : TN_E_NOMEM;
}

static void joins_add(tn_tokenizer *t, tn_gguf_str left, tn_gguf_str right) {
    uint32_t last = last_char(left), first = first_char(right);
    if (last != TN__NIL && first != TN__NIL) tn__bits_set(t->joins, join_bit(t, last, first));
}

uint32_t tn__symbol_of_char(const tn_tokenizer *t, uint32_t cp) {
    for (size_t i = (size_t)tn__mix64(cp ^ t->seed) & t->char_mask;; i = (i + 1) & t->char_mask) {
        if (t->char_map[i].cp == cp) return t->char_map[i].symbol;
        if (t->char_map[i].cp == TN__NIL) return TN__NIL;
    }
}

static bool is_single_char(tn_gguf_str text, uint32_t *cp) {
    return text.size > 0 && text.size <= 4 && tn__utf8_decode(text.data, text.size, cp) == text.size;
}

static bool is_text_token(const tn_tokenizer *t, uint32_t id) {
    return t->types[id] == TN_TOKEN_NORMAL || t->types[id] == TN_TOKEN_USER_DEFINED ||
           t->types[id] == TN_TOKEN_UNUSED;
}

static tn_gguf_str token_str(const tn_tokenizer *t, uint32_t id) {
    tn_gguf_str text;
    text.data = tn__token_text(t, id, &text.size);
    return text;
}

static tn_gguf_str symbol_str(const tn_tokenizer *t, const extras *e, uint32_t symbol) {
    return symbol < (uint32_t)t->size ? token_str(t, symbol) : e->texts[symbol - (uint32_t)t->size];
}

/* Builds the map of the symbols that are single characters. */
static tn_status map_chars(tn_tokenizer *t, const extras *e) {
    size_t count = 0, slots = 16, total = (size_t)t->size + e->count;
    uint32_t cp;
    for (uint32_t i = 0; i < total; i++) count += is_single_char(symbol_str(t, e, i), &cp);
    while (slots / 2 < count) slots *= 2;
    t->char_map = tn_malloc(slots * sizeof *t->char_map);
    if (!t->char_map) return TN_E_NOMEM;
    memset(t->char_map, 0xff, slots * sizeof *t->char_map);
    t->char_mask = slots - 1;
    for (uint32_t id = 0; id < total; id++) {
        if (!is_single_char(symbol_str(t, e, id), &cp) || (id < (uint32_t)t->size && !is_text_token(t, id))) continue;
        size_t i = (size_t)tn__mix64(cp ^ t->seed) & t->char_mask;
        while (t->char_map[i].cp != TN__NIL && t->char_map[i].cp != cp) i = (i + 1) & t->char_mask;
        if (t->char_map[i].cp == TN__NIL) t->char_map[i] = (struct tn__char_slot){cp, id};
    }
    return TN_OK;
}

/* ---- Merges from the file's list ---- */

/* Cuts "left right" at its first space that is not its first byte; false when there is none. */
static bool cut_merge(tn_gguf_str merge, tn_gguf_str *left, tn_gguf_str *right) {
    const char *space = merge.size > 2 ? memchr(merge.data + 1, ' ', merge.size - 2) : NULL;
    if (!space) return false;
    *left = (tn_gguf_str){merge.data, (size_t)(space - merge.data)};
    *right = (tn_gguf_str){space + 1, merge.size - left->size - 1};
    return true;
}

tn_status tn__rank_merges(tn_tokenizer *t, const tn__vocab_source *source) {
    size_t n = source->n_merges, bad = 0;
    if (n > 4 * (size_t)TN_TOKENIZER_MAX_TOKENS)
        return tn_fail(TN_E_LIMIT, "the vocabulary has %zu merges; the maximum is %zu", n,
                       4 * (size_t)TN_TOKENIZER_MAX_TOKENS);
    bool chars = t->kind != TN_TOKENIZER_BPE;
    TN_TRY(tn__merges_init(&t->merges, n, t->seed));
    if (chars) TN_TRY(joins_init(t));
    t->merges.n_ranks = (uint32_t)n;
    extras e;
    tn__text joined = {0};
    tn_gguf_str left, right;
    uint32_t a, b;
    tn_status status = extras_init(&e, 2 * n);
    /* The parts first: the result of a merge matters only if it is a token or part of another merge. */
    for (size_t i = 0; i < n && status == TN_OK; i++) {
        if (!cut_merge(source->merges[i], &left, &right)) continue;
        status = intern_symbol(t, &e, left, &a);
        if (status == TN_OK) status = intern_symbol(t, &e, right, &b);
    }
    uint32_t nothing = (uint32_t)t->size + (uint32_t)e.count; /* a symbol that joins nothing and is not a token */
    for (size_t i = 0; i < n && status == TN_OK; i++) {
        if (!cut_merge(source->merges[i], &left, &right)) {
            bad++;
            continue;
        }
        tn__text_clear(&joined);
        tn__text_append(&joined, left.data, left.size);
        tn__text_append(&joined, right.data, right.size);
        TN_TRY_GOTO(joined.status, status, out);
        uint32_t result = find_symbol(t, &e, (tn_gguf_str){joined.data, joined.length}, NULL);
        a = find_symbol(t, &e, left, NULL);
        b = find_symbol(t, &e, right, NULL);
        status = tn__merges_add(&t->merges, a, b, (uint32_t)i, result == TN__NIL ? nothing : result);
        if (chars) joins_add(t, left, right);
    }
    if (status == TN_OK && chars) status = map_chars(t, &e);
out:
    tn__text_free(&joined);
    extras_free(&e);
    if (bad) tn_log(TN_LOG_WARN, "vocabulary: %zu of %zu merges are malformed and ignored", bad, n);
    return status;
}

/* ---- Merges from scores ---- */

/* Heap sort, highest first. */
static void sort_scores(float *scores, size_t count) {
    for (size_t built = count / 2, end = count; end > 1;) {
        float moved;
        size_t root = 0;
        if (built > 0) {
            moved = scores[root = --built];
        } else {
            moved = scores[--end];
            scores[end] = scores[0];
        }
        for (size_t child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && scores[child + 1] < scores[child]) child++;
            if (scores[child] >= moved) break;
            scores[root] = scores[child];
        }
        scores[root] = moved;
    }
}

/* Rank of a score among the distinct scores. Equal scores have the same rank and merge from left to right. */
static uint32_t rank_of(const float *distinct, size_t count, float score) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (distinct[mid] > score)
            low = mid + 1;
        else
            high = mid;
    }
    return (uint32_t)low;
}

/* Adds the characters of tokens that are not tokens themselves. */
static tn_status intern_chars(const tn_tokenizer *t, extras *e) {
    tn__bits seen[0x10000 / 64] = {0}; /* most characters occur often */
    for (uint32_t id = 0; id < (uint32_t)t->size; id++) {
        tn_gguf_str text = token_str(t, id);
        if (!is_text_token(t, id) || text.size > LONGEST) continue;
        for (size_t i = 0; i < text.size;) {
            uint32_t cp, symbol;
            unsigned n = tn__utf8_decode(text.data + i, text.size - i, &cp);
            if (!n) break;
            if (cp >= 0x10000 || !tn__bits_get(seen, cp))
                TN_TRY(intern_symbol(t, e, (tn_gguf_str){text.data + i, n}, &symbol));
            if (cp < 0x10000) tn__bits_set(seen, cp);
            i += n;
        }
    }
    return TN_OK;
}

static tn_status add_splits(tn_tokenizer *t, const extras *e, uint32_t id, uint32_t rank) {
    tn_gguf_str text = token_str(t, id);
    if (tn__token_text_find(t, text.data, text.size) != id) return TN_OK; /* a later token with the same text */
    if (tn__utf8_valid_prefix(text.data, text.size) != text.size) return TN_OK;
    for (size_t i = 1; i < text.size; i++) {
        if ((text.data[i] & 0xc0) == 0x80) continue;
        tn_gguf_str left = {text.data, i}, right = {text.data + i, text.size - i};
        uint32_t a = find_symbol(t, e, left, NULL);
        if (a == TN__NIL || (a < (uint32_t)t->size && !is_text_token(t, a))) continue;
        uint32_t b = find_symbol(t, e, right, NULL);
        if (b == TN__NIL || (b < (uint32_t)t->size && !is_text_token(t, b))) continue;
        TN_TRY(tn__merges_add(&t->merges, a, b, rank, id));
        joins_add(t, left, right);
    }
    return TN_OK;
}

tn_status tn__score_merges(tn_tokenizer *t) {
    TN_TRY(tn__merges_init(&t->merges, (size_t)t->size, t->seed));
    TN_TRY(joins_init(t));
    float *distinct = tn_malloc((size_t)t->size * sizeof *distinct);
    if (!distinct) return TN_E_NOMEM;
    size_t count = 0;
    memcpy(distinct, t->scores, (size_t)t->size * sizeof *distinct);
    sort_scores(distinct, (size_t)t->size);
    for (size_t i = 0; i < (size_t)t->size; i++)
        if (count == 0 || distinct[count - 1] != distinct[i]) distinct[count++] = distinct[i];
    t->merges.n_ranks = (uint32_t)count;
    /* The number of distinct characters is at most that of Unicode. */
    size_t bytes = t->text_at[t->size];
    extras e;
    tn_status status = extras_init(&e, TN__MIN(bytes, (size_t)0x110000));
    if (status == TN_OK) status = intern_chars(t, &e);
    for (uint32_t id = 0; id < (uint32_t)t->size && status == TN_OK; id++)
        if (is_text_token(t, id) && t->text_at[id + 1] - t->text_at[id] <= LONGEST)
            status = add_splits(t, &e, id, rank_of(distinct, count, t->scores[id]));
    if (status == TN_OK) status = map_chars(t, &e);
    tn_free(distinct);
    extras_free(&e);
    return status;
}
