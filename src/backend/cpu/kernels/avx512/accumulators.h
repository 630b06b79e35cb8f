/* Accumulators of an AVX-512 GEMM tile, 32 weight rows × COLS activation rows: loaded from and stored to the output.
 * A template: the including file defines the constant COLS first. */
#include <immintrin.h>

#include "backend/cpu/kernels/avx512/internal.h"

typedef struct row_masks {
    __mmask16 a, b; /* of rows 0…15 and 16…31 of the tile that exist */
} row_masks;

static inline row_masks row_masks_at(const tn__matmul_job *job, int64_t row) {
    return (row_masks){tn__row_mask(job->m - row), tn__row_mask(job->m - row - 16)};
}

/* Zero for the first chunks of k, then the sums so far. */
static inline __attribute__((always_inline)) void load_accumulators(__m512 acc[2][COLS], float *const out[COLS],
                                                                    row_masks rows, bool first, const int cols) {
#pragma GCC unroll 12
    for (int j = 0; j < cols; j++) {
        acc[0][j] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows.a, out[j]);
        acc[1][j] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows.b, out[j] + 16);
    }
}

static inline __attribute__((always_inline)) void store_accumulators(__m512 acc[2][COLS], float *const out[COLS],
                                                                     row_masks rows, const int cols) {
    if ((rows.a & rows.b) == 0xffff) { /* the usual case; plain stores are cheaper than masked ones */
#pragma GCC unroll 12
        for (int j = 0; j < cols; j++) {
            _mm512_storeu_ps(out[j], acc[0][j]);
            _mm512_storeu_ps(out[j] + 16, acc[1][j]);
        }
        return;
    }
#pragma GCC unroll 12
    for (int j = 0; j < cols; j++) {
        _mm512_mask_storeu_ps(out[j], rows.a, acc[0][j]);
        _mm512_mask_storeu_ps(out[j] + 16, rows.b, acc[1][j]);
    }
}
