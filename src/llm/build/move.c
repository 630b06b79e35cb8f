/* Graphs that move cells of the KV cache. */
#include "llm/parts/mixers.h"

#include <math.h>

/* Rotates the keys of a layer further, [head, heads, cells]. */
static tn_tensor *rotate_keys(const tn__builder *b, tn_tensor *x, int32_t il) {
    const int32_t offset = b->h->layers[il].rope_offset, n_rot = b->h->layers[il].n_rot;
    tn_tensor *delta = tn__builder_input(b, TN__INPUT_MOVE_DELTA);
    tn_rope_params p = tn__rope_params(b, il);
    /* Cached keys have their magnitude already: only the angle changes. */
    p.attn_factor = p.ext_factor != 0 ? 1 / (1 + 0.1f * logf(1 / p.freq_scale)) : 1;
    if (!offset || !x) return tn_rope(b->a, x, delta, tn__layer_rope_factors(b, il), &p);
    const size_t nb[] = {4, x->nb[1], x->nb[2]};
    tn_tensor *before = tn_view(b->a, x, 3, (const int64_t[]){offset, x->ne[1], x->ne[2]}, nb, 0);
    tn_tensor *rotated = tn_view(b->a, x, 3, (const int64_t[]){n_rot, x->ne[1], x->ne[2]}, nb, (size_t)offset * 4);
    rotated = tn_rope(b->a, rotated, delta, tn__layer_rope_factors(b, il), &p);
    return tn_concat(b->a, tn_cont(b->a, before), rotated, 0);
}

/* The same for the keys of an indexer, [size, cells]. */
static tn_tensor *rotate_index_keys(const tn__builder *b, tn_tensor *x, int32_t il) {
    tn_rope_params p = tn__index_rope_params(b, il);
    p.attn_factor = p.ext_factor != 0 ? 1 / (1 + 0.1f * logf(1 / p.freq_scale)) : 1;
    if (!x) return NULL;
    const int64_t size = x->ne[0], cells = x->ne[1];
    tn_tensor *delta = tn__builder_input(b, TN__INPUT_MOVE_DELTA);
    x = tn_rope(b->a, tn_reshape(b->a, x, size, 1, cells), delta, tn__layer_rope_factors(b, il), &p);
    return tn_reshape(b->a, x, size, cells);
}

/* Reads the cells MOVE_FROM, rotates K by MOVE_DELTA if `rotate_layer` is not -1, and writes the cells MOVE_TO. */
static tn_tensor *move_rows(const tn__builder *b, tn_tensor *cache, int32_t rotate_layer) {
    tn_tensor *x =
        tn_name(b->a, tn_get_rows(b->a, cache, tn__builder_input(b, TN__INPUT_MOVE_FROM)), "moved.%s", cache->name);
    if (rotate_layer >= 0 && x) {
        const int32_t block = b->plan->kv.layers[rotate_layer].rotate_k;
        const int32_t head = b->h->layers[rotate_layer].head_k;
        x = tn_reshape(b->a, x, head, x->ne[0] / head, x->ne[1]);
        if (block) x = tn_hadamard(b->a, x, block);
        x = rotate_keys(b, x, rotate_layer);
        if (block) x = tn_hadamard(b->a, x, block);
        x = x ? tn_reshape(b->a, x, x->ne[0] * x->ne[1], x->ne[2]) : NULL;
    }
    return tn_set_rows(b->a, cache, x, tn__builder_input(b, TN__INPUT_MOVE_TO));
}

static tn_tensor *move_index_rows(const tn__builder *b, int32_t il, bool shift) {
    tn_tensor *cache = b->plan->kv.layers[il].x;
    if (!shift) return move_rows(b, cache, -1);
    tn_tensor *x = tn_get_rows(b->a, cache, tn__builder_input(b, TN__INPUT_MOVE_FROM));
    x = rotate_index_keys(b, tn_name(b->a, x, "moved.%s", cache->name), il);
    return tn_set_rows(b->a, cache, x, tn__builder_input(b, TN__INPUT_MOVE_TO));
}

tn_status tn__build_move(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    tn__builder b = tn__begin_graph(p, shape, set);
    size_t limit = set->n_tensors ? set->n_tensors : 32 * (size_t)b.h->n_layer + 16;
    size_t capacity = set->n_tensors ? set->capacity : limit;
    int group = shape.n_outputs;
    bool shift = shape.kind == TN__GRAPH_SHIFT;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(limit, capacity),
                                           .no_alloc = true,
                                           .repeatable = p->params.repeatable},
                        &set->arena));
    tn_arena *a = b.a = set->arena;
    tn__inputs_build(a, b.h, &p->kv, shape, &set->inputs);
    tn_graph *graph;
    TN_TRY(tn_graph_new(a, capacity, &graph));
    for (int32_t built = 0; built < tn__built_count(p); built++) {
        const int32_t il = tn__built_layer(p, built);
        const tn__kv_layer *l = &p->kv.layers[il];
        bool rotates = !tn__arch_has(b.arch, TN_ARCH_NO_ROPE) && !b.h->layers[il].no_rope;
        if (l->group != group || !l->k || l->from != il || (shift && !rotates)) continue;
        tn_tensor *k = move_rows(&b, l->k, shift ? il : -1), *v = shift || !l->v ? NULL : move_rows(&b, l->v, -1);
        tn_tensor *x = l->x ? move_index_rows(&b, il, shift) : NULL;
        TN_TRY(tn_arena_status(a));
        TN_TRY(tn_graph_add(graph, k));
        if (x) TN_TRY(tn_graph_add(graph, x));
        if (v) TN_TRY(tn_graph_add(graph, v));
        set->graph = graph;
    }
    return TN_OK;
}
