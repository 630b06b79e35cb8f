/* The matcher's tables: what they promise holds after every step, in copies, and after tables were emptied. */
#include "grammar_cases.h"
#include "text/grammar/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const grammars[] = {
    ARITHMETIC,
    "root ::= \"(\" root? \")\" | \"[\" root* \"]\"",
    "root ::= (a | b | c)+ \".\"\na ::= \"x\" b? \"y\"\nb ::= [x-z] a? \"y\"\nc ::= \"x\" c* \"z\"",
    "root ::= [^\\x00-\\x1f\"]{0,40} \"\\\"\" | [\\u00e0-\\u0fff\\U0001f600-\\U0001f640]+ (\"a\" | root)",
};
static const char alphabet[] = "()[]xyz.=+1a \n\"\xc3\xa9\xe0\xa5\x81\xf0\x9f\x98\x80";

static int compare_positions(const tn__position *a, const tn__position *b) {
    return a->pc != b->pc                   ? (a->pc < b->pc ? -1 : 1)
           : a->class_node != b->class_node ? (a->class_node < b->class_node ? -1 : 1)
           : a->stack != b->stack           ? (a->stack < b->stack ? -1 : 1)
                                            : 0;
}

/* Equal stacks have equal numbers, parents come first, sets are sorted and differ, steps lead to sets that exist. */
static void check_tables(const tn__matcher *m) {
    for (size_t f = 1; f < m->n_frames; f++) {
        assert_true(m->frames[f].parent < f);
        for (size_t g = 1; g < f; g++)
            assert_false(m->frames[f].pc == m->frames[g].pc && m->frames[f].parent == m->frames[g].parent);
    }
    size_t positions = 0;
    for (size_t s = 0; s < m->n_sets; s++) {
        const tn__set_info *set = &m->sets[s];
        assert_int_equal(set->first, positions);
        positions += set->count;
        assert_true(set->count > 0 || set->accepting);
        for (uint32_t i = 0; i < set->count; i++) {
            const tn__position *at = &m->positions[set->first + i];
            assert_true(at->stack < m->n_frames && at->pc < m->program->n_code);
            if (i > 0) assert_true(compare_positions(at - 1, at) < 0);
        }
        for (size_t other = 0; other < s; other++) {
            const tn__set_info *o = &m->sets[other];
            assert_false(
                o->count == set->count && o->accepting == set->accepting &&
                memcmp(m->positions + o->first, m->positions + set->first, set->count * sizeof *m->positions) == 0);
        }
        for (size_t g = 0; g < m->program->n_groups; g++) {
            const tn__set to = m->steps[s * m->program->n_groups + g];
            assert_true(to == TN__SET_DEAD || to == TN__SET_UNKNOWN || to - TN__SET_FIRST < m->n_sets);
        }
    }
    assert_int_equal(positions, m->n_positions);
}

static void check_same(const tn__matcher *a, const tn__matcher *b) {
    assert_int_equal(a->n_frames, b->n_frames);
    assert_int_equal(a->n_positions, b->n_positions);
    assert_int_equal(a->n_sets, b->n_sets);
    assert_memory_equal(a->frames, b->frames, a->n_frames * sizeof *a->frames);
    assert_memory_equal(a->positions, b->positions, a->n_positions * sizeof *a->positions);
    assert_memory_equal(a->steps, b->steps, a->n_sets * a->program->n_groups * sizeof *a->steps);
}

/* Random texts that stay alive for a while; the sets they lead to are returned in `path`. */
static size_t random_steps(tn__matcher *m, rng *r, tn__set from, tn__set *path, size_t most) {
    size_t n = 0;
    for (int tries = 0; n < most && tries < 4000; tries++) {
        tn__set to;
        if (tn__matcher_step(m, from, (uint8_t)alphabet[rng_below(r, sizeof alphabet - 1)], &to) != TN_OK) break;
        if (to != TN__SET_DEAD) path[n++] = from = to;
    }
    return n;
}

static void copies_continue_like_the_original(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        tn_grammar *g = grammar_of(grammars[i], NULL);
        tn__matcher a, b;
        tn__set start, path[60];
        assert_ok(tn__matcher_new(&g->program, 0, &a));
        assert_ok(tn__matcher_start(&a, &start));
        rng first = {(uint32_t)i + 1}, second = {7}, third = {7};
        random_steps(&a, &first, start, path, 40);
        check_tables(&a);
        assert_ok(tn__matcher_copy(&a, &b));
        check_same(&a, &b);
        /* The same steps, known and new ones, give the same tables: nothing of the copy's is found a second time. */
        tn__set again[60];
        const size_t n = random_steps(&a, &second, start, path, 60);
        assert_int_equal(random_steps(&b, &third, start, again, 60), n);
        assert_memory_equal(path, again, n * sizeof *path);
        check_same(&a, &b);
        check_tables(&b);
        tn__matcher_free(&a);
        tn__matcher_free(&b);
        tn_grammar_free(g);
    }
}

/* Two sets of different matchers mean the same if both accept or refuse the same random texts. */
static void check_equal_language(tn__matcher *a, tn__set from_a, tn__matcher *b, tn__set from_b, uint32_t seed) {
    rng r = {seed};
    for (int text = 0; text < 40; text++) {
        tn__set at_a = from_a, at_b = from_b;
        for (int i = 0; i < 12 && at_a != TN__SET_DEAD; i++) {
            const uint8_t byte = (uint8_t)alphabet[rng_below(&r, sizeof alphabet - 1)];
            assert_ok(tn__matcher_step(a, at_a, byte, &at_a));
            assert_ok(tn__matcher_step(b, at_b, byte, &at_b));
            assert_int_equal(at_a == TN__SET_DEAD, at_b == TN__SET_DEAD);
            assert_int_equal(tn__matcher_accepting(a, at_a), tn__matcher_accepting(b, at_b));
        }
    }
}

static void kept_sets_mean_the_same_after_the_rest_is_forgotten(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
        for (size_t n_keep = 0; n_keep <= 4; n_keep++) {
            tn_grammar *g = grammar_of(grammars[i], NULL);
            tn__matcher m, before;
            tn__set start, path[40];
            assert_ok(tn__matcher_new(&g->program, 0, &m));
            assert_ok(tn__matcher_start(&m, &start));
            size_t n = 0;
            for (uint32_t seed = 1; n < 5; seed++) {
                rng r = {seed + 100 * n_keep};
                n = random_steps(&m, &r, start, path, 40);
            }
            assert_ok(tn__matcher_copy(&m, &before));
            /* The last ones first, one of them twice, and the dead set, which is no set of the tables. */
            tn__set old[4] = {path[n - 1], path[n / 2], n_keep == 4 ? path[n - 1] : path[0], TN__SET_DEAD}, kept[4];
            tn__set *keep[4] = {&kept[0], &kept[1], &kept[2], &kept[3]};
            memcpy(kept, old, sizeof kept);
            tn__matcher_forget(&m, keep, n_keep);
            check_tables(&m);
            size_t distinct = 0;
            for (size_t k = 0; k < n_keep; k++) {
                bool is_new = old[k] != TN__SET_DEAD;
                for (size_t other = 0; other < k; other++) is_new = is_new && old[other] != old[k];
                distinct += is_new;
            }
            assert_int_equal(m.n_sets, distinct);
            for (size_t k = 0; k < n_keep; k++) {
                if (old[k] == TN__SET_DEAD)
                    assert_int_equal(kept[k], TN__SET_DEAD);
                else
                    check_equal_language(&m, kept[k], &before, old[k], (uint32_t)k);
            }
            for (size_t k = n_keep; k < 4; k++) assert_int_equal(kept[k], old[k]); /* not given, not changed */
            check_tables(&m);
            tn__matcher_free(&m);
            tn__matcher_free(&before);
            tn_grammar_free(g);
        }
}

/* The memory is divided as the limits in messages say, and no table writes beyond its part: a small matcher that runs
 * full gives errors, and works again after it was emptied. */
static void full_tables_are_limits(void **state) {
    (void)state;
    tn_grammar *g = grammar_of("root ::= \"(\" root? \")\" | [a-z]", NULL);
    tn__matcher m;
    assert_ok(tn__matcher_new(&g->program, 1, &m));
    tn__set start, at;
    assert_ok(tn__matcher_start(&m, &start));
    at = start;
    size_t depth = 0;
    tn_status status;
    while ((status = tn__matcher_step(&m, at, '(', &at)) == TN_OK) depth++;
    assert_int_equal(status, TN_E_LIMIT);
    assert_true(depth > 500);
    check_tables(&m);
    tn__set *keep[1] = {&at};
    tn__matcher_forget(&m, keep, 1);
    assert_int_equal(m.n_frames, depth + 1); /* the stack of the kept set, and the empty one */
    for (size_t i = 0; i <= depth; i++) {
        assert_false(tn__matcher_accepting(&m, at));
        status = tn__matcher_step(&m, at, i ? ')' : 'a', &at);
        if (status == TN_E_LIMIT) {
            tn__matcher_forget(&m, keep, 1);
            status = tn__matcher_step(&m, at, i ? ')' : 'a', &at);
        }
        assert_ok(status);
        assert_true(at != TN__SET_DEAD);
    }
    assert_true(tn__matcher_accepting(&m, at));
    tn__matcher_free(&m);
    tn_grammar_free(g);
}

/* Grammars of as many alternatives as the work list has room for, and some less and more: an error, or every
 * alternative is there. */
static void no_alternative_is_lost_at_the_limit(void **state) {
    (void)state;
    static const struct {
        const char *first, *more, *rule; /* printed with the number of the alternative */
    } forms[] = {{"root ::= \"a%d.\"", " | \"a%d.\"", ""},
                 {"root ::= r%d", " | r%d", "r%d ::= \"a%d.\"\n"},
                 {"root ::= (\"a%d.\")", " | (\"a%d.\" | \"b\"*)", ""},
                 {"root ::= r%d \"!\"?", " | r%d \"!\"?", "r%d ::= \"a%d.\"\n"}};
    char *text = malloc(1 << 20);
    for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
        size_t limited = 0, whole = 0;
        for (int n = 100; n < 720; n++) {
            char *to = text;
            for (int i = 0; i < n; i++) to += sprintf(to, i ? forms[form].more : forms[form].first, i);
            to += sprintf(to, "\n");
            for (int i = 0; i < n && *forms[form].rule; i++) to += sprintf(to, forms[form].rule, i, i);
            tn_grammar *g = grammar_of(text, NULL);
            tn__matcher m;
            tn__set start;
            assert_ok(tn__matcher_new(&g->program, 1, &m));
            const tn_status status = tn__matcher_start(&m, &start);
            if (status == TN_OK) check_tables(&m);
            for (int i = n - 4; i < n && status == TN_OK; i++) {
                char word[16];
                tn__set at = start;
                tn_status step = TN_OK;
                const int size = snprintf(word, sizeof word, "a%d.", i);
                for (int k = 0; k < size && step == TN_OK; k++)
                    step = tn__matcher_step(&m, at, (uint8_t)word[k], &at);
                if (step != TN_E_LIMIT) assert_ok(step);
                if (step == TN_OK && !tn__matcher_accepting(&m, at))
                    fail_msg("%d alternatives of form %zu: number %d is lost", n, form, i);
            }
            if (status != TN_OK) assert_int_equal(status, TN_E_LIMIT);
            limited += status != TN_OK;
            whole += status == TN_OK;
            tn__matcher_free(&m);
            tn_grammar_free(g);
        }
        assert_true(limited > 10 && whole > 10);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_continue_like_the_original),
        cmocka_unit_test(kept_sets_mean_the_same_after_the_rest_is_forgotten),
        cmocka_unit_test(full_tables_are_limits),
        cmocka_unit_test(no_alternative_is_lost_at_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
