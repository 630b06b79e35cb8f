/* LoRA adapters and control vectors with random values for tiny models, and the models that merging gives: in
 * doubles, without the library's own merging. */
#ifndef TN_TESTS_TINY_ADAPTERS_H
#define TN_TESTS_TINY_ADAPTERS_H

#include "tenon/tensor.h"

#include <stddef.h>

typedef struct tiny_adapter {
    const char *path;
    float scale; /* for merging */
} tiny_adapter;

/* Weights that adapters of tests change: matrices of attention, of recurrent layers, of experts and of dense parts,
 * the embedding and the output, as far as the model has them. `only` (NULL: all) is a part of their names. Layers
 * from `first_layer` on. Every other weight has the double rank. */
typedef struct tiny_adapter_options {
    const char *only;
    int rank; /* 0: 4 */
    float alpha;
    tn_type type; /* F32 */
    int first_layer;
    uint64_t seed;
} tiny_adapter_options;
/* Returns the number of weights that are adapted. */
int tiny_adapter_write(const char *path, const char *model, const tiny_adapter_options *options);
/* The model with the adapters merged. Its tensors must be f32. */
void tiny_merge(const char *path, const char *model, const tiny_adapter *adapters, size_t n);

/* direction.1 … direction.N of a model. */
void tiny_control_vector_write(const char *path, const char *model, uint64_t seed);
/* The model with scale × direction added to blk.N.ffn_down.bias, for layers first … last. */
void tiny_merge_control(const char *path, const char *model, const char *vector, float scale, int first, int last);

#endif
