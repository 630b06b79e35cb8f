/* Multi-token prediction: from the model's hidden state after a token and the next token, a head predicts the token
 * after that, and computes the hidden state for the following prediction.
 *
 * The head has its own session. Its cache entry at position i is computed from token i and the hidden state after
 * token i - 1, as soon as token i is known. Every decode of the model returns hidden states; they are queued here
 * until the head is asked for guesses, or until there are many. Entries of guesses are replaced by those of the text.
 */
#include "llm/speculate/proposer.h"

#include "base/checked.h"

#include <string.h>

/* Max queued states of a sequence, besides those of a guess. */
enum { WAITING = 64 };

typedef struct mtp_sequence {
    /* Tokens at the positions first … first + n - 1 and the states after them. The head's entries up to `first` are
     * made. */
    int32_t first, n;
    tn_token *tokens;
    float *states;
    int32_t row; /* of the head's last decode; -1: its guess has ended */
    float all;
    tn__drawer drawer;
} mtp_sequence;

typedef struct mtp_proposer {
    tn__proposer base;
    tn_session *session, *head;
    mtp_sequence *sequences;
    int32_t n_seqs, n_vocab, room; /* room: max queued states of a sequence */
    size_t width;
    char *block;
    /* The head's batch. */
    tn_token *tokens;
    int32_t *positions, *seqs, n, n_batch;
    float *states;
    bool *outputs;
    bool failed; /* in an observed decode: reported with the next proposal */
} mtp_proposer;

static void forget_entries(mtp_proposer *p, int32_t seq) {
    mtp_sequence *q = &p->sequences[seq];
    if (tn_session_seq_last(p->head, seq) >= 0) (void)tn_session_seq_remove(p->head, seq, 0, -1);
    q->first = q->n = 0;
    q->row = -1;
}

/* ---- The head's batch ---- */

/* Rows are numbered in the order of their outputs. */
static tn_status run_head(mtp_proposer *p) {
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

static tn_status add_head_entry(mtp_proposer *p, int32_t seq, int32_t position, tn_token token, const float *state,
                                bool output) {
    if (p->n == p->n_batch) TN_TRY(run_head(p));
    p->tokens[p->n] = token;
    p->positions[p->n] = position;
    p->seqs[p->n] = seq;
    p->outputs[p->n] = output;
    memcpy(p->states + (size_t)p->n * p->width, state, p->width * sizeof *state);
    p->n++;
    return TN_OK;
}

/* Adds the entries of queued tokens; the last state stays queued until its token is known. */
static tn_status add_waiting(mtp_proposer *p, int32_t seq) {
    mtp_sequence *q = &p->sequences[seq];
    if (q->n < 1) return TN_OK;
    if (tn_session_seq_last(p->head, seq) > q->first) /* those that guesses made */
        TN_TRY(tn_session_seq_remove(p->head, seq, q->first + 1, -1));
    for (int32_t i = 1; i < q->n; i++)
        TN_TRY(add_head_entry(p, seq, q->first + i, q->tokens[i], q->states + (size_t)(i - 1) * p->width, false));
    memmove(q->states, q->states + (size_t)(q->n - 1) * p->width, p->width * sizeof *q->states);
    q->tokens[0] = q->tokens[q->n - 1];
    q->first += q->n - 1;
    q->n = 1;
    return TN_OK;
}

/* ---- Following the model ---- */

/* `prompt`: the head processes prompts along with the model. If it was not asked for guesses for many generated
 * tokens, it skips them: its cache is cleared and begins with the current token. */
static tn_status observe_token(mtp_proposer *p, int32_t seq, int32_t position, tn_token token, const float *state,
                               bool prompt) {
    mtp_sequence *q = &p->sequences[seq];
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
    mtp_proposer *p = user;
    const tn__staging *g = &p->session->staging;
    const bool prompt = b->n_tokens > p->n_seqs * (1 + p->session->plan->params.n_guess);
    tn_status status = TN_OK;
    p->n = 0;
    for (int32_t i = 0; i < b->n_tokens && status == TN_OK; i++)
        if (tn_session_state(p->session, i))
            status =
                observe_token(p, g->seqs[i], g->positions[i], b->tokens[i], tn_session_state(p->session, i), prompt);
    if (status == TN_OK) status = run_head(p);
    p->failed = p->failed || status != TN_OK;
}

/* ---- Guessing ---- */

/* The entry of the sampled token, after the queued ones. */
static tn_status begin_guess(mtp_proposer *p, const tn_guess *g) {
    mtp_sequence *q = &p->sequences[g->seq];
    const int32_t last = g->n_tokens - 1;
    q->row = -1;
    q->all = 1;
    if (!g->room || q->n < 1 || last <= q->first || last > q->first + q->n) return TN_OK; /* its state is unknown */
    q->n = last - q->first;
    TN_TRY(add_waiting(p, g->seq));
    TN_TRY(tn__drawer_follow(&q->drawer, g, p->n_vocab == p->session->plan->model->h.n_vocab));
    return add_head_entry(p, g->seq, last, g->tokens[last], q->states, true);
}

/* Draws the next token of a guess, and adds its entry if the guess continues. */
static tn_status extend_guess(mtp_proposer *p, tn_guess *g, int32_t index, const tn__guess_limit *limit,
                              bool *goes_on) {
    mtp_sequence *q = &p->sequences[g->seq];
    const tn_tokenizer *tokenizer = p->session->plan->model->tokenizer;
    tn_token token;
    float prob;
    *goes_on = false;
    TN_TRY(tn__drawer_draw(&q->drawer, tn_session_logits(p->head, q->row), p->n_vocab, &token, &prob));
    q->row = -1;
    if (!tn__guess_keeps(limit, g->n, prob, &q->all)) return TN_OK;
    g->guess[g->n] = token;
    g->probs[g->n++] = prob;
    *goes_on =
        g->n < g->room && tn__guess_goes_on(limit, q->all) && !(tokenizer && tn_token_is_end(tokenizer, token));
    if (!*goes_on) return TN_OK;
    const float *state = tn_session_state(p->head, index);
    if (!state) return tn_fail(TN_E_STATE, "the head returned no hidden state");
    return add_head_entry(p, g->seq, g->n_tokens - 1 + g->n, token, state, true);
}

static tn_status mtp_propose(tn__proposer *proposer, tn_guess *guesses, int32_t n, const tn__guess_limit *limit) {
    mtp_proposer *p = (mtp_proposer *)proposer;
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
    return TN_OK;
}

static void mtp_forget(tn__proposer *proposer, int32_t seq) {
    mtp_proposer *p = (mtp_proposer *)proposer;
    if (seq < 0 || seq >= p->n_seqs) return;
    forget_entries(p, seq);
    tn__drawer_free(&p->sequences[seq].drawer);
}

/* ---- Creation ---- */

static void mtp_free(tn__proposer *proposer) {
    mtp_proposer *p = (mtp_proposer *)proposer;
    if (p->session->observer_user == p) p->session->observer = NULL;
    for (int32_t i = 0; p->sequences && i < p->n_seqs; i++) tn__drawer_free(&p->sequences[i].drawer);
    tn_free(p->sequences);
    tn_free(p->block);
    tn_free(p);
}

static const tn__proposer_class mtp_class = {
    .propose = mtp_propose, .forget = mtp_forget, .free = mtp_free, .costly = true};

static tn_status check_head(const tn_session *session, const tn_spec_params *params) {
    const tn_session *head = params->draft;
    if (!head || !head->plan->model->h.head_layer)
        return tn_fail(TN_E_INVALID, "multi-token prediction needs a session of a head (tn_model_params.head)");
    const tn_model *m = session->plan->model, *h = head->plan->model;
    if (!session->plan->params.states || !head->plan->params.states)
        return tn_fail(TN_E_INVALID, "the model's session or the head's returns no hidden states: set params.states");
    if (m->h.n_embd != h->h.n_embd || m->h.n_vocab != h->h.n_vocab)
        return tn_fail(TN_E_INVALID, "%s is a head for a model of width %d with %d tokens; %s has %d and %d",
                       tn_gguf_path(h->file), h->h.n_embd, h->h.n_vocab, tn_gguf_path(m->file), m->h.n_embd,
                       m->h.n_vocab);
    if (head->plan->params.n_seqs < session->plan->params.n_seqs ||
        head->plan->params.n_outputs < session->plan->params.n_seqs)
        return tn_fail(TN_E_INVALID, "the head's session has %d sequences; %d are needed", head->plan->params.n_seqs,
                       session->plan->params.n_seqs);
    return TN_OK;
}

/* One block for all arrays. */
static tn_status take_block(mtp_proposer *p) {
    const size_t b = (size_t)p->n_batch, n = (size_t)p->n_seqs, room = (size_t)p->room;
    const size_t floats = (b + n * room) * p->width, words = 3 * b + n * room;
    p->base.bytes = sizeof *p + n * sizeof *p->sequences + (floats + words) * sizeof(float) + b;
    p->sequences = tn_calloc(n, sizeof *p->sequences);
    p->block = tn_calloc(1, (floats + words) * sizeof(float) + b);
    if (!p->sequences || !p->block) return TN_E_NOMEM;
    p->states = (float *)(void *)p->block;
    float *states = p->states + b * p->width;
    p->tokens = (tn_token *)(void *)(states + n * room * p->width);
    p->positions = p->tokens + b;
    p->seqs = p->positions + b;
    for (size_t i = 0; i < n; i++)
        p->sequences[i] =
            (mtp_sequence){.tokens = p->seqs + b + i * room, .states = states + i * room * p->width, .row = -1};
    p->outputs = (bool *)(void *)(p->seqs + b + n * room);
    return TN_OK;
}

tn_status tn__mtp_new(tn_session *session, const tn_spec_params *params, tn__proposer **out) {
    TN_TRY(check_head(session, params));
    mtp_proposer *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->base.class = &mtp_class;
    p->session = session;
    p->head = params->draft;
    p->n_seqs = session->plan->params.n_seqs;
    p->n_vocab = p->head->plan->model->h.n_vocab;
    p->room = WAITING + session->plan->params.n_guess + 1;
    p->width = (size_t)session->plan->model->h.n_embd;
    p->n_batch = p->head->plan->params.n_batch;
    if (take_block(p) != TN_OK) {
        mtp_free(&p->base);
        return TN_E_NOMEM;
    }
    session->observer = observe_decode;
    session->observer_user = p;
    *out = &p->base;
    return TN_OK;
}
