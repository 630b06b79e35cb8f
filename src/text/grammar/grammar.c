/* Compiled grammars: creation, reference counts, and the grammar of JSON. */
#include "base/checked.h"
#include "text/grammar/internal.h"

#include <string.h>

/* Fails if the start of the grammar is already too ambiguous to match. */
static tn_status check_start(const tn__program *program) {
    tn__matcher matcher;
    tn__set start;
    TN_TRY(tn__matcher_new(program, 0, &matcher));
    tn_status status = tn__matcher_start(&matcher, &start);
    tn__matcher_free(&matcher);
    return status;
}

tn_status tn_grammar_new(const char *gbnf, const char *root, tn_grammar **out) {
    if (!gbnf || !out) return tn_fail(TN_E_INVALID, "tn_grammar_new: gbnf or out is NULL");
    *out = NULL;
    if (!root) root = "root";
    tn__gbnf parsed;
    TN_TRY(tn__gbnf_parse(gbnf, &parsed));
    tn_status status = TN_OK;
    tn_grammar *grammar = tn_calloc(1, sizeof *grammar);
    if (!grammar) {
        status = TN_E_NOMEM;
        goto out;
    }
    atomic_init(&grammar->references, 1);
    uint32_t rule = tn__gbnf_find_rule(&parsed, root, strlen(root));
    if (rule == TN__NONE) {
        status = tn_fail(TN_E_SYNTAX, "the grammar has no start rule \"%.64s\"", root);
        goto out;
    }
    TN_TRY_GOTO(tn__program_compile(&parsed, rule, &grammar->program), status, out);
    TN_TRY_GOTO(tn__program_check(&grammar->program, &parsed), status, out);
    TN_TRY_GOTO(check_start(&grammar->program), status, out);
out:
    tn__gbnf_free(&parsed);
    if (status == TN_OK)
        *out = grammar;
    else
        tn_grammar_free(grammar);
    return status;
}

tn_grammar *tn__grammar_retain(const tn_grammar *grammar) {
    tn_grammar *shared = (tn_grammar *)grammar; /* only the count changes */
    atomic_fetch_add(&shared->references, 1);
    return shared;
}

void tn_grammar_free(tn_grammar *grammar) {
    if (!grammar || atomic_fetch_sub(&grammar->references, 1) != 1) return;
    tn__program_free(&grammar->program);
    tn_free(grammar);
}

/* White space is bounded, because a model that can write it endlessly sometimes does. Numbers are bounded to the
 * digits of a double, and escapes to characters that every JSON parser accepts: no NUL, no unpaired surrogate. */
const char *tn_grammar_json(void) {
    return "root ::= object\n"
           "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
           "object ::= \"{\" ws (member (\",\" ws member)*)? \"}\"\n"
           "member ::= string \":\" ws value ws\n"
           "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\"\n"
           "string ::= \"\\\"\" char* \"\\\"\"\n"
           "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" code)\n"
           "code ::= [1-9a-cA-CeEfF] hex{3} | [dD] [0-7] hex{2} | \"0\" [1-9a-fA-F] hex{2}\n"
           "  | \"00\" [1-9a-fA-F] hex | \"000\" [1-9a-fA-F] | [dD] [89abAB] hex{2} \"\\\\u\" [dD] [c-fC-F] hex{2}\n"
           "hex ::= [0-9a-fA-F]\n"
           "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9] [0-9]?)?\n"
           "ws ::= \" \"? | \"\\n\" [ \\t]{0,20}\n";
}
