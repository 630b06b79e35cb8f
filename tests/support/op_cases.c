/* Random cases for every op: shapes, types and layouts that its rule accepts. */
#include "random_tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double tolerance_of_type(tn_type type) {
    switch (type) { /* half a step of the format, relative to the largest value of a block, plus rounding errors */
    case TN_F64: return 1e-12;
    case TN_F32: return 4e-6;
    case TN_F16: return 6e-4;
    case TN_BF16: return 4.5e-3;
    case TN_FP8: return 0.0626;
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
    case TN_MXFP4: /* scales are powers of two: the largest value may be outside the levels */
    case TN_NVFP4: return 0.3;
    case TN_Q2_K: return 0.5;
    case TN_IQ3_S:
    case TN_IQ3_XXS: return 0.6;
    case TN_IQ2_S:
    case TN_IQ2_XS:
    case TN_IQ2_XXS:
    case TN_IQ1_M:
    case TN_IQ1_S:
    case TN_TQ1_0:
    case TN_TQ2_0: return 1.0;
    default: return 0; /* integers */
    }
}

/* ---- Families ---- */

static tn_tensor *unary_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t ne[4];
    pick_shape(r, ne);
    tn_tensor *x = tensor_of_any_layout(
        a, op == TN_OP_DIAG_MASK_INF || op == TN_OP_DIAG_MASK_ZERO ? TN_F32 : pick_float_type(r), ne, 3, r);
    if (op == TN_OP_LOG || op == TN_OP_SQRT) make_positive(x);
    if (wild) add_nan_and_infinities(x, r);
    switch (op) {
    case TN_OP_SCALE: return tn_scale(a, x, pick_real(r, -3, 3), chance(r, 50) ? pick_real(r, -1, 1) : 0);
    case TN_OP_CLAMP: return tn_clamp(a, x, -1.5f, 2.0f);
    case TN_OP_LEAKY_RELU: return tn_leaky_relu(a, x, 0.1f);
    case TN_OP_DIAG_MASK_INF: return tn_diag_mask_inf(a, x, (int)pick_int(r, 0, 3));
    case TN_OP_DIAG_MASK_ZERO: return tn_diag_mask_zero(a, x, (int)pick_int(r, 0, 3));
    default: return tn_unary(a, op, x);
    }
}

static tn_tensor *binary_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t small[4], ne[4];
    pick_shape(r, ne);
    for (int i = 0; i < 4; i++) {
        small[i] = ne[i] && chance(r, 30) ? 1 : ne[i];
        if (ne[i] == small[i] && chance(r, 20)) ne[i] *= 2;
    }
    tn_tensor *x = tensor_of_any_layout(a, pick_float_type(r), ne, 1, r),
              *y = tensor_of_any_layout(a, pick_float_type(r), small, 1, r);
    if (op == TN_OP_DIV) make_positive(y);
    if (wild) add_nan_and_infinities(x, r);
    return op == TN_OP_ADD   ? tn_add(a, x, y)
           : op == TN_OP_SUB ? tn_sub(a, x, y)
           : op == TN_OP_MUL ? tn_mul(a, x, y)
                             : tn_div(a, x, y);
}

static tn_tensor *glu_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    int64_t ne[4];
    pick_shape(r, ne);
    tn_type type = pick_float_type(r);
    bool halves = chance(r, 40), swapped = chance(r, 50);
    if (halves) ne[0] *= 2;
    tn_tensor *x = tensor_of_rows(a, type, ne, 2, r), *y = halves ? NULL : tensor_of_rows(a, type, ne, 2, r);
    if (wild) add_nan_and_infinities(x, r);
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
            to = plain ? plain_type(r) : chance(r, 30) ? any_type(r) : pick_float_type(r);
        } while (!tn_copy_possible(from, to));
    }
    pick_shape(r, ne);
    int64_t block = tn_type_block(from) > tn_type_block(to) ? tn_type_block(from) : tn_type_block(to);
    if (block > 1) ne[0] = block * pick_int(r, 1, 5);
    tn_tensor *x = tensor_of_any_layout(a, from, ne, spread_of(from), r);
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
    return tn_cpy(a, x, tensor_of_any_layout(a, to, ne, 1, r));
}

static tn_tensor *reduce_case(tn_arena *a, tn_op op, rng *r) {
    int64_t ne[4];
    pick_shape(r, ne);
    switch (op) {
    case TN_OP_SUM: return tn_sum(a, tensor_of_any_layout(a, pick_float_type(r), ne, 1, r));
    case TN_OP_SUM_ROWS: return tn_sum_rows(a, tensor_of_any_layout(a, pick_float_type(r), ne, 1, r));
    case TN_OP_MEAN:
        if (ne[0] == 0) ne[0] = 3;
        return tn_mean(a, tensor_of_any_layout(a, pick_float_type(r), ne, 1, r));
    case TN_OP_CUMSUM: return tn_cumsum(a, tensor_of_rows(a, TN_F32, ne, 1, r));
    case TN_OP_ARGMAX: {
        if (ne[0] == 0) ne[0] = 3;
        tn_tensor *x = tensor_of_rows(a, TN_F32, ne, 1, r);
        add_nan_and_infinities(x, r);
        return tn_argmax(a, x);
    }
    case TN_OP_ARGSORT:
    case TN_OP_TOP_K: {
        if (ne[0] == 0) ne[0] = 3;
        tn_tensor *x = tensor_of_rows(a, TN_F32, ne, 1, r), *root = x->view_src ? x->view_src : x;
        for (int64_t i = 0; i < tn_nelements(root); i++) /* many equal values */
            if (chance(r, 50)) ((float *)root->data)[i] = rintf(((float *)root->data)[i]);
        add_nan_and_infinities(x, r);
        return op == TN_OP_ARGSORT ? tn_argsort(a, x, chance(r, 50)) : tn_top_k(a, x, (int)pick_int(r, 1, ne[0]));
    }
    case TN_OP_MIX: {
        ne[3] = 1;
        tn_tensor *x = tensor_of_rows(a, TN_F32, ne, 1, r);
        return tn_mix(a, x, tensor_of_any_layout(a, TN_F32, (int64_t[]){ne[1], ne[2], 1, 1}, 1, r));
    }
    default: { /* cross entropy */
        for (int i = 0; i < 4; i++) ne[i] = ne[i] ? ne[i] : 2;
        tn_tensor *x = tensor_of_rows(a, TN_F32, ne, 3, r), *y = tensor_of_rows(a, TN_F32, ne, 1, r);
        make_positive(y);
        return tn_cross_entropy_loss(a, x, y);
    }
    }
}

static tn_tensor *move_case(tn_arena *a, tn_op op, rng *r) {
    static const tn_type plain[] = {TN_F32, TN_F16, TN_BF16, TN_I8, TN_I16, TN_I32, TN_I64, TN_F64};
    int64_t ne[4], other[4];
    pick_shape(r, ne);
    memcpy(other, ne, sizeof ne);
    tn_type type = plain[rng_below(r, 8)];
    switch (op) {
    case TN_OP_CONCAT: {
        int dim = (int)pick_int(r, 0, 3);
        other[dim] = pick_int(r, 0, 5);
        return tn_concat(a, tensor_of_any_layout(a, type, ne, 20, r), tensor_of_any_layout(a, type, other, 20, r),
                         dim);
    }
    case TN_OP_REPEAT:
        for (int i = 0; i < 4; i++) other[i] *= pick_int(r, 1, 3);
        return tn_repeat(a, tensor_of_any_layout(a, type, ne, 20, r), other);
    case TN_OP_PAD: {
        int32_t before[4], after[4];
        for (int i = 0; i < 4; i++) {
            before[i] = (int32_t)pick_int(r, 0, 2);
            after[i] = (int32_t)pick_int(r, 0, 2);
        }
        return tn_pad(a, tensor_of_any_layout(a, TN_F32, ne, 1, r), before, after);
    }
    case TN_OP_ROLL: {
        int32_t shift[4];
        for (int i = 0; i < 4; i++) shift[i] = (int32_t)pick_int(r, -7, 7);
        return tn_roll(a, tensor_of_any_layout(a, TN_F32, ne, 1, r), shift);
    }
    case TN_OP_ARANGE: {
        float start = pick_real(r, -5, 5), step = chance(r, 50) ? pick_real(r, 0.1f, 1) : -pick_real(r, 0.1f, 1);
        return tn_arange(a, start, start + step * pick_real(r, 1, 500), step);
    }
    case TN_OP_ACC:
    case TN_OP_SET: {
        for (int i = 0; i < 4; i++) other[i] = ne[i] ? pick_int(r, 1, ne[i]) : 0;
        if (tn_nelements(&(tn_tensor){.ne = {ne[0], ne[1], ne[2], ne[3]}}) == 0) memset(other, 0, sizeof other);
        tn_tensor *x = dense_tensor(a, TN_F32, ne, 1, r), *y = tensor_of_any_layout(a, TN_F32, other, 1, r);
        size_t offset = 0;
        for (int i = 0; i < 4; i++)
            offset += x->nb[i] * (size_t)(ne[i] > other[i] ? pick_int(r, 0, ne[i] - other[i]) : 0);
        if (tn_is_empty(x)) offset = 0;
        return op == TN_OP_ACC ? tn_acc(a, x, y, x->nb[1], x->nb[2], x->nb[3], offset)
                               : tn_set(a, x, y, x->nb[1], x->nb[2], x->nb[3], offset);
    }
    case TN_OP_UPSCALE: {
        bool bilinear = chance(r, 50);
        for (int i = 0; i < 4; i++) {
            ne[i] = pick_int(r, 1, i ? 5 : 40);
            other[i] = bilinear && i < 2 ? pick_int(r, 1, 30) : ne[i] * pick_int(r, 1, 3);
        }
        return tn_upscale(a, tensor_of_any_layout(a, TN_F32, ne, 1, r), other,
                          bilinear ? TN_UPSCALE_BILINEAR : TN_UPSCALE_NEAREST);
    }
    default: { /* timestep embedding */
        tn_tensor *x = dense_tensor(a, TN_F32, (int64_t[]){pick_int(r, 1, 9), 1, 1, 1}, 20, r);
        return tn_timestep_embedding(a, x, (int)pick_int(r, 2, 65), 10000);
    }
    }
}

static tn_tensor *rows_case(tn_arena *a, tn_op op, rng *r) {
    int64_t ne[4];
    pick_shape(r, ne);
    if (op == TN_OP_ADD_ID) {
        ne[3] = 1;
        int64_t experts = pick_int(r, 1, 6);
        tn_tensor *x = tensor_of_any_layout(a, TN_F32, ne, 1, r),
                  *y = tensor_of_any_layout(a, TN_F32, (int64_t[]){ne[0], experts, 1, 1}, 1, r);
        /* Ids out of range have no bias. */
        return tn_add_id(a, x, y, integer_tensor(a, TN_I32, (int64_t[]){ne[1], ne[2], 1, 1}, -1, experts, r));
    }
    tn_type type = any_type(r);
    while (op == TN_OP_SET_ROWS && !tn_type_can_write(type)) type = any_type(r);
    if (tn_type_is_quantized(type)) ne[0] = tn_type_block(type) * pick_int(r, 1, 5);
    ne[1] = pick_int(r, 1, 20);
    if (op == TN_OP_GET_ROWS) {
        tn_tensor *x = tensor_of_rows(a, type, ne, spread_of(type), r);
        return tn_get_rows(
            a, x, integer_tensor(a, TN_I32, (int64_t[]){pick_int(r, 1, 9), ne[2], ne[3], 1}, -1, ne[1] - 1, r));
    }
    int64_t n = pick_int(r, 1, 2 * ne[1]);
    tn_tensor *x = tensor_of_rows(a, type, ne, 1, r),
              *y = tensor_of_rows(a, TN_F32, (int64_t[]){ne[0], n, ne[2], ne[3]}, 1, r);
    int64_t index[4] = {n, ne[2] && chance(r, 50) ? 1 : (ne[2] ? ne[2] : 1), ne[3] ? ne[3] : 1, 1};
    tn_tensor *rows = integer_tensor(a, chance(r, 50) ? TN_I32 : TN_I64, index, -1, ne[1], r);
    if (chance(r, 50) && n <= ne[1]) /* distinct and ascending, like writes to a cache */
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
    pick_shape(r, ne);
    if (ne[0] == 0) ne[0] = 5;
    if (op == TN_OP_GROUP_NORM) {
        for (int i = 1; i < 4; i++) ne[i] = ne[i] ? ne[i] : 1;
        return tn_group_norm(a, dense_tensor(a, TN_F32, ne, 2, r), (int)pick_int(r, 1, ne[2]), 1e-5f);
    }
    if (op == TN_OP_HADAMARD) {
        const int block = 1 << pick_int(r, 0, 9);
        ne[0] = block * pick_int(r, 1, 3);
        return tn_hadamard(a, tensor_of_rows(a, TN_F32, ne, 2, r), block);
    }
    tn_tensor *x = tensor_of_rows(a, TN_F32, ne, 2, r);
    if (wild) add_nan_and_infinities(x, r);
    int64_t row[4] = {ne[0], chance(r, 70) ? 1 : ne[1], 1, 1};
    if (ne[1] == 0) row[1] = 0;
    if (ne[2] == 0) row[2] = 0;
    if (ne[3] == 0) row[3] = 0;
    tn_tensor *w = chance(r, 60) ? dense_tensor(a, TN_F32, row, 1, r) : NULL;
    if (op == TN_OP_L2_NORM) return tn_l2_norm(a, x, 1e-6f);
    if (op == TN_OP_RMS_NORM) return tn_rms_norm(a, x, w, 1e-5f);
    if (op == TN_OP_NORM)
        return tn_norm(a, x, w, w && chance(r, 50) ? dense_tensor(a, TN_F32, row, 1, r) : NULL, 1e-5f);
    tn_tensor *mask = NULL, *sinks = NULL;
    if (chance(r, 60)) {
        int64_t m[4] = {ne[0], ne[1] + pick_int(r, 0, 2), ne[2] && chance(r, 50) ? 1 : (ne[2] ? ne[2] : 1),
                        ne[3] && chance(r, 50) ? 1 : (ne[3] ? ne[3] : 1)};
        mask = tensor_of_rows(a, chance(r, 50) ? TN_F32 : TN_F16, m, 1, r);
        tn_tensor *root = mask->view_src ? mask->view_src : mask;
        for (int64_t i = 0; i < tn_nelements(root); i++)
            if (chance(r, 30)) {
                float hidden = -INFINITY;
                assert_ok(
                    tn_type_from_f32(root->type, &hidden, (char *)root->data + (size_t)i * root->nb[0], 1, NULL));
            }
    }
    if (chance(r, 30)) sinks = dense_tensor(a, TN_F32, (int64_t[]){ne[2], 1, 1, 1}, 1, r);
    return tn_soft_max(a, x, mask, sinks, pick_real(r, 0.1f, 2), mask && chance(r, 40) ? 8 : 0);
}

static tn_tensor *rope_case(tn_arena *a, rng *r) {
    static const int64_t heads[] = {2, 16, 64, 80, 128};
    int64_t head = heads[rng_below(r, 5)],
            ne[4] = {head, pick_int(r, 1, 4), pick_int(r, 1, 7), chance(r, 80) ? 1 : 2};
    tn_rope_mode mode = (tn_rope_mode)rng_below(r, 4);
    int32_t dims = (int32_t)(mode == TN_ROPE_VISION ? head / 2 : chance(r, 60) ? head : 2 * pick_int(r, 1, head / 2));
    if (dims % 2) mode = TN_ROPE_NEOX, dims = 2;
    tn_rope_params p = tn_rope_params_default(dims, mode);
    bool multi = mode == TN_ROPE_MULTI || mode == TN_ROPE_VISION;
    if (multi)
        for (int i = 0; i < 4; i++) p.sections[i] = (int32_t)pick_int(r, i == 0, dims / 4 + 1);
    if (chance(r, 30)) p.base = 500000;
    if (chance(r, 30)) p.freq_scale = 0.25f;
    if (chance(r, 40)) {
        p.ext_factor = 1;
        p.n_ctx_orig = 4096;
        p.attn_factor = 1.1f;
        p.exact_ramp = chance(r, 30);
    }
    p.reverse = chance(r, 20);
    int64_t n_pos[4] = {ne[2] * (multi ? 4 : 1), 1, 1, 1};
    tn_tensor *factors = NULL;
    if (chance(r, 40)) {
        factors = dense_tensor(a, TN_F32, (int64_t[]){mode == TN_ROPE_VISION ? dims : dims / 2, 1, 1, 1}, 1, r);
        make_positive(factors);
    }
    tn_tensor *x = tensor_of_rows(a, chance(r, 70) ? TN_F32 : TN_F16, ne, 1, r);
    return tn_rope(a, x, integer_tensor(a, TN_I32, n_pos, 0, chance(r, 50) ? 50 : 30000, r), factors, &p);
}

/* Some experts have no token; some tokens name an expert twice, or one out of range. */
static tn_tensor *experts_node(tn_arena *a, tn_tensor *x, const expert_shape *e, int layout, rng *r) {
    tn_tensor *y =
        random_tensor(a, TN_F32, (int64_t[]){e->k, e->same_input ? 1 : e->used, e->tokens, 1}, layout, 1, r);
    int64_t last = chance(r, 30) ? pick_int(r, 0, e->experts - 1) : e->experts - 1;
    tn_tensor *ids = integer_tensor(a, TN_I32, (int64_t[]){e->used, e->tokens, 1, 1}, 0, last, r);
    static const int32_t strangers[] = {-1, INT32_MIN, INT32_MAX};
    for (int64_t i = 0; ids && i < tn_nelements(ids) && last < e->experts - 1; i++)
        if (chance(r, 10))
            ((int32_t *)ids->data)[i] = chance(r, 25) ? (int32_t)e->experts : strangers[rng_below(r, 3)];
    return tn_mul_mat_id(a, x, y, ids);
}
tn_tensor *experts_case(tn_arena *a, tn_type type, const expert_shape *e, rng *r) {
    return experts_node(a, dense_tensor(a, type, (int64_t[]){e->k, e->m, e->experts, 1}, 1, r), e, 0, r);
}

static tn_tensor *matmul_case(tn_arena *a, tn_op op, rng *r, bool wild) {
    static const int64_t counts[] = {1, 1, 2, 3, 4, 5, 8, 13, 16, 17, 33, 40, 61};
    tn_type type = pick_weight_type(r);
    int64_t block = tn_type_block(type), k = block > 1 ? block * pick_int(r, 1, 1 + 512 / block) : pick_length(r);
    int64_t m = chance(r, 30) ? pick_int(r, 60, 90) : counts[rng_below(r, 13)], n = counts[rng_below(r, 13)];
    if (op == TN_OP_OUT_PROD) {
        int64_t x2 = pick_int(r, 1, 2), x3 = pick_int(r, 1, 2);
        int64_t k1 = pick_int(r, 0, 20);
        tn_tensor *x = tensor_of_any_layout(a, TN_F32, (int64_t[]){m, k1, x2, x3}, 1, r);
        return tn_out_prod(a, x,
                           tensor_of_any_layout(a, TN_F32, (int64_t[]){n, k1, x2 * pick_int(r, 1, 2), x3}, 1, r));
    }
    if (op == TN_OP_MUL_MAT_ID) {
        expert_shape e = {k, m, pick_int(r, 1, 9), 0, pick_int(r, 1, chance(r, 50) ? 8 : 40), chance(r, 50)};
        e.used = pick_int(r, 1, e.experts > 4 ? 4 : e.experts);
        tn_tensor *x = tensor_of_rows(a, type, (int64_t[]){k, m, e.experts, 1}, 1, r);
        return experts_node(a, x, &e, (int)rng_below(r, 3), r);
    }
    if (chance(r, 3) && block == 1) k = 0;
    int64_t x2 = chance(r, 70) ? 1 : 2, x3 = chance(r, 70) ? 1 : 2;
    tn_tensor *x = tensor_of_rows(a, type, (int64_t[]){k, m, x2, x3}, 1, r);
    tn_tensor *y =
        tensor_of_rows(a, chance(r, 80) ? TN_F32 : pick_float_type(r),
                       (int64_t[]){k, n, x2 * (chance(r, 70) ? 1 : 3), x3 * (chance(r, 70) ? 1 : 2)}, 1, r);
    if (wild) add_nan_and_infinities(y, r);
    return chance(r, 30) ? tn_mul_mat_precise(a, x, y) : tn_mul_mat(a, x, y);
}

static tn_tensor *conv_case(tn_arena *a, tn_op op, rng *r) {
    bool flat = op == TN_OP_CONV_1D || op == TN_OP_CONV_TRANSPOSE_1D || op == TN_OP_POOL_1D;
    tn_conv_params p = tn_conv_params_default();
    for (int i = 0; i < 2; i++) {
        p.stride[i] = (int32_t)pick_int(r, 1, 3);
        p.pad[i] = (int32_t)pick_int(r, 0, 2);
        p.dilation[i] = (int32_t)pick_int(r, 1, 2);
    }
    int64_t kw = pick_int(r, 1, 4), kh = pick_int(r, 1, 3), w = pick_int(r, 8, 20), h = pick_int(r, 6, 9),
            batch = pick_int(r, 1, 2);
    tn_type type = chance(r, 50) ? TN_F32 : TN_F16;
    if (op == TN_OP_POOL_1D || op == TN_OP_POOL_2D) {
        tn_pool_params q = {.kind = chance(r, 50) ? TN_POOL_MAX : TN_POOL_AVG};
        for (int i = 0; i < 2; i++) {
            q.kernel[i] = (int32_t)pick_int(r, 1, 3);
            q.stride[i] = (int32_t)pick_int(r, 1, 3);
            q.pad[i] = (int32_t)pick_int(r, 0, q.kernel[i] - 1);
        }
        tn_tensor *x = tensor_of_any_layout(a, TN_F32, (int64_t[]){w, h, pick_int(r, 1, 3), batch}, 1, r);
        return flat ? tn_pool_1d(a, x, &q) : tn_pool_2d(a, x, &q);
    }
    if (op == TN_OP_CONV_TRANSPOSE_1D || op == TN_OP_CONV_TRANSPOSE_2D) {
        int64_t in = pick_int(r, 1, 4), out = pick_int(r, 1, 4);
        tn_tensor *kernel =
            dense_tensor(a, type, flat ? (int64_t[]){kw, out, in, 1} : (int64_t[]){kw, kh, out, in}, 1, r);
        tn_tensor *x =
            tensor_of_any_layout(a, TN_F32, flat ? (int64_t[]){w, in, batch, 1} : (int64_t[]){w, h, in, batch}, 1, r);
        return flat ? tn_conv_transpose_1d(a, kernel, x, p.stride[0])
                    : tn_conv_transpose_2d(a, kernel, x, p.stride[0]);
    }
    if (op == TN_OP_IM2COL) {
        int64_t in = pick_int(r, 1, 4);
        p.is_2d = chance(r, 50);
        int64_t k[4] = {kw, p.is_2d ? kh : in, p.is_2d ? in : 2, p.is_2d ? 2 : 1};
        int64_t x[4] = {w, p.is_2d ? h : in, p.is_2d ? in : batch, p.is_2d ? batch : 1};
        tn_tensor *kernel = dense_tensor(a, type, k, 1, r);
        return tn_im2col(a, kernel, tensor_of_any_layout(a, TN_F32, x, 1, r), &p, type);
    }
    int64_t groups = pick_int(r, 1, 3), in = pick_int(r, 1, 3), out = groups * pick_int(r, 1, 3);
    if (chance(r, 30)) { /* depth-wise */
        in = 1;
        groups = out = pick_int(r, 1, 5);
    }
    p.groups = (int32_t)groups;
    tn_tensor *kernel =
        dense_tensor(a, type, flat ? (int64_t[]){kw, in, out, 1} : (int64_t[]){kw, kh, in, out}, 1, r);
    int64_t channels = in * groups;
    tn_tensor *x = tensor_of_any_layout(
        a, TN_F32, flat ? (int64_t[]){w, channels, batch, 1} : (int64_t[]){w, h, channels, batch}, 1, r);
    return flat ? tn_conv_1d(a, kernel, x, &p) : tn_conv_2d(a, kernel, x, &p);
}

/* A run that does not belong into a table. */
static tn_page_run hostile_run(int64_t cells, int32_t page, rng *r) {
    tn_page_run run = {(int32_t)pick_int(r, 0, cells - 1), 1, (int32_t)pick_int(r, 0, cells), 1};
    switch (rng_below(r, 7)) {
    case 0: run.cell = (int32_t)cells; break;
    case 1: run.cell = -1; break;
    case 2: run.count = 0; break;
    case 3: run.count = page + 1; break;
    case 4: run.cell = INT32_MAX, run.count = INT32_MAX; break;
    case 5: run.first = INT32_MIN; break;
    default: run.first = INT32_MAX, run.count = 2; break;
    }
    return run;
}

/* Sequences that share the cells, in runs that lie anywhere. Most are as a session makes them: whole pages of one
 * sequence, in order of position, of which the last is open. */
int32_t random_pages(tn_arena *a, tn_attention_sources *s, int64_t tokens, int64_t cells, rng *r) {
    static const int32_t sizes[] = {1, 3, 16, 32, 64, 64, 128, 256};
    const int32_t page = sizes[rng_below(r, 8)];
    const int64_t sequences = chance(r, 70) ? pick_int(r, 1, 5) : pick_int(r, 1, 64),
                  pages = (cells + page - 1) / page, n = chance(r, 80) ? pages : pick_int(r, 0, pages + 3);
    s->q_pos = integer_tensor(a, TN_I32, (int64_t[]){2, tokens, 1, 1}, 0, cells, r);
    s->pages = integer_tensor(a, TN_I32, (int64_t[]){4, 1 + n, sequences, 1}, 0, cells, r);
    int32_t *q = s->q_pos->data;
    const bool one = chance(r, 50), tidy = chance(r, 60); /* consecutive positions of one sequence, like a prompt */
    for (int64_t t = 0; t < tokens; t++) {
        q[2 * t + 1] = (int32_t)(one ? 0 : pick_int(r, 0, sequences - 1));
        if (one) q[2 * t] = (int32_t)(cells - tokens + t > 0 ? cells - tokens + t : t);
        if (chance(r, 5)) q[2 * t + 1] = -1;
        if (chance(r, 5)) q[2 * t + 1] = (int32_t)pick_int(r, sequences, 100 * sequences); /* it sees nothing */
    }
    for (int64_t i = 0; i < sequences; i++) {
        tn_page_run *row = (tn_page_run *)s->pages->data + i * (1 + n);
        const int64_t shift = pick_int(r, 0, pages - 1);
        *row = (tn_page_run){(int32_t)(chance(r, 80) ? n : pick_int(r, -1, n + 2)), 0, 0, 0};
        for (int64_t j = 0; j < n; j++) {
            const int64_t which = tidy ? (j + shift) % pages : pick_int(r, 0, pages - 1), cell = which * page;
            const int64_t room = cells - cell < page ? cells - cell : page;
            tn_page_run run = {(int32_t)cell, (int32_t)room, (int32_t)(j * page), 1};
            if (!tidy && chance(r, 50)) {
                const int64_t skip = pick_int(r, 0, room - 1);
                run = (tn_page_run){(int32_t)(cell + skip), (int32_t)pick_int(r, 1, room - skip),
                                    (int32_t)pick_int(r, 0, cells), (int32_t)pick_int(r, 0, 3)};
            }
            row[1 + j] = !tidy && chance(r, 5) ? hostile_run(cells, page, r) : run;
        }
    }
    return page;
}

/* Random modifications of scores that models use. */
static tn_attention_params attention_params(int64_t head, int64_t cells, rng *r) {
    tn_attention_params p = {.scale = 1 / sqrtf((float)head), .causal = chance(r, 70)};
    if (chance(r, 20)) p.soft_cap = 2;
    if (chance(r, 20)) p.max_bias = 8;
    if (chance(r, 25)) p.window = (int32_t)pick_int(r, 1, cells);
    if (chance(r, 15)) p.chunk = (int32_t)pick_int(r, 1, cells);
    if (chance(r, 15)) p.window_after = (int32_t)pick_int(r, 1, cells);
    return p;
}

/* Selected positions and tables of biases. Some entries are unused, repeated or beyond the last cell. */
static void random_extras(tn_arena *a, tn_attention_sources *s, tn_attention_params *p, rng *r) {
    const int64_t tokens = s->q->ne[2], cells = s->k->ne[2];
    if (s->q->ne[3] == 1 && chance(r, 25)) {
        p->select_block = (int32_t)(chance(r, 50) ? pick_int(r, 0, 1) : pick_int(r, 2, 40));
        const int64_t n = pick_int(r, 1, cells), block = p->select_block > 1 ? p->select_block : 1;
        s->selected = integer_tensor(a, TN_I32, (int64_t[]){n, tokens, 1, 1}, -1, cells / block + 1, r);
    }
    if (chance(r, 15)) {
        const int64_t buckets = pick_int(r, 4, 64);
        s->bias_table = dense_tensor(a, TN_F32, (int64_t[]){s->q->ne[1], buckets, 1, 1}, 1, r);
        p->bias_distance = (int32_t)(buckets / 2 + pick_int(r, 1, 200));
        p->bias_bidirectional = chance(r, 50);
    }
}

static tn_tensor *attention_case(tn_arena *a, rng *r) {
    static const tn_type cache_types[] = {TN_F32,  TN_F16,  TN_F16,  TN_BF16, TN_FP8,
                                          TN_Q8_0, TN_Q5_1, TN_Q5_0, TN_Q4_1, TN_Q4_0};
    static const int64_t heads[] = {32, 64, 80, 96, 128, 256, 4, 40, 512};
    tn_type kt = cache_types[rng_below(r, 10)], vt = chance(r, 70) ? kt : cache_types[rng_below(r, 10)];
    int64_t dk = heads[rng_below(r, 9)], dv = chance(r, 80) ? dk : heads[rng_below(r, 9)];
    if (tn_type_is_quantized(kt)) dk = 32 * pick_int(r, 1, 4);
    if (tn_type_is_quantized(vt)) dv = 32 * pick_int(r, 1, 4);
    int64_t kv = pick_int(r, 1, 3), group = pick_int(r, 1, 4), tokens = chance(r, 40) ? 1 : pick_int(r, 1, 40);
    int64_t cells = chance(r, 15) ? pick_int(r, 500, 1500) : pick_int(r, 1, 150);
    if (cells > 400 && tokens > 4) tokens = 4;
    bool cached = chance(r, 60);
    int64_t batch = cached || chance(r, 70) ? 1 : 2;
    tn_attention_sources s = {0};
    s.q = tensor_of_rows(a, TN_F32, (int64_t[]){dk, kv * group, tokens, batch}, 1, r);
    s.k = tensor_of_rows(a, kt, (int64_t[]){dk, kv, cells, batch}, 1, r);
    s.v = tensor_of_rows(a, vt, (int64_t[]){dv, kv, cells, batch}, 1, r);
    tn_attention_params p = attention_params(dk, cells, r);
    if (cached) p.page = random_pages(a, &s, tokens, cells, r);
    if (!cached && chance(r, 20)) {
        int64_t m[4] = {cells, tokens + pick_int(r, 0, 2), chance(r, 50) ? 1 : kv * group, chance(r, 50) ? 1 : batch};
        s.mask = tensor_of_rows(a, chance(r, 50) ? TN_F32 : TN_F16, m, 1, r);
    }
    if (chance(r, 20)) s.sinks = dense_tensor(a, TN_F32, (int64_t[]){kv * group, 1, 1, 1}, 1, r);
    random_extras(a, &s, &p, r);
    return tn_attention(a, &s, &p);
}

/* Latent attention: many query heads, one key/value head, values are the first part of the keys. */
tn_tensor *latent_case(tn_arena *a, int i, rng *r) {
    static const int64_t sizes[][2] = {{576, 512}, {320, 256}, {192, 160}, {96, 64}};
    static const tn_type types[] = {TN_F16, TN_BF16, TN_F32, TN_Q8_0, TN_Q4_0, TN_FP8, TN_Q5_1};
    static const int64_t heads[] = {16, 128, 5, 20};
    enum { SIZES = 4, TYPES = 7 };
    if (i >= 3 * SIZES * TYPES) return NULL;
    const int64_t dk = sizes[i % SIZES][0], dv = sizes[i % SIZES][1], n_heads = heads[(i + i / SIZES) % 4];
    const int64_t tokens = i / SIZES / TYPES == 0   ? 1
                           : i / SIZES / TYPES == 1 ? pick_int(r, 2, 6)
                                                    : pick_int(r, 7, 24);
    const int64_t cells = pick_int(r, tokens, chance(r, 20) ? 700 : 150);
    tn_attention_sources s = {0};
    s.q = dense_tensor(a, TN_F32, (int64_t[]){dk, n_heads, tokens, 1}, 1, r);
    s.k = dense_tensor(a, types[i / SIZES % TYPES], (int64_t[]){dk, 1, cells, 1}, 1, r);
    s.v = tn_view(a, s.k, 3, (int64_t[]){dv, 1, cells}, s.k->nb, 0);
    tn_attention_params p = attention_params(dk, cells, r);
    if (chance(r, 70)) p.page = random_pages(a, &s, tokens, cells, r);
    if (chance(r, 25)) s.sinks = dense_tensor(a, TN_F32, (int64_t[]){n_heads, 1, 1, 1}, 1, r);
    random_extras(a, &s, &p, r);
    return tn_attention(a, &s, &p);
}

/* Every head size × every cache type × few and many tokens; other parameters vary. */
tn_tensor *cache_case(tn_arena *a, int i, rng *r) {
    static const int64_t sizes[][2] = {{64, 64},   {80, 80},   {96, 96},   {112, 112}, {128, 128},
                                       {192, 192}, {256, 256}, {192, 128}, {40, 72}};
    static const tn_type types[][2] = {{TN_F16, TN_F16},   {TN_BF16, TN_BF16}, {TN_F32, TN_F32},  {TN_Q8_0, TN_Q8_0},
                                       {TN_Q4_0, TN_Q4_0}, {TN_F16, TN_Q8_0},  {TN_FP8, TN_FP8},  {TN_Q5_1, TN_Q5_1},
                                       {TN_Q5_0, TN_Q4_1}, {TN_Q4_1, TN_FP8},  {TN_FP8, TN_Q5_0}, {TN_Q8_0, TN_BF16}};
    static const int64_t groups[] = {1, 8, 4, 3, 2, 16, 5};
    enum { SIZES = sizeof sizes / sizeof *sizes, TYPES = sizeof types / sizeof *types };
    if (i >= 3 * SIZES * TYPES) return NULL;
    tn_type kt = types[i / SIZES % TYPES][0], vt = types[i / SIZES % TYPES][1];
    int64_t dk = sizes[i % SIZES][0], dv = sizes[i % SIZES][1], group = groups[i % 7], kv = pick_int(r, 1, 2),
            tokens = 1, cells = pick_int(r, 100, 600);
    if (tn_type_is_quantized(kt)) dk = (dk + 31) / 32 * 32;
    if (tn_type_is_quantized(vt)) dv = (dv + 31) / 32 * 32;
    switch (i / SIZES / TYPES) {
    case 1: tokens = pick_int(r, 2, 8); break;
    case 2: /* more than a tile of queries */
        tokens = pick_int(r, 65, 80);
        cells = pick_int(r, 90, 200);
        if (group > 4) kv = 1;
        break;
    }
    if (i / SIZES / TYPES == 1 && i % SIZES == 0) { /* parts of the cache that are longer than a tile */
        tokens = kv = 8;
        group = 1;
        cells = 2600;
    }
    tn_attention_sources s = {0};
    s.q = dense_tensor(a, TN_F32, (int64_t[]){dk, kv * group, tokens, 1}, 1, r);
    s.k = dense_tensor(a, kt, (int64_t[]){dk, kv, cells, 1}, 1, r);
    s.v = dense_tensor(a, vt, (int64_t[]){dv, kv, cells, 1}, 1, r);
    tn_attention_params p = attention_params(dk, cells, r);
    if (chance(r, 80)) p.page = random_pages(a, &s, tokens, cells, r);
    if (chance(r, 25)) s.sinks = dense_tensor(a, TN_F32, (int64_t[]){kv * group, 1, 1, 1}, 1, r);
    random_extras(a, &s, &p, r);
    return tn_attention(a, &s, &p);
}

static void custom_sum(const tn_custom_job *job) {
    const tn_tensor *x = job->result->src[0];
    for (int64_t i = job->ith; i < tn_nelements(x); i += job->nth)
        ((float *)job->result->data)[i] = ((const float *)x->data)[i];
}
static tn_tensor *custom_case(tn_arena *a, rng *r) {
    int64_t ne[4];
    pick_shape(r, ne);
    tn_tensor *x = dense_tensor(a, TN_F32, ne, 1, r);
    return tn_custom(a, TN_F32, 4, ne, &x, 1, custom_sum, NULL, (int)pick_int(r, 0, 3));
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
    case TN_FAMILY_ATTENTION: return op == TN_OP_SELECT_POSITIONS ? select_case(a, r) : attention_case(a, r);
    case TN_FAMILY_RECURRENT: return recurrent_case(a, op, r);
    case TN_FAMILY_CUSTOM: return custom_case(a, r);
    default: return NULL;
    }
}
