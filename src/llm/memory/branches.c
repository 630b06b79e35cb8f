/* Branches of trees of guesses: lists of runs in addition to those of the sequences.
 *
 * The first path of a tree is in its sequence's own list. A token whose parent already has a successor begins a
 * branch, which lists the cells up to the parent and then its own cells. Nothing is copied, and no mask is needed: a
 * row sees the cells of its list up to its position. */
#include "llm/session_internal.h"

#include "base/checked.h"

tn_status tn__branches_new(const tn_session_plan *plan, tn__branches *b) {
    const tn__kv *kv = &plan->kv;
    const int g = kv->groups[TN__CACHE_FULL].n_pages ? TN__CACHE_FULL : TN__CACHE_WINDOW;
    b->n = kv->groups[g].n_branches;
    if (!b->n) return TN_OK;
    b->list = tn_malloc((size_t)b->n * sizeof *b->list);
    if (!b->list) return TN_E_NOMEM;
    for (int32_t i = 0; i < b->n; i++) b->list[i] = (tn__branch){.seq = -1};
    return TN_OK;
}

static void empty_list(tn_session *s, int32_t branch) {
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        const int32_t removed = t->removed; /* cells at the end leave no holes */
        if (t->n_pages) (void)tn__pages_remove(t, t->n_lists + branch, 0, -1);
        t->removed = removed;
    }
}

void tn__branches_drop(tn_session *s, int32_t seq) {
    for (int32_t i = 0; i < s->branches.n; i++) {
        if (s->branches.list[i].seq != seq) continue;
        empty_list(s, i);
        s->branches.list[i].seq = -1;
    }
}

/* ---- Staging ---- */

/* Whether `parent` has a successor: a later token of the batch is in its list. */
static bool is_followed(const int32_t *lists, int32_t parent, int32_t end) {
    for (int32_t i = parent + 1; i < end; i++)
        if (lists[i] == lists[parent]) return true;
    return false;
}

static tn_status begin_branch(tn_session *s, int32_t i, int32_t parent) {
    const tn__staging *g = &s->staging;
    tn__branches *b = &s->branches;
    const int32_t n_seqs = s->plan->kv.n_seqs, seq = g->seqs[i];
    int32_t number = 1, free = -1;
    for (int32_t k = 0; k < b->n; k++) {
        number += b->list[k].seq == seq;
        if (b->list[k].seq < 0 && free < 0) free = k;
    }
    if (free < 0) return tn_fail(TN_E_FULL, "the trees of a batch have more than %d branches (n_branches)", b->n);
    /* A branch of a branch diverges from the sequence where its parent branch does. */
    const int32_t from =
        g->lists[parent] < n_seqs ? g->positions[parent] + 1 : b->list[g->lists[parent] - n_seqs].from;
    b->list[free] = (tn__branch){.seq = seq, .number = number, .from = from};
    g->lists[i] = n_seqs + free;
    return TN_OK;
}

tn_status tn__branches_stage(tn_session *s, const tn_batch *b) {
    const tn__staging *g = &s->staging;
    if (!s->branches.n) return tn_fail(TN_E_INVALID, "the session has no branches of guesses: set n_branches");
    if (b->n_tokens > s->plan->params.n_ubatch)
        return tn_fail(TN_E_INVALID, "a batch of %d tokens with trees of guesses exceeds the micro-batch of %d",
                       b->n_tokens, s->plan->params.n_ubatch);
    for (int32_t i = 0; i < b->n_tokens; i++) {
        const int32_t parent = b->parents[i];
        g->lists[i] = g->seqs[i];
        if (parent < 0) continue;
        if (g->seqs[parent] != g->seqs[i])
            return tn_fail(TN_E_INVALID, "token %d and its parent belong to different sequences", i);
        if (is_followed(g->lists, parent, i))
            TN_TRY(begin_branch(s, i, parent));
        else
            g->lists[i] = g->lists[parent];
    }
    return TN_OK;
}

/* ---- Cells ---- */

/* The list of a page table. */
static int32_t table_list(const tn_session *s, const tn__page_table *t, int32_t list) {
    return list < s->plan->kv.n_seqs ? list : t->n_lists + list - s->plan->kv.n_seqs;
}

static tn_status copy_ancestors(tn_session *s, int32_t list, int32_t parent) {
    const tn__staging *g = &s->staging;
    for (int k = 0; k < TN__CACHE_GROUPS; k++) {
        tn__page_table *t = &s->plan->kv.groups[k];
        if (!t->n_pages) continue;
        const int32_t to = table_list(s, t, list);
        TN_TRY(tn__pages_remove(t, to, 0, -1));
        TN_TRY(tn__pages_copy(t, table_list(s, t, g->lists[parent]), to, 0, g->positions[parent] + 1));
    }
    return TN_OK;
}

static void give_back_tree(tn_session *s, int32_t n) {
    const tn__staging *g = &s->staging;
    for (int k = 0; k < TN__CACHE_GROUPS; k++) {
        tn__page_table *t = &s->plan->kv.groups[k];
        for (int32_t i = 0; t->n_pages && i < n; i++)
            (void)tn__pages_remove(t, table_list(s, t, g->lists[i]), g->positions[i], g->positions[i] + 1);
    }
}

static tn_status take_one_by_one(tn_session *s, const tn_batch *b, int32_t *taken) {
    const tn__staging *g = &s->staging;
    const int32_t n_seqs = s->plan->kv.n_seqs;
    for (*taken = 0; *taken < b->n_tokens; ++*taken) {
        const int32_t i = *taken;
        const int32_t parent = b->parents[i];
        if (g->lists[i] >= n_seqs && g->lists[parent] != g->lists[i]) TN_TRY(copy_ancestors(s, g->lists[i], parent));
        for (int k = 0; k < TN__CACHE_GROUPS; k++) {
            tn__page_table *t = &s->plan->kv.groups[k];
            if (!t->n_pages) continue;
            const int32_t list = table_list(s, t, g->lists[i]);
            if (t->window) tn__pages_leave_window(t, 1, &g->positions[i], &list);
            TN_TRY(tn__pages_take(t, 1, &g->positions[i], &list, &g->rows[k][i]));
        }
    }
    return TN_OK;
}

tn_status tn__branches_take_cells(tn_session *s, const tn_batch *b) {
    int32_t taken;
    const tn_status status = take_one_by_one(s, b, &taken);
    if (status != TN_OK) give_back_tree(s, TN__MIN(taken + 1, b->n_tokens));
    return status;
}

tn_status tn_session_seq_take_branch(tn_session *s, int32_t seq, int32_t branch, int32_t n) {
    if (!s || branch == 0) return tn_session_seq_rewind(s, seq, n);
    int32_t found = -1;
    for (int32_t i = 0; i < s->branches.n; i++)
        if (s->branches.list[i].seq == seq && s->branches.list[i].number == branch) found = i;
    if (found < 0 && tn_session_seq_last(s, seq) < 0) return TN_OK; /* it was emptied since */
    if (found < 0) return tn_fail(TN_E_NOT_FOUND, "sequence %d has no branch %d", seq, branch);
    const int32_t from = s->branches.list[found].from;
    if (n <= from) return tn_session_seq_rewind(s, seq, n);
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        if (!t->n_pages) continue;
        /* The sequence continues in the branch's page: its own page keeps a hole, which compaction removes later. */
        TN_TRY(tn__pages_remove(t, seq, from, -1));
        TN_TRY(tn__pages_copy(t, t->n_lists + found, seq, from, n));
    }
    tn__branches_drop(s, seq);
    return TN_OK;
}
