/* GEMM of block-quantized weights on the four-way dot product: one lane of activations times four weight rows. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

/* Four neighbours of four rows per vector: vectors 0…3 are rows 0…3, 4…7 rows 4…7. */
static inline void panel_code(int8_t *panel, int row, const int8_t *code) {
    for (int q = 0; q < 4; q++) memcpy(panel + 64 * (row / 4) + 16 * q + 4 * (row % 4), code + 4 * q, 4);
}
#define PANEL_CODE panel_code
#define SUB_BLOCK(codes, x, at, dot, cols)                                                                           \
    do {                                                                                                             \
        int8x16_t v[COLS];                                                                                           \
        for (int j_ = 0; j_ < (cols); j_++) {                                                                        \
            v[j_] = vld1q_s8((x)[j_].qs + (at));                                                                     \
            (dot)[j_][0] = (dot)[j_][1] = vdupq_n_s32(0);                                                            \
        }                                                                                                            \
        for (int h_ = 0; h_ < 2; h_++) {                                                                             \
            int8x16_t w0 = vld1q_s8((codes) + 64 * h_), w1 = vld1q_s8((codes) + 64 * h_ + 16);                       \
            int8x16_t w2 = vld1q_s8((codes) + 64 * h_ + 32), w3 = vld1q_s8((codes) + 64 * h_ + 48);                  \
            for (int j_ = 0; j_ < (cols); j_++) {                                                                    \
                (dot)[j_][h_] = vdotq_laneq_s32((dot)[j_][h_], w0, v[j_], 0);                                        \
                (dot)[j_][h_] = vdotq_laneq_s32((dot)[j_][h_], w1, v[j_], 1);                                        \
                (dot)[j_][h_] = vdotq_laneq_s32((dot)[j_][h_], w2, v[j_], 2);                                        \
                (dot)[j_][h_] = vdotq_laneq_s32((dot)[j_][h_], w3, v[j_], 3);                                        \
            }                                                                                                        \
        }                                                                                                            \
    } while (0)
#include "backend/cpu/kernels/neon/gemm_q8.h"

void tn__neon_gemm_q8(const tn__matmul_job *job, int ith, int nth) { gemm_q8(job, ith, nth); }
