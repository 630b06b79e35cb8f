/* Page tables against a plain model: every sequence is a list of (position, content), every cell a content. */
#include "support.h"

#include "base/checked.h"
#include "llm/memory/page_table.h"

#include <stdlib.h>
#include <string.h>

enum { FEW_SEQS = 5, MAX_SEQS = 65, MAX_CELLS = 512, MAX_TOKENS = 2048, MOVE_CELLS = 256 };

typedef struct expected_token {
    int32_t position, content;
} expected_token;

typedef struct page_model {
    tn__page_table table;
    int32_t cells[MAX_CELLS]; /* contents */
    tn_page_run device[MAX_SEQS][1 + MAX_TOKENS];
    expected_token tokens[MAX_SEQS][MAX_TOKENS];
    int32_t n[MAX_SEQS], next_content;
    rng random;
} page_model;

static int compare_tokens(const void *a, const void *b) {
    const expected_token *x = a, *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return (x->content > y->content) - (x->content < y->content);
}

static int32_t below(page_model *m, int32_t n) { return (int32_t)rng_below(&m->random, (uint64_t)n); }

/* ---- What must hold after every operation ---- */

static void send_to_device(page_model *m) {
    tn__page_table *t = &m->table;
    for (int32_t seq = 0; seq < t->n_seqs; seq++) {
        tn__sequence_runs *s = &t->sequences[seq];
        for (int32_t i = s->dirty_first; i < s->dirty_end; i++) m->device[seq][i] = tn__page_entries(t, seq)[i];
        s->dirty_first = s->dirty_end = 0;
    }
}

/* What a causal query after the sequence's last token sees through the device's table. */
static int32_t seen_tokens(const page_model *m, int32_t seq, int32_t last, expected_token *seen) {
    const tn_page_run *entries = m->device[seq];
    int32_t n = 0;
    assert_int_equal(entries[0].cell, m->table.sequences[seq].n);
    for (int32_t i = 1; i <= entries[0].cell; i++) {
        const tn_page_run run = entries[i];
        assert_in_range(run.count, 1, m->table.page);
        assert_int_equal(run.cell / m->table.page, (run.cell + run.count - 1) / m->table.page);
        for (int32_t c = 0; c < run.count; c++)
            if (!m->table.causal || tn__run_position(run, c) <= last)
                seen[n++] = (expected_token){tn__run_position(run, c), m->cells[run.cell + c]};
    }
    return n;
}

static void check_tables(page_model *m) {
    static expected_token seen[MAX_TOKENS];
    const tn__page_table *t = &m->table;
    int32_t refs[MAX_CELLS] = {0}, used = 0, n_free = 0;
    send_to_device(m);
    for (int32_t seq = 0; seq < t->n_seqs; seq++) {
        int32_t first, last = -1;
        qsort(m->tokens[seq], (size_t)m->n[seq], sizeof **m->tokens, compare_tokens);
        assert_int_equal(tn__pages_extent(t, seq, &first, &last), m->n[seq] > 0);
        if (m->n[seq]) {
            assert_int_equal(first, m->tokens[seq][0].position);
            assert_int_equal(last, m->tokens[seq][m->n[seq] - 1].position);
        }
        const int32_t n = seen_tokens(m, seq, last, seen);
        assert_int_equal(n, m->n[seq]);
        qsort(seen, (size_t)n, sizeof *seen, compare_tokens);
        assert_memory_equal(seen, m->tokens[seq], (size_t)n * sizeof *seen);
        for (int32_t i = 0; i < t->sequences[seq].n; i++) {
            const tn_page_run run = tn__page_run_at(t, seq, i);
            refs[run.cell / t->page]++;
            assert_true(run.cell % t->page + run.count <= t->pages[run.cell / t->page].used);
        }
    }
    for (int32_t i = 0; i < t->n_pages; i++) {
        assert_int_equal(t->pages[i].refs, refs[i]);
        if (!refs[i]) assert_int_equal(t->pages[i].used, 0);
        used += t->pages[i].used;
        n_free += !refs[i];
    }
    assert_int_equal(t->used, used);
    assert_int_equal(t->n_free, n_free);
}

/* ---- Operations ---- */

static int32_t last_position(const page_model *m, int32_t seq) {
    int32_t last = -1;
    for (int32_t i = 0; i < m->n[seq]; i++) last = TN__MAX(last, m->tokens[seq][i].position);
    return last;
}

static void leave_window(page_model *m, int32_t seq, int32_t position) {
    const tn__page_table *t = &m->table;
    int32_t n = 0;
    if (!t->window) return;
    /* Whole runs leave: what a run keeps behind the window is what the table still shows. */
    for (int32_t i = 0; i < m->n[seq]; i++) {
        const expected_token token = m->tokens[seq][i];
        bool kept = position - token.position < t->window;
        for (int32_t k = 0; k < t->sequences[seq].n && !kept; k++) {
            const tn_page_run run = tn__page_run_at(t, seq, k);
            for (int32_t c = 0; c < run.count; c++) kept = kept || m->cells[run.cell + c] == token.content;
        }
        if (kept) m->tokens[seq][n++] = token;
    }
    m->n[seq] = n;
}

static void take_some(page_model *m) {
    tn__page_table *t = &m->table;
    int32_t positions[32], seqs[32], rows[32], next[MAX_SEQS];
    const int32_t n = 1 + below(m, below(m, 4) ? 4 : 32);
    for (int32_t seq = 0; seq < t->n_seqs; seq++)
        next[seq] = last_position(m, seq) + 1 + (below(m, 16) ? 0 : below(m, 5));
    for (int32_t i = 0; i < n; i++) {
        seqs[i] = i && below(m, 3) ? seqs[i - 1] : below(m, t->n_seqs);
        positions[i] = next[seqs[i]]++;
    }
    bool begun[MAX_SEQS] = {0};
    tn__pages_leave_window(t, n, positions, seqs);
    for (int32_t i = 0; i < n; i++) {
        if (!begun[seqs[i]]) leave_window(m, seqs[i], positions[i]);
        begun[seqs[i]] = true;
    }
    const int32_t next_cell = n == 1 ? tn__pages_next_cell(t, seqs[0], positions[0]) : -1;
    const int32_t before = t->used;
    const tn_status status = tn__pages_take(t, n, positions, seqs, rows);
    if (status != TN_OK) {
        assert_int_equal(status, TN_E_FULL);
        assert_int_equal(t->used, before);
        return;
    }
    assert_true(t->used == before + n && t->used <= t->limit && t->peak >= t->used);
    if (next_cell >= 0) assert_int_equal(rows[0], next_cell);
    for (int32_t i = 0; i < n; i++) {
        m->cells[rows[i]] = m->next_content;
        m->tokens[seqs[i]][m->n[seqs[i]]++] = (expected_token){positions[i], m->next_content++};
    }
}

static void random_range(page_model *m, int32_t seq, int32_t *from, int32_t *to) {
    const int32_t last = last_position(m, seq);
    *from = below(m, last + 2);
    *to = below(m, 3) ? *from + below(m, last + 2 - *from + 1) : -1;
}
static bool between(int32_t position, int32_t from, int32_t to) {
    return position >= from && (to < 0 || position < to);
}

static void remove_some(page_model *m) {
    const int32_t seq = below(m, m->table.n_seqs);
    int32_t from, to, n = 0;
    random_range(m, seq, &from, &to);
    if (tn__pages_remove(&m->table, seq, from, to) != TN_OK) return;
    for (int32_t i = 0; i < m->n[seq]; i++)
        if (!between(m->tokens[seq][i].position, from, to)) m->tokens[seq][n++] = m->tokens[seq][i];
    m->n[seq] = n;
}

static void copy_some(page_model *m) {
    const int32_t source = below(m, m->table.n_seqs), target = below(m, m->table.n_seqs);
    int32_t from, to;
    random_range(m, source, &from, &to);
    if (m->n[target] + m->n[source] > MAX_TOKENS / 2) return;
    if (tn__pages_copy(&m->table, source, target, from, to) != TN_OK) return;
    const int32_t n = m->n[target];
    for (int32_t i = 0; i < m->n[source]; i++) {
        bool has = false;
        for (int32_t k = 0; k < n; k++) has = has || m->tokens[target][k].content == m->tokens[source][i].content;
        if (!has && between(m->tokens[source][i].position, from, to))
            m->tokens[target][m->n[target]++] = m->tokens[source][i];
    }
}

static void move_contents(page_model *m, int32_t n, const int32_t *from, const int32_t *to) {
    int32_t read[MOVE_CELLS];
    assert_in_range(n, 0, MOVE_CELLS);
    for (int32_t i = 0; i < n; i++) read[i] = m->cells[from[i]];
    for (int32_t i = 0; i < n; i++) m->cells[to[i]] = read[i];
}

/* Copies whose positions change are other tokens from then on. */
static void rename_tokens(page_model *m, int32_t seq, int32_t from, int32_t to, bool divides, int32_t by) {
    tn__page_table *t = &m->table;
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        if (!between(tn__run_position(run, 0), from, to)) continue;
        for (int32_t c = 0; c < run.count; c++) {
            const int32_t content = m->cells[run.cell + c];
            for (int32_t k = 0; k < m->n[seq]; k++)
                if (m->tokens[seq][k].content == content) m->tokens[seq][k].content = m->next_content;
            m->cells[run.cell + c] = m->next_content++;
        }
    }
    for (int32_t k = 0; k < m->n[seq]; k++) {
        int32_t *position = &m->tokens[seq][k].position;
        if (between(*position, from, to)) *position = divides ? *position / by : *position + by;
    }
}

static void change_some_positions(page_model *m) {
    tn__page_table *t = &m->table;
    const int32_t seq = below(m, t->n_seqs);
    const bool divides = below(m, 4) == 0;
    int32_t from, to, by = divides ? 2 : below(m, 8) - 3, moved_from[MOVE_CELLS], moved_to[MOVE_CELLS];
    random_range(m, seq, &from, &to);
    if (tn__pages_cut(t, seq, from, to) != TN_OK) return;
    int32_t shared = 0;
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        if (!between(tn__run_position(run, 0), from, to)) continue;
        shared += tn__pages_shared(t, seq, i);
        if ((!divides && tn__run_position(run, 0) + by < 0) || run.divisor > 1000) return;
    }
    if (shared > t->n_free) return;
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        if (!between(tn__run_position(tn__page_run_at(t, seq, i), 0), from, to)) continue;
        if (!tn__pages_shared(t, seq, i)) continue;
        const int32_t count = tn__page_run_at(t, seq, i).count;
        assert_ok(tn__pages_detach(t, seq, i, moved_from, moved_to));
        move_contents(m, count, moved_from, moved_to);
    }
    rename_tokens(m, seq, from, to, divides, by);
    for (int32_t i = 0; i < t->sequences[seq].n; i++) {
        const tn_page_run run = tn__page_run_at(t, seq, i);
        if (!between(tn__run_position(run, 0), from, to)) continue;
        tn__pages_set_positions(t, seq, i, divides ? run.first : run.first + by * run.divisor,
                                divides ? run.divisor * by : run.divisor);
    }
}

/* Moves the contents to the cells that t->numbers says. */
static void move_all(page_model *m) {
    tn__page_table *t = &m->table;
    int32_t from[MOVE_CELLS], to[MOVE_CELLS], at = 0, total = 0;
    const int32_t room = 2 + below(m, MOVE_CELLS - 1);
    tn__pages_renumber(t);
    for (int32_t n; (n = tn__pages_move(t, &at, room, from, to)) > 0; total += n) {
        assert_in_range(n, 1, room);
        move_contents(m, n, from, to);
        assert_true(total <= 2 * MAX_CELLS);
    }
}

static void order_all(page_model *m) {
    const int32_t before = m->table.n_free;
    if (!tn__pages_order(&m->table)) return;
    move_all(m);
    assert_true(m->table.n_free >= before);
}

static void pack_all(page_model *m) {
    tn__page_table *t = &m->table;
    const int32_t live = tn__pages_number(t, 0, t->n_lists);
    if (!tn__pages_pack(t)) return;
    move_all(m);
    assert_int_equal(t->used, live);
    assert_int_equal(t->n_free, t->n_pages - (live + t->page - 1) / t->page);
    assert_false(tn__pages_need_packing(t) && t->n_lists == 1);
}

static void operate(page_model *m) {
    const int32_t what = below(m, 40);
    if (what < 22)
        take_some(m);
    else if (what < 30)
        remove_some(m);
    else if (what < 34)
        copy_some(m);
    else if (what < 37)
        change_some_positions(m);
    else if (what < 39)
        order_all(m);
    else
        pack_all(m);
}

static void tables_agree_with_a_plain_model(void **state) {
    (void)state;
    static page_model m;
    const int rounds = getenv("TENON_LONG") ? 2500 : 250;
    for (int round = 0; round < rounds; round++) {
        memset(&m, 0, sizeof m);
        m.random = (rng){(uint64_t)round + 1};
        static const int32_t sizes[] = {1, 3, 8, 16, 64};
        const int32_t page = sizes[below(&m, 5)], window = below(&m, 3) ? 0 : 1 + below(&m, 40);
        static const int32_t many[] = {31, 32, 33, 64, MAX_SEQS}; /* around the sizes of words */
        const int32_t n_seqs = round % 16 == 15 ? many[round / 16 % 5] : 1 + below(&m, FEW_SEQS);
        assert_ok(
            tn__page_table_size(&m.table, 20 + below(&m, 200), page, window, 32, n_seqs, 0, 0, below(&m, 4) != 0));
        if (tn__page_table_cells(&m.table) > MAX_CELLS || m.table.max_runs > MAX_TOKENS) continue;
        assert_ok(tn__page_table_allocate(&m.table));
        for (int i = 0; i < 400; i++) {
            operate(&m);
            check_tables(&m);
        }
        for (int32_t seq = 0; seq < n_seqs; seq++) {
            assert_ok(tn__pages_remove(&m.table, seq, 0, -1));
            m.n[seq] = 0;
        }
        check_tables(&m);
        assert_int_equal(m.table.used, 0);
        assert_int_equal(m.table.n_free, m.table.n_pages);
        tn__page_table_free(&m.table);
    }
}

/* ---- Properties that users rely on ---- */

static void every_token_of_the_pool_fits(void **state) {
    (void)state;
    rng r = {7};
    for (int round = 0; round < 200; round++) {
        tn__page_table t;
        const int32_t n_seqs = 1 + (int32_t)rng_below(&r, 40), cells = 1 + (int32_t)rng_below(&r, 300);
        int32_t next[40] = {0};
        assert_ok(tn__page_table_size(&t, cells, tn__page_size(cells, n_seqs), 0, 8, n_seqs, 0, 0, true));
        assert_ok(tn__page_table_allocate(&t));
        for (int32_t i = 0; i < cells; i++) {
            int32_t seq = (int32_t)rng_below(&r, (uint64_t)n_seqs), row;
            assert_ok(tn__pages_take(&t, 1, &next[seq], &seq, &row));
            next[seq]++;
        }
        int32_t seq = 0, row;
        assert_fails(TN_E_FULL, tn__pages_take(&t, 1, &next[0], &seq, &row));
        tn__page_table_free(&t);
    }
}

/* A sequence that continues alone writes nothing to the devices until it begins a new page. */
static void only_new_pages_are_sent(void **state) {
    (void)state;
    tn__page_table t;
    assert_ok(tn__page_table_size(&t, 256, 64, 0, 8, 1, 0, 0, true));
    assert_ok(tn__page_table_allocate(&t));
    const int32_t seq = 0;
    for (int32_t i = 0, row; i < 256; i++) {
        const int32_t expected = tn__pages_next_cell(&t, 0, i);
        assert_int_equal(expected < 0, i % 64 == 0);
        assert_ok(tn__pages_take(&t, 1, &i, &seq, &row));
        if (i % 64) assert_int_equal(row, expected);
        assert_int_equal(t.sequences[0].dirty_first < t.sequences[0].dirty_end, i % 64 == 0);
        t.sequences[0].dirty_first = t.sequences[0].dirty_end = 0;
    }
    tn__page_table_free(&t);
}

static void take_positions(tn__page_table *t, int32_t seq, int32_t first, int32_t n, int32_t step) {
    for (int32_t i = 0, row; i < n; i++) {
        const int32_t position = first + i * step;
        assert_ok(tn__pages_take(t, 1, &position, &seq, &row));
    }
}

/* As tn_session_defragment does; the contents do not matter. */
static void defragment(tn__page_table *t) {
    int32_t from[MOVE_CELLS], to[MOVE_CELLS];
    for (int pack = 0; pack < 2; pack++) {
        if (pack ? !tn__pages_need_packing(t) || !tn__pages_pack(t) : !tn__pages_order(t)) continue;
        tn__pages_renumber(t);
        for (int32_t at = 0; tn__pages_move(t, &at, MOVE_CELLS, from, to) > 0;) {}
    }
}

/* Runs with gaps fill as few pages as their cells need once they are ordered, and are as few as the pages. */
static void ordered_pages_are_full(void **state) {
    (void)state;
    tn__page_table t;
    int32_t from[MOVE_CELLS], to[MOVE_CELLS], at = 0;
    assert_ok(tn__page_table_size(&t, 256, 16, 0, 8, 2, 0, 0, true));
    assert_ok(tn__page_table_allocate(&t));
    take_positions(&t, 0, 0, 128, 1);
    for (int32_t i = 0; i < 8; i++) assert_ok(tn__pages_remove(&t, 0, 16 * i + 3, 16 * i + 13));
    assert_int_equal(t.n_pages - t.n_free, 8);
    defragment(&t);
    assert_int_equal(t.used, 48);
    assert_int_equal(t.n_pages - t.n_free, 3);
    assert_true(tn__pages_order(&t));
    assert_int_equal(tn__pages_move(&t, &at, MOVE_CELLS, from, to), 0);
    assert_int_equal(tn__pages_freed_by(&t, 0, 1), 3);
    tn__page_table_free(&t);
}

/* A window holds what its queries see, and no page behind it. */
static void pages_behind_a_window_are_given_back(void **state) {
    (void)state;
    enum { WINDOW = 20, PAGE = 8 };
    tn__page_table t;
    assert_ok(tn__page_table_size(&t, 0, PAGE, WINDOW, 1, 1, 0, 0, true));
    assert_ok(tn__page_table_allocate(&t));
    const int32_t seq = 0;
    for (int32_t i = 0, row, first, last; i < 200; i++) {
        tn__pages_leave_window(&t, 1, &i, &seq);
        assert_ok(tn__pages_take(&t, 1, &i, &seq, &row));
        assert_true(tn__pages_extent(&t, 0, &first, &last));
        assert_true(first <= TN__MAX(i - WINDOW + 1, 0) && first > i - WINDOW - PAGE);
        assert_int_equal(last, i);
    }
    tn__page_table_free(&t);
}

static void cells_are_shared_not_pages(void **state) {
    (void)state;
    tn__page_table t;
    assert_ok(tn__page_table_size(&t, 64, 16, 0, 8, 3, 0, 0, true));
    assert_ok(tn__page_table_allocate(&t));
    take_positions(&t, 0, 0, 12, 1);
    assert_false(tn__pages_shared(&t, 0, 0));
    assert_ok(tn__pages_copy(&t, 0, 1, 0, 6));
    assert_true(tn__pages_shared(&t, 0, 0));
    assert_ok(tn__pages_remove(&t, 0, 0, 6)); /* now the two see different cells of one page */
    assert_false(tn__pages_shared(&t, 0, 0));
    assert_false(tn__pages_shared(&t, 1, 0));
    assert_int_equal(tn__pages_freed_by(&t, 0, 1), 0);
    assert_int_equal(tn__pages_freed_by(&t, 0, 2), 1);
    tn__page_table_free(&t);
}

/* Every gap begins a run; a sequence that has no room for another is refused, and nothing changes. */
static void too_many_runs_are_refused(void **state) {
    (void)state;
    tn__page_table t;
    assert_ok(tn__page_table_size(&t, 256, 1, 0, 8, 1, 0, 0, true));
    t.max_runs = 5;
    assert_ok(tn__page_table_allocate(&t));
    take_positions(&t, 0, 0, 5, 2);
    const int32_t position = 20, seq = 0, used = t.used;
    int32_t row;
    assert_fails(TN_E_FULL, tn__pages_take(&t, 1, &position, &seq, &row));
    assert_int_equal(t.used, used);
    assert_int_equal(t.sequences[0].n, 5);
    tn__page_table_free(&t);
}

/* Sequences grow side by side until the pool is full; the youngest then makes room, and begins again, with a prefix
 * of another, when there is room. What a pool of cells has room for is never refused. */
static void a_token_is_refused_only_if_all_cells_are_used(void **state) {
    (void)state;
    const int rounds = getenv("TENON_LONG") ? 3000 : 50;
    for (int round = 0; round < rounds; round++) {
        rng r = {(uint64_t)round + 11};
        tn__page_table t;
        const int32_t n_seqs = 2 + (int32_t)rng_below(&r, 8), cells = 256 + (int32_t)rng_below(&r, 2048);
        int32_t next[40] = {0};
        bool stalled[40] = {0};
        const int32_t pages[] = {8, 16, 32, 64};
        assert_ok(tn__page_table_size(&t, cells, pages[rng_below(&r, 4)], 0, 8, n_seqs, 0, 0, true));
        assert_ok(tn__page_table_allocate(&t));
        for (int step = 0; step < 4000; step++) {
            int32_t n = 0, seqs[40], positions[40], rows[40], left = 0;
            for (int32_t seq = 0; seq < n_seqs; seq++) {
                if (stalled[seq]) continue;
                left++;
                if (rng_below(&r, 8)) {
                    positions[n] = next[seq];
                    seqs[n++] = seq;
                }
            }
            tn_status status = n ? tn__pages_take(&t, n, positions, seqs, rows) : TN_OK;
            if (status == TN_E_FULL) {
                defragment(&t);
                status = tn__pages_take(&t, n, positions, seqs, rows);
            }
            if (status == TN_OK) {
                for (int32_t i = 0; i < n; i++) next[seqs[i]]++;
            } else {
                assert_true(t.used + n > t.limit);
                int32_t ends = n_seqs - 1;
                while (stalled[ends]) ends--;
                if (left == 1) stalled[ends] = true;
                assert_ok(tn__pages_remove(&t, ends, 0, -1));
                next[ends] = 0;
                stalled[ends] = left > 1;
            }
            const int32_t seq = (int32_t)rng_below(&r, (uint64_t)n_seqs),
                          other = (int32_t)rng_below(&r, (uint64_t)n_seqs);
            if (rng_below(&r, 100) == 0 && left > 1 && !stalled[seq]) {
                assert_ok(tn__pages_remove(&t, seq, 0, -1));
                stalled[seq] = true;
                next[seq] = 0;
            } else if (stalled[seq] && seq != other && t.used < t.limit * 7 / 8 && rng_below(&r, 20) == 0) {
                next[seq] = (int32_t)rng_below(&r, (uint64_t)next[other] + 1);
                if (tn__pages_copy(&t, other, seq, 0, next[seq]) != TN_OK) next[seq] = 0;
                stalled[seq] = false;
            }
        }
        tn__page_table_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree_with_a_plain_model),
        cmocka_unit_test(every_token_of_the_pool_fits),
        cmocka_unit_test(only_new_pages_are_sent),
        cmocka_unit_test(ordered_pages_are_full),
        cmocka_unit_test(pages_behind_a_window_are_given_back),
        cmocka_unit_test(cells_are_shared_not_pages),
        cmocka_unit_test(too_many_runs_are_refused),
        cmocka_unit_test(a_token_is_refused_only_if_all_cells_are_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
