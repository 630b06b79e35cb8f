// The kernel of matmul_tiles.cuh: a block multiplies 128 rows by WIDTH columns.
//
// Weights and activations stream through shared memory in rings of stages. Each warp converts its 16 rows of weights
// to f16 in registers and multiplies them with the columns in shared memory: with wgmma on compute capability 9.0,
// with mma from 8.0 on.
#ifndef TN_BACKEND_CUDA_KERNELS_TILES_TILE_KERNEL_CUH
#define TN_BACKEND_CUDA_KERNELS_TILES_TILE_KERNEL_CUH

#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/tiles/matmul_tiles.cuh"
#include "backend/cuda/kernels/tiles/tile_weights.cuh"
#include "backend/cuda/kernels/tiles/wgmma.cuh"

#include <type_traits>

// Rings: a stage of weights has P::DEPTH elements of each row, a stage of activations DEPTH elements of each column.
// A step multiplies a stage of activations; the copies of a step are a group. While a step is multiplied, the stage
// of the step before may still be read by tensor cores, so ACTIVATIONS - 2 stages of activations are in flight, and
// WEIGHTS - 1 of weights. A stage of weights is copied in as many parts as it has steps; the last of them must be
// there when the stage is needed, which bounds ACTIVATIONS.
template <typename P, int WIDTH> struct tile_rings {
    enum {
        MOST = WIDTH >= 64   ? 64
               : WIDTH == 32 ? 128
                             : 256,
        DEPTH = (int)P::DEPTH < (int)MOST ? (int)P::DEPTH : (int)MOST,
        STEPS = (int)P::DEPTH / DEPTH, // of a stage of weights
        UNITS = DEPTH / 64,            // of a step: what a thread converts at a time
        WEIGHTS = P::DEPTH == 256 || (P::DEPTH == 128 && WIDTH > 16) ? 3 : 4,
        ACTIVATIONS = WIDTH == 128 ? 5 : 4,
        WEIGHT_STAGE = TILE_ROWS * P::ROW,
        ATOM = WIDTH * 128, // 64 elements of all columns
        ACTIVATION_STAGE = DEPTH / 64 * ATOM,
        WEIGHTS_AT = ACTIVATIONS * ACTIVATION_STAGE,
        COLUMNS_AT = WEIGHTS_AT + WEIGHTS * WEIGHT_STAGE, // of experts: int[WIDTH]
        BYTES = COLUMNS_AT + WIDTH * 4 + 16,
    };
    static_assert(ACTIVATIONS <= (WEIGHTS - 2) * STEPS + 3, "weights arrive in time");
};

// d += a · columns, or d = a · columns, for 16 elements of WIDTH columns. `atom` is the columns' memory, `step` one
// of its four parts.
template <typename P, int WIDTH>
__device__ static inline void multiply_columns(float (&d)[WIDTH / 2], const uint32_t (&a)[4], const char *atom,
                                               int step, bool adds) {
#if __CUDA_ARCH__ == 900
    wgmma<WIDTH, P::BF16>(d, a, wgmma_columns(atom + 32 * step), adds);
#elif __CUDA_ARCH__ >= 800
#pragma unroll
    for (int i = 0; i < WIDTH / 2 && !adds; i++) d[i] = 0;
    const int lane = threadIdx.x % 32, chunk = 2 * step + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < (WIDTH + 15) / 16; n++) {
        const int column = WIDTH == 8 ? lane % 8 : 16 * n + lane / 16 * 8 + lane % 8;
        uint32_t b[4];
        load_four(b, atom + column * 128 + ((chunk ^ column % 8) << 4));
        multiply<P::BF16>(*(float(*)[4])(d + 8 * n), a, b[0], b[1]);
        if constexpr (WIDTH > 8) multiply<P::BF16>(*(float(*)[4])(d + 8 * n + 4), a, b[2], b[3]);
    }
#endif
}
#if __CUDA_ARCH__ == 900
#define TILE_FENCE() wgmma_fence()
#define TILE_COMMIT() wgmma_commit()
#define TILE_WAIT(N) wgmma_wait<N>()
#define TILE_PUBLISH() wgmma_publish()
#else
#define TILE_FENCE()
#define TILE_COMMIT()
#define TILE_WAIT(N)
#define TILE_PUBLISH()
#endif

// What a block computes.
struct tile_extent {
    int row0, column0, count; // first row, first column, number of columns
    int part;                 // of the tile's parts
    int begin, end;           // elements of the rows
};

// The sum of the parts, in their order, in the block that finishes last; false in the others.
template <int WIDTH>
__device__ static bool add_parts(const tile_job &j, const tile_matrix &m, int part, float (&total)[WIDTH / 2],
                                 int *is_last) {
    const int64_t block = (int64_t)blockIdx.y * gridDim.x + blockIdx.x, size = TILE_ROWS * WIDTH;
    auto partial_at = [&](int64_t of, int i) {
        return (float4 *)(j.partials + of * size) + i * TILE_THREADS + threadIdx.x;
    };
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++)
        __stcg(partial_at(block, i), make_float4(total[4 * i], total[4 * i + 1], total[4 * i + 2], total[4 * i + 3]));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *ticket = j.tickets + ((int64_t)blockIdx.y - part) * gridDim.x + blockIdx.x;
        *is_last = atomicInc(ticket, (unsigned)m.parts - 1) == (unsigned)m.parts - 1;
    }
    __syncthreads();
    if (!*is_last) return false;
    __threadfence();
    const int64_t first = block - (int64_t)part * gridDim.x;
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
        float4 part_sums[TILE_MAX_SEGMENTS]; // all are requested before the first is needed
#pragma unroll
        for (int p = 0; p < TILE_MAX_SEGMENTS; p++)
            if (p < m.parts) part_sums[p] = __ldcg(partial_at(first + (int64_t)p * gridDim.x, i));
        float4 sum = part_sums[0];
#pragma unroll
        for (int p = 1; p < TILE_MAX_SEGMENTS; p++)
            if (p < m.parts)
                sum = make_float4(sum.x + part_sums[p].x, sum.y + part_sums[p].y, sum.z + part_sums[p].z,
                                  sum.w + part_sums[p].w);
        total[4 * i] = sum.x;
        total[4 * i + 1] = sum.y;
        total[4 * i + 2] = sum.z;
        total[4 * i + 3] = sum.w;
    }
    return true;
}

// Stores the results. Thread i of a warp has rows i / 4 and i / 4 + 8, and of eight columns 2 (i % 4) and the next.
template <int WIDTH>
__device__ static void store_tile(const tile_matrix &m, const tile_extent &extent, const int *pairs,
                                  const float (&total)[WIDTH / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = extent.row0 + 16 * warp + lane / 4;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        const int c = i / 4 * 8 + lane % 4 * 2 + i % 2, r = row + i % 4 / 2 * 8;
        if (c >= extent.count || r >= m.rows) continue;
        const int64_t column = pairs ? pairs[c] : extent.column0 + c;
        float value = total[i];
        if (m.residual) value += m.residual[column * m.residual_row + r];
        m.out[column * m.out_row + r] = value;
    }
}

template <typename P, int WIDTH>
__global__ static void __launch_bounds__(TILE_THREADS, WIDTH <= 64 ? 2 : 1) tile_matmul_kernel(tile_job j) {
#if __CUDA_ARCH__ >= 800
    typedef tile_rings<P, WIDTH> rings;
    extern __shared__ __align__(1024) char memory[];
    int *pairs = (int *)(memory + rings::COLUMNS_AT), *is_last = pairs + WIDTH;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, block = (int)blockIdx.y;
    grid_next();
    tile_matrix m = j.m[0];
    if (j.n > 1 && block >= j.m[1].first_block) m = j.m[1];
    if (j.n > 2 && block >= j.m[2].first_block) m = j.m[2];
    tile_extent extent;
    extent.row0 = (block - m.first_block) / m.parts * TILE_ROWS;
    extent.part = (block - m.first_block) % m.parts;
    extent.column0 = (int)blockIdx.x * WIDTH;
    extent.count = min(WIDTH, j.columns - extent.column0);
    const bool experts = j.experts.tiles != NULL;
    if (experts) {
        grid_wait(); // the lists are results of the previous kernel
        const expert_tile e = j.experts.tiles[blockIdx.x];
        if (e.expert < 0) return;
        extent.count = e.count;
        if (thread < e.count) pairs[thread] = j.experts.list[e.begin + thread];
        __syncthreads();
        if (e.expert == j.experts.n) { // not an expert: zeros
            const float zeros[WIDTH / 2] = {};
            if (extent.part == 0) store_tile<WIDTH>(m, extent, pairs, zeros);
            return;
        }
        m.w += e.expert * m.expert_bytes;
    } else if (!m.lasting) {
        grid_wait();
    }
    // The block's segments: one of several parts, or all.
    const int units = (j.k + TILE_UNIT - 1) / TILE_UNIT;
    auto begin_of = [&](int segment) { return segment * units / m.segments * TILE_UNIT; };
    int segment = m.parts > 1 ? extent.part : 0;
    extent.begin = begin_of(segment);
    extent.end = min(begin_of(m.parts > 1 ? segment + 1 : m.segments), (j.k + 63) / 64 * 64);

    // Copies part `part` of the stage of weights that begins at element `at`: 1 / STEPS of the rows. A thread copies
    // the same chunk of several rows. Rows behind the last one keep what is there: their results are not stored.
    constexpr int LANES = (int)P::CHUNKS <= 8 ? 8 : 16, AT_ONCE = TILE_THREADS / LANES,
                  PART_ROWS = TILE_ROWS / rings::STEPS;
    static_assert(PART_ROWS % AT_ONCE == 0, "parts are whole rounds");
    const int chunk = thread % LANES, rows_left = m.rows - extent.row0 - thread / LANES;
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory), row_bytes = (uint32_t)m.row_bytes,
                   to_row = shared + rings::WEIGHTS_AT + P::offset(thread / LANES, chunk);
    const char *from_row = m.w + (int64_t)(extent.row0 + thread / LANES) * m.row_bytes;
    auto copy_weights = [&](int at, int stage, int part) {
        if (at >= extent.end || chunk >= (int)P::CHUNKS) return;
        const uint32_t to = to_row + stage * rings::WEIGHT_STAGE + part * (PART_ROWS * (int)P::ROW);
#pragma unroll
        for (int i = 0; i < PART_ROWS; i += AT_ONCE) {
            int real;
            const char *from = P::chunk(from_row + (uint32_t)(part * PART_ROWS + i) * row_bytes,
                                        (uint32_t)at / P::DEPTH, chunk, j.k, &real);
            if (part * PART_ROWS + i < rows_left) copy16_some(to + i * (int)P::ROW, from, real);
        }
    };
    // Copies the next stage of activations, which begins at element `at`. Columns behind the last one keep what is
    // there.
    constexpr int COLUMN_CHUNKS = rings::DEPTH / 8, APART = TILE_THREADS / COLUMN_CHUNKS,
                  ROUNDS = (WIDTH + APART - 1) / APART;
    const int column_chunk = thread % COLUMN_CHUNKS, first_column = thread / COLUMN_CHUNKS,
              columns_end = (int)(j.y_row / 2) - 8 * column_chunk;
    const char *from_column[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int column = min(first_column + i * APART, extent.count - 1);
        int64_t source = extent.column0 + column;
        if (experts) source = j.experts.same_input ? pairs[column] / j.experts.used : pairs[column];
        from_column[i] = j.y + source * j.y_row + 16 * column_chunk + 2 * extent.begin;
    }
    const uint32_t to_column =
        shared + column_chunk / 8 * rings::ATOM + first_column * 128 + ((column_chunk ^ first_column) % 8 << 4);
    auto copy_columns = [&](int at, int stage) {
        if (at >= extent.end) return;
        const int real = at < columns_end ? 16 : 0;
        const uint32_t to = to_column + stage * rings::ACTIVATION_STAGE;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (first_column + i * APART < extent.count) copy16_some(to + i * APART * 128, from_column[i], real);
            from_column[i] += 2 * rings::DEPTH;
        }
    };
#pragma unroll
    for (int stage = 0; stage < rings::WEIGHTS - 1; stage++)
#pragma unroll
        for (int part = 0; part < rings::STEPS; part++)
            copy_weights(extent.begin + stage * (int)P::DEPTH, stage, part);
    if (!experts && m.lasting) grid_wait();
#pragma unroll
    for (int stage = 0; stage < rings::ACTIVATIONS - 2; stage++) {
        copy_columns(extent.begin + stage * rings::DEPTH, stage);
        copies_commit();
    }

    thread_rows rows;
    rows.t = lane % 4;
    rows.k = j.k;
#pragma unroll
    for (int h = 0; h < 2; h++)
        rows.global[h] = m.w + (int64_t)min(extent.row0 + 16 * warp + lane / 4 + 8 * h, m.rows - 1) * m.row_bytes;
    const char *own_rows = memory + rings::WEIGHTS_AT + (16 * warp + lane / 4) * (int)P::ROW;
    float sum[WIDTH / 2] = {}, total[WIDTH / 2];
    bool is_first = true, begins = true; // the first segment; a segment's first step
    int at = extent.begin, segment_end = m.parts > 1 ? extent.end : min(begin_of(1), extent.end), weights = 0,
        columns = 0, step = 0;
    uint32_t a[2][4][4];
    // One step. Tensor cores multiply a unit while the next one is converted, also across steps.
    auto multiply_step = [&](auto parity) {
        copies_wait<rings::ACTIVATIONS - 3>();
        TILE_PUBLISH();
        __syncthreads();
        copy_columns(at + (rings::ACTIVATIONS - 2) * rings::DEPTH,
                     columns < 2 ? columns + rings::ACTIVATIONS - 2 : columns - 2);
        copy_weights(at - step * rings::DEPTH + (rings::WEIGHTS - 1) * (int)P::DEPTH,
                     weights == 0 ? rings::WEIGHTS - 1 : weights - 1, step);
        copies_commit();
        const char *atom = memory + columns * rings::ACTIVATION_STAGE;
        rows.shared[0] = own_rows + weights * rings::WEIGHT_STAGE;
        rows.shared[1] = rows.shared[0] + 8 * (int)P::ROW;
#pragma unroll
        for (int u = 0; u < rings::UNITS; u++) {
            uint32_t(&now)[4][4] = a[(u + decltype(parity)::value) % 2];
            rows.at = at + 64 * u;
            P::fragments(rows, (rings::STEPS == 1 ? 0 : step * rings::DEPTH) + 64 * u, now);
            TILE_FENCE();
#pragma unroll
            for (int s = 0; s < 4; s++)
                multiply_columns<P, WIDTH>(sum, now[s], atom + u * rings::ATOM, s, u + s > 0 || !begins);
            TILE_COMMIT();
            TILE_WAIT(1); // the registers of the unit before are free
        }
        begins = false;
        if (++columns == rings::ACTIVATIONS) columns = 0;
        if (++step == rings::STEPS) {
            step = 0;
            if (++weights == rings::WEIGHTS) weights = 0;
        }
        at += rings::DEPTH;
        if (at < segment_end) return;
        TILE_WAIT(0);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) total[i] = is_first ? sum[i] : total[i] + sum[i];
        is_first = false;
        begins = true;
        segment++;
        segment_end = segment + 1 < m.segments ? begin_of(segment + 1) : extent.end;
    };
    if (extent.begin < extent.end)
        for (;;) {
            multiply_step(std::integral_constant<int, 0>());
            if (at >= extent.end) break;
            if (rings::UNITS > 1) continue;
            multiply_step(std::integral_constant<int, 1>());
            if (at >= extent.end) break;
        }
    TILE_WAIT(0);
    copies_wait<0>();
    if (m.parts > 1 && !add_parts<WIDTH>(j, m, extent.part, total, is_last)) return;
    store_tile<WIDTH>(m, extent, experts ? pairs : NULL, total);
#endif
}

template <typename P, int WIDTH> static tile_choice tile_kernel_as(const char *reader) {
    return {tile_matmul_kernel<P, WIDTH>, reader, tile_rings<P, WIDTH>::BYTES};
}
template <typename P> static tile_choice tile_kernel_for(int width, const char *reader) {
    switch (width) {
    case 8: return tile_kernel_as<P, 8>(reader);
    case 16: return tile_kernel_as<P, 16>(reader);
    case 32: return tile_kernel_as<P, 32>(reader);
    case 64: return tile_kernel_as<P, 64>(reader);
    case 128: return tile_kernel_as<P, 128>(reader);
    }
    return {};
}

#endif
