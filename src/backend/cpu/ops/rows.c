/* Rows by number: get_rows, set_rows, and a bias per expert. A row number out of range reads as zeros and is not
 * written. */
#include "backend/cpu/ops/ops.h"
#include "backend/cpu/repacked_buffer.h"

size_t tn__scratch_get_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return tn__is_repacked(node->src[0]) ? tn__scratch_size(node->src[0]->nb[1]) * (size_t)n_threads : 0;
}

int tn__by_rows_get_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) { return 0; }

void tn__run_get_rows(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0], *rows = y->src[1];
    const bool repacked = tn__is_repacked(x);
    const size_t row_bytes = tn__scratch_size(x->nb[1]);
    int64_t begin, end;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        tn__index i = tn__row_index(y, r);
        char *to = tn__at(y, i.i1, i.i2, i.i3);
        int64_t row = tn__load_int(rows, tn__at(rows, i.i2, i.i3, 0), i.i1);
        if (row < 0 || row >= x->ne[1]) {
            memset(to, 0, (size_t)y->ne[0] * 4);
            continue;
        }
        const char *from =
            repacked ? (char *)task->scratch + (size_t)task->ith * row_bytes : tn__at(x, row, i.i2, i.i3);
        if (repacked)
            task->kernels->repacked_read_row(x->type, x->ne[1], x->ne[0], tn__repacked_plane(x, i.i2, i.i3), row,
                                             task->scratch + (size_t)task->ith * row_bytes);
        if (x->type == TN_I32 || x->type == TN_F32)
            memcpy(to, from, (size_t)y->ne[0] * 4);
        else
            (void)tn__load(task->kernels, x, from, 0, y->ne[0], (float *)(void *)to);
    }
}

/* The node is a view of x and has its shape, but the amount of work is given by the rows of y. */
int64_t tn__units_set_rows(const tn_tensor *node) { return tn_nrows(node->src[1]); }
double tn__cost_set_rows(const tn_tensor *node) { return (double)tn_nelements(node->src[1]) * 2; }

/* If two rows of y name the same row of x, the later one must win for any number of threads, so the earlier one is
 * not written. Rows are examined from the last to the first, and a bit per row number records the ones seen. Distant
 * numbers share a bit; where it is already set, a comparison with all later rows decides. */
enum { SEEN_BITS = 1 << 15 };
static bool named_later(const tn_tensor *rows, const char *numbers, int64_t r, int64_t n, int64_t row) {
    for (int64_t later = r + 1; later < n; later++)
        if (tn__load_int(rows, numbers, later) == row) return true;
    return false;
}

static void set_rows(const tn__task *task, int64_t i2, int64_t i3) {
    tn_tensor *x = task->node;
    const tn_tensor *y = x->src[1], *rows = x->src[2];
    const char *numbers = tn__at(rows, i2 % rows->ne[1], i3 % rows->ne[2], 0);
    uint64_t seen[SEEN_BITS / 64] = {0};
    int64_t begin, end;
    tn__task_share(task, y->ne[1], &begin, &end);
    for (int64_t r = y->ne[1] - 1; r >= begin; r--) {
        const int64_t row = tn__load_int(rows, numbers, r);
        if (row < 0 || row >= x->ne[1]) continue;
        uint64_t *word = &seen[row % SEEN_BITS / 64], bit = (uint64_t)1 << row % 64;
        const bool taken = *word & bit;
        *word |= bit;
        if (r >= end || (taken && named_later(rows, numbers, r, y->ne[1], row))) continue;
        tn__store(task->kernels, x, tn__at(x, row, i2, i3), 0, y->ne[0],
                  (const float *)(const void *)tn__at(y, r, i2, i3));
    }
}

int tn__by_rows_set_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    const tn_tensor *y = node->src[1];
    return y->ne[2] == 1 && y->ne[3] == 1 ? 2 | TN__SCATTERED : TN__NOT_BY_ROWS;
}

void tn__run_set_rows(const tn__task *task) {
    const tn_tensor *y = task->node->src[1];
    for (int64_t i3 = 0; i3 < y->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < y->ne[2]; i2++) set_rows(task, i2, i3);
}

void tn__run_add_id(const tn__task *task) {
    tn_tensor *out = task->node;
    const tn_tensor *x = out->src[0], *y = out->src[1], *ids = out->src[2];
    int64_t begin, end;
    tn__task_share(task, tn__pieces(out), &begin, &end);
    for (int64_t piece = begin; piece < end; piece++) {
        float a[TN__PIECE], b[TN__PIECE];
        tn__piece at = tn__piece_at(out, piece);
        tn__index i = tn__row_index(out, at.row);
        float *to = (float *)(void *)tn__at(out, i.i1, i.i2, i.i3) + at.first;
        const float *xs = tn__load(task->kernels, x, tn__at(x, i.i1, i.i2, i.i3), at.first, at.n, a);
        int64_t id = tn__load_int(ids, tn__at(ids, i.i2, 0, 0), i.i1);
        if (id < 0 || id >= y->ne[1]) {
            memmove(to, xs, (size_t)at.n * 4);
            continue;
        }
        const float *bias = tn__load(task->kernels, y, tn__at(y, id, 0, 0), at.first, at.n, b);
        for (int64_t j = 0; j < at.n; j++) to[j] = xs[j] + bias[j];
    }
}
