/* What the AMX files know of each other. */
#ifndef TN_AMX_INTERNAL_H
#define TN_AMX_INTERNAL_H

#include "backend/cpu/kernels/generic/internal.h"

void tn__amx_gemm(const tn__matmul_job *job, int ith, int nth);

#endif
