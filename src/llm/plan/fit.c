/* Will it fit? Reports of what a session would take, or has taken, on every device. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* The graphs that reports describe, by number in graphs.reserved. */
enum { REPORTED_PREFILL, REPORTED_DECODE, REPORTED };

static tn_status report_plan(const tn__session_plan *p, tn_fit *fit) {
    fit->n_devices = p->placement.n_devices;
    fit->devices = tn_calloc(fit->n_devices, sizeof *fit->devices);
    if (!fit->devices) return TN_E_NOMEM;
    fit->fits = p->fits;
    for (size_t d = 0; d < fit->n_devices; d++) {
        tn_device *device = tn__plan_device(p, d);
        const tn__device_plan *plan = &p->devices[d];
        tn_fit_device *f = &fit->devices[d];
        *f = (tn_fit_device){.name = tn_device_name(device),
                             .weights = plan->weights,
                             .mapped = plan->mapped,
                             .cache = plan->cache,
                             .compute = plan->compute,
                             .scratch = plan->scratch,
                             .lower_bound = plan->lower_bound,
                             .n_layers = plan->n_layers};
        TN_TRY(tn_device_memory(device, &f->free, &f->total));
    }
    for (int i = 0; i < REPORTED; i++) {
        tn_sched_info info;
        TN_TRY(tn_sched_describe(p->sched, p->graphs.reserved[i]->graph, &info));
        *(i ? &fit->nodes_decode : &fit->nodes_prefill) = info.nodes;
        *(i ? &fit->splits_decode : &fit->splits_prefill) = info.splits;
    }
    return TN_OK;
}

/* ---- Before a session exists ---- */

struct tn__fit_plans {
    tn__session_plan session;
    const tn_plan *plans[REPORTED];
    size_t *memories[REPORTED]; /* per device */
};

static void free_fit_plans(struct tn__fit_plans *p) {
    if (!p) return;
    tn__session_plan_free(&p->session);
    for (int i = 0; i < REPORTED; i++) tn_free(p->memories[i]);
    tn_free(p);
}

static tn_status make_fit_plans(struct tn__fit_plans *p, tn_fit *fit) {
    tn__session_plan *s = &p->session;
    TN_TRY(tn__session_plan_prepare(s));
    TN_TRY(tn__session_plan_choose(s));
    TN_TRY(report_plan(s, fit));
    for (int i = 0; i < REPORTED; i++) {
        p->memories[i] = tn_calloc(fit->n_devices, sizeof *p->memories[i]);
        if (!p->memories[i]) return TN_E_NOMEM;
        TN_TRY(tn_sched_plan(s->sched, s->graphs.reserved[i]->graph, &p->plans[i], p->memories[i]));
    }
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
    tn_status status = make_fit_plans(fit->plans, fit);
    fit->plans->session.model = NULL; /* the plans may outlive it */
    if (status != TN_OK) tn_fit_free(fit);
    return status;
}

void tn_fit_free(tn_fit *fit) {
    if (!fit) return;
    free_fit_plans(fit->plans);
    tn_free(fit->devices);
    memset(fit, 0, sizeof *fit);
}

static tn_status dump_splits(const tn__session_plan *p, bool prefill, FILE *out) {
    return tn_sched_dump(p->sched, p->graphs.reserved[prefill ? REPORTED_PREFILL : REPORTED_DECODE]->graph, out);
}

tn_status tn_fit_explain(tn_model *model, const tn_session_params *params, FILE *out) {
    if (!model || !out) return tn_fail(TN_E_INVALID, "tn_fit_explain: NULL argument");
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn__session_plan p = {.model = model, .params = params ? *params : tn_session_params_default()};
    tn_status status = tn__session_plan_prepare(&p);
    if (status == TN_OK) status = tn__session_plan_choose(&p);
    if (status == TN_OK) status = tn__placement_explain(&p, out);
    if (status == TN_OK && fputc('\n', out) != EOF) status = dump_splits(&p, false, out);
    tn__session_plan_free(&p);
    return status;
}

tn_status tn_fit_graph_plan(const tn_fit *fit, bool prefill, size_t device, const tn_plan **plan, size_t *memory) {
    const int i = prefill ? REPORTED_PREFILL : REPORTED_DECODE;
    if (!fit || !plan) return tn_fail(TN_E_INVALID, "tn_fit_graph_plan: NULL argument");
    if (!fit->plans) return tn_fail(TN_E_STATE, "only a tn_fit of tn_fit_session has plans");
    if (device >= fit->n_devices) return tn_fail(TN_E_INVALID, "there is no device %zu", device);
    *plan = fit->plans->plans[i];
    if (memory) *memory = fit->plans->memories[i][device];
    return TN_OK;
}

/* ---- Of a session ---- */

tn_status tn_session_explain(const tn_session *s, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_explain: NULL argument");
    return tn__placement_explain(&s->plan, out);
}

tn_status tn_session_dump_splits(tn_session *s, bool prefill, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_dump_splits: NULL argument");
    return dump_splits(&s->plan, prefill, out);
}

tn_status tn_session_print_launches(tn_session *s, bool prefill, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_print_launches: NULL argument");
    const tn__session_plan *p = &s->plan;
    return tn_sched_print_programs(p->sched, p->graphs.reserved[prefill ? REPORTED_PREFILL : REPORTED_DECODE]->graph,
                                   out);
}

tn_status tn_session_graph_plan(tn_session *s, bool prefill, size_t device, const tn_plan **plan, size_t *memory) {
    if (!s || !plan) return tn_fail(TN_E_INVALID, "tn_session_graph_plan: NULL argument");
    const tn__session_plan *p = &s->plan;
    if (device >= p->placement.n_devices) return tn_fail(TN_E_INVALID, "there is no device %zu", device);
    size_t *memories = tn_calloc(p->placement.n_devices, sizeof *memories);
    if (!memories) return TN_E_NOMEM;
    tn_graph *graph = p->graphs.reserved[prefill ? REPORTED_PREFILL : REPORTED_DECODE]->graph;
    tn_status status = tn_sched_plan(p->sched, graph, plan, memories);
    if (memory) *memory = memories[device];
    tn_free(memories);
    return status;
}

/* Bytes of the model's weights on a device: allocated, and in the file's map. */
static void count_loaded_weights(const tn_model *m, tn_device *device, tn_fit_device *f) {
    f->weights = f->mapped = 0;
    for (size_t i = 0; i < m->n_buffers; i++) {
        const tn__weight_buffer *b = &m->buffers[i];
        if (!b->mapped && tn_buffer_type_device(tn_buffer_get_type(b->buffer)) == device)
            f->weights += tn_buffer_size(b->buffer);
    }
    for (size_t i = 0; i < m->n_all; i++) {
        const tn__weight *w = &m->all[i];
        if (!w->ignored && w->info->data && w->tensor->data == w->info->data &&
            tn_buffer_type_device(tn_buffer_get_type(w->tensor->buffer)) == device)
            f->mapped += w->info->size;
    }
}

/* Counted from the buffers that exist, not from the plan. */
tn_status tn_session_memory(const tn_session *s, tn_fit *fit) {
    if (!s || !fit) return tn_fail(TN_E_INVALID, "tn_session_memory: NULL argument");
    const tn__session_plan *p = &s->plan;
    memset(fit, 0, sizeof *fit);
    tn_status status = report_plan(p, fit);
    if (status != TN_OK) {
        tn_fit_free(fit);
        return status;
    }
    for (size_t d = 0; d < fit->n_devices; d++) {
        tn_fit_device *f = &fit->devices[d];
        tn_sched_memory memory = tn_sched_memory_of(p->sched, d);
        f->compute = memory.compute;
        f->scratch = memory.scratch;
        f->cache = 0;
        for (size_t i = 0; i < p->kv.n_buffers; i++)
            if (p->kv.buffers[i].device == d) f->cache += tn_buffer_size(p->kv.buffers[i].buffer);
        count_loaded_weights(p->model, tn_buffer_type_device(p->placement.types[d]), f);
    }
    return TN_OK;
}
