/* Types of the KV cache: every pair of them, other types for layers with a window, and rotation before quantization.
 */
#include "models/reference_models.h"

#include "backend/cpu/kernels/shared.h"

#include <tenon/cpu.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_TYPES = 9 };
static const tn_type types[N_TYPES] = {TN_F32, TN_F16, TN_BF16, TN_FP8, TN_Q8_0, TN_Q5_1, TN_Q5_0, TN_Q4_1, TN_Q4_0};
/* NMSE of the logits of tiny models. */
static const double limits[N_TYPES] = {1e-6, 2e-6, 1e-4, 1e-2, 1e-4, 1e-2, 1e-2, 5e-2, 5e-2};

static tn_session_params cache_params(tn_type k, tn_type v, tn_cache_rotation rotation) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 256;
    p.n_threads = 2;
    p.cache_k = k;
    p.cache_v = v;
    p.cache_rotation = rotation;
    return p;
}

static bool add_to_nmse(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    void *const *both = user;
    const reference_model *g = both[0];
    nmse_add(both[1], logits, g->logits + (size_t)position * (size_t)n_vocab, n_vocab);
    return true;
}
static double error_of(tn_model *model, const reference_model *g, const tn_session_params *params) {
    tn_session *session;
    nmse sum = {0};
    tn_session_params p = *params;
    p.n_outputs = g->n_tokens;
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_score(session, 0, g->tokens, g->n_tokens, add_to_nmse, (void *[]){(void *)g, &sum}));
    tn_session_free(session);
    return nmse_value(&sum);
}

static void every_pair_of_types_gives_the_logits(void **state) {
    (void)state;
    const double rounding = strcmp(tn_cpu_level(), "amx") == 0 ? 1e-5 : 0; /* its attention multiplies bf16 */
    static const char *const names[] = {"llama-dense", "gemma2-dense"};
    for (int m = 0; m < 2; m++) {
        reference_model g;
        tn_model *model;
        reference_load(names[m], &g);
        assert_ok(tn_model_open(g.path, NULL, &model));
        for (int k = 0; k < N_TYPES; k++)
            for (int v = 0; v < N_TYPES; v++) {
                const tn_cache_rotation rotation = (tn_cache_rotation)((k + v) % 3);
                const tn_session_params p = cache_params(types[k], types[v], rotation);
                const double error = error_of(model, &g, &p);
                if (!(error <= limits[k] + limits[v] + rounding))
                    fail_msg("%s, %s/%s, rotation %d: NMSE %g", names[m], tn_type_name(types[k]),
                             tn_type_name(types[v]), (int)rotation, error);
            }
        tn_model_close(model);
        reference_free(&g);
    }
}

/* ---- Layers with a window ---- */

static size_t cache_bytes_of(tn_model *model, tn_type type, tn_type window) {
    tn_session_params p = cache_params(type, type, TN_ROTATION_AUTO);
    tn_session *session;
    tn_fit planned, taken;
    p.cache_k_window = p.cache_v_window = window;
    assert_ok(plan_fit(model, &p, &planned));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_memory(session, &taken));
    const size_t bytes = planned.devices[planned.n_devices - 1].cache;
    assert_int_equal(bytes, taken.devices[taken.n_devices - 1].cache);
    tn_fit_free(&planned);
    tn_fit_free(&taken);
    tn_session_free(session);
    return bytes;
}

static void windows_have_types_of_their_own(void **state) {
    (void)state;
    reference_model g;
    tn_model *model;
    reference_load("gemma2-dense", &g);
    assert_ok(tn_model_open(g.path, NULL, &model));
    const size_t large = cache_bytes_of(model, TN_F32, TN_TYPE_LIMIT),
                 small = cache_bytes_of(model, TN_Q8_0, TN_Q8_0), mixed = cache_bytes_of(model, TN_Q8_0, TN_F32),
                 other = cache_bytes_of(model, TN_F32, TN_Q8_0);
    assert_true(small < mixed && mixed < large && small < other && other < large);
    /* Each layer has one of the two: together they have both once. */
    assert_int_equal(mixed + other, small + large);
    tn_session_params p = cache_params(TN_Q8_0, TN_Q4_0, TN_ROTATION_AUTO);
    p.cache_k_window = TN_F32;
    p.cache_v_window = TN_FP8;
    assert_true(error_of(model, &g, &p) < 5e-2);
    tn_model_close(model);
    reference_free(&g);
}

/* ---- What depends on the types ---- */

static void plans_and_states_of_other_types_are_refused(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    tn_session_plan *plan;
    char path[] = "/tmp/tenon-cache-types-XXXXXX";
    const tn_token tokens[] = {1, 2, 3};
    assert_ok(tn_model_open(reference_path("gemma2-dense"), NULL, &model));
    tn_session_params p = cache_params(TN_Q8_0, TN_Q8_0, TN_ROTATION_AUTO);
    p.cache_k_window = TN_F16;
    close(mkstemp(path));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_int_equal(tn_session_plan_params(plan).cache_k_window, TN_F16);
    assert_ok(tn_session_plan_save(plan, path));
    tn_session_plan_free(plan);
    assert_ok(tn_session_plan_load(model, &p, path, &plan));
    tn_session_plan_free(plan);

    tn_session_params others[3] = {p, p, p};
    others[0].cache_k_window = TN_TYPE_LIMIT;
    others[1].cache_v_window = TN_F16;
    others[2].cache_rotation = TN_ROTATION_OFF;
    for (int i = 0; i < 3; i++) assert_fails(TN_E_STATE, tn_session_plan_load(model, &others[i], path, &plan));
    unlink(path);

    size_t size;
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = tokens}));
    assert_ok(tn_session_state_size(session, 0, &size));
    char *bytes = malloc(size);
    assert_ok(tn_session_state_get(session, 0, bytes, size));
    assert_ok(tn_session_state_set(session, 0, bytes, size));
    tn_session_free(session);
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_session_open(model, &others[i], &session));
        assert_fails(TN_E_STATE, tn_session_state_set(session, 0, bytes, size));
        tn_session_free(session);
    }
    free(bytes);
    tn_model_close(model);
}

static void bad_types_are_refused_with_the_valid_ones(void **state) {
    (void)state;
    static const char valid[] = "f32, f16, bf16, fp8, q8_0, q5_1, q5_0, q4_1 or q4_0";
    tn_type type;
    tn_model *model;
    tn_session_plan *plan;
    for (int i = 0; i < N_TYPES; i++) {
        assert_ok(tn_cache_type_parse(tn_type_name(types[i]), &type));
        assert_int_equal(type, types[i]);
    }
    assert_fails(TN_E_TYPE, tn_cache_type_parse("q4_K", &type));
    assert_non_null(strstr(tn_error(), valid));
    assert_fails(TN_E_TYPE, tn_cache_type_parse("", &type));
    assert_fails(TN_E_INVALID, tn_cache_type_parse(NULL, &type));
    assert_ok(tn_model_open(reference_path("llama-dense"), NULL, &model));
    for (int i = 0; i < 4; i++) {
        tn_session_params p = cache_params(TN_F16, TN_F16, TN_ROTATION_AUTO);
        *(i == 0   ? &p.cache_k
          : i == 1 ? &p.cache_v
          : i == 2 ? &p.cache_k_window
                   : &p.cache_v_window) = i % 2 ? TN_I32 : TN_Q6_K;
        assert_fails(TN_E_TYPE, tn_session_plan_new(model, &p, &plan));
        assert_non_null(strstr(tn_error(), valid));
    }
    tn_session_params p = cache_params(TN_F16, TN_F16, (tn_cache_rotation)7);
    assert_fails(TN_E_INVALID, tn_session_plan_new(model, &p, &plan));
    tn_model_close(model);
}

/* ---- Rotation ---- */

/* Error of a row that is rotated, quantized and rotated back. */
static double row_error(tn_type type, const float *x, int n, int block) {
    unsigned char bytes[1024];
    float y[256];
    double error = 0, sum = 0;
    tn__hadamard(n, block, x, y);
    assert_ok(tn_type_from_f32(type, y, bytes, n, NULL));
    assert_ok(tn_type_to_f32(type, bytes, y, n));
    tn__hadamard(n, block, y, y);
    for (int i = 0; i < n; i++) {
        error += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        sum += (double)x[i] * x[i];
    }
    return error / sum;
}
static void rotation_lowers_the_error_of_outliers(void **state) {
    (void)state;
    rng r = {5};
    for (int round = 0; round < 20; round++) {
        float x[128];
        for (int i = 0; i < 128; i++) x[i] = rng_normal(&r) * (i % 40 == 3 ? 20 : 1);
        /* The small values matter as well: without rotation most of them become zero. */
        assert_true(row_error(TN_Q4_0, x, 128, 128) < row_error(TN_Q4_0, x, 128, 1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_types_gives_the_logits),
        cmocka_unit_test(windows_have_types_of_their_own),
        cmocka_unit_test(plans_and_states_of_other_types_are_refused),
        cmocka_unit_test(bad_types_are_refused_with_the_valid_ones),
        cmocka_unit_test(rotation_lowers_the_error_of_outliers),
    };
    return RUN_ON_MODELS(tests, NULL, NULL);
}
