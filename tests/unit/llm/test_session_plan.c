/* Session plans: what they cover, and how they relate to models, sessions and each other. */
#include "models/tiny_models.h"
#include "support.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/plan/cover.h"
#include "llm/plan/saved.h"
#include "llm/plan/session_plan.h"
#include "sched_case.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UBATCH = 64 };

static char model_path[64];

static tn_session_params small_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 2 * UBATCH;
    p.n_batch = p.n_ubatch = UBATCH;
    p.n_seqs = 2;
    p.n_threads = 1;
    p.devices[0] = device;
    return p;
}

static tn_model *open_tiny(const tiny_options *options) {
    tn_model *model;
    assert_ok(tiny_model_write(model_path, options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    return model;
}

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
                                   tn__outputs_for(&plan.params, wanted, padded)};
                assert_true(has_shape(shapes, n, shape));
                shape.kind = TN__GRAPH_ARGMAX;
                assert_true(plan.params.embeddings || has_shape(shapes, n, shape));
            }
        }
        tn_free(shapes);
    }
    tn_model_close(model);
}

static void decode_n(tn_session *session, int32_t n, bool argmax, bool all) {
    tn_token tokens[UBATCH];
    bool outputs[UBATCH];
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = (5 * i + n) % 60;
        outputs[i] = all || i + 1 == n;
    }
    tn_session_clear(session);
    assert_ok(tn_session_decode(session,
                                &(tn_batch){.n_tokens = n, .tokens = tokens, .outputs = outputs, .argmax = argmax}));
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

/* ---- Saved plans ---- */

static char plan_path[80];

static size_t read_plan_file(unsigned char *bytes, size_t most) {
    FILE *file = fopen(plan_path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, most, file);
    fclose(file);
    return n;
}
static void write_plan_file(const unsigned char *bytes, size_t n) {
    FILE *file = fopen(plan_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

static void save_plan(tn_model *model, const tn_session_params *p) {
    tn_session_plan *plan;
    assert_ok(tn_session_plan_new(model, p, &plan));
    assert_ok(tn_session_plan_save(plan, plan_path));
    tn_session_plan_free(plan);
}

static void saved_plans_are_loaded_and_used(void **state) {
    (void)state;
    for (int many = 0; many < 2; many++) {
        tn_model *model = open_tiny(&(tiny_options){.layers = many ? 20 : 3, .arch = many ? "gemma2" : "llama"});
        tn_session_params p =
            small_params(many ? "sim:1G,offload=1,name=saved1" : "sim:1G,max-alloc=256K,name=saved0");
        p.n_gpu_layers = 2;
        tn_session_plan *planned, *loaded;
        tn_session *session;
        char *text, report[512] = "";
        save_plan(model, &p);
        p.devices[0] = many ? "saved1" : "saved0";
        assert_ok(tn_session_plan_new(model, &p, &planned));
        assert_ok(tn_session_plan_load(model, &p, plan_path, &loaded));
        assert_ok(tn_session_plan_compare(planned, loaded, &text));
        assert_string_equal(text ? text : "", "");
        tn_free(text);
        const tn_sched_stats stats = tn_sched_get_stats(loaded->sched);
        assert_true(stats.plans_adopted > 0 && loaded->adopted && !planned->adopted);
        if (!many) assert_int_equal(stats.plans_made, 0); /* with more layers, shapes are compared */
        FILE *out = fmemopen(report, sizeof report, "w");
        assert_ok(tn_session_plan_verify(model, &p, plan_path, out));
        fclose(out);
        assert_non_null(strstr(report, "none overlap"));
        assert_ok(tn_session_new(loaded, &session));
        for (int32_t n = 1; n <= UBATCH; n += 3) decode_n(session, n, n % 2, false);
        tn_session_plan *late;
        assert_fails(TN_E_UNSUPPORTED, tn_session_plan_load(model, &p, plan_path, &late)); /* it is loaded now */
        assert_fails(TN_E_STATE, tn_session_plan_save(loaded, plan_path));
        tn_session_free(session);
        tn_session_plan_free(loaded);
        tn_session_plan_free(planned);
        tn_model_close(model);
    }
}

static void stale_plans_are_refused_with_the_reason(void **state) {
    (void)state;
    tn_model *model = open_tiny(NULL), *other;
    tn_session_params p = small_params("sim:1G,name=stale"), q;
    tn_session_plan *plan;
    save_plan(model, &p);
    p.devices[0] = "stale";
    q = p;
    q.n_ctx++;
    assert_fails(TN_E_STATE, tn_session_plan_load(model, &q, plan_path, &plan));
    assert_non_null(strstr(tn_error(), "other parameters"));
    assert_null(plan);
    q = p;
    q.devices[0] = "cpu";
    assert_fails(TN_E_STATE, tn_session_plan_load(model, &q, plan_path, &plan));
    assert_non_null(strstr(tn_error(), "other devices"));
    char other_path[80];
    snprintf(other_path, sizeof other_path, "%s.other", model_path);
    assert_ok(tiny_model_write(other_path, &(tiny_options){.ffn = 96}));
    assert_ok(tn_model_open(other_path, NULL, &other));
    assert_fails(TN_E_STATE, tn_session_plan_load(other, &p, plan_path, &plan));
    assert_non_null(strstr(tn_error(), "another model"));
    tn_model_close(other);
    unlink(other_path);
    /* Less memory is no reason: the plan is there, and does not fit. */
    assert_fails(TN_E_IO, tn_session_plan_load(model, &p, "/nonexistent/plan", &plan));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_fails(TN_E_IO, tn_session_plan_save(plan, "/nonexistent/plan"));
    tn_session_plan_free(plan);
    tn_model_close(model);
}

/* Logits of a session that is made from the plan, which is freed. */
static void logits_with(tn_session_plan *plan, float logits[64]) {
    tn_session *session;
    assert_ok(tn_session_new(plan, &session));
    decode_n(session, 7, false, false);
    memcpy(logits, tn_session_logits(session, 0), 64 * sizeof *logits);
    tn_session_free(session);
    tn_session_plan_free(plan);
}

/* No file, however damaged, is accepted or leads astray. With the checksum made right again the content is checked:
 * what is accepted then is a valid plan. */
static void damaged_plans_are_refused(void **state) {
    (void)state;
    static unsigned char bytes[1 << 20], changed[1 << 20];
    tn_model *model = open_tiny(&(tiny_options){.layers = 1});
    tn_session_params p = small_params("cpu");
    p.n_ubatch = 2;
    tn_session_plan *plan;
    float want[64], got[64];
    save_plan(model, &p);
    const size_t n = read_plan_file(bytes, sizeof bytes);
    assert_true(n > 200 && n < sizeof bytes);
    const size_t step = n / 61;
    int accepted = 0;
    for (size_t length = 0; length < n; length += length < 128 ? 7 : step) {
        write_plan_file(bytes, length);
        assert_int_not_equal(tn_session_plan_load(model, &p, plan_path, &plan), TN_OK);
        assert_null(plan);
    }
    for (size_t at = 0; at + 8 < n; at += at < 256 ? 5 : step + 3) {
        for (int right = 0; right < 2; right++) {
            memcpy(changed, bytes, n);
            changed[at] ^= right ? 0x81 : 0x10;
            uint64_t sum = tn__hash_bytes(changed, n - 8, bytes[8]); /* the version of the format */
            for (int i = 0; right && i < 8; i++) changed[n - 8 + (size_t)i] = (unsigned char)(sum >> 8 * i);
            write_plan_file(changed, n);
            tn_status status = tn_session_plan_load(model, &p, plan_path, &plan);
            if (!right && at >= 16) assert_int_equal(status, TN_E_CHECKSUM);
            if (!right || at < 16) assert_int_not_equal(status, TN_OK);
            if (status != TN_OK) continue;
            accepted++;
            logits_with(plan, got);
            tn_model_close(model); /* the next plan is for a model that is not loaded */
            assert_ok(tn_model_open(model_path, NULL, &model));
            if (accepted == 1) memcpy(want, got, sizeof want);
            assert_memory_equal(want, got, sizeof want);
        }
    }
    write_plan_file(bytes, n);
    assert_ok(tn_session_plan_load(model, &p, plan_path, &plan));
    logits_with(plan, got);
    if (accepted) assert_memory_equal(want, got, sizeof want);
    tn_model_close(model);
}

/* Changes to the content of a plan that is otherwise in order. */
typedef struct forgery {
    const char *reason; /* part of the message */
    void (*change)(tn__saved_plan *s);
} forgery;

static tn_plan_offset *planned_entry(tn__saved_graph *g, size_t number) {
    for (uint64_t i = 0; i < g->n_entries; i++)
        if (g->entries[i].memory >= 0 && g->entries[i].size && !number--) return &g->entries[i];
    fail_msg("the graph has too few tensors");
    return NULL;
}
static void forge_without_last_graph(tn__saved_plan *s) { tn_free(s->graphs[--s->n_graphs].entries); }
static void forge_without_second_graph(tn__saved_plan *s) {
    tn_free(s->graphs[1].entries);
    s->n_graphs--;
    memmove(&s->graphs[1], &s->graphs[2], (size_t)(s->n_graphs - 1) * sizeof *s->graphs);
    for (uint64_t i = 1; i < s->n_graphs; i++) s->graphs[i].same_as -= s->graphs[i].same_as > 1;
}
static void forge_further_graph(tn__saved_plan *s) { s->graphs[s->n_graphs++] = (tn__saved_graph){.same_as = 0}; }
static void forge_shape(tn__saved_plan *s) { s->graphs[2].shape.n_outputs++; }
static void forge_fingerprint(tn__saved_plan *s) { s->graphs[2].print.hi++; }
static void forge_class(tn__saved_plan *s) { /* graphs that move cells have another structure than the first */
    tn__saved_graph *g = &s->graphs[s->n_graphs - 1];
    g->same_as = g->n_entries = 0;
}
static void forge_overlap(tn__saved_plan *s) { /* of tensors of the first node's inputs and of its result */
    tn__saved_graph *g = &s->graphs[0];
    for (uint64_t i = 0; i < g->n_entries; i++)
        if (g->entries[i].memory >= 0) g->entries[i].chunk = 0, g->entries[i].offset = 0;
}
static void forge_alignment(tn__saved_plan *s) { planned_entry(&s->graphs[0], 0)->offset += 1; }
static void forge_odd_size(tn__saved_plan *s) { planned_entry(&s->graphs[0], 0)->size += 1; }
static void forge_small_size(tn__saved_plan *s) { planned_entry(&s->graphs[0], 3)->size = 0; }
static void forge_memory(tn__saved_plan *s) { planned_entry(&s->graphs[0], 3)->memory = -1; }
static void forge_chunk(tn__saved_plan *s) { planned_entry(&s->graphs[0], 3)->chunk = UINT32_MAX; }
static void forge_far_offset(tn__saved_plan *s) { planned_entry(&s->graphs[0], 3)->offset = SIZE_MAX / 4 & ~4095ul; }
static void forge_far_chunk(tn__saved_plan *s) { planned_entry(&s->graphs[0], 3)->chunk = 9; }
static void forge_fewer_tensors(tn__saved_plan *s) { s->graphs[0].n_entries--; }
static void forge_figures(tn__saved_plan *s) { s->devices[0].scratch += 64; }
static void forge_compute(tn__saved_plan *s) { s->devices[0].compute -= 64; }
static void forge_device(tn__saved_plan *s) { s->device_of_layer[1] = 1; }
static void forge_layers(tn__saved_plan *s) { s->n_layers--; }
static void forge_version(tn__saved_plan *s) { s->keys.version++; }

static void forged_plans_are_refused(void **state) {
    (void)state;
    static const forgery forgeries[] = {
        {"graphs that the session does not run", forge_further_graph},
        {"another than this library builds", forge_without_last_graph},
        {"another than this library builds", forge_without_second_graph},
        {"another than this library builds", forge_shape},
        {"another than this library builds", forge_fingerprint},
        {"served by no plan", forge_class},
        {"shares bytes", forge_overlap},
        {"not aligned", forge_alignment},
        {"not aligned", forge_odd_size},
        {"needs ", forge_small_size},
        {"needs ", forge_memory},
        {"needs ", forge_chunk},
        {"", forge_far_offset},
        {"other bytes", forge_far_chunk},
        {"tensors, not", forge_fewer_tensors},
        {"other bytes", forge_figures},
        {"other bytes", forge_compute},
        {"device that does not exist", forge_device},
        {"number of layers", forge_layers},
        {"another version", forge_version},
    };
    tn_model *model = open_tiny(&(tiny_options){.layers = 2});
    tn_session_params p = small_params("cpu");
    p.n_ubatch = 4;
    tn_session_plan *plan;
    save_plan(model, &p);
    for (size_t i = 0; i < TN__COUNT(forgeries); i++) {
        tn__saved_plan saved;
        char path[96];
        snprintf(path, sizeof path, "%s.forged", plan_path);
        assert_ok(tn__saved_read(plan_path, &saved));
        forgeries[i].change(&saved);
        assert_ok(tn__saved_write(&saved, path));
        tn__saved_free(&saved);
        tn_status status = tn_session_plan_load(model, &p, path, &plan);
        if (status != TN_E_STATE && status != TN_E_FORMAT)
            fail_msg("forgery %zu gave %s: %s", i, tn_status_name(status), tn_error());
        if (!strstr(tn_error(), forgeries[i].reason)) fail_msg("forgery %zu: %s", i, tn_error());
        unlink(path);
    }
    assert_ok(tn_session_plan_load(model, &p, plan_path, &plan));
    tn_session_plan_free(plan);
    assert_fails(TN_E_IO, tn_session_plan_load(model, &p, "/tmp", &plan)); /* a folder */
    tn_model_close(model);
}

static tn_status save_and_load(void *user) {
    tn_model *model;
    tn_session_plan *plan, *loaded = NULL;
    tn_session_params p = small_params("cpu");
    p.n_ubatch = p.n_seqs = 1;
    TN_TRY(tn_model_open(user, NULL, &model));
    tn_status status = tn_session_plan_new(model, &p, &plan);
    if (status == TN_OK) status = tn_session_plan_save(plan, plan_path);
    if (status == TN_OK) status = tn_session_plan_load(model, &p, plan_path, &loaded);
    tn_session_plan_free(plan);
    tn_session_plan_free(loaded);
    tn_model_close(model);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    tn_model_close(open_tiny(&(tiny_options){.layers = 1}));
    check_every_allocation_failure(save_and_load, model_path);
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

static int make_path(void **state) {
    (void)state;
    strcpy(model_path, "/tmp/tenon-plan-XXXXXX");
    int file = mkstemp(model_path);
    if (file >= 0) close(file);
    snprintf(plan_path, sizeof plan_path, "%s.plan", model_path);
    return file < 0;
}
static int remove_path(void **state) {
    (void)state;
    unlink(plan_path);
    return unlink(model_path);
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
        cmocka_unit_test(saved_plans_are_loaded_and_used),
        cmocka_unit_test(stale_plans_are_refused_with_the_reason),
        cmocka_unit_test(damaged_plans_are_refused),
        cmocka_unit_test(forged_plans_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(an_aborted_call_leaves_a_session_that_works),
        cmocka_unit_test(predictions_are_made_at_the_mean_depth),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
