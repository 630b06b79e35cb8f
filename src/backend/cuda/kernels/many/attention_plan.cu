// Making the plan of a batch's attention.
#include "backend/cuda/kernels/many/attention_plan.cuh"

enum { PLAN_THREADS = 1024, PLAN_WARPS = PLAN_THREADS / 32, BUCKETS = 24 };

struct plan_counts {
    int units, items, tiles, split_units, entries;
};

// The first token of the group that token t belongs to: consecutive tokens of one sequence. Padding is alone.
// `carry`: the first token of the last group of the tokens before.
__device__ static int group_begin(const attention_job &j, int t, int &carry, int (&of_warp)[PLAN_WARPS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int begin = 0;
    if (t > 0 && t < j.tokens) {
        int seq = query_of(j, t).seq;
        if (seq < 0 || seq != query_of(j, t - 1).seq) begin = t;
    }
    for (int far = 1; far < 32; far *= 2) {
        int before = __shfl_up_sync(0xffffffffu, begin, far);
        if (lane >= far) begin = max(begin, before);
    }
    __syncthreads();
    if (lane == 31) of_warp[warp] = begin;
    __syncthreads();
    int last = carry;
    for (int w = 0; w < PLAN_WARPS; w++) {
        if (w < warp) begin = max(begin, of_warp[w]);
        last = max(last, of_warp[w]);
    }
    begin = max(begin, carry);
    carry = last;
    return begin;
}
// Tokens from t on that belong to its sequence, up to `most`.
__device__ static int tokens_from(const attention_job &j, int t, int most) {
    int n = 1, seq = query_of(j, t).seq;
    if (seq < 0) return 1;
    while (n < most && t + n < j.tokens && query_of(j, t + n).seq == seq) n++;
    return n;
}
// Lists units and tiles.
__device__ static void divide_tokens(const attention_job &j, const attention_plan &p, plan_counts &counts) {
    __shared__ int of_warp[PLAN_WARPS];
    int carry = 0;
    for (int from = 0; from < j.tokens; from += PLAN_THREADS) {
        const int t = from + (int)threadIdx.x, begin = group_begin(j, t, carry, of_warp), offset = t - begin;
        if (t >= j.tokens) continue;
        const bool is_long = p.few <= FEW_TOKENS && (offset >= p.few || tokens_from(j, begin, p.few + 1) > p.few);
        const int most = is_long ? (int)QUERIES : p.tokens_of_unit;
        if (offset % most) continue;
        const int n = tokens_from(j, t, most);
        if (is_long)
            p.tiles[atomicAdd(&counts.tiles, 1)] = {t, n};
        else
            p.units[atomicAdd(&counts.units, 1)] = {t, n, query_of(j, t).seq, 0, 0, 0, 0, -1};
    }
}

// Finds the cells that a unit's rows see. All lanes of a warp call this.
__device__ static void find_unit_cells(const attention_job &j, const attention_plan &p, attention_unit &u) {
    const int lane = threadIdx.x % 32;
    visible_positions sees = {LAST_POSITION, -1};
    if (lane < u.tokens) sees = visible_to(j, query_of(j, u.token + lane));
    u.low = min(warp_min_int(sees.low), NEVER - 1);
    u.high = min(warp_max_int(sees.high), NEVER - 1);
    int begin = LAST_POSITION, end = 0;
    run_walk w = begin_walk(j, p.by_position, u.seq, runs_of(j, u.seq), 0, 0);
    for (;;) {
        const tn_page_run &run = w.run;
        if (run.count > 0 && run_position(run, 0) <= u.high && run_position(run, run.count - 1) >= u.low) {
            const bool divided = run.divisor > 1;
            begin = min(begin, w.at + (divided ? 0 : max(0, u.low - run.first)));
            end = max(end, w.at + (divided ? run.count : min(run.count - 1, u.high - run.first) + 1));
        }
        if (w.base + 32 >= w.n_runs) break;
        w.base += 32;
        load_runs(j, p.by_position, w);
    }
    u.begin = warp_min_int(begin);
    u.end = warp_max_int(end);
    if (u.end == 0) u.begin = 0;
}

// Decides for a unit whether its splits are computed in parallel: if there is memory for their results. Returns the
// number of items and reserves them.
__device__ static void reserve_items(const attention_job &j, const attention_plan &p, attention_unit &u, int unit,
                                     int *first_item, plan_counts &counts) {
    const int n = splits_of(p, u), group = j.heads / j.kv_heads;
    const int64_t each = (int64_t)min((int)UNIT_ROWS, u.tokens * group) * j.kv_heads * p.parts, needed = each * n;
    if (n > 1 && needed <= p.entries) {
        const int at = atomicAdd(&counts.entries, (int)needed);
        if (at <= p.entries - (int)needed) {
            u.slot = at;
            p.split_units[atomicAdd(&counts.split_units, 1)] = unit;
        } else {
            atomicSub(&counts.entries, (int)needed);
        }
    }
    *first_item = atomicAdd(&counts.items, u.slot >= 0 ? n : 1);
}
// Writes a unit's items with the runs that they begin in. All lanes of a warp call this.
__device__ static void write_items(const attention_job &j, const attention_plan &p, const attention_unit &u, int unit,
                                   int first_item) {
    const int n = u.slot >= 0 ? splits_of(p, u) : 1, first = u.begin >> p.split_shift;
    const int n_runs = u.end > u.begin ? runs_of(j, u.seq) : 0;
    attention_item item = {unit, -1, 0, 0, u.token, u.tokens, u.seq, n_runs, u.low, u.high, u.begin, u.end};
    if (u.end == u.begin && threadIdx.x % 32 == 0) p.items[first_item] = item;
    if (u.end == u.begin) return;
    run_walk w = begin_walk(j, p.by_position, u.seq, runs_of(j, u.seq), 0, 0);
    int before = 0; // the index after the runs before this warp's
    for (;;) {
        int end = w.at + w.run.count, previous = __shfl_up_sync(0xffffffffu, end, 1);
        if (threadIdx.x % 32 == 0) previous = before;
        if (w.run.count > 0) // splits that begin after the run before this one
            for (int s = max(0, ((previous + (1 << p.split_shift) - 1) >> p.split_shift) - first);
                 s < n && (first + s) << p.split_shift < end; s++) {
                item.run = w.base + (int)threadIdx.x % 32;
                item.at = w.at;
                if (u.slot >= 0) {
                    item.split = s;
                    item.begin = max(u.begin, (first + s) << p.split_shift);
                    item.stop = min(u.end, (first + s + 1) << p.split_shift);
                }
                p.items[first_item + s] = item;
            }
        before = w.end;
        if (w.base + 32 >= w.n_runs) break;
        w.base += 32;
        load_runs(j, p.by_position, w);
    }
}

__global__ static void __launch_bounds__(PLAN_THREADS) attention_plan_kernel(attention_job j, attention_plan p) {
    __shared__ plan_counts counts;
    grid_follow();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) counts = {};
    __syncthreads();
    divide_tokens(j, p, counts);
    __syncthreads();
    for (int i = warp; i < counts.units; i += PLAN_WARPS) {
        attention_unit u = p.units[i];
        find_unit_cells(j, p, u);
        if (threadIdx.x % 32 == 0) p.units[i] = u;
    }
    __syncthreads();
    // The longest units first: they get memory for splits, and start first. `split_units` is larger than the number
    // of units, and its second half holds the first item of each.
    int *first_items = p.split_units + j.tokens;
    for (int bucket = BUCKETS - 1; bucket >= 0; bucket--) {
        for (int i = threadIdx.x; i < counts.units; i += PLAN_THREADS) {
            attention_unit u = p.units[i];
            int n = splits_of(p, u), mine = n > 0 ? min(BUCKETS - 1, 31 - __clz(n)) : 0;
            if (mine != bucket) continue;
            reserve_items(j, p, u, i, &first_items[i], counts);
            p.units[i].slot = u.slot;
        }
        __syncthreads();
    }
    for (int i = warp; i < counts.units; i += PLAN_WARPS) write_items(j, p, p.units[i], i, first_items[i]);
    if (threadIdx.x == 0) *p.head = {counts.items, counts.tiles, counts.split_units, counts.units};
}

// ---- Host ----

// Bytes for the results of splits. Units for which there is none compute their splits one after the other.
static const int64_t MAX_SPLIT_BYTES = 32 << 20;

// Addresses may not be known yet.
static attention_plan_key plan_key_of(const device_description &device, const tn_tensor *t) {
    const attention_job j = attention_job_of(t);
    const int group = j.heads / j.kv_heads, repeatable = (t->flags & TN_FLAG_REPEATABLE) != 0;
    attention_plan_key k;
    memset(&k, 0, sizeof k);
    k.q_pos = t->src[TN_ATTN_Q_POS];
    k.pages = t->src[TN_ATTN_PAGES];
    k.tokens = j.tokens;
    k.sequences = j.sequences;
    k.max_runs = j.max_runs;
    k.cells = j.cells;
    k.kv_heads = j.kv_heads;
    k.parts = (group + UNIT_ROWS - 1) / UNIT_ROWS;
    k.tokens_of_unit = group < UNIT_ROWS ? UNIT_ROWS / group : 1;
    k.few = !repeatable && prefill_supports(device, t) ? (int)FEW_TOKENS : INT32_MAX;
    const int64_t indexes = k.pages ? (int64_t)j.max_runs * j.p.page : j.cells;
    // Splits are longer in large caches, so that their results fit into the memory for them.
    for (k.split_shift = MIN_SPLIT_SHIFT; 65536ll << (k.split_shift - MIN_SPLIT_SHIFT) < j.cells; k.split_shift++) {}
    k.by_position = repeatable && k.pages && j.p.causal && (j.p.window > 0 || j.p.chunk > 0) && indexes < 1 << 30;
    const int64_t splits = (indexes >> k.split_shift) + 2, most = MAX_SPLIT_BYTES / (4 * (j.head_v + 2)),
                  wanted = splits * j.tokens * k.parts * j.kv_heads * (group < UNIT_ROWS ? group : UNIT_ROWS);
    k.entries = (int)(wanted < most ? wanted : most);
    k.page = j.p.page;
    k.causal = j.p.causal;
    k.window = j.p.window;
    k.window_after = j.p.window_after;
    k.chunk = j.p.chunk;
    return k;
}
int64_t attention_plan_items(const attention_job &j, const attention_plan &plan) {
    const int64_t indexes = j.pages ? (int64_t)j.max_runs * j.p.page : j.cells;
    return j.tokens * ((indexes >> plan.split_shift) + 3);
}
static int64_t max_items_of(const attention_plan_key &k) { return k.tokens + k.entries / (k.kv_heads * k.parts) + 1; }

static size_t lay_out_plan(const attention_plan_key &k, char *memory, attention_plan *p) {
    const size_t tokens = (size_t)k.tokens, units = 256, items = units + round_up_256(tokens * sizeof *p->units),
                 tiles = items + round_up_256((size_t)max_items_of(k) * sizeof *p->items),
                 splits = tiles + round_up_256((size_t)max_tiles_of(k.tokens) * sizeof *p->tiles);
    p->head = (attention_plan_head *)memory;
    p->units = (attention_unit *)(memory + units);
    p->items = (attention_item *)(memory + items);
    p->tiles = (attention_tile *)(memory + tiles);
    p->split_units = (int *)(memory + splits);
    p->tokens_of_unit = k.tokens_of_unit;
    p->parts = k.parts;
    p->few = k.few;
    p->split_shift = k.split_shift;
    p->entries = k.entries;
    p->by_position = k.by_position;
    return splits + round_up_256(2 * tokens * sizeof *p->split_units);
}

size_t attention_plan_bytes(const device_description &device, const tn_tensor *t, attention_plan_key *key) {
    if (t->op != TN_OP_ATTENTION || tn_is_empty(t) || !attention_is_planned(device, t)) return 0;
    attention_plan p = {};
    *key = plan_key_of(device, t);
    return lay_out_plan(*key, NULL, &p);
}

tn_status compile_attention_plan(const compilation &c, const tn_tensor *t, attention_plan *plan, bool *was_made) {
    attention_plans *all = c.plans;
    const attention_plan_key key = plan_key_of(*c.device, t);
    const int known = all->made < all->count ? all->made : all->count;
    int at = 0;
    while (at < known && memcmp(&all->keys[at], &key, sizeof key) != 0) at++;
    const bool is_new = at == known;
    if (is_new) at = all->made++ % all->count;
    lay_out_plan(key, all->memory + (size_t)at * all->each, plan);
    *was_made = !is_new;
    if (!is_new) return TN_OK;
    all->keys[at] = key;
    return add_early(c, KERNEL(attention_plan_kernel), dim3(1), PLAN_THREADS, 0, attention_job_of(t), *plan);
}
