// Attention: which kernel runs it, and the plain one for whatever the fast ones (decode.cu, prefill.cu) leave.
// Which cells a query sees follows from positions and sequence bits in device memory; no mask is stored.
#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/weights.cuh"

// ---- Any shape, any type ----

enum { PLAIN_THREADS = 128, PLAIN_FIXED = 32 /* floats of shared memory that every block has */ };

// Rows of any type at any place. What comes here is rare: a kernel for every pair of types would not be worth its
// size.
__device__ static void eight_of(int type, const char *row, int i, float *v, int n) {
    switch (type) {
    case TN_F32: read_f32::eight(row, i, v, n); break;
    case TN_F16: read_f16::eight(row, i, v, n); break;
    case TN_BF16: read_bf16::eight(row, i, v, n); break;
    case TN_Q8_0: read_q8_0::eight(row, i, v, n); break;
    case TN_Q4_0: read_q4_0::eight(row, i, v, n); break;
    }
}
__device__ static float value_of(int type, const char *row, int i, int n) {
    switch (type) {
    case TN_Q8_0: return read_q8_0::value(row, i, n);
    case TN_Q4_0: return read_q4_0::value(row, i, n);
    default: return load_as_float(row + i * (type == TN_F32 ? 4 : 2), type);
    }
}

// One block per head and token; a cell per thread for the scores, a dimension per thread for the sum.
__global__ static void plain_kernel(attention_job j) {
    extern __shared__ float shared[]; // q, then the running sum, then a tile of weights
    __shared__ float reduce[PLAIN_FIXED];
    float *q = shared, *sum = q + j.head_k, *weight = sum + j.head_v;
    int head = blockIdx.x, token = blockIdx.y, batch = blockIdx.z, kv = head / (j.heads / j.kv_heads);
    const float *from = (const float *)(j.q + head * j.q1 + token * j.q2 + batch * j.q3);
    for (int i = threadIdx.x; i < j.head_k; i += PLAIN_THREADS) q[i] = from[i];
    for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) sum[i] = 0;
    __syncthreads();
    attention_query me = query_of(j, token);
    float slope = attention_slope(j, head), high = -INFINITY, total = 0;
    int first, end;
    cell_range(j, &first, &end);
    for (int begin = first; begin < end; begin += PLAIN_THREADS) {
        int cell = begin + threadIdx.x, position = 0;
        float score = -INFINITY;
        if (cell < end && query_sees(j, me, cell, &position)) {
            const char *k = j.k + kv * j.k1 + (int64_t)cell * j.k2 + batch * j.k3;
            float dot = 0;
            for (int i = 0; i < j.head_k; i += 8) {
                float v[8];
                eight_of(j.k_type, k, i, v, j.head_k);
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
                    s += weight[c] * value_of(j.v_type, j.v + kv * j.v1 + (int64_t)(begin + c) * j.v2 + batch * j.v3,
                                              i, j.head_v);
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

// ---- Choice ----

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
    if (q->ne[0] % 8 || (q->ne[0] + v->ne[0] + PLAIN_THREADS + PLAIN_FIXED) * 4 > 48 << 10) {
        if (reason) snprintf(reason, size, "heads of %lld elements", (long long)q->ne[0]);
        return false;
    }
    if (q->ne[2] > MOST_ROWS || q->ne[3] > MOST_ROWS) { // the plain kernel's grid
        if (reason) snprintf(reason, size, "%lld tokens in %lld batches", (long long)q->ne[2], (long long)q->ne[3]);
        return false;
    }
    return true;
}

size_t attention_scratch(const cuda_device *device, const tn_tensor *t) {
    return decode_supports(t) ? decode_scratch(device, t) : 0;
}

tn_status launch_attention(const launch &l, const tn_tensor *t) {
    if (decode_supports(t)) return launch_decode(l, t, decode_extras{});
    if (prefill_supports(l.device, t)) return launch_prefill(l, t);
    attention_job j = attention_job_of(t);
    dim3 grid((unsigned)j.heads, (unsigned)j.tokens, (unsigned)t->ne[3]);
    plain_kernel<<<grid, PLAIN_THREADS, (size_t)(j.head_k + j.head_v + PLAIN_THREADS) * 4, l.stream>>>(j);
    return cuda_check(cudaGetLastError(), "attention");
}
