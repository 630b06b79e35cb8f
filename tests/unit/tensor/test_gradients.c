/* Gradients of every op against finite differences. */
#include "support.h"

#include "tenon/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gradient_case gradient_case;
struct gradient_case {
    tn_op op;
    const char *name;
    tn_tensor *(*build)(tn_arena *a, tn_tensor **x, const gradient_case *c);
    int64_t ne[3][4]; /* shapes of the parameters; ne[i][0] == 0 ends the list */
    float low, high;  /* range of values; both 0: -2 … 2 */
};
#define BUILD(name, expression)                                                                                      \
    static tn_tensor *name(tn_arena *a, tn_tensor **x, const gradient_case *c) {                                     \
        (void)c;                                                                                                     \
        return expression;                                                                                           \
    }

static tn_tensor *indices(tn_arena *a, const int32_t *values, int64_t n0, int64_t n1) {
    tn_tensor *t = tn_tensor_nd(a, TN_I32, n0, n1);
    if (t) memcpy(t->data, values, (size_t)(n0 * n1) * sizeof *values);
    return t;
}
static tn_tensor *floats(tn_arena *a, int64_t n0, int64_t n1, uint64_t seed) {
    tn_tensor *t = tn_tensor_nd(a, TN_F32, n0, n1);
    rng r = {seed};
    for (int64_t i = 0; t && i < n0 * n1; i++) ((float *)t->data)[i] = (float)rng_unit(&r);
    return t;
}

BUILD(plain, tn_unary(a, c->op, x[0]))
BUILD(dup, tn_dup(a, x[0]))
BUILD(cast, tn_cast(a, tn_cast(a, x[0], TN_F16), TN_F32))
BUILD(cont, tn_cont(a, tn_transpose(a, x[0])))
BUILD(cpy, tn_cpy(a, x[0], tn_tensor_nd(a, TN_F32, 3, 4)))
BUILD(view, tn_view(a, x[0], 2, (const int64_t[]){3, 2}, (const size_t[]){4, 20}, 28))
BUILD(view_of_view, tn_view(a, tn_view(a, x[0], 2, (const int64_t[]){4, 3}, (const size_t[]){4, 20}, 20), 1,
                            (const int64_t[]){2}, NULL, 24))
BUILD(reshape, tn_reshape(a, x[0], 6, 2))
BUILD(permute, tn_permute(a, x[0], 2, 0, 3, 1))
BUILD(transpose, tn_transpose(a, x[0]))
BUILD(add, tn_add(a, x[0], x[1]))
BUILD(sub, tn_sub(a, x[0], x[1]))
BUILD(mul, tn_mul(a, x[0], x[1]))
BUILD(div_by, tn_div(a, x[0], x[1]))
BUILD(twice, tn_add(a, tn_mul(a, x[0], x[0]), x[0]))
BUILD(scale, tn_scale(a, x[0], 1.5f, -2))
BUILD(clamp, tn_clamp(a, x[0], -0.5f, 1))
BUILD(leaky, tn_leaky_relu(a, x[0], 0.2f))
BUILD(mask_inf, tn_soft_max(a, tn_diag_mask_inf(a, x[0], 1), NULL, NULL, 1, 0))
BUILD(mask_zero, tn_diag_mask_zero(a, x[0], 1))
BUILD(gated, tn_glu(a, c->op, x[0], x[1], false))
BUILD(gated_halves, tn_glu(a, c->op, x[0], NULL, false))
BUILD(gated_swapped, tn_glu(a, c->op, x[0], NULL, true))
BUILD(oai, tn_swiglu_oai(a, x[0], x[1], 1.702f, 1))
BUILD(sum, tn_sum(a, x[0]))
BUILD(sum_rows, tn_sum_rows(a, x[0]))
BUILD(mean, tn_mean(a, x[0]))
BUILD(cumsum, tn_cumsum(a, x[0]))
BUILD(mix, tn_mix(a, x[0], x[1]))
BUILD(concat_0, tn_concat(a, x[0], x[1], 0))
BUILD(concat_1, tn_concat(a, x[0], x[1], 1))
BUILD(repeat, tn_repeat(a, x[0], (const int64_t[]){6, 4, 3, 1}))
BUILD(pad, tn_pad(a, x[0], (const int32_t[]){1, 0, 2, 0}, (const int32_t[]){0, 3, 0, 1}))
BUILD(roll, tn_roll(a, x[0], (const int32_t[]){1, -1, 0, 0}))
BUILD(get_rows, tn_get_rows(a, x[0], indices(a, (const int32_t[]){2, 0, 2, 4, 2}, 5, 1)))
BUILD(acc, tn_acc(a, x[0], x[1], 20, 60, 60, 24))
BUILD(set, tn_set(a, x[0], x[1], 20, 60, 60, 24))
BUILD(norm, tn_norm(a, x[0], x[1], x[2], 1e-5f))
BUILD(norm_alone, tn_norm(a, x[0], NULL, NULL, 1e-5f))
BUILD(rms_norm, tn_rms_norm(a, x[0], x[1], 1e-5f))
BUILD(l2_norm, tn_l2_norm(a, x[0], 1e-5f))
BUILD(hadamard, tn_hadamard(a, x[0], 4))
BUILD(group_norm, tn_group_norm(a, x[0], 2, 1e-5f))
BUILD(soft_max, tn_soft_max(a, x[0], NULL, NULL, 0.7f, 0))
BUILD(soft_max_masked, tn_soft_max(a, x[0], floats(a, 5, 3, 3), tn_reshape(a, floats(a, 2, 1, 4), 2), 0.7f, 0))
BUILD(rope, tn_rope(a, x[0], indices(a, (const int32_t[]){3, 0, 7}, 3, 1), NULL,
                    &(tn_rope_params){
                        .dims = 4, .mode = TN_ROPE_NEOX, .base = 100, .freq_scale = 0.5f, .attn_factor = 1.3f}))
BUILD(mul_mat, tn_mul_mat(a, x[0], x[1]))
BUILD(mul_mat_shared, tn_mul_mat(a, x[0], x[1]))
BUILD(out_prod, tn_out_prod(a, x[0], x[1]))
BUILD(mul_mat_id, tn_mul_mat_id(a, x[0], x[1], indices(a, (const int32_t[]){2, 0, 1, 2, 2, 0}, 2, 3)))
BUILD(add_id, tn_add_id(a, x[0], x[1], indices(a, (const int32_t[]){2, 0, 1, 2, 2, 0}, 2, 3)))
#define CONV(...) (&(tn_conv_params){__VA_ARGS__})
BUILD(conv_1d, tn_conv_1d(a, x[0], x[1], CONV(.stride = {2, 1}, .pad = {1}, .dilation = {2, 1}, .groups = 2)))
BUILD(conv_2d, tn_conv_2d(a, x[0], x[1], CONV(.stride = {1, 2}, .pad = {1, 0}, .dilation = {1, 2}, .groups = 1)))
BUILD(conv_2d_dw, tn_conv_2d_dw(a, x[0], x[1], NULL))
#define POOL(...) (&(tn_pool_params){__VA_ARGS__})
BUILD(pool_1d, tn_pool_1d(a, x[0], POOL(.kind = TN_POOL_MAX, .kernel = {3}, .stride = {2}, .pad = {1})))
BUILD(pool_2d, tn_pool_2d(a, x[0], POOL(.kind = TN_POOL_AVG, .kernel = {2, 3}, .stride = {2, 1}, .pad = {1, 1})))
BUILD(pool_2d_max, tn_pool_2d(a, x[0], POOL(.kind = TN_POOL_MAX, .kernel = {2, 2}, .stride = {2, 2})))
BUILD(cross_entropy, tn_cross_entropy_loss(a, x[0], tn_soft_max(a, floats(a, 5, 3, 5), NULL, NULL, 4, 0)))
BUILD(attention, tn_attention(a, &(tn_attention_sources){.q = x[0], .k = x[1], .v = x[2]},
                              &(tn_attention_params){.scale = 0.5f, .causal = 1}))
BUILD(attention_all,
      tn_attention(a, &(tn_attention_sources){.q = x[0], .k = x[1], .v = x[2], .mask = floats(a, 5, 3, 6)},
                   &(tn_attention_params){.scale = 0.5f, .soft_cap = 1.5f}))

BUILD(attention_window, tn_attention(a, &(tn_attention_sources){.q = x[0], .k = x[1], .v = x[2]},
                                     &(tn_attention_params){.scale = 0.5f, .causal = 1, .window = 2}))
BUILD(attention_alibi, tn_attention(a, &(tn_attention_sources){.q = x[0], .k = x[1], .v = x[2]},
                                    &(tn_attention_params){.scale = 0.5f, .window = 3, .max_bias = 4}))

#define UNARY(OP)                                                                                                    \
    { TN_OP_##OP, #OP, plain, {{5, 3}}, 0, 0 }
#define GLU(OP)                                                                                                      \
    {TN_OP_##OP, #OP, gated, {{4, 3}, {4, 3}}, 0, 0}, {TN_OP_##OP, #OP " of halves", gated_halves, {{8, 3}}, 0, 0},  \
    {                                                                                                                \
        TN_OP_##OP, #OP " of swapped halves", gated_swapped, {{8, 3}}, 0, 0                                          \
    }
static const gradient_case cases[] = {
    UNARY(SQR),
    UNARY(SIN),
    UNARY(COS),
    UNARY(EXP),
    UNARY(NEG),
    UNARY(ABS),
    UNARY(TANH),
    UNARY(ELU),
    UNARY(RELU),
    UNARY(SIGMOID),
    UNARY(GELU),
    UNARY(GELU_QUICK),
    UNARY(GELU_ERF),
    UNARY(SILU),
    UNARY(SOFTPLUS),
    {TN_OP_HARDSWISH, "hardswish", plain, {{20}}, -5, 5},
    {TN_OP_HARDSIGMOID, "hardsigmoid", plain, {{20}}, -5, 5},
    {TN_OP_SQRT, "sqrt", plain, {{5, 3}}, 0.5f, 3},
    {TN_OP_LOG, "log", plain, {{5, 3}}, 0.5f, 3},
    {TN_OP_DUP, "dup", dup, {{5, 3}}, 0, 0},
    {TN_OP_CAST, "cast", cast, {{5, 3}}, 0, 0},
    {TN_OP_CONT, "cont", cont, {{5, 3}}, 0, 0},
    {TN_OP_CPY, "cpy", cpy, {{4, 3}}, 0, 0},
    {TN_OP_VIEW, "view", view, {{5, 4}}, 0, 0},
    {TN_OP_VIEW, "view of view", view_of_view, {{5, 4}}, 0, 0},
    {TN_OP_RESHAPE, "reshape", reshape, {{4, 3}}, 0, 0},
    {TN_OP_PERMUTE, "permute", permute, {{4, 3, 2}}, 0, 0},
    {TN_OP_TRANSPOSE, "transpose", transpose, {{4, 3}}, 0, 0},
    {TN_OP_ADD, "add", add, {{4, 3}, {4, 3}}, 0, 0},
    {TN_OP_ADD, "a sum with its own square", twice, {{4, 3}}, 0, 0},
    {TN_OP_ADD, "add, broadcast", add, {{4, 6, 2}, {2, 3}}, 0, 0},
    {TN_OP_SUB, "sub, broadcast", sub, {{4, 6, 2}, {4, 1}}, 0, 0},
    {TN_OP_MUL, "mul, broadcast", mul, {{4, 6, 2}, {1, 3, 2}}, 0, 0},
    {TN_OP_DIV, "div, broadcast", div_by, {{4, 3, 2}, {4}}, 0.5f, 2},
    {TN_OP_SCALE, "scale", scale, {{4, 3}}, 0, 0},
    {TN_OP_CLAMP, "clamp", clamp, {{4, 3}}, 0, 0},
    {TN_OP_LEAKY_RELU, "leaky", leaky, {{4, 3}}, 0, 0},
    {TN_OP_DIAG_MASK_INF, "diag_mask_inf", mask_inf, {{4, 3}}, 0, 0},
    {TN_OP_DIAG_MASK_ZERO, "diag_mask_zero", mask_zero, {{4, 3}}, 0, 0},
    GLU(REGLU),
    GLU(GEGLU),
    GLU(GEGLU_QUICK),
    GLU(GEGLU_ERF),
    GLU(SWIGLU),
    {TN_OP_SWIGLU_OAI, "swiglu_oai", oai, {{8, 3}, {8, 3}}, 0, 0},
    {TN_OP_SUM, "sum", sum, {{4, 3}}, 0, 0},
    {TN_OP_SUM_ROWS, "sum_rows", sum_rows, {{4, 3}}, 0, 0},
    {TN_OP_MEAN, "mean", mean, {{4, 3}}, 0, 0},
    {TN_OP_CUMSUM, "cumsum", cumsum, {{4, 3}}, 0, 0},
    {TN_OP_MIX, "mix", mix, {{4, 3, 2}, {3, 2}}, 0, 0},
    {TN_OP_CONCAT, "concat", concat_0, {{4, 3}, {2, 3}}, 0, 0},
    {TN_OP_CONCAT, "concat of rows", concat_1, {{4, 3}, {4, 2}}, 0, 0},
    {TN_OP_REPEAT, "repeat", repeat, {{3, 2}}, 0, 0},
    {TN_OP_PAD, "pad", pad, {{3, 2}}, 0, 0},
    {TN_OP_ROLL, "roll", roll, {{3, 2}}, 0, 0},
    {TN_OP_GET_ROWS, "get_rows", get_rows, {{3, 5}}, 0, 0},
    {TN_OP_ACC, "acc", acc, {{5, 4}, {3, 2}}, 0, 0},
    {TN_OP_SET, "set", set, {{5, 4}, {3, 2}}, 0, 0},
    {TN_OP_NORM, "norm", norm, {{6, 3}, {6}, {6}}, 0, 0},
    {TN_OP_NORM, "norm alone", norm_alone, {{6, 3}}, 0, 0},
    {TN_OP_RMS_NORM, "rms_norm", rms_norm, {{6, 3}, {6}}, 0, 0},
    {TN_OP_L2_NORM, "l2_norm", l2_norm, {{6, 3}}, 0, 0},
    {TN_OP_HADAMARD, "hadamard", hadamard, {{8, 3}}, 0, 0},
    {TN_OP_GROUP_NORM, "group_norm", group_norm, {{3, 2, 4, 2}}, 0, 0},
    {TN_OP_SOFT_MAX, "soft_max", soft_max, {{5, 3}}, 0, 0},
    {TN_OP_SOFT_MAX, "soft_max, masked, with sinks", soft_max_masked, {{5, 3, 2}}, 0, 0},
    {TN_OP_ROPE, "rope", rope, {{6, 2, 3}}, 0, 0},
    {TN_OP_MUL_MAT, "mul_mat", mul_mat, {{4, 3}, {4, 2}}, 0, 0},
    {TN_OP_MUL_MAT, "mul_mat, shared", mul_mat_shared, {{4, 3, 2}, {4, 2, 4, 3}}, 0, 0},
    {TN_OP_OUT_PROD, "out_prod", out_prod, {{3, 4}, {2, 4}}, 0, 0},
    {TN_OP_MUL_MAT_ID, "mul_mat_id", mul_mat_id, {{4, 3, 4}, {4, 2, 3}}, 0, 0},
    {TN_OP_MUL_MAT_ID, "mul_mat_id of one row for all", mul_mat_id, {{4, 3, 4}, {4, 1, 3}}, 0, 0},
    {TN_OP_ADD_ID, "add_id", add_id, {{4, 2, 3}, {4, 3}}, 0, 0},
    {TN_OP_CONV_1D, "conv_1d in groups", conv_1d, {{3, 2, 4}, {9, 4, 2}}, 0, 0},
    {TN_OP_CONV_2D, "conv_2d", conv_2d, {{3, 2, 2, 3}, {5, 6, 2, 2}}, 0, 0},
    {TN_OP_CONV_2D, "conv_2d, depth-wise", conv_2d_dw, {{2, 2, 1, 3}, {4, 3, 3}}, 0, 0},
    {TN_OP_POOL_1D, "pool_1d", pool_1d, {{7, 3}}, 0, 0},
    {TN_OP_POOL_2D, "pool_2d", pool_2d, {{5, 4, 2}}, 0, 0},
    {TN_OP_POOL_2D, "pool_2d of the largest", pool_2d_max, {{6, 4, 2}}, 0, 0},
    {TN_OP_CROSS_ENTROPY_LOSS, "cross_entropy", cross_entropy, {{5, 3}}, 0, 0},
    {TN_OP_ATTENTION, "attention, causal, shared heads", attention, {{4, 4, 3, 2}, {4, 2, 5, 2}, {3, 2, 5, 2}}, 0, 0},
    {TN_OP_ATTENTION, "attention, window", attention_window, {{4, 2, 4}, {4, 2, 5}, {3, 2, 5}}, 0, 0},
    {TN_OP_ATTENTION, "attention, ALiBi", attention_alibi, {{4, 4, 4}, {4, 2, 5}, {3, 2, 5}}, 0, 0},
    {TN_OP_ATTENTION, "attention, capped, masked", attention_all, {{4, 2, 3}, {4, 2, 5}, {3, 2, 5}}, 0, 0},
};

/* A value away from the points where the derivative is not continuous. */
static float smooth_value(rng *r, float low, float high) {
    static const float kinks[] = {0, -0.5f, 1, -1, 3, -3};
    for (;;) {
        float v = low + (high - low) * (float)rng_unit(r);
        bool near = false;
        for (size_t k = 0; k < sizeof kinks / sizeof *kinks; k++) near = near || fabsf(v - kinks[k]) < 0.04f;
        if (!near) return v;
    }
}

static void check_case(const gradient_case *c, tn_sched *sched) {
    tn_arena *a;
    tn_graph *graph, *forward;
    tn_tensor *x[3] = {0};
    rng r = {17};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 22}, &a)); /* every tensor has its own memory */
    for (int i = 0; i < 3 && c->ne[i][0]; i++) {
        int64_t ne[4];
        for (int d = 0; d < 4; d++) ne[d] = c->ne[i][d] ? c->ne[i][d] : 1;
        x[i] = tn_mark(tn_tensor_new(a, TN_F32, 4, ne), TN_FLAG_PARAM);
        for (int64_t k = 0; k < tn_nelements(x[i]); k++)
            ((float *)x[i]->data)[k] = c->high != 0 ? smooth_value(&r, c->low, c->high) : smooth_value(&r, -2, 2);
    }
    tn_tensor *y = c->build(a, x, c);
    assert_ok(tn_arena_status(a));
    tn_tensor *weights = tn_tensor_new(a, TN_F32, 4, y->ne);
    for (int64_t k = 0; k < tn_nelements(y); k++) ((float *)weights->data)[k] = rng_normal(&r);
    tn_tensor *loss = tn_sum(a, tn_mul(a, tn_is_contiguous(y) ? y : tn_cont(a, y), weights));
    assert_ok(tn_graph_new(a, 512, &forward));
    assert_ok(tn_graph_new(a, 1024, &graph));
    assert_ok(tn_graph_add(forward, loss));
    assert_ok(tn_graph_add(graph, loss));
    size_t before = tn_arena_tensor_count(a);
    assert_ok(tn_graph_backward(a, graph, loss));
    size_t used = tn_arena_tensor_count(a) - before;
    if (used > TN_BACKWARD_TENSORS * tn_graph_node_count(forward))
        fail_msg("%s takes %zu tensors for %zu nodes", c->name, used, tn_graph_node_count(forward));
    assert_ok(tn_sched_run(sched, graph));
    for (int i = 0; i < 3 && x[i]; i++) {
        const tn_tensor *gradient = tn_graph_gradient(graph, x[i]);
        if (!gradient) fail_msg("%s: nothing reaches source %d", c->name, i);
        assert_true(gradient->type == TN_F32 && tn_same_shape(gradient, x[i]) && tn_is_contiguous(gradient));
        float *got = malloc(tn_nbytes(gradient));
        assert_ok(tn_tensor_get(gradient, got));
        for (int64_t k = 0; k < tn_nelements(x[i]); k++) {
            float *at = (float *)x[i]->data + k, kept = *at;
            /* The cast to f16 is coarse, so that the slope needs a large step. */
            double losses[2], h = c->op == TN_OP_CAST ? 0.25 : 0.01;
            for (int side = 0; side < 2; side++) {
                *at = (float)(kept + (side ? h : -h));
                assert_ok(tn_sched_run(sched, forward));
                losses[side] = *(float *)loss->data;
            }
            *at = kept;
            double expected = (losses[1] - losses[0]) / (2 * h), error = fabs(expected - got[k]);
            if (error > 4e-3 + 1e-2 * fabs(expected))
                fail_msg("%s: source %d, element %lld: %g, by differences %g", c->name, i, (long long)k,
                         (double)got[k], expected);
        }
        free(got);
    }
    tn_arena_free(a);
}

static void gradients_agree_with_finite_differences(void **state) {
    (void)state;
    tn_sched *sched;
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {"cpu"}, .n_threads = 2}, &sched));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i], sched);
    tn_sched_free(sched);
}

/* Every op has either a gradient rule and a case above, or is listed as having none. */
static void every_op_is_accounted_for(void **state) {
    (void)state;
    static const tn_op none[] = {TN_OP_NONE,
                                 TN_OP_SGN,
                                 TN_OP_STEP,
                                 TN_OP_ARGMAX,
                                 TN_OP_ARGSORT,
                                 TN_OP_TOP_K,
                                 TN_OP_ARANGE,
                                 TN_OP_SET_ROWS,

                                 TN_OP_IM2COL,

                                 TN_OP_CONV_TRANSPOSE_1D,
                                 TN_OP_CONV_TRANSPOSE_2D,

                                 TN_OP_UPSCALE,
                                 TN_OP_SELECT_POSITIONS,
                                 TN_OP_CAUSAL_CONV,
                                 TN_OP_LINEAR_ATTENTION,
                                 TN_OP_SELECTIVE_SCAN,
                                 TN_OP_RWKV7,
                                 TN_OP_TIMESTEP_EMBEDDING,
                                 TN_OP_CUSTOM};
    for (int op = 0; op < TN_OP_COUNT; op++) {
        bool tested = false, known = false;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) tested = tested || cases[i].op == (tn_op)op;
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) known = known || none[i] == (tn_op)op;
        if (tested == known || tn_op_has_gradient((tn_op)op) != tested)
            fail_msg("%s: gradient %d, tested %d, known to have none %d", tn_op_name((tn_op)op),
                     tn_op_has_gradient((tn_op)op), tested, known);
    }
}

static void unsupported_gradients_are_refused_or_zero(void **state) {
    (void)state;
    tn_arena *a;
    tn_graph *g;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &a));
    tn_tensor *w = tn_param(a, TN_F32, 8), *x = tn_input(a, TN_F32, 8);
    /* upscale has no gradient; the graph stays unchanged. */
    const int64_t larger[4] = {16, 1, 1, 1};
    tn_tensor *loss = tn_sum(a, tn_upscale(a, w, larger, TN_UPSCALE_NEAREST));
    assert_ok(tn_graph_of(a, loss, &g));
    assert_fails(TN_E_UNSUPPORTED, tn_graph_backward(a, g, loss));
    assert_non_null(strstr(tn_error(), "upscale"));
    assert_int_equal(tn_graph_node_count(g), 2);
    assert_null(tn_graph_gradient(g, w));
    /* upscale of an input is fine, as inputs need no gradient; the gradient of step is zero. */
    loss = tn_sum(a, tn_add(a, tn_mul(a, w, tn_step(a, w)), tn_upscale(a, x, w->ne, TN_UPSCALE_NEAREST)));
    assert_ok(tn_graph_new(a, 64, &g));
    assert_ok(tn_graph_add(g, loss));
    assert_ok(tn_graph_backward(a, g, loss));
    assert_non_null(tn_graph_gradient(g, w));
    assert_null(tn_graph_gradient(g, x));
    assert_fails(TN_E_STATE, tn_graph_backward(a, g, loss));
    /* Attention has no gradient for masks and sinks, nor for a causal case with fewer cells than tokens. */
    tn_attention_sources s = {.q = tn_input(a, TN_F32, 4, 1, 3),
                              .k = tn_param(a, TN_F32, 4, 1, 3),
                              .v = tn_input(a, TN_F32, 4, 1, 3),
                              .mask = tn_param(a, TN_F32, 3, 3)};
    loss = tn_sum(a, tn_attention(a, &s, &(tn_attention_params){.scale = 1}));
    assert_ok(tn_graph_of(a, loss, &g));
    assert_fails(TN_E_UNSUPPORTED, tn_graph_backward(a, g, loss));
    assert_non_null(strstr(tn_error(), "mask"));
    s.mask = NULL;
    s.q = tn_input(a, TN_F32, 4, 1, 5);
    loss = tn_sum(a, tn_attention(a, &s, &(tn_attention_params){.scale = 1, .causal = true}));
    assert_ok(tn_graph_of(a, loss, &g));
    assert_fails(TN_E_UNSUPPORTED, tn_graph_backward(a, g, loss));
    assert_non_null(strstr(tn_error(), "fewer cells"));
    loss = tn_sum(a, tn_soft_max(a, tn_input(a, TN_F32, 8), tn_param(a, TN_F32, 8), NULL, 1, 0));
    assert_ok(tn_graph_of(a, loss, &g));
    assert_fails(TN_E_UNSUPPORTED, tn_graph_backward(a, g, loss));
    /* Errors: no parameter, not a single value, not a node of the graph, arena full. */
    tn_tensor *other = tn_sum(a, x);
    assert_ok(tn_graph_of(a, other, &g));
    assert_fails(TN_E_INVALID, tn_graph_backward(a, g, other));
    assert_fails(TN_E_INVALID, tn_graph_backward(a, g, loss));
    tn_tensor *wide = tn_sqr(a, w);
    assert_ok(tn_graph_of(a, wide, &g));
    assert_fails(TN_E_INVALID, tn_graph_backward(a, g, wide));
    loss = tn_sum(a, tn_gelu(a, w));
    assert_ok(tn_graph_new(a, 8, &g));
    assert_ok(tn_graph_add(g, loss));
    assert_fails(TN_E_FULL, tn_graph_backward(a, g, loss));
    assert_int_equal(tn_graph_node_count(g), 2);
    assert_ok(tn_arena_status(a));
    tn_arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(every_op_is_accounted_for),
        cmocka_unit_test(unsupported_gradients_are_refused_or_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
