/* The super-block types q2_K q3_K q4_K q5_K q6_K: 256 values in sub-blocks with quantized scales. */
#include "quant/quant.h"

#include "quant/search.h"

/* ---- Blocks to floats ---- */

void tn__dequantize_row_q2_K(const void *blocks, float *out, int64_t n) {
    const tn__q2_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d), dmin = tn__f16_to_f32(b[i].dmin);
        for (int g = 0; g < 16; g++, out += 16) { /* half g/8, bit pair g/2%4, left or right 16 bytes */
            const uint8_t *qs = b[i].qs + 32 * (g / 8) + 16 * (g & 1);
            int shift = 2 * (g / 2 % 4);
            float scale = d * (float)(b[i].scales[g] & 15), min = dmin * (float)(b[i].scales[g] >> 4);
            for (int j = 0; j < 16; j++) out[j] = scale * (float)(qs[j] >> shift & 3) - min;
        }
    }
}

void tn__dequantize_row_q3_K(const void *blocks, float *out, int64_t n) {
    const tn__q3_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 16; g++, out += 16) {
            const uint8_t *qs = b[i].qs + 32 * (g / 8) + 16 * (g & 1), *high = b[i].hmask + 16 * (g & 1);
            int shift = 2 * (g / 2 % 4);
            float scale = d * (float)tn__scale_k3(b[i].scales, g);
            for (int j = 0; j < 16; j++) {
                int q = (qs[j] >> shift & 3) | (high[j] >> (g / 2) & 1) << 2;
                out[j] = scale * (float)(q - 4);
            }
        }
    }
}

void tn__dequantize_row_q4_K(const void *blocks, float *out, int64_t n) {
    const tn__q4_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d), dmin = tn__f16_to_f32(b[i].dmin);
        for (int g = 0; g < 8; g++, out += 32) {
            uint8_t sc, m;
            tn__scale_min_k4(b[i].scales, g, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            const uint8_t *qs = b[i].qs + 32 * (g / 2);
            for (int j = 0; j < 32; j++) out[j] = scale * (float)(qs[j] >> 4 * (g & 1) & 15) - min;
        }
    }
}

void tn__dequantize_row_q5_K(const void *blocks, float *out, int64_t n) {
    const tn__q5_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d), dmin = tn__f16_to_f32(b[i].dmin);
        for (int g = 0; g < 8; g++, out += 32) {
            uint8_t sc, m;
            tn__scale_min_k4(b[i].scales, g, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            const uint8_t *qs = b[i].qs + 32 * (g / 2);
            for (int j = 0; j < 32; j++) {
                int q = (qs[j] >> 4 * (g & 1) & 15) | (b[i].qh[j] >> g & 1) << 4;
                out[j] = scale * (float)q - min;
            }
        }
    }
}

void tn__dequantize_row_q6_K(const void *blocks, float *out, int64_t n) {
    const tn__q6_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 8; g++, out += 32) { /* half g/4; rows of 32: low nibbles of 2×32 bytes, then high ones */
            const uint8_t *ql = b[i].ql + 64 * (g / 4) + 32 * (g & 1), *qh = b[i].qh + 32 * (g / 4);
            const int8_t *scales = b[i].scales + 2 * g;
            int shift = 4 * (g / 2 & 1), pair = 2 * (g & 3);
            for (int j = 0; j < 32; j++) {
                int q = (ql[j] >> shift & 15) | (qh[j] >> pair & 3) << 4;
                out[j] = d * (float)scales[j / 16] * (float)(q - 32);
            }
        }
    }
}

/* ---- Floats to blocks ---- */

TN__INLINE float mean_square(const float *x) {
    tn__v8 sum = {0};
    for (int j = 0; j < 256; j += 8) {
        tn__v8 v;
        TN__LOAD(v, x + j);
        sum += v * v;
    }
    return TN__VSUM(sum) / 256;
}
TN__INLINE float store_f16(tn__f16_bits *to, float value) {
    *to = tn__f32_to_f16(tn__clampf(value, -65504, 65504)); /* an infinite scale would make zeros NaN */
    return tn__f16_to_f32(*to);
}
TN__INLINE float inverse_of(float d) { return d != 0 ? 1 / d : 0; }
TN__INLINE int round_clamp(float x, int lo, int hi) {
    return (int)tn__clampf(tn__roundf_even(x), (float)lo, (float)hi);
}

/* The weighted error of `n` values with the nearest codes for a scale and a minimum. */
TN__INLINE float affine_error(int n, const float *x, const float *w, float scale, float min, int hi) {
    const float inverse = inverse_of(scale), hi_f = (float)hi;
    tn__v8 sum = {0};
    for (int i = 0; i < n; i += 8) {
        tn__v8 v, u;
        TN__LOAD(v, x + i);
        TN__LOAD(u, w + i);
        v = v + min;
        tn__v8 q = v * inverse;
        q = TN__VROUND(q);
        q = TN__VMAX(q, TN__SPLAT(0.0f));
        q = TN__VMIN(q, TN__SPLAT(hi_f));
        v = v - q * scale;
        sum += u * v * v;
    }
    return TN__VSUM(sum);
}

/* Tries the neighbours of both codes of a sub-block and keeps the best. */
TN__INLINE void improve_affine_codes(int n, const float *x, const float *w, float d, float dmin, int hi, int top,
                                     uint8_t *scale_code, uint8_t *min_code) {
    const int sc0 = *scale_code, m0 = *min_code;
    float best = affine_error(n, x, w, d * (float)sc0, dmin * (float)m0, hi);
    for (int k = 0; k < 9; k++) {
        const int sc = sc0 + k % 3 - 1, m = m0 + k / 3 - 1;
        if (k == 4 || sc < 0 || m < 0 || sc > top || m > top) continue;
        const float error = affine_error(n, x, w, d * (float)sc, dmin * (float)m, hi);
        if (error < best) {
            best = error;
            *scale_code = (uint8_t)sc;
            *min_code = (uint8_t)m;
        }
    }
}

/* The pair (d, dmin) with the least weighted error for the codes of a super-block, by the normal equations. */
TN__INLINE void fit_affine(int size, const float *x, const float *w, const uint8_t *scale_codes,
                           const uint8_t *min_codes, const int8_t *q, tn__f16_bits *d_out, tn__f16_bits *dmin_out) {
    double qq = 0, qm = 0, mm = 0, xq = 0, xm = 0;
    for (int i = 0; i < 256; i++) {
        const double a = (double)scale_codes[i / size] * q[i], m = min_codes[i / size];
        const double u = (double)w[i], v = (double)x[i];
        qq += u * a * a;
        qm += u * a * m;
        mm += u * m * m;
        xq += u * v * a;
        xm += u * v * m;
    }
    const double det = qq * mm - qm * qm;
    if (!(det > 1e-9 * qq * mm)) return;
    const double d = (xq * mm - xm * qm) / det, dmin = (xq * qm - xm * qq) / det;
    if (!(d > 0 && dmin >= 0)) return;
    store_f16(d_out, (float)d);
    store_f16(dmin_out, (float)dmin);
}

/* Affine types: for each sub-block of `size` values a scale and a minimum, both quantized to 0…top, then the codes
 * for the rounded scale and minimum. */
TN__INLINE void affine_super_block(const float *x, const float *imp, int size, int hi, int top, int steps, float step,
                                   float start, tn__f16_bits *d_out, tn__f16_bits *dmin_out, uint8_t *scale_codes,
                                   uint8_t *min_codes, int8_t *q) {
    float scales[16], mins[16], w[256], max_scale = 0, max_min = 0;
    int groups = 256 / size;
    tn__search_weights(256, x, imp, mean_square(x), w);
    for (int g = 0; g < groups; g++) {
        tn__search_scale_min(size, hi, steps, step, start, 1, x + size * g, w + size * g, &scales[g], &mins[g]);
        mins[g] = -mins[g];
        max_scale = scales[g] > max_scale ? scales[g] : max_scale;
        max_min = mins[g] > max_min ? mins[g] : max_min;
    }
    float d = store_f16(d_out, max_scale / (float)top), dmin = store_f16(dmin_out, max_min / (float)top);
    float to_scale = inverse_of(d), to_min = inverse_of(dmin);
    for (int g = 0; g < groups; g++) {
        int sc = round_clamp(scales[g] * to_scale, 0, top), m = round_clamp(mins[g] * to_min, 0, top);
        scale_codes[g] = (uint8_t)sc;
        min_codes[g] = (uint8_t)m;
        tn__round_to(size, x + size * g, -dmin * (float)m, inverse_of(d * (float)sc), 0, hi, q + size * g);
    }
    /* Where importance is known, scales and minima are refined together. */
    for (int pass = 0; imp && pass < 2; pass++) {
        fit_affine(size, x, w, scale_codes, min_codes, q, d_out, dmin_out);
        d = tn__f16_to_f32(*d_out);
        dmin = tn__f16_to_f32(*dmin_out);
        for (int g = 0; g < groups; g++) {
            const float *xg = x + size * g;
            improve_affine_codes(size, xg, w + size * g, d, dmin, hi, top, &scale_codes[g], &min_codes[g]);
            tn__round_to(size, xg, -dmin * (float)min_codes[g], inverse_of(d * (float)scale_codes[g]), 0, hi,
                         q + size * g);
        }
    }
}

/* The same for the symmetric types, with signed scales of -top-1…top. */
TN__INLINE void symmetric_super_block(const float *x, const float *imp, int hi, int top, int steps, float step,
                                      tn__f16_bits *d_out, int *scale_codes, int8_t *q) {
    float scales[16], w[256], peak = 0;
    tn__search_weights(256, x, imp, mean_square(x), w);
    for (int g = 0; g < 16; g++) {
        scales[g] = tn__search_scale(16, hi, steps, step, x + 16 * g, w + 16 * g);
        if (__builtin_fabsf(scales[g]) > __builtin_fabsf(peak)) peak = scales[g];
    }
    float d = store_f16(d_out, peak / (float)(-top - 1)), to_scale = inverse_of(d);
    for (int g = 0; g < 16; g++) {
        scale_codes[g] = round_clamp(scales[g] * to_scale, -top - 1, top);
        tn__round_to(16, x + 16 * g, 0, inverse_of(d * (float)scale_codes[g]), -hi - 1, hi, q + 16 * g);
    }
}

static void pack_scales_k4(const uint8_t *scale, const uint8_t *min, uint8_t *scales) {
    for (int j = 0; j < 4; j++) {
        scales[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        scales[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        scales[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

TN__MANY_CPUS void tn__quantize_q2_K(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__q2_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        uint8_t scale[16], min[16];
        int8_t q[256];
        affine_super_block(x, importance ? importance + 256 * i : NULL, 16, 3, 15, 16, 0.1f, -0.6f, &b[i].d,
                           &b[i].dmin, scale, min, q);
        for (int g = 0; g < 16; g++) b[i].scales[g] = (uint8_t)(scale[g] | min[g] << 4);
        for (int half = 0; half < 2; half++) {
            const int8_t *p = q + 128 * half;
            for (int j = 0; j < 32; j++)
                b[i].qs[32 * half + j] = (uint8_t)(p[j] | p[j + 32] << 2 | p[j + 64] << 4 | p[j + 96] << 6);
        }
    }
}

TN__MANY_CPUS void tn__quantize_q3_K(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__q3_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        int code[16];
        int8_t q[256];
        symmetric_super_block(x, importance ? importance + 256 * i : NULL, 3, 31, 10, 0.12f, &b[i].d, code, q);
        memset(b[i].scales, 0, sizeof b[i].scales);
        for (int g = 0; g < 16; g++) {
            int c = code[g] + 32;
            b[i].scales[g % 8] |= (uint8_t)((c & 15) << (g < 8 ? 0 : 4));
            b[i].scales[8 + g % 4] |= (uint8_t)(c >> 4 << 2 * (g / 4));
        }
        memset(b[i].hmask, 0, sizeof b[i].hmask);
        memset(b[i].qs, 0, sizeof b[i].qs);
        for (int j = 0; j < 256; j++) {
            int c = q[j] + 4;
            b[i].qs[32 * (j / 128) + j % 32] |= (uint8_t)((c & 3) << 2 * (j / 32 % 4));
            b[i].hmask[j % 32] |= (uint8_t)(c >> 2 << j / 32);
        }
    }
}

TN__MANY_CPUS void tn__quantize_q4_K(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__q4_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        uint8_t scale[8], min[8];
        int8_t q[256];
        affine_super_block(x, importance ? importance + 256 * i : NULL, 32, 15, 63, 14, 0.12f, -0.9f, &b[i].d,
                           &b[i].dmin, scale, min, q);
        pack_scales_k4(scale, min, b[i].scales);
        for (int g = 0; g < 4; g++) {
            for (int j = 0; j < 32; j++) b[i].qs[32 * g + j] = (uint8_t)(q[64 * g + j] | q[64 * g + 32 + j] << 4);
        }
    }
}

TN__MANY_CPUS void tn__quantize_q5_K(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__q5_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        uint8_t scale[8], min[8];
        int8_t q[256];
        affine_super_block(x, importance ? importance + 256 * i : NULL, 32, 31, 63, 12, 0.15f, -0.8f, &b[i].d,
                           &b[i].dmin, scale, min, q);
        pack_scales_k4(scale, min, b[i].scales);
        memset(b[i].qh, 0, sizeof b[i].qh);
        for (int g = 0; g < 4; g++) {
            for (int j = 0; j < 32; j++) {
                int first = q[64 * g + j], second = q[64 * g + 32 + j];
                b[i].qs[32 * g + j] = (uint8_t)((first & 15) | (second & 15) << 4);
                b[i].qh[j] |= (uint8_t)((first >> 4 | second >> 4 << 1) << 2 * g);
            }
        }
    }
}

TN__MANY_CPUS void tn__quantize_q6_K(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__q6_K *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        int code[16];
        int8_t q[256];
        symmetric_super_block(x, importance ? importance + 256 * i : NULL, 31, 127, 7, 0.13f, &b[i].d, code, q);
        for (int g = 0; g < 16; g++) b[i].scales[g] = (int8_t)code[g];
        for (int half = 0; half < 2; half++) {
            const int8_t *p = q + 128 * half;
            for (int j = 0; j < 32; j++) {
                int c0 = p[j] + 32, c1 = p[j + 32] + 32, c2 = p[j + 64] + 32, c3 = p[j + 96] + 32;
                b[i].ql[64 * half + j] = (uint8_t)((c0 & 15) | (c2 & 15) << 4);
                b[i].ql[64 * half + 32 + j] = (uint8_t)((c1 & 15) | (c3 & 15) << 4);
                b[i].qh[32 * half + j] = (uint8_t)(c0 >> 4 | c1 >> 4 << 2 | c2 >> 4 << 4 | c3 >> 4 << 6);
            }
        }
    }
}

#define TN__ONE_WAY(T)                                                                                               \
    void tn__quantize_row_##T(const float *x, void *blocks, int64_t n) { tn__quantize_##T(x, blocks, n, NULL); }
TN__ONE_WAY(q2_K)
TN__ONE_WAY(q3_K)
TN__ONE_WAY(q4_K)
TN__ONE_WAY(q5_K)
TN__ONE_WAY(q6_K)
