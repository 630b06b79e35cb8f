/* Mat-mul of few activation rows in f32. A template over the vector type of the including file. Weights of any type
 * are converted to floats, 256 at a time, and multiplied with up to four activation rows. */
#include "backend/cpu/kernels/shared.h"
#include "backend/cpu/kernels/template/convert.h"

#include <string.h>

TN__VEC vf gemv_lanes(tn_type type, const void *w, int64_t i) {
    if (type == TN_F16) return vf_load_f16((const uint16_t *)w + i);
    if (type == TN_BF16) return vf_load_bf16((const uint16_t *)w + i);
    return vf_load((const float *)w + i);
}

/* `type` is F32, F16 or BF16: what w holds. */
TN__VEC void gemv_add(tn_type type, const void *w, const float *const x[4], int64_t count, vf acc[4][2],
                      float rest[4], const int cols) {
    int64_t i = 0;
    for (; i + 2 * VL <= count; i += 2 * VL) {
        vf a = gemv_lanes(type, w, i), b = gemv_lanes(type, w, i + VL);
#pragma GCC unroll 4
        for (int q = 0; q < cols; q++) {
            acc[q][0] = vf_fma(a, vf_load(x[q] + i), acc[q][0]);
            acc[q][1] = vf_fma(b, vf_load(x[q] + i + VL), acc[q][1]);
        }
    }
    for (; i < count; i++) {
        float v = type == TN_F32   ? ((const float *)w)[i]
                  : type == TN_F16 ? tn__f16_to_f32(((const uint16_t *)w)[i])
                                   : tn__bf16_to_f32(((const uint16_t *)w)[i]);
        for (int q = 0; q < cols; q++) rest[q] += v * x[q][i];
    }
}

TN__VEC void gemv_columns(const tn__matmul_job *job, tn_type type, int64_t row, int64_t j, const int cols) {
    vf acc[4][2];
    float rest[4] = {0, 0, 0, 0};
    const char *w = (const char *)job->w + (size_t)row * job->w_stride;
    size_t bytes = (size_t)(TN__CHUNK / tn__block_of(job->type)) * (size_t)tn__bytes_of(job->type);
#pragma GCC unroll 4
    for (int q = 0; q < cols; q++) acc[q][0] = acc[q][1] = vf_zero();
    for (int64_t c = 0; c * TN__CHUNK < job->k; c++, w += bytes) {
        int64_t count = job->k - c * TN__CHUNK < TN__CHUNK ? job->k - c * TN__CHUNK : TN__CHUNK;
        const float *x[4];
        float floats[TN__CHUNK];
        uint8_t block[TN__CHUNK * sizeof(float)];
        const void *from = w;
        for (int q = 0; q < cols; q++) x[q] = tn__f32_at(job, c, j + q);
        if (job->repacked) {
            tn__repacked_read_chunk(job->type, job->k, job->w, row, c, block);
            from = block;
        }
        if (type != job->type) { /* `type` is F32: convert first */
            row_to_f32(job->type, from, floats, count);
            from = floats;
        }
        gemv_add(type, from, x, count, acc, rest, cols);
    }
#pragma GCC unroll 4
    for (int q = 0; q < cols; q++) tn__out_row(job, j + q)[row] = vf_sum(vf_add(acc[q][0], acc[q][1])) + rest[q];
}

#define GEMV_F32(TYPE)                                                                                               \
    static void gemv_##TYPE(const tn__matmul_job *job, int64_t from, int64_t to) {                                   \
        for (int64_t row = from; row < to; row++) {                                                                  \
            int64_t j = 0;                                                                                           \
            for (; j + 4 <= job->n; j += 4) gemv_columns(job, TN_##TYPE, row, j, 4);                                 \
            if (job->n - j == 3) gemv_columns(job, TN_##TYPE, row, j, 3);                                            \
            if (job->n - j == 2) gemv_columns(job, TN_##TYPE, row, j, 2);                                            \
            if (job->n - j == 1) gemv_columns(job, TN_##TYPE, row, j, 1);                                            \
        }                                                                                                            \
    }
GEMV_F32(F32)
GEMV_F32(F16)
GEMV_F32(BF16)

static void gemv_f32(const tn__matmul_job *job, int64_t from, int64_t to) {
    (job->type == TN_F16 ? gemv_F16 : job->type == TN_BF16 ? gemv_BF16 : gemv_F32)(job, from, to);
}
