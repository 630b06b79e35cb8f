/* Search through windows of time: where a search fails again and again, its failures lie close together. The items of
 * that window alone are packed first; the result guides the search of a larger window, up to the whole range. */
#include "plan/pack_internal.h"

#include "base/checked.h"

enum { GROWTH = 16 }; /* a window grows by this part of its width on both sides */
static const uint64_t FIRST_PATIENCE = 1000000;

/* The range's items that live in the moments [from, to). Returns their number. */
static uint32_t window_items(const tn__pack_problem *p, const tn__pack_range *range, uint32_t from, uint32_t to,
                             uint32_t *items) {
    uint32_t count = 0;
    for (uint32_t i = range->begin; i < range->end; i++)
        if (p->first[i] < to && from < p->last[i]) items[count++] = i;
    return count;
}

struct tn__pack_windows {
    tn__pack_problem *problem;
    const tn__pack_range *range;
    tn__pack_search *whole;
    uint64_t height;
    uint32_t *items; /* of the window */
    uint64_t *guide; /* addresses in the packing of an earlier window */
    uint64_t *at;
    uint32_t from, to; /* the window */
    uint32_t grown;    /* moments added on both sides by the last growth; 0: none */
    uint32_t forget;   /* moments around the failures whose items lose their guide after the next failure */
    unsigned tries;
};

/* Items that live near the failures of a search no longer follow the guide. */
static void forget_failures(tn__pack_windows *w, const tn__pack_search *part) {
    const tn__pack_problem *p = w->problem;
    uint32_t from, to;
    tn__pack_search_failures(part, &from, &to);
    from -= TN__MIN(from, w->forget);
    to += w->forget;
    for (uint32_t i = w->range->begin; i < w->range->end; i++)
        if (p->first[i] < to && from < p->last[i]) w->guide[i] = TN__NOWHERE;
    w->forget *= 2;
}

/* Searches the window once and grows it if there is a packing. */
static tn_status try_window(tn__pack_windows *w, uint64_t patience, tn__search_answer *answer) {
    tn__pack_problem *p = w->problem;
    uint32_t count = window_items(p, w->range, w->from, w->to, w->items);
    bool all = count == w->range->end - w->range->begin;
    tn__pack_search *part = w->whole;
    if (!all) TN_TRY(tn__pack_search_new(p, w->items, count, &part));
    if (!part) return TN_OK;
    tn__pack_search_guide(part, w->guide, w->tries);
    tn__search_answer found = tn__pack_search_run(part, w->height, patience, w->at);
    if (found == TN__SEARCH_UNDECIDED) {
        w->tries++;
        if (w->grown > 1) {
            /* By half of that only. */
            uint32_t less = w->grown / 2;
            w->grown -= less;
            w->from = TN__MIN(w->from + less, w->to - 1);
            w->to = TN__MAX(w->to - less, w->from + 1);
        } else if (w->forget <= w->to - w->from) {
            forget_failures(w, part);
        } else {
            /* Nothing is left of the guide: begin again where this search failed. */
            tn__pack_search_failures(part, &w->from, &w->to);
            w->forget = 1;
            w->grown = 0;
        }
    } else if (found == TN__SEARCH_FOUND && !all) {
        for (uint32_t k = 0; k < count; k++) w->guide[w->items[k]] = w->at[w->items[k]];
        w->to = TN__MIN(w->to, w->range->last);
        w->grown = TN__MIN(2 * w->grown + 1, (w->to - w->from) / GROWTH + 1);
        w->from -= TN__MIN(w->from - w->range->first, w->grown);
        w->to += w->grown;
        w->forget = 1;
    } else {
        *answer = found; /* if some of the items do not fit, all of them do not */
    }
    if (all)
        tn__pack_search_guide(part, NULL, 0);
    else
        tn__pack_search_free(part);
    return TN_OK;
}

tn_status tn__pack_windows_new(tn__pack_problem *p, const tn__pack_range *range, tn__pack_search *search,
                               tn__pack_windows **out) {
    tn__pack_windows *w = *out = tn_calloc(1, sizeof *w);
    if (!w) return TN_E_NOMEM;
    *w = (tn__pack_windows){.problem = p, .range = range, .whole = search, .forget = 1};
    w->items = tn_malloc((range->end - range->begin) * sizeof *w->items);
    w->guide = tn_malloc(p->n * sizeof *w->guide);
    if (!w->items || !w->guide) {
        tn__pack_windows_free(w);
        *out = NULL;
        return TN_E_NOMEM;
    }
    for (uint32_t i = 0; i < p->n; i++) w->guide[i] = TN__NOWHERE;
    tn__pack_search_failures(search, &w->from, &w->to);
    return TN_OK;
}

void tn__pack_windows_free(tn__pack_windows *w) {
    if (!w) return;
    tn_free(w->items);
    tn_free(w->guide);
    tn_free(w);
}

tn_status tn__pack_windows_run(tn__pack_windows *w, uint64_t height, uint64_t steps, uint64_t *at,
                               tn__search_answer *answer) {
    tn__pack_clock *clock = &w->problem->clock;
    uint64_t end = steps < UINT64_MAX - clock->steps ? clock->steps + steps : UINT64_MAX;
    tn_status status = TN_OK;
    w->height = height;
    w->at = at;
    *answer = TN__SEARCH_UNDECIDED;
    while (status == TN_OK && *answer == TN__SEARCH_UNDECIDED && clock->steps < end && !tn__pack_stopped(clock))
        status = try_window(w, TN__MIN(end - clock->steps, FIRST_PATIENCE << TN__MIN(w->tries / 32, 20)), answer);
    return status;
}
