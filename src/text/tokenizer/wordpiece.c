/* WordPiece: text is cleaned, lowercased, stripped of accents and divided at spaces and punctuation. Each word
 * becomes the longest matching tokens from left to right, or one unknown token. GGUF files write tokens that begin a
 * word with U+2581 in front. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <string.h>
#include <utf8proc.h>

enum { LONGEST_WORD = 100 }; /* characters; for BERT longer words are unknown */

tn_status tn__wordpiece_load(tn_tokenizer *t) {
    tn__trie_item *items = tn_malloc((size_t)t->size * sizeof *items);
    if (!items) return TN_E_NOMEM;
    size_t count = 0;
    for (uint32_t i = 0; i < (uint32_t)t->size; i++) {
        if (t->types[i] != TN_TOKEN_NORMAL && t->types[i] != TN_TOKEN_USER_DEFINED) continue;
        items[count].data = tn__token_text(t, i, &items[count].size);
        items[count++].token = i;
    }
    tn_status status = tn__trie_build(&t->words, items, count);
    tn_free(items);
    return status;
}

static tn_status encode_word(const tn_tokenizer *t, const char *word, size_t size, tn_tokens *out) {
    size_t before = out->count, at = 0;
    while (at < size) {
        uint32_t node = 0, token = TN__NIL;
        size_t end = at;
        for (size_t i = at; i < size; i++) {
            node = tn__trie_child(&t->words, node, (uint8_t)word[i]);
            if (node == TN__NIL) break;
            if (t->words.nodes[node].token != TN__NIL) {
                token = t->words.nodes[node].token;
                end = i + 1;
            }
        }
        if (token == TN__NIL) {
            out->count = before;
            tn_token unknown = t->special[TN_SPECIAL_UNK];
            return unknown >= 0 ? tn__tokens_push(out, unknown) : TN_OK;
        }
        TN_TRY(tn__tokens_push(out, (tn_token)token));
        at = end;
    }
    return TN_OK;
}

bool tn__is_white_space(uint32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return cp == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

static bool is_dropped(uint32_t cp) {
    if (cp < 0x80) return cp < 0x20 || cp == 0x7f;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return cp == 0xfffd || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
           category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS;
}

/* Punctuation and Chinese characters are words by themselves. */
static bool stands_alone(uint32_t cp) {
    if (cp < 0x80) return (cp >= 33 && cp <= 47) || (cp >= 58 && cp <= 64) || (cp >= 91 && cp <= 96) || cp >= 123;
    if ((cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0x20000 && cp <= 0x2a6df) ||
        (cp >= 0x2a700 && cp <= 0x2ceaf) || (cp >= 0xf900 && cp <= 0xfaff) || (cp >= 0x2f800 && cp <= 0x2fa1f))
        return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

typedef struct word_splitter {
    const tn_tokenizer *t;
    tn__text *word; /* begins with U+2581 */
    size_t chars;
    tn_tokens *out;
} word_splitter;

static tn_status end_word(word_splitter *w) {
    if (w->chars == 0) return TN_OK;
    tn_status status = TN_OK;
    if (w->chars <= LONGEST_WORD)
        status = encode_word(w->t, w->word->data, w->word->length, w->out);
    else if (w->t->special[TN_SPECIAL_UNK] >= 0)
        status = tn__tokens_push(w->out, w->t->special[TN_SPECIAL_UNK]);
    w->chars = 0;
    return status;
}

static tn_status add_to_word(word_splitter *w, uint32_t cp) {
    if (w->chars++ > LONGEST_WORD) return TN_OK; /* already too long */
    if (w->chars == 1) {
        tn__text_clear(w->word);
        tn__text_append(w->word, TN__SPACE, 3);
    }
    char bytes[4];
    tn__text_append(w->word, bytes, tn__utf8_encode(cp, bytes));
    return w->word->status;
}

static tn_status add_code_point(word_splitter *w, uint32_t cp) {
    if (tn__is_white_space(cp)) return end_word(w);
    if (is_dropped(cp)) return TN_OK;
    if (w->t->strip_accents && cp >= 0x300 && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MN)
        return TN_OK;
    if (w->t->lowercase) cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    if (!stands_alone(cp)) return add_to_word(w, cp);
    TN_TRY(end_word(w));
    TN_TRY(add_to_word(w, cp));
    return end_word(w);
}

tn_status tn__wordpiece_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out) {
    word_splitter w = {.t = t, .word = &s->word, .out = out};
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(text + i, size - i, &cp);
        if (!n) { /* invalid bytes are ignored */
            i++;
            continue;
        }
        utf8proc_int32_t parts[8];
        utf8proc_ssize_t count = 1;
        parts[0] = (utf8proc_int32_t)cp;
        if (t->strip_accents && cp >= 0x80) {
            int last = 0;
            count = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, (utf8proc_ssize_t)TN__COUNT(parts),
                                            UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last);
            if (count < 1 || count > (utf8proc_ssize_t)TN__COUNT(parts)) {
                parts[0] = (utf8proc_int32_t)cp;
                count = 1;
            }
        }
        for (utf8proc_ssize_t k = 0; k < count; k++) TN_TRY(add_code_point(&w, (uint32_t)parts[k]));
        i += n;
    }
    return end_word(&w);
}
