/* What a session will take: placement, KV cache, graphs and their bytes on every device. No device memory is taken
 * and the model is not changed, so any number of plans of a model may exist. */
#ifndef TN_LLM_PLAN_SESSION_PLAN_H
#define TN_LLM_PLAN_SESSION_PLAN_H

#include "llm/graphs.h"
#include "llm/load.h"
#include "llm/plan/locations.h"
#include "llm/plan/placement.h"

/* Bytes on one device. */
typedef struct tn__device_plan {
    size_t weights, mapped, cache, compute, scratch, lower_bound;
    size_t missing; /* of compute and scratch: all, unless the scheduler is shared */
    int32_t n_layers;
} tn__device_plan;

typedef struct tn__session_plan {
    tn_model *model;
    tn_session_params params; /* with the defaults filled in */
    tn_sched *sched;
    tn__session_placement placement;
    tn__kv kv;
    tn__graphs graphs;
    tn__locations locations;  /* of weights and cache, until they have memory */
    tn__device_plan *devices; /* bytes per device */
    bool fits;
    bool sequential; /* the in-flight micro-batches did not fit: they run one after the other */
    bool pipelined;  /* several full micro-batches may be in flight */
} tn__session_plan;

/* Opens devices and scheduler for model and params, which are set. The plan must not move in memory afterwards. */
tn_status tn__session_plan_prepare(tn__session_plan *plan);
/* Finds a placement and plans it; plan->fits says whether it fits the devices now. */
tn_status tn__session_plan_choose(tn__session_plan *plan);
/* Plans the current placement. */
tn_status tn__session_plan_make(tn__session_plan *plan);
void tn__session_plan_free(tn__session_plan *plan); /* what it holds, not the structure */

/* How the session's weights are loaded. */
tn__load tn__session_plan_load(const tn__session_plan *plan);
/* Says why a plan does not fit: TN_E_TOO_BIG with the bytes needed and free, and advice. */
tn_status tn__session_plan_too_big(const tn__session_plan *plan);
/* What would make the plan fit. Every suggested change was planned and fits. */
void tn__advise(const tn__session_plan *plan, char *text, size_t size);
/* Bytes that must be free on a device. */
static inline size_t tn__device_plan_bytes(const tn__device_plan *p) { return p->weights + p->cache + p->missing; }
static inline tn_device *tn__plan_device(const tn__session_plan *plan, size_t device) {
    return tn_stream_device(tn_sched_stream(plan->sched, device));
}

/* ---- What a session's graphs compute (embed.c) ---- */

tn_status tn__pooling_params(const tn_model *model, tn_session_params *params); /* resolves TN_POOLING_MODEL */
tn__graph_kind tn__token_graph_kind(const tn_session_params *params);
/* The largest number of output rows of a graph of n_tokens, and the number that its graph for n_wanted rows has. */
int32_t tn__max_outputs(const tn_session_params *params, int32_t n_tokens);
int32_t tn__outputs_for(const tn_session_params *params, int32_t n_wanted, int32_t n_tokens);

/* ---- Queued steps (queued_step.c) ---- */

bool tn__queued_step_possible(const tn__session_plan *plan); /* by placement and memory */

#endif
