/* Budgets: the caller's limits on the memory that a session uses on its devices. */
#include "llm/plan/session_plan.h"

#include "base/checked.h"

#include <string.h>

static tn_status unknown_device(const tn_session_plan *plan, const char *name) {
    tn_fail(TN_E_NOT_FOUND, "budget for %s, but the session uses", name);
    for (size_t d = 0; d < plan->placement.n_devices; d++)
        tn_fail_more(TN_E_NOT_FOUND, "%s %s", d ? "," : "", tn_device_name(plan->placement.list[d]));
    return TN_E_NOT_FOUND;
}

tn_status tn__limits_read(tn_session_plan *plan) {
    tn__session_placement *p = &plan->placement;
    for (size_t d = 0; d < p->n_devices; d++) p->limits[d] = SIZE_MAX;
    for (size_t i = 0; i < plan->params.n_budgets; i++) {
        const tn_budget *budget = &plan->params.budgets[i];
        size_t device = p->n_devices;
        if (!budget->device) return tn_fail(TN_E_INVALID, "a budget needs a device name");
        for (size_t d = 0; d < p->n_devices; d++)
            if (strcmp(tn_device_name(p->list[d]), budget->device) == 0) device = d;
        if (device == p->n_devices) return unknown_device(plan, budget->device);
        if (p->limits[device] != SIZE_MAX)
            return tn_fail(TN_E_INVALID, "two budgets for %s: give only one", budget->device);
        p->limits[device] = budget->bytes;
    }
    return TN_OK;
}

bool tn__limits_host(const tn_session_plan *plan) {
    return plan->placement.limits[plan->placement.n_devices - 1] != SIZE_MAX;
}

static size_t subtract_or_zero(size_t a, size_t b) { return a > b ? a - b : 0; }

/* Mapped weights need no free memory of a device, but count against its budget: the rest is available. */
void tn__limits_apply(const tn_session_plan *plan, tn_device_budget *budgets) {
    const tn__session_placement *p = &plan->placement;
    const size_t host = p->n_devices - 1;
    size_t mapped = 0;
    for (size_t d = 0; d < p->n_devices; d++) {
        if (plan->params.assume_free) {
            budgets[d].free = budgets[d].total;
            budgets[d].domain_free = budgets[d].domain_total;
        }
        if (budgets[d].domain == budgets[host].domain) mapped += plan->devices[d].mapped;
        if (p->limits[d] == SIZE_MAX) continue;
        budgets[d].free = TN__MIN(budgets[d].free, subtract_or_zero(p->limits[d], plan->devices[d].mapped));
        budgets[d].total = TN__MIN(budgets[d].total, p->limits[d]);
    }
    for (size_t d = 0; d < p->n_devices && p->limits[host] != SIZE_MAX; d++) {
        if (budgets[d].domain != budgets[host].domain) continue;
        budgets[d].domain_free = TN__MIN(budgets[d].domain_free, subtract_or_zero(p->limits[host], mapped));
        budgets[d].domain_total = TN__MIN(budgets[d].domain_total, p->limits[host]);
    }
}
