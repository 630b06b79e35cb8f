// Attention of many sequences and repeatable attention: adding the results of splits, always with the same
// operations.
#ifndef TN_BACKEND_CUDA_KERNELS_MANY_ATTENTION_FOLD_CUH
#define TN_BACKEND_CUDA_KERNELS_MANY_ATTENTION_FOLD_CUH

#include "backend/cuda/kernels/attention_tiles.cuh"

// Maximum of the scores and sum of the weights of a row, of some cells.
struct row_rate {
    float max, sum;
};
// Factors for results so far and for those of the next split.
struct fold_factors {
    float before, next;
};
__device__ static fold_factors fold_rates(row_rate &total, row_rate next) {
    const float most = fmaxf(total.max, next.max);
    const fold_factors f = {total.max == -INFINITY ? 0 : __expf(total.max - most),
                            next.max == -INFINITY ? 0 : __expf(next.max - most)};
    total = {most, __fmaf_rn(total.sum, f.before, __fmul_rn(next.sum, f.next))};
    return f;
}
__device__ static float fold_sum(float total, float next, const fold_factors &f) {
    return __fmaf_rn(total, f.before, __fmul_rn(next, f.next));
}
// The factor that makes a sum of weighted values the result.
__device__ static float final_factor(const attention_job &j, row_rate total, int head) {
    float rescale = 1, sum = total.sum;
    if (j.sinks) {
        const float most = fmaxf(total.max, j.sinks[head]);
        rescale = total.max == -INFINITY ? 0 : __expf(total.max - most);
        sum = __fmaf_rn(sum, rescale, __expf(j.sinks[head] - most + LIFT));
    }
    return sum > 0 ? rescale / sum : 0;
}
// Without the sign of zero, which may depend on skipped tiles.
__device__ static float final_value(float sum, float factor) { return __fmaf_rn(sum, factor, 0.0f); }

#endif
