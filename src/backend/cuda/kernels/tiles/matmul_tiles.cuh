// Matmul on tensor cores with weights of any type, converted in registers: the kernel's arguments and the host's
// interface.
//
// The order of additions of a result depends on the weights' shape alone, never on the number of columns: a row is
// divided into segments, each is summed from zero in the order of its elements, and the segments are added in their
// order. So results are repeatable whatever else is in a batch.
#ifndef TN_BACKEND_CUDA_KERNELS_TILES_MATMUL_TILES_CUH
#define TN_BACKEND_CUDA_KERNELS_TILES_MATMUL_TILES_CUH

#include "backend/cuda/kernels/common.cuh"

enum {
    TILE_ROWS = 128, // of a block: 16 per warp
    TILE_THREADS = 256,
    TILE_UNIT = 256, // segments begin at multiples of this many elements
    TILE_MAX_SEGMENTS = 8,
    TILE_MAX_MATRICES = 3, // of a launch
};

// The pairs that a block multiplies with one expert: list[begin] to list[begin + count - 1]. `expert` is -1 if the
// tile is empty, and the number of experts if the ids of its pairs are invalid: the results of such pairs are zero.
struct expert_tile {
    int expert, begin, count;
};
struct tile_experts {
    const expert_tile *tiles; // NULL: no experts
    const int *list;          // of pairs
    int n, used;
    bool same_input; // all experts of a token read the same column
};
struct tile_matrix {
    const char *w;
    int64_t row_bytes, expert_bytes;
    int rows, segments, parts; // parts: blocks that share the segments, 1 or as many as there are segments
    int first_block;           // of the grid's second dimension
    bool lasting;              // no kernel writes it, so it may be read before the previous kernel has ended
    float *out;
    int64_t out_row;
    const float *residual; // added to the result, or NULL
    int64_t residual_row;
};
struct tile_job {
    tile_matrix m[TILE_MAX_MATRICES];
    int n, k, columns;
    const char *y; // [columns][y_row bytes]: f16 or bf16 in TILE_ORDER (exact/narrow.cuh)
    int64_t y_row;
    tile_experts experts;
    float *partials;   // where parts > 1: [block][TILE_ROWS × columns of a tile]
    unsigned *tickets; // one per tile
};

typedef void (*tile_kernel)(tile_job);
struct tile_choice {
    tile_kernel kernel; // NULL: there is none
    const char *reader; // its name
    size_t shared;      // bytes
};
// The kernel for weights of a kind and tiles of `width` columns: 8, 16, 32, 64 or 128. `aligned`: rows begin at
// multiples of 16 bytes (iq4_xs: 8).
tile_choice tile_kernel_of(int kind, bool aligned, int width);
bool tile_type_is_fast(int type); // has a kernel that copies weights to shared memory
bool tile_aligned(const device_layout &l, int kind);
// Its parts, in files of their own, because each kind and width is a kernel.
tile_choice tile_kernel_k(int kind, int width);
tile_choice tile_kernel_small(int kind, int width);
tile_choice tile_kernel_plain(int kind, int width);
tile_choice tile_kernel_any(int kind, int width);

// Bytes of a column in the order that the kernels read, in f16 or bf16.
static inline int64_t tile_column_bytes(int64_t k) { return (k + 63) / 64 * 128; }
// Segments of a row, by shape alone.
int tile_segments(int64_t rows, int64_t k);
// Rows of f32 to f16 or bf16 in that order or the one for few columns; f16 saturates instead of overflowing.
tn_status compile_narrow_tiles(const compilation &c, const tn_tensor *y, const char *data, int64_t row_bytes,
                               int64_t k, int64_t rows, int type, narrow_order order, void *to);

// Whether a matmul without experts runs here: the kernels can, and they are faster than others, or it is repeatable.
bool tiles_support(const device_description &device, const tn_tensor *t);
// The same for experts, with few tokens: known from shapes.
bool expert_tiles_are_faster(const device_description &device, const tn_tensor *t);
size_t tiles_scratch(const device_description &device, const tn_tensor *t);
tn_status compile_tiles(const compilation &c, const tn_tensor *t);
// Several matmuls of the same columns in one launch, where their weights can share a kernel. `yd`: the columns of t.
bool tiles_can_share(const tn_tensor *a, const tn_tensor *b);
tile_matrix tile_matrix_of(const tn_tensor *t);
// The columns `yd` of t in that order: where an earlier launch left them, or in scratch, converted by a launch of its
// own.
tn_status compile_tile_columns(const compilation &c, const tn_tensor *t, const char *yd, narrow_order order,
                               char **columns);
tn_status compile_tile_group(const compilation &c, const tn_tensor *t, const char *yd, const tile_matrix *all, int n);

#endif
