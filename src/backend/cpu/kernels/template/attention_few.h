/* Attention of few queries (decode) to the cells of a split: part of the attention template. */
TN__VEC vf att_lanes(tn_type type, const char *row, int64_t i, int64_t left) {
    if (type == TN_F32) return left >= VL ? vf_load((const float *)row + i) : vf_load_n((const float *)row + i, left);
    const uint16_t *h = (const uint16_t *)row + i;
    if (left >= VL) return type == TN_F16 ? vf_load_f16(h) : vf_load_bf16(h);
    uint16_t padded[VL] = {0};
    memcpy(padded, h, (size_t)left * sizeof *h);
    return type == TN_F16 ? vf_load_f16(padded) : vf_load_bf16(padded);
}
/* Prefetches rows of `count` listed cells into the second-level cache, which has far more outstanding requests to
 * memory than the first. */
static void att_prefetch_rows(const char *cell_0, size_t stride, const int32_t *cells, int count, size_t bytes) {
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(cell_0 + (size_t)cells[i] * stride + at, 0, 2);
}

/* Scores of `rows` queries with the listed cells, VL/rows cells at a time: VL sums over the head, reduced together at
 * the end. Lists and rows of scores have room up to the next multiple of ATT_STEP; results past the end are not used.
 * `two`: heads of two vectors, whose queries stay in registers. */
TN__VEC void att_dots(tn_type type, const char *keys, size_t stride, const int32_t *cells, int count, const float *q,
                      size_t q_next, int64_t depth, float *scores, size_t next, const int rows, const bool two) {
    const int wide = VL / rows;
    vf low[4], high[4];
#pragma GCC unroll 4
    for (int r = 0; two && r < rows; r++) {
        low[r] = vf_load(q + (size_t)r * q_next);
        high[r] = vf_load(q + (size_t)r * q_next + VL);
    }
    for (int at = 0; at < count; at += wide) {
        vf sum[VL];
        if (two) {
#pragma GCC unroll 16
            for (int c = 0; c < wide; c++) {
                const char *k = keys + (size_t)cells[at + c] * stride;
                const vf a = att_lanes(type, k, 0, VL), b = att_lanes(type, k, VL, VL);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) sum[r * wide + c] = vf_fma(b, high[r], vf_mul(a, low[r]));
            }
        } else {
#pragma GCC unroll 16
            for (int i = 0; i < VL; i++) sum[i] = vf_zero();
            for (int64_t d = 0; d < depth; d += VL) { /* queries are padded with zeros */
                vf x[4];
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) x[r] = vf_load(q + (size_t)r * q_next + d);
#pragma GCC unroll 16
                for (int c = 0; c < wide; c++) {
                    const vf k = att_lanes(type, keys + (size_t)cells[at + c] * stride, d, depth - d);
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) sum[r * wide + c] = vf_fma(k, x[r], sum[r * wide + c]);
                }
            }
        }
        float all[VL];
        vf_store(all, vf_sums(sum));
        for (int r = 0; r < rows; r++)
            memcpy(scores + (size_t)r * next + at, all + r * wide, (size_t)wide * sizeof *all);
    }
}

/* Adds the weighted values of the listed cells to the sums of `rows` queries. */
TN__VEC void att_weigh(tn_type type, const char *values, size_t stride, const int32_t *cells, int count,
                       const float *weights, size_t next, float *sums, size_t s_next, int64_t head_v,
                       const int rows) {
    int64_t d = 0;
    for (; d + 2 * VL <= head_v; d += 2 * VL) {
        vf a[4], b[4], odd_a[4], odd_b[4]; /* two sums each: additions do not wait for each other */
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            a[r] = vf_load(sums + (size_t)r * s_next + d);
            b[r] = vf_load(sums + (size_t)r * s_next + d + VL);
            odd_a[r] = odd_b[r] = vf_zero();
        }
        int c = 0;
        for (; c + 2 <= count; c += 2) {
            const char *even = values + (size_t)cells[c] * stride, *odd = values + (size_t)cells[c + 1] * stride;
            const vf u = att_lanes(type, even, d, VL), v = att_lanes(type, even, d + VL, VL);
            const vf x = att_lanes(type, odd, d, VL), y = att_lanes(type, odd, d + VL, VL);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const float *w = weights + (size_t)r * next + (size_t)c;
                a[r] = vf_fma(u, vf_set1(w[0]), a[r]);
                b[r] = vf_fma(v, vf_set1(w[0]), b[r]);
                odd_a[r] = vf_fma(x, vf_set1(w[1]), odd_a[r]);
                odd_b[r] = vf_fma(y, vf_set1(w[1]), odd_b[r]);
            }
        }
        if (c < count) {
            const char *row = values + (size_t)cells[c] * stride;
            const vf u = att_lanes(type, row, d, VL), v = att_lanes(type, row, d + VL, VL);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const vf w = vf_set1(weights[(size_t)r * next + (size_t)c]);
                a[r] = vf_fma(u, w, a[r]);
                b[r] = vf_fma(v, w, b[r]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf_store(sums + (size_t)r * s_next + d, vf_add(a[r], odd_a[r]));
            vf_store(sums + (size_t)r * s_next + d + VL, vf_add(b[r], odd_b[r]));
        }
    }
    for (; d < head_v; d += VL) { /* sums are padded */
        for (int c = 0; c < count; c++) {
            const vf u = att_lanes(type, values + (size_t)cells[c] * stride, d, head_v - d);
            for (int r = 0; r < rows; r++) {
                float *to = sums + (size_t)r * s_next + d;
                vf_store(to, vf_fma(u, vf_set1(weights[(size_t)r * next + (size_t)c]), vf_load(to)));
            }
        }
    }
}

#define ATT_DOTS(TYPE, rows)                                                                                         \
    {                                                                                                                \
        const float *x = q + (size_t)r * q_next;                                                                     \
        float *to = scores + (size_t)r * next;                                                                       \
        if (depth == 2 * VL)                                                                                         \
            att_dots(TN_##TYPE, keys, stride, cells, count, x, q_next, depth, to, next, rows, true);                 \
        else                                                                                                         \
            att_dots(TN_##TYPE, keys, stride, cells, count, x, q_next, depth, to, next, rows, false);                \
    }
#define ATT_WEIGH(TYPE, rows)                                                                                        \
    att_weigh(TN_##TYPE, values, stride, cells, count, weights + (size_t)r * next, next, sums + (size_t)r * s_next,  \
              s_next, head_v, rows)
#define ATT_TYPED(TYPE)                                                                                              \
    static void att_dots_##TYPE(const char *keys, size_t stride, const int32_t *cells, int count, const float *q,    \
                                size_t q_next, int64_t depth, float *scores, size_t next, int rows) {                \
        int r = 0;                                                                                                   \
        for (; r + 4 <= rows; r += 4) ATT_DOTS(TYPE, 4)                                                              \
        for (; r + 2 <= rows; r += 2) ATT_DOTS(TYPE, 2)                                                              \
        if (r < rows) ATT_DOTS(TYPE, 1)                                                                              \
    }                                                                                                                \
    static void att_weigh_##TYPE(const char *values, size_t stride, const int32_t *cells, int count,                 \
                                 const float *weights, size_t next, float *sums, size_t s_next, int64_t head_v,      \
                                 int rows) {                                                                         \
        int r = 0;                                                                                                   \
        for (; r + 4 <= rows; r += 4) ATT_WEIGH(TYPE, 4);                                                            \
        if (rows - r == 3) ATT_WEIGH(TYPE, 3);                                                                       \
        if (rows - r == 2) ATT_WEIGH(TYPE, 2);                                                                       \
        if (rows - r == 1) ATT_WEIGH(TYPE, 1);                                                                       \
    }
ATT_TYPED(F32)
ATT_TYPED(F16)
ATT_TYPED(BF16)

static size_t att_row_bytes(tn_type type, int64_t n) {
    return (size_t)(n / tn__block_of(type)) * (size_t)tn__bytes_of(type);
}
static const char *att_key(const tn__attention_job *job, int64_t kv, int64_t cell) {
    return (const char *)job->k + (size_t)kv * job->k_head + (size_t)cell * job->k_cell;
}
static const char *att_value(const tn__attention_job *job, int64_t kv, int64_t cell) {
    return (const char *)job->v + (size_t)kv * job->v_head + (size_t)cell * job->v_cell;
}
/* Types without vector loads are converted to floats, ATT_STEP cells at a time; the converted cells are 0, 1, … */
static bool att_has_lanes(tn_type type) { return type == TN_F32 || type == TN_F16 || type == TN_BF16; }
static const int32_t att_in_order[ATT_STEP] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static void att_to_floats(tn_type type, const char *from, size_t stride, const int32_t *cells, int64_t n,
                          float *buffer) {
    for (int c = 0; c < ATT_STEP; c++) row_to_f32(type, from + (size_t)cells[c] * stride, buffer + c * n, n);
}
/* The listed cells of one kv head: scores of `rows` queries, and their sums of weighted values. */
static void att_score_cells(const tn__attention_job *job, int64_t kv, const int32_t *cells, int count, const float *q,
                            size_t q_next, int rows, float *scores, size_t next, float *buffer) {
    const char *k = att_key(job, kv, 0);
    if (att_has_lanes(job->k_type)) {
        (job->k_type == TN_F32 ? att_dots_F32
         : job->k_type == TN_F16
             ? att_dots_F16
             : att_dots_BF16)(k, job->k_cell, cells, count, q, q_next, job->head_k, scores, next, rows);
        return;
    }
    for (int c = 0; c < count; c += ATT_STEP) {
        att_to_floats(job->k_type, k, job->k_cell, cells + c, job->head_k, buffer);
        att_dots_F32((const char *)buffer, (size_t)job->head_k * sizeof(float), att_in_order, ATT_STEP, q, q_next,
                     job->head_k, scores + c, next, rows);
    }
}
static void att_weigh_cells(const tn__attention_job *job, int64_t kv, const int32_t *cells, int count,
                            const float *weights, size_t next, float *sums, size_t s_next, int rows, float *buffer) {
    const char *v = att_value(job, kv, 0);
    if (att_has_lanes(job->v_type)) {
        (job->v_type == TN_F32 ? att_weigh_F32
         : job->v_type == TN_F16
             ? att_weigh_F16
             : att_weigh_BF16)(v, job->v_cell, cells, count, weights, next, sums, s_next, job->head_v, rows);
        return;
    }
    for (int c = 0; c < count; c += ATT_STEP) {
        att_to_floats(job->v_type, v, job->v_cell, cells + c, job->head_v, buffer);
        att_weigh_F32((const char *)buffer, (size_t)job->head_v * sizeof(float), att_in_order,
                      count - c < ATT_STEP ? count - c : ATT_STEP, weights + c, next, sums, s_next, job->head_v,
                      rows);
    }
}

#include "backend/cpu/kernels/template/attention_wide.h"

/* The state of the online soft-max of some rows: maxima, sums of weights, sums of weighted values. */
typedef struct att_sums {
    float *most, *total, *values;
} att_sums;
/* Arrays of few queries in a thread's part of the scratch. */
typedef struct att_few_memory {
    size_t k_next, v_next;      /* floats from one row of q and of values to the next */
    float *q, *scores, *buffer; /* rows of scores have ATT_LIST floats */
    att_sums now, before;       /* of this split, and of all splits before it */
    att_memory panels;          /* of wide groups: keys, values and rows */
} att_few_memory;
static size_t att_few_floats(const tn__attention_job *job) {
    const size_t each = (size_t)att_few_rows(job), rows = each * (size_t)job->kv_heads;
    const size_t k = (size_t)(job->head_k + VL), v = (size_t)(job->head_v + TILE_ROWS);
    return (rows * (k + 2 * (v + 2) + ATT_LIST) + ATT_STEP * (k > v ? k : v) + att_wide_floats(job) + 15) / 16 * 16;
}
/* `each` queries of every kv head. */
static att_few_memory att_few_carve(const tn__attention_job *job, size_t each, float *at) {
    att_few_memory m = {.k_next = (size_t)(job->head_k + VL - 1) / VL * VL,
                        .v_next = (size_t)(job->head_v + VL - 1) / VL * VL};
    const size_t rows = each * (size_t)job->kv_heads;
    if (att_is_wide(job)) {
        m.v_next = (size_t)att_groups(job) * TILE_ROWS;
        m.panels = att_wide_carve(job, at);
        at += att_wide_floats(job);
    }
    m.q = at;
    m.scores = m.q + rows * m.k_next;
    m.buffer = m.scores + rows * ATT_LIST;
    m.now.values = m.buffer + ATT_STEP * (m.k_next > m.v_next ? m.k_next : m.v_next);
    m.before.values = m.now.values + rows * m.v_next;
    m.now.most = m.before.values + rows * m.v_next;
    m.now.total = m.now.most + rows;
    m.before.most = m.now.total + rows;
    m.before.total = m.before.most + rows;
    return m;
}
/* Row i: kv head kv_from + i / each, token and head as in att_piece. */
static void att_few_begin(const tn__attention_job *job, int64_t kv_from, size_t rows, const att_few_memory *m) {
    int64_t share = job->heads / job->kv_heads, each = att_group_rows(job);
    for (size_t i = 0; i < rows; i++) {
        int64_t kv = kv_from + (int64_t)i / each, r = (int64_t)i % each, head = kv * share + r % share;
        const float *from =
            (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)(r / share) * job->q_token);
        for (int64_t d = 0; d < job->head_k; d += VL)
            vf_store(m->q + i * m->k_next + (size_t)d,
                     vf_mul(vf_set1(job->params.scale), vf_load_n(from + d, job->head_k - d)));
        m->now.most[i] = -__builtin_inff();
        m->now.total[i] = 0;
    }
    memset(m->now.values, 0, rows * m->v_next * sizeof(float));
}
/* Converts a row of scores of `count` listed cells to weights and rescales the earlier sums. The row has room up to
 * the next whole vector. */
static void att_few_weights(const tn__attention_job *job, const att_few_memory *m, float *s, size_t row, int64_t head,
                            int64_t token, int sees, const int32_t *positions, const int32_t *cells, int count,
                            const float *hide) {
    att_adjust(job, s, count, sees, positions, cells, head, token, tn__alibi_slope(job, head), hide);
    for (int i = count; i % VL != 0; i++) s[i] = -__builtin_inff();
    const float shrink = att_soft_max(s, (count + VL - 1) / VL * VL, &m->now.most[row], &m->now.total[row]);
    if (shrink == 1) return;
    float *o = m->now.values + row * m->v_next;
    for (size_t d = 0; d < m->v_next; d += VL) vf_store(o + d, vf_mul(vf_set1(shrink), vf_load(o + d)));
}

/* Adds the sums of later cells to those of earlier ones. */
static void att_fold(int64_t head_v, float *most, float *total, float *values, float later_most, float later_total,
                     const float *later) {
    if (later_total == 0) return;
    const float top = *most >= later_most || *most != *most ? *most : later_most; /* keeps a NaN */
    const float a = *total == 0 ? 0 : __builtin_expf(*most - top), b = __builtin_expf(later_most - top);
    const vf av = vf_set1(a), bv = vf_set1(b);
    for (int64_t d = 0; d < head_v; d += VL)
        vf_store_n(values + d,
                   vf_fma(bv, vf_load_n(later + d, head_v - d), vf_mul(av, vf_load_n(values + d, head_v - d))),
                   head_v - d);
    *total = a * *total + b * later_total;
    *most = top;
}
