/* Block types unpacked to AVX-512 registers: 256 weights as four vectors of unsigned codes in natural order, and
 * their scales. For every type value = scale·code - less, with scale and `less` per 32 or 16 values. */
#ifndef TN_AVX512_UNPACK_H
#define TN_AVX512_UNPACK_H

#include <immintrin.h>
#include <string.h>

#include "base/half.h"
#include "quant/quant.h"

#define TN__INLINE static inline __attribute__((always_inline))

/* Per 32: scale holds eight scales in lanes 0…7 and eight `less` in lanes 8…15. Per 16: 16 of each. */
typedef struct tn__regs {
    __m512i code[4];
    __m512 scale, less;
} tn__regs;

/* ---- 32-value blocks of `stride` bytes with 16 bytes of nibbles at `at`; two blocks per vector ---- */

TN__INLINE __m512i nibble_index(int stride, int at) {
    const __m512i in_block =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    return _mm512_add_epi8(
        in_block, _mm512_mask_set1_epi8(_mm512_set1_epi8((char)at), 0xffffffff00000000u, (char)(at + stride)));
}
/* Low nibbles are the first 16 values of a block, high ones the next. */
TN__INLINE __m512i split_nibbles(__m512i doubled) {
    return _mm512_and_si512(_mm512_srlv_epi64(doubled, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)),
                            _mm512_set1_epi8(15));
}
TN__INLINE void nibble_blocks(const uint8_t *b, int stride, int at, __m512i *code) {
    /* The last vector starts earlier, so that no byte past the eighth block is read. */
    int last = 8 * stride - 64;
    __m512i index = nibble_index(stride, at), index_last = nibble_index(stride, at + 6 * stride - last);
    for (int p = 0; p < 3; p++)
        code[p] = split_nibbles(_mm512_permutexvar_epi8(index, _mm512_loadu_si512(b + 2 * stride * p)));
    code[3] = split_nibbles(_mm512_permutexvar_epi8(index_last, _mm512_loadu_si512(b + last)));
}
/* Eight half floats, `stride` bytes apart. */
TN__INLINE __m256 scales8(const uint8_t *b, int stride) {
    uint16_t d[8];
    for (int i = 0; i < 8; i++) memcpy(&d[i], b + stride * i, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)d[0], (short)d[1], (short)d[2], (short)d[3], (short)d[4],
                                          (short)d[5], (short)d[6], (short)d[7]));
}
/* The same for a stride of 18 bytes: two vectors hold all eight. */
TN__INLINE __m256 scales8_by_18(const uint8_t *b) {
    const __m512i index = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
    __m512i words = _mm512_permutex2var_epi16(_mm512_loadu_si512(b), index, _mm512_loadu_si512(b + 64));
    return _mm256_cvtph_ps(_mm512_castsi512_si128(words));
}
TN__INLINE __m512 join8(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }
TN__INLINE __m512 scale_and_offset(__m256 d, float offset) {
    return join8(d, _mm256_mul_ps(d, _mm256_set1_ps(offset)));
}

TN__INLINE void load_q4_0(const uint8_t *b, tn__regs *r) {
    nibble_blocks(b, 18, 2, r->code);
    r->scale = scale_and_offset(scales8_by_18(b), 8);
}
TN__INLINE void load_q4_1(const uint8_t *b, tn__regs *r) {
    nibble_blocks(b, 20, 4, r->code);
    r->scale = join8(scales8(b, 20), _mm256_sub_ps(_mm256_setzero_ps(), scales8(b + 2, 20)));
}
TN__INLINE void fifth_bits(const uint8_t *qh, int stride, __m512i *code) {
    for (int p = 0; p < 4; p++) {
        uint32_t low, high;
        memcpy(&low, qh + 2 * stride * p, 4);
        memcpy(&high, qh + 2 * stride * p + stride, 4);
        __mmask64 bits = _cvtu64_mask64(low | (uint64_t)high << 32);
        code[p] = _mm512_mask_add_epi8(code[p], bits, code[p], _mm512_set1_epi8(16));
    }
}
TN__INLINE void load_q5_0(const uint8_t *b, tn__regs *r) {
    nibble_blocks(b, 22, 6, r->code);
    fifth_bits(b + 2, 22, r->code);
    r->scale = scale_and_offset(scales8(b, 22), 16);
}
TN__INLINE void load_q5_1(const uint8_t *b, tn__regs *r) {
    nibble_blocks(b, 24, 8, r->code);
    fifth_bits(b + 4, 24, r->code);
    r->scale = join8(scales8(b, 24), _mm256_sub_ps(_mm256_setzero_ps(), scales8(b + 2, 24)));
}
TN__INLINE void load_q8_0(const uint8_t *b, tn__regs *r) {
    for (int p = 0; p < 4; p++) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(b + 68 * p + 2));
        __m256i high = _mm256_loadu_si256((const __m256i *)(b + 68 * p + 36));
        r->code[p] =
            _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_set1_epi8(-128));
    }
    r->scale = scale_and_offset(scales8(b, 34), 128);
}

TN__INLINE __m512i levels_from(const int8_t *levels, int offset) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const __m128i *)levels), _mm_set1_epi8((char)offset));
    return _mm512_broadcast_i32x4(table);
}
TN__INLINE void look_up(__m512i table, __m512i *code) {
    for (int p = 0; p < 4; p++) code[p] = _mm512_shuffle_epi8(table, code[p]);
}
TN__INLINE void load_iq4_nl(const uint8_t *b, tn__regs *r) {
    nibble_blocks(b, 18, 2, r->code);
    look_up(levels_from(tn__iq4_levels, 128), r->code);
    r->scale = scale_and_offset(scales8_by_18(b), 128);
}
TN__INLINE void load_mxfp4(const uint8_t *b, tn__regs *r) {
    nibble_blocks(b, 17, 1, r->code);
    look_up(levels_from(tn__fp4_levels, 12), r->code);
    /* 2^(e-128): e-1 is the exponent of a float; the two smallest are subnormal and computed by halving. */
    __m128i e = _mm_setr_epi8((char)b[0], (char)b[17], (char)b[34], (char)b[51], (char)b[68], (char)b[85],
                              (char)b[102], (char)b[119], 0, 0, 0, 0, 0, 0, 0, 0);
    __m256i wide = _mm256_cvtepu8_epi32(e);
    __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(wide, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), wide);
    __mmask8 small = _mm256_cmplt_epu32_mask(wide, _mm256_set1_epi32(2));
    r->scale = scale_and_offset(_mm256_castsi256_ps(_mm256_mask_mov_epi32(bits, small, tiny)), 12);
}

/* ---- Super-blocks, per 32 ---- */

/* The first 16 bytes of q4_K and q5_K (d, dmin, six-bit scales) as eight scales and eight minima: combines the bytes
 * with the low bits and those with the two high bits. */
TN__INLINE __m512 scales_k4(const void *block) {
    __m128i head = _mm_loadu_si128((const __m128i *)block);
    __m128i low = _mm_shuffle_epi8(head, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    __m128i high = _mm_shuffle_epi8(head, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                        _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    enum { OR_OF_AND = 0xf8 };
    __m128i codes = _mm_ternarylogic_epi32(low, _mm_srli_epi32(high, 2), _mm_set1_epi8(0x30), OR_OF_AND);
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m512 d = _mm512_permutexvar_ps(first, _mm512_castps128_ps512(_mm_cvtph_ps(head)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), d);
}
TN__INLINE __m512i row_of_nibbles(const uint8_t *qs) {
    __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)qs));
    return _mm512_and_si512(_mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)),
                            _mm512_set1_epi8(15));
}
TN__INLINE void load_q4_K(const uint8_t *block, tn__regs *r) {
    const tn__q4_K *b = (const tn__q4_K *)block;
    for (int g = 0; g < 4; g++) r->code[g] = row_of_nibbles(b->qs + 32 * g);
    r->scale = scales_k4(b);
}
TN__INLINE void load_q5_K(const uint8_t *block, tn__regs *r) {
    const tn__q5_K *b = (const tn__q5_K *)block;
    __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)b->qh));
    for (int g = 0; g < 4; g++) {
        __m512i bit =
            _mm512_mask_set1_epi8(_mm512_set1_epi8((char)(1 << 2 * g)), 0xffffffff00000000u, (char)(2 << 2 * g));
        __m512i code = row_of_nibbles(b->qs + 32 * g);
        r->code[g] = _mm512_mask_add_epi8(code, _mm512_test_epi8_mask(high, bit), code, _mm512_set1_epi8(16));
    }
    r->scale = scales_k4(b);
}
TN__INLINE void load_iq4_xs(const uint8_t *block, tn__regs *r) {
    const tn__iq4_xs *b = (const tn__iq4_xs *)block;
    const __m512i spread = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3);
    for (int p = 0; p < 4; p++) {
        __m512i pair = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(b->qs + 32 * p)));
        r->code[p] = split_nibbles(_mm512_permutexvar_epi64(spread, pair));
    }
    look_up(levels_from(tn__iq4_levels, 128), r->code);
    uint32_t low;
    memcpy(&low, b->scales_l, 4);
    __m256i l = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32((int)low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
        _mm256_set1_epi32(15));
    __m256i h = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(b->scales_h), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
        _mm256_set1_epi32(3));
    __m256i scale = _mm256_sub_epi32(_mm256_or_si256(l, _mm256_slli_epi32(h, 4)), _mm256_set1_epi32(32));
    __m256 d = _mm256_set1_ps(tn__f16_to_f32(b->d));
    r->scale = scale_and_offset(_mm256_mul_ps(d, _mm256_cvtepi32_ps(scale)), 128);
}

/* ---- Super-blocks, per 16 ---- */

/* Two bits of each of 32 bytes, twice: shifted by `first` in the lower half and by `first` + 2 in the upper. */
TN__INLINE __m512i row_of_pairs(__m512i twice, int first) {
    __m512i by = _mm512_setr_epi64(first, first, first, first, first + 2, first + 2, first + 2, first + 2);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, by), _mm512_set1_epi8(3));
}
TN__INLINE void load_q2_K(const uint8_t *block, tn__regs *r) {
    const tn__q2_K *b = (const tn__q2_K *)block;
    for (int half = 0; half < 2; half++) {
        __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(b->qs + 32 * half)));
        r->code[2 * half] = row_of_pairs(twice, 0);
        r->code[2 * half + 1] = row_of_pairs(twice, 4);
    }
    __m128i sm = _mm_loadu_si128((const __m128i *)b->scales);
    __m128i scale = _mm_and_si128(sm, _mm_set1_epi8(15)),
            min = _mm_and_si128(_mm_srli_epi16(sm, 4), _mm_set1_epi8(15));
    r->scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scale)), _mm512_set1_ps(tn__f16_to_f32(b->d)));
    r->less = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(min)), _mm512_set1_ps(tn__f16_to_f32(b->dmin)));
}
TN__INLINE __m128i scales_k3(const uint8_t *bytes) {
    uint32_t a, b, c;
    memcpy(&a, bytes, 4);
    memcpy(&b, bytes + 4, 4);
    memcpy(&c, bytes + 8, 4);
    __m128i code = _mm_setr_epi32((int)((a & 0x0f0f0f0f) | (c & 0x03030303) << 4),
                                  (int)((b & 0x0f0f0f0f) | (c >> 2 & 0x03030303) << 4),
                                  (int)((a >> 4 & 0x0f0f0f0f) | (c >> 4 & 0x03030303) << 4),
                                  (int)((b >> 4 & 0x0f0f0f0f) | (c >> 6 & 0x03030303) << 4));
    return _mm_sub_epi8(code, _mm_set1_epi8(32));
}
TN__INLINE void load_q3_K(const uint8_t *block, tn__regs *r) {
    const tn__q3_K *b = (const tn__q3_K *)block;
    __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)b->hmask));
    for (int v = 0; v < 4; v++) {
        __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(b->qs + 32 * (v / 2))));
        __m512i bit =
            _mm512_mask_set1_epi8(_mm512_set1_epi8((char)(1 << 2 * v)), 0xffffffff00000000u, (char)(2 << 2 * v));
        __m512i code = row_of_pairs(twice, 4 * (v & 1));
        r->code[v] = _mm512_mask_add_epi8(code, _mm512_test_epi8_mask(high, bit), code, _mm512_set1_epi8(4));
    }
    r->scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales_k3(b->scales))),
                             _mm512_set1_ps(tn__f16_to_f32(b->d)));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(4));
}
TN__INLINE void load_q6_K(const uint8_t *block, tn__regs *r) {
    const tn__q6_K *b = (const tn__q6_K *)block;
    for (int half = 0; half < 2; half++) {
        __m512i low = _mm512_loadu_si512(b->ql + 64 * half);
        __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(b->qh + 32 * half)));
        /* Rotations move each row's two bits to bits 4 and 5 of their byte. */
        __m512i first = _mm512_rolv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
        __m512i second = _mm512_rolv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 62, 62, 62, 62));
        const __m512i nibble = _mm512_set1_epi8(15), bits45 = _mm512_set1_epi8(0x30);
        enum { OR_OF_AND = 0xf8 }; /* a | (b & c) */
        r->code[2 * half] = _mm512_ternarylogic_epi64(_mm512_and_si512(low, nibble), first, bits45, OR_OF_AND);
        r->code[2 * half + 1] =
            _mm512_ternarylogic_epi64(_mm512_and_si512(_mm512_srli_epi16(low, 4), nibble), second, bits45, OR_OF_AND);
    }
    __m128i scale = _mm_loadu_si128((const __m128i *)b->scales);
    r->scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scale)), _mm512_set1_ps(tn__f16_to_f32(b->d)));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(32));
}
TN__INLINE void load_nvfp4(const uint8_t *b, tn__regs *r) { /* four blocks of 64 */
    float scale[16];
    const __m512i spread = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    for (int v = 0; v < 4; v++) {
        __m512i qs = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(b + 36 * v + 4)));
        __m512i twice = _mm512_permutexvar_epi64(spread, qs);
        r->code[v] = _mm512_and_si512(_mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4)),
                                      _mm512_set1_epi8(15));
        for (int g = 0; g < 4; g++) scale[4 * v + g] = tn__nvfp4_scale(b[36 * v + g]);
    }
    look_up(levels_from(tn__fp4_levels, 12), r->code);
    r->scale = _mm512_loadu_ps(scale);
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(12));
}
TN__INLINE void load_tq2_0(const uint8_t *block, tn__regs *r) {
    const tn__tq2_0 *b = (const tn__tq2_0 *)block;
    for (int half = 0; half < 2; half++) {
        __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(b->qs + 32 * half)));
        r->code[2 * half] = row_of_pairs(twice, 0);
        r->code[2 * half + 1] = row_of_pairs(twice, 4);
    }
    r->scale = r->less = _mm512_set1_ps(tn__f16_to_f32(b->d));
}
TN__INLINE void load_tq1_0(const uint8_t *block, tn__regs *r) {
    const tn__tq1_0 *b = (const tn__tq1_0 *)block;
    uint8_t code[256], *to = code;
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int k = 0; k < 5; k++, to += 32) {
        for (int j = 0; j < 32; j++) to[j] = (uint8_t)((uint8_t)(b->qs[j] * power[k]) * 3 >> 8);
    }
    for (int k = 0; k < 5; k++, to += 16) {
        for (int j = 0; j < 16; j++) to[j] = (uint8_t)((uint8_t)(b->qs[32 + j] * power[k]) * 3 >> 8);
    }
    for (int k = 0; k < 4; k++, to += 4) {
        for (int j = 0; j < 4; j++) to[j] = (uint8_t)((uint8_t)(b->qh[j] * power[k]) * 3 >> 8);
    }
    for (int v = 0; v < 4; v++) r->code[v] = _mm512_loadu_si512(code + 64 * v);
    r->scale = r->less = _mm512_set1_ps(tn__f16_to_f32(b->d));
}

/* ---- Lattices, per 16: codes are the signed values plus 64 ---- */

/* Eight lattice points, each spread to eight bytes, are inserted into a vector from registers. Through memory, the
 * load of the vector would wait for its eight stores. */
#define TN__EIGHT(point)                                                                                             \
    _mm512_set_epi64(point(7), point(6), point(5), point(4), point(3), point(2), point(1), point(0))
TN__INLINE long long pairs_apart(uint16_t point) { return (long long)_pdep_u64(point, 0x0303030303030303u); }
TN__INLINE long long triples_apart(uint32_t first, uint32_t second) {
    return (long long)_pdep_u64(first | second << 12, 0x0707070707070707u);
}
TN__INLINE __m512i signed_levels(__m512i points, uint64_t minus, __m512i levels) {
    __m512i value = _mm512_shuffle_epi8(levels, points);
    value = _mm512_mask_sub_epi8(value, _cvtu64_mask64(minus), _mm512_setzero_si512(), value);
    return _mm512_add_epi8(value, _mm512_set1_epi8(64));
}
/* Seven sign bits per byte and an eighth that makes their number even, computed by nibbles. */
TN__INLINE __m256i eight_signs(__m256i seven) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    __m256i low = _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, nibble));
    __m256i high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), nibble));
    return _mm256_or_si256(seven, _mm256_xor_si256(low, high));
}
TN__INLINE uint64_t quarter(__m256i v, int i) {
    uint64_t part[4];
    _mm256_storeu_si256((__m256i *)part, v);
    return part[i];
}
/* Eight words of four seven-bit fields and a four-bit scale: the layout of the xxs types. */
TN__INLINE __m256i xxs_signs(__m256i words) {
    __m512i wide = _mm512_cvtepu32_epi64(words);
    __m512i seven = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x150e0700), wide);
    return eight_signs(_mm256_and_si256(_mm512_cvtepi64_epi32(seven), _mm256_set1_epi8(127)));
}
/* d·(0.5 + scale)·factor for eight words with the scale on top, each for two sub-blocks of 16. */
TN__INLINE void xxs_scales(__m256i words, float d, float factor, tn__regs *r) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m256 code = _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(words, 28)), _mm256_set1_ps(0.5f));
    __m256 scale = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(d), code), _mm256_set1_ps(factor));
    r->scale = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(scale));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(64));
}
TN__INLINE __m512i iq2_levels(void) { return _mm512_set1_epi32(8 | 25 << 8 | 43 << 16); }
TN__INLINE void load_iq2_xxs(const uint8_t *block, tn__regs *r) {
    const tn__iq2_xxs *b = (const tn__iq2_xxs *)block;
    const uint8_t *index = (const uint8_t *)b->qs; /* four of every eight bytes */
    __m256i rest = _mm512_cvtepi64_epi32(_mm512_srli_epi64(_mm512_loadu_si512(b->qs), 32)), signs = xxs_signs(rest);
    for (int v = 0; v < 4; v++) {
#define POINT(i) pairs_apart(tn__iq2_xxs_lattice[index[16 * v + (i) % 4 + (i) / 4 * 8]])
        r->code[v] = signed_levels(TN__EIGHT(POINT), quarter(signs, v), iq2_levels());
#undef POINT
    }
    xxs_scales(rest, tn__f16_to_f32(b->d), 0.25f, r);
}
/* 16 four-bit codes, low nibble first: d·(0.5 + code)/4. */
TN__INLINE void nibble_scales(const uint8_t *scales, float d, tn__regs *r) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)scales);
    __m128i codes = _mm_and_si128(_mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi8(15));
    __m512 scale = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), _mm512_set1_ps(0.5f));
    r->scale = _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_set1_ps(d)), _mm512_set1_ps(0.25f));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(64));
}
TN__INLINE void load_iq2_xs(const uint8_t *block, tn__regs *r) {
    const tn__iq2_xs *b = (const tn__iq2_xs *)block;
    __m256i signs = eight_signs(_mm512_cvtepi16_epi8(_mm512_srli_epi16(_mm512_loadu_si512(b->qs), 9)));
    for (int v = 0; v < 4; v++) {
#define POINT(i) pairs_apart(tn__iq2_xs_lattice[b->qs[8 * v + (i)] & 511])
        r->code[v] = signed_levels(TN__EIGHT(POINT), quarter(signs, v), iq2_levels());
#undef POINT
    }
    nibble_scales(b->scales, tn__f16_to_f32(b->d), r);
}
TN__INLINE void load_iq2_s(const uint8_t *block, tn__regs *r) {
    const tn__iq2_s *b = (const tn__iq2_s *)block;
    for (int v = 0; v < 4; v++) {
        uint64_t minus;
        memcpy(&minus, b->signs + 8 * v, 8);
#define POINT(i)                                                                                                     \
    pairs_apart(tn__iq2_s_lattice[b->qs[8 * v + (i)] | (b->qh[2 * v + (i) / 4] >> 2 * ((i) % 4) & 3) << 8])
        r->code[v] = signed_levels(TN__EIGHT(POINT), minus, iq2_levels());
#undef POINT
    }
    nibble_scales(b->scales, tn__f16_to_f32(b->d), r);
}
TN__INLINE void load_iq3_xxs(const uint8_t *block, tn__regs *r) {
    const tn__iq3_xxs *b = (const tn__iq3_xxs *)block;
    __m256i rest = _mm256_loadu_si256((const __m256i *)b->gas), signs = xxs_signs(rest);
    __m512i levels = _mm512_broadcast_i32x4(_mm_loadl_epi64((const __m128i *)tn__iq3_xxs_levels));
    for (int v = 0; v < 4; v++) {
        const uint8_t *q = b->qs + 16 * v;
#define POINT(i) triples_apart(tn__iq3_xxs_lattice[q[2 * (i)]], tn__iq3_xxs_lattice[q[2 * (i) + 1]])
        r->code[v] = signed_levels(TN__EIGHT(POINT), quarter(signs, v), levels);
#undef POINT
    }
    xxs_scales(rest, tn__f16_to_f32(b->d), 0.5f, r);
}
TN__INLINE void load_iq3_s(const uint8_t *block, tn__regs *r) {
    const tn__iq3_s *b = (const tn__iq3_s *)block;
    __m512i levels = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0));
    for (int v = 0; v < 4; v++) {
        const uint8_t *q = b->qs + 16 * v;
        uint32_t high = (uint32_t)(b->qh[2 * v] | b->qh[2 * v + 1] << 8);
        uint64_t minus;
        memcpy(&minus, b->signs + 8 * v, 8);
#define POINT(i)                                                                                                     \
    triples_apart(tn__iq3_s_lattice[q[2 * (i)] | (high >> 2 * (i)&1) << 8],                                          \
                  tn__iq3_s_lattice[q[2 * (i) + 1] | (high >> (2 * (i) + 1) & 1) << 8])
        r->code[v] = signed_levels(TN__EIGHT(POINT), minus, levels);
#undef POINT
    }
    uint32_t nibbles;
    memcpy(&nibbles, b->scales, 4);
    __m128i bytes = _mm_cvtsi32_si128((int)nibbles);
    __m128i codes = _mm_and_si128(_mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi8(15));
    codes = _mm_unpacklo_epi8(codes, codes); /* each for two sub-blocks of 16 */
    codes = _mm_add_epi8(_mm_add_epi8(codes, codes), _mm_set1_epi8(1));
    r->scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), _mm512_set1_ps(tn__f16_to_f32(b->d)));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(64));
}
/* iq1, in units of 1/8: a value is -8, 0 or 8, plus or minus one; `down` has a bit per point. */
TN__INLINE __m512i iq1_codes(__m512i points, uint32_t down) {
    uint64_t bytes = _pdep_u64(down & 255, 0x0101010101010101u) * 255;
    __m512i value = _mm512_shuffle_epi8(_mm512_set1_epi32(0x00494139), points);
    return _mm512_mask_sub_epi8(value, _cvtu64_mask64(bytes), value, _mm512_set1_epi8(2));
}
TN__INLINE void load_iq1_s(const uint8_t *block, tn__regs *r) {
    const tn__iq1_s *b = (const tn__iq1_s *)block;
    for (int v = 0; v < 4; v++) {
        const uint8_t *q = b->qs + 8 * v;
        uint32_t first = b->qh[2 * v], second = b->qh[2 * v + 1];
#define POINT(i) pairs_apart(tn__iq1_s_lattice[q[i] | (((i) < 4 ? first : second) >> 3 * ((i) % 4) & 7) << 8])
        r->code[v] = iq1_codes(TN__EIGHT(POINT), (first >> 15) * 15 | (second >> 15) * 240);
#undef POINT
    }
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m256i code = _mm256_and_si256(
        _mm256_srli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)b->qh)), 11), _mm256_set1_epi32(14));
    __m256 scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(code, _mm256_set1_epi32(1))),
                                 _mm256_set1_ps(tn__f16_to_f32(b->d) * 0.125f));
    r->scale = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(scale));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(64));
}
TN__INLINE void load_iq1_m(const uint8_t *block, tn__regs *r) {
    const tn__iq1_m *b = (const tn__iq1_m *)block;
    uint16_t sc[4];
    memcpy(sc, b->scales, 8);
    float d =
        tn__f16_to_f32((uint16_t)(sc[0] >> 12 | (sc[1] >> 8 & 0x00f0) | (sc[2] >> 4 & 0x0f00) | (sc[3] & 0xf000)));
    for (int v = 0; v < 4; v++) {
        const uint8_t *q = b->qs + 8 * v;
        uint32_t high;
        memcpy(&high, b->qh + 4 * v, 4); /* a nibble per point: three bits of the index, one for down */
#define POINT(i) pairs_apart(tn__iq1_s_lattice[q[i] | (high >> 4 * (i)&7) << 8])
        r->code[v] = iq1_codes(TN__EIGHT(POINT), _pext_u32(high, 0x88888888u));
#undef POINT
    }
    uint64_t all;
    memcpy(&all, sc, 8);
    const __m256i spread = _mm256_setr_m128i(_mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3),
                                             _mm_setr_epi8(4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7));
    __m256i words = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)all), spread);
    words = _mm256_srlv_epi16(words, _mm256_set1_epi64x(0x0009000600030000)); /* three bits each */
    __m256i codes = _mm256_and_si256(_mm256_add_epi16(words, words), _mm256_set1_epi16(14));
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_add_epi16(codes, _mm256_set1_epi16(1)));
    r->scale = _mm512_mul_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(d * 0.125f));
    r->less = _mm512_mul_ps(r->scale, _mm512_set1_ps(64));
}

/* X(NAME, name, bytes of 256 values, 1: scales per 16, offset)
 * The offset is the code of the value zero; -1: `less` is an independent minimum. */
#define TN__AVX512_TYPES(X)                                                                                          \
    X(Q4_0, q4_0, 144, 0, 8)                                                                                         \
    X(Q4_1, q4_1, 160, 0, -1)                                                                                        \
    X(Q5_0, q5_0, 176, 0, 16)                                                                                        \
    X(Q5_1, q5_1, 192, 0, -1)                                                                                        \
    X(Q8_0, q8_0, 272, 0, 128)                                                                                       \
    X(IQ4_NL, iq4_nl, 144, 0, 128)                                                                                   \
    X(MXFP4, mxfp4, 136, 0, 12)                                                                                      \
    X(Q4_K, q4_K, 144, 0, -1)                                                                                        \
    X(Q5_K, q5_K, 176, 0, -1)                                                                                        \
    X(IQ4_XS, iq4_xs, 136, 0, 128)                                                                                   \
    X(Q2_K, q2_K, 84, 1, -1)                                                                                         \
    X(Q3_K, q3_K, 110, 1, 4)                                                                                         \
    X(Q6_K, q6_K, 210, 1, 32)                                                                                        \
    X(NVFP4, nvfp4, 144, 1, 12)                                                                                      \
    X(TQ1_0, tq1_0, 54, 1, 1)                                                                                        \
    X(TQ2_0, tq2_0, 66, 1, 1)                                                                                        \
    X(IQ2_XXS, iq2_xxs, 66, 1, 64)                                                                                   \
    X(IQ2_XS, iq2_xs, 74, 1, 64)                                                                                     \
    X(IQ2_S, iq2_s, 82, 1, 64)                                                                                       \
    X(IQ3_XXS, iq3_xxs, 98, 1, 64)                                                                                   \
    X(IQ3_S, iq3_s, 110, 1, 64)                                                                                      \
    X(IQ1_S, iq1_s, 50, 1, 64)                                                                                       \
    X(IQ1_M, iq1_m, 56, 1, 64)

#endif
