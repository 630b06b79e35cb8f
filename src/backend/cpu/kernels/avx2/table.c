/* The AVX2 entries of the kernel table, and the choice of path for a mat-mul. */
#include "backend/cpu/kernels/avx2/internal.h"

/* Above this many activation rows, panels of floats are faster than unpacking weights once per four rows. */
enum { FEW = 8 };

static tn__act_form matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how) {
    (void)repacked, (void)m, (void)k;
    if (n > FEW && !(how & TN__MATMUL_REPEATABLE)) return TN__ACT_F32;
    return tn__avx2_has_q8(type) && !(how & TN__MATMUL_PRECISE) ? TN__ACT_Q8 : TN__ACT_PLAIN;
}

static void matmul(const tn__matmul_job *job, int ith, int nth) {
    int64_t from, to;
    if (job->n > FEW && job->form != TN__ACT_Q8 && !job->repeatable) {
        tn__avx2_gemm_f32(job, ith, nth);
        return;
    }
    tn__share(job->m, 1, ith, nth, &from, &to);
    tn__gemv_blocks(job, from, to, job->form == TN__ACT_Q8 ? tn__avx2_gemv_q8 : tn__avx2_gemv_f32);
}

void tn__kernels_avx2(tn__cpu_kernels *table) {
    tn__avx2_rows(table);
    tn__avx2_recurrent(table);
    tn__avx2_index(table);
    tn__avx2_attention(table);
    table->matmul_form = matmul_form;
    table->act_prepare = tn__avx2_act_prepare;
    table->matmul = matmul;
}
