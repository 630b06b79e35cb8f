/* Printing what a session's graphs launch. */
#include "llm/session_internal.h"

tn_status tn_session_print_launches(tn_session *s, bool prefill, FILE *out) {
    if (!s || !out) return tn_fail(TN_E_INVALID, "tn_session_print_launches: NULL argument");
    return tn_sched_print_programs(s->sched, s->reserved[prefill ? 0 : 1]->graph, out);
}
