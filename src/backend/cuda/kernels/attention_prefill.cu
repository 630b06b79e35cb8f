// Attention for many tokens, on tensor cores: a block takes 64 queries of one head and walks over the cache in tiles
// of 64 cells (of 32 where heads are large). Scores never leave registers. Heads of up to SIZE elements are filled up
// with zeros; keys' and values' sizes may differ.
#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/mma.cuh"

enum { QUERIES = 64, THREADS = 128, NEVER = 0x7fffffff };
// Weights are e^LIFT times as large as elsewhere, up to 16384: below 6e-5, f16 has ever fewer bits.
static constexpr float LIFT = 9.704f;

// How tiles come to shared memory.
enum tile_form {
    AS_THEY_ARE, // f16 rows, copied: the next tile is on its way while one is computed
    AS_HALVES,   // any other type, rounded to f16
    AS_TWO,      // f32: rounded to f16, and what rounding took away. Products of both parts keep 22 bits.
};

template <int SIZE, tile_form FORM> struct prefill_memory {
    static constexpr int PARTS = FORM == AS_TWO ? 2 : 1, STAGES = FORM == AS_THEY_ARE ? 2 : 1,
                         CELLS = SIZE * PARTS > 128 ? 32 : 64;
    static constexpr bool Q_IN_SHARED = SIZE * PARTS > 128; // else q stays in registers
    typedef __half tile[CELLS][SIZE + 8];                   // padded: eight rows lie in different banks
    tile k[STAGES][PARTS], v[STAGES][PARTS];
    uint4 q[PARTS][Q_IN_SHARED ? SIZE / 16 : 1][Q_IN_SHARED ? THREADS : 1]; // every thread has its own
    int position[2][CELLS];                                                 // NEVER: nobody here sees it
    int low[QUERIES], high[QUERIES];                                        // positions a query sees
};

__device__ static inline uint32_t pack(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}
// Part 1 is what rounding took away from part 0.
__device__ static inline uint32_t pack_part(float a, float b, int part) {
    if (part) {
        a -= __half2float(__float2half_rn(a));
        b -= __half2float(__float2half_rn(b));
    }
    return pack(a, b);
}
// Numbers that f16 does not have become its largest. Infinity and NaN stay: a broken model shows.
__device__ static inline float within_half(float x) {
    return fabsf(x) > 65504 && fabsf(x) < INFINITY ? copysignf(65504, x) : x;
}

// What all warps of a block know of its queries.
struct queries {
    bool one_sequence;
    int seq, least_low, most_low, least_high, most_high;
};

__device__ static int warp_least(int x) {
    for (int offset = 16; offset; offset >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ static int warp_most(int x) {
    for (int offset = 16; offset; offset >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// Whether sequence `seq` has a cell of the cache, and the cell's position as these queries see it. Where they are of
// several sequences, everybody looks for himself (has_cell).
__device__ static bool has_cell(const attention_job &j, int cell, int seq) {
    return seq >= 0 && ((uint32_t)j.k_pos[(int64_t)cell * (1 + j.words) + 1 + seq / 32] >> (seq % 32) & 1);
}
__device__ static int position_of(const attention_job &j, const queries &all, int cell, int end) {
    if (cell >= end) return NEVER;
    if (!j.k_pos) return cell;
    int p = j.k_pos[(int64_t)cell * (1 + j.words)];
    return p >= 0 && (!all.one_sequence || has_cell(j, cell, all.seq)) ? p : NEVER;
}

// The next tile from `begin` on that somebody sees; its positions go to shared memory. `whole`: everybody sees all of
// it. The same for all threads.
template <int CELLS>
__device__ static int next_tile(const attention_job &j, const queries &all, int begin, int end,
                                int (&positions)[CELLS], bool *whole) {
    *whole = false;
    int lane = threadIdx.x % 32;
    for (; begin < end; begin += CELLS) {
        int a = position_of(j, all, begin + lane, end),
            b = CELLS > 32 ? position_of(j, all, begin + 32 + lane, end) : a;
        int least = warp_least(min(a, b)), most = warp_most(max(a, b)),
            most_real = warp_most(max(a == NEVER ? -1 : a, b == NEVER ? -1 : b));
        if (least > all.most_high || most_real < all.least_low) continue;
        *whole = all.one_sequence && most <= all.least_high && least >= all.most_low;
        if (threadIdx.x < 32) {
            positions[lane] = a;
            if (CELLS > 32) positions[CELLS - 32 + lane] = b;
        }
        return begin;
    }
    return end;
}

// Rows of keys or values that a tile is made of.
struct tile_rows {
    const char *at; // cell 0
    int64_t stride;
    int type, size, begin, end; // cells of this tile from `begin` on that are before `end`
};
template <typename R, typename tile, int PARTS>
__device__ static inline void convert_tile(tile (&to)[PARTS], const tile_rows &rows) {
    // A thread's shares of eight elements, and how many of them are on their way at a time.
    constexpr int CELLS = sizeof(tile) / sizeof(*to[0]), CHUNKS = sizeof(*to[0]) / 16 - 1,
                  SHARES = CELLS * CHUNKS / THREADS, BATCH = SHARES % 4 ? 3 : 4;
    static_assert(CELLS * CHUNKS % THREADS == 0 && SHARES % BATCH == 0, "no rest");
#pragma unroll 1
    for (int first = threadIdx.x; first < CELLS * CHUNKS; first += BATCH * THREADS) {
        typename R::raw raw[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * THREADS, cell = rows.begin + i / CHUNKS, at = i % CHUNKS * 8;
            raw[b] = {};
            if (cell < rows.end && at < rows.size) raw[b] = R::load(rows.at + cell * rows.stride, at);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * THREADS, at = i % CHUNKS * 8;
            float v[8];
            R::floats(raw[b], at, v);
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = within_half(v[e]);
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                *(uint4 *)&to[part][i / CHUNKS][at] =
                    make_uint4(pack_part(v[0], v[1], part), pack_part(v[2], v[3], part), pack_part(v[4], v[5], part),
                               pack_part(v[6], v[7], part));
        }
    }
}

template <int SIZE, tile_form FORM>
__global__ static void __launch_bounds__(THREADS) prefill_kernel(attention_job j) {
    typedef prefill_memory<SIZE, FORM> memory;
    constexpr int CELLS = memory::CELLS, PARTS = memory::PARTS;
    extern __shared__ __align__(16) char raw_shared[];
    memory &m = *(memory *)raw_shared;
    int head = blockIdx.x, token0 = (int)(gridDim.y - 1 - blockIdx.y) * QUERIES; // the longest walks first
    int kv = head / (j.heads / j.kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4,
        col = lane % 4;
    float slope = attention_slope(j, head);
    int first, end;
    cell_range(j, &first, &end);

    queries all = {};
    all.seq = query_of(j, token0).seq;
    int differs = 0;
    if (threadIdx.x < QUERIES) {
        int t = token0 + threadIdx.x;
        attention_query q = t < j.tokens ? query_of(j, t) : attention_query{0, -1};
        bool lives = t < j.tokens && q.seq >= 0;
        int low = j.p.window ? q.position - j.p.window + 1 : -0x7fffffff, high = j.p.causal ? q.position : NEVER - 1;
        if (j.p.chunk) {
            low = max(low, q.position / j.p.chunk * j.p.chunk);
            high = min(high, q.position / j.p.chunk * j.p.chunk + j.p.chunk - 1);
        }
        m.low[threadIdx.x] = lives ? low : NEVER - 1;
        m.high[threadIdx.x] = lives ? high : -0x7fffffff;
        differs = lives && q.seq != all.seq;
    }
    all.one_sequence = !__syncthreads_or(differs);
    {
        int l0 = m.low[lane], l1 = m.low[lane + 32], h0 = m.high[lane], h1 = m.high[lane + 32];
        all.least_low = warp_least(min(l0, l1));
        all.most_low = warp_most(max(l0, l1));
        all.least_high = warp_least(min(h0, h1));
        all.most_high = warp_most(max(h0, h1));
    }
    int own = 16 * warp + row; // and own + 8
    attention_query mine[2];
    for (int r = 0; r < 2; r++) {
        int t = token0 + own + 8 * r;
        mine[r] = t < j.tokens ? query_of(j, t) : attention_query{-1, -1};
    }
    int low[2] = {m.low[own], m.low[own + 8]}, high[2] = {m.high[own], m.high[own + 8]};

    uint32_t kept_q[PARTS][memory::Q_IN_SHARED ? 1 : SIZE / 16][4];
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++)
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            uint32_t q[4];
#pragma unroll
            for (int r = 0; r < 4; r++) { // own and own + 8, the first eight dimensions and the second
                int at = 16 * step + r / 2 * 8 + 2 * col;
                const float *from =
                    (const float *)(j.q + head * j.q1 + (int64_t)min(token0 + own + r % 2 * 8, j.tokens - 1) * j.q2);
                float2 x = at < j.head_k ? make_float2(from[at], from[at + 1]) : make_float2(0, 0);
                q[r] = pack_part(x.x * j.p.scale, x.y * j.p.scale, part);
            }
            if constexpr (memory::Q_IN_SHARED)
                m.q[part][step][threadIdx.x] = make_uint4(q[0], q[1], q[2], q[3]);
            else
                memcpy(kept_q[part][step], q, sizeof q);
        }
    auto q_of = [&](int part, int step, uint32_t(&q)[4]) {
        if constexpr (memory::Q_IN_SHARED) {
            uint4 x = m.q[part][step][threadIdx.x];
            q[0] = x.x, q[1] = x.y, q[2] = x.z, q[3] = x.w;
        } else {
            memcpy(q, kept_q[part][step], sizeof q);
        }
    };
    float o[SIZE / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};

    auto fetch = [&](int begin, int stage) {
        for (int i = threadIdx.x; i < CELLS * (SIZE / 8); i += THREADS) {
            int c = i / (SIZE / 8), at = i % (SIZE / 8) * 8, cell = min(begin + c, end - 1);
            copy16(&m.k[stage][0][c][at], j.k + kv * j.k1 + (int64_t)cell * j.k2 + 2 * at,
                   begin + c < end && at < j.head_k);
            copy16(&m.v[stage][0][c][at], j.v + kv * j.v1 + (int64_t)cell * j.v2 + 2 * at,
                   begin + c < end && at < j.head_v);
        }
        copies_commit();
    };
    auto convert = [&](int begin) {
#pragma unroll 1
        for (int is_v = 0; is_v < 2; is_v++) {
            tile_rows rows = is_v ? tile_rows{j.v + kv * j.v1, j.v2, j.v_type, j.head_v, begin, end}
                                  : tile_rows{j.k + kv * j.k1, j.k2, j.k_type, j.head_k, begin, end};
            auto &to = is_v ? m.v[0] : m.k[0];
#define CONVERT(R) convert_tile<R>(to, rows)
            WITH_CACHE_READER(rows.type, CONVERT)
#undef CONVERT
        }
    };
    int stage = 0;
    bool whole, next_whole = false;
    int tile = next_tile<CELLS>(j, all, first, end, m.position[0], &whole);
    if (FORM == AS_THEY_ARE && tile < end) fetch(tile, 0);
    while (tile < end) {
        int next = next_tile<CELLS>(j, all, tile + CELLS, end, m.position[stage ^ 1], &next_whole);
        if (FORM != AS_THEY_ARE) {
            convert(tile);
        } else {
            if (next < end) {
                fetch(next, stage ^ 1);
                copies_wait<1>();
            } else {
                copies_wait<0>();
            }
        }
        __syncthreads();
        auto &k = m.k[stage % memory::STAGES], &v = m.v[stage % memory::STAGES];
        // Scores of 16 queries and all cells.
        float s[CELLS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < SIZE / 16; step++) {
            uint32_t q[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; part++) q_of(part, step, q[part]);
#pragma unroll
            for (int n = 0; n < CELLS / 16; n++)
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    uint32_t b[4];
                    load_four(b, &k[part][16 * n + (lane / 16) * 8 + lane % 8][16 * step + lane / 8 % 2 * 8], false);
#pragma unroll
                    for (int with = 0; with < PARTS - part; with++) { // small parts of both are too small
                        multiply(s[2 * n], q[with], b[0], b[1]);
                        multiply(s[2 * n + 1], q[with], b[2], b[3]);
                    }
                }
        }
        if (!whole || j.p.soft_cap > 0 || slope > 0) {
            uint32_t theirs = ~0u; // a bit for every score: the query's sequence has the cell
            if (!all.one_sequence) {
                theirs = 0;
#pragma unroll 1
                for (int i = 0; i < CELLS / 2; i++) { // as in s
                    int cell = tile + i / 4 * 8 + 2 * col + i % 2;
                    theirs |= (uint32_t)(cell < end && has_cell(j, cell, i & 2 ? mine[1].seq : mine[0].seq)) << i;
                }
            }
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = e / 2, position = m.position[stage][8 * n + 2 * col + e % 2];
                    bool visible = position >= low[r] && position <= high[r] && (theirs >> (4 * n + e) & 1);
                    float x = s[n][e];
                    if (j.p.soft_cap > 0) x = soft_capped(x, j.p.soft_cap);
                    if (slope > 0) x -= slope * (float)abs(mine[r].position - position);
                    s[n][e] = visible ? x : -INFINITY;
                }
        }
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = top[r];
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            keep[r] = top[r] == -INFINITY ? 0 : __expf(top[r] - most);
            float base = most == -INFINITY ? 0 : most - LIFT, sum = 0;
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[n][e] = __expf(s[n][e] - base);
                    sum += s[n][e];
                }
            total[r] = total[r] * keep[r] + sum; // of this lane's cells; joined at the end
            top[r] = most;
        }
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            o[n][0] *= keep[0];
            o[n][1] *= keep[0];
            o[n][2] *= keep[1];
            o[n][3] *= keep[1];
        }
#pragma unroll
        for (int step = 0; step < CELLS / 16; step++) {
            uint32_t p[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    p[part][e] = pack_part(s[2 * step + e / 2][e % 2 * 2], s[2 * step + e / 2][e % 2 * 2 + 1], part);
#pragma unroll
            for (int n = 0; n < SIZE / 16; n++)
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    uint32_t b[4];
                    load_four(b, &v[part][16 * step + lane % 16][16 * n + lane / 16 * 8], true);
#pragma unroll
                    for (int with = 0; with < PARTS - part; with++) {
                        multiply(o[2 * n], p[with], b[0], b[1]);
                        multiply(o[2 * n + 1], p[with], b[2], b[3]);
                    }
                }
        }
        __syncthreads();
        stage ^= 1;
        tile = next;
        whole = next_whole;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = total[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float keep = 1;
        if (j.sinks) {
            float next = fmaxf(top[r], j.sinks[head]);
            keep = top[r] == -INFINITY ? 0 : __expf(top[r] - next);
            sum = sum * keep + __expf(j.sinks[head] - next + LIFT);
        }
        float scale = sum > 0 ? keep / sum : 0;
        int t = token0 + own + 8 * r;
        if (t >= j.tokens) continue;
        float *out = (float *)(j.out + head * j.o1 + (int64_t)t * j.o2);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
            if (8 * n < j.head_v)
                *(float2 *)(out + 8 * n + 2 * col) = make_float2(o[n][2 * r] * scale, o[n][2 * r + 1] * scale);
    }
}

// ---- Choice ----

struct prefill_choice {
    void (*kernel)(attention_job);
    size_t bytes;
};
template <int SIZE, tile_form FORM> static prefill_choice choice() {
    return {prefill_kernel<SIZE, FORM>, sizeof(prefill_memory<SIZE, FORM>)};
}
template <tile_form FORM> static prefill_choice choice_for(int64_t size) {
    return size <= 64    ? choice<64, FORM>()
           : size <= 96  ? choice<96, FORM>()
           : size <= 128 ? choice<128, FORM>()
           : size <= 192 ? choice<192, FORM>()
                         : choice<256, FORM>();
}
// The smallest kernel that takes this head. Few have caches of f32: they are not compiled for every size. Where
// shared memory is too small for two stages, f16 comes as other types do.
static prefill_choice choice_of(const cuda_device *device, const tn_tensor *t) {
    const tn_tensor *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    int64_t size = k->ne[0] > v->ne[0] ? k->ne[0] : v->ne[0];
    if (k->type == TN_F32 || v->type == TN_F32)
        return size <= 64 ? choice<64, AS_TWO>() : size <= 128 ? choice<128, AS_TWO>() : choice<256, AS_TWO>();
    if (k->type == TN_F16 && v->type == TN_F16) {
        prefill_choice c = choice_for<AS_THEY_ARE>(size);
        if (c.bytes <= device->properties.sharedMemPerBlockOptin) return c;
    }
    return choice_for<AS_HALVES>(size);
}

bool prefill_supports(const cuda_device *device, const tn_tensor *t) {
    return cache_is_fast(t) && !t->src[TN_ATTN_MASK] &&
           choice_of(device, t).bytes <= device->properties.sharedMemPerBlockOptin && t->nb[1] % 8 == 0 &&
           t->nb[2] % 8 == 0 && (uintptr_t)t->data % 8 == 0;
}

tn_status launch_prefill(const launch &l, const tn_tensor *t) {
    attention_job j = attention_job_of(t);
    prefill_choice c = choice_of(l.device, t);
    void (*prefill)(attention_job) = c.kernel;
    CUDA_TRY(cudaFuncSetAttribute((const void *)prefill, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.bytes));
    prefill<<<dim3((unsigned)j.heads, blocks_for(j.tokens, QUERIES)), THREADS, c.bytes, l.stream>>>(j);
    return cuda_check(cudaGetLastError(), "attention");
}
