/* Preparation of activations with AVX2: the same bits as the plain C version. */
#include "backend/cpu/kernels/avx2/vec.h"

#include <string.h>

#include "backend/cpu/kernels/avx2/internal.h"

static __m256i quantize8(__m256 x, __m256 inverse) {
    __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
    return _mm256_max_epi32(_mm256_min_epi32(q, _mm256_set1_epi32(127)), _mm256_set1_epi32(-127));
}
static int sum8(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static void q8_chunk(const float *x, tn__q8_chunk *out) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (int b = 0; b < 8; b++, x += 32) {
        __m256 v[4];
        __m256i most = _mm256_setzero_si256(), q[4];
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            /* As integers, magnitudes are ordered like floats, with infinity and NaN at the end. */
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
        float peak = _mm_cvtss_f32(_mm_castsi128_ps(m));
        bool finite = _mm_cvtsi128_si32(m) < 0x7f800000;
        float d = finite ? peak / 127 : __builtin_nanf(""), inverse = finite && peak > 0 ? 127 / peak : 0;
        for (int i = 0; i < 4; i++) q[i] = finite ? quantize8(v[i], _mm256_set1_ps(inverse)) : _mm256_setzero_si256();
        __m256i words = _mm256_packs_epi32(q[0], q[1]), more = _mm256_packs_epi32(q[2], q[3]);
        __m256i bytes =
            _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, more), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)(out->qs + 32 * b), bytes);
        int sum[2] = {sum8(_mm256_add_epi32(q[0], q[1])), sum8(_mm256_add_epi32(q[2], q[3]))};
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

static void bf16_chunk(const float *x, uint16_t *out) {
    for (int j = 0; j < TN__CHUNK; j += VL) vf_store_bf16(out + j, vf_load(x + j));
}

void tn__avx2_act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                          int64_t k, void *data, int ith, int nth) {
    int64_t chunks = (k + TN__CHUNK - 1) / TN__CHUNK, from, to;
    size_t bytes = tn__act_chunk_bytes(form);
    if (form == TN__ACT_PLAIN) return;
    if (form == TN__ACT_TILES) { /* used by higher levels */
        tn__act_prepare(form, x, x_stride, gather, rows, k, data, ith, nth);
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
