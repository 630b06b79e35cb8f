/* Planning to a budget: what is chosen fits and runs, is close to the best of all combinations, and keeps what the
 * caller fixed. */
#include "support.h"

#include "tenon/backend_impl.h"
#include "tenon/budget.h"
#include "tenon/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Models: llama, or llama with experts ---- */

enum {
    LAYERS = 6,
    WIDTH = 64,
    HEADS = 2,
    HEAD_SIZE = 32,
    FFN = 256,
    EXPERTS = 8,
    USED = 2,
    VOCAB = 128,
    TRAINED = 8192
};

static char dense_path[64], expert_path[64];

static tn_status add_weight(tn_gguf_writer *w, const char *name, int64_t a, int64_t b, int64_t c, size_t *floats) {
    const int64_t ne[] = {a, b, c};
    const int n_dims = c ? 3 : b ? 2 : 1;
    *floats += (size_t)(a * (b ? b : 1) * (c ? c : 1));
    return tn_gguf_writer_add(w, name, TN_F32, n_dims, ne);
}

static tn_status add_layer(tn_gguf_writer *w, int layer, bool experts, size_t *floats) {
    const int64_t q = HEADS * HEAD_SIZE, kv = HEAD_SIZE, e = EXPERTS;
    const struct {
        const char *name;
        int64_t a, b, c;
    } dense[] = {{"ffn_gate", WIDTH, FFN, 0}, {"ffn_up", WIDTH, FFN, 0}, {"ffn_down", FFN, WIDTH, 0}},
      moe[] = {{"ffn_gate_inp", WIDTH, e, 0},
               {"ffn_gate_exps", WIDTH, FFN, e},
               {"ffn_up_exps", WIDTH, FFN, e},
               {"ffn_down_exps", FFN, WIDTH, e}},
      common[] = {{"attn_norm", WIDTH, 0, 0}, {"attn_q", WIDTH, q, 0},      {"attn_k", WIDTH, kv, 0},
                  {"attn_v", WIDTH, kv, 0},   {"attn_output", q, WIDTH, 0}, {"ffn_norm", WIDTH, 0, 0}};
    char name[64];
    for (size_t i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, common[i].name);
        TN_TRY(add_weight(w, name, common[i].a, common[i].b, common[i].c, floats));
    }
    for (size_t i = 0; i < (experts ? 4u : 3u); i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, experts ? moe[i].name : dense[i].name);
        TN_TRY(add_weight(w, name, experts ? moe[i].a : dense[i].a, experts ? moe[i].b : dense[i].b,
                          experts ? moe[i].c : 0, floats));
    }
    return TN_OK;
}

static tn_status fill_model(tn_gguf_writer *w, bool experts) {
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", LAYERS},
                   {"context_length", TRAINED},
                   {"embedding_length", WIDTH},
                   {"feed_forward_length", FFN},
                   {"attention.head_count", HEADS},
                   {"attention.head_count_kv", 1},
                   {"attention.key_length", HEAD_SIZE},
                   {"attention.value_length", HEAD_SIZE},
                   {"vocab_size", VOCAB},
                   {"rope.dimension_count", HEAD_SIZE},
                   {"expert_count", EXPERTS},
                   {"expert_used_count", USED}};
    char key[64];
    size_t floats = 0;
    TN_TRY(tn_gguf_writer_set_cstr(w, "general.architecture", "llama"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers - (experts ? 0 : 2); i++) {
        snprintf(key, sizeof key, "llama.%s", numbers[i].key);
        TN_TRY(tn_gguf_writer_set_u32(w, key, numbers[i].value));
    }
    TN_TRY(tn_gguf_writer_set_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f));
    TN_TRY(add_weight(w, "token_embd.weight", WIDTH, VOCAB, 0, &floats));
    TN_TRY(add_weight(w, "output_norm.weight", WIDTH, 0, 0, &floats));
    TN_TRY(add_weight(w, "output.weight", WIDTH, VOCAB, 0, &floats));
    for (int i = 0; i < LAYERS; i++) TN_TRY(add_layer(w, i, experts, &floats));
    TN_TRY(tn_gguf_writer_begin(w));
    for (size_t i = 0; i < floats; i++) {
        const float value = (float)((int)(i * 2654435761u >> 7 & 255) - 128) / 512;
        TN_TRY(tn_gguf_writer_write(w, &value, sizeof value));
    }
    return tn_gguf_writer_finish(w);
}

static tn_status write_model(char *path, size_t size, bool experts) {
    tn_gguf_writer *w;
    snprintf(path, size, "/tmp/tenon-budget-%s-%d.gguf", experts ? "moe" : "dense", (int)getpid());
    TN_TRY(tn_gguf_writer_new(path, NULL, &w));
    tn_status status = fill_model(w, experts);
    tn_gguf_writer_free(w);
    return status;
}

/* ---- Devices ---- */

/* Slow enough that bytes decide, not launches. */
static const char rates[] = "read=1G,f16=10G,f32=10G,i8=10G,link=1G,launch=1ns";

static tn_device *cpu_device(void) {
    tn_device *cpu;
    assert_ok(tn_device_find("cpu", &cpu));
    return cpu;
}

static void declare_host(double read) {
    tn_device_rates r = {.read = read, .f32 = 10 * read, .launch = 1e-9};
    tn_device_speed s = tn_speed_from_rates(&r);
    s.run = 1e-9;
    assert_ok(tn_device_set_speed(cpu_device(), 1, &s));
}

static tn_device *sim_device(size_t bytes, const char *name) {
    char spec[192];
    tn_device *device;
    snprintf(spec, sizeof spec, "sim:%zu,%s,name=%s", bytes, rates, name);
    assert_ok(tn_device_find(spec, &device));
    return device;
}

static int make_models(void **state) {
    (void)state;
    if (write_model(dense_path, sizeof dense_path, false) != TN_OK) return -1;
    return write_model(expert_path, sizeof expert_path, true) == TN_OK ? 0 : -1;
}
static int remove_models(void **state) {
    (void)state;
    return unlink(dense_path) | unlink(expert_path);
}

static tn_model *open_model(const char *path) {
    tn_model *model;
    assert_ok(tn_model_open(path, NULL, &model));
    return model;
}

static tn_session_params params_on(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 2048;
    p.n_threads = 1;
    p.devices[0] = device;
    return p;
}

static size_t bytes_of(const tn_fit_device *d) {
    return d->weights + d->cache + d->compute + d->scratch + d->staging;
}

/* Bytes on the first device with all layers there and the default parameters. */
static size_t whole_model_bytes(const char *path) {
    tn_model *model = open_model(path);
    tn_device *device = sim_device((size_t)1 << 30, "whole");
    tn_session_params p = params_on("whole");
    tn_fit fit;
    assert_ok(plan_fit(model, &p, &fit));
    const size_t bytes = bytes_of(&fit.devices[0]);
    tn_fit_free(&fit);
    tn_model_close(model);
    tn_registry_remove(device);
    return bytes;
}

/* ---- The best of all combinations ---- */

static const tn_type pairs[][2] = {{TN_F16, TN_F16}, {TN_Q8_0, TN_Q8_0}, {TN_Q8_0, TN_Q4_0}, {TN_Q4_0, TN_Q4_0}};

static double rate_of(tn_model *model, const tn_session_params *p, size_t host) {
    tn_session_plan *plan;
    tn_fit fit;
    tn_session_speed speed = {0};
    assert_ok(tn_session_plan_new(model, p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    const tn_fit_device *d = &fit.devices[fit.n_devices - 1];
    if (fit.fits && bytes_of(d) + d->mapped <= host)
        assert_ok(tn_session_plan_predict(plan, &(tn_session_speed_params){.depth = p->n_ctx / 2}, &speed));
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return speed.decode;
}

/* The highest decode rate of all combinations on a device of `budget` bytes. */
static double best_rate(tn_model *model, size_t budget, int32_t n_ctx) {
    tn_device *device = sim_device(budget, "all");
    tn_session_params p = params_on("all");
    double best = 0;
    p.n_ctx = n_ctx;
    for (size_t i = 0; i < 4; i++)
        for (p.n_ubatch = 512; p.n_ubatch >= 32; p.n_ubatch /= 4)
            for (p.n_gpu_layers = 0; p.n_gpu_layers <= LAYERS + 1; p.n_gpu_layers++)
                for (p.ffn_chunk = 0; p.ffn_chunk <= 128 && p.ffn_chunk < p.n_ubatch; p.ffn_chunk += 128) {
                    p.cache_k = pairs[i][0];
                    p.cache_v = pairs[i][1];
                    const double rate = rate_of(model, &p, SIZE_MAX);
                    if (rate > best) best = rate;
                }
    tn_registry_remove(device);
    return best;
}

/* The longest context of all combinations, in steps of 256. */
static int32_t longest_context(tn_model *model, size_t budget, size_t host) {
    tn_device *device = sim_device(budget, "all");
    tn_session_params p = params_on("all");
    int32_t longest = 0;
    for (size_t i = 0; i < 4; i++)
        for (p.n_ubatch = 512; p.n_ubatch >= 32; p.n_ubatch /= 4)
            for (p.n_gpu_layers = 0; p.n_gpu_layers <= LAYERS + 1; p.n_gpu_layers++) {
                p.cache_k = pairs[i][0];
                p.cache_v = pairs[i][1];
                for (p.n_ctx = longest + 256; p.n_ctx <= TRAINED && rate_of(model, &p, host) > 0; p.n_ctx += 256)
                    longest = p.n_ctx;
            }
    tn_registry_remove(device);
    return longest;
}

/* ---- Choosing ---- */

struct choosing {
    tn_model *model;
    tn_device *device;
    tn_session_plan *plan;
    tn_budget_ladder ladder;
    tn_budget budgets[2]; /* of the device and, unless 0, of the host */
};

static tn_status choose(struct choosing *c, const char *path, tn_session_params p, tn_budget_params how,
                        size_t budget, size_t host) {
    c->model = open_model(path);
    c->device = sim_device((size_t)1 << 30, "sim");
    c->budgets[0] = (tn_budget){"sim", budget};
    c->budgets[1] = (tn_budget){"cpu", host};
    p.budgets = c->budgets;
    p.n_budgets = host ? 2 : 1;
    return tn_session_plan_to_budget(c->model, &p, &how, &c->plan, &c->ladder);
}

static void end_choosing(struct choosing *c) {
    tn_budget_ladder_free(&c->ladder);
    tn_session_plan_free(c->plan);
    tn_model_close(c->model);
    tn_registry_remove(c->device);
}

/* The ladder's first entry is what was planned, and fits. */
static void check_chosen(const struct choosing *c) {
    const tn_session_params p = tn_session_plan_params(c->plan);
    const tn_budget_choice *choice = &c->ladder.choices[0];
    tn_fit fit;
    assert_true(tn_session_plan_fits(c->plan));
    assert_true(choice->fits && choice->chosen);
    assert_int_equal(p.n_ctx, choice->n_ctx);
    assert_int_equal(p.n_ubatch, choice->n_ubatch);
    assert_int_equal(p.ffn_chunk, choice->ffn_chunk);
    assert_int_equal(p.cache_k, choice->cache_k);
    assert_int_equal(p.cache_v, choice->cache_v);
    assert_ok(tn_session_plan_fit(c->plan, &fit));
    assert_int_equal(bytes_of(&fit.devices[0]), choice->bytes[0]);
    assert_int_equal(bytes_of(&fit.devices[1]) + fit.devices[1].mapped, choice->bytes[1]);
    assert_in_range(choice->bytes[0], 0, c->budgets[0].bytes);
    if (c->budgets[1].bytes) assert_in_range(choice->bytes[1], 0, c->budgets[1].bytes);
    tn_fit_free(&fit);
    for (size_t i = 1; i < c->ladder.n_choices; i++) assert_false(c->ladder.choices[i].chosen);
}

/* Runs what was planned: full micro-batches, then single tokens. */
static void run_plan(struct choosing *c) {
    tn_session *session;
    size_t free_bytes, total;
    assert_ok(tn_session_new(c->plan, &session));
    const tn_session_params p = tn_session_get_params(session);
    tn_token tokens[512];
    for (int i = 0; i < 512; i++) tokens[i] = i % VOCAB;
    const int32_t n = p.n_ubatch < p.n_ctx / 2 ? p.n_ubatch : p.n_ctx / 2;
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = n, .tokens = tokens}));
    for (int i = 0; i < 3; i++)
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = tokens + i}));
    assert_non_null(tn_session_logits(session, 0));
    assert_ok(tn_device_memory(c->device, &free_bytes, &total));
    assert_int_equal(total - free_bytes, c->ladder.choices[0].bytes[0]);
    assert_true(total - free_bytes <= c->budgets[0].bytes);
    tn_session_free(session);
}

/* ---- Tests ---- */

static void speed_is_near_the_best_and_runs(void **state) {
    (void)state;
    const size_t whole = whole_model_bytes(dense_path);
    declare_host(1e8);
    for (int eighths = 3; eighths <= 7; eighths += 4) {
        struct choosing c = {0};
        const size_t budget = whole * (size_t)eighths / 8;
        assert_ok(choose(&c, dense_path, params_on("sim"), (tn_budget_params){0}, budget, 0));
        check_chosen(&c);
        assert_int_equal(c.ladder.choices[0].n_ctx, 2048);
        assert_true(c.ladder.predicted);
        const double best = best_rate(c.model, budget, 2048), got = c.ladder.choices[0].decode;
        if (got < 0.9 * best) fail_msg("budget %zu: %g of %g tokens/s", budget, got, best);
        run_plan(&c);
        end_choosing(&c);
    }
}

static void context_is_near_the_longest(void **state) {
    (void)state;
    struct choosing c = {0};
    const size_t quarter = whole_model_bytes(dense_path) / 4;
    tn_session_params p = params_on("sim");
    declare_host(1e8);
    p.n_ctx = 0;
    assert_ok(choose(&c, dense_path, p, (tn_budget_params){.prefer = TN_PREFER_CONTEXT}, quarter, quarter));
    check_chosen(&c);
    const int32_t longest = longest_context(c.model, quarter, quarter), got = c.ladder.choices[0].n_ctx;
    assert_in_range(longest, 1, TRAINED - 1);
    if (got < 0.9 * longest) fail_msg("a context of %d, %d is possible", got, longest);
    run_plan(&c);
    end_choosing(&c);
}

static bool has_type_below_q8_0(const tn_budget_choice *c) { return c->cache_k == TN_Q4_0 || c->cache_v == TN_Q4_0; }

static void quality_takes_q4_0_only_where_nothing_else_fits(void **state) {
    (void)state;
    const size_t whole = whole_model_bytes(dense_path);
    const tn_budget_params quality = {.prefer = TN_PREFER_QUALITY};
    int low = 0, high = 0;
    declare_host(1e8);
    for (size_t host = whole / 4; host <= whole; host += whole / 4) {
        struct choosing c = {0};
        tn_session_params p = params_on("sim");
        p.n_ctx = TRAINED;
        assert_ok(choose(&c, dense_path, p, quality, whole / 2, host));
        const tn_budget_choice *first = &c.ladder.choices[0];
        if (first->fits && has_type_below_q8_0(first)) {
            /* The same context with q8_0 does not fit, whatever else is chosen. */
            struct choosing other = {0};
            tn_budget_params only = quality;
            only.cache_types = (tn_type[]){TN_F16, TN_Q8_0};
            only.n_cache_types = 2;
            end_choosing(&c);
            assert_ok(choose(&other, dense_path, p, only, whole / 2, host));
            assert_true(!other.ladder.choices[0].fits || other.ladder.choices[0].n_ctx < TRAINED);
            end_choosing(&other);
            low++;
            continue;
        }
        high += first->fits && first->n_ctx == TRAINED;
        end_choosing(&c);
    }
    assert_true(low > 0 && high > 0); /* both cases were met */
}

static void what_is_fixed_stays(void **state) {
    (void)state;
    struct choosing c = {0};
    const size_t whole = whole_model_bytes(dense_path);
    tn_session_params p = params_on("sim");
    declare_host(1e8);
    p.cache_k = TN_BF16;
    p.n_ubatch = 64;
    p.n_gpu_layers = 3;
    assert_ok(choose(&c, dense_path, p, (tn_budget_params){.keep_cache_k = true, .keep_ubatch = true}, whole, 0));
    check_chosen(&c);
    for (size_t i = 0; i < c.ladder.n_choices; i++) {
        assert_int_equal(c.ladder.choices[i].cache_k, TN_BF16);
        assert_int_equal(c.ladder.choices[i].n_ubatch, 64);
        assert_int_equal(c.ladder.choices[i].n_layers, 3);
    }
    end_choosing(&c);
}

static void experts_move_to_the_host_where_that_pays(void **state) {
    (void)state;
    struct choosing c = {0};
    const size_t whole = whole_model_bytes(expert_path);
    declare_host(2e8);
    assert_ok(choose(&c, expert_path, params_on("sim"), (tn_budget_params){.frontier = true}, whole / 2, 0));
    check_chosen(&c);
    const tn_budget_choice *chosen = &c.ladder.choices[0];
    assert_in_range(chosen->n_host_experts, 1, LAYERS - 1);
    assert_int_equal(chosen->n_layers, LAYERS + 1);
    double plain = 0;
    for (size_t i = 0; i < c.ladder.n_choices; i++)
        if (c.ladder.choices[i].fits && !c.ladder.choices[i].n_host_experts && c.ladder.choices[i].decode > plain)
            plain = c.ladder.choices[i].decode;
    assert_true(plain > 0 && chosen->decode > plain);
    /* The overrides belong to the plan. */
    const tn_session_params p = tn_session_plan_params(c.plan);
    assert_int_equal(p.n_overrides, 1);
    assert_string_equal(p.overrides[0].device, "cpu");
    run_plan(&c);
    end_choosing(&c);
}

static void nothing_fits(void **state) {
    (void)state;
    struct choosing c = {0};
    tn_session *session;
    declare_host(1e8);
    assert_ok(choose(&c, dense_path, params_on("sim"), (tn_budget_params){0}, 4096, 4096));
    assert_false(tn_session_plan_fits(c.plan));
    const tn_budget_choice *closest = &c.ladder.choices[0];
    assert_true(closest->chosen && !closest->fits && closest->missing > 0);
    for (size_t i = 1; i < c.ladder.n_choices; i++) assert_true(c.ladder.choices[i].missing >= closest->missing);
    assert_fails(TN_E_TOO_BIG, tn_session_new(c.plan, &session));
    end_choosing(&c);
}

/* A budget above the device's memory changes nothing; one below is what a plan sees. */
static void budgets_limit_every_plan(void **state) {
    (void)state;
    tn_model *model = open_model(dense_path);
    const size_t whole = whole_model_bytes(dense_path), size = whole / 4 * 3;
    tn_device *device = sim_device(size, "small");
    tn_session_params p = params_on("small");
    tn_fit fit;
    p.n_budgets = 1;
    p.budgets = &(tn_budget){"small", (size_t)1 << 40};
    assert_ok(plan_fit(model, &p, &fit));
    assert_int_equal(fit.devices[0].free, size);
    const int32_t layers = fit.devices[0].n_layers;
    assert_true(layers > 0);
    tn_fit_free(&fit);
    p.budgets = &(tn_budget){"small", whole / 2};
    assert_ok(plan_fit(model, &p, &fit));
    assert_true(fit.fits && fit.devices[0].n_layers < layers && bytes_of(&fit.devices[0]) <= whole / 2);
    tn_fit_free(&fit);
    /* Weights in the file's map count in the host's budget. */
    p.n_gpu_layers = 0;
    p.no_repack = true;
    p.n_budgets = 0;
    assert_ok(plan_fit(model, &p, &fit));
    const size_t host = bytes_of(&fit.devices[1]) + fit.devices[1].mapped;
    assert_true(fit.devices[1].mapped > 0);
    tn_fit_free(&fit);
    for (int less = 0; less < 2; less++) {
        p.n_budgets = 1;
        p.budgets = &(tn_budget){"cpu", host - (size_t)less};
        assert_ok(plan_fit(model, &p, &fit));
        assert_int_equal(fit.fits, !less);
        tn_fit_free(&fit);
    }
    tn_model_close(model);
    tn_registry_remove(device);
}

/* The host's budget is for all devices that draw from its memory. */
static void unified_memory_has_one_budget(void **state) {
    (void)state;
    tn_model *model = open_model(dense_path);
    tn_device *device;
    tn_fit fit;
    assert_ok(tn_device_find("sim:1G,uma=1,name=unified", &device));
    tn_session_params p = params_on("unified");
    p.n_gpu_layers = 3;
    assert_ok(plan_fit(model, &p, &fit));
    const size_t together =
        bytes_of(&fit.devices[0]) + bytes_of(&fit.devices[1]) + fit.devices[0].mapped + fit.devices[1].mapped;
    tn_fit_free(&fit);
    for (int less = 0; less < 2; less++) {
        p.n_budgets = 1;
        p.no_repack = true;
        p.budgets = &(tn_budget){"cpu", less ? together / 2 : together};
        assert_ok(plan_fit(model, &p, &fit));
        assert_int_equal(fit.fits, !less);
        tn_fit_free(&fit);
    }
    tn_model_close(model);
    tn_registry_remove(device);
}

static bool cancel_third(void *user, size_t planned, size_t at_most) {
    assert_true(planned <= at_most);
    (void)user;
    return planned < 3;
}

static void wrong_budgets_are_refused(void **state) {
    (void)state;
    tn_model *model = open_model(dense_path);
    tn_device *device = sim_device(1 << 24, "sim");
    tn_session_params p = params_on("sim");
    tn_session_plan *plan;
    p.budgets = (tn_budget[]){{"cuda7", 1 << 20}, {NULL, 1}};
    p.n_budgets = 1;
    assert_fails(TN_E_NOT_FOUND, tn_session_plan_to_budget(model, &p, NULL, &plan, NULL));
    assert_non_null(strstr(tn_error(), "cuda7"));
    assert_non_null(strstr(tn_error(), "sim, cpu"));
    assert_null(plan);
    p.budgets++;
    assert_fails(TN_E_INVALID, tn_session_plan_to_budget(model, &p, NULL, &plan, NULL));
    p.budgets = (tn_budget[]){{"sim", 1 << 20}, {"sim", 1 << 21}};
    p.n_budgets = 2;
    assert_fails(TN_E_INVALID, tn_session_plan_to_budget(model, &p, NULL, &plan, NULL));
    assert_fails(TN_E_INVALID, tn_session_plan_to_budget(NULL, &p, NULL, &plan, NULL));
    p.n_budgets = 1;
    p.ffn_chunk = 7;
    assert_fails(TN_E_INVALID, tn_session_plan_to_budget(model, &p, NULL, &plan, NULL));
    p.ffn_chunk = 0;
    assert_fails(TN_E_ABORTED,
                 tn_session_plan_to_budget(model, &p, &(tn_budget_params){.progress = cancel_third}, &plan, NULL));
    tn_model_close(model);
    tn_registry_remove(device);
}

/* Without measured peaks a choice is made all the same, and the ladder names the device. */
static void devices_that_are_not_measured(void **state) {
    (void)state;
    struct choosing c = {0};
    const size_t whole = whole_model_bytes(dense_path);
    assert_ok(tn_device_set_speed(cpu_device(), 1, NULL));
    assert_ok(choose(&c, dense_path, params_on("sim"), (tn_budget_params){0}, whole / 2, 0));
    check_chosen(&c);
    assert_false(c.ladder.predicted);
    assert_non_null(strstr(c.ladder.note, "cpu"));
    assert_true(c.ladder.choices[0].n_layers > 0 && c.ladder.choices[0].decode == 0);
    run_plan(&c);
    end_choosing(&c);
}

/* Chunks of the feed-forward part take less memory and compute the same. */
static void feed_forward_chunks(void **state) {
    (void)state;
    tn_model *model = open_model(dense_path);
    float first[VOCAB];
    size_t compute = SIZE_MAX;
    for (int chunk = 0; chunk < 2; chunk++) {
        tn_session_params p = params_on("cpu");
        tn_session *session;
        tn_fit fit;
        tn_token tokens[128];
        p.n_ubatch = 128;
        p.ffn_chunk = 32 * chunk;
        assert_ok(tn_session_open(model, &p, &session));
        assert_ok(tn_session_memory(session, &fit));
        assert_true(fit.devices[0].compute < compute);
        compute = fit.devices[0].compute;
        tn_fit_free(&fit);
        for (int i = 0; i < 128; i++) tokens[i] = i * 7 % VOCAB;
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 128, .tokens = tokens}));
        const float *logits = tn_session_logits(session, 0);
        if (!chunk) memcpy(first, logits, sizeof first);
        for (int i = 0; i < VOCAB; i++) assert_float_equal(logits[i], first[i], 1e-4);
        tn_session_free(session);
    }
    tn_model_close(model);
}

static tn_status choose_once(void *user) {
    tn_model *model = user;
    tn_session_params p = params_on("sim");
    tn_session_plan *plan;
    tn_budget_ladder ladder;
    p.budgets = &(tn_budget){"sim", 2 << 20};
    p.n_budgets = 1;
    p.n_ubatch = 32;
    const tn_budget_params how = {.keep_ubatch = true, .keep_cache_k = true, .keep_cache_v = true};
    tn_status status = tn_session_plan_to_budget(model, &p, &how, &plan, &ladder);
    if (status == TN_OK) tn_budget_ladder_free(&ladder);
    tn_session_plan_free(plan);
    return status;
}

static void nothing_leaks(void **state) {
    (void)state;
    tn_model *model = open_model(expert_path);
    tn_device *device = sim_device(1 << 24, "sim");
    declare_host(1e8);
    assert_ok(choose_once(model)); /* what the process keeps is there from now on */
    check_no_leak(choose_once, model);
    tn_model_close(model);
    tn_registry_remove(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speed_is_near_the_best_and_runs),
        cmocka_unit_test(context_is_near_the_longest),
        cmocka_unit_test(quality_takes_q4_0_only_where_nothing_else_fits),
        cmocka_unit_test(what_is_fixed_stays),
        cmocka_unit_test(experts_move_to_the_host_where_that_pays),
        cmocka_unit_test(nothing_fits),
        cmocka_unit_test(budgets_limit_every_plan),
        cmocka_unit_test(unified_memory_has_one_budget),
        cmocka_unit_test(wrong_budgets_are_refused),
        cmocka_unit_test(devices_that_are_not_measured),
        cmocka_unit_test(feed_forward_chunks),
        cmocka_unit_test(nothing_leaks),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
