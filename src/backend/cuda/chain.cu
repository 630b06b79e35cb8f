// One block per multiprocessor runs all steps.
//
// Results are told, not announced: two neighbouring floats are written at once, and their lowest bits hold the number
// of the step. Who needs them reads until the number is right, so a step costs one trip to the second cache and back
// where a barrier costs three. The bits are far below what the products keep of a float. Steps whose results cannot
// be told this way are waited for at a barrier of all blocks.
//
// Who has heard all of a step's results knows that all blocks have ended it, so memory may be told anew two steps
// later.
//
// Weights do not depend on what is computed, so their stream never stops: every warp has a ring of stages in shared
// memory and refills each stage soon after it has read it, over the ends of rows, matrices and steps. While the
// blocks wait for each other and prepare the next activations, the rings fill up with the weights of the next steps.
// Between telling and hearing nothing is fetched: that is the way everybody waits for.
//
// A product: its groups of rows are divided evenly among blocks. A block's are cut into pieces, and those divided
// evenly among its warps; who began a group finishes it (residual, gate), with what the warps after it had of it.
// Every block brings all activations to its shared memory by itself: normed, and quantized for block types.
//
// An attention: a block has a key/value head and a share of the cells, a warp every sixteenth eight of them. Warps
// meet in shared memory, blocks in scratch, where the last to come joins them.
//
// Everything runs once per step and soon again, so what counts beside the stream is that the code stays small: what
// does not fit the instruction cache costs more than what it computes.
#include "backend/cuda/chain.cuh"

#include "backend/cuda/chain_attention.cuh"
#include "backend/cuda/chain_block.cuh"
#include "backend/cuda/unary.cuh"
#include "backend/cuda/units.cuh"

enum {
    STAGE = 4608,          // bytes: four rows of q4_0 or q4_K
    SLOTS = 2,             // stages of a warp
    KNOWN = 8,             // steps of which a block has the description
    FIXED_ROOM = 11 << 10, // bytes of shared memory that all chains use
    MOST_GROUPS = 1 << 22, // their number times the blocks is counted in 32 bits
    AHEAD = KNOWN - 3, // how far fetching looks: a step, the one before it that slow warps end, and the one to come
};

// ---- Kinds of weights
// -------------------------------------------------------------------------------------------------------

enum chain_kind { CHAIN_F16, CHAIN_BF16, CHAIN_Q4_0, CHAIN_Q8_0, CHAIN_Q4_K, CHAIN_Q6_K, CHAIN_NONE };
// A kernel is made for the kinds that usual files have together, and one for all: code that nobody runs is in the way
// of that which is run. KINDS has a bit for each.
enum : int {
    HALF_KINDS = 1 << CHAIN_F16 | 1 << CHAIN_BF16,
    ALL_KINDS = (1 << CHAIN_NONE) - 1,
};
#define IS_KIND(KINDS, kind, K) ((KINDS) >> K & 1 && (((KINDS) & ((KINDS)-1)) == 0 || kind == K))
#define FOR_KIND(KINDS, kind, DO)                                                                                    \
    if (IS_KIND(KINDS, kind, CHAIN_Q4_K)) {                                                                          \
        DO(unit_q4_K);                                                                                               \
    } else if (IS_KIND(KINDS, kind, CHAIN_Q4_0)) {                                                                   \
        DO(unit_q4_0_planar);                                                                                        \
    } else if (IS_KIND(KINDS, kind, CHAIN_Q6_K)) {                                                                   \
        DO(unit_q6_K_planar);                                                                                        \
    } else if (IS_KIND(KINDS, kind, CHAIN_Q8_0)) {                                                                   \
        DO(unit_q8_0_planar);                                                                                        \
    } else if (IS_KIND(KINDS, kind, CHAIN_F16)) {                                                                    \
        DO(unit_half<false>);                                                                                        \
    } else if (IS_KIND(KINDS, kind, CHAIN_BF16)) {                                                                   \
        DO(unit_half<true>);                                                                                         \
    }
static chain_kind chain_kind_of(int kind) {
    switch (kind) {
    case TN_F16: return CHAIN_F16;
    case TN_BF16: return CHAIN_BF16;
    case TN_Q4_0 | PLANAR: return CHAIN_Q4_0;
    case TN_Q8_0 | PLANAR: return CHAIN_Q8_0;
    case TN_Q4_K: return CHAIN_Q4_K;
    case TN_Q6_K | PLANAR: return CHAIN_Q6_K;
    default: return CHAIN_NONE;
    }
}

#if __CUDA_ARCH__ >= 900
// ---- The stream of weights
// -------------------------------------------------------------------------------------------------------

// A warp's share of a product: items `begin` to `end` of the block's, which has `items`; the first is `rest` items
// into group `group`.
struct share {
    int group, begin, end, items;
    uint8_t rest, pass, piece, kind; // of the first
};
__device__ static inline int passes_of(const chain_product &p) { return p.job.finish == GEMV_GLU ? 2 : 1; }
// Which matrix a group is of in this pass; `group` becomes its number there.
__device__ static inline int matrix_of(const chain_product &p, int *group, int pass) {
    if (p.job.finish == GEMV_GLU) return pass;
    int m = 0;
    while (m + 1 < p.job.n && *group >= p.groups[m]) *group -= p.groups[m++];
    return m;
}

__device__ static inline int kind_of(const chain_product &p, int group, int pass) {
    return p.kinds[matrix_of(p, &group, pass)];
}

__device__ static inline share share_of(const chain_product &p, int warp) {
    int block = (int)blockIdx.x, first = block * p.least + min(block, p.with_more), each = p.pieces * passes_of(p);
    share s;
    s.items = (p.least + (block < p.with_more)) * each;
    s.begin = s.items * warp / WARPS;
    s.end = s.items * (warp + 1) / WARPS;
    int groups = (int)__umulhi((unsigned)s.begin, p.per_item); // begin / each
    if (each == 1) groups = s.begin;
    s.group = first + groups;
    int rest = s.begin - groups * each;
    s.rest = (uint8_t)rest;
    s.pass = rest >= p.pieces;
    s.piece = (uint8_t)(rest - (s.pass ? p.pieces : 0));
    s.kind = (uint8_t)kind_of(p, s.group, s.pass);
    return s;
}
// What a block knows of the steps that are near.
struct knowledge {
    chain_step steps[KNOWN];
    share shares[KNOWN][WARPS];
};
// Where a warp's fetching stands, which is its first lane's business.
struct alignas(16) stream {
    const char *at, *other;   // the next item; behind a gate: where the other matrix goes on
    int step, items;          // items of this step that are not yet fetched
    int matrix, piece, last;  // last: the last row that is there, counted from the group's first
    unsigned fetched, unused; // items so far
};
// What lasts from step to step.
struct progress {
    int now, turned, viewed; // the step that runs; the rotation and the view that are at hand
    unsigned taken;          // items that were read so far
};

__device__ static inline const char *group_at(const chain_product &p, int matrix, int group) {
    const gemv_matrix &m = p.job.m[matrix];
    return m.w + (int64_t)(group * p.rows[matrix]) * m.row_bytes;
}
__device__ static inline void stream_aim(stream &s, const chain_product &p, const share &mine) {
    int group = mine.group, m = matrix_of(p, &group, mine.pass);
    s.matrix = m;
    s.piece = mine.piece;
    s.at = group_at(p, m, group) + mine.piece * p.whole[m];
    s.last = p.job.m[m].rows - 1 - group * p.rows[m];
    if (p.job.finish == GEMV_GLU) s.other = group_at(p, 1 - m, group + m);
}
// Fetches while there is room, and items that are known; by one lane.
__device__ static inline void stream_fetch(stream &kept, unsigned taken, const knowledge &known, int last_known,
                                           char *ring, uint64_t *full) {
    stream s = kept;
    while (s.fetched - taken < SLOTS) {
        const chain_step *step = &known.steps[(unsigned)s.step % KNOWN]; // -1 at first
        if (!s.items) {
            if (s.step >= last_known) break; // again when more is known
            s.step++;
            step = &known.steps[s.step % KNOWN];
            if (step->is_attention) continue;
            const share &mine = known.shares[s.step % KNOWN][threadIdx.x / 32];
            s.items = mine.end - mine.begin;
            if (!s.items) continue;
            stream_aim(s, step->product, mine);
        }
        const chain_product &p = step->product;
        const int row_bytes = (int)p.job.m[s.matrix].row_bytes, rows = p.rows[s.matrix], whole = p.whole[s.matrix];
        const bool ends = s.piece + 1 == p.pieces;
        const int bytes = ends ? p.rest[s.matrix] : whole;
        char *stage = ring + s.fetched % SLOTS * STAGE;
        uint64_t *barrier = full + s.fetched % SLOTS;
        barrier_expect(barrier, (uint32_t)(rows * bytes));
        if (row_bytes == whole && s.last >= rows - 1) { // rows that lie together come at once
            bulk_once(stage, s.at, (uint32_t)(rows * bytes), barrier);
        } else {
            const char *row = s.at; // beyond the last row that is there it comes again
            for (int i = 0; i < rows; i++) {
                bulk_once(stage, row, (uint32_t)bytes, barrier);
                stage += whole;
                if (i < s.last) row += row_bytes;
            }
        }
        s.fetched++;
        s.items--;
        s.piece++;
        s.at += ends ? p.to_next[s.matrix] : whole;
        if (!ends) continue;
        s.piece = 0;
        if (p.job.finish == GEMV_GLU) {
            const char *next = s.at;
            s.at = s.other;
            s.other = next;
            if (s.matrix) s.last -= rows;
            s.matrix ^= 1;
        } else if ((s.last -= rows) < 0 && s.items) {
            s.matrix++;
            s.at = p.job.m[s.matrix].w;
            s.last = p.job.m[s.matrix].rows - 1;
        }
    }
    kept = s;
}

// ---- Products
// -----------------------------------------------------------------------------------------------------------------

// Activations in shared memory: k quants, k/32 scales, k/32 pairs of sums; or k floats.
__device__ static inline activations near_form(int k, char *near) {
    activations in = {};
    in.q = (int8_t *)near;
    in.scale = (float *)(near + k);
    in.sums = (short2 *)(near + k + k / 8);
    in.y = (const float *)near;
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
        const chain_step &s = known.steps[step % KNOWN];
        const gemv_job &j = s.product.job;
        if (s.is_attention || !j.in.weight || 4 * j.k > room) continue;
        norm.step = step;
        norm.phase ^= 1;
        barrier_expect(&norm.there, (uint32_t)(4 * j.k));
        bulk(to, (const char *)j.in.weight, (uint32_t)(4 * j.k), &norm.there);
        return;
    }
}
// What a thread hears first of the result of the step before.
struct hearing {
    heard h[2];
};
__device__ static inline void hear_from(const chain_product &p, int at, heard (&to)[2]) {
    if (at >= p.job.k) return;
    to[0] = listen(p.job.in.y + at);
    to[1] = listen(p.job.in.y + at + 4);
}
// Brings the result of the step before near. The norm's division is left to who finishes rows, so that nobody waits
// for the sum; it is in `squares`, a part per warp.
template <int KINDS>
__device__ static inline void prepare(const chain_product &p, hearing first, unsigned tag, const float *weight,
                                      char *near, float *squares) {
    const gemv_job &j = p.job;
    bool floats = !(KINDS & ~HALF_KINDS) || (KINDS & HALF_KINDS && p.kinds[0] <= CHAIN_BF16);
    const float *x = j.in.y;
    activations in = near_form(j.k, near);
    float sum = 0;
    heard h[2], next[2] = {first.h[0], first.h[1]};
    // A thread has eight values, four lanes a group of 32; whole warps are beyond the end together.
#pragma unroll 1
    for (int at = 8 * (int)threadIdx.x; at - 8 * ((int)threadIdx.x % 32) < j.k; at += 8 * THREADS) {
        bool here = at < j.k;
        h[0] = next[0], h[1] = next[1];
        hear_from(p, at + 8 * THREADS, next); // on its way meanwhile
        float y[8];
        hear_together(h, x + at, here, tag);
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
                *(float4 *)(near + 4 * at) = make_float4(y[0], y[1], y[2], y[3]);
                *(float4 *)(near + 4 * at + 16) = make_float4(y[4], y[5], y[6], y[7]);
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
            *(uint2 *)(near + at) = make_uint2(q[0], q[1]);
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
__device__ static inline int row_of(const chain_product &p, int group, int *matrix) {
    int lane = threadIdx.x % 32, m = matrix_of(p, &group, 0), row = group * p.rows[m] + lane / 8;
    *matrix = m;
    return lane % 8 || lane / 8 >= p.rows[m] || row >= p.job.m[m].rows ? -1 : row;
}
__device__ static inline float residual_of(const chain_product &p, int group) {
    if (p.job.finish != GEMV_ADD) return 0; // otherwise there is one matrix
    int lane = threadIdx.x % 32, row = group * p.rows[0] + lane / 8;
    return lane % 8 || lane / 8 >= p.rows[0] || row >= p.job.m[0].rows ? 0 : __ldcg(p.job.residual + row);
}
// A group's rows, of the first and second pass. Eight lanes have a row.
__device__ static __noinline__ void finish_group(const chain_product &p, int group, float first, float second,
                                                 float residual, unsigned tag) {
    const gemv_job &j = p.job;
    int m, row = row_of(p, group, &m);
    if (p.told_residual) residual = without_tag(residual);
    float value = (j.finish == GEMV_GLU ? gated(j.glu, first, second, j.glu_params) : first) + residual;
    float after = __shfl_xor_sync(0xffffffffu, value, 8); // the next row's, for every other
    if (row < 0) return;
    if (p.told[m] && row % 2 == 0) tell(p.told[m] + row, value, after, tag);
    if (j.m[m].out) j.m[m].out[row] = value;
    if (j.next.y) j.next.y[row] = value;
}

// A product: brings activations near, then multiplies this warp's share. What does not depend on the step before is
// done while its results are on their way. `rests`: what a warp has of a group that another warp began, by pass and
// row.
template <int KINDS>
__device__ static void multiply(const chain_product &p, const share &mine, char *near, stream &supply, progress &kept,
                                const knowledge &known, int step, int last_known, char *ring, uint64_t *full,
                                float (*rests)[2][4], float *squares, weighed &norms, char *norm_weights,
                                int norm_bytes, unsigned heard_tag, unsigned tag, hearing first_heard) {
    unsigned taken = kept.taken;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = p.job.k, pieces = p.pieces, passes = passes_of(p);
    int group = mine.group, begun_at = mine.begin - mine.rest, item = mine.begin;
    int pass = mine.pass, piece = mine.piece, kind = mine.kind;
    activations in = near_form(k, near);
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
            prepare<KINDS>(p, first_heard, heard_tag, here ? (const float *)norm_weights : p.job.in.weight, near,
                           squares);
            // All have read it. One thread alone looks again, also where the compiler would let all of them.
            if (threadIdx.x == 0 && *(volatile int *)&norms.step <= step)
                next_weight(norms, known, step, last_known, norm_weights, norm_bytes);
            prepared = true;
            if (item == mine.end) break;
        }
        barrier_wait(full + taken % SLOTS, taken / SLOTS & 1);
        const char *stage = ring + taken % SLOTS * STAGE;
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

// ---- The whole
// ----------------------------------------------------------------------------------------------------------------

// All attentions of a chain have heads of one size and at most GROUP for each key/value head.
template <int SIZE, int GROUP, int KINDS>
__global__ static void __launch_bounds__(THREADS, 1)
    chain_kernel(const chain_step *steps, int n, unsigned *counters, unsigned *epoch, int norm_bytes) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char room[];
    __shared__ __align__(16) knowledge known;
    __shared__ __align__(8) uint64_t learned[KNOWN], full[WARPS][SLOTS];
    __shared__ __align__(8) weighed norm;
    __shared__ view seen_from;
    __shared__ float2 turn[64];
    __shared__ float sums[32], rests[WARPS][2][4];
    __shared__ stream streams[WARPS];
    __shared__ progress kept[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *ring = room + warp * SLOTS * STAGE, *weights = room + WARPS * SLOTS * STAGE, *near = weights + norm_bytes;
    static_assert(sizeof(chain_step) % 16 == 0, "steps are copied 16 bytes at a time");
    auto learn = [&](int step) { // by one thread; nobody waits
        if (step >= n) return;
        barrier_expect(&learned[step % KNOWN], sizeof(chain_step));
        bulk((char *)&known.steps[step % KNOWN], (const char *)&steps[step], sizeof(chain_step),
             &learned[step % KNOWN]);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < KNOWN; i++) barrier_init(&learned[i]);
        for (int i = 0; i < WARPS * SLOTS; i++) barrier_init(&full[i / SLOTS][i % SLOTS]);
        barrier_init(&norm.there);
        norm.step = -1;
        norm.phase = 1;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i <= AHEAD; i++) learn(i);
    }
    __syncthreads();
    // What lasts from step to step is in shared memory: in registers it would be in the way, and what does not fit
    // those is lost to the cache with every wait.
    if (lane == 0) {
        streams[warp] = {};
        streams[warp].step = -1;
        kept[warp] = {0, -1, -1, 0};
    }
    __syncwarp();
    // What does not depend on the step before: a step's share is computed long before it, its description has come
    // even earlier.
    auto look_ahead = [&](int step) {
        int far = step + AHEAD;
        if (far < n) {
            barrier_wait(&learned[far % KNOWN], (uint32_t)(far / KNOWN & 1));
            if (lane == 0 && !known.steps[far % KNOWN].is_attention)
                known.shares[far % KNOWN][warp] = share_of(known.steps[far % KNOWN].product, warp);
        }
        if (threadIdx.x == THREADS - 1 && step >= 0) learn(far + 1); // for the next step
        __syncwarp();
    };
#pragma unroll 1
    for (int step = -AHEAD; step < 0; step++) look_ahead(step);
    // Weights may come before the launch before has ended, nothing else.
    if (lane == 0) stream_fetch(streams[warp], 0, known, min(n, (int)AHEAD) - 1, ring, full[warp]);
    __syncwarp();
    grid_wait();
    const unsigned began = *(volatile unsigned *)epoch;
    for (;;) {
        int step = kept[warp].now;
        if (step >= n) break;
        int last_known = min(n - 1, step + AHEAD);
        const chain_step &now = known.steps[step % KNOWN];
        unsigned tag = tag_of(began, step), heard_tag = now.hears < 0 ? 0 : tag_of(began, now.hears);
        bool is_attention = now.is_attention;
        if (is_attention) {
            const decode_job &d = now.attention;
            if (d.dims && kept[warp].turned != d.rotation) angles(d, d.positions[0], turn);
            bool known_view = kept[warp].viewed == d.view;
            __syncwarp();
            if (lane == 0) {
                kept[warp].turned = d.rotation;
                kept[warp].viewed = d.view;
            }
            attend<SIZE, GROUP>(now, near, turn, seen_from, known_view, counters, heard_tag, tag);
            look_ahead(step); // while those who have cells are busy, and what they tell is on its way
            __syncthreads();  // others may still need what lies near
        } else {
            if (now.waits) wait_for_all(counters, (unsigned)now.arrivals * gridDim.x);
            hearing first;
            hear_from(now.product, 8 * (int)threadIdx.x, first.h);
            look_ahead(step);
            multiply<KINDS>(now.product, known.shares[step % KNOWN][warp], near, streams[warp], kept[warp], known,
                            step, last_known, ring, full[warp], rests, sums, norm, weights, norm_bytes, heard_tag,
                            tag, first);
        }
        if (now.arrives) arrive(counters);
        if (lane == 0) kept[warp].now++;
        __syncwarp();
    }
    grid_next(); // not sooner: what waits for its turn takes room from those that run
    // Whoever ends last leaves the counters as they were.
    if (threadIdx.x == 0 && atomicInc(counters + 32, gridDim.x - 1) == gridDim.x - 1) {
        counters[0] = 0;
        *epoch = (began + (unsigned)n) % TAGS;
    }
#endif
}

// ---- Collecting and launching
// --------------------------------------------------------------------------------------------------

enum { PLACES = 3 };
struct chain {
    chain_step *steps, *sent; // as collected in this run; as the device has them
    chain_step *on_device;
    unsigned *epoch;       // on the device: steps that ran so far
    float *places[PLACES]; // what is told: two in turn, and q, k, v; CHAIN_MOST floats each
    const float *held[2];  // the plain result that a place has, too; or NULL
    int turn, blocks;
    int n, launched, capacity;
    int arrivals;    // steps since the last launch that say they are done
    int size, group; // of the attentions since the last launch, or 0
};

bool chain_serves(const cuda_device *device) {
    return device->properties.major >= 9 && device->properties.cooperativeLaunch != 0 &&
           device->properties.sharedMemPerBlockOptin >= 227 << 10;
}

void chain_free(chain *c) {
    if (!c) return;
    if (c->on_device) cudaFree(c->on_device);
    tn_free(c->steps);
    tn_free(c->sent);
    tn_free(c);
}
tn_status chain_new(const cuda_device *device, int steps, chain **out) {
    chain *c = (chain *)tn_calloc(1, sizeof *c);
    if (!c) return TN_E_NOMEM;
    c->capacity = steps;
    c->blocks = device->properties.multiProcessorCount;
    c->steps = (chain_step *)tn_calloc((size_t)steps, sizeof *c->steps);
    c->sent = (chain_step *)tn_calloc((size_t)steps, sizeof *c->sent);
    tn_status status = c->steps && c->sent ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = cuda_check(cudaSetDevice(device->ordinal), "cudaSetDevice");
    const size_t bytes = (size_t)steps * sizeof *c->on_device, place = CHAIN_MOST * sizeof(float),
                 all = bytes + 128 + PLACES * place;
    if (status == TN_OK) status = cuda_check(cudaMalloc(&c->on_device, all), "allocating steps");
    if (status == TN_OK) status = clear_now(c->on_device, all);
    for (size_t i = 0; status == TN_OK && i < PLACES; i++)
        c->places[i] = (float *)((char *)c->on_device + bytes + 128 + i * place);
    if (status == TN_OK) c->epoch = (unsigned *)((char *)c->on_device + bytes);
    if (status != TN_OK) {
        chain_free(c);
        return status;
    }
    *out = c;
    return TN_OK;
}

// False where a matrix is of a kind that has no unit or k does not suit it, or where pieces or groups would differ.
static bool product_of(const gemv_job &j, int blocks, chain_product *p) {
    int span = 0;
    p->job = j;
    p->all_groups = 0;
    for (int i = 0; i < 3; i++)
        p->rows[i] = p->groups[i] = p->kinds[i] = p->whole[i] = p->rest[i] = p->to_next[i] = 0;
    for (int i = 0; i < j.n; i++) {
        int grain = 0, other = span;
        p->kinds[i] = chain_kind_of(j.m[i].kind);
        if (p->kinds[i] == CHAIN_NONE) return false;
#define LAYOUT(U) other = U::SPAN, grain = U::GRAIN, p->rows[i] = U::GROUP, p->whole[i] = U::ROW
        FOR_KIND(ALL_KINDS, p->kinds[i], LAYOUT)
#undef LAYOUT
        if (j.k % grain || (i && other != span)) return false;
        span = other;
        p->groups[i] = (j.m[i].rows + p->rows[i] - 1) / p->rows[i];
        if (i == 0 || j.finish != GEMV_GLU)
            p->all_groups += p->groups[i];
        else if (p->groups[i] != p->groups[0])
            return false;
    }
    p->pieces = (j.k + span - 1) / span;
    for (int i = 0; i < j.n; i++) {
        const int before = (p->pieces - 1) * p->whole[i];
        p->rest[i] = (int)j.m[i].row_bytes - before;
        p->to_next[i] = p->rows[i] * (int)j.m[i].row_bytes - before;
    }
    p->per_item = (unsigned)(0xffffffffu / (unsigned)(p->pieces * (j.finish == GEMV_GLU ? 2 : 1)) + 1);
    p->least = p->all_groups / blocks;
    p->with_more = p->all_groups % blocks;
    return j.k % 32 == 0 && j.k <= CHAIN_MOST && p->all_groups <= MOST_GROUPS;
}
// What few models do to scores or masks is not in a chain: its code would be in everybody's way.
bool chain_takes_attention(const cuda_device *device, const tn_tensor *t) {
    const tn_attention_params &p = t->params.attention;
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K];
    bool fits = q->ne[0] <= 64 || q->ne[1] / k->ne[1] <= 4; // what the warps bring together, beside the rings
    // Every key/value head has a block of its own, also on a part of a GPU.
    if (k->ne[1] > device->properties.multiProcessorCount) return false;
    return t->ne[2] == 1 && p.soft_cap == 0 && p.max_bias == 0 && !p.chunk && fits && q->nb[1] % 16 == 0;
}
bool chain_takes_product(const gemv_job &j) {
    chain_product p;
    return product_of(j, 1, &p);
}

// ---- Who tells whom

static void forget(chain *c) {
    c->size = c->group = c->arrivals = 0;
    c->held[0] = c->held[1] = NULL;
}
void chain_begin(chain *c) {
    c->n = c->launched = c->turn = 0;
    forget(c);
}
// The step before in this launch, or NULL.
static chain_step *last_step(chain *c) { return c->n > c->launched ? &c->steps[c->n - 1] : NULL; }
// Whether every block has results, and all come in pairs.
static bool can_tell(const chain *c, const chain_product &p) {
    int rows = 0;
    for (int i = 0; i < (p.job.finish == GEMV_GLU ? 1 : p.job.n); i++) {
        if (p.job.m[i].rows % 2) return false;
        rows += p.job.m[i].rows;
    }
    return c->capacity < TAGS && p.all_groups >= c->blocks && rows <= CHAIN_MOST;
}
// Has the last step tell its result to one that reads it at `y`: where that is now, or NULL.
static const float *have_it_told(chain *c, const float *y) {
    chain_step *from = last_step(c);
    if (!from || !y) return NULL;
    bool is_attention = from->is_attention;
    gemv_next &next = is_attention ? from->attention.next : from->product.job.next;
    if (next.y != y || (is_attention ? c->capacity >= TAGS : !can_tell(c, from->product))) return NULL;
    next.y = NULL;
    c->turn ^= 1;
    (is_attention ? from->attention.told : from->product.told[0]) = c->places[c->turn];
    c->held[c->turn] = is_attention ? NULL : from->product.job.m[0].out;
    return c->places[c->turn];
}
// All steps so far must have ended before this one.
static void wait_for_steps(chain *c, chain_step *s) {
    chain_step *from = last_step(c);
    if (!from || s->waits) return;
    from->arrives = true;
    s->waits = true;
    s->arrivals = ++c->arrivals;
}
// Whether a step of this launch leaves its result there.
static bool is_result(const chain *c, const float *at) {
    for (int i = c->launched; i < c->n; i++) {
        const chain_step &s = c->steps[i];
        const decode_job &d = s.attention;
        const float *out = s.is_attention ? (const float *)d.a.out : NULL;
        if (s.is_attention && at >= out && at < out + d.a.heads * d.a.head_v) return true;
        for (int m = 0; !s.is_attention && m < s.product.job.n; m++) {
            out = s.product.job.m[m].out;
            if (out && at >= out && at < out + s.product.job.m[m].rows) return true;
        }
    }
    return false;
}
void chain_add_product(chain *c, const gemv_job &job) {
    chain_step &s = c->steps[c->n];
    memset((void *)&s, 0, sizeof s);
    product_of(job, c->blocks, &s.product);
    gemv_job &j = s.product.job;
    s.hears = -1;
    const float *told = have_it_told(c, j.in.y);
    if (told) {
        j.in.y = told;
        s.hears = c->n - 1 - c->launched;
    } else {
        wait_for_steps(c, &s);
    }
    if (j.finish == GEMV_ADD) {
        for (int i = 0; i < 2 && !s.product.told_residual; i++)
            if (c->held[i] == j.residual) {
                j.residual = c->places[i];
                s.product.told_residual = true;
            }
        if (!s.product.told_residual && is_result(c, j.residual)) wait_for_steps(c, &s);
    }
    c->n++;
}
static int group_of(const decode_job &d) {
    int group = d.a.heads / d.a.kv_heads;
    return group <= 2 ? group : group <= 4 ? 4 : 8;
}
// Where the last step tells what it leaves at `at`, or NULL.
static const char *told_at(const chain *c, const chain_product &p, const char *at, int64_t size) {
    const float *place = c->places[2];
    for (int i = 0; i < p.job.n; place += p.job.m[i++].rows) {
        const char *out = (const char *)p.job.m[i].out;
        if (out && at >= out && at + size <= out + (int64_t)p.job.m[i].rows * 4)
            return (const char *)place + (at - out);
    }
    return NULL;
}
// Has the last step tell q and the new rows, if it computed all of them.
static bool have_rows_told(chain *c, decode_job *d) {
    chain_step *from = last_step(c);
    const attention_job &a = d->a;
    int64_t row = a.head_k * 4;
    if (!from || from->is_attention || from->product.job.finish != GEMV_STORE || from->product.job.next.y ||
        !can_tell(c, from->product) || a.q1 != row || d->nk1 != row || d->nv1 != row)
        return false;
    chain_product &p = from->product;
    const char *q = told_at(c, p, a.q, a.heads * row), *k = NULL, *v = NULL;
    if (d->rows) {
        k = told_at(c, p, d->new_k, a.kv_heads * row);
        v = told_at(c, p, d->new_v, a.kv_heads * row);
    }
    if (!q || (d->rows && (!k || !v))) return false;
    d->a.q = q;
    d->new_k = k;
    d->new_v = v;
    float *place = c->places[2];
    for (int i = 0; i < p.job.n; place += p.job.m[i++].rows) p.told[i] = place;
    return true;
}
tn_status chain_add_attention(chain *c, const launch &l, const decode_job &job) {
    if (c->size && (c->size != job.a.head_k || c->group != group_of(job))) TN_TRY(chain_launch(c, l));
    chain_step *before = last_step(c), &s = c->steps[c->n];
    memset((void *)&s, 0, sizeof s);
    s.is_attention = true;
    s.attention = job;
    decode_job &d = s.attention;
    c->size = d.a.head_k;
    c->group = group_of(d);
    d.wait_first = before && before->is_attention;
    s.hears = have_rows_told(c, &d) ? c->n - 1 - c->launched : -1;
    if (s.hears < 0) wait_for_steps(c, &s);
    // Steps with the same rotation share its table, and those that see the same cells what they know of them.
    d.rotation = d.view = c->n;
    for (int i = c->n - 1; i >= c->launched; i--) {
        const decode_job &o = c->steps[i].attention;
        if (!c->steps[i].is_attention) continue;
        if (o.dims == d.dims && o.positions == d.positions && o.factors == d.factors &&
            o.freq_scale == d.freq_scale && o.ext_factor == d.ext_factor && o.attn_factor == d.attn_factor &&
            o.corr_low == d.corr_low && o.corr_high == d.corr_high && o.octave == d.octave)
            d.rotation = o.rotation;
        if (o.a.range == d.a.range && o.a.q_pos == d.a.q_pos && o.a.k_pos == d.a.k_pos && o.rows == d.rows &&
            o.a.cells == d.a.cells && o.a.words == d.a.words && o.a.kv_heads == d.a.kv_heads &&
            o.splits == d.splits && o.a.p.causal == d.a.p.causal && o.a.p.window == d.a.p.window)
            d.view = o.view;
        break;
    }
    c->n++;
    return TN_OK;
}

static size_t room_of(const chain_step &s) {
    if (!s.is_attention)
        return s.product.kinds[0] <= CHAIN_BF16 ? (size_t)s.product.job.k * 4 : (size_t)s.product.job.k / 4 * 5;
    int size = s.attention.a.head_k;
    return (size_t)(WARPS * size + WARPS * TURN + 2 * WARPS + 64 + 2) * 4 * (size_t)group_of(s.attention) +
           (size_t)size * (32 + 4) + 16;
}

typedef void (*chain_function)(const chain_step *, int, unsigned *, unsigned *, int);
template <int SIZE, int KINDS> static chain_function kernel_for(int group) {
    return group <= 1   ? chain_kernel<SIZE, 1, KINDS>
           : group == 2 ? chain_kernel<SIZE, 2, KINDS>
           : group == 4 ? chain_kernel<SIZE, 4, KINDS>
                        : chain_kernel<64, 8, KINDS>; // the only size that takes eight
}
template <int KINDS> static chain_function kernel_for(int size, int group) {
    return size == 64 ? kernel_for<64, KINDS>(group) : kernel_for<128, KINDS>(group);
}
static chain_function kernel_for(int kinds, int size, int group) {
    enum {
        F16 = 1 << CHAIN_F16,
        Q8 = 1 << CHAIN_Q8_0,
        Q6 = 1 << CHAIN_Q6_K,
        Q4 = 1 << CHAIN_Q4_0,
        Q4K = 1 << CHAIN_Q4_K
    };
    return kinds == F16             ? kernel_for<F16>(size, group)
           : kinds == Q8            ? kernel_for<Q8>(size, group)
           : !(kinds & ~(Q4 | Q6))  ? kernel_for<Q4 | Q6>(size, group)
           : !(kinds & ~(Q4K | Q6)) ? kernel_for<Q4K | Q6>(size, group)
                                    : kernel_for<ALL_KINDS>(size, group);
}
tn_status chain_launch(chain *c, const launch &l) {
    int n = c->n - c->launched;
    if (!n) return TN_OK;
    const chain_step *steps = c->steps + c->launched;
    size_t bytes = (size_t)n * sizeof *steps, near = 0;
    for (int i = 0; i < n; i++)
        if (room_of(steps[i]) > near) near = room_of(steps[i]);
    near = (near + 127) & ~(size_t)127;
    size_t ring = (size_t)SLOTS * WARPS * STAGE, norm = 0;
    for (int i = 0; i < n; i++)
        if (!steps[i].is_attention && steps[i].product.job.in.weight && (size_t)steps[i].product.job.k * 4 > norm)
            norm = (size_t)steps[i].product.job.k * 4;
    norm = (norm + 127) & ~(size_t)127;
    if (ring + near + norm + FIXED_ROOM > l.device->properties.sharedMemPerBlockOptin) norm = 0;
    // A captured launch finds the steps of the run before, which had the same addresses.
    if (memcmp(steps, c->sent + c->launched, bytes) != 0) {
        cudaStreamCaptureStatus capturing;
        CUDA_TRY(cudaStreamIsCapturing(l.stream, &capturing));
        if (capturing != cudaStreamCaptureStatusNone)
            return tn_fail(TN_E_INTERNAL, "a chain changed between two runs with the same addresses");
        memcpy(c->sent + c->launched, steps, bytes);
        CUDA_TRY(cudaMemcpyAsync(c->on_device + c->launched, steps, bytes, cudaMemcpyHostToDevice, l.stream));
        CUDA_TRY(cudaStreamSynchronize(l.stream)); // `steps` may change with the next run
    }
    int kinds = 0;
    for (int i = 0; i < n; i++)
        for (int m = 0; !steps[i].is_attention && m < steps[i].product.job.n; m++)
            kinds |= 1 << steps[i].product.kinds[m];
    chain_function kernel = kernel_for(kinds, c->size, c->group);
    size_t shared = ring + norm + near;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)l.device->properties.multiProcessorCount);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = l.stream;
    config.attrs = attributes;
    config.numAttrs = l.strict ? 1 : 2;
    tn_status status = cuda_check(cudaLaunchKernelEx(&config, kernel, (const chain_step *)c->on_device + c->launched,
                                                     n, l.tickets + N_TICKETS, c->epoch, (int)norm),
                                  "a chain");
    c->launched = c->n;
    forget(c);
    return status;
}
