/* Session plans: what they cover, and how they relate to models, sessions and each other. */
#include "plan_case.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/plan/cover.h"
#include "llm/plan/session_plan.h"
#include "sched_case.h"

static size_t bytes_on(const tn_fit_device *d) { return d->weights + d->cache + d->compute + d->scratch; }

/* A simulated device has one size per name: tests take what is left on one that was made larger. */
static void set_size(const char *name, size_t bytes) {
    tn__sim *sim = sim_of(name);
    sim->size = sim->limit = sim->memory->size = bytes;
}

/* ---- Shapes ---- */

static bool has_shape(const tn__shape *shapes, size_t n, tn__shape wanted) {
    for (size_t i = 0; i < n; i++)
        if (shapes[i].kind == wanted.kind && shapes[i].n_tokens == wanted.n_tokens &&
            shapes[i].n_outputs == wanted.n_outputs)
            return true;
    return false;
}

/* The list has the shape of every micro-batch, for micro-batches of any size, and nothing twice. */
static void the_list_has_every_shape(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 5, 8, 9, 37, 64, 100, 500, 512, 2000, 5000}, outputs[] = {0, 1, 70, 100000};
    tn_model *model = open_tiny(&(tiny_options){.context = 8192});
    for (size_t i = 0; i < TN__COUNT(sizes) * TN__COUNT(outputs) * 2; i++) {
        tn_session_plan plan = {.model = model, .params = small_params("cpu")};
        tn__device_plan device = {0};
        assert_ok(tn_device_find("cpu", &device.device));
        plan.devices = &device;
        plan.params.n_ubatch = plan.params.n_batch = sizes[i % TN__COUNT(sizes)];
        plan.params.n_outputs = TN__MIN(outputs[i / TN__COUNT(sizes) % TN__COUNT(outputs)], plan.params.n_batch);
        if (!plan.params.n_outputs) plan.params.n_outputs = TN__MIN(3, plan.params.n_batch);
        plan.params.embeddings = i >= TN__COUNT(sizes) * TN__COUNT(outputs);
        plan.params.pooling = i % 2 ? TN_POOLING_LAST : TN_POOLING_MEAN;
        tn__shape *shapes;
        size_t n;
        assert_ok(tn__shapes_list(&plan, &shapes, &n));
        assert_true(n < 1500);
        for (size_t k = 1; k < n; k++) {
            assert_false(has_shape(shapes, k, shapes[k]));
            assert_true(shapes[k].n_tokens <= shapes[k - 1].n_tokens || tn__moves_cells(shapes[k]));
        }
        for (int32_t tokens = 1; tokens <= plan.params.n_ubatch; tokens++) {
            int32_t padded = tn__round_tokens(tokens, plan.params.n_ubatch);
            assert_true(padded >= tokens && padded <= tokens + TN__MAX(31, tokens / 16));
            for (int32_t wanted = 1; wanted <= TN__MIN(tokens, plan.params.n_outputs);
                 wanted += wanted < 130 ? 1 : 61) {
                tn__shape shape = {tn__token_graph_kind(&plan.params), padded,
                                   tn__outputs_for(&plan.params, wanted, padded), 0};
                assert_true(has_shape(shapes, n, shape));
                shape.kind = TN__GRAPH_ARGMAX;
                assert_true(plan.params.embeddings || has_shape(shapes, n, shape));
            }
        }
        tn_free(shapes);
    }
    tn_model_close(model);
}

/* Models of many layers are planned from few of them. On devices of exactly the planned size, with offloading and a
 * largest allocation, every number of tokens is served. */
static void few_layers_stand_for_all(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "qwen3moe"};
    static const char *const specs[] = {"sim:1G,name=many", "sim:1G,offload=1,name=offloads"};
    for (size_t i = 0; i < 2 * TN__COUNT(archs); i++) {
        const char *spec = specs[i % 2], *name = strstr(spec, "name=") + 5;
        tn_session_params p = small_params(spec);
        p.n_outputs = UBATCH;
        p.n_gpu_layers = i % 2 ? 9 : -1;
        tn_device *device;
        assert_ok(tn_device_find(spec, &device));
        set_size(name, 1 << 30);
        tn_model *model = open_tiny(&(tiny_options){.arch = archs[i / 2], .layers = 20, .context = 256, .ffn = 512});
        tn_session_plan *plan;
        tn_fit fit;
        assert_ok(tn_session_plan_new(model, &p, &plan));
        assert_true(plan->layers[0].n + plan->layers[1].n < 20);
        assert_ok(tn_session_plan_fit(plan, &fit));
        set_size(name, bytes_on(&fit.devices[0]));
        tn_session *session;
        assert_ok(tn_session_new(plan, &session));
        for (int32_t n = 1; n <= UBATCH; n++)
            for (int kind = n % 2; kind < 4; kind += 2) decode_n(session, n, kind & 1, kind & 2);
        tn_fit after;
        assert_ok(tn_session_memory(session, &after));
        for (size_t d = 0; d < fit.n_devices; d++)
            assert_int_equal(bytes_on(&fit.devices[d]), bytes_on(&after.devices[d]));
        assert_int_equal(used_on(name), bytes_on(&fit.devices[0]));
        tn_fit_free(&after);
        tn_fit_free(&fit);
        tn_session_free(session);
        tn_session_plan_free(plan);
        tn_model_close(model);
    }
}

/* Whether covering a shape once more needs nothing: no plan, and no byte. */
static bool is_covered(tn_session_plan *plan, tn__shape shape) {
    tn_sched_memory before[4], after[4];
    tn__graph_set *set;
    assert_ok(tn__graph_new(plan, shape, &set));
    if (!set) return true;
    assert_ok(tn_sched_needs(plan->sched, before));
    const uint64_t plans = tn_sched_get_stats(plan->sched).plans_made;
    const bool in_flight = tn__shape_in_flight(plan, shape);
    assert_ok(tn_sched_set_in_flight(plan->sched, in_flight ? plan->params.n_pipeline : 1));
    assert_ok(tn_sched_cover(plan->sched, set->graph));
    assert_ok(tn_sched_set_in_flight(plan->sched, 1));
    assert_ok(tn_sched_needs(plan->sched, after));
    bool covered = tn_sched_get_stats(plan->sched).plans_made == plans;
    for (size_t d = 0; d < plan->placement.n_devices; d++)
        covered = covered && before[d].compute == after[d].compute && before[d].scratch == after[d].scratch;
    tn__graph_free(plan, set);
    return covered;
}

/* Shapes that were not covered themselves, because few layers said so, are covered with all layers. */
static void shapes_that_were_left_out_are_covered(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "qwen3moe"};
    static const char *const devices[][2] = {{"cpu"},
                                             {"sim:1G,name=walk0"},
                                             {"sim:1G,offload=1,max-alloc=4M,name=walk1"},
                                             {"walk0", "walk1"},
                                             {"cuda:h200"}};
    for (size_t i = 0; i < TN__COUNT(archs) * TN__COUNT(devices); i++) {
        const char *const *names = devices[i / TN__COUNT(archs)];
        tn_device *device;
        if (tn_device_find(names[0], &device) != TN_OK) continue; /* no CUDA here */
        if (!getenv("TENON_LONG") && (i + i / TN__COUNT(archs)) % TN__COUNT(archs) == 2)
            continue; /* two of them each */
        tn_model *model = open_tiny(
            &(tiny_options){.arch = archs[i % TN__COUNT(archs)], .layers = 40, .context = 2048, .ffn = 256});
        tn_session_params p = small_params(tn_device_name(device));
        p.devices[1] = names[1];
        p.split[0] = p.split[1] = names[1] != NULL;
        p.n_ctx = p.n_batch = 2048;
        p.n_ubatch = 512;
        p.n_outputs = i % 2 ? 3 : 512;
        p.n_gpu_layers = names[1] ? 1000 : 13;
        tn_session_plan *plan;
        tn__shape *shapes;
        size_t n;
        assert_ok(tn_session_plan_new(model, &p, &plan));
        assert_ok(tn__shapes_list(plan, &shapes, &n));
        assert_true(plan->n_covered < n); /* otherwise nothing was left out */
        for (size_t k = 0; k < n; k++)
            if (!is_covered(plan, shapes[k]))
                fail_msg("%s on %s: kind %d, %d tokens, %d outputs is not covered", archs[i % TN__COUNT(archs)],
                         names[0], (int)shapes[k].kind, shapes[k].n_tokens, shapes[k].n_outputs);
        tn_free(shapes);
        tn_session_plan_free(plan);
        tn_model_close(model);
    }
}

/* ---- Plans and sessions ---- */

static void a_plan_makes_one_session_and_either_may_end_first(void **state) {
    (void)state;
    tn_model *model = open_tiny(NULL);
    tn_session_params p = small_params("cpu");
    tn_session_plan *plan;
    tn_session *session, *second;
    tn_fit fit;
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_new(plan, &session));
    assert_fails(TN_E_STATE, tn_session_new(plan, &second));
    assert_null(second);
    decode_n(session, 7, false, false);
    tn_session_free(session); /* the plan stays, its figures too */
    const tn_plan *graph;
    assert_ok(tn_session_plan_fit(plan, &fit));
    assert_true(fit.devices[0].compute > 0);
    tn_fit_free(&fit);
    assert_fails(TN_E_STATE, tn_session_plan_graph(plan, true, 0, &graph, NULL));
    assert_fails(TN_E_STATE, tn_session_new(plan, &second));
    tn_session_plan_free(plan);

    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_new(plan, &session));
    tn_session_plan_free(plan); /* the session keeps it */
    decode_n(session, UBATCH, true, false);
    assert_ok(tn_session_plan_fit(tn_session_get_plan(session), &fit));
    tn_fit_free(&fit);
    tn_session_free(session);
    tn_model_close(model);
}

/* The weights of a loaded model are there: a second session needs the rest only. */
static void a_second_session_plans_only_what_it_adds(void **state) {
    (void)state;
    const char *spec = "sim:1G,name=adds";
    tn_session_params p = small_params(spec);
    tn_model *model = open_tiny(&(tiny_options){.type = TN_F16});
    tn_session_plan *first, *second;
    tn_session *sessions[2], *late;
    tn_fit a, b;
    assert_ok(tn_session_plan_new(model, &p, &first));
    tn_session_plan *stale;
    assert_ok(tn_session_plan_new(model, &p, &stale));
    assert_ok(tn_session_new(first, &sessions[0]));
    assert_fails(TN_E_STATE, tn_session_new(stale, &late)); /* the weights are loaded by another plan */
    tn_session_plan_free(stale);
    p.devices[0] = "adds";
    assert_ok(tn_session_plan_fit(first, &a));
    size_t used = used_on("adds");
    assert_int_equal(used, bytes_on(&a.devices[0]));
    assert_ok(tn_session_plan_new(model, &p, &second));
    assert_ok(tn_session_plan_fit(second, &b));
    const size_t adds = bytes_on(&b.devices[0]) - b.devices[0].weights;
    set_size("adds", used + adds);
    assert_ok(tn_session_new(second, &sessions[1]));
    assert_int_equal(used_on("adds"), used + adds);
    set_size("adds", 1 << 30);
    for (int i = 0; i < 2; i++) {
        decode_n(sessions[i], 9, false, false);
        tn_session_free(sessions[i]);
    }
    tn_fit_free(&a);
    tn_fit_free(&b);
    tn_session_plan_free(first);
    tn_session_plan_free(second);
    tn_model_close(model);
}

/* A plan reserves nothing. If memory has shrunk since, the message has both figures, and nothing is taken. */
static void shrunk_memory_is_refused_with_both_figures(void **state) {
    (void)state;
    tn_session_params p = small_params("sim:1G,name=shrinks");
    p.n_gpu_layers = 1000;
    tn_model *model = open_tiny(NULL);
    tn_session_plan *plan;
    tn_session *session;
    tn_fit fit;
    char needed[32], available[32];
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_true(tn_session_plan_fits(plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    snprintf(needed, sizeof needed, "%zu", bytes_on(&fit.devices[0]));
    snprintf(available, sizeof available, "%zu", bytes_on(&fit.devices[0]) - 1);
    set_size("shrinks", bytes_on(&fit.devices[0]) - 1);
    assert_fails(TN_E_TOO_BIG, tn_session_new(plan, &session));
    assert_non_null(strstr(tn_error(), needed));
    assert_non_null(strstr(tn_error(), available));
    assert_int_equal(used_on("shrinks"), 0);
    set_size("shrinks", bytes_on(&fit.devices[0]));
    assert_ok(tn_session_new(plan, &session)); /* the plan was not used up */
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_fit_free(&fit);
    tn_model_close(model);
}

/* ---- Host memory and text ---- */

static void host_memory_is_planned_as_well(void **state) {
    (void)state;
    for (int embeddings = 0; embeddings < 2; embeddings++) {
        tn_model *model = open_tiny(NULL);
        tn_session_params p = small_params("sim:1G,name=host");
        p.embeddings = embeddings;
        p.pooling = TN_POOLING_MEAN;
        tn_session_plan *plan, *smaller;
        tn_session *session;
        tn_fit fit, taken;
        assert_ok(tn_session_plan_new(model, &p, &plan));
        assert_ok(tn_session_plan_fit(plan, &fit));
        p.devices[0] = "host";
        p.n_ctx = UBATCH;
        p.n_ubatch = 8;
        assert_ok(tn_session_plan_new(model, &p, &smaller));
        char *text;
        assert_ok(tn_session_plan_compare(plan, plan, &text));
        assert_string_equal(text ? text : "", "");
        tn_free(text);
        assert_ok(tn_session_plan_compare(plan, smaller, &text));
        assert_non_null(strstr(text, "host cache: "));
        assert_non_null(strstr(text, "cpu staging: "));
        tn_free(text);
        tn_session_plan_free(smaller);
        assert_ok(tn_session_new(plan, &session));
        assert_ok(tn_session_memory(session, &taken));
        assert_true(fit.devices[1].staging > 0);
        for (size_t d = 0; d < 2; d++) {
            assert_int_equal(fit.devices[d].staging, taken.devices[d].staging);
            assert_int_equal(fit.devices[d].own, taken.devices[d].own);
            assert_true(fit.devices[d].in_order >= fit.devices[d].lower_bound);
        }
        char table[2048] = "";
        FILE *out = fmemopen(table, sizeof table, "w");
        assert_ok(tn_session_plan_print(plan, out));
        fclose(out);
        assert_non_null(strstr(table, "staging"));
        assert_non_null(strstr(table, "host "));
        tn_fit_free(&fit);
        tn_fit_free(&taken);
        tn_session_free(session);
        tn_session_plan_free(plan);
        tn_model_close(model);
    }
}

/* The printed speeds are those that are predicted; without rates of the device there are none. */
static void predicted_speeds_are_printed(void **state) {
    (void)state;
    tn_model *model = open_tiny(NULL);
    const tn_session_params p = small_params("cpu");
    tn_session_plan *plan;
    tn_device *cpu;
    tn_session_speed speed;
    char table[2048] = "", expected[128];
    const tn_device_speed rates = tn_speed_from_rates(&(tn_device_rates){.read = 1e10, .f32 = 1e11});
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_device_set_speed(cpu, p.n_threads, &rates));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_predict(plan, &(tn_session_speed_params){.prompt = p.n_ubatch}, &speed));
    assert_true(speed.prefill > speed.decode);
    FILE *out = fmemopen(table, sizeof table, "w");
    assert_ok(tn_session_plan_print(plan, out));
    fclose(out);
    snprintf(expected, sizeof expected, "fits\npredicted: prefill %.1f tokens/s, decode %.1f tokens/s\n",
             speed.prefill, speed.decode);
    assert_non_null(strstr(table, expected));
    assert_ok(tn_device_set_speed(cpu, p.n_threads, NULL));
    tn_session_plan_free(plan);
    tn_model_close(model);
}

/* ---- Abort ---- */

static int asked, stop_at;
static bool stops(void *user) {
    (void)user;
    return ++asked == stop_at;
}

/* Wherever a prompt of several micro-batches is stopped, none of its tokens is in the cache, and the same prompt then
 * gives the same logits. A shift that is stopped loses at most what it was moving. */
static void an_aborted_call_leaves_a_session_that_works(void **state) {
    (void)state;
    enum { N = 3 * UBATCH };
    tn_model *model = open_tiny(&(tiny_options){.context = 512});
    tn_session_params p = small_params("cpu");
    p.n_ctx = 512;
    p.n_batch = N;
    p.abort = stops;
    tn_session *session;
    tn_token tokens[N];
    float want[64];
    for (int i = 0; i < N; i++) tokens[i] = i % 60;
    const tn_batch batch = {.n_tokens = N, .tokens = tokens};
    stop_at = 0;
    assert_ok(tn_session_open(model, &p, &session));
    asked = 0;
    assert_ok(tn_session_decode(session, &batch));
    const int questions = asked;
    assert_true(questions >= 3);
    memcpy(want, tn_session_logits(session, 0), sizeof want);
    for (int at = 1; at <= questions; at += TN__MAX(1, questions / 16)) {
        tn_session_clear(session);
        asked = 0;
        stop_at = at;
        assert_fails(TN_E_ABORTED, tn_session_decode(session, &batch));
        assert_int_equal(tn_session_cache_usage(session).used, 0);
        stop_at = 0;
        assert_ok(tn_session_decode(session, &batch));
        assert_memory_equal(want, tn_session_logits(session, 0), sizeof want);
        asked = 0;
        stop_at = 1;
        assert_fails(TN_E_ABORTED, tn_session_seq_shift(session, 0, 0, -1, 5));
        stop_at = 0;
        assert_int_equal(tn_session_cache_usage(session).used, 0); /* all of them fit one run */
    }
    tn_session_free(session);
    tn_model_close(model);
}

/* ---- Predicted speed ---- */

static tn_session_speed predicted(const tn_session_plan *plan, tn_session_speed_params params) {
    tn_session_speed speed;
    assert_ok(tn_session_plan_predict(plan, &params, &speed));
    return speed;
}

/* The mean depth counts: half of the tokens generated, and half of the micro-batches of a prompt before the last. */
static void predictions_are_made_at_the_mean_depth(void **state) {
    (void)state;
    tn_model *model = open_tiny(&(tiny_options){.context = 1024});
    tn_session_params p = small_params("sim:64M,read=1000000000,f16=100000000000,launch=1us,name=rated");
    tn_session_plan *plan;
    tn_session_speed speed;
    p.n_ctx = 1024;
    p.n_seqs = 1;
    p.n_gpu_layers = 1000;
    assert_ok(tn_session_plan_new(model, &p, &plan));
    const tn_session_speed first = predicted(plan, (tn_session_speed_params){.prompt = UBATCH}),
                           deep = predicted(plan, (tn_session_speed_params){.depth = 500});
    assert_true(first.prefill > 0 && first.decode > 0 && first.prefill > first.decode);
    assert_true(first.prefill == UBATCH / first.prefill_run.seconds && first.decode == 1 / first.decode_run.seconds);
    assert_true(deep.prefill == 0 && deep.decode < first.decode && deep.depth == 500);
    speed = predicted(plan, (tn_session_speed_params){.depth = 490, .generate = 20});
    assert_true(speed.decode == deep.decode);
    speed = predicted(plan, (tn_session_speed_params){.prompt = UBATCH / 2});
    assert_true(speed.prefill == first.prefill && speed.prompt == UBATCH / 2);
    const tn_session_speed third = predicted(plan, (tn_session_speed_params){.prompt = UBATCH, .depth = UBATCH});
    assert_true(third.prefill < first.prefill);
    for (int32_t prompt = 2 * UBATCH + 1; prompt <= 3 * UBATCH; prompt += UBATCH - 1) {
        speed = predicted(plan, (tn_session_speed_params){.prompt = prompt});
        assert_true(speed.prefill == third.prefill);
    }
    for (int i = 0; i < 3; i++)
        assert_fails(TN_E_INVALID, tn_session_plan_predict(plan,
                                                           &(tn_session_speed_params){.prompt = i == 0 ? -1 : 8,
                                                                                      .depth = i == 1 ? -1 : 0,
                                                                                      .generate = i == 2 ? -1 : 0},
                                                           &speed));
    tn_session_plan_free(plan);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_has_every_shape),
        cmocka_unit_test(few_layers_stand_for_all),
        cmocka_unit_test(shapes_that_were_left_out_are_covered),
        cmocka_unit_test(a_plan_makes_one_session_and_either_may_end_first),
        cmocka_unit_test(a_second_session_plans_only_what_it_adds),
        cmocka_unit_test(shrunk_memory_is_refused_with_both_figures),
        cmocka_unit_test(host_memory_is_planned_as_well),
        cmocka_unit_test(predicted_speeds_are_printed),
        cmocka_unit_test(an_aborted_call_leaves_a_session_that_works),
        cmocka_unit_test(predictions_are_made_at_the_mean_depth),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
