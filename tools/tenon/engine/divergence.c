/* KL divergence and what else compares the predictions of two models. */
#include "engine/divergence.h"

#include <math.h>
#include <stdlib.h>

tn_status divergence_new(size_t tokens, struct divergence *d) {
    *d = (struct divergence){.capacity = tokens};
    d->kl = tn_calloc(tokens + 1, sizeof *d->kl);
    d->p_delta = tn_calloc(tokens + 1, sizeof *d->p_delta);
    if (d->kl && d->p_delta) return TN_OK;
    divergence_free(d);
    return TN_E_NOMEM;
}

void divergence_free(struct divergence *d) {
    tn_free(d->kl);
    tn_free(d->p_delta);
    *d = (struct divergence){0};
}

void divergence_add(struct divergence *d, const float *logits, const float *base, int32_t n_vocab, int32_t next) {
    if (d->count == d->capacity) return;
    int32_t top = 0, base_top = 0;
    double sum = 0, kl = 0;
    for (int32_t i = 1; i < n_vocab; i++) {
        if (logits[i] > logits[top]) top = i;
        if (base[i] > base[base_top]) base_top = i;
    }
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - (double)logits[top]);
    const double total = (double)logits[top] + log(sum);
    /* Smaller probabilities are not resolved by the base file. */
    for (int32_t i = 0; i < n_vocab; i++)
        if (base[i] > -16) kl += exp((double)base[i]) * ((double)base[i] - ((double)logits[i] - total));
    const double nll = total - (double)logits[next], base_nll = -(double)base[next];
    d->kl[d->count] = (float)kl;
    d->p_delta[d->count++] = (float)(exp(-nll) - exp(-base_nll));
    d->same_top += top == base_top;
    d->nll += nll;
    d->nll2 += nll * nll;
    d->base += base_nll;
    d->base2 += base_nll * base_nll;
    d->both += nll * base_nll;
}

/* ---- Statistics ---- */

struct estimate {
    double mean, deviation; /* of the mean */
};
static struct estimate estimate_of(double sum, double squares, size_t count) {
    if (!count) return (struct estimate){0, 0};
    const double n = (double)count, mean = sum / n, variance = squares / n - mean * mean;
    return (struct estimate){mean, count > 10 && variance > 0 ? sqrt(variance / (n - 1)) : 0};
}
static struct estimate estimate_values(const float *values, size_t count, int power) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
        const double v = power == 2 ? (double)values[i] * (double)values[i] : (double)values[i];
        sum += v;
        squares += v * v;
    }
    return estimate_of(sum, squares, count);
}

static int by_float_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}
/* Between the neighbouring values in proportion. */
static double percentile(const float *sorted, size_t count, double fraction) {
    const double at = fraction * (double)(count - 1);
    const size_t i = (size_t)at;
    const double rest = at - (double)i;
    return (1 - rest) * (double)sorted[i] + rest * (double)sorted[i + 1 < count ? i + 1 : i];
}

struct divergence_summary {
    struct estimate nll, base, log_ratio, kl, p_delta;
    double correlation, rms, rms_deviation, same_top, same_top_deviation;
};

static struct divergence_summary summarise(struct divergence *d) {
    struct divergence_summary s = {.nll = estimate_of(d->nll, d->nll2, d->count),
                                   .base = estimate_of(d->base, d->base2, d->count),
                                   .kl = estimate_values(d->kl, d->count, 1),
                                   .p_delta = estimate_values(d->p_delta, d->count, 1)};
    const double n = (double)d->count, covariance = (d->both / n - s.nll.mean * s.base.mean) / (n > 1 ? n - 1 : 1);
    const double variance = s.nll.deviation * s.nll.deviation + s.base.deviation * s.base.deviation - 2 * covariance;
    s.log_ratio = (struct estimate){s.nll.mean - s.base.mean, variance > 0 ? sqrt(variance) : 0};
    const double both = s.nll.deviation * s.base.deviation;
    s.correlation = both > 0 ? covariance / both : 0;
    const struct estimate squares = estimate_values(d->p_delta, d->count, 2);
    s.rms = sqrt(squares.mean);
    s.rms_deviation = s.rms > 0 ? 0.5 / s.rms * squares.deviation : 0;
    s.same_top = (double)d->same_top / n;
    s.same_top_deviation = n > 1 ? sqrt(s.same_top * (1 - s.same_top) / (n - 1)) : 0;
    qsort(d->kl, d->count, sizeof *d->kl, by_float_value);
    qsort(d->p_delta, d->count, sizeof *d->p_delta, by_float_value);
    return s;
}

static const struct percent {
    const char *name, *key;
    double fraction;
    bool kl, p_delta; /* where it is usual */
} percents[] = {
    {"maximum", "max", 1, true, true},     {"99.9 %", "p99_9", 0.999, true, true},
    {"99 %", "p99", 0.99, true, true},     {"95 %", "p95", 0.95, true, true},
    {"90 %", "p90", 0.9, true, true},      {"75 %", "p75", 0.75, false, true},
    {"median", "median", 0.5, true, true}, {"25 %", "p25", 0.25, false, true},
    {"10 %", "p10", 0.1, true, true},      {"5 %", "p5", 0.05, true, true},
    {"1 %", "p1", 0.01, true, true},       {"0.1 %", "p0_1", 0.001, true, true},
    {"minimum", "min", 0, true, true},
};
enum { PERCENTS = sizeof percents / sizeof *percents };

void divergence_print(struct divergence *d, FILE *out) {
    if (!d->count) return;
    const struct divergence_summary s = summarise(d);
    const double ppl = exp(s.nll.mean), base = exp(s.base.mean), ratio = exp(s.log_ratio.mean);
    fprintf(out, "perplexity            %.6f ± %.6f\n", ppl, ppl * s.nll.deviation);
    fprintf(out, "perplexity of base    %.6f ± %.6f\n", base, base * s.base.deviation);
    fprintf(out, "ratio                 %.6f ± %.6f\n", ratio, ratio * s.log_ratio.deviation);
    fprintf(out, "ln(ratio)             %.6f ± %.6f\n", s.log_ratio.mean, s.log_ratio.deviation);
    fprintf(out, "correlation of ln     %.2f %%\n\n", 100 * s.correlation);
    fprintf(out, "KL divergence: mean    %.6f ± %.6f\n", s.kl.mean, s.kl.deviation);
    for (int i = 0; i < PERCENTS; i++)
        if (percents[i].kl)
            fprintf(out, "               %-8s%.6f\n", percents[i].name,
                    percentile(d->kl, d->count, percents[i].fraction));
    fprintf(out, "\nΔp: mean              %.3f ± %.3f %%\n", 100 * s.p_delta.mean, 100 * s.p_delta.deviation);
    for (int i = 0; i < PERCENTS; i++)
        if (percents[i].p_delta)
            fprintf(out, "    %-18s%.3f %%\n", percents[i].name,
                    100 * percentile(d->p_delta, d->count, percents[i].fraction));
    fprintf(out, "RMS of Δp             %.3f ± %.3f %%\n", 100 * s.rms, 100 * s.rms_deviation);
    fprintf(out, "same top token        %.3f ± %.3f %%\n", 100 * s.same_top, 100 * s.same_top_deviation);
}

void divergence_print_json(struct divergence *d, FILE *out) {
    if (!d->count) return;
    const struct divergence_summary s = summarise(d);
    fprintf(out,
            "\"perplexity_base\": %.6f, \"ln_ratio\": %.6f, \"ln_ratio_deviation\": %.6f, \"correlation\": %.6f, "
            "\"kl\": {\"mean\": %.6f, \"deviation\": %.6f",
            exp(s.base.mean), s.log_ratio.mean, s.log_ratio.deviation, s.correlation, s.kl.mean, s.kl.deviation);
    for (int i = 0; i < PERCENTS; i++)
        if (percents[i].kl)
            fprintf(out, ", \"%s\": %.6f", percents[i].key, percentile(d->kl, d->count, percents[i].fraction));
    fprintf(out, "}, \"p_delta\": {\"mean\": %.6f, \"deviation\": %.6f, \"rms\": %.6f", s.p_delta.mean,
            s.p_delta.deviation, s.rms);
    for (int i = 0; i < PERCENTS; i++)
        if (percents[i].p_delta)
            fprintf(out, ", \"%s\": %.6f", percents[i].key, percentile(d->p_delta, d->count, percents[i].fraction));
    fprintf(out, "}, \"same_top\": %.6f", s.same_top);
}
