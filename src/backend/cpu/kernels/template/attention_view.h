/* Visible positions and lists of visible cells: part of the attention template. */

/* Positions from low to high; none where high < low. */
typedef struct att_span {
    int32_t low, high;
} att_span;
/* The positions visible to a query are one interval. */
static att_span att_view_of(const tn__attention_job *job, int64_t token) {
    const tn_attention_params *p = &job->params;
    const tn__query q = tn__query_of(job, token);
    int64_t low = 0, high = INT32_MAX;
    if (p->causal) high = q.position;
    if (p->window > 0 && q.position - p->window + 1 > low) low = q.position - p->window + 1;
    if (p->window_after > 0 && q.position + p->window_after - 1 < high) high = q.position + p->window_after - 1;
    if (p->chunk > 0) {
        int64_t start = q.position / p->chunk * p->chunk;
        low = start > low ? start : low;
        high = start + p->chunk - 1 < high ? start + p->chunk - 1 : high;
    }
    if (q.sequence < 0 || high < low) return (att_span){0, -1};
    return (att_span){(int32_t)low, (int32_t)high};
}
/* The positions visible to any of the tokens [from, to). */
static att_span att_span_of(const tn__attention_job *job, int64_t from, int64_t to) {
    att_span s = {INT32_MAX, -1};
    for (int64_t t = from; t < to; t++) {
        const att_span v = att_view_of(job, t);
        if (v.high < v.low) continue;
        s.low = v.low < s.low ? v.low : s.low;
        s.high = v.high > s.high ? v.high : s.high;
    }
    return s;
}
static att_span att_span_of_cells(const int32_t *positions, int count) {
    att_span s = {INT32_MAX, -1};
    for (int i = 0; i < count; i++) {
        s.low = positions[i] < s.low ? positions[i] : s.low;
        s.high = positions[i] > s.high ? positions[i] : s.high;
    }
    return s;
}
enum { SEES_NONE, SEES_SOME, SEES_ALL };
static int att_sees_span(att_span view, att_span s) {
    if (view.high < view.low || s.high < view.low || s.low > view.high) return SEES_NONE;
    return view.low <= s.low && s.high <= view.high ? SEES_ALL : SEES_SOME;
}
/* 0 for visible cells, -infinity for others. */
static void att_hide_positions(att_span v, const int32_t *positions, int count, float *hide) {
    for (int i = 0; i < count; i++) hide[i] = positions[i] >= v.low && positions[i] <= v.high ? 0 : -__builtin_inff();
}

/* ---- Cells in logical order ---- */

/* Iterates over those cells of a sequence (or of a job without page tables) whose positions are in the span, run by
 * run. With selected positions only over the cells of the entries in job->sorted. All cuts of the work are multiples
 * of fixed numbers of these cells, so that results do not depend on where the cells are or how they are divided into
 * runs.
 *
 * With a window the first of these cells depends on the other queries of a group. In a repeatable job gaps then stand
 * for the positions that have no cell, so that a cell's index in its split depends on its position alone. */
typedef struct att_cursor {
    const tn_page_run *runs; /* the next; NULL: all cells are one run */
    int64_t n_runs;
    att_span span;
    tn_page_run rest; /* what is left of the current run; its divisor is at least 1 */
    int64_t gaps;     /* before it */
    int64_t next;     /* the position after those cells and gaps that were passed */
    int64_t room;     /* for gaps: they take two splits at most */
    /* With selected positions `rest` is a part of a run with selected positions only, and this is what follows it. */
    tn_page_run later;
    int64_t entry; /* of job->sorted: the first that may have positions in `later` */
} att_cursor;
enum { ATT_GAP = -1 }; /* the cell and the position of a gap */

static att_cursor att_cursor_of(const tn__attention_job *job, tn__query q, att_span span) {
    att_cursor c = {.n_runs = 1, .span = span};
    if (job->paged) c.runs = tn__runs_of(job, q, &c.n_runs);
    if (span.high < span.low) c.n_runs = 0;
    if (job->repeatable && !job->selects && job->params.causal && (job->params.window > 0 || job->params.chunk > 0)) {
        const int64_t each = att_split_cells(job, 0);
        c.next = span.low / each * each;
        c.room = 2 * each;
    }
    return c;
}
/* Sets the gaps before the current run. */
static void att_cursor_align(att_cursor *c) {
    const int64_t first = c->rest.first / c->rest.divisor,
                  last = (c->rest.first + c->rest.count - 1) / c->rest.divisor;
    c->gaps = first > c->next ? first - c->next : 0;
    c->gaps = c->gaps < c->room ? c->gaps : c->room;
    c->room -= c->gaps;
    c->next = last + 1;
}
/* The part of a run that is in the span. Its count is 0 if there is none. */
static tn_page_run att_clip(tn_page_run r, att_span span) {
    r.divisor = r.divisor > 1 ? r.divisor : 1;
    const int64_t low = (int64_t)span.low * r.divisor - r.first,
                  high = ((int64_t)span.high + 1) * r.divisor - r.first; /* offsets in the run */
    const int32_t from = low > 0 ? (int32_t)(low < r.count ? low : r.count) : 0,
                  to = high < r.count ? (int32_t)(high > 0 ? high : 0) : r.count;
    r.cell += from;
    r.first += from;
    r.count = to > from ? to - from : 0;
    return r;
}
#include "backend/cpu/kernels/template/attention_selected.h"
/* Moves on to the next run if the current one is used up. Returns whether there are cells. */
static bool att_cursor_load(const tn__attention_job *job, att_cursor *c) {
    while (c->rest.count == 0) {
        if (c->later.count > 0) {
            att_next_selected(job, c);
            continue;
        }
        if (c->n_runs <= 0) return false;
        c->n_runs--;
        tn_page_run run = {0};
        if (c->runs) {
            if (tn__run_is_valid(job, c->runs)) run = att_clip(*c->runs, c->span);
            c->runs++;
        } else {
            const int32_t high = c->span.high < job->cells ? c->span.high : (int32_t)job->cells - 1;
            if (high >= c->span.low) run = (tn_page_run){c->span.low, high - c->span.low + 1, c->span.low, 1};
        }
        if (job->selects)
            att_begin_selected(job, c, run);
        else
            c->rest = run;
        if (c->room > 0 && c->rest.count > 0) att_cursor_align(c);
    }
    return true;
}
static int64_t att_cursor_skip(const tn__attention_job *job, att_cursor *c, int64_t count) {
    int64_t skipped = 0;
    while (skipped < count && att_cursor_load(job, c)) {
        if (c->gaps > 0) {
            const int64_t gaps = c->gaps < count - skipped ? c->gaps : count - skipped;
            c->gaps -= gaps;
            skipped += gaps;
            continue;
        }
        const int32_t n = c->rest.count < count - skipped ? c->rest.count : (int32_t)(count - skipped);
        c->rest.cell += n;
        c->rest.first += n;
        c->rest.count -= n;
        skipped += n;
    }
    return skipped;
}
/* Lists the next cells, as many as there is room for, and their positions unless that is NULL. Returns their number.
 * Gaps are listed as ATT_GAP. */
static int att_cursor_list(const tn__attention_job *job, att_cursor *c, int room, int32_t *cells,
                           int32_t *positions) {
    int count = 0;
    while (count < room && att_cursor_load(job, c)) {
        for (; c->gaps > 0 && count < room; c->gaps--, count++) {
            cells[count] = ATT_GAP;
            if (positions) positions[count] = ATT_GAP;
        }
        tn_page_run *r = &c->rest;
        const int n = r->count < room - count ? r->count : room - count;
        for (int i = 0; i < n; i++) cells[count + i] = r->cell + i;
        for (int i = 0; positions && r->divisor == 1 && i < n; i++) positions[count + i] = r->first + i;
        for (int i = 0; positions && r->divisor != 1 && i < n; i++)
            positions[count + i] = (r->first + i) / r->divisor;
        r->cell += n;
        r->first += n;
        r->count -= n;
        count += n;
    }
    return count;
}
