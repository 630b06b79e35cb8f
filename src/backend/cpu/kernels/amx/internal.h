/* Functions shared by the AMX files. */
#ifndef TN_AMX_INTERNAL_H
#define TN_AMX_INTERNAL_H

#include "backend/cpu/kernels/avx512/internal.h"

extern const tn__gemv tn__amx_gemv;
size_t tn__amx_scratch(tn__act_form form, int64_t n, int64_t k);
void tn__amx_gemm(const tn__matmul_job *job, int ith, int nth);
void tn__amx_attention(tn__cpu_kernels *table);

#endif
