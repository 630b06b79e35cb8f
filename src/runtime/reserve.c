/* The scheduler's memory: what graphs need, taking it, and what happens when a graph needs more. */
#include "runtime/sched_internal.h"

#include "base/checked.h"

#include <string.h>

static size_t scratch_size(const tn_sched *s, size_t stream) {
    return s->core->scratch[stream] ? tn_buffer_size(s->core->scratch[stream]) : 0;
}

static const char *name_of_stream(const tn_sched *s, size_t stream) {
    return tn_device_name(tn_stream_device(s->core->streams[stream]));
}

/* The node that a message names a graph by. */
static const char *name_of_schedule(const tn__schedule *schedule) {
    return schedule->n_nodes ? schedule->clones[schedule->n_nodes - 1]->name : "";
}

/* ---- Scratch ---- */

/* Takes larger scratch where `needed` (per stream) exceeds what is there, beside the old: `fresh` receives the new
 * buffers. */
static tn_status new_scratch(const tn_sched *s, const size_t *needed, tn_buffer **fresh) {
    for (size_t b = 0; b < s->core->n_streams; b++) {
        if (needed[b] <= scratch_size(s, b)) continue;
        TN_TRY(tn_buffer_new(s->core->types[b], needed[b], &fresh[b]));
        tn_buffer_set_usage(fresh[b], TN_USAGE_COMPUTE);
    }
    return TN_OK;
}

static void replace_scratch(tn_sched *s, tn_buffer **fresh) {
    for (size_t b = 0; b < s->core->n_streams; b++) {
        if (!fresh[b]) continue;
        tn_buffer_free(s->core->scratch[b]);
        s->core->scratch[b] = fresh[b];
        fresh[b] = NULL;
    }
}

static void free_scratch(const tn_sched *s, tn_buffer **fresh) {
    for (size_t b = 0; fresh && b < s->core->n_streams; b++) tn_buffer_free(fresh[b]);
    tn_free(fresh);
}

/* A graph needs more scratch than is reserved: an error when the reservation is sealed or strict, otherwise logged.
 */
static tn_status check_scratch(const tn_sched *s, const tn__schedule *schedule) {
    for (size_t b = 0; b < s->core->n_streams; b++) {
        size_t needed = schedule->scratch[b], there = scratch_size(s, b);
        if (needed <= there) continue;
        if (s->sealed)
            return tn_fail(
                TN_E_INTERNAL,
                "graph '%s' of %zu nodes needs %zu bytes of scratch on %s, %zu are reserved; this is a bug "
                "in the session's plan",
                name_of_schedule(schedule), schedule->n_nodes, needed, name_of_stream(s, b), there);
        if (s->strict)
            return tn_fail(TN_E_STATE,
                           "graph '%s' of %zu nodes needs %zu bytes of scratch on %s, %zu are reserved; reserve for "
                           "this graph first",
                           name_of_schedule(schedule), schedule->n_nodes, needed, name_of_stream(s, b), there);
        tn_log(there ? TN_LOG_WARN : TN_LOG_DEBUG,
               "%s: scratch grows from %zu to %zu bytes: graph '%s' was not reserved", name_of_stream(s, b), there,
               needed, name_of_schedule(schedule));
    }
    return TN_OK;
}

tn_status tn__sched_grow_scratch(tn_sched *s, int stream, size_t needed, const char *node) {
    size_t there = scratch_size(s, (size_t)stream);
    if (s->sealed || s->strict)
        return tn_fail(
            s->sealed ? TN_E_INTERNAL : TN_E_STATE,
            "'%s', run by itself for the eval callback, needs %zu bytes of scratch on %s, %zu are reserved; "
            "set the callback before covering graphs",
            node, needed, name_of_stream(s, (size_t)stream), there);
    tn_log(there ? TN_LOG_WARN : TN_LOG_DEBUG, "%s: scratch grows from %zu to %zu bytes: '%s' runs by itself",
           name_of_stream(s, (size_t)stream), there, needed, node);
    tn_buffer *fresh;
    TN_TRY(tn_stream_synchronize(s->core->streams[stream]));
    TN_TRY(tn_buffer_new(s->core->types[stream], needed, &fresh));
    tn_buffer_set_usage(fresh, TN_USAGE_COMPUTE);
    tn_buffer_free(s->core->scratch[stream]);
    s->core->scratch[stream] = fresh;
    return TN_OK;
}

/* ---- Covering ---- */

/* Calls `use` with the graph's schedule, which is made for the time of the call if there is none. */
static tn_status with_schedule(tn_sched *s, tn_graph *graph, const void *user,
                               tn_status (*use)(tn_sched *s, const tn__schedule *schedule, const void *user)) {
    tn__schedule *found = tn__sched_find_schedule(s, graph), *fresh = NULL;
    if (!found) {
        uint64_t begin = tn_time_ns();
        tn__sched_unbind_planned(graph);
        TN_TRY(tn__schedule_new(s, graph, &fresh));
        s->stats.split_ns += tn_time_ns() - begin;
    }
    if (found && s->eval) TN_TRY(tn__schedule_allow_eval(s, found));
    uint64_t begin = tn_time_ns();
    tn_status status = use(s, found ? found : fresh, user);
    s->stats.plan_ns += tn_time_ns() - begin;
    tn__schedule_free(fresh);
    return status;
}

/* The class of a graph is part of the reservation now: so are its scratch and its order. */
static void want_schedule(tn_sched *s, const tn__schedule *schedule) {
    tn__order_reserve(schedule);
    for (size_t b = 0; b < s->core->n_streams; b++)
        s->wanted_scratch[b] = TN__MAX(s->wanted_scratch[b], schedule->scratch[b]);
}

static tn_status cover_schedule(tn_sched *s, const tn__schedule *schedule, const void *user) {
    (void)user;
    if (s->sealed) TN_TRY(check_scratch(s, schedule));
    TN_TRY(tn__alloc_cover(s->alloc, schedule->graph, schedule->type_of));
    want_schedule(s, schedule);
    return TN_OK;
}

tn_status tn_sched_cover(tn_sched *s, tn_graph *graph) {
    if (!s || !graph) return tn_fail(TN_E_INVALID, "tn_sched_cover: NULL argument");
    return with_schedule(s, graph, NULL, cover_schedule);
}

static tn_status adopt_for_schedule(tn_sched *s, const tn__schedule *schedule, const void *plan) {
    TN_TRY(tn__alloc_adopt(s->alloc, schedule->graph, schedule->type_of, plan));
    want_schedule(s, schedule);
    return TN_OK;
}

tn_status tn_sched_adopt(tn_sched *s, tn_graph *graph, const tn_plan *plan) {
    if (!s || !graph || !plan) return tn_fail(TN_E_INVALID, "tn_sched_adopt: NULL argument");
    return with_schedule(s, graph, plan, adopt_for_schedule);
}

typedef struct offset_list {
    const tn_plan_offset *list;
    size_t n;
} offset_list;
static tn_status adopt_offsets_for(tn_sched *s, const tn__schedule *schedule, const void *user) {
    const offset_list *offsets = user;
    TN_TRY(tn__alloc_adopt_offsets(s->alloc, schedule->graph, schedule->type_of, offsets->list, offsets->n));
    want_schedule(s, schedule);
    return TN_OK;
}

tn_status tn_sched_adopt_offsets(tn_sched *s, tn_graph *graph, const tn_plan_offset *offsets, size_t n) {
    if (!s || !graph || (n && !offsets)) return tn_fail(TN_E_INVALID, "tn_sched_adopt_offsets: NULL argument");
    return with_schedule(s, graph, &(offset_list){offsets, n}, adopt_offsets_for);
}

static tn_status cover_served_schedule(tn_sched *s, const tn__schedule *schedule, const void *user) {
    (void)user;
    if (s->sealed) TN_TRY(check_scratch(s, schedule));
    TN_TRY(tn__alloc_cover_served(s->alloc, schedule->graph, schedule->type_of));
    want_schedule(s, schedule);
    return TN_OK;
}

tn_status tn_sched_cover_served(tn_sched *s, tn_graph *graph) {
    if (!s || !graph) return tn_fail(TN_E_INVALID, "tn_sched_cover_served: NULL argument");
    return with_schedule(s, graph, NULL, cover_served_schedule);
}

static tn_status find_plan_of(tn_sched *s, const tn__schedule *schedule, const void *user) {
    const tn_plan **plan = *(const tn_plan **const *)user;
    return tn__alloc_plan(s->alloc, schedule->graph, schedule->type_of, true, plan);
}

tn_status tn_sched_plan(tn_sched *s, tn_graph *graph, const tn_plan **plan, size_t *memory_of) {
    if (!s || !graph || !plan) return tn_fail(TN_E_INVALID, "tn_sched_plan: NULL argument");
    *plan = NULL;
    TN_TRY(with_schedule(s, graph, &plan, find_plan_of));
    for (size_t b = 0; memory_of && b < s->core->n_streams; b++) memory_of[b] = tn__alloc_plan_memory(s->alloc, b);
    return TN_OK;
}

static tn_status save_plan_of(tn_sched *s, const tn__schedule *schedule, const void *path) {
    const tn_plan *plan;
    TN_TRY(tn__alloc_plan(s->alloc, schedule->graph, schedule->type_of, true, &plan));
    return tn_plan_save(plan, schedule->graph, path);
}

tn_status tn_sched_save_plan(tn_sched *s, tn_graph *graph, const char *path) {
    if (!s || !graph || !path) return tn_fail(TN_E_INVALID, "tn_sched_save_plan: NULL argument");
    return with_schedule(s, graph, path, save_plan_of);
}

static tn_status load_plan_of(tn_sched *s, const tn__schedule *schedule, const void *path) {
    size_t n = tn_graph_node_count(schedule->graph) + tn_graph_leaf_count(schedule->graph);
    tn_plan_params params;
    tn__alloc_context context;
    tn_plan *plan = NULL;
    uint16_t *memory_of = tn_malloc((n + 1) * sizeof *memory_of);
    if (!memory_of) return TN_E_NOMEM;
    tn_status status =
        tn__alloc_plan_params(s->alloc, schedule->graph, schedule->type_of, memory_of, &context, &params);
    if (status == TN_OK) status = tn_plan_load(path, schedule->graph, &params, &plan);
    if (status == TN_OK) status = adopt_for_schedule(s, schedule, plan);
    tn_plan_free(plan);
    tn_free(memory_of);
    return status;
}

tn_status tn_sched_load_plan(tn_sched *s, tn_graph *graph, const char *path) {
    if (!s || !graph || !path) return tn_fail(TN_E_INVALID, "tn_sched_load_plan: NULL argument");
    return with_schedule(s, graph, path, load_plan_of);
}

/* Adds scratch to what the allocator needs; `scratch` of the graphs is in `memory` already. */
static void fill_memory(const tn_sched *s, const tn__alloc_need *needs, tn_sched_memory *memory) {
    for (size_t b = 0; b < s->core->n_streams; b++) {
        size_t there = scratch_size(s, b);
        memory[b].compute = needs[b].size;
        memory[b].lower_bound = needs[b].lower_bound;
        memory[b].missing = needs[b].missing + (memory[b].scratch > there ? memory[b].scratch : 0);
        memory[b].scratch = TN__MAX(memory[b].scratch, there);
    }
}

tn_status tn_sched_needs(tn_sched *s, tn_sched_memory *memory) {
    if (!s || !memory) return tn_fail(TN_E_INVALID, "tn_sched_needs: NULL argument");
    const size_t n = s->core->n_streams;
    memset(memory, 0, n * sizeof *memory);
    tn__alloc_need *needs = tn_malloc(n * sizeof *needs);
    size_t *in_order = tn_malloc(n * sizeof *in_order);
    tn_status status = needs && in_order ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = tn__alloc_needs(s->alloc, needs);
    if (status == TN_OK) status = tn__alloc_in_order(s->alloc, in_order);
    for (size_t b = 0; b < n && status == TN_OK; b++) {
        memory[b].scratch = s->wanted_scratch[b];
        memory[b].in_order = in_order[b];
    }
    if (status == TN_OK) fill_memory(s, needs, memory);
    tn_free(needs);
    tn_free(in_order);
    return status;
}

tn_status tn_sched_take(tn_sched *s) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_sched_take: NULL argument");
    uint64_t begin = tn_time_ns();
    TN_TRY(tn_sched_synchronize(s));
    tn_buffer **fresh = tn_calloc(s->core->n_streams, sizeof(tn_buffer *));
    if (!fresh) return TN_E_NOMEM;
    tn_status status = new_scratch(s, s->wanted_scratch, fresh);
    if (status == TN_OK) status = tn__alloc_take(s->alloc);
    if (status == TN_OK) replace_scratch(s, fresh);
    free_scratch(s, fresh);
    s->stats.plan_ns += tn_time_ns() - begin;
    return status;
}

tn_status tn_sched_seal(tn_sched *s) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_sched_seal: NULL argument");
    s->sealed = true;
    tn__alloc_seal(s->alloc);
    return TN_OK;
}

/* ---- Sets of graphs ---- */

tn_status tn_sched_measure(tn_sched *s, tn_graph *const *graphs, size_t n_graphs, tn_sched_memory *memory) {
    if (!s || !graphs || !memory) return tn_fail(TN_E_INVALID, "tn_sched_measure: NULL argument");
    const size_t n = s->core->n_streams;
    memset(memory, 0, n * sizeof *memory);
    tn_graph **scheduled = tn_malloc((n_graphs + 1) * sizeof(tn_graph *));
    const uint16_t **type_of = tn_malloc((n_graphs + 1) * sizeof(uint16_t *));
    tn__alloc_need *needs = tn_malloc(n * sizeof *needs);
    tn_status status = scheduled && type_of && needs ? TN_OK : TN_E_NOMEM;
    for (size_t g = 0; g < n_graphs && status == TN_OK; g++) {
        tn__schedule *schedule;
        status = tn__sched_schedule_for(s, graphs[g], &schedule);
        if (status != TN_OK) break;
        scheduled[g] = schedule->graph;
        type_of[g] = schedule->type_of;
        for (size_t b = 0; b < n; b++) memory[b].scratch = TN__MAX(memory[b].scratch, schedule->scratch[b]);
    }
    if (status == TN_OK) status = tn__alloc_measure(s->alloc, scheduled, type_of, n_graphs, needs);
    if (status == TN_OK) fill_memory(s, needs, memory);
    tn_free(needs);
    tn_free(type_of);
    tn_free(scheduled);
    return status;
}

/* Plans the schedules' memory and takes what is missing, all of it or nothing. Scratch is taken first: it is not in
 * use before it replaces the old scratch. */
static tn_status reserve_schedules(tn_sched *s, tn__schedule *const *schedules, size_t n) {
    uint64_t begin = tn_time_ns();
    tn_status status = TN_OK;
    TN_TRY(tn_sched_synchronize(s));
    tn_graph **graphs = tn_malloc(n * sizeof(tn_graph *));
    const uint16_t **type_of = tn_malloc(n * sizeof(uint16_t *));
    tn_buffer **fresh = tn_calloc(s->core->n_streams, sizeof(tn_buffer *));
    size_t *scratch = tn_calloc(s->core->n_streams, sizeof *scratch);
    if (!graphs || !type_of || !fresh || !scratch) {
        status = TN_E_NOMEM;
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        if (s->sealed) TN_TRY_GOTO(check_scratch(s, schedules[i]), status, out);
        graphs[i] = schedules[i]->graph;
        type_of[i] = schedules[i]->type_of;
        for (size_t b = 0; b < s->core->n_streams; b++) scratch[b] = TN__MAX(scratch[b], schedules[i]->scratch[b]);
    }
    TN_TRY_GOTO(new_scratch(s, scratch, fresh), status, out);
    TN_TRY_GOTO(tn__alloc_reserve(s->alloc, graphs, type_of, n), status, out);
    replace_scratch(s, fresh);
    for (size_t i = 0; i < n; i++) tn__order_reserve(schedules[i]);
    for (size_t b = 0; b < s->core->n_streams; b++) s->wanted_scratch[b] = TN__MAX(s->wanted_scratch[b], scratch[b]);
    s->stats.plan_ns += tn_time_ns() - begin;
out:
    free_scratch(s, fresh);
    tn_free(scratch);
    tn_free(type_of);
    tn_free(graphs);
    return status;
}

tn_status tn_sched_reserve(tn_sched *s, tn_graph *graph) {
    if (!s || !graph) return tn_fail(TN_E_INVALID, "tn_sched_reserve: NULL argument");
    return tn_sched_reserve_many(s, &graph, 1);
}

tn_status tn_sched_reserve_many(tn_sched *s, tn_graph *const *graphs, size_t n_graphs) {
    if (!s || !graphs) return tn_fail(TN_E_INVALID, "tn_sched_reserve_many: NULL argument");
    tn__schedule **schedules = tn_malloc(n_graphs * sizeof(tn__schedule *));
    if (!schedules) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (size_t i = 0; i < n_graphs && status == TN_OK; i++) {
        status = tn__sched_schedule_for(s, graphs[i], &schedules[i]);
        if (status == TN_OK) schedules[i]->keep = true;
    }
    if (status == TN_OK) status = reserve_schedules(s, schedules, n_graphs);
    tn_free(schedules);
    for (size_t i = 0; i < n_graphs && status == TN_OK; i++) status = tn_sched_alloc(s, graphs[i]);
    return status;
}

/* ---- Graphs that run ---- */

tn_status tn__sched_prepare(tn_sched *s, const tn__schedule *schedule) {
    uint64_t begin = tn_time_ns();
    TN_TRY(tn_sched_synchronize(s));
    TN_TRY(check_scratch(s, schedule));
    tn_buffer **fresh = tn_calloc(s->core->n_streams, sizeof(tn_buffer *));
    if (!fresh) return TN_E_NOMEM;
    tn_status status = new_scratch(s, schedule->scratch, fresh);
    if (status == TN_OK) status = tn__alloc_prepare(s->alloc, schedule->graph, schedule->type_of, !s->strict);
    if (status == TN_OK) replace_scratch(s, fresh);
    free_scratch(s, fresh);
    s->stats.plan_ns += tn_time_ns() - begin;
    if (status != TN_E_NEED_RESERVE) return status;
    char text[512] = "";
    strncpy(text, tn_error(), sizeof text - 1);
    return tn_fail(TN_E_STATE, "%s", text);
}

tn_sched_memory tn_sched_memory_of(const tn_sched *s, size_t stream) {
    if (!s || stream >= s->core->n_streams) return (tn_sched_memory){0};
    /* A buffer type that two streams share counts for the first. */
    bool first = true;
    for (size_t b = 0; b < stream; b++) first = first && s->core->types[b] != s->core->types[stream];
    return (tn_sched_memory){
        .compute = first ? tn__alloc_size(s->alloc, stream) : 0,
        .scratch = scratch_size(s, stream),
    };
}
