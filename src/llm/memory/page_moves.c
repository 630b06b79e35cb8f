/* Moving cells: where the contents of a page table's cells go, and in which steps. */
#include "llm/memory/page_table.h"

#include <string.h>

/* A sequence that has this many runs more than its cells need is joined. */
enum { MANY_RUNS = 16 };

static int32_t page_of_run(const tn__page_table *t, int32_t list, int32_t i) {
    return tn__page_entries(t, list)[1 + i].cell / t->page;
}

int32_t tn__pages_number(tn__page_table *t, int32_t begin, int32_t end) {
    const int32_t cells = tn__page_table_cells(t);
    int32_t n = 0;
    memset(t->numbers, 0, (size_t)cells * sizeof *t->numbers);
    for (int32_t i = begin; i < end; i++)
        for (int32_t k = 0; k < t->sequences[i].n; k++) {
            const tn_page_run run = tn__page_run_at(t, i, k);
            for (int32_t c = 0; c < run.count; c++) t->numbers[run.cell + c] = 1;
        }
    for (int32_t i = 0; i < cells; i++) t->numbers[i] = t->numbers[i] ? n++ : -1;
    return n;
}

/* Whether the page's cells belong to this list alone, and it was not chosen as a target yet. */
static bool is_next_target(const tn__page_table *t, int32_t list, int32_t i) {
    return !t->pages[page_of_run(t, list, i)].is_target && tn__page_is_private(t, list, i);
}

/* Numbers the cells of the list's private pages in the list's order, page by page. Other cells stay where they are.
 */
static void order_private_cells(tn__page_table *t, int32_t list) {
    int32_t next = 0, target = 0, filled = t->page;
    for (int32_t i = 0; i < t->sequences[list].n; i++) {
        const tn_page_run run = tn__page_run_at(t, list, i);
        const bool is_private = tn__page_is_private(t, list, i);
        for (int32_t c = 0; c < run.count; c++) {
            if (!is_private) {
                t->numbers[run.cell + c] = run.cell + c;
                continue;
            }
            if (filled == t->page) {
                while (!is_next_target(t, list, next)) next++;
                target = page_of_run(t, list, next);
                t->pages[target].is_target = true;
                filled = 0;
            }
            t->numbers[run.cell + c] = target * t->page + filled++;
        }
    }
}

bool tn__pages_order(tn__page_table *t) {
    const int32_t cells = tn__page_table_cells(t);
    tn__pages_close_runs(t);
    for (int32_t i = 0; i < cells; i++) t->numbers[i] = -1;
    for (int32_t list = 0; list < tn__page_lists(t); list++) order_private_cells(t, list);
    for (int32_t i = 0; i < t->n_pages; i++) t->pages[i].is_target = false;
    return tn__pages_can_renumber(t);
}

bool tn__pages_pack(tn__page_table *t) {
    const int32_t cells = tn__page_table_cells(t);
    int32_t n = 0;
    tn__pages_close_runs(t);
    for (int32_t i = 0; i < cells; i++) t->numbers[i] = -1;
    for (int32_t list = 0; list < tn__page_lists(t); list++)
        for (int32_t i = 0; i < t->sequences[list].n; i++) {
            const tn_page_run run = tn__page_run_at(t, list, i);
            for (int32_t c = 0; c < run.count; c++)
                if (t->numbers[run.cell + c] < 0) t->numbers[run.cell + c] = n++;
        }
    return tn__pages_can_renumber(t);
}

bool tn__pages_need_packing(tn__page_table *t) {
    if (tn__pages_number(t, 0, tn__page_lists(t)) != t->used) return true;
    for (int32_t list = 0; list < tn__page_lists(t); list++) {
        int32_t n = 0;
        for (int32_t i = 0; i < t->sequences[list].n; i++) n += tn__page_run_at(t, list, i).count;
        if (t->sequences[list].n > n / t->page + MANY_RUNS) return true;
    }
    return false;
}

int32_t tn__pages_move(tn__page_table *t, int32_t *at, int32_t room, int32_t *from, int32_t *to) {
    const int32_t cells = tn__page_table_cells(t);
    int32_t *numbers = t->numbers, n = 0;
    for (; *at < cells; ++*at) {
        const int32_t first = *at;
        int32_t cell = first, next = numbers[first];
        if (next < 0 || next == first) continue;
        /* Follows the cells that are displaced, to one without content or back to the first. */
        while (next != first && n + 1 < room) {
            const int32_t displaced = numbers[next];
            from[n] = cell;
            to[n++] = next;
            numbers[next] = next;
            cell = next;
            next = displaced;
            if (next < 0) break;
        }
        if (next < 0) {
            numbers[first] = -1;
            continue;
        }
        if (cell == first) break; /* no room for a move and its way back */
        from[n] = cell;           /* to its number, or, where the room ends, on the way there */
        to[n++] = first;
        numbers[first] = next;
        if (next != first) break;
    }
    return n;
}
