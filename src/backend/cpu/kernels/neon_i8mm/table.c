/* GEMM on the eight-bit matrix instruction, which multiplies 2×8 by 8×2 values: twice the work of a dot product. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

/* Eight neighbours of two rows per vector: vectors 2p and 2p+1 are rows 2p and 2p+1, first and last eight values. */
static inline void panel_code(int8_t *panel, int row, const int8_t *code) {
    for (int q = 0; q < 2; q++) memcpy(panel + 32 * (row / 2) + 16 * q + 8 * (row % 2), code + 8 * q, 8);
}
#define PANEL_CODE panel_code
/* The result of a row pair and a column pair is (r0c0, r0c1, r1c0, r1c1); an absent column is computed as zero. */
#define SUB_BLOCK(codes, x, at, dot, cols)                                                                           \
    do {                                                                                                             \
        int8x16_t v[COLS];                                                                                           \
        for (int j_ = 0; j_ < COLS; j_++) v[j_] = j_ < (cols) ? vld1q_s8((x)[j_].qs + (at)) : vdupq_n_s8(0);         \
        int32x4_t pair[4][2];                                                                                        \
        for (int c_ = 0; c_ < 2; c_++) {                                                                             \
            int64x2_t a = vreinterpretq_s64_s8(v[2 * c_]), b = vreinterpretq_s64_s8(v[2 * c_ + 1]);                  \
            int8x16_t first = vreinterpretq_s8_s64(vzip1q_s64(a, b)), last = vreinterpretq_s8_s64(vzip2q_s64(a, b)); \
            for (int r_ = 0; r_ < 4; r_++) {                                                                         \
                pair[r_][c_] = vmmlaq_s32(vdupq_n_s32(0), vld1q_s8((codes) + 32 * r_), first);                       \
                pair[r_][c_] = vmmlaq_s32(pair[r_][c_], vld1q_s8((codes) + 32 * r_ + 16), last);                     \
            }                                                                                                        \
        }                                                                                                            \
        for (int j_ = 0; j_ < (cols); j_++) {                                                                        \
            for (int h_ = 0; h_ < 2; h_++) {                                                                         \
                int32x4_t a = pair[2 * h_][j_ / 2], b = pair[2 * h_ + 1][j_ / 2];                                    \
                (dot)[j_][h_] = j_ % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);                                        \
            }                                                                                                        \
        }                                                                                                            \
    } while (0)
#include "backend/cpu/kernels/neon/gemm_q8.h"

static void matmul(const tn__matmul_job *job, int ith, int nth) {
    if (job->form == TN__ACT_Q8 && job->n > TN__NEON_FEW && !job->repeatable) {
        gemm_q8(job, ith, nth);
    } else {
        tn__neon_matmul(job, ith, nth);
    }
}

void tn__kernels_neon_i8mm(tn__cpu_kernels *table) { table->matmul = matmul; }
