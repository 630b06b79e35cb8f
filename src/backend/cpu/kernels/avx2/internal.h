/* What the AVX2 files know of each other. */
#ifndef TN_AVX2_INTERNAL_H
#define TN_AVX2_INTERNAL_H

#include "backend/cpu/kernels/generic/internal.h"

void tn__avx2_rows(tn__cpu_kernels *table);
void tn__avx2_attention(tn__cpu_kernels *table);
void tn__avx2_gemm_f32(const tn__matmul_job *job, int ith, int nth);

#endif
