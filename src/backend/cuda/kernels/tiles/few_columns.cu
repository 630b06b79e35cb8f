// Matmul with up to 8 columns on tensor cores (few_columns.cuh).
#include "backend/cuda/kernels/tiles/few_columns.cuh"

#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/tiles/tile_weights.cuh"
#include "backend/cuda/kernels/unary.cuh"

#include <algorithm>

// ---- Weights ----

struct few_rows {
    const char *first; // row 0 of the warp's 16
    uint32_t row_bytes;
    int k; // elements of a row
};
// Each kind has
//   BLOCK        bytes of 256 elements of 16 rows in shared memory,
//   copy()       copies them, from element `at` on,
//   SCALES, scales()  what threads need to convert a block, computed by all of them together,
//   fragments()  64 elements, those from 64 u of a block on: four fragments of 16 elements.
// Threads of neighbouring rows read different banks.

struct few_q4_K {
    enum { HEADS_AT = 16 * 128, BLOCK = HEADS_AT + 16 * 16, SCALES = 16 * 32 };
    // The quants of 16 rows, 128 bytes each, then their heads. Chunk c of a row lies at c ^ row % 4 * 2, so that
    // threads of neighbouring rows read different banks.
    __device__ static const char *quants(const char *block, int row, int u, int t) {
        return block + row * 128 + ((2 * u + t / 2) ^ row % 4 * 2) * 16 + t % 2 * 8;
    }
    __device__ static void copy(const few_rows &r, int at, uint32_t to) {
        const int lane = threadIdx.x % 32;
        const uint32_t block = (uint32_t)at / 256 * 144;
        const char *from = r.first + (lane / 8 * r.row_bytes + lane % 8 * 16 + block + 16);
        const uint32_t to_row = to + lane / 8 * 128 + ((lane % 8) ^ lane / 8 * 2) * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) copy16_some(to_row + 512 * i, from + 4 * i * r.row_bytes, 16);
        if (lane < 16) copy16_some(to + HEADS_AT + lane * 16, r.first + (lane * r.row_bytes + block), 16);
    }
    // For 64 elements of a row: the scales of both sub-blocks, and their negative minima. A thread computes half a
    // row.
    __device__ static void scales(const char *block, char *to) {
        const int lane = threadIdx.x % 32, row = lane / 2;
        const uint4 head = *(const uint4 *)(block + HEADS_AT + row * 16);
        const bool second = lane % 2;
        const uint32_t s = second ? (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u) : head.y & 0x3f3f3f3fu,
                       m = second ? (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u) : head.z & 0x3f3f3f3fu;
        const uint32_t d = low_twice(head.x), least = high_twice(head.x);
        uint32_t scale[2], minimum[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t by = j ? 0x4342 : 0x4140;
            scale[j] = pair_mul(pair_add(__byte_perm(s, 0x64646464u, by), MINUS_1024), d);
            minimum[j] = pair_mul(pair_add(__byte_perm(m, 0x64646464u, by), MINUS_1024), least) ^ 0x80008000u;
        }
        *(uint4 *)(to + row * 32 + lane % 2 * 16) = make_uint4(scale[0], minimum[0], scale[1], minimum[1]);
    }
    __device__ static void fragments(const char *block, const char *scales, int, int u, uint32_t (&a)[4][4]) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = lane / 4 + 8 * h;
            const uint2 s = *(const uint2 *)(scales + row * 32 + 8 * u);
            tile_q4_K::convert(make_uint4(low_twice(s.x), low_twice(s.y), high_twice(s.x), high_twice(s.y)),
                               *(const uint2 *)quants(block, row, u, lane % 4), h, a);
        }
    }
};

// A repacked row: low bits, high bits, scales, factors of the piece's blocks.
struct few_q6_K {
    enum { ROW = 224, BLOCK = 16 * ROW, SCALES = 0 };
    __device__ static void copy(const few_rows &r, int at, uint32_t to) {
        const int lane = threadIdx.x % 32, c = lane % 16, block = at / 256, piece = block / (Q6_K_PIECE / 256),
                  within = block % (Q6_K_PIECE / 256),
                  n = min(Q6_K_PIECE / 256, r.k / 256 - piece * (Q6_K_PIECE / 256)),
                  from = piece * (Q6_K_PIECE / 256 * 210) + (c < 8    ? 128 * within + 16 * c
                                                             : c < 12 ? 128 * n + 64 * within + 16 * (c - 8)
                                                             : c < 13 ? 192 * n + 16 * within
                                                                      : 208 * n);
        if (c >= 14) return;
        const char *row = r.first + (lane / 16 * r.row_bytes + from);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            copy16_some(to + (lane / 16 + 2 * i) * (int)ROW + 16 * c, row, 16);
            row += 2 * r.row_bytes;
        }
    }
    __device__ static void scales(const char *, char *) {}
    __device__ static void fragments(const char *block, const char *, int at, int u, uint32_t (&a)[4][4]) {
        const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char *row = block + (lane / 4 + 8 * h) * (int)ROW;
            const int8_t *scales = (const int8_t *)(row + 192 + 4 * u + t / 2);
            tile_q6_K::convert(
                {*(const uint2 *)(row + u / 2 * 64 + 8 * t), *(const uint2 *)(row + u / 2 * 64 + 32 + 8 * t)},
                *(const uint2 *)(row + 128 + u / 2 * 32 + 8 * t),
                half_bits(*(const uint16_t *)(row + 208 + at / 256 % (Q6_K_PIECE / 256) * 2)), {scales[0], scales[2]},
                u % 2, h, a);
        }
    }
};

// ---- The kernel ----

// A warp's memory: stages of a block each, all but one of which are being filled, then scales.
__host__ __device__ static inline int few_warp_bytes(int stages, int stage_bytes) {
    return stages * stage_bytes + few_q4_K::SCALES;
}

// The sums of a warp: 16 rows from row0 on, elements `begin` to `end`. Thread i has rows i / 4 and i / 4 + 8 of
// columns 2 (i % 4) and the next.
template <typename P>
__device__ static void few_sums(const few_job &j, const tile_matrix &m, int row0, int begin, int end, char *memory,
                                float (&sum)[4]) {
    const int lane = threadIdx.x % 32;
    const few_rows rows = {m.w + (int64_t)row0 * m.row_bytes, (uint32_t)m.row_bytes, j.k};
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(memory);
    auto copy_block = [&](int at, int stage) {
        if (at < end) P::copy(rows, at, shared + stage * j.stage_bytes);
        copies_commit();
    };
    if (!m.lasting) grid_wait();
    for (int i = 0; i < j.stages; i++) copy_block(begin + 256 * i, i);
    if (m.lasting) grid_wait();

    // The columns of the next two units; behind the last one follow 256 bytes that are read and not used.
    const uint4 *columns = (const uint4 *)(j.y + lane / 4 * j.y_row + 2 * begin) + lane % 4 * 2;
    const bool has_column = lane / 4 < j.columns;
    uint4 y[2][2] = {};
    auto load_columns = [&](int u) {
        if (has_column) {
            y[u % 2][0] = columns[u * 8];
            y[u % 2][1] = columns[u * 8 + 1];
        }
    };
    load_columns(0);
    load_columns(1);
    char *scales = memory + j.stages * j.stage_bytes;
    int stage = 0;
#pragma unroll 1
    for (int at = begin; at < end; at += 256) {
        if (j.stages == 2)
            copies_wait<1>();
        else if (j.stages == 3)
            copies_wait<2>();
        else
            copies_wait<3>();
        __syncwarp();
        const char *block = memory + stage * j.stage_bytes;
        if ((int)P::SCALES > 0) {
            P::scales(block, scales);
            __syncwarp();
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            uint32_t a[4][4];
            P::fragments(block, scales, at, u, a);
            multiply(sum, a[0], y[u % 2][0].x, y[u % 2][0].y);
            multiply(sum, a[1], y[u % 2][0].z, y[u % 2][0].w);
            multiply(sum, a[2], y[u % 2][1].x, y[u % 2][1].y);
            multiply(sum, a[3], y[u % 2][1].z, y[u % 2][1].w);
            load_columns(u + 2);
        }
        columns += 4 * 8;
        __syncwarp();
        copy_block(at + 256 * j.stages, stage);
        if (++stage == j.stages) stage = 0;
    }
}

#ifndef __maxnreg__ // before CUDA 12.4
#define __maxnreg__(N) __launch_bounds__(FEW_WARPS * 32)
#endif
enum { FEW_REGISTERS = 72, FEW_RESIDENT = 65536 / 32 / FEW_REGISTERS }; // FEW_RESIDENT: warps of a multiprocessor

// How the warps of a block divide rows: `groups` groups of 16 rows with all segments each; with a gate half of them
// are of the gate and half of the other matrix. Blocks have about four warps, so that many of them fit and all
// multiprocessors end together.
__host__ __device__ static inline int few_groups(int segments, bool gated) {
    return segments >= 4 ? 1 + gated : (4 / segments + gated) / (1 + gated) * (1 + gated);
}

__global__ static void __maxnreg__(FEW_REGISTERS) few_kernel(few_job j) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = (int)blockIdx.x;
    grid_next();
    int index = 0;
    if (j.n > 1 && block >= j.m[1].first_block) index = 1;
    if (j.n > 2 && block >= j.m[2].first_block) index = 2;
    const int segments = j.m[index].segments, groups = few_groups(segments, j.gated),
              of_matrix = j.gated ? groups / 2 : groups,
              first_row = (block - j.m[index].first_block) * of_matrix * 16, group = warp / segments;
    if (j.gated) index = group / of_matrix; // 0: the gate
    if (group < groups) {
        const tile_matrix &m = j.m[index];
        const int row0 = first_row + group % of_matrix * 16, segment = warp % segments,
                  units = (j.k + TILE_UNIT - 1) / TILE_UNIT, begin = segment * units / segments * TILE_UNIT,
                  end = min((segment + 1) * units / segments * TILE_UNIT, (j.k + 63) / 64 * 64);
        float sum[4] = {};
        char *own = memory + warp * few_warp_bytes(j.stages, j.stage_bytes);
        if (row0 < m.rows) {
            switch (j.kinds[index]) {
            case TN_Q4_K: few_sums<few_q4_K>(j, m, min(row0, m.rows - 16), begin, end, own, sum); break;
            case TN_Q6_K | SOA: few_sums<few_q6_K>(j, m, min(row0, m.rows - 16), begin, end, own, sum); break;
            }
        }
        copies_wait<0>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++)
            ((float *)own)[(lane / 4 + i / 2 * 8) * FEW_COLUMNS + lane % 4 * 2 + i % 2] = sum[i];
    }
    __syncthreads();
    grid_wait(); // of warps without rows
    // The segments in their order. The last group of a matrix has the rows before it, too.
    auto total = [&](int of_group, int r, int column) {
        const int bytes = few_warp_bytes(j.stages, j.stage_bytes);
        const char *sums = memory + of_group * segments * bytes + (r * FEW_COLUMNS + column) * 4;
        float x = *(const float *)sums;
        for (int s = 1; s < segments; s++) x += *(const float *)(sums + s * bytes);
        return x;
    };
    for (int i = threadIdx.x; i < of_matrix * 16 * j.columns; i += blockDim.x) {
        const int column = i / (of_matrix * 16), g = i / 16 % of_matrix, r = i % 16, row = first_row + g * 16 + r;
        if (row >= j.m[index].rows) continue;
        const int of_16 = row - min(first_row + g * 16, j.m[index].rows - 16);
        float x = total(g, of_16, column);
        if (j.gated) {
            x = gated(j.gate_op, x, total(g + of_matrix, of_16, column), j.gate_params);
            j.z[column * j.z_row + row] = x;
            if (j.next.to) store_narrow_one(j.next, column, row, x);
            continue;
        }
        const tile_matrix &m = j.m[index];
        if (m.residual) x += m.residual[column * m.residual_row + row];
        m.out[column * m.out_row + row] = x;
    }
#endif
}

// ---- Launches ----

bool few_takes(const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    const int kind = kind_of(x);
    return y->ne[1] <= FEW_COLUMNS && x->ne[1] >= 16 && x->ne[2] == 1 && x->ne[3] == 1 && y->ne[2] == 1 &&
           y->ne[3] == 1 && (kind == TN_Q4_K || kind == (TN_Q6_K | SOA)) && tile_aligned(device_layout_of(x), kind);
}
bool is_few_matmul(const device_description &device, const tn_tensor *t) {
    return t->op == TN_OP_MUL_MAT && t->src[1]->ne[1] <= FEW_COLUMNS && tiles_support(device, t);
}
size_t few_column_bytes(const tn_tensor *t) {
    return round_up_256((size_t)(tile_column_bytes(t->src[0]->ne[0]) * t->src[1]->ne[1])) + FEW_BEHIND;
}
bool few_takes_gate(int64_t rows, int64_t k) { return 2 * tile_segments(rows, k) <= FEW_WARPS; }

tn_status compile_few(const compilation &c, few_job *j) {
    const int units = (j->k + TILE_UNIT - 1) / TILE_UNIT;
    int blocks = 0, warps = 0, most = 2;
    for (int i = 0; i < j->n; i++) {
        tile_matrix &m = j->m[i];
        const int groups = few_groups(m.segments, j->gated), of_matrix = j->gated ? groups / 2 : groups;
        m.first_block = j->gated ? 0 : blocks;
        if (!j->gated || i == 0) blocks += (int)blocks_for(m.rows, 16 * of_matrix);
        warps = std::max(warps, groups * m.segments);
        most = std::max(most, (units + m.segments - 1) / m.segments);
    }
    // As many stages, up to four or what a segment has, as let as many blocks run at a time as there are, or as
    // registers allow.
    for (int i = 0; i < j->n; i++) {
        const int bytes = j->kinds[i] == TN_Q4_K ? (int)few_q4_K::BLOCK : (int)few_q6_K::BLOCK;
        j->stage_bytes = std::max(j->stage_bytes, bytes);
    }
    const int multiprocessors = c.device->multiprocessors,
              each = std::min((blocks + multiprocessors - 1) / multiprocessors, FEW_RESIDENT / warps);
    for (j->stages = std::min(4, most); j->stages > 2; j->stages--)
        if (each * (warps * few_warp_bytes(j->stages, j->stage_bytes) + 1024) <= (int)c.device->shared_per_block)
            break;
    launch_shape shape = {dim3((unsigned)blocks), 32 * (unsigned)warps,
                          (size_t)(warps * few_warp_bytes(j->stages, j->stage_bytes)), true,
                          c.device->programmatic_launch};
    return add_kernel(c, KERNEL(few_kernel), shape, *j);
}
