/* Kept prefixes: a sequence that takes a prefix computes what a cold one computes, for every architecture; nothing is
 * taken that depends on other tokens, positions or keys; kept prefixes never take room from sequences; their memory
 * is planned to the byte. */
#include "models/prefix_cases.h"

#include <stdatomic.h>

/* ---- Taking ---- */

static void check_takes(kept_case *c) {
    tn_token a[CONTEXT], branch[CONTEXT];
    make_text(a, CONTEXT, 1);
    make_text(branch, CONTEXT, 2);
    memcpy(branch, a, 41 * sizeof *a);
    branch[41] = a[41] == 5 ? 6 : 5;
    assert_int_equal(begin_sequence(c, 0, 0, a, 70, "cold"), 0);
    end_sequence(c, 0);
    /* Recurrent state serves sequences that continue where it was kept, not one token before. */
    const int32_t same = begin_sequence(c, 1, 0, a, 70, "the same again");
    assert_int_equal(same, c->exact ? 0 : 69);
    end_sequence(c, 1);
    assert_int_equal(begin_sequence(c, 0, 0, a, 90, "continued"), 70);
    end_sequence(c, 0);
    /* Where windows or states are gone, the branch begins anew. */
    const bool anew = c->windows || c->exact;
    const int32_t taken = begin_sequence(c, 2, 0, branch, 80, "a branch");
    assert_int_equal(tn_session_prefix_missed(c->warm), anew ? 41 : 0);
    if (taken != (anew ? 0 : 41)) fail_msg("%s: %d taken", c->name, taken);
    end_sequence(c, 2);
    const int32_t longer = begin_sequence(c, 3, 0, a, 90, "the longer one again");
    assert_int_equal(longer, c->exact ? 70 : 89);
    const int32_t again = begin_sequence(c, 2, 0, branch, 80, "the branch again");
    assert_int_equal(again, c->exact ? 0 : 79);
    const tn_prefix_usage usage = tn_session_prefix_usage(c->warm);
    assert_true(usage.kept >= 2 && usage.kept <= 4);
    assert_int_equal(usage.asked, 69 + 69 + 89 + 79 + 89 + 79);
    assert_int_equal(usage.taken, same + 70 + taken + longer + again);
    assert_int_equal(usage.evicted, 0);
    end_sequence(c, 3);
    end_sequence(c, 2);
    assert_int_equal(tn_session_prefix_usage(c->warm).cells, tn_session_cache_usage(c->warm).used);
}
static void prefixes_are_taken(void **state) {
    (void)state;
    on_archs(true, check_takes, POOL, KEPT);
}

/* Windows: after `n` tokens only lengths whose window is held can be continued. */
static void check_windows(kept_case *c) {
    tn_token a[CONTEXT];
    if (!c->windows || c->exact) return;
    make_text(a, CONTEXT, 3);
    (void)begin_sequence(c, 0, 0, a, 100, "cold");
    end_sequence(c, 0);
    for (int32_t n = 2; n <= 120; n++) {
        const int32_t taken = begin_sequence(c, 1, 0, a, n, "every length");
        /* The last micro-batch began at 96: what it and the window before it hold. */
        assert_true(taken == (n - 1 < 100 ? n - 1 : 100) || taken == 0);
        if (n - 1 < 96 - WINDOW && taken) fail_msg("%s: %d taken", c->name, taken);
        if (n - 1 >= 96) assert_true(taken > 0);
        assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    }
}
/* A sequence that is kept where texts branch serves those that branch there. */
static void check_branch_points(kept_case *c) {
    tn_token texts[3][CONTEXT];
    if (!c->windows && !c->exact) return;
    for (uint32_t i = 0; i < 3; i++) {
        make_text(texts[i], CONTEXT, 70 + i);
        make_text(texts[i], 60, 69); /* all begin with the same */
        texts[i][60] = (tn_token)(3 + i);
    }
    (void)begin_sequence(c, 0, 0, texts[0], 90, "cold");
    end_sequence(c, 0);
    int32_t taken;
    assert_ok(tn_session_prefix_take(c->warm, 0, 0, texts[1], 89, &taken));
    assert_int_equal(taken, 0);
    assert_int_equal(tn_session_prefix_missed(c->warm), 60);
    assert_ok(decode_from(c->warm, 0, texts[1], 0, 60));
    assert_ok(tn_session_prefix_keep(c->warm, 0));
    assert_ok(decode_from(c->warm, 0, texts[1], 60, 90));
    compare_cold(c, texts[1], 90, "kept on its way");
    end_sequence(c, 0);
    assert_int_equal(begin_sequence(c, 1, 0, texts[2], 90, "the third"), 60);
    assert_int_equal(tn_session_prefix_missed(c->warm), 0);
}
static void windows_are_kept_where_texts_branch(void **state) {
    (void)state;
    on_archs(true, check_branch_points, POOL, KEPT);
}

static void only_held_windows_are_taken(void **state) {
    (void)state;
    on_archs(true, check_windows, POOL, KEPT);
}

static void check_keys(kept_case *c) {
    tn_token a[CONTEXT];
    make_text(a, CONTEXT, 4);
    assert_int_equal(begin_sequence(c, 0, 1, a, 50, "key 1"), 0);
    assert_int_equal(begin_sequence(c, 1, 2, a, 50, "key 2, key 1 is live"), 0);
    end_sequence(c, 0);
    end_sequence(c, 1);
    assert_int_equal(begin_sequence(c, 0, 3, a, 50, "key 3"), 0);
    assert_int_equal(begin_sequence(c, 1, 1, a, 50, "key 1 again"), 49);
    /* A sequence that begins without taking leaves nothing, whatever key was there before. */
    assert_ok(tn_session_seq_remove(c->warm, -1, 0, -1));
    tn_session_prefix_clear(c->warm);
    assert_ok(decode_from(c->warm, 1, a, 0, 50));
    assert_ok(tn_session_prefix_keep(c->warm, 1));
    assert_int_equal(begin_sequence(c, 2, 1, a, 50, "nothing was left"), 0);
}
static void keys_are_separate(void **state) {
    (void)state;
    on_archs(false, check_keys, POOL, KEPT);
}

static void check_live(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    make_text(a, CONTEXT, 5);
    memcpy(b, a, sizeof b);
    for (int32_t i = 60; i < CONTEXT; i++) b[i] = a[i] == 7 ? 8 : 7;
    (void)begin_sequence(c, 0, 0, a, 60, "cold");
    assert_int_equal(begin_sequence(c, 1, 0, b, 61, "from a live sequence"), 60);
    for (int32_t n = 61; n < 80; n++) {
        assert_ok(decode_from(c->warm, 0, a, n - 1, n));
        compare_cold(c, a, n, "the source goes on");
        assert_ok(decode_from(c->warm, 1, b, n, n + 1));
        compare_cold(c, b, n + 1, "the other goes on");
    }
}
static void live_sequences_are_sources(void **state) {
    (void)state;
    on_archs(false, check_live, POOL, KEPT);
}

/* A kept prefix replaces those that it continues, however few tokens it adds, and is not kept twice; with windows or
 * recurrent state the shorter ones stay, as texts cannot branch from the longer one there. */
static void check_contained(kept_case *c) {
    static const int32_t lengths[] = {1, 2, 3, 5, 31, 32, 33, 48};
    enum { N = sizeof lengths / sizeof *lengths };
    tn_token a[CONTEXT], branch[CONTEXT];
    int32_t taken, begin = 0;
    make_text(a, CONTEXT, 6);
    memcpy(branch, a, sizeof branch);
    for (int32_t i = 20; i < CONTEXT; i++) branch[i] = a[i] == 7 ? 8 : 7;
    tn_session_prefix_clear(c->warm);
    assert_ok(tn_session_prefix_take(c->warm, 0, 6, a, 1, &taken));
    for (int i = 0; i < N; begin = lengths[i++]) {
        assert_ok(decode_from(c->warm, 0, a, begin, lengths[i]));
        for (int again = 0; again < 2; again++) {
            assert_ok(tn_session_prefix_keep(c->warm, 0));
            const int32_t kept = tn_session_prefix_usage(c->warm).kept;
            if (c->windows || c->exact ? kept < 1 : kept != 1)
                fail_msg("%s: %d prefixes after %d tokens", c->name, kept, lengths[i]);
        }
    }
    if (c->windows || c->exact) return;
    /* One that begins alike but is not contained is kept beside it, also when it is the longer one. */
    assert_ok(tn_session_prefix_take(c->warm, 1, 6, branch, 21, &taken));
    assert_int_equal(taken, 20);
    assert_ok(decode_from(c->warm, 1, branch, taken, 60));
    assert_ok(tn_session_prefix_keep(c->warm, 1));
    assert_int_equal(tn_session_prefix_usage(c->warm).kept, 2);
    assert_ok(tn_session_seq_remove(c->warm, 0, 20, -1));
    assert_ok(tn_session_prefix_keep(c->warm, 0)); /* contained in both */
    assert_int_equal(tn_session_prefix_usage(c->warm).kept, 2);
}
static void kept_prefixes_replace_those_they_continue(void **state) {
    (void)state;
    on_archs(true, check_contained, POOL, KEPT);
}

/* ---- What must not be taken ---- */

static void check_shift(kept_case *c) {
    tn_token a[CONTEXT], joined[CONTEXT];
    make_text(a, CONTEXT, 6);
    memcpy(joined, a, sizeof joined);
    memmove(joined + 10, a + 20, 60 * sizeof *a);
    (void)begin_sequence(c, 0, 0, a, 60, "cold");
    assert_ok(tn_session_prefix_keep(c->warm, 0)); /* the shift copies its cells */
    if (tn_session_seq_shift(c->warm, 0, 20, -1, 0) == TN_E_UNSUPPORTED) return;
    assert_ok(tn_session_seq_remove(c->warm, 0, 10, 20));
    const tn_status status = tn_session_seq_shift(c->warm, 0, 20, -1, -10);
    assert_ok(status);
    assert_ok(decode_from(c->warm, 0, joined, 50, 54));
    assert_true(begin_sequence(c, 1, 0, joined, 54, "live, shifted") <= 10);
    assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    end_sequence(c, 0);
    assert_true(begin_sequence(c, 1, 0, joined, 54, "kept, shifted") <= 10);
    assert_int_equal(begin_sequence(c, 2, 0, a, 60, "kept before the shift"), 59);
}
static void shifted_cells_are_not_taken(void **state) {
    (void)state;
    on_archs(true, check_shift, POOL, KEPT);
}

static void check_gaps(kept_case *c) {
    tn_token a[CONTEXT], other[CONTEXT];
    make_text(a, CONTEXT, 7);
    memcpy(other, a, sizeof other);
    for (int32_t i = 10; i < 20; i++) other[i] = a[i] == 9 ? 10 : 9;
    (void)begin_sequence(c, 0, 0, a, 40, "cold");
    assert_ok(tn_session_seq_remove(c->warm, 0, 10, 20));
    assert_ok(decode_from(c->warm, 0, a, 40, 60));
    end_sequence(c, 0);
    assert_true(begin_sequence(c, 1, 0, a, 60, "a gap") <= 10);
    assert_ok(tn_session_seq_remove(c->warm, -1, 0, -1));
    tn_session_prefix_clear(c->warm);
    if (c->windows) return; /* what fills the gap is out of the window's reach */
    (void)begin_sequence(c, 0, 0, a, 40, "cold");
    assert_ok(tn_session_seq_remove(c->warm, 0, 10, 20));
    assert_ok(decode_from(c->warm, 0, other, 10, 20));
    assert_ok(decode_from(c->warm, 0, other, 40, 60));
    end_sequence(c, 0);
    assert_true(begin_sequence(c, 1, 0, other, 60, "a filled gap") <= 20);
    assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    assert_true(begin_sequence(c, 1, 0, a, 60, "a filled gap, the old tokens") <= 10);
}
static void gaps_are_not_taken(void **state) {
    (void)state;
    on_archs(false, check_gaps, POOL, KEPT);
}

/* Cells that were computed after other tokens than those that come before them now. */
static void check_mixed(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT], mixed[CONTEXT];
    make_text(a, CONTEXT, 8);
    make_text(b, CONTEXT, 9);
    memcpy(mixed, b, sizeof mixed);
    memcpy(mixed, a, 12 * sizeof *a);
    (void)begin_sequence(c, 0, 0, a, 12, "cold");
    (void)begin_sequence(c, 1, 0, b, 40, "cold");
    assert_ok(tn_session_seq_copy(c->warm, 1, 0, 12, 40));
    assert_ok(decode_from(c->warm, 0, mixed, 40, 50));
    assert_true(begin_sequence(c, 2, 0, mixed, 50, "parts of two, live") <= 12);
    assert_ok(tn_session_seq_remove(c->warm, 2, 0, -1));
    end_sequence(c, 0);
    assert_true(begin_sequence(c, 2, 0, mixed, 50, "parts of two") <= 12);
    assert_ok(tn_session_seq_remove(c->warm, 2, 0, -1));
    /* Of one only: the copy is as good as the source. */
    assert_ok(tn_session_seq_copy(c->warm, 1, 3, 0, -1));
    assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    assert_int_equal(begin_sequence(c, 2, 0, b, 41, "a copy"), 40);
}
static void parts_of_several_sequences_are_not_taken(void **state) {
    (void)state;
    on_archs(false, check_mixed, POOL, KEPT);
}

/* A loaded state lies in cells that held other tokens. */
static void check_state_tokens(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    size_t size;
    const int32_t n = PAGE - 3; /* one page, which the state gets as well */
    make_text(a, CONTEXT, 10);
    make_text(b, CONTEXT, 11);
    (void)begin_sequence(c, 0, 0, b, n, "cold");
    assert_ok(tn_session_state_size(c->warm, 0, &size));
    void *bytes = malloc(size);
    assert_ok(tn_session_state_get(c->warm, 0, bytes, size));
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    (void)begin_sequence(c, 0, 0, a, n, "cold");
    assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
    assert_ok(tn_session_state_set(c->warm, 0, bytes, size));
    assert_int_equal(begin_sequence(c, 1, 0, a, n, "the tokens before"), 0);
    assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    assert_int_equal(begin_sequence(c, 1, 0, b, n, "tokens that are not known"), 0);
    assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    assert_fails(TN_E_STATE, tn_session_prefix_note(c->warm, 0, 0, b, n - 1));
    assert_fails(TN_E_STATE, tn_session_prefix_note(c->warm, 1, 0, b, n));
    assert_ok(tn_session_prefix_note(c->warm, 0, 0, b, n));
    end_sequence(c, 0);
    assert_int_equal(begin_sequence(c, 1, 0, b, n + 1, "noted tokens"), n);
    assert_ok(tn_session_seq_remove(c->warm, 1, 0, -1));
    /* Forgetting: what the tokens begin with, and what begins with them. */
    assert_ok(tn_session_prefix_forget(c->warm, 1, b, n));
    assert_int_equal(tn_session_prefix_usage(c->warm).kept, 1);
    assert_ok(tn_session_prefix_forget(c->warm, 0, b, n));
    assert_int_equal(tn_session_prefix_usage(c->warm).kept, 0);
    assert_int_equal(tn_session_cache_usage(c->warm).used, 0);
    free(bytes);
}
static void states_have_no_tokens_until_they_are_noted(void **state) {
    (void)state;
    on_archs(false, check_state_tokens, POOL, KEPT);
}

/* ---- Room ---- */

enum { TIGHT = 96 };

static void check_pressure(kept_case *c) {
    tn_token text[CONTEXT];
    for (uint32_t i = 0; i < 40; i++) { /* each fills most of the context, and keeps it */
        const int32_t n = 20 + (int32_t)(i * 13 % 70);
        make_text(text, CONTEXT, 20 + i % 7);
        (void)begin_sequence(c, (int32_t)(i % SEQS), 0, text, n, "under pressure");
        if (i % 3 == 0) assert_ok(tn_session_prefix_keep(c->warm, (int32_t)(i % SEQS)));
        end_sequence(c, (int32_t)(i % SEQS));
    }
    assert_true(tn_session_prefix_usage(c->warm).evicted > 0);
    /* Shifts and states need room as well. */
    make_text(text, CONTEXT, 50);
    (void)begin_sequence(c, 0, 0, text, TIGHT / 2, "before a shift");
    assert_ok(tn_session_prefix_keep(c->warm, 0));
    make_text(text, CONTEXT, 51);
    (void)begin_sequence(c, 1, 0, text, TIGHT / 2 - 1, "beside it");
    end_sequence(c, 1);
    if (!c->exact) {
        assert_ok(tn_session_seq_remove(c->warm, 0, 4, 8));
        const tn_status status = tn_session_seq_shift(c->warm, 0, 8, -1, -4);
        assert_true(status == TN_OK || status == TN_E_UNSUPPORTED);
    }
    size_t size;
    assert_ok(tn_session_state_size(c->warm, 0, &size));
    void *bytes = malloc(size);
    assert_ok(tn_session_state_get(c->warm, 0, bytes, size));
    end_sequence(c, 0);
    for (uint32_t i = 0; i < 3; i++) {
        make_text(text, CONTEXT, 60 + i);
        (void)begin_sequence(c, 1, 0, text, 40, "before a state");
        end_sequence(c, 1);
    }
    assert_ok(tn_session_state_set(c->warm, 0, bytes, size));
    free(bytes);
}
static void kept_prefixes_make_room(void **state) {
    (void)state;
    on_archs(true, check_pressure, TIGHT, KEPT);
}

/* ---- Memory ---- */

static _Atomic size_t live_bytes, live_blocks;

static void *count_alloc(void *user, size_t size, size_t align) {
    (void)user;
    atomic_fetch_add(&live_bytes, size);
    atomic_fetch_add(&live_blocks, 1);
    return aligned_alloc(align, (size + align - 1) / align * align);
}
static void count_free(void *user, void *pointer, size_t size) {
    (void)user;
    atomic_fetch_sub(&live_bytes, size);
    atomic_fetch_sub(&live_blocks, 1);
    free(pointer);
}

/* Bytes that were asked for: each block has a header beside them. */
static size_t asked_bytes(void) {
    const size_t before = atomic_load(&live_bytes);
    void *one = tn_malloc(1);
    const size_t header = atomic_load(&live_bytes) - before - 1;
    tn_free(one);
    return before - header * atomic_load(&live_blocks);
}

/* Bytes planned on the host beside tensors, and those that a session took from the heap. */
static void measure_session(const char *arch, int32_t n_prefixes, size_t *planned, size_t *cache, size_t *taken) {
    tn_model *model;
    tn_session_plan *plan;
    tn_session *session;
    tn_fit fit, now;
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB};
    assert_ok(tiny_model_write(prefix_model_path, &options));
    assert_ok(tn_model_open(prefix_model_path, NULL, &model));
    const tn_session_params p = kept_params(POOL, SEQS, n_prefixes);
    const size_t before = asked_bytes();
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    assert_ok(tn_session_new(plan, &session));
    *taken = asked_bytes() - before;
    assert_ok(tn_session_memory(session, &now));
    assert_int_equal(now.devices[0].staging, fit.devices[0].staging);
    assert_int_equal(now.devices[0].cache, fit.devices[0].cache);
    *planned = fit.devices[0].staging;
    *cache = fit.devices[0].cache;
    tn_fit_free(&fit);
    tn_fit_free(&now);
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_model_close(model);
}

static void memory_is_planned(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "gemma3", "phi3", "gpt2", "mamba2", "jamba", NULL};
    for (size_t i = 0; archs[i]; i++) {
        size_t planned[2], cache[2], taken[2];
        measure_session(archs[i], 0, &planned[0], &cache[0], &taken[0]);
        measure_session(archs[i], 40, &planned[1], &cache[1], &taken[1]);
        assert_true(planned[1] > planned[0]);
        /* The cache's buffers are on the heap of this device as well. */
        assert_int_equal(taken[1] - taken[0], planned[1] - planned[0] + (cache[1] - cache[0]));
    }
}

/* ---- Arguments ---- */

static void arguments_are_checked(void **state) {
    (void)state;
    kept_case c;
    tn_token a[CONTEXT];
    int32_t taken;
    make_text(a, CONTEXT, 1);
    open_case(&c, "llama", CONTEXT, KEPT);
    assert_fails(TN_E_UNSUPPORTED, tn_session_prefix_take(c.cold, 0, 0, a, 4, &taken));
    assert_fails(TN_E_UNSUPPORTED, tn_session_prefix_keep(c.cold, 0));
    assert_fails(TN_E_UNSUPPORTED, tn_session_prefix_note(c.cold, 0, 0, a, 4));
    assert_fails(TN_E_UNSUPPORTED, tn_session_prefix_forget(c.cold, 0, a, 4));
    assert_fails(TN_E_INVALID, tn_session_prefix_take(c.warm, SEQS, 0, a, 4, &taken));
    assert_fails(TN_E_INVALID, tn_session_prefix_take(c.warm, 0, 0, a, -1, &taken));
    assert_fails(TN_E_INVALID, tn_session_prefix_take(c.warm, 0, 0, NULL, 4, &taken));
    assert_fails(TN_E_INVALID, tn_session_prefix_take(c.warm, 0, 0, a, 4, NULL));
    assert_fails(TN_E_INVALID, tn_session_prefix_take(NULL, 0, 0, a, 4, &taken));
    assert_int_equal(tn_session_prefix_usage(NULL).limit, 0);
    assert_int_equal(tn_session_prefix_usage(c.cold).limit, 0);
    assert_int_equal(tn_session_prefix_usage(c.warm).limit, KEPT);
    tn_session_prefix_clear(NULL);
    assert_ok(tn_session_prefix_keep(c.warm, 0)); /* of nothing */
    assert_ok(decode_from(c.warm, 0, a, 0, 3));
    assert_fails(TN_E_STATE, tn_session_prefix_take(c.warm, 0, 0, a, 4, &taken));
    close_kept(&c);
    tn_session *session;
    tn_model *model;
    const tiny_options options = {.arch = "bert"};
    assert_ok(tiny_model_write(prefix_model_path, &options));
    assert_ok(tn_model_open(prefix_model_path, NULL, &model));
    tn_session_params p = kept_params(CONTEXT, SEQS, KEPT);
    assert_fails(TN_E_UNSUPPORTED, tn_session_open(model, &p, &session));
    tn_model_close(model);
}

int main(void) {
    const tn_allocator counting = {count_alloc, count_free, NULL};
    tn_set_allocator(&counting);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_taken),
        cmocka_unit_test(only_held_windows_are_taken),
        cmocka_unit_test(windows_are_kept_where_texts_branch),
        cmocka_unit_test(keys_are_separate),
        cmocka_unit_test(live_sequences_are_sources),
        cmocka_unit_test(kept_prefixes_replace_those_they_continue),
        cmocka_unit_test(shifted_cells_are_not_taken),
        cmocka_unit_test(gaps_are_not_taken),
        cmocka_unit_test(parts_of_several_sequences_are_not_taken),
        cmocka_unit_test(states_have_no_tokens_until_they_are_noted),
        cmocka_unit_test(kept_prefixes_make_room),
        cmocka_unit_test(memory_is_planned),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, make_prefix_path, remove_prefix_path);
}
