/* The graph allocator: plans memory for classes of graphs, takes it once, and binds tensors to it.
 *
 * A class is a set of graphs with the same structure (plan_cover.h). It has one plan, made for the largest size of
 * every tensor, and every smaller graph of the class is bound with the same offsets: it fits by construction. All
 * classes share the same buffers, one set per buffer type, as large as the largest needs; a further class is packed
 * into the chunks that exist or are wanted already. Buffers only grow. An allocator belongs to one thread at a time.
 */
#ifndef TN_RUNTIME_ALLOC_H
#define TN_RUNTIME_ALLOC_H

#include "tenon/backend.h"
#include "tenon/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn__alloc tn__alloc;

/* Classes that are reserved, or whose plan was handed out, are kept. Of the others this many are remembered, the
 * least recently used evicted first; an evicted class is planned again when one of its graphs is bound. */
enum { TN__ALLOC_CLASSES = 128 };

/* A buffer type that is given twice has one set of buffers. */
tn_status tn__alloc_new(tn_buffer_type *const *types, size_t n_types, tn__alloc **alloc) TN_MUST_CHECK;
void tn__alloc_free(tn__alloc *alloc);
/* An allocator with classes of its own over the same buffers, which last as long as any of them. Binding a graph of
 * one invalidates what tensors of another hold. When buffers grow, the generation of all changes. Together they
 * belong to one thread at a time. */
tn_status tn__alloc_share(const tn__alloc *with, tn__alloc **alloc) TN_MUST_CHECK;
/* Effort of plans that are reserved. Others are made with the fast effort first. */
void tn__alloc_set_effort(tn__alloc *alloc, const tn_pack_params *pack);

/* `type_of` gives for every node, then every leaf, the index of its buffer type; NULL: all are of type 0. Tensors
 * with memory of their own, or declared to get some (tn_location), are left alone. */

/* ---- Reservation ---- */

/* Adds a graph to what the reservation must hold; nothing is taken. The graph may be freed afterwards. A graph that
 * its class does not serve yet enlarges the plan of the class. Covering the largest graphs first saves time and may
 * save memory; any order is valid. */
tn_status tn__alloc_cover(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of) TN_MUST_CHECK;
/* The same with a plan made earlier for a graph of this structure. TN_E_STATE says why the plan is of no use. */
tn_status tn__alloc_adopt(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of,
                          const tn_plan *plan) TN_MUST_CHECK;
/* The same with the offsets alone; nothing in them is trusted. */
tn_status tn__alloc_adopt_offsets(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of,
                                  const tn_plan_offset *offsets, size_t n_offsets) TN_MUST_CHECK;
/* Covers a graph that the plan of a class serves already; otherwise TN_E_STATE: no plan is made. */
tn_status tn__alloc_cover_served(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of) TN_MUST_CHECK;
typedef struct tn__alloc_need {
    size_t size;        /* of all buffers once everything is taken, including what is there already */
    size_t missing;     /* bytes that must be free: a buffer is freed after its larger successor exists */
    size_t lower_bound; /* of the largest class: no plan can be smaller */
} tn__alloc_need;
/* What is covered or reserved, per buffer type. A type that was given twice counts with its first index. */
tn_status tn__alloc_needs(tn__alloc *alloc, tn__alloc_need *per_type) TN_MUST_CHECK;
/* Per buffer type: bytes that the most demanding class would need if its tensors were allocated in the order of
 * execution by an allocator that does not know what comes (best fit). */
tn_status tn__alloc_in_order(tn__alloc *alloc, size_t *per_type) TN_MUST_CHECK;
/* Takes the memory for all that is covered. On failure nothing changes. Buffers that grow move: tensors bound before
 * must be bound again. */
tn_status tn__alloc_take(tn__alloc *alloc) TN_MUST_CHECK;
/* From now on a graph that no reserved class serves is TN_E_INTERNAL: its reservation was incomplete. */
void tn__alloc_seal(tn__alloc *alloc);

/* Buffers after reserving these graphs, and what that takes; nothing is allocated and no class grows. `type_of`: one
 * list per graph, or NULL. */
tn_status tn__alloc_measure(tn__alloc *alloc, tn_graph *const *graphs, const uint16_t *const *type_of,
                            size_t n_graphs, tn__alloc_need *per_type) TN_MUST_CHECK;
/* Covers these graphs and takes what they need, all of it or nothing: each buffer is taken once, so that the bytes of
 * tn__alloc_measure suffice. If that fails, the old reservation still works. */
tn_status tn__alloc_reserve(tn__alloc *alloc, tn_graph *const *graphs, const uint16_t *const *type_of,
                            size_t n_graphs) TN_MUST_CHECK;

/* ---- Binding ---- */

/* Makes sure that a graph has a plan and that the buffers suffice. A graph that no class serves is planned. Buffers
 * that are too small grow if `may_grow`, with a line in the log; otherwise TN_E_NEED_RESERVE names a tensor, the
 * buffer type, needed and reserved bytes. */
tn_status tn__alloc_prepare(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of, bool may_grow) TN_MUST_CHECK;
/* Prepares the graph and binds every tensor of it. */
tn_status tn__alloc_bind(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of, bool may_grow) TN_MUST_CHECK;

size_t tn__alloc_size(const tn__alloc *alloc, size_t type); /* bytes now reserved */
size_t tn__alloc_chunk_count(const tn__alloc *alloc, size_t type);
tn_buffer *tn__alloc_buffer(const tn__alloc *alloc, size_t type, size_t chunk);
/* Changes whenever buffers move; graphs bound at another generation must be bound again. */
uint64_t tn__alloc_generation(const tn__alloc *alloc);
/* The plan that serves a graph: that of its class, whose sizes may be larger. Made if there was none and `make`;
 * otherwise NULL then. Owned by the allocator, which keeps it until tn__alloc_forget. */
tn_status tn__alloc_plan(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of, bool make,
                         const tn_plan **plan) TN_MUST_CHECK;
/* Which of the plans' memories a buffer type is: the same one for equal types. */
size_t tn__alloc_plan_memory(const tn__alloc *alloc, size_t type);
/* Parameters of plans of a graph. `memory_of` has room for every tensor; it, `user` and the allocator must outlive
 * them. */
typedef struct tn__alloc_context {
    const tn__alloc *alloc;
    const uint16_t *memory_of;
} tn__alloc_context;
tn_status tn__alloc_plan_params(const tn__alloc *alloc, const tn_graph *graph, const uint16_t *type_of,
                                uint16_t *memory_of, tn__alloc_context *user, tn_plan_params *params) TN_MUST_CHECK;
/* Forgets all classes; the buffers stay. Of a sealed allocator the reserved classes stay, too. */
void tn__alloc_forget(tn__alloc *alloc);

typedef struct tn__alloc_stats {
    uint64_t plans_made, plans_adopted, plans_reused, plans_forgotten;
    uint64_t buffers_grown; /* times that buffers were replaced by larger ones */
    size_t classes;         /* now */
} tn__alloc_stats;
tn__alloc_stats tn__alloc_get_stats(const tn__alloc *alloc);

#ifdef __cplusplus
}
#endif
#endif
