/* Trees of guesses: the same text as without them, on every kind of attention memory, and the same distribution. */
#include "models/tiny_models.h"
#include "support.h"
#include "tenon/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 160, GUESS = 7, BRANCHES = 4, CONTEXT = 96, LENGTH = 60 };
#include "plain_text.h"

static tn_session *open_session(tn_model *model, int32_t n_branches, const char *device) {
    tn_session_params p = tn_session_params_default();
    tn_session *session;
    p.n_ctx = CONTEXT;
    p.n_ubatch = 32;
    p.n_seqs = 1;
    p.n_guess = GUESS;
    p.n_branches = n_branches;
    p.n_threads = 1;
    p.repeatable = true;
    p.n_prefixes = 4;
    p.devices[0] = device;
    assert_ok(tn_session_open(model, &p, &session));
    return session;
}

static tn_model *open_tiny(const char *arch, uint64_t seed) {
    char path[256];
    tn_model *model;
    snprintf(path, sizeof path, "/tmp/tn_trees_%d.gguf", (int)getpid());
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = arch, .vocab = VOCAB, .tokenizer = true, .seed = seed}));
    assert_ok(tn_model_open(path, NULL, &model));
    remove(path);
    return model;
}

/* Trees of random shape. A child of a right token is right in one of three cases, so that branches are accepted, too,
 * and branches of branches. */
typedef struct forester {
    const tn_token *text;
    int32_t n_prompt, n;
    rng r;
} forester;
static tn_status plant_tree(void *user, tn_guess *g) {
    forester *f = user;
    bool right[1 + GUESS] = {true};
    int32_t depth[1 + GUESS] = {0};
    g->tree = true;
    for (g->n = 0; g->n < g->room && g->n < GUESS; g->n++) {
        const int32_t i = g->n, parent = (int32_t)rng_below(&f->r, (uint32_t)i + 1) - 1;
        const int32_t at = g->n_tokens - f->n_prompt + depth[1 + parent];
        right[1 + i] = right[1 + parent] && at < f->n && rng_below(&f->r, 3) != 0;
        depth[1 + i] = depth[1 + parent] + 1;
        g->guess[i] = right[1 + i] ? f->text[at] : (tn_token)rng_below(&f->r, VOCAB);
        g->parents[i] = parent;
        g->probs[i] = 0.5f;
    }
    return TN_OK;
}

typedef struct tree_counts {
    uint64_t accepted, guessed, steps;
} tree_counts;

static void compare(tn_session *plain, tn_session *checked, const tn_spec_params *params, int i,
                    tree_counts *counts) {
    static const float temperatures[] = {0, 0.8f, 1};
    tn_token prompt[12], text[LENGTH], guessed[LENGTH];
    rng r = {(uint64_t)i + 10};
    const int32_t n_prompt = 2 + (int32_t)rng_below(&r, 10);
    for (int k = 0; k < n_prompt; k++) prompt[k] = (tn_token)(3 + rng_below(&r, 40));
    tn_sampler *sampler = new_sampler(temperatures[i % 3], (uint64_t)i);
    tn_session_clear(plain);
    tn_session_clear(checked);
    const int32_t n = write_text(plain, prompt, n_prompt, sampler, text);
    forester f = {.text = text, .n_prompt = n_prompt, .n = n, .r = {(uint64_t)i + 1}};
    tn_spec_params p = *params;
    tn_speculator *s;
    p.user = &f;
    assert_ok(tn_speculator_new(checked, &p, &s));
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
    counts->accepted += stats.accepted;
    counts->guessed += stats.guessed;
    counts->steps += stats.steps;
    tn_session_set_speculator(checked, NULL);
    tn_speculator_free(s);
    tn_sampler_free(sampler);
    /* Nothing of the branches is left. */
    assert_int_equal(tn_session_cells_held(checked), tn_session_seq_last(checked, 0) + 1);
}

static int prompts(int usual) { return getenv("TENON_LONG") ? 1000 : usual; }

/* Full attention, windows, ALiBi, latent attention; recurrent state, where a tree ends with its first line. */
static void trees_change_nothing(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "bloom", "deepseek2", "qwen35", "mamba"};
    static const char *const devices[] = {"cpu", "sim:64M,name=trees"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int d = 0; d < 2; d++) {
            tn_model *model = open_tiny(archs[i], 1);
            tn_session *plain = open_session(model, 0, devices[d]),
                       *checked = open_session(model, BRANCHES, devices[d]);
            tree_counts counts = {0};
            for (int k = 0; k < prompts(6); k++)
                compare(plain, checked,
                        &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .fixed = true, .propose = plant_tree}, k,
                        &counts);
            assert_true(counts.accepted > 20);
            for (int k = 0; k < 2; k++) /* with the rule for the length of guesses */
                compare(plain, checked, &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .propose = plant_tree}, k,
                        &counts);
            tn_session_free(plain);
            tn_session_free(checked);
            tn_model_close(model);
        }
}

static void trees_in_windows_change_nothing(void **state) {
    (void)state;
    static const char *const archs[] = {"gemma2", "gemma3"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        tn_model *model = open_tiny(archs[i], 1);
        tn_session *plain = open_session(model, 0, "cpu"), *checked = open_session(model, BRANCHES, "cpu");
        tree_counts counts = {0};
        for (int k = 0; k < prompts(6); k++)
            compare(plain, checked, &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .fixed = true, .propose = plant_tree},
                    k, &counts);
        assert_true(counts.accepted > 20);
        tn_session_free(plain);
        tn_session_free(checked);
        tn_model_close(model);
    }
}

/* A draft adds its second choices. They are right at times where its first is not: a tree accepts more per step than
 * a line of the same length would lose. */
static void trees_of_a_draft_change_nothing(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", 1), *other = open_tiny("llama", 2);
    tn_session *plain = open_session(model, 0, "cpu"), *checked = open_session(model, BRANCHES, "cpu");
    tn_session *same = open_session(model, 0, "cpu"), *stranger = open_session(other, 0, "cpu");
    tree_counts counts = {0}, foreign = {0};
    for (int k = 0; k < prompts(6); k++) {
        tn_session_clear(same);
        compare(plain, checked, &(tn_spec_params){.kind = TN_SPEC_DRAFT, .fixed = true, .draft = same}, k, &counts);
        tn_session_clear(stranger);
        compare(plain, checked, &(tn_spec_params){.kind = TN_SPEC_DRAFT, .fixed = true, .draft = stranger}, k,
                &foreign);
    }
    assert_true(counts.accepted > counts.steps);
    assert_true(counts.guessed > 4 * counts.steps);
    tn_session_free(plain);
    tn_session_free(checked);
    tn_session_free(same);
    tn_session_free(stranger);
    tn_model_close(model);
    tn_model_close(other);
}

/* The rows of a tree are those that each of its paths has as a line, and a path can be gone on with. */
static void rows_of_a_tree_are_those_of_its_paths(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", 1);
    tn_session *line = open_session(model, 0, "cpu"), *tree = open_session(model, BRANCHES, "cpu");
    const tn_token prompt[] = {5, 6, 7}, tokens[] = {8, 10, 11, 12, 13, 14};
    const int32_t parents[] = {-1, 0, 1, 0, 3, 3}; /* 8 10 11; 8 12 13; 8 12 14 */
    static const int32_t paths[3][3] = {{0, 1, 2}, {0, 3, 4}, {0, 3, 5}};
    const bool outputs[] = {true, true, true, true, true, true}, guesses[] = {false, true, true, true, true, true};
    for (int32_t path = 0; path < 3; path++) {
        static float rows[6][VOCAB];
        tn_session_clear(tree);
        assert_ok(tn_session_decode(tree, &(tn_batch){.n_tokens = 3, .tokens = prompt}));
        assert_ok(tn_session_decode(
            tree, &(tn_batch){
                      .n_tokens = 6, .tokens = tokens, .outputs = outputs, .guesses = guesses, .parents = parents}));
        for (int i = 0; i < 6; i++) memcpy(rows[i], tn_session_logits(tree, i), sizeof rows[i]);
        tn_session_clear(line);
        assert_ok(tn_session_decode(line, &(tn_batch){.n_tokens = 3, .tokens = prompt}));
        for (int i = 0; i < 3; i++) {
            const int32_t at = paths[path][i];
            assert_ok(tn_session_decode(line, &(tn_batch){.n_tokens = 1, .tokens = &tokens[at]}));
            assert_memory_equal(tn_session_logits(line, 0), rows[at], sizeof rows[at]);
        }
        assert_ok(tn_session_seq_take_branch(tree, 0, path, 6));
        assert_int_equal(tn_session_seq_last(tree, 0), 5);
        const tn_token next = 9;
        assert_ok(tn_session_decode(line, &(tn_batch){.n_tokens = 1, .tokens = &next}));
        assert_ok(tn_session_decode(tree, &(tn_batch){.n_tokens = 1, .tokens = &next}));
        assert_memory_equal(tn_session_logits(line, 0), tn_session_logits(tree, 0), VOCAB * sizeof(float));
    }
    /* What is no tree, and what there is no room for. */
    const int32_t later[] = {-1, 2, 0, 0, 0, 0}, wide[] = {-1, 0, 0, 0, 0, 0};
    tn_batch batch = {.n_tokens = 6, .tokens = tokens, .outputs = outputs, .guesses = guesses, .parents = later};
    assert_fails(TN_E_INVALID, tn_session_decode(tree, &batch));
    batch.parents = wide; /* four branches fit */
    assert_ok(tn_session_decode(tree, &batch));
    assert_fails(TN_E_NOT_FOUND, tn_session_seq_take_branch(tree, 0, 5, 9));
    assert_ok(tn_session_seq_take_branch(tree, 0, 4, 9));
    assert_fails(TN_E_INVALID, tn_session_decode(line, &batch));
    const tn_token many[] = {8, 10, 11, 12, 13, 14, 15};
    const int32_t wider[] = {-1, 0, 0, 0, 0, 0, 0};
    const bool all[] = {true, true, true, true, true, true, true};
    const int32_t held = tn_session_seq_last(tree, 0);
    batch = (tn_batch){.n_tokens = 7, .tokens = many, .outputs = all, .parents = wider};
    assert_fails(TN_E_FULL, tn_session_decode(tree, &batch));
    assert_int_equal(tn_session_seq_last(tree, 0), held);
    tn_session_free(line);
    tn_session_free(tree);
    tn_model_close(model);
}

/* Two guesses for the first token, and one for each of them: chi-square of pairs of tokens with 20,000 draws at
 * temperature 1. */
static tn_status guess_at_random(void *user, tn_guess *g) {
    rng *r = user;
    static const int32_t parents[] = {-1, -1, 0, 1};
    g->tree = true;
    for (g->n = 0; g->n < g->room && g->n < 4; g->n++) {
        g->guess[g->n] = (tn_token)rng_below(r, VOCAB);
        g->parents[g->n] = parents[g->n];
        g->probs[g->n] = 0.5f;
    }
    return TN_OK;
}
static void sampled_distribution_of_trees_is_exact(void **state) {
    (void)state;
    enum { DRAWS = 20000, CLASSES = 8, PAIRS = CLASSES * CLASSES };
    static uint32_t counts[2][PAIRS];
    tn_model *model = open_tiny("llama", 1);
    tn_session *plain = open_session(model, 0, "cpu"), *checked = open_session(model, BRANCHES, "cpu");
    const tn_token prompt[] = {5, 6, 7};
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *sampler;
    tn_speculator *s;
    rng r = {4};
    p.temperature = 1;
    p.n_chain = 1;
    p.chain[0] = TN_SAMPLER_TEMPERATURE;
    p.seed = 1;
    assert_ok(tn_sampler_new(&p, VOCAB, &sampler));
    assert_ok(tn_speculator_new(
        checked, &(tn_spec_params){.kind = TN_SPEC_CALLBACK, .fixed = true, .propose = guess_at_random, .user = &r},
        &s));
    tn_session_set_speculator(checked, s);
    const int draws = getenv("TENON_LONG") ? DRAWS : DRAWS / 10;
    for (int with = 0; with < 2; with++) {
        tn_session *session = with ? checked : plain;
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
    print_message("chi-square %.1f of %d draws, %llu guesses accepted\n", chi, draws,
                  (unsigned long long)tn_speculator_stats(s).accepted);
    assert_true(tn_speculator_stats(s).accepted > 0);
    /* 63 degrees of freedom: above 110 once in 5,000 times; the seed is fixed. */
    assert_true(chi < 110);
    tn_session_set_speculator(checked, NULL);
    tn_speculator_free(s);
    tn_sampler_free(sampler);
    tn_session_free(plain);
    tn_session_free(checked);
    tn_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_tree_are_those_of_its_paths),  cmocka_unit_test(trees_change_nothing),
        cmocka_unit_test(trees_in_windows_change_nothing),        cmocka_unit_test(trees_of_a_draft_change_nothing),
        cmocka_unit_test(sampled_distribution_of_trees_is_exact),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
