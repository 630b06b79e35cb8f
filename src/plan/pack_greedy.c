/* Greedy packing: items in a given order, each into a gap between the placed items that are live with it. */
#include "plan/pack_internal.h"

#include "base/checked.h"

/* Items in conflict with item i start before its end and end after its start. Items are sorted by start, so the first
 * condition selects a prefix. For the second, a binary tree over blocks of items stores in every node the latest end
 * of the placed items below it. */
enum {
    BLOCK = 16,
    CROWDED = 200,  /* conflicts per item on average; from here on joined spans are faster than single items */
    NEAR_TOP = 32,  /* small items look for gaps in this part of the memory first */
    NEAR_BEST = 64, /* a packing larger by this part of the best one is worth a repair */
    LONG = 64,      /* moments of a long lifetime: several times those of one layer of a network */
};

struct tn__pack_greedy {
    tn__pack_problem *problem;
    uint32_t leaves;  /* power of two */
    uint32_t *latest; /* per tree node, root at 1: latest end of placed items, 0 if none */
    uint32_t *prefix; /* per moment: how many items start before it */
    uint32_t *fixed;  /* items with a fixed address */
    uint32_t n_fixed;
    uint32_t *range;                /* per item */
    bool *given_up;                 /* per range */
    tn__pack_span *spans, *scratch; /* of the items in conflict with the one being placed */
    uint32_t capacity;              /* of both */
    tn__pack_occupied *occupied;    /* NULL: few conflicts */
    uint64_t *base;                 /* addresses of long-lived items placed in advance, or NULL */
    uint64_t *floor;                /* per item: highest end of the long-lived items that are live at the same time */
};

/* The average number of items in conflict with one. */
static uint64_t average_conflicts(const tn__pack_greedy *g) {
    const tn__pack_problem *p = g->problem;
    uint64_t sum = 0;
    /* An item conflicts with those that start before its end, less those that ended before its start; summed over all
     * items the latter are the pairs (i, k) with last[k] <= first[i]: for each k the items that start after its end.
     */
    for (uint32_t i = 0; i < p->n; i++) sum += g->prefix[p->last[i]] + (uint64_t)g->prefix[p->last[i]] - p->n;
    return p->n ? sum / p->n : 0;
}

tn_status tn__pack_greedy_new(tn__pack_problem *p, tn__pack_greedy **out) {
    tn__pack_greedy *g = tn_calloc(1, sizeof *g);
    *out = g;
    if (!g) return TN_E_NOMEM;
    g->problem = p;
    g->leaves = 1;
    while (g->leaves * (uint64_t)BLOCK < p->n) g->leaves *= 2;
    g->latest = tn_malloc(2 * (size_t)g->leaves * sizeof *g->latest);
    g->prefix = tn_malloc(((size_t)p->moments + 1) * sizeof *g->prefix);
    g->fixed = tn_malloc(p->n * sizeof *g->fixed);
    g->capacity = p->n + 64;
    g->spans = tn_malloc(g->capacity * sizeof *g->spans);
    g->scratch = tn_malloc(g->capacity * sizeof *g->scratch);
    g->range = tn_malloc(p->n * sizeof *g->range);
    g->given_up = tn_malloc(p->n_ranges * sizeof *g->given_up);
    if (!g->latest || !g->prefix || !g->fixed || !g->spans || !g->scratch || !g->range || !g->given_up) {
        tn__pack_greedy_free(g);
        *out = NULL;
        return TN_E_NOMEM;
    }
    for (uint32_t m = 0, i = 0; m <= p->moments; m++) {
        while (i < p->n && p->first[i] < m) i++;
        g->prefix[m] = i;
    }
    for (uint32_t i = 0; i < p->n; i++)
        if (p->fixed[i] != TN__NOWHERE) g->fixed[g->n_fixed++] = i;
    for (uint32_t r = 0; r < p->n_ranges; r++)
        for (uint32_t i = p->ranges[r].begin; i < p->ranges[r].end; i++) g->range[i] = r;
    p->crowded = average_conflicts(g) >= CROWDED;
    /* Without memory for it, single items are collected as elsewhere. */
    if (p->crowded && tn__pack_occupied_new(p->moments, &g->occupied) != TN_OK) tn_error_clear();
    return TN_OK;
}

void tn__pack_greedy_free(tn__pack_greedy *g) {
    if (!g) return;
    tn_free(g->latest);
    tn_free(g->prefix);
    tn_free(g->fixed);
    tn_free(g->spans);
    tn_free(g->scratch);
    tn_free(g->range);
    tn_free(g->given_up);
    tn__pack_occupied_free(g->occupied);
    tn__pack_greedy_clear_base(g);
    tn_free(g);
}

void tn__pack_greedy_clear_base(tn__pack_greedy *g) {
    tn_free(g->base);
    tn_free(g->floor);
    g->base = g->floor = NULL;
}

/* Highest end of the items in `base` at each moment: items are visited by descending end, each sets the moments that
 * are not set yet. */
static tn_status outline(const tn__pack_problem *p, const uint64_t *base, uint32_t *order, uint32_t count,
                         uint64_t *tops) {
    uint64_t *key = tn_malloc(p->n * sizeof *key), *scratch = tn_malloc(4 * (size_t)count * sizeof *scratch);
    uint32_t *next = tn_malloc(((size_t)p->moments + 1) * sizeof *next); /* link towards the next moment not set */
    tn_status status = key && scratch && next ? TN_OK : TN_E_NOMEM;
    if (status != TN_OK) goto out;
    for (uint32_t k = 0; k < count; k++) key[order[k]] = ~(base[order[k]] + p->size[order[k]]);
    tn__pack_sort(order, count, key, scratch);
    for (uint32_t m = 0; m <= p->moments; m++) next[m] = m;
    memset(tops, 0, p->moments * sizeof *tops);
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = order[k];
        for (uint32_t m = p->first[i]; m < p->last[i];) {
            if (next[m] == m) {
                tops[m] = base[i] + p->size[i];
                next[m] = m + 1;
                m++;
                continue;
            }
            /* Path compression. */
            uint32_t to = next[m];
            while (next[to] != to) to = next[to] = next[next[to]];
            next[m] = to;
            m = to;
        }
    }
out:
    tn_free(key);
    tn_free(scratch);
    tn_free(next);
    return status;
}

/* Lower bound for the height of a packing above these tops. */
static uint64_t height_above(const tn__pack_problem *p, const uint64_t *base, const uint64_t *tops,
                             uint64_t *shorts) {
    memset(shorts, 0, ((size_t)p->moments + 1) * sizeof *shorts);
    for (uint32_t i = 0; i < p->n; i++) {
        if (base[i] != TN__NOWHERE) continue;
        shorts[p->first[i]] += p->size[i];
        shorts[p->last[i]] -= p->size[i];
    }
    uint64_t live = 0, height = 0;
    for (uint32_t m = 0; m < p->moments; m++) {
        live += shorts[m];
        height = TN__MAX(height, tops[m] + live);
    }
    return height;
}

tn_status tn__pack_greedy_set_base(tn__pack_greedy *g, uint64_t goal, bool *of_use) {
    tn__pack_problem *p = g->problem;
    uint32_t *items = tn_malloc(p->n * sizeof *items), count = 0;
    uint64_t *tops = tn_malloc(p->moments * sizeof *tops);
    uint64_t *shorts = tn_malloc(((size_t)p->moments + 1) * sizeof *shorts);
    tn_status status = TN_E_NOMEM;
    *of_use = false;
    if (!items || !tops || !shorts) goto out;
    status = TN_OK;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->last[i] - p->first[i] >= LONG) items[count++] = i;
    if (count == 0 || count == p->n || p->any_fixed || p->chunk) goto out;
    tn__pack_greedy_clear_base(g);
    g->base = tn_malloc(p->n * sizeof *g->base);
    g->floor = tn_calloc(p->n, sizeof *g->floor);
    status = TN_E_NOMEM;
    if (!g->base || !g->floor) goto out;
    for (uint32_t i = 0; i < p->n; i++) g->base[i] = TN__NOWHERE;
    TN_TRY_GOTO(tn__pack_online(p, items, count, false, TN__TIES_LONGEST, g->base), status, out);
    TN_TRY_GOTO(outline(p, g->base, items, count, tops), status, out);
    p->clock.steps += 30 * (uint64_t)count + 6 * (uint64_t)p->n + 2 * (uint64_t)p->moments;
    /* If the long-lived items leave large gaps, packing above them wastes too much. */
    uint64_t height = height_above(p, g->base, tops, shorts);
    if (height >= tn__pack_height(p) || height > goal + goal / 64) goto out;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t m = p->first[i]; m < p->last[i] && g->base[i] == TN__NOWHERE; m++)
            g->floor[i] = TN__MAX(g->floor[i], tops[m]);
    *of_use = true;
out:
    if (!*of_use) tn__pack_greedy_clear_base(g);
    tn_free(items);
    tn_free(tops);
    tn_free(shorts);
    return status;
}

static void mark_placed(tn__pack_greedy *g, uint32_t i) {
    uint32_t last = g->problem->last[i];
    for (uint32_t node = g->leaves + i / BLOCK; node && g->latest[node] < last; node /= 2) g->latest[node] = last;
}

static void occupy_item(tn__pack_greedy *g, uint32_t i, uint64_t at) {
    tn__pack_problem *p = g->problem;
    mark_placed(g, i);
    if (g->occupied)
        p->clock.steps +=
            tn__pack_occupied_add(g->occupied, p->first[i], p->last[i], (tn__pack_span){at, at + p->size[i]});
}

/* The cost of sorting per span grows with their number. */
static uint64_t sort_steps(uint32_t count) { return count * (uint64_t)(2 + (32 - __builtin_clz(count + 1)) / 2); }

/* Collects the address spans above `floor` of placed items that are live with item i. */
static tn__pack_spans collect(tn__pack_greedy *g, uint32_t i, uint64_t floor, const uint64_t *at) {
    tn__pack_problem *p = g->problem;
    uint32_t begin = p->first[i], prefix = g->prefix[p->last[i]], count = 0;
    tn__pack_spans found = {.few = g->spans};
    if (g->occupied &&
        tn__pack_occupied_collect(g->occupied, begin, p->last[i], floor, g->capacity, &found, &p->clock.steps)) {
        p->clock.steps += sort_steps(found.n_few) + found.n_many / 2;
        return found;
    }
    uint32_t stack[64], depth = 0, visits = 0;
    stack[depth++] = 1;
    while (depth) {
        uint32_t node = stack[--depth];
        visits++;
        if (g->latest[node] <= begin) continue;
        if (node < g->leaves) {
            /* The first leaf below a node, from its number and level. */
            uint32_t level = (uint32_t)__builtin_clz(node) - (uint32_t)__builtin_clz(g->leaves);
            uint32_t right = 2 * node + 1;
            uint32_t right_begin = ((right << (level - 1)) - g->leaves) * BLOCK;
            if (right_begin < prefix) stack[depth++] = right;
            stack[depth++] = 2 * node;
            continue;
        }
        uint32_t from = (node - g->leaves) * BLOCK, to = TN__MIN(from + BLOCK, prefix);
        for (uint32_t k = from; k < to; k++) {
            if (p->last[k] <= begin || at[k] == TN__NOWHERE) continue;
            g->spans[count++] = (tn__pack_span){at[k], at[k] + p->size[k]};
        }
        visits += 4;
    }
    p->clock.steps += visits + sort_steps(count);
    found.n_few = count;
    return found;
}

/* Sorts the spans by address: insertion sort within runs, then merging. */
static tn__pack_span *sort_spans(tn__pack_span *s, tn__pack_span *scratch, uint32_t count) {
    enum { RUN = 12 };
    for (uint32_t from = 0; from < count; from += RUN) {
        uint32_t to = TN__MIN(from + RUN, count);
        for (uint32_t i = from + 1; i < to; i++) {
            tn__pack_span x = s[i];
            uint32_t j = i;
            for (; j > from && s[j - 1].low > x.low; j--) s[j] = s[j - 1];
            s[j] = x;
        }
    }
    for (uint32_t width = RUN; width < count; width *= 2) {
        for (uint32_t from = 0; from < count; from += 2 * width) {
            uint32_t middle = TN__MIN(from + width, count), to = TN__MIN(middle + width, count);
            uint32_t a = from, b = middle;
            for (uint32_t k = from; k < to; k++)
                scratch[k] = a < middle && (b >= to || s[a].low <= s[b].low) ? s[a++] : s[b++];
        }
        tn__pack_span *swap = s;
        s = scratch;
        scratch = swap;
    }
    return s;
}

/* Chooses a gap between spans of two sorted lists. */
static uint64_t choose_gap(const tn__pack_problem *p, uint32_t i, uint64_t floor, const tn__pack_spans *s,
                           tn__gap_rule rule) {
    uint64_t best = TN__NOWHERE, tightest = TN__NOWHERE;
    const tn__pack_span *few = s->few, *few_end = few + s->n_few, *many = s->many, *many_end = many + s->n_many;
    while (few < few_end || many < many_end) {
        tn__pack_span x = many == many_end || (few < few_end && few->low < many->low) ? *few++ : *many++;
        if (x.low > floor && x.low - floor >= p->size[i]) {
            uint64_t gap = x.low - floor;
            if (gap < tightest) {
                uint64_t at = tn__pack_settle(p, i, floor);
                if (at + p->size[i] <= x.low) {
                    if (rule == TN__GAP_LOWEST) return at;
                    tightest = gap;
                    best = at;
                }
            }
        }
        floor = TN__MAX(floor, x.high);
    }
    return best != TN__NOWHERE ? best : tn__pack_settle(p, i, floor);
}

static uint64_t find_address(tn__pack_greedy *g, uint32_t i, uint64_t floor, tn__gap_rule rule, uint64_t *at) {
    at[i] = TN__NOWHERE;
    tn__pack_spans found = collect(g, i, floor, at);
    found.few = sort_spans(found.few, g->scratch, found.n_few);
    return choose_gap(g->problem, i, floor, &found, rule);
}

/* With chunks the height is not what is to be small. */
static uint64_t range_ceiling(const tn__pack_problem *p, uint32_t range, tn__pack_ceiling ceiling) {
    uint64_t best = p->ranges[range].best;
    if (ceiling == TN__ANY_HEIGHT || p->chunk || best == TN__NOWHERE) return TN__NOWHERE;
    return best - 1 + (ceiling == TN__NEAR_BEST ? best / NEAR_BEST : 0);
}

bool tn__pack_greedy_run(tn__pack_greedy *g, const uint32_t *order, uint32_t core, uint32_t count, tn__gap_rule rule,
                         tn__pack_ceiling ceiling, uint64_t *at) {
    tn__pack_problem *p = g->problem;
    memset(g->latest, 0, 2 * (size_t)g->leaves * sizeof *g->latest);
    memset(g->given_up, 0, p->n_ranges * sizeof *g->given_up);
    if (g->occupied) tn__pack_occupied_clear(g->occupied);
    for (uint32_t i = 0; i < p->n; i++) at[i] = g->base ? g->base[i] : TN__NOWHERE;
    for (uint32_t f = 0; f < g->n_fixed; f++) {
        at[g->fixed[f]] = p->fixed[g->fixed[f]];
        occupy_item(g, g->fixed[f], at[g->fixed[f]]);
    }
    uint64_t top = 0; /* of the items placed in this run */
    bool complete = true;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = order[k], range = g->range[i];
        if (at[i] != TN__NOWHERE || g->given_up[range]) continue;
        if (tn__pack_stopped(&p->clock)) return false;
        uint64_t floor = g->floor ? g->floor[i] : 0, near_top = top - TN__MIN(top, p->live_peak / NEAR_TOP);
        at[i] = find_address(g, i, k < core ? floor : TN__MAX(floor, near_top), rule, at);
        if (k >= core && near_top > floor && at[i] + p->size[i] > top) at[i] = find_address(g, i, floor, rule, at);
        if (at[i] + p->size[i] > range_ceiling(p, range, ceiling)) {
            g->given_up[range] = true;
            complete = false;
            if (p->n_ranges == 1) break;
            continue;
        }
        top = TN__MAX(top, at[i] + p->size[i]);
        occupy_item(g, i, at[i]);
    }
    for (uint32_t r = 0; r < p->n_ranges && !complete; r++)
        for (uint32_t i = p->ranges[r].begin; i < p->ranges[r].end && g->given_up[r]; i++) at[i] = TN__NOWHERE;
    return complete;
}
