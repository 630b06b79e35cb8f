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
    return (tn__query){job->cells - job->tokens + token, 0};
}
static inline int64_t tn__cell_position(const tn__attention_job *job, int64_t cell) {
    return job->k_pos ? job->k_pos[(1 + job->k_words) * cell] : cell;
}
static inline void tn__cell_range(const tn__attention_job *job, int64_t *first, int64_t *end) {
    int64_t lo = job->range ? job->range[0] : 0, hi = job->range ? job->range[1] : job->cells;
    *first = lo < 0 ? 0 : lo;
    *end = hi > job->cells ? job->cells : hi;
}

static inline bool tn__sees(const tn__attention_job *job, tn__query q, int64_t cell) {
    int64_t position = tn__cell_position(job, cell);
    const tn_attention_params *p = &job->params;
    if (position < 0 || q.sequence < 0) return false;
    if (job->k_pos && job->k_words > 0) {
        if (q.sequence >= 32 * job->k_words) return false;
        const int32_t *words = job->k_pos + (1 + job->k_words) * cell + 1;
        if (!((uint32_t)words[q.sequence / 32] >> (q.sequence % 32) & 1)) return false;
    }
    if (p->causal && position > q.position) return false;
    if (p->window > 0 && q.position - position >= p->window) return false;
    if (p->chunk > 0 && position / p->chunk != q.position / p->chunk) return false;
    return true;
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
