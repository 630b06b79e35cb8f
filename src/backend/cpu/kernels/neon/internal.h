/* Functions shared by the NEON files. */
#ifndef TN_NEON_INTERNAL_H
#define TN_NEON_INTERNAL_H

#include "backend/cpu/kernels/shared.h"

void tn__neon_rows(tn__cpu_kernels *table);
void tn__neon_recurrent(tn__cpu_kernels *table);
void tn__neon_index(tn__cpu_kernels *table);
void tn__neon_attention(tn__cpu_kernels *table);
void tn__neon_gemm_f32(const tn__matmul_job *job, int ith, int nth);
void tn__neon_gemv_f32(const tn__matmul_job *job, int64_t from, int64_t to);
void tn__neon_gemv_q8(const tn__matmul_job *job, int64_t from, int64_t to);
void tn__neon_gemm_q8(const tn__matmul_job *job, int ith, int nth);
tn__act_form tn__neon_matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how);
void tn__neon_matmul(const tn__matmul_job *job, int ith, int nth);
/* Above this many activation rows, building panels is worth its cost. */
enum { TN__NEON_FEW = 4 };

/* 256 weights of one row as signed bytes in natural order: value = scale·code - less, per 16 values. Types without a
 * minimum have less = 0. Only types of tn__neon_has_q8. */
typedef struct tn__row256 {
    int8_t code[256];
    float scale[16], less[16];
} tn__row256;
bool tn__neon_has_q8(tn_type type);
bool tn__neon_minimum(tn_type type);
/* Values [256·c, +256) of a row; zero past k. */
void tn__neon_row256(const tn__matmul_job *job, int64_t row, int64_t c, tn__row256 *out);

#endif
