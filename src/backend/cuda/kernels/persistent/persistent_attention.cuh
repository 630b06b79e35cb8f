// Attention as a step of a chain: rotation, the new row of the cache, and one token's attention.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_ATTENTION_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_ATTENTION_CUH

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"
#include "backend/cuda/kernels/persistent/persistent_sync.cuh"

#if __CUDA_ARCH__ >= 900
// What a block sees: the same for many attentions.
struct view {
    int first, end, new_row; // cells
    viewer me;
    unsigned first_cells[WARPS]; // which of a warp's first cells are seen, by bits
};
template <int SIZE, int GROUP> struct attention_room { // in the place of activations
    uint4 q[SIZE / 16][32]; // as the tensor cores read it, rounded to f16, and below that what rounding took away
    __half new_k[SIZE], new_v[SIZE];
    float meet[WARPS][GROUP][SIZE];
    float weight[WARPS][TURN][GROUP];
    float high[WARPS][GROUP], total[WARPS][GROUP], keep[64][GROUP];
    float all_high[GROUP], all_total[GROUP];
    int last;
};

// Elements i to i + 3 of a row that is to be rotated, and what they turn with: asked for, perhaps not yet there.
struct turning {
    const float *at, *other_half;
    tagged_words h, g;
};
__device__ static inline turning ask_for_four(const decode_job &d, const float *row, int i) {
    int half = d.dims / 2;
    turning t;
    t.at = row + i;
    t.other_half = i >= d.dims || !d.neox ? t.at : i >= half ? t.at - half : t.at + half;
    t.h = load_tagged(t.at);
    t.g = load_tagged(t.other_half);
    return t;
}
// With a multiple of 8 dimensions they turn alike.
__device__ static inline void rotate_four(const decode_job &d, const turning &asked, int i, unsigned tag,
                                          const float2 *turn, float (&out)[4]) {
    int half = d.dims / 2;
    bool turns = i < d.dims, second = i >= half;
    float4 x = poll(asked.h, asked.at, tag), y = poll(asked.g, asked.other_half, tag);
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
__device__ static inline void attend(const persistent_step &step, char *shared, const float2 *turn, view &seen_from,
                                     bool known_view, const unsigned *counters, unsigned input_tag, unsigned tag) {
    constexpr int DIMS = SIZE / 32;
    attention_room<SIZE, GROUP> &room = *(attention_room<SIZE, GROUP> *)shared;
    const decode_job &d = step.attention;
    const attention_job &j = d.a;
    unsigned arrivals = (unsigned)step.arrivals * gridDim.x;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = j.heads / j.kv_heads;
    int kv = (int)blockIdx.x % j.kv_heads, split = (int)blockIdx.x / j.kv_heads;
    if (d.wait_first) wait_for_all(counters, arrivals);
    if (!known_view) {
        if (threadIdx.x == 0) {
            bounds_of(j, &seen_from.first, &seen_from.end);
            seen_from.me = viewer_of(j, 0);
            seen_from.new_row = d.rows && d.rows[0] < j.cells ? d.rows[0] : -1;
        }
        __syncthreads();
    }
    int first = seen_from.first, end = seen_from.end;
    int most = min(d.splits, (int)gridDim.x / j.kv_heads), n = max(end - first, 0);
    int span = max((int)LEAST_CELLS, ((n + most - 1) / most + TURN - 1) / TURN * TURN),
        active = max(1, (n + span - 1) / span);
    if (split >= active) return;
    int begin = first + split * span, stop = min(end, begin + span);
    viewer me = seen_from.me;
    int new_row = seen_from.new_row;

    // Half the warps rotate q, two others the new row of k and take that of v. They ask as early as they can; with
    // larger heads there are not enough registers for that.
    const int role = threadIdx.x, of_q = role % 32 / 4;
    const bool turns_q = role < SIZE / 16 * 32, is_v = role >= THREADS / 2 + 32,
               brings = new_row >= 0 && role >= THREADS / 2 && role < THREADS / 2 + 64 && role % 32 < SIZE / 4,
               asks = turns_q ? of_q < group : brings, early = SIZE <= 64 && (!step.waits || d.wait_first);
    const float *row = turns_q ? (const float *)(j.q + (int64_t)(kv * group + of_q) * j.q1)
                       : is_v  ? (const float *)(d.new_v + kv * d.nv1)
                               : (const float *)(d.new_k + kv * d.nk1);
    const int dim = turns_q ? 32 * (role / 64) + 8 * (role % 4) + 4 * (role / 32 % 2) : role % 32 * 4;
    turning asked = {};
    if (early && asks) asked = ask_for_four(d, row, dim);

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
        // Which of the cells are seen: a lane looks at one. The first cells are the same in all layers.
        unsigned seen = known_view && !begun ? seen_from.first_cells[warp] : 0;
        if (!known_view || begun) {
            int mine = tile + lane % TURN, position = max(0, min(mine, stop - 1));
            uint32_t word = ~0u;
            if (j.k_pos) {
                const int32_t *meta = j.k_pos + (int64_t)position * (1 + j.words);
                position = meta[0];
                word = (uint32_t)meta[1 + max(0, me.seq) / 32];
            }
            bool visible =
                mine < stop && !(j.k_pos && (position < 0 || me.seq < 0 || !(word >> (me.seq % 32) & 1))) &&
                !(j.p.causal && position > me.position) && !(j.p.window && me.position - position >= j.p.window);
            seen = __ballot_sync(0xffffffffu, visible);
            if (!begun && lane == 0) seen_from.first_cells[warp] = seen;
        }

        if (!begun) {
            begun = true;
            if (!early) {
                if (step.waits && !d.wait_first) wait_for_all(counters, arrivals);
                if (asks) asked = ask_for_four(d, row, dim);
            }
            if (turns_q) {
                float x[4] = {}, rest[4];
                if (asks) rotate_four(d, asked, dim, input_tag, turn, x);
#pragma unroll
                for (int e = 0; e < 4; e++) rest[e] = x[e] - __half2float(__float2half_rn(x[e]));
                room.q[role / 32][role % 32] = make_uint4(halves(x[0], x[1]), halves(rest[0], rest[1]),
                                                          halves(x[2], x[3]), halves(rest[2], rest[3]));
            } else if (brings) {
                float x[4];
                if (is_v) {
                    float4 y = poll(asked.h, asked.at, input_tag);
                    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
                } else {
                    rotate_four(d, asked, dim, input_tag, turn, x);
                }
                uint2 four = make_uint2(halves(x[0], x[1]), halves(x[2], x[3]));
                *(uint2 *)((is_v ? room.new_v : room.new_k) + dim) = four;
                // Into the cache by whose share it is in; by the first, should it be in none.
                if (new_row < first || new_row >= end ? split == 0 : new_row >= begin && new_row < stop)
                    *(uint2 *)((is_v ? d.cache_v + kv * j.v1 + (int64_t)new_row * j.v2
                                     : d.cache_k + kv * j.k1 + (int64_t)new_row * j.k2) +
                               2 * dim) = four;
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
    // How much each warp counts: a warp per head, a lane per warp. Where there is no other block, this is all.
    if (warp < GROUP) {
        float sink = j.sinks && active == 1 && warp < group ? j.sinks[kv * group + warp] : -INFINITY,
              h = lane < WARPS ? room.high[lane][warp] : -INFINITY, most_of = fmaxf(sink, warp_max(h)),
              keep = h == -INFINITY ? 0 : __expf(h - most_of),
              sum = warp_sum(lane < WARPS ? keep * room.total[lane][warp] : 0);
        if (sink != -INFINITY) sum += __expf(sink - most_of);
        if (active == 1) keep *= sum > 0 ? 1 / sum : 0;
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
        if (warp < group) {
            float sink = j.sinks ? j.sinks[kv * group + warp] : -INFINITY, h[2] = {-INFINITY, -INFINITY},
                  t[2] = {0, 0};
            const float *share = shares + (int64_t)warp * d.splits * (SIZE + 2) + SIZE;
            for (int i = 0; i < 2; i++)
                if (lane + 32 * i < active) {
                    h[i] = __ldcg(share + (lane + 32 * i) * (SIZE + 2));
                    t[i] = __ldcg(share + (lane + 32 * i) * (SIZE + 2) + 1);
                }
            float most_of = fmaxf(sink, warp_max(fmaxf(h[0], h[1]))), sum = 0, keep[2];
            for (int i = 0; i < 2; i++) {
                keep[i] = h[i] == -INFINITY ? 0 : __expf(h[i] - most_of);
                sum += keep[i] * t[i];
            }
            sum = warp_sum(sum);
            if (j.sinks) sum += __expf(sink - most_of);
            float inverse = sum > 0 ? 1 / sum : 0;
            for (int i = 0; i < 2; i++) room.keep[lane + 32 * i][warp] = keep[i] * inverse;
        }
        __syncthreads();
    }
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
        float after = __shfl_down_sync(0xffffffffu, value, 1);
        if (d.published && i % 2 == 0) publish(d.published + head * SIZE + i % SIZE, value, after, tag);
        if (d.store) ((float *)(j.out + head * j.o1))[i % SIZE] = value;
        if (d.next.y) d.next.y[head * SIZE + i % SIZE] = value;
    }
}
#endif

#endif
