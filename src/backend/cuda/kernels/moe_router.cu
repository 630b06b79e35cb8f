// The MoE router: soft-max and selection of a token's experts in one launch; the weighted sum of their results in
// another.
#include "backend/cuda/kernels/common.cuh"

enum { LANE_EXPERTS = 16, MOST_EXPERTS = 32 * LANE_EXPERTS, WARPS = 4, MIX_THREADS = 256, MOST_USED = 32 };

// ---- Selecting experts ----

// One warp per token holds the values of all experts in registers.
__global__ static void __launch_bounds__(WARPS * 32)
    moe_router_kernel(const char *x, int64_t x_row, float *probs, int32_t *ids, int n, int used, int tokens) {
    grid_follow();
    int token = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const float *from = (const float *)(x + token * x_row);
    float v[LANE_EXPERTS], high = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) {
        v[i] = 32 * i + lane < n ? from[32 * i + lane] : -INFINITY;
        high = fmaxf(high, v[i]);
    }
    high = warp_max(high);
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) {
        v[i] = high == -INFINITY || 32 * i + lane >= n ? 0 : expf(v[i] - high);
        sum += v[i];
    }
    sum = warp_sum(sum);
    uint64_t rank[LANE_EXPERTS];
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) {
        int expert = 32 * i + lane;
        float p = high == -INFINITY ? 0 : v[i] / sum;
        rank[i] = expert < n ? rank_of(p, expert) : 0;
        if (expert < n) probs[(int64_t)token * n + expert] = p;
    }
    for (int u = 0; u < used; u++) {
        uint64_t highest = 0;
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) highest = rank[i] > highest ? rank[i] : highest;
        for (int offset = 16; offset; offset >>= 1) {
            uint64_t other = __shfl_xor_sync(0xffffffffu, highest, offset);
            highest = other > highest ? other : highest;
        }
        if (lane == 0) ids[(int64_t)token * used + u] = (int32_t)(0xffffffffu - (uint32_t)highest);
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) rank[i] = rank[i] == highest ? 0 : rank[i];
    }
}

bool is_plain_soft_max(const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    return t->op == TN_OP_SOFT_MAX && !t->src[1] && !t->src[2] && t->params.soft_max.scale == 1 &&
           x->type == TN_F32 && x->nb[0] == 4 && x->ne[2] == 1 && x->ne[3] == 1 && tn_is_contiguous(t);
}
bool moe_router_supports(const tn_tensor *probs, const tn_tensor *ids) {
    return is_plain_soft_max(probs) && ids->op == TN_OP_TOP_K && ids->src[0] == probs &&
           probs->ne[0] <= MOST_EXPERTS && tn_is_contiguous(ids) && ids->ne[0] <= probs->ne[0];
}
tn_status compile_moe_router(const compilation &c, const tn_tensor *probs, const tn_tensor *ids) {
    const tn_tensor *x = probs->src[0];
    return add_early(c, KERNEL(moe_router_kernel), dim3(blocks_for(x->ne[1], WARPS)), WARPS * 32, 0,
                     (const char *)x->data, (int64_t)x->nb[1], (float *)probs->data, (int32_t *)ids->data,
                     (int)x->ne[0], (int)ids->ne[0], (int)x->ne[1]);
}

// ---- Weighted sum ----

struct mix_job {
    const char *x; // [n][used][tokens]
    int64_t x_used, x_token;
    const float *probs; // [experts][tokens]
    const char *ids;
    int64_t ids_row;
    const float *residual; // or NULL
    float *out;
    int n, used, experts;
    bool soft_max, divide;
    float scale;
};

// out = residual + Σ weight · x over a token's experts. Warp 0 computes the weights from the router's probabilities.
__global__ static void __launch_bounds__(MIX_THREADS) mix_chosen_kernel(mix_job j) {
    __shared__ float weights[MOST_USED];
    grid_follow();
    int64_t token = blockIdx.y;
    int i = (int)(blockIdx.x * MIX_THREADS + threadIdx.x), lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        bool real = lane < j.used;
        int id = real ? ((const int32_t *)(j.ids + token * j.ids_row))[lane] : 0;
        float w = real && id >= 0 && id < j.experts ? j.probs[token * j.experts + id] : 0;
        if (j.soft_max) {
            float high = warp_max(real ? w : -INFINITY);
            w = real && high > -INFINITY ? expf(w - high) : 0;
            float sum = warp_sum(w);
            w = high > -INFINITY ? w / sum : 0;
        }
        if (j.divide) w /= warp_sum(real ? w : 0);
        if (real) weights[lane] = w * j.scale;
    }
    __syncthreads();
    if (i >= j.n) return;
    const char *x = j.x + token * j.x_token + 4 * (int64_t)i;
    float sum = j.residual ? j.residual[token * j.n + i] : 0;
    for (int u = 0; u < j.used; u++) sum += *(const float *)(x + u * j.x_used) * weights[u];
    j.out[token * j.n + i] = sum;
}

bool mix_supports(const chosen_mix &m) {
    const tn_tensor *x = m.mix->src[0], *probs = m.rows->src[0], *ids = m.rows->src[1];
    return x->type == TN_F32 && x->nb[0] == 4 && x->ne[1] <= MOST_USED && x->ne[2] <= 65535 &&
           tn_is_contiguous(m.out) && probs->type == TN_F32 && tn_is_contiguous(probs) && probs->ne[0] == 1 &&
           probs->ne[2] == x->ne[2] && probs->ne[3] == 1 && ids->nb[0] == 4 && ids->ne[0] == x->ne[1] &&
           ids->ne[1] == x->ne[2] && (!m.soft_max || m.soft_max->ne[0] == x->ne[1]) &&
           (!m.sum || m.sum->src[0]->ne[0] == x->ne[1]);
}
tn_status compile_chosen_mix(const compilation &c, const chosen_mix &m) {
    const tn_tensor *x = m.mix->src[0], *probs = m.rows->src[0], *ids = m.rows->src[1];
    mix_job j = {(const char *)x->data,
                 (int64_t)x->nb[1],
                 (int64_t)x->nb[2],
                 (const float *)probs->data,
                 (const char *)ids->data,
                 (int64_t)ids->nb[1],
                 m.residual ? (const float *)m.residual->data : NULL,
                 (float *)m.out->data,
                 (int)x->ne[0],
                 (int)x->ne[1],
                 (int)probs->ne[1],
                 m.soft_max != NULL,
                 m.div != NULL,
                 m.scale ? m.scale->params.scale.scale : 1};
    return add_early(c, KERNEL(mix_chosen_kernel), dim3(blocks_for(j.n, MIX_THREADS), (unsigned)x->ne[2]),
                     MIX_THREADS, 0, j);
}
