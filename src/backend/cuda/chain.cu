// One block per multiprocessor runs all steps; between steps all blocks wait for each other.
//
// Weights do not depend on what is computed, so their stream never stops: every warp has a ring of stages in shared
// memory and refills each stage as soon as it has read it, over the ends of rows, matrices and steps. While the
// blocks wait for each other and prepare the next activations, the rings fill up with the weights of the next steps.
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

#include "backend/cuda/unary.cuh"
#include "backend/cuda/units.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    STAGE = 4608,          // bytes: four rows of q4_0 or q4_K
    SLOTS = 2,             // stages of a warp
    KNOWN = 8,             // steps of which a block has the description
    VECTORS = 2,           // of four activations that a thread prepares at a time
    LEAST_CELLS = 128,     // of a block in attention
    TURN = 8,              // cells of a warp at a time
    MOST_GROUPS = 1 << 22, // their number times the blocks is counted in 32 bits
};

// ---- Kinds of weights
// -------------------------------------------------------------------------------------------------------

// Kinds by number, so that finding one is three steps.
enum chain_kind { CHAIN_F16, CHAIN_BF16, CHAIN_Q4_0, CHAIN_Q8_0, CHAIN_Q4_K, CHAIN_Q6_K, CHAIN_NONE };
#define FOR_KIND(kind, DO)                                                                                           \
    if (kind >= CHAIN_Q4_K) {                                                                                        \
        if (kind == CHAIN_Q4_K) {                                                                                    \
            DO(unit_q4_K);                                                                                           \
        } else {                                                                                                     \
            DO(unit_q6_K_planar);                                                                                    \
        }                                                                                                            \
    } else if (kind >= CHAIN_Q4_0) {                                                                                 \
        if (kind == CHAIN_Q4_0) {                                                                                    \
            DO(unit_q4_0_planar);                                                                                    \
        } else {                                                                                                     \
            DO(unit_q8_0_planar);                                                                                    \
        }                                                                                                            \
    } else {                                                                                                         \
        if (kind == CHAIN_F16) {                                                                                     \
            DO(unit_half<false>);                                                                                    \
        } else {                                                                                                     \
            DO(unit_half<true>);                                                                                     \
        }                                                                                                            \
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
// ---- Who waits for whom
// -------------------------------------------------------------------------------------------------------

// counters[0]: blocks that ended a step, summed over steps. counters[32]: blocks that ended the launch.
__device__ static inline void arrive(unsigned *counters) { // by all threads
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counters) : "memory");
}
__device__ static inline void wait_for_all(const unsigned *counters, unsigned arrivals) {
    if (threadIdx.x == 0) {
        unsigned seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counters) : "memory");
        while (seen < arrivals);
    }
    __syncthreads();
}

// ---- The stream of weights
// -------------------------------------------------------------------------------------------------------

// A warp's share of a product: items `begin` to `end` of the block's, which has `items`; the first is `rest` items
// into group `group`.
struct share {
    int group, rest, begin, end, items;
};
__device__ static inline int passes_of(const chain_product &p) { return p.job.finish == GEMV_GLU ? 2 : 1; }
__device__ static share share_of(const chain_product &p, int warp) {
    unsigned first = (unsigned)p.all_groups * blockIdx.x / gridDim.x,
             last = (unsigned)p.all_groups * (blockIdx.x + 1) / gridDim.x, each = (unsigned)(p.pieces * passes_of(p));
    share s;
    s.items = (int)((last - first) * each);
    s.begin = s.items * warp / WARPS;
    s.end = s.items * (warp + 1) / WARPS;
    unsigned groups = (unsigned)s.begin / each;
    s.group = (int)(first + groups);
    s.rest = s.begin - (int)(groups * each);
    return s;
}
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

// What a block knows of the steps that are near.
struct knowledge {
    chain_step steps[KNOWN];
    share shares[KNOWN][WARPS];
};
// Where a warp's fetching stands; the same in all lanes.
struct stream {
    int step, items; // items of this step that are not yet fetched
    int group, pass, piece;
    int slot, free, reading; // reading: the stage to be read next
    int kind;
    row_group rows;
    int now, turned; // the step that runs; the rotation that is at hand
};

__device__ static inline void stream_aim(stream &s, const chain_product &p) {
    int group = s.group, i = matrix_of(p, &group, s.pass), row = group * p.rows[i];
    const gemv_matrix &m = p.job.m[i];
    s.kind = p.kinds[i];
    s.rows = {m.w + row * m.row_bytes, (int)m.row_bytes, m.rows - 1 - row};
}
// Fetches while there is room, and items that are known.
__device__ static inline void stream_fetch(stream &s, const knowledge &known, int last_known, char *ring) {
    while (s.free) {
        const chain_step *step = &known.steps[s.step % KNOWN];
        if (!s.items) {
            if (s.step >= last_known) return; // again when more is known
            s.step++;
            step = &known.steps[s.step % KNOWN];
            if (step->is_attention) continue;
            const share &mine = known.shares[s.step % KNOWN][threadIdx.x / 32];
            s.items = mine.end - mine.begin;
            if (!s.items) continue;
            s.group = mine.group;
            s.pass = mine.rest >= step->product.pieces;
            s.piece = mine.rest - (s.pass ? step->product.pieces : 0);
            stream_aim(s, step->product);
        }
        const chain_product &p = step->product;
        char *stage = ring + s.slot * STAGE;
#define COPY(U) U::copy(stage, s.rows, s.piece, p.job.k)
        FOR_KIND(s.kind, COPY)
#undef COPY
        asm volatile("cp.async.commit_group;" ::: "memory");
        s.free--;
        if (++s.slot == SLOTS) s.slot = 0;
        s.items--;
        if (++s.piece < p.pieces) continue;
        s.piece = 0;
        if (p.job.finish == GEMV_GLU && !s.pass) {
            s.pass = 1;
        } else {
            s.pass = 0;
            s.group++;
        }
        if (s.items) stream_aim(s, p);
    }
}
// Until the oldest item that was fetched is there, for all lanes.
__device__ static inline void stream_wait(const stream &s) {
    if (s.free)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    else
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
    __syncwarp();
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

// Brings the result of the step before near. The norm's division is left to who finishes rows, so that nobody waits
// for the sum; it is in `squares`, a part per warp.
__device__ static void prepare(const chain_product &p, char *near, float *squares) {
    const gemv_job &j = p.job;
    bool floats = p.kinds[0] <= CHAIN_BF16;
    const float *weight = j.in.weight, *x = j.in.y;
    activations in = near_form(j.k, near);
    float4 v[VECTORS], w[VECTORS];
    float sum = 0;
    auto load = [&](int base) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int at = base + 4 * ((int)threadIdx.x + i * THREADS);
            v[i] = at < j.k ? __ldcg((const float4 *)(x + at)) : make_float4(0, 0, 0, 0);
            w[i] = weight && at < j.k ? *(const float4 *)(weight + at) : make_float4(1, 1, 1, 1);
        }
    };
    load(0);
#pragma unroll 1
    for (int base = 0; base < j.k; base += 4 * THREADS * VECTORS) {
        float y[VECTORS][4], most[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
            y[i][0] = v[i].x * w[i].x, y[i][1] = v[i].y * w[i].y, y[i][2] = v[i].z * w[i].z,
            y[i][3] = v[i].w * w[i].w;
        }
        if (base + 4 * THREADS * VECTORS < j.k) load(base + 4 * THREADS * VECTORS); // on its way meanwhile
        if (floats) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                int at = base + 4 * ((int)threadIdx.x + i * THREADS);
                if (at < j.k) *(float4 *)(near + 4 * at) = make_float4(y[i][0], y[i][1], y[i][2], y[i][3]);
            }
            continue;
        }
        // Eight lanes have a group of 32. Several at a time hide each other's latency.
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            most[i] = fmaxf(fmaxf(fabsf(y[i][0]), fabsf(y[i][1])), fmaxf(fabsf(y[i][2]), fabsf(y[i][3])));
#pragma unroll
        for (int offset = 4; offset; offset >>= 1)
#pragma unroll
            for (int i = 0; i < VECTORS; i++) most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], offset));
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            float factor = most[i] > 0 ? __fdividef(127, most[i]) : 0;
            int at = base + 4 * ((int)threadIdx.x + i * THREADS);
            int a = __float2int_rn(y[i][0] * factor), b = __float2int_rn(y[i][1] * factor),
                c = __float2int_rn(y[i][2] * factor), d = __float2int_rn(y[i][3] * factor);
            int part = a + b + c + d;
#pragma unroll
            for (int offset = 2; offset; offset >>= 1) part += __shfl_xor_sync(0xffffffffu, part, offset);
            int other = __shfl_xor_sync(0xffffffffu, part, 4);
            if (at < j.k) {
                *(char4 *)(near + at) = make_char4((char)a, (char)b, (char)c, (char)d);
                if (threadIdx.x % 8 == 0) {
                    in.scale[at / 32] = most[i] / 127;
                    in.sums[at / 32] = make_short2((short)part, (short)other);
                }
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
#pragma unroll
    for (int i = 0; i < U::GROUP; i++) now[i].take(at + i * U::ROW, lane);
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
    int m, row = p.job.finish == GEMV_ADD ? row_of(p, group, &m) : -1;
    return row < 0 ? 0 : __ldcg(p.job.residual + row);
}
// A group's rows, of the first and second pass. Eight lanes have a row.
__device__ static __noinline__ void finish_group(const chain_product &p, int group, float first, float second,
                                                 float residual) {
    const gemv_job &j = p.job;
    int m, row = row_of(p, group, &m);
    if (row < 0) return;
    float value = (j.finish == GEMV_GLU ? gated(j.glu, first, second, j.glu_params) : first) + residual;
    if (j.m[m].out) j.m[m].out[row] = value;
    if (j.next.y) j.next.y[row] = value;
}

// `rests`: what a warp has of a group that another warp began, by pass and row.
__device__ static void multiply(const chain_product &p, const share &mine, char *near, stream &kept,
                                const knowledge &known, int last_known, char *ring, float (*rests)[2][4],
                                const float *squares) {
    stream s = kept;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = p.job.k, pieces = p.pieces, passes = passes_of(p);
    int group = mine.group, begun_at = mine.begin - mine.rest, item = mine.begin;
    int pass = mine.rest >= pieces, piece = mine.rest - (pass ? pieces : 0);
    activations in = near_form(k, near);
    float first = 0, second = 0;
    bool begun = !mine.rest, open = false;
    float residual = item < mine.end ? residual_of(p, group) : 0;
    int kind = kind_of(p, group, pass);
    float sum[4] = {}, norm = norm_of(p.job, squares);
    for (;;) {
        stream_fetch(s, known, last_known, ring); // at first, and after every item: what it left is free
        if (item == mine.end) break;
        stream_wait(s);
        const char *stage = ring + s.reading * STAGE;
#define READ(U) read_stage<U>(stage, in, k, piece, sum)
        FOR_KIND(kind, READ)
#undef READ
        if (++s.reading == SLOTS) s.reading = 0;
        __syncwarp();
        s.free++;
        item++;
        if (++piece < pieces && item < mine.end) continue;
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
                finish_group(p, group, first, second, residual);
            }
            if (item == mine.end) continue;
            begun = true;
            begun_at = item;
            group++;
            first = second = 0;
            residual = residual_of(p, group);
        }
        pass = open;
        kind = kind_of(p, group, pass);
    }
    if (lane == 0) kept = s;
    __syncthreads();
    if (!open || !begun) return;
    // The warps after this one have the rest of its last group.
    int ends = begun_at + pieces * passes;
    for (int w = warp + 1; w < WARPS && mine.items * w / WARPS < ends; w++)
        if (mine.items * w / WARPS != mine.items * (w + 1) / WARPS) {
            first += rests[w][0][lane / 8];
            second += rests[w][1][lane / 8];
        }
    finish_group(p, group, first, second, residual);
}

// ---- Attention
// ---------------------------------------------------------------------------------------------------------------

template <int SIZE, int GROUP> struct attention_room { // in the place of activations
    uint4 q[SIZE / 16][32]; // as the tensor cores read it, rounded to f16, and below that what rounding took away
    __half new_k[SIZE], new_v[SIZE];
    float meet[WARPS][GROUP][SIZE];
    float weight[WARPS][TURN][GROUP];
    float high[WARPS][GROUP], total[WARPS][GROUP], keep[64][GROUP];
    float all_high[GROUP], all_total[GROUP];
    int last;
};

// Elements i to i + 3 of a rotated row; with a multiple of 8 dimensions they turn alike.
__device__ static inline void rotate_four(const decode_job &d, const float *row, int i, const float2 *turn,
                                          float (&out)[4]) {
    float4 x = __ldcg((const float4 *)(row + i)), y = x;
    int half = d.dims / 2;
    bool turns = i < d.dims, second = i >= half;
    if (turns && d.neox) y = __ldcg((const float4 *)(row + (second ? i - half : i + half)));
    const float a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float2 t = turn[!turns ? 0 : d.neox ? (second ? i - half : i) + e : (i + e) / 2];
        float other = d.neox ? (second ? b[e] : -b[e]) : e & 1 ? a[e - 1] : -a[e + 1];
        out[e] = turns ? a[e] * t.x + other * t.y : a[e];
    }
}
__device__ static inline uint32_t halves(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}
// Scores of eight cells with sixteen rows: q's heads in the first eight, the rest of q in the others. The order of
// the dimensions is free as long as both sides agree, so that a lane takes what lies together in memory.
__device__ static inline void add_scores(float (&s)[4], uint4 q, uint32_t k0, uint32_t k1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w), "r"(k0), "r"(k1));
}

// Old cells do not depend on the step before: a warp's first are on their way before the wait, and if the new one is
// among them it is put in its place afterwards. After another attention nothing is read before the wait.
template <int SIZE, int GROUP>
__device__ static inline void attend(const decode_job &d, char *near, const float2 *turn, const unsigned *counters,
                                     unsigned arrivals) {
    constexpr int DIMS = SIZE / 32;
    attention_room<SIZE, GROUP> &room = *(attention_room<SIZE, GROUP> *)near;
    const attention_job &j = d.a;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = j.heads / j.kv_heads;
    int kv = (int)blockIdx.x % j.kv_heads, split = (int)blockIdx.x / j.kv_heads;
    if (d.wait_first) wait_for_all(counters, arrivals);
    int first, end;
    bounds_of(j, &first, &end);
    int most = min(d.splits, (int)gridDim.x / j.kv_heads), n = max(end - first, 0);
    int span = max((int)LEAST_CELLS, ((n + most - 1) / most + TURN - 1) / TURN * TURN),
        active = max(1, (n + span - 1) / span);
    if (split >= active) return;
    int begin = first + split * span, stop = min(end, begin + span);
    viewer me = viewer_of(j, 0);
    int new_row = d.rows ? d.rows[0] : -1;

    // Of scores a lane has those of a head with two cells; of v a few dimensions of all cells.
    int head = lane / 4, pair = lane % 4 * 2;
    float acc[GROUP][DIMS] = {}, high = -INFINITY, total = 0;
    bool begun = false;
#pragma unroll 1
    for (int tile = begin + warp * TURN;; tile += WARPS * TURN) {
        uint4 k[SIZE / 32];
        uint32_t v[TURN][DIMS / 2];
        int cell = max(0, min(tile + lane / 4, stop - 1));
        const char *at = j.k + kv * j.k1 + (int64_t)cell * j.k2 + 16 * (lane % 4);
#pragma unroll
        for (int i = 0; i < SIZE / 32; i++) k[i] = *(const uint4 *)(at + 64 * i);
        at = j.v + kv * j.v1 + 2 * DIMS * lane;
#pragma unroll
        for (int c = 0; c < TURN; c++) {
            const char *from = at + (int64_t)max(0, min(tile + c, stop - 1)) * j.v2;
            if (DIMS == 4) {
                uint2 raw = *(const uint2 *)from;
                v[c][0] = raw.x;
                v[c][DIMS / 2 - 1] = raw.y;
            } else {
                v[c][0] = *(const uint32_t *)from;
            }
        }
        // Which of the cells are seen: a lane looks at one.
        int mine = tile + lane % TURN, position = max(0, min(mine, stop - 1));
        uint32_t word = ~0u;
        if (j.k_pos) {
            const int32_t *meta = j.k_pos + (int64_t)position * (1 + j.words);
            position = meta[0];
            word = (uint32_t)meta[1 + max(0, me.seq) / 32];
        }
        bool visible = mine < stop && !(j.k_pos && (position < 0 || me.seq < 0 || !(word >> (me.seq % 32) & 1))) &&
                       !(j.p.causal && position > me.position) &&
                       !(j.p.window && me.position - position >= j.p.window);
        unsigned seen = __ballot_sync(0xffffffffu, visible);

        if (!begun) {
            begun = true;
            if (!d.wait_first) wait_for_all(counters, arrivals);
            for (int i = threadIdx.x; i < SIZE / 16 * 32; i += THREADS) {
                int h = i % 32 / 4, dim = 32 * (i / 64) + 8 * (i % 4) + 4 * (i / 32 % 2);
                float x[4] = {}, rest[4];
                if (h < group) rotate_four(d, (const float *)(j.q + (int64_t)(kv * group + h) * j.q1), dim, turn, x);
#pragma unroll
                for (int e = 0; e < 4; e++) rest[e] = x[e] - __half2float(__float2half_rn(x[e]));
                room.q[i / 32][i % 32] = make_uint4(halves(x[0], x[1]), halves(rest[0], rest[1]), halves(x[2], x[3]),
                                                    halves(rest[2], rest[3]));
            }
            if (new_row >= 0 && threadIdx.x < SIZE) {
                int i = threadIdx.x;
                __half new_k = __float2half_rn(rotated(d, (const float *)(d.new_k + kv * d.nk1), i, turn)),
                       new_v = __float2half_rn(((const float *)(d.new_v + kv * d.nv1))[i]);
                room.new_k[i] = new_k;
                room.new_v[i] = new_v;
                // Into the cache by whose share it is in; by the first, should it be in none.
                if (new_row < first || new_row >= end ? split == 0 : new_row >= begin && new_row < stop) {
                    ((__half *)(d.cache_k + kv * j.k1 + (int64_t)new_row * j.k2))[i] = new_k;
                    ((__half *)(d.cache_v + kv * j.v1 + (int64_t)new_row * j.v2))[i] = new_v;
                }
            }
            __syncthreads();
        }
        if (tile >= stop) break;

        if (tile + lane / 4 == new_row)
#pragma unroll
            for (int i = 0; i < SIZE / 32; i++) k[i] = *(const uint4 *)(room.new_k + 32 * i + 8 * (lane % 4));
        __syncwarp();
        float s[4] = {};
#pragma unroll
        for (int i = 0; i < SIZE / 32; i++) {
            add_scores(s, room.q[2 * i][lane], k[i].x, k[i].y);
            add_scores(s, room.q[2 * i + 1][lane], k[i].z, k[i].w);
        }
        float a = seen >> pair & 1 ? (s[0] + s[2]) * j.p.scale : -INFINITY,
              b = seen >> (pair + 1) & 1 ? (s[1] + s[3]) * j.p.scale : -INFINITY;
        float now = fmaxf(high, fmaxf(a, b));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        float base = now == -INFINITY ? 0 : now, keep = __expf(high - base);
        if (__any_sync(0xffffffffu, now > high)) {
            total *= keep;
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float of_head = __shfl_sync(0xffffffffu, keep, 4 * g);
#pragma unroll
                for (int e = 0; e < DIMS; e++) acc[g][e] *= of_head;
            }
        }
        high = now;
        a = __expf(a - base);
        b = __expf(b - base);
        total += a + b; // of this lane's cells
        if (head < GROUP) {
            room.weight[warp][pair][head] = a;
            room.weight[warp][pair + 1][head] = b;
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < TURN; c++) {
            if (!(seen >> c & 1)) continue; // it may hold NaN
            if (tile + c == new_row)
#pragma unroll
                for (int e = 0; e < DIMS / 2; e++) v[c][e] = *(const uint32_t *)(room.new_v + DIMS * lane + 2 * e);
            float f[DIMS];
#pragma unroll
            for (int e = 0; e < DIMS / 2; e++) {
                float2 x = __half22float2(*(const __half2 *)&v[c][e]);
                f[2 * e] = x.x;
                f[2 * e + 1] = x.y;
            }
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float w = room.weight[warp][c][g];
#pragma unroll
                for (int e = 0; e < DIMS; e++) acc[g][e] += w * f[e];
            }
        }
        __syncwarp();
        if (tile + WARPS * TURN >= stop) break;
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (lane % 4 == 0 && head < GROUP) {
        room.high[warp][head] = high;
        room.total[warp][head] = total;
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++)
#pragma unroll
        for (int e = 0; e < DIMS; e++) room.meet[warp][g][DIMS * lane + e] = acc[g][e];
    __syncthreads();
    // How much each warp counts: a warp per head, a lane per warp.
    if (warp < GROUP) {
        float h = lane < WARPS ? room.high[lane][warp] : -INFINITY, most_of = warp_max(h),
              keep = h == -INFINITY ? 0 : __expf(h - most_of),
              sum = warp_sum(lane < WARPS ? keep * room.total[lane][warp] : 0);
        if (lane < WARPS) room.keep[lane][warp] = keep;
        if (lane == 0) {
            room.all_high[warp] = most_of;
            room.all_total[warp] = sum;
        }
    }
    __syncthreads();
    float *shares = d.partial + (int64_t)kv * group * d.splits * (SIZE + 2);
    if (active > 1) {
        for (int i = threadIdx.x; i < group * SIZE; i += THREADS) {
            int g = i / SIZE;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += room.keep[w][g] * room.meet[w][g][i % SIZE];
            shares[((int64_t)g * d.splits + split) * (SIZE + 2) + i % SIZE] = sum;
        }
        if (threadIdx.x < group) {
            float *at = shares + ((int64_t)threadIdx.x * d.splits + split) * (SIZE + 2) + SIZE;
            at[0] = room.all_high[threadIdx.x];
            at[1] = room.all_total[threadIdx.x];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) room.last = atomicInc(&d.tickets[kv], (unsigned)active - 1) == (unsigned)active - 1;
        __syncthreads();
        if (!room.last) return;
        __threadfence();
    }
    if (warp < group) {
        float sink = j.sinks ? j.sinks[kv * group + warp] : -INFINITY, h[2] = {-INFINITY, -INFINITY}, t[2] = {0, 0};
        if (active == 1) {
            if (lane == 0) h[0] = room.all_high[warp], t[0] = room.all_total[warp];
        } else {
            const float *share = shares + (int64_t)warp * d.splits * (SIZE + 2) + SIZE;
            for (int i = 0; i < 2; i++)
                if (lane + 32 * i < active) {
                    h[i] = __ldcg(share + (lane + 32 * i) * (SIZE + 2));
                    t[i] = __ldcg(share + (lane + 32 * i) * (SIZE + 2) + 1);
                }
        }
        float most_of = fmaxf(sink, warp_max(fmaxf(h[0], h[1]))), sum = 0, keep[2];
        for (int i = 0; i < 2; i++) {
            keep[i] = h[i] == -INFINITY ? 0 : __expf(h[i] - most_of);
            sum += keep[i] * t[i];
        }
        sum = warp_sum(sum);
        if (j.sinks) sum += __expf(sink - most_of);
        float inverse = sum > 0 ? 1 / sum : 0;
        if (active == 1) { // on top of what the warps count
            float whole = __shfl_sync(0xffffffffu, keep[0], 0) * inverse;
            if (lane < WARPS) room.keep[lane][warp] *= whole;
        } else {
            for (int i = 0; i < 2; i++) room.keep[lane + 32 * i][warp] = keep[i] * inverse;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * SIZE; i += THREADS) {
        int g = i / SIZE, head = kv * group + g;
        float value = 0;
        if (active == 1) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) value += room.keep[w][g] * room.meet[w][g][i % SIZE];
        } else {
            const float *share = shares + (int64_t)g * d.splits * (SIZE + 2) + i % SIZE;
#pragma unroll 4
            for (int s = 0; s < active; s++) value += room.keep[s][g] * __ldcg(share + s * (SIZE + 2));
        }
        if (d.store) ((float *)(j.out + head * j.o1))[i % SIZE] = value;
        if (d.next.y) d.next.y[head * SIZE + i % SIZE] = value;
    }
}

#endif

// ---- The whole
// ----------------------------------------------------------------------------------------------------------------

// All attentions of a chain have heads of one size and at most GROUP for each key/value head.
template <int SIZE, int GROUP>
__global__ static void __launch_bounds__(THREADS, 1)
    chain_kernel(const chain_step *steps, int n, unsigned *counters) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char room[];
    __shared__ __align__(16) knowledge known;
    __shared__ float2 turn[64];
    __shared__ float sums[32], rests[WARPS][2][4];
    __shared__ stream streams[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *ring = room + warp * SLOTS * STAGE, *near = room + WARPS * SLOTS * STAGE;
    static_assert(sizeof(chain_step) % 16 == 0, "steps are copied 16 bytes at a time");
    auto learn = [&](int step) { // by a warp
        if (step < n)
            for (int i = lane; i < (int)(sizeof(chain_step) / 16); i += 32)
                ((uint4 *)&known.steps[step % KNOWN])[i] = ((const uint4 *)&steps[step])[i];
    };
    if (warp < KNOWN - 1) learn(warp);
    __syncthreads();
    // What lasts from step to step is in shared memory: in registers it would be in the way, and what does not fit
    // those is lost to the cache with every wait.
    if (lane == 0) {
        streams[warp] = {};
        streams[warp].step = -1;
        streams[warp].free = SLOTS;
        streams[warp].now = 2 - KNOWN;
        streams[warp].turned = -1;
    }
    __syncwarp();
    for (;;) {
        int step = streams[warp].now;
        if (step >= n) break;
        // What does not depend on the step before: a step's share is computed long before it, its description has
        // come even earlier.
        int far = step + KNOWN - 2;
        if (far < n && !known.steps[far % KNOWN].is_attention && lane == 0)
            known.shares[far % KNOWN][warp] = share_of(known.steps[far % KNOWN].product, warp);
        __syncwarp();
        if (step < 0) {
            if (lane == 0) streams[warp].now = step + 1;
            __syncwarp();
            continue;
        }
        if (warp == WARPS - 1) learn(far + 1); // from the next step on
        int last_known = min(n - 1, far);
        const chain_step &now = known.steps[step % KNOWN];
        unsigned arrivals = (unsigned)step * gridDim.x;
        if (now.is_attention) {
            const decode_job &d = now.attention;
            if (d.dims && streams[warp].turned != d.rotation) angles(d, d.positions[0], turn);
            if (lane == 0) streams[warp].turned = d.rotation;
            attend<SIZE, GROUP>(d, near, turn, counters, arrivals);
        } else {
            const gemv_job &j = now.product.job;
            if (j.in.weight && 32 * (int)threadIdx.x < j.k)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(j.in.weight + 32 * threadIdx.x));
            wait_for_all(counters, arrivals);
            prepare(now.product, near, sums);
            multiply(now.product, known.shares[step % KNOWN][warp], near, streams[warp], known, last_known, ring,
                     rests, sums);
        }
        if (step + 1 < n) arrive(counters);
        if (lane == 0) streams[warp].now++;
        __syncwarp();
    }
    // Whoever ends last leaves the counters as they were.
    if (threadIdx.x == 0 && atomicInc(counters + 32, gridDim.x - 1) == gridDim.x - 1) counters[0] = 0;
#endif
}

// ---- Collecting and launching
// --------------------------------------------------------------------------------------------------

struct chain {
    chain_step *steps, *sent; // as collected in this run; as the device has them
    chain_step *on_device;
    int n, launched, capacity;
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
    c->steps = (chain_step *)tn_calloc((size_t)steps, sizeof *c->steps);
    c->sent = (chain_step *)tn_calloc((size_t)steps, sizeof *c->sent);
    tn_status status = c->steps && c->sent ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = cuda_check(cudaSetDevice(device->ordinal), "cudaSetDevice");
    if (status == TN_OK)
        status = cuda_check(cudaMalloc(&c->on_device, (size_t)steps * sizeof *c->on_device), "allocating steps");
    if (status != TN_OK) {
        chain_free(c);
        return status;
    }
    *out = c;
    return TN_OK;
}

// False where a matrix is of a kind that has no unit or k does not suit it, or where pieces or groups would differ.
static bool product_of(const gemv_job &j, chain_product *p) {
    int span = 0;
    p->job = j;
    p->all_groups = 0;
    for (int i = 0; i < 3; i++) p->rows[i] = p->groups[i] = p->kinds[i] = 0;
    for (int i = 0; i < j.n; i++) {
        int grain = 0, other = span;
        p->kinds[i] = chain_kind_of(j.m[i].kind);
        if (p->kinds[i] == CHAIN_NONE) return false;
#define LAYOUT(U) other = U::SPAN, grain = U::GRAIN, p->rows[i] = U::GROUP
        FOR_KIND(p->kinds[i], LAYOUT)
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
    return j.k % 32 == 0 && j.k <= CHAIN_MOST && p->all_groups <= MOST_GROUPS;
}
// What few models do to scores or masks is not in a chain: its code would be in everybody's way.
bool chain_takes_attention(const tn_tensor *t) {
    const tn_attention_params &p = t->params.attention;
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K];
    bool fits = q->ne[0] <= 64 || q->ne[1] / k->ne[1] <= 4; // what the warps bring together, beside the rings
    return t->ne[2] == 1 && p.soft_cap == 0 && p.max_bias == 0 && !p.chunk && fits && q->nb[1] % 16 == 0;
}
bool chain_takes_product(const gemv_job &j) {
    chain_product p;
    return product_of(j, &p);
}

void chain_begin(chain *c) { c->n = c->launched = c->size = c->group = 0; }
void chain_add_product(chain *c, const gemv_job &job) {
    chain_step &s = c->steps[c->n++];
    s.is_attention = false;
    product_of(job, &s.product);
}
static int group_of(const decode_job &d) {
    int group = d.a.heads / d.a.kv_heads;
    return group <= 2 ? group : group <= 4 ? 4 : 8;
}
tn_status chain_add_attention(chain *c, const launch &l, const decode_job &job) {
    decode_job d = job;
    if (c->size && (c->size != d.a.head_k || c->group != group_of(d))) TN_TRY(chain_launch(c, l));
    c->size = d.a.head_k;
    c->group = group_of(d);
    d.wait_first = c->n > c->launched && c->steps[c->n - 1].is_attention;
    // Steps with the same rotation share its table.
    d.rotation = c->n;
    for (int i = c->launched; i < c->n; i++) {
        const decode_job &o = c->steps[i].attention;
        if (!c->steps[i].is_attention || o.dims != d.dims || o.positions != d.positions || o.factors != d.factors ||
            o.freq_scale != d.freq_scale || o.ext_factor != d.ext_factor || o.attn_factor != d.attn_factor ||
            o.corr_low != d.corr_low || o.corr_high != d.corr_high || o.octave != d.octave)
            continue;
        d.rotation = o.rotation;
        break;
    }
    c->steps[c->n].is_attention = true;
    c->steps[c->n++].attention = d;
    return TN_OK;
}

static size_t room_of(const chain_step &s) {
    if (!s.is_attention)
        return s.product.kinds[0] <= CHAIN_BF16 ? (size_t)s.product.job.k * 4 : (size_t)s.product.job.k / 4 * 5;
    int size = s.attention.a.head_k;
    return (size_t)(WARPS * size + WARPS * TURN + 2 * WARPS + 64 + 2) * 4 * (size_t)group_of(s.attention) +
           (size_t)size * (32 + 4) + 16;
}

typedef void (*chain_function)(const chain_step *, int, unsigned *);
template <int SIZE> static chain_function kernel_for(int group) {
    return group <= 1   ? chain_kernel<SIZE, 1>
           : group == 2 ? chain_kernel<SIZE, 2>
           : group == 4 ? chain_kernel<SIZE, 4>
                        : chain_kernel<64, 8>; // the only size that takes eight
}
tn_status chain_launch(chain *c, const launch &l) {
    int n = c->n - c->launched;
    if (!n) return TN_OK;
    const chain_step *steps = c->steps + c->launched;
    size_t bytes = (size_t)n * sizeof *steps, near = 0;
    for (int i = 0; i < n; i++)
        if (room_of(steps[i]) > near) near = room_of(steps[i]);
    near = (near + 127) & ~(size_t)127;
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
    chain_function kernel = c->size == 64 ? kernel_for<64>(c->group) : kernel_for<128>(c->group);
    size_t shared = (size_t)SLOTS * WARPS * STAGE + near;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)l.device->properties.multiProcessorCount);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = l.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    tn_status status = cuda_check(
        cudaLaunchKernelEx(&config, kernel, (const chain_step *)c->on_device + c->launched, n, l.tickets + N_TICKETS),
        "a chain");
    c->launched = c->n;
    c->size = c->group = 0;
    return status;
}
