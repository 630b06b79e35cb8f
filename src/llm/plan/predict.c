/* The predicted speed of a session, from its graphs and the peaks of its devices. */
#include "llm/session_internal.h"

#include "tenon/cpu.h"

#include "base/checked.h"

#include <math.h>

static int threads_of_plan(const tn_session_plan *p) {
    return p->params.threads ? tn_threadpool_size(p->params.threads) : p->params.n_threads;
}

static tn_status predict_set(const tn_session_plan *p, const tn__graph_set *set, double past, int64_t n_seqs,
                             tn_prediction *prediction) {
    const tn_predict_params params = {
        .n_past = (int64_t)(past + 0.5), .n_seqs = n_seqs, .n_threads = threads_of_plan(p)};
    return tn_predict_graph(p->sched, set->graph, &params, prediction);
}

/* The time of a graph is linear in the number of cells before it, except where a window ends: one prediction at the
 * mean depth represents all micro-batches. */
tn_status tn_session_plan_predict(const tn_session_plan *p, const tn_session_speed_params *params,
                                  tn_session_speed *speed) {
    if (!p || !params || !speed) return tn_fail(TN_E_INVALID, "tn_session_plan_predict: NULL argument");
    if (p->ended || !p->graphs.kept[TN__REPORTED_DECODE])
        return tn_fail(TN_E_STATE, "the plan has no graphs to predict: its session has ended");
    const tn__graph_set *prefill = p->graphs.kept[TN__REPORTED_PREFILL],
                        *decode = p->graphs.kept[TN__REPORTED_DECODE];
    *speed = (tn_session_speed){.prompt = params->prompt, .depth = params->depth};
    if (params->prompt < 0 || params->depth < 0 || params->generate < 0)
        return tn_fail(TN_E_INVALID, "prompt %d, depth %d, generate %d: none may be negative", params->prompt,
                       params->depth, params->generate);
    if (params->prompt > 0) {
        const double rows = (double)prefill->shape.n_tokens, prompt = params->prompt, runs = prompt / rows;
        TN_TRY(predict_set(p, prefill, params->depth + fmax(0, ceil(runs) - 1) / 2 * rows, 1, &speed->prefill_run));
        speed->prefill = rows / speed->prefill_run.seconds;
    }
    TN_TRY(
        predict_set(p, decode, params->depth + params->generate / 2.0, decode->shape.n_tokens, &speed->decode_run));
    speed->decode = (double)decode->shape.n_tokens / speed->decode_run.seconds;
    return TN_OK;
}
