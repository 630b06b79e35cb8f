/* The cache of session plans: when plans are kept, used, refused and evicted. */
#include "models/tiny_models.h"
#include "support.h"

#include "base/checked.h"
#include "llm/plan/saved.h"
#include "llm/plan/session_plan.h"
#include "sched_case.h"
#include "tenon/llm.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char work[64], model_path[128], cache_folder[128];

static tn_plan_cache keep_all(void) { return (tn_plan_cache){.folder = cache_folder, .min_ms = -1}; }

static tn_session_params cached_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 64;
    p.n_batch = p.n_ubatch = 8;
    p.n_threads = 1;
    p.devices[0] = device;
    return p;
}

/* Calls `use` (may be NULL) with every file of the cache, and counts them. */
static size_t each_file(void (*use)(const char *path)) {
    size_t n = 0;
    DIR *dir = opendir(cache_folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[512];
        if (e->d_name[0] == '.') continue;
        n++;
        snprintf(path, sizeof path, "%s/%s", cache_folder, e->d_name);
        if (use) use(path);
    }
    if (dir) closedir(dir);
    return n;
}
static void remove_file(const char *path) { assert_int_equal(unlink(path), 0); }
static void flip_last_byte(const char *path) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -1, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}
static void cut_file(const char *path) { assert_int_equal(truncate(path, 100), 0); }
static void make_old(const char *path) {
    const struct timespec long_ago[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
}

static tn_model *open_model(const tiny_options *options) {
    tn_model *model;
    assert_ok(tiny_model_write(model_path, options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    return model;
}

/* Plans with the cache; says whether the plan came from there. */
static bool plan_with(tn_model *model, const tn_session_params *p, const tn_plan_cache *cache) {
    tn_session_plan *plan;
    assert_ok(tn_session_plan_cached(model, p, cache, &plan));
    const bool adopted = tn_session_plan_adopted(plan);
    tn_session_plan_free(plan);
    return adopted;
}

static void plans_are_kept_and_used(void **state) {
    (void)state;
    const tn_plan_cache cache = keep_all();
    tn_model *model = open_model(NULL);
    tn_session_params p = cached_params("cpu"), q = p;
    tn_session_plan *plan, *again;
    char *text;
    assert_ok(tn_session_plan_cached(model, &p, &cache, &plan));
    assert_false(tn_session_plan_adopted(plan));
    assert_int_equal(each_file(NULL), 1);
    assert_ok(tn_session_plan_cached(model, &p, &cache, &again));
    assert_true(tn_session_plan_adopted(again));
    assert_int_equal(tn_sched_get_stats(again->sched).plans_made, 0);
    assert_ok(tn_session_plan_compare(plan, again, &text));
    assert_string_equal(text ? text : "", "");
    tn_free(text);
    tn_session_plan_free(plan);
    q.n_ctx = 48; /* another key */
    assert_false(plan_with(model, &q, &cache));
    assert_int_equal(each_file(NULL), 2);
    tn_session *session;
    assert_ok(tn_session_new(again, &session));
    tn_token token = 3;
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token}));
    assert_false(plan_with(model, &p, &cache)); /* a loaded model is planned without the cache */
    tn_session_free(session);
    tn_session_plan_free(again);
    tn_model_close(model);
    each_file(remove_file);
}

static void quick_plans_are_not_kept(void **state) {
    (void)state;
    tn_model *model = open_model(NULL);
    tn_session_params p = cached_params("cpu");
    tn_plan_cache cache = {.folder = cache_folder, .min_ms = 100000};
    assert_false(plan_with(model, &p, &cache));
    assert_int_equal(each_file(NULL), 0);
    const tn_budget budget = {"cpu", 1 << 30};
    cache.min_ms = -1;
    p.budgets = &budget;
    p.n_budgets = 1;
    assert_false(plan_with(model, &p, &cache)); /* budgets are not part of the key */
    assert_int_equal(each_file(NULL), 0);
    tn_session_plan *plan;
    assert_fails(TN_E_INVALID, tn_session_plan_cached(model, &p, &(tn_plan_cache){0}, &plan));
    tn_model_close(model);
}

/* Damaged files are planned over, whatever is wrong with them; the next plan comes from the cache again. */
static void damaged_files_are_replaced(void **state) {
    (void)state;
    static void (*const damages[])(const char *) = {flip_last_byte, cut_file};
    const tn_plan_cache cache = keep_all();
    tn_model *model = open_model(NULL);
    tn_session_params p = cached_params("cpu");
    assert_false(plan_with(model, &p, &cache));
    for (size_t i = 0; i < TN__COUNT(damages); i++) {
        each_file(damages[i]);
        assert_false(plan_with(model, &p, &cache));
        assert_true(plan_with(model, &p, &cache));
        assert_int_equal(each_file(NULL), 1);
    }
    /* A file that is refused is removed, even where the new plan is not kept. */
    each_file(flip_last_byte);
    assert_false(plan_with(model, &p, &(tn_plan_cache){.folder = cache_folder, .min_ms = 100000}));
    assert_int_equal(each_file(NULL), 0);
    tn_model_close(model);
}

static void set_free(const char *name, size_t bytes) {
    sim_of(name)->memory->size = bytes; /* others use the rest: the device's total stays */
}

/* A plan for scarce memory is not used once more is free, nor one that does not fit any more. */
static void memory_that_changes_is_planned_anew(void **state) {
    (void)state;
    const tn_plan_cache cache = keep_all();
    tn_model *model = open_model(&(tiny_options){.layers = 6, .ffn = 512, .type = TN_F16});
    tn_device *device;
    assert_ok(tn_device_find("sim:64M,name=varies", &device));
    tn_session_params p = cached_params("varies");
    tn_session_plan *plan;
    tn_fit fit;
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    const size_t all =
        fit.devices[0].weights + fit.devices[0].cache + fit.devices[0].compute + fit.devices[0].scratch;
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    set_free("varies", all * 2 / 3);
    assert_ok(tn_session_plan_cached(model, &p, &cache, &plan));
    assert_true(plan->fits && plan->devices[0].n_layers < 6);
    tn_session_plan_free(plan);
    assert_true(plan_with(model, &p, &cache));
    set_free("varies", all * 2 / 3 - 64); /* less, but it fits */
    assert_true(plan_with(model, &p, &cache));
    set_free("varies", all / 3);
    assert_ok(tn_session_plan_cached(model, &p, &cache, &plan));
    assert_true(plan->fits && !plan->adopted);
    tn_session_plan_free(plan);
    set_free("varies", 64 << 20);
    assert_ok(tn_session_plan_cached(model, &p, &cache, &plan));
    assert_false(plan->adopted);
    assert_int_equal(plan->devices[0].n_layers, 6);
    tn_session_plan_free(plan);
    set_free("varies", 65 << 20); /* nothing better is possible */
    assert_true(plan_with(model, &p, &cache));
    assert_int_equal(each_file(NULL), 1);
    p.n_gpu_layers = 1000;
    set_free("varies", 1000);
    assert_ok(tn_session_plan_cached(model, &p, &cache, &plan));
    assert_false(plan->fits);
    assert_int_equal(each_file(NULL), 1); /* plans that do not fit are not kept */
    tn_session_plan_free(plan);
    tn_model_close(model);
    each_file(remove_file);
}

/* The least recently used plans go: above a number, above a size, and never the one just written. */
static void the_cache_is_bounded(void **state) {
    (void)state;
    tn_plan_cache cache = keep_all();
    tn_model *model = open_model(NULL);
    tn_session_params p = cached_params("cpu");
    char other[256], partial[256];
    cache.max_files = 3;
    for (p.n_ctx = 64; p.n_ctx < 67; p.n_ctx++) assert_false(plan_with(model, &p, &cache));
    assert_int_equal(each_file(NULL), 3);
    each_file(make_old);
    p.n_ctx = 65;
    assert_true(plan_with(model, &p, &cache)); /* used now */
    snprintf(other, sizeof other, "%s/notes.plan", cache_folder);
    snprintf(partial, sizeof partial, "%s/%s.plan.77-0.partial", cache_folder, "0123456789abcdef0123456789abcdef");
    fclose(fopen(other, "w"));
    fclose(fopen(partial, "w"));
    make_old(other);
    make_old(partial);
    p.n_ctx = 80;
    assert_false(plan_with(model, &p, &cache));
    p.n_ctx = 81;
    assert_false(plan_with(model, &p, &cache));
    assert_int_equal(access(other, F_OK), 0); /* not the cache's */
    assert_int_not_equal(access(partial, F_OK), 0);
    assert_int_equal(each_file(NULL), 4);
    p.n_ctx = 65;
    assert_true(plan_with(model, &p, &cache));
    p.n_ctx = 80;
    assert_true(plan_with(model, &p, &cache));
    p.n_ctx = 64;
    assert_false(plan_with(model, &p, &cache));
    cache.max_bytes = 1; /* no plan is that small */
    p.n_ctx = 90;
    assert_false(plan_with(model, &p, &cache));
    assert_int_equal(each_file(NULL), 1);
    tn_model_close(model);
    remove_file(other);
}

/* A folder that cannot be written is no reason to fail. */
static void a_folder_that_is_not_there_only_costs_the_cache(void **state) {
    (void)state;
    char folder[256];
    tn_model *model = open_model(NULL);
    tn_session_params p = cached_params("cpu");
    tn_log_set(NULL, NULL, TN_LOG_ERROR);
    assert_false(plan_with(model, &p, &(tn_plan_cache){.folder = "/dev/null/plans", .min_ms = -1}));
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    snprintf(folder, sizeof folder, "%s/a/b", cache_folder); /* made with those above it */
    tn_plan_cache cache = {.folder = folder, .min_ms = -1};
    assert_false(plan_with(model, &p, &cache));
    assert_true(plan_with(model, &p, &cache));
    tn_model_close(model);
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", cache_folder);
    assert_int_equal(system(command), 0);
}

/* Several processes fill and trim the same folder. */
static void processes_share_a_folder(void **state) {
    (void)state;
    enum { PROCESSES = 4 };
    tn_model_close(open_model(NULL));
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        if ((children[i] = fork()) > 0) continue;
        tn_model *model;
        tn_session_plan *plan;
        tn_plan_cache cache = keep_all();
        cache.max_files = 2;
        int code = tn_model_open(model_path, NULL, &model) != TN_OK;
        for (int round = 0; round < 12 && !code; round++) {
            tn_session_params p = cached_params("cpu");
            p.n_ctx = 64 + (round + i) % 3;
            code = tn_session_plan_cached(model, &p, &cache, &plan) != TN_OK;
            if (!code) tn_session_plan_free(plan);
        }
        _exit(code);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int code = -1;
        assert_true(children[i] > 0);
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_int_equal(code, 0);
    }
    tn_model *model;
    assert_ok(tn_model_open(model_path, NULL, &model));
    const tn_plan_cache cache = keep_all();
    for (int i = 0; i < 3; i++) {
        tn_session_params p = cached_params("cpu");
        p.n_ctx = 64 + i;
        plan_with(model, &p, &cache);
        assert_true(plan_with(model, &p, &cache)); /* whatever was left is whole or replaced */
    }
    tn_model_close(model);
    each_file(remove_file);
}

/* Once without and once with a plan in the cache. */
static tn_status keep_and_use(void *user) {
    tn_model *model;
    tn_session_plan *plan;
    const tn_plan_cache cache = keep_all();
    tn_session_params p = cached_params("cpu");
    p.n_ubatch = p.n_seqs = 1;
    TN_TRY(tn_model_open(user, NULL, &model));
    tn_status status = tn_session_plan_cached(model, &p, &cache, &plan);
    if (status == TN_OK) tn_session_plan_free(plan);
    if (status == TN_OK) status = tn_session_plan_cached(model, &p, &cache, &plan);
    if (status == TN_OK) tn_session_plan_free(plan);
    tn_model_close(model);
    each_file(remove_file);
    return status;
}

static void every_allocation_may_fail_with_a_cache(void **state) {
    (void)state;
    tn_model_close(open_model(&(tiny_options){.layers = 1}));
    tn_log_set(NULL, NULL, TN_LOG_ERROR); /* plans that are not kept are logged */
    check_every_allocation_failure(keep_and_use, model_path);
    tn_log_set(NULL, NULL, TN_LOG_WARN);
}

static int make_work(void **state) {
    (void)state;
    snprintf(work, sizeof work, "/tmp/tenon-cache-XXXXXX");
    if (!mkdtemp(work)) return -1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", work);
    snprintf(cache_folder, sizeof cache_folder, "%s/plans", work);
    return 0;
}
static int remove_work(void **state) {
    (void)state;
    rmdir(cache_folder);
    unlink(model_path);
    return rmdir(work);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_kept_and_used),
        cmocka_unit_test(quick_plans_are_not_kept),
        cmocka_unit_test(damaged_files_are_replaced),
        cmocka_unit_test(memory_that_changes_is_planned_anew),
        cmocka_unit_test(the_cache_is_bounded),
        cmocka_unit_test(a_folder_that_is_not_there_only_costs_the_cache),
        cmocka_unit_test(processes_share_a_folder),
        cmocka_unit_test(every_allocation_may_fail_with_a_cache),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
