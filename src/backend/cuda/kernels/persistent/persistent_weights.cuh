// The persistent decode kernel: streaming weights into shared memory.
//
// Weights do not depend on what is computed, so every warp keeps fetching: it refills a stage of its ring soon after
// it has read it, across the ends of rows, matrices and steps.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_WEIGHTS_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_WEIGHTS_CUH

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"
#include "backend/cuda/kernels/persistent/persistent_sync.cuh"

#if __CUDA_ARCH__ >= 900

// ---- Dividing a matmul among warps ----

// A warp's part of a matmul: items `begin` to `end` of the block's `items`.
struct warp_share {
    int group, begin, end, items;
    // The first item: how many items of `group` are before it, then its pass, piece and weight kind.
    uint8_t skipped, pass, piece, kind;
};
__device__ static inline int passes_of(const persistent_matmul &p) { return p.job.finish == GEMV_GLU ? 2 : 1; }
// The matrix of a group in this pass. `group` becomes its index within that matrix.
__device__ static inline int matrix_of(const persistent_matmul &p, int *group, int pass) {
    if (p.job.finish == GEMV_GLU) return pass;
    int m = 0;
    while (m + 1 < p.job.n && *group >= p.groups[m]) *group -= p.groups[m++];
    return m;
}
__device__ static inline int weight_kind_of(const persistent_matmul &p, int group, int pass) {
    return p.kinds[matrix_of(p, &group, pass)];
}

__device__ static inline warp_share warp_share_of(const persistent_matmul &p, int warp) {
    int block = (int)blockIdx.x, first = block * p.groups_per_block + min(block, p.blocks_with_extra_group),
        each = p.pieces * passes_of(p);
    warp_share s;
    s.items = (p.groups_per_block + (block < p.blocks_with_extra_group)) * each;
    s.begin = s.items * warp / WARPS;
    s.end = s.items * (warp + 1) / WARPS;
    int groups = (int)__umulhi((unsigned)s.begin, p.inverse_items); // begin / each
    if (each == 1) groups = s.begin;
    s.group = first + groups;
    int skipped = s.begin - groups * each;
    s.skipped = (uint8_t)skipped;
    s.pass = skipped >= p.pieces;
    s.piece = (uint8_t)(skipped - (s.pass ? p.pieces : 0));
    s.kind = (uint8_t)weight_kind_of(p, s.group, s.pass);
    return s;
}

// ---- State in shared memory ----

// Descriptions of the steps around the current one, and each warp's share of them; step i is at i % STEP_WINDOW.
struct step_window {
    persistent_step steps[STEP_WINDOW];
    warp_share shares[STEP_WINDOW][WARPS];
};
// How far a warp's fetching has come. Only lane 0 uses it.
struct alignas(16) weight_fetch {
    const char *at, *other; // the next item; with a gate, where the other matrix continues
    int step, items;        // items of this step that are not fetched yet
    int matrix, piece;      // of the next item
    int last_row;           // the matrix's last row, counted from the group's first
    unsigned fetched;       // items since the launch began
    unsigned unused;
};
// What a warp keeps from step to step.
struct warp_progress {
    int step;           // the current one
    int rotation, view; // the rotation table and the cell view in shared memory belong to these (decode_job)
    unsigned consumed;  // items since the launch began
};

// ---- Fetching ----

__device__ static inline const char *group_at(const persistent_matmul &p, int matrix, int group) {
    const gemv_matrix &m = p.job.m[matrix];
    return m.w + (int64_t)(group * p.rows[matrix]) * m.row_bytes;
}
__device__ static inline void start_fetching_step(weight_fetch &s, const persistent_matmul &p,
                                                  const warp_share &mine) {
    int group = mine.group, m = matrix_of(p, &group, mine.pass);
    s.matrix = m;
    s.piece = mine.piece;
    s.at = group_at(p, m, group) + mine.piece * p.piece_bytes[m];
    s.last_row = p.job.m[m].rows - 1 - group * p.rows[m];
    if (p.job.finish == GEMV_GLU) s.other = group_at(p, 1 - m, group + m);
}
// Fetches items while a stage is free and their step is not after `last_loaded`. Called by one lane of a warp.
__device__ static inline void fetch_weights(weight_fetch &kept, unsigned consumed, const step_window &window,
                                            int last_loaded, char *ring, uint64_t *full) {
    weight_fetch s = kept;
    while (s.fetched - consumed < STAGES) {
        const persistent_step *step = &window.steps[(unsigned)s.step % STEP_WINDOW]; // s.step is -1 at first
        if (!s.items) {
            if (s.step >= last_loaded) break;
            s.step++;
            step = &window.steps[s.step % STEP_WINDOW];
            if (step->is_attention) continue;
            const warp_share &mine = window.shares[s.step % STEP_WINDOW][threadIdx.x / 32];
            s.items = mine.end - mine.begin;
            if (!s.items) continue;
            start_fetching_step(s, step->matmul, mine);
        }
        const persistent_matmul &p = step->matmul;
        const int row_bytes = (int)p.job.m[s.matrix].row_bytes, rows = p.rows[s.matrix],
                  piece_bytes = p.piece_bytes[s.matrix];
        const bool ends_row = s.piece + 1 == p.pieces;
        const int bytes = ends_row ? p.last_piece_bytes[s.matrix] : piece_bytes;
        char *stage = ring + s.fetched % STAGES * STAGE_BYTES;
        uint64_t *barrier = full + s.fetched % STAGES;
        barrier_expect(barrier, (uint32_t)(rows * bytes));
        if (row_bytes == piece_bytes && s.last_row >= rows - 1) { // the group is contiguous: one copy
            bulk_once(stage, s.at, (uint32_t)(rows * bytes), barrier);
        } else {
            const char *row = s.at; // past the matrix's last row, that row is copied again
            for (int i = 0; i < rows; i++) {
                bulk_once(stage, row, (uint32_t)bytes, barrier);
                stage += piece_bytes;
                if (i < s.last_row) row += row_bytes;
            }
        }
        s.fetched++;
        s.items--;
        s.piece++;
        s.at += ends_row ? p.next_group_bytes[s.matrix] : piece_bytes;
        if (!ends_row) continue;
        s.piece = 0;
        if (p.job.finish == GEMV_GLU) {
            const char *next = s.at;
            s.at = s.other;
            s.other = next;
            if (s.matrix) s.last_row -= rows;
            s.matrix ^= 1;
        } else if ((s.last_row -= rows) < 0 && s.items) {
            s.matrix++;
            s.at = p.job.m[s.matrix].w;
            s.last_row = p.job.m[s.matrix].rows - 1;
        }
    }
    kept = s;
}

#endif

#endif
