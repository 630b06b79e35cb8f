/* Every causal architecture: logits of a tiny model against a whole forward pass in doubles, which shares no code
 * with the library (tests/support/forward). */
#include "support.h"

#include "forward/forward.h"
#include "models/tiny_models.h"
#include "tenon/arch.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 22, WINDOW = 6 };
static char path[] = "/tmp/tenon-forward-XXXXXX";
static const tn_token tokens[TOKENS] = {7,  1,  49, 0, 12, 12, 33, 5, 21, 40, 3,
                                        60, 63, 17, 8, 8,  29, 54, 2, 31, 11, 44};

/* With more heads than key/value heads, heads that are wider than their share, windows that are shorter than the text
 * where the family has them, and every kind of layer. */
static tiny_options options_of(const tn_arch *arch) {
    const bool windows = arch->traits & TN_ARCH_WINDOW;
    const uint32_t all = arch->window_period ? (uint32_t)arch->window_period + 1 : 5;
    return (tiny_options){
        .arch = arch->name,
        .layers = all,
        .heads = 4,
        .kv_heads = arch->typical.kv_heads == 1  ? 1
                    : arch->typical.kv_heads > 1 ? 4
                                                 : 2,
        .head = strcmp(arch->name, "deci") == 0 ? 8 : 16, /* its matrix instead of attention is square */
        .ffn = 48,
        .window = windows ? WINDOW : 0,
        .seed = 11};
}

/* Largest difference of logits, relative to their size; with parts of this many tokens. */
static double distance_of(const tn_arch *arch, int at_once) {
    const tiny_options options = options_of(arch);
    double *want, square = 0, worst = 0;
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 64, p.n_outputs = TOKENS, p.devices[0] = "cpu", p.cache_k = p.cache_v = TN_F32;
    assert_ok(tiny_model_write(path, &options));
    assert_ok(tn_model_open(path, NULL, &model));
    const int vocab = tn_model_get_info(model).n_vocab;
    want = malloc(TOKENS * (size_t)vocab * sizeof *want);
    assert_non_null(want);
    if (!forward_logits(tn_model_file(model), tokens, TOKENS, want)) fail_msg("%s has no reference", arch->name);
    for (int i = 0; i < TOKENS * vocab; i++) square += want[i] * want[i] / (TOKENS * vocab);
    assert_true(isfinite(square) && square > 1e-6);
    assert_ok(tn_session_open(model, &p, &session));
    for (int begin = 0; begin < TOKENS; begin += at_once) {
        const int n = begin + at_once < TOKENS ? at_once : TOKENS - begin;
        bool outputs[TOKENS];
        for (int i = 0; i < n; i++) outputs[i] = true;
        assert_ok(
            tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens + begin, .outputs = outputs}));
        for (int t = 0; t < n; t++) {
            const float *got = tn_session_logits(session, t);
            for (int i = 0; i < vocab; i++) {
                const double off = fabs((double)got[i] - want[(begin + t) * vocab + i]) / sqrt(square);
                if (!(off <= worst)) worst = off;
            }
        }
    }
    free(want);
    tn_session_free(session);
    tn_model_close(model);
    return worst;
}

static bool is_tested(const tn_arch *arch) {
    const char *only = getenv("TENON_ARCH");
    return !(arch->traits & TN_ARCH_ENCODER) && (!only || strcmp(only, arch->name) == 0);
}

static void logits_are_those_of_doubles(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        const bool causal = !(arch->traits & TN_ARCH_DIFFUSION);
        if (!is_tested(arch)) continue;
        const double batch = distance_of(arch, TOKENS), parts = causal ? distance_of(arch, 5) : 0;
        if (batch <= 5e-4 && parts <= 5e-4) continue;
        print_error("%s: logits differ by %g of their size as a batch, %g in parts\n", arch->name, batch, parts);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

/* For tests/commands/zoo.sh: ARCH.gguf and ARCH.logits in a folder, for tests/zoo. */
static void references_are_written(void **state) {
    const char *folder = *state;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        const tiny_options options = options_of(arch);
        static double logits[TOKENS * 64];
        char name[512];
        tn_model *model;
        if (arch->traits & TN_ARCH_ENCODER) continue;
        snprintf(name, sizeof name, "%s/%s.gguf", folder, arch->name);
        assert_ok(tiny_model_write(name, &options));
        assert_ok(tn_model_open(name, NULL, &model));
        const int32_t head[2] = {TOKENS, tn_model_get_info(model).n_vocab};
        assert_true(head[1] <= 64 && forward_logits(tn_model_file(model), tokens, TOKENS, logits));
        snprintf(name, sizeof name, "%s/%s.logits", folder, arch->name);
        FILE *out = fopen(name, "wb");
        assert_non_null(out);
        fwrite(head, sizeof head, 1, out);
        fwrite(tokens, sizeof tokens, 1, out);
        for (int32_t k = 0; k < TOKENS * head[1]; k++) fwrite(&(float){(float)logits[k]}, sizeof(float), 1, out);
        assert_int_equal(fclose(out), 0);
        tn_model_close(model);
    }
}

int main(void) {
    char *folder = getenv("TENON_FORWARD_FOLDER");
    if (folder) {
        const struct CMUnitTest writing[] = {cmocka_unit_test_prestate(references_are_written, folder)};
        return cmocka_run_group_tests(writing, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_those_of_doubles)};
    const int descriptor = mkstemp(path);
    if (descriptor < 0) return 1;
    close(descriptor);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
