/* The backward pass: from the loss to the parameters, every node propagates the gradient of its result to its
 * sources. Gradients consist of ordinary ops; the rules of the ops are in backward_rules.c. */
#include "tensor/backward.h"

#include "base/checked.h"

#include <string.h>

bool tn_op_has_gradient(tn_op op) { return op >= 0 && op < TN_OP_COUNT && tn__backward_rules[op]; }

/* Ops whose derivative is zero wherever it exists: they propagate nothing. */
static bool is_flat(const tn_tensor *t) {
    return t->op == TN_OP_SGN || t->op == TN_OP_STEP || t->op == TN_OP_ARANGE || !tn_type_is_float(t->type);
}

/* ---- Helpers of the rules ---- */

bool tn__back_needs(const tn__tape *tape, const tn_tensor *source) {
    return source && tape->needed[tn_graph_index(tape->graph, source)];
}

void tn__back_give(tn__tape *tape, tn_tensor *source, tn_tensor *gradient) {
    if (!gradient || !tn__back_needs(tape, source)) return;
    tn_arena *a = tape->arena;
    if (gradient->type != TN_F32) gradient = tn_cast(a, gradient, TN_F32);
    if (gradient && !tn_is_contiguous(gradient)) gradient = tn_cont(a, gradient);
    if (gradient && !tn_same_shape(gradient, source)) gradient = tn_reshape_to(a, gradient, TN_MAX_DIMS, source->ne);
    tn_tensor **sum_so_far = &tape->gradients[tn_graph_index(tape->graph, source)];
    *sum_so_far = *sum_so_far ? tn_add(a, *sum_so_far, gradient) : gradient;
}

tn_status tn__back_refuse(const tn_tensor *t, const char *why) {
    return tn_fail(TN_E_UNSUPPORTED, "no gradient for '%s' (%s): %s", t->name, tn_op_name(t->op), why);
}

tn_tensor *tn__back_f32(tn_arena *a, tn_tensor *x) { return x && x->type != TN_F32 ? tn_cast(a, x, TN_F32) : x; }
tn_tensor *tn__back_dense(tn_arena *a, tn_tensor *x) { return x && !tn_is_contiguous(x) ? tn_cont(a, x) : x; }

tn_tensor *tn__back_zeros(tn_arena *a, const int64_t ne[TN_MAX_DIMS]) {
    return tn_repeat(a, tn_arange(a, 0, 1, 1), ne);
}

/* x as [inner, n, outer], summed over n; `ne` is the shape of the result. */
static tn_tensor *sum_middle(tn_arena *a, tn_tensor *x, int64_t inner, int64_t n, int64_t outer,
                             const int64_t ne[TN_MAX_DIMS]) {
    x = tn_reshape(a, tn__back_dense(a, x), inner, n, outer);
    x = tn_sum_rows(a, tn_cont(a, tn_permute(a, x, 1, 0, 2, 3)));
    return tn_reshape_to(a, x, TN_MAX_DIMS, ne);
}
static int64_t dims_volume(const int64_t *ne, int from, int to) {
    int64_t p = 1;
    for (int i = from; i < to; i++) p *= ne[i];
    return p;
}

tn_tensor *tn__back_unrepeat(tn_arena *a, tn_tensor *x, const tn_tensor *like) {
    for (int d = 0; d < TN_MAX_DIMS && x; d++) {
        if (x->ne[d] == like->ne[d]) continue;
        int64_t ne[TN_MAX_DIMS];
        memcpy(ne, x->ne, sizeof ne);
        ne[d] = like->ne[d];
        x = sum_middle(a, x, dims_volume(x->ne, 0, d) * like->ne[d], x->ne[d] / like->ne[d],
                       dims_volume(x->ne, d + 1, TN_MAX_DIMS), ne);
    }
    return x;
}

tn_tensor *tn__back_ungroup(tn_arena *a, tn_tensor *x, const int64_t groups[TN_MAX_DIMS]) {
    for (int d = 2; d < TN_MAX_DIMS && x; d++) {
        if (x->ne[d] == groups[d]) continue;
        int64_t ne[TN_MAX_DIMS];
        memcpy(ne, x->ne, sizeof ne);
        ne[d] = groups[d];
        x = sum_middle(a, x, dims_volume(x->ne, 0, d), x->ne[d] / groups[d],
                       groups[d] * dims_volume(x->ne, d + 1, TN_MAX_DIMS), ne);
    }
    return x;
}

/* ---- The pass ---- */

/* Marks the tensors that need a gradient: parameters, and every node between a parameter and the loss. */
static void mark_needed(tn__tape *tape) {
    const tn_graph *g = tape->graph;
    for (size_t i = 0; i < g->n_leaves; i++)
        tape->needed[g->n_nodes + i] = (g->leaves[i]->flags & TN_FLAG_PARAM) && tn_type_is_float(g->leaves[i]->type);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const tn_tensor *t = g->nodes[i];
        bool needed = (t->flags & TN_FLAG_PARAM) != 0;
        for (int s = 0; s < TN_MAX_SRC && !is_flat(t); s++)
            needed = needed || (t->src[s] && tn__back_needs(tape, t->src[s]));
        tape->needed[i] = needed;
    }
}

static tn_status walk_back(tn__tape *tape, uint32_t last) {
    for (size_t i = (size_t)last + 1; i-- > 0;) {
        tn_tensor *t = tape->graph->nodes[i], *gradient = tape->gradients[i];
        if (!gradient || !tape->needed[i]) continue;
        if (!tn__backward_rules[t->op]) return tn__back_refuse(t, "the op has no gradient rule");
        TN_TRY(tn__backward_rules[t->op](tape, t, gradient));
        TN_TRY(tn_arena_status(tape->arena));
    }
    return TN_OK;
}

/* Lists the gradients in the order in which the pass completes them, so that each is computed as early as possible
 * and its inputs can be freed: the gradient of a leaf follows that of the leaf's first reader. */
static tn_status list_gradients(const tn__tape *tape, tn__gradients *table, size_t *count) {
    const tn_graph *g = tape->graph;
    size_t *first_reader = tn_malloc(g->n_leaves * sizeof *first_reader);
    if (!first_reader) return TN_E_NOMEM;
    *count = 0;
    for (int listing = 0; listing < 2; listing++) {
        for (size_t i = g->n_nodes; i-- > 0;) {
            const tn_tensor *node = g->nodes[i];
            if (listing && tape->gradients[i]) {
                tn__ptr_map_put(&table->map, tn__ptr_map_slot(&table->map, node), node, (uint32_t)*count);
                table->list[(*count)++] = tape->gradients[i];
            }
            for (int s = 0; s <= TN_MAX_SRC; s++) {
                const tn_tensor *t = s < TN_MAX_SRC ? node->src[s] : node->view_src;
                size_t at = t ? tn_graph_index(g, t) : 0;
                if (!t || at < g->n_nodes || !tape->gradients[at]) continue;
                if (!listing) first_reader[at - g->n_nodes] = i;
                if (!listing || first_reader[at - g->n_nodes] != i) continue;
                size_t slot = tn__ptr_map_slot(&table->map, t);
                if (tn__ptr_map_has(&table->map, slot)) continue;
                tn__ptr_map_put(&table->map, slot, t, (uint32_t)*count);
                table->list[(*count)++] = tape->gradients[at];
            }
        }
    }
    tn_free(first_reader);
    return TN_OK;
}

/* Adds all gradients to the graph, or none on failure, and records the gradient of each tensor. */
static tn_status add_to_graph(const tn__tape *tape, size_t n) {
    tn_graph *g = tape->graph;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!tape->gradients[i]) continue;
        const tn_tensor *t = i < g->n_nodes ? g->nodes[i] : g->leaves[i - g->n_nodes];
        if (!tape->gradients[i]->name[0])
            tn_name(tape->arena, tape->gradients[i], "%.40s.gradient", t->name[0] ? t->name : tn_op_name(t->op));
        count++;
    }
    size_t capacity = tn__ptr_map_capacity(count);
    tn__gradients *table =
        tn_arena_alloc(tape->arena, sizeof *table + count * sizeof(tn_tensor *) + tn__ptr_map_bytes(capacity));
    if (!table) return tn_arena_status(tape->arena);
    table->list = (tn_tensor **)(void *)(table + 1);
    tn__ptr_map_bind(&table->map, capacity, table->list + count);
    TN_TRY(list_gradients(tape, table, &count));
    TN_TRY(tn__graph_add_all(g, table->list, count));
    g->gradients = table;
    return TN_OK;
}

tn_status tn_graph_backward(tn_arena *arena, tn_graph *graph, tn_tensor *loss) {
    if (!arena || !graph || !loss) return tn_fail(TN_E_INVALID, "tn_graph_backward: NULL argument");
    TN_TRY(tn_arena_status(arena));
    uint32_t last = tn_graph_index(graph, loss);
    if (last == TN_GRAPH_NONE || last >= graph->n_nodes)
        return tn_fail(TN_E_INVALID, "the loss '%s' is not a node of the graph", loss->name);
    char shape[128];
    if (loss->type != TN_F32 || tn_nelements(loss) != 1)
        return tn_fail(TN_E_INVALID, "a loss must be one f32 value, not %s",
                       tn_shape_text(loss, shape, sizeof shape));
    if (graph->gradients) return tn_fail(TN_E_STATE, "the graph already has gradients");
    size_t n = graph->n_nodes + graph->n_leaves;
    tn__tape tape = {.arena = arena, .graph = graph};
    tape.gradients = tn_calloc(n, sizeof(tn_tensor *));
    tape.needed = tn_calloc(n, sizeof *tape.needed);
    tn_status status = tape.gradients && tape.needed ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) {
        mark_needed(&tape);
        if (!tape.needed[last])
            status = tn_fail(TN_E_INVALID, "the loss '%s' depends on no parameter (TN_FLAG_PARAM)", loss->name);
    }
    if (status == TN_OK) {
        tn__back_give(&tape, loss, tn_arange(arena, 1, 2, 1));
        status = walk_back(&tape, last);
    }
    if (status == TN_OK) status = add_to_graph(&tape, n);
    tn_free(tape.gradients);
    tn_free(tape.needed);
    return status;
}

tn_tensor *tn_graph_gradient(const tn_graph *graph, const tn_tensor *tensor) {
    if (!graph || !graph->gradients || !tensor) return NULL;
    uint32_t k = tn__ptr_map_get(&graph->gradients->map, tensor, TN_GRAPH_NONE);
    return k == TN_GRAPH_NONE ? NULL : graph->gradients->list[k];
}
