/* Verification of plans: simulates the graph and tracks which tensor owns which bytes. Does not use lifetimes. */
#include "plan/plan_internal.h"

#include "base/checked.h"
#include "tensor/external.h"

#include <stdlib.h>
#include <string.h>

/* All chunks of all memories are concatenated to one line, which is divided into pieces wherever a tensor begins or
 * ends. A binary tree over the pieces stores their owners: the value of a node applies to all pieces below it, unless
 * it is MIXED. */
enum { NOBODY = 0, MIXED = 1, FIRST_TENSOR = 2 };

typedef struct simulation {
    const tn_plan *plan;
    const tn_graph *graph;
    const tn_plan_params *params;
    size_t *line_begin;  /* per memory: the number of its first chunk */
    size_t *chunk_begin; /* offset of each chunk on the line */
    size_t *cuts;
    size_t n_pieces, n_leaves; /* pieces, and the next power of two */
    uint32_t *owner;           /* tree, root at 1 */
    size_t *from, *to;         /* pieces of each tensor */
} simulation;

static tn_status plan_error(const simulation *p, size_t a, const char *what) {
    return tn_fail(TN_E_INTERNAL, "plan: tensor %zu ('%s') %s", a, tn_plan_label(p->plan, a), what);
}

/* ---- The tree of owners ---- */

static void set_owner(simulation *p, size_t node, size_t low, size_t high, size_t from, size_t to, uint32_t who) {
    if (from >= high || to <= low) return;
    if (from <= low && high <= to) {
        p->owner[node] = who;
        return;
    }
    if (p->owner[node] != MIXED) p->owner[2 * node] = p->owner[2 * node + 1] = p->owner[node];
    size_t middle = (low + high) / 2;
    set_owner(p, 2 * node, low, middle, from, to, who);
    set_owner(p, 2 * node + 1, middle, high, from, to, who);
    p->owner[node] = p->owner[2 * node] == p->owner[2 * node + 1] ? p->owner[2 * node] : MIXED;
}

/* The owner of pieces from…to, or MIXED if there are several. */
static uint32_t get_owner(const simulation *p, size_t node, size_t low, size_t high, size_t from, size_t to) {
    if (p->owner[node] != MIXED || (from <= low && high <= to)) return p->owner[node];
    size_t middle = (low + high) / 2;
    if (to <= middle) return get_owner(p, 2 * node, low, middle, from, to);
    if (from >= middle) return get_owner(p, 2 * node + 1, middle, high, from, to);
    uint32_t left = get_owner(p, 2 * node, low, middle, from, to);
    return left == get_owner(p, 2 * node + 1, middle, high, from, to) ? left : MIXED;
}

static bool lies(const simulation *p, size_t i) {
    return p->plan->entries[i].memory >= 0 && p->plan->entries[i].size > 0;
}
static void write_tensor(simulation *p, size_t i) {
    set_owner(p, 1, 0, p->n_leaves, p->from[i], p->to[i], (uint32_t)i + FIRST_TENSOR);
}
static bool owns_bytes(const simulation *p, size_t i) {
    return !lies(p, i) || get_owner(p, 1, 0, p->n_leaves, p->from[i], p->to[i]) == i + FIRST_TENSOR;
}

/* ---- Entries ---- */

static tn_status check_entry(const simulation *p, size_t i) {
    const tn_plan_entry *entry = &p->plan->entries[i];
    const tn_tensor *t = tn__plan_tensor(p->graph, i);
    bool elsewhere = t->view_src || tn__is_external(t);
    if (elsewhere != (entry->memory < 0))
        return plan_error(p, i, elsewhere ? "has data already, but is planned" : "is not planned");
    if (elsewhere) return TN_OK;
    size_t memory = p->params->memory_of ? p->params->memory_of[i] : 0, bytes;
    if ((size_t)entry->memory != memory || memory >= p->params->n_memories)
        return plan_error(p, i, "is in the wrong memory");
    TN_TRY(tn__plan_bytes(p->params, memory, i, t, &bytes));
    const tn__plan_part *part = &p->plan->parts[memory];
    if (entry->size < bytes) return plan_error(p, i, "has too few bytes");
    if (entry->offset & (p->params->memories[memory].alignment - 1)) return plan_error(p, i, "is not aligned");
    size_t end;
    if (entry->size && (entry->chunk >= part->n_chunks || __builtin_add_overflow(entry->offset, entry->size, &end) ||
                        end > part->chunk_sizes[entry->chunk]))
        return plan_error(p, i, "ends past its chunk");
    return TN_OK;
}

static int by_value(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static size_t piece_index(const simulation *p, size_t position) {
    size_t low = 0, high = p->n_pieces;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->cuts[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Checks every entry and divides the line into pieces. */
static tn_status lay_out_pieces(simulation *p) {
    const tn_plan *plan = p->plan;
    size_t n = tn_plan_tensor_count(plan), chunks = 0, position = 0, count = 0;
    for (size_t m = 0; m < plan->n_parts; m++) {
        size_t limit = p->params->memories[m].max_chunk;
        p->line_begin[m] = chunks;
        for (size_t c = 0; c < plan->parts[m].n_chunks; c++) {
            size_t size = plan->parts[m].chunk_sizes[c];
            if (limit && size > limit)
                return tn_fail(TN_E_INTERNAL, "plan: chunk %zu of memory %zu has %zu bytes, more than %zu", c, m,
                               size, limit);
            p->chunk_begin[chunks++] = position;
            if (__builtin_add_overflow(position, size, &position))
                return tn_fail(TN_E_INTERNAL, "plan: the chunk sizes overflow");
        }
    }
    for (size_t i = 0; i < n; i++) {
        TN_TRY(check_entry(p, i));
        if (!lies(p, i)) continue;
        const tn_plan_entry *entry = &plan->entries[i];
        p->from[i] = p->chunk_begin[p->line_begin[entry->memory] + entry->chunk] + entry->offset;
        p->to[i] = p->from[i] + entry->size;
        p->cuts[count++] = p->from[i];
        p->cuts[count++] = p->to[i];
    }
    qsort(p->cuts, count, sizeof *p->cuts, by_value);
    for (size_t k = 0; k < count; k++)
        if (k == 0 || p->cuts[k] != p->cuts[k - 1]) p->cuts[p->n_pieces++] = p->cuts[k];
    for (size_t i = 0; i < n; i++) {
        if (!lies(p, i)) continue;
        p->from[i] = piece_index(p, p->from[i]);
        p->to[i] = piece_index(p, p->to[i]);
    }
    return TN_OK;
}

/* ---- Simulation ---- */

/* Node i writes while it reads: a source in its own memory must have the same elements, and the op must allow it. */
static tn_status check_overwritten(const simulation *p, size_t i) {
    const tn_tensor *t = tn_graph_node(p->graph, i);
    uint32_t mask = tn__plan_mask(p->params, t, i);
    for (int s = 0; s < TN_MAX_SRC; s++) {
        if (!t->src[s]) continue;
        size_t root = tn_graph_index(p->graph, tn__root(t->src[s]));
        if (!lies(p, root) || p->from[root] >= p->to[i] || p->from[i] >= p->to[root]) continue;
        if (!(mask >> s & 1) || t->src[s]->view_offset || p->from[root] != p->from[i] ||
            !tn_same_layout(t, t->src[s]))
            return plan_error(p, i, "overwrites one of its sources in a way that its op does not allow");
    }
    return TN_OK;
}

static tn_status simulate(simulation *p) {
    size_t n_nodes = p->plan->n_nodes, n = tn_plan_tensor_count(p->plan);
    for (size_t i = n_nodes; i < n; i++)
        if (lies(p, i)) write_tensor(p, i);
    for (size_t i = n_nodes; i < n; i++)
        if (!owns_bytes(p, i)) return plan_error(p, i, "shares bytes with another leaf");
    for (size_t i = 0; i < n_nodes; i++) {
        const tn_tensor *t = tn_graph_node(p->graph, i);
        for (int s = -1; s < TN_MAX_SRC; s++) {
            const tn_tensor *source = s < 0 ? t->view_src : t->src[s];
            if (!source) continue;
            size_t root = tn_graph_index(p->graph, tn__root(source));
            if (root >= n) return plan_error(p, i, "has a source that is not in the graph");
            if (!owns_bytes(p, root))
                return tn_fail(TN_E_INTERNAL,
                               "plan: tensor %zu ('%s') is read at step %zu, after its bytes were overwritten", root,
                               tn_plan_label(p->plan, root), i);
        }
        if (!lies(p, i)) continue;
        TN_TRY(check_overwritten(p, i));
        write_tensor(p, i);
    }
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__plan_tensor(p->graph, i);
        size_t root = tn_graph_index(p->graph, tn__root(t));
        if (t->flags & (TN_FLAG_OUTPUT | TN_FLAG_PARAM) && !owns_bytes(p, root))
            return plan_error(p, i, "must live to the end, but its bytes were overwritten");
    }
    return TN_OK;
}

tn_status tn_plan_verify(const tn_plan *plan, const tn_graph *graph, const tn_plan_params *params) {
    if (!plan) return tn_fail(TN_E_INVALID, "tn_plan_verify: no plan");
    TN_TRY(tn__plan_check_params(graph, params));
    size_t n = tn_plan_tensor_count(plan), chunks = 0;
    if (plan->n_nodes != tn_graph_node_count(graph) || plan->n_leaves != tn_graph_leaf_count(graph) ||
        plan->n_parts != params->n_memories)
        return tn_fail(TN_E_INTERNAL,
                       "plan: made for %zu nodes, %zu leaves and %zu memories, not for %zu, %zu and %zu",
                       plan->n_nodes, plan->n_leaves, plan->n_parts, tn_graph_node_count(graph),
                       tn_graph_leaf_count(graph), params->n_memories);
    for (size_t m = 0; m < plan->n_parts; m++) chunks += plan->parts[m].n_chunks;
    simulation p = {.plan = plan, .graph = graph, .params = params};
    p.line_begin = tn_malloc(plan->n_parts * sizeof *p.line_begin);
    p.chunk_begin = tn_malloc(chunks * sizeof *p.chunk_begin);
    p.cuts = tn_malloc(2 * n * sizeof *p.cuts);
    p.from = tn_calloc(n, sizeof *p.from);
    p.to = tn_calloc(n, sizeof *p.to);
    tn_status status = TN_E_NOMEM;
    if (!p.line_begin || !p.chunk_begin || !p.cuts || !p.from || !p.to) goto out;
    TN_TRY_GOTO(lay_out_pieces(&p), status, out);
    p.n_leaves = 1;
    while (p.n_leaves < p.n_pieces) p.n_leaves *= 2;
    p.owner = tn_calloc(2 * p.n_leaves, sizeof *p.owner);
    status = p.owner ? simulate(&p) : TN_E_NOMEM;
out:
    tn_free(p.line_begin);
    tn_free(p.chunk_begin);
    tn_free(p.cuts);
    tn_free(p.from);
    tn_free(p.to);
    tn_free(p.owner);
    return status;
}
