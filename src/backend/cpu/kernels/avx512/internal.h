/* What the AVX-512 files know of each other. */
#ifndef TN_AVX512_INTERNAL_H
#define TN_AVX512_INTERNAL_H

#include "backend/cpu/kernels/generic/internal.h"

void tn__avx512_act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                            int64_t k, void *data, int ith, int nth);

void tn__avx512_pack(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *packed, int64_t first,
                     int64_t n);

/* Few activation rows: weight rows [from, to) times all of job's activations, read once. */
typedef struct tn__gemv {
    void (*q8)(const tn__matmul_job *job, int64_t from, int64_t to);
    void (*q8_packed)(const tn__matmul_job *job, int64_t from, int64_t to); /* multiples of 16 */
    void (*floats)(const tn__matmul_job *job, int64_t from, int64_t to);
} tn__gemv;
extern const tn__gemv tn__avx512_gemv;
/* Many activation rows. */
void tn__avx512_gemm_q8(const tn__matmul_job *job, int ith, int nth);
void tn__avx512_gemm_f32(const tn__matmul_job *job, int ith, int nth);

/* Above this many activation rows panels pay. */
enum { TN__AVX512_FEW_Q8 = 4, TN__AVX512_FEW_PACKED = 8, TN__AVX512_FEW_FLOAT = 8 };
tn__act_form tn__avx512_matmul_form(tn_type type, bool packed, int64_t m, int64_t n, int64_t k, bool precise);
void tn__avx512_matmul(const tn__matmul_job *job, int ith, int nth);
void tn__avx512_matmul_with(const tn__gemv *gemv, const tn__matmul_job *job, int ith, int nth);

void tn__avx512_rows(tn__cpu_kernels *table);
void tn__avx512_attention(tn__cpu_kernels *table);

/* Eight-bit weights of 16 rows, 256 values each, in the order the dot-product instruction wants: see gemm_q8.c. */
typedef struct tn__panel16 {
    uint8_t codes[64][16][4]; /* value + 128; four neighbours of 16 rows per vector */
    float scale[16][16];      /* per 16 or 32 values, of 16 rows */
    float less[16][16];       /* true minima only; not written for types without */
} tn__panel16;
/* Fills rows [row, row+16) of chunk c (rows past the end are zero). */
bool tn__avx512_scale_per_16(tn_type type);
bool tn__avx512_minimum(tn_type type);
void tn__avx512_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel16 *panel);

static inline float *tn__out_row(const tn__matmul_job *job, int64_t j) {
    return (float *)((char *)job->out + (size_t)(job->scatter ? job->scatter[j] : j) * job->out_stride);
}
static inline const tn__q8_chunk *tn__q8_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    return (const tn__q8_chunk *)job->x + c * job->x_rows + job->x_first + j;
}
static inline const float *tn__f32_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    if (job->form == TN__ACT_PLAIN)
        return (const float *)((const char *)job->x + (size_t)j * job->x_stride) + c * TN__CHUNK;
    return (const float *)job->x + (c * job->x_rows + job->x_first + j) * TN__CHUNK;
}

#endif
