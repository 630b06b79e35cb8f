/* The plan object and the steps of making one. */
#ifndef TN_PLAN_INTERNAL_H
#define TN_PLAN_INTERNAL_H

#include "tenon/plan.h"

struct tn_plan {
    size_t n_nodes, n_leaves;
    tn_plan_slot *slots;
    size_t n_memories;
    size_t *n_chunks;     /* per memory */
    size_t **chunk_sizes; /* per memory */
    size_t *lower_bounds; /* per memory */
};

/* Fills memory, size, first, last and inplace_of of every slot from the graph. Offsets are left for the packer. */
tn_status tn__plan_liveness(const tn_graph *graph, const tn_plan_params *params, tn_plan_slot *slots);

#endif
