// The persistent decode kernel: a matmul with one column as a step.
//
// The groups of rows are divided evenly among blocks, and a block's items evenly among its warps. The warp that
// begins a group finishes it (residual, gate), and adds what the warps after it computed of that group. Every block
// loads the whole input into its shared memory, normalized, and quantized where the weights are of a block type.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_MATMUL_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_MATMUL_CUH

#include "backend/cuda/kernels/persistent/persistent_weights.cuh"
#include "backend/cuda/kernels/unary.cuh"

#if __CUDA_ARCH__ >= 900

// ---- Input ----

// The input in shared memory: k int8 values, k/32 scales and k/32 pairs of sums; or k floats.
__device__ static inline activations activations_in_shared(int k, char *shared) {
    activations in = {};
    in.q = (int8_t *)shared;
    in.scale = (float *)(shared + k);
    in.sums = (short2 *)(shared + k + k / 8);
    in.y = (const float *)shared;
    in.stride = k;
    return in;
}

// Every thread needs a norm's weights just when a step's input arrives, on the critical path. Those of the next norm
// are therefore copied to shared memory a step earlier.
struct norm_prefetch {
    uint64_t loaded; // barrier
    int step;        // whose norm it is; -1: none
    uint32_t phase;  // of the barrier
};
__device__ static inline void prefetch_norm_weights(norm_prefetch &norm, const step_window &window, int step,
                                                    int last_loaded, char *to, int max_bytes) {
    while (++step <= last_loaded) {
        const persistent_step &s = window.steps[step % STEP_WINDOW];
        const gemv_job &j = s.matmul.job;
        if (s.is_attention || s.matmul.same_input || !j.in.weight || 4 * j.k > max_bytes) continue;
        norm.step = step;
        norm.phase ^= 1;
        barrier_expect(&norm.loaded, (uint32_t)(4 * j.k));
        bulk(to, (const char *)j.in.weight, (uint32_t)(4 * j.k), &norm.loaded);
        return;
    }
}
// A thread's first eight values of the input, loaded before they are needed and perhaps before they are published.
struct early_input {
    tagged_words words[2];
};
__device__ static inline void load_input(const persistent_matmul &p, int at, tagged_words (&to)[2]) {
    if (at >= p.job.k) return;
    to[0] = load_tagged(p.job.in.y + at);
    to[1] = load_tagged(p.job.in.y + at + 4);
}
// Quantizes eight values of each lane to int8, with a scale and two sums of 16 for the 32 values of four lanes.
__device__ static inline void quantize_input(const float (&y)[8], int at, bool has_values, const activations &in,
                                             char *shared) {
    float highest = fmaxf(fmaxf(fmaxf(fabsf(y[0]), fabsf(y[1])), fmaxf(fabsf(y[2]), fabsf(y[3]))),
                          fmaxf(fmaxf(fabsf(y[4]), fabsf(y[5])), fmaxf(fabsf(y[6]), fabsf(y[7]))));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
    float factor = highest > 0 ? __fdividef(127, highest) : 0;
    // 1.5 · 2²³: the low bits of a float this large are the rounded integer.
    const float anchor = 12582912;
    uint32_t q[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t low = __byte_perm(__float_as_uint(fmaf(y[4 * i], factor, anchor)),
                                   __float_as_uint(fmaf(y[4 * i + 1], factor, anchor)), 0x0040),
                 high = __byte_perm(__float_as_uint(fmaf(y[4 * i + 2], factor, anchor)),
                                    __float_as_uint(fmaf(y[4 * i + 3], factor, anchor)), 0x0040);
        q[i] = __byte_perm(low, high, 0x5410);
    }
    int part = __dp4a((int)q[0], 0x01010101, __dp4a((int)q[1], 0x01010101, 0));
    part += __shfl_xor_sync(0xffffffffu, part, 1);
    int other = __shfl_xor_sync(0xffffffffu, part, 2);
    if (has_values) {
        *(uint2 *)(shared + at) = make_uint2(q[0], q[1]);
        if (threadIdx.x % 4 == 0) {
            in.scale[at / 32] = highest / 127;
            in.sums[at / 32] = make_short2((short)part, (short)other);
        }
    }
}
// Polls for the previous step's result and stores it in shared memory. `weight`: the norm's, or NULL. The division by
// the root mean square is left to the end of each row, so that the multiplication need not wait for the sum of
// squares; `squares` gets one partial sum per warp.
template <int KINDS>
__device__ static inline void load_activations(const persistent_matmul &p, early_input first, unsigned tag,
                                               const float *weight, char *shared, float *squares) {
    const gemv_job &j = p.job;
    bool floats = !(KINDS & ~HALF_KINDS) || (KINDS & HALF_KINDS && p.kinds[0] <= PERSISTENT_BF16);
    const float *x = j.in.y;
    activations in = activations_in_shared(j.k, shared);
    float sum = 0;
    tagged_words h[2], next[2] = {first.words[0], first.words[1]};
    // Each thread handles eight values, so four lanes share a group of 32. All lanes of a warp continue while the
    // first one has values, because the lanes shuffle.
#pragma unroll 1
    for (int at = 8 * (int)threadIdx.x; at - 8 * ((int)threadIdx.x % 32) < j.k; at += 8 * THREADS) {
        bool has_values = at < j.k;
        h[0] = next[0], h[1] = next[1];
        load_input(p, at + 8 * THREADS, next); // overlaps with the work on h
        float y[8];
        poll_warp(h, x + at, has_values, tag);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 v = floats_of(h[i], tag);
            y[4 * i] = v.x, y[4 * i + 1] = v.y, y[4 * i + 2] = v.z, y[4 * i + 3] = v.w;
        }
        if (weight && has_values) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 w = *(const float4 *)(weight + at + 4 * i);
                const float by[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sum += y[4 * i + e] * y[4 * i + e];
                    y[4 * i + e] *= by[e];
                }
            }
        }
        if (floats) {
            if (has_values) {
                *(float4 *)(shared + 4 * at) = make_float4(y[0], y[1], y[2], y[3]);
                *(float4 *)(shared + 4 * at + 16) = make_float4(y[4], y[5], y[6], y[7]);
            }
            continue;
        }
        quantize_input(y, at, has_values, in, shared);
    }
    if (weight) {
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    }
    __syncthreads();
}
__device__ static inline float rms_scale(const gemv_job &j, const float *squares) {
    if (!j.in.weight) return 1;
    float sum = squares[threadIdx.x % WARPS];
#pragma unroll
    for (int offset = WARPS / 2; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return rsqrtf(sum / (float)j.k + j.in.eps);
}

// ---- Multiplication ----

// Adds a stage's contribution to the sums of its rows.
template <typename U>
__device__ static inline void multiply_stage(const char *at, const activations &in, int k, int piece,
                                             float (&sum)[4]) {
    int lane = threadIdx.x % 32;
    if (!U::covers(piece, lane, k)) return;
    U now[U::GROUP];
    int elements = min((int)U::SPAN, k - piece * U::SPAN);
#pragma unroll
    for (int i = 0; i < U::GROUP; i++) now[i].take(at + i * U::ROW, lane, elements);
#pragma unroll
    for (int i = 0; i < U::GROUP; i++) sum[i] += now[i].dot(in, 0, k, piece, lane);
}
// Sums over all lanes. Lanes 8r to 8r + 7 get the sum of row r.
__device__ static inline float reduce_rows(const float (&sum)[4]) {
    int lane = threadIdx.x % 32;
    bool upper = lane & 16, odd = lane & 8;
    float a = upper ? sum[2] : sum[0], b = upper ? sum[3] : sum[1];
    a += __shfl_xor_sync(0xffffffffu, upper ? sum[0] : sum[2], 16);
    b += __shfl_xor_sync(0xffffffffu, upper ? sum[1] : sum[3], 16);
    float x = odd ? b : a;
    x += __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
    for (int offset = 4; offset; offset >>= 1) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
// The row of its matrix that this lane finishes, or -1: lane 8r finishes row r of the group.
__device__ static inline int finished_row(const persistent_matmul &p, int group, int *matrix) {
    int lane = threadIdx.x % 32, m = matrix_of(p, &group, 0), row = group * p.rows[m] + lane / 8;
    *matrix = m;
    return lane % 8 || lane / 8 >= p.rows[m] || row >= p.job.m[m].rows ? -1 : row;
}
__device__ static inline float load_residual(const persistent_matmul &p, int group) {
    if (p.job.finish != GEMV_ADD) return 0; // GEMV_ADD has one matrix
    int lane = threadIdx.x % 32, row = group * p.rows[0] + lane / 8;
    return lane % 8 || lane / 8 >= p.rows[0] || row >= p.job.m[0].rows ? 0 : __ldcg(p.job.residual + row);
}
// Finishes a group's rows from the sums of the first and second pass; eight lanes have the same row. Not inlined: it
// is called twice, and the instruction cache is small.
__device__ static __noinline__ void finish_group(const persistent_matmul &p, int group, float first, float second,
                                                 float residual, unsigned tag) {
    const gemv_job &j = p.job;
    int m, row = finished_row(p, group, &m);
    if (p.residual_is_published) residual = without_tag(residual);
    float value = (j.finish == GEMV_GLU ? gated(j.glu, first, second, j.glu_params) : first) + residual;
    float after = __shfl_xor_sync(0xffffffffu, value, 8); // the next row's, in lanes of even rows
    if (row < 0) return;
    if (p.published[m] && row % 2 == 0) publish(p.published[m] + row, value, after, tag);
    if (j.m[m].out) j.m[m].out[row] = value;
    if (j.next.y) j.next.y[row] = value;
}

// One step: loads the input, then multiplies this warp's share. What does not depend on the previous step comes
// first, while its results are being published. partial_sums[warp][pass][row]: what a warp computed of a group that
// another warp began.
template <int KINDS>
__device__ static void run_matmul(const persistent_matmul &p, const warp_share &mine, char *shared,
                                  weight_fetch &fetch, warp_progress &progress, const step_window &window, int step,
                                  int last_loaded, char *ring, uint64_t *full, float (*partial_sums)[2][4],
                                  float *squares, norm_prefetch &norms, char *norm_weights, int norm_bytes,
                                  unsigned input_tag, unsigned tag, early_input first_input) {
    unsigned consumed = progress.consumed;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = p.job.k, pieces = p.pieces, passes = passes_of(p);
    int group = mine.group, group_begin = mine.begin - mine.skipped, item = mine.begin;
    int pass = mine.pass, piece = mine.piece, kind = mine.kind;
    activations in = activations_in_shared(k, shared);
    float first = 0, second = 0;
    bool begun_here = !mine.skipped, unfinished = false, input_loaded = false;
    float residual = item < mine.end ? load_residual(p, group) : 0;
    float sum[4] = {}, norm = -1;
    for (;;) {
        // Refill the ring before polling, and after every item but the last: between a step's last item and the next
        // step's first input no weights are fetched, because that is the critical path.
        if (lane == 0) fetch_weights(fetch, consumed, window, last_loaded, ring, full);
        __syncwarp();
        if (!input_loaded) {
            bool prefetched = norms.step == step;
            if (prefetched) barrier_wait(&norms.loaded, norms.phase);
            if (p.same_input)
                __syncthreads(); // other warps may still read partial_sums
            else
                load_activations<KINDS>(p, first_input, input_tag,
                                        prefetched ? (const float *)norm_weights : p.job.in.weight, shared, squares);
            // After this barrier all threads have read the weights and `norms`. The
            // volatile read keeps the compiler from hoisting it to all threads, which would race with the update.
            if (threadIdx.x == 0 && *(volatile int *)&norms.step <= step)
                prefetch_norm_weights(norms, window, step, last_loaded, norm_weights, norm_bytes);
            input_loaded = true;
            if (item == mine.end) break;
        }
        barrier_wait(full + consumed % STAGES, consumed / STAGES & 1);
        const char *stage = ring + consumed % STAGES * STAGE_BYTES;
#define MULTIPLY(U) multiply_stage<U>(stage, in, k, piece, sum)
        FOR_WEIGHT_KIND(KINDS, kind, MULTIPLY)
#undef MULTIPLY
        __syncwarp();
        consumed++;
        item++;
        if (++piece < pieces && item < mine.end) continue;
        if (norm < 0) norm = rms_scale(p.job, squares); // not earlier: the first item is on the critical path
        float x = reduce_rows(sum) * norm;
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
        if (pass)
            second = x;
        else
            first = x;
        unfinished = piece < pieces || pass + 1 < passes;
        piece = 0;
        if (!unfinished || item == mine.end) {
            if (!begun_here) {
                partial_sums[warp][0][lane / 8] = first;
                partial_sums[warp][1][lane / 8] = second;
            } else if (!unfinished) {
                finish_group(p, group, first, second, residual, tag);
            }
            if (item == mine.end) break;
            begun_here = true;
            group_begin = item;
            group++;
            first = second = 0;
            residual = load_residual(p, group);
        }
        pass = unfinished;
        kind = weight_kind_of(p, group, pass);
    }
    if (lane == 0) progress.consumed = consumed;
    __syncthreads();
    if (!unfinished || !begun_here) return;
    // The last group continues in the warps after this one.
    int group_end = group_begin + pieces * passes;
    for (int w = warp + 1; w < WARPS && mine.items * w / WARPS < group_end; w++)
        if (mine.items * w / WARPS != mine.items * (w + 1) / WARPS) {
            first += partial_sums[w][0][lane / 8];
            second += partial_sums[w][1][lane / 8];
        }
    finish_group(p, group, first, second, residual, tag);
}

#endif

#endif
