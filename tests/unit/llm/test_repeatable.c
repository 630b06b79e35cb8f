/* Repeatable sessions: the logits of a token have the same bits however the tokens of its sequence are divided into
 * batches, whatever other sequences the batches hold, with taken prefixes, micro-batches and pages of any size and
 * any number of threads. Every level of this machine's CPU is tested in a process of its own; with TENON_GPU that
 * device instead. */
#include "support.h"

#include "backend/cpu/kernels/kernels.h"
#include "models/tiny_models.h"
#include "tenon/cpu.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { LENGTH = 44, OTHERS = 31, VOCAB = 96, LONG_LENGTH = 2300 };

static char repeatable_path[64];

typedef struct repeatable_case {
    const char *name;
    tn_model *model;
    tn_session_params params;
    tn_token tokens[LONG_LENGTH];
    int32_t length;
    float *want; /* [length][VOCAB] */
} repeatable_case;

static const char *tested_gpu(void) { return getenv("TENON_GPU"); }
/* The generic kernels are slow and have one order of additions anyway; emulated GPUs are slower still. */
static bool is_generic(void) { return strcmp(tn_cpu_level(), "generic") == 0 || tested_gpu(); }

/* Text number `text`: the same tokens every time. */
static void make_tokens(tn_token *tokens, int32_t n, uint32_t text) {
    for (int32_t i = 0; i < n; i++)
        tokens[i] =
            (tn_token)((text * 2654435761u + (uint32_t)i * 40503u + (uint32_t)(i * i)) >> 7) % (VOCAB - 3) + 3;
}

static tn_session_params repeatable_params(tn_type cache) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = tested_gpu() ? tested_gpu() : "cpu";
    p.n_ctx = 1024;
    p.n_ubatch = p.n_batch = p.n_outputs = 64;
    p.n_threads = 1;
    p.page = 32;
    p.cache_k = p.cache_v = cache;
    p.repeatable = true;
    return p;
}

/* ---- Decoding and comparing ---- */

/* A batch under construction: the rows of sequence 0 are compared. */
typedef struct mixed_batch {
    tn_token tokens[512];
    int32_t positions[512], seqs[512], n;
    bool outputs[512];
} mixed_batch;

static void add_row(mixed_batch *b, int32_t seq, tn_token token, int32_t position, bool output) {
    b->tokens[b->n] = token;
    b->seqs[b->n] = seq;
    b->positions[b->n] = position;
    b->outputs[b->n++] = output;
}
static void decode_mixed(tn_session *s, const mixed_batch *b) {
    const tn_batch batch = {
        .n_tokens = b->n, .tokens = b->tokens, .positions = b->positions, .seqs = b->seqs, .outputs = b->outputs};
    assert_ok(tn_session_decode(s, &batch));
}
/* The outputs of the last decode are rows from, from + 1, … of the text. */
static void compare_rows(const repeatable_case *c, tn_session *s, int32_t from, const char *what) {
    for (int32_t i = 0; i < tn_session_output_count(s); i++) {
        const float *got = tn_session_logits(s, i), *want = c->want + (size_t)(from + i) * VOCAB;
        if (memcmp(got, want, VOCAB * sizeof(float)) == 0) continue;
        int at = 0;
        while (memcmp(&got[at], &want[at], sizeof(float)) == 0) at++;
        fail_msg("%s, %s, %s: logit %d of token %d is %.9g, not %.9g", tn_cpu_level(), c->name, what, at, from + i,
                 (double)got[at], (double)want[at]);
    }
}
/* Tokens [from, to) of the text as one batch of sequence 0. */
static void decode_part(const repeatable_case *c, tn_session *s, int32_t from, int32_t to, const char *what) {
    mixed_batch b = {.n = 0};
    for (int32_t i = from; i < to; i++) add_row(&b, 0, c->tokens[i], i, true);
    decode_mixed(s, &b);
    compare_rows(c, s, from, what);
}

static tn_session *open_session(const repeatable_case *c, const tn_session_params *p) {
    tn_session *s;
    assert_ok(tn_session_open(c->model, p, &s));
    return s;
}
static void open_repeatable(repeatable_case *c, const char *name, const tiny_options *options, tn_type cache) {
    memset(c, 0, sizeof *c);
    c->name = name;
    assert_ok(tiny_model_write(repeatable_path, options));
    assert_ok(tn_model_open(repeatable_path, NULL, &c->model));
    c->params = repeatable_params(cache);
    c->length = LENGTH;
    make_tokens(c->tokens, LONG_LENGTH, 1);
}
static void close_repeatable(repeatable_case *c) {
    free(c->want);
    tn_model_close(c->model);
}

/* The reference: one batch in a session of its own. */
static void compute_whole(repeatable_case *c) {
    tn_session *s = open_session(c, &c->params);
    mixed_batch b = {.n = 0};
    c->want = calloc((size_t)c->length * VOCAB, sizeof(float));
    for (int32_t i = 0; i < c->length; i++) add_row(&b, 0, c->tokens[i], i, true);
    decode_mixed(s, &b);
    for (int32_t i = 0; i < c->length; i++)
        memcpy(c->want + (size_t)i * VOCAB, tn_session_logits(s, i), VOCAB * sizeof(float));
    tn_session_free(s);
}

/* ---- Ways to divide ---- */

static void check_cuts(const repeatable_case *c) {
    tn_session *s = open_session(c, &c->params);
    for (int32_t i = 0; i < c->length; i++) decode_part(c, s, i, i + 1, "token by token");
    /* A third of the cuts for each model in turn, those at the ends of pages for all. */
    static int32_t turn;
    turn++;
    for (int32_t cut = 1; cut < c->length; cut++) {
        const bool page_end = (cut + 1) % c->params.page < 3;
        if (is_generic() ? cut % 17 != 1 : !page_end && (cut + turn) % 3 != 0) continue;
        char what[40];
        snprintf(what, sizeof what, "cut at %d", cut);
        assert_ok(tn_session_seq_remove(s, 0, 0, -1));
        decode_part(c, s, 0, cut, what);
        decode_part(c, s, cut, c->length, what);
    }
    tn_session_free(s);
}

/* Other sequences have tokens of their own and different numbers of them in every batch. */
static void check_crowd(const repeatable_case *c, int32_t others) {
    tn_session_params p = c->params;
    p.n_seqs = 1 + others;
    p.n_ctx = 2048;
    p.n_batch = p.n_ubatch = p.n_outputs = 128;
    tn_session *s = open_session(c, &p);
    int32_t lengths[1 + OTHERS] = {0};
    char what[40];
    snprintf(what, sizeof what, "among %d", others);
    rng r = {(uint64_t)others};
    while (lengths[0] < c->length) {
        mixed_batch b = {.n = 0};
        const int32_t from = lengths[0];
        const int32_t place = (int32_t)rng_below(&r, (uint64_t)others + 1);
        for (int32_t k = 0; k <= others; k++) {
            const int32_t seq = k == place ? 0 : k < place ? k + 1 : k;
            const int32_t n = rng_below(&r, 3) ? 1 : 1 + (int32_t)rng_below(&r, 5);
            for (int32_t i = 0; i < n && b.n < 120 && (seq || lengths[0] < c->length); i++, lengths[seq]++)
                add_row(&b, seq, seq ? (tn_token)rng_below(&r, VOCAB) : c->tokens[lengths[0]], lengths[seq],
                        seq == 0);
        }
        if (lengths[0] == from) continue;
        decode_mixed(s, &b);
        compare_rows(c, s, from, what);
    }
    tn_session_free(s);
}

static void check_prefix(const repeatable_case *c) {
    tn_session_params p = c->params;
    p.n_seqs = 2;
    p.n_prefixes = 4;
    tn_session *s = open_session(c, &p);
    mixed_batch b = {.n = 0};
    int32_t taken;
    /* Sequence 1 begins in the same way, leaves a prefix that ends inside a page, and goes on otherwise. */
    assert_ok(tn_session_prefix_take(s, 1, 0, c->tokens, 1, &taken));
    for (int32_t i = 0; i < 27; i++) add_row(&b, 1, c->tokens[i], i, i == 26);
    decode_mixed(s, &b);
    assert_ok(tn_session_prefix_keep(s, 1));
    b.n = 0;
    for (int32_t i = 27; i < 35; i++) add_row(&b, 1, 5, i, i == 34);
    decode_mixed(s, &b);
    for (int again = 0; again < 2; again++) {
        assert_ok(tn_session_prefix_take(s, 0, 0, c->tokens, c->length - 1, &taken));
        if (taken < 20) fail_msg("%s: only %d tokens taken", c->name, taken);
        for (int32_t i = taken; i < c->length; i += 5)
            decode_part(c, s, i, i + 5 < c->length ? i + 5 : c->length, "after a prefix");
        assert_ok(tn_session_prefix_keep(s, 0));
        assert_ok(tn_session_seq_remove(s, 0, 0, -1));
    }
    tn_session_free(s);
}

static void check_settings(const repeatable_case *c) {
    static const struct {
        int32_t ubatch, page;
        int threads;
    } settings[] = {{1, 32, 1}, {7, 16, 2}, {16, 64, 3}, {33, 7, 2}, {64, 256, 4}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        tn_session_params p = c->params;
        char what[80];
        p.n_ubatch = settings[i].ubatch;
        p.page = settings[i].page;
        p.n_threads = settings[i].threads;
        snprintf(what, sizeof what, "micro-batch %d, page %d, %d threads", p.n_ubatch, p.page, p.n_threads);
        tn_session *s = open_session(c, &p);
        decode_part(c, s, 0, c->length, what);
        tn_session_free(s);
    }
}

static void check_all(const char *name, const tiny_options *options, tn_type cache) {
    repeatable_case c;
    open_repeatable(&c, name, options, cache);
    compute_whole(&c);
    check_cuts(&c);
    check_crowd(&c, 1);
    check_crowd(&c, 7);
    check_crowd(&c, OTHERS);
    check_prefix(&c);
    check_settings(&c);
    close_repeatable(&c);
}

/* ---- Tests ---- */

static tiny_options wide_model(const char *arch, tn_type type) {
    return (tiny_options){.arch = arch,
                          .type = type,
                          .width = 256,
                          .heads = 4,
                          .kv_heads = 2,
                          .head = 64,
                          .ffn = 512,
                          .vocab = VOCAB,
                          .context = 4096,
                          .seed = 5};
}

static void test_every_type_of_weights(void **state) {
    (void)state;
    static const tn_type types[] = {TN_F32, TN_F16, TN_BF16, TN_Q8_0, TN_Q4_0, TN_Q4_K, TN_Q6_K, TN_Q5_K, TN_IQ4_XS};
    for (size_t t = 0; t < sizeof types / sizeof *types; t += is_generic() ? 5 : 1) {
        const tiny_options o = wide_model("llama", types[t]);
        check_all(tn_type_name(types[t]), &o, t % 2 ? TN_F16 : TN_Q8_0);
    }
}

static void test_experts(void **state) {
    (void)state;
    static const tn_type types[] = {TN_F16, TN_Q4_K, TN_Q8_0};
    for (size_t t = 0; t < sizeof types / sizeof *types; t += is_generic() ? 3 : 1) {
        tiny_options o = wide_model("qwen3moe", types[t]);
        o.experts = 4;
        o.experts_used = 2;
        check_all("experts", &o, TN_F16);
    }
}

static void test_windows_and_other_architectures(void **state) {
    (void)state;
    static const char *const archs[] = {"gemma2", "gemma3", "gpt2", "phi3", "qwen2"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i += is_generic() ? 9 : 1) {
        tiny_options o = wide_model(archs[i], TN_Q4_K);
        o.kv_heads = i == 2 ? 0 : 1;
        check_all(archs[i], &o, i % 2 ? TN_F16 : TN_Q8_0);
    }
}

/* Recurrent state (with convolutions, decays per head and per channel, the delta rule), latent rows, and both;
 * selected positions. */
static void test_recurrent_latent_and_sparse_layers(void **state) {
    (void)state;
    static const char *const archs[] = {"jamba",     "mamba2", "qwen3next", "minimax-01", "kimi-linear", "deepseek2",
                                        "falcon-h1", "lfm2",   "glm-dsa",   "minimax-m3", "kimi-k3"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i += is_generic() ? 5 : 1) {
        const tiny_options o = {.arch = archs[i], .type = TN_F16, .vocab = VOCAB, .context = 4096, .seed = 5};
        check_all(archs[i], &o, i % 2 ? TN_F16 : TN_F32);
    }
}

/* Several splits of the visible cells: the last rows of a long text in batches of different sizes, full and windowed.
 * The reference is the first way. */
static void check_long(uint32_t window, tn_type cache) {
    tiny_options o = {.arch = window ? "gemma3" : "llama",
                      .type = TN_Q8_0,
                      .width = 64,
                      .heads = 8,
                      .kv_heads = 1,
                      .head = 32,
                      .ffn = 64,
                      .vocab = VOCAB,
                      .context = 4096,
                      .window = window};
    static const struct {
        int32_t step, page;
        int threads;
    } ways[] = {{500, 64, 1}, {257, 16, 3}, {96, 100, 2}};
    enum { ROWS = 24 };
    repeatable_case c;
    open_repeatable(&c, window ? "long, windowed" : "long", &o, cache);
    c.want = calloc((size_t)LONG_LENGTH * VOCAB, sizeof(float));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        tn_session_params p = c.params;
        p.n_ctx = 4096;
        p.n_batch = p.n_ubatch = 512;
        p.page = ways[w].page;
        p.n_threads = ways[w].threads;
        tn_session *s = open_session(&c, &p);
        for (int32_t from = 0; from < LONG_LENGTH - ROWS; from += ways[w].step) {
            mixed_batch b = {.n = 0};
            for (int32_t i = from; i < from + ways[w].step && i < LONG_LENGTH - ROWS; i++)
                add_row(&b, 0, c.tokens[i], i, false);
            b.outputs[b.n - 1] = true;
            decode_mixed(s, &b);
        }
        const int32_t step = w == 0 ? ROWS : w == 1 ? 1 : 5;
        for (int32_t i = LONG_LENGTH - ROWS; i < LONG_LENGTH; i += step) {
            mixed_batch b = {.n = 0};
            for (int32_t k = i; k < i + step && k < LONG_LENGTH; k++) add_row(&b, 0, c.tokens[k], k, true);
            decode_mixed(s, &b);
            for (int32_t k = 0; w == 0 && k < ROWS; k++)
                memcpy(c.want + (size_t)(i + k) * VOCAB, tn_session_logits(s, k), VOCAB * sizeof(float));
            compare_rows(&c, s, i, "long");
        }
        tn_session_free(s);
    }
    close_repeatable(&c);
}
static void test_long_texts(void **state) {
    (void)state;
    if (is_generic()) skip();
    check_long(0, TN_F16);
    check_long(1500, TN_Q8_0);
    check_long(300, TN_F16);
}

/* ---- Levels ---- */

/* The level of the kernels is chosen once per process. */
static int run_level(const char *level) {
    char program[512], variable[64];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return 1;
    program[length] = '\0';
    snprintf(variable, sizeof variable, "TENON_CPU=%s", level);
    size_t n = 0;
    while (environ[n]) n++;
    char **environment = calloc(n + 2, sizeof *environment);
    memcpy(environment, environ, n * sizeof *environment);
    environment[n] = variable;
    pid_t child;
    int status = -1;
    if (posix_spawn(&child, program, NULL, NULL, (char *[]){program, NULL}, environment) == 0)
        waitpid(child, &status, 0);
    free(environment);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_of_weights),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_windows_and_other_architectures),
        cmocka_unit_test(test_recurrent_latent_and_sparse_layers),
        cmocka_unit_test(test_long_texts),
    };
    int failed = 0;
    if (!getenv("TENON_CPU") && !tested_gpu()) {
        for (int level = 0; level < TN__CPU_LEVELS; level++)
            if (tn__cpu_kernels_at((tn__cpu_level)level))
                failed += run_level(tn__cpu_level_name((tn__cpu_level)level));
        return failed != 0;
    }
    snprintf(repeatable_path, sizeof repeatable_path, "/tmp/tn_repeatable_%d.gguf", (int)getpid());
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(repeatable_path);
    return failed;
}
