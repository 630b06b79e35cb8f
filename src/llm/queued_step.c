/* Queued steps: the device computes the next step of a greedy loop while the host still handles the last token.
 *
 * A loop that requests only the argmax of each step feeds it back unchanged, so the device can use its own result as
 * the next input, which hides the host's time between two steps. A queued step is invisible until it is requested:
 * its cell is allocated only then. A step whose cell begins a new page is not queued. If another batch is requested
 * next, or the cache has changed, the step is discarded. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

static tn__shape next_shape(uint32_t adapters) { return (tn__shape){TN__GRAPH_NEXT, 1, 1, adapters}; }

bool tn__queued_step_possible(const tn_session_plan *p) {
    const tn_device_caps caps = tn_device_get_caps(tn__plan_device(p, (size_t)p->kv.argmax_device));
    if (!caps.async || !caps.events || p->params.embeddings || !p->model->h.causal) return false;
    if (p->params.states || tn__states_width(&p->model->h)) return false; /* every step transfers hidden states */
    if (p->kv.groups[TN__CACHE_WINDOW].n_pages) return false; /* allocating a cell in a window may free others */
    if (p->model->division.n_ranks > 1) return false;         /* the other ranks wait for rank 0 to ask for a step */
    if (p->kv.states.n_rows) return false;                    /* the steps' rows change from token to token */
    for (int32_t i = 0; i < p->model->h.n_layer + 2; i++)
        if (p->placement.device_of_layer[i] != p->kv.argmax_device) return false;
    return true;
}

tn_status tn__queued_step_new(tn_session *s) {
    tn_session_plan *p = s->plan;
    tn__queued_step *q = &s->queued;
    if (!tn__queued_step_possible(p)) return TN_OK;
    tn__graph_set *set;
    tn_sched_info info, adapted = {.splits = 1};
    if (p->adapters.n) {
        TN_TRY(tn__graph_for(p, next_shape(tn__adapters_all(p->adapters.n)), &set));
        TN_TRY(tn_sched_describe(p->sched, set->graph, &adapted));
    }
    TN_TRY(tn__graph_for(p, next_shape(0), &set));
    TN_TRY(tn_sched_describe(p->sched, set->graph, &info));
    for (int i = 0; i < 2; i++) {
        q->buffers[i].step = s->results.steps + 2 * i;
        TN_TRY(tn_event_new(tn__plan_device(p, (size_t)p->kv.argmax_device), &q->buffers[i].done));
    }
    q->possible = info.splits == 1;
    q->with_adapters = adapted.splits == 1;
    return TN_OK;
}

void tn__queued_step_free(tn_session *s) {
    tn__queued_step_cancel(s);
    for (int i = 0; i < 2; i++) tn_event_free(s->queued.buffers[i].done);
}

void tn__queued_step_cancel(tn_session *s) {
    if (s->queued.queued) (void)tn_sched_synchronize(s->plan->sched); /* errors of a discarded step are ignored */
    s->queued.queued = false;
}

static void list_step_values(tn__queued_step *q, int buffer, void *values[TN__INPUT_COUNT]) {
    for (int i = 0; i < TN__INPUT_COUNT; i++) values[i] = q->buffers[buffer].values[i];
    values[TN__INPUT_ADAPTER_SCALES] = q->buffers[buffer].scales;
}

/* Queues inputs, the graph and the copy of its result. Devices may read the inputs late, so their buffer
 * stays unchanged until the step has run. */
static tn_status queue_step(tn_session *s, tn__graph_set *set, int buffer) {
    tn_session_plan *p = s->plan;
    tn__queued_step *q = &s->queued;
    const size_t device = (size_t)p->kv.argmax_device;
    tn_stream *queue = tn_sched_stream(p->sched, device);
    void *values[TN__INPUT_COUNT];
    list_step_values(q, buffer, values);
    TN_TRY(tn__inputs_set_async(&set->inputs, values, queue));
    TN_TRY(tn_sched_run_async(p->sched, set->graph));
    TN_TRY(tn_stream_get_async(queue, p->kv.argmax, q->buffers[buffer].step, 0, 2 * sizeof(int32_t)));
    return tn_event_record(q->buffers[buffer].done, queue);
}

static void stage_step(tn_session *s, const tn__graph_set *set, int buffer, const int32_t *position,
                       const int32_t *cell) {
    tn__queued_step *q = &s->queued;
    tn__micro_batch batch = {.n = 1,
                             .padded = 1,
                             .h = &s->plan->model->h,
                             .positions = position,
                             .seqs = &q->seq,
                             .rows = {[TN__CACHE_FULL] = cell},
                             .n_outputs = 1,
                             .adapters = set->shape.adapters,
                             .n_adapters = s->plan->adapters.n,
                             .scales = s->staging.scales,
                             .factors = s->plan->adapters.factors};
    void *values[TN__INPUT_COUNT];
    list_step_values(q, buffer, values);
    tn__inputs_stage(&set->inputs, &batch, values);
    q->buffers[buffer].row = *cell;
    q->buffers[buffer].step[0] = -1; /* until the step has succeeded */
}

/* Queues the step after the token at q->position. If that fails, the error is reported when the step is requested. */
static void queue_next_step(tn_session *s) {
    tn_session_plan *p = s->plan;
    tn__queued_step *q = &s->queued;
    const tn__page_table *pages = &p->kv.groups[TN__CACHE_FULL];
    const tn_tensor *learned = p->model->w.pos_embd;
    const int32_t position = q->position + 1, cell = tn__pages_next_cell(pages, q->seq, position);
    const uint32_t adapters = tn__batch_adapters(s, &q->seq, 1);
    tn__graph_set *set;
    if (cell < 0 || (learned && position >= learned->ne[1]) || (adapters && !q->with_adapters) ||
        tn__graph_for(p, next_shape(adapters), &set) != TN_OK || tn_sched_alloc(p->sched, set->graph) != TN_OK)
        return;
    const int buffer = q->current ^= 1;
    stage_step(s, set, buffer, &position, &cell);
    const tn_status status = queue_step(s, set, buffer);
    if (status != TN_OK) {
        (void)tn_sched_synchronize(p->sched);
        /* A step that was stopped may be queued again; one that failed would fail again. */
        if (status != TN_E_ABORTED) q->possible = false;
    }
    q->changes = pages->changes;
    q->queued = status == TN_OK;
}

void tn__queued_step_continue(tn_session *s, tn_token token) {
    tn__queued_step *q = &s->queued;
    const int32_t seq = s->staging.seqs[0], position = s->staging.positions[0];
    const bool continues = q->looping && seq == q->seq && position == q->position + 1 && token == q->argmax;
    q->seq = seq;
    q->position = position;
    q->argmax = s->results.argmax[0];
    q->looping = true;
    if (continues && q->possible) queue_next_step(s);
}

bool tn__queued_step_matches(const tn_session *s, tn_token token) {
    const tn__queued_step *q = &s->queued;
    return q->queued && token == q->argmax && s->staging.seqs[0] == q->seq &&
           s->staging.positions[0] == q->position + 1 && s->plan->kv.groups[TN__CACHE_FULL].changes == q->changes;
}

tn_status tn__queued_step_take(tn_session *s, int32_t step[2]) {
    tn__queued_step *q = &s->queued;
    const int buffer = q->current;
    TN_TRY(tn__kv_take(&s->plan->kv, 1, s->staging.positions, s->staging.seqs, s->staging.rows, s->staging.steps));
    if (s->staging.rows[TN__CACHE_FULL][0] != q->buffers[buffer].row)
        return tn_fail(TN_E_INTERNAL, "a queued step wrote another cell than its own");
    if (s->prefixes.n)
        tn__prefixes_write(s, 1, &q->argmax, s->staging.positions, s->staging.seqs, NULL,
                           s->staging.rows[TN__CACHE_FULL]);
    q->position++;
    q->queued = false;
    queue_next_step(s);
    TN_TRY(tn_event_synchronize(q->buffers[buffer].done));
    if (q->buffers[buffer].step[0] < 0) { /* some devices report failures only when all work is waited for */
        TN_TRY(tn_sched_synchronize(s->plan->sched));
        return tn_fail(TN_E_DEVICE, "%s gave no result",
                       tn_device_name(tn__plan_device(s->plan, (size_t)s->plan->kv.argmax_device)));
    }
    memcpy(step, q->buffers[buffer].step, 2 * sizeof *step);
    q->argmax = step[0];
    return TN_OK;
}
