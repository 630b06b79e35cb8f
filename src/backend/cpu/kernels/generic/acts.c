/* Preparation of activations for mat-mul: chunks of 256 floats, bfloat16, or eight-bit blocks with their sums. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/shared.h"
#include "base/half.h"

size_t tn__act_chunk_bytes(tn__act_form form) {
    switch (form) {
    case TN__ACT_PLAIN: return 0;
    case TN__ACT_F32: return TN__CHUNK * sizeof(float);
    case TN__ACT_BF16:
    case TN__ACT_TILES: return TN__CHUNK * sizeof(uint16_t);
    case TN__ACT_Q8: return sizeof(tn__q8_chunk);
    }
    return 0;
}

size_t tn__act_bytes(tn__act_form form, int64_t rows, int64_t k) {
    size_t chunks = (size_t)((k + TN__CHUNK - 1) / TN__CHUNK);
    if (form == TN__ACT_TILES) rows = (rows + TN__TILE_ROWS - 1) / TN__TILE_ROWS * TN__TILE_ROWS;
    return chunks * (size_t)rows * tn__act_chunk_bytes(form);
}

static void q8_chunk(const float *x, tn__q8_chunk *out) {
    for (int b = 0; b < 8; b++, x += 32) {
        float peak = 0;
        bool finite = true;
        for (int j = 0; j < 32; j++) {
            finite = finite && isfinite(x[j]);
            peak = fabsf(x[j]) > peak ? fabsf(x[j]) : peak;
        }
        float d = finite ? peak / 127 : NAN, inverse = finite && peak > 0 ? 127 / peak : 0;
        int sum[2] = {0, 0};
        for (int j = 0; j < 32; j++) {
            float q = finite ? rintf(x[j] * inverse) : 0; /* ±127 at most, up to one rounding */
            q = q > 127 ? 127 : q < -127 ? -127 : q;
            out->qs[32 * b + j] = (int8_t)q;
            sum[j / 16] += (int)q;
        }
        out->d[b] = d;
        out->bias[b] = -128 * (sum[0] + sum[1]);
        out->ds[b] = d * (float)(sum[0] + sum[1]);
        out->reserved[b] = 0;
        for (int h = 0; h < 2; h++) {
            out->bias16[2 * b + h] = -128 * sum[h];
            out->ds16[2 * b + h] = d * (float)sum[h];
        }
    }
}

static void tiles(const float *x, size_t x_stride, const int32_t *gather, int64_t rows, int64_t k, uint16_t *data,
                  int ith, int nth) {
    const int64_t chunks = (k + TN__CHUNK - 1) / TN__CHUNK, groups = (rows + TN__TILE_ROWS - 1) / TN__TILE_ROWS;
    int64_t from, to;
    tn__share(chunks * groups, 1, ith, nth, &from, &to);
    for (int64_t u = from; u < to; u++) {
        const int64_t c = u / groups;
        for (int i = 0; i < TN__TILE_ROWS; i++) {
            const int64_t r = u % groups * TN__TILE_ROWS + i, source = r >= rows ? -1 : gather ? gather[r] : r;
            const float *row = source < 0 ? NULL : (const float *)((const char *)x + (size_t)source * x_stride);
            for (int64_t j = 0; j < TN__CHUNK; j++) {
                const int64_t at = c * TN__CHUNK + j;
                data[(u * 8 + j / 32) * 512 + i * 32 + j % 32] = row && at < k ? tn__f32_to_bf16(row[at]) : 0;
            }
        }
    }
}

void tn__act_prepare(tn__act_form form, const float *x, size_t x_stride, const int32_t *gather, int64_t rows,
                     int64_t k, void *data, int ith, int nth) {
    int64_t chunks = (k + TN__CHUNK - 1) / TN__CHUNK, from, to;
    size_t bytes = tn__act_chunk_bytes(form);
    if (form == TN__ACT_PLAIN) return;
    if (form == TN__ACT_TILES) {
        tiles(x, x_stride, gather, rows, k, data, ith, nth);
        return;
    }
    const bool whole = rows >= nth;
    tn__share(chunks * rows, whole ? chunks : 1, ith, nth, &from, &to);
    for (int64_t u = from; u < to; u++) {
        int64_t c = whole ? u % chunks : u / rows, r = whole ? u / chunks : u % rows, count = k - c * TN__CHUNK;
        float padded[TN__CHUNK];
        const float *row = (const float *)((const char *)x + (size_t)(gather ? gather[r] : r) * x_stride);
        const float *values = row + c * TN__CHUNK;
        char *out = (char *)data + (size_t)(c * rows + r) * bytes;
        if (count < TN__CHUNK) {
            memset(padded, 0, sizeof padded);
            memcpy(padded, values, (size_t)count * sizeof(float));
            values = padded;
        }
        if (form == TN__ACT_F32) {
            memcpy(out, values, bytes);
        } else if (form == TN__ACT_BF16) {
            for (int j = 0; j < TN__CHUNK; j++) ((uint16_t *)out)[j] = tn__f32_to_bf16(values[j]);
        } else {
            q8_chunk(values, (tn__q8_chunk *)out);
        }
    }
}
