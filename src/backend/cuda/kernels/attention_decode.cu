// Attention for up to 8 tokens. The logical cells of a token's sequence are split over
// blocks, and the last block to finish combines their results. A block computes all query heads of a key/value head,
// or some of them.
//
// With an f16 cache, norms of q and k, rotating them and storing the new rows of k and v can run in the same launch.
// Every block rotates the q it needs, and stores the new rows in its share of the cells before it reads them.
#include "backend/cuda/kernels/attention.cuh"

enum {
    THREADS = 256,
    CELLS = THREADS, // of a tile
    MAX_GROUP = 8,
    MAX_TOKENS = 8,
    LEAST = 128,      // the fewest cells worth a block of their own
    FEW_CELLS = 2048, // up to so many logical cells, and
    FEW_ROWS = 2,     // up to so many tokens, a block has few heads: otherwise there are enough blocks
    MAX_SHARES = 64   // blocks of a head: two for each lane of the warp that combines them
};

// What decode_extras adds to the job, for this kernel only.
struct decode_heads {
    const float *norm_q, *norm_k; // weights of RMS norms before the rotation; NULL: none
    float eps_q, eps_k;
    int sections[4]; // pairs that share one of a token's four positions; all 0: it has one
    const char *gate;
    int64_t gate1, gate2; // byte strides of head and token
};
__device__ static void heads_rope_table(const decode_job &d, const decode_heads &h, int token, float2 *turn) {
    const int pair = threadIdx.x, total = h.sections[0] + h.sections[1] + h.sections[2] + h.sections[3];
    if (pair < d.dims / 2) {
        int section = 0;
        if (total)
            for (int at = pair % total; section < 3 && at >= h.sections[section];) at -= h.sections[section++];
        turn[pair] = rope_turn(d, d.positions[token + d.a.tokens * section], pair);
    }
    __syncthreads();
}
// The same as rope_element() of x times a norm's weight.
__device__ static float weighted_rope_element(const decode_job &d, const float *x, const float *w, int i,
                                              const float2 *turn) {
    if (i >= d.dims) return x[i] * w[i];
    const int pair = d.neox ? i % (d.dims / 2) : i / 2, a = d.neox ? pair : 2 * pair,
              b = d.neox ? pair + d.dims / 2 : 2 * pair + 1;
    const float u = x[a] * w[a], v = x[b] * w[b];
    return i == b ? u * turn[pair].y + v * turn[pair].x : u * turn[pair].x - v * turn[pair].y;
}

// A block's share: logical cells `begin` to `stop` of a sequence. Share 0 is that of a token's first block.
struct decode_share {
    int seq, begin, stop, number;
};
// Whether a cell is in the share. All threads of the block call this.
__device__ static bool share_has(const attention_job &j, const decode_share &s, int cell) {
    bool has_it = false;
    int last = s.stop > s.begin ? run_index(j, s.stop - 1) : -1;
    for (int i = run_index(j, s.begin) + (int)threadIdx.x; i <= last; i += THREADS) {
        tn_page_run run = run_of(j, s.seq, i);
        int offset = cell - run.cell, logical = run_begin(j, i) + offset;
        has_it = has_it || (offset >= 0 && offset < run.count && logical >= s.begin && logical < s.stop);
    }
    return __syncthreads_or(has_it);
}
// Whether the block stores token t's row of k and v: if the row is in its share, and the token's first block in any
// case, since the row may be in no share. The last of several tokens with the same row counts, as in set_rows.
__device__ static bool stores_row(const decode_job &d, const decode_share &s, int token, int t) {
    int row = d.rows[t];
    if (row < 0 || row >= d.a.cells) return false;
    for (int later = t + 1; later < d.a.tokens; later++)
        if (d.rows[later] == row) return false;
    return (t == token && s.number == 0) || share_has(d.a, s, row);
}
// Stores the new rows of several tokens.
__device__ static void store_new_rows(const decode_job &d, const decode_heads &h, int kv, const decode_share &share,
                                      int token, float2 *rotation) {
    int rotation_of = token; // the token whose rotation table is in `rotation`
    for (int t = 0; t < d.a.tokens; t++) {
        if (!stores_row(d, share, token, t)) continue; // uniform over the block
        if (d.dims && t != rotation_of) {
            __syncthreads();
            heads_rope_table(d, h, t, rotation);
            rotation_of = t;
        }
        const float *k = (const float *)(d.new_k + kv * d.nk1 + t * d.nk2),
                    *v = (const float *)(d.new_v + kv * d.nv1 + t * d.nv2);
        __half *to_k = (__half *)(d.cache_k + kv * d.a.k1 + (int64_t)d.rows[t] * d.a.k2),
               *to_v = (__half *)(d.cache_v + kv * d.a.v1 + (int64_t)d.rows[t] * d.a.v2);
        int i = threadIdx.x; // a block has at least as many threads as a head has elements
        if (i < d.a.head_k) to_k[i] = __float2half_rn(rope_element(d, k, i, rotation));
        if (i < d.a.head_v) to_v[i] = __float2half_rn(v[i]);
    }
}

// The heads of a block where there are few cells.
static constexpr int few_heads(int group) { return group >= 4 ? group / 4 : group; }

// Rows of k or v for a tile of n cells.
struct decode_rows {
    const char *at; // row 0
    int64_t stride;
    const int *cells; // the row of each cell, or -1: not visible
    int n, size;
};

// Dot products of q with every cell of a tile. Eight lanes compute one cell.
template <typename R, int SIZE, int GROUP, bool WHOLE>
__device__ static inline void multiply_keys(const decode_rows &k, const float (&q)[GROUP][SIZE],
                                            float (&weight)[GROUP][CELLS]) {
    constexpr int STEPS = SIZE / 64, CELLS_AT_ONCE = THREADS / 8;
    int part = threadIdx.x % 8;
#pragma unroll(WHOLE ? 4 : 2)
    for (int c = threadIdx.x / 8; c < (k.n + CELLS_AT_ONCE - 1) / CELLS_AT_ONCE * CELLS_AT_ONCE; c += CELLS_AT_ONCE) {
        const char *row = k.at + max(k.cells[c], 0) * k.stride;
        typename R::raw raw[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            raw[i] = {};
            if (WHOLE || 64 * i + 8 * part < k.size) raw[i] = R::load(row, 64 * i + 8 * part);
        }
        float dot[GROUP] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            float f[8];
            R::floats(raw[i], 64 * i + 8 * part, f);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const float4 *x = (const float4 *)&q[g][64 * i + 8 * part];
                float4 a = x[0], b = x[1];
                dot[g] += f[0] * a.x + f[1] * a.y + f[2] * a.z + f[3] * a.w + f[4] * b.x + f[5] * b.y + f[6] * b.z +
                          f[7] * b.w;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float s = dot[g];
            for (int offset = 4; offset; offset >>= 1) s += __shfl_xor_sync(0xffffffffu, s, offset);
            if (part == g) weight[g][c] = s;
        }
    }
}
// Adds the weighted values of cells first, first + ROWS, … to `acc`. A thread sums eight dimensions from `dim` on.
template <typename R, int ROWS, int GROUP>
__device__ static inline void add_values(const decode_rows &v, int first, int dim,
                                         const float (&weight)[GROUP][CELLS], float (&acc)[GROUP][8]) {
    if (dim >= v.size) return;
#pragma unroll 4
    for (int c = first; c < v.n; c += ROWS) {
        int cell = v.cells[c];
        typename R::raw raw = R::load(v.at + max(cell, 0) * v.stride, dim);
        if (cell < 0) raw = {}; // row 0 may hold NaN
        float f[8];
        R::floats(raw, dim, f);
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float w = weight[g][c];
#pragma unroll
            for (int e = 0; e < 8; e++) acc[g][e] += w * f[e];
        }
    }
}

template <int SIZE, int GROUP> struct alignas(16) decode_shared {
    float q[GROUP][SIZE], warp_sums[THREADS / 32][GROUP][SIZE], weight[GROUP][CELLS];
    float max_scores[GROUP], weight_sums[GROUP], rescales[GROUP];
    float squares[GROUP + 1][SIZE / 32]; // of q's heads and of the new k
    float2 rotation[SIZE / 2];
    int cells[CELLS]; // the cells of a tile, or -1 where none is visible
    bool is_last_block;
};
// A share of the cells for GROUP query heads, the part-th of those that a key/value head has.
template <int SIZE, int GROUP, bool WHOLE>
__device__ static inline void decode_part(const decode_job &d, const decode_heads &h,
                                          decode_shared<SIZE, GROUP> &shared, int kv, int part,
                                          const attention_query &query, int n) {
    constexpr int LANES = SIZE / 8, ROWS = THREADS / LANES, WARPS = THREADS / 32; // LANES threads read a row of v
    auto &q = shared.q;
    auto &weight = shared.weight;
    auto &warp_sums = shared.warp_sums;
    auto &max_scores = shared.max_scores, &weight_sums = shared.weight_sums, &rescales = shared.rescales;
    auto &squares = shared.squares;
    auto &rotation = shared.rotation;
    auto &cells = shared.cells;
    auto &is_last_block = shared.is_last_block;
    const attention_job &j = d.a;
    const int split = blockIdx.y, token = blockIdx.z, all_heads = j.heads / j.kv_heads,
              head0 = kv * all_heads + part * GROUP, group = min((int)GROUP, (kv + 1) * all_heads - head0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int span = max((int)LEAST, ((n + d.splits - 1) / d.splits + 15) / 16 * 16),
        active = max(1, (n + span - 1) / span);
    if (split >= active) return;
    const int begin = split * span, stop = begin + min(n - begin, span), new_row = d.rows ? d.rows[0] : -1;
    const decode_share share = {query.seq, begin, stop, split};
    // A thread per cell. Computes what it needs again for every tile, since registers are scarce.
    auto find_visible_cells = [&](int tile) {
        visible_positions sees = visible_to(j, query);
        paged_cell at = cell_at(j, query.seq, tile + (int)threadIdx.x, stop);
        bool is_visible = at.cell >= 0 && at.position >= sees.low && at.position <= sees.high;
        cells[threadIdx.x] = is_visible ? at.cell : -1;
        return is_visible;
    };
    find_visible_cells(begin);
    const bool writes = d.rows && j.tokens == 1 && stores_row(d, share, 0, 0);
    if (d.dims) heads_rope_table(d, h, token, rotation);
    if (threadIdx.x < GROUP) {
        max_scores[threadIdx.x] = -INFINITY;
        weight_sums[threadIdx.x] = 0;
    }
    if (d.early) grid_wait();
    // With one token its new row of k and v is loaded together with q, so that the loads overlap.
    const int size_k = WHOLE ? SIZE : j.head_k, size_v = WHOLE ? SIZE : j.head_v;
    const bool writes_k = writes && (int)threadIdx.x < size_k, writes_v = writes && (int)threadIdx.x < size_v;
    float new_k = 0, new_v = 0;
    const float *from_k = (const float *)(d.new_k + kv * d.nk1);
    if (writes_k)
        new_k = h.norm_k ? weighted_rope_element(d, from_k, h.norm_k, threadIdx.x, rotation)
                         : rope_element(d, from_k, threadIdx.x, rotation);
    if (writes_v) new_v = ((const float *)(d.new_v + kv * d.nv1))[threadIdx.x];
    constexpr int EACH = (GROUP * SIZE + THREADS - 1) / THREADS;
    float own_q[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = threadIdx.x + i * THREADS, g = at / SIZE;
        const float *from = (const float *)(j.q + (int64_t)(head0 + g) * j.q1 + token * j.q2);
        own_q[i] = 0;
        if (at < group * SIZE && at % SIZE < size_k)
            own_q[i] = h.norm_q ? weighted_rope_element(d, from, h.norm_q, at % SIZE, rotation)
                                : rope_element(d, from, at % SIZE, rotation);
    }
    if (h.norm_q) {
        // A warp has 32 elements of a head.
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = threadIdx.x + i * THREADS, g = at / SIZE;
            const float *from = (const float *)(j.q + (int64_t)(head0 + g) * j.q1 + token * j.q2);
            float x = at < group * SIZE && at % SIZE < size_k ? from[at % SIZE] : 0;
            x = warp_sum(x * x);
            if (lane == 0 && at < GROUP * SIZE) squares[g][at % SIZE / 32] = x;
        }
        if (writes && warp < SIZE / 32) {
            float x = writes_k ? from_k[threadIdx.x] : 0;
            x = warp_sum(x * x);
            if (lane == 0) squares[GROUP][warp] = x;
        }
        __syncthreads();
        auto scale_of = [&](int g, float eps) {
            float sum = 0;
            for (int i = 0; i < SIZE / 32; i++) sum += squares[g][i];
            return rsqrtf(sum / (float)size_k + eps);
        };
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (threadIdx.x + i * THREADS < GROUP * SIZE)
                own_q[i] *= scale_of((threadIdx.x + i * THREADS) / SIZE, h.eps_q);
        if (writes_k) new_k *= scale_of(GROUP, h.eps_k);
    }
    if (writes_k) ((__half *)(d.cache_k + kv * j.k1 + (int64_t)new_row * j.k2))[threadIdx.x] = __float2half_rn(new_k);
    if (writes_v) ((__half *)(d.cache_v + kv * j.v1 + (int64_t)new_row * j.v2))[threadIdx.x] = __float2half_rn(new_v);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int at = threadIdx.x + i * THREADS;
        if (at < GROUP * SIZE) q[at / SIZE][at % SIZE] = own_q[i];
    }
    if (d.rows && j.tokens > 1) store_new_rows(d, h, kv, share, token, rotation);
    __syncthreads();

    int dim = threadIdx.x % LANES * 8, row = threadIdx.x / LANES;
    float acc[GROUP][8] = {};
    for (int tile = begin; tile < stop; tile += CELLS) {
        if (tile > begin && !__syncthreads_or(find_visible_cells(tile))) continue;
        int n_cells = min((int)CELLS, stop - tile);
        decode_rows k = {j.k + kv * j.k1, j.k2, cells, n_cells, size_k},
                    v = {j.v + kv * j.v1, j.v2, cells, n_cells, size_v};
#define MULTIPLY(R) multiply_keys<R, SIZE, GROUP, WHOLE>(k, q, weight)
#define ADD(R) add_values<R, ROWS, GROUP>(v, row, dim, weight, acc)
        if (WHOLE)
            MULTIPLY(cache_f16);
        else
            WITH_CACHE_READER(j.k_type, MULTIPLY)
        __syncthreads();
        // From dot products to scores: a thread per cell.
        const bool is_visible = cells[threadIdx.x] >= 0;
        const int logical = tile + (int)threadIdx.x,
                  position = j.p.max_bias > 0 ? cell_at(j, query.seq, logical, stop).position : 0;
#pragma unroll 1
        for (int g = 0; g < GROUP; g++)
            weight[g][threadIdx.x] = is_visible && g < group
                                         ? finish_score(j, weight[g][threadIdx.x], head0 + g, token, 0, logical,
                                                        query, position, attention_slope(j, head0 + g))
                                         : -INFINITY;
        __syncthreads();
        for (int g = warp; g < GROUP; g += WARPS) {
            float max_score = max_scores[g], weight_sum = 0;
            for (int c = lane; c < n_cells; c += 32) max_score = fmaxf(max_score, weight[g][c]);
            max_score = warp_max(max_score);
            for (int c = lane; c < n_cells; c += 32) {
                float w = weight[g][c] == -INFINITY ? 0 : __expf(weight[g][c] - max_score);
                weight[g][c] = w;
                weight_sum += w;
            }
            weight_sum = warp_sum(weight_sum);
            __syncwarp();
            if (lane == 0) {
                rescales[g] = max_scores[g] == -INFINITY ? 0 : __expf(max_scores[g] - max_score);
                weight_sums[g] = weight_sums[g] * rescales[g] + weight_sum;
                max_scores[g] = max_score;
            }
        }
        __syncthreads();
        if (tile > begin) {
#pragma unroll
            for (int g = 0; g < GROUP; g++)
#pragma unroll
                for (int e = 0; e < 8; e++) acc[g][e] *= rescales[g];
        }
        if (WHOLE)
            ADD(cache_f16);
        else
            WITH_CACHE_READER(j.v_type, ADD)
#undef MULTIPLY
#undef ADD
        __syncthreads();
    }
    // Combines the rows of a warp by shuffles, and the warps in shared memory.
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (int e = 0; e < 8; e++)
#pragma unroll
            for (int offset = LANES; offset < 32; offset <<= 1)
                acc[g][e] += __shfl_xor_sync(0xffffffffu, acc[g][e], offset);
        if (lane < LANES) {
            *(float4 *)&warp_sums[warp][g][dim] = make_float4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
            *(float4 *)&warp_sums[warp][g][dim + 4] = make_float4(acc[g][4], acc[g][5], acc[g][6], acc[g][7]);
        }
    }
    __syncthreads();

    // Stores this block's result in scratch, unless it is the only block. The last block to do so combines them.
    float *results = d.partial + ((int64_t)token * j.heads + head0) * d.splits * (SIZE + 2);
    if (active > 1) {
        for (int i = threadIdx.x; i < group * SIZE; i += THREADS) {
            int g = i / SIZE;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += warp_sums[w][g][i % SIZE];
            results[((int64_t)g * d.splits + split) * (SIZE + 2) + i % SIZE] = sum;
        }
        if (threadIdx.x < group) {
            float *end_of = results + ((int64_t)threadIdx.x * d.splits + split) * (SIZE + 2) + SIZE;
            end_of[0] = max_scores[threadIdx.x];
            end_of[1] = weight_sums[threadIdx.x];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            is_last_block =
                atomicInc(&d.tickets[token * gridDim.x + blockIdx.x], (unsigned)active - 1) == (unsigned)active - 1;
        __syncthreads();
        if (!is_last_block) return;
        __threadfence();
    }
    // The factors of the blocks' results: a warp per head, two blocks per lane.
    for (int g = warp; g < group; g += WARPS) {
        float sink = j.sinks ? j.sinks[head0 + g] : -INFINITY;
        float highest[2] = {-INFINITY, -INFINITY}, sums[2] = {0, 0};
        if (active == 1) {
            if (lane == 0) highest[0] = max_scores[g], sums[0] = weight_sums[g];
        } else {
            const float *result = results + (int64_t)g * d.splits * (SIZE + 2) + SIZE;
            for (int k = 0; k < 2; k++)
                if (lane + 32 * k < active) {
                    highest[k] = __ldcg(result + (lane + 32 * k) * (SIZE + 2));
                    sums[k] = __ldcg(result + (lane + 32 * k) * (SIZE + 2) + 1);
                }
        }
        float max_score = fmaxf(sink, warp_max(fmaxf(highest[0], highest[1]))), sum = 0;
        for (int k = 0; k < 2; k++) {
            float rescale = highest[k] == -INFINITY ? 0 : __expf(highest[k] - max_score);
            weight[g][lane + 32 * k] = rescale;
            sum += rescale * sums[k];
        }
        sum = warp_sum(sum);
        if (j.sinks) sum += __expf(sink - max_score);
        __syncwarp();
        if (lane == 0) rescales[g] = sum > 0 ? 1 / sum : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * SIZE; i += THREADS) {
        int g = i / SIZE, head = head0 + g;
        if (i % SIZE >= size_v) continue; // uniform over a warp where `next` takes groups of 32
        float sum = 0;
        if (active == 1) {
            for (int w = 0; w < WARPS; w++) sum += warp_sums[w][g][i % SIZE];
            sum *= weight[g][0];
        } else {
            const float *result = results + (int64_t)g * d.splits * (SIZE + 2) + i % SIZE;
#pragma unroll 8
            for (int s = 0; s < active; s++) sum += weight[g][s] * __ldcg(result + s * (SIZE + 2));
        }
        float value = sum * rescales[g];
        if (h.gate) {
            const float x = ((const float *)(h.gate + head * h.gate1 + token * h.gate2))[i % SIZE];
            value *= 1 / (1 + expf(-x));
        }
        if (d.store) ((float *)(j.out + head * j.o1 + token * j.o2))[i % SIZE] = value;
        if (d.next.to.q || d.next.y)
            gemv_store_next(d.next, (int64_t)j.heads * size_v, token, ((int64_t)head * size_v + i % SIZE) / 32, value,
                            value);
    }
}

// WHOLE: rows are f16 and have exactly SIZE elements. Otherwise they are of any type and have up to SIZE elements.
// With few cells and tokens a block has FEW of the GROUP query heads: there are enough blocks, and reading cells
// several times takes less time than fetching the instructions for more heads.
template <int SIZE, int GROUP, bool WHOLE>
__global__ static void __launch_bounds__(THREADS, SIZE > 128   ? 0
                                                  : GROUP == 1 ? 3
                                                  : GROUP == 2 ? 2
                                                               : 0) decode_kernel(decode_job d, decode_heads h) {
    constexpr int FEW = few_heads(GROUP);
    __shared__ __align__(16) char shared[sizeof(decode_shared<SIZE, GROUP>)];
    const int all_heads = d.a.heads / d.a.kv_heads, parts = (int)gridDim.x / d.a.kv_heads,
              kv = (int)blockIdx.x / parts, part = (int)blockIdx.x % parts;
    grid_next();
    // With `early`, positions and page tables were set before the program started. Only results of the previous
    // kernel must be waited for.
    if (!d.early) grid_wait();
    const attention_query query = query_of(d.a, (int)blockIdx.z);
    const int n = logical_cells(d.a, query);
    const bool has_few = FEW < GROUP && parts * FEW >= all_heads;
    if (!has_few || n > FEW_CELLS) {
        if (part * GROUP < all_heads)
            decode_part<SIZE, GROUP, WHOLE>(d, h, *(decode_shared<SIZE, GROUP> *)shared, kv, part, query, n);
    } else {
        decode_part<SIZE, FEW, WHOLE>(d, h, *(decode_shared<SIZE, FEW> *)shared, kv, part, query, n);
    }
}

// ---- Choosing a kernel ----

static int decode_group_of(const tn_tensor *t) { return (int)(t->src[TN_ATTN_Q]->ne[1] / t->src[TN_ATTN_K]->ne[1]); }

static bool has_whole_rows(const tn_tensor *t, int64_t size) {
    const tn_tensor *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    return k->type == TN_F16 && v->type == TN_F16 && k->ne[0] == size && v->ne[0] == size;
}
bool decode_is_whole(const tn_tensor *t) {
    return (has_whole_rows(t, 64) || has_whole_rows(t, 128)) && decode_group_of(t) <= MAX_GROUP;
}
// The size that heads are padded to.
static int decode_size_of(const tn_tensor *t) {
    int64_t k = t->src[TN_ATTN_K]->ne[0], v = t->src[TN_ATTN_V]->ne[0], size = k > v ? k : v;
    return size <= 64 ? 64 : size <= 128 ? 128 : 256;
}
// Number of heads per block, a power of two. Heads over 128 elements: at most four, to fit into shared memory.
static int decode_heads_of(const tn_tensor *t) {
    int group = decode_group_of(t), most = decode_size_of(t) > 128 ? 4 : MAX_GROUP;
    return group > most ? most : group > 4 ? 8 : group > 2 ? 4 : group;
}
// Number of blocks that read the same part of the cache, each for `heads` of a key/value head's query heads.
static int64_t decode_blocks_of(const tn_tensor *t, int heads) {
    return t->src[TN_ATTN_K]->ne[1] * ((decode_group_of(t) + heads - 1) / heads);
}
static int64_t decode_most_blocks_of(const tn_tensor *t) {
    const int heads = decode_heads_of(t);
    return decode_blocks_of(t, t->src[TN_ATTN_Q]->ne[2] <= FEW_ROWS ? few_heads(heads) : heads);
}

bool decode_supports(const device_description &device, const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q];
    return !(t->flags & TN_FLAG_REPEATABLE) && cache_is_fast(t) && !t->src[TN_ATTN_MASK] && q->ne[2] <= MAX_TOKENS &&
           q->ne[1] > 0 && q->ne[2] * decode_most_blocks_of(t) <= N_TICKETS && !attention_is_planned(device, t);
}
bool decode_takes_more(const device_description &device, const tn_tensor *t) {
    return decode_supports(device, t) && t->src[TN_ATTN_K]->type == TN_F16 && t->src[TN_ATTN_V]->type == TN_F16;
}

// Enough blocks for two on every multiprocessor, but no more than the last one can combine.
static int decode_splits_of(const device_description &device, const tn_tensor *t) {
    int blocks = (int)(decode_blocks_of(t, decode_heads_of(t)) * t->src[TN_ATTN_Q]->ne[2]),
        wanted = (2 * device.multiprocessors + blocks - 1) / blocks,
        most = (int)((t->src[TN_ATTN_K]->ne[2] + LEAST - 1) / LEAST);
    if (most > MAX_SHARES) most = MAX_SHARES;
    return wanted < 1 || most < 1 ? 1 : wanted < most ? wanted : most;
}
size_t decode_scratch(const device_description &device, const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q];
    return (size_t)q->ne[2] * (size_t)q->ne[1] * (size_t)decode_splits_of(device, t) *
           (size_t)(decode_size_of(t) + 2) * 4;
}

template <int SIZE, bool WHOLE>
static tn_status compile_decode_size(const compilation &c, const decode_job &d, const decode_heads &h, dim3 grid,
                                     int heads) {
    if constexpr (SIZE <= 128)
        if (heads > 4)
            return add_early(c, kernel_called("decode_kernel", NULL, SIZE, 8, WHOLE), decode_kernel<SIZE, 8, WHOLE>,
                             grid, THREADS, 0, d, h);
    return heads <= 1   ? add_early(c, kernel_called("decode_kernel", NULL, SIZE, 1, WHOLE),
                                    decode_kernel<SIZE, 1, WHOLE>, grid, THREADS, 0, d, h)
           : heads <= 2 ? add_early(c, kernel_called("decode_kernel", NULL, SIZE, 2, WHOLE),
                                    decode_kernel<SIZE, 2, WHOLE>, grid, THREADS, 0, d, h)
                        : add_early(c, kernel_called("decode_kernel", NULL, SIZE, 4, WHOLE),
                                    decode_kernel<SIZE, 4, WHOLE>, grid, THREADS, 0, d, h);
}

decode_job decode_job_of(const compilation &c, const tn_tensor *t, const decode_extras &extras) {
    decode_job d = {};
    d.a = attention_job_of(t);
    d.splits = decode_splits_of(*c.device, t);
    d.partial = (float *)c.scratch;
    d.tickets = c.tickets;
    d.store = !extras.has_next;
    d.early = extras.early;
    if (extras.has_next) d.next = extras.next;
    if (extras.rope_q) {
        const tn_tensor *q = extras.norm_q ? extras.norm_q->src[0] : extras.rope_q->src[0],
                        *factors = extras.rope_q->src[2];
        const tn_rope_params &p = extras.rope_q->params.rope;
        d.a.q = (const char *)q->data;
        d.a.q1 = (int64_t)q->nb[1];
        d.a.q2 = (int64_t)q->nb[2];
        d.dims = p.dims;
        d.neox = p.mode != TN_ROPE_NORMAL;
        d.positions = (const int32_t *)extras.rope_q->src[1]->data;
        d.factors = factors ? (const float *)factors->data : NULL;
        d.freq_scale = p.freq_scale;
        d.ext_factor = p.ext_factor;
        d.attn_factor = p.attn_factor;
        rope_blend(p, &d.corr_low, &d.corr_high);
        d.octave = -2.0 / p.dims * log2((double)p.base);
    }
    if (extras.store_k) {
        const tn_tensor *k = extras.store_k->src[1], *v = extras.store_v->src[1];
        d.rows = (const int32_t *)extras.store_k->src[2]->data;
        d.new_k = (const char *)k->data;
        d.nk1 = d.a.head_k * 4;
        d.nk2 = (int64_t)k->nb[1];
        if (extras.rope_k) {
            k = extras.norm_k ? extras.norm_k->src[0] : extras.rope_k->src[0];
            d.new_k = (const char *)k->data;
            d.nk1 = (int64_t)k->nb[1];
            d.nk2 = (int64_t)k->nb[2];
        }
        d.new_v = (const char *)v->data;
        d.nv1 = d.a.head_v * 4;
        d.nv2 = (int64_t)v->nb[1];
        d.cache_k = (char *)d.a.k;
        d.cache_v = (char *)d.a.v;
    }
    return d;
}

static decode_heads decode_heads_of_extras(const decode_extras &e) {
    decode_heads h = {};
    if (e.norm_q) {
        h.norm_q = (const float *)e.norm_q->src[1]->data;
        h.norm_k = (const float *)e.norm_k->src[1]->data;
        h.eps_q = e.norm_q->params.norm.eps;
        h.eps_k = e.norm_k->params.norm.eps;
    }
    if (e.rope_q && e.rope_q->params.rope.mode == TN_ROPE_MULTI)
        for (int i = 0; i < 4; i++) h.sections[i] = e.rope_q->params.rope.sections[i];
    if (e.gate) {
        h.gate = (const char *)e.gate->data;
        h.gate1 = (int64_t)e.gate->nb[1];
        h.gate2 = (int64_t)e.gate->nb[2];
    }
    return h;
}
tn_status compile_decode(const compilation &c, const tn_tensor *t, const decode_extras &extras) {
    decode_job d = decode_job_of(c, t, extras);
    const decode_heads h = decode_heads_of_extras(extras);
    dim3 grid((unsigned)decode_most_blocks_of(t), (unsigned)d.splits, (unsigned)d.a.tokens);
    int size = decode_size_of(t), heads = decode_heads_of(t);
    if (has_whole_rows(t, 256)) return compile_decode_size<256, true>(c, d, h, grid, heads);
    if (decode_is_whole(t))
        return size == 64 ? compile_decode_size<64, true>(c, d, h, grid, heads)
                          : compile_decode_size<128, true>(c, d, h, grid, heads);
    return size == 64    ? compile_decode_size<64, false>(c, d, h, grid, heads)
           : size == 128 ? compile_decode_size<128, false>(c, d, h, grid, heads)
                         : compile_decode_size<256, false>(c, d, h, grid, heads);
}
