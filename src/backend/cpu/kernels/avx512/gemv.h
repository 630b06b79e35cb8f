/* Mat-mul of few activation rows (decode): every weight is read once, unpacked in registers and used for up to four
 * rows, or eight where weights are repacked.
 *
 * Blocks: dot products of unsigned codes with eight-bit activations, 64 at a time. Each of 16 lanes holds the sum of
 * four neighbours, is multiplied by the scale of its sub-block and is accumulated in f32. The subtrahend (minima, or
 * the offset that makes codes unsigned) takes one multiplication per sub-block with the activations' sums.
 *
 * A template: the including file defines the prefetch distances TN__FETCH_FAR and TN__FETCH_NEAR and whether several
 * activation rows take PASSES over repacked weights, and exports gemv_q8, gemv_q8_repacked and gemv_float. */
#include <immintrin.h>

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/avx512/unpack.h"

/* Weights are prefetched TN__FETCH_FAR bytes ahead into the second-level cache and TN__FETCH_NEAR bytes ahead into
 * the first; 0 where the hardware prefetcher suffices for that. One line at a time, next to the load of that line: a
 * burst of prefetches would delay loads. */
TN__INLINE void fetch_line(const void *w) {
    _mm_prefetch((const char *)w + TN__FETCH_FAR, _MM_HINT_T1);
    if (TN__FETCH_NEAR) _mm_prefetch((const char *)w + TN__FETCH_NEAR, _MM_HINT_T0);
}
TN__INLINE void fetch(const void *w, const int bytes) {
#pragma GCC unroll 64
    for (int line = 0; line < bytes; line += 64) fetch_line((const char *)w + line);
}

typedef struct sums {
    __m512 even, odd, less;
} sums;

/* Lane l of vector v belongs to sub-block v·2 + l/8, or v·4 + l/4. */
TN__INLINE __m512i lanes_of(int v, bool per16) {
    const __m512i eighth = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i fourth = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return per16 ? _mm512_add_epi32(fourth, _mm512_set1_epi32(4 * v))
                 : _mm512_add_epi32(eighth, _mm512_set1_epi32(2 * v));
}

TN__INLINE void accumulate(const tn__regs *r, const tn__q8_chunk *x, bool per16, sums *s) {
    __m512 scale;
    if (per16) {
        const __m512i halves = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        scale = _mm512_mul_ps(r->scale, _mm512_permutexvar_ps(halves, _mm512_loadu_ps(x->d)));
        s->less = _mm512_fmadd_ps(r->less, _mm512_loadu_ps(x->ds16), s->less);
    } else { /* ds follows d in memory: the upper lanes become the subtrahend */
        scale = _mm512_mul_ps(r->scale, _mm512_loadu_ps(x->d));
        s->less = _mm512_add_ps(s->less, scale);
    }
    for (int v = 0; v < 4; v++) {
        __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), r->code[v], _mm512_loadu_si512(x->qs + 64 * v));
        __m512 by = _mm512_permutexvar_ps(lanes_of(v, per16), scale);
        __m512 *to = v & 1 ? &s->odd : &s->even;
        *to = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), by, *to);
    }
}
TN__INLINE float total(const sums *s, bool per16) {
    float less = _mm512_mask_reduce_add_ps(per16 ? 0xffff : 0xff00, s->less);
    return _mm512_reduce_add_ps(_mm512_add_ps(s->even, s->odd)) - less;
}

/* The blocks of a row after its last whole chunk. Absent blocks have no scale and contribute nothing. They are read
 * in the following rows where the matrix has those: a copy would have to wait for its own stores. */
TN__INLINE void load_rest(const tn__matmul_job *job, int64_t row, const uint8_t *w, const int bytes, int64_t rest,
                          const bool per16, void (*load)(const uint8_t *, tn__regs *), tn__regs *r) {
    const size_t present = (size_t)(bytes * rest / TN__CHUNK);
    if (!per16 && (size_t)bytes - present <= (size_t)(job->m - 1 - row) * job->w_stride) {
        const unsigned blocks = (1u << (rest / 32)) - 1;
        load(w, r);
        r->scale = _mm512_maskz_mov_ps((__mmask16)(blocks | blocks << 8), r->scale);
        return;
    }
    uint8_t padded[512] = {0};
    memcpy(padded, w, present);
    load(padded, r);
}

#define GEMV_OF(NAME, name, bytes, per16, offset)                                                                    \
    TN__INLINE void columns_##name(const tn__matmul_job *job, int64_t row, int64_t j, const int cols) {              \
        const uint8_t *w = (const uint8_t *)job->w + (size_t)row * job->w_stride;                                    \
        int64_t whole = job->k / TN__CHUNK, rest = job->k % TN__CHUNK;                                               \
        sums s[4];                                                                                                   \
        tn__regs r;                                                                                                  \
        for (int q = 0; q < cols; q++) s[q].even = s[q].odd = s[q].less = _mm512_setzero_ps();                       \
        for (int64_t c = 0; c < whole; c++, w += bytes) {                                                            \
            fetch(w, bytes);                                                                                         \
            load_##name(w, &r);                                                                                      \
            for (int q = 0; q < cols; q++) accumulate(&r, tn__q8_at(job, c, j + q), per16, &s[q]);                   \
        }                                                                                                            \
        if (rest) {                                                                                                  \
            load_rest(job, row, w, bytes, rest, per16, load_##name, &r);                                             \
            for (int q = 0; q < cols; q++) accumulate(&r, tn__q8_at(job, whole, j + q), per16, &s[q]);               \
        }                                                                                                            \
        for (int q = 0; q < cols; q++) tn__out_row(job, j + q)[row] = total(&s[q], per16);                           \
    }                                                                                                                \
    static void gemv_##name(const tn__matmul_job *job, int64_t from, int64_t to) {                                   \
        for (int64_t row = from; row < to; row++) TN__BY_FOUR(job->n, columns_##name, job, row);                     \
    }
TN__AVX512_TYPES(GEMV_OF)
#undef GEMV_OF

static void gemv_q8(const tn__matmul_job *job, int64_t from, int64_t to) {
    switch (job->type) {
#define CASE(NAME, name, bytes, per16, offset)                                                                       \
    case TN_##NAME: gemv_##name(job, from, to); break;
        TN__AVX512_TYPES(CASE)
#undef CASE
    default: break;
    }
}

/* ---- Repacked weights: four broadcast activations times the same four values of 16 rows ---- */

enum { PASS_FREE = 2 }; /* up to this many activation rows need no passes; see below */

TN__INLINE __m512i four(const tn__q8_chunk *x, int at) {
    int quad;
    memcpy(&quad, x->qs + at, 4);
    return _mm512_set1_epi32(quad);
}
TN__INLINE __m512 halves16(const void *d) { return _mm512_cvtph_ps(_mm256_loadu_si256(d)); }
TN__INLINE __m512 bytes16(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }

/* In passes weights are read in pieces: `ahead` bytes from here are the weights of the next piece. */
TN__INLINE void fetch_ahead(const void *w, ptrdiff_t ahead, const int cols) {
    if (TN__PASSES && cols > PASS_FREE)
        _mm_prefetch((const char *)w + ahead, _MM_HINT_T1);
    else
        fetch_line(w);
}
TN__INLINE void fetch_all(const void *w, const int bytes, ptrdiff_t ahead, const int cols) {
#pragma GCC unroll 64
    for (int line = 0; line < bytes; line += 64) fetch_ahead((const char *)w + line, ahead, cols);
}

/* Multiplies a block's dot products by the scales of the weights and of the activations. All kernels for repacked
 * weights use the operations of gemm_q8.c in its order, so that few rows and many give the same bits. */
TN__INLINE __m512 scaled(__m512i dot, __m512 d, const tn__q8_chunk *x, int at, __m512 acc) {
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dot), d), _mm512_set1_ps(x->d[at / 32]), acc);
}

/* One unit (32 or 256 values) of 16 rows times `cols` activation rows, whose chunks are adjacent. The unit starts
 * `at` values into its chunk. Unpacked codes are used for all activation rows. */
TN__INLINE void unit_q8_0(const uint8_t *w, const tn__q8_chunk *x, int at, ptrdiff_t ahead, __m512 *acc,
                          const int cols) {
    __m512i dot[8];
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++) dot[j] = _mm512_set1_epi32(x[j].bias[at / 32]);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m512i codes = _mm512_loadu_si512(w + 32 + 64 * q);
        fetch_ahead(w + 32 + 64 * q, ahead, cols);
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) dot[j] = _mm512_dpbusd_epi32(dot[j], codes, four(&x[j], at + 4 * q));
    }
    if (at % 64 == 0) fetch_ahead(w + 512, ahead, cols); /* two units are 17 lines */
    __m512 d = halves16(w);
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++) acc[j] = scaled(dot[j], d, &x[j], at, acc[j]);
}
TN__INLINE void unit_q4_0(const uint8_t *w, const tn__q8_chunk *x, int at, ptrdiff_t ahead, __m512 *acc,
                          const int cols) {
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i low[8], high[8]; /* high nibbles are not shifted: their sums are 16 times too large */
    /* Codes are 8 too large: -8·Σ is a sixteenth of the bias for bytes. */
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++) {
        low[j] = _mm512_setzero_si512();
        high[j] = _mm512_set1_epi32(x[j].bias[at / 32]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        const __m512i codes = _mm512_loadu_si512(w + 32 + 64 * q), first = _mm512_and_si512(codes, nibble),
                      second = _mm512_andnot_si512(nibble, codes);
        fetch_ahead(w + 32 + 64 * q, ahead, cols);
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            low[j] = _mm512_dpbusd_epi32(low[j], first, four(&x[j], at + 4 * q));
            high[j] = _mm512_dpbusd_epi32(high[j], second, four(&x[j], at + 16 + 4 * q));
        }
    }
    if (at % 64 == 0) fetch_ahead(w + 256, ahead, cols); /* two units are nine lines */
    __m512 d = halves16(w);
#pragma GCC unroll 8
    for (int j = 0; j < cols; j++)
        acc[j] = scaled(_mm512_add_epi32(low[j], _mm512_srai_epi32(high[j], 4)), d, &x[j], at, acc[j]);
}
TN__INLINE void unit_q4_K(const uint8_t *w, const tn__q8_chunk *x, int at, ptrdiff_t ahead, __m512 *acc,
                          const int cols) {
    (void)at;
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m128i six = _mm_set1_epi8(63), two = _mm_set1_epi8(3), four_bits = _mm_set1_epi8(15);
    __m512 d = halves16(w), dmin = halves16(w + 32);
    fetch_all(w, 256, ahead, cols);
    for (int p = 0; p < 4; p++) {
        __m128i a = _mm_loadu_si128((const __m128i *)(w + 64 + 48 * p));
        __m128i b = _mm_loadu_si128((const __m128i *)(w + 80 + 48 * p));
        __m128i c = _mm_loadu_si128((const __m128i *)(w + 96 + 48 * p));
        __m128i min_a =
            _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 6), two), _mm_slli_epi16(_mm_and_si128(c, four_bits), 2));
        __m128i min_b = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(b, 6), two),
                                     _mm_and_si128(_mm_srli_epi16(c, 2), _mm_set1_epi8(60)));
        __m512i low[8], high[8];
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) low[j] = high[j] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int q = 0; q < 8; q++) {
            __m512i codes = _mm512_loadu_si512(w + 256 + 512 * p + 64 * q), first = _mm512_and_si512(codes, nibble);
            __m512i second = _mm512_andnot_si512(nibble, codes); /* 16 times too large */
            fetch_ahead(w + 256 + 512 * p + 64 * q, ahead, cols);
#pragma GCC unroll 8
            for (int j = 0; j < cols; j++) {
                low[j] = _mm512_dpbusd_epi32(low[j], first, four(&x[j], 64 * p + 4 * q));
                high[j] = _mm512_dpbusd_epi32(high[j], second, four(&x[j], 64 * p + 32 + 4 * q));
            }
        }
        __m512 scale_a = _mm512_mul_ps(bytes16(_mm_and_si128(a, six)), d),
               less_a = _mm512_mul_ps(bytes16(min_a), dmin);
        __m512 scale_b = _mm512_mul_ps(bytes16(_mm_and_si128(b, six)), d),
               less_b = _mm512_mul_ps(bytes16(min_b), dmin);
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            const __m512 a_dot = _mm512_mul_ps(_mm512_cvtepi32_ps(low[j]), scale_a);
            const __m512 b_dot = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(high[j], 4)), scale_b);
            acc[j] = _mm512_fmadd_ps(a_dot, _mm512_set1_ps(x[j].d[2 * p]), acc[j]);
            acc[j] = _mm512_fnmadd_ps(less_a, _mm512_set1_ps(x[j].ds[2 * p]), acc[j]);
            acc[j] = _mm512_fmadd_ps(b_dot, _mm512_set1_ps(x[j].d[2 * p + 1]), acc[j]);
            acc[j] = _mm512_fnmadd_ps(less_b, _mm512_set1_ps(x[j].ds[2 * p + 1]), acc[j]);
        }
    }
}
/* Sub-blocks of 16 values: side `side` of rows [first, first + rows) of the four rows of 32 values in one half of the
 * block. All indices are compile-time constants, so that shifts and offsets are immediates. */
TN__INLINE void part_q6_K(const uint8_t *w, const tn__q8_chunk *x, __m512 d, ptrdiff_t ahead, __m512 *acc,
                          const int cols, const int half, const int side, const int first, const int rows) {
    const __m512i nibble = _mm512_set1_epi8(15), bits45 = _mm512_set1_epi8(0x30);
    const uint8_t *codes = w + 288 + 1536 * half + 768 * side;
    enum { OR_OF_AND = 0xf8 };
    __m512i dot[4][8];
    /* Codes are 32 too large: a quarter of the bias for bytes. */
#pragma GCC unroll 4
    for (int r = first; r < first + rows; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++)
            dot[r][j] = _mm512_srai_epi32(_mm512_set1_epi32(x[j].bias16[8 * half + 2 * r + side]), 2);
    }
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        const __m512i h = _mm512_loadu_si512(codes + 192 * q + 128);
        __m512i low[2] = {_mm512_loadu_si512(codes + 192 * q), _mm512_loadu_si512(codes + 192 * q + 64)};
        if (first == 0) fetch_all(codes + 192 * q, 192, ahead, cols);
#pragma GCC unroll 4
        for (int r = first; r < first + rows; r++) {
            const __m512i l = r < 2 ? low[r % 2] : _mm512_srli_epi16(low[r % 2], 4);
            const __m512i t = r == 0   ? _mm512_slli_epi16(h, 4)
                              : r == 1 ? _mm512_slli_epi16(h, 2)
                              : r == 2 ? h
                                       : _mm512_srli_epi16(h, 2);
            const __m512i code = _mm512_ternarylogic_epi64(_mm512_and_si512(l, nibble), t, bits45, OR_OF_AND);
#pragma GCC unroll 8
            for (int j = 0; j < cols; j++)
                dot[r][j] =
                    _mm512_dpbusd_epi32(dot[r][j], code, four(&x[j], 128 * half + 32 * r + 16 * side + 4 * q));
        }
    }
#pragma GCC unroll 4
    for (int r = first; r < first + rows; r++) {
        const __m128i code = _mm_loadu_si128((const __m128i *)(w + 32 + 16 * (8 * half + 2 * r + side)));
        const __m512 scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(code)), d);
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            const __m512 by_scale = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][j]), scale);
            acc[j] = _mm512_fmadd_ps(by_scale, _mm512_set1_ps(x[j].d[4 * half + r]), acc[j]);
        }
    }
}
TN__INLINE void unit_q6_K(const uint8_t *w, const tn__q8_chunk *x, int at, ptrdiff_t ahead, __m512 *acc,
                          const int cols) {
    (void)at;
    const __m512 d = halves16(w);
    fetch_all(w, 288, ahead, cols);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            if (cols <= 4) { /* the sums of all four rows fit into registers */
                part_q6_K(w, x, d, ahead, acc, cols, half, side, 0, 4);
            } else {
                part_q6_K(w, x, d, ahead, acc, cols, half, side, 0, 2);
                part_q6_K(w, x, d, ahead, acc, cols, half, side, 2, 2);
            }
        }
    }
}

/* The loops around the units. With three or more activation rows the values of k are taken in passes, so short that
 * the chunks (512 bytes) of up to eight activation rows fill a quarter of a 32 KiB cache. They stay there for
 * PASS_GROUPS groups of weights, which in turn stay in the second-level cache for all activation rows. Sums of
 * earlier passes are read back from the output: additions are in the order of k, whatever the number of rows. */
enum { PASS_GROUPS = 8, PASS_CHUNKS = 16, PASS_COLS = 8 };
TN__INLINE int64_t pass_values(int64_t k, int64_t cols) {
    return cols <= PASS_FREE || !TN__PASSES ? k : PASS_CHUNKS / cols * TN__CHUNK;
}

#define REPACKED_OF(name, values, bytes)                                                                             \
    TN__INLINE void group_##name(const tn__matmul_job *job, int64_t row, int64_t j, int64_t from, int64_t to,        \
                                 ptrdiff_t ahead, const int cols) {                                                  \
        const uint8_t *w = (const uint8_t *)job->w +                                                                 \
                           (size_t)(row / 16) * tn__repacked_group_bytes(job->type, job->k) +                        \
                           (size_t)(from / values) * bytes;                                                          \
        const __mmask16 rows = tn__row_mask(job->m - row);                                                           \
        __m512 acc[PASS_COLS];                                                                                       \
        for (int q = 0; q < cols; q++)                                                                               \
            acc[q] = from > 0 ? _mm512_maskz_loadu_ps(rows, tn__out_row(job, j + q) + row) : _mm512_setzero_ps();    \
        for (int64_t at = from; at < to; at += values, w += bytes)                                                   \
            unit_##name(w, tn__q8_at(job, at / TN__CHUNK, j), (int)(at % TN__CHUNK), ahead, acc, cols);              \
        for (int q = 0; q < cols; q++) _mm512_mask_storeu_ps(tn__out_row(job, j + q) + row, rows, acc[q]);           \
    }                                                                                                                \
    static void columns_of_##name(const tn__matmul_job *job, int64_t row, int64_t j, int64_t from, int64_t to,       \
                                  ptrdiff_t ahead, int64_t cols) {                                                   \
        switch (cols) {                                                                                              \
        case 1: group_##name(job, row, j, from, to, ahead, 1); break;                                                \
        case 2: group_##name(job, row, j, from, to, ahead, 2); break;                                                \
        case 3: group_##name(job, row, j, from, to, ahead, 3); break;                                                \
        case 4: group_##name(job, row, j, from, to, ahead, 4); break;                                                \
        case 5: group_##name(job, row, j, from, to, ahead, 5); break;                                                \
        case 6: group_##name(job, row, j, from, to, ahead, 6); break;                                                \
        case 7: group_##name(job, row, j, from, to, ahead, 7); break;                                                \
        case 8: group_##name(job, row, j, from, to, ahead, 8); break;                                                \
        }                                                                                                            \
    }                                                                                                                \
    static void repacked_##name(const tn__matmul_job *job, int64_t from, int64_t to) {                               \
        const int64_t blocks = (job->n + PASS_COLS - 1) / PASS_COLS, cols = (job->n + blocks - 1) / blocks,          \
                      each = pass_values(job->k, cols),                                                              \
                      group = (int64_t)tn__repacked_group_bytes(job->type, job->k);                                  \
        for (int64_t first = from; first < to; first += PASS_GROUPS * 16) {                                          \
            const int64_t end = to - first < PASS_GROUPS * 16 ? to : first + PASS_GROUPS * 16;                       \
            for (int64_t at = 0; at < job->k; at += each) {                                                          \
                const int64_t stop = job->k - at < each ? job->k : at + each;                                        \
                for (int64_t j = 0; j < job->n; j += cols) {                                                         \
                    for (int64_t row = first; row < end; row += 16) {                                                \
                        const ptrdiff_t next = row + 16 < end ? group                                                \
                                               : stop < job->k                                                       \
                                                   ? (stop - at) / values * bytes - (row - first) / 16 * group       \
                                                   : group - at / values * bytes;                                    \
                        columns_of_##name(job, row, j, at, stop, j == 0 ? next : 0,                                  \
                                          job->n - j < cols ? job->n - j : cols);                                    \
                    }                                                                                                \
                }                                                                                                    \
            }                                                                                                        \
        }                                                                                                            \
    }
REPACKED_OF(q8_0, 32, 544)
REPACKED_OF(q4_0, 32, 288)
REPACKED_OF(q4_K, 256, 2304)
REPACKED_OF(q6_K, 256, 3360)
#undef REPACKED_OF

static void gemv_q8_repacked(const tn__matmul_job *job, int64_t from, int64_t to) {
    switch (job->type) {
    case TN_Q8_0: repacked_q8_0(job, from, to); break;
    case TN_Q4_0: repacked_q4_0(job, from, to); break;
    case TN_Q4_K: repacked_q4_K(job, from, to); break;
    case TN_Q6_K: repacked_q6_K(job, from, to); break;
    default: break;
    }
}

/* ---- Float weights ---- */

TN__INLINE __m512 load16(const void *w, tn_type type, int64_t i, __mmask16 mask) {
    if (type == TN_F32) return _mm512_maskz_loadu_ps(mask, (const float *)w + i);
    __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)w + i);
    if (type == TN_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* `rows` weight rows times `cols` activation rows, in `lanes` accumulators each; the last step is masked. A single
 * weight row reads memory sequentially; with several activation rows, four weight rows share the loaded activations.
 */
TN__INLINE void float_tile(const tn__matmul_job *job, tn_type type, int64_t row, int64_t j, const int rows,
                           const int cols, const int lanes) {
    const size_t size = type == TN_F32 ? 4 : 2;
    __m512 acc[4][4][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int q = 0; q < cols; q++) {
#pragma GCC unroll 4
            for (int l = 0; l < lanes; l++) acc[r][q][l] = _mm512_setzero_ps();
        }
    }
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++) {
        int64_t count = job->k - c * TN__CHUNK < TN__CHUNK ? job->k - c * TN__CHUNK : TN__CHUNK, i = 0;
        const char *w = (const char *)job->w + (size_t)row * job->w_stride + (size_t)c * size * TN__CHUNK;
        const float *x[4];
#pragma GCC unroll 4
        for (int q = 0; q < cols; q++) x[q] = tn__f32_at(job, c, j + q);
        for (; i + 16 * lanes <= count; i += 16 * lanes) {
            if (rows == 1) fetch(w + (size_t)i * size, 16 * lanes * (type == TN_F32 ? 4 : 2));
#pragma GCC unroll 4
            for (int l = 0; l < lanes; l++) {
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    __m512 v = load16(w + (size_t)r * job->w_stride, type, i + 16 * l, 0xffff);
#pragma GCC unroll 4
                    for (int q = 0; q < cols; q++)
                        acc[r][q][l] = _mm512_fmadd_ps(v, _mm512_loadu_ps(x[q] + i + 16 * l), acc[r][q][l]);
                }
            }
        }
        if (i < count) {
#pragma GCC unroll 4
            for (int l = 0; l < lanes; l++) {
                __mmask16 mask = (__mmask16)(_bzhi_u64(~(uint64_t)0, (unsigned)(count - i)) >> 16 * l);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    __m512 v = load16(w + (size_t)r * job->w_stride, type, i + 16 * l, mask);
#pragma GCC unroll 4
                    for (int q = 0; q < cols; q++)
                        acc[r][q][l] =
                            _mm512_fmadd_ps(v, _mm512_maskz_loadu_ps(mask, x[q] + i + 16 * l), acc[r][q][l]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < cols; q++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m512 sum = acc[r][q][0];
#pragma GCC unroll 4
            for (int l = 1; l < lanes; l++) sum = _mm512_add_ps(sum, acc[r][q][l]);
            tn__out_row(job, j + q)[row + r] = _mm512_reduce_add_ps(sum);
        }
    }
}

/* f16x16 and bf16x16: a vector holds two neighbouring values of 8 rows; the two sums of a row are added at the end.
 */
TN__INLINE void float_group(const tn__matmul_job *job, tn_type type, int64_t row, int64_t j, const int cols) {
    const uint8_t *w = (const uint8_t *)job->w + (size_t)(row / 16) * tn__repacked_group_bytes(type, job->k);
    __m512 acc[4][2];
    for (int q = 0; q < cols; q++) acc[q][0] = acc[q][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < job->k; i += 2, w += 64) {
        fetch(w, 64);
        __m512 low = load16(w, type, 0, 0xffff), high = load16(w, type, 16, 0xffff);
        for (int q = 0; q < cols; q++) {
            double pair;
            memcpy(&pair, tn__f32_at(job, i / TN__CHUNK, j + q) + i % TN__CHUNK, 8);
            __m512 x = _mm512_castpd_ps(_mm512_set1_pd(pair));
            acc[q][0] = _mm512_fmadd_ps(low, x, acc[q][0]);
            acc[q][1] = _mm512_fmadd_ps(high, x, acc[q][1]);
        }
    }
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __mmask16 rows = tn__row_mask(job->m - row);
    for (int q = 0; q < cols; q++) {
        __m512 a = _mm512_permutex2var_ps(acc[q][0], even, acc[q][1]);
        __m512 b = _mm512_permutex2var_ps(acc[q][0], _mm512_add_epi32(even, _mm512_set1_epi32(1)), acc[q][1]);
        _mm512_mask_storeu_ps(tn__out_row(job, j + q) + row, rows, _mm512_add_ps(a, b));
    }
}

/* A result must not depend on which rows are computed together: a row's sums are the same for 4 rows and for 1. */
TN__INLINE void float_rows(const tn__matmul_job *job, tn_type type, int64_t row, const int rows) {
    int64_t j = 0;
    for (; j + 4 <= job->n; j += 4) float_tile(job, type, row, j, rows, 4, 1);
    if (job->n - j == 3) float_tile(job, type, row, j, rows, 3, 1);
    if (job->n - j == 2) float_tile(job, type, row, j, rows, 2, 1);
    if (job->n - j == 1) float_tile(job, type, row, j, rows, 1, 1);
}
/* Matrices of few rows, such as a router, are not limited by memory: one activation row and several then get the same
 * sums, so that experts are the same whether tokens are decoded alone or as a guess. */
enum { ROUTER_ROWS = 1024 };
#define FLOAT_OF(NAME)                                                                                               \
    static void float_##NAME(const tn__matmul_job *job, int64_t from, int64_t to) {                                  \
        if (job->n == 1 && !job->repeatable && job->m > ROUTER_ROWS) {                                               \
            for (; from < to; from++) float_tile(job, TN_##NAME, from, 0, 1, 1, 4);                                  \
        }                                                                                                            \
        for (; from + 4 <= to; from += 4) float_rows(job, TN_##NAME, from, 4);                                       \
        for (; from < to; from++) float_rows(job, TN_##NAME, from, 1);                                               \
    }
#define FLOAT_REPACKED_OF(NAME)                                                                                      \
    static void float_repacked_##NAME(const tn__matmul_job *job, int64_t from, int64_t to) {                         \
        for (int64_t row = from; row < to; row += 16) TN__BY_FOUR(job->n, float_group, job, TN_##NAME, row);         \
    }
FLOAT_OF(F32)
FLOAT_OF(F16)
FLOAT_OF(BF16)
FLOAT_REPACKED_OF(F16)
FLOAT_REPACKED_OF(BF16)
#undef FLOAT_OF
#undef FLOAT_REPACKED_OF

static void gemv_float(const tn__matmul_job *job, int64_t from, int64_t to) {
    switch (job->type) {
    case TN_F32: float_F32(job, from, to); break;
    case TN_F16: (job->repacked ? float_repacked_F16 : float_F16)(job, from, to); break;
    case TN_BF16: (job->repacked ? float_repacked_BF16 : float_BF16)(job, from, to); break;
    default: break;
    }
}
