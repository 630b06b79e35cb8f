// Reading the lattice and ternary types iq1, iq2, iq3, tq1_0 and tq2_0, whose eight neighbouring elements share an
// index or a scale, and nvfp4. Included by weights.cuh, after what it uses; the table of readers is there.
#ifndef TN_BACKEND_CUDA_KERNELS_WEIGHTS_LATTICE_CUH
#define TN_BACKEND_CUDA_KERNELS_WEIGHTS_LATTICE_CUH

#include "backend/cuda/kernels/common.cuh"

// In global memory: the lanes of a warp read different entries, which constant memory would serialize.
namespace lattices {
#define TN__LATTICE __device__ static const
#include "quant/iq_lattices.h"
#undef TN__LATTICE
} // namespace lattices

// The eighth sign makes the number of minus signs even.
__device__ static inline uint32_t signs_of(uint32_t seven) { return seven | (uint32_t)(__popc(seven) & 1) << 7; }

// Eight magnitudes 8, 25 or 43.
__device__ static inline void iq2_point(uint32_t point, uint32_t signs, float scale, float *v) {
    for (int k = 0; k < 8; k++) {
        const float value = scale * (float)(0x2b1908u >> 8 * (point >> 2 * k & 3) & 255);
        v[k] = signs >> k & 1 ? -value : value;
    }
}
struct read_iq2_xxs : block_reader<read_iq2_xxs> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq2_xxs *b = (const tn__iq2_xxs *)row + i / 256;
        const int e = (int)(i % 256), k = e % 32 / 8;
        const uint16_t *q = b->qs + e / 32 * 4;
        const uint32_t rest = q[2] | (uint32_t)q[3] << 16;
        const float scale = half_bits(b->d) * (0.5f + (float)(rest >> 28)) * 0.25f;
        iq2_point(lattices::tn__iq2_xxs_lattice[q[k / 2] >> 8 * (k & 1) & 255], signs_of(rest >> 7 * k & 127), scale,
                  v);
    }
};
struct read_iq2_xs : block_reader<read_iq2_xs> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq2_xs *b = (const tn__iq2_xs *)row + i / 256;
        const int g = (int)(i % 256) / 8;
        const uint32_t q = b->qs[g];
        const float scale = half_bits(b->d) * (0.5f + (float)(b->scales[g / 4] >> 4 * (g / 2 & 1) & 15)) * 0.25f;
        iq2_point(lattices::tn__iq2_xs_lattice[q & 511], signs_of(q >> 9), scale, v);
    }
};
struct read_iq2_s : block_reader<read_iq2_s> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq2_s *b = (const tn__iq2_s *)row + i / 256;
        const int g = (int)(i % 256) / 8;
        const float scale = half_bits(b->d) * (0.5f + (float)(b->scales[g / 4] >> 4 * (g / 2 & 1) & 15)) * 0.25f;
        const int point = b->qs[g] | (b->qh[g / 4] >> 2 * (g & 3) & 3) << 8;
        iq2_point(lattices::tn__iq2_s_lattice[point], b->signs[g], scale, v);
    }
};
struct read_iq3_xxs : block_reader<read_iq3_xxs> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq3_xxs *b = (const tn__iq3_xxs *)row + i / 256;
        const int e = (int)(i % 256);
        const uint32_t rest = bits32(b->gas + e / 32 * 4), signs = signs_of(rest >> 7 * (e % 32 / 8) & 127);
        const float scale = half_bits(b->d) * (0.5f + (float)(rest >> 28)) * 0.5f;
        const uint32_t points = lattices::tn__iq3_xxs_lattice[b->qs[e / 4]] |
                                (uint32_t)lattices::tn__iq3_xxs_lattice[b->qs[e / 4 + 1]] << 12;
        for (int k = 0; k < 8; k++) {
            const int level = (int)(points >> 3 * k & 7);
            const float value = scale * (float)(4 + 8 * level + (level == 7 ? 2 : 0)); // 4, 12, … 52, 62
            v[k] = signs >> k & 1 ? -value : value;
        }
    }
};
struct read_iq3_s : block_reader<read_iq3_s> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq3_s *b = (const tn__iq3_s *)row + i / 256;
        const int e = (int)(i % 256), g = e / 32, k0 = e / 4;
        const float scale = half_bits(b->d) * (float)(1 + 2 * (b->scales[g / 2] >> 4 * (g & 1) & 15));
        const int high = b->qh[g] >> (k0 & 7), signs = b->signs[e / 8];
        const uint32_t points = lattices::tn__iq3_s_lattice[b->qs[k0] | (high & 1) << 8] |
                                (uint32_t)lattices::tn__iq3_s_lattice[b->qs[k0 + 1] | (high >> 1 & 1) << 8] << 12;
        for (int k = 0; k < 8; k++) {
            const float value = scale * (float)(1 + 2 * (int)(points >> 3 * k & 7));
            v[k] = signs >> k & 1 ? -value : value;
        }
    }
};
// Eight values -1, 0 or 1, plus or minus an eighth.
__device__ static inline void iq1_point(uint32_t point, bool down, float scale, float *v) {
    const float offset = down ? -0.125f : 0.125f;
    for (int k = 0; k < 8; k++) v[k] = scale * ((float)((int)(point >> 2 * k & 3) - 1) + offset);
}
struct read_iq1_s : block_reader<read_iq1_s> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq1_s *b = (const tn__iq1_s *)row + i / 256;
        const int e = (int)(i % 256), k = e % 32 / 8, high = b->qh[e / 32];
        const float scale = half_bits(b->d) * (float)(2 * (high >> 12 & 7) + 1);
        iq1_point(lattices::tn__iq1_s_lattice[b->qs[e / 8] | (high >> 3 * k & 7) << 8], high >> 15, scale, v);
    }
};
struct read_iq1_m : block_reader<read_iq1_m> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__iq1_m *b = (const tn__iq1_m *)row + i / 256;
        const int g = (int)(i % 256) / 8, high = b->qh[g / 2] >> 4 * (g & 1);
        const uint16_t *sc = (const uint16_t *)b->scales; // blocks have 56 bytes
        const float d =
            half_bits((uint16_t)(sc[0] >> 12 | (sc[1] >> 8 & 0x00f0) | (sc[2] >> 4 & 0x0f00) | (sc[3] & 0xf000)));
        const float scale = d * (float)(2 * (sc[g / 8] >> 3 * (g / 2 & 3) & 7) + 1);
        iq1_point(lattices::tn__iq1_s_lattice[b->qs[g] | (high & 7) << 8], high & 8, scale, v);
    }
};
// Five trits in a byte: multiplying by 3^k (mod 256) moves trit k to the front.
__device__ static inline int trit(uint32_t byte, int k) {
    uint32_t power = 1;
    for (int j = 0; j < k; j++) power *= 3;
    return (int)((byte * power & 255) * 3 >> 8);
}
struct read_tq1_0 : block_reader<read_tq1_0> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__tq1_0 *b = (const tn__tq1_0 *)row + i / 256;
        const int e = (int)(i % 256);
        const float d = half_bits(b->d);
        for (int k = 0; k < 8; k++) {
            const int at = e + k;
            const int t = at < 160   ? trit(b->qs[at % 32], at / 32)
                          : at < 240 ? trit(b->qs[32 + at % 16], (at - 160) / 16)
                                     : trit(b->qh[at % 4], (at - 240) / 4);
            v[k] = d * (float)(t - 1);
        }
    }
};
struct read_tq2_0 : block_reader<read_tq2_0> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__tq2_0 *b = (const tn__tq2_0 *)row + i / 256;
        const int e = (int)(i % 256), shift = 2 * (e / 32 % 4);
        const float d = half_bits(b->d);
        eight_bytes q(b->qs + 32 * (e / 128) + e % 32);
        for (int k = 0; k < 8; k++) v[k] = d * (float)((q[k] >> shift & 3) - 1);
    }
};
struct read_nvfp4 : block_reader<read_nvfp4> {
    __device__ static void eight(const char *row, int64_t i, float *v, int64_t n) {
        const tn__nvfp4 *b = (const tn__nvfp4 *)row + i / 64;
        const int g = (int)(i % 64) / 16, shift = i % 16 < 8 ? 0 : 4, scale = b->d[g];
        const int exponent = scale >> 3 & 15, mantissa = scale & 7;
        // Half of the e4m3 value, because fp4_twice doubles the levels; the code of NaN counts as zero.
        float d = exponent ? (float)(8 + mantissa) * __uint_as_float((uint32_t)(exponent + 116) << 23)
                           : (float)mantissa * (1.0f / 1024);
        if ((scale & 127) == 127) d = 0;
        eight_bytes q(b->qs + 8 * g);
        for (int k = 0; k < 8; k++) v[k] = d * (float)fp4_twice[q[k] >> shift & 15];
    }
};

#endif
