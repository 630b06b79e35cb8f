/* Execution order: reorders independent nodes so that fewer bytes are live at once. */
#include "plan/plan_internal.h"

#include "base/checked.h"
#include "base/hash.h"
#include "tensor/external.h"
#include "tensor/graph_build.h"

#include <string.h>

/* Ordering constraints: sources before users; and for every node that writes into memory of another tensor (cpy,
 * set_rows into a view; recurrent ops into their state; custom ops, anywhere), the accesses before it and after it.
 */
typedef struct dependencies {
    const tn_graph *graph;
    size_t n, n_tensors;
    uint32_t *begin, *after; /* CSR: the nodes that depend on a node */
    uint32_t *waits;         /* number of nodes that a node depends on */
    uint32_t (*edges)[2];
    size_t n_edges, cap_edges;
    /* Bytes of every planned tensor, and the number of nodes that read it. */
    size_t *bytes;
    uint32_t *reads;
    bool *kept; /* outputs: never freed */
} dependencies;

static tn_status add_edge(dependencies *w, uint32_t from, uint32_t to) {
    if (from == to) return TN_OK;
    if (w->n_edges == w->cap_edges) {
        size_t capacity = 2 * w->cap_edges + 256;
        uint32_t(*grown)[2] = tn_realloc(w->edges, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        w->edges = grown;
        w->cap_edges = capacity;
    }
    w->edges[w->n_edges][0] = from;
    w->edges[w->n_edges++][1] = to;
    return TN_OK;
}

/* Indices of the root tensors whose memory a node accesses: of its sources and of its view. Returns their number. */
static int roots_of(const dependencies *w, const tn_tensor *t, uint32_t roots[TN_MAX_SRC + 1]) {
    int count = 0;
    for (int s = 0; s <= TN_MAX_SRC; s++) {
        const tn_tensor *source = s < TN_MAX_SRC ? t->src[s] : t->view_src;
        if (!source) continue;
        uint32_t root = tn_graph_index(w->graph, tn__root(source));
        bool known = root >= w->n_tensors;
        for (int k = 0; k < count; k++) known = known || roots[k] == root;
        if (!known) roots[count++] = root;
    }
    return count;
}

typedef struct root_access {
    uint32_t writer; /* last node other than the root itself that wrote into it */
    uint32_t reader; /* last node that read it since; earlier ones are linked through next_reader */
} root_access;

/* Readers since the last write are in linked lists, one per root: element 11*node+k is the k-th root of a node. */
static tn_status find_hazards(dependencies *w) {
    enum { ROOTS_PER_NODE = TN_MAX_SRC + 1 };
    root_access *accesses = tn_malloc(w->n_tensors * sizeof *accesses);
    uint32_t *next = tn_malloc(ROOTS_PER_NODE * w->n * sizeof *next);
    tn_status status = TN_E_NOMEM;
    if (!accesses || !next) goto out;
    status = TN_OK;
    for (size_t i = 0; i < w->n_tensors; i++) accesses[i] = (root_access){TN_GRAPH_NONE, TN_GRAPH_NONE};
    uint32_t custom = TN_GRAPH_NONE;
    for (uint32_t i = 0; i < w->n; i++) {
        const tn_tensor *t = tn_graph_node(w->graph, i);
        uint32_t roots[ROOTS_PER_NODE];
        int count = roots_of(w, t, roots);
        const tn_tensor *written = tn__written_root(t);
        if (t->op == TN_OP_CUSTOM) {
            if (custom != TN_GRAPH_NONE) TN_TRY_GOTO(add_edge(w, custom, i), status, out);
            custom = i;
        }
        for (int k = 0; k < count; k++) {
            root_access *a = &accesses[roots[k]];
            if (a->writer != TN_GRAPH_NONE) TN_TRY_GOTO(add_edge(w, a->writer, i), status, out);
            if (written && roots[k] == tn_graph_index(w->graph, written)) {
                for (uint32_t r = a->reader; r != TN_GRAPH_NONE; r = next[r])
                    TN_TRY_GOTO(add_edge(w, r / ROOTS_PER_NODE, i), status, out);
                *a = (root_access){i, TN_GRAPH_NONE};
            } else {
                next[ROOTS_PER_NODE * i + (uint32_t)k] = a->reader;
                a->reader = ROOTS_PER_NODE * i + (uint32_t)k;
            }
        }
    }
out:
    tn_free(accesses);
    tn_free(next);
    return status;
}

static tn_status make_dependencies(dependencies *w, const tn_graph *graph, const tn_plan_entry *entries) {
    w->graph = graph;
    w->n = tn_graph_node_count(graph);
    w->n_tensors = w->n + tn_graph_leaf_count(graph);
    w->begin = tn_calloc(w->n + 2, sizeof *w->begin);
    w->waits = tn_calloc(w->n, sizeof *w->waits);
    w->bytes = tn_calloc(w->n_tensors, sizeof *w->bytes);
    w->reads = tn_calloc(w->n_tensors, sizeof *w->reads);
    w->kept = tn_calloc(w->n_tensors, sizeof *w->kept);
    if (!w->begin || !w->waits || !w->bytes || !w->reads || !w->kept) return TN_E_NOMEM;
    for (size_t i = 0; i < w->n_tensors; i++) {
        w->bytes[i] = entries[i].memory < 0 ? 0 : entries[i].size;
        w->kept[i] = entries[i].last >= w->n;
    }
    for (uint32_t i = 0; i < w->n; i++) {
        const tn_tensor *t = tn_graph_node(graph, i);
        for (int s = 0; s <= TN_MAX_SRC; s++) {
            const tn_tensor *source = s < TN_MAX_SRC ? t->src[s] : t->view_src;
            uint32_t index = source ? tn_graph_index(graph, source) : TN_GRAPH_NONE;
            if (index < w->n) TN_TRY(add_edge(w, index, i));
        }
        uint32_t roots[TN_MAX_SRC + 1];
        int count = roots_of(w, t, roots);
        for (int k = 0; k < count; k++) w->reads[roots[k]]++;
    }
    TN_TRY(find_hazards(w));
    /* The last node is the graph's output and stays last. */
    for (uint32_t i = 0; i + 1 < w->n; i++) TN_TRY(add_edge(w, i, (uint32_t)w->n - 1));
    w->after = tn_malloc(w->n_edges * sizeof *w->after);
    if (!w->after) return TN_E_NOMEM;
    for (size_t e = 0; e < w->n_edges; e++) {
        w->begin[w->edges[e][0] + 2]++;
        w->waits[w->edges[e][1]]++;
    }
    for (size_t i = 2; i < w->n + 2; i++) w->begin[i] += w->begin[i - 1];
    for (size_t e = 0; e < w->n_edges; e++) w->after[w->begin[w->edges[e][0] + 1]++] = w->edges[e][1];
    return TN_OK;
}

static void free_net(dependencies *w) {
    tn_free(w->begin);
    tn_free(w->after);
    tn_free(w->waits);
    tn_free(w->edges);
    tn_free(w->bytes);
    tn_free(w->reads);
    tn_free(w->kept);
}

/* ---- Greedy order ---- */

/* A heap of ready nodes: the smallest growth of memory first, then the graph's order. A key becomes stale when the
 * second to last reader of a tensor has run. Then a new entry is pushed; stale ones are recognised by their key. */
typedef struct heap_entry {
    int64_t growth;
    uint32_t node;
} heap_entry;

static bool sooner(const heap_entry *a, const heap_entry *b) {
    return a->growth != b->growth ? a->growth < b->growth : a->node < b->node;
}

typedef struct ready {
    heap_entry *heap;
    size_t count, capacity;
} ready;

static tn_status push(ready *r, heap_entry e) {
    if (r->count == r->capacity) {
        size_t capacity = 2 * r->capacity + 64;
        heap_entry *grown = tn_realloc(r->heap, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        r->heap = grown;
        r->capacity = capacity;
    }
    size_t i = r->count++;
    for (; i && sooner(&e, &r->heap[(i - 1) / 2]); i = (i - 1) / 2) r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = e;
    return TN_OK;
}

static heap_entry pop(ready *r) {
    heap_entry top = r->heap[0], last = r->heap[--r->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < r->count; i = child) {
        if (child + 1 < r->count && sooner(&r->heap[child + 1], &r->heap[child])) child++;
        if (!sooner(&r->heap[child], &last)) break;
        r->heap[i] = r->heap[child];
    }
    if (r->count) r->heap[i] = last;
    return top;
}

static int64_t growth_of(const dependencies *w, uint32_t node, const uint32_t *reads) {
    uint32_t roots[TN_MAX_SRC + 1];
    const tn_tensor *t = tn_graph_node(w->graph, node);
    int count = roots_of(w, t, roots);
    int64_t growth = (int64_t)w->bytes[node];
    for (int k = 0; k < count; k++)
        if (reads[roots[k]] == 1 && !w->kept[roots[k]]) growth -= (int64_t)w->bytes[roots[k]];
    return growth;
}

/* The readers of each tensor, needed to update the growth of its last reader. */
static tn_status make_readers(const dependencies *w, uint32_t **begin, uint32_t **readers) {
    size_t total = 0;
    for (size_t i = 0; i < w->n_tensors; i++) total += w->reads[i];
    *begin = tn_calloc(w->n_tensors + 2, sizeof **begin);
    *readers = tn_malloc(total * sizeof **readers);
    if (!*begin || !*readers) return TN_E_NOMEM;
    for (size_t i = 0; i < w->n_tensors; i++) (*begin)[i + 2] = (*begin)[i + 1] + w->reads[i];
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t roots[TN_MAX_SRC + 1];
        int count = roots_of(w, tn_graph_node(w->graph, i), roots);
        for (int k = 0; k < count; k++) (*readers)[(*begin)[roots[k] + 1]++] = i;
    }
    return TN_OK;
}

static tn_status greedy_order(const dependencies *w, uint32_t *order) {
    ready r = {0};
    uint32_t *waits = tn_malloc(w->n * sizeof *waits), *reads = tn_malloc(w->n_tensors * sizeof *reads);
    uint32_t *begin = NULL, *readers = NULL;
    bool *done = tn_calloc(w->n, sizeof *done);
    tn_status status = TN_E_NOMEM;
    if (!waits || !reads || !done) goto out;
    TN_TRY_GOTO(make_readers(w, &begin, &readers), status, out);
    memcpy(waits, w->waits, w->n * sizeof *waits);
    memcpy(reads, w->reads, w->n_tensors * sizeof *reads);
    for (uint32_t i = 0; i < w->n; i++)
        if (waits[i] == 0) TN_TRY_GOTO(push(&r, (heap_entry){growth_of(w, i, reads), i}), status, out);
    for (size_t at = 0; r.count;) {
        heap_entry e = pop(&r);
        if (done[e.node] || e.growth != growth_of(w, e.node, reads)) continue;
        done[e.node] = true;
        order[at++] = e.node;
        uint32_t roots[TN_MAX_SRC + 1];
        int count = roots_of(w, tn_graph_node(w->graph, e.node), roots);
        for (int k = 0; k < count; k++) {
            if (--reads[roots[k]] != 1) continue;
            for (uint32_t x = begin[roots[k]]; x < begin[roots[k] + 1]; x++) {
                uint32_t last = readers[x];
                if (!done[last] && waits[last] == 0)
                    TN_TRY_GOTO(push(&r, (heap_entry){growth_of(w, last, reads), last}), status, out);
            }
        }
        for (uint32_t x = w->begin[e.node]; x < w->begin[e.node + 1]; x++) {
            uint32_t next = w->after[x];
            if (--waits[next] == 0) TN_TRY_GOTO(push(&r, (heap_entry){growth_of(w, next, reads), next}), status, out);
        }
    }
    status = TN_OK;
out:
    tn_free(r.heap);
    tn_free(waits);
    tn_free(reads);
    tn_free(begin);
    tn_free(readers);
    tn_free(done);
    return status;
}

/* ---- Depth-first order ---- */

/* Like register allocation for expressions: of a node's sources, the one that needs the most memory is computed
 * first. Walks back from the last node; every node that must precede a node counts as its source. */
static tn_status depth_first_order(const dependencies *w, uint32_t *order) {
    size_t n = w->n;
    uint32_t *begin = tn_calloc(n + 2, sizeof *begin), *before = tn_malloc(w->n_edges * sizeof *before);
    uint32_t *stack = tn_malloc(n * sizeof *stack), *next = tn_malloc(n * sizeof *next);
    uint64_t *need = tn_calloc(n, sizeof *need);
    uint8_t *seen = tn_calloc(n, sizeof *seen);
    tn_status status = TN_E_NOMEM;
    if (!begin || !before || !stack || !next || !need || !seen) goto out;
    for (size_t e = 0; e < w->n_edges; e++) begin[w->edges[e][1] + 2]++;
    for (size_t i = 2; i < n + 2; i++) begin[i] += begin[i - 1];
    for (size_t e = 0; e < w->n_edges; e++) before[begin[w->edges[e][1] + 1]++] = w->edges[e][0];
    for (uint32_t i = 0; i < n; i++) {
        /* Sorted by peak minus result size. Node numbers are already a valid order. The last node depends on all
         * others only to stay last. */
        uint32_t *sources = before + begin[i], count = begin[i + 1] - begin[i];
        for (uint32_t a = 1; a < count && i + 1 < n; a++) {
            uint32_t x = sources[a], b = a;
            uint64_t key = need[x] - w->bytes[x];
            for (; b && need[sources[b - 1]] - w->bytes[sources[b - 1]] < key; b--) sources[b] = sources[b - 1];
            sources[b] = x;
        }
        uint64_t held = 0, most = 0;
        for (uint32_t a = 0; a < count && i + 1 < n; a++) {
            most = TN__MAX(most, held + need[sources[a]]);
            held += w->bytes[sources[a]];
        }
        need[i] = TN__MAX(TN__MIN(most, (uint64_t)1 << 60), held + w->bytes[i]);
    }
    size_t depth = 0, at = 0;
    if (n) stack[depth++] = (uint32_t)n - 1;
    if (n) next[n - 1] = begin[n - 1];
    if (n) seen[n - 1] = 1;
    while (depth) {
        uint32_t i = stack[depth - 1];
        if (next[i] < begin[i + 1]) {
            uint32_t source = before[next[i]++];
            if (seen[source]) continue;
            seen[source] = 1;
            next[source] = begin[source];
            stack[depth++] = source;
        } else {
            order[at++] = i;
            depth--;
        }
    }
    status = TN_OK;
out:
    tn_free(begin);
    tn_free(before);
    tn_free(stack);
    tn_free(next);
    tn_free(need);
    tn_free(seen);
    return status;
}

/* ---- Choice of the best order ---- */

typedef struct renumbered {
    const tn_plan_params *params;
    const uint32_t *order;
} renumbered;
static size_t size_as_before(void *user, size_t memory, const tn_tensor *t) {
    const tn_plan_params *p = ((const renumbered *)user)->params;
    return p->tensor_size(p->user, memory, t);
}
static uint32_t mask_as_before(void *user, const tn_tensor *t, size_t index) {
    const renumbered *r = user;
    return r->params->inplace_mask(r->params->user, t, r->order ? r->order[index] : index);
}

/* The sum over all memories of the largest live sum. */
static tn_status lower_bounds(const tn_graph *graph, const tn_plan_params *params, const uint32_t *order,
                              tn_plan_entry *entries, uint32_t *until, uint64_t *sum) {
    size_t n_nodes = tn_graph_node_count(graph), n = n_nodes + tn_graph_leaf_count(graph);
    uint64_t *live = tn_malloc((n_nodes + 2) * sizeof *live);
    uint16_t *memory_of = params->memory_of ? tn_malloc(n * sizeof *memory_of) : NULL;
    tn_status status = TN_E_NOMEM;
    if (!live || (params->memory_of && !memory_of)) goto out;
    for (size_t i = 0; memory_of && i < n; i++) memory_of[i] = params->memory_of[i < n_nodes && order ? order[i] : i];
    renumbered r = {params, order};
    tn_plan_params own = *params;
    own.memory_of = memory_of;
    own.user = &r;
    if (params->tensor_size) own.tensor_size = size_as_before;
    if (params->inplace_mask) own.inplace_mask = mask_as_before;
    TN_TRY_GOTO(tn__plan_liveness(graph, &own, entries, until), status, out);
    *sum = 0;
    for (size_t m = 0; m < params->n_memories; m++) {
        memset(live, 0, (n_nodes + 2) * sizeof *live);
        for (size_t i = 0; i < n; i++) {
            if (entries[i].memory != (int32_t)m || !tn__plan_owns(&entries[i])) continue;
            live[entries[i].first] += entries[i].size;
            live[until[i] + 1] -= entries[i].size;
        }
        uint64_t now = 0, most = 0;
        for (size_t step = 0; step <= n_nodes; step++) {
            now += live[step];
            most = TN__MAX(most, now);
        }
        *sum += most;
    }
out:
    tn_free(live);
    tn_free(memory_of);
    return status;
}

tn_status tn_plan_reorder(tn_arena *arena, const tn_graph *graph, const tn_plan_params *params, tn_graph **reordered,
                          uint32_t *order, size_t *saved) {
    if (!arena || !reordered) return tn_fail(TN_E_INVALID, "tn_plan_reorder: NULL argument");
    *reordered = NULL;
    TN_TRY(tn__plan_check_params(graph, params));
    size_t n_nodes = tn_graph_node_count(graph), n = n_nodes + tn_graph_leaf_count(graph);
    dependencies w = {0};
    tn_plan_entry *entries = tn_malloc(n * sizeof *entries);
    uint32_t *until = tn_malloc(n * sizeof *until), *best = tn_malloc(n_nodes * sizeof *best),
             *other = tn_malloc(n_nodes * sizeof *other);
    tn_arena *aside = NULL;
    tn_graph *trial;
    uint64_t bound = 0, first_bound = 0;
    tn_status status = TN_E_NOMEM;
    if (!entries || !until || !best || !other) goto out;
    TN_TRY_GOTO(lower_bounds(graph, params, NULL, entries, until, &first_bound), status, out);
    bound = first_bound;
    for (uint32_t i = 0; i < n_nodes; i++) best[i] = i;
    TN_TRY_GOTO(make_dependencies(&w, graph, entries), status, out);
    size_t room = tn_arena_size_for(0, tn_graph_capacity(graph));
    for (int way = 0; way < 2 && n_nodes > 1; way++) {
        TN_TRY_GOTO(way == 0 ? greedy_order(&w, other) : depth_first_order(&w, other), status, out);
        tn_arena_free(aside);
        aside = NULL;
        TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = room, .no_alloc = true}, &aside), status, out);
        TN_TRY_GOTO(tn_graph_copy(aside, graph, &trial), status, out);
        tn__graph_permute(trial, other);
        uint64_t reached;
        TN_TRY_GOTO(lower_bounds(trial, params, other, entries, until, &reached), status, out);
        if (reached >= bound) continue;
        bound = reached;
        memcpy(best, other, n_nodes * sizeof *best);
    }
    TN_TRY_GOTO(tn_graph_copy(arena, graph, reordered), status, out);
    tn__graph_permute(*reordered, best);
    if (order) memcpy(order, best, n_nodes * sizeof *order);
    if (saved) *saved = first_bound - bound;
out:
    free_net(&w);
    tn_free(entries);
    tn_free(until);
    tn_free(best);
    tn_free(other);
    tn_arena_free(aside);
    return status;
}
