/* Memory domains: devices that draw from one memory, and what each of them may take. */
#include "backend/registry.h"
#include "base/checked.h"

tn_device *tn_device_domain(tn_device *device) {
    if (!device) return NULL;
    tn_device *first = device->card[0] ? tn__registry_first_of_card(device->card) : NULL, *root;
    root = first ? first : device; /* a device that is not registered has no others of its card */
    if (root->domain) return root->domain;
    if (root->caps.unified) return root->caps.described ? root : tn__cpu_device();
    size_t available = 0, total = 0;
    bool silent = root->ops->memory(root, &available, &total) == TN_OK && !available && !total;
    return silent ? tn__cpu_device() : root;
}

/* The figures that a device reports, or those of its domain if it reports none. */
static tn_status read_memory(tn_device *device, size_t *available, size_t *total, bool *reported) {
    *available = *total = 0;
    TN_TRY(device->ops->memory(device, available, total));
    *reported = *available || *total;
    tn_device *domain = *reported ? device : tn_device_domain(device);
    return domain == device ? TN_OK : domain->ops->memory(domain, available, total);
}

tn_status tn_device_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    size_t available, total;
    bool reported;
    if (!device) return tn_fail(TN_E_INVALID, "no device");
    TN_TRY(read_memory(device, &available, &total, &reported));
    if (free_bytes) *free_bytes = available;
    if (total_bytes) *total_bytes = total;
    return TN_OK;
}

/* Unified devices draw from the host's memory, also a simulated one that is a domain of its own. */
static bool draws_from_host(const tn_device *device, const tn_device *domain) {
    return device->caps.unified || domain == tn__cpu_device();
}

tn_status tn_device_budgets(tn_device *const *devices, size_t n, tn_device_budget *budgets) {
    if ((!devices || !budgets) && n) return tn_fail(TN_E_INVALID, "tn_device_budgets: NULL argument");
    tn_device *const cpu = tn__cpu_device();
    bool imitated = false; /* the memory of a device that is not there stands for the host's */
    for (size_t i = 0; i < n; i++) {
        tn_device_budget *b = &budgets[i];
        tn_device *domain = tn_device_domain(devices[i]);
        TN_TRY(devices[i] ? read_memory(devices[i], &b->free, &b->total, &b->reported)
                          : tn_fail(TN_E_INVALID, "tn_device_budgets: no device at %zu", i));
        imitated = imitated || (devices[i]->caps.unified && domain != cpu);
        for (b->domain = 0; b->domain < i; b->domain++) {
            tn_device *other = devices[b->domain], *others = tn_device_domain(other);
            if (others == domain || (draws_from_host(other, others) && draws_from_host(devices[i], domain))) break;
        }
        b->domain_free = b->domain_total = SIZE_MAX;
    }
    /* The figures of a domain are kept by its first device. Of several simulated memories the smallest counts. */
    for (size_t i = 0; i < n; i++) {
        tn_device_budget *first = &budgets[budgets[i].domain];
        tn_device *domain = tn_device_domain(devices[i]);
        size_t available, total;
        if (domain == cpu && imitated) continue;
        TN_TRY(tn_device_memory(domain, &available, &total));
        first->domain_free = TN__MIN(first->domain_free, available);
        first->domain_total = TN__MIN(first->domain_total, total);
    }
    for (size_t i = 0; i < n; i++) {
        const tn_device_budget first = budgets[budgets[i].domain];
        budgets[i].domain_free = first.domain_free;
        budgets[i].domain_total = first.domain_total;
        if (!imitated || tn_device_domain(devices[i]) != cpu) continue;
        budgets[i].free = first.domain_free;
        budgets[i].total = first.domain_total;
    }
    return TN_OK;
}
