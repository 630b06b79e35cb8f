/* Session plans as text: the table of bytes, and the differences between two plans. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { PART_COUNT = 9, ADAPTERS_PART = 8 };
static const char *const part_names[PART_COUNT] = {"weights", "cache", "compute", "scratch", "staging",
                                                   "tier",    "own",   "mapped",  "adapters"};
static void list_parts(const tn__device_plan *d, size_t parts[PART_COUNT]) {
    const size_t list[PART_COUNT] = {d->weights, d->cache, d->compute, d->scratch, d->staging,
                                     d->tier,    d->own,   d->mapped,  d->adapters};
    memcpy(parts, list, sizeof list);
}

tn_status tn_session_plan_print(const tn_session_plan *p, FILE *out) {
    if (!p || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_print: NULL argument");
    fprintf(out, "%-16s %6s", "MiB", "layers");
    /* Most sessions have no adapters. */
    const int columns = p->adapters.n || p->adapters.n_controls ? PART_COUNT : ADAPTERS_PART;
    for (int i = 0; i < columns; i++) fprintf(out, " %10s", part_names[i]);
    fprintf(out, " %10s\n", "in order");
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const tn__device_plan *plan = &p->devices[d];
        size_t parts[PART_COUNT];
        list_parts(plan, parts);
        fprintf(out, "%-16s %6d", tn_device_name(plan->device), plan->n_layers);
        for (int i = 0; i < columns; i++) fprintf(out, " %10.2f", (double)parts[i] / (1 << 20));
        fprintf(out, " %10.2f\n", (double)plan->in_order / (1 << 20));
    }
    fprintf(out, "%s\n", p->fits ? "fits" : "does not fit");
    tn_session_speed speed;
    const tn_session_speed_params params = {.prompt = p->params.n_ubatch};
    if (!p->ended && tn_session_plan_predict(p, &params, &speed) == TN_OK)
        fprintf(out, "predicted: prefill %.1f tokens/s, decode %.1f tokens/s\n", speed.prefill, speed.decode);
    return ferror(out) ? tn_fail(TN_E_IO, "cannot write the plan") : TN_OK;
}

/* ---- Comparing ---- */

static void compare_devices(const tn_session_plan *a, const tn_session_plan *b, tn__text *text) {
    for (size_t d = 0; d < a->placement.n_devices && d < b->placement.n_devices; d++) {
        size_t left[PART_COUNT], right[PART_COUNT];
        const char *name = tn_device_name(tn__plan_device(a, d)), *other = tn_device_name(tn__plan_device(b, d));
        list_parts(&a->devices[d], left);
        list_parts(&b->devices[d], right);
        if (strcmp(name, other) != 0) tn__text_printf(text, "device %zu: %s, %s\n", d, name, other);
        if (a->devices[d].n_layers != b->devices[d].n_layers)
            tn__text_printf(text, "%s layers: %d, %d\n", name, a->devices[d].n_layers, b->devices[d].n_layers);
        for (int i = 0; i < PART_COUNT; i++)
            if (left[i] != right[i])
                tn__text_printf(text, "%s %s: %zu, %zu (%+lld)\n", name, part_names[i], left[i], right[i],
                                (long long)right[i] - (long long)left[i]);
    }
}

tn_status tn_session_plan_compare(const tn_session_plan *a, const tn_session_plan *b, char **out) {
    if (!a || !b || !out) return tn_fail(TN_E_INVALID, "tn_session_plan_compare: NULL argument");
    tn__text text = {0};
    *out = NULL;
    if (a->placement.n_devices != b->placement.n_devices)
        tn__text_printf(&text, "devices: %zu, %zu\n", a->placement.n_devices, b->placement.n_devices);
    compare_devices(a, b, &text);
    if (a->model == b->model)
        for (int32_t i = 0; i < a->model->h.n_layer + 2; i++)
            if (a->placement.device_of_layer[i] != b->placement.device_of_layer[i])
                tn__text_printf(&text, "layer %d: device %d, %d\n", i - 1, a->placement.device_of_layer[i],
                                b->placement.device_of_layer[i]);
    if (a->fits != b->fits) tn__text_printf(&text, "fits: %s, %s\n", a->fits ? "yes" : "no", b->fits ? "yes" : "no");
    return tn__text_take(&text, out);
}
