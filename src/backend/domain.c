/* Memory domains: devices that share one memory, and what each of them may take. */
#include "backend/registry.h"
#include "base/checked.h"

/* The device that the memory belongs to, as far as that can be told without asking for figures. A device that is not
 * registered has no others of its card. */
static tn_device *owner_of_memory(tn_device *device) {
    tn_device *first = device->card[0] ? tn__registry_first_of_card(device->card) : NULL;
    tn_device *owner = first ? first : device;
    if (owner->domain) return owner->domain;
    return owner->caps.unified && !owner->caps.described ? tn__cpu_device() : owner;
}

/* A device with its domain and the figures of both, as they are reported. */
typedef struct memory_figures {
    tn_device *domain;
    size_t free, total, domain_free, domain_total;
    bool reported;
} memory_figures;

static tn_status read_figures(tn_device *device, memory_figures *f) {
    *f = (memory_figures){.domain = owner_of_memory(device)};
    TN_TRY(device->ops->memory(device, &f->free, &f->total));
    f->reported = f->free || f->total;
    f->domain_free = f->free;
    f->domain_total = f->total;
    if (f->domain != device) TN_TRY(f->domain->ops->memory(f->domain, &f->domain_free, &f->domain_total));
    if (!f->domain_free && !f->domain_total && f->domain != tn__cpu_device()) { /* nothing is known of it */
        f->domain = tn__cpu_device();
        TN_TRY(f->domain->ops->memory(f->domain, &f->domain_free, &f->domain_total));
    }
    if (!f->reported) {
        f->free = f->domain_free;
        f->total = f->domain_total;
    }
    return TN_OK;
}

tn_device *tn_device_domain(tn_device *device) {
    memory_figures f;
    if (!device) return NULL;
    return read_figures(device, &f) == TN_OK ? f.domain : owner_of_memory(device);
}

tn_status tn_device_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    memory_figures f;
    if (!device) return tn_fail(TN_E_INVALID, "no device");
    TN_TRY(read_figures(device, &f));
    if (free_bytes) *free_bytes = f.free;
    if (total_bytes) *total_bytes = f.total;
    return TN_OK;
}

/* ---- Budgets ---- */

/* Unified devices draw from the host's memory, also those whose memory stands for it. */
static bool draws_from_host(const tn_device *device, const memory_figures *f) {
    return device->caps.unified || f->domain == tn__cpu_device();
}

static void fill_budgets(tn_device *const *devices, const memory_figures *figures, size_t n,
                         tn_device_budget *budgets) {
    tn_device *const cpu = tn__cpu_device();
    bool imitated = false; /* the memory of a device that is not there stands for the host's */
    for (size_t i = 0; i < n; i++) {
        const memory_figures *f = &figures[i];
        size_t first = 0;
        imitated = imitated || (devices[i]->caps.unified && f->domain != cpu);
        while (first < i && figures[first].domain != f->domain &&
               !(draws_from_host(devices[first], &figures[first]) && draws_from_host(devices[i], f)))
            first++;
        budgets[i] = (tn_device_budget){first, f->free, f->total, SIZE_MAX, SIZE_MAX, f->reported};
    }
    /* The first device of a domain holds its figures. Of several that stand for the host's the smallest counts. */
    for (size_t i = 0; i < n; i++) {
        tn_device_budget *first = &budgets[budgets[i].domain];
        if (imitated && figures[i].domain == cpu) continue;
        first->domain_free = TN__MIN(first->domain_free, figures[i].domain_free);
        first->domain_total = TN__MIN(first->domain_total, figures[i].domain_total);
    }
    for (size_t i = 0; i < n; i++) {
        const tn_device_budget first = budgets[budgets[i].domain];
        budgets[i].domain_free = first.domain_free;
        budgets[i].domain_total = first.domain_total;
        if (!imitated || figures[i].domain != cpu) continue;
        budgets[i].free = first.domain_free;
        budgets[i].total = first.domain_total;
    }
}

tn_status tn_device_budgets(tn_device *const *devices, size_t n, tn_device_budget *budgets) {
    if ((!devices || !budgets) && n) return tn_fail(TN_E_INVALID, "tn_device_budgets: NULL argument");
    for (size_t i = 0; i < n; i++)
        if (!devices[i]) return tn_fail(TN_E_INVALID, "tn_device_budgets: no device at %zu", i);
    memory_figures *figures = tn_calloc(n + 1, sizeof *figures);
    tn_status status = figures ? TN_OK : TN_E_NOMEM;
    for (size_t i = 0; i < n && status == TN_OK; i++) status = read_figures(devices[i], &figures[i]);
    if (status == TN_OK) fill_budgets(devices, figures, n, budgets);
    tn_free(figures);
    return status;
}
