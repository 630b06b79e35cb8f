/* A session plan: placement, KV cache, graphs and their bytes on every device. It takes no device memory and does
 * not change the model, so a model may have any number of plans. */
#ifndef TN_LLM_PLAN_SESSION_PLAN_H
#define TN_LLM_PLAN_SESSION_PLAN_H

#include "llm/adapters/session_adapters.h"
#include "llm/graphs.h"
#include "llm/load.h"
#include "llm/plan/layers.h"
#include "llm/plan/locations.h"
#include "llm/plan/placement.h"

/* Bytes on one device. */
typedef struct tn__device_plan {
    tn_device *device;
    size_t weights, mapped, cache, compute, scratch, lower_bound;
    size_t adapters;
    size_t missing;  /* of compute and scratch: all, unless the scheduler is shared */
    size_t staging;  /* on the host: batches, results, metadata, and upload buffers */
    size_t tier;     /* on the host: kept prefixes that have left the devices */
    size_t own;      /* memory of the backend besides all buffers */
    size_t pinned;   /* of compute, scratch and staging */
    size_t in_order; /* compute memory of an online allocator */
    size_t margin;   /* bytes that the search adds to `missing` */
    int32_t n_layers;
} tn__device_plan;

struct tn_session_plan {
    size_t n_users; /* the caller, the session */
    bool used;      /* a session was made */
    bool ended;     /* and it was freed: scheduler, graphs and cache no longer exist */
    tn_model *model;
    bool loads;               /* the session will load the model's weights */
    tn_session_params params; /* with the defaults filled in */
    tn_pack_params pack;      /* the caller's, which params.pack points to here */
    tn_sched *sched;
    tn__session_placement placement;
    tn__session_adapters adapters;
    tn__kv kv;
    tn__graphs graphs;
    tn__layer_list layers[2];    /* a few representative layers, and a slightly larger set */
    const tn__layer_list *built; /* the layers that graphs are built from; NULL: all */
    tn__shape *covered;          /* the shapes whose graphs were covered, after the reported ones */
    size_t n_covered;
    const struct tn__saved_plan *saved; /* while it is adopted */
    const tn_plan_cache *cache;         /* while the plan is made */
    tn__locations locations;            /* of weights and cache, until they have memory */
    tn__device_plan *devices;           /* bytes per device */
    tn_sched_info prefill, decode;
    bool fits;
    bool adopted;    /* its packing comes from a saved plan */
    bool searching;  /* for a placement: only the largest shapes are planned */
    bool sequential; /* the in-flight micro-batches did not fit: they run one after the other */
    bool pipelined;  /* several full micro-batches may be in flight */
    char *advice;    /* computed on demand */
    char *warning;   /* the same */
    void *kept;      /* memory that params points to and the plan owns */
};

/* Opens devices and scheduler for model and params, which are set. The plan must not move in memory afterwards. */
tn_status tn__session_plan_prepare(tn_session_plan *plan);
/* Frees the session's scheduler, graphs and cache. The plan's figures stay. */
void tn__session_plan_end(tn_session_plan *plan);
/* Compares the planned bytes with the memory that is free now: sets plan->fits. */
tn_status tn__session_plan_check_fit(tn_session_plan *plan);
/* Reports if mapped weights will not stay in memory (tn_session_plan_warning). */
tn_status tn__session_plan_warn(const tn_session_plan *plan, char *text, size_t size);
/* Finds a placement and plans it; plan->fits says whether it fits the devices now. */
tn_status tn__session_plan_choose(tn_session_plan *plan);
/* The same without planning every shape: quick, and nearly always right. */
tn_status tn__session_plan_search(tn_session_plan *plan);
/* Updates the figures by the reservations of other sessions in a shared scheduler since the plan was made. */
tn_status tn__session_plan_refresh(tn_session_plan *plan);
/* Plans the current placement. */
tn_status tn__session_plan_make(tn_session_plan *plan);

/* Makes a plan with the placement that `choose` finds, from the data in `source` (may be NULL). */
typedef struct tn__plan_source {
    const struct tn__saved_plan *saved;
    const tn_plan_cache *cache;
} tn__plan_source;
tn_status tn__session_plan_with(tn_model *model, const tn_session_params *params, const tn__plan_source *source,
                                tn_status (*choose)(tn_session_plan *plan), tn_session_plan **plan);
/* A device may have enough free bytes, but a largest allocation that is too small: TN_E_TOO_BIG. */
tn_status tn__session_plan_check_largest(const tn_session_plan *plan);

/* How the session's weights are loaded. */
tn__load tn__session_plan_load(const tn_session_plan *plan);
/* Returns TN_E_TOO_BIG with a message: why a plan does not fit, the needed and the free bytes, and advice. */
tn_status tn__session_plan_too_big(const tn_session_plan *plan);
/* Whether a session with other parameters would fit. `exactly`: planned with every shape, not only the largest. */
bool tn__session_plan_would_fit(tn_model *model, const tn_session_params *params, bool exactly);
/* Whether the session leaves a part of the free memory, and mapped weights stay in memory beside it. */
tn_status tn__session_plan_leaves_room(const tn_session_plan *plan, bool *leaves);
/* For params->n_ctx 0: the trained length, or the longest context that fits without moving layers off a device or
 * losing repacked weights. */
tn_status tn__context_choose(tn_model *model, tn_session_params *params);
/* Changes that would make the plan fit. Every suggestion was planned and fits. */
void tn__advise(const tn_session_plan *plan, char *text, size_t size);
/* Bytes that must be free on a device. */
static inline size_t tn__device_plan_bytes(const tn__device_plan *p) {
    return p->weights + p->adapters + p->cache + p->missing + p->staging + p->tier; /* `own` is already allocated */
}
/* Host bytes that uploads to the session's devices go through. */
size_t tn__plan_upload_bytes(const tn_session_plan *plan);
static inline tn_device *tn__plan_device(const tn_session_plan *plan, size_t device) {
    return plan->devices[device].device;
}

/* ---- What a session's graphs compute (embed.c) ---- */

tn_status tn__pooling_params(const tn_model *model, tn_session_params *params); /* resolves TN_POOLING_MODEL */
tn__graph_kind tn__token_graph_kind(const tn_session_params *params);
/* The largest number of output rows of a graph of n_tokens, and the number that its graph for n_wanted rows has. */
int32_t tn__max_outputs(const tn_session_params *params, int32_t n_tokens);
int32_t tn__outputs_for(const tn_session_params *params, int32_t n_wanted, int32_t n_tokens);

/* ---- Host memory that a session takes (staging.c, results.c, embed.c) ---- */

size_t tn__staging_bytes(const tn_session_params *params, bool pipelined, int32_t width);
/* Number of largest logits per row that batches with `candidates` return; 0: such batches return all logits. */
int32_t tn__plan_candidates(const tn_session_plan *plan);
tn_status tn__results_bytes(const tn_session_plan *plan, size_t *bytes);
/* Floats of a token's hidden states (params.states). */
static inline int32_t tn__state_row(const tn_session_plan *plan) {
    return plan->model->h.n_embd * (plan->params.n_state_layers ? plan->params.n_state_layers : 1);
}
/* The memory that results are in: one that the first device can write to directly, or NULL for the heap. */
tn_buffer_type *tn__results_type(const tn_session_plan *plan);
tn_status tn__embeddings_bytes(const tn_session_plan *plan, size_t *bytes);
/* Host memory of kept prefixes (memory/prefixes.c). */
tn_status tn__prefixes_bytes(const tn_session_plan *plan, size_t *bytes);

/* ---- Queued steps (queued_step.c) ---- */

bool tn__queued_step_possible(const tn_session_plan *plan); /* by placement and memory */

#endif
