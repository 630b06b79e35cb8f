/* Construction of a graph node by node in a given order. */
#ifndef TN_TENSOR_GRAPH_BUILD_H
#define TN_TENSOR_GRAPH_BUILD_H

#include "tenon/graph.h"

/* Appends one tensor, whose sources and view root are already in the graph, as the next node or leaf. */
tn_status tn__graph_append(tn_graph *graph, tn_tensor *tensor);

/* Tensor i of the graph: the nodes, then the leaves. */
static inline tn_tensor *tn__graph_tensor(const tn_graph *graph, size_t i) {
    size_t n_nodes = tn_graph_node_count(graph);
    return i < n_nodes ? tn_graph_node(graph, i) : tn_graph_leaf(graph, i - n_nodes);
}

/* Reorders the nodes: node i becomes the former node order[i]. The caller ensures that sources stay before their
 * users. */
void tn__graph_permute(tn_graph *graph, const uint32_t *order);

/* A number that identifies this content: no other graph, and no other state of this graph, has the same number. */
uint64_t tn__graph_serial(const tn_graph *graph);

#endif
