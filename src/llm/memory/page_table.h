/* Page tables: which cells of a group of layers are in use, and the runs of cells that every sequence sees.
 *
 * The cells of a group are divided into pages of equal size. A sequence sees a list of runs: consecutive cells inside
 * one page with consecutive positions. Several runs, of one sequence or of several, may refer to the same page; a
 * page is free when no run refers to it. Cells of a page are written in order; `used` counts those written. A
 * sequence appends to its last page if its last run ends at the last written cell; otherwise it begins a new page.
 * Cells that other sequences see therefore never change, and sharing needs no copies.
 *
 * This module has only the tables. The cells' contents, and the copies of the tables on devices, are in kv_cache.c.
 */
#ifndef TN_LLM_MEMORY_PAGE_TABLE_H
#define TN_LLM_MEMORY_PAGE_TABLE_H

#include <tenon/tensor.h>

typedef struct tn__page {
    int32_t refs;   /* runs that refer to the page; 0: free */
    int32_t used;   /* cells written */
    int32_t writer; /* the sequence whose last run is open here, -1 for none */
    bool is_target; /* used by tn__pages_order */
} tn__page;

typedef struct tn__sequence_runs {
    int32_t n;
    int32_t tail; /* cells of the last run; its table entry has a larger count while the run is open */
    bool open;    /* the last run's entry covers the rest of its page */
    bool moves;   /* the last renumbering has changed its cells */
    int32_t dirty_first, dirty_end; /* entries not yet sent to the devices; entry 0 is the header */
    /* Used while cells are allocated for a batch. */
    int32_t next_position, room, runs;
    uint32_t batch;
} tn__sequence_runs;

typedef struct tn__page_table {
    int32_t n_pages;         /* 0: the group is not used */
    int32_t page;            /* cells per page */
    int32_t limit;           /* cells that may be in use */
    int32_t window;          /* 0: none; otherwise pages outside the window are freed */
    bool causal;             /* last runs may be open: cells above a query's position are hidden */
    int32_t n_seqs, n_lists; /* sequences; with the lists of kept prefixes, which only the host has */
    int32_t n_branches; /* lists after those: branches of trees of guesses, which devices have after the sequences */
    int32_t max_runs;
    tn__page *pages;
    int32_t *free_pages, n_free;
    int32_t *numbers;  /* per cell: of tn__pages_number, or where its content moves to */
    tn_page_run *runs; /* [lists][1 + max_runs]: the tables as devices see them */
    tn__sequence_runs *sequences;
    int32_t used, peak; /* cells */
    bool fragmented;    /* tn__pages_take has just failed for a sequence's number of runs, not for cells */
    int32_t removed;    /* cells that sequences have lost since pages were last examined for compaction */
    uint32_t changes;   /* of the tables so far */
    uint32_t batch;
} tn__page_table;

/* Cells per page for a pool of n_ctx tokens: 64, less where the last pages of n_seqs sequences are a large part. */
int32_t tn__page_size(int32_t n_ctx, int32_t n_seqs);
/* Sizes a table; takes no memory. A pool of `cells` tokens; with a window, as many as the windows of all sequences
 * and `n_ubatch` new tokens need. TN_E_TOO_BIG. */
tn_status tn__page_table_size(tn__page_table *table, int32_t cells, int32_t page, int32_t window, int32_t n_ubatch,
                              int32_t n_seqs, int32_t n_kept, int32_t n_checkpoints, bool causal);
/* Adds lists of branches, and pages for the tokens of each branch. TN_E_TOO_BIG. */
tn_status tn__page_table_add_branches(tn__page_table *table, int32_t n, int32_t tokens);
/* Host memory that tn__page_table_allocate takes. */
tn_status tn__page_table_bytes(const tn__page_table *table, size_t *bytes);
tn_status tn__page_table_allocate(tn__page_table *table);
void tn__page_table_free(tn__page_table *table);
/* Lists of all kinds. */
static inline int32_t tn__page_lists(const tn__page_table *t) { return t->n_lists + t->n_branches; }
static inline int32_t tn__page_table_cells(const tn__page_table *t) { return t->n_pages * t->page; }

/* The entries of a sequence: its header, then the runs. */
static inline tn_page_run *tn__page_entries(const tn__page_table *t, int32_t seq) {
    return t->runs + (size_t)seq * (size_t)(1 + t->max_runs);
}
/* Run i of a sequence, with the cells that are written. */
static inline tn_page_run tn__page_run_at(const tn__page_table *t, int32_t seq, int32_t i) {
    tn_page_run run = tn__page_entries(t, seq)[1 + i];
    if (i + 1 == t->sequences[seq].n) run.count = t->sequences[seq].tail;
    return run;
}
static inline int32_t tn__run_position(tn_page_run run, int32_t cell) {
    return (int32_t)(((int64_t)run.first + cell) / run.divisor);
}

/* Allocates a cell for every token and lists the cells. TN_E_FULL: there are too few; nothing has changed. */
tn_status tn__pages_take(tn__page_table *table, int32_t n, const int32_t *positions, const int32_t *seqs,
                         int32_t *rows);
/* The cell of the sequence's next token, if allocating it does not change the devices' table, or -1. */
int32_t tn__pages_next_cell(const tn__page_table *table, int32_t seq, int32_t position);
/* Frees runs outside the window of every later query. The first token of each sequence in the batch has its lowest
 * position.
 */
void tn__pages_leave_window(tn__page_table *table, int32_t n, const int32_t *positions, const int32_t *seqs);
/* Removes the positions from … to - 1 of a sequence; to < 0: to its end. TN_E_FULL: the table has no entry for
 * the run that is cut in two; nothing has changed. */
tn_status tn__pages_remove(tn__page_table *table, int32_t seq, int32_t from, int32_t to);
/* The target sees the source's cells at these positions too. TN_E_FULL as above. */
tn_status tn__pages_copy(tn__page_table *table, int32_t source, int32_t target, int32_t from, int32_t to);
/* Cuts runs so that each lies inside or outside the positions from … to - 1, and closes the last. TN_E_FULL as above.
 */
tn_status tn__pages_cut(tn__page_table *table, int32_t seq, int32_t from, int32_t to);
/* Changes the first position and the divisor of a run. */
void tn__pages_set_positions(tn__page_table *table, int32_t seq, int32_t run, int32_t first, int32_t divisor);
/* Whether another sequence sees cells of the run. */
bool tn__pages_shared(const tn__page_table *table, int32_t seq, int32_t run);
/* Moves a run's cells to a new page and lists old and new cells. TN_E_FULL. */
tn_status tn__pages_detach(tn__page_table *table, int32_t seq, int32_t run, int32_t *from, int32_t *to);
/* Adds a run at the end of a sequence; its cells count as written. TN_E_FULL. */
tn_status tn__pages_append(tn__page_table *table, int32_t seq, tn_page_run run);
/* Allocates a page, or -1. The caller refers to it in runs immediately or frees it. */
int32_t tn__pages_new(tn__page_table *table);
/* Frees a new page unless a run refers to it. */
void tn__pages_give_back(tn__page_table *table, int32_t page);
/* The lowest and the highest position of a sequence; false if it sees none. */
bool tn__pages_extent(const tn__page_table *table, int32_t seq, int32_t *first, int32_t *last);
/* Pages that become free when the sequences begin … end - 1 are removed. */
int32_t tn__pages_freed_by(tn__page_table *table, int32_t begin, int32_t end);
/* Numbers the cells that the sequences begin … end - 1 see, in order: table->numbers, -1 for the others. Returns how
 * many. */
int32_t tn__pages_number(tn__page_table *table, int32_t begin, int32_t end);

/* Moving the contents of cells: tn__pages_order or tn__pages_pack numbers every cell that a list sees by the cell
 * that its content moves to, tn__pages_renumber changes the lists, and tn__pages_move lists the moves. The first two
 * return false, and nothing may be moved, if a list had too many runs then. All runs are closed. */

/* Every list fills its private pages in its own order, one after the other; the pages at the end become free. */
bool tn__pages_order(tn__page_table *table);
/* All cells move to the front, list by list: unwritten cells follow the last one. */
bool tn__pages_pack(tn__page_table *table);
/* Whether packing frees cells that no list sees, or shortens a list with many more runs than its cells need. */
bool tn__pages_need_packing(tn__page_table *table);
/* Whether every list has enough entries for its runs when its cells have their numbers. */
bool tn__pages_can_renumber(const tn__page_table *table);
void tn__pages_renumber(tn__page_table *table);
void tn__pages_close_runs(tn__page_table *table);
/* Whether only this sequence sees cells of the run's page. */
bool tn__page_is_private(const tn__page_table *table, int32_t seq, int32_t run);
/* The next moves, at most `room` (2 or more): all cells are read before any is written. *at is 0 at first. Returns
 * their number; 0: nothing is left to move. */
int32_t tn__pages_move(tn__page_table *table, int32_t *at, int32_t room, int32_t *from, int32_t *to);
/* Returns TN_E_FULL with a message that has the numbers of cells. */
tn_status tn__pages_fail_full(const tn__page_table *table, int32_t n);

#endif
