/* The NEON entries of the kernel table, and the choice of path for a mat-mul. */
#include "backend/cpu/kernels/neon/internal.h"

tn__act_form tn__neon_matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how) {
    (void)repacked, (void)m, (void)k;
    if (tn__neon_has_q8(type) && !(how & TN__MATMUL_PRECISE)) return TN__ACT_Q8;
    return n > TN__NEON_FEW && !(how & TN__MATMUL_REPEATABLE) ? TN__ACT_F32 : TN__ACT_PLAIN;
}

void tn__neon_matmul(const tn__matmul_job *job, int ith, int nth) {
    int64_t from, to;
    if (job->n > TN__NEON_FEW && !job->repeatable) {
        (job->form == TN__ACT_Q8 ? tn__neon_gemm_q8 : tn__neon_gemm_f32)(job, ith, nth);
        return;
    }
    tn__share(job->m, 1, ith, nth, &from, &to);
    tn__gemv_blocks(job, from, to, job->form == TN__ACT_Q8 ? tn__neon_gemv_q8 : tn__neon_gemv_f32);
}

void tn__kernels_neon(tn__cpu_kernels *table) {
    tn__neon_rows(table);
    tn__neon_recurrent(table);
    tn__neon_index(table);
    tn__neon_attention(table);
    table->matmul_form = tn__neon_matmul_form;
    table->matmul = tn__neon_matmul;
}
