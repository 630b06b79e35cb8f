/* Access to tensors as arrays of f64, for the files of the reference implementation. */
#ifndef TN_TESTS_REFERENCE_ARRAY_H
#define TN_TESTS_REFERENCE_ARRAY_H

#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All elements of a tensor in the order of its shape; absent for a NULL tensor. The user frees `v`. */
typedef struct array {
    const tn_tensor *t;
    double *v;
    int64_t n0, n1, n2, n3;
} array;

static inline array load(const tn_tensor *t) {
    if (!t) return (array){0};
    return (array){t, reference_values(t), t->ne[0], t->ne[1], t->ne[2], t->ne[3]};
}
static inline double at(const array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return a->v[((i3 * a->n2 + i2) * a->n1 + i1) * a->n0 + i0];
}

#define EACH(t)                                                                                                      \
    for (int64_t i3 = 0, e = 0; i3 < (t)->ne[3]; i3++)                                                               \
        for (int64_t i2 = 0; i2 < (t)->ne[2]; i2++)                                                                  \
            for (int64_t i1 = 0; i1 < (t)->ne[1]; i1++)                                                              \
                for (int64_t i0 = 0; i0 < (t)->ne[0]; i0++, e++)
#define EACH_ROW(t)                                                                                                  \
    for (int64_t i3 = 0, row = 0; i3 < (t)->ne[3]; i3++)                                                             \
        for (int64_t i2 = 0; i2 < (t)->ne[2]; i2++)                                                                  \
            for (int64_t i1 = 0; i1 < (t)->ne[1]; i1++, row++)

/* Convolutions, pooling and scaling (reference_conv.c). Arguments as for reference_run. */
void reference_conv(const tn_tensor *node, double *out, double *scale);
void reference_im2col(const tn_tensor *node, double *out);
void reference_conv_transpose(const tn_tensor *node, double *out, double *scale);
void reference_pool(const tn_tensor *node, double *out, double *scale);
void reference_upscale(const tn_tensor *node, double *out, double *scale);

/* Recurrent layers (recurrent/reference.c). Arguments as for reference_run. */
void reference_recurrent(const tn_tensor *node, double *out, double *scale);

#endif
