/* The abort callback: wherever a call is stopped, what it leaves behind is what llm.h says, and the next call works.
 */
#include "models/tiny_models.h"
#include "support.h"

#include "base/checked.h"
#include "llm/plan/session_plan.h"
#include "llm/session_internal.h"
#include "tenon/llm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char model_path[64];
static atomic_int asked, stop_at; /* the callback returns true once, at this question; 0: never */

static bool stops_once(void *user) {
    (void)user;
    return atomic_fetch_add(&asked, 1) + 1 == atomic_load(&stop_at);
}
static void stop_at_question(int number) {
    atomic_store(&asked, 0);
    atomic_store(&stop_at, number);
}

static tn_session_params abort_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 128;
    p.n_batch = p.n_ubatch = 16;
    p.n_threads = 1;
    p.devices[0] = device;
    p.abort = stops_once;
    return p;
}

static tn_model *open_tiny_model(const tiny_options *options) {
    tn_model *model;
    assert_ok(tiny_model_write(model_path, options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    return model;
}

/* Planning asks at least once per graph, with few layers and with all of them. */
static void planning_can_be_stopped(void **state) {
    (void)state;
    static const int layers[] = {2, 20};
    for (size_t i = 0; i < TN__COUNT(layers); i++) {
        tn_model *model = open_tiny_model(&(tiny_options){.layers = layers[i]});
        tn_session_params p = abort_params("cpu");
        tn_session_plan *plan;
        stop_at_question(0);
        assert_ok(tn_session_plan_new(model, &p, &plan));
        const int questions = atomic_load(&asked);
        assert_true(questions >= (int)plan->n_covered - TN__REPORTED_GRAPHS && questions > 4);
        tn_session_plan_free(plan);
        for (int at = 1; at <= questions; at += TN__MAX(1, questions / 12)) {
            stop_at_question(at);
            assert_fails(TN_E_ABORTED, tn_session_plan_new(model, &p, &plan));
            assert_null(plan);
        }
        stop_at_question(0);
        assert_ok(tn_session_plan_new(model, &p, &plan));
        tn_session_plan_free(plan);
        tn_model_close(model);
    }
}

/* A long search for a packing asks as well. */
static void packing_can_be_stopped(void **state) {
    (void)state;
    enum { N = 120, DELAY = 24 };
    tn_sched *sched;
    const tn_pack_params exact = {.effort = TN_PACK_EXACT, .max_steps = 50000000};
    tn_sched_params sp = {.n_threads = 1, .devices = {"cpu"}, .abort = stops_once, .pack = &exact};
    tn_arena *arena;
    stop_at_question(0);
    assert_ok(tn_sched_new(&sp, &sched));
    assert_ok(tn_sched_check_abort(sched));
    stop_at_question(1);
    assert_fails(TN_E_ABORTED, tn_sched_check_abort(sched));
    assert_ok(tn_sched_check_abort(sched));
    /* Tensors of many sizes, each read a while after it was computed. */
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 21, .no_alloc = true}, &arena));
    tn_graph *graph;
    assert_ok(tn_graph_new(arena, 4 * N, &graph));
    tn_tensor *made[N], *input = tn_input(arena, TN_F32, 1);
    rng r = {7};
    for (int i = 0; i < N + DELAY; i++) {
        if (i < N) {
            const int64_t ne[TN_MAX_DIMS] = {100 + rng_below(&r, 4000), 1, 1, 1};
            made[i] = tn_repeat(arena, input, ne);
            assert_ok(tn_graph_add(graph, made[i]));
        }
        for (int k = TN__MAX(0, i - DELAY); k < i && k < N; k++) {
            if (!made[k] || (k > i - DELAY && rng_below(&r, 3))) continue;
            assert_ok(tn_graph_add(graph, tn_output(tn_sum(arena, made[k]))));
            made[k] = NULL;
        }
    }
    stop_at_question(0);
    assert_ok(tn_sched_cover(sched, graph));
    assert_true(atomic_load(&asked) > 0);
    tn_sched_reset(sched);
    stop_at_question(1);
    assert_fails(TN_E_ABORTED, tn_sched_cover(sched, graph));
    assert_ok(tn_sched_cover(sched, graph));
    tn_arena_free(arena);
    tn_sched_free(sched);
}

/* Loading asks between pieces, also while it checks the weights. Nothing stays loaded. */
static void loading_can_be_stopped(void **state) {
    (void)state;
    for (int checks = 0; checks < 2; checks++) {
        tn_model_close(open_tiny_model(NULL));
        tn_model *model;
        assert_ok(tn_model_open(model_path, &(tn_model_params){.check_weights = checks, .no_mmap = true}, &model));
        tn_session_params p = abort_params(checks ? "cpu" : "sim:64M,name=loads");
        tn_session_plan *plan;
        tn_session *session;
        int questions = 1;
        for (int at = 0; at <= questions; at += at ? TN__MAX(1, questions / 12) : 1) {
            stop_at_question(0);
            assert_ok(tn_session_plan_new(model, &p, &plan));
            if (!checks) p.devices[0] = "loads";
            stop_at_question(at);
            tn_status status = tn_session_new(plan, &session);
            if (at) {
                assert_int_equal(status, TN_E_ABORTED);
                assert_null(session);
                assert_false(model->loaded);
                assert_int_equal(model->n_buffers, 0);
            } else {
                assert_ok(status);
                questions = atomic_load(&asked);
                assert_true(questions > 10);
                tn_session_free(session);
                tn_session_plan_free(plan);
                tn_model_close(model);
                assert_ok(
                    tn_model_open(model_path, &(tn_model_params){.check_weights = checks, .no_mmap = true}, &model));
                continue;
            }
            tn_session_plan_free(plan);
        }
        stop_at_question(0);
        assert_ok(tn_session_open(model, &p, &session));
        tn_session_free(session);
        tn_model_close(model);
    }
}

/* ---- Queued steps ---- */

static tn_status greedy_step(tn_session *session, tn_token *token) {
    TN_TRY(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = token, .argmax = true}));
    *token = tn_session_argmax(session, 0);
    return TN_OK;
}

/* Wherever a greedy loop is stopped, at a step or at one that is queued, the step can be repeated: the tokens are the
 * same, and steps are queued again. */
static void a_stopped_queued_step_is_queued_again(void **state) {
    (void)state;
    enum { STEPS = 12 };
    tn_model *model = open_tiny_model(NULL);
    tn_session_params p = abort_params("sim:64M,name=greedy");
    tn_session *session;
    tn_token want[STEPS + 1] = {1};
    stop_at_question(0);
    assert_ok(tn_session_open(model, &p, &session));
    assert_true(session->queued.possible);
    stop_at_question(0);
    for (int i = 0; i < STEPS; i++) {
        want[i + 1] = want[i];
        assert_ok(greedy_step(session, &want[i + 1]));
    }
    const int questions = atomic_load(&asked);
    assert_true(questions > STEPS);
    int failed = 0, silent = 0;
    for (int at = 1; at <= questions; at++) {
        tn_session_clear(session);
        stop_at_question(at);
        bool stopped = false;
        for (int i = 0; i < STEPS; i++) {
            tn_token token = want[i];
            tn_status status = greedy_step(session, &token);
            if (status != TN_OK) {
                assert_int_equal(status, TN_E_ABORTED);
                assert_false(stopped);
                stopped = true;
                assert_int_equal(tn_session_cache_usage(session).used, i);
                token = want[i];
                assert_ok(greedy_step(session, &token));
            }
            assert_int_equal(token, want[i + 1]);
        }
        failed += stopped;
        silent += !stopped;
        /* A queued loop runs one step more than was requested. */
        stop_at_question(0);
        tn_session_clear(session);
        const uint64_t runs = tn_session_get_stats(session).sched.runs;
        tn_token token = 1;
        for (int i = 0; i < 5; i++) assert_ok(greedy_step(session, &token));
        assert_int_equal(tn_session_get_stats(session).sched.runs - runs, 6);
    }
    assert_true(failed > 0 && silent > 0); /* some were at steps that nobody had requested yet */
    tn_session_free(session);
    tn_model_close(model);
}

static int make_model_path(void **state) {
    (void)state;
    strcpy(model_path, "/tmp/tenon-abort-XXXXXX");
    int file = mkstemp(model_path);
    if (file >= 0) close(file);
    return file < 0;
}
static int remove_model_path(void **state) {
    (void)state;
    return unlink(model_path);
}

/* A state is saved as a whole or not at all; a load that is stopped leaves the sequence empty. */
static void saving_and_loading_a_state_can_be_stopped(void **state) {
    (void)state;
    tn_model *model = open_tiny_model(&(tiny_options){.layers = 3});
    tn_session_params p = abort_params("cpu");
    tn_session *session;
    size_t size;
    stop_at_question(0);
    assert_ok(tn_session_open(model, &p, &session));
    const tn_token tokens[] = {1, 2, 3, 4, 5};
    const tn_batch batch = {.n_tokens = 5, .tokens = tokens};
    assert_ok(tn_session_decode(session, &batch));
    assert_ok(tn_session_state_size(session, 0, &size));
    char *bytes = malloc(size);
    stop_at_question(0);
    assert_ok(tn_session_state_get(session, 0, bytes, size));
    const int questions = atomic_load(&asked);
    assert_true(questions >= 3 * 2);
    for (int at = 1; at <= questions; at++) {
        stop_at_question(at);
        assert_fails(TN_E_ABORTED, tn_session_state_get(session, 0, bytes, size));
        stop_at_question(0);
        assert_ok(tn_session_state_get(session, 0, bytes, size));
        stop_at_question(at);
        assert_fails(TN_E_ABORTED, tn_session_state_set(session, 0, bytes, size));
        assert_int_equal(tn_session_cache_usage(session).used, 0);
        stop_at_question(0);
        assert_ok(tn_session_state_set(session, 0, bytes, size));
        assert_int_equal(tn_session_cache_usage(session).used, 5);
    }
    free(bytes);
    tn_session_free(session);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_can_be_stopped),
        cmocka_unit_test(packing_can_be_stopped),
        cmocka_unit_test(loading_can_be_stopped),
        cmocka_unit_test(a_stopped_queued_step_is_queued_again),
        cmocka_unit_test(saving_and_loading_a_state_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, make_model_path, remove_model_path);
}
