/* What AVX2 puts into the table, and which path a mat-mul takes. */
#include "backend/cpu/kernels/avx2/internal.h"

static tn__act_form matmul_form(tn_type type, bool packed, int64_t m, int64_t n, int64_t k, bool precise) {
    (void)type, (void)packed, (void)m, (void)k, (void)precise;
    return n == 1 ? TN__ACT_PLAIN : TN__ACT_F32;
}

void tn__kernels_avx2(tn__cpu_kernels *table) {
    tn__avx2_rows(table);
    tn__avx2_attention(table);
    table->matmul_form = matmul_form;
    table->matmul = tn__avx2_gemm_f32;
}
