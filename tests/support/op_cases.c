/* Random cases for every op: shapes, types and layouts that its rule accepts. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t pick(rng *r, int64_t low, int64_t high) {
    return low + (int64_t)rng_below(r, (uint64_t)(high - low + 1));
}
static bool chance(rng *r, int percent) { return (int)rng_below(r, 100) < percent; }
static float real(rng *r, float low, float high) { return low + (high - low) * (float)rng_unit(r); }

/* Lengths that meet vector widths, their edges, and more than one piece of a row. */
static int64_t length(rng *r) {
    static const int64_t lengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 255, 256, 300, 1030};
    return lengths[rng_below(r, sizeof lengths / sizeof *lengths)];
}
static void shape(rng *r, int64_t ne[4]) {
    ne[0] = length(r);
    for (int i = 1; i < 4; i++) ne[i] = chance(r, 40) ? 1 : pick(r, 1, 5);
    if (chance(r, 4)) ne[pick(r, 0, 3)] = 0;
}
static tn_type real_type(rng *r) {
    static const tn_type types[] = {TN_F32, TN_F32, TN_F16, TN_BF16};
    return types[rng_below(r, 4)];
}
/* Any type that can be multiplied with; q8_1 and q8_K hold activations only. */
static tn_type weight_type(rng *r) {
    for (;;) {
        tn_type type = (tn_type)rng_below(r, TN_TYPE_LIMIT);
        if (!tn_type_valid(type) || !tn_type_can_read(type) || type == TN_Q8_1 || type == TN_Q8_K) continue;
        if (tn_type_is_quantized(type) || type == TN_F32 || type == TN_F16 || type == TN_BF16) return type;
    }
}

double tolerance_of_type(tn_type type) {
    switch (type) { /* half a step of the format, relative to the largest of a block, and some room for arithmetic */
    case TN_F64: return 1e-12;
    case TN_F32: return 4e-6;
    case TN_F16: return 6e-4;
    case TN_BF16: return 4.5e-3;
    case TN_Q8_0:
    case TN_Q8_1:
    case TN_Q8_K: return 0.006;
    case TN_Q6_K: return 0.03;
    case TN_Q5_0:
    case TN_Q5_1:
    case TN_Q5_K: return 0.066;
    case TN_Q4_0:
    case TN_Q4_1:
    case TN_Q4_K: return 0.13;
    case TN_IQ4_NL:
    case TN_IQ4_XS: return 0.2;
    case TN_Q3_K: return 0.25;
    case TN_MXFP4: /* scales are powers of two: the largest may lie outside the levels */
    case TN_NVFP4: return 0.3;
    case TN_Q2_K: return 0.5;
    case TN_TQ1_0:
    case TN_TQ2_0: return 1.0;
    default: return 0; /* integers */
    }
}

/* ---- Tensors ------------------------------------------------------------------------------------------------- */

/* Blocks of types that cannot be quantized to: random bytes until what they mean is moderate. */
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

/* Good quantizers are slow, so blocks are drawn from a few that are made once per type, always the same. */
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

static void fill(tn_tensor *t, float spread, rng *r) {
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
        int64_t gap = tn_type_block(type) * pick(r, 1, 2);
        outer[0] += gap;
        outer[1] += pick(r, 0, 1);
        t = tn_tensor_new(a, type, 4, outer);
        if (!t) return NULL;
        fill(t, spread, r);
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
        fill(t, spread, r);
        return tn_permute(a, t, order[0], order[1], order[2], order[3]);
    }
    if (layout == 3) {
        outer[0] = ne[1];
        outer[1] = ne[0];
        t = tn_tensor_new(a, type, 4, outer);
        if (!t) return NULL;
        fill(t, spread, r);
        return tn_transpose(a, t);
    }
    t = tn_tensor_new(a, type, 4, ne);
    if (t) fill(t, spread, r);
    return t;
}

static tn_tensor *any_layout(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r) {
    return random_tensor(a, type, ne, (int)rng_below(r, 4), spread, r);
}
/* Rows whose elements are adjacent. */
static tn_tensor *row_layout(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r) {
    return random_tensor(a, type, ne, (int)rng_below(r, 3), spread, r);
}
static tn_tensor *dense(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r) {
    return random_tensor(a, type, ne, 0, spread, r);
}

static tn_tensor *integers(tn_arena *a, tn_type type, const int64_t ne[4], int64_t low, int64_t high, rng *r) {
    tn_tensor *t = tn_tensor_new(a, type, 4, ne);
    if (!t) return NULL;
    for (int64_t i = 0; i < tn_nelements(t); i++) {
        int64_t value = pick(r, low, high);
        if (type == TN_I64)
            ((int64_t *)t->data)[i] = value;
        else
            ((int32_t *)t->data)[i] = (int32_t)value;
    }
    return t;
}

/* Puts a NaN and infinities somewhere into an f32 tensor's root. */
static void make_wild(tn_tensor *t, rng *r) {
    tn_tensor *root = t->view_src ? t->view_src : t;
    if (root->type != TN_F32 || tn_is_empty(root)) return;
    float *values = root->data;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        if (chance(r, 70)) values[rng_below(r, (uint64_t)tn_nelements(root))] = odd[i];
}

static void positive(tn_tensor *t) {
    tn_tensor *root = t->view_src ? t->view_src : t;
    for (int64_t i = 0; i < tn_nelements(root); i++) {
        char *at = (char *)root->data + (size_t)i * root->nb[0];
        float value;
        assert_ok(tn_type_to_f32(root->type, at, &value, 1));
        value = fabsf(value) + 0.01f;
        assert_ok(tn_type_from_f32(root->type, &value, at, 1, NULL));
    }
}

/* ---- Families ------------------------------------------------------------------------------------------------ */

static tn_tensor *unary_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t ne[4];
    shape(r, ne);
    tn_tensor *x =
        any_layout(a, op == TN_OP_DIAG_MASK_INF || op == TN_OP_DIAG_MASK_ZERO ? TN_F32 : real_type(r), ne, 3, r);
    if (op == TN_OP_LOG || op == TN_OP_SQRT) positive(x);
    if (wild) make_wild(x, r);
    switch (op) {
    case TN_OP_SCALE: return tn_scale(a, x, real(r, -3, 3), chance(r, 50) ? real(r, -1, 1) : 0);
    case TN_OP_CLAMP: return tn_clamp(a, x, -1.5f, 2.0f);
    case TN_OP_LEAKY_RELU: return tn_leaky_relu(a, x, 0.1f);
    case TN_OP_DIAG_MASK_INF: return tn_diag_mask_inf(a, x, (int)pick(r, 0, 3));
    case TN_OP_DIAG_MASK_ZERO: return tn_diag_mask_zero(a, x, (int)pick(r, 0, 3));
    default: return tn_unary(a, op, x);
    }
}

static tn_tensor *binary_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t small[4], ne[4];
    shape(r, ne);
    for (int i = 0; i < 4; i++) {
        small[i] = ne[i] && chance(r, 30) ? 1 : ne[i];
        if (ne[i] == small[i] && chance(r, 20)) ne[i] *= 2;
    }
    tn_tensor *x = any_layout(a, real_type(r), ne, 1, r), *y = any_layout(a, real_type(r), small, 1, r);
    if (op == TN_OP_DIV) positive(y);
    if (wild) make_wild(x, r);
    return op == TN_OP_ADD   ? tn_add(a, x, y)
           : op == TN_OP_SUB ? tn_sub(a, x, y)
           : op == TN_OP_MUL ? tn_mul(a, x, y)
                             : tn_div(a, x, y);
}

static tn_tensor *glu_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t ne[4];
    shape(r, ne);
    tn_type type = real_type(r);
    bool halves = chance(r, 40), swapped = chance(r, 50);
    if (halves) ne[0] *= 2;
    tn_tensor *x = row_layout(a, type, ne, 2, r), *y = halves ? NULL : row_layout(a, type, ne, 2, r);
    if (wild) make_wild(x, r);
    if (op == TN_OP_SWIGLU_OAI && y && chance(r, 50)) return tn_swiglu_oai(a, x, y, 1.5f, 2.0f);
    return tn_glu(a, op, x, y, swapped);
}

static bool tn_copy_possible(tn_type from, tn_type to) {
    if (from == to) return true;
    if (!tn_type_can_read(from) || !tn_type_can_write(to)) return false;
    bool a = tn_type_is_quantized(from), b = tn_type_is_quantized(to);
    return !(a && b) && (!a || tn_type_is_float(to)) && (!b || tn_type_is_float(from));
}
static tn_type any_type(rng *r) {
    for (;;) {
        tn_type type = (tn_type)rng_below(r, TN_TYPE_LIMIT);
        if (tn_type_valid(type) && tn_type_can_read(type)) return type;
    }
}

static tn_type plain_type(rng *r) {
    static const tn_type types[] = {TN_F64, TN_F32, TN_F16, TN_BF16, TN_I8, TN_I16, TN_I32, TN_I64};
    return types[rng_below(r, 8)];
}

static float spread_of(tn_type type) { return tn_type_is_float(type) || tn_type_is_quantized(type) ? 1 : 60; }

static tn_tensor *copy_case(tn_arena *a, tn_op op, rng *r) {
    int64_t ne[4];
    tn_type from = any_type(r), to = from;
    if (op == TN_OP_CAST || op == TN_OP_CPY) {
        bool plain = chance(r, 30);
        do {
            if (plain) from = plain_type(r);
            to = plain ? plain_type(r) : chance(r, 30) ? any_type(r) : real_type(r);
        } while (!tn_copy_possible(from, to));
    }
    shape(r, ne);
    int64_t block = tn_type_block(from) > tn_type_block(to) ? tn_type_block(from) : tn_type_block(to);
    if (block > 1) ne[0] = block * pick(r, 1, 5);
    tn_tensor *x = any_layout(a, from, ne, spread_of(from), r);
    if (op == TN_OP_DUP) return tn_dup(a, x);
    if (op == TN_OP_CONT) return tn_cont(a, x);
    if (op == TN_OP_CAST) return tn_cast(a, x, to);
    if (chance(r, 40)) { /* the same elements in another shape */
        int64_t other[4] = {ne[0], ne[1] * ne[2], ne[3], 1};
        if (block == 1 && chance(r, 50)) {
            other[0] = ne[0] * ne[1];
            other[1] = ne[2];
        }
        memcpy(ne, other, sizeof ne);
    }
    return tn_cpy(a, x, any_layout(a, to, ne, 1, r));
}

static tn_tensor *reduce_case(tn_arena *a, tn_op op, rng *r) {
    int64_t ne[4];
    shape(r, ne);
    switch (op) {
    case TN_OP_SUM: return tn_sum(a, any_layout(a, real_type(r), ne, 1, r));
    case TN_OP_SUM_ROWS: return tn_sum_rows(a, any_layout(a, real_type(r), ne, 1, r));
    case TN_OP_MEAN:
        if (ne[0] == 0) ne[0] = 3;
        return tn_mean(a, any_layout(a, real_type(r), ne, 1, r));
    case TN_OP_CUMSUM: return tn_cumsum(a, row_layout(a, TN_F32, ne, 1, r));
    case TN_OP_ARGMAX: {
        if (ne[0] == 0) ne[0] = 3;
        tn_tensor *x = row_layout(a, TN_F32, ne, 1, r);
        make_wild(x, r);
        return tn_argmax(a, x);
    }
    case TN_OP_ARGSORT:
    case TN_OP_TOP_K: {
        if (ne[0] == 0) ne[0] = 3;
        tn_tensor *x = row_layout(a, TN_F32, ne, 1, r), *root = x->view_src ? x->view_src : x;
        for (int64_t i = 0; i < tn_nelements(root); i++) /* many equal ones */
            if (chance(r, 50)) ((float *)root->data)[i] = rintf(((float *)root->data)[i]);
        make_wild(x, r);
        return op == TN_OP_ARGSORT ? tn_argsort(a, x, chance(r, 50)) : tn_top_k(a, x, (int)pick(r, 1, ne[0]));
    }
    case TN_OP_MIX: {
        ne[3] = 1;
        tn_tensor *x = row_layout(a, TN_F32, ne, 1, r);
        return tn_mix(a, x, any_layout(a, TN_F32, (int64_t[]){ne[1], ne[2], 1, 1}, 1, r));
    }
    default: { /* cross entropy */
        for (int i = 0; i < 4; i++) ne[i] = ne[i] ? ne[i] : 2;
        tn_tensor *x = row_layout(a, TN_F32, ne, 3, r), *y = row_layout(a, TN_F32, ne, 1, r);
        positive(y);
        return tn_cross_entropy_loss(a, x, y);
    }
    }
}

static tn_tensor *move_case(tn_arena *a, tn_op op, rng *r) {
    static const tn_type plain[] = {TN_F32, TN_F16, TN_BF16, TN_I8, TN_I16, TN_I32, TN_I64, TN_F64};
    int64_t ne[4], other[4];
    shape(r, ne);
    memcpy(other, ne, sizeof ne);
    tn_type type = plain[rng_below(r, 8)];
    switch (op) {
    case TN_OP_CONCAT: {
        int dim = (int)pick(r, 0, 3);
        other[dim] = pick(r, 0, 5);
        return tn_concat(a, any_layout(a, type, ne, 20, r), any_layout(a, type, other, 20, r), dim);
    }
    case TN_OP_REPEAT:
        for (int i = 0; i < 4; i++) other[i] *= pick(r, 1, 3);
        return tn_repeat(a, any_layout(a, type, ne, 20, r), other);
    case TN_OP_PAD: {
        int32_t before[4], after[4];
        for (int i = 0; i < 4; i++) {
            before[i] = (int32_t)pick(r, 0, 2);
            after[i] = (int32_t)pick(r, 0, 2);
        }
        return tn_pad(a, any_layout(a, TN_F32, ne, 1, r), before, after);
    }
    case TN_OP_ROLL: {
        int32_t shift[4];
        for (int i = 0; i < 4; i++) shift[i] = (int32_t)pick(r, -7, 7);
        return tn_roll(a, any_layout(a, TN_F32, ne, 1, r), shift);
    }
    case TN_OP_ARANGE: {
        float start = real(r, -5, 5), step = chance(r, 50) ? real(r, 0.1f, 1) : -real(r, 0.1f, 1);
        return tn_arange(a, start, start + step * real(r, 1, 500), step);
    }
    case TN_OP_ACC:
    case TN_OP_SET: {
        for (int i = 0; i < 4; i++) other[i] = ne[i] ? pick(r, 1, ne[i]) : 0;
        if (tn_nelements(&(tn_tensor){.ne = {ne[0], ne[1], ne[2], ne[3]}}) == 0) memset(other, 0, sizeof other);
        tn_tensor *x = dense(a, TN_F32, ne, 1, r), *y = any_layout(a, TN_F32, other, 1, r);
        size_t offset = 0;
        for (int i = 0; i < 4; i++)
            offset += x->nb[i] * (size_t)(ne[i] > other[i] ? pick(r, 0, ne[i] - other[i]) : 0);
        if (tn_is_empty(x)) offset = 0;
        return op == TN_OP_ACC ? tn_acc(a, x, y, x->nb[1], x->nb[2], x->nb[3], offset)
                               : tn_set(a, x, y, x->nb[1], x->nb[2], x->nb[3], offset);
    }
    case TN_OP_UPSCALE: {
        bool bilinear = chance(r, 50);
        for (int i = 0; i < 4; i++) {
            ne[i] = pick(r, 1, i ? 5 : 40);
            other[i] = bilinear && i < 2 ? pick(r, 1, 30) : ne[i] * pick(r, 1, 3);
        }
        return tn_upscale(a, any_layout(a, TN_F32, ne, 1, r), other,
                          bilinear ? TN_UPSCALE_BILINEAR : TN_UPSCALE_NEAREST);
    }
    default: { /* timestep embedding */
        tn_tensor *x = dense(a, TN_F32, (int64_t[]){pick(r, 1, 9), 1, 1, 1}, 20, r);
        return tn_timestep_embedding(a, x, (int)pick(r, 2, 65), 10000);
    }
    }
}

static tn_tensor *rows_case(tn_arena *a, tn_op op, rng *r) {
    int64_t ne[4];
    shape(r, ne);
    if (op == TN_OP_ADD_ID) {
        ne[3] = 1;
        int64_t experts = pick(r, 1, 6);
        tn_tensor *x = any_layout(a, TN_F32, ne, 1, r),
                  *y = any_layout(a, TN_F32, (int64_t[]){ne[0], experts, 1, 1}, 1, r);
        /* Strangers among them have no bias. */
        return tn_add_id(a, x, y, integers(a, TN_I32, (int64_t[]){ne[1], ne[2], 1, 1}, -1, experts, r));
    }
    tn_type type = any_type(r);
    while (op == TN_OP_SET_ROWS && !tn_type_can_write(type)) type = any_type(r);
    if (tn_type_is_quantized(type)) ne[0] = tn_type_block(type) * pick(r, 1, 5);
    ne[1] = pick(r, 1, 20);
    if (op == TN_OP_GET_ROWS) {
        tn_tensor *x = row_layout(a, type, ne, spread_of(type), r);
        return tn_get_rows(a, x, integers(a, TN_I32, (int64_t[]){pick(r, 1, 9), ne[2], ne[3], 1}, -1, ne[1] - 1, r));
    }
    int64_t n = pick(r, 1, 2 * ne[1]);
    tn_tensor *x = row_layout(a, type, ne, 1, r),
              *y = row_layout(a, TN_F32, (int64_t[]){ne[0], n, ne[2], ne[3]}, 1, r);
    int64_t index[4] = {n, ne[2] && chance(r, 50) ? 1 : (ne[2] ? ne[2] : 1), ne[3] ? ne[3] : 1, 1};
    tn_tensor *rows = integers(a, chance(r, 50) ? TN_I32 : TN_I64, index, -1, ne[1], r);
    if (chance(r, 50) && n <= ne[1]) /* distinct and ascending, as a cache is written */
        for (int64_t i = 0; i < tn_nelements(rows); i++) {
            if (rows->type == TN_I32)
                ((int32_t *)rows->data)[i] = (int32_t)(i % n);
            else
                ((int64_t *)rows->data)[i] = i % n;
        }
    return tn_set_rows(a, x, y, rows);
}

static tn_tensor *norm_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t ne[4];
    shape(r, ne);
    if (ne[0] == 0) ne[0] = 5;
    if (op == TN_OP_GROUP_NORM) {
        for (int i = 1; i < 4; i++) ne[i] = ne[i] ? ne[i] : 1;
        return tn_group_norm(a, dense(a, TN_F32, ne, 2, r), (int)pick(r, 1, ne[2]), 1e-5f);
    }
    tn_tensor *x = row_layout(a, TN_F32, ne, 2, r);
    if (wild) make_wild(x, r);
    int64_t row[4] = {ne[0], chance(r, 70) ? 1 : ne[1], 1, 1};
    if (ne[1] == 0) row[1] = 0;
    if (ne[2] == 0) row[2] = 0;
    if (ne[3] == 0) row[3] = 0;
    tn_tensor *w = chance(r, 60) ? dense(a, TN_F32, row, 1, r) : NULL;
    if (op == TN_OP_L2_NORM) return tn_l2_norm(a, x, 1e-6f);
    if (op == TN_OP_RMS_NORM) return tn_rms_norm(a, x, w, 1e-5f);
    if (op == TN_OP_NORM) return tn_norm(a, x, w, w && chance(r, 50) ? dense(a, TN_F32, row, 1, r) : NULL, 1e-5f);
    tn_tensor *mask = NULL, *sinks = NULL;
    if (chance(r, 60)) {
        int64_t m[4] = {ne[0], ne[1] + pick(r, 0, 2), ne[2] && chance(r, 50) ? 1 : (ne[2] ? ne[2] : 1),
                        ne[3] && chance(r, 50) ? 1 : (ne[3] ? ne[3] : 1)};
        mask = row_layout(a, chance(r, 50) ? TN_F32 : TN_F16, m, 1, r);
        tn_tensor *root = mask->view_src ? mask->view_src : mask;
        for (int64_t i = 0; i < tn_nelements(root); i++)
            if (chance(r, 30)) {
                float hidden = -INFINITY;
                assert_ok(
                    tn_type_from_f32(root->type, &hidden, (char *)root->data + (size_t)i * root->nb[0], 1, NULL));
            }
    }
    if (chance(r, 30)) sinks = dense(a, TN_F32, (int64_t[]){ne[2], 1, 1, 1}, 1, r);
    return tn_soft_max(a, x, mask, sinks, real(r, 0.1f, 2), mask && chance(r, 40) ? 8 : 0);
}

static tn_tensor *rope_case(tn_arena *a, rng *r) {
    static const int64_t heads[] = {2, 16, 64, 80, 128};
    int64_t head = heads[rng_below(r, 5)], ne[4] = {head, pick(r, 1, 4), pick(r, 1, 7), chance(r, 80) ? 1 : 2};
    tn_rope_mode mode = (tn_rope_mode)rng_below(r, 4);
    int32_t dims = (int32_t)(mode == TN_ROPE_VISION ? head / 2 : chance(r, 60) ? head : 2 * pick(r, 1, head / 2));
    if (dims % 2) mode = TN_ROPE_NEOX, dims = 2;
    tn_rope_params p = tn_rope_params_default(dims, mode);
    bool multi = mode == TN_ROPE_MULTI || mode == TN_ROPE_VISION;
    if (multi)
        for (int i = 0; i < 4; i++) p.sections[i] = (int32_t)pick(r, i == 0, dims / 4 + 1);
    if (chance(r, 30)) p.base = 500000;
    if (chance(r, 30)) p.freq_scale = 0.25f;
    if (chance(r, 40)) {
        p.ext_factor = 1;
        p.n_ctx_orig = 4096;
        p.attn_factor = 1.1f;
    }
    p.reverse = chance(r, 20);
    int64_t n_pos[4] = {ne[2] * (multi ? 4 : 1), 1, 1, 1};
    tn_tensor *factors = NULL;
    if (chance(r, 40)) {
        factors = dense(a, TN_F32, (int64_t[]){mode == TN_ROPE_VISION ? dims : dims / 2, 1, 1, 1}, 1, r);
        positive(factors);
    }
    tn_tensor *x = row_layout(a, chance(r, 70) ? TN_F32 : TN_F16, ne, 1, r);
    return tn_rope(a, x, integers(a, TN_I32, n_pos, 0, chance(r, 50) ? 50 : 30000, r), factors, &p);
}

/* Some experts get no token, and some tokens name one twice, or one that is not there. */
static tn_tensor *experts_node(tn_arena *a, tn_tensor *x, const expert_shape *e, int layout, rng *r) {
    tn_tensor *y =
        random_tensor(a, TN_F32, (int64_t[]){e->k, e->same_input ? 1 : e->used, e->tokens, 1}, layout, 1, r);
    int64_t last = chance(r, 30) ? pick(r, 0, e->experts - 1) : e->experts - 1;
    tn_tensor *ids = integers(a, TN_I32, (int64_t[]){e->used, e->tokens, 1, 1}, 0, last, r);
    static const int32_t strangers[] = {-1, INT32_MIN, INT32_MAX};
    for (int64_t i = 0; ids && i < tn_nelements(ids) && last < e->experts - 1; i++)
        if (chance(r, 10))
            ((int32_t *)ids->data)[i] = chance(r, 25) ? (int32_t)e->experts : strangers[rng_below(r, 3)];
    return tn_mul_mat_id(a, x, y, ids);
}
tn_tensor *experts_case(tn_arena *a, tn_type type, const expert_shape *e, rng *r) {
    return experts_node(a, dense(a, type, (int64_t[]){e->k, e->m, e->experts, 1}, 1, r), e, 0, r);
}

static tn_tensor *matmul_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    static const int64_t counts[] = {1, 1, 2, 3, 4, 5, 8, 13, 16, 17, 33, 40, 61};
    tn_type type = weight_type(r);
    int64_t block = tn_type_block(type), k = block > 1 ? block * pick(r, 1, 1 + 512 / block) : length(r);
    int64_t m = chance(r, 30) ? pick(r, 60, 90) : counts[rng_below(r, 13)], n = counts[rng_below(r, 13)];
    if (op == TN_OP_OUT_PROD) {
        int64_t x2 = pick(r, 1, 2), x3 = pick(r, 1, 2);
        int64_t k1 = pick(r, 0, 20);
        tn_tensor *x = any_layout(a, TN_F32, (int64_t[]){m, k1, x2, x3}, 1, r);
        return tn_out_prod(a, x, any_layout(a, TN_F32, (int64_t[]){n, k1, x2 * pick(r, 1, 2), x3}, 1, r));
    }
    if (op == TN_OP_MUL_MAT_ID) {
        expert_shape e = {k, m, pick(r, 1, 9), 0, pick(r, 1, chance(r, 50) ? 8 : 40), chance(r, 50)};
        e.used = pick(r, 1, e.experts > 4 ? 4 : e.experts);
        tn_tensor *x = row_layout(a, type, (int64_t[]){k, m, e.experts, 1}, 1, r);
        return experts_node(a, x, &e, (int)rng_below(r, 3), r);
    }
    if (chance(r, 3) && block == 1) k = 0;
    int64_t x2 = chance(r, 70) ? 1 : 2, x3 = chance(r, 70) ? 1 : 2;
    tn_tensor *x = row_layout(a, type, (int64_t[]){k, m, x2, x3}, 1, r);
    tn_tensor *y = row_layout(a, chance(r, 80) ? TN_F32 : real_type(r),
                              (int64_t[]){k, n, x2 * (chance(r, 70) ? 1 : 3), x3 * (chance(r, 70) ? 1 : 2)}, 1, r);
    if (wild) make_wild(y, r);
    return chance(r, 30) ? tn_mul_mat_precise(a, x, y) : tn_mul_mat(a, x, y);
}

static tn_tensor *conv_case(tn_arena *a, tn_op op, rng *r) {
    bool flat = op == TN_OP_CONV_1D || op == TN_OP_CONV_TRANSPOSE_1D || op == TN_OP_POOL_1D;
    tn_conv_params p = tn_conv_params_default();
    for (int i = 0; i < 2; i++) {
        p.stride[i] = (int32_t)pick(r, 1, 3);
        p.pad[i] = (int32_t)pick(r, 0, 2);
        p.dilation[i] = (int32_t)pick(r, 1, 2);
    }
    int64_t kw = pick(r, 1, 4), kh = pick(r, 1, 3), w = pick(r, 8, 20), h = pick(r, 6, 9), batch = pick(r, 1, 2);
    tn_type type = chance(r, 50) ? TN_F32 : TN_F16;
    if (op == TN_OP_POOL_1D || op == TN_OP_POOL_2D) {
        tn_pool_params q = {.kind = chance(r, 50) ? TN_POOL_MAX : TN_POOL_AVG};
        for (int i = 0; i < 2; i++) {
            q.kernel[i] = (int32_t)pick(r, 1, 3);
            q.stride[i] = (int32_t)pick(r, 1, 3);
            q.pad[i] = (int32_t)pick(r, 0, q.kernel[i] - 1);
        }
        tn_tensor *x = any_layout(a, TN_F32, (int64_t[]){w, h, pick(r, 1, 3), batch}, 1, r);
        return flat ? tn_pool_1d(a, x, &q) : tn_pool_2d(a, x, &q);
    }
    if (op == TN_OP_CONV_TRANSPOSE_1D || op == TN_OP_CONV_TRANSPOSE_2D) {
        int64_t in = pick(r, 1, 4), out = pick(r, 1, 4);
        tn_tensor *kernel = dense(a, type, flat ? (int64_t[]){kw, out, in, 1} : (int64_t[]){kw, kh, out, in}, 1, r);
        tn_tensor *x =
            any_layout(a, TN_F32, flat ? (int64_t[]){w, in, batch, 1} : (int64_t[]){w, h, in, batch}, 1, r);
        return flat ? tn_conv_transpose_1d(a, kernel, x, p.stride[0])
                    : tn_conv_transpose_2d(a, kernel, x, p.stride[0]);
    }
    if (op == TN_OP_IM2COL) {
        int64_t in = pick(r, 1, 4);
        p.is_2d = chance(r, 50);
        int64_t k[4] = {kw, p.is_2d ? kh : in, p.is_2d ? in : 2, p.is_2d ? 2 : 1};
        int64_t x[4] = {w, p.is_2d ? h : in, p.is_2d ? in : batch, p.is_2d ? batch : 1};
        tn_tensor *kernel = dense(a, type, k, 1, r);
        return tn_im2col(a, kernel, any_layout(a, TN_F32, x, 1, r), &p, type);
    }
    int64_t groups = pick(r, 1, 3), in = pick(r, 1, 3), out = groups * pick(r, 1, 3);
    if (chance(r, 30)) { /* depth-wise */
        in = 1;
        groups = out = pick(r, 1, 5);
    }
    p.groups = (int32_t)groups;
    tn_tensor *kernel = dense(a, type, flat ? (int64_t[]){kw, in, out, 1} : (int64_t[]){kw, kh, in, out}, 1, r);
    int64_t channels = in * groups;
    tn_tensor *x =
        any_layout(a, TN_F32, flat ? (int64_t[]){w, channels, batch, 1} : (int64_t[]){w, h, channels, batch}, 1, r);
    return flat ? tn_conv_1d(a, kernel, x, &p) : tn_conv_2d(a, kernel, x, &p);
}

/* A cache shared by a few sequences, partly empty, positions in no order. */
static void random_cache(tn_arena *a, tn_attention_sources *s, int64_t tokens, int64_t cells, rng *r) {
    int64_t words = pick(r, 1, 2), sequences = pick(r, 1, 32 * words);
    if (sequences > 5 && chance(r, 70)) sequences = pick(r, 1, 5);
    s->q_pos = integers(a, TN_I32, (int64_t[]){2, tokens, 1, 1}, 0, cells, r);
    s->k_pos = integers(a, TN_I32, (int64_t[]){1 + words, cells, 1, 1}, 0, cells, r);
    s->range = integers(a, TN_I32, (int64_t[]){2, 1, 1, 1}, 0, 0, r);
    int32_t *q = s->q_pos->data, *k = s->k_pos->data, *range = s->range->data;
    bool one_run = chance(r, 50); /* consecutive positions of one sequence, as in a prompt */
    for (int64_t t = 0; t < tokens; t++) {
        q[2 * t + 1] = (int32_t)(one_run ? 0 : pick(r, 0, sequences - 1));
        if (one_run) q[2 * t] = (int32_t)(cells - tokens + t > 0 ? cells - tokens + t : t);
        if (chance(r, 5)) q[2 * t + 1] = -1;
        if (chance(r, 5)) q[2 * t + 1] = (int32_t)pick(r, 32 * words, 100 * words); /* nobody's: it sees nothing */
    }
    for (int64_t c = 0; c < cells; c++) {
        int32_t *cell = k + c * (1 + words);
        if (one_run && chance(r, 90)) cell[0] = (int32_t)c;
        if (chance(r, 10)) cell[0] = -1;
        for (int64_t w = 0; w < words; w++) cell[1 + w] = 0;
        for (int64_t i = 0, n = chance(r, 70) ? 1 : 3; i < n; i++) {
            int64_t sequence = one_run && chance(r, 80) ? 0 : pick(r, 0, sequences - 1);
            cell[1 + sequence / 32] |= (int32_t)((uint32_t)1 << (sequence % 32));
        }
    }
    range[0] = chance(r, 50) ? 0 : (int32_t)pick(r, 0, cells / 4);
    range[1] = chance(r, 50) ? (int32_t)cells : (int32_t)pick(r, cells / 2, cells);
}

/* What a model may do to scores. */
static tn_attention_params attention_params(int64_t head, int64_t cells, rng *r) {
    tn_attention_params p = {.scale = 1 / sqrtf((float)head), .causal = chance(r, 70)};
    if (chance(r, 20)) p.soft_cap = 2;
    if (chance(r, 20)) p.max_bias = 8;
    if (chance(r, 25)) p.window = (int32_t)pick(r, 1, cells);
    if (chance(r, 15)) p.chunk = (int32_t)pick(r, 1, cells);
    return p;
}

static tn_tensor *attention_case(tn_arena *a, rng *r) {
    static const tn_type cache_types[] = {TN_F32, TN_F16, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_0, TN_Q5_1};
    static const int64_t heads[] = {32, 64, 80, 96, 128, 256, 4, 40};
    tn_type kt = cache_types[rng_below(r, 7)], vt = chance(r, 70) ? kt : cache_types[rng_below(r, 7)];
    int64_t dk = heads[rng_below(r, 8)], dv = chance(r, 80) ? dk : heads[rng_below(r, 8)];
    if (tn_type_is_quantized(kt)) dk = 32 * pick(r, 1, 4);
    if (tn_type_is_quantized(vt)) dv = 32 * pick(r, 1, 4);
    int64_t kv = pick(r, 1, 3), group = pick(r, 1, 4), tokens = chance(r, 40) ? 1 : pick(r, 1, 40);
    int64_t cells = chance(r, 15) ? pick(r, 500, 1500) : pick(r, 1, 150);
    if (cells > 400 && tokens > 4) tokens = 4;
    bool cached = chance(r, 60);
    int64_t batch = cached || chance(r, 70) ? 1 : 2;
    tn_attention_sources s = {0};
    s.q = row_layout(a, TN_F32, (int64_t[]){dk, kv * group, tokens, batch}, 1, r);
    s.k = row_layout(a, kt, (int64_t[]){dk, kv, cells, batch}, 1, r);
    s.v = row_layout(a, vt, (int64_t[]){dv, kv, cells, batch}, 1, r);
    if (cached) random_cache(a, &s, tokens, cells, r);
    if (chance(r, 20)) {
        int64_t m[4] = {cells, tokens + pick(r, 0, 2), chance(r, 50) ? 1 : kv * group, chance(r, 50) ? 1 : batch};
        s.mask = row_layout(a, chance(r, 50) ? TN_F32 : TN_F16, m, 1, r);
    }
    if (chance(r, 20)) s.sinks = dense(a, TN_F32, (int64_t[]){kv * group, 1, 1, 1}, 1, r);
    tn_attention_params p = attention_params(dk, cells, r);
    return tn_attention(a, &s, &p);
}

/* Every size of heads × every type of cache × few and many tokens; what else there is takes turns. */
tn_tensor *cache_case(tn_arena *a, int i, rng *r) {
    static const int64_t sizes[][2] = {{64, 64},   {80, 80},   {96, 96},   {112, 112}, {128, 128},
                                       {192, 192}, {256, 256}, {192, 128}, {40, 72}};
    static const tn_type types[][2] = {{TN_F16, TN_F16},   {TN_BF16, TN_BF16}, {TN_F32, TN_F32},
                                       {TN_Q8_0, TN_Q8_0}, {TN_Q4_0, TN_Q4_0}, {TN_F16, TN_Q8_0}};
    static const int64_t groups[] = {1, 8, 4, 3, 2, 16, 5};
    enum { SIZES = sizeof sizes / sizeof *sizes, TYPES = sizeof types / sizeof *types };
    if (i >= 3 * SIZES * TYPES) return NULL;
    tn_type kt = types[i / SIZES % TYPES][0], vt = types[i / SIZES % TYPES][1];
    int64_t dk = sizes[i % SIZES][0], dv = sizes[i % SIZES][1], group = groups[i % 7], kv = pick(r, 1, 2), tokens = 1,
            cells = pick(r, 100, 600);
    if (tn_type_is_quantized(kt)) dk = (dk + 31) / 32 * 32;
    if (tn_type_is_quantized(vt)) dv = (dv + 31) / 32 * 32;
    switch (i / SIZES / TYPES) {
    case 1: tokens = pick(r, 2, 8); break;
    case 2: /* more than a tile of queries */
        tokens = pick(r, 65, 80);
        cells = pick(r, 90, 200);
        if (group > 4) kv = 1;
        break;
    }
    if (i / SIZES / TYPES == 1 && i % SIZES == 0) { /* shares of the cache that are longer than a tile */
        tokens = kv = 8;
        group = 1;
        cells = 2600;
    }
    tn_attention_sources s = {0};
    s.q = dense(a, TN_F32, (int64_t[]){dk, kv * group, tokens, 1}, 1, r);
    s.k = dense(a, kt, (int64_t[]){dk, kv, cells, 1}, 1, r);
    s.v = dense(a, vt, (int64_t[]){dv, kv, cells, 1}, 1, r);
    if (chance(r, 80)) random_cache(a, &s, tokens, cells, r);
    if (chance(r, 25)) s.sinks = dense(a, TN_F32, (int64_t[]){kv * group, 1, 1, 1}, 1, r);
    tn_attention_params p = attention_params(dk, cells, r);
    return tn_attention(a, &s, &p);
}

static void custom_sum(const tn_custom_job *job) {
    const tn_tensor *x = job->result->src[0];
    for (int64_t i = job->ith; i < tn_nelements(x); i += job->nth)
        ((float *)job->result->data)[i] = ((const float *)x->data)[i];
}
static tn_tensor *custom_case(tn_arena *a, rng *r) {
    int64_t ne[4];
    shape(r, ne);
    tn_tensor *x = dense(a, TN_F32, ne, 1, r);
    return tn_custom(a, TN_F32, 4, ne, &x, 1, custom_sum, NULL, (int)pick(r, 0, 3));
}

tn_tensor *random_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    if (op == TN_OP_MIX || op == TN_OP_CROSS_ENTROPY_LOSS) return reduce_case(a, op, r);
    switch (tn_op_get_family(op)) {
    case TN_FAMILY_UNARY: return unary_case(a, op, r, wild);
    case TN_FAMILY_BINARY: return binary_case(a, op, r, wild);
    case TN_FAMILY_GLU: return glu_case(a, op, r, wild);
    case TN_FAMILY_COPY: return copy_case(a, op, r);
    case TN_FAMILY_REDUCE: return reduce_case(a, op, r);
    case TN_FAMILY_MOVE: return move_case(a, op, r);
    case TN_FAMILY_ROWS: return rows_case(a, op, r);
    case TN_FAMILY_NORM: return norm_case(a, op, r, wild);
    case TN_FAMILY_ROPE: return rope_case(a, r);
    case TN_FAMILY_MATMUL: return matmul_case(a, op, r, wild);
    case TN_FAMILY_CONV: return conv_case(a, op, r);
    case TN_FAMILY_ATTENTION: return attention_case(a, r);
    case TN_FAMILY_CUSTOM: return custom_case(a, r);
    default: return NULL;
    }
}
