/* Output of the engine thread: pieces of text for the HTTP thread, and the end of each job. */
#include "batch.h"

#include <string.h>

static struct piece *piece_new(struct job *job, size_t n_top, const char *text, size_t length) {
    struct piece *p = tn_calloc(1, sizeof *p + n_top * sizeof *p->top);
    if (!p) return NULL;
    p->text = tn_malloc(length + 1);
    if (!p->text) {
        tn_free(p);
        return NULL;
    }
    memcpy(p->text, text, length);
    p->text[length] = '\0';
    p->length = length;
    p->job = job;
    p->token = TN_TOKEN_NONE;
    p->n_top = n_top;
    return p;
}

static void post_piece(struct served *served, struct piece *p) {
    if (p->finish) served->ended_some = true; /* the piece belongs to the HTTP thread once the lock is released */
    pthread_mutex_lock(&served->lock);
    *served->outbox_end = p;
    served->outbox_end = &p->next;
    pthread_mutex_unlock(&served->lock);
    served->posted = true;
}

void output_wake(struct served *served, bool now) {
    now = now || served->ended_some;
    if (!served->posted || (!now && tn_time_ns() < atomic_load(&served->call_after))) return;
    event_active(served->outbox_ready, EV_READ, 0);
    served->posted = served->ended_some = false;
}

void output_end_job(struct served *served, struct job *job, enum finish finish, const struct job_stats *stats,
                    const char *text, size_t length, const char *detail, float *vector, size_t n_vector) {
    struct piece *p;
    /* Without a last piece the request would never end, so wait for memory. */
    while (!(p = piece_new(job, 0, text, length))) {
        struct timespec pause = {.tv_nsec = 10000000};
        nanosleep(&pause, NULL);
    }
    p->finish = finish;
    if (stats) p->stats = *stats;
    if (job->sampler) p->stats.seed = tn_sampler_seed(job->sampler);
    if (finish == FINISH_WORD) snprintf(p->stop_word, sizeof p->stop_word, "%s", detail);
    if (finish == FINISH_ERROR) snprintf(p->error, sizeof p->error, "%s", detail);
    p->vector = vector;
    p->n_vector = n_vector;
    post_piece(served, p);
}

static struct job_stats slot_stats(const struct slot *slot) {
    uint64_t now = tn_time_ns(), prompted = slot->prompted ? slot->prompted : now;
    return (struct job_stats){
        .n_cached = slot->n_cached,
        .n_prompt = slot->n_prompt,
        .n_predicted = slot->n_predicted,
        .prompt_ms = (double)(prompted - slot->began) / 1e6,
        .predicted_ms = (double)(now - prompted) / 1e6,
    };
}

void output_end_slot(struct engine *e, struct slot *slot, enum finish finish, const char *text, size_t length,
                     const char *detail, bool truncated) {
    struct job_stats stats = slot_stats(slot);
    stats.truncated = truncated || slot->shifted;
    struct job *job = slot->job;
    stats.id_slot = (int)(slot - e->slots);
    slot_release(e, slot);
    pthread_mutex_lock(&e->served->lock);
    e->served->view.n_prompt += (uint64_t)(stats.n_prompt - stats.n_cached);
    e->served->view.n_predicted += (uint64_t)stats.n_predicted;
    e->served->view.prompt_seconds += stats.prompt_ms / 1e3;
    e->served->view.predicted_seconds += stats.predicted_ms / 1e3;
    pthread_mutex_unlock(&e->served->lock);
    output_end_job(e->served, job, finish, &stats, text, length, detail, NULL, 0);
}

void output_token(struct engine *e, struct slot *slot, tn_token token, const float *logits, const char *text,
                  size_t length, bool of_prompt) {
    struct job *job = slot->job;
    size_t n_top = job->n_top > 0 ? (size_t)job->n_top : 0;
    float logprob = 0;
    bool known = logits && job->n_top >= 0 &&
                 tn_top_logprobs(logits, (size_t)e->served->info.n_vocab, e->top, n_top, token, &logprob) == TN_OK;
    struct piece *p = piece_new(job, known ? n_top : 0, text, length);
    if (!p) return; /* without memory this piece of text is lost; the end of the job is still reported */
    p->token = token;
    p->of_prompt = of_prompt;
    p->has_logprob = known;
    p->logprob = logprob;
    if (known) memcpy(p->top, e->top, n_top * sizeof *p->top);
    post_piece(e->served, p);
}
