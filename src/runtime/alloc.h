/* The graph allocator: plans a graph's memory, takes it once, and binds tensors to it.
 *
 * It remembers several reservations (prefill, decode, …). All of them share the same buffers, one set per buffer
 * type, as large as the largest needs; binding a graph it has seen plans nothing. Buffers only grow. An allocator
 * belongs to one thread at a time. */
#ifndef TN_RUNTIME_ALLOC_H
#define TN_RUNTIME_ALLOC_H

#include "tenon/backend.h"
#include "tenon/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn__alloc tn__alloc;

/* Plans of graphs that were reserved, or handed out by tn__alloc_plan, are kept until they are dropped. Of the others
 * this many are remembered, the least recently used evicted first; an evicted plan is made again, the same, when its
 * graph is bound again. */
enum { TN__ALLOC_PLANS = 128 };

/* A buffer type that is given twice has one set of buffers. */
tn_status tn__alloc_new(tn_buffer_type *const *types, size_t n_types, tn__alloc **alloc) TN_MUST_CHECK;
void tn__alloc_free(tn__alloc *alloc);
/* An allocator with plans of its own over the same buffers, which last as long as any of them. Binding a graph of one
 * invalidates what tensors of another hold. When buffers grow, the generation of all changes. Together they belong to
 * one thread at a time. */
tn_status tn__alloc_share(const tn__alloc *with, tn__alloc **alloc) TN_MUST_CHECK;

/* `type_of` gives for every node, then every leaf, the index of its buffer type; NULL: all are of type 0. Tensors
 * with memory of their own, or declared to get some (tn_location), are left alone. */

/* Bytes per buffer type that this graph needs, and their lower bounds (may be NULL); nothing is allocated. A type
 * that was given twice counts with its first index. */
tn_status tn__alloc_measure(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of, size_t *sizes,
                            size_t *lower_bounds) TN_MUST_CHECK;
/* Buffers after reserving these graphs, and what that takes. */
typedef struct tn__alloc_need {
    size_t size;        /* of all buffers then, including what is reserved already */
    size_t missing;     /* bytes that must be free: a buffer is freed after its larger successor exists */
    size_t lower_bound; /* of the graphs' tensors: no plan can be smaller */
} tn__alloc_need;
tn_status tn__alloc_measure_many(tn__alloc *alloc, tn_graph *const *graphs, const uint16_t *const *type_of,
                                 size_t n_graphs, tn__alloc_need *per_type) TN_MUST_CHECK;
/* Plans the graph for the worst case and takes the memory. If that fails, the old reservation still works. Buffers
 * that grow move: tensors bound before must be bound again. */
tn_status tn__alloc_reserve(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of) TN_MUST_CHECK;
/* For several graphs at once: each buffer is taken once, in the size that the largest graph needs, so that the bytes
 * of tn__alloc_measure_many suffice. `type_of`: one list per graph, or NULL. */
tn_status tn__alloc_reserve_many(tn__alloc *alloc, tn_graph *const *graphs, const uint16_t *const *type_of,
                                 size_t n_graphs) TN_MUST_CHECK;
/* Binds every tensor of the graph, with its remembered plan or a new one. Buffers that are too small grow if
 * `may_grow`; otherwise TN_E_NEED_RESERVE names a tensor, the buffer type, needed and reserved bytes. */
tn_status tn__alloc_bind(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of, bool may_grow) TN_MUST_CHECK;

size_t tn__alloc_size(const tn__alloc *alloc, size_t type); /* bytes now reserved */
size_t tn__alloc_chunk_count(const tn__alloc *alloc, size_t type);
tn_buffer *tn__alloc_buffer(const tn__alloc *alloc, size_t type, size_t chunk);
/* Changes whenever buffers move; graphs bound at another generation must be bound again. */
uint64_t tn__alloc_generation(const tn__alloc *alloc);
/* The plan remembered for a graph, or NULL. Owned by the allocator, which keeps it until it is dropped. */
const tn_plan *tn__alloc_plan(const tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of);
/* Which of the plans' memories a buffer type is: the same one for equal types. */
size_t tn__alloc_plan_memory(const tn__alloc *alloc, size_t type);
void tn__alloc_forget(tn__alloc *alloc);                                         /* all plans; the buffers stay */
void tn__alloc_drop(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of); /* the plan of one graph */

typedef struct tn__alloc_stats {
    uint64_t plans_made, plans_reused, plans_forgotten;
    uint64_t buffers_grown; /* times that buffers were replaced by larger ones */
} tn__alloc_stats;
tn__alloc_stats tn__alloc_get_stats(const tn__alloc *alloc);

#ifdef __cplusplus
}
#endif
#endif
