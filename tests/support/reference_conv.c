/* Convolutions, pooling and scaling of the reference implementation. */
#include "reference_array.h"

/* Data [w, h, channels, batch]; flat data has h = 1. */
static double pixel(const array *x, bool flat, int64_t w, int64_t h, int64_t c, int64_t b) {
    int64_t width = x->n0, height = flat ? 1 : x->n1;
    if (w < 0 || w >= width || h < 0 || h >= height) return 0;
    return flat ? at(x, w, c, b, 0) : at(x, w, h, c, b);
}

void reference_conv(const tn_tensor *node, double *out, double *scale) {
    array kernel = load(node->src[0]), x = load(node->src[1]);
    const tn_conv_params *p = &node->params.conv;
    bool flat = node->op == TN_OP_CONV_1D;
    int64_t kw = kernel.n0, kh = flat ? 1 : kernel.n1, in = flat ? kernel.n1 : kernel.n2;
    int64_t per_group = (flat ? kernel.n2 : kernel.n3) / p->groups;
    EACH(node) {
        int64_t oh = flat ? 0 : i1, channel = flat ? i1 : i2, batch = flat ? i2 : i3, group = channel / per_group;
        double sum = 0, size = 0;
        for (int64_t c = 0; c < in; c++)
            for (int64_t h = 0; h < kh; h++)
                for (int64_t w = 0; w < kw; w++) {
                    double weight = kernel.v[((channel * in + c) * kh + h) * kw + w];
                    double term = weight * pixel(&x, flat, i0 * p->stride[0] + w * p->dilation[0] - p->pad[0],
                                                 flat ? 0 : oh * p->stride[1] + h * p->dilation[1] - p->pad[1],
                                                 group * in + c, batch);
                    sum += term;
                    size += fabs(term);
                }
        out[e] = sum;
        scale[e] = size;
    }
    free(kernel.v);
    free(x.v);
}

void reference_im2col(const tn_tensor *node, double *out) {
    array kernel = load(node->src[0]), x = load(node->src[1]);
    const tn_conv_params *p = &node->params.conv;
    bool flat = !p->is_2d;
    int64_t kw = kernel.n0, kh = flat ? 1 : kernel.n1;
    EACH(node) {
        int64_t w = i0 % kw, h = i0 / kw % kh, c = i0 / kw / kh;
        out[e] = pixel(&x, flat, i1 * p->stride[0] + w * p->dilation[0] - p->pad[0],
                       flat ? 0 : i2 * p->stride[1] + h * p->dilation[1] - p->pad[1], c, flat ? i2 : i3);
    }
    free(kernel.v);
    free(x.v);
}

/* Every input adds a multiple of the kernel to the result. */
void reference_conv_transpose(const tn_tensor *node, double *out, double *scale) {
    array kernel = load(node->src[0]), x = load(node->src[1]);
    bool flat = node->op == TN_OP_CONV_TRANSPOSE_1D;
    int64_t stride = node->params.conv.stride[0], kw = kernel.n0, kh = flat ? 1 : kernel.n1;
    int64_t channels = flat ? kernel.n1 : kernel.n2, in = flat ? kernel.n2 : kernel.n3;
    int64_t width = x.n0, height = flat ? 1 : x.n1, batches = flat ? x.n2 : x.n3;
    int64_t out_w = node->ne[0], out_h = flat ? 1 : node->ne[1];
    for (int64_t i = 0; i < tn_nelements(node); i++) out[i] = scale[i] = 0;
    for (int64_t b = 0; b < batches; b++)
        for (int64_t c = 0; c < in; c++)
            for (int64_t o = 0; o < channels; o++)
                for (int64_t h = 0; h < height; h++)
                    for (int64_t w = 0; w < width; w++)
                        for (int64_t y = 0; y < kh; y++)
                            for (int64_t z = 0; z < kw; z++) {
                                double term =
                                    pixel(&x, flat, w, h, c, b) * kernel.v[((c * channels + o) * kh + y) * kw + z];
                                int64_t to = ((b * channels + o) * out_h + h * stride + y) * out_w + w * stride + z;
                                out[to] += term;
                                scale[to] += fabs(term);
                            }
    free(kernel.v);
    free(x.v);
}

void reference_pool(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]);
    const tn_pool_params *p = &node->params.pool;
    bool flat = node->op == TN_OP_POOL_1D;
    EACH(node) {
        double sum = 0, size = 0, most = -INFINITY;
        for (int64_t h = 0; h < (flat ? 1 : p->kernel[1]); h++)
            for (int64_t w = 0; w < p->kernel[0]; w++) {
                int64_t column = i0 * p->stride[0] + w - p->pad[0];
                int64_t line = flat ? i1 : i1 * p->stride[1] + h - p->pad[1];
                if (column < 0 || column >= x.n0 || line < 0 || line >= x.n1) continue;
                double v = at(&x, column, line, i2, i3);
                sum += v;
                size += fabs(v);
                most = fmax(most, v);
            }
        double area = p->kernel[0] * (flat ? 1.0 : p->kernel[1]);
        out[e] = p->kind == TN_POOL_MAX ? most : sum / area;
        scale[e] = p->kind == TN_POOL_MAX ? fabs(most) : size / area;
    }
    free(x.v);
}

void reference_upscale(const tn_tensor *node, double *out, double *scale) {
    array x = load(node->src[0]);
    EACH(node) {
        int64_t j2 = i2 * x.n2 / node->ne[2], j3 = i3 * x.n3 / node->ne[3];
        if (node->params.upscale.mode == TN_UPSCALE_NEAREST) {
            out[e] = at(&x, i0 * x.n0 / node->ne[0], i1 * x.n1 / node->ne[1], j2, j3);
            scale[e] = fabs(out[e]);
            continue;
        }
        double w = fmin(fmax(((double)i0 + 0.5) * (double)x.n0 / (double)node->ne[0] - 0.5, 0), (double)x.n0 - 1);
        double h = fmin(fmax(((double)i1 + 0.5) * (double)x.n1 / (double)node->ne[1] - 0.5, 0), (double)x.n1 - 1);
        int64_t w0 = (int64_t)floor(w), h0 = (int64_t)floor(h);
        int64_t w1 = w0 + 1 < x.n0 ? w0 + 1 : w0, h1 = h0 + 1 < x.n1 ? h0 + 1 : h0;
        double fw = w - (double)w0, fh = h - (double)h0;
        double a = at(&x, w0, h0, j2, j3), b = at(&x, w1, h0, j2, j3);
        double c = at(&x, w0, h1, j2, j3), d = at(&x, w1, h1, j2, j3);
        out[e] = (a * (1 - fw) + b * fw) * (1 - fh) + (c * (1 - fw) + d * fw) * fh;
        scale[e] = fabs(a) + fabs(b) + fabs(c) + fabs(d);
    }
    free(x.v);
}
