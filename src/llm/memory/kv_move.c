/* Moving things in the KV cache: shifting and dividing positions (K is rotated on), closing holes. Both go through
 * small graphs over MOVE_CELLS cells at a time, which are reserved with the session. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <string.h>

static int32_t *meta_of(const tn__cells *c, int32_t cell) { return c->meta + (size_t)cell * (size_t)(1 + c->words); }

/* Runs one move graph: cell from[i] is read, its K rotated by delta[i] where the graph does that, and written to
 * to[i]. */
static tn_status run_move(tn_session *s, tn__graph_kind kind, int group, int32_t n) {
    tn__graph_set *set;
    TN_TRY(tn__graph_for(s, (tn__shape){kind, TN__MOVE_CELLS, group}, &set));
    if (!set->graph) return TN_OK; /* nothing rotates in this group */
    for (int32_t i = n; i < TN__MOVE_CELLS; i++) {
        s->move_from[i] = 0;
        s->move_to[i] = -1; /* not written */
        s->move_delta[i] = 0;
    }
    tn__keep_results(s);
    tn__ahead_stop(s);
    TN_TRY(tn_sched_alloc(s->sched, set->graph));
    TN_TRY(tn_tensor_set(set->tokens, s->move_from));
    TN_TRY(tn_tensor_set(set->rows[group], s->move_to));
    if (set->positions && set->positions->data) TN_TRY(tn_tensor_set(set->positions, s->move_delta));
    return tn_sched_run(s->sched, set->graph);
}

static tn_status check_seq(const tn_session *s, int32_t seq) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if (seq < 0 || seq >= s->kv.n_seqs)
        return tn_fail(TN_E_INVALID, "there is no sequence %d; the session has 0 to %d", seq, s->kv.n_seqs - 1);
    if (s->model->w.pos_embd)
        return tn_fail(TN_E_UNSUPPORTED, "%s learned its positions: cached tokens cannot move to others",
                       s->model->arch->name);
    return TN_OK;
}

typedef int32_t (*new_position_fn)(int32_t position, int32_t by);
static int32_t plus(int32_t position, int32_t by) { return position + by; }
static int32_t over(int32_t position, int32_t by) { return position / by; }

static tn_status change_positions(tn_session *s, int32_t seq, int32_t from, int32_t to, new_position_fn fn,
                                  int32_t by) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->kv.groups[g];
        int32_t n = 0;
        for (int32_t i = 0; c->n && i < c->end; i++) {
            int32_t *meta = meta_of(c, i);
            bool ours = meta[0] >= 0 && (uint32_t)meta[1 + seq / 32] >> (seq % 32) & 1;
            if (!ours || meta[0] < from || (to >= 0 && meta[0] >= to)) continue;
            int32_t position = fn(meta[0], by);
            if (position < 0)
                return tn_fail(TN_E_INVALID, "position %d of sequence %d would become %d", meta[0], seq, position);
            if (position == meta[0]) continue;
            s->move_from[n] = s->move_to[n] = i;
            s->move_delta[n++] = position - meta[0];
            meta[0] = position;
            tn__cells_touch(c, i);
            if (n == TN__MOVE_CELLS) {
                TN_TRY(run_move(s, TN__GRAPH_SHIFT, g, n));
                n = 0;
            }
        }
        if (n) TN_TRY(run_move(s, TN__GRAPH_SHIFT, g, n));
    }
    return TN_OK;
}

tn_status tn_session_seq_shift(tn_session *s, int32_t seq, int32_t from, int32_t to, int32_t by) {
    TN_TRY(check_seq(s, seq));
    if (by == 0) return TN_OK;
    /* Checked for all cells before any changes. */
    int32_t first = tn_session_seq_first(s, seq);
    if (by < 0 && first >= 0 && TN__MAX(first, from) + by < 0 && (to < 0 || TN__MAX(first, from) < to))
        return tn_fail(TN_E_INVALID,
                       "shifting sequence %d from position %d by %d leads below 0: remove what comes before first",
                       seq, TN__MAX(first, from), by);
    return change_positions(s, seq, from, to, plus, by);
}

tn_status tn_session_seq_divide(tn_session *s, int32_t seq, int32_t from, int32_t to, int32_t by) {
    TN_TRY(check_seq(s, seq));
    if (by < 1) return tn_fail(TN_E_INVALID, "positions cannot be divided by %d", by);
    return by == 1 ? TN_OK : change_positions(s, seq, from, to, over, by);
}

tn_status tn_session_defragment(tn_session *s) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->kv.groups[g];
        if (!c->n) continue;
        int32_t hole = 0, n = 0;
        size_t row = (size_t)(1 + c->words) * sizeof(int32_t);
        for (int32_t seq = 0; seq < s->kv.n_seqs; seq++) c->last[seq] = -1;
        /* The highest cell fills the lowest hole until there is none below it. Targets lie below all sources, so a
         * batch of moves never reads what it has written. */
        while (c->used < c->end) {
            while (meta_of(c, hole)[0] >= 0) hole++;
            int32_t last = c->end - 1;
            s->move_from[n] = last;
            s->move_to[n++] = hole;
            memcpy(meta_of(c, hole), meta_of(c, last), row);
            memset(meta_of(c, last), 0, row);
            meta_of(c, last)[0] = -1;
            tn__cells_touch(c, hole);
            tn__cells_touch(c, last);
            while (c->end > 0 && meta_of(c, c->end - 1)[0] < 0) c->end--;
            if (n == TN__MOVE_CELLS) {
                TN_TRY(run_move(s, TN__GRAPH_MOVE, g, n));
                n = 0;
            }
        }
        if (n) TN_TRY(run_move(s, TN__GRAPH_MOVE, g, n));
    }
    return TN_OK;
}
