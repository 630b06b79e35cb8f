/* The 4-bit float types: mxfp4 (a power of two per 32 values) and nvfp4 (an unsigned e4m3 scale per 16). */
#include "quant/quant.h"

#include "quant/search.h"

const int8_t tn__fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float tn__mxfp4_scale(uint8_t e) {
    /* 2^(e-128); the two smallest exponents are subnormal floats. */
    return tn__f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

float tn__nvfp4_scale(uint8_t d) {
    if ((d & 0x7f) == 0x7f) return 0; /* the NaN of e4m3; such blocks are treated as zero */
    int exponent = d >> 3 & 15, mantissa = d & 7;
    float value = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return value * 0.5f;
}

void tn__dequantize_row_mxfp4(const void *blocks, float *out, int64_t n) {
    const tn__mxfp4 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__mxfp4_scale(b[i].e);
        for (int j = 0; j < 16; j++) {
            out[j] = (float)tn__fp4_levels[b[i].qs[j] & 15] * d;
            out[j + 16] = (float)tn__fp4_levels[b[i].qs[j] >> 4] * d;
        }
    }
}

void tn__dequantize_row_nvfp4(const void *blocks, float *out, int64_t n) {
    const tn__nvfp4 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++) {
        for (int g = 0; g < 4; g++, out += 16) {
            float d = tn__nvfp4_scale(b[i].d[g]);
            for (int j = 0; j < 8; j++) {
                out[j] = (float)tn__fp4_levels[b[i].qs[8 * g + j] & 15] * d;
                out[j + 8] = (float)tn__fp4_levels[b[i].qs[8 * g + j] >> 4] * d;
            }
        }
    }
}

/* Nearest level of |x|·inverse, ties to the even code, with the sign in bit 3. */
TN__INLINE int nearest_fp4(float x, float inverse) {
    float a = __builtin_fabsf(x) * inverse;
    int code = (a > 0.5f) + (a >= 1.5f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f) + (a >= 7.0f) + (a > 10.0f);
    return code | (x < 0 && code ? 8 : 0);
}
TN__INLINE float encode(int n, const float *x, const float *imp, float d, uint8_t *codes) {
    float inverse = d > 0 ? 1 / d : 0, error = 0;
    for (int j = 0; j < n; j++) {
        int code = nearest_fp4(x[j], inverse);
        float miss = x[j] - (float)tn__fp4_levels[code] * d;
        codes[j] = (uint8_t)code;
        error += miss * miss * (imp ? imp[j] : 1);
    }
    return error;
}
static float peak_of(int n, const float *x) {
    float peak = 0;
    for (int j = 0; j < n; j++) peak = __builtin_fabsf(x[j]) > peak ? __builtin_fabsf(x[j]) : peak;
    return peak;
}

/* Tries three exponents: with the peak at the top level, just below it, or clipped. */
static void quantize_mxfp4(const float *x, tn__mxfp4 *b, int64_t n, const float *importance, int tries) {
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        uint8_t codes[32], best_codes[32] = {0};
        float peak = peak_of(32, x), best = INFINITY;
        int e0 = peak > 0 && peak < INFINITY ? ilogbf(peak) - 2 + 127 : 0;
        b[i].e = 0;
        for (int k = 0; k < tries; k++) {
            int e = e0 + (k == 2 ? -1 : k);
            e = e < 0 ? 0 : e > 254 ? 254 : e;
            float error = encode(32, x, importance ? importance + 32 * i : NULL, tn__mxfp4_scale((uint8_t)e), codes);
            if (error < best) {
                best = error;
                b[i].e = (uint8_t)e;
                memcpy(best_codes, codes, 32);
            }
        }
        for (int j = 0; j < 16; j++) b[i].qs[j] = (uint8_t)(best_codes[j] | best_codes[j + 16] << 4);
    }
}
void tn__quantize_row_mxfp4(const float *x, void *blocks, int64_t n) { quantize_mxfp4(x, blocks, n, NULL, 1); }
void tn__quantize_mxfp4(const float *x, void *blocks, int64_t n, const float *importance) {
    quantize_mxfp4(x, blocks, n, importance, 3);
}

/* The e4m3 code whose value (halved, as tn__nvfp4_scale gives it) is nearest to d. */
static int nvfp4_code(float d) {
    if (!(d > 0)) return 0;
    int low = 0, high = 0x7e;
    while (low < high) { /* codes ascend with their values */
        int mid = (low + high) / 2;
        if (tn__nvfp4_scale((uint8_t)mid) < d) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low > 0 && d - tn__nvfp4_scale((uint8_t)(low - 1)) < tn__nvfp4_scale((uint8_t)low) - d ? low - 1 : low;
}
static void quantize_nvfp4(const float *x, tn__nvfp4 *b, int64_t n, const float *importance, int reach) {
    for (int64_t i = 0; i < n / 64; i++) {
        for (int g = 0; g < 4; g++, x += 16) {
            uint8_t codes[16], best_codes[16] = {0};
            float best = INFINITY;
            int c0 = nvfp4_code(peak_of(16, x) / 12);
            b[i].d[g] = 0;
            /* Smaller scales clip the peak; down to two thirds (4 codes) the other values may gain more. */
            for (int k = -2 * reach; k <= reach; k++) {
                int c = c0 + k;
                if (c < 0 || c > 0x7e) continue;
                float error = encode(16, x, importance ? importance + 64 * i + 16 * g : NULL,
                                     tn__nvfp4_scale((uint8_t)c), codes);
                if (error < best) {
                    best = error;
                    b[i].d[g] = (uint8_t)c;
                    memcpy(best_codes, codes, 16);
                }
            }
            for (int j = 0; j < 8; j++) b[i].qs[8 * g + j] = (uint8_t)(best_codes[j] | best_codes[j + 8] << 4);
        }
    }
}
void tn__quantize_row_nvfp4(const float *x, void *blocks, int64_t n) { quantize_nvfp4(x, blocks, n, NULL, 0); }
void tn__quantize_nvfp4(const float *x, void *blocks, int64_t n, const float *importance) {
    quantize_nvfp4(x, blocks, n, importance, 3);
}
