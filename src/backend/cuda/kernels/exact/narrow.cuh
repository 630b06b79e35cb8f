// Activations as f16 or bf16, in the order that the next matmul reads.
#ifndef TN_BACKEND_CUDA_KERNELS_EXACT_NARROW_CUH
#define TN_BACKEND_CUDA_KERNELS_EXACT_NARROW_CUH

#include "backend/cuda/kernels/exact/exact.cuh"

// Where a kernel stores its result a second time, with zeros up to a multiple of 64 elements unless rows are dense.
struct narrow_rows {
    char *to; // NULL: nowhere
    int64_t row_bytes;
    int columns; // of a row, with the zeros
    narrow_order order;
    bool bf16;
};
// What compile functions were asked for (compilation::narrow).
static inline narrow_rows narrow_rows_of(const compilation &c, int64_t k) {
    narrow_rows r = {};
    if (!c.narrow || !c.narrow->to) return r;
    c.narrow->done = true;
    r.to = (char *)c.narrow->to;
    r.order = c.narrow->order;
    r.bf16 = c.narrow->type == TN_BF16;
    r.columns = (int)(r.order == ROW_ORDER ? k : (k + 63) / 64 * 64);
    r.row_bytes = 2 * (int64_t)r.columns;
    return r;
}

// Of each 32 elements, those of thread t (tile_weights.cuh) are 8t to 8t + 7; tensor cores expect elements 2t, 2t +
// 1, 2t + 8 and 2t + 9 of 16 from it. The four elements 8t + 4s to 8t + 4s + 3 become these of step s, the even ones
// first: two pairs. In TILE_ORDER the pairs of a step follow each other as tensor cores read them, in FEW_ORDER those
// of a thread for 64 elements.

// The offset in bytes of the first pair of elements i to i + 3, i a multiple of 4, and from it to the second.
__device__ static inline int pairs_at(narrow_order order, int i) {
    const int t = i % 32 / 8, s = i % 8 / 4;
    return order == TILE_ORDER ? 2 * (i / 32 * 32 + 16 * s + 2 * t)
                               : i / 64 * 128 + t * 32 + i % 64 / 32 * 16 + 8 * s;
}
__device__ static inline int second_pair(narrow_order order) { return order == TILE_ORDER ? 16 : 4; }
// Stores elements i to i + 3 of a row; i is a multiple of 4.
__device__ static inline void store_narrow(const narrow_rows &r, int64_t row, int i, float4 v) {
    char *to = r.to + row * r.row_bytes;
    if (r.order == ROW_ORDER) {
        *(uint2 *)(to + 2 * i) = make_uint2(tile_pair(v.x, v.y, r.bf16), tile_pair(v.z, v.w, r.bf16));
        return;
    }
    to += pairs_at(r.order, i);
    *(uint32_t *)to = tile_pair(v.x, v.z, r.bf16);
    *(uint32_t *)(to + second_pair(r.order)) = tile_pair(v.y, v.w, r.bf16);
}
// Stores one element of a row that is not dense.
__device__ static inline void store_narrow_one(const narrow_rows &r, int64_t row, int i, float v) {
    char *to = r.to + row * r.row_bytes + pairs_at(r.order, i / 4 * 4) + i % 2 * second_pair(r.order) + i % 4 / 2 * 2;
    *(uint16_t *)to = (uint16_t)tile_pair(v, 0, r.bf16);
}

#endif
