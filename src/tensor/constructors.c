/* Constructors of ops: each sets sources and parameters; tn__op_new does the rest. */
#include "tensor/tensor_internal.h"

#include <string.h>

#define SOURCES(...)                                                                                                 \
    (tn_tensor *const[]){__VA_ARGS__}, (int)(sizeof((tn_tensor *const[]){__VA_ARGS__}) / sizeof(tn_tensor *))

static tn_tensor *plain(tn_arena *a, tn_op op, tn_tensor *x) { return tn__op_new(a, op, SOURCES(x), NULL, NULL); }
static tn_tensor *refuse_op(tn_arena *a, tn_status status) { return tn__arena_fail(a, status); }

tn_tensor *tn_dup(tn_arena *a, tn_tensor *x) { return plain(a, TN_OP_DUP, x); }
tn_tensor *tn_cont(tn_arena *a, tn_tensor *x) { return plain(a, TN_OP_CONT, x); }
tn_tensor *tn_cast(tn_arena *a, tn_tensor *x, tn_type type) {
    return tn__op_new(a, TN_OP_CAST, SOURCES(x), NULL, &(tn__wanted){.type = type});
}
tn_tensor *tn_cpy(tn_arena *a, tn_tensor *x, tn_tensor *y) {
    return tn__op_new(a, TN_OP_CPY, SOURCES(x, y), NULL, NULL);
}

static bool wanted_shape(tn_arena *a, tn_op op, tn__wanted *w, int n_dims, const int64_t *ne) {
    if (n_dims < 1 || n_dims > TN_MAX_DIMS || !ne) {
        tn_fail(TN_E_INVALID, "%s: 1 to %d dimensions, not %d", tn_op_name(op), TN_MAX_DIMS, n_dims);
        refuse_op(a, TN_E_INVALID);
        return false;
    }
    w->n_dims = n_dims;
    for (int i = 0; i < TN_MAX_DIMS; i++) w->ne[i] = i < n_dims ? ne[i] : 1;
    return true;
}

tn_tensor *tn_view(tn_arena *a, tn_tensor *x, int n_dims, const int64_t *ne, const size_t *nb, size_t offset) {
    tn__wanted w = {.offset = offset};
    if (!x || !wanted_shape(a, TN_OP_VIEW, &w, n_dims, ne)) return plain(a, TN_OP_VIEW, NULL);
    if (nb) {
        for (int i = 0; i < TN_MAX_DIMS; i++) w.nb[i] = i < n_dims ? nb[i] : 0;
        /* Strides of the remaining dimensions, which have one element, stay in ascending order. */
        for (int i = n_dims; i < TN_MAX_DIMS; i++) {
            size_t block = i == 1 ? (size_t)(w.ne[0] / tn_type_block(x->type)) : (size_t)w.ne[i - 1];
            if (__builtin_mul_overflow(w.nb[i - 1], block, &w.nb[i])) w.nb[i] = 0;
        }
    } else {
        for (int i = 0; i < TN_MAX_DIMS; i++)
            if (w.ne[i] < 0) {
                tn_fail(TN_E_SHAPE, "view: dimension %d is negative: %lld", i, (long long)w.ne[i]);
                return refuse_op(a, TN_E_SHAPE);
            }
        if (!tn__set_strides(x->type, w.ne, w.nb)) {
            tn_fail(TN_E_SHAPE, "view: rows of %lld are not whole blocks of %s, or the size overflows",
                    (long long)w.ne[0], tn_type_name(x->type));
            return refuse_op(a, TN_E_SHAPE);
        }
    }
    return tn__op_new(a, TN_OP_VIEW, SOURCES(x), NULL, &w);
}
tn_tensor *tn_reshape_to(tn_arena *a, tn_tensor *x, int n_dims, const int64_t *ne) {
    tn__wanted w = {0};
    if (!wanted_shape(a, TN_OP_RESHAPE, &w, n_dims, ne)) return NULL;
    return tn__op_new(a, TN_OP_RESHAPE, SOURCES(x), NULL, &w);
}
tn_tensor *tn_permute(tn_arena *a, tn_tensor *x, int d0, int d1, int d2, int d3) {
    return tn__op_new(a, TN_OP_PERMUTE, SOURCES(x), &(tn_op_params){.permute = {{d0, d1, d2, d3}}}, NULL);
}
tn_tensor *tn_transpose(tn_arena *a, tn_tensor *x) { return plain(a, TN_OP_TRANSPOSE, x); }

#define BINARY(name, OP)                                                                                             \
    tn_tensor *tn_##name(tn_arena *a, tn_tensor *x, tn_tensor *y) {                                                  \
        return tn__op_new(a, TN_OP_##OP, SOURCES(x, y), NULL, NULL);                                                 \
    }
BINARY(add, ADD)
BINARY(sub, SUB)
BINARY(mul, MUL)
BINARY(div, DIV)
BINARY(mul_mat, MUL_MAT)
BINARY(out_prod, OUT_PROD)
BINARY(mix, MIX)
BINARY(get_rows, GET_ROWS)
BINARY(cross_entropy_loss, CROSS_ENTROPY_LOSS)

tn_tensor *tn_mul_mat_precise(tn_arena *a, tn_tensor *x, tn_tensor *y) {
    return tn__op_new(a, TN_OP_MUL_MAT, SOURCES(x, y), &(tn_op_params){.mul_mat = {1}}, NULL);
}
tn_tensor *tn_mul_mat_id(tn_arena *a, tn_tensor *x, tn_tensor *y, tn_tensor *ids) {
    return tn__op_new(a, TN_OP_MUL_MAT_ID, SOURCES(x, y, ids), NULL, NULL);
}
tn_tensor *tn_add_id(tn_arena *a, tn_tensor *x, tn_tensor *y, tn_tensor *ids) {
    return tn__op_new(a, TN_OP_ADD_ID, SOURCES(x, y, ids), NULL, NULL);
}
tn_tensor *tn_set_rows(tn_arena *a, tn_tensor *x, tn_tensor *y, tn_tensor *rows) {
    return tn__op_new(a, TN_OP_SET_ROWS, SOURCES(x, y, rows), NULL, NULL);
}

tn_tensor *tn_scale(tn_arena *a, tn_tensor *x, float scale, float bias) {
    return tn__op_new(a, TN_OP_SCALE, SOURCES(x), &(tn_op_params){.scale = {scale, bias}}, NULL);
}
tn_tensor *tn_clamp(tn_arena *a, tn_tensor *x, float min, float max) {
    return tn__op_new(a, TN_OP_CLAMP, SOURCES(x), &(tn_op_params){.clamp = {min, max}}, NULL);
}
tn_tensor *tn_leaky_relu(tn_arena *a, tn_tensor *x, float slope) {
    return tn__op_new(a, TN_OP_LEAKY_RELU, SOURCES(x), &(tn_op_params){.leaky_relu = {slope}}, NULL);
}
tn_tensor *tn_unary(tn_arena *a, tn_op op, tn_tensor *x) {
    if (tn_op_get_family(op) != TN_FAMILY_UNARY || op == TN_OP_SCALE || op == TN_OP_CLAMP || op == TN_OP_LEAKY_RELU ||
        op == TN_OP_DIAG_MASK_INF || op == TN_OP_DIAG_MASK_ZERO) {
        tn_fail(TN_E_INVALID, "'%s' is not a unary op without parameters", tn_op_name(op));
        return refuse_op(a, TN_E_INVALID);
    }
    return plain(a, op, x);
}
#define UNARY(name, OP)                                                                                              \
    tn_tensor *tn_##name(tn_arena *a, tn_tensor *x) { return plain(a, TN_OP_##OP, x); }
UNARY(sqr, SQR)
UNARY(sqrt, SQRT)
UNARY(log_of, LOG)
UNARY(exp, EXP)
UNARY(sin, SIN)
UNARY(cos, COS)
UNARY(neg, NEG)
UNARY(abs, ABS)
UNARY(sgn, SGN)
UNARY(step, STEP)
UNARY(tanh, TANH)
UNARY(elu, ELU)
UNARY(relu, RELU)
UNARY(sigmoid, SIGMOID)
UNARY(gelu, GELU)
UNARY(gelu_quick, GELU_QUICK)
UNARY(gelu_erf, GELU_ERF)
UNARY(silu, SILU)
UNARY(hardswish, HARDSWISH)
UNARY(hardsigmoid, HARDSIGMOID)
UNARY(softplus, SOFTPLUS)
UNARY(sum, SUM)
UNARY(sum_rows, SUM_ROWS)
UNARY(mean, MEAN)
UNARY(cumsum, CUMSUM)
UNARY(argmax, ARGMAX)

tn_tensor *tn_glu(tn_arena *a, tn_op op, tn_tensor *gate, tn_tensor *up, bool swapped) {
    if (tn_op_get_family(op) != TN_FAMILY_GLU) {
        tn_fail(TN_E_INVALID, "'%s' is not a gated activation", tn_op_name(op));
        return refuse_op(a, TN_E_INVALID);
    }
    /* Default constants of swiglu_oai: those of the models that use it. */
    tn_op_params p = {.glu = {.swapped = swapped}};
    if (op == TN_OP_SWIGLU_OAI) {
        p.glu.alpha = 1.702f;
        p.glu.limit = 7.0f;
    }
    return tn__op_new(a, op, SOURCES(gate, up), &p, NULL);
}
/* In the two-source forms a NULL `up` is an error; it does not select the one-source form. */
static tn_tensor *gated_op(tn_arena *a, tn_op op, tn_tensor *gate, tn_tensor *up) {
    if (!up) return tn__op_new(a, op, SOURCES(NULL, NULL), NULL, NULL);
    return tn_glu(a, op, gate, up, false);
}
tn_tensor *tn_reglu(tn_arena *a, tn_tensor *gate, tn_tensor *up) { return gated_op(a, TN_OP_REGLU, gate, up); }
tn_tensor *tn_geglu(tn_arena *a, tn_tensor *gate, tn_tensor *up) { return gated_op(a, TN_OP_GEGLU, gate, up); }
tn_tensor *tn_geglu_quick(tn_arena *a, tn_tensor *gate, tn_tensor *up) {
    return gated_op(a, TN_OP_GEGLU_QUICK, gate, up);
}
tn_tensor *tn_geglu_erf(tn_arena *a, tn_tensor *gate, tn_tensor *up) {
    return gated_op(a, TN_OP_GEGLU_ERF, gate, up);
}
tn_tensor *tn_swiglu(tn_arena *a, tn_tensor *gate, tn_tensor *up) { return gated_op(a, TN_OP_SWIGLU, gate, up); }
tn_tensor *tn_swiglu_oai(tn_arena *a, tn_tensor *gate, tn_tensor *up, float alpha, float limit) {
    return tn__op_new(a, TN_OP_SWIGLU_OAI, SOURCES(up ? gate : NULL, up), &(tn_op_params){.glu = {0, alpha, limit}},
                      NULL);
}

tn_tensor *tn_argsort(tn_arena *a, tn_tensor *x, bool descending) {
    return tn__op_new(a, TN_OP_ARGSORT, SOURCES(x), &(tn_op_params){.argsort = {descending}}, NULL);
}
tn_tensor *tn_top_k(tn_arena *a, tn_tensor *x, int k) {
    return tn__op_new(a, TN_OP_TOP_K, SOURCES(x), &(tn_op_params){.top_k = {k}}, NULL);
}

tn_tensor *tn_concat(tn_arena *a, tn_tensor *x, tn_tensor *y, int dim) {
    return tn__op_new(a, TN_OP_CONCAT, SOURCES(x, y), &(tn_op_params){.concat = {dim}}, NULL);
}
tn_tensor *tn_repeat(tn_arena *a, tn_tensor *x, const int64_t ne[TN_MAX_DIMS]) {
    tn__wanted w = {0};
    if (!wanted_shape(a, TN_OP_REPEAT, &w, TN_MAX_DIMS, ne)) return NULL;
    w.n_dims = 0;
    return tn__op_new(a, TN_OP_REPEAT, SOURCES(x), NULL, &w);
}
tn_tensor *tn_pad(tn_arena *a, tn_tensor *x, const int32_t before[4], const int32_t after[4]) {
    tn_op_params p = {0};
    for (int i = 0; i < 4; i++) {
        p.pad.before[i] = before ? before[i] : 0;
        p.pad.after[i] = after ? after[i] : 0;
    }
    return tn__op_new(a, TN_OP_PAD, SOURCES(x), &p, NULL);
}
tn_tensor *tn_roll(tn_arena *a, tn_tensor *x, const int32_t shift[4]) {
    tn_op_params p = {0};
    for (int i = 0; shift && i < 4; i++) p.roll.shift[i] = shift[i];
    return tn__op_new(a, TN_OP_ROLL, SOURCES(x), &p, NULL);
}
tn_tensor *tn_arange(tn_arena *a, float start, float stop, float step) {
    return tn__op_new(a, TN_OP_ARANGE, NULL, 0, &(tn_op_params){.arange = {start, stop, step}}, NULL);
}
static tn_tensor *region(tn_arena *a, tn_op op, tn_tensor *x, tn_tensor *y, size_t nb1, size_t nb2, size_t nb3,
                         size_t offset) {
    return tn__op_new(a, op, SOURCES(x, y), &(tn_op_params){.region = {nb1, nb2, nb3, offset}}, NULL);
}
tn_tensor *tn_acc(tn_arena *a, tn_tensor *x, tn_tensor *y, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return region(a, TN_OP_ACC, x, y, nb1, nb2, nb3, offset);
}
tn_tensor *tn_set(tn_arena *a, tn_tensor *x, tn_tensor *y, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return region(a, TN_OP_SET, x, y, nb1, nb2, nb3, offset);
}

tn_tensor *tn_norm(tn_arena *a, tn_tensor *x, tn_tensor *weight, tn_tensor *bias, float eps) {
    return tn__op_new(a, TN_OP_NORM, SOURCES(x, weight, bias), &(tn_op_params){.norm = {eps, 0}}, NULL);
}
tn_tensor *tn_rms_norm(tn_arena *a, tn_tensor *x, tn_tensor *weight, float eps) {
    return tn__op_new(a, TN_OP_RMS_NORM, SOURCES(x, weight), &(tn_op_params){.norm = {eps, 0}}, NULL);
}
tn_tensor *tn_l2_norm(tn_arena *a, tn_tensor *x, float eps) {
    return tn__op_new(a, TN_OP_L2_NORM, SOURCES(x), &(tn_op_params){.norm = {eps, 0}}, NULL);
}
tn_tensor *tn_hadamard(tn_arena *a, tn_tensor *x, int block) {
    return tn__op_new(a, TN_OP_HADAMARD, SOURCES(x), &(tn_op_params){.hadamard = {block}}, NULL);
}
tn_tensor *tn_group_norm(tn_arena *a, tn_tensor *x, int groups, float eps) {
    return tn__op_new(a, TN_OP_GROUP_NORM, SOURCES(x), &(tn_op_params){.norm = {eps, groups}}, NULL);
}
tn_tensor *tn_soft_max(tn_arena *a, tn_tensor *x, tn_tensor *mask, tn_tensor *sinks, float scale, float max_bias) {
    return tn__op_new(a, TN_OP_SOFT_MAX, SOURCES(x, mask, sinks), &(tn_op_params){.soft_max = {scale, max_bias}},
                      NULL);
}
tn_tensor *tn_diag_mask_inf(tn_arena *a, tn_tensor *x, int n_past) {
    return tn__op_new(a, TN_OP_DIAG_MASK_INF, SOURCES(x), &(tn_op_params){.diag_mask = {n_past}}, NULL);
}
tn_tensor *tn_diag_mask_zero(tn_arena *a, tn_tensor *x, int n_past) {
    return tn__op_new(a, TN_OP_DIAG_MASK_ZERO, SOURCES(x), &(tn_op_params){.diag_mask = {n_past}}, NULL);
}
tn_rope_params tn_rope_params_default(int32_t dims, tn_rope_mode mode) {
    return (tn_rope_params){.dims = dims,
                            .mode = mode,
                            .base = 10000,
                            .freq_scale = 1,
                            .attn_factor = 1,
                            .beta_fast = 32,
                            .beta_slow = 1};
}
tn_tensor *tn_rope(tn_arena *a, tn_tensor *x, tn_tensor *pos, tn_tensor *factors, const tn_rope_params *params) {
    tn_op_params p = {0};
    if (params) p.rope = *params;
    return tn__op_new(a, TN_OP_ROPE, SOURCES(x, pos, factors), &p, NULL);
}

tn_conv_params tn_conv_params_default(void) {
    return (tn_conv_params){.stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
}
static tn_op_params conv_params(const tn_conv_params *p) {
    return (tn_op_params){.conv = p ? *p : tn_conv_params_default()};
}
tn_tensor *tn_im2col(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p, tn_type type) {
    tn_op_params params = conv_params(p);
    return tn__op_new(a, TN_OP_IM2COL, SOURCES(kernel, x), &params, &(tn__wanted){.type = type});
}
tn_tensor *tn_conv_1d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p) {
    tn_op_params params = conv_params(p);
    return tn__op_new(a, TN_OP_CONV_1D, SOURCES(kernel, x), &params, NULL);
}
tn_tensor *tn_conv_2d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p) {
    tn_op_params params = conv_params(p);
    params.conv.is_2d = 1;
    return tn__op_new(a, TN_OP_CONV_2D, SOURCES(kernel, x), &params, NULL);
}
tn_tensor *tn_conv_1d_dw(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p) {
    tn_op_params params = conv_params(p);
    if (x) params.conv.groups = (int32_t)x->ne[1];
    return tn__op_new(a, TN_OP_CONV_1D, SOURCES(kernel, x), &params, NULL);
}
tn_tensor *tn_conv_2d_dw(tn_arena *a, tn_tensor *kernel, tn_tensor *x, const tn_conv_params *p) {
    tn_op_params params = conv_params(p);
    params.conv.is_2d = 1;
    if (x) params.conv.groups = (int32_t)x->ne[2];
    return tn__op_new(a, TN_OP_CONV_2D, SOURCES(kernel, x), &params, NULL);
}
static tn_tensor *conv_transpose(tn_arena *a, tn_op op, tn_tensor *kernel, tn_tensor *x, int stride) {
    tn_op_params params = conv_params(NULL);
    params.conv.stride[0] = params.conv.stride[1] = stride;
    return tn__op_new(a, op, SOURCES(kernel, x), &params, NULL);
}
tn_tensor *tn_conv_transpose_1d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, int stride) {
    return conv_transpose(a, TN_OP_CONV_TRANSPOSE_1D, kernel, x, stride);
}
tn_tensor *tn_conv_transpose_2d(tn_arena *a, tn_tensor *kernel, tn_tensor *x, int stride) {
    return conv_transpose(a, TN_OP_CONV_TRANSPOSE_2D, kernel, x, stride);
}
static tn_tensor *pool(tn_arena *a, tn_op op, tn_tensor *x, const tn_pool_params *p) {
    tn_op_params params = {0};
    if (p) params.pool = *p;
    return tn__op_new(a, op, SOURCES(x), &params, NULL);
}
tn_tensor *tn_pool_1d(tn_arena *a, tn_tensor *x, const tn_pool_params *p) { return pool(a, TN_OP_POOL_1D, x, p); }
tn_tensor *tn_pool_2d(tn_arena *a, tn_tensor *x, const tn_pool_params *p) { return pool(a, TN_OP_POOL_2D, x, p); }
tn_tensor *tn_upscale(tn_arena *a, tn_tensor *x, const int64_t ne[TN_MAX_DIMS], tn_upscale_mode mode) {
    tn__wanted w = {0};
    if (!wanted_shape(a, TN_OP_UPSCALE, &w, TN_MAX_DIMS, ne)) return NULL;
    w.n_dims = 0;
    return tn__op_new(a, TN_OP_UPSCALE, SOURCES(x), &(tn_op_params){.upscale = {(int32_t)mode}}, &w);
}

tn_tensor *tn_attention(tn_arena *a, const tn_attention_sources *s, const tn_attention_params *p) {
    static const tn_attention_sources none;
    tn_op_params params = {0};
    if (!s) s = &none;
    if (p) params.attention = *p;
    return tn__op_new(a, TN_OP_ATTENTION,
                      SOURCES(s->q, s->k, s->v, s->q_pos, s->pages, s->mask, s->sinks, s->selected, s->bias_table),
                      &params, NULL);
}
tn_tensor *tn_timestep_embedding(tn_arena *a, tn_tensor *steps, int dim, int max_period) {
    return tn__op_new(a, TN_OP_TIMESTEP_EMBEDDING, SOURCES(steps), &(tn_op_params){.timestep = {dim, max_period}},
                      NULL);
}
tn_tensor *tn_custom(tn_arena *a, tn_type type, int n_dims, const int64_t *ne, tn_tensor *const *src, int n_src,
                     tn_custom_fn fn, void *user, int n_tasks) {
    tn__wanted w = {.type = type};
    if (!wanted_shape(a, TN_OP_CUSTOM, &w, n_dims, ne)) return NULL;
    if (n_src < 0 || n_src > TN_MAX_SRC) {
        tn_fail(TN_E_INVALID, "custom: 0 to %d sources, not %d", TN_MAX_SRC, n_src);
        return refuse_op(a, TN_E_INVALID);
    }
    for (int i = 0; i < n_src; i++) {
        if (!src[i]) return tn__arena_fail(a, tn_fail(TN_E_INVALID, "custom: source %d is NULL", i));
    }
    tn_op_params params;
    memset(&params, 0, sizeof params); /* padding between members must be zero too */
    params.custom.fn = fn;
    params.custom.user = user;
    params.custom.n_tasks = n_tasks;
    return tn__op_new(a, TN_OP_CUSTOM, src, n_src, &params, &w);
}
