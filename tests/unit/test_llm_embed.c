/* Embeddings: hidden states that give the golden logits, pooling by its definition, encoders against a plain
 * reference in doubles. */
#include "llm_golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tn_session_params embedding_params(tn_pooling pooling) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 128;
    p.n_seqs = 3;
    p.n_threads = 2;
    p.cache_k = p.cache_v = TN_F32;
    p.embeddings = true;
    p.pooling = pooling;
    return p;
}

static const float *weight(const tn_model *m, const char *name, int64_t *rows) {
    const tn_gguf_tensor *t = tn_gguf_find_tensor(tn_model_file(m), name);
    if (!t) return NULL;
    assert_int_equal(t->type, TN_F32);
    if (rows) *rows = t->ne[1];
    return t->data;
}

static void states_times_the_output_matrix_are_the_logits(void **state) {
    (void)state;
    golden_model g;
    if (!golden_load("archs/qwen3-dense", &g)) skip();
    tn_model *model;
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_NONE);
    p.n_ubatch = 7; /* several micro-batches, the last with padding */
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_new(model, &p, &session));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = g.n_tokens, .tokens = g.tokens}));
    assert_int_equal(tn_session_output_count(session), g.n_tokens);
    assert_null(tn_session_logits(session, 0));
    assert_null(tn_session_embedding(session, g.n_tokens));
    const float *out = weight(model, "output.weight", NULL);
    if (!out) out = weight(model, "token_embd.weight", NULL);
    int32_t n = tn_session_embedding_size(session);
    assert_int_equal(n, tn_model_get_info(model).n_embd);
    float *logits = malloc((size_t)g.n_vocab * sizeof *logits);
    nmse sum = {0};
    for (int32_t t = 0; t < g.n_tokens; t++) {
        const float *x = tn_session_embedding(session, t);
        for (int32_t v = 0; v < g.n_vocab; v++) {
            double dot = 0;
            for (int32_t i = 0; i < n; i++) dot += (double)x[i] * (double)out[(size_t)v * (size_t)n + (size_t)i];
            logits[v] = (float)dot;
        }
        nmse_add(&sum, logits, g.logits + (size_t)t * (size_t)g.n_vocab, g.n_vocab);
    }
    assert_true(nmse_value(&sum) <= 1e-6);
    free(logits);
    tn_session_free(session);
    tn_model_close(model);
    golden_free(&g);
}

/* Two interleaved sequences of a causal model, cut into micro-batches; each kind of pooling against the states. */
static void pooling_is_what_it_says(void **state) {
    (void)state;
    golden_model g;
    if (!golden_load("archs/llama-dense", &g)) skip();
    enum { N = 20, WIDTH = 128 };
    int32_t seqs[N];
    static float states[N][WIDTH];
    for (int32_t i = 0; i < N; i++) seqs[i] = i % 3 ? 2 : 0;
    tn_model *model;
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_int_equal(tn_model_get_info(model).n_embd, WIDTH);
    for (tn_pooling pooling = TN_POOLING_MODEL; pooling <= TN_POOLING_LAST; pooling++) {
        if (pooling == TN_POOLING_MODEL) continue;
        tn_session *session;
        tn_session_params p = embedding_params(pooling);
        p.n_ubatch = 6;
        assert_ok(tn_session_new(model, &p, &session));
        for (int again = 0; again < 2; again++) { /* the second time nothing of the first is left */
            tn_session_clear(session);
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = N, .tokens = g.tokens, .seqs = seqs}));
        }
        assert_int_equal(tn_session_output_count(session), pooling == TN_POOLING_NONE ? N : 2);
        if (pooling == TN_POOLING_NONE) memcpy(states, tn_session_embedding(session, 0), sizeof states);
        for (int32_t r = 0; r < 2 && pooling != TN_POOLING_NONE; r++) {
            const float *got = tn_session_embedding(session, r);
            for (int32_t k = 0; k < WIDTH; k++) {
                double sum = 0, first = 0, last = 0;
                int count = 0;
                for (int32_t i = 0; i < N; i++) {
                    if (seqs[i] != 2 * r) continue;
                    if (!count++) first = states[i][k];
                    sum += last = states[i][k];
                }
                double want = pooling == TN_POOLING_MEAN ? sum / count : pooling == TN_POOLING_CLS ? first : last;
                assert_true(fabs(got[k] - want) <= 2e-5 * (1 + fabs(want)));
            }
        }
        tn_session_free(session);
    }
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_RANK);
    assert_fails(TN_E_UNSUPPORTED, tn_session_new(model, &p, &session));
    p = embedding_params(TN_POOLING_MODEL); /* the file says nothing: the last token's */
    assert_ok(tn_session_new(model, &p, &session));
    assert_int_equal(tn_session_get_params(session).pooling, TN_POOLING_LAST);
    assert_fails(TN_E_STATE, tn_session_prompt(session, 0, "x", 1));
    tn_session_free(session);
    tn_model_close(model);
    golden_free(&g);
}

/* Rows that are wanted all but one still are the right ones. */
static void logits_of_all_rows_but_one(void **state) {
    (void)state;
    golden_model g;
    if (!golden_load("archs/llama-dense", &g)) skip();
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 64;
    p.n_outputs = 8;
    p.cache_k = p.cache_v = TN_F32;
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_new(model, &p, &session));
    bool outputs[6] = {true, false, true, true, true, true};
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 6, .tokens = g.tokens, .outputs = outputs}));
    assert_int_equal(tn_session_output_count(session), 5);
    for (int32_t i = 0; i < 5; i++) {
        nmse sum = {0};
        int32_t row = i == 0 ? 0 : i + 1;
        nmse_add(&sum, tn_session_logits(session, i), g.logits + (size_t)row * (size_t)g.n_vocab, g.n_vocab);
        assert_true(nmse_value(&sum) <= 1e-6);
    }
    tn_session_free(session);
    tn_model_close(model);
    golden_free(&g);
}

static void normalisation_divides_by_the_norm(void **state) {
    (void)state;
    const float given[4] = {3, -4, 0, 12};
    const double norms[] = {12.0 / 32760, 19, 13, cbrt(27 + 64 + 1728)};
    for (int norm = -1; norm <= 3; norm++) {
        float row[4];
        memcpy(row, given, sizeof row);
        tn_embedding_normalize(row, 4, norm);
        for (int i = 0; i < 4; i++) {
            double want = norm < 0 ? given[i] : given[i] / norms[norm];
            assert_true(fabs(row[i] - want) <= 1e-6 * (1 + fabs(want)));
        }
    }
    float zeros[2] = {0, 0};
    tn_embedding_normalize(zeros, 2, 2);
    assert_true(zeros[0] == 0 && zeros[1] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_times_the_output_matrix_are_the_logits),
        cmocka_unit_test(pooling_is_what_it_says),
        cmocka_unit_test(logits_of_all_rows_but_one),
        cmocka_unit_test(normalisation_divides_by_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
