// Attention with large heads, on tensor cores: latent attention (MLA), whose keys have 576 elements of which the
// first 512 are the values, and other heads over 256 elements.
//
// Rows are pairs of a token and a query head of one key/value head: with latent attention all heads of a token read
// the same cells. A block computes 64 rows and iterates over tiles of 32 cells. Its eight warps are four groups of 16
// rows times two halves: of a tile's cells while they compute scores, of the dimensions while they sum values. Where
// rows are few, cells are split over blocks, and a second kernel combines their results.
//
// With selected positions, for heads of any size up to these, the rows of a block are of one token, and its tiles
// hold the selected cells only.
#include "backend/cuda/kernels/attention_tiles.cuh"
#include "backend/cuda/kernels/sparse/attention_selected.cuh"

enum {
    THREADS = 256,
    CELLS = 32,
    SIZE_K = 576,
    SIZE_V = 512,
    LEAST = 128,     // the fewest cells worth a block of their own
    MAX_SPLITS = 64, // of the cells
    COMBINE_THREADS = 128,
};

// IN_K: the values are the beginning of the keys' rows.
template <tile_form FORM, bool IN_K> struct latent_memory {
    static constexpr int STAGES = FORM == ROWS_F16 ? 2 : 1;
    // Rows are padded, so that eight of them are in different banks.
    __half k[STAGES][1][CELLS][SIZE_K + 8];
    __half v[IN_K ? 1 : STAGES][1][IN_K ? 1 : CELLS][SIZE_V + 8];
    __half q[QUERIES][SIZE_K + 8];
    __half weights[QUERIES][CELLS + 8];
    float max_scores[2][QUERIES], weight_sums[2][QUERIES]; // of a half's cells
    int position[2][CELLS];                                // of cells; NEVER: not visible to any row
    int low[QUERIES], high[QUERIES];                       // the range of positions visible to a row
};
struct latent_job {
    attention_job a;
    selected_job selected;
    int splits;
    // [row][split]: head_v sums, the maximum of the scores, the sum of the weights. Row: token · heads + head.
    float *partial;
};

__device__ static float *partial_of(const latent_job &d, int64_t row, int split) {
    return d.partial + (row * d.splits + split) * (d.a.head_v + 2);
}

// The index of the n-th set bit, from 0.
__device__ static int nth_bit(unsigned bits, int n) {
    int at = 0;
    for (int width = 16; width; width /= 2) {
        int low = __popc(bits & ((1u << width) - 1));
        if (n < low) continue;
        n -= low;
        bits >>= width;
        at += width;
    }
    return at;
}
// The next tile of selected cells from logical cell `begin` on, as next_tile: -1 if there is none. `begin` moves to
// the cell after the last one. All queries of the block see all of them.
__device__ static int next_selected_tile(const latent_job &d, const int *set, const queries &all, int *begin,
                                         int (&positions)[CELLS], tile_cells *cells, bool *whole) {
    int lane = threadIdx.x % 32, count = 0, cell = -1, position = NEVER;
    while (*begin < all.cells && count < CELLS) {
        paged_cell at = cell_at(d.a, all.seq, *begin + lane, all.cells);
        bool is_visible = at.cell >= 0 && at.position >= all.max_low && at.position <= all.min_high &&
                          is_selected(d.selected, set, at.position);
        unsigned votes = __ballot_sync(0xffffffffu, is_visible);
        int visible = __popc(votes), mine = lane - count;
        bool takes = mine >= 0 && mine < visible;
        int from = takes ? nth_bit(votes, mine) : 0;
        int taken_cell = __shfl_sync(0xffffffffu, at.cell, from),
            taken_position = __shfl_sync(0xffffffffu, at.position, from);
        if (takes) {
            cell = taken_cell;
            position = taken_position;
        }
        *begin += count + visible > CELLS ? nth_bit(votes, CELLS - count - 1) + 1 : CELLS;
        count = min(count + visible, (int)CELLS);
    }
    *whole = count == CELLS;
    *cells = {cell, cell};
    if (count > 0 && threadIdx.x < 32) positions[lane] = position;
    return count > 0 ? 0 : -1;
}

template <tile_form FORM, bool IN_K, bool SELECTED>
__global__ static void __launch_bounds__(THREADS) latent_kernel(latent_job d) {
    typedef latent_memory<FORM, IN_K> memory;
    extern __shared__ __align__(16) char raw_shared[];
    memory &m = *(memory *)raw_shared;
    int *set = (int *)(raw_shared + sizeof(memory));
    const attention_job &j = d.a;
    // Later tokens attend to more cells, so their blocks start first. Row: token · share + head of the key/value
    // head.
    const int share = j.heads / j.kv_heads, split = blockIdx.y, kv = blockIdx.z,
              block = (int)(gridDim.x - 1 - blockIdx.x), per_token = (share + QUERIES - 1) / QUERIES,
              row0 = SELECTED ? block / per_token * share + block % per_token * QUERIES : block * QUERIES,
              n_rows = SELECTED ? (block / per_token + 1) * share : j.tokens * share;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = lane % 4, half = warp / 4,
              group = warp % 4 * 16, own = group + lane / 4; // this lane has rows own and own + 8
    if (threadIdx.x < QUERIES) {
        int row = row0 + (int)threadIdx.x;
        visible_positions sees = visible_to(j, row < n_rows ? query_of(j, row / share) : attention_query{0, -1});
        m.low[threadIdx.x] = min(sees.low, NEVER - 1);
        m.high[threadIdx.x] = min(sees.high, NEVER - 1);
    }
    for (int i = threadIdx.x; i < QUERIES * (SIZE_K / 2); i += THREADS) {
        int r = i / (SIZE_K / 2), at = i % (SIZE_K / 2) * 2, row = row0 + r;
        float2 x = make_float2(0, 0);
        if (row < n_rows && at < j.head_k)
            x = *(const float2 *)(j.q + (kv * share + row % share) * j.q1 + (int64_t)(row / share) * j.q2 + 4 * at);
        *(uint32_t *)&m.q[r][at] = two_halves(x.x * j.p.scale, x.y * j.p.scale);
    }
    if (SELECTED) fill_selected<THREADS>(d.selected, row0 / share, set);
    __syncthreads();
    attention_query mine[2];
    float slope[2];
    int low[2], high[2];
    for (int r = 0; r < 2; r++) {
        int row = row0 + own + 8 * r;
        mine[r] = row < n_rows ? query_of(j, row / share) : attention_query{-1, -1};
        slope[r] = attention_slope(j, kv * share + row % share);
        low[r] = m.low[own + 8 * r];
        high[r] = m.high[own + 8 * r];
    }

    auto fetch = [&](const tile_cells &cells, int stage) {
        for (int i = threadIdx.x; i < CELLS * (SIZE_K / 8); i += THREADS) {
            int c = i / (SIZE_K / 8), at = i % (SIZE_K / 8) * 8, cell = cells.at<CELLS>(c);
            copy16(&m.k[stage][0][c][at], j.k + kv * j.k1 + (int64_t)max(cell, 0) * j.k2 + 2 * at,
                   cell >= 0 && at < j.head_k);
        }
        for (int i = threadIdx.x; !IN_K && i < CELLS * (SIZE_V / 8); i += THREADS) {
            int c = i / (SIZE_V / 8), at = i % (SIZE_V / 8) * 8, cell = cells.at<CELLS>(c);
            copy16(&m.v[IN_K ? 0 : stage][0][IN_K ? 0 : c][at],
                   j.v + kv * j.v1 + (int64_t)max(cell, 0) * j.v2 + 2 * at, cell >= 0 && at < j.head_v);
        }
        copies_commit();
    };
    auto convert = [&](const tile_cells &cells) {
        tile_rows rows = {j.k + kv * j.k1, j.k2, j.k_type, j.head_k, cells};
#define CONVERT(R) convert_tile<R, THREADS>(m.k[0], rows)
        WITH_CACHE_READER(rows.type, CONVERT)
#undef CONVERT
        if constexpr (!IN_K) {
            rows = {j.v + kv * j.v1, j.v2, j.v_type, j.head_v, cells};
#define CONVERT(R) convert_tile<R, THREADS>(m.v[0], rows)
            WITH_CACHE_READER(rows.type, CONVERT)
#undef CONVERT
        }
    };
    // The queries of one sequence, and the next of its logical cells that belong to this split.
    queries all = {};
    int from = 0;
    auto begin_sequence = [&]() {
        int span = (all.cells / d.splits / CELLS + 1) * CELLS;
        from = split * span;
        all.cells = min(all.cells, from + span);
    };
    if (SELECTED) {
        attention_query query = query_of(j, row0 / share);
        visible_positions sees = visible_to(j, query);
        all = {true,     query.seq < 0 ? NEVER : query.seq, logical_cells(j, query), sees.low, sees.low, sees.high,
               sees.high};
    } else {
        all = queries_after(j, row0, share, j.tokens, -1, m.low, m.high);
    }
    begin_sequence();
    auto advance = [&](int stage, tile_cells *cells, bool *is_whole) {
        for (;;) {
            if (all.seq == NEVER) return -1;
            int tile;
            if (SELECTED) {
                tile = next_selected_tile(d, set, all, &from, m.position[stage], cells, is_whole);
            } else {
                tile = next_tile<CELLS>(j, all, from, m.position[stage], cells, is_whole);
                from = tile + CELLS;
            }
            if (tile >= 0 || all.is_alone) return tile;
            all = queries_after(j, row0, share, j.tokens, all.seq, m.low, m.high);
            begin_sequence();
        }
    };

    float out_sum[SIZE_V / 16][4] = {}; // of this half's dimensions
    float max_score[2] = {-INFINITY, -INFINITY}, weight_sum[2] = {0, 0};
    const int steps = (j.head_k + 15) / 16;
    int stage = 0;
    bool whole = false, next_whole = false;
    tile_cells cells = {}, next_cells = {};
    int tile = advance(0, &cells, &whole);
    if (FORM == ROWS_F16 && tile >= 0) fetch(cells, 0);
    while (tile >= 0) {
        int seq = all.seq, next = advance(stage ^ 1, &next_cells, &next_whole);
        if (FORM != ROWS_F16) {
            convert(cells);
        } else {
            if (next >= 0) {
                fetch(next_cells, stage ^ 1);
                copies_wait<1>();
            } else {
                copies_wait<0>();
            }
        }
        __syncthreads();
        auto &k = m.k[stage % memory::STAGES][0];
        // Scores of 16 rows with 16 of the tile's cells.
        float s[2][4] = {};
#pragma unroll 4
        for (int step = 0; step < steps; step++) {
            uint32_t q[4], b[4];
            load_four(q, &m.q[group + lane % 16][16 * step + lane / 16 * 8], false);
            load_four(b, &k[16 * half + (lane / 16) * 8 + lane % 8][16 * step + lane / 8 % 2 * 8], false);
            multiply(s[0], q, b[0], b[1]);
            multiply(s[1], q, b[2], b[3]);
        }
        if (!whole || j.p.soft_cap > 0 || j.p.max_bias > 0) {
            const int seen_low[2] = {mine[0].seq == seq ? low[0] : NEVER, mine[1].seq == seq ? low[1] : NEVER};
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = e / 2, position = m.position[stage][16 * half + 8 * n + 2 * col + e % 2];
                    float x = s[n][e];
                    if (j.p.soft_cap > 0) x = soft_capped(x, j.p.soft_cap);
                    if (slope[r] > 0) x -= slope[r] * (float)abs(mine[r].position - position);
                    s[n][e] = position >= seen_low[r] && position <= high[r] ? x : -INFINITY;
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float most = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            if (col == 0) m.max_scores[half][own + 8 * r] = most;
        }
        __syncthreads();
        float rescale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = own + 8 * r;
            float new_max = fmaxf(max_score[r], fmaxf(m.max_scores[0][row], m.max_scores[1][row]));
            rescale[r] = max_score[r] == -INFINITY ? 0 : __expf(max_score[r] - new_max);
            float base = new_max == -INFINITY ? 0 : new_max - LIFT, sum = 0;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float a = __expf(s[n][2 * r] - base), b = __expf(s[n][2 * r + 1] - base);
                sum += a + b;
                *(uint32_t *)&m.weights[row][16 * half + 8 * n + 2 * col] = two_halves(a, b);
            }
            weight_sum[r] = weight_sum[r] * rescale[r] + sum; // of this lane's cells; lanes are added at the end
            max_score[r] = new_max;
        }
        if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
            for (int n = 0; n < SIZE_V / 16; n++) {
                out_sum[n][0] *= rescale[0];
                out_sum[n][1] *= rescale[0];
                out_sum[n][2] *= rescale[1];
                out_sum[n][3] *= rescale[1];
            }
        }
        __syncthreads();
        // The sums of 16 rows in half of the dimensions.
#pragma unroll
        for (int step = 0; step < CELLS / 16; step++) {
            uint32_t p[4];
            load_four(p, &m.weights[group + lane % 16][16 * step + lane / 16 * 8], false);
#pragma unroll
            for (int n = 0; n < SIZE_V / 32; n++) {
                int dim = SIZE_V / 2 * half + 16 * n, at = dim + lane / 16 * 8;
                if (dim >= j.head_v) continue; // uniform over the warp
                uint32_t b[4];
                if constexpr (IN_K)
                    load_four(b, &k[16 * step + lane % 16][at], true);
                else
                    load_four(b, &m.v[stage % memory::STAGES][0][16 * step + lane % 16][at], true);
                multiply(out_sum[2 * n], p, b[0], b[1]);
                multiply(out_sum[2 * n + 1], p, b[2], b[3]);
            }
        }
        __syncthreads();
        stage ^= 1;
        tile = next;
        cells = next_cells;
        whole = next_whole;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = weight_sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (col == 0) m.weight_sums[half][own + 8 * r] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + own + 8 * r, head = kv * share + row % share, token = row / share;
        float sum = m.weight_sums[0][own + 8 * r] + m.weight_sums[1][own + 8 * r], scale = 1;
        if (row >= n_rows) continue;
        float *out = (float *)(j.out + head * j.o1 + (int64_t)token * j.o2);
        if (d.splits > 1) {
            out = partial_of(d, (int64_t)token * j.heads + head, split);
            if (col == 0 && half == 0) {
                out[j.head_v] = max_score[r];
                out[j.head_v + 1] = sum;
            }
        } else {
            float rescale = 1;
            if (j.sinks) {
                float new_max = fmaxf(max_score[r], j.sinks[head]);
                rescale = max_score[r] == -INFINITY ? 0 : __expf(max_score[r] - new_max);
                sum = sum * rescale + __expf(j.sinks[head] - new_max + LIFT);
            }
            scale = sum > 0 ? rescale / sum : 0;
        }
#pragma unroll
        for (int n = 0; n < SIZE_V / 16; n++) {
            int dim = SIZE_V / 2 * half + 8 * n + 2 * col;
            if (dim < j.head_v)
                *(float2 *)(out + dim) = make_float2(out_sum[n][2 * r] * scale, out_sum[n][2 * r + 1] * scale);
        }
    }
}

// Combines the splits of a row. One block per head and token.
__global__ static void __launch_bounds__(COMBINE_THREADS) latent_combine_kernel(latent_job d) {
    __shared__ float factors[MAX_SPLITS];
    const attention_job &j = d.a;
    const int head = blockIdx.x, token = blockIdx.y;
    const int64_t row = (int64_t)token * j.heads + head;
    float max_score = j.sinks ? j.sinks[head] : -INFINITY, sum = 0;
    for (int s = 0; s < d.splits; s++) max_score = fmaxf(max_score, partial_of(d, row, s)[j.head_v]);
    for (int s = 0; s < d.splits; s++) {
        const float *from = partial_of(d, row, s) + j.head_v;
        float factor = from[0] == -INFINITY ? 0 : __expf(from[0] - max_score);
        if (threadIdx.x == 0) factors[s] = factor;
        sum += factor * from[1];
    }
    if (j.sinks) sum += __expf(j.sinks[head] - max_score + LIFT);
    __syncthreads();
    float *out = (float *)(j.out + head * j.o1 + (int64_t)token * j.o2);
    for (int i = threadIdx.x; i < j.head_v; i += COMBINE_THREADS) {
        float total = 0;
        for (int s = 0; s < d.splits; s++)
            if (factors[s] != 0) total += factors[s] * partial_of(d, row, s)[i];
        out[i] = sum > 0 ? total / sum : 0;
    }
}

// ---- Choosing a kernel ----

struct latent_choice {
    kernel_name name;
    void (*kernel)(latent_job);
    size_t bytes;
};
template <tile_form FORM, bool IN_K> static latent_choice latent_choice_for(const tn_tensor *t) {
    const size_t bytes = sizeof(latent_memory<FORM, IN_K>) + selected_shared(t);
    if (t->src[TN_ATTN_SELECTED])
        return {kernel_called("latent_kernel", form_name(FORM), IN_K, 1), latent_kernel<FORM, IN_K, true>, bytes};
    return {kernel_called("latent_kernel", form_name(FORM), IN_K, 0), latent_kernel<FORM, IN_K, false>, bytes};
}
// Whether the values are the beginning of the keys' rows.
static bool values_are_in_keys(const tn_tensor *k, const tn_tensor *v) {
    const tn_tensor *root_k = k->view_src ? k->view_src : k, *root_v = v->view_src ? v->view_src : v;
    return root_k == root_v && k->view_offset == v->view_offset && k->type == v->type && k->nb[1] == v->nb[1] &&
           k->nb[2] == v->nb[2] && v->ne[0] <= k->ne[0];
}
// Where shared memory is too small for two stages, f16 is converted like other types.
static latent_choice latent_choice_of(const device_description &device, const tn_tensor *t) {
    const tn_tensor *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    const bool in_k = values_are_in_keys(k, v);
    if (k->type == TN_F16 && v->type == TN_F16) {
        latent_choice c = in_k ? latent_choice_for<ROWS_F16, true>(t) : latent_choice_for<ROWS_F16, false>(t);
        if (c.bytes <= device.shared_per_block) return c;
    }
    return in_k ? latent_choice_for<ROWS_TO_F16, true>(t) : latent_choice_for<ROWS_TO_F16, false>(t);
}
static int64_t latent_blocks_of(const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K];
    const int64_t share = q->ne[1] / k->ne[1];
    if (t->src[TN_ATTN_SELECTED]) return q->ne[2] * ((share + QUERIES - 1) / QUERIES);
    return (q->ne[2] * share + QUERIES - 1) / QUERIES;
}
// Caches of f32 would lose precision here.
bool latent_supports(const device_description &device, const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    return cache_is_fast(t, SIZE_K, SIZE_V, true) && !t->src[TN_ATTN_MASK] && k->type != TN_F32 &&
           v->type != TN_F32 && latent_choice_of(device, t).bytes <= device.shared_per_block &&
           k->ne[1] <= MOST_ROWS && latent_blocks_of(t) < INT32_MAX / QUERIES && q->nb[1] % 8 == 0 &&
           q->nb[2] % 8 == 0 && (uintptr_t)q->data % 8 == 0 && t->nb[1] % 8 == 0 && t->nb[2] % 8 == 0 &&
           (uintptr_t)t->data % 8 == 0;
}

// A block for every multiprocessor.
static int latent_splits_of(const device_description &device, const tn_tensor *t) {
    const int64_t blocks = latent_blocks_of(t) * t->src[TN_ATTN_K]->ne[1];
    int64_t wanted = device.multiprocessors / blocks, most = (t->src[TN_ATTN_K]->ne[2] + LEAST - 1) / LEAST;
    if (wanted > most) wanted = most;
    return wanted < 1 ? 1 : wanted < MAX_SPLITS ? (int)wanted : MAX_SPLITS;
}
size_t latent_scratch(const device_description &device, const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q];
    const size_t splits = (size_t)latent_splits_of(device, t);
    return splits > 1 ? (size_t)q->ne[2] * (size_t)q->ne[1] * splits * (size_t)(t->ne[0] + 2) * 4 : 0;
}
tn_status compile_latent(const compilation &c, const tn_tensor *t) {
    latent_job d = {};
    d.a = attention_job_of(t);
    d.selected = selected_job_of(t);
    d.splits = latent_splits_of(*c.device, t);
    d.partial = (float *)c.scratch;
    latent_choice chosen = latent_choice_of(*c.device, t);
    launch_shape shape = {dim3((unsigned)latent_blocks_of(t), (unsigned)d.splits, (unsigned)d.a.kv_heads), THREADS,
                          chosen.bytes};
    shape.raises_limit = true;
    TN_TRY(add_kernel(c, chosen.name, chosen.kernel, shape, d));
    if (d.splits == 1) return TN_OK;
    return add_ordered(c, KERNEL(latent_combine_kernel), dim3((unsigned)d.a.heads, (unsigned)d.a.tokens),
                       COMBINE_THREADS, 0, d);
}
