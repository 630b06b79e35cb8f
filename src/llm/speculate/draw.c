/* Drawing the next token of a guess: with a copy of the sequence's sampler, or the argmax. */
#include "llm/speculate/proposer.h"

#include <math.h>

tn_token tn__row_argmax(const float *row, int32_t n, float *prob) {
    enum { LANES = 16 };
    float best[LANES];
    tn_token argmax = 0;
    for (int k = 0; k < LANES; k++) best[k] = -INFINITY;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) best[k] = row[i + k] > best[k] ? row[i + k] : best[k];
    float most = -INFINITY;
    for (int k = 0; k < LANES; k++) most = best[k] > most ? best[k] : most;
    for (; i < n; i++) most = row[i] > most ? row[i] : most;
    while (argmax < n - 1 && !(row[argmax] == most)) argmax++;
    *prob = tn__row_prob(row, n, argmax);
    return argmax;
}

tn_token tn__row_other(const float *row, int32_t n, tn_token but, float *prob) {
    tn_token best = but ? 0 : 1;
    for (int32_t i = 0; i < n; i++)
        if (i != but && row[i] > row[best]) best = i;
    *prob = tn__row_prob(row, n, best);
    return best;
}

/* Tokens far below the drawn one are ignored: the result is used for decisions, not for sampling. */
float tn__row_prob(const float *row, int32_t n, tn_token token) {
    static const float far = 16;
    float sum = 0, from = row[token];
    for (int32_t i = 0; i < n; i++)
        if (row[i] > from - far) sum += expf(row[i] - from);
    return sum > 0 ? 1 / sum : 0;
}

tn_status tn__drawer_follow(tn__drawer *d, const tn_guess *g, bool same) {
    if (!g->sampler || !same || tn_sampler_is_greedy(g->sampler)) {
        tn__drawer_free(d);
        return TN_OK;
    }
    if (d->sampler && d->follows == g->sampler && tn_sampler_follow(d->sampler, g->sampler) == TN_OK) return TN_OK;
    tn__drawer_free(d);
    TN_TRY(tn_sampler_clone(g->sampler, &d->sampler));
    d->follows = g->sampler;
    return tn_sampler_set_grammar(d->sampler, NULL);
}

tn_status tn__drawer_draw(tn__drawer *d, const float *row, int32_t n, tn_token *token, float *prob) {
    if (!row) return tn_fail(TN_E_STATE, "there are no logits to guess from");
    if (!d->sampler) {
        *token = tn__row_argmax(row, n, prob);
        return TN_OK;
    }
    TN_TRY(tn_sampler_sample(d->sampler, row, (size_t)n, token));
    *prob = tn__row_prob(row, n, *token);
    return tn_sampler_accept(d->sampler, *token);
}

void tn__drawer_free(tn__drawer *d) {
    tn_sampler_free(d->sampler);
    *d = (tn__drawer){0};
}
