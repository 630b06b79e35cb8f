// Attention: split over the cache for few tokens, tensor cores for many, and a plain kernel for whatever is left.
// Which cells a query sees follows from positions and sequence bits in device memory; no mask is stored.
#include "backend/cuda/blocks.cuh"
#include "backend/cuda/cuda.cuh"

#include <mma.h>

struct attention_job {
    const char *q, *k, *v;
    char *out;
    int64_t q1, q2, q3, k1, k2, k3, v1, v2, v3, o1, o2, o3; // byte strides of head, token/cell, batch
    const int32_t *q_pos, *k_pos, *range;
    const char *mask;
    int64_t m0, m1, m2, m3;
    int mask_type, mask_heads, mask_batches;
    const float *sinks;
    int head_k, head_v, heads, kv_heads, tokens, cells, words;
    tn_attention_params p;
};

static attention_job job_of(const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V],
                    *kp = t->src[TN_ATTN_K_POS], *mask = t->src[TN_ATTN_MASK];
    attention_job j;
    memset(&j, 0, sizeof j);
    j.q = (const char *)q->data;
    j.k = (const char *)k->data;
    j.v = (const char *)v->data;
    j.out = (char *)t->data;
    j.q1 = (int64_t)q->nb[1], j.q2 = (int64_t)q->nb[2], j.q3 = (int64_t)q->nb[3];
    j.k1 = (int64_t)k->nb[1], j.k2 = (int64_t)k->nb[2], j.k3 = (int64_t)k->nb[3];
    j.v1 = (int64_t)v->nb[1], j.v2 = (int64_t)v->nb[2], j.v3 = (int64_t)v->nb[3];
    j.o1 = (int64_t)t->nb[1], j.o2 = (int64_t)t->nb[2], j.o3 = (int64_t)t->nb[3];
    if (kp) {
        j.q_pos = (const int32_t *)t->src[TN_ATTN_Q_POS]->data;
        j.k_pos = (const int32_t *)kp->data;
        j.range = (const int32_t *)t->src[TN_ATTN_RANGE]->data;
        j.words = (int)kp->ne[0] - 1;
    }
    if (mask) {
        j.mask = (const char *)mask->data;
        j.m0 = (int64_t)mask->nb[0], j.m1 = (int64_t)mask->nb[1], j.m2 = (int64_t)mask->nb[2],
        j.m3 = (int64_t)mask->nb[3];
        j.mask_type = mask->type;
        j.mask_heads = (int)mask->ne[2];
        j.mask_batches = (int)mask->ne[3];
    }
    j.sinks = t->src[TN_ATTN_SINKS] ? (const float *)t->src[TN_ATTN_SINKS]->data : NULL;
    j.head_k = (int)q->ne[0];
    j.head_v = (int)v->ne[0];
    j.heads = (int)q->ne[1];
    j.kv_heads = (int)k->ne[1];
    j.tokens = (int)q->ne[2];
    j.cells = (int)k->ne[2];
    j.p = t->params.attention;
    return j;
}

// A query's place in the world.
struct viewer {
    int position, seq;
};
__device__ static viewer viewer_of(const attention_job &j, int token) {
    if (!j.q_pos) return {j.cells - j.tokens + token, 0};
    return {j.q_pos[2 * token], j.q_pos[2 * token + 1]};
}
__device__ static bool sees(const attention_job &j, viewer q, int cell, int *position) {
    int p = cell;
    if (j.k_pos) {
        const int32_t *meta = j.k_pos + (int64_t)cell * (1 + j.words);
        p = meta[0];
        if (p < 0 || q.seq < 0 || !((uint32_t)meta[1 + q.seq / 32] >> (q.seq % 32) & 1)) return false;
    }
    *position = p;
    if (j.p.causal && p > q.position) return false;
    if (j.p.window && q.position - p >= j.p.window) return false;
    if (j.p.chunk && p / j.p.chunk != q.position / j.p.chunk) return false;
    return true;
}
__device__ static float slope_of(const attention_job &j, int head) {
    if (j.p.max_bias <= 0) return 0;
    int base = 1 << (31 - __clz(j.heads));
    float m0 = exp2f(-j.p.max_bias / (float)base), m1 = exp2f(-j.p.max_bias / 2 / (float)base);
    return head < base ? powf(m0, (float)(head + 1)) : powf(m1, (float)(2 * (head - base) + 1));
}
// From a raw product to the exponent's argument.
__device__ static float finish_score(const attention_job &j, float dot, int head, int token, int batch, int cell,
                                     viewer q, int position, float slope) {
    float s = dot * j.p.scale;
    if (j.p.soft_cap > 0) s = j.p.soft_cap * tanhf(s / j.p.soft_cap);
    if (slope > 0) s -= slope * (float)abs(q.position - position);
    if (j.mask) {
        float m = load_as_float(j.mask + cell * j.m0 + token * j.m1 + head % j.mask_heads * j.m2 +
                                    batch % j.mask_batches * j.m3,
                                j.mask_type);
        s += m;
    }
    return s;
}
__device__ static void bounds_of(const attention_job &j, int *first, int *end) {
    *first = j.range ? max(0, j.range[0]) : 0;
    *end = j.range ? min(j.cells, j.range[1]) : j.cells;
}

// ---- Any shape, any type
// -----------------------------------------------------------------------------------------------------

enum { PLAIN_THREADS = 128 };

// One block per head and token; a cell per thread for the scores, a dimension per thread for the sum.
template <typename RK, typename RV> __global__ static void plain_kernel(attention_job j) {
    extern __shared__ float shared[]; // q, then the running sum, then a tile of weights
    __shared__ float reduce[32];
    float *q = shared, *sum = q + j.head_k, *weight = sum + j.head_v;
    int head = blockIdx.x, token = blockIdx.y, batch = blockIdx.z, kv = head / (j.heads / j.kv_heads);
    const float *from = (const float *)(j.q + head * j.q1 + token * j.q2 + batch * j.q3);
    for (int i = threadIdx.x; i < j.head_k; i += PLAIN_THREADS) q[i] = from[i];
    for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) sum[i] = 0;
    __syncthreads();
    viewer me = viewer_of(j, token);
    float slope = slope_of(j, head), high = -INFINITY, total = 0;
    int first, end;
    bounds_of(j, &first, &end);
    for (int begin = first; begin < end; begin += PLAIN_THREADS) {
        int cell = begin + threadIdx.x, position = 0;
        float score = -INFINITY;
        if (cell < end && sees(j, me, cell, &position)) {
            const char *k = j.k + kv * j.k1 + (int64_t)cell * j.k2 + batch * j.k3;
            float dot = 0;
            for (int i = 0; i < j.head_k; i += 8) {
                float v[8];
                RK::eight(k, i, v, j.head_k);
                for (int e = 0; e < 8; e++) dot += q[i + e] * v[e];
            }
            score = finish_score(j, dot, head, token, batch, cell, me, position, slope);
        }
        float tile_high = block_reduce<true>(score, reduce), next = fmaxf(high, tile_high);
        if (next == -INFINITY) continue; // the same for all threads
        float w = score == -INFINITY ? 0 : expf(score - next), keep = high == -INFINITY ? 0 : expf(high - next);
        weight[threadIdx.x] = w;
        total = total * keep + block_reduce<false>(w, reduce);
        high = next;
        __syncthreads();
        int n = min(PLAIN_THREADS, end - begin);
        for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) {
            float s = sum[i] * keep;
            for (int c = 0; c < n; c++)
                if (weight[c] != 0)
                    s += weight[c] *
                         RV::value(j.v + kv * j.v1 + (int64_t)(begin + c) * j.v2 + batch * j.v3, i, j.head_v);
            sum[i] = s;
        }
        __syncthreads();
    }
    if (j.sinks) {
        float next = fmaxf(high, j.sinks[head]), keep = high == -INFINITY ? 0 : expf(high - next);
        total = total * keep + expf(j.sinks[head] - next);
        for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) sum[i] *= keep;
    }
    float *out = (float *)(j.out + head * j.o1 + token * j.o2 + batch * j.o3);
    for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) out[i] = total > 0 ? sum[i] / total : 0;
}

// ---- Few tokens, f16 cache: the cache split over blocks
// ------------------------------------------------------------------------

enum {
    SPLIT_CELLS = 256,
    SPLIT_THREADS = 128,
    SPLIT_HEADS = 8 /* heads that share a key/value head, at most */,
    SPLIT_MAX_TOKENS = 8
};

// Partial results per token, head and chunk: size floats, then the maximum and the sum of weights.
template <int SIZE>
__global__ static void __launch_bounds__(SPLIT_THREADS) split_kernel(attention_job j, float *partial, int chunks) {
    __shared__ __align__(16) float q[SPLIT_HEADS][SIZE];
    __shared__ float weight[SPLIT_HEADS][SPLIT_CELLS];
    __shared__ float highs[SPLIT_HEADS], totals[SPLIT_HEADS];
    int kv = blockIdx.x, chunk = blockIdx.y, token = blockIdx.z, group = j.heads / j.kv_heads;
    int first, end;
    bounds_of(j, &first, &end);
    int begin = chunk * SPLIT_CELLS, stop = min(end, begin + SPLIT_CELLS);
    begin = max(begin, first);
    float *out = partial + (((int64_t)token * j.heads + kv * group) * chunks + chunk) * (SIZE + 2);
    int64_t head_step = (int64_t)chunks * (SIZE + 2);
    if (begin >= stop) { // nothing here yet: an empty share
        if (threadIdx.x < group) {
            out[threadIdx.x * head_step + SIZE] = -INFINITY;
            out[threadIdx.x * head_step + SIZE + 1] = 0;
        }
        return;
    }
    viewer me = viewer_of(j, token);
    for (int i = threadIdx.x; i < group * SIZE; i += SPLIT_THREADS)
        q[i / SIZE][i % SIZE] =
            ((const float *)(j.q + (int64_t)(kv * group + i / SIZE) * j.q1 + token * j.q2))[i % SIZE];
    __syncthreads();

    // Eight lanes per cell.
    int part = threadIdx.x % 8;
    for (int c = threadIdx.x / 8; c < SPLIT_CELLS; c += SPLIT_THREADS / 8) {
        int cell = begin + c, position = 0;
        bool visible = cell < stop && sees(j, me, cell, &position);
        float dot[SPLIT_HEADS];
#pragma unroll
        for (int g = 0; g < SPLIT_HEADS; g++) dot[g] = 0;
        if (visible) {
            const char *k = j.k + kv * j.k1 + (int64_t)cell * j.k2;
#pragma unroll
            for (int i = 0; i < SIZE / 64; i++) {
                int at = 64 * i + 8 * part;
                uint4 raw = *(const uint4 *)(k + 2 * at);
                const __half2 *h = (const __half2 *)&raw;
                float2 f[4];
                for (int e = 0; e < 4; e++) f[e] = __half22float2(h[e]);
#pragma unroll
                for (int g = 0; g < SPLIT_HEADS; g++) {
                    if (g >= group) break;
                    const float4 *x = (const float4 *)&q[g][at];
                    float4 a = x[0], b = x[1];
                    dot[g] += f[0].x * a.x + f[0].y * a.y + f[1].x * a.z + f[1].y * a.w + f[2].x * b.x +
                              f[2].y * b.y + f[3].x * b.z + f[3].y * b.w;
                }
            }
        }
#pragma unroll
        for (int g = 0; g < SPLIT_HEADS; g++) {
            if (g >= group) break;
            float s = dot[g];
            for (int offset = 4; offset; offset >>= 1) s += __shfl_xor_sync(0xffffffffu, s, offset);
            if (part == 0)
                weight[g][c] = visible ? finish_score(j, s, kv * group + g, token, 0, cell, me, position,
                                                      slope_of(j, kv * group + g))
                                       : -INFINITY;
        }
    }
    __syncthreads();
    for (int g = threadIdx.x / 32; g < group; g += SPLIT_THREADS / 32) {
        float high = -INFINITY, total = 0;
        for (int c = threadIdx.x % 32; c < SPLIT_CELLS; c += 32) high = fmaxf(high, weight[g][c]);
        high = warp_max(high);
        for (int c = threadIdx.x % 32; c < SPLIT_CELLS; c += 32) {
            float w = weight[g][c] == -INFINITY ? 0 : expf(weight[g][c] - high);
            weight[g][c] = w;
            total += w;
        }
        total = warp_sum(total);
        if (threadIdx.x % 32 == 0) {
            highs[g] = high;
            totals[g] = total;
        }
    }
    __syncthreads();

    // SIZE/8 threads per row of V, the rows dealt out over the rest.
    const int lanes = SIZE / 8, rows = SPLIT_THREADS / lanes;
    int dim = threadIdx.x % lanes * 8, row = threadIdx.x / lanes;
    float acc[SPLIT_HEADS][8];
#pragma unroll
    for (int g = 0; g < SPLIT_HEADS; g++)
        for (int e = 0; e < 8; e++) acc[g][e] = 0;
    for (int c = row; c < stop - begin; c += rows) {
        uint4 raw = *(const uint4 *)(j.v + kv * j.v1 + (int64_t)(begin + c) * j.v2 + 2 * dim);
        const __half2 *h = (const __half2 *)&raw;
        float v[8];
        for (int e = 0; e < 4; e++) {
            float2 f = __half22float2(h[e]);
            v[2 * e] = f.x;
            v[2 * e + 1] = f.y;
        }
#pragma unroll
        for (int g = 0; g < SPLIT_HEADS; g++) {
            if (g >= group) break;
            float w = weight[g][c];
            if (w == 0) continue; // an unseen cell may hold anything, NaN too
#pragma unroll
            for (int e = 0; e < 8; e++) acc[g][e] += w * v[e];
        }
    }
    __syncthreads();
    // The rows' shares meet in shared memory, one head at a time.
    float *meet = &weight[0][0]; // SPLIT_THREADS * 8 floats at most
    for (int g = 0; g < group; g++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float value = 0;
#pragma unroll
            for (int k = 0; k < SPLIT_HEADS; k++)
                if (k == g) value = acc[k][e];
            meet[row * SIZE + dim + e] = value;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < SIZE; i += SPLIT_THREADS) {
            float s = 0;
            for (int r = 0; r < rows; r++) s += meet[r * SIZE + i];
            out[g * head_step + i] = s;
        }
        if (threadIdx.x == 0) {
            out[g * head_step + SIZE] = highs[g];
            out[g * head_step + SIZE + 1] = totals[g];
        }
        __syncthreads();
    }
}

template <int SIZE> __global__ static void join_kernel(attention_job j, const float *partial, int chunks) {
    int head = blockIdx.x, token = blockIdx.y, i = threadIdx.x;
    const float *p = partial + ((int64_t)token * j.heads + head) * chunks * (SIZE + 2);
    float high = j.sinks ? j.sinks[head] : -INFINITY;
    for (int c = 0; c < chunks; c++) high = fmaxf(high, p[c * (SIZE + 2) + SIZE]);
    float sum = 0, total = j.sinks ? expf(j.sinks[head] - high) : 0;
    for (int c = 0; c < chunks; c++) {
        float h = p[c * (SIZE + 2) + SIZE];
        if (h == -INFINITY) continue;
        float keep = expf(h - high);
        total += keep * p[c * (SIZE + 2) + SIZE + 1];
        sum += keep * p[c * (SIZE + 2) + i];
    }
    ((float *)(j.out + head * j.o1 + token * j.o2))[i] = total > 0 ? sum / total : 0;
}

// ---- Many tokens, f16 cache: tensor cores
// --------------------------------------------------------------------------------------

enum { TILE = 64, TILE_THREADS = 128 };

template <int SIZE> struct tile_memory {
    __half q[TILE][SIZE + 8], k[TILE][SIZE + 8], v[TILE][SIZE + 8];
    float s[TILE][TILE + 4];
    __half p[TILE][TILE + 8];
    float o[TILE][SIZE + 4];
    float high[TILE], total[TILE], keep[TILE];
    int position[TILE], seq[TILE];
};

template <int SIZE> __global__ static void __launch_bounds__(TILE_THREADS) tile_kernel(attention_job j) {
    using namespace nvcuda;
    extern __shared__ __align__(16) char raw_shared[];
    tile_memory<SIZE> &m = *(tile_memory<SIZE> *)raw_shared;
    int head = blockIdx.x, token0 = blockIdx.y * TILE, kv = head / (j.heads / j.kv_heads), warp = threadIdx.x / 32;
    float slope = slope_of(j, head);
    for (int i = threadIdx.x; i < TILE * SIZE; i += TILE_THREADS) {
        int t = token0 + i / SIZE;
        m.q[i / SIZE][i % SIZE] =
            t < j.tokens ? __float2half_rn(((const float *)(j.q + head * j.q1 + t * j.q2))[i % SIZE] * j.p.scale)
                         : __float2half_rn(0);
        m.o[i / SIZE][i % SIZE] = 0;
    }
    for (int i = threadIdx.x; i < TILE; i += TILE_THREADS) {
        viewer v = token0 + i < j.tokens ? viewer_of(j, token0 + i) : viewer{-1, -1};
        m.position[i] = v.position;
        m.seq[i] = token0 + i < j.tokens ? v.seq : -2; // -2: past the end
        m.high[i] = -INFINITY;
        m.total[i] = 0;
    }
    int first, end;
    bounds_of(j, &first, &end);
    for (int begin = first; begin < end; begin += TILE) {
        __syncthreads();
        // Whether anybody sees anything of this tile: far cells of other sequences and the future cost nothing.
        int any = 0;
        for (int i = threadIdx.x; i < TILE * TILE && !any; i += TILE_THREADS) {
            int r = i / TILE, cell = begin + i % TILE, position;
            if (cell < end && m.seq[r] != -2 && sees(j, viewer{m.position[r], m.seq[r]}, cell, &position)) any = 1;
        }
        if (!__syncthreads_or(any)) continue;
        for (int i = threadIdx.x; i < TILE * (SIZE / 8); i += TILE_THREADS) {
            int c = i / (SIZE / 8), at = i % (SIZE / 8) * 8, cell = begin + c;
            uint4 zero = make_uint4(0, 0, 0, 0);
            *(uint4 *)&m.k[c][at] =
                cell < end ? *(const uint4 *)(j.k + kv * j.k1 + (int64_t)cell * j.k2 + 2 * at) : zero;
            *(uint4 *)&m.v[c][at] =
                cell < end ? *(const uint4 *)(j.v + kv * j.v1 + (int64_t)cell * j.v2 + 2 * at) : zero;
        }
        __syncthreads();
        {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> s[4];
            for (int n = 0; n < 4; n++) wmma::fill_fragment(s[n], 0.0f);
            for (int k = 0; k < SIZE; k += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
                wmma::load_matrix_sync(a, &m.q[16 * warp][k], SIZE + 8);
                for (int n = 0; n < 4; n++) {
                    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
                    wmma::load_matrix_sync(b, &m.k[16 * n][k], SIZE + 8);
                    wmma::mma_sync(s[n], a, b, s[n]);
                }
            }
            for (int n = 0; n < 4; n++)
                wmma::store_matrix_sync(&m.s[16 * warp][16 * n], s[n], TILE + 4, wmma::mem_row_major);
        }
        __syncwarp();
        // Two lanes per row of this warp's 16 rows.
        int row = 16 * warp + threadIdx.x % 32 / 2, side = threadIdx.x % 2;
        viewer me = {m.position[row], m.seq[row]};
        float high = -INFINITY;
        for (int c = side; c < TILE; c += 2) {
            int cell = begin + c, position;
            float x = -INFINITY;
            if (cell < end && me.seq != -2 && sees(j, me, cell, &position)) {
                x = m.s[row][c]; // already scaled
                if (j.p.soft_cap > 0) x = j.p.soft_cap * tanhf(x / j.p.soft_cap);
                if (slope > 0) x -= slope * (float)abs(me.position - position);
            }
            m.s[row][c] = x;
            high = fmaxf(high, x);
        }
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
        float next = fmaxf(m.high[row], high), total = 0;
        for (int c = side; c < TILE; c += 2) {
            float w = m.s[row][c] == -INFINITY ? 0 : __expf(m.s[row][c] - next);
            m.p[row][c] = __float2half_rn(w);
            total += w;
        }
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        float keep = m.high[row] == -INFINITY ? 0 : __expf(m.high[row] - next);
        __syncwarp();
        if (side == 0) {
            m.total[row] = m.total[row] * keep + total;
            m.high[row] = next;
        }
        for (int i = side; i < SIZE; i += 2) m.o[row][i] *= keep;
        __syncwarp();
        for (int n = 0; n < SIZE; n += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
            wmma::load_matrix_sync(o, &m.o[16 * warp][n], SIZE + 4, wmma::mem_row_major);
            for (int k = 0; k < TILE; k += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
                wmma::load_matrix_sync(a, &m.p[16 * warp][k], TILE + 8);
                wmma::load_matrix_sync(b, &m.v[k][n], SIZE + 8);
                wmma::mma_sync(o, a, b, o);
            }
            wmma::store_matrix_sync(&m.o[16 * warp][n], o, SIZE + 4, wmma::mem_row_major);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * SIZE; i += TILE_THREADS) {
        int r = i / SIZE, t = token0 + r;
        if (t >= j.tokens) continue;
        float total = m.total[r], keep = 1;
        if (j.sinks) {
            float next = fmaxf(m.high[r], j.sinks[head]);
            keep = m.high[r] == -INFINITY ? 0 : __expf(m.high[r] - next);
            total = total * keep + __expf(j.sinks[head] - next);
        }
        ((float *)(j.out + head * j.o1 + t * j.o2))[i % SIZE] = total > 0 ? m.o[r][i % SIZE] * keep / total : 0;
    }
}

// ---- Choice
// --------------------------------------------------------------------------------------------------------------------

bool attention_supported(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    static const int cache_types[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_0};
    bool k_ok = false, v_ok = false;
    for (int type : cache_types) {
        k_ok = k_ok || k->type == type;
        v_ok = v_ok || v->type == type;
    }
    if (!k_ok || !v_ok) {
        if (reason) snprintf(reason, size, "this cache type is not read on CUDA");
        return false;
    }
    if (q->ne[0] % 8 || (q->ne[0] + v->ne[0] + PLAIN_THREADS) * 4 > 48 << 10) {
        if (reason) snprintf(reason, size, "heads of %lld elements", (long long)q->ne[0]);
        return false;
    }
    return true;
}

// The fast kernels: f16 rows of 64 or 128 at 16-byte alignment, no stored mask, no batches.
static bool is_fast(const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    return k->type == TN_F16 && v->type == TN_F16 && (q->ne[0] == 64 || q->ne[0] == 128) && v->ne[0] == q->ne[0] &&
           q->ne[3] == 1 && !t->src[TN_ATTN_MASK] && k->nb[1] % 16 == 0 && k->nb[2] % 16 == 0 && v->nb[1] % 16 == 0 &&
           v->nb[2] % 16 == 0;
}
static bool is_split(const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K];
    return is_fast(t) && q->ne[2] <= SPLIT_MAX_TOKENS && q->ne[1] / k->ne[1] <= SPLIT_HEADS;
}
static int chunks_of(const tn_tensor *t) { return (int)((t->src[TN_ATTN_K]->ne[2] + SPLIT_CELLS - 1) / SPLIT_CELLS); }

size_t attention_scratch(const cuda_device *, const tn_tensor *t) {
    if (!is_split(t)) return 0;
    const tn_tensor *q = t->src[TN_ATTN_Q];
    return (size_t)q->ne[2] * (size_t)q->ne[1] * (size_t)chunks_of(t) * (size_t)(q->ne[0] + 2) * 4;
}

template <int SIZE> static tn_status launch_fast(const launch &l, const tn_tensor *t, const attention_job &j) {
    if (is_split(t)) {
        int chunks = chunks_of(t);
        split_kernel<SIZE>
            <<<dim3((unsigned)j.kv_heads, (unsigned)chunks, (unsigned)j.tokens), SPLIT_THREADS, 0, l.stream>>>(
                j, (float *)l.scratch, chunks);
        TN_TRY(cuda_check(cudaGetLastError(), "attention"));
        join_kernel<SIZE>
            <<<dim3((unsigned)j.heads, (unsigned)j.tokens), SIZE, 0, l.stream>>>(j, (const float *)l.scratch, chunks);
        return cuda_check(cudaGetLastError(), "attention");
    }
    size_t bytes = sizeof(tile_memory<SIZE>);
    CUDA_TRY(cudaFuncSetAttribute(tile_kernel<SIZE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    tile_kernel<SIZE><<<dim3((unsigned)j.heads, blocks_for(j.tokens, TILE)), TILE_THREADS, bytes, l.stream>>>(j);
    return cuda_check(cudaGetLastError(), "attention");
}

template <typename RK> static tn_status launch_plain(const launch &l, const tn_tensor *t, const attention_job &j) {
    dim3 grid((unsigned)j.heads, (unsigned)j.tokens, (unsigned)t->ne[3]);
    size_t bytes = (size_t)(j.head_k + j.head_v + PLAIN_THREADS) * 4;
    switch (t->src[TN_ATTN_V]->type) {
    case TN_F32: plain_kernel<RK, read_f32><<<grid, PLAIN_THREADS, bytes, l.stream>>>(j); break;
    case TN_F16: plain_kernel<RK, read_f16><<<grid, PLAIN_THREADS, bytes, l.stream>>>(j); break;
    case TN_BF16: plain_kernel<RK, read_bf16><<<grid, PLAIN_THREADS, bytes, l.stream>>>(j); break;
    case TN_Q8_0: plain_kernel<RK, read_q8_0><<<grid, PLAIN_THREADS, bytes, l.stream>>>(j); break;
    case TN_Q4_0: plain_kernel<RK, read_q4_0><<<grid, PLAIN_THREADS, bytes, l.stream>>>(j); break;
    default: return tn_fail(TN_E_UNSUPPORTED, "attention over values of %s", tn_type_name(t->src[TN_ATTN_V]->type));
    }
    return cuda_check(cudaGetLastError(), "attention");
}

tn_status launch_attention(const launch &l, const tn_tensor *t) {
    attention_job j = job_of(t);
    bool room = l.device->properties.sharedMemPerBlockOptin >= sizeof(tile_memory<128>);
    if (is_fast(t) && (is_split(t) || room))
        return j.head_k == 64 ? launch_fast<64>(l, t, j) : launch_fast<128>(l, t, j);
    switch (t->src[TN_ATTN_K]->type) {
    case TN_F32: return launch_plain<read_f32>(l, t, j);
    case TN_F16: return launch_plain<read_f16>(l, t, j);
    case TN_BF16: return launch_plain<read_bf16>(l, t, j);
    case TN_Q8_0: return launch_plain<read_q8_0>(l, t, j);
    case TN_Q4_0: return launch_plain<read_q4_0>(l, t, j);
    default: return tn_fail(TN_E_UNSUPPORTED, "attention over keys of %s", tn_type_name(t->src[TN_ATTN_K]->type));
    }
}
