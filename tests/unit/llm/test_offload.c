/* Models on several devices: layers are placed where they fit, the caller's choices are kept, and data changes
 * devices only where the layers do. */
#include "models/reference_models.h"
#include "models/tiny_models.h"

#include "llm/session_internal.h"
#include "runtime/sched_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tn_session_params params(void) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 256;
    p.n_seqs = 1;
    p.n_outputs = 64;
    p.cache_k = p.cache_v = TN_F32;
    p.n_threads = 1;
    return p;
}

static void open_model(const char *name, tn_model **model) {
    assert_ok(tn_model_open(reference_path(name), NULL, model));
}

/* ---- Splits ---- */

/* There are as many splits as runs of layers on one device. A split receives one hidden state from the split before;
 * all other copies are the graph's inputs. */
static void check_splits(const char *name, tn_session *s, const tn__schedule *schedule, size_t n_runs) {
    const tn_model *m = s->plan->model;
    /* Layers that read the cells of others attend where those are; some families compute more than one thing for all
     * layers. */
    for (int32_t i = 0; i < m->h.n_layer; i++)
        if (m->h.layers[i].cells_of) return;
    if (m->arch->begin || m->arch->end || strcmp(m->arch->info.name, "talkie") == 0) return;
    if (schedule->n_splits != n_runs) {
        tn_sched_dump(s->plan->sched, s->plan->graphs.kept[0]->graph, stdout);
        fail_msg("%s: %zu splits, %zu runs of layers", name, schedule->n_splits, n_runs);
    }
    for (size_t i = 0; i < schedule->n_splits; i++) {
        const tn__split *split = &schedule->splits[i];
        size_t states = 0;
        for (size_t c = 0; c < split->n_copies; c++) {
            const tn_tensor *source = schedule->copies[split->first_copy + c].source;
            if (source->view_src) source = source->view_src;
            states += !(source->flags & TN_FLAG_INPUT);
        }
        if (states != (i > 0)) {
            tn_sched_dump(s->plan->sched, s->plan->graphs.kept[0]->graph, stdout);
            fail_msg("%s: split %zu receives %zu states", name, i, states);
        }
    }
}

static const tn__schedule *schedule_of(tn_session *s, size_t reserved) {
    tn_sched_info info;
    assert_ok(tn_sched_describe(s->plan->sched, s->plan->graphs.kept[reserved]->graph, &info));
    tn_fingerprint key = tn_graph_fingerprint(s->plan->graphs.kept[reserved]->graph);
    for (size_t k = 0; k < s->plan->sched->n_schedules; k++)
        if (s->plan->sched->schedules[k]->key.lo == key.lo && s->plan->sched->schedules[k]->key.hi == key.hi)
            return s->plan->sched->schedules[k];
    fail_msg("no schedule for graph %zu", reserved);
    return NULL;
}

static void decode(tn_session *s, float **logits, size_t *size) {
    tn_token tokens[9] = {1, 5, 9, 3, 7, 2, 8, 4, 6};
    bool outputs[9] = {false, true, false, false, true, true, false, false, true};
    tn_batch batch = {.n_tokens = 9, .tokens = tokens, .outputs = outputs};
    assert_ok(tn_session_decode(s, &batch));
    *size = (size_t)tn_session_output_count(s) * (size_t)s->plan->model->h.n_vocab * sizeof(float);
    *logits = malloc(*size);
    memcpy(*logits, tn_session_logits(s, 0), *size);
}

static void data_changes_devices_only_where_layers_do(void **state) {
    (void)state;
    enum { HOST, HALF, ALL, ALL_BUT_EMBEDDING, N_WAYS };
    static const tn_placement_override keep = {"^token_embd\\.weight$", "cpu"};
    size_t tied = 0;
    for (const char *const *name = reference_names(); *name; name++) {
        float *want = NULL;
        size_t size = 0;
        for (int way = 0; way < N_WAYS; way++) {
            tn_model *model;
            tn_session *s;
            tn_session_params p = params();
            open_model(*name, &model);
            const bool is_tied = !model->w.output;
            if (way == ALL_BUT_EMBEDDING && is_tied) { /* it is the output matrix, too */
                tied++;
                tn_model_close(model);
                continue;
            }
            p.no_repack = true; /* the same kernels on both sides */
            if (way != HOST) p.devices[0] = "sim:64M,name=half";
            p.n_gpu_layers = way == HALF ? model->h.n_layer / 2 : -1;
            p.overrides = &keep;
            p.n_overrides = way == ALL_BUT_EMBEDDING;
            assert_ok(tn_session_open(model, &p, &s));
            /* Half of the layers: host, device, and the output side on the host. */
            static const size_t n_runs[N_WAYS] = {[HALF] = 3, [ALL] = 1, [ALL_BUT_EMBEDDING] = 2};
            for (size_t i = 0; way != HOST && i < 2; i++) check_splits(*name, s, schedule_of(s, i), n_runs[way]);
            float *got;
            decode(s, &got, &size);
            if (way != HOST) {
                assert_memory_equal(want, got, size);
                free(got);
            } else {
                want = got;
            }
            tn_session_free(s);
            tn_model_close(model);
        }
        free(want);
    }
    assert_true(tied > 0);
}

/* ---- Layers ---- */

static char *explain(const tn_session *s) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_ok(tn_session_plan_explain(tn_session_get_plan(s), out));
    fclose(out);
    return text;
}

/* On devices of every size: the placement fits, and one more layer on the first device would not. */
static void the_first_device_is_filled_before_the_next(void **state) {
    (void)state;
    tn_model *model;
    open_model("llama-dense", &model);
    int32_t n = model->h.n_layer;
    size_t most = 0;
    bool partly = false, wholly = false;
    for (size_t kib = 200; kib <= 6400; kib += kib / 8) {
        char spec[64];
        tn_session_params p = params();
        tn_fit fit;
        snprintf(spec, sizeof spec, "sim:%zuK,name=fill%zu,memory-only=1", kib, kib);
        p.devices[0] = spec;
        assert_ok(plan_fit(model, &p, &fit));
        assert_true(fit.fits);
        const tn_fit_device *d = &fit.devices[0];
        assert_true(d->weights + d->cache + d->compute + d->scratch <= kib * 1024);
        assert_true((size_t)d->n_layers >= most); /* more room never means fewer layers */
        most = (size_t)d->n_layers;
        partly = partly || (d->n_layers > 0 && d->n_layers < n);
        wholly = wholly || d->n_layers == n;
        int32_t chosen = d->n_layers;
        tn_fit_free(&fit);
        if (chosen == n) continue;
        p.n_gpu_layers = chosen + 1;
        assert_ok(plan_fit(model, &p, &fit));
        assert_false(fit.fits);
        tn_fit_free(&fit);
    }
    assert_true(partly && wholly);
    tn_model_close(model);
}

static void overrides_are_kept_and_explained(void **state) {
    (void)state;
    tn_model *model;
    tn_session *s;
    open_model("llama-dense", &model);
    tn_session_params p = params();
    p.devices[0] = "sim:64M,name=left";
    p.devices[1] = "sim:64M,name=right";
    p.split[0] = p.split[1] = 1;
    tn_placement_override overrides[] = {{"blk\\.[01]\\.ffn_down", "cpu"}, {"ffn_down", "right"}};
    p.overrides = overrides;
    p.n_overrides = 2;
    assert_ok(tn_session_open(model, &p, &s));
    for (size_t i = 0; i < model->n_all; i++) {
        const tn__weight *w = &model->all[i];
        if (w->ignored) continue;
        const char *device = tn_device_name(tn_buffer_type_device(tn_buffer_get_type(w->tensor->buffer)));
        if (strstr(w->info->name, "ffn_down"))
            assert_string_equal(device, w->layer < 2 ? "cpu" : "right");
        else if (w->layer >= 0 && w->layer < model->h.n_layer)
            assert_string_equal(device, 2 * w->layer < model->h.n_layer ? "left" : "right");
    }
    char *text = explain(s), *before = NULL;
    size_t size_before;
    FILE *out = open_memstream(&before, &size_before);
    tn_model *unloaded;
    open_model("llama-dense", &unloaded);
    tn_session_plan *plan;
    assert_ok(tn_session_plan_new(unloaded, &p, &plan));
    assert_ok(tn_session_plan_explain(plan, out));
    assert_ok(tn_session_plan_splits(plan, false, out));
    tn_session_plan_free(plan);
    fclose(out);
    assert_memory_equal(text, before, strlen(text)); /* and then the splits */
    assert_non_null(strstr(before, "split 0 on cpu"));
    assert_false(unloaded->loaded);
    free(before);
    tn_model_close(unloaded);
    assert_non_null(strstr(text, "override blk\\.[01]\\.ffn_down, stays in the file's map\n"));
    assert_non_null(strstr(text, "on left     the caller's shares\n"));
    size_t lines = 0, weights = 0;
    for (const char *at = text; *at; at++) lines += *at == '\n';
    for (size_t i = 0; i < model->n_all; i++) weights += !model->all[i].ignored;
    assert_int_equal(lines, weights);
    free(text);
    float *logits;
    size_t size;
    decode(s, &logits, &size);
    free(logits);
    tn_session_free(s);

    /* A second session uses the weights where the first loaded them. */
    tn_session_params other = params();
    memcpy(other.devices, p.devices, sizeof other.devices);
    assert_ok(tn_session_open(model, &other, &s));
    text = explain(s);
    assert_non_null(strstr(text, "an earlier session loaded it\n"));
    free(text);
    tn_session_free(s);
    tn_model_close(model);

    open_model("llama-dense", &model);
    overrides[1].device = "nowhere";
    assert_fails(TN_E_NOT_FOUND, tn_session_open(model, &p, &s));
    overrides[1] = (tn_placement_override){"(", "cpu"};
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &s));
    tn_model_close(model);
}

/* Logits of 64 tokens at once, and of one more. */
static void decode_prompt(tn_model *model, const tn_session_params *p, float *logits, size_t vocab) {
    tn_session *s;
    tn_token tokens[64];
    for (int i = 0; i < 64; i++) tokens[i] = (i * 7 + 3) % (int)vocab;
    assert_ok(tn_session_open(model, p, &s));
    assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = 64, .tokens = tokens}));
    memcpy(logits, tn_session_logits(s, -1), vocab * sizeof *logits);
    assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = 1, .tokens = tokens}));
    memcpy(logits + vocab, tn_session_logits(s, -1), vocab * sizeof *logits);
    tn_session_free(s);
}

/* Experts on the host (--cpu-moe): a prompt moves those in use to the device, a single token is computed on the host,
 * and both give the logits of the host alone. */
static void experts_on_the_host_are_moved_for_prompts(void **state) {
    (void)state;
    enum { VOCAB = 64 };
    char path[] = "/tmp/tenon-offload-XXXXXX", *text = NULL;
    float split[2 * VOCAB], host[2 * VOCAB];
    size_t size;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = "qwen3moe", .experts = 8, .vocab = VOCAB}));
    tn_session_params p = params();
    p.n_batch = p.n_ubatch = 64;
    p.n_outputs = 1;
    p.devices[0] = "sim:1G,offload=1,name=card";
    p.devices[1] = "cpu";
    p.overrides = &(tn_placement_override){"ffn_(gate|up|down)_exps", "cpu"};
    p.n_overrides = 1;
    tn_model *model;
    tn_session_plan *plan;
    assert_ok(tn_model_open(path, NULL, &model));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    for (int prefill = 0; prefill < 2; prefill++) {
        FILE *out = open_memstream(&text, &size);
        assert_ok(tn_session_plan_splits(plan, prefill, out));
        fclose(out);
        const bool moved = strstr(text, "large enough to move its host weights over") != NULL;
        assert_int_equal(moved, prefill);
        if (prefill) assert_non_null(strstr(text, "only the experts in use"));
        if (prefill) assert_non_null(strstr(text, "for the next split while this one computes"));
        free(text);
    }
    tn_session_plan_free(plan);
    decode_prompt(model, &p, split, VOCAB);
    tn_model_close(model);
    p.devices[0] = "cpu";
    p.devices[1] = NULL;
    p.n_overrides = 0;
    assert_ok(tn_model_open(path, NULL, &model));
    decode_prompt(model, &p, host, VOCAB);
    tn_model_close(model);
    unlink(path);
    for (int i = 0; i < 2 * VOCAB; i++) assert_true(fabsf(split[i] - host[i]) <= 1e-4f * (1 + fabsf(host[i])));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_changes_devices_only_where_layers_do),
        cmocka_unit_test(the_first_device_is_filled_before_the_next),
        cmocka_unit_test(overrides_are_kept_and_explained),
        cmocka_unit_test(experts_on_the_host_are_moved_for_prompts),
    };
    return RUN_ON_TINY_MODELS(tests, NULL, NULL);
}
