/* Covering every shape that a session may run. */
#include "llm/plan/cover.h"

#include "base/checked.h"
#include "llm/plan/saved.h"

#include <string.h>

/* ---- Shapes ---- */

typedef struct shape_list {
    tn__shape *list;
    size_t n, capacity;
} shape_list;

static tn_status add_shape(shape_list *l, tn__graph_kind kind, int32_t n_tokens, int32_t n_outputs,
                           uint32_t adapters) {
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 64;
        tn__shape *grown = tn_realloc(l->list, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        l->list = grown;
        l->capacity = capacity;
    }
    l->list[l->n++] = (tn__shape){kind, n_tokens, n_outputs, adapters};
    return TN_OK;
}

/* Graphs of n tokens: each number of outputs that a micro-batch can be rounded to. */
static tn_status add_token_shapes(const tn_session_plan *plan, int32_t n, uint32_t adapters, shape_list *l) {
    const tn_session_params *p = &plan->params;
    const tn__graph_kind kind = tn__token_graph_kind(p);
    const size_t first = l->n;
    if (plan->model->division.by_layers) TN_TRY(add_shape(l, TN__GRAPH_PASS, n, 1, adapters));
    for (int32_t wanted = 1, outputs = 0, most = tn__max_outputs(p, n); outputs < most; wanted = outputs + 1) {
        outputs = tn__outputs_for(p, wanted, n);
        TN_TRY(add_shape(l, kind, n, outputs, adapters));
        if (!p->embeddings) TN_TRY(add_shape(l, TN__GRAPH_ARGMAX, n, outputs, adapters));
        if (tn__plan_candidates(plan)) TN_TRY(add_shape(l, TN__GRAPH_CANDIDATES, n, outputs, adapters));
    }
    for (size_t a = first, b = l->n - 1; a < b; a++, b--) { /* the largest first */
        tn__shape shape = l->list[a];
        l->list[a] = l->list[b];
        l->list[b] = shape;
    }
    return TN_OK;
}

static tn_status add_move_shapes(const tn_session_plan *p, shape_list *l) {
    if (!p->model->h.causal) return TN_OK; /* encoders keep nothing to move */
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        if (!p->kv.groups[g].n_pages) continue;
        TN_TRY(add_shape(l, TN__GRAPH_SHIFT, TN__MOVE_CELLS, g, 0));
        TN_TRY(add_shape(l, TN__GRAPH_MOVE, TN__MOVE_CELLS, g, 0));
    }
    return TN_OK;
}

static tn_status list_variant_shapes(const tn_session_plan *p, uint32_t adapters, shape_list *l) {
    const int32_t limit = p->params.n_ubatch;
    for (int32_t n = limit; n > 0;) {
        TN_TRY(add_token_shapes(p, n, adapters, l));
        int32_t next = n - 1; /* the largest number of tokens that is rounded to less */
        while (next > 0 && tn__round_tokens(next, limit) >= n) next--;
        n = next > 0 ? tn__round_tokens(next, limit) : 0;
    }
    return tn__queued_step_possible(p) ? add_shape(l, TN__GRAPH_NEXT, 1, 1, adapters) : TN_OK;
}

static tn_status list_shapes(const tn_session_plan *p, shape_list *l) {
    uint32_t sets[TN__ADAPTER_VARIANTS_MOST];
    const size_t n = tn__adapters_variants(p->adapters.n, sets);
    for (size_t i = 0; i < n; i++) TN_TRY(list_variant_shapes(p, sets[i], l));
    return add_move_shapes(p, l);
}

tn_status tn__shapes_list(const tn_session_plan *p, tn__shape **shapes, size_t *n) {
    shape_list l = {0};
    tn_status status = list_shapes(p, &l);
    if (status != TN_OK) {
        tn_free(l.list);
        l = (shape_list){0};
    }
    *shapes = l.list;
    *n = l.n;
    return status;
}

/* ---- Graphs ---- */

static tn_status with_in_flight(tn_session_plan *p, tn__shape shape, const void *user,
                                tn_status (*use)(tn_session_plan *p, tn__shape shape, const void *user)) {
    if (!tn__shape_in_flight(p, shape)) return use(p, shape, user);
    TN_TRY(tn_sched_set_in_flight(p->sched, p->params.n_pipeline));
    tn_status status = use(p, shape, user);
    tn_status back = tn_sched_set_in_flight(p->sched, 1);
    return status == TN_OK ? back : status;
}

/* Uses the packing of a saved plan if one is adopted. Probes with few layers are planned. */
static tn_status cover_or_adopt(tn_session_plan *p, tn__shape shape, tn_graph *graph) {
    return p->saved && !p->built ? tn__saved_cover(p, shape, graph) : tn_sched_cover(p->sched, graph);
}

/* Covers the graph of a shape; `memory` (per device, or NULL) receives its own needs. */
static tn_status cover_graph(tn_session_plan *p, tn__shape shape, const void *memory) {
    tn__graph_set *set;
    TN_TRY(tn_sched_check_abort(p->sched));
    TN_TRY(tn__graph_new(p, shape, &set));
    if (!set) return TN_OK;
    tn_status status = TN_OK;
    if (memory) status = tn_sched_measure(p->sched, &set->graph, 1, (tn_sched_memory *)(uintptr_t)memory);
    if (status == TN_OK) status = cover_or_adopt(p, shape, set->graph);
    tn__graph_free(p, set);
    return status;
}
static tn_status cover_shape(tn_session_plan *p, tn__shape shape, tn_sched_memory *memory) {
    return with_in_flight(p, shape, memory, cover_graph);
}

/* Graphs for reports are cached, with their schedules. */
static tn_status report_graph(tn_session_plan *p, tn__shape shape, const void *which) {
    const int report = *(const int *)which;
    tn__graph_set *set;
    TN_TRY(tn__graph_for(p, shape, &set));
    p->graphs.kept[p->graphs.n_kept++] = set;
    TN_TRY(tn_sched_describe(p->sched, set->graph, report == TN__REPORTED_PREFILL ? &p->prefill : &p->decode));
    return cover_or_adopt(p, shape, set->graph);
}

static tn__shape reported_shape(const tn_session_plan *p, int report) {
    const tn_session_params *params = &p->params;
    int32_t n = params->n_ubatch;
    if (report == TN__REPORTED_DECODE) n = tn__round_tokens(TN__MIN(params->n_seqs, n), n);
    const uint32_t adapters = p->searching ? tn__adapters_all(p->adapters.n) : tn__adapters_default(&p->adapters);
    return (tn__shape){tn__token_graph_kind(params), n, tn__max_outputs(params, n), adapters};
}
static tn_status cover_reported(tn_session_plan *p) {
    for (int report = 0; report < TN__REPORTED_GRAPHS; report++) {
        const tn__shape shape = reported_shape(p, report);
        TN_TRY(with_in_flight(p, shape, &report, report_graph));
        p->covered[p->n_covered++] = shape;
    }
    return TN_OK;
}

tn_status tn__graphs_keep(tn_session_plan *p) {
    const tn__shape decode = reported_shape(p, TN__REPORTED_DECODE);
    shape_list l = {0};
    tn_status status = add_shape(&l, TN__GRAPH_ARGMAX, decode.n_tokens, decode.n_outputs, decode.adapters);
    if (p->params.embeddings) l.n = 0;
    if (status == TN_OK && tn__plan_candidates(p))
        status = add_shape(&l, TN__GRAPH_CANDIDATES, decode.n_tokens, decode.n_outputs, decode.adapters);
    if (status == TN_OK && tn__queued_step_possible(p)) status = add_shape(&l, TN__GRAPH_NEXT, 1, 1, decode.adapters);
    if (status == TN_OK) status = add_move_shapes(p, &l);
    for (size_t i = 0; i < l.n && status == TN_OK; i++) {
        tn__graph_set *set;
        status = tn__graph_for(p, l.list[i], &set);
        if (status != TN_OK || !set->graph) continue;
        p->graphs.kept[p->graphs.n_kept++] = set;
    }
    tn_free(l.list);
    for (size_t i = 0; i < p->graphs.n_kept && status == TN_OK; i++) {
        bool in_flight;
        status = tn__graph_schedule(p, p->graphs.kept[i], &in_flight);
        if (status == TN_OK) status = tn_sched_alloc(p->sched, p->graphs.kept[i]->graph);
    }
    return status;
}

/* ---- Comparing shapes ---- */

/* The needs of a shape, estimated from graphs with few layers. */
typedef struct shape_probe {
    bool own_plan; /* no plan of a larger shape fits it */
    bool covered;
} shape_probe;

/* Fills `scratch` ([shape][device]) from graphs with the layers of `list`. With `probes` also marks the shapes that
 * need a plan of their own. */
static tn_status probe_shapes(tn_session_plan *p, const shape_list *l, const tn__layer_list *list,
                              shape_probe *probes, size_t *scratch) {
    const size_t n_devices = p->placement.n_devices;
    tn_sched_memory *memory = tn_calloc(n_devices, sizeof *memory);
    if (!memory) return TN_E_NOMEM;
    tn_status status = TN_OK;
    /* The effort hardly affects which shapes a plan fits. Saving and loading a plan must give the same list, so the
     * effort is fixed. */
    const tn_pack_params fast = tn_pack_params_default();
    p->built = list;
    tn_sched_reset(p->sched);
    tn_sched_set_effort(p->sched, &fast);
    for (size_t i = 0; i < l->n && status == TN_OK; i++) {
        uint64_t made = tn_sched_get_stats(p->sched).plans_made;
        for (size_t d = 0; d < n_devices; d++) memory[d].scratch = 0;
        status = cover_shape(p, l->list[i], memory);
        if (probes) probes[i].own_plan = tn_sched_get_stats(p->sched).plans_made > made;
        for (size_t d = 0; d < n_devices; d++) scratch[i * n_devices + d] = memory[d].scratch;
    }
    p->built = NULL;
    tn_sched_reset(p->sched);
    tn_sched_set_effort(p->sched, p->params.pack);
    tn_free(memory);
    return status;
}

/* Marks the shape that needs the most scratch on a device, extrapolated to all layers from graphs with two numbers
 * of layers. */
static void mark_largest_scratch(const tn_session_plan *p, size_t n_shapes, size_t device, const size_t *few,
                                 const size_t *more, shape_probe *probes) {
    const size_t n_devices = p->placement.n_devices;
    const double layers = p->model->h.n_layer, n_few = p->layers[0].n, n_more = p->layers[1].n;
    const double factor = n_more > n_few ? (layers - n_few) / (n_more - n_few) : 0;
    double most = -1;
    size_t largest = 0;
    for (size_t i = 0; i < n_shapes; i++) {
        const double a = (double)few[i * n_devices + device], b = (double)more[i * n_devices + device];
        const double all = b > a ? a + (b - a) * factor : a;
        if (all <= most) continue;
        most = all;
        largest = i;
    }
    if (most > 0) probes[largest].covered = true;
}

/* A CPU's program needs the scratch of its largest nodes. Those of GPUs may need some for every node. */
static bool has_gpu(const tn_session_plan *p) {
    for (size_t d = 0; d < p->placement.n_devices; d++)
        if (tn_device_get_kind(tn__plan_device(p, d)) != TN_DEVICE_CPU) return true;
    return false;
}

/* Decides which shapes are covered with all layers. A shape is omitted if, with few layers, it uses the plan of a
 * larger shape and no more scratch: the same holds with all layers, because layers repeat. */
static tn_status select_shapes(tn_session_plan *p, const shape_list *l, shape_probe *probes) {
    const size_t n_devices = p->placement.n_devices;
    size_t *few = tn_calloc(2 * l->n * n_devices, sizeof *few), *more = few ? few + l->n * n_devices : NULL;
    if (!few) return TN_E_NOMEM;
    tn_status status = probe_shapes(p, l, &p->layers[0], probes, few);
    if (status == TN_OK && has_gpu(p))
        status = probe_shapes(p, l, &p->layers[1], NULL, more);
    else
        more = few;
    for (size_t i = 0; i < l->n; i++) probes[i].covered = probes[i].own_plan;
    for (size_t d = 0; d < n_devices && status == TN_OK; d++) mark_largest_scratch(p, l->n, d, few, more, probes);
    tn_free(few);
    return status;
}

/* ---- Covering ---- */

tn_status tn__cover_main(tn_session_plan *p) {
    shape_list l = {0};
    TN_TRY(tn__layers_reduce(p, 1, &p->layers[0]));
    p->built = &p->layers[0];
    tn_status status = TN_OK;
    for (int report = 0; report < TN__REPORTED_GRAPHS && status == TN_OK; report++)
        status = cover_shape(p, reported_shape(p, report), NULL);
    if (status == TN_OK) status = add_move_shapes(p, &l);
    for (size_t i = 0; i < l.n && status == TN_OK; i++) status = cover_shape(p, l.list[i], NULL);
    tn_free(l.list);
    p->built = NULL;
    return status;
}

tn_status tn__cover_all(tn_session_plan *p) {
    shape_list l = {0};
    tn_free(p->covered);
    p->covered = NULL;
    p->n_covered = 0;
    shape_probe *probes = NULL;
    tn_status status = list_shapes(p, &l);
    if (status == TN_OK && !(probes = tn_calloc(l.n, sizeof *probes))) status = TN_E_NOMEM;
    for (int i = 0; i < 2 && status == TN_OK; i++) status = tn__layers_reduce(p, i + 1, &p->layers[i]);
    if (status == TN_OK && p->layers[0].n + p->layers[1].n < p->model->h.n_layer)
        status = select_shapes(p, &l, probes);
    else /* comparing shapes would take longer than covering all of them */
        for (size_t i = 0; i < l.n && status == TN_OK; i++) probes[i].covered = true;
    if (status == TN_OK && !(p->covered = tn_calloc(l.n + TN__REPORTED_GRAPHS, sizeof *p->covered)))
        status = TN_E_NOMEM;
    if (status == TN_OK) status = cover_reported(p);
    for (size_t i = 0; i < l.n && status == TN_OK; i++) {
        if (!probes[i].covered) continue;
        status = cover_shape(p, l.list[i], NULL);
        if (status == TN_OK) p->covered[p->n_covered++] = l.list[i];
    }
    tn_free(probes);
    tn_free(l.list);
    return status;
}
