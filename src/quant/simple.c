/* The plain 32-value block types: q4_0 q4_1 q5_0 q5_1 q8_0, and the activation blocks q8_1 and q8_K. */
#include "quant/quant.h"

#include "quant/search.h"

/* ---- Blocks to floats ---- */

void tn__dequantize_row_q4_0(const void *blocks, float *out, int64_t n) {
    const tn__q4_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)((b[i].qs[j] & 15) - 8) * d;
            out[j + 16] = (float)((b[i].qs[j] >> 4) - 8) * d;
        }
    }
}

void tn__dequantize_row_q4_1(const void *blocks, float *out, int64_t n) {
    const tn__q4_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d), m = tn__f16_to_f32(b[i].m);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)(b[i].qs[j] & 15) * d + m;
            out[j + 16] = (float)(b[i].qs[j] >> 4) * d + m;
        }
    }
}

/* The 5-bit code of elements j and 16+j. */
static inline void codes5(const uint8_t *qh, const uint8_t *qs, int j, int *first, int *second) {
    uint32_t high;
    memcpy(&high, qh, 4);
    *first = (qs[j] & 15) | (int)(high >> j & 1) << 4;
    *second = (qs[j] >> 4) | (int)(high >> (j + 16) & 1) << 4;
}

void tn__dequantize_row_q5_0(const void *blocks, float *out, int64_t n) {
    const tn__q5_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d);
        for (int j = 0; j < 16; j++) {
            int first, second;
            codes5(b[i].qh, b[i].qs, j, &first, &second);
            out[j] = (float)(first - 16) * d;
            out[j + 16] = (float)(second - 16) * d;
        }
    }
}

void tn__dequantize_row_q5_1(const void *blocks, float *out, int64_t n) {
    const tn__q5_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d), m = tn__f16_to_f32(b[i].m);
        for (int j = 0; j < 16; j++) {
            int first, second;
            codes5(b[i].qh, b[i].qs, j, &first, &second);
            out[j] = (float)first * d + m;
            out[j + 16] = (float)second * d + m;
        }
    }
}

void tn__dequantize_row_q8_0(const void *blocks, float *out, int64_t n) {
    const tn__q8_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d);
        for (int j = 0; j < 32; j++) out[j] = (float)b[i].qs[j] * d;
    }
}

void tn__dequantize_row_q8_1(const void *blocks, float *out, int64_t n) {
    const tn__q8_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d);
        for (int j = 0; j < 32; j++) out[j] = (float)b[i].qs[j] * d;
    }
}

void tn__dequantize_row_q8_K(const void *blocks, float *out, int64_t n) {
    const tn__q8_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, out += 256) {
        for (int j = 0; j < 256; j++) out[j] = (float)b[i].qs[j] * b[i].d;
    }
}

/* ---- Floats to blocks ---- */

TN__INLINE void range(int n, const float *x, float *low, float *high) {
    float lo = x[0], hi = x[0];
    for (int j = 1; j < n; j++) {
        lo = x[j] < lo ? x[j] : lo;
        hi = x[j] > hi ? x[j] : hi;
    }
    *low = lo;
    *high = hi;
}
TN__INLINE float inverse_of(float d) { return d != 0 ? 1 / d : 0; }

TN__INLINE void pack4(const int8_t *q, int offset, uint8_t *qs) {
    tn__v16c low, high;
    memcpy(&low, q, 16);
    memcpy(&high, q + 16, 16);
    low = (low + (uint8_t)offset) | (high + (uint8_t)offset) << 4;
    memcpy(qs, &low, 16);
}
TN__INLINE void pack5(const int8_t *q, int offset, uint8_t *qh, uint8_t *qs) {
    uint32_t high = 0;
    for (int j = 0; j < 16; j++) {
        uint32_t a = (uint32_t)(q[j] + offset), b = (uint32_t)(q[j + 16] + offset);
        qs[j] = (uint8_t)((a & 15) | (b & 15) << 4);
        high |= a >> 4 << j | b >> 4 << (j + 16);
    }
    memcpy(qh, &high, 4);
}

/* Stores a scale and returns the stored value, so that codes are chosen for it. */
TN__INLINE float store_f16(tn__f16_bits *to, float value) {
    *to = tn__f32_to_f16(tn__clampf(value, -65504, 65504)); /* an infinite scale would make zeros NaN */
    return tn__f16_to_f32(*to);
}

TN__INLINE float mean_square(int64_t n, const float *x) {
    tn__v8 sum = {0};
    for (int64_t j = 0; j < n; j += 8) {
        tn__v8 v;
        TN__LOAD(v, x + j);
        sum += v * v;
    }
    return TN__VSUM(sum) / (float)n;
}

/* The scale of a symmetric block. Fast: maps the peak onto the wider end of the range. Careful: searched. */
TN__INLINE float symmetric_scale(const float *x, const float *importance, int hi, int careful) {
    if (!careful) return tn__signed_peak(32, x) / (float)(-hi - 1);
    float w[32];
    tn__search_weights(32, x, importance, mean_square(32, x), w);
    return tn__search_scale(32, hi, 4, 0.3f, x, w);
}
TN__INLINE void affine_scale(const float *x, const float *importance, int hi, int careful, float *d, float *m) {
    if (!careful) {
        float low, high;
        range(32, x, &low, &high);
        *d = (high - low) / (float)hi;
        *m = low;
        return;
    }
    float w[32];
    tn__search_weights(32, x, importance, mean_square(32, x), w);
    tn__search_scale_min(32, hi, 14, 0.12f, -0.9f, 0, x, w, d, m);
}

TN__INLINE void quantize_q4_0(const float *x, tn__q4_0 *b, int64_t n, const float *imp, int careful) {
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        int8_t q[32];
        float d = store_f16(&b[i].d, symmetric_scale(x, imp ? imp + 32 * i : NULL, 7, careful));
        tn__round_to(32, x, 0, inverse_of(d), -8, 7, q);
        pack4(q, 8, b[i].qs);
    }
}
TN__INLINE void quantize_q5_0(const float *x, tn__q5_0 *b, int64_t n, const float *imp, int careful) {
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        int8_t q[32];
        float d = store_f16(&b[i].d, symmetric_scale(x, imp ? imp + 32 * i : NULL, 15, careful));
        tn__round_to(32, x, 0, inverse_of(d), -16, 15, q);
        pack5(q, 16, b[i].qh, b[i].qs);
    }
}
TN__INLINE void quantize_q4_1(const float *x, tn__q4_1 *b, int64_t n, const float *imp, int careful) {
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        int8_t q[32];
        float d, m;
        affine_scale(x, imp ? imp + 32 * i : NULL, 15, careful, &d, &m);
        d = store_f16(&b[i].d, d);
        m = store_f16(&b[i].m, m);
        tn__round_to(32, x, m, inverse_of(d), 0, 15, q);
        pack4(q, 0, b[i].qs);
    }
}
TN__INLINE void quantize_q5_1(const float *x, tn__q5_1 *b, int64_t n, const float *imp, int careful) {
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        int8_t q[32];
        float d, m;
        affine_scale(x, imp ? imp + 32 * i : NULL, 31, careful, &d, &m);
        d = store_f16(&b[i].d, d);
        m = store_f16(&b[i].m, m);
        tn__round_to(32, x, m, inverse_of(d), 0, 31, q);
        pack5(q, 0, b[i].qh, b[i].qs);
    }
}

#define TN__BOTH_WAYS(T)                                                                                             \
    TN__MANY_CPUS void tn__quantize_row_##T(const float *x, void *blocks, int64_t n) {                               \
        quantize_##T(x, blocks, n, NULL, 0);                                                                         \
    }                                                                                                                \
    TN__MANY_CPUS void tn__quantize_##T(const float *x, void *blocks, int64_t n, const float *importance) {          \
        quantize_##T(x, blocks, n, importance, 1);                                                                   \
    }
TN__BOTH_WAYS(q4_0)
TN__BOTH_WAYS(q4_1)
TN__BOTH_WAYS(q5_0)
TN__BOTH_WAYS(q5_1)

/* At eight bits the largest magnitude determines the scale; a search would gain less than the rounding of the scale.
 */
TN__MANY_CPUS void tn__quantize_row_q8_0(const float *x, void *blocks, int64_t n) {
    tn__q8_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        float d = __builtin_fabsf(tn__signed_peak(32, x)) / 127;
        b[i].d = tn__f32_to_f16(d);
        tn__round_to(32, x, 0, inverse_of(d), -127, 127, b[i].qs);
    }
}
void tn__quantize_q8_0(const float *x, void *blocks, int64_t n, const float *importance) {
    (void)importance;
    tn__quantize_row_q8_0(x, blocks, n);
}

TN__MANY_CPUS void tn__quantize_row_q8_1(const float *x, void *blocks, int64_t n) {
    tn__q8_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        float d = __builtin_fabsf(tn__signed_peak(32, x)) / 127;
        b[i].d = tn__f32_to_f16(d);
        tn__round_to(32, x, 0, inverse_of(d), -127, 127, b[i].qs);
        int sum = 0;
        for (int j = 0; j < 32; j++) sum += b[i].qs[j];
        b[i].s = tn__f32_to_f16(d * (float)sum);
    }
}
void tn__quantize_q8_1(const float *x, void *blocks, int64_t n, const float *importance) {
    (void)importance;
    tn__quantize_row_q8_1(x, blocks, n);
}

TN__MANY_CPUS void tn__quantize_row_q8_K(const float *x, void *blocks, int64_t n) {
    tn__q8_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        b[i].d = __builtin_fabsf(tn__signed_peak(256, x)) / 127;
        tn__round_to(256, x, 0, inverse_of(b[i].d), -127, 127, b[i].qs);
        for (int g = 0; g < 16; g++) {
            int sum = 0;
            for (int j = 0; j < 16; j++) sum += b[i].qs[16 * g + j];
            b[i].bsums[g] = (int16_t)sum;
        }
    }
}
void tn__quantize_q8_K(const float *x, void *blocks, int64_t n, const float *importance) {
    (void)importance;
    tn__quantize_row_q8_K(x, blocks, n);
}
