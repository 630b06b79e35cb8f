/* What to try when a session does not fit: ways that were planned and do fit, not guesses. */
#include "llm/session_internal.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct advice {
    char *text;
    size_t size, used;
} advice;

static void say(advice *a, const char *format, ...) TN_PRINTF(2, 3);
static void say(advice *a, const char *format, ...) {
    if (a->used + 3 >= a->size) return;
    if (a->used) a->used += (size_t)snprintf(a->text + a->used, a->size - a->used, "; ");
    va_list list;
    va_start(list, format);
    int n = vsnprintf(a->text + a->used, a->size - a->used, format, list);
    va_end(list);
    if (n > 0) a->used = TN__MIN(a->used + (size_t)n, a->size - 1);
}

static bool fits_with(const tn_session *s, const tn_session_params *params) {
    tn_session probe = {.model = s->model, .params = *params};
    bool fits = tn__session_prepare(&probe) == TN_OK && tn__session_choose(&probe) == TN_OK && probe.fits;
    tn__session_drop(&probe);
    return fits;
}

/* The largest context below the present one that fits, in steps of an eighth of the power of two below it; 0: none.
 */
static int32_t largest_context(const tn_session *s, tn_session_params p) {
    int32_t low = 1;
    while (low <= p.n_ctx / 2) low *= 2;
    if (low == p.n_ctx) low /= 2;
    for (; low >= 256; low /= 2) {
        p.n_ctx = low;
        if (fits_with(s, &p)) break;
    }
    if (low < 256) return 0;
    int32_t step = low / 2;
    for (int i = 0; i < 3 && low + step < s->params.n_ctx; i++, step /= 2) {
        p.n_ctx = low + step;
        if (p.n_ctx < s->params.n_ctx && fits_with(s, &p)) low = p.n_ctx;
    }
    return low;
}

/* Weights are most of it: how many bits each may have. */
static void advise_bits(const tn_session *s, advice *a) {
    size_t room = 0, weights = 0;
    for (size_t d = 0; d < s->n_devices; d++) {
        const tn__device_plan *p = &s->planned[d];
        size_t free_bytes = 0, total = 0, others = p->cache + p->missing;
        tn_device_memory(tn_stream_device(tn_sched_stream(s->sched, d)), &free_bytes, &total);
        if (free_bytes > others) room += free_bytes - others;
        weights += p->weights + p->mapped;
    }
    double bits = s->model->n_params ? 8.0 * (double)room / (double)s->model->n_params : 0;
    if (room < weights && bits >= 1.5)
        say(a,
            "use a quantization of at most %.1f bits per weight (the weights take %.1f GiB, %.1f GiB are left for "
            "them)",
            bits, (double)weights / (1 << 30), (double)room / (1 << 30));
    else
        say(a, "use a smaller model or one of a smaller quantization, or devices with more memory");
}

void tn__advise(const tn_session *s, char *text, size_t size) {
    advice a = {.text = text, .size = size};
    tn_session_params p = s->params;
    text[0] = '\0';
    p.n_gpu_layers = -1;
    if (s->params.n_gpu_layers > 0 && s->n_devices > 1 && fits_with(s, &p))
        say(&a, "let the number of layers on the GPU be chosen (--gpu-layers -1)");
    p = s->params;
    p.cache_k = p.cache_v = TN_Q8_0;
    bool smaller = s->params.cache_k != TN_Q8_0 && s->params.cache_k != TN_Q4_0;
    if (smaller && fits_with(s, &p)) say(&a, "use a q8_0 cache (--cache-type-k q8_0)");
    int32_t context = largest_context(s, s->params);
    if (context) say(&a, "use a context of %d (--ctx %d)", context, context);
    if (!a.used && smaller && (context = largest_context(s, p)))
        say(&a, "use a q8_0 cache and a context of %d (--cache-type-k q8_0 --ctx %d)", context, context);
    p = s->params;
    p.n_ubatch = 128;
    if (!a.used && s->params.n_ubatch > 128 && fits_with(s, &p))
        say(&a, "compute fewer tokens at once (--ubatch 128)");
    if (!a.used) advise_bits(s, &a);
}
