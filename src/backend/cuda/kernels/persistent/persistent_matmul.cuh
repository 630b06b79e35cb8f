// The persistent decode kernel: a matrix multiplication with one column as a step.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_MATMUL_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_MATMUL_CUH

#include "backend/cuda/kernels/persistent/persistent_weights.cuh"
#include "backend/cuda/kernels/unary.cuh"

#if __CUDA_ARCH__ >= 900

// Activations in shared memory: k quants, k/32 scales, k/32 pairs of sums; or k floats.
__device__ static inline activations activations_in_shared(int k, char *shared) {
    activations in = {};
    in.q = (int8_t *)shared;
    in.scale = (float *)(shared + k);
    in.sums = (short2 *)(shared + k + k / 8);
    in.y = (const float *)shared;
    in.stride = k;
    return in;
}

// The norms' weights are read by all at the worst moment: those of the next norm come while there is time.
struct weighed {
    uint64_t there;
    int step; // whose they are; -1: nobody's
    uint32_t phase;
};
__device__ static inline void next_weight(weighed &norm, const knowledge &known, int step, int last_known, char *to,
                                          int room) {
    while (++step <= last_known) {
        const persistent_step &s = known.steps[step % KNOWN];
        const gemv_job &j = s.matmul.job;
        if (s.is_attention || !j.in.weight || 4 * j.k > room) continue;
        norm.step = step;
        norm.phase ^= 1;
        barrier_expect(&norm.there, (uint32_t)(4 * j.k));
        bulk(to, (const char *)j.in.weight, (uint32_t)(4 * j.k), &norm.there);
        return;
    }
}
// What a thread hears first of the result of the step before.
struct first_tagged {
    tagged_words h[2];
};
__device__ static inline void load_first_words(const persistent_matmul &p, int at, tagged_words (&to)[2]) {
    if (at >= p.job.k) return;
    to[0] = load_tagged(p.job.in.y + at);
    to[1] = load_tagged(p.job.in.y + at + 4);
}
// Brings the result of the step before near. The norm's division is left to who finishes rows, so that nobody waits
// for the sum; it is in `squares`, a part per warp.
template <int KINDS>
__device__ static inline void prepare(const persistent_matmul &p, first_tagged first, unsigned tag,
                                      const float *weight, char *shared, float *squares) {
    const gemv_job &j = p.job;
    bool floats = !(KINDS & ~HALF_KINDS) || (KINDS & HALF_KINDS && p.kinds[0] <= PERSISTENT_BF16);
    const float *x = j.in.y;
    activations in = activations_in_shared(j.k, shared);
    float sum = 0;
    tagged_words h[2], next[2] = {first.h[0], first.h[1]};
    // A thread has eight values, four lanes a group of 32; whole warps are beyond the end together.
#pragma unroll 1
    for (int at = 8 * (int)threadIdx.x; at - 8 * ((int)threadIdx.x % 32) < j.k; at += 8 * THREADS) {
        bool here = at < j.k;
        h[0] = next[0], h[1] = next[1];
        load_first_words(p, at + 8 * THREADS, next); // on its way meanwhile
        float y[8];
        poll_warp(h, x + at, here, tag);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 v = floats_of(h[i], tag);
            y[4 * i] = v.x, y[4 * i + 1] = v.y, y[4 * i + 2] = v.z, y[4 * i + 3] = v.w;
        }
        if (weight && here) {
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
            if (here) {
                *(float4 *)(shared + 4 * at) = make_float4(y[0], y[1], y[2], y[3]);
                *(float4 *)(shared + 4 * at + 16) = make_float4(y[4], y[5], y[6], y[7]);
            }
            continue;
        }
        float most = fmaxf(fmaxf(fmaxf(fabsf(y[0]), fabsf(y[1])), fmaxf(fabsf(y[2]), fabsf(y[3]))),
                           fmaxf(fmaxf(fabsf(y[4]), fabsf(y[5])), fmaxf(fabsf(y[6]), fabsf(y[7]))));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        float factor = most > 0 ? __fdividef(127, most) : 0;
        // Added to this the last bits are the rounded number.
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
        if (here) {
            *(uint2 *)(shared + at) = make_uint2(q[0], q[1]);
            if (threadIdx.x % 4 == 0) {
                in.scale[at / 32] = most / 127;
                in.sums[at / 32] = make_short2((short)part, (short)other);
            }
        }
    }
    if (weight) {
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    }
    __syncthreads();
}
__device__ static inline float norm_of(const gemv_job &j, const float *squares) {
    if (!j.in.weight) return 1;
    float sum = squares[threadIdx.x % WARPS];
#pragma unroll
    for (int offset = WARPS / 2; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return rsqrtf(sum / (float)j.k + j.in.eps);
}

// Adds what a stage has to the sums of its rows.
template <typename U>
__device__ static inline void read_stage(const char *at, const activations &in, int k, int piece, float (&sum)[4]) {
    int lane = threadIdx.x % 32;
    if (!U::covers(piece, lane, k)) return;
    U now[U::GROUP];
    int elements = min((int)U::SPAN, k - piece * U::SPAN);
#pragma unroll
    for (int i = 0; i < U::GROUP; i++) now[i].take(at + i * U::ROW, lane, elements);
#pragma unroll
    for (int i = 0; i < U::GROUP; i++) sum[i] += now[i].dot(in, 0, k, piece, lane);
}
// Sums over all lanes; lanes 8 r to 8 r + 7 get that of row r.
__device__ static inline float sum_rows(const float (&sum)[4]) {
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
// Which row of a group this lane finishes: its offset in the matrix, or -1.
__device__ static inline int row_of(const persistent_matmul &p, int group, int *matrix) {
    int lane = threadIdx.x % 32, m = matrix_of(p, &group, 0), row = group * p.rows[m] + lane / 8;
    *matrix = m;
    return lane % 8 || lane / 8 >= p.rows[m] || row >= p.job.m[m].rows ? -1 : row;
}
__device__ static inline float residual_of(const persistent_matmul &p, int group) {
    if (p.job.finish != GEMV_ADD) return 0; // otherwise there is one matrix
    int lane = threadIdx.x % 32, row = group * p.rows[0] + lane / 8;
    return lane % 8 || lane / 8 >= p.rows[0] || row >= p.job.m[0].rows ? 0 : __ldcg(p.job.residual + row);
}
// A group's rows, of the first and second pass. Eight lanes have a row.
__device__ static __noinline__ void finish_group(const persistent_matmul &p, int group, float first, float second,
                                                 float residual, unsigned tag) {
    const gemv_job &j = p.job;
    int m, row = row_of(p, group, &m);
    if (p.residual_is_published) residual = without_tag(residual);
    float value = (j.finish == GEMV_GLU ? gated(j.glu, first, second, j.glu_params) : first) + residual;
    float after = __shfl_xor_sync(0xffffffffu, value, 8); // the next row's, for every other
    if (row < 0) return;
    if (p.published[m] && row % 2 == 0) publish(p.published[m] + row, value, after, tag);
    if (j.m[m].out) j.m[m].out[row] = value;
    if (j.next.y) j.next.y[row] = value;
}

// A product: brings activations near, then multiplies this warp's share. What does not depend on the step before is
// done while its results are on their way. `rests`: what a warp has of a group that another warp began, by pass and
// row.
template <int KINDS>
__device__ static void run_matmul(const persistent_matmul &p, const share &mine, char *shared, stream &supply,
                                  progress &kept, const knowledge &known, int step, int last_known, char *ring,
                                  uint64_t *full, float (*rests)[2][4], float *squares, weighed &norms,
                                  char *norm_weights, int norm_bytes, unsigned input_tag, unsigned tag,
                                  first_tagged first_words) {
    unsigned taken = kept.taken;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = p.job.k, pieces = p.pieces, passes = passes_of(p);
    int group = mine.group, begun_at = mine.begin - mine.rest, item = mine.begin;
    int pass = mine.pass, piece = mine.piece, kind = mine.kind;
    activations in = activations_in_shared(k, shared);
    float first = 0, second = 0;
    bool begun = !mine.rest, open = false, prepared = false;
    float residual = item < mine.end ? residual_of(p, group) : 0;
    float sum[4] = {}, norm = -1;
    for (;;) {
        // At first, while results are on their way, and after every item but the last, which somebody waits for.
        if (lane == 0) stream_fetch(supply, taken, known, last_known, ring, full);
        __syncwarp();
        if (!prepared) {
            bool here = norms.step == step;
            if (here) barrier_wait(&norms.there, norms.phase);
            prepare<KINDS>(p, first_words, input_tag, here ? (const float *)norm_weights : p.job.in.weight, shared,
                           squares);
            // All have read it. One thread alone looks again, also where the compiler would let all of them.
            if (threadIdx.x == 0 && *(volatile int *)&norms.step <= step)
                next_weight(norms, known, step, last_known, norm_weights, norm_bytes);
            prepared = true;
            if (item == mine.end) break;
        }
        barrier_wait(full + taken % STAGES, taken / STAGES & 1);
        const char *stage = ring + taken % STAGES * STAGE;
#define READ(U) read_stage<U>(stage, in, k, piece, sum)
        FOR_KIND(KINDS, kind, READ)
#undef READ
        __syncwarp();
        taken++;
        item++;
        if (++piece < pieces && item < mine.end) continue;
        if (norm < 0) norm = norm_of(p.job, squares); // not before the first item, which everybody waits for
        float x = sum_rows(sum) * norm;
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
        if (pass)
            second = x;
        else
            first = x;
        open = piece < pieces || pass + 1 < passes;
        piece = 0;
        if (!open || item == mine.end) {
            if (!begun) { // another warp did
                rests[warp][0][lane / 8] = first;
                rests[warp][1][lane / 8] = second;
            } else if (!open) {
                finish_group(p, group, first, second, residual, tag);
            }
            if (item == mine.end) break;
            begun = true;
            begun_at = item;
            group++;
            first = second = 0;
            residual = residual_of(p, group);
        }
        pass = open;
        kind = kind_of(p, group, pass);
    }
    if (lane == 0) kept.taken = taken;
    __syncthreads();
    if (!open || !begun) return;
    // The warps after this one have the rest of its last group.
    int ends = begun_at + pieces * passes;
    for (int w = warp + 1; w < WARPS && mine.items * w / WARPS < ends; w++)
        if (mine.items * w / WARPS != mine.items * (w + 1) / WARPS) {
            first += rests[w][0][lane / 8];
            second += rests[w][1][lane / 8];
        }
    finish_group(p, group, first, second, residual, tag);
}

#endif

#endif
