// Weight tiles: moving 32 neighbouring weights of a row to shared memory as f16 or bf16, by weight kind.
//
// load() reads them into registers and store() writes them, so that a kernel can compute between the two while the
// loads are in flight. i is a multiple of 32. Elements past the end of the row, which has k, are zeros.
#ifndef TN_BACKEND_CUDA_KERNELS_WEIGHT_TILES_CUH
#define TN_BACKEND_CUDA_KERNELS_WEIGHT_TILES_CUH

#include "backend/cuda/kernels/weights.cuh"

__device__ static inline uint4 halves_of(const float *v) {
    __half2 h[4];
#pragma unroll
    for (int k = 0; k < 4; k++) h[k] = __floats2half2_rn(v[2 * k], v[2 * k + 1]);
    return *(uint4 *)h;
}

// Any block type: converted by its reader in load().
template <typename R> struct piece {
    enum { BF16 = false };
    uint4 h[4];
    __device__ void load(const char *row, int i, int k) {
        if (i >= k) {
            h[0] = h[1] = h[2] = h[3] = make_uint4(0, 0, 0, 0);
            return;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[8];
            R::eight(row, i + 8 * e, v, k);
            h[e] = halves_of(v);
        }
    }
    __device__ void store(char *to) const {
#pragma unroll
        for (int e = 0; e < 4; e++) ((uint4 *)to)[e] = h[e];
    }
};

// f16 and bf16: no conversion. Rows are a multiple of 8 elements.
template <bool IS_BF16> struct piece_plain {
    enum { BF16 = IS_BF16 };
    uint4 h[4];
    __device__ void load(const char *row, int i, int k) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            h[e] = i + 8 * e < k ? *(const uint4 *)(row + 2 * (int64_t)(i + 8 * e)) : make_uint4(0, 0, 0, 0);
    }
    __device__ void store(char *to) const {
#pragma unroll
        for (int e = 0; e < 4; e++) ((uint4 *)to)[e] = h[e];
    }
};
template <> struct piece<read_f16> : piece_plain<false> {};
template <> struct piece<read_bf16> : piece_plain<true> {};

// The most common kinds are converted in store(), which keeps load() from waiting for its data.
template <> struct piece<read_q4_0_soa> {
    enum { BF16 = false };
    uint4 q;
    __half d;
    __device__ void load(const char *row, int i, int k) {
        int64_t at = i, n = k;
        row = piece_at<Q4_0_PIECE, 32, 18>(row, &at, &n);
        q = i < k ? ((const uint4 *)row)[at / 32] : make_uint4(0, 0, 0, 0);
        d = i < k ? ((const __half *)(row + n / 2))[at / 32] : __half(0.0f);
    }
    __device__ void store(char *to) const {
        float scale = __half2float(d);
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int e = 0; e < 4; e++) { // the low nibbles of 16 bytes, then the high nibbles
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = scale * (float)((int)(words[2 * (e % 2) + j / 4] >> (8 * (j % 4) + 4 * (e / 2)) & 15) - 8);
            ((uint4 *)to)[e] = halves_of(v);
        }
    }
};
template <> struct piece<read_q8_0_soa> {
    enum { BF16 = false };
    uint4 q[2];
    __half d;
    __device__ void load(const char *row, int i, int k) {
        int64_t at = i, n = k;
        row = piece_at<Q8_0_PIECE, 32, 34>(row, &at, &n);
        q[0] = i < k ? ((const uint4 *)row)[at / 16] : make_uint4(0, 0, 0, 0);
        q[1] = i < k ? ((const uint4 *)row)[at / 16 + 1] : make_uint4(0, 0, 0, 0);
        d = i < k ? ((const __half *)(row + n))[at / 32] : __half(0.0f);
    }
    __device__ void store(char *to) const {
        float scale = __half2float(d);
        const uint32_t words[8] = {q[0].x, q[0].y, q[0].z, q[0].w, q[1].x, q[1].y, q[1].z, q[1].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = scale * (float)(int8_t)(words[2 * e + j / 4] >> (8 * (j % 4)));
            ((uint4 *)to)[e] = halves_of(v);
        }
    }
};
// A sub-block of q4_K: the low or the high nibbles of 32 bytes.
template <> struct piece<read_q4_K> {
    enum { BF16 = false };
    uint4 head, q[2];
    int sub; // index of the sub-block in its block
    __device__ void load(const char *row, int i, int k) {
        const char *b = row + 144 * (i / 256);
        sub = i / 32 % 8;
        head = i < k ? *(const uint4 *)b : make_uint4(0, 0, 0, 0);
        q[0] = i < k ? *(const uint4 *)(b + 16 + sub / 2 * 32) : make_uint4(0, 0, 0, 0);
        q[1] = i < k ? *(const uint4 *)(b + 32 + sub / 2 * 32) : make_uint4(0, 0, 0, 0);
    }
    __device__ void store(char *to) const {
        // The first four sub-blocks have their scales in y's bytes and their minima in z's. The last four have 4 bits
        // in w's nibbles and 2 bits in the top of y and z.
        int shift = sub % 4 * 8;
        uint32_t y = head.y >> shift, z = head.z >> shift, w = head.w >> shift;
        uint32_t s = sub < 4 ? y & 63 : (w & 15) | (y >> 2 & 48),
                 m = sub < 4 ? z & 63 : (w >> 4 & 15) | (z >> 2 & 48);
        float scale = half_bits((uint16_t)head.x) * (float)s, least = half_bits((uint16_t)(head.x >> 16)) * (float)m;
        const uint32_t words[8] = {q[0].x, q[0].y, q[0].z, q[0].w, q[1].x, q[1].y, q[1].z, q[1].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = scale * (float)(words[2 * e + j / 4] >> (sub % 2 * 4) >> (8 * (j % 4)) & 15) - least;
            ((uint4 *)to)[e] = halves_of(v);
        }
    }
};
// A quarter of half a block of q6_K. 32 bytes hold the low bits of two quarters, 32 bytes the high bits of all four.
template <> struct piece<read_q6_K_soa> {
    enum { BF16 = false };
    uint4 low[2], high[2];
    int part;
    float d[2]; // scales of 16 elements each
    __device__ void load(const char *row, int i, int k) {
        int64_t at = min(i, k - 256 + i % 256), n = k; // past the end: reads the last block
        row = piece_at<Q6_K_PIECE, 256, 210>(row, &at, &n);
        int64_t blocks = n / 256, block = at / 256;
        int half = i % 256 / 128;
        part = i % 128 / 32;
        const uint4 *ql = (const uint4 *)(row + 128 * block + 64 * half + part % 2 * 32),
                    *qh = (const uint4 *)(row + 128 * blocks + 64 * block + 32 * half);
        const int8_t *scales = (const int8_t *)row + 192 * blocks + 16 * block + 8 * half + 2 * part;
        low[0] = ql[0];
        low[1] = ql[1];
        high[0] = qh[0];
        high[1] = qh[1];
        float factor = i < k ? __half2float(((const __half *)(row + 208 * blocks))[block]) : 0;
        d[0] = factor * (float)scales[0];
        d[1] = factor * (float)scales[1];
    }
    __device__ void store(char *to) const {
        const uint32_t l[8] = {low[0].x, low[0].y, low[0].z, low[0].w, low[1].x, low[1].y, low[1].z, low[1].w},
                       h[8] = {high[0].x, high[0].y, high[0].z, high[0].w,
                               high[1].x, high[1].y, high[1].z, high[1].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                uint32_t four = l[2 * e + j / 4] >> (part / 2 * 4), two = h[2 * e + j / 4] >> (2 * part);
                v[j] = d[e / 2] * (float)((int)((four >> (8 * (j % 4)) & 15) | (two >> (8 * (j % 4)) & 3) << 4) - 32);
            }
            ((uint4 *)to)[e] = halves_of(v);
        }
    }
};

#endif
