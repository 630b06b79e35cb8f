/* Attention in blocks for any vector vocabulary: soft-max on the fly, the score matrix never exists as a whole.
 *
 * Heads that share a key/value head are rows of one matrix of queries. A piece of work is up to ATT_ROWS of them
 * against a range of cells, taken ATT_CELLS at a time: keys become f32 panels (turned), a register tile gives the
 * scores, rows are masked, exponentiated relative to the largest score so far, and a second tile adds them up with
 * the values. Few queries on many cells (decode) are split over cells in ranges of fixed size; the partial results
 * are combined in order. How pieces fall to threads changes nothing in the sums. */
#include "backend/cpu/kernels/generic/internal.h"
#include "backend/cpu/kernels/generic/visible.h"
#include "backend/cpu/kernels/template/math.h"
#include "backend/cpu/kernels/template/tile.h"

#include <string.h>

enum {
    ATT_ROWS = 96,    /* a multiple of every TILE_COLS; shares the cost of preparing keys and values */
    ATT_CELLS = 128,  /* a multiple of every TILE_ROWS */
    ATT_FEW = 16,     /* up to so many query rows per kv head, cells are split */
    ATT_SPLIT = 1024, /* cells of one split */
    ATT_WORDS = 8,    /* words of sequence bits that block summaries look at */
};

/* One thread's memory, carved out of the scratch. */
typedef struct att_memory {
    float *q;      /* [ATT_ROWS][head_k], scaled */
    float *scores; /* [ATT_ROWS][ATT_CELLS] */
    float *keys;   /* [ATT_CELLS/TILE_ROWS][head_k][TILE_ROWS] */
    float *values; /* [groups][ATT_CELLS][TILE_ROWS] */
    float *sums;   /* [ATT_ROWS][groups·TILE_ROWS] */
    float *rows;   /* [VL][larger head] */
} att_memory;

static int64_t att_groups(const tn__attention_job *job) { return (job->head_v + TILE_ROWS - 1) / TILE_ROWS; }
static int64_t att_larger(const tn__attention_job *job) {
    int64_t padded = att_groups(job) * TILE_ROWS;
    return job->head_k > padded ? job->head_k : padded;
}
static size_t att_thread_floats(const tn__attention_job *job) {
    size_t k = (size_t)job->head_k, v = (size_t)att_groups(job) * TILE_ROWS;
    size_t floats = ATT_ROWS * k + ATT_ROWS * ATT_CELLS + ATT_CELLS * k + ATT_CELLS * v + ATT_ROWS * v +
                    (size_t)VL * (size_t)att_larger(job);
    return (floats + 6 * 16 + 15) / 16 * 16;
}
static att_memory att_carve(const tn__attention_job *job, float *at) {
    size_t k = (size_t)job->head_k, v = (size_t)att_groups(job) * TILE_ROWS;
    att_memory m;
    size_t sizes[6] = {ATT_ROWS * k,  ATT_ROWS * ATT_CELLS, ATT_CELLS * k,
                       ATT_CELLS * v, ATT_ROWS * v,         (size_t)VL * (size_t)att_larger(job)};
    float *parts[6];
    for (int i = 0; i < 6; i++) {
        parts[i] = at;
        at += (sizes[i] + 15) / 16 * 16;
    }
    m.q = parts[0], m.scores = parts[1], m.keys = parts[2], m.values = parts[3], m.sums = parts[4], m.rows = parts[5];
    return m;
}

static int64_t att_group_rows(const tn__attention_job *job) { return job->tokens * (job->heads / job->kv_heads); }
static int att_splits(const tn__attention_job *job) {
    if (att_group_rows(job) > ATT_FEW || job->cells <= ATT_SPLIT) return 1;
    return (int)((job->cells + ATT_SPLIT - 1) / ATT_SPLIT);
}
/* A partial result: maximum, sum, weighted values. */
static size_t att_partial_floats(const tn__attention_job *job) { return 2 + (size_t)job->head_v; }
static size_t att_scratch(const tn__attention_job *job, int nth) {
    size_t floats = att_thread_floats(job) * (size_t)nth;
    if (att_splits(job) > 1)
        floats += (size_t)(job->heads * job->tokens) * (size_t)att_splits(job) * att_partial_floats(job);
    return floats * sizeof(float);
}
static float *att_partial(const tn__attention_job *job, int nth, int64_t head, int64_t token, int split) {
    size_t index = ((size_t)token * (size_t)job->heads + (size_t)head) * (size_t)att_splits(job) + (size_t)split;
    return (float *)job->scratch + att_thread_floats(job) * (size_t)nth + index * att_partial_floats(job);
}

static void att_row(tn_type type, const void *from, float *to, int64_t n) {
    int64_t i = 0;
    if (type == TN_F16) {
        for (; i + VL <= n; i += VL) vf_store(to + i, vf_load_f16((const uint16_t *)from + i));
        for (; i < n; i++) to[i] = tn__f16_to_f32(((const uint16_t *)from)[i]);
    } else if (type == TN_BF16) {
        for (; i + VL <= n; i += VL) vf_store(to + i, vf_load_bf16((const uint16_t *)from + i));
        for (; i < n; i++) to[i] = tn__bf16_to_f32(((const uint16_t *)from)[i]);
    } else {
        tn__to_f32_of(type)(from, to, n);
    }
}

static void att_load_keys(const tn__attention_job *job, int64_t kv, int64_t cell, int count, att_memory *m) {
    const char *k = (const char *)job->k + (size_t)kv * job->k_head;
    for (int c = 0; c < count; c += VL) {
        for (int i = 0; i < VL; i++) {
            float *row = m->rows + (size_t)i * (size_t)job->head_k;
            if (c + i < count)
                att_row(job->k_type, k + (size_t)(cell + c + i) * job->k_cell, row, job->head_k);
            else
                memset(row, 0, (size_t)job->head_k * sizeof(float));
        }
        float *panel = m->keys + (size_t)(c / TILE_ROWS) * (size_t)job->head_k * TILE_ROWS;
        turn_rows(m->rows, (size_t)job->head_k, (int)job->head_k, c % TILE_ROWS, panel);
    }
    if (count % TILE_ROWS != 0 && count % TILE_ROWS <= VL) { /* the second vector of the last panel */
        float *panel = m->keys + (size_t)(count / TILE_ROWS) * (size_t)job->head_k * TILE_ROWS;
        for (int64_t d = 0; d < job->head_k; d++) vf_store(panel + d * TILE_ROWS + VL, vf_zero());
    }
}
static void att_load_values(const tn__attention_job *job, int64_t kv, int64_t cell, int count, att_memory *m) {
    const char *v = (const char *)job->v + (size_t)kv * job->v_head;
    int64_t groups = att_groups(job), padded = groups * TILE_ROWS;
    for (int64_t d = job->head_v; d < padded; d++) m->rows[d] = 0;
    for (int c = 0; c < count; c++) {
        att_row(job->v_type, v + (size_t)(cell + c) * job->v_cell, m->rows, job->head_v);
        for (int64_t g = 0; g < groups; g++) {
            float *to = m->values + ((size_t)g * ATT_CELLS + (size_t)c) * TILE_ROWS;
            vf_store(to, vf_load(m->rows + g * TILE_ROWS));
            vf_store(to + VL, vf_load(m->rows + g * TILE_ROWS + VL));
        }
    }
}

/* The positions a query sees are one interval; which cells of those also depends on the sequence. */
typedef struct att_view {
    int32_t low, high, sequence;
    int64_t position;
} att_view;
static att_view att_view_of(const tn__attention_job *job, int64_t token) {
    const tn_attention_params *p = &job->params;
    tn__query q = tn__query_of(job, token);
    int64_t low = 0, high = INT32_MAX;
    if (p->causal) high = q.position;
    if (p->window > 0 && q.position - p->window + 1 > low) low = q.position - p->window + 1;
    if (p->chunk > 0) {
        int64_t start = q.position / p->chunk * p->chunk;
        low = start > low ? start : low;
        high = start + p->chunk - 1 < high ? start + p->chunk - 1 : high;
    }
    if (q.sequence < 0 || high < low) return (att_view){1, 0, -1, q.position};
    return (att_view){(int32_t)low, (int32_t)high, q.sequence, q.position};
}

/* What can be said of a block of cells as a whole. */
typedef struct att_block {
    int32_t position[ATT_CELLS], least, most;
    uint32_t all[ATT_WORDS], any[ATT_WORDS];
} att_block;
static void att_summarise(const tn__attention_job *job, int64_t cell, int count, att_block *b) {
    int words = job->k_pos ? job->k_words : 0;
    b->least = INT32_MAX;
    b->most = INT32_MIN;
    if (!job->k_pos) {
        for (int i = 0; i < count; i++) b->position[i] = (int32_t)(cell + i);
        b->least = (int32_t)cell;
        b->most = (int32_t)(cell + count - 1);
        return;
    }
    for (int w = 0; w < ATT_WORDS; w++) b->all[w] = ~0u, b->any[w] = 0;
    for (int i = 0; i < count; i++) {
        const int32_t *entry = job->k_pos + (size_t)(1 + words) * (size_t)(cell + i);
        b->position[i] = entry[0];
        b->least = entry[0] < b->least ? entry[0] : b->least;
        b->most = entry[0] > b->most ? entry[0] : b->most;
        for (int w = 0; w < words && w < ATT_WORDS; w++) {
            b->all[w] &= (uint32_t)entry[1 + w];
            b->any[w] |= (uint32_t)entry[1 + w];
        }
    }
}
enum { SEES_NONE, SEES_SOME, SEES_ALL };
static int att_sees(const tn__attention_job *job, att_view v, const att_block *b) {
    if (v.sequence < 0 || b->most < v.low || b->least > v.high) return SEES_NONE;
    int result = v.low <= b->least && b->most <= v.high ? SEES_ALL : SEES_SOME;
    if (job->k_pos && job->k_words > 0) {
        if (v.sequence >= 32 * job->k_words) return SEES_NONE;
        int w = v.sequence / 32;
        uint32_t bit = (uint32_t)1 << v.sequence % 32;
        if (w >= ATT_WORDS) return SEES_SOME;
        if (!(b->any[w] & bit)) return SEES_NONE;
        if (!(b->all[w] & bit)) return SEES_SOME;
    }
    return result;
}
/* 0 for cells that are seen, -infinity for others. */
static void att_hide(const tn__attention_job *job, att_view v, const att_block *b, int64_t cell, int count,
                     float *hide) {
    for (int i = 0; i < count; i++)
        hide[i] = b->position[i] >= v.low && b->position[i] <= v.high ? 0 : -__builtin_inff();
    if (job->k_pos && job->k_words > 0) {
        size_t each = (size_t)(1 + job->k_words);
        const int32_t *word = job->k_pos + each * (size_t)cell + 1 + v.sequence / 32;
        for (int i = 0; i < count; i++) {
            if (!((uint32_t)word[each * (size_t)i] >> v.sequence % 32 & 1)) hide[i] = -__builtin_inff();
        }
    }
}

/* Turns one row of raw scores into weights; keeps maximum and sum; returns what earlier sums shrink by. */
static float att_soft_max(float *s, int count, float *most, float *total) {
    vf top = vf_set1(-__builtin_inff());
    int i = 0;
    for (; i + VL <= count; i += VL) top = vf_max(top, vf_load(s + i));
    float largest = vf_most(top);
    for (; i < count; i++) largest = s[i] > largest ? s[i] : largest;
    largest = largest > *most ? largest : *most;
    if (largest == -__builtin_inff()) {
        memset(s, 0, (size_t)count * sizeof(float));
        return 1;
    }
    vf m = vf_set1(largest), sum = vf_zero();
    for (i = 0; i + VL <= count; i += VL) {
        vf e = vf_exp(vf_sub(vf_load(s + i), m));
        vf_store(s + i, e);
        sum = vf_add(sum, e);
    }
    float rest = 0;
    if (i < count) {
        float lanes[VL];
        vf_store(lanes, vf_exp(vf_sub(vf_load_n(s + i, count - i), m)));
        for (int j = 0; i + j < count; j++) {
            s[i + j] = lanes[j];
            rest += lanes[j];
        }
    }
    float shrink = __builtin_expf(*most - largest);
    *total = *total * shrink + (vf_sum(sum) + rest);
    *most = largest;
    return shrink;
}

/* What is added to one row's scores beyond the product. */
static void att_adjust(const tn__attention_job *job, float *s, int count, att_view view, int sees, const att_block *b,
                       int64_t cell, int64_t head, int64_t token, float slope, const float *hide) {
    float cap = job->params.soft_cap;
    if (cap > 0) {
        vf c = vf_set1(cap), inverse = vf_set1(1 / cap);
        for (int i = 0; i < count; i += VL)
            vf_store_n(s + i, vf_mul(c, vf_tanh(vf_mul(vf_load_n(s + i, count - i), inverse))), count - i);
    }
    if (slope > 0) {
        for (int i = 0; i < count; i++) s[i] -= slope * __builtin_fabsf((float)(view.position - b->position[i]));
    }
    if (job->mask) {
        for (int i = 0; i < count; i++) s[i] += tn__mask_value(job, head, token, cell + i);
    }
    if (sees == SEES_SOME) {
        for (int i = 0; i < count; i++) s[i] += hide[i];
        /* A NaN of a hidden cell must not get through. */
        for (int i = 0; i < count; i++) s[i] = hide[i] < 0 ? hide[i] : s[i];
    }
}

static void att_tiles(const float *panels, size_t panel_floats, int n_panels, const float *x, size_t x_next,
                      int depth, float *out, size_t out_next, int row_from, int row_to, bool add) {
    for (int p = 0; p < n_panels; p++) {
        for (int r = row_from; r < row_to; r += TILE_COLS) {
            int cols = row_to - r < TILE_COLS ? row_to - r : TILE_COLS;
            float *to[TILE_COLS];
            for (int j = 0; j < cols; j++) to[j] = out + (size_t)(r + j) * out_next + (size_t)p * TILE_ROWS;
            tiles[cols - 1](panels + (size_t)p * panel_floats, x + (size_t)r * x_next, x_next, depth, add, to,
                            TILE_ROWS);
        }
    }
}

/* Query rows [row, row + rows) of one kv head against cells [first, end). */
static void att_piece(const tn__attention_job *job, int64_t kv, int64_t row, int rows, int64_t first, int64_t end,
                      int split, int nth, att_memory *m) {
    int64_t share = job->heads / job->kv_heads, groups = att_groups(job), padded = groups * TILE_ROWS;
    float most[ATT_ROWS], total[ATT_ROWS], hide[ATT_CELLS];
    int64_t range_first, range_end;
    att_block block;
    tn__cell_range(job, &range_first, &range_end);
    first = first < range_first ? range_first : first;
    end = end > range_end ? range_end : end;
    for (int r = 0; r < rows; r++) {
        int64_t token = (row + r) / share, head = kv * share + (row + r) % share;
        const float *q =
            (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)token * job->q_token);
        vf scale = vf_set1(job->params.scale);
        for (int64_t d = 0; d < job->head_k; d += VL)
            vf_store_n(m->q + (size_t)r * (size_t)job->head_k + d, vf_mul(scale, vf_load_n(q + d, job->head_k - d)),
                       job->head_k - d);
        most[r] = -__builtin_inff();
        total[r] = 0;
    }
    memset(m->sums, 0, (size_t)rows * (size_t)padded * sizeof(float));
    for (int64_t cell = first; cell < end; cell += ATT_CELLS) {
        int count = (int)(end - cell < ATT_CELLS ? end - cell : ATT_CELLS), from = rows, to = 0;
        att_summarise(job, cell, count, &block);
        for (int r = 0; r < rows; r++) { /* the rows that see anything here */
            if (att_sees(job, att_view_of(job, (row + r) / share), &block) == SEES_NONE) continue;
            from = r < from ? r : from;
            to = r + 1;
        }
        if (from >= to) continue;
        att_load_keys(job, kv, cell, count, m);
        att_tiles(m->keys, (size_t)job->head_k * TILE_ROWS, (count + TILE_ROWS - 1) / TILE_ROWS, m->q,
                  (size_t)job->head_k, (int)job->head_k, m->scores, ATT_CELLS, from, to, false);
        int64_t last_token = -1;
        int sees = SEES_NONE;
        att_view view = {0};
        for (int r = from; r < to; r++) {
            int64_t token = (row + r) / share, head = kv * share + (row + r) % share;
            float *s = m->scores + (size_t)r * ATT_CELLS;
            if (token != last_token) {
                view = att_view_of(job, token);
                sees = att_sees(job, view, &block);
                if (sees == SEES_SOME) att_hide(job, view, &block, cell, count, hide);
                last_token = token;
            }
            if (sees == SEES_NONE) {
                memset(s, 0, (size_t)count * sizeof(float));
                continue;
            }
            att_adjust(job, s, count, view, sees, &block, cell, head, token, tn__alibi_slope(job, head), hide);
            float shrink = att_soft_max(s, count, &most[r], &total[r]);
            if (shrink != 1) {
                float *o = m->sums + (size_t)r * (size_t)padded;
                vf by = vf_set1(shrink);
                for (int64_t d = 0; d < padded; d += VL) vf_store(o + d, vf_mul(by, vf_load(o + d)));
            }
        }
        att_load_values(job, kv, cell, count, m);
        att_tiles(m->values, (size_t)ATT_CELLS * TILE_ROWS, (int)groups, m->scores, ATT_CELLS, count, m->sums,
                  (size_t)padded, from, to, true);
    }
    for (int r = 0; r < rows; r++) {
        int64_t token = (row + r) / share, head = kv * share + (row + r) % share;
        float *o = m->sums + (size_t)r * (size_t)padded, *out;
        float by;
        if (att_splits(job) > 1) {
            float *partial = att_partial(job, nth, head, token, split);
            partial[0] = most[r];
            partial[1] = total[r];
            out = partial + 2;
            by = 1;
        } else {
            out = (float *)((char *)job->out + (size_t)head * job->out_head + (size_t)token * job->out_token);
            if (job->sinks && total[r] != 0) { /* a query that sees nothing stays zero */
                float top = job->sinks[head] > most[r] ? job->sinks[head] : most[r];
                float shrink = __builtin_expf(most[r] - top);
                total[r] = total[r] * shrink + __builtin_expf(job->sinks[head] - top);
                by = shrink / total[r];
            } else {
                by = total[r] != 0 ? 1 / total[r] : 0;
            }
        }
        vf factor = vf_set1(by);
        for (int64_t d = 0; d < job->head_v; d += VL)
            vf_store_n(out + d, by == 0 ? vf_zero() : vf_mul(factor, vf_load(o + d)), job->head_v - d);
    }
}

static void att_run(const tn__attention_job *job, int ith, int nth) {
    att_memory m = att_carve(job, (float *)job->scratch + att_thread_floats(job) * (size_t)ith);
    int64_t rows = att_group_rows(job), blocks = (rows + ATT_ROWS - 1) / ATT_ROWS;
    int splits = att_splits(job);
    int64_t pieces = blocks * job->kv_heads * splits;
    /* Later queries see more cells: the longest pieces go first. */
    for (int64_t i = ith; i < pieces; i += nth) {
        int split = (int)(i % splits);
        int64_t kv = i / splits % job->kv_heads, block = blocks - 1 - i / splits / job->kv_heads;
        int count = (int)(rows - block * ATT_ROWS < ATT_ROWS ? rows - block * ATT_ROWS : ATT_ROWS);
        int64_t first = splits > 1 ? (int64_t)split * ATT_SPLIT : 0;
        int64_t end = splits > 1 && first + ATT_SPLIT < job->cells ? first + ATT_SPLIT : job->cells;
        att_piece(job, kv, block * ATT_ROWS, count, first, end, split, nth, &m);
    }
}

static void att_combine(const tn__attention_job *job, int ith, int nth) {
    int splits = att_splits(job);
    int64_t from, to;
    tn__share(job->heads * job->tokens, 1, ith, nth, &from, &to);
    for (int64_t i = from; i < to; i++) {
        int64_t head = i % job->heads, token = i / job->heads;
        float *out = (float *)((char *)job->out + (size_t)head * job->out_head + (size_t)token * job->out_token);
        float most = -__builtin_inff(), total = 0;
        for (int s = 0; s < splits; s++) {
            const float *p = att_partial(job, nth, head, token, s);
            if (!(p[0] <= most)) most = p[0]; /* a NaN stays */
        }
        bool empty = true;
        for (int s = 0; s < splits; s++) empty = empty && att_partial(job, nth, head, token, s)[1] == 0;
        for (int64_t d = 0; d < job->head_v; d++) out[d] = 0;
        if (empty) continue;
        if (job->sinks && job->sinks[head] > most) most = job->sinks[head];
        for (int s = 0; s < splits; s++) {
            const float *p = att_partial(job, nth, head, token, s);
            if (p[1] == 0) continue;
            float by = __builtin_expf(p[0] - most);
            total += by * p[1];
            for (int64_t d = 0; d < job->head_v; d += VL)
                vf_store_n(
                    out + d,
                    vf_fma(vf_set1(by), vf_load_n(p + 2 + d, job->head_v - d), vf_load_n(out + d, job->head_v - d)),
                    job->head_v - d);
        }
        if (job->sinks) total += __builtin_expf(job->sinks[head] - most);
        vf factor = vf_set1(1 / total);
        for (int64_t d = 0; d < job->head_v; d += VL)
            vf_store_n(out + d, vf_mul(factor, vf_load_n(out + d, job->head_v - d)), job->head_v - d);
    }
}

static void fill_attention(tn__cpu_kernels *table) {
    table->attention_scratch = att_scratch;
    table->attention_splits = att_splits;
    table->attention = att_run;
    table->attention_combine = att_combine;
}
