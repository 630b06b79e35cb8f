/* Walks what a run of a graph does, in order. */
#ifndef TN_RUNTIME_VISIT_H
#define TN_RUNTIME_VISIT_H

#include "tenon/sched.h"

/* A node that a stream computes, or a copy to it from stream `from`. */
typedef struct tn__visit {
    int stream, from;      /* from: -1 for a node */
    const tn_tensor *node; /* the node, or the tensor that is copied */
    const tn_tensor *ids;  /* of a copy of expert weights: only the experts that these name; else NULL */
} tn__visit;
typedef void (*tn__visit_fn)(void *user, const tn__visit *visit);

/* Schedules the graph if it is not yet; nothing is reserved. */
tn_status tn__sched_visit(tn_sched *sched, tn_graph *graph, tn__visit_fn visit, void *user);

#endif
