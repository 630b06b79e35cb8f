/* Will it fit? The plan of a session against what the devices have free, and what to try when it does not. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "llm/load.h"

#include <stdio.h>
#include <string.h>

/* All GPUs found, unless the caller names devices. */
tn_status tn__session_devices(const tn_session *s, tn_sched_params *params) {
    memcpy(params->devices, s->params.devices, sizeof params->devices);
    if (params->devices[0] || params->share) return TN_OK;
    size_t n = 0;
    for (size_t i = 0; i < tn_device_count() && n < TN__COUNT(params->devices) - 1; i++) {
        tn_device *device = tn_device_get(i);
        /* Simulated devices serve those who ask for them. */
        if (tn_device_get_kind(device) == TN_DEVICE_GPU &&
            strncmp(tn_device_description(device), "simulated", 9) != 0)
            params->devices[n++] = tn_device_name(device);
    }
    return TN_OK;
}

static size_t taken(const tn__device_plan *p) { return p->weights + p->cache + p->missing; }

/* Whether the present plan fits now. Weights that another session loaded are paid for. Mapped ones need no free
 * memory, but must fit the machine, or every token reads them from disk again. */
static tn_status check(tn_session *s) {
    s->fits = true;
    for (size_t d = 0; d < s->n_devices; d++) {
        size_t free_bytes, total;
        TN_TRY(tn_device_memory(tn_stream_device(tn_sched_stream(s->sched, d)), &free_bytes, &total));
        const tn__device_plan *p = &s->planned[d];
        size_t needed = taken(p) - (s->model->loaded ? p->weights : 0);
        if (needed > free_bytes || p->mapped > total) s->fits = false;
    }
    return TN_OK;
}

static tn_status place_and_check(tn_session *s, int32_t n_gpu_layers) {
    TN_TRY(tn__place_layers(s, n_gpu_layers));
    TN_TRY(tn__session_plan(s));
    return check(s);
}

/* The caller's number of layers, or as many as fit. How much a device needs beside its layers is known once a plan
 * put some there, so placing and planning take turns until a plan fits or nothing new is learnt. What was learnt from
 * plans with other layers may be too much: what a plan that fits needs is tried, then single layers more. */
enum { MAX_LESSONS = 8 };
static tn_status choose_layers(tn_session *s) {
    if (s->model->loaded) {
        TN_TRY(tn__place_follow(s));
        TN_TRY(tn__session_plan(s));
        return check(s);
    }
    int32_t wanted = s->params.n_gpu_layers, all = s->model->h.n_layer + 1;
    do TN_TRY(place_and_check(s, wanted));
    while (tn__place_learn(s, false) && !s->fits && s->n_devices > 1);
    if (wanted >= 0 || !s->fits || s->n_devices == 1) return TN_OK;
    for (int i = 0; i < MAX_LESSONS && tn__place_learn(s, true); i++) {
        TN_TRY(place_and_check(s, wanted));
        if (s->fits) continue;
        tn__place_unlearn(s);
        TN_TRY(place_and_check(s, wanted));
        break;
    }
    int32_t count = tn__place_count(s);
    while (count < all) {
        TN_TRY(place_and_check(s, count + 1));
        if (!s->fits) return place_and_check(s, count);
        count++;
    }
    return TN_OK;
}

/* Whether nothing is left to the host. */
static bool is_whole(const tn_session *s) {
    for (int32_t i = 0; i < s->model->h.n_layer + 2; i++)
        if (s->device_of_layer[i] != 0) return false;
    return true;
}

/* The embedding stays on the host, which looks up a row as well, unless a device has all of the model and room to
 * spare: such a device needs no host between two tokens. Packed weights take memory that mapped ones do not; where
 * that is not there, the map serves. */
static tn_status choose(tn_session *s) {
    size_t needed = 0;
    s->together = tn__place_has_room(s);
    if (s->together) {
        TN_TRY(choose_layers(s));
        if (is_whole(s)) needed = taken(&s->planned[0]);
        if (s->fits && needed) return TN_OK;
        s->together = false;
    }
    TN_TRY(choose_layers(s));
    if (!s->fits && needed && needed < taken(&s->planned[0])) { /* what the host computes must be copied, too */
        s->together = true;
        TN_TRY(choose_layers(s));
    }
    if (!s->fits && s->pipelined) { /* rather slower than not at all */
        s->in_turn = true;
        TN_TRY(choose_layers(s));
    }
    if (s->fits || !s->pack || s->model->loaded) return TN_OK;
    s->pack = false;
    return choose_layers(s);
}

/* Devices may have the room but give it in pieces that are too small. */
static tn_status check_pieces(const tn_session *s) {
    const tn__load load = tn__session_load(s);
    for (size_t d = 0; d < s->n_devices; d++) {
        size_t needed = s->planned[d].scratch, most = tn_buffer_type_max_size(s->types[d]);
        if (needed > most)
            return tn_fail(TN_E_TOO_BIG,
                           "kernels need %zu bytes at once, the largest allocation in %s has %zu; to make it fit: a "
                           "smaller micro-batch than %d (--ubatch), or no layers there (--gpu-layers 0)",
                           needed, tn_buffer_type_name(s->types[d]), most, s->params.n_ubatch);
    }
    TN_TRY(tn__kv_check(&s->kv, s->types));
    return s->model->loaded ? TN_OK : tn__load_check(s->model, &load);
}

tn_status tn__session_choose(tn_session *s) {
    TN_TRY(choose(s));
    return s->fits ? check_pieces(s) : TN_OK;
}

tn_status tn__session_too_big(const tn_session *s) {
    tn_fail(TN_E_TOO_BIG, "the session does not fit:");
    for (size_t d = 0; d < s->n_devices; d++) {
        tn_device *device = tn_stream_device(tn_sched_stream(s->sched, d));
        const tn__device_plan *p = &s->planned[d];
        size_t free_bytes = 0, total = 0;
        tn_device_memory(device, &free_bytes, &total);
        if (!taken(p) && !p->mapped) continue;
        tn_fail_more(TN_E_TOO_BIG,
                     " %s needs %zu bytes (weights %zu, cache %zu, compute %zu, scratch %zu%s%s), %zu are available;",
                     tn_device_name(device), taken(p), p->weights, p->cache, p->compute, p->scratch,
                     p->missing < p->compute + p->scratch ? " of which a part is there" : "",
                     p->mapped > total ? ", mapped file larger than memory" : "", free_bytes);
    }
    char text[512];
    tn__advise(s, text, sizeof text);
    return tn_fail_more(TN_E_TOO_BIG, " to make it fit: %s", text);
}

/* ---- Reports -----------------------------------------------------------------------------------------------------
 */

static tn_status report(tn_session *s, tn_fit *fit) {
    fit->n_devices = s->n_devices;
    fit->devices = tn_calloc(s->n_devices, sizeof *fit->devices);
    if (!fit->devices) return TN_E_NOMEM;
    fit->fits = s->fits;
    for (size_t d = 0; d < s->n_devices; d++) {
        tn_device *device = tn_stream_device(tn_sched_stream(s->sched, d));
        const tn__device_plan *p = &s->planned[d];
        tn_fit_device *f = &fit->devices[d];
        *f = (tn_fit_device){.name = tn_device_name(device),
                             .weights = p->weights,
                             .mapped = p->mapped,
                             .cache = p->cache,
                             .compute = p->compute,
                             .scratch = p->scratch,
                             .lower_bound = p->lower_bound,
                             .n_layers = p->n_layers};
        TN_TRY(tn_device_memory(device, &f->free, &f->total));
    }
    for (int i = 0; i < 2; i++) {
        tn_sched_info info;
        TN_TRY(tn_sched_describe(s->sched, s->reserved[i]->graph, &info));
        *(i ? &fit->nodes_decode : &fit->nodes_prefill) = info.nodes;
        *(i ? &fit->splits_decode : &fit->splits_prefill) = info.splits;
    }
    return TN_OK;
}

/* A session that took no memory, kept for its plans. */
struct tn__fit_plans {
    tn_session session;
    const tn_plan *plans[2];
    size_t *memories[2]; /* per device */
};

static void plans_free(struct tn__fit_plans *p) {
    if (!p) return;
    tn__session_drop(&p->session);
    for (int i = 0; i < 2; i++) tn_free(p->memories[i]);
    tn_free(p);
}

static tn_status plan_session(struct tn__fit_plans *p, tn_fit *fit) {
    tn_session *s = &p->session;
    TN_TRY(tn__session_prepare(s));
    TN_TRY(tn__session_choose(s));
    TN_TRY(report(s, fit));
    for (int i = 0; i < 2; i++) {
        p->memories[i] = tn_calloc(s->n_devices, sizeof *p->memories[i]);
        if (!p->memories[i]) return TN_E_NOMEM;
        TN_TRY(tn_sched_plan(s->sched, s->reserved[i]->graph, &p->plans[i], p->memories[i]));
    }
    /* Last: the attempts it makes put other stand-ins in the place of this session's. */
    if (!fit->fits) tn__advise(s, fit->advice, sizeof fit->advice);
    return TN_OK;
}

tn_status tn_fit_session(tn_model *model, const tn_session_params *params, tn_fit *fit) {
    if (!model || !fit) return tn_fail(TN_E_INVALID, "tn_fit_session: NULL argument");
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    memset(fit, 0, sizeof *fit);
    fit->plans = tn_calloc(1, sizeof *fit->plans);
    if (!fit->plans) return TN_E_NOMEM;
    fit->plans->session.model = model;
    fit->plans->session.params = params ? *params : tn_session_params_default();
    tn_status status = plan_session(fit->plans, fit);
    tn__remove_stand_ins(model);
    fit->plans->session.model = NULL; /* the plans outlive it */
    if (status != TN_OK) tn_fit_free(fit);
    return status;
}

tn_status tn_fit_explain(tn_model *model, const tn_session_params *params, FILE *out) {
    if (!model || !out) return tn_fail(TN_E_INVALID, "tn_fit_explain: NULL argument");
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn_session s = {.model = model, .params = params ? *params : tn_session_params_default()};
    tn_status status = tn__session_prepare(&s);
    if (status == TN_OK) status = tn__session_choose(&s);
    if (status == TN_OK) status = tn_session_explain(&s, out);
    if (status == TN_OK && fputc('\n', out) != EOF) status = tn_session_dump_splits(&s, false, out);
    tn__session_drop(&s);
    return status;
}

tn_status tn_fit_graph_plan(const tn_fit *fit, bool prefill, size_t device, const tn_plan **plan, size_t *memory) {
    if (!fit || !plan) return tn_fail(TN_E_INVALID, "tn_fit_graph_plan: NULL argument");
    if (!fit->plans) return tn_fail(TN_E_STATE, "only what tn_fit_session has filled in has plans");
    if (device >= fit->n_devices) return tn_fail(TN_E_INVALID, "there is no device %zu", device);
    *plan = fit->plans->plans[prefill ? 0 : 1];
    if (memory) *memory = fit->plans->memories[prefill ? 0 : 1][device];
    return TN_OK;
}

tn_status tn_session_graph_plan(tn_session *s, bool prefill, size_t device, const tn_plan **plan, size_t *memory) {
    if (!s || !plan) return tn_fail(TN_E_INVALID, "tn_session_graph_plan: NULL argument");
    if (device >= s->n_devices) return tn_fail(TN_E_INVALID, "there is no device %zu", device);
    size_t *memories = tn_calloc(s->n_devices, sizeof *memories);
    if (!memories) return TN_E_NOMEM;
    tn_status status = tn_sched_plan(s->sched, s->reserved[prefill ? 0 : 1]->graph, plan, memories);
    if (memory) *memory = memories[device];
    tn_free(memories);
    return status;
}

tn_status tn_session_plan_svg(tn_session *s, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_svg: NULL argument");
    size_t device = 0, memory;
    for (size_t d = 1; d < s->n_devices; d++)
        if (s->planned[d].compute > s->planned[device].compute) device = d;
    const tn_plan *plan;
    char *text;
    TN_TRY(tn_session_graph_plan(s, true, device, &plan, &memory));
    TN_TRY(tn_plan_export(plan, TN_PLAN_SVG, memory, &text));
    bool written = fputs(text, out) >= 0;
    tn_free(text);
    return written ? TN_OK : tn_fail(TN_E_IO, "the picture cannot be written");
}

void tn_fit_free(tn_fit *fit) {
    if (!fit) return;
    plans_free(fit->plans);
    tn_free(fit->devices);
    memset(fit, 0, sizeof *fit);
}

static tn_device *device_of(const tn_tensor *t) { return tn_buffer_type_device(tn_buffer_get_type(t->buffer)); }

/* What was really taken: read off the buffers, not off the plan. */
tn_status tn_session_memory(const tn_session *session, tn_fit *fit) {
    if (!session || !fit) return tn_fail(TN_E_INVALID, "tn_session_memory: NULL argument");
    tn_session *s = (tn_session *)(uintptr_t)session;
    memset(fit, 0, sizeof *fit);
    tn_status status = report(s, fit);
    if (status != TN_OK) {
        tn_fit_free(fit);
        return status;
    }
    for (size_t d = 0; d < s->n_devices; d++) {
        tn_fit_device *f = &fit->devices[d];
        tn_sched_memory memory = tn_sched_memory_of(s->sched, d);
        f->compute = memory.compute;
        f->scratch = memory.scratch;
        f->cache = 0;
        for (size_t i = 0; i < s->kv.n_buffers; i++)
            if (s->kv.buffers[i].device == d) f->cache += tn_buffer_size(s->kv.buffers[i].buffer);
        f->weights = f->mapped = 0;
        for (size_t i = 0; i < s->model->n_buffers; i++) {
            const tn__weight_buffer *b = &s->model->buffers[i];
            if (!b->mapped &&
                tn_buffer_type_device(tn_buffer_get_type(b->buffer)) == tn_buffer_type_device(s->types[d]))
                f->weights += tn_buffer_size(b->buffer);
        }
        for (size_t i = 0; i < s->model->n_all; i++) {
            const tn__weight *w = &s->model->all[i];
            if (!w->ignored && w->info->data && w->tensor->data == w->info->data &&
                device_of(w->tensor) == tn_buffer_type_device(s->types[d]))
                f->mapped += w->info->size;
        }
    }
    return TN_OK;
}
