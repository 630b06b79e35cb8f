/* Future locations of tensors without memory: a table by tensor, which the scheduler queries. */
#include "llm/plan/locations.h"

#include <stdlib.h>
#include <string.h>

tn_status tn__locations_add(tn__locations *l, const tn_tensor *tensor, tn_buffer_type *type, tn_buffer_usage usage) {
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 256;
        tn__declared *grown = tn_realloc(l->list, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        l->list = grown;
        l->capacity = capacity;
    }
    size_t at = l->n++;
    for (; l->sorted && at > 0 && (uintptr_t)l->list[at - 1].tensor > (uintptr_t)tensor; at--)
        l->list[at] = l->list[at - 1];
    l->list[at] = (tn__declared){tensor, {type, usage}};
    return TN_OK;
}

void tn__locations_remove(tn__locations *l, const tn_tensor *tensor) {
    for (size_t i = l->n; i-- > 0;) {
        if (l->list[i].tensor != tensor) continue;
        memmove(&l->list[i], &l->list[i + 1], (--l->n - i) * sizeof *l->list);
        return;
    }
}

void tn__locations_clear(tn__locations *l) {
    l->n = 0;
    l->sorted = false;
}

void tn__locations_free(tn__locations *l) {
    tn_free(l->list);
    *l = (tn__locations){0};
}

static int compare_declared(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const tn__declared *)a)->tensor, y = (uintptr_t)((const tn__declared *)b)->tensor;
    return (x > y) - (x < y);
}

bool tn__location_of(void *user, const tn_tensor *tensor, tn_location *location) {
    tn__locations *l = user;
    if (!l->n) return false;
    if (!l->sorted) qsort(l->list, l->n, sizeof *l->list, compare_declared);
    l->sorted = true;
    const tn__declared key = {.tensor = tensor};
    const tn__declared *declared = bsearch(&key, l->list, l->n, sizeof key, compare_declared);
    if (declared) *location = declared->location;
    return declared != NULL;
}
