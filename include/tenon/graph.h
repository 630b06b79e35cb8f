/* Graphs: the nodes and leaves that some outputs depend on, in an order of execution. */
#ifndef TENON_GRAPH_H
#define TENON_GRAPH_H

#include "tenon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_graph tn_graph;

enum { TN_GRAPH_DEFAULT_CAPACITY = 2048 };

/* Creates an empty graph in an arena, with room for `capacity` nodes and as many leaves (0: the default). */
TN_API tn_status tn_graph_new(tn_arena *arena, size_t capacity, tn_graph **graph) TN_MUST_CHECK;
/* Creates the graph of one output, with a capacity of twice the arena's tensors. Returns the arena's first error, if
 * it has one. */
TN_API tn_status tn_graph_of(tn_arena *arena, tn_tensor *output, tn_graph **graph) TN_MUST_CHECK;

/* Adds `tensor` and everything it depends on, each tensor once, sources before their users; `tensor` becomes the last
 * node. TN_E_FULL leaves the graph unchanged. TN_E_INVALID: a tensor depends on itself. */
TN_API tn_status tn_graph_add(tn_graph *graph, tn_tensor *tensor) TN_MUST_CHECK;
TN_API void tn_graph_clear(tn_graph *graph);
/* Copies a graph into an arena, with at least the same capacity. The copy shares the tensors. */
TN_API tn_status tn_graph_copy(tn_arena *arena, const tn_graph *graph, tn_graph **copy) TN_MUST_CHECK;
/* Creates a graph of nodes begin…end-1 and the leaves they read, which shares the tensors. Results of earlier nodes
 * become leaves. */
TN_API tn_status tn_graph_slice(tn_arena *arena, const tn_graph *graph, size_t begin, size_t end,
                                tn_graph **slice) TN_MUST_CHECK;
/* Unbinds every node and leaf that an allocator or scheduler has bound (TN_FLAG_PLANNED). */
TN_API void tn_graph_reset(tn_graph *graph);

TN_API size_t tn_graph_capacity(const tn_graph *graph);
TN_API size_t tn_graph_node_count(const tn_graph *graph);
TN_API size_t tn_graph_leaf_count(const tn_graph *graph);
TN_API tn_tensor *tn_graph_node(const tn_graph *graph, size_t index); /* NULL past the end */
TN_API tn_tensor *tn_graph_leaf(const tn_graph *graph, size_t index);
TN_API tn_tensor *const *tn_graph_nodes(const tn_graph *graph);
TN_API tn_tensor *const *tn_graph_leaves(const tn_graph *graph);
TN_API tn_tensor *tn_graph_find(const tn_graph *graph, const char *name); /* nodes first, then leaves; NULL if none */

/* Index of a tensor in this graph: nodes are 0…n-1, leaves n…n+m-1; TN_GRAPH_NONE if it is not in the graph. */
#define TN_GRAPH_NONE UINT32_MAX
TN_API uint32_t tn_graph_index(const tn_graph *graph, const tn_tensor *tensor);
/* Number of references to a tensor by sources and views in this graph. */
TN_API uint32_t tn_graph_use_count(const tn_graph *graph, const tn_tensor *tensor);

/* The structural fingerprint: a hash of ops, parameters, edges, types, shapes, strides, flags, view offsets, and for
 * leaves whether they have memory. Names and addresses are not part of it. It is cached until the graph changes; call
 * tn_graph_touch() after a direct change to a tensor. */
typedef struct tn_fingerprint {
    uint64_t lo, hi;
} tn_fingerprint;
TN_API tn_fingerprint tn_graph_fingerprint(tn_graph *graph);
TN_API void tn_graph_touch(tn_graph *graph);

TN_API tn_status tn_graph_print(const tn_graph *graph, FILE *out);
TN_API tn_status tn_graph_print_dot(const tn_graph *graph, FILE *out); /* Graphviz */
TN_API tn_status tn_graph_print_json(const tn_graph *graph, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
