/* IEEE binary16 and bfloat16 conversions, round to nearest even, NaN preserved as quiet NaN. */
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

#endif
