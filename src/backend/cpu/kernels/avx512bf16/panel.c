/* Conversion of weights of any type to bfloat16 panels. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/avx512/transpose.h"
#include "backend/cpu/kernels/avx512bf16/internal.h"

/* Converts a code to a float without a conversion instruction: or-ed into the mantissa of 128.0, its bits make 128 +
 * code (or 128 + code/2, one bit lower). One multiply-add turns that into the weight. */
#define CODE(bits, mask) _mm512_ternarylogic_epi32(bits, mask, _mm512_set1_epi32(0x43000000), 0xea) /* a & b | c */

/* Interleaves two vectors of floats as bfloat16 pairs, rounded to nearest. */
static inline __m512i pairs(__m512 even, __m512 odd) {
    const __m512i half = _mm512_set1_epi32(0x8000), low = _mm512_add_epi32(_mm512_castps_si512(even), half),
                  high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}

/* weight = scale·(float of the bits) + off. A NaN is replaced by one whose lower bits are zero: otherwise the carry
 * of rounding could turn it into a number. */
typedef struct line {
    __m512 scale, off;
} line;
static inline line line_of(__m512 scale, float shift, __m512 off) {
    __m512 nan = _mm512_set1_ps(__builtin_nanf(""));
    scale = _mm512_mask_mov_ps(scale, _mm512_cmp_ps_mask(scale, scale, _CMP_UNORD_Q), nan);
    off = _mm512_fnmadd_ps(scale, _mm512_set1_ps(shift), off);
    return (line){scale, _mm512_mask_mov_ps(off, _mm512_cmp_ps_mask(off, off, _CMP_UNORD_Q), nan)};
}
#define AT(bits, mask, l) _mm512_fmadd_ps(_mm512_castsi512_ps(CODE(bits, mask)), (l).scale, (l).off)

/* Four bytes per row, each value + 128; off is zero, or minus the minimum. */
static inline line line_of_bytes(__m512 scale, __m512 off) {
    return line_of(_mm512_add_ps(scale, scale), 192, off); /* 128 + byte/2 */
}
static inline void from_bytes(__m512i b, line l, uint16_t (*out)[16][2]) {
    const __m512i mask = _mm512_set1_epi32(0x7f8000);
    _mm512_store_si512(out[0], pairs(AT(_mm512_slli_epi32(b, 15), mask, l), AT(_mm512_slli_epi32(b, 7), mask, l)));
    _mm512_store_si512(out[1], pairs(AT(_mm512_srli_epi32(b, 1), mask, l), AT(_mm512_srli_epi32(b, 9), mask, l)));
}
/* The low or the high nibbles of four bytes per row. */
static inline void from_low(__m512i b, line l, uint16_t (*out)[16][2]) {
    const __m512i mask = _mm512_set1_epi32(0x0f0000);
    _mm512_store_si512(out[0], pairs(AT(_mm512_slli_epi32(b, 16), mask, l), AT(_mm512_slli_epi32(b, 8), mask, l)));
    _mm512_store_si512(out[1], pairs(AT(b, mask, l), AT(_mm512_srli_epi32(b, 8), mask, l)));
}
static inline void from_high(__m512i b, line l, uint16_t (*out)[16][2]) {
    const __m512i mask = _mm512_set1_epi32(0x0f0000);
    _mm512_store_si512(out[0], pairs(AT(_mm512_slli_epi32(b, 12), mask, l), AT(_mm512_slli_epi32(b, 4), mask, l)));
    _mm512_store_si512(out[1], pairs(AT(_mm512_srli_epi32(b, 4), mask, l), AT(_mm512_srli_epi32(b, 12), mask, l)));
}
/* Four bytes per row with six bits each. */
static inline void from_six_bits(__m512i b, line l, uint16_t (*out)[16][2]) {
    const __m512i mask = _mm512_set1_epi32(0x3f0000);
    _mm512_store_si512(out[0], pairs(AT(_mm512_slli_epi32(b, 16), mask, l), AT(_mm512_slli_epi32(b, 8), mask, l)));
    _mm512_store_si512(out[1], pairs(AT(b, mask, l), AT(_mm512_srli_epi32(b, 8), mask, l)));
}

/* ---- Repacked weights: already transposed, unpacked 32 values of 16 rows at a time ---- */

static inline __m512 halves(const uint8_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }
static inline __m512 small(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }

static void tile_q8_0(const uint8_t *group, int64_t unit, uint16_t (*out)[16][2]) {
    const uint8_t *w = group + unit * 544;
    const line l = line_of_bytes(halves(w), _mm512_setzero_ps());
    for (int q = 0; q < 8; q++) from_bytes(_mm512_loadu_si512(w + 32 + 64 * q), l, out + 2 * q);
}
static void tile_q4_0(const uint8_t *group, int64_t unit, uint16_t (*out)[16][2]) {
    const uint8_t *w = group + unit * 288;
    const line l = line_of(halves(w), 128 + 8, _mm512_setzero_ps());
    for (int q = 0; q < 4; q++) {
        const __m512i b = _mm512_loadu_si512(w + 32 + 64 * q);
        from_low(b, l, out + 2 * q);
        from_high(b, l, out + 8 + 2 * q);
    }
}
static void tile_q4_K(const uint8_t *group, int64_t unit, uint16_t (*out)[16][2]) {
    const uint8_t *w = group + unit / 8 * 2304, *from = w + 64 + unit % 8 / 2 * 48,
                  *codes = w + 256 + unit % 8 / 2 * 512;
    const __m512 d = halves(w), dmin = _mm512_sub_ps(_mm512_setzero_ps(), halves(w + 32));
    const __m128i a = _mm_loadu_si128((const __m128i *)(from + unit % 2 * 16)),
                  c = _mm_loadu_si128((const __m128i *)(from + 32));
    /* The minimum: two low bits at the top of a, four high bits in one half of c. */
    const __m128i high = unit % 2 ? _mm_srli_epi16(c, 2) : _mm_slli_epi16(c, 2);
    const __m128i min =
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 6), _mm_set1_epi8(3)), _mm_and_si128(high, _mm_set1_epi8(60)));
    const __m512 scale = _mm512_mul_ps(d, small(_mm_and_si128(a, _mm_set1_epi8(63))));
    const line l = line_of(scale, 128, _mm512_mul_ps(dmin, small(min)));
    if (unit % 2) {
        for (int q = 0; q < 8; q++) from_high(_mm512_loadu_si512(codes + 64 * q), l, out + 2 * q);
    } else {
        for (int q = 0; q < 8; q++) from_low(_mm512_loadu_si512(codes + 64 * q), l, out + 2 * q);
    }
}
static inline __attribute__((always_inline)) void tile_q6_K_of(const uint8_t *w, const int half, const int r,
                                                               uint16_t (*out)[16][2]) {
    const __m512i nibble = _mm512_set1_epi8(15), bits45 = _mm512_set1_epi8(0x30);
    const uint8_t *codes = w + 288 + 1536 * half;
    enum { OR_OF_AND = 0xf8 };
    line l[2]; /* per 16 values */
    for (int s = 0; s < 2; s++) {
        const uint8_t *at = w + 32 + 16 * (8 * half + 2 * r + s);
        const __m512i scale = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at));
        l[s] = line_of(_mm512_mul_ps(halves(w), _mm512_cvtepi32_ps(scale)), 128 + 32, _mm512_setzero_ps());
    }
    for (int q = 0; q < 8; q++) {
        __m512i low = _mm512_loadu_si512(codes + 192 * q + 64 * (r % 2)),
                t = _mm512_loadu_si512(codes + 192 * q + 128);
        if (r >= 2) low = _mm512_srli_epi16(low, 4);
        t = r == 0   ? _mm512_slli_epi16(t, 4)
            : r == 1 ? _mm512_slli_epi16(t, 2)
            : r == 2 ? t
                     : _mm512_srli_epi16(t, 2);
        from_six_bits(_mm512_ternarylogic_epi64(_mm512_and_si512(low, nibble), t, bits45, OR_OF_AND), l[q / 4],
                      out + 2 * q);
    }
}
static void tile_q6_K(const uint8_t *group, int64_t unit, uint16_t (*out)[16][2]) {
    const uint8_t *w = group + unit / 8 * 3360;
    const int half = (int)(unit % 8 / 4);
    switch (unit % 4) {
    case 0: tile_q6_K_of(w, half, 0, out); break;
    case 1: tile_q6_K_of(w, half, 1, out); break;
    case 2: tile_q6_K_of(w, half, 2, out); break;
    default: tile_q6_K_of(w, half, 3, out); break;
    }
}

tn__bf16_tile_fn *tn__bf16_tile_of(tn_type type) {
    switch (type) {
    case TN_Q8_0: return tile_q8_0;
    case TN_Q4_0: return tile_q4_0;
    case TN_Q4_K: return tile_q4_K;
    case TN_Q6_K: return tile_q6_K;
    default: return NULL;
    }
}

/* ---- Weights in rows ---- */

/* Blocks: from the panel of bytes, code by code. value = scale·(code - 128) - less. */
static void from_codes(const tn__panel16 *p, bool per16, bool minimum, tn__panel_bf16 *out) {
    int each = per16 ? 4 : 8; /* vectors of codes per scale */
    for (int s = 0; s < 64 / each; s++) {
        const __m512 less = minimum ? _mm512_load_ps(p->less[s]) : _mm512_setzero_ps();
        const line l = line_of_bytes(_mm512_load_ps(p->scale[s]), _mm512_sub_ps(_mm512_setzero_ps(), less));
        for (int q = s * each; q < (s + 1) * each; q++)
            from_bytes(_mm512_load_si512(p->codes[q]), l, out->value + 2 * q);
    }
}

static inline __m512i f16_pairs_to_bf16(__m512i halves) {
    __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
           high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Half floats and floats: 32 values of each row, transposed. */
void tn__bf16_rows_tile(const tn__matmul_job *job, int64_t row, int64_t unit, uint16_t (*out)[16][2]) {
    const int64_t at = unit * 32, left = job->k - at;
    const uint32_t some = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0;
    __m512i r[16];
    for (int i = 0; i < 16; i++) {
        const char *w = (const char *)job->w + (size_t)(row + i) * job->w_stride;
        const __mmask32 mask = row + i < job->m ? some : 0;
        if (job->type == TN_F32) {
            const float *f = (const float *)w + at;
            r[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps((__mmask16)(mask >> 16), f + 16),
                                                _mm512_maskz_loadu_ps((__mmask16)mask, f));
        } else {
            r[i] = _mm512_maskz_loadu_epi16(mask, (const uint16_t *)w + at);
            if (job->type == TN_F16) r[i] = f16_pairs_to_bf16(r[i]);
        }
    }
    tn__transpose16(r);
    for (int i = 0; i < 16; i++) _mm512_store_si512(out[i], r[i]);
}
static void from_floats(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel_bf16 *out) {
    int64_t left = job->k - c * TN__CHUNK, count = left < TN__CHUNK ? left : TN__CHUNK;
    if (job->repacked) { /* the layout of a panel */
        const uint8_t *group =
            (const uint8_t *)job->w + (size_t)(row / 16) * tn__repacked_group_bytes(job->type, job->k);
        for (int64_t i = 0; i < TN__CHUNK / 2; i++) {
            __m512i v = 2 * i < count ? _mm512_loadu_si512(group + (size_t)(c * TN__CHUNK / 2 + i) * 64)
                                      : _mm512_setzero_si512();
            _mm512_store_si512(out->value[i], job->type == TN_F16 ? f16_pairs_to_bf16(v) : v);
        }
        return;
    }
    for (int u = 0; u < TN__CHUNK / 32; u++)
        tn__bf16_rows_tile(job, row, c * (TN__CHUNK / 32) + u, out->value + 16 * u);
}

void tn__bf16_panel(const tn__matmul_job *job, int64_t row, int64_t c, tn__panel_bf16 *panel) {
    if (job->type == TN_F32 || job->type == TN_F16 || job->type == TN_BF16) {
        from_floats(job, row, c, panel);
        return;
    }
    if (job->repacked) {
        const uint8_t *group =
            (const uint8_t *)job->w + (size_t)(row / 16) * tn__repacked_group_bytes(job->type, job->k);
        tn__bf16_tile_fn *tile = tn__bf16_tile_of(job->type);
        for (int u = 0; u < 8; u++) {
            if ((8 * c + u) * 32 < job->k)
                tile(group, 8 * c + u, panel->value + 16 * u);
            else
                memset(panel->value + 16 * u, 0, 16 * sizeof panel->value[0]);
        }
        return;
    }
    _Alignas(64) tn__panel16 codes;
    tn__avx512_panel(job, row, c, &codes);
    from_codes(&codes, tn__avx512_scale_per_16(job->type), tn__avx512_minimum(job->type), panel);
}
