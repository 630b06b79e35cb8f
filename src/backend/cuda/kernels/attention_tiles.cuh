// Attention on tensor cores: tiles of cells in shared memory, and which cells the queries of a block see.
#ifndef TN_BACKEND_CUDA_KERNELS_ATTENTION_TILES_CUH
#define TN_BACKEND_CUDA_KERNELS_ATTENTION_TILES_CUH

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/mma.cuh"

enum { QUERIES = 64, NEVER = LAST_POSITION }; // QUERIES: rows of a block
// Weights are scaled by e^LIFT, so they are at most 16384. Below 6e-5 f16 is subnormal and loses precision.
static constexpr float LIFT = 9.704f;

// How tiles are stored in shared memory.
enum tile_form {
    ROWS_F16,       // rows are f16 and copied asynchronously: the next tile loads while one is computed
    ROWS_TO_F16,    // rows of other types are rounded to f16
    ROWS_SPLIT_F16, // rows are f32: one part rounded to f16, one part with the rounding error. Both together keep 22
                    // bits.
};
static inline const char *form_name(tile_form form) {
    return form == ROWS_F16 ? "f16" : form == ROWS_TO_F16 ? "to f16" : "split f16";
}

__device__ static inline uint32_t two_halves(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}
// Part 0: the values rounded to f16. Part 1: the rounding errors.
__device__ static inline uint32_t pack_part(float a, float b, int part) {
    if (part) {
        a -= __half2float(__float2half_rn(a));
        b -= __half2float(__float2half_rn(b));
    }
    return two_halves(a, b);
}
// Saturates at f16's largest value. Infinity and NaN are kept, so that a broken model remains visible.
__device__ static inline float within_half(float x) {
    return fabsf(x) > 65504 && fabsf(x) < INFINITY ? copysignf(65504, x) : x;
}

__device__ static int warp_min_int(int x) {
    for (int offset = 16; offset; offset >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ static int warp_max_int(int x) {
    for (int offset = 16; offset; offset >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// The queries of a block that belong to one sequence: the range of positions that any or all of them see.
struct queries {
    bool is_alone; // no query of the block belongs to another sequence
    int seq;       // NEVER: there is no such sequence
    int cells;     // logical cells of the sequence
    int min_low, max_low, min_high, max_high;
};
// The queries of the block's lowest sequence above `after`. The block's rows begin with row0 and end before those of
// token `end`, and `share` rows belong to a token. All warps compute the same.
__device__ static queries queries_after(const attention_job &j, int row0, int share, int end, int after,
                                        const int (&low)[QUERIES], const int (&high)[QUERIES]) {
    int lane = threadIdx.x % 32, seq[2], lows[2], highs[2];
    for (int i = 0; i < 2; i++) {
        int t = (row0 + lane + 32 * i) / share;
        seq[i] = t < end ? query_of(j, t).seq : -1;
    }
    queries all = {};
    all.seq = warp_min_int(min(seq[0] > after ? seq[0] : NEVER, seq[1] > after ? seq[1] : NEVER));
    if (all.seq == NEVER) return all;
    bool is_other = false; // padding belongs to every sequence, and sees nothing
    for (int i = 0; i < 2; i++) {
        bool other = seq[i] >= 0 && seq[i] != all.seq;
        lows[i] = other ? NEVER - 1 : low[lane + 32 * i];
        highs[i] = other ? -1 : high[lane + 32 * i];
        is_other = is_other || other;
    }
    all.is_alone = !__any_sync(0xffffffffu, is_other);
    all.cells = logical_cells(j, {0, all.seq});
    all.min_low = warp_min_int(min(lows[0], lows[1]));
    all.max_low = warp_max_int(max(lows[0], lows[1]));
    all.min_high = warp_min_int(min(highs[0], highs[1]));
    all.max_high = warp_max_int(max(highs[0], highs[1]));
    return all;
}

// The cells of a tile by lane: cell lane, and cell 32 + lane where a tile has 64. -1: not visible to any query.
struct tile_cells {
    int a, b;
    // Cell c of the tile. All lanes call this.
    template <int CELLS> __device__ int at(int c) const {
        int x = __shfl_sync(0xffffffffu, a, c % 32);
        if (CELLS == 32) return x;
        int y = __shfl_sync(0xffffffffu, b, c % 32);
        return c < 32 ? x : y;
    }
};
// The next tile of the sequence from logical cell `begin` on with a cell that is visible to a query, or -1; stores
// its positions in shared memory. `whole`: all its cells are visible to all queries. The result is uniform over the
// block.
template <int CELLS>
__device__ static int next_tile(const attention_job &j, const queries &all, int begin, int (&positions)[CELLS],
                                tile_cells *cells, bool *whole) {
    *whole = false;
    int lane = threadIdx.x % 32;
    for (; begin < all.cells; begin += CELLS) {
        paged_cell a = cell_at(j, all.seq, begin + lane, all.cells),
                   b = CELLS > 32 ? cell_at(j, all.seq, begin + 32 + lane, all.cells) : a;
        bool sees_a = a.cell >= 0 && a.position >= all.min_low && a.position <= all.max_high,
             sees_b = b.cell >= 0 && b.position >= all.min_low && b.position <= all.max_high;
        if (!__any_sync(0xffffffffu, sees_a || sees_b)) continue;
        *whole = all.is_alone &&
                 __all_sync(0xffffffffu, a.cell >= 0 && b.cell >= 0 && max(a.position, b.position) <= all.min_high &&
                                             min(a.position, b.position) >= all.max_low);
        *cells = {sees_a ? a.cell : -1, sees_b ? b.cell : -1};
        if (threadIdx.x < 32) {
            positions[lane] = sees_a ? a.position : NEVER;
            if (CELLS > 32) positions[CELLS - 32 + lane] = sees_b ? b.position : NEVER;
        }
        return begin;
    }
    return -1;
}

// Rows of keys or values for a tile.
struct tile_rows {
    const char *at; // cell 0
    int64_t stride;
    int type, size;
    tile_cells cells; // invisible cells are zeros
};
template <typename R, int THREADS, typename tile, int PARTS>
__device__ static inline void convert_tile(tile (&to)[PARTS], const tile_rows &rows) {
    // A thread converts SHARES times eight elements. Loads are issued in batches of BATCH.
    constexpr int CELLS = sizeof(tile) / sizeof(*to[0]), CHUNKS = sizeof(*to[0]) / 16 - 1,
                  SHARES = CELLS * CHUNKS / THREADS, BATCH = SHARES % 4 ? 3 : 4;
    static_assert(CELLS * CHUNKS % THREADS == 0 && SHARES % BATCH == 0, "threads share the tile evenly");
#pragma unroll 1
    for (int first = threadIdx.x; first < CELLS * CHUNKS; first += BATCH * THREADS) {
        typename R::raw raw[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * THREADS, cell = rows.cells.at<CELLS>(i / CHUNKS), at = i % CHUNKS * 8;
            raw[b] = {};
            if (cell >= 0 && at < rows.size) raw[b] = R::load(rows.at + cell * rows.stride, at);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * THREADS, at = i % CHUNKS * 8;
            float v[8];
            R::floats(raw[b], at, v);
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = within_half(v[e]);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                *(uint4 *)&to[part][i / CHUNKS][at] =
                    make_uint4(pack_part(v[0], v[1], part), pack_part(v[2], v[3], part), pack_part(v[4], v[5], part),
                               pack_part(v[6], v[7], part));
        }
    }
}

#endif
