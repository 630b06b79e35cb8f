/* What the matrix products share. */
#ifndef TN_CPU_MATMUL_H
#define TN_CPU_MATMUL_H

#include "backend/cpu/ops.h"

/* Up to so many activations (about two rows of a large model) are prepared faster than a barrier is passed. */
enum { TN__ALONE_VALUES = 16384 };

/* Weights in the layout of the packed buffer type. */
bool tn__is_packed(const tn_tensor *weights);

/* Into how many pieces m weight rows are cut: a few per thread, so that a thread that is interrupted does not keep
 * the others waiting. */
int tn__matmul_chunks(int64_t m, int nth);

#endif
