// Attention of many sequences, on tensor cores: a few tokens of each of them, as the plan of the batch says
// (attention_plan.cuh). With repeatable ops, of all tokens.
//
// A warp computes a unit of up to 16 rows, which are tokens and query heads of one key/value head, with one split of
// the cells or with all of them. It loads tiles of 32 cells to its own part of shared memory while it computes
// others, and waits for no other warp. Warps take items from a common list, so that all multiprocessors finish
// together. Results of splits are combined by a second kernel, in the order of the splits and with the same
// operations as in a warp that computes all of them: a row's bits do not depend on that choice.
#include "backend/cuda/kernels/exact/narrow.cuh"
#include "backend/cuda/kernels/many/attention_fold.cuh"
#include "backend/cuda/kernels/many/attention_plan.cuh"

enum { COMBINE_THREADS = 128 };

struct many_job {
    attention_job a;
    attention_plan plan;
    // Results of splits: of a unit [key/value head][part][split][row].
    float *sums;   // head_v each
    float2 *rates; // maximum of the scores, sum of the weights
    unsigned *tickets;
    int row_bytes;                        // of a cell's row in shared memory
    int warp_bytes;                       // of shared memory
    int k_bytes, v_bytes, k_copy, v_copy; // of a row of the cache, and how many are copied at once
    narrow_rows next;                     // the result once more; a row has all heads of a token
    bool plan_is_complete;                // before this kernel starts, so that it may be read before grid_wait()
};

template <int SIZE, tile_form FORM> struct many_shape {
    static constexpr int PARTS = FORM == ROWS_SPLIT_F16 ? 2 : 1;
    // As many as there are registers for.
    static constexpr int MAX_WARPS = SIZE > (FORM == ROWS_F16 ? 128 : 64) ? 8 : 12;
    static constexpr int STRIDE = SIZE + 8;                // halves; eight rows are in different banks
    static constexpr bool Q_IN_SHARED = SIZE * PARTS > 64; // otherwise q is in registers
    static constexpr int Q_BYTES = Q_IN_SHARED ? PARTS * SIZE / 16 * 32 * 16 : 0,
                         CONVERTED_BYTES = FORM == ROWS_F16 ? 0 : PARTS * WALK_CELLS * STRIDE * 2;
    // A tile's rows of keys and of values.
    static constexpr int bytes(int row_bytes) { return 2 * WALK_CELLS * row_bytes + Q_BYTES + CONVERTED_BYTES; }
};

// Copies `bytes` bytes of each visible cell's row, `unit` at a time. Four lanes copy a row.
template <int UNIT>
__device__ static void copy_rows(char *to, int to_stride, const char *from, int64_t stride, int bytes, int cell) {
    const int lane = threadIdx.x % 32;
    for (int c = lane / 4; c < WALK_CELLS; c += 8) {
        const int row = __shfl_sync(0xffffffffu, cell, c);
        if (row < 0) continue;
        const char *source = from + row * stride;
        for (int at = lane % 4 * UNIT; at < bytes; at += 4 * UNIT)
            copy_bytes<UNIT>(to + c * to_stride + at, source + at);
    }
}
// Converts a granule's rows to f16; cells that are not visible become zeros. A lane converts BATCH times eight
// elements at once, so that their instructions overlap.
template <typename R, int SIZE, int PARTS>
__device__ static inline void convert_rows(__half *to, const char *rows, int row_bytes, int size, int cell) {
    constexpr int CHUNKS = SIZE / 8, STRIDE = SIZE + 8, BATCH = 4;
    const int lane = threadIdx.x % 32, at = lane % CHUNKS * 8;
#pragma unroll 1
    for (int first = lane / CHUNKS; first < WALK_CELLS; first += BATCH * (32 / CHUNKS)) {
        typename R::raw raw[BATCH];
        float v[BATCH][8], most = 0;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int c = first + b * (32 / CHUNKS);
            const bool is_there = __shfl_sync(0xffffffffu, cell, c) >= 0 && at < size;
            raw[b] = {};
            if (is_there) raw[b] = R::load(rows + c * row_bytes, at);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            R::floats(raw[b], at, v[b]);
#pragma unroll
            for (int e = 0; e < 8; e++) most = fmaxf(most, fabsf(v[b][e]));
        }
        if (most > 65504) {
#pragma unroll
            for (int b = 0; b < BATCH; b++)
#pragma unroll
                for (int e = 0; e < 8; e++) v[b][e] = within_half(v[b][e]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                *(uint4 *)(to + (part * WALK_CELLS + first + b * (32 / CHUNKS)) * STRIDE + at) =
                    make_uint4(pack_part(v[b][0], v[b][1], part), pack_part(v[b][2], v[b][3], part),
                               pack_part(v[b][4], v[b][5], part), pack_part(v[b][6], v[b][7], part));
    }
}
template <int SIZE, int PARTS>
__device__ static inline void convert_granule(__half *to, const char *rows, int row_bytes, int type, int size,
                                              int cell) {
#define CONVERT(R) convert_rows<R, SIZE, PARTS>(to, rows, row_bytes, size, cell)
    if constexpr (PARTS == 2) {
        if (type == TN_F32) CONVERT(cache_f32);
        if (type == TN_F32) return;
    }
    WITH_CACHE_READER(type, CONVERT)
#undef CONVERT
}

// What a warp knows of the rows that it computes.
struct many_rows {
    int kv, part, heads; // heads: of a token in this part
    int rows;            // at most UNIT_ROWS
    int token[2];        // of this lane's rows, lane / 4 and that + 8; -1: no row
    int head[2];
    int low[2], high[2];   // positions that they see
    int max_low, min_high; // positions between these are visible to all rows
    int position[2];
    float slope[2];
};
__device__ static many_rows many_rows_of(const many_job &d, const attention_item &item, int kv, int part) {
    const attention_job &j = d.a;
    const int group = j.heads / j.kv_heads;
    many_rows m;
    m.kv = kv;
    m.part = part;
    m.heads = unit_heads(d.plan, group, part);
    m.rows = item.tokens * m.heads;
    m.max_low = 0;
    m.min_high = NEVER;
    for (int r = 0; r < 2; r++) {
        const int row = threadIdx.x % 32 / 4 + 8 * r;
        const bool is_row = row < m.rows;
        m.token[r] = is_row ? item.token + row / m.heads : -1;
        m.head[r] = kv * group + part * UNIT_ROWS + (is_row ? row % m.heads : 0);
        const attention_query query = is_row ? query_of(j, m.token[r]) : attention_query{-1, -1};
        const visible_positions sees = visible_to(j, query);
        m.low[r] = min(sees.low, NEVER - 1);
        m.high[r] = min(sees.high, NEVER - 1);
        if (is_row) {
            m.max_low = max(m.max_low, m.low[r]);
            m.min_high = min(m.min_high, m.high[r]);
        }
        m.position[r] = query.position;
        m.slope[r] = attention_slope(j, m.head[r]);
    }
    m.max_low = warp_max_int(m.max_low);
    m.min_high = warp_min_int(m.min_high);
    return m;
}
// Bit c: cell c of the tile is visible to the lane's row.
__device__ static void visible_bits(const many_rows &m, const attention_item &item, const walk_tile &tile,
                                    unsigned (&bits)[2]) {
    bits[0] = bits[1] = 0;
    for (int i = 0; i < item.tokens; i++) {
        const int row = i * m.heads, from = row % 8 * 4,
                  low = __shfl_sync(0xffffffffu, row < 8 ? m.low[0] : m.low[1], from),
                  high = __shfl_sync(0xffffffffu, row < 8 ? m.high[0] : m.high[1], from);
        const unsigned seen = __ballot_sync(0xffffffffu, tile.position >= low && tile.position <= high);
        for (int r = 0; r < 2; r++)
            if (m.token[r] == item.token + i) bits[r] = seen;
    }
}

template <int SIZE, tile_form FORM>
__global__ static void __launch_bounds__(SIZE > (FORM == ROWS_F16 ? 128 : 64) ? 256 : 384, 1)
    many_kernel(many_job d) {
    typedef many_shape<SIZE, FORM> shape;
    constexpr int PARTS = shape::PARTS, STRIDE = shape::STRIDE;
    extern __shared__ __align__(16) char raw_shared[];
    const attention_job &j = d.a;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col = lane % 4;
    char *tiles = raw_shared + warp * d.warp_bytes;
    uint4 *shared_q = (uint4 *)(tiles + 2 * WALK_CELLS * d.row_bytes);
    __half *converted = (__half *)((char *)shared_q + shape::Q_BYTES);
    // The first attention after the plan's kernel waits before it lets later kernels start. So all of these start
    // after the plan is complete.
    if (!d.plan_is_complete) grid_wait();
    grid_next();
    const int of_item = j.kv_heads * d.plan.parts, n_works = d.plan.head->n_items * of_item,
              n_warps = (int)(gridDim.x * blockDim.x / 32);
    const bool takes_tickets = n_works > n_warps;
    int next_work = n_works;
    for (int work = warp * (int)gridDim.x + (int)blockIdx.x; work < n_works;
         work = __shfl_sync(0xffffffffu, next_work, 0)) {
        const attention_item item = d.plan.items[work / of_item];
        run_walk walk = begin_walk(j, d.plan.by_position, item.seq, item.n_runs, item.run, item.at);
        int index = item.begin / WALK_CELLS * WALK_CELLS;
        const int kv = work % of_item / d.plan.parts;
        const many_rows m = many_rows_of(d, item, kv, work % of_item % d.plan.parts);
        const bool both = m.rows > 8; // there are rows in the second half

        auto load = [&](const walk_tile &tile, int is_v) {
            if (tile.base >= 0) {
                const char *from = is_v ? j.v + kv * j.v1 : j.k + kv * j.k1;
                const int64_t stride = is_v ? j.v2 : j.k2;
                char *to = tiles + is_v * WALK_CELLS * d.row_bytes;
                if constexpr (FORM == ROWS_F16) {
                    constexpr int CHUNKS = SIZE / 8, ROWS = 32 / CHUNKS; // ROWS: copied at once
                    const int at = lane % CHUNKS * 8, size = is_v ? j.head_v : j.head_k;
                    const unsigned there = __ballot_sync(0xffffffffu, tile.cell >= 0);
                    const int some = __ffs((int)there) - 1, first = __shfl_sync(0xffffffffu, tile.cell, some) - some;
                    __half *row = (__half *)to + lane / CHUNKS * STRIDE + at;
                    from += 2 * at;
                    if (__all_sync(0xffffffffu, tile.cell < 0 || tile.cell == first + lane)) {
                        unsigned mine = at < size ? there >> lane / CHUNKS : 0;
                        from += (first + lane / CHUNKS) * stride; // of cells that are not there nothing is read
#pragma unroll 4
                        for (int i = 0; i < CHUNKS; i++, mine >>= ROWS) {
                            copy16(row + i * ROWS * STRIDE, from, mine & 1);
                            from += ROWS * stride;
                        }
                    } else {
#pragma unroll 4
                        for (int i = 0; i < CHUNKS; i++) {
                            const int cell = __shfl_sync(0xffffffffu, tile.cell, ROWS * i + lane / CHUNKS);
                            copy16(row + i * ROWS * STRIDE, from + max(cell, 0) * stride, cell >= 0 && at < size);
                        }
                    }
                } else {
                    const int bytes = is_v ? d.v_bytes : d.k_bytes, unit = is_v ? d.v_copy : d.k_copy;
                    if (unit == 16)
                        copy_rows<16>(to, d.row_bytes, from, stride, bytes, tile.cell);
                    else if (unit == 8)
                        copy_rows<8>(to, d.row_bytes, from, stride, bytes, tile.cell);
                    else
                        copy_rows<4>(to, d.row_bytes, from, stride, bytes, tile.cell);
                }
            }
            copies_commit();
        };
        // Rows of a tile as f16, when all copies but the last group's are there.
        auto rows_of = [&](const walk_tile &tile, int is_v) {
            const char *rows = tiles + is_v * WALK_CELLS * d.row_bytes;
            copies_wait<1>();
            __syncwarp();
            if constexpr (FORM == ROWS_F16) {
                return (const __half *)rows;
            } else {
                convert_granule<SIZE, PARTS>(converted, rows, d.row_bytes, is_v ? j.v_type : j.k_type,
                                             is_v ? j.head_v : j.head_k, tile.cell);
                __syncwarp();
                return (const __half *)converted;
            }
        };

        uint32_t kept_q[PARTS][shape::Q_IN_SHARED ? 1 : SIZE / 16][4];
        auto load_q = [&]() {
            const char *q_row[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                q_row[r] = j.q + m.head[r] * j.q1 + (int64_t)max(m.token[r], 0) * j.q2 + 8 * col;
#pragma unroll(shape::Q_IN_SHARED ? 1 : SIZE / 64)
            for (int first = 0; first < SIZE / 16; first += 4) {
                // Rows of the lane, dimensions 0 to 7, then 8 to 15. All loads are under way at once.
                float2 x[4][4] = {};
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if (r == 1 && !both) continue;
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const int at = 16 * (first + i / 2) + i % 2 * 8;
                        if (m.token[r] >= 0 && at + 2 * col < j.head_k)
                            x[i / 2][i % 2 * 2 + r] = *(const float2 *)(q_row[r] + 4 * at);
                    }
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        uint32_t q[4];
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            q[e] = pack_part(x[i][e].x * j.p.scale, x[i][e].y * j.p.scale, part);
                        if constexpr (shape::Q_IN_SHARED)
                            shared_q[(part * (SIZE / 16) + first + i) * 32 + lane] =
                                make_uint4(q[0], q[1], q[2], q[3]);
                        else
                            memcpy(kept_q[part][first + i], q, sizeof q);
                    }
            }
        };

        float out_sum[SIZE / 8][4] = {};
        row_rate rate[2] = {{-INFINITY, 0}, {-INFINITY, 0}}, total_rate[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
        bool has_total = false;
        // Ends a split, whose results are stored for the second kernel or added to those of the splits before it:
        // these are stored where the result will be. `last`: makes them the result. The sums go through the memory of
        // values, so that a row's are stored together.
        auto end_split = [&](bool last) {
            float *staged = (float *)(FORM == ROWS_F16 ? tiles + WALK_CELLS * d.row_bytes : (char *)converted);
            fold_factors f[2];
            float factor[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                // Weights of a lane's cells are added up over the lanes of a row when the sum is needed.
                rate[r].sum += __shfl_xor_sync(0xffffffffu, rate[r].sum, 1);
                rate[r].sum += __shfl_xor_sync(0xffffffffu, rate[r].sum, 2);
                f[r] = {0, 0};
                factor[r] = 1;
                if (item.split < 0 && (r == 0 || both)) {
                    f[r] = fold_rates(total_rate[r], rate[r]);
                    if (last) factor[r] = final_factor(j, total_rate[r], m.head[r]);
                }
#pragma unroll
                for (int n = 0; n < SIZE / 8; n++) {
                    if (r == 0 || both)
                        *(float2 *)(staged + (lane / 4 + 8 * r) * STRIDE + 8 * n + 2 * col) =
                            make_float2(out_sum[n][2 * r], out_sum[n][2 * r + 1]);
                    out_sum[n][2 * r] = out_sum[n][2 * r + 1] = 0;
                }
            }
            __syncwarp();
            const float *row_sums = staged + 4 * lane;
            const int group = j.heads / j.kv_heads, first_head = kv * group + m.part * UNIT_ROWS;
            if (item.split >= 0) {
                const attention_unit u = d.plan.units[item.unit];
                const int64_t entry =
                    u.slot + ((int64_t)(kv * d.plan.parts + m.part) * splits_of(d.plan, u) + item.split) *
                                 min((int)UNIT_ROWS, u.tokens * group);
                float *to = d.sums + entry * j.head_v + 4 * lane;
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (col == 0 && lane / 4 + 8 * r < m.rows)
                        d.rates[entry + lane / 4 + 8 * r] = make_float2(rate[r].max, rate[r].sum);
#pragma unroll 1
                for (int row = 0; row < m.rows; row++, row_sums += STRIDE, to += j.head_v)
#pragma unroll 1
                    for (int at = 0; at < j.head_v - 4 * lane; at += 128) {
                        const float4 x = *(const float4 *)(row_sums + at);
                        *(float2 *)(to + at) = make_float2(x.x, x.y);
                        *(float2 *)(to + at + 2) = make_float2(x.z, x.w);
                    }
            } else {
                int token = item.token, head = first_head;
#pragma unroll 1
                for (int row = 0; row < m.rows; row++, row_sums += STRIDE) {
                    auto of_row = [&](float a, float b) {
                        return __shfl_sync(0xffffffffu, row < 8 ? a : b, row % 8 * 4);
                    };
                    const fold_factors by = {of_row(f[0].before, f[1].before), of_row(f[0].next, f[1].next)};
                    const float times = of_row(factor[0], factor[1]);
                    float *to = (float *)(j.out + head * j.o1 + (int64_t)token * j.o2) + 4 * lane;
#pragma unroll 1
                    for (int at = 0; at < j.head_v - 4 * lane; at += 128) {
                        float4 x = *(const float4 *)(row_sums + at);
                        float2 low = make_float2(0, 0), high = low;
                        if (has_total) low = *(const float2 *)(to + at), high = *(const float2 *)(to + at + 2);
                        x = make_float4(fold_sum(low.x, x.x, by), fold_sum(low.y, x.y, by), fold_sum(high.x, x.z, by),
                                        fold_sum(high.y, x.w, by));
                        if (last) {
                            x = make_float4(final_value(x.x, times), final_value(x.y, times), final_value(x.z, times),
                                            final_value(x.w, times));
                            if (d.next.to) store_narrow(d.next, token, head * j.head_v + 4 * lane + at, x);
                        }
                        *(float2 *)(to + at) = make_float2(x.x, x.y);
                        *(float2 *)(to + at + 2) = make_float2(x.z, x.w);
                    }
                    if (++head == first_head + m.heads) head = first_head, token++;
                }
            }
            rate[0] = rate[1] = {-INFINITY, 0};
            has_total = true;
            __syncwarp();
        };

        // In the round in which a tile is computed the next one is found and its keys are loaded. The first round has
        // no tile.
        walk_tile tile = {-1, -1, NEVER};
        for (;;) {
            const walk_tile next = next_walk_tile(j, d.plan, walk, index, item.stop, item.low, item.high);
            float s[WALK_CELLS / 8][4] = {};
            if (tile.base >= 0) {
                const __half *k = rows_of(tile, 0);
#pragma unroll
                for (int step = 0; step < SIZE / 16; step++) {
                    uint32_t q[PARTS][4];
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        if constexpr (shape::Q_IN_SHARED) {
                            uint4 x = shared_q[(part * (SIZE / 16) + step) * 32 + lane];
                            q[part][0] = x.x, q[part][1] = x.y, q[part][2] = x.z, q[part][3] = x.w;
                        } else {
                            memcpy(q[part], kept_q[part][step], sizeof q[part]);
                        }
                    }
#pragma unroll
                    for (int n = 0; n < WALK_CELLS / 16; n++)
#pragma unroll
                        for (int part = 0; part < PARTS; part++) {
                            uint32_t b[4];
                            load_four(b,
                                      k + (part * WALK_CELLS + 16 * n + (lane / 16) * 8 + lane % 8) * STRIDE +
                                          16 * step + lane / 8 % 2 * 8,
                                      false);
#pragma unroll
                            for (int with = 0; with < PARTS - part; with++) { // error times error is negligible
                                multiply(s[2 * n], q[with], b[0], b[1]);
                                multiply(s[2 * n + 1], q[with], b[2], b[3]);
                            }
                        }
                }
            }
            __syncwarp();
            if (tile.base < 0) {
                grid_wait();
                if (lane == 0 && takes_tickets) next_work = n_warps + (int)atomicAdd(&d.tickets[0], 1u);
            }
            load(next, 0);
            if (tile.base >= 0) {
                const bool is_whole =
                    __all_sync(0xffffffffu, tile.position >= m.max_low && tile.position <= m.min_high);
                if (!is_whole || j.p.soft_cap > 0 || j.p.max_bias > 0) {
                    unsigned bits[2];
                    visible_bits(m, item, tile, bits);
#pragma unroll
                    for (int n = 0; n < WALK_CELLS / 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            const int r = e / 2, c = 8 * n + 2 * col + e % 2;
                            float x = s[n][e];
                            if (j.p.soft_cap > 0) x = soft_capped(x, j.p.soft_cap);
                            if (j.p.max_bias > 0)
                                x -= m.slope[r] *
                                     (float)abs(m.position[r] - __shfl_sync(0xffffffffu, tile.position, c));
                            s[n][e] = bits[r] >> c & 1 ? x : -INFINITY;
                        }
                }
                float rescale[2] = {1, 1};
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if (r == 1 && !both) continue; // the unit has no such rows, and nobody reads their sums
                    float most = rate[r].max, sum = 0;
#pragma unroll
                    for (int n = 0; n < WALK_CELLS / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                    if (rate[r].max != -INFINITY) rescale[r] = __expf(rate[r].max - most); // otherwise all sums are 0
                    const float base = most == -INFINITY ? 0 : most - LIFT;
#pragma unroll
                    for (int n = 0; n < WALK_CELLS / 8; n++)
#pragma unroll
                        for (int e = 2 * r; e < 2 * r + 2; e++) {
                            s[n][e] = __expf(s[n][e] - base);
                            sum += s[n][e];
                        }
                    rate[r] = {most, __fmaf_rn(rate[r].sum, rescale[r], sum)};
                }
                if (__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
                    for (int n = 0; n < SIZE / 8; n++) {
                        out_sum[n][0] *= rescale[0];
                        out_sum[n][1] *= rescale[0];
                        out_sum[n][2] *= rescale[1];
                        out_sum[n][3] *= rescale[1];
                    }
                }
                const __half *v = rows_of(tile, 1);
#pragma unroll
                for (int step = 0; step < WALK_CELLS / 16; step++) {
                    uint32_t p[PARTS][4];
#pragma unroll
                    for (int part = 0; part < PARTS; part++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            p[part][e] =
                                pack_part(s[2 * step + e / 2][e % 2 * 2], s[2 * step + e / 2][e % 2 * 2 + 1], part);
#pragma unroll
                    for (int n = 0; n < SIZE / 16; n++)
#pragma unroll
                        for (int part = 0; part < PARTS; part++) {
                            uint32_t b[4];
                            load_four(
                                b, v + (part * WALK_CELLS + 16 * step + lane % 16) * STRIDE + 16 * n + lane / 16 * 8,
                                true);
#pragma unroll
                            for (int with = 0; with < PARTS - part; with++) {
                                multiply(out_sum[2 * n], p[with], b[0], b[1]);
                                multiply(out_sum[2 * n + 1], p[with], b[2], b[3]);
                            }
                        }
                }
                __syncwarp();
            }
            if (next.base < 0 || (tile.base >= 0 && (next.base ^ tile.base) >> d.plan.split_shift))
                end_split(next.base < 0);
            if (next.base < 0) break;
            load(next, 1);
            if (tile.base < 0) load_q();
            tile = next;
        }
    }
    grid_wait(); // of warps without work
    // The last warp leaves zeros behind.
    if (takes_tickets && lane == 0 && atomicInc(&d.tickets[1], (unsigned)n_warps - 1) == (unsigned)n_warps - 1)
        atomicExch(&d.tickets[0], 0u);
}

// Combines the splits of rows. A warp computes a row.
__global__ static void __launch_bounds__(COMBINE_THREADS) many_combine_kernel(many_job d) {
    const attention_job &j = d.a;
    const int lane = threadIdx.x % 32, group = j.heads / j.kv_heads;
    grid_follow();
    const int of_unit = d.plan.tokens_of_unit * j.heads, n_works = d.plan.head->n_split_units * of_unit,
              n_warps = (int)(gridDim.x * COMBINE_THREADS / 32);
    for (int work = (int)(blockIdx.x * COMBINE_THREADS + threadIdx.x) / 32; work < n_works; work += n_warps) {
        const attention_unit u = d.plan.units[d.plan.split_units[work / of_unit]];
        const int i = work % of_unit / j.heads, head = work % j.heads, kv = head / group,
                  part = head % group / UNIT_ROWS, heads = unit_heads(d.plan, group, part),
                  stride = min((int)UNIT_ROWS, u.tokens * group), n_splits = splits_of(d.plan, u);
        if (i >= u.tokens) continue;
        const int64_t first =
            u.slot + (int64_t)(kv * d.plan.parts + part) * n_splits * stride + i * heads + head % group % UNIT_ROWS;
        row_rate total = {-INFINITY, 0};
        float sum[2][4] = {};
        for (int from = 0; from < n_splits; from += 32) {
            const int n = min(32, n_splits - from);
            float2 mine = make_float2(-INFINITY, 0);
            if (lane < n) mine = __ldcg(d.rates + first + (int64_t)(from + lane) * stride);
#pragma unroll 8
            for (int s = 0; s < n; s++) {
                const fold_factors f =
                    fold_rates(total, {__shfl_sync(0xffffffffu, mine.x, s), __shfl_sync(0xffffffffu, mine.y, s)});
                const float *next = d.sums + (first + (int64_t)(from + s) * stride) * j.head_v;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int at = 128 * h + 4 * lane;
                    if (at >= j.head_v) continue;
                    const float4 x = __ldcg((const float4 *)(next + at));
                    sum[h][0] = fold_sum(sum[h][0], x.x, f);
                    sum[h][1] = fold_sum(sum[h][1], x.y, f);
                    sum[h][2] = fold_sum(sum[h][2], x.z, f);
                    sum[h][3] = fold_sum(sum[h][3], x.w, f);
                }
            }
        }
        const float factor = final_factor(j, total, head);
        float *out = (float *)(j.out + head * j.o1 + (int64_t)(u.token + i) * j.o2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = 128 * h + 4 * lane;
            if (at >= j.head_v) continue;
            for (int e = 0; e < 4; e++) out[at + e] = sum[h][e] = final_value(sum[h][e], factor);
            if (d.next.to)
                store_narrow(d.next, u.token + i, head * j.head_v + at,
                             make_float4(sum[h][0], sum[h][1], sum[h][2], sum[h][3]));
        }
    }
}

// ---- Choosing a kernel ----

struct many_choice {
    kernel_name name;
    void (*kernel)(many_job);
    int row_bytes, warp_bytes, max_warps;
};
template <int SIZE, tile_form FORM> static many_choice many_choice_of_size(int row_bytes) {
    if (FORM == ROWS_F16) row_bytes = 2 * many_shape<SIZE, FORM>::STRIDE;
    return {kernel_called("many_kernel", form_name(FORM), SIZE), many_kernel<SIZE, FORM>, row_bytes,
            many_shape<SIZE, FORM>::bytes(row_bytes), many_shape<SIZE, FORM>::MAX_WARPS};
}
template <tile_form FORM> static many_choice many_choice_for(int64_t size, int row_bytes) {
    return size <= 64    ? many_choice_of_size<64, FORM>(row_bytes)
           : size <= 128 ? many_choice_of_size<128, FORM>(row_bytes)
                         : many_choice_of_size<256, FORM>(row_bytes);
}
static int cache_row_bytes(const tn_tensor *t) {
    return (int)((size_t)(t->ne[0] / tn_type_block(t->type)) * tn_type_bytes(t->type));
}
// How many bytes of a row are copied at once: 16, 8 or 4; 0 if rows are not aligned.
static int cache_copy_bytes(const tn_tensor *t) {
    const uint64_t alignment =
        (uint64_t)(uintptr_t)t->data | (uint64_t)t->nb[1] | (uint64_t)t->nb[2] | (uint64_t)cache_row_bytes(t);
    return alignment % 16 == 0 ? 16 : alignment % 8 == 0 ? 8 : alignment % 4 == 0 ? 4 : 0;
}
static many_choice many_choice_of(const tn_tensor *t) {
    const tn_tensor *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    const int64_t size = k->ne[0] > v->ne[0] ? k->ne[0] : v->ne[0];
    const int k_bytes = cache_row_bytes(k), v_bytes = cache_row_bytes(v),
              row_bytes = ((k_bytes > v_bytes ? k_bytes : v_bytes) + 15) / 16 * 16;
    if (k->type == TN_F32 || v->type == TN_F32) return many_choice_for<ROWS_SPLIT_F16>(size, row_bytes);
    if (k->type == TN_F16 && v->type == TN_F16) return many_choice_for<ROWS_F16>(size, row_bytes);
    return many_choice_for<ROWS_TO_F16>(size, row_bytes);
}

// Few tokens of several sequences: with short ones decode_kernel is faster, because it rotates and stores as well. On
// an H200 8 sequences of 200 cells take 10% longer here, of 2,048 cells 15% less.
static bool is_long(const tn_tensor *t) {
    const tn_tensor *k = t->src[TN_ATTN_K], *pages = t->src[TN_ATTN_PAGES];
    return t->src[TN_ATTN_Q]->ne[2] > 1 && k->ne[2] / pages->ne[2] >= 1024;
}
bool attention_is_planned(const device_description &device, const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *pages = t->src[TN_ATTN_PAGES];
    const bool is_wanted =
        (t->flags & TN_FLAG_REPEATABLE) ||
        (pages && pages->ne[2] > 1 && (q->ne[2] > FEW_TOKENS || (device.major >= 8 && is_long(t))));
    return is_wanted && cache_is_fast(t) && !t->src[TN_ATTN_MASK] && q->ne[1] > 0 && k->ne[1] > 0 &&
           t->src[TN_ATTN_V]->ne[0] % 8 == 0 && cache_copy_bytes(k) && cache_copy_bytes(t->src[TN_ATTN_V]) &&
           (size_t)many_choice_of(t).warp_bytes <= device.shared_per_block && q->ne[2] < INT32_MAX / 64 / q->ne[1] &&
           (t->nb[1] | t->nb[2] | (uintptr_t)t->data) % 8 == 0 && (q->nb[1] | q->nb[2] | (uintptr_t)q->data) % 8 == 0;
}
size_t many_scratch(const device_description &device, const tn_tensor *t) {
    attention_plan_key key;
    attention_plan_bytes(device, t, &key);
    return (size_t)key.entries * 4 * (size_t)(t->src[TN_ATTN_V]->ne[0] + 2);
}
tn_status compile_many(const compilation &c, const tn_tensor *t) {
    const tn_tensor *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    const many_choice chosen = many_choice_of(t);
    many_job d = {};
    d.a = attention_job_of(t);
    TN_TRY(compile_attention_plan(c, t, &d.plan, &d.plan_is_complete));
    d.sums = (float *)c.scratch;
    d.rates = (float2 *)(c.scratch + (size_t)d.plan.entries * 4 * (size_t)d.a.head_v);
    d.tickets = c.tickets;
    d.row_bytes = chosen.row_bytes;
    d.warp_bytes = chosen.warp_bytes;
    d.k_bytes = cache_row_bytes(k);
    d.v_bytes = cache_row_bytes(v);
    d.k_copy = cache_copy_bytes(k);
    d.v_copy = cache_copy_bytes(v);
    if (d.plan.few >= d.a.tokens && d.a.head_v % 64 == 0) d.next = narrow_rows_of(c, (int64_t)d.a.heads * d.a.head_v);
    size_t warps = c.device->shared_per_block / (size_t)chosen.warp_bytes;
    if (warps > (size_t)chosen.max_warps) warps = (size_t)chosen.max_warps;
    const int multiprocessors = c.device->multiprocessors;
    // No more warps than there can be work for: large blocks start slowly.
    const int64_t works = attention_plan_items(d.a, d.plan) * d.a.kv_heads * d.plan.parts,
                  each = (works + multiprocessors - 1) / multiprocessors;
    if ((int64_t)warps > each) warps = (size_t)each;
    launch_shape shape = {dim3((unsigned)(works < multiprocessors ? works : multiprocessors)), (unsigned)warps * 32,
                          warps * (size_t)chosen.warp_bytes};
    shape.raises_limit = true;
    shape.early = c.device->programmatic_launch;
    TN_TRY(add_kernel(c, chosen.name, chosen.kernel, shape, d));
    if (d.plan.few < d.a.tokens) TN_TRY(compile_prefill_tiles(c, t, d.plan));
    const int64_t rows = (int64_t)d.a.tokens * d.a.heads, blocks = (rows + 3) / 4, most = 4 * multiprocessors;
    return add_early(c, KERNEL(many_combine_kernel), dim3((unsigned)(blocks < most ? blocks : most)), COMBINE_THREADS,
                     0, d);
}
