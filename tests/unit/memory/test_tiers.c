/* Tiers of kept prefixes: a sequence that begins with what host memory or the disk kept computes what a cold one
 * computes, for every architecture and after a restart; blocks are kept once; budgets hold; nothing damaged, of
 * another model, key or text is taken; the memory is planned to the byte. */
#include "models/tier_cases.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- Taking ---- */

/* Recurrent layers continue where a state was kept: after the last token of a text. */
static void check_states(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    make_text(a, CONTEXT, 11);
    make_text(b, CONTEXT, 12);
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 90, "another"), 0);
    for (int32_t i = 0; i < 4; i++) {
        if (c->params.cache_disk) restart(c);
        if (serve_text(c, 0, a, 101 + i, "with its state") != 100 + i) fail_msg("%s: text a, %d", c->name, i);
        if (serve_text(c, 0, b, 100 + 10 * i, "with its state") != 90 + 10 * i)
            fail_msg("%s: text b, %d", c->name, i);
    }
    const int32_t taken = serve_text(c, 0, a, 80, "without a state there");
    if (taken) fail_msg("%s: %d taken", c->name, taken);
    assert_true(each_file(NULL) <= DISK);
    assert_int_equal(tn_session_tier_usage(c->warm).dropped, 0);
}

/* One prefix is kept on the device, so that every other text moves the last one to host memory. */
static void check_host(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT], branch[CONTEXT];
    if (tn_model_get_info(c->model).is_recurrent) {
        check_states(c);
        return;
    }
    make_text(a, CONTEXT, 1);
    make_text(b, CONTEXT, 2);
    memcpy(branch, b, sizeof branch);
    memcpy(branch, a, 75 * sizeof *a);
    branch[75] = a[75] == 5 ? 6 : 5;
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 90, "another"), 0);
    assert_int_equal(tn_session_tier_usage(c->warm).host_tokens, 0);
    assert_int_equal(serve_text(c, 0, a, 100, "from host memory"), 99);
    assert_int_equal(tn_session_tier_usage(c->warm).host_tokens, 99);
    assert_int_equal(serve_text(c, 0, b, 130, "continued from host memory"), 90);
    assert_int_equal(serve_text(c, 0, a, 101, "again"), 100);
    (void)serve_text(c, 0, b, 131, "moves the other");
    const int32_t taken = serve_text(c, 0, branch, 120, "a branch inside a block");
    if (taken != 75) fail_msg("%s: %d taken", c->name, taken);
    assert_int_equal(serve_text(c, 0, b, 132, "once more"), 131);
    assert_int_equal(serve_text(c, 0, branch, 121, "the branch"), 120);
    assert_int_equal(tn_session_tier_usage(c->warm).dropped, 0);
}
static void host_memory_gives_what_was_computed(void **state) {
    (void)state;
    const tn_session_params p = tier_params(POOL, 1, RAM, 0);
    on_every_arch(check_host, &p);
}

/* Checkpoints on the way move to the tiers too, and serve texts that branch there. */
static void check_tier_checkpoints(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT], branch[CONTEXT];
    if (!tn_model_get_info(c->model).is_recurrent) return;
    make_text(a, CONTEXT, 13);
    make_text(b, CONTEXT, 14);
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 90, "another"), 0);
    for (int32_t n = 120; n >= 40; n -= 40) {
        memcpy(branch, a, sizeof branch);
        for (int32_t i = n; i < CONTEXT; i++) branch[i] = a[i] == 5 ? 6 : 5;
        if (n == 120) branch[100] = a[100] == 5 ? 6 : 5; /* after the text's end */
        if (c->params.cache_disk) restart(c);
        const int32_t expected = n == 120 ? 100 : n;
        const int32_t taken = serve_text(c, 0, branch, 140, "a branch at a checkpoint");
        if (taken != expected) fail_msg("%s: %d of %d taken", c->name, taken, expected);
    }
    assert_int_equal(tn_session_tier_usage(c->warm).dropped, 0);
}
static void checkpoints_come_back(void **state) {
    (void)state;
    tn_session_params p = tier_params(POOL, 1, 4 * RAM, 0);
    p.checkpoint_every = 40;
    on_every_arch(check_tier_checkpoints, &p);
    p = tier_params(POOL, 1, 4 * RAM, DISK);
    p.checkpoint_every = 40;
    on_every_arch(check_tier_checkpoints, &p);
}

/* When rows for states run out, states move to host memory and cells stay on the device. */
static void states_move_alone(void **state) {
    (void)state;
    kept_case c;
    tn_token text[CONTEXT];
    tn_session_params p = tier_params(POOL, 8, 4 * RAM, 0);
    p.n_checkpoints = 1; /* with one per sequence and a spare one, five rows */
    open_tiers(&c, "jamba", &p);
    for (uint32_t i = 0; i < 7; i++) {
        make_text(text, CONTEXT, 300 + i);
        assert_int_equal(serve_text(&c, 0, text, 60, "cold"), 0);
    }
    assert_int_equal(tn_session_prefix_usage(c.warm).kept, 7);
    make_text(text, CONTEXT, 300);
    assert_int_equal(serve_text(&c, 0, text, 61, "with its state"), 60);
    assert_int_equal(tn_session_tier_usage(c.warm).host_tokens, 0);
    assert_int_equal(tn_session_tier_usage(c.warm).dropped, 0);
    close_kept(&c);
}

static void check_disk(kept_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    if (tn_model_get_info(c->model).is_recurrent) {
        check_states(c);
        return;
    }
    make_text(a, CONTEXT, 3);
    make_text(b, CONTEXT, 4);
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 110, "another"), 0);
    restart(c);
    assert_int_equal(serve_text(c, 0, a, 105, "from disk"), 100);
    assert_int_equal(tn_session_tier_usage(c->warm).disk_tokens, 100);
    assert_int_equal(serve_text(c, 0, b, 70, "a part from disk"), 69);
    assert_int_equal(serve_text(c, 0, b, 111, "from disk"), 110);
    restart(c);
    restart(c);
    assert_int_equal(serve_text(c, 0, a, 106, "after another restart"), 105);
    assert_true(each_file(NULL) <= DISK);
    assert_int_equal(tn_session_tier_usage(c->warm).disk_failed, 0);
}
static void disks_give_what_was_computed_after_a_restart(void **state) {
    (void)state;
    tn_session_params p = tier_params(POOL, 1, 0, DISK);
    on_every_arch(check_disk, &p);
    p.cache_ram = RAM;
    p.page = 64;
    on_every_arch(check_disk, &p);
}

/* ---- Keeping once ---- */

static void blocks_are_kept_once(void **state) {
    (void)state;
    kept_case c;
    tn_token text[CONTEXT];
    const tn_session_params p = tier_params(POOL, 1, 4 * RAM, 0);
    open_tiers(&c, "llama", &p);
    for (uint32_t i = 0; i < 10; i++) { /* all begin with the same two blocks */
        make_text(text, CONTEXT, 200 + i);
        make_text(text, 64, 199);
        text[64] = (tn_token)(3 + i);
        assert_int_equal(serve_text(&c, 0, text, 96, "branches"), i ? 64 : 0);
    }
    make_text(text, CONTEXT, 210);
    (void)serve_text(&c, 0, text, 32, "moves the last");
    assert_int_equal(tn_session_tier_usage(c.warm).host_blocks, 2 + 10);
    /* A longer text of the same beginning replaces its last block. */
    make_text(text, CONTEXT, 220);
    for (int32_t n = 40; n <= 60; n += 5) {
        (void)serve_text(&c, 0, text, n, "grows");
        make_text(text, CONTEXT, 230);
        (void)serve_text(&c, 0, text, 32, "moves it");
        make_text(text, CONTEXT, 220);
    }
    assert_int_equal(tn_session_tier_usage(c.warm).host_blocks, 2 + 10 + 1 + 2 + 1);
    close_kept(&c);
}

/* ---- What must not be taken ---- */

static void keys_models_and_settings_are_separate(void **state) {
    (void)state;
    kept_case c;
    tn_token a[CONTEXT];
    clear_disk();
    make_text(a, CONTEXT, 5);
    tn_session_params p = tier_params(POOL, 1, RAM, DISK);
    open_tiers(&c, "llama", &p);
    assert_int_equal(serve_text(&c, 1, a, 100, "key 1"), 0);
    assert_int_equal(serve_text(&c, 2, a, 100, "key 2"), 0);
    assert_int_equal(serve_text(&c, 3, a, 100, "key 3"), 0);
    restart(&c);
    assert_int_equal(serve_text(&c, 1, a, 101, "key 1 again"), 100);
    assert_int_equal(serve_text(&c, 4, a, 101, "key 4"), 0);
    close_kept(&c);
    open_seed(&c, "llama", 7, &p); /* the same shape, other weights */
    assert_int_equal(serve_text(&c, 1, a, 101, "another model"), 0);
    close_kept(&c);
    p.cache_k = TN_F16;
    open_tiers(&c, "llama", &p);
    int32_t taken;
    assert_ok(tn_session_prefix_take(c.warm, 0, 1, a, 100, &taken));
    assert_int_equal(taken, 0); /* another cache type */
    close_kept(&c);
    p.cache_k = TN_F32;
    p.rope_base = 5000;
    open_tiers(&c, "llama", &p);
    assert_ok(tn_session_prefix_take(c.warm, 0, 1, a, 100, &taken));
    assert_int_equal(taken, 0);
    close_kept(&c);
    p.rope_base = 0;
    open_tiers(&c, "llama", &p);
    assert_int_equal(serve_text(&c, 1, a, 102, "as before"), 101);
    assert_int_equal(serve_text(&c, 2, a, 102, "as before"), 100);
    close_kept(&c);
}

static void shifted_and_forgotten_cells_are_not_taken(void **state) {
    (void)state;
    kept_case c;
    tn_token a[CONTEXT], joined[CONTEXT];
    clear_disk();
    make_text(a, CONTEXT, 6);
    memcpy(joined, a, sizeof joined);
    memmove(joined + 10, a + 20, 100 * sizeof *a);
    const tn_session_params p = tier_params(POOL, 1, RAM, DISK);
    open_tiers(&c, "llama", &p);
    (void)begin_sequence(&c, 0, 0, a, 100, "cold");
    assert_ok(tn_session_seq_remove(c.warm, 0, 10, 20));
    assert_ok(tn_session_seq_shift(c.warm, 0, 20, -1, -10));
    end_sequence(&c, 0);
    restart(&c);
    assert_int_equal(serve_text(&c, 0, joined, 80, "shifted"), 10);
    restart(&c);
    assert_ok(tn_session_prefix_forget(c.warm, 0, joined, 80));
    assert_int_equal(serve_text(&c, 0, joined, 80, "forgotten"), 0);
    tn_session_prefix_clear(c.warm);
    assert_int_equal(tn_session_tier_usage(c.warm).host_blocks, 0);
    close_kept(&c);
}

/* ---- Budgets ---- */

typedef struct conversation {
    tn_token tokens[CONTEXT];
    int32_t n;
} conversation;

static uint64_t random_state;
static uint32_t pick(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static void check_budgets(kept_case *c) {
    const tn_tier_usage usage = tn_session_tier_usage(c->warm);
    assert_true(usage.host_limit <= (c->params.cache_ram ? c->params.cache_ram : SIZE_MAX));
    assert_true(usage.host_bytes <= usage.host_limit);
    if (c->params.cache_disk) {
        assert_true(usage.disk_bytes <= usage.disk_limit);
        assert_true(each_file(NULL) <= usage.disk_limit);
    }
}

/* Random turns of conversations that branch, on a device, in host memory and on a disk that hold a part of them. */
static void fuzz_turns(kept_case *c) {
    enum { HISTORIES = 16, TURNS = 60, MOST = 150 };
    static conversation histories[HISTORIES];
    uint64_t taken = 0;
    random_state = 4711;
    for (uint32_t i = 0; i < HISTORIES; i++) {
        make_text(histories[i].tokens, CONTEXT, 300 + i % 4);
        histories[i].n = 20 + (int32_t)(i * 7 % 60);
    }
    for (int turn = 0; turn < (getenv("TENON_LONG") ? 40 * TURNS : TURNS); turn++) {
        conversation x = histories[pick(HISTORIES)];
        if (pick(4) == 0) x.n = 1 + (int32_t)pick((uint32_t)x.n);
        const int32_t more = 1 + (int32_t)pick(30);
        if (x.n + more > MOST) x.n = 20;
        for (int32_t i = 0; i < more; i++) x.tokens[x.n++] = (tn_token)(3 + pick(50));
        const uint64_t key = pick(5) == 0;
        taken += (uint64_t)begin_sequence(c, 0, key, x.tokens, x.n, "a turn");
        for (uint32_t i = pick(5); i > 0; i--) {
            x.tokens[x.n++] = (tn_token)(3 + pick(50));
            assert_ok(decode_from(c->warm, 0, x.tokens, x.n - 1, x.n));
        }
        compare_cold(c, x.tokens, x.n, "its reply");
        if (pick(8) == 0 && tn_session_seq_remove(c->warm, 0, 3, 6) == TN_OK)
            (void)tn_session_seq_shift(c->warm, 0, 6, -1, -3);
        if (pick(6)) assert_ok(tn_session_prefix_keep(c->warm, 0));
        assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
        histories[pick(HISTORIES)] = x;
        check_budgets(c);
        if (pick(20) == 0) restart(c);
        if (pick(20) == 0) assert_ok(tn_session_defragment(c->warm));
    }
    assert_true(taken > 0);
}
static void turns_equal_cold_ones_within_budgets(void **state) {
    (void)state;
    static const struct {
        int32_t n_ctx, n_prefixes;
        size_t ram;
        uint64_t disk;
    } sizes[] = {{192, 8, 256 << 10, 0}, {192, 8, 256 << 10, 512 << 10}, {POOL, 4, 0, 256 << 10}};
    static const char *const archs[] = {"llama", "gemma2", "gemma3", "phi3", "gpt2", "mamba", "jamba", "qwen3next"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof archs / sizeof *archs; k++) {
            kept_case c;
            clear_disk();
            const tn_session_params p = tier_params(sizes[i].n_ctx, sizes[i].n_prefixes, sizes[i].ram, sizes[i].disk);
            open_tiers(&c, archs[k], &p);
            fuzz_turns(&c);
            close_kept(&c);
            assert_true(each_file(NULL) <= DISK);
        }
}

/* The least recently used text goes first, and of a text its end. */
static void least_recently_used_goes_first(void **state) {
    (void)state;
    enum { TEXTS = 8 };
    kept_case c;
    tn_token texts[TEXTS][CONTEXT];
    const size_t token = 256; /* bytes of the tiny model */
    const tn_session_params p = tier_params(POOL, 1, (size_t)(3 * 128 + 40) * (token + 64), 0);
    open_tiers(&c, "llama", &p);
    for (uint32_t i = 0; i < TEXTS; i++) make_text(texts[i], CONTEXT, 400 + i);
    for (int i = 0; i < 4; i++) (void)serve_text(&c, 0, texts[i], 128, "cold"); /* 0, 1, 2 in host memory */
    assert_int_equal(serve_text(&c, 0, texts[0], 128, "0 again"), 127);         /* 3 moves, 0 is on the device */
    (void)serve_text(&c, 0, texts[4], 128, "cold");                             /* 0 moves; 1 is the oldest */
    (void)serve_text(&c, 0, texts[5], 128, "cold");                             /* 4 moves: 1 goes */
    assert_int_equal(serve_text(&c, 0, texts[0], 128, "0 stays"), 127);
    const int32_t taken = serve_text(&c, 0, texts[1], 128, "1 has gone");
    assert_true(taken < 127 && taken % TN__BLOCK == 0);
    assert_true(tn_session_tier_usage(c.warm).dropped > 0);
    close_kept(&c);
}

/* ---- Memory and arguments ---- */

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

/* Bytes planned on the host beside tensors, and those that a session took from the heap. */
static void measure_session(const char *arch, size_t ram, uint64_t disk, size_t *planned, size_t *taken,
                            size_t *blocks) {
    tn_model *model;
    tn_session_plan *plan;
    tn_session *session;
    tn_fit fit, now;
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB};
    assert_ok(tiny_model_write(model_path, &options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    const tn_session_params p = tier_params(POOL, 8, ram, disk);
    const size_t before = atomic_load(&live_bytes), blocks_before = atomic_load(&live_blocks);
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    assert_ok(tn_session_new(plan, &session));
    *taken = atomic_load(&live_bytes) - before;
    *blocks = atomic_load(&live_blocks) - blocks_before;
    assert_ok(tn_session_memory(session, &now));
    assert_int_equal(now.devices[0].staging, fit.devices[0].staging);
    assert_int_equal(now.devices[0].tier, fit.devices[0].tier);
    assert_int_equal(fit.devices[0].tier, tn_session_tier_usage(session).host_limit);
    if (ram) assert_true(fit.devices[0].tier <= ram && fit.devices[0].tier > ram - ram / 50);
    *planned = fit.devices[0].staging + fit.devices[0].tier;
    tn_fit_free(&fit);
    tn_fit_free(&now);
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_model_close(model);
}

static void memory_is_planned(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "phi3"};
    enum { HEADER = 16, ALIGNED_HEADER = 64 };
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        size_t planned[3], taken[3], blocks[3];
        clear_disk();
        measure_session(archs[i], 0, 0, &planned[0], &taken[0], &blocks[0]);
        measure_session(archs[i], RAM, 0, &planned[1], &taken[1], &blocks[1]);
        measure_session(archs[i], RAM, DISK, &planned[2], &taken[2], &blocks[2]);
        /* Every allocation has a header; those of the tier, the index and the buffer are aligned. */
        const size_t host_headers = (blocks[1] - blocks[0] - 1) * HEADER + ALIGNED_HEADER;
        assert_int_equal(taken[1] - taken[0], planned[1] - planned[0] + host_headers);
        const size_t disk_headers = (blocks[2] - blocks[1] - 2) * HEADER + 2 * ALIGNED_HEADER;
        assert_int_equal(taken[2] - taken[1], planned[2] - planned[1] + disk_headers);
    }
}

static void arguments_are_checked(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    const tiny_options options = {.arch = "llama", .context = POOL, .vocab = VOCAB};
    assert_ok(tiny_model_write(model_path, &options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    tn_session_params p = tier_params(POOL, 0, RAM, 0);
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &session)); /* none are kept */
    p = tier_params(POOL, 1, 1000, 0);
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &session)); /* too little for a block */
    p = tier_params(POOL, 1, 0, DISK);
    p.cache_disk_bytes = 0;
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &session));
    p = tier_params(POOL, 1, 0, DISK);
    p.cache_disk = model_path; /* a file */
    assert_fails(TN_E_IO, tn_session_open(model, &p, &session));
    p = tier_params(POOL, 1, (size_t)1 << 50, 0);
    assert_fails(TN_E_TOO_BIG, tn_session_open(model, &p, &session));
    assert_int_equal(tn_session_tier_usage(NULL).host_limit, 0);
    p = tier_params(POOL, 1, 0, 0);
    assert_ok(tn_session_open(model, &p, &session));
    assert_int_equal(tn_session_tier_usage(session).host_limit, 0);
    tn_session_free(session);
    tn_model_close(model);
}

int main(void) {
    const tn_allocator counting = {count_alloc, count_free, NULL};
    tn_set_allocator(&counting);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_gives_what_was_computed),
        cmocka_unit_test(checkpoints_come_back),
        cmocka_unit_test(states_move_alone),
        cmocka_unit_test(disks_give_what_was_computed_after_a_restart),
        cmocka_unit_test(blocks_are_kept_once),
        cmocka_unit_test(keys_models_and_settings_are_separate),
        cmocka_unit_test(shifted_and_forgotten_cells_are_not_taken),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(turns_equal_cold_ones_within_budgets),
        cmocka_unit_test(memory_is_planned),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
