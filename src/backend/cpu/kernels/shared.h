/* What all kernel folders share: registration of each level, fallbacks in plain C, and access to a mat-mul's
 * operands. */
#ifndef TN_CPU_KERNELS_SHARED_H
#define TN_CPU_KERNELS_SHARED_H

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/repack.h"

/* ---- Registration ---- */

/* Each function overrides entries that are already in the table. */
void tn__kernels_generic_rows(tn__cpu_kernels *table);
void tn__kernels_generic_matmul(tn__cpu_kernels *table);
void tn__kernels_generic_attention(tn__cpu_kernels *table);
void tn__kernels_generic_recurrent(tn__cpu_kernels *table);
void tn__kernels_generic_index(tn__cpu_kernels *table);
#if defined(__x86_64__)
void tn__kernels_avx2(tn__cpu_kernels *table);
void tn__kernels_avx512(tn__cpu_kernels *table);
void tn__kernels_avx512bf16(tn__cpu_kernels *table);
void tn__kernels_amx(tn__cpu_kernels *table);
#elif defined(__aarch64__)
void tn__kernels_neon(tn__cpu_kernels *table);
void tn__kernels_neon_i8mm(tn__cpu_kernels *table);
#endif

/* ---- Plain C, for levels without a version of their own ---- */

/* Activations (generic/acts.c). */
size_t tn__act_chunk_bytes(tn__act_form form);
size_t tn__act_bytes(tn__act_form form, int64_t rows, int64_t k);
void tn__act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                     int64_t k, void *data, int ith, int nth);

/* Weights of any type as floats (generic/matmul.c): values [256·chunk, +count) of a row. */
void tn__weights_f32(const tn__matmul_job *job, int64_t row, int64_t chunk, int64_t count, float *out);
/* NULL for types without arithmetic. */
void (*tn__to_f32_of(tn_type type))(const void *, float *, int64_t);

/* Blocks of any size (generic/rows.c). */
void tn__hadamard(int64_t n, int64_t block, const float *x, float *y);

/* ---- Operands of a mat-mul ---- */

/* Values per block and bytes per block without a call into the type table. */
static inline int tn__block_of(tn_type type) {
    switch (type) {
#define TN_X(NAME, name, id, block, bytes)                                                                           \
    case TN_##NAME: return block;
        TN_TYPE_TABLE(TN_X)
#undef TN_X
    default: return 1;
    }
}
static inline int tn__bytes_of(tn_type type) {
    switch (type) {
#define TN_X(NAME, name, id, block, bytes)                                                                           \
    case TN_##NAME: return bytes;
        TN_TYPE_TABLE(TN_X)
#undef TN_X
    default: return 0;
    }
}

/* Output row of activation row j. */
static inline float *tn__out_row(const tn__matmul_job *job, int64_t j) {
    return (float *)((char *)job->out + (size_t)(job->scatter ? job->scatter[j] : j) * job->out_stride);
}

/* Chunk c of activation row j, by form. The chunks of neighbouring rows are adjacent. */
static inline const tn__q8_chunk *tn__q8_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    return (const tn__q8_chunk *)job->x + c * job->x_rows + job->x_first + j;
}
static inline const float *tn__f32_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    if (job->form == TN__ACT_PLAIN)
        return (const float *)((const char *)job->x + (size_t)j * job->x_stride) + c * TN__CHUNK;
    return (const float *)job->x + (c * job->x_rows + job->x_first + j) * TN__CHUNK;
}
static inline const uint16_t *tn__bf16_at(const tn__matmul_job *job, int64_t c, int64_t j) {
    return (const uint16_t *)job->x + (c * job->x_rows + job->x_first + j) * TN__CHUNK;
}

/* The part of a job with activation rows [j, j + n). */
static inline tn__matmul_job tn__job_columns(const tn__matmul_job *job, int64_t j, int64_t n) {
    tn__matmul_job part = *job;
    part.n = n;
    if (job->form == TN__ACT_PLAIN)
        part.x = (const char *)job->x + (size_t)j * job->x_stride;
    else
        part.x_first += j;
    if (job->scatter)
        part.scatter += j;
    else
        part.out = (float *)((char *)job->out + (size_t)j * job->out_stride);
    return part;
}

/* Weight rows [from, to) times any number of activation rows, with a kernel for few of them. Blocks of activations
 * stay in the second-level cache. */
static inline void tn__gemv_blocks(const tn__matmul_job *job, int64_t from, int64_t to,
                                   void (*gemv)(const tn__matmul_job *job, int64_t from, int64_t to)) {
    enum { BLOCK = 32 };
    for (int64_t j = 0; j < job->n; j += BLOCK) {
        const tn__matmul_job part = tn__job_columns(job, j, job->n - j < BLOCK ? job->n - j : BLOCK);
        gemv(&part, from, to);
    }
}

/* Calls fn(…, j, count) for all of n activation rows, four at a time. The count is a compile-time constant. */
#define TN__BY_FOUR(n, fn, ...)                                                                                      \
    do {                                                                                                             \
        int64_t by_four = 0;                                                                                         \
        for (; by_four + 4 <= (n); by_four += 4) fn(__VA_ARGS__, by_four, 4);                                        \
        if ((n)-by_four == 3) fn(__VA_ARGS__, by_four, 3);                                                           \
        if ((n)-by_four == 2) fn(__VA_ARGS__, by_four, 2);                                                           \
        if ((n)-by_four == 1) fn(__VA_ARGS__, by_four, 1);                                                           \
    } while (0)

#endif
