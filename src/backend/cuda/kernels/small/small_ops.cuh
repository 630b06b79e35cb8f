// Ops on a few thousand elements: several of them in one launch of one block. In decode such an op takes less time
// than a launch.
#ifndef TN_BACKEND_CUDA_KERNELS_SMALL_SMALL_OPS_CUH
#define TN_BACKEND_CUDA_KERNELS_SMALL_SMALL_OPS_CUH

#include "backend/cuda/kernels/common.cuh"

enum {
    SMALL_OPS = 12,        // ops of one launch
    SMALL_ELEMENTS = 8192, // of an op
};
// Whether one block computes the node: unary, binary and gated ops, RMS and L2 norms, and copies, of f32.
bool is_small_op(const tn_tensor *t);
// The nodes run in their order, each after the one before it.
tn_status compile_small_ops(const compilation &c, const tn_tensor *const *nodes, int n);

#endif
