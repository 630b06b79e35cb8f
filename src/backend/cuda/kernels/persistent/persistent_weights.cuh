// The persistent decode kernel: streaming weights into shared memory.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_WEIGHTS_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_WEIGHTS_CUH

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"
#include "backend/cuda/kernels/persistent/persistent_sync.cuh"

#if __CUDA_ARCH__ >= 900

// A warp's share of a product: items `begin` to `end` of the block's, which has `items`; the first is `rest` items
// into group `group`.
struct share {
    int group, begin, end, items;
    uint8_t rest, pass, piece, kind; // of the first
};
__device__ static inline int passes_of(const persistent_matmul &p) { return p.job.finish == GEMV_GLU ? 2 : 1; }
// Which matrix a group is of in this pass; `group` becomes its number there.
__device__ static inline int matrix_of(const persistent_matmul &p, int *group, int pass) {
    if (p.job.finish == GEMV_GLU) return pass;
    int m = 0;
    while (m + 1 < p.job.n && *group >= p.groups[m]) *group -= p.groups[m++];
    return m;
}

__device__ static inline int kind_of(const persistent_matmul &p, int group, int pass) {
    return p.kinds[matrix_of(p, &group, pass)];
}

__device__ static inline share share_of(const persistent_matmul &p, int warp) {
    int block = (int)blockIdx.x, first = block * p.least + min(block, p.with_more), each = p.pieces * passes_of(p);
    share s;
    s.items = (p.least + (block < p.with_more)) * each;
    s.begin = s.items * warp / WARPS;
    s.end = s.items * (warp + 1) / WARPS;
    int groups = (int)__umulhi((unsigned)s.begin, p.per_item); // begin / each
    if (each == 1) groups = s.begin;
    s.group = first + groups;
    int rest = s.begin - groups * each;
    s.rest = (uint8_t)rest;
    s.pass = rest >= p.pieces;
    s.piece = (uint8_t)(rest - (s.pass ? p.pieces : 0));
    s.kind = (uint8_t)kind_of(p, s.group, s.pass);
    return s;
}
// What a block knows of the steps that are near.
struct knowledge {
    persistent_step steps[KNOWN];
    share shares[KNOWN][WARPS];
};
// Where a warp's fetching stands, which is its first lane's business.
struct alignas(16) stream {
    const char *at, *other;   // the next item; behind a gate: where the other matrix goes on
    int step, items;          // items of this step that are not yet fetched
    int matrix, piece, last;  // last: the last row that is there, counted from the group's first
    unsigned fetched, unused; // items so far
};
// What lasts from step to step.
struct progress {
    int now, turned, viewed; // the step that runs; the rotation and the view that are at hand
    unsigned taken;          // items that were read so far
};

__device__ static inline const char *group_at(const persistent_matmul &p, int matrix, int group) {
    const gemv_matrix &m = p.job.m[matrix];
    return m.w + (int64_t)(group * p.rows[matrix]) * m.row_bytes;
}
__device__ static inline void stream_aim(stream &s, const persistent_matmul &p, const share &mine) {
    int group = mine.group, m = matrix_of(p, &group, mine.pass);
    s.matrix = m;
    s.piece = mine.piece;
    s.at = group_at(p, m, group) + mine.piece * p.whole[m];
    s.last = p.job.m[m].rows - 1 - group * p.rows[m];
    if (p.job.finish == GEMV_GLU) s.other = group_at(p, 1 - m, group + m);
}
// Fetches while there is room, and items that are known; by one lane.
__device__ static inline void stream_fetch(stream &kept, unsigned taken, const knowledge &known, int last_known,
                                           char *ring, uint64_t *full) {
    stream s = kept;
    while (s.fetched - taken < STAGES) {
        const persistent_step *step = &known.steps[(unsigned)s.step % KNOWN]; // -1 at first
        if (!s.items) {
            if (s.step >= last_known) break; // again when more is known
            s.step++;
            step = &known.steps[s.step % KNOWN];
            if (step->is_attention) continue;
            const share &mine = known.shares[s.step % KNOWN][threadIdx.x / 32];
            s.items = mine.end - mine.begin;
            if (!s.items) continue;
            stream_aim(s, step->matmul, mine);
        }
        const persistent_matmul &p = step->matmul;
        const int row_bytes = (int)p.job.m[s.matrix].row_bytes, rows = p.rows[s.matrix], whole = p.whole[s.matrix];
        const bool ends = s.piece + 1 == p.pieces;
        const int bytes = ends ? p.rest[s.matrix] : whole;
        char *stage = ring + s.fetched % STAGES * STAGE;
        uint64_t *barrier = full + s.fetched % STAGES;
        barrier_expect(barrier, (uint32_t)(rows * bytes));
        if (row_bytes == whole && s.last >= rows - 1) { // rows that lie together come at once
            bulk_once(stage, s.at, (uint32_t)(rows * bytes), barrier);
        } else {
            const char *row = s.at; // beyond the last row that is there it comes again
            for (int i = 0; i < rows; i++) {
                bulk_once(stage, row, (uint32_t)bytes, barrier);
                stage += whole;
                if (i < s.last) row += row_bytes;
            }
        }
        s.fetched++;
        s.items--;
        s.piece++;
        s.at += ends ? p.to_next[s.matrix] : whole;
        if (!ends) continue;
        s.piece = 0;
        if (p.job.finish == GEMV_GLU) {
            const char *next = s.at;
            s.at = s.other;
            s.other = next;
            if (s.matrix) s.last -= rows;
            s.matrix ^= 1;
        } else if ((s.last -= rows) < 0 && s.items) {
            s.matrix++;
            s.at = p.job.m[s.matrix].w;
            s.last = p.job.m[s.matrix].rows - 1;
        }
    }
    kept = s;
}

#endif

#endif
