/* Activations prepared with AVX-512; the same bits as the plain C version. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512/internal.h"

static __m128i quantize16(__m512 x, __m512 inverse) {
    __m512i q = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    q = _mm512_max_epi32(_mm512_min_epi32(q, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
    return _mm512_cvtepi32_epi8(q);
}

static void q8_chunk(const float *x, tn__q8_chunk *out) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m128i ones = _mm_set1_epi8(1);
    for (int b = 0; b < 8; b++, x += 32) {
        __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        /* As integers, magnitudes sort like floats, and infinity and NaN come last. */
        __m512i most = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                        _mm512_and_si512(_mm512_castps_si512(high), magnitude));
        uint32_t bits = _mm512_reduce_max_epu32(most);
        float peak = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
        bool finite = bits < 0x7f800000u;
        float d = finite ? peak / 127 : __builtin_nanf(""), inverse = finite && peak > 0 ? 127 / peak : 0;
        __m512 by = _mm512_set1_ps(inverse);
        __m128i first = finite ? quantize16(low, by) : _mm_setzero_si128();
        __m128i second = finite ? quantize16(high, by) : _mm_setzero_si128();
        _mm_storeu_si128((__m128i *)(out->qs + 32 * b), first);
        _mm_storeu_si128((__m128i *)(out->qs + 32 * b + 16), second);
        int sum[2];
        __m128i s0 = _mm_dpbusd_epi32(_mm_setzero_si128(), ones, first);
        __m128i s1 = _mm_dpbusd_epi32(_mm_setzero_si128(), ones, second);
        __m128i pairs = _mm_hadd_epi32(s0, s1);
        __m128i both = _mm_hadd_epi32(pairs, pairs);
        sum[0] = _mm_cvtsi128_si32(both);
        sum[1] = _mm_extract_epi32(both, 1);
        out->d[b] = d;
        out->ds[b] = d * (float)(sum[0] + sum[1]);
        out->bias[b] = -128 * (sum[0] + sum[1]);
        out->reserved[b] = 0;
        for (int h = 0; h < 2; h++) {
            out->bias16[2 * b + h] = -128 * sum[h];
            out->ds16[2 * b + h] = d * (float)sum[h];
        }
    }
}

static __m256i bf16_of(__m512 x) {
    __m512i bits = _mm512_castps_si512(x);
    __mmask16 nan =
        _mm512_cmpgt_epu32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

static void bf16_chunk(const float *x, uint16_t *out) {
    for (int j = 0; j < TN__CHUNK; j += 16)
        _mm256_storeu_si256((__m256i *)(out + j), bf16_of(_mm512_loadu_ps(x + j)));
}

static void tiles(const float *x, size_t x_stride, const int32_t *gather, int64_t rows, int64_t k, uint16_t *data,
                  int ith, int nth) {
    const int64_t chunks = (k + TN__CHUNK - 1) / TN__CHUNK, groups = (rows + TN__TILE_ROWS - 1) / TN__TILE_ROWS;
    int64_t from, to;
    tn__share(chunks * groups, 1, ith, nth, &from, &to);
    for (int64_t u = from; u < to; u++) {
        const int64_t c = u / groups, left = k - c * TN__CHUNK;
        for (int i = 0; i < TN__TILE_ROWS; i++) {
            const int64_t r = u % groups * TN__TILE_ROWS + i, place = r >= rows ? -1 : gather ? gather[r] : r;
            const float *row = (const float *)((const char *)x + (size_t)(place < 0 ? 0 : place) * x_stride);
            for (int64_t j = 0; j < TN__CHUNK; j += 16) {
                const __mmask16 some = place < 0 || left <= j ? 0
                                       : left - j >= 16       ? 0xffff
                                                              : (__mmask16)((1u << (left - j)) - 1);
                uint16_t *to_row = data + (u * 8 + j / 32) * 512 + i * 32 + j % 32;
                _mm256_storeu_si256((__m256i *)to_row, bf16_of(_mm512_maskz_loadu_ps(some, row + c * TN__CHUNK + j)));
            }
        }
    }
}

void tn__avx512_act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                            int64_t k, void *data, int ith, int nth) {
    int64_t chunks = (k + TN__CHUNK - 1) / TN__CHUNK, from, to;
    size_t bytes = tn__act_chunk_bytes(form);
    if (form == TN__ACT_PLAIN) return;
    if (form == TN__ACT_TILES) {
        tiles(x, x_stride, gather, rows, k, data, ith, nth);
        return;
    }
    const bool whole = rows >= nth;
    tn__share(chunks * rows, whole ? chunks : 1, ith, nth, &from, &to);
    for (int64_t u = from; u < to; u++) {
        int64_t c = whole ? u % chunks : u / rows, r = whole ? u / chunks : u % rows, count = k - c * TN__CHUNK;
        float padded[TN__CHUNK];
        const float *row = (const float *)((const char *)x + (size_t)(gather ? gather[r] : r) * x_stride);
        const float *values = row + c * TN__CHUNK;
        char *out = (char *)data + (size_t)(c * rows + r) * bytes;
        if (count < TN__CHUNK) {
            memset(padded, 0, sizeof padded);
            memcpy(padded, values, (size_t)count * sizeof(float));
            values = padded;
        }
        if (form == TN__ACT_F32) {
            memcpy(out, values, bytes);
        } else if (form == TN__ACT_BF16) {
            bf16_chunk(values, (uint16_t *)out);
        } else {
            q8_chunk(values, (tn__q8_chunk *)out);
        }
    }
}
