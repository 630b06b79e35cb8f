// The MoE router: the selection of a token's experts in one launch, alone or together with the norm and the matmul
// before it; and the weighted sum of the experts' results.
#include "backend/cuda/kernels/experts/experts.cuh"

enum { MOST_EXPERTS = 512, WARPS = 4, MIX_THREADS = 256 };

// ---- Selecting experts ----

// Soft-max of n values and the `used` largest. A warp holds the values in registers, EACH per lane.
template <int EACH>
__device__ static inline void select_experts(const float *from, float *probs, int32_t *ids, int n, int used) {
    int lane = threadIdx.x % 32;
    float v[EACH], high = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = 32 * i + lane < n ? __ldcg(from + 32 * i + lane) : -INFINITY;
        high = fmaxf(high, v[i]);
    }
    high = warp_max(high);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = high == -INFINITY || 32 * i + lane >= n ? 0 : expf(v[i] - high);
        sum += v[i];
    }
    sum = warp_sum(sum);
    uint64_t rank[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int expert = 32 * i + lane;
        float p = high == -INFINITY ? 0 : v[i] / sum;
        rank[i] = expert < n ? rank_of(p, expert) : 0;
        if (expert < n) probs[expert] = p;
    }
    for (int u = 0; u < used; u++) {
        uint64_t highest = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) highest = rank[i] > highest ? rank[i] : highest;
        for (int offset = 16; offset; offset >>= 1) {
            uint64_t other = __shfl_xor_sync(0xffffffffu, highest, offset);
            highest = other > highest ? other : highest;
        }
        if (lane == 0) ids[u] = (int32_t)(0xffffffffu - (uint32_t)highest);
#pragma unroll
        for (int i = 0; i < EACH; i++) rank[i] = rank[i] == highest ? 0 : rank[i];
    }
}
__global__ static void __launch_bounds__(WARPS * 32)
    moe_router_kernel(const char *x, int64_t x_row, float *probs, int32_t *ids, int n, int used, int tokens) {
    grid_follow();
    int64_t token = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (token >= tokens) return;
    const float *from = (const float *)(x + token * x_row);
    if (n <= 128)
        select_experts<4>(from, probs + token * n, ids + token * used, n, used);
    else
        select_experts<MOST_EXPERTS / 32>(from, probs + token * n, ids + token * used, n, used);
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

// ---- Norm, router and selection ----

enum {
    ROUTER_THREADS = 256,
    ROUTER_EXPERTS = 4,                              // of a block: two warps compute one
    ROUTER_EARLY = 8,                                // loads of a lane before the previous kernel has ended
    ROUTER_MOST_K = 8192,                            // a token's row is in shared memory
    ROUTER_WARPS = ROUTER_THREADS / 32,              //
    WARPS_OF_EXPERT = ROUTER_WARPS / ROUTER_EXPERTS, //
};
struct normed_router_job {
    const float *x; // [tokens][x_row]
    int64_t x_row;
    const float *norm_weight;
    float eps;
    float *normed;  // [tokens][k]
    const float *w; // [n][w_row]
    int64_t w_row;
    float *logits, *probs; // [tokens][n]; may be the same memory
    int32_t *ids;          // [tokens][used]
    int k, n, used;
    bool lasting; // no kernel writes w
    gemv_next next;
    unsigned *tickets; // one per token
};
// Every block of a token computes its norm; the factor is left to the end of each dot product. The last block to
// finish selects the experts.
__global__ static void __launch_bounds__(ROUTER_THREADS) normed_router_kernel(normed_router_job j) {
    extern __shared__ __align__(16) float weighted[]; // x times the norm's weight
    __shared__ float shared[32], parts[ROUTER_WARPS];
    __shared__ bool is_last_block;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y, n4 = j.k / 4,
              part = warp % WARPS_OF_EXPERT, expert = (int)blockIdx.x * ROUTER_EXPERTS + warp / WARPS_OF_EXPERT;
    const float4 *row = (const float4 *)(j.w + (int64_t)min(expert, j.n - 1) * j.w_row);
    float4 early[ROUTER_EARLY];
    grid_next();
    if (!j.lasting) grid_wait();
#pragma unroll
    for (int i = 0; i < ROUTER_EARLY; i++) {
        int at = (i * WARPS_OF_EXPERT + part) * 32 + lane;
        early[i] = at < n4 ? row[at] : make_float4(0, 0, 0, 0);
    }
    if (j.lasting) grid_wait();
    const float4 *x = (const float4 *)(j.x + token * j.x_row), *norm = (const float4 *)j.norm_weight;
    float sum = 0;
    for (int i = threadIdx.x; i < n4; i += ROUTER_THREADS) {
        float4 v = x[i], w = norm[i];
        sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
        ((float4 *)weighted)[i] = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
    }
    const float scale = rsqrtf(block_reduce<false>(sum, shared) / (float)j.k + j.eps); // with a barrier
    float dot = 0;
    auto add = [&](float4 w, int at) {
        float4 y = ((const float4 *)weighted)[at];
        dot += w.x * y.x + w.y * y.y + w.z * y.z + w.w * y.w;
    };
#pragma unroll
    for (int i = 0; i < ROUTER_EARLY; i++) {
        int at = (i * WARPS_OF_EXPERT + part) * 32 + lane;
        if (at < n4) add(early[i], at);
    }
    for (int at = (ROUTER_EARLY * WARPS_OF_EXPERT + part) * 32 + lane; at < n4; at += 32 * WARPS_OF_EXPERT)
        add(row[at], at);
    dot = warp_sum(dot);
    if (lane == 0) parts[warp] = dot;
    for (int g = (int)blockIdx.x * ROUTER_WARPS + warp; g < j.k / 32; g += (int)gridDim.x * ROUTER_WARPS) {
        float y = weighted[32 * g + lane] * scale;
        j.normed[(int64_t)token * j.k + 32 * g + lane] = y;
        if (j.next.to.q || j.next.y) gemv_store_next(j.next, j.k, token, g, y, y);
    }
    __syncthreads();
    if (threadIdx.x < ROUTER_EXPERTS && (int)blockIdx.x * ROUTER_EXPERTS + (int)threadIdx.x < j.n) {
        float all = 0;
        for (int i = 0; i < WARPS_OF_EXPERT; i++) all += parts[WARPS_OF_EXPERT * threadIdx.x + i];
        j.logits[(int64_t)token * j.n + blockIdx.x * ROUTER_EXPERTS + threadIdx.x] = all * scale;
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) is_last_block = atomicInc(&j.tickets[token], gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last_block || warp) return;
    __threadfence();
    const float *from = j.logits + (int64_t)token * j.n;
    float *probs = j.probs + (int64_t)token * j.n;
    int32_t *ids = j.ids + (int64_t)token * j.used;
    if (j.n <= 128)
        select_experts<4>(from, probs, ids, j.n, j.used);
    else
        select_experts<MOST_EXPERTS / 32>(from, probs, ids, j.n, j.used);
}

static bool is_aligned16(const tn_tensor *t) { return (uintptr_t)t->data % 16 == 0; }
bool normed_router_supports(const normed_router &r) {
    const tn_tensor *x = r.norm->src[0], *w = r.router->src[0];
    if (r.router->op != TN_OP_MUL_MAT || w->type != TN_F32 || (r.router->flags & TN_FLAG_REPEATABLE)) return false;
    const int64_t k = w->ne[0];
    return k % 32 == 0 && k <= ROUTER_MOST_K && w->nb[0] == 4 && w->nb[1] % 16 == 0 && w->ne[2] == 1 &&
           w->ne[3] == 1 && is_aligned16(w) && is_aligned16(x) && x->nb[1] % 16 == 0 && is_aligned16(r.norm) &&
           is_aligned16(r.norm->src[1]) && tn_is_contiguous(r.norm) && r.norm->ne[0] == k &&
           r.norm->ne[1] <= GEMV_MAX_COLUMNS && tn_is_contiguous(r.router) && r.router->ne[1] == r.norm->ne[1] &&
           moe_router_supports(r.probs, r.ids);
}
tn_status compile_normed_router(const compilation &c, const normed_router &r, const gemv_next &next) {
    const tn_tensor *x = r.norm->src[0], *w = r.router->src[0];
    const normed_router_job j = {(const float *)x->data,
                                 (int64_t)x->nb[1] / 4,
                                 (const float *)r.norm->src[1]->data,
                                 r.norm->params.norm.eps,
                                 (float *)r.norm->data,
                                 (const float *)w->data,
                                 (int64_t)w->nb[1] / 4,
                                 (float *)r.router->data,
                                 (float *)r.probs->data,
                                 (int32_t *)r.ids->data,
                                 (int)w->ne[0],
                                 (int)w->ne[1],
                                 (int)r.ids->ne[0],
                                 w->buffer && w->buffer->usage == TN_USAGE_WEIGHTS,
                                 next,
                                 c.tickets};
    return add_early(c, KERNEL(normed_router_kernel), dim3(blocks_for(j.n, ROUTER_EXPERTS), (unsigned)r.norm->ne[1]),
                     ROUTER_THREADS, (size_t)j.k * 4, j);
}

// ---- Weighted sum ----

struct mix_job {
    const char *x; // [n][used][tokens]
    int64_t x_used, x_token;
    mix_weights weights;
    const float *residual; // or NULL
    float *out;
    int n;
};

// out = residual + Σ weight · x over a token's experts. Warp 0 computes the weights from the router's probabilities.
__global__ static void __launch_bounds__(MIX_THREADS) mix_chosen_kernel(mix_job j) {
    __shared__ float weights[MOST_USED];
    grid_follow();
    int64_t token = blockIdx.y;
    int i = (int)(blockIdx.x * MIX_THREADS + threadIdx.x);
    if (threadIdx.x < 32) {
        int id;
        weights[threadIdx.x] = mix_weight(j.weights, token, &id);
    }
    __syncthreads();
    if (i >= j.n) return;
    const char *x = j.x + token * j.x_token + 4 * (int64_t)i;
    float sum = j.residual ? j.residual[token * j.n + i] : 0;
    for (int u = 0; u < j.weights.used; u++) sum += *(const float *)(x + u * j.x_used) * weights[u];
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
mix_weights mix_weights_of(const chosen_mix &m) {
    const tn_tensor *probs = m.rows->src[0], *ids = m.rows->src[1];
    return {(const float *)probs->data,
            (const char *)ids->data,
            (int64_t)ids->nb[1],
            (int)ids->ne[0],
            (int)probs->ne[1],
            m.soft_max != NULL,
            m.div != NULL,
            m.scale ? m.scale->params.scale.scale : 1};
}
tn_status compile_chosen_mix(const compilation &c, const chosen_mix &m) {
    const tn_tensor *x = m.mix->src[0];
    mix_job j = {(const char *)x->data,
                 (int64_t)x->nb[1],
                 (int64_t)x->nb[2],
                 mix_weights_of(m),
                 m.residual ? (const float *)m.residual->data : NULL,
                 (float *)m.out->data,
                 (int)x->ne[0]};
    return add_early(c, KERNEL(mix_chosen_kernel), dim3(blocks_for(j.n, MIX_THREADS), (unsigned)x->ne[2]),
                     MIX_THREADS, 0, j);
}
