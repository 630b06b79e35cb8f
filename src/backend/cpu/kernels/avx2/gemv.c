/* Mat-mul of few activation rows (decode) with AVX2: eight-bit dot products of 32 values, scaled and summed in f32.
 */
#include <immintrin.h>

#include "backend/cpu/kernels/avx2/internal.h"
#include "backend/cpu/kernels/avx2/unpack.h"

typedef struct sums {
    __m256 even, odd, less;
} sums;

/* A dot product of 32 values: sums of four neighbours in eight lanes; lanes 0…3 are the first 16 values. Sums of two
 * stay below 2^15: codes are below 128 or signed bytes, activations at most ±127. */
TN__INLINE __m256 dot32(__m256i code, __m256i x, bool is_signed) {
    __m256i pairs = is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code))
                              : _mm256_maddubs_epi16(code, x);
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

TN__INLINE void accumulate(const tn__regs *r, const tn__q8_chunk *x, bool per16, bool is_signed, sums *s) {
    __m256 d = _mm256_loadu_ps(x->d), scale[2];
    if (per16) { /* every lane of d applies to two sub-blocks */
        scale[0] = _mm256_mul_ps(r->scale[0], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
        scale[1] = _mm256_mul_ps(r->scale[1], _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
        if (!is_signed) {
            s->less = _mm256_fmadd_ps(r->less[0], _mm256_loadu_ps(x->ds16), s->less);
            s->less = _mm256_fmadd_ps(r->less[1], _mm256_loadu_ps(x->ds16 + 8), s->less);
        }
    } else {
        scale[0] = _mm256_mul_ps(r->scale[0], d);
        if (!is_signed) s->less = _mm256_fmadd_ps(r->less[0], _mm256_loadu_ps(x->ds), s->less);
    }
    for (int b = 0; b < 8; b++) {
        __m256 by;
        if (per16) {
            int at = 2 * b % 8;
            by = _mm256_permutevar8x32_ps(scale[b / 4],
                                          _mm256_setr_epi32(at, at, at, at, at + 1, at + 1, at + 1, at + 1));
        } else {
            by = _mm256_permutevar8x32_ps(scale[0], _mm256_set1_epi32(b));
        }
        __m256 *to = b & 1 ? &s->odd : &s->even;
        *to = _mm256_fmadd_ps(dot32(r->code[b], _mm256_load_si256((const __m256i *)(x->qs + 32 * b)), is_signed), by,
                              *to);
    }
}
TN__INLINE float sum8(__m256 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#define GEMV_OF(NAME, name, bytes, per16, is_signed)                                                                 \
    TN__INLINE void columns_##name(const tn__matmul_job *job, int64_t row, int64_t j, const int cols) {              \
        const uint8_t *w = (const uint8_t *)job->w + (size_t)row * job->w_stride;                                    \
        int64_t chunks = (job->k + TN__CHUNK - 1) / TN__CHUNK;                                                       \
        sums s[4];                                                                                                   \
        for (int q = 0; q < cols; q++) s[q].even = s[q].odd = s[q].less = _mm256_setzero_ps();                       \
        for (int64_t c = 0; c < chunks; c++, w += bytes) {                                                           \
            uint8_t padded[bytes];                                                                                   \
            const uint8_t *from = w;                                                                                 \
            tn__regs r;                                                                                              \
            if (job->repacked || job->k - c * TN__CHUNK < TN__CHUNK) { /* absent blocks are zero: no scale */        \
                memset(padded, 0, sizeof padded);                                                                    \
                if (job->repacked)                                                                                   \
                    tn__repacked_read_chunk(job->type, job->k, job->w, row, c, padded);                              \
                else                                                                                                 \
                    memcpy(padded, w, (size_t)(bytes * (job->k - c * TN__CHUNK) / TN__CHUNK));                       \
                from = padded;                                                                                       \
            }                                                                                                        \
            load_##name(from, &r);                                                                                   \
            for (int q = 0; q < cols; q++) accumulate(&r, tn__q8_at(job, c, j + q), per16, is_signed, &s[q]);        \
        }                                                                                                            \
        for (int q = 0; q < cols; q++)                                                                               \
            tn__out_row(job, j + q)[row] = sum8(_mm256_add_ps(s[q].even, s[q].odd)) - sum8(s[q].less);               \
    }                                                                                                                \
    static void gemv_##name(const tn__matmul_job *job, int64_t from, int64_t to) {                                   \
        for (int64_t row = from; row < to; row++) TN__BY_FOUR(job->n, columns_##name, job, row);                     \
    }
TN__AVX2_TYPES(GEMV_OF)
#undef GEMV_OF

bool tn__avx2_has_q8(tn_type type) {
    switch (type) {
#define CASE(NAME, name, bytes, per16, is_signed)                                                                    \
    case TN_##NAME: return true;
        TN__AVX2_TYPES(CASE)
#undef CASE
    default: return false;
    }
}

void tn__avx2_gemv_q8(const tn__matmul_job *job, int64_t from, int64_t to) {
    switch (job->type) {
#define CASE(NAME, name, bytes, per16, is_signed)                                                                    \
    case TN_##NAME: gemv_##name(job, from, to); break;
        TN__AVX2_TYPES(CASE)
#undef CASE
    default: break;
    }
}
