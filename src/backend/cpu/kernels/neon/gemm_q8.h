/* GEMM of block-quantized weights on ARM, a template. The including file defines the layout of a panel's codes
 * (PANEL_CODE) and the multiplication of 16 values of 8 rows × 4 columns (SUB_BLOCK).
 *
 * Panels are 8 rows × 256 values of signed bytes with scales per 16. They are multiplied with four activation rows at
 * a time; after every 16 values the integer sums are scaled and added in f32, in the order of k. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels/gemm_loop.h"
#include "backend/cpu/kernels/neon/internal.h"

enum { ROWS = 8, COLS = 4 };

typedef struct panel8 {
    int8_t code[16][8 * 16];         /* per 16 values: see PANEL_CODE */
    float scale[16][8], less[16][8]; /* per 16 values, of 8 rows */
} panel8;

static void panel_fill(const tn__matmul_job *job, int64_t row, int64_t c, panel8 *p) {
    tn__row256 w;
    for (int i = 0; i < ROWS; i++) {
        if (row + i < job->m) {
            tn__neon_row256(job, row + i, c, &w);
        } else {
            memset(&w, 0, sizeof w);
        }
        for (int s = 0; s < 16; s++) {
            PANEL_CODE(p->code[s], i, w.code + 16 * s);
            p->scale[s][i] = w.scale[s];
            p->less[s][i] = w.less[s];
        }
    }
}

/* sums[j][h]: rows 4h…4h+3 of column j. */
static inline __attribute__((always_inline)) void kernel(const panel8 *p, const tn__q8_chunk *x, int subs,
                                                         bool minimum, float32x4_t sums[COLS][2], const int cols) {
    for (int s = 0; s < subs; s++) {
        int32x4_t dot[COLS][2];
        SUB_BLOCK(p->code[s], x, 16 * s, dot, cols);
        for (int h = 0; h < 2; h++) {
            float32x4_t scale = vld1q_f32(p->scale[s] + 4 * h);
            for (int j = 0; j < cols; j++)
                sums[j][h] = vfmaq_f32(sums[j][h], vcvtq_f32_s32(dot[j][h]), vmulq_n_f32(scale, x[j].d[s / 2]));
            if (minimum) {
                float32x4_t less = vld1q_f32(p->less[s] + 4 * h);
                for (int j = 0; j < cols; j++) sums[j][h] = vfmsq_n_f32(sums[j][h], less, x[j].ds16[s]);
            }
        }
    }
}

static inline __attribute__((always_inline)) void tile(const tn__matmul_job *job, const panel8 *p, int64_t row,
                                                       int64_t c, int64_t j, int subs, bool minimum, const int cols) {
    float32x4_t sums[COLS][2];
    float rows[ROWS];
    int64_t count = job->m - row < ROWS ? job->m - row : ROWS;
    for (int q = 0; q < cols; q++) {
        const float *from = tn__out_row(job, j + q) + row;
        for (int i = 0; i < ROWS; i++) rows[i] = c > 0 && i < count ? from[i] : 0;
        sums[q][0] = vld1q_f32(rows);
        sums[q][1] = vld1q_f32(rows + 4);
    }
    kernel(p, tn__q8_at(job, c, j), subs, minimum, sums, cols);
    for (int q = 0; q < cols; q++) {
        vst1q_f32(rows, sums[q][0]);
        vst1q_f32(rows + 4, sums[q][1]);
        memcpy(tn__out_row(job, j + q) + row, rows, (size_t)count * sizeof(float));
    }
}

static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    bool minimum = tn__neon_minimum(job->type);
    panel8 panel;
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++) {
        int64_t left = job->k - c * TN__CHUNK;
        int subs = (int)(left < TN__CHUNK ? left / 16 : 16);
        for (int64_t p = from; p < to; p++) {
            int64_t row = p * ROWS, j = col_from;
            panel_fill(job, row, c, &panel);
            for (; j + 4 <= col_to; j += 4) tile(job, &panel, row, c, j, subs, minimum, 4);
            if (col_to - j == 3) tile(job, &panel, row, c, j, subs, minimum, 3);
            if (col_to - j == 2) tile(job, &panel, row, c, j, subs, minimum, 2);
            if (col_to - j == 1) tile(job, &panel, row, c, j, subs, minimum, 1);
        }
    }
}

static void gemm_q8(const tn__matmul_job *job, int ith, int nth) {
    const tn__gemm_shape shape = {.rows = ROWS, .share_cols = 8 * COLS, .panels = 8, .wide = 512};
    tn__gemm_loop(job, shape, rectangle, ith, nth);
}
