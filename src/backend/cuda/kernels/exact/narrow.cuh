// Activations as f16 or bf16, in the order that the next matmul reads.
#ifndef TN_BACKEND_CUDA_KERNELS_EXACT_NARROW_CUH
#define TN_BACKEND_CUDA_KERNELS_EXACT_NARROW_CUH

#include "backend/cuda/kernels/exact/exact.cuh"

// Where a kernel stores its result a second time. Rows are dense, or in the order of the tile kernels
// (narrow_tiles_kernel) with zeros up to a multiple of 64 elements.
struct narrow_rows {
    char *to; // NULL: nowhere
    int64_t row_bytes;
    int columns; // of a row, with the zeros
    bool tiled, bf16;
};
// What compile functions were asked for (compilation::narrow).
static inline narrow_rows narrow_rows_of(const compilation &c, int64_t k) {
    narrow_rows r = {};
    if (!c.narrow || !c.narrow->to) return r;
    c.narrow->done = true;
    r.to = (char *)c.narrow->to;
    r.tiled = c.narrow->tiled;
    r.bf16 = c.narrow->type == TN_BF16;
    r.columns = (int)(r.tiled ? (k + 63) / 64 * 64 : k);
    r.row_bytes = 2 * (int64_t)r.columns;
    return r;
}
// Stores elements i to i + 3 of a row; i is a multiple of 4.
__device__ static inline void store_narrow(const narrow_rows &r, int64_t row, int i, float4 v) {
    char *to = r.to + row * r.row_bytes;
    if (r.tiled) {
        const int t = i % 32 / 8, s = i % 8 / 4;
        uint32_t *at = (uint32_t *)(to + 2 * (i / 32 * 32 + 16 * s + 2 * t));
        at[0] = tile_pair(v.x, v.z, r.bf16);
        at[4] = tile_pair(v.y, v.w, r.bf16);
    } else {
        *(uint2 *)(to + 2 * i) = make_uint2(tile_pair(v.x, v.y, r.bf16), tile_pair(v.z, v.w, r.bf16));
    }
}

#endif
