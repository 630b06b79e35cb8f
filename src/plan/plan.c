/* Making a plan: lifetimes, then one packing per memory. */
#include "plan/plan_internal.h"

#include "tenon/pack.h"

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
size_t tn_plan_chunk_size(const tn_plan *plan, size_t memory, size_t chunk) {
    return plan->chunk_sizes[memory][chunk];
}
size_t tn_plan_size(const tn_plan *plan, size_t memory) {
    size_t total = 0;
    for (size_t c = 0; c < plan->n_chunks[memory]; c++) total += plan->chunk_sizes[memory][c];
    return total;
}
size_t tn_plan_lower_bound(const tn_plan *plan, size_t memory) { return plan->lower_bounds[memory]; }

/* Packs the places of one memory. `places` lists the tensors that own one. */
static tn_status pack(tn_plan *plan, const tn_plan_params *params, size_t memory, tn_plan_slot **places,
                      size_t count) {
    tn_pack_item *items = tn_calloc(count, sizeof *items);
    if (!items) return TN_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        items[i] = (tn_pack_item){.start = places[i]->first,
                                  .end = (int64_t)places[i]->last + 1,
                                  .size = places[i]->size,
                                  .alignment = params->memories[memory].alignment};
    tn_pack_params how = tn_pack_params_default();
    how.max_chunk = params->memories[memory].max_chunk;
    tn_pack_result result;
    tn_status status = tn_pack(items, count, &how, &result);
    tn_free(items);
    if (status != TN_OK) return tn_fail_more(status, " (memory '%s')", params->memories[memory].name);
    for (size_t i = 0; i < count; i++) {
        places[i]->chunk = result.chunks[i];
        places[i]->offset = result.offsets[i];
    }
    plan->n_chunks[memory] = result.size ? result.chunk_count : 0;
    plan->lower_bounds[memory] = result.lower_bound;
    plan->chunk_sizes[memory] = result.chunk_sizes;
    result.chunk_sizes = NULL;
    tn_pack_result_free(&result);
    return TN_OK;
}

tn_status tn_plan_make(const tn_graph *graph, const tn_plan_params *params, tn_plan **out) {
    if (!graph || !params || !out || !params->n_memories)
        return tn_fail(TN_E_INVALID, "tn_plan_make: NULL argument or no memory");
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
