/* Generators: sampling, the end of a text, stop strings, and tokens to text, for one sequence. */
#include "tenon/generate.h"

#include "llm/session_internal.h"

#include <string.h>

struct tn_generator {
    const tn_tokenizer *tokenizer;
    tn_sampler *sampler;
    tn_detokenizer *detokenizer;
    bool ignore_end;
    char **stops;
    size_t n_stops;
    tn_token token;
    int64_t n_tokens;
    bool ended;
    int stop;
    /* What tn_generator_text returns: in the detokenizer's memory or in `buffer`. */
    const char *text;
    size_t length;
    char *buffer;
    size_t capacity;
    /* Text that may be the beginning of a stop string: always shorter than the longest of them. */
    char *held;
    size_t n_held;
};

/* Bytes for the text of an ordinary token; longer ones make the buffer grow. */
enum { GENERATOR_PIECE = 256 };

static tn_status copy_stops(tn_generator *g, const tn_generator_params *p) {
    if (p->n_stops == 0) return TN_OK;
    size_t longest = 0;
    if (!(g->stops = tn_calloc(p->n_stops, sizeof *g->stops))) return TN_E_NOMEM;
    for (size_t i = 0; i < p->n_stops; i++) {
        const size_t length = strlen(p->stops[i]);
        if (length == 0) return tn_fail(TN_E_INVALID, "stop string %zu is empty", i);
        if (!(g->stops[i] = tn_strdup(p->stops[i]))) return TN_E_NOMEM;
        g->n_stops++;
        if (length > longest) longest = length;
    }
    g->capacity = longest + GENERATOR_PIECE;
    g->held = tn_malloc(longest);
    g->buffer = tn_malloc(g->capacity);
    return g->held && g->buffer ? TN_OK : TN_E_NOMEM;
}

tn_status tn_generator_new(const tn_tokenizer *tokenizer, const tn_generator_params *params, tn_generator **out) {
    if (!tokenizer || !params || !out) return tn_fail(TN_E_INVALID, "tn_generator_new: NULL argument");
    *out = NULL;
    tn_generator *g = tn_calloc(1, sizeof *g);
    if (!g) return TN_E_NOMEM;
    g->tokenizer = tokenizer;
    g->sampler = params->sampler;
    g->ignore_end = params->ignore_end;
    tn_status status = copy_stops(g, params);
    if (status == TN_OK) status = tn_detokenizer_new(tokenizer, params->decode_flags, &g->detokenizer);
    if (status != TN_OK) {
        tn_generator_free(g);
        return status;
    }
    tn_generator_restart(g);
    *out = g;
    return TN_OK;
}

void tn_generator_free(tn_generator *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_stops; i++) tn_free(g->stops[i]);
    tn_free(g->stops);
    tn_free(g->held);
    tn_free(g->buffer);
    tn_detokenizer_free(g->detokenizer);
    tn_free(g);
}

void tn_generator_restart(tn_generator *g) {
    tn_detokenizer_reset(g->detokenizer);
    g->token = TN_TOKEN_NONE;
    g->n_tokens = 0;
    g->ended = false;
    g->stop = -1;
    g->text = "";
    g->length = g->n_held = 0;
}

void tn_generator_set_sampler(tn_generator *g, tn_sampler *sampler) { g->sampler = sampler; }

/* ---- Text ---- */

/* Moves the held text and `text` into the buffer. */
static tn_status join_held(tn_generator *g, const char *text, size_t length) {
    const size_t needed = g->n_held + length + 1;
    if (needed > g->capacity) {
        char *larger = tn_realloc(g->buffer, needed);
        if (!larger) return TN_E_NOMEM;
        g->buffer = larger;
        g->capacity = needed;
    }
    if (g->n_held) memcpy(g->buffer, g->held, g->n_held);
    memcpy(g->buffer + g->n_held, text, length);
    g->buffer[needed - 1] = '\0';
    g->text = g->buffer;
    g->length = needed - 1;
    g->n_held = 0;
    return TN_OK;
}

/* Length of the longest end of `text` that begins a stop string. */
static size_t stop_overlap(const tn_generator *g, const char *text, size_t length) {
    size_t longest = 0;
    for (size_t i = 0; i < g->n_stops; i++) {
        size_t most = strlen(g->stops[i]) - 1, n = most < length ? most : length;
        while (n > longest && memcmp(text + length - n, g->stops[i], n) != 0) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

/* Offset of the first stop string in the text, of several at the same offset the first in the list; `length` if there
 * is none. */
static size_t find_stop(const tn_generator *g, int *which) {
    size_t first = g->length;
    *which = -1;
    for (size_t i = 0; i < g->n_stops; i++) {
        const char *at = memmem(g->text, g->length, g->stops[i], strlen(g->stops[i]));
        if (!at || (size_t)(at - g->text) >= first) continue;
        first = (size_t)(at - g->text);
        *which = (int)i;
    }
    return first;
}

static tn_status generator_add_text(tn_generator *g, const char *text, size_t length) {
    if (g->n_stops == 0) {
        g->text = text;
        g->length = length;
        return TN_OK;
    }
    TN_TRY(join_held(g, text, length));
    size_t certain = find_stop(g, &g->stop);
    if (g->stop < 0) {
        g->n_held = stop_overlap(g, g->text, g->length);
        certain -= g->n_held;
        memcpy(g->held, g->text + certain, g->n_held);
    }
    g->ended = g->stop >= 0;
    g->length = certain;
    g->buffer[certain] = '\0';
    return TN_OK;
}

const char *tn_generator_finish(tn_generator *g, size_t *length) {
    g->length = 0;
    g->text = "";
    if (!g->ended) {
        size_t n;
        const char *rest = tn_detokenizer_finish(g->detokenizer, &n);
        if (g->n_held == 0) {
            g->text = rest;
            g->length = n;
        } else if (join_held(g, rest, n) != TN_OK) {
            /* Only an incomplete character can be lost: the held text always fits. */
            (void)join_held(g, "", 0);
        }
        g->ended = true;
    }
    return tn_generator_text(g, length);
}

/* ---- Sampling ---- */

/* Takes over a token that the sampler has not accepted yet. */
static tn_status generator_take(tn_generator *g, tn_token token) {
    TN_TRY(tn_sampler_accept(g->sampler, token));
    g->token = token;
    if (!g->ignore_end && tn_token_is_end(g->tokenizer, token)) {
        (void)tn_generator_finish(g, NULL);
        return TN_END;
    }
    size_t length;
    const char *text = tn_detokenizer_push(g->detokenizer, token, &length);
    g->n_tokens++;
    TN_TRY(generator_add_text(g, text, length));
    return g->ended ? TN_END : TN_OK;
}

tn_status tn_generator_sample_logits(tn_generator *g, const float *logits, size_t n_vocab) {
    tn_token token;
    g->text = "";
    g->length = 0;
    if (g->ended) return TN_END;
    TN_TRY(tn_sampler_sample(g->sampler, logits, n_vocab, &token));
    return generator_take(g, token);
}

/* From the largest logits of the row, if they are enough. */
static tn_status sample_candidates(tn_generator *g, const tn_session *session, int32_t row, bool *enough) {
    const tn_token *tokens;
    const float *logits;
    tn_token token;
    const int32_t n = tn_session_candidates(session, row, &tokens, &logits);
    *enough = false;
    if (n == 0 || g->ended) return TN_OK;
    TN_TRY(tn_sampler_sample_largest(g->sampler, tokens, logits, (size_t)n, enough, &token));
    if (!*enough) return TN_OK;
    g->text = "";
    g->length = 0;
    return generator_take(g, token);
}

tn_status tn_generator_sample(tn_generator *g, tn_session *session, int32_t row) {
    bool enough;
    tn_status status = sample_candidates(g, session, row, &enough);
    if (enough || status != TN_OK) return status;
    const float *logits = tn_session_logits(session, row);
    if (logits) return tn_generator_sample_logits(g, logits, (size_t)session->plan->model->h.n_vocab);
    g->text = "";
    g->length = 0;
    if (g->ended) return TN_END;
    const tn_token token = tn_session_argmax(session, row);
    if (token < 0) return tn_fail(TN_E_INVALID, "the last decode has no output row %d", row);
    return generator_take(g, token);
}

tn_token tn_generator_token(const tn_generator *g) { return g->token; }
int tn_generator_stop(const tn_generator *g) { return g->stop; }
int64_t tn_generator_count(const tn_generator *g) { return g->n_tokens; }

const char *tn_generator_text(const tn_generator *g, size_t *length) {
    if (length) *length = g->length;
    return g->text;
}
