/* Attention in plain C: one query and head at a time, online soft-max, one row of scratch. */
#include <math.h>

#include "backend/cpu/kernels/shared.h"
#include "backend/cpu/kernels/visible.h"

static size_t scratch(const tn__attention_job *job, int nth) {
    size_t floats = (size_t)(job->head_k > job->head_v ? job->head_k : job->head_v) + 16;
    return (size_t)nth * floats * sizeof(float);
}
static int splits(const tn__attention_job *job) {
    (void)job;
    return 1;
}
static void combine(const tn__attention_job *job, int ith, int nth) { (void)job, (void)ith, (void)nth; }

/* `row` holds one key or value as floats. */
static void attend(const tn__attention_job *job, int64_t head, int64_t token, float *row) {
    const tn_attention_params *p = &job->params;
    int64_t kv = head / (job->heads / job->kv_heads), first, end;
    const float *q =
        (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)token * job->q_token);
    float *out = (float *)((char *)job->out + (size_t)head * job->out_head + (size_t)token * job->out_token);
    float slope = tn__alibi_slope(job, head), most = -INFINITY, total = 0;
    tn__query query = tn__query_of(job, token);
    tn__cell_range(job, &first, &end);
    for (int64_t d = 0; d < job->head_v; d++) out[d] = 0;
    for (int64_t cell = first; cell < end; cell++) {
        if (!tn__sees(job, query, cell)) continue;
        const char *k = (const char *)job->k + (size_t)kv * job->k_head + (size_t)cell * job->k_cell;
        tn__to_f32_of(job->k_type)(k, row, job->head_k);
        double dot = 0;
        for (int64_t d = 0; d < job->head_k; d++) dot += (double)q[d] * row[d];
        float score = p->scale * (float)dot;
        if (p->soft_cap > 0) score = p->soft_cap * tanhf(score / p->soft_cap);
        if (slope > 0) score -= slope * fabsf((float)(query.position - tn__cell_position(job, cell)));
        score += tn__mask_value(job, head, token, cell);
        if (score == -INFINITY) continue;
        if (score > most) { /* the sums so far are relative to the old maximum */
            float shrink = expf(most - score);
            total *= shrink;
            for (int64_t d = 0; d < job->head_v; d++) out[d] *= shrink;
            most = score;
        }
        float weight = expf(score - most);
        const char *v = (const char *)job->v + (size_t)kv * job->v_head + (size_t)cell * job->v_cell;
        tn__to_f32_of(job->v_type)(v, row, job->head_v);
        total += weight;
        for (int64_t d = 0; d < job->head_v; d++) out[d] += weight * row[d];
    }
    if (job->sinks && query.sequence >= 0) {
        float sink = job->sinks[head];
        if (sink > most) {
            float shrink = expf(most - sink);
            total *= shrink;
            for (int64_t d = 0; d < job->head_v; d++) out[d] *= shrink;
            most = sink;
        }
        total += expf(sink - most);
    }
    for (int64_t d = 0; d < job->head_v; d++) out[d] = total > 0 || isnan(total) ? out[d] / total : 0;
}

static void attention(const tn__attention_job *job, int ith, int nth) {
    size_t floats = scratch(job, 1) / sizeof(float);
    int64_t from, to;
    tn__share(job->heads * job->tokens, 1, ith, nth, &from, &to);
    for (int64_t i = from; i < to; i++)
        attend(job, i % job->heads, i / job->heads, (float *)job->scratch + (size_t)ith * floats);
}

void tn__kernels_generic_attention(tn__cpu_kernels *table) {
    table->attention_scratch = scratch;
    table->attention_splits = splits;
    table->attention = attention;
    table->attention_combine = combine;
}
