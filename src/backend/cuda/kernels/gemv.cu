// GEMV: weights are read once, in wide loads, and multiplied with up to 8 columns. Weights of block types multiply
// int8 with int8 (activations are quantized in groups of 32); f16 and bf16 multiply floats.
//
// A block computes 32 rows, so that it can also add a residual, apply a gated activation, multiply with the next
// norm's weight and quantize for the next matmul. Weights do not depend on the previous kernel, so their first loads
// are issued before grid_wait().
#include "backend/cuda/kernels/gemv.cuh"

#include "backend/cuda/kernels/experts/experts.cuh"
#include "backend/cuda/kernels/gemv_units.cuh"
#include "backend/cuda/kernels/tiles/matmul_tiles.cuh"
#include "backend/cuda/kernels/unary.cuh"

enum { WARPS = GEMV_TILE / 4, OTHER_WARPS = 4, RING_WARPS = GEMV_TILE / 2 };

// ---- Activations ----

// Enough for either form: floats, or int8 with scales and sums.
size_t activation_bytes(int64_t k, int64_t columns) {
    size_t floats = round_up_256((size_t)(k * columns) * 4),
           bytes = round_up_256((size_t)(k * columns)) + 2 * round_up_256((size_t)(k / 32 * columns) * 4);
    return (floats > bytes ? floats : bytes) + round_up_256((size_t)((k + 31) / 32 * columns) * 4);
}
activations activations_at(char *at, gemv_family family, int64_t k, int64_t columns, bool squares, gemv_next *next) {
    activations a = {};
    size_t groups = round_up_256((size_t)((k + 31) / 32 * columns) * 4);
    next->squares = (float *)at;
    if (squares) a.squares = (const float *)at;
    at += groups;
    if (family == GEMV_INT8) {
        a.q = (int8_t *)at;
        at += round_up_256((size_t)(k * columns));
        a.scale = (float *)at;
        a.sums = (short2 *)(at + groups);
    } else {
        next->y = (float *)at;
        a.y = next->y;
        a.stride = k;
    }
    if (!squares) next->squares = NULL;
    next->to = a;
    return a;
}

// Stores rows of floats as activations for a matmul (gemv_next). One warp per 32 elements.
__global__ static void prepare_kernel(const char *x, int64_t row_bytes, int64_t k, gemv_next next) {
    grid_follow();
    int64_t group = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int c = blockIdx.y, lane = threadIdx.x % 32;
    if (group >= k / 32) return;
    float weight = next.weight ? next.weight[32 * group + lane] : 1;
    float value = ((const float *)(x + c * row_bytes))[32 * group + lane];
    gemv_store_next(next, k, c, group, value, value * weight);
}

tn_status gemv_prepare(const compilation &c, const tn_tensor *x, int64_t row_bytes, int64_t k, int columns,
                       const gemv_next &next) {
    return add_early(c, KERNEL(prepare_kernel), dim3(blocks_for(k / 32, 8), (unsigned)columns), 256, 0,
                     (const char *)x->data, row_bytes, k, next);
}

// ---- Kernels ----

// What finish_tile() needs besides the sums; there each warp handles one column and each lane one row. It is read at
// the start, so that the end of a tile need not wait for memory.
struct early_reads {
    float residual, weight, norm;
};
// The factor of an RMS norm whose division was left to the reader (activations.squares), or 1. `column` is -1 in
// warps without a column.
__device__ static float read_norm(const gemv_job &j, int column) {
    if (!j.in.squares || column < 0) return 1;
    float sum = 0;
    for (int i = threadIdx.x % 32; i < j.k / 32; i += 32) sum += j.in.squares[column * (j.k / 32) + i];
    return rsqrtf(warp_sum(sum) / (float)j.k + j.in.eps);
}
__device__ static early_reads read_early(const gemv_job &j, const gemv_matrix &m, int tile, int column) {
    early_reads e = {0, 1, 1};
    int row = tile * GEMV_TILE + threadIdx.x % 32;
    if (column < 0) return e;
    if (j.finish == GEMV_ADD && row < m.rows) e.residual = j.residual[column * j.residual_row + row];
    if (j.next.weight) e.weight = j.next.weight[row];
    return e;
}
// Finishes 32 rows of the column that this warp has; `column` is its index in the result, or -1.
template <int COLUMNS>
__device__ static void finish_tile(const gemv_job &j, const gemv_matrix &m, int tile,
                                   const float (&results)[2][GEMV_TILE][COLUMNS], const early_reads &early,
                                   int column) {
    int c = threadIdx.x / 32, lane = threadIdx.x % 32, row = tile * GEMV_TILE + lane;
    if (column < 0) return;
    float value = results[0][lane][c] * early.norm;
    if (j.finish == GEMV_GLU) value = gated(j.glu, value, results[1][lane][c] * early.norm, j.glu_params);
    value += early.residual;
    if (m.out && row < m.rows) m.out[column * m.out_row + row] = value;
    // With a next matmul, the rows are a multiple of GEMV_TILE.
    if (j.next.to.q || j.next.y) gemv_store_next(j.next, m.rows, column, tile, value, value * early.weight);
}

// Pairs with the same expert are multiplied COLUMNS at a time, so that the expert's rows are read once. The first
// pair of such a set is its leader. Returns the expert of pair `leader`, stores the set in `pair` (shared memory) and
// its size in n. The size is 0 if the pair does not lead a set.
template <int COLUMNS>
__device__ static int find_pairs(const gemv_experts &e, int leader, int (&pair)[COLUMNS], int *n) {
    auto id_of = [&](int p) { return *(const int32_t *)(e.ids + p / e.used * e.row_bytes + p % e.used * 4); };
    int expert = id_of(leader), lane = threadIdx.x % 32, seen = 0, rank = e.pairs;
    for (int first = 0; first < e.pairs; first += 32) {
        int p = first + lane;
        bool same = p < e.pairs && id_of(p) == expert;
        unsigned mask = __ballot_sync(0xffffffffu, same);
        if (leader / 32 == first / 32) rank = seen + __popc(mask & ((1u << leader % 32) - 1));
        int index = seen + __popc(mask & ((1u << lane) - 1)) - rank;
        if (same && index >= 0 && index < COLUMNS && threadIdx.x < 32) pair[index] = p;
        seen += __popc(mask);
    }
    *n = rank % COLUMNS ? 0 : min(COLUMNS, seen - rank);
    __syncthreads();
    return expert;
}

// A warp computes four of the block's 32 rows, two at a time, and with a gate the same four of the second matrix. All
// of it is one sequence of steps, each of which first issues the loads of the next step, across rows and matrices.
// With experts gridDim.y is the number of pairs.
template <typename U, int COLUMNS, bool EXPERTS>
__global__ static void __launch_bounds__(WARPS * 32) gemv_kernel(gemv_job j) {
    __shared__ float results[2][GEMV_TILE][COLUMNS];
    if (!EXPERTS) grid_next();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = (int)blockIdx.x;
    bool glu = j.finish == GEMV_GLU;
    gemv_matrix m = j.m[0];
    if (!glu && j.n > 1 && block >= j.m[1].first_block) m = j.m[1];
    if (!glu && j.n > 2 && block >= j.m[2].first_block) m = j.m[2];
    int tile = block - m.first_block, first_row = tile * GEMV_TILE + 4 * warp;
    int steps = (j.k + U::SPAN - 1) / U::SPAN, passes = glu ? 4 : 2, columns = 0;
    int64_t expert = 0;
    __shared__ int pair[COLUMNS];
    if constexpr (EXPERTS) {
        grid_wait(); // the ids are results of the previous kernel
        grid_next(); // not sooner: the next kernel may read the ids before it waits (expert_gemv.cu)
        expert = find_pairs(j.experts, (int)blockIdx.y, pair, &columns);
        if (columns == 0) return;
        if (expert < 0 || expert >= j.experts.n) expert = steps = 0; // an id without an expert: zeros
    }
    // The result column that this warp finishes, or -1; and the input column of a result column.
    auto column = [&]() { return !EXPERTS ? warp < j.columns ? warp : -1 : warp < columns ? pair[warp] : -1; };
    auto input = [&](int c) { return EXPERTS && j.experts.same_input && c >= 0 ? c / j.experts.used : c; };
    int in[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) in[c] = EXPERTS ? input(pair[min(c, columns - 1)]) : c;
    auto row_at = [&](int pass, int r) {
        const gemv_matrix &of = pass < 2 ? m : j.m[1];
        const char *w = of.w + (EXPERTS ? expert * of.expert_bytes : 0);
        return w + (int64_t)min(first_row + 2 * (pass & 1) + r, m.rows - 1) * m.row_bytes;
    };
    const char *row0 = row_at(0, 0), *row1 = row_at(0, 1);
    U next[2];
    if ((!EXPERTS || steps) && U::covers(0, lane, j.k)) {
        next[0].load(row0, 0, lane, j.k);
        next[1].load(row1, 0, lane, j.k);
    }
    if (!EXPERTS) grid_wait();
    early_reads early = read_early(j, m, tile, column());
    early.norm = read_norm(j, input(column()));
    for (int pass = 0; pass < passes; pass++) {
        float sum[2][COLUMNS] = {};
        for (int s = 0; s < steps; s++) {
            U now[2] = {next[0], next[1]};
            int coming = s + 1 < steps ? s + 1 : 0;
            if (coming == 0 && pass + 1 < passes) {
                row0 = row_at(pass + 1, 0);
                row1 = row_at(pass + 1, 1);
            }
            if ((coming || pass + 1 < passes) && U::covers(coming, lane, j.k)) {
                next[0].load(row0, coming, lane, j.k);
                next[1].load(row1, coming, lane, j.k);
            }
            if (U::covers(s, lane, j.k))
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    if (EXPERTS ? COLUMNS > 1 && c >= columns : COLUMNS > 2 && c >= j.columns) break;
                    sum[0][c] += now[0].dot(j.in, in[c], j.k, s, lane);
                    sum[1][c] += now[1].dot(j.in, in[c], j.k, s, lane);
                }
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float a = warp_sum(sum[0][c]), b = warp_sum(sum[1][c]);
            if (lane == 0) {
                results[pass / 2][4 * warp + 2 * (pass & 1)][c] = a;
                results[pass / 2][4 * warp + 2 * (pass & 1) + 1][c] = b;
            }
        }
    }
    __syncthreads();
    finish_tile<COLUMNS>(j, m, tile, results, early, column());
}

// gemv_ring_kernel streams weights through shared memory. A block processes several tiles, and a warp two rows of
// each. Each warp has a ring of stages, each of which holds one step of its two rows. Fetching continues across tiles
// and starts before grid_wait(), so that memory is busy while the previous kernel ends. Where there are few tiles, a
// block has twice as many warps, and two warps share the steps of a pair of rows.
__host__ __device__ static inline size_t shared_activation_bytes(const gemv_job &j) {
    return (size_t)j.columns * (j.in.q ? (size_t)j.k + (size_t)j.k / 4 : (size_t)j.k * 4);
}
#if __CUDA_ARCH__ >= 900
__device__ static void copy_to_shared(void *to, const void *from, int bytes) {
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        *(uint4 *)((char *)to + i) = *(const uint4 *)((const char *)from + i);
}
// Copies the activations to shared memory; all threads of the block call this. Rows have at least 512 elements, so
// every part is a multiple of 16 bytes.
__device__ static activations activations_to_shared(const gemv_job &j, char *at) {
    activations in = j.in;
    if (in.q) {
        int n = j.columns * j.k, groups = n / 32 * 4;
        copy_to_shared(at, in.q, n);
        copy_to_shared(at + n, in.scale, groups);
        copy_to_shared(at + n + groups, in.sums, groups);
        in.q = (int8_t *)at;
        in.scale = (float *)(at + n);
        in.sums = (short2 *)(at + n + groups);
    } else {
        for (int c = 0; c < j.columns; c++) copy_to_shared((float *)at + c * j.k, in.y + c * in.stride, 4 * j.k);
        in.y = (const float *)at;
        in.stride = j.k;
    }
    __syncthreads();
    return in;
}
#endif

#if __CUDA_ARCH__ >= 900
// The work of block `block` of `stride`.
template <typename U, int COLUMNS> __device__ static inline void run_ring(const gemv_job &j, int block, int stride) {
    extern __shared__ __align__(128) char rings[];
    __shared__ float results[2][2][2][GEMV_TILE][COLUMNS]; // by parity of the tile, half of the warps, pass
    __shared__ __align__(8) uint64_t barriers[2 * RING_WARPS][U::RING];
    grid_next();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (int)blockDim.x / 32;
    int half_index = warp / RING_WARPS, pair = 2 * (warp % RING_WARPS);
    bool glu = j.finish == GEMV_GLU;
    int passes = glu ? 2 : 1, steps = j.k / U::SPAN, half_steps = warps > RING_WARPS ? (steps + 1) / 2 : steps,
        first_step = half_index * half_steps, end_step = min(steps, first_step + half_steps);
    char *ring = rings + (size_t)warp * U::RING * 2 * U::ROW;
    uint64_t *full = barriers[warp];
    auto matrix_at = [&](int tile) {
        return glu || j.n == 1 || tile < j.m[1].first_block ? 0 : j.n == 2 || tile < j.m[2].first_block ? 1 : 2;
    };
    // What lane 0 fetches next.
    int fetch_tile = block, fetch_pass = 0, fetch_step = first_step, fetch_stage = 0;
    const char *row0 = NULL, *row1 = NULL;
    auto find_rows = [&]() {
        if (fetch_tile >= j.tiles) return;
        int part = matrix_at(fetch_tile);
        const gemv_matrix &m = part == 0 ? j.m[0] : part == 1 ? j.m[1] : j.m[2];
        const char *w = fetch_pass ? j.m[1].w : m.w;
        int row = (fetch_tile - m.first_block) * GEMV_TILE + pair;
        row0 = w + (int64_t)min(row, m.rows - 1) * m.row_bytes;
        row1 = w + (int64_t)min(row + 1, m.rows - 1) * m.row_bytes;
    };
    auto fetch = [&]() {
        char *to = ring + fetch_stage * 2 * U::ROW;
        uint64_t *barrier = full + fetch_stage;
        barrier_expect(barrier, 2 * U::ROW);
        bulk(to, row0 + U::ROW * fetch_step, U::ROW, barrier);
        bulk(to + U::ROW, row1 + U::ROW * fetch_step, U::ROW, barrier);
        if (++fetch_stage == U::RING) fetch_stage = 0;
        if (++fetch_step < end_step) return;
        fetch_step = first_step;
        if (++fetch_pass == passes) {
            fetch_pass = 0;
            fetch_tile += stride;
        }
        find_rows();
    };
    if (lane == 0) {
        for (int i = 0; i < U::RING; i++) barrier_init(&full[i]);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        find_rows();
        for (int i = 0; i < U::RING && fetch_tile < j.tiles; i++) fetch();
    }
    __syncwarp();
    grid_wait();
    int column = warp < j.columns ? warp : -1;
    float norm = read_norm(j, column);
    // Every warp reads all activations for every row, so they are copied to shared memory once.
    activations in = j.in;
    if (j.in_shared) in = activations_to_shared(j, rings + (size_t)warps * U::RING * 2 * U::ROW);
    int stage = 0, buffer = 0;
    uint32_t parity = 0;
    for (int tile = block; tile < j.tiles; tile += stride, buffer ^= 1) {
        int part = matrix_at(tile);
        const gemv_matrix &m = part == 0 ? j.m[0] : part == 1 ? j.m[1] : j.m[2];
        early_reads early = read_early(j, m, tile - m.first_block, column);
        early.norm = norm;
        for (int pass = 0; pass < passes; pass++) {
            float sum[2][COLUMNS] = {};
            for (int step = first_step; step < end_step; step++) {
                const char *at = ring + stage * 2 * U::ROW;
                barrier_wait(&full[stage], parity);
                U now[2];
                now[0].take(at, lane, U::SPAN);
                now[1].take(at + U::ROW, lane, U::SPAN);
                __syncwarp();
                if (lane == 0 && fetch_tile < j.tiles) fetch();
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    if (COLUMNS > 2 && c >= j.columns) break;
                    sum[0][c] += now[0].dot(in, c, j.k, step, lane);
                    sum[1][c] += now[1].dot(in, c, j.k, step, lane);
                }
                if (++stage == U::RING) {
                    stage = 0;
                    parity ^= 1;
                }
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                float x = warp_sum(sum[0][c]), y = warp_sum(sum[1][c]);
                if (lane == 0) {
                    results[buffer][half_index][pass][pair][c] = x;
                    results[buffer][half_index][pass][pair + 1][c] = y;
                }
            }
        }
        __syncthreads();
        if (warps > RING_WARPS && warp < j.columns) // add the two halves, one row per lane
            for (int pass = 0; pass < passes; pass++)
                results[buffer][0][pass][lane][warp] += results[buffer][1][pass][lane][warp];
        __syncwarp();
        finish_tile<COLUMNS>(j, m, tile - m.first_block, results[buffer][0], early, column);
    }
}
#endif

template <typename U, int COLUMNS>
__global__ static void __launch_bounds__(COLUMNS <= 2 ? 2 * RING_WARPS * 32 : RING_WARPS * 32, 1)
    gemv_ring_kernel(gemv_job j) {
#if __CUDA_ARCH__ >= 900
    run_ring<U, COLUMNS>(j, (int)blockIdx.x, (int)gridDim.x);
#endif
}

// Matrices of several kinds with the same column in one launch: each kind has blocks of its own.
struct mixed_job {
    gemv_job parts[GEMV_MAX_KINDS];
    int first_block[GEMV_MAX_KINDS + 1];
};
__global__ static void __launch_bounds__(RING_WARPS * 32, 1)
    gemv_mixed_kernel(const __grid_constant__ mixed_job all) {
#if __CUDA_ARCH__ >= 900
    int part = 0;
    while ((int)blockIdx.x >= all.first_block[part + 1]) part++;
    const gemv_job &j = all.parts[part];
    const int block = (int)blockIdx.x - all.first_block[part],
              blocks = all.first_block[part + 1] - all.first_block[part];
    switch (j.m[0].kind) {
    case TN_Q4_0 | SOA: run_ring<unit_q4_0_soa, 1>(j, block, blocks); break;
    case TN_Q8_0 | SOA: run_ring<unit_q8_0_soa, 1>(j, block, blocks); break;
    case TN_Q6_K | SOA: run_ring<unit_q6_K_soa, 1>(j, block, blocks); break;
    case TN_Q5_K: run_ring<unit_q5_K, 1>(j, block, blocks); break;
    default: run_ring<unit_q4_K, 1>(j, block, blocks); break;
    }
#endif
}

static const char *unit_name(const unit_half<false> *) { return "f16"; }
static const char *unit_name(const unit_half<true> *) { return "bf16"; }
static const char *unit_name(const unit_q4_0_soa *) { return "q4_0_soa"; }
static const char *unit_name(const unit_q8_0_soa *) { return "q8_0_soa"; }
static const char *unit_name(const unit_q6_K_soa *) { return "q6_K_soa"; }
static const char *unit_name(const unit_q4_K *) { return "q4_K"; }
static const char *unit_name(const unit_q5_K *) { return "q5_K"; }

// Weights that a kernel of the same program writes must not be read before grid_wait(), which gemv kernels do.
static bool may_start_early(const compilation &c, const gemv_job &job) {
    bool lasting = true;
    for (int i = 0; i < job.n; i++) lasting = lasting && job.m[i].lasting;
    return lasting && c.device->programmatic_launch;
}
template <typename U, int COLUMNS, bool EXPERTS>
static tn_status compile_gemv_tiles(const compilation &c, const gemv_job &job, dim3 grid) {
    launch_shape shape = {grid, WARPS * 32};
    shape.early = may_start_early(c, job);
    return add_kernel(c, kernel_called("gemv_kernel", unit_name((U *)NULL), COLUMNS, EXPERTS),
                      gemv_kernel<U, COLUMNS, EXPERTS>, shape, job);
}
template <typename U, int COLUMNS> static tn_status compile_columns(const compilation &c, gemv_job &job) {
    enum { STATIC_BYTES = 20480 }; // at least the static shared memory of gemv_ring_kernel
    const size_t limit = c.device->shared_per_block, ring_bytes = (size_t)RING_WARPS * U::RING * 2 * U::ROW;
    bool ring = c.device->bulk_copies && job.k % U::SPAN == 0 && ring_bytes + STATIC_BYTES <= limit;
    if (!ring) return compile_gemv_tiles<U, COLUMNS, false>(c, job, dim3((unsigned)job.tiles));
    int processors = c.device->multiprocessors;
    bool shared_rows = COLUMNS <= 2 && job.tiles <= processors + processors / 2 && job.k / U::SPAN > 1 &&
                       2 * ring_bytes + STATIC_BYTES <= limit;
    unsigned warps = shared_rows ? 2 * RING_WARPS : RING_WARPS;
    int most = shared_rows || COLUMNS > 2 ? processors : 2 * processors;
    size_t bytes = shared_rows ? 2 * ring_bytes : ring_bytes, activation_bytes = shared_activation_bytes(job);
    job.in_shared = bytes + activation_bytes + STATIC_BYTES <= limit;
    if (job.in_shared) bytes += activation_bytes;
    launch_shape shape = {dim3((unsigned)(job.tiles < most ? job.tiles : most)), warps * 32, bytes, true};
    shape.early = may_start_early(c, job);
    return add_kernel(c, kernel_called("gemv_ring_kernel", unit_name((U *)NULL), COLUMNS),
                      gemv_ring_kernel<U, COLUMNS>, shape, job);
}

template <typename U> static tn_status compile_kind(const compilation &c, gemv_job &job) {
    if (job.experts.ids) {
        // Several tokens rarely choose the same expert, so four columns at a time are enough.
        dim3 grid((unsigned)job.tiles, (unsigned)job.experts.pairs);
        return job.experts.pairs == job.experts.used ? compile_gemv_tiles<U, 1, true>(c, job, grid)
                                                     : compile_gemv_tiles<U, 4, true>(c, job, grid);
    }
    return job.columns == 1   ? compile_columns<U, 1>(c, job)
           : job.columns == 2 ? compile_columns<U, 2>(c, job)
           : job.columns <= 4 ? compile_columns<U, 4>(c, job)
                              : compile_columns<U, 8>(c, job);
}

static void count_tiles(gemv_job *j, int columns) {
    j->tiles = 0;
    for (int i = 0; i < j->n; i++) {
        j->m[i].first_block = j->finish == GEMV_GLU ? 0 : j->tiles;
        if (j->finish != GEMV_GLU || i == 0) j->tiles += (int)blocks_for(j->m[i].rows, GEMV_TILE);
    }
    j->columns = columns;
}
tn_status gemv_compile(const compilation &c, const gemv_job &job, int columns) {
    gemv_job j = job;
    count_tiles(&j, columns);
    if (expert_gate_supports(j)) return compile_expert_gate(c, j);
    switch (j.m[0].kind) { // one kind in a launch
    case TN_F16: return compile_kind<unit_half<false>>(c, j);
    case TN_BF16: return compile_kind<unit_half<true>>(c, j);
    case TN_Q4_0 | SOA: return compile_kind<unit_q4_0_soa>(c, j);
    case TN_Q8_0 | SOA: return compile_kind<unit_q8_0_soa>(c, j);
    case TN_Q6_K | SOA: return compile_kind<unit_q6_K_soa>(c, j);
    case TN_Q4_K: return compile_kind<unit_q4_K>(c, j);
    case TN_Q5_K: return compile_kind<unit_q5_K>(c, j);
    default: return tn_fail(TN_E_INTERNAL, "gemv with weights of kind %d", j.m[0].kind);
    }
}

// The bytes of a ring of gemv_ring_kernel, or 0 where it does not multiply such rows.
static size_t ring_bytes_of(const gemv_job &j) {
    switch (j.m[0].kind) {
#define CASE(KIND, U)                                                                                                \
    case KIND: return j.k % U::SPAN ? 0 : (size_t)RING_WARPS * U::RING * 2 * U::ROW;
        CASE(TN_Q4_0 | SOA, unit_q4_0_soa)
        CASE(TN_Q8_0 | SOA, unit_q8_0_soa)
        CASE(TN_Q6_K | SOA, unit_q6_K_soa)
        CASE(TN_Q4_K, unit_q4_K)
        CASE(TN_Q5_K, unit_q5_K)
#undef CASE
    default: return 0;
    }
}
// At least the static shared memory of gemv_mixed_kernel; half of a multiprocessor's shared memory.
enum { MIXED_STATIC_BYTES = 10 << 10, TWO_PER_PROCESSOR = 113 << 10 };
bool gemv_can_mix(const device_description &device, const gemv_job *jobs, int n, int columns) {
    if (!device.bulk_copies || columns != 1 || n < 2 || n > GEMV_MAX_KINDS) return false;
    for (int i = 0; i < n; i++) {
        const size_t bytes = ring_bytes_of(jobs[i]) + (size_t)jobs[i].k / 4 * 5 + MIXED_STATIC_BYTES;
        if (!ring_bytes_of(jobs[i]) || !jobs[i].in.q || jobs[i].experts.ids || jobs[i].finish != GEMV_STORE ||
            bytes > device.shared_per_block)
            return false;
    }
    return true;
}
tn_status gemv_compile_mixed(const compilation &c, const gemv_job *jobs, int n) {
    mixed_job all = {};
    size_t bytes = 0;
    int64_t total = 0, weights[GEMV_MAX_KINDS];
    bool early = c.device->programmatic_launch;
    for (int i = 0; i < n; i++) {
        gemv_job &j = all.parts[i];
        j = jobs[i];
        count_tiles(&j, 1);
        j.in_shared = true;
        early = early && may_start_early(c, j);
        weights[i] = j.tiles * j.m[0].row_bytes;
        total += weights[i];
        const size_t now = ring_bytes_of(j) + shared_activation_bytes(j);
        if (now > bytes) bytes = now;
    }
    const int most = (bytes + MIXED_STATIC_BYTES <= TWO_PER_PROCESSOR ? 2 : 1) * c.device->multiprocessors;
    for (int i = 0; i < n; i++) {
        const int share = (int)(weights[i] * most / total), tiles = all.parts[i].tiles;
        all.first_block[i + 1] = all.first_block[i] + (share < 1 ? 1 : share < tiles ? share : tiles);
    }
    for (int i = n; i < GEMV_MAX_KINDS; i++) all.first_block[i + 1] = all.first_block[i];
    launch_shape shape = {dim3((unsigned)all.first_block[n]), RING_WARPS * 32, bytes, true};
    shape.early = early;
    return add_kernel(c, KERNEL(gemv_mixed_kernel), shape, all);
}

// Any other weight kind: eight weights at a time, as floats.
template <typename R, int COLUMNS>
__global__ static void __launch_bounds__(OTHER_WARPS * 32)
    gemv_float_kernel(gemv_matrix j, int64_t k, const char *y, int64_t y_row) {
    grid_follow();
    int64_t row = (int64_t)blockIdx.x * OTHER_WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= j.rows) return;
    float sum[COLUMNS] = {};
    const char *w = j.w + row * j.row_bytes;
#pragma unroll 4
    for (int64_t i = lane * 8; i < k; i += 256) {
        float v[8];
        R::eight(w, i, v, k);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float4 *x = (const float4 *)((const float *)(y + c * y_row) + i);
            float4 p = x[0], q = x[1];
            sum[c] +=
                v[0] * p.x + v[1] * p.y + v[2] * p.z + v[3] * p.w + v[4] * q.x + v[5] * q.y + v[6] * q.z + v[7] * q.w;
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float s = warp_sum(sum[c]);
        if (lane == 0) j.out[c * j.out_row + row] = s;
    }
}

// ---- Choosing a kernel ----

static bool aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

gemv_family gemv_family_of(const device_description &device, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    const device_layout l = device_layout_of(x);
    if (!gemv_supports(device, t) || l.nb[1] % 16 || !aligned16(l.data)) return GEMV_OTHER;
    if (t->op == TN_OP_MUL_MAT_ID && l.nb[2] % 16) return GEMV_OTHER;
    switch (kind_of(x)) {
    case TN_F16:
    case TN_BF16: return GEMV_HALF;
    case TN_Q4_0 | SOA:
    case TN_Q8_0 | SOA:
    case TN_Q6_K | SOA:
    case TN_Q5_K:
    case TN_Q4_K: return t->params.mul_mat.precise ? GEMV_OTHER : GEMV_INT8;
    default: return GEMV_OTHER;
    }
}

int gemv_columns(const tn_tensor *t) { return (int)(t->src[1]->ne[1] * t->src[1]->ne[2]); }
int64_t gemv_column_bytes(const tn_tensor *t) {
    const tn_tensor *y = t->src[1];
    return (int64_t)(t->op == TN_OP_MUL_MAT_ID && y->ne[1] == 1 ? y->nb[2] : y->nb[1]);
}

bool gemv_takes_shape(const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (t->flags & TN_FLAG_REPEATABLE) return false; // it adds in another order than kernels for many columns
    if (x->ne[0] % 8 || gemv_column_bytes(t) % 16 || !tn_is_contiguous_rows(y)) return false;
    if (t->op == TN_OP_MUL_MAT_ID)
        return x->ne[0] > 0 && y->ne[2] <= GEMV_MAX_COLUMNS && t->ne[1] <= GEMV_MAX_USED &&
               (y->ne[1] == 1 || y->nb[2] == (size_t)y->ne[1] * y->nb[1]);
    return y->ne[1] <= GEMV_MAX_COLUMNS && y->ne[2] == 1 && y->ne[3] == 1 && x->ne[2] == 1 && x->ne[3] == 1;
}
bool gemv_supports(const device_description &device, const tn_tensor *t) {
    return gemv_takes_shape(t) &&
           !(t->op == TN_OP_MUL_MAT_ID ? expert_tiles_are_faster(device, t) : tiles_support(device, t));
}

// Whether the weights' family needs scratch is known only once they have memory, so it is always reserved.
size_t gemv_scratch(const tn_tensor *t) { return activation_bytes(t->src[0]->ne[0], gemv_columns(t)); }

gemv_matrix gemv_matrix_of(const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    const device_layout l = device_layout_of(x);
    gemv_matrix m = {};
    m.w = l.data;
    m.row_bytes = l.nb[1];
    m.expert_bytes = l.nb[2];
    m.kind = kind_of(x);
    m.rows = (int)x->ne[1];
    m.out = (float *)t->data;
    m.out_row = (int64_t)t->nb[1] / 4;
    m.lasting = x->buffer && x->buffer->usage == TN_USAGE_WEIGHTS;
    return m;
}
gemv_experts gemv_experts_of(const tn_tensor *t) {
    gemv_experts e = {};
    if (t->op != TN_OP_MUL_MAT_ID) return e;
    const tn_tensor *ids = t->src[2];
    e.ids = (const char *)ids->data;
    e.row_bytes = (int64_t)ids->nb[1];
    e.n = (int)t->src[0]->ne[2];
    e.used = (int)ids->ne[0];
    e.pairs = (int)tn_nelements(ids);
    e.same_input = t->src[1]->ne[1] == 1;
    return e;
}

template <int COLUMNS> static tn_status compile_other(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    gemv_matrix m = gemv_matrix_of(t);
    const char *in = (const char *)y->data;
    int64_t y_row = (int64_t)y->nb[1], k = x->ne[0];
    dim3 grid(blocks_for(m.rows, OTHER_WARPS));
    switch (kind_of(x)) {
#define CASE(KIND, reader)                                                                                           \
    case KIND:                                                                                                       \
        return add_early(c, kernel_called("gemv_float_kernel", #reader, COLUMNS),                                    \
                         gemv_float_kernel<reader, COLUMNS>, grid, OTHER_WARPS * 32, 0, m, k, in, y_row);
        FOR_EVERY_READER(CASE)
#undef CASE
    default: return tn_fail(TN_E_UNSUPPORTED, "mul_mat with %s", tn_type_name(x->type));
    }
}

tn_status compile_gemv(const compilation &c, const tn_tensor *t) {
    const tn_tensor *y = t->src[1];
    int columns = gemv_columns(t);
    gemv_family family = gemv_family_of(*c.device, t);
    if (family != GEMV_OTHER && aligned16(y->data)) {
        gemv_job job = {};
        job.n = 1;
        job.k = (int)y->ne[0];
        job.m[0] = gemv_matrix_of(t);
        job.experts = gemv_experts_of(t);
        if (family == GEMV_INT8) {
            gemv_next next = {};
            compilation convert = c;
            convert.converts = y;
            job.in = activations_at(c.scratch, family, job.k, columns, false, &next);
            TN_TRY(gemv_prepare(convert, y, gemv_column_bytes(t), job.k, columns, next));
        } else {
            job.in.y = (const float *)y->data;
            job.in.stride = gemv_column_bytes(t) / 4;
        }
        return gemv_compile(c, job, columns);
    }
    switch (columns) {
    case 1: return compile_other<1>(c, t);
    case 2: return compile_other<2>(c, t);
    case 3: return compile_other<3>(c, t);
    case 4: return compile_other<4>(c, t);
    case 5: return compile_other<5>(c, t);
    case 6: return compile_other<6>(c, t);
    case 7: return compile_other<7>(c, t);
    default: return compile_other<8>(c, t);
    }
}
