/* Moving tokens in the KV cache: changing positions, which rotates K further, and closing holes. Both run small
 * graphs over TN__MOVE_CELLS cells at a time, which are reserved with the session. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

/* Runs one graph: reads cells staging.move_from[0 … n-1], rotates K by staging.move_delta where the graph does that,
 * and writes cells staging.move_to. */
static tn_status run_move(tn_session *s, tn__graph_kind kind, int group, int32_t n) {
    tn__staging *g = &s->staging;
    tn__graph_set *set;
    TN_TRY(tn__graph_for(s->plan, (tn__shape){kind, TN__MOVE_CELLS, group}, &set));
    if (!set->graph) return TN_OK; /* nothing rotates in this group */
    const tn__micro_batch batch = {.n = n,
                                   .padded = TN__MOVE_CELLS,
                                   .h = &s->plan->model->h,
                                   .move_from = g->move_from,
                                   .move_to = g->move_to,
                                   .move_delta = g->move_delta};
    tn__results_keep(s);
    tn__queued_step_cancel(s);
    TN_TRY(tn_sched_alloc(s->plan->sched, set->graph));
    tn__inputs_stage(&set->inputs, &batch, g->values);
    TN_TRY(tn__inputs_set(&set->inputs, g->values));
    return tn_sched_run(s->plan->sched, set->graph);
}

/* After a failure: the cells that were being written hold neither what they held nor what they should. */
static tn_status drop_moved(tn_session *s, int group, int32_t n, tn_status status) {
    tn__cells *c = &s->plan->kv.groups[group];
    if (status == TN_OK) return TN_OK;
    for (int32_t i = 0; i < n; i++)
        if (tn__cell_meta(c, s->staging.move_to[i])[0] >= 0) tn__cell_empty(c, s->staging.move_to[i]);
    for (int32_t seq = 0; seq < s->plan->kv.n_seqs; seq++) c->last[seq] = -1;
    return status;
}
static tn_status move_or_drop(tn_session *s, tn__graph_kind kind, int group, int32_t n) {
    return drop_moved(s, group, n, run_move(s, kind, group, n));
}

static tn_status check_movable_sequence(const tn_session *s, int32_t seq) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if (seq < 0 || seq >= s->plan->kv.n_seqs)
        return tn_fail(TN_E_INVALID, "there is no sequence %d; the session has 0 to %d", seq, s->plan->kv.n_seqs - 1);
    if (s->plan->model->w.pos_embd)
        return tn_fail(TN_E_UNSUPPORTED, "%s has learned positions: cached tokens cannot move to other positions",
                       s->plan->model->arch->info.name);
    return TN_OK;
}

typedef int32_t (*new_position_fn)(int32_t position, int32_t by);
static int32_t add_to_position(int32_t position, int32_t by) { return position + by; }
static int32_t divide_position(int32_t position, int32_t by) { return position / by; }

static tn_status change_positions(tn_session *s, int32_t seq, int32_t from, int32_t to, new_position_fn fn,
                                  int32_t by) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->plan->kv.groups[g];
        int32_t n = 0;
        for (int32_t i = 0; c->n && i < c->end; i++) {
            int32_t *meta = tn__cell_meta(c, i);
            bool ours = meta[0] >= 0 && tn__cell_has_seq(c, i, seq);
            if (!ours || meta[0] < from || (to >= 0 && meta[0] >= to)) continue;
            int32_t position = fn(meta[0], by);
            if (position < 0)
                return tn_fail(TN_E_INVALID, "position %d of sequence %d would become %d", meta[0], seq, position);
            if (position == meta[0]) continue;
            s->staging.move_from[n] = s->staging.move_to[n] = i;
            s->staging.move_delta[n++] = position - meta[0];
            meta[0] = position;
            tn__cells_touch(c, i);
            if (n == TN__MOVE_CELLS) {
                TN_TRY(move_or_drop(s, TN__GRAPH_SHIFT, g, n));
                n = 0;
            }
        }
        if (n) TN_TRY(move_or_drop(s, TN__GRAPH_SHIFT, g, n));
    }
    return TN_OK;
}

tn_status tn_session_seq_shift(tn_session *s, int32_t seq, int32_t from, int32_t to, int32_t by) {
    TN_TRY(check_movable_sequence(s, seq));
    if (by == 0) return TN_OK;
    /* Checked for all cells before any of them changes. */
    int32_t first = tn_session_seq_first(s, seq);
    if (by < 0 && first >= 0 && TN__MAX(first, from) + by < 0 && (to < 0 || TN__MAX(first, from) < to))
        return tn_fail(TN_E_INVALID,
                       "shifting sequence %d from position %d by %d leads below 0: remove what comes before first",
                       seq, TN__MAX(first, from), by);
    return change_positions(s, seq, from, to, add_to_position, by);
}

tn_status tn_session_seq_divide(tn_session *s, int32_t seq, int32_t from, int32_t to, int32_t by) {
    TN_TRY(check_movable_sequence(s, seq));
    if (by < 1) return tn_fail(TN_E_INVALID, "positions cannot be divided by %d", by);
    return by == 1 ? TN_OK : change_positions(s, seq, from, to, divide_position, by);
}

tn_status tn_session_defragment(tn_session *s) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->plan->kv.groups[g];
        if (!c->n) continue;
        int32_t hole = 0, n = 0;
        size_t row = (size_t)(1 + c->words) * sizeof(int32_t);
        for (int32_t seq = 0; seq < s->plan->kv.n_seqs; seq++) c->last[seq] = -1;
        /* The highest cell fills the lowest hole until there is none below it. Targets lie below all sources, so a
         * batch of moves never reads what it has written. */
        while (c->used < c->end) {
            while (tn__cell_meta(c, hole)[0] >= 0) hole++;
            int32_t last = c->end - 1;
            s->staging.move_from[n] = last;
            s->staging.move_to[n++] = hole;
            memcpy(tn__cell_meta(c, hole), tn__cell_meta(c, last), row);
            memset(tn__cell_meta(c, last), 0, row);
            tn__cell_meta(c, last)[0] = -1;
            tn__cells_touch(c, hole);
            tn__cells_touch(c, last);
            while (c->end > 0 && tn__cell_meta(c, c->end - 1)[0] < 0) c->end--;
            if (n == TN__MOVE_CELLS) {
                TN_TRY(move_or_drop(s, TN__GRAPH_MOVE, g, n));
                n = 0;
            }
        }
        if (n) TN_TRY(move_or_drop(s, TN__GRAPH_MOVE, g, n));
    }
    return TN_OK;
}
