/* Verification of packings: a sweep over time with the set of live items ordered by address. Shares no code with the
 * packer. */
#include "plan/pack_internal.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* A set of small numbers with access to neighbours in practically constant time: a bitset with summary levels, whose
 * bits mark the non-empty words of the level below. */
enum { LEVELS = 6 };
typedef struct number_set {
    uint64_t *level[LEVELS];
    int levels;
    uint64_t *memory;
} number_set;

static bool set_make(number_set *set, size_t count) {
    size_t words[LEVELS], total = 0;
    set->levels = 0;
    do {
        count = count / 64 + 1;
        words[set->levels++] = count;
        total += count;
    } while (count > 1 && set->levels < LEVELS);
    set->memory = tn_calloc(total, sizeof *set->memory);
    uint64_t *next = set->memory;
    for (int l = 0; next && l < set->levels; l++) {
        set->level[l] = next;
        next += words[l];
    }
    return set->memory != NULL;
}

static void set_add(number_set *set, size_t x) {
    for (int l = 0; l < set->levels; l++, x /= 64) set->level[l][x / 64] |= (uint64_t)1 << x % 64;
}

static void set_remove(number_set *set, size_t x) {
    for (int l = 0; l < set->levels; l++, x /= 64) {
        set->level[l][x / 64] &= ~((uint64_t)1 << x % 64);
        if (set->level[l][x / 64]) return;
    }
}

/* The largest member below x, or SIZE_MAX. */
static size_t set_below(const number_set *set, size_t x) {
    for (int l = 0; l < set->levels; l++, x /= 64) {
        uint64_t word = set->level[l][x / 64] & (((uint64_t)1 << x % 64) - 1);
        if (!word) continue;
        x = x / 64 * 64 + 63 - (size_t)__builtin_clzll(word);
        while (l--) x = x * 64 + 63 - (size_t)__builtin_clzll(set->level[l][x]);
        return x;
    }
    return SIZE_MAX;
}

/* The smallest member above x, or SIZE_MAX. */
static size_t set_above(const number_set *set, size_t x) {
    for (int l = 0; l < set->levels; l++, x /= 64) {
        uint64_t word = x % 64 == 63 ? 0 : set->level[l][x / 64] & ~(uint64_t)0 << (x % 64 + 1);
        if (!word) continue;
        x = x / 64 * 64 + (size_t)__builtin_ctzll(word);
        while (l--) x = x * 64 + (size_t)__builtin_ctzll(set->level[l][x]);
        return x;
    }
    return SIZE_MAX;
}

typedef struct record {
    const tn_pack_item *item;
    size_t index, offset, rank;
    uint32_t chunk;
} record;

typedef struct event {
    int64_t time;
    uint32_t start; /* at equal times, ends sort before starts */
    record *of;
} event;

static int by_address(const void *a, const void *b) {
    const record *x = a, *y = b;
    if (x->chunk != y->chunk) return x->chunk < y->chunk ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int by_time(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return x->of->rank < y->of->rank ? -1 : x->of->rank > y->of->rank;
}

/* Whether x, which starts at or below y, overlaps it. */
static bool reaches(const record *x, const record *y) {
    return x->chunk == y->chunk && x->offset + x->item->size > y->offset;
}

/* Checks all items at the offsets of a result, or, without a result, the fixed items. */
static tn_status sweep(const tn_pack_item *items, size_t count, const tn_pack_result *result) {
    record *records = tn_malloc(count * sizeof *records);
    event *events = tn_malloc(2 * count * sizeof *events);
    number_set live = {0};
    tn_status status = TN_OK;
    if (!records || !events || !set_make(&live, count)) {
        status = TN_E_NOMEM;
        goto out;
    }
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].size == 0 || items[i].start >= items[i].end || (!result && !items[i].fixed)) continue;
        records[n++] = (record){&items[i], i, result ? result->offsets[i] : items[i].offset, 0,
                                result ? result->chunks[i] : items[i].chunk};
    }
    qsort(records, n, sizeof *records, by_address);
    for (size_t r = 0; r < n; r++) {
        records[r].rank = r;
        events[2 * r] = (event){records[r].item->start, 1, &records[r]};
        events[2 * r + 1] = (event){records[r].item->end, 0, &records[r]};
    }
    qsort(events, 2 * n, sizeof *events, by_time);
    /* Live items do not overlap so far, so a new one can only overlap its neighbours. */
    for (size_t e = 0; e < 2 * n; e++) {
        const record *r = events[e].of;
        if (!events[e].start) {
            set_remove(&live, r->rank);
            continue;
        }
        size_t below = set_below(&live, r->rank), above = set_above(&live, r->rank);
        const record *other = NULL;
        if (below != SIZE_MAX && reaches(&records[below], r)) other = &records[below];
        if (above != SIZE_MAX && reaches(r, &records[above])) other = &records[above];
        if (other) {
            status = tn_fail(
                result ? TN_E_INTERNAL : TN_E_INVALID,
                "items %zu and %zu are both live at %lld and share bytes of chunk %u: [%zu, %zu) and [%zu, %zu)",
                r->index, other->index, (long long)events[e].time, r->chunk, r->offset, r->offset + r->item->size,
                other->offset, other->offset + other->item->size);
            goto out;
        }
        set_add(&live, r->rank);
    }
out:
    tn_free(records);
    tn_free(events);
    tn_free(live.memory);
    return status;
}

tn_status tn__pack_check_fixed(const tn_pack_item *items, size_t count) { return sweep(items, count, NULL); }

tn_status tn_pack_verify(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                         const tn_pack_result *result) {
    if ((!items && count) || !result || result->count != count || (count && (!result->offsets || !result->chunks)))
        return tn_fail(TN_E_INVALID, "tn_pack_verify: the result does not belong to these %zu items", count);
    size_t total = 0, reserved = 0, n_bins = params ? params->n_bins : 0;
    for (size_t c = 0; c < TN__MAX(result->chunk_count, n_bins); c++) {
        size_t used = c < result->chunk_count ? result->chunk_sizes[c] : 0;
        if (__builtin_add_overflow(reserved, c < n_bins ? TN__MAX(used, params->bins[c]) : used, &reserved))
            return tn_fail(TN_E_INTERNAL, "the chunk sizes overflow");
    }
    if (reserved != result->reserved)
        return tn_fail(TN_E_INTERNAL, "chunks and bins add up to %zu bytes, not %zu", reserved, result->reserved);
    for (size_t c = 0; c < result->chunk_count; c++) {
        if (params && params->max_chunk && result->chunk_sizes[c] > params->max_chunk)
            return tn_fail(TN_E_INTERNAL, "chunk %zu has %zu bytes, more than %zu", c, result->chunk_sizes[c],
                           params->max_chunk);
        if (__builtin_add_overflow(total, result->chunk_sizes[c], &total))
            return tn_fail(TN_E_INTERNAL, "the chunk sizes overflow");
    }
    if (total != result->size)
        return tn_fail(TN_E_INTERNAL, "the chunks add up to %zu bytes, not %zu", total, result->size);
    if (params && (!params->max_chunk) && result->chunk_count > TN__MAX(n_bins, 1))
        return tn_fail(TN_E_INTERNAL, "%zu chunks without a limit on their size", result->chunk_count);
    for (size_t i = 0; i < count; i++) {
        size_t offset = result->offsets[i], end;
        uint32_t chunk = result->chunks[i];
        if (items[i].alignment > 1 && offset & (items[i].alignment - 1))
            return tn_fail(TN_E_INTERNAL, "item %zu is at offset %zu, not a multiple of %zu", i, offset,
                           items[i].alignment);
        if (items[i].fixed && (offset != items[i].offset || chunk != items[i].chunk))
            return tn_fail(TN_E_INTERNAL,
                           "the fixed item %zu was moved from chunk %u offset %zu to chunk %u offset %zu", i,
                           items[i].chunk, items[i].offset, chunk, offset);
        if (items[i].size == 0 || items[i].start >= items[i].end) continue;
        if (chunk >= result->chunk_count || __builtin_add_overflow(offset, items[i].size, &end) ||
            end > result->chunk_sizes[chunk])
            return tn_fail(TN_E_INTERNAL, "item %zu ends past its chunk", i);
    }
    return sweep(items, count, result);
}
