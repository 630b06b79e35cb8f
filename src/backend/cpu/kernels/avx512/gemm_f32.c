/* Many activation rows in f32: GEMM on fused multiply-adds, for float weights and wherever activations must not be
 * rounded. Weights of any type become panels of 32 rows × 256 floats, 12 activation rows pass by at a time. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/avx512/transpose.h"
#include "backend/cpu/kernels/generic/grid.h"

enum { ROWS = 32, COLS = 12, PANELS = 4, WIDE = 512, DEAL = 4 * COLS };

typedef struct panel32 {
    float value[TN__CHUNK][ROWS];
} panel32;

/* Values [256·c, +256) of 16 rows, zero past the end, turned into columns `first`…`first`+15 of the panel. */
static void fill(const tn__matmul_job *job, int64_t row, int64_t c, int first, panel32 *p) {
    float rows[16][TN__CHUNK];
    int64_t left = job->k - c * TN__CHUNK, count = left < TN__CHUNK ? left : TN__CHUNK;
    const char *from[16];
    size_t stride = sizeof rows[0];
    if (job->type == TN_F32 && count == TN__CHUNK && job->m - row >= 16) { /* no copy needed */
        stride = job->w_stride;
        from[0] = (const char *)job->w + (size_t)row * stride + (size_t)c * sizeof rows[0];
    } else {
        for (int i = 0; i < 16; i++) {
            if (row + i < job->m)
                tn__weights_f32(job, row + i, c, count, rows[i]);
            else
                memset(rows[i], 0, sizeof rows[i]);
            if (count < TN__CHUNK) memset(rows[i] + count, 0, (size_t)(TN__CHUNK - count) * sizeof(float));
        }
        from[0] = (const char *)rows;
    }
    for (int i = 1; i < 16; i++) from[i] = from[i - 1] + stride;
    for (int l = 0; l < TN__CHUNK; l += 16) {
        __m512i r[16];
        for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from[i] + 4 * l);
        tn__transpose16(r);
        for (int i = 0; i < 16; i++) _mm512_store_si512(p->value[l + i] + first, r[i]);
    }
}

static inline __attribute__((always_inline)) void kernel(const panel32 *p, const float *x, size_t x_next, int count,
                                                         bool first, float *const out[COLS], __mmask16 rows_a,
                                                         __mmask16 rows_b, const int cols) {
    __m512 acc[2][COLS];
#pragma GCC unroll 12
    for (int j = 0; j < cols; j++) {
        acc[0][j] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows_a, out[j]);
        acc[1][j] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows_b, out[j] + 16);
    }
    for (int l = 0; l < count; l++) {
        __m512 a = _mm512_load_ps(p->value[l]), b = _mm512_load_ps(p->value[l] + 16);
#pragma GCC unroll 12
        for (int j = 0; j < cols; j++) {
            __m512 v = _mm512_set1_ps(x[(size_t)j * x_next + (size_t)l]);
            acc[0][j] = _mm512_fmadd_ps(a, v, acc[0][j]);
            acc[1][j] = _mm512_fmadd_ps(b, v, acc[1][j]);
        }
    }
#pragma GCC unroll 12
    for (int j = 0; j < cols; j++) {
        _mm512_mask_storeu_ps(out[j], rows_a, acc[0][j]);
        _mm512_mask_storeu_ps(out[j] + 16, rows_b, acc[1][j]);
    }
}

/* In the prepared form the next activation row is one chunk away. */
#define KERNEL(cols)                                                                                                 \
    static void kernel_##cols(const panel32 *p, const float *x, int count, bool first, float *const out[COLS],       \
                              __mmask16 rows_a, __mmask16 rows_b) {                                                  \
        kernel(p, x, TN__CHUNK, count, first, out, rows_a, rows_b, cols);                                            \
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
static void (*const kernels[COLS])(const panel32 *, const float *, int, bool, float *const *, __mmask16,
                                   __mmask16) = {kernel_1, kernel_2, kernel_3, kernel_4,  kernel_5,  kernel_6,
                                                 kernel_7, kernel_8, kernel_9, kernel_10, kernel_11, kernel_12};

static __mmask16 rows_from(int64_t left) {
    return left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

static void rectangle(const tn__matmul_job *job, int64_t from, int64_t to, int64_t col_from, int64_t col_to) {
    _Alignas(64) panel32 panel;
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++) {
        int64_t left = job->k - c * TN__CHUNK;
        int count = (int)(left < TN__CHUNK ? left : TN__CHUNK);
        for (int64_t p = from; p < to; p++) {
            int64_t row = p * ROWS;
            __mmask16 rows_a = rows_from(job->m - row), rows_b = rows_from(job->m - row - 16);
            fill(job, row, c, 0, &panel);
            fill(job, row + 16, c, 16, &panel);
            for (int64_t j = col_from; j < col_to; j += COLS) {
                int cols = (int)(col_to - j < COLS ? col_to - j : COLS);
                float *out[COLS];
                for (int q = 0; q < cols; q++) out[q] = tn__out_row(job, j + q) + row;
                kernels[cols - 1](&panel, tn__f32_at(job, c, j), count, c == 0, out, rows_a, rows_b);
            }
        }
    }
}

void tn__avx512_gemm_f32(const tn__matmul_job *job, int ith, int nth) {
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
