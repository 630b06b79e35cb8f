/* Attention in blocks with online soft-max, which never holds the whole score matrix. A template over the vector
 * type.
 *
 * Heads that share a key/value head are rows of one matrix of queries. A piece of work is up to ATT_ROWS of them
 * times the cells that they see, ATT_CELLS at a time: keys are transposed to f32 panels, a register tile computes the
 * scores, rows are masked and exponentiated relative to the largest score so far, and a second tile multiplies them
 * with the values. Few queries (decode) are split over cells: attention_runs.h. Neither the number of threads nor the
 * location of cells in memory affects the sums.
 *
 * A level with a matrix unit defines ATT_TILED, the name of a header that computes the pieces that suit it. */
#include "backend/cpu/kernels/shared.h"
#include "backend/cpu/kernels/template/convert.h"
#include "backend/cpu/kernels/template/math.h"
#include "backend/cpu/kernels/template/tile.h"
#include "backend/cpu/kernels/visible.h"

#include <string.h>

enum {
    ATT_ROWS = 96,    /* query rows that share prepared keys and values; a multiple of every TILE_COLS */
    ATT_CELLS = 128,  /* a multiple of every TILE_ROWS */
    ATT_FEW = 16,     /* up to this many query rows per kv head, cells are split */
    ATT_GUESSED = 17, /* adjacent tokens of a sequence, at most, that may be one with its guess */
    ATT_SPLIT = 512,  /* cells of one split; twice or more where there would be more than ATT_SPLITS */
    ATT_SPLITS = 32,
    ATT_FIXED_SPLIT = 1024, /* the same in repeatable jobs, by the size of the cache */
    ATT_FIXED_SPLITS = 64,
    ATT_WIDE = 128, /* rows where more than ATT_FEW heads share a kv head: attention_wide.h; splits likewise */
    ATT_WIDE_SPLIT = 128,
    ATT_WIDE_SPLITS = 16,
    ATT_STEP = 16,  /* cells computed at a time when there are few queries; a multiple of every VL */
    ATT_LIST = 256, /* the most and the least cells of a list that few queries process together */
    ATT_LIST_LEAST = 64,
};

/* Many heads share a kv head, so that even one token has many query rows. */
static bool att_is_wide(const tn__attention_job *job) {
    const int64_t share = job->heads / job->kv_heads;
    return share > ATT_FEW && share <= ATT_WIDE && !job->repeatable;
}
/* Cells of a split of a group that sees `cells`. In repeatable jobs all splits have the same length. Wide groups have
 * fewer splits, because their sums take more memory. */
static int64_t att_split_cells(const tn__attention_job *job, int64_t cells) {
    int64_t each = ATT_SPLIT, most = ATT_SPLITS;
    if (att_is_wide(job)) each = ATT_WIDE_SPLIT, most = ATT_WIDE_SPLITS;
    if (job->repeatable) each = ATT_FIXED_SPLIT, most = ATT_FIXED_SPLITS, cells = job->cells;
    while (cells > each * most) each *= 2;
    return each;
}
static int att_splits_of(const tn__attention_job *job, int64_t cells) {
    const int64_t each = att_split_cells(job, cells);
    return cells > each ? (int)((cells + each - 1) / each) : 1;
}

#include "backend/cpu/kernels/template/attention_view.h"

/* One thread's part of the scratch. */
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
static int64_t att_group_rows(const tn__attention_job *job) { return job->tokens * (job->heads / job->kv_heads); }
static int64_t att_few_most(const tn__attention_job *job) { return att_is_wide(job) ? ATT_WIDE : ATT_FEW; }
/* Tokens of a group of few query rows, at most; 0: there is no such group. Repeatable jobs have no others: the two
 * kinds of groups add in different orders. */
static int64_t att_few_tokens(const tn__attention_job *job) {
    const int64_t tokens = att_few_most(job) / (job->heads / job->kv_heads);
    return tokens == 0 && job->repeatable ? 1 : tokens;
}
static bool att_is_windowed(const tn__attention_job *job) {
    return job->params.window > 0 || job->params.chunk > 0 || job->params.window_after > 0;
}
/* Query rows per kv head of a group of few, at most. */
static int64_t att_few_rows(const tn__attention_job *job) {
    const int64_t share = job->heads / job->kv_heads, tokens = att_few_tokens(job);
    return share * (job->tokens < tokens ? job->tokens : tokens);
}
static size_t att_few_floats(const tn__attention_job *job);
static bool att_is_tiled(const tn__attention_job *job);
static size_t att_tiled_floats(const tn__attention_job *job);
/* Of one thread. */
static size_t att_floats(const tn__attention_job *job) {
    const size_t few = att_few_rows(job) > 0 ? att_few_floats(job) : 0, selected = att_selected_floats(job);
    if (job->repeatable || att_group_rows(job) <= att_few_most(job)) return few + selected;
    const size_t floats = att_is_tiled(job) ? att_tiled_floats(job) : att_thread_floats(job);
    return (few > floats ? few : floats) + selected;
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

/* The most splits that a group may have; the contents of page tables are not known when a plan is made. Fewer cells
 * may have more splits, because splits become longer with many cells. */
static int att_splits(const tn__attention_job *job) {
    if (att_few_rows(job) == 0) return 1;
    int64_t cells = job->cells;
    if (job->paged && __builtin_mul_overflow(job->runs, job->params.page, &cells)) cells = INT64_MAX / 2;
    if (job->repeatable) /* and two splits of gaps */
        return att_splits_of(job, cells < job->cells ? cells : job->cells) +
               (job->params.window > 0 || job->params.chunk > 0 ? 2 : 0);
    const int64_t most = att_is_wide(job) ? ATT_WIDE_SPLITS : ATT_SPLITS;
    return cells > most * (att_is_wide(job) ? ATT_WIDE_SPLIT : ATT_SPLIT) ? (int)most : att_splits_of(job, cells);
}
/* A group that is cut between threads. */
typedef struct att_cut {
    int64_t token, tokens, splits;
} att_cut;
/* Maximum, sum of weights and weighted values of one row in one split. */
static size_t att_partial_floats(const tn__attention_job *job) { return 2 + (size_t)job->head_v; }
static size_t att_slot_floats(const tn__attention_job *job) {
    const size_t floats =
        (size_t)(att_few_rows(job) * job->kv_heads) * (size_t)att_splits(job) * att_partial_floats(job);
    return (floats + sizeof(att_cut) / sizeof(float) + 15) / 16 * 16;
}
/* Every thread but the last may begin a group that the next goes on with. Grows monotonically with the number of
 * tokens, so that a reservation for the maximum suffices for all. */
static size_t att_scratch(const tn__attention_job *job, int nth) {
    size_t floats = att_floats(job) * (size_t)nth;
    if (att_splits(job) > 1) floats += att_slot_floats(job) * (size_t)(nth - 1);
    return floats * sizeof(float);
}
static float *att_slot(const tn__attention_job *job, int nth, int slot) {
    return (float *)job->scratch + att_floats(job) * (size_t)nth + att_slot_floats(job) * (size_t)(slot - 1);
}
static att_cut *att_cut_of(const tn__attention_job *job, int nth, int slot) {
    return (att_cut *)(void *)att_slot(job, nth, slot);
}
static float *att_partial(const tn__attention_job *job, int nth, int slot, int split, int64_t row) {
    const size_t index = (size_t)split * (size_t)(att_few_rows(job) * job->kv_heads) + (size_t)row;
    return att_slot(job, nth, slot) + sizeof(att_cut) / sizeof(float) + index * att_partial_floats(job);
}

static void att_load_keys(const tn__attention_job *job, int64_t kv, const int32_t *cells, int count, att_memory *m) {
    const char *k = (const char *)job->k + (size_t)kv * job->k_head;
    for (int c = 0; c < count; c += VL) {
        for (int i = 0; i < VL; i++) {
            float *row = m->rows + (size_t)i * (size_t)job->head_k;
            if (c + i < count)
                row_to_f32(job->k_type, k + (size_t)cells[c + i] * job->k_cell, row, job->head_k);
            else
                memset(row, 0, (size_t)job->head_k * sizeof(float));
        }
        float *panel = m->keys + (size_t)(c / TILE_ROWS) * (size_t)job->head_k * TILE_ROWS;
        transpose_rows(m->rows, (size_t)job->head_k, (int)job->head_k, c % TILE_ROWS, panel);
    }
    if (count % TILE_ROWS != 0 && count % TILE_ROWS <= VL) { /* the second vector of the last panel */
        float *panel = m->keys + (size_t)(count / TILE_ROWS) * (size_t)job->head_k * TILE_ROWS;
        for (int64_t d = 0; d < job->head_k; d++) vf_store(panel + d * TILE_ROWS + VL, vf_zero());
    }
}
static void att_load_values(const tn__attention_job *job, int64_t kv, const int32_t *cells, int count,
                            att_memory *m) {
    const char *v = (const char *)job->v + (size_t)kv * job->v_head;
    int64_t groups = att_groups(job), padded = groups * TILE_ROWS;
    for (int64_t d = job->head_v; d < padded; d++) m->rows[d] = 0;
    for (int c = 0; c < count; c++) {
        row_to_f32(job->v_type, v + (size_t)cells[c] * job->v_cell, m->rows, job->head_v);
        for (int64_t g = 0; g < groups; g++) {
            float *to = m->values + ((size_t)g * ATT_CELLS + (size_t)c) * TILE_ROWS;
            vf_store(to, vf_load(m->rows + g * TILE_ROWS));
            vf_store(to + VL, vf_load(m->rows + g * TILE_ROWS + VL));
        }
    }
}

/* Converts one row of scores to weights and updates its maximum and sum. Returns the factor for the earlier sums. */
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
    const float shrink = largest == *most ? 1 : *most == -__builtin_inff() ? 0 : __builtin_expf(*most - largest);
    *total = *total * shrink + (vf_sum(sum) + rest);
    *most = largest;
    return shrink;
}

/* Adds the biases of the cells' relative positions (T5) to one row's scores. */
static void att_add_biases(const tn__attention_job *job, float *s, int count, const int32_t *positions, int64_t head,
                           int64_t token) {
    const tn__bias_buckets *b = &job->buckets;
    const int64_t position = tn__query_of(job, token).position;
    int32_t away[ATT_LIST], bucket[ATT_LIST];
    for (int i = 0; i < count; i++) {
        const int64_t distance = positions[i] - position, size = distance < 0 ? -distance : b->later ? distance : 0;
        away[i] = size < INT32_MAX ? (int32_t)size : INT32_MAX;
        bucket[i] = (distance > 0 ? b->later : 0) + (away[i] < b->exact ? away[i] : b->exact);
    }
    for (int32_t start = 0; start < b->n_starts; start++)
        for (int i = 0; i < count; i++) bucket[i] += away[i] >= b->starts[start];
    for (int i = 0; i < count; i++) s[i] += job->biases[bucket[i] * job->heads + head];
}
/* Soft cap, ALiBi, biases and masks of one row's scores. */
static void att_adjust(const tn__attention_job *job, float *s, int count, int sees, const int32_t *positions,
                       const int32_t *cells, int64_t head, int64_t token, float slope, const float *hide) {
    float cap = job->params.soft_cap;
    if (cap > 0) {
        vf c = vf_set1(cap), inverse = vf_set1(1 / cap);
        for (int i = 0; i < count; i += VL)
            vf_store_n(s + i, vf_mul(c, vf_tanh(vf_mul(vf_load_n(s + i, count - i), inverse))), count - i);
    }
    if (slope > 0) {
        const int64_t position = tn__query_of(job, token).position;
        for (int i = 0; i < count; i++) s[i] -= slope * __builtin_fabsf((float)(position - positions[i]));
    }
    if (job->biased) att_add_biases(job, s, count, positions, head, token);
    if (job->mask) {
        for (int i = 0; i < count; i++) s[i] += tn__mask_value(job, head, token, cells[i]);
    }
    if (sees == SEES_SOME) {
        for (int i = 0; i < count; i++) s[i] += hide[i];
        /* A NaN in a hidden cell must not reach the result. */
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

/* Writes one query's result. */
static void att_finish(const tn__attention_job *job, int64_t head, int64_t token, float most, float total,
                       const float *sums) {
    float *out = (float *)((char *)job->out + (size_t)head * job->out_head + (size_t)token * job->out_token);
    float by = total != 0 ? 1 / total : 0; /* the result of a query that sees no cell is zero */
    if (job->sinks && total != 0) {
        float top = job->sinks[head] > most ? job->sinks[head] : most, shrink = __builtin_expf(most - top);
        by = shrink / (total * shrink + __builtin_expf(job->sinks[head] - top));
    }
    vf factor = vf_set1(by);
    for (int64_t d = 0; d < job->head_v; d += VL) {
        vf v = by == 0 ? vf_zero() : vf_mul(factor, vf_load_n(sums + d, job->head_v - d));
        vf_store_n(out + d, v, job->head_v - d);
    }
}

/* Query rows [row, row + rows) of one kv head, all of one sequence, against the cells. */
static void att_piece(const tn__attention_job *job, int64_t kv, int64_t row, int rows, att_memory *m) {
    int64_t share = job->heads / job->kv_heads, groups = att_groups(job), padded = groups * TILE_ROWS;
    float most[ATT_ROWS], total[ATT_ROWS], hide[ATT_CELLS];
    int32_t cells[ATT_CELLS], positions[ATT_CELLS];
    const att_span span = att_span_of(job, row / share, (row + rows - 1) / share + 1);
    att_cursor cursor = att_cursor_of(job, tn__query_of(job, row / share), span);
    int count;
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
    while ((count = att_cursor_list(job, &cursor, ATT_CELLS, cells, positions)) > 0) {
        const att_span seen = att_span_of_cells(positions, count);
        int from = rows, to = 0;
        for (int r = 0; r < rows; r++) { /* the rows that see anything here */
            if (att_sees_span(att_view_of(job, (row + r) / share), seen) == SEES_NONE) continue;
            from = r < from ? r : from;
            to = r + 1;
        }
        if (from >= to) continue;
        att_load_keys(job, kv, cells, count, m);
        att_tiles(m->keys, (size_t)job->head_k * TILE_ROWS, (count + TILE_ROWS - 1) / TILE_ROWS, m->q,
                  (size_t)job->head_k, (int)job->head_k, m->scores, ATT_CELLS, from, to, false);
        int64_t last_token = -1;
        int sees = SEES_NONE;
        for (int r = from; r < to; r++) {
            int64_t token = (row + r) / share, head = kv * share + (row + r) % share;
            float *s = m->scores + (size_t)r * ATT_CELLS;
            if (token != last_token) {
                const att_span view = att_view_of(job, token);
                sees = att_sees_span(view, seen);
                if (sees == SEES_SOME) att_hide_positions(view, positions, count, hide);
                last_token = token;
            }
            if (sees == SEES_NONE) {
                memset(s, 0, (size_t)count * sizeof(float));
                continue;
            }
            att_adjust(job, s, count, sees, positions, cells, head, token, tn__alibi_slope(job, head), hide);
            float shrink = att_soft_max(s, count, &most[r], &total[r]);
            if (shrink != 1) {
                float *o = m->sums + (size_t)r * (size_t)padded;
                vf by = vf_set1(shrink);
                for (int64_t d = 0; d < padded; d += VL) vf_store(o + d, vf_mul(by, vf_load(o + d)));
            }
        }
        att_load_values(job, kv, cells, count, m);
        att_tiles(m->values, (size_t)ATT_CELLS * TILE_ROWS, (int)groups, m->scores, ATT_CELLS, count, m->sums,
                  (size_t)padded, from, to, true);
    }
    for (int r = 0; r < rows; r++)
        att_finish(job, kv * share + (row + r) % share, (row + r) / share, most[r], total[r],
                   m->sums + (size_t)r * (size_t)padded);
}

#include "backend/cpu/kernels/template/attention_few.h"

#ifdef ATT_TILED
#include ATT_TILED
#else
static int64_t att_tiled_rows(int64_t rows) { return ATT_ROWS; }
static bool att_is_tiled(const tn__attention_job *job) { return false; }
static size_t att_tiled_floats(const tn__attention_job *job) { return 0; }
static void att_tiled_piece(const tn__attention_job *job, int64_t kv, int64_t row, int rows, float *memory) {}
#endif

#include "backend/cpu/kernels/template/attention_runs.h"

static void fill_attention(tn__cpu_kernels *table) {
    table->attention_scratch = att_scratch;
    table->attention_splits = att_splits;
    table->attention = att_run_all;
    table->attention_combine = att_combine;
}
