/* Lifetimes: from the first write to the last read, counting reads through views and chains of in-place results. */
#include "plan/plan_internal.h"

#include "base/checked.h"

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

/* Lifetimes in the making. `owner` is the tensor whose slot holds the place that one lies in: itself, or the first of
 * a chain of tensors that took it over. Looking a tensor up costs a walk through memory, so the numbers of the
 * sources' roots are kept, node after node. */
typedef struct lives {
    const tn_graph *graph;
    tn_plan_entry *slots;
    uint32_t *until, *owner;
    uint32_t *roots;
} lives;

static tn_status find_root(const tn_graph *graph, const tn_tensor *t, uint32_t *index) {
    *index = tn_graph_index(graph, tn__root(t));
    if (*index == TN_GRAPH_NONE)
        return tn_fail(TN_E_INVALID, "tensor '%s' (%s) is used but not part of the graph", t->name,
                       tn_op_name(t->op));
    return TN_OK;
}

/* The places in themselves; also counts all sources of nodes. */
static tn_status begin(const tn_graph *graph, const tn_plan_params *params, tn_plan_entry *slots, size_t *n_sources) {
    size_t n_nodes = tn_graph_node_count(graph), n = n_nodes + tn_graph_leaf_count(graph);
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__plan_tensor(graph, i);
        tn_plan_entry *slot = &slots[i];
        memset(slot, 0, sizeof *slot);
        slot->memory = -1;
        slot->first = slot->last = i < n_nodes ? (uint32_t)i : 0;
        slot->inplace_of = TN_GRAPH_NONE;
        for (int s = 0; s < TN_MAX_SRC; s++) *n_sources += t->src[s] != NULL;
        if (t->view_src || (t->data && !(t->flags & TN_FLAG_PLANNED))) continue;
        size_t memory = params->memory_of ? params->memory_of[i] : 0;
        if (memory >= params->n_memories)
            return tn_fail(TN_E_INVALID, "tensor %zu ('%s') is assigned to memory %zu of %zu", i, t->name, memory,
                           params->n_memories);
        slot->memory = (int32_t)memory;
        TN_TRY(tn__plan_bytes(params, memory, i, t, &slot->size));
        if (params->memories[memory].max_chunk && slot->size > params->memories[memory].max_chunk)
            return tn_fail(TN_E_TOO_BIG, "tensor %zu ('%s') needs %zu bytes, the largest allocation in %s has %zu", i,
                           t->name, slot->size, params->memories[memory].name, params->memories[memory].max_chunk);
        if (t->flags & (TN_FLAG_OUTPUT | TN_FLAG_PARAM)) slot->last = (uint32_t)n_nodes;
    }
    return TN_OK;
}

/* Reads, through views too: a read of a view is a read of its root, and so is a write through one (set_rows, cpy). */
static tn_status find_reads(const lives *l) {
    uint32_t n_nodes = (uint32_t)tn_graph_node_count(l->graph), *root = l->roots, view_root;
    for (uint32_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(l->graph, i);
        for (int s = 0; s < TN_MAX_SRC; s++) {
            if (!t->src[s]) continue;
            TN_TRY(find_root(l->graph, t->src[s], root));
            tn_plan_entry *slot = &l->slots[*root++];
            slot->last = TN__MAX(slot->last, t->src[s]->flags & TN_FLAG_OUTPUT ? n_nodes : i);
        }
        if (!t->view_src) continue;
        TN_TRY(find_root(l->graph, t->view_src, &view_root));
        tn_plan_entry *slot = &l->slots[view_root];
        slot->last = TN__MAX(slot->last, (t->flags | t->view_src->flags) & TN_FLAG_OUTPUT ? n_nodes : i);
    }
    return TN_OK;
}

/* Whether node i may lie on its source s; `roots` are those of its sources, in order. */
static bool may_take(const lives *l, size_t i, int s, uint32_t mask, const uint32_t *roots, uint32_t *parent) {
    const tn_tensor *t = tn_graph_node(l->graph, i), *source = t->src[s];
    if (!source || !tn_same_layout(t, source)) return false;
    uint32_t of[TN_MAX_SRC] = {0};
    for (int other = 0; other < TN_MAX_SRC; other++)
        if (t->src[other]) of[other] = *roots++;
    *parent = of[s];
    uint32_t owner = l->owner[*parent];
    const tn_plan_entry *from = &l->slots[*parent], *own = &l->slots[i];
    /* The source must be the whole of its place: same start, and nothing of the root beyond it. What lives to the end
     * (outputs) has a last step past all nodes. */
    if (from->memory != own->memory || from->size != own->size || source->view_offset != 0) return false;
    if (from->last != i || l->until[owner] != i) return false;
    /* Another source in the same memory would be overwritten while still being read, unless it is the same elements
     * and the op is made for that: x + x. */
    for (int other = 0; other < TN_MAX_SRC; other++) {
        const tn_tensor *o = t->src[other];
        if (!o || other == s || l->owner[of[other]] != owner) continue;
        if (!(mask >> other & 1) || o->view_offset != source->view_offset || !tn_same_layout(o, source)) return false;
    }
    return true;
}

/* In place, in order: a result takes over the place of a source that nobody reads later. The place lives on, so that
 * whoever comes next in the chain sees its true end. */
static void take_over(lives *l, const tn_plan_params *params) {
    const uint32_t *roots = l->roots;
    size_t n_nodes = tn_graph_node_count(l->graph);
    for (size_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(l->graph, i);
        tn_plan_entry *slot = &l->slots[i];
        uint32_t mask = slot->memory >= 0 && slot->size ? tn__plan_mask(params, t, i) : 0;
        for (int s = 0; s < TN_MAX_SRC && mask >> s; s++) {
            uint32_t parent;
            if (!(mask >> s & 1) || !may_take(l, i, s, mask, roots, &parent)) continue;
            slot->inplace_of = parent;
            l->owner[i] = l->owner[parent];
            l->until[l->owner[i]] = slot->last;
            break;
        }
        for (int s = 0; s < TN_MAX_SRC; s++) roots += t->src[s] != NULL;
    }
}

tn_status tn__plan_liveness(const tn_graph *graph, const tn_plan_params *params, tn_plan_entry *slots,
                            uint32_t *until) {
    size_t n = tn_graph_node_count(graph) + tn_graph_leaf_count(graph), n_sources = 0;
    TN_TRY(begin(graph, params, slots, &n_sources));
    lives l = {graph, slots, until, tn_malloc(n * sizeof *l.owner), tn_malloc(n_sources * sizeof *l.roots)};
    tn_status status = TN_E_NOMEM;
    if (!l.owner || !l.roots) goto out;
    TN_TRY_GOTO(find_reads(&l), status, out);
    for (uint32_t i = 0; i < n; i++) {
        until[i] = slots[i].last;
        l.owner[i] = i;
    }
    take_over(&l, params);
out:
    tn_free(l.owner);
    tn_free(l.roots);
    return status;
}
