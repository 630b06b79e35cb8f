/* Sampling: draws one token from a row of logits, through a chain of samplers in any order.
 *
 * A sampler reserves all its memory when it is created; drawing a token allocates nothing. One thread at a time may
 * use a sampler. The same seed, parameters and logits give the same tokens on every machine: random numbers come from
 * the Mersenne Twister, one number of two 32-bit words per draw (XTC uses one more), and the arithmetic does not
 * depend on the CPU's vector width. In the default order, without XTC and mirostat, llama.cpp draws the same token
 * from the same logits and seed.
 *
 * A NaN logit counts as -inf (impossible), +inf as the largest finite value. Among equal logits the lowest token
 * comes first. */
#ifndef TENON_SAMPLER_H
#define TENON_SAMPLER_H

#include "tenon/grammar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The samplers in the default order of the chain: X(KIND, name, "the parameters it uses"). */
#define TN_SAMPLER_TABLE(X)                                                                                          \
    X(PENALTIES, penalties, "penalty_window repeat_penalty frequency_penalty presence_penalty")                      \
    X(DRY, dry, "dry_multiplier dry_base dry_allowed_length dry_window dry_breakers")                                \
    X(TOP_N_SIGMA, top_n_sigma, "top_n_sigma")                                                                       \
    X(TOP_K, top_k, "top_k")                                                                                         \
    X(TYPICAL, typical, "typical_p min_keep")                                                                        \
    X(TOP_P, top_p, "top_p min_keep")                                                                                \
    X(MIN_P, min_p, "min_p min_keep")                                                                                \
    X(XTC, xtc, "xtc_probability xtc_threshold min_keep")                                                            \
    X(TEMPERATURE, temperature, "temperature dynamic_range dynamic_exponent")

typedef enum tn_sampler_kind {
#define TN_X(kind, name, parameters) TN_SAMPLER_##kind,
    TN_SAMPLER_TABLE(TN_X)
#undef TN_X
        TN_SAMPLER_KINDS
} tn_sampler_kind;

/* NULL for a kind that is not in the table. */
TN_API const char *tn_sampler_kind_name(tn_sampler_kind kind);
TN_API const char *tn_sampler_kind_parameters(tn_sampler_kind kind);
/* TN_E_NOT_FOUND: the message lists all names. */
TN_API tn_status tn_sampler_kind_from_name(const char *name, tn_sampler_kind *out);

/* Added to a token's logit before anything else; -INFINITY bans the token. */
typedef struct tn_logit_bias {
    tn_token token;
    float bias;
} tn_logit_bias;

#define TN_SEED_RANDOM UINT64_MAX /* a seed from the system; tn_sampler_seed() returns it */

typedef struct tn_sampler_params {
    uint64_t seed;
    tn_sampler_kind chain[TN_SAMPLER_KINDS]; /* applied in this order, each kind at most once */
    size_t n_chain;
    size_t min_keep; /* minimum number of candidates that truncating samplers keep */

    /* 0 or less is greedy: the highest logit after bias, grammar, penalties and DRY. The rest of the chain is
     * skipped. */
    float temperature;
    /* With range > 0 the temperature varies within temperature ± range, by (normalized entropy) ^ exponent. */
    float dynamic_range, dynamic_exponent;

    int32_t top_k;     /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float typical_p;   /* 1: off */
    float top_n_sigma; /* 0: off */
    /* With this probability, XTC removes every candidate at or above the threshold except the least likely of them.
     * Probability 0 or threshold above 0.5: off. */
    float xtc_probability, xtc_threshold;

    int32_t penalty_window; /* number of last tokens that count; 0: off */
    float repeat_penalty;   /* 1: off; divides positive logits, multiplies negative ones */
    float frequency_penalty, presence_penalty;

    /* DRY subtracts multiplier * base ^ (n - allowed_length) from the logit of a token that would extend a repeated
     * sequence of length n >= allowed_length. Sequences end at a breaker string. Multiplier 0: off. */
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_window;
    const char *const *dry_breakers; /* copied; needs `pieces` */
    size_t n_dry_breakers;

    /* Version 1 or 2 of mirostat, 0: off. It steers draws to a surprise of tau bits per token with learning rate eta.
     * Of the chain only penalties, DRY and temperature apply. */
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;

    const tn_logit_bias *logit_bias; /* copied */
    size_t n_logit_bias;
    const tn_pieces *pieces; /* texts of the vocabulary, kept alive; needed only for DRY's breakers */
} tn_sampler_params;

/* Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, a random seed, the chain in the table's order. Off, with these
 * defaults: penalties (window 64), DRY (window 4096, base 1.75, length 2, breakers newline : " *), XTC (threshold
 * 0.1), typical, top-n-sigma, mirostat (tau 5, eta 0.1). */
TN_API tn_sampler_params tn_sampler_params_default(void);

typedef struct tn_sampler tn_sampler;

/* For rows of n_vocab logits. TN_E_INVALID: the message names the parameter that is out of range. */
TN_API tn_status tn_sampler_new(const tn_sampler_params *params, size_t n_vocab, tn_sampler **out);
/* Copies history and random state too. */
TN_API tn_status tn_sampler_clone(const tn_sampler *sampler, tn_sampler **out);
/* Copies the current random state and history of `from` to its clone; the grammar is not changed. Allocates
 * nothing. TN_E_INVALID: it is not a clone of `from`. */
TN_API tn_status tn_sampler_follow(tn_sampler *sampler, const tn_sampler *from);
/* Returns to the state after creation, with the same seed. */
TN_API void tn_sampler_reset(tn_sampler *sampler);
TN_API void tn_sampler_free(tn_sampler *sampler); /* accepts NULL */
TN_API uint64_t tn_sampler_seed(const tn_sampler *sampler);

/* Passes a grammar state over the same vocabulary to the sampler, which then owns it; NULL removes the grammar.
 * Tokens that the grammar does not allow are removed before the chain; accepting a token advances the state. On
 * failure the caller keeps the state. */
TN_API tn_status tn_sampler_set_grammar(tn_sampler *sampler, tn_grammar_state *state);
TN_API tn_grammar_state *tn_sampler_get_grammar(tn_sampler *sampler);

/* Whether it always draws the highest unmodified logit: there is no bias, grammar or penalty. Then logits need not
 * leave the device: see tn_session_argmax. */
TN_API bool tn_sampler_is_greedy(const tn_sampler *sampler);
/* Draws one token. It neither changes the logits nor accepts the token. TN_E_INFEASIBLE: no token is possible (all
 * logits are -inf, or the grammar allows none). */
TN_API tn_status tn_sampler_sample(tn_sampler *sampler, const float *logits, size_t n_vocab, tn_token *out);

/* Draws the same token as tn_sampler_sample, from only the n largest logits of the row in descending order
 * (tn_session_candidates). If the token depends on other logits, *enough is false and nothing is drawn: use
 * tn_sampler_sample. The largest logits suffice for greedy draws and for chains whose first truncating sampler is
 * top-k or min-p, unless a bias or penalty raises a logit that is not among them. */
TN_API tn_status tn_sampler_sample_largest(tn_sampler *sampler, const tn_token *tokens, const float *logits, size_t n,
                                           bool *enough, tn_token *out);

/* Adds the next token of the sequence, drawn or given, to the history and advances the grammar. Prompt tokens may be
 * accepted before the grammar is set. */
TN_API tn_status tn_sampler_accept(tn_sampler *sampler, tn_token token);

typedef struct tn_token_prob {
    tn_token token;
    float logprob; /* natural logarithm */
} tn_token_prob;

/* The candidates of the last draw: up to `capacity` of the most probable ones, in descending order. */
TN_API tn_status tn_sampler_candidates(tn_sampler *sampler, tn_token_prob *out, size_t capacity, size_t *count);

/* The model's own distribution: the `n_top` most probable tokens of a row in descending order and, if chosen_logprob
 * is not NULL, the log-probability of `chosen`. Allocates nothing. If fewer tokens are possible, the rest of `top` is
 * TN_TOKEN_NONE. */
TN_API tn_status tn_top_logprobs(const float *logits, size_t n_vocab, tn_token_prob *top, size_t n_top,
                                 tn_token chosen, float *chosen_logprob);

#ifdef __cplusplus
}
#endif
#endif
