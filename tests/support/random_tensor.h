/* Random shapes, types and tensors for tests of ops. */
#ifndef TN_TESTS_RANDOM_TENSOR_H
#define TN_TESTS_RANDOM_TENSOR_H

#include "reference.h"

int64_t pick_int(rng *r, int64_t low, int64_t high); /* low … high */
bool chance(rng *r, int percent);
float pick_real(rng *r, float low, float high);

/* Lengths of rows: multiples of vector widths, their neighbours, and more than one piece of a row. */
int64_t pick_length(rng *r);
void pick_shape(rng *r, int64_t ne[4]); /* empty in 4 % of the cases */
tn_type pick_float_type(rng *r);
/* Any type of weights that can be multiplied; q8_1 and q8_K hold activations only. */
tn_type pick_weight_type(rng *r);

/* random_tensor() with a random layout; with adjacent elements in rows; contiguous. */
tn_tensor *tensor_of_any_layout(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r);
tn_tensor *tensor_of_rows(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r);
tn_tensor *dense_tensor(tn_arena *a, tn_type type, const int64_t ne[4], float spread, rng *r);
/* A contiguous tensor of i32 or i64 in low … high. */
tn_tensor *integer_tensor(tn_arena *a, tn_type type, const int64_t ne[4], int64_t low, int64_t high, rng *r);

/* Overwrites random elements of an f32 tensor's root with NaN and infinities. */
void add_nan_and_infinities(tn_tensor *t, rng *r);
void make_positive(tn_tensor *t); /* all elements of the root */

#endif
