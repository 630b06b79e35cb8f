// Attention for many tokens, on tensor cores. A block computes 64 queries of one head and iterates over the cache in
// tiles of 64 cells, or 32 where heads are large. Scores stay in registers. Heads are padded with zeros to SIZE
// elements; keys and values may have different sizes.
#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/mma.cuh"

enum { QUERIES = 64, THREADS = 128, NEVER = 0x7fffffff };
// Weights are scaled by e^LIFT, so they are at most 16384. Below 6e-5 f16 is subnormal and loses precision.
static constexpr float LIFT = 9.704f;

// How tiles are stored in shared memory.
enum tile_form {
    ROWS_F16,       // rows are f16 and copied asynchronously: the next tile loads while one is computed
    ROWS_TO_F16,    // rows of other types are rounded to f16
    ROWS_SPLIT_F16, // rows are f32: one part rounded to f16, one part with the rounding error. Both together keep 22
                    // bits.
};

template <int SIZE, tile_form FORM> struct prefill_memory {
    static constexpr int PARTS = FORM == ROWS_SPLIT_F16 ? 2 : 1, STAGES = FORM == ROWS_F16 ? 2 : 1,
                         CELLS = SIZE * PARTS > 128 ? 32 : 64;
    static constexpr bool Q_IN_SHARED = SIZE * PARTS > 128; // otherwise q is in registers
    typedef __half tile[CELLS][SIZE + 8];                   // padded, so that eight rows are in different banks
    tile k[STAGES][PARTS], v[STAGES][PARTS];
    uint4 q[PARTS][Q_IN_SHARED ? SIZE / 16 : 1][Q_IN_SHARED ? THREADS : 1]; // by thread
    int position[2][CELLS];          // of cells; NEVER: not visible to any query
    int low[QUERIES], high[QUERIES]; // the range of positions visible to a query
};

__device__ static inline uint32_t two_halves(float a, float b) {
    __half2 h = __floats2half2_rn(a, b);
    return *(uint32_t *)&h;
}
// Part 0: the values rounded to f16. Part 1: the rounding errors.
__device__ static inline uint32_t pack_part(float a, float b, int part) {
    if (part) {
        a -= __half2float(__float2half_rn(a));
        b -= __half2float(__float2half_rn(b));
    }
    return two_halves(a, b);
}
// Saturates at f16's largest value. Infinity and NaN are kept, so that a broken model remains visible.
__device__ static inline float within_half(float x) {
    return fabsf(x) > 65504 && fabsf(x) < INFINITY ? copysignf(65504, x) : x;
}

// Ranges over all queries of a block.
struct queries {
    bool one_sequence;
    int seq, min_low, max_low, min_high, max_high;
};

__device__ static int warp_min_int(int x) {
    for (int offset = 16; offset; offset >>= 1) x = min(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ static int warp_max_int(int x) {
    for (int offset = 16; offset; offset >>= 1) x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// Whether a cell belongs to sequence `seq`.
__device__ static bool has_cell(const attention_job &j, int cell, int seq) {
    return seq >= 0 && ((uint32_t)j.k_pos[(int64_t)cell * (1 + j.words) + 1 + seq / 32] >> (seq % 32) & 1);
}
// A cell's position, or NEVER. With queries of several sequences, each query checks the sequence itself with
// has_cell().
__device__ static int position_of(const attention_job &j, const queries &all, int cell, int end) {
    if (cell >= end) return NEVER;
    if (!j.k_pos) return cell;
    int p = j.k_pos[(int64_t)cell * (1 + j.words)];
    return p >= 0 && (!all.one_sequence || has_cell(j, cell, all.seq)) ? p : NEVER;
}

// The next tile from `begin` on with a cell that is visible to a query, or `end`; stores its positions in shared
// memory. `whole`: all its cells are visible to all queries. The result is uniform over the block.
template <int CELLS>
__device__ static int next_tile(const attention_job &j, const queries &all, int begin, int end,
                                int (&positions)[CELLS], bool *whole) {
    *whole = false;
    int lane = threadIdx.x % 32;
    for (; begin < end; begin += CELLS) {
        int a = position_of(j, all, begin + lane, end),
            b = CELLS > 32 ? position_of(j, all, begin + 32 + lane, end) : a;
        int least = warp_min_int(min(a, b)), most = warp_max_int(max(a, b)),
            highest_real = warp_max_int(max(a == NEVER ? -1 : a, b == NEVER ? -1 : b));
        if (least > all.max_high || highest_real < all.min_low) continue;
        *whole = all.one_sequence && most <= all.min_high && least >= all.max_low;
        if (threadIdx.x < 32) {
            positions[lane] = a;
            if (CELLS > 32) positions[CELLS - 32 + lane] = b;
        }
        return begin;
    }
    return end;
}

// Rows of keys or values for a tile.
struct tile_rows {
    const char *at; // cell 0
    int64_t stride;
    int type, size, begin, end; // the tile starts at cell `begin`; cells from `end` on are zeros
};
template <typename R, typename tile, int PARTS>
__device__ static inline void convert_tile(tile (&to)[PARTS], const tile_rows &rows) {
    // A thread converts SHARES times eight elements. Loads are issued in batches of BATCH.
    constexpr int CELLS = sizeof(tile) / sizeof(*to[0]), CHUNKS = sizeof(*to[0]) / 16 - 1,
                  SHARES = CELLS * CHUNKS / THREADS, BATCH = SHARES % 4 ? 3 : 4;
    static_assert(CELLS * CHUNKS % THREADS == 0 && SHARES % BATCH == 0, "threads share the tile evenly");
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
    // Later tokens attend to more cells, so their blocks start first.
    int head = blockIdx.x, token0 = (int)(gridDim.y - 1 - blockIdx.y) * QUERIES;
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
        bool is_real = t < j.tokens && q.seq >= 0;
        int low = j.p.window ? q.position - j.p.window + 1 : -0x7fffffff, high = j.p.causal ? q.position : NEVER - 1;
        if (j.p.chunk) {
            low = max(low, q.position / j.p.chunk * j.p.chunk);
            high = min(high, q.position / j.p.chunk * j.p.chunk + j.p.chunk - 1);
        }
        m.low[threadIdx.x] = is_real ? low : NEVER - 1;
        m.high[threadIdx.x] = is_real ? high : -0x7fffffff;
        differs = is_real && q.seq != all.seq;
    }
    all.one_sequence = !__syncthreads_or(differs);
    {
        int l0 = m.low[lane], l1 = m.low[lane + 32], h0 = m.high[lane], h1 = m.high[lane + 32];
        all.min_low = warp_min_int(min(l0, l1));
        all.max_low = warp_max_int(max(l0, l1));
        all.min_high = warp_min_int(min(h0, h1));
        all.max_high = warp_max_int(max(h0, h1));
    }
    int own = 16 * warp + row; // this lane has queries own and own + 8
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
            for (int r = 0; r < 4; r++) { // queries own and own + 8, dimensions 0 to 7, then 8 to 15
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
    float out_sum[SIZE / 8][4] = {}, max_score[2] = {-INFINITY, -INFINITY}, weight_sum[2] = {0, 0};

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
    if (FORM == ROWS_F16 && tile < end) fetch(tile, 0);
    while (tile < end) {
        int next = next_tile<CELLS>(j, all, tile + CELLS, end, m.position[stage ^ 1], &next_whole);
        if (FORM != ROWS_F16) {
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
        // Scores of the warp's 16 queries with all cells of the tile.
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
                    for (int with = 0; with < PARTS - part; with++) { // error times error is negligible
                        multiply(s[2 * n], q[with], b[0], b[1]);
                        multiply(s[2 * n + 1], q[with], b[2], b[3]);
                    }
                }
        }
        if (!whole || j.p.soft_cap > 0 || slope > 0) {
            uint32_t in_sequence = ~0u; // a bit for every score: the cell belongs to the query's sequence
            if (!all.one_sequence) {
                in_sequence = 0;
#pragma unroll 1
                for (int i = 0; i < CELLS / 2; i++) { // in the order of s
                    int cell = tile + i / 4 * 8 + 2 * col + i % 2;
                    in_sequence |= (uint32_t)(cell < end && has_cell(j, cell, i & 2 ? mine[1].seq : mine[0].seq))
                                   << i;
                }
            }
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = e / 2, position = m.position[stage][8 * n + 2 * col + e % 2];
                    bool visible = position >= low[r] && position <= high[r] && (in_sequence >> (4 * n + e) & 1);
                    float x = s[n][e];
                    if (j.p.soft_cap > 0) x = soft_capped(x, j.p.soft_cap);
                    if (slope > 0) x -= slope * (float)abs(mine[r].position - position);
                    s[n][e] = visible ? x : -INFINITY;
                }
        }
        float rescale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float new_max = max_score[r];
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++) new_max = fmaxf(new_max, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
            rescale[r] = max_score[r] == -INFINITY ? 0 : __expf(max_score[r] - new_max);
            float base = new_max == -INFINITY ? 0 : new_max - LIFT, sum = 0;
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    s[n][e] = __expf(s[n][e] - base);
                    sum += s[n][e];
                }
            weight_sum[r] = weight_sum[r] * rescale[r] + sum; // of this lane's cells; lanes are added at the end
            max_score[r] = new_max;
        }
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++) {
            out_sum[n][0] *= rescale[0];
            out_sum[n][1] *= rescale[0];
            out_sum[n][2] *= rescale[1];
            out_sum[n][3] *= rescale[1];
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
                        multiply(out_sum[2 * n], p[with], b[0], b[1]);
                        multiply(out_sum[2 * n + 1], p[with], b[2], b[3]);
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
        float sum = weight_sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float rescale = 1;
        if (j.sinks) {
            float new_max = fmaxf(max_score[r], j.sinks[head]);
            rescale = max_score[r] == -INFINITY ? 0 : __expf(max_score[r] - new_max);
            sum = sum * rescale + __expf(j.sinks[head] - new_max + LIFT);
        }
        float scale = sum > 0 ? rescale / sum : 0;
        int t = token0 + own + 8 * r;
        if (t >= j.tokens) continue;
        float *out = (float *)(j.out + head * j.o1 + (int64_t)t * j.o2);
#pragma unroll
        for (int n = 0; n < SIZE / 8; n++)
            if (8 * n < j.head_v)
                *(float2 *)(out + 8 * n + 2 * col) =
                    make_float2(out_sum[n][2 * r] * scale, out_sum[n][2 * r + 1] * scale);
    }
}

// ---- Choosing a kernel ----

struct prefill_choice {
    kernel_name name;
    void (*kernel)(attention_job);
    size_t bytes;
};
static const char *form_name(tile_form form) {
    return form == ROWS_F16 ? "f16" : form == ROWS_TO_F16 ? "to f16" : "split f16";
}
template <int SIZE, tile_form FORM> static prefill_choice prefill_choice_of_size() {
    return {kernel_called("prefill_kernel", form_name(FORM), SIZE), prefill_kernel<SIZE, FORM>,
            sizeof(prefill_memory<SIZE, FORM>)};
}
template <tile_form FORM> static prefill_choice prefill_choice_for(int64_t size) {
    return size <= 64    ? prefill_choice_of_size<64, FORM>()
           : size <= 96  ? prefill_choice_of_size<96, FORM>()
           : size <= 128 ? prefill_choice_of_size<128, FORM>()
           : size <= 192 ? prefill_choice_of_size<192, FORM>()
                         : prefill_choice_of_size<256, FORM>();
}
// The smallest kernel for this head size. Caches of f32 are rare, so that form is not compiled for every size. Where
// shared memory is too small for two stages, f16 is converted like other types.
static prefill_choice prefill_choice_of(const device_description &device, const tn_tensor *t) {
    const tn_tensor *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    int64_t size = k->ne[0] > v->ne[0] ? k->ne[0] : v->ne[0];
    if (k->type == TN_F32 || v->type == TN_F32)
        return size <= 64    ? prefill_choice_of_size<64, ROWS_SPLIT_F16>()
               : size <= 128 ? prefill_choice_of_size<128, ROWS_SPLIT_F16>()
                             : prefill_choice_of_size<256, ROWS_SPLIT_F16>();
    if (k->type == TN_F16 && v->type == TN_F16) {
        prefill_choice c = prefill_choice_for<ROWS_F16>(size);
        if (c.bytes <= device.shared_per_block) return c;
    }
    return prefill_choice_for<ROWS_TO_F16>(size);
}

bool prefill_supports(const device_description &device, const tn_tensor *t) {
    return cache_is_fast(t) && !t->src[TN_ATTN_MASK] &&
           prefill_choice_of(device, t).bytes <= device.shared_per_block && t->nb[1] % 8 == 0 && t->nb[2] % 8 == 0 &&
           (uintptr_t)t->data % 8 == 0;
}

tn_status compile_prefill(const compilation &c, const tn_tensor *t) {
    attention_job j = attention_job_of(t);
    prefill_choice chosen = prefill_choice_of(*c.device, t);
    launch_shape shape = {dim3((unsigned)j.heads, blocks_for(j.tokens, QUERIES)), THREADS, chosen.bytes};
    shape.raises_limit = true;
    return add_kernel(c, chosen.name, chosen.kernel, shape, j);
}
