/* Damaged and foreign files of adapters and control vectors are refused with a message that names what is wrong. */
#include "support.h"

#include "models/tiny_models.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 64 };

static char model_path[] = "/tmp/tenon-adapter-model-XXXXXX", other_path[] = "/tmp/tenon-adapter-file-XXXXXX";

static int make_files(void **state) {
    (void)state;
    const int model = mkstemp(model_path), other = mkstemp(other_path);
    return model < 0 || other < 0 || close(model) != 0 || close(other) != 0 ? -1 : 0;
}
static int remove_files(void **state) {
    (void)state;
    return unlink(model_path) != 0 || unlink(other_path) != 0 ? -1 : 0;
}

typedef struct bad_adapter {
    const char *type, *adapter_type, *arch;
    float alpha;
    const char *names[4];
    int64_t ne[4][2];
    float value;
    tn_status status;
    const char *says;
} bad_adapter;

static void write_bad(const bad_adapter *c) {
    tn_gguf_writer *w;
    const float values[64 * 64] = {c->value};
    assert_ok(tn_gguf_writer_new(other_path, NULL, &w));
    assert_ok(tn_gguf_writer_set_cstr(w, "general.type", c->type ? c->type : "adapter"));
    assert_ok(tn_gguf_writer_set_cstr(w, "adapter.type", c->adapter_type ? c->adapter_type : "lora"));
    assert_ok(tn_gguf_writer_set_cstr(w, "general.architecture", c->arch ? c->arch : "llama"));
    assert_ok(tn_gguf_writer_set_f32(w, "adapter.lora.alpha", c->alpha));
    for (int i = 0; i < 4 && c->names[i]; i++) assert_ok(tn_gguf_writer_add(w, c->names[i], TN_F32, 2, c->ne[i]));
    assert_ok(tn_gguf_writer_begin(w));
    for (int i = 0; i < 4 && c->names[i]; i++)
        assert_ok(tn_gguf_writer_write(w, values, (size_t)(c->ne[i][0] * c->ne[i][1]) * 4));
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
}

#define Q "blk.0.attn_q.weight"
static void damaged_adapters_are_refused(void **state) {
    (void)state;
    static const bad_adapter cases[] = {
        {.type = "model", .status = TN_E_FORMAT, .says = "general.type"},
        {.adapter_type = "ia3", .status = TN_E_UNSUPPORTED, .says = "ia3"},
        {.arch = "gpt2", .status = TN_E_FORMAT, .says = "gpt2"},
        {.alpha = NAN, .status = TN_E_FORMAT, .says = "alpha"},
        {.status = TN_E_FORMAT, .says = "adapts no weights"},
        {.names = {Q ".lora_a"}, .ne = {{32, 4}}, .status = TN_E_FORMAT, .says = Q ".lora_b"},
        {.names = {Q ".lora_b"}, .ne = {{4, 32}}, .status = TN_E_FORMAT, .says = Q ".lora_a"},
        {.names = {Q ".lora_a", Q ".lora_b"}, .ne = {{32, 4}, {8, 32}}, .status = TN_E_SHAPE, .says = Q},
        {.names = {Q ".lora_a", Q ".lora_b"}, .ne = {{16, 4}, {4, 32}}, .status = TN_E_SHAPE, .says = Q},
        {.names = {Q ".lora_a", Q ".lora_b"}, .ne = {{32, 4}, {4, 64}}, .status = TN_E_SHAPE, .says = Q},
        {.names = {"blk.9.attn_q.weight.lora_a"}, .ne = {{32, 4}}, .status = TN_E_FORMAT, .says = "blk.9.attn_q"},
        {.names = {"blk.0.attn_norm.weight"}, .ne = {{32, 1}}, .status = TN_E_UNSUPPORTED, .says = "attn_norm"},
        {.names = {".lora_a"}, .ne = {{32, 4}}, .status = TN_E_UNSUPPORTED, .says = ".lora_a"},
        {.names = {Q ".lora_a", Q ".lora_b"},
         .ne = {{32, 4}, {4, 32}},
         .value = INFINITY,
         .status = TN_E_FORMAT,
         .says = "infinite"},
    };
    const tiny_options options = {.vocab = VOCAB};
    tn_model *model;
    tn_adapter *adapter;
    assert_ok(tiny_model_write(model_path, &options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bad(&cases[i]);
        const tn_status status = tn_adapter_open(model, other_path, &adapter);
        if (status != cases[i].status || !strstr(tn_error(), cases[i].says))
            fail_msg("case %zu: %s: %s", i, tn_status_name(status), tn_error());
        assert_null(adapter);
    }
    /* A weight that is not multiplied: the plan names it. */
    const bad_adapter norm = {.names = {"blk.0.attn_norm.weight.lora_a", "blk.0.attn_norm.weight.lora_b"},
                              .ne = {{32, 4}, {4, 1}}};
    tn_session_plan *plan;
    write_bad(&norm);
    assert_ok(tn_adapter_open(model, other_path, &adapter));
    tn_session_params p = tn_session_params_default();
    p.devices[0] = "cpu";
    p.n_ctx = 64;
    p.adapters = &(tn_adapter_use){adapter, 1};
    p.n_adapters = 1;
    assert_fails(TN_E_UNSUPPORTED, tn_session_plan_new(model, &p, &plan));
    assert_non_null(strstr(tn_error(), "blk.0.attn_norm.weight"));
    tn_adapter_close(adapter);
    tn_model_close(model);
}

static void damaged_control_vectors_are_refused(void **state) {
    (void)state;
    static const bad_adapter cases[] = {
        {.status = TN_E_FORMAT, .says = "no directions"},
        {.names = {"direction.0"}, .ne = {{32, 1}}, .status = TN_E_FORMAT, .says = "direction.0"},
        {.names = {"direction.2"}, .ne = {{32, 1}}, .status = TN_E_FORMAT, .says = "direction.2"},
        {.names = {"direction.1"}, .ne = {{16, 1}}, .status = TN_E_SHAPE, .says = "direction.1"},
        {.names = {"direction.1", "direction.01"},
         .ne = {{32, 1}, {32, 1}},
         .status = TN_E_FORMAT,
         .says = "layer 1"},
        {.names = {"direction.1x"}, .ne = {{32, 1}}, .status = TN_E_FORMAT, .says = "direction.1x"},
        {.names = {"direction.1"}, .ne = {{32, 1}}, .value = NAN, .status = TN_E_FORMAT, .says = "not a number"},
    };
    const tiny_options options = {.vocab = VOCAB};
    tn_model *model;
    tn_control_vector *vector;
    assert_ok(tiny_model_write(model_path, &options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_bad(&cases[i]);
        const tn_status status = tn_control_vector_open(model, other_path, &vector);
        if (status != cases[i].status || !strstr(tn_error(), cases[i].says))
            fail_msg("case %zu: %s: %s", i, tn_status_name(status), tn_error());
    }
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_adapters_are_refused),
        cmocka_unit_test(damaged_control_vectors_are_refused),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
