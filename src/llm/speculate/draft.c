/* Draft models: a smaller model continues the text, and the larger one verifies the continuation.
 *
 * The draft has its own session with the same sequences. It holds the tokens that the larger model has confirmed, and
 * those that it guessed itself; a rejected part is rolled back as in the verifying session. If the sequence is
 * sampled, the draft draws with a copy of its sampler and thus the same random numbers: similar distributions then
 * mostly give the same token. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"
#include "llm/speculate/vocabulary_map.h"

#include <string.h>

typedef struct draft_sequence {
    int32_t n_seen;                /* tokens of the text that the draft holds, */
    int32_t n_cells;               /* as so many tokens of its own, */
    int32_t n_guessed;             /* and then tokens that it guessed: */
    tn_token guess[TN_GUESS_MOST]; /* as tokens of the text */
    bool lost; /* the text cannot be expressed in the draft's tokens, or does not fit its context */
    /* Of the current proposal. */
    int32_t row;             /* of the draft's logits; -1: its guess has ended */
    float all;               /* probability that the whole guess is right */
    tn__alternatives others; /* for trees */
    tn__drawer drawer;
} draft_sequence;

typedef struct draft_proposer {
    tn__proposer base;
    tn_session *session;
    const tn_tokenizer *own, *text; /* the draft's and the larger model's */
    tn__vocabulary_map map;
    draft_sequence *sequences;
    int32_t n_seqs, n_vocab, n_text_vocab, n_batch;
    int32_t n_branches; /* of the session that verifies */
    /* The batch. */
    tn_token *tokens;
    int32_t *seqs, *last; /* last: index of a sequence's last token */
    bool *outputs, *guesses;
    int32_t n;
} draft_proposer;

static void forget_sequence(draft_proposer *p, int32_t seq) {
    draft_sequence *q = &p->sequences[seq];
    if (q->n_cells || q->n_guessed) (void)tn_session_seq_remove(p->session, seq, 0, -1);
    tn__drawer_free(&q->drawer);
    *q = (draft_sequence){.row = -1};
}

/* ---- The batch ---- */

/* Decodes what was added. TN_E_FULL leaves the sequences without guesses. */
static tn_status decode_added(draft_proposer *p, bool outputs) {
    if (!p->n) return TN_OK;
    for (int32_t i = 0; i < p->n; i++) {
        const int32_t seq = p->seqs[i];
        p->outputs[i] = outputs && p->last[seq] == i;
    }
    const tn_batch batch = {
        .n_tokens = p->n, .tokens = p->tokens, .seqs = p->seqs, .outputs = p->outputs, .guesses = p->guesses};
    const tn_status status = tn_session_decode(p->session, &batch);
    for (int32_t i = 0, row = 0; i < p->n; i++) {
        draft_sequence *q = &p->sequences[p->seqs[i]];
        if (status == TN_OK && p->outputs[i]) q->row = row++;
        if (status != TN_OK) q->lost = true;
    }
    p->n = 0;
    return status == TN_E_FULL ? TN_OK : status;
}

static tn_status add_token(draft_proposer *p, int32_t seq, tn_token token, bool guess) {
    if (p->n == p->n_batch) TN_TRY(decode_added(p, false));
    p->tokens[p->n] = token;
    p->seqs[p->n] = seq;
    p->guesses[p->n] = guess;
    p->last[seq] = p->n++;
    return TN_OK;
}

/* A token of the text as one or several of the draft's. */
static tn_status add_text_token(draft_proposer *p, int32_t seq, tn_token token) {
    enum { MOST = 32 };
    draft_sequence *q = &p->sequences[seq];
    const tn_token same = tn__vocabulary_to(&p->map, token);
    q->n_seen++;
    if (same >= 0 && same < p->n_vocab) {
        q->n_cells++;
        return add_token(p, seq, same, false);
    }
    size_t length, count = 0;
    tn_token list[MOST];
    const char *piece = p->own && p->text ? tn_token_piece(p->text, token, &length) : NULL;
    if (!piece || tn_tokenizer_encode_into(p->own, piece, length, TN_ENCODE_CONTINUE, list, MOST, &count) != TN_OK) {
        q->lost = true;
        return TN_OK;
    }
    for (size_t i = 0; i < count; i++) {
        q->n_cells++;
        TN_TRY(add_token(p, seq, list[i], false));
    }
    return TN_OK;
}

/* ---- Following the text ---- */

/* Rolls back rejected tokens, and adds the tokens that the draft does not hold yet. */
static tn_status follow_text(draft_proposer *p, const tn_guess *g) {
    draft_sequence *q = &p->sequences[g->seq];
    if (g->n_tokens <= q->n_seen) forget_sequence(p, g->seq); /* another text */
    int32_t right = 0;
    while (right < q->n_guessed && q->n_seen + right < g->n_tokens - 1 &&
           g->tokens[q->n_seen + right] == q->guess[right])
        right++;
    if (right < q->n_guessed) TN_TRY(tn_session_seq_rewind(p->session, g->seq, q->n_cells + right));
    q->n_seen += right;
    q->n_cells += right;
    q->n_guessed = 0;
    q->row = -1;
    q->all = 1;
    while (q->n_seen < g->n_tokens && !q->lost) TN_TRY(add_text_token(p, g->seq, g->tokens[q->n_seen]));
    return TN_OK;
}

/* ---- Guessing ---- */

/* Draws the next token of a guess from its row; false: the guess has ended. */
static tn_status draw_token(draft_proposer *p, tn_guess *g, const tn__guess_limit *limit, bool *goes_on) {
    draft_sequence *q = &p->sequences[g->seq];
    float prob;
    tn_token own;
    *goes_on = false;
    TN_TRY(tn__drawer_draw(&q->drawer, tn_session_logits(p->session, q->row), p->n_vocab, &own, &prob));
    const tn_token token = tn__vocabulary_from(&p->map, own);
    if (token < 0 || !tn__guess_keeps(limit, g->n, prob, &q->all)) return TN_OK;
    if (p->n_branches) {
        const tn_token other =
            tn__row_other(tn_session_logits(p->session, q->row), p->n_vocab, own, &q->others.probs[g->n]);
        q->others.tokens[g->n] = tn__vocabulary_from(&p->map, other);
    }
    g->guess[g->n] = token;
    g->probs[g->n++] = prob;
    /* Nothing follows the end of a text. */
    *goes_on = g->n < g->room && tn__guess_goes_on(limit, q->all) && !(p->text && tn_token_is_end(p->text, token));
    if (!*goes_on) return TN_OK;
    q->guess[q->n_guessed++] = token;
    return add_token(p, g->seq, own, true);
}

static tn_status draft_propose(tn__proposer *proposer, tn_guess *guesses, int32_t n, const tn__guess_limit *limit) {
    draft_proposer *p = (draft_proposer *)proposer;
    bool any = false;
    p->n = 0;
    for (int32_t i = 0; i < n; i++) {
        if (guesses[i].seq < 0 || guesses[i].seq >= p->n_seqs || !guesses[i].room) continue;
        if (p->sequences[guesses[i].seq].lost) continue;
        TN_TRY(follow_text(p, &guesses[i]));
        TN_TRY(tn__drawer_follow(&p->sequences[guesses[i].seq].drawer, &guesses[i],
                                 p->map.same && p->n_vocab == p->n_text_vocab));
    }
    do {
        TN_TRY(decode_added(p, true));
        any = false;
        for (int32_t i = 0; i < n; i++) {
            draft_sequence *q = &p->sequences[guesses[i].seq];
            if (!guesses[i].room || q->lost || q->row < 0) continue;
            bool goes_on;
            TN_TRY(draw_token(p, &guesses[i], limit, &goes_on));
            q->row = -1;
            any = any || goes_on;
        }
    } while (any);
    for (int32_t i = 0; i < n && p->n_branches >= n; i++)
        if (guesses[i].n)
            tn__add_alternatives(limit, &p->sequences[guesses[i].seq].others, &guesses[i], p->n_branches / n);
    return TN_OK;
}

static void draft_forget(tn__proposer *proposer, int32_t seq) {
    draft_proposer *p = (draft_proposer *)proposer;
    if (seq >= 0 && seq < p->n_seqs) forget_sequence(p, seq);
}

/* ---- Creation ---- */

static void draft_free(tn__proposer *proposer) {
    draft_proposer *p = (draft_proposer *)proposer;
    for (int32_t i = 0; p->sequences && i < p->n_seqs; i++) tn__drawer_free(&p->sequences[i].drawer);
    tn__vocabulary_map_free(&p->map);
    tn_free(p->sequences);
    tn_free(p->tokens);
    tn_free(p->seqs);
    tn_free(p->last);
    tn_free(p->outputs);
    tn_free(p->guesses);
    tn_free(p);
}

static const tn__proposer_class draft_class = {
    .propose = draft_propose, .forget = draft_forget, .free = draft_free, .costly = true};

static tn_status check_draft(const tn_session *session, const tn_spec_params *params) {
    const tn_session_params *p = &session->plan->params;
    if (!params->draft) return tn_fail(TN_E_INVALID, "there is no draft model: give one (-md)");
    const tn_session_params *d = &params->draft->plan->params;
    if (params->draft == session) return tn_fail(TN_E_INVALID, "the draft is the session itself");
    if (d->embeddings || !params->draft->plan->model->h.causal)
        return tn_fail(TN_E_INVALID, "%s does not generate text: it cannot be a draft model",
                       tn_gguf_path(params->draft->plan->model->file));
    if (d->n_seqs < p->n_seqs || d->n_guess < params->n_max || d->n_outputs < p->n_seqs)
        return tn_fail(TN_E_INVALID,
                       "the draft's session has %d sequences and rolls back %d tokens; %d and %d are needed",
                       d->n_seqs, d->n_guess, p->n_seqs, params->n_max);
    return TN_OK;
}

tn_status tn__draft_new(tn_session *session, const tn_spec_params *params, tn__proposer **out) {
    TN_TRY(check_draft(session, params));
    draft_proposer *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    const tn_model *m = session->plan->model, *d = params->draft->plan->model;
    p->base.class = &draft_class;
    p->session = params->draft;
    p->own = d->tokenizer;
    p->text = m->tokenizer;
    p->n_seqs = session->plan->params.n_seqs;
    p->n_vocab = d->h.n_vocab;
    p->n_text_vocab = m->h.n_vocab;
    p->n_batch = params->draft->plan->params.n_batch;
    p->n_branches = session->branches.n;
    const size_t b = (size_t)p->n_batch, n = (size_t)p->n_seqs;
    p->sequences = tn_calloc(n, sizeof *p->sequences);
    p->tokens = tn_calloc(b, sizeof *p->tokens);
    p->seqs = tn_calloc(b, sizeof *p->seqs);
    p->last = tn_calloc(n, sizeof *p->last);
    p->outputs = tn_calloc(b, sizeof *p->outputs);
    p->guesses = tn_calloc(b, sizeof *p->guesses);
    tn_status status =
        p->sequences && p->tokens && p->seqs && p->last && p->outputs && p->guesses ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = tn__vocabulary_map_new(p->text, p->own, m->h.n_vocab, d->h.n_vocab, &p->map);
    if (status != TN_OK) {
        draft_free(&p->base);
        return status;
    }
    p->base.bytes =
        sizeof *p + n * (sizeof *p->sequences + sizeof *p->last) + b * (sizeof *p->tokens + 10) + p->map.bytes;
    *out = &p->base;
    return TN_OK;
}
