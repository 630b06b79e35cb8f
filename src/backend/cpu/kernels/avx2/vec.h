/* The vector type of the templates in AVX2 with FMA and F16C: 8 lanes. */
#ifndef TN_AVX2_VEC_H
#define TN_AVX2_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define TN__TILE_12 0
#define TN__VEC static inline __attribute__((always_inline))

enum { VL = 8, TILE_COLS = 6 }; /* lanes; columns of a tile of two vectors: 12 sums in 16 registers */
typedef __m256 vf;
typedef __m256 vm;

TN__VEC __m256i first_lanes(int64_t n) {
    static const int32_t mask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(mask + 8 - (n < 8 ? n : 8)));
}
TN__VEC vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
TN__VEC vf vf_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); } /* rest: zero */
TN__VEC void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
TN__VEC void vf_store_n(float *p, vf v, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), v); }
TN__VEC void vf_stream(float *p, vf v) { _mm256_stream_ps(p, v); } /* past the caches, to an aligned address */
TN__VEC void vf_stream_end(void) { _mm_sfence(); }
TN__VEC vf vf_set1(float x) { return _mm256_set1_ps(x); }
TN__VEC vf vf_zero(void) { return _mm256_setzero_ps(); }
TN__VEC vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
TN__VEC vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
TN__VEC vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
TN__VEC vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
TN__VEC vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); } /* b where either is NaN */
TN__VEC vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
TN__VEC vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }   /* a·b + c */
TN__VEC vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); } /* c - a·b */
TN__VEC vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
TN__VEC vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* a·2^n for any integer n in the range of a float exponent, in two steps so that both factors are normal. */
TN__VEC vf vf_scale2(vf a, vf n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 g = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(a, f), g);
}
TN__VEC vf vf_copysign(vf a, vf sign) {
    const __m256 mask = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(mask, a), _mm256_and_ps(mask, sign));
}
TN__VEC float vf_sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
TN__VEC float vf_most(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
TN__VEC vm vm_less(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
TN__VEC vm vm_nan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
TN__VEC vm vm_none(void) { return _mm256_setzero_ps(); }
TN__VEC vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
TN__VEC bool vm_any(vm a) { return _mm256_movemask_ps(a) != 0; }
TN__VEC vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); } /* m ? a : b */

/* ---- Pairs ---- */
TN__VEC vf vf_swap_pairs(vf a) { return _mm256_permute_ps(a, 0xb1); }
TN__VEC vf vf_swap(vf a, int far) { /* lanes i and i ^ far: 1, 2 or 4 */
    return far == 1   ? _mm256_permute_ps(a, 0xb1)
           : far == 2 ? _mm256_permute_ps(a, 0x4e)
                      : _mm256_permute2f128_ps(a, a, 1);
}
TN__VEC vf vf_twice_low(vf a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)); }
TN__VEC vf vf_twice_high(vf a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)); }
TN__VEC vf vf_minus_plus(void) { return _mm256_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1); }

/* ---- Half floats and bytes ---- */
TN__VEC vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
TN__VEC vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
TN__VEC vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* fp8, shifted to where a half float has the same bits, is 2^-8 of its value. The codes of NaN become ±480. */
TN__VEC vf vf_load_fp8(const uint8_t *p) {
    __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbfff));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}
TN__VEC void vf_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TN__VEC void vf_store_bf16(uint16_t *p, vf v) {
    __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(vm_nan(v))), 16);
    __m256i narrow = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(narrow));
}

TN__VEC void vf_transpose(vf r[VL]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Lane i of the result is the sum of all lanes of a[i]. */
TN__VEC vf vf_sums(const vf a[VL]) {
    vf t = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    vf u = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(t, u, 0x20), _mm256_permute2f128_ps(t, u, 0x31));
}

#endif
