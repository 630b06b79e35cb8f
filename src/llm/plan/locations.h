/* Future locations of tensors without memory, which planning declares to the scheduler. */
#ifndef TN_LLM_PLAN_LOCATIONS_H
#define TN_LLM_PLAN_LOCATIONS_H

#include "tenon/sched.h"

typedef struct tn__declared {
    const tn_tensor *tensor;
    tn_location location;
} tn__declared;

typedef struct tn__locations {
    tn__declared *list;
    size_t n, capacity;
    bool sorted; /* sorted by tensor, for binary search */
} tn__locations;

void tn__locations_clear(tn__locations *locations); /* keeps the array */
/* Each tensor is declared once. */
tn_status tn__locations_add(tn__locations *locations, const tn_tensor *tensor, tn_buffer_type *type,
                            tn_buffer_usage usage);
void tn__locations_remove(tn__locations *locations, const tn_tensor *tensor);
void tn__locations_free(tn__locations *locations);
/* The scheduler's callback; `user` is the table. */
bool tn__location_of(void *user, const tn_tensor *tensor, tn_location *location);

#endif
