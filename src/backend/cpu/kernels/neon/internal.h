/* What the NEON files know of each other. */
#ifndef TN_NEON_INTERNAL_H
#define TN_NEON_INTERNAL_H

#include "backend/cpu/kernels/generic/internal.h"

void tn__neon_rows(tn__cpu_kernels *table);
void tn__neon_attention(tn__cpu_kernels *table);
void tn__neon_gemm_f32(const tn__matmul_job *job, int ith, int nth);
void tn__neon_gemv_f32(const tn__matmul_job *job, int64_t from, int64_t to);
void tn__neon_gemv_q8(const tn__matmul_job *job, int64_t from, int64_t to);
void tn__neon_gemm_q8(const tn__matmul_job *job, int ith, int nth);
tn__act_form tn__neon_matmul_form(tn_type type, bool packed, int64_t m, int64_t n, int64_t k, bool precise);
void tn__neon_matmul(const tn__matmul_job *job, int ith, int nth);
/* Above this many activation rows panels pay. */
enum { TN__NEON_FEW = 4 };

/* 256 weights of one row as signed bytes in natural order: value = scale·code - less, per 16 values. Types without a
 * minimum have less = 0. Which types there are: tn__neon_has_q8. */
typedef struct tn__row256 {
    int8_t code[256];
    float scale[16], less[16];
} tn__row256;
bool tn__neon_has_q8(tn_type type);
bool tn__neon_minimum(tn_type type);
/* Values [256·c, +256) of a row; zero past k. */
void tn__neon_row256(const tn__matmul_job *job, int64_t row, int64_t c, tn__row256 *out);

static inline const tn__q8_chunk *tn__neon_q8_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    return (const tn__q8_chunk *)job->x + c * job->x_rows + job->x_first + j;
}
static inline float *tn__neon_out(const tn__matmul_job *job, int64_t j) {
    return (float *)((char *)job->out + (size_t)(job->scatter ? job->scatter[j] : j) * job->out_stride);
}

#endif
