/* Recomputation: what the search knows about a graph, and one attempt to run it in less memory. */
#ifndef TN_RUNTIME_RECOMPUTE_INTERNAL_H
#define TN_RUNTIME_RECOMPUTE_INTERNAL_H

#include "tenon/recompute.h"

/* Of a node: its sources, then the root that it is a view of. */
enum { TN__READS = TN_MAX_SRC + 1 };

/* Constant properties of a graph. Tensors are numbered as in plans: nodes, then leaves. A value is a tensor that owns
 * memory; a view is read as its root. */
typedef struct tn__values {
    const tn_graph *graph;
    const tn_plan_params *plan;
    size_t n_nodes, n;
    uint32_t (*reads)[TN__READS]; /* per node: tensors that it reads, or TN_GRAPH_NONE */
    uint32_t *root;               /* per tensor */
    size_t *bytes;                /* per tensor; 0 where nothing is planned */
    uint16_t *memory;
    double *seconds;
    bool *kept;    /* to the end: outputs and parameters */
    bool *written; /* some node writes into the memory of this root */
    bool *fixed;   /* computed once, never again */
    /* Per value the nodes that read it, in order. */
    uint32_t *uses_begin, *uses;
    bool has_planned_leaves;
} tn__values;
tn_status tn__values_new(const tn_graph *graph, const tn_recompute_params *params, tn__values *values);
void tn__values_free(tn__values *values);

/* How values to be freed are chosen: by cost / (bytes × gap^exponent), lowest first. */
typedef struct tn__rule {
    double exponent;
    bool closure;     /* the cost includes what must be computed again before */
    bool keep_leaves; /* leaves stay in memory to the end, so that everything can be computed from them */
} tn__rule;

typedef struct tn__attempt {
    const size_t *bytes; /* per memory */
    tn__rule rule;
    const bool *banned; /* per tensor: is not freed while it has uses to come; may be NULL */
    /* Per tensor: the use before which it is computed again, after it was freed at the use before; TN_GRAPH_NONE: it
     * stays. With this list nothing else is freed, and memory is not limited. May be NULL. */
    const uint32_t *drop;
    /* A value of the list that others needed earlier stays from then on if that is at most so many nodes before. */
    uint32_t near_use;
    double limit; /* of added seconds: beyond it the attempt ends */
} tn__attempt;

/* The nodes in the order in which they run. */
typedef struct tn__trace {
    uint32_t *origin;             /* the node of the given graph */
    uint32_t (*reads)[TN__READS]; /* steps of this trace that computed what is read; TN_GRAPH_NONE: leaves */
    size_t n, capacity;
    size_t n_recomputed;
    double added;  /* seconds */
    bool *evicted; /* per value of the graph: it was freed with uses to come */
    /* With a list of drops: whether the bytes suffice, and otherwise where most are missing: values that could be
     * freed there, and their next uses. */
    bool fits;
    uint32_t *at_peak, *peak_use;
    size_t n_at_peak;
} tn__trace;
void tn__trace_free(tn__trace *trace);

/* Runs the graph within the attempt's bytes. `found` is false where that is impossible; there is no trace then. */
tn_status tn__trace_run(const tn__values *values, const tn__attempt *attempt, tn__trace *trace, bool *found);
/* The last node that reads a value; the number of nodes where it stays to the end. */
uint32_t tn__last_use(const tn__values *values, uint32_t value);

#endif
