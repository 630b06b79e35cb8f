/* The graph allocator: plans a graph's memory, takes it once, and binds tensors to it.
 *
 * It remembers several reservations (prefill, decode, …). All of them share the same buffers, one set per buffer
 * type, as large as the largest needs; binding a graph it has seen plans nothing. Buffers only grow. An allocator
 * belongs to one thread at a time. */
#ifndef TENON_ALLOC_H
#define TENON_ALLOC_H

#include "tenon/backend.h"
#include "tenon/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_alloc tn_alloc;

/* Plans of graphs that were reserved, or handed out by tn_alloc_plan, are kept until they are dropped. Of the others
 * so many are remembered; beyond that the one that was not used for longest is forgotten, and made again, the same,
 * when its graph comes back. */
enum { TN_ALLOC_PLANS = 128 };

/* The same buffer type may be given twice: it is one set of buffers. */
TN_API tn_status tn_alloc_new(tn_buffer_type *const *types, size_t n_types, tn_alloc **alloc) TN_MUST_CHECK;
TN_API void tn_alloc_free(tn_alloc *alloc);
/* One with plans of its own over the same buffers, which last as long as any of them. Binding a graph of one puts an
 * end to what another's tensors held. When one makes the buffers grow, the generation of all changes. They belong to
 * one thread at a time together. */
TN_API tn_status tn_alloc_share(const tn_alloc *with, tn_alloc **alloc) TN_MUST_CHECK;

/* `type_of` says for every node, then every leaf, in which of the types (by index) it lives; NULL: all in type 0.
 * Tensors that have data already are left alone. */

/* Bytes per buffer type that this graph needs, and their lower bounds (may be NULL), without allocating them. A type
 * that was given twice counts once, with the first. */
TN_API tn_status tn_alloc_measure(tn_alloc *alloc, tn_graph *graph, const uint16_t *type_of, size_t *sizes,
                                  size_t *lower_bounds) TN_MUST_CHECK;
/* What the buffers would be after these graphs were reserved, and what that takes. */
typedef struct tn_alloc_need {
    size_t size;    /* of all buffers then, with what is reserved already */
    size_t missing; /* bytes that must be free on the device: a buffer is given up only when a larger one is there */
    size_t lower_bound; /* of the graphs' tensors: no plan can be smaller */
} tn_alloc_need;
TN_API tn_status tn_alloc_measure_many(tn_alloc *alloc, tn_graph *const *graphs, const uint16_t *const *type_of,
                                       size_t n_graphs, tn_alloc_need *per_type) TN_MUST_CHECK;
/* Plans the graph for the worst case and takes the memory. If the new buffers cannot be had, the old reservation
 * still works. Buffers that grow move: tensors bound before must be bound again. */
TN_API tn_status tn_alloc_reserve(tn_alloc *alloc, tn_graph *graph, const uint16_t *type_of) TN_MUST_CHECK;
/* For several graphs at once: buffers are taken in the size that the largest needs and never grow on the way, so that
 * the memory that tn_alloc_measure_many says is enough. `type_of`: one list per graph, or NULL. */
TN_API tn_status tn_alloc_reserve_many(tn_alloc *alloc, tn_graph *const *graphs, const uint16_t *const *type_of,
                                       size_t n_graphs) TN_MUST_CHECK;
/* Binds every tensor of the graph. Uses the plan it remembers for this graph; otherwise plans, and grows the buffers
 * if `may_grow`, else fails with TN_E_NEED_RESERVE naming a tensor, the buffer type, needed and reserved bytes. */
TN_API tn_status tn_alloc_bind(tn_alloc *alloc, tn_graph *graph, const uint16_t *type_of,
                               bool may_grow) TN_MUST_CHECK;

TN_API size_t tn_alloc_size(const tn_alloc *alloc, size_t type); /* bytes now reserved */
TN_API size_t tn_alloc_chunk_count(const tn_alloc *alloc, size_t type);
TN_API tn_buffer *tn_alloc_buffer(const tn_alloc *alloc, size_t type, size_t chunk);
/* Changes whenever buffers moved; what was bound at another generation must be bound again. */
TN_API uint64_t tn_alloc_generation(const tn_alloc *alloc);
/* The plan remembered for a graph, or NULL. Owned by the allocator, which keeps it until it is dropped. */
TN_API const tn_plan *tn_alloc_plan(const tn_alloc *alloc, tn_graph *graph, const uint16_t *type_of);
/* Which of the plans' memories a buffer type is: the same one for equal types. */
TN_API size_t tn_alloc_plan_memory(const tn_alloc *alloc, size_t type);
TN_API void tn_alloc_forget(tn_alloc *alloc); /* all plans; the buffers stay */
TN_API void tn_alloc_drop(tn_alloc *alloc, tn_graph *graph, const uint16_t *type_of); /* the plan of one graph */

typedef struct tn_alloc_stats {
    uint64_t plans_made, plans_reused, plans_forgotten;
    uint64_t buffers_grown; /* times that buffers were replaced by larger ones */
} tn_alloc_stats;
TN_API tn_alloc_stats tn_alloc_get_stats(const tn_alloc *alloc);

#ifdef __cplusplus
}
#endif
#endif
