/* GEMM of block-quantized weights on eight-bit dot products (VNNI).
 *
 * Weights of every type are unpacked into panels of 16 rows × 256 values: unsigned bytes (value + 128), four
 * neighbouring values of 16 rows per vector, and f32 scales. A panel pair (32 rows, 512 values) stays in the
 * first-level cache while it is multiplied with all activation rows, six at a time: 12 integer and 12 float
 * accumulators in registers. Integer sums start at -128·Σx, which cancels the offset of the codes exactly. After each
 * sub-block they are converted, scaled and added in f32, in the order of k, so that no result depends on how the
 * output is divided. */
#include <immintrin.h>

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/avx512/transpose.h"
#include "backend/cpu/kernels/avx512/unpack.h"
#include "backend/cpu/kernels/gemm_loop.h"

enum {
    ROWS = 32, /* of a panel pair */
    COLS = 6,  /* activation rows at a time: 2·6 integer + 2·6 float accumulators + weights fit 32 registers */
    DEPTH = 2, /* chunks per pass: 16 KiB of codes, half of a 32 KiB cache */
};
#include "backend/cpu/kernels/avx512/accumulators.h"

/* ---- Filling panels ---- */

typedef struct unpacked {
    uint8_t code[16][256];
    float scale[16][16], less[16][16];
} unpacked;

TN__INLINE void store_row(const tn__regs *r, int row, bool per16, int offset, unpacked *u) {
    for (int v = 0; v < 4; v++) {
        __m512i code = r->code[v];
        if (offset >= 0 && offset != 128) code = _mm512_add_epi8(code, _mm512_set1_epi8((char)(128 - offset)));
        if (offset < 0) code = _mm512_xor_si512(code, _mm512_set1_epi8(-128));
        _mm512_storeu_si512(u->code[row] + 64 * v, code);
    }
    _mm512_storeu_ps(u->scale[row], r->scale);
    if (per16 && offset < 0) _mm512_storeu_ps(u->less[row], r->less);
}

#define UNPACK_OF(NAME, name, bytes, per16, offset)                                                                  \
    static void unpack_##name(const tn__matmul_job *job, int64_t row, int64_t c, int rows, unpacked *u) {            \
        int64_t count = job->k - c * TN__CHUNK;                                                                      \
        for (int i = 0; i < rows; i++) {                                                                             \
            const uint8_t *w = (const uint8_t *)job->w + (size_t)(row + i) * job->w_stride + (size_t)c * bytes;      \
            tn__regs r;                                                                                              \
            if (count >= TN__CHUNK) {                                                                                \
                load_##name(w, &r);                                                                                  \
            } else {                                                                                                 \
                uint8_t padded[bytes] = {0};                                                                         \
                memcpy(padded, w, (size_t)(bytes * count / TN__CHUNK));                                              \
                load_##name(padded, &r);                                                                             \
            }                                                                                                        \
            store_row(&r, i, per16, offset, u);                                                                      \
        }                                                                                                            \
    }
TN__AVX512_TYPES(UNPACK_OF)
#undef UNPACK_OF

static void transpose_to(const void *rows, size_t stride, void *columns, int count) {
    __m512i r[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512((const char *)rows + stride * (size_t)i);
    tn__transpose16(r);
    for (int i = 0; i < count; i++) _mm512_store_si512((char *)columns + 64 * i, r[i]);
}

/* Repacked weights are already transposed: only their codes are unpacked. */
static void panel_repacked(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel16 *p) {
    const uint8_t *group = (const uint8_t *)job->w + (size_t)(row / 16) * tn__repacked_group_bytes(job->type, job->k);
    const __m512i nibble = _mm512_set1_epi8(15);
    int units = (int)(job->k - c * TN__CHUNK < TN__CHUNK ? (job->k - c * TN__CHUNK) / 32 : 8);
    if (job->type == TN_Q8_0 || job->type == TN_Q4_0) {
        for (int u = 0; u < units; u++) {
            const uint8_t *w = group + (size_t)(8 * c + u) * (job->type == TN_Q8_0 ? 544 : 288);
            _mm512_store_ps(p->scale[u], _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w)));
            if (job->type == TN_Q8_0) {
                for (int q = 0; q < 8; q++)
                    _mm512_store_si512(p->codes[8 * u + q], _mm512_loadu_si512(w + 32 + 64 * q));
                continue;
            }
            const __m512i offset = _mm512_set1_epi8(120);
            for (int q = 0; q < 4; q++) {
                __m512i b = _mm512_loadu_si512(w + 32 + 64 * q);
                _mm512_store_si512(p->codes[8 * u + q], _mm512_add_epi8(_mm512_and_si512(b, nibble), offset));
                b = _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble);
                _mm512_store_si512(p->codes[8 * u + 4 + q], _mm512_add_epi8(b, offset));
            }
        }
    } else if (job->type == TN_Q4_K) {
        const uint8_t *w = group + (size_t)c * 2304;
        const __m512i offset = _mm512_set1_epi8(-128);
        __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        __m512 dmin = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(w + 32)));
        for (int g = 0; g < 4; g++) {
            uint8_t scale[2][16], min[2][16];
            for (int r = 0; r < 16; r++) {
                const uint8_t *from = w + 64 + 48 * g + r;
                scale[0][r] = from[0] & 63;
                scale[1][r] = from[16] & 63;
                min[0][r] = (uint8_t)(from[0] >> 6 | (from[32] & 15) << 2);
                min[1][r] = (uint8_t)(from[16] >> 6 | from[32] >> 4 << 2);
            }
            for (int i = 0; i < 2; i++) {
                __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)scale[i]));
                __m512i m = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)min[i]));
                _mm512_store_ps(p->scale[2 * g + i], _mm512_mul_ps(d, _mm512_cvtepi32_ps(s)));
                _mm512_store_ps(p->less[2 * g + i], _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(m)));
            }
            for (int q = 0; q < 8; q++) {
                __m512i b = _mm512_loadu_si512(w + 256 + 512 * g + 64 * q);
                _mm512_store_si512(p->codes[16 * g + q], _mm512_or_si512(_mm512_and_si512(b, nibble), offset));
                b = _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble);
                _mm512_store_si512(p->codes[16 * g + 8 + q], _mm512_or_si512(b, offset));
            }
        }
    } else { /* q6_K */
        const uint8_t *w = group + (size_t)c * 3360;
        const __m512i bits45 = _mm512_set1_epi8(0x30), offset = _mm512_set1_epi8(96);
        enum { OR_OF_AND = 0xf8 };
        __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)w));
        for (int s = 0; s < 16; s++) {
            __m512i code = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(w + 32 + 16 * s)));
            _mm512_store_ps(p->scale[s], _mm512_mul_ps(d, _mm512_cvtepi32_ps(code)));
        }
        for (int h = 0; h < 2; h++) {
            const uint8_t *half = w + 288 + 1536 * h;
            for (int q = 0; q < 8; q++) {
                __m512i a = _mm512_loadu_si512(half + 192 * q), b = _mm512_loadu_si512(half + 192 * q + 64);
                __m512i t = _mm512_loadu_si512(half + 192 * q + 128);
                __m512i code[4] = {_mm512_ternarylogic_epi64(_mm512_and_si512(a, nibble), _mm512_slli_epi16(t, 4),
                                                             bits45, OR_OF_AND),
                                   _mm512_ternarylogic_epi64(_mm512_and_si512(b, nibble), _mm512_slli_epi16(t, 2),
                                                             bits45, OR_OF_AND),
                                   _mm512_ternarylogic_epi64(_mm512_and_si512(_mm512_srli_epi16(a, 4), nibble), t,
                                                             bits45, OR_OF_AND),
                                   _mm512_ternarylogic_epi64(_mm512_and_si512(_mm512_srli_epi16(b, 4), nibble),
                                                             _mm512_srli_epi16(t, 2), bits45, OR_OF_AND)};
                for (int r = 0; r < 4; r++)
                    _mm512_store_si512(p->codes[32 * h + 8 * r + q], _mm512_add_epi8(code[r], offset));
            }
        }
    }
}

bool tn__avx512_scale_per_16(tn_type type) {
    switch (type) {
#define CASE(NAME, name, bytes, per16, offset)                                                                       \
    case TN_##NAME: return per16;
        TN__AVX512_TYPES(CASE)
#undef CASE
    default: return false;
    }
}
bool tn__avx512_minimum(tn_type type) {
    switch (type) {
#define CASE(NAME, name, bytes, per16, offset)                                                                       \
    case TN_##NAME: return (offset) < 0;
        TN__AVX512_TYPES(CASE)
#undef CASE
    default: return false;
    }
}

void tn__avx512_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel16 *panel) {
    if (job->repacked) {
        panel_repacked(job, row, c, panel);
        return;
    }
    unpacked u;
    int rows = (int)(job->m - row < 16 ? job->m - row : 16);
    if (rows < 16) memset(&u, 0, sizeof u);
    switch (job->type) {
#define CASE(NAME, name, bytes, per16, offset)                                                                       \
    case TN_##NAME: unpack_##name(job, row, c, rows, &u); break;
        TN__AVX512_TYPES(CASE)
#undef CASE
    default: break;
    }
    for (int v = 0; v < 4; v++) transpose_to(u.code[0] + 64 * v, 256, panel->codes[16 * v], 16);
    bool per16 = tn__avx512_scale_per_16(job->type);
    transpose_to(u.scale, 64, panel->scale, 16);
    if (tn__avx512_minimum(job->type)) {
        if (per16) {
            transpose_to(u.less, 64, panel->less, 16);
        } else { /* the minima are in the upper lanes of the scales */
            memcpy(panel->less, panel->scale[8], 8 * sizeof panel->less[0]);
        }
    }
}

/* ---- The kernel ---- */

/* One sub-block of 32 or 16 values (`steps` dot products of four) for 32 rows and `cols` activation rows. */
TN__INLINE void sub_block(const tn__panel16 *a, const tn__panel16 *b, const tn__q8_chunk *x, int quad, int steps,
                          int s, const float *scale_x, const float *ds, const int32_t *bias, bool minimum,
                          const int cols, __m512 acc[2][COLS]) {
    /* scale_x, ds and bias point into the first activation row's chunk; those of the next rows are a chunk apart. */
    enum { NEXT = sizeof(tn__q8_chunk) / 4 };
    __m512i dot[2][COLS];
    for (int j = 0; j < cols; j++) dot[0][j] = dot[1][j] = _mm512_set1_epi32(bias[j * NEXT]);
#pragma GCC unroll 8
    for (int q = 0; q < steps; q++) {
        __m512i wa = _mm512_load_si512(a->codes[quad + q]), wb = _mm512_load_si512(b->codes[quad + q]);
#pragma GCC unroll 6
        for (int j = 0; j < cols; j++) {
            int four;
            memcpy(&four, x[j].qs + 4 * (quad + q), 4);
            __m512i v = _mm512_set1_epi32(four);
            dot[0][j] = _mm512_dpbusd_epi32(dot[0][j], wa, v);
            dot[1][j] = _mm512_dpbusd_epi32(dot[1][j], wb, v);
        }
    }
    __m512 sa = _mm512_load_ps(a->scale[s]), sb = _mm512_load_ps(b->scale[s]);
#pragma GCC unroll 6
    for (int j = 0; j < cols; j++) {
        __m512 d = _mm512_set1_ps(scale_x[j * NEXT]);
        acc[0][j] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[0][j]), sa), d, acc[0][j]);
        acc[1][j] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[1][j]), sb), d, acc[1][j]);
    }
    if (minimum) {
        __m512 la = _mm512_load_ps(a->less[s]), lb = _mm512_load_ps(b->less[s]);
#pragma GCC unroll 6
        for (int j = 0; j < cols; j++) {
            __m512 t = _mm512_set1_ps(ds[j * NEXT]);
            acc[0][j] = _mm512_fnmadd_ps(la, t, acc[0][j]);
            acc[1][j] = _mm512_fnmadd_ps(lb, t, acc[1][j]);
        }
    }
}

/* The i-th of a chunk's sub-blocks of 16: as gemv.h takes those of q6_K, first halves of 32 values before second. */
TN__INLINE int order_of_16(int i) { return (i & 8) | (i & 3) << 1 | (i >> 2 & 1); }

/* 32 rows × cols columns over `values` values of k (up to DEPTH chunks). */
TN__INLINE void kernel(const tn__panel16 panel[DEPTH][2], const tn__q8_chunk *x, int64_t x_rows, int64_t values,
                       bool first, float *const out[COLS], row_masks rows, bool per16, bool minimum, const int cols) {
    __m512 acc[2][COLS];
    load_accumulators(acc, out, rows, first, cols);
    for (int64_t at = 0, chunk = 0; at < values; at += TN__CHUNK, chunk++, x += x_rows) {
        const tn__panel16 *a = &panel[chunk][0], *b = &panel[chunk][1];
        int blocks = (int)(values - at < TN__CHUNK ? (values - at) / 32 : 8);
        if (per16) {
            for (int i = 0; i < 2 * blocks; i++) {
                const int s = blocks == 8 ? order_of_16(i) : i;
                sub_block(a, b, x, 4 * s, 4, s, &x->d[s / 2], &x->ds16[s], &x->bias16[s], minimum, cols, acc);
            }
        } else {
            for (int s = 0; s < blocks; s++)
                sub_block(a, b, x, 8 * s, 8, s, &x->d[s], &x->ds[s], &x->bias[s], minimum, cols, acc);
        }
    }
    store_accumulators(acc, out, rows, cols);
}

typedef void kernel_fn(const tn__panel16 panel[DEPTH][2], const tn__q8_chunk *x, int64_t x_rows, int64_t values,
                       bool first, float *const out[COLS], row_masks rows);
#define KERNEL(per16, minimum, cols)                                                                                 \
    static void kernel_##per16##minimum##cols(const tn__panel16 panel[DEPTH][2], const tn__q8_chunk *x,              \
                                              int64_t x_rows, int64_t values, bool first, float *const out[COLS],    \
                                              row_masks rows) {                                                      \
        kernel(panel, x, x_rows, values, first, out, rows, per16, minimum, cols);                                    \
    }
#define KERNELS(per16, minimum)                                                                                      \
    KERNEL(per16, minimum, 1)                                                                                        \
    KERNEL(per16, minimum, 2)                                                                                        \
    KERNEL(per16, minimum, 3)                                                                                        \
    KERNEL(per16, minimum, 4)                                                                                        \
    KERNEL(per16, minimum, 5)                                                                                        \
    KERNEL(per16, minimum, 6)
KERNELS(0, 0)
KERNELS(0, 1)
KERNELS(1, 0)
KERNELS(1, 1)
#define ROW_OF(per16, minimum)                                                                                       \
    {                                                                                                                \
        kernel_##per16##minimum##1, kernel_##per16##minimum##2, kernel_##per16##minimum##3,                          \
            kernel_##per16##minimum##4, kernel_##per16##minimum##5, kernel_##per16##minimum##6                       \
    }
static kernel_fn *const kernels[2][2][COLS] = {{ROW_OF(0, 0), ROW_OF(0, 1)}, {ROW_OF(1, 0), ROW_OF(1, 1)}};

/* q8_0x16 has the layout of a panel except for its scales, so it is multiplied without a copy. `a` and `b` are the
 * units of two groups, starting with this chunk. The operations and their order are those of the kernel above. */
enum { UNIT = 544 };
TN__INLINE void repacked_kernel(const uint8_t *a, const uint8_t *b, const tn__q8_chunk *x, int64_t x_rows,
                                int64_t values, bool first, float *const out[COLS], row_masks rows, const int cols) {
    enum { NEXT = sizeof(tn__q8_chunk) / 4 };
    __m512 acc[2][COLS];
    load_accumulators(acc, out, rows, first, cols);
    for (int64_t s = 0; s < values / 32; s++, a += UNIT, b += UNIT) {
        const tn__q8_chunk *chunk = x + s / 8 * x_rows;
        const int8_t *qs = chunk->qs + s % 8 * 32;
        const float *scale_x = &chunk->d[s % 8];
        const int32_t *bias = &chunk->bias[s % 8];
        __m512i dot[2][COLS];
#pragma GCC unroll 6
        for (int j = 0; j < cols; j++) dot[0][j] = dot[1][j] = _mm512_set1_epi32(bias[j * NEXT]);
#pragma GCC unroll 8
        for (int q = 0; q < 8; q++) {
            __m512i wa = _mm512_loadu_si512(a + 32 + 64 * q), wb = _mm512_loadu_si512(b + 32 + 64 * q);
#pragma GCC unroll 6
            for (int j = 0; j < cols; j++) {
                int four;
                memcpy(&four, qs + j * (int)sizeof(tn__q8_chunk) + 4 * q, 4);
                __m512i v = _mm512_set1_epi32(four);
                dot[0][j] = _mm512_dpbusd_epi32(dot[0][j], wa, v);
                dot[1][j] = _mm512_dpbusd_epi32(dot[1][j], wb, v);
            }
        }
        __m512 sa = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)a));
        __m512 sb = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)b));
#pragma GCC unroll 6
        for (int j = 0; j < cols; j++) {
            __m512 d = _mm512_set1_ps(scale_x[j * NEXT]);
            acc[0][j] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[0][j]), sa), d, acc[0][j]);
            acc[1][j] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot[1][j]), sb), d, acc[1][j]);
        }
    }
    store_accumulators(acc, out, rows, cols);
}

typedef void repacked_fn(const uint8_t *a, const uint8_t *b, const tn__q8_chunk *x, int64_t x_rows, int64_t values,
                         bool first, float *const out[COLS], row_masks rows);
#define REPACKED(cols)                                                                                               \
    static void repacked_##cols(const uint8_t *a, const uint8_t *b, const tn__q8_chunk *x, int64_t x_rows,           \
                                int64_t values, bool first, float *const out[COLS], row_masks rows) {                \
        repacked_kernel(a, b, x, x_rows, values, first, out, rows, cols);                                            \
    }
REPACKED(1)
REPACKED(2)
REPACKED(3)
REPACKED(4)
REPACKED(5)
REPACKED(6)
static repacked_fn *const repacked_kernels[COLS] = {repacked_1, repacked_2, repacked_3,
                                                    repacked_4, repacked_5, repacked_6};

/* Prefetches part `part` of `parts` of the weights of the panel pair at `row` and chunk c. Spread over the
 * multiplication of the pair before, all of them have arrived when that is done. The target is the second-level
 * cache, which has far more outstanding requests to memory than the first. */
static void prefetch_weights(const tn__matmul_job *job, int64_t row, int64_t c, uint32_t part, uint32_t parts) {
    const int64_t together = job->repacked ? 16 : 1, k = job->k - c * TN__CHUNK;
    const int64_t blocks = (k < DEPTH * TN__CHUNK ? k : DEPTH * TN__CHUNK) / tn__block_of(job->type);
    const size_t unit = (size_t)(together * tn__bytes_of(job->type)), bytes = (size_t)blocks * unit;
    const size_t stride = job->repacked ? tn__repacked_group_bytes(job->type, job->k) : job->w_stride;
    const int64_t rows = (job->m - row < ROWS ? job->m - row + together - 1 : ROWS) / together;
    const char *at = (const char *)job->w + (size_t)(row / together) * stride +
                     (size_t)(c * TN__CHUNK / tn__block_of(job->type)) * unit;
    const uint32_t each = (uint32_t)((bytes + 63) / 64), all = each * (uint32_t)rows, end = all * (part + 1) / parts;
    uint32_t i = all * part / parts, line = i % each;
    for (at += i / each * stride; i < end; i++) {
        __builtin_prefetch(at + line * 64, 0, 2);
        if (++line == each) {
            line = 0;
            at += stride;
        }
    }
}

/* Panel pairs [from, to) times activation rows [col_from, col_to). */
static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    _Alignas(64) tn__panel16 panel[DEPTH][2];
    const uint32_t parts = (uint32_t)((col_to - col_from + COLS - 1) / COLS);
    const bool direct = job->repacked && job->type == TN_Q8_0;
    const size_t group_bytes = job->repacked ? tn__repacked_group_bytes(job->type, job->k) : 0;
    kernel_fn *const *variants = kernels[tn__avx512_scale_per_16(job->type)][tn__avx512_minimum(job->type)];
    for (int64_t c = 0; c * TN__CHUNK < job->k; c += DEPTH) {
        int64_t left = job->k - c * TN__CHUNK, values = left < DEPTH * TN__CHUNK ? left : DEPTH * TN__CHUNK;
        for (int64_t p = from; p < to; p++) {
            int64_t row = p * ROWS;
            const row_masks rows = row_masks_at(job, row);
            const uint8_t *group = (const uint8_t *)job->w + (size_t)(row / 16) * group_bytes + (size_t)c * 8 * UNIT;
            for (int64_t d = 0; !direct && d * TN__CHUNK < values; d++) {
                tn__avx512_panel(job, row, c + d, &panel[d][0]);
                if (rows.b)
                    tn__avx512_panel(job, row + 16, c + d, &panel[d][1]);
                else
                    panel[d][1] = panel[d][0]; /* its results are not stored */
            }
            /* The weights used next: of the next pair, of the next chunks of the first pair, or of the pair after
             * `to`. */
            const bool deeper = (c + DEPTH) * TN__CHUNK < job->k;
            const int64_t next = p + 1 < to || !deeper ? p + 1 : from, next_c = p + 1 < to ? c
                                                                                : deeper   ? c + DEPTH
                                                                                           : 0;
            for (int64_t j = col_from; j < col_to; j += COLS) {
                int cols = (int)(col_to - j < COLS ? col_to - j : COLS);
                if (next * ROWS < job->m)
                    prefetch_weights(job, next * ROWS, next_c, (uint32_t)((j - col_from) / COLS), parts);
                float *out[COLS];
                for (int q = 0; q < cols; q++) out[q] = tn__out_row(job, j + q) + row;
                if (direct)
                    repacked_kernels[cols - 1](group, rows.b ? group + group_bytes : group, tn__q8_at(job, c, j),
                                               job->x_rows, values, c == 0, out, rows);
                else
                    variants[cols - 1](panel, tn__q8_at(job, c, j), job->x_rows, values, c == 0, out, rows);
            }
        }
    }
}

void tn__avx512_gemm_q8(const tn__matmul_job *job, int ith, int nth) {
    /* 768 prepared activation rows are 768 KiB per pass of two chunks. */
    const tn__gemm_shape shape = {.rows = ROWS, .share_cols = 8 * COLS, .panels = 4, .wide = 768};
    tn__gemm_loop(job, shape, rectangle, ith, nth);
}
