/* The sampler, shared by the module's files: candidates as a row or a list, random numbers, history. */
#ifndef TN_TEXT_SAMPLER_INTERNAL_H
#define TN_TEXT_SAMPLER_INTERNAL_H

#include "tenon/sampler.h"
#include "text/sampler/scan.h"

#include <string.h>

/* ---- Keys ----
 * A candidate in the list is one word: the logit in an order-preserving form in the upper half, the complement of the
 * token in the lower half. Comparing words compares logits, the lower token wins ties, and no two candidates are
 * equal. */
typedef uint64_t tn__key;

static inline uint32_t tn__float_order(float x) {
    uint32_t bits;
    x += 0.0f; /* makes -0 equal to 0 */
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static inline tn__key tn__key_make(float value, tn_token token) {
    return (uint64_t)tn__float_order(value) << 32 | ~(uint32_t)token;
}
static inline tn_token tn__key_token(tn__key key) { return (tn_token) ~(uint32_t)key; }
static inline float tn__key_value(tn__key key) {
    uint32_t order = (uint32_t)(key >> 32), bits = order & 0x80000000u ? order & 0x7fffffffu : ~order;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Moves the `count` largest keys to the front, in any order. Linear time on average. */
void tn__keys_select(tn__key *keys, size_t n, size_t count);
/* Moves to the front the shortest prefix of the descending order whose weights (by token) add up to `target`. Returns
 * its length, at least 1 if n > 0. */
size_t tn__keys_select_weight(tn__key *keys, size_t n, const float *weights, double target);
void tn__keys_sort(tn__key *keys, size_t n); /* descending */
/* Writes the keys of the `count` largest values of a row to `room`, which has space for tn__keys_room() keys, in any
 * order and without -inf. Returns their number. */
size_t tn__keys_from_row(tn__key *room, const float *row, const float *block_max, size_t n, size_t count);
static inline size_t tn__keys_room(size_t n, size_t count) {
    size_t room = 4 * count > 128 ? 4 * count : 128;
    return room < n ? room : n;
}

/* ---- Random numbers ---- */

typedef struct tn__random {
    uint32_t state[624];
    uint32_t next; /* index of the next word to return; at the end of the state, a new state is computed first */
} tn__random;
void tn__random_seed(tn__random *random, uint64_t seed);
double tn__random_unit(tn__random *random); /* in [0, 1) */
uint64_t tn__random_system_seed(void);

/* Temperatures below this are greedy. Logits divided by it stay finite. */
#define TN__TEMPERATURE_MIN 1e-6f

/* ---- The sampler ----
 * Candidates start as the row ("dense": every token, -inf if removed) and become a list when a sampler truncates
 * them. The row also serves to look up logits by token. */
struct tn_sampler {
    tn_sampler_params params; /* its pointers are the sampler's own copies */
    const tn__scan *scan;
    size_t n_vocab, n_blocks;

    float *row;
    float *block_max; /* always exact; padded with -inf to a multiple of 16 */
    float *weights;   /* by token: the last results of exp() */
    double *block_sums;
    tn__key *list;
    size_t count; /* of the list */
    bool dense;
    bool partial; /* the list lacks tokens at or under `below` (largest.c) */
    float below;
    bool drawn; /* the candidates are those of a draw */

    tn__random random;
    double mirostat_mu;

    /* A ring of the last tokens (tn__history_slot); `total` counts all accepted tokens. `breaks` marks tokens whose
     * text completed a DRY breaker. counts[token] counts within the penalty window. */
    tn_token *history;
    bool *breaks;
    size_t history_capacity;
    uint64_t total;
    uint32_t *counts;

    uint32_t *dry_match;  /* by age: length of the sequence ending there that equals the newest tokens */
    uint32_t *dry_length; /* by token: longest repetition that it would extend; zero between calls */
    char *dry_tail;       /* last bytes of the text, to recognize a breaker that began in an earlier token */
    size_t dry_tail_length, dry_tail_capacity;

    tn_grammar_state *grammar;
    tn_pieces *pieces;
    void *memory; /* the block that contains all arrays above */
};

/* Index in the history of the token `age` steps back; 0 is the newest. age < min(total, history_capacity). */
static inline size_t tn__history_slot(const tn_sampler *s, size_t age) {
    return (size_t)((s->total - 1 - age) % s->history_capacity);
}
static inline size_t tn__history_length(const tn_sampler *s, size_t window) {
    return s->total < window ? (size_t)s->total : window;
}

/* Changes one logit of the dense row and updates its block's maximum. */
void tn__row_set(tn_sampler *s, tn_token token, float logit);
float tn__candidates_max(const tn_sampler *s);
/* Converts the row to a list of all possible tokens. */
void tn__candidates_list(tn_sampler *s);
/* Sets the weights, by token, to exp(logit - max) and returns their sum. */
double tn__candidates_weights(tn_sampler *s);

/* The samplers of the table. Each modifies the current candidates; none removes the last candidate. */
typedef void (*tn__sampler_fn)(tn_sampler *s);
void tn__apply_penalties(tn_sampler *s);
void tn__apply_dry(tn_sampler *s);
void tn__apply_top_n_sigma(tn_sampler *s);
void tn__apply_top_k(tn_sampler *s);
void tn__apply_typical(tn_sampler *s);
void tn__apply_top_p(tn_sampler *s);
void tn__apply_min_p(tn_sampler *s);
void tn__apply_xtc(tn_sampler *s);
void tn__apply_temperature(tn_sampler *s);

/* The sampler of this kind; NULL if it does not apply to a greedy draw, or to one with mirostat. */
tn__sampler_fn tn__sampler_apply(const tn_sampler *s, tn_sampler_kind kind, bool greedy);

tn_token tn__draw(tn_sampler *s);
tn_token tn__draw_mirostat_1(tn_sampler *s);
tn_token tn__draw_mirostat_2(tn_sampler *s);

/* Appends the text of `token` to dry_tail and returns whether it completes a DRY breaker. */
bool tn__dry_completes_breaker(tn_sampler *s, tn_token token);

#endif
