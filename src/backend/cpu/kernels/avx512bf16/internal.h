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

/* One tile of a panel, 32 values of a group of packed rows: values [32·unit, +32). NULL for types that are not
 * blocks. */
typedef void tn__bf16_tile_fn(const uint8_t *group, int64_t unit, uint16_t (*out)[16][2]);
tn__bf16_tile_fn *tn__bf16_tile_of(tn_type type);
/* The same of rows of half floats or floats that are not packed; what is past the end is zero. */
void tn__bf16_rows_tile(const tn__matmul_job *job, int64_t row, int64_t unit, uint16_t (*out)[16][2]);

void tn__avx512bf16_gemm(const tn__matmul_job *job, int ith, int nth);

static inline const uint16_t *tn__bf16_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    return (const uint16_t *)job->x + (c * job->x_rows + job->x_first + j) * TN__CHUNK;
}

#endif
