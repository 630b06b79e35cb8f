/* Helpers of the tests of grammars. */
#ifndef TN_TESTS_GRAMMAR_CASES_H
#define TN_TESTS_GRAMMAR_CASES_H

#include "support.h"
#include "tenon/grammar.h"

#define ARITHMETIC                                                                                                   \
    "root  ::= (expr \"=\" ws term \"\\n\")+\n"                                                                      \
    "expr  ::= term ([-+*/] term)*\n"                                                                                \
    "term  ::= ident | num | \"(\" ws expr \")\" ws\n"                                                               \
    "ident ::= [a-z] [a-z0-9_]* ws\n"                                                                                \
    "num   ::= [0-9]+ ws\n"                                                                                          \
    "ws    ::= [ \\t\\n]*\n"

static inline tn_grammar *grammar_of(const char *gbnf, const char *root) {
    tn_grammar *g;
    assert_ok(tn_grammar_new(gbnf, root, &g));
    return g;
}
static inline tn_grammar_state *state_of(const tn_grammar *g, const tn_pieces *pieces) {
    tn_grammar_state *s;
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g, .pieces = pieces}, &s));
    return s;
}

#endif
