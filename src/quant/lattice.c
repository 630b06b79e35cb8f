/* Tables of nearest lattice points, made when a quantizer first needs them. */
#include "quant/lattice.h"

#include <pthread.h>

static const struct lattice_shape {
    const uint16_t *points;
    int count, dims, bits, levels;
    float level[8];
} shapes[TN__LATTICE_KINDS] = {
    [TN__IQ2_XXS] = {tn__iq2_xxs_lattice, 256, 8, 2, 3, {1, 25 / 8.0f, 43 / 8.0f}},
    [TN__IQ2_XS] = {tn__iq2_xs_lattice, 512, 8, 2, 3, {1, 25 / 8.0f, 43 / 8.0f}},
    [TN__IQ2_S] = {tn__iq2_s_lattice, 1024, 8, 2, 3, {1, 25 / 8.0f, 43 / 8.0f}},
    [TN__IQ1] = {tn__iq1_s_lattice, 2048, 8, 2, 3, {-1, 0, 1}},
    [TN__IQ3_XXS] = {tn__iq3_xxs_lattice, 256, 4, 3, 8, {1, 3, 5, 7, 9, 11, 13, 15.5f}},
    [TN__IQ3_S] = {tn__iq3_s_lattice, 512, 4, 3, 8, {1, 3, 5, 7, 9, 11, 13, 15}},
};
static tn__lattice lattices[TN__LATTICE_KINDS];
static pthread_once_t made[TN__LATTICE_KINDS] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT,
                                                 PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};

/* Keeps the nearest points in order of distance; those of equal distance in the order of the lattice. */
static void insert_near(uint16_t *near, float *distance, int point, float d) {
    int at = TN__LATTICE_NEAR - 1;
    if (!(d < distance[at])) return;
    for (; at > 0 && d < distance[at - 1]; at--) {
        distance[at] = distance[at - 1];
        near[at] = near[at - 1];
    }
    distance[at] = d;
    near[at] = (uint16_t)point;
}

static void make_lattice(enum tn__lattice_kind kind) {
    const struct lattice_shape *s = &shapes[kind];
    tn__lattice *l = &lattices[kind];
    memcpy(l->level, s->level, sizeof l->level);
    for (int i = 0; i < s->count; i++)
        for (int j = 0; j < s->dims; j++)
            l->values[i * s->dims + j] = s->level[s->points[i] >> s->bits * j & ((1 << s->bits) - 1)];
    const int codes = s->dims == 8 ? 6561 : 4096;
    for (int code = 0; code < codes; code++) {
        float x[8], distance[TN__LATTICE_NEAR];
        for (int j = 0, rest = code; j < s->dims; j++, rest /= s->levels) x[j] = s->level[rest % s->levels];
        for (int i = 0; i < TN__LATTICE_NEAR; i++) distance[i] = INFINITY;
        for (int i = 0; i < s->count; i++) {
            float d = 0;
            for (int j = 0; j < s->dims; j++) {
                const float miss = x[j] - l->values[i * s->dims + j];
                d += miss * miss;
            }
            insert_near(l->near[code], distance, i, d);
        }
        l->exact[code] = distance[0] == 0;
    }
}

#define MAKER(kind)                                                                                                  \
    static void make_##kind(void) { make_lattice(kind); }
MAKER(TN__IQ2_XXS)
MAKER(TN__IQ2_XS)
MAKER(TN__IQ2_S)
MAKER(TN__IQ1)
MAKER(TN__IQ3_XXS)
MAKER(TN__IQ3_S)
#undef MAKER

const tn__lattice *tn__lattice_get(enum tn__lattice_kind kind) {
    static void (*const makers[TN__LATTICE_KINDS])(void) = {
        [TN__IQ2_XXS] = make_TN__IQ2_XXS, [TN__IQ2_XS] = make_TN__IQ2_XS,   [TN__IQ2_S] = make_TN__IQ2_S,
        [TN__IQ1] = make_TN__IQ1,         [TN__IQ3_XXS] = make_TN__IQ3_XXS, [TN__IQ3_S] = make_TN__IQ3_S};
    pthread_once(&made[kind], makers[kind]);
    return &lattices[kind];
}
