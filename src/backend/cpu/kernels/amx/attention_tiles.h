/* A piece of attention in tiles: included by template/attention.h, whose helpers it uses.
 *
 * Everything is turned: a tile of scores has 16 cells × 16 queries, so that a vector is a cell's scores of 16
 * queries. Largest scores, sums and factors are vectors too, nothing is added up across lanes, and keys are
 * multiplied in the order they are kept in.
 *
 * Queries, keys, weights and values are rounded to bfloat16 as activations are in every mat-mul at this level. Scores
 * are exponents, so where they may be large queries and keys are taken as two bfloat16 each, the value and what
 * rounding left of it: three products instead of one, which together keep 16 bits. Caches of f32 are left to the
 * vectors.
 *
 * Keys and values of 64 cells become tiles and serve up to 1024 query rows, 16 at a time. While the weights of one
 * group of 16 are computed by the vector units, the tiles do the scores of the next group and then the sums of the
 * last one: the instructions stand mixed, because a tile instruction that waits for a register stops what follows. */
#include "backend/cpu/kernels/amx/tiles.h"

enum {
    ATT_TILED_ROWS = 1024,
    TILED_CELLS = 64,              /* of a block: what a group needs of it stays in the first level cache */
    TILED_RING = 3,                /* blocks that are tiles at the same time: up to three are under way */
    TILED_GROUP = 16,              /* queries of a tile */
    TILED_VALUES = 512,            /* bfloat16 in a tile */
    TILED_FLOATS = 256,            /* floats in a tile */
    TILED_DEEP = TILED_CELLS / 32, /* tiles of weights of a group */
    TILED_TALL = TILED_CELLS / 16, /* tiles of scores of a group */
    /* Scores of a group, and half a page: what is read and what is written meanwhile lie apart modulo pages. */
    TILED_BITS = TILED_GROUP * TILED_CELLS + 512,
    TILED_PARTS = 3,               /* products of a score that may be large */
    TILED_SLOTS = TILED_CELLS / 8, /* between which the tile instructions of a group are spread */
    TILED_LARGE = 48,              /* scores up to here are taken in one part: weights are between 2^-48 and 2^48 */
    TILED_HIDDEN = -127,           /* a bounded score that stands for a weight of zero */
};

static bool att_is_tiled(const tn__attention_job *job) { return job->k_type != TN_F32 && job->v_type != TN_F32; }

/* Rows of a piece when there are so many in all: many share what is made of keys and values, but there should be
 * enough pieces for all threads, however many those are. */
static int64_t att_tiled_rows(int64_t rows) {
    int64_t most = ATT_TILED_ROWS;
    while (most > 256 && rows / most < 64) most /= 2;
    return most;
}

/* One thread's memory; tiles are 1 KiB. */
typedef struct tiled_memory {
    uint16_t *q;                  /* [rows/16][rounded, rest][steps]: pairs of dimensions × queries */
    uint16_t *keys;               /* of each block [cells/16][rounded, maybe rest][steps]: cells × dimensions */
    uint16_t *values;             /* of each block [cells/32][bands]: dimensions × cells */
    uint16_t *weights;            /* two of [cells/32]: pairs of cells × queries */
    float *scores;                /* two of [cells][16] */
    float *sums;                  /* [rows/16][bands]: dimensions × queries */
    float *kept;                  /* [bands] */
    float *rows;                  /* [32][larger head], padded with zeros */
    int64_t steps, bands, larger; /* 32 and 16 dimensions each */
} tiled_memory;

/* A block of cells. */
typedef struct tiled_cells {
    att_block block;
    int64_t cell;
    int count, sees;
    bool parts; /* scores are taken in three */
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
                             2 * TILED_BITS,
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

/* ---- Tiles of what is given --------------------------------------------------------------------------------------
 */

TN__VEC __m512i tiled_rounded(vf low, vf high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
/* What rounding left of them; nothing of infinities and NaN. */
TN__VEC vf tiled_left(vf x, __m256i rounded) {
    enum { NOT_FINITE = 0x99 };
    const vf r = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    return _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(r, NOT_FINITE), x, r);
}
TN__VEC __m512i tiled_rest(vf low, vf high, __m512i rounded) {
    return tiled_rounded(tiled_left(low, _mm512_castsi512_si256(rounded)),
                         tiled_left(high, _mm512_extracti64x4_epi64(rounded, 1)));
}
/* Rounded as pairs: one of each. */
TN__VEC __m512i tiled_pairs(vf first, vf second) {
    const __m512i together = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(together, tiled_rounded(first, second));
}

/* Scores are in units of ln 2, so that weights are powers of two; where something is added to them, from then on. */
#define TILED_LOG2_E 1.44269504f
#define TILED_LN_2 0.693147181f
static bool tiled_adjusts(const tn__attention_job *job) {
    return job->params.soft_cap > 0 || job->params.max_bias > 0 || job->mask;
}

/* The squared length of a row is added up in `squares`. */
TN__VEC vf tiled_squares(vf squares, vf low, vf high) { return vf_fma(low, low, vf_fma(high, high, squares)); }
/* The larger ones. Compared as integers: a NaN is larger than any number. */
TN__VEC vf tiled_longer(vf a, vf b) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
TN__VEC float tiled_longest(vf a) {
    const __m128i one = _mm_cvtsi32_si128((int)_mm512_reduce_max_epu32(_mm512_castps_si512(a)));
    return _mm_cvtss_f32(_mm_castsi128_ps(one));
}

static const float *tiled_query(const tn__attention_job *job, int64_t kv, int64_t row) {
    const int64_t share = job->heads / job->kv_heads, token = row / share, head = kv * share + row % share;
    return (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)token * job->q_token);
}

/* Query rows, rounded or what rounding left of them: 16 of them turned as pairs; rows beyond the last are zero.
 * Returns the largest squared length, in units of ln 2. */
static float tiled_queries(const tn__attention_job *job, int64_t kv, int64_t row, int rows, bool rest,
                           tiled_memory *m) {
    const vf scale = vf_set1(tiled_adjusts(job) ? job->params.scale : job->params.scale * TILED_LOG2_E);
    const size_t part = (size_t)m->steps * TILED_VALUES;
    vf longest = vf_zero();
    for (int g = 0; g < rows; g += TILED_GROUP) {
        uint16_t *to = m->q + ((size_t)(g / TILED_GROUP) * 2 + rest) * part;
        vf squares[TILED_GROUP];
        const float *from[TILED_GROUP];
        for (int i = 0; i < TILED_GROUP; i++) {
            squares[i] = vf_zero();
            from[i] = g + i < rows ? tiled_query(job, kv, row + g + i) : NULL;
            if (g + i + TILED_GROUP >= rows) continue; /* the next group, whose rows may lie pages apart */
            const float *later = tiled_query(job, kv, row + g + i + TILED_GROUP);
            for (int64_t d = 0; d < job->head_k; d += 16) _mm_prefetch((const char *)(later + d), _MM_HINT_T0);
        }
        for (int64_t s = 0; s < m->steps; s++, to += TILED_VALUES) {
            const int64_t left = job->head_k - 32 * s;
            __m512i tile[16];
            for (int i = 0; i < TILED_GROUP; i++) {
                tile[i] = _mm512_setzero_si512();
                if (!from[i]) continue;
                const float *q = from[i] + 32 * s;
                const vf low = vf_mul(scale, vf_load_n(q, left)),
                         high = left > 16 ? vf_mul(scale, vf_load_n(q + 16, left - 16)) : vf_zero();
                tile[i] = tiled_rounded(low, high);
                if (rest) tile[i] = tiled_rest(low, high, tile[i]);
                squares[i] = tiled_squares(squares[i], low, high);
            }
            tn__transpose16(tile);
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, tile[i]);
        }
        longest = tiled_longer(longest, vf_sums(squares));
    }
    return tiled_longest(longest) * (tiled_adjusts(job) ? TILED_LOG2_E * TILED_LOG2_E : 1);
}

/* Up to `all` cells of a cache as floats; what is not there is zero. */
static void tiled_floats(tn_type type, const char *at, size_t stride, int count, int64_t n, int64_t padded,
                         tiled_memory *m, int all) {
    for (int i = 0; i < all; i++) {
        float *row = m->rows + (size_t)i * (size_t)m->larger;
        if (i < count) row_to_f32(type, at + (size_t)i * stride, row, n);
        for (int64_t d = i < count ? n : 0; d < padded; d++) row[d] = 0;
    }
}

/* Asks for the row one block further on: the rows of a head often lie pages apart, and nothing else foresees them. */
TN__VEC void tiled_fetch(const char *row, size_t stride, size_t bytes) {
    for (size_t b = 0; b < bytes; b += 64) _mm_prefetch(row + TILED_CELLS * stride + b, _MM_HINT_T1);
}

/* Whether a cell is the sequence's, for queries and cells that have sequences. */
TN__VEC bool tiled_owns(const tn__attention_job *job, int32_t sequence, int64_t cell) {
    if (!job->k_pos || job->k_words == 0) return true;
    return (uint32_t)job->k_pos[(size_t)(1 + job->k_words) * (size_t)cell + 1 + (size_t)(sequence / 32)] >>
               sequence % 32 &
           1;
}

/* Keys as they are. Says whether scores, of queries of the given squared length with the sequence's keys, are taken
 * in three parts: rounding once costs an error of 2^-9 of |q|·|k| at worst, a tenth of that where no few dimensions
 * outweigh the rest. */
static bool tiled_keys(const tn__attention_job *job, int64_t kv, int64_t cell, int count, float queries,
                       int32_t sequence, tiled_memory *m, uint16_t *keys) {
    const char *k = (const char *)job->k + (size_t)kv * job->k_head + (size_t)cell * job->k_cell;
    const bool halves = job->k_type == TN_F16 && job->head_k % 32 == 0;
    const size_t bytes = att_row_bytes(job->k_type, job->head_k);
    vf squares[TILED_GROUP], longest = vf_zero();
    for (int c = 0; c < TILED_CELLS; c++) {
        uint16_t *to = keys + (size_t)(c / 16) * (size_t)m->steps * TILED_VALUES + c % 16 * 32;
        const char *at = k + (size_t)c * job->k_cell;
        tiled_fetch(at, job->k_cell, bytes);
        if (!halves || c >= count)
            tiled_floats(job->k_type, at, job->k_cell, c < count, job->head_k, 32 * m->steps, m, 1);
        vf sum = vf_zero();
        for (int64_t s = 0; s < m->steps; s++) {
            const uint16_t *h = (const uint16_t *)at + 32 * s;
            const float *f = m->rows + 32 * s;
            const bool half = halves && c < count;
            const vf low = half ? vf_load_f16(h) : vf_load(f), high = half ? vf_load_f16(h + 16) : vf_load(f + 16);
            _mm512_store_si512(to + s * TILED_VALUES, tiled_rounded(low, high));
            sum = tiled_squares(sum, low, high);
        }
        squares[c % TILED_GROUP] = c < count && tiled_owns(job, sequence, cell + c) ? sum : vf_zero();
        if (c % TILED_GROUP == TILED_GROUP - 1) longest = tiled_longer(longest, vf_sums(squares));
    }
    if (queries * tiled_longest(longest) <= TILED_LARGE * TILED_LARGE) return false;
    const size_t part = (size_t)m->steps * TILED_VALUES;
    for (int c = 0; c < TILED_CELLS; c++) {
        uint16_t *to = keys + (size_t)(c / 16) * 2 * part + c % 16 * 32;
        tiled_floats(job->k_type, k + (size_t)c * job->k_cell, job->k_cell, c < count, job->head_k, 32 * m->steps, m,
                     1);
        for (int64_t s = 0; s < m->steps; s++, to += TILED_VALUES) {
            const vf low = vf_load(m->rows + 32 * s), high = vf_load(m->rows + 32 * s + 16);
            const __m512i rounded = tiled_rounded(low, high);
            _mm512_store_si512(to, rounded);
            _mm512_store_si512(to + part, tiled_rest(low, high, rounded));
        }
    }
    return true;
}

/* Values: pairs of neighbouring cells, turned. Rows are read from end to end first: they often lie a multiple of 4
 * KiB apart, and few such lines stay in the cache. */
static void tiled_values(const tn__attention_job *job, int64_t kv, int64_t cell, int count, tiled_memory *m,
                         uint16_t *values) {
    const char *v = (const char *)job->v + (size_t)kv * job->v_head + (size_t)cell * job->v_cell;
    const size_t bytes = att_row_bytes(job->v_type, job->head_v);
    for (int c = 0; c < TILED_CELLS; c += 32) {
        const bool halves = job->v_type == TN_F16 && job->head_v % 32 == 0 && c + 32 <= count;
        const char *at = v + (size_t)c * job->v_cell;
        const int left = count > c ? count - c : 0;
        uint16_t *to = values + (size_t)(c / 32) * (size_t)m->bands * TILED_VALUES;
        if (!halves)
            tiled_floats(job->v_type, at, job->v_cell, left < 32 ? left : 32, job->head_v, 16 * m->bands, m, 32);
        for (int i = 0; i < 16; i++) {
            const uint16_t *h = (const uint16_t *)(at + (size_t)(2 * i) * job->v_cell),
                           *next = (const uint16_t *)(at + (size_t)(2 * i + 1) * job->v_cell);
            const float *f = m->rows + (size_t)(2 * i) * (size_t)m->larger;
            tiled_fetch((const char *)h, job->v_cell, bytes);
            tiled_fetch((const char *)next, job->v_cell, bytes);
            for (int64_t d = 0; d < m->bands; d++) {
                const __m512i pairs = halves ? tiled_pairs(vf_load_f16(h + 16 * d), vf_load_f16(next + 16 * d))
                                             : tiled_pairs(vf_load(f + 16 * d), vf_load(f + m->larger + 16 * d));
                _mm512_store_si512(to + d * TILED_VALUES + 32 * i, pairs);
            }
        }
        for (int64_t d = 0; d < m->bands; d++, to += TILED_VALUES) {
            __m512i pairs[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) pairs[i] = _mm512_load_si512(to + 32 * i);
            tn__transpose16(pairs);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, pairs[i]);
        }
    }
}

/* ---- One group at a time -----------------------------------------------------------------------------------------
 */

/* What a turn does; NULL: nothing. Four tile names serve both products, for the reason that gemm.c gives. */
typedef struct tiled_turn {
    const uint16_t *q, *keys; /* the next group's */
    float *next;              /* its scores */
    bool parts;               /* which are taken in three */
    const float *scores;
    bool bounded; /* scores are finite, between -TILED_LARGE and TILED_LARGE or TILED_HIDDEN, and base is zero */
    vf base;      /* the largest scores, negative */
    vf total;     /* sums of this group's weights are added */
    uint16_t *weights;
    const uint16_t *last, *values; /* the last group's weights */
    float *sums;
} tiled_turn;

/* The n-th of TILED_TALL·steps·parts products of scores. */
TN__VEC void tiled_score(const tiled_turn *t, int n, const int steps, const int parts) {
    if (steps <= 2 && parts == 1) { /* queries stay */
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
    /* Two tiles of scores share queries. Parts: rounded with rounded, with the keys' rest, the queries' rest with
     * rounded. */
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

/* The n-th of TILED_DEEP·bands products of sums: weights stay. */
TN__VEC void tiled_sum(const tiled_turn *t, int n, const int bands) {
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

/* 2^x: the fraction's part by a polynomial with relative error below 2^-13, weights are rounded to 2^-9. -infinity
 * gives zero, NaN stays. */
TN__VEC vf tiled_exp2(vf x) {
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_fma(vf_set1(0.0780245227f), r, vf_set1(0.226067155f));
    p = vf_fma(p, r, vf_set1(0.695833541f));
    p = vf_fma(p, r, vf_set1(0.999925219f));
    return vf_scale2(p, x); /* takes the whole part of x */
}

/* Weights as pairs, rounded to nearest. A NaN may be lost here; it is in the total, too. */
TN__VEC __m512i tiled_weights(vf first, vf second) {
    const __m512i half = _mm512_set1_epi32(0x8000), low = _mm512_add_epi32(_mm512_castps_si512(first), half),
                  high = _mm512_add_epi32(_mm512_castps_si512(second), half);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}

/* The same of bounded scores, in half the instructions. A score plus 127, in units of 2^-8, has a power's exponent in
 * its upper byte and the fraction f in its lower one. Half of that is a bfloat16 with f in the place of 2^f - 1, so
 * the difference is taken off before, out of a table for 64 values of f. The error is a fifth larger than that of
 * rounding exact weights, and without bias. */
static const _Alignas(64) uint8_t tiled_less[64] = {0,  1,  2,  3,  5,  6,  7,  8,  9,  10, 11, 11, 12, 13, 14, 15,
                                                    15, 16, 17, 17, 18, 18, 19, 19, 20, 20, 20, 21, 21, 21, 21, 21,
                                                    21, 22, 22, 21, 21, 21, 21, 21, 21, 20, 20, 19, 19, 19, 18, 17,
                                                    17, 16, 15, 14, 14, 13, 12, 11, 10, 8,  7,  6,  5,  3,  2,  0};
TN__VEC __m512i tiled_powers(vf first, vf second, __m512i less) {
    const vf unit = vf_set1(0x1.8p15f + 127); /* the last place of such floats is 2^-8 */
    const __m512i low = _mm512_castps_si512(vf_add(first, unit)), high = _mm512_castps_si512(vf_add(second, unit)),
                  both = _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
    const __m512i off =
        _mm512_maskz_permutexvar_epi8(0x5555555555555555, _mm512_srli_epi16(both, 2), less); /* six bits count */
    return _mm512_srli_epi16(_mm512_sub_epi16(both, off), 1);
}

/* Weights of two cells, and their sums, in two chains. */
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

/* full: there is something to do in all three respects. */
TN__VEC void tiled_turn_of(tiled_turn *t, const int steps, const int parts, const int bands, const bool full,
                           const bool bounded) {
    const int products[2] = {full || t->next ? TILED_TALL * parts * steps : 0,
                             full || t->sums ? TILED_DEEP * bands : 0};
    const tiled_turn own = *t; /* nothing that is written is part of it */
    vf total[2] = {own.total, vf_zero()};
    tiles_see_memory();
#pragma GCC unroll 2
    for (int phase = 0; phase < 2; phase++) {
#pragma GCC unroll 8
        for (int slot = 0; slot < TILED_SLOTS; slot++) {
            const int until = (slot + 1) * products[phase] / TILED_SLOTS;
            for (int n = slot * products[phase] / TILED_SLOTS; n < until; n++) {
                if (phase == 0)
                    tiled_score(&own, n, steps, parts);
                else
                    tiled_sum(&own, n, bands);
            }
            if (!full && !own.scores) continue;
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const int done = 4 * (phase * TILED_SLOTS + slot) + 2 * i;
                _mm512_store_si512(own.weights + done * TILED_GROUP,
                                   tiled_two(own.scores + done * TILED_GROUP, own.base, total, i, bounded));
            }
        }
    }
    tiles_see_memory();
    t->total = vf_add(total[0], total[1]);
}
static void tiled_turn_64(tiled_turn *t) { tiled_turn_of(t, 2, 1, 4, true, true); }
static void tiled_turn_128(tiled_turn *t) { tiled_turn_of(t, 4, 1, 8, true, true); }
static void tiled_turn_bounded(tiled_turn *t, int steps, int bands) {
    tiled_turn_of(t, steps, t->parts ? TILED_PARTS : 1, bands, false, true);
}
static void tiled_turn_any(tiled_turn *t, int steps, int bands) {
    tiled_turn_of(t, steps, t->parts ? TILED_PARTS : 1, bands, false, false);
}

/* ---- A piece -----------------------------------------------------------------------------------------------------
 */

/* The rows of a piece: what each sees and where its soft-max stands. */
typedef struct tiled_rows {
    int32_t low[ATT_TILED_ROWS], high[ATT_TILED_ROWS], position[ATT_TILED_ROWS];
    float slope[ATT_TILED_ROWS], most[ATT_TILED_ROWS], total[ATT_TILED_ROWS];
    int64_t row, kv;
    int rows;
    int32_t sequence;
} tiled_rows;

static void tiled_begin(const tn__attention_job *job, int64_t kv, int64_t row, int rows, tiled_rows *p) {
    const int64_t share = job->heads / job->kv_heads;
    p->row = row;
    p->kv = kv;
    p->rows = rows;
    p->sequence = tn__query_of(job, row / share).sequence;
    for (int r = 0; r < (rows + TILED_GROUP - 1) / TILED_GROUP * TILED_GROUP; r++) {
        /* What fills up the last group sees what the last row sees. */
        const att_view view = att_view_of(job, (row + (r < rows ? r : rows - 1)) / share);
        p->low[r] = view.low;
        p->high[r] = view.high;
        p->position[r] = (int32_t)view.position;
        p->slope[r] = r < rows ? tn__alibi_slope(job, kv * share + (row + r) % share) : 0;
        p->most[r] = -__builtin_inff();
        p->total[r] = 0;
    }
}

/* Which of a group's queries see something of a block, and which all of it. */
typedef struct tiled_view {
    __mmask16 some, all;
} tiled_view;
static tiled_view tiled_view_of(const tiled_rows *p, int g, const att_block *b, int sees) {
    const __m512i low = _mm512_loadu_si512(p->low + g), high = _mm512_loadu_si512(p->high + g),
                  least = _mm512_set1_epi32(b->least), most = _mm512_set1_epi32(b->most);
    tiled_view v = {_mm512_cmple_epi32_mask(low, most) & _mm512_cmple_epi32_mask(least, high),
                    _mm512_cmple_epi32_mask(low, least) & _mm512_cmple_epi32_mask(most, high)};
    if (sees != SEES_ALL) v.all = 0;
    if (sees == SEES_NONE) v.some = 0;
    v.all &= v.some;
    return v;
}

/* What is added to a group's scores beyond the product; cells that are not seen get `hidden`. */
static void tiled_adjust(const tn__attention_job *job, const tiled_rows *p, int g, const att_block *b, int64_t cell,
                         int count, bool hide, float hidden, float *scores) {
    const int64_t share = job->heads / job->kv_heads;
    const float cap = job->params.soft_cap;
    const __m512i low = _mm512_loadu_si512(p->low + g), high = _mm512_loadu_si512(p->high + g),
                  position = _mm512_loadu_si512(p->position + g);
    const vf slope = vf_load(p->slope + g), never = vf_set1(hidden);
    for (int c = 0; c < count; c++) {
        float *at = scores + (size_t)c * TILED_GROUP;
        const __m512i here = _mm512_set1_epi32(b->position[c]);
        vf s = vf_load(at);
        if (cap > 0) s = vf_mul(vf_set1(cap), vf_tanh(vf_mul(s, vf_set1(1 / cap))));
        if (job->params.max_bias > 0)
            s = vf_fnma(slope, vf_abs(_mm512_cvtepi32_ps(_mm512_sub_epi32(position, here))), s);
        if (job->mask) {
            float masks[TILED_GROUP] = {0};
            for (int i = 0; i < TILED_GROUP && g + i < p->rows; i++)
                masks[i] =
                    tn__mask_value(job, p->kv * share + (p->row + g + i) % share, (p->row + g + i) / share, cell + c);
            s = vf_add(s, vf_load(masks));
        }
        if (tiled_adjusts(job)) s = vf_mul(s, vf_set1(TILED_LOG2_E));
        if (hide) {
            vm seen = _mm512_cmple_epi32_mask(low, here) & _mm512_cmple_epi32_mask(here, high);
            if (!tiled_owns(job, p->sequence, cell + c)) seen = 0;
            s = vf_select(seen, s, never); /* not even a NaN gets through */
        }
        vf_store(at, s);
    }
    for (int c = count; c < TILED_CELLS; c++) vf_store(scores + (size_t)c * TILED_GROUP, never);
}

/* Weights of bounded scores are relative to nothing, if those of the blocks before were. */
static bool tiled_from_zero(tiled_rows *p, int g) {
    const vf most = vf_load(p->most + g);
    const vm nothing = _mm512_cmp_ps_mask(most, vf_set1(-__builtin_inff()), _CMP_EQ_OQ),
             zero = _mm512_cmp_ps_mask(most, vf_zero(), _CMP_EQ_OQ);
    if ((nothing | zero) != 0xffff) return false;
    vf_store(p->most + g, vf_zero());
    return true;
}

/* The scores that a group's weights are relative to otherwise: the largest, which are only moved where they grew by
 * much. Weights may be as large as 2^7 then, which costs no precision, and sums are seldom multiplied. */
static void tiled_most(const tiled_memory *m, tiled_rows *p, int g, tiled_turn *t) {
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
        /* Where nothing was seen yet there is nothing to shrink either. */
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

/* A group of queries, from row `at` of the piece, and a block of cells, or NULL: none. */
typedef struct tiled_item {
    const tiled_cells *cells;
    int at;
    tiled_view view;
} tiled_item;

/* What is under way: of one item the weights are next, of the one before it the sums. */
typedef struct tiled_line {
    const tn__attention_job *job;
    const tiled_memory *m;
    tiled_rows *p;
    tiled_item now, last;
    __mmask16 keep; /* the last group's queries that see nothing: not even zero times what lies there */
    int odd;        /* which of two places the next item's scores go to */
} tiled_line;

/* What has to be known of a group's scores before they become weights. */
static __mmask16 tiled_weigh(const tiled_line *l, float *scores, tiled_turn *t) {
    const tn__attention_job *job = l->job;
    const tiled_cells *c = l->now.cells;
    const tiled_view view = l->now.view;
    /* A bias or mask may take more off than exponents hold. */
    const bool bounded = !c->parts && !(job->params.max_bias > 0) && !job->mask;
    t->scores = scores;
    t->bounded = bounded && tiled_from_zero(l->p, l->now.at);
    t->total = vf_load(l->p->total + l->now.at);
    if (tiled_adjusts(job) || c->count < TILED_CELLS || view.all != 0xffff)
        tiled_adjust(job, l->p, l->now.at, &c->block, c->cell, c->count, view.all != 0xffff,
                     t->bounded ? TILED_HIDDEN : -__builtin_inff(), scores);
    if (!t->bounded) tiled_most(l->m, l->p, l->now.at, t);
    return (__mmask16)(~view.some & first_lanes(l->p->rows - l->now.at));
}

/* The next item's scores, the weights of the one before, the sums of the one before that. */
static void tiled_do(tiled_line *l, tiled_item next, tiled_item now) {
    const tiled_memory *m = l->m;
    const size_t sums = (size_t)m->bands * TILED_FLOATS, q = 2 * (size_t)m->steps * TILED_VALUES;
    __mmask16 unseen = 0;
    tiled_turn t = {0};
    if (next.cells) {
        t.q = m->q + (size_t)(next.at / TILED_GROUP) * q;
        t.keys = next.cells->keys;
        t.parts = next.cells->parts;
        t.next = m->scores + l->odd * TILED_BITS;
    }
    if (now.cells) unseen = tiled_weigh(l, m->scores + !l->odd * TILED_BITS, &t);
    t.weights = m->weights + !l->odd * TILED_DEEP * TILED_VALUES;
    if (l->last.cells) {
        t.last = m->weights + l->odd * TILED_DEEP * TILED_VALUES;
        t.values = l->last.cells->values;
        t.sums = m->sums + (size_t)(l->last.at / TILED_GROUP) * sums;
        if (l->keep) memcpy(m->kept, t.sums, sums * sizeof(float));
    }
    const bool full = next.cells && l->last.cells && t.bounded && !t.parts;
    if (full && m->steps == 2 && m->bands == 4)
        tiled_turn_64(&t);
    else if (full && m->steps == 4 && m->bands == 8)
        tiled_turn_128(&t);
    else if (t.bounded)
        tiled_turn_bounded(&t, (int)m->steps, (int)m->bands);
    else
        tiled_turn_any(&t, (int)m->steps, (int)m->bands);
    for (size_t d = 0; l->keep && l->last.cells && d < sums; d += TILED_GROUP)
        _mm512_mask_storeu_ps(t.sums + d, l->keep, vf_load(m->kept + d));
    if (now.cells) vf_store(l->p->total + now.at, t.total);
    l->keep = unseen;
}

static void tiled_advance(tiled_line *l, tiled_item next) {
    const tiled_item none = {0};
    if (l->now.cells && l->last.cells && l->now.at == l->last.at) { /* its sums may have to shrink before */
        tiled_do(l, none, none);
        l->last = none;
    }
    tiled_do(l, next, l->now);
    l->last = l->now;
    l->now = next;
    l->odd = !l->odd;
}

/* Whether any row sees something of a block. */
static bool tiled_seen(const tiled_rows *p, const tiled_cells *c) {
    for (int g = 0; g < p->rows; g += TILED_GROUP) {
        if (tiled_view_of(p, g, &c->block, c->sees).some) return true;
    }
    return false;
}

/* Query rows [row, row + rows) of one kv head, all of one sequence, against the cells. */
static void att_tiled_piece(const tn__attention_job *job, int64_t kv, int64_t row, int rows, const att_index *index,
                            int nth, float *memory) {
    const int64_t share = job->heads / job->kv_heads;
    int64_t first, end;
    size_t floats;
    tiled_cells ring[TILED_RING];
    tiled_rows p;
    tiled_memory m = tiled_carve(job, memory, &floats);
    tn__cell_range(job, &first, &end);
    tiled_begin(job, kv, row, rows, &p);
    memset(m.sums, 0, (size_t)((rows + TILED_GROUP - 1) / TILED_GROUP) * (size_t)m.bands * TILED_FLOATS * 4);
    const float queries = tiled_queries(job, kv, row, rows, false, &m);
    const att_view anywhere = {INT32_MIN, INT32_MAX, p.sequence, 0};
    const tiled_item none = {0};
    tiled_line line = {.job = job, .m = &m, .p = &p};
    size_t blocks = 0;
    bool rests = false; /* of queries have been made */
    tiles_begin();
    for (int64_t cell = first; (cell = att_index_next(index, p.sequence, cell)) < end; cell += TILED_CELLS) {
        const int64_t left = end - cell;
        const size_t place = blocks % TILED_RING;
        tiled_cells *c = &ring[place];
        c->cell = cell;
        c->count = (int)(left < TILED_CELLS ? left : TILED_CELLS);
        att_summarise(job, cell, c->count, &c->block);
        c->sees = att_sees(job, anywhere, &c->block);
        if (!tiled_seen(&p, c)) continue;
        c->keys = m.keys + place * TILED_TALL * 2 * (size_t)m.steps * TILED_VALUES;
        c->values = m.values + place * TILED_DEEP * (size_t)m.bands * TILED_VALUES;
        c->parts = tiled_keys(job, kv, cell, c->count, queries, p.sequence, &m, c->keys);
        tiled_values(job, kv, cell, c->count, &m, c->values);
        if (c->parts && !rests) tiled_queries(job, kv, row, rows, rests = true, &m);
        for (int at = 0; at < rows; at += TILED_GROUP) {
            const tiled_view view = tiled_view_of(&p, at, &c->block, c->sees);
            if (view.some) tiled_advance(&line, (tiled_item){c, at, view});
        }
        blocks++;
    }
    tiled_advance(&line, none);
    tiled_advance(&line, none);
    tiles_end();
    for (int g = 0; g < rows; g += TILED_GROUP) {
        const float *sums = m.sums + (size_t)(g / TILED_GROUP) * (size_t)m.bands * TILED_FLOATS;
        for (int64_t d = 0; d < m.bands; d++, sums += TILED_FLOATS) {
            vf turned[16];
            for (int i = 0; i < 16; i++) turned[i] = vf_load(sums + i * TILED_GROUP);
            vf_transpose(turned);
            for (int i = 0; i < 16; i++) vf_store(m.rows + (size_t)i * (size_t)m.larger + 16 * d, turned[i]);
        }
        for (int r = g; r < rows && r < g + TILED_GROUP; r++)
            att_finish(job, kv * share + (row + r) % share, (row + r) / share, p.most[r] * TILED_LN_2, p.total[r],
                       m.rows + (size_t)(r - g) * (size_t)m.larger, 0, nth);
    }
}
