/* Speculative decoding: the same text as without it, for every proposer, and nothing computed twice. */
#include "models/tiny_models.h"
#include "support.h"
#include "tenon/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 160, GUESS = 5, CONTEXT = 96, LENGTH = 60 };
#include "plain_text.h"

typedef struct spec_case {
    tn_model *model, *draft_model;
    tn_session *plain, *checked, *draft;
} spec_case;

static bool with_states;       /* sessions give hidden states */
static bool repeatable = true; /* sessions are */
static int32_t n_branches;     /* of trees, in sessions that check guesses */
static int32_t n_state_layers, state_layers[TN_STATE_LAYERS_MOST];

static tn_session *open_session(tn_model *model, int32_t n_guess, int32_t n_seqs) {
    tn_session_params p = tn_session_params_default();
    p.states = with_states && n_guess;
    p.n_state_layers = n_state_layers;
    memcpy(p.state_layers, state_layers, sizeof p.state_layers);
    tn_session *session;
    p.n_ctx = CONTEXT * n_seqs;
    p.n_ubatch = 32;
    p.n_seqs = n_seqs;
    p.n_guess = n_guess;
    p.n_branches = n_guess ? n_branches * n_seqs : 0;
    p.n_threads = 1;
    p.repeatable = repeatable;
    p.devices[0] = "cpu";
    assert_ok(tn_session_open(model, &p, &session));
    return session;
}

static tn_model *open_tiny(const char *arch, uint32_t vocab, uint64_t seed) {
    char path[256];
    tn_model *model;
    snprintf(path, sizeof path, "/tmp/tn_speculate_%d.gguf", (int)getpid());
    assert_ok(tiny_model_write(
        path, &(tiny_options){.arch = arch, .vocab = vocab, .tokenizer = vocab >= VOCAB, .seed = seed}));
    assert_ok(tn_model_open(path, NULL, &model));
    remove(path);
    return model;
}

static void open_case(spec_case *c, const char *arch, const char *draft, uint32_t draft_vocab) {
    *c = (spec_case){.model = open_tiny(arch, VOCAB, 1)};
    c->plain = open_session(c->model, 0, 1);
    c->checked = open_session(c->model, GUESS, 1);
    if (!draft) return;
    c->draft_model = open_tiny(draft, draft_vocab, strcmp(arch, draft) == 0 ? 1 : 2);
    c->draft = open_session(c->draft_model, GUESS, 1);
}
static void close_case(spec_case *c) {
    tn_session_free(c->plain);
    tn_session_free(c->checked);
    tn_session_free(c->draft);
    tn_model_close(c->model);
    tn_model_close(c->draft_model);
}

/* Knows the text, and is wrong from time to time. */
typedef struct oracle {
    const tn_token *text;
    int32_t n_prompt, n;
    rng r;
    bool fails, nonsense;
} oracle;
static tn_status ask_oracle(void *user, tn_guess *g) {
    oracle *o = user;
    if (o->fails) return tn_fail(TN_E_IO, "the oracle is silent");
    for (g->n = 0; g->n < g->room; g->n++) {
        const int32_t at = g->n_tokens - o->n_prompt + g->n;
        const bool right = at < o->n && rng_below(&o->r, 10) < 7;
        g->guess[g->n] = right ? o->text[at] : o->nonsense ? VOCAB + 5 : (tn_token)rng_below(&o->r, VOCAB);
        g->probs[g->n] = 0.7f;
    }
    return TN_OK;
}

static tn_spec_stats compare(spec_case *c, const tn_spec_params *params, float temperature, uint64_t seed) {
    tn_token prompt[12], text[LENGTH], guessed[LENGTH];
    rng r = {seed};
    const int32_t n_prompt = 2 + (int32_t)rng_below(&r, 10);
    for (int i = 0; i < n_prompt; i++) prompt[i] = (tn_token)(3 + rng_below(&r, 40));
    tn_sampler *sampler = new_sampler(temperature, seed);
    tn_session_clear(c->plain);
    tn_session_clear(c->checked);
    const int32_t n = write_text(c->plain, prompt, n_prompt, sampler, text);
    oracle o = {.text = text, .n_prompt = n_prompt, .n = n, .r = {seed + 1}};
    tn_spec_params p = *params;
    p.user = &o;
    tn_speculator *s;
    assert_ok(tn_speculator_new(c->checked, &p, &s));
    tn_session_set_speculator(c->checked, s);
    tn_sampler_reset(sampler);
    tn_session_reset_stats(c->checked);
    assert_int_equal(write_text(c->checked, prompt, n_prompt, sampler, guessed), n);
    assert_memory_equal(text, guessed, (size_t)n * sizeof *text);
    const tn_spec_stats stats = tn_speculator_stats(s);
    const tn_session_stats counts = tn_session_get_stats(c->checked);
    /* Every token is computed once: no part of the text is decoded again. */
    assert_int_equal(counts.prompt_tokens + counts.generated_tokens, (uint64_t)(n_prompt + n));
    assert_int_equal(stats.steps + stats.accepted, (uint64_t)n);
    tn_session_set_speculator(c->checked, NULL);
    tn_speculator_free(s);
    if (c->draft) tn_session_clear(c->draft);
    tn_sampler_free(sampler);
    return stats;
}

static void compare_many(spec_case *c, const tn_spec_params *params, int n_prompts, uint64_t *accepted) {
    for (int i = 0; i < n_prompts; i++) {
        static const float temperatures[] = {0, 0.8f, 1};
        const tn_spec_stats stats = compare(c, params, temperatures[i % 3], (uint64_t)i + 10);
        *accepted += stats.accepted;
        assert_false(stats.failed);
    }
}

static int prompts(int usual) { return getenv("TENON_LONG") ? 1000 : usual; }

static const char *const archs[] = {"llama", "gemma2", "gemma3", "qwen35", "mamba", "falcon-h1", "lfm2", "deepseek2"};

static void guesses_of_a_function_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        spec_case c;
        uint64_t accepted = 0;
        open_case(&c, archs[i], NULL, 0);
        compare_many(&c, &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .fixed = true, .propose = ask_oracle},
                     prompts(6), &accepted);
        assert_true(accepted > 100); /* most of what the function knows */
        compare_many(&c, &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .propose = ask_oracle}, 2, &accepted);
        close_case(&c);
    }
}

static void guesses_of_ngrams_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        spec_case c;
        uint64_t accepted = 0;
        open_case(&c, archs[i], NULL, 0);
        compare_many(&c, &(tn_spec_params){.kind = TN_SPEC_NGRAM, .fixed = true, .ngram = 2}, prompts(6), &accepted);
        close_case(&c);
    }
}

/* The draft is the same model, another one, or one with another vocabulary. */
static void guesses_of_a_draft_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        spec_case c;
        uint64_t accepted = 0, other = 0;
        open_case(&c, archs[i], archs[i], VOCAB);
        const tn_spec_params params = {.kind = TN_SPEC_DRAFT, .fixed = true, .draft = c.draft};
        compare_many(&c, &params, prompts(4), &accepted);
        assert_true(accepted > 100); /* of the same model nearly all */
        close_case(&c);
        open_case(&c, archs[i], i % 2 ? "llama" : "mamba", VOCAB);
        const tn_spec_params stranger = {.kind = TN_SPEC_DRAFT, .fixed = true, .draft = c.draft};
        compare_many(&c, &stranger, prompts(3), &other);
        close_case(&c);
        if (i) continue;
        open_case(&c, archs[i], "llama", 2 * VOCAB); /* tokens are mapped by their texts */
        const tn_spec_params larger = {.kind = TN_SPEC_DRAFT, .fixed = true, .draft = c.draft};
        compare_many(&c, &larger, prompts(3), &other);
        close_case(&c);
    }
}

/* Heads of several families, with random weights: what they guess is checked like any other guess. */
static void guesses_of_a_head_change_nothing(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "glm4moe", "deepseek2", "qwen35"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char path[256];
        spec_case c = {0};
        uint64_t accepted = 0;
        snprintf(path, sizeof path, "/tmp/tn_speculate_%d.gguf", (int)getpid());
        assert_ok(tiny_model_write(
            path, &(tiny_options){
                      .arch = families[i], .layers = 4, .vocab = VOCAB, .tokenizer = true, .nextn = 1, .seed = 1}));
        assert_ok(tn_model_open(path, NULL, &c.model));
        assert_ok(tn_model_open(path, &(tn_model_params){.head = true}, &c.draft_model));
        remove(path);
        c.plain = open_session(c.model, 0, 1);
        for (n_branches = 0; n_branches < 4; n_branches += 3) {
            with_states = true;
            c.checked = open_session(c.model, GUESS, 1);
            c.draft = open_session(c.draft_model, GUESS, 1);
            with_states = false;
            const tn_spec_params params = {.kind = TN_SPEC_MTP, .fixed = true, .draft = c.draft};
            compare_many(&c, &params, prompts(4), &accepted);
            tn_session_free(c.checked);
            tn_session_free(c.draft);
        }
        n_branches = 0;
        c.checked = c.draft = NULL;
        close_case(&c);
    }
}

/* The repository's model, and what was trained for it. */
static void open_tales(spec_case *c, tn_spec_kind kind, const char *file, int32_t branches) {
    char path[512];
    *c = (spec_case){0};
    assert_ok(tn_model_open(TENON_SOURCE_DIR "/models/tales.gguf", NULL, &c->model));
    c->plain = open_session(c->model, 0, 1);
    if (file) {
        snprintf(path, sizeof path, TENON_SOURCE_DIR "/models/%s", file);
        assert_ok(tn_model_open(path, &(tn_model_params){.head = kind == TN_SPEC_MTP, .target = c->model},
                                &c->draft_model));
    }
    with_states = kind == TN_SPEC_MTP || kind == TN_SPEC_EAGLE3;
    n_branches = branches;
    if (file) n_state_layers = tn_model_target_layers(c->draft_model, state_layers);
    c->checked = open_session(c->model, GUESS, 1);
    n_branches = n_state_layers = 0;
    if (file) c->draft = open_session(c->draft_model, GUESS, 1);
    with_states = false;
}

/* What was trained for the repository's model guesses most of its tokens, as paths and as trees: of the alternatives
 * of a tree some are right, and what follows them is guessed as well as ever. */
static void trained_guessers_are_mostly_right(void **state) {
    (void)state;
    static const struct {
        const char *file;
        tn_spec_kind kind;
        int32_t branches;
    } cases[] = {{"tales-mtp.gguf", TN_SPEC_MTP, 0},       {"tales-draft.gguf", TN_SPEC_DRAFT, 0},
                 {"tales-eagle3.gguf", TN_SPEC_EAGLE3, 0}, {"tales-mtp.gguf", TN_SPEC_MTP, 2},
                 {"tales-draft.gguf", TN_SPEC_DRAFT, 2},   {"tales-eagle3.gguf", TN_SPEC_EAGLE3, 2}};
    static const tn_token prompt[] = {0, 313, 1, 0, 313};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_case c;
        tn_token text[LENGTH], guessed[LENGTH];
        const tn_spec_kind kind = cases[i].kind;
        open_tales(&c, kind, cases[i].file, cases[i].branches);
        tn_sampler_params p = tn_sampler_params_default();
        tn_sampler *sampler;
        p.temperature = 0;
        assert_ok(tn_sampler_new(&p, (size_t)tn_model_get_info(c.model).n_vocab, &sampler));
        const int32_t n = write_text(c.plain, prompt, 1, sampler, text);
        tn_speculator *s;
        assert_ok(tn_speculator_new(
            c.checked,
            &(tn_spec_params){.kind = kind, .n_max = cases[i].branches ? 5 : 3, .fixed = true, .draft = c.draft},
            &s));
        tn_session_set_speculator(c.checked, s);
        assert_int_equal(write_text(c.checked, prompt, 1, sampler, guessed), n);
        assert_memory_equal(text, guessed, (size_t)n * sizeof *text);
        const tn_spec_stats stats = tn_speculator_stats(s);
        if (getenv("TENON_LONG"))
            print_message("%s, %d branches: %d of %d right, %d of %d first ones\n", cases[i].file, cases[i].branches,
                          (int)stats.accepted, (int)stats.guessed, (int)stats.right[0], (int)stats.tried[0]);
        if (!cases[i].branches) assert_true(stats.accepted * 2 > stats.guessed);
        assert_true(stats.right[0] * 10 > stats.tried[0] * 7);
        tn_session_set_speculator(c.checked, NULL);
        tn_speculator_free(s);
        tn_sampler_free(sampler);
        close_case(&c);
    }
}

/* How far the two highest logits of a row are apart, in standard deviations of the row. */
static double gap_of(const float *row, int32_t n) {
    double sum = 0, squares = 0, first = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        sum += row[i];
        squares += (double)row[i] * row[i];
        if (row[i] > second) second = row[i];
        if (second > first) {
            const double higher = second;
            second = first;
            first = higher;
        }
    }
    const double mean = sum / n;
    return (first - second) / sqrt(squares / n - mean * mean);
}

/* Greedy texts of the repository's model with a proposer, compared with those of plain decoding. Returns how many
 * differ, and the largest gap between the two highest logits where one begins to. */
static int differing_texts(tn_spec_kind kind, const char *file, int n_prompts, double *widest) {
    spec_case c;
    open_tales(&c, kind, file, 0);
    const int32_t n_vocab = tn_model_get_info(c.model).n_vocab;
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *sampler;
    int differ = 0;
    p.temperature = 0;
    assert_ok(tn_sampler_new(&p, (size_t)n_vocab, &sampler));
    oracle o = {.n_prompt = 3, .r = {1}};
    tn_speculator *s;
    assert_ok(tn_speculator_new(
        c.checked,
        &(tn_spec_params){.kind = kind, .fixed = true, .draft = c.draft, .propose = ask_oracle, .user = &o}, &s));
    tn_session_set_speculator(c.checked, s);
    for (int i = 0; i < n_prompts; i++) {
        const tn_token prompt[3] = {0, 300 + i, 260 + 3 * i % 1000};
        tn_token text[LENGTH], guessed[LENGTH];
        tn_session_clear(c.plain);
        tn_session_clear(c.checked);
        tn_speculator_forget(s, 0);
        const int32_t n = write_text(c.plain, prompt, 3, sampler, text);
        o.text = text;
        o.n = n;
        const int32_t m = write_text(c.checked, prompt, 3, sampler, guessed);
        int32_t at = 0;
        while (at < n && at < m && text[at] == guessed[at]) at++;
        if (at == n && at == m) continue;
        differ++;
        assert_true(at < n && at < m);
        tn_session_clear(c.plain);
        assert_ok(tn_session_prompt_tokens(c.plain, 0, prompt, 3));
        for (int32_t k = 0; k < at; k++) assert_ok(tn_session_prompt_tokens(c.plain, 0, text + k, 1));
        const double gap = gap_of(tn_session_logits(c.plain, -1), n_vocab);
        *widest = gap > *widest ? gap : *widest;
    }
    const tn_spec_stats stats = tn_speculator_stats(s);
    assert_false(stats.failed);
    assert_true(stats.guessed > 0);
    print_message("%s: %d of %d texts differ; %d of %d guessed tokens accepted\n", tn_spec_kind_name(kind), differ,
                  n_prompts, (int)stats.accepted, (int)stats.guessed);
    tn_session_set_speculator(c.checked, NULL);
    tn_speculator_free(s);
    tn_sampler_free(sampler);
    close_case(&c);
    return differ;
}

static const struct {
    tn_spec_kind kind;
    const char *file;
} trained[] = {{TN_SPEC_CALLBACK, NULL},
               {TN_SPEC_NGRAM, NULL},
               {TN_SPEC_DRAFT, "tales-draft.gguf"},
               {TN_SPEC_MTP, "tales-mtp.gguf"},
               {TN_SPEC_EAGLE3, "tales-eagle3.gguf"}};

/* Without repeatable sessions the batch may change the last bits of logits. Texts then differ first where the two
 * highest logits are as good as equal. */
static void other_texts_begin_where_logits_are_equal(void **state) {
    (void)state;
    double widest = 0;
    repeatable = false;
    for (size_t i = 0; i < sizeof trained / sizeof *trained; i++)
        (void)differing_texts(trained[i].kind, trained[i].file, prompts(4), &widest);
    repeatable = true;
    print_message("texts differ first where the two highest logits are up to %g standard deviations apart\n", widest);
    assert_true(widest < 1e-3);
}

static void texts_of_trained_guessers_are_the_same(void **state) {
    (void)state;
    double widest = 0;
    for (size_t i = 2; i < sizeof trained / sizeof *trained; i++)
        assert_int_equal(differing_texts(trained[i].kind, trained[i].file, prompts(4), &widest), 0);
}

/* A proposer that fails, one that guesses tokens that do not exist, and drafts that do not suit. */
static void failures_leave_plain_decoding(void **state) {
    (void)state;
    spec_case c;
    open_case(&c, "llama", "llama", 64);
    tn_token prompt[] = {5, 6, 7}, text[LENGTH], guessed[LENGTH];
    tn_sampler *sampler = new_sampler(0, 2);
    const int32_t n = write_text(c.plain, prompt, 3, sampler, text);
    for (int i = 0; i < 2; i++) {
        oracle o = {.text = text, .n_prompt = 3, .n = n, .r = {9}, .fails = i == 0, .nonsense = i == 1};
        tn_speculator *s;
        assert_ok(tn_speculator_new(
            c.checked, &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .fixed = true, .propose = ask_oracle, .user = &o},
            &s));
        tn_session_clear(c.checked);
        tn_session_set_speculator(c.checked, s);
        tn_sampler_reset(sampler);
        assert_int_equal(write_text(c.checked, prompt, 3, sampler, guessed), n);
        assert_memory_equal(text, guessed, (size_t)n * sizeof *text);
        assert_int_equal(tn_speculator_stats(s).failed, i == 0);
        tn_session_set_speculator(c.checked, NULL);
        tn_speculator_free(s);
    }
    tn_speculator *s;
    tn_spec_params p = {.kind = TN_SPEC_DRAFT, .draft = c.draft};
    assert_fails(TN_E_INVALID, tn_speculator_new(c.checked, &p, &s)); /* 64 tokens without texts */
    p.draft = c.plain;
    assert_fails(TN_E_INVALID, tn_speculator_new(c.checked, &p, &s)); /* takes nothing back */
    p.draft = NULL;
    assert_fails(TN_E_INVALID, tn_speculator_new(c.checked, &p, &s));
    p = (tn_spec_params){.kind = TN_SPEC_MTP, .draft = c.draft};
    assert_fails(TN_E_INVALID, tn_speculator_new(c.checked, &p, &s)); /* no head */
    p = (tn_spec_params){.kind = TN_SPEC_NGRAM, .n_max = GUESS + 1};
    assert_fails(TN_E_INVALID, tn_speculator_new(c.checked, &p, &s));
    p.n_max = 0, p.ngram = 99;
    assert_fails(TN_E_INVALID, tn_speculator_new(c.checked, &p, &s));
    p.ngram = 0;
    assert_fails(TN_E_INVALID, tn_speculator_new(c.plain, &p, &s)); /* its session checks none */
    tn_sampler_free(sampler);
    close_case(&c);
    char path[256];
    snprintf(path, sizeof path, "/tmp/tn_speculate_%d.gguf", (int)getpid());
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = "llama"}));
    tn_model *model;
    assert_fails(TN_E_UNSUPPORTED, tn_model_open(path, &(tn_model_params){.head = true}, &model));
    remove(path);
}

/* Draws of sequences that guess have the distribution of draws that do not: chi-square over the first four tokens'
 * pairs with 20,000 draws at temperature 1, whoever guesses and however badly. */
static void sampled_distribution_is_exact(void **state) {
    (void)state;
    enum { DRAWS = 20000, CLASSES = 8, PAIRS = CLASSES * CLASSES };
    spec_case c;
    static uint32_t counts[2][PAIRS];
    open_case(&c, "llama", NULL, 0);
    const tn_token prompt[] = {5, 6, 7};
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *sampler;
    p.temperature = 1;
    p.n_chain = 1;
    p.chain[0] = TN_SAMPLER_TEMPERATURE;
    p.seed = 1;
    assert_ok(tn_sampler_new(&p, VOCAB, &sampler));
    const int draws = getenv("TENON_LONG") ? DRAWS : DRAWS / 10;
    oracle o = {.n = 0, .n_prompt = 3, .r = {4}}; /* guesses at random */
    tn_speculator *s;
    assert_ok(tn_speculator_new(
        c.checked,
        &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .n_max = 2, .fixed = true, .propose = ask_oracle, .user = &o},
        &s));
    tn_session_set_speculator(c.checked, s);
    for (int with = 0; with < 2; with++) {
        tn_session *session = with ? c.checked : c.plain;
        for (int i = 0; i < draws; i++) {
            tn_token token[3];
            tn_session_clear(session);
            assert_ok(tn_session_prompt_tokens(session, 0, prompt, 3));
            for (int k = 0; k < 3; k++)
                if (tn_session_next(session, 0, sampler, &token[k]) != TN_OK) token[k] = 0;
            counts[with][token[1] % CLASSES * CLASSES + token[2] % CLASSES]++;
        }
    }
    double chi = 0;
    for (int k = 0; k < PAIRS; k++) {
        const double a = counts[0][k], b = counts[1][k];
        if (a + b > 0) chi += (a - b) * (a - b) / (a + b);
    }
    /* 63 degrees of freedom: above 110 once in 5,000 times; the seed is fixed. */
    assert_true(chi < 110);
    tn_session_set_speculator(c.checked, NULL);
    tn_speculator_free(s);
    tn_sampler_free(sampler);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_texts_begin_where_logits_are_equal),
        cmocka_unit_test(texts_of_trained_guessers_are_the_same),
        cmocka_unit_test(guesses_of_a_head_change_nothing),
        cmocka_unit_test(trained_guessers_are_mostly_right),
        cmocka_unit_test(failures_leave_plain_decoding),
        cmocka_unit_test(sampled_distribution_is_exact),
        cmocka_unit_test(guesses_of_a_function_change_nothing),
        cmocka_unit_test(guesses_of_ngrams_change_nothing),
        cmocka_unit_test(guesses_of_a_draft_change_nothing),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
