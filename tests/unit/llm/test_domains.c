/* Sessions on devices that share a memory: it is counted once, weights of the mapped file are used in place, devices
 * that do not report their memory are used, and integrated GPUs are found without being named. */
#include "support.h"

#include "backend/sim/sim.h"
#include "models/tiny_models.h"
#include "tenon/backend_impl.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TINY_LAYERS = 2, TINY_VOCAB = 64 };

static char path[64];

static int write_model(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/tenon-domains-%d.gguf", (int)getpid());
    return tiny_model_write(path, &(tiny_options){.tied = true}) == TN_OK ? 0 : -1;
}
static int remove_model(void **state) {
    (void)state;
    return unlink(path);
}

static tn_model *open_model(bool no_mmap) {
    tn_model *model;
    assert_ok(tn_model_open(path, &(tn_model_params){.no_mmap = no_mmap}, &model));
    return model;
}

/* One of two layers on the first device, and a cache that is larger than everything else. */
static tn_session_params half_on(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 4096;
    p.n_batch = p.n_ubatch = 16;
    p.n_threads = 1;
    p.n_gpu_layers = 1;
    p.no_repack = true;
    p.devices[0] = device;
    return p;
}

static size_t bytes_on(const tn_fit *fit, size_t device) {
    const tn_fit_device *d = &fit->devices[device];
    return d->weights + d->cache + d->compute + d->scratch + d->staging;
}
/* A simulated memory counts buffers. Staging is on the heap. */
static size_t staging_of(const tn_fit *fit) { return fit->devices[0].staging + fit->devices[1].staging; }

static void free_bytes(tn_device *device, size_t *available, size_t *total) {
    assert_ok(tn_device_memory(device, available, total));
}

static tn_device *device_named(const char *name) {
    tn_device *device;
    assert_ok(tn_device_find(name, &device));
    return device;
}

/* Makes a session on simulated unified memory of `size` bytes. When it fits, the memory counts what was planned. */
static tn_status try_unified(size_t size, bool no_mmap, int32_t n_gpu_layers, tn_fit *fit) {
    char spec[96];
    snprintf(spec, sizeof spec, "sim:%zu,uma=1,name=unified", size);
    tn_device *device = device_named(spec);
    tn_model *model = open_model(no_mmap);
    tn_session_params p = half_on(spec);
    tn_session *session;
    p.n_gpu_layers = n_gpu_layers;
    assert_ok(plan_fit(model, &p, fit));
    tn_status status = tn_session_open(model, &p, &session);
    if (status == TN_OK) {
        size_t available, total;
        tn_fit taken;
        assert_true(fit->fits);
        assert_ok(tn_session_memory(session, &taken));
        for (size_t d = 0; d < 2; d++) assert_int_equal(bytes_on(fit, d), bytes_on(&taken, d));
        free_bytes(tn_device_domain(device), &available, &total);
        assert_int_equal(total - available, bytes_on(fit, 0) + bytes_on(fit, 1) - staging_of(fit));
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}}));
        tn_fit_free(&taken);
        tn_session_free(session);
    }
    tn_model_close(model);
    tn_registry_remove(device);
    return status;
}

static void unified_memory_is_counted_once(void **state) {
    (void)state;
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        tn_fit fit;
        assert_ok(try_unified((size_t)1 << 30, no_mmap, 1, &fit));
        const size_t gpu = bytes_on(&fit, 0), host = bytes_on(&fit, 1), all = gpu + host,
                     larger = gpu > host ? gpu : host;
        assert_int_equal(fit.devices[0].domain, 0);
        assert_int_equal(fit.devices[1].domain, 0);
        assert_int_equal(fit.devices[0].n_layers, 1);
        tn_fit_free(&fit);
        /* One and a half times the memory, although each device alone would fit. */
        const size_t tight = all * 2 / 3;
        assert_true(larger < tight);
        assert_fails(TN_E_TOO_BIG, try_unified(tight, no_mmap, 1, &fit));
        assert_false(fit.fits);
        tn_fit_free(&fit);
        assert_fails(TN_E_TOO_BIG, try_unified(all - 1, no_mmap, 1, &fit));
        char text[96];
        snprintf(text, sizeof text, "one memory and need %zu bytes, %zu are available", all, all - 1);
        if (!strstr(tn_error(), text)) fail_msg("no '%s' in: %s", text, tn_error());
        tn_fit_free(&fit);
        assert_ok(try_unified(all, no_mmap, 1, &fit));
        tn_fit_free(&fit);
    }
}

/* Unified memory of exactly the planned bytes of host and device serves every batch size. */
static void exact_unified_memory_serves_every_batch(void **state) {
    (void)state;
    enum { MOST = 24 };
    static const char *const archs[] = {"llama", "gemma2", "qwen3moe", "phi3"};
    char file[64];
    snprintf(file, sizeof file, "/tmp/tenon-domains-%d-arch.gguf", (int)getpid());
    tn_device *device = device_named("sim:1G,uma=1,name=exactly");
    tn_token tokens[MOST];
    for (int i = 0; i < MOST; i++) tokens[i] = 1 + i;
    for (size_t a = 0; a < 2 * sizeof archs / sizeof *archs; a++) {
        tn_model *model;
        tn_session *session;
        tn_fit fit;
        size_t available, total;
        tn_session_params p = half_on("exactly");
        p.n_ctx = 2048; /* mapped weights must fit the memory as well */
        p.n_batch = p.n_ubatch = p.n_outputs = MOST;
        p.n_gpu_layers = a % 2 ? 1 : -1;
        p.no_repack = false;
        assert_ok(tiny_model_write(file, &(tiny_options){.arch = archs[a / 2]}));
        assert_ok(tn_model_open(file, &(tn_model_params){.no_mmap = a / 2 % 2}, &model));
        tn__sim_resize(device->impl, (size_t)1 << 30, 0);
        assert_ok(plan_fit(model, &p, &fit));
        const size_t exact = bytes_on(&fit, 0) + bytes_on(&fit, 1);
        const size_t mapped = fit.devices[0].mapped + fit.devices[1].mapped, staging = staging_of(&fit);
        if (mapped > exact) fail_msg("%s: the cache must exceed the mapped weights", archs[a / 2]);
        tn_fit_free(&fit);
        tn__sim_resize(device->impl, exact, 0);
        assert_ok(tn_session_open(model, &p, &session));
        for (int32_t n = 1; n <= MOST; n++) {
            tn_session_clear(session);
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens}));
            free_bytes(tn_device_domain(device), &available, &total);
            assert_int_equal(total, exact);
            assert_int_equal(available, staging);
        }
        tn_session_free(session);
        tn_model_close(model);
    }
    tn_registry_remove(device);
    unlink(file);
}

/* Without a number of layers as many go to the device as the memory of both allows. */
static void layers_are_placed_within_the_domain(void **state) {
    (void)state;
    tn_fit fit;
    assert_ok(try_unified((size_t)1 << 30, false, -1, &fit));
    const size_t all = bytes_on(&fit, 0) + bytes_on(&fit, 1);
    assert_int_equal(fit.devices[0].n_layers, TINY_LAYERS);
    tn_fit_free(&fit);
    assert_ok(try_unified(all, false, -1, &fit));
    tn_fit_free(&fit);
    assert_fails(TN_E_TOO_BIG, try_unified(all / 2, false, -1, &fit));
    tn_fit_free(&fit);
}

/* What the GPU may take of unified memory is less than all of it. */
static void a_limit_within_the_domain_is_kept(void **state) {
    (void)state;
    tn_model *model = open_model(false);
    tn_session_params p = half_on("sim:1G,uma=1,limit=300K,name=limited");
    tn_fit fit;
    assert_ok(plan_fit(model, &p, &fit));
    assert_false(fit.fits);
    assert_int_equal(fit.devices[0].free, 300 << 10);
    assert_int_equal(fit.devices[0].domain_free, (size_t)1 << 30);
    tn_fit_free(&fit);
    p.n_gpu_layers = -1;
    assert_ok(plan_fit(model, &p, &fit));
    assert_true(fit.fits);
    assert_int_equal(fit.devices[0].n_layers, 0);
    tn_fit_free(&fit);
    tn_model_close(model);
}

/* The GPU may read less of the file's map than the model has, although it takes next to nothing. */
static void mapped_weights_keep_the_limit(void **state) {
    (void)state;
    tn_model *model = open_model(false);
    tn_session_params p = half_on("sim:1G,uma=1,limit=70K,name=narrow");
    tn_fit fit;
    p.n_gpu_layers = -1;
    p.n_ctx = p.n_batch = p.n_ubatch = 1;
    assert_ok(plan_fit(model, &p, &fit));
    assert_true(fit.fits);
    assert_int_equal(fit.devices[0].n_layers, 1);
    /* The bytes of another layer would fit. */
    assert_true(bytes_on(&fit, 0) + fit.devices[0].cache < 70 << 10 && fit.devices[0].mapped <= 70 << 10);
    assert_true(fit.devices[0].mapped + fit.devices[1].mapped > 70 << 10);
    tn_fit_free(&fit);
    tn_model_close(model);
}

/* Mapped weights need not be free, but beside what cannot be evicted they do not stay in memory: a plan that fits
 * says so, with the figures. */
static void mapped_weights_that_do_not_stay_are_told(void **state) {
    (void)state;
    tn_device *device = device_named("sim:1G,uma=1,name=crowded");
    tn_model *model = open_model(false);
    tn_session_params p = half_on("crowded");
    tn_session_plan *plan;
    tn_fit fit;
    char text[128];
    assert_ok(plan_fit(model, &p, &fit));
    const size_t taken = bytes_on(&fit, 0) + bytes_on(&fit, 1),
                 mapped = fit.devices[0].mapped + fit.devices[1].mapped;
    tn_fit_free(&fit);
    assert_true(mapped > 0 && mapped < taken);
    for (int missing = 0; missing < 2; missing++) {
        tn__sim_resize(device->impl, taken + mapped - (size_t)missing, 0);
        assert_ok(tn_session_plan_new(model, &p, &plan));
        assert_true(tn_session_plan_fits(plan));
        snprintf(text, sizeof text, "takes %zu bytes of the memory of crowded and reads %zu bytes", taken, mapped);
        if ((strstr(tn_session_plan_warning(plan), text) != NULL) != missing)
            fail_msg("%d bytes missing: '%s'", missing, tn_session_plan_warning(plan));
        assert_true(!missing || strstr(tn_session_plan_warning(plan), "are all it has"));
        tn_session_plan_free(plan);
    }
    const tn_budget budget = {"cpu", taken + mapped}; /* as much of a larger memory */
    tn__sim_resize(device->impl, (size_t)1 << 30, 0);
    p.budgets = &budget;
    p.n_budgets = 1;
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_true(tn_session_plan_fits(plan));
    assert_string_equal(tn_session_plan_warning(plan), "");
    tn_session_plan_free(plan);
    p.n_budgets = 0;
    /* Others use some of a memory that is large enough. */
    tn_buffer *others;
    tn__sim_resize(device->impl, taken + mapped + 4096, 0);
    assert_ok(tn_buffer_new(tn_device_buffer_type(device), 8192, &others));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_true(tn_session_plan_fits(plan));
    assert_non_null(strstr(tn_session_plan_warning(plan), "are free now"));
    tn_session_plan_free(plan);
    tn_buffer_free(others);
    tn__sim_resize(device->impl, taken - 1, 0);
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_false(tn_session_plan_fits(plan));
    assert_string_equal(tn_session_plan_warning(plan), ""); /* its advice says more */
    tn_session_plan_free(plan);
    tn_model_close(model);
    tn_registry_remove(device);
    model = open_model(true); /* nothing is mapped */
    p.devices[0] = "cpu";
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_string_equal(tn_session_plan_warning(plan), "");
    tn_session_plan_free(plan);
    tn_model_close(model);
}

static const char scarce[] = "sim:64M,uma=1,name=scarce";
static tn_status plan_and_run(void *user) {
    (void)user;
    tn_model *model;
    tn_session *session;
    tn_session_params p = half_on(scarce);
    p.n_ctx = 64;
    TN_TRY(tn_model_open(path, NULL, &model));
    tn_status status = tn_session_open(model, &p, &session);
    if (status == TN_OK) {
        status = tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}});
        tn_session_free(session);
    }
    tn_model_close(model);
    return status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    size_t available, total;
    tn_device *device = device_named(scarce);
    check_no_leak(plan_and_run, NULL);
    check_every_allocation_failure(plan_and_run, NULL);
    free_bytes(device, &available, &total);
    assert_int_equal(available, total);
    tn_registry_remove(device);
}

static void devices_of_one_card_share_its_memory(void **state) {
    (void)state;
    size_t all = 0;
    for (int missing = -1; missing < 2; missing++) {
        char specs[2][96];
        tn_device *devices[2];
        tn_fit fit;
        tn_session *session;
        tn_model *model = open_model(false);
        tn_session_params p = half_on(NULL);
        p.n_gpu_layers = 99;
        for (int d = 0; d < 2; d++) {
            size_t size = missing < 0 ? (size_t)1 << 30 : all - (size_t)missing;
            snprintf(specs[d], sizeof specs[d], "sim:%zu,card=pair,name=pair%d", size, d);
            devices[d] = device_named(specs[d]);
            p.devices[d] = specs[d];
            p.split[d] = 1;
        }
        assert_ok(plan_fit(model, &p, &fit));
        assert_int_equal(fit.fits, missing < 1);
        assert_int_equal(fit.devices[1].domain, 0);
        assert_int_equal(fit.devices[2].domain, 2); /* the host */
        if (missing < 1) {
            size_t available, total;
            all = bytes_on(&fit, 0) + bytes_on(&fit, 1);
            assert_true(bytes_on(&fit, 0) && bytes_on(&fit, 1));
            assert_ok(tn_session_open(model, &p, &session));
            free_bytes(devices[1], &available, &total);
            assert_int_equal(total - available, all);
            tn_session_free(session);
        } else {
            assert_fails(TN_E_TOO_BIG, tn_session_open(model, &p, &session));
        }
        tn_fit_free(&fit);
        tn_model_close(model);
        for (int d = 0; d < 2; d++) tn_registry_remove(devices[d]);
    }
}

static void a_silent_device_gets_layers(void **state) {
    (void)state;
    tn_model *model = open_model(false);
    tn_session_params p = half_on("sim:64M,report=0,name=silent");
    tn_session *session;
    tn_fit fit;
    p.n_gpu_layers = -1;
    assert_ok(plan_fit(model, &p, &fit));
    assert_true(fit.fits);
    assert_int_equal(fit.devices[0].n_layers, TINY_LAYERS);
    assert_false(fit.devices[0].reported);
    assert_true(fit.devices[1].reported);
    assert_int_equal(fit.devices[1].domain, 0); /* the host's memory is assumed */
    assert_int_equal(fit.devices[0].total, fit.devices[1].total);
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}}));
    tn_session_free(session);
    tn_fit_free(&fit);
    tn_model_close(model);
}

static float *logits_on(const char *device, bool no_mmap, size_t *weights, size_t *mapped) {
    tn_model *model = open_model(no_mmap);
    tn_session_params p = half_on(device);
    tn_session *session;
    tn_fit planned, taken;
    p.n_gpu_layers = -1;
    assert_ok(plan_fit(model, &p, &planned));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_memory(session, &taken));
    assert_int_equal(planned.devices[0].weights, taken.devices[0].weights);
    assert_int_equal(planned.devices[0].mapped, taken.devices[0].mapped);
    *weights = taken.devices[0].weights;
    *mapped = taken.devices[0].mapped;
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){5, 6, 7}}));
    float *copy = malloc(TINY_VOCAB * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, tn_session_logits(session, -1), TINY_VOCAB * sizeof *copy);
    tn_fit_free(&planned);
    tn_fit_free(&taken);
    tn_session_free(session);
    tn_model_close(model);
    return copy;
}

/* The file's map is the device's memory: nothing is copied, and the results are those of copied weights. */
static void mapped_weights_are_used_in_place(void **state) {
    (void)state;
    size_t weights, mapped;
    float *copied = logits_on("sim:64M,name=discrete", false, &weights, &mapped);
    assert_true(weights > 0 && mapped == 0);
    float *in_place = logits_on("sim:64M,uma=1,name=in-place", false, &weights, &mapped);
    assert_true(weights == 0 && mapped > 0);
    assert_memory_equal(copied, in_place, TINY_VOCAB * sizeof *copied);
    free(in_place);
    in_place = logits_on("sim:64M,uma=1,name=read", true, &weights, &mapped); /* a file that is not mapped */
    assert_true(weights > 0 && mapped == 0);
    assert_memory_equal(copied, in_place, TINY_VOCAB * sizeof *copied);
    free(in_place);
    free(copied);
}

static void integrated_devices_are_found_behind_discrete_ones(void **state) {
    (void)state;
    /* Simulated devices are used by name only; without their description they are like others. */
    static const char *const specs[] = {"sim:64M,uma=1,name=inside", "sim:256K,name=outside"};
    tn_device *devices[2];
    tn_model *model = open_model(false);
    tn_session_params p = half_on(NULL);
    tn_fit fit;
    for (int i = 0; i < 2; i++) {
        devices[i] = device_named(specs[i]);
        snprintf(devices[i]->description, sizeof devices[i]->description, "for tests");
    }
    p.n_gpu_layers = -1;
    assert_ok(plan_fit(model, &p, &fit));
    assert_int_equal(fit.n_devices, 3);
    assert_string_equal(fit.devices[0].name, "outside");
    assert_string_equal(fit.devices[1].name, "inside");
    assert_string_equal(fit.devices[2].name, "cpu");
    assert_int_equal(fit.devices[1].n_layers, TINY_LAYERS); /* the discrete one is too small */
    assert_int_equal(fit.devices[2].domain, 1);
    tn_fit_free(&fit);
    tn_registry_remove(devices[1]);
    assert_ok(plan_fit(model, &p, &fit));
    assert_int_equal(fit.n_devices, 2);
    assert_string_equal(fit.devices[0].name, "inside");
    tn_fit_free(&fit);
    tn_registry_remove(devices[0]);
    tn_model_close(model);
}

/* A machine that is not there, with more unified memory than this one. */
static void presets_can_be_planned_for(void **state) {
    (void)state;
    tn_model *model = open_model(false);
    tn_session_params p = half_on("sim:m3-max");
    tn_fit fit;
    p.n_gpu_layers = -1;
    assert_ok(plan_fit(model, &p, &fit));
    assert_true(fit.fits);
    assert_int_equal(fit.devices[1].total, (size_t)128 << 30);
    assert_int_equal(fit.devices[0].total, (size_t)96 << 30);
    assert_int_equal(fit.devices[0].domain_total, (size_t)128 << 30);
    tn_fit_free(&fit);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unified_memory_is_counted_once),
        cmocka_unit_test(exact_unified_memory_serves_every_batch),
        cmocka_unit_test(layers_are_placed_within_the_domain),
        cmocka_unit_test(a_limit_within_the_domain_is_kept),
        cmocka_unit_test(mapped_weights_keep_the_limit),
        cmocka_unit_test(mapped_weights_that_do_not_stay_are_told),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(devices_of_one_card_share_its_memory),
        cmocka_unit_test(a_silent_device_gets_layers),
        cmocka_unit_test(mapped_weights_are_used_in_place),
        cmocka_unit_test(integrated_devices_are_found_behind_discrete_ones),
        cmocka_unit_test(presets_can_be_planned_for),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
