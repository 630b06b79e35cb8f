/* GEMM in f32 on fused multiply-adds, for float weights and for activations that must not be rounded.
 * A template over the vector type of the including file. Weights of any type are converted to panels of 256 values;
 * each panel is multiplied with all activation rows, TILE_COLS at a time. */
#include "backend/cpu/kernels/gemm_loop.h"
#include "backend/cpu/kernels/shared.h"
#include "backend/cpu/kernels/template/convert.h"
#include "backend/cpu/kernels/template/tile.h"

#include <string.h>

/* One weight row's values as floats. */
static void gemm_weights(const tn__matmul_job *job, int64_t row, int64_t c, int count, float *to) {
    uint8_t block[1024]; /* the largest: 256 floats */
    const void *from = block;
    if (job->repacked) {
        tn__repacked_read_chunk(job->type, job->k, job->w, row, c, block);
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
        transpose_rows(w, job->w_stride / sizeof(float), count, first, panel);
        return;
    }
#if defined(TN__FILL_REPACKED)
    if (job->repacked && (job->type == TN_F16 || job->type == TN_BF16)) {
        TN__FILL_REPACKED(job, row, c, count, first, panel);
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
    transpose_rows(rows[0], TN__CHUNK, count, first, panel);
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
                for (int q = 0; q < cols; q++) out[q] = tn__out_row(job, j + q) + row;
                tiles[cols - 1](panel, tn__f32_at(job, c, j), next, count, c > 0, out, job->m - row);
            }
        }
    }
}

static void gemm_f32(const tn__matmul_job *job, int ith, int nth) {
    /* 512 activation rows are 512 KiB of floats per chunk. */
    const tn__gemm_shape shape = {.rows = TILE_ROWS, .share_cols = 4 * TILE_COLS, .panels = 4, .wide = 512};
    tn__gemm_loop(job, shape, gemm_rectangle, ith, nth);
}
