// Weights for matrix multiplication on tensor cores: per kind, how a tile of rows is copied to shared memory, and how
// a thread converts its share of it to f16 or bf16 in registers.
//
// The elements of a group of 32 are multiplied in an order that lets each thread find its share in neighbouring
// bytes: of the four threads that share a row, thread t has elements 8t to 8t + 7. Activations are stored in that
// order (narrow_tiles_kernel).
#ifndef TN_BACKEND_CUDA_KERNELS_TILES_TILE_WEIGHTS_CUH
#define TN_BACKEND_CUDA_KERNELS_TILES_TILE_WEIGHTS_CUH

#include "backend/cuda/kernels/weights.cuh"

// ---- Pairs of halves ----

__device__ static inline uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ static inline uint32_t pair_add(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ static inline uint32_t pair_mul(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ static inline uint32_t low_twice(uint32_t x) { return __byte_perm(x, 0, 0x1010); }
__device__ static inline uint32_t high_twice(uint32_t x) { return __byte_perm(x, 0, 0x3232); }
__device__ static inline uint32_t half_twice(float x) {
    __half2 h = __floats2half2_rn(x, x);
    return *(uint32_t *)&h;
}
// A half whose upper byte is 0x64 and whose lower byte is b has the value 1024 + b.
enum {
    MAGIC = 0x64006400, // 1024
    MINUS_1024 = 0xe400e400,
    MINUS_1032 = 0xe408e408,
    MINUS_1056 = 0xe420e420,
    MINUS_1152 = 0xe480e480,
    MINUS_64 = 0xd400d400,
    SIXTEENTH = 0x2c002c00,
    POWER_14 = 0x74007400 // 2^14
};
// (x & mask) | MAGIC in one instruction: two constants in one expression would take two.
__device__ static inline uint32_t masked(uint32_t x, uint32_t mask) {
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"((uint32_t)MAGIC));
    return y;
}
// 1024 + bytes 0 and 2, and 1024 + bytes 1 and 3, of four bytes.
__device__ static inline uint32_t even_bytes(uint32_t w) { return __byte_perm(w, 0x64646464u, 0x4240); }
__device__ static inline uint32_t odd_bytes(uint32_t w) { return __byte_perm(w, 0x64646464u, 0x4341); }

// ---- Kinds ----

// Two rows of a tile, those of a thread: rows i and i + 8 of its warp's 16.
struct thread_rows {
    const char *shared[2], *global[2]; // the tile's part in shared memory; the whole row
    int t;                             // this thread's index among the four that share a row
    int k, at;                         // elements of a row; where the fragments begin
};
// Each kind has
//   DEPTH     elements of a row in a tile,
//   CHUNKS    pieces of 16 bytes that a row of a tile has, ROW bytes apart from the next row's,
//   chunk()   the address of such a piece, and how many of its bytes exist: the others become zeros,
//   offset()  where it lies in the tile,
//   fragments() 64 elements from r.at on, `within` elements from the tile's first: four fragments of 16 elements.
// ROW is 32 or 96 bytes more than a multiple of 128, so that threads of neighbouring rows read different banks.
template <int BYTES> struct padded_rows {
    enum { ROW = BYTES, BF16 = false };
    __device__ static int offset(int row, int c) { return row * BYTES + 16 * c; }
};
__device__ static inline int bytes_left(int64_t left) { return left < 0 ? 0 : left < 16 ? (int)left : 16; }

// Scale and negative minimum of two neighbouring sub-blocks of q4_K and q5_K, as pairs.
struct scales_of_two {
    uint32_t scale, least;
    __device__ scales_of_two(const uint4 &head, int j) { // j: index of the pair of sub-blocks
        const uint32_t y = head.y >> 16 * (j & 1), z = head.z >> 16 * (j & 1), w = head.w >> 16 * (j & 1);
        const uint32_t s = j < 2 ? y & 0x3f3f : (w & 0x0f0f) | (y >> 2 & 0x3030),
                       m = j < 2 ? z & 0x3f3f : (w >> 4 & 0x0f0f) | (z >> 2 & 0x3030);
        scale = pair_mul(pair_add(__byte_perm(s, 0x64646464u, 0x4140), MINUS_1024), low_twice(head.x));
        least = pair_mul(pair_add(__byte_perm(m, 0x64646464u, 0x4140), MINUS_1024), high_twice(head.x)) ^ 0x80008000u;
    }
};

struct tile_q4_K : padded_rows<160> {
    enum { DEPTH = 256, CHUNKS = 9 };
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        *real = 16; // rows are whole blocks
        return row + (uint32_t)(144 * tile + 16 * c);
    }
    // Row h of the fragments: 64 elements. `s`: scale, negative minimum of the first 32 of them and of the others,
    // twice each.
    __device__ static void convert(const uint4 &s, uint2 q, int h, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t w = (e < 2 ? q.x : q.y) >> (e % 2 * 8), low = masked(w, 0x000f000fu),
                           high = masked(w, 0x00f000f0u);
            a[e / 2][h + e % 2 * 2] = pair_fma(pair_add(low, MINUS_1024), s.x, s.y);
            a[2 + e / 2][h + e % 2 * 2] = pair_fma(pair_fma(high, SIXTEENTH, MINUS_64), s.z, s.w);
        }
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int j = within / 64;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const scales_of_two s(*(const uint4 *)r.shared[h], j);
            convert(make_uint4(low_twice(s.scale), low_twice(s.least), high_twice(s.scale), high_twice(s.least)),
                    *(const uint2 *)(r.shared[h] + 16 + 32 * j + 8 * r.t), h, a);
        }
    }
};

// Half a block.
struct tile_q5_K : padded_rows<160> {
    enum { DEPTH = 128, CHUNKS = 7 }; // head, high bits of the whole block, quants of the half
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        *real = 16;
        return row + (uint32_t)(176 * (tile / 2) + 16 * c + (c < 3 ? 0 : tile % 2 * 64));
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int j = r.at % 256 / 64;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const scales_of_two s(*(const uint4 *)r.shared[h], j);
            const uint2 q = *(const uint2 *)(r.shared[h] + 48 + 32 * (j % 2) + 8 * r.t),
                        bits = *(const uint2 *)(r.shared[h] + 16 + 8 * r.t);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t w = e ? q.y : q.x, b = (e ? bits.y : bits.x) >> (2 * j),
                               low = (w & 0x0f0f0f0fu) | (b << 4 & 0x10101010u),
                               high = (w >> 4 & 0x0f0f0f0fu) | (b << 3 & 0x10101010u);
                const uint32_t low_scale = low_twice(s.scale), high_scale = high_twice(s.scale),
                               low_least = low_twice(s.least), high_least = high_twice(s.least);
                a[e][h] = pair_fma(pair_add(even_bytes(low), MINUS_1024), low_scale, low_least);
                a[e][h + 2] = pair_fma(pair_add(odd_bytes(low), MINUS_1024), low_scale, low_least);
                a[2 + e][h] = pair_fma(pair_add(even_bytes(high), MINUS_1024), high_scale, high_least);
                a[2 + e][h + 2] = pair_fma(pair_add(odd_bytes(high), MINUS_1024), high_scale, high_least);
            }
        }
    }
};

// Half a block of a repacked row.
struct tile_q6_K : padded_rows<160> {
    enum { DEPTH = 128, CHUNKS = 8 }; // low bits, high bits, scales of the block, factors of the piece's blocks
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        const int blocks = k / 256, block = tile / 2, piece = block / (Q6_K_PIECE / 256),
                  within = block % (Q6_K_PIECE / 256), half = tile % 2,
                  n = min(Q6_K_PIECE / 256, blocks - piece * (Q6_K_PIECE / 256));
        *real = 16; // rows are padded to 16 bytes
        // In a piece come low bits, high bits, scales, factors.
        const int from = c < 4    ? 0
                         : c < 6  ? 128
                         : c == 6 ? 192
                                  : 208,
                  block_bytes = c < 4    ? 128
                                : c < 6  ? 64
                                : c == 6 ? 16
                                         : 0,
                  half_bytes = c < 4   ? 64
                               : c < 6 ? 32
                                       : 0,
                  chunk = c < 4   ? c
                          : c < 6 ? c - 4
                                  : 0;
        return row + (uint32_t)(piece * (Q6_K_PIECE / 256 * 210) + from * n + block_bytes * within +
                                half_bytes * half + 16 * chunk);
    }
    // Row h of the fragments: 64 elements, those from 64 u of a half block on. `scales`: of this thread, for the
    // first and the second 32 of them.
    __device__ static void convert(const uint2 (&low_bits)[2], uint2 high_bits, float d, const int8_t (&scales)[2],
                                   int u, int h, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint32_t scale = half_twice(d * (float)scales[p]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t low = (e ? low_bits[p].y : low_bits[p].x) >> (4 * u) & 0x0f0f0f0fu,
                               high = ((e ? high_bits.y : high_bits.x) >> (4 * u) >> (2 * p) << 4) & 0x30303030u;
                a[2 * p + e][h] = pair_mul(pair_add(even_bytes(low | high), MINUS_1056), scale);
                a[2 * p + e][h + 2] = pair_mul(pair_add(odd_bytes(low | high), MINUS_1056), scale);
            }
        }
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int u = within / 64, half = r.at % 256 / 128;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char *row = r.shared[h];
            const int8_t *scales = (const int8_t *)(row + 96 + 8 * half + 4 * u + r.t / 2);
            convert({*(const uint2 *)(row + 8 * r.t), *(const uint2 *)(row + 32 + 8 * r.t)},
                    *(const uint2 *)(row + 64 + 8 * r.t),
                    half_bits(*(const uint16_t *)(row + 112 + r.at / 256 % (Q6_K_PIECE / 256) * 2)),
                    {scales[0], scales[2]}, u, h, a);
        }
    }
};

// A repacked row: eight blocks of quants, then their scales.
struct tile_q4_0 : padded_rows<160> {
    enum { DEPTH = 256, CHUNKS = 9 };
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        const int blocks = k / 32, piece = tile / (Q4_0_PIECE / 256), first = tile % (Q4_0_PIECE / 256) * 8,
                  n = min(Q4_0_PIECE / 32, blocks - piece * (Q4_0_PIECE / 32));
        const char *at = row + (int64_t)piece * (Q4_0_PIECE / 32 * 18);
        *real = c < 8 ? first + c < n ? 16 : 0 : bytes_left(2 * (n - first));
        return c < 8 ? at + 16 * (first + c) : at + 16 * n + 2 * first;
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int group = within / 32;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const uint32_t d = *(const uint16_t *)(r.shared[h] + 128 + 2 * (group + g)), scale = d | d << 16;
                const uint2 q = *(const uint2 *)(r.shared[h] + 16 * (group + g) + r.t % 2 * 8);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t w = (e ? q.y : q.x) >> (r.t / 2 * 4);
                    a[2 * g + e][h] = pair_mul(pair_add(masked(w, 0x000f000fu), MINUS_1032), scale);
                    a[2 * g + e][h + 2] = pair_mul(pair_add(masked(w >> 8, 0x000f000fu), MINUS_1032), scale);
                }
            }
    }
};

// A repacked row: four blocks of quants, then the scales of eight.
struct tile_q8_0 : padded_rows<160> {
    enum { DEPTH = 128, CHUNKS = 9 };
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        const int blocks = k / 32, piece = tile / (Q8_0_PIECE / 128), first = tile % (Q8_0_PIECE / 128) * 4,
                  n = min(Q8_0_PIECE / 32, blocks - piece * (Q8_0_PIECE / 32));
        const char *at = row + (int64_t)piece * (Q8_0_PIECE / 32 * 34);
        *real = c < 8 ? first + c / 2 < n ? 16 : 0 : bytes_left(2 * n - first / 8 * 16);
        return c < 8 ? at + 32 * first + 16 * c : at + 32 * n + first / 8 * 16;
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int group = within / 32, scales = 128 + r.at % 256 / 128 * 8;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const uint32_t d = *(const uint16_t *)(r.shared[h] + scales + 2 * (group + g)), scale = d | d << 16;
                const uint2 q = *(const uint2 *)(r.shared[h] + 32 * (group + g) + 8 * r.t);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t w = (e ? q.y : q.x) ^ 0x80808080u;
                    a[2 * g + e][h] = pair_mul(pair_add(even_bytes(w), MINUS_1152), scale);
                    a[2 * g + e][h + 2] = pair_mul(pair_add(odd_bytes(w), MINUS_1152), scale);
                }
            }
    }
};

// Rows as files have them: eight blocks of BYTES bytes together, at any address. The chunks begin at the multiple of
// 16 before them.
template <int BYTES> struct tile_bytes : padded_rows<160> {
    enum { DEPTH = 256, CHUNKS = 10 };
    static_assert(BYTES + 15 <= 160, "a tile and what is before it fit into ten chunks");
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        const char *end = row + ((int64_t)k * BYTES + 255) / 256,
                   *at = (const char *)((uintptr_t)(row + (int64_t)tile * BYTES) & ~(uintptr_t)15) + 16 * c;
        *real = tile * 256 < k ? bytes_left(end - at) : 0;
        return at;
    }
    // Offset of the tile in its chunks.
    __device__ static int begin(const thread_rows &r, int h) {
        return (int)((uintptr_t)(r.global[h] + (int64_t)(r.at / 256) * BYTES) % 16);
    }
    // Eight bytes from `at` on.
    __device__ static uint2 eight(const char *shared, int at) {
        const uint32_t *words = (const uint32_t *)(shared + (at & ~3));
        const int shift = at % 4 * 8;
        return make_uint2(__funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift));
    }
};
// Levels of four indices, each in the low bits of a byte.
__device__ static inline uint32_t iq4_levels_of(uint32_t index) {
    uint32_t nibbles = (index | index >> 4) & 0x00ff00ffu;
    nibbles = (nibbles | nibbles >> 8) & 0x7777u;
    const uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, nibbles),
                   high = __byte_perm(0x26190d01u, 0x71594535u, nibbles), mask = (index >> 3 & 0x01010101u) * 255u;
    return (low & ~mask) | (high & mask);
}
// Both iq4 types: 16 bytes `at` hold a group of 32, of which this thread has eight.
__device__ static inline void iq4_group(const char *shared, int at, int t, uint32_t scale, uint32_t (&even)[2],
                                        uint32_t (&odd)[2]) {
    const uint2 q = tile_bytes<144>::eight(shared, at + t % 2 * 8);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const uint32_t w = iq4_levels_of((e ? q.y : q.x) >> (t / 2 * 4) & 0x0f0f0f0fu) ^ 0x80808080u;
        even[e] = pair_mul(pair_add(even_bytes(w), MINUS_1152), scale);
        odd[e] = pair_mul(pair_add(odd_bytes(w), MINUS_1152), scale);
    }
}
struct tile_iq4_nl : tile_bytes<144> {
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int group = within / 32;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const int at = begin(r, h) + 18 * (group + g);
                const uint32_t d = *(const uint16_t *)(r.shared[h] + at);
                uint32_t even[2], odd[2];
                iq4_group(r.shared[h], at + 2, r.t, d | d << 16, even, odd);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    a[2 * g + e][h] = even[e];
                    a[2 * g + e][h + 2] = odd[e];
                }
            }
    }
};
struct tile_iq4_xs : tile_bytes<136> {
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int group = within / 32;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char *block = r.shared[h] + begin(r, h); // a multiple of 8
            const uint2 head = *(const uint2 *)block;      // factor, high bits of scales, low bits of scales
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const int j = group + g, scale = (int)((head.y >> (4 * j) & 15) | (head.x >> 16 >> (2 * j) & 3) << 4);
                uint32_t even[2], odd[2];
                iq4_group(block, 8 + 16 * j, r.t, half_twice(half_bits((uint16_t)head.x) * (float)(scale - 32)), even,
                          odd);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    a[2 * g + e][h] = even[e];
                    a[2 * g + e][h + 2] = odd[e];
                }
            }
        }
    }
};
// The three low bits of an index, as exponent and highest mantissa bits of a half, are 2^-14 of the value.
struct tile_mxfp4 : tile_bytes<136> {
    __device__ static uint32_t values(uint32_t index) {
        return pair_mul((index & 0x00080008u) << 12 | (index & 0x00070007u) << 9, POWER_14);
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int group = within / 32;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const int at = begin(r, h) + 17 * (group + g);
                const uint32_t exponent = *(const uint8_t *)(r.shared[h] + at),
                               scale = half_twice(__uint_as_float(exponent << 23)); // too small for a half: 0
                const uint2 q = tile_bytes<136>::eight(r.shared[h], at + 1 + r.t % 2 * 8);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t w = (e ? q.y : q.x) >> (r.t / 2 * 4);
                    a[2 * g + e][h] = pair_mul(values(w & 0x000f000fu), scale);
                    a[2 * g + e][h + 2] = pair_mul(values(w >> 8 & 0x000f000fu), scale);
                }
            }
    }
};

// f16 and bf16. Every second row has its halves swapped, so that neighbouring rows are in different banks.
template <bool IS_BF16> struct tile_plain {
    enum { DEPTH = 64, CHUNKS = 8, ROW = 128, BF16 = IS_BF16 };
    __device__ static int offset(int row, int c) { return row * 128 + 16 * (c ^ (row & 1) << 2); }
    __device__ static const char *chunk(const char *row, int tile, int c, int k, int *real) {
        *real = 64 * tile + 8 * c < k ? 16 : 0;
        return row + (uint32_t)(128 * tile + 16 * c);
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
        const int swapped = (int)((threadIdx.x % 32) / 4 & 1) << 2;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const uint4 q = *(const uint4 *)(r.shared[h] + 16 * ((4 * g + r.t) ^ swapped));
                a[2 * g][h] = __byte_perm(q.x, q.y, 0x5410);
                a[2 * g][h + 2] = __byte_perm(q.x, q.y, 0x7632);
                a[2 * g + 1][h] = __byte_perm(q.z, q.w, 0x5410);
                a[2 * g + 1][h + 2] = __byte_perm(q.z, q.w, 0x7632);
            }
    }
};

// Every other kind, and rows at addresses that do not suit the above: read where they are, by their reader.
template <typename R, bool IS_BF16 = false> struct tile_any {
    enum { DEPTH = 64, CHUNKS = 0, ROW = 0, BF16 = IS_BF16 };
    __device__ static int offset(int, int) { return 0; }
    __device__ static const char *chunk(const char *row, int, int, int, int *real) {
        *real = 0;
        return row;
    }
    __device__ static uint32_t pair(float x, float y) {
        if (IS_BF16) {
            __nv_bfloat162 b = __floats2bfloat162_rn(x, y);
            return *(uint32_t *)&b;
        }
        __half2 h = __floats2half2_rn(x, y);
        return *(uint32_t *)&h;
    }
    __device__ static void fragments(const thread_rows &r, int within, uint32_t (&a)[4][4]) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int g = 0; g < 2; g++) {
                const int i = r.at + 32 * g + 8 * r.t;
                float v[8] = {};
                if (i < r.k) R::eight(r.global[h], i, v, r.k);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    a[2 * g + e][h] = pair(v[4 * e], v[4 * e + 2]);
                    a[2 * g + e][h + 2] = pair(v[4 * e + 1], v[4 * e + 3]);
                }
            }
    }
};

#endif
