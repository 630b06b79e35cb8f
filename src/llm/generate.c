/* Text generation with a session: prompts in, tokens and text out, and the scores of given tokens. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "tenon/generate.h"

#include <string.h>

/* A sequence started by tn_session_prompt. */
typedef struct tn__sequence {
    tn_generator *generator;
    /* Logits after the last token. A copy: the decode of another sequence replaces the session's rows. */
    float *logits;
    bool pending; /* the generator's token is not decoded yet: its decode failed */
    /* With a speculator: rows of logits after the token and after each guess. Rows up to `n_right` have been sampled.
     */
    struct guessing {
        float *rows;                   /* [1 + n_guess][n_vocab] */
        tn_token *tokens;              /* of the sequence; room for the context */
        int32_t n_tokens, n_right, at; /* at: the last right token of the guess, -1: none */
        tn_guess guess;
        bool open; /* guesses of the last decode are not verified yet */
    } * guessing;
} tn__sequence;

static tn_status check_causal(const tn_session *s) {
    if (s->plan->model->h.causal) return TN_OK;
    return tn_fail(
        TN_E_UNSUPPORTED,
        "%s models are not causal: tn_session_decode gives the logits of whole sequences, and generating text "
        "by diffusion is not supported",
        s->plan->model->arch->info.name);
}

static tn_status find_sequence(tn_session *s, int32_t seq, tn__sequence **out) {
    if (!s || seq < 0 || seq >= s->plan->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->plan->params.embeddings) return tn_fail(TN_E_STATE, "the session makes embeddings, not text");
    TN_TRY(check_causal(s));
    if (!s->plan->model->tokenizer) return tn_fail(TN_E_STATE, "the model has no tokenizer");
    if (!s->sequences) {
        s->sequences = tn_calloc((size_t)s->plan->params.n_seqs, sizeof *s->sequences);
        if (!s->sequences) return TN_E_NOMEM;
    }
    tn__sequence *sequence = &s->sequences[seq];
    if (!sequence->generator)
        TN_TRY(tn_generator_new(s->plan->model->tokenizer, &(tn_generator_params){.decode_flags = TN_DECODE_CONTINUE},
                                &sequence->generator));
    if (!sequence->logits && !(sequence->logits = tn_calloc((size_t)s->plan->model->h.n_vocab, sizeof(float))))
        return TN_E_NOMEM;
    *out = sequence;
    return TN_OK;
}

static void free_guessing(struct guessing *g) {
    if (!g) return;
    tn_free(g->rows);
    tn_free(g->tokens);
    tn_free(g);
}

void tn__sequences_free(tn_session *s) {
    for (int32_t i = 0; s->sequences && i < s->plan->params.n_seqs; i++) {
        tn_generator_free(s->sequences[i].generator);
        tn_free(s->sequences[i].logits);
        free_guessing(s->sequences[i].guessing);
    }
    tn_free(s->sequences);
}

static void keep_logits(tn_session *s, tn__sequence *sequence) {
    memcpy(sequence->logits, tn_session_logits(s, -1), (size_t)s->plan->model->h.n_vocab * sizeof(float));
}

/* ---- Guesses ---- */

static tn_status begin_guessing(const tn_session *s, struct guessing **out) {
    const size_t rows = 1 + (size_t)s->plan->params.n_guess, vocab = (size_t)s->plan->model->h.n_vocab;
    struct guessing *g = tn_calloc(1, sizeof *g);
    if (!g) return TN_E_NOMEM;
    g->rows = tn_malloc(rows * vocab * sizeof *g->rows);
    g->tokens = tn_malloc((size_t)s->plan->params.n_ctx * sizeof *g->tokens);
    if (!g->rows || !g->tokens) {
        free_guessing(g);
        return TN_E_NOMEM;
    }
    *out = g;
    return TN_OK;
}

/* The earlier tokens of the sequence are known only if all of them were added by this file. */
static tn_status note_prompt(tn_session *s, int32_t seq, tn__sequence *sequence, const tn_token *tokens, int32_t n) {
    if (!sequence->guessing) TN_TRY(begin_guessing(s, &sequence->guessing));
    struct guessing *g = sequence->guessing;
    const int32_t held = tn_session_seq_last(s, seq) + 1;
    if (held - n != g->n_tokens) {
        tn_speculator_forget(s->speculator, seq);
        g->n_tokens = held == n ? 0 : -1;
    }
    if (g->n_tokens < 0 || g->n_tokens + n > s->plan->params.n_ctx) {
        g->n_tokens = -1; /* no guesses */
        return TN_OK;
    }
    memcpy(g->tokens + g->n_tokens, tokens, (size_t)n * sizeof *tokens);
    g->n_tokens += n;
    return TN_OK;
}

void tn_session_set_speculator(tn_session *s, tn_speculator *speculator) {
    if (!s) return;
    for (int32_t i = 0; s->sequences && i < s->plan->params.n_seqs; i++) (void)tn_session_settle(s, i);
    s->speculator = speculator;
}

/* Ends the verification of the last guesses. `keeps`: the next token is sampled later, from the row after the last
 * one. */
static tn_status end_check(tn_session *s, int32_t seq, tn__sequence *sequence, bool keeps) {
    struct guessing *g = sequence->guessing;
    const size_t vocab = (size_t)s->plan->model->h.n_vocab;
    if (!g->open) return TN_OK;
    g->open = false;
    if (keeps) memcpy(sequence->logits, g->rows + (size_t)(g->at + 1) * vocab, vocab * sizeof *g->rows);
    g->guess.at = g->at;
    tn_speculator_checked(s->speculator, &g->guess, g->n_right);
    return g->n_right < g->guess.n
               ? tn_session_seq_take_branch(s, seq, tn_guess_branch(&g->guess, g->at), g->n_tokens)
               : TN_OK;
}

tn_status tn_session_settle(tn_session *s, int32_t seq) {
    if (!s || seq < 0 || seq >= s->plan->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (!s->sequences || !s->sequences[seq].guessing || !s->speculator) return TN_OK;
    return end_check(s, seq, &s->sequences[seq], true);
}

void tn__guessing_shift(tn_session *s, int32_t seq, int32_t from, int32_t to) {
    struct guessing *g = s->sequences ? s->sequences[seq].guessing : NULL;
    if (!g || g->n_tokens < to) return;
    memmove(g->tokens + from, g->tokens + to, (size_t)(g->n_tokens - to) * sizeof *g->tokens);
    g->n_tokens -= to - from;
    tn_speculator_forget(s->speculator, seq);
}

/* Decodes the token and the guess that follows it. */
static tn_status decode_guess(tn_session *s, int32_t seq, tn_sampler *sampler, struct guessing *g, tn_token token) {
    const int32_t held = g->n_tokens, left = s->plan->params.n_ctx - 2 - held;
    tn_token tokens[1 + TN_GUESS_MOST];
    int32_t seqs[1 + TN_GUESS_MOST];
    int32_t parents[1 + TN_GUESS_MOST];
    bool outputs[1 + TN_GUESS_MOST], guesses[1 + TN_GUESS_MOST];
    g->tokens[held] = token;
    g->guess = (tn_guess){.seq = seq,
                          .tokens = g->tokens,
                          .n_tokens = held + 1,
                          .room = TN__MAX(TN__MIN(left, s->plan->params.n_guess), 0),
                          .sampler = sampler};
    TN_TRY(tn_speculator_propose(s->speculator, &g->guess, 1));
    int32_t n = 1 + g->guess.n;
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = i ? g->guess.guess[i - 1] : token;
        seqs[i] = seq;
        outputs[i] = true;
        guesses[i] = i > 0;
        parents[i] = i && g->guess.tree ? g->guess.parents[i - 1] + 1 : -1;
    }
    tn_batch batch = {.n_tokens = n,
                      .tokens = tokens,
                      .seqs = seqs,
                      .outputs = outputs,
                      .guesses = guesses,
                      .parents = g->guess.tree ? parents : NULL};
    tn_status status = tn_session_decode(s, &batch);
    if (status == TN_E_FULL && n > 1) { /* the guess does not fit */
        batch.n_tokens = n = 1;
        batch.parents = NULL;
        g->guess.n = 0;
        status = tn_session_decode(s, &batch);
    }
    TN_TRY(status);
    const size_t vocab = (size_t)s->plan->model->h.n_vocab;
    for (int32_t i = 0; i < n; i++)
        memcpy(g->rows + (size_t)i * vocab, tn_session_logits(s, i), vocab * sizeof *g->rows);
    g->n_tokens = held + 1;
    g->n_right = 0;
    g->at = -1;
    g->open = true;
    return TN_OK;
}

/* Whether the tokens of the sequence are known, and one more fits. False after a context shift. */
static bool knows_tokens(const tn_session *s, int32_t seq, const struct guessing *g) {
    if (!g || g->n_tokens < 1 || g->n_tokens >= s->plan->params.n_ctx) return false;
    int32_t line = 0; /* of a guess that is open, in the sequence's own list */
    for (int32_t i = 0; g->open && i < g->guess.n; i++) line += tn_guess_branch(&g->guess, i) == 0;
    return tn_session_seq_last(s, seq) + 1 == g->n_tokens + (g->open ? line - g->n_right : 0);
}

/* Samples from the row after the last token; decodes the token first unless it was guessed. */
static tn_status next_guessed(tn_session *s, int32_t seq, tn__sequence *sequence, tn_sampler *sampler,
                              tn_token *token) {
    struct guessing *g = sequence->guessing;
    const size_t vocab = (size_t)s->plan->model->h.n_vocab;
    if (!sequence->pending) {
        const float *row = g->open ? g->rows + (size_t)(g->at + 1) * vocab : sequence->logits;
        tn_generator_set_sampler(sequence->generator, sampler);
        const tn_status status = tn_generator_sample_logits(sequence->generator, row, vocab);
        if (status == TN_END) TN_TRY(end_check(s, seq, sequence, true));
        TN_TRY(status);
    }
    const tn_token next = tn_generator_token(sequence->generator);
    const int32_t found = g->open && !sequence->pending ? tn_guess_find(&g->guess, g->at, next) : -1;
    if (found >= 0) {
        g->tokens[g->n_tokens++] = next;
        g->n_right++;
        g->at = found;
    } else {
        sequence->pending = true;
        TN_TRY(end_check(s, seq, sequence, false));
        TN_TRY(decode_guess(s, seq, sampler, g, next));
        sequence->pending = false;
    }
    if (token) *token = next;
    return TN_OK;
}

/* ---- Prompts and tokens ---- */

tn_status tn_session_prompt_tokens(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n) {
    tn__sequence *sequence = NULL;
    TN_TRY(find_sequence(s, seq, &sequence));
    if (!tokens || n < 1) return tn_fail(TN_E_INVALID, "the prompt has no tokens");
    TN_TRY(tn_session_settle(s, seq));
    tn_generator_restart(sequence->generator);
    sequence->pending = false;
    for (int32_t begin = 0; begin < n; begin += s->plan->params.n_batch) {
        int32_t count = TN__MIN(s->plan->params.n_batch, n - begin);
        for (int32_t i = 0; i < count; i++) s->staging.prompt_seqs[i] = seq;
        tn_batch batch = {.n_tokens = count, .tokens = tokens + begin, .seqs = s->staging.prompt_seqs};
        TN_TRY(tn_session_decode(s, &batch));
    }
    keep_logits(s, sequence);
    if (s->speculator) TN_TRY(note_prompt(s, seq, sequence, tokens, n));
    return TN_OK;
}

tn_status tn_session_prompt(tn_session *s, int32_t seq, const char *text, int64_t length) {
    tn__sequence *sequence = NULL;
    TN_TRY(find_sequence(s, seq, &sequence));
    if (!text) return tn_fail(TN_E_INVALID, "the prompt is NULL");
    tn_tokens tokens = {0};
    bool first = tn_session_seq_last(s, seq) < 0;
    TN_TRY(tn_tokenizer_encode(s->plan->model->tokenizer, text, length < 0 ? strlen(text) : (size_t)length,
                               first ? TN_ENCODE_ADD_SPECIAL : TN_ENCODE_CONTINUE, &tokens));
    tn_status status = tokens.count > INT32_MAX ? tn_fail(TN_E_TOO_BIG, "the prompt has %zu tokens", tokens.count)
                                                : tn_session_prompt_tokens(s, seq, tokens.ids, (int32_t)tokens.count);
    tn_tokens_free(&tokens);
    return status;
}

tn_status tn_session_next(tn_session *s, int32_t seq, tn_sampler *sampler, tn_token *token) {
    tn__sequence *sequence = NULL;
    if (token) *token = TN_TOKEN_NONE;
    TN_TRY(find_sequence(s, seq, &sequence));
    if (s->speculator && knows_tokens(s, seq, sequence->guessing))
        return next_guessed(s, seq, sequence, sampler, token);
    TN_TRY(tn_session_settle(s, seq));
    if (!sequence->pending) {
        tn_generator_set_sampler(sequence->generator, sampler);
        TN_TRY(tn_generator_sample_logits(sequence->generator, sequence->logits, (size_t)s->plan->model->h.n_vocab));
    }
    const tn_token next = tn_generator_token(sequence->generator);
    tn_batch batch = {.n_tokens = 1, .tokens = &next, .seqs = &seq};
    sequence->pending = true;
    TN_TRY(tn_session_decode(s, &batch));
    sequence->pending = false;
    keep_logits(s, sequence);
    if (token) *token = next;
    return TN_OK;
}

const char *tn_session_text(tn_session *s, int32_t seq) {
    if (!s || !s->sequences || seq < 0 || seq >= s->plan->params.n_seqs || !s->sequences[seq].generator) return "";
    return tn_generator_text(s->sequences[seq].generator, NULL);
}

tn_status tn_session_score(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n, tn_logits_fn fn,
                           void *user) {
    if (!s || !tokens || n < 1 || !fn) return tn_fail(TN_E_INVALID, "tn_session_score: NULL argument or no tokens");
    if (seq < 0 || seq >= s->plan->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    if (s->plan->params.embeddings) return tn_fail(TN_E_STATE, "the session makes embeddings, not logits");
    TN_TRY(check_causal(s));
    int32_t step = TN__MIN(s->plan->params.n_outputs, s->plan->params.n_batch),
            position = tn_session_seq_last(s, seq) + 1;
    for (int32_t begin = 0; begin < n; begin += step) {
        int32_t count = TN__MIN(step, n - begin);
        for (int32_t i = 0; i < count; i++) {
            s->staging.prompt_seqs[i] = seq;
            s->staging.score_wanted[i] = true;
        }
        tn_batch batch = {.n_tokens = count,
                          .tokens = tokens + begin,
                          .seqs = s->staging.prompt_seqs,
                          .outputs = s->staging.score_wanted};
        TN_TRY(tn_session_decode(s, &batch));
        for (int32_t i = 0; i < count; i++)
            if (!fn(user, position + begin + i, tn_session_logits(s, i), s->plan->model->h.n_vocab))
                return tn_fail(TN_E_ABORTED, "scoring was stopped");
    }
    return TN_OK;
}
