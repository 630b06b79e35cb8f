/* Which device holds which layer and which weight: the runtime's policy, fed with the model's sizes. */
#include "llm/placement.h"

#include "base/checked.h"
#include "llm/load.h"
#include "llm/session_internal.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 32 };

static tn_device *device_at(const tn_session *s, size_t d) { return tn_stream_device(tn_sched_stream(s->sched, d)); }

/* ---- The caller's overrides ---------------------------------------------------------------------------------------
 */

static tn_status apply_override(tn_session *s, const tn_placement_override *o, int index) {
    int device = -1;
    if (!o->pattern || !o->device) return tn_fail(TN_E_INVALID, "an override needs a pattern and a device");
    for (size_t d = 0; d < s->n_devices; d++)
        if (strcmp(tn_device_name(device_at(s, d)), o->device) == 0) device = (int)d;
    if (device < 0)
        return tn_fail(TN_E_NOT_FOUND, "the override %s=%s: the session does not use a device %s", o->pattern,
                       o->device, o->device);
    regex_t pattern;
    if (regcomp(&pattern, o->pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return tn_fail(TN_E_INVALID, "the override's pattern '%s' is not a regular expression", o->pattern);
    for (size_t i = 0; i < s->model->n_all; i++) {
        tn__weight_place *w = &s->place.weights[i];
        if (w->override >= 0 || regexec(&pattern, s->model->all[i].info->name, 0, NULL, 0) != 0) continue;
        *w = (tn__weight_place){(int16_t)device, (int16_t)index};
    }
    regfree(&pattern);
    return TN_OK;
}

tn_status tn__place_new(tn_session *s) {
    size_t n_items = (size_t)s->model->h.n_layer + 1;
    tn__placement *p = &s->place;
    if (s->params.n_overrides > INT16_MAX) return tn_fail(TN_E_INVALID, "%zu overrides", s->params.n_overrides);
    s->device_of_layer = tn_calloc(n_items + 1, sizeof *s->device_of_layer);
    p->devices = tn_calloc(s->n_devices, sizeof *p->devices);
    p->layers = tn_calloc(n_items, sizeof *p->layers);
    p->names = tn_calloc(n_items, NAME_SIZE);
    p->bytes = tn_calloc(n_items * s->n_devices, sizeof *p->bytes);
    p->places = tn_calloc(n_items, sizeof *p->places);
    p->needed = tn_calloc(s->n_devices, sizeof *p->needed);
    p->before = tn_calloc(s->n_devices, sizeof *p->before);
    p->weights = tn_calloc(s->model->n_all + 1, sizeof *p->weights);
    if (!s->device_of_layer || !p->devices || !p->layers || !p->names || !p->bytes || !p->places || !p->needed ||
        !p->before || !p->weights)
        return TN_E_NOMEM;
    p->params = (tn_placement_params){p->devices, s->n_devices, p->layers, n_items, p->bytes, -1};
    for (size_t i = 0; i < n_items; i++) {
        char *name = p->names + i * NAME_SIZE;
        bool output = i + 1 == n_items;
        if (output)
            snprintf(name, NAME_SIZE, "output");
        else
            snprintf(name, NAME_SIZE, "blk.%zu", i);
        p->layers[i] = (tn_placement_layer){name, TN_PLACEMENT_FREE, output};
    }
    for (size_t d = 0; d < s->n_devices; d++) {
        p->devices[d].name = tn_device_name(device_at(s, d));
        if (d + 1 < s->n_devices && d < TN__COUNT(s->params.split)) p->devices[d].share = s->params.split[d];
    }
    for (size_t i = 0; i < s->model->n_all; i++) p->weights[i] = (tn__weight_place){-1, -1};
    for (size_t i = 0; i < s->params.n_overrides; i++) TN_TRY(apply_override(s, &s->params.overrides[i], (int)i));
    return TN_OK;
}

void tn__place_free(tn_session *s) {
    tn__placement *p = &s->place;
    tn_free(s->device_of_layer);
    tn_free(p->devices);
    tn_free(p->layers);
    tn_free(p->names);
    tn_free(p->bytes);
    tn_free(p->places);
    tn_free(p->needed);
    tn_free(p->before);
    tn_free(p->weights);
    *p = (tn__placement){0};
    s->device_of_layer = NULL;
}

int tn__place_of_weight(const tn_session *s, const tn__weight *w) {
    int chosen = s->place.weights[w - s->model->all].device;
    return chosen >= 0 ? chosen : s->device_of_layer[w->layer + 1];
}

/* ---- Layers -------------------------------------------------------------------------------------------------------
 */

/* A model whose output matrix is its embedding keeps both ends together, where the device can look rows up in it; any
 * other where the session is to have all of the model on a device. */
static bool ends_together(const tn_session *s, size_t device) {
    const tn__weights *w = &s->model->w;
    if ((w->output && !s->together) || !w->tok_embd || s->params.embeddings) return false;
    tn_tensor table = *w->tok_embd, ids = {.type = TN_I32, .n_dims = 1, .ne = {1, 1, 1, 1}, .nb = {4, 4, 4, 4}};
    table.buffer = NULL;
    table.data = NULL;
    tn_tensor rows = {
        .type = TN_F32, .op = TN_OP_GET_ROWS, .n_dims = 2, .ne = {table.ne[0], 1, 1, 1}, .src = {&table, &ids}};
    rows.nb[0] = 4;
    for (int i = 1; i < TN_MAX_DIMS; i++) rows.nb[i] = rows.nb[i - 1] * (size_t)rows.ne[i - 1];
    return tn_device_supports_op(device_at(s, device), &rows, NULL, 0);
}

static int that_device(const void *user, const tn__weight *w) {
    (void)w;
    return (int)*(const size_t *)user;
}

/* Bytes every layer would take on every device, without what overrides send elsewhere. */
static void fill_bytes(tn_session *s) {
    tn__placement *p = &s->place;
    size_t n = s->n_devices, n_layer = (size_t)s->model->h.n_layer;
    memset(p->bytes, 0, (n_layer + 1) * n * sizeof *p->bytes);
    for (size_t d = 0; d < n; d++) {
        bool together = ends_together(s, d);
        const tn__load load = {
            .types = s->types, .pack = s->pack, .rows = s->pack_rows, .device_of = that_device, .user = &d};
        for (size_t i = 0; i < s->model->n_all; i++) {
            const tn__weight *w = &s->model->all[i];
            if (w->ignored || p->weights[i].override >= 0 || (w->layer < 0 && !together)) continue;
            size_t item = w->layer < 0 ? n_layer : (size_t)w->layer;
            p->bytes[item * n + d] += tn__load_size(s->model, &load, w);
        }
        for (size_t i = 0; i < n_layer && s->kv.layers; i++) {
            size_t align = tn_buffer_type_alignment(s->types[d]);
            const tn__kv_layer *l = &s->kv.layers[i];
            p->bytes[i * n + d] += tn__align_up(tn_buffer_type_tensor_size(s->types[d], l->k), align) +
                                   tn__align_up(tn_buffer_type_tensor_size(s->types[d], l->v), align);
        }
    }
}

bool tn__place_has_room(tn_session *s) {
    const tn__placement *p = &s->place;
    const int32_t wanted = s->params.n_gpu_layers;
    const size_t n = s->n_devices, items = (size_t)s->model->h.n_layer + 1;
    if (n != 2 || s->model->loaded || (wanted >= 0 && (size_t)wanted < items)) return false;
    size_t all = 0, table = 0, free_bytes, total;
    if (tn_device_memory(device_at(s, 0), &free_bytes, &total) != TN_OK) return false;
    for (size_t i = 0; i < s->model->n_all; i++) {
        const tn__weight *w = &s->model->all[i];
        all += w->info->size;
        if (w->layer < 0) table += w->info->size;
        if (p->weights[i].override >= 0) return false;
    }
    return all + table <= free_bytes;
}

tn_status tn__place_layers(tn_session *s, int32_t n_gpu_layers) {
    tn__placement *p = &s->place;
    size_t n_layer = (size_t)s->model->h.n_layer, host = s->n_devices - 1;
    bool fits;
    fill_bytes(s);
    for (size_t d = 0; d < s->n_devices; d++) {
        size_t total;
        TN_TRY(tn_device_memory(device_at(s, d), &p->devices[d].free, &total));
    }
    p->params.n_off_host = n_gpu_layers < 0 ? -1 : n_gpu_layers;
    TN_TRY(tn_placement_choose(&p->params, p->places, p->needed, &fits));
    for (size_t i = 0; i <= n_layer; i++) {
        s->device_of_layer[i + 1] = p->places[i].device;
        /* The number may be one that was tried, not the caller's. */
        if (p->places[i].cause == TN_PLACEMENT_LIMIT && s->params.n_gpu_layers < 0)
            p->places[i].cause = TN_PLACEMENT_FULL;
    }
    int output = p->places[n_layer].device;
    s->device_of_layer[0] = output != (int)host && ends_together(s, (size_t)output) ? output : (int)host;
    return TN_OK;
}

int32_t tn__place_count(const tn_session *s) {
    int32_t count = 0;
    for (size_t i = 0; i < s->place.params.n_layers; i++) count += s->place.places[i].device != (int)s->n_devices - 1;
    return count;
}

bool tn__place_learn(tn_session *s, bool exactly) {
    tn__placement *p = &s->place;
    bool learnt = false;
    for (size_t d = 0; d < s->n_devices; d++) {
        const tn__device_plan *plan = &s->planned[d];
        size_t layers = 0, count = 0, taken = plan->weights + plan->cache + plan->missing;
        for (size_t i = 0; i < p->params.n_layers; i++)
            if (p->places[i].device == (int)d) {
                layers += p->bytes[i * s->n_devices + d];
                count++;
            }
        size_t fixed = taken > layers ? taken - layers : 0, known = p->devices[d].fixed;
        p->before[d] = known;
        if (fixed < known && !(exactly && count)) fixed = known;
        learnt = learnt || fixed != known;
        p->devices[d].fixed = fixed;
    }
    return learnt;
}

void tn__place_unlearn(tn_session *s) {
    for (size_t d = 0; d < s->n_devices; d++) s->place.devices[d].fixed = s->place.before[d];
}

/* Weights that an earlier session loaded stay where they are; a layer is where most of its bytes are. */
tn_status tn__place_follow(tn_session *s) {
    tn__placement *p = &s->place;
    size_t n = s->n_devices, n_items = (size_t)s->model->h.n_layer + 2;
    size_t *there = tn_calloc(n_items * n, sizeof *there);
    if (!there) return TN_E_NOMEM;
    for (size_t i = 0; i < s->model->n_all; i++) {
        const tn__weight *w = &s->model->all[i];
        if (w->ignored) continue;
        tn_device *device = tn_buffer_type_device(tn_buffer_get_type(w->tensor->buffer));
        for (size_t d = 0; d < n; d++) {
            if (device_at(s, d) != device) continue;
            there[(size_t)(w->layer + 1) * n + d] += w->info->size;
            p->weights[i].device = (int16_t)d;
        }
    }
    for (size_t i = 0; i < n_items; i++) {
        size_t best = n - 1;
        for (size_t d = 0; d < n; d++)
            if (there[i * n + d] > there[i * n + best]) best = d;
        s->device_of_layer[i] = (int)best;
        if (i) p->places[i - 1] = (tn_placement){(int)best, TN_PLACEMENT_PINNED};
    }
    tn_free(there);
    return TN_OK;
}

/* ---- Why ----------------------------------------------------------------------------------------------------------
 */

/* What is done with a weight's bytes there. */
static const char *how_kept(const tn_session *s, const tn__load *load, const tn__weight *w, int device) {
    if (!tn__load_size(s->model, load, w)) return ", stays in the file's map";
    return tn__weight_memory(load, w) == s->types[device] ? "" : ", packed for its kernels";
}

tn_status tn_session_explain(const tn_session *s, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_explain: NULL argument");
    size_t n_layer = (size_t)s->model->h.n_layer;
    const tn__load load = tn__session_load(s);
    for (size_t i = 0; i < s->model->n_all; i++) {
        const tn__weight *w = &s->model->all[i];
        if (w->ignored) continue;
        const tn__weight_place *own = &s->place.weights[i];
        int device = tn__place_of_weight(s, w);
        fprintf(out, "%-32s %14zu bytes on %-8s ", w->info->name, w->info->size, s->place.devices[device].name);
        if (own->override >= 0)
            fprintf(out, "override %s", s->params.overrides[own->override].pattern);
        else if (own->device >= 0)
            fprintf(out, "an earlier session loaded it");
        else if (w->layer < 0)
            fprintf(out, "%s",
                    s->device_of_layer[0] == (int)s->n_devices - 1 ? "input side, on the host"
                    : s->model->w.output ? "all of the model is there, and there is room for it"
                                         : "it is the output matrix, too");
        else
            fprintf(out, "%s", tn_placement_cause_text(s->place.places[TN__MIN((size_t)w->layer, n_layer)].cause));
        fprintf(out, "%s\n", how_kept(s, &load, w, device));
    }
    return ferror(out) ? tn_fail(TN_E_IO, "writing the placement failed") : TN_OK;
}
