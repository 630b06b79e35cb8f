/* Floats to the lattice types of about 2 and 3 bits: iq2_xxs, iq2_xs, iq2_s, iq3_xxs and iq3_s.
 *
 * All of them store 256 values as magnitudes times signs: value = ±d·(2s+1)·g, with one float d, a code s of four
 * bits for every 16 or 32 values, and g a coordinate of a lattice point. Types with seven sign bits per eight values
 * have an even number of minus signs. */
#include "quant/lattice.h"

typedef struct lattice_type {
    enum tn__lattice_kind lattice;
    int dims;   /* coordinates of a point */
    int sub;    /* values that share a scale */
    int parity; /* seven sign bits per eight values */
} lattice_type;

typedef struct lattice_block {
    float d;
    uint8_t scale[16];
    uint16_t point[64];
    uint8_t signs[32];
} lattice_block;

/* Magnitudes and signs. Where an odd number of signs must become even, one value keeps a wrong sign: the one where
 * that costs least. It is represented by a negative magnitude. */
TN__INLINE void split_signs(const float *x, const float *w, int parity, float *magnitude, uint8_t *signs) {
    for (int g = 0; g < 32; g++, x += 8, w += 8, magnitude += 8) {
        unsigned minus = 0;
        int cheapest = 0;
        for (int j = 0; j < 8; j++) {
            magnitude[j] = __builtin_fabsf(x[j]);
            minus |= (unsigned)(x[j] < 0) << j;
            if (w[j] * magnitude[j] < w[cheapest] * magnitude[cheapest]) cheapest = j;
        }
        if (parity && __builtin_parity(minus)) {
            minus ^= 1u << cheapest;
            magnitude[cheapest] = -magnitude[cheapest];
        }
        signs[g] = (uint8_t)minus;
    }
}

/* The nearest points of a sub-block for one scale; sums of w·x·g and w·g². */
TN__INLINE void nearest_points(const lattice_type *t, const tn__lattice *l, const float *x, const float *w,
                               float inverse, uint16_t *points, float *xg_out, float *gg_out) {
    tn__v8 xg = {0}, gg = {0};
    for (int i = 0; i < t->sub; i += 8) {
        float scaled[8], values[8];
        tn__v8 v, u, g;
        TN__LOAD(v, x + i);
        TN__LOAD(u, w + i);
        g = v * inverse;
        TN__STORE(scaled, g);
        if (t->dims == 8) {
            points[i / 8] = (uint16_t)tn__lattice_nearest8(l, scaled, w + i);
            memcpy(values, l->values + 8 * points[i / 8], sizeof values);
        } else {
            for (int k = 0; k < 2; k++) {
                points[i / 4 + k] = (uint16_t)tn__lattice_nearest4(l, scaled + 4 * k, w + i + 4 * k);
                memcpy(values + 4 * k, l->values + 4 * points[i / 4 + k], 4 * sizeof *values);
            }
        }
        TN__LOAD(g, values);
        tn__v8 wg = u * g;
        xg += wg * v;
        gg += wg * g;
    }
    *xg_out = TN__VSUM(xg);
    *gg_out = TN__VSUM(gg);
}

/* The scale that leaves the least error: tries some around the one that maps the peak onto the highest level, and the
 * one that maps it onto the lowest, for values of equal magnitude. */
TN__INLINE float search_lattice_scale(const lattice_type *t, const tn__lattice *l, const float *x, const float *w) {
    const int two_bits = t->dims == 8, steps = two_bits ? 9 : 6;
    const float top = l->level[two_bits ? 2 : 7], step = two_bits ? 0.05f : 0.035f;
    uint16_t points[8];
    float peak = 0, best_xg = 0, best_gg = 1;
    for (int i = 0; i < t->sub; i++) peak = x[i] > peak ? x[i] : peak;
    if (!(peak > 1e-30f)) return 0;
    for (int k = -steps; k <= steps + 1; k++) {
        float xg, gg;
        nearest_points(t, l, x, w, (k > steps ? 1 : top * (1 + step * (float)k)) / peak, points, &xg, &gg);
        const int better = xg > 0 && (double)xg * xg * best_gg > (double)best_xg * best_xg * gg;
        best_xg = better ? xg : best_xg;
        best_gg = better ? gg : best_gg;
    }
    return best_xg / best_gg;
}

/* Chooses code and points of a sub-block for a given d, around the scale that was found for it alone. */
TN__INLINE void choose_code(const lattice_type *t, const tn__lattice *l, const float *x, const float *w, float d,
                            float scale, uint8_t *code, uint16_t *points, float *xg_sum, float *gg_sum) {
    const int nearest = (int)tn__clampf(tn__roundf_even(0.5f * (scale / d - 1)), 0, 15);
    float best = INFINITY, best_xg = 0, best_gg = 0;
    for (int c = nearest > 0 ? nearest - 1 : 0; c <= nearest + 1 && c < 16; c++) {
        uint16_t trial[8];
        float xg, gg, s = d * (float)(2 * c + 1);
        nearest_points(t, l, x, w, 1 / s, trial, &xg, &gg);
        const float error = s * (s * gg - 2 * xg); /* without the part that does not depend on the code */
        if (error < best) {
            best = error;
            best_xg = xg * (float)(2 * c + 1);
            best_gg = gg * (float)(2 * c + 1) * (float)(2 * c + 1);
            *code = (uint8_t)c;
            memcpy(points, trial, sizeof(uint16_t) * (size_t)(t->sub / t->dims));
        }
    }
    *xg_sum += best_xg;
    *gg_sum += best_gg;
}

TN__INLINE void quantize_lattice(const lattice_type *t, const float *x, const float *importance, lattice_block *b) {
    const tn__lattice *l = tn__lattice_get(t->lattice);
    float w[256], magnitude[256], scales[16], most = 0, sigma2 = 0;
    for (int i = 0; i < 256; i++) sigma2 += x[i] * x[i];
    tn__search_weights(256, x, importance, sigma2 / 256, w);
    split_signs(x, w, t->parity, magnitude, b->signs);
    const int subs = 256 / t->sub, points = t->sub / t->dims;
    for (int g = 0; g < subs; g++) {
        scales[g] = search_lattice_scale(t, l, magnitude + g * t->sub, w + g * t->sub);
        most = scales[g] > most ? scales[g] : most;
    }
    memset(b->scale, 0, sizeof b->scale);
    memset(b->point, 0, sizeof b->point);
    b->d = tn__f16_to_f32(tn__f32_to_f16(most / 31));
    if (!(b->d > 0)) {
        b->d = 0;
        return;
    }
    /* The best d for the codes and points that were chosen is not the one they were chosen for. */
    for (int pass = 0; pass < 2; pass++) {
        float xg = 0, gg = 0;
        for (int g = 0; g < subs; g++)
            choose_code(t, l, magnitude + g * t->sub, w + g * t->sub, b->d, scales[g], &b->scale[g],
                        b->point + g * points, &xg, &gg);
        const float d = tn__lattice_fit(pass == 1, 256, magnitude, w, xg, gg);
        if (d > 0) b->d = d;
    }
}

TN__MANY_CPUS void tn__quantize_iq2_xxs(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq2_xxs *out = blocks;
    const lattice_type type = {TN__IQ2_XXS, 8, 32, 1};
    for (int64_t i = 0; i < n / 256; i++) {
        lattice_block b;
        quantize_lattice(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        out[i].d = tn__f32_to_f16(b.d);
        for (int g = 0; g < 8; g++) {
            uint32_t points = 0, rest = (uint32_t)b.scale[g] << 28;
            for (int k = 0; k < 4; k++) {
                points |= (uint32_t)b.point[4 * g + k] << 8 * k;
                rest |= (uint32_t)(b.signs[4 * g + k] & 127) << 7 * k;
            }
            memcpy(out[i].qs + 4 * g, &points, 4);
            memcpy(out[i].qs + 4 * g + 2, &rest, 4);
        }
    }
}

TN__MANY_CPUS void tn__quantize_iq2_xs(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq2_xs *out = blocks;
    const lattice_type type = {TN__IQ2_XS, 8, 16, 1};
    for (int64_t i = 0; i < n / 256; i++) {
        lattice_block b;
        quantize_lattice(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        out[i].d = tn__f32_to_f16(b.d);
        for (int g = 0; g < 32; g++) out[i].qs[g] = (uint16_t)(b.point[g] | (b.signs[g] & 127) << 9);
        for (int g = 0; g < 8; g++) out[i].scales[g] = (uint8_t)(b.scale[2 * g] | b.scale[2 * g + 1] << 4);
    }
}

TN__MANY_CPUS void tn__quantize_iq2_s(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq2_s *out = blocks;
    const lattice_type type = {TN__IQ2_S, 8, 16, 0};
    for (int64_t i = 0; i < n / 256; i++) {
        lattice_block b;
        quantize_lattice(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        out[i].d = tn__f32_to_f16(b.d);
        memset(out[i].qh, 0, sizeof out[i].qh);
        for (int g = 0; g < 32; g++) {
            out[i].qs[g] = (uint8_t)b.point[g];
            out[i].qh[g / 4] |= (uint8_t)(b.point[g] >> 8 << 2 * (g & 3));
            out[i].signs[g] = b.signs[g];
        }
        for (int g = 0; g < 8; g++) out[i].scales[g] = (uint8_t)(b.scale[2 * g] | b.scale[2 * g + 1] << 4);
    }
}

TN__MANY_CPUS void tn__quantize_iq3_xxs(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq3_xxs *out = blocks;
    const lattice_type type = {TN__IQ3_XXS, 4, 32, 1};
    for (int64_t i = 0; i < n / 256; i++) {
        lattice_block b;
        quantize_lattice(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        out[i].d = tn__f32_to_f16(b.d);
        for (int k = 0; k < 64; k++) out[i].qs[k] = (uint8_t)b.point[k];
        for (int g = 0; g < 8; g++) {
            uint32_t rest = (uint32_t)b.scale[g] << 28;
            for (int k = 0; k < 4; k++) rest |= (uint32_t)(b.signs[4 * g + k] & 127) << 7 * k;
            memcpy(out[i].gas + 4 * g, &rest, 4);
        }
    }
}

TN__MANY_CPUS void tn__quantize_iq3_s(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq3_s *out = blocks;
    const lattice_type type = {TN__IQ3_S, 4, 32, 0};
    for (int64_t i = 0; i < n / 256; i++) {
        lattice_block b;
        quantize_lattice(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        out[i].d = tn__f32_to_f16(b.d);
        memset(out[i].qh, 0, sizeof out[i].qh);
        for (int k = 0; k < 64; k++) {
            out[i].qs[k] = (uint8_t)b.point[k];
            out[i].qh[k / 8] |= (uint8_t)(b.point[k] >> 8 << (k & 7));
        }
        memcpy(out[i].signs, b.signs, 32);
        for (int g = 0; g < 4; g++) out[i].scales[g] = (uint8_t)(b.scale[2 * g] | b.scale[2 * g + 1] << 4);
    }
}

#define ROW(name)                                                                                                    \
    void tn__quantize_row_##name(const float *x, void *blocks, int64_t n) { tn__quantize_##name(x, blocks, n, NULL); }
ROW(iq2_xxs)
ROW(iq2_xs)
ROW(iq2_s)
ROW(iq3_xxs)
ROW(iq3_s)
#undef ROW
