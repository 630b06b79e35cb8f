/* Sequences in the KV cache: removing, copying, ranges of positions, and reports of its use. */
#include "llm/session_internal.h"

#include "base/checked.h"

static tn_status check_sequence(const tn_session *s, int32_t seq, bool any) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if ((seq < 0 && !any) || seq >= s->plan->kv.n_seqs)
        return tn_fail(TN_E_INVALID, "there is no sequence %d; the session has 0 to %d", seq, s->plan->kv.n_seqs - 1);
    return TN_OK;
}

/* With recurrent state, only a whole sequence can be removed, or tokens that the state does not cover. */
static tn_status remove_states(tn_session *s, int32_t seq, int32_t from, int32_t to) {
    tn__recurrent *states = &s->plan->kv.states;
    for (int pass = 0; states->n_rows && pass < 2; pass++)
        for (int32_t i = 0; i < states->n_seqs; i++) {
            const int32_t n = tn__recurrent_tokens(states, i);
            if ((seq >= 0 && i != seq) || (to >= 0 && to <= from) || (from >= n && n > 0)) continue;
            const bool all = from <= 0 && (to < 0 || to >= n);
            if (pass && all) tn__recurrent_remove(states, i);
            if (!all)
                return tn_fail(
                    TN_E_UNSUPPORTED,
                    "sequence %d has recurrent state of %d tokens: positions %d to %d cannot be removed from it", i,
                    n, from, to < 0 ? n - 1 : to - 1);
        }
    return TN_OK;
}

tn_status tn_session_seq_remove(tn_session *s, int32_t seq, int32_t from, int32_t to) {
    TN_TRY(check_sequence(s, seq, true));
    for (int32_t i = 0; i < s->plan->kv.n_seqs; i++)
        if (seq < 0 || i == seq) tn__branches_drop(s, i);
    TN_TRY(remove_states(s, seq, from, to));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        for (int32_t i = 0; t->n_pages && i < t->n_seqs; i++)
            if (seq < 0 || i == seq) TN_TRY(tn__pages_remove(t, i, from, to));
    }
    for (int32_t i = 0; from <= 0 && to < 0 && i < s->plan->kv.n_seqs; i++)
        if (seq < 0 || i == seq) tn__prefixes_forget_owner(s, i);
    return TN_OK;
}

tn_status tn_session_seq_rewind(tn_session *s, int32_t seq, int32_t n) {
    TN_TRY(check_sequence(s, seq, false));
    if (n < 1) return tn_fail(TN_E_INVALID, "a sequence keeps at least one token, not %d", n);
    tn__branches_drop(s, seq);
    TN_TRY(tn__recurrent_rewind(&s->plan->kv.states, seq, n));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__page_table *t = &s->plan->kv.groups[g];
        const int32_t removed = t->removed; /* cells at the end leave no holes */
        if (t->n_pages) TN_TRY(tn__pages_remove(t, seq, n, -1));
        t->removed = removed;
    }
    return TN_OK;
}

tn_status tn_session_seq_copy(tn_session *s, int32_t source, int32_t target, int32_t from, int32_t to) {
    TN_TRY(check_sequence(s, source, false));
    TN_TRY(check_sequence(s, target, false));
    tn__recurrent *states = &s->plan->kv.states;
    if (states->n_rows && source != target) {
        const int32_t n = tn__recurrent_tokens(states, source);
        if (from > 0 || (to >= 0 && to < n) || tn_session_seq_last(s, target) >= 0)
            return tn_fail(
                TN_E_UNSUPPORTED,
                "sequence %d has recurrent state of %d tokens: it is copied as a whole, to an empty sequence", source,
                n);
        tn__recurrent_copy(states, source, target);
    }
    tn__prefixes_copy_owner(s, source, target);
    for (int g = 0; g < TN__CACHE_GROUPS; g++)
        if (s->plan->kv.groups[g].n_pages) TN_TRY(tn__pages_copy(&s->plan->kv.groups[g], source, target, from, to));
    return TN_OK;
}

tn_status tn_session_seq_keep(tn_session *s, int32_t seq) {
    TN_TRY(check_sequence(s, seq, false));
    for (int32_t other = 0; other < s->plan->kv.n_seqs; other++)
        if (other != seq) TN_TRY(tn_session_seq_remove(s, other, 0, -1));
    return TN_OK;
}

void tn_session_clear(tn_session *s) {
    if (!s) return;
    tn__prefixes_clear(s);
    tn_session_seq_remove(s, -1, 0, -1);
}

int32_t tn_session_seq_first(const tn_session *s, int32_t seq) {
    int32_t lowest = INT32_MAX;
    if (check_sequence(s, seq, false) != TN_OK) return -1;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__page_table *t = &s->plan->kv.groups[g];
        int32_t first, last;
        if (t->n_pages && tn__pages_extent(t, seq, &first, &last)) lowest = TN__MIN(lowest, first);
    }
    return lowest == INT32_MAX ? -1 : lowest;
}
int32_t tn_session_seq_last(const tn_session *s, int32_t seq) {
    int32_t highest = -1;
    if (check_sequence(s, seq, false) != TN_OK) return -1;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__page_table *t = &s->plan->kv.groups[g];
        int32_t first, last;
        if (t->n_pages && tn__pages_extent(t, seq, &first, &last)) highest = TN__MAX(highest, last);
    }
    return highest;
}

/* The group that represents the cache in reports. */
static tn__page_table *reported_pages(const tn_session *s) {
    return &s->plan->kv.groups[s->plan->kv.groups[TN__CACHE_FULL].n_pages ? TN__CACHE_FULL : TN__CACHE_WINDOW];
}
tn_cache_usage tn_session_cache_usage(const tn_session *s) {
    const tn__page_table *t = reported_pages(s);
    return (tn_cache_usage){.cells = tn__page_table_cells(t),
                            .used = t->used,
                            .peak = t->peak,
                            .page = t->page,
                            .tokens = t->limit,
                            .pages = t->n_pages,
                            .free_pages = t->n_free};
}
int32_t tn_session_cells_held(tn_session *s) {
    tn__page_table *t = reported_pages(s);
    return tn__pages_number(t, 0, t->n_seqs);
}
void tn_session_cache_map(const tn_session *s, int32_t *owner) {
    const tn__page_table *t = reported_pages(s);
    const int32_t cells = tn__page_table_cells(t);
    for (int32_t i = 0; i < cells; i++) owner[i] = -1;
    for (int32_t seq = t->n_lists - 1; seq >= 0; seq--)
        for (int32_t i = 0; i < t->sequences[seq].n; i++) {
            const tn_page_run run = tn__page_run_at(t, seq, i);
            for (int32_t k = 0; k < run.count; k++) owner[run.cell + k] = seq;
        }
}
