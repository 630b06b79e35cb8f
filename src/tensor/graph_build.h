/* Building a graph node by node in a given order, for code that makes its own graphs. */
#ifndef TN_TENSOR_GRAPH_BUILD_H
#define TN_TENSOR_GRAPH_BUILD_H

#include "tenon/graph.h"

/* Adds one tensor, whose sources and view root are in the graph already, as the next node (or leaf). */
tn_status tn__graph_append(tn_graph *graph, tn_tensor *tensor);

/* Puts the nodes into another order: node i becomes what was node order[i]. The caller makes sure that sources stay
 * before their users. */
void tn__graph_permute(tn_graph *graph, const uint32_t *order);

/* A number that names this graph's present content: no other graph, and no other state of this one, has it. */
uint64_t tn__graph_serial(const tn_graph *graph);

#endif
