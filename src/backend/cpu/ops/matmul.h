/* What the matrix products share. */
#ifndef TN_CPU_MATMUL_H
#define TN_CPU_MATMUL_H

#include "backend/cpu/ops/ops.h"
#include "backend/cpu/repacked_buffer.h"

/* Up to so many activations (about two rows of a large model) are prepared faster than a barrier is passed. */
enum { TN__ALONE_VALUES = 16384 };

/* Matrix (i2, i3) of the weights, packed or not. */
static inline const void *tn__weights_at(const tn_tensor *x, bool packed, int64_t i2, int64_t i3) {
    return packed ? tn__packed_plane(x, i2, i3) : tn__at(x, 0, i2, i3);
}

/* Into how many pieces m weight rows, times n activation rows, are cut: a few per thread, so that a thread that is
 * interrupted does not keep the others waiting. */
int tn__matmul_chunks(int64_t m, int64_t n, int nth);

#endif
