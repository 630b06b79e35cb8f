// Experts of few tokens: the norm before the router, the router and the selection in one launch; the last matmul and
// the weighted sum of its results in another.
#ifndef TN_BACKEND_CUDA_KERNELS_EXPERTS_EXPERTS_CUH
#define TN_BACKEND_CUDA_KERNELS_EXPERTS_EXPERTS_CUH

#include "backend/cuda/kernels/gemv.cuh"

enum { MOST_USED = 32 }; // experts whose results are summed

// How the weights of a token's experts follow from the router's probabilities.
struct mix_weights {
    const float *probs; // [experts][tokens]
    const char *ids;
    int64_t ids_row;
    int used, experts;
    bool soft_max, divide;
    float scale;
};
mix_weights mix_weights_of(const chosen_mix &m);
// The weight of expert `lane` of a token; the whole warp calls this. Reads from the L2 cache, because another kernel
// may have written ids and probabilities since this one started.
__device__ static inline float mix_weight(const mix_weights &m, int64_t token, int *id) {
    const int lane = threadIdx.x % 32;
    const bool real = lane < m.used;
    *id = real ? __ldcg((const int32_t *)(m.ids + token * m.ids_row) + lane) : -1;
    float w = real && *id >= 0 && *id < m.experts ? __ldcg(m.probs + token * m.experts + *id) : 0;
    if (m.soft_max) {
        float high = warp_max(real ? w : -INFINITY);
        w = real && high > -INFINITY ? expf(w - high) : 0;
        float sum = warp_sum(w);
        w = high > -INFINITY ? w / sum : 0;
    }
    if (m.divide) w /= warp_sum(real ? w : 0);
    return w * m.scale;
}

// A norm, a router with f32 weights that reads it, and the selection. The nodes keep their results. `next`: where the
// norm's result is also stored for the matmuls of the experts.
struct normed_router {
    const tn_tensor *norm, *router, *probs, *ids;
};
bool normed_router_supports(const normed_router &r);
tn_status compile_normed_router(const compilation &c, const normed_router &r, const gemv_next &next);

// Gate and up of experts and few tokens, with the gated activation; only the next matmul reads the result.
bool expert_gate_supports(const gemv_job &job);
tn_status compile_expert_gate(const compilation &c, const gemv_job &job);
// A matmul with experts and few tokens whose results are only summed. `ids_are_old`: ids and probabilities were
// complete when the previous launch passed its grid_wait().
bool expert_sum_supports(const gemv_job &job, const chosen_mix &m);
tn_status compile_expert_sum(const compilation &c, const gemv_job &job, const chosen_mix &m, bool ids_are_old);

#endif
