/* N-grams: guesses the continuation of an earlier occurrence of the last tokens.
 *
 * One table serves all sequences: a slot has the position where the n-gram with this hash last ended. Nothing in it
 * is trusted: the tokens before that position are compared with the last ones, so a hash collision gives no guess.
 * The longer the match, the higher the confidence. */
#include "llm/speculate/proposer.h"

#include "base/checked.h"
#include "base/hash.h"

enum {
    NGRAM_DEFAULT = 3,
    NGRAM_LEAST = 2,
    NGRAM_MOST = 8,
    MATCH_MOST = 32, /* tokens that are compared */
};
static const size_t TABLE_BYTES = (size_t)2 << 20;

typedef struct ngram_proposer {
    tn__proposer base;
    int32_t size; /* tokens of an n-gram */
    int32_t n_seqs;
    int32_t *table; /* the number of tokens up to the end of the n-gram */
    size_t mask;
    int32_t *indexed; /* per sequence: n-grams that end within this many tokens are in the table */
} ngram_proposer;

static size_t table_slots(const tn_spec_params *p) {
    const size_t bytes = p->ngram_bytes ? p->ngram_bytes : TABLE_BYTES;
    size_t slots = 1024;
    while (2 * slots * sizeof(int32_t) <= bytes) slots *= 2;
    return slots;
}

size_t tn__ngram_bytes(const tn_session_params *session, const tn_spec_params *p) {
    return sizeof(ngram_proposer) + (table_slots(p) + (size_t)session->n_seqs) * sizeof(int32_t);
}

static size_t ngram_slot(const ngram_proposer *p, int32_t seq, const tn_token *last) {
    uint64_t h = (uint64_t)seq;
    for (int32_t i = 0; i < p->size; i++) h = tn__hash_combine(h, (uint64_t)last[i]);
    return (size_t)h & p->mask;
}

/* The n-gram that ends with all tokens but the last is looked up before it is stored, so that it finds an earlier
 * one.
 */
static void index_tokens(ngram_proposer *p, int32_t seq, const tn_token *tokens, int32_t n) {
    int32_t from = TN__MAX(p->indexed[seq], p->size);
    for (int32_t end = from; end < n; end++) p->table[ngram_slot(p, seq, tokens + end - p->size)] = end;
    p->indexed[seq] = TN__MAX(p->indexed[seq], n);
}

/* The number of equal tokens before both positions. */
static int32_t match_length(const tn_token *tokens, int32_t a, int32_t b) {
    int32_t n = 0;
    while (n < a && n < b && n < MATCH_MOST && tokens[a - 1 - n] == tokens[b - 1 - n]) n++;
    return n;
}

/* The initial confidence of a guess by the length of the match; the policy calibrates it by observed acceptance.
 * Values differ enough for the policy to distinguish the lengths. */
static float ngram_confidence(int32_t length) {
    static const float by_length[] = {0.1f,  0.1f,  0.22f, 0.34f, 0.47f, 0.6f, 0.6f,
                                      0.72f, 0.72f, 0.72f, 0.72f, 0.72f, 0.85f};
    const int32_t most = (int32_t)TN__COUNT(by_length) - 1;
    return length >= 24 ? 0.97f : by_length[TN__MIN(length, most)];
}

static void guess_one(ngram_proposer *p, tn_guess *g, float p_min) {
    const int32_t n = g->n_tokens;
    if (n < p->indexed[g->seq]) p->indexed[g->seq] = 0; /* another text */
    index_tokens(p, g->seq, g->tokens, n);
    if (n <= p->size) return;
    int32_t *slot = &p->table[ngram_slot(p, g->seq, g->tokens + n - p->size)];
    const int32_t earlier = *slot;
    *slot = n;
    if (earlier <= 0 || earlier >= n || !g->room) return;
    const int32_t length = match_length(g->tokens, earlier, n);
    const float prob = ngram_confidence(length);
    if (length < p->size || prob < p_min) return;
    /* A repetitive text is continued periodically, so the source of the guess may overlap the guess itself. */
    const int32_t period = n - earlier;
    for (int32_t i = 0; i < g->room; i++) {
        g->guess[i] = g->tokens[earlier + i % period];
        g->probs[i] = ngram_confidence(length + i);
        g->n = i + 1;
    }
}

static tn_status ngram_propose(tn__proposer *proposer, tn_guess *guesses, int32_t n, const tn__guess_limit *limit) {
    ngram_proposer *p = (ngram_proposer *)proposer;
    for (int32_t i = 0; i < n; i++)
        if (guesses[i].seq >= 0 && guesses[i].seq < p->n_seqs) guess_one(p, &guesses[i], limit->p_min);
    return TN_OK;
}

static void ngram_forget(tn__proposer *proposer, int32_t seq) {
    ngram_proposer *p = (ngram_proposer *)proposer;
    if (seq >= 0 && seq < p->n_seqs) p->indexed[seq] = 0;
}

static void ngram_free(tn__proposer *proposer) {
    ngram_proposer *p = (ngram_proposer *)proposer;
    tn_free(p->table);
    tn_free(p->indexed);
    tn_free(p);
}

static const tn__proposer_class ngram_class = {.propose = ngram_propose, .forget = ngram_forget, .free = ngram_free};

tn_status tn__ngram_new(const tn_session_params *session, const tn_spec_params *params, tn__proposer **out) {
    const int32_t size = params->ngram ? params->ngram : NGRAM_DEFAULT;
    if (size < NGRAM_LEAST || size > NGRAM_MOST)
        return tn_fail(TN_E_INVALID, "n-grams of %d tokens; %d to %d are supported", size, NGRAM_LEAST, NGRAM_MOST);
    ngram_proposer *p = tn_calloc(1, sizeof *p);
    if (!p) return TN_E_NOMEM;
    p->base = (tn__proposer){.class = &ngram_class, .bytes = tn__ngram_bytes(session, params)};
    p->size = size;
    p->n_seqs = session->n_seqs;
    p->mask = table_slots(params) - 1;
    p->table = tn_calloc(p->mask + 1, sizeof *p->table);
    p->indexed = tn_calloc((size_t)p->n_seqs, sizeof *p->indexed);
    if (!p->table || !p->indexed) {
        ngram_free(&p->base);
        return TN_E_NOMEM;
    }
    *out = &p->base;
    return TN_OK;
}
