/* Lifetimes: from the first write to the last read, counting reads through views and chains of in-place results. */
#include "plan/plan_internal.h"

#include "base/checked.h"

#include <string.h>

/* Storage that several tensors share: a root, its views, and what took its place. Followed up to its owner, the
 * tensor whose slot holds the place. */
static uint32_t owner_of(const tn_plan_slot *slots, uint32_t index) {
    while (slots[index].inplace_of != TN_GRAPH_NONE) index = slots[index].inplace_of;
    return index;
}

static bool is_external(const tn_tensor *t) {
    /* Data that no planner of ours put there: it has an address, and is not an input we bound earlier. */
    return t->data != NULL;
}

/* The last node that reads t itself or through any of its views, from the per-tensor table. */
tn_status tn__plan_liveness(const tn_graph *graph, const tn_plan_params *params, tn_plan_slot *slots) {
    size_t n_nodes = tn_graph_node_count(graph), n_leaves = tn_graph_leaf_count(graph), n = n_nodes + n_leaves;
    uint32_t end = n_nodes ? (uint32_t)n_nodes - 1 : 0;

    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = i < n_nodes ? tn_graph_node(graph, i) : tn_graph_leaf(graph, i - n_nodes);
        tn_plan_slot *slot = &slots[i];
        uint32_t step = i < n_nodes ? (uint32_t)i : 0;
        memset(slot, 0, sizeof *slot);
        slot->memory = -1;
        slot->first = slot->last = step;
        slot->inplace_of = TN_GRAPH_NONE;
        if (t->view_src || is_external(t)) continue;
        size_t memory = params->memory_of ? params->memory_of[i] : 0;
        if (memory >= params->n_memories)
            return tn_fail(TN_E_INVALID, "tensor %zu ('%s') is assigned to memory %zu of %zu", i, t->name, memory,
                           params->n_memories);
        size_t bytes = params->tensor_size ? params->tensor_size(params->user, memory, t) : tn_nbytes(t);
        slot->memory = (int32_t)memory;
        if (!tn__align_up_checked(bytes, params->memories[memory].alignment, &slot->size))
            return tn_fail(TN_E_OVERFLOW, "the size of tensor %zu ('%s') overflows", i, t->name);
        if (t->flags & TN_FLAG_OUTPUT) slot->last = end;
        if (t->flags & TN_FLAG_PARAM) slot->last = end;
    }

    /* Reads, through views too: a read of a view is a read of its root. A write through a view (set_rows, cpy) as
     * well. */
    for (size_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(graph, i);
        for (int s = -1; s < TN_MAX_SRC; s++) {
            const tn_tensor *source = s < 0 ? t->view_src : t->src[s];
            if (!source) continue;
            const tn_tensor *root = source->view_src ? source->view_src : source;
            tn_plan_slot *slot = &slots[tn_graph_index(graph, root)];
            if (slot->last < i) slot->last = (uint32_t)i;
            if (source != root && (source->flags & TN_FLAG_OUTPUT)) slot->last = end;
        }
        if (t->view_src && (t->flags & TN_FLAG_OUTPUT)) slots[tn_graph_index(graph, t->view_src)].last = end;
    }

    /* In place, in order: a result takes over the place of a source that nobody reads later. The owner's lifetime
     * grows to cover it, so that whoever comes next in the chain sees the true end. */
    for (size_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(graph, i);
        tn_plan_slot *slot = &slots[i];
        if (slot->memory < 0 || slot->size == 0) continue;
        uint32_t mask = params->inplace_mask ? params->inplace_mask(params->user, t, i) : tn_op_inplace_mask(t->op);
        for (int s = 0; s < TN_MAX_SRC && mask >> s; s++) {
            const tn_tensor *source = t->src[s];
            if (!(mask >> s & 1) || !source || !tn_same_layout(t, source)) continue;
            const tn_tensor *root = source->view_src ? source->view_src : source;
            uint32_t parent = tn_graph_index(graph, root);
            const tn_plan_slot *from = &slots[parent];
            /* The source must be the whole of its place: same start, and nothing of the root beyond it. */
            if (from->memory != slot->memory || from->size != slot->size || source->view_offset != 0) continue;
            if ((root->flags | source->flags) & TN_FLAG_OUTPUT || from->last != i) continue;
            uint32_t owner = owner_of(slots, parent);
            if (slots[owner].last != i) continue;
            /* Another source that is only partly the same memory would be overwritten while still being read. */
            bool alone = true;
            for (int other = 0; other < TN_MAX_SRC; other++) {
                const tn_tensor *o = t->src[other];
                if (!o || other == s) continue;
                const tn_tensor *o_root = o->view_src ? o->view_src : o;
                if (owner_of(slots, tn_graph_index(graph, o_root)) == owner &&
                    !(o->view_offset == source->view_offset && tn_same_layout(o, source)))
                    alone = false;
            }
            if (!alone) continue;
            slot->inplace_of = parent;
            slots[owner].last = slot->last;
            break;
        }
    }
    return TN_OK;
}
