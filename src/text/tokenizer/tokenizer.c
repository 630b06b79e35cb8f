/* Tokenizers: creation, encoding with special tokens, and queries. */
#include "text/tokenizer/internal.h"

#include <string.h>

/* ---- Growing arrays ---- */

tn_status tn__grow(void **memory, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return TN_OK;
    size_t larger = TN__MAX(*capacity + *capacity / 2, (size_t)64), bytes;
    larger = TN__MAX(larger, need);
    if (!tn__mul_size(larger, size, &bytes))
        return tn_fail(TN_E_OVERFLOW, "an array of %zu elements of %zu bytes is too large", larger, size);
    void *moved = tn_realloc(*memory, bytes);
    if (!moved) return TN_E_NOMEM;
    *memory = moved;
    *capacity = larger;
    return TN_OK;
}

tn_status tn__tokens_push(tn_tokens *tokens, tn_token id) {
    if (tokens->count == tokens->capacity)
        TN_TRY(tn__grow((void **)&tokens->ids, &tokens->capacity, tokens->count + 1, sizeof *tokens->ids));
    tokens->ids[tokens->count++] = id;
    return TN_OK;
}

void tn_tokens_free(tn_tokens *tokens) {
    if (!tokens) return;
    tn_free(tokens->ids);
    *tokens = (tn_tokens){0};
}

void tn_text_free(tn_text *text) {
    if (!text) return;
    tn_free(text->bytes);
    *text = (tn_text){0};
}

/* ---- Scratch memory ---- */

static void scratch_free(tn__scratch *s) {
    if (!s) return;
    tn__pre_match_free(s->match);
    tn_free(s->cache);
    tn__merge_work_free(&s->work);
    tn__text_free(&s->normalized);
    tn__text_free(&s->escaped);
    tn__text_free(&s->word);
    tn_free(s->lattice);
    tn_free(s->costs);
    tn_free(s);
}

/* Takes an idle scratch with its cache, or creates one. */
static tn_status scratch_take(const tn_tokenizer *t, tn__scratch **out) {
    tn_tokenizer *shared = (tn_tokenizer *)t; /* only `idle` changes, under the lock */
    pthread_mutex_lock(&shared->lock);
    tn__scratch *s = shared->idle;
    if (s) shared->idle = s->next;
    pthread_mutex_unlock(&shared->lock);
    if (!s) {
        s = tn_calloc(1, sizeof *s);
        if (!s) return TN_E_NOMEM;
        tn_status status = t->pre ? tn__pre_match_new(t->pre, &s->match) : TN_OK;
        if (status == TN_OK && t->merges.slots && !(s->cache = tn_calloc(TN__CACHE_SLOTS, sizeof *s->cache)))
            status = TN_E_NOMEM;
        if (status != TN_OK) {
            scratch_free(s);
            return status;
        }
    }
    *out = s;
    return TN_OK;
}

/* Buffers that a long text made large are freed. */
static void scratch_give(const tn_tokenizer *t, tn__scratch *s) {
    enum { KEEP = 1 << 20 };
    if (s->work.long_capacity > KEEP || s->work.capacity > KEEP) tn__merge_work_free(&s->work);
    if (s->normalized.capacity > KEEP) tn__text_free(&s->normalized);
    if (s->escaped.capacity > KEEP) tn__text_free(&s->escaped);
    if (s->word.capacity > KEEP) tn__text_free(&s->word);
    if (s->lattice_capacity > KEEP) {
        tn_free(s->lattice);
        s->lattice = NULL;
        s->lattice_capacity = 0;
    }
    if (s->costs_capacity > KEEP) {
        tn_free(s->costs);
        s->costs = NULL;
        s->costs_capacity = 0;
    }
    tn_tokenizer *shared = (tn_tokenizer *)t;
    pthread_mutex_lock(&shared->lock);
    s->next = shared->idle;
    shared->idle = s;
    pthread_mutex_unlock(&shared->lock);
}

/* ---- Creation ---- */

static bool str_equals(tn_gguf_str a, const char *b) { return a.size == strlen(b) && memcmp(a.data, b, a.size) == 0; }

/* Files of Gemma 4 have the kind either as the model or as the pre-tokenizer of the model "gpt2". */
static bool is_raw_pre(tn_gguf_str pre) {
    return str_equals(pre, "gemma4") || str_equals(pre, "sarvam-moe") || str_equals(pre, "granite-embed-multi-311m");
}

static tn_status find_tokenizer_kind(const tn__vocab_source *source, tn_tokenizer_kind *kind) {
    if (!source->model.size || str_equals(source->model, "no_vocab") || str_equals(source->model, "none"))
        return tn_fail(TN_E_NOT_FOUND, "the model has no vocabulary");
    static const struct {
        const char *model;
        tn_tokenizer_kind kind;
    } kinds[] = {
#define TN_X(name, model, text) {model, TN_TOKENIZER_##name},
        TN_TOKENIZER_KIND_TABLE(TN_X)
#undef TN_X
    };
    for (size_t i = 0; i < TN__COUNT(kinds); i++) {
        if (!str_equals(source->model, kinds[i].model)) continue;
        *kind = kinds[i].kind == TN_TOKENIZER_BPE && is_raw_pre(source->pre) ? TN_TOKENIZER_RAW_BPE : kinds[i].kind;
        return TN_OK;
    }
    return tn_fail(TN_E_UNSUPPORTED, "unsupported tokenizer model \"%.*s\"",
                   (int)TN__MIN(source->model.size, (size_t)100), source->model.data);
}

static bool setting_or(int given, bool usual) { return given == TN__UNSET ? usual : given != 0; }

static void load_settings(tn_tokenizer *t, const tn__vocab_source *source) {
    bool spm = t->kind == TN_TOKENIZER_SPM, wordpiece = t->kind == TN_TOKENIZER_WORDPIECE;
    unsigned pre = t->pre_row ? t->pre_row->flags : 0;
    t->add_bos = setting_or(source->add_bos, spm || wordpiece || pre & TN__PRE_ADD_BOS);
    /* Gemma 4 does not work without its first token, and some files disable it wrongly. */
    if (t->kind == TN_TOKENIZER_RAW_BPE && str_equals(source->model, "gemma4")) t->add_bos = true;
    t->add_eos = setting_or(source->add_eos, t->kind == TN_TOKENIZER_UNIGRAM);
    t->add_sep = setting_or(source->add_sep, wordpiece || pre & TN__PRE_ADD_SEP);
    t->add_space_prefix = setting_or(source->add_space_prefix, spm);
    t->remove_extra_whitespaces = setting_or(source->remove_extra_whitespaces, false);
    t->lowercase = setting_or(source->lowercase, wordpiece);
    t->strip_accents = setting_or(source->strip_accents, t->lowercase);
    t->escape_spaces = spm || t->kind == TN_TOKENIZER_RAW_BPE;
}

/* Encodes text without special tokens. `first`: it begins the input or follows a special token. */
static tn_status encode_by_kind(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, bool first,
                                tn_tokens *out) {
    switch (t->kind) {
    case TN_TOKENIZER_BPE: return tn__bpe_encode(t, s, text, size, out);
    case TN_TOKENIZER_SPM:
    case TN_TOKENIZER_RAW_BPE: return tn__spm_encode(t, s, text, size, first, out);
    case TN_TOKENIZER_WORDPIECE: return tn__wordpiece_encode(t, s, text, size, out);
    case TN_TOKENIZER_UNIGRAM: return tn__unigram_encode(t, s, text, size, first, out);
    case TN_TOKENIZER_WORLD: return tn__world_encode(t, text, size, out);
    case TN_TOKENIZER_PLAMO: return tn__plamo_encode(t, s, text, size, out);
    case TN_TOKENIZER_WHITESPACE: return tn__whitespace_encode(t, s, text, size, out);
    }
    return TN_OK;
}

static tn_status find_newline(tn_tokenizer *t) {
    t->special[TN_SPECIAL_NEWLINE] = TN_TOKEN_NONE;
    if (t->kind == TN_TOKENIZER_UNIGRAM) return TN_OK; /* normalization replaces line ends */
    tn_tokens tokens = {0};
    tn__scratch *s;
    TN_TRY(scratch_take(t, &s));
    tn_status status = encode_by_kind(t, s, "\n", 1, false, &tokens);
    scratch_give(t, s);
    if (status == TN_OK && tokens.count == 1 && tokens.ids[0] != t->special[TN_SPECIAL_UNK])
        t->special[TN_SPECIAL_NEWLINE] = tokens.ids[0];
    tn_tokens_free(&tokens);
    return status;
}

static tn_status load_tokenizer(tn_tokenizer *t, const tn__vocab_source *source, const tn_tokenizer_params *params) {
    TN_TRY(find_tokenizer_kind(source, &t->kind));
    TN_TRY(tn__vocab_load(t, source));
    TN_TRY(tn__vocab_roles(t, source));
    TN_TRY(tn__vocab_pieces(t));
    switch (t->kind) {
    case TN_TOKENIZER_BPE: TN_TRY(tn__bpe_load(t, source, params)); break;
    case TN_TOKENIZER_SPM:
    case TN_TOKENIZER_RAW_BPE:
    case TN_TOKENIZER_WHITESPACE: TN_TRY(tn__spm_load(t, source)); break;
    case TN_TOKENIZER_WORDPIECE: TN_TRY(tn__wordpiece_load(t)); break;
    case TN_TOKENIZER_UNIGRAM: TN_TRY(tn__unigram_load(t, source)); break;
    case TN_TOKENIZER_WORLD: TN_TRY(tn__world_load(t)); break;
    case TN_TOKENIZER_PLAMO: TN_TRY(tn__plamo_load(t)); break;
    }
    load_settings(t, source);
    return find_newline(t);
}

tn_status tn__tokenizer_from_source(const tn__vocab_source *source, const tn_tokenizer_params *params,
                                    tn_tokenizer **out) {
    *out = NULL;
    tn_tokenizer *t = tn_calloc(1, sizeof *t);
    if (!t) return TN_E_NOMEM;
    if (pthread_mutex_init(&t->lock, NULL)) {
        tn_free(t);
        return tn_fail(TN_E_NOMEM, "cannot create a mutex");
    }
    t->seed = tn__mix64(tn_time_ns() ^ (uint64_t)(uintptr_t)t);
    tn_status status = load_tokenizer(t, source, params);
    if (status != TN_OK)
        tn_tokenizer_free(t);
    else
        *out = t;
    return status;
}

void tn_tokenizer_free(tn_tokenizer *t) {
    if (!t) return;
    for (tn__scratch *s = t->idle, *next; s; s = next) {
        next = s->next;
        scratch_free(s);
    }
    tn__vocab_free(t);
    tn__pre_free(t->pre);
    tn__merges_free(&t->merges);
    tn_free(t->char_map);
    tn_free(t->joins);
    tn__trie_free(&t->words);
    tn_free(t->charsmap);
    pthread_mutex_destroy(&t->lock);
    tn_free(t);
}

/* ---- Encoding ---- */

typedef struct encoding {
    const tn_tokenizer *t;
    tn__scratch *s;
    tn_tokens *out;
    bool first; /* at the beginning, or directly after a special token */
} encoding;

static tn_status encode_plain(encoding *e, const char *text, size_t size) {
    if (size == 0) return TN_OK;
    bool first = e->first;
    e->first = false;
    return encode_by_kind(e->t, e->s, text, size, first, e->out);
}

/* The longest special token at `text`, or TN__NIL. */
static uint32_t special_at(const tn_tokenizer *t, const char *text, size_t size, bool parse, size_t *length) {
    uint32_t node = 0, longest = TN__NIL;
    for (size_t i = 0; i < size; i++) {
        node = tn__trie_child(&t->specials, node, (uint8_t)text[i]);
        if (node == TN__NIL) break;
        uint32_t token = t->specials.nodes[node].token;
        if (token == TN__NIL || (!parse && t->types[token] != TN_TOKEN_USER_DEFINED)) continue;
        longest = token;
        *length = i + 1;
    }
    return longest;
}

static bool is_blank(char c) { return c == ' ' || (c >= 9 && c <= 13); }

static tn_status encode_text(encoding *e, const char *text, size_t size, bool parse) {
    const tn_tokenizer *t = e->t;
    size_t done = 0;
    for (size_t i = 0; t->has_specials && i < size;) {
        size_t length = 0;
        uint32_t token =
            t->first_byte[(uint8_t)text[i]] ? special_at(t, text + i, size - i, parse, &length) : TN__NIL;
        if (token == TN__NIL) {
            i++;
            continue;
        }
        size_t end = i;
        uint8_t strip = t->strips ? t->strips[token] : 0;
        if (strip & TN__STRIP_LEFT)
            while (end > done && is_blank(text[end - 1])) end--;
        TN_TRY(encode_plain(e, text + done, end - done));
        TN_TRY(tn__tokens_push(e->out, (tn_token)token));
        e->first = true;
        i += length;
        if (strip & TN__STRIP_RIGHT)
            while (i < size && is_blank(text[i])) i++;
        done = i;
    }
    return encode_plain(e, text + done, size - done);
}

static tn_status encode_all(encoding *e, const char *text, size_t size, unsigned flags) {
    const tn_tokenizer *t = e->t;
    bool add = flags & TN_ENCODE_ADD_SPECIAL;
    tn_token bos = t->special[TN_SPECIAL_BOS], eos = t->special[TN_SPECIAL_EOS], sep = t->special[TN_SPECIAL_SEP];
    if (add && t->add_bos && bos >= 0) TN_TRY(tn__tokens_push(e->out, bos));
    TN_TRY(encode_text(e, text, size, flags & TN_ENCODE_PARSE_SPECIAL));
    /* One token ends a text, by whatever name; models of pairs of texts have both settings. */
    tn_token end = t->add_eos && eos >= 0 ? eos : t->add_sep ? sep : TN_TOKEN_NONE;
    if (add && end >= 0) TN_TRY(tn__tokens_push(e->out, end));
    return TN_OK;
}

tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, size_t length, unsigned flags,
                              tn_tokens *out) {
    if (!t || !out || (!text && length))
        return tn_fail(TN_E_INVALID, "tn_tokenizer_encode: tokenizer, text or out is NULL");
    if (length > TN_TOKENIZER_MAX_TEXT)
        return tn_fail(TN_E_LIMIT, "the text has %zu bytes; the maximum per call is %u", length,
                       TN_TOKENIZER_MAX_TEXT);
    encoding e = {.t = t, .out = out, .first = !(flags & TN_ENCODE_CONTINUE)};
    size_t before = out->count;
    TN_TRY(scratch_take(t, &e.s));
    tn_status status = encode_all(&e, text, length, flags);
    scratch_give(t, e.s);
    if (status != TN_OK) out->count = before;
    return status;
}

tn_status tn_tokenizer_encode_into(const tn_tokenizer *t, const char *text, size_t length, unsigned flags,
                                   tn_token *ids, size_t capacity, size_t *count) {
    if (!count || (!ids && capacity)) return tn_fail(TN_E_INVALID, "tn_tokenizer_encode_into: ids or count is NULL");
    tn_tokens tokens = {0};
    *count = 0;
    tn_status status = tn_tokenizer_encode(t, text, length, flags, &tokens);
    if (status == TN_OK) {
        *count = tokens.count;
        size_t copied = TN__MIN(tokens.count, capacity);
        if (copied) memcpy(ids, tokens.ids, copied * sizeof *ids);
        if (tokens.count > capacity)
            status = tn_fail(TN_E_FULL, "the text has %zu tokens, but the capacity is %zu", tokens.count, capacity);
    }
    tn_tokens_free(&tokens);
    return status;
}

/* ---- Queries ---- */

static bool is_in_vocabulary(const tn_tokenizer *t, tn_token token) { return token >= 0 && token < t->size; }

tn_tokenizer_kind tn_tokenizer_get_kind(const tn_tokenizer *t) { return t->kind; }
const char *tn_tokenizer_pre(const tn_tokenizer *t) { return t->pre_row ? t->pre_row->name : ""; }
int32_t tn_tokenizer_size(const tn_tokenizer *t) { return t->size; }
bool tn_tokenizer_adds_bos(const tn_tokenizer *t) { return t->add_bos; }
bool tn_tokenizer_adds_eos(const tn_tokenizer *t) { return t->add_eos; }
bool tn_tokenizer_adds_sep(const tn_tokenizer *t) { return t->add_sep; }
bool tn_tokenizer_adds_space_prefix(const tn_tokenizer *t) { return t->add_space_prefix; }

tn_token_type tn_token_get_type(const tn_tokenizer *t, tn_token token) {
    return is_in_vocabulary(t, token) ? (tn_token_type)t->types[token] : TN_TOKEN_UNKNOWN;
}

float tn_token_score(const tn_tokenizer *t, tn_token token) {
    return is_in_vocabulary(t, token) ? t->scores[token] : 0;
}

const char *tn_token_text(const tn_tokenizer *t, tn_token token, size_t *length) {
    size_t size = 0;
    const char *text = is_in_vocabulary(t, token) ? tn__token_text(t, (uint32_t)token, &size) : NULL;
    if (length) *length = size;
    return text;
}

const char *tn_token_piece(const tn_tokenizer *t, tn_token token, size_t *length) {
    size_t size = is_in_vocabulary(t, token) ? t->piece_at[token + 1] - t->piece_at[token] - 1 : 0;
    if (length) *length = size;
    return is_in_vocabulary(t, token) ? t->piece_blob + t->piece_at[token] : NULL;
}

tn_token tn_tokenizer_find(const tn_tokenizer *t, const char *text, size_t length) {
    uint32_t id = length ? tn__token_text_find(t, text, length) : TN__NIL;
    return id == TN__NIL ? TN_TOKEN_NONE : (tn_token)id;
}

tn_token tn_tokenizer_special(const tn_tokenizer *t, tn_special role) {
    return (unsigned)role < TN_SPECIAL_COUNT ? t->special[role] : TN_TOKEN_NONE;
}

const char *tn_special_name(tn_special role) {
    static const char *const names[] = {
#define TN_X(name, key, text) text,
        TN_SPECIAL_TABLE(TN_X)
#undef TN_X
    };
    return (unsigned)role < TN_SPECIAL_COUNT ? names[role] : "?";
}

bool tn_token_is_end(const tn_tokenizer *t, tn_token token) {
    return is_in_vocabulary(t, token) && tn__bits_get(t->ends, (size_t)token);
}
