/* Parses the expressions of templates. */
#include "text/template/parser.h"

static jj_node *parse_unary(jj_parser *p, bool with_filter);
static jj_node *parse_postfix(jj_parser *p, jj_node *node);

static jj_node *make_constant(jj_parser *p, jj_value value) {
    jj_node *node = tn__jjp_node(p, JJ_N_CONST);
    node->value = value;
    return node;
}

static jj_node *parse_list_items(jj_parser *p, int close, jj_kind kind) {
    jj_node *node = tn__jjp_node(p, kind), **tail = &node->list;
    p->at++;
    while (!tn__jjp_at_op(p, close)) {
        jj_node *item = tn__jjp_expression(p);
        if (kind == JJ_N_DICT) {
            tn__jjp_need_op(p, ':');
            item = tn__jjp_node_of(p, JJ_N_PAIR, 0, item, NULL);
            item->b = tn__jjp_expression(p);
        }
        *tail = item;
        tail = &item->next;
        if (!tn__jjp_at_op(p, close)) tn__jjp_need_op(p, ',');
    }
    p->at++;
    return node;
}

static bool tuple_ends(jj_parser *p, const char *extra) {
    jj_token_kind kind = tn__jjp_token(p)->kind;
    return kind == JJ_T_VARIABLE_END || kind == JJ_T_BLOCK_END || tn__jjp_at_op(p, ')') ||
           (extra && tn__jjp_at_name(p, extra));
}

jj_node *tn__jjp_tuple(jj_parser *p, jj_node *(*item)(jj_parser *), const char *extra_end, bool parentheses) {
    jj_node *node = tn__jjp_node(p, JJ_N_TUPLE), **tail = &node->list;
    bool tuple = false;
    while (!tuple_ends(p, extra_end)) {
        *tail = item(p);
        tail = &(*tail)->next;
        if (!tn__jjp_skip_op(p, ',')) break;
        tuple = true;
    }
    if (tuple) return node;
    if (node->list) return node->list;
    if (!parentheses) tn__jjp_unexpected(p, "an expression");
    return node;
}

static jj_node *parse_name_expression(jj_parser *p) {
    jj_string *name = tn__jjp_token(p)->value.as.string;
    if (tn__jj_same_text(name, "true") || tn__jj_same_text(name, "True") || tn__jj_same_text(name, "false") ||
        tn__jj_same_text(name, "False")) {
        jj_node *node = make_constant(p, jj_bool(name->data[0] == 't' || name->data[0] == 'T'));
        p->at++;
        return node;
    }
    if (tn__jj_same_text(name, "none") || tn__jj_same_text(name, "None")) {
        jj_node *node = make_constant(p, jj_none());
        p->at++;
        return node;
    }
    if (p->macro) {
        if (tn__jj_same_text(name, "caller")) *p->macro |= JJ_USES_CALLER;
        if (tn__jj_same_text(name, "varargs")) *p->macro |= JJ_USES_VARARGS;
        if (tn__jj_same_text(name, "kwargs")) *p->macro |= JJ_USES_KWARGS;
    }
    jj_node *node = tn__jjp_node(p, JJ_N_NAME);
    node->name = tn__jjp_need_name(p, "a name");
    return node;
}

static jj_node *parse_strings(jj_parser *p) {
    jj_node *node = make_constant(p, tn__jjp_token(p)->value);
    p->at++;
    if (tn__jjp_token(p)->kind != JJ_T_STRING) return node;
    jj_buffer b = {0}; /* adjacent strings are one */
    tn__jj_put_value(p->j, &b, node->value);
    for (; tn__jjp_token(p)->kind == JJ_T_STRING; p->at++) tn__jj_put_value(p->j, &b, tn__jjp_token(p)->value);
    node->value = tn__jj_text(p->j, b.data ? b.data : "", b.length);
    tn__jj_chars(p->j, node->value.as.string);
    return node;
}

jj_node *tn__jjp_primary(jj_parser *p) {
    jj_token *t = tn__jjp_token(p);
    jj_node *node;
    switch (t->kind) {
    case JJ_T_NAME: return parse_name_expression(p);
    case JJ_T_STRING: return parse_strings(p);
    case JJ_T_INT:
    case JJ_T_FLOAT:
        node = make_constant(p, t->value);
        p->at++;
        return node;
    default: break;
    }
    if (tn__jjp_at_op(p, '[')) return parse_list_items(p, ']', JJ_N_LIST);
    if (tn__jjp_at_op(p, '{')) return parse_list_items(p, '}', JJ_N_DICT);
    if (!tn__jjp_skip_op(p, '(')) tn__jjp_unexpected(p, "an expression");
    node = tn__jjp_tuple(p, tn__jjp_expression, NULL, true);
    tn__jjp_need_op(p, ')');
    return node;
}

/* The arguments of a call, filter or test, after the opening parenthesis and including the closing one. */
static jj_node *parse_arguments(jj_parser *p) {
    jj_node *first = NULL, **tail = &first;
    int stage = 0; /* 0 positional, 1 keywords, 2 after *args, 3 after **kwargs */
    while (!tn__jjp_at_op(p, ')')) {
        jj_node *argument;
        const jj_token *t = tn__jjp_token(p);
        if (tn__jjp_at_op(p, '*') || tn__jjp_at_op(p, JJ_OP_POW)) {
            bool pairs = tn__jjp_at_op(p, JJ_OP_POW);
            if (stage >= 2 + pairs) tn__jj_fail(p->j, TN_E_SYNTAX, "misplaced * or ** in a call");
            stage = 2 + pairs;
            argument = tn__jjp_node(p, JJ_N_SPREAD);
            argument->op = pairs ? '^' : '*';
            p->at++;
            argument->a = tn__jjp_expression(p);
        } else if (t->kind == JJ_T_NAME && t[1].kind == JJ_T_OPERATOR && t[1].op == '=') {
            if (stage == 3) tn__jj_fail(p->j, TN_E_SYNTAX, "a keyword argument after **");
            if (stage == 0) stage = 1;
            argument = tn__jjp_node(p, JJ_N_KEYWORD);
            argument->name = tn__jjp_need_name(p, "a name");
            p->at++;
            argument->a = tn__jjp_expression(p);
        } else {
            if (stage) tn__jj_fail(p->j, TN_E_SYNTAX, "a positional argument after a keyword argument");
            argument = tn__jjp_expression(p);
        }
        *tail = argument;
        tail = &argument->next;
        if (!tn__jjp_at_op(p, ')')) tn__jjp_need_op(p, ',');
    }
    p->at++;
    return first;
}

static jj_node *parse_slice_part(jj_parser *p) {
    jj_node *start = NULL;
    if (!tn__jjp_at_op(p, ':')) {
        start = tn__jjp_expression(p);
        if (!tn__jjp_at_op(p, ':')) return start;
    }
    jj_node *slice = tn__jjp_node(p, JJ_N_SLICE);
    slice->a = start;
    tn__jjp_need_op(p, ':');
    if (!tn__jjp_at_op(p, ':') && !tn__jjp_at_op(p, ']') && !tn__jjp_at_op(p, ',')) slice->b = tn__jjp_expression(p);
    if (tn__jjp_skip_op(p, ':') && !tn__jjp_at_op(p, ']') && !tn__jjp_at_op(p, ',')) slice->c = tn__jjp_expression(p);
    return slice;
}

static jj_node *parse_subscript(jj_parser *p, jj_node *object) {
    if (tn__jjp_skip_op(p, '.')) {
        jj_token *t = tn__jjp_token(p);
        if (t->kind == JJ_T_INT) {
            jj_node *index = make_constant(p, t->value);
            p->at++;
            return tn__jjp_node_of(p, JJ_N_ITEM, 0, object, index);
        }
        jj_node *node = tn__jjp_node_of(p, JJ_N_ATTRIBUTE, 0, object, NULL);
        node->name = tn__jjp_need_name(p, "a name or number after '.'");
        return node;
    }
    tn__jjp_need_op(p, '[');
    jj_node *first = parse_slice_part(p);
    if (tn__jjp_at_op(p, ',')) { /* x[1, 2] has a tuple as its key */
        jj_node *tuple = tn__jjp_node(p, JJ_N_TUPLE), *last = first;
        tuple->list = first;
        while (tn__jjp_skip_op(p, ',') && !tn__jjp_at_op(p, ']')) last = last->next = parse_slice_part(p);
        first = tuple;
    }
    tn__jjp_need_op(p, ']');
    return tn__jjp_node_of(p, JJ_N_ITEM, 0, object, first);
}

static jj_node *parse_call_expression(jj_parser *p, jj_node *callee) {
    jj_node *node = tn__jjp_node_of(p, JJ_N_CALL, 0, callee, NULL);
    node->line = tn__jjp_token(p)->line;
    tn__jjp_need_op(p, '(');
    node->list = parse_arguments(p);
    return node;
}

static jj_node *parse_postfix(jj_parser *p, jj_node *node) {
    for (;;) {
        tn__jj_charge(p->j, 1);
        if (tn__jjp_at_op(p, '.') || tn__jjp_at_op(p, '['))
            node = parse_subscript(p, node);
        else if (tn__jjp_at_op(p, '('))
            node = parse_call_expression(p, node);
        else
            return node;
    }
}

/* The name of a filter or test, which may contain dots. */
static jj_string *parse_dotted_name(jj_parser *p, const char *wanted) {
    jj_string *name = tn__jjp_need_name(p, wanted);
    while (tn__jjp_skip_op(p, '.')) {
        jj_buffer b = {0};
        tn__jj_put(p->j, &b, name->data, name->length);
        tn__jj_put_char(p->j, &b, '.');
        jj_string *more = tn__jjp_need_name(p, wanted);
        tn__jj_put(p->j, &b, more->data, more->length);
        name = tn__jj_string(p->j, b.data, b.length);
    }
    return name;
}

jj_node *tn__jjp_filter(jj_parser *p, jj_node *input) {
    jj_node *node = tn__jjp_node_of(p, JJ_N_FILTER, 0, input, NULL);
    node->line = tn__jjp_token(p)->line;
    node->name = parse_dotted_name(p, "a filter's name");
    if (tn__jjp_skip_op(p, '(')) node->list = parse_arguments(p);
    return node;
}

static jj_node *parse_test(jj_parser *p, jj_node *input) {
    bool negated = tn__jjp_skip_name(p, "not");
    jj_node *node = tn__jjp_node_of(p, JJ_N_TEST, 0, input, NULL);
    node->name = parse_dotted_name(p, "a test's name");
    jj_token_kind kind = tn__jjp_token(p)->kind;
    if (tn__jjp_skip_op(p, '('))
        node->list = parse_arguments(p);
    else if (kind == JJ_T_STRING || kind == JJ_T_INT || kind == JJ_T_FLOAT || tn__jjp_at_op(p, '[') ||
             tn__jjp_at_op(p, '{') ||
             (kind == JJ_T_NAME && !tn__jjp_at_name(p, "else") && !tn__jjp_at_name(p, "or") &&
              !tn__jjp_at_name(p, "and"))) {
        if (tn__jjp_at_name(p, "is")) tn__jj_fail(p->j, TN_E_SYNTAX, "tests cannot be chained with 'is'");
        node->list = parse_postfix(p, tn__jjp_primary(p));
    }
    return negated ? tn__jjp_node_of(p, JJ_N_UNARY, '!', node, NULL) : node;
}

static jj_node *parse_filters(jj_parser *p, jj_node *node) {
    for (;;) {
        tn__jj_charge(p->j, 1);
        if (tn__jjp_skip_op(p, '|'))
            node = tn__jjp_filter(p, node);
        else if (tn__jjp_skip_name(p, "is"))
            node = parse_test(p, node);
        else if (tn__jjp_at_op(p, '('))
            node = parse_call_expression(p, node);
        else
            return node;
    }
}

static jj_node *parse_unary(jj_parser *p, bool with_filter) {
    jj_node *node;
    tn__jj_enter(p->j);
    tn__jjp_token(p);
    if (tn__jjp_skip_op(p, '-'))
        node = tn__jjp_node_of(p, JJ_N_UNARY, '-', parse_unary(p, false), NULL);
    else if (tn__jjp_skip_op(p, '+'))
        node = tn__jjp_node_of(p, JJ_N_UNARY, '+', parse_unary(p, false), NULL);
    else
        node = tn__jjp_primary(p);
    node = parse_postfix(p, node);
    if (with_filter) node = parse_filters(p, node);
    jj_leave(p->j);
    return node;
}

static jj_node *parse_power(jj_parser *p) {
    jj_node *left = parse_unary(p, true);
    while (tn__jjp_skip_op(p, JJ_OP_POW)) left = tn__jjp_node_of(p, JJ_N_BINARY, '^', left, parse_unary(p, true));
    return left;
}

static jj_node *parse_multiplication(jj_parser *p) {
    jj_node *left = parse_power(p);
    for (;;) {
        int op = tn__jjp_at_op(p, '*')              ? '*'
                 : tn__jjp_at_op(p, '/')            ? '/'
                 : tn__jjp_at_op(p, JJ_OP_FLOORDIV) ? 'f'
                 : tn__jjp_at_op(p, '%')            ? '%'
                                                    : 0;
        if (!op) return left;
        p->at++;
        left = tn__jjp_node_of(p, JJ_N_BINARY, op, left, parse_power(p));
    }
}

static jj_node *parse_concat(jj_parser *p) {
    jj_node *first = parse_multiplication(p);
    if (!tn__jjp_at_op(p, '~')) return first;
    jj_node *node = tn__jjp_node_of(p, JJ_N_CONCAT, 0, NULL, NULL), *last = first;
    node->list = first;
    while (tn__jjp_skip_op(p, '~')) last = last->next = parse_multiplication(p);
    return node;
}

static jj_node *parse_addition(jj_parser *p) {
    jj_node *left = parse_concat(p);
    while (tn__jjp_at_op(p, '+') || tn__jjp_at_op(p, '-')) {
        int op = tn__jjp_at_op(p, '+') ? '+' : '-';
        p->at++;
        left = tn__jjp_node_of(p, JJ_N_BINARY, op, left, parse_concat(p));
    }
    return left;
}

static int skip_comparison(jj_parser *p) {
    static const struct {
        int token, op;
    } table[] = {{JJ_OP_EQ, '='}, {JJ_OP_NE, '!'}, {'<', '<'}, {'>', '>'}, {JJ_OP_LE, 'l'}, {JJ_OP_GE, 'g'}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (tn__jjp_skip_op(p, table[i].token)) return table[i].op;
    if (tn__jjp_skip_name(p, "in")) return 'i';
    if (tn__jjp_at_name(p, "not") && tn__jjp_token_is(&p->tokens.items[p->at + 1], "in")) {
        p->at += 2;
        return 'n';
    }
    return 0;
}

static jj_node *parse_compare(jj_parser *p) {
    jj_node *first = parse_addition(p), *node = NULL, **tail = NULL;
    for (int op; (op = skip_comparison(p));) {
        if (!node) {
            node = tn__jjp_node_of(p, JJ_N_COMPARE, 0, first, NULL);
            tail = &node->list;
        }
        *tail = tn__jjp_node_of(p, JJ_N_OPERAND, op, parse_addition(p), NULL);
        tail = &(*tail)->next;
    }
    return node ? node : first;
}

static jj_node *parse_not(jj_parser *p) {
    if (!tn__jjp_at_name(p, "not")) return parse_compare(p);
    tn__jj_enter(p->j);
    tn__jjp_token(p);
    p->at++;
    jj_node *node = tn__jjp_node_of(p, JJ_N_UNARY, '!', parse_not(p), NULL);
    jj_leave(p->j);
    return node;
}

static jj_node *parse_and(jj_parser *p) {
    jj_node *left = parse_not(p);
    while (tn__jjp_skip_name(p, "and")) left = tn__jjp_node_of(p, JJ_N_AND, 0, left, parse_not(p));
    return left;
}

jj_node *tn__jjp_or(jj_parser *p) {
    jj_node *left = parse_and(p);
    while (tn__jjp_skip_name(p, "or")) left = tn__jjp_node_of(p, JJ_N_OR, 0, left, parse_and(p));
    return left;
}

jj_node *tn__jjp_expression(jj_parser *p) {
    tn__jj_enter(p->j);
    jj_node *node = tn__jjp_or(p);
    while (tn__jjp_skip_name(p, "if")) {
        node = tn__jjp_node_of(p, JJ_N_CONDITION, 0, node, tn__jjp_or(p));
        if (tn__jjp_skip_name(p, "else")) node->c = tn__jjp_expression(p);
    }
    jj_leave(p->j);
    return node;
}
