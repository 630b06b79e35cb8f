/* Helpers of mul_mat and mul_mat_id. */
#ifndef TN_CPU_MATMUL_H
#define TN_CPU_MATMUL_H

#include "backend/cpu/ops/ops.h"
#include "backend/cpu/repacked_buffer.h"

/* Preparing up to this many activations (about two rows of a large model) is faster than a barrier. */
enum { TN__ALONE_VALUES = 16384 };

/* Matrix (i2, i3) of the weights, repacked or not. */
static inline const void *tn__weights_at(const tn_tensor *x, bool repacked, int64_t i2, int64_t i3) {
    return repacked ? tn__repacked_plane(x, i2, i3) : tn__at(x, 0, i2, i3);
}

/* How the node is computed, for matmul_form. */
static inline int tn__matmul_how(const tn_tensor *node) {
    const bool precise = node->op == TN_OP_MUL_MAT && node->params.mul_mat.precise;
    return (precise ? TN__MATMUL_PRECISE : 0) | (node->flags & TN_FLAG_REPEATABLE ? TN__MATMUL_REPEATABLE : 0);
}

/* Number of pieces into which m weight rows times n activation rows are divided: a few per thread, so that the others
 * do not wait long for a thread that is interrupted. */
int tn__matmul_chunks(int64_t m, int64_t n, int nth);

#endif
