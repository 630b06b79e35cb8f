/* Mat-mul of few activation rows (decode) with NEON dot products: 256 weights at a time as signed bytes, used for up
 * to four activation rows, scaled per 16 values and summed in f32. */
#include <arm_neon.h>

#include "backend/cpu/kernels/neon/internal.h"

static inline __attribute__((always_inline)) void columns(const tn__matmul_job *job, int64_t row, int64_t j,
                                                          bool minimum, const int cols) {
    float32x4_t even[4], odd[4], less[4];
    tn__row256 w;
    for (int q = 0; q < cols; q++) even[q] = odd[q] = less[q] = vdupq_n_f32(0);
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++) {
        tn__neon_row256(job, row, c, &w);
        for (int q = 0; q < cols; q++) {
            const tn__q8_chunk *x = tn__q8_at(job, c, j + q);
            for (int s = 0; s < 16; s += 2) { /* two sub-blocks of 16 share the activations' scale */
                int32x4_t a = vdotq_s32(vdupq_n_s32(0), vld1q_s8(w.code + 16 * s), vld1q_s8(x->qs + 16 * s));
                int32x4_t b =
                    vdotq_s32(vdupq_n_s32(0), vld1q_s8(w.code + 16 * s + 16), vld1q_s8(x->qs + 16 * s + 16));
                float d = x->d[s / 2];
                even[q] = vfmaq_n_f32(even[q], vcvtq_f32_s32(a), w.scale[s] * d);
                odd[q] = vfmaq_n_f32(odd[q], vcvtq_f32_s32(b), w.scale[s + 1] * d);
            }
            if (minimum) {
                for (int s = 0; s < 16; s += 4)
                    less[q] = vfmaq_f32(less[q], vld1q_f32(w.less + s), vld1q_f32(x->ds16 + s));
            }
        }
    }
    for (int q = 0; q < cols; q++)
        tn__out_row(job, j + q)[row] = vaddvq_f32(vaddq_f32(even[q], odd[q])) - vaddvq_f32(less[q]);
}

void tn__neon_gemv_q8(const tn__matmul_job *job, int64_t from, int64_t to) {
    bool minimum = tn__neon_minimum(job->type);
    for (int64_t row = from; row < to; row++) {
        int64_t j = 0;
        for (; j + 4 <= job->n; j += 4) columns(job, row, j, minimum, 4);
        if (job->n - j == 3) columns(job, row, j, minimum, 3);
        if (job->n - j == 2) columns(job, row, j, minimum, 2);
        if (job->n - j == 1) columns(job, row, j, minimum, 1);
    }
}
