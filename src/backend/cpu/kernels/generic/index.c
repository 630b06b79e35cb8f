/* Scores of an indexer in plain C. */
#include "backend/cpu/kernels/shared.h"

static float dot_of(const tn__index_job *job, int64_t head, int64_t cell) {
    const float *q = (const float *)(const void *)((const char *)job->q + (size_t)head * job->q_head);
    const float *key = (const float *)(const void *)(job->keys + (size_t)cell * job->key_cell);
    double sum = 0;
    for (int64_t i = 0; i < job->size; i++) sum += (double)q[i] * key[i];
    return (float)sum;
}

static void index_scores(const tn__index_job *job) {
    for (int64_t cell = 0; cell < job->n; cell++) {
        float sum = 0;
        for (int64_t h = 0; h < job->heads; h++) {
            const float dot = dot_of(job, h, cell);
            if (job->weights)
                sum += job->weights[h] * (dot > 0 ? dot : 0);
            else
                job->out[h * job->out_list + cell] = dot;
        }
        if (job->weights) job->out[cell] = sum;
    }
}

void tn__kernels_generic_index(tn__cpu_kernels *table) { table->index_scores = index_scores; }
