/* Planning to a budget, inside: combinations of parameters, and the list of those that were planned. */
#ifndef TN_LLM_PLAN_BUDGET_H
#define TN_LLM_PLAN_BUDGET_H

#include "llm/plan/session_plan.h"
#include "tenon/budget.h"

/* Parameters that a search may choose. */
typedef struct tn__budget_combination {
    int32_t n_ctx, n_ubatch, ffn_chunk;
    tn_type cache_k, cache_v;
    int32_t n_gpu_layers; /* -1: as many as fit */
    int32_t host_experts; /* number of layers, from the first one with experts, whose experts are on the host; -1:
                           * as few as fit, with all layers off the host */
} tn__budget_combination;

typedef struct tn__budget_result {
    tn__budget_combination combination;
    tn_budget_choice choice;
    bool possible;          /* false: the model or a device refuses these parameters */
    double prefill, decode; /* to compare: predicted, or by assumed rates */
} tn__budget_result;

typedef struct tn__budget_search {
    tn_model *model;
    tn_session_params base; /* devices by name, once they are open */
    const tn_budget_params *params;
    int32_t n_expert_layers; /* 0: experts are not moved, because there are none or the host is the only device */
    tn__budget_result *results;
    size_t n, capacity;
    size_t n_planned, expected;
    tn_budget_device *devices;
    size_t n_devices;
    bool not_measured;
    char note[256];
} tn__budget_search;

/* Opens the devices that base names, and fills base.devices, devices and n_expert_layers. */
tn_status tn__budget_open_devices(tn__budget_search *search);
/* Plans a combination, or finds it among the results; `index` is its number there. */
tn_status tn__budget_try(tn__budget_search *search, const tn__budget_combination *combination, size_t *index);
/* Plans a result's combination again and returns the plan. */
tn_status tn__budget_plan(tn__budget_search *search, const tn__budget_combination *combination,
                          tn_session_plan **plan);
void tn__budget_search_free(tn__budget_search *search);

#endif
