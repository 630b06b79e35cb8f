/* Checkpoints of windows and recurrent states: a sequence that continues at one computes what a cold one computes,
 * for every architecture that has them; those of least use make room; a batch that fails leaves none. */
#include "models/prefix_cases.h"

/* Checkpoints inside micro-batches, at their ends, and in the batch's last token serve texts that branch there. */
static void check_checkpoints(kept_case *c) {
    static const int32_t lengths[] = {9, 32, 50, 51, 90, 0};
    tn_token a[CONTEXT], branch[CONTEXT];
    int32_t taken;
    if (!c->windows && !c->exact) return;
    make_text(a, CONTEXT, 40);
    assert_ok(tn_session_prefix_take(c->warm, 0, 0, a, 0, &taken));
    assert_ok(decode_with(c->warm, 0, a, 0, 90, lengths));
    compare_cold(c, a, 90, "with checkpoints");
    /* There are rows for four states: one of five had to go. */
    assert_int_equal(tn_session_prefix_usage(c->warm).kept, c->exact ? 4 : 5);
    for (const int32_t *n = lengths; *n; n++) {
        memcpy(branch, a, sizeof branch);
        for (int32_t i = *n; i < CONTEXT; i++) branch[i] = a[i] == 5 ? 6 : 5;
        const int32_t got = begin_sequence(c, 1, 0, branch, *n + 20, "a branch at a checkpoint");
        if (got != *n && !(c->exact && *n == lengths[0])) fail_msg("%s: %d of %d taken", c->name, got, *n);
        assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    }
    assert_ok(decode_from(c->warm, 0, a, 90, 100));
    compare_cold(c, a, 100, "the sequence itself goes on");
}
static void checkpoints_serve_branches(void **state) {
    (void)state;
    on_archs(true, check_checkpoints, POOL, KEPT);
}

/* Every so many tokens, of prompts and of generated tokens; those that served no one go first. */
static void check_interval(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    int32_t taken;
    if (!c->exact) return;
    tn_session *without = c->warm;
    tn_session_params p = kept_params(POOL, SEQS, KEPT);
    p.checkpoint_every = 20;
    p.n_checkpoints = 8;
    assert_ok(tn_session_open(c->model, &p, &c->warm));
    make_text(a, CONTEXT, 41);
    assert_ok(tn_session_prefix_take(c->warm, 0, 0, a, 0, &taken));
    assert_ok(decode_from(c->warm, 0, a, 0, 50));
    for (int32_t i = 50; i < 70; i++) assert_ok(decode_from(c->warm, 0, a, i, i + 1));
    assert_int_equal(tn_session_prefix_usage(c->warm).kept, 3);
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    assert_int_equal(begin_sequence(c, 0, 0, a, 45, "inside a prompt"), 40);
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    assert_int_equal(begin_sequence(c, 0, 0, a, 65, "generated tokens"), 60);
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    /* Another text's checkpoints, more than there is room for, leave those that were taken. */
    make_text(b, CONTEXT, 42);
    assert_ok(tn_session_prefix_take(c->warm, 0, 0, b, 0, &taken));
    assert_ok(decode_from(c->warm, 0, b, 0, 250));
    compare_cold(c, b, 250, "more checkpoints than rows");
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    assert_int_equal(begin_sequence(c, 0, 0, a, 65, "taken before"), 60);
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    assert_int_equal(begin_sequence(c, 0, 0, a, 25, "never taken"), 0);
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    assert_int_equal(begin_sequence(c, 0, 0, b, 250, "the last of them"), 240);
    tn_session_free(c->warm);
    c->warm = without;
}
static void checkpoints_come_at_intervals(void **state) {
    (void)state;
    on_archs(true, check_interval, POOL, KEPT);
}

/* A batch that is aborted at any time leaves its sequence as it was, and no checkpoint without its state. */
static void check_aborted(kept_case *c) {
    static const int32_t lengths[] = {25, 40, 64, 70, 0};
    tn_token a[CONTEXT];
    tn_session *without = c->warm;
    int32_t taken;
    if (!c->windows && !c->exact) return;
    tn_session_params p = kept_params(POOL, SEQS, KEPT);
    p.abort = abort_when_told;
    assert_ok(tn_session_open(c->model, &p, &c->warm));
    make_text(a, CONTEXT, 43);
    tn_status status = TN_E_ABORTED;
    for (int at = 0; status == TN_E_ABORTED && at < 2000; at += 7) {
        assert_ok(tn_session_prefix_take(c->warm, 0, 0, a, 0, &taken));
        assert_ok(decode_from(c->warm, 0, a, 0, 20));
        aborts_after = at;
        status = decode_with(c->warm, 0, a, 20, 80, lengths);
        aborts_after = -1;
        if (status != TN_E_ABORTED) break;
        for (const int32_t *n = lengths; *n; n++) { /* what an earlier micro-batch has left is right */
            (void)begin_sequence(c, 1, 0, a, *n + 1, "after an aborted batch");
            assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
        }
        assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
        tn_session_prefix_clear(c->warm);
    }
    assert_ok(status);
    compare_cold(c, a, 80, "in the end");
    tn_session_free(c->warm);
    c->warm = without;
}
static void aborted_batches_leave_no_checkpoints(void **state) {
    (void)state;
    on_archs(true, check_aborted, POOL, KEPT);
}

/* ---- In the plan ---- */

static tn_checkpoint_plan plan_of(tn_model *m, const tn_session_params *p, size_t *cache) {
    tn_session_plan *plan;
    tn_fit fit;
    assert_ok(tn_session_plan_new(m, p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    const tn_checkpoint_plan c = tn_session_plan_checkpoints(plan);
    *cache = fit.devices[0].cache;
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return c;
}

/* The plan says how many there are, how far apart, and what one adds to the cache. */
static void check_plan(const char *arch, bool states, bool windows) {
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB};
    tn_model *m;
    size_t cache[2];
    assert_ok(tiny_model_write(prefix_model_path, &options));
    assert_ok(tn_model_open(prefix_model_path, NULL, &m));
    tn_session_params p = kept_params(2 * POOL, SEQS, 64);
    p.n_checkpoints = 8;
    const tn_checkpoint_plan eight = plan_of(m, &p, &cache[0]);
    p.n_checkpoints = 16;
    const tn_checkpoint_plan more = plan_of(m, &p, &cache[1]);
    if (!states && !windows) {
        assert_true(eight.n == 0 && eight.every == 0 && eight.states == 0 && eight.window == 0);
        assert_int_equal(cache[0], cache[1]);
        tn_model_close(m);
        return;
    }
    assert_true(eight.n == 8 && more.n == 16);
    assert_true((eight.states > 0) == states && (eight.window > 0) == windows);
    assert_true(eight.states == more.states && eight.window == more.window);
    if (cache[1] - cache[0] != 8 * (eight.states + eight.window))
        fail_msg("%s: eight checkpoints take %zu bytes, planned are %zu", arch, cache[1] - cache[0],
                 8 * (eight.states + eight.window));
    /* A text of the trained length makes half of those that fit. */
    assert_int_equal(eight.every, 2 * POOL / 8);
    assert_int_equal(more.every, 2 * POOL / 16);
    p.n_checkpoints = 64;
    assert_int_equal(plan_of(m, &p, cache).every, 128);
    p.n_checkpoints = 2;
    p.cache_ram = states ? 14 * eight.states : 1 << 20;
    const tn_checkpoint_plan with_ram = plan_of(m, &p, cache);
    assert_int_equal(with_ram.every, states ? 2 * POOL / 16 : 0);
    p.cache_ram = 0;
    p.checkpoint_every = 33;
    assert_int_equal(plan_of(m, &p, cache).every, 33);
    p.checkpoint_every = -1;
    assert_int_equal(plan_of(m, &p, cache).every, 0);
    p.checkpoint_every = -2;
    tn_session_plan *plan;
    assert_fails(TN_E_INVALID, tn_session_plan_new(m, &p, &plan));
    p.checkpoint_every = 0;
    p.n_prefixes = p.n_checkpoints = 0;
    assert_int_equal(plan_of(m, &p, cache).n, 0);
    tn_model_close(m);
}
static void checkpoints_are_planned(void **state) {
    (void)state;
    check_plan("llama", false, false);
    check_plan("mamba2", true, false);
    check_plan("jamba", true, false);
    check_plan("gemma3", false, true);
    assert_int_equal(tn_session_plan_checkpoints(NULL).n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_are_planned),
        cmocka_unit_test(checkpoints_serve_branches),
        cmocka_unit_test(checkpoints_come_at_intervals),
        cmocka_unit_test(aborted_batches_leave_no_checkpoints),
    };
    return cmocka_run_group_tests(tests, make_prefix_path, remove_prefix_path);
}
