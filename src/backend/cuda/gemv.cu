// GEMV: weights are read once, in wide loads, and multiplied with up to 8 columns. Block types multiply int8 with
// int8 (activations are quantized per 32 elements); plain types multiply floats.
#include "backend/cuda/gemv.cuh"

#include "backend/cuda/blocks.cuh"

enum { WARPS = 4, ROWS = 2 };

// ---- Activations
// -----------------------------------------------------------------------------------------------------------

// Per 32 elements: int8 values, a scale, and the sums of the first and second 16 values.
struct activations {
    int8_t *q;    // [columns][k]
    float *scale; // [columns][k/32]
    short2 *sums; // [columns][k/32]
};
static size_t activation_bytes(int64_t k, int64_t columns) {
    return (size_t)columns * (size_t)(k + k / 32 * 8) + 768;
}
static activations activations_at(char *scratch, int64_t k, int64_t columns) {
    activations a;
    a.q = (int8_t *)scratch;
    scratch += ((size_t)(k * columns) + 255) & ~(size_t)255;
    a.scale = (float *)scratch;
    scratch += ((size_t)(k / 32 * columns) * 4 + 255) & ~(size_t)255;
    a.sums = (short2 *)scratch;
    return a;
}

// One warp per 32 elements.
__global__ static void quantize_kernel(const char *y, int64_t row_bytes, activations a, int64_t k) {
    int64_t block = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, column = blockIdx.y;
    int lane = threadIdx.x % 32;
    if (block >= k / 32) return;
    float v = ((const float *)(y + column * row_bytes))[32 * block + lane];
    float most = warp_max(fabsf(v)), scale = most / 127;
    int q = scale > 0 ? __float2int_rn(v / scale) : 0, sum = q;
    a.q[column * k + 32 * block + lane] = (int8_t)q;
    for (int offset = 8; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    int other = __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane == 0) {
        a.scale[column * (k / 32) + block] = scale;
        a.sums[column * (k / 32) + block] = make_short2((short)sum, (short)other);
    }
}

// ---- Units: what one lane takes at a time
// ------------------------------------------------------------------------------------ ELEMENTS per unit; load()
// brings the weights of unit u into registers, dot() multiplies them with a column.

struct unit_q4_0_planar {
    enum { ELEMENTS = 32 };
    uint4 q;
    float d;
    __device__ void load(const char *row, int u, int64_t k) {
        q = ((const uint4 *)row)[u];
        d = __half2float(((const __half *)(row + k / 2))[u]);
    }
    __device__ float dot(const int8_t *a, const float *scale, const short2 *sums, int u) const {
        const int4 *v = (const int4 *)(a + 32 * u);
        int4 low = v[0], high = v[1];
        int sum = __dp4a((int)(q.x & 0x0f0f0f0f), low.x, 0);
        sum = __dp4a((int)(q.y & 0x0f0f0f0f), low.y, sum);
        sum = __dp4a((int)(q.z & 0x0f0f0f0f), low.z, sum);
        sum = __dp4a((int)(q.w & 0x0f0f0f0f), low.w, sum);
        sum = __dp4a((int)(q.x >> 4 & 0x0f0f0f0f), high.x, sum);
        sum = __dp4a((int)(q.y >> 4 & 0x0f0f0f0f), high.y, sum);
        sum = __dp4a((int)(q.z >> 4 & 0x0f0f0f0f), high.z, sum);
        sum = __dp4a((int)(q.w >> 4 & 0x0f0f0f0f), high.w, sum);
        return d * scale[u] * (float)(sum - 8 * (sums[u].x + sums[u].y));
    }
};

struct unit_q8_0_planar {
    enum { ELEMENTS = 32 };
    int4 q[2];
    float d;
    __device__ void load(const char *row, int u, int64_t k) {
        q[0] = ((const int4 *)row)[2 * u];
        q[1] = ((const int4 *)row)[2 * u + 1];
        d = __half2float(((const __half *)(row + k))[u]);
    }
    __device__ float dot(const int8_t *a, const float *scale, const short2 *, int u) const {
        const int4 *v = (const int4 *)(a + 32 * u);
        int4 x = v[0], y = v[1];
        int sum = __dp4a(q[0].x, x.x, 0);
        sum = __dp4a(q[0].y, x.y, sum);
        sum = __dp4a(q[0].z, x.z, sum);
        sum = __dp4a(q[0].w, x.w, sum);
        sum = __dp4a(q[1].x, y.x, sum);
        sum = __dp4a(q[1].y, y.y, sum);
        sum = __dp4a(q[1].z, y.z, sum);
        sum = __dp4a(q[1].w, y.w, sum);
        return d * scale[u] * (float)sum;
    }
};

// 64 elements: two neighbouring sub-blocks that share 32 bytes. The block is 144 bytes, so 16-byte aligned.
struct unit_q4_K {
    enum { ELEMENTS = 64 };
    uint4 q[2];
    float s[2], m[2];
    __device__ void load(const char *row, int u, int64_t) {
        const char *block = row + 144 * (u / 4);
        int pair = u % 4;
        q[0] = *(const uint4 *)(block + 16 + 32 * pair);
        q[1] = *(const uint4 *)(block + 32 + 32 * pair);
        uint4 head = *(const uint4 *)block; // d, dmin, 12 bytes of scales
        uint8_t scales[12];
        memcpy(scales, &head.y, 12);
        float d = half_bits((uint16_t)head.x), dmin = half_bits((uint16_t)(head.x >> 16));
        for (int i = 0; i < 2; i++) {
            scale_min(scales, 2 * pair + i, &s[i], &m[i]);
            s[i] *= d;
            m[i] *= dmin;
        }
    }
    __device__ float dot(const int8_t *a, const float *scale, const short2 *sums, int u) const {
        const int4 *v = (const int4 *)(a + 64 * u);
        int4 v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];
        int low = 0, high = 0;
        low = __dp4a((int)(q[0].x & 0x0f0f0f0f), v0.x, low);
        low = __dp4a((int)(q[0].y & 0x0f0f0f0f), v0.y, low);
        low = __dp4a((int)(q[0].z & 0x0f0f0f0f), v0.z, low);
        low = __dp4a((int)(q[0].w & 0x0f0f0f0f), v0.w, low);
        low = __dp4a((int)(q[1].x & 0x0f0f0f0f), v1.x, low);
        low = __dp4a((int)(q[1].y & 0x0f0f0f0f), v1.y, low);
        low = __dp4a((int)(q[1].z & 0x0f0f0f0f), v1.z, low);
        low = __dp4a((int)(q[1].w & 0x0f0f0f0f), v1.w, low);
        high = __dp4a((int)(q[0].x >> 4 & 0x0f0f0f0f), v2.x, high);
        high = __dp4a((int)(q[0].y >> 4 & 0x0f0f0f0f), v2.y, high);
        high = __dp4a((int)(q[0].z >> 4 & 0x0f0f0f0f), v2.z, high);
        high = __dp4a((int)(q[0].w >> 4 & 0x0f0f0f0f), v2.w, high);
        high = __dp4a((int)(q[1].x >> 4 & 0x0f0f0f0f), v3.x, high);
        high = __dp4a((int)(q[1].y >> 4 & 0x0f0f0f0f), v3.y, high);
        high = __dp4a((int)(q[1].z >> 4 & 0x0f0f0f0f), v3.z, high);
        high = __dp4a((int)(q[1].w >> 4 & 0x0f0f0f0f), v3.w, high);
        short2 s0 = sums[2 * u], s1 = sums[2 * u + 1];
        return scale[2 * u] * (s[0] * (float)low - m[0] * (float)(s0.x + s0.y)) +
               scale[2 * u + 1] * (s[1] * (float)high - m[1] * (float)(s1.x + s1.y));
    }
};

// 64 elements of q6_K: 16 places in each of the four quarters of a half block.
struct unit_q6_K_planar {
    enum { ELEMENTS = 64 };
    uint4 low0, low1, high;
    float d[4];
    __device__ void load(const char *row, int u, int64_t k) {
        int64_t blocks = k / 256;
        int block = u / 4, half = u / 2 % 2, group = u % 2;
        const char *ql = row + 128 * (int64_t)block + 64 * half + 16 * group;
        low0 = *(const uint4 *)ql;
        low1 = *(const uint4 *)(ql + 32);
        high = *(const uint4 *)(row + 128 * blocks + 64 * (int64_t)block + 32 * half + 16 * group);
        float scale = __half2float(((const __half *)(row + 208 * blocks))[block]);
        const int8_t *scales = (const int8_t *)row + 192 * blocks + 16 * (int64_t)block + 8 * half + group;
        for (int i = 0; i < 4; i++) d[i] = scale * (float)scales[2 * i];
    }
    __device__ static int quarter(uint4 low, uint4 high, int low_shift, int high_shift, const int8_t *a) {
        int4 v = *(const int4 *)a;
        uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
        int w[4] = {v.x, v.y, v.z, v.w}, sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum = __dp4a((int)((l[i] >> low_shift & 0x0f0f0f0f) | (h[i] >> high_shift & 0x03030303) << 4), w[i], sum);
        return sum;
    }
    __device__ float dot(const int8_t *a, const float *scale, const short2 *sums, int u) const {
        int half = u / 2, group = u % 2; // half blocks of 128 from the row's start
        const int8_t *v = a + 128 * half + 16 * group;
        const float *sc = scale + 4 * half;
        const short2 *sm = sums + 4 * half;
        int q0 = quarter(low0, high, 0, 0, v), q1 = quarter(low1, high, 0, 2, v + 32),
            q2 = quarter(low0, high, 4, 4, v + 64), q3 = quarter(low1, high, 4, 6, v + 96);
        int s[4];
        for (int i = 0; i < 4; i++) s[i] = group ? sm[i].y : sm[i].x;
        return sc[0] * d[0] * (float)(q0 - 32 * s[0]) + sc[1] * d[1] * (float)(q1 - 32 * s[1]) +
               sc[2] * d[2] * (float)(q2 - 32 * s[2]) + sc[3] * d[3] * (float)(q3 - 32 * s[3]);
    }
};

// ---- Kernels
// -----------------------------------------------------------------------------------------------------------------

struct gemv_job {
    const char *w;
    int64_t row_bytes, m, k;
    float *out;
    int64_t out_row; // floats between columns
};

// Each warp takes ROWS rows; lanes take units in turn.
template <typename U, int COLUMNS>
__global__ static void __launch_bounds__(WARPS * 32) gemv_int8_kernel(gemv_job j, activations a) {
    int64_t row0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
    int lane = threadIdx.x % 32, units = (int)(j.k / U::ELEMENTS);
    if (row0 >= j.m) return;
    float sum[ROWS][COLUMNS] = {};
    const char *rows[ROWS];
    for (int r = 0; r < ROWS; r++) rows[r] = j.w + (row0 + r < j.m ? row0 + r : j.m - 1) * j.row_bytes;
#pragma unroll 2
    for (int u = lane; u < units; u += 32) {
        U unit[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) unit[r].load(rows[r], u, j.k);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                sum[r][c] += unit[r].dot(a.q + c * j.k, a.scale + c * (j.k / 32), a.sums + c * (j.k / 32), u);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float s = warp_sum(sum[r][c]);
            if (lane == 0 && row0 + r < j.m) j.out[c * j.out_row + row0 + r] = s;
        }
}

// Any other kind: eight weights at a time as floats.
template <typename R, int COLUMNS>
__global__ static void __launch_bounds__(WARPS * 32) gemv_float_kernel(gemv_job j, const char *y, int64_t y_row) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= j.m) return;
    float sum[COLUMNS] = {};
    const char *w = j.w + row * j.row_bytes;
#pragma unroll 4
    for (int64_t i = lane * 8; i < j.k; i += 256) {
        float v[8];
        R::eight(w, i, v, j.k);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float4 *x = (const float4 *)((const float *)(y + c * y_row) + i);
            float4 p = x[0], q = x[1];
            sum[c] +=
                v[0] * p.x + v[1] * p.y + v[2] * p.z + v[3] * p.w + v[4] * q.x + v[5] * q.y + v[6] * q.z + v[7] * q.w;
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float s = warp_sum(sum[c]);
        if (lane == 0) j.out[c * j.out_row + row] = s;
    }
}

// f16 and bf16 in 16-byte loads, two rows per warp.
template <bool BF16, int COLUMNS>
__global__ static void __launch_bounds__(WARPS * 32) gemv_half_kernel(gemv_job j, const char *y, int64_t y_row) {
    int64_t row0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
    int lane = threadIdx.x % 32;
    if (row0 >= j.m) return;
    float sum[ROWS][COLUMNS] = {};
    const char *rows[ROWS];
    for (int r = 0; r < ROWS; r++) rows[r] = j.w + (row0 + r < j.m ? row0 + r : j.m - 1) * j.row_bytes;
#pragma unroll 4
    for (int64_t i = lane * 8; i < j.k; i += 256) {
        float v[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint4 raw = *(const uint4 *)(rows[r] + 2 * i);
            uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 f = BF16 ? make_float2(__uint_as_float(word[k] << 16), __uint_as_float(word[k] & 0xffff0000u))
                                : __half22float2(*(const __half2 *)&word[k]);
                v[r][2 * k] = f.x;
                v[r][2 * k + 1] = f.y;
            }
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float4 *x = (const float4 *)((const float *)(y + c * y_row) + i);
            float4 p = x[0], q = x[1];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                sum[r][c] += v[r][0] * p.x + v[r][1] * p.y + v[r][2] * p.z + v[r][3] * p.w + v[r][4] * q.x +
                             v[r][5] * q.y + v[r][6] * q.z + v[r][7] * q.w;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float s = warp_sum(sum[r][c]);
            if (lane == 0 && row0 + r < j.m) j.out[c * j.out_row + row0 + r] = s;
        }
}

// ---- Choice
// ------------------------------------------------------------------------------------------------------------------

static bool int8_kind(const tn_tensor *x) {
    int kind = kind_of(x);
    return x->nb[1] % 16 == 0 && (kind == (TN_Q4_0 | PLANAR) || kind == (TN_Q8_0 | PLANAR) ||
                                  kind == (TN_Q6_K | PLANAR) || kind == TN_Q4_K);
}
static bool aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

bool gemv_serves(const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    return y->ne[1] <= GEMV_MAX_COLUMNS && y->ne[2] == 1 && y->ne[3] == 1 && x->ne[2] == 1 && x->ne[3] == 1 &&
           x->ne[0] % 8 == 0 && y->nb[1] % 16 == 0 && tn_is_contiguous_rows(y);
}

// Room for int8 activations is kept whether or not the weights turn out planar, which is known only once they have
// memory.
size_t gemv_scratch(const tn_tensor *t) {
    return tn_type_is_quantized(t->src[0]->type) && t->src[0]->ne[0] % 32 == 0
               ? activation_bytes(t->src[0]->ne[0], t->src[1]->ne[1])
               : 0;
}

template <int COLUMNS> static tn_status launch_columns(const launch &l, const tn_tensor *t) {
    const tn_tensor *x = t->src[0], *y = t->src[1];
    gemv_job j = {(const char *)x->data, (int64_t)x->nb[1],    x->ne[1], x->ne[0],
                  (float *)t->data,      (int64_t)t->nb[1] / 4};
    const char *in = (const char *)y->data;
    int64_t y_row = (int64_t)y->nb[1];
    unsigned pairs = blocks_for(j.m, WARPS * ROWS), singles = blocks_for(j.m, WARPS);
    int kind = kind_of(x);
    if (int8_kind(x) && !t->params.mul_mat.precise) {
        activations a = activations_at(l.scratch, j.k, COLUMNS);
        if (*l.quantized != y) {
            quantize_kernel<<<dim3(blocks_for(j.k / 32, 8), COLUMNS), 256, 0, l.stream>>>(in, y_row, a, j.k);
            TN_TRY(cuda_check(cudaGetLastError(), "quantizing activations"));
            *l.quantized = y;
        }
        switch (kind) {
        case TN_Q4_0 | PLANAR:
            gemv_int8_kernel<unit_q4_0_planar, COLUMNS><<<pairs, WARPS * 32, 0, l.stream>>>(j, a);
            break;
        case TN_Q8_0 | PLANAR:
            gemv_int8_kernel<unit_q8_0_planar, COLUMNS><<<pairs, WARPS * 32, 0, l.stream>>>(j, a);
            break;
        case TN_Q6_K | PLANAR:
            gemv_int8_kernel<unit_q6_K_planar, COLUMNS><<<pairs, WARPS * 32, 0, l.stream>>>(j, a);
            break;
        default: gemv_int8_kernel<unit_q4_K, COLUMNS><<<pairs, WARPS * 32, 0, l.stream>>>(j, a); break;
        }
        return cuda_check(cudaGetLastError(), "gemv");
    }
    *l.quantized = NULL;
    bool wide = x->nb[1] % 16 == 0 && aligned16(x->data);
    if (kind == TN_F16 && wide) {
        gemv_half_kernel<false, COLUMNS><<<pairs, WARPS * 32, 0, l.stream>>>(j, in, y_row);
    } else if (kind == TN_BF16 && wide) {
        gemv_half_kernel<true, COLUMNS><<<pairs, WARPS * 32, 0, l.stream>>>(j, in, y_row);
    } else {
        switch (kind) {
#define CASE(KIND, reader)                                                                                           \
    case KIND: gemv_float_kernel<reader, COLUMNS><<<singles, WARPS * 32, 0, l.stream>>>(j, in, y_row); break;
            FOR_EVERY_READER(CASE)
#undef CASE
        default: return tn_fail(TN_E_UNSUPPORTED, "mul_mat with %s", tn_type_name(x->type));
        }
    }
    return cuda_check(cudaGetLastError(), "gemv");
}

tn_status launch_gemv(const launch &l, const tn_tensor *t) {
    switch (t->src[1]->ne[1]) {
    case 1: return launch_columns<1>(l, t);
    case 2: return launch_columns<2>(l, t);
    case 3: return launch_columns<3>(l, t);
    case 4: return launch_columns<4>(l, t);
    case 5: return launch_columns<5>(l, t);
    case 6: return launch_columns<6>(l, t);
    case 7: return launch_columns<7>(l, t);
    default: return launch_columns<8>(l, t);
    }
}
