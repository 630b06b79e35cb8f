/* Nearest points of the lattices of the iq types.
 *
 * A vector of eight (or four) values is first rounded to levels, coordinate by coordinate. A table has, for every
 * such combination of levels, the nearest points of the lattice; the nearest one of them to the vector itself, by
 * weighted distance, is the result. The tables are made when they are first used, in static memory. */
#ifndef TN_QUANT_LATTICE_H
#define TN_QUANT_LATTICE_H

#include "quant/quant.h"
#include "quant/search.h"

enum {
    TN__LATTICE_CODES = 6561, /* 3^8; 8^4 = 4096 of four coordinates */
    TN__LATTICE_NEAR = 20,    /* points per combination: more gain less than a thousandth of the error */
    TN__LATTICE_POINTS = 2048
};

typedef struct tn__lattice {
    float level[8];                                     /* ascending, in units of the scale */
    float values[TN__LATTICE_POINTS * 8];               /* of all points, `dims` each */
    uint16_t near[TN__LATTICE_CODES][TN__LATTICE_NEAR]; /* the nearest first */
    uint8_t exact[TN__LATTICE_CODES];                   /* the first one is the combination itself */
} tn__lattice;

enum tn__lattice_kind { TN__IQ2_XXS, TN__IQ2_XS, TN__IQ2_S, TN__IQ1, TN__IQ3_XXS, TN__IQ3_S, TN__LATTICE_KINDS };

/* Callable from any thread. */
const tn__lattice *tn__lattice_get(enum tn__lattice_kind kind);

/* The scale of a block from the sums of w·x·q and w·q²; 0: none. The scale of the least error makes all values
 * smaller by what the error takes of their norm, layer after layer; with so few bits that is up to a tenth. The last
 * one therefore keeps the weighted norm: the error is up to 5 % larger, the divergence of predictions up to 9 %
 * smaller. */
TN__INLINE float tn__lattice_fit(int last, int n, const float *x, const float *w, float xq, float qq) {
    if (!(qq > 0) || !(xq > 0)) return 0;
    float d = xq / qq;
    if (last) {
        float xx = 0;
        for (int i = 0; i < n; i++) xx += w[i] * x[i] * x[i];
        const float kept = __builtin_sqrtf(xx / qq);
        if (kept > d) d = kept < 1.25f * d ? kept : 1.25f * d;
    }
    return tn__f16_to_f32(tn__f32_to_f16(d));
}

/* The point nearest to eight values in units of the scale, by weighted distance; three levels. */
TN__INLINE int tn__lattice_nearest8(const tn__lattice *l, const float *x, const float *w) {
    static const float power[8] = {1, 3, 9, 27, 81, 243, 729, 2187};
    tn__v8 v, u, p;
    TN__LOAD(v, x);
    TN__LOAD(u, w);
    TN__LOAD(p, power);
    const float low = 0.5f * (l->level[0] + l->level[1]), high = 0.5f * (l->level[1] + l->level[2]);
    tn__v8 code = (tn__v8)((tn__v8i)p & (v > TN__SPLAT(low)));
    code += (tn__v8)((tn__v8i)p & (v > TN__SPLAT(high)));
    const int k = (int)TN__VSUM(code);
    const uint16_t *near = l->near[k];
    int best = near[0];
    if (l->exact[k]) return best;
    float least = INFINITY;
    for (int i = 0; i < TN__LATTICE_NEAR; i++) {
        tn__v8 g;
        TN__LOAD(g, l->values + 8 * near[i]);
        g = v - g;
        g = u * g * g;
        float miss = TN__VSUM(g);
        best = miss < least ? near[i] : best;
        least = miss < least ? miss : least;
    }
    return best;
}

/* The same for four values; eight levels, 1, 3, … 15 (the last one may differ a little). */
TN__INLINE int tn__lattice_nearest4(const tn__lattice *l, const float *x, const float *w) {
    int k = 0;
    for (int j = 0; j < 4; j++) k |= (int)tn__clampf(tn__roundf_even(0.5f * (x[j] - 1)), 0, 7) << 3 * j;
    const uint16_t *near = l->near[k];
    int best = near[0];
    if (l->exact[k]) return best;
    tn__v4 v, u;
    memcpy(&v, x, sizeof v);
    memcpy(&u, w, sizeof u);
    float least = INFINITY;
    for (int i = 0; i < TN__LATTICE_NEAR; i++) {
        tn__v4 g;
        memcpy(&g, l->values + 4 * near[i], sizeof g);
        g = v - g;
        g = u * g * g;
        float miss = (g[0] + g[2]) + (g[1] + g[3]);
        best = miss < least ? near[i] : best;
        least = miss < least ? miss : least;
    }
    return best;
}

#endif
