/* Context shift: a sequence that fills its context continues without its oldest tokens. */
#include "llm/session_internal.h"

#include "base/checked.h"
#include "tenon/generate.h"

/* One past the last removed token: half of those after the kept ones, rounded to a page boundary if possible, so
 * that whole pages become free. */
static int32_t end_of_removed(const tn_session *s, int32_t keep, int32_t n) {
    const int32_t page = s->plan->params.page, end = keep + (n - keep + 1) / 2;
    const int32_t border = (end + page / 2) / page * page;
    return border > keep && border < n ? border : end;
}

/* If the table has no entry for the run that is cut in two, compacting the pages frees one. */
static tn_status remove_oldest(tn_session *s, int32_t seq, int32_t from, int32_t to) {
    tn_status status = tn_session_seq_remove(s, seq, from, to);
    if (status != TN_E_FULL) return status;
    TN_TRY(tn_session_defragment(s));
    return tn_session_seq_remove(s, seq, from, to);
}

tn_status tn_session_context_shift(tn_session *s, int32_t seq, int32_t keep, int32_t *n_removed) {
    if (n_removed) *n_removed = 0;
    TN_TRY(tn__check_movable_sequence(s, seq));
    TN_TRY(tn_session_settle(s, seq));
    const int32_t n = tn_session_seq_last(s, seq) + 1;
    if (keep < 0 || n - keep < 2)
        return tn_fail(TN_E_INVALID, "a context shift that keeps %d of %d tokens has none to remove", keep, n);
    const int32_t end = end_of_removed(s, keep, n);
    TN_TRY(remove_oldest(s, seq, keep, end));
    tn_status status = tn_session_seq_shift(s, seq, end, -1, keep - end);
    if (status == TN_E_FULL) (void)tn_session_seq_remove(s, seq, keep, -1);
    tn__guessing_shift(s, seq, keep, end);
    if (n_removed && (status == TN_OK || status == TN_E_FULL)) *n_removed = end - keep;
    return status;
}
