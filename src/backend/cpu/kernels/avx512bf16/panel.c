/* Weights of any type as bfloat16 panels. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512/transpose.h"
#include "backend/cpu/kernels/avx512bf16/internal.h"

/* Two vectors of floats, `even` and `odd` places, as one vector of pairs. */
static inline __m512i pairs(__m512 even, __m512 odd) {
    const __m512i weave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(weave, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

/* Blocks: from the panel of bytes, code by code. value = scale·(code - 128) - less. */
static void from_codes(const tn__panel16 *p, bool per16, bool minimum, tn__panel_bf16 *out) {
    const __m512i byte = _mm512_set1_epi32(255);
    int each = per16 ? 4 : 8; /* vectors of codes per scale */
    for (int q = 0; q < 64; q++) {
        int s = q / each;
        __m512 scale = _mm512_load_ps(p->scale[s]), off = _mm512_mul_ps(scale, _mm512_set1_ps(128));
        if (minimum) off = _mm512_add_ps(off, _mm512_load_ps(p->less[s]));
        __m512i codes = _mm512_load_si512(p->codes[q]);
        __m512 a = _mm512_cvtepi32_ps(_mm512_and_si512(codes, byte));
        __m512 b = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(codes, 8), byte));
        __m512 c = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(codes, 16), byte));
        __m512 d = _mm512_cvtepi32_ps(_mm512_srli_epi32(codes, 24));
        _mm512_store_si512(out->value[2 * q], pairs(_mm512_fmsub_ps(a, scale, off), _mm512_fmsub_ps(b, scale, off)));
        _mm512_store_si512(out->value[2 * q + 1],
                           pairs(_mm512_fmsub_ps(c, scale, off), _mm512_fmsub_ps(d, scale, off)));
    }
}

static inline __m512i f16_pairs_to_bf16(__m512i halves) {
    __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
           high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Half floats and floats: 32 values of each row, then turned. */
static void from_floats(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel_bf16 *out) {
    int64_t left = job->k - c * TN__CHUNK, count = left < TN__CHUNK ? left : TN__CHUNK;
    if (job->packed) { /* already in place */
        const uint8_t *group =
            (const uint8_t *)job->w + (size_t)(row / 16) * tn__packed_group_bytes(job->type, job->k);
        for (int64_t i = 0; i < TN__CHUNK / 2; i++) {
            __m512i v = 2 * i < count ? _mm512_loadu_si512(group + (size_t)(c * TN__CHUNK / 2 + i) * 64)
                                      : _mm512_setzero_si512();
            _mm512_store_si512(out->value[i], job->type == TN_F16 ? f16_pairs_to_bf16(v) : v);
        }
        return;
    }
    for (int64_t at = 0; at < TN__CHUNK; at += 32) {
        __m512i r[16];
        uint32_t some = count - at >= 32 ? ~0u : count > at ? (1u << (count - at)) - 1 : 0;
        for (int i = 0; i < 16; i++) {
            const char *w = (const char *)job->w + (size_t)(row + i) * job->w_stride;
            __mmask32 mask = row + i < job->m ? some : 0;
            if (job->type == TN_F32) {
                const float *f = (const float *)w + c * TN__CHUNK + at;
                r[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps((__mmask16)(mask >> 16), f + 16),
                                                    _mm512_maskz_loadu_ps((__mmask16)mask, f));
            } else {
                r[i] = _mm512_maskz_loadu_epi16(mask, (const uint16_t *)w + c * TN__CHUNK + at);
                if (job->type == TN_F16) r[i] = f16_pairs_to_bf16(r[i]);
            }
        }
        tn__transpose16(r);
        for (int i = 0; i < 16; i++) _mm512_store_si512(out->value[at / 2 + i], r[i]);
    }
}

void tn__bf16_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel_bf16 *panel) {
    if (job->type == TN_F32 || job->type == TN_F16 || job->type == TN_BF16) {
        from_floats(job, row, c, panel);
        return;
    }
    _Alignas(64) tn__panel16 codes;
    int64_t left = job->k - c * TN__CHUNK;
    if (job->packed && left < TN__CHUNK) memset(&codes, 0, sizeof codes); /* blocks that are not there */
    tn__avx512_panel(job, row, c, &codes);
    from_codes(&codes, tn__avx512_scale_per_16(job->type), tn__avx512_minimum(job->type), panel);
}
