/* Advice for sessions that do not fit: every suggestion fits, and none that would fit is left out. */
#include "support.h"

#include "models/tiny_models.h"
#include "sched_case.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT = 8192 };

static char model_path[64];
static tn_model *model;

static int open_tiny(void **state) {
    (void)state;
    strcpy(model_path, "/tmp/tenon-advice-XXXXXX");
    int file = mkstemp(model_path);
    if (file < 0) return -1;
    close(file);
    /* Heads of 32, so that the cache can be q8_0. */
    const tiny_options options = {.width = 64, .type = TN_Q8_0, .context = CONTEXT};
    return tiny_model_write(model_path, &options) == TN_OK && tn_model_open(model_path, NULL, &model) == TN_OK ? 0
                                                                                                               : -1;
}
static int close_tiny(void **state) {
    (void)state;
    tn_model_close(model);
    return unlink(model_path);
}

static tn_session_params advice_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = CONTEXT;
    p.n_threads = 1;
    p.n_gpu_layers = 99;
    p.devices[0] = device;
    return p;
}

static bool fits(tn_session_params p) {
    tn_session_plan *plan;
    assert_ok(tn_session_plan_new(model, &p, &plan));
    const bool does = tn_session_plan_fits(plan);
    tn_session_plan_free(plan);
    return does;
}

/* The number after the last `flag` of the text; 0 if there is none. */
static int32_t number_after(const char *text, const char *flag) {
    const char *at = strstr(text, flag);
    return at ? atoi(at + strlen(flag)) : 0;
}

/* Checks each suggestion against a plan with it. */
static void check_advice(const tn_session_params *given, const char *text) {
    tn_session_params p = *given;
    p.n_gpu_layers = -1;
    assert_int_equal(strstr(text, "(--gpu-layers -1)") != NULL, given->n_gpu_layers > 0 && fits(p));

    p = *given;
    p.cache_k = p.cache_v = TN_Q8_0;
    const bool smaller = given->cache_k == TN_F16, q8_0 = smaller && fits(p);
    assert_int_equal(strstr(text, "(--cache-type-k q8_0)") != NULL, q8_0);

    p = *given;
    const int32_t context = number_after(text, "(--ctx ");
    p.n_ctx = 256;
    assert_int_equal(context != 0, fits(p)); /* less than 256 is not worth it */
    if (!context) return;
    assert_in_range(context, 256, given->n_ctx - 1);
    p.n_ctx = context;
    assert_true(fits(p));
    p.n_ctx = context + context / 4; /* the steps are eighths of a power of two */
    if (p.n_ctx < given->n_ctx) assert_false(fits(p));
}

static void suggestions_fit_and_none_is_left_out(void **state) {
    (void)state;
    int n_fit = 0, n_context = 0, n_cache = 0, n_without = 0;
    tn_device *device;
    assert_ok(tn_device_find("sim:64M,name=tight", &device));
    for (size_t kib = 40; kib < 8192; kib += kib / 10) {
        tn_session_params p = advice_params("tight");
        tn_session_plan *plan;
        if (kib % 2) p.cache_k = p.cache_v = TN_Q8_0;
        p.n_ubatch = kib % 3 ? 64 : 512;
        tn__sim_resize(sim_of("tight"), kib << 10, 0);
        sim_of("tight")->type.max_size = 64 << 20; /* what a single tensor needs is another error */
        assert_ok(tn_session_plan_new(model, &p, &plan));
        const char *text = tn_session_plan_advice(plan);
        if (tn_session_plan_fits(plan)) {
            assert_string_equal(text, "");
            n_fit++;
        } else {
            tn_session *session;
            check_advice(&p, text);
            n_context += strstr(text, "(--ctx ") != NULL;
            n_cache += strstr(text, "(--cache-type-k q8_0)") != NULL;
            n_without += !strstr(text, "(--ctx ");
            /* The error of a session says the same. */
            assert_fails(TN_E_TOO_BIG, tn_session_new(plan, &session));
            assert_non_null(strstr(tn_error(), text));
            assert_null(session);
        }
        tn_session_plan_free(plan);
    }
    assert_true(n_fit > 1 && n_context > 1 && n_cache > 0 && n_without > 1); /* all kinds occurred */
}

/* Weights that the caller puts on a device too small for them: no setting helps. */
static void without_a_way_the_model_must_be_smaller(void **state) {
    (void)state;
    tn_session_plan *plan;
    tn_placement_override all = {".*", "small"};
    tn_device *device;
    assert_ok(tn_device_find("sim:48K,name=small", &device));
    tn_session_params p = advice_params("small");
    p.n_ctx = 64;
    p.n_gpu_layers = -1;
    p.overrides = &all;
    p.n_overrides = 1;
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_false(tn_session_plan_fits(plan));
    const char *text = tn_session_plan_advice(plan);
    assert_null(strstr(text, "--"));
    if (!strstr(text, "bits per weight") && !strstr(text, "a smaller model")) fail_msg("the advice is: %s", text);
    tn_session_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(suggestions_fit_and_none_is_left_out),
        cmocka_unit_test(without_a_way_the_model_must_be_smaller),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
