/* Models whose weights are repacked for the CPU: the same logits as with the file's layout, in exactly the planned
 * bytes. */
#include "models/reference_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A copy of an f32 model with its matrices in q4_0. */
static void quantized_copy(const char *from, const char *to) {
    tn_gguf *file;
    tn_gguf_writer *writer;
    assert_ok(tn_gguf_open(from, NULL, &file));
    assert_ok(tn_gguf_writer_new(to, NULL, &writer));
    assert_ok(tn_gguf_writer_copy_keys(writer, file));
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
            const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
            bool matrix = t->type == TN_F32 && t->n_dims >= 2 && t->ne[0] % 32 == 0 && !strstr(t->name, "norm") &&
                          !strstr(t->name, "bias");
            if (pass == 0) {
                assert_ok(tn_gguf_writer_add(writer, t->name, matrix ? TN_Q4_0 : t->type, t->n_dims, t->ne));
            } else if (matrix) {
                int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
                size_t size;
                assert_true(tn_type_row_bytes(TN_Q4_0, n, &size));
                void *blocks = malloc(size);
                assert_ok(tn_type_from_f32(TN_Q4_0, t->data, blocks, n, NULL));
                assert_ok(tn_gguf_writer_write(writer, blocks, size));
                free(blocks);
            } else {
                assert_ok(tn_gguf_writer_write(writer, t->data, t->size));
            }
        }
        if (pass == 0) assert_ok(tn_gguf_writer_begin(writer));
    }
    assert_ok(tn_gguf_writer_finish(writer));
    tn_gguf_writer_free(writer);
    tn_gguf_close(file);
}

static tn_session_params params(const reference_model *g, bool pack) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 256;
    p.n_threads = 2;
    p.devices[0] = "cpu";
    p.n_outputs = g->n_tokens;
    p.no_repack = !pack;
    return p;
}

static float *logits_of(tn_session *session, const reference_model *g) {
    bool *wanted = malloc((size_t)g->n_tokens);
    memset(wanted, 1, (size_t)g->n_tokens);
    assert_ok(
        tn_session_decode(session, &(tn_batch){.n_tokens = g->n_tokens, .tokens = g->tokens, .outputs = wanted}));
    size_t row = (size_t)g->n_vocab;
    float *all = malloc((size_t)g->n_tokens * row * sizeof *all);
    for (int32_t i = 0; i < g->n_tokens; i++)
        memcpy(all + (size_t)i * row, tn_session_logits(session, i), row * sizeof *all);
    free(wanted);
    return all;
}

static void check_model(const char *name) {
    reference_model g;
    reference_load(name, &g);
    char path[] = "/tmp/tenon-packed-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    quantized_copy(g.path, path);

    float *logits[2];
    for (int pack = 0; pack < 2; pack++) {
        tn_model *model;
        tn_session *session, *second;
        tn_fit said, taken;
        tn_session_params p = params(&g, pack);
        assert_ok(tn_model_open(path, NULL, &model));
        assert_ok(plan_fit(model, &p, &said));
        assert_ok(tn_session_open(model, &p, &session));
        assert_ok(tn_session_memory(session, &taken));
        assert_int_equal(said.devices[0].weights, taken.devices[0].weights);
        assert_int_equal(said.devices[0].mapped, taken.devices[0].mapped);
        assert_int_equal(said.devices[0].scratch, taken.devices[0].scratch);
        assert_int_equal(said.devices[0].compute, taken.devices[0].compute);
        assert_true(pack ? taken.devices[0].weights > 0 : taken.devices[0].weights == 0);
        /* The explanation names the repacked weights. */
        char *text;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        assert_ok(tn_session_plan_explain(tn_session_get_plan(session), out));
        fclose(out);
        assert_true((strstr(text, ", repacked for its kernels\n") != NULL) == (pack != 0));
        assert_non_null(strstr(text, ", stays in the file's map\n"));
        free(text);
        logits[pack] = logits_of(session, &g);
        /* Weights are loaded once: later sessions use them as they are. */
        p.no_repack = !p.no_repack;
        assert_ok(tn_session_open(model, &p, &second));
        float *again = logits_of(second, &g);
        assert_memory_equal(again, logits[pack], (size_t)g.n_tokens * (size_t)g.n_vocab * sizeof *again);
        free(again);
        tn_session_free(second);
        tn_session_free(session);
        tn_fit_free(&said);
        tn_fit_free(&taken);
        tn_model_close(model);
    }
    nmse n = {0};
    for (int32_t i = 0; i < g.n_tokens; i++)
        nmse_add(&n, logits[1] + (size_t)i * (size_t)g.n_vocab, logits[0] + (size_t)i * (size_t)g.n_vocab, g.n_vocab);
    if (nmse_value(&n) > 1e-4) fail_msg("%s: packed logits are off by %g", name, nmse_value(&n));
    free(logits[0]);
    free(logits[1]);
    unlink(path);
    reference_free(&g);
}

static void packed_weights_give_the_same_logits(void **state) {
    (void)state;
    for (const char *const *name = reference_names(); *name; name++) check_model(*name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_weights_give_the_same_logits)};
    return RUN_ON_TINY_MODELS(tests, NULL, NULL);
}
