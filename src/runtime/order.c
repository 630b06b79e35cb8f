/* Memory-aware order of a schedule: the nodes within each split in an order that needs less memory.
 *
 * Splits, and the copies in front of them, stay where they are. The order is found for the first graph of a structure
 * and applied to all others of the same structure, so that they stay in one class. */
#include "runtime/sched_internal.h"

#include "base/checked.h"
#include "plan/plan_cover.h"
#include "tensor/graph_build.h"

#include <string.h>

struct tn__order {
    tn__structure structure; /* of the scheduled graph before */
    uint32_t *order;         /* old index of every node; NULL: as it was */
    uint64_t last_used;
    bool reserved;
};

enum { MAX_ORDERS = 128 };

static void free_order(tn__order *o) {
    if (!o) return;
    tn__structure_free(&o->structure);
    tn_free(o->order);
    tn_free(o);
}

void tn__orders_forget(tn_sched *s, bool reserved_too) {
    for (size_t i = s->n_orders; i-- > 0;) {
        if (s->orders[i]->reserved && !reserved_too) continue;
        free_order(s->orders[i]);
        s->orders[i] = s->orders[--s->n_orders];
    }
    if (s->n_orders) return;
    tn_free(s->orders);
    s->orders = NULL;
    s->cap_orders = 0;
}

void tn__order_reserve(const tn__schedule *schedule) {
    if (schedule->order) schedule->order->reserved = true;
}

static tn_status remember_order(tn_sched *s, tn__order *fresh) {
    size_t oldest = s->n_orders, evictable = 0;
    for (size_t i = 0; i < s->n_orders; i++) {
        if (s->orders[i]->reserved) continue;
        evictable++;
        if (oldest == s->n_orders || s->orders[i]->last_used < s->orders[oldest]->last_used) oldest = i;
    }
    if (evictable >= MAX_ORDERS) {
        for (size_t i = 0; i < s->n_schedules; i++)
            if (s->schedules[i]->order == s->orders[oldest]) s->schedules[i]->order = NULL;
        free_order(s->orders[oldest]);
        s->orders[oldest] = fresh;
        return TN_OK;
    }
    if (s->n_orders == s->cap_orders) {
        size_t capacity = s->cap_orders ? 2 * s->cap_orders : 8;
        tn__order **grown = tn_realloc(s->orders, capacity * sizeof(tn__order *));
        if (!grown) return TN_E_NOMEM;
        s->orders = grown;
        s->cap_orders = capacity;
    }
    s->orders[s->n_orders++] = fresh;
    return TN_OK;
}

/* ---- Safety ---- */

/* Memory of the caller that is not weights may be reachable through several tensors. Nodes that write into such
 * memory therefore stay in order among each other and with all nodes that read any of it. */
static void memory_access(const tn_tensor *t, bool *writes, bool *reads) {
    *writes = *reads = false;
    if (tn__is_view_op(t)) return;
    for (int x = 0; x < TN_MAX_SRC; x++) {
        if (!t->src[x]) continue;
        const tn_tensor *root = t->src[x]->view_src ? t->src[x]->view_src : t->src[x];
        if (tn__is_external(root) && tn_tensor_usage(root) != TN_USAGE_WEIGHTS) *reads = true;
    }
    const tn_tensor *written = tn__written_root(t);
    if (written && tn__is_external(written) && tn_tensor_usage(written) != TN_USAGE_WEIGHTS) *writes = true;
    if (t->op == TN_OP_CUSTOM || (!t->view_src && tn__is_external(t))) *writes = true;
}

static bool keeps_writes_in_order(const tn_graph *graph, const uint32_t *order, uint32_t *writes_before) {
    size_t n = tn_graph_node_count(graph);
    bool writes, reads;
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++) {
        memory_access(tn_graph_node(graph, i), &writes, &reads);
        writes_before[i] = writes || reads ? count : UINT32_MAX;
        count += writes;
    }
    count = 0;
    for (size_t i = 0; i < n; i++) {
        memory_access(tn_graph_node(graph, order[i]), &writes, &reads);
        if (writes_before[order[i]] != UINT32_MAX && writes_before[order[i]] != count) return false;
        count += writes;
    }
    return true;
}

/* ---- Finding ---- */

static tn_status plan_bound(const tn_graph *graph, const tn_plan_params *params, size_t *bound) {
    tn_plan *plan;
    TN_TRY(tn_plan_make(graph, params, &plan));
    *bound = 0;
    for (size_t m = 0; m < params->n_memories; m++) *bound += tn_plan_lower_bound(plan, m);
    tn_plan_free(plan);
    return TN_OK;
}

/* The same nodes, segment by segment, in each segment in the order in which `order` has them. Segments are the
 * splits' copies and the splits' nodes. Every dependency holds: within a segment by `order`, between segments as
 * before. */
static void sort_by_segment(uint32_t *order, const size_t *segments, size_t n_segments, size_t n,
                            uint32_t *segment_of, size_t *next, uint32_t *sorted) {
    for (size_t k = 0; k < n_segments; k++) {
        size_t end = k + 1 < n_segments ? segments[k + 1] : n;
        next[k] = segments[k];
        for (size_t i = segments[k]; i < end; i++) segment_of[i] = (uint32_t)k;
    }
    for (size_t i = 0; i < n; i++) sorted[next[segment_of[order[i]]]++] = order[i];
    memcpy(order, sorted, n * sizeof *order);
}

/* Whether the new order lowers the peak by at least one percent. */
static tn_status pays_off(const tn_sched *s, const tn__schedule *schedule, const tn_plan_params *params,
                          const uint32_t *order, bool *yes) {
    const tn_graph *graph = schedule->graph;
    size_t n = tn_graph_node_count(graph), total = n + tn_graph_leaf_count(graph), before, after;
    tn_arena *aside = NULL;
    tn_graph *trial;
    tn_plan_params own;
    tn__alloc_context context;
    uint16_t *type_of = tn_malloc((total + 1) * sizeof *type_of),
             *memory_of = tn_malloc((total + 1) * sizeof *type_of);
    tn_status status = type_of && memory_of ? TN_OK : TN_E_NOMEM;
    if (status != TN_OK) goto out;
    for (size_t i = 0; i < total; i++) type_of[i] = schedule->type_of[i < n ? order[i] : i];
    TN_TRY_GOTO(tn__alloc_plan_params(s->alloc, graph, type_of, memory_of, &context, &own), status, out);
    own.pack = params->pack;
    size_t room = tn_arena_size_for(0, tn_graph_capacity(graph));
    TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = room, .no_alloc = true}, &aside), status, out);
    TN_TRY_GOTO(tn_graph_copy(aside, graph, &trial), status, out);
    tn__graph_permute(trial, order);
    TN_TRY_GOTO(plan_bound(graph, params, &before), status, out);
    TN_TRY_GOTO(plan_bound(trial, &own, &after), status, out);
    *yes = after + before / 100 < before;
out:
    tn_arena_free(aside);
    tn_free(type_of);
    tn_free(memory_of);
    return status;
}

static tn_status find_order(const tn_sched *s, const tn__schedule *schedule, const size_t *segments,
                            size_t n_segments, uint32_t **out) {
    const tn_graph *graph = schedule->graph;
    size_t n = tn_graph_node_count(graph), total = n + tn_graph_leaf_count(graph), saved = 0;
    uint32_t *order = tn_malloc((n + 1) * sizeof *order), *words = tn_malloc((2 * n + 1) * sizeof *words);
    size_t *next = tn_malloc((n_segments + 1) * sizeof *next);
    uint16_t *memory_of = tn_malloc((total + 1) * sizeof *memory_of);
    tn_arena *aside = NULL;
    tn_graph *reordered;
    tn_plan_params params;
    tn__alloc_context context;
    bool yes = false;
    tn_status status = order && words && next && memory_of ? TN_OK : TN_E_NOMEM;
    if (status != TN_OK) goto out;
    TN_TRY_GOTO(tn__alloc_plan_params(s->alloc, graph, schedule->type_of, memory_of, &context, &params), status, out);
    params.pack = tn_pack_params_default();
    size_t room = tn_arena_size_for(0, tn_graph_capacity(graph));
    TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = room, .no_alloc = true}, &aside), status, out);
    TN_TRY_GOTO(tn_plan_reorder(aside, graph, &params, &reordered, order, &saved), status, out);
    if (!saved) goto out;
    sort_by_segment(order, segments, n_segments, n, words, next, words + n);
    if (keeps_writes_in_order(graph, order, words))
        TN_TRY_GOTO(pays_off(s, schedule, &params, order, &yes), status, out);
out:
    tn_arena_free(aside);
    tn_free(words);
    tn_free(next);
    tn_free(memory_of);
    if (!yes || status != TN_OK) tn_free(order);
    *out = yes && status == TN_OK ? order : NULL;
    return status;
}

/* ---- Applying ---- */

static tn_status apply_order(tn__schedule *schedule, const uint32_t *order) {
    tn_graph *graph = schedule->graph;
    size_t n = tn_graph_node_count(graph), n_work = 0, at = 0;
    for (size_t i = 0; i < schedule->n_splits; i++) n_work += schedule->splits[i].n_nodes;
    uint16_t *type_of = tn_malloc((n + 1) * sizeof *type_of);
    uint32_t *work_at = tn_malloc((n + 1) * sizeof *work_at);
    tn_tensor **was = tn_malloc((n_work + 1) * sizeof *was);
    uint32_t *from = tn_malloc((n_work + 1) * sizeof *from);
    tn_status status = type_of && work_at && was && from ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; status == TN_OK && i < n; i++) {
        work_at[i] = UINT32_MAX;
        type_of[i] = schedule->type_of[order[i]];
    }
    for (uint32_t k = 0; status == TN_OK && k < n_work; k++) work_at[tn_graph_index(graph, schedule->work[k])] = k;
    /* The order of splits does not change, so the nodes of all splits are renumbered in one pass. */
    for (size_t i = 0; status == TN_OK && i < n; i++)
        if (work_at[order[i]] != UINT32_MAX) from[at++] = work_at[order[i]];
    for (size_t run = 0; status == TN_OK && run < schedule->n_work_lists; run++) {
        tn_tensor **work = schedule->work + run * schedule->n_nodes;
        memcpy(was, work, n_work * sizeof *was);
        for (size_t k = 0; k < n_work; k++) work[k] = was[from[k]];
    }
    if (status == TN_OK) {
        memcpy(schedule->type_of, type_of, n * sizeof *type_of);
        tn__graph_permute(graph, order);
    }
    tn_free(type_of);
    tn_free(work_at);
    tn_free(was);
    tn_free(from);
    return status;
}

tn_status tn__schedule_reorder(tn_sched *s, tn__schedule *schedule, const size_t *segments, size_t n_segments) {
    if (!s->reorder || tn_graph_node_count(schedule->graph) < 3) return TN_OK;
    tn__structure structure;
    tn__order *known = NULL;
    TN_TRY(tn__structure_of(schedule->graph, schedule->type_of, &structure));
    for (size_t i = 0; i < s->n_orders && !known; i++)
        if (tn__structure_equal(&s->orders[i]->structure, &structure)) known = s->orders[i];
    if (known) {
        tn__structure_free(&structure);
    } else {
        known = tn_calloc(1, sizeof *known);
        tn_status status = known ? find_order(s, schedule, segments, n_segments, &known->order) : TN_E_NOMEM;
        if (status != TN_OK && status != TN_E_NOMEM) { /* planning the graph will fail as well, and say so */
            tn_error_clear();
            status = TN_OK;
        }
        if (known) known->structure = structure;
        if (status == TN_OK) status = remember_order(s, known);
        if (status != TN_OK) {
            if (!known) tn__structure_free(&structure);
            free_order(known);
            return status;
        }
    }
    known->last_used = ++s->clock;
    schedule->order = known;
    if (!known->order) return TN_OK;
    s->stats.schedules_reordered++;
    return apply_order(schedule, known->order);
}
