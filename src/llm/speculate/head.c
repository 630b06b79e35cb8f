/* Heads: from the model's hidden state after a token and the next token, a head predicts the token after that, and
 * computes the hidden state for the following prediction. It is a layer for multi-token prediction, which reads the
 * state before the output matrix, or an EAGLE-3 head, which reads the states before several layers.
 *
 * The head has its own session. Its cache entry at position i is computed from token i and the hidden state after
 * token i - 1, as soon as token i is known. Every decode of the model returns hidden states; they are queued here
 * until the head is asked for guesses, or until there are many. Entries of guesses are replaced by those of the text.
 */
#include "llm/speculate/proposer.h"

#include "base/checked.h"
#include "llm/speculate/vocabulary_map.h"

#include <math.h>
#include <string.h>

/* Max queued states of a sequence, besides those of a guess. */
enum { WAITING = 64 };

typedef struct head_sequence {
    /* Tokens at the positions first … first + n - 1 and the states after them. The head's entries up to `first` are
     * made. */
    int32_t first, n;
    tn_token *tokens;
    float *states;
    int32_t row; /* of the head's last decode; -1: its guess has ended */
    int32_t at;  /* its first token in the last batch of the model */
    float all;
    tn__alternatives others; /* for trees */
    tn__drawer drawer;
} head_sequence;

typedef struct head_proposer {
    tn__proposer base;
    tn_session *session, *head;
    head_sequence *sequences;
    int32_t n_seqs, n_vocab, room; /* room: max queued states of a sequence */
    int32_t n_branches;            /* of the session that verifies */
    /* Floats of the model's state, and where the head's own state is in a row of its batch: in place of the model's,
     * or after it, and then the other one is zeros. */
    size_t width, own_at, own_width, row_width;
    /* Of a head that guesses only some tokens: the model's tokens, and a row of logits with -inf for the others. */
    tn_token *tokens_of;
    float *logits;
    char *block;
    /* The head's batch. */
    tn_token *tokens;
    int32_t *positions, *seqs, n, n_batch;
    float *states;
    bool *outputs;
    bool failed; /* in an observed decode: reported with the next proposal */
} head_proposer;

static void forget_entries(head_proposer *p, int32_t seq) {
    head_sequence *q = &p->sequences[seq];
    if (tn_session_seq_last(p->head, seq) >= 0) (void)tn_session_seq_remove(p->head, seq, 0, -1);
    q->first = q->n = 0;
    q->row = -1;
}

/* ---- The head's batch ---- */

/* Rows are numbered in the order of their outputs. */
static tn_status run_head(head_proposer *p) {
    if (!p->n) return TN_OK;
    const tn_batch batch = {.n_tokens = p->n,
                            .tokens = p->tokens,
                            .positions = p->positions,
                            .seqs = p->seqs,
                            .states = p->states,
                            .outputs = p->outputs};
    const tn_status status = tn_session_decode(p->head, &batch);
    int32_t row = 0;
    for (int32_t i = 0; i < p->n && status == TN_OK; i++)
        if (p->outputs[i]) p->sequences[p->seqs[i]].row = row++;
    p->n = 0;
    return status;
}

/* `own`: the state is the head's, of a guessed token. */
static tn_status add_head_entry(head_proposer *p, int32_t seq, int32_t position, tn_token token, const float *state,
                                bool own, bool output) {
    if (p->n == p->n_batch) TN_TRY(run_head(p));
    p->tokens[p->n] = token;
    p->positions[p->n] = position;
    p->seqs[p->n] = seq;
    p->outputs[p->n] = output;
    float *row = p->states + (size_t)p->n * p->row_width;
    if (p->own_at) memset(row, 0, p->row_width * sizeof *row);
    memcpy(row + (own ? p->own_at : 0), state, (own ? p->own_width : p->width) * sizeof *state);
    p->n++;
    return TN_OK;
}

/* Adds the entries of queued tokens; the last state stays queued until its token is known. */
static tn_status add_waiting(head_proposer *p, int32_t seq) {
    head_sequence *q = &p->sequences[seq];
    if (q->n < 1) return TN_OK;
    if (tn_session_seq_last(p->head, seq) > q->first) /* those that guesses made */
        TN_TRY(tn_session_seq_remove(p->head, seq, q->first + 1, -1));
    for (int32_t i = 1; i < q->n; i++)
        TN_TRY(
            add_head_entry(p, seq, q->first + i, q->tokens[i], q->states + (size_t)(i - 1) * p->width, false, false));
    memmove(q->states, q->states + (size_t)(q->n - 1) * p->width, p->width * sizeof *q->states);
    q->tokens[0] = q->tokens[q->n - 1];
    q->first += q->n - 1;
    q->n = 1;
    return TN_OK;
}

/* ---- Following the model ---- */

/* `prompt`: the head processes prompts along with the model. If it was not asked for guesses for many generated
 * tokens, it skips them: its cache is cleared and begins with the current token. */
static tn_status observe_token(head_proposer *p, int32_t seq, int32_t position, tn_token token, const float *state,
                               bool prompt) {
    head_sequence *q = &p->sequences[seq];
    if (position < q->first || position > q->first + q->n || !state) { /* another text, or one with a gap */
        forget_entries(p, seq);
        q->first = position;
    }
    q->n = position - q->first; /* drops rejected guesses */
    if (q->n == p->room && prompt) TN_TRY(add_waiting(p, seq));
    if (q->n == p->room) {
        forget_entries(p, seq);
        q->first = position;
    }
    q->tokens[q->n] = token;
    memcpy(q->states + (size_t)q->n * p->width, state, p->width * sizeof *state);
    q->n++;
    return TN_OK;
}

static void observe_decode(void *user, const tn_batch *b) {
    head_proposer *p = user;
    const tn__staging *g = &p->session->staging;
    if (p->base.paused) return; /* what follows has a gap and begins anew */
    const bool prompt = b->n_tokens > p->n_seqs * (1 + p->session->plan->params.n_guess);
    tn_status status = TN_OK;
    p->n = 0;
    for (int32_t i = 0; i < b->n_tokens && status == TN_OK; i++) {
        const int32_t seq = g->seqs[i];
        if (!i || seq != g->seqs[i - 1]) p->sequences[seq].at = i;
        if (!tn_session_state(p->session, i) || (b->parents && g->lists[i] != seq)) continue; /* a branch */
        status = observe_token(p, seq, g->positions[i], b->tokens[i], tn_session_state(p->session, i), prompt);
    }
    if (status == TN_OK) status = run_head(p);
    p->failed = p->failed || status != TN_OK;
}

/* ---- Guessing ---- */

/* The entry of the sampled token, after the queued ones. */
static tn_status begin_guess(head_proposer *p, const tn_guess *g) {
    head_sequence *q = &p->sequences[g->seq];
    const int32_t last = g->n_tokens - 1;
    q->row = -1;
    q->all = 1;
    if (!g->room || q->n < 1 || last <= q->first || last > q->first + q->n) return TN_OK; /* its state is unknown */
    q->n = last - q->first;
    TN_TRY(add_waiting(p, g->seq));
    TN_TRY(tn__drawer_follow(&q->drawer, g, true));
    return add_head_entry(p, g->seq, last, g->tokens[last], q->states, false, true);
}

static tn_token token_of(const head_proposer *p, tn_token own) { return p->tokens_of ? p->tokens_of[own] : own; }

/* Draws a token of the model. A sampler sees all of them. */
static tn_status draw_head_token(head_proposer *p, head_sequence *q, const float *row, tn_token *token, tn_token *own,
                                 float *prob) {
    *own = -1;
    if (!p->tokens_of || !q->drawer.sampler) {
        TN_TRY(tn__drawer_draw(&q->drawer, row, p->n_vocab, own, prob));
        *token = token_of(p, *own);
        return TN_OK;
    }
    for (int32_t i = 0; i < p->n_vocab; i++) p->logits[p->tokens_of[i]] = row[i];
    TN_TRY(tn__drawer_draw(&q->drawer, p->logits, p->session->plan->model->h.n_vocab, token, prob));
    for (int32_t i = 0; p->n_branches && i < p->n_vocab; i++)
        if (p->tokens_of[i] == *token) *own = i;
    return TN_OK;
}

/* Draws the next token of a guess, and adds its entry if the guess continues. */
static tn_status extend_guess(head_proposer *p, tn_guess *g, int32_t index, const tn__guess_limit *limit,
                              bool *goes_on) {
    head_sequence *q = &p->sequences[g->seq];
    const tn_tokenizer *tokenizer = p->session->plan->model->tokenizer;
    const float *row = tn_session_logits(p->head, q->row);
    tn_token token, own;
    float prob;
    *goes_on = false;
    if (!row) return tn_fail(TN_E_STATE, "the head returned no logits");
    TN_TRY(draw_head_token(p, q, row, &token, &own, &prob));
    q->row = -1;
    if (!tn__guess_keeps(limit, g->n, prob, &q->all)) return TN_OK;
    if (p->n_branches) {
        const tn_token other = tn__row_other(row, p->n_vocab, own, &q->others.probs[g->n]);
        q->others.tokens[g->n] = token_of(p, other);
    }
    g->guess[g->n] = token;
    g->probs[g->n++] = prob;
    *goes_on =
        g->n < g->room && tn__guess_goes_on(limit, q->all) && !(tokenizer && tn_token_is_end(tokenizer, token));
    if (!*goes_on) return TN_OK;
    const float *state = tn_session_state(p->head, index);
    if (!state) return tn_fail(TN_E_STATE, "the head returned no hidden state");
    return add_head_entry(p, g->seq, g->n_tokens - 1 + g->n, token, state, true, true);
}

static tn_status head_propose(tn__proposer *proposer, tn_guess *guesses, int32_t n, const tn__guess_limit *limit) {
    head_proposer *p = (head_proposer *)proposer;
    if (p->failed) return tn_fail(TN_E_STATE, "the head could not follow the model");
    p->n = 0;
    for (int32_t i = 0; i < n; i++)
        if (guesses[i].seq >= 0 && guesses[i].seq < p->n_seqs) TN_TRY(begin_guess(p, &guesses[i]));
    while (p->n) {
        int32_t of_row[TN__STEP_ROWS] = {0}, n_rows = 0; /* indices in the batch: states are of all tokens */
        for (int32_t i = 0; i < p->n && n_rows < TN__STEP_ROWS; i++)
            if (p->outputs[i]) of_row[n_rows++] = i;
        TN_TRY(run_head(p));
        for (int32_t i = 0; i < n; i++) {
            const int32_t row = p->sequences[guesses[i].seq].row;
            bool goes_on;
            if (guesses[i].room && row >= 0 && row < n_rows)
                TN_TRY(extend_guess(p, &guesses[i], of_row[row], limit, &goes_on));
        }
    }
    for (int32_t i = 0; i < n && p->n_branches >= n; i++)
        if (guesses[i].n)
            tn__add_alternatives(limit, &p->sequences[guesses[i].seq].others, &guesses[i], p->n_branches / n);
    return TN_OK;
}

/* The path of a tree that was accepted: only the first one was queued. */
static void head_checked(tn__proposer *proposer, const tn_guess *g) {
    head_proposer *p = (head_proposer *)proposer;
    head_sequence *q = &p->sequences[g->seq];
    int32_t depth = 0;
    if (!g->tree || g->at < 0 || !tn_guess_branch(g, g->at)) return;
    for (int32_t i = g->at; i >= 0; i = g->parents[i]) depth++;
    const int32_t last = g->n_tokens - 1 + depth - q->first; /* index in the queue */
    if (last >= p->room || last < depth || last - depth >= q->n) return;
    q->n = last + 1;
    for (int32_t i = g->at, to = last; i >= 0 && to >= 0; i = g->parents[i], to--) {
        const float *state = tn_session_state(p->session, q->at + 1 + i);
        if (state) memcpy(q->states + (size_t)to * p->width, state, p->width * sizeof *state);
        q->tokens[to] = g->guess[i];
    }
}

static void head_forget(tn__proposer *proposer, int32_t seq) {
    head_proposer *p = (head_proposer *)proposer;
    if (seq < 0 || seq >= p->n_seqs) return;
    forget_entries(p, seq);
    tn__drawer_free(&p->sequences[seq].drawer);
}

/* ---- Creation ---- */

static void head_free(tn__proposer *proposer) {
    head_proposer *p = (head_proposer *)proposer;
    if (p->session->observer_user == p) p->session->observer = NULL;
    for (int32_t i = 0; p->sequences && i < p->n_seqs; i++) tn__drawer_free(&p->sequences[i].drawer);
    tn_free(p->sequences);
    tn_free(p->block);
    tn_free(p->tokens_of);
    tn_free(p->logits);
    tn_free(p);
}

static const tn__proposer_class head_class = {
    .propose = head_propose, .checked = head_checked, .forget = head_forget, .free = head_free, .costly = true};

/* A layer for multi-token prediction. */
static tn_status check_layer(const tn_session *session, const tn_session *head) {
    const tn_model *m = session->plan->model, *h = head->plan->model;
    if (!h->h.head_layer)
        return tn_fail(TN_E_INVALID, "multi-token prediction needs a session of a head (tn_model_params.head)");
    if (session->plan->params.n_state_layers)
        return tn_fail(TN_E_INVALID,
                       "the model's session returns the states of layers: leave out params.state_layers");
    if (m->h.n_embd != h->h.n_embd || m->h.n_vocab != h->h.n_vocab)
        return tn_fail(TN_E_INVALID, "%s is a head for a model of width %d with %d tokens; %s has %d and %d",
                       tn_gguf_path(h->file), h->h.n_embd, h->h.n_vocab, tn_gguf_path(m->file), m->h.n_embd,
                       m->h.n_vocab);
    return TN_OK;
}

static tn_status check_eagle3(const tn_session *session, const tn_session *head) {
    const tn_model *m = session->plan->model, *h = head->plan->model;
    const tn_session_params *p = &session->plan->params;
    if (!h->h.n_target_layers) return tn_fail(TN_E_INVALID, "%s is not an EAGLE-3 head", tn_gguf_path(h->file));
    TN_TRY(tn__check_target(h, m));
    if (p->n_state_layers != h->h.n_target_layers ||
        memcmp(p->state_layers, h->h.target_layers, (size_t)p->n_state_layers * sizeof *p->state_layers) != 0)
        return tn_fail(TN_E_INVALID,
                       "%s reads the states before layers %d, %d and %d, which the session of its model does not "
                       "return: set params.state_layers (tn_model_target_layers)",
                       tn_gguf_path(h->file), h->h.target_layers[0], h->h.target_layers[1], h->h.target_layers[2]);
    if (m->tokenizer && h->tokenizer && !tn__vocabulary_same(m->tokenizer, h->tokenizer))
        return tn_fail(TN_E_INVALID,
                       "%s is a head for another vocabulary than that of %s: the texts of tokens differ",
                       tn_gguf_path(h->file), tn_gguf_path(m->file));
    return TN_OK;
}

static tn_status check_head(const tn_session *session, const tn_spec_params *params) {
    const tn_session *head = params->draft;
    if (!head) return tn_fail(TN_E_INVALID, "there is no session of a head");
    TN_TRY((params->kind == TN_SPEC_EAGLE3 ? check_eagle3 : check_layer)(session, head));
    if (!session->plan->params.states || !head->plan->params.states)
        return tn_fail(TN_E_INVALID, "the model's session or the head's returns no hidden states: set params.states");
    if (head->plan->params.n_seqs < session->plan->params.n_seqs ||
        head->plan->params.n_outputs < session->plan->params.n_seqs)
        return tn_fail(TN_E_INVALID, "the head's session has %d sequences; %d are needed", head->plan->params.n_seqs,
                       session->plan->params.n_seqs);
    return TN_OK;
}

/* The model's tokens, from the tensor d2t: each of them once. */
static tn_status read_guessed_tokens(head_proposer *p) {
    const tn_model *head = p->head->plan->model;
    const tn_gguf_tensor *list = tn_gguf_find_tensor(head->file, "d2t");
    const int32_t n = p->n_vocab, n_model = p->session->plan->model->h.n_vocab;
    if (!list || !head->h.n_text_vocab) return TN_OK;
    const size_t each = list->type == TN_I64 ? 8 : 4;
    p->tokens_of = tn_malloc((size_t)n * sizeof *p->tokens_of);
    p->logits = tn_malloc((size_t)n_model * sizeof *p->logits);
    if (!p->tokens_of || !p->logits) return TN_E_NOMEM;
    p->base.bytes += (size_t)n * sizeof *p->tokens_of + (size_t)n_model * sizeof *p->logits;
    for (int32_t i = 0; i < n_model; i++) p->logits[i] = 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t wide = 0;
        int32_t narrow;
        TN_TRY(tn_gguf_read(head->file, list, (size_t)i * each, each == 8 ? (void *)&wide : &narrow, each));
        if (each == 4) wide = narrow;
        if (wide < 0 || wide >= n_model)
            return tn_fail(TN_E_FORMAT, "%s: entry %d of d2t is token %lld; the model has %d",
                           tn_gguf_path(head->file), i, (long long)wide, n_model);
        if (p->logits[wide] != 0)
            return tn_fail(TN_E_FORMAT, "%s: d2t has token %lld twice", tn_gguf_path(head->file), (long long)wide);
        p->logits[wide] = 1;
        p->tokens_of[i] = (tn_token)wide;
    }
    for (int32_t i = 0; i < n_model; i++) p->logits[i] = -INFINITY;
    return TN_OK;
}

/* One block for all arrays. */
static tn_status take_block(head_proposer *p) {
    const size_t b = (size_t)p->n_batch, n = (size_t)p->n_seqs, room = (size_t)p->room;
    const size_t floats = b * p->row_width + n * room * p->width, words = 3 * b + n * room;
    p->base.bytes = sizeof *p + n * sizeof *p->sequences + (floats + words) * sizeof(float) + b;
    p->sequences = tn_calloc(n, sizeof *p->sequences);
    p->block = tn_calloc(1, (floats + words) * sizeof(float) + b);
    if (!p->sequences || !p->block) return TN_E_NOMEM;
    p->states = (float *)(void *)p->block;
    float *states = p->states + b * p->row_width;
    p->tokens = (tn_token *)(void *)(states + n * room * p->width);
    p->positions = p->tokens + b;
    p->seqs = p->positions + b;
    for (size_t i = 0; i < n; i++)
        p->sequences[i] =
            (head_sequence){.tokens = p->seqs + b + i * room, .states = states + i * room * p->width, .row = -1};
    p->outputs = (bool *)(void *)(p->seqs + b + n * room);
    return TN_OK;
}

tn_status tn__head_new(tn_session *session, const tn_spec_params *params, tn__proposer **out) {
    TN_TRY(check_head(session, params));
    head_proposer *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->base.class = &head_class;
    p->session = session;
    p->head = params->draft;
    p->n_seqs = session->plan->params.n_seqs;
    p->n_vocab = p->head->plan->model->h.n_vocab;
    p->room = WAITING + session->plan->params.n_guess + 1;
    p->n_branches = session->branches.n;
    p->width = (size_t)tn__state_row(session->plan);
    p->row_width = (size_t)tn__states_width(&p->head->plan->model->h);
    p->own_width = (size_t)p->head->plan->model->h.n_embd;
    p->own_at = p->row_width - p->own_width;
    p->n_batch = p->head->plan->params.n_batch;
    tn_status status = take_block(p) == TN_OK ? read_guessed_tokens(p) : TN_E_NOMEM;
    if (status != TN_OK) {
        head_free(&p->base);
        return status;
    }
    session->observer = observe_decode;
    session->observer_user = p;
    *out = &p->base;
    return TN_OK;
}
