/* Samplers: candidates and probabilities equal a plain reference, and draws follow the distribution. */
#include "sampler_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB = 4096 };

/* ---- The reference: candidates fully sorted, everything in double ---- */

typedef struct candidate {
    tn_token token;
    double logit, p, logp;
} candidate;
typedef struct reference {
    candidate c[MAX_VOCAB];
    size_t n;
    /* Distance of the last cut from another result. If it is tiny, rounding may decide. */
    double margin;
} reference;

static int by_logit(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}
static void ref_sort(reference *r) { qsort(r->c, r->n, sizeof *r->c, by_logit); }
static void ref_softmax(reference *r) {
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < r->n; i++) max = fmax(max, r->c[i].logit);
    for (size_t i = 0; i < r->n; i++) sum += r->c[i].p = exp(r->c[i].logit - max);
    for (size_t i = 0; i < r->n; i++) r->c[i].p /= sum;
    for (size_t i = 0; i < r->n; i++) r->c[i].logp = r->c[i].logit - max - log(sum);
}
static void ref_load(reference *r, const float *logits, size_t n) {
    r->n = 0;
    r->margin = 1;
    for (size_t i = 0; i < n; i++) {
        float x = logits[i];
        if (isnan(x) || x < -1e24f) continue;
        r->c[r->n++] = (candidate){(tn_token)i, fmin(x, 1e24f), 0, 0};
    }
    ref_sort(r);
}
static void ref_keep(reference *r, size_t keep, size_t min_keep) {
    if (keep < min_keep) keep = min_keep;
    if (keep < r->n) r->n = keep;
}
static double ref_entropy(reference *r) {
    double h = 0;
    ref_softmax(r);
    for (size_t i = 0; i < r->n; i++)
        if (r->c[i].p > 0) h -= r->c[i].p * r->c[i].logp;
    return h;
}
/* Cuts where the running sum of p in the current order reaches `target`. */
static void ref_cut_at(reference *r, double target, size_t min_keep) {
    double sum = 0;
    size_t keep = r->n;
    for (size_t i = 0; i < r->n; i++) {
        sum += r->c[i].p;
        r->margin = fmin(r->margin, fabs(sum - target));
        if (sum >= target) {
            keep = i + 1;
            break;
        }
    }
    ref_keep(r, keep, min_keep);
}
static void ref_cut_below(reference *r, double cut, size_t min_keep) {
    size_t keep = 0;
    for (size_t i = 0; i < r->n; i++) {
        r->margin = fmin(r->margin, fabs(r->c[i].logit - cut));
        if (r->c[i].logit >= cut) keep = i + 1;
    }
    ref_keep(r, keep, min_keep);
}

static double typical_center;
static int by_typicality(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    double dx = fabs(-x->logp - typical_center), dy = fabs(-y->logp - typical_center);
    if (fabs(dx - dy) > 1e-12) return dx < dy ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Applies one sampler, XTC always. `history` has the oldest token first. */
static void ref_apply(reference *r, const tn_sampler_params *p, tn_sampler_kind kind, const tn_token *history,
                      size_t n_history) {
    size_t min_keep = p->min_keep ? p->min_keep : 1;
    switch (kind) {
    case TN_SAMPLER_TOP_K:
        if (p->top_k > 0) ref_keep(r, (size_t)p->top_k, min_keep);
        break;
    case TN_SAMPLER_TOP_P:
        if (p->top_p >= 1) break;
        ref_softmax(r);
        ref_cut_at(r, p->top_p, min_keep);
        break;
    case TN_SAMPLER_MIN_P:
        if (p->min_p > 0) ref_cut_below(r, r->c[0].logit + log(p->min_p), min_keep);
        break;
    case TN_SAMPLER_TOP_N_SIGMA: {
        if (p->top_n_sigma <= 0) break;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < r->n; i++) mean += r->c[i].logit / (double)r->n;
        for (size_t i = 0; i < r->n; i++) variance += pow(r->c[i].logit - mean, 2) / (double)r->n;
        ref_cut_below(r, r->c[0].logit - p->top_n_sigma * sqrt(variance), min_keep);
        break;
    }
    case TN_SAMPLER_TYPICAL:
        if (p->typical_p >= 1) break;
        typical_center = ref_entropy(r);
        qsort(r->c, r->n, sizeof *r->c, by_typicality);
        for (size_t i = 0; i + 1 < r->n; i++) {
            double a = fabs(-r->c[i].logp - typical_center), b = fabs(-r->c[i + 1].logp - typical_center);
            if (a != b) r->margin = fmin(r->margin, fabs(a - b)); /* rounding may decide the order */
        }
        ref_cut_at(r, p->typical_p, min_keep);
        ref_sort(r);
        break;
    case TN_SAMPLER_XTC: {
        if (p->xtc_probability <= 0 || p->xtc_threshold > 0.5f) break;
        ref_softmax(r);
        size_t above = 0;
        while (above < r->n && r->c[above].p >= p->xtc_threshold) above++;
        for (size_t i = 0; i < r->n; i++) r->margin = fmin(r->margin, fabs(r->c[i].p - p->xtc_threshold));
        if (above < 2 || r->n - (above - 1) < min_keep) break;
        memmove(r->c, r->c + above - 1, (r->n - (above - 1)) * sizeof *r->c);
        r->n -= above - 1;
        break;
    }
    case TN_SAMPLER_TEMPERATURE: {
        double t = p->temperature;
        if (p->dynamic_range > 0) {
            if (r->n < 2) break;
            double low = fmax(0, t - p->dynamic_range), high = t + p->dynamic_range;
            t = fmax(1e-6, low + (high - low) * pow(ref_entropy(r) / log((double)r->n), p->dynamic_exponent));
        }
        for (size_t i = 0; i < r->n; i++) r->c[i].logit /= t;
        break;
    }
    case TN_SAMPLER_PENALTIES:
        for (size_t i = 0; i < r->n; i++) {
            size_t count = 0;
            for (size_t k = 0; k < n_history; k++)
                count += history[k] == r->c[i].token && n_history - k <= (size_t)p->penalty_window;
            if (!count) continue;
            double *l = &r->c[i].logit;
            *l = *l > 0 ? *l / p->repeat_penalty : *l * p->repeat_penalty;
            *l -= (double)count * p->frequency_penalty + p->presence_penalty;
        }
        ref_sort(r);
        break;
    case TN_SAMPLER_DRY: {
        if (p->dry_multiplier <= 0) break;
        const tn_token *h = history;
        size_t n = n_history;
        if (n > (size_t)p->dry_window) {
            h += n - (size_t)p->dry_window;
            n = (size_t)p->dry_window;
        }
        for (size_t i = 0; i < r->n; i++) {
            size_t best = 0;
            for (size_t k = 1; k < n; k++) {
                if (h[k] != r->c[i].token) continue;
                size_t length = 0;
                while (length < k && h[k - 1 - length] == h[n - 1 - length]) length++;
                if (length > best) best = length;
            }
            if (best >= (size_t)p->dry_allowed_length)
                r->c[i].logit -= p->dry_multiplier * pow(p->dry_base, (double)best - p->dry_allowed_length);
        }
        ref_sort(r);
        break;
    }
    default: fail();
    }
}

/* ---- Comparing ---- */

static void compare(tn_sampler *s, const float *logits, size_t n, const reference *r, const char *what) {
    static tn_token_prob got[MAX_VOCAB];
    static double expected[MAX_VOCAB];
    tn_token token;
    size_t count;
    assert_ok(tn_sampler_sample(s, logits, n, &token));
    assert_ok(tn_sampler_candidates(s, got, MAX_VOCAB, &count));
    if (r->margin < 2e-5) return; /* rounding decides the cut */
    if (count != r->n) fail_msg("%s: %zu candidates, expected %zu (margin %g)", what, count, r->n, r->margin);
    for (size_t i = 0; i < n; i++) expected[i] = NAN;
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < r->n; i++) max = fmax(max, r->c[i].logit);
    for (size_t i = 0; i < r->n; i++) sum += exp(r->c[i].logit - max);
    for (size_t i = 0; i < r->n; i++) expected[r->c[i].token] = r->c[i].logit - max - log(sum);
    for (size_t i = 0; i < count; i++) {
        double want = expected[got[i].token];
        if (got[i].logprob < -1000 && want < -1000) continue; /* never drawn; small temperatures magnify rounding */
        if (!(fabs(got[i].logprob - want) <= 1e-5 * (1 + fabs(want)) + 0x1p-22 * fabs(max))) /* max: floats round */
            fail_msg("%s: token %d has log-probability %g, expected %g", what, got[i].token, got[i].logprob, want);
        if (i) assert_true(got[i - 1].logprob >= got[i].logprob);
    }
    bool drawn_is_candidate = false;
    for (size_t i = 0; i < count; i++) drawn_is_candidate |= got[i].token == token;
    assert_true(drawn_is_candidate);
}

/* The i-th setting for a sampler; false after the last. */
static bool vary(tn_sampler_params *p, tn_sampler_kind kind, int i) {
    static const int k[] = {1, 2, 7, 40, 5000};
    static const float probabilities[] = {0.0f, 0.1f, 0.5f, 0.95f, 0.999f};
    static const float min_p[] = {0.001f, 0.05f, 0.3f, 0.9f, 1.0f};
    static const float sigma[] = {0.1f, 0.5f, 1, 2, 5};
    static const float temperatures[] = {0.1f, 0.7f, 1, 2, 10};
    if (i >= 10) return false;
    int j = i % 5;
    p->min_keep = i < 5 ? 1 : 3;
    p->top_k = k[j];
    p->top_p = p->typical_p = probabilities[j];
    p->min_p = min_p[j];
    p->top_n_sigma = sigma[j];
    p->xtc_probability = 1;
    p->xtc_threshold = 0.02f * (float)(j + 1) * (float)(j + 1);
    p->temperature = temperatures[j];
    p->dynamic_range = i < 5 ? 0 : 0.4f;
    p->dynamic_exponent = j == 0 ? 2 : 1;
    p->penalty_window = j == 0 ? 1 : 8 * j;
    p->repeat_penalty = i < 5 ? 1.3f : 1;
    p->frequency_penalty = i < 5 ? 0 : 0.25f;
    p->presence_penalty = i == 7 ? -0.5f : 0.5f;
    p->dry_multiplier = 0.8f;
    p->dry_allowed_length = 1 + j;
    p->dry_window = i < 5 ? 64 : 9;
    if (kind == TN_SAMPLER_TEMPERATURE) p->min_keep = 1;
    return true;
}

static void each_sampler_equals_its_reference(void **state) {
    (void)state;
    static float logits[MAX_VOCAB];
    static reference r;
    rng random = {42};
    const size_t sizes[] = {1, 2, 17, 128, 1000, MAX_VOCAB};
    for (int kind = 0; kind < TN_SAMPLER_KINDS; kind++)
        for (size_t size = 0; size < 6; size++)
            for (int row = 0; row < 8; row++) {
                size_t n = sizes[size];
                tn_sampler_params p = plain_params();
                p.chain[p.n_chain++] = (tn_sampler_kind)kind;
                for (int i = 0; vary(&p, (tn_sampler_kind)kind, i); i++) {
                    char what[128];
                    snprintf(what, sizeof what, "%s %d, row %d of %zu", tn_sampler_kind_name((tn_sampler_kind)kind),
                             i, row, n);
                    random_row(&random, logits, n, row);
                    tn_sampler *s;
                    assert_ok(tn_sampler_new(&p, n, &s));
                    /* A history with repetitions. */
                    tn_token history[100];
                    size_t n_history = rng_below(&random, 100);
                    for (size_t h = 0; h < n_history; h++) {
                        history[h] = (tn_token)rng_below(&random, n < 6 ? n : 6);
                        assert_ok(tn_sampler_accept(s, history[h]));
                    }
                    ref_load(&r, logits, n);
                    ref_apply(&r, &p, (tn_sampler_kind)kind, history, n_history);
                    compare(s, logits, n, &r, what);
                    tn_sampler_free(s);
                }
            }
}

/* Random chains of several samplers in random order, so that each also works on a list. */
static void chains_in_any_order_equal_the_reference(void **state) {
    (void)state;
    static float logits[MAX_VOCAB];
    static reference r;
    rng random = {7};
    for (int round = 0; round < 1500; round++) {
        size_t n = 1 + rng_below(&random, round % 10 ? 300 : MAX_VOCAB);
        tn_sampler_params p = plain_params();
        for (int kind = 0; kind < TN_SAMPLER_KINDS; kind++)
            if (rng_below(&random, 2)) {
                size_t at = rng_below(&random, p.n_chain + 1);
                memmove(p.chain + at + 1, p.chain + at, (p.n_chain - at) * sizeof *p.chain);
                p.chain[at] = (tn_sampler_kind)kind;
                p.n_chain++;
            }
        vary(&p, TN_SAMPLER_TOP_K, (int)rng_below(&random, 10));
        p.top_p = 0.3f + 0.6f * (float)rng_unit(&random);
        p.typical_p = 0.3f + 0.6f * (float)rng_unit(&random);
        p.top_k = 1 + (int)rng_below(&random, 60);
        random_row(&random, logits, n, round % 3); /* rows whose cuts are not all ties */
        tn_sampler *s;
        assert_ok(tn_sampler_new(&p, n, &s));
        tn_token history[40];
        for (size_t h = 0; h < 40; h++) {
            history[h] = (tn_token)rng_below(&random, n < 8 ? n : 8);
            assert_ok(tn_sampler_accept(s, history[h]));
        }
        ref_load(&r, logits, n);
        char what[256];
        int length = snprintf(what, sizeof what, "chain %d:", round);
        for (size_t i = 0; i < p.n_chain; i++) {
            length += snprintf(what + length, sizeof what - (size_t)length, " %s", tn_sampler_kind_name(p.chain[i]));
            ref_apply(&r, &p, p.chain[i], history, 40);
        }
        compare(s, logits, n, &r, what);
        tn_sampler_free(s);
    }
}

/* ---- Distributions ---- */

/* The bound that a correct draw exceeds about once in ten million times (normal approximation, 5.2 sigma). */
static void check_chi_square(const uint32_t *counts, const double *p, size_t n, double draws, const char *what) {
    double chi = 0, pooled_p = 0, pooled_count = 0;
    int bins = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == 0 && counts[i]) fail_msg("%s: token %zu was drawn and should not", what, i);
        if (p[i] * draws < 10) {
            pooled_p += p[i];
            pooled_count += counts[i];
            continue;
        }
        chi += pow(counts[i] - p[i] * draws, 2) / (p[i] * draws);
        bins++;
    }
    if (pooled_p * draws >= 10) {
        chi += pow(pooled_count - pooled_p * draws, 2) / (pooled_p * draws);
        bins++;
    }
    double freedom = bins - 1;
    if (chi > freedom + 5.2 * sqrt(2 * freedom) + 20) fail_msg("%s: chi-square %g for %g", what, chi, freedom);
}

static void spread(const reference *from, double weight, double *p) {
    reference r = *from;
    ref_softmax(&r);
    for (size_t i = 0; i < r.n; i++) p[r.c[i].token] += weight * r.c[i].p;
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    enum { N = 32, DRAWS = 1000000 };
    static reference r, without;
    float logits[N];
    rng random = {3};
    for (int i = 0; i < N; i++) logits[i] = 2 * rng_normal(&random);
    for (int kind = 0; kind < TN_SAMPLER_KINDS + 3; kind++) {
        tn_sampler_params p = plain_params();
        if (kind < TN_SAMPLER_KINDS) {
            vary(&p, (tn_sampler_kind)kind, 3);
            p.top_k = 10;
            p.top_p = p.typical_p = 0.8f;
            p.xtc_probability = 0.4f;
            p.xtc_threshold = 0.05f;
            p.top_n_sigma = 1.5f;
            p.chain[p.n_chain++] = (tn_sampler_kind)kind;
        } else if (kind > TN_SAMPLER_KINDS) {
            p.mirostat = kind - TN_SAMPLER_KINDS;
            p.mirostat_eta = 0; /* mu stays at 2 tau */
            p.mirostat_tau = p.mirostat == 1 ? 2.5f : 2;
        }
        tn_sampler *s;
        assert_ok(tn_sampler_new(&p, N, &s));
        tn_token history[30];
        for (int i = 0; i < 30; i++) {
            history[i] = i % 5;
            assert_ok(tn_sampler_accept(s, history[i]));
        }
        double expected[N] = {0};
        ref_load(&r, logits, N);
        without = r;
        if (kind < TN_SAMPLER_KINDS) {
            ref_apply(&r, &p, (tn_sampler_kind)kind, history, 30);
        } else if (kind == TN_SAMPLER_KINDS + 1) {
            double tb = 0, tt = 0;
            for (int i = 0; i + 1 < N; i++) {
                double t = log((i + 2.0) / (i + 1.0));
                tb += t * (r.c[i].logit - r.c[i + 1].logit);
                tt += t * t;
            }
            double e = tb / tt - 1, k = pow(e * pow(2, 2 * 2.5) / (1 - pow(N, -e)), tt / tb);
            r.n = (size_t)k;
            assert_true(r.n > 3 && r.n < N);
        } else if (kind == TN_SAMPLER_KINDS + 2) {
            ref_softmax(&r);
            while (-log2(r.c[r.n - 1].p) > 4) r.n--;
            assert_true(r.n > 3 && r.n < N);
        }
        double taken = kind == TN_SAMPLER_XTC ? p.xtc_probability : 1;
        spread(&r, taken, expected);
        spread(&without, 1 - taken, expected);
        uint32_t counts[N] = {0};
        for (int i = 0; i < DRAWS; i++) {
            tn_token token;
            assert_ok(tn_sampler_sample(s, logits, N, &token));
            counts[token]++;
        }
        const char *name = kind < TN_SAMPLER_KINDS    ? tn_sampler_kind_name((tn_sampler_kind)kind)
                           : kind == TN_SAMPLER_KINDS ? "no sampler"
                                                      : "mirostat";
        check_chi_square(counts, expected, N, DRAWS, name);
        tn_sampler_free(s);
    }
}

/* The average surprise of tokens drawn with mirostat approaches tau. */
static void mirostat_steers_to_its_target(void **state) {
    (void)state;
    enum { N = 2000 };
    static float logits[N];
    rng random = {11};
    for (int version = 1; version <= 2; version++) {
        tn_sampler_params p = plain_params();
        p.mirostat = version;
        p.mirostat_tau = 3;
        tn_sampler *s;
        assert_ok(tn_sampler_new(&p, N, &s));
        double surprise = 0;
        for (int i = 0; i < 3000; i++) {
            for (int k = 0; k < N; k++) logits[k] = 1.5f * rng_normal(&random) - 1.1f * logf((float)(k + 1));
            tn_token token;
            assert_ok(tn_sampler_sample(s, logits, N, &token));
            tn_token_prob top[N];
            size_t count;
            assert_ok(tn_sampler_candidates(s, top, N, &count));
            for (size_t k = 0; k < count; k++)
                if (top[k].token == token && i >= 1000) surprise -= top[k].logprob / log(2) / 2000;
        }
        if (fabs(surprise - 3) > 0.1) fail_msg("mirostat %d: %g bits per token", version, surprise);
        tn_sampler_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sampler_equals_its_reference),
        cmocka_unit_test(chains_in_any_order_equal_the_reference),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(mirostat_steers_to_its_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
