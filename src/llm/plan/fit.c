/* Reports of the memory that a session would take, or has taken, on every device. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

static tn_status report_plan(const tn_session_plan *p, tn_fit *fit) {
    fit->n_devices = p->placement.n_devices;
    fit->devices = tn_calloc(fit->n_devices, sizeof *fit->devices);
    if (!fit->devices) return TN_E_NOMEM;
    fit->fits = p->fits;
    tn_device_budget *budgets = tn_calloc(fit->n_devices, sizeof *budgets);
    tn_status status = budgets ? tn__placement_budgets(p, budgets) : TN_E_NOMEM;
    for (size_t d = 0; status == TN_OK && d < fit->n_devices; d++) {
        tn_device *device = tn__plan_device(p, d);
        const tn__device_plan *plan = &p->devices[d];
        tn_fit_device *f = &fit->devices[d];
        *f = (tn_fit_device){.name = tn_device_name(device),
                             .weights = plan->weights,
                             .adapters = plan->adapters,
                             .mapped = plan->mapped,
                             .cache = plan->cache,
                             .compute = plan->compute,
                             .scratch = plan->scratch,
                             .staging = plan->staging,
                             .tier = plan->tier,
                             .own = plan->own,
                             .pinned = plan->pinned,
                             .in_order = plan->in_order,
                             .lower_bound = plan->lower_bound,
                             .free = budgets[d].free,
                             .total = budgets[d].total,
                             .domain = budgets[d].domain,
                             .domain_free = budgets[d].domain_free,
                             .domain_total = budgets[d].domain_total,
                             .reported = budgets[d].reported,
                             .n_layers = plan->n_layers};
    }
    tn_free(budgets);
    if (status != TN_OK) return status;
    fit->nodes_prefill = p->prefill.nodes;
    fit->splits_prefill = p->prefill.splits;
    fit->nodes_decode = p->decode.nodes;
    fit->splits_decode = p->decode.splits;
    return TN_OK;
}

bool tn_session_plan_fits(const tn_session_plan *p) { return p->fits; }
tn_session_params tn_session_plan_params(const tn_session_plan *p) { return p->params; }

const char *tn_session_plan_advice(tn_session_plan *p) {
    enum { ADVICE = 512 };
    if (p->fits) return "";
    if (!p->advice && (p->advice = tn_malloc(ADVICE))) tn__advise(p, p->advice, ADVICE);
    return p->advice ? p->advice : "";
}

const char *tn_session_plan_warning(tn_session_plan *p) {
    enum { WARNING = 512 };
    if (!p || !p->fits) return "";
    if (!p->warning && (p->warning = tn_malloc(WARNING)) && tn__session_plan_warn(p, p->warning, WARNING) != TN_OK)
        p->warning[0] = '\0';
    return p->warning ? p->warning : "";
}

tn_status tn_session_plan_fit(const tn_session_plan *p, tn_fit *fit) {
    if (!p || !fit) return tn_fail(TN_E_INVALID, "tn_session_plan_fit: NULL argument");
    memset(fit, 0, sizeof *fit);
    tn_status status = report_plan(p, fit);
    if (status != TN_OK) tn_fit_free(fit);
    return status;
}

void tn_fit_free(tn_fit *fit) {
    if (!fit) return;
    tn_free(fit->devices);
    memset(fit, 0, sizeof *fit);
}

tn_status tn_session_plan_explain(const tn_session_plan *p, FILE *out) {
    if (!p || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_explain: NULL argument");
    return tn__placement_explain(p, out);
}

static tn_status check_not_ended(const tn_session_plan *p) {
    return p->ended ? tn_fail(TN_E_STATE, "the plan's session has ended, and its graphs with it") : TN_OK;
}

static tn_graph *reported_graph(const tn_session_plan *p, bool prefill) {
    return p->graphs.kept[prefill ? TN__REPORTED_PREFILL : TN__REPORTED_DECODE]->graph;
}

tn_status tn_session_plan_splits(const tn_session_plan *p, bool prefill, FILE *out) {
    if (!p || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_splits: NULL argument");
    TN_TRY(check_not_ended(p));
    return tn_sched_dump(p->sched, reported_graph(p, prefill), out);
}

tn_status tn_session_plan_graph(const tn_session_plan *plan, bool prefill, size_t device, const tn_plan **graph_plan,
                                size_t *memory) {
    const tn_session_plan *p = plan;
    if (!p || !graph_plan) return tn_fail(TN_E_INVALID, "tn_session_plan_graph: NULL argument");
    if (device >= p->placement.n_devices) return tn_fail(TN_E_INVALID, "no device %zu", device);
    TN_TRY(check_not_ended(p));
    size_t *memories = tn_calloc(p->placement.n_devices, sizeof *memories);
    if (!memories) return TN_E_NOMEM;
    tn_status status = tn_sched_plan(p->sched, reported_graph(p, prefill), graph_plan, memories);
    if (memory) *memory = memories[device];
    tn_free(memories);
    return status;
}

/* ---- Of a session ---- */

tn_status tn_session_print_launches(tn_session *s, bool prefill, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_print_launches: NULL argument");
    return tn_sched_print_programs(s->plan->sched, reported_graph(s->plan, prefill), out);
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
        if (!w->ignored && w->data && w->tensor->data == w->data &&
            tn_buffer_type_device(tn_buffer_get_type(w->tensor->buffer)) == device)
            f->mapped += w->size;
    }
}

/* Counted from the buffers that exist, not from the plan. */
tn_status tn_session_memory(const tn_session *s, tn_fit *fit) {
    if (!s || !fit) return tn_fail(TN_E_INVALID, "tn_session_memory: NULL argument");
    const tn_session_plan *p = s->plan;
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
        f->cache = f->adapters = 0;
        for (size_t i = 0; i < p->adapters.n_buffers; i++)
            if (p->adapters.buffers[i].device == d) f->adapters += tn_buffer_size(p->adapters.buffers[i].buffer);
        for (size_t i = 0; i < p->kv.n_buffers; i++)
            if (p->kv.buffers[i].device == d) f->cache += tn_buffer_size(p->kv.buffers[i].buffer);
        count_loaded_weights(p->model, tn_buffer_type_device(p->placement.types[d]), f);
        f->own = tn_stream_own_bytes(tn_sched_stream(p->sched, d));
    }
    size_t metadata = 0, prefixes = 0, tier, tiers = 0;
    status = tn__kv_host_bytes(&p->kv, &metadata);
    if (status == TN_OK) status = tn__prefixes_bytes(p, &prefixes);
    if (status == TN_OK) status = tn__tiers_bytes(p, &tier, &tiers);
    fit->devices[fit->n_devices - 1].staging =
        s->staging.bytes + s->results.bytes + s->embeddings.bytes + metadata + prefixes + tiers +
        tn__plan_upload_bytes(p) + tn__notes_bytes(p) +
        (p->loads ? tn__share_bytes(p->model) + tn__division_bytes(&p->model->division) : 0);
    fit->devices[fit->n_devices - 1].tier = s->tiers.host.bytes;
    return status;
}
