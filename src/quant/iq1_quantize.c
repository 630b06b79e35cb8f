/* Floats to iq1_s and iq1_m: value = d·(2s+1)·(t ± 1/8), where t is a coordinate (-1, 0 or 1) of a lattice point.
 *
 * A code s has three bits and is shared by 32 (iq1_s) or 16 values (iq1_m), the sign of the offset by 32 or 8. */
#include "quant/lattice.h"

typedef struct iq1_type {
    int sub;    /* values that share a scale */
    int offset; /* values that share an offset */
} iq1_type;

typedef struct iq1_block {
    float d;
    uint8_t scale[16];
    uint16_t point[32];
    uint8_t down[32]; /* the offset is -1/8 */
} iq1_block;

/* Points and offset of `n` values for one scale: adds to the sums of w·x·q and w·q², and returns their part of the
 * error. */
TN__INLINE float nearest_ternary(int n, const tn__lattice *l, const float *x, const float *w, float scale,
                                 float offset, uint16_t *points, float *xq_out, float *qq_out) {
    tn__v8 xq = {0}, qq = {0};
    const float inverse = 1 / scale;
    for (int i = 0; i < n; i += 8) {
        float scaled[8];
        tn__v8 v, u, q;
        TN__LOAD(v, x + i);
        TN__LOAD(u, w + i);
        q = v * inverse - offset;
        TN__STORE(scaled, q);
        points[i / 8] = (uint16_t)tn__lattice_nearest8(l, scaled, w + i);
        TN__LOAD(q, l->values + 8 * points[i / 8]);
        q = q + offset;
        tn__v8 wq = u * q;
        xq += wq * v;
        qq += wq * q;
    }
    const float sxq = TN__VSUM(xq), sqq = TN__VSUM(qq);
    *xq_out = sxq;
    *qq_out = sqq;
    return scale * (scale * sqq - 2 * sxq);
}

/* A sub-block for one scale; every run of values with one offset gets the better sign. */
TN__INLINE float encode_ternary(const iq1_type *t, const tn__lattice *l, const float *x, const float *w, float scale,
                                uint16_t *points, uint8_t *down, float *xq, float *qq) {
    float error = 0;
    *xq = *qq = 0;
    for (int i = 0; i < t->sub; i += t->offset) {
        uint16_t up_points[4], down_points[4];
        float up_xq, up_qq, down_xq, down_qq;
        const float up = nearest_ternary(t->offset, l, x + i, w + i, scale, 0.125f, up_points, &up_xq, &up_qq);
        const float under =
            nearest_ternary(t->offset, l, x + i, w + i, scale, -0.125f, down_points, &down_xq, &down_qq);
        const int lower = under < up;
        error += lower ? under : up;
        *xq += lower ? down_xq : up_xq;
        *qq += lower ? down_qq : up_qq;
        memcpy(points + i / 8, lower ? down_points : up_points, sizeof *points * (size_t)(t->offset / 8));
        for (int k = 0; k < t->offset / 8; k++) down[i / 8 + k] = (uint8_t)lower;
    }
    return error;
}

/* Scales around the weighted root mean square: the best one for three levels of normal values is 1.2 times that. */
TN__INLINE float search_ternary_scale(const iq1_type *t, const tn__lattice *l, const float *x, const float *w) {
    enum { TRIALS = 13 };
    float wxx = 0, sw = 0, best = 0, best_scale = 0;
    uint16_t points[4];
    uint8_t down[4];
    for (int i = 0; i < t->sub; i++) {
        wxx += w[i] * x[i] * x[i];
        sw += w[i];
    }
    const float root = sw > 0 ? __builtin_sqrtf(wxx / sw) : 0;
    if (!(root > 1e-30f)) return 0;
    for (int k = 0; k < TRIALS; k++) {
        float xq, qq;
        encode_ternary(t, l, x, w, root * (0.7f + 0.1f * (float)k), points, down, &xq, &qq);
        if (xq > 0 && qq > 0 && xq * xq > best * qq) {
            best = xq * xq / qq;
            best_scale = xq / qq;
        }
    }
    return best_scale;
}

TN__INLINE void quantize_iq1(const iq1_type *t, const float *x, const float *importance, iq1_block *b) {
    const tn__lattice *l = tn__lattice_get(TN__IQ1);
    float w[256], scales[16], most = 0, sigma2 = 0;
    for (int i = 0; i < 256; i++) sigma2 += x[i] * x[i];
    tn__search_weights(256, x, importance, sigma2 / 128, w);
    const int subs = 256 / t->sub, groups = t->sub / 8;
    for (int g = 0; g < subs; g++) {
        scales[g] = search_ternary_scale(t, l, x + g * t->sub, w + g * t->sub);
        most = scales[g] > most ? scales[g] : most;
    }
    memset(b, 0, sizeof *b);
    b->d = tn__f16_to_f32(tn__f32_to_f16(most / 15));
    if (!(b->d > 0)) {
        b->d = 0;
        return;
    }
    for (int pass = 0; pass < 2; pass++) {
        float xq_sum = 0, qq_sum = 0;
        for (int g = 0; g < subs; g++) {
            const int nearest = (int)tn__clampf(tn__roundf_even(0.5f * (scales[g] / b->d - 1)), 0, 7);
            float best = INFINITY, best_xq = 0, best_qq = 0;
            for (int c = nearest > 0 ? nearest - 1 : 0; c <= nearest + 1 && c < 8; c++) {
                const float f = (float)(2 * c + 1);
                uint16_t points[4];
                uint8_t down[4];
                float xq, qq;
                const float error =
                    encode_ternary(t, l, x + g * t->sub, w + g * t->sub, b->d * f, points, down, &xq, &qq);
                if (!(error < best)) continue;
                best = error;
                best_xq = xq * f;
                best_qq = qq * f * f;
                b->scale[g] = (uint8_t)c;
                memcpy(b->point + g * groups, points, sizeof *points * (size_t)groups);
                memcpy(b->down + g * groups, down, (size_t)groups);
            }
            xq_sum += best_xq;
            qq_sum += best_qq;
        }
        const float d = tn__lattice_fit(pass == 1, 256, x, w, xq_sum, qq_sum);
        if (d > 0) b->d = d;
    }
}

TN__MANY_CPUS void tn__quantize_iq1_s(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq1_s *out = blocks;
    const iq1_type type = {32, 32};
    for (int64_t i = 0; i < n / 256; i++) {
        iq1_block b;
        quantize_iq1(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        out[i].d = tn__f32_to_f16(b.d);
        for (int g = 0; g < 8; g++) {
            unsigned high = (unsigned)b.scale[g] << 12 | (unsigned)b.down[4 * g] << 15;
            for (int k = 0; k < 4; k++) {
                out[i].qs[4 * g + k] = (uint8_t)b.point[4 * g + k];
                high |= (unsigned)(b.point[4 * g + k] >> 8) << 3 * k;
            }
            out[i].qh[g] = (uint16_t)high;
        }
    }
}

TN__MANY_CPUS void tn__quantize_iq1_m(const float *x, void *blocks, int64_t n, const float *importance) {
    tn__iq1_m *out = blocks;
    const iq1_type type = {16, 8};
    for (int64_t i = 0; i < n / 256; i++) {
        iq1_block b;
        quantize_iq1(&type, x + 256 * i, importance ? importance + 256 * i : NULL, &b);
        const unsigned d = tn__f32_to_f16(b.d);
        uint16_t scales[4];
        for (int k = 0; k < 4; k++) {
            unsigned word = (d >> 4 * k & 15) << 12;
            for (int j = 0; j < 4; j++) word |= (unsigned)b.scale[4 * k + j] << 3 * j;
            scales[k] = (uint16_t)word;
        }
        memcpy(out[i].scales, scales, sizeof scales);
        memset(out[i].qh, 0, sizeof out[i].qh);
        for (int g = 0; g < 32; g++) {
            out[i].qs[g] = (uint8_t)b.point[g];
            out[i].qh[g / 2] |= (uint8_t)((b.point[g] >> 8 | b.down[g] << 3) << 4 * (g & 1));
        }
    }
}

void tn__quantize_row_iq1_s(const float *x, void *blocks, int64_t n) { tn__quantize_iq1_s(x, blocks, n, NULL); }
void tn__quantize_row_iq1_m(const float *x, void *blocks, int64_t n) { tn__quantize_iq1_m(x, blocks, n, NULL); }
