/* Conversion of rows to floats, fast for the types of a KV cache: a template over the vector type. */
#ifndef TN_TEMPLATE_CONVERT_H
#define TN_TEMPLATE_CONVERT_H

#include "base/half.h"
#include "quant/quant.h"

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
static void row_q8_0_to_f32(const void *from, float *to, int64_t n) {
    const tn__q8_0 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) {
        vf d = vf_set1(tn__f16_to_f32(b[i].d));
        for (int j = 0; j < 32; j += VL) vf_store(to + j, vf_mul(d, vf_load_i8(b[i].qs + j)));
    }
}
static void row_q4_0_to_f32(const void *from, float *to, int64_t n) {
    const tn__q4_0 *b = from;
    for (int64_t i = 0; i < n / 32; i++, to += 32) {
        vf d = vf_set1(tn__f16_to_f32(b[i].d));
        int8_t codes[32];
        for (int j = 0; j < 16; j++) {
            codes[j] = (int8_t)((b[i].qs[j] & 15) - 8);
            codes[j + 16] = (int8_t)((b[i].qs[j] >> 4) - 8);
        }
        for (int j = 0; j < 32; j += VL) vf_store(to + j, vf_mul(d, vf_load_i8(codes + j)));
    }
}

/* Any type with arithmetic. */
static inline void row_to_f32(tn_type type, const void *from, float *to, int64_t n) {
    switch (type) {
    case TN_F16: row_f16_to_f32(from, to, n); break;
    case TN_BF16: row_bf16_to_f32(from, to, n); break;
    case TN_Q8_0: row_q8_0_to_f32(from, to, n); break;
    case TN_Q4_0: row_q4_0_to_f32(from, to, n); break;
    default: tn__to_f32_of(type)(from, to, n); break;
    }
}

#endif
