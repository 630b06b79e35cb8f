// Matmul with up to 8 columns on tensor cores, with the bits of the tile kernels (matmul_tiles.cuh).
//
// A warp multiplies 16 rows with one segment of them: it copies its weights to its own part of shared memory, some
// time before it needs them, and waits for no other warp until its segment is done. The warps of a block have all
// segments of their rows and add them up.
#ifndef TN_BACKEND_CUDA_KERNELS_TILES_FEW_COLUMNS_CUH
#define TN_BACKEND_CUDA_KERNELS_TILES_FEW_COLUMNS_CUH

#include "backend/cuda/kernels/exact/narrow.cuh"
#include "backend/cuda/kernels/tiles/matmul_tiles.cuh"

enum { FEW_COLUMNS = 8, FEW_WARPS = 8, FEW_BEHIND = 256 }; // FEW_BEHIND: bytes that are read behind the columns

// The matmuls of a launch: up to TILE_MAX_MATRICES of any kinds with the same columns; or gate and up, whose gated
// activation is the result.
struct few_job {
    tile_matrix m[TILE_MAX_MATRICES];
    int kinds[TILE_MAX_MATRICES];
    int n, k, columns;
    int stages, stage_bytes; // of a warp's shared memory
    const char *y;           // [columns][y_row bytes], in FEW_ORDER (exact/narrow.cuh)
    int64_t y_row;
    bool gated;
    int gate_op;
    tn_op_params gate_params;
    float *z; // the gated activation
    int64_t z_row;
    narrow_rows next; // the result once more
};

// Whether this kernel takes a matmul that the tile kernels support, once its weights have memory.
bool few_takes(const tn_tensor *t);
// Before weights have memory: whether it may be such a matmul, and the bytes of its columns as the kernels read them.
bool is_few_matmul(const device_description &device, const tn_tensor *t);
size_t few_column_bytes(const tn_tensor *t);
// Whether a gate fits: a block has rows of both matrices.
bool few_takes_gate(int64_t rows, int64_t k);
tn_status compile_few(const compilation &c, few_job *j);

#endif
