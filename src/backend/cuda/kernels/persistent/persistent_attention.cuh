// The persistent decode kernel: attention of one token as a step, with rotation (RoPE) and the new row of the KV
// cache.
// A block computes one key/value head over a contiguous share of the logical cells. Each warp processes 8 cells,
// which are in one run, then advances by 16 × 8. Warps combine their sums in shared memory, blocks in scratch, where
// the last block to finish combines them.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_ATTENTION_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_ATTENTION_CUH

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"
#include "backend/cuda/kernels/persistent/persistent_sync.cuh"

#if __CUDA_ARCH__ >= 900
// A block's share of the cells. Attentions of several layers have the same (decode_job.view).
struct cell_view {
    int begin, stop; // logical cells
    int active;      // blocks of a key/value head that have a share
    int new_row;     // the cell that this token writes, or -1
    attention_query query;
    tn_page_run runs[VIEW_RUNS]; // the first runs of the share
};
// Loads the view of block number `split` of a key/value head. Every loading thread reads the query and the number of
// runs itself: that is faster than waiting for one of them.
__device__ static inline void load_view(const decode_job &d, int split, cell_view &view) {
    const attention_job &j = d.a;
    if (threadIdx.x < VIEW_RUNS) {
        attention_query query = query_of(j, 0);
        int n = logical_cells(j, query), max_blocks = min(d.splits, (int)gridDim.x / j.kv_heads);
        int span = max((int)MIN_CELLS_PER_BLOCK,
                       ((n + max_blocks - 1) / max_blocks + TILE_CELLS - 1) / TILE_CELLS * TILE_CELLS);
        int begin = split * span, stop = min(n, begin + span), run = (begin >> j.page_shift) + (int)threadIdx.x;
        if (run <= (stop - 1) >> j.page_shift) view.runs[threadIdx.x] = run_of(j, query.seq, run);
        if (threadIdx.x == 0) {
            view.begin = begin;
            view.stop = stop;
            view.active = max(1, (n + span - 1) / span);
            view.new_row = d.rows && d.rows[0] < j.cells ? d.rows[0] : -1;
            view.query = query;
        }
    }
    __syncthreads();
}

// Shared memory of a step, where a matmul has its input.
template <int SIZE, int GROUP> struct attention_shared {
    // q in the tensor cores' order: rounded to f16, and below that the rounding error, also in f16.
    uint4 q[SIZE / 16][32];
    __half new_k[SIZE], new_v[SIZE];
    float warp_sums[WARPS][GROUP][SIZE];
    float weight[WARPS][TILE_CELLS][GROUP]; // of cells
    // Of warps, then of blocks: maximum of the scores, sum of the weights, factor that makes sums comparable.
    float max_score[WARPS][GROUP], weight_sum[WARPS][GROUP], factor[64][GROUP];
    float block_max_score[GROUP], block_weight_sum[GROUP];
    int is_last_block;
};

// Elements i to i + 3 of a row to be rotated, and the four elements they are paired with, as loaded: perhaps not
// published yet.
struct rotation_input {
    const float *at, *other_half;
    tagged_words h, g;
};
__device__ static inline rotation_input load_for_rotation(const decode_job &d, const float *row, int i) {
    int half = d.dims / 2;
    rotation_input t;
    t.at = row + i;
    t.other_half = i >= d.dims || !d.neox ? t.at : i >= half ? t.at - half : t.at + half;
    t.h = load_tagged(t.at);
    t.g = load_tagged(t.other_half);
    return t;
}
// The number of rotated dimensions is a multiple of 8, so the four elements are rotated alike.
__device__ static inline void rotate_four(const decode_job &d, const rotation_input &input, int i, unsigned tag,
                                          const float2 *rotation, float (&out)[4]) {
    int half = d.dims / 2;
    bool is_rotated = i < d.dims, second = i >= half;
    float4 x = poll(input.h, input.at, tag), y = poll(input.g, input.other_half, tag);
    const float a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float2 t = rotation[!is_rotated ? 0 : d.neox ? (second ? i - half : i) + e : (i + e) / 2];
        float other = d.neox ? (second ? b[e] : -b[e]) : e & 1 ? a[e - 1] : -a[e + 1];
        out[e] = is_rotated ? a[e] * t.x + other * t.y : a[e];
    }
}
__device__ static inline uint32_t halves(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}
// Adds the dot products of eight cells with sixteen rows: the heads of q in the first eight rows, their rounding
// errors in the others. Both operands may permute the dimensions alike; the order used here makes each lane's loads
// contiguous.
__device__ static inline void add_scores(float (&s)[4], uint4 q, uint32_t k0, uint32_t k1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w), "r"(k0), "r"(k1));
}

// The factor of each warp's sums: a warp per head, a lane per warp. With one active block the factors include the
// final division and the sink.
template <int SIZE, int GROUP>
__device__ static inline void combine_warps(attention_shared<SIZE, GROUP> &m, const attention_job &j, int kv,
                                            int group, int active) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < GROUP) {
        float sink = j.sinks && active == 1 && warp < group ? j.sinks[kv * group + warp] : -INFINITY,
              max_score = lane < WARPS ? m.max_score[lane][warp] : -INFINITY,
              highest = fmaxf(sink, warp_max(max_score)),
              factor = max_score == -INFINITY ? 0 : __expf(max_score - highest),
              sum = warp_sum(lane < WARPS ? factor * m.weight_sum[lane][warp] : 0);
        if (sink != -INFINITY) sum += __expf(sink - highest);
        if (active == 1) factor *= sum > 0 ? 1 / sum : 0;
        if (lane < WARPS) m.factor[lane][warp] = factor;
        if (lane == 0) {
            m.block_max_score[warp] = highest;
            m.block_weight_sum[warp] = sum;
        }
    }
    __syncthreads();
}

// ---- The step ----

// One step. Old cells do not depend on the previous step, so a warp loads its first tile before it polls for q and
// the new row. If the new row is in that tile, it is replaced afterwards. After another attention (d.wait_first)
// nothing may be read before the barrier. `rotation`: the rotation table.
template <int SIZE, int GROUP>
__device__ static inline void attend(const persistent_step &step, char *shared, const float2 *rotation,
                                     cell_view &view, bool view_is_loaded, const unsigned *counters,
                                     unsigned input_tag, unsigned tag) {
    constexpr int DIMS = SIZE / 32;
    attention_shared<SIZE, GROUP> &m = *(attention_shared<SIZE, GROUP> *)shared;
    const decode_job &d = step.attention;
    const attention_job &j = d.a;
    unsigned arrivals = (unsigned)step.arrivals * gridDim.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = j.heads / j.kv_heads;
    int kv = (int)blockIdx.x % j.kv_heads, split = (int)blockIdx.x / j.kv_heads;
    if (d.wait_first) wait_for_arrivals(counters, arrivals);
    if (!view_is_loaded) load_view(d, split, view);
    const int active = view.active, begin = view.begin, stop = view.stop, new_row = view.new_row;
    if (split >= active) return;
    const visible_positions sees = visible_without_chunks(j, view.query);

    // Warps 0 to SIZE / 16 - 1 rotate q, warp 8 rotates the new row of k, warp 9 takes that of v. They load their
    // input as early as possible; for heads of 128 there are not enough registers to do so before the first tile.
    const int role = threadIdx.x, q_head = role % 32 / 4;
    const bool rotates_q = role < SIZE / 16 * 32, is_v = role >= THREADS / 2 + 32,
               loads_new_row = new_row >= 0 && role >= THREADS / 2 && role < THREADS / 2 + 64 && role % 32 < SIZE / 4,
               has_input = rotates_q ? q_head < group : loads_new_row,
               early = SIZE <= 64 && (!step.waits || d.wait_first);
    const float *row = rotates_q ? (const float *)(j.q + (int64_t)(kv * group + q_head) * j.q1)
                       : is_v    ? (const float *)(d.new_v + kv * d.nv1)
                                 : (const float *)(d.new_k + kv * d.nk1);
    const int dim = rotates_q ? 32 * (role / 64) + 8 * (role % 4) + 4 * (role / 32 % 2) : role % 32 * 4;
    rotation_input input = {};
    if (early && has_input) input = load_for_rotation(d, row, dim);

    // A lane has the scores of one head with two cells, and of v a few dimensions of all cells of the tile.
    int head = lane / 4, pair = lane % 4 * 2;
    float acc[GROUP][DIMS] = {}, max_score = -INFINITY, weight_sum = 0;
    // A tile of cells in registers. It is in one run: pages are multiples of TILE_CELLS. Visible cells as bits.
    // Invisible cells of a visible tile are read from its last cell, an invisible tile from cell 0. Keys are loaded
    // as soon as those of the tile before were multiplied, and values likewise, so that a warp always has loads in
    // flight.
    unsigned visible_cells = 0;
    int cell0 = 0, last = 0;
    uint4 k[SIZE / 32];
    uint32_t v[TILE_CELLS][DIMS / 2];
    auto find_tile = [&](int tile, unsigned &visible, int &first, int &end) {
        int index = tile >> j.page_shift, in_view = index - (begin >> j.page_shift),
            offset = tile & (int)((1u << j.page_shift) - 1);
        tn_page_run run = {0, 0, 0, 1};
        if (tile < stop) run = in_view < VIEW_RUNS ? view.runs[in_view] : run_of(j, view.query.seq, index);
        int mine = offset + lane % TILE_CELLS, position = run_position(run, mine);
        visible = __ballot_sync(0xffffffffu, mine < run.count && position >= sees.low && position <= sees.high);
        first = visible ? run.cell + offset : 0;
        end = visible ? run.count - offset - 1 : 0;
    };
    auto load_keys = [&](int first, int end) {
        const char *at = j.k + kv * j.k1 + (int64_t)(first + min(lane / 4, end)) * j.k2 + 16 * (lane % 4);
#pragma unroll
        for (int i = 0; i < SIZE / 32; i++) k[i] = *(const uint4 *)(at + 64 * i);
    };
    auto load_values = [&](int first, int end) {
        const char *at = j.v + kv * j.v1 + 2 * DIMS * lane;
#pragma unroll
        for (int c = 0; c < TILE_CELLS; c++) {
            const char *from = at + (int64_t)(first + min(c, end)) * j.v2;
            if (DIMS == 4) {
                uint2 raw = *(const uint2 *)from;
                v[c][0] = raw.x;
                v[c][DIMS / 2 - 1] = raw.y;
            } else {
                v[c][0] = *(const uint32_t *)from;
            }
        }
    };
    bool input_done = false;
    find_tile(begin + warp * TILE_CELLS, visible_cells, cell0, last);
    load_keys(cell0, last);
    load_values(cell0, last);
#pragma unroll 1
    for (int tile = begin + warp * TILE_CELLS;; tile += WARPS * TILE_CELLS) {
        if (!input_done) {
            input_done = true;
            if (!early) {
                if (step.waits && !d.wait_first) wait_for_arrivals(counters, arrivals);
                if (has_input) input = load_for_rotation(d, row, dim);
            }
            if (rotates_q) {
                float x[4] = {}, rounding_error[4];
                if (has_input) rotate_four(d, input, dim, input_tag, rotation, x);
#pragma unroll
                for (int e = 0; e < 4; e++) rounding_error[e] = x[e] - __half2float(__float2half_rn(x[e]));
                m.q[role / 32][role % 32] =
                    make_uint4(halves(x[0], x[1]), halves(rounding_error[0], rounding_error[1]), halves(x[2], x[3]),
                               halves(rounding_error[2], rounding_error[3]));
            } else if (loads_new_row) {
                float x[4];
                if (is_v) {
                    float4 y = poll(input.h, input.at, input_tag);
                    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
                } else {
                    rotate_four(d, input, dim, input_tag, rotation, x);
                }
                uint2 four = make_uint2(halves(x[0], x[1]), halves(x[2], x[3]));
                *(uint2 *)((is_v ? m.new_v : m.new_k) + dim) = four;
                // The first block stores the new row. Blocks that attend to it take it from shared memory.
                if (split == 0)
                    *(uint2 *)((is_v ? d.cache_v + kv * j.v1 + (int64_t)new_row * j.v2
                                     : d.cache_k + kv * j.k1 + (int64_t)new_row * j.k2) +
                               2 * dim) = four;
            }
            __syncthreads();
        }
        if (tile >= stop) break;

        if (cell0 + lane / 4 == new_row)
#pragma unroll
            for (int i = 0; i < SIZE / 32; i++) k[i] = *(const uint4 *)(m.new_k + 32 * i + 8 * (lane % 4));
        __syncwarp();
        float s[4] = {};
#pragma unroll
        for (int i = 0; i < SIZE / 32; i++) {
            add_scores(s, m.q[2 * i][lane], k[i].x, k[i].y);
            add_scores(s, m.q[2 * i + 1][lane], k[i].z, k[i].w);
        }
        const bool ends = tile + WARPS * TILE_CELLS >= stop;
        unsigned next_visible = 0;
        int next_cell0 = 0, next_last = 0;
        if (!ends) {
            find_tile(tile + WARPS * TILE_CELLS, next_visible, next_cell0, next_last);
            load_keys(next_cell0, next_last);
        }
        float a = visible_cells >> pair & 1 ? (s[0] + s[2]) * j.p.scale : -INFINITY,
              b = visible_cells >> (pair + 1) & 1 ? (s[1] + s[3]) * j.p.scale : -INFINITY;
        float new_max = fmaxf(max_score, fmaxf(a, b));
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
        float base = new_max == -INFINITY ? 0 : new_max, rescale = __expf(max_score - base);
        if (__any_sync(0xffffffffu, new_max > max_score)) {
            weight_sum *= rescale;
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float of_head = __shfl_sync(0xffffffffu, rescale, 4 * g);
#pragma unroll
                for (int e = 0; e < DIMS; e++) acc[g][e] *= of_head;
            }
        }
        max_score = new_max;
        a = __expf(a - base);
        b = __expf(b - base);
        weight_sum += a + b; // of this lane's cells; lanes are added at the end
        if (head < GROUP) {
            m.weight[warp][pair][head] = a;
            m.weight[warp][pair + 1][head] = b;
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < TILE_CELLS; c++) {
            if (!(visible_cells >> c & 1)) continue; // an invisible cell may hold NaN
            if (cell0 + c == new_row)
#pragma unroll
                for (int e = 0; e < DIMS / 2; e++) v[c][e] = *(const uint32_t *)(m.new_v + DIMS * lane + 2 * e);
            float f[DIMS];
#pragma unroll
            for (int e = 0; e < DIMS / 2; e++) {
                float2 x = __half22float2(*(const __half2 *)&v[c][e]);
                f[2 * e] = x.x;
                f[2 * e + 1] = x.y;
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float w = m.weight[warp][c][g];
#pragma unroll
                for (int e = 0; e < DIMS; e++) acc[g][e] += w * f[e];
            }
        }
        __syncwarp();
        if (ends) break;
        load_values(next_cell0, next_last);
        visible_cells = next_visible;
        cell0 = next_cell0;
        last = next_last;
    }
    weight_sum += __shfl_xor_sync(0xffffffffu, weight_sum, 1);
    weight_sum += __shfl_xor_sync(0xffffffffu, weight_sum, 2);
    if (lane % 4 == 0 && head < GROUP) {
        m.max_score[warp][head] = max_score;
        m.weight_sum[warp][head] = weight_sum;
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
        for (int e = 0; e < DIMS; e++) m.warp_sums[warp][g][DIMS * lane + e] = acc[g][e];
    __syncthreads();
    combine_warps(m, j, kv, group, active);
    // With several blocks, each stores its result in scratch, and the last one to do so combines them. results: [head
    // of the group][split][SIZE sums, max_score, weight_sum]. Not a function of its own: that compiles to more
    // instructions.
    float *results = d.partial + (int64_t)kv * group * d.splits * (SIZE + 2);
    if (active > 1) {
        for (int i = threadIdx.x; i < group * SIZE; i += THREADS) {
            int g = i / SIZE;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += m.factor[w][g] * m.warp_sums[w][g][i % SIZE];
            results[((int64_t)g * d.splits + split) * (SIZE + 2) + i % SIZE] = sum;
        }
        if (threadIdx.x < group) {
            float *at = results + ((int64_t)threadIdx.x * d.splits + split) * (SIZE + 2) + SIZE;
            at[0] = m.block_max_score[threadIdx.x];
            at[1] = m.block_weight_sum[threadIdx.x];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            m.is_last_block = atomicInc(&d.tickets[kv], (unsigned)active - 1) == (unsigned)active - 1;
        __syncthreads();
        if (!m.is_last_block) return;
        __threadfence();
        if (warp < group) { // a warp per head, two blocks per lane
            float sink = j.sinks ? j.sinks[kv * group + warp] : -INFINITY, h[2] = {-INFINITY, -INFINITY},
                  t[2] = {0, 0};
            const float *result = results + (int64_t)warp * d.splits * (SIZE + 2) + SIZE;
            for (int i = 0; i < 2; i++)
                if (lane + 32 * i < active) {
                    h[i] = __ldcg(result + (lane + 32 * i) * (SIZE + 2));
                    t[i] = __ldcg(result + (lane + 32 * i) * (SIZE + 2) + 1);
                }
            float highest = fmaxf(sink, warp_max(fmaxf(h[0], h[1]))), sum = 0, factor[2];
            for (int i = 0; i < 2; i++) {
                factor[i] = h[i] == -INFINITY ? 0 : __expf(h[i] - highest);
                sum += factor[i] * t[i];
            }
            sum = warp_sum(sum);
            if (j.sinks) sum += __expf(sink - highest);
            float inverse = sum > 0 ? 1 / sum : 0;
            for (int i = 0; i < 2; i++) m.factor[lane + 32 * i][warp] = factor[i] * inverse;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < group * SIZE; i += THREADS) {
        int g = i / SIZE, head = kv * group + g;
        float value = 0;
        if (active == 1) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) value += m.factor[w][g] * m.warp_sums[w][g][i % SIZE];
        } else {
            const float *result = results + (int64_t)g * d.splits * (SIZE + 2) + i % SIZE;
#pragma unroll 4
            for (int s = 0; s < active; s++) value += m.factor[s][g] * __ldcg(result + s * (SIZE + 2));
        }
        float after = __shfl_down_sync(0xffffffffu, value, 1);
        if (d.published && i % 2 == 0) publish(d.published + head * SIZE + i % SIZE, value, after, tag);
        if (d.store) ((float *)(j.out + head * j.o1))[i % SIZE] = value;
        if (d.next.y) d.next.y[head * SIZE + i % SIZE] = value;
    }
}
#endif

#endif
