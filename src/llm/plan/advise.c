/* Advice for a session that does not fit. Every suggestion was planned and fits. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct advice {
    char *text;
    size_t size, used;
} advice;

static void add_advice(advice *a, const char *format, ...) TN_PRINTF(2, 3);
static void add_advice(advice *a, const char *format, ...) {
    if (a->used + 3 >= a->size) return;
    if (a->used) a->used += (size_t)snprintf(a->text + a->used, a->size - a->used, "; ");
    va_list list;
    va_start(list, format);
    int n = vsnprintf(a->text + a->used, a->size - a->used, format, list);
    va_end(list);
    if (n > 0) a->used = TN__MIN(a->used + (size_t)n, a->size - 1);
}

/* The quick check first: it rejects most suggestions. */
static bool fits_with(const tn_session_plan *p, const tn_session_params *params) {
    return tn__session_plan_would_fit(p->model, params, false) && tn__session_plan_would_fit(p->model, params, true);
}
static bool may_fit_with(const tn_session_plan *p, const tn_session_params *params) {
    return tn__session_plan_would_fit(p->model, params, false);
}

/* The largest context below the current one that fits, in steps of an eighth of the power of two below it; 0: none.
 */
static int32_t find_largest_context(const tn_session_plan *p, tn_session_params params) {
    int32_t low = 1;
    while (low <= params.n_ctx / 2) low *= 2;
    if (low == params.n_ctx) low /= 2;
    for (; low >= 256; low /= 2) {
        params.n_ctx = low;
        if (may_fit_with(p, &params)) break;
    }
    if (low < 256) return 0;
    int32_t step = low / 2;
    for (int i = 0; i < 3 && low + step < p->params.n_ctx; i++, step /= 2) {
        params.n_ctx = low + step;
        if (params.n_ctx < p->params.n_ctx && may_fit_with(p, &params)) low = params.n_ctx;
    }
    for (; low >= 256; low -= low / 8) {
        params.n_ctx = low;
        if (fits_with(p, &params)) return low;
    }
    return 0;
}

/* Advises how many bits per weight would fit, if the weights take too much memory. */
static void advise_bits(const tn_session_plan *p, advice *a) {
    size_t room = 0, weights = 0;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        size_t others = 0, own = 0;
        for (size_t i = d; i < p->placement.n_devices; i++) {
            const tn__device_plan *plan = &p->devices[i];
            if (p->placement.budgets[i].domain != d) continue;
            others += plan->cache + plan->missing;
            own += p->placement.budgets[i].free;
            weights += plan->weights + plan->mapped;
        }
        own = TN__MIN(own, p->placement.budgets[d].domain_free); /* 0 unless d is the first of its domain */
        if (own > others) room += own - others;
    }
    double bits = p->model->n_params ? 8.0 * (double)room / (double)p->model->n_params : 0;
    if (room < weights && bits >= 1.5)
        add_advice(
            a,
            "use a quantization of at most %.1f bits per weight (the weights take %.1f GiB, %.1f GiB are left for "
            "them)",
            bits, (double)weights / (1 << 30), (double)room / (1 << 30));
    else
        add_advice(a, "use a smaller model or one of a smaller quantization, or devices with more memory");
}

void tn__advise(const tn_session_plan *p, char *text, size_t size) {
    advice a = {.text = text, .size = size};
    tn_session_params params = p->params;
    text[0] = '\0';
    params.n_gpu_layers = -1;
    if (p->params.n_gpu_layers > 0 && p->placement.n_devices > 1 && fits_with(p, &params))
        add_advice(&a, "let the number of layers on the GPU be chosen (--gpu-layers -1)");
    params = p->params;
    params.cache_k = params.cache_v = TN_Q8_0;
    params.cache_k_window = params.cache_v_window = TN_TYPE_LIMIT; /* as the option below does it */
    bool smaller = tn_type_block(p->params.cache_k) == 1 && p->params.cache_k != TN_FP8;
    if (smaller && fits_with(p, &params)) add_advice(&a, "use a q8_0 cache (--cache-type-k q8_0)");
    int32_t context = find_largest_context(p, p->params);
    if (context) add_advice(&a, "use a context of %d (--ctx %d)", context, context);
    if (!a.used && smaller && (context = find_largest_context(p, params)))
        add_advice(&a, "use a q8_0 cache and a context of %d (--cache-type-k q8_0 --ctx %d)", context, context);
    params = p->params;
    params.n_ubatch = 128;
    if (!a.used && p->params.n_ubatch > 128 && fits_with(p, &params))
        add_advice(&a, "compute fewer tokens at once (--ubatch 128)");
    if (!a.used) advise_bits(p, &a);
}
