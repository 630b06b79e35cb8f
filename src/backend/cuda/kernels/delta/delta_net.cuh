// A gated delta net's step of one token in one launch: convolution, norms of q and k, gates, linear attention, and
// the gated norm of its result.
#ifndef TN_BACKEND_CUDA_KERNELS_DELTA_DELTA_NET_CUH
#define TN_BACKEND_CUDA_KERNELS_DELTA_DELTA_NET_CUH

#include "backend/cuda/kernels/gemv.cuh"

// The nodes. q and k are l2_norm(part of conv); g is softplus(alpha + bias) · decay and beta sigmoid(raw_beta); norm
// is the RMS norm of attention, and gate multiplies it with an activation of z.
struct gated_delta {
    const tn_tensor *conv, *q, *k, *add, *softplus, *g, *beta, *attention, *norm, *gate;
    const tn_tensor *alpha, *bias, *decay, *raw_beta, *z; // what they read
};
// Decided by shapes, types and parameters; which node reads which is the caller's business.
bool delta_net_supports(const gated_delta &n);
size_t delta_net_scratch(const device_description &device, const tn_tensor *attention);
// Only `next` gets the result. `early`: no node of the program computes the table of steps.
tn_status compile_delta_net(const compilation &c, const gated_delta &n, const gemv_next &next, bool early);

#endif
