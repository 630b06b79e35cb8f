// Where the time goes: with TENON_CUDA_PROFILE=1 every launch is timed by itself, and the sums are printed when the
// stream is freed; nothing is captured then, and launches do not overlap. With 2 whole graphs are timed, under the
// name of their first op.
#ifndef TN_BACKEND_CUDA_PROFILE_CUH
#define TN_BACKEND_CUDA_PROFILE_CUH

#include "backend/cuda/cuda.cuh"

profile *profile_new(void); // NULL when not asked for
void profile_free(profile *p);
bool profile_is_single(const profile *p); // launches one by one
void profile_begin(profile *p, cudaStream_t stream);
void profile_end(profile *p, cudaStream_t stream, const tn_tensor *node);

#endif
