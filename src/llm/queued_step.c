/* Greedy loops: while the host looks at a token, the device is already at work on the one after it.
 *
 * A loop that wants nothing but the best token of each step leaves the host no say in what comes next, so the device
 * takes its own result as its next input and the host's part, asking and queueing, costs no time. A step that was
 * queued this way does not show until it is asked for: its cell is taken on the device only. If what is asked for
 * next is something else, or the cache has changed, the step is thrown away. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

static tn_device *device_of(const tn_session *s) {
    return tn_stream_device(tn_sched_stream(s->sched, (size_t)s->kv.found_device));
}

bool tn__ahead_possible(const tn_session *s) {
    const tn_device_caps caps = tn_device_get_caps(device_of(s));
    if (!caps.async || !caps.events || s->params.embeddings || !s->model->h.causal) return false;
    if (s->kv.groups[TN__CACHE_WINDOW].n) return false; /* taking a cell there frees others */
    for (int32_t i = 0; i < s->model->h.n_layer + 2; i++)
        if (s->device_of_layer[i] != s->kv.found_device) return false;
    return true;
}

tn_status tn__ahead_new(tn_session *s, int32_t *found) {
    tn__ahead *a = &s->ahead;
    if (!tn__ahead_possible(s)) return TN_OK;
    tn__graph_set *set;
    tn_sched_info info;
    TN_TRY(tn__graph_for(s, (tn__shape){TN__GRAPH_NEXT, 1, 1}, &set));
    TN_TRY(tn_sched_describe(s->sched, set->graph, &info));
    for (int i = 0; i < 2; i++) {
        a->places[i].found = found + 2 * i;
        TN_TRY(tn_event_new(device_of(s), &a->places[i].done));
    }
    a->can = info.splits == 1;
    return TN_OK;
}
void tn__ahead_free(tn_session *s) {
    tn__ahead_stop(s);
    for (int i = 0; i < 2; i++) tn_event_free(s->ahead.places[i].done);
}

void tn__ahead_stop(tn_session *s) {
    if (s->ahead.runs) (void)tn_sched_synchronize(s->sched); /* a failure of what nobody wanted is nobody's */
    s->ahead.runs = false;
}

/* The inputs lie in their place until the step has run: devices may read them late. */
static tn_status send(tn_session *s, tn__graph_set *set, int place, size_t meta_at, size_t meta_size) {
    tn_stream *queue = tn_sched_stream(s->sched, (size_t)s->kv.found_device);
    const struct {
        tn_tensor *to;
        const void *from;
        size_t at, size;
    } inputs[] = {
        {s->kv.meta[(size_t)s->kv.found_device], s->ahead.places[place].meta, meta_at, meta_size},
        {set->q_pos, s->ahead.places[place].q_pos, 0, 2 * sizeof(int32_t)},
        {set->positions->data ? set->positions : NULL, &s->ahead.places[place].position, 0, sizeof(int32_t)},
        {set->q_scale, &s->ahead.places[place].q_scale, 0, sizeof(float)},
        {set->rows[TN__CACHE_FULL], &s->ahead.places[place].row, 0, sizeof(int32_t)},
        {set->range[TN__CACHE_FULL], s->ahead.places[place].range, 0, 2 * sizeof(int32_t)},
    };
    for (size_t i = 0; i < TN__COUNT(inputs); i++)
        if (inputs[i].to)
            TN_TRY(tn_stream_set_async(queue, inputs[i].to, inputs[i].from, inputs[i].at, inputs[i].size));
    TN_TRY(tn_sched_run_async(s->sched, set->graph));
    TN_TRY(tn_stream_get_async(queue, s->kv.found, s->ahead.places[place].found, 0, 2 * sizeof(int32_t)));
    return tn_event_record(s->ahead.places[place].done, queue);
}

/* Queues the step behind the token at a->position. What hinders it is left to the step as it is asked for. */
static void queue_next(tn_session *s) {
    tn__ahead *a = &s->ahead;
    tn__cells *c = &s->kv.groups[TN__CACHE_FULL];
    const tn_tensor *learned = s->model->w.pos_embd;
    const int32_t position = a->position + 1, last = c->last[a->seq], peak = s->kv.peak;
    const size_t row_ints = (size_t)(1 + c->words);
    tn__graph_set *set;
    if ((learned && position >= learned->ne[1]) || c->used == c->n ||
        tn__graph_for(s, (tn__shape){TN__GRAPH_NEXT, 1, 1}, &set) != TN_OK ||
        tn_sched_alloc(s->sched, set->graph) != TN_OK || tn__kv_take(&s->kv, 1, &position, &a->seq, s->rows) != TN_OK)
        return;
    const int32_t cell = s->rows[TN__CACHE_FULL][0], first = c->dirty_first, end = c->dirty_end;
    const size_t ints = (size_t)(end - first) * row_ints;
    tn_status status = TN_E_TOO_BIG;
    if (ints <= TN__AHEAD_META) {
        const int place = a->turn ^= 1;
        memcpy(a->places[place].meta, c->meta + (size_t)first * row_ints, ints * sizeof(int32_t));
        a->places[place].q_pos[0] = a->places[place].position = position;
        a->places[place].q_pos[1] = a->seq;
        a->places[place].q_scale = tn__query_scale(&s->model->h, position);
        a->places[place].row = cell;
        a->places[place].found[0] = -1; /* until the step has ended well */
        tn__kv_range(&s->kv, TN__CACHE_FULL, a->places[place].range);
        c->dirty_first = c->dirty_end = c->n_dirty = 0;
        status = send(s, set, place, (size_t)first * row_ints * sizeof(int32_t), ints * sizeof(int32_t));
        if (status != TN_OK) {
            (void)tn_sched_synchronize(s->sched);
            for (int32_t i = first; i < end; i++) tn__cells_touch(c, i);
            a->can = false;
        }
    }
    tn__kv_give_back(&s->kv, a->seq, cell, last, peak);
    a->changes = c->changes;
    a->runs = status == TN_OK;
}

void tn__ahead_go_on(tn_session *s, tn_token token) {
    tn__ahead *a = &s->ahead;
    const bool loops = a->looping && s->seqs[0] == a->seq && s->positions[0] == a->position + 1 && token == a->found;
    a->seq = s->seqs[0];
    a->position = s->positions[0];
    a->found = s->best[0];
    a->looping = true;
    if (loops && a->can) queue_next(s);
}

bool tn__ahead_serves(const tn_session *s, tn_token token) {
    const tn__ahead *a = &s->ahead;
    return a->runs && token == a->found && s->seqs[0] == a->seq && s->positions[0] == a->position + 1 &&
           s->kv.groups[TN__CACHE_FULL].changes == a->changes;
}

tn_status tn__ahead_take(tn_session *s, int32_t found[2]) {
    tn__ahead *a = &s->ahead;
    const int place = a->turn;
    TN_TRY(tn__kv_take(&s->kv, 1, s->positions, s->seqs, s->rows));
    if (s->rows[TN__CACHE_FULL][0] != a->places[place].row)
        return tn_fail(TN_E_INTERNAL, "a step ran ahead into another cell than its own");
    a->position++;
    a->runs = false;
    queue_next(s);
    TN_TRY(tn_event_synchronize(a->places[place].done));
    if (a->places[place].found[0] < 0) { /* some devices say what failed only when all is waited for */
        TN_TRY(tn_sched_synchronize(s->sched));
        return tn_fail(TN_E_DEVICE, "%s gave no result", tn_device_name(device_of(s)));
    }
    memcpy(found, a->places[place].found, 2 * sizeof *found);
    a->found = found[0];
    return TN_OK;
}
