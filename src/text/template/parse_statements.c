/* Parses the statements of templates. */
#include "text/template/parser.h"

static jj_node *parse_target_item(jj_parser *p) {
    jj_node *node = tn__jjp_primary(p);
    if (node->kind == JJ_N_NAME && tn__jjp_skip_op(p, '.')) {
        jj_node *reference = tn__jjp_node(p, JJ_N_NS_REF);
        reference->name = node->name;
        reference->text = tn__jjp_need_name(p, "an attribute's name");
        return reference;
    }
    return node;
}

static void check_target(jj_parser *p, const jj_node *target, bool namespaces) {
    if (target->kind == JJ_N_NAME || (namespaces && target->kind == JJ_N_NS_REF)) return;
    if (target->kind != JJ_N_TUPLE || !target->list)
        tn__jj_fail(p->j, TN_E_SYNTAX, "cannot assign to this expression");
    tn__jj_enter(p->j);
    for (const jj_node *item = target->list; item; item = item->next) check_target(p, item, namespaces);
    jj_leave(p->j);
}

static jj_node *parse_target(jj_parser *p, const char *extra_end, bool namespaces) {
    jj_node *target = tn__jjp_tuple(p, parse_target_item, extra_end, false);
    check_target(p, target, namespaces);
    return target;
}

/* The end of a tag and the body after it; the arguments are those of tn__jjp_body. */
static jj_node *parse_block_body(jj_parser *p, const char *const ends[], const char **end) {
    tn__jjp_skip_op(p, ':');
    tn__jjp_need_end(p, JJ_T_BLOCK_END);
    return tn__jjp_body(p, ends, end);
}

static jj_node *parse_for(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_FOR);
    const char *end_name;
    node->name = tn__jjp_intern(p, tn__jj_string(p->j, "loop", 4));
    node->a = parse_target(p, "in", false);
    if (!tn__jjp_skip_name(p, "in")) tn__jjp_unexpected(p, "'in'");
    node->b = tn__jjp_tuple(p, tn__jjp_or, "recursive", false);
    if (tn__jjp_skip_name(p, "if")) node->c = tn__jjp_expression(p);
    if (tn__jjp_skip_name(p, "recursive")) node->flags = JJ_RECURSIVE;
    p->loops++;
    node->body = parse_block_body(p, (const char *const[]){"endfor", "else", NULL}, &end_name);
    p->loops--;
    if (*end_name == 'e' && end_name[1] == 'l')
        node->other = parse_block_body(p, (const char *const[]){"endfor", NULL}, &end_name);
    return node;
}

static jj_node *parse_if(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_IF), **tail = &node->list;
    const char *end_name;
    do {
        jj_node *branch = tn__jjp_node(p, JJ_N_BRANCH);
        branch->a = tn__jjp_tuple(p, tn__jjp_or, NULL, false);
        branch->body = parse_block_body(p, (const char *const[]){"elif", "else", "endif", NULL}, &end_name);
        *tail = branch;
        tail = &branch->next;
    } while (strcmp(end_name, "elif") == 0);
    if (strcmp(end_name, "else") == 0)
        node->other = parse_block_body(p, (const char *const[]){"endif", NULL}, &end_name);
    return node;
}

static jj_node *parse_set(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_SET);
    const char *end_name;
    node->a = parse_target(p, NULL, true);
    if (tn__jjp_skip_op(p, '=')) {
        node->b = tn__jjp_tuple(p, tn__jjp_expression, NULL, false);
        return node;
    }
    node->kind = JJ_N_SET_BLOCK;
    while (tn__jjp_skip_op(p, '|')) node->b = tn__jjp_filter(p, node->b);
    node->body = parse_block_body(p, (const char *const[]){"endset", NULL}, &end_name);
    return node;
}

static void parse_signature(jj_parser *p, jj_node *node) {
    jj_node **tail = &node->list;
    bool defaults = false;
    tn__jjp_need_op(p, '(');
    while (!tn__jjp_at_op(p, ')')) {
        jj_node *parameter = tn__jjp_node(p, JJ_N_PARAMETER);
        parameter->name = tn__jjp_need_name(p, "a parameter's name");
        if (tn__jjp_skip_op(p, '=')) {
            parameter->a = tn__jjp_expression(p);
            defaults = true;
        } else if (defaults)
            tn__jj_fail(p->j, TN_E_SYNTAX, "a parameter without default follows one with default");
        *tail = parameter;
        tail = &parameter->next;
        if (!tn__jjp_at_op(p, ')')) tn__jjp_need_op(p, ',');
    }
    p->at++;
}

/* The body of a macro or call block. break and continue cannot leave it. */
static void parse_macro_body(jj_parser *p, jj_node *node, const char *end) {
    const char *end_name, *const ends[] = {end, NULL};
    uint8_t flags = 0, *outer = p->macro;
    unsigned loops = p->loops;
    p->macro = &flags;
    p->loops = 0;
    node->body = parse_block_body(p, ends, &end_name);
    p->loops = loops;
    p->macro = outer;
    node->flags |= flags;
    static const char *const names[] = {"kwargs", "varargs", "caller"};
    for (size_t i = 0; i < 3; i++) {
        jj_node *name = tn__jjp_node(p, JJ_N_NAME);
        name->name = tn__jjp_intern(p, tn__jj_string(p->j, names[i], strlen(names[i])));
        name->next = node->other;
        node->other = name;
    }
    if (outer) *outer |= flags;
}

static jj_node *parse_macro(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_MACRO);
    node->name = tn__jjp_need_name(p, "the macro's name");
    parse_signature(p, node);
    parse_macro_body(p, node, "endmacro");
    return node;
}

static jj_node *parse_call_block(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_CALL_BLOCK);
    if (tn__jjp_at_op(p, '(')) parse_signature(p, node);
    node->a = tn__jjp_expression(p);
    if (node->a->kind != JJ_N_CALL) tn__jj_fail(p->j, TN_E_SYNTAX, "a call block needs a call");
    node->name = tn__jjp_intern(p, tn__jj_string(p->j, "caller", 6));
    parse_macro_body(p, node, "endcall");
    return node;
}

static jj_node *parse_filter_block(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_FILTER_BLOCK);
    const char *end_name;
    node->b = tn__jjp_filter(p, NULL);
    while (tn__jjp_skip_op(p, '|')) node->b = tn__jjp_filter(p, node->b);
    node->body = parse_block_body(p, (const char *const[]){"endfilter", NULL}, &end_name);
    return node;
}

static jj_node *parse_with(jj_parser *p) {
    jj_node *node = tn__jjp_node(p, JJ_N_WITH), **tail = &node->list;
    const char *end_name;
    while (tn__jjp_token(p)->kind != JJ_T_BLOCK_END) {
        if (node->list) tn__jjp_need_op(p, ',');
        jj_node *set = tn__jjp_node(p, JJ_N_SET);
        set->a = tn__jjp_tuple(p, parse_target_item, NULL, false);
        check_target(p, set->a, false);
        tn__jjp_need_op(p, '=');
        set->b = tn__jjp_expression(p);
        *tail = set;
        tail = &set->next;
    }
    node->body = parse_block_body(p, (const char *const[]){"endwith", NULL}, &end_name);
    return node;
}

static jj_node *parse_scope(jj_parser *p, const char *end) {
    jj_node *node = tn__jjp_node(p, JJ_N_SCOPE);
    const char *end_name, *const ends[] = {end, NULL};
    node->body = parse_block_body(p, ends, &end_name);
    return node;
}

static jj_node *parse_print(jj_parser *p) {
    jj_node *first = NULL, **tail = &first;
    while (tn__jjp_token(p)->kind != JJ_T_BLOCK_END) {
        if (first) tn__jjp_need_op(p, ',');
        *tail = tn__jjp_node(p, JJ_N_OUTPUT);
        (*tail)->a = tn__jjp_expression(p);
        tail = &(*tail)->next;
    }
    return first;
}

static jj_node *parse_loop_control(jj_parser *p, jj_kind kind) {
    if (!p->loops) tn__jj_fail(p->j, TN_E_SYNTAX, "break or continue outside a loop");
    return tn__jjp_node(p, kind);
}

static jj_node *parse_block(jj_parser *p) {
    jj_string *name = tn__jjp_need_name(p, "the block's name");
    tn__jjp_skip_name(p, "scoped");
    jj_node *node = tn__jjp_node(p, JJ_N_SCOPE);
    const char *end_name;
    unsigned loops = p->loops;
    p->loops = 0;
    node->body = parse_block_body(p, (const char *const[]){"endblock", NULL}, &end_name);
    p->loops = loops;
    if (tn__jjp_token(p)->kind == JJ_T_NAME && tn__jj_same_string(tn__jjp_token(p)->value.as.string, name)) p->at++;
    return node;
}

static jj_node *parse_autoescape(jj_parser *p) {
    jj_node *condition = tn__jjp_expression(p);
    if (condition->kind != JJ_N_CONST || tn__jj_truth(p->j, condition->value))
        tn__jj_fail(p->j, TN_E_UNSUPPORTED, "automatic escaping is not supported");
    return parse_scope(p, "endautoescape");
}

/* A statement, from its tag's name up to the end of its last tag. Returns a list of nodes, or NULL. */
static jj_node *parse_statement(jj_parser *p) {
    jj_token *t = tn__jjp_token(p);
    if (t->kind != JJ_T_NAME) tn__jjp_unexpected(p, "a tag's name");
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
        jj_node *node = tn__jjp_node(p, JJ_N_DO);
        node->a = tn__jjp_tuple(p, tn__jjp_expression, NULL, false);
        return node;
    }
    static const char *const unsupported[] = {"include", "import", "from", "extends"};
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (tn__jj_same_text(name, unsupported[i]))
            tn__jj_fail(p->j, TN_E_UNSUPPORTED, "'%s' is not supported: a chat template cannot load others",
                        unsupported[i]);
    tn__jj_fail(p->j, TN_E_SYNTAX, "unknown tag '%.*s'", name->length > 40 ? 40 : (int)name->length, name->data);
}

jj_node *tn__jjp_body(jj_parser *p, const char *const ends[], const char **end) {
    jj_node *first = NULL, **tail = &first;
    tn__jj_enter(p->j);
    for (;;) {
        jj_token *t = tn__jjp_token(p);
        tn__jj_charge(p->j, 1);
        jj_node *node = NULL;
        if (t->kind == JJ_T_DATA) {
            node = tn__jjp_node(p, JJ_N_TEXT);
            node->value = t->value;
            p->at++;
        } else if (t->kind == JJ_T_VARIABLE_BEGIN) {
            node = tn__jjp_node(p, JJ_N_OUTPUT);
            p->at++;
            node->a = tn__jjp_tuple(p, tn__jjp_expression, NULL, false);
            tn__jjp_need_end(p, JJ_T_VARIABLE_END);
        } else if (t->kind == JJ_T_BLOCK_BEGIN) {
            p->at++;
            for (size_t i = 0; ends && ends[i]; i++)
                if (tn__jjp_skip_name(p, ends[i])) {
                    *end = ends[i];
                    jj_leave(p->j);
                    return first;
                }
            node = parse_statement(p);
            tn__jjp_need_end(p, JJ_T_BLOCK_END);
        } else {
            if (ends) tn__jj_fail(p->j, TN_E_SYNTAX, "expected '%s', got the end of the template", ends[0]);
            jj_leave(p->j);
            return first;
        }
        for (*tail = node; *tail; tail = &(*tail)->next) {}
    }
}
