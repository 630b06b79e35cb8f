// Matmul with experts (mul_mat_id). A pair is one token with one of its experts: a column of the result. Pairs are
// ordered by token. The ids are read on the device only, so launches depend on shapes alone.
//
// Few tokens use GEMV (gemv.cu). For more, one kernel lists the pairs of each expert, and another multiplies each
// expert's rows with the columns of its list on tensor cores: a tile kernel (tiles) where the weights suit it, or
// group_kernel. What none supports is computed pair by pair.
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/tiles/matmul_tiles.cuh"
#include "backend/cuda/kernels/weight_tiles.cuh"

#include <algorithm>

enum { ROWS = 128, DEPTH = 64, THREADS = 256, SORT_THREADS = 1024, PAIR_WARPS = 4 };

// ---- Sorting pairs by expert ----

// Tile i of expert e has index begin / width + e + i, where `begin` is the number of pairs of lower experts. An
// expert has at most (begin + count) / width - begin / width + 1 tiles, and `+ e` reserves that extra one for each,
// so no two experts use the same index. Each expert finds its tiles from `begin` alone, without waiting for other
// blocks.
static int64_t expert_tiles_for(int64_t pairs, int64_t experts, int width) { return pairs / width + experts + 1; }

struct choice {
    const char *ids;
    int64_t row_bytes;
    int used, pairs, experts;
};
__device__ static inline int expert_of(const choice &c, int pair) {
    int id = *(const int32_t *)(c.ids + pair / c.used * c.row_bytes + pair % c.used * 4);
    return id >= 0 && id < c.experts ? id : c.experts;
}
__device__ static inline int warp_count(int x) {
    for (int offset = 16; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
// Sum over the block; every thread gets it. `shared` may be reused after the next barrier.
__device__ static int block_count(int x, int *shared) {
    x = warp_count(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_count(shared[threadIdx.x % 32]);
}

// One block per expert, and one for ids that are not an expert. Writes the expert's pairs in their order, and its
// tiles.
__global__ static void __launch_bounds__(SORT_THREADS)
    sort_kernel(choice c, int width, int *list, expert_tile *tiles) {
    __shared__ int counts[2][SORT_THREADS / 32];
    int expert = (int)blockIdx.x, lower = 0, own = 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int p = threadIdx.x; p < c.pairs; p += SORT_THREADS) {
        int e = expert_of(c, p);
        lower += e < expert;
        own += e == expert;
    }
    int begin = block_count(lower, counts[0]), count = block_count(own, counts[1]);
    int first = begin / width + expert, next = (begin + count) / width + expert + 1;
    for (int i = (int)threadIdx.x; i < next - first; i += SORT_THREADS) {
        int here = min(width, count - i * width);
        tiles[first + i] = here > 0 ? expert_tile{expert, begin + i * width, here} : expert_tile{-1, 0, 0};
    }
    if (count == 0) return;
    int done = begin;
    for (int p = (int)threadIdx.x; p - (int)threadIdx.x < c.pairs; p += SORT_THREADS) {
        bool mine = p < c.pairs && expert_of(c, p) == expert;
        unsigned mask = __ballot_sync(0xffffffffu, mine);
        __syncthreads();
        if (lane == 0) counts[0][warp] = __popc(mask);
        __syncthreads();
        int of_warp = counts[0][lane], before = warp_count(lane < warp ? of_warp : 0);
        if (mine) list[done + before + __popc(mask & ((1u << lane) - 1))] = p;
        done += warp_count(of_warp);
    }
}

// ---- Many tokens, on tensor cores ----

struct group_job {
    const char *w;
    int64_t row_bytes, expert_bytes;
    int rows, k, used, experts;
    bool same_input;
    const char *y; // f16 or bf16 [columns][k]
    const expert_tile *tiles;
    const int *list;
    float *out; // [pairs][rows]
};
// Rows are padded, so that eight of them are in different banks.
template <int WIDTH> struct group_memory {
    uint16_t w[2][ROWS][DEPTH + 8], y[2][WIDTH][DEPTH + 8];
    int pair[WIDTH];
};

// Multiplies 128 rows of an expert with up to WIDTH columns, 64 elements of k at a time. While these are multiplied,
// the next weights are loaded into registers and the next activations into shared memory. Eight warps form a grid of
// 4 × 2; each has 32 rows and half of the columns.
template <typename P, int WIDTH> __global__ static void __launch_bounds__(THREADS, 2) group_kernel(group_job j) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(16) char raw_shared[];
    group_memory<WIDTH> &m = *(group_memory<WIDTH> *)raw_shared;
    expert_tile s = j.tiles[blockIdx.x];
    if (s.expert < 0) return;
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, row0 = (int)blockIdx.y * ROWS;
    if (thread < s.count) m.pair[thread] = j.list[s.begin + thread];
    __syncthreads();
    if (s.expert == j.experts) {
        for (int c = warp; c < s.count; c += THREADS / 32)
            for (int r = row0 + lane; r < min(row0 + ROWS, j.rows); r += 32)
                j.out[(int64_t)m.pair[c] * j.rows + r] = 0;
        return;
    }
    // A thread loads 32 of a row's 64 weights, and 8 elements of several columns.
    const char *weights = j.w + s.expert * j.expert_bytes + (int64_t)min(row0 + thread / 2, j.rows - 1) * j.row_bytes;
    const char *columns[WIDTH / 32];
#pragma unroll
    for (int i = 0; i < WIDTH / 32; i++) {
        int pair = m.pair[min(thread / 8 + 32 * i, s.count - 1)];
        columns[i] = j.y + 2 * ((int64_t)(j.same_input ? pair / j.used : pair) * j.k + thread % 8 * 8);
    }
    auto fetch = [&](int at, int stage) {
#pragma unroll
        for (int i = 0; i < WIDTH / 32; i++) {
            int c = thread / 8 + 32 * i;
            bool real = c < s.count && at + thread % 8 * 8 < j.k;
            copy16(&m.y[stage][c][thread % 8 * 8], real ? columns[i] + 2 * at : j.y, real);
        }
        copies_commit();
    };
    P piece;
    auto store_weights = [&](int stage) { piece.store((char *)&m.w[stage][thread / 2][thread % 2 * 32]); };

    int row = warp % 4 * 32, column = warp / 4 * (WIDTH / 2), stage = 0;
    float sum[2][WIDTH / 16][4] = {};
    piece.load(weights, thread % 2 * 32, j.k);
    fetch(0, 0);
    store_weights(0);
    copies_wait<0>();
    __syncthreads();
    for (int at = 0; at < j.k; at += DEPTH, stage ^= 1) {
        bool more = at + DEPTH < j.k;
        if (more) {
            piece.load(weights, at + DEPTH + thread % 2 * 32, j.k);
            fetch(at + DEPTH, stage ^ 1);
        }
#pragma unroll
        for (int step = 0; step < DEPTH; step += 16) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load_four(a[i], &m.w[stage][row + 16 * i + lane % 16][step + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < WIDTH / 32; n++) {
                if (column + 16 * n >= s.count) break;
                uint32_t b[4];
                load_four(b, &m.y[stage][column + 16 * n + lane / 16 * 8 + lane % 8][step + lane / 8 % 2 * 8]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    multiply<P::BF16>(sum[i][2 * n], a[i], b[0], b[1]);
                    multiply<P::BF16>(sum[i][2 * n + 1], a[i], b[2], b[3]);
                }
            }
        }
        if (more) {
            store_weights(stage ^ 1);
            copies_wait<0>();
        }
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 16; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int c = column + 8 * n + lane % 4 * 2 + e;
            if (c >= s.count) continue;
            float *out = j.out + (int64_t)m.pair[c] * j.rows;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = row0 + row + 8 * i + lane / 4;
                if (r < j.rows) out[r] = sum[i / 2][n][i % 2 * 2 + e];
            }
        }
#endif
}

// The columns of a tile. Tiles that are wider than most lists would mostly multiply padding.
static int width_of(const tn_tensor *t) { return tn_nelements(t->src[2]) / t->src[0]->ne[2] > 64 ? 128 : 64; }

// The part of group_supports() that is known before tensors have memory.
static bool group_may_support(const device_description &device, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    return device.async_copies && x->type != TN_F32 && x->ne[0] > 0 && x->ne[0] % 8 == 0 && x->ne[0] < 1 << 30 &&
           x->ne[1] < 1 << 22 && x->ne[2] > 0 && x->ne[2] < 1 << 20 && tn_nelements(t->src[2]) < 1 << 30 &&
           tn_is_contiguous_rows(y) && (y->ne[1] == 1 || y->nb[2] == (size_t)y->ne[1] * y->nb[1]);
}
static bool group_supports(const device_description &device, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    const device_layout l = device_layout_of(x);
    bool aligned = l.nb[1] % 16 == 0 && l.nb[2] % 16 == 0 && (uintptr_t)l.data % 16 == 0;
    bool wide = x->type == TN_F16 || x->type == TN_BF16 || x->type == TN_Q4_K; // reads 16 bytes at once
    return group_may_support(device, t) && (aligned || !wide) && tn_is_contiguous(t);
}

// In scratch: converted activations, the list of pairs, tiles.
struct group_room {
    char *y;
    int *list;
    expert_tile *tiles;
    size_t bytes;
};
static group_room room_at(char *at, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    int64_t pairs = tn_nelements(t->src[2]);
    group_room r = {at, NULL, NULL, round_up_256((size_t)(gemv_columns(t) * x->ne[0]) * 2)};
    r.list = (int *)(at + r.bytes);
    r.bytes += round_up_256((size_t)pairs * sizeof *r.list);
    r.tiles = (expert_tile *)(at + r.bytes);
    r.bytes += round_up_256((size_t)expert_tiles_for(pairs, x->ne[2], width_of(t)) * sizeof *r.tiles);
    return r;
}

template <typename P, int WIDTH>
static tn_status compile_group_kernel(const compilation &c, const char *reader, const group_job &j, int64_t tiles) {
    launch_shape shape = {dim3((unsigned)tiles, blocks_for(j.rows, ROWS)), THREADS, sizeof(group_memory<WIDTH>),
                          true};
    return add_kernel(c, kernel_called("group_kernel", reader, WIDTH), group_kernel<P, WIDTH>, shape, j);
}
static choice expert_choice_of(const tn_tensor *t) {
    const tn_tensor *ids = t->src[2];
    return {(const char *)ids->data, (int64_t)ids->nb[1], (int)ids->ne[0], (int)tn_nelements(ids),
            (int)t->src[0]->ne[2]};
}

static tn_status compile_groups(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1], *ids = t->src[2];
    int type = x->type == TN_BF16 ? TN_BF16 : TN_F16, width = width_of(t);
    group_room room = room_at(c.scratch, t);
    choice chosen = expert_choice_of(t);
    // Gate and up follow each other: they share the converted activations and the experts' lists.
    converted_activations &last = *c.converted;
    if (last.type != type || last.y != y || last.ids != ids || last.experts != x->ne[2] || last.order != ROW_ORDER) {
        TN_TRY(compile_narrow(c, y, (const char *)y->data, gemv_column_bytes(t), x->ne[0], gemv_columns(t), type,
                              room.y));
        compilation convert = c;
        convert.converts = ids;
        TN_TRY(add_ordered(convert, KERNEL(sort_kernel), dim3((unsigned)x->ne[2] + 1), SORT_THREADS, 0, chosen, width,
                           room.list, room.tiles));
        last = {y->data, type, y, ids, x->ne[2]};
    }
    const device_layout l = device_layout_of(x);
    group_job j = {l.data,         l.nb[1],       l.nb[2], (int)x->ne[1], (int)x->ne[0], chosen.used,
                   chosen.experts, y->ne[1] == 1, room.y,  room.tiles,    room.list,     (float *)t->data};
    int64_t tiles = expert_tiles_for(chosen.pairs, chosen.experts, width);
    switch (kind_of(x)) {
#define CASE(KIND, reader)                                                                                           \
    case KIND:                                                                                                       \
        return width == 64 ? compile_group_kernel<piece<reader>, 64>(c, #reader, j, tiles)                           \
                           : compile_group_kernel<piece<reader>, 128>(c, #reader, j, tiles);
        CASE(TN_F16, read_f16)
        CASE(TN_BF16, read_bf16)
        FOR_EVERY_BLOCK_READER(CASE)
#undef CASE
    default: return tn_fail(TN_E_UNSUPPORTED, "mul_mat_id with %s", tn_type_name(x->type));
    }
}

// ---- Many tokens, with tile kernels ----

// What depends on shapes alone: the columns of a tile, tiles of columns and of rows, and blocks per tile.
struct expert_shape {
    int width, parts, segments;
    int64_t tiles, row_tiles;
    size_t partial_bytes() const {
        return parts == 1 ? 0 : (size_t)(tiles * row_tiles * parts) * TILE_ROWS * (size_t)width * 4;
    }
};
// Not every type has a kernel for every width, and stages of narrow tiles are longer than some devices have shared
// memory for. The narrowest tile from `width` on, or the widest below, that can run: results do not depend on it.
static int width_that_fits(const device_description &d, const tn_tensor *t, int width) {
    auto fits = [&](int w) {
        const tile_choice c = tile_kernel_of(kind_of(t->src[0]), true, w);
        return c.kernel && c.shared <= d.shared_per_block;
    };
    for (int w = width; w <= 128; w *= 2)
        if (fits(w)) return w;
    for (int w = width / 2; w >= 8; w /= 2)
        if (fits(w)) return w;
    return width;
}
static expert_shape expert_shape_of(const device_description &d, const tn_tensor *t) {
    const int64_t pairs = tn_nelements(t->src[2]), experts = t->src[0]->ne[2], each = pairs / experts;
    expert_shape s = {};
    s.width = each <= 4 ? 8 : each <= 8 ? 16 : each <= 16 ? 32 : each <= 48 || d.major < 9 ? 64 : 128;
    s.width = width_that_fits(d, t, s.width);
    s.segments = tile_segments(t->src[0]->ne[1], t->src[0]->ne[0]);
    s.tiles = expert_tiles_for(pairs, experts, s.width);
    s.row_tiles = (t->src[0]->ne[1] + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t busy = std::min(pairs, experts) * s.row_tiles; // blocks with work, at least
    s.parts = busy < d.multiprocessors && s.tiles * s.row_tiles * s.segments <= N_TICKETS ? s.segments : 1;
    return s;
}
// A repeatable matmul always runs here if it can: its kernels differ by weights, never by the number of tokens.
static bool expert_tiles_may_support(const device_description &device, const tn_tensor *t) {
    return group_may_support(device, t) &&
           (t->src[0]->ne[1] + TILE_ROWS - 1) / TILE_ROWS * TILE_MAX_SEGMENTS <= MOST_ROWS;
}
bool expert_tiles_are_faster(const device_description &device, const tn_tensor *t) {
    return device.major >= 9 && t->src[1]->ne[2] > 4 && tile_type_is_fast(t->src[0]->type) &&
           expert_tiles_may_support(device, t);
}
static tile_choice expert_kernel_of(const device_description &device, const tn_tensor *t) {
    const device_layout l = device_layout_of(t->src[0]);
    const int width = expert_shape_of(device, t).width, kind = kind_of(t->src[0]);
    if (!expert_tiles_may_support(device, t) || !tn_is_contiguous(t) || !tile_aligned(l, kind)) return {};
    const tile_choice c = tile_kernel_of(kind, true, width);
    return c.shared <= device.shared_per_block ? c : tile_choice{};
}
struct expert_room {
    char *y;
    int *list;
    expert_tile *tiles;
    float *partials;
    size_t bytes;
};
static expert_room expert_room_at(const device_description &d, char *at, const tn_tensor *t) {
    const expert_shape s = expert_shape_of(d, t);
    expert_room r = {at};
    r.bytes = round_up_256((size_t)(tile_column_bytes(t->src[0]->ne[0]) * gemv_columns(t)));
    r.list = (int *)(at + r.bytes);
    r.bytes += round_up_256((size_t)tn_nelements(t->src[2]) * sizeof *r.list);
    r.tiles = (expert_tile *)(at + r.bytes);
    r.bytes += round_up_256((size_t)s.tiles * sizeof *r.tiles);
    r.partials = (float *)(at + r.bytes);
    r.bytes += s.partial_bytes();
    return r;
}

static tn_status compile_expert_tiles(const compilation &c, const tn_tensor *t, const tile_choice &kernel) {
    const tn_tensor *x = t->src[0], *y = t->src[1], *ids = t->src[2];
    const int type = x->type == TN_BF16 ? TN_BF16 : TN_F16;
    const expert_shape s = expert_shape_of(*c.device, t);
    const expert_room room = expert_room_at(*c.device, c.scratch, t);
    const choice chosen = expert_choice_of(t);
    converted_activations &last = *c.converted;
    if (last.type != type || last.y != y || last.ids != ids || last.experts != x->ne[2] || last.order != TILE_ORDER) {
        TN_TRY(compile_narrow_tiles(c, y, (const char *)y->data, gemv_column_bytes(t), x->ne[0], gemv_columns(t),
                                    type, TILE_ORDER, room.y));
        compilation convert = c;
        convert.converts = ids;
        TN_TRY(add_ordered(convert, KERNEL(sort_kernel), dim3((unsigned)x->ne[2] + 1), SORT_THREADS, 0, chosen,
                           s.width, room.list, room.tiles));
        last = {y->data, type, y, ids, x->ne[2], TILE_ORDER};
    }
    const device_layout l = device_layout_of(x);
    tile_job j = {};
    j.n = 1;
    j.k = (int)x->ne[0];
    j.columns = gemv_columns(t);
    j.y = room.y;
    j.y_row = tile_column_bytes(j.k);
    j.experts = {room.tiles, room.list, chosen.experts, chosen.used, y->ne[1] == 1};
    j.partials = room.partials;
    j.tickets = c.tickets;
    tile_matrix &m = j.m[0];
    m.w = l.data;
    m.row_bytes = l.nb[1];
    m.expert_bytes = l.nb[2];
    m.rows = (int)x->ne[1];
    m.segments = s.segments;
    m.parts = s.parts;
    m.out = (float *)t->data;
    m.out_row = x->ne[1];
    const launch_shape shape = {dim3((unsigned)s.tiles, (unsigned)(s.row_tiles * s.parts)), TILE_THREADS,
                                kernel.shared, true, c.device->programmatic_launch};
    return add_kernel(c, kernel_called("tile_matmul_kernel", kernel.reader, s.width), kernel.kernel, shape, j);
}

// ---- Pair by pair ----

// A warp computes the dot product of a row with a pair's column, as floats. `aligned`: columns are 16-byte aligned.
template <typename R>
__global__ static void __launch_bounds__(PAIR_WARPS * 32)
    pair_kernel(const char *x, const char *y, char *z, choice c, shape4 xs, shape4 ys, shape4 zs, bool aligned) {
    grid_follow();
    int pair = (int)blockIdx.x, u = pair % c.used, t = pair / c.used, expert = expert_of(c, pair),
        lane = threadIdx.x % 32;
    const float *v = (const float *)(y + u % ys.ne[1] * ys.nb[1] + t * ys.nb[2]);
    float *out = (float *)(z + u * zs.nb[1] + t * zs.nb[2]);
    for (int64_t row = (int64_t)blockIdx.y * PAIR_WARPS + threadIdx.x / 32; row < xs.ne[1];
         row += (int64_t)gridDim.y * PAIR_WARPS) {
        const char *w = x + row * xs.nb[1] + expert * xs.nb[2];
        float sum = 0;
#pragma unroll 4
        for (int64_t i = lane * 8; i < xs.ne[0] && expert < c.experts; i += 256) {
            float part[8];
            float4 p, q;
            R::eight(w, i, part, xs.ne[0]);
            if (aligned) {
                p = *(const float4 *)(v + i);
                q = *(const float4 *)(v + i + 4);
            } else {
                p = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
                q = make_float4(v[i + 4], v[i + 5], v[i + 6], v[i + 7]);
            }
            sum += part[0] * p.x + part[1] * p.y + part[2] * p.z + part[3] * p.w + part[4] * q.x + part[5] * q.y +
                   part[6] * q.z + part[7] * q.w;
        }
        sum = warp_sum(sum);
        if (lane == 0) out[row] = sum;
    }
}

static tn_status compile_pairs(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    choice chosen = expert_choice_of(t);
    unsigned blocks = blocks_for(x->ne[1], PAIR_WARPS);
    dim3 grid((unsigned)chosen.pairs, blocks < MOST_ROWS ? blocks : MOST_ROWS);
    bool aligned = y->nb[1] % 16 == 0 && y->nb[2] % 16 == 0 && (uintptr_t)y->data % 16 == 0;
    switch (kind_of(x)) {
#define CASE(KIND, reader)                                                                                           \
    case KIND:                                                                                                       \
        return add_early(c, kernel_called("pair_kernel", #reader), pair_kernel<reader>, grid, PAIR_WARPS * 32, 0,    \
                         device_layout_of(x).data, (const char *)y->data, (char *)t->data, chosen, shape4_of(x),     \
                         shape4_of(y), shape4_of(t), aligned);
        FOR_EVERY_READER(CASE)
#undef CASE
    default: return tn_fail(TN_E_UNSUPPORTED, "mul_mat_id with %s", tn_type_name(x->type));
    }
}

// ---- Choosing a kernel ----

size_t mul_mat_id_scratch(const device_description &device, const tn_tensor *t) {
    if (gemv_supports(device, t)) return gemv_scratch(t);
    size_t bytes = group_may_support(device, t) ? room_at(NULL, t).bytes : 0;
    if (expert_tiles_may_support(device, t)) bytes = std::max(bytes, expert_room_at(device, NULL, t).bytes);
    return bytes;
}

tn_status compile_mul_mat_id(const compilation &c, const tn_tensor *t) {
    bool few = gemv_supports(*c.device, t);
    const tile_choice tiles = few ? tile_choice{} : expert_kernel_of(*c.device, t);
    if (tiles.kernel) return compile_expert_tiles(c, t, tiles);
    if (!few && group_supports(*c.device, t)) return compile_groups(c, t);
    *c.converted = {};
    if (few && gemv_family_of(*c.device, t) != GEMV_OTHER && (uintptr_t)t->src[1]->data % 16 == 0)
        return compile_gemv(c, t);
    return compile_pairs(c, t);
}
