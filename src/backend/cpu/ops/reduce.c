/* Reductions over rows: sums, argmax, sorting, expert mixing, the loss. Sums are accumulated in f64. */
#include "backend/cpu/ops/ops.h"

static double row_sum(const tn__task *task, const tn_tensor *x, const char *row) {
    double sum = 0;
    for (int64_t first = 0; first < x->ne[0]; first += TN__PIECE) {
        float buffer[TN__PIECE];
        int64_t n = TN__MIN(TN__PIECE, x->ne[0] - first);
        const float *v = tn__load(task->kernels, x, row, first, n, buffer);
        for (int64_t i = 0; i < n; i++) sum += v[i];
    }
    return sum;
}

int tn__phases_two(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) { return 2; }
int64_t tn__units_source_rows(const tn_tensor *node) { return tn_nrows(node->src[0]); }
double tn__cost_source(const tn_tensor *node) { return (double)tn_nelements(node->src[0]); }
size_t tn__scratch_row_sums(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return (size_t)tn_nrows(node->src[0]) * sizeof(double);
}

/* Threads sum rows in any order; the row sums are added in row order, so the bits are always the same. */
void tn__run_sum(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    double *sums = (double *)(void *)task->scratch;
    int64_t rows = tn_nrows(x), begin, end;
    if (task->phase == 0) {
        tn__task_share(task, rows, &begin, &end);
        for (int64_t r = begin; r < end; r++) sums[r] = row_sum(task, x, tn__row(x, r));
    } else if (task->ith == 0) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += sums[r];
        *(float *)y->data = (float)sum;
    }
}

void tn__run_sum_rows(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        double sum = row_sum(task, x, tn__row(x, r));
        *(float *)(void *)tn__row(y, r) = (float)(y->op == TN_OP_MEAN ? sum / (double)x->ne[0] : sum);
    }
}

void tn__run_cumsum(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *from = (const float *)(const void *)tn__row(x, r);
        float *to = (float *)(void *)tn__row(y, r);
        double sum = 0;
        for (int64_t i = 0; i < y->ne[0]; i++) to[i] = (float)(sum += from[i]);
    }
}

/* As in sorting, a NaN comes after every number: it is chosen only when there are no numbers. */
void tn__run_argmax(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    int64_t begin, end;
    tn__task_share(task, tn_nrows(x), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *v = (const float *)(const void *)tn__row(x, r);
        int64_t best = 0;
        for (int64_t i = 1; i < x->ne[0]; i++)
            if (v[i] > v[best] || (isnan(v[best]) && !isnan(v[i]))) best = i;
        ((int32_t *)y->data)[r] = (int32_t)best;
    }
}

/* ---- Sorting ---- */

/* Whether element a comes before b: by value, NaN last in either direction, equal values by index. */
static bool sorts_before(const float *v, int32_t a, int32_t b, bool descending) {
    float x = v[a], y = v[b];
    if (isnan(x) || isnan(y)) return isnan(x) == isnan(y) ? a < b : isnan(y);
    if (x == y) return a < b;
    return descending ? x > y : x < y;
}

/* Bottom-up merge sort between two arrays; the result is in `order`. */
static void merge_sort(const float *v, int32_t *order, int32_t *spare, int64_t n, bool descending) {
    int32_t *from = order, *to = spare;
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t start = 0; start < n; start += 2 * width) {
            int64_t middle = TN__MIN(start + width, n), end = TN__MIN(start + 2 * width, n);
            for (int64_t i = start, j = middle, k = start; k < end; k++)
                to[k] =
                    i < middle && (j >= end || sorts_before(v, from[i], from[j], descending)) ? from[i++] : from[j++];
        }
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order) memcpy(order, from, (size_t)n * 4);
}

size_t tn__scratch_argsort(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return tn__scratch_size((size_t)node->src[0]->ne[0] * 4) * (size_t)n_threads;
}

void tn__run_argsort(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    int64_t begin, end;
    size_t row = tn__scratch_size((size_t)x->ne[0] * 4);
    int32_t *spare = (int32_t *)(void *)(task->scratch + (size_t)task->ith * row);
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++)
        merge_sort((const float *)(const void *)tn__row(x, r), (int32_t *)(void *)tn__row(y, r), spare, y->ne[0],
                   y->params.argsort.descending != 0);
}

/* A heap of the k largest elements so far, the smallest on top; removal yields them smallest first. */
static void sift_down(const float *v, int32_t *heap, int64_t n, int64_t i) {
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) return;
        if (child + 1 < n && sorts_before(v, heap[child], heap[child + 1], true)) child++;
        if (!sorts_before(v, heap[i], heap[child], true)) return;
        int32_t swap = heap[i];
        heap[i] = heap[child];
        heap[child] = swap;
        i = child;
    }
}

void tn__run_top_k(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    int64_t begin, end, k = y->ne[0];
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *v = (const float *)(const void *)tn__row(x, r);
        int32_t *best = (int32_t *)(void *)tn__row(y, r);
        for (int64_t i = 0; i < k; i++) best[i] = (int32_t)i;
        for (int64_t i = k / 2 - 1; i >= 0; i--) sift_down(v, best, k, i);
        for (int64_t i = k; i < x->ne[0]; i++) {
            if (!sorts_before(v, (int32_t)i, best[0], true)) continue;
            best[0] = (int32_t)i;
            sift_down(v, best, k, 0);
        }
        for (int64_t n = k - 1; n > 0; n--) {
            int32_t worst = best[0];
            best[0] = best[n];
            best[n] = worst;
            sift_down(v, best, n, 0);
        }
    }
}

/* ---- Experts and loss ---- */

void tn__run_mix(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0], *w = y->src[1];
    int64_t begin, end;
    tn__task_share(task, tn__pieces(y), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        tn__piece at = tn__piece_at(y, piece);
        float *to = (float *)(void *)tn__row(y, at.row) + at.first;
        for (int64_t i = 0; i < at.n; i++) to[i] = 0;
        for (int64_t k = 0; k < x->ne[1]; k++) {
            float buffer[TN__PIECE];
            const float *v = tn__load(task->kernels, x, tn__at(x, k, at.row, 0), at.first, at.n, buffer);
            const float weight = *(const float *)(const void *)(tn__at(w, at.row, 0, 0) + (size_t)k * w->nb[0]);
            task->kernels->mad(at.n, weight, v, to);
        }
    }
}

/* -Σ label·log softmax(logits) per row, then the mean over rows. */
void tn__run_cross_entropy(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *logits = y->src[0], *labels = y->src[1];
    double *losses = (double *)(void *)task->scratch;
    int64_t rows = tn_nrows(logits), n = logits->ne[0], begin, end;
    if (task->phase == 0) {
        tn__task_share(task, rows, &begin, &end);
        for (int64_t r = begin; r < end; r++) {
            const float *x = (const float *)(const void *)tn__row(logits, r);
            const float *label = (const float *)(const void *)tn__row(labels, r);
            float most = -INFINITY;
            for (int64_t i = 0; i < n; i++) most = x[i] > most || isnan(x[i]) ? x[i] : most;
            double sum = 0, loss = 0;
            for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
            double log_sum = log(sum);
            for (int64_t i = 0; i < n; i++)
                if (label[i] != 0) loss -= label[i] * ((double)x[i] - most - log_sum);
            losses[r] = loss;
        }
    } else if (task->ith == 0) {
        double total = 0;
        for (int64_t r = 0; r < rows; r++) total += losses[r];
        *(float *)y->data = (float)(total / (double)rows);
    }
}
