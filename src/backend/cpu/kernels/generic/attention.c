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

/* The online soft-max of one query and head. */
typedef struct attend_state {
    tn__query query;
    int64_t head, token;
    float slope, most, total;
    const float *q;
    float *out; /* weighted values so far, relative to `most` */
    float *row; /* one key or value as floats */
} attend_state;

/* The sums so far become relative to a larger maximum. */
static void attend_raise(const tn__attention_job *job, attend_state *s, float most) {
    if (!(most > s->most)) return;
    const float shrink = expf(s->most - most);
    s->total *= shrink;
    for (int64_t d = 0; d < job->head_v; d++) s->out[d] *= shrink;
    s->most = most;
}

static void attend_cell(const tn__attention_job *job, attend_state *s, int64_t cell, int64_t position) {
    const tn_attention_params *p = &job->params;
    const int64_t kv = s->head / (job->heads / job->kv_heads);
    const char *k = (const char *)job->k + (size_t)kv * job->k_head + (size_t)cell * job->k_cell;
    tn__to_f32_of(job->k_type)(k, s->row, job->head_k);
    double dot = 0;
    for (int64_t d = 0; d < job->head_k; d++) dot += (double)s->q[d] * s->row[d];
    float score = p->scale * (float)dot;
    if (p->soft_cap > 0) score = p->soft_cap * tanhf(score / p->soft_cap);
    if (s->slope > 0) score -= s->slope * fabsf((float)(s->query.position - position));
    if (job->biased)
        score += job->biases[tn__bias_bucket(&job->buckets, position - s->query.position) * job->heads + s->head];
    score += tn__mask_value(job, s->head, s->token, cell);
    if (score == -INFINITY) return;
    attend_raise(job, s, score);
    const float weight = expf(score - s->most);
    const char *v = (const char *)job->v + (size_t)kv * job->v_head + (size_t)cell * job->v_cell;
    tn__to_f32_of(job->v_type)(v, s->row, job->head_v);
    s->total += weight;
    for (int64_t d = 0; d < job->head_v; d++) s->out[d] += weight * s->row[d];
}

static void attend(const tn__attention_job *job, int64_t head, int64_t token, float *row) {
    attend_state s = {
        .query = tn__query_of(job, token),
        .head = head,
        .token = token,
        .slope = tn__alibi_slope(job, head),
        .most = -INFINITY,
        .q = (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)token * job->q_token),
        .out = (float *)((char *)job->out + (size_t)head * job->out_head + (size_t)token * job->out_token),
        .row = row};
    for (int64_t d = 0; d < job->head_v; d++) s.out[d] = 0;
    if (job->paged) {
        int64_t n;
        const tn_page_run *run = tn__runs_of(job, s.query, &n);
        for (; n > 0; n--, run++) {
            if (!tn__run_is_valid(job, run)) continue;
            for (int32_t o = 0; o < run->count; o++) {
                const int64_t position = tn__position_in_run(run, o);
                if (tn__sees_position(job, s.query, position) && tn__selects_position(job, token, position))
                    attend_cell(job, &s, run->cell + o, position);
            }
        }
    } else {
        for (int64_t cell = 0; cell < job->cells; cell++)
            if (tn__sees_position(job, s.query, cell) && tn__selects_position(job, token, cell))
                attend_cell(job, &s, cell, cell);
    }
    const bool empty = s.total == 0;
    if (job->sinks && !empty) {
        attend_raise(job, &s, job->sinks[head]);
        s.total += expf(job->sinks[head] - s.most);
    }
    for (int64_t d = 0; d < job->head_v; d++) s.out[d] = empty ? 0 : s.out[d] / s.total;
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
