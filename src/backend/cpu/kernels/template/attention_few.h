/* Few queries against the cells of a split, as decode has them: part of the attention template. */
TN__VEC vf att_lanes(tn_type type, const char *row, int64_t i, int64_t left) {
    if (type == TN_F32) return left >= VL ? vf_load((const float *)row + i) : vf_load_n((const float *)row + i, left);
    const uint16_t *h = (const uint16_t *)row + i;
    if (left >= VL) return type == TN_F16 ? vf_load_f16(h) : vf_load_bf16(h);
    uint16_t padded[VL] = {0};
    memcpy(padded, h, (size_t)left * sizeof *h);
    return type == TN_F16 ? vf_load_f16(padded) : vf_load_bf16(padded);
}
/* How far from a row the one lies that the next step reads in its place: the same cell of the next kv head, or the
 * first kv head of the next cells. Reading is asked for that far ahead. */
static ptrdiff_t att_ahead(int64_t kv, int64_t kv_from, int64_t kv_to, size_t head, size_t cell) {
    if (kv + 1 < kv_to) return (ptrdiff_t)head;
    return (ptrdiff_t)(ATT_STEP * cell) - (ptrdiff_t)((size_t)(kv - kv_from) * head);
}
/* Asks for `cells` rows that are read soon. Into the second cache: what the first can ask for at a time is far less
 * than memory delivers. The address may lie outside of what is there: nothing is read from it. */
static void att_fetch(uintptr_t rows, size_t stride, int cells, size_t bytes) {
    for (int c = 0; c < cells; c++, rows += stride)
        for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(rows + at), 0, 2);
}

/* Scores of `rows` queries with VL/rows cells: VL sums over the head, put together at the end. `few`: there are fewer
 * cells than that; the first stands in for those past the end, whose scores are not used. */
TN__VEC void att_dots(tn_type type, const char *keys, size_t stride, int cells, const float *q, size_t q_next,
                      int64_t depth, float *scores, const int rows, const bool few) {
    vf sum[VL];
    const int wide = VL / rows;
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) sum[i] = vf_zero();
    int64_t d = 0;
    for (; d + VL <= depth; d += VL) {
        vf x[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) x[r] = vf_load(q + (size_t)r * q_next + d);
#pragma GCC unroll 16
        for (int c = 0; c < wide; c++) {
            vf k = att_lanes(type, keys + (size_t)(few && c >= cells ? 0 : c) * stride, d, VL);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sum[r * wide + c] = vf_fma(k, x[r], sum[r * wide + c]);
        }
    }
    if (d < depth) {
#pragma GCC unroll 16
        for (int c = 0; c < wide; c++) {
            vf k = att_lanes(type, keys + (size_t)(few && c >= cells ? 0 : c) * stride, d, depth - d);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) /* queries are padded with zeros */
                sum[r * wide + c] = vf_fma(k, vf_load(q + (size_t)r * q_next + d), sum[r * wide + c]);
        }
    }
    float all[VL];
    vf_store(all, vf_sums(sum));
    for (int r = 0; r < rows; r++) /* a row of scores has room for those past the end, too */
        memcpy(scores + (size_t)r * ATT_BATCH, all + r * wide, (size_t)wide * sizeof *all);
}
/* The same for heads of two vectors: queries stay in registers, and each cell's address follows from the one before.
 */
TN__VEC void att_dots_two(tn_type type, const char *keys, size_t stride, int cells, const float *q, size_t q_next,
                          float *scores, const int rows) {
    const int wide = VL / rows;
    vf low[4], high[4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        low[r] = vf_load(q + (size_t)r * q_next);
        high[r] = vf_load(q + (size_t)r * q_next + VL);
    }
    for (int at = 0; at < cells; at += wide) {
        const int left = cells - at;
        vf sum[VL];
        if (wide == 1 || left >= wide) { /* always with one: said, or compilers warn of sums past the end */
#pragma GCC unroll 16
            for (int c = 0; c < wide; c++, keys += stride) {
                const vf a = att_lanes(type, keys, 0, VL), b = att_lanes(type, keys, VL, VL);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) sum[r * wide + c] = vf_fma(b, high[r], vf_mul(a, low[r]));
            }
        } else { /* the last cell stands in for those past the end */
#pragma GCC unroll 16
            for (int c = 0; c < wide; c++) {
                const vf a = att_lanes(type, keys, 0, VL), b = att_lanes(type, keys, VL, VL);
                keys += c + 1 < left ? stride : 0;
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) sum[r * wide + c] = vf_fma(b, high[r], vf_mul(a, low[r]));
            }
        }
        float all[VL];
        vf_store(all, vf_sums(sum));
        for (int r = 0; r < rows; r++)
            memcpy(scores + (size_t)r * ATT_BATCH + at, all + r * wide, (size_t)wide * sizeof *all);
    }
}
TN__VEC void att_dots_all(tn_type type, const char *keys, size_t stride, int cells, const float *q, size_t q_next,
                          int64_t depth, float *scores, const int rows) {
    int c = 0;
    if (depth == 2 * VL) {
        att_dots_two(type, keys, stride, cells, q, q_next, scores, rows);
        return;
    }
    for (; c + VL / rows <= cells; c += VL / rows)
        att_dots(type, keys + (size_t)c * stride, stride, cells - c, q, q_next, depth, scores + c, rows, false);
    if (c < cells)
        att_dots(type, keys + (size_t)c * stride, stride, cells - c, q, q_next, depth, scores + c, rows, true);
}

/* Adds the weighted values of `cells` cells to the sums of `rows` queries. */
TN__VEC void att_weigh(tn_type type, const char *values, size_t stride, int cells, const float *weights, float *sums,
                       size_t next, int64_t head_v, const int rows) {
    int64_t d = 0;
    for (; d + 2 * VL <= head_v; d += 2 * VL) {
        vf a[4], b[4];
        const char *row = values;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            a[r] = vf_load(sums + (size_t)r * next + d);
            b[r] = vf_load(sums + (size_t)r * next + d + VL);
        }
        for (int c = 0; c < cells; c++, row += stride) {
            vf u = att_lanes(type, row, d, VL), v = att_lanes(type, row, d + VL, VL);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                vf w = vf_set1(weights[(size_t)r * ATT_BATCH + (size_t)c]);
                a[r] = vf_fma(u, w, a[r]);
                b[r] = vf_fma(v, w, b[r]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf_store(sums + (size_t)r * next + d, a[r]);
            vf_store(sums + (size_t)r * next + d + VL, b[r]);
        }
    }
    for (; d < head_v; d += VL) { /* sums are padded */
        const char *row = values;
        for (int c = 0; c < cells; c++, row += stride) {
            vf u = att_lanes(type, row, d, head_v - d);
            for (int r = 0; r < rows; r++) {
                float *to = sums + (size_t)r * next + d;
                vf_store(to, vf_fma(u, vf_set1(weights[(size_t)r * ATT_BATCH + (size_t)c]), vf_load(to)));
            }
        }
    }
}

#define ATT_TYPED(TYPE)                                                                                              \
    static void att_dots_##TYPE(const char *keys, size_t stride, int cells, const float *q, size_t q_next,           \
                                int64_t depth, float *scores, int rows) {                                            \
        int r = 0;                                                                                                   \
        for (; r + 4 <= rows; r += 4)                                                                                \
            att_dots_all(TN_##TYPE, keys, stride, cells, q + (size_t)r * q_next, q_next, depth,                      \
                         scores + (size_t)r * ATT_BATCH, 4);                                                         \
        for (; r + 2 <= rows; r += 2)                                                                                \
            att_dots_all(TN_##TYPE, keys, stride, cells, q + (size_t)r * q_next, q_next, depth,                      \
                         scores + (size_t)r * ATT_BATCH, 2);                                                         \
        if (r < rows)                                                                                                \
            att_dots_all(TN_##TYPE, keys, stride, cells, q + (size_t)r * q_next, q_next, depth,                      \
                         scores + (size_t)r * ATT_BATCH, 1);                                                         \
    }                                                                                                                \
    static void att_weigh_##TYPE(const char *values, size_t stride, int cells, const float *weights, float *sums,    \
                                 size_t next, int64_t head_v, int rows) {                                            \
        int r = 0;                                                                                                   \
        for (; r + 4 <= rows; r += 4)                                                                                \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, 4);                                                                              \
        if (rows - r == 3)                                                                                           \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, 3);                                                                              \
        if (rows - r == 2)                                                                                           \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, 2);                                                                              \
        if (rows - r == 1)                                                                                           \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, 1);                                                                              \
    }
ATT_TYPED(F32)
ATT_TYPED(F16)
ATT_TYPED(BF16)

/* Types without lanes of their own become floats first. */
static const char *att_as_floats(tn_type *type, const char *from, size_t *stride, int cells, int64_t n,
                                 float *buffer) {
    if (*type == TN_F32 || *type == TN_F16 || *type == TN_BF16) return from;
    for (int c = 0; c < cells; c++) row_to_f32(*type, from + (size_t)c * *stride, buffer + (size_t)c * (size_t)n, n);
    *type = TN_F32;
    *stride = (size_t)n * sizeof(float);
    return (const char *)buffer;
}
static size_t att_row_bytes(tn_type type, int64_t n) {
    return (size_t)(n / tn__block_of(type)) * (size_t)tn__bytes_of(type);
}
static const char *att_key(const tn__attention_job *job, int64_t kv, int64_t cell) {
    return (const char *)job->k + (size_t)kv * job->k_head + (size_t)cell * job->k_cell;
}
static const char *att_value(const tn__attention_job *job, int64_t kv, int64_t cell) {
    return (const char *)job->v + (size_t)kv * job->v_head + (size_t)cell * job->v_cell;
}
/* Up to ATT_STEP cells of one kv head: scores of `rows` queries, and their sums of weighted values. */
static void att_score_step(const tn__attention_job *job, int64_t kv, int64_t cell, int cells, const float *q,
                           size_t q_next, int rows, float *scores, float *buffer) {
    tn_type type = job->k_type;
    size_t stride = job->k_cell;
    const char *k = att_as_floats(&type, att_key(job, kv, cell), &stride, cells, job->head_k, buffer);
    (type == TN_F32   ? att_dots_F32
     : type == TN_F16 ? att_dots_F16
                      : att_dots_BF16)(k, stride, cells, q, q_next, job->head_k, scores, rows);
}
static void att_weigh_step(const tn__attention_job *job, int64_t kv, int64_t cell, int cells, const float *weights,
                           float *sums, size_t next, int rows, float *buffer) {
    tn_type type = job->v_type;
    size_t stride = job->v_cell;
    const char *v = att_as_floats(&type, att_value(job, kv, cell), &stride, cells, job->head_v, buffer);
    (type == TN_F32   ? att_weigh_F32
     : type == TN_F16 ? att_weigh_F16
                      : att_weigh_BF16)(v, stride, cells, weights, sums, next, job->head_v, rows);
}

/* What a walk of few queries through the cells keeps, carved out of a thread's memory. */
typedef struct att_few_memory {
    size_t k_next, v_next; /* floats from one row of q and sums to the next */
    float *q, *sums, *most, *total, *scores, *buffer;
} att_few_memory;
static att_few_memory att_few_carve(const tn__attention_job *job, size_t rows, float *at) {
    att_few_memory m = {.k_next = (size_t)(job->head_k + VL - 1) / VL * VL,
                        .v_next = (size_t)(job->head_v + VL - 1) / VL * VL};
    m.q = at;
    m.sums = m.q + rows * m.k_next;
    m.most = m.sums + rows * m.v_next;
    m.total = m.most + rows;
    m.scores = m.total + rows;
    m.buffer = m.scores + rows * ATT_BATCH;
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
        m->most[i] = -__builtin_inff();
        m->total[i] = 0;
    }
    memset(m->sums, 0, rows * m->v_next * sizeof(float));
}
static void att_few_end(const tn__attention_job *job, int64_t kv_from, size_t rows, int split, int nth,
                        const att_few_memory *m) {
    int64_t share = job->heads / job->kv_heads, each = att_group_rows(job);
    for (size_t i = 0; i < rows; i++) {
        int64_t kv = kv_from + (int64_t)i / each, r = (int64_t)i % each;
        att_finish(job, kv * share + r % share, r / share, m->most[i], m->total[i], m->sums + i * m->v_next, split,
                   nth);
    }
}
/* From scores to weights for one row of `count` cells; what was summed before shrinks with them. */
static void att_few_weights(const tn__attention_job *job, const att_few_memory *m, size_t row, int64_t head,
                            int64_t token, att_view view, int sees, const att_block *block, int64_t cell, int count,
                            const float *hide, float (*soft_max)(float *, int, float *, float *)) {
    float *s = m->scores + row * ATT_BATCH, *o = m->sums + row * m->v_next;
    att_adjust(job, s, count, view, sees, block, cell, head, token, tn__alibi_slope(job, head), hide);
    float shrink = soft_max(s, count, &m->most[row], &m->total[row]);
    if (shrink == 1) return;
    for (size_t d = 0; d < m->v_next; d += VL) vf_store(o + d, vf_mul(vf_set1(shrink), vf_load(o + d)));
}

/* Kv heads [kv_from, kv_to) against the cells of one split. */
static void att_few_piece(const tn__attention_job *job, int64_t kv_from, int64_t kv_to, int split, int nth,
                          float *memory) {
    int64_t share = job->heads / job->kv_heads, each = att_group_rows(job), first, end;
    const size_t all = (size_t)(each * (kv_to - kv_from));
    const size_t k_bytes = att_row_bytes(job->k_type, job->head_k), v_bytes = att_row_bytes(job->v_type, job->head_v);
    const att_few_memory m = att_few_carve(job, all, memory);
    float hide[ATT_BATCH];
    att_block block;
    tn__cell_range(job, &first, &end);
    if (att_splits(job) > 1) {
        int64_t from = (int64_t)split * ATT_SPLIT, to = from + ATT_SPLIT;
        first = first < from ? from : first;
        end = end > to ? to : end;
    }
    att_few_begin(job, kv_from, all, &m);
    const att_wanted wanted = att_wanted_by(job);
    for (int64_t at_cell = first; at_cell < end; at_cell += ATT_BATCH) {
        int64_t cell = at_cell;
        int count = (int)(end - cell < ATT_BATCH ? end - cell : ATT_BATCH);
        att_narrow(job, &wanted, &cell, &count);
        if (count == 0) continue;
        att_summarise(job, cell, count, &block);
        int64_t t_from = job->tokens, t_to = 0;
        for (int64_t t = 0; t < job->tokens; t++) { /* the tokens that see anything here */
            if (att_sees(job, att_view_of(job, t), &block) == SEES_NONE) continue;
            t_from = t < t_from ? t : t_from;
            t_to = t + 1;
        }
        if (t_from >= t_to) continue;
        const size_t r_from = (size_t)(t_from * share);
        const int r_count = (int)((t_to - t_from) * share);
        for (int c = 0; c < count; c += ATT_STEP) { /* in the order of memory: all heads of a few cells */
            int cells = count - c < ATT_STEP ? count - c : ATT_STEP;
            for (int64_t kv = kv_from; kv < kv_to; kv++) {
                const size_t row = (size_t)((kv - kv_from) * each) + r_from;
                att_fetch((uintptr_t)att_key(job, kv, cell + c) +
                              (uintptr_t)att_ahead(kv, kv_from, kv_to, job->k_head, job->k_cell),
                          job->k_cell, cells, k_bytes);
                att_score_step(job, kv, cell + c, cells, m.q + row * m.k_next, m.k_next, r_count,
                               m.scores + row * ATT_BATCH + c, m.buffer);
            }
        }
        for (int64_t t = t_from; t < t_to; t++) {
            att_view view = att_view_of(job, t);
            int sees = att_sees(job, view, &block);
            if (sees == SEES_SOME) att_hide(job, view, &block, cell, count, hide);
            for (size_t i = (size_t)(t * share); i < all; i += (size_t)each) {
                for (int64_t h = 0; h < share; h++) {
                    const size_t row = i + (size_t)h;
                    if (sees == SEES_NONE)
                        memset(m.scores + row * ATT_BATCH, 0, (size_t)count * sizeof(float));
                    else
                        att_few_weights(job, &m, row, (kv_from + (int64_t)row / each) * share + h, t, view, sees,
                                        &block, cell, count, hide, att_soft_max);
                }
            }
        }
        for (int c = 0; c < count; c += ATT_STEP) {
            int cells = count - c < ATT_STEP ? count - c : ATT_STEP;
            for (int64_t kv = kv_from; kv < kv_to; kv++) {
                const size_t row = (size_t)((kv - kv_from) * each) + r_from;
                att_fetch((uintptr_t)att_value(job, kv, cell + c) +
                              (uintptr_t)att_ahead(kv, kv_from, kv_to, job->v_head, job->v_cell),
                          job->v_cell, cells, v_bytes);
                att_weigh_step(job, kv, cell + c, cells, m.scores + row * ATT_BATCH + c, m.sums + row * m.v_next,
                               m.v_next, r_count, m.buffer);
            }
        }
    }
    att_few_end(job, kv_from, all, split, nth, &m);
}

static void att_few(const tn__attention_job *job, int ith, int nth) {
    float *memory = (float *)job->scratch + att_floats(job) * (size_t)ith;
    int64_t from, to;
    tn__share(job->kv_heads * att_splits(job), 1, ith, nth, &from, &to);
    while (from < to) {
        int64_t split = from / job->kv_heads, kv = from % job->kv_heads;
        int64_t kv_to = kv + (to - from) < job->kv_heads ? kv + (to - from) : job->kv_heads;
        att_few_piece(job, kv, kv_to, (int)split, nth, memory);
        from += kv_to - kv;
    }
}
