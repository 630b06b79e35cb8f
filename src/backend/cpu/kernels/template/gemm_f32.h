/* Many activation rows in f32, for any vector vocabulary: GEMM on fused multiply-adds, for float weights and wherever
 * activations must not be rounded. Weights of any type become panels of 256 values, columns pass by in tiles. */
#include "backend/cpu/kernels/generic/internal.h"
#include "backend/cpu/kernels/grid.h"
#include "backend/cpu/kernels/template/convert.h"
#include "backend/cpu/kernels/template/tile.h"

#include <string.h>

enum {
    GEMM_PANELS = 4, /* panels that take turns on the same activations while those are in the second level cache */
    GEMM_WIDE = 512, /* activation rows per pass: 512 KiB of floats */
    GEMM_DEAL = 4 * TILE_COLS,
};

static const float *gemm_x(const tn__matmul_job *job, int64_t c, int64_t j) {
    if (job->form == TN__ACT_PLAIN)
        return (const float *)((const char *)job->x + (size_t)j * job->x_stride) + c * TN__CHUNK;
    return (const float *)job->x + (c * job->x_rows + job->x_first + j) * TN__CHUNK;
}

/* One row's values as floats. */
static void gemm_weights(const tn__matmul_job *job, int64_t row, int64_t c, int count, float *to) {
    uint8_t block[1024]; /* the largest: 256 floats */
    const void *from = block;
    if (job->packed) {
        tn__unpack_chunk(job->type, job->k, job->w, row, c, block);
    } else {
        size_t before = (size_t)(c * TN__CHUNK / tn__block_of(job->type)) * (size_t)tn__bytes_of(job->type);
        from = (const uint8_t *)job->w + (size_t)row * job->w_stride + before;
    }
    row_to_f32(job->type, from, to, count);
}

/* Values [256·c, +count) of VL weight rows, zero past the last row, as columns `first`… of the panel. */
static void gemm_fill(const tn__matmul_job *job, int64_t row, int64_t c, int count, int first, float *panel) {
    if (job->type == TN_F32 && job->m - row >= VL && job->w_stride % sizeof(float) == 0) { /* no copy needed */
        const float *w = (const float *)((const char *)job->w + (size_t)row * job->w_stride) + c * TN__CHUNK;
        turn_rows(w, job->w_stride / sizeof(float), count, first, panel);
        return;
    }
#if defined(TN__FILL_PACKED)
    if (job->packed && (job->type == TN_F16 || job->type == TN_BF16)) {
        TN__FILL_PACKED(job, row, c, count, first, panel);
        return;
    }
#endif
    float rows[VL][TN__CHUNK];
    for (int i = 0; i < VL; i++) {
        if (row + i < job->m) {
            gemm_weights(job, row + i, c, count, rows[i]);
        } else {
            memset(rows[i], 0, (size_t)count * sizeof(float));
        }
    }
    turn_rows(rows[0], TN__CHUNK, count, first, panel);
}

static void gemm_rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    _Alignas(64) float panel[TN__CHUNK * TILE_ROWS];
    size_t next = job->form == TN__ACT_PLAIN ? job->x_stride / sizeof(float) : TN__CHUNK;
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++) {
        int64_t left = job->k - c * TN__CHUNK;
        int count = (int)(left < TN__CHUNK ? left : TN__CHUNK);
        for (int64_t p = from; p < to; p++) {
            int64_t row = p * TILE_ROWS;
            gemm_fill(job, row, c, count, 0, panel);
            gemm_fill(job, row + VL, c, count, VL, panel);
            for (int64_t j = col_from; j < col_to; j += TILE_COLS) {
                int cols = (int)(col_to - j < TILE_COLS ? col_to - j : TILE_COLS);
                float *out[TILE_COLS];
                for (int q = 0; q < cols; q++) {
                    int64_t at = job->scatter ? job->scatter[j + q] : j + q;
                    out[q] = (float *)((char *)job->out + (size_t)at * job->out_stride) + row;
                }
                tiles[cols - 1](panel, gemm_x(job, c, j), next, count, c > 0, out, job->m - row);
            }
        }
    }
}

static void gemm_f32(const tn__matmul_job *job, int ith, int nth) {
    tn__rect rect[3];
    int count = tn__grid_share((job->m + TILE_ROWS - 1) / TILE_ROWS, job->n, GEMM_DEAL, ith, nth, rect);
    for (int i = 0; i < count; i++) {
        for (int64_t j = rect[i].col_from; j < rect[i].col_to; j += GEMM_WIDE) {
            int64_t j_to = rect[i].col_to - j < GEMM_WIDE ? rect[i].col_to : j + GEMM_WIDE;
            for (int64_t p = rect[i].panel_from; p < rect[i].panel_to; p += GEMM_PANELS) {
                int64_t p_to = rect[i].panel_to - p < GEMM_PANELS ? rect[i].panel_to : p + GEMM_PANELS;
                gemm_rectangle(job, p, p_to, j, j_to);
            }
        }
    }
}
