/* Sampling: from a row of logits to one token, through a chain of samplers in any order.
 *
 * All memory is taken when a sampler is made; drawing a token allocates nothing. One thread at a time per sampler.
 * The same seed, parameters and logits give the same tokens on every machine: the random numbers are xoshiro256**
 * seeded through splitmix64, one 53-bit number per draw (XTC, when on, uses one more), and the arithmetic does not
 * depend on the CPU's vector width.
 *
 * A NaN logit counts as impossible (-inf), +inf as the largest finite value. Ties are ordered by the lower token. */
#ifndef TENON_SAMPLER_H
#define TENON_SAMPLER_H

#include "tenon/grammar.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The one table of samplers: X(KIND, name, "the parameters it reads"), in the default order of the chain. */
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

TN_API const char *tn_sampler_kind_name(tn_sampler_kind kind);       /* NULL outside the table */
TN_API const char *tn_sampler_kind_parameters(tn_sampler_kind kind); /* NULL outside the table */
TN_API tn_status tn_sampler_kind_from_name(const char *name,
                                           tn_sampler_kind *out); /* TN_E_NOT_FOUND lists them all */

/* Added to a token's logit before anything else; -INFINITY bans the token. */
typedef struct tn_logit_bias {
    tn_token token;
    float bias;
} tn_logit_bias;

#define TN_SEED_RANDOM UINT64_MAX /* take a seed from the system; tn_sampler_seed() tells which */

typedef struct tn_sampler_params {
    uint64_t seed;
    tn_sampler_kind chain[TN_SAMPLER_KINDS]; /* applied in this order, each kind at most once */
    size_t n_chain;
    size_t min_keep; /* truncating samplers leave at least so many candidates */

    /* 0 or less is greedy: the highest logit after bias, grammar, penalties and DRY; the rest of the chain is
     * skipped. */
    float temperature;
    /* With range > 0 the temperature moves within temperature ± range, by (normalised entropy) ^ exponent. */
    float dynamic_range, dynamic_exponent;

    int32_t top_k;     /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float typical_p;   /* 1: off */
    float top_n_sigma; /* 0: off */
    /* With this probability, remove every candidate at or above the threshold except the least likely of them. */
    float xtc_probability, xtc_threshold; /* probability 0 or threshold above 0.5: off */

    int32_t penalty_window; /* how many of the last tokens count; 0: off */
    float repeat_penalty;   /* 1: off; divides positive logits, multiplies negative ones */
    float frequency_penalty, presence_penalty;

    /* A token that would extend a repeated sequence of length n >= allowed_length loses
     * multiplier * base ^ (n - allowed_length). Sequences do not reach across a breaker string. */
    float dry_multiplier, dry_base; /* multiplier 0: off */
    int32_t dry_allowed_length, dry_window;
    const char *const *dry_breakers; /* copied; needs `pieces` */
    size_t n_dry_breakers;

    /* 1 or 2: the draw is steered to a surprise of tau bits per token at learning rate eta; of the chain only
     * penalties, DRY and temperature apply. */
    int32_t mirostat;
    float mirostat_tau, mirostat_eta;

    const tn_logit_bias *logit_bias; /* copied */
    size_t n_logit_bias;
    const tn_pieces *pieces; /* the vocabulary's texts, kept alive; only DRY's breakers need them */
} tn_sampler_params;

/* Temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, the chain in the table's order; penalties (window 64), DRY
 * (window 4096, base 1.75, length 2, breakers newline : " *), XTC, typical, top-n-sigma and mirostat prepared but
 * off. The seed is random. */
TN_API tn_sampler_params tn_sampler_params_default(void);

typedef struct tn_sampler tn_sampler;

/* For rows of n_vocab logits. TN_E_INVALID names the parameter that is out of range. */
TN_API tn_status tn_sampler_new(const tn_sampler_params *params, size_t n_vocab, tn_sampler **out);
TN_API tn_status tn_sampler_clone(const tn_sampler *sampler, tn_sampler **out); /* with history and random state */
TN_API void tn_sampler_reset(tn_sampler *sampler);                              /* as just made, same seed */
TN_API void tn_sampler_free(tn_sampler *sampler);                               /* accepts NULL */
TN_API uint64_t tn_sampler_seed(const tn_sampler *sampler);

/* Gives the sampler a grammar state over the same vocabulary, which it owns from now on (NULL: none). Tokens outside
 * the grammar are removed before the chain; accepting a token advances it. On failure the caller keeps the state. */
TN_API tn_status tn_sampler_set_grammar(tn_sampler *sampler, tn_grammar_state *state);
TN_API tn_grammar_state *tn_sampler_get_grammar(tn_sampler *sampler);

/* Whether it always draws the highest logit as it is: nothing is added, forbidden or punished. Then logits need not
 * leave the device: see tn_session_argmax. */
TN_API bool tn_sampler_is_greedy(const tn_sampler *sampler);
/* Draws one token. The logits are not changed, and the token is not accepted yet. TN_E_INFEASIBLE: no token is left
 * (all logits are -inf, or the grammar allows none). */
TN_API tn_status tn_sampler_sample(tn_sampler *sampler, const float *logits, size_t n_vocab, tn_token *out);

/* Tells the sampler which token came next, drawn or given (prompt tokens may be accepted before the grammar is set).
 */
TN_API tn_status tn_sampler_accept(tn_sampler *sampler, tn_token token);

typedef struct tn_token_prob {
    tn_token token;
    float logprob; /* natural logarithm */
} tn_token_prob;

/* What the last draw chose from: up to `capacity` most probable candidates, best first. */
TN_API tn_status tn_sampler_candidates(tn_sampler *sampler, tn_token_prob *out, size_t capacity, size_t *count);

/* The model's own distribution: the `n_top` most probable tokens of a row, best first, and, where chosen_logprob is
 * not NULL, the log-probability of `chosen`. Needs no sampler, allocates nothing. Rows with fewer possible tokens
 * fill up with TN_TOKEN_NONE. */
TN_API tn_status tn_top_logprobs(const float *logits, size_t n_vocab, tn_token_prob *top, size_t n_top,
                                 tn_token chosen, float *chosen_logprob);

#ifdef __cplusplus
}
#endif
#endif
