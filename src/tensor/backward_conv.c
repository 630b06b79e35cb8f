/* Gradients of convolutions and pooling: plain loops in custom ops. Work is divided by planes of the result, so that
 * the order of summation does not depend on the number of threads. */
#include "tensor/backward.h"

#include "base/checked.h"

#include <string.h>

/* ---- Convolutions ---- */

/* A convolution in two dimensions; one-dimensional ones have a height of 1. */
typedef struct conv_shape {
    int64_t w, h, ow, oh, kw, kh, in, out, batch, per_group; /* channels of x in a group */
    int64_t stride[2], pad[2], dilation[2], outs_per_group;
} conv_shape;

static conv_shape conv_of(const tn_tensor *t) {
    const tn_tensor *kernel = t->src[0], *x = t->src[1];
    const tn_conv_params *p = &t->params.conv;
    const int flat = t->op == TN_OP_CONV_1D;
    conv_shape c = {.w = x->ne[0],
                    .h = flat ? 1 : x->ne[1],
                    .ow = t->ne[0],
                    .oh = flat ? 1 : t->ne[1],
                    .kw = kernel->ne[0],
                    .kh = flat ? 1 : kernel->ne[1],
                    .in = x->ne[flat ? 1 : 2],
                    .out = t->ne[flat ? 1 : 2],
                    .batch = x->ne[flat ? 2 : 3],
                    .per_group = kernel->ne[flat ? 1 : 2]};
    for (int i = 0; i < 2; i++) {
        c.stride[i] = flat && i ? 1 : p->stride[i];
        c.pad[i] = flat && i ? 0 : p->pad[i];
        c.dilation[i] = flat && i ? 1 : p->dilation[i];
    }
    c.outs_per_group = c.out / p->groups;
    return c;
}

/* The index in the input of output index o and kernel index k, or -1 outside. */
static int64_t input_index(int64_t o, int64_t k, int64_t stride, int64_t pad, int64_t dilation, int64_t n) {
    int64_t i = o * stride - pad + k * dilation;
    return i >= 0 && i < n ? i : -1;
}

/* Adds every term of one plane's convolution: the gradient of the result times one factor contributes to the gradient
 * of the other factor. */
static void add_terms(const conv_shape *c, const float *from, const float *by, float *to, bool to_kernel) {
    for (int64_t oy = 0; oy < c->oh; oy++)
        for (int64_t ky = 0; ky < c->kh; ky++) {
            const int64_t y = input_index(oy, ky, c->stride[1], c->pad[1], c->dilation[1], c->h);
            for (int64_t ox = 0; y >= 0 && ox < c->ow; ox++)
                for (int64_t kx = 0; kx < c->kw; kx++) {
                    const int64_t x = input_index(ox, kx, c->stride[0], c->pad[0], c->dilation[0], c->w);
                    if (x < 0) continue;
                    const int64_t data = y * c->w + x, kernel = ky * c->kw + kx;
                    to[to_kernel ? kernel : data] += from[oy * c->ow + ox] * by[to_kernel ? data : kernel];
                }
        }
}

static void conv_to_data(const tn_custom_job *job) {
    const conv_shape c = conv_of(job->user);
    const tn_tensor *g = job->result->src[0], *kernel = job->result->src[1];
    for (int64_t plane = job->ith; plane < c.in * c.batch; plane += job->nth) {
        const int64_t ic = plane % c.in, b = plane / c.in, group = ic / c.per_group;
        float *to = (float *)job->result->data + plane * c.w * c.h;
        memset(to, 0, (size_t)(c.w * c.h) * sizeof *to);
        for (int64_t oc = group * c.outs_per_group; oc < (group + 1) * c.outs_per_group; oc++) {
            const float *by = (const float *)kernel->data + (oc * c.per_group + ic % c.per_group) * c.kw * c.kh;
            const float *from = (const float *)g->data + (b * c.out + oc) * c.ow * c.oh;
            add_terms(&c, from, by, to, false);
        }
    }
}

static void conv_to_kernel(const tn_custom_job *job) {
    const conv_shape c = conv_of(job->user);
    const tn_tensor *g = job->result->src[0], *data = job->result->src[1];
    for (int64_t plane = job->ith; plane < c.per_group * c.out; plane += job->nth) {
        const int64_t oc = plane / c.per_group, ic = oc / c.outs_per_group * c.per_group + plane % c.per_group;
        float *to = (float *)job->result->data + plane * c.kw * c.kh;
        memset(to, 0, (size_t)(c.kw * c.kh) * sizeof *to);
        for (int64_t b = 0; b < c.batch; b++) {
            const float *by = (const float *)data->data + (b * c.in + ic) * c.w * c.h;
            const float *from = (const float *)g->data + (b * c.out + oc) * c.ow * c.oh;
            add_terms(&c, from, by, to, true);
        }
    }
}

tn_status tn__backward_conv(tn__tape *tape, tn_tensor *t, tn_tensor *g) {
    tn_arena *a = tape->arena;
    tn_tensor *kernel = t->src[0], *x = t->src[1];
    if (tn__back_needs(tape, x)) {
        tn_tensor *const sources[] = {g, tn__back_f32(a, kernel)};
        tn__back_give(tape, x, tn_custom(a, TN_F32, TN_MAX_DIMS, x->ne, sources, 2, conv_to_data, t, 0));
    }
    if (tn__back_needs(tape, kernel)) {
        tn_tensor *const sources[] = {g, tn__back_dense(a, x)};
        tn__back_give(tape, kernel, tn_custom(a, TN_F32, TN_MAX_DIMS, kernel->ne, sources, 2, conv_to_kernel, t, 0));
    }
    return TN_OK;
}

/* ---- Pooling ---- */

/* An average distributes the gradient equally; a maximum gives all of it to the first largest element. */
static void pool_to_data(const tn_custom_job *job) {
    const tn_tensor *t = job->user, *out = job->result, *g = out->src[0], *x = out->src[1];
    const tn_pool_params *p = &t->params.pool;
    const bool flat = t->op == TN_OP_POOL_1D, largest = p->kind == TN_POOL_MAX;
    /* In one dimension every row is a plane. */
    const int64_t w = out->ne[0], h = flat ? 1 : out->ne[1], ow = g->ne[0], oh = flat ? 1 : g->ne[1];
    const int64_t kh = flat ? 1 : p->kernel[1], planes = w > 0 && h > 0 ? tn_nelements(out) / (w * h) : 0;
    const float share = 1 / (float)(p->kernel[0] * kh);
    for (int64_t plane = job->ith; plane < planes; plane += job->nth) {
        float *to = (float *)out->data + plane * w * h;
        const float *from = (const float *)g->data + plane * ow * oh, *data = (const float *)x->data + plane * w * h;
        memset(to, 0, (size_t)(w * h) * sizeof *to);
        for (int64_t o = 0; o < ow * oh; o++) {
            int64_t best = -1;
            for (int64_t k = 0; k < p->kernel[0] * kh; k++) {
                const int64_t i = input_index(o % ow, k % p->kernel[0], p->stride[0], p->pad[0], 1, w);
                const int64_t y = flat ? 0 : input_index(o / ow, k / p->kernel[0], p->stride[1], p->pad[1], 1, h);
                if (i < 0 || y < 0) continue;
                if (!largest) to[y * w + i] += share * from[o];
                if (best < 0 || data[y * w + i] > data[best]) best = y * w + i;
            }
            if (largest && best >= 0) to[best] += from[o];
        }
    }
}

tn_status tn__backward_pool(tn__tape *tape, tn_tensor *t, tn_tensor *g) {
    tn_tensor *x = t->src[0], *const sources[] = {g, tn__back_dense(tape->arena, x)};
    tn__back_give(tape, x, tn_custom(tape->arena, TN_F32, TN_MAX_DIMS, x->ne, sources, 2, pool_to_data, t, 0));
    return TN_OK;
}
