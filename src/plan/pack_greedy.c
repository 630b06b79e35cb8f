/* Greedy placement: items one after another in a given order, each into a gap between the placed items that are live
 * with it. */
#include "plan/pack_internal.h"

#include "base/checked.h"

/* Items are sorted by start, so those that conflict with item i are found among the items that start before its end
 * and end after its start. The first condition is a prefix; for the second, a binary tree over blocks of items knows
 * the latest end of any placed item below each of its nodes. */
enum { BLOCK = 16 };

typedef struct span {
    uint64_t low, high;
} span;

struct tn__pack_greedy {
    tn__pack_problem *problem;
    uint32_t leaves;  /* power of two */
    uint32_t *latest; /* per tree node, root at 1: latest end of placed items, 0 if none */
    uint32_t *prefix; /* per moment: how many items start before it */
    uint32_t *fixed;  /* items with a fixed address */
    uint32_t n_fixed;
    span *spans, *scratch; /* of the items in conflict with the one being placed */
};

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
    g->spans = tn_malloc(p->n * sizeof *g->spans);
    g->scratch = tn_malloc(p->n * sizeof *g->scratch);
    if (!g->latest || !g->prefix || !g->fixed || !g->spans || !g->scratch) {
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
    return TN_OK;
}

void tn__pack_greedy_free(tn__pack_greedy *g) {
    if (!g) return;
    tn_free(g->latest);
    tn_free(g->prefix);
    tn_free(g->fixed);
    tn_free(g->spans);
    tn_free(g->scratch);
    tn_free(g);
}

static void mark(tn__pack_greedy *g, uint32_t i) {
    uint32_t last = g->problem->last[i];
    for (uint32_t node = g->leaves + i / BLOCK; node && g->latest[node] < last; node /= 2) g->latest[node] = last;
}

/* Collects the address spans of placed items that are live with item i. Returns how many. */
static uint32_t collect(tn__pack_greedy *g, uint32_t i, const uint64_t *at) {
    tn__pack_problem *p = g->problem;
    uint32_t begin = p->first[i], prefix = g->prefix[p->last[i]], count = 0;
    uint32_t stack[64], depth = 0, visits = 0;
    stack[depth++] = 1;
    while (depth) {
        uint32_t node = stack[--depth];
        visits++;
        if (g->latest[node] <= begin) continue;
        if (node < g->leaves) {
            /* Where in the tree a node begins: its number with the leading one replaced by leaf positions. */
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
            g->spans[count++] = (span){at[k], at[k] + p->size[k]};
        }
        visits += 4;
    }
    /* Sorting costs more per span the more there are. */
    p->clock.steps += visits + count * (uint64_t)(2 + (32 - __builtin_clz(count + 1)) / 2);
    return count;
}

/* Sorts the spans by where they begin: insertion within runs, then merging. */
static span *sort_spans(span *s, span *scratch, uint32_t count) {
    enum { RUN = 12 };
    for (uint32_t from = 0; from < count; from += RUN) {
        uint32_t to = TN__MIN(from + RUN, count);
        for (uint32_t i = from + 1; i < to; i++) {
            span x = s[i];
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
        span *swap = s;
        s = scratch;
        scratch = swap;
    }
    return s;
}

static uint64_t choose(const tn__pack_problem *p, uint32_t i, const span *s, uint32_t count, tn__gap_rule rule) {
    uint64_t floor = 0, best = TN__NOWHERE, tightest = TN__NOWHERE;
    for (uint32_t k = 0; k < count; k++) {
        if (s[k].low > floor && s[k].low - floor >= p->size[i]) {
            uint64_t gap = s[k].low - floor;
            if (gap < tightest) {
                uint64_t at = tn__pack_settle(p, i, floor);
                if (at + p->size[i] <= s[k].low) {
                    if (rule == TN__GAP_LOWEST) return at;
                    tightest = gap;
                    best = at;
                }
            }
        }
        floor = TN__MAX(floor, s[k].high);
    }
    return best != TN__NOWHERE ? best : tn__pack_settle(p, i, floor);
}

bool tn__pack_greedy_run(tn__pack_greedy *g, const uint32_t *order, uint32_t count, tn__gap_rule rule, uint64_t *at) {
    tn__pack_problem *p = g->problem;
    memset(g->latest, 0, 2 * (size_t)g->leaves * sizeof *g->latest);
    for (uint32_t i = 0; i < p->n; i++) at[i] = TN__NOWHERE;
    for (uint32_t f = 0; f < g->n_fixed; f++) {
        at[g->fixed[f]] = p->fixed[g->fixed[f]];
        mark(g, g->fixed[f]);
    }
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = order[k];
        if (at[i] != TN__NOWHERE) continue;
        if (tn__pack_stopped(&p->clock)) return false;
        uint32_t conflicts = collect(g, i, at);
        at[i] = choose(p, i, sort_spans(g->spans, g->scratch, conflicts), conflicts, rule);
        mark(g, i);
    }
    return true;
}
