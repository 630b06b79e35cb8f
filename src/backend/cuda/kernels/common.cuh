// Device functions that all kernels share: starting before the previous kernel ends, reductions, conversions.
#ifndef TN_BACKEND_CUDA_KERNELS_COMMON_CUH
#define TN_BACKEND_CUDA_KERNELS_COMMON_CUH

#include "backend/cuda/compile.cuh"

// ---- Programmatic dependent launch (from compute capability 9.0 on) ----

// Waits until the previous kernel has ended and its results are visible. Before it, a kernel may only read what no
// kernel of the program writes, such as weights.
__device__ static inline void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start.
__device__ static inline void grid_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// For kernels that read nothing before grid_wait().
__device__ static inline void grid_follow() {
    grid_next();
    grid_wait();
}

// ---- Reductions ----

__device__ static inline float warp_sum(float x) {
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ static inline float warp_max(float x) {
    for (int offset = 16; offset; offset >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
// Over a block of up to 1024 threads; every thread gets the result. `shared` has 32 floats; consecutive
// calls may use the same.
template <bool MAX> __device__ static inline float block_reduce(float x, float *shared) {
    x = MAX ? warp_max(x) : warp_sum(x);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    if (warps == 1) return x;
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : (MAX ? -INFINITY : 0.0f);
    return MAX ? warp_max(x) : warp_sum(x);
}

// ---- Conversions ----

// One element of an unquantized type as float, and back.
__device__ static inline float load_as_float(const void *p, int type) {
    switch (type) {
    case TN_F32: return *(const float *)p;
    case TN_F16: return __half2float(*(const __half *)p);
    case TN_BF16: return __bfloat162float(*(const __nv_bfloat16 *)p);
    case TN_I32: return (float)*(const int32_t *)p;
    default: return 0;
    }
}
__device__ static inline void store_float(void *p, int type, float x) {
    switch (type) {
    case TN_F32: *(float *)p = x; break;
    case TN_F16: *(__half *)p = __float2half_rn(x); break;
    case TN_BF16: *(__nv_bfloat16 *)p = __float2bfloat16_rn(x); break;
    case TN_I32: *(int32_t *)p = (int32_t)x; break;
    }
}

#endif
