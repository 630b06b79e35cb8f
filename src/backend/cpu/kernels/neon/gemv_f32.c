/* Mat-mul of few activation rows in f32 with NEON: the template with this level's vectors. */
#include "backend/cpu/kernels/neon/vec.h"

#include "backend/cpu/kernels/neon/internal.h"
#include "backend/cpu/kernels/template/gemv_f32.h"

void tn__neon_gemv_f32(const tn__matmul_job *job, int64_t from, int64_t to) { gemv_f32(job, from, to); }
