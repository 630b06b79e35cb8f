// Matmul: up to 8 columns by GEMV (gemv.cu), more with cuBLASLt. Weights of block types are converted to f16 in
// pieces.
#include "backend/cuda/kernels/exact/exact.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/tiles/matmul_tiles.cuh"
#include "backend/cuda/kernels/weights.cuh"

// Weights of block types are converted to f16 this many bytes at a time, which bounds the scratch for any matrix.
static const size_t PIECE_BYTES = (size_t)128 << 20;
static const size_t BLAS_WORKSPACE = (size_t)32 << 20;

// The type of both operands in cuBLASLt.
static int blas_type(const tn_tensor *x) {
    return x->type == TN_F32 ? TN_F32 : x->type == TN_BF16 ? TN_BF16 : TN_F16;
}

// Rows of weights of a block type that are converted at a time.
static int64_t piece_rows(const tn_tensor *x) {
    int64_t rows = (int64_t)(PIECE_BYTES / ((size_t)x->ne[0] * 2));
    return rows < 1 ? 1 : rows < x->ne[1] ? rows : x->ne[1];
}
static bool needs_pieces(const tn_tensor *x) { return tn_type_is_quantized(x->type); }

static bool matmul_is_repeatable(const tn_tensor *t) { return (t->flags & TN_FLAG_REPEATABLE) != 0; }

size_t mul_mat_scratch(const device_description &device, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (gemv_supports(device, t)) return gemv_scratch(t);
    if (tiles_support(device, t)) return tiles_scratch(device, t);
    if (matmul_is_repeatable(t)) return 0;
    size_t bytes = BLAS_WORKSPACE;
    if (blas_type(x) != TN_F32) bytes += round_up_256((size_t)y->ne[0] * (size_t)y->ne[1] * 2);
    if (needs_pieces(x)) bytes += round_up_256((size_t)piece_rows(x) * (size_t)x->ne[0] * 2);
    return bytes;
}

// Converts weights to f16: eight per thread, gridDim.y rows.
template <typename R> __global__ static void to_half_kernel(const char *x, __half *y, int64_t row_bytes, int n0) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= n0) return;
    float v[8];
    R::eight(x + (int64_t)blockIdx.y * row_bytes, i, v, n0);
    __half2 h[4];
    for (int k = 0; k < 4; k++) h[k] = __floats2half2_rn(v[2 * k], v[2 * k + 1]);
    *(uint4 *)(y + (int64_t)blockIdx.y * n0 + i) = *(uint4 *)h;
}

static tn_status weights_to_half(const compilation &c, int type, const char *x, int64_t row_bytes, int64_t n0,
                                 int64_t rows, __half *y) {
    for (int64_t row = 0; row < rows; row += MOST_ROWS) {
        dim3 grid(blocks_for(n0 / 8, 256), (unsigned)(rows - row < MOST_ROWS ? rows - row : MOST_ROWS));
        switch (type) {
#define CASE(TYPE, reader)                                                                                           \
    case TYPE:                                                                                                       \
        TN_TRY(add_ordered(c, kernel_called("to_half_kernel", #reader), to_half_kernel<reader>, grid, 256, 0,        \
                           x + row * row_bytes, y + row * n0, row_bytes, (int)n0));                                  \
        break;
            FOR_EVERY_BLOCK_READER(CASE)
#undef CASE
        default: return tn_fail(TN_E_UNSUPPORTED, "mul_mat with weights of kind %d", type);
        }
    }
    return TN_OK;
}

// Converts activations, rows of f32 with any stride, to dense f16 or bf16, four per thread. f16 saturates instead of
// overflowing.
__global__ static void narrow_kernel(const char *x, uint2 *y, int64_t row_bytes, int n0, bool bf16) {
    grid_follow();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n0) return;
    const float *from = (const float *)(x + (int64_t)blockIdx.y * row_bytes) + i;
    float4 v = (uintptr_t)from % 16 == 0 ? *(const float4 *)from : make_float4(from[0], from[1], from[2], from[3]);
    y[((int64_t)blockIdx.y * n0 + i) / 4] = make_uint2(tile_pair(v.x, v.y, bf16), tile_pair(v.z, v.w, bf16));
}

tn_status compile_narrow(const compilation &c, const tn_tensor *y, const char *data, int64_t row_bytes, int64_t k,
                         int64_t rows, int type, void *to) {
    compilation convert = c;
    convert.converts = y;
    for (int64_t row = 0; row < rows; row += MOST_ROWS) {
        dim3 grid(blocks_for(k / 4, 256), (unsigned)(rows - row < MOST_ROWS ? rows - row : MOST_ROWS));
        TN_TRY(add_early(convert, KERNEL(narrow_kernel), grid, 256, 0, data + row * row_bytes,
                         (uint2 *)to + row * k / 4, row_bytes, (int)k, type == TN_BF16));
    }
    return TN_OK;
}

// One matrix of x with the matching rows of y.
static tn_status compile_matrix(const compilation &c, const tn_tensor *x, const char *xd, const tn_tensor *y,
                                const char *yd, float *out, int64_t out_row, const float *residual = NULL,
                                int64_t residual_row = 0) {
    int type = blas_type(x);
    int64_t k = x->ne[0], m = x->ne[1], n = y->ne[1], y_row = (int64_t)y->nb[1];
    char *scratch = c.scratch + BLAS_WORKSPACE;
    blas_matmul p = {};
    p.type = type;
    p.a = xd;
    p.lda = (int64_t)x->nb[1] / (type == TN_F32 ? 4 : 2);
    p.b = yd;
    p.ldb = y_row / 4;
    p.c = out;
    p.ldc = out_row;
    p.residual = residual;
    p.ldr = residual_row;
    p.m = m;
    p.n = n;
    p.k = k;
    p.workspace = c.scratch;
    p.workspace_bytes = BLAS_WORKSPACE;
    if (type != TN_F32) {
        // Consecutive matrix multiplications often share their activations, which are then converted once.
        converted_activations &last = *c.converted;
        if (last.data != yd || last.type != type || last.y != y || last.ids || last.order != ROW_ORDER) {
            TN_TRY(compile_narrow(c, y, yd, y_row, k, n, type, scratch));
            last = {yd, type, y};
        }
        p.b = scratch;
        p.ldb = k;
        scratch += round_up_256((size_t)(k * n) * 2);
    } else {
        *c.converted = {};
    }
    if (!needs_pieces(x)) return add_matmul(c, p);
    compilation convert = c;
    convert.converts = x;
    int64_t step = piece_rows(x), x_row = device_layout_of(x).nb[1];
    for (int64_t row = 0; row < m; row += step) {
        int64_t rows = m - row < step ? m - row : step;
        TN_TRY(weights_to_half(convert, kind_of(x), xd + row * x_row, x_row, k, rows, (__half *)scratch));
        p.a = scratch;
        p.lda = k;
        p.c = out + row;
        p.residual = residual ? residual + row : NULL;
        p.m = rows;
        TN_TRY(add_matmul(c, p));
    }
    return TN_OK;
}

bool blas_takes(const device_description &d, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    return !matmul_is_repeatable(t) && !gemv_supports(d, t) && !tiles_support(d, t) && x->ne[2] == 1 &&
           x->ne[3] == 1 && y->ne[2] == 1 && y->ne[3] == 1;
}
tn_status compile_blas_add(const compilation &c, const tn_tensor *t, const float *residual, int64_t residual_row,
                           float *out, int64_t out_row) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    return compile_matrix(c, x, device_layout_of(x).data, y, (const char *)y->data, out, out_row, residual,
                          residual_row);
}
void *blas_activations(const compilation &c, const tn_tensor *t, int *type) {
    *type = blas_type(t->src[0]);
    return *type == TN_F32 ? NULL : c.scratch + BLAS_WORKSPACE;
}

// ---- Repeatable, as floats ----

// For f32 weights and precise matmuls of a repeatable session: a warp computes a row's dot products with eight
// columns, each in the same order whatever the number of columns. `aligned`: columns are 16-byte aligned.
enum { FLOAT_WARPS = 4, FLOAT_COLUMNS = 8 };
template <typename R>
__global__ static void __launch_bounds__(FLOAT_WARPS * 32)
    repeatable_float_kernel(const char *x, const char *y, float *z, int64_t x_row, int64_t y_row, int64_t z_row,
                            int k, int rows, int columns, bool aligned) {
    grid_follow();
    const int row = (int)blockIdx.x * FLOAT_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    for (int first = (int)blockIdx.y * FLOAT_COLUMNS; first < columns; first += (int)gridDim.y * FLOAT_COLUMNS) {
        float sum[FLOAT_COLUMNS] = {};
        for (int i = lane * 8; i < k; i += 256) {
            float v[8];
            R::eight(x + row * x_row, i, v, k);
#pragma unroll
            for (int c = 0; c < FLOAT_COLUMNS; c++) {
                const float *from = (const float *)(y + min(first + c, columns - 1) * y_row) + i;
                float4 p, q;
                if (aligned) {
                    p = *(const float4 *)from;
                    q = *(const float4 *)(from + 4);
                } else {
                    p = make_float4(from[0], from[1], from[2], from[3]);
                    q = make_float4(from[4], from[5], from[6], from[7]);
                }
                sum[c] = __fmaf_rn(v[0], p.x, sum[c]);
                sum[c] = __fmaf_rn(v[1], p.y, sum[c]);
                sum[c] = __fmaf_rn(v[2], p.z, sum[c]);
                sum[c] = __fmaf_rn(v[3], p.w, sum[c]);
                sum[c] = __fmaf_rn(v[4], q.x, sum[c]);
                sum[c] = __fmaf_rn(v[5], q.y, sum[c]);
                sum[c] = __fmaf_rn(v[6], q.z, sum[c]);
                sum[c] = __fmaf_rn(v[7], q.w, sum[c]);
            }
        }
#pragma unroll
        for (int c = 0; c < FLOAT_COLUMNS; c++) {
            const float s = warp_sum(sum[c]);
            if (lane == 0 && first + c < columns) z[(first + c) * z_row + row] = s;
        }
    }
}
static tn_status compile_repeatable_float(const compilation &c, const tn_tensor *t, const char *xd, int64_t x_row,
                                          const char *yd, float *out) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    const bool aligned = y->nb[1] % 16 == 0 && (uintptr_t)yd % 16 == 0;
    const unsigned groups = blocks_for(y->ne[1], FLOAT_COLUMNS);
    dim3 grid(blocks_for(x->ne[1], FLOAT_WARPS), groups < MOST_ROWS ? groups : MOST_ROWS);
    switch (kind_of(x)) {
#define CASE(KIND, reader)                                                                                           \
    case KIND:                                                                                                       \
        return add_early(c, kernel_called("repeatable_float_kernel", #reader), repeatable_float_kernel<reader>,      \
                         grid, FLOAT_WARPS * 32, 0, xd, yd, out, x_row, (int64_t)y->nb[1], (int64_t)t->nb[1] / 4,    \
                         (int)x->ne[0], (int)x->ne[1], (int)y->ne[1], aligned);
        FOR_EVERY_READER(CASE)
#undef CASE
    default: return tn_fail(TN_E_UNSUPPORTED, "mul_mat with %s", tn_type_name(x->type));
    }
}

tn_status compile_mul_mat(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (gemv_supports(*c.device, t)) {
        *c.converted = {};
        return compile_gemv(c, t);
    }
    if (tiles_support(*c.device, t)) return compile_tiles(c, t);
    int64_t r2 = y->ne[2] / x->ne[2], r3 = y->ne[3] / x->ne[3];
    const device_layout l = device_layout_of(x);
    for (int64_t i3 = 0; i3 < y->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < y->ne[2]; i2++) {
            const char *xd = l.data + i2 / r2 * l.nb[2] + i3 / r3 * l.nb[3];
            const char *yd = (const char *)y->data + i2 * (int64_t)y->nb[2] + i3 * (int64_t)y->nb[3];
            float *out = (float *)((char *)t->data + i2 * (int64_t)t->nb[2] + i3 * (int64_t)t->nb[3]);
            if (matmul_is_repeatable(t))
                TN_TRY(compile_repeatable_float(c, t, xd, l.nb[1], yd, out));
            else
                TN_TRY(compile_matrix(c, x, xd, y, yd, out, (int64_t)t->nb[1] / 4));
        }
    }
    return TN_OK;
}
