/* tn_plan_make: computes lifetimes, then one packing per memory. */
#include "plan/plan_internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

const char *const tn__plan_kinds[TN__KIND_COUNT] = {"external", "view",      "input",      "output",       "leaf",
                                                    "mat-mul",  "attention", "norm, rope", "element-wise", "other"};

void tn_plan_free(tn_plan *plan) {
    if (!plan) return;
    for (size_t m = 0; plan->parts && m < plan->n_parts; m++) tn_free(plan->parts[m].chunk_sizes);
    tn_free(plan->parts);
    tn_free(plan->entries);
    tn_free(plan->until);
    tn_free(plan->kinds);
    tn_free(plan->labels);
    tn_free(plan->text);
    tn_free(plan);
}

tn_status tn__plan_new(size_t n_nodes, size_t n_leaves, size_t n_parts, tn_plan **out) {
    size_t n = n_nodes + n_leaves;
    tn_plan *plan = *out = tn_calloc(1, sizeof *plan);
    if (!plan) return TN_E_NOMEM;
    plan->n_nodes = n_nodes;
    plan->n_leaves = n_leaves;
    plan->n_parts = n_parts;
    plan->entries = tn_calloc(n, sizeof *plan->entries);
    plan->until = tn_calloc(n, sizeof *plan->until);
    plan->kinds = tn_calloc(n, sizeof *plan->kinds);
    plan->labels = tn_calloc(n, sizeof *plan->labels);
    plan->parts = tn_calloc(n_parts, sizeof *plan->parts);
    if (plan->entries && plan->until && plan->kinds && plan->labels && plan->parts) return TN_OK;
    tn_plan_free(plan);
    *out = NULL;
    return TN_E_NOMEM;
}

/* ---- Properties ---- */

size_t tn_plan_tensor_count(const tn_plan *plan) { return plan->n_nodes + plan->n_leaves; }
const tn_plan_entry *tn_plan_entries(const tn_plan *plan) { return plan->entries; }
size_t tn_plan_memory_count(const tn_plan *plan) { return plan->n_parts; }
size_t tn_plan_chunk_count(const tn_plan *plan, size_t memory) { return plan->parts[memory].n_chunks; }
size_t tn_plan_chunk_size(const tn_plan *plan, size_t memory, size_t chunk) {
    return plan->parts[memory].chunk_sizes[chunk];
}
size_t tn_plan_size(const tn_plan *plan, size_t memory) {
    size_t total = 0;
    for (size_t c = 0; c < plan->parts[memory].n_chunks; c++) total += plan->parts[memory].chunk_sizes[c];
    return total;
}
size_t tn_plan_lower_bound(const tn_plan *plan, size_t memory) { return plan->parts[memory].lower_bound; }
bool tn_plan_optimal(const tn_plan *plan, size_t memory) { return plan->parts[memory].optimal; }
const char *tn_plan_memory_name(const tn_plan *plan, size_t memory) { return plan->parts[memory].name; }
const char *tn_plan_label(const tn_plan *plan, size_t tensor) { return plan->text + plan->labels[tensor]; }

size_t tn_plan_total(const tn_plan *plan) {
    size_t total = 0;
    for (size_t m = 0; m < plan->n_parts; m++) total += tn_plan_size(plan, m);
    return total;
}
double tn_plan_ratio(const tn_plan *plan) {
    size_t bound = 0;
    for (size_t m = 0; m < plan->n_parts; m++) bound += plan->parts[m].lower_bound;
    return bound ? (double)tn_plan_total(plan) / (double)bound : 1;
}

/* ---- Creation ---- */

static tn__plan_kind kind_of(const tn_tensor *t, const tn_plan_entry *entry) {
    if (t->view_src) return TN__KIND_VIEW;
    if (entry->memory < 0) return TN__KIND_EXTERNAL;
    if (t->flags & TN_FLAG_OUTPUT) return TN__KIND_OUTPUT;
    if (t->flags & TN_FLAG_INPUT) return TN__KIND_INPUT;
    switch (tn_op_get_family(t->op)) {
    case TN_FAMILY_LEAF: return TN__KIND_LEAF;
    case TN_FAMILY_MATMUL:
    case TN_FAMILY_CONV: return TN__KIND_MATMUL;
    case TN_FAMILY_ATTENTION:
    case TN_FAMILY_RECURRENT: return TN__KIND_ATTENTION;
    case TN_FAMILY_NORM:
    case TN_FAMILY_ROPE: return TN__KIND_NORM;
    case TN_FAMILY_BINARY:
    case TN_FAMILY_UNARY:
    case TN_FAMILY_GLU: return TN__KIND_ELEMENT;
    default: return TN__KIND_OTHER;
    }
}

/* Writes the name of a tensor, or "op-number" if it has none. Returns the length. */
static size_t make_label(char *label, const tn_tensor *t, size_t number) {
    const char *op = t->op == TN_OP_NONE ? "leaf" : tn_op_name(t->op);
    size_t length = strnlen(op, TN_MAX_NAME / 2), digits = 1;
    memcpy(label, op, length);
    for (size_t rest = number; rest >= 10; rest /= 10) digits++;
    label[length] = '-';
    for (size_t d = digits; d > 0; d--, number /= 10) label[length + d] = (char)('0' + number % 10);
    return length + digits + 1;
}

tn_status tn__plan_describe(tn_plan *plan, const tn_graph *graph) {
    size_t n = tn_plan_tensor_count(plan), capacity = 0;
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__plan_tensor(graph, i);
        if (capacity < plan->text_size + TN_MAX_NAME + 1) {
            /* Most names are short. */
            capacity = 2 * capacity + 16 * n + 2 * TN_MAX_NAME;
            char *grown = tn_realloc(plan->text, capacity);
            if (!grown) return TN_E_NOMEM;
            plan->text = grown;
        }
        char *label = plan->text + plan->text_size;
        size_t length = strnlen(t->name, TN_MAX_NAME);
        if (length)
            memcpy(label, t->name, length);
        else
            length = make_label(label, t, i);
        label[length] = '\0';
        plan->labels[i] = plan->text_size;
        plan->text_size += length + 1;
        plan->kinds[i] = (uint8_t)kind_of(t, &plan->entries[i]);
    }
    return TN_OK;
}

void tn__plan_begin_part(tn__plan_part *part, const tn_plan_memory *m) {
    snprintf(part->name, sizeof part->name, "%s", m->name ? m->name : "");
    part->alignment = m->alignment;
    part->max_chunk = m->max_chunk;
}

static tn_status pack_part(tn_plan *plan, const tn_plan_params *params, size_t memory, tn_pack_item *items,
                           size_t *owners) {
    tn__plan_part *part = &plan->parts[memory];
    const tn_plan_memory *m = &params->memories[memory];
    tn__plan_begin_part(part, m);
    size_t count = 0, n = tn_plan_tensor_count(plan);
    for (size_t i = 0; i < n; i++) {
        const tn_plan_entry *entry = &plan->entries[i];
        if (entry->memory != (int32_t)memory || !tn__plan_owns(entry) || !entry->size) continue;
        owners[count] = i;
        items[count++] = (tn_pack_item){.start = entry->first,
                                        .end = (int64_t)plan->until[i] + 1,
                                        .size = entry->size,
                                        .alignment = m->alignment};
    }
    tn_pack_params how = params->pack;
    how.capacity = 0;
    how.max_chunk = m->max_chunk;
    how.bins = params->bins ? params->bins[memory].sizes : NULL;
    how.n_bins = params->bins ? params->bins[memory].count : 0;
    tn_pack_result result;
    tn_status status = tn_pack(items, count, &how, &result);
    if (status != TN_OK) return tn_fail_more(status, " (memory '%s')", part->name);
    for (size_t k = 0; k < count; k++) {
        plan->entries[owners[k]].chunk = result.chunks[k];
        plan->entries[owners[k]].offset = result.offsets[k];
    }
    part->n_chunks = result.size ? result.chunk_count : 0;
    part->lower_bound = result.lower_bound;
    part->optimal = result.optimal;
    part->steps = result.steps;
    part->chunk_sizes = result.chunk_sizes;
    result.chunk_sizes = NULL;
    tn_pack_result_free(&result);
    return TN_OK;
}

tn_status tn_plan_make(const tn_graph *graph, const tn_plan_params *params, tn_plan **out) {
    if (!out) return tn_fail(TN_E_INVALID, "tn_plan_make: NULL argument");
    *out = NULL;
    TN_TRY(tn__plan_check_params(graph, params));
    tn_plan *plan;
    TN_TRY(tn__plan_new(tn_graph_node_count(graph), tn_graph_leaf_count(graph), params->n_memories, &plan));
    size_t n = tn_plan_tensor_count(plan);
    tn_pack_item *items = tn_malloc(n * sizeof *items);
    size_t *owners = tn_malloc(n * sizeof *owners);
    tn_status status = TN_E_NOMEM;
    if (!items || !owners) goto out;
    TN_TRY_GOTO(tn__plan_liveness(graph, params, plan->entries, plan->until), status, out);
    TN_TRY_GOTO(tn__plan_describe(plan, graph), status, out);
    for (size_t m = 0; m < params->n_memories; m++)
        TN_TRY_GOTO(pack_part(plan, params, m, items, owners), status, out);
    /* Copy offsets to tensors computed in place. A node's `inplace_of` is a leaf or an earlier node. */
    for (size_t i = 0; i < plan->n_nodes; i++) {
        tn_plan_entry *entry = &plan->entries[i];
        if (entry->inplace_of == TN_GRAPH_NONE) continue;
        entry->chunk = plan->entries[entry->inplace_of].chunk;
        entry->offset = plan->entries[entry->inplace_of].offset;
    }
#ifndef NDEBUG
    TN_TRY_GOTO(tn_plan_verify(plan, graph, params), status, out);
#endif
out:
    tn_free(items);
    tn_free(owners);
    if (status != TN_OK)
        tn_plan_free(plan);
    else
        *out = plan;
    return status;
}
