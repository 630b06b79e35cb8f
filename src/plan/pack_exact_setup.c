/* Set-up of an exact search: items of one range, conflict lists, obstacles, and orders of preference. */
#include "plan/pack_search.h"

#include "base/checked.h"

void tn__pack_search_free(tn__pack_search *s) {
    if (!s) return;
    void *all[] = {
        s->item,      s->first,    s->last,        s->size,       s->padded,   s->twin,         s->conflicts_begin,
        s->conflicts, s->at_begin, s->at_moment,   s->wall_begin, s->wall_low, s->wall_high,    s->top,
        s->low,       s->at,       s->placed,      s->soonest,    s->second,   s->soonest_item, s->queue,
        s->queued,    s->changes,  s->done,        s->lists,      s->live,     s->endings,      s->weight,
        s->refuted,   s->items,    s->item_queued, s->cause,      s->lows,     s->sums,         s->rank_late,
        s->guide};
    for (size_t i = 0; i < TN__COUNT(all); i++) tn_free(all[i]);
    for (int o = 0; o < ORDERINGS; o++) tn_free(s->rank[o]);
    tn_free(s);
}

/* Orders of preference by the live sum at an item's most crowded moment, lifetime, number of moments and area, in
 * combinations that each suit some inputs. */
static tn_status make_orders(tn__pack_search *s) {
    const tn__pack_problem *p = s->problem;
    size_t n = (size_t)s->n;
    uint64_t *crowd = tn_calloc((size_t)s->moments, sizeof *crowd), *key = tn_malloc(n * sizeof *key);
    uint64_t *scratch = tn_malloc(4 * n * sizeof *scratch);
    uint32_t *order = tn_malloc(n * sizeof *order);
    tn_status status = TN_E_NOMEM;
    if (!crowd || !key || !scratch || !order) goto out;
    for (int32_t u = 0; u < s->n; u++)
        for (int32_t m = s->first[u]; m < s->last[u]; m++) crowd[m] += (uint64_t)s->padded[u];
    for (int o = 0; o < ORDERINGS; o++) {
        enum {
            CROWD,
            LIFE,
            SPAN,
            AREA
        } keys[ORDERINGS][2] = {{CROWD, LIFE}, {LIFE, AREA}, {SPAN, AREA}, {AREA, SPAN}, {CROWD, SPAN}};
        for (uint32_t i = 0; i < n; i++) order[i] = i;
        /* The less significant key first: the sort is stable. */
        for (int k = 1; k >= 0; k--) {
            for (int32_t u = 0; u < s->n; u++) {
                const tn_pack_item *item = &p->items[p->id[s->item[u]]];
                uint64_t life = (uint64_t)item->end - (uint64_t)item->start, area, most = 0;
                if (__builtin_mul_overflow(life, (uint64_t)s->size[u], &area)) area = UINT64_MAX;
                for (int32_t m = s->first[u]; m < s->last[u]; m++) most = TN__MAX(most, crowd[m]);
                switch (keys[o][k]) {
                case CROWD: key[u] = ~most; break;
                case LIFE: key[u] = ~life; break;
                case SPAN: key[u] = ~(uint64_t)(s->last[u] - s->first[u]); break;
                case AREA: key[u] = ~area; break;
                }
            }
            tn__pack_sort(order, (uint32_t)n, key, scratch);
        }
        for (uint32_t i = 0; i < n; i++) s->rank[o][order[i]] = (int32_t)i;
    }
    status = TN_OK;
out:
    tn_free(crowd);
    tn_free(key);
    tn_free(scratch);
    tn_free(order);
    return status;
}

static bool same_item(const tn__pack_search *s, int32_t u, int32_t v) {
    const tn__pack_problem *p = s->problem;
    return s->first[u] == s->first[v] && s->last[u] == s->last[v] && s->size[u] == s->size[v] &&
           p->align[s->item[u]] == p->align[s->item[v]];
}

/* Lists of conflicts and of the items live at each moment. *too_many: building them would exceed the remaining steps.
 */
static tn_status make_lists(tn__pack_search *s, bool *too_many) {
    size_t pairs = 0, lives = 0, n = (size_t)s->n;
    tn__pack_clock *clock = &s->problem->clock;
    uint64_t left = clock->limit - TN__MIN(clock->limit, clock->steps), most = TN__MIN(left, MAX_CONFLICTS);
    for (int32_t u = 0; u < s->n; u++) {
        /* Items after u that start before u ends; items are sorted by start. */
        int32_t low = u + 1, high = s->n;
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            if (s->first[middle] < s->last[u])
                low = middle + 1;
            else
                high = middle;
        }
        pairs += 2 * (size_t)(low - u - 1);
        lives += (size_t)(s->last[u] - s->first[u]);
    }
    if ((*too_many = pairs > most || lives > most)) return TN_OK;
    clock->steps += pairs + lives + ((uint64_t)1 << s->refuted_bits >> 4);
    s->conflicts_begin = tn_calloc(n + 2, sizeof *s->conflicts_begin);
    s->conflicts = tn_malloc(pairs * sizeof *s->conflicts);
    s->at_begin = tn_calloc((size_t)s->moments + 2, sizeof *s->at_begin);
    s->at_moment = tn_malloc(lives * sizeof *s->at_moment);
    if (!s->conflicts_begin || !s->conflicts || !s->at_begin || !s->at_moment) return TN_E_NOMEM;
    /* Counts are stored two entries later; the prefix sum and the filling each move them by one. */
    for (int32_t u = 0; u < s->n; u++) {
        for (int32_t v = u + 1; v < s->n && s->first[v] < s->last[u]; v++)
            s->conflicts_begin[u + 2]++, s->conflicts_begin[v + 2]++;
        for (int32_t m = s->first[u]; m < s->last[u]; m++) s->at_begin[m + 2]++;
    }
    for (size_t i = 2; i < n + 2; i++) s->conflicts_begin[i] += s->conflicts_begin[i - 1];
    for (int32_t m = 2; m < s->moments + 2; m++) s->at_begin[m] += s->at_begin[m - 1];
    for (int32_t u = 0; u < s->n; u++) {
        for (int32_t v = u + 1; v < s->n && s->first[v] < s->last[u]; v++) {
            s->conflicts[s->conflicts_begin[u + 1]++] = v;
            s->conflicts[s->conflicts_begin[v + 1]++] = u;
        }
        for (int32_t m = s->first[u]; m < s->last[u]; m++) s->at_moment[s->at_begin[m + 1]++] = u;
    }
    for (int32_t u = 0; u < s->n; u++) {
        s->twin[u] = NO_ITEM;
        for (int32_t k = s->conflicts_begin[u]; k < s->conflicts_begin[u + 1] && s->conflicts[k] < u; k++)
            if (same_item(s, s->conflicts[k], u)) s->twin[u] = s->conflicts[k];
    }
    return TN_OK;
}

/* Fixed items in conflict with each item, in order of address. */
static tn_status make_walls(tn__pack_search *s) {
    const tn__pack_problem *p = s->problem;
    s->wall_begin = tn_calloc((size_t)s->n + 1, sizeof *s->wall_begin);
    if (!s->wall_begin) return TN_E_NOMEM;
    if (!p->any_fixed) return TN_OK;
    uint32_t n_walls = 0, *walls = tn_malloc(p->n * sizeof *walls);
    uint64_t *scratch = tn_malloc(4 * (size_t)p->n * sizeof *scratch);
    tn_status status = TN_E_NOMEM;
    if (!walls || !scratch) goto out;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->fixed[i] != TN__NOWHERE) walls[n_walls++] = i;
    tn__pack_sort(walls, n_walls, p->fixed, scratch);
    for (int pass = 0; pass < 2; pass++) {
        int32_t count = 0;
        for (int32_t u = 0; u < s->n; u++) {
            s->wall_begin[u] = count;
            for (uint32_t w = 0; w < n_walls; w++) {
                uint32_t i = walls[w], own = s->item[u];
                if (p->first[i] >= p->last[own] || p->first[own] >= p->last[i]) continue;
                if (pass == 1) {
                    s->wall_low[count] = (int64_t)p->fixed[i];
                    s->wall_high[count] = (int64_t)(p->fixed[i] + p->size[i]);
                }
                count++;
            }
        }
        s->wall_begin[s->n] = count;
        if (pass == 0) {
            s->complete = s->complete && count == 0;
            s->wall_low = tn_malloc((size_t)count * sizeof *s->wall_low);
            s->wall_high = tn_malloc((size_t)count * sizeof *s->wall_high);
            if (!s->wall_low || !s->wall_high) goto out;
        }
    }
    status = TN_OK;
out:
    tn_free(walls);
    tn_free(scratch);
    return status;
}

tn_status tn__pack_search_new(tn__pack_problem *p, const uint32_t *items, uint32_t count, tn__pack_search **out) {
    *out = NULL;
    if (count == 0 || count > TN__PACK_MAX_SEARCHED) return TN_OK;
    tn__pack_search *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    size_t n = count;
    tn_status status = TN_E_NOMEM;
    s->problem = p;
    s->complete = p->chunk == 0;
    s->blame = 256;
    s->item = tn_malloc(n * sizeof *s->item);
    s->first = tn_malloc(n * sizeof *s->first);
    s->last = tn_malloc(n * sizeof *s->last);
    s->size = tn_malloc(n * sizeof *s->size);
    s->padded = tn_malloc(n * sizeof *s->padded);
    s->twin = tn_malloc(n * sizeof *s->twin);
    s->top = tn_malloc(n * sizeof *s->top);
    s->low = tn_malloc(n * sizeof *s->low);
    s->at = tn_malloc(n * sizeof *s->at);
    s->placed = tn_calloc(n, sizeof *s->placed);
    s->done = tn_malloc(n * sizeof *s->done);
    s->live = tn_malloc(n * sizeof *s->live);
    s->lows = tn_malloc(n * sizeof *s->lows);
    s->endings = tn_malloc(n * sizeof *s->endings);
    s->sums = tn_malloc(n * sizeof *s->sums);
    s->rank_late = tn_malloc(n * sizeof *s->rank_late);
    s->items = tn_malloc(n * sizeof *s->items);
    s->item_queued = tn_calloc(n, sizeof *s->item_queued);
    s->cause = tn_malloc(n * sizeof *s->cause);
    s->guide = tn_malloc(n * sizeof *s->guide);
    s->cap_lists = 4 * n;
    s->lists = tn_malloc(s->cap_lists * sizeof *s->lists);
    /* The table grows with the problem up to 2^17 entries; a larger one would not fit into caches. */
    s->refuted_bits = TN__MIN(17, 40 - (unsigned)__builtin_clz(count));
    s->refuted = tn_calloc((size_t)1 << s->refuted_bits, sizeof *s->refuted);
    if (!s->item || !s->first || !s->last || !s->size || !s->padded || !s->twin || !s->top || !s->low || !s->at ||
        !s->placed || !s->done || !s->live || !s->endings || !s->lows || !s->sums || !s->rank_late || !s->items ||
        !s->item_queued || !s->cause || !s->guide || !s->lists || !s->refuted)
        goto out;
    for (int o = 0; o < ORDERINGS; o++)
        if (!(s->rank[o] = tn_malloc(n * sizeof *s->rank[o]))) goto out;

    uint32_t origin = UINT32_MAX, end = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (p->fixed[items[k]] != TN__NOWHERE) continue;
        origin = TN__MIN(origin, p->first[items[k]]);
        end = TN__MAX(end, p->last[items[k]]);
    }
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = items[k];
        if (p->fixed[i] != TN__NOWHERE) continue;
        s->item[s->n] = i;
        s->first[s->n] = (int32_t)(p->first[i] - origin);
        s->last[s->n] = (int32_t)(p->last[i] - origin);
        s->size[s->n] = (int64_t)p->size[i];
        s->padded[s->n] = (int64_t)tn__pack_padded(p, p->size[i]);
        s->n++;
    }
    s->moments = s->n ? (int32_t)(end - origin) : 0;
    s->origin = s->n ? origin : 0;
    size_t moments = (size_t)s->moments;
    s->soonest = tn_malloc(moments * sizeof *s->soonest);
    s->second = tn_malloc(moments * sizeof *s->second);
    s->soonest_item = tn_malloc(moments * sizeof *s->soonest_item);
    s->queue = tn_malloc(moments * sizeof *s->queue);
    s->queued = tn_calloc(moments, sizeof *s->queued);
    s->weight = tn_calloc(moments, sizeof *s->weight);
    if (!s->soonest || !s->second || !s->soonest_item || !s->queue || !s->queued || !s->weight) goto out;
    bool too_many = false;
    TN_TRY_GOTO(make_lists(s, &too_many), status, out);
    if (too_many) goto out;
    TN_TRY_GOTO(make_walls(s), status, out);
    TN_TRY_GOTO(make_orders(s), status, out);
    *out = s;
    return TN_OK;
out:
    tn__pack_search_free(s);
    return status;
}
