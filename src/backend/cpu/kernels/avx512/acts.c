/* Preparation of activations with AVX-512: the same bits as the plain C version. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512/internal.h"

static __m128i quantize16(__m512 x, __m512 inverse) {
    __m512i q = _mm512_cvt_roundps_epi32(_mm512_mul_ps(x, inverse), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    q = _mm512_max_epi32(_mm512_min_epi32(q, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
    return _mm512_cvtepi32_epi8(q);
}

/* Block by block, for chunks with a NaN or an infinity. */
static void q8_chunk_wild(const float *x, tn__q8_chunk *out) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m128i ones = _mm_set1_epi8(1);
    for (int b = 0; b < 8; b++, x += 32) {
        __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        /* As integers, magnitudes are ordered like floats, with infinity and NaN at the end. */
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

/* Lane b of the result is the largest lane of m[b]. */
static __m256i largest_of(const __m512i m[8]) {
    __m512i t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(m[2 * i], m[2 * i + 1]),
                                _mm512_unpackhi_epi32(m[2 * i], m[2 * i + 1]));
    for (int i = 0; i < 2; i++) /* each quarter: m[4i]…m[4i+3] */
        u[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(t[2 * i], t[2 * i + 1]),
                                _mm512_unpackhi_epi64(t[2 * i], t[2 * i + 1]));
    __m512i v = _mm512_max_epu32(_mm512_shuffle_i32x4(u[0], u[1], 0x88), _mm512_shuffle_i32x4(u[0], u[1], 0xdd));
    v = _mm512_max_epu32(v, _mm512_shuffle_i32x4(v, v, 0xb1));
    return _mm512_castsi512_si256(_mm512_shuffle_i32x4(v, v, 0x08));
}

/* The same for all blocks at once. It writes whole cache lines, so that lines absent from the cache are requested
 * many at a time. */
static void q8_chunk(const float *x, tn__q8_chunk *out) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), ones = _mm512_set1_epi8(1);
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512i most[8], sums[4];
    for (int b = 0; b < 8; b++)
        most[b] =
            _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 32 * b)), magnitude),
                             _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 32 * b + 16)), magnitude));
    const __m256i bits = largest_of(most);
    if (_mm256_cmpge_epu32_mask(bits, _mm256_set1_epi32(0x7f800000))) {
        q8_chunk_wild(x, out);
        return;
    }
    const __m256 peak = _mm256_castsi256_ps(bits), most_code = _mm256_set1_ps(127);
    const __m256 d = _mm256_div_ps(peak, most_code);
    const __mmask8 any = _mm256_cmp_ps_mask(peak, _mm256_setzero_ps(), _CMP_GT_OQ);
    float inverse[8];
    _mm256_storeu_ps(inverse, _mm256_maskz_div_ps(any, most_code, peak));
    for (int g = 0; g < 4; g++, x += 64) {
        __m512i code[4];
        for (int i = 0; i < 4; i++)
            code[i] = _mm512_cvt_roundps_epi32(
                _mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_set1_ps(inverse[2 * g + i / 2])),
                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        /* Each quarter holds four codes of each of the four vectors. */
        __m512i q = _mm512_packs_epi16(_mm512_packs_epi32(code[0], code[1]), _mm512_packs_epi32(code[2], code[3]));
        q = _mm512_max_epi8(q, _mm512_set1_epi8(-127));
        sums[g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, q);
        _mm512_storeu_si512(out->qs + 64 * g, _mm512_permutexvar_epi32(in_order, q));
    }
    __m512i s01 =
        _mm512_add_epi32(_mm512_shuffle_i32x4(sums[0], sums[1], 0x88), _mm512_shuffle_i32x4(sums[0], sums[1], 0xdd));
    __m512i s23 =
        _mm512_add_epi32(_mm512_shuffle_i32x4(sums[2], sums[3], 0x88), _mm512_shuffle_i32x4(sums[2], sums[3], 0xdd));
    const __m512i sum16 =
        _mm512_add_epi32(_mm512_shuffle_i32x4(s01, s23, 0x88), _mm512_shuffle_i32x4(s01, s23, 0xdd));
    const __m256i sum32 = _mm512_cvtepi64_epi32(_mm512_add_epi32(sum16, _mm512_srli_epi64(sum16, 32)));
    const __m256 ds = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sum32));
    const __m256i bias = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum32, 7));
    const __m512 d16 = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
    _mm512_storeu_ps(out->d, _mm512_insertf32x8(_mm512_castps256_ps512(d), ds, 1));
    _mm512_storeu_si512(out->bias, _mm512_zextsi256_si512(bias)); /* and the reserved zeros */
    _mm512_storeu_si512(out->bias16, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum16, 7)));
    _mm512_storeu_ps(out->ds16, _mm512_mul_ps(d16, _mm512_cvtepi32_ps(sum16)));
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
            const int64_t r = u % groups * TN__TILE_ROWS + i, source = r >= rows ? -1 : gather ? gather[r] : r;
            const float *row = (const float *)((const char *)x + (size_t)(source < 0 ? 0 : source) * x_stride);
            for (int64_t j = 0; j < TN__CHUNK; j += 16) {
                const __mmask16 some = source < 0 || left <= j ? 0
                                       : left - j >= 16        ? 0xffff
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
            memcpy(padded, values, (size_t)count * sizeof(float));
            memset(padded + count, 0, (size_t)(TN__CHUNK - count) * sizeof(float));
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
