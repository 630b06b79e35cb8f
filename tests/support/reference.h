/* An independent reference for every op, in f64 and without any cleverness, and random cases for it. Both work on
 * tensors whose sources lie in host memory; what runs the op under test is the caller's choice. */
#ifndef TN_TESTS_REFERENCE_H
#define TN_TESTS_REFERENCE_H

#include "support.h"

#include "tenon/tensor.h"

/* All elements of a tensor in the order of its shape; the caller frees with free(). */
double *reference_values(const tn_tensor *t);

/* What `node` should be, in the order of its shape. `scale`, when not NULL, receives for every element the magnitude
 * that rounding errors are relative to: the sum of the magnitudes of what was added up. */
void reference_run(const tn_tensor *node, double *result, double *scale);

/* A random case of an op: a node whose sources are leaves, or views of leaves, filled with numbers, in an arena with
 * data. NULL when there is no case for the op. With `wild`, sources of element-wise ops and mat-muls contain NaN and
 * infinities. */
tn_tensor *random_case(tn_arena *arena, tn_op op, rng *r, bool wild);
/* Attention number i of a list that goes through sizes of heads, types of caches, few and many tokens. NULL after the
 * last. */
tn_tensor *cache_case(tn_arena *arena, int i, rng *r);

/* A product with experts of this shape; same_input: a token's experts multiply the same column. */
typedef struct expert_shape {
    int64_t k, m, experts, used, tokens;
    bool same_input;
} expert_shape;
tn_tensor *experts_case(tn_arena *arena, tn_type type, const expert_shape *e, rng *r);

/* A random tensor of this shape. Layouts: 0 contiguous, 1 rows with gaps, 2 outer dimensions permuted, 3 rows and
 * columns swapped (plain types only). */
tn_tensor *random_tensor(tn_arena *arena, tn_type type, const int64_t ne[4], int layout, float spread, rng *r);

/* How far a result stored in this type may be from the reference, relative to the scale: the one table. */
double tolerance_of_type(tn_type type);

#endif
