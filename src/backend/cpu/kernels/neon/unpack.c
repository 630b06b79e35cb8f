/* Block types unpacked to signed bytes with NEON, the operands of dot products. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels/neon/internal.h"
#include "base/half.h"
#include "quant/quant.h"

static inline void store(int8_t *to, uint8x16_t codes, int offset) {
    vst1q_s8(to, vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8((int8_t)offset)));
}
/* 16 bytes of nibbles: low ones are the first 16 values. */
static inline void nibbles(const uint8_t *qs, int offset, int8_t *to) {
    uint8x16_t q = vld1q_u8(qs);
    store(to, vandq_u8(q, vdupq_n_u8(15)), offset);
    store(to + 16, vshrq_n_u8(q, 4), offset);
}
static inline void levels(const uint8_t *qs, const int8_t *table, int8_t *to) {
    uint8x16_t q = vld1q_u8(qs);
    int8x16_t t = vld1q_s8(table);
    vst1q_s8(to, vqtbl1q_s8(t, vandq_u8(q, vdupq_n_u8(15))));
    vst1q_s8(to + 16, vqtbl1q_s8(t, vshrq_n_u8(q, 4)));
}
static inline void fifth_bits(const uint8_t *qh, int8_t *to) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    for (int h = 0; h < 2; h++) {
        uint8x16_t bytes = vcombine_u8(vdup_n_u8(qh[2 * h]), vdup_n_u8(qh[2 * h + 1]));
        uint8x16_t set = vandq_u8(vtstq_u8(bytes, vld1q_u8(bit)), vdupq_n_u8(16));
        vst1q_s8(to + 16 * h, vaddq_s8(vld1q_s8(to + 16 * h), vreinterpretq_s8_u8(set)));
    }
}
static inline void both(float scale, float less, int b, tn__row256 *out) {
    out->scale[2 * b] = out->scale[2 * b + 1] = scale;
    out->less[2 * b] = out->less[2 * b + 1] = less;
}

static void unpack_q4_0(const uint8_t *at, tn__row256 *out) {
    const tn__q4_0 *b = (const tn__q4_0 *)at;
    for (int i = 0; i < 8; i++) {
        nibbles(b[i].qs, 8, out->code + 32 * i);
        both(tn__f16_to_f32(b[i].d), 0, i, out);
    }
}
static void unpack_q4_1(const uint8_t *at, tn__row256 *out) {
    const tn__q4_1 *b = (const tn__q4_1 *)at;
    for (int i = 0; i < 8; i++) {
        nibbles(b[i].qs, 0, out->code + 32 * i);
        both(tn__f16_to_f32(b[i].d), -tn__f16_to_f32(b[i].m), i, out);
    }
}
static void unpack_q5_0(const uint8_t *at, tn__row256 *out) {
    const tn__q5_0 *b = (const tn__q5_0 *)at;
    for (int i = 0; i < 8; i++) {
        nibbles(b[i].qs, 16, out->code + 32 * i);
        fifth_bits(b[i].qh, out->code + 32 * i);
        both(tn__f16_to_f32(b[i].d), 0, i, out);
    }
}
static void unpack_q5_1(const uint8_t *at, tn__row256 *out) {
    const tn__q5_1 *b = (const tn__q5_1 *)at;
    for (int i = 0; i < 8; i++) {
        nibbles(b[i].qs, 0, out->code + 32 * i);
        fifth_bits(b[i].qh, out->code + 32 * i);
        both(tn__f16_to_f32(b[i].d), -tn__f16_to_f32(b[i].m), i, out);
    }
}
static void unpack_q8_0(const uint8_t *at, tn__row256 *out) {
    const tn__q8_0 *b = (const tn__q8_0 *)at;
    for (int i = 0; i < 8; i++) {
        memcpy(out->code + 32 * i, b[i].qs, 32);
        both(tn__f16_to_f32(b[i].d), 0, i, out);
    }
}
static void unpack_iq4_nl(const uint8_t *at, tn__row256 *out) {
    const tn__iq4_nl *b = (const tn__iq4_nl *)at;
    for (int i = 0; i < 8; i++) {
        levels(b[i].qs, tn__iq4_levels, out->code + 32 * i);
        both(tn__f16_to_f32(b[i].d), 0, i, out);
    }
}
static void unpack_mxfp4(const uint8_t *at, tn__row256 *out) {
    const tn__mxfp4 *b = (const tn__mxfp4 *)at;
    for (int i = 0; i < 8; i++) {
        levels(b[i].qs, tn__fp4_levels, out->code + 32 * i);
        both(tn__mxfp4_scale(b[i].e), 0, i, out);
    }
}
static void unpack_q4_K(const uint8_t *at, tn__row256 *out) {
    const tn__q4_K *b = (const tn__q4_K *)at;
    float d = tn__f16_to_f32(b->d), dmin = tn__f16_to_f32(b->dmin);
    for (int g = 0; g < 4; g++) {
        for (int h = 0; h < 2; h++) {
            uint8x16_t q = vld1q_u8(b->qs + 32 * g + 16 * h);
            store(out->code + 64 * g + 16 * h, vandq_u8(q, vdupq_n_u8(15)), 0);
            store(out->code + 64 * g + 32 + 16 * h, vshrq_n_u8(q, 4), 0);
        }
    }
    for (int i = 0; i < 8; i++) {
        uint8_t scale, min;
        tn__scale_min_k4(b->scales, i, &scale, &min);
        both(d * (float)scale, dmin * (float)min, i, out);
    }
}
static void unpack_q5_K(const uint8_t *at, tn__row256 *out) {
    const tn__q5_K *b = (const tn__q5_K *)at;
    float d = tn__f16_to_f32(b->d), dmin = tn__f16_to_f32(b->dmin);
    for (int g = 0; g < 4; g++) {
        for (int h = 0; h < 2; h++) {
            uint8x16_t q = vld1q_u8(b->qs + 32 * g + 16 * h), high = vld1q_u8(b->qh + 16 * h),
                       sixteen = vdupq_n_u8(16);
            uint8x16_t first = vandq_u8(vtstq_u8(high, vdupq_n_u8((uint8_t)(1 << 2 * g))), sixteen);
            uint8x16_t second = vandq_u8(vtstq_u8(high, vdupq_n_u8((uint8_t)(2 << 2 * g))), sixteen);
            store(out->code + 64 * g + 16 * h, vorrq_u8(vandq_u8(q, vdupq_n_u8(15)), first), 0);
            store(out->code + 64 * g + 32 + 16 * h, vorrq_u8(vshrq_n_u8(q, 4), second), 0);
        }
    }
    for (int i = 0; i < 8; i++) {
        uint8_t scale, min;
        tn__scale_min_k4(b->scales, i, &scale, &min);
        both(d * (float)scale, dmin * (float)min, i, out);
    }
}
static void unpack_iq4_xs(const uint8_t *at, tn__row256 *out) {
    const tn__iq4_xs *b = (const tn__iq4_xs *)at;
    float d = tn__f16_to_f32(b->d);
    for (int i = 0; i < 8; i++) {
        levels(b->qs + 16 * i, tn__iq4_levels, out->code + 32 * i);
        both(d * (float)tn__scale_iq4_xs(b, i), 0, i, out);
    }
}
/* Two bits of 32 bytes for each of four rows of 32 values, twice. */
static inline void bit_pairs(const uint8_t *qs, int offset, int8_t *to) {
    const uint8x16_t three = vdupq_n_u8(3);
    for (int half = 0; half < 2; half++) {
        for (int h = 0; h < 2; h++) {
            uint8x16_t q = vld1q_u8(qs + 32 * half + 16 * h);
            int8_t *row = to + 128 * half + 16 * h;
            store(row, vandq_u8(q, three), offset);
            store(row + 32, vandq_u8(vshrq_n_u8(q, 2), three), offset);
            store(row + 64, vandq_u8(vshrq_n_u8(q, 4), three), offset);
            store(row + 96, vshrq_n_u8(q, 6), offset);
        }
    }
}
static void unpack_q2_K(const uint8_t *at, tn__row256 *out) {
    const tn__q2_K *b = (const tn__q2_K *)at;
    float d = tn__f16_to_f32(b->d), dmin = tn__f16_to_f32(b->dmin);
    bit_pairs(b->qs, 0, out->code);
    for (int g = 0; g < 16; g++) {
        out->scale[g] = d * (float)(b->scales[g] & 15);
        out->less[g] = dmin * (float)(b->scales[g] >> 4);
    }
}
static void unpack_q3_K(const uint8_t *at, tn__row256 *out) {
    const tn__q3_K *b = (const tn__q3_K *)at;
    float d = tn__f16_to_f32(b->d);
    bit_pairs(b->qs, 4, out->code);
    for (int i = 0; i < 16; i++) { /* the third bit */
        uint8x16_t high = vld1q_u8(b->hmask + 16 * (i & 1));
        uint8x16_t set = vandq_u8(vtstq_u8(high, vdupq_n_u8((uint8_t)(1 << i / 2))), vdupq_n_u8(4));
        vst1q_s8(out->code + 16 * i, vaddq_s8(vld1q_s8(out->code + 16 * i), vreinterpretq_s8_u8(set)));
        out->scale[i] = d * (float)tn__scale_k3(b->scales, i);
        out->less[i] = 0;
    }
}
static void unpack_q6_K(const uint8_t *at, tn__row256 *out) {
    const tn__q6_K *b = (const tn__q6_K *)at;
    const uint8x16_t nibble = vdupq_n_u8(15), three = vdupq_n_u8(3);
    float d = tn__f16_to_f32(b->d);
    for (int half = 0; half < 2; half++) {
        for (int h = 0; h < 2; h++) {
            uint8x16_t a = vld1q_u8(b->ql + 64 * half + 16 * h), c = vld1q_u8(b->ql + 64 * half + 32 + 16 * h);
            uint8x16_t t = vld1q_u8(b->qh + 32 * half + 16 * h);
            int8_t *row = out->code + 128 * half + 16 * h;
            store(row, vorrq_u8(vandq_u8(a, nibble), vshlq_n_u8(vandq_u8(t, three), 4)), 32);
            store(row + 32, vorrq_u8(vandq_u8(c, nibble), vshlq_n_u8(vandq_u8(vshrq_n_u8(t, 2), three), 4)), 32);
            store(row + 64, vorrq_u8(vshrq_n_u8(a, 4), vshlq_n_u8(vandq_u8(vshrq_n_u8(t, 4), three), 4)), 32);
            store(row + 96, vorrq_u8(vshrq_n_u8(c, 4), vshlq_n_u8(vshrq_n_u8(t, 6), 4)), 32);
        }
    }
    for (int g = 0; g < 16; g++) {
        out->scale[g] = d * (float)b->scales[g];
        out->less[g] = 0;
    }
}
static void unpack_nvfp4(const uint8_t *at, tn__row256 *out) {
    const tn__nvfp4 *b = (const tn__nvfp4 *)at;
    int8x16_t t = vld1q_s8(tn__fp4_levels);
    for (int g = 0; g < 16; g++) { /* 8 bytes: low nibbles, then high ones */
        uint8x8_t q = vld1_u8(b[g / 4].qs + 8 * (g % 4));
        uint8x16_t codes = vcombine_u8(vand_u8(q, vdup_n_u8(15)), vshr_n_u8(q, 4));
        vst1q_s8(out->code + 16 * g, vqtbl1q_s8(t, codes));
        out->scale[g] = tn__nvfp4_scale(b[g / 4].d[g % 4]);
        out->less[g] = 0;
    }
}
static void unpack_tq2_0(const uint8_t *at, tn__row256 *out) {
    const tn__tq2_0 *b = (const tn__tq2_0 *)at;
    bit_pairs(b->qs, 1, out->code);
    for (int i = 0; i < 8; i++) both(tn__f16_to_f32(b->d), 0, i, out);
}

/* X(NAME, name, bytes of 256 values, has a minimum) */
#define TN__NEON_TYPES(X)                                                                                            \
    X(Q4_0, q4_0, 144, 0)                                                                                            \
    X(Q4_1, q4_1, 160, 1)                                                                                            \
    X(Q5_0, q5_0, 176, 0)                                                                                            \
    X(Q5_1, q5_1, 192, 1)                                                                                            \
    X(Q8_0, q8_0, 272, 0)                                                                                            \
    X(IQ4_NL, iq4_nl, 144, 0)                                                                                        \
    X(MXFP4, mxfp4, 136, 0)                                                                                          \
    X(Q4_K, q4_K, 144, 1)                                                                                            \
    X(Q5_K, q5_K, 176, 1)                                                                                            \
    X(IQ4_XS, iq4_xs, 136, 0)                                                                                        \
    X(Q2_K, q2_K, 84, 1)                                                                                             \
    X(Q3_K, q3_K, 110, 0)                                                                                            \
    X(Q6_K, q6_K, 210, 0)                                                                                            \
    X(NVFP4, nvfp4, 144, 0)                                                                                          \
    X(TQ2_0, tq2_0, 66, 0)

bool tn__neon_has_q8(tn_type type) {
    switch (type) {
#define CASE(NAME, name, bytes, minimum)                                                                             \
    case TN_##NAME: return true;
        TN__NEON_TYPES(CASE)
#undef CASE
    default: return false;
    }
}
bool tn__neon_minimum(tn_type type) {
    switch (type) {
#define CASE(NAME, name, bytes, minimum)                                                                             \
    case TN_##NAME: return minimum;
        TN__NEON_TYPES(CASE)
#undef CASE
    default: return false;
    }
}

void tn__neon_row256(const tn__matmul_job *job, int64_t row, int64_t c, tn__row256 *out) {
    int64_t left = job->k - c * TN__CHUNK;
    uint8_t padded[272]; /* the largest: q8_0 */
    switch (job->type) {
#define CASE(NAME, name, bytes, minimum)                                                                             \
    case TN_##NAME: {                                                                                                \
        const uint8_t *at = (const uint8_t *)job->w + (size_t)row * job->w_stride + (size_t)c * bytes;               \
        if (job->repacked || left < TN__CHUNK) { /* absent blocks are zero: no scale */                              \
            memset(padded, 0, bytes);                                                                                \
            if (job->repacked)                                                                                       \
                tn__repacked_read_chunk(job->type, job->k, job->w, row, c, padded);                                  \
            else                                                                                                     \
                memcpy(padded, at, (size_t)(bytes * left / TN__CHUNK));                                              \
            at = padded;                                                                                             \
        }                                                                                                            \
        unpack_##name(at, out);                                                                                      \
        break;                                                                                                       \
    }
        TN__NEON_TYPES(CASE)
#undef CASE
    default: break;
    }
}
