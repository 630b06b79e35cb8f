/* The outer loop of every GEMM: how the output is divided among threads and in which order blocks are computed.
 *
 * The output is a grid of panels (groups of weight rows) by blocks of activation rows. The grid, taken panel by panel
 * as one sequence, is cut into equal pieces, one per thread. A piece consists of up to three rectangles: the end of a
 * panel, whole panels, and the start of another. */
#ifndef TN_CPU_KERNELS_GEMM_LOOP_H
#define TN_CPU_KERNELS_GEMM_LOOP_H

#include "backend/cpu/kernels/kernels.h"

typedef struct tn__rect {
    int64_t panel_from, panel_to, col_from, col_to;
} tn__rect;

/* Writes this thread's rectangles and returns their number. */
static inline int tn__grid_share(int64_t panels, int64_t n, int64_t cols, int ith, int nth, tn__rect rect[3]) {
    int64_t blocks = (n + cols - 1) / cols, from, to;
    int count = 0;
    tn__share(panels * blocks, 1, ith, nth, &from, &to);
    while (from < to) {
        int64_t panel = from / blocks, block = from % blocks;
        tn__rect *r = &rect[count++];
        if (block == 0 && to - from >= blocks) {
            *r = (tn__rect){panel, panel + (to - from) / blocks, 0, n};
            from += (to - from) / blocks * blocks;
        } else {
            int64_t end = block + (to - from) < blocks ? block + (to - from) : blocks;
            *r = (tn__rect){panel, panel + 1, block * cols, end * cols < n ? end * cols : n};
            from += end - block;
        }
    }
    return count;
}

typedef struct tn__gemm_shape {
    int64_t rows;       /* weight rows in a panel */
    int64_t share_cols; /* activation rows in the smallest piece of work handed to a thread */
    int64_t panels; /* panels computed in turn on the same activations, while those are in the second-level cache */
    int64_t wide;   /* activation rows per pass: as many as that cache holds */
} tn__gemm_shape;

/* Computes panels [from, to) times activation rows [col_from, col_to), over all of k. */
typedef void tn__gemm_block_fn(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to);

/* Inlined, so that `block` and the shape are constants of the calling kernel. */
static inline __attribute__((always_inline)) void tn__gemm_loop(const tn__matmul_job *job, const tn__gemm_shape shape,
                                                                tn__gemm_block_fn *block, int ith, int nth) {
    tn__rect rect[3];
    int count = tn__grid_share((job->m + shape.rows - 1) / shape.rows, job->n, shape.share_cols, ith, nth, rect);
    for (int i = 0; i < count; i++) {
        for (int64_t j = rect[i].col_from; j < rect[i].col_to; j += shape.wide) {
            int64_t j_to = rect[i].col_to - j < shape.wide ? rect[i].col_to : j + shape.wide;
            for (int64_t p = rect[i].panel_from; p < rect[i].panel_to; p += shape.panels) {
                int64_t p_to = rect[i].panel_to - p < shape.panels ? rect[i].panel_to : p + shape.panels;
                block(job, p, p_to, j, j_to);
            }
        }
    }
}

#endif
