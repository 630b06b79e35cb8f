// Reading the KV cache: loading eight neighbouring elements of a row and converting them to floats, by type.
//
// `at` is a multiple of 8. Rows are aligned as cache_alignment says. Loading and converting are separate, so that a
// kernel can issue several loads before it converts.
#ifndef TN_BACKEND_CUDA_KERNELS_KV_CACHE_CUH
#define TN_BACKEND_CUDA_KERNELS_KV_CACHE_CUH

#include "backend/cuda/kernels/common.cuh"

struct cache_f16 {
    typedef uint4 raw;
    __device__ static raw load(const char *row, int at) { return *(const uint4 *)(row + 2 * at); }
    __device__ static void floats(const raw &x, int, float (&v)[8]) {
        const __half2 *h = (const __half2 *)&x;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float2 f = __half22float2(h[e]);
            v[2 * e] = f.x;
            v[2 * e + 1] = f.y;
        }
    }
};
struct cache_bf16 {
    typedef uint4 raw;
    __device__ static raw load(const char *row, int at) { return *(const uint4 *)(row + 2 * at); }
    __device__ static void floats(const raw &x, int, float (&v)[8]) {
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[2 * e] = __uint_as_float(w[e] << 16);
            v[2 * e + 1] = __uint_as_float(w[e] & 0xffff0000u);
        }
    }
};
struct cache_f32 {
    struct raw {
        float4 a, b;
    };
    __device__ static raw load(const char *row, int at) {
        const float4 *x = (const float4 *)(row + 4 * at);
        return {x[0], x[1]};
    }
    __device__ static void floats(const raw &x, int, float (&v)[8]) {
        v[0] = x.a.x, v[1] = x.a.y, v[2] = x.a.z, v[3] = x.a.w;
        v[4] = x.b.x, v[5] = x.b.y, v[6] = x.b.z, v[7] = x.b.w;
    }
};

// Two neighbouring bytes become the high bytes of two half floats; their bits, shifted by one, are 2^-8 of the
// values.
struct cache_fp8 {
    typedef uint2 raw;
    __device__ static raw load(const char *row, int at) { return *(const uint2 *)(row + at); }
    __device__ static void floats(const raw &x, int, float (&v)[8]) {
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            uint32_t two = __byte_perm(e < 4 ? x.x : x.y, 0, e % 4 ? 0x3424 : 0x1404);
            two = (two & 0x80008000u) | (two & 0x7f007f00u) >> 1;
            float2 f = __half22float2(*(const __half2 *)&two);
            v[e] = fabsf(f.x) > 1.75f ? NAN : 256 * f.x; // the largest number is 448
            v[e + 1] = fabsf(f.y) > 1.75f ? NAN : 256 * f.y;
        }
    }
};

// Eight bytes of a block, its scale and minimum, and the fifth bits of eight elements; not all types have all.
struct cache_bytes {
    uint32_t low, high;
    uint16_t d, m, fifth;
};
__device__ static inline cache_bytes load_bytes(const char *block, int at) {
    const uint16_t *d = (const uint16_t *)block, *q = (const uint16_t *)(block + at);
    return {q[0] | (uint32_t)q[1] << 16, q[2] | (uint32_t)q[3] << 16, *d, 0, 0};
}
// d · (byte - zero) for bytes 0 to 255. A byte placed in the low bits of the float 2²³ makes 2²³ + byte, which saves
// a conversion.
__device__ static inline void scale_bytes(uint32_t low, uint32_t high, float zero, float d, float (&v)[8]) {
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] = d * (__uint_as_float(__byte_perm(e < 4 ? low : high, 0x4b000000u, 0x7440u | (unsigned)(e % 4))) -
                    (8388608.0f + zero));
}
__device__ static inline float cache_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
struct cache_q8_0 {
    typedef cache_bytes raw;
    __device__ static raw load(const char *row, int at) { return load_bytes(row + at / 32 * 34, 2 + at % 32); }
    __device__ static void floats(const raw &x, int, float (&v)[8]) {
        scale_bytes(x.low ^ 0x80808080u, x.high ^ 0x80808080u, 128, cache_half(x.d), v);
    }
};
// The low nibbles of 16 bytes are the first half of a block, the high nibbles the second.
__device__ static inline void scale_nibbles(const cache_bytes &x, int at, float zero, float (&v)[8]) {
    int shift = at % 32 < 16 ? 0 : 4;
    scale_bytes(x.low >> shift & 0x0f0f0f0fu, x.high >> shift & 0x0f0f0f0fu, zero, cache_half(x.d), v);
}
// The same with a fifth bit: multiplying spreads four bits over the lowest bits of four bytes.
__device__ static inline void scale_five_bits(const cache_bytes &x, int at, float zero, float (&v)[8]) {
    int shift = at % 32 < 16 ? 0 : 4;
    uint32_t low = (x.fifth & 15u) * 0x00204081u & 0x01010101u,
             high = (x.fifth >> 4 & 15u) * 0x00204081u & 0x01010101u;
    scale_bytes((x.low >> shift & 0x0f0f0f0fu) | low << 4, (x.high >> shift & 0x0f0f0f0fu) | high << 4, zero,
                cache_half(x.d), v);
}
__device__ static inline void add_minimum(uint16_t m, float (&v)[8]) {
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] += cache_half(m);
}
struct cache_q4_0 {
    typedef cache_bytes raw;
    __device__ static raw load(const char *row, int at) { return load_bytes(row + at / 32 * 18, 2 + at % 16); }
    __device__ static void floats(const raw &x, int at, float (&v)[8]) { scale_nibbles(x, at, 8, v); }
};
struct cache_q4_1 {
    typedef cache_bytes raw;
    __device__ static raw load(const char *row, int at) {
        const char *block = row + at / 32 * 20;
        raw x = load_bytes(block, 4 + at % 16);
        x.m = ((const uint16_t *)block)[1];
        return x;
    }
    __device__ static void floats(const raw &x, int at, float (&v)[8]) {
        scale_nibbles(x, at, 0, v);
        add_minimum(x.m, v);
    }
};
struct cache_q5_0 {
    typedef cache_bytes raw;
    __device__ static raw load(const char *row, int at) {
        const char *block = row + at / 32 * 22;
        raw x = load_bytes(block, 6 + at % 16);
        x.fifth = ((const uint8_t *)block)[2 + at % 32 / 8];
        return x;
    }
    __device__ static void floats(const raw &x, int at, float (&v)[8]) { scale_five_bits(x, at, 16, v); }
};
struct cache_q5_1 {
    typedef cache_bytes raw;
    __device__ static raw load(const char *row, int at) {
        const char *block = row + at / 32 * 24;
        raw x = load_bytes(block, 8 + at % 16);
        x.m = ((const uint16_t *)block)[1];
        x.fifth = ((const uint8_t *)block)[4 + at % 32 / 8];
        return x;
    }
    __device__ static void floats(const raw &x, int at, float (&v)[8]) {
        scale_five_bits(x, at, 0, v);
        add_minimum(x.m, v);
    }
};

// X(reader) with the reader of `type`, which is known only at run time. Does nothing for types that a cache cannot
// have.
#define WITH_CACHE_READER(type, X)                                                                                   \
    switch (type) {                                                                                                  \
    case TN_F16: X(cache_f16); break;                                                                                \
    case TN_BF16: X(cache_bf16); break;                                                                              \
    case TN_F32: X(cache_f32); break;                                                                                \
    case TN_FP8: X(cache_fp8); break;                                                                                \
    case TN_Q8_0: X(cache_q8_0); break;                                                                              \
    case TN_Q5_1: X(cache_q5_1); break;                                                                              \
    case TN_Q5_0: X(cache_q5_0); break;                                                                              \
    case TN_Q4_1: X(cache_q4_1); break;                                                                              \
    case TN_Q4_0: X(cache_q4_0); break;                                                                              \
    }

// Bytes to which rows must be aligned for the reader of a type; 0 for types that a cache cannot have.
static inline unsigned cache_alignment(int type) {
    switch (type) {
    case TN_F16:
    case TN_BF16:
    case TN_F32: return 16;
    case TN_FP8: return 8;
    case TN_Q8_0:
    case TN_Q5_1:
    case TN_Q5_0:
    case TN_Q4_1:
    case TN_Q4_0: return 2;
    default: return 0;
    }
}
static inline bool is_cache_type(int type) { return cache_alignment(type) != 0; }

// Whether these readers support its type and alignment, and heads have at most `most` elements in multiples of eight.
static inline bool cache_is_readable(const tn_tensor *t, int64_t most) {
    if (t->ne[0] % 8 || t->ne[0] < 8 || t->ne[0] > most || !is_cache_type(t->type)) return false;
    uint64_t alignment = (uint64_t)(uintptr_t)t->data | (uint64_t)t->nb[1] | (uint64_t)t->nb[2];
    return alignment % cache_alignment(t->type) == 0;
}

#endif
