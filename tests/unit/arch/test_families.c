/* What sets single families apart: diffusion, periods of windows, tensors without a use, layers without attention. */
#include "support.h"

#include "models/tiny_models.h"
#include "tenon/arch.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 6, VOCAB = 64 };
static char path[] = "/tmp/tenon-families-XXXXXX";

/* Changes one key and the name of a tensor of the model at `path`. */
static void edit_model(const char *key, uint32_t number, const char *from, const char *to) {
    tn_gguf *file;
    const tn_gguf_kv set = {{key, key ? strlen(key) : 0}, {.type = TN_GGUF_U32, .u = number}};
    const tn_gguf_rename rename = {from, to};
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_ok(
        tn_gguf_copy(file, path,
                     &(tn_gguf_copy_params){
                         .set = &set, .set_count = key != NULL, .rename = &rename, .rename_count = from != NULL}));
    tn_gguf_close(file);
}

/* All logits of a sequence. */
static void run_model(const tn_token *tokens, float *logits) {
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    bool outputs[TOKENS];
    for (int i = 0; i < TOKENS; i++) outputs[i] = true;
    p.n_ctx = 64, p.n_outputs = TOKENS, p.devices[0] = "cpu", p.cache_k = p.cache_v = TN_F32;
    assert_ok(tn_model_open(path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS, .tokens = tokens, .outputs = outputs}));
    for (int i = 0; i < TOKENS; i++) memcpy(logits + (size_t)i * VOCAB, tn_session_logits(session, i), VOCAB * 4);
    tn_session_free(session);
    tn_model_close(model);
}

static double distance(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += fabs((double)a[i] - b[i]);
    return sum;
}

static void diffusion_sees_later_tokens(void **state) {
    (void)state;
    static const char *const archs[] = {"dream", "llada"};
    for (int i = 0; i < 2; i++) {
        static float first[TOKENS * VOCAB], second[TOKENS * VOCAB];
        assert_ok(tiny_model_write(path, &(tiny_options){.arch = archs[i], .seed = 3}));
        run_model((const tn_token[]){5, 9, 1, 30, 2, 7}, first);
        run_model((const tn_token[]){5, 9, 1, 30, 2, 8}, second);
        assert_true(distance(first, second, VOCAB) > 1e-3);
    }
}

static void diffusion_models_do_not_generate(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = "dream", .tokenizer = true}));
    p.n_ctx = 64, p.devices[0] = "cpu";
    assert_ok(tn_model_open(path, NULL, &model));
    const tn_model_info info = tn_model_get_info(model);
    assert_false(info.is_causal || info.is_encoder);
    assert_ok(tn_session_open(model, &p, &session));
    assert_int_equal(tn_session_prompt(session, 0, "a", -1), TN_E_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "diffusion"));
    tn_session_free(session);
    tn_model_close(model);
}

static int32_t window_of(void) {
    tn_model *model;
    assert_ok(tn_model_open(path, NULL, &model));
    const int32_t window = tn_model_get_info(model).n_window;
    tn_model_close(model);
    return window;
}

/* A number is the period of layers that see everything; with 1 all of them do. */
static void the_pattern_of_windows_may_be_a_number(void **state) {
    (void)state;
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = "cohere2", .window = 16}));
    assert_int_equal(window_of(), 16);
    edit_model("cohere2.attention.sliding_window_pattern", 1, NULL, NULL);
    assert_int_equal(window_of(), 0);
    edit_model("cohere2.attention.sliding_window_pattern", 2, NULL, NULL);
    assert_int_equal(window_of(), 16);
}

/* Some files leave out ".weight". */
static void norms_without_an_ending_are_found(void **state) {
    (void)state;
    static const tn_token tokens[] = {5, 9, 1, 30, 2, 7};
    static float plain[TOKENS * VOCAB], renamed[TOKENS * VOCAB];
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = "plamo3"}));
    run_model(tokens, plain);
    edit_model(NULL, 0, "blk.1.post_ffw_norm.weight", "blk.1.post_ffw_norm");
    run_model(tokens, renamed);
    assert_memory_equal(plain, renamed, sizeof plain);
}

/* DeciLM: layers with heads and no KV heads are a matrix, those without heads have no attention at all. They keep
 * nothing of a sequence. */
static void layers_without_attention_have_no_cells(void **state) {
    (void)state;
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        tn_model *model;
        tn_session_plan *plan;
        tn_session_params p = tn_session_params_default();
        p.n_ctx = 64, p.devices[0] = "cpu";
        assert_ok(tiny_model_write(path, &(tiny_options){.arch = i ? "deci" : "llama", .layers = 4}));
        assert_ok(tn_model_open(path, NULL, &model));
        assert_ok(tn_session_plan_new(model, &p, &plan));
        tn_fit fit;
        assert_ok(tn_session_plan_fit(plan, &fit));
        bytes[i] = fit.devices[0].cache;
        tn_fit_free(&fit);
        tn_session_plan_free(plan);
        tn_model_close(model);
    }
    assert_true(bytes[1] > 0 && 2 * bytes[1] <= bytes[0] + 1024);
}

/* Two loops over two layers are four layers with the same weights twice and a norm between them. */
static void loops_use_weights_again(void **state) {
    (void)state;
    static const tn_token tokens[] = {5, 9, 1, 30, 2, 7};
    static float once[TOKENS * VOCAB], twice[TOKENS * VOCAB];
    tn_model *model;
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = "nanbeige"}));
    assert_ok(tn_model_open(path, NULL, &model));
    assert_int_equal(tn_model_get_info(model).n_layer, 4);
    tn_model_close(model);
    run_model(tokens, twice);
    edit_model("nanbeige.num_loops", 1, NULL, NULL);
    run_model(tokens, once);
    assert_true(distance(once, twice, VOCAB) > 1e-3);
    edit_model("nanbeige.num_loops", 40000, NULL, NULL);
    assert_int_equal(tn_model_open(path, NULL, &model), TN_E_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(diffusion_sees_later_tokens),
        cmocka_unit_test(diffusion_models_do_not_generate),
        cmocka_unit_test(the_pattern_of_windows_may_be_a_number),
        cmocka_unit_test(norms_without_an_ending_are_found),
        cmocka_unit_test(layers_without_attention_have_no_cells),
        cmocka_unit_test(loops_use_weights_again),
    };
    const int descriptor = mkstemp(path);
    if (descriptor < 0) return 1;
    close(descriptor);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
