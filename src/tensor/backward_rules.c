/* Gradient rules: element-wise ops, reductions, data movement, norms, mat-mul and experts. Attention and convolutions
 * are in backward_attention.c and backward_conv.c. In comments g is the gradient of the op's result, d_ that of a
 * source. */
#include "tensor/backward.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

#define RULE(name) static tn_status name(tn__tape *tape, tn_tensor *t, tn_tensor *g)

/* ---- Element-wise ---- */

static tn_tensor *one_minus(tn_arena *a, tn_tensor *x) { return tn_scale(a, x, -1, 1); }

/* gelu(x) = x·Φ(x). Φ is computed from the result, ½ where x is 0. φ is the normal density. */
static tn_tensor *slope_of_gelu_erf(tn_arena *a, tn_tensor *x) {
    tn_tensor *at_zero = one_minus(a, tn_abs(a, tn_sgn(a, x)));
    tn_tensor *cdf = tn_add(a, tn_div(a, tn_gelu_erf(a, x), tn_add(a, x, at_zero)), tn_scale(a, at_zero, 0.5f, 0));
    tn_tensor *density = tn_scale(a, tn_exp(a, tn_scale(a, tn_sqr(a, x), -0.5f, 0)), 0.3989422804f, 0);
    return tn_add(a, tn_mul(a, density, x), cdf);
}
/* gelu(x) = ½x(1 + tanh u), u = √(2/π)(x + 0.044715x³) */
static tn_tensor *slope_of_gelu(tn_arena *a, tn_tensor *x) {
    const float c = 0.7978845608f, cubic = 0.044715f;
    tn_tensor *square = tn_sqr(a, x);
    tn_tensor *th = tn_tanh(a, tn_mul(a, tn_scale(a, square, c * cubic, c), x));
    tn_tensor *du = tn_scale(a, square, 3 * c * cubic, c);
    tn_tensor *rise = tn_mul(a, tn_mul(a, du, x), one_minus(a, tn_sqr(a, th)));
    return tn_scale(a, tn_add(a, rise, th), 0.5f, 0.5f);
}
/* x·σ(kx) */
static tn_tensor *slope_of_gated_sigmoid(tn_arena *a, tn_tensor *x, float k) {
    tn_tensor *s = tn_sigmoid(a, k == 1 ? x : tn_scale(a, x, k, 0));
    tn_tensor *rise = tn_mul(a, tn_mul(a, one_minus(a, s), x), s);
    return tn_add(a, k == 1 ? rise : tn_scale(a, rise, k, 0), s);
}
/* 1 where low < x < high */
static tn_tensor *between(tn_arena *a, tn_tensor *x, float low, float high) {
    return tn_mul(a, tn_step(a, tn_scale(a, x, 1, -low)), tn_step(a, tn_scale(a, x, -1, high)));
}

/* dy/dx of y = op(x), both f32. */
static tn_tensor *slope(tn_arena *a, const tn_tensor *t, tn_op op, tn_tensor *x, tn_tensor *y) {
    switch (op) {
    case TN_OP_SQR: return tn_scale(a, x, 2, 0);
    case TN_OP_COS: return tn_neg(a, tn_sin(a, x));
    case TN_OP_SIN: return tn_cos(a, x);
    case TN_OP_ABS: return tn_sgn(a, x);
    case TN_OP_CLAMP: return between(a, x, t->params.clamp.min, t->params.clamp.max);
    case TN_OP_TANH: return one_minus(a, tn_sqr(a, y));
    case TN_OP_EXP: return y;
    case TN_OP_ELU: /* 1 above 0, y + 1 below */ return tn_scale(a, tn_mul(a, y, one_minus(a, tn_step(a, x))), 1, 1);
    case TN_OP_RELU: return tn_step(a, x);
    case TN_OP_LEAKY_RELU:
        return tn_scale(a, tn_step(a, x), 1 - t->params.leaky_relu.slope, t->params.leaky_relu.slope);
    case TN_OP_SIGMOID: return tn_mul(a, y, one_minus(a, y));
    case TN_OP_GELU: return slope_of_gelu(a, x);
    case TN_OP_GELU_QUICK: return slope_of_gated_sigmoid(a, x, 1.702f);
    case TN_OP_GELU_ERF: return slope_of_gelu_erf(a, x);
    case TN_OP_SILU: return slope_of_gated_sigmoid(a, x, 1);
    case TN_OP_HARDSIGMOID: return tn_scale(a, between(a, x, -3, 3), 1.0f / 6, 0);
    case TN_OP_HARDSWISH: /* 0, then (2x + 3)/6, then 1 */
        return tn_add(a, tn_mul(a, tn_scale(a, x, 1.0f / 3, 0.5f), between(a, x, -3, 3)),
                      tn_step(a, tn_scale(a, x, 1, -3)));
    case TN_OP_SOFTPLUS: return tn_sigmoid(a, x);
    default: return NULL;
    }
}

RULE(unary) {
    tn_arena *a = tape->arena;
    tn_tensor *x = tn__back_f32(a, t->src[0]), *y = tn__back_f32(a, t);
    tn__back_give(tape, t->src[0], tn_mul(a, g, slope(a, t, t->op, x, y)));
    return TN_OK;
}
RULE(scale) {
    tn__back_give(tape, t->src[0], tn_scale(tape->arena, g, t->params.scale.scale, 0));
    return TN_OK;
}
RULE(neg) {
    tn__back_give(tape, t->src[0], tn_neg(tape->arena, g));
    return TN_OK;
}
RULE(log_of) {
    tn__back_give(tape, t->src[0], tn_div(tape->arena, g, t->src[0]));
    return TN_OK;
}
RULE(sqrt_of) {
    tn__back_give(tape, t->src[0], tn_scale(tape->arena, tn_div(tape->arena, g, t), 0.5f, 0));
    return TN_OK;
}
RULE(diag_mask) {
    tn__back_give(tape, t->src[0], tn_diag_mask_zero(tape->arena, g, t->params.diag_mask.n_past));
    return TN_OK;
}

RULE(add) {
    tn__back_give(tape, t->src[0], g);
    if (tn__back_needs(tape, t->src[1])) tn__back_give(tape, t->src[1], tn__back_unrepeat(tape->arena, g, t->src[1]));
    return TN_OK;
}
RULE(sub) {
    tn_arena *a = tape->arena;
    tn__back_give(tape, t->src[0], g);
    if (tn__back_needs(tape, t->src[1]))
        tn__back_give(tape, t->src[1], tn__back_unrepeat(a, tn_neg(a, g), t->src[1]));
    return TN_OK;
}
RULE(mul) {
    tn_arena *a = tape->arena;
    if (tn__back_needs(tape, t->src[0])) tn__back_give(tape, t->src[0], tn_mul(a, g, t->src[1]));
    if (tn__back_needs(tape, t->src[1]))
        tn__back_give(tape, t->src[1], tn__back_unrepeat(a, tn_mul(a, g, t->src[0]), t->src[1]));
    return TN_OK;
}
RULE(div_by) { /* d_y = -g·(x/y)/y */
    tn_arena *a = tape->arena;
    tn_tensor *y = t->src[1];
    if (tn__back_needs(tape, t->src[0])) tn__back_give(tape, t->src[0], tn_div(a, g, y));
    if (tn__back_needs(tape, y))
        tn__back_give(tape, y, tn__back_unrepeat(a, tn_neg(a, tn_div(a, tn_mul(a, g, t), y)), y));
    return TN_OK;
}

/* ---- Gated activations ---- */

static tn_op activation_of(tn_op op) {
    switch (op) {
    case TN_OP_REGLU: return TN_OP_RELU;
    case TN_OP_GEGLU: return TN_OP_GELU;
    case TN_OP_GEGLU_QUICK: return TN_OP_GELU_QUICK;
    case TN_OP_GEGLU_ERF: return TN_OP_GELU_ERF;
    default: return TN_OP_SILU;
    }
}
static tn_tensor *half_of(tn_arena *a, tn_tensor *x, int half) {
    const int64_t ne[4] = {x->ne[0] / 2, x->ne[1], x->ne[2], x->ne[3]};
    return tn_cont(a, tn_view(a, x, 4, ne, x->nb, (size_t)half * (size_t)ne[0] * x->nb[0]));
}
RULE(glu) {
    tn_arena *a = tape->arena;
    const bool swapped = t->params.glu.swapped, split = !t->src[1];
    tn_tensor *gate = tn__back_f32(a, split ? half_of(a, t->src[0], swapped) : t->src[0]);
    tn_tensor *up = tn__back_f32(a, split ? half_of(a, t->src[0], !swapped) : t->src[1]);
    tn_tensor *d_gate, *d_up;
    if (t->op == TN_OP_SWIGLU_OAI) { /* c·σ(αc)·(u + 1) with c = min(gate, limit), u = up within ±limit */
        const float limit = t->params.glu.limit, alpha = t->params.glu.alpha;
        tn_tensor *c = tn_clamp(a, gate, -INFINITY, limit), *u = tn_scale(a, tn_clamp(a, up, -limit, limit), 1, 1);
        d_gate =
            tn_mul(a, tn_mul(a, slope_of_gated_sigmoid(a, c, alpha), u), tn_step(a, tn_scale(a, gate, -1, limit)));
        d_up = tn_mul(a, tn_mul(a, tn_sigmoid(a, tn_scale(a, c, alpha, 0)), c), between(a, up, -limit, limit));
    } else {
        const tn_op act = activation_of(t->op);
        d_gate = tn_mul(a, slope(a, t, act, gate, NULL), up);
        d_up = tn_unary(a, act, gate);
    }
    d_gate = tn_mul(a, d_gate, g);
    d_up = tn_mul(a, d_up, g);
    if (split) {
        tn__back_give(tape, t->src[0], swapped ? tn_concat(a, d_up, d_gate, 0) : tn_concat(a, d_gate, d_up, 0));
        return TN_OK;
    }
    tn__back_give(tape, t->src[0], d_gate);
    tn__back_give(tape, t->src[1], d_up);
    return TN_OK;
}

/* ---- Reductions ---- */

RULE(sum) { /* sum, sum_rows: g for every term */
    tn__back_give(tape, t->src[0], tn_repeat(tape->arena, g, t->src[0]->ne));
    return TN_OK;
}
RULE(mean) {
    tn_tensor *share = tn_scale(tape->arena, g, 1 / (float)t->src[0]->ne[0], 0);
    tn__back_give(tape, t->src[0], tn_repeat(tape->arena, share, t->src[0]->ne));
    return TN_OK;
}
RULE(cumsum) { /* the sum of g from here to the end: the total minus the sum before */
    tn_arena *a = tape->arena;
    tn_tensor *before = tn_sub(a, tn_cumsum(a, g), g);
    tn__back_give(tape, t->src[0], tn_add(a, tn_neg(a, before), tn_sum_rows(a, g)));
    return TN_OK;
}
RULE(mix) { /* y[d,t] = Σ_k w[k,t]·x[d,k,t] */
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0], *w = t->src[1];
    tn_tensor *spread = tn_repeat(a, tn_reshape(a, g, g->ne[0], 1, g->ne[1]), x->ne);
    tn_tensor *weights = tn_reshape(a, tn__back_dense(a, w), 1, w->ne[0], w->ne[1]);
    if (tn__back_needs(tape, x)) tn__back_give(tape, x, tn_mul(a, spread, weights));
    if (tn__back_needs(tape, w)) tn__back_give(tape, w, tn_sum_rows(a, tn_mul(a, spread, x)));
    return TN_OK;
}
RULE(cross_entropy) { /* (soft_max(x)·Σlabels - labels)/rows */
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0], *labels = t->src[1];
    if (tn__back_needs(tape, labels)) return tn__back_refuse(t, "with respect to the labels");
    tn_tensor *p = tn_mul(a, tn_soft_max(a, x, NULL, NULL, 1, 0), tn_sum_rows(a, labels));
    tn_tensor *d = tn_scale(a, tn_sub(a, p, labels), 1 / (float)tn_nrows(x), 0);
    tn__back_give(tape, x, tn_mul(a, d, g));
    return TN_OK;
}

/* ---- Copies, views, data movement ---- */

RULE(pass) {
    tn__back_give(tape, t->src[0], g);
    return TN_OK;
}
RULE(permute) {
    int back[TN_MAX_DIMS];
    for (int i = 0; i < TN_MAX_DIMS; i++) back[t->params.permute.axis[i]] = i;
    tn__back_give(tape, t->src[0], tn_permute(tape->arena, g, back[0], back[1], back[2], back[3]));
    return TN_OK;
}
/* A view's elements are elements of its root, also through intermediate views. */
RULE(view) {
    tn_arena *a = tape->arena;
    tn_tensor *root = t->view_src;
    if (root->type != TN_F32 || !tn_is_contiguous(root)) return tn__back_refuse(t, "its root is not f32");
    tn_tensor *all = tn_acc(a, tn__back_zeros(a, root->ne), g, t->nb[1], t->nb[2], t->nb[3], t->view_offset);
    tn__back_give(tape, root, all);
    return TN_OK;
}
static tn_tensor *region_of(tn_arena *a, tn_tensor *g, const tn_tensor *t) {
    const size_t nb[4] = {4, t->params.region.nb1, t->params.region.nb2, t->params.region.nb3};
    return tn_cont(a, tn_view(a, g, 4, t->src[1]->ne, nb, t->params.region.offset));
}
RULE(acc) {
    tn__back_give(tape, t->src[0], g);
    if (tn__back_needs(tape, t->src[1])) tn__back_give(tape, t->src[1], region_of(tape->arena, g, t));
    return TN_OK;
}
RULE(set) { /* zero for the elements of x that y replaces */
    tn_arena *a = tape->arena;
    tn_tensor *y = t->src[1];
    if (tn__back_needs(tape, t->src[0]))
        tn__back_give(tape, t->src[0],
                      tn_set(a, g, tn__back_zeros(a, y->ne), t->params.region.nb1, t->params.region.nb2,
                             t->params.region.nb3, t->params.region.offset));
    if (tn__back_needs(tape, y)) tn__back_give(tape, y, region_of(a, g, t));
    return TN_OK;
}
RULE(concat) {
    tn_arena *a = tape->arena;
    const int dim = t->params.concat.dim;
    tn__back_give(tape, t->src[0], tn_cont(a, tn_view(a, g, 4, t->src[0]->ne, g->nb, 0)));
    size_t offset = (size_t)t->src[0]->ne[dim] * g->nb[dim];
    tn__back_give(tape, t->src[1], tn_cont(a, tn_view(a, g, 4, t->src[1]->ne, g->nb, offset)));
    return TN_OK;
}
RULE(repeat) {
    tn__back_give(tape, t->src[0], tn__back_unrepeat(tape->arena, g, t->src[0]));
    return TN_OK;
}
RULE(pad) {
    size_t offset = 0;
    for (int i = 0; i < TN_MAX_DIMS; i++) offset += (size_t)t->params.pad.before[i] * g->nb[i];
    tn__back_give(tape, t->src[0], tn_cont(tape->arena, tn_view(tape->arena, g, 4, t->src[0]->ne, g->nb, offset)));
    return TN_OK;
}
RULE(roll) {
    int32_t back[4];
    for (int i = 0; i < 4; i++) back[i] = -t->params.roll.shift[i];
    tn__back_give(tape, t->src[0], tn_roll(tape->arena, g, back));
    return TN_OK;
}

/* The gradient of a row that was read several times is the sum of the contributions. Work is divided by columns, so
 * that the order of summation does not depend on the number of threads. */
static void add_to_rows(const tn_custom_job *job) {
    const tn_tensor *out = job->result, *g = out->src[0], *rows = out->src[1];
    const int64_t begin = out->ne[0] * job->ith / job->nth, end = out->ne[0] * (job->ith + 1) / job->nth;
    for (int64_t r = 0; r < tn_nrows(out); r++)
        memset((float *)out->data + r * out->ne[0] + begin, 0, (size_t)(end - begin) * sizeof(float));
    for (int64_t i3 = 0; i3 < g->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < g->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < g->ne[1]; i1++) {
                const char *at = (const char *)rows->data + (size_t)i1 * rows->nb[0] + (size_t)i2 * rows->nb[1] +
                                 (size_t)i3 * rows->nb[2];
                int32_t row;
                memcpy(&row, at, sizeof row);
                if (row < 0 || row >= out->ne[1]) continue;
                const float *from = (const float *)g->data + ((i3 * g->ne[2] + i2) * g->ne[1] + i1) * g->ne[0];
                float *to = (float *)out->data + ((i3 * out->ne[2] + i2) * out->ne[1] + row) * out->ne[0];
                for (int64_t i = begin; i < end; i++) to[i] += from[i];
            }
}
RULE(get_rows) {
    tn_tensor *x = t->src[0], *const sources[] = {g, t->src[1]};
    tn__back_give(tape, x, tn_custom(tape->arena, TN_F32, TN_MAX_DIMS, x->ne, sources, 2, add_to_rows, NULL, 0));
    return TN_OK;
}

/* ---- Norms, soft-max, rope ---- */

/* With n = x/s normalised: (g - n·mean(g·n))/s; a norm that also centres subtracts the mean of g, too. */
static tn_tensor *through_norm(tn_arena *a, tn_tensor *g, tn_tensor *n, tn_tensor *s, bool centred) {
    tn_tensor *d = tn_sub(a, g, tn_mul(a, n, tn_mean(a, tn_mul(a, g, n))));
    if (centred) d = tn_sub(a, d, tn_mean(a, g));
    return tn_div(a, d, s);
}
static tn_tensor *deviation(tn_arena *a, tn_tensor *x, float eps) {
    return tn_sqrt(a, tn_scale(a, tn_mean(a, tn_sqr(a, x)), 1, eps));
}
RULE(norm) { /* norm and rms_norm, with weight and bias */
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0], *weight = t->src[1], *bias = t->src[2];
    const bool centred = t->op == TN_OP_NORM;
    tn_tensor *from = centred ? tn_sub(a, x, tn_mean(a, x)) : x;
    tn_tensor *s = deviation(a, from, t->params.norm.eps), *n = tn_div(a, from, s);
    if (tn__back_needs(tape, weight)) tn__back_give(tape, weight, tn__back_unrepeat(a, tn_mul(a, g, n), weight));
    if (tn__back_needs(tape, bias)) tn__back_give(tape, bias, tn__back_unrepeat(a, g, bias));
    if (tn__back_needs(tape, x))
        tn__back_give(tape, x, through_norm(a, weight ? tn_mul(a, g, weight) : g, n, s, centred));
    return TN_OK;
}
RULE(group_norm) {
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0];
    const int64_t groups = t->params.norm.groups;
    if (x->ne[2] % groups) return tn__back_refuse(t, "the last group is smaller than the others");
    const int64_t row = x->ne[0] * x->ne[1] * x->ne[2] / groups, rows = groups * x->ne[3];
    tn_tensor *flat = tn_reshape(a, x, row, rows), *from = tn_sub(a, flat, tn_mean(a, flat));
    tn_tensor *s = deviation(a, from, t->params.norm.eps);
    tn__back_give(tape, x, through_norm(a, tn_reshape(a, g, row, rows), tn_div(a, from, s), s, true));
    return TN_OK;
}
RULE(l2_norm) { /* y = x/max(|x|, eps): (g - y·Σ(g·y))/|x|, and g/eps where that is larger */
    tn_arena *a = tape->arena;
    const float eps = t->params.norm.eps;
    tn_tensor *length = tn_sqrt(a, tn_sum_rows(a, tn_sqr(a, t->src[0])));
    tn_tensor *along = tn_mul(a, tn_sum_rows(a, tn_mul(a, g, t)), tn_step(a, tn_scale(a, length, 1, -eps)));
    tn_tensor *d = tn_sub(a, g, tn_mul(a, t, along));
    tn__back_give(tape, t->src[0], tn_div(a, d, tn_clamp(a, length, eps, INFINITY)));
    return TN_OK;
}
RULE(hadamard) { /* the matrix is symmetric */
    tn__back_give(tape, t->src[0], tn_hadamard(tape->arena, g, t->params.hadamard.block));
    return TN_OK;
}
RULE(soft_max) { /* y·(g - Σ(g·y))·scale; sinks and masks are in y already */
    tn_arena *a = tape->arena;
    if (tn__back_needs(tape, t->src[1]) || tn__back_needs(tape, t->src[2]))
        return tn__back_refuse(t, "with respect to mask or sinks");
    tn_tensor *d = tn_mul(a, tn_sub(a, g, tn_sum_rows(a, tn_mul(a, g, t))), t);
    tn__back_give(tape, t->src[0], tn_scale(a, d, t->params.soft_max.scale, 0));
    return TN_OK;
}
RULE(rope) {
    if (tn__back_needs(tape, t->src[2])) return tn__back_refuse(t, "with respect to the frequencies");
    tn_rope_params p = t->params.rope;
    p.reverse = !p.reverse;
    tn__back_give(tape, t->src[0], tn_rope(tape->arena, g, t->src[1], t->src[2], &p));
    return TN_OK;
}

/* ---- Matrix multiplication ---- */

RULE(mul_mat) { /* z[m,n] = Σ_k x[k,m]·y[k,n] */
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0], *y = t->src[1];
    if (tn__back_needs(tape, x))
        tn__back_give(tape, x, tn__back_ungroup(a, tn_out_prod(a, tn__back_f32(a, y), g), x->ne));
    if (tn__back_needs(tape, y)) {
        tn_tensor *turned = tn_cont(a, tn_transpose(a, tn__back_f32(a, x)));
        tn__back_give(tape, y, tn_mul_mat_precise(a, turned, g));
    }
    return TN_OK;
}
RULE(out_prod) { /* z[m,n] = Σ_k x[m,k]·y[n,k] */
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0], *y = t->src[1];
    if (x->ne[2] != y->ne[2] || x->ne[3] != y->ne[3]) return tn__back_refuse(t, "its first source is shared");
    if (tn__back_needs(tape, x)) tn__back_give(tape, x, tn_out_prod(a, g, tn_cont(a, tn_transpose(a, y))));
    if (tn__back_needs(tape, y)) tn__back_give(tape, y, tn_mul_mat_precise(a, g, tn__back_dense(a, x)));
    return TN_OK;
}

/* ---- Experts ---- */

RULE(add_id) { /* x[d,k,t] + y[d, ids[k,t]] */
    tn_arena *a = tape->arena;
    tn_tensor *y = t->src[1], *ids = t->src[2];
    tn__back_give(tape, t->src[0], g);
    if (!tn__back_needs(tape, y)) return TN_OK;
    const int64_t pairs = ids->ne[0] * ids->ne[1];
    tn_tensor *const sources[] = {tn_reshape(a, g, g->ne[0], pairs), tn_reshape(a, tn__back_dense(a, ids), pairs)};
    tn__back_give(tape, y, tn_custom(a, TN_F32, TN_MAX_DIMS, y->ne, sources, 2, add_to_rows, NULL, 0));
    return TN_OK;
}

/* The gradient of experts x[k,m,e], chosen by ids[u,t]: the sum of y[k,u,t]·g[m,u,t] over all (u,t) with expert e.
 * Work is divided by rows m, so that the order of summation does not depend on the number of threads. */
static void add_to_experts(const tn_custom_job *job) {
    const tn_tensor *out = job->result, *y = out->src[0], *g = out->src[1], *ids = out->src[2];
    const int64_t k = out->ne[0], m = out->ne[1], begin = m * job->ith / job->nth,
                  end = m * (job->ith + 1) / job->nth;
    for (int64_t e = 0; e < out->ne[2]; e++)
        memset((float *)out->data + (e * m + begin) * k, 0, (size_t)((end - begin) * k) * sizeof(float));
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t u = 0; u < ids->ne[0]; u++) {
            int32_t e;
            memcpy(&e, (const char *)ids->data + (size_t)u * ids->nb[0] + (size_t)t * ids->nb[1], sizeof e);
            if (e < 0 || e >= out->ne[2]) continue;
            const float *from = (const float *)y->data + (t * y->ne[1] + (y->ne[1] == 1 ? 0 : u)) * k;
            const float *by = (const float *)g->data + (t * g->ne[1] + u) * m;
            for (int64_t row = begin; row < end; row++) {
                float *to = (float *)out->data + (e * m + row) * k;
                for (int64_t i = 0; i < k; i++) to[i] += by[row] * from[i];
            }
        }
}
RULE(mul_mat_id) {
    tn_arena *a = tape->arena;
    tn_tensor *x = t->src[0], *y = t->src[1], *ids = t->src[2];
    if (tn__back_needs(tape, x)) {
        tn_tensor *const sources[] = {tn__back_dense(a, y), g, ids};
        tn__back_give(tape, x, tn_custom(a, TN_F32, TN_MAX_DIMS, x->ne, sources, 3, add_to_experts, NULL, 0));
    }
    if (tn__back_needs(tape, y)) {
        tn_tensor *turned = tn_cont(a, tn_transpose(a, tn__back_f32(a, x)));
        tn__back_give(tape, y, tn__back_unrepeat(a, tn_mul_mat_id(a, turned, g, ids), y));
    }
    return TN_OK;
}

const tn__backward_rule tn__backward_rules[TN_OP_COUNT] = {
    [TN_OP_DUP] = pass,
    [TN_OP_CAST] = pass,
    [TN_OP_CONT] = pass,
    [TN_OP_CPY] = pass,
    [TN_OP_VIEW] = view,
    [TN_OP_RESHAPE] = pass,
    [TN_OP_PERMUTE] = permute,
    [TN_OP_TRANSPOSE] = permute,
    [TN_OP_ADD] = add,
    [TN_OP_SUB] = sub,
    [TN_OP_MUL] = mul,
    [TN_OP_DIV] = div_by,
    [TN_OP_SCALE] = scale,
    [TN_OP_SQR] = unary,
    [TN_OP_SQRT] = sqrt_of,
    [TN_OP_LOG] = log_of,
    [TN_OP_EXP] = unary,
    [TN_OP_SIN] = unary,
    [TN_OP_COS] = unary,
    [TN_OP_CLAMP] = unary,
    [TN_OP_NEG] = neg,
    [TN_OP_ABS] = unary,
    [TN_OP_TANH] = unary,
    [TN_OP_ELU] = unary,
    [TN_OP_RELU] = unary,
    [TN_OP_LEAKY_RELU] = unary,
    [TN_OP_SIGMOID] = unary,
    [TN_OP_GELU] = unary,
    [TN_OP_GELU_QUICK] = unary,
    [TN_OP_GELU_ERF] = unary,
    [TN_OP_SILU] = unary,
    [TN_OP_HARDSWISH] = unary,
    [TN_OP_HARDSIGMOID] = unary,
    [TN_OP_SOFTPLUS] = unary,
    [TN_OP_REGLU] = glu,
    [TN_OP_GEGLU] = glu,
    [TN_OP_GEGLU_QUICK] = glu,
    [TN_OP_GEGLU_ERF] = glu,
    [TN_OP_SWIGLU] = glu,
    [TN_OP_SWIGLU_OAI] = glu,
    [TN_OP_SUM] = sum,
    [TN_OP_SUM_ROWS] = sum,
    [TN_OP_MEAN] = mean,
    [TN_OP_CUMSUM] = cumsum,
    [TN_OP_CONCAT] = concat,
    [TN_OP_REPEAT] = repeat,
    [TN_OP_PAD] = pad,
    [TN_OP_ROLL] = roll,
    [TN_OP_GET_ROWS] = get_rows,
    [TN_OP_ACC] = acc,
    [TN_OP_SET] = set,
    [TN_OP_NORM] = norm,
    [TN_OP_RMS_NORM] = norm,
    [TN_OP_L2_NORM] = l2_norm,
    [TN_OP_GROUP_NORM] = group_norm,
    [TN_OP_SOFT_MAX] = soft_max,
    [TN_OP_DIAG_MASK_INF] = diag_mask,
    [TN_OP_DIAG_MASK_ZERO] = diag_mask,
    [TN_OP_ROPE] = rope,
    [TN_OP_HADAMARD] = hadamard,
    [TN_OP_MUL_MAT] = mul_mat,
    [TN_OP_OUT_PROD] = out_prod,
    [TN_OP_MUL_MAT_ID] = mul_mat_id,
    [TN_OP_ADD_ID] = add_id,
    [TN_OP_MIX] = mix,
    [TN_OP_ATTENTION] = tn__backward_attention,
    [TN_OP_CONV_1D] = tn__backward_conv,
    [TN_OP_CONV_2D] = tn__backward_conv,
    [TN_OP_POOL_1D] = tn__backward_pool,
    [TN_OP_POOL_2D] = tn__backward_pool,
    [TN_OP_CROSS_ENTROPY_LOSS] = cross_entropy,
};
