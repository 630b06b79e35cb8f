/* Normalisation and soft-max over rows. */
#include "backend/cpu/ops/ops.h"

static const float *weights_row(const tn_tensor *w, tn__index i) {
    return w ? (const float *)(const void *)tn__at(w, i.i1 % w->ne[1], i.i2 % w->ne[2], i.i3 % w->ne[3]) : NULL;
}

static void l2_norm(const tn__task *task, const float *x, float *y, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    task->kernels->scale(n, 1 / fmaxf((float)sqrt(squares), task->node->params.norm.eps), 0, x, y);
}

void tn__run_norm(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    const float eps = y->params.norm.eps;
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(y, r);
        const float *from = (const float *)(const void *)tn__at(x, i.i1, i.i2, i.i3);
        const float *weight = weights_row(y->src[1], i), *bias = weights_row(y->src[2], i);
        float *to = (float *)(void *)tn__at(y, i.i1, i.i2, i.i3);
        if (y->op == TN_OP_RMS_NORM)
            task->kernels->rms_norm(y->ne[0], from, weight, eps, to);
        else if (y->op == TN_OP_NORM)
            task->kernels->norm(y->ne[0], from, weight, bias, eps, to);
        else
            l2_norm(task, from, to, y->ne[0]);
    }
}

int64_t tn__units_groups(const tn_tensor *node) { return node->params.norm.groups * node->ne[3]; }

/* Channels (ne[2]) in groups of equal size, the last one possibly smaller; x is contiguous. */
void tn__run_group_norm(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    const int64_t groups = y->params.norm.groups, per_group = (y->ne[2] + groups - 1) / groups;
    int64_t begin, end;
    tn__task_share(task, groups * y->ne[3], &begin, &end);
    for (int64_t g = begin; g < end; g++) {
        int64_t first = g % groups * per_group, last = TN__MIN(first + per_group, y->ne[2]);
        if (first >= last) continue;
        int64_t n = (last - first) * y->ne[0] * y->ne[1];
        const float *from = (const float *)(const void *)tn__at(x, 0, first, g / groups);
        float *to = (float *)(void *)tn__at(y, 0, first, g / groups);
        task->kernels->norm(n, from, NULL, NULL, y->params.norm.eps, to);
    }
}

void tn__run_hadamard(const tn__task *task) {
    tn_tensor *y = task->node;
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++)
        task->kernels->hadamard(y->ne[0], y->params.hadamard.block,
                                (const float *)(const void *)tn__row(y->src[0], r), (float *)(void *)tn__row(y, r));
}

/* ---- Soft-max ---- */

size_t tn__scratch_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return tn__scratch_size((size_t)node->ne[0] * 4) * (size_t)n_threads;
}

/* A row that is masked completely becomes zero. */
void tn__run_soft_max(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0], *mask = y->src[1], *sinks = y->src[2];
    const float scale = y->params.soft_max.scale, max_bias = y->params.soft_max.max_bias;
    const int64_t n = y->ne[0];
    float *w = (float *)(void *)(task->scratch + (size_t)task->ith * tn__scratch_size((size_t)n * 4));
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(y, r);
        const float *from = (const float *)(const void *)tn__at(x, i.i1, i.i2, i.i3);
        float *to = (float *)(void *)tn__at(y, i.i1, i.i2, i.i3);
        task->kernels->scale(n, scale, 0, from, w);
        if (mask) {
            const char *row = tn__at(mask, i.i1, i.i2 % mask->ne[2], i.i3 % mask->ne[3]);
            const float slope = max_bias > 0 ? tn__head_slope(i.i2, y->ne[2], max_bias) : 1;
            for (int64_t first = 0; first < n; first += TN__PIECE) {
                float buffer[TN__PIECE];
                int64_t part = TN__MIN(TN__PIECE, n - first);
                const float *m = tn__load(task->kernels, mask, row, first, part, buffer);
                task->kernels->mad(part, slope, m, w + first);
            }
        }
        const float sink = sinks ? ((const float *)sinks->data)[i.i2] : -INFINITY;
        float most = task->kernels->max(n, w);
        most = sink > most ? sink : most;
        if (most == -INFINITY) {
            memset(to, 0, (size_t)n * 4);
            continue;
        }
        float sum = task->kernels->exp_sum(n, most, w, to);
        if (sinks) sum += expf(sink - most);
        task->kernels->scale(n, 1 / sum, 0, to, to);
    }
}

float tn__head_slope(int64_t head, int64_t heads, float max_bias) {
    int64_t power = 1;
    while (power * 2 <= heads) power *= 2;
    const float base = exp2f(-max_bias / (float)power), half = exp2f(-max_bias / 2 / (float)power);
    return head < power ? powf(base, (float)(head + 1)) : powf(half, (float)(2 * (head - power) + 1));
}
