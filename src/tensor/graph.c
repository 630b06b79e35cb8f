/* Graphs: iterative traversal of sources, look-up, use counts and the fingerprint. */
#include "base/checked.h"
#include "tensor/external.h"
#include "tensor/tensor_internal.h"

#include "tensor/graph_build.h"

#include <stdatomic.h>
#include <string.h>

/* Values in the map: nodes and leaves are numbered separately; the top bit marks leaves. A tensor on the stack has
 * the value OPEN, so that reaching it again reveals a cycle. */
static const uint32_t LEAF_BIT = 0x80000000u, OPEN = 0x7fffffffu;

static void changed(tn_graph *g) {
    static atomic_uint_fast64_t last;
    g->serial = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
    g->has_fingerprint = false;
}

static size_t map_capacity(size_t capacity) { return tn__ptr_map_capacity(2 * capacity); }

static size_t graph_bytes(size_t capacity) {
    size_t slots = map_capacity(capacity);
    return tn__align_up(sizeof(tn_graph), 16) + 2 * capacity * sizeof(tn_tensor *) +
           2 * capacity * sizeof(tn__walk_frame) + tn__align_up(slots * sizeof(uint32_t), 8) +
           tn__ptr_map_bytes(slots);
}

size_t tn_graph_overhead(size_t capacity) {
    if (capacity == 0) capacity = TN_GRAPH_DEFAULT_CAPACITY;
    return sizeof(tn__object) + tn__align_up(graph_bytes(capacity), TN__OBJECT_ALIGN);
}

tn_status tn_graph_new(tn_arena *arena, size_t capacity, tn_graph **graph) {
    if (!arena || !graph) return tn_fail(TN_E_INVALID, "tn_graph_new: NULL argument");
    *graph = NULL;
    TN_TRY(tn_arena_status(arena));
    if (capacity == 0) capacity = TN_GRAPH_DEFAULT_CAPACITY;
    if (capacity >= OPEN / 2) return tn_fail(TN_E_OVERFLOW, "a graph of %zu nodes is too large", capacity);
    /* Checked first: a graph that does not fit must not put the arena into an error state. */
    size_t needed = tn_graph_overhead(capacity), room = arena->size - arena->used;
    if (needed > room)
        return tn_fail(TN_E_FULL, "arena full: a graph of %zu nodes needs %zu bytes, %zu of %zu left, %zu missing",
                       capacity, needed, room, arena->size, needed - room);
    char *p = tn__arena_object(arena, TN__OBJECT_GRAPH, graph_bytes(capacity));
    if (!p) return arena->status;
    tn_graph *g = (tn_graph *)(void *)p;
    memset(g, 0, sizeof *g);
    p += tn__align_up(sizeof *g, 16);
    size_t slots = map_capacity(capacity);
    g->capacity = capacity;
    g->stack = (tn__walk_frame *)(void *)p;
    p += 2 * capacity * sizeof(tn__walk_frame);
    g->nodes = (tn_tensor **)(void *)p;
    g->leaves = g->nodes + capacity;
    p += 2 * capacity * sizeof(tn_tensor *);
    g->uses = (uint32_t *)(void *)p;
    memset(g->uses, 0, slots * sizeof(uint32_t));
    p += tn__align_up(slots * sizeof(uint32_t), 8);
    tn__ptr_map_bind(&g->map, slots, p);
    changed(g);
    *graph = g;
    return TN_OK;
}

tn_status tn_graph_of(tn_arena *arena, tn_tensor *output, tn_graph **graph) {
    if (!graph) return tn_fail(TN_E_INVALID, "tn_graph_of: graph is NULL");
    *graph = NULL;
    TN_TRY(tn_arena_status(arena));
    if (!output) return tn_fail(TN_E_INVALID, "tn_graph_of: the output is NULL");
    tn_graph *g;
    TN_TRY(tn_graph_new(arena, TN__MAX(16, 2 * arena->n_tensors), &g));
    TN_TRY(tn_graph_add(g, output));
    *graph = g;
    return TN_OK;
}

/* Removes everything added since the given counts; rebuilds the map. */
static void roll_back(tn_graph *g, size_t n_nodes, size_t n_leaves) {
    g->n_nodes = n_nodes;
    g->n_leaves = n_leaves;
    tn__ptr_map_clear(&g->map);
    memset(g->uses, 0, g->map.capacity * sizeof(uint32_t));
    for (size_t i = 0; i < n_nodes + n_leaves; i++) {
        bool leaf = i >= n_nodes;
        tn_tensor *t = leaf ? g->leaves[i - n_nodes] : g->nodes[i];
        size_t slot = tn__ptr_map_slot(&g->map, t);
        tn__ptr_map_put(&g->map, slot, t, leaf ? LEAF_BIT | (uint32_t)(i - n_nodes) : (uint32_t)i);
    }
    for (size_t i = 0; i < n_nodes; i++) {
        for (int s = 0; s < TN_MAX_SRC; s++)
            if (g->nodes[i]->src[s]) g->uses[tn__ptr_map_slot(&g->map, g->nodes[i]->src[s])]++;
    }
}

/* The s-th dependency of t: its sources, then the root of its view. */
static tn_tensor *dependency(const tn_tensor *t, int s) { return s < TN_MAX_SRC ? t->src[s] : t->view_src; }

tn_status tn_graph_add(tn_graph *g, tn_tensor *tensor) {
    if (!g || !tensor) return tn_fail(TN_E_INVALID, "tn_graph_add: NULL argument");
    size_t n_nodes = g->n_nodes, n_leaves = g->n_leaves, depth = 0;
    tn_status status = TN_OK;
    changed(g);

    size_t slot = tn__ptr_map_slot(&g->map, tensor);
    if (tn__ptr_map_has(&g->map, slot)) return TN_OK;
    /* Open and finished tensors together are at most 2 × capacity, the number of map entries: the stack suffices. */
    size_t in_map = n_nodes + n_leaves;
    tn__ptr_map_put(&g->map, slot, tensor, OPEN);
    in_map++;
    g->stack[depth++] = (tn__walk_frame){tensor, 0};

    while (depth > 0) {
        tn__walk_frame *frame = &g->stack[depth - 1];
        tn_tensor *t = frame->tensor, *next = NULL;
        while (frame->next <= TN_MAX_SRC && !next) {
            tn_tensor *source = dependency(t, frame->next++);
            if (!source) continue;
            size_t source_slot = tn__ptr_map_slot(&g->map, source);
            if (frame->next <= TN_MAX_SRC) g->uses[source_slot]++; /* only real sources count as uses */
            if (!tn__ptr_map_has(&g->map, source_slot)) {
                if (in_map >= 2 * g->capacity) {
                    status = tn_fail(
                        TN_E_FULL,
                        "graph full: it holds %zu nodes and %zu leaves at most; make it with a larger capacity",
                        g->capacity, g->capacity);
                    goto failed;
                }
                tn__ptr_map_put(&g->map, source_slot, source, OPEN);
                in_map++;
                next = source;
            } else if (g->map.values[source_slot] == OPEN) {
                status =
                    tn_fail(TN_E_INVALID, "tensor '%s' (%s) depends on itself", source->name, tn_op_name(source->op));
                goto failed;
            }
        }
        if (next) {
            g->stack[depth++] = (tn__walk_frame){next, 0};
            continue;
        }
        depth--;
        size_t own = tn__ptr_map_slot(&g->map, t);
        size_t *count = t->op == TN_OP_NONE ? &g->n_leaves : &g->n_nodes;
        if (*count >= g->capacity) {
            status = tn_fail(TN_E_FULL, "graph full: more than %zu %s; make it with a larger capacity", g->capacity,
                             t->op == TN_OP_NONE ? "leaves" : "nodes");
            goto failed;
        }
        if (t->op == TN_OP_NONE) {
            g->map.values[own] = LEAF_BIT | (uint32_t)g->n_leaves;
            g->leaves[g->n_leaves++] = t;
        } else {
            g->map.values[own] = (uint32_t)g->n_nodes;
            g->nodes[g->n_nodes++] = t;
        }
    }
    return TN_OK;

failed:
    roll_back(g, n_nodes, n_leaves);
    return status;
}

tn_status tn__graph_add_all(tn_graph *g, tn_tensor *const *tensors, size_t count) {
    size_t n_nodes = g->n_nodes, n_leaves = g->n_leaves;
    for (size_t i = 0; i < count; i++) {
        tn_status status = tn_graph_add(g, tensors[i]);
        if (status == TN_OK) continue;
        roll_back(g, n_nodes, n_leaves);
        changed(g);
        return status;
    }
    return TN_OK;
}

void tn_graph_clear(tn_graph *g) {
    if (!g) return;
    g->gradients = NULL;
    roll_back(g, 0, 0);
    changed(g);
}

tn_status tn_graph_copy(tn_arena *arena, const tn_graph *graph, tn_graph **copy) {
    if (!graph || !copy) return tn_fail(TN_E_INVALID, "tn_graph_copy: NULL argument");
    tn_graph *g;
    TN_TRY(tn_graph_new(arena, graph->capacity, &g));
    memcpy(g->nodes, graph->nodes, graph->n_nodes * sizeof *g->nodes);
    memcpy(g->leaves, graph->leaves, graph->n_leaves * sizeof *g->leaves);
    roll_back(g, graph->n_nodes, graph->n_leaves);
    *copy = g;
    return TN_OK;
}

tn_status tn_graph_slice(tn_arena *arena, const tn_graph *graph, size_t begin, size_t end, tn_graph **slice) {
    if (!graph || !slice) return tn_fail(TN_E_INVALID, "tn_graph_slice: NULL argument");
    if (begin > end || end > graph->n_nodes)
        return tn_fail(TN_E_INVALID, "nodes %zu to %zu of a graph of %zu", begin, end, graph->n_nodes);
    tn_graph *g;
    TN_TRY(tn_graph_new(arena, TN__MAX(16, (end - begin) * TN_MAX_SRC), &g));
    for (size_t i = begin; i < end; i++) {
        g->nodes[g->n_nodes] = graph->nodes[i];
        tn__ptr_map_put(&g->map, tn__ptr_map_slot(&g->map, graph->nodes[i]), graph->nodes[i], (uint32_t)g->n_nodes++);
    }
    for (size_t i = begin; i < end; i++) {
        for (int s = 0; s <= TN_MAX_SRC; s++) {
            tn_tensor *source = dependency(graph->nodes[i], s);
            if (!source) continue;
            size_t slot = tn__ptr_map_slot(&g->map, source);
            if (!tn__ptr_map_has(&g->map, slot)) {
                g->leaves[g->n_leaves] = source;
                tn__ptr_map_put(&g->map, slot, source, LEAF_BIT | (uint32_t)g->n_leaves++);
            }
            if (s < TN_MAX_SRC) g->uses[slot]++;
        }
    }
    *slice = g;
    return TN_OK;
}

void tn_graph_reset(tn_graph *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_nodes + g->n_leaves; i++) {
        tn_tensor *t = i < g->n_nodes ? g->nodes[i] : g->leaves[i - g->n_nodes];
        /* Weights stay bound; tensors in a compute buffer were bound by a planner. */
        const tn_tensor *root = t->view_src ? t->view_src : t;
        if (!root->buffer && !t->buffer) continue;
        if (root->op == TN_OP_NONE && !(root->flags & (TN_FLAG_INPUT | TN_FLAG_PLANNED))) continue;
        t->buffer = NULL;
        t->data = NULL;
        t->flags &= ~(uint32_t)TN_FLAG_PLANNED;
    }
    changed(g);
}

size_t tn_graph_capacity(const tn_graph *g) { return g ? g->capacity : 0; }
size_t tn_graph_node_count(const tn_graph *g) { return g ? g->n_nodes : 0; }
size_t tn_graph_leaf_count(const tn_graph *g) { return g ? g->n_leaves : 0; }
tn_tensor *tn_graph_node(const tn_graph *g, size_t i) { return g && i < g->n_nodes ? g->nodes[i] : NULL; }
tn_tensor *tn_graph_leaf(const tn_graph *g, size_t i) { return g && i < g->n_leaves ? g->leaves[i] : NULL; }
tn_tensor *const *tn_graph_nodes(const tn_graph *g) { return g->nodes; }
tn_tensor *const *tn_graph_leaves(const tn_graph *g) { return g->leaves; }

tn_tensor *tn_graph_find(const tn_graph *g, const char *name) {
    if (!g || !name) return NULL;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i]->name, name) == 0) return g->nodes[i];
    for (size_t i = 0; i < g->n_leaves; i++)
        if (strcmp(g->leaves[i]->name, name) == 0) return g->leaves[i];
    return NULL;
}

uint32_t tn_graph_index(const tn_graph *g, const tn_tensor *t) {
    if (!g || !t) return TN_GRAPH_NONE;
    uint32_t value = tn__ptr_map_get(&g->map, t, TN_GRAPH_NONE);
    if (value == TN_GRAPH_NONE) return TN_GRAPH_NONE;
    return value & LEAF_BIT ? (uint32_t)g->n_nodes + (value & ~LEAF_BIT) : value;
}

uint32_t tn_graph_use_count(const tn_graph *g, const tn_tensor *t) {
    if (!g || !t) return 0;
    size_t slot = tn__ptr_map_slot(&g->map, t);
    return tn__ptr_map_has(&g->map, slot) ? g->uses[slot] : 0;
}

void tn_graph_touch(tn_graph *g) {
    if (g) changed(g);
}

uint64_t tn__graph_serial(const tn_graph *g) { return g->serial; }

tn_status tn__graph_append(tn_graph *g, tn_tensor *t) {
    bool leaf = t->op == TN_OP_NONE;
    size_t *count = leaf ? &g->n_leaves : &g->n_nodes;
    if (*count >= g->capacity)
        return tn_fail(TN_E_FULL, "graph full: more than %zu %s", g->capacity, leaf ? "leaves" : "nodes");
    size_t slot = tn__ptr_map_slot(&g->map, t);
    if (tn__ptr_map_has(&g->map, slot)) return tn_fail(TN_E_INVALID, "tensor '%s' is in the graph already", t->name);
    tn__ptr_map_put(&g->map, slot, t, (leaf ? LEAF_BIT : 0) | (uint32_t)*count);
    (leaf ? g->leaves : g->nodes)[(*count)++] = t;
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (t->src[s]) g->uses[tn__ptr_map_slot(&g->map, t->src[s])]++;
    changed(g);
    return TN_OK;
}

void tn__graph_permute(tn_graph *g, const uint32_t *order) {
    tn_tensor **before = (tn_tensor **)(void *)g->stack; /* idle between walks, and larger than needed */
    memcpy(before, g->nodes, g->n_nodes * sizeof *before);
    for (size_t i = 0; i < g->n_nodes; i++) g->nodes[i] = before[order[i]];
    roll_back(g, g->n_nodes, g->n_leaves);
    changed(g);
}

static void mix(tn_fingerprint *f, uint64_t value) {
    f->lo = tn__hash_combine(f->lo, value);
    f->hi = (f->hi ^ value) * 0x9e3779b97f4a7c15u;
    f->hi ^= f->hi >> 29;
}

/* Everything about one tensor that affects a plan. */
static void mix_tensor(tn_fingerprint *f, const tn_graph *g, const tn_tensor *t) {
    mix(f, (uint64_t)t->type << 40 ^ (uint64_t)t->op << 16 ^ (t->flags & ~(uint32_t)TN_FLAG_PLANNED));
    for (int i = 0; i < TN_MAX_DIMS; i++) {
        mix(f, (uint64_t)t->ne[i]);
        mix(f, t->nb[i]);
    }
    if (t->view_src) {
        mix(f, tn_graph_index(g, t->view_src));
        mix(f, t->view_offset);
    }
    if (t->op == TN_OP_NONE) {
        mix(f, tn__is_external(t) && !(t->flags & TN_FLAG_INPUT));
        return;
    }
    for (size_t i = 0; i < sizeof t->params; i += 8) {
        uint64_t word;
        memcpy(&word, t->params.bytes + i, 8);
        if (word) mix(f, word ^ i);
    }
    for (int s = 0; s < TN_MAX_SRC; s++)
        if (t->src[s]) mix(f, (uint64_t)s << 32 ^ tn_graph_index(g, t->src[s]));
}

tn_fingerprint tn_graph_fingerprint(tn_graph *g) {
    if (!g) return (tn_fingerprint){0, 0};
    if (!g->has_fingerprint) {
        tn_fingerprint f = {g->n_nodes, ~(uint64_t)g->n_leaves};
        for (size_t i = 0; i < g->n_leaves; i++) mix_tensor(&f, g, g->leaves[i]);
        for (size_t i = 0; i < g->n_nodes; i++) mix_tensor(&f, g, g->nodes[i]);
        f.hi = tn__mix64(f.hi);
        g->fingerprint = f;
        g->has_fingerprint = true;
    }
    return g->fingerprint;
}
