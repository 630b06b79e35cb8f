/* The graphs of a session: looked up by shape or built, cached, scheduled. */
#include "llm/graphs.h"

#include "base/checked.h"
#include "llm/plan/session_plan.h"

#include <string.h>

static void free_graph_set(tn__graph_set *set) {
    if (!set) return;
    tn_arena_free(set->arena);
    tn_free(set);
}

void tn__graphs_clear(tn__graphs *g) {
    for (size_t i = 0; i < g->n; i++) free_graph_set(g->sets[i]);
    g->n = 0;
    memset(g->kept, 0, sizeof g->kept);
    g->n_kept = 0;
}

void tn__graphs_free(tn__graphs *g) {
    tn__graphs_clear(g);
    tn_free(g->sets);
    *g = (tn__graphs){0};
}

/* Makes room for one more graph: evicts the least recently used one that is not kept. */
static void evict_graph(tn__graphs *g) {
    size_t oldest = g->n, evictable = 0;
    for (size_t i = 0; i < g->n; i++) {
        bool kept = false;
        for (size_t k = 0; k < g->n_kept; k++) kept = kept || g->kept[k] == g->sets[i];
        if (kept) continue;
        evictable++;
        if (oldest == g->n || g->sets[i]->last_used < g->sets[oldest]->last_used) oldest = i;
    }
    if (evictable < TN__GRAPHS_KEPT) return;
    free_graph_set(g->sets[oldest]);
    g->sets[oldest] = g->sets[--g->n];
}

static tn_status build_shape(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    return tn__moves_cells(shape) ? tn__build_move(p, shape, set) : tn__build_graph(p, shape, set);
}

/* Builds a graph twice: its exact size is known only once it exists, and a cached graph should take no more. */
static tn_status build_exactly(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    TN_TRY(build_shape(p, shape, set));
    if (!set->graph) return TN_OK;
    tn__graph_set exact = {.n_tensors = tn_arena_tensor_count(set->arena)};
    exact.capacity = TN__MAX(tn_graph_node_count(set->graph), tn_graph_leaf_count(set->graph));
    tn_status status = build_shape(p, shape, &exact);
    tn_arena_free(status == TN_OK ? set->arena : exact.arena);
    if (status == TN_OK) *set = exact;
    return status;
}

/* ---- Results in memory of their own ----
 * The next graph reads an argmax on the device; candidates are small beside the logits, so the packer has no use for
 * them. */

enum { RESULTS_MOST = 3 };

/* The results of this kind, and where each begins in the memory of `of`; returns their number. */
static int own_results(const tn__kv *kv, const tn__graph_set *set, tn_tensor *list[RESULTS_MOST],
                       int64_t words[RESULTS_MOST], const tn_tensor **of) {
    if (set->largest) {
        const int64_t part = kv->candidates_part;
        memcpy(list, (tn_tensor *[]){set->largest, set->largest_logits, set->sums}, 3 * sizeof *list);
        memcpy(words, (int64_t[]){0, part, 2 * part}, 3 * sizeof *words);
        *of = kv->candidates;
        return 3;
    }
    if (!set->sums || set->shape.n_outputs != 1) return 0;
    memcpy(list, (tn_tensor *[]){set->result, set->sums}, 2 * sizeof *list);
    memcpy(words, (int64_t[]){0, 1}, 2 * sizeof *words);
    *of = kv->argmax;
    return 2;
}

void tn__graph_bind_results(const tn__kv *kv, tn__graph_set *set) {
    tn_tensor *list[RESULTS_MOST];
    int64_t words[RESULTS_MOST];
    const tn_tensor *of;
    const int n = own_results(kv, set, list, words, &of);
    for (int i = 0; i < n && of->data; i++) {
        list[i]->buffer = of->buffer;
        list[i]->data = (char *)of->data + (size_t)words[i] * sizeof(int32_t);
    }
}

/* Before the cache has memory: declares that the results will be in the cache's memory. */
static tn_status declare_results(tn_session_plan *p, const tn__graph_set *set) {
    tn_tensor *list[RESULTS_MOST];
    int64_t words[RESULTS_MOST];
    const tn_tensor *of;
    const int n = own_results(&p->kv, set, list, words, &of);
    tn_buffer_type *type = p->placement.types[p->kv.argmax_device];
    for (int i = 0; i < n && !of->data; i++) TN_TRY(tn__locations_add(&p->locations, list[i], type, TN_USAGE_ANY));
    return TN_OK;
}

static void forget_results(tn_session_plan *p, const tn__graph_set *set) {
    tn_tensor *list[RESULTS_MOST];
    int64_t words[RESULTS_MOST];
    const tn_tensor *of;
    const int n = set->graph ? own_results(&p->kv, set, list, words, &of) : 0;
    for (int i = 0; i < n; i++) tn__locations_remove(&p->locations, list[i]);
}

tn_status tn__graph_new(tn_session_plan *p, tn__shape shape, tn__graph_set **out) {
    *out = NULL;
    tn__graph_set *set = tn_calloc(1, sizeof *set);
    if (!set) return TN_E_NOMEM;
    tn_status status = build_shape(p, shape, set);
    if (status == TN_OK) status = declare_results(p, set);
    if (status != TN_OK || !set->graph)
        tn__graph_free(p, set);
    else
        *out = set;
    return status;
}

void tn__graph_free(tn_session_plan *p, tn__graph_set *set) {
    if (!set) return;
    forget_results(p, set);
    free_graph_set(set);
}

tn_status tn__graph_for(tn_session_plan *p, tn__shape shape, tn__graph_set **out) {
    tn__graphs *g = &p->graphs;
    for (size_t i = 0; i < g->n; i++) {
        tn__graph_set *set = g->sets[i];
        if (tn__shape_is(set->shape, shape)) {
            set->last_used = ++g->clock;
            *out = set;
            return TN_OK;
        }
    }
    evict_graph(g);
    if (g->n == g->capacity) {
        size_t capacity = g->capacity ? 2 * g->capacity : 8;
        tn__graph_set **grown = tn_realloc(g->sets, capacity * sizeof(tn__graph_set *));
        if (!grown) return TN_E_NOMEM;
        g->sets = grown;
        g->capacity = capacity;
    }
    tn__graph_set *set = tn_calloc(1, sizeof *set);
    if (!set) return TN_E_NOMEM;
    tn_status status = build_exactly(p, shape, set);
    if (status == TN_OK) status = declare_results(p, set);
    if (status != TN_OK) {
        free_graph_set(set);
        return status;
    }
    tn__graph_bind_results(&p->kv, set);
    set->last_used = ++g->clock;
    g->n_built++;
    g->sets[g->n++] = set;
    *out = set;
    return TN_OK;
}

int32_t tn__round_tokens(int32_t n, int32_t limit) {
    int64_t step = n <= 8 ? 1 : n <= 64 ? 8 : n <= 128 ? 16 : 32;
    while (step * 32 < n) step *= 2; /* at most 3% of padding, and a bounded number of sizes */
    int64_t rounded = (n + step - 1) / step * step;
    return rounded < limit ? (int32_t)rounded : limit;
}

/* One row, or a power of two from 64 on: a row of logits is cheap compared with the layers, and every further
 * graph costs memory. */
int32_t tn__round_outputs(int32_t n, int32_t limit) {
    int64_t rounded = n <= 1 ? 1 : 64;
    while (rounded < n) rounded *= 2;
    return rounded < limit ? (int32_t)rounded : limit;
}

/* Only full micro-batches of tokens follow each other in flight. */
bool tn__shape_in_flight(const tn_session_plan *p, tn__shape shape) {
    return p->pipelined && shape.n_tokens == p->params.n_ubatch && !tn__moves_cells(shape);
}

tn_status tn__graph_schedule(tn_session_plan *p, const tn__graph_set *set, bool *in_flight) {
    *in_flight = tn__shape_in_flight(p, set->shape);
    if (!*in_flight) return TN_OK;
    tn_sched_info info;
    TN_TRY(tn_sched_set_in_flight(p->sched, p->params.n_pipeline));
    tn_status status = tn_sched_describe(p->sched, set->graph, &info);
    tn_status back = tn_sched_set_in_flight(p->sched, 1);
    *in_flight = status == TN_OK && info.in_flight > 1;
    return status == TN_OK ? back : status;
}
