/* Saved session plans: adopted, or refused with the reason. */
#include "plan_case.h"

#include "base/checked.h"
#include "base/hash.h"
#include "llm/plan/cover.h"
#include "llm/plan/saved.h"
#include "llm/plan/session_plan.h"
#include "sched_case.h"

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
            small_params(many ? "sim:1G,offload=1,name=saved1" : "sim:1G,max-alloc=320K,name=saved0");
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

/* Graphs of micro-batches in flight are planned together; so they are when a saved plan is checked and adopted. */
static void plans_with_micro_batches_in_flight_are_saved(void **state) {
    (void)state;
    tn_model *model = open_tiny(&(tiny_options){.layers = 4, .context = 512});
    tn_session_params p = small_params("sim:1G,name=flight0");
    p.devices[1] = "sim:1G,name=flight1";
    p.split[0] = p.split[1] = 1;
    p.n_gpu_layers = 1000;
    p.n_ctx = p.n_batch = 4 * UBATCH;
    tn_session_plan *planned, *loaded;
    char *text;
    save_plan(model, &p);
    p.devices[0] = "flight0";
    p.devices[1] = "flight1";
    assert_ok(tn_session_plan_new(model, &p, &planned));
    bool in_flight = false;
    for (size_t i = 0; i < planned->n_covered; i++) in_flight |= tn__shape_in_flight(planned, planned->covered[i]);
    assert_true(in_flight);
    assert_ok(tn_session_plan_load(model, &p, plan_path, &loaded));
    assert_ok(tn_session_plan_compare(planned, loaded, &text));
    assert_string_equal(text ? text : "", "");
    assert_true(loaded->adopted && tn_sched_get_stats(loaded->sched).plans_adopted > 0);
    tn_free(text);
    tn_session_plan_free(loaded);
    tn_session_plan_free(planned);
    tn_model_close(model);
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
        {"differs from the one that this library builds", forge_without_last_graph},
        {"differs from the one that this library builds", forge_without_second_graph},
        {"differs from the one that this library builds", forge_shape},
        {"differs from the one that this library builds", forge_fingerprint},
        {"served by no plan", forge_class},
        {"shares bytes", forge_overlap},
        {"not aligned", forge_alignment},
        {"not aligned", forge_odd_size},
        {"needs ", forge_small_size},
        {"needs ", forge_memory},
        {"needs ", forge_chunk},
        {"", forge_far_offset},
        {"the bytes of", forge_far_chunk},
        {"tensors, not", forge_fewer_tensors},
        {"the bytes of", forge_figures},
        {"the bytes of", forge_compute},
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_plans_are_loaded_and_used),
        cmocka_unit_test(plans_with_micro_batches_in_flight_are_saved),
        cmocka_unit_test(stale_plans_are_refused_with_the_reason),
        cmocka_unit_test(damaged_plans_are_refused),
        cmocka_unit_test(forged_plans_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
