/* Page tables: allocating, removing, copying and compacting cells. */
#include "llm/memory/page_table.h"

#include "base/checked.h"

#include <string.h>

/* ---- Sizes ---- */

enum {
    PAGE_CELLS = 64,
    PAGE_CELLS_LEAST = 16,
    SPARE_SHARE = 16, /* extra pages for the partly empty last pages of sequences: up to this share of all pages */
    SPARE_RUNS = 32,  /* runs of a sequence beyond those that its tokens fill, for runs that removed ranges cut */
};

int32_t tn__page_size(int32_t n_ctx, int32_t n_seqs) {
    int32_t page = PAGE_CELLS;
    while (page > PAGE_CELLS_LEAST && (int64_t)n_seqs * page > n_ctx / SPARE_SHARE) page /= 2;
    return page;
}

tn_status tn__page_table_size(tn__page_table *t, int32_t cells, int32_t page, int32_t window, int32_t n_ubatch,
                              int32_t n_seqs, int32_t n_kept, int32_t n_checkpoints, bool causal) {
    int64_t pages = ((int64_t)cells + page - 1) / page, most = cells;
    pages += TN__MIN(n_seqs - 1, pages / SPARE_SHARE);
    if (window) {
        /* A window keeps window - 1 tokens before the new ones; the pages at its two ends may hold one token each. */
        most = (int64_t)window - 1 + 2 * ((int64_t)page - 1);
        pages = ((int64_t)n_seqs + n_checkpoints) * (most / page + 1) + n_ubatch / page;
        most += n_ubatch;
    }
    const int64_t runs = most / page + 1 + SPARE_RUNS;
    if (pages * page > INT32_MAX - SPARE_RUNS)
        return tn_fail(TN_E_TOO_BIG, "sequence memory of %lld pages of %d cells is too large: use a smaller context",
                       (long long)pages, page);
    memset(t, 0, sizeof *t);
    t->n_pages = (int32_t)pages;
    t->page = page;
    t->limit = window ? t->n_pages * page : cells;
    t->window = window;
    t->causal = causal;
    t->n_seqs = n_seqs;
    t->n_lists = n_seqs + n_kept;
    t->max_runs = (int32_t)runs;
    return TN_OK;
}

tn_status tn__page_table_add_branches(tn__page_table *t, int32_t n, int32_t tokens) {
    if (!t->n_pages) return TN_OK;
    const int64_t pages = t->n_pages + (int64_t)n * ((tokens + t->page - 1) / t->page);
    if (pages * t->page > INT32_MAX)
        return tn_fail(TN_E_TOO_BIG, "%d branches of guesses need too many pages of %d cells", n, t->page);
    t->n_branches = n;
    t->n_pages = (int32_t)pages;
    if (t->window) t->limit = t->n_pages * t->page;
    return TN_OK;
}

typedef struct table_sizes {
    size_t pages, free_pages, numbers, runs, sequences;
} table_sizes;

static bool table_sizes_of(const tn__page_table *t, table_sizes *s) {
    const size_t n_pages = (size_t)t->n_pages, n_lists = (size_t)tn__page_lists(t);
    size_t rows; /* one more list, used as a scratch list */
    return tn__mul_size(n_pages, sizeof(tn__page), &s->pages) &&
           tn__mul_size(n_pages, sizeof(int32_t), &s->free_pages) &&
           tn__mul_size(s->free_pages, (size_t)t->page, &s->numbers) &&
           tn__mul_size(n_lists, sizeof(tn__sequence_runs), &s->sequences) &&
           tn__mul_size(n_lists + 1, 1 + (size_t)t->max_runs, &rows) &&
           tn__mul_size(rows, sizeof(tn_page_run), &s->runs);
}

tn_status tn__page_table_bytes(const tn__page_table *t, size_t *bytes) {
    table_sizes s;
    *bytes = 0;
    if (!t->n_pages) return TN_OK;
    if (!table_sizes_of(t, &s) || !tn__add_size(s.pages, s.free_pages, bytes) ||
        !tn__add_size(*bytes, s.numbers, bytes) || !tn__add_size(*bytes, s.runs, bytes) ||
        !tn__add_size(*bytes, s.sequences, bytes))
        return tn_fail(TN_E_OVERFLOW, "the size of page tables of %d pages and %d sequences overflows", t->n_pages,
                       t->n_lists);
    return TN_OK;
}

tn_status tn__page_table_allocate(tn__page_table *t) {
    table_sizes s;
    if (!t->n_pages) return TN_OK;
    if (!table_sizes_of(t, &s))
        return tn_fail(TN_E_OVERFLOW, "the size of page tables of %d pages overflows", t->n_pages);
    t->pages = tn_calloc(1, s.pages);
    t->free_pages = tn_malloc(s.free_pages);
    t->numbers = tn_malloc(s.numbers);
    t->runs = tn_calloc(1, s.runs);
    t->sequences = tn_calloc(1, s.sequences);
    if (!t->pages || !t->free_pages || !t->numbers || !t->runs || !t->sequences) return TN_E_NOMEM;
    for (int32_t i = 0; i < t->n_pages; i++) {
        t->pages[i].writer = -1;
        t->free_pages[i] = t->n_pages - 1 - i; /* the lowest page is allocated first */
    }
    t->n_free = t->n_pages;
    for (int32_t i = 0; i < t->n_seqs; i++) t->sequences[i].dirty_end = 1;
    for (int32_t i = t->n_lists; i < tn__page_lists(t); i++) t->sequences[i].dirty_end = 1;
    return TN_OK;
}

void tn__page_table_free(tn__page_table *t) {
    tn_free(t->pages);
    tn_free(t->free_pages);
    tn_free(t->numbers);
    tn_free(t->runs);
    tn_free(t->sequences);
    memset(t, 0, sizeof *t);
}

tn_status tn__pages_fail_full(const tn__page_table *t, int32_t n) {
    return tn_fail(TN_E_FULL,
                   "the KV cache is full: %d tokens need a cell, %d of %d are free; shift, remove a sequence, or use "
                   "a larger context",
                   n, TN__MAX(t->limit - t->used, 0), t->limit);
}

/* ---- Pages ---- */

static int32_t page_of(const tn__page_table *t, tn_page_run run) { return run.cell / t->page; }
/* One past the run's last cell, counted from the beginning of its page. */
static int32_t run_end_in_page(const tn__page_table *t, tn_page_run run) { return run.cell % t->page + run.count; }

int32_t tn__pages_new(tn__page_table *t) {
    if (!t->n_free) return -1;
    int32_t page = t->free_pages[--t->n_free];
    t->pages[page] = (tn__page){.writer = -1};
    return page;
}

void tn__pages_give_back(tn__page_table *t, int32_t page) {
    if (page >= 0 && !t->pages[page].refs) t->free_pages[t->n_free++] = page;
}

static void name_page(tn__page_table *t, tn_page_run run) {
    tn__page *p = &t->pages[page_of(t, run)];
    const int32_t end = run_end_in_page(t, run);
    p->refs++;
    if (end > p->used) {
        t->used += end - p->used;
        p->used = end;
    }
}

static void unname_page(tn__page_table *t, tn_page_run run) {
    const int32_t page = page_of(t, run);
    tn__page *p = &t->pages[page];
    if (--p->refs) return;
    t->used -= p->used;
    *p = (tn__page){.writer = -1};
    t->free_pages[t->n_free++] = page;
}

/* ---- Lists of runs ---- */

static void touch_entries(tn__page_table *t, int32_t seq, int32_t first, int32_t end) {
    tn__sequence_runs *s = &t->sequences[seq];
    const bool clean = s->dirty_first >= s->dirty_end;
    s->dirty_first = clean ? first : TN__MIN(s->dirty_first, first);
    s->dirty_end = clean ? end : TN__MAX(s->dirty_end, end);
    t->changes++;
}

static void set_run_count(tn__page_table *t, int32_t seq, int32_t n) {
    t->sequences[seq].n = n;
    tn__page_entries(t, seq)[0] = (tn_page_run){n, 0, 0, 0};
    touch_entries(t, seq, 0, 1);
}

/* The last run ends with its last written cell, and another sequence may append to its page. */
static void close_last_run(tn__page_table *t, int32_t seq) {
    tn__sequence_runs *s = &t->sequences[seq];
    if (!s->open) return;
    tn_page_run *last = &tn__page_entries(t, seq)[s->n];
    t->pages[page_of(t, *last)].writer = -1;
    s->open = false;
    if (last->count != s->tail) {
        last->count = s->tail;
        touch_entries(t, seq, s->n, s->n + 1);
    }
}

/* Reserves the rest of the last run's page for the sequence, where no other sequence has written to it, and where the
 * run has the sequence's highest positions: the cells that are not written yet must be above every query. */
static bool open_last_run(tn__page_table *t, int32_t seq) {
    tn__sequence_runs *s = &t->sequences[seq];
    int32_t lowest, highest;
    if (s->open || !s->n) return s->open;
    tn_page_run *last = &tn__page_entries(t, seq)[s->n];
    tn__page *p = &t->pages[page_of(t, *last)];
    if (last->divisor != 1 || p->writer >= 0 || run_end_in_page(t, *last) != p->used || p->used == t->page)
        return false;
    (void)tn__pages_extent(t, seq, &lowest, &highest);
    if (highest != last->first + last->count - 1) return false;
    p->writer = seq;
    s->open = true;
    if (t->causal) {
        last->count += t->page - p->used;
        touch_entries(t, seq, s->n, s->n + 1);
    }
    return true;
}

/* If only this sequence uses a page, its written cells end with the last cell that the sequence sees. */
static void trim_private_pages(tn__page_table *t, int32_t seq) {
    const int32_t n = t->sequences[seq].n;
    const tn_page_run *runs = tn__page_entries(t, seq) + 1;
    for (int32_t i = 0; i < n; i++) {
        const int32_t page = page_of(t, runs[i]);
        int32_t named = 0, end = 0;
        if (i && page_of(t, runs[i - 1]) == page) continue;
        /* Runs of one page must be adjacent; otherwise the page is not moved. */
        for (int32_t k = i; k < n && page_of(t, runs[k]) == page; k++) {
            named++;
            end = TN__MAX(end, run_end_in_page(t, runs[k]));
        }
        tn__page *p = &t->pages[page];
        if (named != p->refs || end >= p->used) continue;
        t->used -= p->used - end;
        p->used = end;
    }
}

bool tn__page_is_private(const tn__page_table *t, int32_t seq, int32_t i) {
    const tn_page_run *runs = tn__page_entries(t, seq) + 1;
    const int32_t page = page_of(t, runs[i]);
    int32_t named = 0;
    if (t->pages[page].refs == 1) return true;
    for (int32_t k = 0; k < t->sequences[seq].n; k++) named += page_of(t, runs[k]) == page;
    return named == t->pages[page].refs;
}

static tn_page_run *list_in_progress(const tn__page_table *t) { return tn__page_entries(t, tn__page_lists(t)) + 1; }

/* Adds a run to the list in progress, merged with the previous one if it continues that. False: the list is
 * full. */
static bool list_run(const tn__page_table *t, int32_t *n, tn_page_run run) {
    tn_page_run *list = list_in_progress(t), *last = &list[*n - 1];
    if (run.count < 1) return true;
    if (*n && last->cell + last->count == run.cell && page_of(t, *last) == page_of(t, run) &&
        last->divisor == run.divisor && last->first + last->count == run.first) {
        last->count += run.count;
        return true;
    }
    if (*n == t->max_runs) return false;
    list[(*n)++] = run;
    return true;
}
static tn_page_run part_of_run(tn_page_run run, int32_t from, int32_t to) {
    return (tn_page_run){run.cell + from, to - from, run.first + from, run.divisor};
}

/* Gives a sequence the list in progress. */
static void replace_runs(tn__page_table *t, int32_t seq, int32_t n) {
    tn__sequence_runs *s = &t->sequences[seq];
    tn_page_run *runs = tn__page_entries(t, seq) + 1, *list = list_in_progress(t);
    close_last_run(t, seq);
    for (int32_t i = 0; i < n; i++) name_page(t, list[i]);
    for (int32_t i = 0; i < s->n; i++) unname_page(t, runs[i]);
    int32_t same = 0;
    while (same < n && same < s->n && memcmp(&runs[same], &list[same], sizeof *runs) == 0) same++;
    memcpy(runs + same, list + same, (size_t)(n - same) * sizeof *runs);
    if (same < n) touch_entries(t, seq, 1 + same, 1 + n);
    if (n != s->n) set_run_count(t, seq, n);
    s->tail = n ? runs[n - 1].count : 0;
    trim_private_pages(t, seq);
    t->changes++;
}

static tn_status fail_runs(const tn__page_table *t, int32_t seq) {
    return tn_fail(TN_E_FULL, "sequence %d would have more than %d runs of cells: defragment the session", seq,
                   t->max_runs);
}

/* The cells of a run whose positions are in from … to - 1: [*begin, *end). */
static void cells_between(tn_page_run run, int32_t from, int32_t to, int32_t *begin, int32_t *end) {
    const int64_t low = (int64_t)TN__MAX(from, 0) * run.divisor - run.first;
    const int64_t high = to < 0 ? run.count : (int64_t)to * run.divisor - run.first;
    *begin = (int32_t)TN__MIN(TN__MAX(low, 0), run.count);
    *end = (int32_t)TN__MIN(TN__MAX(high, *begin), run.count);
}

/* ---- Taking cells ---- */

static void begin_taking(tn__page_table *t, int32_t seq) {
    tn__sequence_runs *s = &t->sequences[seq];
    if (s->batch == t->batch) return;
    s->batch = t->batch;
    s->runs = s->n;
    s->room = 0;
    if (!open_last_run(t, seq)) return;
    const tn_page_run last = tn__page_run_at(t, seq, s->n - 1);
    s->room = t->page - run_end_in_page(t, last);
    s->next_position = last.first + last.count;
}

/* Whether no sequence gets too many runs, if every new run has its own page. */
static bool runs_fit(tn__page_table *t, int32_t n, const int32_t *positions, const int32_t *seqs) {
    t->batch++;
    for (int32_t i = 0; i < n; i++) {
        tn__sequence_runs *s = &t->sequences[seqs[i]];
        begin_taking(t, seqs[i]);
        if (s->room < 1 || positions[i] != s->next_position) {
            if (++s->runs > t->max_runs) return false;
            s->room = t->page;
        }
        s->room--;
        s->next_position = positions[i] + 1;
    }
    return true;
}

/* The first cell of a new run: of a free page, or, when there is none, the first cell that is not written in another
 * page; -1: every cell is written. */
static int32_t begin_run(tn__page_table *t) {
    int32_t page = tn__pages_new(t);
    if (page >= 0) return page * t->page;
    for (int32_t i = 0; i < t->n_pages; i++) {
        if (t->pages[i].used == t->page) continue;
        if (page < 0 || t->pages[page].writer >= 0) page = i;
        if (t->pages[page].writer < 0) break;
    }
    if (page < 0) return -1;
    if (t->pages[page].writer >= 0) close_last_run(t, t->pages[page].writer);
    return page * t->page + t->pages[page].used;
}

/* -1: there is none. */
static int32_t take_cell(tn__page_table *t, int32_t seq, int32_t position) {
    tn__sequence_runs *s = &t->sequences[seq];
    tn_page_run *runs = tn__page_entries(t, seq) + 1, *last = &runs[s->n - 1];
    if (s->open) {
        tn__page *p = &t->pages[page_of(t, *last)];
        if (p->used < t->page && last->first + s->tail == position) {
            const int32_t cell = last->cell + s->tail++;
            p->used++;
            t->used++;
            if (!t->causal) {
                last->count = s->tail;
                touch_entries(t, seq, s->n, s->n + 1);
            }
            return cell;
        }
        close_last_run(t, seq);
    }
    const int32_t cell = s->n < t->max_runs ? begin_run(t) : -1;
    if (cell < 0) return -1;
    const tn_page_run run = {cell, 1, position, 1};
    name_page(t, run);
    runs[s->n] = run;
    set_run_count(t, seq, s->n + 1);
    touch_entries(t, seq, s->n, s->n + 1);
    s->tail = 1;
    (void)open_last_run(t, seq);
    return run.cell;
}

/* Undoes the last allocation of a cell. */
static void untake_cell(tn__page_table *t, int32_t seq, int32_t cell) {
    tn__sequence_runs *s = &t->sequences[seq];
    tn__page *p = &t->pages[cell / t->page];
    int32_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        tn_page_run run = tn__page_run_at(t, seq, i);
        run.count -= i + 1 == s->n;
        (void)list_run(t, &n, run);
    }
    replace_runs(t, seq, n);
    if (p->used == cell % t->page + 1) { /* the page is shared */
        p->used--;
        t->used--;
    }
}

/* There are cells, but a sequence has no entry for them. */
static tn_status fail_pieces(tn__page_table *t) {
    t->fragmented = true;
    return tn_fail(TN_E_FULL,
                   "the cells of a sequence would be in more than %d pieces, although %d of %d are free; remove a "
                   "sequence, leave fewer gaps in positions, or use a larger context",
                   t->max_runs, TN__MAX(t->limit - t->used, 0), t->limit);
}

tn_status tn__pages_take(tn__page_table *t, int32_t n, const int32_t *positions, const int32_t *seqs, int32_t *rows) {
    t->fragmented = false;
    if (t->used + n > t->limit) return tn__pages_fail_full(t, n);
    if (!runs_fit(t, n, positions, seqs)) return fail_pieces(t);
    for (int32_t i = 0; i < n; i++) {
        rows[i] = take_cell(t, seqs[i], positions[i]);
        if (rows[i] >= 0) continue;
        while (--i >= 0) untake_cell(t, seqs[i], rows[i]);
        return fail_pieces(t);
    }
    t->peak = TN__MAX(t->peak, t->used);
    t->changes++;
    return TN_OK;
}

int32_t tn__pages_next_cell(const tn__page_table *t, int32_t seq, int32_t position) {
    const tn__sequence_runs *s = &t->sequences[seq];
    if (!s->open || !t->causal || t->used >= t->limit) return -1;
    const tn_page_run last = tn__page_run_at(t, seq, s->n - 1);
    const bool fits = run_end_in_page(t, last) < t->page && last.first + last.count == position;
    return fits ? last.cell + last.count : -1;
}

void tn__pages_leave_window(tn__page_table *t, int32_t n, const int32_t *positions, const int32_t *seqs) {
    if (!t->window) return;
    t->batch++;
    for (int32_t i = 0; i < n; i++) {
        const int32_t seq = seqs[i];
        tn__sequence_runs *s = &t->sequences[seq];
        if (s->batch == t->batch) continue;
        s->batch = t->batch;
        int32_t left = 0, kept = 0;
        for (int32_t k = 0; k < s->n; k++) {
            const tn_page_run run = tn__page_run_at(t, seq, k);
            if (positions[i] - tn__run_position(run, run.count - 1) >= t->window)
                left++;
            else
                (void)list_run(t, &kept, run);
        }
        if (left) replace_runs(t, seq, kept);
    }
}

/* ---- Removing, copying, cutting ---- */

tn_status tn__pages_remove(tn__page_table *t, int32_t seq, int32_t from, int32_t to) {
    const int32_t count = t->sequences[seq].n;
    int32_t n = 0, removed = 0;
    for (int32_t i = 0; i < count; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        int32_t begin, end;
        cells_between(run, from, to, &begin, &end);
        removed += end - begin;
        if (!list_run(t, &n, part_of_run(run, 0, begin)) || !list_run(t, &n, part_of_run(run, end, run.count)))
            return fail_runs(t, seq);
    }
    if (!removed) return TN_OK;
    replace_runs(t, seq, n);
    t->removed = TN__MIN(t->removed, INT32_MAX - removed) + removed;
    return TN_OK;
}

/* Adds those of the run's cells that the sequence does not see yet: the ones from run `i` of the sequence on. */
static bool list_unseen(const tn__page_table *t, int32_t seq, int32_t i, int32_t *n, tn_page_run run) {
    for (; i < t->sequences[seq].n; i++) {
        const tn_page_run seen = tn__page_run_at(t, seq, i);
        const int32_t begin = TN__MAX(seen.cell, run.cell),
                      end = TN__MIN(seen.cell + seen.count, run.cell + run.count);
        if (begin >= end) continue;
        return list_unseen(t, seq, i + 1, n, part_of_run(run, 0, begin - run.cell)) &&
               list_unseen(t, seq, i + 1, n, part_of_run(run, end - run.cell, run.count));
    }
    return list_run(t, n, run);
}

tn_status tn__pages_copy(tn__page_table *t, int32_t source, int32_t target, int32_t from, int32_t to) {
    int32_t n = 0;
    if (source == target) return TN_OK;
    for (int32_t i = 0; i < t->sequences[target].n; i++)
        if (!list_run(t, &n, tn__page_run_at(t, target, i))) return fail_runs(t, target);
    for (int32_t i = 0; i < t->sequences[source].n; i++) {
        const tn_page_run run = tn__page_run_at(t, source, i);
        int32_t begin, end;
        cells_between(run, from, to, &begin, &end);
        if (begin < end && !list_unseen(t, target, 0, &n, part_of_run(run, begin, end))) return fail_runs(t, target);
    }
    replace_runs(t, target, n);
    return TN_OK;
}

/* As list_run, but never joined with the run before. */
static bool list_cut(const tn__page_table *t, int32_t *n, tn_page_run run) {
    if (run.count < 1) return true;
    if (*n == t->max_runs) return false;
    list_in_progress(t)[(*n)++] = run;
    return true;
}

tn_status tn__pages_cut(tn__page_table *t, int32_t seq, int32_t from, int32_t to) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        int32_t begin, end;
        cells_between(run, from, to, &begin, &end);
        if (!list_cut(t, &n, part_of_run(run, 0, begin)) || !list_cut(t, &n, part_of_run(run, begin, end)) ||
            !list_cut(t, &n, part_of_run(run, end, run.count)))
            return fail_runs(t, seq);
    }
    replace_runs(t, seq, n);
    return TN_OK;
}

void tn__pages_set_positions(tn__page_table *t, int32_t seq, int32_t i, int32_t first, int32_t divisor) {
    tn_page_run *run = &tn__page_entries(t, seq)[1 + i];
    run->first = first;
    run->divisor = divisor;
    touch_entries(t, seq, 1 + i, 2 + i);
}

bool tn__pages_shared(const tn__page_table *t, int32_t seq, int32_t i) {
    const tn_page_run run = tn__page_run_at(t, seq, i);
    if (tn__page_is_private(t, seq, i)) return false;
    for (int32_t other = 0; other < tn__page_lists(t); other++)
        for (int32_t k = 0; other != seq && k < t->sequences[other].n; k++) {
            const tn_page_run seen = tn__page_run_at(t, other, k);
            if (seen.cell < run.cell + run.count && run.cell < seen.cell + seen.count) return true;
        }
    return false;
}

tn_status tn__pages_detach(tn__page_table *t, int32_t seq, int32_t i, int32_t *from, int32_t *to) {
    close_last_run(t, seq);
    tn_page_run *run = &tn__page_entries(t, seq)[1 + i];
    const tn_page_run old = *run;
    const int32_t page = tn__pages_new(t);
    if (page < 0) return tn__pages_fail_full(t, old.count);
    run->cell = page * t->page;
    name_page(t, *run);
    unname_page(t, old);
    touch_entries(t, seq, 1 + i, 2 + i);
    for (int32_t k = 0; k < old.count; k++) {
        from[k] = old.cell + k;
        to[k] = run->cell + k;
    }
    return TN_OK;
}

tn_status tn__pages_append(tn__page_table *t, int32_t seq, tn_page_run run) {
    tn__sequence_runs *s = &t->sequences[seq];
    if (s->n == t->max_runs) return fail_runs(t, seq);
    close_last_run(t, seq);
    name_page(t, run);
    tn__page_entries(t, seq)[1 + s->n] = run;
    set_run_count(t, seq, s->n + 1);
    touch_entries(t, seq, s->n, s->n + 1);
    s->tail = run.count;
    t->peak = TN__MAX(t->peak, t->used);
    return TN_OK;
}

bool tn__pages_extent(const tn__page_table *t, int32_t seq, int32_t *first, int32_t *last) {
    const int32_t n = t->sequences[seq].n;
    *first = INT32_MAX;
    *last = -1;
    for (int32_t i = 0; i < n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        *first = TN__MIN(*first, tn__run_position(run, 0));
        *last = TN__MAX(*last, tn__run_position(run, run.count - 1));
    }
    return n > 0;
}

int32_t tn__pages_freed_by(tn__page_table *t, int32_t begin, int32_t end) {
    int32_t freed = 0;
    memset(t->numbers, 0, (size_t)t->n_pages * sizeof *t->numbers);
    for (int32_t seq = begin; seq < end; seq++)
        for (int32_t i = 0; i < t->sequences[seq].n; i++) {
            const int32_t page = page_of(t, tn__page_entries(t, seq)[1 + i]);
            freed += ++t->numbers[page] == t->pages[page].refs;
        }
    return freed;
}

/* ---- Renumbering ---- */

void tn__pages_close_runs(tn__page_table *t) {
    for (int32_t list = 0; list < tn__page_lists(t); list++) close_last_run(t, list);
}

/* One past the run's cells from `begin` on whose numbers are consecutive and in one page. */
static int32_t numbered_end(const tn__page_table *t, tn_page_run run, int32_t begin) {
    const int32_t first = t->numbers[run.cell + begin], end_of_page = t->page - first % t->page;
    int32_t n = 1;
    while (begin + n < run.count && n < end_of_page && t->numbers[run.cell + begin + n] == first + n) n++;
    return begin + n;
}

/* Lists a sequence's runs with the cells' numbers instead of the cells. */
static bool list_numbered(const tn__page_table *t, int32_t list, int32_t *n) {
    for (int32_t i = 0; i < t->sequences[list].n; i++) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        for (int32_t begin = 0, end; begin < run.count; begin = end) {
            end = numbered_end(t, run, begin);
            tn_page_run part = part_of_run(run, begin, end);
            part.cell = t->numbers[run.cell + begin];
            if (!list_run(t, n, part)) return false;
        }
    }
    return true;
}

bool tn__pages_can_renumber(const tn__page_table *t) {
    for (int32_t list = 0; list < tn__page_lists(t); list++) {
        int32_t n = 0;
        if (!list_numbered(t, list, &n)) return false;
    }
    return true;
}

void tn__pages_renumber(tn__page_table *t) {
    for (int32_t i = 0; i < t->n_pages; i++) t->pages[i] = (tn__page){.writer = -1};
    t->used = 0;
    for (int32_t list = 0; list < tn__page_lists(t); list++) {
        tn__sequence_runs *s = &t->sequences[list];
        tn_page_run *runs = tn__page_entries(t, list) + 1;
        int32_t n = 0;
        s->moves = false;
        if (!s->n) continue;
        (void)list_numbered(t, list, &n);
        for (int32_t i = 0; i < n; i++) name_page(t, list_in_progress(t)[i]);
        if (n == s->n && memcmp(runs, list_in_progress(t), (size_t)n * sizeof *runs) == 0) continue;
        memcpy(runs, list_in_progress(t), (size_t)n * sizeof *runs);
        s->moves = true;
        touch_entries(t, list, 1, 1 + n);
        set_run_count(t, list, n);
        s->tail = runs[n - 1].count;
    }
    t->n_free = 0;
    for (int32_t i = t->n_pages - 1; i >= 0; i--)
        if (!t->pages[i].refs) t->free_pages[t->n_free++] = i;
}
