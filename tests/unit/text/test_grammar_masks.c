/* Grammars over a vocabulary: masks, triggers, and the grammar of a sampler. */
#include "grammar_cases.h"
#include "tenon/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Masks ---- */

/* Pieces of every difficult kind: parts of characters, duplicates, prefixes of each other, empty ones, two ends. */
static tn_pieces *random_pieces(rng *r, size_t n, char (*texts)[16]) {
    static const char *parts[] = {"{",    "}",    "[",    "]",    "\"",       ":",    ",",        " ",        "a",
                                  "b",    "1",    "0",    "-",    ".",        "\\",   "n",        "u",        "e",
                                  "true", "null", "\xc3", "\xa9", "\xe4\xb8", "\x80", "\xf0\x9f", "\x98\x80", "\xff",
                                  "(",    ")",    "+",    "=",    "\n",       "x",    "]]",       "\":"};
    tn_piece *pieces = calloc(n, sizeof *pieces);
    for (size_t i = 0; i < n; i++) {
        texts[i][0] = '\0';
        for (size_t k = rng_below(r, 4); k > 0; k--)
            strcat(texts[i], parts[rng_below(r, sizeof parts / sizeof *parts)]);
        pieces[i] = (tn_piece){texts[i], strlen(texts[i])};
    }
    tn_token ends[2] = {3, 70};
    tn_pieces *out;
    assert_ok(tn_pieces_new(pieces, n, ends, 2, &out));
    free(pieces);
    return out;
}

static bool allowed_by_trying(const tn_grammar_state *s, tn_token token) {
    tn_grammar_state *copy;
    assert_ok(tn_grammar_state_clone(s, &copy));
    tn_status status = tn_grammar_accept_token(copy, token);
    if (status != TN_OK && status != TN_E_INVALID) fail_msg("%s", tn_error());
    tn_grammar_state_free(copy);
    return status == TN_OK;
}

static void masks_equal_trying_every_token(void **state) {
    (void)state;
    enum { N = 300 };
    static char texts[N][16];
    const char *grammars[] = {tn_grammar_json(),
                              ARITHMETIC,
                              "root ::= .*",
                              "root ::= [^\"]{0,40}",
                              "root ::= \"(\" root? \")\"",
                              "root ::= [\\u00e0-\\u00ff\\u4e00-\\u9fff]+ [a1]*"};
    rng random = {71};
    for (int round = 0; round < 18; round++) {
        tn_pieces *pieces = random_pieces(&random, N, texts);
        tn_grammar *g = grammar_of(grammars[round % 6], NULL);
        tn_grammar_state *s;
        assert_ok(tn_grammar_state_new(
            &(tn_grammar_state_params){.grammar = g, .pieces = pieces, .memory = 1, .masks = round < 6 ? 1 : 8}, &s));
        for (int step = 0; step < 12; step++) {
            const uint64_t *mask;
            assert_ok(tn_grammar_mask(s, &mask));
            tn_token options[N];
            size_t n_options = 0;
            for (tn_token t = 0; t < N; t++) {
                bool set = mask[t / 64] >> (t % 64) & 1, expected = allowed_by_trying(s, t);
                if (set != expected) fail_msg("round %d, step %d: token %d \"%s\"", round, step, t, texts[t]);
                if (set && t != 3 && t != 70) options[n_options++] = t;
            }
            assert_true(mask[N / 64] >> (N % 64) == 0);
            if (n_options == 0) break;
            assert_ok(tn_grammar_accept_token(s, options[rng_below(&random, n_options)]));
        }
        tn_grammar_state_free(s);
        tn_grammar_free(g);
        tn_pieces_free(pieces);
    }
}

static void ends_are_allowed_where_the_text_is_complete(void **state) {
    (void)state;
    tn_piece texts[] = {{"a", 1}, {"b", 1}, {"</s>", 4}, {"", 0}};
    tn_token end = 2;
    tn_pieces *pieces;
    assert_ok(tn_pieces_new(texts, 4, &end, 1, &pieces));
    assert_int_equal(tn_pieces_count(pieces), 4);
    assert_int_equal(tn_pieces_get(pieces, 2).length, 4);
    assert_int_equal(tn_pieces_get(pieces, 4).length, 0);
    tn_grammar *g = grammar_of("root ::= \"ab\" \"</s>\"?", NULL);
    tn_grammar_state *s = state_of(g, pieces);
    const uint64_t *mask;
    assert_ok(tn_grammar_mask(s, &mask));
    assert_int_equal(*mask, 1);
    assert_fails(TN_E_INVALID, tn_grammar_accept_token(s, 2));
    assert_fails(TN_E_INVALID, tn_grammar_accept_token(s, 3));
    assert_fails(TN_E_INVALID, tn_grammar_accept_token(s, 4));
    assert_ok(tn_grammar_accept_token(s, 0));
    assert_ok(tn_grammar_accept_token(s, 1));
    assert_ok(tn_grammar_mask(s, &mask));
    assert_int_equal(*mask, 4); /* as an end, not as text */
    assert_ok(tn_grammar_accept_token(s, 2));
    tn_grammar_state_free(s);
    tn_grammar_free(g);
    tn_pieces_free(pieces);
}

static void a_mask_costs_no_allocation(void **state) {
    (void)state;
    enum { N = 300 };
    static char texts[N][16];
    rng random = {5};
    tn_pieces *pieces = random_pieces(&random, N, texts);
    tn_grammar *g = grammar_of(tn_grammar_json(), "value");
    tn_grammar_state *s = state_of(g, pieces);
    uint64_t before = tn_memory_get_stats().allocations;
    for (int i = 0; i < 2000; i++) {
        const uint64_t *mask;
        assert_ok(tn_grammar_mask(s, &mask));
        tn_token options[N];
        size_t n = 0;
        for (tn_token t = 0; t < N; t++)
            if (mask[t / 64] >> (t % 64) & 1) options[n++] = t;
        if (n == 0 || i % 50 == 49) {
            tn_grammar_state_reset(s);
            continue;
        }
        assert_ok(tn_grammar_accept_token(s, options[rng_below(&random, n)]));
    }
    assert_int_equal(tn_memory_get_stats().allocations, before);
    tn_grammar_state_free(s);
    tn_grammar_free(g);
    tn_pieces_free(pieces);
}

/* ---- Lazy grammars ---- */

static void a_lazy_grammar_waits_for_its_trigger(void **state) {
    (void)state;
    tn_piece texts[] = {{"a", 1}, {"<to", 3},       {"ol>", 3}, {"ol>{", 4}, {"ol>x", 4},     {"{", 1},
                        {"}", 1}, {"x<tool>{}", 9}, {"", 0},    {"</s>", 4}, {"x<tool>}", 8}, {"<<tool>{", 8}};
    tn_token end = 9;
    tn_pieces *pieces;
    assert_ok(tn_pieces_new(texts, 12, &end, 1, &pieces));
    tn_grammar *after = grammar_of("root ::= \"{\" \"}\"", NULL);
    tn_grammar *whole = grammar_of("root ::= \"<tool>\" \"{\" \"}\" | \"ignored\"", NULL);
    for (int included = 0; included < 2; included++) {
        tn_grammar_trigger triggers[] = {{.text = "<tool>", .included = included}, {.text = "<never"}, {.token = 8}};
        tn_grammar_state_params params = {.grammar = included ? whole : after,
                                          .pieces = pieces,
                                          .triggers = triggers,
                                          .n_triggers = included ? 2 : 3};
        tn_grammar_state *s, *copy;
        const uint64_t *mask;
        assert_ok(tn_grammar_state_new(&params, &s));
        assert_true(tn_grammar_is_waiting(s) && tn_grammar_is_accepting(s));
        /* All tokens are allowed except the one that contains the trigger followed by invalid text. */
        assert_ok(tn_grammar_mask(s, &mask));
        assert_int_equal(*mask, 0xfff & ~(1u << 10));
        assert_ok(tn_grammar_accept_token(s, 4)); /* "ol>x" alone is not a trigger */
        assert_ok(tn_grammar_accept_token(s, 9));
        assert_ok(tn_grammar_accept_token(s, 1));
        assert_ok(tn_grammar_mask(s, &mask));
        assert_int_equal(*mask, 0xfff & ~(1u << 10) & ~(1u << 4));
        assert_true(tn_grammar_is_waiting(s));
        assert_ok(tn_grammar_state_clone(s, &copy));
        assert_fails(TN_E_INVALID, tn_grammar_accept_token(s, 4));
        assert_true(tn_grammar_is_waiting(s));
        assert_ok(tn_grammar_accept_token(s, 3));
        assert_false(tn_grammar_is_waiting(s));
        assert_ok(tn_grammar_mask(s, &mask));
        assert_int_equal(*mask, 1u << 6);
        assert_ok(tn_grammar_accept_token(s, 6));
        assert_true(tn_grammar_is_accepting(s));
        assert_ok(tn_grammar_mask(s, &mask));
        assert_int_equal(*mask, 1u << 9);
        /* The clone is independent. */
        assert_ok(tn_grammar_accept_token(copy, 2));
        assert_ok(tn_grammar_mask(copy, &mask));
        assert_int_equal(*mask, 1u << 5);
        tn_grammar_state_free(copy);
        tn_grammar_state_reset(s);
        assert_true(tn_grammar_is_waiting(s));
        assert_ok(tn_grammar_accept_token(s, 11));
        assert_false(tn_grammar_is_waiting(s));
        tn_grammar_state_reset(s);
        assert_ok(tn_grammar_accept_token(s, 8));
        assert_int_equal(tn_grammar_is_waiting(s), included); /* token 8 is a trigger only in the first round */
        tn_grammar_state_free(s);
    }
    tn_grammar_state *s;
    tn_grammar_trigger wrong = {.text = "<tool>", .included = true};
    assert_fails(
        TN_E_INVALID,
        tn_grammar_state_new(&(tn_grammar_state_params){.grammar = after, .triggers = &wrong, .n_triggers = 1}, &s));
    wrong = (tn_grammar_trigger){.text = ""};
    assert_fails(
        TN_E_INVALID,
        tn_grammar_state_new(&(tn_grammar_state_params){.grammar = after, .triggers = &wrong, .n_triggers = 1}, &s));
    wrong = (tn_grammar_trigger){.token = 99};
    assert_fails(
        TN_E_INVALID,
        tn_grammar_state_new(
            &(tn_grammar_state_params){.grammar = after, .pieces = pieces, .triggers = &wrong, .n_triggers = 1}, &s));
    tn_grammar_free(after);
    tn_grammar_free(whole);
    tn_pieces_free(pieces);
}

/* ---- In the sampler ---- */

static void a_sampler_obeys_its_grammar(void **state) {
    (void)state;
    enum { N = 300 };
    static char texts[N][16];
    rng random = {8};
    tn_pieces *pieces = random_pieces(&random, N, texts);
    tn_grammar *g = grammar_of(tn_grammar_json(), "value");
    tn_sampler_params p = tn_sampler_params_default();
    p.seed = 3;
    tn_sampler *sampler, *copy;
    assert_ok(tn_sampler_new(&p, N, &sampler));
    assert_ok(tn_sampler_set_grammar(sampler, state_of(g, pieces)));
    float logits[N];
    char text[4000] = "";
    bool ended = false;
    for (int i = 0; i < 200 && !ended; i++) {
        for (int k = 0; k < N; k++) logits[k] = 2 * rng_normal(&random);
        if (i > 100) logits[3] = 100;
        tn_token token;
        assert_ok(tn_sampler_sample(sampler, logits, N, &token));
        if (i == 10) {
            assert_ok(tn_sampler_clone(sampler, &copy));
            assert_ok(tn_sampler_accept(copy, token));
            tn_sampler_free(copy);
        }
        assert_ok(tn_sampler_accept(sampler, token));
        ended = token == 3 || token == 70;
        if (!ended && strlen(text) < 3900) strcat(text, texts[token]);
    }
    tn_grammar_state *check = state_of(g, NULL);
    assert_ok(tn_grammar_accept_bytes(check, text, strlen(text)));
    if (ended) assert_true(tn_grammar_is_accepting(check));
    tn_grammar_state_free(check);
    tn_sampler_reset(sampler);
    assert_fails(TN_E_INVALID, tn_sampler_accept(sampler, 3)); /* the empty text is not JSON */
    for (int k = 0; k < N; k++) logits[k] = -INFINITY;
    logits[3] = 0;
    tn_token token;
    assert_fails(TN_E_INFEASIBLE, tn_sampler_sample(sampler, logits, N, &token));
    assert_ok(tn_sampler_set_grammar(sampler, NULL));
    assert_ok(tn_sampler_sample(sampler, logits, N, &token));
    tn_grammar_state *without = state_of(g, NULL);
    assert_fails(TN_E_INVALID, tn_sampler_set_grammar(sampler, without));
    tn_grammar_state_free(without);
    tn_sampler_free(sampler);
    tn_grammar_free(g);
    tn_pieces_free(pieces);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_equal_trying_every_token),
        cmocka_unit_test(ends_are_allowed_where_the_text_is_complete),
        cmocka_unit_test(a_mask_costs_no_allocation),
        cmocka_unit_test(a_lazy_grammar_waits_for_its_trigger),
        cmocka_unit_test(a_sampler_obeys_its_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
