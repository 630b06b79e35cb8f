/* Choosing the context if the caller does not: the length that the model was trained with, or the longest that
 * fits. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

#include <string.h>

enum {
    CONTEXT_STEP = 256,    /* cells */
    USUAL_CONTEXT = 4096,  /* contexts up to this length may displace layers */
    CONTEXT_PRECISION = 16 /* the search ends when its range is this fraction of the context */
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
    /* Uses names from here on: parsing a description again would create another device. */
    if (!params->sched) memcpy(params->devices, plan->params.devices, sizeof params->devices);
    *trial = (context_trial){.fits = plan->fits && tn__session_plan_check_largest(plan) == TN_OK,
                             .n_layers = tn__placement_count(&plan->placement),
                             .repack = plan->placement.repack,
                             .sequential = plan->sequential};
    status = tn__session_plan_leaves_room(plan, &trial->leaves_room);
    tn_session_plan_free(plan);
    return status;
}

/* Whether a context displaces nothing that a context of USUAL would leave. */
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
    params->n_ctx = low ? low : usual; /* nothing fits: the plan reports that, with advice */
    return TN_OK;
}
