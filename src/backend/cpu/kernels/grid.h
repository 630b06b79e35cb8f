/* How a GEMM's output is dealt to threads: panels of weight rows times blocks of activation rows, in one line, cut
 * into equal pieces. A piece is up to three rectangles: the end of a panel, whole panels, the start of another. */
#ifndef TN_CPU_KERNELS_GRID_H
#define TN_CPU_KERNELS_GRID_H

#include "backend/cpu/kernels/kernels.h"

typedef struct tn__rect {
    int64_t panel_from, panel_to, col_from, col_to;
} tn__rect;

/* Writes this thread's rectangles and returns how many. */
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

#endif
