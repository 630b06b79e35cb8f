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

// fp8 (e4m3), shifted to where a half float has the same bits, is 2^-8 of its value. See base/half.h.
__device__ static inline float fp8_to_float(uint8_t b) {
    const uint16_t half = (uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7);
    return (b & 0x7f) == 0x7f ? NAN : 256 * __half2float(__ushort_as_half(half));
}
__device__ static inline uint8_t float_to_fp8(float x) {
    uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80u;
    bits &= 0x7fffffffu;
    uint32_t small = __float_as_uint(__uint_as_float(bits) + 16384.0f) - 0x46800000u,
             normal = (bits + 0x7ffffu + (bits >> 20 & 1) - (120u << 23)) >> 20,
             code = bits < 0x3c800000u    ? small
                    : bits >= 0x43e00000u ? 0x7eu
                                          : normal;
    return (uint8_t)(sign | (bits > 0x7f800000u ? 0x7fu : code));
}

// One element of an unquantized type as float, and back.
__device__ static inline float load_as_float(const void *p, int type) {
    switch (type) {
    case TN_F32: return *(const float *)p;
    case TN_F16: return __half2float(*(const __half *)p);
    case TN_BF16: return __bfloat162float(*(const __nv_bfloat16 *)p);
    case TN_FP8: return fp8_to_float(*(const uint8_t *)p);
    case TN_I32: return (float)*(const int32_t *)p;
    default: return 0;
    }
}
__device__ static inline void store_float(void *p, int type, float x) {
    switch (type) {
    case TN_F32: *(float *)p = x; break;
    case TN_F16: *(__half *)p = __float2half_rn(x); break;
    case TN_BF16: *(__nv_bfloat16 *)p = __float2bfloat16_rn(x); break;
    case TN_FP8: *(uint8_t *)p = float_to_fp8(x); break;
    case TN_I32: *(int32_t *)p = (int32_t)x; break;
    }
}

// A key that orders values as top_k does: NaN after everything, equal values by index. Never 0.
__device__ static inline uint64_t rank_of(float v, int index) {
    uint32_t bits = __float_as_uint(v + 0.0f); // makes -0 equal to 0
    uint32_t order = v != v ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)order << 32 | (0xffffffffu - (uint32_t)index);
}

#endif
