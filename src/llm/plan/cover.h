/* All shapes that a session may run, and covering them (tn_sched_cover), so that their memory is reserved with the
 * session.
 */
#ifndef TN_LLM_PLAN_COVER_H
#define TN_LLM_PLAN_COVER_H

#include "llm/graphs.h"

/* Every shape that a session may run, the largest first. tn_free() the list. */
tn_status tn__shapes_list(const struct tn_session_plan *plan, tn__shape **shapes, size_t *n);
/* Covers the largest shapes with few layers: enough to compare placements. */
tn_status tn__cover_main(struct tn_session_plan *plan);
/* For a session whose memory is taken: builds and binds the graphs that every session has, so that running one of
 * them allocates nothing. */
tn_status tn__graphs_keep(struct tn_session_plan *plan);
/* Covers every shape. */
tn_status tn__cover_all(struct tn_session_plan *plan);

#endif
