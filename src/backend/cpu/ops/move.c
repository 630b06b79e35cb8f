/* Ops that move or generate data: concat, repeat, pad, roll, acc, set, upscale, arange, timestep embedding, custom.
 */
#include "backend/cpu/ops/ops.h"

/* Copies n elements of any plain type between rows with any strides. */
static void move_elements(char *to, size_t to_stride, const char *from, size_t from_stride, int64_t n, size_t bytes) {
    if (to_stride == bytes && from_stride == bytes) {
        memcpy(to, from, (size_t)n * bytes);
        return;
    }
    for (int64_t i = 0; i < n; i++) memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride, bytes);
}

void tn__run_concat(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    const int dim = out->params.concat.dim;
    const size_t bytes = tn_type_bytes(out->type);
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        char *to = tn__at(out, i.i1, i.i2, i.i3);
        if (dim == 0) {
            move_elements(to, out->nb[0], tn__at(x, i.i1, i.i2, i.i3), x->nb[0], x->ne[0], bytes);
            move_elements(to + (size_t)x->ne[0] * out->nb[0], out->nb[0], tn__at(y, i.i1, i.i2, i.i3), y->nb[0],
                          y->ne[0], bytes);
            continue;
        }
        int64_t *along = dim == 1 ? &i.i1 : dim == 2 ? &i.i2 : &i.i3;
        const tn_tensor *from = x;
        if (*along >= x->ne[dim]) {
            *along -= x->ne[dim];
            from = y;
        }
        move_elements(to, out->nb[0], tn__at(from, i.i1, i.i2, i.i3), from->nb[0], out->ne[0], bytes);
    }
}

void tn__run_repeat(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    const size_t bytes = tn_type_bytes(out->type);
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        char *to = tn__at(out, i.i1, i.i2, i.i3);
        const char *from = tn__at(x, i.i1 % x->ne[1], i.i2 % x->ne[2], i.i3 % x->ne[3]);
        for (int64_t first = 0; first < out->ne[0]; first += x->ne[0])
            move_elements(to + (size_t)first * out->nb[0], out->nb[0], from, x->nb[0], x->ne[0], bytes);
    }
}

void tn__run_pad(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    const int32_t *before = out->params.pad.before;
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        char *to = tn__at(out, i.i1, i.i2, i.i3);
        int64_t i1 = i.i1 - before[1], i2 = i.i2 - before[2], i3 = i.i3 - before[3];
        memset(to, 0, (size_t)out->ne[0] * 4);
        if (i1 < 0 || i1 >= x->ne[1] || i2 < 0 || i2 >= x->ne[2] || i3 < 0 || i3 >= x->ne[3]) continue;
        move_elements(to + (size_t)before[0] * 4, 4, tn__at(x, i1, i2, i3), x->nb[0], x->ne[0], 4);
    }
}

static int64_t rolled(int64_t i, int64_t shift, int64_t n) {
    int64_t from = (i - shift) % n;
    return from < 0 ? from + n : from;
}

/* Element i moves to (i + shift) modulo the length. */
void tn__run_roll(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    const int32_t *shift = out->params.roll.shift;
    int64_t begin, end, start = rolled(0, shift[0], out->ne[0]), tail = out->ne[0] - start;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        char *to = tn__at(out, i.i1, i.i2, i.i3);
        const char *from = tn__at(x, rolled(i.i1, shift[1], out->ne[1]), rolled(i.i2, shift[2], out->ne[2]),
                                  rolled(i.i3, shift[3], out->ne[3]));
        move_elements(to, out->nb[0], from + (size_t)start * x->nb[0], x->nb[0], tail, 4);
        move_elements(to + (size_t)tail * out->nb[0], out->nb[0], from, x->nb[0], start, 4);
    }
}

void tn__run_arange(const tn__task *task) {
    tn_tensor *out = task->node;
    float *to = out->data;
    int64_t begin, end;
    tn__task_share(task, out->ne[0], &begin, &end);
    for (int64_t i = begin; i < end; i++)
        to[i] = (float)((double)out->params.arange.start + (double)out->params.arange.step * (double)i);
}

/* acc and set: phase 0 copies x (unless in place), phase 1 modifies the region. */
void tn__run_region(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    int64_t begin, end;
    if (task->phase == 0) {
        if (out->data == x->data) return;
        tn__task_share(task, tn_nelements(out), &begin, &end);
        memcpy((float *)out->data + begin, (const float *)x->data + begin, (size_t)(end - begin) * 4);
        return;
    }
    /* With small strides the rows of a region may overlap; then one thread processes them in order. */
    bool apart = out->params.region.nb1 >= (size_t)y->ne[0] * 4 &&
                 out->params.region.nb2 >= out->params.region.nb1 * (size_t)y->ne[1] &&
                 out->params.region.nb3 >= out->params.region.nb2 * (size_t)y->ne[2];
    if (apart)
        tn__task_share(task, tn_nrows(y), &begin, &end);
    else {
        begin = 0;
        end = task->ith == 0 ? tn_nrows(y) : 0;
    }
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(y, r);
        float *to =
            (float *)(void *)((char *)out->data + out->params.region.offset + (size_t)i.i1 * out->params.region.nb1 +
                              (size_t)i.i2 * out->params.region.nb2 + (size_t)i.i3 * out->params.region.nb3);
        const char *from = tn__at(y, i.i1, i.i2, i.i3);
        for (int64_t first = 0; first < y->ne[0]; first += TN__PIECE) {
            float buffer[TN__PIECE];
            int64_t n = TN__MIN(TN__PIECE, y->ne[0] - first);
            const float *v = tn__load(task->kernels, y, from, first, n, buffer);
            for (int64_t j = 0; j < n; j++) to[first + j] = out->op == TN_OP_ACC ? to[first + j] + v[j] : v[j];
        }
    }
}

/* ---- Upscale ---- */

static float upscale_pixel(const tn_tensor *x, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return *(const float *)(const void *)(tn__at(x, i1, i2, i3) + (size_t)i0 * x->nb[0]);
}

/* Two neighbours and the weight of the second, for centre-aligned sampling. */
typedef struct upscale_sample {
    int64_t low, high;
    float share;
} upscale_sample;
static upscale_sample sample_at(int64_t i, int64_t from, int64_t to) {
    float at = ((float)i + 0.5f) * ((float)from / (float)to) - 0.5f;
    int64_t low = (int64_t)floorf(at);
    float share = at - (float)low;
    share = low < 0 ? 0 : share;
    return (upscale_sample){TN__MAX(0, TN__MIN(low, from - 1)), TN__MAX(0, TN__MIN(low + 1, from - 1)), share};
}

void tn__run_upscale(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        float *to = (float *)(void *)tn__at(out, i.i1, i.i2, i.i3);
        int64_t i2 = i.i2 * x->ne[2] / out->ne[2], i3 = i.i3 * x->ne[3] / out->ne[3];
        if (out->params.upscale.mode == TN_UPSCALE_NEAREST) {
            int64_t i1 = i.i1 * x->ne[1] / out->ne[1];
            for (int64_t i0 = 0; i0 < out->ne[0]; i0++)
                to[i0] = upscale_pixel(x, i0 * x->ne[0] / out->ne[0], i1, i2, i3);
            continue;
        }
        upscale_sample v = sample_at(i.i1, x->ne[1], out->ne[1]);
        for (int64_t i0 = 0; i0 < out->ne[0]; i0++) {
            upscale_sample h = sample_at(i0, x->ne[0], out->ne[0]);
            float a = upscale_pixel(x, h.low, v.low, i2, i3), b = upscale_pixel(x, h.high, v.low, i2, i3);
            float c = upscale_pixel(x, h.low, v.high, i2, i3), d = upscale_pixel(x, h.high, v.high, i2, i3);
            float top = a * (1 - h.share) + b * h.share, bottom = c * (1 - h.share) + d * h.share;
            to[i0] = top * (1 - v.share) + bottom * v.share;
        }
    }
}

/* cos in the first half, sin in the second, a zero at the end of an odd length. */
void tn__run_timestep(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0];
    const int64_t half = out->params.timestep.dim / 2;
    int64_t begin, end;
    tn__task_share(task, out->ne[1], &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *to = (float *)(void *)tn__row(out, r);
        const float step = *(const float *)(const void *)((const char *)x->data + (size_t)r * x->nb[0]);
        for (int64_t j = 0; j < half; j++) {
            float frequency = expf(-logf((float)out->params.timestep.max_period) * (float)j / (float)half);
            to[j] = cosf(step * frequency);
            to[j + half] = sinf(step * frequency);
        }
        if (out->ne[0] > 2 * half) to[2 * half] = 0;
    }
}

/* ---- Custom ---- */

int64_t tn__units_custom(const tn_tensor *node) {
    return node->params.custom.n_tasks > 0 ? node->params.custom.n_tasks : INT32_MAX;
}
double tn__cost_custom(const tn_tensor *node) { return 1e9; } /* unknown: treated as large */

void tn__run_custom(const tn__task *task) {
    int limit = task->node->params.custom.n_tasks, count = limit > 0 ? TN__MIN(limit, task->nth) : task->nth;
    if (task->ith >= count) return;
    tn_custom_job job = {task->node, task->ith, count, task->node->params.custom.user};
    task->node->params.custom.fn(&job);
}
