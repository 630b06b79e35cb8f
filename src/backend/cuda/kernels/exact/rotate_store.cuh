// Rotating q and k and storing new rows of k and v in one launch, for any number of tokens.
#ifndef TN_BACKEND_CUDA_KERNELS_EXACT_ROTATE_STORE_CUH
#define TN_BACKEND_CUDA_KERNELS_EXACT_ROTATE_STORE_CUH

#include "backend/cuda/compile.cuh"

// The ops: rope_q rotates q; store_k stores rope_k's result, which nothing else reads; store_v stores v.
struct rotate_store {
    const tn_tensor *rope_q, *rope_k, *store_k, *store_v;
};
bool rotate_store_supports(const rotate_store &r);
// `early`: no node of the program computes positions, rows or frequency factors.
tn_status compile_rotate_store(const compilation &c, const rotate_store &r, bool early);

#endif
