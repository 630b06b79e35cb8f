/* The tier in host memory: one allocation of planned size, divided into units of one token's cells. A blob occupies
 * any free units, not necessarily contiguous, so there is no fragmentation. */
#include "llm/memory/tier.h"

#include "base/checked.h"

#include <string.h>

/* Units per index entry: blobs have TN__BLOCK tokens, or fewer at the ends of prefixes. */
enum { UNITS_PER_BLOB = 8, LEAST_UNITS = 2 * TN__BLOB_UNITS };

static int32_t entries_for(int32_t n_units) { return n_units / UNITS_PER_BLOB + 1; }

static size_t host_tier_bytes(int32_t n_units, size_t unit) {
    return (size_t)n_units * unit + tn__align_up((size_t)n_units * sizeof(int32_t), 64) +
           tn__blob_index_bytes(entries_for(n_units));
}

size_t tn__host_tier_unit(size_t token_bytes, size_t state_bytes) {
    const size_t part = (state_bytes + TN__BLOB_UNITS - 1) / TN__BLOB_UNITS;
    return tn__align_up(TN__MAX(token_bytes, part), 64);
}

tn_status tn__host_tier_size(tn__host_tier *h, size_t budget, size_t unit) {
    memset(h, 0, sizeof *h);
    h->unit = unit;
    /* The largest number that fits. */
    size_t low = 0, high = TN__MIN(budget / unit, (size_t)INT32_MAX / 2);
    while (low < high) {
        const size_t middle = (low + high + 1) / 2;
        if (host_tier_bytes((int32_t)middle, unit) <= budget)
            low = middle;
        else
            high = middle - 1;
    }
    h->n_units = (int32_t)low;
    h->bytes = host_tier_bytes(h->n_units, unit);
    if (h->n_units < LEAST_UNITS)
        return tn_fail(TN_E_INVALID,
                       "%zu bytes of host memory for kept prefixes are too few; at least %zu are needed", budget,
                       host_tier_bytes(LEAST_UNITS, unit));
    return TN_OK;
}

size_t tn__host_tier_bytes_for(int32_t n, size_t unit) { return host_tier_bytes(n, unit); }

tn_status tn__host_tier_allocate(tn__host_tier *h) {
    h->memory = tn_malloc_aligned(h->bytes, 64);
    if (!h->memory) return TN_E_NOMEM;
    memset(h->memory, 0, h->bytes); /* touches all pages now, not on first use */
    h->units = h->memory;
    h->links = (int32_t *)(h->memory + (size_t)h->n_units * h->unit);
    tn__blob_index_bind(&h->index, entries_for(h->n_units),
                        (char *)h->links + tn__align_up((size_t)h->n_units * sizeof *h->links, 64));
    for (int32_t i = 0; i < h->n_units; i++) h->links[i] = i + 1 < h->n_units ? i + 1 : -1;
    h->unused = 0;
    h->n_unused = h->n_units;
    return TN_OK;
}

void tn__host_tier_free(tn__host_tier *h) {
    tn_free(h->memory);
    memset(h, 0, sizeof *h);
}

int32_t tn__host_tier_units(const tn__host_tier *h, size_t bytes) {
    return (int32_t)((bytes + h->unit - 1) / h->unit);
}

bool tn__host_tier_has_room(const tn__host_tier *h, size_t bytes) {
    return h->index.unused >= 0 && h->n_unused >= tn__host_tier_units(h, bytes);
}

int32_t tn__host_tier_add(tn__host_tier *h, const tn__blob_id *id, size_t bytes) {
    const int32_t blob = tn__blob_index_add(&h->index, id, ++h->clock);
    int32_t *at = &h->index.blobs[blob].unit;
    h->index.blobs[blob].bytes = bytes;
    h->index.blobs[blob].pins = 1;
    for (int32_t n = tn__host_tier_units(h, bytes); n > 0; n--) {
        const int32_t unit = h->unused;
        h->unused = h->links[unit];
        h->n_unused--;
        *at = unit;
        at = &h->links[unit];
    }
    *at = -1;
    return blob;
}

void tn__host_tier_remove(tn__host_tier *h, int32_t blob) {
    for (int32_t unit = h->index.blobs[blob].unit, next; unit >= 0; unit = next) {
        next = h->links[unit];
        h->links[unit] = h->unused;
        h->unused = unit;
        h->n_unused++;
    }
    tn__blob_index_remove(&h->index, blob);
}

void tn__host_tier_touch(tn__host_tier *h, int32_t blob) {
    h->index.used[blob] = ++h->clock;
    h->index.blobs[blob].resident = false;
}

void tn__host_tier_demote(tn__host_tier *h, int32_t blob) {
    h->index.used[blob] = 1;
    h->index.blobs[blob].resident = true;
}

tn__blob_content tn__host_tier_content(const tn__host_tier *h, int32_t blob) {
    tn__blob_content c = {.base = h->units, .unit = h->unit};
    int32_t n = 0;
    for (int32_t unit = h->index.blobs[blob].unit; unit >= 0; unit = h->links[unit]) c.units[n++] = unit;
    return c;
}
