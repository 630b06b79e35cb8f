// Element-wise ops: unary, binary with broadcasting, gated activations, copies with conversion.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/exact/narrow.cuh"
#include "backend/cuda/kernels/unary.cuh"

// Byte offset of element i (in row-major order of `s`) under the strides of `s`.
__device__ static int64_t offset_of(const shape4 &s, int64_t i) {
    int64_t i0 = i % s.ne[0], r = i / s.ne[0], i1 = r % s.ne[1];
    r /= s.ne[1];
    return i0 * s.nb[0] + i1 * s.nb[1] + r % s.ne[2] * s.nb[2] + r / s.ne[2] * s.nb[3];
}

// Contiguous f32 operands of the same shape are processed without strides, four elements per thread.
static bool is_dense(const tn_tensor *t, int64_t n) {
    return t->type == TN_F32 && tn_is_contiguous(t) && tn_nelements(t) == n && n % 4 == 0 &&
           (uintptr_t)t->data % 16 == 0;
}
template <typename F>
__global__ static void dense_kernel(const float4 *x, const float4 *y, float4 *z, int64_t n, F f) {
    grid_follow();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 a = x[i], b = y[i];
    z[i] = make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}
struct by_binary {
    static constexpr const char *NAME = "binary";
    int op;
    __device__ float operator()(float a, float b) const {
        return op == TN_OP_ADD ? a + b : op == TN_OP_SUB ? a - b : op == TN_OP_MUL ? a * b : a / b;
    }
};
struct by_gate {
    static constexpr const char *NAME = "gate";
    int op;
    tn_op_params p;
    __device__ float operator()(float a, float b) const { return gated(op, a, b, p); }
};
struct by_unary {
    static constexpr const char *NAME = "unary";
    int op;
    tn_op_params p;
    __device__ float operator()(float a, float) const { return unary(op, a, p); }
};
template <typename F>
static tn_status compile_dense(const compilation &c, const void *x, const void *y, const tn_tensor *t, F f) {
    int64_t n = tn_nelements(t) / 4;
    return add_early(c, kernel_called("dense_kernel", F::NAME), dense_kernel<F>, dim3(blocks_for(n, 256)), 256, 0,
                     (const float4 *)x, (const float4 *)y, (float4 *)t->data, n, f);
}

__global__ static void unary_kernel(const char *x, char *y, shape4 xs, shape4 ys, int type, int op, tn_op_params p,
                                    int64_t n) {
    grid_follow();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store_float(y + offset_of(ys, i), type, unary(op, load_as_float(x + offset_of(xs, i), type), p));
}

tn_status compile_unary(const compilation &c, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    if (is_dense(t, n) && is_dense(t->src[0], n))
        return compile_dense(c, t->src[0]->data, t->src[0]->data, t, by_unary{t->op, t->params});
    return add_early(c, KERNEL(unary_kernel), dim3(blocks_for(n, 256)), 256, 0, (const char *)t->src[0]->data,
                     (char *)t->data, shape4_of(t->src[0]), shape4_of(t), t->type, t->op, t->params, n);
}

__global__ static void binary_kernel(const char *x, const char *y, char *z, shape4 xs, shape4 ys, shape4 zs, int xt,
                                     int yt, int op, int64_t n) {
    grid_follow();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t i0 = i % zs.ne[0], r = i / zs.ne[0], i1 = r % zs.ne[1];
    r /= zs.ne[1];
    int64_t i2 = r % zs.ne[2], i3 = r / zs.ne[2];
    float a = load_as_float(x + i0 * xs.nb[0] + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3], xt);
    float b = load_as_float(y + i0 % ys.ne[0] * ys.nb[0] + i1 % ys.ne[1] * ys.nb[1] + i2 % ys.ne[2] * ys.nb[2] +
                                i3 % ys.ne[3] * ys.nb[3],
                            yt);
    float c = op == TN_OP_ADD ? a + b : op == TN_OP_SUB ? a - b : op == TN_OP_MUL ? a * b : a / b;
    store_float(z + i0 * zs.nb[0] + i1 * zs.nb[1] + i2 * zs.nb[2] + i3 * zs.nb[3], xt, c);
}

tn_status compile_binary(const compilation &c, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (is_dense(t, n) && is_dense(x, n) && is_dense(y, n))
        return compile_dense(c, x->data, y->data, t, by_binary{t->op});
    return add_early(c, KERNEL(binary_kernel), dim3(blocks_for(n, 256)), 256, 0, (const char *)x->data,
                     (const char *)y->data, (char *)t->data, shape4_of(x), shape4_of(y), shape4_of(t), x->type,
                     y->type, t->op, n);
}

__global__ static void glu_kernel(const char *gate, const char *up, char *y, shape4 gs, shape4 us, shape4 ys,
                                  int type, int op, tn_op_params p, int64_t n) {
    grid_follow();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t i0 = i % ys.ne[0], r = i / ys.ne[0], i1 = r % ys.ne[1];
    r /= ys.ne[1];
    int64_t i2 = r % ys.ne[2], i3 = r / ys.ne[2];
    float g = load_as_float(gate + i0 * gs.nb[0] + i1 * gs.nb[1] + i2 * gs.nb[2] + i3 * gs.nb[3], type);
    float u = load_as_float(up + i0 * us.nb[0] + i1 * us.nb[1] + i2 * us.nb[2] + i3 * us.nb[3], type);
    float z = gated(op, g, u, p);
    store_float(y + i0 * ys.nb[0] + i1 * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3], type, z);
}

// Dense rows of both operands and the result, four elements per thread; the result as f16 or bf16 as well. A row has
// n4 times four elements, and zeros up to narrow.columns.
__global__ static void narrow_glu_kernel(const float4 *gate, const float4 *up, float4 *z, int n4, int op,
                                         tn_op_params p, narrow_rows narrow) {
    grid_follow();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (4 * i >= narrow.columns) return;
    float4 v = make_float4(0, 0, 0, 0);
    if (i < n4) {
        const int64_t at = (int64_t)blockIdx.y * n4 + i;
        const float4 a = gate[at], b = up[at];
        v = make_float4(gated(op, a.x, b.x, p), gated(op, a.y, b.y, p), gated(op, a.z, b.z, p),
                        gated(op, a.w, b.w, p));
        z[at] = v;
    }
    store_narrow(narrow, blockIdx.y, 4 * i, v);
}

tn_status compile_glu(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *second = t->src[1];
    const char *gate = (const char *)x->data, *up;
    shape4 gs = shape4_of(x), us = shape4_of(second ? second : x);
    if (second) {
        up = (const char *)second->data;
        if (t->params.glu.swapped) {
            const char *other = gate;
            gate = up;
            up = other;
            gs = us;
            us = shape4_of(x);
        }
    } else {
        size_t half = (size_t)t->ne[0] * x->nb[0];
        up = gate + (t->params.glu.swapped ? 0 : half);
        gate += t->params.glu.swapped ? half : 0;
    }
    int64_t n = tn_nelements(t);
    if (second && is_dense(t, n) && is_dense(x, n) && is_dense(second, n)) {
        if (c.narrow && c.narrow->to && t->ne[0] % 4 == 0 && t->ne[1] <= MOST_ROWS) {
            const narrow_rows narrow = narrow_rows_of(c, t->ne[0]);
            return add_early(c, KERNEL(narrow_glu_kernel),
                             dim3(blocks_for(narrow.columns / 4, 256), (unsigned)t->ne[1]), 256, 0,
                             (const float4 *)gate, (const float4 *)up, (float4 *)t->data, (int)(t->ne[0] / 4), t->op,
                             t->params, narrow);
        }
        return compile_dense(c, gate, up, t, by_gate{t->op, t->params});
    }
    return add_early(c, KERNEL(glu_kernel), dim3(blocks_for(n, 256)), 256, 0, gate, up, (char *)t->data, gs, us,
                     shape4_of(t), t->type, t->op, t->params, n);
}

// ---- Copies ----

// Copies element i of x to element i of y, both in row-major order, with any strides.
__global__ static void copy_kernel(const char *x, char *y, shape4 xs, shape4 ys, int xt, int yt, int size,
                                   int64_t n) {
    grid_follow();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const char *from = x + offset_of(xs, i);
    char *to = y + offset_of(ys, i);
    if (xt != yt) {
        store_float(to, yt, load_as_float(from, xt));
    } else {
        if (size == 4)
            *(uint32_t *)to = *(const uint32_t *)from;
        else if (size == 2)
            *(uint16_t *)to = *(const uint16_t *)from;
        else if (size == 8)
            *(uint64_t *)to = *(const uint64_t *)from;
        else
            *to = *from;
    }
}

tn_status compile_copy(const compilation &c, const tn_tensor *from, const tn_tensor *to) {
    if (from->type == to->type && tn_is_contiguous(from) && tn_is_contiguous(to))
        return add_copy(c, to->data, from->data, tn_nbytes(from));
    int64_t n = tn_nelements(to);
    return add_early(c, KERNEL(copy_kernel), dim3(blocks_for(n, 256)), 256, 0, (const char *)from->data,
                     (char *)to->data, shape4_of(from), shape4_of(to), from->type, to->type,
                     (int)tn_type_bytes(to->type), n);
}

__global__ static void concat_kernel(const char *x, const char *y, char *z, shape4 xs, shape4 ys, shape4 zs, int dim,
                                     int size, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t k[4], r = i;
    for (int d = 0; d < 4; d++) {
        k[d] = r % zs.ne[d];
        r /= zs.ne[d];
    }
    char *to = z + k[0] * zs.nb[0] + k[1] * zs.nb[1] + k[2] * zs.nb[2] + k[3] * zs.nb[3];
    bool second = k[dim] >= xs.ne[dim];
    const shape4 &s = second ? ys : xs;
    if (second) k[dim] -= xs.ne[dim];
    const char *from = (second ? y : x) + k[0] * s.nb[0] + k[1] * s.nb[1] + k[2] * s.nb[2] + k[3] * s.nb[3];
    for (int b = 0; b < size; b++) to[b] = from[b];
}
tn_status compile_concat(const compilation &c, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    return add_ordered(c, KERNEL(concat_kernel), dim3(blocks_for(n, 256)), 256, 0, (const char *)t->src[0]->data,
                       (const char *)t->src[1]->data, (char *)t->data, shape4_of(t->src[0]), shape4_of(t->src[1]),
                       shape4_of(t), t->params.concat.dim, (int)tn_type_bytes(t->type), n);
}

__global__ static void repeat_kernel(const char *x, char *z, shape4 xs, shape4 zs, int size, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t r = i, from = 0, to = 0;
    for (int d = 0; d < 4; d++) {
        int64_t k = r % zs.ne[d];
        r /= zs.ne[d];
        to += k * zs.nb[d];
        from += k % xs.ne[d] * xs.nb[d];
    }
    for (int b = 0; b < size; b++) z[to + b] = x[from + b];
}
tn_status compile_repeat(const compilation &c, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    return add_ordered(c, KERNEL(repeat_kernel), dim3(blocks_for(n, 256)), 256, 0, (const char *)t->src[0]->data,
                       (char *)t->data, shape4_of(t->src[0]), shape4_of(t), (int)tn_type_bytes(t->type), n);
}

__global__ static void arange_kernel(float *z, float start, float step, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = (float)((double)start + (double)step * (double)i);
}
tn_status compile_arange(const compilation &c, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    return add_ordered(c, KERNEL(arange_kernel), dim3(blocks_for(n, 256)), 256, 0, (float *)t->data,
                       t->params.arange.start, t->params.arange.step, n);
}

// acc and set: y is added to a region of x, or written over it. compile_region() copies x before, unless the result
// has the memory of x.
__global__ static void region_kernel(char *x, const char *y, shape4 ys, int64_t nb1, int64_t nb2, int64_t nb3,
                                     bool add, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t i0 = i % ys.ne[0], r = i / ys.ne[0], i1 = r % ys.ne[1];
    r /= ys.ne[1];
    int64_t i2 = r % ys.ne[2], i3 = r / ys.ne[2];
    float *to = (float *)(x + i0 * 4 + i1 * nb1 + i2 * nb2 + i3 * nb3);
    float value = *(const float *)(y + i0 * ys.nb[0] + i1 * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]);
    *to = add ? *to + value : value;
}
tn_status compile_region(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (x->data != t->data) TN_TRY(add_copy(c, t->data, x->data, tn_nbytes(x)));
    int64_t n = tn_nelements(y);
    if (!n) return TN_OK;
    return add_ordered(c, KERNEL(region_kernel), dim3(blocks_for(n, 256)), 256, 0,
                       (char *)t->data + t->params.region.offset, (const char *)y->data, shape4_of(y),
                       (int64_t)t->params.region.nb1, (int64_t)t->params.region.nb2, (int64_t)t->params.region.nb3,
                       t->op == TN_OP_ACC, n);
}
