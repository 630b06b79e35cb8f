// Matmul on tensor cores with weights of any type (matmul_tiles.cuh): choosing kernels, widths and segments, and
// converting activations.
#include "backend/cuda/kernels/tiles/matmul_tiles.cuh"

#include "backend/cuda/kernels/exact/narrow.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/tiles/few_columns.cuh"
#include "backend/cuda/kernels/weights.cuh"

#include <algorithm>

// ---- Activations ----

// Converts rows of f32 with any stride, four elements per thread. Behind k elements follow zeros.
__global__ static void narrow_tiles_kernel(const char *x, int64_t row_bytes, int k, narrow_rows to) {
    grid_follow();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= to.columns) return;
    const float *from = (const float *)(x + (int64_t)blockIdx.y * row_bytes) + i;
    float4 v = make_float4(0, 0, 0, 0);
    if (i < k)
        v = (uintptr_t)from % 16 == 0 ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
    store_narrow(to, blockIdx.y, i, v);
}

tn_status compile_narrow_tiles(const compilation &c, const tn_tensor *y, const char *data, int64_t row_bytes,
                               int64_t k, int64_t rows, int type, narrow_order order, void *to) {
    compilation convert = c;
    convert.converts = y;
    narrow_rows all = {(char *)to, tile_column_bytes(k), (int)((k + 63) / 64 * 64), order, type == TN_BF16};
    for (int64_t row = 0; row < rows; row += MOST_ROWS) {
        dim3 grid(blocks_for(all.columns / 4, 256), (unsigned)std::min<int64_t>(rows - row, MOST_ROWS));
        TN_TRY(add_early(convert, KERNEL(narrow_tiles_kernel), grid, 256, 0, data + row * row_bytes, row_bytes,
                         (int)k, all));
        all.to += MOST_ROWS * all.row_bytes;
    }
    return TN_OK;
}

// ---- Kernels ----

tile_choice tile_kernel_of(int kind, bool aligned, int width) {
    tile_choice c = {};
    if (aligned) {
        c = tile_kernel_k(kind, width);
        if (!c.kernel) c = tile_kernel_small(kind, width);
        if (!c.kernel) c = tile_kernel_plain(kind, width);
        if (c.kernel) return c;
    }
    return tile_kernel_any(kind, width);
}
bool tile_type_is_fast(int type) {
    return tile_kernel_k(type, 8).kernel || tile_kernel_k(type | SOA, 8).kernel ||
           tile_kernel_small(type, 8).kernel || tile_kernel_small(type | SOA, 8).kernel ||
           tile_kernel_plain(type, 8).kernel;
}
static bool has_tile_kernel(int kind) { return has_reader(kind) && kind != TN_F32; }

// As many segments as give a small matrix blocks for a large GPU, and at least two units for each.
int tile_segments(int64_t rows, int64_t k) {
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, units = (k + TILE_UNIT - 1) / TILE_UNIT,
                  most = std::min<int64_t>(TILE_MAX_SEGMENTS, units / 2);
    return (int)std::max<int64_t>(1, std::min<int64_t>(most, 256 / tiles));
}

// ---- Launches ----

// Columns of a tile, and how many blocks a tile of rows has.
struct tile_shape {
    tile_choice choice;
    int width, parts;
    bool idle; // blocks would leave multiprocessors idle, so each segment gets its own
    int64_t tiles, column_tiles;
    size_t partial_bytes() const {
        return parts == 1 ? 0 : (size_t)(tiles * column_tiles * parts) * TILE_ROWS * (size_t)width * 4;
    }
};
static tile_shape tile_shape_of(const device_description &d, int kind, bool aligned, int64_t rows, int64_t k,
                                int64_t columns) {
    static const int widths[] = {8, 16, 32, 64, 128};
    tile_shape s = {};
    for (int width : widths) {
        tile_choice c = tile_kernel_of(kind, aligned, width);
        if (!c.kernel || c.shared > d.shared_per_block || (s.width >= columns && s.width)) continue;
        if (width == 128 && d.major < 9) continue; // too many registers for two blocks on a multiprocessor
        s.choice = c;
        s.width = width;
    }
    if (!s.width) return s;
    s.tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    s.column_tiles = (columns + s.width - 1) / s.width;
    // Blocks that a device can run at a time; where that leaves most of it idle, segments get blocks of their own.
    const int64_t slots = d.multiprocessors * (s.width <= 64 ? 2 : 1), blocks = s.tiles * s.column_tiles;
    const int segments = tile_segments(rows, k);
    s.idle =
        (20 * blocks < 9 * slots || (2 * blocks <= slots && k >= 8192)) && blocks * TILE_MAX_SEGMENTS <= N_TICKETS;
    s.parts = s.idle ? segments : 1;
    return s;
}
bool tile_aligned(const device_layout &l, int kind) {
    const int64_t to = (kind & ~SOA) == TN_IQ4_XS ? 8 : (kind & ~SOA) == TN_IQ4_NL ? 2 : kind == TN_MXFP4 ? 1 : 16;
    return l.nb[1] % to == 0 && l.nb[2] % to == 0 && l.nb[3] % to == 0 && (uintptr_t)l.data % (uintptr_t)to == 0;
}

// The numbers of columns for which these kernels are faster than GEMV and than cuBLASLt, which needs weights of block
// types as f16. Measured on an H200; below capability 9.0 they only replace conversions for few columns.
struct column_range {
    int64_t first, last;
};
// By type, not by kind: whether weights are repacked is known only once they have memory.
static column_range faster_columns(const device_description &d, int type) {
    const bool plain = type == TN_F16 || type == TN_BF16;
    if (d.major < 9) return plain ? column_range{1, 0} : column_range{9, 64};
    if (plain) return {4, 16};
    switch (type) {
    case TN_Q4_K: return {2, 512};
    case TN_Q4_0:
    case TN_Q8_0: return {4, 512};
    case TN_Q5_K: return {4, 384};
    case TN_Q6_K: return {2, 384};
    case TN_IQ4_NL:
    case TN_IQ4_XS:
    case TN_MXFP4: return {2, 256};
    default: return {9, 64};
    }
}

bool tiles_support(const device_description &d, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    const column_range faster = faster_columns(d, x->type);
    const bool wanted = (t->flags & TN_FLAG_REPEATABLE) || (y->ne[1] >= faster.first && y->ne[1] <= faster.last);
    return wanted && t->op == TN_OP_MUL_MAT && d.async_copies && has_tile_kernel(x->type) &&
           !t->params.mul_mat.precise && x->ne[0] % 8 == 0 && x->ne[0] < 1 << 30 &&
           x->ne[1] < (int64_t)MOST_ROWS * TILE_ROWS / TILE_MAX_SEGMENTS && y->ne[1] < 1 << 30;
}
// Enough for TILE_MAX_MATRICES matmuls of this shape in one launch.
size_t tiles_scratch(const device_description &d, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    size_t partials = 0;
    for (int kind : {(int)x->type, (int)x->type | SOA})
        for (bool aligned : {false, true})
            partials =
                std::max(partials, tile_shape_of(d, kind, aligned, x->ne[1], x->ne[0], y->ne[1]).partial_bytes());
    return round_up_256((size_t)(tile_column_bytes(x->ne[0]) * y->ne[1])) + FEW_BEHIND + TILE_MAX_MATRICES * partials;
}

bool tiles_can_share(const tn_tensor *a, const tn_tensor *b) {
    const int kind = kind_of(a->src[0]);
    return kind == kind_of(b->src[0]) &&
           tile_aligned(device_layout_of(a->src[0]), kind) == tile_aligned(device_layout_of(b->src[0]), kind);
}
tile_matrix tile_matrix_of(const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    const device_layout l = device_layout_of(x);
    tile_matrix m = {};
    m.w = l.data;
    m.row_bytes = l.nb[1];
    m.rows = (int)x->ne[1];
    m.segments = tile_segments(m.rows, x->ne[0]);
    m.out = (float *)t->data;
    m.out_row = (int64_t)t->nb[1] / 4;
    m.lasting = x->buffer && x->buffer->usage == TN_USAGE_WEIGHTS;
    return m;
}

tn_status compile_tile_columns(const compilation &c, const tn_tensor *t, const char *yd, narrow_order order,
                               char **columns) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    const int type = x->type == TN_BF16 ? TN_BF16 : TN_F16;
    converted_activations &last = *c.converted;
    if (last.data != yd || last.type != type || last.y != y || last.ids || last.order != order) {
        TN_TRY(compile_narrow_tiles(c, y, yd, (int64_t)y->nb[1], x->ne[0], (int)y->ne[1], type, order, c.scratch));
        last = {yd, type, y};
        last.order = order;
        last.at = c.scratch;
    }
    *columns = last.at;
    return TN_OK;
}
tn_status compile_tile_group(const compilation &c, const tn_tensor *t, const char *yd, const tile_matrix *all,
                             int n) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    const int kind = kind_of(x);
    char *columns;
    tile_job j = {};
    j.n = n;
    j.k = (int)x->ne[0];
    j.columns = (int)y->ne[1];
    j.y_row = tile_column_bytes(j.k);
    j.tickets = c.tickets;
    j.partials = (float *)(c.scratch + round_up_256((size_t)(j.y_row * j.columns)));
    TN_TRY(compile_tile_columns(c, t, yd, TILE_ORDER, &columns));
    j.y = columns;
    // Where all matrices together have few blocks, so has each alone: scratch is enough for its parts.
    int64_t rows = 0;
    for (int i = 0; i < n; i++) rows += (all[i].rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    const tile_shape s =
        tile_shape_of(*c.device, kind, tile_aligned(device_layout_of(x), kind), rows, j.k, j.columns);
    if (!s.width) return tn_fail(TN_E_INTERNAL, "no tile kernel for %s", tn_type_name(x->type));
    int blocks = 0;
    for (int i = 0; i < n; i++) {
        tile_matrix &m = j.m[i];
        m = all[i];
        m.parts = s.idle ? m.segments : 1;
        m.first_block = blocks;
        blocks += (int)blocks_for(m.rows, TILE_ROWS) * m.parts;
    }
    launch_shape shape = {dim3((unsigned)s.column_tiles, (unsigned)blocks), TILE_THREADS, s.choice.shared, true,
                          c.device->programmatic_launch};
    return add_kernel(c, kernel_called("tile_matmul_kernel", s.choice.reader, s.width), s.choice.kernel, shape, j);
}

tn_status compile_tiles(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    const int64_t r2 = y->ne[2] / x->ne[2], r3 = y->ne[3] / x->ne[3];
    const device_layout l = device_layout_of(x);
    for (int64_t i3 = 0; i3 < y->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < y->ne[2]; i2++) {
            tile_matrix m = tile_matrix_of(t);
            m.w = l.data + i2 / r2 * l.nb[2] + i3 / r3 * l.nb[3];
            m.out = (float *)((char *)t->data + i2 * (int64_t)t->nb[2] + i3 * (int64_t)t->nb[3]);
            const char *yd = (const char *)y->data + i2 * (int64_t)y->nb[2] + i3 * (int64_t)y->nb[3];
            TN_TRY(compile_tile_group(c, t, yd, &m, 1));
        }
    return TN_OK;
}
