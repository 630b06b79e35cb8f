/* Rank 0 holds the sequences and page tables, and publishes to the other ranks which graph to run with which
 * inputs. */
#ifndef TN_LLM_RANKS_LEAD_H
#define TN_LLM_RANKS_LEAD_H

#include "llm/graphs.h"
#include "tenon/net/net.h"

struct tn_session;
struct tn_session_plan;

/* Records that rank 0 has not published yet. */
typedef struct tn__notes {
    tn_net *net;
    char *bytes; /* `room` of them; NULL: there is one rank */
    size_t used, room;
} tn__notes;

size_t tn__notes_bytes(const struct tn_session_plan *plan);
tn_status tn__notes_new(const struct tn_session_plan *plan, tn__notes *notes);
void tn__notes_free(tn__notes *notes); /* rank 0: makes the other ranks end */

/* Entries of a page table that have changed. */
tn_status tn__lead_table(tn__notes *notes, int group, size_t offset, const void *data, size_t size);
/* Publishes the next graph with its inputs. TN_E_ABORTED: the abort callback returned true; no rank has begun. */
tn_status tn__lead_run(struct tn_session *session, const tn__graph_set *set, void *const *values);
/* Call after a graph has run: fails if another rank failed. */
tn_status tn__lead_check(const struct tn_session *session, tn_status status);

/* Before the file is opened: checks that all ranks have the same version and agree on which of them open it. */
tn_status tn__ranks_meet(const tn_model_params *params);
/* Before anything is loaded: checks that all ranks have the same model and parameters, and that those of one
 * machine fit together. Otherwise the transport is broken, and all ranks report why: where memory is too small, what
 * each rank needs and has. `status`: of this rank's own check of its plan. With TN_E_TOO_BIG the rank still
 * compares, so that all of them list who lacks memory; any other error ends all ranks. */
tn_status tn__ranks_agree(struct tn_session_plan *plan, tn_status status);
/* TENON_MACHINE, or the name of this host. */
void tn__machine_name(char *name, size_t size);
uint64_t tn__machine_hash(void);
/* The shortest context of all ranks. */
tn_status tn__ranks_context(const tn_model *model, int32_t *n_ctx);
/* Reports a failure of this rank, which ends all others as well. Returns the status. */
tn_status tn__ranks_fail(const tn_model *model, tn_status status);
tn_status tn__ranks_break(tn_net *net, tn_status status);

#endif
