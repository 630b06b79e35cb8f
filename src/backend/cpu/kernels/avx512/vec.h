/* The vector type of the templates in AVX-512: 16 lanes. */
#ifndef TN_AVX512_VEC_H
#define TN_AVX512_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/kernels/avx512/transpose.h"

#define TN__TILE_12 1
#define TN__VEC static inline __attribute__((always_inline))

enum { VL = 16, TILE_COLS = 12 }; /* lanes; columns of a tile of two vectors: 24 sums in 32 registers */
typedef __m512 vf;
typedef __mmask16 vm;

TN__VEC vm first_lanes(int64_t n) { return n >= VL ? 0xffff : (__mmask16)((1u << n) - 1); }
TN__VEC vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
TN__VEC vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); } /* rest: zero */
TN__VEC void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
TN__VEC void vf_store_n(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
TN__VEC void vf_stream(float *p, vf v) { _mm512_stream_ps(p, v); } /* past the caches, to an aligned address */
TN__VEC void vf_stream_end(void) { _mm_sfence(); }
TN__VEC vf vf_set1(float x) { return _mm512_set1_ps(x); }
TN__VEC vf vf_zero(void) { return _mm512_setzero_ps(); }
TN__VEC vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
TN__VEC vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
TN__VEC vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
TN__VEC vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
TN__VEC vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b where either is NaN */
TN__VEC vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
TN__VEC vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }   /* a·b + c */
TN__VEC vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a·b */
TN__VEC vf vf_abs(vf a) { return _mm512_abs_ps(a); }
TN__VEC vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TN__VEC vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a·2^n */
TN__VEC vf vf_copysign(vf a, vf sign) {                             /* magnitude of a, sign of `sign` */
    const __m512i mask = _mm512_set1_epi32((int)0x80000000u);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(mask, _mm512_castps_si512(sign), _mm512_castps_si512(a), 0xca));
}
TN__VEC float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
TN__VEC float vf_most(vf a) { return _mm512_reduce_max_ps(a); }
TN__VEC vm vm_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TN__VEC vm vm_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
TN__VEC vm vm_none(void) { return 0; }
TN__VEC vm vm_or(vm a, vm b) { return a | b; }
TN__VEC bool vm_any(vm a) { return a != 0; }
TN__VEC vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); } /* m ? a : b */

/* ---- Pairs ---- */
TN__VEC vf vf_swap_pairs(vf a) { return _mm512_permute_ps(a, 0xb1); }
TN__VEC vf vf_swap(vf a, int far) { /* lanes i and i ^ far: 1, 2, 4 or 8 */
    return far == 1   ? _mm512_permute_ps(a, 0xb1)
           : far == 2 ? _mm512_permute_ps(a, 0x4e)
           : far == 4 ? _mm512_shuffle_f32x4(a, a, 0xb1)
                      : _mm512_shuffle_f32x4(a, a, 0x4e);
}
TN__VEC vf vf_twice_low(vf a) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), a);
}
TN__VEC vf vf_twice_high(vf a) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15), a);
}
TN__VEC vf vf_minus_plus(void) { return _mm512_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1); }

/* ---- Half floats and bytes ---- */
TN__VEC vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
TN__VEC vf vf_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
TN__VEC vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* fp8, shifted to where a half float has the same bits, is 2^-8 of its value. The codes of NaN become ±480. */
TN__VEC vf vf_load_fp8(const uint8_t *p) {
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbfff));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
}
TN__VEC void vf_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TN__VEC void vf_store_bf16(uint16_t *p, vf v) {
    __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_mask_or_epi32(rounded, vm_nan(v), bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

TN__VEC void vf_transpose(vf r[VL]) {
    __m512i t[16];
    for (int i = 0; i < 16; i++) t[i] = _mm512_castps_si512(r[i]);
    tn__transpose16(t);
    for (int i = 0; i < 16; i++) r[i] = _mm512_castsi512_ps(t[i]);
}

/* Lane i of the result is the sum of all lanes of a[i]. */
TN__VEC vf vf_sums(const vf a[VL]) {
    vf t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; i++) { /* each quarter of u[i]: partial sums of a[4i]…a[4i+3] */
        __m512d lo = _mm512_castps_pd(t[2 * i]), hi = _mm512_castps_pd(t[2 * i + 1]);
        u[i] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)), _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
    }
    vf v = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88), _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    vf w = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88), _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(v, w, 0x88), _mm512_shuffle_f32x4(v, w, 0xdd));
}

#endif
