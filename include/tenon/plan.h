/* Memory plans: an offset for every tensor of a graph, computed before anything runs.
 *
 * A plan is a constant object that belongs to the caller and keeps no pointer to the graph. Making a plan allocates
 * no tensor memory and does not change the graph. Any thread may make plans of graphs that no other thread modifies.
 */
#ifndef TENON_PLAN_H
#define TENON_PLAN_H

#include "tenon/graph.h"
#include "tenon/pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plans of graphs ---- */

typedef struct tn_plan tn_plan;

/* A memory that tensors can be planned in. */
typedef struct tn_plan_memory {
    const char *name;
    size_t alignment; /* power of two */
    size_t max_chunk; /* largest single allocation; storage is split into chunks of at most this size */
} tn_plan_memory;

/* Chunks of a memory that exist already. */
typedef struct tn_plan_bins {
    const size_t *sizes;
    size_t count;
} tn_plan_bins;

typedef struct tn_plan_params {
    const tn_plan_memory *memories;
    size_t n_memories;         /* at most 32767 */
    const uint16_t *memory_of; /* index of the memory of every node, then of every leaf; NULL: all in the first */
    /* Bytes a tensor needs in a memory; NULL: tn_nbytes. */
    size_t (*tensor_size)(void *user, size_t memory, const tn_tensor *tensor);
    /* Mask of the sources whose memory the node (number `index` in the graph) may reuse for its result; NULL: the
     * mask of the op table. */
    uint32_t (*inplace_mask)(void *user, const tn_tensor *node, size_t index);
    void *user;
    /* Per memory: chunks that exist already. They are filled first, see tn_pack_params.bins. NULL: none. */
    const tn_plan_bins *bins;
    tn_pack_params pack; /* effort and limits for each memory; capacity, max_chunk and bins are ignored */
} tn_plan_params;

/* The memory of one tensor. */
typedef struct tn_plan_entry {
    int32_t memory; /* -1: not planned (the tensor has data already, or is a view: see its root) */
    uint32_t chunk;
    size_t offset, size;
    /* Lifetime: the nodes that first write and last read the tensor. If `last` is the number of nodes, the tensor
     * lives to the end and its memory is not reused. If another tensor takes over its memory, `last` is the node that
     * does. */
    uint32_t first, last;
    uint32_t inplace_of; /* the tensor whose memory this one takes over, or TN_GRAPH_NONE */
} tn_plan_entry;

/* The offset of one tensor: what a file has to keep of a plan, because lifetimes follow from the graph. */
typedef struct tn_plan_offset {
    int32_t memory; /* -1: not planned */
    uint32_t chunk;
    uint64_t offset, size; /* size: of the largest graph that the plan serves, aligned */
} tn_plan_offset;

/* Makes the plan of a graph. Tensors that have data are external and not planned. Inputs and all other leaves without
 * data live from before the first node. Outputs and parameters live to the end. A read through a view is a read of
 * its root. A result is computed in place of a source if the op allows it, both have the same layout, and this is the
 * last use of the source and of all its views. TN_E_INVALID: invalid parameters; TN_E_OVERFLOW; TN_E_NOMEM;
 * TN_E_ABORTED: pack.cancel returned true. */
TN_API tn_status tn_plan_make(const tn_graph *graph, const tn_plan_params *params, tn_plan **plan) TN_MUST_CHECK;
TN_API void tn_plan_free(tn_plan *plan);
TN_API size_t tn_plan_tensor_count(const tn_plan *plan);
TN_API const tn_plan_entry *tn_plan_entries(const tn_plan *plan); /* nodes, then leaves, as in the graph */
TN_API size_t tn_plan_memory_count(const tn_plan *plan);
TN_API size_t tn_plan_chunk_count(const tn_plan *plan, size_t memory);
TN_API size_t tn_plan_chunk_size(const tn_plan *plan, size_t memory, size_t chunk); /* bytes used; 0 is possible */
TN_API size_t tn_plan_size(const tn_plan *plan, size_t memory);                     /* sum of its chunks */
TN_API size_t tn_plan_lower_bound(const tn_plan *plan, size_t memory); /* largest sum of live bytes at any node */
TN_API bool tn_plan_optimal(const tn_plan *plan, size_t memory);       /* the size is proven minimal */
TN_API size_t tn_plan_total(const tn_plan *plan);                      /* over all memories */
TN_API double tn_plan_ratio(const tn_plan *plan); /* total / sum of lower bounds; 1 when both are 0 */
TN_API const char *tn_plan_memory_name(const tn_plan *plan, size_t memory);
/* The tensor's name in the graph, or its op and number if it has no name. */
TN_API const char *tn_plan_label(const tn_plan *plan, size_t tensor);

/* Checks a plan against its graph, independently of the planner: simulates the execution and tracks which tensor owns
 * which bytes. Every source must own all of its bytes when it is read, and every output at the end. TN_E_INTERNAL
 * with a message that names the tensors in conflict. `params` as for tn_plan_make; the graph must not be bound yet.
 */
TN_API tn_status tn_plan_verify(const tn_plan *plan, const tn_graph *graph, const tn_plan_params *params);

/* ---- Plans as documents ---- */

typedef enum tn_plan_format {
    TN_PLAN_TEXT, /* a table for people */
    TN_PLAN_JSON,
    TN_PLAN_CSV, /* the columns of packing files, then tensor, memory, chunk, offset; `tenon pack` can read it */
    TN_PLAN_SVG  /* a picture, time × address, coloured by the kind of tensor */
} tn_plan_format;
#define TN_PLAN_ALL_MEMORIES SIZE_MAX
/* Writes one memory, or all of them, to a new string, to be freed with tn_free(). A picture shows one memory; for
 * all, the first. */
TN_API tn_status tn_plan_export(const tn_plan *plan, tn_plan_format format, size_t memory, char **text);
/* Describes the differences between two plans for people: sizes, and the first tensors with different offsets. */
TN_API tn_status tn_plan_compare(const tn_plan *a, const tn_plan *b, char **text);
TN_API bool tn_plan_equal(const tn_plan *a, const tn_plan *b); /* same memory and offset for every tensor */

/* Plans on disk, with version, checksum and the graph's fingerprint. Loading verifies the plan before returning it.
 * TN_E_VERSION: unknown format version; TN_E_CHECKSUM; TN_E_FORMAT; TN_E_STATE: the plan of a different graph. */
TN_API tn_status tn_plan_save(const tn_plan *plan, tn_graph *graph, const char *path) TN_MUST_CHECK;
TN_API tn_status tn_plan_load(const char *path, tn_graph *graph, const tn_plan_params *params,
                              tn_plan **plan) TN_MUST_CHECK;

/* ---- Execution order ---- */

/* Creates a graph in the given arena with the same nodes in an order that needs less memory, or in the same order if
 * no better one was found. It shares the tensors. Results do not change: sources stay before their users, and a node
 * that writes into another tensor's memory stays between the same readers. memory_of and inplace_mask of `params`
 * refer to the indices of the given graph. `order` (one entry per node, may be NULL) receives the old index of every
 * node of the new graph; `saved` (may be NULL) receives the reduction of the sum of lower bounds. */
TN_API tn_status tn_plan_reorder(tn_arena *arena, const tn_graph *graph, const tn_plan_params *params,
                                 tn_graph **reordered, uint32_t *order, size_t *saved) TN_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
