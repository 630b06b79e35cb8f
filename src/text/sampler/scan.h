/* Passes over a whole row of logits, compiled for several vector widths with the same bits at each. */
#ifndef TN_LLM_SAMPLER_SCAN_H
#define TN_LLM_SAMPLER_SCAN_H

#include "tenon/base.h"

/* Rows are padded with -inf to whole blocks, and the maximum of every block is kept beside them, so that a search for
 * large values can step over most blocks. Rows are aligned to 64 bytes. */
#define TN__SCAN_BLOCK 128
static inline size_t tn__scan_blocks(size_t n) { return (n + TN__SCAN_BLOCK - 1) / TN__SCAN_BLOCK; }

/* Logits are clamped to this; anything below its negative is impossible. Far enough from the largest float that
 * penalties and temperatures within their limits cannot overflow. */
#define TN__LOGIT_MAX 1e24f

typedef struct tn__scan {
    const char *name;
    /* Copies a row, NaN and whatever `mask` (bit set: allowed; may be NULL) excludes becoming -inf; fills the padding
     * and the block maxima. `source` needs no alignment. */
    void (*load)(float *row, float *block_max, const float *source, const uint64_t *mask, size_t n);
    float (*max)(const float *values, size_t n); /* n a multiple of 16; also for block maxima */
    /* n a multiple of 16 */
    void (*divide)(float *values, size_t n, float divisor);
    /* weights[i] = exp(row[i] - max), block_sums[b] their sums, and the total is returned. */
    double (*exp_sum)(const float *row, float *weights, double *block_sums, size_t n_blocks, float max);
    /* Sum and count of the elements that are not -inf, and the sum of the squares of their differences from mean. */
    double (*sum)(const float *row, size_t n_blocks, double *count);
    double (*sum_squares)(const float *row, size_t n_blocks, float mean);
} tn__scan;

/* The widest version this CPU can run. */
const tn__scan *tn__scan_best(void);
/* All versions that this CPU can run, narrowest first; NULL past the last. For tests. */
const tn__scan *tn__scan_version(size_t i);

/* exp(x) for x <= 0 with the bits that exp_sum computes: relative error below 2e-7, 0 below -87. */
float tn__scan_exp(float x);

#endif
