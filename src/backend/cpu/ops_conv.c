/* Convolutions and pooling. Convolution is a product of the kernel with patches of the data, gathered as they come.
 */
#include "backend/cpu/ops.h"

static float pixel(const tn_tensor *x, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return *(const float *)(const void *)(tn__at(x, i1, i2, i3) + (size_t)i0 * x->nb[0]);
}

/* Kernels are contiguous f32 or f16. */
static float weight(const tn_tensor *kernel, int64_t index) {
    return kernel->type == TN_F32 ? ((const float *)kernel->data)[index]
                                  : tn__f16_to_f32(((const uint16_t *)kernel->data)[index]);
}

/* One-dimensional data [w, channels, batch] is looked at as [w, 1, channels, batch]. */
typedef struct image {
    const tn_tensor *x;
    int64_t w, h, channels, batch;
    bool flat;
} image;
static image image_of(const tn_tensor *x, bool flat) {
    if (flat) return (image){x, x->ne[0], 1, x->ne[1], x->ne[2], true};
    return (image){x, x->ne[0], x->ne[1], x->ne[2], x->ne[3], false};
}
static float at(const image *m, int64_t w, int64_t h, int64_t channel, int64_t batch) {
    if (w < 0 || w >= m->w || h < 0 || h >= m->h) return 0;
    return m->flat ? pixel(m->x, w, channel, batch, 0) : pixel(m->x, w, h, channel, batch);
}

/* Elements of a patch for output place (ow, oh), channels first…first+n-1, in the kernel's order. */
static void gather(float *patch, const image *m, const tn_conv_params *p, int64_t kw, int64_t kh, int64_t ow,
                   int64_t oh, int64_t first, int64_t n, int64_t batch) {
    const int64_t stride_h = m->flat ? 1 : p->stride[1], pad_h = m->flat ? 0 : p->pad[1];
    const int64_t dilation_h = m->flat ? 1 : p->dilation[1];
    for (int64_t c = first; c < first + n; c++)
        for (int64_t y = 0; y < kh; y++)
            for (int64_t x = 0; x < kw; x++)
                *patch++ = at(m, ow * p->stride[0] + x * p->dilation[0] - p->pad[0],
                              oh * stride_h + y * dilation_h - pad_h, c, batch);
}

void tn__run_im2col(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *kernel = out->src[0];
    const tn_conv_params *p = &out->params.conv;
    const image m = image_of(out->src[1], !p->is_2d);
    const int64_t kw = kernel->ne[0], kh = p->is_2d ? kernel->ne[1] : 1;
    float *patch = (float *)(void *)(task->scratch + (size_t)task->ith * tn__scratch_size((size_t)out->ne[0] * 4));
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        char *to = tn__at(out, i.i1, i.i2, i.i3);
        float *target = tn__target(out, to, 0, patch);
        if (p->is_2d)
            gather(target, &m, p, kw, kh, i.i1, i.i2, 0, m.channels, i.i3);
        else
            gather(target, &m, p, kw, kh, i.i1, 0, 0, m.channels, i.i2);
        tn__store(out, to, 0, out->ne[0], target);
    }
}

/* ---- Convolution --------------------------------------------------------------------------------------------- */

/* Per thread: one patch of one group. */
static int64_t patch_length(const tn_tensor *node) {
    const tn_tensor *kernel = node->src[0];
    return node->op == TN_OP_CONV_2D ? kernel->ne[0] * kernel->ne[1] * kernel->ne[2] : kernel->ne[0] * kernel->ne[1];
}
size_t tn__scratch_conv(const tn_tensor *node, int n_threads) {
    return tn__scratch_size((size_t)patch_length(node) * 4) * (size_t)n_threads;
}
double tn__cost_conv(const tn_tensor *node) { return (double)tn_nelements(node) * (double)patch_length(node); }
int64_t tn__units_conv(const tn_tensor *node) { return node->ne[0] * (node->op == TN_OP_CONV_2D ? node->ne[1] : 1); }

void tn__run_conv(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *kernel = out->src[0];
    const tn_conv_params *p = &out->params.conv;
    const bool flat = out->op == TN_OP_CONV_1D;
    const image m = image_of(out->src[1], flat);
    const int64_t kw = kernel->ne[0], kh = flat ? 1 : kernel->ne[1], length = patch_length(out);
    const int64_t out_h = flat ? 1 : out->ne[1], out_channels = flat ? out->ne[1] : out->ne[2];
    const int64_t in_group = m.channels / p->groups, out_group = out_channels / p->groups;
    float *patch = (float *)(void *)(task->scratch + (size_t)task->ith * tn__scratch_size((size_t)length * 4));
    int64_t begin, end;
    tn__task_share(task, out->ne[0] * out_h, &begin, &end);
    for (int64_t place = begin; place < end; place++) {
        const int64_t ow = place % out->ne[0], oh = place / out->ne[0];
        for (int64_t batch = 0; batch < m.batch; batch++) {
            for (int64_t g = 0; g < p->groups; g++) {
                gather(patch, &m, p, kw, kh, ow, oh, g * in_group, in_group, batch);
                for (int64_t c = g * out_group; c < (g + 1) * out_group; c++) {
                    float sum = 0;
                    for (int64_t i = 0; i < length; i++) sum += weight(kernel, c * length + i) * patch[i];
                    char *row = flat ? tn__at(out, c, batch, 0) : tn__at(out, oh, c, batch);
                    ((float *)(void *)row)[ow] = sum;
                }
            }
        }
    }
}

/* Kernels [kw, (kh,) out, in]: every result gathers the inputs whose stamps reach it. */
void tn__run_conv_transpose(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *kernel = out->src[0];
    const bool flat = out->op == TN_OP_CONV_TRANSPOSE_1D;
    const image m = image_of(out->src[1], flat);
    const int64_t stride = out->params.conv.stride[0], kw = kernel->ne[0], kh = flat ? 1 : kernel->ne[1];
    const int64_t channels = flat ? out->ne[1] : out->ne[2];
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        const int64_t oh = flat ? 0 : i.i1, channel = flat ? i.i1 : i.i2, batch = flat ? i.i2 : i.i3;
        float *to = (float *)(void *)tn__at(out, i.i1, i.i2, i.i3);
        for (int64_t ow = 0; ow < out->ne[0]; ow++) {
            float sum = 0;
            for (int64_t c = 0; c < m.channels; c++)
                for (int64_t y = oh % stride; y < kh && y <= oh; y += stride)
                    for (int64_t x = ow % stride; x < kw && x <= ow; x += stride)
                        sum += weight(kernel, ((c * channels + channel) * kh + y) * kw + x) *
                               at(&m, (ow - x) / stride, (oh - y) / stride, c, batch);
            to[ow] = sum;
        }
    }
}

/* ---- Pooling ------------------------------------------------------------------------------------------------- */

/* Padding never wins a maximum and counts as zero in an average over the whole window. */
void tn__run_pool(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    const tn_pool_params *p = &out->params.pool;
    const bool flat = out->op == TN_OP_POOL_1D, largest = p->kind == TN_POOL_MAX;
    const int64_t kh = flat ? 1 : p->kernel[1];
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        float *to = (float *)(void *)tn__at(out, i.i1, i.i2, i.i3);
        for (int64_t ow = 0; ow < out->ne[0]; ow++) {
            float sum = 0, most = -INFINITY;
            for (int64_t y = 0; y < kh; y++) {
                const int64_t row = flat ? i.i1 : i.i1 * p->stride[1] + y - p->pad[1];
                if (row < 0 || row >= x->ne[1]) continue;
                for (int64_t k = 0; k < p->kernel[0]; k++) {
                    const int64_t column = ow * p->stride[0] + k - p->pad[0];
                    if (column < 0 || column >= x->ne[0]) continue;
                    const float v = pixel(x, column, row, i.i2, i.i3);
                    sum += v;
                    most = v > most || isnan(v) ? v : most;
                }
            }
            to[ow] = largest ? most : sum / (float)(p->kernel[0] * kh);
        }
    }
}
