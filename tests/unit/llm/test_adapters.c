/* Adapters: a session with adapters computes what the model with them merged computes, for every kind of layer, on
 * the CPU, on a simulated device and on $TENON_GPU; every sequence of a batch has its own; what they take is planned;
 * prefixes and states never cross from one choice of adapters to another. */
#include "support.h"

#include "models/reference_models.h"
#include "models/tiny_adapters.h"
#include "sched_case.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT = 64, TOKENS = 20, STEPS = 4, VOCAB = 64, SEQS = 4 };

static char folder[] = "/tmp/tenon-adapters-XXXXXX", model_path[64], a_path[64], b_path[64], other_path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    snprintf(a_path, sizeof a_path, "%s/a.gguf", folder);
    snprintf(b_path, sizeof b_path, "%s/b.gguf", folder);
    snprintf(other_path, sizeof other_path, "%s/other.gguf", folder);
    return 0;
}
static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* ---- Models with two adapters ---- */

typedef struct adapted {
    tn_model *model;
    tn_adapter *a, *b;
    tn_adapter_use uses[2];
} adapted;

static void write_adapted(const char *arch, tn_type type) {
    const tiny_options options = {.arch = arch, .vocab = VOCAB, .context = 256};
    assert_ok(tiny_model_write(model_path, &options));
    const tiny_adapter_options a = {.rank = 4, .alpha = 8, .type = type, .seed = 1},
                               b = {.rank = 3, .alpha = 0, .type = type, .seed = 2, .first_layer = 1};
    assert_true(tiny_adapter_write(a_path, model_path, &a) > 2);
    assert_true(tiny_adapter_write(b_path, model_path, &b) > 0);
}
static void open_adapted(adapted *x) {
    assert_ok(tn_model_open(model_path, NULL, &x->model));
    assert_ok(tn_adapter_open(x->model, a_path, &x->a));
    assert_ok(tn_adapter_open(x->model, b_path, &x->b));
    x->uses[0] = (tn_adapter_use){x->a, 0};
    x->uses[1] = (tn_adapter_use){x->b, 0};
}
static void close_adapted(adapted *x) {
    tn_adapter_close(x->a);
    tn_adapter_close(x->b);
    tn_model_close(x->model);
}

static tn_session_params base_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = device;
    p.n_ctx = CONTEXT * SEQS;
    p.n_batch = p.n_ctx;
    p.n_ubatch = 32;
    p.n_seqs = SEQS;
    p.n_outputs = p.n_ubatch;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    return p;
}
static tn_session_params adapted_params(const adapted *x, const char *device) {
    tn_session_params p = base_params(device);
    p.adapters = x->uses;
    p.n_adapters = 2;
    return p;
}

/* ---- Decoding ---- */

static tn_token token_at(int32_t text, int32_t i) { return (tn_token)((i * 37 + text * 11) % 59 + 3); }

/* Prefill and some single steps of a text: the logits of the last row of each are added to `rows`. */
static int32_t decode_text(tn_session *s, int32_t seq, int32_t text, float *rows) {
    tn_token tokens[TOKENS + STEPS];
    int32_t seqs[TOKENS + STEPS], n = 0;
    for (int32_t i = 0; i < TOKENS + STEPS; i++) {
        tokens[i] = token_at(text, i);
        seqs[i] = seq;
    }
    assert_ok(tn_session_seq_remove(s, seq, 0, -1));
    for (int32_t begin = 0, count; begin < TOKENS + STEPS; begin += count, n++) {
        count = begin ? 1 : TOKENS;
        assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = count, .tokens = tokens + begin, .seqs = seqs}));
        memcpy(rows + (ptrdiff_t)n * VOCAB, tn_session_logits(s, -1), VOCAB * sizeof *rows);
    }
    return n;
}

static double distance(const float *got, const float *want, int32_t n) {
    nmse error = {0};
    nmse_add(&error, got, want, n * VOCAB);
    return nmse_value(&error);
}

static const float choices[][2] = {{0, 0}, {1, 0}, {0, 0.5f}, {-0.75f, 1.25f}, {2, 2}};
enum { CHOICES = sizeof choices / sizeof *choices };

static void merged_logits(const float scales[2], float *rows) {
    const tiny_adapter list[] = {{a_path, scales[0]}, {b_path, scales[1]}};
    tn_model *model;
    tn_session *session;
    tiny_merge(other_path, model_path, list, 2);
    assert_ok(tn_model_open(other_path, NULL, &model));
    const tn_session_params p = base_params("cpu");
    assert_ok(tn_session_open(model, &p, &session));
    decode_text(session, 0, 0, rows);
    tn_session_free(session);
    tn_model_close(model);
}

/* ---- As merged ---- */

static void check_as_merged(const char *arch, const char *device, tn_type type, double limit) {
    adapted x;
    tn_session *session;
    write_adapted(arch, type);
    open_adapted(&x);
    const tn_session_params p = adapted_params(&x, device);
    if (tn_session_open(x.model, &p, &session) != TN_OK) fail_msg("%s on %s: %s", arch, device, tn_error());
    float want[(STEPS + 1) * VOCAB], got[(STEPS + 1) * VOCAB], plain[(STEPS + 1) * VOCAB];
    double most = 0;
    for (int i = 0; i < CHOICES; i++) {
        merged_logits(choices[i], want);
        assert_ok(tn_session_seq_adapters(session, 0, choices[i]));
        const int32_t n = decode_text(session, 0, 0, got);
        const double error = distance(got, want, n);
        if (!(error <= limit))
            fail_msg("%s on %s, scales %g and %g: NMSE %g", arch, device, (double)choices[i][0],
                     (double)choices[i][1], error);
        most = error > most ? error : most;
        if (i == 0) memcpy(plain, got, sizeof plain);
        if (i && distance(got, plain, n) < 3e-5) fail_msg("%s: the adapters change nothing", arch);
    }
    print_message("%-10s %-22s %s: NMSE %.1e\n", arch, device, tn_type_name(type), most);
    tn_session_free(session);
    close_adapted(&x);
}

static const char *const kinds[] = {"llama",     "gpt2",      "gemma2",    "qwen3", "llama4", "qwen3moe", "gpt-oss",
                                    "deepseek2", "falcon-h1", "qwen3next", "mamba", "lfm2",   "phi3",     NULL};

static void sessions_compute_what_merged_models_compute(void **state) {
    (void)state;
    const char *gpu = getenv("TENON_GPU");
    for (size_t i = 0; kinds[i]; i++) {
        if (gpu && *gpu) {
            if (i % 6 == 0 || getenv("TENON_LONG")) check_as_merged(kinds[i], gpu, TN_F32, 1e-6);
            continue;
        }
        check_as_merged(kinds[i], "cpu", TN_F32, 1e-6);
        check_as_merged(kinds[i], "sim:1G,name=adapters", TN_F32, 1e-6);
    }
    check_as_merged("llama", gpu && *gpu ? gpu : "cpu", TN_F16, 1e-6);
    check_as_merged("qwen3moe", gpu && *gpu ? gpu : "cpu", TN_BF16, gpu && *gpu ? 1e-4 : 1e-6);
}

/* Micro-batches whose feed-forward part is computed in chunks, with some rows requested and with all. */
static void chunks_of_tokens_have_their_scales(void **state) {
    (void)state;
    enum { LONG = 90, CHUNK = 32 };
    static const char *const archs[] = {"llama", "qwen3moe"};
    static const float scales[] = {1, -0.5f};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int all = 0; all < 2; all++) {
            adapted x;
            tn_session *sessions[2];
            tn_model *merged;
            write_adapted(archs[i], TN_F32);
            open_adapted(&x);
            tiny_merge(other_path, model_path, (const tiny_adapter[]){{a_path, scales[0]}, {b_path, scales[1]}}, 2);
            assert_ok(tn_model_open(other_path, NULL, &merged));
            tn_session_params p = adapted_params(&x, "cpu");
            p.n_ubatch = p.n_outputs = LONG;
            p.ffn_chunk = CHUNK;
            assert_ok(tn_session_open(x.model, &p, &sessions[0]));
            p.n_adapters = 0;
            assert_ok(tn_session_open(merged, &p, &sessions[1]));
            assert_ok(tn_session_seq_adapters(sessions[0], 1, scales));
            tn_token tokens[LONG];
            int32_t seqs[LONG];
            bool wanted[LONG];
            for (int32_t k = 0; k < LONG; k++) {
                tokens[k] = token_at(2, k);
                seqs[k] = k >= LONG / 3; /* the tokens before belong to a sequence without adapters */
                wanted[k] = k >= LONG / 3 && (all || k % 2);
            }
            for (int k = 0; k < 2; k++)
                assert_ok(tn_session_decode(
                    sessions[k], &(tn_batch){.n_tokens = LONG, .tokens = tokens, .seqs = seqs, .outputs = wanted}));
            const int32_t n = tn_session_output_count(sessions[0]);
            const double error = distance(tn_session_logits(sessions[0], 0), tn_session_logits(sessions[1], 0), n);
            if (!(error <= 1e-9)) fail_msg("%s, %d rows: NMSE %g", archs[i], n, error);
            for (int k = 0; k < 2; k++) tn_session_free(sessions[k]);
            tn_model_close(merged);
            close_adapted(&x);
        }
}

/* ---- One batch, several choices ---- */

static void check_batch(const char *arch, const char *device, bool repeatable) {
    adapted x;
    tn_session *session;
    write_adapted(arch, TN_F32);
    open_adapted(&x);
    tn_session_params p = adapted_params(&x, device);
    p.repeatable = repeatable;
    assert_ok(tn_session_open(x.model, &p, &session));
    static const float scales[SEQS][2] = {{0, 0}, {1, 0}, {0.5f, -1}, {0, 2}};
    float alone[SEQS][VOCAB], rows[(STEPS + 1) * VOCAB];
    for (int32_t seq = 0; seq < SEQS; seq++) {
        assert_ok(tn_session_seq_adapters(session, seq, scales[seq]));
        assert_true(tn_session_seq_adapter_scale(session, seq, 1) == scales[seq][1]);
        const int32_t n = decode_text(session, seq, 7, rows);
        memcpy(alone[seq], rows + (ptrdiff_t)(n - 1) * VOCAB, sizeof alone[seq]);
    }
    /* All sequences together, their tokens in turns; several in every micro-batch. */
    tn_session_clear(session);
    for (int32_t begin = 0, count; begin < TOKENS + STEPS; begin += count) {
        tn_token tokens[TOKENS * SEQS];
        int32_t seqs[TOKENS * SEQS], m = 0;
        count = begin ? 1 : TOKENS;
        for (int32_t i = 0; i < count; i++)
            for (int32_t seq = 0; seq < SEQS; seq++, m++) {
                tokens[m] = token_at(7, begin + i);
                seqs[m] = seq;
            }
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = m, .tokens = tokens, .seqs = seqs}));
    }
    for (int32_t seq = 0; seq < SEQS; seq++) {
        const float *row = tn_session_logits(session, seq);
        const double error = distance(row, alone[seq], 1);
        const bool same = memcmp(row, alone[seq], sizeof alone[seq]) == 0;
        if (repeatable ? !same : !(error <= 1e-9))
            fail_msg("%s: sequence %d differs by %g in a batch", arch, seq, error);
    }
    tn_session_free(session);
    close_adapted(&x);
}

static void sequences_of_a_batch_have_their_own(void **state) {
    (void)state;
    const char *gpu = getenv("TENON_GPU");
    if (gpu && *gpu) {
        check_batch("llama", gpu, false);
        return;
    }
    for (size_t i = 0; kinds[i]; i += 2) check_batch(kinds[i], "sim:1G,name=adapters", false);
    check_batch("llama", "cpu", true);
    check_batch("qwen3moe", "cpu", true);
    check_batch("deepseek2", "cpu", true);
}

/* Greedy loops, which devices run ahead of the host. */
static void greedy_loops_follow_the_scales(void **state) {
    (void)state;
    const char *gpu = getenv("TENON_GPU");
    adapted x;
    tn_session *session;
    write_adapted("llama", TN_F32);
    open_adapted(&x);
    const tn_session_params p = adapted_params(&x, gpu && *gpu ? gpu : "sim:1G,name=adapters");
    assert_ok(tn_session_open(x.model, &p, &session));
    tn_token texts[2][24];
    for (int way = 0; way < 2; way++) { /* with argmax, then with logits */
        tn_session_clear(session);
        tn_token token = 5;
        for (int i = 0; i < 24; i++) {
            static const float scales[3][2] = {{1, 0}, {0, 0}, {1, 1}};
            if (i % 8 == 0) assert_ok(tn_session_seq_adapters(session, 0, scales[i / 8]));
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token, .argmax = way == 0}));
            texts[way][i] = token = tn_session_argmax(session, 0);
        }
    }
    assert_memory_equal(texts[0], texts[1], sizeof texts[0]);
    tn_session_free(session);
    close_adapted(&x);
}

/* ---- Control vectors ---- */

static void control_vectors_are_added_after_layers(void **state) {
    (void)state;
    const char *gpu = getenv("TENON_GPU");
    const tiny_options options = {.arch = "gpt2", .vocab = VOCAB, .context = 256, .layers = 5};
    float want[(STEPS + 1) * VOCAB], got[(STEPS + 1) * VOCAB];
    assert_ok(tiny_model_write(model_path, &options));
    tiny_control_vector_write(a_path, model_path, 1);
    tiny_merge_control(other_path, model_path, a_path, 1.5f, 2, 3);
    tn_model *models[2];
    tn_control_vector *vector;
    assert_ok(tn_model_open(other_path, NULL, &models[0]));
    assert_ok(tn_model_open(model_path, NULL, &models[1]));
    assert_ok(tn_control_vector_open(models[1], a_path, &vector));
    const tn_control_use uses[] = {{vector, 1}, {vector, 0.5f}};
    for (int i = 0; i < 2; i++) {
        tn_session_params p = base_params(i && gpu && *gpu ? gpu : i ? "sim:1G,name=adapters" : "cpu");
        tn_session *session;
        if (i) {
            p.controls = uses;
            p.n_controls = 2;
            p.control_first = 2;
            p.control_last = 3;
        }
        assert_ok(tn_session_open(models[i], &p, &session));
        decode_text(session, 0, 0, i ? got : want);
        tn_session_free(session);
    }
    const double error = distance(got, want, STEPS + 1);
    if (!(error <= 1e-6)) fail_msg("NMSE %g", error);
    tn_control_vector_close(vector);
    for (int i = 0; i < 2; i++) tn_model_close(models[i]);
}

/* ---- The plan ---- */

static void adapters_take_what_was_planned(void **state) {
    (void)state;
    for (int way = 0; way < 2; way++) { /* all layers on the device, and one */
        adapted x;
        tn_session_plan *plan;
        tn_session *session;
        tn_fit fit, now;
        write_adapted(way ? "llama" : "qwen3moe", TN_F16);
        open_adapted(&x);
        tn_session_params p = adapted_params(&x, "sim:1G,name=adapters");
        p.n_gpu_layers = way ? 1 : 1000;
        assert_ok(tn_session_plan_new(x.model, &p, &plan));
        assert_ok(tn_session_plan_fit(plan, &fit));
        assert_true(fit.devices[0].adapters > 0);
        assert_ok(tn_session_new(plan, &session));
        for (int i = 0; i < CHOICES; i++) {
            float rows[(STEPS + 1) * VOCAB];
            assert_ok(tn_session_seq_adapters(session, -1, choices[i]));
            decode_text(session, 0, 0, rows);
        }
        assert_ok(tn_session_memory(session, &now));
        for (size_t d = 0; d < fit.n_devices; d++) {
            const tn_fit_device *was = &fit.devices[d], *is = &now.devices[d];
            assert_int_equal(was->adapters, is->adapters);
            assert_int_equal(was->weights, is->weights);
            assert_int_equal(was->cache, is->cache);
            assert_int_equal(was->compute, is->compute);
            assert_int_equal(was->scratch, is->scratch);
            assert_int_equal(was->staging, is->staging);
        }
        const tn_fit_device *d = &fit.devices[0];
        assert_int_equal(atomic_load(&sim_of(d->name)->used),
                         d->weights + d->adapters + d->cache + d->compute + d->scratch + d->staging + d->own);
        assert_int_equal(tn_session_get_stats(session).sched.buffers_grown, 0);
        tn_fit_free(&fit);
        tn_fit_free(&now);
        tn_session_free(session);
        tn_session_plan_free(plan);
        close_adapted(&x);
    }
}

/* On devices of exactly the planned size every number of tokens is served with every choice, and nothing grows. */
static void check_exact_size(const char *arch, bool two) {
    enum { MOST = 40 };
    static const char *const names[] = {"exact", "exact-too"};
    adapted x;
    tn_session_plan *plan;
    tn_session *session;
    tn_fit fit;
    write_adapted(arch, TN_F16);
    open_adapted(&x);
    tn_session_params p = adapted_params(&x, "sim:1G,name=exact");
    if (two) p.devices[1] = "sim:1G,align=256,name=exact-too";
    if (two) p.split[0] = p.split[1] = 1;
    p.n_gpu_layers = 1000;
    p.n_ubatch = MOST;
    p.n_ctx = p.n_batch = 4 * MOST;     /* with two devices micro-batches are in flight */
    for (int run = 0; run < 2; run++) { /* ample memory, then exactly enough */
        assert_ok(tn_session_plan_new(x.model, &p, &plan));
        assert_ok(tn_session_plan_fit(plan, &fit));
        for (int d = 0; run == 0 && d <= two; d++) {
            const tn_fit_device *f = &fit.devices[d];
            tn__sim_resize(sim_of(names[d]), f->weights + f->adapters + f->cache + f->compute + f->scratch + f->own,
                           0);
            p.devices[d] = names[d];
        }
        if (run == 0) tn_session_plan_free(plan);
        tn_fit_free(&fit);
    }
    if (tn_session_new(plan, &session) != TN_OK) fail_msg("%s: %s", arch, tn_error());
    for (int32_t n = 1; n <= 2 * MOST; n++) {
        tn_token tokens[2 * MOST];
        int32_t seqs[2 * MOST];
        for (int32_t i = 0; i < n; i++) {
            tokens[i] = token_at(n, i);
            seqs[i] = i * SEQS / n;
        }
        for (int32_t seq = 0; seq < SEQS; seq++)
            assert_ok(tn_session_seq_adapters(session, seq, choices[n % 7 ? (n + seq * (n % 2)) % CHOICES : 0]));
        tn_session_clear(session);
        const tn_batch batch = {.n_tokens = n, .tokens = tokens, .seqs = seqs, .argmax = n % 3 == 0};
        if (tn_session_decode(session, &batch) != TN_OK) fail_msg("%s, %d tokens: %s", arch, n, tn_error());
    }
    assert_int_equal(tn_session_get_stats(session).sched.buffers_grown, 0);
    tn_session_free(session);
    tn_session_plan_free(plan);
    for (int d = 0; d <= two; d++) tn__sim_resize(sim_of(names[d]), (size_t)1 << 30, 0);
    close_adapted(&x);
}

static void devices_of_the_planned_size_serve_everything(void **state) {
    (void)state;
    check_exact_size("llama", false);
    check_exact_size("qwen3moe", false);
    check_exact_size("llama", true);
}

static tn_status failing_scenario(void *user) {
    const tn_session_params *base = user;
    tn_model *model;
    tn_adapter *adapter = NULL;
    tn_control_vector *vector = NULL;
    tn_session *session = NULL;
    tn_token token = 5;
    TN_TRY(tn_model_open(model_path, NULL, &model));
    tn_status status = tn_adapter_open(model, a_path, &adapter);
    if (status == TN_OK) status = tn_control_vector_open(model, b_path, &vector);
    tn_session_params p = *base;
    p.adapters = &(tn_adapter_use){adapter, 1};
    p.controls = &(tn_control_use){vector, 1};
    p.n_adapters = p.n_controls = 1;
    if (status == TN_OK) status = tn_session_open(model, &p, &session);
    if (status == TN_OK) status = tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token});
    tn_session_free(session);
    tn_control_vector_close(vector);
    tn_adapter_close(adapter);
    tn_model_close(model);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const tiny_adapter_options options = {.only = "attn_q", .alpha = 1, .seed = 1};
    assert_ok(tiny_model_write(model_path, &(tiny_options){.vocab = VOCAB}));
    assert_int_equal(tiny_adapter_write(a_path, model_path, &options), 2);
    tiny_control_vector_write(b_path, model_path, 1);
    tn_session_params p = base_params("cpu");
    p.n_ctx = 16;
    p.n_batch = p.n_ubatch = p.n_outputs = p.n_seqs = 1;
    check_no_leak(failing_scenario, &p);
    check_every_allocation_failure(failing_scenario, &p);
}

static size_t decode_nodes(const adapted *x, size_t n_adapters) {
    tn_session_params p = adapted_params(x, "cpu");
    tn_session_plan *plan;
    tn_fit fit;
    p.n_adapters = n_adapters;
    assert_ok(tn_session_plan_new(x->model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    const size_t nodes = fit.nodes_decode;
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return nodes;
}
static void adapters_that_are_off_cost_no_nodes(void **state) {
    (void)state;
    adapted x;
    write_adapted("llama", TN_F32);
    open_adapted(&x);
    const size_t without = decode_nodes(&x, 0), off = decode_nodes(&x, 2);
    x.uses[1].scale = 1;
    const size_t one = decode_nodes(&x, 2);
    x.uses[0].scale = 1;
    const size_t both = decode_nodes(&x, 2);
    assert_int_equal(off, without);
    assert_true(one > without && both > one);
    close_adapted(&x);
}

/* ---- Reuse ---- */

static int32_t take_text(tn_session *s, int32_t seq, const float scales[2], int32_t text, float *row) {
    tn_token tokens[TOKENS];
    int32_t seqs[TOKENS], taken = -1;
    for (int32_t i = 0; i < TOKENS; i++) {
        tokens[i] = token_at(text, i);
        seqs[i] = seq;
    }
    assert_ok(tn_session_seq_adapters(s, seq, scales));
    assert_ok(tn_session_prefix_take(s, seq, 0, tokens, TOKENS - 1, &taken));
    assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = TOKENS - taken, .tokens = tokens + taken, .seqs = seqs}));
    memcpy(row, tn_session_logits(s, -1), VOCAB * sizeof *row);
    assert_ok(tn_session_prefix_keep(s, seq));
    assert_ok(tn_session_seq_remove(s, seq, 0, -1));
    return taken;
}

static void prefixes_serve_the_same_adapters_only(void **state) {
    (void)state;
    adapted x;
    tn_session *session;
    char disk[80];
    snprintf(disk, sizeof disk, "%s/tier", folder);
    write_adapted("llama", TN_F32);
    open_adapted(&x);
    tn_session_params p = adapted_params(&x, "cpu");
    p.n_prefixes = 16;
    p.repeatable = true;
    p.cache_ram = 1 << 20;
    p.cache_disk = disk;
    p.cache_disk_bytes = 8 << 20;
    float first[CHOICES][VOCAB], again[VOCAB];
    for (int run = 0; run < 2; run++) { /* the second finds what the first left on disk */
        assert_ok(tn_session_open(x.model, &p, &session));
        for (int i = 0; i < CHOICES; i++) {
            const int32_t taken = take_text(session, i % SEQS, choices[i], 3, run ? again : first[i]);
            if (!run && taken) fail_msg("choice %d took %d tokens of another", i, taken);
            if (run && taken != TOKENS - 1) fail_msg("choice %d took %d tokens from disk", i, taken);
            if (run) assert_memory_equal(again, first[i], sizeof again);
        }
        for (int i = 0; i < CHOICES; i++) {
            assert_int_equal(take_text(session, 0, choices[i], 3, again), TOKENS - 1);
            assert_memory_equal(again, first[i], sizeof again);
        }
        tn_session_free(session);
    }
    /* A sequence whose scales change on its way is not kept, and neither does a copy with other scales count. */
    assert_ok(tn_session_open(x.model, &p, &session));
    tn_token tokens[TOKENS];
    int32_t taken;
    for (int32_t i = 0; i < TOKENS; i++) tokens[i] = token_at(4, i);
    assert_ok(tn_session_seq_adapters(session, 0, choices[1]));
    assert_ok(tn_session_prefix_take(session, 0, 0, tokens, TOKENS, &taken));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS / 2, .tokens = tokens}));
    assert_ok(tn_session_seq_copy(session, 0, 1, 0, -1));
    assert_ok(tn_session_seq_adapters(session, 0, choices[2]));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS / 2, .tokens = tokens + TOKENS / 2}));
    assert_ok(tn_session_prefix_keep(session, 0));
    assert_ok(tn_session_prefix_keep(session, 1));
    for (int i = 0; i < 3; i++) {
        assert_ok(tn_session_seq_adapters(session, 2, choices[i]));
        assert_ok(tn_session_prefix_take(session, 2, 0, tokens, TOKENS, &taken));
        assert_int_equal(taken, 0);
    }
    tn_session_free(session);
    /* Another file with the same name and shapes is another adapter. */
    const tiny_adapter_options changed = {.rank = 4, .alpha = 8, .seed = 99};
    close_adapted(&x);
    tiny_adapter_write(a_path, model_path, &changed);
    open_adapted(&x);
    p.adapters = x.uses;
    assert_ok(tn_session_open(x.model, &p, &session));
    assert_int_equal(take_text(session, 0, choices[1], 3, again), 0);
    assert_int_equal(take_text(session, 0, choices[2], 3, again), TOKENS - 1);
    tn_session_free(session);
    close_adapted(&x);
}

static void states_belong_to_their_adapters(void **state) {
    (void)state;
    adapted x;
    tn_session *session;
    float rows[(STEPS + 1) * VOCAB];
    write_adapted("llama", TN_F32);
    open_adapted(&x);
    const tn_session_params p = adapted_params(&x, "cpu");
    assert_ok(tn_session_open(x.model, &p, &session));
    assert_ok(tn_session_seq_adapters(session, 0, choices[1]));
    decode_text(session, 0, 0, rows);
    size_t size;
    assert_ok(tn_session_state_size(session, 0, &size));
    void *bytes = malloc(size);
    assert_ok(tn_session_state_get(session, 0, bytes, size));
    assert_fails(TN_E_STATE, tn_session_state_set(session, 1, bytes, size));
    assert_non_null(strstr(tn_error(), "adapters"));
    assert_ok(tn_session_seq_adapters(session, 1, choices[1]));
    assert_ok(tn_session_state_set(session, 1, bytes, size));
    free(bytes);
    tn_session_free(session);
    close_adapted(&x);
}

/* ---- Merging by the library ---- */

static void library_merges_rows(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen3moe", "deepseek2"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        adapted x;
        tn_gguf *merged;
        write_adapted(archs[i], TN_F32);
        open_adapted(&x);
        tiny_merge(other_path, model_path, &(tiny_adapter){a_path, 0.5f}, 1);
        assert_ok(tn_gguf_open(other_path, NULL, &merged));
        for (size_t k = 0; tn_adapter_weight(x.a, k); k++) {
            const char *name = tn_adapter_weight(x.a, k);
            const tn_gguf_tensor *from = tn_gguf_find_tensor(tn_model_file(x.model), name),
                                 *want = tn_gguf_find_tensor(merged, name);
            const int64_t n = (int64_t)(from->size / 4), half = from->ne[0] * (from->ne[1] / 2);
            float *values = malloc(from->size);
            nmse error = {0};
            memcpy(values, from->data, from->size);
            assert_ok(tn_adapter_merge(x.a, name, 0.5f, 0, half, values));
            assert_ok(tn_adapter_merge(x.a, name, 0.5f, half, n - half, values + half));
            nmse_add(&error, values, want->data, (int32_t)n);
            if (!(nmse_value(&error) <= 1e-12)) fail_msg("%s: NMSE %g", name, nmse_value(&error));
            free(values);
        }
        tn_gguf_close(merged);
        close_adapted(&x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_compute_what_merged_models_compute),
        cmocka_unit_test(chunks_of_tokens_have_their_scales),
        cmocka_unit_test(sequences_of_a_batch_have_their_own),
        cmocka_unit_test(greedy_loops_follow_the_scales),
        cmocka_unit_test(control_vectors_are_added_after_layers),
        cmocka_unit_test(adapters_take_what_was_planned),
        cmocka_unit_test(devices_of_the_planned_size_serve_everything),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(adapters_that_are_off_cost_no_nodes),
        cmocka_unit_test(prefixes_serve_the_same_adapters_only),
        cmocka_unit_test(states_belong_to_their_adapters),
        cmocka_unit_test(library_merges_rows),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
