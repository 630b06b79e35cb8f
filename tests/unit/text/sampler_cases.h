/* Helpers of the tests of samplers. */
#ifndef TN_TESTS_SAMPLER_CASES_H
#define TN_TESTS_SAMPLER_CASES_H

#include "support.h"
#include "tenon/sampler.h"

#include <math.h>

static inline tn_sampler_params plain_params(void) {
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = 1;
    p.n_chain = 0;
    p.temperature = 1;
    p.n_dry_breakers = 0;
    return p;
}

/* Rows of all kinds: smooth, with ties, with -inf, with NaN, flat, one token left, one peak, huge. */
static inline void random_row(rng *r, float *logits, size_t n, int kind) {
    for (size_t i = 0; i < n; i++) logits[i] = 3 * rng_normal(r);
    switch (kind % 8) {
    case 1:
        for (size_t i = 0; i < n; i++) logits[i] = roundf(logits[i]);
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            if (rng_below(r, 3)) logits[i] = -INFINITY;
        break;
    case 3:
        for (size_t i = 0; i < n; i++)
            if (rng_below(r, 4) == 0) logits[i] = NAN;
        break;
    case 4:
        for (size_t i = 0; i < n; i++) logits[i] = 1.5f;
        break;
    case 5:
        for (size_t i = 0; i < n; i++) logits[i] = -INFINITY;
        break;
    case 6: logits[rng_below(r, n)] = 30; break;
    case 7:
        for (size_t i = 0; i < n; i++) logits[i] *= 1e4f;
        break;
    default: break;
    }
    logits[rng_below(r, n)] = 2; /* at least one possible token */
}

#endif
