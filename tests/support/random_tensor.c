/* Random shapes, types and tensors for tests of ops. */
#include "random_tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t pick_int(rng *r, int64_t low, int64_t high) {
    return low + (int64_t)rng_below(r, (uint64_t)(high - low + 1));
}
bool chance(rng *r, int percent) { return (int)rng_below(r, 100) < percent; }
float pick_real(rng *r, float low, float high) { return low + (high - low) * (float)rng_unit(r); }

int64_t pick_length(rng *r) {
    static const int64_t lengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 255, 256, 300, 1030};
    return lengths[rng_below(r, sizeof lengths / sizeof *lengths)];
}
void pick_shape(rng *r, int64_t ne[4]) {
    ne[0] = pick_length(r);
    for (int i = 1; i < 4; i++) ne[i] = chance(r, 40) ? 1 : pick_int(r, 1, 5);
    if (chance(r, 4)) ne[pick_int(r, 0, 3)] = 0;
}
tn_type pick_float_type(rng *r) {
    static const tn_type types[] = {TN_F32, TN_F32, TN_F16, TN_BF16};
    return types[rng_below(r, 4)];
}
tn_type pick_weight_type(rng *r) {
    for (;;) {
        tn_type type = (tn_type)rng_below(r, TN_TYPE_LIMIT);
        if (!tn_type_valid(type) || !tn_type_can_read(type) || type == TN_Q8_1 || type == TN_Q8_K) continue;
        if (tn_type_is_quantized(type) || type == TN_F32 || type == TN_F16 || type == TN_BF16) return type;
    }
}

/* A block of a type without quantization: draws random bytes until the values are moderate. */
static void fill_block(tn_type type, unsigned char *at, float spread, rng *r) {
    float values[256];
    for (int attempt = 0; attempt < 10000; attempt++) {
        for (size_t i = 0; i < tn_type_bytes(type); i++) at[i] = (unsigned char)rng_next(r);
        assert_ok(tn_type_to_f32(type, at, values, tn_type_block(type)));
        float most = 0;
        bool finite = true;
        for (int64_t i = 0; i < tn_type_block(type); i++) {
            finite = finite && isfinite(values[i]);
            most = fmaxf(most, fabsf(values[i]));
        }
        if (finite && most > 0.01f * spread && most < 10 * spread) return;
    }
    fail_msg("no sensible random block of %s", tn_type_name(type));
}

/* Careful quantization is slow, so blocks are drawn from a fixed set per type. */
enum { BLOCKS = 64 };
static const unsigned char *blocks_of(tn_type type) {
    static unsigned char *made[TN_TYPE_LIMIT];
    if (made[type]) return made[type];
    rng r = {(uint64_t)type + 1};
    size_t bytes = tn_type_bytes(type);
    unsigned char *blocks = made[type] = malloc(BLOCKS * bytes);
    for (int b = 0; b < BLOCKS; b++) {
        float values[256];
        for (int64_t i = 0; i < tn_type_block(type); i++) values[i] = rng_normal(&r);
        if (tn_type_can_write(type))
            assert_ok(tn_type_from_f32(type, values, blocks + (size_t)b * bytes, tn_type_block(type), NULL));
        else
            fill_block(type, blocks + (size_t)b * bytes, 1, &r);
    }
    return blocks;
}

static void fill_random(tn_tensor *t, float spread, rng *r) {
    int64_t n = tn_nelements(t), block = tn_type_block(t->type);
    size_t bytes = tn_type_bytes(t->type);
    unsigned char *at = t->data;
    if (block > 1) {
        const unsigned char *blocks = blocks_of(t->type);
        for (int64_t i = 0; i < n; i += block, at += bytes) memcpy(at, blocks + rng_below(r, BLOCKS) * bytes, bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++, at += bytes) {
        float value = rng_normal(r) * spread;
        assert_ok(tn_type_from_f32(t->type, &value, at, 1, NULL));
    }
}

tn_tensor *random_tensor(tn_arena *a, tn_type type, const int64_t ne[4], int layout, float spread, rng *r) {
    if (tn_type_is_quantized(type) && layout == 3) layout = 1;
    int64_t outer[4];
    memcpy(outer, ne, sizeof outer);
    tn_tensor *t;
    if (layout == 1) {
        int64_t gap = tn_type_block(type) * pick_int(r, 1, 2);
        outer[0] += gap;
        outer[1] += pick_int(r, 0, 1);
        t = tn_tensor_new(a, type, 4, outer);
        if (!t) return NULL;
        fill_random(t, spread, r);
        size_t start =
            chance(r, 50) && !tn_is_empty(t) ? tn_type_bytes(type) * (size_t)(gap / tn_type_block(type)) : 0;
        return tn_view(a, t, 4, ne, t->nb, start);
    }
    if (layout == 2) {
        static const int orders[][4] = {{0, 2, 1, 3}, {0, 1, 3, 2}, {0, 3, 2, 1}, {0, 2, 3, 1}};
        const int *order = orders[rng_below(r, 4)];
        for (int i = 0; i < 4; i++) outer[i] = ne[order[i]];
        t = tn_tensor_new(a, type, 4, outer);
        if (!t) return NULL;
        fill_random(t, spread, r);
        return tn_permute(a, t, order[0], order[1], order[2], order[3]);
    }
    if (layout == 3) {
        outer[0] = ne[1];
        outer[1] = ne[0];
        t = tn_tensor_new(a, type, 4, outer);
        if (!t) return NULL;
        fill_random(t, spread, r);
        return tn_transpose(a, t);
    }
    t = tn_tensor_new(a, type, 4, ne);
    if (t) fill_random(t, spread, r);
    return t;
}

tn_tensor *tensor_of_any_layout(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r) {
    return random_tensor(a, type, ne, (int)rng_below(r, 4), spread, r);
}
tn_tensor *tensor_of_rows(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r) {
    return random_tensor(a, type, ne, (int)rng_below(r, 3), spread, r);
}
tn_tensor *dense_tensor(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r) {
    return random_tensor(a, type, ne, 0, spread, r);
}

tn_tensor *integer_tensor(tn_arena *a, tn_type type, const int64_t ne[4], int64_t low, int64_t high, rng *r) {
    tn_tensor *t = tn_tensor_new(a, type, 4, ne);
    if (!t) return NULL;
    for (int64_t i = 0; i < tn_nelements(t); i++) {
        int64_t value = pick_int(r, low, high);
        if (type == TN_I64)
            ((int64_t *)t->data)[i] = value;
        else
            ((int32_t *)t->data)[i] = (int32_t)value;
    }
    return t;
}

void add_nan_and_infinities(tn_tensor *t, rng *r) {
    tn_tensor *root = t->view_src ? t->view_src : t;
    if (root->type != TN_F32 || tn_is_empty(root)) return;
    float *values = root->data;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        if (chance(r, 70)) values[rng_below(r, (uint64_t)tn_nelements(root))] = odd[i];
}

void make_positive(tn_tensor *t) {
    tn_tensor *root = t->view_src ? t->view_src : t;
    for (int64_t i = 0; i < tn_nelements(root); i++) {
        char *at = (char *)root->data + (size_t)i * root->nb[0];
        float value;
        assert_ok(tn_type_to_f32(root->type, at, &value, 1));
        value = fabsf(value) + 0.01f;
        assert_ok(tn_type_from_f32(root->type, &value, at, 1, NULL));
    }
}
