/* Mat-mul of few activation rows in f32 with AVX2: the template with this level's vectors. */
#include "backend/cpu/kernels/avx2/vec.h"

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/template/gemv_f32.h"

void tn__avx2_gemv_f32(const tn__matmul_job *job, int64_t from, int64_t to) { gemv_f32(job, from, to); }
