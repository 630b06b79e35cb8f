/* Passes over a whole row of logits, compiled for several vector widths. All versions give the same bits. */
#ifndef TN_TEXT_SAMPLER_SCAN_H
#define TN_TEXT_SAMPLER_SCAN_H

#include "tenon/base.h"

/* Rows are padded with -inf to whole blocks and aligned to 64 bytes. The maximum of every block is stored beside the
 * row, so that a search for large values can skip most blocks. */
#define TN__SCAN_BLOCK 128
static inline size_t tn__scan_blocks(size_t n) { return (n + TN__SCAN_BLOCK - 1) / TN__SCAN_BLOCK; }

/* Logits are clamped to this, and anything below its negative counts as -inf. It is so far below the largest float
 * that penalties and temperatures within their limits cannot overflow. */
#define TN__LOGIT_MAX 1e24f

typedef struct tn__scan {
    const char *name;
    /* Copies a row and fills its padding and block maxima. NaN and tokens whose bit in `mask` is not set become -inf;
     * `mask` may be NULL. `source` needs no alignment. */
    void (*load)(float *row, float *block_max, const float *source, const uint64_t *mask, size_t n);
    /* For rows and block maxima; n is a multiple of 16. */
    float (*max)(const float *values, size_t n);
    void (*divide)(float *values, size_t n, float divisor);
    /* Sets weights[i] = exp(row[i] - max) and block_sums[b] to their sums; returns the total. */
    double (*exp_sum)(const float *row, float *weights, double *block_sums, size_t n_blocks, float max);
    /* Sum and count of the elements that are not -inf, and the sum of their squared differences from `mean`. */
    double (*sum)(const float *row, size_t n_blocks, double *count);
    double (*sum_squares)(const float *row, size_t n_blocks, float mean);
} tn__scan;

/* The widest version this CPU can run. */
const tn__scan *tn__scan_widest(void);
/* The versions that this CPU can run, narrowest first; NULL after the last. For tests. */
const tn__scan *tn__scan_version(size_t i);

/* exp(x) for x <= 0 with the bits that exp_sum computes: relative error below 2e-7, 0 below -87. */
float tn__scan_exp(float x);

#endif
