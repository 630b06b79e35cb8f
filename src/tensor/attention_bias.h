/* Buckets of relative positions (T5): which entry of a bias table a cell uses. */
#ifndef TN_TENSOR_ATTENTION_BIAS_H
#define TN_TENSOR_ATTENTION_BIAS_H

#include <math.h>
#include <stdint.h>

#include "tenon/tensor.h"

enum { TN__BIAS_BUCKETS = 128 };

/* Distances below `exact` have a bucket each; bucket exact + i holds the distances from starts[i - 1] on. */
typedef struct tn__bias_buckets {
    int32_t exact, n_starts;
    int32_t later; /* first bucket of cells after the query; 0: they are at distance 0 */
    int32_t starts[TN__BIAS_BUCKETS / 2];
} tn__bias_buckets;

/* The sources and parameters of the node were checked by its shape rule. */
static inline tn__bias_buckets tn__bias_buckets_of(const tn_tensor *node) {
    const tn_attention_params *p = &node->params.attention;
    const int32_t all = (int32_t)node->src[TN_ATTN_BIAS_TABLE]->ne[1], n = p->bias_bidirectional ? all / 2 : all;
    tn__bias_buckets b = {n / 2, n - n / 2 - 1, p->bias_bidirectional ? n : 0, {0}};
    for (int32_t i = 0; i < b.n_starts; i++) {
        /* The smallest distance whose logarithm reaches the bucket. The last factor keeps starts that are whole
         * numbers in their bucket. */
        const double start = b.exact * pow((double)p->bias_distance / b.exact, (double)(i + 1) / (n - b.exact));
        b.starts[i] = (int32_t)ceil(start * (1 - 1e-9));
    }
    return b;
}

#endif
