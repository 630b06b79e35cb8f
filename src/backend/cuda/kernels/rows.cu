// Ops over rows: norms, soft-max, RoPE, reading and writing rows by index, reductions.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/exact/narrow.cuh"
#include "backend/cuda/kernels/weights.cuh"

// ---- Norms ----

// One block per row. kind 0: layer norm, 1: RMS norm, 2: L2 norm.
__global__ static void norm_kernel(const char *x, char *y, const char *w, const char *b, shape4 xs, shape4 ys,
                                   shape4 ws, shape4 bs, float eps, int kind) {
    grid_follow();
    __shared__ float shared[32];
    int64_t row = blockIdx.x, i1 = row % xs.ne[1], i2 = row / xs.ne[1] % xs.ne[2], i3 = row / xs.ne[1] / xs.ne[2];
    const float *from = (const float *)(x + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3]);
    float *to = (float *)(y + i1 * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]);
    const float *weight =
        w ? (const float *)(w + i1 % ws.ne[1] * ws.nb[1] + i2 % ws.ne[2] * ws.nb[2] + i3 % ws.ne[3] * ws.nb[3])
          : NULL;
    const float *bias =
        b ? (const float *)(b + i1 % bs.ne[1] * bs.nb[1] + i2 % bs.ne[2] * bs.nb[2] + i3 % bs.ne[3] * bs.nb[3])
          : NULL;
    int n = (int)xs.ne[0];
    float mean = 0;
    if (kind == 0) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) mean += from[i];
        mean = block_reduce<false>(mean, shared) / (float)n;
    }
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = from[i] - mean;
        sum += v * v;
    }
    sum = block_reduce<false>(sum, shared);
    float scale = kind == 2 ? 1 / fmaxf(sqrtf(sum), eps) : rsqrtf(sum / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = (from[i] - mean) * scale;
        if (weight) v *= weight[i];
        if (bias) v += bias[i];
        to[i] = v;
    }
}

// The usual case: RMS norm of contiguous rows with one row of weights. Uses wide loads and keeps the row in
// registers.
enum { WIDE_THREADS = 256, WIDE_MOST = 16 };
__global__ static void __launch_bounds__(WIDE_THREADS)
    wide_rms_kernel(const float4 *x, const float4 *w, float4 *y, int n4, float eps, narrow_rows narrow) {
    grid_follow();
    __shared__ float shared[32];
    const float4 *from = x + (int64_t)blockIdx.x * n4;
    float4 v[WIDE_MOST];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < WIDE_MOST; k++) {
        int i = threadIdx.x + k * WIDE_THREADS;
        if (i >= n4) break;
        v[k] = from[i];
        sum += (v[k].x * v[k].x + v[k].y * v[k].y) + (v[k].z * v[k].z + v[k].w * v[k].w);
    }
    float scale = rsqrtf(block_reduce<false>(sum, shared) / (float)(4 * n4) + eps);
#pragma unroll
    for (int k = 0; k < WIDE_MOST; k++) {
        int i = threadIdx.x + k * WIDE_THREADS;
        if (i >= n4) break;
        float4 g = w[i];
        g = make_float4(v[k].x * scale * g.x, v[k].y * scale * g.y, v[k].z * scale * g.z, v[k].w * scale * g.w);
        y[(int64_t)blockIdx.x * n4 + i] = g;
        if (narrow.to) store_narrow(narrow, blockIdx.x, 4 * i, g);
    }
    const int zeros = 4 * (n4 + (int)threadIdx.x); // to the end of a tile
    if (narrow.to && zeros < narrow.columns) store_narrow(narrow, blockIdx.x, zeros, make_float4(0, 0, 0, 0));
}

// Repeatable RMS norm with one row of weights: adds in the order of exact.cuh, as the persistent decode kernel does.
__global__ static void __launch_bounds__(EXACT_NORM_THREADS)
    exact_rms_kernel(const char *x, const float *w, char *y, shape4 xs, shape4 ys, float eps, narrow_rows narrow,
                     bool lasting) {
    grid_next();
    __shared__ float of_warps[EXACT_NORM_WARPS];
    const int64_t row = blockIdx.x; // no divisions: with one row they would be most of the instructions
    const float *from = (const float *)(x + row * xs.nb[1] + blockIdx.y * xs.nb[2] + blockIdx.z * xs.nb[3]);
    float *to = (float *)(y + row * ys.nb[1] + blockIdx.y * ys.nb[2] + blockIdx.z * ys.nb[3]);
    const int n = (int)xs.ne[0], lane = threadIdx.x % 32, first = 8 * (int)threadIdx.x;
    const bool wide = (uintptr_t)from % 16 == 0 && (uintptr_t)to % 16 == 0 && (uintptr_t)w % 16 == 0;
    auto eight = [&](const float *at, float(&v)[8]) {
        if (wide) {
            const float4 a = *(const float4 *)at, b = *(const float4 *)(at + 4);
            v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        } else {
            for (int e = 0; e < 8; e++) v[e] = at[e];
        }
    };
    // The first round stays in registers, its weights are there before the previous kernel has ended.
    float sum = 0, v[8], g[8], kept[8];
    if (lasting && first < n) eight(w + first, g);
    grid_wait();
    if (!lasting && first < n) eight(w + first, g);
    if (first < n) {
        eight(from + first, kept);
        sum = add_squares(sum, kept);
    }
    for (int at = first + EXACT_NORM_ROUND; at < n; at += EXACT_NORM_ROUND) {
        eight(from + at, v);
        sum = add_squares(sum, v);
    }
    sum = warp_sum(sum);
    if (threadIdx.x < EXACT_NORM_WARPS) of_warps[threadIdx.x] = 0;
    __syncthreads();
    if (lane == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    const float scale = exact_rms_scale(of_warps, n, eps);
    for (int at = first; at < n; at += EXACT_NORM_ROUND) {
        if (at > first) {
            eight(from + at, kept);
            eight(w + at, g);
        }
        for (int e = 0; e < 8; e++) v[e] = exact_normalized(kept[e], scale, g[e]);
        if (wide) {
            *(float4 *)(to + at) = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(to + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
        } else {
            for (int e = 0; e < 8; e++) to[at + e] = v[e];
        }
        if (!narrow.to) continue;
        store_narrow(narrow, row, at, make_float4(v[0], v[1], v[2], v[3]));
        store_narrow(narrow, row, at + 4, make_float4(v[4], v[5], v[6], v[7]));
    }
    const int zeros = n + 4 * (int)threadIdx.x; // to the end of a tile
    if (narrow.to && zeros < narrow.columns) store_narrow(narrow, row, zeros, make_float4(0, 0, 0, 0));
}

tn_status compile_norm(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *w = t->src[1], *b = t->src[2];
    // A repeatable norm always uses the same kernel: whether rows are contiguous can depend on their number.
    if (t->op == TN_OP_RMS_NORM && (t->flags & TN_FLAG_REPEATABLE) && w && !b && w->nb[0] == 4 && tn_nrows(w) == 1 &&
        w->ne[0] == x->ne[0] && x->ne[0] % 8 == 0 && x->ne[2] <= MOST_ROWS && x->ne[3] <= MOST_ROWS) {
        const int64_t warps = (x->ne[0] / 8 + 31) / 32;
        return add_early(
            c, KERNEL(exact_rms_kernel), dim3((unsigned)x->ne[1], (unsigned)x->ne[2], (unsigned)x->ne[3]),
            32 * (unsigned)(warps < EXACT_NORM_WARPS ? warps : EXACT_NORM_WARPS), 0, (const char *)x->data,
            (const float *)w->data, (char *)t->data, shape4_of(x), shape4_of(t), t->params.norm.eps,
            narrow_rows_of(c, x->ne[0]), w->buffer && w->buffer->usage == TN_USAGE_WEIGHTS);
    }
    if (t->op == TN_OP_RMS_NORM && !(t->flags & TN_FLAG_REPEATABLE) && w && !b && tn_is_contiguous(x) &&
        tn_is_contiguous(t) && tn_is_contiguous(w) && tn_nrows(w) == 1 && x->ne[0] % 4 == 0 && x->ne[0] >= 1024 &&
        x->ne[0] <= 4 * WIDE_THREADS * WIDE_MOST && (uintptr_t)x->data % 16 == 0 && (uintptr_t)t->data % 16 == 0 &&
        (uintptr_t)w->data % 16 == 0) {
        return add_early(c, KERNEL(wide_rms_kernel), dim3((unsigned)tn_nrows(x)), WIDE_THREADS, 0,
                         (const float4 *)x->data, (const float4 *)w->data, (float4 *)t->data, (int)(x->ne[0] / 4),
                         t->params.norm.eps, narrow_rows_of(c, x->ne[0]));
    }
    int threads = x->ne[0] >= 4096 ? 1024 : x->ne[0] >= 1024 ? 256 : x->ne[0] >= 256 ? 128 : 32;
    int kind = t->op == TN_OP_NORM ? 0 : t->op == TN_OP_RMS_NORM ? 1 : 2;
    return add_early(c, KERNEL(norm_kernel), dim3((unsigned)tn_nrows(x)), (unsigned)threads, 0, (const char *)x->data,
                     (char *)t->data, w ? (const char *)w->data : NULL, b ? (const char *)b->data : NULL,
                     shape4_of(x), shape4_of(t), shape4_of(w ? w : x), shape4_of(b ? b : x), t->params.norm.eps,
                     kind);
}

// ---- Soft-max ----

__device__ static float alibi_slope(float max_bias, int head, int heads) {
    if (max_bias <= 0) return 1;
    int base = 1 << (31 - __clz(heads));
    float m0 = exp2f(-max_bias / (float)base), m1 = exp2f(-max_bias / 2 / (float)base);
    return head < base ? powf(m0, (float)(head + 1)) : powf(m1, (float)(2 * (head - base) + 1));
}

__global__ static void soft_max_kernel(const char *x, const char *mask, const float *sinks, char *y, shape4 xs,
                                       shape4 ms, shape4 ys, int mask_type, float scale, float max_bias) {
    grid_follow();
    __shared__ float shared[32];
    int64_t row = blockIdx.x, i1 = row % xs.ne[1], i2 = row / xs.ne[1] % xs.ne[2], i3 = row / xs.ne[1] / xs.ne[2];
    const float *from = (const float *)(x + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3]);
    float *to = (float *)(y + i1 * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]);
    const char *m = mask ? mask + i1 * ms.nb[1] + i2 % ms.ne[2] * ms.nb[2] + i3 % ms.ne[3] * ms.nb[3] : NULL;
    float slope = alibi_slope(max_bias, (int)i2, (int)xs.ne[2]), high = sinks ? sinks[i2] : -INFINITY;
    int n = (int)xs.ne[0];
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = from[i] * scale + (m ? slope * load_as_float(m + (int64_t)i * ms.nb[0], mask_type) : 0);
        high = fmaxf(high, v);
    }
    high = block_reduce<true>(high, shared);
    if (high == -INFINITY) { // everything is masked: all weights are 0
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = 0;
        return;
    }
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = from[i] * scale + (m ? slope * load_as_float(m + (int64_t)i * ms.nb[0], mask_type) : 0);
        v = expf(v - high);
        sum += v;
        to[i] = v;
    }
    sum = block_reduce<false>(sum, shared);
    if (sinks) sum += expf(sinks[i2] - high);
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] /= sum;
}

tn_status compile_soft_max(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *mask = t->src[1], *sinks = t->src[2];
    int threads = x->ne[0] >= 1024 ? 1024 : x->ne[0] >= 128 ? 128 : 32;
    return add_early(c, KERNEL(soft_max_kernel), dim3((unsigned)tn_nrows(x)), (unsigned)threads, 0,
                     (const char *)x->data, mask ? (const char *)mask->data : NULL,
                     sinks ? (const float *)sinks->data : NULL, (char *)t->data, shape4_of(x),
                     shape4_of(mask ? mask : x), shape4_of(t), mask ? mask->type : TN_F32, t->params.soft_max.scale,
                     t->params.soft_max.max_bias);
}

// ---- RoPE ----

struct rope_job {
    shape4 xs, ys;
    tn_rope_params p;
    float corr_low, corr_high; // YaRN: the pairs between which it blends
};

// One thread per pair, head and token. Dimensions from `dims` on are copied.
__global__ static void rope_kernel(const char *x, char *y, const int32_t *pos, const float *factors, rope_job j,
                                   int type, int64_t pairs) {
    grid_follow();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    int half = (int)(j.xs.ne[0] / 2), pair = (int)(i % half);
    int64_t r = i / half, i1 = r % j.xs.ne[1];
    r /= j.xs.ne[1];
    int64_t i2 = r % j.xs.ne[2], i3 = r / j.xs.ne[2];
    const char *from = x + i1 * j.xs.nb[1] + i2 * j.xs.nb[2] + i3 * j.xs.nb[3];
    char *to = y + i1 * j.ys.nb[1] + i2 * j.ys.nb[2] + i3 * j.ys.nb[3];
    int size = type == TN_F32 ? 4 : 2, dims = j.p.dims;
    if (j.p.mode == TN_ROPE_VISION) dims *= 2;
    if (pair >= dims / 2) {
        for (int k = 2 * pair; k < 2 * pair + 2; k++)
            store_float(to + k * size, type, load_as_float(from + k * size, type));
        return;
    }
    double theta;
    if (j.p.mode == TN_ROPE_MULTI || j.p.mode == TN_ROPE_VISION) {
        int total = j.p.sections[0] + j.p.sections[1] + j.p.sections[2] + j.p.sections[3], at = pair % total,
            section = 0, start = 0;
        while (section < 3 && at >= start + j.p.sections[section]) start += j.p.sections[section++];
        int power = j.p.mode == TN_ROPE_VISION ? at - start : pair;
        theta = (double)pos[i2 + j.xs.ne[2] * section] * pow((double)j.p.base, -2.0 * power / j.p.dims);
    } else {
        theta = exact_theta(pos[i2], j.p.base, pair, j.p.dims);
    }
    float2 turn = exact_pair_turn(theta, pair, factors,
                                  {j.p.freq_scale, j.p.ext_factor, j.p.attn_factor, j.corr_low, j.corr_high});
    if (j.p.reverse) turn.y = -turn.y;
    int a = j.p.mode == TN_ROPE_NORMAL ? 2 * pair : pair,
        b = j.p.mode == TN_ROPE_NORMAL ? 2 * pair + 1 : pair + dims / 2;
    float u = load_as_float(from + a * size, type), v = load_as_float(from + b * size, type);
    store_float(to + a * size, type, exact_rotated_first(u, v, turn));
    store_float(to + b * size, type, exact_rotated_second(u, v, turn));
}

// ---- Hadamard ----

// A warp rotates EACH · 32 neighbouring elements of a row, several blocks of them or a whole one: element e · 32 +
// lane is in v[e] of the lane. Adds in the same order as the CPU backend, so that both give the same bits.
template <int EACH>
__global__ static void hadamard_kernel(const char *x, char *y, shape4 xs, shape4 ys, int block, float scale,
                                       int64_t pieces, int64_t all) {
    grid_follow();
    const int64_t piece = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (piece >= all) return;
    const int lane = threadIdx.x % 32;
    const int64_t row = piece / pieces, first = piece % pieces * (32 * EACH), i1 = row % xs.ne[1],
                  i2 = row / xs.ne[1] % xs.ne[2], i3 = row / xs.ne[1] / xs.ne[2];
    const float *from = (const float *)(x + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3]);
    float *to = (float *)(y + i1 * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]), v[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t i = first + e * 32 + lane;
        v[e] = i < xs.ne[0] ? from[i] : 0;
    }
    for (int far = 1; far < 32 && far < block; far *= 2) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const float other = __shfl_xor_sync(0xffffffffu, v[e], far);
            v[e] = lane & far ? other - v[e] : v[e] + other;
        }
    }
#pragma unroll
    for (int far = 1; far < EACH; far *= 2) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (e & far) continue;
            const float a = v[e], b = v[e | far];
            v[e] = a + b;
            v[e | far] = a - b;
        }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t i = first + e * 32 + lane;
        if (i < xs.ne[0]) to[i] = v[e] * scale;
    }
}
tn_status compile_hadamard(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    const int block = t->params.hadamard.block, piece = block < 32 ? 32 : block;
    const int64_t pieces = (x->ne[0] + piece - 1) / piece, all = pieces * tn_nrows(x);
    const float scale = (float)(1 / sqrt((double)block));
    switch (piece / 32) {
#define CASE(EACH)                                                                                                   \
    case EACH:                                                                                                       \
        return add_early(c, kernel_called("hadamard_kernel", #EACH), hadamard_kernel<EACH>,                          \
                         dim3(blocks_for(32 * all, 128)), 128, 0, (const char *)x->data, (char *)t->data,            \
                         shape4_of(x), shape4_of(t), block, scale, pieces, all);
        CASE(1)
        CASE(2)
        CASE(4)
        CASE(8)
        CASE(16)
        CASE(32)
#undef CASE
    default: return tn_fail(TN_E_UNSUPPORTED, "hadamard with blocks of %d", block);
    }
}

void rope_blend(const tn_rope_params &p, float *low, float *high) {
    auto corr = [&](float beta) {
        return (float)p.dims * logf((float)p.n_ctx_orig / (beta * 2 * 3.14159265358979f)) / (2 * logf(p.base));
    };
    const float first = corr(p.beta_fast), last = corr(p.beta_slow);
    *low = fmaxf(0, p.exact_ramp ? first : floorf(first));
    *high = fminf((float)p.dims - 1, p.exact_ramp ? last : ceilf(last));
}

tn_status compile_rope(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    rope_job j = {shape4_of(x), shape4_of(t), t->params.rope, 0, 0};
    rope_blend(t->params.rope, &j.corr_low, &j.corr_high);
    int64_t pairs = tn_nelements(x) / 2;
    return add_early(c, KERNEL(rope_kernel), dim3(blocks_for(pairs, 128)), 128, 0, (const char *)x->data,
                     (char *)t->data, (const int32_t *)t->src[1]->data,
                     t->src[2] ? (const float *)t->src[2]->data : NULL, j, x->type, pairs);
}

// ---- Reading and writing rows by index ----

template <typename T>
__global__ static void get_rows_kernel(const char *x, const char *rows, char *y, shape4 xs, shape4 rs, shape4 ys) {
    grid_follow();
    int64_t r = blockIdx.x, b = blockIdx.y, i2 = b % ys.ne[2], i3 = b / ys.ne[2];
    int32_t row = *(const int32_t *)(rows + r * rs.nb[0] + i2 * rs.nb[1] + i3 * rs.nb[2]);
    const char *from = x + row * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3];
    float *to = (float *)(y + r * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]);
    bool inside = row >= 0 && row < xs.ne[1]; // an index out of range gives zeros
    for (int64_t i = threadIdx.x; i < xs.ne[0]; i += blockDim.x) to[i] = inside ? T::value(from, i, xs.ne[0]) : 0;
}
// Copies the bits of an int32 through a float.
struct plain_i32 {
    __device__ static float value(const char *row, int64_t i, int64_t) {
        return __int_as_float(((const int32_t *)row)[i]);
    }
};

struct plain_fp8 {
    __device__ static float value(const char *row, int64_t i, int64_t) {
        return fp8_to_float(((const uint8_t *)row)[i]);
    }
};

tn_status compile_get_rows(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *rows = t->src[1];
    dim3 grid((unsigned)rows->ne[0], (unsigned)(rows->ne[1] * rows->ne[2]));
    int threads = x->ne[0] >= 256 ? 256 : 32;
    const char *from = device_layout_of(x).data, *index = (const char *)rows->data;
    char *to = (char *)t->data;
    shape4 xs = shape4_of(x), rs = shape4_of(rows), ys = shape4_of(t);
    switch (kind_of(x)) {
#define CASE(TYPE, reader)                                                                                           \
    case TYPE:                                                                                                       \
        return add_early(c, kernel_called("get_rows_kernel", #reader), get_rows_kernel<reader>, grid, threads, 0,    \
                         from, index, to, xs, rs, ys);
        CASE(TN_I32, plain_i32)
        CASE(TN_FP8, plain_fp8)
        FOR_EVERY_READER(CASE)
#undef CASE
    default: return tn_fail(TN_E_UNSUPPORTED, "get_rows of %s", tn_type_name(x->type));
    }
}

__device__ static int64_t row_number(const char *rows, const shape4 &rs, int wide, int64_t r, int64_t i2,
                                     int64_t i3) {
    const char *p = rows + r * rs.nb[0] + i2 % rs.ne[1] * rs.nb[1] + i3 % rs.ne[2] * rs.nb[2];
    return wide ? *(const int64_t *)p : *(const int32_t *)p;
}
// Whether no later entry has the same index: of equal indices the last one is written.
__device__ static bool is_last(const char *rows, const shape4 &rs, int wide, int64_t r, int64_t n, int64_t i2,
                               int64_t i3, int64_t row) {
    int later = 0;
    for (int64_t k = r + 1 + threadIdx.x; k < n; k += blockDim.x)
        later |= row_number(rows, rs, wide, k, i2, i3) == row;
    return !__syncthreads_or(later);
}
__global__ static void set_rows_kernel(char *x, const char *y, const char *rows, shape4 xs, shape4 ys, shape4 rs,
                                       int type, int wide) {
    grid_follow();
    int64_t r = blockIdx.x, b = blockIdx.y, i2 = b % ys.ne[2], i3 = b / ys.ne[2],
            row = row_number(rows, rs, wide, r, i2, i3);
    if (row < 0 || row >= xs.ne[1] || !is_last(rows, rs, wide, r, ys.ne[1], i2, i3, row)) return;
    const float *from = (const float *)(y + r * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]);
    char *to = x + row * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3];
    for (int64_t i = threadIdx.x; i < ys.ne[0]; i += blockDim.x) store_float(to + i * xs.nb[0], type, from[i]);
}
// Codes of 32 elements as in src/quant: the peak is mapped onto the wider end of a symmetric range, smallest and
// largest onto the ends of one with a minimum. Codes are chosen for the scale that is stored.
__device__ static float stored_half(void *to, float x) {
    const __half h = __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
    *(uint16_t *)to = __half_as_ushort(h);
    return __half2float(h);
}
__device__ static void quantize_block(int type, const float *v, char *block) {
    const int bits = type == TN_Q8_0 ? 8 : type == TN_Q5_0 || type == TN_Q5_1 ? 5 : 4;
    const bool minimum = type == TN_Q5_1 || type == TN_Q4_1;
    float low = v[0], high = v[0];
    for (int i = 1; i < 32; i++) {
        low = fminf(low, v[i]);
        high = fmaxf(high, v[i]);
    }
    if (type == TN_Q8_0) {
        const float d = fmaxf(fabsf(low), fabsf(high)) / 127, inverse = d != 0 ? 1 / d : 0;
        *(uint16_t *)block = __half_as_ushort(__float2half_rn(d));
        for (int i = 0; i < 32; i++)
            ((int8_t *)block)[2 + i] = (int8_t)rintf(fminf(fmaxf(v[i] * inverse, -127.0f), 127.0f));
        return;
    }
    const float peak = high >= -low ? high : low, most = (float)((1 << bits) - 1);
    const float d = stored_half(block, minimum ? (high - low) / most : peak / -(float)(1 << (bits - 1))),
                zero = minimum ? stored_half(block + 2, low) : 0, inverse = d != 0 ? 1 / d : 0,
                shift = minimum ? 0 : (float)(1 << (bits - 1));
    uint8_t *qh = (uint8_t *)block + (minimum ? 4 : 2), *qs = qh + (bits == 5 ? 4 : 0);
    uint32_t fifth = 0;
    for (int i = 0; i < 16; i++) {
        const unsigned a = (unsigned)fminf(fmaxf(rintf((v[i] - zero) * inverse) + shift, 0.0f), most),
                       b = (unsigned)fminf(fmaxf(rintf((v[i + 16] - zero) * inverse) + shift, 0.0f), most);
        qs[i] = (uint8_t)((a & 15) | (b & 15) << 4);
        fifth |= (a >> 4) << i | (b >> 4) << (i + 16);
    }
    if (bits == 5)
        for (int i = 0; i < 4; i++) qh[i] = (uint8_t)(fifth >> 8 * i);
}
// One thread per block of 32 elements.
__global__ static void set_rows_quantized_kernel(char *x, const char *y, const char *rows, shape4 xs, shape4 ys,
                                                 shape4 rs, int type, int wide) {
    grid_follow();
    int64_t r = blockIdx.x, b = blockIdx.y, i2 = b % ys.ne[2], i3 = b / ys.ne[2],
            row = row_number(rows, rs, wide, r, i2, i3);
    if (row < 0 || row >= xs.ne[1] || !is_last(rows, rs, wide, r, ys.ne[1], i2, i3, row)) return;
    const float *from = (const float *)(y + r * ys.nb[1] + i2 * ys.nb[2] + i3 * ys.nb[3]);
    char *to = x + row * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3];
    for (int64_t k = threadIdx.x; k < ys.ne[0] / 32; k += blockDim.x)
        quantize_block(type, from + 32 * k, to + k * xs.nb[0]);
}

tn_status compile_set_rows(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1], *rows = t->src[2];
    dim3 grid((unsigned)y->ne[1], (unsigned)(y->ne[2] * y->ne[3]));
    bool blocks = tn_type_is_quantized(x->type);
    int threads = blocks ? 32 : y->ne[0] >= 256 ? 256 : 32;
    auto kernel = blocks ? set_rows_quantized_kernel : set_rows_kernel;
    const kernel_name name = kernel_called(blocks ? "set_rows_quantized_kernel" : "set_rows_kernel");
    return add_early(c, name, kernel, grid, (unsigned)threads, 0, (char *)x->data, (const char *)y->data,
                     (const char *)rows->data, shape4_of(x), shape4_of(y), shape4_of(rows), x->type,
                     rows->type == TN_I64);
}

__global__ static void add_id_kernel(const char *x, const char *bias, const char *ids, char *y, shape4 xs, shape4 bs,
                                     shape4 is, shape4 ys) {
    grid_follow();
    int64_t k = blockIdx.x, t = blockIdx.y;
    int32_t id = *(const int32_t *)(ids + k * is.nb[0] + t * is.nb[1]);
    bool inside = id >= 0 && id < bs.ne[1]; // an id out of range adds nothing
    for (int64_t i = threadIdx.x; i < xs.ne[0]; i += blockDim.x)
        *(float *)(y + i * ys.nb[0] + k * ys.nb[1] + t * ys.nb[2]) =
            *(const float *)(x + i * xs.nb[0] + k * xs.nb[1] + t * xs.nb[2]) +
            (inside ? *(const float *)(bias + i * bs.nb[0] + id * bs.nb[1]) : 0);
}
tn_status compile_add_id(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    return add_early(c, KERNEL(add_id_kernel), dim3((unsigned)x->ne[1], (unsigned)x->ne[2]), 128, 0,
                     (const char *)x->data, (const char *)t->src[1]->data, (const char *)t->src[2]->data,
                     (char *)t->data, shape4_of(x), shape4_of(t->src[1]), shape4_of(t->src[2]), shape4_of(t));
}

// ---- Reductions ----

// sum_rows, mean and argmax: one block per row.
__global__ static void row_reduce_kernel(const char *x, char *y, shape4 xs, int type, int op, int64_t row0) {
    __shared__ float shared[32];
    __shared__ int indices[32];
    int64_t row = row0 + blockIdx.x, i1 = row % xs.ne[1], i2 = row / xs.ne[1] % xs.ne[2],
            i3 = row / xs.ne[1] / xs.ne[2];
    const char *from = x + i1 * xs.nb[1] + i2 * xs.nb[2] + i3 * xs.nb[3];
    if (op != TN_OP_ARGMAX) {
        float sum = 0;
        if (type == TN_F32 && xs.nb[0] == 4 && xs.ne[0] % 4 == 0 && (uintptr_t)from % 16 == 0) {
            const float4 *wide = (const float4 *)from;
#pragma unroll 8
            for (int i = threadIdx.x; i < (int)(xs.ne[0] / 4); i += blockDim.x) {
                float4 v = wide[i];
                sum += (v.x + v.y) + (v.z + v.w);
            }
        } else {
            for (int64_t i = threadIdx.x; i < xs.ne[0]; i += blockDim.x)
                sum += load_as_float(from + i * xs.nb[0], type);
        }
        sum = block_reduce<false>(sum, shared);
        if (threadIdx.x == 0) ((float *)y)[row] = op == TN_OP_MEAN ? sum / (float)xs.ne[0] : sum;
        return;
    }
    float highest = -INFINITY;
    int at = 0x7fffffff;
    for (int i = threadIdx.x; i < xs.ne[0]; i += blockDim.x) {
        float v = ((const float *)from)[i];
        if (v > highest || (at == 0x7fffffff && v == highest)) {
            highest = v;
            at = i;
        }
    }
    for (int offset = 16; offset; offset >>= 1) {
        float v = __shfl_xor_sync(0xffffffffu, highest, offset);
        int k = __shfl_xor_sync(0xffffffffu, at, offset);
        if (v > highest || (v == highest && k < at)) {
            highest = v;
            at = k;
        }
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    if (lane == 0) {
        shared[warp] = highest;
        indices[warp] = at;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; w++)
            if (shared[w] > highest || (shared[w] == highest && indices[w] < at)) {
                highest = shared[w];
                at = indices[w];
            }
        ((int32_t *)y)[row] = at == 0x7fffffff ? 0 : at;
    }
}
tn_status compile_row_reduce(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    int threads = t->op == TN_OP_ARGMAX && x->ne[0] >= 4096 ? 1024 : x->ne[0] >= 256 ? 256 : 32;
    return add_ordered(c, KERNEL(row_reduce_kernel), dim3((unsigned)tn_nrows(x)), (unsigned)threads, 0,
                       (const char *)x->data, (char *)t->data, shape4_of(x), x->type, t->op, 0);
}

// Sum and argmax of one long row. Each block has a share of it; the last block to finish combines them. argmax is the
// first index of the highest value.
enum { ARGMAX_BLOCKS = 64, ARGMAX_THREADS = 512 };
struct argmax_share {
    float sum, highest;
    int at;
};
__device__ static argmax_share join(argmax_share a, argmax_share b) {
    bool other = b.highest > a.highest || (b.highest == a.highest && b.at < a.at);
    return {a.sum + b.sum, other ? b.highest : a.highest, other ? b.at : a.at};
}
__device__ static argmax_share join_block(argmax_share mine, argmax_share *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto join_warp = [&](argmax_share x) {
        for (int offset = 16; offset; offset >>= 1)
            x = join(x, {__shfl_xor_sync(0xffffffffu, x.sum, offset), __shfl_xor_sync(0xffffffffu, x.highest, offset),
                         __shfl_xor_sync(0xffffffffu, x.at, offset)});
        return x;
    };
    mine = join_warp(mine);
    if (lane == 0) shared[warp] = mine;
    __syncthreads();
    return join_warp(lane < ARGMAX_THREADS / 32 ? shared[lane] : argmax_share{0, -INFINITY, 0x7fffffff});
}
__global__ static void __launch_bounds__(ARGMAX_THREADS)
    sum_argmax_kernel(const float *x, int n, float *sum, int32_t *at, argmax_share *shares, unsigned *ticket) {
    __shared__ argmax_share shared[ARGMAX_THREADS / 32];
    __shared__ bool last;
    argmax_share mine = {0, -INFINITY, 0x7fffffff};
    grid_follow();
    for (int i = blockIdx.x * ARGMAX_THREADS + threadIdx.x; i < n; i += ARGMAX_BLOCKS * ARGMAX_THREADS)
        mine = join(mine, {x[i], x[i], i});
    mine = join_block(mine, shared);
    if (threadIdx.x == 0) {
        shares[blockIdx.x] = mine;
        __threadfence();
        last = atomicInc(ticket, ARGMAX_BLOCKS - 1) == ARGMAX_BLOCKS - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    const argmax_share *share = &shares[threadIdx.x];
    mine = {0, -INFINITY, 0x7fffffff};
    if (threadIdx.x < ARGMAX_BLOCKS) mine = {__ldcg(&share->sum), __ldcg(&share->highest), __ldcg(&share->at)};
    mine = join_block(mine, shared);
    if (threadIdx.x == 0) {
        *sum = mine.sum;
        *at = mine.at == 0x7fffffff ? 0 : mine.at;
    }
}
size_t argmax_scratch(const device_description &, const tn_tensor *argmax) {
    return tn_nrows(argmax->src[0]) == 1 ? ARGMAX_BLOCKS * sizeof(argmax_share) : 0;
}
bool sum_argmax_supports(const tn_tensor *sum, const tn_tensor *argmax) {
    const tn_tensor *x = argmax->src[0];
    return sum->op == TN_OP_SUM_ROWS && argmax->op == TN_OP_ARGMAX && sum->src[0] == x && x->type == TN_F32 &&
           x->nb[0] == 4 && tn_nrows(x) == 1 && x->ne[0] >= 4096;
}
tn_status compile_sum_argmax(const compilation &c, const tn_tensor *sum, const tn_tensor *argmax) {
    const tn_tensor *x = argmax->src[0];
    return add_early(c, KERNEL(sum_argmax_kernel), dim3(ARGMAX_BLOCKS), ARGMAX_THREADS, 0, (const float *)x->data,
                     (int)x->ne[0], (float *)sum->data, (int32_t *)argmax->data, (argmax_share *)c.scratch,
                     c.tickets);
}

__global__ static void mix_kernel(const char *x, const char *w, char *y, shape4 xs, shape4 ws, shape4 ys) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (i >= xs.ne[0]) return;
    float sum = 0;
    for (int64_t k = 0; k < xs.ne[1]; k++)
        sum += *(const float *)(x + i * xs.nb[0] + k * xs.nb[1] + t * xs.nb[2]) *
               *(const float *)(w + k * ws.nb[0] + t * ws.nb[1]);
    *(float *)(y + i * ys.nb[0] + t * ys.nb[1]) = sum;
}
tn_status compile_mix(const compilation &c, const tn_tensor *t) {
    const tn_tensor *x = t->src[0];
    return add_ordered(c, KERNEL(mix_kernel), dim3(blocks_for(x->ne[0], 256), (unsigned)x->ne[2]), 256, 0,
                       (const char *)x->data, (const char *)t->src[1]->data, (char *)t->data, shape4_of(x),
                       shape4_of(t->src[1]), shape4_of(t));
}
