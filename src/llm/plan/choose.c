/* Choosing a placement that fits: alternates between placing and planning until nothing improves. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

#include <stdio.h>

/* Bytes that must be free on a device. Weights that another session loaded, and their upload buffers, need no further
 * memory. */
static size_t bytes_to_take(const tn_session_plan *p, size_t device) {
    const size_t all = tn__device_plan_bytes(&p->devices[device]);
    if (!p->model->loaded) return all;
    return all - p->devices[device].weights - (device + 1 == p->placement.n_devices ? tn__plan_upload_bytes(p) : 0);
}

/* What the devices of the domain whose first device is `first` need together. */
typedef struct domain_needs {
    size_t bytes, mapped, n_devices;
} domain_needs;
static domain_needs needs_of_domain(const tn_session_plan *p, size_t first) {
    domain_needs needs = {0};
    for (size_t d = first; d < p->placement.n_devices; d++) {
        if (p->placement.budgets[d].domain != first) continue;
        needs.bytes += bytes_to_take(p, d);
        needs.mapped += p->devices[d].mapped;
        needs.n_devices += bytes_to_take(p, d) || p->devices[d].mapped;
    }
    return needs;
}

/* Pages of mapped weights can be evicted, so they need no free memory. A session's own memory cannot: if both
 * together exceed the total or the free memory, weights are evicted and read from disk again. */
tn_status tn__session_plan_warn(const tn_session_plan *p, char *text, size_t size) {
    tn_device_budget *budgets = tn_calloc(p->placement.n_devices, sizeof *budgets);
    /* Uses the machine's memory, not the caller's budgets: those leave memory for mapped weights. */
    tn_status status = budgets ? tn_device_budgets(p->placement.list, p->placement.n_devices, budgets) : TN_E_NOMEM;
    text[0] = '\0';
    for (size_t d = 0, used = 0; d < p->placement.n_devices && status == TN_OK; d++) {
        const domain_needs needs = needs_of_domain(p, d);
        const size_t memory = TN__MIN(budgets[d].domain_free, budgets[d].domain_total);
        if (!needs.mapped || needs.bytes > memory || needs.mapped <= memory - needs.bytes || used + 1 >= size)
            continue;
        const bool ever = needs.bytes > budgets[d].domain_total - needs.mapped;
        int n =
            snprintf(text + used, size - used,
                     "%sthe session takes %zu bytes of the memory of %s and reads %zu bytes of mapped weights, but "
                     "%zu bytes %s: weights are evicted and read from disk again",
                     used ? "; " : "", needs.bytes, tn_device_name(p->placement.list[d]), needs.mapped,
                     ever ? budgets[d].domain_total : memory, ever ? "are all it has" : "are free now");
        if (n > 0) used = TN__MIN(used + (size_t)n, size - 1);
    }
    tn_free(budgets);
    return status;
}

/* Whether the current plan fits now: every device, and together all devices of a domain. Mapped weights need no free
 * memory, but they must fit the total. */
tn_status tn__session_plan_check_fit(tn_session_plan *p) {
    const tn_device_budget *budgets = p->placement.budgets;
    TN_TRY(tn__placement_budgets(p, p->placement.budgets));
    p->fits = true;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const domain_needs needs = needs_of_domain(p, d);
        if (bytes_to_take(p, d) > budgets[d].free || p->devices[d].mapped > budgets[d].total) p->fits = false;
        if (needs.bytes > budgets[d].domain_free || needs.mapped > budgets[d].domain_total) p->fits = false;
    }
    return TN_OK;
}

tn_status tn__session_plan_leaves_room(const tn_session_plan *p, bool *leaves) {
    enum { SPARE_SHARE = 16 }; /* free memory changes between planning and taking it */
    char warning[256];
    TN_TRY(tn__session_plan_warn(p, warning, sizeof warning));
    *leaves = !warning[0];
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const size_t available = p->placement.budgets[d].domain_free;
        if (needs_of_domain(p, d).bytes > available - available / SPARE_SHARE) *leaves = false;
    }
    return TN_OK;
}

static tn_status plan_and_check(tn_session_plan *p, int32_t n_gpu_layers) {
    TN_TRY(tn__placement_choose(p, n_gpu_layers));
    TN_TRY(tn__session_plan_make(p));
    return tn__session_plan_check_fit(p);
}

static bool mapped_weights_fit(const tn_session_plan *p) {
    for (size_t d = 0; d < p->placement.n_devices; d++)
        if (p->devices[d].mapped > p->placement.budgets[d].total) return false;
    return true;
}

/* The search for a placement counts bytes that are taken. Weights in the file's map are not, but a GPU with unified
 * memory may read only a part of it: finds the largest number of layers whose mapped weights fit. */
static tn_status limit_mapped_layers(tn_session_plan *p) {
    int32_t fitting = 0, count = tn__placement_count(&p->placement);
    while (fitting + 1 < count) {
        int32_t middle = fitting + (count - fitting) / 2;
        TN_TRY(plan_and_check(p, middle));
        *(mapped_weights_fit(p) ? &fitting : &count) = middle;
    }
    return plan_and_check(p, fitting);
}

static bool fits_off_host(const tn_session_plan *p) {
    for (size_t d = 0; d + 1 < p->placement.n_devices; d++)
        if (bytes_to_take(p, d) > p->placement.budgets[d].free ||
            p->devices[d].mapped > p->placement.budgets[d].total)
            return false;
    return true;
}

/* A host budget may be too small for the layers that estimates leave on the host: finds the largest number of
 * layers that fit on the other devices, from exact plans. */
static tn_status fill_devices_exactly(tn_session_plan *p, int32_t all) {
    int32_t low = 0, high = all + 1, step = 1, tried = tn__placement_count(&p->placement);
    bool fits = fits_off_host(p);
    /* The estimate is close: exponential steps from there, then bisection. */
    for (;;) {
        *(fits ? &low : &high) = tried;
        if (high - low < 2) break;
        const bool below = low == 0, above = high > all;
        tried = above ? TN__MIN(low + step, all) : below ? TN__MAX(high - step, 1) : low + (high - low) / 2;
        step *= 2;
        TN_TRY(plan_and_check(p, tried));
        fits = fits_off_host(p);
    }
    return tried == low ? TN_OK : plan_and_check(p, low);
}

/* Offloads the caller's number of layers, or as many as fit. A device's fixed needs are known only from a plan that
 * has layers there, so placing and planning alternate until a plan fits or nothing changes. The fixed needs may then
 * be overestimated, because they come from plans with other layers. Layers are therefore placed again with the
 * needs of the fitting plan, and then more of them are tried, one at a time. */
enum { MAX_LESSONS = 8 };
static tn_status choose_layers(tn_session_plan *p) {
    if (p->model->loaded) {
        TN_TRY(tn__placement_follow(p));
        TN_TRY(tn__session_plan_make(p));
        return tn__session_plan_check_fit(p);
    }
    int32_t wanted = p->params.n_gpu_layers, all = p->model->h.n_layer + 1;
    do TN_TRY(plan_and_check(p, wanted));
    while (tn__placement_learn(p, false) && !p->fits && p->placement.n_devices > 1);
    if (wanted >= 0 || p->placement.n_devices == 1) return TN_OK;
    if (!p->fits && tn__limits_host(p)) return fill_devices_exactly(p, all);
    if (!mapped_weights_fit(p)) return limit_mapped_layers(p);
    if (!p->fits) return TN_OK;
    for (int i = 0; i < MAX_LESSONS && tn__placement_learn(p, true); i++) {
        TN_TRY(plan_and_check(p, wanted));
        if (p->fits) continue;
        tn__placement_unlearn(&p->placement);
        TN_TRY(plan_and_check(p, wanted));
        break;
    }
    int32_t count = tn__placement_count(&p->placement);
    while (count < all) {
        TN_TRY(plan_and_check(p, count + 1));
        if (!p->fits) return plan_and_check(p, count);
        count++;
    }
    return TN_OK;
}

/* Whether the first device has the whole model. */
static bool is_whole_model_on_device(const tn_session_plan *p) {
    for (int32_t i = 0; i < p->model->h.n_layer + 2; i++)
        if (p->placement.device_of_layer[i] != 0) return false;
    return true;
}

/* Variants in order of preference. The embedding stays on the host, which looks up rows as fast, unless a device has
 * the whole model and memory to spare: such a device does not wait for the host between two tokens. Pipelining of
 * micro-batches is dropped before the session is refused. Repacked weights take memory that mapped ones do not;
 * repacking is dropped last. */
static tn_status choose_variant(tn_session_plan *p) {
    size_t needed = 0;
    p->placement.ends_together = tn__placement_has_room(p);
    if (p->placement.ends_together) {
        TN_TRY(choose_layers(p));
        if (is_whole_model_on_device(p)) needed = tn__device_plan_bytes(&p->devices[0]);
        if (p->fits && needed) return TN_OK;
        p->placement.ends_together = false;
    }
    TN_TRY(choose_layers(p));
    /* An embedding on the host can need more on the device: its rows are copied there. */
    if (!p->fits && needed && needed < tn__device_plan_bytes(&p->devices[0])) {
        p->placement.ends_together = true;
        TN_TRY(choose_layers(p));
    }
    if (!p->fits && p->pipelined) {
        p->sequential = true;
        TN_TRY(choose_layers(p));
    }
    if (p->fits || !p->placement.repack || p->model->loaded) return TN_OK;
    p->placement.repack = false;
    return choose_layers(p);
}

tn_status tn__session_plan_check_largest(const tn_session_plan *p) {
    const tn__load load = tn__session_plan_load(p);
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        tn_buffer_type *type = p->placement.types[d];
        size_t needed = p->devices[d].scratch, most = tn_buffer_type_max_size(type);
        if (needed > most)
            return tn_fail(TN_E_TOO_BIG,
                           "kernels need %zu bytes at once, the largest allocation in %s has %zu; to make it fit: a "
                           "smaller micro-batch than %d (--ubatch), or no layers there (--gpu-layers 0)",
                           needed, tn_buffer_type_name(type), most, p->params.n_ubatch);
    }
    TN_TRY(tn__kv_check(&p->kv, p->placement.types));
    return p->model->loaded ? TN_OK : tn__load_check(p->model, &load);
}

tn_status tn__session_plan_search(tn_session_plan *p) {
    p->searching = true;
    tn_status status = choose_variant(p);
    p->searching = false;
    return status;
}

/* From now on the search adds the difference between the needs of the whole plan and those that the search found. */
static void learn_margins(tn_session_plan *p, const size_t *found) {
    for (size_t d = 0; d < p->placement.n_devices; d++)
        if (p->devices[d].missing > found[d])
            p->devices[d].margin =
                TN__MAX(p->devices[d].margin, p->devices[d].missing - (found[d] - p->devices[d].margin));
}

/* The search plans only the largest graphs. If the whole plan of its result does not fit, it searches again with
 * larger fixed needs. */
tn_status tn__session_plan_choose(tn_session_plan *p) {
    enum { MAX_SEARCHES = 4 };
    const bool repack = p->placement.repack;
    size_t *found = tn_calloc(p->placement.n_devices, sizeof *found);
    tn_status status = found ? TN_OK : TN_E_NOMEM;
    for (int i = 0; i < MAX_SEARCHES && status == TN_OK; i++) {
        p->sequential = false;
        p->placement.repack = repack;
        status = tn__session_plan_search(p);
        const bool fits = p->fits;
        for (size_t d = 0; d < p->placement.n_devices; d++) found[d] = p->devices[d].missing;
        if (status == TN_OK) status = tn__session_plan_make(p);
        if (status == TN_OK) status = tn__session_plan_check_fit(p);
        if (p->fits || !fits) break;
        learn_margins(p, found);
    }
    tn_free(found);
    TN_TRY(status);
    return p->fits ? tn__session_plan_check_largest(p) : TN_OK;
}

tn_status tn__session_plan_too_big(const tn_session_plan *p) {
    const tn_device_budget *budgets = p->placement.budgets;
    char advice[512];
    tn__advise(p, advice, sizeof advice); /* first, because its attempts overwrite the error message */
    tn_fail(TN_E_TOO_BIG, "the session does not fit:");
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const tn__device_plan *plan = &p->devices[d];
        if (!tn__device_plan_bytes(plan) && !plan->mapped) continue;
        tn_fail_more(
            TN_E_TOO_BIG,
            " %s needs %zu bytes (weights %zu, adapters %zu, cache %zu, compute %zu, scratch %zu, staging %zu, "
            "kept prefixes in host memory %zu%s%s)",
            tn_device_name(p->placement.list[d]), tn__device_plan_bytes(plan), plan->weights, plan->adapters,
            plan->cache, plan->compute, plan->scratch, plan->staging, plan->tier,
            plan->missing < plan->compute + plan->scratch ? " of which a part is there" : "",
            plan->mapped > budgets[d].total ? ", mapped file larger than memory" : "");
        if (needs_of_domain(p, budgets[d].domain).n_devices < 2 || budgets[d].free < budgets[d].domain_free)
            tn_fail_more(TN_E_TOO_BIG, ", %zu are available", budgets[d].free);
        tn_fail_more(TN_E_TOO_BIG, "%s;",
                     budgets[d].reported ? "" : ", it does not report its memory and the host's is assumed");
    }
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const domain_needs needs = needs_of_domain(p, d);
        if (needs.n_devices < 2) continue;
        const char *separator = " ";
        for (size_t i = d; i < p->placement.n_devices; i++) {
            if (budgets[i].domain != d) continue;
            tn_fail_more(TN_E_TOO_BIG, "%s%s", separator, tn_device_name(p->placement.list[i]));
            separator = " and ";
        }
        tn_fail_more(TN_E_TOO_BIG, " share one memory and need %zu bytes, %zu are available%s;", needs.bytes,
                     budgets[d].domain_free,
                     needs.mapped > budgets[d].domain_total ? ", mapped files larger than memory" : "");
    }
    return tn_fail_more(TN_E_TOO_BIG, " to make it fit: %s", advice);
}
