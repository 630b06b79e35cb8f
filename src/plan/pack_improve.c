/* Local improvement: pack, move the items that end above the goal forward in the order, pack again. */
#include "plan/pack_internal.h"

#include "base/checked.h"

enum {
    SPLIT_FROM = 8192, /* items; smaller problems are packed as a whole */
    REST_SHARE = 512,  /* the rest needs at most this part of the memory at any moment */
};
enum { PATIENCE = 24 }; /* attempts without progress before switching to another starting order */

/* What an order compares: largest first, except for the start. */
typedef enum item_measure { NO_MEASURE, SIZE, SPAN, LIFE, AREA, LIFE_AREA, CROWD, ROUGH_CROWD, END } item_measure;
static const item_measure order_measures[TN__PACK_ORDERS][2] = {
    [TN__BY_START] = {NO_MEASURE, NO_MEASURE},
    [TN__BY_END] = {END, NO_MEASURE},
    [TN__BY_SIZE] = {SIZE, NO_MEASURE},
    [TN__BY_SIZE_SPAN] = {SIZE, SPAN},
    [TN__BY_SIZE_LIFE] = {SIZE, LIFE},
    [TN__BY_AREA] = {AREA, NO_MEASURE},
    [TN__BY_LIFE_AREA] = {LIFE_AREA, NO_MEASURE},
    [TN__BY_SPAN] = {SPAN, SIZE},
    [TN__BY_LIFE] = {LIFE, NO_MEASURE},
    [TN__BY_LIFE_SIZE] = {LIFE, SIZE},
    [TN__BY_CROWD_SPAN] = {CROWD, SPAN},
    [TN__BY_CROWD_LIFE] = {CROWD, LIFE},
    [TN__BY_CROWD_AREA] = {CROWD, AREA},
    [TN__BY_CROWD_SIZE] = {CROWD, SIZE},
    [TN__BY_ROUGH_CROWD_SPAN] = {ROUGH_CROWD, SPAN},
};

static uint64_t measure_item(const tn__pack_problem *p, item_measure what, uint32_t i) {
    const tn_pack_item *item = &p->items[p->id[i]];
    uint64_t span = p->last[i] - p->first[i], life = (uint64_t)item->end - (uint64_t)item->start, area;
    uint64_t rough = p->live_peak / 16 + 1;
    switch (what) {
    case SIZE: return p->size[i];
    case SPAN: return span;
    case LIFE: return life;
    case AREA: return __builtin_mul_overflow(p->size[i], span, &area) ? UINT64_MAX : area;
    case LIFE_AREA: return __builtin_mul_overflow(p->size[i], life, &area) ? UINT64_MAX : area;
    case CROWD: return p->peak[i];
    case ROUGH_CROWD: return (p->peak[i] + rough - 1) / rough;
    case END: return (uint64_t)item->end ^ (uint64_t)1 << 63;
    case NO_MEASURE: break;
    }
    return 0;
}

void tn__pack_order(const tn__pack_problem *p, tn__pack_order_by by, uint32_t *order, uint32_t count, uint64_t *key,
                    uint64_t *scratch) {
    /* The sort is stable, so the less significant key is sorted first. Remaining ties are in order of start, which
     * wastes nothing among items of equal size. */
    for (int k = 1; k >= 0; k--) {
        item_measure what = order_measures[by][k];
        if (what == NO_MEASURE) continue;
        for (uint32_t q = 0; q < count; q++) key[order[q]] = ~measure_item(p, what, order[q]);
        tn__pack_sort(order, count, key, scratch);
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

/* Moves the items that matter to the front, both parts in order of start, and returns their number. The others are so
 * small that together they need little memory at any moment; they fit into gaps afterwards. */
uint32_t tn__pack_core(const tn__pack_problem *p, uint32_t *items, uint32_t count, uint64_t *key, uint64_t *scratch) {
    if (count < SPLIT_FROM || p->chunk || !p->crowded) return count;
    /* The largest size limit, in powers of two, for which the live sum of all smaller items stays within the share.
     */
    uint64_t limit = 0, *sums = key;
    for (uint64_t size = p->live_peak / REST_SHARE; size; size /= 2) {
        uint64_t live = 0, most = 0;
        memset(sums, 0, p->moments * sizeof *sums);
        for (uint32_t k = 0; k < count; k++) {
            uint32_t i = items[k];
            if (p->size[i] > size) continue;
            sums[p->first[i]] += p->size[i];
            if (p->last[i] < p->moments) sums[p->last[i]] -= p->size[i];
        }
        for (uint32_t m = 0; m < p->moments; m++) most = TN__MAX(most, live += sums[m]);
        limit = size;
        if (most <= p->live_peak / REST_SHARE) break;
    }
    uint32_t core = 0;
    for (uint32_t k = 0; k < count; k++) {
        key[items[k]] = p->size[items[k]] <= limit;
        core += p->size[items[k]] > limit;
    }
    tn__pack_sort(items, count, key, scratch);
    return core;
}

/* The starting orders, the most successful first; then those not tried yet. */
static void sort_starts(const tn__pack_problem *p, tn__pack_attempt *starts, unsigned count) {
    for (unsigned i = 1; i < count; i++) {
        tn__pack_attempt x = starts[i];
        unsigned j = i;
        for (; j && p->reached[starts[j - 1].by][starts[j - 1].rule] > p->reached[x.by][x.rule]; j--)
            starts[j] = starts[j - 1];
        starts[j] = x;
    }
}

typedef struct improvement {
    tn__pack_problem *problem;
    tn__pack_greedy *greedy;
    uint64_t goal;
    uint32_t *order, core, count; /* `core` items are moved; the others follow in their order */
    uint64_t *key, *at, *scratch;
} improvement;

/* Packs again and again from one starting order, until the goal is reached or nothing improves any more. */
static void improve_from(improvement *v, tn__pack_attempt start) {
    tn__pack_problem *p = v->problem;
    uint64_t reached = TN__NOWHERE, goal = v->goal;
    uint32_t *order = v->order, count = v->core;
    tn__pack_order(p, start.by, order, count, v->key, v->scratch);
    tn__pack_order(p, start.by, order + count, v->count - count, v->key, v->scratch);
    for (unsigned waited = 0; waited < PATIENCE; waited++) {
        p->clock.steps += count;
        if (!tn__pack_greedy_run(v->greedy, order, count, count, start.rule, TN__NOWHERE, v->at)) return;
        uint64_t height = 0;
        for (uint32_t k = 0; k < count; k++) height = TN__MAX(height, v->at[order[k]] + p->size[order[k]]);
        /* The rest is packed only where that can give a better packing. */
        if (count < v->count && height < tn__pack_height(p) &&
            !tn__pack_greedy_run(v->greedy, order, count, v->count, start.rule, tn__pack_ceiling(p), v->at) &&
            tn__pack_stopped(&p->clock))
            return;
        tn__pack_keep(p, v->at);
        if (tn__pack_height(p) <= goal) return;
        if (height < reached) {
            reached = height;
            waited = 0;
        }
        if (height <= goal) return;
        /* Items that end above the goal move towards the front, in proportion to the excess. */
        for (uint32_t k = 0; k < count; k++) {
            uint32_t i = order[k];
            uint64_t end = v->at[i] == TN__NOWHERE ? 0 : v->at[i] + p->size[i], position = (uint64_t)k << 8;
            if (end > goal)
                position = position / 4 + position / 2 * (height - TN__MIN(end, height)) / (height - goal);
            v->key[i] = position;
        }
        tn__pack_sort(order, count, v->key, v->scratch);
    }
}

tn_status tn__pack_improve(tn__pack_problem *p, tn__pack_greedy *greedy, uint64_t goal, uint64_t steps) {
    improvement v = {.problem = p, .greedy = greedy, .goal = goal};
    v.order = tn_malloc(p->n * sizeof *v.order);
    v.key = tn_malloc(p->n * sizeof *v.key);
    v.at = tn_malloc(p->n * sizeof *v.at);
    v.scratch = tn_malloc(4 * (size_t)p->n * sizeof *v.scratch);
    tn_status status = TN_E_NOMEM;
    uint64_t limit = p->clock.limit;
    if (!v.order || !v.key || !v.at || !v.scratch) goto out;
    TN_TRY_GOTO(tn__pack_find_peaks(p), status, out);
    p->clock.limit = TN__MIN(limit, p->clock.steps + steps);
    tn__pack_attempt starts[] = {{TN__BY_SIZE, TN__GAP_LOWEST},       {TN__BY_AREA, TN__GAP_LOWEST},
                                 {TN__BY_SPAN, TN__GAP_LOWEST},       {TN__BY_SIZE_SPAN, TN__GAP_LOWEST},
                                 {TN__BY_SIZE, TN__GAP_TIGHTEST},     {TN__BY_AREA, TN__GAP_TIGHTEST},
                                 {TN__BY_SPAN, TN__GAP_TIGHTEST},     {TN__BY_SIZE_SPAN, TN__GAP_TIGHTEST},
                                 {TN__BY_CROWD_SPAN, TN__GAP_LOWEST}, {TN__BY_CROWD_SPAN, TN__GAP_TIGHTEST},
                                 {TN__BY_LIFE_SIZE, TN__GAP_LOWEST},  {TN__BY_CROWD_SIZE, TN__GAP_LOWEST}};
    sort_starts(p, starts, TN__COUNT(starts));
    for (unsigned round = 0; round < TN__COUNT(starts) && !tn__pack_stopped(&p->clock); round++) {
        v.count = tn__pack_open_items(p, goal, v.order);
        if (v.count == 0) break;
        v.core = tn__pack_core(p, v.order, v.count, v.key, v.scratch);
        improve_from(&v, starts[round]);
    }
    status = TN_OK;
out:
    p->clock.limit = limit;
    tn_free(v.order);
    tn_free(v.key);
    tn_free(v.at);
    tn_free(v.scratch);
    return status;
}
