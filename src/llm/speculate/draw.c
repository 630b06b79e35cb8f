/* Drawing the next token of a guess: with a copy of the sequence's sampler, or the argmax. */
#include "llm/speculate/proposer.h"

#include <math.h>
#include <string.h>

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

/* 2^x for x from -126 to 126, with a relative error below 0.0005. Without branches and calls, so that compilers
 * vectorise loops over it. NaN gives 2^-126. */
static inline float power_of_two(float x) {
    x = x > -126 ? x : -126;
    x = x < 126 ? x : 126;
    const int32_t whole = (int32_t)x, bits = (whole + 127) << 23;
    const float f = x - (float)whole; /* -1 … 1 */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale * (1 + f * (0.6931472f + f * (0.2402265f + f * (0.0555041f + f * (0.0096181f + f * 0.0013334f)))));
}

/* With expf this took about as long as the forward pass of a small draft. The result is used for
 * decisions, not for sampling, and need not be exact. */
float tn__row_prob(const float *row, int32_t n, tn_token token) {
    enum { LANES = 16 };
    static const float log2_e = 1.44269504f;
    float sums[LANES] = {0}, sum = 0;
    const float from = row[token];
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) sums[k] += power_of_two((row[i + k] - from) * log2_e);
    for (; i < n; i++) sum += power_of_two((row[i] - from) * log2_e);
    for (int k = 0; k < LANES; k++) sum += sums[k];
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
