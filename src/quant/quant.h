/* The block formats of GGUF: layouts, and the reference conversions between blocks and floats.
 *
 * Three functions per type, all pure and safe to call from any thread; n must be a multiple of the type's block:
 *   tn__dequantize_row_T  blocks to floats, exact up to the rounding of one multiplication and one addition;
 *   tn__quantize_row_T    fast quantization, for data written while a graph runs (cpy, set_rows, KV cache);
 *   tn__quantize_T        careful quantization, for model files: minimises the squared error weighted by `importance`
 *                         (n non-negative floats, or NULL for weights derived from the values alone).
 * For types without a fast quantization both functions are the same. Results do not depend on the CPU. */
#ifndef TN_QUANT_H
#define TN_QUANT_H

#include <stdint.h>

#define TN__QK 32    /* values in a small block */
#define TN__QK_K 256 /* values in a super-block */

typedef uint16_t tn__f16_bits; /* IEEE binary16, little-endian in the file and on every supported CPU */

/* d·(q-8); element j is the low nibble of byte j, element 16+j its high nibble. The same order in all 32-blocks. */
typedef struct tn__q4_0 {
    tn__f16_bits d;
    uint8_t qs[16];
} tn__q4_0;
/* d·q+m */
typedef struct tn__q4_1 {
    tn__f16_bits d, m;
    uint8_t qs[16];
} tn__q4_1;
/* d·(q-16); bit j of qh is the fifth bit of element j. */
typedef struct tn__q5_0 {
    tn__f16_bits d;
    uint8_t qh[4];
    uint8_t qs[16];
} tn__q5_0;
/* d·q+m */
typedef struct tn__q5_1 {
    tn__f16_bits d, m;
    uint8_t qh[4];
    uint8_t qs[16];
} tn__q5_1;
/* d·q */
typedef struct tn__q8_0 {
    tn__f16_bits d;
    int8_t qs[32];
} tn__q8_0;

/* 16 sub-blocks of 16: d·scale·q - dmin·min; scales[i] holds scale (low nibble) and min (high nibble). Each 32 bytes
 * of qs hold 128 values, two bits per row of 32. */
typedef struct tn__q2_K {
    uint8_t scales[16];
    uint8_t qs[64];
    tn__f16_bits d, dmin;
} tn__q2_K;
/* 16 sub-blocks of 16: d·(scale-32)·(q-4); hmask holds the third bit of q; scales have six bits each. */
typedef struct tn__q3_K {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    tn__f16_bits d;
} tn__q3_K;
/* 8 sub-blocks of 32: d·scale·q - dmin·min, six bits per scale and min. 32 bytes of qs hold 64 values. */
typedef struct tn__q4_K {
    tn__f16_bits d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
} tn__q4_K;
/* As q4_K with a fifth bit in qh: bit i of byte j belongs to value 32·i+j. */
typedef struct tn__q5_K {
    tn__f16_bits d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} tn__q5_K;
/* 16 sub-blocks of 16: d·scale·(q-32). */
typedef struct tn__q6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    tn__f16_bits d;
} tn__q6_K;

/* d·level[q] */
typedef struct tn__iq4_nl {
    tn__f16_bits d;
    uint8_t qs[16];
} tn__iq4_nl;
/* 8 sub-blocks of 32: d·(scale-32)·level[q]; four bits of a scale in scales_l, two in scales_h. */
typedef struct tn__iq4_xs {
    tn__f16_bits d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
} tn__iq4_xs;

/* Lattice types: eight (or four) magnitudes are stored as an index into a table, and their signs separately. */
typedef struct tn__iq2_xxs {
    tn__f16_bits d;
    uint16_t qs[32]; /* per 32 values: 4 index bytes, then 4×7 sign bits and a 4-bit scale */
} tn__iq2_xxs;
typedef struct tn__iq2_xs {
    tn__f16_bits d;
    uint16_t qs[32]; /* 9-bit index, 7 sign bits */
    uint8_t scales[8];
} tn__iq2_xs;
typedef struct tn__iq2_s {
    tn__f16_bits d;
    uint8_t qs[32];    /* low 8 bits of the index */
    uint8_t signs[32]; /* one bit per value */
    uint8_t qh[8];     /* high 2 bits */
    uint8_t scales[8];
} tn__iq2_s;
typedef struct tn__iq3_xxs {
    tn__f16_bits d;
    uint8_t qs[64];
    uint8_t gas[32]; /* per 32 values: 4×7 sign bits and a 4-bit scale */
} tn__iq3_xxs;
typedef struct tn__iq3_s {
    tn__f16_bits d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
} tn__iq3_s;
typedef struct tn__iq1_s {
    tn__f16_bits d;
    uint8_t qs[32];
    uint16_t qh[8]; /* 4×3 high index bits, 3-bit scale, sign of the offset */
} tn__iq1_s;
typedef struct tn__iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];    /* 3 high index bits and the sign of the offset per 8 values */
    uint8_t scales[8]; /* four 3-bit scales per 16 bits; the four top nibbles together are d */
} tn__iq1_m;

/* Powers of two times a 4-bit float: 2^(e-128)·level[q] with levels doubled to be integers. */
typedef struct tn__mxfp4 {
    uint8_t e;
    uint8_t qs[16];
} tn__mxfp4;
/* 4 sub-blocks of 16, each with an unsigned e4m3 scale; 8 bytes per sub-block, low nibbles first. */
typedef struct tn__nvfp4 {
    uint8_t d[4];
    uint8_t qs[32];
} tn__nvfp4;

/* Ternary: d·(t-1). tq1_0 stores five trits per byte as a fixed-point fraction of 3^5, tq2_0 two bits per trit. */
typedef struct tn__tq1_0 {
    uint8_t qs[48];
    uint8_t qh[4];
    tn__f16_bits d;
} tn__tq1_0;
typedef struct tn__tq2_0 {
    uint8_t qs[64];
    tn__f16_bits d;
} tn__tq2_0;

/* Activations, never in files. `s` and `bsums` are for weight types with a minimum or an offset. */
typedef struct tn__q8_1 {
    tn__f16_bits d, s; /* s = d·sum(qs) */
    int8_t qs[32];
} tn__q8_1;
typedef struct tn__q8_K {
    float d;
    int8_t qs[256];
    int16_t bsums[16]; /* sums of 16 */
} tn__q8_K;

/* The table of block types: X(name, values per block, bytes per block, can be quantized to). */
#define TN__BLOCK_TYPES(X)                                                                                           \
    X(q4_0, 32, 18, 1)                                                                                               \
    X(q4_1, 32, 20, 1)                                                                                               \
    X(q5_0, 32, 22, 1)                                                                                               \
    X(q5_1, 32, 24, 1)                                                                                               \
    X(q8_0, 32, 34, 1)                                                                                               \
    X(q2_K, 256, 84, 1)                                                                                              \
    X(q3_K, 256, 110, 1)                                                                                             \
    X(q4_K, 256, 144, 1)                                                                                             \
    X(q5_K, 256, 176, 1)                                                                                             \
    X(q6_K, 256, 210, 1)                                                                                             \
    X(iq4_nl, 32, 18, 1)                                                                                             \
    X(iq4_xs, 256, 136, 1)                                                                                           \
    X(mxfp4, 32, 17, 1)                                                                                              \
    X(nvfp4, 64, 36, 1)                                                                                              \
    X(tq1_0, 256, 54, 1)                                                                                             \
    X(tq2_0, 256, 66, 1)                                                                                             \
    X(iq2_xxs, 256, 66, 1)                                                                                           \
    X(iq2_xs, 256, 74, 1)                                                                                            \
    X(iq2_s, 256, 82, 1)                                                                                             \
    X(iq3_xxs, 256, 98, 1)                                                                                           \
    X(iq3_s, 256, 110, 1)                                                                                            \
    X(iq1_s, 256, 50, 1)                                                                                             \
    X(iq1_m, 256, 56, 1)                                                                                             \
    X(q8_1, 32, 36, 1)                                                                                               \
    X(q8_K, 256, 292, 1)

#define TN_X(name, block, bytes, quantize)                                                                           \
    _Static_assert(sizeof(tn__##name) == (bytes), "layout of " #name);                                               \
    void tn__dequantize_row_##name(const void *blocks, float *out, int64_t n);
TN__BLOCK_TYPES(TN_X)
#undef TN_X

#define TN__QUANTIZER(name)                                                                                          \
    void tn__quantize_row_##name(const float *x, void *blocks, int64_t n);                                           \
    void tn__quantize_##name(const float *x, void *blocks, int64_t n, const float *importance);
TN__QUANTIZER(q4_0)
TN__QUANTIZER(q4_1)
TN__QUANTIZER(q5_0)
TN__QUANTIZER(q5_1)
TN__QUANTIZER(q8_0)
TN__QUANTIZER(q2_K)
TN__QUANTIZER(q3_K)
TN__QUANTIZER(q4_K)
TN__QUANTIZER(q5_K)
TN__QUANTIZER(q6_K)
TN__QUANTIZER(iq4_nl)
TN__QUANTIZER(iq4_xs)
TN__QUANTIZER(mxfp4)
TN__QUANTIZER(nvfp4)
TN__QUANTIZER(tq1_0)
TN__QUANTIZER(tq2_0)
TN__QUANTIZER(iq2_xxs)
TN__QUANTIZER(iq2_xs)
TN__QUANTIZER(iq2_s)
TN__QUANTIZER(iq3_xxs)
TN__QUANTIZER(iq3_s)
TN__QUANTIZER(iq1_s)
TN__QUANTIZER(iq1_m)
TN__QUANTIZER(q8_1)
TN__QUANTIZER(q8_K)
#undef TN__QUANTIZER

/* Scale and minimum of sub-block j (0…7) of q4_K and q5_K. */
static inline void tn__scale_min_k4(const uint8_t *scales, int j, uint8_t *scale, uint8_t *min) {
    if (j < 4) {
        *scale = scales[j] & 63;
        *min = scales[j + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6 << 4));
        *min = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6 << 4));
    }
}
/* Signed scale of sub-block j (0…15) of q3_K. */
static inline int tn__scale_k3(const uint8_t *scales, int j) {
    int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
    int high = scales[8 + (j & 3)] >> (2 * (j >> 2)) & 3;
    return (low | high << 4) - 32;
}
/* Signed scale of sub-block j (0…7) of iq4_xs. */
static inline int tn__scale_iq4_xs(const tn__iq4_xs *b, int j) {
    return (int)((b->scales_l[j / 2] >> 4 * (j & 1) & 15) | (b->scales_h >> 2 * j & 3) << 4) - 32;
}

/* Levels of iq4_nl/iq4_xs (ascending) and of the 4-bit float e2m1 times two. */
extern const int8_t tn__iq4_levels[16];
extern const int8_t tn__fp4_levels[16];
/* The scale byte of mxfp4, and the unsigned e4m3 scale of nvfp4, as floats: halved, because levels are doubled. */
float tn__mxfp4_scale(uint8_t e);
float tn__nvfp4_scale(uint8_t d);

/* Lattice tables: 2 bits per magnitude (iq2: 8, 25, 43; iq1: -1, 0, 1) or 3 bits (iq3), first value in the lowest
 * bits. */
extern const uint16_t tn__iq2_xxs_lattice[256];
extern const uint16_t tn__iq2_xs_lattice[512];
extern const uint16_t tn__iq2_s_lattice[1024];
extern const uint16_t tn__iq1_s_lattice[2048];
extern const uint16_t tn__iq3_xxs_lattice[256];
extern const uint16_t tn__iq3_s_lattice[512];
extern const uint8_t tn__iq3_xxs_levels[8];
/* Seven sign bits are stored for eight values: the eighth makes the number of minus signs even. */
static inline uint8_t tn__iq_signs(uint32_t seven) {
    return (uint8_t)(seven | (uint32_t)__builtin_parity(seven) << 7);
}

#endif
