/* Matrix products: mul_mat, mul_mat with expert ids, outer products. */
#include "backend/cpu/ops.h"

static float dot(const float *x, const float *y, int64_t n) {
    float lanes[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t j = 0; j < 8; j++) lanes[j] += x[i + j] * y[i + j];
    for (; i < n; i++) lanes[0] += x[i] * y[i];
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Activations that are not f32 are converted first, all rows side by side. */
static bool converts(const tn_tensor *node) { return node->src[1]->type != TN_F32; }
static size_t converted_bytes(const tn_tensor *y) { return tn__scratch_size((size_t)tn_nelements(y) * 4); }
static size_t row_bytes(const tn_tensor *node) { return tn__scratch_size((size_t)node->src[0]->ne[0] * 4); }

int tn__phases_mul_mat(const tn_tensor *node) { return converts(node) ? 2 : 1; }
size_t tn__scratch_mul_mat(const tn_tensor *node, int n_threads) {
    return (converts(node) ? converted_bytes(node->src[1]) : 0) + row_bytes(node) * (size_t)n_threads;
}

enum { ROWS_AT_ONCE = 16 };
static int64_t row_groups(const tn_tensor *node) { return (node->ne[0] + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; }
int64_t tn__units_mul_mat(const tn_tensor *node) { return row_groups(node) * node->ne[2] * node->ne[3]; }
double tn__cost_mul_mat(const tn_tensor *node) {
    return (double)tn_nelements(node) * (double)node->src[0]->ne[0] * 0.1;
}

void tn__run_mul_mat(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    const int64_t k = x->ne[0];
    float *converted = (float *)(void *)task->scratch;
    if (converts(out) && task->phase == 0) {
        int64_t begin, end;
        tn__task_share(task, tn_nrows(y), &begin, &end);
        for (int64_t r = begin; r < end; r++) (void)tn_type_to_f32(y->type, tn__row(y, r), converted + r * k, k);
        return;
    }
    unsigned char *rows = task->scratch + (converts(out) ? converted_bytes(y) : 0);
    float *row = (float *)(void *)(rows + (size_t)task->ith * row_bytes(out));
    const int64_t groups = row_groups(out), units = tn__units_mul_mat(out);
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        const int64_t batch = unit / groups, i2 = batch % out->ne[2], i3 = batch / out->ne[2];
        const int64_t first = unit % groups * ROWS_AT_ONCE, last = TN__MIN(first + ROWS_AT_ONCE, out->ne[0]);
        for (int64_t i = first; i < last; i++) {
            const char *from = tn__at(x, i, i2 / (out->ne[2] / x->ne[2]), i3 / (out->ne[3] / x->ne[3]));
            const float *weights = tn__load(x, from, 0, k, row);
            for (int64_t j = 0; j < out->ne[1]; j++) {
                const float *values = converts(out) ? converted + (batch * out->ne[1] + j) * k
                                                    : (const float *)(const void *)tn__at(y, j, i2, i3);
                ((float *)(void *)tn__at(out, j, i2, i3))[i] = dot(weights, values, k);
            }
        }
    }
}

/* ---- Experts ------------------------------------------------------------------------------------------------- */

size_t tn__scratch_mul_mat_id(const tn_tensor *node, int n_threads) { return row_bytes(node) * (size_t)n_threads; }

/* An id outside the experts gives zeros. */
void tn__run_mul_mat_id(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1], *ids = out->src[2];
    const int64_t k = x->ne[0], groups = row_groups(out), units = groups * out->ne[1] * out->ne[2];
    float *row = (float *)(void *)(task->scratch + (size_t)task->ith * row_bytes(out));
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        const int64_t pair = unit / groups, used = pair % out->ne[1], token = pair / out->ne[1];
        const int64_t first = unit % groups * ROWS_AT_ONCE, last = TN__MIN(first + ROWS_AT_ONCE, out->ne[0]);
        const int64_t expert = tn__load_int(ids, tn__at(ids, token, 0, 0), used);
        float *to = (float *)(void *)tn__at(out, used, token, 0);
        const float *values = (const float *)(const void *)tn__at(y, used % y->ne[1], token, 0);
        for (int64_t i = first; i < last; i++)
            to[i] = expert < 0 || expert >= x->ne[2]
                        ? 0
                        : dot(tn__load(x, tn__at(x, i, expert, 0), 0, k, row), values, k);
    }
}

/* ---- Outer product ------------------------------------------------------------------------------------------- */

size_t tn__scratch_out_prod(const tn_tensor *node, int n_threads) {
    return tn__scratch_size((size_t)node->ne[0] * 4) * (size_t)n_threads;
}

/* out[i,j] = Σ_k x[i,k]·y[j,k], built up column by column of the sum. */
void tn__run_out_prod(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1];
    float *row = (float *)(void *)(task->scratch + (size_t)task->ith * tn__scratch_size((size_t)out->ne[0] * 4));
    int64_t begin, end;
    tn__task_share(task, tn_nrows(out), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(out, r);
        const int64_t i2 = i.i2 / (out->ne[2] / x->ne[2]), i3 = i.i3 / (out->ne[3] / x->ne[3]);
        float *to = (float *)(void *)tn__at(out, i.i1, i.i2, i.i3);
        memset(to, 0, (size_t)out->ne[0] * 4);
        for (int64_t k = 0; k < x->ne[1]; k++) {
            const float *v = tn__load(x, tn__at(x, k, i2, i3), 0, out->ne[0], row);
            const float s = *(const float *)(const void *)(tn__at(y, k, i.i2, i.i3) + (size_t)i.i1 * y->nb[0]);
            for (int64_t j = 0; j < out->ne[0]; j++) to[j] += v[j] * s;
        }
    }
}
