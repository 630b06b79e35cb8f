// The plan of a batch's attention: which rows are computed together, and how their cells are divided.
//
// A plan is made once per program, by a kernel of one block, and stays in scratch for all layers with the same
// queries, page table and window. Shapes of launches depend on shapes of tensors alone, so that programs can be
// captured: kernels read the plan.
//
// Cells have an index that does not depend on pages: the number of cells before them in their sequence. Where only
// the cells in a window are kept and results must be repeatable, it is the position instead, unless several cells
// share one. Splits begin at fixed indexes. So a row's result does not depend on pages or on other rows.
#ifndef TN_BACKEND_CUDA_KERNELS_ATTENTION_PLAN_CUH
#define TN_BACKEND_CUDA_KERNELS_ATTENTION_PLAN_CUH

#include "backend/cuda/kernels/attention_tiles.cuh"

enum {
    UNIT_ROWS = 16,          // rows of a unit: those of a tile of the tensor cores
    FEW_TOKENS = 8,          // the most consecutive tokens of a sequence that are computed in units
    WALK_CELLS = 32,         // cells of a tile
    MIN_SPLIT_SHIFT = 8,     // log2 of the indexes of a split
    MAX_ATTENTION_PLANS = 4, // of a program
};

// Consecutive tokens of a sequence with all their query heads, or one token with 16 of a key/value head's.
struct attention_unit {
    int token, tokens, seq;
    int low, high;  // positions that any of the tokens sees
    int begin, end; // indexes between which all visible cells are
    int slot;       // the first of the unit's entries for results of splits; -1: one warp computes all splits
};
// What a warp computes: a split of a unit or all of them. Loaded as a whole.
struct __align__(16) attention_item {
    int unit, split; // split -1: all
    int run, at;     // the run that the split begins in, and the index of its first cell
    int token, tokens, seq, n_runs;
    int low, high;   // positions that any of the tokens sees
    int begin, stop; // indexes between which all visible cells of the split are
};
// Consecutive tokens of a sequence for prefill_kernel.
struct attention_tile {
    int token, tokens;
};
struct attention_plan_head {
    int n_items, n_tiles, n_split_units, n_units;
};
struct attention_plan {
    attention_plan_head *head;
    attention_unit *units;
    attention_item *items;
    attention_tile *tiles;
    int *split_units;
    int tokens_of_unit; // at most
    int parts;          // units of a token, each with some of its heads
    int few;            // longer groups of tokens are divided into tiles
    int split_shift;    // log2 of the indexes of a split
    int entries;        // results of splits for which there is memory
    bool by_position;   // indexes follow positions
};
static inline int max_tiles_of(int64_t tokens) { return (int)(tokens / (FEW_TOKENS + 1)) + 1; }

__device__ static int splits_of(const attention_plan &p, const attention_unit &u) {
    return u.end > u.begin ? ((u.end - 1) >> p.split_shift) - (u.begin >> p.split_shift) + 1 : 0;
}
// The rows of a unit in one of its parts: row r has token r / heads and head r % heads of the part.
__device__ static int unit_heads(const attention_plan &p, int group, int part) {
    return p.parts == 1 ? group : min((int)UNIT_ROWS, group - part * UNIT_ROWS);
}

// ---- Runs ----

// A warp walks the runs of a sequence, a run per lane.
struct run_walk {
    int seq, n_runs;
    int base;        // the run of lane 0
    int end;         // the index after the last run of the warp
    tn_page_run run; // of this lane; without cells if there is none
    int at;          // the index of its first cell
};
__device__ static int runs_of(const attention_job &j, int seq) {
    if (seq < 0) return 0;
    return j.pages ? min(max(j.pages[4 * (int64_t)seq * (1 + j.max_runs)], 0), j.max_runs) : 1;
}
// Loads the runs from w.base on. w.end is the index after the runs before them. The index of a run is the larger one
// of its position, if indexes follow positions, and the end of the run before: a scan of functions max(x + a, b).
__device__ static void load_runs(const attention_job &j, bool by_position, run_walk &w) {
    const int lane = threadIdx.x % 32, i = w.base + lane, none = -LAST_POSITION;
    w.run = {0, 0, 0, 1};
    if (i < w.n_runs) w.run = run_of(j, w.seq, i);
    int a = w.run.count, b = none;
    if (by_position && a > 0) b = min(run_position(w.run, 0), 1 << 30) + a;
    for (int far = 1; far < 32; far *= 2) {
        int before_a = __shfl_up_sync(0xffffffffu, a, far), before_b = __shfl_up_sync(0xffffffffu, b, far);
        if (lane < far) continue;
        if (before_b != none) b = max(b, before_b + a);
        a += before_a;
    }
    int end = max(w.end + a, b);
    w.at = end - w.run.count;
    w.end = __shfl_sync(0xffffffffu, end, 31);
}
__device__ static run_walk begin_walk(const attention_job &j, bool by_position, int seq, int n_runs, int run,
                                      int at) {
    run_walk w = {seq, n_runs, run, at, {0, 0, 0, 1}, 0};
    load_runs(j, by_position, w);
    return w;
}

// 32 cells: `base` is the index of the first one, -1 if there is no tile. A lane has the cell of its index: -1 and
// NEVER if it is not there or visible to no row.
struct walk_tile {
    int base, cell, position;
};
// The next tile from `index` on that has visible cells. `index` is a multiple of 32.
__device__ static walk_tile next_walk_tile(const attention_job &j, const attention_plan &p, run_walk &w, int &index,
                                           int stop, int low, int high) {
    const int lane = threadIdx.x % 32;
    while (index < stop) {
        int cell = -1, position = NEVER;
        for (;;) {
            unsigned hits = __ballot_sync(0xffffffffu,
                                          w.run.count > 0 && w.at < index + WALK_CELLS && w.at + w.run.count > index);
            for (; hits; hits &= hits - 1) {
                int k = __ffs((int)hits) - 1;
                tn_page_run run = {__shfl_sync(0xffffffffu, w.run.cell, k), __shfl_sync(0xffffffffu, w.run.count, k),
                                   __shfl_sync(0xffffffffu, w.run.first, k),
                                   __shfl_sync(0xffffffffu, w.run.divisor, k)};
                int offset = index + lane - __shfl_sync(0xffffffffu, w.at, k);
                if (offset >= 0 && offset < run.count) {
                    cell = run.cell + offset;
                    position = run_position(run, offset);
                }
            }
            if (w.end >= index + WALK_CELLS || w.base + 32 >= w.n_runs) break;
            w.base += 32;
            load_runs(j, p.by_position, w);
        }
        bool is_visible = cell >= 0 && position >= low && position <= high;
        int base = index;
        index += WALK_CELLS;
        if (__any_sync(0xffffffffu, is_visible))
            return {base, is_visible ? cell : -1, is_visible ? position : (int)NEVER};
        // Skips the gap before the next run.
        int next = warp_min_int(w.run.count > 0 && w.at + w.run.count > index ? w.at : (int)NEVER);
        if (next == NEVER && w.base + 32 >= w.n_runs) break;
        if (next != NEVER) index = max(index, next / WALK_CELLS * WALK_CELLS);
    }
    index = stop;
    return {-1, -1, NEVER};
}

// ---- Host ----

// What a plan was made for.
struct attention_plan_key {
    const tn_tensor *q_pos, *pages;
    int tokens, sequences, max_runs, cells, kv_heads, parts, tokens_of_unit, few, split_shift, entries, by_position;
    int page, causal, window, window_after, chunk;
};
struct attention_plans {
    char *memory;
    size_t each; // bytes of a plan
    int count;   // plans that there is memory for
    int made;
    attention_plan_key keys[MAX_ATTENTION_PLANS];
};
// Bytes of a plan; 0 for attention that needs none. Nodes with the same key share one.
size_t attention_plan_bytes(const device_description &device, const tn_tensor *t, attention_plan_key *key);
// The most items that a plan can have.
int64_t attention_plan_items(const attention_job &j, const attention_plan &plan);
// Adds the kernel that makes the plan, unless the program has it already.
tn_status compile_attention_plan(const compilation &c, const tn_tensor *t, attention_plan *plan, bool *was_made);
// The tiles of a plan (attention_prefill.cu).
tn_status compile_prefill_tiles(const compilation &c, const tn_tensor *t, const attention_plan &plan);

#endif
