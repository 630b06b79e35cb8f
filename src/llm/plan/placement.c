/* The device of each layer and weight: the runtime's policy, applied to the model's sizes. */
#include "llm/plan/placement.h"

#include "base/checked.h"
#include "llm/plan/session_plan.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 32 };

/* ---- The caller's overrides ---- */

static tn_status apply_override(tn_session_plan *plan, const tn_placement_override *o, int index) {
    tn__session_placement *p = &plan->placement;
    int device = -1;
    if (!o->pattern || !o->device) return tn_fail(TN_E_INVALID, "an override needs a pattern and a device");
    for (size_t d = 0; d < p->n_devices; d++)
        if (strcmp(tn_device_name(tn__plan_device(plan, d)), o->device) == 0) device = (int)d;
    if (device < 0)
        return tn_fail(TN_E_NOT_FOUND, "override %s=%s: the session does not use a device %s", o->pattern, o->device,
                       o->device);
    regex_t pattern;
    if (regcomp(&pattern, o->pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return tn_fail(TN_E_INVALID, "override: invalid regular expression '%s'", o->pattern);
    for (size_t i = 0; i < plan->model->n_all; i++) {
        tn__weight_placement *w = &p->weights[i];
        if (w->override >= 0 || regexec(&pattern, plan->model->all[i].info->name, 0, NULL, 0) != 0) continue;
        *w = (tn__weight_placement){(int16_t)device, (int16_t)index};
    }
    regfree(&pattern);
    return TN_OK;
}

static tn_status allocate_placement(tn__session_placement *p, size_t n_items, size_t n_weights) {
    p->types = tn_calloc(p->n_devices, sizeof(tn_buffer_type *));
    p->device_of_layer = tn_calloc(n_items + 1, sizeof *p->device_of_layer);
    p->devices = tn_calloc(p->n_devices, sizeof *p->devices);
    p->layers = tn_calloc(n_items, sizeof *p->layers);
    p->names = tn_calloc(n_items, NAME_SIZE);
    p->bytes = tn_calloc(n_items * p->n_devices, sizeof *p->bytes);
    p->chosen = tn_calloc(n_items, sizeof *p->chosen);
    p->needed = tn_calloc(p->n_devices, sizeof *p->needed);
    p->before = tn_calloc(p->n_devices, sizeof *p->before);
    p->weights = tn_calloc(n_weights + 1, sizeof *p->weights);
    p->list = tn_calloc(p->n_devices, sizeof(tn_device *));
    p->budgets = tn_calloc(p->n_devices, sizeof *p->budgets);
    p->domain_free = tn_calloc(p->n_devices, sizeof *p->domain_free);
    p->limits = tn_calloc(p->n_devices, sizeof *p->limits);
    return p->types && p->device_of_layer && p->devices && p->layers && p->names && p->bytes && p->chosen &&
                   p->needed && p->before && p->weights && p->list && p->budgets && p->domain_free && p->limits
               ? TN_OK
               : TN_E_NOMEM;
}

tn_status tn__placement_new(tn_session_plan *plan) {
    const tn_model *m = plan->model;
    const tn_session_params *params = &plan->params;
    const size_t n_items = (size_t)m->h.n_layer + 1;
    tn__session_placement *p = &plan->placement;
    if (params->n_overrides > INT16_MAX) return tn_fail(TN_E_INVALID, "%zu overrides", params->n_overrides);
    p->n_devices = tn_sched_stream_count(plan->sched);
    p->repack = m->loaded ? m->repacked : !params->no_repack;
    p->repack_rows = m->loaded ? m->repack_rows : params->repeatable ? 0 : params->n_seqs;
    TN_TRY(allocate_placement(p, n_items, m->n_all));
    p->params = (tn_placement_params){.devices = p->devices,
                                      .n_devices = p->n_devices,
                                      .layers = p->layers,
                                      .n_layers = n_items,
                                      .bytes = p->bytes,
                                      .n_off_host = -1,
                                      .domain_free = p->domain_free,
                                      .n_domains = p->n_devices};
    for (size_t i = 0; i < n_items; i++) {
        char *name = p->names + i * NAME_SIZE;
        bool output = i + 1 == n_items;
        if (output)
            snprintf(name, NAME_SIZE, "output");
        else
            snprintf(name, NAME_SIZE, "blk.%zu", i);
        p->layers[i] = (tn_placement_layer){name, TN_PLACEMENT_FREE, output};
    }
    for (size_t d = 0; d < p->n_devices; d++) {
        p->list[d] = tn__plan_device(plan, d);
        p->types[d] = tn_device_buffer_type(p->list[d]);
        p->devices[d].name = tn_device_name(p->list[d]);
        if (d + 1 < p->n_devices && d < TN__COUNT(params->split)) p->devices[d].share = params->split[d];
    }
    for (size_t i = 0; i < m->n_all; i++) p->weights[i] = (tn__weight_placement){-1, -1};
    for (size_t i = 0; i < params->n_overrides; i++) TN_TRY(apply_override(plan, &params->overrides[i], (int)i));
    return tn__limits_read(plan);
}

void tn__placement_free(tn__session_placement *p) {
    tn_free(p->types);
    tn_free(p->device_of_layer);
    tn_free(p->devices);
    tn_free(p->layers);
    tn_free(p->names);
    tn_free(p->bytes);
    tn_free(p->chosen);
    tn_free(p->needed);
    tn_free(p->before);
    tn_free(p->weights);
    tn_free(p->list);
    tn_free(p->budgets);
    tn_free(p->domain_free);
    tn_free(p->limits);
    *p = (tn__session_placement){0};
}

int tn__placement_of_weight(const tn_session_plan *plan, const tn__weight *w) {
    int own = plan->placement.weights[w - plan->model->all].device;
    return own >= 0 ? own : plan->placement.device_of_layer[w->layer + 1];
}

/* ---- Layers ---- */

/* Whether the embedding is placed on this device together with the output: if it is the output matrix, or if the
 * device gets the whole model. The device must support row lookups. */
static bool keeps_ends_together(const tn_session_plan *plan, size_t device) {
    const tn__weights *w = &plan->model->w;
    if ((w->output && !plan->placement.ends_together) || !w->tok_embd || plan->params.embeddings) return false;
    tn_tensor table = *w->tok_embd, ids = {.type = TN_I32, .n_dims = 1, .ne = {1, 1, 1, 1}, .nb = {4, 4, 4, 4}};
    table.buffer = NULL;
    table.data = NULL;
    tn_tensor rows = {
        .type = TN_F32, .op = TN_OP_GET_ROWS, .n_dims = 2, .ne = {table.ne[0], 1, 1, 1}, .src = {&table, &ids}};
    rows.nb[0] = 4;
    for (int i = 1; i < TN_MAX_DIMS; i++) rows.nb[i] = rows.nb[i - 1] * (size_t)rows.ne[i - 1];
    return tn_device_supports_op(tn__plan_device(plan, device), &rows, NULL, 0);
}

static int every_weight_on(const void *user, const tn__weight *w) {
    (void)w;
    return (int)*(const size_t *)user;
}

/* Bytes that every layer would take on every device, without the weights that overrides assign to other devices. */
static void measure_layers(tn_session_plan *plan) {
    const tn_model *m = plan->model;
    tn__session_placement *p = &plan->placement;
    size_t n = p->n_devices, n_layer = (size_t)m->h.n_layer;
    memset(p->bytes, 0, (n_layer + 1) * n * sizeof *p->bytes);
    for (size_t d = 0; d < n; d++) {
        bool together = keeps_ends_together(plan, d);
        const tn__load load = {
            .types = p->types, .repack = p->repack, .rows = p->repack_rows, .device_of = every_weight_on, .user = &d};
        for (size_t i = 0; i < m->n_all; i++) {
            const tn__weight *w = &m->all[i];
            if (w->ignored || p->weights[i].override >= 0 || (w->layer < 0 && !together)) continue;
            size_t item = w->layer < 0 ? n_layer : (size_t)w->layer;
            p->bytes[item * n + d] += tn__load_size(m, &load, w);
        }
        tn__adapters_add_layers(plan, d, p->bytes + d, n);
        for (size_t i = 0; i < n_layer && plan->kv.layers; i++) {
            size_t align = tn_buffer_type_alignment(p->types[d]);
            for (int k = 0; k < TN__LAYER_TENSORS_MOST; k++) {
                const tn_tensor *t = tn__kv_layer_tensor(&plan->kv, (int32_t)i, k);
                if (t) p->bytes[i * n + d] += tn__align_up(tn_buffer_type_tensor_size(p->types[d], t), align);
            }
        }
    }
}

tn_status tn__placement_budgets(const tn_session_plan *plan, tn_device_budget *budgets) {
    TN_TRY(tn_device_budgets(plan->placement.list, plan->placement.n_devices, budgets));
    tn__limits_apply(plan, budgets);
    return TN_OK;
}

bool tn__placement_has_room(tn_session_plan *plan) {
    const tn_model *m = plan->model;
    tn__session_placement *p = &plan->placement;
    const int32_t wanted = plan->params.n_gpu_layers;
    const size_t items = (size_t)m->h.n_layer + 1;
    if (p->n_devices != 2 || m->loaded || (wanted >= 0 && (size_t)wanted < items)) return false;
    size_t all = 0, table = 0, first = 0;
    const tn__load load = {.types = p->types, .device_of = every_weight_on, .user = &first};
    if (tn__placement_budgets(plan, p->budgets) != TN_OK) return false;
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (p->weights[i].override >= 0) return false;
        if (w->ignored || !tn__load_size(m, &load, w)) continue; /* used in the file's map */
        all += w->size;
        if (w->layer < 0) table += w->size;
    }
    return all + table <= TN__MIN(p->budgets[0].free, p->budgets[0].domain_free);
}

tn_status tn__placement_choose(tn_session_plan *plan, int32_t n_gpu_layers) {
    tn__session_placement *p = &plan->placement;
    size_t n_layer = (size_t)plan->model->h.n_layer, host = p->n_devices - 1;
    bool fits;
    measure_layers(plan);
    TN_TRY(tn__placement_budgets(plan, p->budgets));
    for (size_t d = 0; d < p->n_devices; d++) {
        p->devices[d].free = p->budgets[d].free;
        p->devices[d].domain = p->budgets[d].domain + 1;
        p->domain_free[d] = p->budgets[d].domain_free;
    }
    p->params.n_off_host = n_gpu_layers < 0 ? -1 : n_gpu_layers;
    TN_TRY(tn_placement_choose(&p->params, p->chosen, p->needed, &fits));
    for (size_t i = 0; i <= n_layer; i++) {
        p->device_of_layer[i + 1] = p->chosen[i].device;
        /* The caller set no limit: uses the number of layers that fit according to choose_layers(). */
        if (p->chosen[i].cause == TN_PLACEMENT_LIMIT && plan->params.n_gpu_layers < 0)
            p->chosen[i].cause = TN_PLACEMENT_FULL;
    }
    int output = p->chosen[n_layer].device;
    p->device_of_layer[0] = output != (int)host && keeps_ends_together(plan, (size_t)output) ? output : (int)host;
    return TN_OK;
}

int32_t tn__placement_count(const tn__session_placement *p) {
    int32_t count = 0;
    for (size_t i = 0; i < p->params.n_layers; i++) count += p->chosen[i].device != (int)p->n_devices - 1;
    return count;
}

bool tn__placement_learn(tn_session_plan *plan, bool exactly) {
    tn__session_placement *p = &plan->placement;
    bool changed = false;
    for (size_t d = 0; d < p->n_devices; d++) {
        size_t layers = 0, count = 0, taken = tn__device_plan_bytes(&plan->devices[d]);
        for (size_t i = 0; i < p->params.n_layers; i++)
            if (p->chosen[i].device == (int)d) {
                layers += p->bytes[i * p->n_devices + d];
                count++;
            }
        size_t fixed = taken > layers ? taken - layers : 0, known = p->devices[d].fixed;
        p->before[d] = known;
        if (fixed < known && !(exactly && count)) fixed = known;
        changed = changed || fixed != known;
        p->devices[d].fixed = fixed;
    }
    return changed;
}

void tn__placement_unlearn(tn__session_placement *p) {
    for (size_t d = 0; d < p->n_devices; d++) p->devices[d].fixed = p->before[d];
}

/* Weights that an earlier session loaded stay on their device; a layer's device is the one with most of its bytes. */
tn_status tn__placement_follow(tn_session_plan *plan) {
    tn__session_placement *p = &plan->placement;
    size_t n = p->n_devices, n_items = (size_t)plan->model->h.n_layer + 2;
    size_t *loaded = tn_calloc(n_items * n, sizeof *loaded);
    if (!loaded) return TN_E_NOMEM;
    for (size_t i = 0; i < plan->model->n_all; i++) {
        const tn__weight *w = &plan->model->all[i];
        if (w->ignored) continue;
        tn_device *device = tn_buffer_type_device(tn_buffer_get_type(w->tensor->buffer));
        for (size_t d = 0; d < n; d++) {
            if (tn__plan_device(plan, d) != device) continue;
            loaded[(size_t)(w->layer + 1) * n + d] += w->size;
            p->weights[i].device = (int16_t)d;
        }
    }
    for (size_t i = 0; i < n_items; i++) {
        size_t most = n - 1;
        for (size_t d = 0; d < n; d++)
            if (loaded[i * n + d] > loaded[i * n + most]) most = d;
        p->device_of_layer[i] = (int)most;
        if (i) p->chosen[i - 1] = (tn_placement){(int)most, TN_PLACEMENT_PINNED};
    }
    tn_free(loaded);
    return TN_OK;
}

/* ---- Causes ---- */

/* How a weight is kept on its device. */
static const char *weight_layout_text(const tn_session_plan *plan, const tn__load *load, const tn__weight *w,
                                      int device) {
    if (!tn__load_size(plan->model, load, w)) return ", stays in the file's map";
    return tn__weight_memory(load, w) == plan->placement.types[device] ? "" : ", repacked for its kernels";
}

tn_status tn__placement_explain(const tn_session_plan *plan, FILE *out) {
    const tn_model *m = plan->model;
    const tn__session_placement *p = &plan->placement;
    size_t n_layer = (size_t)m->h.n_layer;
    const tn__load load = tn__session_plan_load(plan);
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (w->ignored) continue;
        const tn__weight_placement *own = &p->weights[i];
        int device = tn__placement_of_weight(plan, w);
        fprintf(out, "%-32s %14zu bytes on %-8s ", w->info->name, w->size, p->devices[device].name);
        if (own->override >= 0)
            fprintf(out, "override %s", plan->params.overrides[own->override].pattern);
        else if (own->device >= 0)
            fprintf(out, "an earlier session loaded it");
        else if (w->layer < 0)
            fprintf(out, "%s",
                    p->device_of_layer[0] == (int)p->n_devices - 1 ? "input side, on the host"
                    : m->w.output                                  ? "the whole model is there, and a copy fits"
                                                                   : "it is also the output matrix");
        else
            fprintf(out, "%s", tn_placement_cause_text(p->chosen[TN__MIN((size_t)w->layer, n_layer)].cause));
        fprintf(out, "%s\n", weight_layout_text(plan, &load, w, device));
    }
    return ferror(out) ? tn_fail(TN_E_IO, "cannot write the placement") : TN_OK;
}
