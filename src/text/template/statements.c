/* Runs the statements of a template: output, blocks, loops, macros and scopes. */
#include "text/template/engine.h"

typedef enum control_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } control_flow;
static control_flow run_statements(jj *j, const jj_node *statement);

jj_scope *tn__jj_new_scope(jj *j, jj_scope *parent) {
    jj_scope *scope = tn__jj_alloc(j, sizeof *scope);
    scope->parent = parent;
    return scope;
}

void tn__jj_define(jj *j, jj_scope *scope, const jj_string *name, jj_value value) {
    for (size_t i = 0; i < scope->count; i++)
        if (scope->variables[i].name == name) {
            scope->variables[i].value = value;
            return;
        }
    if (scope->count == scope->capacity) {
        size_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        scope->variables =
            tn__jj_grow(j, scope->variables, scope->capacity * sizeof(jj_variable), capacity * sizeof(jj_variable));
        scope->capacity = capacity;
    }
    scope->variables[scope->count++] = (jj_variable){name, value};
}

static void assign_attribute(jj *j, const jj_node *target, jj_value value) {
    jj_node name = {.kind = JJ_N_NAME, .line = target->line, .name = target->name};
    jj_value object = tn__jj_eval(j, &name);
    if (object.type != JJ_NAMESPACE) tn__jj_fail(j, TN_E_INVALID, "cannot assign attribute on non-namespace object");
    tn__jj_dict_set(j, object.as.dict, jj_str(target->text), value);
}

void tn__jj_assign(jj *j, const jj_node *target, jj_value value) {
    if (target->kind == JJ_N_NAME) {
        tn__jj_define(j, j->scope, target->name, value);
        return;
    }
    if (target->kind == JJ_N_NS_REF) {
        assign_attribute(j, target, value);
        return;
    }
    jj_cursor cursor;
    jj_value item;
    tn__jj_enter(j);
    tn__jj_cursor(j, value, &cursor);
    for (const jj_node *part = target->list; part; part = part->next) {
        if (!tn__jj_next(j, &cursor, &item)) tn__jj_fail(j, TN_E_INVALID, "not enough values to unpack");
        tn__jj_assign(j, part, item);
    }
    if (tn__jj_next(j, &cursor, &item)) tn__jj_fail(j, TN_E_INVALID, "too many values to unpack");
    jj_leave(j);
}

/* Runs statements in a new scope and returns their output. */
static jj_value capture_output(jj *j, const jj_node *body) {
    jj_buffer buffer = {0}, *out = j->out;
    jj_scope *scope = j->scope;
    j->out = &buffer;
    j->scope = tn__jj_new_scope(j, scope);
    run_statements(j, body);
    j->out = out;
    j->scope = scope;
    return tn__jj_from_buffer(j, &buffer);
}

/* Filters of a set or filter block. The innermost one has no input node; it gets `input`. */
static jj_value apply_filters(jj *j, const jj_node *filter, jj_value input) {
    if (!filter) return input;
    tn__jj_enter(j);
    jj_value v = tn__jj_apply_filter(j, filter, apply_filters(j, filter->a, input));
    jj_leave(j);
    return v;
}

/* ---- Loops ---- */

static control_flow run_loop(jj *j, jj_loop *loop) {
    const jj_node *node = loop->node;
    jj_scope *outer = j->scope;
    bool any = false;
    control_flow result = FLOW_NEXT;
    while (tn__jj_loop_next(j, loop)) {
        any = true;
        j->scope = tn__jj_new_scope(j, loop->scope);
        tn__jj_define(j, j->scope, node->name, (jj_value){.type = JJ_LOOP, .as.loop = loop});
        tn__jj_assign(j, node->a, loop->current);
        if (run_statements(j, node->body) == FLOW_BREAK) break;
    }
    if (!any && node->other) {
        j->scope = tn__jj_new_scope(j, loop->scope);
        result = run_statements(j, node->other);
    }
    j->scope = outer;
    return result;
}

static control_flow run_for(jj *j, const jj_node *node) {
    jj_loop *loop = tn__jj_alloc(j, sizeof *loop);
    loop->node = node;
    loop->scope = j->scope;
    loop->index0 = -1;
    tn__jj_cursor(j, tn__jj_eval(j, node->b), &loop->cursor);
    return run_loop(j, loop);
}

jj_value tn__jj_call_loop(jj *j, jj_loop *loop, const jj_args *args) {
    jj_value items;
    if (!(loop->node->flags & JJ_RECURSIVE))
        tn__jj_fail(j, TN_E_INVALID, "the loop must have the 'recursive' marker to be called recursively");
    tn__jj_bind(j, args, "loop", "iterable", 1, &items);
    jj_loop *inner = tn__jj_alloc(j, sizeof *inner);
    inner->node = loop->node;
    inner->scope = loop->scope;
    inner->index0 = -1;
    inner->depth0 = loop->depth0 + 1;
    tn__jj_cursor(j, items, &inner->cursor);
    jj_buffer buffer = {0}, *out = j->out;
    j->out = &buffer;
    run_loop(j, inner);
    j->out = out;
    return tn__jj_from_buffer(j, &buffer);
}

/* ---- Macros ---- */

static const jj_value *find_keyword(const jj_args *args, const jj_string *name) {
    for (size_t i = 0; i < args->keyword_count; i++)
        if (tn__jj_same_string(args->keywords[i], name)) return &args->keyword_values[i];
    return NULL;
}

/* Arguments without parameter are collected in varargs and kwargs if the macro uses these, else they are errors. */
static void bind_extra(jj *j, const jj_node *node, jj_scope *scope, const jj_args *args, size_t parameters) {
    const char *name = node->name ? node->name->data : "";
    int length = node->name ? (int)node->name->length : 0;
    jj_list *varargs = tn__jj_new_list(j, 0);
    jj_dict *kwargs = tn__jj_new_dict(j);
    jj_value caller = jj_absent();
    for (size_t i = parameters; i < args->count; i++) tn__jj_append(j, varargs, args->values[i]);
    for (size_t i = 0; i < args->keyword_count; i++) {
        const jj_node *parameter = node->list;
        while (parameter && !tn__jj_same_string(parameter->name, args->keywords[i])) parameter = parameter->next;
        if (parameter) continue;
        if (node->flags & JJ_USES_CALLER && tn__jj_same_text(args->keywords[i], "caller"))
            caller = args->keyword_values[i];
        else
            tn__jj_dict_set(j, kwargs, jj_str(args->keywords[i]), args->keyword_values[i]);
    }
    if (varargs->count && !(node->flags & JJ_USES_VARARGS))
        tn__jj_fail(j, TN_E_INVALID, "macro '%.*s' takes not more than %zu argument(s)", length, name, parameters);
    if (kwargs->count && !(node->flags & JJ_USES_KWARGS)) {
        const jj_string *first = kwargs->entries[0].key.as.string;
        tn__jj_fail(j, TN_E_INVALID, "macro '%.*s' takes no keyword argument '%.*s'", length, name,
                    (int)first->length, first->data);
    }
    if (jj_is_absent(caller)) caller = tn__jj_undefined(j, "no caller defined");
    const struct {
        int flag;
        jj_value value;
    } extra[] = {{JJ_USES_CALLER, caller},
                 {JJ_USES_VARARGS, jj_listed(JJ_TUPLE, varargs)},
                 {JJ_USES_KWARGS, jj_dicted(kwargs)}};
    const jj_node *name_node = node->other;
    for (size_t i = 0; i < 3; i++, name_node = name_node->next)
        if (node->flags & extra[i].flag) tn__jj_define(j, scope, name_node->name, extra[i].value);
}

jj_value tn__jj_call_macro(jj *j, jj_macro *macro, const jj_args *args) {
    const jj_node *node = macro->node;
    jj_scope *outer = j->scope, *scope = tn__jj_new_scope(j, macro->scope);
    jj_buffer buffer = {0}, *out = j->out;
    size_t index = 0;
    j->scope = scope;
    /* Given arguments first, because a default may refer to a later parameter. */
    for (const jj_node *parameter = node->list; parameter; parameter = parameter->next, index++) {
        const jj_value *keyword = find_keyword(args, parameter->name);
        if (index < args->count)
            tn__jj_define(j, scope, parameter->name, args->values[index]);
        else if (keyword)
            tn__jj_define(j, scope, parameter->name, *keyword);
        if (index < args->count && keyword)
            tn__jj_fail(j, TN_E_INVALID, "a macro got its parameter '%.*s' twice", (int)parameter->name->length,
                        parameter->name->data);
    }
    bind_extra(j, node, scope, args, index);
    index = 0;
    for (const jj_node *parameter = node->list; parameter; parameter = parameter->next, index++) {
        if (index < args->count || find_keyword(args, parameter->name)) continue;
        jj_value v = parameter->a ? tn__jj_eval(j, parameter->a)
                                  : tn__jj_undefined(j, "parameter '%.*s' was not provided",
                                                     (int)parameter->name->length, parameter->name->data);
        tn__jj_define(j, scope, parameter->name, v);
    }
    j->out = &buffer;
    run_statements(j, node->body);
    j->out = out;
    j->scope = outer;
    return tn__jj_from_buffer(j, &buffer);
}

static jj_value make_macro(jj *j, const jj_node *node) {
    jj_macro *macro = tn__jj_alloc(j, sizeof *macro);
    *macro = (jj_macro){.node = node, .scope = j->scope};
    return (jj_value){.type = JJ_MACRO, .as.macro = macro};
}

static void run_call_block(jj *j, const jj_node *node) {
    jj_args args;
    jj_value callee = tn__jj_eval(j, node->a->a);
    tn__jj_eval_args(j, node->a->list, &args);
    /* The caller is passed as another keyword argument. */
    jj_string **keywords = tn__jj_array(j, args.keyword_count + 1, sizeof *keywords);
    jj_value *values = tn__jj_array(j, args.keyword_count + 1, sizeof *values);
    for (size_t i = 0; i < args.keyword_count; i++)
        keywords[i] = args.keywords[i], values[i] = args.keyword_values[i];
    keywords[args.keyword_count] = node->name;
    values[args.keyword_count] = make_macro(j, node);
    args.keyword_count++;
    args.keywords = keywords;
    args.keyword_values = values;
    tn__jj_put_value(j, j->out, tn__jj_call(j, callee, &args));
}

/* ---- Statements ---- */

static control_flow run_if(jj *j, const jj_node *node) {
    for (const jj_node *branch = node->list; branch; branch = branch->next)
        if (tn__jj_truth(j, tn__jj_eval(j, branch->a))) return run_statements(j, branch->body);
    return run_statements(j, node->other);
}

static control_flow run_scoped(jj *j, const jj_node *node) {
    jj_scope *outer = j->scope, *scope = tn__jj_new_scope(j, outer);
    for (const jj_node *set = node->list; set; set = set->next) { /* values are evaluated in the outer scope */
        jj_value v = tn__jj_eval(j, set->b);
        j->scope = scope;
        tn__jj_assign(j, set->a, v);
        j->scope = outer;
    }
    j->scope = scope;
    control_flow result = run_statements(j, node->body);
    j->scope = outer;
    return result;
}

static control_flow run_statement(jj *j, const jj_node *node) {
    switch ((jj_kind)node->kind) {
    case JJ_N_TEXT: tn__jj_put(j, j->out, node->value.as.string->data, node->value.as.string->length); break;
    case JJ_N_OUTPUT: tn__jj_put_value(j, j->out, tn__jj_eval(j, node->a)); break;
    case JJ_N_FOR: return run_for(j, node);
    case JJ_N_IF: return run_if(j, node);
    case JJ_N_SET: tn__jj_assign(j, node->a, tn__jj_eval(j, node->b)); break;
    case JJ_N_SET_BLOCK: tn__jj_assign(j, node->a, apply_filters(j, node->b, capture_output(j, node->body))); break;
    case JJ_N_MACRO: tn__jj_define(j, j->scope, node->name, make_macro(j, node)); break;
    case JJ_N_CALL_BLOCK: run_call_block(j, node); break;
    case JJ_N_FILTER_BLOCK:
        tn__jj_put_value(j, j->out, apply_filters(j, node->b, capture_output(j, node->body)));
        break;
    case JJ_N_WITH:
    case JJ_N_SCOPE: return run_scoped(j, node);
    case JJ_N_DO: tn__jj_eval(j, node->a); break;
    case JJ_N_BREAK: return FLOW_BREAK;
    case JJ_N_CONTINUE: return FLOW_CONTINUE;
    default: tn__jj_fail(j, TN_E_INTERNAL, "unknown statement node %u", node->kind);
    }
    return FLOW_NEXT;
}

static control_flow run_statements(jj *j, const jj_node *statement) {
    control_flow result = FLOW_NEXT;
    tn__jj_enter(j);
    for (; statement && result == FLOW_NEXT; statement = statement->next) {
        tn__jj_charge(j, 1);
        j->line = statement->line;
        result = run_statement(j, statement);
    }
    jj_leave(j);
    return result;
}

void tn__jj_run(jj *j, const jj_node *statements) {
    j->scope = tn__jj_new_scope(j, NULL);
    run_statements(j, statements);
}
