/* GEMM in f32 with AVX-512: the template with this level's vectors, and a direct path for repacked half floats. */
#include "backend/cpu/kernels/avx512/vec.h"

#include "backend/cpu/kernels/avx512/internal.h"

/* A vector of f16x16 or bf16x16 holds two neighbours of 16 rows; split, it gives two columns of the panel. */
static void fill_repacked(const tn__matmul_job *job, int64_t row, int64_t c, int count, int first, float *panel) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const uint16_t *w =
        (const uint16_t *)((const char *)job->w + (size_t)(row / 16) * tn__repacked_group_bytes(job->type, job->k)) +
        c * TN__CHUNK * 16;
    if (row >= job->m) { /* past the last group */
        for (int l = 0; l < count; l++) vf_store(panel + l * 32 + first, vf_zero());
        return;
    }
    for (int l = 0; l < count; l += 2, w += 32) { /* k is even */
        vf a = job->type == TN_F16 ? vf_load_f16(w) : vf_load_bf16(w);
        vf b = job->type == TN_F16 ? vf_load_f16(w + 16) : vf_load_bf16(w + 16);
        vf_store(panel + l * 32 + first, _mm512_permutex2var_ps(a, even, b));
        vf_store(panel + (l + 1) * 32 + first, _mm512_permutex2var_ps(a, odd, b));
    }
}
#define TN__FILL_REPACKED fill_repacked
#include "backend/cpu/kernels/template/gemm_f32.h"

void tn__avx512_gemm_f32(const tn__matmul_job *job, int ith, int nth) { gemm_f32(job, ith, nth); }
