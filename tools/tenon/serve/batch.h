/* Inside an engine thread: its slots and what its files share. */
#ifndef TENON_SERVE_BATCH_H
#define TENON_SERVE_BATCH_H

#include "serve.h"

#include "tenon/cpu.h"

struct slot {
    struct job *job; /* NULL: idle, the tokens are what the cache remembers */
    tn_token *tokens;
    int32_t count, n_kv; /* tokens in all, and of them in the cache */
    int32_t n_prompt, n_scored, n_predicted, n_cached;
    uint64_t task, began, prompted, used;
    bool fed;          /* in the batch of this round */
    tn_status sampled; /* by the job's generator in this round: TN_OK, TN_END, or an error that `error` describes */
    char error[200];
    bool stalled; /* gave its cells to others and waits for room */
};

/* The logits after the last token of a slot. */
struct sample_row {
    struct slot *slot;
    const float *logits;
};

struct engine {
    struct served *served;
    tn_session *session; /* NULL: an encoder, which only embeds */
    struct slot *slots;
    int n_slots, turn;
    int32_t n_batch, n_piece, n_score;
    tn_token *tokens;
    int32_t *seqs, *positions;
    bool *outputs;
    int32_t n_tokens;
    struct sample_row *rows; /* of this round, one for each slot that gets a token */
    int n_rows;
    atomic_int *next_row;   /* of each thread's share */
    tn_threadpool *threads; /* the sessions', too */
    uint64_t n_tasks, map_time;
    bool embedding; /* the embedder is at work */
    tn_token_prob top[MAX_TOP];
};

void engine_work(struct engine *e); /* until the model is to be unloaded and nobody is at work */
void engine_publish(struct engine *e, bool now);
bool engine_abandon(void *user); /* tn_abort_fn; user is the engine */
/* The last piece of a job; `detail` is the stop word or the error. */
void engine_end_job(struct served *served, struct job *job, enum finish finish, const struct job_stats *stats,
                    const char *text, size_t length, const char *detail, float *vector, size_t n_vector);
bool embed_round(struct engine *e); /* one batch of texts to embed; false when none waits */

#endif
