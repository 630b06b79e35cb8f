// Several ops on a few elements in one launch: a block computes one op after the other.
#include "backend/cuda/kernels/small/small_ops.cuh"

#include "backend/cuda/kernels/unary.cuh"

enum { THREADS = 1024 };
enum small_kind { SMALL_UNARY, SMALL_BINARY, SMALL_GATED, SMALL_NORM, SMALL_COPY };

struct small_view {
    char *at;
    int ne[3]; // the sizes that an index is reduced by: smaller ones are repeated
    int nb[3];
};
struct small_op {
    small_view x, y, z; // z = op(x, y)
    int kind, op, n;    // n: elements of z
    bool dense;         // all are contiguous and have z's shape
    tn_op_params params;
};
struct small_ops {
    small_op ops[SMALL_OPS];
    int n;
};

__device__ static inline float *element_of(const small_view &v, int i0, int i1, int i2) {
    return (float *)(v.at + (int64_t)(i0 % v.ne[0]) * v.nb[0] + (int64_t)(i1 % v.ne[1]) * v.nb[1] +
                     (int64_t)(i2 % v.ne[2]) * v.nb[2]);
}
__device__ static inline float elementwise(const small_op &o, float a, float b) {
    switch (o.kind) {
    case SMALL_UNARY: return unary(o.op, a, o.params);
    case SMALL_GATED: return gated(o.op, a, b, o.params);
    case SMALL_BINARY:
        return o.op == TN_OP_ADD ? a + b : o.op == TN_OP_SUB ? a - b : o.op == TN_OP_MUL ? a * b : a / b;
    default: return a;
    }
}
// RMS and L2 norms: a row by a warp; with few long rows, by the whole block.
__device__ static void norm_rows(const small_op &o, float *shared) {
    const int rows = o.n / o.z.ne[0], n = o.z.ne[0], lane = threadIdx.x % 32;
    const bool whole = rows < THREADS / 128; // uniform over the block
    const int first = whole ? 0 : (int)threadIdx.x / 32, step = whole ? 1 : THREADS / 32,
              from = whole ? (int)threadIdx.x : lane, by = whole ? THREADS : 32;
    for (int row = first; row < rows; row += step) {
        const int i1 = row % o.z.ne[1], i2 = row / o.z.ne[1];
        const float *x = element_of(o.x, 0, i1, i2), *w = o.y.at ? element_of(o.y, 0, i1, i2) : NULL;
        float *z = element_of(o.z, 0, i1, i2), sum = 0;
        for (int i = from; i < n; i += by) sum += x[i] * x[i];
        sum = whole ? block_reduce<false>(sum, shared) : warp_sum(sum);
        const float eps = o.params.norm.eps,
                    scale = o.op == TN_OP_L2_NORM ? 1 / fmaxf(sqrtf(sum), eps) : rsqrtf(sum / (float)n + eps);
        for (int i = from; i < n; i += by) z[i] = w ? x[i] * scale * w[i] : x[i] * scale;
    }
}

__global__ static void __launch_bounds__(THREADS) small_ops_kernel(const __grid_constant__ small_ops all) {
    __shared__ float shared[32];
    __shared__ small_op
        ops[SMALL_OPS]; // reading parameters takes long at first: it overlaps with the previous kernel
    static_assert(sizeof(small_op) % 4 == 0, "copied by words");
    grid_next();
    for (int i = threadIdx.x; i < all.n * (int)(sizeof(small_op) / 4); i += THREADS)
        ((int *)ops)[i] = ((const int *)all.ops)[i];
    grid_wait();
    for (int k = 0; k < all.n; k++) {
        const small_op &o = ops[k];
        __syncthreads(); // the results of the ops before
        if (o.kind == SMALL_NORM) {
            norm_rows(o, shared);
            continue;
        }
        if (o.dense) {
            const float *x = (const float *)o.x.at, *y = (const float *)o.y.at;
            float *z = (float *)o.z.at;
            for (int i = threadIdx.x; i < o.n; i += THREADS) z[i] = elementwise(o, x[i], y ? y[i] : 0);
            continue;
        }
        for (int i = threadIdx.x; i < o.n; i += THREADS) {
            const int i0 = i % o.z.ne[0], r = i / o.z.ne[0], i1 = r % o.z.ne[1], i2 = r / o.z.ne[1];
            const float a = *element_of(o.x, i0, i1, i2), b = o.y.at ? *element_of(o.y, i0, i1, i2) : 0;
            *element_of(o.z, i0, i1, i2) = elementwise(o, a, b);
        }
    }
}

// ---- Compiling ----

static bool is_small_tensor(const tn_tensor *t) {
    if (t->type != TN_F32 || t->ne[3] != 1 || (uintptr_t)t->data % 4) return false;
    for (int d = 0; d < 3; d++)
        if (t->nb[d] % 4 || (int64_t)t->nb[d] * t->ne[d] > INT32_MAX) return false;
    return true;
}
static bool kind_of_op(const tn_tensor *t, int *kind) {
    switch (tn_op_get_family(t->op)) {
    case TN_FAMILY_GLU: *kind = SMALL_GATED; return t->src[1] != NULL;
    default: break;
    }
    switch (t->op) {
    case TN_OP_ADD:
    case TN_OP_SUB:
    case TN_OP_MUL:
    case TN_OP_DIV: *kind = SMALL_BINARY; return true;
    case TN_OP_SCALE:
    case TN_OP_EXP:
    case TN_OP_NEG:
    case TN_OP_TANH:
    case TN_OP_SIGMOID:
    case TN_OP_SILU:
    case TN_OP_SOFTPLUS:
    case TN_OP_SQR:
    case TN_OP_RELU: *kind = SMALL_UNARY; return true;
    case TN_OP_RMS_NORM:
    case TN_OP_L2_NORM: *kind = SMALL_NORM; return !t->src[2] && t->src[0]->nb[0] == 4 && t->nb[0] == 4;
    case TN_OP_CONT: *kind = SMALL_COPY; return true;
    default: return false;
    }
}
// An element may be written over the one it is computed from; other overlaps would need the order of the elements.
static bool safe_in_place(const tn_tensor *t, const tn_tensor *x) {
    const char *a = (const char *)t->data, *b = (const char *)x->data;
    if (!(a < b + tn_nbytes(x) && b < a + tn_nbytes(t))) return true;
    return a == b && tn_same_shape(t, x) && memcmp(t->nb, x->nb, sizeof t->nb) == 0;
}
bool is_small_op(const tn_tensor *t) {
    int kind;
    if (t->flags & TN_FLAG_REPEATABLE || !kind_of_op(t, &kind) || tn_nelements(t) > SMALL_ELEMENTS ||
        tn_nelements(t) < 1 || !is_small_tensor(t) || !is_small_tensor(t->src[0]) || !safe_in_place(t, t->src[0]) ||
        (kind == SMALL_COPY ? tn_nelements(t->src[0]) != tn_nelements(t) : !tn_same_shape(t, t->src[0])))
        return false;
    const tn_tensor *y = t->src[1];
    if (kind == SMALL_COPY && !tn_same_shape(t, t->src[0])) return false;
    if (kind == SMALL_NORM && y && y->nb[0] != 4) return false;
    return !y || kind == SMALL_UNARY || kind == SMALL_COPY || (is_small_tensor(y) && safe_in_place(t, y));
}
static small_view small_view_of(const tn_tensor *t) {
    small_view v = {(char *)t->data, {}, {}};
    for (int d = 0; d < 3; d++) {
        v.ne[d] = (int)t->ne[d];
        v.nb[d] = (int)t->nb[d];
    }
    return v;
}
tn_status compile_small_ops(const compilation &c, const tn_tensor *const *nodes, int n) {
    static_assert(sizeof(small_ops) <= 4000, "kernel parameters have at most 4 KiB");
    small_ops all = {};
    for (; all.n < n; all.n++) {
        const tn_tensor *t = nodes[all.n];
        small_op &o = all.ops[all.n];
        kind_of_op(t, &o.kind);
        o.op = t->op;
        o.n = (int)tn_nelements(t);
        o.params = t->params;
        o.z = small_view_of(t);
        const bool swapped = o.kind == SMALL_GATED && t->params.glu.swapped;
        o.x = small_view_of(t->src[swapped ? 1 : 0]);
        o.dense = tn_is_contiguous(t) && tn_is_contiguous(t->src[0]);
        if (t->src[1] && o.kind != SMALL_UNARY && o.kind != SMALL_COPY) {
            o.y = small_view_of(t->src[swapped ? 0 : 1]);
            o.dense = o.dense && tn_is_contiguous(t->src[1]) && tn_nelements(t->src[1]) == o.n;
        }
    }
    return add_early(c, KERNEL(small_ops_kernel), dim3(1), THREADS, 0, all);
}
