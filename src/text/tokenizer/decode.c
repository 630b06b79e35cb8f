/* Tokens to text: whole sequences as bytes, or token by token as valid UTF-8. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <string.h>

/* The text of a token in a sequence: control tokens may be omitted, and the space that encoding inserts before the
 * first word is removed. */
static const char *decoded_piece(const tn_tokenizer *t, tn_token token, unsigned flags, bool *start, size_t *size) {
    const char *piece = tn_token_piece(t, token, size);
    tn_token_type type = tn_token_get_type(t, token);
    if (type == TN_TOKEN_CONTROL || type == TN_TOKEN_UNKNOWN) {
        if (!(flags & TN_DECODE_SPECIAL)) *size = 0;
        return piece;
    }
    bool prefixed = t->add_space_prefix || t->kind == TN_TOKENIZER_WORDPIECE;
    if (*start && prefixed && *size > 0 && piece[0] == ' ') {
        piece++;
        (*size)--;
    }
    *start = false;
    return piece;
}

tn_status tn_tokenizer_decode(const tn_tokenizer *t, const tn_token *ids, size_t count, unsigned flags,
                              tn_text *out) {
    if (!t || !out || (!ids && count))
        return tn_fail(TN_E_INVALID, "tn_tokenizer_decode: tokenizer, ids or out is NULL");
    /* Appends to the caller's memory, which may grow. On an error the text is as before. */
    tn__text text = {.data = out->bytes, .length = out->length, .capacity = out->capacity};
    bool start = !(flags & TN_DECODE_CONTINUE);
    tn__text_append(&text, "", 0); /* makes an empty text a string */
    for (size_t i = 0; i < count && text.status == TN_OK; i++) {
        if (ids[i] >= 0 && ids[i] < t->size) {
            size_t size;
            const char *piece = decoded_piece(t, ids[i], flags, &start, &size);
            tn__text_append(&text, piece, size);
        } else {
            text.status =
                tn_fail(TN_E_INVALID, "token %d at index %zu is not in the vocabulary of %d", ids[i], i, t->size);
        }
    }
    if (text.status != TN_OK) tn__text_truncate(&text, out->length);
    *out = (tn_text){.bytes = text.data, .length = text.length, .capacity = text.capacity};
    return text.status;
}

/* ---- Token by token ---- */

struct tn_detokenizer {
    const tn_tokenizer *t;
    unsigned flags;
    bool start;
    unsigned waiting; /* bytes of an incomplete character in `pending` */
    char pending[4];
    char text[]; /* each byte of the longest piece and of `pending` can become U+FFFD, three bytes */
};

tn_status tn_detokenizer_new(const tn_tokenizer *t, unsigned flags, tn_detokenizer **out) {
    if (!t || !out) return tn_fail(TN_E_INVALID, "tn_detokenizer_new: tokenizer or out is NULL");
    size_t size;
    if (!tn__mul_size(t->longest_piece, 3, &size) || !tn__add_size(size, sizeof(tn_detokenizer) + 16, &size))
        return tn_fail(TN_E_OVERFLOW, "a token of %zu bytes is too long", t->longest_piece);
    tn_detokenizer *d = tn_malloc(size);
    if (!d) return TN_E_NOMEM;
    d->t = t;
    d->flags = flags;
    tn_detokenizer_reset(d);
    *out = d;
    return TN_OK;
}

void tn_detokenizer_free(tn_detokenizer *d) { tn_free(d); }

void tn_detokenizer_reset(tn_detokenizer *d) {
    d->start = !(d->flags & TN_DECODE_CONTINUE);
    d->waiting = 0;
    d->text[0] = 0;
}

/* Whether the bytes are a proper prefix of a character. */
static bool is_character_prefix(const char *bytes, unsigned count) {
    unsigned char a = (unsigned char)bytes[0], b = count > 1 ? (unsigned char)bytes[1] : 0;
    unsigned need = a >= 0xc2 && a <= 0xdf ? 2 : a >= 0xe0 && a <= 0xef ? 3 : a >= 0xf0 && a <= 0xf4 ? 4 : 0;
    if (count >= need) return false;
    if (count > 1) {
        unsigned low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80, high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
        if (b < low || b > high) return false;
    }
    return count < 3 || ((unsigned char)bytes[2] & 0xc0) == 0x80;
}

static size_t put_replacement_character(char *out) {
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

const char *tn_detokenizer_push(tn_detokenizer *d, tn_token token, size_t *length) {
    size_t size = 0, made = 0;
    const char *piece = "";
    if (token >= 0 && token < d->t->size) piece = decoded_piece(d->t, token, d->flags, &d->start, &size);
    for (size_t i = 0; i < size; i++) {
        if (d->waiting == 0 && (signed char)piece[i] >= 0) {
            d->text[made++] = piece[i];
            continue;
        }
        d->pending[d->waiting++] = piece[i];
        uint32_t cp;
        if (tn__utf8_decode(d->pending, d->waiting, &cp) == d->waiting) {
            memcpy(d->text + made, d->pending, d->waiting);
            made += d->waiting;
            d->waiting = 0;
        } else if (!is_character_prefix(d->pending, d->waiting)) {
            /* The pending bytes are invalid. The new byte is tried again unless it was alone. */
            made += put_replacement_character(d->text + made);
            bool again = d->waiting > 1;
            d->waiting = 0;
            if (again) i--;
        }
    }
    d->text[made] = 0;
    if (length) *length = made;
    return d->text;
}

const char *tn_detokenizer_finish(tn_detokenizer *d, size_t *length) {
    bool cut = d->waiting > 0;
    tn_detokenizer_reset(d);
    size_t made = cut ? put_replacement_character(d->text) : 0;
    d->text[made] = 0;
    if (length) *length = made;
    return d->text;
}
