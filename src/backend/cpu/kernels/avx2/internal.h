/* Functions shared by the AVX2 files. */
#ifndef TN_AVX2_INTERNAL_H
#define TN_AVX2_INTERNAL_H

#include "backend/cpu/kernels/shared.h"

void tn__avx2_act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                          int64_t k, void *data, int ith, int nth);
void tn__avx2_rows(tn__cpu_kernels *table);
void tn__avx2_recurrent(tn__cpu_kernels *table);
void tn__avx2_index(tn__cpu_kernels *table);
void tn__avx2_attention(tn__cpu_kernels *table);
/* GEMM for many activation rows; GEMV for few of them on weight rows [from, to). gemv_q8: types of tn__avx2_has_q8.
 */
void tn__avx2_gemm_f32(const tn__matmul_job *job, int ith, int nth);
void tn__avx2_gemv_f32(const tn__matmul_job *job, int64_t from, int64_t to);
void tn__avx2_gemv_q8(const tn__matmul_job *job, int64_t from, int64_t to);
bool tn__avx2_has_q8(tn_type type);

#endif
