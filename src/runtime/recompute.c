/* Recomputation: searches the cheapest trace of a graph that keeps within the budgets, and makes a graph of it. */
#include "runtime/recompute_internal.h"

#include "base/checked.h"
#include "plan/plan_internal.h"
#include "tenon/speed.h"
#include "tensor/graph_build.h"

#include <math.h>
#include <string.h>

/* Attempts to make a found trace cheaper; halvings of the interval in which the smallest reachable memory is
 * searched; attempts to make up for what packing adds to the live bytes. */
enum { MAX_IMPROVEMENTS = 48, SMALLEST_STEPS = 10, PACKING_ATTEMPTS = 8 };

static const tn__rule trace_rules[] = {{1, true, false},  {0.5, true, false}, {0, true, false},
                                       {1, false, false}, {0.5, true, true},  {0, true, true}};

/* ---- Search ---- */

/* Keeps the cheaper of two traces. */
static void keep_cheaper(tn__trace *best, bool *found, tn__trace *other) {
    if (*found && other->added >= best->added) {
        tn__trace_free(other);
        return;
    }
    if (*found) tn__trace_free(best);
    *best = *other;
    *found = true;
}

/* Frees by rule whenever memory is full. Values may be computed several times: it reaches less memory than a list of
 * drops, at a higher price. */
static tn_status search_rules(const tn__values *v, const size_t *bytes, tn__trace *best, bool *found) {
    for (size_t i = 0; i < TN__COUNT(trace_rules); i++) {
        if (trace_rules[i].keep_leaves && !v->has_planned_leaves) continue;
        const tn__attempt attempt = {
            .bytes = bytes, .rule = trace_rules[i], .limit = *found ? best->added : INFINITY};
        tn__trace trace;
        bool possible;
        TN_TRY(tn__trace_run(v, &attempt, &trace, &possible));
        if (possible) keep_cheaper(best, found, &trace);
    }
    return TN_OK;
}

/* Seconds to compute a value again before `use`, with what will have been freed by then. */
static double seconds_before(const tn__values *v, const uint32_t *drop, uint32_t value, uint32_t use, uint32_t *stack,
                             uint32_t *stamp, double limit) {
    size_t depth = 0;
    double sum = v->seconds[value];
    const uint32_t mark = ++stamp[v->n];
    stamp[value] = mark;
    stack[depth++] = value;
    while (depth && sum <= limit) {
        const uint32_t node = stack[--depth];
        for (int k = 0; k < TN__READS; k++) {
            const uint32_t read = v->reads[node][k], r = read == TN_GRAPH_NONE ? read : v->root[read];
            if (r >= v->n_nodes || stamp[r] == mark) continue;
            const bool there = tn__last_use(v, r) >= use && (drop[r] == TN_GRAPH_NONE || drop[r] < use);
            if (there) continue;
            stamp[r] = mark;
            sum += v->seconds[r];
            stack[depth++] = r;
        }
    }
    return sum;
}

typedef struct drop_list {
    const tn__values *v;
    tn__attempt attempt;
    uint32_t *drop;
    uint32_t *stack, *stamp;
} drop_list;

/* Adds the value at the peak that takes the fewest seconds per byte; false if there is none. */
static bool add_drop(drop_list *l, const tn__trace *t) {
    uint32_t best = TN_GRAPH_NONE, use = 0;
    double best_score = INFINITY;
    for (size_t i = 0; i < t->n_at_peak; i++) {
        const uint32_t c = t->at_peak[i];
        const double bytes = (double)l->v->bytes[c], score = seconds_before(l->v, l->drop, c, t->peak_use[i],
                                                                            l->stack, l->stamp, best_score * bytes) /
                                                             bytes;
        if (score < best_score || (score == best_score && c < best)) {
            best = c;
            best_score = score;
            use = t->peak_use[i];
        }
    }
    if (best == TN_GRAPH_NONE) return false;
    l->drop[best] = use;
    return true;
}

/* Lets the values stay that take longest to compute, where the rest suffices. */
static tn_status remove_drops(drop_list *l, tn__trace *best) {
    bool *tried = tn_calloc(l->v->n + 1, sizeof *tried);
    if (!tried) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (int i = 0; i < MAX_IMPROVEMENTS && status == TN_OK; i++) {
        uint32_t value = TN_GRAPH_NONE;
        for (uint32_t k = 0; k < l->v->n_nodes; k++)
            if (best->evicted[k] && !tried[k] && (value == TN_GRAPH_NONE || l->v->seconds[k] > l->v->seconds[value]))
                value = k;
        if (value == TN_GRAPH_NONE) break;
        const uint32_t use = l->drop[value];
        tn__trace trace;
        bool possible;
        tried[value] = true;
        l->drop[value] = TN_GRAPH_NONE;
        l->attempt.limit = best->added;
        status = tn__trace_run(l->v, &l->attempt, &trace, &possible);
        if (status == TN_OK && possible && trace.fits && trace.added < best->added) {
            tn__trace_free(best);
            *best = trace;
        } else {
            if (status == TN_OK && possible) tn__trace_free(&trace);
            l->drop[value] = use;
        }
    }
    tn_free(tried);
    return status;
}

/* Frees a value between two uses only: values are added to a list of drops one by one until the peak is low enough.
 */
static tn_status search_drops(const tn__values *v, const size_t *bytes, bool keep_leaves, uint32_t near_use,
                              tn__trace *best, bool *found) {
    drop_list l = {
        .v = v,
        .attempt = {.bytes = bytes, .rule = {.keep_leaves = keep_leaves}, .near_use = near_use, .limit = INFINITY},
        .drop = tn_malloc((v->n + 1) * sizeof *l.drop),
        .stack = tn_malloc((v->n + 1) * sizeof *l.stack),
        .stamp = tn_calloc(v->n + 1, sizeof *l.stamp)};
    tn_status status = l.drop && l.stack && l.stamp ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; status == TN_OK && i < v->n; i++) l.drop[i] = TN_GRAPH_NONE;
    l.attempt.drop = l.drop;
    for (bool more = true; status == TN_OK && more;) {
        tn__trace trace;
        bool possible;
        l.attempt.limit = *found ? best->added : INFINITY;
        status = tn__trace_run(v, &l.attempt, &trace, &possible);
        if (status != TN_OK || !possible) break;
        more = !trace.fits && add_drop(&l, &trace);
        if (!trace.fits) {
            tn__trace_free(&trace);
            continue;
        }
        status = remove_drops(&l, &trace);
        if (status == TN_OK)
            keep_cheaper(best, found, &trace);
        else
            tn__trace_free(&trace);
    }
    tn_free(l.drop);
    tn_free(l.stack);
    tn_free(l.stamp);
    return status;
}

/* The cheapest trace within these bytes. */
static tn_status search_trace(const tn__values *v, const size_t *bytes, tn__trace *best, bool *found) {
    *found = false;
    static const uint32_t near_uses[] = {UINT32_MAX, 64, 16};
    tn_status status = TN_OK;
    for (size_t i = 0; status == TN_OK && i < TN__COUNT(near_uses); i++) {
        status = search_drops(v, bytes, false, near_uses[i], best, found);
        if (status == TN_OK && v->has_planned_leaves)
            status = search_drops(v, bytes, true, near_uses[i], best, found);
    }
    if (status == TN_OK) status = search_rules(v, bytes, best, found);
    if (status != TN_OK && *found) tn__trace_free(best);
    return status;
}

/* ---- Building ---- */

typedef struct recompute_build {
    const tn__values *v;
    const tn__trace *trace;
    tn_recomputation *r;
    tn_tensor **made; /* per step */
} recompute_build;

/* The given tensor where it is computed first and from unchanged sources, else a copy. */
static tn_status make_step_tensor(recompute_build *b, size_t step, bool again) {
    const tn__trace *t = b->trace;
    tn_tensor *given = tn_graph_node(b->v->graph, t->origin[step]);
    bool changed = again;
    for (int k = 0; k < TN__READS; k++) {
        const tn_tensor *source = k < TN_MAX_SRC ? given->src[k] : given->view_src;
        changed = changed || (t->reads[step][k] != TN_GRAPH_NONE && b->made[t->reads[step][k]] != source);
    }
    b->made[step] = given;
    if (!changed) return TN_OK;
    tn_tensor *copy = tn_arena_alloc(b->r->arena, sizeof *copy);
    if (!copy) return tn_arena_status(b->r->arena);
    *copy = *given;
    if (given->flags & TN_FLAG_PLANNED || (!given->data && !given->location)) {
        copy->data = NULL;
        copy->buffer = NULL;
        copy->extra = NULL;
        copy->flags &= ~(uint32_t)TN_FLAG_PLANNED;
    }
    for (int k = 0; k < TN_MAX_SRC; k++)
        if (t->reads[step][k] != TN_GRAPH_NONE) copy->src[k] = b->made[t->reads[step][k]];
    if (t->reads[step][TN_MAX_SRC] != TN_GRAPH_NONE) copy->view_src = b->made[t->reads[step][TN_MAX_SRC]];
    b->made[step] = copy;
    return TN_OK;
}

static tn_status fill_new_graph(recompute_build *b, bool *seen) {
    const tn__values *v = b->v;
    for (size_t i = v->n_nodes; i < v->n; i++)
        TN_TRY(tn__graph_append(b->r->graph, tn_graph_leaf(v->graph, i - v->n_nodes)));
    for (size_t i = 0; i < b->trace->n; i++) {
        const uint32_t origin = b->trace->origin[i];
        b->r->origin[i] = origin;
        TN_TRY(make_step_tensor(b, i, seen[origin]));
        TN_TRY(tn__graph_append(b->r->graph, b->made[i]));
        seen[origin] = true;
    }
    return TN_OK;
}

static tn_status build_recomputed(const tn__values *v, const tn__trace *trace, tn_recomputation *r) {
    const size_t capacity = TN__MAX(trace->n, v->n - v->n_nodes) + 1;
    size_t size, tensors;
    if (!tn__mul_size(trace->n + 1, sizeof(tn_tensor) + 64, &tensors) ||
        !tn__add_size(tn_arena_size_for(0, capacity), tensors + trace->n * sizeof(uint32_t) + 256, &size))
        return tn_fail(TN_E_OVERFLOW, "a graph of %zu nodes is too large", trace->n);
    recompute_build b = {v, trace, r, tn_malloc((trace->n + 1) * sizeof(tn_tensor *))};
    bool *seen = tn_calloc(v->n + 1, sizeof *seen);
    tn_status status = b.made && seen ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = tn_arena_new(&(tn_arena_params){.size = size, .no_alloc = true}, &r->arena);
    if (status == TN_OK) status = tn_graph_new(r->arena, capacity, &r->graph);
    if (status == TN_OK) {
        r->origin = tn_arena_alloc(r->arena, (trace->n + 1) * sizeof *r->origin);
        status = r->origin ? fill_new_graph(&b, seen) : tn_arena_status(r->arena);
    }
    r->n_recomputed = trace->n_recomputed;
    r->added_seconds = trace->added;
    tn_free(b.made);
    tn_free(seen);
    return status;
}

/* ---- Planning the result ---- */

typedef struct recomputed_params {
    const tn_plan_params *given;
    const uint32_t *origin;
    size_t n_origin;
} recomputed_params;
static size_t size_of_origin(void *user, size_t memory, const tn_tensor *t) {
    const tn_plan_params *p = ((const recomputed_params *)user)->given;
    return p->tensor_size(p->user, memory, t);
}
static uint32_t mask_of_origin(void *user, const tn_tensor *t, size_t index) {
    const recomputed_params *p = user;
    return p->given->inplace_mask(p->given->user, t, p->origin[index]);
}

/* Plans a graph whose nodes are those of `origin`; sizes[m] receives the bytes of each memory. */
static tn_status plan_recomputed(const tn__values *v, const tn_recomputation *r, size_t *sizes) {
    const size_t n_nodes = tn_graph_node_count(r->graph), n_leaves = v->n - v->n_nodes;
    recomputed_params own = {v->plan, r->origin, n_nodes};
    tn_plan_params params = *v->plan;
    uint16_t *memory_of = tn_malloc((n_nodes + n_leaves + 1) * sizeof *memory_of);
    if (!memory_of) return TN_E_NOMEM;
    for (size_t i = 0; i < n_nodes + n_leaves; i++) {
        const size_t given = i < n_nodes ? r->origin[i] : v->n_nodes + (i - n_nodes);
        memory_of[i] = v->plan->memory_of ? v->plan->memory_of[given] : 0;
    }
    params.memory_of = memory_of;
    params.user = &own;
    if (params.tensor_size) params.tensor_size = size_of_origin;
    if (params.inplace_mask) params.inplace_mask = mask_of_origin;
    tn_plan *plan;
    tn_status status = tn_plan_make(r->graph, &params, &plan);
    for (size_t m = 0; status == TN_OK && m < params.n_memories; m++) sizes[m] = tn_plan_size(plan, m);
    if (status == TN_OK) tn_plan_free(plan);
    tn_free(memory_of);
    return status;
}

static bool within_budgets(const size_t *sizes, const size_t *budgets, size_t n) {
    for (size_t m = 0; m < n; m++)
        if (sizes[m] > budgets[m]) return false;
    return true;
}
static size_t sum_of(const size_t *sizes, size_t n) {
    size_t sum = 0;
    for (size_t m = 0; m < n; m++) sum += sizes[m];
    return sum;
}

void tn_recomputation_free(tn_recomputation *r) {
    if (!r) return;
    tn_arena_free(r->arena);
    *r = (tn_recomputation){0};
}
static void forget_graph(tn_recomputation *r) {
    tn_arena_free(r->arena);
    r->arena = NULL;
    r->graph = NULL;
    r->origin = NULL;
}

/* ---- The whole ---- */

typedef struct recompute_search {
    const tn__values *v;
    const size_t *budgets;
    size_t n;
    size_t *live, *planned; /* bytes that a trace may use; bytes of its plan */
} recompute_search;

/* Makes and plans the graph of a trace within s->live. `within`: its plan keeps the budgets. */
static tn_status try_live_bytes(const recompute_search *s, tn_recomputation *r, bool *found, bool *within) {
    tn__trace trace;
    *within = false;
    TN_TRY(search_trace(s->v, s->live, &trace, found));
    if (!*found) return TN_OK;
    tn_status status = build_recomputed(s->v, &trace, r);
    tn__trace_free(&trace);
    if (status == TN_OK) status = plan_recomputed(s->v, r, s->planned);
    if (status != TN_OK) return status;
    *within = within_budgets(s->planned, s->budgets, s->n);
    if (*within)
        r->after = sum_of(s->planned, s->n);
    else
        forget_graph(r);
    return TN_OK;
}

/* Packing takes a little more than the live bytes: traces are made for less until the plan fits. */
static tn_status search_within(const recompute_search *s, tn_recomputation *r, bool *done) {
    bool found = true;
    memcpy(s->live, s->budgets, s->n * sizeof *s->live);
    for (int i = 0; i < PACKING_ATTEMPTS && !*done && found; i++) {
        TN_TRY(try_live_bytes(s, r, &found, done));
        for (size_t m = 0; found && !*done && m < s->n; m++) {
            if (s->planned[m] <= s->budgets[m]) continue;
            const size_t less = TN__MAX(s->planned[m] - s->budgets[m], s->budgets[m] / 256 + 1);
            s->live[m] = s->live[m] > less ? s->live[m] - less : 0;
        }
    }
    return TN_OK;
}

/* The fewest bytes of the memories with a budget, all reduced by the same share. It does not depend on the budgets,
 * so that what it reaches is found again when it is given as a budget. */
static tn_status search_smallest(const recompute_search *s, const size_t *before, tn_recomputation *r, bool *done) {
    double low = 0, high = 1;
    r->smallest = r->before;
    for (int i = 0; i < SMALLEST_STEPS && !*done; i++) {
        const double share = (low + high) / 2;
        bool found;
        for (size_t m = 0; m < s->n; m++)
            s->live[m] = s->budgets[m] == SIZE_MAX ? SIZE_MAX : (size_t)(share * (double)before[m]);
        TN_TRY(try_live_bytes(s, r, &found, done));
        *(found ? &high : &low) = share;
        if (found) r->smallest = TN__MIN(r->smallest, sum_of(s->planned, s->n));
    }
    return TN_OK;
}

static tn_status copy_unchanged(const tn__values *v, tn_recomputation *r) {
    const size_t capacity = TN__MAX(tn_graph_capacity(v->graph), 1);
    TN_TRY(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(0, capacity) + v->n_nodes * sizeof(uint32_t) + 256,
                                        .no_alloc = true},
                     &r->arena));
    TN_TRY(tn_graph_copy(r->arena, v->graph, &r->graph));
    r->origin = tn_arena_alloc(r->arena, (v->n_nodes + 1) * sizeof *r->origin);
    if (!r->origin) return tn_arena_status(r->arena);
    for (uint32_t i = 0; i < v->n_nodes; i++) r->origin[i] = i;
    return TN_OK;
}

/* The time of a desktop's CPU: only ratios matter. */
static double assumed_node_seconds(void *user, const tn_tensor *node) { return tn_predict_node(user, node); }

static tn_status recompute_values(const tn__values *v, const tn_recompute_params *params, tn_recomputation *r) {
    const size_t n = params->plan->n_memories;
    size_t *sizes = tn_calloc(3 * n, sizeof *sizes), *before = sizes + 2 * n;
    if (!sizes) return TN_E_NOMEM;
    recompute_search s = {v, params->budgets, n, sizes, sizes + n};
    bool done = false;
    for (size_t i = 0; i < v->n_nodes; i++) r->seconds += v->seconds[i];
    tn_status status = copy_unchanged(v, r);
    if (status == TN_OK) status = plan_recomputed(v, r, before);
    if (status == TN_OK) {
        r->before = r->after = sum_of(before, n);
        done = within_budgets(before, params->budgets, n);
    }
    if (status == TN_OK && !done) {
        forget_graph(r);
        status = search_within(&s, r, &done);
    }
    if (status == TN_OK && !done) {
        status = search_smallest(&s, before, r, &done);
        size_t wanted = 0;
        for (size_t m = 0; m < n; m++) wanted += params->budgets[m] == SIZE_MAX ? before[m] : params->budgets[m];
        if (status == TN_OK && !done)
            status = tn_fail(TN_E_TOO_BIG,
                             "the graph needs %zu bytes, at least %zu with recomputation, and %zu are allowed: raise "
                             "the budget or make the batch smaller",
                             r->before, r->smallest, wanted);
    }
    tn_free(sizes);
    return status;
}

tn_status tn_graph_recompute(const tn_graph *graph, const tn_recompute_params *params, tn_recomputation *result) {
    if (!graph || !params || !params->plan || !params->budgets || !result)
        return tn_fail(TN_E_INVALID, "tn_graph_recompute: NULL argument");
    *result = (tn_recomputation){0};
    TN_TRY(tn__plan_check_params(graph, params->plan));
    tn_recompute_params own = *params;
    tn_device_speed assumed;
    if (!own.seconds) {
        assumed = tn_speed_from_rates(&(tn_device_rates){.read = 40e9, .f32 = 400e9, .launch = 2e-6});
        own.seconds = assumed_node_seconds;
        own.user = &assumed;
    }
    tn__values values;
    TN_TRY(tn__values_new(graph, &own, &values));
    tn_status status = recompute_values(&values, &own, result);
    tn__values_free(&values);
    if (status != TN_OK) forget_graph(result);
    return status;
}

tn_tensor *tn_recomputed(const tn_recomputation *r, const tn_graph *graph, const tn_tensor *node) {
    const uint32_t index = r && r->graph ? tn_graph_index(graph, node) : TN_GRAPH_NONE;
    for (size_t i = 0; index != TN_GRAPH_NONE && i < tn_graph_node_count(r->graph); i++)
        if (r->origin[i] == index) return tn_graph_node(r->graph, i);
    return NULL;
}
