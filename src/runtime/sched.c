/* The scheduler: creation, remembered schedules, reservation and binding. */
#include "runtime/sched_internal.h"

#include "base/checked.h"
#include "tensor/graph_build.h"

#include <string.h>

/* A session runs tens of graphs; a schedule takes some hundred bytes per node. */
enum { DEFAULT_SCHEDULES = 128, DEFAULT_IN_FLIGHT = 4, MAX_IN_FLIGHT = 64 };
/* A session has about ten classes on two devices: together at most half a second, if none were solved at once. */
enum { DEFAULT_PACK_STEPS = 10000000 };

/* ---- Creation ---- */

static tn_status open_streams(tn__sched_core *c, const tn_sched_params *p) {
    if (p->streams) {
        c->n_streams = p->n_streams;
        memcpy(c->streams, p->streams, p->n_streams * sizeof *c->streams);
        return TN_OK;
    }
    c->owns_streams = true;
    bool has_cpu = false;
    size_t n_names = 0;
    while (n_names < TN__COUNT(p->devices) && p->devices[n_names]) n_names++;
    for (size_t i = 0; i <= n_names; i++) {
        if (i == n_names && has_cpu) break;
        tn_device *device;
        TN_TRY(tn_device_find(i < n_names ? p->devices[i] : "cpu", &device));
        has_cpu = has_cpu || tn_device_get_kind(device) == TN_DEVICE_CPU;
        tn_stream_params params = {
            .n_threads = p->n_threads, .threads = p->threads, .abort = p->abort, .abort_user = p->abort_user};
        TN_TRY(tn_stream_new(device, &params, &c->streams[c->n_streams]));
        c->n_streams++;
    }
    return TN_OK;
}

static void leave_core(tn__sched_core *c) {
    if (!c || --c->n_users) return;
    for (size_t i = 0; i < c->n_streams; i++) {
        tn_buffer_free(c->scratch[i]);
        tn_event_free(c->host_read[i]);
        tn_event_free(c->pushed[i]);
        tn__prefetch_free(&c->prefetch[i]);
        if (c->owns_streams) tn_stream_free(c->streams[i]);
    }
    tn_free(c->streams);
    tn_free(c->types);
    tn_free(c->scratch);
    tn_free(c->host_read);
    tn_free(c->reads_host);
    tn_free(c->pushed);
    tn_free(c->prefetch);
    tn_free(c->async);
    tn_free(c);
}

static tn_status make_core(const tn_sched_params *params, tn__sched_core **out) {
    tn__sched_core *c = tn_calloc(1, sizeof *c);
    if (!c) return TN_E_NOMEM;
    *out = c;
    c->n_users = 1;
    c->abort = params->abort;
    c->abort_user = params->abort_user;
    size_t room = params->streams ? params->n_streams : TN__COUNT(params->devices) + 1;
    c->streams = tn_calloc(room, sizeof *c->streams);
    c->types = tn_calloc(room, sizeof *c->types);
    c->scratch = tn_calloc(room, sizeof *c->scratch);
    c->host_read = tn_calloc(room, sizeof *c->host_read);
    c->reads_host = tn_calloc(room, sizeof *c->reads_host);
    c->pushed = tn_calloc(room, sizeof *c->pushed);
    c->async = tn_calloc(room, sizeof *c->async);
    c->prefetch = tn_calloc(room, sizeof *c->prefetch);
    if (!c->streams || !c->types || !c->scratch || !c->host_read || !c->reads_host || !c->pushed || !c->async ||
        !c->prefetch)
        return TN_E_NOMEM;
    TN_TRY(open_streams(c, params));
    tn_buffer_type *pinned = NULL; /* host memory that a device copies from directly */
    for (size_t i = 0; i < c->n_streams; i++) {
        tn_device *device = tn_stream_device(c->streams[i]);
        c->types[i] = tn_device_buffer_type(device);
        if (!pinned) pinned = tn_device_host_buffer_type(device);
        if (pinned && tn_device_get_kind(device) == TN_DEVICE_CPU) c->types[i] = pinned;
    }
    tn_device *last = tn_stream_device(c->streams[c->n_streams - 1]);
    if (tn_device_get_kind(last) != TN_DEVICE_CPU)
        return tn_fail(TN_E_INVALID, "the last device must be the CPU, not %s", tn_device_name(last));
    for (size_t i = 0; i < c->n_streams; i++) {
        tn_device *device = tn_stream_device(c->streams[i]);
        tn_device_caps caps = tn_device_get_caps(device);
        c->async[i] = caps.async && caps.events;
        if (!caps.events) continue;
        TN_TRY(tn_event_new(device, &c->host_read[i]));
    }
    return TN_OK;
}

static tn_status check_sched_params(const tn_sched_params *p) {
    if (p->share && (p->streams || p->devices[0] || p->n_threads || p->threads || p->abort))
        return tn_fail(TN_E_INVALID,
                       "a scheduler that shares another's devices takes their parameters from it: give only `share`");
    if (p->share && p->share->exclusive)
        return tn_fail(TN_E_INVALID, "the scheduler is exclusive; make one with tn_sched_new and share that");
    if (p->streams && (p->n_streams == 0 || p->n_streams > INT16_MAX))
        return tn_fail(TN_E_INVALID, "a scheduler needs 1 to %d streams", INT16_MAX);
    return TN_OK;
}

void tn_sched_set_effort(tn_sched *s, const tn_pack_params *pack) {
    const tn_pack_params fallback = {.effort = TN_PACK_BALANCED, .max_steps = DEFAULT_PACK_STEPS};
    tn_pack_params chosen = pack ? *pack : fallback;
    if (!chosen.cancel) {
        chosen.cancel = s->core->abort;
        chosen.user = s->core->abort_user;
    }
    tn__alloc_set_effort(s->alloc, &chosen);
}

tn_status tn_sched_new(const tn_sched_params *params, tn_sched **out) {
    if (!params || !out) return tn_fail(TN_E_INVALID, "tn_sched_new: NULL argument");
    *out = NULL;
    TN_TRY(check_sched_params(params));
    tn_sched *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    tn_status status = TN_OK;
    s->exclusive = params->exclusive;
    s->strict = params->strict;
    s->reorder = params->reorder;
    s->max_schedules = params->max_schedules ? params->max_schedules : DEFAULT_SCHEDULES;
    if (params->share) {
        s->core = params->share->core;
        s->core->n_users++;
        TN_TRY_GOTO(tn__alloc_share(params->share->alloc, &s->alloc), status, failed);
    } else {
        TN_TRY_GOTO(make_core(params, &s->core), status, failed);
        TN_TRY_GOTO(tn__alloc_new(s->core->types, s->core->n_streams, &s->alloc), status, failed);
    }
    tn_sched_set_effort(s, params->pack);
    s->wanted_scratch = tn_calloc(s->core->n_streams, sizeof *s->wanted_scratch);
    if (!s->wanted_scratch) {
        status = TN_E_NOMEM;
        goto failed;
    }
    bool pipeline = params->pipeline || params->n_in_flight;
    TN_TRY_GOTO(tn_sched_set_in_flight(s, pipeline ? params->n_in_flight : 1), status, failed);
    *out = s;
    return TN_OK;
failed:
    tn_sched_free(s);
    return status;
}

static void forget_schedules(tn_sched *s) {
    for (size_t i = 0; i < s->n_schedules; i++) {
        if (s->core->last_run == s->schedules[i]) s->core->last_run = NULL;
        tn__schedule_free(s->schedules[i]);
    }
    s->n_schedules = 0;
}

void tn_sched_free(tn_sched *s) {
    if (!s) return;
    tn__sched_core *c = s->core;
    if (c) tn__sched_take_turn(s);
    for (size_t i = 0; c && i < c->n_streams; i++) tn_stream_synchronize(c->streams[i]);
    forget_schedules(s);
    tn__orders_forget(s, true);
    tn__alloc_free(s->alloc);
    tn_free(s->schedules);
    tn_free(s->wanted_scratch);
    tn__pins_free(&s->pins);
    if (c && c->last_user == s) c->last_user = NULL;
    tn_free(s);
    leave_core(c);
}

void tn_sched_reset(tn_sched *s) {
    if (!s) return;
    tn__sched_take_turn(s);
    for (size_t i = 0; i < s->core->n_streams; i++) tn_stream_synchronize(s->core->streams[i]);
    s->deferred = TN_OK;
    forget_schedules(s);
    tn__orders_forget(s, !s->sealed);
    tn__alloc_forget(s->alloc);
    if (!s->sealed) memset(s->wanted_scratch, 0, s->core->n_streams * sizeof *s->wanted_scratch);
    tn__pins_clear(&s->pins);
}

size_t tn_sched_stream_count(const tn_sched *s) { return s->core->n_streams; }
tn_stream *tn_sched_stream(const tn_sched *s, size_t i) {
    return i < s->core->n_streams ? s->core->streams[i] : NULL;
}
void tn_sched_set_eval(tn_sched *s, tn_eval_fn eval, void *user) {
    s->eval = eval;
    s->eval_user = user;
}

tn_status tn_sched_set_in_flight(tn_sched *s, int n) {
    if (!s || n < 0 || n > MAX_IN_FLIGHT)
        return tn_fail(TN_E_INVALID, "%d runs in flight; 0 to %d are possible", n, MAX_IN_FLIGHT);
    s->n_in_flight = n ? (size_t)n : DEFAULT_IN_FLIGHT;
    for (size_t i = 0; s->n_in_flight > 1 && i < s->core->n_streams; i++)
        if (s->core->async[i] && !s->core->pushed[i])
            TN_TRY(tn_event_new(tn_stream_device(s->core->streams[i]), &s->core->pushed[i]));
    return TN_OK;
}

tn_status tn_sched_pin(tn_sched *s, const tn_tensor *tensor, int stream) {
    if (!s || !tensor || stream < -1 || stream >= (int)s->core->n_streams)
        return tn_fail(TN_E_INVALID, "tn_sched_pin: NULL argument or no stream %d", stream);
    for (size_t i = 0; i < s->n_schedules; i++)
        s->schedules[i]->bound_serial = 0; /* the graph may need another schedule now */
    return tn__pins_set(&s->pins, tensor, stream);
}

/* ---- Schedules ---- */

/* The memory of leaves and the pins: with the fingerprint this identifies a schedule. A leaf whose memory is declared
 * hashes as it will once it has that memory. */
static uint64_t hash_placement(const tn_sched *s, const tn_graph *g) {
    uint64_t h = tn__pins_hash(&s->pins, g);
    for (size_t i = 0; i < tn_graph_leaf_count(g); i++) {
        tn_location location = {0};
        bool external = tn__sched_location(s, tn_graph_leaf(g, i), &location);
        h = tn__hash_combine(h, (uintptr_t)location.type);
        if (external) h = tn__hash_combine(h, (uint64_t)location.usage);
    }
    return h;
}

/* Whether the tensors whose memory belongs to the caller are still where they were when the graph was bound. */
static bool same_own_memory(const tn__schedule *schedule, const tn_graph *graph) {
    for (size_t k = 0; k < schedule->n_own; k++) {
        const tn__own *was = &schedule->own[k];
        const tn_tensor *is = was->tensor;
        if (is->data != was->data || is->buffer != was->buffer || is->extra != was->extra) return false;
    }
    for (size_t k = 0; k < schedule->n_outer; k++)
        if (tn__is_external(tn__graph_tensor(graph, schedule->outer[k]))) return false;
    return true;
}

tn__schedule *tn__sched_find_schedule(const tn_sched *s, tn_graph *graph) {
    if (!s->n_schedules) return NULL; /* the fingerprint would be for nothing */
    uint64_t serial = tn__graph_serial(graph);
    for (size_t i = 0; i < s->n_schedules; i++) {
        if (s->schedules[i]->bound_serial != serial) continue;
        if (same_own_memory(s->schedules[i], graph)) return s->schedules[i];
        s->schedules[i]->bound_serial = 0; /* a tensor moved: the graph may need another schedule now */
    }
    tn_fingerprint key = tn_graph_fingerprint(graph);
    uint64_t placement = 0;
    for (size_t i = 0; i < s->n_schedules; i++) {
        tn__schedule *c = s->schedules[i];
        if (c->key.lo != key.lo || c->key.hi != key.hi) continue;
        if (!placement) placement = hash_placement(s, graph);
        if (c->placement == placement) return c;
    }
    return NULL;
}

/* Devices are asked about the caller's tensors and look at their memory: memory that an earlier run bound must not
 * count. */
void tn__sched_unbind_planned(const tn_graph *g) {
    size_t n = tn_graph_node_count(g) + tn_graph_leaf_count(g);
    for (int roots = 0; roots < 2; roots++) {
        for (size_t i = 0; i < n; i++) {
            tn_tensor *t = tn__graph_tensor(g, i);
            if ((t->view_src == NULL) != roots) continue;
            if (!((roots ? t : t->view_src)->flags & TN_FLAG_PLANNED)) continue;
            t->data = NULL;
            t->buffer = NULL;
            t->extra = NULL;
            t->flags &= ~(uint32_t)TN_FLAG_PLANNED;
        }
    }
}

/* Makes room for one more schedule: evicts the least recently used one, with its plan. Reserved ones stay. */
static tn_status evict_schedule(tn_sched *s) {
    size_t oldest = s->n_schedules, evictable = 0;
    for (size_t i = 0; i < s->n_schedules; i++) {
        /* Made again, a graph would get the present number of runs in flight: a structure that may not be covered. */
        if (s->schedules[i]->keep || (s->sealed && s->schedules[i]->pipelined)) continue;
        evictable++;
        if (oldest == s->n_schedules || s->schedules[i]->last_used < s->schedules[oldest]->last_used) oldest = i;
    }
    if (evictable < s->max_schedules) return TN_OK;
    TN_TRY(tn_sched_synchronize(s));
    tn__schedule *gone = s->schedules[oldest];
    if (s->core->last_run == gone) s->core->last_run = NULL;
    tn__schedule_free(gone);
    s->schedules[oldest] = s->schedules[--s->n_schedules];
    s->stats.schedules_forgotten++;
    return TN_OK;
}

tn_status tn__sched_schedule_for(tn_sched *s, tn_graph *graph, tn__schedule **out) {
    uint64_t begin = tn_time_ns();
    tn__schedule *found = tn__sched_find_schedule(s, graph);
    if (found) {
        if (s->eval) TN_TRY(tn__schedule_allow_eval(s, found));
        s->stats.schedules_reused++;
        found->last_used = ++s->clock;
        *out = found;
        s->stats.split_ns += tn_time_ns() - begin;
        return TN_OK;
    }
    TN_TRY(evict_schedule(s));
    if (s->n_schedules == s->cap_schedules) {
        size_t capacity = s->cap_schedules ? 2 * s->cap_schedules : 8;
        tn__schedule **grown = tn_realloc(s->schedules, capacity * sizeof(tn__schedule *));
        if (!grown) return TN_E_NOMEM;
        s->schedules = grown;
        s->cap_schedules = capacity;
    }
    tn__schedule *fresh;
    tn__sched_unbind_planned(graph);
    TN_TRY(tn__schedule_new(s, graph, &fresh));
    fresh->key = tn_graph_fingerprint(graph);
    fresh->placement = hash_placement(s, graph);
    fresh->last_used = ++s->clock;
    s->schedules[s->n_schedules++] = fresh;
    s->stats.schedules_made++;
    *out = fresh;
    s->stats.split_ns += tn_time_ns() - begin;
    return TN_OK;
}

/* ---- Binding ---- */

/* Whether the caller's tensors still carry this schedule's addresses: another graph that shares some of them may have
 * been bound since. */
static bool is_bound(const tn_sched *s, const tn_graph *graph, const tn__schedule *schedule) {
    if (schedule->bound_serial != tn__graph_serial(graph) ||
        schedule->bound_generation != tn__alloc_generation(s->alloc))
        return false;
    for (size_t k = 0; k < schedule->n_outer; k++) {
        uint32_t i = schedule->outer[k];
        if (tn__graph_tensor(graph, i)->data != schedule->clones[i]->data) return false;
    }
    return true;
}

/* Gives the clones the addresses of the caller's own tensors, and the caller's tensors the planned addresses. */
static tn_status bind_schedule(tn_sched *s, tn_graph *graph, tn__schedule *schedule) {
    bool moved = schedule->bound_generation != tn__alloc_generation(s->alloc);
    size_t n = schedule->n_nodes + schedule->n_leaves;
    for (size_t i = 0; i < n && !moved; i++) {
        const tn_tensor *t = tn__graph_tensor(graph, i);
        const tn_tensor *c = schedule->clones[i];
        moved = tn__is_external(t) && !t->view_src && (c->data != t->data || c->buffer != t->buffer);
    }
    for (size_t i = 0; i < n; i++)
        if (schedule->clones[i]->location && !tn__is_external(tn__graph_tensor(graph, i)))
            return tn_fail(TN_E_STATE, "'%s' has no memory yet: it was declared to get some in %s",
                           tn__graph_tensor(graph, i)->name,
                           tn_buffer_type_name(schedule->clones[i]->location->type));
    if (moved) TN_TRY(tn_sched_synchronize(s)); /* runs in flight read the addresses */
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t = tn__graph_tensor(graph, i);
        tn_tensor *c = schedule->clones[i];
        if (t->op == TN_OP_CUSTOM) c->params = t->params;
        if (!tn__is_external(t) || t->view_src) continue;
        c->data = t->data;
        c->buffer = t->buffer;
        c->extra = t->extra;
        c->location = NULL;
    }
    if (moved) {
        TN_TRY(tn__alloc_bind(s->alloc, schedule->graph, schedule->type_of, !s->strict));
        for (size_t i = 0; i < schedule->n_twins; i++) {
            tn__twin *twin = &schedule->twins[i];
            twin->tensor->data = twin->of->data;
            twin->tensor->buffer = twin->of->buffer;
            twin->tensor->extra = twin->of->extra;
        }
        for (size_t i = 0; i < schedule->n_programs; i++)
            if (schedule->programs[i]) tn_program_moved(schedule->programs[i]);
    }
    for (size_t i = 0; i < n; i++) {
        tn_tensor *t = tn__graph_tensor(graph, i);
        const tn_tensor *c = schedule->clones[i];
        if (tn__is_external(t) && !t->view_src) continue;
        t->data = c->data;
        t->buffer = c->buffer;
        t->extra = c->extra;
        t->flags = (t->flags & ~(uint32_t)TN_FLAG_PLANNED) | (c->flags & TN_FLAG_PLANNED);
    }
    for (size_t k = 0; k < schedule->n_own; k++) {
        tn__own *own = &schedule->own[k];
        own->tensor = tn__graph_tensor(graph, own->index);
        own->data = own->tensor->data;
        own->buffer = own->tensor->buffer;
        own->extra = own->tensor->extra;
    }
    schedule->bound_serial = tn__graph_serial(graph);
    schedule->bound_generation = tn__alloc_generation(s->alloc);
    return TN_OK;
}

tn_status tn__sched_ready(tn_sched *s, tn_graph *graph, tn__schedule **out) {
    tn__schedule *schedule;
    TN_TRY(tn__sched_schedule_for(s, graph, &schedule));
    *out = schedule;
    tn__sched_take_turn(s);
    uint64_t begin = tn_time_ns();
    bool bound = is_bound(s, graph, schedule);
    uint64_t looked = tn_time_ns();
    s->stats.bind_ns += looked - begin;
    if (bound) return TN_OK;
    if (schedule->bound_generation != tn__alloc_generation(s->alloc)) TN_TRY(tn__sched_prepare(s, schedule));
    uint64_t planned = tn_time_ns();
    tn_status status = bind_schedule(s, graph, schedule);
    s->stats.bind_ns += tn_time_ns() - planned;
    return status;
}

tn_status tn_sched_alloc(tn_sched *s, tn_graph *graph) {
    if (!s || !graph) return tn_fail(TN_E_INVALID, "tn_sched_alloc: NULL argument");
    tn__schedule *schedule;
    return tn__sched_ready(s, graph, &schedule);
}

/* ---- Reports ---- */

int tn_sched_stream_of(const tn_sched *s, const tn_graph *graph, const tn_tensor *tensor) {
    uint32_t index = tn_graph_index(graph, tensor);
    if (!s || index == TN_GRAPH_NONE) return -1;
    const tn__schedule *schedule = tn__sched_find_schedule(s, (tn_graph *)(uintptr_t)graph);
    return schedule ? schedule->assigned[index].stream : -1;
}

tn_status tn_sched_describe(tn_sched *s, tn_graph *graph, tn_sched_info *info) {
    if (!s || !graph || !info) return tn_fail(TN_E_INVALID, "tn_sched_describe: NULL argument");
    tn__schedule *schedule;
    TN_TRY(tn__sched_schedule_for(s, graph, &schedule));
    *info = (tn_sched_info){.nodes = schedule->n_nodes,
                            .splits = schedule->n_splits,
                            .copies = schedule->n_copies,
                            .copy_bytes = schedule->copy_bytes,
                            .in_flight = 1};
    for (size_t i = 0; i < schedule->n_splits; i++)
        info->in_flight = TN__MAX(info->in_flight, schedule->splits[i].n_in_flight);
    return TN_OK;
}

tn_sched_stats tn_sched_get_stats(const tn_sched *s) {
    tn_sched_stats stats = s->stats;
    tn__alloc_stats alloc = tn__alloc_get_stats(s->alloc);
    stats.plans_made = alloc.plans_made;
    stats.plans_adopted = alloc.plans_adopted;
    stats.plans_reused = alloc.plans_reused;
    stats.buffers_grown = alloc.buffers_grown;
    return stats;
}

tn_status tn_sched_dump(tn_sched *s, tn_graph *graph, FILE *out) {
    if (!s || !graph || !out) return tn_fail(TN_E_INVALID, "tn_sched_dump: NULL argument");
    tn__schedule *schedule;
    TN_TRY(tn__sched_schedule_for(s, graph, &schedule));
    char shape[128];
    size_t at = 0;
    fprintf(out, "%zu nodes in %zu splits, %zu copies of %zu bytes\n", schedule->n_nodes, schedule->n_splits,
            schedule->n_copies, schedule->copy_bytes);
    for (size_t i = 0; i < schedule->n_splits; i++) {
        const tn__split *split = &schedule->splits[i];
        fprintf(out, "split %zu on %s: %zu nodes\n", i,
                tn_device_name(tn_stream_device(s->core->streams[split->stream])), split->n_nodes);
        for (size_t c = 0; c < split->n_copies + split->n_prefetches; c++) {
            const tn__copy *copy = &schedule->copies[split->first_copy + c];
            fprintf(out, "  copy %-24s %-24s %12zu bytes from %s%s", copy->source->name,
                    tn_shape_text(copy->target, shape, sizeof shape), tn_nbytes(copy->target),
                    tn_device_name(tn_stream_device(s->core->streams[copy->from])),
                    copy->ids ? ", at most: only the experts in use" : "");
            if (c >= split->n_copies) fprintf(out, ", for the next split while this one computes");
            if (split->n_in_flight > 1 && !copy->ids) fprintf(out, ", one of %zu in flight", split->n_in_flight);
            fprintf(out, "\n");
        }
        for (size_t k = 0; k < split->n_nodes; k++) {
            const tn_tensor *c = schedule->work[split->first_node + k];
            while (schedule->clones[at] != c) at = (at + 1) % schedule->n_nodes; /* mostly the next */
            tn__cause cause = (tn__cause)schedule->assigned[at].cause;
            fprintf(out, "  %-16s %-24s %-24s %s\n", tn_op_name(c->op), c->name,
                    tn_shape_text(c, shape, sizeof shape), tn__cause_text(cause));
        }
    }
    return ferror(out) ? tn_fail(TN_E_IO, "writing the splits failed") : TN_OK;
}
