/* The vector type of the templates in NEON: 4 lanes. */
#ifndef TN_NEON_VEC_H
#define TN_NEON_VEC_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TN__TILE_12 1
#define TN__VEC static inline __attribute__((always_inline))

enum { VL = 4, TILE_COLS = 12 }; /* lanes; columns of a tile of two vectors: 24 sums in 32 registers */
typedef float32x4_t vf;
typedef uint32x4_t vm;

TN__VEC vf vf_load(const float *p) { return vld1q_f32(p); }
TN__VEC vf vf_load_n(const float *p, int64_t n) { /* rest: zero */
    if (n >= VL) return vld1q_f32(p);
    float lanes[VL] = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return vld1q_f32(lanes);
}
TN__VEC void vf_store(float *p, vf v) { vst1q_f32(p, v); }
TN__VEC void vf_store_n(float *p, vf v, int64_t n) {
    if (n >= VL) {
        vst1q_f32(p, v);
        return;
    }
    float lanes[VL];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
}
TN__VEC void vf_stream(float *p, vf v) { vst1q_f32(p, v); }
TN__VEC void vf_stream_end(void) {}
TN__VEC vf vf_set1(float x) { return vdupq_n_f32(x); }
TN__VEC vf vf_zero(void) { return vdupq_n_f32(0); }
TN__VEC vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
TN__VEC vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
TN__VEC vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
TN__VEC vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
TN__VEC vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); } /* NaN where either is */
TN__VEC vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
TN__VEC vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }  /* a·b + c */
TN__VEC vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); } /* c - a·b */
TN__VEC vf vf_abs(vf a) { return vabsq_f32(a); }
TN__VEC vf vf_round(vf a) { return vrndnq_f32(a); }
/* a·2^n for any integer n in the range of a float exponent, in two steps so that both factors are normal. */
TN__VEC vf vf_scale2(vf a, vf n) {
    int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1), rest = vsubq_s32(whole, half);
    const int32x4_t bias = vdupq_n_s32(127);
    vf f = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    vf g = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(a, f), g);
}
TN__VEC vf vf_copysign(vf a, vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a); }
TN__VEC float vf_sum(vf a) { return vaddvq_f32(a); }
TN__VEC float vf_most(vf a) { return vmaxvq_f32(a); }
TN__VEC vm vm_less(vf a, vf b) { return vcltq_f32(a, b); }
TN__VEC vm vm_nan(vf a) { return vmvnq_u32(vceqq_f32(a, a)); }
TN__VEC vm vm_none(void) { return vdupq_n_u32(0); }
TN__VEC vm vm_or(vm a, vm b) { return vorrq_u32(a, b); }
TN__VEC bool vm_any(vm a) { return vmaxvq_u32(a) != 0; }
TN__VEC vf vf_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); } /* m ? a : b */

/* ---- Pairs ---- */
TN__VEC vf vf_swap_pairs(vf a) { return vrev64q_f32(a); }
TN__VEC vf vf_swap(vf a, int far) { return far == 1 ? vrev64q_f32(a) : vextq_f32(a, a, 2); } /* lanes i and i ^ far */
TN__VEC vf vf_twice_low(vf a) { return vzip1q_f32(a, a); }
TN__VEC vf vf_twice_high(vf a) { return vzip2q_f32(a, a); }
TN__VEC vf vf_minus_plus(void) {
    static const float signs[VL] = {-1, 1, -1, 1};
    return vld1q_f32(signs);
}

/* ---- Half floats and bytes ---- */
TN__VEC vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
TN__VEC vf vf_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
TN__VEC vf vf_load_i8(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
/* fp8, shifted to where a half float has the same bits, is 2^-8 of its value. The codes of NaN become ±480. */
TN__VEC vf vf_load_fp8(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    int16x4_t wide = vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))));
    uint16x4_t half = vand_u16(vreinterpret_u16_s16(vshl_n_s16(wide, 7)), vdup_n_u16(0xbfff));
    return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), 256);
}
TN__VEC void vf_store_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
TN__VEC void vf_store_bf16(uint16_t *p, vf v) {
    uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    rounded = vbslq_u32(vm_nan(v), vorrq_u32(bits, vdupq_n_u32(0x400000)), rounded);
    vst1_u16(p, vshrn_n_u32(rounded, 16));
}

TN__VEC void vf_transpose(vf r[VL]) {
    vf a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]), c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    r[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    r[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    r[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}
/* Lane i of the result is the sum of all lanes of a[i]. */
TN__VEC vf vf_sums(const vf a[VL]) { return vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3])); }

#endif
