/* Embeddings on the engine thread: a batch of waiting texts at a time, between rounds of text generation. */
#include "serve/batch/batch.h"

#include <string.h>

/* Takes waiting texts off the queue, up to `max` of them and `n_tokens` tokens. */
static size_t take_texts(struct engine *e, struct job **jobs, size_t max, int32_t n_tokens) {
    struct served *served = e->served;
    size_t n = 0;
    pthread_mutex_lock(&served->lock);
    for (struct job **at = &served->queue; *at && n < max;) {
        struct job *job = *at;
        if (!job->embed) {
            at = &job->next;
            continue;
        }
        if ((int32_t)job->prompt.count > n_tokens) break;
        n_tokens -= (int32_t)job->prompt.count;
        *at = job->next;
        if (!*at && served->queue_end == &job->next) served->queue_end = at;
        served->n_embed_queued--;
        jobs[n++] = job;
    }
    pthread_mutex_unlock(&served->lock);
    return n;
}

bool embed_round(struct engine *e) {
    enum { MAX_TEXTS = 64 };
    struct served *served = e->served;
    struct job *jobs[MAX_TEXTS];
    if (!served->embedder) return false;
    tn_session_params p = tn_session_get_params(served->embedder);
    size_t n = take_texts(e, jobs, p.n_seqs < MAX_TEXTS ? (size_t)p.n_seqs : MAX_TEXTS, p.n_batch);
    if (n == 0) return false;
    int32_t count = 0;
    uint64_t begin = tn_time_ns();
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < jobs[i]->prompt.count; k++) {
            e->tokens[count] = jobs[i]->prompt.ids[k];
            e->seqs[count] = (int32_t)i;
            e->positions[count++] = (int32_t)k;
        }
    }
    tn_batch batch = {.n_tokens = count, .tokens = e->tokens, .positions = e->positions, .seqs = e->seqs};
    for (int32_t i = 0; served->per_token && i < count; i++) e->outputs[i] = true;
    if (served->per_token) batch.outputs = e->outputs;
    e->embedding = true;
    tn_session_clear(served->embedder);
    tn_status status = TN_OK;
    for (size_t i = 0; i < n && status == TN_OK; i++)
        status = tn_session_seq_adapters(served->embedder, (int32_t)i, jobs[i]->scales);
    if (status == TN_OK) status = tn_session_decode(served->embedder, &batch);
    e->embedding = false;
    double ms = (double)(tn_time_ns() - begin) / 1e6;
    char why[256];
    snprintf(why, sizeof why, "%s", status == TN_OK ? "" : tn_error());
    pthread_mutex_lock(&served->lock);
    served->view.n_decodes++;
    served->view.n_prompt += (uint64_t)count;
    served->view.prompt_seconds += ms / 1e3;
    pthread_mutex_unlock(&served->lock);
    int32_t first = 0; /* of the job's outputs: one per token, or one in all */
    for (size_t i = 0; i < n; i++) {
        const int32_t n_tokens = (int32_t)jobs[i]->prompt.count, n_rows = served->per_token ? n_tokens : 1;
        struct job_stats stats = {.n_prompt = n_tokens, .n_done = n_tokens, .prompt_ms = ms};
        const size_t width = (size_t)served->n_embd, size = width * (size_t)n_rows;
        float *vector = status == TN_OK ? tn_malloc(size * sizeof *vector) : NULL;
        for (int32_t k = 0; vector && k < n_rows; k++) {
            const float *row = tn_session_embedding(served->embedder, first + k);
            if (row) memcpy(vector + (size_t)k * width, row, width * sizeof *vector);
            if (row) continue;
            tn_free(vector);
            vector = NULL;
        }
        first += n_rows;
        if (vector) {
            if (served->ranks) *vector = tn_session_relevance(served->embedder, (int32_t)i);
            output_end_job(served, jobs[i], FINISH_EOS, &stats, "", 0, "", vector, size);
        } else {
            output_end_job(served, jobs[i], FINISH_ERROR, &stats, "", 0, *why ? why : "cannot compute the embedding",
                           NULL, 0);
        }
    }
    return true;
}
