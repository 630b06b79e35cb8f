/* Proposers guess tokens. The speculator (speculator.c) calls one of them and decides how much of the guess is
 * verified. */
#ifndef TN_LLM_SPECULATE_PROPOSER_H
#define TN_LLM_SPECULATE_PROPOSER_H

#include "llm/session_internal.h"
#include "tenon/generate.h"

typedef struct tn__proposer tn__proposer;

/* Ends guesses before a token whose confidence is below p_min, and when another token is not worth its time. */
typedef struct tn__guess_limit {
    const struct tn__policy *policy;
    float p_min;
    float check, guess; /* the time per token, in tokens that could be generated in that time otherwise */
} tn__guess_limit;
/* Whether a token with this confidence is worth verifying after n_guessed others. `all`: probability that the whole
 * guess is right, initially 1. */
bool tn__guess_keeps(const tn__guess_limit *limit, int32_t n_guessed, float prob, float *all);
/* The probability that a token with this confidence is right, given that those before it are. */
float tn__guess_sure(const tn__guess_limit *limit, float prob, bool alternative);
/* Whether another token is worth guessing. */
bool tn__guess_goes_on(const tn__guess_limit *limit, float all);

typedef struct tn__proposer_class {
    /* Fills guess, probs and n of every entry, up to its `room` and the limit. */
    tn_status (*propose)(tn__proposer *proposer, tn_guess *guesses, int32_t n, const tn__guess_limit *limit);
    /* The guess was verified: guess->at. NULL: the proposer does not need to know. */
    void (*checked)(tn__proposer *proposer, const tn_guess *guess);
    void (*forget)(tn__proposer *proposer, int32_t seq);
    void (*free)(tn__proposer *proposer);
    bool costly; /* guessing takes considerable time: it is not called while guesses do not pay off */
} tn__proposer_class;

struct tn__proposer {
    const tn__proposer_class *class;
    bool paused; /* guesses have not paid off for a while: it does not follow the text */
    size_t bytes;
};

tn_status tn__ngram_new(const tn_session_params *session, const tn_spec_params *params, tn__proposer **out);
size_t tn__ngram_bytes(const tn_session_params *session, const tn_spec_params *params);
tn_status tn__head_new(tn_session *session, const tn_spec_params *params, tn__proposer **out);
tn_status tn__draft_new(tn_session *session, const tn_spec_params *params, tn__proposer **out);

/* ---- Trees (tree.c) ---- */

/* For each token of a path the most probable alternative; -1: there is none. */
typedef struct tn__alternatives {
    tn_token tokens[TN_GUESS_MOST];
    float probs[TN_GUESS_MOST];
} tn__alternatives;
/* Turns a path into a tree with at most `most` branches: alternatives replace the path's least probable tokens, in
 * the order of the probability that each is reached. */
void tn__add_alternatives(const tn__guess_limit *limit, const tn__alternatives *others, tn_guess *guess,
                          int32_t most);
/* Whether token i of a tree has an earlier sibling. */
bool tn__guess_is_other(const tn_guess *guess, int32_t i);

/* ---- Drawing (draw.c): the next token of a guess from a row of logits ---- */

/* A copy of a sequence's sampler, without its grammar; NULL: the argmax is taken. */
typedef struct tn__drawer {
    tn_sampler *sampler;
    const tn_sampler *follows;
} tn__drawer;
/* Copies the current state of the sequence's sampler. `same`: both have the same vocabulary. */
tn_status tn__drawer_follow(tn__drawer *drawer, const tn_guess *guess, bool same);
tn_status tn__drawer_draw(tn__drawer *drawer, const float *row, int32_t n, tn_token *token, float *prob);
void tn__drawer_free(tn__drawer *drawer);

/* The argmax and its probability. */
tn_token tn__row_argmax(const float *row, int32_t n, float *prob);
/* The most probable token other than `but`, and its probability. */
tn_token tn__row_other(const float *row, int32_t n, tn_token but, float *prob);
/* The probability of a token. */
float tn__row_prob(const float *row, int32_t n, tn_token token);

/* ---- Policy (policy.c): how long guesses are ---- */

/* Log odds of acceptance = shift + slope × log odds of the confidence. */
typedef struct tn__calibration {
    float shift, slope;
} tn__calibration;

typedef struct tn__policy {
    const tn_session *session;
    bool fixed;
    int32_t n_min;
    tn__calibration calibration[2];      /* of first choices; of alternatives in trees */
    float mean;                          /* mean acceptance rate */
    tn__step_time guessing;              /* time per token of costly proposers */
    tn__step_time rounds[TN__STEP_ROWS]; /* of plain steps, by their sequences: from one proposal to the next */
    tn__step_time beside[2]; /* the time of a sequence's share in a round that neither guesses nor decodes: plain;
                                with guesses, whose rejected tokens are rolled back */
    double lost;             /* time of rounds with guesses beyond that of plain steps for the same tokens */
    bool paused;             /* `lost` is too high */
    bool guessed, resumed;   /* the last round had guesses; this one has guesses, and the last had none */
    struct {
        double tokens, ns;
    } made;           /* in the last rounds with guesses */
    int32_t plain;    /* plain steps to measure before the next guess */
    int32_t unprobed; /* guesses dropped since the last one that was verified as a probe */
} tn__policy;

void tn__policy_begin(tn__policy *policy, const tn_session *session, bool fixed, int32_t n_min);
/* A round: a proposal, the step that verified it, and the generated tokens. */
typedef struct tn__round {
    int32_t n_seqs, n_drafted, n_guessed, n_tokens; /* n_drafted: by a costly proposer; n_guessed: verified */
    double guess_ns, step_ns;                       /* of guessing, and of the step */
    double ns;                                      /* of all from this proposal to the next */
    bool built;                                     /* graphs: that happens once for every size of batches */
} tn__round;
void tn__policy_round(tn__policy *policy, const tn__round *round);
/* A round that also decoded prompts, or whose step is not representative for another reason. */
void tn__policy_other_round(tn__policy *policy, const tn__round *round);
/* Whether tokens are guessed for n sequences. */
bool tn__policy_guesses(tn__policy *policy, int32_t n);
tn__guess_limit tn__policy_limit(const tn__policy *policy, int32_t n, float p_min);
/* Shortens the guesses to maximise the expected tokens per second. `costly`: guessing has taken time. */
void tn__policy_cut(tn__policy *policy, tn_guess *guesses, int32_t n, bool costly);
void tn__policy_learn(tn__policy *policy, const tn_guess *guess, int32_t n_accepted);
/* Call after a costly proposer has guessed n_tokens tokens in this time. */
void tn__policy_guessed(tn__policy *policy, int32_t n_tokens, uint64_t ns);
double tn__policy_guess_ns(const tn__policy *policy); /* per token */
/* Predicted time of a step with this many rows; 0: nothing is known. */
double tn__policy_step_ns(const tn__policy *policy, int32_t rows);

#endif
