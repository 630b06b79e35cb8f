/* Random grammars against a matcher that tries everything: a node of the syntax tree maps a start to the set of all
 * positions where a match can end. Every short text is tried. */
#include "support.h"

#include "tenon/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULES = 3, NODES = 256, LONGEST = 6, LETTERS = 3 };
static const char letters[] = "abc";

typedef enum node_kind { LITERAL, CLASS, ANY, RULE, SEQUENCE, CHOICE, REPEAT } node_kind;
typedef struct node {
    node_kind kind;
    char text[4];     /* LITERAL; members of a CLASS */
    bool negated;     /* CLASS */
    int first, count; /* children: of SEQUENCE and CHOICE, in `children` */
    int rule;
    int least, most; /* REPEAT; most -1: no limit */
} node;

typedef struct language {
    node nodes[NODES];
    int children[NODES], n_nodes, n_children, roots[RULES];
    char gbnf[8192];
    rng random;
} language;

static int below(language *l, int n) { return (int)rng_below(&l->random, (uint64_t)n); }

/* A random node. Rules refer to later rules only, so that none is recursive on the left. */
static int make_node(language *l, int rule, int depth) {
    const int at = l->n_nodes++;
    assert_true(at < NODES);
    node n = {.kind = depth ? (node_kind)below(l, REPEAT + 1) : (node_kind)below(l, ANY + 1)};
    if (n.kind == RULE && rule + 1 >= RULES) n.kind = LITERAL;
    switch (n.kind) {
    case LITERAL:
        for (int i = 0, length = 1 + below(l, 2); i < length; i++) n.text[i] = letters[below(l, LETTERS)];
        break;
    case CLASS:
        n.negated = below(l, 3) == 0;
        for (int i = 0, length = 1 + below(l, 2); i < length; i++) n.text[i] = letters[below(l, LETTERS)];
        break;
    case ANY: break;
    case RULE: n.rule = rule + 1 + below(l, RULES - rule - 1); break;
    case SEQUENCE:
    case CHOICE: {
        int children[3];
        n.count = 2 + below(l, 2);
        for (int i = 0; i < n.count; i++) children[i] = make_node(l, rule, depth - 1);
        n.first = l->n_children;
        for (int i = 0; i < n.count; i++) l->children[l->n_children++] = children[i];
        break;
    }
    case REPEAT: {
        static const int bounds[][2] = {{0, -1}, {1, -1}, {0, 1}, {2, 2}, {1, 3}, {0, 2}, {2, -1}, {3, 3}};
        const int which = below(l, 8), child = make_node(l, rule, depth - 1);
        n.least = bounds[which][0];
        n.most = bounds[which][1];
        n.first = l->n_children;
        n.count = 1;
        l->children[l->n_children++] = child;
        break;
    }
    }
    l->nodes[at] = n;
    return at;
}

static char *print_node(const language *l, int at, char *to) {
    const node *n = &l->nodes[at];
    switch (n->kind) {
    case LITERAL: return to + sprintf(to, "\"%s\"", n->text);
    case CLASS: return to + sprintf(to, "[%s%s]", n->negated ? "^" : "", n->text);
    case ANY: return to + sprintf(to, ".");
    case RULE: return to + sprintf(to, "r%d", n->rule);
    case SEQUENCE:
    case CHOICE:
        to += sprintf(to, "(");
        for (int i = 0; i < n->count; i++) {
            if (i) to += sprintf(to, n->kind == CHOICE ? " | " : " ");
            to = print_node(l, l->children[n->first + i], to);
        }
        return to + sprintf(to, ")");
    case REPEAT:
        to += sprintf(to, "(");
        to = print_node(l, l->children[n->first], to);
        to += sprintf(to, ")");
        if (n->most < 0 && n->least < 2) return to + sprintf(to, n->least ? "+" : "*");
        if (n->most < 0) return to + sprintf(to, "{%d,}", n->least);
        if (n->least == 0 && n->most == 1) return to + sprintf(to, "?");
        return n->least == n->most ? to + sprintf(to, "{%d}", n->least)
                                   : to + sprintf(to, "{%d,%d}", n->least, n->most);
    }
    return to;
}

/* The set of positions where a match that begins at a position of `from` can end: bit i is position i. */
static unsigned ends_of(const language *l, int at, const char *text, int size, unsigned from) {
    const node *n = &l->nodes[at];
    unsigned ends = 0;
    switch (n->kind) {
    case LITERAL:
        for (int i = 0, length = (int)strlen(n->text); i + length <= size; i++)
            if (from >> i & 1 && memcmp(text + i, n->text, (size_t)length) == 0) ends |= 1u << (i + length);
        return ends;
    case CLASS:
        for (int i = 0; i < size; i++)
            if (from >> i & 1 && (strchr(n->text, text[i]) != NULL) != n->negated) ends |= 2u << i;
        return ends;
    case ANY: return (from << 1) & ((2u << size) - 1);
    case RULE: return ends_of(l, l->roots[n->rule], text, size, from);
    case SEQUENCE:
        for (int i = 0; i < n->count; i++) from = ends_of(l, l->children[n->first + i], text, size, from);
        return from;
    case CHOICE:
        for (int i = 0; i < n->count; i++) ends |= ends_of(l, l->children[n->first + i], text, size, from);
        return ends;
    case REPEAT:
        /* More repetitions than there are characters and required ones end nowhere new. */
        for (int i = 0; i <= (n->most < 0 ? n->least + size + 1 : n->most); i++) {
            if (i >= n->least) ends |= from;
            from = ends_of(l, l->children[n->first], text, size, from);
        }
        return ends;
    }
    return 0;
}

static int nth_text(int index, char *text) { /* all texts, the shorter ones first */
    int size = 0, n = 1;
    for (; index >= n; size++, n *= LETTERS) index -= n;
    for (int i = size; i-- > 0; index /= LETTERS) text[i] = letters[index % LETTERS];
    text[size] = 0;
    return size;
}

/* A state that has accepted the text, or NULL where the grammar refuses it. */
static tn_grammar_state *accept_text(const tn_grammar *grammar, const char *text, int size) {
    tn_grammar_state *state;
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = grammar, .memory = 1 << 18}, &state));
    const tn_status status = tn_grammar_accept_bytes(state, text, (size_t)size);
    if (status == TN_OK) return state;
    assert_int_equal(status, TN_E_INVALID);
    tn_grammar_state_free(state);
    return NULL;
}

static void check_language(language *l, const tn_grammar *grammar) {
    enum { TEXTS = (1 + 3 + 9 + 27 + 81 + 243 + 729) };
    static bool refused[TEXTS];
    for (int index = 0; index < TEXTS; index++) {
        char text[LONGEST + 1];
        const int size = nth_text(index, text);
        const bool expected = ends_of(l, l->roots[0], text, size, 1) >> size & 1;
        /* The text without its last character is text number (index - 1) / LETTERS. */
        refused[index] = index > 0 && refused[(index - 1) / LETTERS];
        if (refused[index]) { /* what cannot begin a text is no text */
            if (expected) fail_msg("%s: \"%s\" matches, but its beginning is refused", l->gbnf, text);
            continue;
        }
        tn_grammar_state *state = accept_text(grammar, text, size);
        refused[index] = !state;
        const bool got = state && tn_grammar_is_accepting(state);
        if (got != expected) fail_msg("%s: \"%s\" is %s", l->gbnf, text, got ? "accepted" : "refused");
        tn_grammar_state_free(state);
    }
}

static void random_grammars_match_what_they_say(void **state) {
    (void)state;
    static language l;
    int compiled = 0, rounds = getenv("TENON_LONG") ? 5000 : 600;
    for (int round = 0; round < rounds; round++) {
        l = (language){.random = {(uint64_t)round + 1}};
        char *to = l.gbnf;
        for (int rule = RULES; rule-- > 0;) l.roots[rule] = make_node(&l, rule, 3);
        for (int rule = 0; rule < RULES; rule++) {
            to += rule ? sprintf(to, "r%d ::= ", rule) : sprintf(to, "root ::= ");
            to = print_node(&l, l.roots[rule], to);
            to += sprintf(to, "\n");
        }
        tn_grammar *grammar;
        const tn_status status = tn_grammar_new(l.gbnf, NULL, &grammar);
        if (status == TN_E_LIMIT) continue; /* too ambiguous */
        if (status != TN_OK) fail_msg("%s: %s", l.gbnf, tn_error());
        check_language(&l, grammar);
        tn_grammar_free(grammar);
        compiled++;
    }
    assert_true(compiled > rounds * 9 / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_grammars_match_what_they_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
