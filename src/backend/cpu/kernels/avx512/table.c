/* The AVX-512 entries of the kernel table, and the choice of path for a mat-mul. */
#include "backend/cpu/kernels/avx512/internal.h"

static bool is_float(tn_type type) { return type == TN_F32 || type == TN_F16 || type == TN_BF16; }

tn__act_form tn__avx512_matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how) {
    (void)repacked, (void)m, (void)k;
    if (is_float(type)) return n <= TN__AVX512_FEW_FLOAT || how & TN__MATMUL_REPEATABLE ? TN__ACT_PLAIN : TN__ACT_F32;
    return how & TN__MATMUL_PRECISE ? TN__ACT_F32 : TN__ACT_Q8;
}

/* Up to this many activation rows, weights are unpacked in registers instead of panels. */
static int64_t few_rows(const tn__gemv *gemv, const tn__matmul_job *job) {
    if (job->form != TN__ACT_Q8) return TN__AVX512_FEW_FLOAT;
    if (!job->repacked) return TN__AVX512_FEW_Q8;
    return job->type == TN_Q4_0 || job->type == TN_Q4_K ? gemv->few_nibbles : TN__AVX512_FEW_REPACKED;
}

void tn__avx512_matmul_with(const tn__gemv *gemv, const tn__matmul_job *job, int ith, int nth) {
    int64_t from, to;
    bool few = job->n <= few_rows(gemv, job);
    if (job->repeatable) few = is_float(job->type) || (few && job->repacked);
    if (few && (job->form == TN__ACT_Q8 || is_float(job->type))) {
        tn__share(job->m, job->repacked ? 16 : 1, ith, nth, &from, &to);
        if (job->form != TN__ACT_Q8) {
            tn__gemv_blocks(job, from, to, gemv->floats);
        } else if (job->repacked) {
            gemv->q8_repacked(job, from, to);
        } else {
            gemv->q8(job, from, to);
        }
    } else if (job->form == TN__ACT_Q8) {
        tn__avx512_gemm_q8(job, ith, nth);
    } else {
        tn__avx512_gemm_f32(job, ith, nth);
    }
}

void tn__avx512_matmul(const tn__matmul_job *job, int ith, int nth) {
    tn__avx512_matmul_with(&tn__avx512_gemv, job, ith, nth);
}

void tn__kernels_avx512(tn__cpu_kernels *table) {
    tn__avx512_rows(table);
    tn__avx512_recurrent(table);
    tn__avx512_index(table);
    tn__avx512_attention(table);
    table->matmul_form = tn__avx512_matmul_form;
    table->act_prepare = tn__avx512_act_prepare;
    table->can_repack = tn__can_repack;
    table->repack = tn__avx512_repack;
    table->matmul = tn__avx512_matmul;
}
