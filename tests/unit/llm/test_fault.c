/* Fault tests of whole scenarios: a model is loaded, run, saved and restored while memory runs out, a device fails or
 * the file on disk changes. Each fault must return a status, leak nothing, and leave the next attempt working. */
#include "support.h"

#include "backend/sim/sim.h"
#include "base/hash.h"
#include "models/tiny_models.h"
#include "tenon/budget.h"
#include "tenon/llm.h"
#include "tenon/sampler.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TINY_VOCAB = 64 };
static char folder[64];

static const char *in_folder(const char *name) {
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tenon-fault-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    return tiny_model_write(in_folder("model.gguf"), NULL) == TN_OK ? 0 : -1;
}

static int count_files(void) {
    int n = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.';
    if (dir) closedir(dir);
    return n;
}

static int remove_folder(void **state) {
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) unlink(in_folder(e->d_name));
    if (dir) closedir(dir);
    return rmdir(folder);
}

static tn_session_params params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 32;
    p.n_batch = p.n_ubatch = 16;
    p.n_seqs = 3;
    p.n_threads = 1;
    p.devices[0] = device;
    return p;
}

static tn_status decode(tn_session *session, int32_t seq, int32_t n) {
    static const tn_token tokens[16] = {1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61};
    int32_t seqs[16];
    for (int i = 0; i < 16; i++) seqs[i] = seq;
    return tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs});
}

/* Everything a program does with a model, from opening it to a saved state. */
typedef struct whole {
    const char *device;
    const char *model;    /* NULL: model.gguf; of others weights are copied, and plans made with the effort fast */
    int32_t n_gpu_layers; /* 0: all */
    double sum;           /* of logits, to compare */
    size_t bytes;         /* planned on the device and, where it has unified memory, on the host */
    size_t compute;       /* of them */
} whole;

static bool look_at_node(void *user, tn_tensor *node, bool ask) {
    (void)node;
    if (!ask) ++*(int *)user;
    return true;
}

/* Batches of every size, with an eval callback for some; shifts, copies, moves and states of cells. */
static tn_status serve_everything(tn_session *session) {
    int seen = 0;
    size_t size;
    tn_status status = TN_OK;
    for (int32_t n = 1; n <= 16 && status == TN_OK; n++) {
        tn_session_clear(session);
        tn_sched_set_eval(tn_session_sched(session), n % 5 == 1 ? look_at_node : NULL, &seen);
        status = decode(session, n % 3, n);
    }
    tn_sched_set_eval(tn_session_sched(session), NULL, NULL);
    TN_TRY(status);
    if (!seen) return tn_fail(TN_E_INTERNAL, "the eval callback saw nothing");
    TN_TRY(tn_session_seq_copy(session, 1, 2, 0, -1));
    TN_TRY(tn_session_seq_remove(session, 1, 2, 5));
    TN_TRY(tn_session_seq_shift(session, 1, 5, -1, -3));
    TN_TRY(decode(session, 1, 1));
    TN_TRY(tn_session_seq_divide(session, 2, 4, -1, 2));
    TN_TRY(tn_session_seq_remove(session, 2, 0, 3));
    TN_TRY(decode(session, 0, 2));
    TN_TRY(tn_session_defragment(session));
    TN_TRY(tn_session_state_size(session, -1, &size));
    void *cells = malloc(size);
    if (!cells) return TN_E_NOMEM;
    status = tn_session_state_get(session, -1, cells, size);
    tn_session_clear(session);
    if (status == TN_OK) status = tn_session_state_set(session, -1, cells, size);
    free(cells);
    TN_TRY(status);
    return decode(session, 0, 3);
}

static tn_status use_session(tn_session *session, whole *w) {
    tn_sampler *sampler = NULL;
    tn_sampler_params sp = tn_sampler_params_default();
    sp.seed = 7;
    TN_TRY(decode(session, 0, 8));
    const float *logits = tn_session_logits(session, -1);
    if (!logits) return tn_fail(TN_E_INTERNAL, "no logits");
    w->sum = 0;
    for (int i = 0; i < TINY_VOCAB; i++) w->sum += logits[i] * (i + 1);
    tn_status status = tn_sampler_new(&sp, TINY_VOCAB, &sampler);
    for (int i = 0; i < 3 && status == TN_OK; i++) {
        tn_token token;
        status = tn_sampler_sample(sampler, tn_session_logits(session, -1), TINY_VOCAB, &token);
        if (status == TN_OK) status = tn_sampler_accept(sampler, token);
        if (status == TN_OK) status = tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token});
    }
    tn_sampler_free(sampler);
    if (status == TN_OK) status = tn_session_seq_copy(session, 0, 1, 0, 4);
    if (status == TN_OK) status = tn_session_save(session, 0, in_folder("state"));
    if (status == TN_OK) status = tn_session_load(session, 2, in_folder("state"));
    if (status == TN_OK) status = decode(session, 2, 1);
    if (status == TN_OK) status = tn_session_defragment(session);
    return status == TN_OK ? serve_everything(session) : status;
}

static tn_status whole_scenario(void *user) {
    whole *w = user;
    tn_model *model = NULL;
    tn_session_plan *plan = NULL;
    tn_session *session = NULL;
    tn_session_params p = params(w->device);
    p.n_gpu_layers = w->n_gpu_layers ? w->n_gpu_layers : 1000;
    static const tn_pack_params fast = {.effort = TN_PACK_FAST};
    if (w->model) p.pack = &fast;
    tn_fit fit = {0};
    TN_TRY(tn_model_open(in_folder(w->model ? w->model : "model.gguf"),
                         &(tn_model_params){.no_mmap = w->model != NULL}, &model));
    tn_status status = tn_session_plan_new(model, &p, &plan);
    if (status == TN_OK) status = tn_session_plan_fit(plan, &fit);
    if (status == TN_OK) {
        w->bytes = 0;
        w->compute = fit.devices[0].compute;
        for (size_t i = 0; i < fit.n_devices; i++) {
            const tn_fit_device *d = &fit.devices[i];
            if (d->domain != 0 || (i && !fit.devices[0].reported)) continue;
            w->bytes += d->weights + d->cache + d->compute + d->scratch + d->staging + d->own;
        }
        tn_fit_free(&fit);
        status = tn_session_new(plan, &session);
    }
    if (status == TN_OK) status = use_session(session, w);
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_model_close(model);
    unlink(in_folder("state"));
    return status;
}

static void every_allocation_from_load_to_restore_may_fail(void **state) {
    (void)state;
    whole w = {.device = "cpu"};
    check_no_leak(whole_scenario, &w); /* also makes what is allocated once per process */
    check_every_allocation_failure(whole_scenario, &w);
    assert_int_equal(count_files(), 1);
}

static tn_status write_scenario(void *user) {
    tn_status status = tiny_model_write(user, NULL);
    unlink(user);
    return status;
}

static void every_allocation_of_a_writer_may_fail_without_a_file(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s", in_folder("written.gguf"));
    check_every_allocation_failure(write_scenario, path);
    assert_int_equal(count_files(), 1);
}

/* The search for parameters that fit a budget, with the ladder of choices. */
static tn_status budget_scenario(void *user) {
    tn_model *model;
    tn_session_plan *plan;
    tn_budget_ladder ladder = {0};
    const tn_budget budgets[] = {{"searched", 300000}, {"cpu", 1 << 30}};
    tn_session_params p = params("searched");
    p.n_ctx = 16;
    p.n_batch = p.n_ubatch = 1;
    p.n_seqs = 1;
    p.budgets = budgets;
    p.n_budgets = 2;
    TN_TRY(tn_model_open(user, NULL, &model));
    const tn_budget_params how = {.keep_cache_k = true, .keep_cache_v = true, .keep_ubatch = true}; /* few plans */
    tn_status status = tn_session_plan_to_budget(model, &p, &how, &plan, &ladder);
    if (status == TN_OK) tn_session_plan_free(plan);
    tn_budget_ladder_free(&ladder);
    tn_model_close(model);
    return status;
}

static void every_allocation_of_a_budget_search_may_fail(void **state) {
    (void)state;
    tn_device *device;
    assert_ok(tn_device_find("sim:64M,name=searched", &device));
    assert_ok(tiny_model_write(in_folder("searched.gguf"), &(tiny_options){.layers = 1}));
    char path[128];
    snprintf(path, sizeof path, "%s", in_folder("searched.gguf"));
    check_no_leak(budget_scenario, path);
    check_every_allocation_failure(budget_scenario, path);
    unlink(path);
}

/* The device fails at its n-th allocation, copy or run, for every n, in the same scenario; then it works again. It
 * has ample memory, or exactly what is planned, of which nothing may be lost. */
static void survive_device(whole healthy, bool exactly, size_t max_alloc) {
    static const struct {
        size_t offset;
        tn_status status;
    } kinds[] = {{offsetof(tn__sim, fail_alloc), TN_E_DEVICE_MEMORY},
                 {offsetof(tn__sim, fail_copy), TN_E_DEVICE},
                 {offsetof(tn__sim, fail_run), TN_E_DEVICE_LOST}};
    tn_device *device;
    assert_ok(tn_device_find(healthy.device, &device));
    tn__sim *sim = device->impl;
    tn__sim_resize(sim, 64 << 20, max_alloc);
    assert_ok(whole_scenario(&healthy));
    if (max_alloc) assert_true(healthy.compute > max_alloc);
    tn__sim_resize(sim, exactly ? healthy.bytes : 64 << 20, max_alloc);
    assert_ok(whole_scenario(&healthy));
    for (size_t kind = 0; kind < 3; kind++) {
        atomic_long *counter = (atomic_long *)((char *)sim + kinds[kind].offset);
        bool fired = true;
        for (long n = 1; fired && n < 5000; n += n < 20 ? 1 : 23) {
            uint64_t before = tn_memory_get_stats().live_blocks;
            whole w = healthy;
            atomic_store(counter, n);
            tn_error_clear();
            tn_status status = whole_scenario(&w);
            fired = atomic_load(counter) <= 0;
            atomic_store(counter, 0);
            atomic_store(&sim->lost, false);
            if (fired && status != kinds[kind].status)
                fail_msg("fault %zu at %ld: %s: %s", kind, n, tn_status_name(status), tn_error());
            if (fired && !*tn_error()) fail_msg("fault %zu at %ld left no message", kind, n);
            if (tn_memory_get_stats().live_blocks != before) fail_msg("fault %zu at %ld leaks", kind, n);
            if (atomic_load(&sim->used)) fail_msg("fault %zu at %ld: the device has bytes in use", kind, n);
        }
        whole again = healthy;
        again.sum = 0;
        assert_ok(whole_scenario(&again));
        assert_true(again.sum == healthy.sum);
    }
    tn__sim_resize(sim, 64 << 20, 0);
}

static void a_session_survives_its_device(void **state) {
    (void)state;
    survive_device((whole){.device = "sim:64M,name=brittle"}, false, 0);
}

/* Of two layers all or one are on the device. */
static void survive_exactly(const char *device) {
    survive_device((whole){.device = device}, true, 0);
    survive_device((whole){.device = device, .n_gpu_layers = 1}, true, 0);
}

static void a_session_survives_an_exactly_full_device(void **state) {
    (void)state;
    survive_exactly("sim:64M,name=brittle");
    survive_exactly("sim:64M,report=0,name=silent");
}

/* Unified memory has the host's part of the plan as well. */
static void a_session_survives_exactly_full_unified_memory(void **state) {
    (void)state;
    survive_exactly("sim:64M,uma=1,name=unified");
}

/* Compute memory is in several chunks. */
static void a_session_survives_a_full_device_with_a_largest_allocation(void **state) {
    (void)state;
    enum { NARROW = 320 << 10 }; /* the scratch of AMX kernels fits, two of the widest tensors do not */
    assert_ok(tiny_model_write(in_folder("wide.gguf"), &(tiny_options){.ffn = 4096, .type = TN_F16}));
    survive_device((whole){.device = "sim:64M,name=brittle", .model = "wide.gguf"}, true, NARROW);
    survive_device((whole){.device = "sim:64M,uma=1,name=unified", .model = "wide.gguf"}, true, NARROW);
    survive_device((whole){.device = "sim:64M,report=0,name=silent", .model = "wide.gguf"}, true, NARROW);
    unlink(in_folder("wide.gguf"));
}

/* A plan whose session could not be made makes no other one; the next plan does. */
static void a_plan_that_failed_is_refused_and_replaced(void **state) {
    (void)state;
    tn_model *model;
    tn_device *device;
    tn_session_params p = params("sim:64M,name=brittle");
    assert_ok(tn_device_find(p.devices[0], &device));
    tn__sim *sim = device->impl;
    assert_ok(tn_model_open(in_folder("model.gguf"), NULL, &model));
    bool failed = true;
    for (long n = 1; failed; n++) {
        tn_session_plan *plan;
        tn_session *session;
        assert_ok(tn_session_plan_new(model, &p, &plan));
        assert_int_equal(atomic_load(&sim->used), 0); /* planning takes nothing */
        atomic_store(&sim->fail_alloc, n);
        tn_error_clear();
        tn_status status = tn_session_new(plan, &session);
        failed = atomic_load(&sim->fail_alloc) <= 0;
        atomic_store(&sim->fail_alloc, 0);
        if (failed) {
            assert_int_equal(status, TN_E_DEVICE_MEMORY);
            assert_true(*tn_error());
            assert_null(session);
            assert_fails(TN_E_STATE, tn_session_new(plan, &session));
            tn_session_plan_free(plan);
            tn_model_close(model); /* with the weights that were loaded before the failure */
            assert_int_equal(atomic_load(&sim->used), 0);
            assert_ok(tn_model_open(in_folder("model.gguf"), NULL, &model));
            continue;
        }
        assert_ok(status);
        assert_true(n > 3);         /* weights, cache, compute memory */
        tn_session_plan_free(plan); /* the session keeps it */
        assert_ok(decode(session, 0, 16));
        tn_session_free(session);
    }
    tn_model_close(model);
}

/* Loading a state needs free cells: cells that its sequence shares with another sequence do not become free. */
static void a_state_does_not_take_shared_cells(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    tn_session_params p = params("cpu");
    assert_ok(tn_model_open(in_folder("model.gguf"), NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(decode(session, 0, 16));
    assert_ok(tn_session_save(session, 0, in_folder("shared")));
    assert_ok(tn_session_seq_copy(session, 0, 1, 0, -1));
    assert_ok(decode(session, 2, 8));
    int32_t used = tn_session_cache_usage(session).used;
    assert_int_equal(used, 24); /* of 32: the state has 16 */
    assert_fails(TN_E_FULL, tn_session_load(session, 0, in_folder("shared")));
    assert_int_equal(tn_session_cache_usage(session).used, used);
    assert_ok(tn_session_seq_remove(session, 2, 0, -1));
    assert_ok(tn_session_load(session, 0, in_folder("shared")));
    assert_int_equal(tn_session_cache_usage(session).used, 32);
    tn_session_free(session);
    tn_model_close(model);
    unlink(in_folder("shared"));
}

/* A run of cells that the state does not have would show what another sequence wrote. */
static void a_state_with_impossible_runs_is_refused(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    tn_session_params p = params("cpu");
    assert_ok(tn_model_open(in_folder("model.gguf"), NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(decode(session, 0, 4));
    size_t size;
    assert_ok(tn_session_state_size(session, -1, &size));
    unsigned char *bytes = malloc(size);
    /* After the header: the number of runs of sequence 0, then its only run: cell, count, first position, divisor. */
    static const struct {
        size_t field;
        int32_t value;
    } wrong[] = {{0, 2}, {0, 0}, {1, -1}, {1, 1}, {2, 0}, {2, 5}, {2, INT32_MAX}, {3, -1}, {3, INT32_MAX}, {4, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_ok(tn_session_state_get(session, -1, bytes, size));
        memcpy(bytes + 72 + 4 * wrong[i].field, &wrong[i].value, 4);
        uint64_t sum = tn__hash_bytes(bytes, size - 8, 0);
        memcpy(bytes + size - 8, &sum, 8);
        assert_fails(TN_E_FORMAT, tn_session_state_set(session, -1, bytes, size));
    }
    assert_int_equal(tn_session_cache_usage(session).used, 4);
    free(bytes);
    tn_session_free(session);
    tn_model_close(model);
}

static void a_file_that_changes_after_opening_is_noticed(void **state) {
    (void)state;
    whole w = {.device = "cpu"};
    for (int how = 0; how < 3; how++) {
        const char *path = in_folder("changing.gguf");
        tn_model *model = NULL;
        tn_session *session = NULL;
        tn_session_params p = params(w.device);
        assert_ok(tiny_model_write(path, NULL));
        assert_ok(tn_model_open(path, &(tn_model_params){.no_mmap = true}, &model));
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        if (how == 0) assert_int_equal(ftruncate(fileno(f), st.st_size / 2), 0); /* cut short */
        if (how == 1) assert_int_equal(ftruncate(fileno(f), 0), 0);
        if (how == 2) { /* longer, and newer */
            fseek(f, 0, SEEK_END);
            fputs("more", f);
        }
        fclose(f);
        tn_status status = tn_session_open(model, &p, &session);
        if (how < 2) {
            assert_true(status == TN_E_IO || status == TN_E_STATE || status == TN_E_FORMAT);
            assert_true(*tn_error());
        }
        tn_session_free(session);
        tn_model_close(model);
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_from_load_to_restore_may_fail),
        cmocka_unit_test(every_allocation_of_a_writer_may_fail_without_a_file),
        cmocka_unit_test(every_allocation_of_a_budget_search_may_fail),
        cmocka_unit_test(a_session_survives_its_device),
        cmocka_unit_test(a_session_survives_an_exactly_full_device),
        cmocka_unit_test(a_session_survives_exactly_full_unified_memory),
        cmocka_unit_test(a_session_survives_a_full_device_with_a_largest_allocation),
        cmocka_unit_test(a_plan_that_failed_is_refused_and_replaced),
        cmocka_unit_test(a_state_does_not_take_shared_cells),
        cmocka_unit_test(a_state_with_impossible_runs_is_refused),
        cmocka_unit_test(a_file_that_changes_after_opening_is_noticed),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
