/* Memory that does not belong to a node: which tensors a plan leaves alone, and what nodes write besides their
 * result.
 */
#ifndef TN_TENSOR_EXTERNAL_H
#define TN_TENSOR_EXTERNAL_H

#include "tenon/tensor.h"

/* Whether the tensor's memory belongs to the caller, or is declared to. Memory that a reservation bound does not
 * count, and its buffer must not be read: it is gone once the reservation grew or its scheduler was freed. */
static inline bool tn__is_external(const tn_tensor *t) {
    return (t->data && !(t->flags & TN_FLAG_PLANNED)) || t->location;
}

/* The tensor whose memory a node writes without being its root: that of a view (cpy, set_rows) or of the state of a
 * recurrent op. NULL: none. Such a node runs where that tensor is, once, and in order with all other accesses to it.
 */
static inline tn_tensor *tn__written_root(const tn_tensor *t) {
    const int source = tn_op_written_source(t->op);
    tn_tensor *x = source >= 0 ? t->src[source] : NULL;
    if (x) return x->view_src ? x->view_src : x;
    return tn_op_get_family(t->op) == TN_FAMILY_VIEW ? NULL : t->view_src;
}

#endif
