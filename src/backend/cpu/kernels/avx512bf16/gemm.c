/* GEMM of bfloat16 weights on the bfloat16 dot-product instruction, which adds two products per lane.
 * The tile has the shape of the f32 tile: 32 weight rows × 12 activation rows in 24 registers. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512bf16/internal.h"
#include "backend/cpu/kernels/gemm_loop.h"

enum { ROWS = 32, COLS = 12 };
#include "backend/cpu/kernels/avx512/accumulators.h"

static inline __attribute__((always_inline)) void kernel(const tn__panel_bf16 panel[2], const uint16_t *x, int pairs,
                                                         bool first, float *const out[COLS], row_masks rows,
                                                         const int cols) {
    __m512 acc[2][COLS];
    load_accumulators(acc, out, rows, first, cols);
    for (int l = 0; l < pairs; l++) {
        __m512bh a = (__m512bh)_mm512_load_si512(panel[0].value[l]),
                 b = (__m512bh)_mm512_load_si512(panel[1].value[l]);
#pragma GCC unroll 12
        for (int j = 0; j < cols; j++) {
            int two;
            memcpy(&two, x + (size_t)j * TN__CHUNK + 2 * l, 4);
            __m512bh v = (__m512bh)_mm512_set1_epi32(two);
            acc[0][j] = _mm512_dpbf16_ps(acc[0][j], a, v);
            acc[1][j] = _mm512_dpbf16_ps(acc[1][j], b, v);
        }
    }
    store_accumulators(acc, out, rows, cols);
}

typedef void kernel_fn(const tn__panel_bf16 panel[2], const uint16_t *x, int pairs, bool first,
                       float *const out[COLS], row_masks rows);
#define KERNEL(cols)                                                                                                 \
    static void kernel_##cols(const tn__panel_bf16 panel[2], const uint16_t *x, int pairs, bool first,               \
                              float *const out[COLS], row_masks rows) {                                              \
        kernel(panel, x, pairs, first, out, rows, cols);                                                             \
    }
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
KERNEL(9)
KERNEL(10)
KERNEL(11)
KERNEL(12)
static kernel_fn *const kernels[COLS] = {kernel_1, kernel_2, kernel_3, kernel_4,  kernel_5,  kernel_6,
                                         kernel_7, kernel_8, kernel_9, kernel_10, kernel_11, kernel_12};

static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    _Alignas(64) tn__panel_bf16 panel[2];
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++) {
        int64_t left = job->k - c * TN__CHUNK;
        int pairs = (int)((left < TN__CHUNK ? left : TN__CHUNK) + 1) / 2;
        for (int64_t p = from; p < to; p++) {
            int64_t row = p * ROWS;
            const row_masks rows = row_masks_at(job, row);
            tn__bf16_panel(job, row, c, &panel[0]);
            if (rows.b)
                tn__bf16_panel(job, row + 16, c, &panel[1]);
            else
                panel[1] = panel[0]; /* its results are not stored */
            for (int64_t j = col_from; j < col_to; j += COLS) {
                int cols = (int)(col_to - j < COLS ? col_to - j : COLS);
                float *out[COLS];
                for (int q = 0; q < cols; q++) out[q] = tn__out_row(job, j + q) + row;
                kernels[cols - 1](panel, tn__bf16_at(job, c, j), pairs, c == 0, out, rows);
            }
        }
    }
}

void tn__avx512bf16_gemm(const tn__matmul_job *job, int ith, int nth) {
    const tn__gemm_shape shape = {.rows = ROWS, .share_cols = 4 * COLS, .panels = 4, .wide = 512};
    tn__gemm_loop(job, shape, rectangle, ith, nth);
}
