/* An independent f64 reference implementation of every op, and random cases for it. Both work on tensors whose
 * sources are in host memory; the caller runs the op under test. */
#ifndef TN_TESTS_REFERENCE_H
#define TN_TESTS_REFERENCE_H

#include "support.h"

#include "tenon/tensor.h"

/* All elements of a tensor in the order of its shape; the caller frees with free(). */
double *reference_values(const tn_tensor *t);

/* The expected values of `node`, in the order of its shape. `scale` (may be NULL) receives for every element the
 * magnitude that rounding errors are relative to: the sum of the magnitudes of its terms. */
void reference_run(const tn_tensor *node, double *result, double *scale);

/* All elements of the state after a recurrent op; the caller frees with free(). */
double *reference_state(const tn_tensor *node);

/* A random case of an op: a node whose sources are leaves, or views of leaves, with random values, in an arena with
 * data. NULL if there is no case for the op. With `wild`, sources of element-wise ops and mat-muls contain NaN and
 * infinities. */
tn_tensor *random_case(tn_arena *arena, tn_op op, rng *r, bool wild);
/* Case i of a list of attention over head sizes, cache types, and few and many tokens. NULL after the last. */
tn_tensor *cache_case(tn_arena *arena, int i, rng *r);
/* The same for latent attention, where the values are a view of the keys. */
tn_tensor *latent_case(tn_arena *arena, int i, rng *r);

/* A random page table and queries; returns the cells of a page. */
int32_t random_pages(tn_arena *a, tn_attention_sources *s, int64_t tokens, int64_t cells, rng *r);
/* Random selections, with small whole numbers, so that scores are exact and many are equal. */
tn_tensor *select_case(tn_arena *arena, rng *r);
void reference_select(const tn_tensor *node, double *result);

/* A random table for recurrent ops: interleaved sequences, branches, stored states, padding; with `hostile` also
 * entries that do not belong into a table. */
void random_steps(int32_t (*steps)[4], int64_t tokens, int64_t rows, bool hostile, rng *r);
tn_tensor *recurrent_case(tn_arena *arena, tn_op op, rng *r);
tn_tensor *recurrent_case_of(tn_arena *arena, tn_op op, int64_t tokens, int64_t rows, rng *r);

/* A mul_mat_id of this shape; same_input: all experts of a token multiply the same column. */
typedef struct expert_shape {
    int64_t k, m, experts, used, tokens;
    bool same_input;
} expert_shape;
tn_tensor *experts_case(tn_arena *arena, tn_type type, const expert_shape *e, rng *r);

/* A random tensor of this shape. Layouts: 0 contiguous, 1 rows with gaps, 2 outer dimensions permuted, 3 rows and
 * columns swapped (plain types only). */
tn_tensor *random_tensor(tn_arena *arena, tn_type type, const int64_t ne[4], int layout, float spread, rng *r);

/* The tolerance for a result of this type, relative to the scale. */
double tolerance_of_type(tn_type type);

#endif
