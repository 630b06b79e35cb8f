/* Micro-batches of a prompt in flight on several devices: the same bits as one after the other, in less time, within
 * the planned memory. */
#include "models/reference_models.h"

#include "backend/sim/sim.h"
#include "tenon/backend_impl.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UBATCH = 4, CTX = 128, TOKENS = 22 };

static tn_session_params params(int n_devices, const char *name, int n_pipeline, char specs[3][96]) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = CTX;
    p.n_batch = CTX;
    p.n_ubatch = UBATCH;
    p.n_seqs = 2;
    p.n_outputs = 8;
    p.n_threads = 1;
    p.n_pipeline = n_pipeline;
    for (int d = 0; d < n_devices; d++) {
        snprintf(specs[d], sizeof specs[d], "sim:64M%s,name=%s%s%d", strcmp(name, "slow") == 0 ? ",latency=2ms" : "",
                 name, n_pipeline == 1 ? "turn" : "", d);
        p.devices[d] = specs[d];
        p.split[d] = 1;
    }
    return p;
}

/* Number of runs that may be in flight, from the dump of the splits. */
static int runs_in_flight(tn_session *s, bool prefill) {
    static char text[1 << 18];
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_ok(tn_session_plan_splits(tn_session_get_plan(s), prefill, out));
    fclose(out);
    const char *at = strstr(text, ", one of ");
    return at ? atoi(at + strlen(", one of ")) : 1;
}

/* Makes a session and checks that the memory its devices count is what was planned. */
static void make_exactly(tn_model *model, const tn_session_params *p, tn_session **session) {
    tn_fit before, after;
    assert_ok(plan_fit(model, p, &before));
    assert_true(before.fits);
    assert_ok(tn_session_open(model, p, session));
    assert_ok(tn_session_memory(*session, &after));
    for (size_t d = 0; d < after.n_devices; d++) {
        const tn_fit_device *b = &before.devices[d], *a = &after.devices[d];
        assert_int_equal(b->compute, a->compute);
        assert_int_equal(b->scratch, a->scratch);
        if (d + 1 < after.n_devices)
            assert_int_equal(a->total - a->free, a->weights + a->cache + a->compute + a->scratch);
    }
    tn_fit_free(&before);
    tn_fit_free(&after);
}

/* Decodes the same batch in both sessions and compares the results row by row. */
static void both(tn_session *sessions[2], tn_batch b, int32_t n_vocab) {
    int32_t rows[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(tn_session_decode(sessions[i], &b));
        rows[i] = tn_session_output_count(sessions[i]);
    }
    assert_int_equal(rows[0], rows[1]);
    for (int32_t r = 0; r < rows[0] && !b.argmax; r++)
        assert_memory_equal(tn_session_logits(sessions[0], r), tn_session_logits(sessions[1], r),
                            (size_t)n_vocab * sizeof(float));
    for (int32_t r = 0; r < rows[0]; r++)
        assert_int_equal(tn_session_argmax(sessions[0], r), tn_session_argmax(sessions[1], r));
}

static void prompts_in_flight_give_the_same_bits(void **state) {
    (void)state;
    static const struct {
        const char *name;
        /* Models with windows run one micro-batch at a time: it may free cells that earlier ones still read. */
        bool windows;
    } models[] = {{"llama-dense", false}, {"qwen3moe-moe", false}, {"gemma2-dense", true}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        reference_model g;
        reference_load(models[m].name, &g);
        for (int n_devices = 2; n_devices < 4; n_devices++) {
            tn_model *opened[2];
            tn_session *sessions[2];
            char specs[2][3][96];
            for (int i = 0; i < 2; i++) {
                tn_session_params p = params(n_devices, "flight", i, specs[i]);
                assert_ok(tn_model_open(g.path, NULL, &opened[i]));
                make_exactly(opened[i], &p, &sessions[i]);
                assert_int_equal(runs_in_flight(sessions[i], true), i || models[m].windows ? 1 : 4);
                assert_int_equal(runs_in_flight(sessions[i], false), 1);
            }
            const int32_t n = TOKENS;
            bool some[64] = {[5] = true, [6] = true, [17] = true, [19] = true};
            int32_t seqs[64], positions[64], mixed[64];
            for (int round = 0; round < 2; round++) {
                for (int32_t i = 0; i < n; i++) {
                    seqs[i] = i % 3 == 0;
                    positions[i] = 40 + i;
                    /* Out of order: the first tokens must not see the cells of later positions. */
                    mixed[i] = 40 + (i * 7) % n;
                }
                both(sessions, (tn_batch){.n_tokens = n, .tokens = g.tokens}, g.n_vocab);
                both(sessions, (tn_batch){.n_tokens = 1, .tokens = g.tokens}, g.n_vocab);
                both(sessions, (tn_batch){.n_tokens = n, .tokens = g.tokens, .outputs = some}, g.n_vocab);
                both(sessions, (tn_batch){.n_tokens = 2, .tokens = g.tokens, .argmax = true}, g.n_vocab);
                for (int i = 0; i < 2; i++) tn_session_clear(sessions[i]);
                both(sessions, (tn_batch){.n_tokens = n, .tokens = g.tokens, .seqs = seqs}, g.n_vocab);
                for (int i = 0; i < 2; i++) assert_ok(tn_session_seq_remove(sessions[i], 0, 3, 9)); /* holes */
                both(sessions, (tn_batch){.n_tokens = n, .tokens = g.tokens, .positions = positions, .argmax = true},
                     g.n_vocab);
                for (int i = 0; i < 2; i++) tn_session_clear(sessions[i]);
                /* Nearly full, so that cells of the first and the last tokens alternate. */
                for (int32_t i = 0; i < 5; i++) {
                    for (int32_t k = 0; k < n; k++) {
                        seqs[k] = 1;
                        positions[k] = i * n + k;
                    }
                    both(sessions,
                         (tn_batch){.n_tokens = n, .tokens = g.tokens, .seqs = seqs, .positions = positions},
                         g.n_vocab);
                }
                for (int i = 0; i < 2; i++)
                    for (int32_t at = 3; at < 90; at += 10)
                        assert_ok(tn_session_seq_remove(sessions[i], 1, at, at + 4));
                both(sessions, (tn_batch){.n_tokens = n, .tokens = g.tokens, .positions = mixed, .outputs = some},
                     g.n_vocab);
                for (int i = 0; i < 2; i++) tn_session_clear(sessions[i]);
            }
            for (int i = 0; i < 2; i++) {
                tn_session_free(sessions[i]);
                tn_model_close(opened[i]);
            }
        }
        reference_free(&g);
    }
}

/* Where one device has all layers, or the host has some, pipelining gains nothing and no further copies are planned.
 */
static void only_layers_on_several_devices_are_worth_it(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    enum { ONE, FIRST_ALL, OUTPUT_ON_HOST, LAYER_ON_HOST, ONE_PART, THREE_IN_FLIGHT, CASES };
    for (int c = 0; c < CASES; c++) {
        tn_model *model;
        tn_session *session;
        char specs[3][96];
        tn_session_params p = params(c == ONE ? 1 : 2, "flight", c == THREE_IN_FLIGHT ? 3 : 0, specs);
        tn_placement_override output = {"output", "cpu"};
        if (c == FIRST_ALL) p.split[1] = 0;
        if (c == OUTPUT_ON_HOST) {
            p.overrides = &output;
            p.n_overrides = 1;
        }
        if (c == LAYER_ON_HOST) p.n_gpu_layers = 3; /* two of three, and the output */
        if (c == ONE_PART) p.n_batch = UBATCH;
        assert_ok(tn_model_open(g.path, NULL, &model));
        make_exactly(model, &p, &session);
        assert_int_equal(runs_in_flight(session, true), c == THREE_IN_FLIGHT ? 3 : 1);
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = UBATCH, .tokens = g.tokens}));
        tn_session_free(session);
        tn_model_close(model);
    }
    reference_free(&g);
}

/* Devices with memory for one micro-batch at a time: the session runs without pipelining instead of failing. */
static void tight_devices_go_without(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    size_t needed[2] = {64 << 20, 64 << 20};
    for (int tight = 0; tight < 2; tight++) {
        tn_model *model;
        tn_session *session;
        char specs[3][96];
        tn_session_params p = params(2, "flight", !tight, specs);
        p.n_gpu_layers = 1000;
        p.n_ctx = p.n_batch = 1024;
        p.n_ubatch = 512; /* large, so that prefill needs the most memory */
        for (int d = 0; d < 2; d++)
            snprintf(specs[d], sizeof specs[d], "sim:%zu,name=%s%d", needed[d], tight ? "tight" : "ample", d);
        assert_ok(tn_model_open(g.path, NULL, &model));
        make_exactly(model, &p, &session);
        assert_int_equal(runs_in_flight(session, true), 1);
        tn_fit fit;
        assert_ok(tn_session_memory(session, &fit));
        for (int d = 0; d < 2; d++) needed[d] = fit.devices[d].total - fit.devices[d].free;
        tn_fit_free(&fit);
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS, .tokens = g.tokens}));
        tn_session_free(session);
        tn_model_close(model);
    }
    reference_free(&g);
}

static void a_prompt_in_flight_is_read_sooner(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    double ratio = 1;
    for (int attempt = 0; attempt < 4 && ratio > 0.85; attempt++) { /* the machine may be busy */
        uint64_t ns[2];
        for (int i = 0; i < 2; i++) {
            tn_model *model;
            tn_session *session;
            char specs[3][96];
            tn_session_params p = params(2, "slow", i, specs);
            p.n_ubatch = 2; /* many micro-batches keep the devices busy */
            assert_ok(tn_model_open(g.path, NULL, &model));
            assert_ok(tn_session_open(model, &p, &session));
            uint64_t begin = tn_time_ns();
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS, .tokens = g.tokens}));
            ns[i] = tn_time_ns() - begin;
            tn_session_free(session);
            tn_model_close(model);
        }
        ratio = (double)ns[0] / (double)ns[1];
    }
    if (ratio > 0.85) fail_msg("in flight a prompt takes %.2f of the time", ratio);
    reference_free(&g);
}

/* A failure anywhere in a prompt in flight fails the batch, and none of its tokens stays. */
static void failures_in_flight_leave_nothing(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    tn_model *model;
    tn_session *session;
    char specs[3][96];
    tn_session_params p = params(2, "flight", 0, specs);
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    const tn_batch batch = {.n_tokens = TOKENS, .tokens = g.tokens};
    float *want = malloc((size_t)g.n_vocab * sizeof *want);
    assert_ok(tn_session_decode(session, &batch));
    memcpy(want, tn_session_logits(session, 0), (size_t)g.n_vocab * sizeof *want);
    for (int d = 0; d < 2; d++) {
        tn_device *device;
        assert_ok(tn_device_find(d ? "flight1" : "flight0", &device));
        tn__sim *sim = device->impl;
        for (long n = 1; n < 9; n++) {
            tn_session_clear(session);
            atomic_store(&sim->fail_run, n);
            tn_status status = tn_session_decode(session, &batch);
            bool fired = atomic_load(&sim->fail_run) <= 0;
            atomic_store(&sim->fail_run, 0);
            atomic_store(&sim->lost, false);
            assert_int_equal(status, fired ? TN_E_DEVICE_LOST : TN_OK);
            assert_int_equal(fired, n <= 6);
            assert_int_equal(tn_session_cache_usage(session).used, fired ? 0 : TOKENS);
            tn_session_clear(session);
            assert_ok(tn_session_decode(session, &batch));
            assert_memory_equal(want, tn_session_logits(session, 0), (size_t)g.n_vocab * sizeof *want);
        }
    }
    free(want);
    tn_session_free(session);
    tn_model_close(model);
    reference_free(&g);
}

typedef struct countdown {
    atomic_long calls; /* the last of them stops */
} countdown;
static bool stop_at_last(void *user) { return atomic_fetch_sub(&((countdown *)user)->calls, 1) <= 1; }

/* A prompt that is aborted at any of its callbacks ends at once, and none of its tokens stays. */
static void an_aborted_prompt_in_flight_leaves_nothing(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    tn_model *model;
    tn_session *session;
    char specs[3][96];
    countdown c;
    atomic_init(&c.calls, LONG_MAX);
    tn_session_params p = params(2, "aborted", 0, specs);
    p.abort = stop_at_last;
    p.user = &c;
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    const tn_batch batch = {.n_tokens = TOKENS, .tokens = g.tokens};
    const size_t row = (size_t)g.n_vocab * sizeof(float);
    atomic_store(&c.calls, LONG_MAX); /* planning and loading have asked too */
    assert_ok(tn_session_decode(session, &batch));
    float *want = memcpy(malloc(row), tn_session_logits(session, 0), row);
    const long asked = LONG_MAX - atomic_load(&c.calls), n_micro = (TOKENS + UBATCH - 1) / UBATCH;
    assert_true(asked >= 2 * n_micro); /* by each device for each micro-batch */
    for (long n = 1; n < asked; n += 1 + asked / 24) {
        tn_session_clear(session);
        atomic_store(&c.calls, n);
        assert_fails(TN_E_ABORTED, tn_session_decode(session, &batch));
        assert_int_equal(tn_session_cache_usage(session).used, 0);
        assert_int_equal(tn_session_output_count(session), 0);
        atomic_store(&c.calls, LONG_MAX);
        assert_ok(tn_session_decode(session, &batch));
        assert_memory_equal(want, tn_session_logits(session, 0), row);
    }
    free(want);
    tn_session_free(session);
    tn_model_close(model);
    reference_free(&g);
}

static tn_status make_and_use(void *golden) {
    const reference_model *g = golden;
    tn_model *model;
    tn_session *session = NULL;
    tn_session_params p = params(0, "flight", 0, NULL);
    p.devices[0] = "flight0";
    p.devices[1] = "flight1";
    p.split[0] = p.split[1] = 1;
    TN_TRY(tn_model_open(g->path, NULL, &model));
    tn_status status = tn_session_open(model, &p, &session);
    if (status == TN_OK) status = tn_session_decode(session, &(tn_batch){.n_tokens = 9, .tokens = g->tokens});
    tn_session_free(session);
    tn_model_close(model);
    return status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    reference_model g;
    if (!getenv("TENON_LONG")) skip();
    reference_load("llama-dense", &g);
    char specs[3][96];
    tn_device *device;
    (void)params(2, "flight", 0, specs);
    for (int d = 0; d < 2; d++) assert_ok(tn_device_find(specs[d], &device));
    check_every_allocation_failure(make_and_use, &g);
    reference_free(&g);
}

/* States of recurrent layers after any token of a prompt in flight: sequences that begin with them have the same
 * bits.
 */
static void checkpoints_in_flight_hold_their_states(void **state) {
    (void)state;
    char path[64], specs[2][3][96];
    snprintf(path, sizeof path, "/tmp/tenon-flight-%d.gguf", (int)getpid());
    const tiny_options options = {.arch = "mamba2", .layers = 4, .context = CTX, .vocab = 64};
    assert_ok(tiny_model_write(path, &options));
    tn_model *opened[2];
    tn_session *sessions[2];
    tn_token tokens[TOKENS];
    bool checkpoints[TOKENS] = {[1] = true, [3] = true, [12] = true, [15] = true, [16] = true};
    for (int i = 0; i < TOKENS; i++) tokens[i] = 3 + i * 7 % 50;
    for (int i = 0; i < 2; i++) {
        tn_session_params p = params(2, "state", i, specs[i]);
        p.n_prefixes = p.n_checkpoints = 8;
        assert_ok(tn_model_open(path, NULL, &opened[i]));
        make_exactly(opened[i], &p, &sessions[i]);
        assert_int_equal(runs_in_flight(sessions[i], true), i ? 1 : 4);
        int32_t taken;
        assert_ok(tn_session_prefix_take(sessions[i], 0, 0, tokens, 0, &taken));
    }
    both(sessions, (tn_batch){.n_tokens = TOKENS, .tokens = tokens, .checkpoints = checkpoints}, 64);
    for (int n = TOKENS; n > 1; n--) {
        int32_t taken[2], expected = n - 1, seqs[TOKENS];
        while (expected && !checkpoints[expected - 1]) expected--;
        for (int i = 0; i < TOKENS; i++) seqs[i] = 1;
        for (int i = 0; i < 2; i++) {
            assert_ok(tn_session_prefix_take(sessions[i], 1, 0, tokens, n - 1, &taken[i]));
            assert_int_equal(taken[i], expected);
        }
        both(sessions, (tn_batch){.n_tokens = n - expected, .tokens = tokens + expected, .seqs = seqs}, 64);
        for (int i = 0; i < 2; i++) assert_ok(tn_session_seq_remove(sessions[i], 1, 0, -1));
    }
    for (int i = 0; i < 2; i++) {
        tn_session_free(sessions[i]);
        tn_model_close(opened[i]);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_in_flight_hold_their_states),
        cmocka_unit_test(prompts_in_flight_give_the_same_bits),
        cmocka_unit_test(only_layers_on_several_devices_are_worth_it),
        cmocka_unit_test(tight_devices_go_without),
        cmocka_unit_test(a_prompt_in_flight_is_read_sooner),
        cmocka_unit_test(failures_in_flight_leave_nothing),
        cmocka_unit_test(an_aborted_prompt_in_flight_leaves_nothing),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return RUN_ON_TINY_MODELS(tests, NULL, NULL);
}
