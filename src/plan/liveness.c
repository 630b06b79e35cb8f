/* Lifetimes of tensors: from the first write to the last read, including reads through views and in-place results. */
#include "plan/plan_internal.h"

#include "base/checked.h"
#include "tensor/external.h"

#include <string.h>

tn_status tn__plan_check_params(const tn_graph *graph, const tn_plan_params *params) {
    if (!graph || !params || !params->memories || !params->n_memories || params->n_memories > INT16_MAX)
        return tn_fail(TN_E_INVALID, "planning needs a graph and 1 to %d memories", INT16_MAX);
    for (size_t m = 0; m < params->n_memories; m++)
        if (!tn__is_pow2(params->memories[m].alignment))
            return tn_fail(TN_E_INVALID, "memory %zu has alignment %zu, not a power of two", m,
                           params->memories[m].alignment);
    return TN_OK;
}

tn_status tn__plan_bytes(const tn_plan_params *params, size_t memory, size_t index, const tn_tensor *t,
                         size_t *bytes) {
    size_t plain = params->tensor_size ? params->tensor_size(params->user, memory, t) : tn_nbytes(t);
    if (!tn__align_up_checked(plain, params->memories[memory].alignment, bytes))
        return tn_fail(TN_E_OVERFLOW, "the size of tensor %zu ('%s') overflows", index, t->name);
    return TN_OK;
}

/* Intermediate state. `owner` of a tensor is the tensor whose entry owns its memory: itself, or the first of a series
 * of tensors computed in place of one another. `roots` caches the indices of the roots of all sources, node by node,
 * because looking up a tensor is slow. */
typedef struct liveness {
    const tn_graph *graph;
    tn_plan_entry *entries;
    uint32_t *until, *owner;
    uint32_t *roots;
} liveness;

static tn_status find_root(const tn_graph *graph, const tn_tensor *t, uint32_t *index) {
    *index = tn_graph_index(graph, tn__root(t));
    if (*index == TN_GRAPH_NONE)
        return tn_fail(TN_E_INVALID, "tensor '%s' (%s) is used but not part of the graph", t->name,
                       tn_op_name(t->op));
    return TN_OK;
}

/* Initialises entries without reads; also counts all sources of nodes. */
static tn_status begin_entries(const tn_graph *graph, const tn_plan_params *params, tn_plan_entry *entries,
                               size_t *n_sources) {
    size_t n_nodes = tn_graph_node_count(graph), n = n_nodes + tn_graph_leaf_count(graph);
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__plan_tensor(graph, i);
        tn_plan_entry *entry = &entries[i];
        memset(entry, 0, sizeof *entry);
        entry->memory = -1;
        entry->first = entry->last = i < n_nodes ? (uint32_t)i : 0;
        entry->inplace_of = TN_GRAPH_NONE;
        for (int s = 0; s < TN_MAX_SRC; s++) *n_sources += t->src[s] != NULL;
        if (t->view_src || tn__is_external(t)) continue;
        size_t memory = params->memory_of ? params->memory_of[i] : 0;
        if (memory >= params->n_memories)
            return tn_fail(TN_E_INVALID, "tensor %zu ('%s') is assigned to memory %zu of %zu", i, t->name, memory,
                           params->n_memories);
        entry->memory = (int32_t)memory;
        TN_TRY(tn__plan_bytes(params, memory, i, t, &entry->size));
        if (params->memories[memory].max_chunk && entry->size > params->memories[memory].max_chunk)
            return tn_fail(TN_E_TOO_BIG, "tensor %zu ('%s') needs %zu bytes, the largest allocation in %s has %zu", i,
                           t->name, entry->size, params->memories[memory].name, params->memories[memory].max_chunk);
        if (t->flags & (TN_FLAG_OUTPUT | TN_FLAG_PARAM)) entry->last = (uint32_t)n_nodes;
    }
    return TN_OK;
}

/* Finds the last reads. A read of a view is a read of its root, and so is a write through one (set_rows, cpy). */
static tn_status find_reads(const liveness *l) {
    uint32_t n_nodes = (uint32_t)tn_graph_node_count(l->graph), *root = l->roots, view_root;
    for (uint32_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(l->graph, i);
        for (int s = 0; s < TN_MAX_SRC; s++) {
            if (!t->src[s]) continue;
            TN_TRY(find_root(l->graph, t->src[s], root));
            tn_plan_entry *entry = &l->entries[*root++];
            entry->last = TN__MAX(entry->last, t->src[s]->flags & TN_FLAG_OUTPUT ? n_nodes : i);
        }
        if (!t->view_src) continue;
        TN_TRY(find_root(l->graph, t->view_src, &view_root));
        tn_plan_entry *entry = &l->entries[view_root];
        entry->last = TN__MAX(entry->last, (t->flags | t->view_src->flags) & TN_FLAG_OUTPUT ? n_nodes : i);
    }
    return TN_OK;
}

/* Whether node i may be computed in place of its source s; `roots` are those of its sources, in order. */
static bool may_reuse(const liveness *l, size_t i, int s, uint32_t mask, const uint32_t *roots, uint32_t *parent) {
    const tn_tensor *t = tn_graph_node(l->graph, i), *source = t->src[s];
    if (!source || !tn_same_layout(t, source)) return false;
    uint32_t of[TN_MAX_SRC] = {0};
    for (int other = 0; other < TN_MAX_SRC; other++)
        if (t->src[other]) of[other] = *roots++;
    *parent = of[s];
    uint32_t owner = l->owner[*parent];
    const tn_plan_entry *from = &l->entries[*parent], *own = &l->entries[i];
    /* The source must cover the memory of its root completely. Tensors that live to the end (outputs) have a last
     * step past all nodes. */
    if (from->memory != own->memory || from->size != own->size || source->view_offset != 0) return false;
    if (from->last != i || l->until[owner] != i) return false;
    /* Another source in the same memory would be overwritten while it is read, unless it has the same elements and
     * the op allows it: x + x. */
    for (int other = 0; other < TN_MAX_SRC; other++) {
        const tn_tensor *o = t->src[other];
        if (!o || other == s || l->owner[of[other]] != owner) continue;
        if (!(mask >> other & 1) || o->view_offset != source->view_offset || !tn_same_layout(o, source)) return false;
    }
    return true;
}

/* Computes results in place of sources that no later node reads, in node order. The owner's lifetime is extended each
 * time, so that the next decision about the same memory sees its current end. */
static void reuse_in_place(liveness *l, const tn_plan_params *params) {
    const uint32_t *roots = l->roots;
    size_t n_nodes = tn_graph_node_count(l->graph);
    for (size_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(l->graph, i);
        tn_plan_entry *entry = &l->entries[i];
        uint32_t mask = entry->memory >= 0 && entry->size ? tn__plan_mask(params, t, i) : 0;
        for (int s = 0; s < TN_MAX_SRC && mask >> s; s++) {
            uint32_t parent;
            if (!(mask >> s & 1) || !may_reuse(l, i, s, mask, roots, &parent)) continue;
            entry->inplace_of = parent;
            l->owner[i] = l->owner[parent];
            l->until[l->owner[i]] = entry->last;
            break;
        }
        for (int s = 0; s < TN_MAX_SRC; s++) roots += t->src[s] != NULL;
    }
}

tn_status tn__plan_liveness(const tn_graph *graph, const tn_plan_params *params, tn_plan_entry *entries,
                            uint32_t *until) {
    size_t n = tn_graph_node_count(graph) + tn_graph_leaf_count(graph), n_sources = 0;
    TN_TRY(begin_entries(graph, params, entries, &n_sources));
    liveness l = {graph, entries, until, tn_malloc(n * sizeof *l.owner), tn_malloc(n_sources * sizeof *l.roots)};
    tn_status status = TN_E_NOMEM;
    if (!l.owner || !l.roots) goto out;
    TN_TRY_GOTO(find_reads(&l), status, out);
    for (uint32_t i = 0; i < n; i++) {
        until[i] = entries[i].last;
        l.owner[i] = i;
    }
    reuse_in_place(&l, params);
out:
    tn_free(l.owner);
    tn_free(l.roots);
    return status;
}
