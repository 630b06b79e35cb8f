/* Proposers: who guesses tokens. The speculator (speculator.c) asks one of them and decides what is checked. */
#ifndef TN_LLM_SPECULATE_PROPOSER_H
#define TN_LLM_SPECULATE_PROPOSER_H

#include "llm/session_internal.h"
#include "tenon/generate.h"

typedef struct tn__proposer tn__proposer;

typedef struct tn__proposer_class {
    /* Fills guess, probs and n of every entry, up to its room. A guess ends before a token that is less sure than
     * p_min, and where all of it is right with less than `least`. */
    tn_status (*propose)(tn__proposer *proposer, tn_guess *guesses, int32_t n, float p_min, float least);
    void (*forget)(tn__proposer *proposer, int32_t seq);
    void (*free)(tn__proposer *proposer);
    bool costly; /* guessing takes time that counts: it is not asked while guesses do not pay */
} tn__proposer_class;

struct tn__proposer {
    const tn__proposer_class *class;
    size_t bytes;
};

tn_status tn__ngram_new(const tn_session_params *session, const tn_spec_params *params, tn__proposer **out);
size_t tn__ngram_bytes(const tn_session_params *session, const tn_spec_params *params);
tn_status tn__mtp_new(tn_session *session, const tn_spec_params *params, tn__proposer **out);
tn_status tn__draft_new(tn_session *session, const tn_spec_params *params, tn__proposer **out);

/* ---- Drawing (draw.c): the next token of a guess from a row of logits ---- */

/* A copy of a sequence's sampler, without its grammar; NULL: the argmax is taken. */
typedef struct tn__drawer {
    tn_sampler *sampler;
    const tn_sampler *follows;
} tn__drawer;
/* Brings the copy to the point where the sequence's sampler is. `same`: the rows are over the same vocabulary. */
tn_status tn__drawer_follow(tn__drawer *drawer, const tn_guess *guess, bool same);
tn_status tn__drawer_draw(tn__drawer *drawer, const float *row, int32_t n, tn_token *token, float *prob);
void tn__drawer_free(tn__drawer *drawer);

/* The argmax and its probability. */
tn_token tn__row_argmax(const float *row, int32_t n, float *prob);
/* The likeliest token but one, and its probability. */
tn_token tn__row_other(const float *row, int32_t n, tn_token but, float *prob);
/* The probability of a token. */
float tn__row_prob(const float *row, int32_t n, tn_token token);

/* ---- Policy (policy.c): how long guesses are ---- */

enum { TN__CONFIDENCES = 16 };

typedef struct tn__policy {
    const tn_session *session;
    bool fixed;
    int32_t n_min;
    /* By how sure a guess was of a token: how often such tokens were checked, and right. */
    float tried[TN__CONFIDENCES], right[TN__CONFIDENCES];
    tn__step_time guessing; /* of a token; of the costly proposers */
    bool resumed;           /* the next guess comes after a pause */
    /* Of the costly proposers: tokens and time of whole rounds in which they were not asked [0] and were [1]. */
    struct {
        double tokens, ns;
    } rounds[2];
    int32_t pause, wait; /* steps without guesses after they did not pay, and how many are left */
    int32_t unprobed;    /* guesses that were dropped since the last one that was checked all the same */
} tn__policy;

void tn__policy_begin(tn__policy *policy, const tn_session *session, bool fixed, int32_t n_min);
/* After a whole round, with all that belongs to it. */
void tn__policy_round(tn__policy *policy, bool asked, int32_t n_tokens, uint64_t ns);
/* Whether a costly proposer is asked for n sequences. */
bool tn__policy_asks(tn__policy *policy, int32_t n);
/* A guess ends where it is right with less than this. */
float tn__policy_least(const tn__policy *policy, int32_t n);
/* Shortens the guesses so that the batch gives the most tokens per time. */
void tn__policy_cut(tn__policy *policy, tn_guess *guesses, int32_t n, bool costly);
void tn__policy_learn(tn__policy *policy, const tn_guess *guess, int32_t n_accepted);
/* After a costly proposer was asked, and gave so many tokens. */
void tn__policy_guessed(tn__policy *policy, int32_t n_tokens, uint64_t ns);
double tn__policy_guess_ns(const tn__policy *policy); /* per token */
/* Predicted time of a step with this many rows; 0: nothing is known. */
double tn__policy_step_ns(const tn__policy *policy, int32_t rows);

#endif
