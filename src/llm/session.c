/* Sessions: creation from a plan, and their end. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "llm/plan/cover.h"

#include <string.h>

/* Takes what was planned: weights, cache, staging, and one reservation for all graphs. */
static tn_status take_memory(tn_session *s) {
    tn_session_plan *p = s->plan;
    tn_model *m = p->model;
    const tn__load load = tn__session_plan_load(p);
    TN_TRY(tn__load_weights(m, &load));
    m->repacked = p->placement.repack;
    m->repack_rows = p->placement.repack_rows;
    TN_TRY(tn__adapters_take(p));
    TN_TRY(tn__kv_allocate(&p->kv, p->placement.types));
    tn_sched_set_locations(p->sched, NULL, NULL);
    for (size_t i = 0; i < p->graphs.n; i++) tn__graph_bind_results(&p->kv, p->graphs.sets[i]);
    TN_TRY(tn__tiers_new(s));
    TN_TRY(tn__prefixes_new(p, tn__tiers_seed(s), &s->prefixes));
    TN_TRY(tn__notes_new(p, &s->notes));
    TN_TRY(tn__staging_new(&p->params, p->pipelined, tn__states_width(&m->h), &s->staging));
    TN_TRY(tn__branches_new(p, &s->branches));
    tn__sequence_adapters_begin(s);
    if (p->params.embeddings) TN_TRY(tn__embeddings_new(p, &s->embeddings));
    TN_TRY(tn__results_new(p, &s->results));
    TN_TRY(tn__queued_step_new(s));
    TN_TRY(tn_sched_take(p->sched));
    TN_TRY(tn_sched_seal(p->sched));
    return tn__graphs_keep(p);
}

/* Free memory may have shrunk since the plan was made, and another session may have loaded the weights elsewhere. */
static tn_status check_plan(tn_session_plan *p) {
    if (p->used) return tn_fail(TN_E_STATE, "the plan was used by an earlier tn_session_new: make another plan");
    if (p->loads && p->model->loaded)
        return tn_fail(TN_E_STATE,
                       "another session has loaded the model's weights since the plan was made: plan again");
    if (p->model->division.n_ranks > 1 && !p->model->division.net)
        return tn_fail(TN_E_STATE, "rank %d of %d was planned without a transport: it cannot run",
                       p->model->division.rank, p->model->division.n_ranks);
    TN_TRY(tn__session_plan_refresh(p));
    TN_TRY(tn__session_plan_check_fit(p));
    return p->fits ? TN_OK : tn__session_plan_too_big(p);
}

tn_status tn_session_new(tn_session_plan *plan, tn_session **out) {
    if (!plan || !out) return tn_fail(TN_E_INVALID, "tn_session_new: NULL argument");
    *out = NULL;
    TN_TRY(tn__ranks_agree(plan, check_plan(plan)));
    tn_session *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->plan = plan;
    plan->n_users++;
    plan->used = true;
    tn_status status = take_memory(s);
    if (status == TN_OK && s->notes.net) status = tn_net_barrier(s->notes.net); /* all have loaded */
    if (status != TN_OK) {
        status = tn__ranks_fail(plan->model, status);
        tn_session_free(s);
    } else {
        *out = s;
    }
    return status;
}

tn_status tn_session_open(tn_model *model, const tn_session_params *params, tn_session **out) {
    if (!out) return tn_fail(TN_E_INVALID, "tn_session_open: NULL argument");
    *out = NULL;
    tn_session_plan *plan;
    TN_TRY(tn_session_plan_new(model, params, &plan));
    tn_status status = tn_session_new(plan, out);
    tn_session_plan_free(plan);
    return status;
}

void tn_session_free(tn_session *s) {
    if (!s) return;
    /* A queued step reads tensors and memory that are freed below. */
    if (s->plan->sched) (void)tn_sched_synchronize(s->plan->sched);
    tn__notes_free(&s->notes);
    tn__sequences_free(s);
    tn__queued_step_free(s);
    tn__tiers_free(s);
    tn__session_plan_end(s->plan);
    tn_session_plan_free(s->plan);
    tn__staging_free(&s->staging);
    tn__results_free(&s->results);
    tn__embeddings_free(&s->embeddings);
    tn__prefixes_free(&s->prefixes);
    tn_free(s->branches.list);
    tn_free(s);
}

const tn_session_plan *tn_session_get_plan(const tn_session *s) { return s->plan; }
tn_model *tn_session_model(const tn_session *s) { return s->plan->model; }
tn_session_params tn_session_get_params(const tn_session *s) { return s->plan->params; }
tn_sched *tn_session_sched(tn_session *s) { return s->plan->sched; }

tn_session_stats tn_session_get_stats(const tn_session *s) {
    tn_session_stats stats = s->stats;
    stats.load_ns = s->plan->model->load_ns;
    stats.sched = tn_sched_get_stats(s->plan->sched);
    return stats;
}
void tn_session_reset_stats(tn_session *s) { memset(&s->stats, 0, sizeof s->stats); }
