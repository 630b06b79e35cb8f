/* Attention of one piece in AMX tiles: included by template/attention.h, whose helpers it uses.
 *
 * All matrices are transposed: a tile of scores has 16 cells × 16 queries, so that a vector holds the scores of 16
 * queries with one cell. Maxima, sums and factors are vectors too. No sum runs across lanes, and keys are multiplied
 * in the order in which the cache stores them.
 *
 * Queries, keys, weights and values are rounded to bfloat16, like activations in every mat-mul at this level. Scores
 * are exponents. Where they may be large, queries and keys are each split into two bfloat16, the rounded value and
 * its residue: three multiplications instead of one, which together keep 16 bits. Caches of f32 use the vector code.
 *
 * Keys and values of 64 cells are converted to tiles and used for up to 1024 query rows, 16 at a time. While the
 * vector units compute the weights of one group of 16, the tile unit computes the scores of the next group and then
 * the sums of the last one. The two kinds of instructions are interleaved, because a tile instruction that waits for
 * a register stalls the instructions after it. */
#include "backend/cpu/kernels/amx/tiles.h"

enum {
    ATT_TILED_ROWS = 1024,
    TILED_CELLS = 64,              /* of a block: its tiles stay in the first-level cache */
    TILED_RING = 3,                /* blocks in tile form at the same time: up to three are in the pipeline */
    TILED_GROUP = 16,              /* queries of a tile */
    TILED_VALUES = 512,            /* bfloat16 in a tile */
    TILED_FLOATS = 256,            /* floats in a tile */
    TILED_DEEP = TILED_CELLS / 32, /* tiles of weights of a group */
    TILED_TALL = TILED_CELLS / 16, /* tiles of scores of a group */
    /* Floats from the scores of one group to those of the next. The extra half page keeps the addresses read and
     * written at the same time apart modulo the page size. */
    TILED_SCORES = TILED_GROUP * TILED_CELLS + 512,
    TILED_PARTS = 3,                     /* multiplications for a score that may be large */
    TILED_PHASE_STEPS = TILED_CELLS / 8, /* steps over which the tile instructions of a phase are distributed */
    TILED_LARGE = 48,                    /* scores up to here use one multiplication: weights are in 2^-48…2^48 */
    TILED_HIDDEN = -127,                 /* a bounded score that represents a weight of zero */
};

static bool att_is_tiled(const tn__attention_job *job) {
    return job->k_type != TN_F32 && job->v_type != TN_F32 && !job->biased;
}

/* Rows of a piece, given the total number. More rows share the conversion of keys and values; fewer give enough
 * pieces for many threads. */
static int64_t att_tiled_rows(int64_t rows) {
    int64_t most = ATT_TILED_ROWS;
    while (most > 256 && rows / most < 64) most /= 2;
    return most;
}

/* One thread's memory; tiles are 1 KiB. */
typedef struct tiled_memory {
    uint16_t *q;       /* [rows/16][rounded, residue][steps]: pairs of dimensions × queries */
    uint16_t *keys;    /* of each block [cells/16][rounded, optional residue][steps]: cells × dimensions */
    uint16_t *values;  /* of each block [cells/32][bands]: dimensions × cells */
    uint16_t *weights; /* two of [cells/32]: pairs of cells × queries */
    float *scores;     /* two of [cells][16] */
    float *sums;       /* [rows/16][bands]: dimensions × queries */
    float *kept;       /* [bands] */
    float *rows;       /* [32][larger head], padded with zeros */
    int64_t steps, bands, larger; /* 32 and 16 dimensions each */
} tiled_memory;

/* Cells that some row of the piece sees. Unused entries name cell 0. */
typedef struct tiled_list {
    int32_t cells[TILED_CELLS], positions[TILED_CELLS];
    int count;
    att_span span;
} tiled_list;

/* A block of cells in tile form. */
typedef struct tiled_cells {
    tiled_list list;
    bool parts; /* scores take TILED_PARTS multiplications */
    uint16_t *keys, *values;
} tiled_cells;

static tiled_memory tiled_carve(const tn__attention_job *job, float *at, size_t *floats) {
    tiled_memory m = {.steps = (job->head_k + 31) / 32, .bands = (job->head_v + 31) / 32 * 2};
    m.larger = m.steps * 32 > m.bands * 16 ? m.steps * 32 : m.bands * 16;
    const size_t steps = (size_t)m.steps, bands = (size_t)m.bands, groups = ATT_TILED_ROWS / TILED_GROUP;
    const size_t sizes[8] = {groups * 2 * steps * TILED_FLOATS,
                             TILED_RING * TILED_TALL * 2 * steps * TILED_FLOATS,
                             TILED_RING * TILED_DEEP * bands * TILED_FLOATS,
                             2 * TILED_DEEP * TILED_FLOATS,
                             2 * TILED_SCORES,
                             groups * bands * TILED_FLOATS,
                             bands * TILED_FLOATS,
                             32 * (size_t)m.larger};
    size_t offset[9] = {0};
    for (int i = 0; i < 8; i++) offset[i + 1] = offset[i] + sizes[i];
    *floats = offset[8];
    if (!at) return m;
    m.q = (uint16_t *)(at + offset[0]);
    m.keys = (uint16_t *)(at + offset[1]);
    m.values = (uint16_t *)(at + offset[2]);
    m.weights = (uint16_t *)(at + offset[3]);
    m.scores = at + offset[4];
    m.sums = at + offset[5];
    m.kept = at + offset[6];
    m.rows = at + offset[7];
    return m;
}
static size_t att_tiled_floats(const tn__attention_job *job) {
    size_t floats;
    tiled_carve(job, NULL, &floats);
    return floats;
}

#include "backend/cpu/kernels/amx/attention_operands.h"

/* ---- One group at a time ---- */

/* One stage of the pipeline: scores of the next group, weights of this one, sums of the last one. A NULL pointer
 * skips that part. Both multiplications use four tile registers only, for the reason given in gemm.c. */
typedef struct tiled_stage {
    const uint16_t *q, *keys; /* the next group's */
    float *next;              /* its scores */
    bool parts;               /* which take TILED_PARTS multiplications */
    const float *scores;
    bool bounded; /* scores are finite, between -TILED_LARGE and TILED_LARGE or TILED_HIDDEN, and base is zero */
    vf base;      /* the largest scores, negated */
    vf total;     /* in and out: the sums of weights */
    uint16_t *weights;
    const uint16_t *last, *values; /* the last group's weights */
    float *sums;
} tiled_stage;

/* Multiplication n of TILED_TALL·steps·parts for scores. */
TN__VEC void tiled_score(const tiled_stage *t, int n, const int steps, const int parts) {
    if (steps <= 2 && parts == 1) { /* queries stay in registers */
        const int c = n / steps, s = n % steps;
        const uint16_t *k = t->keys + (size_t)n * TILED_VALUES;
        if (n == 0) {
            tile_load(2, t->q, 64);
            if (steps == 2) tile_load(3, t->q + TILED_VALUES, 64);
        }
        if (s == 0) {
            tile_zero(0);
            tile_load(1, k, 64);
            tile_dot_bf16(0, 1, 2);
        } else {
            tile_load(1, k, 64);
            tile_dot_bf16(0, 1, 3);
        }
        if (s == steps - 1) tile_store(0, t->next + (size_t)c * TILED_FLOATS, 64);
        return;
    }
    /* Two tiles of scores share queries. Parts: rounded × rounded, rounded queries × residues of keys, residues of
     * queries × rounded keys. */
    const int all = parts * steps, pair = n / (2 * all), s = n % (2 * all) / 2, part = s / steps;
    const size_t group = (size_t)((parts > 1 ? 2 : 1) * steps) * TILED_VALUES;
    const uint16_t *k =
        t->keys + (size_t)(2 * pair) * group + (size_t)((part == 1 ? steps : 0) + s % steps) * TILED_VALUES;
    if (n % 2 == 0) {
        if (s == 0) {
            tile_zero(0);
            tile_zero(1);
        }
        tile_load(2, t->q + (size_t)((part == 2 ? steps : 0) + s % steps) * TILED_VALUES, 64);
        tile_load(3, k, 64);
        tile_dot_bf16(0, 3, 2);
        return;
    }
    tile_load(3, k + group, 64);
    tile_dot_bf16(1, 3, 2);
    if (s < all - 1) return;
    tile_store(0, t->next + (size_t)(2 * pair) * TILED_FLOATS, 64);
    tile_store(1, t->next + (size_t)(2 * pair + 1) * TILED_FLOATS, 64);
}

/* Multiplication n of TILED_DEEP·bands for sums; weights stay in registers. */
TN__VEC void tiled_sum(const tiled_stage *t, int n, const int bands) {
    const int band = n / TILED_DEEP, deep = n % TILED_DEEP;
    float *sums = t->sums + (size_t)band * TILED_FLOATS;
    if (n == 0) {
        tile_load(2, t->last, 64);
        tile_load(3, t->last + TILED_VALUES, 64);
    }
    if (deep == 0) tile_load(0, sums, 64);
    tile_load(1, t->values + (size_t)(deep * bands + band) * TILED_VALUES, 64);
    if (deep == 0) {
        tile_dot_bf16(0, 1, 2);
        return;
    }
    tile_dot_bf16(0, 1, 3);
    tile_store(0, sums, 64);
}
_Static_assert(TILED_DEEP == 2, "weights of a group stay in two tiles");

/* 2^x. The fraction is a polynomial with relative error below 2^-13; weights are rounded to 2^-9. -infinity gives
 * zero, NaN stays NaN. */
TN__VEC vf tiled_exp2(vf x) {
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_fma(vf_set1(0.0780245227f), r, vf_set1(0.226067155f));
    p = vf_fma(p, r, vf_set1(0.695833541f));
    p = vf_fma(p, r, vf_set1(0.999925219f));
    return vf_scale2(p, x); /* uses the integer part of x */
}

/* Weights as pairs, rounded to nearest. A NaN may be lost here, but it remains in the total. */
TN__VEC __m512i tiled_weights(vf first, vf second) {
    const __m512i half = _mm512_set1_epi32(0x8000), low = _mm512_add_epi32(_mm512_castps_si512(first), half),
                  high = _mm512_add_epi32(_mm512_castps_si512(second), half);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}

/* The same for bounded scores, in half the instructions. A score plus 127, in units of 2^-8, has the exponent of the
 * power in its upper byte and the fraction f in its lower one. Shifted right by one it is a bfloat16 whose mantissa
 * is f instead of 2^f - 1. A table for 64 values of f holds the difference, which is subtracted first. The error is a
 * fifth larger than that of rounding exact weights, and unbiased. */
static const _Alignas(64) uint8_t tiled_less[64] = {0,  1,  2,  3,  5,  6,  7,  8,  9,  10, 11, 11, 12, 13, 14, 15,
                                                    15, 16, 17, 17, 18, 18, 19, 19, 20, 20, 20, 21, 21, 21, 21, 21,
                                                    21, 22, 22, 21, 21, 21, 21, 21, 21, 20, 20, 19, 19, 19, 18, 17,
                                                    17, 16, 15, 14, 14, 13, 12, 11, 10, 8,  7,  6,  5,  3,  2,  0};
TN__VEC __m512i tiled_powers(vf first, vf second, __m512i less) {
    const vf unit = vf_set1(0x1.8p15f + 127); /* one ulp of such floats is 2^-8 */
    const __m512i low = _mm512_castps_si512(vf_add(first, unit)), high = _mm512_castps_si512(vf_add(second, unit)),
                  both = _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
    const __m512i off =
        _mm512_maskz_permutexvar_epi8(0x5555555555555555, _mm512_srli_epi16(both, 2), less); /* uses six bits */
    return _mm512_srli_epi16(_mm512_sub_epi16(both, off), 1);
}

/* Weights of two cells. Two accumulators, so that additions do not wait for each other. */
TN__VEC __m512i tiled_two(const float *scores, vf base, vf total[2], const int odd, const bool bounded) {
    const vf first = vf_load(scores), second = vf_load(scores + TILED_GROUP);
    if (bounded) {
        const __m512i weights = tiled_powers(first, second, _mm512_load_si512(tiled_less));
        const __m512i ones = _mm512_set1_epi16(0x3f80);
        total[odd] = _mm512_dpbf16_ps(total[odd], (__m512bh)weights, (__m512bh)ones);
        return weights;
    }
    const vf low = tiled_exp2(vf_add(base, first)), high = tiled_exp2(vf_add(base, second));
    total[0] = vf_add(total[0], low);
    total[1] = vf_add(total[1], high);
    return tiled_weights(low, high);
}

/* full: no part is skipped. */
TN__VEC void tiled_stage_of(tiled_stage *t, const int steps, const int parts, const int bands, const bool full,
                            const bool bounded) {
    const int multiplications[2] = {full || t->next ? TILED_TALL * parts * steps : 0,
                                    full || t->sums ? TILED_DEEP * bands : 0};
    const tiled_stage own = *t; /* a copy, which no store can alias */
    vf total[2] = {own.total, vf_zero()};
    tiles_see_memory();
#pragma GCC unroll 2
    for (int phase = 0; phase < 2; phase++) {
#pragma GCC unroll 8
        for (int step = 0; step < TILED_PHASE_STEPS; step++) {
            const int until = (step + 1) * multiplications[phase] / TILED_PHASE_STEPS;
            for (int n = step * multiplications[phase] / TILED_PHASE_STEPS; n < until; n++) {
                if (phase == 0)
                    tiled_score(&own, n, steps, parts);
                else
                    tiled_sum(&own, n, bands);
            }
            if (!full && !own.scores) continue;
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const int done = 4 * (phase * TILED_PHASE_STEPS + step) + 2 * i;
                _mm512_store_si512(own.weights + done * TILED_GROUP,
                                   tiled_two(own.scores + done * TILED_GROUP, own.base, total, i, bounded));
            }
        }
    }
    tiles_see_memory();
    t->total = vf_add(total[0], total[1]);
}
static void tiled_stage_64(tiled_stage *t) { tiled_stage_of(t, 2, 1, 4, true, true); }
static void tiled_stage_128(tiled_stage *t) { tiled_stage_of(t, 4, 1, 8, true, true); }
static void tiled_stage_bounded(tiled_stage *t, int steps, int bands) {
    tiled_stage_of(t, steps, t->parts ? TILED_PARTS : 1, bands, false, true);
}
static void tiled_stage_any(tiled_stage *t, int steps, int bands) {
    tiled_stage_of(t, steps, t->parts ? TILED_PARTS : 1, bands, false, false);
}

/* ---- A piece ---- */

/* The rows of a piece: visible positions and the state of the online soft-max. */
typedef struct tiled_rows {
    int32_t low[ATT_TILED_ROWS], high[ATT_TILED_ROWS], position[ATT_TILED_ROWS];
    float slope[ATT_TILED_ROWS], most[ATT_TILED_ROWS], total[ATT_TILED_ROWS];
    int64_t row, kv;
    int rows;
} tiled_rows;

static void tiled_begin(const tn__attention_job *job, int64_t kv, int64_t row, int rows, tiled_rows *p) {
    const int64_t share = job->heads / job->kv_heads;
    p->row = row;
    p->kv = kv;
    p->rows = rows;
    for (int r = 0; r < (rows + TILED_GROUP - 1) / TILED_GROUP * TILED_GROUP; r++) {
        /* Padding rows of the last group see what the last row sees. */
        const int64_t token = (row + (r < rows ? r : rows - 1)) / share;
        const att_span view = att_view_of(job, token);
        p->low[r] = view.low;
        p->high[r] = view.high;
        p->position[r] = (int32_t)tn__query_of(job, token).position;
        p->slope[r] = r < rows ? tn__alibi_slope(job, kv * share + (row + r) % share) : 0;
        p->most[r] = -__builtin_inff();
        p->total[r] = 0;
    }
}

/* Masks of a group's queries that see some cell of a block, and that see all of them. */
typedef struct tiled_view {
    __mmask16 some, all;
} tiled_view;
static tiled_view tiled_view_of(const tiled_rows *p, int g, att_span span) {
    const __m512i low = _mm512_loadu_si512(p->low + g), high = _mm512_loadu_si512(p->high + g),
                  least = _mm512_set1_epi32(span.low), most = _mm512_set1_epi32(span.high);
    tiled_view v = {_mm512_cmple_epi32_mask(low, most) & _mm512_cmple_epi32_mask(least, high),
                    _mm512_cmple_epi32_mask(low, least) & _mm512_cmple_epi32_mask(most, high)};
    v.all &= v.some;
    return v;
}

/* Soft cap, ALiBi and masks of a group's scores; hidden cells get the score `hidden`. */
static void tiled_adjust(const tn__attention_job *job, const tiled_rows *p, int g, const tiled_list *list, bool hide,
                         float hidden, float *scores) {
    const int64_t share = job->heads / job->kv_heads;
    const float cap = job->params.soft_cap;
    const __m512i low = _mm512_loadu_si512(p->low + g), high = _mm512_loadu_si512(p->high + g),
                  position = _mm512_loadu_si512(p->position + g);
    const vf slope = vf_load(p->slope + g), never = vf_set1(hidden);
    for (int c = 0; c < list->count; c++) {
        float *at = scores + (size_t)c * TILED_GROUP;
        const __m512i here = _mm512_set1_epi32(list->positions[c]);
        vf s = vf_load(at);
        if (cap > 0) s = vf_mul(vf_set1(cap), vf_tanh(vf_mul(s, vf_set1(1 / cap))));
        if (job->params.max_bias > 0)
            s = vf_fnma(slope, vf_abs(_mm512_cvtepi32_ps(_mm512_sub_epi32(position, here))), s);
        if (job->mask) {
            float masks[TILED_GROUP] = {0};
            for (int i = 0; i < TILED_GROUP && g + i < p->rows; i++)
                masks[i] = tn__mask_value(job, p->kv * share + (p->row + g + i) % share, (p->row + g + i) / share,
                                          list->cells[c]);
            s = vf_add(s, vf_load(masks));
        }
        if (tiled_adjusts(job)) s = vf_mul(s, vf_set1(TILED_LOG2_E));
        if (hide) {
            const vm seen = _mm512_cmple_epi32_mask(low, here) & _mm512_cmple_epi32_mask(here, high);
            s = vf_select(seen, s, never); /* also hides a NaN */
        }
        vf_store(at, s);
    }
    for (int c = list->count; c < TILED_CELLS; c++) vf_store(scores + (size_t)c * TILED_GROUP, never);
}

/* Whether the weights of a group can have base zero, which bounded scores need: no earlier block used another base.
 */
static bool tiled_from_zero(tiled_rows *p, int g) {
    const vf most = vf_load(p->most + g);
    const vm nothing = _mm512_cmp_ps_mask(most, vf_set1(-__builtin_inff()), _CMP_EQ_OQ),
             zero = _mm512_cmp_ps_mask(most, vf_zero(), _CMP_EQ_OQ);
    if ((nothing | zero) != 0xffff) return false;
    vf_store(p->most + g, vf_zero());
    return true;
}

/* The base of a group's weights for scores that are not bounded: the largest score, updated only when it grows by
 * more than 7. Weights may then be as large as 2^7, which costs no precision, and sums are seldom rescaled. */
static void tiled_most(const tiled_memory *m, tiled_rows *p, int g, tiled_stage *t) {
    vf most = vf_load(p->most + g);
    vf top[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) top[i] = vf_load(t->scores + i * TILED_GROUP);
    for (int c = 4; c < TILED_CELLS; c += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) top[i] = vf_max(top[i], vf_load(t->scores + (c + i) * TILED_GROUP));
    }
    const vf here = vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3]));
    const vm grew = vm_less(vf_add(most, vf_set1(7)), here);
    if (vm_any(grew)) {
        /* The factor is zero for queries that have seen no cell; their sums are zero, too. */
        const vf shrink = vf_select(grew, tiled_exp2(vf_sub(most, here)), vf_set1(1));
        float *sums = m->sums + (size_t)(g / TILED_GROUP) * (size_t)m->bands * TILED_FLOATS;
        most = vf_select(grew, here, most);
        t->total = vf_mul(t->total, shrink);
        for (int64_t d = 0; d < 16 * m->bands; d++, sums += TILED_GROUP)
            vf_store(sums, vf_mul(shrink, vf_load(sums)));
        vf_store(p->most + g, most);
    }
    const vm nothing = _mm512_cmp_ps_mask(most, vf_set1(-__builtin_inff()), _CMP_EQ_OQ);
    t->base = vf_select(nothing, vf_zero(), vf_sub(vf_zero(), most));
}

/* A group of queries, starting at row `at` of the piece, and a block of cells (NULL: no item). */
typedef struct tiled_item {
    const tiled_cells *cells;
    int at;
    tiled_view view;
} tiled_item;

/* Items in the pipeline: `now` has scores and needs weights, `last` has weights and needs sums. */
typedef struct tiled_pipeline {
    const tn__attention_job *job;
    const tiled_memory *m;
    tiled_rows *p;
    tiled_item now, last;
    /* Queries of `last` that see no cell of its block. Their sums are restored after the stage, because a weight of
     * zero times a value of NaN would have made them NaN. */
    __mmask16 keep;
    int odd; /* which of the two buffers receives the next item's scores */
} tiled_pipeline;

/* Adjusts the scores of `now` and sets their base. Returns the mask of queries that see no cell. */
static __mmask16 tiled_weigh(const tiled_pipeline *l, float *scores, tiled_stage *t) {
    const tn__attention_job *job = l->job;
    const tiled_cells *c = l->now.cells;
    const tiled_view view = l->now.view;
    /* A bias or mask may exceed the range of the exponent. */
    const bool bounded = !c->parts && !(job->params.max_bias > 0) && !job->mask;
    t->scores = scores;
    t->bounded = bounded && tiled_from_zero(l->p, l->now.at);
    t->total = vf_load(l->p->total + l->now.at);
    if (tiled_adjusts(job) || c->list.count < TILED_CELLS || view.all != 0xffff)
        tiled_adjust(job, l->p, l->now.at, &c->list, view.all != 0xffff,
                     t->bounded ? TILED_HIDDEN : -__builtin_inff(), scores);
    if (!t->bounded) tiled_most(l->m, l->p, l->now.at, t);
    return (__mmask16)(~view.some & first_lanes(l->p->rows - l->now.at));
}

/* The next item's scores, the weights of the one before, the sums of the one before that. */
static void tiled_run_stage(tiled_pipeline *l, tiled_item next, tiled_item now) {
    const tiled_memory *m = l->m;
    const size_t sums = (size_t)m->bands * TILED_FLOATS, q = 2 * (size_t)m->steps * TILED_VALUES;
    __mmask16 unseen = 0;
    tiled_stage t = {0};
    if (next.cells) {
        t.q = m->q + (size_t)(next.at / TILED_GROUP) * q;
        t.keys = next.cells->keys;
        t.parts = next.cells->parts;
        t.next = m->scores + l->odd * TILED_SCORES;
    }
    if (now.cells) unseen = tiled_weigh(l, m->scores + !l->odd * TILED_SCORES, &t);
    t.weights = m->weights + !l->odd * TILED_DEEP * TILED_VALUES;
    if (l->last.cells) {
        t.last = m->weights + l->odd * TILED_DEEP * TILED_VALUES;
        t.values = l->last.cells->values;
        t.sums = m->sums + (size_t)(l->last.at / TILED_GROUP) * sums;
        if (l->keep) memcpy(m->kept, t.sums, sums * sizeof(float));
    }
    const bool full = next.cells && l->last.cells && t.bounded && !t.parts;
    if (full && m->steps == 2 && m->bands == 4)
        tiled_stage_64(&t);
    else if (full && m->steps == 4 && m->bands == 8)
        tiled_stage_128(&t);
    else if (t.bounded)
        tiled_stage_bounded(&t, (int)m->steps, (int)m->bands);
    else
        tiled_stage_any(&t, (int)m->steps, (int)m->bands);
    for (size_t d = 0; l->keep && l->last.cells && d < sums; d += TILED_GROUP)
        _mm512_mask_storeu_ps(t.sums + d, l->keep, vf_load(m->kept + d));
    if (now.cells) vf_store(l->p->total + now.at, t.total);
    l->keep = unseen;
}

static void tiled_advance(tiled_pipeline *l, tiled_item next) {
    const tiled_item none = {0};
    if (l->now.cells && l->last.cells && l->now.at == l->last.at) { /* its sums may have to be rescaled first */
        tiled_run_stage(l, none, none);
        l->last = none;
    }
    tiled_run_stage(l, next, l->now);
    l->last = l->now;
    l->now = next;
    l->odd = !l->odd;
}

static tiled_list tiled_next(const tn__attention_job *job, att_cursor *cursor) {
    tiled_list list = {.count = 0};
    list.count = att_cursor_list(job, cursor, TILED_CELLS, list.cells, list.positions);
    list.span = att_span_of_cells(list.positions, list.count);
    return list;
}

/* Query rows [row, row + rows) of one kv head, all of one sequence, against the cells. */
static void att_tiled_piece(const tn__attention_job *job, int64_t kv, int64_t row, int rows, float *memory) {
    const int64_t share = job->heads / job->kv_heads;
    size_t floats;
    tiled_cells ring[TILED_RING];
    tiled_rows p;
    tiled_memory m = tiled_carve(job, memory, &floats);
    tiled_begin(job, kv, row, rows, &p);
    memset(m.sums, 0, (size_t)((rows + TILED_GROUP - 1) / TILED_GROUP) * (size_t)m.bands * TILED_FLOATS * 4);
    const float queries = tiled_queries(job, kv, row, rows, false, &m);
    const att_span span = att_span_of(job, row / share, (row + rows - 1) / share + 1);
    att_cursor cursor = att_cursor_of(job, tn__query_of(job, row / share), span);
    const tiled_item none = {0};
    tiled_pipeline line = {.job = job, .m = &m, .p = &p};
    bool residues = false; /* of queries have been converted */
    tiles_begin();
    tiled_list later = tiled_next(job, &cursor);
    for (size_t blocks = 0; later.count > 0; blocks++) {
        const size_t ring_index = blocks % TILED_RING;
        tiled_cells *c = &ring[ring_index];
        c->list = later;
        later = tiled_next(job, &cursor);
        c->keys = m.keys + ring_index * TILED_TALL * 2 * (size_t)m.steps * TILED_VALUES;
        c->values = m.values + ring_index * TILED_DEEP * (size_t)m.bands * TILED_VALUES;
        c->parts = tiled_keys(job, kv, &c->list, &later, queries, &m, c->keys);
        tiled_values(job, kv, &c->list, &later, &m, c->values);
        if (c->parts && !residues) tiled_queries(job, kv, row, rows, residues = true, &m);
        for (int at = 0; at < rows; at += TILED_GROUP) {
            const tiled_view view = tiled_view_of(&p, at, c->list.span);
            if (view.some) tiled_advance(&line, (tiled_item){c, at, view});
        }
    }
    tiled_advance(&line, none);
    tiled_advance(&line, none);
    tiles_end();
    for (int g = 0; g < rows; g += TILED_GROUP) {
        const float *sums = m.sums + (size_t)(g / TILED_GROUP) * (size_t)m.bands * TILED_FLOATS;
        for (int64_t d = 0; d < m.bands; d++, sums += TILED_FLOATS) {
            vf transposed[16];
            for (int i = 0; i < 16; i++) transposed[i] = vf_load(sums + i * TILED_GROUP);
            vf_transpose(transposed);
            for (int i = 0; i < 16; i++) vf_store(m.rows + (size_t)i * (size_t)m.larger + 16 * d, transposed[i]);
        }
        for (int r = g; r < rows && r < g + TILED_GROUP; r++)
            att_finish(job, kv * share + (row + r) % share, (row + r) / share, p.most[r] * TILED_LN_2, p.total[r],
                       m.rows + (size_t)(r - g) * (size_t)m.larger);
    }
}
