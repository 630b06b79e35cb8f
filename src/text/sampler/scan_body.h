/* Body of the passes over a row of logits. scan.c includes it once per vector width. NAME(x) makes names unique,
 * TARGET selects the instruction set and WIDTH is the number of floats per register, so that a group of 16 lanes has
 * PARTS registers. Helpers for vectors are macros, because a vector must not be passed to a function that is compiled
 * for another width. */

typedef float NAME(vf) __attribute__((vector_size(4 * WIDTH)));
typedef int32_t NAME(vi) __attribute__((vector_size(4 * WIDTH)));
typedef float NAME(vf_loose) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define vf NAME(vf)
#define vi NAME(vi)
#define PARTS (LANES / WIDTH)
#define LOAD(pointer) (*(const NAME(vf_loose) *)(pointer))
#define STORE(pointer, v) (*(NAME(vf_loose) *)(pointer) = (v))
#define SPLAT(x) ((vf){0} + (x))
#define SELECT(which, yes, no) ((vf)(((which) & (vi)(yes)) | (~(which) & (vi)(no))))
#define MAXIMUM(a, b) SELECT((a) > (b), a, b)
#define EACH_PART for (int part = 0; part < PARTS; part++)

TARGET static float NAME(reduce_max)(const float *lanes) {
    float m = lanes[0];
    for (int i = 1; i < LANES; i++) m = lanes[i] > m ? lanes[i] : m;
    return m;
}

/* Adds 16 floats to one double in a fixed order. */
TARGET static double NAME(reduce_sum)(const float *lanes) {
    double pairs[8];
    for (int i = 0; i < 8; i++) pairs[i] = (double)lanes[i] + (double)lanes[i + 8];
    return ((pairs[0] + pairs[4]) + (pairs[1] + pairs[5])) + ((pairs[2] + pairs[6]) + (pairs[3] + pairs[7]));
}

TARGET static void NAME(load_part)(float *row, float *block_max, const float *source, const uint64_t *mask,
                                   size_t n) {
    const vf none = SPLAT(-INFINITY), top = SPLAT(TN__LOGIT_MAX), bottom = SPLAT(-TN__LOGIT_MAX);
    vi lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = 1 << i;
    for (size_t b = 0; b < n; b += TN__SCAN_BLOCK) {
        vf block[PARTS];
        EACH_PART block[part] = none;
        for (size_t i = b; i < b + TN__SCAN_BLOCK; i += LANES) {
            uint32_t bits = mask ? (uint32_t)(mask[i / 64] >> (i % 64)) : 0;
            EACH_PART {
                vf x = LOAD(source + i + part * WIDTH);
                vf y = SELECT(x > top, top, x);
                vi keep = x >= bottom; /* false for NaN */
                if (mask) keep &= (((vi){0} + (int32_t)(bits >> (part * WIDTH) & 0xffff)) & lane) != 0;
                y = SELECT(keep, y, none);
                STORE(row + i + part * WIDTH, y);
                block[part] = MAXIMUM(block[part], y);
            }
        }
        float lanes[LANES];
        EACH_PART STORE(lanes + part * WIDTH, block[part]);
        block_max[b / TN__SCAN_BLOCK] = NAME(reduce_max)(lanes);
    }
}

TARGET static void NAME(load)(float *row, float *block_max, const float *source, const uint64_t *mask, size_t n) {
    size_t whole = n / TN__SCAN_BLOCK * TN__SCAN_BLOCK;
    if (mask)
        NAME(load_part)(row, block_max, source, mask, whole);
    else
        NAME(load_part)(row, block_max, source, NULL, whole);
    if (whole == n) return;
    float rest[TN__SCAN_BLOCK];
    uint64_t rest_mask[TN__SCAN_BLOCK / 64] = {0};
    for (size_t i = 0; i < TN__SCAN_BLOCK; i++) {
        rest[i] = whole + i < n ? source[whole + i] : -INFINITY;
        if (mask && whole + i < n && mask[(whole + i) / 64] >> ((whole + i) % 64) & 1)
            rest_mask[i / 64] |= (uint64_t)1 << (i % 64);
    }
    NAME(load_part)(row + whole, block_max + whole / TN__SCAN_BLOCK, rest, mask ? rest_mask : NULL, TN__SCAN_BLOCK);
}

TARGET static float NAME(max)(const float *values, size_t n) {
    vf m[PARTS];
    EACH_PART m[part] = SPLAT(-INFINITY);
    for (size_t i = 0; i < n; i += LANES) EACH_PART {
            vf x = LOAD(values + i + part * WIDTH);
            m[part] = MAXIMUM(m[part], x);
        }
    float lanes[LANES];
    EACH_PART STORE(lanes + part * WIDTH, m[part]);
    return NAME(reduce_max)(lanes);
}

TARGET static void NAME(divide)(float *values, size_t n, float divisor) {
    const vf d = SPLAT(divisor);
    for (size_t i = 0; i < n; i += WIDTH) {
        vf x = LOAD(values + i) / d;
        STORE(values + i, x);
    }
}

TARGET static double NAME(exp_sum)(const float *row, float *weights, double *block_sums, size_t n_blocks, float max) {
    double total = 0;
    const vf shift = SPLAT(max), lowest = SPLAT(EXP_LOWEST), zero = SPLAT(0);
    for (size_t b = 0; b < n_blocks; b++) {
        vf sum[PARTS];
        EACH_PART sum[part] = zero;
        for (size_t i = b * TN__SCAN_BLOCK; i < (b + 1) * TN__SCAN_BLOCK; i += LANES) EACH_PART {
                vf x = LOAD(row + i + part * WIDTH) - shift, w;
                vi alive = x >= lowest;
                x = SELECT(alive, x, zero);
                EXP_BODY(w, x, SPLAT, vi, vf);
                w = SELECT(alive, w, zero);
                STORE(weights + i + part * WIDTH, w);
                sum[part] += w;
            }
        float lanes[LANES];
        EACH_PART STORE(lanes + part * WIDTH, sum[part]);
        total += block_sums[b] = NAME(reduce_sum)(lanes);
    }
    return total;
}

TARGET static double NAME(sum)(const float *row, size_t n_blocks, double *count) {
    double total = 0, finite = 0;
    const vf zero = SPLAT(0), one = SPLAT(1), none = SPLAT(-INFINITY);
    for (size_t b = 0; b < n_blocks; b++) {
        vf sum[PARTS], ones[PARTS];
        EACH_PART sum[part] = ones[part] = zero;
        for (size_t i = b * TN__SCAN_BLOCK; i < (b + 1) * TN__SCAN_BLOCK; i += LANES) EACH_PART {
                vf x = LOAD(row + i + part * WIDTH);
                vi keep = x > none;
                sum[part] += SELECT(keep, x, zero);
                ones[part] += SELECT(keep, one, zero);
            }
        float lanes[LANES];
        EACH_PART STORE(lanes + part * WIDTH, sum[part]);
        total += NAME(reduce_sum)(lanes);
        EACH_PART STORE(lanes + part * WIDTH, ones[part]);
        finite += NAME(reduce_sum)(lanes);
    }
    *count = finite;
    return total;
}

TARGET static double NAME(sum_squares)(const float *row, size_t n_blocks, float mean) {
    double total = 0;
    const vf zero = SPLAT(0), none = SPLAT(-INFINITY), center = SPLAT(mean);
    for (size_t b = 0; b < n_blocks; b++) {
        vf sum[PARTS];
        EACH_PART sum[part] = zero;
        for (size_t i = b * TN__SCAN_BLOCK; i < (b + 1) * TN__SCAN_BLOCK; i += LANES) EACH_PART {
                vf x = LOAD(row + i + part * WIDTH);
                vf d = x - center;
                d = SELECT(x > none, d, zero);
                sum[part] += d * d;
            }
        float lanes[LANES];
        EACH_PART STORE(lanes + part * WIDTH, sum[part]);
        total += NAME(reduce_sum)(lanes);
    }
    return total;
}

static const tn__scan NAME(scan) = {.name = VERSION_NAME,
                                    .load = NAME(load),
                                    .max = NAME(max),
                                    .divide = NAME(divide),
                                    .exp_sum = NAME(exp_sum),
                                    .sum = NAME(sum),
                                    .sum_squares = NAME(sum_squares)};

#undef NAME
#undef TARGET
#undef WIDTH
#undef VERSION_NAME
#undef vf
#undef vi
#undef PARTS
#undef LOAD
#undef STORE
#undef SPLAT
#undef SELECT
#undef MAXIMUM
#undef EACH_PART
