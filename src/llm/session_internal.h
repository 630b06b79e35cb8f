/* The inside of a session: the plan it was made from, and the state of decoding. */
#ifndef TN_LLM_SESSION_INTERNAL_H
#define TN_LLM_SESSION_INTERNAL_H

#include "llm/memory/tier.h"
#include "llm/plan/session_plan.h"
#include "llm/ranks/lead.h"

#include <pthread.h>

/* ---- Staging (staging.c): a batch on the host ---- */

typedef struct tn__staging {
    char *block; /* all arrays */
    size_t bytes;
    /* Of the whole batch. */
    int32_t *positions, *seqs;
    int32_t
        *lists; /* the page tables of the tokens, as devices number them: a sequence, or after all of them a branch */
    bool *wanted; /* rows whose results are to be kept */
    /* Cells of one micro-batch; of all micro-batches where several are in flight. */
    int32_t *rows[TN__CACHE_GROUPS];
    tn__step *steps;               /* of the same tokens */
    int32_t *out_rows;             /* of one micro-batch */
    void *values[TN__INPUT_COUNT]; /* of a graph's inputs */
    float *scales;                 /* of adapters: [sequence][adapter] */
    int32_t move_from[TN__MOVE_CELLS], move_to[TN__MOVE_CELLS], move_delta[TN__MOVE_CELLS];
    /* For batches that the library itself makes. */
    int32_t *prompt_seqs;
    bool *score_wanted;
} tn__staging;

tn_status tn__staging_new(const tn_session_params *params, bool pipelined, int32_t width, tn__staging *staging);
void tn__staging_free(tn__staging *staging);

/* ---- Results (results.c): of the last decode ---- */

typedef struct tn__results {
    int32_t n;        /* rows */
    float *logits;    /* memory for n_outputs rows */
    float *rows;      /* `logits`, or where the graph left them; NULL: only argmax or candidates */
    tn_token *argmax; /* n_outputs, in the same memory */
    float *sums;      /* n_outputs: sums of the rows' logits */
    int32_t *steps;   /* argmax and sum of single steps, for two queued steps */
    /* Candidates: n_candidates tokens and logits per row. The whole rows are in `waiting` on the device, until one is
     * requested; `fetched` marks those that `logits` has. */
    tn_token *largest;
    float *largest_logits;
    int32_t *fetched;
    const tn_tensor *waiting;
    bool in_order; /* row i is row i of `waiting`; else row staging.out_rows[i] */
    float *states; /* with params.states: [n_batch][width] hidden states of the batch's tokens */
    int32_t n_states, width;
    pthread_mutex_t fetching;
    bool has_lock;
    tn_buffer *pinned; /* the memory, where the device can write to it directly; NULL: the heap */
    size_t bytes;
} tn__results;

tn_status tn__results_new(const tn_session_plan *plan, tn__results *results);
void tn__results_free(tn__results *results);
/* Waits for a micro-batch of n tokens that starts at `begin` of the batch, and fetches `kept` rows of its results. */
tn_status tn__results_take(tn_session *session, const tn_batch *batch, const tn__graph_set *set, int32_t begin,
                           int32_t n, int32_t kept);
/* Fetches the argmax and the sum of a single step. */
tn_status tn__results_take_step(tn_session *session, const int32_t step[2]);
/* TN_E_NOT_FINITE if one of the numbers is NaN or infinite: sampling from them would be meaningless. */
tn_status tn__check_finite(const tn_session *session, const float *x, size_t n);
/* Moves results out of compute memory, before a graph other than a decode runs. */
void tn__results_keep(tn_session *session);

/* ---- Embeddings (embed.c): pooled hidden states ---- */

typedef struct tn__embeddings {
    float *rows;     /* the results: [results][size] */
    float *hidden;   /* [n_ubatch][size], as the graph gives them */
    int32_t size;    /* floats per row; 0: the session gives logits */
    int32_t *row_of; /* per sequence: its result in this decode, or -1 */
    int32_t *counts; /* per result: tokens in the mean */
    size_t bytes;
} tn__embeddings;

tn_status tn__embeddings_new(const tn_session_plan *plan, tn__embeddings *embeddings);
void tn__embeddings_free(tn__embeddings *embeddings);
void tn__embeddings_begin(tn_session *session); /* of a decode */
/* Whether row i of the batch is needed. */
bool tn__wants_row(const tn_session *session, const tn_batch *batch, int32_t i);
tn_status tn__embeddings_take(tn_session *session, const tn__graph_set *set, int32_t begin, int32_t n, int32_t kept);
void tn__embeddings_finish(tn_session *session);

/* ---- Branches (memory/branches.c): of trees of guesses ---- */

/* A branch is a list of runs: those of its ancestors' cells, which it shares, then its own. Attention therefore
 * handles a branch like a sequence, on every device. */
typedef struct tn__branch {
    int32_t seq;    /* -1: free */
    int32_t number; /* among those of its sequence, from 1 */
    int32_t from;   /* the first position that its sequence does not have in common with it */
} tn__branch;
typedef struct tn__branches {
    tn__branch *list;
    int32_t n;
} tn__branches;

tn_status tn__branches_new(const tn_session_plan *plan, tn__branches *branches);
/* Frees the branches of a sequence. */
void tn__branches_drop(tn_session *session, int32_t seq);
/* Assigns every token to a list, and positions to tokens with parents. The branches' lists are made when cells
 * are allocated. */
tn_status tn__branches_stage(tn_session *session, const tn_batch *batch);
/* Allocates cells for a batch with parents. */
tn_status tn__branches_take_cells(tn_session *session, const tn_batch *batch);

/* ---- Queued step (queued_step.c): the next step of a greedy loop, run before it is requested ---- */

typedef struct tn__queued_step {
    bool possible;         /* all of the session is on one device that queues, */
    bool with_adapters;    /* and so are graphs with adapters */
    bool looping;          /* the last batch was one token with only its argmax requested, */
    int32_t seq, position; /* which was this token of this sequence, */
    tn_token argmax;       /* and this is its argmax */
    bool queued;           /* the step after it is queued */
    uint32_t changes;      /* of the cache when it was queued */
    int current;           /* of the two buffers: one step computes while the results of the other are read */
    struct {
        tn_event *done;
        int32_t *step; /* argmax and sum, in memory that the device can write to */
        int32_t row, values[TN__INPUT_COUNT][2];
        float scales[TN_ADAPTERS_MOST]; /* the values of TN__INPUT_ADAPTER_SCALES */
    } buffers[2];
} tn__queued_step;

tn_status tn__queued_step_new(tn_session *session);
void tn__queued_step_free(tn_session *session);
/* After decoding a single token with only its argmax requested: queues the next step if this is a greedy loop. */
void tn__queued_step_continue(tn_session *session, tn_token token);
/* Whether the queued step computes exactly this batch. */
bool tn__queued_step_matches(const tn_session *session, tn_token token);
/* Fetches the queued step's argmax and sum, and queues the step after it. */
tn_status tn__queued_step_take(tn_session *session, int32_t step[2]);
/* Discards the queued step, before anything else computes on or writes to the device. */
void tn__queued_step_cancel(tn_session *session);

/* ---- Prefixes (memory/prefixes.c): what ended sequences leave for later ones ---- */

/* The prefix key of a sequence. Unknown: its cells are neither reused nor kept. */
typedef struct tn__prefix_owner {
    uint64_t key;
    bool known;
} tn__prefix_owner;

/* When a sequence last took the kept prefix, or when it was made. A periodic checkpoint that was never taken is a
 * spare one. */
typedef struct tn__checkpoint_use {
    uint64_t when;
    bool spare;
} tn__checkpoint_use;

/* A checkpoint of the batch that runs. */
typedef struct tn__checkpoint {
    int32_t seq, n; /* the first n tokens of the sequence */
    int32_t row;    /* of its recurrent state; -1: the model has none */
    bool spare;
} tn__checkpoint;

typedef struct tn__prefixes {
    int32_t n;           /* 0: none are kept */
    int group;           /* whose cells are remembered */
    uint64_t *last_used; /* per kept prefix; 0: there is none. As late as that of any prefix that begins with it */
    tn__checkpoint_use *uses; /* per kept prefix */
    tn__checkpoint *pending;  /* room for n_checkpoints */
    int32_t n_pending;
    int32_t every;            /* tokens between checkpoints; 0: none */
    tn__prefix_owner *owners; /* per sequence */
    tn__hash128 *prompt;      /* hashes of the tokens that are looked up */
    int32_t n_prompt;         /* room for them */
    int32_t missed;      /* tokens of the last tn_session_prefix_take that were present except for their windows */
    int32_t *tokens;     /* per cell */
    tn__hash128 *hashes; /* per cell: of key and tokens up to this one; 0: unknown */
    int32_t in_use;      /* a list that must not be evicted now; -1: none */
    tn__hash128 seed;    /* secret salt, so that clients cannot construct two prompts with the same hash */
    uint64_t clock, asked, taken, evicted, hits, misses;
} tn__prefixes;

tn_status tn__prefixes_new(const tn_session_plan *plan, tn__hash128 seed, tn__prefixes *prefixes);
void tn__prefixes_free(tn__prefixes *prefixes);
/* Records the tokens of a micro-batch whose cells are allocated. */
void tn__prefixes_write(tn_session *session, int32_t n, const tn_token *tokens, const int32_t *positions,
                        const int32_t *seqs, const int32_t *parents, const int32_t *rows);
/* A sequence became empty, or its cells come from a state. */
void tn__prefixes_forget_owner(tn_session *session, int32_t seq);
/* Call before cells are copied from one sequence to another: the tokens of the target become unknown. */
void tn__prefixes_copy_owner(tn_session *session, int32_t source, int32_t target);
/* After the contents of the staged n cells were moved; `changed`: their positions have changed. */
void tn__prefixes_move(tn_session *session, int group, bool changed, int32_t n);
/* Evicts the least recently used prefix, which moves to the tiers. False: there is none. */
bool tn__prefixes_evict(tn_session *session);
/* Drops all prefixes on the device. */
void tn__prefixes_clear(tn_session *session);
/* The hash of a list's tokens up to a position; 0 if it does not hold that position. */
tn__hash128 tn__prefix_hash_at(const tn_session *session, int32_t list, int32_t position);
/* Whether layers with a window or with recurrent state can continue after `n` tokens of the list: it holds the
 * whole window of a query there, and its state covers exactly these tokens. */
bool tn__prefix_continues(const tn_session *session, int32_t list, int32_t n);
/* A list for a new prefix, with the sequence's first n tokens and no recurrent state; -1: none is free. */
int32_t tn__prefix_new(tn_session *session, int32_t seq, int32_t n);
/* Marks a prefix as just used, and the prefixes that it begins with. */
void tn__prefix_touch(tn_session *session, int32_t list);
/* Drops a kept prefix, without moving it to the tiers. */
void tn__prefix_remove(tn_session *session, int32_t list);

/* ---- Checkpoints (memory/checkpoints.c): where layers with windows and recurrent state can continue ---- */

/* Tokens between checkpoints; 0: none. */
int32_t tn__checkpoint_interval(const tn_session_plan *plan);
/* Call after the cells of the micro-batch that begins at `begin` of the batch are allocated: chooses the tokens
 * after which checkpoints are kept, and makes the steps write their states. */
void tn__checkpoints_stage(tn_session *session, const tn_batch *batch, int32_t begin, int32_t n, const int32_t *rows,
                           tn__step *steps);
/* Call after the micro-batch was computed: the checkpoints become kept prefixes. */
void tn__checkpoints_finish(tn_session *session);
/* Call after a failure: drops the checkpoints. */
void tn__checkpoints_drop(tn_session *session);
/* Evicts the least useful recurrent state, which moves to the tiers. False: none can be freed. */
bool tn__checkpoints_evict(tn_session *session);
/* Frees memory for a batch, after TN_E_FULL. False: nothing can be evicted. */
bool tn__prefixes_make_room(tn_session *session);

/* ---- Adapters (adapters/sequence_adapters.c) ---- */

void tn__sequence_adapters_begin(tn_session *session); /* all sequences have the scales of the parameters */
/* The set of adapters of the graph for tokens of these sequences. */
uint32_t tn__batch_adapters(const tn_session *session, const int32_t *seqs, int32_t n);

/* ---- Moving (memory/kv_move.c) ---- */

/* TN_E_UNSUPPORTED where positions cannot change: they are learned, or there is recurrent state. */
tn_status tn__check_movable_sequence(const tn_session *session, int32_t seq);
/* Compacts the pages of groups with so many holes that a quarter of the pages can be freed. */
tn_status tn__gather_sparse_pages(tn_session *session);

/* ---- The session ---- */

enum { TN__STEP_ROWS = 257 };

/* The mean time of runs. Outliers, which other load has probably disturbed, are limited to slightly above the mean.
 */
typedef struct tn__step_time {
    double ns;
    uint32_t n;    /* number of measurements, including the first ones, which do not count */
    uint64_t seen; /* the number of the last step */
} tn__step_time;
/* The first step of a size makes its graph, the second one may capture its launches. The next ones set the minimum;
 * later ones change it slowly. */
enum { TN__STEPS_SLOW = 2, TN__STEPS_SURE = 6 };
/* A time of which `longest` times the usual one counts at most. */
static inline double tn__undisturbed(double ns, double usual, double longest) {
    return ns < longest * usual ? ns : longest * usual;
}
static inline bool tn__step_is_typical(const tn__step_time *t) { return t->n > TN__STEPS_SLOW; }
static inline void tn__step_time_add(tn__step_time *t, double ns) {
    static const double weight = 0.1, longest = 1.25;
    if (++t->n <= TN__STEPS_SLOW) return;
    if (t->n == TN__STEPS_SLOW + 1 || (t->n <= TN__STEPS_SURE && ns < t->ns))
        t->ns = ns;
    else if (t->n > TN__STEPS_SURE)
        t->ns += weight * (tn__undisturbed(ns, t->ns, longest) - t->ns);
}

struct tn_session {
    tn_session_plan *plan; /* model, parameters, placement, KV cache, graphs */
    tn__staging staging;
    tn__results results;
    tn__embeddings embeddings;
    tn__queued_step queued;
    tn__prefixes prefixes;
    tn__branches branches;
    tn__tiers tiers;
    struct tn_speculator *speculator; /* of tn_session_next, or NULL */
    struct tn__sequence *sequences;   /* generation state per sequence (generate.c) */
    tn_session_stats stats;
    tn__step_time steps[TN__STEP_ROWS]; /* of generation, by their rows */
    uint64_t n_steps;
    double step_ns; /* of the last of them */
    /* Called after every decode, while its results are there: a proposer that needs hidden states. */
    void (*observer)(void *user, const tn_batch *batch);
    void *observer_user;
    tn__notes notes; /* to the other ranks, or from rank 0 */
};

/* Guessed tokens that were accepted count as generated. */
void tn__count_accepted(tn_session *session, int32_t n);

void tn__sequences_free(tn_session *session);
/* The tokens from … to - 1 of a sequence were removed, and those after them have moved up (generate.c). */
void tn__guessing_shift(tn_session *session, int32_t seq, int32_t from, int32_t to);

#endif
