/* Graphs: the nodes and leaves that lead to some outputs, in an order in which they can run. */
#ifndef TENON_GRAPH_H
#define TENON_GRAPH_H

#include "tenon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_graph tn_graph;

enum { TN_GRAPH_DEFAULT_CAPACITY = 2048 };

/* A graph lives in an arena and holds up to `capacity` nodes and as many leaves (0: the default). */
TN_API tn_status tn_graph_new(tn_arena *arena, size_t capacity, tn_graph **graph) TN_MUST_CHECK;
/* The graph of one output, sized for twice the arena's tensors. Reports the error kept by the arena, if any. */
TN_API tn_status tn_graph_of(tn_arena *arena, tn_tensor *output, tn_graph **graph) TN_MUST_CHECK;

/* Adds everything `tensor` depends on, each tensor once, sources before their users; `tensor` becomes the last node.
 * TN_E_FULL leaves the graph as it was. A tensor that depends on itself is TN_E_INVALID. */
TN_API tn_status tn_graph_add(tn_graph *graph, tn_tensor *tensor) TN_MUST_CHECK;
TN_API void tn_graph_clear(tn_graph *graph);
/* A copy with at least the same capacity in the given arena; tensors are shared. */
TN_API tn_status tn_graph_copy(tn_arena *arena, const tn_graph *graph, tn_graph **copy) TN_MUST_CHECK;
/* Nodes begin…end-1 with the leaves they read, as a graph of its own that shares the tensors. Sources made by
 * earlier nodes count as leaves. */
TN_API tn_status tn_graph_slice(tn_arena *arena, const tn_graph *graph, size_t begin, size_t end,
                                tn_graph **slice) TN_MUST_CHECK;
/* Unbinds every node and leaf that the planner bound (buffer set, data not the caller's own). */
TN_API void tn_graph_reset(tn_graph *graph);

TN_API size_t tn_graph_capacity(const tn_graph *graph);
TN_API size_t tn_graph_node_count(const tn_graph *graph);
TN_API size_t tn_graph_leaf_count(const tn_graph *graph);
TN_API tn_tensor *tn_graph_node(const tn_graph *graph, size_t index); /* NULL past the end */
TN_API tn_tensor *tn_graph_leaf(const tn_graph *graph, size_t index);
TN_API tn_tensor *const *tn_graph_nodes(const tn_graph *graph);
TN_API tn_tensor *const *tn_graph_leaves(const tn_graph *graph);
TN_API tn_tensor *tn_graph_find(const tn_graph *graph, const char *name); /* nodes first, then leaves; NULL if none */

/* Number of tensor t in this graph: nodes are 0…n-1, leaves n…n+m-1; TN_GRAPH_NONE for a stranger. */
#define TN_GRAPH_NONE UINT32_MAX
TN_API uint32_t tn_graph_index(const tn_graph *graph, const tn_tensor *tensor);
/* How many sources of nodes (and views) in this graph refer to t. */
TN_API uint32_t tn_graph_use_count(const tn_graph *graph, const tn_tensor *tensor);

/* The structural fingerprint: ops, parameters, edges, types, shapes, strides, flags, view offsets, and for leaves
 * whether they already have memory. Names and addresses do not count. Kept until the graph changes: a graph whose
 * tensors were altered by hand needs tn_graph_touch. */
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
