/* The AMX entries of the kernel table: tiles for more than a few activation rows and for the attention of prompts,
 * AVX-512 for the rest. */
#include "backend/cpu/kernels/amx/internal.h"
#include "backend/cpu/kernels/avx512/internal.h"

/* Up to this many activation rows, building bfloat16 panels costs more than tiles save. */
enum { FEW = 32 };

static tn__act_form matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how) {
    if (n > FEW && type != TN_F32 && type != TN_F16 && !how) return TN__ACT_TILES;
    return tn__avx512_matmul_form(type, repacked, m, n, k, how);
}

static void matmul(const tn__matmul_job *job, int ith, int nth) {
    if (job->form == TN__ACT_TILES) {
        tn__amx_gemm(job, ith, nth);
    } else {
        tn__avx512_matmul_with(&tn__amx_gemv, job, ith, nth);
    }
}

void tn__kernels_amx(tn__cpu_kernels *table) {
    table->matmul_form = matmul_form;
    table->matmul_scratch = tn__amx_scratch;
    table->matmul = matmul;
    tn__amx_attention(table);
}
