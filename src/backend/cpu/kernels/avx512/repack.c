/* Repacking of weights with AVX-512: whole groups of 16 rows, transposed in registers. An incomplete last group uses
 * the plain C version. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/avx512/transpose.h"

/* The word at `at` of 16 rows. */
static inline __m512i words(const uint8_t *at, __m512i rows) { return _mm512_i32gather_epi32(rows, at, 1); }
static inline void put_halves(uint8_t *to, __m512i low) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(low));
}
/* Byte j of 16 words. */
static inline void put_bytes(uint8_t *to, __m512i v, int j) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_srl_epi32(v, _mm_cvtsi32_si128(8 * j))));
}

/* 64 bytes of 16 rows, transposed: r[i] is word i of every row. */
static inline void transpose_rows(const uint8_t *from, size_t stride, __m512i r[16]) {
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from + (size_t)i * stride);
    tn__transpose16(r);
}
static inline void put(uint8_t *to, const __m512i *r, int count) {
    for (int i = 0; i < count; i++) _mm512_storeu_si512(to + 64 * i, r[i]);
}

static void group_q8_0(const uint8_t *from, size_t stride, __m512i rows, int64_t units, uint8_t *to) {
    const __m512i sign = _mm512_set1_epi8(-128);
    int64_t u = 0;
    for (; u + 2 <= units; u += 2, from += 68, to += 1088) {
        __m512i r[16];
        for (int i = 0; i < 16; i++) {
            const uint8_t *row = from + (size_t)i * stride;
            const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(row + 2)));
            r[i] = _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)(row + 36)), 1);
        }
        tn__transpose16(r);
        for (int i = 0; i < 16; i++) r[i] = _mm512_xor_si512(r[i], sign);
        for (int b = 0; b < 2; b++) {
            put_halves(to + 544 * b, words(from + 34 * b, rows));
            put(to + 544 * b + 32, r + 8 * b, 8);
        }
    }
    for (; u < units; u++, from += 34, to += 544) {
        put_halves(to, words(from, rows));
        for (int q = 0; q < 8; q++)
            _mm512_storeu_si512(to + 32 + 64 * q, _mm512_xor_si512(words(from + 2 + 4 * q, rows), sign));
    }
}

static void group_q4_0(const uint8_t *from, size_t stride, __m512i rows, int64_t units, uint8_t *to) {
    int64_t u = 0;
    for (; u + 4 <= units; u += 4, from += 72, to += 1152) {
        __m512i r[16];
        for (int i = 0; i < 16; i++) {
            const uint8_t *row = from + (size_t)i * stride;
            __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(row + 2)));
            v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row + 20)), 1);
            v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row + 38)), 2);
            r[i] = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(row + 56)), 3);
        }
        tn__transpose16(r);
        for (int b = 0; b < 4; b++) {
            put_halves(to + 288 * b, words(from + 18 * b, rows));
            put(to + 288 * b + 32, r + 4 * b, 4);
        }
    }
    for (; u < units; u++, from += 18, to += 288) {
        put_halves(to, words(from, rows));
        for (int q = 0; q < 4; q++) _mm512_storeu_si512(to + 32 + 64 * q, words(from + 2 + 4 * q, rows));
    }
}

static void group_q4_K(const uint8_t *from, size_t stride, __m512i rows, int64_t units, uint8_t *to) {
    const __m512i low6 = _mm512_set1_epi8(63), low4 = _mm512_set1_epi8(15), low2 = _mm512_set1_epi8(3),
                  high2 = _mm512_set1_epi8(0x30), even = _mm512_set1_epi32(0x00ff00ff);
    for (int64_t u = 0; u < units; u++, from += 144, to += 2304) {
        const __m512i d = words(from, rows), a = words(from + 4, rows), b = words(from + 8, rows),
                      c = words(from + 12, rows);
        put_halves(to, d);
        put_halves(to + 32, _mm512_srli_epi32(d, 16));
        /* Scales and minima of sub-blocks 0…3 and 4…7, a byte each. */
        const __m512i scale[2] = {
            _mm512_and_si512(a, low6),
            _mm512_or_si512(_mm512_and_si512(c, low4), _mm512_and_si512(_mm512_srli_epi32(a, 2), high2))};
        const __m512i min[2] = {_mm512_and_si512(b, low6),
                                _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(c, 4), low4),
                                                _mm512_and_si512(_mm512_srli_epi32(b, 2), high2))};
        for (int h = 0; h < 2; h++) {
            const __m512i first = _mm512_or_si512(scale[h], _mm512_slli_epi32(_mm512_and_si512(min[h], low2), 6));
            const __m512i rest = _mm512_and_si512(_mm512_srli_epi32(min[h], 2), low4);
            const __m512i both =
                _mm512_or_si512(_mm512_and_si512(rest, even),
                                _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(rest, 8), even), 4));
            for (int p = 0; p < 2; p++) {
                uint8_t *at = to + 64 + 48 * (2 * h + p);
                put_bytes(at, first, 2 * p);
                put_bytes(at + 16, first, 2 * p + 1);
                put_bytes(at + 32, both, 2 * p);
            }
        }
        for (int h = 0; h < 2; h++) {
            __m512i r[16];
            transpose_rows(from + 16 + 64 * h, stride, r);
            put(to + 256 + 1024 * h, r, 16);
        }
    }
}

static void group_q6_K(const uint8_t *from, size_t stride, __m512i rows, int64_t units, uint8_t *to) {
    for (int64_t u = 0; u < units; u++, from += 210, to += 3360) {
        __m512i r[16];
        put_halves(to, _mm512_srli_epi32(words(from + 206, rows), 16)); /* the block's last two bytes */
        for (int q = 0; q < 4; q++) {
            const __m512i scales = words(from + 192 + 4 * q, rows);
            for (int j = 0; j < 4; j++) put_bytes(to + 32 + 16 * (4 * q + j), scales, j);
        }
        for (int h = 0; h < 2; h++) {
            transpose_rows(from + 64 * h, stride, r);
            for (int i = 0; i < 16; i++) /* interleaved by threes */
                _mm512_storeu_si512(to + 288 + 1536 * h + 192 * (i % 8) + 64 * (i / 8), r[i]);
        }
        transpose_rows(from + 128, stride, r);
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + 288 + 192 * i + 128, r[i]);
    }
}

static void group_halves(const uint8_t *from, size_t stride, int64_t units, uint8_t *to) {
    for (int64_t u = 0; u < units; u++, from += 64, to += 1024) {
        __m512i r[16];
        transpose_rows(from, stride, r);
        put(to, r, 16);
    }
}

void tn__avx512_repack(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *repacked,
                       int64_t first, int64_t n) {
    const size_t group_bytes = tn__repacked_group_bytes(type, k);
    const bool offsets_fit = stride <= INT32_MAX / 16; /* the offsets of 16 rows are 32-bit integers */
    const __m512i offsets = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                               _mm512_set1_epi32((int)stride));
    for (int64_t g = first; g < first + n; g++) {
        const uint8_t *from = (const uint8_t *)rows + (size_t)(16 * g) * stride;
        uint8_t *to = (uint8_t *)repacked + (size_t)g * group_bytes;
        if (!offsets_fit || 16 * g + 16 > m) {
            tn__repack(type, m, k, rows, stride, repacked, g, 1);
            continue;
        }
        switch (type) {
        case TN_Q8_0: group_q8_0(from, stride, offsets, k / 32, to); break;
        case TN_Q4_0: group_q4_0(from, stride, offsets, k / 32, to); break;
        case TN_Q4_K: group_q4_K(from, stride, offsets, k / 256, to); break;
        case TN_Q6_K: group_q6_K(from, stride, offsets, k / 256, to); break;
        default: group_halves(from, stride, k / 32, to); break;
        }
    }
}
