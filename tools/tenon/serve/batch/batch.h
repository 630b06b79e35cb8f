/* The engine thread: its slots, its batches, and the functions that its files share. */
#ifndef TENON_SERVE_BATCH_H
#define TENON_SERVE_BATCH_H

#include "serve/serve.h"
#include "speculate/speculation.h"

#include "tenon/cpu.h"

struct slot {
    struct job *job; /* NULL: idle; `tokens` are then those of the last conversation, with its `key` */
    tn_token *tokens;
    int32_t count, n_kv; /* tokens; how many of them are in the KV cache as this slot's sequence */
    uint64_t key;
    int32_t branch;     /* other texts branch here: a checkpoint is kept at this length; 0: none */
    int32_t checkpoint; /* the last requested one */
    int32_t n_prompt, n_scored, n_predicted, n_cached;
    uint64_t task, began, prompted, used;
    bool in_batch;     /* has tokens in the batch of this round */
    tn_status sampled; /* of the job's generator in this round: TN_OK, TN_END, or an error that `error` describes */
    char error[200];
    uint64_t sample_ns; /* time that sampling its last token took */
    int32_t rest;       /* number of rounds that it still leaves to others */
    bool resting;       /* it leaves this round to others */
    bool stalled;       /* preempted: its cells were freed for others; it waits until its tokens fit again */
    bool shifted;       /* its context was full, and its oldest tokens were removed */
    tn_guess *guess;    /* of this round; NULL: none, or settled */
    int32_t n_right;    /* of its tokens, that were sampled as well */
    int32_t at;         /* the last of them, -1: none; in a tree they are not the first ones */
    int32_t row;        /* of the token before the guess, among the decode's outputs */
    int32_t n_drafted, n_accepted;
};

/* The logits after the last token of a slot. */
struct sample_row {
    struct slot *slot;
    int32_t row; /* of the decode's outputs */
};

struct engine {
    struct served *served;
    tn_session *session; /* NULL: an encoder, which only makes embeddings */
    struct slot *slots;
    int n_slots, turn;
    bool keeps_prefixes;
    int32_t n_batch; /* max tokens of a batch */
    int32_t n_piece; /* max prompt tokens of a batch */
    int32_t n_score; /* max prompt tokens with log-probabilities of a batch */
    /* The batch of this round. */
    tn_token *tokens;
    int32_t *seqs, *positions, *parents;
    bool *outputs, *checkpoints, *guessed;
    int32_t n_tokens;
    bool has_trees; /* of guesses: the batch has parents */
    /* Rows to sample from in this round, one for each slot that gets a token. */
    struct sample_row *rows;
    int n_rows;
    atomic_int *next_row;   /* of each thread's share */
    tn_threadpool *threads; /* used by the sessions, too */
    struct speculation speculation;
    tn_guess *guesses; /* of this round, one for each slot that generates */
    int32_t n_guesses;
    uint64_t n_tasks, map_time, decode_ns; /* decode_ns: of this round */
    bool embedding;                        /* the embedding session is decoding */
    tn_token_prob top[MAX_TOP];
};

/* ---- batch.c, embedder.c ---- */

void engine_run(struct engine *e);                     /* until the model is to be unloaded and no job is left */
void engine_publish_state(struct engine *e, bool now); /* to the HTTP thread */
bool engine_should_abort(void *user);                  /* tn_abort_fn; user is the engine */
bool embed_round(struct engine *e);                    /* embeds one batch of texts; false if none waits */

/* ---- room.c ---- */

/* Dequeues jobs as long as there are slots and cells for them. Cancelled jobs and slot actions need none.
 */
void admit_jobs(struct engine *e);
/* Resumes the oldest preempted job if it fits, or if no other job runs. */
void resume_stalled_job(struct engine *e);
/* Preempts the youngest job if others run: frees its cells; it waits. False if there is none. Kept prefixes have
 * been evicted before. */
bool stall_youngest_job(struct engine *e);
/* Shifts the contexts of slots that are full. */
void shift_full_slots(struct engine *e);

/* ---- guesses.c ---- */

void guesses_make(struct engine *e); /* for the slots that generate in this round */
/* Whether the sampled token equals the next token of the slot's guess, and is therefore in the KV cache. */
bool guess_matches(struct slot *slot, tn_token token);
/* Rolls back guessed tokens that were not sampled. Call before a slot's tokens are kept, and at the end of a round.
 */
void guess_settle(struct engine *e, struct slot *slot);
void guesses_drop(struct engine *e); /* after a failed decode: none are in the KV cache */

/* ---- lost_file.c ---- */

#define LOST_FILE "the model's file was truncated while it was in use"
bool file_is_lost(void);
void fail_all_jobs(struct engine *e, const char *why); /* those in slots and those that wait */

/* ---- slot_cache.c ---- */

void slot_clear(struct engine *e, struct slot *slot); /* removes its tokens from the KV cache */
void slot_assign(struct engine *e, struct slot *slot, struct job *job);
/* Starts its empty sequence with the longest prefix of the job's tokens that the session holds. */
void slot_take_prefix(struct engine *e, struct slot *slot);
void slot_keep_prefix(struct engine *e, struct slot *slot); /* for later jobs, while this one continues */
void slot_release(struct engine *e, struct slot *slot);     /* ends its job; its tokens are kept as a prefix */
/* The idle slot that the job requests, or the least recently used one. NULL: the requested one or all are busy. */
struct slot *slot_choose(struct engine *e, const struct job *job);
void slot_act(struct engine *e, struct job *job); /* saves, restores or erases a slot */

/* ---- output.c ---- */

/* Sends a token with the text that it completed; `logits` for log-probabilities, may be NULL. */
void output_token(struct engine *e, struct slot *slot, tn_token token, const float *logits, const char *text,
                  size_t length, bool of_prompt);
/* Sends the last piece of a job; `detail` is the stop string or the error. Ownership of `vector` passes on. */
void output_end_job(struct served *served, struct job *job, enum finish finish, const struct job_stats *stats,
                    const char *text, size_t length, const char *detail, float *vector, size_t n_vector);
/* The same for the job of a slot, which is idle then. */
void output_end_slot(struct engine *e, struct slot *slot, enum finish finish, const char *text, size_t length,
                     const char *detail, bool truncated);
/* Reports the progress of the prompt of the slot's job, if requested. */
void output_progress(struct engine *e, struct slot *slot);
/* Wakes the HTTP thread for the pieces sent since the last time: `now`, at the end of a job, or when its pause
 * between two calls is over. */
void output_wake(struct served *served, bool now);

#endif
