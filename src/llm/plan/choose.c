/* Choosing a placement that fits: placing and planning take turns until nothing improves. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

/* Whether the current plan fits now. Weights that another session loaded take nothing more. Mapped ones need no free
 * memory, but must fit the machine, or every token reads them from disk again. */
tn_status tn__session_plan_check_fit(tn_session_plan *p) {
    p->fits = true;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        size_t free_bytes, total;
        TN_TRY(tn_device_memory(tn__plan_device(p, d), &free_bytes, &total));
        const tn__device_plan *plan = &p->devices[d];
        size_t needed = tn__device_plan_bytes(plan) - (p->model->loaded ? plan->weights : 0);
        if (needed > free_bytes || plan->mapped > total) p->fits = false;
    }
    return TN_OK;
}

static tn_status plan_and_check(tn_session_plan *p, int32_t n_gpu_layers) {
    TN_TRY(tn__placement_choose(p, n_gpu_layers));
    TN_TRY(tn__session_plan_make(p));
    return tn__session_plan_check_fit(p);
}

/* Moves the caller's number of layers off the host, or as many as fit. What a device needs beside its layers is known
 * only from a plan that has layers there, so placing and planning alternate until a plan fits or nothing new is
 * learned. By then the needs may be overestimated, because they come from plans with other layers. So layers are
 * placed again with what the fitting plan really needs, and then more of them are tried, one at a time. */
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
    if (wanted >= 0 || !p->fits || p->placement.n_devices == 1) return TN_OK;
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
 * the whole model and memory to spare: such a device does not wait for the host between two tokens. Several
 * micro-batches in flight are given up before the session is. Repacked weights take memory that mapped ones do not;
 * they are given up last. */
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

/* A device may have enough free bytes, but a largest allocation that is too small. */
static tn_status check_largest_allocations(const tn_session_plan *p) {
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

tn_status tn__session_plan_choose(tn_session_plan *p) {
    TN_TRY(choose_variant(p));
    return p->fits ? check_largest_allocations(p) : TN_OK;
}

tn_status tn__session_plan_too_big(const tn_session_plan *p) {
    tn_fail(TN_E_TOO_BIG, "the session does not fit:");
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        tn_device *device = tn__plan_device(p, d);
        const tn__device_plan *plan = &p->devices[d];
        size_t free_bytes = 0, total = 0;
        tn_device_memory(device, &free_bytes, &total);
        if (!tn__device_plan_bytes(plan) && !plan->mapped) continue;
        tn_fail_more(TN_E_TOO_BIG,
                     " %s needs %zu bytes (weights %zu, cache %zu, compute %zu, scratch %zu%s%s), %zu are available;",
                     tn_device_name(device), tn__device_plan_bytes(plan), plan->weights, plan->cache, plan->compute,
                     plan->scratch, plan->missing < plan->compute + plan->scratch ? " of which a part is there" : "",
                     plan->mapped > total ? ", mapped file larger than memory" : "", free_bytes);
    }
    char text[512];
    tn__advise(p, text, sizeof text);
    return tn_fail_more(TN_E_TOO_BIG, " to make it fit: %s", text);
}
