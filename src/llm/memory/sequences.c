/* Sequences in the KV cache: removing, copying, ranges of positions, and reports of its use. */
#include "llm/session_internal.h"

static tn_status check_sequence(const tn_session *s, int32_t seq, bool any) {
    if (!s) return tn_fail(TN_E_INVALID, "the session is NULL");
    if ((seq < 0 && !any) || seq >= s->plan->kv.n_seqs)
        return tn_fail(TN_E_INVALID, "there is no sequence %d; the session has 0 to %d", seq, s->plan->kv.n_seqs - 1);
    return TN_OK;
}

static bool position_in_range(int32_t position, int32_t from, int32_t to) {
    return position >= from && (to < 0 || position < to);
}

tn_status tn_session_seq_remove(tn_session *s, int32_t seq, int32_t from, int32_t to) {
    TN_TRY(check_sequence(s, seq, true));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->plan->kv.groups[g];
        for (int32_t i = 0; c->n && i < s->plan->kv.n_seqs; i++)
            if (seq < 0 || i == seq) c->last[i] = -1;
        for (int32_t i = c->n ? c->end - 1 : -1; i >= 0; i--) {
            int32_t *meta = tn__cell_meta(c, i);
            if (meta[0] < 0 || !position_in_range(meta[0], from, to) || (seq >= 0 && !tn__cell_has_seq(c, i, seq)))
                continue;
            bool owned = false;
            if (seq >= 0) {
                meta[1 + seq / 32] &= ~(int32_t)(1u << (seq % 32));
                for (int32_t w = 0; w < c->words; w++) owned = owned || meta[1 + w];
            }
            if (owned)
                tn__cells_touch(c, i);
            else
                tn__cell_empty(c, i);
        }
    }
    return TN_OK;
}

tn_status tn_session_seq_copy(tn_session *s, int32_t source, int32_t target, int32_t from, int32_t to) {
    TN_TRY(check_sequence(s, source, false));
    TN_TRY(check_sequence(s, target, false));
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        tn__cells *c = &s->plan->kv.groups[g];
        for (int32_t i = 0; c->n && i < c->end; i++) {
            int32_t *meta = tn__cell_meta(c, i);
            if (meta[0] < 0 || !tn__cell_has_seq(c, i, source) || !position_in_range(meta[0], from, to)) continue;
            meta[1 + target / 32] |= (int32_t)(1u << (target % 32));
            tn__cells_touch(c, i);
        }
    }
    return TN_OK;
}

tn_status tn_session_seq_keep(tn_session *s, int32_t seq) {
    TN_TRY(check_sequence(s, seq, false));
    for (int32_t other = 0; other < s->plan->kv.n_seqs; other++)
        if (other != seq) TN_TRY(tn_session_seq_remove(s, other, 0, -1));
    return TN_OK;
}

void tn_session_clear(tn_session *s) {
    if (s) tn_session_seq_remove(s, -1, 0, -1);
}

/* The lowest or highest position of a sequence, -1 if it has none. */
static int32_t extreme_position(const tn_session *s, int32_t seq, bool highest) {
    int32_t extreme = -1;
    if (check_sequence(s, seq, false) != TN_OK) return -1;
    for (int g = 0; g < TN__CACHE_GROUPS; g++) {
        const tn__cells *c = &s->plan->kv.groups[g];
        for (int32_t i = 0; c->n && i < c->end; i++) {
            int32_t p = tn__cell_meta(c, i)[0];
            if (p < 0 || !tn__cell_has_seq(c, i, seq)) continue;
            if (extreme < 0 || (highest ? p > extreme : p < extreme)) extreme = p;
        }
    }
    return extreme;
}
int32_t tn_session_seq_first(const tn_session *s, int32_t seq) { return extreme_position(s, seq, false); }
int32_t tn_session_seq_last(const tn_session *s, int32_t seq) { return extreme_position(s, seq, true); }

/* The cells that stand for the cache in reports. */
static const tn__cells *reported_cells(const tn_session *s) {
    return &s->plan->kv.groups[s->plan->kv.groups[TN__CACHE_FULL].n ? TN__CACHE_FULL : TN__CACHE_WINDOW];
}
tn_cache_usage tn_session_cache_usage(const tn_session *s) {
    const tn__cells *c = reported_cells(s);
    return (tn_cache_usage){c->n, c->used, s->plan->kv.peak};
}
void tn_session_cache_map(const tn_session *s, int32_t *owner) {
    const tn__cells *c = reported_cells(s);
    for (int32_t i = 0; i < c->n; i++) {
        owner[i] = -1;
        for (int32_t seq = s->plan->kv.n_seqs - 1; seq >= 0 && tn__cell_meta(c, i)[0] >= 0; seq--)
            if (tn__cell_has_seq(c, i, seq)) owner[i] = seq;
    }
}
