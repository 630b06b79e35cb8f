/* Weights as bfloat16 panels, for the AVX-512 BF16 and the AMX kernels. */
#ifndef TN_AVX512BF16_INTERNAL_H
#define TN_AVX512BF16_INTERNAL_H

#include "backend/cpu/kernels/avx512/internal.h"

/* 16 rows × 256 values. A vector holds two neighbours of 16 rows, which is also the layout of an AMX tile. */
typedef struct tn__panel_bf16 {
    uint16_t value[TN__CHUNK / 2][16][2];
} tn__panel_bf16;

/* Fills rows [row, row+16) of chunk c, any type; rows and values past the end are zero. */
void tn__bf16_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel_bf16 *panel);

/* One tile of a panel: values [32·unit, +32) of a group of repacked rows. NULL for types without blocks. */
typedef void tn__bf16_tile_fn(const uint8_t *group, int64_t unit, uint16_t (*out)[16][2]);
tn__bf16_tile_fn *tn__bf16_tile_of(tn_type type);
/* The same tile from rows of f16, bf16 or f32 that are not repacked; zero past the end. */
void tn__bf16_rows_tile(const tn__matmul_job *job, int64_t row, int64_t unit, uint16_t (*out)[16][2]);

void tn__avx512bf16_gemm(const tn__matmul_job *job, int ith, int nth);

#endif
