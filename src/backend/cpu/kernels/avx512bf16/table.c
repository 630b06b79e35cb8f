/* The AVX-512 BF16 entries of the kernel table: bfloat16 weights times bfloat16 activations. */
#include "backend/cpu/kernels/avx512bf16/internal.h"

static tn__act_form matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how) {
    if (type == TN_BF16 && n > TN__AVX512_FEW_FLOAT && !how) return TN__ACT_BF16;
    return tn__avx512_matmul_form(type, repacked, m, n, k, how);
}

static void matmul(const tn__matmul_job *job, int ith, int nth) {
    if (job->form == TN__ACT_BF16) {
        tn__avx512bf16_gemm(job, ith, nth);
    } else {
        tn__avx512_matmul(job, ith, nth);
    }
}

void tn__kernels_avx512bf16(tn__cpu_kernels *table) {
    table->matmul_form = matmul_form;
    table->matmul = matmul;
}
