/* Mat-mul in plain C: weights are converted to floats chunk by chunk, and sums are kept in eight lanes of f32. */
#include <string.h>

#include "backend/cpu/kernels/shared.h"
#include "base/half.h"
#include "quant/quant.h"

static void f32_to_f32(const void *from, float *to, int64_t n) { memcpy(to, from, (size_t)n * sizeof(float)); }
static void f16_to_f32(const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = tn__f16_to_f32(((const uint16_t *)from)[i]);
}
static void bf16_to_f32(const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = tn__bf16_to_f32(((const uint16_t *)from)[i]);
}
static void fp8_to_f32(const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = tn__fp8_to_f32(((const uint8_t *)from)[i]);
}

void (*tn__to_f32_of(tn_type type))(const void *, float *, int64_t) {
    switch (type) {
    case TN_F32: return f32_to_f32;
    case TN_F16: return f16_to_f32;
    case TN_BF16: return bf16_to_f32;
    case TN_FP8: return fp8_to_f32;
#define TN_ROW(NAME, name)                                                                                           \
    case TN_##NAME: return tn__dequantize_row_##name;
        TN_ROW(Q4_0, q4_0)
        TN_ROW(Q4_1, q4_1)
        TN_ROW(Q5_0, q5_0)
        TN_ROW(Q5_1, q5_1)
        TN_ROW(Q8_0, q8_0)
        TN_ROW(Q8_1, q8_1)
        TN_ROW(Q2_K, q2_K)
        TN_ROW(Q3_K, q3_K)
        TN_ROW(Q4_K, q4_K)
        TN_ROW(Q5_K, q5_K)
        TN_ROW(Q6_K, q6_K)
        TN_ROW(Q8_K, q8_K)
        TN_ROW(IQ2_XXS, iq2_xxs)
        TN_ROW(IQ2_XS, iq2_xs)
        TN_ROW(IQ2_S, iq2_s)
        TN_ROW(IQ3_XXS, iq3_xxs)
        TN_ROW(IQ3_S, iq3_s)
        TN_ROW(IQ1_S, iq1_s)
        TN_ROW(IQ1_M, iq1_m)
        TN_ROW(IQ4_NL, iq4_nl)
        TN_ROW(IQ4_XS, iq4_xs)
        TN_ROW(TQ1_0, tq1_0)
        TN_ROW(TQ2_0, tq2_0)
        TN_ROW(MXFP4, mxfp4)
        TN_ROW(NVFP4, nvfp4)
#undef TN_ROW
    default: return NULL;
    }
}

void tn__weights_f32(const tn__matmul_job *job, int64_t row, int64_t chunk, int64_t count, float *out) {
    uint8_t block[1024]; /* the largest: 256 floats */
    const void *from = block;
    if (job->repacked) {
        tn__repacked_read_chunk(job->type, job->k, job->w, row, chunk, block);
    } else {
        size_t before = (size_t)(chunk * TN__CHUNK / tn__block_of(job->type)) * (size_t)tn__bytes_of(job->type);
        from = (const uint8_t *)job->w + (size_t)row * job->w_stride + before;
    }
    tn__to_f32_of(job->type)(from, out, count);
}

/* Chunk c of activation row j as floats. */
static const float *activations(const tn__matmul_job *job, int64_t c, int64_t j, int64_t count, float *buffer) {
    if (job->form == TN__ACT_PLAIN)
        return (const float *)((const char *)job->x + (size_t)j * job->x_stride) + c * TN__CHUNK;
    const char *at =
        (const char *)job->x + (size_t)(c * job->x_rows + job->x_first + j) * tn__act_chunk_bytes(job->form);
    if (job->form == TN__ACT_F32) return (const float *)at;
    if (job->form == TN__ACT_BF16) {
        bf16_to_f32(at, buffer, count);
    } else {
        const tn__q8_chunk *q = (const tn__q8_chunk *)at;
        for (int64_t i = 0; i < count; i++) buffer[i] = q->d[i / 32] * (float)q->qs[i];
    }
    return buffer;
}

enum { LANES = 8, COLUMNS = 16 };

static void add_dot(int64_t n, const float *w, const float *x, float *lanes) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) lanes[l] += w[i + l] * x[i + l];
    }
    for (int l = 0; i < n; i++, l++) lanes[l] += w[i] * x[i];
}

static void matmul(const tn__matmul_job *job, int ith, int nth) {
    int64_t chunks = (job->k + TN__CHUNK - 1) / TN__CHUNK, row_from, row_to, col_from = 0, col_to = job->n;
    if (job->m >= nth || job->m >= job->n) {
        tn__share(job->m, 1, ith, nth, &row_from, &row_to);
    } else {
        row_from = 0;
        row_to = job->m;
        tn__share(job->n, 1, ith, nth, &col_from, &col_to);
    }
    for (int64_t j0 = col_from; j0 < col_to; j0 += COLUMNS) {
        int columns = (int)(col_to - j0 < COLUMNS ? col_to - j0 : COLUMNS);
        for (int64_t i = row_from; i < row_to; i++) {
            float w[TN__CHUNK], buffer[TN__CHUNK], lanes[COLUMNS][LANES] = {{0}};
            for (int64_t c = 0; c < chunks; c++) {
                int64_t count = job->k - c * TN__CHUNK < TN__CHUNK ? job->k - c * TN__CHUNK : TN__CHUNK;
                tn__weights_f32(job, i, c, count, w);
                for (int j = 0; j < columns; j++)
                    add_dot(count, w, activations(job, c, j0 + j, count, buffer), lanes[j]);
            }
            for (int j = 0; j < columns; j++) {
                const float *l = lanes[j];
                tn__out_row(job, j0 + j)[i] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
            }
        }
    }
}

static tn__act_form matmul_form(tn_type type, bool repacked, int64_t m, int64_t n, int64_t k, int how) {
    (void)type, (void)repacked, (void)m, (void)n, (void)k, (void)how;
    return TN__ACT_PLAIN;
}

static size_t matmul_scratch(tn__act_form form, int64_t n, int64_t k) {
    (void)form, (void)n, (void)k;
    return 0;
}

/* Every level can read repacked weights, but they are faster only where a vector holds 16 rows. */
static bool repacks_nothing(tn_type type, int64_t m, int64_t k) {
    (void)type, (void)m, (void)k;
    return false;
}

void tn__kernels_generic_matmul(tn__cpu_kernels *table) {
    table->matmul_form = matmul_form;
    table->act_bytes = tn__act_bytes;
    table->act_prepare = tn__act_prepare;
    table->matmul_scratch = matmul_scratch;
    table->matmul = matmul;
    table->can_repack = repacks_nothing;
    table->repacked_bytes = tn__repacked_bytes;
    table->repack = tn__repack;
    table->repacked_read_row = tn__repacked_read_row;
    for (int t = 0; t < TN_TYPE_LIMIT; t++) table->to_f32[t] = tn__to_f32_of((tn_type)t);
}
