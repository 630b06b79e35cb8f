/* The disk tier: blocks move there from host memory; damaged files, files of others, several processes, and failing
 * allocations do no harm. */
#include "models/tier_cases.h"

#include <stdlib.h>
#include <sys/wait.h>

/* Two host tiers too small for the texts: blocks pass to the disk while the session runs. */
static void blocks_move_on_to_disk(void **state) {
    (void)state;
    kept_case c;
    tn_token text[CONTEXT];
    clear_disk();
    const tn_session_params p = tier_params(CONTEXT, 2, 0, DISK);
    open_tiers(&c, "llama", &p);
    const int n_texts = (int)(tn_session_tier_usage(c.warm).host_limit / (200 * 256)) + 12; /* 256 bytes per token */
    for (int i = 0; i < n_texts; i++) {
        make_text(text, CONTEXT, 100 + (uint32_t)i);
        assert_true(serve_text(&c, 0, text, 200, "cold") < 8); /* few tokens begin several texts */
    }
    const tn_tier_usage usage = tn_session_tier_usage(c.warm);
    assert_true(usage.disk_stored > 0 && usage.disk_blocks > 0);
    assert_int_equal(usage.dropped, 0);
    for (int i = 0; i < n_texts; i++) {
        make_text(text, CONTEXT, 100 + (uint32_t)i);
        assert_int_equal(serve_text(&c, 0, text, 200, "again"), 199);
    }
    assert_true(tn_session_tier_usage(c.warm).disk_tokens > 0);
    restart(&c);
    assert_int_equal(each_file(NULL), tn_session_tier_usage(c.warm).disk_bytes);
    close_kept(&c);
}

/* ---- Damage ---- */

static size_t flip_at;
static void flip_byte(const char *path, size_t size) {
    FILE *file = fopen(path, "r+b");
    if (!file) return;
    if (flip_at < size && !strstr(path, "/lock")) {
        fseek(file, (long)flip_at, SEEK_SET);
        const int byte = fgetc(file);
        fseek(file, (long)flip_at, SEEK_SET);
        fputc(byte ^ 0x20, file);
        flip_at += flip_at < sizeof(tn__blob_header) ? 1 : 97; /* another one in the next file */
    }
    fclose(file);
}
static size_t cut_to;
static void cut_file(const char *path, size_t size) {
    if (cut_to < size && !strstr(path, "/lock")) assert_int_equal(truncate(path, (off_t)cut_to), 0);
}

static int n_notes;
static void count_notes(void *user, tn_log_level level, const char *text) {
    (void)user;
    (void)level;
    n_notes += strstr(text, "ignored") != NULL;
}

/* Every byte of the header, and some of the content, in all files. */
static void damaged_files_are_ignored(void **state) {
    (void)state;
    kept_case c;
    tn_token a[CONTEXT];
    make_text(a, CONTEXT, 8);
    const tn_session_params p = tier_params(CONTEXT, 2, 0, DISK);
    clear_disk();
    open_tiers(&c, "llama", &p);
    tn_log_set(count_notes, NULL, TN_LOG_WARN);
    for (flip_at = 0; flip_at < 70 * TN__BLOCK;) {
        (void)serve_text(&c, 0, a, 100, "whole");
        tn_session_free(c.warm);
        (void)each_file(flip_byte);
        assert_ok(tn_session_open(c.model, &c.params, &c.warm));
        n_notes = 0;
        const int32_t taken = begin_sequence(&c, 0, 0, a, 100, "damaged");
        assert_int_equal(taken, 0);
        assert_true(n_notes == 0 || n_notes == 1);
        assert_ok(tn_session_seq_remove(c.warm, 0, 0, -1));
        assert_true(each_file(NULL) <= DISK);
    }
    for (cut_to = 0; cut_to < 3000; cut_to += 173) {
        (void)serve_text(&c, 0, a, 100, "whole");
        tn_session_free(c.warm);
        (void)each_file(cut_file);
        assert_ok(tn_session_open(c.model, &c.params, &c.warm));
        assert_int_equal(serve_text(&c, 0, a, 100, "cut"), 0);
    }
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    close_kept(&c);
}

/* Files of others stay and do not count; the salt of a damaged lock file is made anew, and old files age out. */
static void foreign_files_stay(void **state) {
    (void)state;
    kept_case c;
    tn_token a[CONTEXT];
    char foreign[256], lock[256];
    make_text(a, CONTEXT, 9);
    clear_disk();
    const tn_session_params p = tier_params(POOL, 1, RAM, DISK);
    open_tiers(&c, "llama", &p);
    snprintf(foreign, sizeof foreign, "%s/notes.txt", disk_folder);
    snprintf(lock, sizeof lock, "%s/lock", disk_folder);
    FILE *file = fopen(foreign, "w");
    fputs("mine", file);
    fclose(file);
    (void)serve_text(&c, 0, a, 100, "cold");
    restart(&c);
    assert_int_equal(serve_text(&c, 0, a, 101, "beside others"), 100);
    tn_session_free(c.warm);
    assert_int_equal(truncate(lock, 3), 0);
    assert_ok(tn_session_open(c.model, &c.params, &c.warm));
    assert_int_equal(serve_text(&c, 0, a, 102, "another salt"), 0);
    assert_true(tn_session_tier_usage(c.warm).disk_blocks >= 4);
    restart(&c);
    assert_int_equal(serve_text(&c, 0, a, 103, "with it"), 102);
    assert_int_equal(access(foreign, R_OK), 0);
    close_kept(&c);
}

/* Several sessions in several processes share a folder and its budget. */
static void processes_share_a_folder(void **state) {
    (void)state;
    enum { PROCESSES = 3, ROUNDS = 30 };
    kept_case c;
    tn_token text[CONTEXT];
    pid_t children[PROCESSES];
    const uint64_t budget = 300 << 10;
    clear_disk();
    const tn_session_params p = tier_params(CONTEXT, 1, 0, budget);
    open_tiers(&c, "llama", &p);
    tn_session_free(c.warm);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (uint32_t k = 0; k < ROUNDS; k++) {
            if (k % 10 == 0 && tn_session_open(c.model, &p, &c.warm) != TN_OK) _exit(2);
            make_text(text, CONTEXT, 500 + (k * 7 + (uint32_t)i * 3) % 20);
            (void)serve_text(&c, 0, text, 150, "shared");
            if (each_file(NULL) > budget + 40) _exit(3); /* the lock file may appear twice in a listing */
            if (k % 10 == 9) tn_session_free(c.warm);
        }
        _exit(0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int code = 0;
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_true(WIFEXITED(code));
        assert_int_equal(WEXITSTATUS(code), 0);
    }
    assert_ok(tn_session_open(c.model, &p, &c.warm));
    assert_true(each_file(NULL) <= budget);
    int32_t found = 0;
    for (uint32_t k = 0; k < 20; k++) {
        make_text(text, CONTEXT, 500 + k);
        found += serve_text(&c, 0, text, 150, "after them") > 0;
    }
    assert_true(found > 0);
    close_kept(&c);
}

/* ---- No memory ---- */

static tn_status tier_scenario(void *user) {
    kept_case *c = user;
    tn_token text[CONTEXT];
    tn_session *session;
    int32_t taken;
    TN_TRY(tn_session_open(c->model, &c->params, &session));
    tn_status status = TN_OK;
    for (uint32_t i = 0; i < 4 && status == TN_OK; i++) {
        make_text(text, CONTEXT, 600 + i % 3);
        status = tn_session_prefix_take(session, 0, 0, text, 99, &taken);
        if (status == TN_OK) status = decode_from(session, 0, text, taken, 100);
        if (status == TN_OK) status = tn_session_prefix_keep(session, 0);
        if (status == TN_OK) status = tn_session_seq_remove(session, 0, 0, -1);
    }
    tn_session_free(session);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    kept_case c;
    clear_disk();
    const tn_session_params p = tier_params(CONTEXT, 1, RAM, DISK);
    open_tiers(&c, "gemma2", &p);
    check_no_leak(tier_scenario, &c); /* also makes what is allocated once per process */
    check_every_allocation_failure(tier_scenario, &c);
    close_kept(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_move_on_to_disk),    cmocka_unit_test(damaged_files_are_ignored),
        cmocka_unit_test(foreign_files_stay),        cmocka_unit_test(processes_share_a_folder),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
