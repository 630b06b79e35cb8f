/* The interface between the backward pass and the gradient rules of the ops. */
#ifndef TN_TENSOR_BACKWARD_H
#define TN_TENSOR_BACKWARD_H

#include "tenon/train.h"

#include "tensor/tensor_internal.h"

typedef struct tn__tape {
    tn_arena *arena;
    tn_graph *graph;
    tn_tensor **gradients; /* by index in the graph: the sum of the contributions so far */
    bool *needed;          /* by index in the graph: the tensor needs a gradient */
} tn__tape;

/* Propagates the gradient of t's result (f32, contiguous, of t's shape) to t's sources. */
typedef tn_status (*tn__backward_rule)(tn__tape *tape, tn_tensor *t, tn_tensor *gradient);
extern const tn__backward_rule tn__backward_rules[TN_OP_COUNT]; /* NULL: none */
tn_status tn__backward_attention(tn__tape *tape, tn_tensor *t, tn_tensor *gradient);
tn_status tn__backward_conv(tn__tape *tape, tn_tensor *t, tn_tensor *gradient);
tn_status tn__backward_pool(tn__tape *tape, tn_tensor *t, tn_tensor *gradient);

bool tn__back_needs(const tn__tape *tape, const tn_tensor *source);
/* Adds a contribution to the gradient of `source`: a tensor with as many elements, of any type and shape. */
void tn__back_give(tn__tape *tape, tn_tensor *source, tn_tensor *gradient);
tn_status tn__back_refuse(const tn_tensor *t, const char *why);
tn_tensor *tn__back_f32(tn_arena *arena, tn_tensor *x);
tn_tensor *tn__back_dense(tn_arena *arena, tn_tensor *x);
tn_tensor *tn__back_zeros(tn_arena *arena, const int64_t ne[TN_MAX_DIMS]);
/* Sums over the copies made by broadcasting: element i of `like` was used for i, i + n, i + 2n, … */
tn_tensor *tn__back_unrepeat(tn_arena *arena, tn_tensor *x, const tn_tensor *like);
/* Sums over neighbours in the outer dimensions, where mat-mul broadcasts its first source: i was used for r*i … */
tn_tensor *tn__back_ungroup(tn_arena *arena, tn_tensor *x, const int64_t groups[TN_MAX_DIMS]);

#endif
