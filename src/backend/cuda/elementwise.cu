// Element-wise ops: unary, binary with broadcasting, gated activations, copies with conversion.
#include "backend/cuda/cuda.cuh"

__device__ static float unary(int op, float x, tn_op_params p) {
    switch (op) {
    case TN_OP_SCALE: return p.scale.scale * x + p.scale.bias;
    case TN_OP_SQR: return x * x;
    case TN_OP_SQRT: return sqrtf(x);
    case TN_OP_LOG: return logf(x);
    case TN_OP_EXP: return expf(x);
    case TN_OP_SIN: return sinf(x);
    case TN_OP_COS: return cosf(x);
    case TN_OP_CLAMP: return x < p.clamp.min ? p.clamp.min : x > p.clamp.max ? p.clamp.max : x; // NaN stays
    case TN_OP_NEG: return -x;
    case TN_OP_ABS: return fabsf(x);
    case TN_OP_SGN: return x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x;
    case TN_OP_STEP: return x > 0 ? 1.0f : 0.0f;
    case TN_OP_TANH: return tanhf(x);
    case TN_OP_ELU: return x > 0 ? x : expm1f(x);
    case TN_OP_RELU: return x > 0 ? x : x != x ? x : 0.0f;
    case TN_OP_LEAKY_RELU: return x > 0 ? x : x * p.leaky_relu.slope;
    case TN_OP_SIGMOID: return 1 / (1 + expf(-x));
    case TN_OP_GELU:
    case TN_OP_GEGLU: return 0.5f * x * (1 + tanhf(0.79788456080286535588f * x * (1 + 0.044715f * x * x)));
    case TN_OP_GELU_QUICK:
    case TN_OP_GEGLU_QUICK: return x / (1 + expf(-1.702f * x));
    case TN_OP_GELU_ERF:
    case TN_OP_GEGLU_ERF: return 0.5f * x * (1 + erff(x * 0.70710678118654752440f));
    case TN_OP_SILU:
    case TN_OP_SWIGLU: return x / (1 + expf(-x));
    case TN_OP_REGLU: return x > 0 ? x : x != x ? x : 0.0f;
    case TN_OP_HARDSWISH: return x * fminf(1, fmaxf(0, (x + 3) / 6));
    case TN_OP_HARDSIGMOID: return fminf(1, fmaxf(0, (x + 3) / 6));
    case TN_OP_SOFTPLUS: return x > 20 ? x : log1pf(expf(x));
    default: return x;
    }
}

// Byte offset of element i (in row-major order of `s`) under the strides of `s`.
__device__ static int64_t offset_of(const shape4 &s, int64_t i) {
    int64_t i0 = i % s.ne[0], r = i / s.ne[0], i1 = r % s.ne[1];
    r /= s.ne[1];
    return i0 * s.nb[0] + i1 * s.nb[1] + r % s.ne[2] * s.nb[2] + r / s.ne[2] * s.nb[3];
}

__global__ static void unary_kernel(const char *x, char *y, shape4 xs, shape4 ys, int type, int op, tn_op_params p,
                                    int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store_float(y + offset_of(ys, i), type, unary(op, load_as_float(x + offset_of(xs, i), type), p));
}

tn_status launch_unary(const launch &l, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    unary_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>((const char *)t->src[0]->data, (char *)t->data,
                                                           shape_of(t->src[0]), shape_of(t), t->type, t->op,
                                                           t->params, n);
    return cuda_check(cudaGetLastError(), tn_op_name(t->op));
}

__global__ static void binary_kernel(const char *x, const char *y, char *z, shape4 xs, shape4 ys, shape4 zs, int xt,
                                     int yt, int op, int64_t n) {
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

tn_status launch_binary(const launch &l, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    const tn_tensor *x = t->src[0], *y = t->src[1];
    binary_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>((const char *)x->data, (const char *)y->data,
                                                            (char *)t->data, shape_of(x), shape_of(y), shape_of(t),
                                                            x->type, y->type, t->op, n);
    return cuda_check(cudaGetLastError(), tn_op_name(t->op));
}

__global__ static void glu_kernel(const char *gate, const char *up, char *y, shape4 gs, shape4 us, shape4 ys,
                                  int type, int op, tn_op_params p, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int64_t i0 = i % ys.ne[0], r = i / ys.ne[0], i1 = r % ys.ne[1];
    r /= ys.ne[1];
    int64_t i2 = r % ys.ne[2], i3 = r / ys.ne[2];
    float g = load_as_float(gate + i0 * gs.nb[0] + i1 * gs.nb[1] + i2 * gs.nb[2] + i3 * gs.nb[3], type);
    float u = load_as_float(up + i0 * us.nb[0] + i1 * us.nb[1] + i2 * us.nb[2] + i3 * us.nb[3], type);
    float z;
    if (op == TN_OP_SWIGLU_OAI) {
        g = fminf(g, p.glu.limit);
        u = fmaxf(fminf(u, p.glu.limit), -p.glu.limit);
        z = g / (1 + expf(-p.glu.alpha * g)) * (u + 1);
    } else {
        z = unary(op, g, p) * u;
    }
    store_float(y + i0 * ys.nb[0] + i1 * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3], type, z);
}

tn_status launch_glu(const launch &l, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *second = t->src[1];
    const char *gate = (const char *)x->data, *up;
    shape4 gs = shape_of(x), us = shape_of(second ? second : x);
    if (second) {
        up = (const char *)second->data;
        if (t->params.glu.swapped) {
            const char *other = gate;
            gate = up;
            up = other;
            gs = us;
            us = shape_of(x);
        }
    } else {
        size_t half = (size_t)t->ne[0] * x->nb[0];
        up = gate + (t->params.glu.swapped ? 0 : half);
        gate += t->params.glu.swapped ? half : 0;
    }
    int64_t n = tn_nelements(t);
    glu_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>(gate, up, (char *)t->data, gs, us, shape_of(t), t->type,
                                                         t->op, t->params, n);
    return cuda_check(cudaGetLastError(), tn_op_name(t->op));
}

// ---- Copies
// ------------------------------------------------------------------------------------------------------------

// Element i of `from` goes to element i of `to`, both in row-major order, whatever their strides.
__global__ static void copy_kernel(const char *x, char *y, shape4 xs, shape4 ys, int xt, int yt, int size,
                                   int64_t n) {
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

tn_status launch_copy(const launch &l, const tn_tensor *from, const tn_tensor *to) {
    if (from->type == to->type && tn_is_contiguous(from) && tn_is_contiguous(to))
        return cuda_check(cudaMemcpyAsync(to->data, from->data, tn_nbytes(from), cudaMemcpyDeviceToDevice, l.stream),
                          "copy");
    int64_t n = tn_nelements(to);
    copy_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>((const char *)from->data, (char *)to->data, shape_of(from),
                                                          shape_of(to), from->type, to->type,
                                                          (int)tn_type_bytes(to->type), n);
    return cuda_check(cudaGetLastError(), "copy");
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
tn_status launch_concat(const launch &l, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    concat_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>(
        (const char *)t->src[0]->data, (const char *)t->src[1]->data, (char *)t->data, shape_of(t->src[0]),
        shape_of(t->src[1]), shape_of(t), t->params.concat.dim, (int)tn_type_bytes(t->type), n);
    return cuda_check(cudaGetLastError(), "concat");
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
tn_status launch_repeat(const launch &l, const tn_tensor *t) {
    int64_t n = tn_nelements(t);
    repeat_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>((const char *)t->src[0]->data, (char *)t->data,
                                                            shape_of(t->src[0]), shape_of(t),
                                                            (int)tn_type_bytes(t->type), n);
    return cuda_check(cudaGetLastError(), "repeat");
}

// acc and set: x is copied unless the result took its place, then y is added to or written over a region.
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
tn_status launch_region(const launch &l, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    if (x->data != t->data)
        CUDA_TRY(cudaMemcpyAsync(t->data, x->data, tn_nbytes(x), cudaMemcpyDeviceToDevice, l.stream));
    int64_t n = tn_nelements(y);
    if (!n) return TN_OK;
    region_kernel<<<blocks_for(n, 256), 256, 0, l.stream>>>(
        (char *)t->data + t->params.region.offset, (const char *)y->data, shape_of(y), (int64_t)t->params.region.nb1,
        (int64_t)t->params.region.nb2, (int64_t)t->params.region.nb3, t->op == TN_OP_ACC, n);
    return cuda_check(cudaGetLastError(), tn_op_name(t->op));
}
