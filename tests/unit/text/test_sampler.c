/* Samplers: reproducibility, and the behaviour of single parameters. */
#include "sampler_cases.h"
#include "text/sampler/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reproducibility ---- */

static void run_default(uint64_t seed, tn_token *out, size_t n) {
    static float logits[5000];
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = seed;
    tn_sampler *s;
    assert_ok(tn_sampler_new(&p, 5000, &s));
    rng random = {99};
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 5000; k++) logits[k] = 2 * rng_normal(&random);
        assert_ok(tn_sampler_sample(s, logits, 5000, &out[i]));
        assert_ok(tn_sampler_accept(s, out[i]));
    }
    tn_sampler_free(s);
}

static void a_seed_repeats_its_tokens(void **state) {
    (void)state;
    tn_token a[100], b[100], c[100];
    run_default(123, a, 100);
    run_default(123, b, 100);
    run_default(124, c, 100);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    /* Frozen values: if they change, old seeds no longer give the same texts. */
    const tn_token frozen[8] = {4038, 1188, 3626, 1120, 2623, 1605, 4803, 4602};
    assert_memory_equal(a, frozen, sizeof frozen);
}

/* What std::mt19937 and std::uniform_real_distribution<double> of libstdc++ give, which llama.cpp draws with; a seed
 * of more than 32 bits is a key of two words, low one first, as in Python's random.seed(). */
static void random_numbers_are_those_of_the_standard_library(void **state) {
    (void)state;
    const struct {
        uint64_t seed;
        double first, second, thousandth;
    } cases[] = {{0, 0x1.2f89545f18fe1p-1, 0x1.b04399816e2d5p-1, 0x1.cbc0e16b5ab24p-1},
                 {42, 0x1.97d47b66bfc3cp-1, 0x1.77aca8779b102p-3, 0x1.0ae7ebe0e45aep-1},
                 {UINT32_MAX, 0x1.c92412218fe6ap-4, 0x1.2019588fd323ep-1, 0x1.a42891b639fc6p-2},
                 {0x0123456789abcdef, 0x1.64d8ff0796351p-2, 0x1.1c30b8f592a52p-2, 0x1.000d09e9c4ab8p-1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn__random random;
        tn__random_seed(&random, cases[i].seed);
        assert_true(tn__random_unit(&random) == cases[i].first);
        assert_true(tn__random_unit(&random) == cases[i].second);
        for (int k = 2; k < 999; k++) (void)tn__random_unit(&random);
        assert_true(tn__random_unit(&random) == cases[i].thousandth);
    }
}

static void reset_and_clone_continue_alike(void **state) {
    (void)state;
    enum { N = 300 };
    float logits[N];
    rng random = {5};
    for (int i = 0; i < N; i++) logits[i] = 2 * rng_normal(&random);
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = 77;
    p.repeat_penalty = 1.2f;
    p.dry_multiplier = 0.5f;
    p.n_dry_breakers = 0;
    p.xtc_probability = 0.5f;
    tn_sampler *s, *copy;
    assert_ok(tn_sampler_new(&p, N, &s));
    tn_token first[50], second[50];
    for (int i = 0; i < 20; i++) {
        assert_ok(tn_sampler_sample(s, logits, N, &first[i]));
        assert_ok(tn_sampler_accept(s, first[i]));
    }
    assert_ok(tn_sampler_clone(s, &copy));
    for (int i = 20; i < 50; i++) {
        assert_ok(tn_sampler_sample(s, logits, N, &first[i]));
        assert_ok(tn_sampler_accept(s, first[i]));
        assert_ok(tn_sampler_sample(copy, logits, N, &second[i]));
        assert_ok(tn_sampler_accept(copy, second[i]));
    }
    assert_memory_equal(first + 20, second + 20, 30 * sizeof *first);
    tn_sampler_reset(s);
    for (int i = 0; i < 50; i++) {
        assert_ok(tn_sampler_sample(s, logits, N, &second[i]));
        assert_ok(tn_sampler_accept(s, second[i]));
    }
    assert_memory_equal(first, second, sizeof first);
    tn_sampler_free(s);
    tn_sampler_free(copy);
}

static void random_seeds_differ_and_are_told(void **state) {
    (void)state;
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *a, *b;
    assert_ok(tn_sampler_new(&p, 10, &a));
    assert_ok(tn_sampler_new(&p, 10, &b));
    assert_true(tn_sampler_seed(a) != tn_sampler_seed(b));
    assert_true(tn_sampler_seed(a) != TN_SEED_RANDOM);
    tn_sampler_free(a);
    tn_sampler_free(b);
}

static void all_vector_widths_give_the_same_bits(void **state) {
    (void)state;
    enum { N = 1000, BLOCKS = 8 };
    _Alignas(64) float source[N], row[2][BLOCKS * TN__SCAN_BLOCK], weights[2][BLOCKS * TN__SCAN_BLOCK], max[2][16];
    double sums[2][BLOCKS], count[2];
    uint64_t mask[16];
    rng random = {17};
    for (int round = 0; round < 64; round++) {
        random_row(&random, source, N, round);
        for (int i = 0; i < 16; i++) mask[i] = rng_next(&random) | rng_next(&random);
        const tn__scan *base = tn__scan_version(0);
        for (size_t v = 1; tn__scan_version(v); v++) {
            const tn__scan *versions[2] = {base, tn__scan_version(v)};
            double total[2], mean_sum[2], squares[2];
            float best[2];
            memset(max, 0xff, sizeof max);
            for (int i = 0; i < 2; i++) {
                const tn__scan *scan = versions[i];
                scan->load(row[i], max[i], source, round & 8 ? mask : NULL, N);
                best[i] = scan->max(row[i], BLOCKS * TN__SCAN_BLOCK);
                total[i] = scan->exp_sum(row[i], weights[i], sums[i], BLOCKS, best[i]);
                mean_sum[i] = scan->sum(row[i], BLOCKS, &count[i]);
                squares[i] = scan->sum_squares(row[i], BLOCKS, 0.3f);
                scan->divide(row[i], BLOCKS * TN__SCAN_BLOCK, 0.7f);
            }
            assert_memory_equal(row[0], row[1], sizeof row[0]);
            assert_memory_equal(max[0], max[1], sizeof max[0]);
            assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
            assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
            assert_memory_equal(&total[0], &total[1], sizeof total[0]);
            assert_memory_equal(&mean_sum[0], &mean_sum[1], sizeof total[0]);
            assert_memory_equal(&squares[0], &squares[1], sizeof total[0]);
            assert_true(best[0] == best[1] && count[0] == count[1]);
        }
        for (int i = 0; i < BLOCKS * TN__SCAN_BLOCK; i++) {
            bool allowed = i < N && !isnan(source[i]) && (!(round & 8) || mask[i / 64] >> (i % 64) & 1);
            assert_true((row[0][i] > -INFINITY) == (allowed && source[i] > -INFINITY));
        }
    }
    for (double x = -86; x <= 0; x += 0.01) {
        double error = tn__scan_exp((float)x) / exp((float)x) - 1;
        if (fabs(error) > 2e-7) fail_msg("exp(%g) is off by %g", x, error);
    }
    assert_true(tn__scan_exp(-INFINITY) == 0 && tn__scan_exp(0) == 1);
}

/* ---- Particular promises ---- */

static void greedy_takes_the_first_of_the_highest(void **state) {
    (void)state;
    float logits[300];
    for (int i = 0; i < 300; i++) logits[i] = -1;
    logits[200] = logits[250] = 4;
    logits[3] = NAN;
    tn_sampler_params p = tn_sampler_params_default();
    p.temperature = 0;
    tn_sampler *s;
    tn_token token;
    assert_ok(tn_sampler_new(&p, 300, &s));
    assert_ok(tn_sampler_sample(s, logits, 300, &token));
    assert_int_equal(token, 200);
    logits[7] = INFINITY;
    assert_ok(tn_sampler_sample(s, logits, 300, &token));
    assert_int_equal(token, 7);
    assert_true(tn_sampler_is_greedy(s));
    tn_sampler_free(s);
    /* Penalties still apply. */
    p.repeat_penalty = 10;
    assert_ok(tn_sampler_new(&p, 300, &s));
    assert_false(tn_sampler_is_greedy(s));
    logits[7] = 5;
    assert_ok(tn_sampler_accept(s, 7));
    assert_ok(tn_sampler_sample(s, logits, 300, &token));
    assert_int_equal(token, 200);
    tn_sampler_free(s);
}

static void bias_bans_and_forces(void **state) {
    (void)state;
    float logits[10] = {0};
    tn_logit_bias bias[] = {{4, 50}, {5, -INFINITY}, {6, 100}, {6, -200}};
    tn_sampler_params p = plain_params();
    p.logit_bias = bias;
    p.n_logit_bias = 4;
    tn_sampler *s;
    tn_token token;
    assert_ok(tn_sampler_new(&p, 10, &s));
    for (int i = 0; i < 100; i++) {
        assert_ok(tn_sampler_sample(s, logits, 10, &token));
        assert_int_equal(token, 4);
    }
    logits[4] = -INFINITY; /* a bias does not make an impossible token possible */
    for (int i = 0; i < 1000; i++) {
        assert_ok(tn_sampler_sample(s, logits, 10, &token));
        assert_true(token != 4 && token != 5 && token != 6);
    }
    tn_sampler_free(s);
}

static void nothing_left_is_an_error(void **state) {
    (void)state;
    float logits[3] = {-INFINITY, NAN, -INFINITY};
    tn_sampler_params p = tn_sampler_params_default();
    tn_sampler *s;
    tn_token token;
    size_t count;
    tn_token_prob probs[3];
    assert_ok(tn_sampler_new(&p, 3, &s));
    assert_fails(TN_E_INFEASIBLE, tn_sampler_sample(s, logits, 3, &token));
    assert_fails(TN_E_STATE, tn_sampler_candidates(s, probs, 3, &count));
    assert_fails(TN_E_INVALID, tn_sampler_sample(s, logits, 2, &token));
    assert_fails(TN_E_INVALID, tn_sampler_accept(s, 3));
    assert_fails(TN_E_INFEASIBLE, tn_top_logprobs(logits, 3, probs, 3, 0, NULL));
    logits[2] = 0;
    assert_ok(tn_sampler_sample(s, logits, 3, &token));
    assert_int_equal(token, 2);
    tn_sampler_free(s);
}

static void dry_stops_at_breakers(void **state) {
    (void)state;
    /* Token 3 is a breaker; tokens 4 and 5 together are one. */
    tn_piece texts[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"x\ny", 3}, {"-<", 2}, {"b>-", 3}};
    const char *breakers[] = {"\n", "<b>"};
    tn_pieces *pieces;
    assert_ok(tn_pieces_new(texts, 6, NULL, 0, &pieces));
    tn_sampler_params p = plain_params();
    p.chain[p.n_chain++] = TN_SAMPLER_DRY;
    p.dry_multiplier = 1;
    p.dry_breakers = breakers;
    p.n_dry_breakers = 2;
    p.pieces = pieces;
    tn_sampler *s;
    assert_ok(tn_sampler_new(&p, 6, &s));
    tn_pieces_free(pieces); /* the sampler keeps them alive */
    const struct {
        tn_token history[10];
        size_t n;
        tn_token penalized; /* or -1 */
        double penalty;
    } cases[] = {
        {{0, 1, 2, 0, 1}, 5, 2, 1},                      /* "ab" again: c would extend it */
        {{2, 0, 1, 2, 0, 1, 2, 0, 1}, 9, 2, 9.37890625}, /* six tokens again: 1.75 ^ (6 - 2) */
        {{0, 1, 2, 3, 0, 1}, 6, 2, 1},                   /* a break before it does not matter */
        {{0, 1, 2, 0, 3, 1}, 6, -1, 0},                  /* a break inside the newest tokens does */
        {{0, 1, 3, 0, 1}, 5, -1, 0},                     /* what followed was a breaker itself */
        {{4, 5, 2, 4, 5}, 5, -1, 0},                     /* a breaker of two tokens ends the sequence */
        {{1, 5, 2, 1, 5}, 5, 2, 1},                      /* its second half alone is not a breaker */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_sampler_reset(s);
        for (size_t k = 0; k < cases[i].n; k++) assert_ok(tn_sampler_accept(s, cases[i].history[k]));
        float logits[6] = {0};
        tn_token token;
        tn_token_prob probs[6];
        size_t count;
        assert_ok(tn_sampler_sample(s, logits, 6, &token));
        assert_ok(tn_sampler_candidates(s, probs, 6, &count));
        double top = probs[0].logprob;
        for (size_t k = 0; k < count; k++) {
            double want = probs[k].token == cases[i].penalized ? cases[i].penalty : 0;
            if (fabs(top - probs[k].logprob - want) > 1e-4)
                fail_msg("case %zu: token %d lost %g, expected %g", i, probs[k].token, top - probs[k].logprob, want);
        }
    }
    tn_sampler_free(s);
    p.pieces = NULL;
    assert_fails(TN_E_INVALID, tn_sampler_new(&p, 6, &s));
}

static void top_logprobs_are_the_models_own(void **state) {
    (void)state;
    enum { N = 20000 };
    static float logits[N];
    rng random = {23};
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < N; i++) logits[i] = roundf(30 * rng_normal(&random)) / 10; /* ties on purpose */
        if (round == 1)
            for (int i = 5; i < N; i++) logits[i] = -INFINITY;
        if (round == 2) logits[12345] = NAN;
        double max = -INFINITY, sum = 0;
        for (int i = 0; i < N; i++) max = fmax(max, isnan(logits[i]) ? -INFINITY : logits[i]);
        for (int i = 0; i < N; i++)
            if (!isnan(logits[i])) sum += exp(logits[i] - max);
        tn_token_prob top[20];
        float chosen;
        assert_ok(tn_top_logprobs(logits, N, top, 20, 3, &chosen));
        assert_true(fabs(chosen - (logits[3] - max - log(sum))) < 1e-5 * (1 + fabs(chosen)));
        size_t possible = round == 1 ? 5 : 20;
        for (size_t k = 0; k < 20; k++) {
            if (k >= possible) {
                assert_int_equal(top[k].token, TN_TOKEN_NONE);
                continue;
            }
            /* The k-th largest, by counting the larger ones. */
            size_t better = 0;
            tn_token t = top[k].token;
            for (int i = 0; i < N; i++) better += logits[i] > logits[t] || (logits[i] == logits[t] && i < t);
            assert_int_equal(better, k);
            assert_true(fabs(top[k].logprob - (logits[t] - max - log(sum))) < 1e-5 * (1 + fabs(top[k].logprob)));
        }
    }
}

/* Where the lowest temperature is 0 and there is no doubt, the most probable token stays the only one. */
static void a_dynamic_temperature_of_zero_is_greedy(void **state) {
    (void)state;
    tn_sampler_params p = plain_params();
    p.n_chain = 1;
    p.chain[0] = TN_SAMPLER_TEMPERATURE;
    p.temperature = p.dynamic_range = 0.5f;
    p.dynamic_exponent = 1;
    static const float rows[][4] = {{0, 900, 0, -900}, {-200, -200, 700, -INFINITY}};
    for (int i = 0; i < 2; i++) {
        tn_sampler *s;
        tn_token token;
        tn_token_prob best;
        size_t count;
        assert_ok(tn_sampler_new(&p, 4, &s));
        assert_ok(tn_sampler_sample(s, rows[i], 4, &token));
        assert_int_equal(token, i + 1);
        assert_ok(tn_sampler_candidates(s, &best, 1, &count));
        assert_int_equal(best.token, i + 1);
        assert_true(best.logprob == 0);
        tn_sampler_free(s);
    }
}

static void bad_parameters_are_named(void **state) {
    (void)state;
    tn_sampler *s;
#define BAD(field, value)                                                                                            \
    do {                                                                                                             \
        tn_sampler_params p = tn_sampler_params_default();                                                           \
        p.field = value;                                                                                             \
        assert_fails(TN_E_INVALID, tn_sampler_new(&p, 100, &s));                                                     \
        assert_null(s);                                                                                              \
        if (!strstr(tn_error(), #field)) fail_msg("%s does not name %s", tn_error(), #field);                        \
    } while (0)
    BAD(temperature, NAN);
    BAD(top_p, 1.5f);
    BAD(top_p, -0.1f);
    BAD(min_p, NAN);
    BAD(typical_p, 2);
    BAD(top_k, -1);
    BAD(top_n_sigma, -1);
    BAD(xtc_probability, 2);
    BAD(penalty_window, -1);
    BAD(repeat_penalty, 0);
    BAD(dry_base, 0.5f);
    BAD(dry_allowed_length, 0);
    BAD(mirostat, 3);
    tn_sampler_params p = tn_sampler_params_default();
    p.chain[1] = p.chain[0];
    assert_fails(TN_E_INVALID, tn_sampler_new(&p, 100, &s));
    p.chain[1] = (tn_sampler_kind)99;
    assert_fails(TN_E_INVALID, tn_sampler_new(&p, 100, &s));
    p = tn_sampler_params_default();
    assert_fails(TN_E_INVALID, tn_sampler_new(&p, 0, &s));
    tn_logit_bias bias = {100, 1};
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    assert_fails(TN_E_INVALID, tn_sampler_new(&p, 100, &s));
}

static void names_and_kinds_match(void **state) {
    (void)state;
    for (int kind = 0; kind < TN_SAMPLER_KINDS; kind++) {
        tn_sampler_kind found;
        assert_ok(tn_sampler_kind_from_name(tn_sampler_kind_name((tn_sampler_kind)kind), &found));
        assert_int_equal(found, kind);
        assert_true(*tn_sampler_kind_parameters((tn_sampler_kind)kind));
    }
    tn_sampler_kind kind;
    assert_fails(TN_E_NOT_FOUND, tn_sampler_kind_from_name("magic", &kind));
    assert_non_null(strstr(tn_error(), "top_n_sigma"));
    assert_null(tn_sampler_kind_name(TN_SAMPLER_KINDS));
}

static tn_sampler_params everything_on(void) {
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = 9;
    p.repeat_penalty = 1.1f;
    p.dry_multiplier = 0.8f;
    p.n_dry_breakers = 0;
    p.xtc_probability = 0.3f;
    p.typical_p = 0.9f;
    p.top_n_sigma = 3;
    p.dynamic_range = 0.2f;
    return p;
}

static void a_token_costs_no_allocation(void **state) {
    (void)state;
    enum { N = 3000 };
    static float logits[N];
    rng random = {31};
    for (int mirostat = 0; mirostat <= 2; mirostat++) {
        tn_sampler_params p = everything_on();
        p.mirostat = mirostat;
        tn_sampler *s;
        assert_ok(tn_sampler_new(&p, N, &s));
        uint64_t before = tn_memory_get_stats().allocations;
        for (int i = 0; i < 300; i++) {
            for (int k = 0; k < N; k++) logits[k] = 2 * rng_normal(&random);
            tn_token token;
            tn_token_prob top[5];
            size_t count;
            assert_ok(tn_sampler_sample(s, logits, N, &token));
            assert_ok(tn_sampler_candidates(s, top, 5, &count));
            assert_ok(tn_top_logprobs(logits, N, top, 5, token, NULL));
            assert_ok(tn_sampler_accept(s, token));
        }
        tn_sampler_reset(s);
        assert_int_equal(tn_memory_get_stats().allocations, before);
        tn_sampler_free(s);
    }
}

static tn_status make_and_clone(void *user) {
    (void)user;
    tn_sampler_params p = everything_on();
    tn_piece texts[3] = {{"a", 1}, {"b", 1}, {"", 0}};
    const char *breakers[] = {"b"};
    tn_token end = 2;
    tn_pieces *pieces = NULL;
    tn_sampler *s = NULL, *copy = NULL;
    tn_status status;
    TN_TRY_GOTO(tn_pieces_new(texts, 3, &end, 1, &pieces), status, out);
    p.pieces = pieces;
    p.dry_breakers = breakers;
    p.n_dry_breakers = 1;
    TN_TRY_GOTO(tn_sampler_new(&p, 3, &s), status, out);
    TN_TRY_GOTO(tn_sampler_clone(s, &copy), status, out);
out:
    tn_sampler_free(s);
    tn_sampler_free(copy);
    tn_pieces_free(pieces);
    return status;
}
static void running_out_of_memory_is_survived(void **state) {
    (void)state;
    check_every_allocation_failure(make_and_clone, NULL);
    check_no_leak(make_and_clone, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_repeats_its_tokens),
        cmocka_unit_test(random_numbers_are_those_of_the_standard_library),
        cmocka_unit_test(reset_and_clone_continue_alike),
        cmocka_unit_test(random_seeds_differ_and_are_told),
        cmocka_unit_test(all_vector_widths_give_the_same_bits),
        cmocka_unit_test(greedy_takes_the_first_of_the_highest),
        cmocka_unit_test(bias_bans_and_forces),
        cmocka_unit_test(nothing_left_is_an_error),
        cmocka_unit_test(dry_stops_at_breakers),
        cmocka_unit_test(top_logprobs_are_the_models_own),
        cmocka_unit_test(a_dynamic_temperature_of_zero_is_greedy),
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(names_and_kinds_match),
        cmocka_unit_test(a_token_costs_no_allocation),
        cmocka_unit_test(running_out_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
