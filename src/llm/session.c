/* Sessions: creation from a plan, and their end. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

/* Takes what was planned: weights, cache, staging, and one reservation for all graphs. */
static tn_status take_memory(tn_session *s) {
    tn__session_plan *p = &s->plan;
    tn_model *m = p->model;
    const tn__load load = tn__session_plan_load(p);
    TN_TRY(tn__load_weights(m, &load));
    m->repacked = p->placement.repack;
    m->repack_rows = p->placement.repack_rows;
    TN_TRY(tn__kv_allocate(&p->kv, p->placement.types));
    tn_sched_set_locations(p->sched, NULL, NULL);
    for (size_t i = 0; i < p->graphs.n; i++) tn__graph_bind_argmax(&p->kv, p->graphs.sets[i]);
    TN_TRY(tn__staging_new(&p->params, p->pipelined, &s->staging));
    if (p->params.embeddings) TN_TRY(tn__embeddings_new(p, &s->embeddings));
    TN_TRY(tn__results_new(p, &s->results));
    TN_TRY(tn__queued_step_new(s));
    tn_graph *graphs[TN__COUNT(p->graphs.reserved)];
    for (size_t i = 0; i < p->graphs.n_reserved; i++) {
        bool in_flight;
        graphs[i] = p->graphs.reserved[i]->graph;
        TN_TRY(tn__graph_schedule(p, p->graphs.reserved[i], &in_flight));
    }
    return tn_sched_reserve_many(p->sched, graphs, p->graphs.n_reserved);
}

static tn_status create_session(tn_session *s) {
    TN_TRY(tn__session_plan_prepare(&s->plan));
    TN_TRY(tn__session_plan_choose(&s->plan));
    return s->plan.fits ? take_memory(s) : tn__session_plan_too_big(&s->plan);
}

tn_status tn_session_new(tn_model *model, const tn_session_params *params, tn_session **out) {
    if (!model || !out) return tn_fail(TN_E_INVALID, "tn_session_new: NULL argument");
    *out = NULL;
    if (model->params.vocab_only) return tn_fail(TN_E_STATE, "the model was opened for its vocabulary only");
    tn_session *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->plan.model = model;
    s->plan.params = params ? *params : tn_session_params_default();
    tn_status status = create_session(s);
    if (status != TN_OK) {
        tn_session_free(s);
        return status;
    }
    *out = s;
    return TN_OK;
}

void tn_session_free(tn_session *s) {
    if (!s) return;
    /* A queued step reads tensors and memory that are freed below. */
    if (s->plan.sched) (void)tn_sched_synchronize(s->plan.sched);
    tn__sequences_free(s);
    tn__queued_step_free(s);
    tn__session_plan_free(&s->plan);
    tn__staging_free(&s->staging);
    tn__results_free(&s->results);
    tn__embeddings_free(&s->embeddings);
    tn_free(s);
}

tn_model *tn_session_model(const tn_session *s) { return s->plan.model; }
tn_session_params tn_session_get_params(const tn_session *s) { return s->plan.params; }
tn_sched *tn_session_sched(tn_session *s) { return s->plan.sched; }

tn_session_stats tn_session_get_stats(const tn_session *s) {
    tn_session_stats stats = s->stats;
    stats.load_ns = s->plan.model->load_ns;
    stats.sched = tn_sched_get_stats(s->plan.sched);
    return stats;
}
void tn_session_reset_stats(tn_session *s) { memset(&s->stats, 0, sizeof s->stats); }
