/* Draws from the largest logits of a row: the token of the whole row, or no draw. */
#include "sampler_cases.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 512, ROWS = 10000 };

typedef struct entry {
    tn_token token;
    float logit;
} entry;
static int descending(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}
/* NaN counts as -inf. */
static void largest_of(const float *logits, size_t k, tn_token *tokens, float *values) {
    entry all[VOCAB];
    for (int i = 0; i < VOCAB; i++) all[i] = (entry){i, isnan(logits[i]) ? -INFINITY : logits[i]};
    qsort(all, VOCAB, sizeof *all, descending);
    for (size_t i = 0; i < k; i++) {
        tokens[i] = all[i].token;
        values[i] = all[i].logit;
    }
}

static tn_sampler_params random_params(rng *r) {
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = rng_next(r) >> 1;
    p.n_dry_breakers = 0;
    p.temperature = rng_below(r, 4) ? 0.1f + 2 * (float)rng_unit(r) : 0;
    p.top_k = rng_below(r, 3) ? (int32_t)rng_below(r, 60) : 0;
    p.min_p = rng_below(r, 2) ? 0 : (float)rng_unit(r) * 0.2f;
    p.top_p = rng_below(r, 2) ? 1 : 0.5f + (float)rng_unit(r) / 2;
    p.min_keep = rng_below(r, 4) ? 1 : rng_below(r, 50);
    if (rng_below(r, 3) == 0) p.repeat_penalty = 0.9f + (float)rng_unit(r);
    if (rng_below(r, 3) == 0) p.frequency_penalty = (float)rng_unit(r) - 0.1f;
    if (rng_below(r, 3) == 0) p.presence_penalty = (float)rng_unit(r) - 0.1f;
    if (rng_below(r, 4) == 0) p.dry_multiplier = 0.8f;
    if (rng_below(r, 6) == 0) p.typical_p = 0.7f;
    if (rng_below(r, 6) == 0) p.top_n_sigma = 2;
    if (rng_below(r, 6) == 0) p.xtc_probability = 0.5f;
    if (rng_below(r, 6) == 0) p.dynamic_range = 0.3f;
    if (rng_below(r, 9) == 0) p.mirostat = 1 + (int32_t)rng_below(r, 2);
    for (size_t i = p.n_chain - 1; i && rng_below(r, 2); i--) { /* any order of the chain */
        const size_t k = rng_below(r, i + 1);
        const tn_sampler_kind kind = p.chain[i];
        p.chain[i] = p.chain[k];
        p.chain[k] = kind;
    }
    return p;
}

static void the_token_is_that_of_the_whole_row(void **state) {
    (void)state;
    static float logits[VOCAB], values[VOCAB];
    static tn_token tokens[VOCAB];
    rng r = {11};
    int enough_rows = 0;
    for (int row = 0; row < ROWS; row++) {
        tn_sampler_params p = random_params(&r);
        tn_logit_bias bias[2] = {{(tn_token)rng_below(&r, VOCAB), 4 * rng_normal(&r)},
                                 {(tn_token)rng_below(&r, VOCAB), -INFINITY}};
        p.logit_bias = bias;
        p.n_logit_bias = rng_below(&r, 4) ? 0 : 2;
        tn_sampler *whole, *part;
        assert_ok(tn_sampler_new(&p, VOCAB, &whole));
        for (int i = (int)rng_below(&r, 80); i > 0; i--)
            assert_ok(tn_sampler_accept(whole, (tn_token)rng_below(&r, VOCAB)));
        assert_ok(tn_sampler_clone(whole, &part));
        random_row(&r, logits, VOCAB, row);
        const size_t k = 1 + rng_below(&r, 100);
        largest_of(logits, k, tokens, values);
        for (int draw = 0; draw < 2; draw++) { /* the second shows that both used as many random numbers */
            bool enough;
            tn_token expected, token = -1;
            const tn_status status = tn_sampler_sample(whole, logits, VOCAB, &expected);
            assert_ok(tn_sampler_sample_largest(part, tokens, values, k, &enough, &token));
            if (status != TN_OK) assert_false(enough);
            if (status != TN_OK || !enough) break;
            enough_rows += draw == 0;
            if (token != expected) fail_msg("row %d, %zu of its logits: token %d, not %d", row, k, token, expected);
        }
        tn_sampler_free(whole);
        tn_sampler_free(part);
    }
    assert_in_range(enough_rows, ROWS / 10, ROWS); /* most of the others need what is off by default */
}

/* Usual settings never need more than the largest. */
static void defaults_need_the_largest_only(void **state) {
    (void)state;
    static float logits[VOCAB], values[VOCAB];
    static tn_token tokens[VOCAB];
    rng r = {12};
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = 3;
    p.n_dry_breakers = 0;
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 1) p.temperature = 0;
        if (kind == 2) p.repeat_penalty = 1.3f, p.temperature = 1;
        tn_sampler *whole, *part;
        assert_ok(tn_sampler_new(&p, VOCAB, &whole));
        assert_ok(tn_sampler_clone(whole, &part));
        for (int row = 0; row < 200; row++) {
            bool enough;
            tn_token expected, token;
            random_row(&r, logits, VOCAB, 0);
            largest_of(logits, 128, tokens, values);
            assert_ok(tn_sampler_sample(whole, logits, VOCAB, &expected));
            assert_ok(tn_sampler_sample_largest(part, tokens, values, 128, &enough, &token));
            assert_true(enough);
            assert_int_equal(token, expected);
            assert_ok(tn_sampler_accept(whole, token));
            assert_ok(tn_sampler_accept(part, token));
        }
        tn_sampler_free(whole);
        tn_sampler_free(part);
    }
}

static void what_they_cannot_decide_is_not_drawn(void **state) {
    (void)state;
    tn_token tokens[4] = {7, 3, 9, 1}, token = -1;
    float logits[4] = {5, 4, 3, 2};
    bool enough = true;
    tn_sampler_params p = plain_params();
    tn_sampler *s;
    assert_ok(tn_sampler_new(&p, VOCAB, &s)); /* no truncation: every token may be drawn */
    assert_ok(tn_sampler_sample_largest(s, tokens, logits, 4, &enough, &token));
    assert_false(enough);
    assert_int_equal(token, -1);
    tn_sampler_free(s);
    p.n_chain = 1;
    p.chain[0] = TN_SAMPLER_TOP_K;
    for (p.top_k = 3; p.top_k <= 4; p.top_k++) { /* the fourth may have equals outside */
        assert_ok(tn_sampler_new(&p, VOCAB, &s));
        assert_ok(tn_sampler_sample_largest(s, tokens, logits, 4, &enough, &token));
        assert_int_equal(enough, p.top_k == 3);
        tn_sampler_free(s);
    }
    p.top_k = 2;
    tn_logit_bias bias = {100, 1};
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    assert_ok(tn_sampler_new(&p, VOCAB, &s)); /* a token outside is raised */
    assert_ok(tn_sampler_sample_largest(s, tokens, logits, 4, &enough, &token));
    assert_false(enough);
    tn_sampler_free(s);
}

static void wrong_lists_are_refused(void **state) {
    (void)state;
    tn_token tokens[2] = {7, 3}, outside[2] = {7, VOCAB}, token;
    float logits[2] = {5, 4}, ascending[2] = {4, 5};
    bool enough;
    tn_sampler *s;
    tn_sampler_params p = plain_params();
    assert_ok(tn_sampler_new(&p, VOCAB, &s));
    assert_int_equal(tn_sampler_sample_largest(s, outside, logits, 2, &enough, &token), TN_E_INVALID);
    assert_int_equal(tn_sampler_sample_largest(s, tokens, ascending, 2, &enough, &token), TN_E_INVALID);
    assert_int_equal(tn_sampler_sample_largest(NULL, tokens, logits, 2, &enough, &token), TN_E_INVALID);
    assert_ok(tn_sampler_sample_largest(s, tokens, logits, 0, &enough, &token));
    assert_false(enough);
    tn_sampler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_token_is_that_of_the_whole_row),
        cmocka_unit_test(defaults_need_the_largest_only),
        cmocka_unit_test(what_they_cannot_decide_is_not_drawn),
        cmocka_unit_test(wrong_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
