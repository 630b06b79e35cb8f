/* What the kernel folders share: each level's registration, the generic functions others fall back to, layouts. */
#ifndef TN_CPU_KERNELS_INTERNAL_H
#define TN_CPU_KERNELS_INTERNAL_H

#include "backend/cpu/kernels/kernels.h"

/* Each puts its functions over those already in the table. */
void tn__kernels_generic_rows(tn__cpu_kernels *table);
void tn__kernels_generic_matmul(tn__cpu_kernels *table);
void tn__kernels_generic_attention(tn__cpu_kernels *table);

/* Activations (acts.c). */
size_t tn__act_chunk_bytes(tn__act_form form);
size_t tn__act_bytes(tn__act_form form, int64_t rows, int64_t k);
void tn__act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                     int64_t k, void *data, int ith, int nth);

/* Packed weights (pack.c). One group is 16 rows; one unit of a group is the type's block, at least 32 values:
 *
 *   q8_0  f16 d[16]; bytes [8][16][4] of code + 128
 *   q4_0  f16 d[16]; bytes [4][16][4] as in the rows: element in the low nibble, element + 16 in the high one
 *   q4_K  f16 d[16], dmin[16]; scales as below; bytes [4][8][16][4] as in the rows
 *   q6_K  f16 d[16]; i8 scales[16][16]; per half of 128 values: ql [16][16][4], qh [8][16][4] as in the rows
 *   f16, bf16  [k/2][16][2]
 *
 * [n][16][4] is: n groups of four neighbouring bytes, of 16 rows each. The six-bit scales and minima of q4_K: for
 * each pair of sub-blocks (2p, 2p+1) three times 16 bytes, one per row: scale(2p) | low two bits of min(2p) << 6;
 * scale(2p+1) | low two bits of min(2p+1) << 6; high four bits of min(2p) | high four bits of min(2p+1) << 4. */
bool tn__can_pack(tn_type type, int64_t m, int64_t k);
size_t tn__packed_bytes(tn_type type, int64_t m, int64_t k);
size_t tn__packed_group_bytes(tn_type type, int64_t k);
void tn__pack(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *packed, int64_t first,
              int64_t n);
void tn__unpack_row(tn_type type, int64_t m, int64_t k, const void *packed, int64_t row, void *out);
/* The original bytes of values [256·chunk, +256) (or up to k) of one row. */
void tn__unpack_chunk(tn_type type, int64_t k, const void *packed, int64_t row, int64_t chunk, void *out);

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

/* fn(…, j, how many) for all of n activation rows, four at a time: how many is a constant to the compiler. */
#define TN__BY_FOUR(n, fn, ...)                                                                                      \
    do {                                                                                                             \
        int64_t by_four = 0;                                                                                         \
        for (; by_four + 4 <= (n); by_four += 4) fn(__VA_ARGS__, by_four, 4);                                        \
        if ((n)-by_four == 3) fn(__VA_ARGS__, by_four, 3);                                                           \
        if ((n)-by_four == 2) fn(__VA_ARGS__, by_four, 2);                                                           \
        if ((n)-by_four == 1) fn(__VA_ARGS__, by_four, 1);                                                           \
    } while (0)

/* Weights of any type as floats, chunk by chunk (matmul.c): values [256·chunk, +count) of a row. */
void tn__weights_f32(const tn__matmul_job *job, int64_t row, int64_t chunk, int64_t count, float *out);
void (*tn__to_f32_of(tn_type type))(const void *, float *, int64_t); /* NULL for types without arithmetic */

#if defined(__x86_64__)
void tn__kernels_avx2(tn__cpu_kernels *table);
void tn__kernels_avx512(tn__cpu_kernels *table);
void tn__kernels_avx512bf16(tn__cpu_kernels *table);
void tn__kernels_amx(tn__cpu_kernels *table);
#elif defined(__aarch64__)
void tn__kernels_neon(tn__cpu_kernels *table);
void tn__kernels_neon_i8mm(tn__cpu_kernels *table);
#endif

#endif
