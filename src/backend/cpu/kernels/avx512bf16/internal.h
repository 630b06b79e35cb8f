/* Weights as bfloat16 panels: what the AVX-512 BF16 and the AMX kernels multiply with. */
#ifndef TN_AVX512BF16_INTERNAL_H
#define TN_AVX512BF16_INTERNAL_H

#include "backend/cpu/kernels/avx512/internal.h"

/* 16 rows × 256 values: pairs of neighbours of 16 rows per vector, which is also how a tile wants them. */
typedef struct tn__panel_bf16 {
    uint16_t value[TN__CHUNK / 2][16][2];
} tn__panel_bf16;

/* Fills rows [row, row+16) of chunk c, any type; rows and values past the end are zero. */
void tn__bf16_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel_bf16 *panel);

void tn__avx512bf16_gemm(const tn__matmul_job *job, int ith, int nth);

static inline const uint16_t *tn__bf16_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    return (const uint16_t *)job->x + (c * job->x_rows + job->x_first + j) * TN__CHUNK;
}

#endif
