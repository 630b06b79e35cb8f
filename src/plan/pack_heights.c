/* Chooses heights for the exact search, and derives lower bounds from its refutations. */
#include "plan/pack_internal.h"

#include "base/checked.h"

#include <stdlib.h>

enum {
    MAX_KEPT = 64, /* maximum number of ranges whose searches are kept between heights */
    FIRST_PATIENCE_OF_GOAL = 1 << 22,
    WINDOWS_FROM = 16 * 1024 * 1024, /* steps after which an undecided search continues with windows */
};

typedef struct height_search {
    tn__pack_problem *problem;
    tn__pack_search **searches; /* per range, created on demand */
    tn__pack_windows **windows; /* likewise */
    uint32_t *items;
    uint64_t *at;
    bool hopeless; /* a range has too many items to search */
} height_search;

/* Searches for one height in all ranges that are above it; `windows`: also through windows of time. */
static tn_status try_height(height_search *h, uint64_t height, uint64_t steps, bool windows,
                            tn__search_answer *answer) {
    tn__pack_problem *p = h->problem;
    *answer = TN__SEARCH_FOUND;
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        tn__pack_range *range = &p->ranges[r];
        if (range->best <= height) continue;
        if (!h->searches[r]) {
            uint32_t count = 0;
            for (uint32_t i = range->begin; i < range->end; i++) h->items[count++] = i;
            TN_TRY(tn__pack_search_new(p, h->items, count, &h->searches[r]));
        }
        if (!h->searches[r]) {
            h->hopeless = true;
            *answer = TN__SEARCH_UNDECIDED;
            return TN_OK;
        }
        for (uint32_t i = 0; i < p->n; i++) h->at[i] = p->fixed[i];
        *answer = tn__pack_search_run(h->searches[r], height, steps, h->at);
        if (*answer == TN__SEARCH_UNDECIDED && windows && steps >= WINDOWS_FROM && !tn__pack_stopped(&p->clock)) {
            if (!h->windows[r]) TN_TRY(tn__pack_windows_new(p, range, h->searches[r], &h->windows[r]));
            TN_TRY(tn__pack_windows_run(h->windows[r], height, 2 * steps, h->at, answer));
        }
        if (p->n_ranges > MAX_KEPT) {
            tn__pack_windows_free(h->windows[r]);
            h->windows[r] = NULL;
            tn__pack_search_free(h->searches[r]);
            h->searches[r] = NULL;
        }
        if (*answer == TN__SEARCH_FOUND) tn__pack_keep(p, h->at);
        if (*answer == TN__SEARCH_NONE) {
            /* No height up to this one is possible, and heights are multiples of the granule. */
            uint64_t above = (height / p->granule + 1) * p->granule;
            range->lower_bound = TN__MAX(range->lower_bound, above);
            if (!p->chunk) p->lower_bound = TN__MAX(p->lower_bound, above);
        }
        if (*answer != TN__SEARCH_FOUND) return TN_OK;
    }
    return TN_OK;
}

tn_status tn__pack_lower(tn__pack_problem *p, uint64_t goal, bool only_goal, uint64_t steps) {
    height_search h = {.problem = p,
                       .searches = tn_calloc(p->n_ranges, sizeof *h.searches),
                       .windows = tn_calloc(p->n_ranges, sizeof *h.windows),
                       .items = tn_malloc(p->n * sizeof *h.items),
                       .at = tn_malloc(p->n * sizeof *h.at)};
    tn_status status = TN_E_NOMEM;
    uint64_t limit = p->clock.limit;
    if (!h.searches || !h.windows || !h.items || !h.at) goto out;
    status = TN_OK;
    if (steps < limit - TN__MIN(limit, p->clock.steps)) p->clock.limit = p->clock.steps + steps;
    /* Rounds with growing budgets. Each tries the goal first, then bisects between found and missed heights. */
    unsigned round = 0;
    for (uint64_t patience = FIRST_PATIENCE_OF_GOAL; !h.hopeless && !tn__pack_stopped(&p->clock);
         patience *= 2, round++) {
        uint64_t begun = p->clock.steps, bound = p->lower_bound;
        goal = TN__MAX(goal, only_goal ? 0 : p->lower_bound);
        uint64_t height = tn__pack_height(p), missed = goal;
        tn__search_answer answer;
        if (height <= goal) break;
        /* A goal that was missed several times may be impossible: most steps then go to heights above it. */
        bool doubtful = !only_goal && patience > 4 * FIRST_PATIENCE_OF_GOAL;
        TN_TRY_GOTO(try_height(&h, goal, doubtful ? patience / 4 : patience, true, &answer), status, out);
        if (answer == TN__SEARCH_FOUND || (only_goal && answer == TN__SEARCH_NONE)) break;
        while (!only_goal && !h.hopeless && !tn__pack_stopped(&p->clock)) {
            height = tn__pack_height(p);
            if (p->lower_bound > goal) missed = TN__MAX(missed, p->lower_bound - 1);
            if (height <= missed + p->granule) break; /* includes the case of a found height below a missed one */
            /* A lower height is sometimes found where a higher one is missed: every second round aims lower. */
            uint64_t between = missed + (height - missed) / (round % 2 ? 4 : 2) / p->granule * p->granule;
            if (between <= missed) between = height - p->granule;
            if (between <= missed) break;
            TN_TRY_GOTO(try_height(&h, between, patience / 4, false, &answer), status, out);
            if (answer != TN__SEARCH_FOUND) missed = between;
        }
        /* All searches ended before their budget: a larger one changes nothing. */
        if (p->lower_bound == bound && p->clock.steps - begun < patience / 4) break;
    }
out:
    p->clock.limit = limit;
    for (uint32_t r = 0; h.windows && r < p->n_ranges; r++) tn__pack_windows_free(h.windows[r]);
    for (uint32_t r = 0; h.searches && r < p->n_ranges; r++) tn__pack_search_free(h.searches[r]);
    tn_free(h.windows);
    tn_free(h.searches);
    tn_free(h.items);
    tn_free(h.at);
    return status;
}

/* ---- Conflicts ---- */

static int by_index(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Finds a moment whose live items exceed the height by their sum, and selects the largest of them. Returns their
 * number; 0 if there is no such moment. */
static uint32_t crowded_moment(const tn__pack_problem *p, uint64_t height, uint32_t *items, uint64_t *scratch) {
    uint64_t *sum = scratch;
    memset(sum, 0, ((size_t)p->moments + 1) * sizeof *sum);
    uint64_t limit = height + (p->chunk ? 0 : p->max_pad);
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t size = p->chunk ? p->size[i] : tn__pack_padded(p, p->size[i]);
        sum[p->first[i]] += size;
        sum[p->last[i]] -= size;
    }
    uint64_t live = 0, most = 0;
    uint32_t moment = 0, count = 0;
    for (uint32_t m = 0; m < p->moments; m++) {
        live += sum[m];
        if (live > most) {
            most = live;
            moment = m;
        }
    }
    if (most <= limit) return 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->first[i] <= moment && moment < p->last[i]) items[count++] = i;
    uint64_t *key = scratch + 4 * (size_t)p->n;
    for (uint32_t i = 0; i < p->n; i++) key[i] = ~p->size[i];
    tn__pack_sort(items, count, key, scratch);
    uint64_t taken = 0;
    for (uint32_t k = 0; k < count; k++) {
        taken += p->chunk ? p->size[items[k]] : tn__pack_padded(p, p->size[items[k]]);
        if (taken > limit) return k + 1;
    }
    return count;
}

/* Removes items that are not needed for the refutation, in blocks of decreasing size. */
static tn_status shrink_conflict(tn__pack_problem *p, uint64_t height, uint32_t *items, uint32_t *count,
                                 uint64_t *at) {
    uint32_t *fewer = tn_malloc(*count * sizeof *fewer);
    if (!fewer) return TN_E_NOMEM;
    tn_status status = TN_OK;
    const uint64_t patience = (uint64_t)1 << 21;
    uint64_t limit = p->clock.limit;
    p->clock.limit = p->clock.steps + 64 * patience;
    for (uint32_t block = (*count + 1) / 2; block && !tn__pack_stopped(&p->clock);
         block = block == 1 ? 0 : (block + 1) / 2) {
        for (uint32_t from = 0; from < *count && !tn__pack_stopped(&p->clock);) {
            uint32_t kept = 0;
            for (uint32_t k = 0; k < *count; k++)
                if (k < from || k >= from + block) fewer[kept++] = items[k];
            tn__pack_search *search = NULL;
            TN_TRY_GOTO(tn__pack_search_new(p, fewer, kept, &search), status, out);
            tn__search_answer answer = search ? tn__pack_search_run(search, height, patience, at) : TN__SEARCH_FOUND;
            tn__pack_search_free(search);
            if (answer == TN__SEARCH_NONE) {
                memcpy(items, fewer, kept * sizeof *items);
                *count = kept;
            } else {
                from += block;
            }
        }
    }
out:
    p->clock.limit = limit;
    tn_free(fewer);
    return status;
}

tn_status tn__pack_conflict(tn__pack_problem *p, uint64_t height, size_t **out, size_t *out_count) {
    uint32_t *items = tn_malloc(p->n * sizeof *items), count = 0;
    uint64_t *scratch = tn_malloc((5 * (size_t)p->n + 1) * sizeof *scratch);
    tn_status status = TN_E_NOMEM;
    if (!items || !scratch) goto out;
    for (uint32_t i = 0; i < p->n && !count && !p->chunk; i++)
        if (p->fixed[i] != TN__NOWHERE && p->fixed[i] + p->size[i] > height) items[count++] = i;
    if (!count) count = crowded_moment(p, height, items, scratch);
    if (!count) {
        for (uint32_t r = 0; r < p->n_ranges && !count; r++)
            if (p->ranges[r].lower_bound > height)
                for (uint32_t i = p->ranges[r].begin; i < p->ranges[r].end; i++) items[count++] = i;
        TN_TRY_GOTO(shrink_conflict(p, height, items, &count, scratch), status, out);
    }
    *out = tn_malloc(count * sizeof **out);
    status = *out ? TN_OK : TN_E_NOMEM;
    if (!*out) goto out;
    for (uint32_t k = 0; k < count; k++) (*out)[k] = p->id[items[k]];
    qsort(*out, count, sizeof **out, by_index);
    *out_count = count;
out:
    tn_free(items);
    tn_free(scratch);
    return status;
}
