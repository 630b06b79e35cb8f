// Operations that several kernels compute with the same bits, for repeatable ops: each is written once, with the
// order of its additions and without expressions that compilers may contract in different ways.
#ifndef TN_BACKEND_CUDA_KERNELS_EXACT_CUH
#define TN_BACKEND_CUDA_KERNELS_EXACT_CUH

#include "backend/cuda/kernels/common.cuh"

// ---- RMS norm ----

// Thread i of EXACT_NORM_THREADS adds the squares of elements 8i to 8i + 7, then of those EXACT_NORM_ROUND elements
// later and so on; then a warp's threads are added up, then the warps. Threads and warps without elements have 0, so
// a block may leave them out.
enum {
    EXACT_NORM_THREADS = 512,
    EXACT_NORM_WARPS = EXACT_NORM_THREADS / 32,
    EXACT_NORM_ROUND = 8 * EXACT_NORM_THREADS
};
__device__ static inline float add_squares(float sum, const float (&x)[8]) {
#pragma unroll
    for (int e = 0; e < 8; e++) sum = __fmaf_rn(x[e], x[e], sum);
    return sum;
}
// The factor of all elements, from the sums of EXACT_NORM_WARPS warps.
__device__ static inline float exact_rms_scale(const float *of_warps, int n, float eps) {
    float sum = of_warps[threadIdx.x % EXACT_NORM_WARPS];
#pragma unroll
    for (int offset = EXACT_NORM_WARPS / 2; offset; offset >>= 1)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
    return rsqrtf(__fadd_rn(__fdiv_rn(sum, (float)n), eps));
}
__device__ static inline float exact_normalized(float x, float scale, float weight) {
    return __fmul_rn(__fmul_rn(x, scale), weight);
}

// ---- Rotation (RoPE) ----

// The angle of a pair before scaling.
__device__ static inline double exact_theta(int position, float base, int pair, int dims) {
    return __dmul_rn((double)position, pow((double)base, -2.0 * pair / dims));
}
// Cosine and sine of an angle in radians. Angles are computed in double and reduced to one turn: with large positions
// a float would lose the fraction.
__device__ static inline float2 exact_turn(double angle, float magnitude) {
    float s, c;
    sincosf((float)__fma_rn(-6.283185307179586476925, rint(angle / 6.283185307179586476925), angle), &s, &c);
    return make_float2(__fmul_rn(c, magnitude), __fmul_rn(s, magnitude));
}
// The parameters of RoPE that the angle of a pair depends on, beside its frequency.
struct rope_scaling {
    float freq_scale, ext_factor, attn_factor;
    float corr_low, corr_high; // YaRN: the pairs between which it blends
};
__device__ static inline float2 exact_pair_turn(double theta, int pair, const float *factors, const rope_scaling &r) {
    if (factors) theta = __ddiv_rn(theta, factors[pair]);
    double angle = __dmul_rn(r.freq_scale, theta);
    float magnitude = r.attn_factor;
    if (r.ext_factor != 0) {
        const double ramp =
            1 - fmin(1.0, fmax(0.0, (pair - (double)r.corr_low) / fmax(0.001, (double)r.corr_high - r.corr_low)));
        const double blend = ramp * r.ext_factor;
        angle = __dadd_rn(__dmul_rn(angle, __dadd_rn(1.0, -blend)), __dmul_rn(theta, blend));
        magnitude *= __fmaf_rn(0.1f, logf(1 / r.freq_scale), 1);
    }
    return exact_turn(angle, magnitude);
}
__device__ static inline float exact_rotated_first(float u, float v, float2 turn) {
    return __fmaf_rn(u, turn.x, -__fmul_rn(v, turn.y));
}
__device__ static inline float exact_rotated_second(float u, float v, float2 turn) {
    return __fmaf_rn(u, turn.y, __fmul_rn(v, turn.x));
}

// ---- Activations as halves ----

__device__ static inline float saturated_half(float v) { return v != v ? v : fminf(fmaxf(v, -65504.0f), 65504.0f); }
// Two elements of a column for the tile kernels (kernels/tiles).
__device__ static inline uint32_t tile_pair(float a, float b, bool bf16) {
    if (bf16) {
        __nv_bfloat162 x = __floats2bfloat162_rn(a, b);
        return *(uint32_t *)&x;
    }
    __half2 x = __floats2half2_rn(saturated_half(a), saturated_half(b));
    return *(uint32_t *)&x;
}

#endif
