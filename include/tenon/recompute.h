/* Recomputation: reduces the memory of a graph by computing some results again.
 *
 *     tn_recomputation r;
 *     TN_TRY(tn_graph_recompute(graph, &(tn_recompute_params){.plan = &plan, .budgets = &budget}, &r));
 *     … run r.graph …
 *     tn_recomputation_free(&r);
 *
 * Between two uses that lie far apart a result need not stay in memory: it is freed after the first and
 * recomputed just before the second. This helps in training graphs, where the backward pass reads the results of the
 * forward pass in reverse order. Results have the same bits. docs/budget.md explains the search. */
#ifndef TENON_RECOMPUTE_H
#define TENON_RECOMPUTE_H

#include "tenon/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_recompute_params {
    const tn_plan_params *plan; /* memories, sizes, in-place masks and effort, for the indices of the given graph */
    const size_t *budgets;      /* max bytes of each memory's plan; SIZE_MAX: no limit */
    /* Predicted seconds of a node; NULL: those of a desktop's CPU. Only their ratios matter for the search. */
    double (*seconds)(void *user, const tn_tensor *node);
    void *user;
} tn_recompute_params;

typedef struct tn_recomputation {
    tn_arena *arena; /* holds the graph and its own tensors */
    /* The tensors of the given graph where their sources have not changed, copies of them otherwise. Unchanged if the
     * given graph fits. */
    tn_graph *graph;
    uint32_t *origin;     /* per node of `graph`: the node of the given graph that it computes; in the arena */
    size_t n_recomputed;  /* nodes that recompute a result */
    size_t before, after; /* planned bytes of all memories together */
    size_t smallest;      /* after TN_E_TOO_BIG: the fewest bytes that the search reached */
    double seconds, added_seconds; /* predicted: of the given graph, and what recomputation adds */
} tn_recomputation;

/* Finds an order of the given nodes, some of them repeated, whose plan is within the budgets and adds little
 * time. Outputs, parameters, custom ops, nodes that write into another tensor's memory, and results that depend
 * on such memory are never recomputed. The given graph does not change and must outlive the new one.
 * TN_E_TOO_BIG: none was found; the message and `smallest` have the smallest budget that can be met. The other
 * fields of the result are then invalid and need not be freed. */
TN_API tn_status tn_graph_recompute(const tn_graph *graph, const tn_recompute_params *params,
                                    tn_recomputation *result) TN_MUST_CHECK;
/* The tensor of the new graph that holds the value of a node of the given graph, where it is computed first. NULL:
 * the node is a view that nothing reads. */
TN_API tn_tensor *tn_recomputed(const tn_recomputation *result, const tn_graph *graph, const tn_tensor *node);
TN_API void tn_recomputation_free(tn_recomputation *result);

#ifdef __cplusplus
}
#endif
#endif
