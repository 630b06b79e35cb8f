/* Attention masks computed from positions: the cells visible to a query, ALiBi slopes and mask values. */
#ifndef TN_CPU_KERNELS_VISIBLE_H
#define TN_CPU_KERNELS_VISIBLE_H

#include <math.h>

#include "backend/cpu/kernels/kernels.h"
#include "base/half.h"

typedef struct tn__query {
    int64_t position;
    int32_t sequence; /* < 0: a padding row */
} tn__query;

static inline tn__query tn__query_of(const tn__attention_job *job, int64_t token) {
    if (job->q_pos) return (tn__query){job->q_pos[2 * token], job->q_pos[2 * token + 1]};
    return (tn__query){job->cells - job->tokens - job->later + token, 0};
}
/* The runs of a query's sequence in the page table. */
static inline const tn_page_run *tn__runs_of(const tn__attention_job *job, tn__query q, int64_t *n) {
    *n = 0;
    if (q.sequence < 0 || q.sequence >= job->sequences) return NULL;
    const tn_page_run *row = job->pages + (size_t)q.sequence * (size_t)(1 + job->runs);
    *n = row->cell < job->runs ? row->cell : job->runs;
    return row + 1;
}
static inline bool tn__run_is_valid(const tn__attention_job *job, const tn_page_run *r) {
    return r->count >= 1 && r->count <= job->params.page && r->cell >= 0 && r->cell <= job->cells - r->count &&
           r->first >= 0 && r->first - 1 <= INT32_MAX - r->count;
}
static inline int64_t tn__position_in_run(const tn_page_run *r, int32_t o) {
    return r->divisor > 1 ? (r->first + o) / r->divisor : r->first + o;
}

/* Whether a query sees a position of its sequence. */
static inline bool tn__sees_position(const tn__attention_job *job, tn__query q, int64_t position) {
    const tn_attention_params *p = &job->params;
    if (p->causal && position > q.position) return false;
    if (p->window > 0 && q.position - position >= p->window) return false;
    if (p->window_after > 0 && position - q.position >= p->window_after) return false;
    return !(p->chunk > 0 && position / p->chunk != q.position / p->chunk);
}

/* Positions of an entry of `selected`. */
static inline int32_t tn__select_block(const tn__attention_job *job) {
    return job->params.select_block > 1 ? job->params.select_block : 1;
}
static inline bool tn__selects_position(const tn__attention_job *job, int64_t token, int64_t position) {
    if (!job->selects) return true;
    const int32_t *entries = job->selected + token * job->n_selected;
    for (int64_t i = 0; i < job->n_selected; i++)
        if (entries[i] >= 0 && entries[i] == position / tn__select_block(job)) return true;
    return false;
}

/* The bucket of a cell's position relative to the query's. */
static inline int32_t tn__bias_bucket(const tn__bias_buckets *b, int64_t distance) {
    const int64_t away = distance < 0 ? -distance : b->later ? distance : 0;
    int32_t bucket = distance > 0 ? b->later : 0;
    if (away < b->exact) return bucket + (int32_t)away;
    bucket += b->exact;
    for (int32_t i = 0; i < b->n_starts; i++) bucket += away >= b->starts[i];
    return bucket;
}

/* ALiBi: heads below the largest power of two use powers of one base, the rest odd powers of its root. */
static inline float tn__alibi_slope(const tn__attention_job *job, int64_t head) {
    if (!(job->params.max_bias > 0)) return 0;
    int64_t power = 1;
    while (power * 2 <= job->heads) power *= 2;
    float base = exp2f(-job->params.max_bias / (float)power), root = exp2f(-job->params.max_bias / 2 / (float)power);
    return head < power ? powf(base, (float)(head + 1)) : powf(root, (float)(2 * (head - power) + 1));
}

static inline float tn__mask_value(const tn__attention_job *job, int64_t head, int64_t token, int64_t cell) {
    if (!job->mask) return 0;
    const char *row = (const char *)job->mask + (size_t)head * job->mask_head + (size_t)token * job->mask_token;
    return job->mask_f16 ? tn__f16_to_f32(((const uint16_t *)row)[cell]) : ((const float *)row)[cell];
}

#endif
