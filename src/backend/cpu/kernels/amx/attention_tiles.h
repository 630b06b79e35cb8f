/* A piece of attention in tiles: included by template/attention.h, whose helpers it uses.
 *
 * Scores decide exponents, so both sides of a score are taken as two bfloat16, the value and what rounding left of
 * it: three products instead of one, which together keep 16 bits. Weights and values are rounded once, as activations
 * are in every mat-mul. Caches of f32 are left to the vectors.
 *
 * Keys and values of 128 cells become tiles and serve 256 query rows, 32 at a time from scores to sums. */
#include "backend/cpu/kernels/amx/tiles.h"

enum {
    ATT_TILED_ROWS = 256,
    TILED_TURN = 32, /* rows at a time: two tiles */
    TILED_VALUES = 512,
};

static bool att_is_tiled(const tn__attention_job *job) { return job->k_type != TN_F32 && job->v_type != TN_F32; }

/* One thread's memory; tiles are 1 KiB. */
typedef struct tiled_memory {
    uint16_t *q;       /* [rows/16][steps][2] tiles: rounded, and the rest */
    uint16_t *keys;    /* [cells/16][steps][2] */
    uint16_t *values;  /* [cells/32][dims/16] */
    uint16_t *weights; /* [2][cells/32] */
    float *scores;     /* [TILED_TURN][ATT_CELLS] */
    float *sums;       /* [rows][dims] */
    float *kept;       /* [TILED_TURN][dims] */
    float *rows;       /* [32][larger head], padded with zeros */
    int64_t steps, dims, larger;
} tiled_memory;

static tiled_memory tiled_carve(const tn__attention_job *job, float *at, size_t *floats) {
    tiled_memory m = {.steps = (job->head_k + 31) / 32, .dims = (job->head_v + 31) / 32 * 32};
    m.larger = m.steps * 32 > m.dims ? m.steps * 32 : m.dims;
    const size_t steps = (size_t)m.steps, dims = (size_t)m.dims, tile = TILED_VALUES / 2;
    const size_t sizes[8] = {ATT_TILED_ROWS / 16 * steps * 2 * tile,
                             ATT_CELLS / 16 * steps * 2 * tile,
                             ATT_CELLS / 32 * (dims / 16) * tile,
                             2 * (ATT_CELLS / 32) * tile,
                             TILED_TURN * ATT_CELLS,
                             ATT_TILED_ROWS * dims,
                             TILED_TURN * dims,
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

/* 32 floats as bfloat16, and what that leaves of them; nothing of infinities and NaN. */
TN__VEC __m512i tiled_rounded(vf low, vf high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
TN__VEC vf tiled_left(vf x, __m256i rounded) {
    enum { NOT_FINITE = 0x99 };
    const vf r = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    return _mm512_maskz_sub_ps((__mmask16)~_mm512_fpclass_ps_mask(r, NOT_FINITE), x, r);
}
TN__VEC __m512i tiled_rest(vf low, vf high, __m512i rounded) {
    return tiled_rounded(tiled_left(low, _mm512_castsi512_si256(rounded)),
                         tiled_left(high, _mm512_extracti64x4_epi64(rounded, 1)));
}

/* Query rows as tiles of 16 rows × 32 values; rows that fill up the last 32 are zero. */
static void tiled_queries(const tn__attention_job *job, int64_t kv, int64_t row, int rows, tiled_memory *m) {
    const int64_t share = job->heads / job->kv_heads;
    const vf scale = vf_set1(job->params.scale);
    for (int r = 0; r < (rows + TILED_TURN - 1) / TILED_TURN * TILED_TURN; r++) {
        const int64_t token = (row + r) / share, head = kv * share + (row + r) % share;
        const float *q =
            r < rows
                ? (const float *)((const char *)job->q + (size_t)head * job->q_head + (size_t)token * job->q_token)
                : NULL;
        uint16_t *to = m->q + (size_t)(r / 16) * (size_t)m->steps * 2 * TILED_VALUES + (size_t)(r % 16) * 32;
        for (int64_t s = 0; s < m->steps; s++, to += 2 * TILED_VALUES) {
            const int64_t left = q ? job->head_k - 32 * s : 0;
            const vf low = left > 0 ? vf_mul(scale, vf_load_n(q + 32 * s, left)) : vf_zero(),
                     high = left > 16 ? vf_mul(scale, vf_load_n(q + 32 * s + 16, left - 16)) : vf_zero();
            const __m512i rounded = tiled_rounded(low, high);
            _mm512_store_si512(to, rounded);
            _mm512_store_si512(to + TILED_VALUES, tiled_rest(low, high, rounded));
        }
    }
}

/* Cells [cell, cell + count) of a cache as floats; up to 32, the rest is zero. */
static void tiled_floats(tn_type type, const char *at, size_t stride, int count, int64_t n, int64_t padded,
                         tiled_memory *m, int all) {
    for (int i = 0; i < all; i++) {
        float *row = m->rows + (size_t)i * (size_t)m->larger;
        if (i < count) row_to_f32(type, at + (size_t)i * stride, row, n);
        for (int64_t d = i < count ? n : 0; d < padded; d++) row[d] = 0;
    }
}

/* Keys: a tile has pairs of neighbouring values of 16 cells, so 16 rows of 32 are turned as words. */
static void tiled_keys(const tn__attention_job *job, int64_t kv, int64_t cell, int count, tiled_memory *m) {
    const char *k = (const char *)job->k + (size_t)kv * job->k_head + (size_t)cell * job->k_cell;
    for (int c = 0; c < (count + 31) / 32 * 32; c += 16) {
        const int some = count - c < 16 ? count - c : 16;
        tiled_floats(job->k_type, k + (size_t)c * job->k_cell, job->k_cell, some > 0 ? some : 0, job->head_k,
                     32 * m->steps, m, 16);
        uint16_t *to = m->keys + (size_t)(c / 16) * (size_t)m->steps * 2 * TILED_VALUES;
        for (int64_t s = 0; s < m->steps; s++, to += 2 * TILED_VALUES) {
            __m512i rounded[16], rest[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                const float *row = m->rows + (size_t)i * (size_t)m->larger + 32 * s;
                const vf low = vf_load(row), high = vf_load(row + 16);
                rounded[i] = tiled_rounded(low, high);
                rest[i] = tiled_rest(low, high, rounded[i]);
            }
            tn__transpose16(rounded);
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, rounded[i]);
            tn__transpose16(rest);
            for (int i = 0; i < 16; i++) _mm512_store_si512(to + TILED_VALUES + 32 * i, rest[i]);
        }
    }
}

/* Values: pairs of neighbouring cells for 16 dimensions. */
static void tiled_values(const tn__attention_job *job, int64_t kv, int64_t cell, int count, tiled_memory *m) {
    const __m512i together = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const char *v = (const char *)job->v + (size_t)kv * job->v_head + (size_t)cell * job->v_cell;
    uint16_t *to = m->values;
    for (int c = 0; c < count; c += 32) {
        tiled_floats(job->v_type, v + (size_t)c * job->v_cell, job->v_cell, count - c < 32 ? count - c : 32,
                     job->head_v, m->dims, m, 32);
        for (int64_t d = 0; d < m->dims; d += 16, to += TILED_VALUES) {
            for (int i = 0; i < 16; i++) {
                const float *row = m->rows + (size_t)(2 * i) * (size_t)m->larger + d;
                const __m512i both = tiled_rounded(vf_load(row), vf_load(row + m->larger));
                _mm512_store_si512(to + 32 * i, _mm512_permutexvar_epi16(together, both));
            }
        }
    }
}

/* Both products keep two tiles of sums and one of each side, as the GEMM does and for the same reason. */

/* Scores of 32 query rows with the cells. */
static void tiled_scores(const tiled_memory *m, int row, int count) {
    const size_t step = 2 * TILED_VALUES, group = (size_t)m->steps * step;
    for (int half = 0; half < 2; half++) {
        const uint16_t *q = m->q + (size_t)(row / 16 + half) * group, *k = m->keys;
        float *to = m->scores + 16 * half * ATT_CELLS;
        for (int c = 0; c < count; c += 32, k += 2 * group) {
            tile_zero(0);
            tile_zero(1);
            for (int64_t s = 0; s < m->steps; s++) {
                const uint16_t *x = q + (size_t)s * step, *y = k + (size_t)s * step;
                tile_load(4, x + TILED_VALUES, 64);
                tile_load(5, y, 64);
                tile_dot_bf16(0, 4, 5);
                tile_load(5, y + group, 64);
                tile_dot_bf16(1, 4, 5);
                tile_load(4, x, 64);
                tile_dot_bf16(1, 4, 5);
                tile_load(5, y, 64);
                tile_dot_bf16(0, 4, 5);
                tile_load(5, y + TILED_VALUES, 64);
                tile_dot_bf16(0, 4, 5);
                tile_load(5, y + group + TILED_VALUES, 64);
                tile_dot_bf16(1, 4, 5);
            }
            tile_store(0, to + c, ATT_CELLS * 4);
            tile_store(1, to + c + 16, ATT_CELLS * 4);
        }
    }
}

/* Adds the values, weighted, to the sums of 32 rows. */
static void tiled_sums(const tiled_memory *m, int row, int count) {
    const size_t next = (size_t)m->dims * 4;
    for (int64_t i = 0; i < 2 * m->dims; i += 32) {
        const int64_t half = i / m->dims, d = i % m->dims;
        float *sums = m->sums + (size_t)(row + 16 * half) * (size_t)m->dims + d;
        tile_load(0, sums, next);
        tile_load(1, sums + 16, next);
        for (int s = 0; 32 * s < count; s++) {
            const uint16_t *v = m->values + ((size_t)s * (size_t)(m->dims / 16) + (size_t)(d / 16)) * TILED_VALUES;
            tile_load(4, m->weights + (size_t)(half * (ATT_CELLS / 32) + s) * TILED_VALUES, 64);
            tile_load(5, v, 64);
            tile_dot_bf16(0, 4, 5);
            tile_load(5, v + TILED_VALUES, 64);
            tile_dot_bf16(1, 4, 5);
        }
        tile_store(0, sums, next);
        tile_store(1, sums + 16, next);
    }
}

/* Two rows of raw scores over a whole block as weights in bfloat16: att_soft_max() in registers. */
static void tiled_soft_max(const float *s, float most[2], float total[2], float shrink[2], uint16_t *weights) {
    enum { VECTORS = ATT_CELLS / VL };
    vf v[2][VECTORS], top[2], sum[2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++) v[k][i] = vf_load(s + k * ATT_CELLS + i * VL);
        top[k] = v[k][0];
#pragma GCC unroll 8
        for (int i = 1; i < VECTORS; i++) top[k] = vf_max(top[k], v[k][i]);
        sum[k] = vf_zero();
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const float here = vf_most(top[k]), largest = here > most[k] ? here : most[k];
        /* Nothing is seen yet: every weight becomes zero. */
        const vf base = vf_set1(largest == -__builtin_inff() ? 0 : largest);
        shrink[k] = largest == most[k] ? 1 : _mm512_cvtss_f32(vf_exp(vf_sub(vf_set1(most[k]), base)));
        most[k] = largest;
        top[k] = base;
    }
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i += 2) {
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {
            const vf low = vf_exp(vf_sub(v[k][i], top[k])), high = vf_exp(vf_sub(v[k][i + 1], top[k]));
            sum[k] = vf_add(sum[k], vf_add(low, high));
            _mm512_store_si512(weights + 32 * k + i / 2 * TILED_VALUES, tiled_rounded(low, high));
        }
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) total[k] = total[k] * shrink[k] + vf_sum(sum[k]);
}

/* Query rows [row, row + rows) of one kv head, all of one sequence, against the cells. */
static void att_tiled_piece(const tn__attention_job *job, int64_t kv, int64_t row, int rows, const att_index *index,
                            int nth, float *memory) {
    const int64_t share = job->heads / job->kv_heads;
    float most[ATT_TILED_ROWS], total[ATT_TILED_ROWS], hide[ATT_CELLS];
    int64_t first, end;
    size_t floats;
    att_block block;
    tiled_memory m = tiled_carve(job, memory, &floats);
    tn__cell_range(job, &first, &end);
    for (int r = 0; r < rows; r++) {
        most[r] = -__builtin_inff();
        total[r] = 0;
    }
    memset(m.sums, 0, (size_t)ATT_TILED_ROWS * (size_t)m.dims * sizeof(float));
    tiled_queries(job, kv, row, rows, &m);
    tiles_begin();
    const int32_t sequence = tn__query_of(job, row / share).sequence;
    for (int64_t cell = first; (cell = att_index_next(index, sequence, cell)) < end; cell += ATT_CELLS) {
        const int count = (int)(end - cell < ATT_CELLS ? end - cell : ATT_CELLS), wide = (count + 31) / 32 * 32;
        int from = rows, to = 0;
        att_summarise(job, cell, count, &block);
        for (int r = 0; r < rows; r++) { /* the rows that see anything here */
            if (att_sees(job, att_view_of(job, (row + r) / share), &block) == SEES_NONE) continue;
            from = r < from ? r : from;
            to = r + 1;
        }
        if (from >= to) continue;
        tiled_keys(job, kv, cell, count, &m);
        tiled_values(job, kv, cell, count, &m);
        for (int turn = from / TILED_TURN * TILED_TURN; turn < to; turn += TILED_TURN) {
            tiles_see_memory();
            tiled_scores(&m, turn, count);
            tiles_see_memory();
            int64_t last_token = -1;
            int sees = SEES_NONE, state[2];
            att_view view = {0};
            bool apart = false;
            for (int i = 0; i < TILED_TURN; i++) {
                const int r = turn + i;
                const int64_t token = (row + r) / share, head = kv * share + (row + r) % share;
                float *s = m.scores + (size_t)i * ATT_CELLS, *sums = m.sums + (size_t)r * (size_t)m.dims;
                uint16_t *w = m.weights + (size_t)(i / 16) * (ATT_CELLS / 32) * TILED_VALUES + (size_t)(i % 16) * 32;
                float shrink[2] = {1, 1};
                state[i % 2] = SEES_NONE;
                if (r < from || r >= to) { /* not even zero times what lies there, it may be infinite */
                    memcpy(m.kept + (size_t)i * (size_t)m.dims, sums, (size_t)m.dims * sizeof(float));
                    apart = true;
                } else {
                    if (token != last_token) {
                        view = att_view_of(job, token);
                        sees = att_sees(job, view, &block);
                        if (sees == SEES_SOME) att_hide(job, view, &block, cell, count, hide);
                        last_token = token;
                    }
                    state[i % 2] = sees;
                    if (sees != SEES_NONE)
                        att_adjust(job, s, count, view, sees, &block, cell, head, token, tn__alibi_slope(job, head),
                                   hide);
                }
                if (i % 2 == 0) continue;
                /* Two rows are known now. */
                if (count == ATT_CELLS && state[0] != SEES_NONE && state[1] != SEES_NONE) {
                    tiled_soft_max(s - ATT_CELLS, &most[r - 1], &total[r - 1], shrink, w - 32);
                } else {
                    for (int k = 0; k < 2; k++) {
                        float *one = s + (k - 1) * ATT_CELLS;
                        if (state[k] == SEES_NONE)
                            memset(one, 0, (size_t)wide * sizeof(float));
                        else
                            shrink[k] = att_soft_max(one, count, &most[r + k - 1], &total[r + k - 1]);
                        for (int c = count; c < wide; c++) one[c] = 0;
                        for (int c = 0; c < wide; c += 32)
                            _mm512_store_si512(w + 32 * (k - 1) + c / 32 * TILED_VALUES,
                                               tiled_rounded(vf_load(one + c), vf_load(one + c + 16)));
                    }
                }
                for (int k = 0; k < 2; k++) {
                    float *to_shrink = sums + (k - 1) * m.dims;
                    for (int64_t d = 0; shrink[k] != 1 && d < m.dims; d += VL)
                        vf_store(to_shrink + d, vf_mul(vf_set1(shrink[k]), vf_load(to_shrink + d)));
                }
            }
            tiles_see_memory();
            tiled_sums(&m, turn, count);
            tiles_see_memory();
            for (int i = 0; apart && i < TILED_TURN; i++) {
                if (turn + i >= from && turn + i < to) continue;
                memcpy(m.sums + (size_t)(turn + i) * (size_t)m.dims, m.kept + (size_t)i * (size_t)m.dims,
                       (size_t)m.dims * sizeof(float));
            }
        }
    }
    tiles_end();
    for (int r = 0; r < rows; r++)
        att_finish(job, kv * share + (row + r) % share, (row + r) / share, most[r], total[r],
                   m.sums + (size_t)r * (size_t)m.dims, 0, nth);
}
