// Attention: choosing a kernel, and the general kernel for what attention_decode.cu and attention_prefill.cu do not
// support. Which cells are visible to a query follows from positions and page tables in device memory; no mask is
// stored.
#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/weights.cuh"

// ---- General kernel ----

enum { PLAIN_THREADS = 128, PLAIN_FIXED = 32 }; // PLAIN_FIXED: floats of static shared memory for sums

// Rows of any type and alignment. The type is chosen at run time: this kernel is rarely used, and instantiating it
// for every pair of types would not be worth the code size.
__device__ static void eight_of(int type, const char *row, int i, float *v, int n) {
    switch (type) {
    case TN_F32: read_f32::eight(row, i, v, n); break;
    case TN_F16: read_f16::eight(row, i, v, n); break;
    case TN_BF16: read_bf16::eight(row, i, v, n); break;
    case TN_FP8:
        for (int k = 0; k < 8; k++) v[k] = fp8_to_float(((const uint8_t *)row)[i + k]);
        break;
    case TN_Q8_0: read_q8_0::eight(row, i, v, n); break;
    case TN_Q5_1: read_q5_1::eight(row, i, v, n); break;
    case TN_Q5_0: read_q5_0::eight(row, i, v, n); break;
    case TN_Q4_1: read_q4_1::eight(row, i, v, n); break;
    case TN_Q4_0: read_q4_0::eight(row, i, v, n); break;
    }
}
__device__ static float value_of(int type, const char *row, int i, int n) {
    switch (type) {
    case TN_Q8_0: return read_q8_0::value(row, i, n);
    case TN_Q5_1: return read_q5_1::value(row, i, n);
    case TN_Q5_0: return read_q5_0::value(row, i, n);
    case TN_Q4_1: return read_q4_1::value(row, i, n);
    case TN_Q4_0: return read_q4_0::value(row, i, n);
    default: return load_as_float(row + i * (type == TN_F32 ? 4 : type == TN_FP8 ? 1 : 2), type);
    }
}

// One block per head and token. A thread computes the score of one cell at a time, then sums one dimension of the
// values.
__global__ static void plain_kernel(attention_job j) {
    extern __shared__ float shared[]; // q, then the running sum, then a tile of weights
    __shared__ float reduce[PLAIN_FIXED];
    __shared__ int cells[PLAIN_THREADS];
    float *q = shared, *sum = q + j.head_k, *weight = sum + j.head_v;
    int head = blockIdx.x, token = blockIdx.y, batch = blockIdx.z, kv = head / (j.heads / j.kv_heads);
    const float *from = (const float *)(j.q + head * j.q1 + token * j.q2 + batch * j.q3);
    for (int i = threadIdx.x; i < j.head_k; i += PLAIN_THREADS) q[i] = from[i];
    for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) sum[i] = 0;
    __syncthreads();
    attention_query query = query_of(j, token);
    visible_positions sees = visible_to(j, query);
    float slope = attention_slope(j, head), max_score = -INFINITY, weight_sum = 0;
    int end = logical_cells(j, query);
    for (int begin = 0; begin < end; begin += PLAIN_THREADS) {
        float score = -INFINITY;
        paged_cell at = cell_at<false>(j, query.seq, begin + threadIdx.x, end);
        cells[threadIdx.x] = at.cell;
        if (at.cell >= 0 && at.position >= sees.low && at.position <= sees.high) {
            const char *k = j.k + kv * j.k1 + (int64_t)at.cell * j.k2 + batch * j.k3;
            float dot = 0;
            for (int i = 0; i < j.head_k; i += 8) {
                float v[8];
                eight_of(j.k_type, k, i, v, j.head_k);
                for (int e = 0; e < 8; e++) dot += q[i + e] * v[e];
            }
            score = finish_score(j, dot, head, token, batch, at.cell, query, at.position, slope);
        }
        float tile_max = block_reduce<true>(score, reduce), new_max = fmaxf(max_score, tile_max);
        if (new_max == -INFINITY) continue; // uniform over the block
        float w = score == -INFINITY ? 0 : expf(score - new_max),
              rescale = max_score == -INFINITY ? 0 : expf(max_score - new_max);
        weight[threadIdx.x] = w;
        weight_sum = weight_sum * rescale + block_reduce<false>(w, reduce);
        max_score = new_max;
        __syncthreads();
        int n = min(PLAIN_THREADS, end - begin);
        for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) {
            float s = sum[i] * rescale;
            for (int c = 0; c < n; c++)
                if (weight[c] != 0)
                    s += weight[c] *
                         value_of(j.v_type, j.v + kv * j.v1 + (int64_t)cells[c] * j.v2 + batch * j.v3, i, j.head_v);
            sum[i] = s;
        }
        __syncthreads();
    }
    if (j.sinks) {
        float new_max = fmaxf(max_score, j.sinks[head]),
              rescale = max_score == -INFINITY ? 0 : expf(max_score - new_max);
        weight_sum = weight_sum * rescale + expf(j.sinks[head] - new_max);
        for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) sum[i] *= rescale;
    }
    float *out = (float *)(j.out + head * j.o1 + token * j.o2 + batch * j.o3);
    for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) out[i] = weight_sum > 0 ? sum[i] / weight_sum : 0;
}

// ---- Choosing a kernel ----

bool attention_supported(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    if (!is_cache_type(k->type) || !is_cache_type(v->type)) {
        if (reason) snprintf(reason, size, "this cache type is not read on CUDA");
        return false;
    }
    if (q->ne[0] % 8 || (q->ne[0] + v->ne[0] + 2 * PLAIN_THREADS + PLAIN_FIXED) * 4 > 48 << 10) {
        if (reason) snprintf(reason, size, "heads of %lld elements", (long long)q->ne[0]);
        return false;
    }
    if (q->ne[2] > MOST_ROWS || q->ne[3] > MOST_ROWS) { // the plain kernel's grid
        if (reason) snprintf(reason, size, "%lld tokens in %lld batches", (long long)q->ne[2], (long long)q->ne[3]);
        return false;
    }
    // Kernels count logical cells in 32 bits, and may go beyond the last by less than a tile of all warps.
    const tn_tensor *pages = t->src[TN_ATTN_PAGES];
    if (pages && pages->ne[1] - 1 > (INT32_MAX - 65536) / t->params.attention.page) {
        if (reason)
            snprintf(reason, size, "%lld runs of %d cells", (long long)pages->ne[1] - 1,
                     (int)t->params.attention.page);
        return false;
    }
    return true;
}

size_t attention_scratch(const device_description &device, const tn_tensor *t) {
    return decode_supports(t) ? decode_scratch(device, t) : 0;
}

tn_status compile_attention(const compilation &c, const tn_tensor *t) {
    if (decode_supports(t)) return compile_decode(c, t, decode_extras{});
    if (prefill_supports(*c.device, t)) return compile_prefill(c, t);
    attention_job j = attention_job_of(t);
    dim3 grid((unsigned)j.heads, (unsigned)j.tokens, (unsigned)t->ne[3]);
    size_t shared = (size_t)(j.head_k + j.head_v + PLAIN_THREADS) * 4;
    return add_ordered(c, KERNEL(plain_kernel), grid, PLAIN_THREADS, shared, j);
}
