/* Choosing the context where the caller leaves it open: the length that the model was trained with, or the longest
 * that fits. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

#include <string.h>

enum {
    CONTEXT_STEP = 256,    /* cells */
    USUAL_CONTEXT = 4096,  /* what a context up to this length displaces is not asked */
    CONTEXT_PRECISION = 16 /* the search ends when its range is this share of the context */
};

/* What a session with some context looks like. */
typedef struct context_trial {
    bool fits, leaves_room;
    int32_t n_layers; /* off the host */
    bool repack, sequential;
} context_trial;

/* Sets params->n_ctx. */
static tn_status try_context(tn_model *model, tn_session_params *params, int32_t n_ctx, context_trial *trial) {
    tn_session_plan *plan = NULL;
    *trial = (context_trial){0};
    params->n_ctx = n_ctx;
    tn_status status = tn__session_plan_with(model, params, NULL, tn__session_plan_search, &plan);
    if (status == TN_E_TOO_BIG || status == TN_E_OVERFLOW) return TN_OK;
    TN_TRY(status);
    /* Names from here on: parsing a specification again would make another device. */
    if (!params->sched) memcpy(params->devices, plan->params.devices, sizeof params->devices);
    *trial = (context_trial){.fits = plan->fits && tn__session_plan_check_largest(plan) == TN_OK,
                             .n_layers = tn__placement_count(&plan->placement),
                             .repack = plan->placement.repack,
                             .sequential = plan->sequential};
    status = tn__session_plan_leaves_room(plan, &trial->leaves_room);
    tn_session_plan_free(plan);
    return status;
}

/* Whether a context takes nothing from the session that a usual one leaves it. */
static bool is_as_good(const context_trial *trial, const context_trial *usual) {
    return trial->fits &&
           (!usual->fits || (trial->leaves_room >= usual->leaves_room && trial->n_layers >= usual->n_layers &&
                             trial->repack == usual->repack && trial->sequential == usual->sequential));
}

tn_status tn__context_choose(tn_model *model, tn_session_params *params) {
    const int32_t trained = model->h.n_ctx_train;
    const int32_t usual = TN__MIN(trained, USUAL_CONTEXT);
    if (params->n_ctx) return TN_OK;
    params->n_ctx = trained;
    if (!model->h.causal || trained <= CONTEXT_STEP)
        return TN_OK; /* an encoder keeps nothing between micro-batches */
    context_trial whole, least, trial;
    TN_TRY(try_context(model, params, trained, &whole));
    least = whole;
    if (usual < trained) TN_TRY(try_context(model, params, usual, &least));
    params->n_ctx = trained;
    if (is_as_good(&whole, &least)) return TN_OK;
    int32_t low = least.fits ? usual : 0, high = least.fits ? trained : usual;
    while (high - low > TN__MAX(CONTEXT_STEP, low / CONTEXT_PRECISION)) {
        const int32_t middle = (low + (high - low) / 2) / CONTEXT_STEP * CONTEXT_STEP;
        if (middle <= low) break;
        TN_TRY(try_context(model, params, middle, &trial));
        *(is_as_good(&trial, &least) ? &low : &high) = middle;
    }
    params->n_ctx = low ? low : usual; /* nothing fits: the plan says so and advises */
    return TN_OK;
}
