/* Planning to a budget: session parameters that fit the given memory, and the predicted speed of each choice.
 *
 *     params.budgets = (tn_budget[]){{"cuda0", 8 * GiB}, {"cpu", 4 * GiB}}, params.n_budgets = 2;
 *     tn_budget_params budget = {.prefer = TN_PREFER_SPEED};
 *     TN_TRY(tn_session_plan_to_budget(model, &params, &budget, &plan, &ladder));
 *     TN_TRY(tn_session_new(plan, &session));
 *
 * Micro-batch, feed-forward chunk, layers and experts per device, cache types and context are chosen by planning
 * combinations of them; docs/budget.md explains the search. Speeds are predictions (speed.h). */
#ifndef TENON_BUDGET_H
#define TENON_BUDGET_H

#include "tenon/llm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_prefer {
    TN_PREFER_SPEED,   /* the best decode rate at the wanted context, then the best prefill rate */
    TN_PREFER_CONTEXT, /* the longest context up to the wanted one, then speed */
    TN_PREFER_QUALITY  /* no cache type below q8_0 unless nothing else fits, then speed */
} tn_prefer;

typedef struct tn_budget_params {
    tn_prefer prefer;
    const tn_type *cache_types; /* that may be chosen; NULL: f16, q8_0, q4_0 */
    size_t n_cache_types;
    /* Keep these session parameters. Otherwise cache types are chosen regardless of them, and micro-batches of up to
     * n_ubatch tokens. The context is n_ctx; it is shorter where nothing fits, and for TN_PREFER_CONTEXT the longest
     * one up to n_ctx. Layers are chosen where n_gpu_layers is -1. */
    bool keep_cache_k, keep_cache_v, keep_ubatch;
    bool frontier; /* also plan fewer and more layers than chosen, for a picture of memory against speed */
    /* After every plan; may be NULL; returning false cancels. */
    bool (*progress)(void *user, size_t planned, size_t at_most);
    void *user;
} tn_budget_params;

/* One planned combination. */
typedef struct tn_budget_choice {
    int32_t n_ctx, n_ubatch, ffn_chunk; /* ffn_chunk: 0 for what suits the devices */
    tn_type cache_k, cache_v;
    int32_t n_layers;       /* off the host, including the output matrix */
    int32_t n_host_experts; /* of them: layers whose experts are on the host */
    bool fits, chosen;
    size_t missing; /* bytes that do not fit, on all devices */
    /* Tokens per second with half of the context filled; 0: a device is not measured. */
    double prefill, decode;
    size_t *bytes; /* per device: all memory; on the host including mapped weights */
} tn_budget_choice;

typedef struct tn_budget_device {
    const char *name;
    size_t budget;      /* as given; 0: none */
    size_t free, total; /* of the device, regardless of the budget */
} tn_budget_device;

typedef struct tn_budget_ladder {
    tn_budget_choice *choices; /* the chosen one, the others that fit by decode rate, those that do not fit */
    size_t n_choices;
    tn_budget_device *devices;
    size_t n_devices;
    size_t n_planned;
    tn_prefer prefer;
    int32_t wanted_ctx; /* the session's n_ctx, or the context that the model was trained with */
    /* False: a device is not measured, `note` says which one. Choices were compared by assumed rates then. */
    bool predicted;
    char note[256];
} tn_budget_ladder;

/* Chooses and plans. `plan` receives the best combination or, if none fits, the one with the smallest
 * shortfall: check tn_session_plan_fits. Its tn_session_plan_params last as long as the plan. `ladder` may be NULL.
 * Takes the time of some 10 to 40 plans. TN_E_NOT_FOUND: a budget names a device that the session does not use. */
TN_API tn_status tn_session_plan_to_budget(tn_model *model, const tn_session_params *params,
                                           const tn_budget_params *budget, tn_session_plan **plan,
                                           tn_budget_ladder *ladder) TN_MUST_CHECK;
TN_API void tn_budget_ladder_free(tn_budget_ladder *ladder);

#ifdef __cplusplus
}
#endif
#endif
