// Reading weights: converting eight neighbouring elements of a row to floats, by weight kind.
//
// A kind is a type, or a type | SOA: weights repacked after upload (soa.cu) so that in each piece of a row all quants
// come first and all scales last. They take as many bytes, but quants are 16-byte aligned and allow wide loads. In
// eight(), i is a multiple of 8 and n is the row's length.
#ifndef TN_BACKEND_CUDA_KERNELS_WEIGHTS_CUH
#define TN_BACKEND_CUDA_KERNELS_WEIGHTS_CUH

#include "backend/cuda/kernels/common.cuh"

__device__ static inline float half_bits(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

struct read_f32 {
    __device__ static float value(const char *row, int64_t i, int64_t n = 0) { return ((const float *)row)[i]; }
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        for (int k = 0; k < 8; k++) v[k] = value(row, i + k);
    }
};
struct read_f16 {
    __device__ static float value(const char *row, int64_t i, int64_t n = 0) {
        return __half2float(((const __half *)row)[i]);
    }
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        for (int k = 0; k < 8; k++) v[k] = value(row, i + k);
    }
};
struct read_bf16 {
    __device__ static float value(const char *row, int64_t i, int64_t n = 0) {
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    }
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        for (int k = 0; k < 8; k++) v[k] = value(row, i + k);
    }
};

// One element of a block type, which is rarely needed: reads eight.
template <typename R> struct block_reader {
    __device__ static float value(const char *row, int64_t i, int64_t n) {
        float v[8];
        R::eight(row, i & ~(int64_t)7, v, n);
        return v[i & 7];
    }
};

// Eight bytes at any address, read as whole 32-bit words. These may include neighbouring bytes, so allocations are
// rounded up to whole words.
struct eight_bytes {
    uint32_t low, high;
    __device__ explicit eight_bytes(const void *p) {
        int shift = (int)((uintptr_t)p % 4) * 8;
        const uint32_t *words = (const uint32_t *)((uintptr_t)p & ~(uintptr_t)3);
        low = words[0];
        high = words[1];
        if (shift == 0) return;
        low = __funnelshift_r(low, high, shift);
        high = __funnelshift_r(high, words[2], shift);
    }
    __device__ int operator[](int k) const { return (int)((k < 4 ? low : high) >> (8 * (k & 3)) & 255); }
};

struct read_q4_0 : block_reader<read_q4_0> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q4_0 *b = (const tn__q4_0 *)row + i / 32;
        float d = half_bits(b->d);
        int j = (int)(i % 16), shift = i % 32 < 16 ? 0 : 4;
        eight_bytes q(b->qs + j);
        for (int k = 0; k < 8; k++) v[k] = d * (float)((q[k] >> shift & 15) - 8);
    }
};
struct read_q4_1 : block_reader<read_q4_1> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q4_1 *b = (const tn__q4_1 *)row + i / 32;
        float d = half_bits(b->d), m = half_bits(b->m);
        int j = (int)(i % 16), shift = i % 32 < 16 ? 0 : 4;
        eight_bytes q(b->qs + j);
        for (int k = 0; k < 8; k++) v[k] = d * (float)(q[k] >> shift & 15) + m;
    }
};
__device__ static inline uint32_t bits32(const uint8_t *p) {
    return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}
struct read_q5_0 : block_reader<read_q5_0> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q5_0 *b = (const tn__q5_0 *)row + i / 32;
        float d = half_bits(b->d);
        uint32_t high = bits32(b->qh) >> (i % 32);
        int j = (int)(i % 16), shift = i % 32 < 16 ? 0 : 4;
        eight_bytes q(b->qs + j);
        for (int k = 0; k < 8; k++) v[k] = d * (float)((int)(q[k] >> shift & 15 | (high >> k & 1) << 4) - 16);
    }
};
struct read_q5_1 : block_reader<read_q5_1> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q5_1 *b = (const tn__q5_1 *)row + i / 32;
        float d = half_bits(b->d), m = half_bits(b->m);
        uint32_t high = bits32(b->qh) >> (i % 32);
        int j = (int)(i % 16), shift = i % 32 < 16 ? 0 : 4;
        eight_bytes q(b->qs + j);
        for (int k = 0; k < 8; k++) v[k] = d * (float)(q[k] >> shift & 15 | (high >> k & 1) << 4) + m;
    }
};
struct read_q8_0 : block_reader<read_q8_0> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q8_0 *b = (const tn__q8_0 *)row + i / 32;
        float d = half_bits(b->d);
        eight_bytes q(b->qs + i % 32);
        for (int k = 0; k < 8; k++) v[k] = d * (float)(int8_t)q[k];
    }
};
struct read_q2_K : block_reader<read_q2_K> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q2_K *b = (const tn__q2_K *)row + i / 256;
        int e = (int)(i % 256), group = e / 128, shift = e % 128 / 32 * 2;
        uint8_t s = b->scales[e / 16];
        float d = half_bits(b->d) * (float)(s & 15), m = half_bits(b->dmin) * (float)(s >> 4);
        eight_bytes q(b->qs + 32 * group + e % 32);
        for (int k = 0; k < 8; k++) v[k] = d * (float)(q[k] >> shift & 3) - m;
    }
};
struct read_q3_K : block_reader<read_q3_K> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q3_K *b = (const tn__q3_K *)row + i / 256;
        int e = (int)(i % 256), group = e / 128, shift = e % 128 / 32 * 2, j = e / 16;
        // A scale has six bits: four in the first eight bytes, two in the last four.
        int low = j < 8 ? b->scales[j] & 15 : b->scales[j - 8] >> 4, high = b->scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        float d = half_bits(b->d) * (float)((low | high << 4) - 32);
        eight_bytes q(b->qs + 32 * group + e % 32), mask(b->hmask + e % 32);
        for (int k = 0; k < 8; k++) {
            int low2 = q[k] >> shift & 3;
            v[k] = d * (float)(low2 - (mask[k] >> (e / 32) & 1 ? 0 : 4));
        }
    }
};
__device__ static inline void scale_min(const uint8_t *scales, int j, float *scale, float *min) {
    if (j < 4) {
        *scale = (float)(scales[j] & 63);
        *min = (float)(scales[j + 4] & 63);
    } else {
        *scale = (float)(scales[j + 4] & 15 | scales[j - 4] >> 6 << 4);
        *min = (float)(scales[j + 4] >> 4 | scales[j] >> 6 << 4);
    }
}
// Blocks have 144 bytes, so they are 16-byte aligned.
struct read_q4_K : block_reader<read_q4_K> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const char *b = row + 144 * (i / 256);
        int e = (int)(i % 256), j = e / 32, shift = j % 2 * 4;
        uint4 head = *(const uint4 *)b; // d, dmin, 12 bytes of scales
        uint2 q = *(const uint2 *)(b + 16 + 32 * (j / 2) + e % 32);
        uint8_t scales[12];
        memcpy(scales, &head.y, 12);
        float s, m;
        scale_min(scales, j, &s, &m);
        s *= half_bits((uint16_t)head.x);
        m *= half_bits((uint16_t)(head.x >> 16));
        for (int k = 0; k < 8; k++) v[k] = s * (float)((k < 4 ? q.x : q.y) >> (8 * (k & 3) + shift) & 15) - m;
    }
};
struct read_q5_K : block_reader<read_q5_K> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q5_K *b = (const tn__q5_K *)row + i / 256;
        int e = (int)(i % 256), j = e / 32, shift = j % 2 * 4;
        float s, m;
        scale_min(b->scales, j, &s, &m);
        s *= half_bits(b->d);
        m *= half_bits(b->dmin);
        eight_bytes q(b->qs + 32 * (j / 2) + e % 32), high(b->qh + e % 32);
        for (int k = 0; k < 8; k++) v[k] = s * (float)((q[k] >> shift & 15) | (high[k] >> j & 1) << 4) - m;
    }
};
struct read_q6_K : block_reader<read_q6_K> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__q6_K *b = (const tn__q6_K *)row + i / 256;
        int e = (int)(i % 256), half = e / 128, part = e % 128 / 32, l = e % 32;
        float d = half_bits(b->d) * (float)b->scales[e / 16];
        eight_bytes low(b->ql + 64 * half + 32 * (part % 2) + l), high(b->qh + 32 * half + l);
        for (int k = 0; k < 8; k++) {
            int four = low[k] >> (part / 2 * 4) & 15, two = high[k] >> (2 * part) & 3;
            v[k] = d * (float)((four | two << 4) - 32);
        }
    }
};
__constant__ static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
struct read_iq4_nl : block_reader<read_iq4_nl> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq4_nl *b = (const tn__iq4_nl *)row + i / 32;
        float d = half_bits(b->d);
        int j = (int)(i % 16), shift = i % 32 < 16 ? 0 : 4;
        eight_bytes q(b->qs + j);
        for (int k = 0; k < 8; k++) v[k] = d * (float)iq4_levels[q[k] >> shift & 15];
    }
};
struct read_iq4_xs : block_reader<read_iq4_xs> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq4_xs *b = (const tn__iq4_xs *)row + i / 256;
        int e = (int)(i % 256), j = e / 32;
        int scale = (b->scales_l[j / 2] >> (j % 2 * 4) & 15) | (b->scales_h >> (2 * j) & 3) << 4;
        float d = half_bits(b->d) * (float)(scale - 32);
        int l = e % 16, shift = e % 32 < 16 ? 0 : 4;
        eight_bytes q(b->qs + 16 * j + l);
        for (int k = 0; k < 8; k++) v[k] = d * (float)iq4_levels[q[k] >> shift & 15];
    }
};
__constant__ static const int8_t fp4_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
struct read_mxfp4 : block_reader<read_mxfp4> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const unsigned char *b = (const unsigned char *)row + 17 * (i / 32);
        // Half of 2^(e - 127), because fp4_twice doubles the levels. The smallest two are subnormal.
        uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (b[0] - 1u) << 23;
        float d = __uint_as_float(bits);
        int j = (int)(i % 16), shift = i % 32 < 16 ? 0 : 4;
        eight_bytes q(b + 1 + j);
        for (int k = 0; k < 8; k++) v[k] = d * (float)fp4_twice[q[k] >> shift & 15];
    }
};

#include "backend/cuda/kernels/weights_lattice.cuh" // uses what is above

// The piece of a SOA row that contains element i. Makes i and n relative to that piece.
template <int PIECE, int BLOCK, int BYTES>
__device__ static inline const char *piece_at(const char *row, int64_t *i, int64_t *n) {
    int64_t piece = *i / PIECE;
    *i -= piece * PIECE;
    *n = min((int64_t)PIECE, *n - piece * PIECE);
    return row + piece * (PIECE / BLOCK * BYTES);
}
struct read_q4_0_soa : block_reader<read_q4_0_soa> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        row = piece_at<Q4_0_PIECE, 32, 18>(row, &i, &n);
        const uint8_t *qs = (const uint8_t *)row + i / 32 * 16 + i % 16;
        float d = __half2float(((const __half *)(row + n / 2))[i / 32]);
        uint2 q = *(const uint2 *)qs;
        int shift = i % 32 < 16 ? 0 : 4;
        for (int k = 0; k < 8; k++) v[k] = d * (float)((int)((k < 4 ? q.x : q.y) >> (8 * (k & 3) + shift) & 15) - 8);
    }
};
struct read_q8_0_soa : block_reader<read_q8_0_soa> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        row = piece_at<Q8_0_PIECE, 32, 34>(row, &i, &n);
        float d = __half2float(((const __half *)(row + n))[i / 32]);
        uint2 q = *(const uint2 *)(row + i);
        for (int k = 0; k < 8; k++) v[k] = d * (float)(int8_t)((k < 4 ? q.x : q.y) >> (8 * (k & 3)));
    }
};
struct read_q6_K_soa : block_reader<read_q6_K_soa> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        row = piece_at<Q6_K_PIECE, 256, 210>(row, &i, &n);
        int64_t blocks = n / 256, block = i / 256;
        int e = (int)(i % 256), half = e / 128, part = e % 128 / 32, l = e % 32;
        const uint8_t *ql = (const uint8_t *)row + 128 * block,
                      *qh = (const uint8_t *)row + 128 * blocks + 64 * block;
        float d = __half2float(((const __half *)(row + 208 * blocks))[block]) *
                  (float)((const int8_t *)row + 192 * blocks + 16 * block)[e / 16];
        uint2 l8 = *(const uint2 *)(ql + 64 * half + 32 * (part % 2) + l), h8 = *(const uint2 *)(qh + 32 * half + l);
        for (int k = 0; k < 8; k++) {
            int low = (k < 4 ? l8.x : l8.y) >> (8 * (k & 3) + part / 2 * 4) & 15,
                high = (k < 4 ? h8.x : h8.y) >> (8 * (k & 3) + 2 * part) & 3;
            v[k] = d * (float)((low | high << 4) - 32);
        }
    }
};

#define FOR_EVERY_PLAIN_READER(X)                                                                                    \
    X(TN_F32, read_f32)                                                                                              \
    X(TN_F16, read_f16)                                                                                              \
    X(TN_BF16, read_bf16)
#define FOR_EVERY_BLOCK_READER(X)                                                                                    \
    X(TN_Q4_0, read_q4_0)                                                                                            \
    X(TN_Q4_1, read_q4_1)                                                                                            \
    X(TN_Q5_0, read_q5_0)                                                                                            \
    X(TN_Q5_1, read_q5_1)                                                                                            \
    X(TN_Q8_0, read_q8_0)                                                                                            \
    X(TN_Q2_K, read_q2_K)                                                                                            \
    X(TN_Q3_K, read_q3_K)                                                                                            \
    X(TN_Q4_K, read_q4_K)                                                                                            \
    X(TN_Q5_K, read_q5_K)                                                                                            \
    X(TN_Q6_K, read_q6_K)                                                                                            \
    X(TN_IQ4_NL, read_iq4_nl)                                                                                        \
    X(TN_IQ4_XS, read_iq4_xs)                                                                                        \
    X(TN_MXFP4, read_mxfp4)                                                                                          \
    X(TN_NVFP4, read_nvfp4)                                                                                          \
    X(TN_IQ2_XXS, read_iq2_xxs)                                                                                      \
    X(TN_IQ2_XS, read_iq2_xs)                                                                                        \
    X(TN_IQ2_S, read_iq2_s)                                                                                          \
    X(TN_IQ3_XXS, read_iq3_xxs)                                                                                      \
    X(TN_IQ3_S, read_iq3_s)                                                                                          \
    X(TN_IQ1_S, read_iq1_s)                                                                                          \
    X(TN_IQ1_M, read_iq1_m)                                                                                          \
    X(TN_TQ1_0, read_tq1_0)                                                                                          \
    X(TN_TQ2_0, read_tq2_0)                                                                                          \
    X(TN_Q4_0 | SOA, read_q4_0_soa)                                                                                  \
    X(TN_Q8_0 | SOA, read_q8_0_soa)                                                                                  \
    X(TN_Q6_K | SOA, read_q6_K_soa)
#define FOR_EVERY_READER(X) FOR_EVERY_PLAIN_READER(X) FOR_EVERY_BLOCK_READER(X)

static inline bool has_reader(int type) {
    switch (type) {
#define CASE(TYPE, reader) case TYPE:
        FOR_EVERY_READER(CASE)
#undef CASE
        return true;
    }
    return false;
}

#endif
