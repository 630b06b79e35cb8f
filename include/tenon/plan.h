/* Memory plans: where every tensor of a graph will live, before anything runs. */
#ifndef TENON_PLAN_H
#define TENON_PLAN_H

#include "tenon/graph.h"
#include "tenon/pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plans of graphs ----------------------------------------------------------------------------------------- */

typedef struct tn_plan tn_plan;

/* A kind of memory tensors can live in. */
typedef struct tn_plan_memory {
    const char *name;
    size_t alignment; /* power of two */
    size_t max_chunk; /* largest single allocation; storage is split into chunks of at most this size */
} tn_plan_memory;

typedef struct tn_plan_params {
    const tn_plan_memory *memories;
    size_t n_memories;
    const uint16_t *memory_of; /* for every node, then every leaf: which memory; NULL: all in the first */
    /* Bytes a tensor needs in a memory; NULL: tn_nbytes. */
    size_t (*tensor_size)(void *user, size_t memory, const tn_tensor *tensor);
    /* Sources whose place this node (by its number in the graph) may take; NULL: the op table's mask. */
    uint32_t (*inplace_mask)(void *user, const tn_tensor *node, size_t index);
    void *user;
} tn_plan_params;

/* Where one tensor lives. */
typedef struct tn_plan_slot {
    int32_t memory;      /* -1: not planned here (it has data of its own, or is a view: see its root) */
    uint32_t chunk;
    size_t offset, size;
    uint32_t first, last; /* steps: node numbers at which it is first written and last read */
    uint32_t inplace_of;  /* the tensor whose place it took, or TN_GRAPH_NONE */
} tn_plan_slot;

/* Plans a graph. Takes no tensor memory and does not change the graph. */
TN_API tn_status tn_plan_make(const tn_graph *graph, const tn_plan_params *params, tn_plan **plan) TN_MUST_CHECK;
TN_API void tn_plan_free(tn_plan *plan);
TN_API size_t tn_plan_tensor_count(const tn_plan *plan);
TN_API const tn_plan_slot *tn_plan_slots(const tn_plan *plan); /* nodes, then leaves, as in the graph */
TN_API size_t tn_plan_memory_count(const tn_plan *plan);
TN_API size_t tn_plan_chunk_count(const tn_plan *plan, size_t memory);
TN_API size_t tn_plan_chunk_size(const tn_plan *plan, size_t memory, size_t chunk);
TN_API size_t tn_plan_size(const tn_plan *plan, size_t memory);        /* sum of its chunks */
TN_API size_t tn_plan_lower_bound(const tn_plan *plan, size_t memory); /* largest sum of live bytes at any step */

#ifdef __cplusplus
}
#endif
#endif
