/* What the files of shape rules share. */
#ifndef TN_TENSOR_SHAPE_RULES_H
#define TN_TENSOR_SHAPE_RULES_H

#include "tensor/tensor_internal.h"

/* In a rule for `t`: fails with the op's name, the reason and the shapes of all sources. */
#define REFUSE(status, ...) return tn__op_fail(t, status, __VA_ARGS__)
#define REQUIRE(condition, status, ...)                                                                              \
    do {                                                                                                             \
        if (!(condition)) REFUSE(status, __VA_ARGS__);                                                               \
    } while (0)

static inline bool is_index(const tn_tensor *x) { return x->type == TN_I32; }
static inline void has_shape(tn_tensor *t, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    t->ne[0] = n0;
    t->ne[1] = n1;
    t->ne[2] = n2;
    t->ne[3] = n3;
}

/* Optional masks and sinks (soft_max, attention); NULL passes. */
tn_status tn__check_mask(tn_tensor *t, const tn_tensor *mask, int64_t columns, int64_t rows, int64_t n2, int64_t n3);
tn_status tn__check_sinks(tn_tensor *t, const tn_tensor *sinks, int64_t heads);

tn_status tn__rule_attention(tn_tensor *t);        /* shape_attention.c */
tn_status tn__rule_select_positions(tn_tensor *t); /* select.c */
/* Recurrent ops (recurrent.c). */
tn_status tn__rule_causal_conv(tn_tensor *t);
tn_status tn__rule_linear_attention(tn_tensor *t);
tn_status tn__rule_selective_scan(tn_tensor *t);
tn_status tn__rule_rwkv7(tn_tensor *t);

#endif
