/* Walks what a run of a graph does, in order. */
#include "runtime/visit.h"

#include "runtime/sched_internal.h"

static const tn__schedule *newest_schedule(const tn_sched *s, tn_graph *graph) {
    const tn_fingerprint key = tn_graph_fingerprint(graph);
    const tn__schedule *newest = NULL;
    for (size_t i = 0; i < s->n_schedules; i++) {
        const tn__schedule *c = s->schedules[i];
        if (c->key.lo != key.lo || c->key.hi != key.hi) continue;
        if (!newest || c->last_used > newest->last_used) newest = c;
    }
    return newest;
}

tn_status tn__sched_visit(tn_sched *s, tn_graph *graph, tn__visit_fn visit, void *user) {
    tn_sched_info info;
    TN_TRY(tn_sched_describe(s, graph, &info)); /* makes the schedule, or marks it as used last */
    const tn__schedule *schedule = newest_schedule(s, graph);
    if (!schedule) return tn_fail(TN_E_INTERNAL, "a graph that was just scheduled has no schedule");
    for (size_t i = 0; i < schedule->n_splits; i++) {
        const tn__split *split = &schedule->splits[i];
        for (size_t c = 0; c < split->n_copies + split->n_prefetches; c++) {
            const tn__copy *copy = &schedule->copies[split->first_copy + c];
            visit(user,
                  &(tn__visit){.stream = split->stream, .from = copy->from, .node = copy->source, .ids = copy->ids});
        }
        for (size_t n = 0; n < split->n_nodes; n++)
            visit(user,
                  &(tn__visit){.stream = split->stream, .from = -1, .node = schedule->work[split->first_node + n]});
    }
    return TN_OK;
}
