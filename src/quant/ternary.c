/* The ternary types tq1_0 (five trits in a byte) and tq2_0 (two bits each). */
#include "quant/quant.h"

#include "quant/search.h"

/* A byte is the fraction 0.t4t3t2t1t0 in base three, times 256 and rounded up. Multiplying by 3^k (mod 256) moves
 * trit k to the first digit; times three, the integer part is the trit. */
static inline int trit(uint8_t byte, int k) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    uint8_t shifted = (uint8_t)(byte * power[k]);
    return shifted * 3 >> 8;
}

void tn__dequantize_row_tq1_0(const void *blocks, float *out, int64_t n) {
    const tn__tq1_0 *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int k = 0; k < 5; k++) {
            for (int j = 0; j < 32; j++) *out++ = (float)(trit(b[i].qs[j], k) - 1) * d;
        }
        for (int k = 0; k < 5; k++) {
            for (int j = 32; j < 48; j++) *out++ = (float)(trit(b[i].qs[j], k) - 1) * d;
        }
        for (int k = 0; k < 4; k++) {
            for (int j = 0; j < 4; j++) *out++ = (float)(trit(b[i].qh[j], k) - 1) * d;
        }
    }
}

void tn__dequantize_row_tq2_0(const void *blocks, float *out, int64_t n) {
    const tn__tq2_0 *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, out += 256) {
        float d = tn__f16_to_f32(b[i].d);
        for (int j = 0; j < 256; j++) {
            int q = b[i].qs[32 * (j / 128) + j % 32] >> 2 * (j / 32 % 4) & 3;
            out[j] = (float)(q - 1) * d;
        }
    }
}

/* These types are for weights that are already ternary, so the largest magnitude is the scale. */
static float ternary_codes(const float *x, int8_t *q, tn__f16_bits *d_out) {
    float peak = 0;
    for (int j = 0; j < 256; j++) peak = __builtin_fabsf(x[j]) > peak ? __builtin_fabsf(x[j]) : peak;
    *d_out = tn__f32_to_f16(peak);
    tn__round_to(256, x, 0, peak > 0 ? 1 / peak : 0, -1, 1, q);
    return peak;
}

/* `count` trits, `stride` apart, as one byte; the remaining trits are zero. */
static uint8_t pack_trits(const int8_t *q, int count, int stride) {
    int value = 0;
    for (int k = 0; k < 5; k++) value = value * 3 + (k < count ? q[k * stride] + 1 : 0);
    return (uint8_t)((value * 256 + 242) / 243);
}

void tn__quantize_row_tq1_0(const float *x, void *blocks, int64_t n) {
    tn__tq1_0 *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        int8_t q[256];
        ternary_codes(x, q, &b[i].d);
        for (int j = 0; j < 32; j++) b[i].qs[j] = pack_trits(q + j, 5, 32);
        for (int j = 0; j < 16; j++) b[i].qs[32 + j] = pack_trits(q + 160 + j, 5, 16);
        for (int j = 0; j < 4; j++) b[i].qh[j] = pack_trits(q + 240 + j, 4, 4);
    }
}
void tn__quantize_tq1_0(const float *x, void *blocks, int64_t n, const float *importance) {
    (void)importance;
    tn__quantize_row_tq1_0(x, blocks, n);
}

void tn__quantize_row_tq2_0(const float *x, void *blocks, int64_t n) {
    tn__tq2_0 *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        int8_t q[256];
        ternary_codes(x, q, &b[i].d);
        memset(b[i].qs, 0, sizeof b[i].qs);
        for (int j = 0; j < 256; j++) b[i].qs[32 * (j / 128) + j % 32] |= (uint8_t)((q[j] + 1) << 2 * (j / 32 % 4));
    }
}
void tn__quantize_tq2_0(const float *x, void *blocks, int64_t n, const float *importance) {
    (void)importance;
    tn__quantize_row_tq2_0(x, blocks, n);
}
