/* GEMM in f32 with AVX2: the template with this level's vectors. */
#include "backend/cpu/kernels/avx2/vec.h"

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/template/gemm_f32.h"

void tn__avx2_gemm_f32(const tn__matmul_job *job, int ith, int nth) { gemm_f32(job, ith, nth); }
