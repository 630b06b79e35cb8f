// Attention: choosing a kernel, and the general kernel for what attention_decode.cu, attention_prefill.cu and
// attention_latent.cu do not support. Which cells are visible to a query follows from positions and page tables in
// device memory; no mask is stored.
#include "backend/cuda/kernels/many/attention_plan.cuh"
#include "backend/cuda/kernels/sparse/attention_selected.cuh"
#include "backend/cuda/kernels/weights.cuh"
#include "tensor/attention_bias.h"

#include <algorithm>

// ---- General kernel ----

enum {
    PLAIN_THREADS = 128,
    PLAIN_FIXED = 32,       // floats of static shared memory for sums
    PLAIN_BYTES = 48 << 10, // shared memory of every GPU
    PLAIN_STATIC = (PLAIN_FIXED + 4 * PLAIN_THREADS + PLAIN_THREADS / 32) * 4,
};

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

// The general kernel's operands beyond those of the other kernels.
struct plain_job {
    attention_job a;
    selected_job selected;
    const float *biases; // [buckets][heads] or NULL
    tn__bias_buckets buckets;
};

__device__ static float relative_bias(const plain_job &p, int distance, int head) {
    const tn__bias_buckets &b = p.buckets;
    int away = distance < 0 ? -distance : b.later ? distance : 0;
    int bucket = (distance > 0 ? b.later : 0) + min(away, b.exact);
    for (int i = 0; i < b.n_starts; i++) bucket += away >= b.starts[i];
    return p.biases[bucket * p.a.heads + head];
}

// The visible cells of a query in logical order, collected until there is one for every thread.
struct visible_list {
    int cells[2 * PLAIN_THREADS], positions[2 * PLAIN_THREADS];
    int counts[PLAIN_THREADS / 32]; // of warps
};
// Adds the visible cells from logical cell `begin` on to the n cells of the list, until it has PLAIN_THREADS or more.
// Returns the new number; `begin` moves to the cells after them. All threads of the block call this.
__device__ static int collect_visible(const plain_job &p, attention_query query, visible_positions sees, int end,
                                      const int *set, int *begin, int n, visible_list &list) {
    const attention_job &j = p.a;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (; n < PLAIN_THREADS && *begin < end; *begin += PLAIN_THREADS) {
        paged_cell at = cell_at<false>(j, query.seq, *begin + (int)threadIdx.x, end);
        bool is_visible = at.cell >= 0 && at.position >= sees.low && at.position <= sees.high &&
                          (!p.selected.on || is_selected(p.selected, set, at.position));
        unsigned votes = __ballot_sync(0xffffffffu, is_visible);
        if (lane == 0) list.counts[warp] = __popc(votes);
        __syncthreads();
        int before = n;
        for (int w = 0; w < PLAIN_THREADS / 32; w++) {
            before += w < warp ? list.counts[w] : 0;
            n += list.counts[w];
        }
        if (is_visible) {
            int to = before + __popc(votes & ((1u << lane) - 1));
            list.cells[to] = at.cell;
            list.positions[to] = at.position;
        }
        __syncthreads();
    }
    return n;
}

// One block per head and token. A thread computes the score of one cell at a time, then sums one dimension of the
// values.
__global__ static void plain_kernel(plain_job p) {
    extern __shared__ float shared[]; // q, the running sum, a tile of weights, the set of selected entries
    __shared__ float reduce[PLAIN_FIXED];
    __shared__ visible_list list;
    const attention_job &j = p.a;
    float *q = shared, *sum = q + j.head_k, *weight = sum + j.head_v;
    int *set = (int *)(weight + PLAIN_THREADS);
    int head = blockIdx.x, token = blockIdx.y, batch = blockIdx.z, kv = head / (j.heads / j.kv_heads);
    const float *from = (const float *)(j.q + head * j.q1 + token * j.q2 + batch * j.q3);
    for (int i = threadIdx.x; i < j.head_k; i += PLAIN_THREADS) q[i] = from[i];
    for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) sum[i] = 0;
    if (p.selected.on) fill_selected<PLAIN_THREADS>(p.selected, token, set);
    __syncthreads();
    attention_query query = query_of(j, token);
    visible_positions sees = visible_to(j, query);
    float slope = attention_slope(j, head), max_score = -INFINITY, weight_sum = 0;
    int end = logical_cells(j, query), begin = 0, n = 0;
    while ((n = collect_visible(p, query, sees, end, set, &begin, n, list)) > 0) {
        int now = min(n, (int)PLAIN_THREADS);
        float score = -INFINITY;
        if ((int)threadIdx.x < now) {
            int cell = list.cells[threadIdx.x], position = list.positions[threadIdx.x];
            const char *k = j.k + kv * j.k1 + (int64_t)cell * j.k2 + batch * j.k3;
            float dot = 0;
            for (int i = 0; i < j.head_k; i += 8) {
                float v[8];
                eight_of(j.k_type, k, i, v, j.head_k);
                for (int e = 0; e < 8; e++) dot += q[i + e] * v[e];
            }
            score = finish_score(j, dot, head, token, batch, cell, query, position, slope);
            if (p.biases) score += relative_bias(p, position - query.position, head);
        }
        float tile_max = block_reduce<true>(score, reduce), new_max = fmaxf(max_score, tile_max);
        if (new_max != -INFINITY) { // uniform over the block
            float w = score == -INFINITY ? 0 : expf(score - new_max),
                  rescale = max_score == -INFINITY ? 0 : expf(max_score - new_max);
            weight[threadIdx.x] = w;
            weight_sum = weight_sum * rescale + block_reduce<false>(w, reduce);
            max_score = new_max;
            __syncthreads();
            for (int i = threadIdx.x; i < j.head_v; i += PLAIN_THREADS) {
                float s = sum[i] * rescale;
                for (int c = 0; c < now; c++)
                    if (weight[c] != 0)
                        s += weight[c] * value_of(j.v_type,
                                                  j.v + kv * j.v1 + (int64_t)list.cells[c] * j.v2 + batch * j.v3, i,
                                                  j.head_v);
                sum[i] = s;
            }
        }
        __syncthreads();
        // What is left of the list moves to its beginning; it is less than a tile.
        n -= now;
        if ((int)threadIdx.x < n) {
            list.cells[threadIdx.x] = list.cells[PLAIN_THREADS + threadIdx.x];
            list.positions[threadIdx.x] = list.positions[PLAIN_THREADS + threadIdx.x];
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

static size_t plain_shared(const tn_tensor *t) {
    return 4 * (size_t)(t->src[TN_ATTN_K]->ne[0] + t->src[TN_ATTN_V]->ne[0] + PLAIN_THREADS) + selected_shared(t);
}

bool attention_supported(const tn_tensor *t, char *reason, size_t size) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    if (!is_cache_type(k->type) || !is_cache_type(v->type)) {
        if (reason) snprintf(reason, size, "this cache type is not read on CUDA");
        return false;
    }
    if (q->ne[0] % 8 || plain_shared(t) + PLAIN_STATIC > PLAIN_BYTES) {
        const tn_tensor *selected = t->src[TN_ATTN_SELECTED];
        if (reason)
            snprintf(reason, size, "heads of %lld elements and %lld selected entries", (long long)q->ne[0],
                     (long long)(selected ? selected->ne[0] : 0));
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
    if (decode_supports(device, t)) return decode_scratch(device, t);
    if (attention_is_planned(device, t)) return many_scratch(device, t);
    if (t->flags & TN_FLAG_REPEATABLE) return 0;
    return !prefill_supports(device, t) && latent_supports(device, t) ? latent_scratch(device, t) : 0;
}

tn_status compile_attention(const compilation &c, const tn_tensor *t) {
    if (decode_supports(*c.device, t)) return compile_decode(c, t, decode_extras{});
    if (c.plans->count && attention_is_planned(*c.device, t)) return compile_many(c, t);
    // The order of operations of the general kernel depends on the query's own cells alone.
    const bool repeatable = t->flags & TN_FLAG_REPEATABLE;
    if (!repeatable && prefill_supports(*c.device, t)) return compile_prefill(c, t);
    if (!repeatable && latent_supports(*c.device, t)) return compile_latent(c, t);
    plain_job p = {};
    p.a = attention_job_of(t);
    p.selected = selected_job_of(t);
    if (const tn_tensor *table = t->src[TN_ATTN_BIAS_TABLE]) {
        p.biases = (const float *)table->data;
        p.buckets = tn__bias_buckets_of(t);
    }
    dim3 grid((unsigned)p.a.heads, (unsigned)p.a.tokens, (unsigned)t->ne[3]);
    return add_ordered(c, KERNEL(plain_kernel), grid, PLAIN_THREADS, plain_shared(t), p);
}
