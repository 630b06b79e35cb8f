/* Many activation rows, block weights, on ARM: the frame of the eight-bit GEMM. A kernel is given by how a panel's
 * codes lie (PANEL_CODE) and how 16 values of 8 rows × 4 columns are multiplied (SUB_BLOCK). Included once per
 * kernel.
 *
 * Panels are 8 rows × 256 values of signed bytes with scales per 16. Four activation rows pass by at a time; after
 * every 16 values the integer sums are scaled and added in f32, in the order of k. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels/grid.h"
#include "backend/cpu/kernels/neon/internal.h"

enum { ROWS = 8, COLS = 4, PANELS = 8, WIDE = 512, DEAL = 8 * COLS };

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
        const float *from = tn__neon_out(job, j + q) + row;
        for (int i = 0; i < ROWS; i++) rows[i] = c > 0 && i < count ? from[i] : 0;
        sums[q][0] = vld1q_f32(rows);
        sums[q][1] = vld1q_f32(rows + 4);
    }
    kernel(p, tn__neon_q8_at(job, c, j), subs, minimum, sums, cols);
    for (int q = 0; q < cols; q++) {
        vst1q_f32(rows, sums[q][0]);
        vst1q_f32(rows + 4, sums[q][1]);
        memcpy(tn__neon_out(job, j + q) + row, rows, (size_t)count * sizeof(float));
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
    tn__rect rect[3];
    int count = tn__grid_share((job->m + ROWS - 1) / ROWS, job->n, DEAL, ith, nth, rect);
    for (int i = 0; i < count; i++) {
        for (int64_t j = rect[i].col_from; j < rect[i].col_to; j += WIDE) {
            int64_t j_to = rect[i].col_to - j < WIDE ? rect[i].col_to : j + WIDE;
            for (int64_t p = rect[i].panel_from; p < rect[i].panel_to; p += PANELS) {
                int64_t p_to = rect[i].panel_to - p < PANELS ? rect[i].panel_to : p + PANELS;
                rectangle(job, p, p_to, j, j_to);
            }
        }
    }
}
