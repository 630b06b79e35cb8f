// Selecting positions for sparse attention, in three launches for some tokens at a time:
//
// 1. clear: every list (a token's, or that of one of its heads) gets an empty hash table of entries.
// 2. score: a block computes the scores of a tile of cells for one token and enters them; an entry keeps its highest.
// 3. select: one block per list finds the k-th highest key by counting digits, then lists the entries in order.
//
// A table depends neither on the order of runs nor on the order in which blocks enter their cells, and keys differ
// between entries, so that the result is always the same.
#include "backend/cuda/kernels/attention.cuh"

#include <algorithm>

enum {
    SCORE_WARPS = 8,
    WARP_CELLS = 4, // cells that a warp computes together
    SCORE_CELLS = SCORE_WARPS * WARP_CELLS,
    SCORE_HEADS = 32, // heads that a block computes together: one per lane
    SELECT_THREADS = 256,
    CLEAR_THREADS = 256,
    SELECT_BYTES = 48 << 10, // shared memory of every GPU
    SELECT_STATIC = 2 << 10, // of which kernels declare less than this
    MOST_ENTRIES = 8192,     // of a list
    TABLES_BYTES = 64 << 20, // tables of the tokens computed together, unless one token needs more
};

struct select_job {
    attention_job a; // page tables and visible positions
    const char *q, *keys, *weights;
    int64_t q1, q2, k1, w1; // byte strides of head, token, cell; of a token's weights
    int32_t *out;           // [lists][tokens][k]
    int size, heads, lists, k, block, local;
    // Per list of the tokens computed together: the entries of the slots, -1 for free ones, then their ranks.
    int *tables;
    int slot_bits;   // of the largest table
    int first_token; // of those computed together
};

// Slots are at least twice the cells of the query's sequence.
__device__ static int table_bits(int cells) { return cells < 2 ? 2 : 33 - __clz(cells - 1); }
__device__ static int *table_of(const select_job &j, int token, int list) {
    return j.tables + ((int64_t)(token - j.first_token) * j.lists + list) * (2ll << j.slot_bits);
}
__device__ static unsigned entry_slot(int entry, int bits) { return (unsigned)entry * 2654435769u >> (32 - bits); }

__global__ static void __launch_bounds__(CLEAR_THREADS) select_clear_kernel(select_job j) {
    int token = j.first_token + (int)blockIdx.y, list = blockIdx.z;
    attention_query query = query_of(j.a, token);
    int slots = 1 << table_bits(logical_cells(j.a, query)), *table = table_of(j, token, list);
    for (int i = (int)(blockIdx.x * CLEAR_THREADS + threadIdx.x); i < slots; i += (int)(gridDim.x * CLEAR_THREADS)) {
        table[i] = -1;
        table[slots + i] = 0;
    }
}

// Orders scores: NaN is the lowest, -0 equals 0. All ones are left to entries that are always selected.
__device__ static unsigned score_rank(float score) {
    unsigned bits = __float_as_uint(score + 0.0f);
    return score != score ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ static void enter_score(const select_job &j, int token, int list, int cells, attention_query query,
                                   int position, float score) {
    int bits = table_bits(cells), slots = 1 << bits, *table = table_of(j, token, list);
    int entry = position / j.block, own = query.position / j.block;
    unsigned rank = entry <= own && entry > own - j.local ? 0xffffffffu : score_rank(score);
    for (unsigned at = entry_slot(entry, bits);; at = (at + 1) & (unsigned)(slots - 1)) {
        int before = atomicCAS(&table[at], -1, entry);
        if (before != -1 && before != entry) continue;
        atomicMax((unsigned *)&table[slots + (int)at], rank);
        return;
    }
}

// A lane has a head, a warp WARP_CELLS cells. Keys of the tile and queries of 32 heads are in shared memory.
__global__ static void __launch_bounds__(SCORE_WARPS * 32) select_score_kernel(select_job j) {
    extern __shared__ float shared[]; // keys [cells][size], then q [size][heads]
    __shared__ int positions[SCORE_CELLS], visible;
    float *keys = shared, *q = shared + SCORE_CELLS * j.size;
    int token = j.first_token + (int)blockIdx.y, begin = (int)blockIdx.x * SCORE_CELLS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, cells = 0;
    attention_query query = query_of(j.a, token);
    cells = logical_cells(j.a, query);
    if (begin >= cells) return; // the same for the whole block
    visible_positions sees = visible_to(j.a, query);
    if (threadIdx.x == 0) visible = 0;
    __syncthreads();
    for (int c = warp; c < SCORE_CELLS; c += SCORE_WARPS) {
        paged_cell at = cell_at<false>(j.a, query.seq, begin + c, cells);
        bool is_visible = at.cell >= 0 && at.position >= sees.low && at.position <= sees.high;
        if (lane == 0) positions[c] = is_visible ? at.position : -1;
        if (lane == 0 && is_visible) atomicAdd(&visible, 1);
        const float *key = (const float *)(j.keys + (int64_t)at.cell * j.k1);
        for (int i = lane; i < j.size; i += 32) keys[c * j.size + i] = is_visible ? key[i] : 0;
    }
    __syncthreads();
    if (!visible) return;
    float scores[WARP_CELLS] = {};
    for (int first = 0; first < j.heads; first += SCORE_HEADS) {
        __syncthreads();
        for (int h = warp; h < SCORE_HEADS; h += SCORE_WARPS) {
            const float *from = (const float *)(j.q + (int64_t)(first + h) * j.q1 + (int64_t)token * j.q2);
            for (int i = lane; i < j.size; i += 32) q[i * SCORE_HEADS + h] = first + h < j.heads ? from[i] : 0;
        }
        __syncthreads();
        float dots[WARP_CELLS] = {};
        for (int i = 0; i < j.size; i++) {
            float x = q[i * SCORE_HEADS + lane];
#pragma unroll
            for (int c = 0; c < WARP_CELLS; c++) dots[c] += x * keys[(warp * WARP_CELLS + c) * j.size + i];
        }
        int head = first + lane;
        float weight = j.weights && head < j.heads ? ((const float *)(j.weights + (int64_t)token * j.w1))[head] : 0;
#pragma unroll
        for (int c = 0; c < WARP_CELLS; c++) {
            int position = positions[warp * WARP_CELLS + c];
            if (j.weights)
                scores[c] += head < j.heads ? weight * fmaxf(dots[c], 0) : 0;
            else if (head < j.heads && position >= 0)
                enter_score(j, token, head, cells, query, position, dots[c]);
        }
    }
    if (!j.weights) return;
#pragma unroll
    for (int c = 0; c < WARP_CELLS; c++) {
        float score = warp_sum(scores[c]);
        int position = positions[warp * WARP_CELLS + c];
        if (lane == 0 && position >= 0) enter_score(j, token, 0, cells, query, position, score);
    }
}

// The higher rank first, of equal ranks the lower entry.
__device__ static uint64_t select_key(int entry, int rank) {
    return (uint64_t)(unsigned)rank << 32 | (0xffffffffu - (unsigned)entry);
}

// Sorts n entries, a power of two, in shared memory: a bitonic network.
__device__ static void sort_entries(int *list, int n) {
    for (int size = 2; size <= n; size *= 2)
        for (int far = size / 2; far > 0; far /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
                int other = i ^ far;
                if (other <= i) continue;
                int a = list[i], b = list[other];
                bool ascending = (i & size) == 0;
                if ((a > b) == ascending) {
                    list[i] = b;
                    list[other] = a;
                }
            }
        }
    __syncthreads();
}

__global__ static void __launch_bounds__(SELECT_THREADS) select_entries_kernel(select_job j) {
    extern __shared__ int list[]; // the selected entries, room for a power of two
    __shared__ int counts[256], used, listed;
    __shared__ uint64_t limit;
    int token = j.first_token + (int)blockIdx.x, which = blockIdx.y, thread = threadIdx.x;
    attention_query query = query_of(j.a, token);
    int slots = 1 << table_bits(logical_cells(j.a, query)), room = 1;
    const int *table = table_of(j, token, which);
    while (room < j.k) room *= 2;
    if (thread == 0) used = listed = 0;
    if (thread == 0) limit = 0;
    for (int i = thread; i < room; i += SELECT_THREADS) list[i] = 0x7fffffff;
    __syncthreads();
    int own = 0;
    for (int i = thread; i < slots; i += SELECT_THREADS) own += table[i] >= 0;
    if (own) atomicAdd(&used, own);
    __syncthreads();
    if (used > j.k) { // the same for the whole block
        uint64_t prefix = 0, mask = 0;
        int left = j.k;
        for (int shift = 56; shift >= 0; shift -= 8) {
            for (int i = thread; i < 256; i += SELECT_THREADS) counts[i] = 0;
            __syncthreads();
            for (int i = thread; i < slots; i += SELECT_THREADS) {
                if (table[i] < 0) continue;
                uint64_t key = select_key(table[i], table[slots + i]);
                if ((key & mask) == prefix) atomicAdd(&counts[(int)(key >> shift & 255)], 1);
            }
            __syncthreads();
            int digit = 255; // every thread finds the same
            for (; counts[digit] < left; digit--) left -= counts[digit];
            prefix |= (uint64_t)digit << shift;
            mask |= 255ull << shift;
            __syncthreads();
        }
        if (thread == 0) limit = prefix;
        __syncthreads();
    }
    for (int i = thread; i < slots; i += SELECT_THREADS)
        if (table[i] >= 0 && select_key(table[i], table[slots + i]) >= limit) list[atomicAdd(&listed, 1)] = table[i];
    sort_entries(list, room);
    int32_t *out = j.out + ((int64_t)which * j.a.tokens + token) * j.k;
    for (int i = thread; i < j.k; i += SELECT_THREADS) out[i] = list[i] == 0x7fffffff ? -1 : list[i];
}

// ---- Compiling ----

static int64_t most_cells(const tn_tensor *t) {
    return (t->src[TN_SELECT_PAGES]->ne[1] - 1) * (int64_t)t->params.select.page;
}
static int most_slot_bits(const tn_tensor *t) {
    int bits = 2;
    while (bits < 30 && 1ll << bits < 2 * most_cells(t)) bits++;
    return bits;
}
static int64_t tokens_together(const tn_tensor *t) {
    const int64_t each = t->ne[2] * (8ll << most_slot_bits(t));
    return std::min<int64_t>({t->ne[1], MOST_ROWS, std::max<int64_t>(1, TABLES_BYTES / each)});
}
static size_t score_shared(const tn_tensor *t) {
    return 4 * (size_t)(SCORE_CELLS + SCORE_HEADS) * (size_t)t->src[TN_SELECT_Q]->ne[0];
}

bool select_supported(const tn_tensor *t, char *reason, size_t size) {
    const bool fits = score_shared(t) + SELECT_STATIC <= SELECT_BYTES && t->ne[0] <= MOST_ENTRIES &&
                      most_cells(t) <= 1 << 28 && t->ne[2] <= MOST_ROWS;
    if (!fits && reason)
        snprintf(reason, size, "heads of %lld elements, %lld entries of %lld cells",
                 (long long)t->src[TN_SELECT_Q]->ne[0], (long long)t->ne[0], (long long)most_cells(t));
    return fits;
}
size_t select_scratch(const device_description &device, const tn_tensor *t) {
    (void)device;
    return (size_t)(tokens_together(t) * t->ne[2]) * ((size_t)8 << most_slot_bits(t));
}

tn_status compile_select_positions(const compilation &c, const tn_tensor *t) {
    const tn_tensor *q = t->src[TN_SELECT_Q], *keys = t->src[TN_SELECT_KEYS], *pages = t->src[TN_SELECT_PAGES],
                    *weights = t->src[TN_SELECT_WEIGHTS];
    const tn_select_params &p = t->params.select;
    select_job j;
    memset(&j, 0, sizeof j);
    j.a.q_pos = (const int32_t *)t->src[TN_SELECT_Q_POS]->data;
    j.a.pages = (const int32_t *)pages->data;
    j.a.max_runs = (int)pages->ne[1] - 1;
    j.a.sequences = (int)pages->ne[2];
    j.a.page_shift = page_shift_of(p.page);
    j.a.cells = (int)keys->ne[1];
    j.a.tokens = (int)q->ne[2];
    j.a.p.causal = p.causal;
    j.a.p.window = p.window;
    j.a.p.page = p.page;
    j.q = (const char *)q->data;
    j.keys = (const char *)keys->data;
    j.weights = weights ? (const char *)weights->data : NULL;
    j.q1 = (int64_t)q->nb[1], j.q2 = (int64_t)q->nb[2], j.k1 = (int64_t)keys->nb[1];
    j.w1 = weights ? (int64_t)weights->nb[1] : 0;
    j.out = (int32_t *)t->data;
    j.size = (int)q->ne[0], j.heads = (int)q->ne[1], j.lists = (int)t->ne[2];
    j.k = p.k, j.block = std::max(1, p.block), j.local = p.local;
    j.tables = (int *)c.scratch;
    j.slot_bits = most_slot_bits(t);
    const int64_t together = tokens_together(t), cells = most_cells(t);
    size_t room = 1;
    while (room < (size_t)p.k) room *= 2;
    for (int64_t first = 0; first < q->ne[2]; first += together) {
        const unsigned n = (unsigned)std::min<int64_t>(together, q->ne[2] - first);
        j.first_token = (int)first;
        const dim3 clear(std::min(blocks_for(2ll << j.slot_bits, CLEAR_THREADS), 64u), n, (unsigned)j.lists);
        TN_TRY(add_ordered(c, KERNEL(select_clear_kernel), clear, CLEAR_THREADS, 0, j));
        const dim3 score(std::max(1u, blocks_for(cells, SCORE_CELLS)), n);
        TN_TRY(add_ordered(c, KERNEL(select_score_kernel), score, SCORE_WARPS * 32, score_shared(t), j));
        TN_TRY(
            add_ordered(c, KERNEL(select_entries_kernel), dim3(n, (unsigned)j.lists), SELECT_THREADS, 4 * room, j));
    }
    return TN_OK;
}
