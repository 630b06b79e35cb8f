/* Conversion to and from repacked weights in plain C (layouts: repack.h). */
#include <string.h>

#include "backend/cpu/kernels/shared.h"
#include "quant/quant.h"

/* Values in one unit of a group. */
static int64_t unit_values(tn_type type) { return type == TN_Q4_K || type == TN_Q6_K ? 256 : 32; }

bool tn__can_repack(tn_type type, int64_t m, int64_t k) {
    switch (type) {
    case TN_Q4_0:
    case TN_Q8_0:
    case TN_Q4_K:
    case TN_Q6_K:
    case TN_F16:
    case TN_BF16: return m > 0 && k > 0 && k % unit_values(type) == 0;
    default: return false;
    }
}

size_t tn__repacked_group_bytes(tn_type type, int64_t k) {
    return (size_t)(k / tn__block_of(type)) * (size_t)tn__bytes_of(type) * 16;
}
size_t tn__repacked_bytes(tn_type type, int64_t m, int64_t k) {
    return (size_t)((m + 15) / 16) * tn__repacked_group_bytes(type, k);
}

/* Copies row r's `n` bytes (a multiple of 4) into or out of [n/4][16][4]. */
static void weave(uint8_t *group, int r, const uint8_t *bytes, int n) {
    for (int q = 0; q < n / 4; q++) memcpy(group + (q * 16 + r) * 4, bytes + 4 * q, 4);
}
static void unweave(const uint8_t *group, int r, uint8_t *bytes, int n) {
    for (int q = 0; q < n / 4; q++) memcpy(bytes + 4 * q, group + (q * 16 + r) * 4, 4);
}

static void put_q8_0(uint8_t *unit, int r, const tn__q8_0 *b) {
    uint8_t codes[32];
    for (int j = 0; j < 32; j++) codes[j] = (uint8_t)((uint8_t)b->qs[j] ^ 0x80);
    memcpy(unit + 2 * r, &b->d, 2);
    weave(unit + 32, r, codes, 32);
}
static void get_q8_0(const uint8_t *unit, int r, tn__q8_0 *b) {
    uint8_t codes[32];
    memcpy(&b->d, unit + 2 * r, 2);
    unweave(unit + 32, r, codes, 32);
    for (int j = 0; j < 32; j++) b->qs[j] = (int8_t)(codes[j] ^ 0x80);
}

static void put_q4_0(uint8_t *unit, int r, const tn__q4_0 *b) {
    memcpy(unit + 2 * r, &b->d, 2);
    weave(unit + 32, r, b->qs, 16);
}
static void get_q4_0(const uint8_t *unit, int r, tn__q4_0 *b) {
    memcpy(&b->d, unit + 2 * r, 2);
    unweave(unit + 32, r, b->qs, 16);
}

static void put_q4_K(uint8_t *unit, int r, const tn__q4_K *b) {
    memcpy(unit + 2 * r, &b->d, 2);
    memcpy(unit + 32 + 2 * r, &b->dmin, 2);
    for (int p = 0; p < 4; p++) {
        uint8_t scale[2], min[2], *to = unit + 64 + 48 * p + r;
        for (int i = 0; i < 2; i++) tn__scale_min_k4(b->scales, 2 * p + i, &scale[i], &min[i]);
        to[0] = (uint8_t)(scale[0] | (min[0] & 3) << 6);
        to[16] = (uint8_t)(scale[1] | (min[1] & 3) << 6);
        to[32] = (uint8_t)(min[0] >> 2 | min[1] >> 2 << 4);
    }
    for (int g = 0; g < 4; g++) weave(unit + 256 + 512 * g, r, b->qs + 32 * g, 32);
}
static void get_q4_K(const uint8_t *unit, int r, tn__q4_K *b) {
    uint8_t scale[8], min[8];
    memcpy(&b->d, unit + 2 * r, 2);
    memcpy(&b->dmin, unit + 32 + 2 * r, 2);
    for (int p = 0; p < 4; p++) {
        const uint8_t *from = unit + 64 + 48 * p + r;
        scale[2 * p] = from[0] & 63;
        scale[2 * p + 1] = from[16] & 63;
        min[2 * p] = (uint8_t)(from[0] >> 6 | (from[32] & 15) << 2);
        min[2 * p + 1] = (uint8_t)(from[16] >> 6 | from[32] >> 4 << 2);
    }
    for (int j = 0; j < 4; j++) {
        b->scales[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        b->scales[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        b->scales[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
    for (int g = 0; g < 4; g++) unweave(unit + 256 + 512 * g, r, b->qs + 32 * g, 32);
}

/* The three vectors whose bits make up the same codes are adjacent, so that memory is read in order: j = 0 the low
 * bits of rows 0 and 2 of a half, j = 1 those of rows 1 and 3, j = 2 the high bits of all. i = 8·half + (index within
 * 32) / 4. */
static uint8_t *q6_vector(uint8_t *unit, int i, int j) { return unit + 288 + 192 * i + 64 * j; }
static uint8_t *q6_bytes(const tn__q6_K *b, int i, int j) {
    const int half = i / 8, at = 4 * (i % 8);
    return (uint8_t *)(uintptr_t)(j < 2 ? b->ql + 64 * half + 32 * j + at : b->qh + 32 * half + at);
}

static void put_q6_K(uint8_t *unit, int r, const tn__q6_K *b) {
    memcpy(unit + 2 * r, &b->d, 2);
    for (int s = 0; s < 16; s++) unit[32 + 16 * s + r] = (uint8_t)b->scales[s];
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 3; j++) weave(q6_vector(unit, i, j), r, q6_bytes(b, i, j), 4);
    }
}
static void get_q6_K(const uint8_t *unit, int r, tn__q6_K *b) {
    memcpy(&b->d, unit + 2 * r, 2);
    for (int s = 0; s < 16; s++) b->scales[s] = (int8_t)unit[32 + 16 * s + r];
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 3; j++) unweave(q6_vector((uint8_t *)unit, i, j), r, q6_bytes(b, i, j), 4);
    }
}

void tn__repack(tn_type type, int64_t m, int64_t k, const void *rows, size_t stride, void *repacked, int64_t first,
                int64_t n) {
    size_t group_bytes = tn__repacked_group_bytes(type, k);
    int64_t units = k / unit_values(type);
    for (int64_t g = first; g < first + n; g++) {
        uint8_t *group = (uint8_t *)repacked + (size_t)g * group_bytes;
        if (16 * g + 16 > m) memset(group, 0, group_bytes);
        for (int r = 0; r < 16 && 16 * g + r < m; r++) {
            const uint8_t *row = (const uint8_t *)rows + (size_t)(16 * g + r) * stride;
            for (int64_t u = 0; u < units; u++) {
                switch (type) {
                case TN_Q8_0: put_q8_0(group + 544 * u, r, (const tn__q8_0 *)(row + 34 * u)); break;
                case TN_Q4_0: put_q4_0(group + 288 * u, r, (const tn__q4_0 *)(row + 18 * u)); break;
                case TN_Q4_K: put_q4_K(group + 2304 * u, r, (const tn__q4_K *)(row + 144 * u)); break;
                case TN_Q6_K: put_q6_K(group + 3360 * u, r, (const tn__q6_K *)(row + 210 * u)); break;
                default: weave(group + 1024 * u, r, row + 64 * u, 64); break;
                }
            }
        }
    }
}

void tn__repacked_read_chunk(tn_type type, int64_t k, const void *repacked, int64_t row, int64_t chunk, void *out) {
    const uint8_t *group = (const uint8_t *)repacked + (size_t)(row / 16) * tn__repacked_group_bytes(type, k);
    int64_t each = unit_values(type), first = chunk * TN__CHUNK / each;
    int64_t end = (chunk + 1) * TN__CHUNK / each < k / each ? (chunk + 1) * TN__CHUNK / each : k / each;
    int r = (int)(row % 16);
    uint8_t *to = out;
    for (int64_t u = first; u < end; u++) {
        switch (type) {
        case TN_Q8_0: get_q8_0(group + 544 * u, r, (tn__q8_0 *)(to + 34 * (u - first))); break;
        case TN_Q4_0: get_q4_0(group + 288 * u, r, (tn__q4_0 *)(to + 18 * (u - first))); break;
        case TN_Q4_K: get_q4_K(group + 2304 * u, r, (tn__q4_K *)(to + 144 * (u - first))); break;
        case TN_Q6_K: get_q6_K(group + 3360 * u, r, (tn__q6_K *)(to + 210 * (u - first))); break;
        default: unweave(group + 1024 * u, r, to + 64 * (u - first), 64); break;
        }
    }
}

void tn__repacked_read_row(tn_type type, int64_t m, int64_t k, const void *repacked, int64_t row, void *out) {
    (void)m;
    size_t chunk_bytes = (size_t)(TN__CHUNK / tn__block_of(type)) * (size_t)tn__bytes_of(type);
    for (int64_t c = 0; c * TN__CHUNK < k; c++)
        tn__repacked_read_chunk(type, k, repacked, row, c, (uint8_t *)out + (size_t)c * chunk_bytes);
}
