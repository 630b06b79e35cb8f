/* Candidates: the largest logits of a row, while the row stays on the device. */
#include "models/tiny_models.h"
#include "support.h"
#include "tenon/generate.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 160, CANDIDATES = 12, SEQS = 5 };

typedef struct pair {
    tn_model *models[2];
    tn_session *sessions[2]; /* on the CPU, and with candidates on a simulated device */
} pair;

static void open_pair(pair *p, const char *arch) {
    char path[256];
    snprintf(path, sizeof path, "/tmp/tn_candidates_%d.gguf", (int)getpid());
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = arch, .vocab = VOCAB, .tokenizer = true}));
    for (int i = 0; i < 2; i++) {
        tn_session_params params = tn_session_params_default();
        params.n_ctx = 128;
        params.n_seqs = SEQS;
        params.n_ubatch = 16;
        params.n_candidates = CANDIDATES;
        params.devices[0] = i ? "sim:64M,name=candidates" : "cpu";
        assert_ok(tn_model_open(path, NULL, &p->models[i]));
        assert_ok(tn_session_open(p->models[i], &params, &p->sessions[i]));
    }
    remove(path);
}
static void close_pair(pair *p) {
    for (int i = 0; i < 2; i++) {
        tn_session_free(p->sessions[i]);
        tn_model_close(p->models[i]);
    }
}

static void decode_both(pair *p, tn_batch batch) {
    for (int i = 0; i < 2; i++) {
        batch.candidates = i == 1;
        assert_ok(tn_session_decode(p->sessions[i], &batch));
    }
}

/* Row i: candidates are the row's largest in descending order, the row is fetched on request, the argmax agrees. */
static void check_row(pair *p, int32_t i) {
    const tn_token *tokens;
    const float *largest, *row = tn_session_logits(p->sessions[0], i);
    assert_int_equal(tn_session_candidates(p->sessions[0], i, &tokens, &largest), 0);
    assert_int_equal(tn_session_candidates(p->sessions[1], i, &tokens, &largest), CANDIDATES);
    bool listed[VOCAB] = {false};
    for (int k = 0; k < CANDIDATES; k++) {
        assert_in_range(tokens[k], 0, VOCAB - 1);
        assert_false(listed[tokens[k]]);
        listed[tokens[k]] = true;
        assert_true(fabsf(largest[k] - row[tokens[k]]) < 1e-4f);
        if (k) assert_true(largest[k] <= largest[k - 1]);
    }
    for (int t = 0; t < VOCAB; t++)
        if (!listed[t]) assert_true(row[t] <= largest[CANDIDATES - 1] + 1e-4f);
    assert_int_equal(tn_session_argmax(p->sessions[1], i), tokens[0]);
    const float *fetched = tn_session_logits(p->sessions[1], i);
    assert_non_null(fetched);
    for (int t = 0; t < VOCAB; t++) assert_true(fabsf(fetched[t] - row[t]) < 1e-4f);
    for (int k = 0; k < CANDIDATES; k++) assert_true(fetched[tokens[k]] == largest[k]);
}

static void candidates_are_the_largest(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gemma2", "qwen35"};
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        pair p;
        open_pair(&p, names[m]);
        const tn_token tokens[16] = {5, 9, 33, 2, 77, 41, 8, 120, 66, 3, 14, 15, 92, 65, 35, 89};
        const int32_t seqs[16] = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4};
        decode_both(&p, (tn_batch){.n_tokens = 16, .tokens = tokens, .seqs = seqs});
        assert_int_equal(tn_session_output_count(p.sessions[1]), SEQS);
        for (int32_t i = SEQS - 1; i >= 0; i--) check_row(&p, i);
        const int32_t each[SEQS] = {0, 1, 2, 3, 4};
        decode_both(&p, (tn_batch){.n_tokens = SEQS, .tokens = tokens, .seqs = each});
        check_row(&p, 2);
        decode_both(&p, (tn_batch){.n_tokens = 1, .tokens = tokens, .seqs = each});
        check_row(&p, 0);
        check_row(&p, -1);
        /* A plain batch has none. */
        const float *logits;
        const tn_token *ids;
        assert_ok(tn_session_decode(p.sessions[1], &(tn_batch){.n_tokens = 1, .tokens = tokens}));
        assert_int_equal(tn_session_candidates(p.sessions[1], 0, &ids, &logits), 0);
        assert_non_null(tn_session_logits(p.sessions[1], 0));
        close_pair(&p);
    }
}

/* All logits of the rows agree, and no two rows are the same. */
static void assert_same_rows(pair *p, int n) {
    assert_int_equal(tn_session_output_count(p->sessions[0]), n);
    assert_int_equal(tn_session_output_count(p->sessions[1]), n);
    for (int i = 0; i < n; i++) {
        const float *here = tn_session_logits(p->sessions[0], i), *there = tn_session_logits(p->sessions[1], i);
        assert_non_null(here);
        assert_non_null(there);
        for (int t = 0; t < VOCAB; t++) assert_true(fabsf(here[t] - there[t]) < 1e-4f);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(there, tn_session_logits(p->sessions[1], k), VOCAB * sizeof(float));
    }
}

/* Rows of several micro-batches, and rows that a later graph would overwrite. */
static void rows_survive_other_graphs(void **state) {
    (void)state;
    pair p;
    const float *logits;
    const tn_token *ids;
    open_pair(&p, "llama");
    tn_token tokens[40];
    int32_t seqs[40];
    for (int i = 0; i < 40; i++) tokens[i] = (i * 37) % VOCAB, seqs[i] = i / 8;
    decode_both(&p, (tn_batch){.n_tokens = 40, .tokens = tokens, .seqs = seqs});
    assert_int_equal(tn_session_candidates(p.sessions[1], 0, &ids, &logits), 0);
    assert_same_rows(&p, SEQS);
    decode_both(&p, (tn_batch){.n_tokens = 2, .tokens = tokens, .seqs = (const int32_t[]){0, 1}});
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_session_seq_remove(p.sessions[i], 0, 0, 4));
        assert_ok(tn_session_seq_shift(p.sessions[i], 0, 4, -1, -4)); /* runs a graph */
    }
    assert_same_rows(&p, 2);
    close_pair(&p);
}

/* Generators give the same text from candidates as from rows; what they cannot decide is fetched. */
static void generators_use_them(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        pair p;
        open_pair(&p, "llama");
        tn_generator *generators[2];
        tn_sampler *samplers[2];
        tn_sampler_params params = tn_sampler_params_default();
        params.seed = 4;
        params.n_dry_breakers = 0;
        params.top_k = kind == 0 ? 5 : 0; /* without top-k and min-p: rows are fetched */
        params.min_p = kind == 2 ? 0 : 0.2f;
        tn_token next[2] = {7, 7};
        for (int i = 0; i < 2; i++) {
            assert_ok(tn_sampler_new(&params, VOCAB, &samplers[i]));
            assert_ok(tn_generator_new(tn_model_tokenizer(p.models[i]),
                                       &(tn_generator_params){.sampler = samplers[i], .ignore_end = true},
                                       &generators[i]));
        }
        for (int step = 0; step < 40; step++) {
            assert_int_equal(next[0], next[1]);
            for (int i = 0; i < 2; i++) {
                assert_ok(tn_session_decode(p.sessions[i],
                                            &(tn_batch){.n_tokens = 1, .tokens = &next[i], .candidates = i == 1}));
                assert_ok(tn_generator_sample(generators[i], p.sessions[i], 0));
                next[i] = tn_generator_token(generators[i]);
            }
        }
        for (int i = 0; i < 2; i++) {
            tn_generator_free(generators[i]);
            tn_sampler_free(samplers[i]);
        }
        close_pair(&p);
    }
}

/* Nothing of a warm-up stays: the first tokens are those of a session without it. */
static void warming_up_leaves_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gpt2", "gemma2", "qwen35"};
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        pair p;
        open_pair(&p, names[m]);
        const uint64_t runs = tn_session_get_stats(p.sessions[1]).sched.runs;
        for (int i = 0; i < 2; i++) assert_ok(tn_session_warm_up(p.sessions[i]));
        assert_int_equal(tn_session_get_stats(p.sessions[0]).sched.runs, 0); /* the host needs none */
        assert_true(tn_session_get_stats(p.sessions[1]).sched.runs > runs + 6);
        assert_int_equal(tn_session_get_stats(p.sessions[1]).prompt_tokens, 0);
        assert_int_equal(tn_session_output_count(p.sessions[1]), 0);
        assert_int_equal(tn_session_cache_usage(p.sessions[1]).used, 0);
        const tn_token tokens[3] = {5, 9, 33};
        decode_both(&p, (tn_batch){.n_tokens = 3, .tokens = tokens});
        check_row(&p, 0);
        assert_int_equal(tn_session_warm_up(p.sessions[1]), TN_E_STATE);
        close_pair(&p);
    }
}

static void numbers_out_of_range_are_refused(void **state) {
    (void)state;
    char path[256];
    tn_model *model;
    tn_session_plan *plan;
    snprintf(path, sizeof path, "/tmp/tn_candidates_%d.gguf", (int)getpid());
    assert_ok(tiny_model_write(path, NULL));
    assert_ok(tn_model_open(path, NULL, &model));
    remove(path);
    for (int32_t n = -1; n <= 1025; n += 1026) {
        tn_session_params params = tn_session_params_default();
        params.n_candidates = n;
        assert_int_equal(tn_session_plan_new(model, &params, &plan), TN_E_INVALID);
    }
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_the_largest),
        cmocka_unit_test(rows_survive_other_graphs),
        cmocka_unit_test(generators_use_them),
        cmocka_unit_test(warming_up_leaves_nothing),
        cmocka_unit_test(numbers_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
