/* GEMM in f32 with AVX-512: the template with this level's vectors. */
#include "backend/cpu/kernels/avx512/vec.h"

#include "backend/cpu/kernels/avx512/internal.h"
#include "backend/cpu/kernels/template/gemm_f32.h"

void tn__avx512_gemm_f32(const tn__matmul_job *job, int ith, int nth) { gemm_f32(job, ith, nth); }
