/* Byte-level BPE: the pre-tokenizer splits text into words, whose bytes are merged by rank. Also the encoding of one
 * word for all merging tokenizers, and the cache of words. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <string.h>

/* ---- Words ---- */

/* Encodes bytes without a symbol: as byte tokens if the vocabulary has them, else as the unknown token, which
 * adjacent ones within the word share. */
static tn_status push_bytes(const tn_tokenizer *t, const char *bytes, size_t size, size_t word, tn_tokens *out) {
    bool all = true;
    for (size_t i = 0; i < size; i++) all = all && t->byte_token[(uint8_t)bytes[i]] >= 0;
    if (all) {
        for (size_t i = 0; i < size; i++) TN_TRY(tn__tokens_push(out, t->byte_token[(uint8_t)bytes[i]]));
        return TN_OK;
    }
    tn_token unknown = t->special[TN_SPECIAL_UNK];
    /* Byte-level files often use the end of text as the unknown token. A stray byte must not produce it. */
    if (t->kind == TN_TOKENIZER_BPE && unknown >= 0 && t->types[unknown] == TN_TOKEN_CONTROL) return TN_OK;
    if (unknown < 0 || (out->count > word && out->ids[out->count - 1] == unknown)) return TN_OK;
    return tn__tokens_push(out, unknown);
}

static tn_status merge_word(const tn_tokenizer *t, tn__scratch *s, const char *word, size_t size, tn_tokens *out) {
    tn__merge_work *work = &s->work;
    size_t before = out->count;
    TN_TRY(tn__merge_reserve(work, size));
    size_t count = 0;
    if (t->kind == TN_TOKENIZER_BPE) {
        if (t->ignore_merges) {
            /* Look up the whole word, written in the byte-level alphabet that the vocabulary uses. */
            tn__text_clear(&s->word);
            for (size_t i = 0; i < size; i++) {
                char bytes[4];
                tn__text_append(&s->word, bytes, tn__utf8_encode(tn__char_of_byte((uint8_t)word[i]), bytes));
            }
            TN_TRY(s->word.status);
            uint32_t id = tn__token_text_find(t, s->word.data, s->word.length);
            if (id != TN__NIL && t->types[id] != TN_TOKEN_CONTROL) return tn__tokens_push(out, (tn_token)id);
        }
        for (; count < size; count++) work->symbols[count] = t->byte_symbol[(uint8_t)word[count]];
        TN_TRY(tn__merge_run(&t->merges, work, &count));
        for (size_t i = 0; i < count; i++) {
            size_t start = work->starts[i], end = i + 1 < count ? work->starts[i + 1] : size;
            if (work->symbols[i] < (uint32_t)t->size) {
                TN_TRY(tn__tokens_push(out, (tn_token)work->symbols[i]));
                continue;
            }
            for (size_t k = start; k < end; k++) { /* the result of a merge that is not a token: its bytes */
                uint32_t symbol = t->byte_symbol[(uint8_t)word[k]];
                TN_TRY(symbol < (uint32_t)t->size ? tn__tokens_push(out, (tn_token)symbol)
                                                  : push_bytes(t, word + k, 1, before, out));
            }
        }
        return TN_OK;
    }
    for (size_t i = 0; i < size; count++) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(word + i, size - i, &cp);
        work->symbols[count] = n ? tn__symbol_of_char(t, cp) : TN__NIL;
        i += n ? n : 1;
    }
    TN_TRY(tn__merge_run(&t->merges, work, &count));
    size_t at = 0, index = 0; /* byte and character offsets */
    for (size_t i = 0; i < count; i++) {
        size_t from = at, last = i + 1 < count ? work->starts[i + 1] : SIZE_MAX;
        while (at < size && index < last) {
            uint32_t cp;
            unsigned n = tn__utf8_decode(word + at, size - at, &cp);
            at += n ? n : 1;
            index++;
        }
        if (work->symbols[i] < (uint32_t)t->size)
            TN_TRY(tn__tokens_push(out, (tn_token)work->symbols[i]));
        else
            TN_TRY(push_bytes(t, word + from, at - from, before, out));
    }
    return TN_OK;
}

static tn_status encode_cached(const tn_tokenizer *t, tn__scratch *s, const char *word, size_t size, tn_tokens *out) {
    if (size > TN__CACHE_WORD) return merge_word(t, s, word, size, out);
    uint64_t hash = tn__hash_bytes(word, size, t->seed);
    tn__cache_slot *slot = &s->cache[hash & (TN__CACHE_SLOTS - 1)];
    if (slot->size == size && memcmp(slot->word, word, size) == 0) {
        if (out->capacity - out->count < TN__CACHE_TOKENS)
            TN_TRY(tn__grow((void **)&out->ids, &out->capacity, out->count + TN__CACHE_TOKENS, sizeof *out->ids));
        memcpy(out->ids + out->count, slot->tokens, sizeof slot->tokens);
        out->count += slot->count;
        return TN_OK;
    }
    size_t before = out->count;
    TN_TRY(merge_word(t, s, word, size, out));
    size_t made = out->count - before;
    if (size > 0 && made <= TN__CACHE_TOKENS) {
        slot->size = (uint8_t)size;
        slot->count = (uint8_t)made;
        memcpy(slot->word, word, size);
        if (made) memcpy(slot->tokens, out->ids + before, made * sizeof *slot->tokens);
    }
    return TN_OK;
}

tn_status tn__word_encode(const tn_tokenizer *t, tn__scratch *s, const char *word, size_t size, tn_tokens *out) {
    size_t before = out->count;
    TN_TRY(encode_cached(t, s, word, size, out));
    /* Adjacent words share the unknown token too. */
    tn_token unknown = t->special[TN_SPECIAL_UNK];
    if (unknown >= 0 && t->types[unknown] != TN_TOKEN_NORMAL && before > 0 && before < out->count &&
        out->ids[before - 1] == unknown && out->ids[before] == unknown) {
        memmove(out->ids + before, out->ids + before + 1, (out->count - before - 1) * sizeof *out->ids);
        out->count--;
    }
    return TN_OK;
}

/* ---- Loading and encoding ---- */

tn_status tn__bpe_load(tn_tokenizer *t, const tn__vocab_source *source, const tn_tokenizer_params *params) {
    const tn_gguf_str *pre = &source->pre;
    t->pre_row = pre->size ? tn__pre_find(pre->data, pre->size) : NULL;
    if (!t->pre_row) {
        if (pre->size && !(params && params->allow_unknown_pre))
            return tn_fail(TN_E_UNSUPPORTED, "unknown pre-tokenizer \"%.*s\"", (int)TN__MIN(pre->size, (size_t)100),
                           pre->data);
        tn_log(TN_LOG_WARN,
               "vocabulary: %s pre-tokenizer%s%.*s; using the default one, which may split text differently",
               pre->size ? "unknown" : "unnamed", pre->size ? " " : "", (int)TN__MIN(pre->size, (size_t)100),
               pre->size ? pre->data : "");
        t->pre_row = tn__pre_find("default", 7);
    }
    t->ignore_merges = t->pre_row->flags & TN__PRE_IGNORE_MERGES;
    t->nfc = t->pre_row->flags & TN__PRE_NFC;
    TN_TRY(tn__pre_new(t->pre_row, &t->pre));
    TN_TRY(tn__rank_merges(t, source));
    for (unsigned b = 0; b < 256; b++) {
        char bytes[4];
        t->byte_symbol[b] = tn__token_text_find(t, bytes, tn__utf8_encode(tn__char_of_byte(b), bytes));
    }
    return TN_OK;
}

typedef struct word_context {
    const tn_tokenizer *t;
    tn__scratch *s;
    tn_tokens *out;
} word_context;

static tn_status on_word(void *user, const char *word, size_t size) {
    word_context *c = user;
    return tn__word_encode(c->t, c->s, word, size, c->out);
}

tn_status tn__bpe_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out) {
    word_context context = {t, s, out};
    /* Patterns are applied to valid UTF-8 only. A run of invalid bytes is a word of its own, so that decoding returns
     * the same bytes. */
    while (size > 0) {
        size_t valid = tn__utf8_valid_prefix(text, size);
        if (valid > 0) {
            const char *words = text;
            size_t words_size = valid;
            if (t->nfc) {
                bool changed;
                TN_TRY(tn__normalize_nfc(text, valid, &s->normalized, &changed));
                if (changed) {
                    words = s->normalized.data;
                    words_size = s->normalized.length;
                }
            }
            TN_TRY(tn__pre_split(t->pre, s->match, words, words_size, on_word, &context));
        }
        text += valid;
        size -= valid;
        size_t broken = 0;
        uint32_t cp;
        while (broken < size && !tn__utf8_decode(text + broken, size - broken, &cp)) broken++;
        if (broken > 0) TN_TRY(tn__word_encode(t, s, text, broken, out));
        text += broken;
        size -= broken;
    }
    return TN_OK;
}
