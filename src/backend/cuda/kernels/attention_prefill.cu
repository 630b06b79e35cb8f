// Attention for many tokens, on tensor cores. A block computes 64 queries of one head and iterates over the logical
// cells of their sequences, one sequence after the other, in tiles of 64 cells, or 32 where heads are large. Scores
// stay in registers. Heads are padded with zeros to SIZE elements; keys and values may have different sizes.
#include "backend/cuda/kernels/many/attention_plan.cuh"

enum { THREADS = 128 };

// HEADS: query heads that a block computes. They share the tiles of their key/value head.
template <int SIZE, tile_form FORM, int HEADS> struct prefill_memory {
    static constexpr int PARTS = FORM == ROWS_SPLIT_F16 ? 2 : 1, STAGES = FORM == ROWS_F16 ? 2 : 1,
                         CELLS = SIZE * PARTS > 128 ? 32 : 64;
    static constexpr bool Q_IN_SHARED = SIZE * PARTS > 128 || HEADS > 1; // otherwise q is in registers
    typedef __half tile[CELLS][SIZE + 8]; // padded, so that eight rows are in different banks
    tile k[STAGES][PARTS], v[STAGES][PARTS];
    uint4 q[HEADS][PARTS][Q_IN_SHARED ? SIZE / 16 : 1][Q_IN_SHARED ? THREADS : 1]; // by thread
    int position[2][CELLS];          // of cells; NEVER: not visible to any query
    int low[QUERIES], high[QUERIES]; // the range of positions visible to a query
};

// A block's queries: 64 consecutive tokens, or a tile of the plan if there is one, which has tokens of one sequence.
template <int SIZE, tile_form FORM, int HEADS>
__global__ static void __launch_bounds__(THREADS)
    prefill_kernel(attention_job j, const attention_plan_head *plan, const attention_tile *tiles) {
    typedef prefill_memory<SIZE, FORM, HEADS> memory;
    constexpr int CELLS = memory::CELLS, PARTS = memory::PARTS;
    extern __shared__ __align__(16) char raw_shared[];
    memory &m = *(memory *)raw_shared;
    grid_follow();
    // Later tokens attend to more cells, so their blocks start first.
    int head = (int)blockIdx.x * HEADS, token0 = (int)(gridDim.y - 1 - blockIdx.y) * QUERIES, end = j.tokens;
    if (plan) {
        if ((int)blockIdx.y >= plan->n_tiles) return;
        attention_tile tile = tiles[plan->n_tiles - 1 - (int)blockIdx.y];
        token0 = tile.token;
        end = tile.token + tile.tokens;
    }
    int kv = head / (j.heads / j.kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4,
        col = lane % 4;
    float slope[HEADS];
    for (int h = 0; h < HEADS; h++) slope[h] = attention_slope(j, head + h);
    if (threadIdx.x < QUERIES) {
        int t = token0 + threadIdx.x;
        visible_positions sees = visible_to(j, t < end ? query_of(j, t) : attention_query{0, -1});
        m.low[threadIdx.x] = min(sees.low, NEVER - 1);
        m.high[threadIdx.x] = min(sees.high, NEVER - 1);
    }
    __syncthreads();
    queries all = queries_after(j, token0, 1, end, -1, m.low, m.high);
    int own = 16 * warp + row; // this lane has queries own and own + 8
    attention_query mine[2];
    for (int r = 0; r < 2; r++) {
        int t = token0 + own + 8 * r;
        mine[r] = t < end ? query_of(j, t) : attention_query{-1, -1};
    }
    int low[2] = {m.low[own], m.low[own + 8]}, high[2] = {m.high[own], m.high[own + 8]};

    uint32_t kept_q[PARTS][memory::Q_IN_SHARED ? 1 : SIZE / 16][4];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int step = 0; step < SIZE / 16; step++)
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                uint32_t q[4];
#pragma unroll
                for (int r = 0; r < 4; r++) { // queries own and own + 8, dimensions 0 to 7, then 8 to 15
                    int at = 16 * step + r / 2 * 8 + 2 * col;
                    const float *from = (const float *)(j.q + (head + h) * j.q1 +
                                                        (int64_t)min(token0 + own + r % 2 * 8, end - 1) * j.q2);
                    float2 x = at < j.head_k ? make_float2(from[at], from[at + 1]) : make_float2(0, 0);
                    q[r] = pack_part(x.x * j.p.scale, x.y * j.p.scale, part);
                }
                if constexpr (memory::Q_IN_SHARED)
                    m.q[h][part][step][threadIdx.x] = make_uint4(q[0], q[1], q[2], q[3]);
                else
                    memcpy(kept_q[part][step], q, sizeof q);
            }
    auto q_of = [&](int h, int part, int step, uint32_t(&q)[4]) {
        if constexpr (memory::Q_IN_SHARED) {
            uint4 x = m.q[h][part][step][threadIdx.x];
            q[0] = x.x, q[1] = x.y, q[2] = x.z, q[3] = x.w;
        } else {
            memcpy(q, kept_q[part][step], sizeof q);
        }
    };
    float out_sum[HEADS][SIZE / 8][4] = {}, max_score[HEADS][2], weight_sum[HEADS][2] = {};
    for (int h = 0; h < HEADS; h++) max_score[h][0] = max_score[h][1] = -INFINITY;

    auto fetch = [&](const tile_cells &cells, int stage) {
        for (int i = threadIdx.x; i < CELLS * (SIZE / 8); i += THREADS) {
            int c = i / (SIZE / 8), at = i % (SIZE / 8) * 8, cell = cells.at<CELLS>(c);
            const int64_t row = max(cell, 0);
            copy16(&m.k[stage][0][c][at], j.k + kv * j.k1 + row * j.k2 + 2 * at, cell >= 0 && at < j.head_k);
            copy16(&m.v[stage][0][c][at], j.v + kv * j.v1 + row * j.v2 + 2 * at, cell >= 0 && at < j.head_v);
        }
        copies_commit();
    };
    auto convert = [&](const tile_cells &cells) {
#pragma unroll 1
        for (int is_v = 0; is_v < 2; is_v++) {
            tile_rows rows = is_v ? tile_rows{j.v + kv * j.v1, j.v2, j.v_type, j.head_v, cells}
                                  : tile_rows{j.k + kv * j.k1, j.k2, j.k_type, j.head_k, cells};
            auto &to = is_v ? m.v[0] : m.k[0];
#define CONVERT(R) convert_tile<R, THREADS>(to, rows)
            WITH_CACHE_READER(rows.type, CONVERT)
#undef CONVERT
        }
    };
    // The next tile after logical cell `begin`, of this sequence or of the next one that has a visible cell.
    auto advance = [&](int begin, int stage, tile_cells *cells, bool *is_whole) {
        for (;;) {
            if (all.seq == NEVER) return -1;
            int tile = next_tile<CELLS>(j, all, begin, m.position[stage], cells, is_whole);
            if (tile >= 0 || all.is_alone) return tile;
            all = queries_after(j, token0, 1, end, all.seq, m.low, m.high);
            begin = 0;
        }
    };
    int stage = 0;
    bool whole = false, next_whole = false;
    tile_cells cells = {}, next_cells = {};
    int tile = advance(0, 0, &cells, &whole);
    if (FORM == ROWS_F16 && tile >= 0) fetch(cells, 0);
    while (tile >= 0) {
        int seq = all.seq, next = advance(tile + CELLS, stage ^ 1, &next_cells, &next_whole);
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
        auto &k = m.k[stage % memory::STAGES], &v = m.v[stage % memory::STAGES];
        // Scores of the warp's 16 queries with all cells of the tile.
        float s[HEADS][CELLS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < SIZE / 16; step++) {
            uint32_t q[HEADS][PARTS][4];
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int part = 0; part < PARTS; part++) q_of(h, part, step, q[h][part]);
#pragma unroll
            for (int n = 0; n < CELLS / 16; n++)
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    uint32_t b[4];
                    load_four(b, &k[part][16 * n + (lane / 16) * 8 + lane % 8][16 * step + lane / 8 % 2 * 8], false);
#pragma unroll
                    for (int h = 0; h < HEADS; h++)
#pragma unroll
                        for (int with = 0; with < PARTS - part; with++) { // error times error is negligible
                            multiply(s[h][2 * n], q[h][with], b[0], b[1]);
                            multiply(s[h][2 * n + 1], q[h][with], b[2], b[3]);
                        }
                }
        }
        if (!whole || j.p.soft_cap > 0 || j.p.max_bias > 0) {
            const int seen_low[2] = {mine[0].seq == seq ? low[0] : NEVER, mine[1].seq == seq ? low[1] : NEVER};
#pragma unroll
            for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = e / 2, position = m.position[stage][8 * n + 2 * col + e % 2];
                    bool visible = position >= seen_low[r] && position <= high[r];
#pragma unroll
                    for (int h = 0; h < HEADS; h++) {
                        float x = s[h][n][e];
                        if (j.p.soft_cap > 0) x = soft_capped(x, j.p.soft_cap);
                        if (slope[h] > 0) x -= slope[h] * (float)abs(mine[r].position - position);
                        s[h][n][e] = visible ? x : -INFINITY;
                    }
                }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float rescale[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float new_max = max_score[h][r];
#pragma unroll
                for (int n = 0; n < CELLS / 8; n++)
                    new_max = fmaxf(new_max, fmaxf(s[h][n][2 * r], s[h][n][2 * r + 1]));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 1));
                new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffu, new_max, 2));
                rescale[r] = max_score[h][r] == -INFINITY ? 0 : __expf(max_score[h][r] - new_max);
                float base = new_max == -INFINITY ? 0 : new_max - LIFT, sum = 0;
#pragma unroll
                for (int n = 0; n < CELLS / 8; n++)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        s[h][n][e] = __expf(s[h][n][e] - base);
                        sum += s[h][n][e];
                    }
                // Of this lane's cells; lanes are added at the end.
                weight_sum[h][r] = weight_sum[h][r] * rescale[r] + sum;
                max_score[h][r] = new_max;
            }
            if (!__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1)) continue;
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++) {
                out_sum[h][n][0] *= rescale[0];
                out_sum[h][n][1] *= rescale[0];
                out_sum[h][n][2] *= rescale[1];
                out_sum[h][n][3] *= rescale[1];
            }
        }
#pragma unroll
        for (int step = 0; step < CELLS / 16; step++) {
            uint32_t p[HEADS][PARTS][4];
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int part = 0; part < PARTS; part++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        p[h][part][e] =
                            pack_part(s[h][2 * step + e / 2][e % 2 * 2], s[h][2 * step + e / 2][e % 2 * 2 + 1], part);
#pragma unroll
            for (int n = 0; n < SIZE / 16; n++)
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    uint32_t b[4];
                    load_four(b, &v[part][16 * step + lane % 16][16 * n + lane / 16 * 8], true);
#pragma unroll
                    for (int h = 0; h < HEADS; h++)
#pragma unroll
                        for (int with = 0; with < PARTS - part; with++) {
                            multiply(out_sum[h][2 * n], p[h][with], b[0], b[1]);
                            multiply(out_sum[h][2 * n + 1], p[h][with], b[2], b[3]);
                        }
                }
        }
        __syncthreads();
        stage ^= 1;
        tile = next;
        cells = next_cells;
        whole = next_whole;
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = weight_sum[h][r];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            float rescale = 1;
            if (j.sinks) {
                float sink = j.sinks[head + h], new_max = fmaxf(max_score[h][r], sink);
                rescale = max_score[h][r] == -INFINITY ? 0 : __expf(max_score[h][r] - new_max);
                sum = sum * rescale + __expf(sink - new_max + LIFT);
            }
            float scale = sum > 0 ? rescale / sum : 0;
            int t = token0 + own + 8 * r;
            if (t >= end) continue;
            float *out = (float *)(j.out + (head + h) * j.o1 + (int64_t)t * j.o2);
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++)
                if (8 * n < j.head_v)
                    *(float2 *)(out + 8 * n + 2 * col) =
                        make_float2(out_sum[h][n][2 * r] * scale, out_sum[h][n][2 * r + 1] * scale);
        }
}

// ---- Choosing a kernel ----

struct prefill_choice {
    kernel_name name;
    void (*kernel)(attention_job, const attention_plan_head *, const attention_tile *);
    size_t bytes;
    int heads; // of a block
};
template <int SIZE, tile_form FORM, int HEADS = 1> static prefill_choice prefill_choice_of_size() {
    const kernel_name name = HEADS == 1 ? kernel_called("prefill_kernel", form_name(FORM), SIZE)
                                        : kernel_called("prefill_kernel", form_name(FORM), SIZE, HEADS);
    return {name, prefill_kernel<SIZE, FORM, HEADS>, sizeof(prefill_memory<SIZE, FORM, HEADS>), HEADS};
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
        // Two heads at a time, where two blocks fit on a multiprocessor and there are enough of them.
        const int64_t blocks = t->src[TN_ATTN_Q]->ne[1] / 2 * blocks_for(t->src[TN_ATTN_Q]->ne[2], QUERIES);
        if (t->src[TN_ATTN_Q]->ne[1] / k->ne[1] % 2 == 0 && size <= 128 && blocks >= 3 * device.multiprocessors) {
            prefill_choice c = size <= 64   ? prefill_choice_of_size<64, ROWS_F16, 2>()
                               : size <= 96 ? prefill_choice_of_size<96, ROWS_F16, 2>()
                                            : prefill_choice_of_size<128, ROWS_F16, 2>();
            if (2 * c.bytes <= device.shared_per_block) return c;
        }
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

static tn_status add_prefill(const compilation &c, const tn_tensor *t, unsigned blocks,
                             const attention_plan_head *plan, const attention_tile *tiles) {
    attention_job j = attention_job_of(t);
    prefill_choice chosen = prefill_choice_of(*c.device, t);
    launch_shape shape = {dim3((unsigned)(j.heads / chosen.heads), blocks), THREADS, chosen.bytes};
    shape.raises_limit = true;
    shape.early = c.device->programmatic_launch;
    return add_kernel(c, chosen.name, chosen.kernel, shape, j, plan, tiles);
}
tn_status compile_prefill(const compilation &c, const tn_tensor *t) {
    return add_prefill(c, t, blocks_for(t->src[TN_ATTN_Q]->ne[2], QUERIES), NULL, NULL);
}
tn_status compile_prefill_tiles(const compilation &c, const tn_tensor *t, const attention_plan &plan) {
    return add_prefill(c, t, (unsigned)max_tiles_of(t->src[TN_ATTN_Q]->ne[2]), plan.head, plan.tiles);
}
