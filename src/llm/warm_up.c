/* Warm-up: makes a device load kernels, create library handles and capture graphs before the first request,
 * instead of on first use. */
#include "llm/session_internal.h"

#include "base/checked.h"

/* No further batch is started after this time, because every batch of a large model takes long. */
static const uint64_t MOST_NS = 2000000000u;

static bool on_host_alone(const tn_session_plan *p) {
    for (size_t d = 0; d < p->placement.n_devices; d++)
        if (!tn_buffer_type_is_host(tn_device_buffer_type(tn__plan_device(p, d)))) return false;
    return true;
}

static tn_status warm_batch(tn_session *s, int32_t n, int32_t n_seqs, bool argmax) {
    const tn_session_params *p = &s->plan->params;
    int32_t *seqs = s->staging.prompt_seqs;
    for (int32_t i = 0; i < n; i++) seqs[i] = i % n_seqs;
    tn_batch batch = {.n_tokens = n,
                      .tokens = seqs, /* any tokens will do */
                      .seqs = seqs,
                      .argmax = argmax && !p->embeddings,
                      .candidates = !argmax};
    tn_status status = tn_session_decode(s, &batch);
    TN_TRY(tn_session_seq_remove(s, -1, 0, -1));
    /* The tokens are arbitrary, so results that are not finite are ignored. */
    return status == TN_E_NOT_FINITE ? TN_OK : status;
}

/* A step is captured when it runs for the second time. */
static tn_status warm_step(tn_session *s, int32_t n_seqs, uint64_t begin) {
    for (int run = 0; run < 6; run++) {
        if (tn_time_ns() - begin > MOST_NS) return TN_OK;
        TN_TRY(warm_batch(s, n_seqs, n_seqs, run % 2));
    }
    return TN_OK;
}

static tn_status warm_all(tn_session *s) {
    const tn_session_params *p = &s->plan->params;
    const uint64_t begin = tn_time_ns();
    const int32_t most = TN__MIN(p->n_ubatch, s->plan->model->h.n_ctx_train);
    const int32_t all = TN__MIN(TN__MIN(p->n_seqs, most), s->plan->model->h.n_vocab);
    for (int32_t n = most; n > 8; n /= 2) /* prompts of one sequence */
        if (tn_time_ns() - begin < MOST_NS) TN_TRY(warm_batch(s, n, 1, false));
    if (!s->plan->model->h.causal) return TN_OK;
    for (int32_t n = 1; n <= all; n = n < 8 ? n + 1 : 2 * n) TN_TRY(warm_step(s, n, begin));
    return all > 8 && (all & (all - 1)) ? warm_step(s, all, begin) : TN_OK;
}

tn_status tn_session_warm_up(tn_session *s) {
    if (!s) return tn_fail(TN_E_INVALID, "tn_session_warm_up: NULL argument");
    if (on_host_alone(s->plan)) return TN_OK;
    if (tn_session_cache_usage(s).used)
        return tn_fail(TN_E_STATE, "cannot warm up a session that holds tokens: clear it first");
    const tn_session_stats stats = s->stats;
    tn_status status = warm_all(s);
    s->stats = stats;
    s->results.n = 0;
    return status;
}
