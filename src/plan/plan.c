/* Making a plan: lifetimes, then one packing per memory. */
#include "plan/plan_internal.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

void tn_plan_free(tn_plan *plan) {
    if (!plan) return;
    for (size_t m = 0; plan->chunk_sizes && m < plan->n_memories; m++) tn_free(plan->chunk_sizes[m]);
    tn_free(plan->chunk_sizes);
    tn_free(plan->n_chunks);
    tn_free(plan->lower_bounds);
    tn_free(plan->slots);
    tn_free(plan);
}

size_t tn_plan_tensor_count(const tn_plan *plan) { return plan->n_nodes + plan->n_leaves; }
const tn_plan_slot *tn_plan_slots(const tn_plan *plan) { return plan->slots; }
size_t tn_plan_memory_count(const tn_plan *plan) { return plan->n_memories; }
size_t tn_plan_chunk_count(const tn_plan *plan, size_t memory) { return plan->n_chunks[memory]; }
size_t tn_plan_chunk_size(const tn_plan *plan, size_t memory, size_t chunk) { return plan->chunk_sizes[memory][chunk]; }
size_t tn_plan_size(const tn_plan *plan, size_t memory) {
    size_t total = 0;
    for (size_t c = 0; c < plan->n_chunks[memory]; c++) total += plan->chunk_sizes[memory][c];
    return total;
}
size_t tn_plan_lower_bound(const tn_plan *plan, size_t memory) { return plan->lower_bounds[memory]; }

static int by_size(const void *a, const void *b) {
    const tn_plan_slot *x = *(tn_plan_slot *const *)a, *y = *(tn_plan_slot *const *)b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return x < y ? -1 : x > y;
}

/* Largest first, each at the lowest place that no overlapping lifetime occupies. */
static tn_status pack(tn_plan *plan, const tn_plan_params *params, size_t memory, tn_plan_slot **items, size_t count) {
    size_t steps = plan->n_nodes + 1, *live = tn_calloc(steps + 1, sizeof *live);
    if (!live) return TN_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        live[items[i]->first] += items[i]->size;
        live[items[i]->last + 1] -= items[i]->size;
    }
    size_t now = 0;
    for (size_t i = 0; i < steps; i++) {
        now += live[i];
        if (now > plan->lower_bounds[memory]) plan->lower_bounds[memory] = now;
    }
    tn_free(live);

    qsort(items, count, sizeof *items, by_size);
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        size_t offset = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (size_t k = 0; k < i; k++) {
                if (items[k]->first > items[i]->last || items[i]->first > items[k]->last) continue;
                if (items[k]->offset < offset + items[i]->size && offset < items[k]->offset + items[k]->size) {
                    offset = items[k]->offset + items[k]->size;
                    moved = true;
                }
            }
        }
        items[i]->offset = offset;
        total = TN__MAX(total, offset + items[i]->size);
    }
    if (total > params->memories[memory].max_chunk)
        return tn_fail(TN_E_UNSUPPORTED, "memory '%s' needs more than one chunk", params->memories[memory].name);
    plan->chunk_sizes[memory] = tn_malloc(sizeof(size_t));
    if (!plan->chunk_sizes[memory]) return TN_E_NOMEM;
    plan->chunk_sizes[memory][0] = total;
    plan->n_chunks[memory] = total ? 1 : 0;
    return TN_OK;
}

tn_status tn_plan_make(const tn_graph *graph, const tn_plan_params *params, tn_plan **out) {
    if (!graph || !params || !out || !params->n_memories) return tn_fail(TN_E_INVALID, "tn_plan_make: NULL argument or no memory");
    *out = NULL;
    size_t n_nodes = tn_graph_node_count(graph), n_leaves = tn_graph_leaf_count(graph), n = n_nodes + n_leaves;
    tn_plan *plan = tn_calloc(1, sizeof *plan);
    if (!plan) return TN_E_NOMEM;
    plan->n_nodes = n_nodes;
    plan->n_leaves = n_leaves;
    plan->n_memories = params->n_memories;
    plan->slots = tn_calloc(n, sizeof *plan->slots);
    plan->n_chunks = tn_calloc(params->n_memories, sizeof *plan->n_chunks);
    plan->chunk_sizes = tn_calloc(params->n_memories, sizeof *plan->chunk_sizes);
    plan->lower_bounds = tn_calloc(params->n_memories, sizeof *plan->lower_bounds);
    tn_plan_slot **items = tn_calloc(n, sizeof *items);
    tn_status status = TN_E_NOMEM;
    if (!plan->slots || !plan->n_chunks || !plan->chunk_sizes || !plan->lower_bounds || !items) goto out;
    TN_TRY_GOTO(tn__plan_liveness(graph, params, plan->slots), status, out);
    for (size_t m = 0; m < params->n_memories; m++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            tn_plan_slot *slot = &plan->slots[i];
            if (slot->memory == (int32_t)m && slot->size && slot->inplace_of == TN_GRAPH_NONE) items[count++] = slot;
        }
        TN_TRY_GOTO(pack(plan, params, m, items, count), status, out);
    }
    /* Whoever took a place has its address; parents come before their children among nodes, leaves are done. */
    for (size_t i = 0; i < n_nodes; i++) {
        tn_plan_slot *slot = &plan->slots[i];
        if (slot->inplace_of == TN_GRAPH_NONE) continue;
        slot->chunk = plan->slots[slot->inplace_of].chunk;
        slot->offset = plan->slots[slot->inplace_of].offset;
    }
out:
    tn_free(items);
    if (status != TN_OK)
        tn_plan_free(plan);
    else
        *out = plan;
    return status;
}
