/* BPE on characters, as in SentencePiece: spaces become U+2581, any adjacent symbols whose joined text is a token may
 * merge, and characters that the vocabulary lacks are encoded as bytes. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <string.h>
#include <utf8proc.h>

static bool scores_differ(const tn_tokenizer *t) {
    for (int32_t i = 1; i < t->size; i++)
        if (t->types[i] == TN_TOKEN_NORMAL && t->types[i - 1] == TN_TOKEN_NORMAL && t->scores[i] != t->scores[i - 1])
            return true;
    return false;
}

tn_status tn__spm_load(tn_tokenizer *t, const tn__vocab_source *source) {
    /* In files made from a list of merges all scores are equal. */
    bool ranked = t->kind != TN_TOKENIZER_SPM;
    if (source->n_merges && (ranked || !scores_differ(t))) return tn__rank_merges(t, source);
    if (ranked) return tn_fail(TN_E_FORMAT, "the vocabulary has no merges");
    return tn__score_merges(t);
}

/* Replaces spaces by U+2581; with `prefix` another one is inserted in front. */
static tn_status escape_spaces(tn__text *out, const char *text, size_t size, bool prefix) {
    tn__text_clear(out);
    if (prefix) tn__text_append(out, TN__SPACE, 3);
    for (size_t i = 0; i < size;) {
        const char *space = memchr(text + i, ' ', size - i);
        size_t run = space ? (size_t)(space - text) - i : size - i;
        tn__text_append(out, text + i, run);
        if (space) tn__text_append(out, TN__SPACE, 3);
        i += run + 1;
    }
    return out->status;
}

tn_status tn__spm_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, bool first,
                         tn_tokens *out) {
    bool prefix = t->add_space_prefix && first;
    if (t->escape_spaces) {
        TN_TRY(escape_spaces(&s->escaped, text, size, prefix));
        text = s->escaped.data;
        size = s->escaped.length;
    }
    /* Text can be divided between two characters that no merge joins. The parts are mostly words, which the cache may
     * contain. */
    uint32_t last = TN__NIL;
    size_t begin = 0;
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(text + i, size - i, &cp);
        if (!n) {
            cp = TN__NIL;
            n = 1;
        }
        if (i > begin && (cp == TN__NIL || last == TN__NIL || !tn__may_join(t, last, cp))) {
            TN_TRY(tn__word_encode(t, s, text + begin, i - begin, out));
            begin = i;
        }
        last = cp;
        i += n;
    }
    return begin < size ? tn__word_encode(t, s, text + begin, size - begin, out) : TN_OK;
}

/* BPE on the characters of words between white space, which is dropped. */
tn_status tn__whitespace_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size,
                                tn_tokens *out) {
    tn__text_clear(&s->normalized);
    for (size_t i = 0; i <= size;) {
        uint32_t cp = ' ';
        unsigned n = i < size ? tn__utf8_decode(text + i, size - i, &cp) : 1;
        char bytes[4];
        if (!n) {
            tn__text_append(&s->normalized, text + i, n = 1);
        } else if (tn__is_white_space(cp)) {
            TN_TRY(s->normalized.status);
            TN_TRY(tn__spm_encode(t, s, s->normalized.data, s->normalized.length, false, out));
            tn__text_clear(&s->normalized);
        } else {
            if (t->lowercase) cp = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
            tn__text_append(&s->normalized, bytes, tn__utf8_encode(cp, bytes));
        }
        i += n;
    }
    return s->normalized.status;
}
