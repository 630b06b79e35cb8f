/* Layers that predict further tokens: they are loaded where that is asked for, exactly as planned, and ordinary
 * decodes give the same bits with and without them. */
#include "models/tiny_models.h"
#include "support.h"

#include "base/checked.h"
#include "llm/model_internal.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 64, LAYERS = 4 };

static void write_model(const char *arch, uint32_t nextn, char *path) {
    strcpy(path, "/tmp/tenon-nextn-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(
        tiny_model_write(path, &(tiny_options){.arch = arch, .layers = LAYERS, .vocab = VOCAB, .nextn = nextn}));
}

/* Logits of a few tokens; returns the bytes of weights in the session's memory, which are those planned. */
static size_t decode_some(const char *path, bool nextn, float *logits) {
    tn_model *model;
    tn_session *session;
    tn_session_plan *plan;
    tn_fit planned, taken;
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9};
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 128;
    p.n_threads = 1;
    p.devices[0] = "cpu";
    assert_ok(tn_model_open(path, &(tn_model_params){.no_mmap = true, .nextn = nextn}, &model));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &planned));
    assert_ok(tn_session_new(plan, &session));
    assert_ok(tn_session_memory(session, &taken));
    assert_int_equal(planned.devices[0].weights, taken.devices[0].weights);
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TN__COUNT(tokens), .tokens = tokens}));
    memcpy(logits, tn_session_logits(session, -1), VOCAB * sizeof *logits);
    const size_t bytes = taken.devices[0].weights;
    tn_fit_free(&planned);
    tn_fit_free(&taken);
    tn_session_free(session);
    tn_model_close(model);
    return bytes;
}

static void check_arch(const char *arch) {
    char path[64];
    float with[VOCAB], without[VOCAB];
    write_model(arch, 1, path);
    const size_t less = decode_some(path, false, without), more = decode_some(path, true, with);
    assert_memory_equal(with, without, sizeof with);
    tn_model *model;
    assert_ok(tn_model_open(path, &(tn_model_params){.nextn = true}, &model));
    assert_int_equal(tn_model_get_info(model).n_layer, LAYERS);
    assert_int_equal(tn_model_get_info(model).n_nextn, 1);
    const tn__layer *l = &model->w.layers[LAYERS];
    assert_true(l->nextn_proj && l->nextn_embd_norm && l->nextn_state_norm && l->nextn_head_norm);
    assert_true(l->wo && (l->ffn_down || l->down_exps));
    assert_int_equal(l->nextn_proj->ne[0], 2 * l->nextn_proj->ne[1]);
    size_t bytes = 0;
    for (size_t i = 0; i < model->n_all; i++)
        if (strncmp(model->all[i].info->name, "blk.4.", 6) == 0) bytes += model->all[i].info->size;
    assert_true(more >= less + bytes);
    tn_model_close(model);
    unlink(path);
}

static void ordinary_decodes_ignore_them(void **state) {
    (void)state;
    static const char *const archs[] = {"qwen3", "qwen35", "deepseek2", "glm4moe"};
    for (size_t i = 0; i < TN__COUNT(archs); i++) check_arch(archs[i]);
}

/* A file without such layers opens with the flag, too. */
static void a_file_may_have_none(void **state) {
    (void)state;
    char path[64];
    tn_model *model;
    write_model("llama", 0, path);
    assert_ok(tn_model_open(path, &(tn_model_params){.nextn = true}, &model));
    assert_int_equal(tn_model_get_info(model).n_nextn, 0);
    tn_model_close(model);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordinary_decodes_ignore_them),
        cmocka_unit_test(a_file_may_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
