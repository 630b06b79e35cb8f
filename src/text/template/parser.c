/* Parses a template to a syntax tree by recursive descent: tokens, nodes and the entry point. */
#include "text/template/parser.h"

jj_token *tn__jjp_token(jj_parser *p) {
    jj_token *t = &p->tokens.items[p->at];
    p->j->line = t->line;
    return t;
}
bool tn__jjp_at_op(jj_parser *p, int op) {
    const jj_token *t = &p->tokens.items[p->at];
    return t->kind == JJ_T_OPERATOR && t->op == op;
}
bool tn__jjp_skip_op(jj_parser *p, int op) {
    if (!tn__jjp_at_op(p, op)) return false;
    p->at++;
    return true;
}
bool tn__jjp_token_is(const jj_token *t, const char *name) {
    return t->kind == JJ_T_NAME && tn__jj_same_text(t->value.as.string, name);
}
bool tn__jjp_at_name(jj_parser *p, const char *name) { return tn__jjp_token_is(&p->tokens.items[p->at], name); }
bool tn__jjp_skip_name(jj_parser *p, const char *name) {
    if (!tn__jjp_at_name(p, name)) return false;
    p->at++;
    return true;
}

static const char *spell_op(int op, char one[2]) {
    switch (op) {
    case JJ_OP_EQ: return "==";
    case JJ_OP_NE: return "!=";
    case JJ_OP_LE: return "<=";
    case JJ_OP_GE: return ">=";
    case JJ_OP_POW: return "**";
    case JJ_OP_FLOORDIV: return "//";
    default: one[0] = (char)op, one[1] = '\0'; return one;
    }
}

_Noreturn void tn__jjp_unexpected(jj_parser *p, const char *expected) {
    const jj_token *t = tn__jjp_token(p);
    char one[2];
    switch (t->kind) {
    case JJ_T_NAME: {
        const jj_string *s = t->value.as.string;
        tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got '%.*s'", expected, s->length > 40 ? 40 : (int)s->length,
                    s->data);
    }
    case JJ_T_OPERATOR: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got '%s'", expected, spell_op(t->op, one));
    case JJ_T_STRING: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got a string", expected);
    case JJ_T_INT:
    case JJ_T_FLOAT: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got a number", expected);
    case JJ_T_END: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got the end of the template", expected);
    default: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got the end of the tag", expected);
    }
}

void tn__jjp_need_op(jj_parser *p, int op) {
    char one[2], expected[8];
    if (tn__jjp_skip_op(p, op)) return;
    expected[0] = '\'';
    strcpy(expected + 1, spell_op(op, one));
    strcat(expected, "'");
    tn__jjp_unexpected(p, expected);
}

jj_string *tn__jjp_intern(jj_parser *p, jj_string *s) {
    jj_entry *entry = tn__jj_dict_text(p->j, p->names, s);
    if (entry) return entry->key.as.string;
    tn__jj_chars(p->j, s); /* counted while parsing, because threads share the tree */
    tn__jj_dict_set(p->j, p->names, jj_str(s), jj_none());
    return s;
}

jj_string *tn__jjp_need_name(jj_parser *p, const char *expected) {
    jj_token *t = tn__jjp_token(p);
    if (t->kind != JJ_T_NAME) tn__jjp_unexpected(p, expected);
    p->at++;
    return tn__jjp_intern(p, t->value.as.string);
}

void tn__jjp_need_end(jj_parser *p, jj_token_kind kind) {
    if (tn__jjp_token(p)->kind != kind) tn__jjp_unexpected(p, kind == JJ_T_BLOCK_END ? "'%}'" : "'}}'");
    p->at++;
}

jj_node *tn__jjp_node(jj_parser *p, jj_kind kind) {
    jj_node *node = tn__jj_alloc(p->j, sizeof *node);
    node->kind = (uint8_t)kind;
    node->line = p->tokens.items[p->at].line;
    return node;
}

jj_node *tn__jjp_node_of(jj_parser *p, jj_kind kind, int op, jj_node *a, jj_node *b) {
    jj_node *node = tn__jjp_node(p, kind);
    node->op = (uint8_t)op;
    node->a = a;
    node->b = b;
    if (a) node->line = a->line;
    return node;
}

jj_node *tn__jj_parse(jj *j, const char *text, size_t length) {
    jj_parser p = {.j = j};
    p.names = tn__jj_new_dict(j);
    tn__jj_tokenize(j, text, length, &p.tokens);
    return tn__jjp_body(&p, NULL, NULL);
}
