/* Moving tokens in the KV cache: changing positions, which rotates K, and compacting partly filled pages. Both run
 * small graphs over TN__MOVE_CELLS cells at a time, which are reserved with the session. A graph reads all its
 * cells before it writes any. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

/* Runs one graph: reads cells staging.move_from[0 … n-1], rotates K by staging.move_delta where the graph does that,
 * and writes cells staging.move_to. */
static tn_status run_move(tn_session *s, tn__graph_kind kind, int group, int32_t n) {
    tn__staging *g = &s->staging;
    tn__graph_set *set;
    TN_TRY(tn__graph_for(s->plan, (tn__shape){kind, TN__MOVE_CELLS, group, 0}, &set));
    /* Nothing rotates in this group, or its layers have no cells on this rank. */
    const bool nothing = !set->graph;
    if (nothing && !s->plan->model->division.by_layers) {
        tn__prefixes_move(s, group, kind == TN__GRAPH_SHIFT, n);
        return TN_OK;
    }
    const tn__micro_batch batch = {.n = n,
                                   .padded = TN__MOVE_CELLS,
                                   .h = &s->plan->model->h,
                                   .move_from = g->move_from,
                                   .move_to = g->move_to,
                                   .move_delta = g->move_delta};
    tn__results_keep(s);
    tn__queued_step_cancel(s);
    if (!nothing) TN_TRY(tn_sched_alloc(s->plan->sched, set->graph));
    tn__inputs_stage(&set->inputs, &batch, g->values);
    if (!nothing) TN_TRY(tn__inputs_set(&set->inputs, g->values));
    TN_TRY(tn__lead_run(s, set, g->values));
    if (!nothing) TN_TRY(tn_sched_run(s->plan->sched, set->graph));
    tn__prefixes_move(s, group, kind == TN__GRAPH_SHIFT, n);
    return TN_OK;
}

bool tn_session_can_shift(const tn_session *s) {
    return s && !s->plan->model->w.pos_embd && !s->plan->kv.states.n_rows;
}

tn_status tn__check_movable_sequence(const tn_session *s, int32_t seq) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if (seq < 0 || seq >= s->plan->kv.n_seqs)
        return tn_fail(TN_E_INVALID, "there is no sequence %d; the session has 0 to %d", seq, s->plan->kv.n_seqs - 1);
    if (s->plan->model->w.pos_embd)
        return tn_fail(TN_E_UNSUPPORTED, "%s has learned positions: cached tokens cannot move to other positions",
                       s->plan->model->arch->info.name);
    if (s->plan->model->arch->norm_qk_after_rope && s->plan->model->w.layers[0].k_norm)
        return tn_fail(TN_E_UNSUPPORTED, "%s normalises rotated keys: cached tokens cannot move to other positions",
                       s->plan->model->arch->info.name);
    if (s->plan->kv.states.n_rows)
        return tn_fail(TN_E_UNSUPPORTED, "%s has recurrent layers: their tokens cannot move to other positions",
                       s->plan->model->arch->info.name);
    return TN_OK;
}

/* The change of positions: add `by`, or divide by it. */
typedef struct position_change {
    bool divides;
    int32_t by;
} position_change;

/* The run with its new positions. False: they overflow. */
static bool change_run(position_change change, tn_page_run *run) {
    int64_t first = run->first, divisor = run->divisor;
    if (change.divides)
        divisor *= change.by;
    else
        first += divisor * change.by;
    if (divisor > INT32_MAX || first > INT32_MAX - run->count || first < INT32_MIN) return false;
    run->first = (int32_t)first;
    run->divisor = (int32_t)divisor;
    return true;
}

/* Rotates K of the first *n listed cells and empties the list. */
static tn_status rotate_cells(tn_session *s, int group, int32_t *n) {
    const int32_t count = *n;
    *n = 0;
    return count ? run_move(s, TN__GRAPH_SHIFT, group, count) : TN_OK;
}

/* Changes the positions of a run: cells that other sequences see are copied to a new page, then all are listed for
 * rotation. */
static tn_status change_run_positions(tn_session *s, int group, int32_t seq, int32_t i, position_change change,
                                      int32_t *n) {
    tn__page_table *t = &s->plan->kv.groups[group];
    tn__staging *g = &s->staging;
    tn_page_run before = tn__page_run_at(t, seq, i);
    if (tn__pages_shared(t, seq, i)) {
        TN_TRY(rotate_cells(s, group, n));
        TN_TRY(tn__pages_detach(t, seq, i, g->move_from, g->move_to));
        TN_TRY(run_move(s, TN__GRAPH_MOVE, group, before.count));
        before = tn__page_run_at(t, seq, i);
    }
    if (*n + before.count > TN__MOVE_CELLS) TN_TRY(rotate_cells(s, group, n));
    tn_page_run after = before;
    (void)change_run(change, &after); /* checked in prepare_change */
    for (int32_t k = 0; k < before.count; k++) {
        const int32_t delta = tn__run_position(after, k) - tn__run_position(before, k);
        if (!delta) continue;
        g->move_from[*n] = g->move_to[*n] = before.cell + k;
        g->move_delta[(*n)++] = delta;
    }
    tn__pages_set_positions(t, seq, i, after.first, after.divisor);
    return TN_OK;
}

static bool run_between(tn_page_run run, int32_t from, int32_t to) {
    const int32_t position = tn__run_position(run, 0);
    return position >= from && (to < 0 || position < to);
}

static tn_status change_group_positions(tn_session *s, int group, int32_t seq, int32_t from, int32_t to,
                                        position_change change) {
    tn__page_table *t = &s->plan->kv.groups[group];
    int32_t n = 0;
    for (int32_t i = 0; t->n_pages && i < t->sequences[seq].n; i++)
        if (run_between(tn__page_run_at(t, seq, i), from, to))
            TN_TRY(change_run_positions(s, group, seq, i, change, &n));
    return rotate_cells(s, group, &n);
}

/* Cuts runs at the ends of the range, and checks that there are enough pages: runs whose cells other sequences see
 * need a page each. */
static tn_status prepare_change(tn_session *s, int32_t seq, int32_t from, int32_t to, position_change change) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        int32_t shared = 0;
        if (!t->n_pages) continue;
        TN_TRY(tn__pages_cut(t, seq, from, to));
        for (int32_t i = 0; i < t->sequences[seq].n; i++) {
            tn_page_run run = tn__page_run_at(t, seq, i);
            const int32_t low = tn__run_position(run, 0);
            if (!run_between(run, from, to)) continue;
            shared += tn__pages_shared(t, seq, i);
            if (!change_run(change, &run)) return tn_fail(TN_E_OVERFLOW, "position %d overflows", low);
            if (!change.divides && low + change.by < 0)
                return tn_fail(TN_E_INVALID,
                               "shifting sequence %d from position %d by %d gives negative positions: remove earlier "
                               "tokens first",
                               seq, low, change.by);
        }
        if (shared > t->n_free)
            return tn_fail(TN_E_FULL,
                           "%d runs of sequence %d in this range are shared and need copies, and %d pages are "
                           "free: remove a sequence first",
                           shared, seq, t->n_free);
    }
    return TN_OK;
}

static tn_status change_positions(tn_session *s, int32_t seq, int32_t from, int32_t to, position_change change) {
    tn_status status;
    do status = prepare_change(s, seq, from, to, change);
    while (status == TN_E_FULL && tn__prefixes_evict(s));
    TN_TRY(status);
    for (int g = 0; g < TN__CACHE_GROUPS && status == TN_OK; g++)
        status = change_group_positions(s, g, seq, from, to, change);
    /* After a failure some cells have neither their old nor their new contents. */
    if (status != TN_OK) (void)tn_session_seq_remove(s, seq, 0, -1);
    return status;
}

tn_status tn_session_seq_shift(tn_session *s, int32_t seq, int32_t from, int32_t to, int32_t by) {
    TN_TRY(tn__check_movable_sequence(s, seq));
    return by == 0 ? TN_OK : change_positions(s, seq, from, to, (position_change){false, by});
}

tn_status tn_session_seq_divide(tn_session *s, int32_t seq, int32_t from, int32_t to, int32_t by) {
    TN_TRY(tn__check_movable_sequence(s, seq));
    if (by < 1) return tn_fail(TN_E_INVALID, "positions cannot be divided by %d", by);
    return by == 1 ? TN_OK : change_positions(s, seq, from, to, (position_change){true, by});
}

/* After a failure: removes what was being moved, sequences from all groups and with their recurrent state. */
static void remove_moving(tn_session *s, const tn__page_table *t) {
    for (int32_t list = 0; list < tn__page_lists(t); list++) {
        if (!t->sequences[list].moves) continue;
        if (list < t->n_seqs)
            (void)tn_session_seq_remove(s, list, 0, -1);
        else if (list < t->n_lists)
            tn__prefix_remove(s, list);
        else if (s->branches.list[list - t->n_lists].seq >= 0)
            (void)tn_session_seq_remove(s, s->branches.list[list - t->n_lists].seq, 0, -1);
    }
}

/* Moves the contents of cells to the cells of their numbers. */
static tn_status move_to_numbers(tn_session *s, int group) {
    tn__page_table *t = &s->plan->kv.groups[group];
    tn__staging *g = &s->staging;
    tn_status status = TN_OK;
    tn__pages_renumber(t);
    for (int32_t at = 0, n; status == TN_OK;) {
        if ((n = tn__pages_move(t, &at, TN__MOVE_CELLS, g->move_from, g->move_to)) == 0) return TN_OK;
        status = run_move(s, TN__GRAPH_MOVE, group, n);
    }
    remove_moving(s, t);
    return status;
}

/* Fills the private pages of each sequence in order. */
static tn_status order_pages(tn_session *s, int group) {
    tn__page_table *t = &s->plan->kv.groups[group];
    return t->n_pages && tn__pages_order(t) ? move_to_numbers(s, group) : TN_OK;
}

/* Moves every cell that a sequence sees to the front, including those of shared pages. */
static tn_status pack_pages(tn_session *s, int group) {
    tn__page_table *t = &s->plan->kv.groups[group];
    return t->n_pages && tn__pages_need_packing(t) && tn__pages_pack(t) ? move_to_numbers(s, group) : TN_OK;
}

/* Whether compaction would free more than a quarter of the pages in use. Checked only after as many cells were
 * removed: moving cells then costs less than decoding the removed ones did. */
static bool is_sparse(tn__page_table *t) {
    enum { SPARSE_SHARE = 4 };
    const int32_t in_use = t->n_pages - t->n_free;
    int32_t needed = 0;
    if (!t->n_pages || t->removed <= t->used / SPARSE_SHARE) return false;
    t->removed = 0;
    for (int32_t seq = 0; seq < tn__page_lists(t); seq++)
        needed += t->sequences[seq].n > 0; /* last pages may be partly filled */
    needed += tn__pages_number(t, 0, tn__page_lists(t)) / t->page;
    return in_use - needed > in_use / SPARSE_SHARE;
}

tn_status tn__gather_sparse_pages(tn_session *s) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        if (!is_sparse(t)) continue;
        TN_TRY(order_pages(s, g));
        t->removed = t->used; /* so that it is checked again */
        if (is_sparse(t)) TN_TRY(pack_pages(s, g));
    }
    return TN_OK;
}

tn_status tn_session_defragment(tn_session *s) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        s->plan->kv.groups[g].fragmented = false;
        TN_TRY(order_pages(s, g));
        TN_TRY(pack_pages(s, g));
    }
    return TN_OK;
}
