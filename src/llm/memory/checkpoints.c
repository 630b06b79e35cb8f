/* Checkpoints: the lengths of a sequence at which layers with a window or with recurrent state can continue.
 *
 * A checkpoint is a kept prefix like any other: its cells are those of the sequence, and its recurrent state is
 * written while the micro-batch computes, to a row of its own. They are made where the caller requests them (ends of
 * messages, branches), and periodically in every sequence. Periodic ones are spare until a sequence has taken them:
 * when rows for states run out, spare checkpoints are evicted first, then the least recently taken ones. */
#include "llm/session_internal.h"

#include "base/checked.h"

enum {
    INTERVAL_LEAST = 128,
    SPARE_SHARE = 4, /* spare checkpoints evict others only while they are less than this fraction of all */
};

static const tn__page_table *windows_of(const tn_session_plan *p) { return &p->kv.groups[TN__CACHE_WINDOW]; }
static bool needs_checkpoints(const tn_session_plan *p) {
    return p->params.n_prefixes && (p->kv.states.n_rows || windows_of(p)->n_pages);
}

/* ---- In the plan ---- */

static size_t state_bytes_of(const tn__kv *kv) {
    size_t bytes = 0;
    for (int32_t i = 0; i < TN__STATE_TENSORS * kv->n_layer; i++) {
        const tn_tensor *t = kv->layers[i / TN__STATE_TENSORS].state[i % TN__STATE_TENSORS];
        if (t) bytes += t->nb[1];
    }
    return bytes;
}

/* Cells of the pages that a window may touch, in all layers that have one. */
static size_t window_bytes_of(const tn__kv *kv) {
    const tn__page_table *t = &kv->groups[TN__CACHE_WINDOW];
    size_t bytes = 0;
    if (!t->n_pages) return 0;
    for (int32_t i = 0; i < kv->n_layer; i++)
        for (int k = 0; k < TN__CELL_TENSORS && kv->layers[i].group == TN__CACHE_WINDOW; k++) {
            const tn_tensor *cells = tn__kv_layer_tensor(kv, i, k);
            if (cells) bytes += cells->nb[1];
        }
    return bytes * (size_t)((t->window - 1 + 2 * (t->page - 1)) / t->page + 1) * (size_t)t->page;
}

/* By default one sequence of the trained length uses half of the checkpoints that the device and host memory hold.
 * Windows need none if cells that leave them move to host memory. */
int32_t tn__checkpoint_interval(const tn_session_plan *p) {
    const tn_session_params *q = &p->params;
    const size_t state = state_bytes_of(&p->kv);
    if (!needs_checkpoints(p) || q->checkpoint_every < 0) return 0;
    if (!state && (q->cache_ram || q->cache_disk)) return 0;
    if (q->checkpoint_every) return q->checkpoint_every;
    const int32_t trained = p->model->h.n_ctx_train;
    const uint64_t length = (uint64_t)(trained > 0 ? TN__MIN(trained, q->n_ctx) : q->n_ctx);
    const uint64_t room = (uint64_t)q->n_checkpoints + (state ? q->cache_ram / state : 0);
    const uint64_t every = (2 * length / TN__MAX(room, 1) + INTERVAL_LEAST - 1) / INTERVAL_LEAST * INTERVAL_LEAST;
    return (int32_t)TN__MAX(TN__MIN(every, (uint64_t)q->n_ctx), INTERVAL_LEAST);
}

tn_checkpoint_plan tn_session_plan_checkpoints(const tn_session_plan *p) {
    if (!p || !needs_checkpoints(p)) return (tn_checkpoint_plan){0};
    return (tn_checkpoint_plan){.n = p->params.n_checkpoints,
                                .every = tn__checkpoint_interval(p),
                                .states = state_bytes_of(&p->kv),
                                .window = window_bytes_of(&p->kv)};
}

/* ---- Giving up ---- */

/* Whether another list sees the cell of the list's last token: the cells then stay in use without this list. */
static bool is_inside_another(const tn_session *s, int32_t list) {
    const tn__page_table *t = &s->plan->kv.groups[s->prefixes.group];
    if (!t->sequences[list].n) return true;
    const tn_page_run last = tn__page_run_at(t, list, t->sequences[list].n - 1);
    const int32_t cell = last.cell + last.count - 1;
    for (int32_t other = 0; other < t->n_lists; other++)
        for (int32_t i = t->sequences[other].n - 1; other != list && i >= 0; i--) {
            const tn_page_run run = tn__page_run_at(t, other, i);
            if (cell >= run.cell && cell < run.cell + run.count) return true;
        }
    return false;
}

/* The kept prefix whose state is evicted first; -1: none has a row that it does not share. */
static int32_t least_useful_state(const tn_session *s, bool only_spare) {
    const tn__recurrent *states = &s->plan->kv.states;
    const tn__checkpoint_use *uses = s->prefixes.uses;
    int32_t least = -1;
    for (int32_t i = 0; states->n_rows && i < s->prefixes.n; i++) {
        const int32_t list = states->n_seqs + i, row = states->owners[list].row;
        if (row < 0 || states->refs[row] != 1 || list == s->prefixes.in_use || (only_spare && !uses[i].spare))
            continue;
        if (least < 0 || (uses[i].spare != uses[least].spare ? uses[i].spare : uses[i].when < uses[least].when))
            least = i;
    }
    return least < 0 ? -1 : states->n_seqs + least;
}

/* Without tiers, cells without a state are useless. With tiers the state may be restored. */
static bool give_up_state(tn_session *s, bool only_spare) {
    tn__recurrent *states = &s->plan->kv.states;
    const int32_t list = least_useful_state(s, only_spare);
    if (list < 0) return false;
    tn__tiers_store_state(s, list, tn__recurrent_tokens(states, list));
    if (!s->tiers.on || is_inside_another(s, list))
        tn__prefix_remove(s, list);
    else
        tn__recurrent_remove(states, list);
    s->prefixes.evicted++;
    return true;
}

bool tn__checkpoints_evict(tn_session *s) { return give_up_state(s, false); }

/* ---- Making ---- */

/* Whether there is a checkpoint after these n tokens. */
static bool is_kept(const tn_session *s, tn__hash128 hash, int32_t n) {
    const tn__recurrent *states = &s->plan->kv.states;
    const int32_t n_seqs = s->plan->kv.n_seqs;
    for (int32_t list = n_seqs; list < n_seqs + s->prefixes.n; list++) {
        if (!s->prefixes.last_used[list - n_seqs]) continue;
        if (states->n_rows && tn__recurrent_tokens(states, list) != n) continue;
        if (tn__prefix_hash_at(s, list, n - 1) == hash && tn__prefix_continues(s, list, n)) return true;
    }
    for (int32_t i = 0; i < s->prefixes.n_pending; i++) { /* of another sequence of the batch */
        const tn__checkpoint *c = &s->prefixes.pending[i];
        if (c->n == n && tn__prefix_hash_at(s, c->seq, n - 1) == hash) return true;
    }
    return false;
}

/* A row for one more checkpoint's state, evicting others if necessary. */
static bool has_row(tn_session *s, bool spare) {
    const tn__recurrent *states = &s->plan->kv.states;
    int32_t n = s->prefixes.n_pending, n_spare = 0;
    for (int32_t i = 0; i < s->prefixes.n; i++) {
        if (states->owners[states->n_seqs + i].row < 0) continue;
        n++;
        n_spare += s->prefixes.uses[i].spare;
    }
    const int32_t most = s->plan->params.n_checkpoints;
    const bool only_spare = spare && n_spare >= most / SPARE_SHARE;
    while ((n >= most || tn__recurrent_full(states)) && give_up_state(s, only_spare)) n--;
    return n < most;
}

static void stage_checkpoint(tn_session *s, tn__checkpoint c, int32_t i, tn__step *steps) {
    tn__prefixes *x = &s->prefixes;
    if (x->n_pending == s->plan->params.n_checkpoints) return;
    c.row = -1;
    if (s->plan->kv.states.n_rows) {
        if (!has_row(s, c.spare) || (c.row = tn__recurrent_checkpoint(&s->plan->kv.states, i, steps)) < 0) return;
    }
    x->pending[x->n_pending++] = c;
}

void tn__checkpoints_stage(tn_session *s, const tn_batch *b, int32_t begin, int32_t n, const int32_t *rows,
                           tn__step *steps) {
    const tn__prefixes *x = &s->prefixes;
    const int32_t *positions = s->staging.positions + begin, *seqs = s->staging.seqs + begin;
    if (!needs_checkpoints(s->plan) || (!b->checkpoints && !x->every)) return;
    for (int32_t i = 0; i < n; i++) {
        const int32_t length = positions[i] + 1;
        const bool asked = b->checkpoints && b->checkpoints[begin + i];
        if (!asked && (!x->every || length % x->every != 0)) continue;
        const tn__hash128 hash = x->hashes[rows[i]];
        if (!hash || !x->owners[seqs[i]].known || is_kept(s, hash, length)) continue;
        stage_checkpoint(s, (tn__checkpoint){.seq = seqs[i], .n = length, .spare = !asked}, i, steps);
    }
}

void tn__checkpoints_finish(tn_session *s) {
    tn__prefixes *x = &s->prefixes;
    tn__recurrent *states = &s->plan->kv.states;
    for (int32_t i = 0; i < x->n_pending; i++) {
        const tn__checkpoint *c = &x->pending[i];
        const int32_t list = tn__prefix_new(s, c->seq, c->n);
        if (list < 0) {
            tn__recurrent_release(states, c->row);
            continue;
        }
        if (c->row >= 0) tn__recurrent_adopt(states, list, c->row, c->n);
        tn__prefix_touch(s, list);
        x->uses[list - s->plan->kv.n_seqs] = (tn__checkpoint_use){.when = x->clock, .spare = c->spare};
    }
    x->n_pending = 0;
}

void tn__checkpoints_drop(tn_session *s) {
    tn__prefixes *x = &s->prefixes;
    for (int32_t i = 0; i < x->n_pending; i++) tn__recurrent_release(&s->plan->kv.states, x->pending[i].row);
    x->n_pending = 0;
}
