/* The iq types: non-linear four-bit levels (iq4_nl, iq4_xs), and lattices of about 1.5, 2 and 3 bits. */
#include "quant/quant.h"

#include "quant/search.h"

const int8_t tn__iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const uint8_t tn__iq3_xxs_levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};

/* ---- Blocks to floats ---- */

void tn__dequantize_row_iq4_nl(const void *blocks, float *out, int64_t n) {
    const tn__iq4_nl *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, out += 32) {
        float d = tn__f16_to_f32(b[i].d);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)tn__iq4_levels[b[i].qs[j] & 15];
            out[j + 16] = d * (float)tn__iq4_levels[b[i].qs[j] >> 4];
        }
    }
}

void tn__dequantize_row_iq4_xs(const void *blocks, float *out, int64_t n) {
    const tn__iq4_xs *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 8; g++, out += 32) {
            float scale = d * (float)tn__scale_iq4_xs(&b[i], g);
            const uint8_t *qs = b[i].qs + 16 * g;
            for (int j = 0; j < 16; j++) {
                out[j] = scale * (float)tn__iq4_levels[qs[j] & 15];
                out[j + 16] = scale * (float)tn__iq4_levels[qs[j] >> 4];
            }
        }
    }
}

/* Eight values of an iq2 lattice point. */
static inline void write_iq2(uint16_t point, uint8_t signs, float scale, float *out) {
    static const float level[4] = {8, 25, 43, 0};
    for (int j = 0; j < 8; j++) {
        float value = scale * level[point >> 2 * j & 3];
        out[j] = signs >> j & 1 ? -value : value;
    }
}

void tn__dequantize_row_iq2_xxs(const void *blocks, float *out, int64_t n) {
    const tn__iq2_xxs *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 8; g++) {
            const uint16_t *q = b[i].qs + 4 * g;
            uint32_t points = q[0] | (uint32_t)q[1] << 16, rest = q[2] | (uint32_t)q[3] << 16;
            float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
            for (int k = 0; k < 4; k++, out += 8)
                write_iq2(tn__iq2_xxs_lattice[points >> 8 * k & 255], tn__iq_signs(rest >> 7 * k & 127), scale, out);
        }
    }
}

void tn__dequantize_row_iq2_xs(const void *blocks, float *out, int64_t n) {
    const tn__iq2_xs *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 32; g++, out += 8) { /* a scale per 16 values, two scales per byte */
            float scale = d * (0.5f + (float)(b[i].scales[g / 4] >> 4 * (g / 2 & 1) & 15)) * 0.25f;
            write_iq2(tn__iq2_xs_lattice[b[i].qs[g] & 511], tn__iq_signs(b[i].qs[g] >> 9), scale, out);
        }
    }
}

void tn__dequantize_row_iq2_s(const void *blocks, float *out, int64_t n) {
    const tn__iq2_s *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 32; g++, out += 8) {
            float scale = d * (0.5f + (float)(b[i].scales[g / 4] >> 4 * (g / 2 & 1) & 15)) * 0.25f;
            int point = b[i].qs[g] | (b[i].qh[g / 4] >> 2 * (g & 3) & 3) << 8;
            write_iq2(tn__iq2_s_lattice[point], b[i].signs[g], scale, out);
        }
    }
}

void tn__dequantize_row_iq3_xxs(const void *blocks, float *out, int64_t n) {
    const tn__iq3_xxs *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 8; g++) {
            uint32_t rest;
            memcpy(&rest, b[i].gas + 4 * g, 4);
            float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
            for (int k = 0; k < 8; k++, out += 4) { /* points of four values, signs for two points together */
                uint16_t point = tn__iq3_xxs_lattice[b[i].qs[8 * g + k]];
                uint8_t signs = tn__iq_signs(rest >> 7 * (k / 2) & 127) >> 4 * (k & 1);
                for (int j = 0; j < 4; j++) {
                    float value = scale * (float)tn__iq3_xxs_levels[point >> 3 * j & 7];
                    out[j] = signs >> j & 1 ? -value : value;
                }
            }
        }
    }
}

void tn__dequantize_row_iq3_s(const void *blocks, float *out, int64_t n) {
    const tn__iq3_s *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int k = 0; k < 64; k++, out += 4) {
            int g = k / 8; /* 32 values share a scale */
            float scale = d * (float)(1 + 2 * (b[i].scales[g / 2] >> 4 * (g & 1) & 15));
            uint16_t point = tn__iq3_s_lattice[b[i].qs[k] | (b[i].qh[g] >> (k & 7) & 1) << 8];
            uint8_t signs = b[i].signs[k / 2] >> 4 * (k & 1);
            for (int j = 0; j < 4; j++) {
                float value = scale * (float)(1 + 2 * (point >> 3 * j & 7));
                out[j] = signs >> j & 1 ? -value : value;
            }
        }
    }
}

/* Eight values of an iq1 lattice point: -1, 0 or 1, plus or minus an eighth. */
static inline void write_iq1(uint16_t point, int down, float scale, float *out) {
    float offset = down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++) out[j] = scale * ((float)((point >> 2 * j & 3) - 1) + offset);
}

void tn__dequantize_row_iq1_s(const void *blocks, float *out, int64_t n) {
    const tn__iq1_s *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        float d = tn__f16_to_f32(b[i].d);
        for (int g = 0; g < 8; g++) {
            uint16_t qh = b[i].qh[g];
            float scale = d * (float)(2 * (qh >> 12 & 7) + 1);
            for (int k = 0; k < 4; k++, out += 8)
                write_iq1(tn__iq1_s_lattice[b[i].qs[4 * g + k] | (qh >> 3 * k & 7) << 8], qh >> 15, scale, out);
        }
    }
}

void tn__dequantize_row_iq1_m(const void *blocks, float *out, int64_t n) {
    const tn__iq1_m *b = blocks;
    for (int64_t i = 0; i < n / 256; i++) {
        uint16_t sc[4];
        memcpy(sc, b[i].scales, 8);
        float d = tn__f16_to_f32(
            (uint16_t)(sc[0] >> 12 | (sc[1] >> 8 & 0x00f0) | (sc[2] >> 4 & 0x0f00) | (sc[3] & 0xf000)));
        for (int g = 0; g < 32; g++, out += 8) {
            float scale = d * (float)(2 * (sc[g / 8] >> 3 * (g / 2 & 3) & 7) + 1);
            int high = b[i].qh[g / 2] >> 4 * (g & 1);
            write_iq1(tn__iq1_s_lattice[b[i].qs[g] | (high & 7) << 8], high & 8, scale, out);
        }
    }
}

/* ---- Floats to blocks: the four-bit types ---- */

/* Replaces each value by its nearest level, found by counting the midpoints below it. */
TN__INLINE void nearest_levels(int n, const float *x, float inverse, float *level, int8_t *codes) {
    for (int i = 0; i < n; i += 8) {
        tn__v8 v, nearest = TN__SPLAT(-127.0f);
        tn__v8i code = {0};
        TN__LOAD(v, x + i);
        v = v * inverse;
        for (int k = 0; k < 15; k++) {
            float middle = 0.5f * (float)(tn__iq4_levels[k] + tn__iq4_levels[k + 1]);
            float gap = (float)(tn__iq4_levels[k + 1] - tn__iq4_levels[k]);
            tn__v8i above = v > middle;
            nearest += (tn__v8)((tn__v8i)TN__SPLAT(gap) & above);
            code -= above;
        }
        if (level) TN__STORE(level + i, nearest);
        if (codes) {
            for (int j = 0; j < 8; j++) codes[i + j] = (int8_t)code[j];
        }
    }
}

/* x ≈ scale·level: tries scales that map the peak to, inside or beyond either end of the levels. */
TN__INLINE float search_levels(const float *x, const float *w, int steps) {
    float peak = 0;
    for (int j = 0; j < 32; j++) {
        if (__builtin_fabsf(x[j]) > __builtin_fabsf(peak)) peak = x[j];
    }
    if (!(__builtin_fabsf(peak) > 1e-30f)) return 0;
    float best = -1, scale = 0;
    for (int k = -steps; k <= steps; k++) {
        float level[32], inverse = (-127.0f + 5.0f * (float)k) / peak;
        nearest_levels(32, x, inverse, level, NULL);
        tn__v8 xq = {0}, qq = {0};
        for (int i = 0; i < 32; i += 8) {
            tn__v8 v, u, q;
            TN__LOAD(v, x + i);
            TN__LOAD(u, w + i);
            TN__LOAD(q, level + i);
            tn__v8 wq = u * q;
            xq += wq * v;
            qq += wq * q;
        }
        float sxq = TN__VSUM(xq), sqq = TN__VSUM(qq);
        if (sqq > 0 && sxq * sxq > best * sqq) {
            best = sxq * sxq / sqq;
            scale = sxq / sqq;
        }
    }
    return scale;
}

static inline float inverse_of(float d) { return d != 0 ? 1 / d : 0; }

TN__INLINE void pack_levels(const float *x, float scale, uint8_t *qs) {
    int8_t codes[32];
    nearest_levels(32, x, inverse_of(scale), NULL, codes);
    for (int j = 0; j < 16; j++) qs[j] = (uint8_t)(codes[j] | codes[j + 16] << 4);
}
TN__INLINE float mean_square(int n, const float *x) {
    tn__v8 sum = {0};
    for (int j = 0; j < n; j += 8) {
        tn__v8 v;
        TN__LOAD(v, x + j);
        sum += v * v;
    }
    return TN__VSUM(sum) / (float)n;
}

TN__INLINE void quantize_iq4_nl(const float *x, tn__iq4_nl *b, int64_t n, const float *importance, int steps) {
    for (int64_t i = 0; i < n / 32; i++, x += 32) {
        float w[32];
        tn__search_weights(32, x, importance ? importance + 32 * i : NULL, mean_square(32, x), w);
        b[i].d = tn__f32_to_f16(search_levels(x, w, steps));
        pack_levels(x, tn__f16_to_f32(b[i].d), b[i].qs);
    }
}
TN__MANY_CPUS void tn__quantize_row_iq4_nl(const float *x, void *blocks, int64_t n) {
    quantize_iq4_nl(x, blocks, n, NULL, 0);
}
TN__MANY_CPUS void tn__quantize_iq4_nl(const float *x, void *blocks, int64_t n, const float *importance) {
    quantize_iq4_nl(x, blocks, n, importance, 7);
}

TN__MANY_CPUS void tn__quantize_iq4_xs(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq4_xs *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, x += 256) {
        float w[256], scales[8], peak = 0;
        tn__search_weights(256, x, importance ? importance + 256 * i : NULL, mean_square(256, x), w);
        for (int g = 0; g < 8; g++) {
            scales[g] = search_levels(x + 32 * g, w + 32 * g, 7);
            if (__builtin_fabsf(scales[g]) > __builtin_fabsf(peak)) peak = scales[g];
        }
        b[i].d = tn__f32_to_f16(peak / -32);
        float d = tn__f16_to_f32(b[i].d), to_scale = inverse_of(d);
        b[i].scales_h = 0;
        memset(b[i].scales_l, 0, sizeof b[i].scales_l);
        for (int g = 0; g < 8; g++) {
            int code = (int)tn__clampf(tn__roundf_even(scales[g] * to_scale), -32, 31);
            b[i].scales_l[g / 2] |= (uint8_t)((code + 32) % 16 << 4 * (g & 1));
            b[i].scales_h |= (uint16_t)((code + 32) / 16 << 2 * g);
            pack_levels(x + 32 * g, d * (float)code, b[i].qs + 16 * g);
        }
    }
}
void tn__quantize_row_iq4_xs(const float *x, void *blocks, int64_t n) { tn__quantize_iq4_xs(x, blocks, n, NULL); }
