/* Output of the engine thread: pieces of text for the HTTP thread, and the end of each job. */
#include "serve/batch/batch.h"

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
    if (p->finish) served->ended_some = true;
    *served->posted_end = p;
    served->posted_end = &p->next;
}

void output_wake(struct served *served, bool now) {
    now = now || served->ended_some;
    if (!served->posted || (!now && tn_time_ns() < atomic_load(&served->call_after))) return;
    pthread_mutex_lock(&served->lock);
    *served->outbox_end = served->posted;
    served->outbox_end = served->posted_end;
    pthread_mutex_unlock(&served->lock);
    served->posted = NULL;
    served->posted_end = &served->posted;
    served->ended_some = false;
    event_active(served->outbox_ready, EV_READ, 0);
}

void output_end_job(struct served *served, struct job *job, enum finish finish, const struct job_stats *stats,
                    const char *text, size_t length, const char *detail, float *vector, size_t n_vector) {
    struct piece *p;
    /* The request cannot end without a last piece, so wait for memory. */
    while (!(p = piece_new(job, 0, text, length))) {
        struct timespec pause = {.tv_nsec = 10000000};
        nanosleep(&pause, NULL);
    }
    p->finish = finish;
    if (stats) p->stats = *stats;
    if (job->sampler) p->stats.seed = tn_sampler_seed(job->sampler);
    if (finish == FINISH_WORD) snprintf(p->stop_word, sizeof p->stop_word, "%s", detail);
    if (finish == FINISH_ERROR) snprintf(p->error, sizeof p->error, "%s", detail);
    if (stats) p->error_code = stats->error_code;
    p->vector = vector;
    p->n_vector = n_vector;
    post_piece(served, p);
}

static struct job_stats slot_stats(const struct slot *slot) {
    uint64_t now = tn_time_ns(), prompted = slot->prompted ? slot->prompted : now;
    const int32_t n_done = slot->prompted || slot->n_kv > slot->n_prompt ? slot->n_prompt : slot->n_kv;
    return (struct job_stats){
        .n_cached = slot->n_cached,
        .n_prompt = slot->n_prompt,
        .n_predicted = slot->n_predicted,
        .n_done = n_done,
        .n_drafted = slot->n_drafted + (slot->guess ? slot->guess->n : 0),
        .n_accepted = slot->n_accepted + (slot->guess ? slot->n_right : 0),
        .prompt_ms = n_done > slot->n_cached ? (double)(prompted - slot->began) / 1e6 : 0,
        .predicted_ms = (double)(now - prompted) / 1e6,
    };
}

void output_progress(struct engine *e, struct slot *slot) {
    struct job *job = slot->job;
    struct piece *p = job->progress ? piece_new(job, 0, "", 0) : NULL;
    if (!p) return;
    p->progress = true;
    p->stats = slot_stats(slot);
    p->stats.predicted_ms = 0;
    post_piece(e->served, p);
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
    e->served->view.n_prompt_cached += (uint64_t)stats.n_cached;
    e->served->view.n_predicted += (uint64_t)stats.n_predicted;
    if (e->served->view.n_tokens_max < (uint64_t)(stats.n_prompt + stats.n_predicted))
        e->served->view.n_tokens_max = (uint64_t)(stats.n_prompt + stats.n_predicted);
    /* A client that has the answer must see an idle slot. */
    if (e->served->view.slots[stats.id_slot].busy && e->served->view.n_busy_slots) e->served->view.n_busy_slots--;
    e->served->view.slots[stats.id_slot].busy = false;
    e->served->view.slots[stats.id_slot].n_done = slot->n_kv;
    e->served->view.prompt_seconds += stats.prompt_ms / 1e3;
    e->served->view.predicted_seconds += stats.predicted_ms / 1e3;
    pthread_mutex_unlock(&e->served->lock);
    output_end_job(e->served, job, finish, &stats, text, length, detail, NULL, 0);
}

/* Log-probabilities for a token: the model's own, or those after the samplers. Returns how many alternatives there
 * are in e->top; *known says whether there are any probabilities. */
static size_t token_probs(struct engine *e, const struct job *job, tn_token token, const float *logits,
                          float *logprob, bool *known) {
    const size_t n_top = job->n_top > 0 ? (size_t)job->n_top : 0;
    size_t count = 0;
    *known = logits && job->n_top >= 0 &&
             tn_top_logprobs(logits, (size_t)e->served->info.n_vocab, e->top, n_top, token, logprob) == TN_OK;
    if (!*known || !job->sampled_probs) return *known ? n_top : 0;
    if (tn_sampler_candidates(job->sampler, e->top, MAX_TOP, &count) != TN_OK) return 0;
    for (size_t i = 0; i < count; i++)
        if (e->top[i].token == token) *logprob = e->top[i].logprob;
    return count < n_top ? count : n_top;
}

void output_token(struct engine *e, struct slot *slot, tn_token token, const float *logits, const char *text,
                  size_t length, bool of_prompt) {
    struct job *job = slot->job;
    float logprob = 0;
    bool known = false;
    const size_t n_top = token_probs(e, job, token, logits, &logprob, &known);
    struct piece *p = piece_new(job, n_top, text, length);
    if (!p) return; /* without memory this piece of text is lost; the end of the job is still reported */
    p->token = token;
    p->of_prompt = of_prompt;
    p->has_logprob = known;
    p->logprob = logprob;
    if (n_top) memcpy(p->top, e->top, n_top * sizeof *p->top);
    if (job->timings) p->stats = slot_stats(slot);
    post_piece(e->served, p);
}
