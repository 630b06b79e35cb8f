/* Queued steps: a greedy loop whose next step the device computes before it is requested. */
#include "models/reference_models.h"

#include <stdlib.h>
#include <string.h>

/* Queued steps give the tokens of a loop over the logits, whatever other call comes in between. */
enum { LOOP_CTX = 128, LOOP_SEQS = 2, LOOP_STEPS = 400 };
static tn_token loop_step(tn_session *session, tn_token token, int32_t seq, bool argmax) {
    assert_ok(
        tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token, .seqs = &seq, .argmax = argmax}));
    assert_int_equal(tn_session_output_count(session), 1);
    return tn_session_argmax(session, 0);
}
static void queued_steps_give_the_same_tokens(void **state) {
    (void)state;
    static const char *const names[] = {"llama-dense", "gpt2-dense", "gemma2-dense"};
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        reference_model g;
        reference_load(names[m], &g);
        tn_model *models[2];
        tn_session *sessions[2]; /* with logits, and with queued steps */
        for (int i = 0; i < 2; i++) {
            tn_session_params p = tn_session_params_default();
            p.n_ctx = LOOP_CTX;
            p.n_seqs = LOOP_SEQS;
            p.n_ubatch = 16;
            p.devices[0] = i ? "sim:64M,name=greedy" : "cpu";
            assert_ok(tn_model_open(g.path, NULL, &models[i]));
            assert_ok(tn_session_open(models[i], &p, &sessions[i]));
        }
        rng r = {5};
        tn_token next[LOOP_SEQS] = {1, 2};
        int32_t seq = 0, lengths[LOOP_SEQS] = {0};
        const bool moves = strcmp(names[m], "gpt2-dense") != 0; /* its positions are learned */
        for (int step = 0; step < LOOP_STEPS; step++) {
            const uint32_t what = rng_below(&r, 100);
            if (what < 4) next[seq] = (tn_token)rng_below(&r, 50);
            if (what >= 4 && what < 8) seq ^= 1;
            for (int i = 0; i < 2; i++) {
                tn_session *s = sessions[i];
                if (what >= 8 && what < 12 && lengths[seq] > 4) /* back */
                    assert_ok(tn_session_seq_remove(s, seq, lengths[seq] - 3, -1));
                if (what >= 12 && what < 14 && lengths[seq] > 8) /* removes a token in the middle */
                    assert_ok(tn_session_seq_remove(s, seq, 2, 3));
                if (what >= 14 && what < 16) {
                    size_t size;
                    assert_ok(tn_session_state_size(s, seq, &size));
                    void *bytes = malloc(size);
                    assert_ok(tn_session_state_get(s, seq, bytes, size));
                    assert_ok(tn_session_state_set(s, seq, bytes, size));
                    free(bytes);
                }
                if (what >= 16 && what < 18 && moves && lengths[seq] > 8) {
                    assert_ok(tn_session_seq_remove(s, seq, 0, 4));
                    assert_ok(tn_session_seq_shift(s, seq, 4, -1, -4));
                }
                if (what == 18) assert_int_equal(tn_session_decode(s, &(tn_batch){.n_tokens = 0}), TN_E_INVALID);
                if (what == 19) { /* both at once */
                    int32_t seqs[2] = {0, 1};
                    assert_ok(tn_session_decode(
                        s, &(tn_batch){.n_tokens = 2, .tokens = next, .seqs = seqs, .argmax = i == 1}));
                }
                if (tn_session_cache_usage(s).used + 2 >= LOOP_CTX ||
                    tn_session_seq_last(s, seq) + 2 >= tn_model_get_info(models[i]).n_ctx_train)
                    tn_session_clear(s);
            }
            const int32_t used = tn_session_cache_usage(sessions[0]).used;
            assert_int_equal(tn_session_cache_usage(sessions[1]).used, used);
            assert_int_equal(tn_session_seq_last(sessions[1], seq), tn_session_seq_last(sessions[0], seq));
            const tn_token wanted = loop_step(sessions[0], next[seq], seq, false),
                           got = loop_step(sessions[1], next[seq], seq, true);
            if (got != wanted) fail_msg("%s: step %d (%u) gives %d, not %d", names[m], step, what, got, wanted);
            next[seq] = wanted;
            lengths[seq] = tn_session_seq_last(sessions[0], seq) + 1;
        }
        /* The last queued step of a loop is discarded; no step is queued where the cache has windows. */
        const bool queues = strcmp(names[m], "gemma2-dense") != 0;
        tn_session_clear(sessions[1]);
        const uint64_t runs = tn_session_get_stats(sessions[1]).sched.runs;
        for (int i = 0; i < 10; i++) next[0] = loop_step(sessions[1], next[0], 0, true);
        assert_int_equal(tn_session_get_stats(sessions[1]).sched.runs - runs, queues ? 11 : 10);
        for (int i = 0; i < 2; i++) {
            tn_session_free(sessions[i]);
            tn_model_close(models[i]);
        }
        reference_free(&g);
    }
}

/* The device is slow, so that a step is still queued when everything it reads is freed: the sanitizer detects it. */
static void a_session_may_be_freed_while_a_step_is_queued(void **state) {
    (void)state;
    const char *path = reference_path("llama-dense");
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 64;
    p.n_ubatch = 16;
    p.devices[0] = "sim:64M,latency=3ms,name=late";
    assert_ok(tn_model_open(path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    tn_token next = 1;
    for (int i = 0; i < 4; i++) next = loop_step(session, next, 0, true);
    tn_session_free(session);
    tn_model_close(model);
}

/* A device that is lost while it computes a queued step: the loop gets the error, and every token before is right. */
static void a_lost_device_ends_a_greedy_loop(void **state) {
    (void)state;
    const char *path = reference_path("llama-dense");
    enum { N = 60 };
    tn_token tokens[2][N + 1] = {{1}, {1}};
    for (int i = 0; i < 2; i++) {
        tn_model *model;
        tn_session *session;
        tn_session_params p = tn_session_params_default();
        p.n_ctx = 128;
        p.devices[0] = i ? "sim:64M,fail=lost:30,name=losing" : "cpu";
        assert_ok(tn_model_open(path, NULL, &model));
        assert_ok(tn_session_open(model, &p, &session));
        tn_status status = TN_OK;
        int done = 0;
        for (; done < N && status == TN_OK; done++) {
            tn_batch batch = {.n_tokens = 1, .tokens = &tokens[i][done], .argmax = true};
            status = tn_session_decode(session, &batch);
            if (status != TN_OK) break;
            tokens[i][done + 1] = tn_session_argmax(session, 0);
            assert_int_equal(tokens[i][done + 1], tokens[0][done + 1]);
        }
        if (i)
            assert_true(status != TN_OK && done > 2);
        else
            assert_int_equal(done, N);
        tn_session_free(session);
        tn_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queued_steps_give_the_same_tokens),
        cmocka_unit_test(a_session_may_be_freed_while_a_step_is_queued),
        cmocka_unit_test(a_lost_device_ends_a_greedy_loop),
    };
    return RUN_ON_TINY_MODELS(tests, NULL, NULL);
}
