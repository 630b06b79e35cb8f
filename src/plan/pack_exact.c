/* Exact search: branch and bound over the items of one range.
 *
 * In every packing, items can be moved down until each one rests on another item or on address 0. Such a packing is
 * built from the bottom. Item b can be placed next, at the lowest address above all placed items in conflict with it,
 * if no unplaced item in conflict with it would still fit entirely below. Branching: take an item u whose possible
 * end is as low as any among its conflicts. Unless an item in conflict with u starts below that end, u can be placed
 * immediately; so either u or one of those few items is next. If item b was tried at its lowest address without a
 * solution, it must rest on an item that is not placed yet. It is postponed, and the earliest end among its unplaced
 * conflicts becomes a new lower bound for its address.
 *
 * Bounds: at each moment, the unplaced live items are jobs for a single machine, each with an earliest start (its
 * lowest address). If an item cannot be below a set of others without pushing the last of them above the limit, at
 * least one of them is below it.
 *
 * The search restarts often, with another order of preference, and counts failures per moment. Branching first at
 * moments with few choices and many failures leads to the difficult part. Refuted states are kept in a table across
 * restarts. */
#include "plan/pack_search.h"

#include "base/checked.h"
#include "base/hash.h"

static int64_t lowest(const tn__pack_search *s, int32_t u) { return TN__MAX(s->top[u], s->low[u]); }
static bool postponed(const tn__pack_search *s, int32_t u) { return s->low[u] > s->top[u]; }

/* The lowest address at or above `at` that alignment, chunks and fixed items allow. */
static int64_t settle(const tn__pack_search *s, int32_t u, int64_t at) {
    at = (int64_t)tn__pack_settle(s->problem, s->item[u], (uint64_t)at);
    for (int32_t w = s->wall_begin[u]; w < s->wall_begin[u + 1]; w++)
        if (at < s->wall_high[w] && s->wall_low[w] < at + s->size[u])
            at = (int64_t)tn__pack_settle(s->problem, s->item[u], (uint64_t)s->wall_high[w]);
    return at;
}

/* ---- Undo ---- */

static bool push_change(tn__pack_search *s, change c) {
    if (s->n_changes == s->cap_changes) {
        size_t capacity = 2 * s->cap_changes + 1024;
        change *grown = tn_realloc(s->changes, capacity * sizeof *grown);
        if (!grown) {
            s->no_memory = true;
            return false;
        }
        s->changes = grown;
        s->cap_changes = capacity;
    }
    s->changes[s->n_changes++] = c;
    return true;
}

static void clear_queue(tn__pack_search *s) {
    while (s->queue_length) {
        int32_t last = s->queue_head + --s->queue_length;
        s->queued[s->queue[last < s->moments ? last : last - s->moments]] = false;
    }
    while (s->n_items) s->item_queued[s->items[--s->n_items]] = false;
}

static void undo_changes(tn__pack_search *s, size_t n_changes, int32_t n_done) {
    while (s->n_changes > n_changes) {
        change c = s->changes[--s->n_changes];
        if (c.what >= 0) {
            s->top[c.what] = c.top;
            s->low[c.what] = c.low;
        } else {
            s->soonest[~c.what] = c.top;
            s->second[~c.what] = c.low;
            s->soonest_item[~c.what] = c.which;
        }
    }
    while (s->n_done > n_done) s->placed[s->done[--s->n_done]] = false;
    clear_queue(s);
}

/* ---- Inference ---- */

static void queue_moments_of(tn__pack_search *s, int32_t u) {
    for (int32_t m = s->first[u]; m < s->last[u]; m++) {
        if (s->queued[m]) continue;
        s->queued[m] = true;
        int32_t end = s->queue_head + s->queue_length++;
        s->queue[end < s->moments ? end : end - s->moments] = m;
    }
}

/* Queues a postponed item whose possible supports changed at moment m. */
static void queue_item(tn__pack_search *s, int32_t u, int32_t m) {
    if (s->item_queued[u]) return;
    s->item_queued[u] = true;
    s->cause[u] = m;
    s->items[s->n_items++] = u;
}

/* False if the item does not fit at that height, or without memory. */
static bool raise_top(tn__pack_search *s, int32_t u, int64_t to) {
    if (!push_change(s, (change){s->top[u], s->low[u], u, 0})) return false;
    s->top[u] = to;
    queue_moments_of(s, u);
    return lowest(s, u) + s->size[u] <= s->height;
}
static bool raise_low(tn__pack_search *s, int32_t u, int64_t to) {
    if (!push_change(s, (change){s->top[u], s->low[u], u, 0})) return false;
    s->low[u] = to;
    queue_moments_of(s, u);
    queue_item(s, u, s->first[u]);
    return to + s->size[u] <= s->height;
}

/* The earliest end among the unplaced items in conflict with u. */
static int64_t neighbour_end(const tn__pack_search *s, int32_t u) {
    int64_t end = INT64_MAX;
    for (int32_t m = s->first[u]; m < s->last[u]; m++) {
        int64_t here = s->soonest_item[m] == u ? s->second[m] : s->soonest[m];
        end = TN__MIN(end, here);
    }
    return end;
}

static void blame(tn__pack_search *s, int32_t m) { s->weight[m] += s->blame; }

/* Deduces from all unplaced items of a moment, `count` in s->live of `sum` bytes. */
static bool deduce_order(tn__pack_search *s, int32_t m, int32_t count, int64_t sum) {
    item_end *low = s->lows, *late = s->endings;
    s->problem->clock.steps += 3 * (uint64_t)count;
    for (int32_t i = 0; i < count; i++) {
        item_end x = {lowest(s, s->live[i]), s->live[i]};
        int32_t j = i;
        for (; j && low[j - 1].end < x.end; j--) low[j] = low[j - 1];
        low[j] = x;
    }
    /* Unplaced items come first and stay sorted: the next time few of them have to be moved. */
    int32_t *of = s->at_moment + s->at_begin[m], length = s->at_begin[m + 1] - s->at_begin[m], kept = length;
    for (int32_t k = length - 1; k >= 0; k--)
        if (s->placed[of[k]]) of[--kept] = of[k];
    for (int32_t i = 0; i < count; i++) of[i] = low[i].item;
    /* Single-machine bound: all items with a lowest address of at least x must fit above x. */
    int64_t above = 0;
    for (int32_t i = 0; i < count; i++) {
        above += s->padded[low[i].item];
        if (low[i].end + above > s->limit) {
            blame(s, m);
            return false;
        }
    }
    /* If u cannot be below all of the items that end latest, one of them is below u. */
    for (int32_t i = 0; i < count; i++) {
        item_end x = {low[i].end + s->size[low[i].item], low[i].item};
        int32_t j = i;
        for (; j && late[j - 1].end < x.end; j--) late[j] = late[j - 1];
        late[j] = x;
    }
    int64_t *sums = s->sums; /* of the first items of `late` */
    above = 0;
    for (int32_t k = 0; k < count; k++) {
        sums[k] = above += s->padded[late[k].item];
        s->rank_late[late[k].item] = k;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t u = low[i].item, own = s->rank_late[u], from = 0, to = count;
        int64_t room = s->limit - low[i].end - s->padded[u];
        if (sum - s->padded[u] <= room) break; /* the remaining items start lower */
        /* The first of `late` that does not fit above u together with those before it, u itself left out. */
        while (from < to) {
            int32_t middle = (from + to) / 2;
            if (sums[middle] - (middle >= own ? s->padded[u] : 0) > room)
                to = middle;
            else
                from = middle + 1;
        }
        s->problem->clock.steps += 3;
        if (from == count || late[from].end <= low[i].end) continue;
        if (!raise_low(s, u, settle(s, u, late[from].end))) {
            blame(s, m);
            return false;
        }
    }
    return true;
}

/* Updates the record of one moment and optionally deduces new bounds from it. False: no solution in this branch. */
static bool update_moment(tn__pack_search *s, int32_t m, bool deduce) {
    int32_t count = 0, *live = s->live;
    int64_t sum = 0, highest = 0, soonest = INT64_MAX, second = INT64_MAX;
    int32_t soonest_item = NO_ITEM;
    bool any_postponed = false;
    for (int32_t k = s->at_begin[m]; k < s->at_begin[m + 1]; k++) {
        int32_t u = s->at_moment[k];
        if (s->placed[u]) continue;
        live[count++] = u;
        int64_t low = lowest(s, u), end = low + s->size[u];
        sum += s->padded[u];
        highest = TN__MAX(highest, low);
        any_postponed |= postponed(s, u);
        if (end < soonest) {
            second = soonest;
            soonest = end;
            soonest_item = u;
        } else if (end < second) {
            second = end;
        }
    }
    s->problem->clock.steps += (uint64_t)(s->at_begin[m + 1] - s->at_begin[m]) / 2 + 2;
    bool changed = soonest != s->soonest[m] || second != s->second[m] || soonest_item != s->soonest_item[m];
    if (changed) {
        if (!push_change(s, (change){s->soonest[m], s->second[m], ~m, s->soonest_item[m]})) return false;
        s->soonest[m] = soonest;
        s->second[m] = second;
        s->soonest_item[m] = soonest_item;
    }
    if (!deduce) return true;
    for (int32_t k = 0; k < count && any_postponed && changed; k++)
        if (postponed(s, live[k])) queue_item(s, live[k], m);
    return highest + sum <= s->limit || deduce_order(s, m, count, sum);
}

/* Raises a postponed item to the earliest end of an item that it may rest on. */
static bool update_item(tn__pack_search *s, int32_t u) {
    if (s->placed[u] || !postponed(s, u)) return true;
    int64_t end = neighbour_end(s, u);
    s->problem->clock.steps += 1 + (uint64_t)(s->last[u] - s->first[u]) / 4;
    if (end == INT64_MAX) return false;
    end = settle(s, u, end);
    if (end <= s->low[u] || raise_low(s, u, end)) return true;
    blame(s, s->cause[u]);
    return false;
}

static bool infer(tn__pack_search *s) {
    /* Bounds may rise in a very long series of small steps; beyond this budget only the records are updated. */
    int64_t budget = 2 * (int64_t)s->moments;
    bool open = true;
    for (;;) {
        /* First in, first out: a moment is seldom updated before most of its changes are known. */
        while (s->queue_length && open) {
            int32_t m = s->queue[s->queue_head];
            s->queue_head = s->queue_head + 1 < s->moments ? s->queue_head + 1 : 0;
            s->queue_length--;
            s->queued[m] = false;
            open = update_moment(s, m, budget-- > 0);
        }
        if (!open || s->n_items == 0 || budget <= 0) break;
        int32_t u = s->items[--s->n_items];
        s->item_queued[u] = false;
        open = update_item(s, u);
        if (!open) break;
    }
    while (s->n_items) s->item_queued[s->items[--s->n_items]] = false;
    return open;
}

/* ---- Branching ---- */

/* Whether u can be placed next: no unplaced conflict fits entirely below it, and no unplaced twin precedes it. */
static bool may_start(const tn__pack_search *s, int32_t u, int64_t neighbours_end) {
    return !postponed(s, u) && s->top[u] < neighbours_end;
}
static bool is_second_twin(const tn__pack_search *s, int32_t u) {
    return s->twin[u] != NO_ITEM && !s->placed[s->twin[u]];
}

/* With a guide: items at their address in the guide first, those that were higher there last. Then the lowest, then
 * the order of preference. */
static bool preferred(const tn__pack_search *s, int32_t v, int32_t w) {
    if (s->guided) {
        int class_v = s->guide[v] < 0 ? 1 : s->guide[v] <= s->top[v] ? 0 : 2;
        int class_w = s->guide[w] < 0 ? 1 : s->guide[w] <= s->top[w] ? 0 : 2;
        if (class_v != class_w) return class_v < class_w;
    }
    return s->top[v] < s->top[w] || (s->top[v] == s->top[w] && s->preference[v] < s->preference[w]);
}

/* The next item to try in `list`, or NO_ITEM if some item has no possible support left. */
static int32_t choose_item(tn__pack_search *s, const int32_t *list, int32_t count) {
    uint64_t best_choices = 1, best_weight = 0;
    int32_t best = NO_ITEM;
    uint64_t work = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t u = list[i];
        int64_t end = s->top[u] + s->size[u];
        work += 1 + (uint64_t)(s->last[u] - s->first[u]) / 4;
        if (end > neighbour_end(s, u)) continue;
        uint64_t choices = postponed(s, u) ? 0 : 1;
        bool closed = true;
        for (int32_t k = s->conflicts_begin[u]; closed && k < s->conflicts_begin[u + 1]; k++) {
            int32_t v = s->conflicts[k];
            if (s->placed[v] || lowest(s, v) >= end) continue;
            /* An item not in conflict with u may be placed below v first; then u does not determine the next item. */
            closed = postponed(s, v) ? neighbour_end(s, v) >= end : may_start(s, v, neighbour_end(s, v));
            if (postponed(s, v)) continue;
            choices += !is_second_twin(s, v);
        }
        work += (uint64_t)(s->conflicts_begin[u + 1] - s->conflicts_begin[u]);
        if (!closed) continue;
        if (choices == 0) {
            best = NO_ITEM;
            goto out;
        }
        uint64_t weight = 1;
        for (int32_t m = s->first[u]; m < s->last[u]; m++) weight += s->weight[m];
        if (best == NO_ITEM || choices * best_weight < best_choices * weight) {
            best = u;
            best_choices = choices;
            best_weight = weight;
        }
    }
    if (best == NO_ITEM) goto out;
    /* Of the items that can be placed next, the lowest; among those, the preferred one. */
    int64_t end = s->top[best] + s->size[best];
    int32_t next = NO_ITEM;
    for (int32_t k = s->conflicts_begin[best] - 1; k < s->conflicts_begin[best + 1]; k++) {
        int32_t v = k < s->conflicts_begin[best] ? best : s->conflicts[k];
        if (s->placed[v] || postponed(s, v) || s->top[v] >= end || is_second_twin(s, v)) continue;
        if (next == NO_ITEM || preferred(s, v, next)) next = v;
    }
    best = next;
out:
    s->problem->clock.steps += work;
    return best;
}

static bool commit_item(tn__pack_search *s, int32_t b) {
    s->at[b] = s->top[b];
    s->placed[b] = true;
    s->done[s->n_done++] = b;
    queue_moments_of(s, b);
    int64_t end = s->at[b] + s->size[b];
    for (int32_t k = s->conflicts_begin[b]; k < s->conflicts_begin[b + 1]; k++) {
        int32_t v = s->conflicts[k];
        if (!s->placed[v] && s->top[v] < end && !raise_top(s, v, settle(s, v, end))) return false;
    }
    s->problem->clock.steps += (uint64_t)(s->conflicts_begin[b + 1] - s->conflicts_begin[b]) / 2;
    return infer(s);
}

typedef enum outcome { SOLVED, REFUTED, STOPPED } outcome;
static outcome solve(tn__pack_search *s, size_t list, int32_t count);

/* Solves the parts of a list that share no moments, one after another. */
static outcome solve_parts(tn__pack_search *s, size_t list, int32_t count) {
    for (int32_t i = 0; i < count;) {
        int32_t from = i, end = 0;
        for (; i < count && (i == from || s->first[s->lists[list + i]] < end); i++)
            end = TN__MAX(end, s->last[s->lists[list + i]]);
        outcome o = solve(s, list + from, i - from);
        if (o != SOLVED) return o;
    }
    return SOLVED;
}

static bool push_rest(tn__pack_search *s, size_t list, int32_t count, int32_t without) {
    if (s->n_lists + count > s->cap_lists) {
        size_t capacity = 2 * s->cap_lists + (size_t)count;
        int32_t *grown = tn_realloc(s->lists, capacity * sizeof *grown);
        if (!grown) {
            s->no_memory = true;
            return false;
        }
        s->lists = grown;
        s->cap_lists = capacity;
    }
    for (int32_t i = 0; i < count; i++)
        if (s->lists[list + i] != without) s->lists[s->n_lists++] = s->lists[list + i];
    return true;
}

static outcome solve(tn__pack_search *s, size_t list, int32_t count) {
    if (count == 0) return SOLVED;
    uint64_t h1 = 0, h2 = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t u = s->lists[list + i];
        uint64_t x = tn__hash_combine((uint64_t)u, (uint64_t)s->top[u]);
        h1 += x;
        h2 ^= tn__mix64(x ^ 0x5851f42d4c957f2du);
    }
    uint64_t *refuted = s->refuted[h1 >> (64 - s->refuted_bits)];
    if (refuted[0] == h1 && refuted[1] == h2) return REFUTED;

    size_t n_changes = s->n_changes, n_lists = s->n_lists;
    outcome result = REFUTED;
    for (;;) {
        s->problem->clock.steps += (uint64_t)count / 2;
        if (++s->nodes > s->node_limit || tn__pack_stopped(&s->problem->clock)) {
            result = STOPPED;
            break;
        }
        int32_t b = choose_item(s, s->lists + list, count);
        if (b == NO_ITEM) break;
        size_t changes_before = s->n_changes;
        int32_t done_before = s->n_done;
        outcome o = REFUTED;
        if (commit_item(s, b)) {
            if (push_rest(s, list, count, b)) o = solve_parts(s, n_lists, count - 1);
            s->n_lists = n_lists;
        }
        if (s->no_memory) o = STOPPED;
        if (o == SOLVED) return SOLVED;
        undo_changes(s, changes_before, done_before);
        if (o == STOPPED) {
            result = STOPPED;
            break;
        }
        /* No solution with b at its lowest address: it must rest on an unplaced item. */
        int64_t support = neighbour_end(s, b);
        if (support == INT64_MAX || !raise_low(s, b, settle(s, b, support)) || !infer(s)) {
            if (s->no_memory) result = STOPPED;
            break;
        }
    }
    undo_changes(s, n_changes, s->n_done);
    if (result == REFUTED) {
        refuted[0] = h1;
        refuted[1] = h2;
    }
    return result;
}

/* Recent failures count more: each run's failures weigh 2 % more than those of the run before. */
static void raise_blame(tn__pack_search *s) {
    s->blame += s->blame / 50;
    if (s->blame < (uint64_t)1 << 40) return;
    s->blame >>= 20;
    for (int32_t m = 0; m < s->moments; m++) s->weight[m] >>= 20;
}

void tn__pack_search_guide(tn__pack_search *s, const uint64_t *guide, unsigned order) {
    s->has_guide = guide != NULL;
    for (int32_t u = 0; guide && u < s->n; u++)
        s->guide[u] = guide[s->item[u]] == TN__NOWHERE ? -1 : (int64_t)guide[s->item[u]];
    /* Runs of even number follow the guide. */
    s->restarts += s->restarts % 2;
    while (guide && s->restarts % ORDERINGS != order % ORDERINGS) s->restarts += 2;
}

void tn__pack_search_failures(const tn__pack_search *s, uint32_t *from, uint32_t *to) {
    uint64_t sum = 0, below = 0;
    for (int32_t m = 0; m < s->moments; m++) sum += s->weight[m] >> 10;
    *from = s->origin;
    *to = s->origin + (uint32_t)s->moments;
    for (int32_t m = 0; m < s->moments; m++) {
        if (below <= sum / 10) *from = s->origin + (uint32_t)m;
        below += s->weight[m] >> 10;
        if (below < sum - sum / 10) *to = s->origin + (uint32_t)m + 2;
    }
    *to = TN__MIN(*to, s->origin + (uint32_t)s->moments);
    *to = TN__MAX(*to, *from + 1);
}

tn__search_answer tn__pack_search_run(tn__pack_search *s, uint64_t height, uint64_t steps, uint64_t *at) {
    if (height > INT64_MAX / 4) height = INT64_MAX / 4;
    if ((int64_t)height > s->refuted_height) {
        memset(s->refuted, 0, sizeof *s->refuted << s->refuted_bits);
        s->problem->clock.steps += (uint64_t)1 << s->refuted_bits >> 4;
    }
    s->refuted_height = s->height = (int64_t)height;
    s->limit = s->height + (int64_t)s->problem->max_pad;
    tn__pack_clock *clock = &s->problem->clock;
    uint64_t limit = clock->limit;
    clock->limit = TN__MIN(limit, steps > UINT64_MAX - clock->steps ? UINT64_MAX : clock->steps + steps);
    outcome o = STOPPED;
    while (o == STOPPED && !s->no_memory && !tn__pack_stopped(clock)) {
        s->preference = s->rank[s->restarts % ORDERINGS];
        /* The length of runs grows slowly, so that all orders are tried early and failure counts build up. */
        s->node_limit = FIRST_RUN + FIRST_RUN * s->restarts / 16;
        s->nodes = 0;
        s->guided = s->has_guide && s->restarts % 2 == 0;
        s->restarts++;
        raise_blame(s);
        s->n_changes = s->n_lists = 0;
        s->n_done = s->queue_head = 0;
        bool open = true;
        for (int32_t u = 0; u < s->n; u++) {
            s->placed[u] = false;
            s->low[u] = 0;
            s->top[u] = settle(s, u, 0);
            open = open && s->top[u] + s->size[u] <= s->height;
            s->lists[s->n_lists++] = u;
        }
        for (int32_t m = 0; m < s->moments; m++) {
            s->soonest[m] = s->second[m] = INT64_MAX;
            s->soonest_item[m] = NO_ITEM;
            s->queue[s->queue_length++] = m;
            s->queued[m] = true;
        }
        open = open && infer(s);
        clear_queue(s);
        o = open ? solve_parts(s, 0, s->n) : s->no_memory ? STOPPED : REFUTED;
    }
    clock->limit = limit;
    if (o == SOLVED)
        for (int32_t u = 0; u < s->n; u++) at[s->item[u]] = (uint64_t)s->at[u];
    return o == SOLVED ? TN__SEARCH_FOUND : o == REFUTED && s->complete ? TN__SEARCH_NONE : TN__SEARCH_UNDECIDED;
}
