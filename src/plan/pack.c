/* tn_pack: runs the algorithms of each effort and builds the result. */
#include "plan/pack_internal.h"

#include "base/checked.h"

/* Budgets in steps of two to five nanoseconds. Ten thousand items take less than ten milliseconds at fast effort;
 * balanced takes about a second and exact about ten, after which further search seldom improves the result. */
static const uint64_t fast_base = 500000, fast_per_item = 120, fast_per_crowded_item = 1500;
static const uint64_t balanced_steps = 200000000, balanced_per_item = 3200, exact_steps = 3000000000;

enum {
    REPAIR_SHARE = 8, /* of the remaining steps for the repair of one packing */
    SLOW_FROM = 8192, /* items; fewer are packed in all orders even if they are crowded */
};

tn_pack_params tn_pack_params_default(void) { return (tn_pack_params){0}; }

void tn_pack_result_free(tn_pack_result *result) {
    if (!result) return;
    tn_free(result->offsets);
    tn_free(result->chunks);
    tn_free(result->chunk_sizes);
    tn_free(result->conflict);
    memset(result, 0, sizeof *result);
}

/* The sum over chunks of the larger of used and existing bytes, for the best packing. */
static uint64_t total_size(const tn__pack_problem *p) {
    const tn__pack_layout *layout = p->layout;
    uint64_t height = tn__pack_height(p);
    if (height == TN__NOWHERE) return height;
    if (!p->chunk) return layout ? layout->total - layout->bin[0] + TN__MAX(height, layout->bin[0]) : height;
    uint64_t total = 0;
    size_t chunks = TN__MAX(height / p->stride + 1, layout ? layout->count : 0);
    uint64_t *end = tn_calloc(chunks, sizeof *end);
    if (!end) return height; /* an overestimate, which only costs time */
    for (size_t c = 0; layout && c < layout->count; c++) end[c] = layout->bin[c];
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t *e = &end[p->best[i] / p->stride];
        *e = TN__MAX(*e, p->best[i] % p->stride + p->size[i]);
    }
    for (size_t c = 0; c < chunks; c++) total += end[c];
    tn_free(end);
    return total;
}

static bool satisfied(const tn__pack_problem *p, uint64_t goal) { return total_size(p) <= goal; }

/* The highest address at which a packing reaches the goal; with several bins, at which it needs nothing beyond them.
 */
static uint64_t height_of(const tn__pack_problem *p, uint64_t goal) {
    const tn__pack_layout *layout = p->layout;
    if (!layout) return goal;
    if (!p->chunk) return goal - (layout->total - layout->bin[0]);
    return (layout->count - 1) * p->stride + TN__MIN(layout->bin[layout->count - 1], p->chunk);
}

/* ---- Fast ---- */

typedef struct workspace {
    uint32_t *order;
    uint64_t *key, *at, *scratch;
} workspace;

static bool workspace_make(workspace *w, size_t n) {
    w->order = tn_malloc(n * sizeof *w->order);
    w->key = tn_malloc(n * sizeof *w->key);
    w->at = tn_malloc(n * sizeof *w->at);
    w->scratch = tn_malloc(4 * n * sizeof *w->scratch);
    return w->order && w->key && w->at && w->scratch;
}
static void workspace_free(workspace *w) {
    tn_free(w->order);
    tn_free(w->key);
    tn_free(w->at);
    tn_free(w->scratch);
}

static uint64_t steps_left(const tn__pack_problem *p) {
    return p->clock.limit - TN__MIN(p->clock.limit, p->clock.steps);
}

/* Packs in one order. With `repaired` a packing that is a little larger than the best one is repaired. */
static tn_status greedy(tn__pack_problem *p, tn__pack_greedy *g, workspace *w, uint64_t height, tn__pack_attempt how,
                        bool divided, bool repaired) {
    uint32_t count = tn__pack_open_items(p, height, w->order);
    p->clock.steps += 2 * (uint64_t)count;
    uint32_t core = divided ? tn__pack_core(p, w->order, count, w->key, w->scratch) : count;
    tn__pack_order(p, how.by, w->order, core, w->key, w->scratch);
    tn__pack_order(p, how.by, w->order + core, count - core, w->key, w->scratch);
    repaired = repaired && !p->chunk && !p->window;
    bool complete =
        tn__pack_greedy_run(g, w->order, core, count, how.rule, repaired ? TN__NEAR_BEST : TN__BELOW_BEST, w->at);
    if (!complete && tn__pack_stopped(&p->clock)) return TN_OK;
    uint64_t reached = 0;
    for (uint32_t k = 0; k < count && complete; k++)
        reached = TN__MAX(reached, w->at[w->order[k]] + p->size[w->order[k]]);
    p->reached[how.by][how.rule] = complete ? reached : TN__NOWHERE - 1;
    tn__pack_keep(p, w->at);
    if (!repaired) return TN_OK;
    TN_TRY(tn__pack_repair(p, height, steps_left(p) / REPAIR_SHARE, 0, w->at));
    tn__pack_keep(p, w->at);
    return TN_OK;
}

/* Repairs the best packing. */
static tn_status repair_best(tn__pack_problem *p, workspace *w, uint64_t goal, uint64_t steps, unsigned patience) {
    if (p->chunk || p->window || satisfied(p, goal)) return TN_OK;
    memcpy(w->at, p->best, p->n * sizeof *w->at);
    TN_TRY(tn__pack_repair(p, height_of(p, goal), steps, patience, w->at));
    tn__pack_keep(p, w->at);
    return TN_OK;
}

static tn_status online(tn__pack_problem *p, workspace *w, bool mirrored, tn__pack_ties ties) {
    p->clock.steps += 30 * (uint64_t)p->n;
    for (uint32_t i = 0; i < p->n; i++) w->order[i] = i;
    TN_TRY(tn__pack_online(p, w->order, p->n, mirrored, ties, w->at));
    tn__pack_keep(p, w->at);
    return TN_OK;
}

static tn_status attempts(tn__pack_problem *p, tn__pack_greedy *g, workspace *w, uint64_t goal, bool repaired,
                          const tn__pack_attempt *list, size_t count) {
    for (size_t a = 0; a < count && !satisfied(p, goal) && !tn__pack_stopped(&p->clock); a++)
        TN_TRY(greedy(p, g, w, height_of(p, goal), list[a], true, repaired));
    return TN_OK;
}

static tn_status pack_fast(tn__pack_problem *p, tn__pack_greedy *g, uint64_t goal) {
    workspace w;
    bool plain = !p->any_fixed && !p->chunk, founded;
    tn_status status = TN_E_NOMEM;
    if (!workspace_make(&w, p->n)) goto out;
    /* The first heuristic always completes, so that there is a packing: best fit in order of start. Later ones only
     * replace it by better packings. */
    if (plain) {
        TN_TRY_GOTO(online(p, &w, false, TN__TIES_AS_GIVEN), status, out);
    } else {
        uint64_t limit = p->clock.limit, deadline = p->clock.deadline;
        p->clock.limit = UINT64_MAX;
        p->clock.deadline = 0;
        status = greedy(p, g, &w, 0, (tn__pack_attempt){TN__BY_START, TN__GAP_TIGHTEST}, true, false);
        p->clock.limit = limit;
        p->clock.deadline = deadline;
    }
    if (satisfied(p, goal)) goto out;
    static const tn__pack_attempt above[] = {{TN__BY_CROWD_SPAN, TN__GAP_LOWEST},
                                             {TN__BY_SIZE_SPAN, TN__GAP_LOWEST},
                                             {TN__BY_ROUGH_CROWD_SPAN, TN__GAP_LOWEST},
                                             {TN__BY_SIZE, TN__GAP_TIGHTEST}};
    TN_TRY_GOTO(tn__pack_greedy_set_base(g, height_of(p, goal), &founded), status, out);
    if (founded) {
        TN_TRY_GOTO(tn__pack_find_peaks(p), status, out);
        TN_TRY_GOTO(attempts(p, g, &w, goal, false, above, TN__COUNT(above)), status, out);
        TN_TRY_GOTO(repair_best(p, &w, goal, steps_left(p) / 4, 0), status, out);
        TN_TRY_GOTO(tn__pack_improve(p, g, height_of(p, goal), steps_left(p) / 2), status, out);
        tn__pack_greedy_clear_base(g);
    }
    static const tn__pack_attempt all[] = {{TN__BY_SIZE, TN__GAP_LOWEST},
                                           {TN__BY_AREA, TN__GAP_LOWEST},
                                           {TN__BY_CROWD_SPAN, TN__GAP_LOWEST},
                                           {TN__BY_SIZE_SPAN, TN__GAP_TIGHTEST},
                                           {TN__BY_CROWD_AREA, TN__GAP_LOWEST},
                                           {TN__BY_SPAN, TN__GAP_LOWEST},
                                           {TN__BY_ROUGH_CROWD_SPAN, TN__GAP_LOWEST}};
    /* Where thousands of items are live together, these two are often good, and few attempts fit the budget. */
    static const tn__pack_attempt crowded[] = {{TN__BY_CROWD_SPAN, TN__GAP_TIGHTEST}, {TN__BY_SIZE, TN__GAP_LOWEST}};
    if (p->crowded) {
        TN_TRY_GOTO(tn__pack_find_peaks(p), status, out);
        TN_TRY_GOTO(attempts(p, g, &w, goal, false, crowded, TN__COUNT(crowded)), status, out);
    }
    TN_TRY_GOTO(attempts(p, g, &w, goal, false, all, 2), status, out);
    if (satisfied(p, goal) || tn__pack_stopped(&p->clock)) goto out;
    if (plain) TN_TRY_GOTO(online(p, &w, false, TN__TIES_LONGEST), status, out);
    TN_TRY_GOTO(tn__pack_find_peaks(p), status, out);
    TN_TRY_GOTO(attempts(p, g, &w, goal, false, all + 2, TN__COUNT(all) - 2), status, out);
    for (int a = 1; a < 4 && plain && !satisfied(p, goal) && !tn__pack_stopped(&p->clock); a++)
        TN_TRY_GOTO(online(p, &w, a & 1, a & 2 ? TN__TIES_LARGEST : TN__TIES_AS_GIVEN), status, out);
out:
    workspace_free(&w);
    return status;
}

/* All common orders with both rules, and ties in order of start or as given, as far as they are not tried. Then no
 * greedy packing in such an order is smaller, unless the budget ends before. */
static tn_status try_all_orders(tn__pack_problem *p, tn__pack_greedy *g, workspace *w, uint64_t goal) {
    static const tn__pack_order_by orders[] = {TN__BY_CROWD_SIZE_GIVEN,
                                               TN__BY_SIZE_GIVEN,
                                               TN__BY_LIFE_AREA_GIVEN,
                                               TN__BY_LIFE_SIZE_GIVEN,
                                               TN__BY_CROWD_LIFE_GIVEN,
                                               TN__BY_SIZE_LIFE_GIVEN,
                                               TN__BY_LIFE_GIVEN,
                                               TN__BY_START,
                                               TN__BY_END_GIVEN,
                                               TN__BY_SIZE,
                                               TN__BY_LIFE_AREA,
                                               TN__BY_SIZE_LIFE,
                                               TN__BY_CROWD_LIFE,
                                               TN__BY_CROWD_SIZE,
                                               TN__BY_CROWD_GIVEN,
                                               TN__BY_LIFE_SIZE,
                                               TN__BY_LIFE,
                                               TN__BY_RIVALS_SIZE,
                                               TN__BY_RIVALS_GIVEN,
                                               TN__BY_START_SIZE,
                                               TN__BY_START_LIFE,
                                               TN__BY_END,
                                               TN__BY_EARLY_END,
                                               TN__BY_LATE_START};
    for (size_t a = 0; a < 2 * TN__COUNT(orders) && !satisfied(p, goal) && !tn__pack_stopped(&p->clock); a++) {
        tn__pack_attempt next = {orders[a / 2], a % 2};
        /* Crowded problems were divided by size before, which is another order. */
        if (p->crowded || p->reached[next.by][next.rule] == TN__NOWHERE)
            TN_TRY(greedy(p, g, w, height_of(p, goal), next, false, false));
    }
    return TN_OK;
}

/* The orders that are often good, each followed by a repair. */
static tn_status try_good_orders(tn__pack_problem *p, tn__pack_greedy *g, workspace *w, uint64_t goal) {
    static const tn__pack_attempt list[] = {
        {TN__BY_CROWD_SPAN, TN__GAP_TIGHTEST}, {TN__BY_SIZE_SPAN, TN__GAP_LOWEST},
        {TN__BY_CROWD_SPAN, TN__GAP_LOWEST},   {TN__BY_SIZE, TN__GAP_LOWEST},
        {TN__BY_SPAN, TN__GAP_TIGHTEST},       {TN__BY_LIFE_SIZE, TN__GAP_LOWEST},
        {TN__BY_CROWD_LIFE, TN__GAP_LOWEST},   {TN__BY_SIZE_LIFE, TN__GAP_LOWEST},
        {TN__BY_SPAN, TN__GAP_LOWEST},         {TN__BY_CROWD_SIZE, TN__GAP_LOWEST},
        {TN__BY_LIFE, TN__GAP_LOWEST},         {TN__BY_AREA, TN__GAP_LOWEST},
        {TN__BY_LIFE_AREA, TN__GAP_LOWEST},    {TN__BY_CROWD_AREA, TN__GAP_LOWEST},
        {TN__BY_SIZE, TN__GAP_TIGHTEST},       {TN__BY_LIFE_SIZE, TN__GAP_TIGHTEST},
        {TN__BY_END, TN__GAP_LOWEST},          {TN__BY_START, TN__GAP_TIGHTEST},
        {TN__BY_START, TN__GAP_LOWEST}};
    return attempts(p, g, w, goal, true, list, TN__COUNT(list));
}

/* Where thousands of items are live together an order takes a large part of the budget, so that repairs come first.
 */
static tn_status try_orders(tn__pack_problem *p, tn__pack_greedy *g, uint64_t goal) {
    workspace w;
    bool slow = p->crowded && p->n > SLOW_FROM;
    tn_status status = TN_E_NOMEM;
    if (!workspace_make(&w, p->n)) goto out;
    TN_TRY_GOTO(tn__pack_find_peaks(p), status, out);
    TN_TRY_GOTO(repair_best(p, &w, goal, steps_left(p) / 2, 0), status, out);
    if (!slow) TN_TRY_GOTO(try_all_orders(p, g, &w, goal), status, out);
    TN_TRY_GOTO(repair_best(p, &w, goal, steps_left(p) / 4, 1), status, out);
    TN_TRY_GOTO(try_good_orders(p, g, &w, goal), status, out);
    if (slow) TN_TRY_GOTO(try_all_orders(p, g, &w, goal), status, out);
    TN_TRY_GOTO(repair_best(p, &w, goal, steps_left(p) / 2, 1), status, out);
out:
    workspace_free(&w);
    return status;
}

/* ---- The result ---- */

static tn_status answer(const tn__pack_problem *p, const tn_pack_item *items, size_t count, tn_pack_result *r) {
    const tn__pack_layout *layout = p->layout;
    r->count = count;
    r->offsets = tn_malloc(count * sizeof *r->offsets);
    r->chunks = tn_malloc(count * sizeof *r->chunks);
    r->chunk_count = count > 0;
    for (uint32_t i = 0; i < p->n; i++)
        r->chunk_count = TN__MAX(r->chunk_count, tn__pack_chunk(p, tn__pack_position(p, p->best[i])) + (size_t)1);
    r->chunk_sizes = tn_calloc(r->chunk_count, sizeof *r->chunk_sizes);
    if (!r->offsets || !r->chunks || !r->chunk_sizes) return TN_E_NOMEM;
    /* Items with an empty size or lifetime conflict with nothing. */
    for (size_t i = 0; i < count; i++) {
        r->offsets[i] = items[i].fixed ? items[i].offset : 0;
        r->chunks[i] = items[i].fixed ? items[i].chunk : 0;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t chunk = tn__pack_chunk(p, tn__pack_position(p, p->best[i]));
        size_t offset = tn__pack_offset(p, p->best[i]);
        r->offsets[p->id[i]] = offset;
        r->chunks[p->id[i]] = chunk;
        r->chunk_sizes[chunk] = TN__MAX(r->chunk_sizes[chunk], offset + p->size[i]);
    }
    for (size_t c = 0; c < r->chunk_count; c++) r->size += r->chunk_sizes[c];
    r->reserved = r->size;
    for (uint32_t b = 0; layout && b < layout->count; b++) {
        size_t used = layout->chunk[b] < r->chunk_count ? r->chunk_sizes[layout->chunk[b]] : 0;
        r->reserved += TN__MAX(used, layout->bin[b]) - used;
    }
    return TN_OK;
}

/* The budget of an effort: its default or the caller's, whichever is less; for the last effort the caller's, if any,
 * or none if there is a time limit. */
static uint64_t budget_of(const tn__pack_problem *p, const tn_pack_params *params, int effort) {
    uint64_t per_item = p->crowded ? fast_per_crowded_item : fast_per_item;
    const uint64_t own[] = {fast_base + per_item * p->n, TN__MAX(balanced_steps, balanced_per_item * p->n),
                            exact_steps};
    bool last = effort == (int)params->effort;
    if (last && params->time_limit > 0 && !params->max_steps) return UINT64_MAX;
    return params->max_steps && (last || params->max_steps < own[effort]) ? params->max_steps : own[effort];
}

/* Local improvement with a share of the remaining steps: a small one if a search follows. The fast effort has already
 * done the part with long-lived items placed first. */
static tn_status improve(tn__pack_problem *p, tn__pack_greedy *g, uint64_t height, int effort) {
    uint64_t begun = p->clock.steps, left = p->clock.limit - TN__MIN(p->clock.limit, begun);
    uint64_t share = left / 8 * (effort == TN_PACK_FAST || p->n > TN__PACK_MAX_SEARCHED ? 5 : 2);
    if (effort > TN_PACK_FAST) {
        bool founded;
        TN_TRY(tn__pack_greedy_set_base(g, height, &founded));
        if (founded) TN_TRY(tn__pack_improve(p, g, height, left / 8 * 3));
        tn__pack_greedy_clear_base(g);
    }
    return tn__pack_improve(p, g, height, share - TN__MIN(p->clock.steps - begun, share));
}

tn_status tn__pack_solve(tn__pack_problem *p, const tn_pack_params *params) {
    /* With a capacity, any packing within it suffices; otherwise only one at the lower bound. */
    const tn__pack_layout *layout = p->layout;
    uint64_t goal = params->capacity ? params->capacity : p->lower_bound;
    if (params->capacity && p->lower_bound > params->capacity) return TN_E_INFEASIBLE;
    if (layout && layout->single) goal = TN__MAX(goal, layout->bin[0]) + layout->total - layout->bin[0];
    if (layout && !layout->single) goal = TN__MAX(goal, layout->total);
    tn__pack_greedy *g;
    TN_TRY(tn__pack_greedy_new(p, &g));
    p->clock.limit = budget_of(p, params, TN_PACK_FAST);
    tn_status status = pack_fast(p, g, goal);
    /* Each effort includes the ones below, so that it is never worse. Small problems may use steps that the fast
     * effort has left over. */
    for (int effort = TN_PACK_FAST; effort <= (int)params->effort && status == TN_OK && !satisfied(p, goal);
         effort++) {
        p->clock.limit = budget_of(p, params, effort);
        if (effort == TN_PACK_BALANCED) TN_TRY_GOTO(try_orders(p, g, goal), status, out);
        if (satisfied(p, goal)) break;
        if (effort < TN_PACK_EXACT) TN_TRY_GOTO(improve(p, g, height_of(p, goal), effort), status, out);
        /* The search of the exact effort begins like that of the balanced one. */
        bool later = effort == TN_PACK_BALANCED && params->effort == TN_PACK_EXACT;
        if (!satisfied(p, goal) && !later)
            status = tn__pack_lower(p, height_of(p, goal), params->capacity != 0,
                                    effort == TN_PACK_FAST ? p->clock.limit / 8 * 3 : UINT64_MAX);
    }
out:
    tn__pack_greedy_free(g);
    if (status == TN_OK && params->capacity && !satisfied(p, params->capacity))
        status = p->lower_bound > params->capacity ? TN_E_INFEASIBLE : TN_E_UNDECIDED;
    return status;
}

tn_status tn__pack_run(const tn_pack_item *items, size_t count, const tn_pack_params *params,
                       const tn__pack_layout *layout, uint64_t begun, tn_pack_result *result) {
    memset(result, 0, sizeof *result);
    tn__pack_problem p;
    TN_TRY(tn__pack_problem_make(items, count, params, layout, &p));
    p.clock = (tn__pack_clock){.limit = UINT64_MAX, .cancel = params->cancel, .user = params->user};
    if (params->time_limit > 0 && params->time_limit < 1e9)
        p.clock.deadline = begun + (uint64_t)(params->time_limit * 1e9) + 1;

    tn_status status = tn__pack_solve(&p, params);
    if (p.clock.cancelled) status = tn_fail(TN_E_ABORTED, "packing of %zu items was cancelled", count);
    result->live_peak = p.live_peak;
    result->lower_bound = p.lower_bound;
    tn_status made = TN_OK;
    if (status == TN_E_INFEASIBLE) {
        made = tn__pack_conflict(&p, params->capacity, &result->conflict, &result->conflict_count);
        if (made == TN_OK)
            tn_fail(status, "%zu items do not fit into %zu bytes together: at least %zu are needed",
                    result->conflict_count, params->capacity, result->lower_bound);
    } else if (status == TN_OK || status == TN_E_UNDECIDED) {
        made = answer(&p, items, count, result);
        if (made == TN_OK && status == TN_E_UNDECIDED)
            tn_fail(status,
                    "found no packing within %zu bytes, and no proof that there is none; the best one has %zu",
                    params->capacity, result->size);
    }
    if (made != TN_OK) status = made;
    uint64_t least = TN__MAX(p.lower_bound, layout ? layout->total : 0);
    result->ratio = result->lower_bound ? (double)result->size / (double)result->lower_bound : 1;
    result->optimal = result->offsets && result->reserved == least;
    result->steps = p.clock.steps;
    tn__pack_problem_free(&p);
    if (status != TN_OK && status != TN_E_INFEASIBLE && status != TN_E_UNDECIDED) tn_pack_result_free(result);
    return status;
}

tn_status tn_pack(const tn_pack_item *items, size_t count, const tn_pack_params *params, tn_pack_result *result) {
    if (!result || (!items && count)) return tn_fail(TN_E_INVALID, "tn_pack: NULL argument");
    memset(result, 0, sizeof *result);
    tn_pack_params chosen = params ? *params : tn_pack_params_default();
    if (chosen.effort < TN_PACK_FAST || chosen.effort > TN_PACK_EXACT)
        return tn_fail(TN_E_INVALID, "tn_pack: unknown effort %d", (int)chosen.effort);
    if (!(chosen.time_limit >= 0)) return tn_fail(TN_E_INVALID, "tn_pack: invalid time limit %g", chosen.time_limit);
    uint64_t begun = tn_time_ns();
    if (chosen.n_bins) return tn__pack_into_bins(items, count, &chosen, begun, result);
    return tn__pack_run(items, count, &chosen, NULL, begun, result);
}
