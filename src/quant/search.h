/* Helpers of the quantizers: eight-lane arithmetic and the search for the best scale of a sub-block.
 *
 * Written with the compiler's vector extension in a fixed lane order and compiled without contraction, so that every
 * CPU gives the same bits. TN__MANY_CPUS makes the compiler emit versions for wider instructions, selected at load
 * time. */
#ifndef TN_QUANT_SEARCH_H
#define TN_QUANT_SEARCH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&                     \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TN__MANY_CPUS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TN__MANY_CPUS
#endif
#define TN__INLINE static inline __attribute__((always_inline))

typedef float tn__v8 __attribute__((vector_size(32)));
typedef float tn__v4 __attribute__((vector_size(16)));
typedef int32_t tn__v8i __attribute__((vector_size(32)));
typedef int16_t tn__v8s __attribute__((vector_size(16)));
typedef uint8_t tn__v16c __attribute__((vector_size(16)));
typedef int8_t tn__v8c __attribute__((vector_size(8)));

/* Vectors are used only inside always-inline functions and macros, so that no vector is passed in a call. */
#define TN__SPLAT(x) ((tn__v8){(x), (x), (x), (x), (x), (x), (x), (x)})
#define TN__SELECT(mask, a, b) ((tn__v8)(((tn__v8i)(a) & (mask)) | ((tn__v8i)(b) & ~(mask))))
/* A NaN in `a` gives `b`, so that the result of a clamp is always in range. */
#define TN__VMAX(a, b) TN__SELECT((a) > (b), a, b)
#define TN__VMIN(a, b) TN__SELECT((a) < (b), a, b)
/* Adding 1.5·2^23 leaves no fraction bits, rounding to nearest even; exact for |x| < 2^22. */
#define TN__VROUND(x) (((x) + 12582912.0f) - 12582912.0f)
#define TN__VSUM(v) tn__vsum(&(v))
#define TN__LOAD(out, p) memcpy(&(out), (p), 32)
#define TN__STORE(p, v) memcpy((p), &(v), 32)

TN__INLINE float tn__vsum(const tn__v8 *v) {
    tn__v4 half[2];
    memcpy(half, v, sizeof half);
    half[0] += half[1];
    return (half[0][0] + half[0][2]) + (half[0][1] + half[0][3]);
}
TN__INLINE float tn__clampf(float x, float lo, float hi) { return x > lo ? (x < hi ? x : hi) : lo; }
TN__INLINE float tn__roundf_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* The signed value of largest magnitude among n (a multiple of 8); the positive one of equal magnitudes. */
TN__INLINE float tn__signed_peak(int n, const float *x) {
    tn__v8 high = {0}, low = {0};
    for (int i = 0; i < n; i += 8) {
        tn__v8 v;
        TN__LOAD(v, x + i);
        high = TN__VMAX(v, high);
        low = TN__VMIN(v, low);
    }
    float most = 0, least = 0;
    for (int j = 0; j < 8; j++) {
        most = high[j] > most ? high[j] : most;
        least = low[j] < least ? low[j] : least;
    }
    return most >= -least ? most : least;
}

/* Error weights for the n values of a sub-block: the importance, increased for large values, which contribute most to
 * a dot product. */
TN__INLINE void tn__search_weights(int n, const float *x, const float *importance, float sigma2, float *w) {
    for (int i = 0; i < n; i++) {
        float root = __builtin_sqrtf(sigma2 + x[i] * x[i]);
        w[i] = importance ? importance[i] * root : root;
    }
}

/* x ≈ scale·q with lo ≤ q ≤ hi (lo = -hi-1). Tries inverse scales around the one that maps the largest magnitude onto
 * the wider end, and keeps the best by weighted least squares. Returns the scale (0 for a block of zeros). */
TN__INLINE float tn__search_scale(int n, int hi, int steps, float step, const float *x, const float *w) {
    float peak = tn__signed_peak(n, x);
    if (!(__builtin_fabsf(peak) > 1e-30f)) return 0;
    float lo_f = (float)(-hi - 1), hi_f = (float)hi;
    /* The error is reduced by xq²/qq. Fractions are compared without division and without an unpredictable branch. */
    float best_xq = 0, best_qq = 1;
    for (int k = -steps; k <= steps; k++) {
        float inverse = -((float)(hi + 1) + step * (float)k) / peak;
        tn__v8 xq = {0}, qq = {0};
        for (int i = 0; i < n; i += 8) {
            tn__v8 v, u;
            TN__LOAD(v, x + i);
            TN__LOAD(u, w + i);
            tn__v8 q = v * inverse;
            q = TN__VROUND(q);
            q = TN__VMAX(q, TN__SPLAT(lo_f));
            q = TN__VMIN(q, TN__SPLAT(hi_f));
            tn__v8 wq = u * q;
            xq += wq * v;
            qq += wq * q;
        }
        float sxq = TN__VSUM(xq), sqq = TN__VSUM(qq);
        int better = (double)sxq * sxq * best_qq > (double)best_xq * best_xq * sqq;
        best_xq = better ? sxq : best_xq;
        best_qq = better ? sqq : best_qq;
    }
    return best_xq / best_qq;
}

/* x ≈ scale·q + min with 0 ≤ q ≤ hi. For each trial the best pair (scale, min) follows from the normal equations.
 * `min_at_most_zero`: the format stores the minimum as a non-negative number to subtract. */
TN__INLINE void tn__search_scale_min(int n, int hi, int steps, float step, float start, int min_at_most_zero,
                                     const float *x, const float *w, float *scale, float *min) {
    float low = x[0], high = x[0];
    for (int i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (min_at_most_zero && low > 0) low = 0;
    if (!(high > low)) {
        *scale = 0;
        *min = low;
        return;
    }
    tn__v8 vw = {0}, vwx = {0}, vwxx = {0};
    for (int i = 0; i < n; i += 8) {
        tn__v8 v, u;
        TN__LOAD(v, x + i);
        TN__LOAD(u, w + i);
        vw += u;
        vwx += u * v;
        vwxx += u * v * v;
    }
    float sw = TN__VSUM(vw), swx = TN__VSUM(vwx), swxx = TN__VSUM(vwxx);
    float best = INFINITY, best_scale = (high - low) / (float)hi, best_min = low, hi_f = (float)hi;
    for (int k = 0; k < steps; k++) {
        float inverse = ((float)hi + start + step * (float)k) / (high - low);
        tn__v8 vq = {0}, vqq = {0}, vxq = {0};
        for (int i = 0; i < n; i += 8) {
            tn__v8 v, u;
            TN__LOAD(v, x + i);
            TN__LOAD(u, w + i);
            tn__v8 q = (v - low) * inverse;
            q = TN__VROUND(q);
            q = TN__VMAX(q, TN__SPLAT(0.0f));
            q = TN__VMIN(q, TN__SPLAT(hi_f));
            tn__v8 wq = u * q;
            vq += wq;
            vqq += wq * q;
            vxq += wq * v;
        }
        float sq = TN__VSUM(vq), sqq = TN__VSUM(vqq), sxq = TN__VSUM(vxq);
        float det = sw * sqq - sq * sq;
        if (!(det > 0)) continue;
        float s = (sw * sxq - swx * sq) / det, m = (sqq * swx - sq * sxq) / det;
        if (min_at_most_zero && m > 0) {
            m = 0;
            s = sxq / sqq;
        }
        float error = swxx + s * s * sqq + m * m * sw - 2 * s * sxq - 2 * m * swx + 2 * s * m * sq;
        if (error < best) {
            best = error;
            best_scale = s;
            best_min = m;
        }
    }
    *scale = best_scale;
    *min = best_min;
}

/* q = clamp(round((x - min)·inverse), lo, hi) as bytes. */
TN__INLINE void tn__round_to(int n, const float *x, float min, float inverse, int lo, int hi, int8_t *q) {
    float lo_f = (float)lo, hi_f = (float)hi;
    for (int i = 0; i < n; i += 8) {
        tn__v8 v;
        TN__LOAD(v, x + i);
        v = (v - min) * inverse;
        v = TN__VROUND(v);
        v = TN__VMAX(v, TN__SPLAT(lo_f));
        v = TN__VMIN(v, TN__SPLAT(hi_f));
        tn__v8c k =
            __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(v, tn__v8i), tn__v8s), tn__v8c);
        memcpy(q + i, &k, 8);
    }
}

#endif
