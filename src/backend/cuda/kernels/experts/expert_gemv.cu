// Matmuls of the experts of few tokens. An expert is small, so that the time follows the loads in flight.
//
// Gate and up with the gated activation: a block computes 32 rows of one expert. The last matmul with the weighted
// sum of its results: a block computes 32 rows of all experts of a token, and also adds a residual. Both store the
// result in the form that the next matmul reads. Without a next matmul, and with few blocks, a block has 16 rows.
#include "backend/cuda/kernels/experts/experts.cuh"
#include "backend/cuda/kernels/gemv_units.cuh"
#include "backend/cuda/kernels/unary.cuh"

enum { GATE_WARPS = GEMV_TILE / 2, SUM_WARPS = 32 };

// ---- Gate and up ----

// A warp computes two rows of both matrices. gridDim.y is the number of pairs of a token and an expert. Two blocks
// must fit on a multiprocessor: a launch has more blocks than there are multiprocessors.
template <typename U> __global__ static void __launch_bounds__(GATE_WARPS * 32, 2) expert_gate_kernel(gemv_job j) {
    __shared__ float results[2][GEMV_TILE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.y, token = pair / j.experts.used,
              steps = (j.k + U::SPAN - 1) / U::SPAN, column = j.experts.same_input ? token : pair;
    grid_wait(); // the ids are results of the previous kernel
    grid_next(); // not sooner: the next kernel may read the ids before it waits
    const int id = *(const int32_t *)(j.experts.ids + token * j.experts.row_bytes + pair % j.experts.used * 4);
    const bool is_expert = id >= 0 && id < j.experts.n;
#pragma unroll 1
    for (int r = 2 * warp; r < 2 * warp + 2; r++) {
        float sum[2] = {};
        for (int s = 0; s < steps && is_expert; s++) {
            if (!U::covers(s, lane, j.k)) continue;
            U unit[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t row = (int64_t)blockIdx.x * GEMV_TILE + r;
                unit[i].load(j.m[i].w + id * j.m[i].expert_bytes + row * j.m[i].row_bytes, s, lane, j.k);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) sum[i] += unit[i].dot(j.in, column, j.k, s, lane);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float all = warp_sum(sum[i]);
            if (lane == 0) results[i][r] = all;
        }
    }
    __syncthreads();
    if (warp) return;
    const float value = gated(j.glu, results[0][lane], results[1][lane], j.glu_params);
    gemv_store_next(j.next, j.m[0].rows, pair, blockIdx.x, value, value);
}

// ---- The last matmul and the weighted sum ----

// Units of which a lane has 64 neighbouring elements: short rows take few lanes, so that a warp can have several.
template <typename U> struct has_short_rows { static constexpr bool VALUE = false; };
template <> struct has_short_rows<unit_q4_K> { static constexpr bool VALUE = true; };
template <> struct has_short_rows<unit_q5_K> { static constexpr bool VALUE = true; };
template <> struct has_short_rows<unit_q6_K_soa> { static constexpr bool VALUE = true; };

// An item is one row of one expert: `lanes` lanes of a warp compute it, and 32 / lanes items are a warp's at a time.
template <typename U>
__global__ static void __launch_bounds__(SUM_WARPS * 32, 1)
    expert_sum_kernel(gemv_job j, mix_weights m, int tile, bool ids_are_old) {
    constexpr int BATCH = 2;
    __shared__ float results[GEMV_TILE][MOST_USED + 1], weights[MOST_USED];
    __shared__ int ids[MOST_USED];
    const int warp = threadIdx.x / 32, token = blockIdx.y, first_row = blockIdx.x * tile, used = m.used,
              items = tile * used, steps = (j.k + U::SPAN - 1) / U::SPAN, rows = j.m[0].rows;
    const int lanes = has_short_rows<U>::VALUE && j.k <= 1024 ? j.k / 64 : 32, at_once = 32 / lanes,
              part = (int)threadIdx.x % 32 / lanes, lane = (int)threadIdx.x % 32 - part * lanes;
    const bool has_item = part < at_once;
    grid_next();
    if (!ids_are_old) grid_wait();
    if (warp == 0) {
        int id;
        weights[threadIdx.x] = mix_weight(m, token, &id);
        ids[threadIdx.x] = id >= 0 && id < m.experts ? id : -1;
    }
    __syncthreads();
    U unit[BATCH];
    // Item i of the batch that begins with `first`, or the last item.
    auto item_at = [&](int first, int i) { return min(first + SUM_WARPS * at_once * i + part, items - 1); };
    auto load = [&](int first, int s) {
        if (!has_item || !U::covers(s, lane, j.k)) return;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int item = item_at(first, i), row = min(first_row + item / used, rows - 1);
            unit[i].load(j.m[0].w + max(ids[item % used], 0) * j.m[0].expert_bytes + row * j.m[0].row_bytes, s, lane,
                         j.k);
        }
    };
    load(warp * at_once, 0);
    if (ids_are_old) grid_wait();
    const int own_row = first_row + (int)threadIdx.x; // of the first threads
    const float residual =
        j.residual && (int)threadIdx.x < tile && own_row < rows ? j.residual[token * j.residual_row + own_row] : 0;
    for (int first = warp * at_once; first < items; first += BATCH * SUM_WARPS * at_once) {
        float sum[BATCH] = {};
        for (int s = 0; s < steps; s++) {
            if (s || first > warp * at_once) load(first, s);
            if (!has_item || !U::covers(s, lane, j.k)) continue;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int column = j.experts.same_input ? token : token * used + item_at(first, i) % used;
                sum[i] += unit[i].dot(j.in, column, j.k, s, lane);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            for (int offset = 16; offset; offset >>= 1) {
                const float other = __shfl_down_sync(0xffffffffu, sum[i], offset);
                if (lane + offset < lanes) sum[i] += other;
            }
            const int item = first + SUM_WARPS * at_once * i + part;
            if (lane == 0 && has_item && item < items) results[item / used][item % used] = sum[i];
        }
    }
    __syncthreads();
    if ((int)threadIdx.x >= tile) return;
    const int row = own_row;
    float value = residual;
    for (int u = 0; u < used; u++)
        if (ids[u] >= 0) value += results[threadIdx.x][u] * weights[u];
    if (row < rows) j.m[0].out[token * j.m[0].out_row + row] = value;
    // With a next matmul, the rows are a multiple of GEMV_TILE, and so is the tile.
    if (j.next.to.q || j.next.y) {
        const float by = j.next.weight ? j.next.weight[row] : 1;
        gemv_store_next(j.next, rows, token, blockIdx.x, value, value * by);
    }
}

// ---- Launches ----

// CASE(unit, name) with the unit of a kind of weights.
#define FOR_EXPERT_KIND(kind, CASE)                                                                                  \
    switch (kind) {                                                                                                  \
    case TN_F16: CASE(unit_half<false>, "f16");                                                                      \
    case TN_BF16: CASE(unit_half<true>, "bf16");                                                                     \
    case TN_Q4_0 | SOA: CASE(unit_q4_0_soa, "q4_0_soa");                                                             \
    case TN_Q8_0 | SOA: CASE(unit_q8_0_soa, "q8_0_soa");                                                             \
    case TN_Q6_K | SOA: CASE(unit_q6_K_soa, "q6_K_soa");                                                             \
    case TN_Q4_K: CASE(unit_q4_K, "q4_K");                                                                           \
    case TN_Q5_K: CASE(unit_q5_K, "q5_K");                                                                           \
    default: return tn_fail(TN_E_INTERNAL, "experts with weights of kind %d", kind);                                 \
    }

bool expert_gate_supports(const gemv_job &job) {
    return job.finish == GEMV_GLU && job.experts.ids && !job.in.squares && job.m[0].rows % GEMV_TILE == 0;
}
tn_status compile_expert_gate(const compilation &c, const gemv_job &job) {
    launch_shape shape = {dim3((unsigned)(job.m[0].rows / GEMV_TILE), (unsigned)job.experts.pairs), GATE_WARPS * 32};
    shape.early = c.device->programmatic_launch;
#define LAUNCH(U, name)                                                                                              \
    return add_kernel(c, kernel_called("expert_gate_kernel", name), expert_gate_kernel<U>, shape, job)
    FOR_EXPERT_KIND(job.m[0].kind, LAUNCH)
#undef LAUNCH
}
bool expert_sum_supports(const gemv_job &job, const chosen_mix &m) {
    return job.experts.used <= MOST_USED && m.rows->src[1]->data == job.experts.ids &&
           (int64_t)m.rows->src[1]->nb[1] == job.experts.row_bytes && m.mix->src[0]->ne[0] == job.m[0].rows &&
           m.mix->src[0]->ne[1] == job.experts.used && m.rows->src[0]->ne[1] == job.experts.n && !job.in.squares;
}
tn_status compile_expert_sum(const compilation &c, const gemv_job &job, const chosen_mix &mix, bool ids_are_old) {
    const mix_weights m = mix_weights_of(mix);
    const int tokens = job.experts.pairs / job.experts.used;
    const bool has_next = job.next.to.q || job.next.y;
    const int tile = has_next || (int)blocks_for(job.m[0].rows, GEMV_TILE) * tokens > c.device->multiprocessors / 2
                         ? GEMV_TILE
                         : GEMV_TILE / 2;
    launch_shape shape = {dim3(blocks_for(job.m[0].rows, tile), (unsigned)tokens), SUM_WARPS * 32};
    shape.early = c.device->programmatic_launch && job.m[0].lasting;
#define LAUNCH(U, name)                                                                                              \
    return add_kernel(c, kernel_called("expert_sum_kernel", name), expert_sum_kernel<U>, shape, job, m, tile,        \
                      ids_are_old)
    FOR_EXPERT_KIND(job.m[0].kind, LAUNCH)
#undef LAUNCH
}
