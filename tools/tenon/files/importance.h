/* Importance files: how much each column of each weight matrix matters, measured on real text.
 *
 * Reads GGUF files with tensors NAME.in_sum2 and NAME.counts, and the older binary format. */
#ifndef TENON_TOOL_IMPORTANCE_H
#define TENON_TOOL_IMPORTANCE_H

#include "tenon/gguf.h"

struct importance;

tn_status importance_open(const char *path, struct importance **out);
void importance_free(struct importance *importance);
size_t importance_count(const struct importance *importance);

/* Weights for a tensor: `columns` for each of `matrices` (experts). *weights is NULL when the file has none for this
 * tensor; TN_E_SHAPE when it has another number of them. The importance object owns the weights. */
tn_status importance_find(const struct importance *importance, const char *tensor, int64_t columns, int64_t matrices,
                          const float **weights);

/* The matrices whose means the file has for a tensor, and the rows of input that each mean is of; 0: no such tensor.
 */
size_t importance_counts(const struct importance *importance, const char *tensor, const float **counts);

#endif
