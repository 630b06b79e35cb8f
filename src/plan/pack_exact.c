/* Exact search: branch and bound over the items of one range.
 *
 * Every placement can be pushed down until each item rests on another one or on the ground. Such a placement is built
 * from the bottom: item b may come next, at the lowest address above all placed items in conflict with it, if no
 * unplaced item in conflict with it would still fit entirely below. Take an item u that could end as early as any in
 * its neighbourhood: unless something in conflict with u starts below that end, u could be put there at once, so one
 * of those few items (or u) comes next. That is the branching. When an item was tried at its lowest address and no
 * solution followed, it must rest on something that is not placed yet: it is postponed, and its address has a new
 * lower bound, the earliest end among its unplaced neighbours.
 *
 * Bounds: at each moment the unplaced items form a queue for one machine, each with an earliest address. If an item
 * could not come before a set of others without pushing the last of them above the limit, at least one of them lies
 * below it.
 *
 * The search starts over often, with another order of preference, and remembers which moments made it fail: branching
 * where few choices are left at moments that failed often finds the difficult part first. States that were refuted
 * are kept in a table across restarts. */
#include "plan/pack_internal.h"

#include "base/checked.h"
#include "base/hash.h"

enum {
    MOST_CONFLICTS = 1 << 23, /* pairs beyond which a search would not get anywhere */
    ORDERINGS = 5,
    FIRST_RUN = 500, /* nodes until the first restart */
    NO_ITEM = -1,
};

typedef struct change {
    int64_t top, low; /* as they were; for a moment: its two earliest ends */
    int32_t what;     /* item, or ~moment */
    int32_t which;    /* of a moment: the item with the earliest end */
} change;

typedef struct ending {
    int64_t end;
    int32_t item;
} ending;

struct tn__pack_search {
    tn__pack_problem *problem;
    int32_t n, moments;
    uint32_t *item;        /* the problem's items */
    int32_t *first, *last; /* moments, from 0 */
    int64_t *size, *padded;
    int32_t *twin;                 /* an earlier item that is the same in all respects, or NO_ITEM */
    int32_t *near_begin, *near;    /* items in conflict, n + 1 and pairs */
    int32_t *at_begin, *at_moment; /* items live at a moment */
    int32_t *wall_begin;           /* fixed items in conflict with an item, by address */
    int64_t *wall_low, *wall_high;
    int32_t *rank[ORDERINGS]; /* lower is preferred */
    bool complete;            /* no walls, no chunks: exhaustion is a proof */

    /* The state of the search. */
    int64_t height, limit; /* the latter for sums of padded sizes */
    int64_t *top;          /* lowest address above all placed items in conflict */
    int64_t *low;          /* proven lower bound; above top: postponed */
    int64_t *at;
    bool *placed;
    int64_t *soonest, *second; /* per moment: earliest and second earliest end of unplaced items */
    int32_t *who;              /* per moment: whose is the earliest */
    int32_t *queue;            /* moments to look at again */
    bool *queued;
    int32_t queue_length;
    change *changes; /* to take back, a growing stack */
    size_t n_changes, cap_changes;
    int32_t *done; /* items in the order of their placement */
    int32_t n_done;
    int32_t *lists; /* stack of item lists, a growing one */
    size_t n_lists, cap_lists;
    int32_t *live;   /* scratch: items of one moment */
    ending *endings; /* scratch: the same by end */
    const int32_t *preference;
    bool no_memory;

    /* What is learnt. */
    uint64_t *weight;       /* per moment: failures seen there, later ones counting more */
    uint64_t blame;         /* what a failure counts now */
    uint64_t (*refuted)[2]; /* states without a solution, by hash */
    unsigned refuted_bits;
    int64_t refuted_height;
    uint64_t restarts;
    uint64_t nodes, node_limit;
};

static int64_t lowest(const tn__pack_search *s, int32_t u) { return TN__MAX(s->top[u], s->low[u]); }
static bool postponed(const tn__pack_search *s, int32_t u) { return s->low[u] > s->top[u]; }

/* The first address from `at` on that alignment, chunks and fixed items allow. */
static int64_t settle(const tn__pack_search *s, int32_t u, int64_t at) {
    at = (int64_t)tn__pack_settle(s->problem, s->item[u], (uint64_t)at);
    for (int32_t w = s->wall_begin[u]; w < s->wall_begin[u + 1]; w++)
        if (at < s->wall_high[w] && s->wall_low[w] < at + s->size[u])
            at = (int64_t)tn__pack_settle(s->problem, s->item[u], (uint64_t)s->wall_high[w]);
    return at;
}

/* ---- Taking back --------------------------------------------------------------------------------------------------
 */

static bool remember(tn__pack_search *s, change c) {
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

static void take_back(tn__pack_search *s, size_t n_changes, int32_t n_done) {
    while (s->n_changes > n_changes) {
        change c = s->changes[--s->n_changes];
        if (c.what >= 0) {
            s->top[c.what] = c.top;
            s->low[c.what] = c.low;
        } else {
            s->soonest[~c.what] = c.top;
            s->second[~c.what] = c.low;
            s->who[~c.what] = c.which;
        }
    }
    while (s->n_done > n_done) s->placed[s->done[--s->n_done]] = false;
    while (s->queue_length) s->queued[s->queue[--s->queue_length]] = false;
}

/* ---- Inference ----------------------------------------------------------------------------------------------------
 */

static void look_again(tn__pack_search *s, int32_t u) {
    for (int32_t m = s->first[u]; m < s->last[u]; m++) {
        if (s->queued[m]) continue;
        s->queued[m] = true;
        s->queue[s->queue_length++] = m;
    }
}

/* False when the item cannot be that high, or on lack of memory. */
static bool raise_top(tn__pack_search *s, int32_t u, int64_t to) {
    if (!remember(s, (change){s->top[u], s->low[u], u, 0})) return false;
    s->top[u] = to;
    look_again(s, u);
    return lowest(s, u) + s->size[u] <= s->height;
}
static bool raise_low(tn__pack_search *s, int32_t u, int64_t to) {
    if (!remember(s, (change){s->top[u], s->low[u], u, 0})) return false;
    s->low[u] = to;
    look_again(s, u);
    return to + s->size[u] <= s->height;
}

/* The earliest end among the unplaced items in conflict with u. */
static int64_t neighbour_end(const tn__pack_search *s, int32_t u) {
    int64_t end = INT64_MAX;
    for (int32_t m = s->first[u]; m < s->last[u]; m++) {
        int64_t here = s->who[m] == u ? s->second[m] : s->soonest[m];
        end = TN__MIN(end, here);
    }
    return end;
}

static void blame(tn__pack_search *s, int32_t m) { s->weight[m] += s->blame; }

/* Brings the record of one moment up to date and, if asked to, deduces what it implies. False: no solution from here.
 */
static bool look_at(tn__pack_search *s, int32_t m, bool deduce) {
    int32_t count = 0, *live = s->live;
    int64_t sum = 0, highest = 0, soonest = INT64_MAX, second = INT64_MAX;
    int32_t who = NO_ITEM;
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
            who = u;
        } else if (end < second) {
            second = end;
        }
    }
    s->problem->clock.steps += (uint64_t)(s->at_begin[m + 1] - s->at_begin[m]) / 2 + 2;
    if (soonest != s->soonest[m] || second != s->second[m] || who != s->who[m]) {
        if (!remember(s, (change){s->soonest[m], s->second[m], ~m, s->who[m]})) return false;
        s->soonest[m] = soonest;
        s->second[m] = second;
        s->who[m] = who;
    }
    if (!deduce) return true;
    if (any_postponed) {
        for (int32_t k = 0; k < count; k++) {
            int32_t u = live[k];
            if (!postponed(s, u)) continue;
            int64_t end = neighbour_end(s, u);
            if (end == INT64_MAX) return false;
            end = settle(s, u, end);
            if (end > s->low[u] && !raise_low(s, u, end)) {
                blame(s, m);
                return false;
            }
        }
    }
    if (highest + sum <= s->limit) return true;

    /* The queue of one machine: those from some address on must fit above it. */
    s->problem->clock.steps += 4 * (uint64_t)count;
    for (int32_t i = 1; i < count; i++) {
        int32_t u = live[i], j = i;
        int64_t low = lowest(s, u);
        for (; j && lowest(s, live[j - 1]) < low; j--) live[j] = live[j - 1];
        live[j] = u;
    }
    int64_t above = 0;
    for (int32_t i = 0; i < count; i++) {
        above += s->padded[live[i]];
        if (lowest(s, live[i]) + above > s->limit) {
            blame(s, m);
            return false;
        }
    }
    /* Not before: if u cannot lie below all of the items that end latest, one of them is below u. */
    ending *late = s->endings;
    for (int32_t i = 0; i < count; i++) {
        int64_t end = lowest(s, live[i]) + s->size[live[i]];
        int32_t j = i;
        for (; j && late[j - 1].end < end; j--) late[j] = late[j - 1];
        late[j] = (ending){end, live[i]};
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t u = live[i];
        int64_t room = s->limit - lowest(s, u) - s->padded[u];
        if (sum - s->padded[u] <= room) break; /* the others start lower still */
        int64_t bound = 0;
        for (int32_t k = 0; k < count; k++) {
            if (late[k].item == u) continue;
            room -= s->padded[late[k].item];
            if (room >= 0) continue;
            bound = late[k].end;
            break;
        }
        s->problem->clock.steps += (uint64_t)count / 4;
        if (bound <= lowest(s, u)) continue;
        bound = settle(s, u, bound);
        if (!raise_low(s, u, bound)) {
            blame(s, m);
            return false;
        }
    }
    return true;
}

static bool infer(tn__pack_search *s) {
    /* Bounds may creep upwards in small steps without end in sight; past some work only the records are updated. */
    for (int64_t budget = 16 * (int64_t)s->moments; s->queue_length; budget--) {
        int32_t m = s->queue[--s->queue_length];
        s->queued[m] = false;
        if (!look_at(s, m, budget > 0)) return false;
    }
    return true;
}

/* ---- Branching ----------------------------------------------------------------------------------------------------
 */

/* Whether u may come next: nothing unplaced fits entirely below it, and no twin waits before it. */
static bool may_start(const tn__pack_search *s, int32_t u, int64_t neighbours_end) {
    return !postponed(s, u) && s->top[u] < neighbours_end;
}
static bool is_second_twin(const tn__pack_search *s, int32_t u) {
    return s->twin[u] != NO_ITEM && !s->placed[s->twin[u]];
}

/* The next item to try among `list`, or NO_ITEM when some item can no longer be supported. */
static int32_t choose(tn__pack_search *s, const int32_t *list, int32_t count) {
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
        for (int32_t k = s->near_begin[u]; closed && k < s->near_begin[u + 1]; k++) {
            int32_t v = s->near[k];
            if (s->placed[v] || lowest(s, v) >= end) continue;
            /* Something that is not in conflict with u may come to lie below v first: then u does not tell what is
             * next. */
            closed = postponed(s, v) ? neighbour_end(s, v) >= end : may_start(s, v, neighbour_end(s, v));
            if (postponed(s, v)) continue;
            choices += !is_second_twin(s, v);
        }
        work += (uint64_t)(s->near_begin[u + 1] - s->near_begin[u]);
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
    /* Of the items that may come next, the lowest; among those, the preferred one. */
    int64_t end = s->top[best] + s->size[best];
    int32_t next = NO_ITEM;
    for (int32_t k = s->near_begin[best] - 1; k < s->near_begin[best + 1]; k++) {
        int32_t v = k < s->near_begin[best] ? best : s->near[k];
        if (s->placed[v] || postponed(s, v) || s->top[v] >= end || is_second_twin(s, v)) continue;
        if (next == NO_ITEM || s->top[v] < s->top[next] ||
            (s->top[v] == s->top[next] && s->preference[v] < s->preference[next]))
            next = v;
    }
    best = next;
out:
    s->problem->clock.steps += work;
    return best;
}

static bool place(tn__pack_search *s, int32_t b) {
    s->at[b] = s->top[b];
    s->placed[b] = true;
    s->done[s->n_done++] = b;
    look_again(s, b);
    int64_t end = s->at[b] + s->size[b];
    for (int32_t k = s->near_begin[b]; k < s->near_begin[b + 1]; k++) {
        int32_t v = s->near[k];
        if (!s->placed[v] && s->top[v] < end && !raise_top(s, v, settle(s, v, end))) return false;
    }
    s->problem->clock.steps += (uint64_t)(s->near_begin[b + 1] - s->near_begin[b]) / 2;
    return infer(s);
}

typedef enum outcome { SOLVED, REFUTED, STOPPED } outcome;
static outcome solve(tn__pack_search *s, size_t list, int32_t count);

/* Solves the parts of a list that share no moment with each other, one after another. */
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
        int32_t b = choose(s, s->lists + list, count);
        if (b == NO_ITEM) break;
        size_t changes_before = s->n_changes;
        int32_t done_before = s->n_done;
        outcome o = REFUTED;
        if (place(s, b)) {
            if (push_rest(s, list, count, b)) o = solve_parts(s, n_lists, count - 1);
            s->n_lists = n_lists;
        }
        if (s->no_memory) o = STOPPED;
        if (o == SOLVED) return SOLVED;
        take_back(s, changes_before, done_before);
        if (o == STOPPED) {
            result = STOPPED;
            break;
        }
        /* No solution with b where it is: it rests on something that is still to come. */
        int64_t support = neighbour_end(s, b);
        if (support == INT64_MAX || !raise_low(s, b, settle(s, b, support)) || !infer(s)) {
            if (s->no_memory) result = STOPPED;
            break;
        }
    }
    take_back(s, n_changes, s->n_done);
    if (result == REFUTED) {
        refuted[0] = h1;
        refuted[1] = h2;
    }
    return result;
}

/* Recent failures count more: each run's weigh two hundredths more than those of the run before. */
static void age(tn__pack_search *s) {
    s->blame += s->blame / 50;
    if (s->blame < (uint64_t)1 << 40) return;
    s->blame >>= 20;
    for (int32_t m = 0; m < s->moments; m++) s->weight[m] >>= 20;
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
        /* Runs grow slowly, so that learning and trying other orders come first. */
        s->node_limit = FIRST_RUN + FIRST_RUN * s->restarts / 16;
        s->nodes = 0;
        s->restarts++;
        age(s);
        s->n_changes = s->n_lists = 0;
        s->n_done = 0;
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
            s->who[m] = NO_ITEM;
            s->queue[s->queue_length++] = m;
            s->queued[m] = true;
        }
        open = open && infer(s);
        while (s->queue_length) s->queued[s->queue[--s->queue_length]] = false;
        o = open ? solve_parts(s, 0, s->n) : s->no_memory ? STOPPED : REFUTED;
    }
    clock->limit = limit;
    if (o == SOLVED)
        for (int32_t u = 0; u < s->n; u++) at[s->item[u]] = (uint64_t)s->at[u];
    return o == SOLVED ? TN__SEARCH_FOUND : o == REFUTED && s->complete ? TN__SEARCH_NONE : TN__SEARCH_UNDECIDED;
}

/* ---- Set-up
 * -------------------------------------------------------------------------------------------------------- */

void tn__pack_search_free(tn__pack_search *s) {
    if (!s) return;
    void *all[] = {s->item,       s->first, s->last,     s->size,      s->padded,     s->twin,
                   s->near_begin, s->near,  s->at_begin, s->at_moment, s->wall_begin, s->wall_low,
                   s->wall_high,  s->top,   s->low,      s->at,        s->placed,     s->soonest,
                   s->second,     s->who,   s->queue,    s->queued,    s->changes,    s->done,
                   s->lists,      s->live,  s->endings,  s->weight,    s->refuted};
    for (size_t i = 0; i < TN__COUNT(all); i++) tn_free(all[i]);
    for (int o = 0; o < ORDERINGS; o++) tn_free(s->rank[o]);
    tn_free(s);
}

/* Orders of preference: how crowded an item's most crowded moment is, how long it lives, how much area it covers, and
 * combinations; each good for some inputs. */
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
        /* The less significant key first: the sort keeps the order of equals. */
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

static bool same(const tn__pack_search *s, int32_t u, int32_t v) {
    const tn__pack_problem *p = s->problem;
    return s->first[u] == s->first[v] && s->last[u] == s->last[v] && s->size[u] == s->size[v] &&
           p->align[s->item[u]] == p->align[s->item[v]];
}

/* Lists of conflicts, and of who is live when; not if making them alone would take the steps that are left. */
static tn_status make_lists(tn__pack_search *s, bool *too_many) {
    size_t pairs = 0, lives = 0, n = (size_t)s->n;
    tn__pack_clock *clock = &s->problem->clock;
    uint64_t left = clock->limit - TN__MIN(clock->limit, clock->steps), most = TN__MIN(left, MOST_CONFLICTS);
    for (int32_t u = 0; u < s->n; u++) {
        /* Items from u on that start before u ends: they are sorted by start. */
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
    s->near_begin = tn_calloc(n + 2, sizeof *s->near_begin);
    s->near = tn_malloc(pairs * sizeof *s->near);
    s->at_begin = tn_calloc((size_t)s->moments + 2, sizeof *s->at_begin);
    s->at_moment = tn_malloc(lives * sizeof *s->at_moment);
    if (!s->near_begin || !s->near || !s->at_begin || !s->at_moment) return TN_E_NOMEM;
    /* Counts go two places up, so that filling moves them to where they belong. */
    for (int32_t u = 0; u < s->n; u++) {
        for (int32_t v = u + 1; v < s->n && s->first[v] < s->last[u]; v++)
            s->near_begin[u + 2]++, s->near_begin[v + 2]++;
        for (int32_t m = s->first[u]; m < s->last[u]; m++) s->at_begin[m + 2]++;
    }
    for (size_t i = 2; i < n + 2; i++) s->near_begin[i] += s->near_begin[i - 1];
    for (int32_t m = 2; m < s->moments + 2; m++) s->at_begin[m] += s->at_begin[m - 1];
    for (int32_t u = 0; u < s->n; u++) {
        for (int32_t v = u + 1; v < s->n && s->first[v] < s->last[u]; v++) {
            s->near[s->near_begin[u + 1]++] = v;
            s->near[s->near_begin[v + 1]++] = u;
        }
        for (int32_t m = s->first[u]; m < s->last[u]; m++) s->at_moment[s->at_begin[m + 1]++] = u;
    }
    for (int32_t u = 0; u < s->n; u++) {
        s->twin[u] = NO_ITEM;
        for (int32_t k = s->near_begin[u]; k < s->near_begin[u + 1] && s->near[k] < u; k++)
            if (same(s, s->near[k], u)) s->twin[u] = s->near[k];
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
    if (count == 0 || count > TN__MOST_SEARCHED) return TN_OK;
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
    s->endings = tn_malloc(n * sizeof *s->endings);
    s->cap_lists = 4 * n;
    s->lists = tn_malloc(s->cap_lists * sizeof *s->lists);
    /* A table for small problems stays small; past 2^17 entries it would only leave the caches. */
    s->refuted_bits = TN__MIN(17, 40 - (unsigned)__builtin_clz(count));
    s->refuted = tn_calloc((size_t)1 << s->refuted_bits, sizeof *s->refuted);
    if (!s->item || !s->first || !s->last || !s->size || !s->padded || !s->twin || !s->top || !s->low || !s->at ||
        !s->placed || !s->done || !s->live || !s->endings || !s->lists || !s->refuted)
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
    size_t moments = (size_t)s->moments;
    s->soonest = tn_malloc(moments * sizeof *s->soonest);
    s->second = tn_malloc(moments * sizeof *s->second);
    s->who = tn_malloc(moments * sizeof *s->who);
    s->queue = tn_malloc(moments * sizeof *s->queue);
    s->queued = tn_calloc(moments, sizeof *s->queued);
    s->weight = tn_calloc(moments, sizeof *s->weight);
    if (!s->soonest || !s->second || !s->who || !s->queue || !s->queued || !s->weight) goto out;
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
