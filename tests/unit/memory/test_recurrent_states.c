/* The table of recurrent states against a plain model: every list knows the tokens that its state covers, and every
 * row the tokens that were written to it. */
#include "support.h"

#include "llm/memory/recurrent.h"

#include <stdlib.h>
#include <string.h>

enum { LISTS_MOST = 48, ROWS_MOST = 64, BATCH = 16 };

typedef struct model_list {
    uint32_t text; /* stands for the tokens: changes with every one */
    int32_t n;
} model_list;

typedef struct table_case {
    tn__recurrent table;
    model_list lists[LISTS_MOST];
    uint32_t rows[ROWS_MOST]; /* the text that a row holds */
    rng r;
} table_case;

static uint32_t next_text(uint32_t text, uint32_t token) { return text * 1664525u + token * 2u + 1013904223u; }

/* What an op would do: reads rows, follows the chains, writes rows. */
static void run_steps(table_case *c, int32_t n, const uint32_t *tokens, const tn__step *steps, uint32_t *texts) {
    for (int32_t i = 0; i < n; i++) {
        if (steps[i].previous >= 0) {
            assert_true(steps[i].previous < i && steps[steps[i].previous].next == i);
            texts[i] = texts[steps[i].previous];
        } else {
            assert_in_range(steps[i].read + 1, 0, c->table.n_rows);
            texts[i] = steps[i].read < 0 ? 0 : c->rows[steps[i].read];
        }
        texts[i] = next_text(texts[i], tokens[i]);
        if (steps[i].write >= 0) c->rows[steps[i].write] = texts[i];
    }
}

static void check_table(const table_case *c) {
    int32_t refs[ROWS_MOST] = {0};
    for (int32_t i = 0; i < c->table.n_lists; i++) {
        assert_int_equal(tn__recurrent_tokens(&c->table, i), c->lists[i].n);
        if (!c->lists[i].n) continue;
        const int32_t row = c->table.owners[i].row;
        assert_in_range(row, 0, c->table.n_rows - 1);
        refs[row]++;
        assert_int_equal(c->rows[row], c->lists[i].text);
    }
    assert_memory_equal(refs, c->table.refs, (size_t)c->table.n_rows * sizeof *refs);
}

typedef struct model_checkpoint {
    int32_t row, n;
    uint32_t text;
} model_checkpoint;

/* Asks for the states after some tokens of a micro-batch. */
static int32_t random_checkpoints(table_case *c, int32_t n, tn__step *steps, const int32_t *positions,
                                  model_checkpoint *list, int32_t *tokens) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (rng_below(&c->r, 6)) continue;
        const bool last = steps[i].write >= 0;
        const int32_t row = tn__recurrent_checkpoint(&c->table, i, steps);
        if (row < 0) {
            assert_true(!last && tn__recurrent_full(&c->table));
            continue;
        }
        assert_int_equal(steps[i].write, row);
        tokens[count] = i;
        list[count++] = (model_checkpoint){.row = row, .n = positions[i] + 1};
    }
    return count;
}

/* Kept prefixes get them, or nobody. */
static void end_checkpoints(table_case *c, int32_t count, const model_checkpoint *list, bool drop) {
    for (int32_t i = 0; i < count; i++) {
        const int32_t kept = c->table.n_lists - c->table.n_seqs;
        if (drop || !kept || rng_below(&c->r, 4) == 0) {
            tn__recurrent_release(&c->table, list[i].row);
            continue;
        }
        const int32_t target = c->table.n_seqs + (int32_t)rng_below(&c->r, (uint32_t)kept);
        assert_int_equal(c->rows[list[i].row], list[i].text);
        tn__recurrent_adopt(&c->table, target, list[i].row, list[i].n);
        c->lists[target] = (model_list){list[i].text, list[i].n};
    }
}

/* A batch of one to three micro-batches over random sequences, which may fail at its end. Checkpoints become prefixes
 * after their micro-batch, or after the batch. */
static void random_batch(table_case *c) {
    model_checkpoint checkpoints[3 * BATCH];
    int32_t n_checkpoints = 0;
    const bool at_once = rng_below(&c->r, 2);
    model_list before[LISTS_MOST];
    memcpy(before, c->lists, sizeof before);
    bool touched[LISTS_MOST] = {0};
    tn_status status = TN_OK;
    const int parts = 1 + (int)rng_below(&c->r, 3);
    for (int part = 0; part < parts && status == TN_OK; part++) {
        int32_t n = 1 + (int32_t)rng_below(&c->r, BATCH), positions[BATCH], seqs[BATCH];
        uint32_t tokens[BATCH], texts[BATCH];
        tn__step steps[BATCH];
        model_list lists[LISTS_MOST];
        memcpy(lists, c->lists, sizeof lists);
        for (int32_t i = 0; i < n; i++) {
            seqs[i] = (int32_t)rng_below(&c->r, (uint32_t)c->table.n_seqs);
            tokens[i] = (uint32_t)rng_below(&c->r, 1000);
            positions[i] = lists[seqs[i]].n++;
            lists[seqs[i]].text = next_text(lists[seqs[i]].text, tokens[i]);
        }
        status = tn__recurrent_take(&c->table, n, positions, seqs, steps);
        if (status != TN_OK) {
            assert_int_equal(status, TN_E_FULL);
            break;
        }
        for (int32_t i = 0; i < n; i++) touched[seqs[i]] = true;
        memset(texts, 0, sizeof texts);
        int32_t at[BATCH];
        const int32_t count = random_checkpoints(c, n, steps, positions, checkpoints + n_checkpoints, at);
        run_steps(c, n, tokens, steps, texts);
        for (int32_t i = 0; i < count; i++) checkpoints[n_checkpoints + i].text = texts[at[i]];
        n_checkpoints += count;
        memcpy(c->lists, lists, (size_t)c->table.n_seqs * sizeof *lists);
        if (!at_once) continue;
        end_checkpoints(c, n_checkpoints, checkpoints, false);
        n_checkpoints = 0;
    }
    end_checkpoints(c, n_checkpoints, checkpoints, status != TN_OK);
    if (status == TN_OK && rng_below(&c->r, 4)) {
        tn__recurrent_commit(&c->table);
        return;
    }
    tn__recurrent_roll_back(&c->table);
    for (int32_t i = 0; i < c->table.n_seqs; i++) {
        c->lists[i] = before[i];
        if (!tn__recurrent_lost(&c->table, i)) continue;
        assert_true(touched[i] && before[i].n > 0);
        tn__recurrent_remove(&c->table, i);
        c->lists[i] = (model_list){0};
    }
}

static void random_operations(int32_t n_seqs, int32_t n_kept, int32_t n_checkpoints, uint64_t seed) {
    table_case c = {.r = {seed}};
    size_t bytes;
    tn__recurrent_size(&c.table, n_seqs, n_kept, n_checkpoints, 0);
    assert_int_equal(c.table.n_rows, n_seqs + n_checkpoints + 1);
    assert_true(c.table.n_rows <= ROWS_MOST && c.table.n_lists <= LISTS_MOST);
    assert_ok(tn__recurrent_bytes(&c.table, &bytes));
    assert_int_equal(bytes, (size_t)c.table.n_rows * 4 + (size_t)c.table.n_lists * sizeof(tn__state_owner));
    assert_ok(tn__recurrent_allocate(&c.table));
    const int steps = getenv("TENON_LONG") ? 250000 : 4000;
    for (int step = 0; step < steps; step++) {
        const int32_t a = (int32_t)rng_below(&c.r, (uint32_t)c.table.n_lists),
                      b = (int32_t)rng_below(&c.r, (uint32_t)c.table.n_lists);
        switch (rng_below(&c.r, 6)) {
        case 0:
            tn__recurrent_remove(&c.table, a);
            c.lists[a] = (model_list){0};
            break;
        case 1:
            tn__recurrent_copy(&c.table, a, b);
            c.lists[b] = c.lists[a];
            break;
        case 2: { /* a loaded state */
            const int32_t row = tn__recurrent_set(&c.table, a, 5);
            c.lists[a] = row < 0 ? (model_list){0} : (model_list){.text = (uint32_t)step, .n = 5};
            if (row >= 0) c.rows[row] = (uint32_t)step;
            break;
        }
        default: random_batch(&c);
        }
        check_table(&c);
    }
    tn__recurrent_free(&c.table);
}

static void tables_agree_with_a_plain_model(void **state) {
    (void)state;
    random_operations(1, 0, 0, 1);
    random_operations(1, 4, 1, 2);
    random_operations(3, 4, 2, 3);
    random_operations(8, 4, 8, 4);
    random_operations(40, 8, 8, 5);
}

/* A shared state is not written to, and gaps in the positions are refused. */
static void states_are_copied_on_write(void **state) {
    (void)state;
    tn__recurrent t;
    tn__step steps[2];
    tn__recurrent_size(&t, 2, 2, 2, 0);
    assert_ok(tn__recurrent_allocate(&t));
    assert_ok(tn__recurrent_take(&t, 1, (int32_t[]){0}, (int32_t[]){0}, steps));
    assert_int_equal(steps[0].read, -1);
    const int32_t row = steps[0].write;
    tn__recurrent_commit(&t);
    tn__recurrent_copy(&t, 0, 2); /* kept */
    assert_ok(tn__recurrent_take(&t, 1, (int32_t[]){1}, (int32_t[]){0}, steps));
    assert_int_equal(steps[0].read, row);
    assert_true(steps[0].write != row);
    tn__recurrent_commit(&t);
    assert_int_equal(t.owners[2].row, row);
    assert_fails(TN_E_UNSUPPORTED, tn__recurrent_take(&t, 1, (int32_t[]){3}, (int32_t[]){0}, steps));
    assert_fails(TN_E_UNSUPPORTED, tn__recurrent_take(&t, 1, (int32_t[]){1}, (int32_t[]){1}, steps));
    assert_fails(TN_E_UNSUPPORTED, tn__recurrent_take(&t, 2, (int32_t[]){2, 4}, (int32_t[]){0, 0}, steps));
    tn__recurrent_free(&t);
}

/* The state after a token in the middle has a row of its own; that after the last one is shared, and the next
 * micro-batch of the batch writes to another row. */
static void checkpoints_are_not_written_to(void **state) {
    (void)state;
    tn__recurrent t;
    tn__step steps[3];
    tn__recurrent_size(&t, 1, 2, 2, 0);
    assert_ok(tn__recurrent_allocate(&t));
    assert_ok(tn__recurrent_take(&t, 3, (int32_t[]){0, 1, 2}, (int32_t[]){0, 0, 0}, steps));
    const int32_t own = steps[2].write, middle = tn__recurrent_checkpoint(&t, 1, steps);
    assert_true(middle >= 0 && middle != own && steps[1].write == middle && steps[0].write == -1);
    assert_int_equal(tn__recurrent_checkpoint(&t, 2, steps), own);
    assert_ok(tn__recurrent_take(&t, 1, (int32_t[]){3}, (int32_t[]){0}, steps));
    assert_int_equal(steps[0].read, own);
    assert_true(steps[0].write != own && steps[0].write != middle);
    tn__recurrent_adopt(&t, 1, middle, 2);
    tn__recurrent_adopt(&t, 2, own, 3);
    tn__recurrent_commit(&t);
    assert_int_equal(tn__recurrent_tokens(&t, 0), 4);
    assert_int_equal(tn__recurrent_tokens(&t, 1), 2);
    assert_int_equal(tn__recurrent_tokens(&t, 2), 3);
    /* Three rows are in use; one is free for the next batch, and none for a checkpoint beside it. */
    assert_false(tn__recurrent_full(&t));
    assert_ok(tn__recurrent_take(&t, 2, (int32_t[]){4, 5}, (int32_t[]){0, 0}, steps));
    assert_true(tn__recurrent_full(&t));
    assert_int_equal(tn__recurrent_checkpoint(&t, 0, steps), -1);
    assert_int_equal(steps[0].write, -1);
    tn__recurrent_roll_back(&t);
    assert_int_equal(tn__recurrent_tokens(&t, 0), 4);
    assert_false(tn__recurrent_full(&t));
    tn__recurrent_free(&t);
}

/* Decodes `n` tokens of sequence 0, of which all but the first `sure` are guesses, and follows what rows hold. */
static void guess_tokens(table_case *c, int32_t n, int32_t sure, uint32_t *texts) {
    int32_t positions[BATCH], seqs[BATCH] = {0};
    bool guesses[BATCH];
    uint32_t tokens[BATCH];
    tn__step steps[BATCH];
    for (int32_t i = 0; i < n; i++) {
        positions[i] = c->lists[0].n + i;
        guesses[i] = i >= sure;
        tokens[i] = (uint32_t)rng_below(&c->r, 1000);
    }
    assert_ok(tn__recurrent_take(&c->table, n, positions, seqs, steps));
    assert_ok(tn__recurrent_hold(&c->table, n, positions, seqs, guesses, steps));
    run_steps(c, n, tokens, steps, texts);
    c->lists[0] = (model_list){texts[n - 1], positions[n - 1] + 1};
}

/* Guesses in one batch, or one after the other, can be taken back to any length; other rows are free again. */
static void guesses_are_taken_back(void **state) {
    (void)state;
    enum { GUESS = 5 };
    table_case c = {.r = {7}};
    uint32_t texts[BATCH], all[64];
    tn__recurrent_size(&c.table, 2, 0, 0, GUESS);
    assert_ok(tn__recurrent_allocate(&c.table));
    for (int round = 0; round < 400; round++) {
        const bool one_by_one = rng_below(&c.r, 2);
        const int32_t n = 1 + (int32_t)rng_below(&c.r, GUESS + 1), before = c.lists[0].n;
        guess_tokens(&c, one_by_one ? 1 : n, 1, texts);
        memcpy(all, texts, sizeof texts);
        tn__recurrent_commit(&c.table);
        for (int32_t i = 1; one_by_one && i < n; i++) {
            guess_tokens(&c, 1, 0, texts);
            all[i] = texts[0];
            tn__recurrent_commit(&c.table);
        }
        if (rng_below(&c.r, 8) == 0) { /* a failed batch gives back what it has held */
            uint32_t ignored[BATCH];
            const model_list was = c.lists[0];
            guess_tokens(&c, 3, 1, ignored);
            tn__recurrent_roll_back(&c.table);
            c.lists[0] = was;
            check_table(&c);
            continue;
        }
        const int32_t kept = 1 + (int32_t)rng_below(&c.r, (uint32_t)n);
        assert_ok(tn__recurrent_rewind(&c.table, 0, before + kept));
        c.lists[0] = (model_list){all[kept - 1], before + kept};
        assert_int_equal(tn__recurrent_tokens(&c.table, 0), before + kept);
        assert_int_equal(c.rows[c.table.owners[0].row], all[kept - 1]);
    }
    assert_fails(TN_E_UNSUPPORTED, tn__recurrent_rewind(&c.table, 0, 1));
    tn__recurrent_remove(&c.table, 0);
    c.lists[0] = (model_list){0};
    check_table(&c);
    tn__recurrent_free(&c.table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_taken_back),
        cmocka_unit_test(checkpoints_are_not_written_to),
        cmocka_unit_test(tables_agree_with_a_plain_model),
        cmocka_unit_test(states_are_copied_on_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
