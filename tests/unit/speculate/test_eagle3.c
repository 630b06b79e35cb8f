/* EAGLE-3 heads: their numbers against a plain computation, the states that their models return, the same text as
 * without guesses, planned bytes, and what is refused. */
#include "models/tiny_models.h"
#include "support.h"
#include "tenon/generate.h"
#include "tenon/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 160, WIDTH = 32, GUESS = 5, CONTEXT = 96, LENGTH = 60, BRANCHES = 4, LAYERS = 4 };
#include "plain_text.h"

static const char *temporary(const char *name) {
    static char paths[2][256];
    static int next;
    char *path = paths[next++ % 2];
    snprintf(path, sizeof paths[0], "/tmp/tn_eagle3_%d_%s.gguf", (int)getpid(), name);
    return path;
}

static tn_model *open_tiny(const tiny_options *options, const tn_model *target) {
    tn_model *model;
    const char *path = temporary(target ? "head" : "model");
    assert_ok(tiny_model_write(path, options));
    assert_ok(tn_model_open(path, &(tn_model_params){.target = target}, &model));
    remove(path);
    return model;
}

static tn_model *open_target(const char *arch, uint32_t layers) {
    return open_tiny(&(tiny_options){.arch = arch, .layers = layers, .vocab = VOCAB, .tokenizer = true, .seed = 1},
                     NULL);
}

/* Reads the states before the layers 1, 2 and 4. */
static tiny_options head_options(void) {
    return (tiny_options){.arch = "eagle3",
                          .layers = 1,
                          .vocab = VOCAB,
                          .tokenizer = true,
                          .target_width = WIDTH,
                          .target_layers = {1, 2, LAYERS},
                          .seed = 3};
}

static tn_session_params session_params(const tn_model *head, int32_t n_guess) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = CONTEXT;
    p.n_ubatch = 32;
    p.n_seqs = 1;
    p.n_guess = n_guess;
    p.n_threads = 1;
    p.repeatable = true;
    p.devices[0] = "cpu";
    p.states = head != NULL;
    p.n_state_layers = tn_model_target_layers(head, p.state_layers);
    return p;
}

static tn_session *open_session(tn_model *model, const tn_session_params *p) {
    tn_session *session;
    assert_ok(tn_session_open(model, p, &session));
    return session;
}

static tn_session *open_head_session(tn_model *head, const char *device) {
    tn_session_params p = session_params(NULL, GUESS);
    p.states = true;
    p.devices[0] = device;
    return open_session(head, &p);
}

/* ---- The head's numbers ---- */

/* A tensor of a file as doubles. */
static double *weight_of(const tn_gguf *file, const char *name) {
    const tn_gguf_tensor *t = tn_gguf_find_tensor(file, name);
    assert_non_null(t);
    const int64_t n = t->ne[0] * t->ne[1];
    float *numbers = malloc((size_t)n * sizeof *numbers);
    double *out = malloc((size_t)n * sizeof *out);
    assert_ok(tn_type_to_f32(t->type, t->data, numbers, n));
    for (int64_t i = 0; i < n; i++) out[i] = numbers[i];
    free(numbers);
    return out;
}

static void multiply(const double *w, const double *x, int columns, int rows, double *y) {
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < columns; c++) y[r] += w[r * columns + c] * x[c];
    }
}
static void normalise(const double *x, const double *w, int n, double *y) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(squares / n + 1e-5) * w[i];
}
static void rotate(double *x, int heads, int size, int position) {
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < size / 2; i++) {
            const double angle = position * pow(10000, -2.0 * i / size), c = cos(angle), s = sin(angle);
            double *pair = x + h * size + 2 * i, a = pair[0], b = pair[1];
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
}

enum { ROWS = 7, OWN_FROM = 5, HEADS = 2, KV_HEADS = 1, HEAD = 16, FF = 64, FEATURES = 3 * WIDTH, GUESSED = 50 };

/* The logits and the states of the tokens; the rows from OWN_FROM on have the state of the row before. */
static void compute_head(const tn_gguf *file, const tiny_options *o, const tn_token *tokens,
                         double features[ROWS][FEATURES], double states[ROWS][WIDTH], double logits[ROWS][GUESSED]) {
    static const char *const names[] = {"token_embd.weight",      "fc.weight",
                                        "blk.0.attn_norm.weight", "blk.0.attn_norm_2.weight",
                                        "blk.0.attn_q.weight",    "blk.0.attn_k.weight",
                                        "blk.0.attn_v.weight",    "blk.0.attn_output.weight",
                                        "blk.0.ffn_norm.weight",  "blk.0.ffn_gate.weight",
                                        "blk.0.ffn_up.weight",    "blk.0.ffn_down.weight",
                                        "output_norm.weight",     "output.weight",
                                        "enc.output_norm.weight"};
    enum { EMBD, FC, NORM_1, NORM_2, Q, K, V, O, NORM_F, GATE, UP, DOWN, NORM_O, OUT, NORM_IN, WEIGHTS };
    static double keys[ROWS][HEAD], values[ROWS][HEAD];
    double *w[WEIGHTS] = {NULL};
    for (int i = 0; i < WEIGHTS; i++)
        if (i != NORM_IN || o->norm_before_fc) w[i] = weight_of(file, names[i]);
    for (int t = 0; t < ROWS; t++) {
        double reduced[WIDTH], in[2 * WIDTH], q[HEADS * HEAD], mixed[HEADS * HEAD] = {0}, x[WIDTH], y[WIDTH],
                                                                             gate[FF], up[FF];
        if (t >= OWN_FROM) {
            memcpy(reduced, states[t - 1], sizeof reduced);
        } else {
            double normed[FEATURES];
            if (o->norm_before_fc) normalise(features[t], w[NORM_IN], FEATURES, normed);
            multiply(w[FC], o->norm_before_fc ? normed : features[t], FEATURES, WIDTH, reduced);
        }
        normalise(w[EMBD] + tokens[t] * WIDTH, w[NORM_1], WIDTH, in);
        normalise(reduced, w[NORM_2], WIDTH, in + WIDTH);
        multiply(w[Q], in, 2 * WIDTH, HEADS * HEAD, q);
        multiply(w[K], in, 2 * WIDTH, HEAD, keys[t]);
        multiply(w[V], in, 2 * WIDTH, HEAD, values[t]);
        rotate(q, HEADS, HEAD, t + 1);
        rotate(keys[t], 1, HEAD, t + 1);
        for (int h = 0; h < HEADS; h++) {
            double scores[ROWS], sum = 0;
            for (int s = 0; s <= t; s++) {
                scores[s] = 0;
                for (int i = 0; i < HEAD; i++) scores[s] += q[h * HEAD + i] * keys[s][i];
                sum += scores[s] = exp(scores[s] / sqrt(HEAD));
            }
            for (int s = 0; s <= t; s++)
                for (int i = 0; i < HEAD; i++) mixed[h * HEAD + i] += scores[s] / sum * values[s][i];
        }
        multiply(w[O], mixed, HEADS * HEAD, WIDTH, x);
        for (int i = 0; i < WIDTH; i++) x[i] += o->norm_before_residual ? in[WIDTH + i] : reduced[i];
        normalise(x, w[NORM_F], WIDTH, y);
        multiply(w[GATE], y, WIDTH, FF, gate);
        multiply(w[UP], y, WIDTH, FF, up);
        for (int i = 0; i < FF; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
        multiply(w[DOWN], up, FF, WIDTH, y);
        for (int i = 0; i < WIDTH; i++) states[t][i] = x[i] + y[i];
        normalise(states[t], w[NORM_O], WIDTH, y);
        multiply(w[OUT], y, WIDTH, GUESSED, logits[t]);
    }
    for (int i = 0; i < WEIGHTS; i++) free(w[i]);
}

static void numbers_are_those_of_the_definition(void **state) {
    (void)state;
    static double features[ROWS][FEATURES], states[ROWS][WIDTH], logits[ROWS][GUESSED];
    static float rows[ROWS][FEATURES + WIDTH];
    static const tn_token tokens[ROWS] = {5, 159, 7, 80, 33, 12, 100};
    for (int variant = 0; variant < 4; variant++) {
        tiny_options o = head_options();
        o.guessed = GUESSED;
        o.norm_before_fc = variant & 1;
        o.norm_before_residual = variant & 2;
        tn_model *head = open_tiny(&o, NULL);
        rng r = {(uint64_t)variant + 1};
        for (int t = 0; t < OWN_FROM; t++)
            for (int i = 0; i < FEATURES; i++) features[t][i] = (double)(rows[t][i] = rng_normal(&r));
        compute_head(tn_model_file(head), &o, tokens, features, states, logits);
        tn_session *session = open_head_session(head, "cpu");
        memset(rows[OWN_FROM], 0, sizeof rows[0] * (ROWS - OWN_FROM));
        for (int t = 0; t < ROWS; t++) {
            const int32_t position = t + 1, seq = 0;
            if (t >= OWN_FROM) memcpy(rows[t] + FEATURES, tn_session_state(session, 0), WIDTH * sizeof(float));
            assert_ok(tn_session_decode(
                session,
                &(tn_batch){
                    .n_tokens = 1, .tokens = &tokens[t], .positions = &position, .seqs = &seq, .states = rows[t]}));
            for (int i = 0; i < WIDTH; i++) assert_true(fabs(tn_session_state(session, 0)[i] - states[t][i]) < 1e-3);
            for (int i = 0; i < GUESSED; i++)
                assert_true(fabs(tn_session_logits(session, 0)[i] - logits[t][i]) < 1e-3);
        }
        assert_fails(TN_E_INVALID, tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = tokens}));
        tn_session_free(session);
        tn_model_close(head);
    }
}

/* ---- The model's states ---- */

/* Models of fewer layers with the same first ones: what comes out of them is what goes into the next layer. */
static void states_are_the_inputs_of_layers(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "qwen35", "mamba", "falcon-h1", "phi2", "lfm2"};
    static const tn_token tokens[] = {5, 6, 7, 8, 9, 10, 11};
    enum { N = sizeof tokens / sizeof *tokens };
    for (size_t k = 0; k < sizeof archs / sizeof *archs; k++) {
        tn_model *whole = open_target(archs[k], LAYERS);
        tn_session_params p = session_params(NULL, 0);
        p.states = true;
        p.n_state_layers = 4;
        const int32_t layers[] = {0, 1, 3, LAYERS};
        memcpy(p.state_layers, layers, sizeof layers);
        tn_session *all = open_session(whole, &p);
        p.n_ubatch = 3; /* several micro-batches */
        tn_session *parts = open_session(whole, &p);
        assert_ok(tn_session_decode(all, &(tn_batch){.n_tokens = N, .tokens = tokens}));
        assert_ok(tn_session_decode(parts, &(tn_batch){.n_tokens = N, .tokens = tokens}));
        for (int t = 0; t < N; t++)
            assert_memory_equal(tn_session_state(all, t), tn_session_state(parts, t), 4 * WIDTH * sizeof(float));
        assert_null(tn_session_state(all, N));
        for (int i = 1; i < 4; i++) {
            tn_model *first = open_target(archs[k], (uint32_t)layers[i]);
            p.n_ubatch = 32;
            p.n_state_layers = 1;
            p.state_layers[0] = layers[i];
            tn_session *some = open_session(first, &p);
            assert_ok(tn_session_decode(some, &(tn_batch){.n_tokens = N, .tokens = tokens}));
            for (int t = 0; t < N; t++)
                assert_memory_equal(tn_session_state(all, t) + i * WIDTH, tn_session_state(some, t),
                                    WIDTH * sizeof(float));
            tn_session_free(some);
            tn_model_close(first);
        }
        tn_session_free(all);
        tn_session_free(parts);
        tn_model_close(whole);
    }
}

/* ---- The same text ---- */

static int prompts(int usual) { return getenv("TENON_LONG") ? 1000 : usual; }

static tn_spec_stats compare_text(tn_session *plain, tn_session *checked, tn_session *head, bool fixed, int i) {
    static const float temperatures[] = {0, 0.8f, 1};
    tn_token prompt[12], text[LENGTH], guessed[LENGTH];
    rng r = {(uint64_t)i + 10};
    const int32_t n_prompt = 2 + (int32_t)rng_below(&r, 10);
    for (int k = 0; k < n_prompt; k++) prompt[k] = (tn_token)(3 + rng_below(&r, 40));
    tn_sampler *sampler = new_sampler(temperatures[i % 3], (uint64_t)i);
    tn_session_clear(plain);
    tn_session_clear(checked);
    tn_session_clear(head);
    const int32_t n = write_text(plain, prompt, n_prompt, sampler, text);
    tn_speculator *s;
    assert_ok(
        tn_speculator_new(checked, &(tn_spec_params){.kind = TN_SPEC_EAGLE3, .fixed = fixed, .draft = head}, &s));
    tn_session_set_speculator(checked, s);
    tn_sampler_reset(sampler);
    tn_session_reset_stats(checked);
    assert_int_equal(write_text(checked, prompt, n_prompt, sampler, guessed), n);
    assert_memory_equal(text, guessed, (size_t)n * sizeof *text);
    const tn_spec_stats stats = tn_speculator_stats(s);
    const tn_session_stats work = tn_session_get_stats(checked);
    assert_false(stats.failed);
    /* Every token is computed once: no part of the text is decoded again. */
    assert_int_equal(work.prompt_tokens + work.generated_tokens, (uint64_t)(n_prompt + n));
    assert_int_equal(stats.steps + stats.accepted, (uint64_t)n);
    tn_session_set_speculator(checked, NULL);
    tn_speculator_free(s);
    tn_sampler_free(sampler);
    return stats;
}

/* Targets with full attention, windows, recurrent state and latent attention; heads with a part of the vocabulary or
 * the ends of their model; paths and trees; a simulated device. */
static void guesses_change_nothing(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "gemma3", "qwen35", "mamba", "falcon-h1", "deepseek2"};
    static const char *const devices[] = {"cpu", "sim:64M,name=eagle"};
    uint64_t guessed = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int d = 0; d < 2; d++) {
            tn_model *model = open_target(archs[i], LAYERS);
            tiny_options o = head_options();
            o.guessed = i % 2 ? 64 : 0;
            o.borrows = i % 3 != 0;
            o.norm_before_fc = i % 2;
            tn_model *head = open_tiny(&o, model);
            for (int trees = 0; trees < 2; trees++) {
                tn_session_params p = session_params(NULL, 0), q = session_params(head, GUESS);
                q.n_branches = trees ? BRANCHES : 0;
                p.devices[0] = q.devices[0] = devices[d];
                tn_session *plain = open_session(model, &p), *checked = open_session(model, &q),
                           *guesses = open_head_session(head, devices[d]);
                for (int k = 0; k < prompts(3); k++)
                    guessed += compare_text(plain, checked, guesses, true, k).guessed;
                (void)compare_text(plain, checked, guesses, false, 0);
                tn_session_free(plain);
                tn_session_free(checked);
                tn_session_free(guesses);
            }
            tn_model_close(head);
            tn_model_close(model);
        }
    assert_true(guessed > 1000);
}

/* ---- Planned bytes ---- */

static void planned_bytes_are_taken(void **state) {
    (void)state;
    tn_model *model = open_target("llama", LAYERS);
    for (int borrows = 0; borrows < 2; borrows++) {
        tiny_options o = head_options();
        o.borrows = borrows;
        o.guessed = 64;
        tn_model *head = open_tiny(&o, model);
        const tn_session_params of_model = session_params(head, GUESS);
        tn_session_params of_head = session_params(NULL, GUESS);
        of_head.states = true;
        for (int which = 0; which < 2; which++) {
            tn_fit planned, taken;
            tn_session_plan *plan;
            tn_session *session;
            assert_ok(tn_session_plan_new(which ? head : model, which ? &of_head : &of_model, &plan));
            assert_ok(tn_session_plan_fit(plan, &planned));
            assert_ok(tn_session_new(plan, &session));
            assert_ok(tn_session_memory(session, &taken));
            for (size_t d = 0; d < planned.n_devices; d++) {
                const tn_fit_device *a = &planned.devices[d], *b = &taken.devices[d];
                assert_int_equal(a->weights, b->weights);
                assert_int_equal(a->mapped, b->mapped);
                assert_int_equal(a->cache, b->cache);
                assert_int_equal(a->compute, b->compute);
                assert_int_equal(a->scratch, b->scratch);
                assert_int_equal(a->staging, b->staging);
            }
            tn_fit_free(&planned);
            tn_fit_free(&taken);
            tn_session_free(session);
            tn_session_plan_free(plan);
        }
        tn_model_close(head);
    }
    tn_model_close(model);
}

/* ---- What is refused ---- */

static void refuse_head(const tiny_options *o, const tn_model *target, tn_status status, const char *why) {
    tn_model *head;
    const char *path = temporary("bad");
    assert_ok(tiny_model_write(path, o));
    assert_fails(status, tn_model_open(path, &(tn_model_params){.target = target}, &head));
    if (!strstr(tn_error(), why)) fail_msg("'%s' is not in '%s'", why, tn_error());
    remove(path);
}

static void write_bytes(const char *path, const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* The 32-bit number that many bytes after a key's name. */
static void refuse_changed_key(const char *key, size_t offset, uint32_t value, const char *why) {
    const tiny_options o = head_options();
    const char *path = temporary("key");
    tn_model *head;
    size_t size;
    assert_ok(tiny_model_write(path, &o));
    char *bytes = read_file(path, &size), *at = memmem(bytes, size, key, strlen(key));
    assert_non_null(at);
    memcpy(at + strlen(key) + offset, &value, sizeof value);
    write_bytes(path, bytes, size);
    free(bytes);
    assert_fails(TN_E_FORMAT, tn_model_open(path, NULL, &head));
    if (!strstr(tn_error(), why)) fail_msg("'%s' is not in '%s'", why, tn_error());
    remove(path);
}

static void heads_of_other_models_are_refused(void **state) {
    (void)state;
    tn_model *model = open_target("llama", LAYERS), *small = open_target("llama", 2);
    tiny_options o = head_options();
    o.target_width = 48;
    refuse_head(&o, model, TN_E_INVALID, "width of 32");
    o = head_options();
    o.vocab = 200;
    refuse_head(&o, model, TN_E_INVALID, "vocabulary of 200 tokens");
    o = head_options();
    refuse_head(&o, small, TN_E_INVALID, "has 2 layers");
    o.borrows = true;
    refuse_head(&o, NULL, TN_E_FORMAT, "can only be opened with its model");
    o.width = 64; /* the model's embedding has another width */
    refuse_head(&o, model, TN_E_SHAPE, "model.gguf: tensor 'output.weight'");
    refuse_changed_key("eagle3.target_layers", 20, 0, "ascending");
    refuse_changed_key("eagle3.target_hidden_size", 4, 0, "target_hidden_size");
    refuse_changed_key("eagle3.block_count", 4, 2, "2 layers");
    tn_model_close(model);
    tn_model_close(small);
}

static void sessions_that_do_not_suit_are_refused(void **state) {
    (void)state;
    tn_model *model = open_target("llama", LAYERS), *small = open_target("llama", 2);
    const tiny_options o = head_options();
    tn_model *head = open_tiny(&o, NULL);
    tn_session_params p = session_params(head, GUESS);
    tn_session *session = open_session(model, &p), *guesses = open_head_session(head, "cpu");
    p.state_layers[2] = 3;
    tn_session *others = open_session(model, &p);
    p.n_state_layers = 0;
    tn_session *last = open_session(model, &p);
    p.states = false;
    tn_session *none = open_session(model, &p);
    tn_speculator *s;
    tn_spec_params spec = {.kind = TN_SPEC_EAGLE3, .draft = guesses};
    assert_fails(TN_E_INVALID, tn_speculator_new(others, &spec, &s));
    assert_non_null(strstr(tn_error(), "layers 1, 2 and 4"));
    assert_fails(TN_E_INVALID, tn_speculator_new(last, &spec, &s));
    assert_fails(TN_E_INVALID, tn_speculator_new(none, &spec, &s));
    spec.kind = TN_SPEC_MTP;
    assert_fails(TN_E_INVALID, tn_speculator_new(session, &spec, &s));
    spec = (tn_spec_params){.kind = TN_SPEC_EAGLE3, .draft = none};
    assert_fails(TN_E_INVALID, tn_speculator_new(session, &spec, &s));
    spec.draft = NULL;
    assert_fails(TN_E_INVALID, tn_speculator_new(session, &spec, &s));
    p = session_params(head, GUESS);
    tn_session *refused;
    assert_fails(TN_E_INVALID, tn_session_open(small, &p, &refused)); /* layer 4 of 2 */
    p.state_layers[0] = 2, p.state_layers[1] = 1;
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &refused));
    p.states = false;
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &refused));
    tn_session_free(session);
    tn_session_free(others);
    tn_session_free(last);
    tn_session_free(none);
    tn_session_free(guesses);
    tn_model_close(head);
    tn_model_close(model);
    tn_model_close(small);
}

/* The tokens of d2t must be those of the model, each once. */
static void damaged_token_lists_are_refused(void **state) {
    (void)state;
    static const int64_t bad[] = {VOCAB, -1, 0};
    tn_model *model = open_target("llama", LAYERS);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tiny_options o = head_options();
        tn_model *head;
        tn_speculator *s;
        o.guessed = 64;
        const char *path = temporary("list");
        assert_ok(tiny_model_write(path, &o));
        assert_ok(tn_model_open(path, NULL, &head));
        const tn_gguf_tensor *t = tn_gguf_find_tensor(tn_model_file(head), "d2t");
        size_t size;
        char *bytes = read_file(path, &size);
        char *at = memmem(bytes, size, t->data, t->size);
        assert_non_null(at);
        memcpy(at + 5 * sizeof bad[i], &bad[i], sizeof bad[i]);
        tn_model_close(head);
        write_bytes(path, bytes, size);
        free(bytes);
        assert_ok(tn_model_open(path, NULL, &head));
        remove(path);
        const tn_session_params p = session_params(head, GUESS);
        tn_session *session = open_session(model, &p), *guesses = open_head_session(head, "cpu");
        assert_fails(TN_E_FORMAT,
                     tn_speculator_new(session, &(tn_spec_params){.kind = TN_SPEC_EAGLE3, .draft = guesses}, &s));
        assert_non_null(strstr(tn_error(), "d2t"));
        tn_session_free(session);
        tn_session_free(guesses);
        tn_model_close(head);
    }
    tn_model_close(model);
}

/* A head whose weights give NaN: its session fails, and decoding continues without guesses. */
static void failing_heads_leave_plain_decoding(void **state) {
    (void)state;
    tn_model *model = open_target("llama", LAYERS), *head;
    tiny_options o = head_options();
    const char *path = temporary("broken");
    assert_ok(tiny_model_write(path, &o));
    assert_ok(tn_model_open(path, NULL, &head));
    const tn_gguf_tensor *t = tn_gguf_find_tensor(tn_model_file(head), "output_norm.weight");
    size_t size;
    char *bytes = read_file(path, &size), *at = memmem(bytes, size, t->data, t->size);
    const float broken = NAN;
    assert_non_null(at);
    memcpy(at, &broken, sizeof broken);
    tn_model_close(head);
    write_bytes(path, bytes, size);
    free(bytes);
    assert_ok(tn_model_open(path, NULL, &head));
    remove(path);
    tn_session_params p = session_params(NULL, 0), q = session_params(head, GUESS);
    tn_session *plain = open_session(model, &p), *checked = open_session(model, &q),
               *guesses = open_head_session(head, "cpu");
    const tn_token prompt[] = {5, 6, 7};
    tn_token text[LENGTH], guessed[LENGTH];
    tn_sampler *sampler = new_sampler(0, 2);
    const int32_t n = write_text(plain, prompt, 3, sampler, text);
    tn_speculator *s;
    assert_ok(
        tn_speculator_new(checked, &(tn_spec_params){.kind = TN_SPEC_EAGLE3, .fixed = true, .draft = guesses}, &s));
    tn_session_set_speculator(checked, s);
    tn_sampler_reset(sampler);
    assert_int_equal(write_text(checked, prompt, 3, sampler, guessed), n);
    assert_memory_equal(text, guessed, (size_t)n * sizeof *text);
    assert_true(tn_speculator_stats(s).failed);
    tn_session_set_speculator(checked, NULL);
    tn_speculator_free(s);
    tn_sampler_free(sampler);
    tn_session_free(plain);
    tn_session_free(checked);
    tn_session_free(guesses);
    tn_model_close(head);
    tn_model_close(model);
}

typedef struct made {
    tn_session *session, *guesses;
    tn_model *model;
    const char *path;
} made;
static tn_status make_speculator(void *user) {
    const made *m = user;
    tn_speculator *s;
    TN_TRY(tn_speculator_new(m->session, &(tn_spec_params){.kind = TN_SPEC_EAGLE3, .draft = m->guesses}, &s));
    tn_speculator_free(s);
    return TN_OK;
}
static tn_status open_head(void *user) {
    const made *m = user;
    tn_model *head;
    TN_TRY(tn_model_open(m->path, &(tn_model_params){.target = m->model}, &head));
    tn_model_close(head);
    return TN_OK;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    tn_model *model = open_target("llama", LAYERS);
    tiny_options o = head_options();
    o.borrows = true;
    o.guessed = 64;
    tn_model *head = open_tiny(&o, model);
    const tn_session_params p = session_params(head, GUESS);
    made m = {.session = open_session(model, &p), .guesses = open_head_session(head, "cpu"), .model = model};
    check_every_allocation_failure(make_speculator, &m);
    m.path = temporary("again");
    assert_ok(tiny_model_write(m.path, &o));
    check_every_allocation_failure(open_head, &m);
    remove(m.path);
    tn_session_free(m.session);
    tn_session_free(m.guesses);
    tn_model_close(head);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_definition),
        cmocka_unit_test(states_are_the_inputs_of_layers),
        cmocka_unit_test(guesses_change_nothing),
        cmocka_unit_test(planned_bytes_are_taken),
        cmocka_unit_test(heads_of_other_models_are_refused),
        cmocka_unit_test(sessions_that_do_not_suit_are_refused),
        cmocka_unit_test(damaged_token_lists_are_refused),
        cmocka_unit_test(failing_heads_leave_plain_decoding),
        cmocka_unit_test(every_allocation_may_fail),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
