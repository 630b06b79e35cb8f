/* Memory plans: where every tensor of a graph will live, before anything runs.
 *
 * A plan is a constant object that belongs to the caller; it keeps no pointer to the graph. Making one takes no
 * tensor memory and does not change the graph. Any thread may make plans, of graphs that no other thread is changing.
 */
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
    size_t n_memories;         /* at most 32767 */
    const uint16_t *memory_of; /* for every node, then every leaf: which memory; NULL: all in the first */
    /* Bytes a tensor needs in a memory; NULL: tn_nbytes. */
    size_t (*tensor_size)(void *user, size_t memory, const tn_tensor *tensor);
    /* Sources whose place this node (by its number in the graph) may take; NULL: the op table's mask. */
    uint32_t (*inplace_mask)(void *user, const tn_tensor *node, size_t index);
    void *user;
    tn_pack_params pack; /* effort and limits of the packing of each memory; capacity and max_chunk are not used */
} tn_plan_params;

/* Where one tensor lives. */
typedef struct tn_plan_entry {
    int32_t memory; /* -1: not planned here (it has data of its own, or is a view: see its root) */
    uint32_t chunk;
    size_t offset, size;
    uint32_t first, last; /* steps: node numbers at which it is first written and last read; the number of nodes as
                             `last` means: to the end, never reused. Of a place that was taken over: up to then. */
    uint32_t inplace_of;  /* the tensor whose place it took, or TN_GRAPH_NONE */
} tn_plan_entry;

/* A tensor that has data is external and left alone. Inputs (and all other leaves without data) are in place before
 * the first node. Outputs and parameters keep their place to the end. Reads through views count as reads of the root.
 * A result takes the place of a source where the op allows it, both have the same layout, and it is the last use of
 * the source and of all its views. TN_E_INVALID for an assignment that makes no sense, TN_E_OVERFLOW, TN_E_NOMEM,
 * TN_E_ABORTED when pack.cancel says so. */
TN_API tn_status tn_plan_make(const tn_graph *graph, const tn_plan_params *params, tn_plan **plan) TN_MUST_CHECK;
TN_API void tn_plan_free(tn_plan *plan);
TN_API size_t tn_plan_tensor_count(const tn_plan *plan);
TN_API const tn_plan_entry *tn_plan_entries(const tn_plan *plan); /* nodes, then leaves, as in the graph */
TN_API size_t tn_plan_memory_count(const tn_plan *plan);
TN_API size_t tn_plan_chunk_count(const tn_plan *plan, size_t memory);
TN_API size_t tn_plan_chunk_size(const tn_plan *plan, size_t memory, size_t chunk);
TN_API size_t tn_plan_size(const tn_plan *plan, size_t memory);        /* sum of its chunks */
TN_API size_t tn_plan_lower_bound(const tn_plan *plan, size_t memory); /* largest sum of live bytes at any step */
TN_API bool tn_plan_optimal(const tn_plan *plan, size_t memory);       /* the size is proven to be the smallest */
TN_API size_t tn_plan_total(const tn_plan *plan);                      /* over all memories */
TN_API double tn_plan_ratio(const tn_plan *plan); /* total / sum of lower bounds; 1 when both are 0 */
TN_API const char *tn_plan_memory_name(const tn_plan *plan, size_t memory);
/* The tensor's name in the graph, or its op and number where it had none. */
TN_API const char *tn_plan_label(const tn_plan *plan, size_t tensor);

/* Checks a plan against the graph it was made of, by a different road than the one it was made on: it plays the graph
 * through and follows which tensor owns which bytes. Every source must own all of its bytes when it is read, every
 * output at the end. TN_E_INTERNAL with the offenders named. `params` as for tn_plan_make, before anything is bound.
 */
TN_API tn_status tn_plan_verify(const tn_plan *plan, const tn_graph *graph, const tn_plan_params *params);

/* ---- Plans as documents --------------------------------------------------------------------------------------- */

typedef enum tn_plan_format {
    TN_PLAN_TEXT, /* for people */
    TN_PLAN_JSON,
    TN_PLAN_CSV, /* the columns of packing files, then tensor, memory, chunk, offset: tenon pack can read it */
    TN_PLAN_SVG  /* time × address, coloured by what a tensor is */
} tn_plan_format;
#define TN_PLAN_ALL_MEMORIES SIZE_MAX
/* A new string, to be freed with tn_free(). One memory, or all; a picture shows one, the first for all. */
TN_API tn_status tn_plan_export(const tn_plan *plan, tn_plan_format format, size_t memory, char **text);
/* What differs between two plans, for people: sizes, and the first tensors that lie elsewhere. */
TN_API tn_status tn_plan_compare(const tn_plan *a, const tn_plan *b, char **text);
TN_API bool tn_plan_equal(const tn_plan *a, const tn_plan *b); /* same places for all tensors */

/* Plans on disk, with version and checksum. The file carries the graph's fingerprint; loading refuses another graph's
 * plan (TN_E_VERSION for the format, TN_E_CHECKSUM, TN_E_FORMAT, TN_E_STATE for a different graph) and verifies what
 * it read before it returns it. */
TN_API tn_status tn_plan_save(const tn_plan *plan, tn_graph *graph, const char *path) TN_MUST_CHECK;
TN_API tn_status tn_plan_load(const char *path, tn_graph *graph, const tn_plan_params *params,
                              tn_plan **plan) TN_MUST_CHECK;

/* ---- Execution order ------------------------------------------------------------------------------------------- */

/* The same nodes in an order that needs less memory: a new graph in the given arena that shares the tensors, or,
 * where no better order was found, a copy in the same order. Results do not change: sources stay before their users,
 * and what writes into other tensors' memory stays between the same readers. `saved` (may be NULL) receives by how
 * much the sum of the lower bounds shrinks. memory_of and inplace_mask of `params` refer to the given graph's
 * numbers; `order` (one entry per node, may be NULL) receives which of its nodes is the i-th now. */
TN_API tn_status tn_plan_reorder(tn_arena *arena, const tn_graph *graph, const tn_plan_params *params,
                                 tn_graph **reordered, uint32_t *order, size_t *saved) TN_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
