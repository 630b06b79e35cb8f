/* Local improvement: pack, move the items that end above the goal forward in the order, pack again. */
#include "plan/pack_internal.h"

#include "base/checked.h"

enum { PATIENCE = 24 }; /* attempts without progress before switching to another starting order */

static void sort_by(const tn__pack_problem *p, tn__pack_order_by by, uint32_t *order, uint32_t count, uint64_t *key,
                    uint64_t *scratch) {
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = order[k];
        uint64_t span = p->last[i] - p->first[i], area;
        if (__builtin_mul_overflow(p->size[i], span, &area)) area = UINT64_MAX;
        key[i] = ~(by == TN__BY_SIZE ? p->size[i] : by == TN__BY_SPAN ? span : area);
    }
    tn__pack_sort(order, count, key, scratch);
}

void tn__pack_order(const tn__pack_problem *p, tn__pack_order_by by, uint32_t *order, uint32_t count, uint64_t *key,
                    uint64_t *scratch) {
    /* The sort is stable, so the less significant key is sorted first. Remaining ties are in order of start, which
     * wastes nothing among items of equal size. */
    uint64_t rough = 1;
    switch (by) {
    case TN__BY_START: return;
    case TN__BY_ROUGH_CROWD_SPAN: rough = p->live_peak / 16 + 1; __attribute__((fallthrough));
    case TN__BY_CROWD_SPAN:
    case TN__BY_CROWD_AREA:
        tn__pack_order(p, by == TN__BY_CROWD_AREA ? TN__BY_AREA : TN__BY_SPAN, order, count, key, scratch);
        for (uint32_t k = 0; k < count; k++) key[order[k]] = ~((p->peak[order[k]] + rough - 1) / rough);
        tn__pack_sort(order, count, key, scratch);
        return;
    case TN__BY_SIZE_SPAN:
        sort_by(p, TN__BY_SPAN, order, count, key, scratch);
        sort_by(p, TN__BY_SIZE, order, count, key, scratch);
        return;
    case TN__BY_SPAN:
        sort_by(p, TN__BY_SIZE, order, count, key, scratch);
        sort_by(p, TN__BY_SPAN, order, count, key, scratch);
        return;
    default: sort_by(p, by, order, count, key, scratch); return;
    }
}

uint32_t tn__pack_open_items(const tn__pack_problem *p, uint64_t goal, uint32_t *items) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        if (p->ranges[r].best <= goal) continue;
        for (uint32_t i = p->ranges[r].begin; i < p->ranges[r].end; i++)
            if (p->fixed[i] == TN__NOWHERE) items[count++] = i;
    }
    return count;
}

tn_status tn__pack_improve(tn__pack_problem *p, tn__pack_greedy *greedy, uint64_t goal, uint64_t steps) {
    uint32_t *order = tn_malloc(p->n * sizeof *order);
    uint64_t *key = tn_malloc(p->n * sizeof *key), *at = tn_malloc(p->n * sizeof *at);
    uint64_t *scratch = tn_malloc(4 * (size_t)p->n * sizeof *scratch);
    tn_status status = TN_E_NOMEM;
    uint64_t limit = p->clock.limit;
    if (!order || !key || !at || !scratch) goto out;
    status = TN_OK;
    p->clock.limit = TN__MIN(limit, p->clock.steps + steps);
    static const tn__pack_order_by bases[] = {TN__BY_SIZE, TN__BY_AREA, TN__BY_SPAN, TN__BY_SIZE_SPAN};
    for (unsigned round = 0; round < 2 * TN__COUNT(bases); round++) {
        uint32_t count = tn__pack_open_items(p, goal, order);
        if (count == 0 || tn__pack_stopped(&p->clock)) break;
        tn__pack_order(p, bases[round % TN__COUNT(bases)], order, count, key, scratch);
        tn__gap_rule rule = round < TN__COUNT(bases) ? TN__GAP_LOWEST : TN__GAP_TIGHTEST;
        uint64_t reached = TN__NOWHERE;
        for (unsigned waited = 0; waited < PATIENCE; waited++) {
            p->clock.steps += count;
            if (!tn__pack_greedy_run(greedy, order, count, rule, at)) break;
            uint64_t height = 0;
            for (uint32_t k = 0; k < count; k++) height = TN__MAX(height, at[order[k]] + p->size[order[k]]);
            tn__pack_keep(p, at);
            if (height < reached) {
                reached = height;
                waited = 0;
            }
            if (height <= goal) break;
            /* Items that end above the goal move towards the front, in proportion to the excess. */
            for (uint32_t k = 0; k < count; k++) {
                uint32_t i = order[k];
                uint64_t end = at[i] + p->size[i], position = (uint64_t)k << 8;
                if (end > goal) position = position / 4 + position / 2 * (height - end) / (height - goal);
                key[i] = position;
            }
            tn__pack_sort(order, count, key, scratch);
        }
    }
out:
    p->clock.limit = limit;
    tn_free(order);
    tn_free(key);
    tn_free(at);
    tn_free(scratch);
    return status;
}
