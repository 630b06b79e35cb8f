/* Which tensors a plan leaves alone. */
#ifndef TN_TENSOR_EXTERNAL_H
#define TN_TENSOR_EXTERNAL_H

#include "tenon/tensor.h"

/* Whether the tensor's memory belongs to the caller, or is declared to. Memory that a reservation bound does not
 * count, and its buffer must not be read: it is gone once the reservation grew or its scheduler was freed. */
static inline bool tn__is_external(const tn_tensor *t) {
    return (t->data && !(t->flags & TN_FLAG_PLANNED)) || t->location;
}

#endif
