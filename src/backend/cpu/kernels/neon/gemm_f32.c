/* GEMM in f32 with NEON: the template with this level's vectors. */
#include "backend/cpu/kernels/neon/vec.h"

#include "backend/cpu/kernels/neon/internal.h"
#include "backend/cpu/kernels/template/gemm_f32.h"

void tn__neon_gemm_f32(const tn__matmul_job *job, int ith, int nth) { gemm_f32(job, ith, nth); }
