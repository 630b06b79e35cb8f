/* Unigram: the segmentation with the highest sum of log-probabilities, after SentencePiece's normalization.
 *
 * Normalization uses a table in the file ("precompiled_charsmap"): the size of a double-array trie in bytes, the
 * trie's 32-bit units, then replacement texts, each ended by a NUL. The longest prefix in the trie is replaced. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

#define UNKNOWN_PENALTY 10.0         /* below the worst token */
enum { LONGEST_REPLACEMENT = 1024 }; /* Unicode's longest has 33 bytes; limits the growth by a hostile table */
#define UNSEEN (TN__NIL - 1)         /* token of a node that no path has reached */

tn_status tn__unigram_load(tn_tokenizer *t, const tn__vocab_source *source) {
    if (source->charsmap_size) {
        uint32_t trie = 0;
        if (source->charsmap_size >= 4)
            trie = source->charsmap[0] | (uint32_t)source->charsmap[1] << 8 | (uint32_t)source->charsmap[2] << 16 |
                   (uint32_t)source->charsmap[3] << 24;
        if (trie % 4 || trie < 4 || trie >= source->charsmap_size - 4)
            return tn_fail(TN_E_FORMAT, "precompiled_charsmap has %zu bytes, but its trie has %u",
                           source->charsmap_size, trie);
        t->charsmap = tn_malloc(source->charsmap_size);
        if (!t->charsmap) return TN_E_NOMEM;
        memcpy(t->charsmap, source->charsmap, source->charsmap_size);
        t->charsmap_units = trie / 4;
        t->charsmap_size = source->charsmap_size;
    }
    tn__trie_item *items = tn_malloc((size_t)t->size * sizeof *items);
    if (!items) return TN_E_NOMEM;
    size_t count = 0;
    double lowest = INFINITY, highest = -INFINITY;
    for (uint32_t i = 0; i < (uint32_t)t->size; i++) {
        bool normal = t->types[i] == TN_TOKEN_NORMAL;
        if (!normal && t->types[i] != TN_TOKEN_USER_DEFINED && t->types[i] != TN_TOKEN_UNUSED) continue;
        if (normal && isfinite(t->scores[i])) {
            lowest = TN__MIN(lowest, (double)t->scores[i]);
            highest = TN__MAX(highest, (double)t->scores[i]);
        }
        items[count].data = tn__token_text(t, i, &items[count].size);
        items[count++].token = i;
    }
    t->unknown_score = (isfinite(lowest) ? lowest : 0) - UNKNOWN_PENALTY;
    t->top_score = isfinite(highest) ? highest : 0;
    tn_status status = tn__trie_build(&t->words, items, count);
    tn_free(items);
    return status;
}

/* ---- Normalization ---- */

static uint32_t unit_at(const tn_tokenizer *t, uint32_t index) {
    if (index >= t->charsmap_units) return 0; /* index of a hostile trie: a unit that matches no byte */
    const unsigned char *p = t->charsmap + 4 + (size_t)index * 4;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

/* Length of the longest prefix of `text` that the table replaces; 0 if there is none. */
static size_t find_replacement(const tn_tokenizer *t, const char *text, size_t size, const char **with,
                               size_t *length) {
    if (!t->charsmap_size) return 0;
    size_t longest = 0;
    uint32_t value = 0, unit = unit_at(t, 0), at = unit_offset(unit);
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)text[i];
        if (byte == 0) break; /* 0 labels a value */
        at ^= byte;
        unit = unit_at(t, at);
        if ((unit & (1u << 31 | 0xff)) != byte) break;
        at ^= unit_offset(unit);
        if (unit >> 8 & 1) {
            value = unit_at(t, at) & 0x7fffffffu;
            longest = i + 1;
        }
    }
    if (!longest) return 0;
    size_t trie = 4 + 4 * (size_t)t->charsmap_units;
    const char *texts = (const char *)t->charsmap + trie;
    size_t texts_size = t->charsmap_size - trie;
    if (value >= texts_size) return 0;
    const char *end = memchr(texts + value, 0, texts_size - value);
    *with = texts + value;
    *length = end ? (size_t)(end - *with) : texts_size - value;
    return *length <= LONGEST_REPLACEMENT ? longest : 0;
}

static void append_normalized(const tn_tokenizer *t, tn__text *out, const char *bytes, size_t size, bool *space) {
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != ' ') {
            tn__text_append(out, bytes + i, 1);
            *space = false;
            continue;
        }
        if (t->remove_extra_whitespaces && *space) continue;
        tn__text_append(out, TN__SPACE, 3);
        *space = true;
    }
}

static tn_status unigram_normalize(const tn_tokenizer *t, tn__text *out, const char *text, size_t size, bool prefix) {
    tn__text_clear(out);
    bool space = true; /* the output is empty or ends with a space */
    bool pending = prefix;
    for (size_t i = 0; i < size;) {
        const char *with = text + i;
        size_t length = 0, used = find_replacement(t, text + i, size - i, &with, &length);
        if (!used) {
            uint32_t cp;
            used = length = tn__utf8_decode(text + i, size - i, &cp);
            with = text + i;
            if (!used) {
                used = 1;
                with = "\xef\xbf\xbd";
                length = 3;
            }
        }
        i += used;
        if (length == 0) continue;
        /* The space prefix is inserted before the first character that is kept. */
        if (pending && !(t->remove_extra_whitespaces && with[0] == ' ')) {
            tn__text_append(out, TN__SPACE, 3);
            pending = false;
            space = true;
        }
        append_normalized(t, out, with, length, &space);
    }
    if (t->remove_extra_whitespaces)
        while (out->length >= 3 && memcmp(out->data + out->length - 3, TN__SPACE, 3) == 0)
            tn__text_truncate(out, out->length - 3);
    return out->status;
}

/* ---- The path with the highest score ---- */

struct tn__lattice_node {
    double score;   /* highest score of a path to this node */
    uint32_t token; /* last token of that path; TN__NIL: a character that no token covers */
    uint32_t from;  /* node where that token begins */
};

/* Appends the tokens of the path to node `end`. */
static tn_status append_path(const tn_tokenizer *t, struct tn__lattice_node *nodes, const char *text, size_t end,
                             tn_tokens *out) {
    /* Reverses the links of the path: afterwards nodes[x].from is the node where the next token ends. */
    uint32_t at = (uint32_t)end, next = TN__NIL;
    while (at != 0) {
        uint32_t from = nodes[at].from;
        nodes[at].from = next;
        next = at;
        at = from;
    }
    for (size_t begin = 0; next != TN__NIL; begin = next, next = nodes[next].from) {
        uint32_t token = nodes[next].token;
        if (token != TN__NIL) {
            TN_TRY(tn__tokens_push(out, (tn_token)token));
        } else {
            bool bytes = true;
            for (size_t i = begin; i < next; i++) bytes = bytes && t->byte_token[(uint8_t)text[i]] >= 0;
            tn_token unknown = t->special[TN_SPECIAL_UNK];
            if (bytes) {
                for (size_t i = begin; i < next; i++) TN_TRY(tn__tokens_push(out, t->byte_token[(uint8_t)text[i]]));
            } else if (unknown >= 0 && !(out->count && out->ids[out->count - 1] == unknown)) {
                TN_TRY(tn__tokens_push(out, unknown)); /* adjacent unknown characters share one token */
            }
        }
    }
    return TN_OK;
}

static void update_node(struct tn__lattice_node *node, double score, uint32_t token, size_t from) {
    if (node->token != UNSEEN && score <= node->score) return;
    *node = (struct tn__lattice_node){score, token, (uint32_t)from};
}

/* Every path passes through a node that no token spans. There the path so far is decided, and the memory of the
 * lattice is reused. */
tn_status tn__unigram_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, bool first,
                             tn_tokens *out) {
    TN_TRY(unigram_normalize(t, &s->escaped, text, size, first && t->add_space_prefix));
    text = s->escaped.data;
    size = s->escaped.length;
    if (size > TN_TOKENIZER_MAX_TEXT)
        return tn_fail(TN_E_LIMIT, "the text has %zu bytes after normalization, which is too many", size);
    size_t base = 0, reach = 0, made = 1; /* offset of node 0, furthest end of a token, nodes in use */
    const struct tn__lattice_node unseen = {.token = UNSEEN};
    TN_TRY(tn__grow((void **)&s->lattice, &s->lattice_capacity, 1, sizeof *s->lattice));
    s->lattice[0] = (struct tn__lattice_node){0};
    for (size_t at = 0; at < size;) {
        if (at > base && at == reach) {
            TN_TRY(append_path(t, s->lattice, text + base, at - base, out));
            base = at;
            made = 1;
            s->lattice[0] = (struct tn__lattice_node){0};
        }
        uint32_t cp;
        size_t step = tn__utf8_decode(text + at, size - at, &cp);
        if (step == 0) step = 1;
        double so_far = s->lattice[at - base].score;
        bool covered = false;
        uint32_t node = 0;
        for (size_t i = at; i < size; i++) {
            node = tn__trie_child(&t->words, node, (uint8_t)text[i]);
            if (node == TN__NIL) break;
            uint32_t token = t->words.nodes[node].token;
            if (token == TN__NIL) continue;
            size_t end = i + 1 - base;
            if (end >= made) {
                TN_TRY(tn__grow((void **)&s->lattice, &s->lattice_capacity, end + 1, sizeof *s->lattice));
                while (made <= end) s->lattice[made++] = unseen;
            }
            double length = (double)(i + 1 - at);
            /* A user-defined token scores higher than any segmentation of its text. */
            double score = t->types[token] == TN_TOKEN_USER_DEFINED ? length * t->top_score - 0.1 : t->scores[token];
            update_node(&s->lattice[end], so_far + score, token, at - base);
            if (i + 1 - at == step) covered = true;
            reach = TN__MAX(reach, i + 1);
        }
        if (!covered) {
            size_t end = at + step - base;
            TN_TRY(tn__grow((void **)&s->lattice, &s->lattice_capacity, end + 1, sizeof *s->lattice));
            while (made <= end) s->lattice[made++] = unseen;
            update_node(&s->lattice[end], so_far + t->unknown_score, TN__NIL, at - base);
            reach = TN__MAX(reach, at + step);
        }
        at += step;
    }
    return size > base ? append_path(t, s->lattice, text + base, size - base, out) : TN_OK;
}
