/* Block types unpacked to AVX2 registers: 256 weights as eight vectors of codes in natural order, 32 values each, and
 * their scales. value = scale·code - less, with scale and `less` per 32 or 16 values. */
#ifndef TN_AVX2_UNPACK_H
#define TN_AVX2_UNPACK_H

#include <immintrin.h>
#include <string.h>

#include "base/half.h"
#include "quant/quant.h"

#define TN__INLINE static inline __attribute__((always_inline))

/* Per 32: scale[0] and less[0]. Per 16: sub-blocks 0…7 in [0], 8…15 in [1]. Codes are unsigned and below 128, or
 * signed according to TN__AVX2_TYPES; signed types have no `less`. */
typedef struct tn__regs {
    __m256i code[8];
    __m256 scale[2], less[2];
} tn__regs;

TN__INLINE __m256i both(__m128i low, __m128i high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
TN__INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
TN__INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
TN__INLINE __m256i nibbles(const uint8_t *qs) { /* 16 bytes: low nibbles first */
    __m128i q = load128(qs);
    return _mm256_and_si256(both(q, _mm_srli_epi16(q, 4)), _mm256_set1_epi8(15));
}
TN__INLINE __m256 halves8(const uint8_t *b, int stride) {
    uint16_t d[8];
    for (int i = 0; i < 8; i++) memcpy(&d[i], b + stride * i, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)d[0], (short)d[1], (short)d[2], (short)d[3], (short)d[4],
                                          (short)d[5], (short)d[6], (short)d[7]));
}
TN__INLINE __m256 times(__m256 v, float by) { return _mm256_mul_ps(v, _mm256_set1_ps(by)); }
TN__INLINE __m256i look_up(const int8_t *levels, __m256i code) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(levels)), code);
}
/* Bit j of the word set: the fifth bit of code j. */
TN__INLINE __m256i fifth_bits(const uint8_t *qh) {
    uint32_t word;
    memcpy(&word, qh, 4);
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)word), spread);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(16));
}

TN__INLINE void load_q4_0(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = nibbles(b + 18 * i + 2);
    r->scale[0] = halves8(b, 18);
    r->less[0] = times(r->scale[0], 8);
}
TN__INLINE void load_q4_1(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = nibbles(b + 20 * i + 4);
    r->scale[0] = halves8(b, 20);
    r->less[0] = times(halves8(b + 2, 20), -1);
}
TN__INLINE void load_q5_0(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = _mm256_or_si256(nibbles(b + 22 * i + 6), fifth_bits(b + 22 * i + 2));
    r->scale[0] = halves8(b, 22);
    r->less[0] = times(r->scale[0], 16);
}
TN__INLINE void load_q5_1(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = _mm256_or_si256(nibbles(b + 24 * i + 8), fifth_bits(b + 24 * i + 4));
    r->scale[0] = halves8(b, 24);
    r->less[0] = times(halves8(b + 2, 24), -1);
}
TN__INLINE void load_q8_0(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = load256(b + 34 * i + 2);
    r->scale[0] = halves8(b, 34);
}
TN__INLINE void load_iq4_nl(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = look_up(tn__iq4_levels, nibbles(b + 18 * i + 2));
    r->scale[0] = halves8(b, 18);
}
TN__INLINE void load_mxfp4(const uint8_t *b, tn__regs *r) {
    for (int i = 0; i < 8; i++) r->code[i] = look_up(tn__fp4_levels, nibbles(b + 17 * i + 1));
    /* 2^(e-128): e-1 is the exponent of a float; the two smallest are subnormal and computed by a shift. */
    __m128i e = _mm_setr_epi8((char)b[0], (char)b[17], (char)b[34], (char)b[51], (char)b[68], (char)b[85],
                              (char)b[102], (char)b[119], 0, 0, 0, 0, 0, 0, 0, 0);
    __m256i wide = _mm256_cvtepu8_epi32(e),
            bits = _mm256_slli_epi32(_mm256_sub_epi32(wide, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), wide);
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), wide);
    r->scale[0] = _mm256_castsi256_ps(_mm256_blendv_epi8(bits, tiny, small));
}

TN__INLINE void scales_k4(const uint8_t *bytes, const tn__f16_bits *d, const tn__f16_bits *dmin, tn__regs *r) {
    uint32_t a, b, c;
    memcpy(&a, bytes, 4);
    memcpy(&b, bytes + 4, 4);
    memcpy(&c, bytes + 8, 4);
    uint32_t scale_high = (c & 0x0f0f0f0f) | (a >> 6 & 0x03030303) << 4;
    uint32_t min_high = (c >> 4 & 0x0f0f0f0f) | (b >> 6 & 0x03030303) << 4;
    __m128i scale = _mm_setr_epi32((int)(a & 0x3f3f3f3f), (int)scale_high, 0, 0);
    __m128i min = _mm_setr_epi32((int)(b & 0x3f3f3f3f), (int)min_high, 0, 0);
    r->scale[0] = times(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(scale)), tn__f16_to_f32(*d));
    r->less[0] = times(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(min)), tn__f16_to_f32(*dmin));
}
TN__INLINE void load_q4_K(const uint8_t *block, tn__regs *r) {
    const tn__q4_K *b = (const tn__q4_K *)block;
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int g = 0; g < 4; g++) {
        __m256i q = load256(b->qs + 32 * g);
        r->code[2 * g] = _mm256_and_si256(q, nibble);
        r->code[2 * g + 1] = _mm256_and_si256(_mm256_srli_epi16(q, 4), nibble);
    }
    scales_k4(b->scales, &b->d, &b->dmin, r);
}
TN__INLINE void load_q5_K(const uint8_t *block, tn__regs *r) {
    const tn__q5_K *b = (const tn__q5_K *)block;
    const __m256i nibble = _mm256_set1_epi8(15), sixteen = _mm256_set1_epi8(16);
    __m256i high = load256(b->qh);
    for (int g = 0; g < 4; g++) { /* the bits of rows 2g and 2g+1, shifted to bit 4 */
        __m256i q = load256(b->qs + 32 * g);
        __m256i first = g < 3 ? _mm256_slli_epi16(high, 4 - 2 * g) : _mm256_srli_epi16(high, 2);
        __m256i second = g < 2 ? _mm256_slli_epi16(high, 3 - 2 * g) : _mm256_srli_epi16(high, 2 * g - 3);
        r->code[2 * g] = _mm256_or_si256(_mm256_and_si256(q, nibble), _mm256_and_si256(first, sixteen));
        r->code[2 * g + 1] =
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(q, 4), nibble), _mm256_and_si256(second, sixteen));
    }
    scales_k4(b->scales, &b->d, &b->dmin, r);
}
TN__INLINE void load_iq4_xs(const uint8_t *block, tn__regs *r) {
    const tn__iq4_xs *b = (const tn__iq4_xs *)block;
    float scale[8], d = tn__f16_to_f32(b->d);
    for (int i = 0; i < 8; i++) {
        r->code[i] = look_up(tn__iq4_levels, nibbles(b->qs + 16 * i));
        scale[i] = d * (float)tn__scale_iq4_xs(b, i);
    }
    r->scale[0] = _mm256_loadu_ps(scale);
}

/* Sixteen bytes, signed or not, as 16 scales times d. */
TN__INLINE void scales16(__m128i bytes, float d, __m256 *scale) {
    scale[0] = times(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d);
    scale[1] = times(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))), d);
}
TN__INLINE __m256i bit_pairs(__m256i q, int row) {
    const __m256i three = _mm256_set1_epi8(3);
    return _mm256_and_si256(row == 0 ? q : _mm256_srli_epi16(q, 2 * row), three);
}
TN__INLINE void load_q2_K(const uint8_t *block, tn__regs *r) {
    const tn__q2_K *b = (const tn__q2_K *)block;
    __m128i sm = load128(b->scales), nibble = _mm_set1_epi8(15);
    for (int i = 0; i < 8; i++) r->code[i] = bit_pairs(load256(b->qs + 32 * (i / 4)), i % 4);
    scales16(_mm_and_si128(sm, nibble), tn__f16_to_f32(b->d), r->scale);
    scales16(_mm_and_si128(_mm_srli_epi16(sm, 4), nibble), tn__f16_to_f32(b->dmin), r->less);
}
TN__INLINE void load_q3_K(const uint8_t *block, tn__regs *r) {
    const tn__q3_K *b = (const tn__q3_K *)block;
    const __m256i four = _mm256_set1_epi8(4);
    __m256i high = load256(b->hmask);
    for (int i = 0; i < 8; i++) {
        __m256i bit = i < 3 ? _mm256_slli_epi16(high, 2 - i) : _mm256_srli_epi16(high, i - 2);
        r->code[i] = _mm256_or_si256(bit_pairs(load256(b->qs + 32 * (i / 4)), i % 4), _mm256_and_si256(bit, four));
    }
    uint32_t x, y, z; /* four-bit parts of 16 codes, then two-bit parts */
    memcpy(&x, b->scales, 4);
    memcpy(&y, b->scales + 4, 4);
    memcpy(&z, b->scales + 8, 4);
    __m128i codes = _mm_setr_epi32((int)((x & 0x0f0f0f0f) | (z & 0x03030303) << 4),
                                   (int)((y & 0x0f0f0f0f) | (z >> 2 & 0x03030303) << 4),
                                   (int)((x >> 4 & 0x0f0f0f0f) | (z >> 4 & 0x03030303) << 4),
                                   (int)((y >> 4 & 0x0f0f0f0f) | (z >> 6 & 0x03030303) << 4));
    scales16(_mm_sub_epi8(codes, _mm_set1_epi8(32)), tn__f16_to_f32(b->d), r->scale);
    for (int h = 0; h < 2; h++) r->less[h] = times(r->scale[h], 4);
}
TN__INLINE void load_q6_K(const uint8_t *block, tn__regs *r) {
    const tn__q6_K *b = (const tn__q6_K *)block;
    const __m256i nibble = _mm256_set1_epi8(15), bits45 = _mm256_set1_epi8(0x30);
    for (int h = 0; h < 2; h++) {
        __m256i a = load256(b->ql + 64 * h), c = load256(b->ql + 64 * h + 32), t = load256(b->qh + 32 * h);
        __m256i *to = r->code + 4 * h;
        to[0] = _mm256_or_si256(_mm256_and_si256(a, nibble), _mm256_and_si256(_mm256_slli_epi16(t, 4), bits45));
        to[1] = _mm256_or_si256(_mm256_and_si256(c, nibble), _mm256_and_si256(_mm256_slli_epi16(t, 2), bits45));
        to[2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), nibble), _mm256_and_si256(t, bits45));
        to[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(c, 4), nibble),
                                _mm256_and_si256(_mm256_srli_epi16(t, 2), bits45));
    }
    scales16(load128(b->scales), tn__f16_to_f32(b->d), r->scale);
    for (int h = 0; h < 2; h++) r->less[h] = times(r->scale[h], 32);
}
TN__INLINE void load_nvfp4(const uint8_t *b, tn__regs *r) {
    float scale[16];
    for (int i = 0; i < 8; i++) { /* 16 bytes are two sub-blocks of 8 low and 8 high nibbles */
        const uint8_t *block = b + 36 * (i / 2);
        __m128i q = load128(block + 4 + 16 * (i & 1)), high = _mm_srli_epi16(q, 4);
        __m256i code = both(_mm_unpacklo_epi64(q, high), _mm_unpackhi_epi64(q, high));
        r->code[i] = look_up(tn__fp4_levels, _mm256_and_si256(code, _mm256_set1_epi8(15)));
        for (int g = 0; g < 2; g++) scale[2 * i + g] = tn__nvfp4_scale(block[2 * (i & 1) + g]);
    }
    r->scale[0] = _mm256_loadu_ps(scale);
    r->scale[1] = _mm256_loadu_ps(scale + 8);
}
TN__INLINE void load_tq2_0(const uint8_t *block, tn__regs *r) {
    const tn__tq2_0 *b = (const tn__tq2_0 *)block;
    for (int i = 0; i < 8; i++) r->code[i] = bit_pairs(load256(b->qs + 32 * (i / 4)), i % 4);
    r->scale[0] = r->less[0] = _mm256_set1_ps(tn__f16_to_f32(b->d));
}

/* Lattice types: signed values; a vector holds four points of eight values. */
TN__INLINE long long pairs_apart(uint16_t point) { return (long long)_pdep_u64(point, 0x0303030303030303u); }
TN__INLINE long long triples_apart(uint32_t first, uint32_t second) {
    return (long long)_pdep_u64(first | second << 12, 0x0707070707070707u);
}
/* -1 in the bytes whose bit is set. */
TN__INLINE __m256i bytes_of_bits(uint32_t word) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)word), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}
TN__INLINE __m256i signed_levels(__m256i points, uint32_t minus, __m128i levels) {
    __m256i value = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), points), m = bytes_of_bits(minus);
    return _mm256_sub_epi8(_mm256_xor_si256(value, m), m);
}
TN__INLINE uint32_t seven_bit_signs(uint32_t rest) {
    uint32_t signs = 0;
    for (int k = 0; k < 4; k++) signs |= (uint32_t)tn__iq_signs(rest >> 7 * k & 127) << 8 * k;
    return signs;
}
TN__INLINE __m128i iq2_levels(void) { return _mm_set1_epi32(8 | 25 << 8 | 43 << 16); }
TN__INLINE void store_scales(const float *scale, tn__regs *r) {
    r->scale[0] = _mm256_loadu_ps(scale);
    r->scale[1] = _mm256_loadu_ps(scale + 8);
}
TN__INLINE void load_iq2_xxs(const uint8_t *block, tn__regs *r) {
    const tn__iq2_xxs *b = (const tn__iq2_xxs *)block;
    float scale[16], d = tn__f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = (const uint8_t *)(b->qs + 4 * g);
        uint32_t rest;
        memcpy(&rest, q + 4, 4);
        __m256i points =
            _mm256_setr_epi64x(pairs_apart(tn__iq2_xxs_lattice[q[0]]), pairs_apart(tn__iq2_xxs_lattice[q[1]]),
                               pairs_apart(tn__iq2_xxs_lattice[q[2]]), pairs_apart(tn__iq2_xxs_lattice[q[3]]));
        r->code[g] = signed_levels(points, seven_bit_signs(rest), iq2_levels());
        scale[2 * g] = scale[2 * g + 1] = d * (0.5f + (float)(rest >> 28)) * 0.25f;
    }
    store_scales(scale, r);
}
TN__INLINE void load_iq2_xs(const uint8_t *block, tn__regs *r) {
    const tn__iq2_xs *b = (const tn__iq2_xs *)block;
    float scale[16], d = tn__f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        const uint16_t *q = b->qs + 4 * g;
        uint32_t minus = 0;
        for (int k = 0; k < 4; k++) minus |= (uint32_t)tn__iq_signs(q[k] >> 9) << 8 * k;
        __m256i points = _mm256_setr_epi64x(
            pairs_apart(tn__iq2_xs_lattice[q[0] & 511]), pairs_apart(tn__iq2_xs_lattice[q[1] & 511]),
            pairs_apart(tn__iq2_xs_lattice[q[2] & 511]), pairs_apart(tn__iq2_xs_lattice[q[3] & 511]));
        r->code[g] = signed_levels(points, minus, iq2_levels());
        scale[2 * g] = d * (0.5f + (float)(b->scales[g] & 15)) * 0.25f;
        scale[2 * g + 1] = d * (0.5f + (float)(b->scales[g] >> 4)) * 0.25f;
    }
    store_scales(scale, r);
}
TN__INLINE void load_iq2_s(const uint8_t *block, tn__regs *r) {
    const tn__iq2_s *b = (const tn__iq2_s *)block;
    float scale[16], d = tn__f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        long long point[4];
        uint32_t minus;
        memcpy(&minus, b->signs + 4 * g, 4);
        for (int k = 0; k < 4; k++)
            point[k] = pairs_apart(tn__iq2_s_lattice[b->qs[4 * g + k] | (b->qh[g] >> 2 * k & 3) << 8]);
        r->code[g] = signed_levels(_mm256_setr_epi64x(point[0], point[1], point[2], point[3]), minus, iq2_levels());
        scale[2 * g] = d * (0.5f + (float)(b->scales[g] & 15)) * 0.25f;
        scale[2 * g + 1] = d * (0.5f + (float)(b->scales[g] >> 4)) * 0.25f;
    }
    store_scales(scale, r);
}
TN__INLINE void load_iq3_xxs(const uint8_t *block, tn__regs *r) {
    const tn__iq3_xxs *b = (const tn__iq3_xxs *)block;
    __m128i levels = _mm_loadl_epi64((const __m128i *)tn__iq3_xxs_levels);
    float scale[16], d = tn__f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = b->qs + 8 * g;
        long long point[4];
        uint32_t rest;
        memcpy(&rest, b->gas + 4 * g, 4);
        for (int k = 0; k < 4; k++)
            point[k] = triples_apart(tn__iq3_xxs_lattice[q[2 * k]], tn__iq3_xxs_lattice[q[2 * k + 1]]);
        r->code[g] =
            signed_levels(_mm256_setr_epi64x(point[0], point[1], point[2], point[3]), seven_bit_signs(rest), levels);
        scale[2 * g] = scale[2 * g + 1] = d * (0.5f + (float)(rest >> 28)) * 0.5f;
    }
    store_scales(scale, r);
}
TN__INLINE void load_iq3_s(const uint8_t *block, tn__regs *r) {
    const tn__iq3_s *b = (const tn__iq3_s *)block;
    __m128i levels = _mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0);
    float scale[16], d = tn__f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        const uint8_t *q = b->qs + 8 * g;
        long long point[4];
        uint32_t minus;
        memcpy(&minus, b->signs + 4 * g, 4);
        for (int k = 0; k < 4; k++)
            point[k] = triples_apart(tn__iq3_s_lattice[q[2 * k] | (b->qh[g] >> 2 * k & 1) << 8],
                                     tn__iq3_s_lattice[q[2 * k + 1] | (b->qh[g] >> (2 * k + 1) & 1) << 8]);
        r->code[g] = signed_levels(_mm256_setr_epi64x(point[0], point[1], point[2], point[3]), minus, levels);
        scale[2 * g] = scale[2 * g + 1] = d * (float)(1 + 2 * (b->scales[g / 2] >> 4 * (g & 1) & 15));
    }
    store_scales(scale, r);
}
/* iq1, in units of 1/8: a value is -8, 0 or 8, plus or minus one; `down` has a bit per point. */
TN__INLINE __m256i iq1_codes(__m256i points, uint32_t down) {
    __m256i value = _mm256_shuffle_epi8(_mm256_set1_epi32(0x000901f9), points); /* -7, 1, 9 */
    uint32_t bits = _pdep_u32(down, 0x01010101u) * 255;
    return _mm256_add_epi8(value, _mm256_and_si256(bytes_of_bits(bits), _mm256_set1_epi8(-2)));
}
TN__INLINE void load_iq1_s(const uint8_t *block, tn__regs *r) {
    const tn__iq1_s *b = (const tn__iq1_s *)block;
    float scale[16], d = tn__f16_to_f32(b->d);
    for (int g = 0; g < 8; g++) {
        uint32_t qh = b->qh[g];
        long long point[4];
        for (int k = 0; k < 4; k++)
            point[k] = pairs_apart(tn__iq1_s_lattice[b->qs[4 * g + k] | (qh >> 3 * k & 7) << 8]);
        r->code[g] = iq1_codes(_mm256_setr_epi64x(point[0], point[1], point[2], point[3]), (qh >> 15) * 15);
        scale[2 * g] = scale[2 * g + 1] = d * (float)(2 * (qh >> 12 & 7) + 1) * 0.125f;
    }
    store_scales(scale, r);
}
TN__INLINE void load_iq1_m(const uint8_t *block, tn__regs *r) {
    const tn__iq1_m *b = (const tn__iq1_m *)block;
    uint16_t sc[4];
    float scale[16];
    memcpy(sc, b->scales, 8);
    float d =
        tn__f16_to_f32((uint16_t)(sc[0] >> 12 | (sc[1] >> 8 & 0x00f0) | (sc[2] >> 4 & 0x0f00) | (sc[3] & 0xf000)));
    for (int g = 0; g < 8; g++) {
        uint32_t high = (uint32_t)(b->qh[2 * g] | b->qh[2 * g + 1] << 8); /* a nibble per point */
        long long point[4];
        for (int k = 0; k < 4; k++)
            point[k] = pairs_apart(tn__iq1_s_lattice[b->qs[4 * g + k] | (high >> 4 * k & 7) << 8]);
        r->code[g] = iq1_codes(_mm256_setr_epi64x(point[0], point[1], point[2], point[3]), _pext_u32(high, 0x8888u));
        for (int h = 0; h < 2; h++)
            scale[2 * g + h] = d * (float)(2 * (sc[g / 2] >> 3 * (2 * (g & 1) + h) & 7) + 1) * 0.125f;
    }
    store_scales(scale, r);
}
TN__INLINE void load_tq1_0(const uint8_t *block, tn__regs *r) {
    const tn__tq1_0 *b = (const tn__tq1_0 *)block;
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    uint8_t code[256], *to = code;
    for (int k = 0; k < 5; k++, to += 32) {
        for (int j = 0; j < 32; j++) to[j] = (uint8_t)((uint8_t)(b->qs[j] * power[k]) * 3 >> 8);
    }
    for (int k = 0; k < 5; k++, to += 16) {
        for (int j = 0; j < 16; j++) to[j] = (uint8_t)((uint8_t)(b->qs[32 + j] * power[k]) * 3 >> 8);
    }
    for (int k = 0; k < 4; k++, to += 4) {
        for (int j = 0; j < 4; j++) to[j] = (uint8_t)((uint8_t)(b->qh[j] * power[k]) * 3 >> 8);
    }
    for (int i = 0; i < 8; i++) r->code[i] = load256(code + 32 * i);
    r->scale[0] = r->less[0] = _mm256_set1_ps(tn__f16_to_f32(b->d));
}

/* X(NAME, name, bytes of 256 values, scales per 16, signed codes) */
#define TN__AVX2_TYPES(X)                                                                                            \
    X(Q4_0, q4_0, 144, 0, 0)                                                                                         \
    X(Q4_1, q4_1, 160, 0, 0)                                                                                         \
    X(Q5_0, q5_0, 176, 0, 0)                                                                                         \
    X(Q5_1, q5_1, 192, 0, 0)                                                                                         \
    X(Q8_0, q8_0, 272, 0, 1)                                                                                         \
    X(IQ4_NL, iq4_nl, 144, 0, 1)                                                                                     \
    X(MXFP4, mxfp4, 136, 0, 1)                                                                                       \
    X(Q4_K, q4_K, 144, 0, 0)                                                                                         \
    X(Q5_K, q5_K, 176, 0, 0)                                                                                         \
    X(IQ4_XS, iq4_xs, 136, 0, 1)                                                                                     \
    X(Q2_K, q2_K, 84, 1, 0)                                                                                          \
    X(Q3_K, q3_K, 110, 1, 0)                                                                                         \
    X(Q6_K, q6_K, 210, 1, 0)                                                                                         \
    X(NVFP4, nvfp4, 144, 1, 1)                                                                                       \
    X(TQ2_0, tq2_0, 66, 0, 0)                                                                                        \
    X(TQ1_0, tq1_0, 54, 0, 0)                                                                                        \
    X(IQ2_XXS, iq2_xxs, 66, 1, 1)                                                                                    \
    X(IQ2_XS, iq2_xs, 74, 1, 1)                                                                                      \
    X(IQ2_S, iq2_s, 82, 1, 1)                                                                                        \
    X(IQ3_XXS, iq3_xxs, 98, 1, 1)                                                                                    \
    X(IQ3_S, iq3_s, 110, 1, 1)                                                                                       \
    X(IQ1_S, iq1_s, 50, 1, 1)                                                                                        \
    X(IQ1_M, iq1_m, 56, 1, 1)

#endif
