/* Orders, and local improvement in two ways: pack, move the items that end above the goal forward in the order, pack
 * again; and repair, which packs the items of a short window of time again and leaves all others in place. */
#include "plan/pack_internal.h"

#include "base/checked.h"

enum {
    SPLIT_FROM = 8192, /* items; smaller problems are packed as a whole */
    REST_SHARE = 512,  /* the rest needs at most this part of the memory at any moment */
};
enum { PATIENCE = 24 }; /* attempts without progress before switching to another starting order */

/* What an order compares: largest first. */
typedef enum item_measure {
    NO_MEASURE,
    SIZE,
    SPAN,
    LIFE,
    AREA,
    LIFE_AREA,
    CROWD,
    ROUGH_CROWD,
    RIVALS,
    START,
    END,
    EARLY_START,
    EARLY_END,
    GIVEN
} item_measure;
static const item_measure order_measures[TN__PACK_ORDERS][3] = {
    [TN__BY_START] = {NO_MEASURE},
    [TN__BY_START_SIZE] = {EARLY_START, SIZE},
    [TN__BY_START_LIFE] = {EARLY_START, LIFE},
    [TN__BY_LATE_START] = {START},
    [TN__BY_END] = {END},
    [TN__BY_END_GIVEN] = {END, GIVEN},
    [TN__BY_EARLY_END] = {EARLY_END, GIVEN},
    [TN__BY_SIZE] = {SIZE},
    [TN__BY_SIZE_GIVEN] = {SIZE, GIVEN},
    [TN__BY_SIZE_SPAN] = {SIZE, SPAN},
    [TN__BY_SIZE_LIFE] = {SIZE, LIFE},
    [TN__BY_SIZE_LIFE_GIVEN] = {SIZE, LIFE, GIVEN},
    [TN__BY_AREA] = {AREA},
    [TN__BY_LIFE_AREA] = {LIFE_AREA},
    [TN__BY_LIFE_AREA_GIVEN] = {LIFE_AREA, GIVEN},
    [TN__BY_SPAN] = {SPAN, SIZE},
    [TN__BY_LIFE] = {LIFE},
    [TN__BY_LIFE_GIVEN] = {LIFE, GIVEN},
    [TN__BY_LIFE_SIZE] = {LIFE, SIZE},
    [TN__BY_LIFE_SIZE_GIVEN] = {LIFE, SIZE, GIVEN},
    [TN__BY_CROWD_GIVEN] = {CROWD, GIVEN},
    [TN__BY_CROWD_SPAN] = {CROWD, SPAN},
    [TN__BY_CROWD_LIFE] = {CROWD, LIFE},
    [TN__BY_CROWD_LIFE_GIVEN] = {CROWD, LIFE, GIVEN},
    [TN__BY_CROWD_AREA] = {CROWD, AREA},
    [TN__BY_CROWD_SIZE] = {CROWD, SIZE},
    [TN__BY_CROWD_SIZE_GIVEN] = {CROWD, SIZE, GIVEN},
    [TN__BY_ROUGH_CROWD_SPAN] = {ROUGH_CROWD, SPAN},
    [TN__BY_RIVALS_GIVEN] = {RIVALS, GIVEN},
    [TN__BY_RIVALS_SIZE] = {RIVALS, SIZE, GIVEN},
};

static uint64_t measure_item(const tn__pack_problem *p, item_measure what, uint32_t i) {
    const tn_pack_item *item = &p->items[p->id[i]];
    uint64_t span = p->last[i] - p->first[i], life = (uint64_t)item->end - (uint64_t)item->start, area;
    const uint64_t rough = p->live_peak / 16 + 1, sign = (uint64_t)1 << 63;
    switch (what) {
    case SIZE: return p->size[i];
    case SPAN: return span;
    case LIFE: return life;
    case AREA: return __builtin_mul_overflow(p->size[i], span, &area) ? UINT64_MAX : area;
    case LIFE_AREA: return __builtin_mul_overflow(p->size[i], life, &area) ? UINT64_MAX : area;
    case CROWD: return p->peak[i];
    case ROUGH_CROWD: return (p->peak[i] + rough - 1) / rough;
    case RIVALS: return p->rivals[i];
    case START: return (uint64_t)item->start ^ sign;
    case END: return (uint64_t)item->end ^ sign;
    case EARLY_START: return ~((uint64_t)item->start ^ sign);
    case EARLY_END: return ~((uint64_t)item->end ^ sign);
    case GIVEN: return ~(uint64_t)p->id[i];
    case NO_MEASURE: break;
    }
    return 0;
}

void tn__pack_order(const tn__pack_problem *p, tn__pack_order_by by, uint32_t *order, uint32_t count, uint64_t *key,
                    uint64_t *scratch) {
    /* The sort is stable, so the least significant key is sorted first. Remaining ties are in order of start, which
     * wastes nothing among items of equal size. */
    for (int k = 2; k >= 0; k--) {
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
        if (!tn__pack_greedy_run(v->greedy, order, count, count, start.rule, TN__ANY_HEIGHT, v->at)) return;
        uint64_t height = 0;
        for (uint32_t k = 0; k < count; k++) height = TN__MAX(height, v->at[order[k]] + p->size[order[k]]);
        /* The rest is packed only where that can give a better packing. */
        if (count < v->count && height < tn__pack_height(p) &&
            !tn__pack_greedy_run(v->greedy, order, count, v->count, start.rule, TN__BELOW_BEST, v->at) &&
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

/* ---- Repair ---- */

enum {
    FIRST_MARGIN = 4,     /* moments on both sides of an item that ends too high */
    MARGIN_GROWTH = 2,    /* after a failure */
    MOST_REPAIRED = 4096, /* items; packing more again improves little */
};
static const uint64_t window_base = 400000; /* steps for one window, and so many per item */
static const uint64_t window_steps[] = {2000, 40000}, longest_window = 12000000;

typedef struct repair {
    tn__pack_problem *problem;
    uint64_t *at;        /* the packing */
    tn_pack_item *items; /* of a window: those packed again, then obstacles */
    uint32_t *item;      /* their numbers in the problem, for those packed again */
    uint32_t *covers;    /* items that live through the whole window */
    uint64_t *key, *scratch;
    bool *stuck;       /* per range: left as it is */
    uint32_t margin;   /* of the next window: a little less than where the last one succeeded */
    unsigned patience; /* 0 or 1 */
    bool too_many;     /* the last window had too many items */
} repair;

/* Items with an address that live through the whole window are one obstacle where they touch. Returns the new count.
 */
static uint32_t add_covers(repair *v, uint32_t from, uint32_t to, uint32_t n_covers, uint32_t count) {
    const tn__pack_problem *p = v->problem;
    for (uint32_t k = 0; k < n_covers; k++) v->key[v->covers[k]] = v->at[v->covers[k]];
    tn__pack_sort(v->covers, n_covers, v->key, v->scratch);
    for (uint32_t k = 0; k < n_covers;) {
        uint64_t low = v->at[v->covers[k]], high = low;
        for (; k < n_covers && v->at[v->covers[k]] == high; k++) high += p->size[v->covers[k]];
        v->items[count++] =
            (tn_pack_item){.start = from, .end = to, .size = high - low, .offset = low, .fixed = true};
    }
    return count;
}

/* Collects the items of a window. Those that live inside are to be packed again: *open of them, at the front.
 * `height` is the highest end of them. */
static uint32_t collect_window(repair *v, uint32_t from, uint32_t to, uint32_t *open, uint64_t *height) {
    tn__pack_problem *p = v->problem;
    uint32_t end = 0, count = 0, n_covers = 0;
    for (uint32_t high = p->n; end < high;) { /* items from `end` on start after the window */
        uint32_t middle = (end + high) / 2;
        if (p->first[middle] < to)
            end = middle + 1;
        else
            high = middle;
    }
    *height = 0;
    for (uint32_t i = 0; i < end; i++) {
        if (p->last[i] <= from || p->first[i] < from || p->last[i] > to || p->fixed[i] != TN__NOWHERE) continue;
        v->too_many = count == MOST_REPAIRED;
        if (v->too_many) return *open = 0;
        v->item[count] = i;
        v->items[count++] = (tn_pack_item){
            .start = p->first[i], .end = p->last[i], .size = p->size[i], .alignment = (size_t)p->align[i] + 1};
        *height = TN__MAX(*height, v->at[i] + p->size[i]);
    }
    *open = count;
    for (uint32_t i = 0; i < end; i++) {
        if (p->last[i] <= from) continue;
        bool inside = p->first[i] >= from && p->last[i] <= to;
        if (inside && p->fixed[i] == TN__NOWHERE) continue;
        if (p->first[i] <= from && p->last[i] >= to) {
            v->covers[n_covers++] = i;
            continue;
        }
        v->items[count++] = (tn_pack_item){.start = TN__MAX(p->first[i], from),
                                           .end = TN__MIN(p->last[i], to),
                                           .size = p->size[i],
                                           .offset = v->at[i],
                                           .fixed = true};
    }
    p->clock.steps += end / 2 + 8 * (uint64_t)n_covers;
    return add_covers(v, from, to, n_covers, count);
}

/* Packs the items that live inside a window again. *lowered: their highest end is lower than before. */
static tn_status repair_window(repair *v, uint32_t from, uint32_t to, uint64_t goal, bool *lowered) {
    tn__pack_problem *p = v->problem, sub;
    uint64_t height;
    uint32_t open, count = collect_window(v, from, to, &open, &height);
    *lowered = false;
    if (open == 0) return TN_OK;
    uint64_t steps = TN__MIN(window_base + window_steps[v->patience] * count, longest_window);
    steps = TN__MAX(TN__MIN(steps, p->clock.limit - TN__MIN(p->clock.limit, p->clock.steps)), 1);
    tn_pack_params params = {.effort = TN_PACK_BALANCED, .max_steps = steps};
    TN_TRY(tn__pack_problem_make(v->items, count, &params, NULL, &sub));
    params.capacity = TN__MAX(goal, sub.lower_bound);
    tn_status status = TN_OK;
    if (params.capacity < height) {
        sub.window = true;
        sub.clock = (tn__pack_clock){.cancel = p->clock.cancel, .user = p->clock.user, .deadline = p->clock.deadline};
        status = tn__pack_solve(&sub, &params);
        if (status == TN_E_UNDECIDED || status == TN_E_INFEASIBLE) status = TN_OK;
        p->clock.cancelled |= sub.clock.cancelled;
        p->clock.late |= sub.clock.late;
    }
    p->clock.steps += sub.clock.steps + 40 * (uint64_t)count;
    uint64_t reached = 0;
    for (uint32_t k = 0; k < sub.n; k++)
        if (sub.id[k] < open)
            reached = TN__MAX(reached, sub.best[k] == TN__NOWHERE ? TN__NOWHERE : sub.best[k] + sub.size[k]);
    *lowered = status == TN_OK && reached < height;
    for (uint32_t k = 0; k < sub.n && *lowered; k++)
        if (sub.id[k] < open) v->at[v->item[sub.id[k]]] = sub.best[k];
    tn__pack_problem_free(&sub);
    return status;
}

/* Repairs where the packing is highest, in windows of growing width. A range that cannot be lowered is left alone
 * from then on. *done: nothing is left to repair. */
static tn_status repair_highest(repair *v, uint64_t goal, bool *done) {
    tn__pack_problem *p = v->problem;
    uint32_t highest = 0, range = 0;
    uint64_t height = goal;
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        for (uint32_t i = p->ranges[r].begin; i < p->ranges[r].end && !v->stuck[r]; i++) {
            if (v->at[i] + p->size[i] <= height) continue;
            height = v->at[i] + p->size[i];
            highest = i;
            range = r;
        }
    }
    p->clock.steps += p->n / 2;
    *done = height == goal;
    if (*done) return TN_OK;
    bool lowered = false;
    for (uint32_t margin = v->margin; !lowered && !tn__pack_stopped(&p->clock); margin *= MARGIN_GROWTH) {
        uint32_t before = p->first[highest] - p->ranges[range].first,
                 after = p->ranges[range].last - p->last[highest];
        uint32_t from = p->first[highest] - TN__MIN(before, margin), to = p->last[highest] + TN__MIN(after, margin);
        TN_TRY(repair_window(v, from, to, goal, &lowered));
        v->margin = lowered ? TN__MAX(margin / MARGIN_GROWTH, FIRST_MARGIN) : FIRST_MARGIN;
        if (v->too_many || (margin >= before && margin >= after)) break;
    }
    v->stuck[range] = !lowered;
    return TN_OK;
}

tn_status tn__pack_repair(tn__pack_problem *p, uint64_t goal, uint64_t steps, unsigned patience, uint64_t *at) {
    repair v = {.problem = p, .at = at, .patience = patience, .margin = FIRST_MARGIN};
    v.items = tn_malloc(p->n * sizeof *v.items);
    v.item = tn_malloc(p->n * sizeof *v.item);
    v.covers = tn_malloc(p->n * sizeof *v.covers);
    v.key = tn_malloc(p->n * sizeof *v.key);
    v.scratch = tn_malloc(4 * (size_t)p->n * sizeof *v.scratch);
    v.stuck = tn_calloc(p->n_ranges, sizeof *v.stuck);
    bool enough = v.items && v.item && v.covers && v.key && v.scratch && v.stuck;
    tn_status status = enough ? TN_OK : TN_E_NOMEM;
    for (uint32_t r = 0; enough && r < p->n_ranges; r++)
        for (uint32_t i = p->ranges[r].begin; i < p->ranges[r].end && !v.stuck[r]; i++)
            v.stuck[r] = at[i] == TN__NOWHERE;
    uint64_t limit = p->clock.limit;
    p->clock.limit = TN__MIN(limit, p->clock.steps + TN__MIN(steps, limit));
    for (bool done = false; status == TN_OK && !done && !tn__pack_stopped(&p->clock);)
        status = repair_highest(&v, goal, &done);
    p->clock.limit = limit;
    tn_free(v.items);
    tn_free(v.item);
    tn_free(v.covers);
    tn_free(v.stuck);
    tn_free(v.key);
    tn_free(v.scratch);
    return status;
}
