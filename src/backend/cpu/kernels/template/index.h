/* Scores of an indexer: a template over the vector type, included once per level after its vec.h.
 *
 * A tile of heads and cells shares the vectors that it loads. Every dot product has one vector of sums, so that its
 * bits do not depend on the tile that it is computed in. */
#include "backend/cpu/kernels/kernels.h"

enum { INDEX_HEADS = 4, INDEX_CELLS = VL > 8 ? 4 : 2 };

TN__VEC vf index_load(const float *p, int64_t n) { return n >= VL ? vf_load(p) : vf_load_n(p, n); }

/* heads and cells are constants where it is called. */
TN__VEC void index_tile(const tn__index_job *job, int64_t head, int64_t cell, int heads, int cells,
                        float dots[INDEX_HEADS][INDEX_CELLS]) {
    const float *q[INDEX_HEADS], *k[INDEX_CELLS];
    vf sums[INDEX_HEADS][INDEX_CELLS];
    for (int c = 0; c < cells; c++)
        k[c] = (const float *)(const void *)(job->keys + (size_t)(cell + c) * job->key_cell);
    for (int h = 0; h < heads; h++) {
        q[h] = (const float *)(const void *)((const char *)job->q + (size_t)(head + h) * job->q_head);
        for (int c = 0; c < cells; c++) sums[h][c] = vf_zero();
    }
    for (int64_t i = 0; i < job->size; i += VL) {
        vf keys[INDEX_CELLS];
        for (int c = 0; c < cells; c++) keys[c] = index_load(k[c] + i, job->size - i);
        for (int h = 0; h < heads; h++) {
            const vf x = index_load(q[h] + i, job->size - i);
            for (int c = 0; c < cells; c++) sums[h][c] = vf_fma(x, keys[c], sums[h][c]);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int c = 0; c < cells; c++) dots[h][c] = vf_sum(sums[h][c]);
}

/* All heads of some cells. */
TN__VEC void index_cells(const tn__index_job *job, int64_t cell, int cells) {
    float dots[INDEX_HEADS][INDEX_CELLS], scores[INDEX_CELLS] = {0};
    for (int64_t head = 0; head < job->heads; head += INDEX_HEADS) {
        const int n = job->heads - head < INDEX_HEADS ? (int)(job->heads - head) : INDEX_HEADS;
        if (n == INDEX_HEADS)
            index_tile(job, head, cell, INDEX_HEADS, cells, dots);
        else
            for (int h = 0; h < n; h++) index_tile(job, head + h, cell, 1, cells, dots + h);
        for (int h = 0; h < n; h++)
            for (int c = 0; c < cells; c++) {
                if (job->weights)
                    scores[c] += job->weights[head + h] * (dots[h][c] > 0 ? dots[h][c] : 0);
                else
                    job->out[(head + h) * job->out_list + cell + c] = dots[h][c];
            }
    }
    for (int c = 0; job->weights && c < cells; c++) job->out[cell + c] = scores[c];
}

static void index_scores(const tn__index_job *job) {
    int64_t cell = 0;
    for (; cell + INDEX_CELLS <= job->n; cell += INDEX_CELLS) index_cells(job, cell, INDEX_CELLS);
    for (; cell < job->n; cell++) index_cells(job, cell, 1);
}
