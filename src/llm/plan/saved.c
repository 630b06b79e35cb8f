/* Saving session plans, loading and verifying them. */
#include "llm/plan/saved.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/memory/cache_types.h"
#include "llm/plan/cover.h"
#include "tenon/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys ---- */

static uint64_t hash_string(uint64_t h, const char *text) {
    return text ? tn__hash_bytes(text, strlen(text), h) : tn__hash_combine(h, 1);
}

static uint64_t hash_numbers(uint64_t h, const tn_gguf_arr *list) {
    static const size_t sizes[] = {
#define TN_X(name, id, text, bytes) [id] = bytes,
        TN_GGUF_TYPE_TABLE(TN_X)
#undef TN_X
    };
    h = tn__hash_combine(tn__hash_combine(h, (uint64_t)list->type), list->count);
    if (list->type == TN_GGUF_STR || list->type == TN_GGUF_ARR || !list->count) return h;
    return tn__hash_bytes(list->data, (size_t)list->count * sizes[list->type], h);
}

/* Metadata without the contents of lists of strings: plans do not depend on the vocabulary's texts. */
static uint64_t hash_metadata(const tn_gguf *file) {
    uint64_t h = tn_gguf_has_data(file);
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
        const tn_gguf_value *v = &kv->value;
        int64_t integer = 0;
        double number = 0;
        h = tn__hash_bytes(kv->key.data, (size_t)kv->key.size, h);
        h = tn__hash_combine(h, (uint64_t)v->type);
        if (v->type == TN_GGUF_STR) h = tn__hash_bytes(v->str.data, (size_t)v->str.size, h);
        if (v->type == TN_GGUF_BOOL) h = tn__hash_combine(h, v->b);
        if (v->type == TN_GGUF_ARR) h = hash_numbers(h, &v->arr);
        if (tn_gguf_value_i64(v, &integer)) h = tn__hash_combine(h, (uint64_t)integer);
        if (tn_gguf_value_f64(v, &number)) h = tn__hash_bytes(&number, sizeof number, h);
    }
    return h;
}

static uint64_t hash_model(const tn_model *m) {
    uint64_t h = tn__hash_combine(hash_metadata(m->file), m->params.no_mmap);
    for (size_t i = 0; i < m->n_all; i++) {
        const tn_gguf_tensor *t = m->all[i].info;
        h = hash_string(h, t->name);
        h = tn__hash_bytes(t->ne, sizeof t->ne, h);
        h = tn__hash_combine(tn__hash_combine(h, (uint64_t)t->type), t->size);
    }
    return h;
}

static uint64_t hash_plan_params(const tn_session_params *p) {
    const int threads = p->threads ? tn_threadpool_size(p->threads) : p->n_threads ? p->n_threads : tn_cpu_count();
    const int decode_threads = p->threads ? tn_threadpool_decode_size(p->threads) : threads;
    const int64_t numbers[] = {decode_threads == threads ? 0 : decode_threads,
                               p->n_ctx,
                               p->n_batch,
                               p->n_ubatch,
                               p->n_seqs,
                               p->page,
                               p->n_prefixes,
                               p->n_checkpoints,
                               p->n_guess,
                               p->n_branches,
                               p->states,
                               p->n_state_layers,
                               p->checkpoint_every,
                               (int64_t)p->cache_ram,
                               p->cache_disk ? (int64_t)p->cache_disk_bytes : 0,
                               p->cache_disk ? (int64_t)strlen(p->cache_disk) : 0,
                               p->n_outputs,
                               p->n_candidates,
                               tn__cache_key(p),
                               p->n_pipeline,
                               p->n_gpu_layers,
                               p->no_repack,
                               p->repeatable,
                               p->ffn_chunk,
                               p->embeddings,
                               p->pooling,
                               threads,
                               (int64_t)p->n_overrides,
                               p->pack != NULL,
                               p->pack ? (int64_t)p->pack->effort : 0,
                               p->pack ? (int64_t)p->pack->max_steps : 0};
    const float reals[] = {p->rope_base, p->rope_scale};
    uint64_t h = tn__hash_bytes(numbers, sizeof numbers, 0);
    h = tn__hash_bytes(reals, sizeof reals, h);
    h = tn__hash_combine(h, tn__adapters_params_hash(p));
    h = tn__hash_bytes(p->split, sizeof p->split, h);
    h = tn__hash_bytes(p->state_layers, (size_t)p->n_state_layers * sizeof *p->state_layers, h);
    for (size_t i = 0; i < p->n_overrides; i++)
        h = hash_string(hash_string(h, p->overrides[i].pattern), p->overrides[i].device);
    return h;
}

static uint64_t hash_devices(const tn_session_plan *p) {
    uint64_t h = 0;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        tn_device *device = tn__plan_device(p, d);
        size_t free_bytes = 0, total = 0;
        (void)tn_device_memory(device, &free_bytes, &total);
        h = hash_string(hash_string(h, tn_device_name(device)), tn_device_description(device));
        h = tn__hash_combine(h, total);
        h = tn__hash_combine(h, tn_buffer_type_max_size(p->placement.types[d]));
        h = tn__hash_combine(h, tn_buffer_type_alignment(p->placement.types[d]));
    }
    return hash_string(h, tn_cpu_level());
}

tn__plan_keys tn__plan_keys_of(const tn_session_plan *p) {
    return (tn__plan_keys){.version = hash_string(0, tn_version()),
                           .model = hash_model(p->model),
                           .params = hash_plan_params(&p->params),
                           .devices = hash_devices(p)};
}

static tn_status check_keys(const tn_session_plan *p, const char *path) {
    const tn__plan_keys now = tn__plan_keys_of(p), then = p->saved->keys;
    const char *changed = then.version != now.version   ? "by another version of the library"
                          : then.model != now.model     ? "for another model"
                          : then.params != now.params   ? "for other parameters"
                          : then.devices != now.devices ? "for other devices"
                                                        : NULL;
    return changed ? tn_fail(TN_E_STATE, "%s was made %s: plan again", path, changed) : TN_OK;
}

/* ---- Graphs ---- */

/* Calls `use` with the plan of every covered graph. */
typedef tn_status (*plan_fn)(void *user, size_t number, tn_graph *graph, const tn_plan *plan);
static tn_status for_covered(tn_session_plan *p, plan_fn use, void *user) {
    for (size_t i = 0; i < p->n_covered; i++) {
        tn__graph_set *set;
        const tn_plan *plan = NULL;
        const bool in_flight = tn__shape_in_flight(p, p->covered[i]);
        TN_TRY(tn__graph_new(p, p->covered[i], &set));
        tn_status status = in_flight ? tn_sched_set_in_flight(p->sched, p->params.n_pipeline) : TN_OK;
        if (status == TN_OK && set) status = tn_sched_plan(p->sched, set->graph, &plan, NULL);
        if (in_flight) (void)tn_sched_set_in_flight(p->sched, 1);
        if (status == TN_OK) status = use(user, i, set ? set->graph : NULL, plan);
        tn__graph_free(p, set);
        TN_TRY(status);
    }
    return TN_OK;
}

typedef struct save_state {
    tn__saved_plan *saved;
    const tn_session_plan *plan;
    const tn_plan **plans; /* of the graphs so far */
} save_state;

static tn_status save_graph(void *user, size_t number, tn_graph *graph, const tn_plan *plan) {
    save_state *s = user;
    tn__saved_graph *g = &s->saved->graphs[number];
    g->shape = s->plan->covered[number];
    if (graph) g->print = tn_graph_fingerprint(graph);
    s->plans[number] = plan;
    g->same_as = number;
    for (size_t i = 0; i < number && g->same_as == number; i++)
        if (plan && s->plans[i] == plan) g->same_as = i;
    if (!plan || g->same_as != number) return TN_OK;
    g->n_entries = tn_plan_tensor_count(plan);
    g->entries = tn_calloc((size_t)g->n_entries + 1, sizeof *g->entries);
    if (!g->entries) {
        g->n_entries = 0;
        return TN_E_NOMEM;
    }
    const tn_plan_entry *entries = tn_plan_entries(plan);
    for (size_t i = 0; i < g->n_entries; i++)
        g->entries[i] = (tn_plan_offset){entries[i].memory, entries[i].chunk, entries[i].offset, entries[i].size};
    return TN_OK;
}

size_t tn__saved_free_of(const tn_session_plan *p, size_t device) {
    const tn_device_budget *budget = &p->placement.budgets[device];
    return TN__MIN(budget->free, p->placement.budgets[budget->domain].domain_free);
}

static tn__saved_device saved_device(const tn_session_plan *p, size_t device) {
    const tn__device_plan *d = &p->devices[device];
    return (tn__saved_device){d->weights, d->mapped,  d->cache, d->compute,
                              d->scratch, d->staging, d->own,   tn__saved_free_of(p, device)};
}

static tn_status check_can_be_saved(const tn_session_plan *p) {
    if (p->ended || p->used) return tn_fail(TN_E_STATE, "a plan is saved before its session is made");
    if (p->params.sched) return tn_fail(TN_E_UNSUPPORTED, "plans of sessions that share a scheduler are not saved");
    if (p->model->loaded) return tn_fail(TN_E_UNSUPPORTED, "plans of a model that is loaded are not saved");
    return TN_OK;
}

tn_status tn__saved_from(tn_session_plan *p, tn__saved_plan *saved) {
    *saved = (tn__saved_plan){0};
    TN_TRY(check_can_be_saved(p));
    const size_t n_layers = (size_t)p->model->h.n_layer + 2, n_devices = p->placement.n_devices;
    *saved = (tn__saved_plan){.keys = tn__plan_keys_of(p),
                              .n_ctx = p->params.n_ctx,
                              .ends_together = p->placement.ends_together,
                              .repack = p->placement.repack,
                              .sequential = p->sequential,
                              .device_of_layer = tn_calloc(n_layers, sizeof *saved->device_of_layer),
                              .devices = tn_calloc(n_devices, sizeof *saved->devices),
                              .graphs = tn_calloc(p->n_covered + 1, sizeof *saved->graphs),
                              .n_layers = n_layers,
                              .n_devices = n_devices};
    save_state state = {saved, p, tn_calloc(p->n_covered + 1, sizeof(tn_plan *))};
    tn_status status = TN_E_NOMEM;
    if (saved->device_of_layer && saved->devices && saved->graphs && state.plans) {
        saved->n_graphs = p->n_covered;
        for (size_t i = 0; i < n_layers; i++) saved->device_of_layer[i] = p->placement.device_of_layer[i];
        for (size_t d = 0; d < n_devices; d++) saved->devices[d] = saved_device(p, d);
        status = for_covered(p, save_graph, &state);
    }
    tn_free(state.plans);
    if (status != TN_OK) tn__saved_free(saved);
    return status;
}

tn_status tn_session_plan_save(tn_session_plan *p, const char *path) {
    if (!p || !path) return tn_fail(TN_E_INVALID, "tn_session_plan_save: NULL argument");
    tn__saved_plan saved;
    TN_TRY(tn__saved_from(p, &saved));
    tn_status status = tn__saved_write(&saved, path);
    tn__saved_free(&saved);
    return status;
}

/* ---- Adopting ---- */

tn_status tn__saved_cover(tn_session_plan *p, tn__shape shape, tn_graph *graph) {
    const tn__saved_plan *s = p->saved;
    const size_t number = p->n_covered;
    const tn_fingerprint print = tn_graph_fingerprint(graph);
    const tn__saved_graph *g = number < s->n_graphs ? &s->graphs[number] : NULL;
    if (!g || memcmp(&g->shape, &shape, sizeof shape) != 0 || g->print.lo != print.lo || g->print.hi != print.hi)
        return tn_fail(
            TN_E_STATE,
            "graph %zu of the saved plan differs from the one that this library builds for %d tokens: plan again",
            number, shape.n_tokens);
    tn_status status = g->same_as == number
                           ? tn_sched_adopt_offsets(p->sched, graph, g->entries, (size_t)g->n_entries)
                           : tn_sched_cover_served(p->sched, graph);
    return status == TN_E_STATE ? tn_fail_more(status, " (graph %zu, %d tokens): plan again", number, shape.n_tokens)
                                : status;
}

/* All figures are computed from the graphs and their offsets and must match those of the file: then nothing was lost
 * or added. A class that no graph needs any more, because a larger one fits its graphs, is not saved, so compute may
 * be less. */
static tn_status check_figures(const tn_session_plan *p) {
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        tn__saved_device now = saved_device(p, d), then = p->saved->devices[d];
        if (now.compute < then.compute) now.compute = then.compute;
        now.free = then.free;
        if (memcmp(&now, &then, sizeof now) != 0)
            return tn_fail(TN_E_STATE, "the bytes of %s differ from those of the saved plan: plan again",
                           tn_device_name(tn__plan_device(p, d)));
    }
    return p->n_covered == p->saved->n_graphs
               ? TN_OK
               : tn_fail(TN_E_STATE, "the saved plan has graphs that the session does not run: plan again");
}

tn_status tn__saved_adopt_into(tn_session_plan *p) {
    const tn__saved_plan *s = p->saved;
    tn__session_placement *placement = &p->placement;
    if (p->params.sched) return tn_fail(TN_E_UNSUPPORTED, "saved plans cannot be used with a shared scheduler");
    if (p->model->loaded)
        return tn_fail(TN_E_UNSUPPORTED, "saved plans cannot be used for a model that is already loaded");
    TN_TRY(check_keys(p, "the saved plan"));
    if (s->n_layers != (uint64_t)p->model->h.n_layer + 2 || s->n_devices != placement->n_devices)
        return tn_fail(TN_E_STATE, "the saved plan has a different number of layers or devices: plan again");
    placement->ends_together = s->ends_together;
    placement->repack = s->repack;
    p->sequential = s->sequential;
    for (uint64_t i = 0; i < s->n_layers; i++) {
        if ((size_t)s->device_of_layer[i] >= placement->n_devices)
            return tn_fail(TN_E_FORMAT, "the saved plan puts layer %d on a device that does not exist", (int)i - 1);
        placement->device_of_layer[i] = s->device_of_layer[i];
        if (i) placement->chosen[i - 1] = (tn_placement){s->device_of_layer[i], TN_PLACEMENT_PINNED};
    }
    TN_TRY(tn__session_plan_make(p));
    TN_TRY(check_figures(p));
    p->adopted = true;
    TN_TRY(tn__session_plan_check_fit(p));
    return p->fits ? tn__session_plan_check_largest(p) : TN_OK;
}

tn_status tn__saved_adopt(tn_model *model, const tn_session_params *params, const tn__saved_plan *saved,
                          tn_session_plan **plan) {
    tn_session_params p = params ? *params : tn_session_params_default();
    if (p.n_ctx == 0) p.n_ctx = saved->n_ctx;
    return tn__session_plan_with(model, &p, &(tn__plan_source){.saved = saved}, tn__saved_adopt_into, plan);
}

tn_status tn_session_plan_load(tn_model *model, const tn_session_params *params, const char *path,
                               tn_session_plan **plan) {
    if (!model || !path || !plan) return tn_fail(TN_E_INVALID, "tn_session_plan_load: NULL argument");
    *plan = NULL;
    tn__saved_plan saved;
    TN_TRY(tn__saved_read(path, &saved));
    tn_status status = tn__saved_adopt(model, params, &saved, plan);
    tn__saved_free(&saved);
    return status;
}

/* ---- Verifying ---- */

typedef struct verify_state {
    const tn__saved_plan *saved;
    size_t graphs, tensors, pairs;
} verify_state;

/* Tensors by the node that first writes them. */
typedef struct lifetime {
    uint32_t first, last, index;
} lifetime;
static int compare_lifetimes(const void *a, const void *b) {
    const lifetime *x = a, *y = b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->index > y->index) - (x->index < y->index);
}

static bool entries_overlap(const tn_plan_offset *a, const tn_plan_offset *b) {
    return a->memory == b->memory && a->chunk == b->chunk && a->offset < b->offset + b->size &&
           b->offset < a->offset + a->size;
}

/* Whether one of the tensors is computed in place of the other. */
static bool takes_over(const tn_plan_entry *entries, uint32_t a, uint32_t b) {
    return (entries[b].inplace_of == a && entries[a].last <= entries[b].first) ||
           (entries[a].inplace_of == b && entries[b].last <= entries[a].first);
}

/* Compares every tensor with those that are live when it is first written. */
static tn_status verify_overlaps(verify_state *v, const tn_plan *plan, const tn__saved_graph *g, lifetime *order,
                                 lifetime *live) {
    const tn_plan_entry *entries = tn_plan_entries(plan);
    size_t n = 0, n_live = 0;
    for (size_t i = 0; i < g->n_entries; i++)
        if (g->entries[i].memory >= 0 && g->entries[i].size)
            order[n++] = (lifetime){entries[i].first, entries[i].last, (uint32_t)i};
    qsort(order, n, sizeof *order, compare_lifetimes);
    for (size_t i = 0; i < n; i++) {
        const uint32_t at = order[i].index;
        size_t kept = 0;
        for (size_t k = 0; k < n_live; k++) {
            if (live[k].last < order[i].first) continue;
            live[kept++] = live[k];
            v->pairs++;
            if (!entries_overlap(&g->entries[at], &g->entries[live[k].index]) ||
                takes_over(entries, at, live[k].index))
                continue;
            return tn_fail(TN_E_STATE, "'%s' and '%s' are live at node %u and overlap", tn_plan_label(plan, at),
                           tn_plan_label(plan, live[k].index), order[i].first);
        }
        n_live = kept;
        live[n_live++] = order[i];
    }
    v->tensors += n;
    return TN_OK;
}

static tn_status verify_graph(void *user, size_t number, tn_graph *graph, const tn_plan *plan) {
    verify_state *v = user;
    const tn__saved_graph *g = &v->saved->graphs[number];
    (void)graph;
    v->graphs++;
    if (!plan || g->same_as != number) return TN_OK;
    for (size_t i = 0; i < g->n_entries; i++) {
        const tn_plan_offset *e = &g->entries[i];
        if (e->memory < 0) continue;
        const size_t memory = (size_t)e->memory;
        if (memory < tn_plan_memory_count(plan) &&
            (!e->size || (e->chunk < tn_plan_chunk_count(plan, memory) &&
                          e->offset + e->size <= tn_plan_chunk_size(plan, memory, e->chunk))))
            continue;
        return tn_fail(TN_E_STATE, "'%s' of graph %zu ends beyond its chunk", tn_plan_label(plan, i), number);
    }
    lifetime *order = tn_calloc(2 * (size_t)g->n_entries + 2, sizeof *order);
    if (!order) return TN_E_NOMEM;
    tn_status status = verify_overlaps(v, plan, g, order, order + g->n_entries + 1);
    tn_free(order);
    return status;
}

tn_status tn_session_plan_verify(tn_model *model, const tn_session_params *params, const char *path, FILE *out) {
    if (!model || !path || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_verify: NULL argument");
    tn__saved_plan saved;
    tn_session_plan *plan = NULL;
    TN_TRY(tn__saved_read(path, &saved));
    verify_state v = {.saved = &saved};
    tn_status status = tn__saved_adopt(model, params, &saved, &plan);
    if (status == TN_OK) status = for_covered(plan, verify_graph, &v);
    if (status == TN_OK)
        fprintf(out,
                "%s: model, parameters, devices and version agree; %zu graphs built again, %zu tensors with their "
                "lifetimes, %zu pairs live at the same time: none overlap, all within their chunks; totals of %zu "
                "devices agree\n",
                path, v.graphs, v.tensors, v.pairs, (size_t)saved.n_devices);
    tn_session_plan_free(plan);
    tn__saved_free(&saved);
    return status;
}
