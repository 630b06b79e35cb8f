/* Tokens to syntax tree, by recursive descent. Expressions first, then statements. */
#include "text/template/engine.h"

typedef struct parser {
    jj *j;
    jj_tokens tokens;
    size_t at;
    jj_dict *names; /* one string per distinct name */
    uint8_t *macro; /* flags of the macro around, which notes whether caller, varargs, kwargs are named */
    unsigned loops; /* loops around, for break and continue */
} parser;

static jj_node *parse_expression(parser *p);
static jj_node *parse_or(parser *p);
static jj_node *parse_unary(parser *p, bool with_filter);
static jj_node *parse_primary(parser *p);
static jj_node *parse_postfix(parser *p, jj_node *node);
static jj_node *parse_body(parser *p, const char *const ends[], const char **found);

/* ---- Tokens ---- */

static jj_token *token(parser *p) {
    jj_token *t = &p->tokens.items[p->at];
    p->j->line = t->line;
    return t;
}
static bool at_op(parser *p, int op) {
    const jj_token *t = &p->tokens.items[p->at];
    return t->kind == JJ_T_OPERATOR && t->op == op;
}
static bool skip_op(parser *p, int op) {
    if (!at_op(p, op)) return false;
    p->at++;
    return true;
}
static bool token_is_name(const jj_token *t, const char *name) {
    return t->kind == JJ_T_NAME && tn__jj_same_text(t->value.as.string, name);
}
static bool at_name(parser *p, const char *name) { return token_is_name(&p->tokens.items[p->at], name); }
static bool skip_name(parser *p, const char *name) {
    if (!at_name(p, name)) return false;
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

static _Noreturn void unexpected(parser *p, const char *wanted) {
    const jj_token *t = token(p);
    char one[2];
    switch (t->kind) {
    case JJ_T_NAME: {
        const jj_string *s = t->value.as.string;
        tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got '%.*s'", wanted, s->length > 40 ? 40 : (int)s->length,
                    s->data);
    }
    case JJ_T_OPERATOR: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got '%s'", wanted, spell_op(t->op, one));
    case JJ_T_STRING: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got a string", wanted);
    case JJ_T_INT:
    case JJ_T_FLOAT: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got a number", wanted);
    case JJ_T_END: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got the end of the template", wanted);
    default: tn__jj_fail(p->j, TN_E_SYNTAX, "expected %s, got the end of the tag", wanted);
    }
}

static void need_op(parser *p, int op) {
    char one[2], wanted[8];
    if (skip_op(p, op)) return;
    wanted[0] = '\'';
    strcpy(wanted + 1, spell_op(op, one));
    strcat(wanted, "'");
    unexpected(p, wanted);
}

static jj_string *intern(parser *p, jj_string *s) {
    jj_entry *entry = tn__jj_dict_text(p->j, p->names, s);
    if (entry) return entry->key.as.string;
    tn__jj_chars(p->j, s); /* counted now: a template is shared */
    tn__jj_dict_set(p->j, p->names, jj_str(s), jj_none());
    return s;
}

static jj_string *need_name(parser *p, const char *wanted) {
    jj_token *t = token(p);
    if (t->kind != JJ_T_NAME) unexpected(p, wanted);
    p->at++;
    return intern(p, t->value.as.string);
}

static void need_end(parser *p, jj_token_kind kind) {
    if (token(p)->kind != kind) unexpected(p, kind == JJ_T_BLOCK_END ? "'%}'" : "'}}'");
    p->at++;
}

static jj_node *make(parser *p, jj_kind kind) {
    jj_node *node = tn__jj_alloc(p->j, sizeof *node);
    node->kind = (uint8_t)kind;
    node->line = p->tokens.items[p->at].line;
    return node;
}

static jj_node *make2(parser *p, jj_kind kind, int op, jj_node *a, jj_node *b) {
    jj_node *node = make(p, kind);
    node->op = (uint8_t)op;
    node->a = a;
    node->b = b;
    if (a) node->line = a->line;
    return node;
}

/* ---- Expressions ---- */

static jj_node *const_node(parser *p, jj_value value) {
    jj_node *node = make(p, JJ_N_CONST);
    node->value = value;
    return node;
}

static jj_node *parse_list_items(parser *p, int close, jj_kind kind) {
    jj_node *node = make(p, kind), **tail = &node->list;
    p->at++;
    while (!at_op(p, close)) {
        jj_node *item = parse_expression(p);
        if (kind == JJ_N_DICT) {
            need_op(p, ':');
            item = make2(p, JJ_N_PAIR, 0, item, NULL);
            item->b = parse_expression(p);
        }
        *tail = item;
        tail = &item->next;
        if (!at_op(p, close)) need_op(p, ',');
    }
    p->at++;
    return node;
}

static bool tuple_ends(parser *p, const char *extra) {
    jj_token_kind kind = token(p)->kind;
    return kind == JJ_T_VARIABLE_END || kind == JJ_T_BLOCK_END || at_op(p, ')') || (extra && at_name(p, extra));
}

/* One expression, or several with commas between: a tuple. `item` parses one of them. */
static jj_node *parse_tuple(parser *p, jj_node *(*item)(parser *), const char *extra_end, bool parentheses) {
    jj_node *node = make(p, JJ_N_TUPLE), **tail = &node->list;
    bool tuple = false;
    while (!tuple_ends(p, extra_end)) {
        *tail = item(p);
        tail = &(*tail)->next;
        if (!skip_op(p, ',')) break;
        tuple = true;
    }
    if (tuple) return node;
    if (node->list) return node->list;
    if (!parentheses) unexpected(p, "an expression");
    return node;
}

static jj_node *parse_name(parser *p) {
    jj_string *name = token(p)->value.as.string;
    if (tn__jj_same_text(name, "true") || tn__jj_same_text(name, "True") || tn__jj_same_text(name, "false") ||
        tn__jj_same_text(name, "False")) {
        jj_node *node = const_node(p, jj_bool(name->data[0] == 't' || name->data[0] == 'T'));
        p->at++;
        return node;
    }
    if (tn__jj_same_text(name, "none") || tn__jj_same_text(name, "None")) {
        jj_node *node = const_node(p, jj_none());
        p->at++;
        return node;
    }
    if (p->macro) {
        if (tn__jj_same_text(name, "caller")) *p->macro |= JJ_USES_CALLER;
        if (tn__jj_same_text(name, "varargs")) *p->macro |= JJ_USES_VARARGS;
        if (tn__jj_same_text(name, "kwargs")) *p->macro |= JJ_USES_KWARGS;
    }
    jj_node *node = make(p, JJ_N_NAME);
    node->name = need_name(p, "a name");
    return node;
}

static jj_node *parse_strings(parser *p) {
    jj_node *node = const_node(p, token(p)->value);
    p->at++;
    if (token(p)->kind != JJ_T_STRING) return node;
    jj_buffer b = {0}; /* neighbours are one string */
    tn__jj_put_value(p->j, &b, node->value);
    for (; token(p)->kind == JJ_T_STRING; p->at++) tn__jj_put_value(p->j, &b, token(p)->value);
    node->value = tn__jj_text(p->j, b.data ? b.data : "", b.length);
    tn__jj_chars(p->j, node->value.as.string);
    return node;
}

static jj_node *parse_primary(parser *p) {
    jj_token *t = token(p);
    jj_node *node;
    switch (t->kind) {
    case JJ_T_NAME: return parse_name(p);
    case JJ_T_STRING: return parse_strings(p);
    case JJ_T_INT:
    case JJ_T_FLOAT:
        node = const_node(p, t->value);
        p->at++;
        return node;
    default: break;
    }
    if (at_op(p, '[')) return parse_list_items(p, ']', JJ_N_LIST);
    if (at_op(p, '{')) return parse_list_items(p, '}', JJ_N_DICT);
    if (!skip_op(p, '(')) unexpected(p, "an expression");
    node = parse_tuple(p, parse_expression, NULL, true);
    need_op(p, ')');
    return node;
}

/* The arguments of a call, a filter or a test, from behind the opening parenthesis to behind the closing one. */
static jj_node *parse_arguments(parser *p) {
    jj_node *first = NULL, **tail = &first;
    int stage = 0; /* 0 positional, 1 keywords, 2 after *args, 3 after **kwargs */
    while (!at_op(p, ')')) {
        jj_node *argument;
        const jj_token *t = token(p);
        if (at_op(p, '*') || at_op(p, JJ_OP_POW)) {
            bool pairs = at_op(p, JJ_OP_POW);
            if (stage >= 2 + pairs) tn__jj_fail(p->j, TN_E_SYNTAX, "misplaced * or ** in a call");
            stage = 2 + pairs;
            argument = make(p, JJ_N_SPREAD);
            argument->op = pairs ? '^' : '*';
            p->at++;
            argument->a = parse_expression(p);
        } else if (t->kind == JJ_T_NAME && t[1].kind == JJ_T_OPERATOR && t[1].op == '=') {
            if (stage == 3) tn__jj_fail(p->j, TN_E_SYNTAX, "a keyword argument after **");
            if (stage == 0) stage = 1;
            argument = make(p, JJ_N_KEYWORD);
            argument->name = need_name(p, "a name");
            p->at++;
            argument->a = parse_expression(p);
        } else {
            if (stage) tn__jj_fail(p->j, TN_E_SYNTAX, "a positional argument after a keyword argument");
            argument = parse_expression(p);
        }
        *tail = argument;
        tail = &argument->next;
        if (!at_op(p, ')')) need_op(p, ',');
    }
    p->at++;
    return first;
}

static jj_node *parse_slice_part(parser *p) {
    jj_node *start = NULL;
    if (!at_op(p, ':')) {
        start = parse_expression(p);
        if (!at_op(p, ':')) return start;
    }
    jj_node *slice = make(p, JJ_N_SLICE);
    slice->a = start;
    need_op(p, ':');
    if (!at_op(p, ':') && !at_op(p, ']') && !at_op(p, ',')) slice->b = parse_expression(p);
    if (skip_op(p, ':') && !at_op(p, ']') && !at_op(p, ',')) slice->c = parse_expression(p);
    return slice;
}

static jj_node *parse_subscript(parser *p, jj_node *object) {
    if (skip_op(p, '.')) {
        jj_token *t = token(p);
        if (t->kind == JJ_T_INT) {
            jj_node *index = const_node(p, t->value);
            p->at++;
            return make2(p, JJ_N_ITEM, 0, object, index);
        }
        jj_node *node = make2(p, JJ_N_ATTRIBUTE, 0, object, NULL);
        node->name = need_name(p, "a name or number behind '.'");
        return node;
    }
    need_op(p, '[');
    jj_node *first = parse_slice_part(p);
    if (at_op(p, ',')) { /* x[1, 2] has a tuple as its key */
        jj_node *tuple = make(p, JJ_N_TUPLE), *last = first;
        tuple->list = first;
        while (skip_op(p, ',') && !at_op(p, ']')) last = last->next = parse_slice_part(p);
        first = tuple;
    }
    need_op(p, ']');
    return make2(p, JJ_N_ITEM, 0, object, first);
}

static jj_node *parse_call(parser *p, jj_node *callee) {
    jj_node *node = make2(p, JJ_N_CALL, 0, callee, NULL);
    node->line = token(p)->line;
    need_op(p, '(');
    node->list = parse_arguments(p);
    return node;
}

static jj_node *parse_postfix(parser *p, jj_node *node) {
    for (;;) {
        tn__jj_charge(p->j, 1);
        if (at_op(p, '.') || at_op(p, '['))
            node = parse_subscript(p, node);
        else if (at_op(p, '('))
            node = parse_call(p, node);
        else
            return node;
    }
}

/* A name that may have dots, as filters and tests may. */
static jj_string *dotted_name(parser *p, const char *wanted) {
    jj_string *name = need_name(p, wanted);
    while (skip_op(p, '.')) {
        jj_buffer b = {0};
        tn__jj_put(p->j, &b, name->data, name->length);
        tn__jj_put_char(p->j, &b, '.');
        jj_string *more = need_name(p, wanted);
        tn__jj_put(p->j, &b, more->data, more->length);
        name = tn__jj_string(p->j, b.data, b.length);
    }
    return name;
}

static jj_node *parse_one_filter(parser *p, jj_node *input) {
    jj_node *node = make2(p, JJ_N_FILTER, 0, input, NULL);
    node->line = token(p)->line;
    node->name = dotted_name(p, "a filter's name");
    if (skip_op(p, '(')) node->list = parse_arguments(p);
    return node;
}

static jj_node *parse_test(parser *p, jj_node *input) {
    bool negated = skip_name(p, "not");
    jj_node *node = make2(p, JJ_N_TEST, 0, input, NULL);
    node->name = dotted_name(p, "a test's name");
    jj_token_kind kind = token(p)->kind;
    if (skip_op(p, '('))
        node->list = parse_arguments(p);
    else if (kind == JJ_T_STRING || kind == JJ_T_INT || kind == JJ_T_FLOAT || at_op(p, '[') || at_op(p, '{') ||
             (kind == JJ_T_NAME && !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and"))) {
        if (at_name(p, "is")) tn__jj_fail(p->j, TN_E_SYNTAX, "tests cannot be chained with 'is'");
        node->list = parse_postfix(p, parse_primary(p));
    }
    return negated ? make2(p, JJ_N_UNARY, '!', node, NULL) : node;
}

static jj_node *parse_filters(parser *p, jj_node *node) {
    for (;;) {
        tn__jj_charge(p->j, 1);
        if (skip_op(p, '|'))
            node = parse_one_filter(p, node);
        else if (skip_name(p, "is"))
            node = parse_test(p, node);
        else if (at_op(p, '('))
            node = parse_call(p, node);
        else
            return node;
    }
}

static jj_node *parse_unary(parser *p, bool with_filter) {
    jj_node *node;
    tn__jj_enter(p->j);
    token(p);
    if (skip_op(p, '-'))
        node = make2(p, JJ_N_UNARY, '-', parse_unary(p, false), NULL);
    else if (skip_op(p, '+'))
        node = make2(p, JJ_N_UNARY, '+', parse_unary(p, false), NULL);
    else
        node = parse_primary(p);
    node = parse_postfix(p, node);
    if (with_filter) node = parse_filters(p, node);
    jj_leave(p->j);
    return node;
}

static jj_node *parse_power(parser *p) {
    jj_node *left = parse_unary(p, true);
    while (skip_op(p, JJ_OP_POW)) left = make2(p, JJ_N_BINARY, '^', left, parse_unary(p, true));
    return left;
}

static jj_node *parse_product(parser *p) {
    jj_node *left = parse_power(p);
    for (;;) {
        int op = at_op(p, '*') ? '*' : at_op(p, '/') ? '/' : at_op(p, JJ_OP_FLOORDIV) ? 'f' : at_op(p, '%') ? '%' : 0;
        if (!op) return left;
        p->at++;
        left = make2(p, JJ_N_BINARY, op, left, parse_power(p));
    }
}

static jj_node *parse_concat(parser *p) {
    jj_node *first = parse_product(p);
    if (!at_op(p, '~')) return first;
    jj_node *node = make2(p, JJ_N_CONCAT, 0, NULL, NULL), *last = first;
    node->list = first;
    while (skip_op(p, '~')) last = last->next = parse_product(p);
    return node;
}

static jj_node *parse_sum(parser *p) {
    jj_node *left = parse_concat(p);
    while (at_op(p, '+') || at_op(p, '-')) {
        int op = at_op(p, '+') ? '+' : '-';
        p->at++;
        left = make2(p, JJ_N_BINARY, op, left, parse_concat(p));
    }
    return left;
}

static int comparison(parser *p) {
    static const struct {
        int token, op;
    } table[] = {{JJ_OP_EQ, '='}, {JJ_OP_NE, '!'}, {'<', '<'}, {'>', '>'}, {JJ_OP_LE, 'l'}, {JJ_OP_GE, 'g'}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (skip_op(p, table[i].token)) return table[i].op;
    if (skip_name(p, "in")) return 'i';
    if (at_name(p, "not") && token_is_name(&p->tokens.items[p->at + 1], "in")) {
        p->at += 2;
        return 'n';
    }
    return 0;
}

static jj_node *parse_compare(parser *p) {
    jj_node *first = parse_sum(p), *node = NULL, **tail = NULL;
    for (int op; (op = comparison(p));) {
        if (!node) {
            node = make2(p, JJ_N_COMPARE, 0, first, NULL);
            tail = &node->list;
        }
        *tail = make2(p, JJ_N_OPERAND, op, parse_sum(p), NULL);
        tail = &(*tail)->next;
    }
    return node ? node : first;
}

static jj_node *parse_not(parser *p) {
    if (!at_name(p, "not")) return parse_compare(p);
    tn__jj_enter(p->j);
    token(p);
    p->at++;
    jj_node *node = make2(p, JJ_N_UNARY, '!', parse_not(p), NULL);
    jj_leave(p->j);
    return node;
}

static jj_node *parse_and(parser *p) {
    jj_node *left = parse_not(p);
    while (skip_name(p, "and")) left = make2(p, JJ_N_AND, 0, left, parse_not(p));
    return left;
}

static jj_node *parse_or(parser *p) {
    jj_node *left = parse_and(p);
    while (skip_name(p, "or")) left = make2(p, JJ_N_OR, 0, left, parse_and(p));
    return left;
}

static jj_node *parse_expression(parser *p) {
    tn__jj_enter(p->j);
    jj_node *node = parse_or(p);
    while (skip_name(p, "if")) {
        node = make2(p, JJ_N_CONDITION, 0, node, parse_or(p));
        if (skip_name(p, "else")) node->c = parse_expression(p);
    }
    jj_leave(p->j);
    return node;
}

/* ---- Statements ---- */

static jj_node *parse_target_item(parser *p) {
    jj_node *node = parse_primary(p);
    if (node->kind == JJ_N_NAME && skip_op(p, '.')) {
        jj_node *reference = make(p, JJ_N_NS_REF);
        reference->name = node->name;
        reference->text = need_name(p, "an attribute's name");
        return reference;
    }
    return node;
}

static void check_target(parser *p, const jj_node *target, bool namespaces) {
    if (target->kind == JJ_N_NAME || (namespaces && target->kind == JJ_N_NS_REF)) return;
    if (target->kind != JJ_N_TUPLE || !target->list)
        tn__jj_fail(p->j, TN_E_SYNTAX, "cannot assign to this expression");
    tn__jj_enter(p->j);
    for (const jj_node *item = target->list; item; item = item->next) check_target(p, item, namespaces);
    jj_leave(p->j);
}

static jj_node *parse_target(parser *p, const char *extra_end, bool namespaces) {
    jj_node *target = parse_tuple(p, parse_target_item, extra_end, false);
    check_target(p, target, namespaces);
    return target;
}

/* The body of a block up to one of `ends` (a NULL-terminated list), whose tag name is consumed. */
static jj_node *parse_block_body(parser *p, const char *const ends[], const char **found) {
    skip_op(p, ':');
    need_end(p, JJ_T_BLOCK_END);
    return parse_body(p, ends, found);
}

static jj_node *parse_for(parser *p) {
    jj_node *node = make(p, JJ_N_FOR);
    const char *found;
    node->name = intern(p, tn__jj_string(p->j, "loop", 4));
    node->a = parse_target(p, "in", false);
    if (!skip_name(p, "in")) unexpected(p, "'in'");
    node->b = parse_tuple(p, parse_or, "recursive", false);
    if (skip_name(p, "if")) node->c = parse_expression(p);
    if (skip_name(p, "recursive")) node->flags = JJ_RECURSIVE;
    p->loops++;
    node->body = parse_block_body(p, (const char *const[]){"endfor", "else", NULL}, &found);
    p->loops--;
    if (*found == 'e' && found[1] == 'l')
        node->other = parse_block_body(p, (const char *const[]){"endfor", NULL}, &found);
    return node;
}

static jj_node *parse_if(parser *p) {
    jj_node *node = make(p, JJ_N_IF), **tail = &node->list;
    const char *found;
    do {
        jj_node *branch = make(p, JJ_N_BRANCH);
        branch->a = parse_tuple(p, parse_or, NULL, false);
        branch->body = parse_block_body(p, (const char *const[]){"elif", "else", "endif", NULL}, &found);
        *tail = branch;
        tail = &branch->next;
    } while (strcmp(found, "elif") == 0);
    if (strcmp(found, "else") == 0) node->other = parse_block_body(p, (const char *const[]){"endif", NULL}, &found);
    return node;
}

static jj_node *parse_set(parser *p) {
    jj_node *node = make(p, JJ_N_SET);
    const char *found;
    node->a = parse_target(p, NULL, true);
    if (skip_op(p, '=')) {
        node->b = parse_tuple(p, parse_expression, NULL, false);
        return node;
    }
    node->kind = JJ_N_SET_BLOCK;
    while (skip_op(p, '|')) node->b = parse_one_filter(p, node->b);
    node->body = parse_block_body(p, (const char *const[]){"endset", NULL}, &found);
    return node;
}

static void parse_signature(parser *p, jj_node *node) {
    jj_node **tail = &node->list;
    bool defaults = false;
    need_op(p, '(');
    while (!at_op(p, ')')) {
        jj_node *parameter = make(p, JJ_N_PARAMETER);
        parameter->name = need_name(p, "a parameter's name");
        if (skip_op(p, '=')) {
            parameter->a = parse_expression(p);
            defaults = true;
        } else if (defaults)
            tn__jj_fail(p->j, TN_E_SYNTAX, "a parameter without default follows one with default");
        *tail = parameter;
        tail = &parameter->next;
        if (!at_op(p, ')')) need_op(p, ',');
    }
    p->at++;
}

/* The body of a macro or call block: break and continue do not reach out of it. */
static void parse_macro_body(parser *p, jj_node *node, const char *end) {
    const char *found, *const ends[] = {end, NULL};
    uint8_t flags = 0, *outer = p->macro;
    unsigned loops = p->loops;
    p->macro = &flags;
    p->loops = 0;
    node->body = parse_block_body(p, ends, &found);
    p->loops = loops;
    p->macro = outer;
    node->flags |= flags;
    static const char *const names[] = {"kwargs", "varargs", "caller"};
    for (size_t i = 0; i < 3; i++) {
        jj_node *name = make(p, JJ_N_NAME);
        name->name = intern(p, tn__jj_string(p->j, names[i], strlen(names[i])));
        name->next = node->other;
        node->other = name;
    }
    if (outer) *outer |= flags;
}

static jj_node *parse_macro(parser *p) {
    jj_node *node = make(p, JJ_N_MACRO);
    node->name = need_name(p, "the macro's name");
    parse_signature(p, node);
    parse_macro_body(p, node, "endmacro");
    return node;
}

static jj_node *parse_call_block(parser *p) {
    jj_node *node = make(p, JJ_N_CALL_BLOCK);
    if (at_op(p, '(')) parse_signature(p, node);
    node->a = parse_expression(p);
    if (node->a->kind != JJ_N_CALL) tn__jj_fail(p->j, TN_E_SYNTAX, "a call block needs a call");
    node->name = intern(p, tn__jj_string(p->j, "caller", 6));
    parse_macro_body(p, node, "endcall");
    return node;
}

static jj_node *parse_filter_block(parser *p) {
    jj_node *node = make(p, JJ_N_FILTER_BLOCK);
    const char *found;
    node->b = parse_one_filter(p, NULL);
    while (skip_op(p, '|')) node->b = parse_one_filter(p, node->b);
    node->body = parse_block_body(p, (const char *const[]){"endfilter", NULL}, &found);
    return node;
}

static jj_node *parse_with(parser *p) {
    jj_node *node = make(p, JJ_N_WITH), **tail = &node->list;
    const char *found;
    while (token(p)->kind != JJ_T_BLOCK_END) {
        if (node->list) need_op(p, ',');
        jj_node *set = make(p, JJ_N_SET);
        set->a = parse_tuple(p, parse_target_item, NULL, false);
        check_target(p, set->a, false);
        need_op(p, '=');
        set->b = parse_expression(p);
        *tail = set;
        tail = &set->next;
    }
    node->body = parse_block_body(p, (const char *const[]){"endwith", NULL}, &found);
    return node;
}

static jj_node *parse_scope(parser *p, const char *end) {
    jj_node *node = make(p, JJ_N_SCOPE);
    const char *found, *const ends[] = {end, NULL};
    node->body = parse_block_body(p, ends, &found);
    return node;
}

static jj_node *parse_print(parser *p) {
    jj_node *first = NULL, **tail = &first;
    while (token(p)->kind != JJ_T_BLOCK_END) {
        if (first) need_op(p, ',');
        *tail = make(p, JJ_N_OUTPUT);
        (*tail)->a = parse_expression(p);
        tail = &(*tail)->next;
    }
    return first;
}

static jj_node *parse_loop_control(parser *p, jj_kind kind) {
    if (!p->loops) tn__jj_fail(p->j, TN_E_SYNTAX, "break or continue outside a loop");
    return make(p, kind);
}

static jj_node *parse_block(parser *p) {
    jj_string *name = need_name(p, "the block's name");
    skip_name(p, "scoped");
    jj_node *node = make(p, JJ_N_SCOPE);
    const char *found;
    unsigned loops = p->loops;
    p->loops = 0;
    node->body = parse_block_body(p, (const char *const[]){"endblock", NULL}, &found);
    p->loops = loops;
    if (token(p)->kind == JJ_T_NAME && tn__jj_same_string(token(p)->value.as.string, name)) p->at++;
    return node;
}

static jj_node *parse_autoescape(parser *p) {
    jj_node *condition = parse_expression(p);
    if (condition->kind != JJ_N_CONST || tn__jj_truth(p->j, condition->value))
        tn__jj_fail(p->j, TN_E_UNSUPPORTED, "automatic escaping is not supported");
    return parse_scope(p, "endautoescape");
}

/* A statement, from behind its tag name to before the end of its last tag. May be a list, or NULL for nothing. */
static jj_node *parse_statement(parser *p) {
    jj_token *t = token(p);
    if (t->kind != JJ_T_NAME) unexpected(p, "a tag's name");
    const jj_string *name = t->value.as.string;
    p->at++;
    if (tn__jj_same_text(name, "for")) return parse_for(p);
    if (tn__jj_same_text(name, "if")) return parse_if(p);
    if (tn__jj_same_text(name, "set")) return parse_set(p);
    if (tn__jj_same_text(name, "macro")) return parse_macro(p);
    if (tn__jj_same_text(name, "call")) return parse_call_block(p);
    if (tn__jj_same_text(name, "filter")) return parse_filter_block(p);
    if (tn__jj_same_text(name, "with")) return parse_with(p);
    if (tn__jj_same_text(name, "generation")) return parse_scope(p, "endgeneration");
    if (tn__jj_same_text(name, "block")) return parse_block(p);
    if (tn__jj_same_text(name, "autoescape")) return parse_autoescape(p);
    if (tn__jj_same_text(name, "print")) return parse_print(p);
    if (tn__jj_same_text(name, "break")) return parse_loop_control(p, JJ_N_BREAK);
    if (tn__jj_same_text(name, "continue")) return parse_loop_control(p, JJ_N_CONTINUE);
    if (tn__jj_same_text(name, "do")) {
        jj_node *node = make(p, JJ_N_DO);
        node->a = parse_tuple(p, parse_expression, NULL, false);
        return node;
    }
    static const char *const refused[] = {"include", "import", "from", "extends"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (tn__jj_same_text(name, refused[i]))
            tn__jj_fail(p->j, TN_E_UNSUPPORTED, "'%s' is not supported: a chat template stands alone", refused[i]);
    tn__jj_fail(p->j, TN_E_SYNTAX, "unknown tag '%.*s'", name->length > 40 ? 40 : (int)name->length, name->data);
}

static jj_node *parse_body(parser *p, const char *const ends[], const char **found) {
    jj_node *first = NULL, **tail = &first;
    tn__jj_enter(p->j);
    for (;;) {
        jj_token *t = token(p);
        tn__jj_charge(p->j, 1);
        jj_node *node = NULL;
        if (t->kind == JJ_T_DATA) {
            node = make(p, JJ_N_TEXT);
            node->value = t->value;
            p->at++;
        } else if (t->kind == JJ_T_VARIABLE_BEGIN) {
            node = make(p, JJ_N_OUTPUT);
            p->at++;
            node->a = parse_tuple(p, parse_expression, NULL, false);
            need_end(p, JJ_T_VARIABLE_END);
        } else if (t->kind == JJ_T_BLOCK_BEGIN) {
            p->at++;
            for (size_t i = 0; ends && ends[i]; i++)
                if (skip_name(p, ends[i])) {
                    *found = ends[i];
                    jj_leave(p->j);
                    return first;
                }
            node = parse_statement(p);
            need_end(p, JJ_T_BLOCK_END);
        } else {
            if (ends) tn__jj_fail(p->j, TN_E_SYNTAX, "the template ends where '%s' was expected", ends[0]);
            jj_leave(p->j);
            return first;
        }
        for (*tail = node; *tail; tail = &(*tail)->next) {}
    }
}

jj_node *tn__jj_parse(jj *j, const char *text, size_t length) {
    parser p = {.j = j};
    p.names = tn__jj_new_dict(j);
    tn__jj_tokenize(j, text, length, &p.tokens);
    return parse_body(&p, NULL, NULL);
}
