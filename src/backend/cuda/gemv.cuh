// Products with few columns: decoding.
#ifndef TN_BACKEND_CUDA_GEMV_CUH
#define TN_BACKEND_CUDA_GEMV_CUH

#include "backend/cuda/cuda.cuh"

enum { GEMV_MAX_COLUMNS = 8 };

bool gemv_serves(const tn_tensor *t);
size_t gemv_scratch(const tn_tensor *t);
tn_status launch_gemv(const launch &l, const tn_tensor *t);

#endif
