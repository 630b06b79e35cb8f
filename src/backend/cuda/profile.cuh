// Timing of launches. With TENON_CUDA_PROFILE=1 the launches of every node are timed by themselves, and sums per op
// are printed when the stream is freed. Nothing is captured then, launches do not overlap, and there is no persistent
// decode kernel. With 2 whole CUDA graphs are timed, under the name of their first op.
#ifndef TN_BACKEND_CUDA_PROFILE_CUH
#define TN_BACKEND_CUDA_PROFILE_CUH

#include "backend/cuda/cuda.cuh"

profile *profile_new(void); // NULL unless TENON_CUDA_PROFILE is set
void profile_free(profile *p);
bool profile_is_single(const profile *p); // times nodes one by one
void profile_begin(profile *p, cudaStream_t stream);
void profile_end(profile *p, cudaStream_t stream, const tn_tensor *node);

#endif
