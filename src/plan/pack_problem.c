/* The packing problem: checked input, lifetimes as moments, independent ranges, lower bounds. */
#include "plan/pack_internal.h"

#include "base/checked.h"

bool tn__pack_stopped(tn__pack_clock *clock) {
    if (clock->cancelled || clock->late || clock->steps >= clock->limit) return true;
    if (clock->steps < clock->next_poll) return false;
    /* 2^17 steps take less than a millisecond: a prompt reaction at a negligible cost of polling. */
    clock->next_poll = clock->steps + (1u << 17);
    if (clock->cancel && clock->cancel(clock->user)) clock->cancelled = true;
    if (clock->deadline && tn_time_ns() >= clock->deadline) clock->late = true;
    return clock->cancelled || clock->late;
}

/* ---- Sorting ---- */

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

void tn__pack_sort(uint32_t *order, uint32_t count, const uint64_t *key, uint64_t *scratch) {
    if (count <= 48) {
        for (uint32_t i = 1; i < count; i++) {
            uint32_t x = order[i], j = i;
            for (; j && key[order[j - 1]] > key[x]; j--) order[j] = order[j - 1];
            order[j] = x;
        }
        return;
    }
    /* Radix sort, least significant digit first; skips digits that are equal in all keys. */
    struct entry {
        uint64_t key;
        uint32_t item;
    } *from = (struct entry *)scratch, *to = from + count;
    uint64_t all = ~(uint64_t)0, any = 0;
    for (uint32_t i = 0; i < count; i++) {
        from[i] = (struct entry){key[order[i]], order[i]};
        all &= from[i].key;
        any |= from[i].key;
    }
    for (unsigned shift = 0; shift < 64; shift += DIGIT_BITS) {
        if (!((all ^ any) >> shift & (DIGITS - 1))) continue;
        uint32_t digit_count[DIGITS] = {0};
        for (uint32_t i = 0; i < count; i++) digit_count[from[i].key >> shift & (DIGITS - 1)]++;
        uint32_t sum = 0;
        for (unsigned d = 0; d < DIGITS; d++) {
            uint32_t here = digit_count[d];
            digit_count[d] = sum;
            sum += here;
        }
        for (uint32_t i = 0; i < count; i++) to[digit_count[from[i].key >> shift & (DIGITS - 1)]++] = from[i];
        struct entry *swap = from;
        from = to;
        to = swap;
    }
    for (uint32_t i = 0; i < count; i++) order[i] = from[i].item;
}

/* ---- Input ---- */

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Checks every item and counts the non-empty ones. Limits the sum of all sizes, so that no later address arithmetic
 * can overflow. */
static tn_status check_items(const tn_pack_item *items, size_t count, const tn_pack_params *params, size_t *active,
                             uint64_t *total) {
    size_t max_chunk = params->max_chunk;
    const uint64_t limit = (uint64_t)1 << 60;
    *active = 0;
    *total = 0;
    if (count > (uint32_t)1 << 30) return tn_fail(TN_E_OVERFLOW, "tn_pack: %zu items; the maximum is 2^30", count);
    for (size_t i = 0; i < count; i++) {
        const tn_pack_item *item = &items[i];
        if (item->end < item->start)
            return tn_fail(TN_E_INVALID, "item %zu ends at %lld, before its start at %lld", i, (long long)item->end,
                           (long long)item->start);
        if (item->alignment && !tn__is_pow2(item->alignment))
            return tn_fail(TN_E_INVALID, "item %zu has alignment %zu, not a power of two", i, item->alignment);
        if (item->alignment > 1 && item->fixed && item->offset % item->alignment)
            return tn_fail(TN_E_INVALID, "item %zu is fixed at offset %zu, not a multiple of its alignment %zu", i,
                           item->offset, item->alignment);
        if (max_chunk && (item->size > max_chunk || (item->fixed && item->offset > max_chunk - item->size)))
            return tn_fail(TN_E_INVALID, "item %zu of %zu bytes does not fit into a chunk of %zu", i, item->size,
                           max_chunk);
        if (!max_chunk && item->fixed && item->chunk >= TN__MAX(params->n_bins, 1))
            return tn_fail(TN_E_INVALID, "item %zu is fixed in chunk %u, but without max_chunk there %s %zu", i,
                           item->chunk, params->n_bins > 1 ? "are" : "is only", TN__MAX(params->n_bins, 1));
        uint64_t room = item->fixed ? item->offset : 0;
        if (item->size >= limit || item->alignment >= limit || room >= limit || *total >= limit)
            return tn_fail(TN_E_OVERFLOW, "the sizes up to item %zu add up to more than 2^60", i);
        *total += item->size + item->alignment + room;
        *active += item->size && item->end > item->start;
    }
    if (*total >= limit) return tn_fail(TN_E_OVERFLOW, "the sizes of all items add up to more than 2^60");
    return TN_OK;
}

/* Sorts by start and end, and numbers the moments. */
static void number_moments(tn__pack_problem *p, const tn_pack_item *items, uint32_t *by_end, uint64_t *key,
                           uint64_t *scratch) {
    const uint64_t sign = (uint64_t)1 << 63; /* maps signed times to unsigned keys of the same order */
    for (uint32_t i = 0; i < p->n; i++) key[p->id[i]] = (uint64_t)items[p->id[i]].start ^ sign;
    tn__pack_sort(p->id, p->n, key, scratch);
    for (uint32_t i = 0; i < p->n; i++) {
        by_end[i] = i;
        key[i] = (uint64_t)items[p->id[i]].end ^ sign;
    }
    tn__pack_sort(by_end, p->n, key, scratch);
    uint32_t moment = 0;
    bool ended = false;
    for (uint32_t i = 0, j = 0; j < p->n;) {
        if (i < p->n && items[p->id[i]].start < items[p->id[by_end[j]]].end) {
            if (ended) moment++;
            ended = false;
            p->first[i++] = moment;
        } else {
            p->last[by_end[j++]] = moment + 1;
            ended = true;
        }
    }
    p->moments = p->n ? moment + 1 : 0;
}

static tn_status find_ranges(tn__pack_problem *p) {
    uint32_t count = 0, end = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (i == 0 || p->first[i] >= end) count++;
        end = TN__MAX(end, p->last[i]);
    }
    p->ranges = tn_calloc(count, sizeof *p->ranges);
    if (!p->ranges) return TN_E_NOMEM;
    end = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (i == 0 || p->first[i] >= end)
            p->ranges[p->n_ranges++] = (tn__pack_range){.begin = i, .first = p->first[i], .best = TN__NOWHERE};
        end = TN__MAX(end, p->last[i]);
        p->ranges[p->n_ranges - 1].end = i + 1;
        p->ranges[p->n_ranges - 1].last = end;
    }
    return TN_OK;
}

/* The largest sum of live sizes. In one chunk with a common alignment, every item but the topmost also occupies its
 * padding. Several chunks have several topmost items, so there only the plain sum is a bound. */
static void find_bounds(tn__pack_problem *p, uint64_t *plain, uint64_t *padded) {
    memset(plain, 0, (p->moments + 1) * sizeof *plain);
    memset(padded, 0, (p->moments + 1) * sizeof *padded);
    for (uint32_t i = 0; i < p->n; i++) {
        plain[p->first[i]] += p->size[i];
        plain[p->last[i]] -= p->size[i];
        padded[p->first[i]] += tn__pack_padded(p, p->size[i]);
        padded[p->last[i]] -= tn__pack_padded(p, p->size[i]);
    }
    uint64_t live = 0, live_padded = 0;
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        tn__pack_range *range = &p->ranges[r];
        for (uint32_t m = range->first; m < range->last; m++) {
            live += plain[m];
            live_padded += padded[m];
            uint64_t bound = p->chunk || live_padded < live + p->max_pad ? live : live_padded - p->max_pad;
            range->lower_bound = TN__MAX(range->lower_bound, bound);
            p->live_peak = TN__MAX(p->live_peak, live);
        }
        for (uint32_t i = range->begin; p->any_fixed && !p->chunk && i < range->end; i++)
            if (p->fixed[i] != TN__NOWHERE)
                range->lower_bound = TN__MAX(range->lower_bound, p->fixed[i] + p->size[i]);
        p->lower_bound = TN__MAX(p->lower_bound, range->lower_bound);
    }
}

static void find_granules(tn__pack_problem *p) {
    uint64_t g = p->stride, largest = 1, smallest = (uint64_t)1 << 62;
    for (uint32_t i = 0; i < p->n; i++) {
        g = gcd(p->size[i], g);
        largest = TN__MAX(largest, p->align[i] + 1);
        if (p->fixed[i] == TN__NOWHERE) {
            smallest = TN__MIN(smallest, p->align[i] + 1);
        } else {
            g = gcd(p->fixed[i], g);
            if (p->fixed[i]) smallest = TN__MIN(smallest, p->fixed[i] & -p->fixed[i]);
        }
    }
    p->any_align = largest > 1;
    if (g % largest) g = gcd(g, largest);
    p->granule = g ? g : 1;
    p->pad_mask = p->n ? smallest - 1 : 0;
    for (uint32_t i = 0; i < p->n; i++) p->max_pad = TN__MAX(p->max_pad, tn__pack_padded(p, p->size[i]) - p->size[i]);
}

/* A size of chunks that each of them would hold all items in, whatever the gaps, and each bin: a larger limit has no
 * effect, but its multiples might overflow. */
static uint64_t chunk_for_all(const tn__pack_problem *p, const tn__pack_layout *layout, uint64_t total,
                              uint64_t widest) {
    uint64_t most = total, gaps;
    for (uint32_t c = 0; c < layout->count; c++) most = TN__MAX(most, layout->bin[c]);
    for (uint32_t i = 0; i < p->n; i++) {
        const tn_pack_item *item = &p->items[p->id[i]];
        if (item->fixed) most = TN__MAX(most, item->offset + item->size);
    }
    if (__builtin_mul_overflow(widest, (uint64_t)p->n + 1, &gaps) || __builtin_add_overflow(most, gaps, &most) ||
        __builtin_add_overflow(most, total, &most))
        return UINT64_MAX;
    return most;
}

tn_status tn__pack_problem_make(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                                const tn__pack_layout *layout, tn__pack_problem *p) {
    memset(p, 0, sizeof *p);
    p->items = items;
    p->layout = layout;
    memset(p->reached, 0xff, sizeof p->reached);
    size_t active;
    uint64_t total;
    TN_TRY(check_items(items, count, params, &active, &total));
    uint32_t n = (uint32_t)active;
    p->id = tn_malloc(n * sizeof *p->id);
    p->first = tn_malloc(n * sizeof *p->first);
    p->last = tn_malloc(n * sizeof *p->last);
    p->size = tn_malloc(n * sizeof *p->size);
    p->align = tn_malloc(n * sizeof *p->align);
    p->fixed = tn_malloc(n * sizeof *p->fixed);
    p->best = tn_malloc(n * sizeof *p->best);
    uint64_t *scratch = tn_malloc((4 * (size_t)n + 16) * sizeof *scratch);
    uint64_t *key = tn_malloc(count * sizeof *key);
    uint32_t *by_end = tn_malloc(n * sizeof *by_end);
    tn_status status = TN_E_NOMEM;
    if (!p->id || !p->first || !p->last || !p->size || !p->align || !p->fixed || !p->best || !scratch || !key ||
        !by_end)
        goto out;
    for (size_t i = 0; i < count; i++)
        if (items[i].size && items[i].end > items[i].start) p->id[p->n++] = (uint32_t)i;
    number_moments(p, items, by_end, key, scratch);

    uint64_t widest = 1, max_chunk = params->max_chunk;
    uint32_t chunks = 0;
    for (uint32_t i = 0; i < n; i++) {
        const tn_pack_item *item = &items[p->id[i]];
        p->size[i] = item->size;
        p->align[i] = item->alignment ? item->alignment - 1 : 0;
        p->best[i] = TN__NOWHERE;
        widest = TN__MAX(widest, p->align[i] + 1);
        if (item->fixed) chunks = TN__MAX(chunks, item->chunk);
    }
    /* A chunk limit above the sum of all sizes has no effect. */
    bool several = layout && !layout->single;
    if (several && !max_chunk) max_chunk = TN__MAX(total, 1);
    if (several) max_chunk = TN__MIN(max_chunk, chunk_for_all(p, layout, total, widest));
    if (max_chunk && !(layout && layout->single) && (several || total > max_chunk || chunks)) {
        p->chunk = max_chunk;
        p->stride = tn__align_up(max_chunk, widest);
        uint64_t highest, positions = several && !params->max_chunk ? layout->count : (uint64_t)n + chunks;
        if (several && params->max_chunk) positions += layout->count;
        if (__builtin_mul_overflow(p->stride, positions + 2, &highest) || highest >> 62) {
            status = tn_fail(TN_E_OVERFLOW, "%u items in chunks of %llu bytes overflow the address arithmetic", n,
                             (unsigned long long)max_chunk);
            goto out;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const tn_pack_item *item = &items[p->id[i]];
        uint32_t position = several && item->chunk < layout->count ? layout->position[item->chunk] : item->chunk;
        p->fixed[i] = item->fixed ? position * p->stride + item->offset : TN__NOWHERE;
        p->any_fixed = p->any_fixed || item->fixed;
    }
    /* Overlapping fixed items are an error of the caller. */
    if (p->any_fixed) TN_TRY_GOTO(tn__pack_check_fixed(items, count), status, out);
    find_granules(p);
    TN_TRY_GOTO(find_ranges(p), status, out);
    find_bounds(p, scratch, scratch + n + 1);
    status = TN_OK;
out:
    tn_free(scratch);
    tn_free(key);
    tn_free(by_end);
    if (status != TN_OK) tn__pack_problem_free(p);
    return status;
}

tn_status tn__pack_find_peaks(tn__pack_problem *p) {
    enum { BLOCK = 64 };
    if (p->peak) return TN_OK;
    uint64_t *crowd = tn_calloc((size_t)p->moments + 1, sizeof *crowd), sum = 0;
    uint64_t *block = tn_calloc(p->moments / BLOCK + 1, sizeof *block); /* largest live sum of BLOCK moments */
    uint32_t *ended = tn_calloc((size_t)p->moments + 1, sizeof *ended);
    uint32_t *started = tn_calloc((size_t)p->moments + 1, sizeof *started); /* before the end of a moment */
    p->peak = tn_calloc(p->n, sizeof *p->peak);
    p->rivals = tn_calloc(p->n, sizeof *p->rivals);
    bool enough = crowd && block && ended && started && p->peak && p->rivals;
    if (enough) {
        for (uint32_t i = 0; i < p->n; i++) {
            crowd[p->first[i]] += p->size[i];
            crowd[p->last[i]] -= p->size[i];
            started[p->first[i]]++;
            ended[p->last[i]]++;
        }
        for (uint32_t m = 0; m < p->moments; m++) {
            if (m) started[m] += started[m - 1];
            if (m) ended[m] += ended[m - 1];
            crowd[m] = sum += crowd[m];
            block[m / BLOCK] = TN__MAX(block[m / BLOCK], sum);
        }
        for (uint32_t i = 0; i < p->n; i++) {
            uint64_t peak = 0;
            for (uint32_t m = p->first[i]; m < p->last[i];) {
                bool whole = m % BLOCK == 0 && m + BLOCK <= p->last[i];
                peak = TN__MAX(peak, whole ? block[m / BLOCK] : crowd[m]);
                m += whole ? BLOCK : 1;
            }
            p->peak[i] = peak;
            p->rivals[i] = started[p->last[i] - 1] - ended[p->first[i]];
            p->clock.steps +=
                1 + TN__MIN(p->last[i] - p->first[i], 2 * BLOCK) / 4 + (p->last[i] - p->first[i]) / (4 * BLOCK);
        }
    }
    tn_free(crowd);
    tn_free(block);
    tn_free(ended);
    tn_free(started);
    return enough ? TN_OK : TN_E_NOMEM;
}

void tn__pack_problem_free(tn__pack_problem *p) {
    tn_free(p->peak);
    tn_free(p->rivals);
    tn_free(p->id);
    tn_free(p->first);
    tn_free(p->last);
    tn_free(p->size);
    tn_free(p->align);
    tn_free(p->fixed);
    tn_free(p->best);
    tn_free(p->ranges);
    memset(p, 0, sizeof *p);
}

void tn__pack_keep(tn__pack_problem *p, const uint64_t *at) {
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        tn__pack_range *range = &p->ranges[r];
        uint64_t height = 0;
        for (uint32_t i = range->begin; i < range->end && height < range->best; i++)
            height = at[i] == TN__NOWHERE ? TN__NOWHERE : TN__MAX(height, at[i] + p->size[i]);
        if (height >= range->best) continue;
        memcpy(p->best + range->begin, at + range->begin, (range->end - range->begin) * sizeof *at);
        range->best = height;
    }
}

uint64_t tn__pack_height(const tn__pack_problem *p) {
    uint64_t height = 0;
    for (uint32_t r = 0; r < p->n_ranges; r++) height = TN__MAX(height, p->ranges[r].best);
    return height;
}
