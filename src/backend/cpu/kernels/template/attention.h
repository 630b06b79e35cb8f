/* Attention in blocks for any vector vocabulary: soft-max on the fly, the score matrix never exists as a whole.
 *
 * Heads that share a key/value head are rows of one matrix of queries. A piece of work is up to ATT_ROWS of them
 * against a range of cells, taken ATT_CELLS at a time: keys become f32 panels (turned), a register tile gives the
 * scores, rows are masked, exponentiated relative to the largest score so far, and a second tile adds them up with
 * the values. Few queries on many cells (decode) are split over cells in ranges of fixed size; the partial results
 * are combined in order. How pieces fall to threads changes nothing in the sums.
 *
 * Decode reads every key and value once and is bound by memory: cells are walked in order, all kv heads of a few
 * cells before the next ones, keys are multiplied as they lie, and the next rows are fetched ahead. */
#include "backend/cpu/kernels/generic/internal.h"
#include "backend/cpu/kernels/generic/visible.h"
#include "backend/cpu/kernels/template/convert.h"
#include "backend/cpu/kernels/template/math.h"
#include "backend/cpu/kernels/template/tile.h"

#include <string.h>

enum {
    ATT_ROWS = 96,    /* a multiple of every TILE_COLS; shares the cost of preparing keys and values */
    ATT_CELLS = 128,  /* a multiple of every TILE_ROWS */
    ATT_FEW = 16,     /* up to so many query rows per kv head, cells are split */
    ATT_SPLIT = 512,  /* cells of one split */
    ATT_BATCH = 64,   /* cells at a time when there are few queries */
    ATT_STEP = 16,    /* of which so many of one head before the next head; a multiple of every VL */
    ATT_WORDS = 8,    /* words of sequence bits that block summaries look at */
    ATT_HOLDS = 4096, /* words of a list that says which sequences each block holds */
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
/* Few queries: all of them stay scaled and with their sums while cells stream by. */
static size_t att_few_floats(const tn__attention_job *job) {
    size_t rows = (size_t)(job->heads * job->tokens), k = (size_t)(job->head_k + VL), v = (size_t)(job->head_v + VL);
    size_t larger = k > v ? k : v;
    return (rows * (k + v + 2 + ATT_BATCH) + (size_t)ATT_BATCH * larger + 15) / 16 * 16 + 16;
}
static bool att_is_few(const tn__attention_job *job);
static tn__attention_job att_part(const tn__attention_job *job, int64_t token, int64_t count);
static int64_t att_part_tokens(const tn__attention_job *job);
static size_t att_floats(const tn__attention_job *job) {
    if (att_is_few(job)) return att_few_floats(job);
    size_t floats = att_thread_floats(job), part = 0;
    if (job->k_words > 0) {
        const tn__attention_job few = att_part(job, 0, att_part_tokens(job));
        part = att_few_floats(&few);
    }
    return part > floats ? part : floats;
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
static bool att_is_few(const tn__attention_job *job) { return att_group_rows(job) <= ATT_FEW; }
static int att_splits(const tn__attention_job *job) {
    if (!att_is_few(job) || job->unsplit || job->cells <= ATT_SPLIT) return 1;
    return (int)((job->cells + ATT_SPLIT - 1) / ATT_SPLIT);
}
/* A partial result: maximum, sum, weighted values. */
static size_t att_partial_floats(const tn__attention_job *job) { return 2 + (size_t)job->head_v; }
/* Never less for more tokens, so that what is reserved for the most serves all: partial results are for a few tokens,
 * which is more than for one and more than for many. */
static size_t att_scratch(const tn__attention_job *job, int nth) {
    size_t floats = att_floats(job) * (size_t)nth;
    int64_t few = ATT_FEW / (job->heads / job->kv_heads);
    tn__attention_job split = *job;
    if (split.tokens > few) split.tokens = few;
    if (att_splits(&split) > 1)
        floats += (size_t)(split.heads * split.tokens) * (size_t)att_splits(&split) * att_partial_floats(job);
    return floats * sizeof(float);
}
static float *att_partial(const tn__attention_job *job, int nth, int64_t head, int64_t token, int split) {
    size_t index = ((size_t)token * (size_t)job->heads + (size_t)head) * (size_t)att_splits(job) + (size_t)split;
    return (float *)job->scratch + att_floats(job) * (size_t)nth + index * att_partial_floats(job);
}

static void att_load_keys(const tn__attention_job *job, int64_t kv, int64_t cell, int count, att_memory *m) {
    const char *k = (const char *)job->k + (size_t)kv * job->k_head;
    for (int c = 0; c < count; c += VL) {
        for (int i = 0; i < VL; i++) {
            float *row = m->rows + (size_t)i * (size_t)job->head_k;
            if (c + i < count)
                row_to_f32(job->k_type, k + (size_t)(cell + c + i) * job->k_cell, row, job->head_k);
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
        row_to_f32(job->v_type, v + (size_t)(cell + c) * job->v_cell, m->rows, job->head_v);
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
/* The sequences of a job's tokens as bits, and the part of a block of cells that holds any of them. */
typedef struct att_wanted {
    bool known; /* false: nothing can be said, all cells may be seen */
    uint32_t bits[ATT_WORDS];
} att_wanted;
static att_wanted att_wanted_by(const tn__attention_job *job) {
    att_wanted w = {.known = job->k_pos && job->q_pos && job->k_words > 0 && job->k_words <= ATT_WORDS};
    for (int64_t t = 0; w.known && t < job->tokens; t++) {
        int32_t sequence = job->q_pos[2 * t + 1];
        if (sequence >= 0 && sequence < 32 * job->k_words) w.bits[sequence / 32] |= (uint32_t)1 << sequence % 32;
    }
    return w;
}
static void att_narrow(const tn__attention_job *job, const att_wanted *w, int64_t *cell, int *count) {
    if (!w->known) return;
    const int words = job->k_words;
    int first = *count, last = -1;
    const int32_t *entry = job->k_pos + (size_t)(1 + words) * (size_t)*cell;
    for (int i = 0; i < *count; i++, entry += 1 + words) {
        uint32_t hit = 0;
        for (int k = 0; k < words; k++) hit |= (uint32_t)entry[1 + k] & w->bits[k];
        if (!hit) continue;
        first = i < first ? i : first;
        last = i;
    }
    *cell += last < 0 ? 0 : first;
    *count = last < 0 ? 0 : last + 1 - first;
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

/* Writes one query's result, or its part of it. */
static void att_finish(const tn__attention_job *job, int64_t head, int64_t token, float most, float total,
                       const float *sums, int split, int nth) {
    float *out, by;
    if (att_splits(job) > 1) {
        out = att_partial(job, nth, head, token, split);
        out[0] = most;
        out[1] = total;
        out += 2;
        by = 1;
    } else {
        out = (float *)((char *)job->out + (size_t)head * job->out_head + (size_t)token * job->out_token);
        by = total != 0 ? 1 / total : 0; /* a query that sees nothing stays zero */
        if (job->sinks && total != 0) {
            float top = job->sinks[head] > most ? job->sinks[head] : most, shrink = __builtin_expf(most - top);
            by = shrink / (total * shrink + __builtin_expf(job->sinks[head] - top));
        }
    }
    vf factor = vf_set1(by);
    for (int64_t d = 0; d < job->head_v; d += VL) {
        vf v = by == 0 ? vf_zero() : vf_mul(factor, vf_load_n(sums + d, job->head_v - d));
        vf_store_n(out + d, v, job->head_v - d);
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
    for (int r = 0; r < rows; r++)
        att_finish(job, kv * share + (row + r) % share, (row + r) / share, most[r], total[r],
                   m->sums + (size_t)r * (size_t)padded, split, nth);
}

/* ---- Few queries -------------------------------------------------------------------------------------------------
 */

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
TN__VEC void att_fetch(const char *row, ptrdiff_t ahead, size_t at) {
    __builtin_prefetch((const void *)((uintptr_t)row + (uintptr_t)ahead + at));
}

/* Scores of `rows` queries with VL/rows cells: VL sums over the head, put together at the end. */
TN__VEC void att_dots(tn_type type, const char *keys, size_t stride, int cells, const float *q, size_t q_next,
                      int64_t depth, float *scores, ptrdiff_t ahead, const int rows) {
    vf sum[VL];
    const int wide = VL / rows;
    const char *key[VL];
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++) {
        sum[i] = vf_zero();
        key[i] = keys + (size_t)(i < cells ? i : 0) * stride; /* past the end: any, the result is not used */
    }
    int64_t d = 0;
    for (; d + VL <= depth; d += VL) {
        vf x[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) x[r] = vf_load(q + (size_t)r * q_next + d);
#pragma GCC unroll 16
        for (int c = 0; c < wide; c++) {
            vf k = att_lanes(type, key[c], d, VL);
            att_fetch(key[c], ahead, (size_t)d * (type == TN_F32 ? 4 : 2));
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sum[r * wide + c] = vf_fma(k, x[r], sum[r * wide + c]);
        }
    }
    if (d < depth) {
#pragma GCC unroll 16
        for (int c = 0; c < wide; c++) {
            vf k = att_lanes(type, key[c], d, depth - d);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) /* queries are padded with zeros */
                sum[r * wide + c] = vf_fma(k, vf_load(q + (size_t)r * q_next + d), sum[r * wide + c]);
        }
    }
    float all[VL];
    vf_store(all, vf_sums(sum));
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < wide && c < cells; c++) scores[(size_t)r * ATT_BATCH + (size_t)c] = all[r * wide + c];
    }
}

/* Adds the weighted values of `cells` cells to the sums of `rows` queries. */
TN__VEC void att_weigh(tn_type type, const char *values, size_t stride, int cells, const float *weights, float *sums,
                       size_t next, int64_t head_v, ptrdiff_t ahead, const int rows) {
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
            att_fetch(row, ahead, (size_t)d * (type == TN_F32 ? 4 : 2));
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
                                int64_t depth, float *scores, ptrdiff_t ahead, int rows) {                           \
        int r = 0;                                                                                                   \
        for (; r + 4 <= rows; r += 4) {                                                                              \
            for (int c = 0; c < cells; c += VL / 4)                                                                  \
                att_dots(TN_##TYPE, keys + (size_t)c * stride, stride, cells - c, q + (size_t)r * q_next, q_next,    \
                         depth, scores + (size_t)r * ATT_BATCH + c, ahead, 4);                                       \
        }                                                                                                            \
        for (; r + 2 <= rows; r += 2) {                                                                              \
            for (int c = 0; c < cells; c += VL / 2)                                                                  \
                att_dots(TN_##TYPE, keys + (size_t)c * stride, stride, cells - c, q + (size_t)r * q_next, q_next,    \
                         depth, scores + (size_t)r * ATT_BATCH + c, ahead, 2);                                       \
        }                                                                                                            \
        if (r < rows) {                                                                                              \
            for (int c = 0; c < cells; c += VL)                                                                      \
                att_dots(TN_##TYPE, keys + (size_t)c * stride, stride, cells - c, q + (size_t)r * q_next, q_next,    \
                         depth, scores + (size_t)r * ATT_BATCH + c, ahead, 1);                                       \
        }                                                                                                            \
    }                                                                                                                \
    static void att_weigh_##TYPE(const char *values, size_t stride, int cells, const float *weights, float *sums,    \
                                 size_t next, int64_t head_v, ptrdiff_t ahead, int rows) {                           \
        int r = 0;                                                                                                   \
        for (; r + 4 <= rows; r += 4)                                                                                \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, ahead, 4);                                                                       \
        if (rows - r == 3)                                                                                           \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, ahead, 3);                                                                       \
        if (rows - r == 2)                                                                                           \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, ahead, 2);                                                                       \
        if (rows - r == 1)                                                                                           \
            att_weigh(TN_##TYPE, values, stride, cells, weights + (size_t)r * ATT_BATCH, sums + (size_t)r * next,    \
                      next, head_v, ahead, 1);                                                                       \
    }
ATT_TYPED(F32)
ATT_TYPED(F16)
ATT_TYPED(BF16)

/* Types without lanes of their own become floats first. */
static const char *att_as_floats(tn_type *type, const char *from, size_t *stride, int cells, int64_t n, float *buffer,
                                 ptrdiff_t *ahead) {
    size_t bytes = (size_t)(n / tn__block_of(*type)) * (size_t)tn__bytes_of(*type);
    if (*type == TN_F32 || *type == TN_F16 || *type == TN_BF16) return from;
    for (int c = 0; c < cells; c++) {
        for (size_t at = 0; at < bytes; at += 64) att_fetch(from + (size_t)c * *stride, *ahead, at);
        row_to_f32(*type, from + (size_t)c * *stride, buffer + (size_t)c * (size_t)n, n);
    }
    *type = TN_F32;
    *stride = (size_t)n * sizeof(float);
    *ahead = 0;
    return (const char *)buffer;
}

/* Which sequences each block of cells holds, for all parts of a job; false where the list would be too long. */
static bool att_list_holds(const tn__attention_job *job, uint32_t *holds) {
    int64_t first, end, words = job->k_words;
    tn__cell_range(job, &first, &end);
    if (!job->k_pos || words <= 0 || words > ATT_WORDS ||
        (end - first + ATT_BATCH - 1) / ATT_BATCH * words > ATT_HOLDS)
        return false;
    const int32_t *entry = job->k_pos + (size_t)(1 + words) * (size_t)first;
    for (int64_t cell = first; cell < end; holds += words) {
        for (int64_t k = 0; k < words; k++) holds[k] = 0;
        int64_t stop = end - cell < ATT_BATCH ? end : cell + ATT_BATCH;
        for (; cell < stop; cell++, entry += 1 + words)
            for (int64_t k = 0; k < words; k++) holds[k] |= (uint32_t)entry[1 + k];
    }
    return true;
}

/* Kv heads [kv_from, kv_to) against the cells of one split. `holds` may be NULL. */
static void att_few_piece(const tn__attention_job *job, int64_t kv_from, int64_t kv_to, int split, int nth,
                          float *memory, const uint32_t *holds) {
    int64_t share = job->heads / job->kv_heads, each = att_group_rows(job), first, end;
    size_t k_next = (size_t)(job->head_k + VL - 1) / VL * VL, v_next = (size_t)(job->head_v + VL - 1) / VL * VL;
    size_t all = (size_t)(each * (kv_to - kv_from)), per_kv = (size_t)each * ATT_BATCH;
    float *q = memory, *sums = q + all * k_next, *most = sums + all * v_next, *total = most + all;
    float *scores = total + all, *buffer = scores + all * ATT_BATCH, hide[ATT_BATCH];
    att_block block;
    tn__cell_range(job, &first, &end);
    if (att_splits(job) > 1) {
        int64_t from = (int64_t)split * ATT_SPLIT, to = from + ATT_SPLIT;
        first = first < from ? from : first;
        end = end > to ? to : end;
    }
    for (size_t i = 0; i < all; i++) { /* row i: kv head i / each, token and head as in att_piece */
        int64_t kv = kv_from + (int64_t)i / each, r = (int64_t)i % each, head = kv * share + r % share;
        const float *from =
            (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)(r / share) * job->q_token);
        for (int64_t d = 0; d < job->head_k; d += VL)
            vf_store(q + i * k_next + (size_t)d,
                     vf_mul(vf_set1(job->params.scale), vf_load_n(from + d, job->head_k - d)));
        most[i] = -__builtin_inff();
        total[i] = 0;
    }
    memset(sums, 0, all * v_next * sizeof(float));
    const att_wanted wanted = att_wanted_by(job);
    for (int64_t at_cell = first; at_cell < end; at_cell += ATT_BATCH) {
        int64_t cell = at_cell;
        int count = (int)(end - cell < ATT_BATCH ? end - cell : ATT_BATCH);
        if (holds && wanted.known) {
            const uint32_t *here = holds + (at_cell - first) / ATT_BATCH * job->k_words;
            uint32_t hit = 0;
            for (int k = 0; k < job->k_words; k++) hit |= here[k] & wanted.bits[k];
            if (!hit) continue;
        }
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
                size_t stride = job->k_cell, at = (size_t)(kv - kv_from);
                tn_type type = job->k_type;
                const char *k = (const char *)job->k + (size_t)kv * job->k_head + (size_t)(cell + c) * stride;
                ptrdiff_t ahead = att_ahead(kv, kv_from, kv_to, job->k_head, job->k_cell);
                k = att_as_floats(&type, k, &stride, cells, job->head_k, buffer, &ahead);
                (type == TN_F32   ? att_dots_F32
                 : type == TN_F16 ? att_dots_F16
                                  : att_dots_BF16)(k, stride, cells, q + (at * (size_t)each + r_from) * k_next,
                                                   k_next, job->head_k, scores + at * per_kv + r_from * ATT_BATCH + c,
                                                   ahead, r_count);
            }
        }
        for (int64_t t = t_from; t < t_to; t++) {
            att_view view = att_view_of(job, t);
            int sees = att_sees(job, view, &block);
            if (sees == SEES_SOME) att_hide(job, view, &block, cell, count, hide);
            for (size_t i = (size_t)(t * share); i < all; i += (size_t)each) {
                for (int64_t h = 0; h < share; h++) {
                    size_t row = i + (size_t)h;
                    int64_t head = (kv_from + (int64_t)row / each) * share + h;
                    float *s = scores + row * ATT_BATCH;
                    if (sees == SEES_NONE) {
                        memset(s, 0, (size_t)count * sizeof(float));
                        continue;
                    }
                    att_adjust(job, s, count, view, sees, &block, cell, head, t, tn__alibi_slope(job, head), hide);
                    float shrink = att_soft_max(s, count, &most[row], &total[row]);
                    if (shrink == 1) continue;
                    float *o = sums + row * v_next;
                    for (size_t d = 0; d < v_next; d += VL) vf_store(o + d, vf_mul(vf_set1(shrink), vf_load(o + d)));
                }
            }
        }
        for (int c = 0; c < count; c += ATT_STEP) {
            int cells = count - c < ATT_STEP ? count - c : ATT_STEP;
            for (int64_t kv = kv_from; kv < kv_to; kv++) {
                size_t stride = job->v_cell, at = (size_t)(kv - kv_from);
                tn_type type = job->v_type;
                const char *v = (const char *)job->v + (size_t)kv * job->v_head + (size_t)(cell + c) * stride;
                ptrdiff_t ahead = att_ahead(kv, kv_from, kv_to, job->v_head, job->v_cell);
                v = att_as_floats(&type, v, &stride, cells, job->head_v, buffer, &ahead);
                (type == TN_F32   ? att_weigh_F32
                 : type == TN_F16 ? att_weigh_F16
                                  : att_weigh_BF16)(v, stride, cells, scores + at * per_kv + r_from * ATT_BATCH + c,
                                                    sums + (at * (size_t)each + r_from) * v_next, v_next, job->head_v,
                                                    ahead, r_count);
            }
        }
    }
    for (size_t i = 0; i < all; i++) {
        int64_t kv = kv_from + (int64_t)i / each, r = (int64_t)i % each;
        att_finish(job, kv * share + r % share, r / share, most[i], total[i], sums + i * v_next, split, nth);
    }
}

static void att_few(const tn__attention_job *job, int ith, int nth) {
    float *memory = (float *)job->scratch + att_floats(job) * (size_t)ith;
    int64_t from, to;
    tn__share(job->kv_heads * att_splits(job), 1, ith, nth, &from, &to);
    while (from < to) {
        int64_t split = from / job->kv_heads, kv = from % job->kv_heads;
        int64_t kv_to = kv + (to - from) < job->kv_heads ? kv + (to - from) : job->kv_heads;
        att_few_piece(job, kv, kv_to, (int)split, nth, memory, NULL);
        from += kv_to - kv;
    }
}

/* ---- Many queries of many sequences ------------------------------------------------------------------------------
 * Tokens of a batch come sequence by sequence. Long runs of one sequence are matrices; short ones (a token each of
 * many, as a server decodes) share almost no cells, so a few of them at a time go through the cells as few queries
 * do, and each looks only at the blocks of its own sequence. */

static int64_t att_part_tokens(const tn__attention_job *job) {
    int64_t share = job->heads / job->kv_heads, most = ATT_FEW / share > 1 ? ATT_FEW / share : 1;
    return job->tokens < most ? job->tokens : most;
}
/* Some of a job's tokens as a job of their own. */
static tn__attention_job att_part(const tn__attention_job *job, int64_t token, int64_t count) {
    tn__attention_job part = *job;
    part.tokens = count;
    part.unsplit = true;
    if (job->q) part.q = (const char *)job->q + (size_t)token * job->q_token;
    if (job->out) part.out = (float *)((char *)job->out + (size_t)token * job->out_token);
    if (job->q_pos) part.q_pos = job->q_pos + 2 * token;
    if (job->mask) part.mask = (const char *)job->mask + (size_t)token * job->mask_token;
    return part;
}
static int64_t att_same_sequence(const tn__attention_job *job, int64_t token) {
    int64_t n = 1;
    if (!job->q_pos || job->k_words == 0) return job->tokens - token;
    while (token + n < job->tokens && job->q_pos[2 * (token + n) + 1] == job->q_pos[2 * token + 1]) n++;
    return n;
}
/* How many tokens from this one on are treated together, and whether as few. */
static int64_t att_together(const tn__attention_job *job, int64_t token, bool *few) {
    int64_t share = job->heads / job->kv_heads, n = att_same_sequence(job, token), most = att_part_tokens(job);
    *few = n * share <= ATT_FEW;
    while (*few && token + n < job->tokens) {
        int64_t more = att_same_sequence(job, token + n);
        if (n + more > most) break;
        n += more;
    }
    return n;
}

static void att_run(const tn__attention_job *job, int ith, int nth) {
    if (att_is_few(job)) {
        att_few(job, ith, nth);
        return;
    }
    float *memory = (float *)job->scratch + att_floats(job) * (size_t)ith;
    att_memory m = att_carve(job, memory);
    int64_t share = job->heads / job->kv_heads, item = 0, n_parts = 0, n, from, to;
    bool few;
    for (int64_t token = 0; token < job->tokens; token += n) {
        n = att_together(job, token, &few);
        if (few) {
            n_parts++;
            continue;
        }
        /* One kv head after the other, so that its cells stay in the cache; the longest pieces, later queries, first.
         */
        int64_t rows = n * share, blocks = (rows + ATT_ROWS - 1) / ATT_ROWS;
        for (int64_t i = 0; i < blocks * job->kv_heads; i++) {
            if (item++ % nth != ith) continue;
            int64_t kv = i / blocks, block = blocks - 1 - i % blocks;
            int count = (int)(rows - block * ATT_ROWS < ATT_ROWS ? rows - block * ATT_ROWS : ATT_ROWS);
            att_piece(job, kv, token * share + block * ATT_ROWS, count, 0, job->cells, 0, nth, &m);
        }
    }
    tn__share(n_parts * job->kv_heads, 1, ith, nth, &from, &to);
    item = 0;
    uint32_t holds[ATT_HOLDS];
    bool listed = from < to && att_list_holds(job, holds);
    for (int64_t token = 0; token < job->tokens && item < to; token += n) {
        n = att_together(job, token, &few);
        if (!few) continue;
        int64_t kv = from > item ? from - item : 0, kv_to = to - item < job->kv_heads ? to - item : job->kv_heads;
        item += job->kv_heads;
        if (kv >= kv_to) continue;
        const tn__attention_job part = att_part(job, token, n);
        att_few_piece(&part, kv, kv_to, 0, nth, memory, listed ? holds : NULL);
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
