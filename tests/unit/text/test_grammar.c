/* Grammars: texts that they accept and refuse, bad grammars, limits. */
#include "../fuzz/fuzz_grammar.c" /* its target replays the corpus below */
#include "../support/corpus.h"
#include "grammar_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tables of accepted and refused texts ---- */

#define CHESS                                                                                                        \
    "# pairs of moves\n"                                                                                             \
    "root ::= (\"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+)\n"                    \
    "move ::= (pawn | nonpawn | castle) [+#]?\n"                                                                     \
    "# a figure, maybe with where it comes from\n"                                                                   \
    "nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"                                                         \
    "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"                                                         \
    "castle ::= \"O-O\" \"-O\"?\n"

#define LIST "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n"

#define C_SUBSET                                                                                                     \
    "root ::= (declaration)*\n"                                                                                      \
    "declaration ::= type identifier \"(\" parameter? \")\" \"{\" statement* \"}\"\n"                                \
    "type ::= (\"int\" | \"float\" | \"char\") ws\n"                                                                 \
    "identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*\n"                                                                       \
    "parameter ::= type identifier\n"                                                                                \
    "statement ::=\n"                                                                                                \
    "  ( type identifier ws \"=\" ws expression \";\" ) |\n"                                                         \
    "  ( identifier ws \"=\" ws expression \";\" ) |\n"                                                              \
    "  ( identifier ws \"(\" argList? \")\" \";\" ) |\n"                                                             \
    "  ( \"return\" ws expression \";\" ) |\n"                                                                       \
    "  ( \"while\" \"(\" condition \")\" \"{\" statement* \"}\" )\n"                                                 \
    "  | ( \"if\" \"(\" condition \")\" \"{\" statement* \"}\" (\"else\" \"{\" statement* \"}\")? ) # both ways\n"   \
    "condition ::= expression relation expression\n"                                                                 \
    "relation ::= (\"<=\" | \"<\" | \"==\" | \"!=\" | \">=\" | \">\")\n"                                             \
    "expression ::= term ((\"+\" | \"-\") term)*\n"                                                                  \
    "term ::= factor ((\"*\" | \"/\") factor)*\n"                                                                    \
    "factor ::= identifier | number | \"-\" factor | identifier \"(\" argList? \")\" | \"(\" expression \")\" | "    \
    "string\n"                                                                                                       \
    "string ::= \"\\\"\" [^\"]* \"\\\"\"\n"                                                                          \
    "argList ::= expression (\",\" ws expression)*\n"                                                                \
    "number ::= [0-9]+\n"                                                                                            \
    "ws ::= [ \\t\\n]+\n"

#define JAPANESE                                                                                                     \
    "root ::= jp-char+ ([ \\t\\n] jp-char+)*\n"                                                                      \
    "jp-char ::= hiragana | katakana | punctuation | cjk\n"                                                          \
    "hiragana ::= [ぁ-ゟ]\n"                                                                                       \
    "katakana ::= [ァ-ヿ]\n"                                                                                       \
    "punctuation ::= [、-〾]\n"                                                                                    \
    "cjk ::= [一-鿿]\n"

static const struct {
    const char *gbnf, *root, *text;
    bool accepted;
} table[] = {
    {NULL, "value", "{}", true},
    {NULL, "value", "{\"a\": [1, -2.5e3, \"x\\n\\u00e9\\\"\", true, null], \"b\": {}}", true},
    {NULL, "value", "\"\xc3\xa9\xf0\x9f\x98\x80\"", true},
    {NULL, "value", "0", true},
    {NULL, "value", "-0.10E+7", true},
    {NULL, "value", "01", false},
    {NULL, "value", "+1", false},
    {NULL, "value", "1.", false},
    {NULL, "value", "{\"a\":}", false},
    {NULL, "value", "{\"a\" 1}", false},
    {NULL, "value", "{a: 1}", false},
    {NULL, "value", "[1,]", false},
    {NULL, "value", "[1 2]", false},
    {NULL, "value", "\"a\nb\"", false},
    {NULL, "value", "\"\\x41\"", false},
    {NULL, "value", "\"\\ud83d\\ude00\"", true},
    {NULL, "value", "\"\\ud83d\"", false},
    {NULL, "value", "\"\\u0000\"", false},
    {NULL, "value", "\"\xc3\"", false},
    {NULL, "value", "\"\xed\xa0\x80\"", false}, /* a surrogate in UTF-8 */
    {NULL, "value", "\"\xc0\x80\"", false},     /* an overlong form */
    {NULL, "value", "\"\xf4\x90\x80\x80\"", false},
    {NULL, "value", "tru", false},
    {NULL, "value", "nulll", false},
    {NULL, "root", "[]", false},
    {NULL, "root", "{\n  \"k\": 1\n}", true},
    {ARITHMETIC, NULL, "a+1=b\n", true},
    {ARITHMETIC, NULL, "(x_1 *(2 +3)) /7 = y\n1=1\n", true},
    {ARITHMETIC, NULL, "1+=2\n", false},
    {ARITHMETIC, NULL, "((1)=1\n", false},
    {ARITHMETIC, NULL, "1=1", false},
    {CHESS, NULL, "1. e4 e5\n2. Nf3 Nc6\n", true},
    {CHESS, NULL, "1. e4 exd5\n2. O-O O-O-O+\n10. Qa1xb2# e8=Q\n", true},
    {CHESS, NULL, "1. e4 e5\n", false},
    {CHESS, NULL, "1. e9 e5\n2. a1 a1\n", false},
    {CHESS, NULL, "1. O-O-O-O e5\n2. a1 a1\n", false},
    {LIST, NULL, "- one\n- two \xe2\x98\x83\n", true},
    {LIST, NULL, "- one", false},
    {LIST, NULL, "-one\n", false},
    {LIST, NULL,
     "- a\xe2\x80\xa8"
     "b\n",
     false}, /* U+2028 */
    {LIST, NULL,
     "- a\xe2\x80\xaa"
     "b\n",
     true}, /* U+202A */
    {C_SUBSET, NULL, "", true},
    {C_SUBSET, NULL, "int main(){return 0;}", true},
    {C_SUBSET, NULL, "int main(){return 0+f(x, 2);}", true},
    {C_SUBSET, NULL, "int main(){return0;}", false},
    {C_SUBSET, NULL, "int f(int a){if(a<=1){return a;}else{x = f(a-1)*2;}while(a!=0){g(\"s\");}}float g(){}", false},
    {C_SUBSET, NULL, "int f(int a){if(a<=1){return a;}else{x = f(a-1)*2;}while(a!=0){g (\"s\");}}float g(){}", true},
    {C_SUBSET, NULL, "int f(){x = ;}", false},
    {JAPANESE, NULL, "ひらがな カタカナ\n漢字、", true},
    {JAPANESE, NULL, "ひらがな  漢", false},
    {JAPANESE, NULL, "abc", false},
    /* Classes and characters. */
    {"root ::= [^a-c]", NULL, "d", true},
    {"root ::= [^a-c]", NULL, "b", false},
    {"root ::= [^a-c]", NULL, "\xf0\x90\x80\x80", true},
    {"root ::= [^\\x00-\\U0010FFFE]", NULL, "\xf4\x8f\xbf\xbf", true},
    {"root ::= [^\\x00-\\U0010FFFE]", NULL, "\xf4\x8f\xbf\xbe", false},
    {"root ::= [\\x7e-\\u0081]+", NULL, "~\x7f\xc2\x80\xc2\x81", true},
    {"root ::= [\\x7e-\\u0081]+", NULL, "\xc2\x82", false},
    {"root ::= [\\u07fe-\\u0801]+", NULL, "\xdf\xbe\xdf\xbf\xe0\xa0\x80\xe0\xa0\x81", true},
    {"root ::= [\\ufffe-\\U00010001]+", NULL, "\xef\xbf\xbe\xf0\x90\x80\x81", true},
    {"root ::= [\\ufffe-\\U00010001]+", NULL, "\xf0\x90\x80\x82", false},
    {"root ::= [\\ud7ff-\\ue000]+", NULL, "\xed\x9f\xbf\xee\x80\x80", true},
    {"root ::= [a\\-z]+", NULL, "a-z", true},
    {"root ::= [a\\-z]+", NULL, "b", false},
    {"root ::= [a-]+", NULL, "a-", true},
    {"root ::= [-a]+", NULL, "a-", true},
    {"root ::= [\\]\\[\\\\\\^]+", NULL, "][\\^", true},
    {"root ::= .", NULL, "\xe2\x82\xac", true},
    {"root ::= .", NULL, "\n", true},
    {"root ::= .", NULL, "ab", false},
    {"root ::= \"\\x41\\u00e4\\U0001F600\\t\\r\"", NULL, "A\xc3\xa4\xf0\x9f\x98\x80\t\r", true},
    /* Repetitions. */
    {"root ::= \"a\"{3}", NULL, "aaa", true},
    {"root ::= \"a\"{3}", NULL, "aa", false},
    {"root ::= \"a\"{3}", NULL, "aaaa", false},
    {"root ::= \"ab\"{2,3}", NULL, "abab", true},
    {"root ::= \"ab\"{2,3}", NULL, "ababab", true},
    {"root ::= \"ab\"{2,3}", NULL, "abababab", false},
    {"root ::= \"ab\"{2,3}", NULL, "ababa", false},
    {"root ::= ([a-z] \"-\"){2,}", NULL, "a-b-c-d-", true},
    {"root ::= ([a-z] \"-\"){2,}", NULL, "a-", false},
    {"root ::= \"a\"{0,2} \"b\"", NULL, "b", true},
    {"root ::= \"a\"{0,2} \"b\"", NULL, "aaab", false},
    {"root ::= \"a\"{0} \"b\"", NULL, "b", true},
    {"root ::= \"a\"{0} \"b\"", NULL, "ab", false},
    {"root ::= \"a\"{1,1}", NULL, "a", true},
    {"root ::= \"a\"{1,1}", NULL, "", false},
    {"root ::= (\"a\" | \"b\"?)* \"c\"", NULL, "abac", true},
    {"root ::= ((\"a\"*)*)* \"c\"", NULL, "aaac", true},
    {"root ::= (\"a\"? \"b\"?){3}", NULL, "", true},
    {"root ::= (\"a\"? \"b\"?){3}", NULL, "ababab", true},
    {"root ::= (\"a\"? \"b\"?){3}", NULL, "bbbb", false},
    {"root ::= \"x\"+?", NULL, "", true},
    {"root ::= [0-9]{1,1000} \"!\"", NULL, "12345!", true},
    /* Recursion and shape of the text. */
    {"root ::= \"(\" root? \")\"", NULL, "((()))", true},
    {"root ::= \"(\" root? \")\"", NULL, "((())", false},
    {"root ::= \"a\" root | \"b\"", NULL, "aaaaab", true},
    {"root ::= a\na ::= \"x\" b | \"\"\nb ::= \"y\" a", NULL, "xyxy", true},
    {"root ::= a\na ::= \"x\" b | \"\"\nb ::= \"y\" a", NULL, "xyx", false},
    {"root ::= \"a\" |\n  \"b\"\n  # comment\n  | \"c\"\n\n", NULL, "c", true},
    {"# only\nroot ::= (\n \"a\" # one\n \"b\"\n)", NULL, "ab", true},
    {"root ::= \"a\" |", NULL, "", true},
    {"root ::= ()", NULL, "", true},
    {"root ::= \"\"", NULL, "", true},
    {"root ::=", NULL, "", true},
    {"root ::= \"a\"\r\nx ::= \"b\"\r\n", "x", "b", true},
    {"a_b-1 ::= \"x\"", "a_b-1", "x", true},
    /* Ambiguity: both parses stay possible until one is rejected. */
    {"root ::= \"a\" \"b\" \"c\" | \"a\" \"b\" \"d\"", NULL, "abd", true},
    {"root ::= x \"1\" | y \"2\"\nx ::= \"a\"*\ny ::= \"a\"*", NULL, "aaa2", true},
    {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"", NULL, "aaaabcb", true},
};

static bool accepts(const tn_grammar *g, const char *text) {
    tn_grammar_state *s = state_of(g, NULL);
    tn_status status = tn_grammar_accept_bytes(s, text, strlen(text));
    bool accepted = status == TN_OK && tn_grammar_is_accepting(s);
    if (status != TN_OK && status != TN_E_INVALID) fail_msg("%s", tn_error());
    tn_grammar_state_free(s);
    return accepted;
}

static void known_grammars_accept_and_refuse(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        tn_grammar *g = grammar_of(table[i].gbnf ? table[i].gbnf : tn_grammar_json(), table[i].root);
        if (accepts(g, table[i].text) != table[i].accepted)
            fail_msg("row %zu: \"%s\" should be %s by %.60s", i, table[i].text,
                     table[i].accepted ? "accepted" : "refused", table[i].gbnf ? table[i].gbnf : "JSON");
        tn_grammar_free(g);
    }
}

/* ---- Bad grammars ---- */

static void bad_grammars_are_refused_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *gbnf;
        tn_status status;
        const char *message;
    } bad[] = {
        {"", TN_E_SYNTAX, "root"},
        {"x ::= \"a\"", TN_E_SYNTAX, "no start rule \"root\""},
        {"root ::= \"a\nb\"", TN_E_SYNTAX, "line 1, column 10"},
        {"root ::= \"a", TN_E_SYNTAX, "does not end"},
        {"root ::= [a-z", TN_E_SYNTAX, "does not end"},
        {"root ::= []", TN_E_SYNTAX, "empty"},
        {"root ::= [z-a]", TN_E_SYNTAX, "backwards"},
        {"root ::= [^\\x00-\\U0010ffff]", TN_E_SYNTAX, "no character"},
        {"root ::= (\"a\"", TN_E_SYNTAX, "')'"},
        {"root ::= \"a\")", TN_E_SYNTAX, "unexpected character"},
        {"root ::= \"a\"\n\"b\"", TN_E_SYNTAX, "rule name"},
        {"root ::= \"\\q\"", TN_E_SYNTAX, "escape"},
        {"root ::= \"\\x4\"", TN_E_SYNTAX, "hexadecimal"},
        {"root ::= \"\\ud800\"", TN_E_SYNTAX, "Unicode"},
        {"root ::= \"\\U00110000\"", TN_E_SYNTAX, "Unicode"},
        {"root ::= \"\xff\"", TN_E_SYNTAX, "UTF-8"},
        {"root ::= \"\xc3\"", TN_E_SYNTAX, "UTF-8"},
        {"root := \"a\"", TN_E_SYNTAX, "'::='"},
        {"root ::= \"a\"{2,1}", TN_E_SYNTAX, "below the minimum"},
        {"root ::= \"a\"{", TN_E_SYNTAX, "number"},
        {"root ::= \"a\"{,3}", TN_E_SYNTAX, "number"},
        {"root ::= \"a\"{3", TN_E_SYNTAX, "'}'"},
        {"root ::= *", TN_E_SYNTAX, "unexpected character"},
        {"root ::= \"a\"\nroot ::= \"b\"", TN_E_SYNTAX, "line 2, column 1: this rule is defined twice"},
        {"root ::= x\nx ::= y", TN_E_SYNTAX, "\"y\" is not defined"},
        {"root ::= root \"a\" | \"b\"", TN_E_SYNTAX, "left-recursive"},
        {"root ::= x\nx ::= y \"a\"\ny ::= x | \"b\"", TN_E_SYNTAX, "left-recursive"},
        {"root ::= \"\" root \"a\" | \"b\"", TN_E_SYNTAX, "left-recursive"},
        {"root ::= x* root \"a\" | \"b\"\nx ::= \"y\"?", TN_E_SYNTAX, "left-recursive"},
        {"root ::= x\nx ::= e x | \"b\"\ne ::= f\nf ::= \"\" | \"q\"", TN_E_SYNTAX, "left-recursive"},
        {"root ::= (root \"a\"){2} | \"b\"", TN_E_SYNTAX, "left-recursive"},
        {"root ::= \"a\" root", TN_E_SYNTAX, "never finish"},
        {"root ::= \"a\" x | \"b\"\nx ::= \"c\" y\ny ::= \"d\" x", TN_E_SYNTAX, "never finish"},
        {"root ::= \"a\"{1000000}", TN_E_LIMIT, "repetitions"},
        {"root ::= (\"ab\" | \"c\" ){90000} (\"d\"){90000} [a-z]{90000} [0-9]{90000} \"x\"{90000}", TN_E_LIMIT,
         "instructions"},
        {"root ::= (((\"a\"?){1000}){1000}){1000}", TN_E_LIMIT, "ambiguous"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tn_grammar *g = NULL;
        tn_error_clear();
        tn_status status = tn_grammar_new(bad[i].gbnf, NULL, &g);
        if (status != bad[i].status || !strstr(tn_error(), bad[i].message))
            fail_msg("%.60s: %s, %s", bad[i].gbnf, tn_status_name(status), tn_error());
        assert_null(g);
    }
}

static void deep_nesting_is_a_limit_not_a_crash(void **state) {
    (void)state;
    char *text = malloc(200100), *at = text;
    at = stpcpy(at, "root ::= ");
    memset(at, '(', 100000);
    strcpy(at + 100000, "\"a\"");
    tn_grammar *g;
    assert_fails(TN_E_LIMIT, tn_grammar_new(text, NULL, &g));
    at = stpcpy(text, "root ::= \"a\"");
    memset(at, '*', 100000);
    at[100000] = '\0';
    assert_fails(TN_E_LIMIT, tn_grammar_new(text, NULL, &g));
    free(text);
    /* The maximum depth works. */
    char shallow[500];
    at = stpcpy(shallow, "root ::= ");
    memset(at, '(', 150);
    at = stpcpy(at + 150, "\"a\"");
    memset(at, ')', 150);
    at[150] = '\0';
    g = grammar_of(shallow, NULL);
    assert_true(accepts(g, "a"));
    tn_grammar_free(g);
}

/* 2^40 ways to begin fail when the grammar is compiled; 2^n ways after n characters fail when they are accepted. */
static void exponential_grammars_end_in_an_error(void **state) {
    (void)state;
    char text[4000], *at = text;
    at += sprintf(at, "root ::= r0\n");
    for (int i = 0; i < 40; i++) at += sprintf(at, "r%d ::= r%d \"x\" | r%d \"y\"\n", i, i + 1, i + 1);
    sprintf(at, "r40 ::= \"z\"\n");
    tn_grammar *g;
    assert_fails(TN_E_LIMIT, tn_grammar_new(text, NULL, &g));
    assert_non_null(strstr(tn_error(), "ambiguous"));

    g = grammar_of("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root \"d\" | \"a\"", NULL);
    tn_grammar_state *s = state_of(g, NULL);
    tn_status status = TN_OK;
    int n = 0;
    while (status == TN_OK && n < 1000) {
        status = tn_grammar_accept_bytes(s, "a", 1);
        n++;
    }
    assert_int_equal(status, TN_E_LIMIT);
    assert_true(n > 5 && n < 100);
    assert_ok(tn_grammar_accept_bytes(s, "b", 1)); /* the state did not change and still works */
    tn_grammar_state_free(s);
    tn_grammar_free(g);
}

static void nesting_of_the_text_is_bounded_by_memory(void **state) {
    (void)state;
    tn_grammar *g = grammar_of(tn_grammar_json(), "value");
    tn_grammar_state *s;
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g, .memory = 256 << 10}, &s));
    int depth = 0;
    while (tn_grammar_accept_bytes(s, "[", 1) == TN_OK) depth++;
    assert_true(depth > 500 && depth < 100000);
    for (int i = 0; i < depth; i++) assert_ok(tn_grammar_accept_bytes(s, "]", 1));
    assert_true(tn_grammar_is_accepting(s));
    tn_grammar_state_reset(s);
    assert_ok(tn_grammar_accept_bytes(s, "{\"a\":1}", 7));
    tn_grammar_state_free(s);
    tn_grammar_free(g);
}

/* Right recursion uses no memory: a million items fit into the smallest matcher. */
static void long_texts_need_no_more_memory(void **state) {
    (void)state;
    tn_grammar *g = grammar_of("root ::= item root | item\nitem ::= [0-9]+ \",\" \" \"{0,3}", NULL);
    tn_grammar_state *s;
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g, .memory = 1}, &s));
    uint64_t before = tn_memory_get_stats().allocations;
    for (int i = 0; i < 200000; i++) assert_ok(tn_grammar_accept_bytes(s, "12, ", 4));
    assert_int_equal(tn_memory_get_stats().allocations, before);
    assert_true(tn_grammar_is_accepting(s));
    tn_grammar_state_free(s);
    /* Counting to a large number always reaches new sets; old ones are dropped. */
    tn_grammar_free(g);
    g = grammar_of("root ::= [a-z]{0,50000} \".\"", NULL);
    assert_ok(tn_grammar_state_new(&(tn_grammar_state_params){.grammar = g, .memory = 1}, &s));
    for (int i = 0; i < 50000; i++) assert_ok(tn_grammar_accept_bytes(s, "x", 1));
    assert_fails(TN_E_INVALID, tn_grammar_accept_bytes(s, "x", 1));
    assert_ok(tn_grammar_accept_bytes(s, ".", 1));
    assert_true(tn_grammar_is_accepting(s));
    tn_grammar_state_free(s);
    tn_grammar_free(g);
}

static void a_refused_text_changes_nothing(void **state) {
    (void)state;
    tn_grammar *g = grammar_of("root ::= \"ab\" [c\xe4\xb8\x80-\xe9\xbf\xbf]+ \"d\"", NULL);
    tn_grammar_state *s = state_of(g, NULL);
    assert_ok(tn_grammar_accept_bytes(s, "a", 1));
    assert_fails(TN_E_INVALID, tn_grammar_accept_bytes(s, "bcx", 3));
    assert_non_null(strstr(tn_error(), "0x78 'x' at offset 2"));
    assert_ok(tn_grammar_accept_bytes(s, "bc", 2));
    assert_fails(TN_E_INVALID, tn_grammar_accept_char(s, 0x3000));
    assert_fails(TN_E_INVALID, tn_grammar_accept_char(s, 0xd800));
    assert_ok(tn_grammar_accept_char(s, 0x4e09));
    assert_ok(tn_grammar_accept_bytes(s, "\xe4\xb8", 2)); /* two thirds of a character */
    assert_false(tn_grammar_is_accepting(s));
    assert_fails(TN_E_INVALID, tn_grammar_accept_bytes(s, "d", 1));
    assert_ok(tn_grammar_accept_bytes(s, "\x89", 1));
    tn_grammar_state *copy;
    assert_ok(tn_grammar_state_clone(s, &copy));
    assert_ok(tn_grammar_accept_bytes(s, "d", 1));
    assert_true(tn_grammar_is_accepting(s));
    assert_false(tn_grammar_is_accepting(copy));
    assert_ok(tn_grammar_accept_bytes(copy, "ccd", 3));
    assert_true(tn_grammar_is_accepting(copy));
    tn_grammar_free(g); /* the states keep it alive */
    tn_grammar_state_reset(s);
    assert_ok(tn_grammar_accept_bytes(s, "abcd", 4));
    tn_grammar_state_free(s);
    tn_grammar_state_free(copy);
}

/* ---- Memory ---- */

static tn_status whole_life(void *user) {
    (void)user;
    static const char *text = "root ::= (\"a\" [b-d\\u00e4]{2,5} x){2,} | x\nx ::= \"(\" root? \")\"";
    tn_piece pieces_of[] = {{"a", 1}, {"b", 1}, {"(", 1}, {")", 1}, {"", 0}};
    tn_token end = 4;
    tn_grammar_trigger trigger = {.text = "go"};
    tn_grammar *g = NULL;
    tn_pieces *pieces = NULL;
    tn_grammar_state *s = NULL, *copy = NULL;
    tn_status status;
    TN_TRY_GOTO(tn_grammar_new(text, NULL, &g), status, out);
    TN_TRY_GOTO(tn_pieces_new(pieces_of, 5, &end, 1, &pieces), status, out);
    TN_TRY_GOTO(tn_grammar_state_new(
                    &(tn_grammar_state_params){
                        .grammar = g, .pieces = pieces, .triggers = &trigger, .n_triggers = 1, .memory = 1},
                    &s),
                status, out);
    TN_TRY_GOTO(tn_grammar_state_clone(s, &copy), status, out);
out:
    tn_grammar_state_free(copy);
    tn_grammar_state_free(s);
    tn_pieces_free(pieces);
    tn_grammar_free(g);
    return status;
}
static void running_out_of_memory_is_survived(void **state) {
    (void)state;
    check_every_allocation_failure(whole_life, NULL);
    check_no_leak(whole_life, NULL);
}

static void fuzz_corpus_is_survived(void **state) {
    (void)state;
    assert_true(replay_corpus("grammar", LLVMFuzzerTestOneInput) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_grammars_accept_and_refuse),
        cmocka_unit_test(bad_grammars_are_refused_with_a_reason),
        cmocka_unit_test(deep_nesting_is_a_limit_not_a_crash),
        cmocka_unit_test(exponential_grammars_end_in_an_error),
        cmocka_unit_test(nesting_of_the_text_is_bounded_by_memory),
        cmocka_unit_test(long_texts_need_no_more_memory),
        cmocka_unit_test(a_refused_text_changes_nothing),
        cmocka_unit_test(fuzz_corpus_is_survived),
        cmocka_unit_test(running_out_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
