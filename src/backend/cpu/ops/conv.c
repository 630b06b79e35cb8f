/* Convolutions and pooling. A convolution is a mat-mul of the kernel with patches of the data, gathered block by
 * block. */
#include "backend/cpu/ops/ops.h"

static float image_pixel(const tn_tensor *x, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return *(const float *)(const void *)(tn__at(x, i1, i2, i3) + (size_t)i0 * x->nb[0]);
}

/* Kernels are contiguous f32 or f16. */
static float kernel_weight(const tn_tensor *kernel, int64_t index) {
    return kernel->type == TN_F32 ? ((const float *)kernel->data)[index]
                                  : tn__f16_to_f32(((const uint16_t *)kernel->data)[index]);
}

/* One-dimensional data [w, channels, batch] is treated as [w, 1, channels, batch]. */
typedef struct image {
    const tn_tensor *x;
    int64_t w, h, channels, batch;
    bool flat;
} image;
static image image_of(const tn_tensor *x, bool flat) {
    if (flat) return (image){x, x->ne[0], 1, x->ne[1], x->ne[2], true};
    return (image){x, x->ne[0], x->ne[1], x->ne[2], x->ne[3], false};
}
static float image_at(const image *m, int64_t w, int64_t h, int64_t channel, int64_t batch) {
    if (w < 0 || w >= m->w || h < 0 || h >= m->h) return 0;
    return m->flat ? image_pixel(m->x, w, channel, batch, 0) : image_pixel(m->x, w, h, channel, batch);
}

/* kw neighbours in a line of the image, starting at column `first`; zero outside the image. */
static void gather_line(float *to, const char *line, size_t step, int64_t width, int64_t first, int64_t kw) {
    const int64_t left = TN__MIN(TN__MAX(-first, 0), kw), right = TN__MAX(TN__MIN(width - first, kw), left);
    for (int64_t i = 0; i < left; i++) to[i] = 0;
    if (step == 4) {
        memcpy(to + left, (const float *)(const void *)line + first + left, (size_t)(right - left) * 4);
    } else {
        for (int64_t i = left; i < right; i++)
            to[i] = *(const float *)(const void *)(line + (size_t)(first + i) * step);
    }
    for (int64_t i = right; i < kw; i++) to[i] = 0;
}

/* Elements of the patch of output position (ow, oh), channels first…first+n-1, in the kernel's order. */
static void gather_patch(float *patch, const image *m, const tn_conv_params *p, int64_t kw, int64_t kh, int64_t ow,
                         int64_t oh, int64_t first, int64_t n, int64_t batch) {
    const int64_t stride_h = m->flat ? 1 : p->stride[1], pad_h = m->flat ? 0 : p->pad[1];
    const int64_t dilation_h = m->flat ? 1 : p->dilation[1], left = ow * p->stride[0] - p->pad[0];
    for (int64_t c = first; c < first + n; c++) {
        for (int64_t y = 0; y < kh; y++, patch += kw) {
            const int64_t h = oh * stride_h + y * dilation_h - pad_h;
            if (h < 0 || h >= m->h) {
                memset(patch, 0, (size_t)kw * 4);
            } else if (p->dilation[0] == 1) {
                const char *line = m->flat ? tn__at(m->x, c, batch, 0) : tn__at(m->x, h, c, batch);
                gather_line(patch, line, m->x->nb[0], m->w, left, kw);
            } else {
                for (int64_t x = 0; x < kw; x++) patch[x] = image_at(m, left + x * p->dilation[0], h, c, batch);
            }
        }
    }
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
            gather_patch(target, &m, p, kw, kh, i.i1, i.i2, 0, m.channels, i.i3);
        else
            gather_patch(target, &m, p, kw, kh, i.i1, 0, 0, m.channels, i.i2);
        tn__store(task->kernels, out, to, 0, out->ne[0], target);
    }
}

/* ---- Convolution ---- */

/* Output positions computed together: their patches are the activations of a mat-mul with the kernel. */
enum { POSITIONS = 32 };

typedef struct conv_plan {
    bool flat;
    int64_t length; /* of a patch of one group */
    int64_t positions, channels, in_group, out_group;
    tn__act_form form;
    size_t patches, prepared, results, total; /* bytes of scratch per thread */
} conv_plan;

static conv_plan conv_plan_of(const tn_tensor *node, const tn__cpu_kernels *kernels) {
    const tn_tensor *kernel = node->src[0];
    conv_plan p = {.flat = node->op == TN_OP_CONV_1D};
    p.length = kernel->ne[0] * kernel->ne[1] * (p.flat ? 1 : kernel->ne[2]);
    p.positions = node->ne[0] * (p.flat ? 1 : node->ne[1]);
    p.channels = p.flat ? node->ne[1] : node->ne[2];
    p.out_group = p.channels / node->params.conv.groups;
    p.in_group = p.flat ? kernel->ne[1] : kernel->ne[2];
    p.form = kernels->matmul_form(kernel->type, false, p.out_group, POSITIONS, p.length, true);
    p.patches = tn__scratch_size((size_t)(POSITIONS * p.length) * 4);
    if (p.form != TN__ACT_PLAIN) p.prepared = tn__scratch_size(kernels->act_bytes(p.form, POSITIONS, p.length));
    p.results = tn__scratch_size((size_t)(POSITIONS * p.out_group) * 4);
    p.total = p.patches + p.prepared + p.results;
    return p;
}

size_t tn__scratch_conv(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return conv_plan_of(node, kernels).total * (size_t)n_threads;
}
double tn__cost_conv(const tn_tensor *node) {
    const tn_tensor *kernel = node->src[0];
    const int64_t length = kernel->ne[0] * kernel->ne[1] * (node->op == TN_OP_CONV_1D ? 1 : kernel->ne[2]);
    return (double)tn_nelements(node) * (double)length * 0.1;
}
int64_t tn__units_conv(const tn_tensor *node) {
    return (node->ne[0] * (node->op == TN_OP_CONV_2D ? node->ne[1] : 1) + POSITIONS - 1) / POSITIONS;
}

/* Writes results [position][channel] to one plane of positions per channel. */
static void scatter_results(const tn_tensor *out, const conv_plan *p, const float *results, int64_t first, int64_t n,
                            int64_t channel, int64_t batch) {
    for (int64_t c = 0; c < p->out_group; c++)
        for (int64_t i = 0; i < n; i++) {
            const int64_t w = (first + i) % out->ne[0], h = (first + i) / out->ne[0];
            char *row = p->flat ? tn__at(out, channel + c, batch, 0) : tn__at(out, h, channel + c, batch);
            ((float *)(void *)row)[w] = results[i * p->out_group + c];
        }
}

void tn__run_conv(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *kernel = out->src[0];
    const tn_conv_params *cp = &out->params.conv;
    const conv_plan p = conv_plan_of(out, task->kernels);
    const image m = image_of(out->src[1], p.flat);
    const size_t row = tn_type_bytes(kernel->type) * (size_t)p.length;
    unsigned char *scratch = task->scratch + (size_t)task->ith * p.total, *prepared = scratch + p.patches;
    float *patches = (float *)(void *)scratch, *results = (float *)(void *)(prepared + p.prepared);
    const int64_t tiles = (p.positions + POSITIONS - 1) / POSITIONS, units = tiles * m.batch * cp->groups;
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        const int64_t first = unit % tiles * POSITIONS, n = TN__MIN(POSITIONS, p.positions - first);
        const int64_t group = unit / tiles % cp->groups, batch = unit / tiles / cp->groups;
        for (int64_t i = 0; i < n; i++)
            gather_patch(patches + i * p.length, &m, cp, kernel->ne[0], p.flat ? 1 : kernel->ne[1],
                         (first + i) % out->ne[0], (first + i) / out->ne[0], group * p.in_group, p.in_group, batch);
        if (p.form != TN__ACT_PLAIN)
            task->kernels->act_prepare(p.form, patches, (size_t)p.length * 4, NULL, n, p.length, prepared, 0, 1);
        tn__matmul_job job = {
            .type = kernel->type,
            .form = p.form,
            .m = p.out_group,
            .n = n,
            .k = p.length,
            .w = (const char *)kernel->data + (size_t)(group * p.out_group) * row,
            .w_stride = row,
            .x = p.form == TN__ACT_PLAIN ? (const void *)patches : prepared,
            .x_stride = (size_t)p.length * 4,
            .x_rows = n,
            .out = results,
            .out_stride = (size_t)p.out_group * 4,
        };
        task->kernels->matmul(&job, 0, 1);
        scatter_results(out, &p, results, first, n, group * p.out_group, batch);
    }
}

/* Kernels [kw, (kh,) out, in]: every result sums the inputs whose kernel windows cover it. */
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
                        sum += kernel_weight(kernel, ((c * channels + channel) * kh + y) * kw + x) *
                               image_at(&m, (ow - x) / stride, (oh - y) / stride, c, batch);
            to[ow] = sum;
        }
    }
}

/* ---- Pooling ---- */

/* Padding is ignored by a maximum and counts as zero in an average, which is over the whole window. */
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
                    const float v = image_pixel(x, column, row, i.i2, i.i3);
                    sum += v;
                    most = v > most || isnan(v) ? v : most;
                }
            }
            to[ow] = largest ? most : sum / (float)(p->kernel[0] * kh);
        }
    }
}
