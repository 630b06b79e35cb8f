/* Functions shared by the AVX-512 files, and used by the levels above. */
#ifndef TN_AVX512_INTERNAL_H
#define TN_AVX512_INTERNAL_H

#include "backend/cpu/kernels/shared.h"

void tn__avx512_act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                            int64_t k, void *data, int ith, int nth);

void tn__avx512_repack(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *repacked,
                       int64_t first, int64_t n);

/* Few activation rows: weight rows [from, to) times all of the job's activations. Every weight is read once. */
typedef struct tn__gemv {
    void (*q8)(const tn__matmul_job *job, int64_t from, int64_t to);
    void (*q8_repacked)(const tn__matmul_job *job, int64_t from, int64_t to); /* `from` is a multiple of 16 */
    void (*floats)(const tn__matmul_job *job, int64_t from, int64_t to);
    int64_t few_nibbles; /* up to this many activation rows, building panels of repacked q4_0 and q4_K costs more */
} tn__gemv;
extern const tn__gemv tn__avx512_gemv;
/* Many activation rows. */
void tn__avx512_gemm_q8(const tn__matmul_job *job, int ith, int nth);
void tn__avx512_gemm_f32(const tn__matmul_job *job, int ith, int nth);

/* Above this many activation rows, building panels is worth its cost. Repeatable jobs use panels for all numbers of
 * rows, except repacked blocks, for which both kernels give the same bits, and floats, which never use them. */
enum { TN__AVX512_FEW_Q8 = 4, TN__AVX512_FEW_REPACKED = 8, TN__AVX512_FEW_FLOAT = 8 };
tn__act_form tn__avx512_matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how);
void tn__avx512_matmul(const tn__matmul_job *job, int ith, int nth);
void tn__avx512_matmul_with(const tn__gemv *gemv, const tn__matmul_job *job, int ith, int nth);

void tn__avx512_rows(tn__cpu_kernels *table);
void tn__avx512_recurrent(tn__cpu_kernels *table);
void tn__avx512_index(tn__cpu_kernels *table);
void tn__avx512_attention(tn__cpu_kernels *table);

/* Eight-bit weights of 16 rows × 256 values in the operand order of the dot-product instruction: see gemm_q8.c. */
typedef struct tn__panel16 {
    uint8_t codes[64][16][4]; /* value + 128; four neighbours of 16 rows per vector */
    float scale[16][16];      /* per 16 or 32 values, of 16 rows */
    float less[16][16];       /* minima; not written for types that have none */
} tn__panel16;
/* Whether scales apply to 16 values (instead of 32), and whether blocks have minima. */
bool tn__avx512_scale_per_16(tn_type type);
bool tn__avx512_minimum(tn_type type);
/* Fills a panel with rows [row, row+16) of chunk c; rows past the end are zero. */
void tn__avx512_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel16 *panel);

/* The mask of the rows that exist, where `left` rows remain. */
static inline uint16_t tn__row_mask(int64_t left) {
    return left >= 16 ? 0xffff : left <= 0 ? 0 : (uint16_t)((1u << left) - 1);
}

#endif
