/* Conversion of rows to floats, fast for the types of a KV cache: a template over the vector type. */
#ifndef TN_TEMPLATE_CONVERT_H
#define TN_TEMPLATE_CONVERT_H

#include "base/half.h"
#include "quant/quant.h"

#include <string.h>

static void row_f16_to_f32(const void *from, float *to, int64_t n) {
    const uint16_t *h = from;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(to + i, vf_load_f16(h + i));
    for (; i < n; i++) to[i] = tn__f16_to_f32(h[i]);
}
static void row_bf16_to_f32(const void *from, float *to, int64_t n) {
    const uint16_t *h = from;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(to + i, vf_load_bf16(h + i));
    for (; i < n; i++) to[i] = tn__bf16_to_f32(h[i]);
}
static void row_fp8_to_f32(const void *from, float *to, int64_t n) {
    const uint8_t *b = from;
    const vf most = vf_set1(TN__FP8_MOST), nan = vf_set1(__builtin_nanf(""));
    int64_t i = 0;
    for (; i + VL <= n; i += VL) { /* vf_load_fp8 reads the codes of NaN as ±480 */
        vf v = vf_load_fp8(b + i);
        vf_store(to + i, vf_select(vm_less(most, vf_abs(v)), nan, v));
    }
    for (; i < n; i++) to[i] = tn__fp8_to_f32(b[i]);
}

/* The codes of a block of 4 or 5 bits, minus `zero`, as bytes in the order of the elements. */
typedef uint8_t codes16 __attribute__((vector_size(16)));
typedef uint64_t words2 __attribute__((vector_size(16)));
TN__VEC void unpack_codes4(const uint8_t *qs, uint8_t zero, int8_t codes[32]) {
    codes16 q, low, high;
    memcpy(&q, qs, 16);
    low = (q & 15) - zero;
    high = (q >> 4) - zero;
    memcpy(codes, &low, 16);
    memcpy(codes + 16, &high, 16);
}
TN__VEC void unpack_codes5(const uint8_t *qs, const uint8_t *qh, uint8_t zero, int8_t codes[32]) {
    const codes16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint64_t each = 0x0101010101010101u; /* a byte times this is that byte eight times */
    codes16 q, low = (codes16)(words2){qh[0] * each, qh[1] * each},
               high = (codes16)(words2){qh[2] * each, qh[3] * each};
    memcpy(&q, qs, 16);
    low = (codes16)((low & bit) != 0) & 16;
    high = (codes16)((high & bit) != 0) & 16;
    low = (low | (q & 15)) - zero;
    high = (high | (q >> 4)) - zero;
    memcpy(codes, &low, 16);
    memcpy(codes + 16, &high, 16);
}
/* d·codes and d·codes + m, with the roundings of the plain C version. */
TN__VEC void scale_codes(const int8_t codes[32], uint16_t scale, float *to) {
    const vf d = vf_set1(tn__f16_to_f32(scale));
#pragma GCC unroll 8
    for (int j = 0; j < 32; j += VL) vf_store(to + j, vf_mul(d, vf_load_i8(codes + j)));
}
TN__VEC void scale_codes_from(const int8_t codes[32], uint16_t scale, uint16_t least, float *to) {
    const vf d = vf_set1(tn__f16_to_f32(scale)), m = vf_set1(tn__f16_to_f32(least));
#pragma GCC unroll 8
    for (int j = 0; j < 32; j += VL) vf_store(to + j, vf_add(vf_mul(d, vf_load_i8(codes + j)), m));
}
static void row_q8_0_to_f32(const void *from, float *to, int64_t n) {
    const tn__q8_0 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) scale_codes(b[i].qs, b[i].d, to);
}
static void row_q4_0_to_f32(const void *from, float *to, int64_t n) {
    const tn__q4_0 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) {
        int8_t codes[32];
        unpack_codes4(b[i].qs, 8, codes);
        scale_codes(codes, b[i].d, to);
    }
}
static void row_q4_1_to_f32(const void *from, float *to, int64_t n) {
    const tn__q4_1 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) {
        int8_t codes[32];
        unpack_codes4(b[i].qs, 0, codes);
        scale_codes_from(codes, b[i].d, b[i].m, to);
    }
}
static void row_q5_0_to_f32(const void *from, float *to, int64_t n) {
    const tn__q5_0 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) {
        int8_t codes[32];
        unpack_codes5(b[i].qs, b[i].qh, 16, codes);
        scale_codes(codes, b[i].d, to);
    }
}
static void row_q5_1_to_f32(const void *from, float *to, int64_t n) {
    const tn__q5_1 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) {
        int8_t codes[32];
        unpack_codes5(b[i].qs, b[i].qh, 0, codes);
        scale_codes_from(codes, b[i].d, b[i].m, to);
    }
}

/* Any type with arithmetic. */
static inline void row_to_f32(tn_type type, const void *from, float *to, int64_t n) {
    switch (type) {
    case TN_F16: row_f16_to_f32(from, to, n); break;
    case TN_BF16: row_bf16_to_f32(from, to, n); break;
    case TN_FP8: row_fp8_to_f32(from, to, n); break;
    case TN_Q8_0: row_q8_0_to_f32(from, to, n); break;
    case TN_Q5_1: row_q5_1_to_f32(from, to, n); break;
    case TN_Q5_0: row_q5_0_to_f32(from, to, n); break;
    case TN_Q4_1: row_q4_1_to_f32(from, to, n); break;
    case TN_Q4_0: row_q4_0_to_f32(from, to, n); break;
    default: tn__to_f32_of(type)(from, to, n); break;
    }
}

#endif
