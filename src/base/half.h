/* IEEE binary16, bfloat16 and fp8 (e4m3) conversions, round to nearest even, NaN preserved as quiet NaN. */
#ifndef TN_BASE_HALF_H
#define TN_BASE_HALF_H

#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

static inline float tn__f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline uint32_t tn__f32_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float tn__f16_to_f32(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(__aarch64__)
    _Float16 value;
    memcpy(&value, &h, 2);
    return (float)value;
#else
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = h & 0x7fffu;
    if (rest >= 0x7c00u) /* infinity or NaN; a NaN becomes quiet */
        return tn__f32_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 0x400000u : 0));
    /* Shifting the exponent and mantissa to their f32 bits and multiplying by 2^112 rebiases the exponent and makes
     * subnormals normal in one exact step. */
    return tn__f32_from_bits(tn__f32_to_bits(tn__f32_from_bits(rest << 13) * 0x1p112f) | sign);
#endif
}

static inline uint16_t tn__f32_to_f16(float value) {
#if defined(__F16C__)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
    _Float16 h = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
#else
    uint32_t bits = tn__f32_to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00u | (uint16_t)(bits >> 13 & 0x3ffu);
    if (bits >= 0x477ff000u) return sign | 0x7c00u; /* rounds to 65536 or more */
    if (bits < 0x38800000u) {
        /* Subnormal result: adding 0.5 aligns the mantissa so that the hardware rounds at the right bit. */
        float shifted = tn__f32_from_bits(bits) + 0.5f;
        return sign | (uint16_t)(tn__f32_to_bits(shifted) - tn__f32_to_bits(0.5f));
    }
    uint32_t odd = bits >> 13 & 1;
    return sign | (uint16_t)((bits + 0xfffu + odd - 0x38000000u) >> 13);
#endif
}

static inline float tn__bf16_to_f32(uint16_t b) { return tn__f32_from_bits((uint32_t)b << 16); }
static inline uint16_t tn__f32_to_bf16(float value) {
    uint32_t bits = tn__f32_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* fp8 has a sign, 4 exponent bits with a bias of 7 and 3 of mantissa. All bits of exponent and mantissa set are NaN;
 * there is no infinity. */
#define TN__FP8_MOST 448.0f
static inline float tn__fp8_to_f32(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, rest = b & 0x7fu;
    if (rest == 0x7fu) return tn__f32_from_bits(sign | 0x7fc00000u);
    /* As in tn__f16_to_f32; the biases differ by 120. */
    return tn__f32_from_bits(tn__f32_to_bits(tn__f32_from_bits(rest << 20) * 0x1p120f) | sign);
}
/* Saturates: what lies beyond ±448, infinity included, becomes ±448. */
static inline uint8_t tn__f32_to_fp8(float value) {
    uint32_t bits = tn__f32_to_bits(value), sign = bits >> 24 & 0x80u;
    bits &= 0x7fffffffu;
    /* Subnormal result: in a sum with 2^14 the last bit of the mantissa counts 2^-9, the smallest step of fp8. */
    uint32_t small = tn__f32_to_bits(tn__f32_from_bits(bits) + 0x1p14f) - 0x46800000u;
    uint32_t normal = (bits + 0x7ffffu + (bits >> 20 & 1) - (120u << 23)) >> 20;
    uint32_t code = bits < 0x3c800000u ? small : bits >= 0x43e00000u ? 0x7eu : normal;
    return (uint8_t)(sign | (bits > 0x7f800000u ? 0x7fu : code));
}

#endif
