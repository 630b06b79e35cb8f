/* Runs the statements of a template: output, blocks, loops, macros and scopes. Also the entry points. */
#include <stdio.h>
#include <stdlib.h>

#include "text/template/engine.h"

typedef enum flow { GO_ON, BREAK, CONTINUE } flow;
static flow run(jj *j, const jj_node *statement);

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

/* Runs statements with their output captured, in a scope of their own. */
static jj_value capture(jj *j, const jj_node *body) {
    jj_buffer buffer = {0}, *out = j->out;
    jj_scope *scope = j->scope;
    j->out = &buffer;
    j->scope = tn__jj_new_scope(j, scope);
    run(j, body);
    j->out = out;
    j->scope = scope;
    return tn__jj_from_buffer(j, &buffer);
}

/* Filters of a set or filter block: the innermost has no input of its own. */
static jj_value apply_filters(jj *j, const jj_node *filter, jj_value input) {
    if (!filter) return input;
    tn__jj_enter(j);
    jj_value v = tn__jj_apply_filter(j, filter, apply_filters(j, filter->a, input));
    jj_leave(j);
    return v;
}

/* ---- Loops ---- */

static flow run_loop(jj *j, jj_loop *loop) {
    const jj_node *node = loop->node;
    jj_scope *outer = j->scope;
    bool any = false;
    flow result = GO_ON;
    while (tn__jj_loop_next(j, loop)) {
        any = true;
        j->scope = tn__jj_new_scope(j, loop->scope);
        tn__jj_define(j, j->scope, node->name, (jj_value){.type = JJ_LOOP, .as.loop = loop});
        tn__jj_assign(j, node->a, loop->current);
        if (run(j, node->body) == BREAK) break;
    }
    if (!any && node->other) {
        j->scope = tn__jj_new_scope(j, loop->scope);
        result = run(j, node->other);
    }
    j->scope = outer;
    return result;
}

static flow run_for(jj *j, const jj_node *node) {
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

/* Arguments that no parameter takes go to varargs and kwargs, where the macro names those, or are errors. */
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
    /* All that is given first: a default may name a later parameter. */
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
    run(j, node->body);
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
    /* The caller goes in as one more keyword. */
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

static flow run_if(jj *j, const jj_node *node) {
    for (const jj_node *branch = node->list; branch; branch = branch->next)
        if (tn__jj_truth(j, tn__jj_eval(j, branch->a))) return run(j, branch->body);
    return run(j, node->other);
}

static flow run_scoped(jj *j, const jj_node *node) {
    jj_scope *outer = j->scope, *scope = tn__jj_new_scope(j, outer);
    for (const jj_node *set = node->list; set; set = set->next) { /* values see the outer scope only */
        jj_value v = tn__jj_eval(j, set->b);
        j->scope = scope;
        tn__jj_assign(j, set->a, v);
        j->scope = outer;
    }
    j->scope = scope;
    flow result = run(j, node->body);
    j->scope = outer;
    return result;
}

static flow run_one(jj *j, const jj_node *node) {
    switch ((jj_kind)node->kind) {
    case JJ_N_TEXT: tn__jj_put(j, j->out, node->value.as.string->data, node->value.as.string->length); break;
    case JJ_N_OUTPUT: tn__jj_put_value(j, j->out, tn__jj_eval(j, node->a)); break;
    case JJ_N_FOR: return run_for(j, node);
    case JJ_N_IF: return run_if(j, node);
    case JJ_N_SET: tn__jj_assign(j, node->a, tn__jj_eval(j, node->b)); break;
    case JJ_N_SET_BLOCK: tn__jj_assign(j, node->a, apply_filters(j, node->b, capture(j, node->body))); break;
    case JJ_N_MACRO: tn__jj_define(j, j->scope, node->name, make_macro(j, node)); break;
    case JJ_N_CALL_BLOCK: run_call_block(j, node); break;
    case JJ_N_FILTER_BLOCK: tn__jj_put_value(j, j->out, apply_filters(j, node->b, capture(j, node->body))); break;
    case JJ_N_WITH:
    case JJ_N_SCOPE: return run_scoped(j, node);
    case JJ_N_DO: tn__jj_eval(j, node->a); break;
    case JJ_N_BREAK: return BREAK;
    case JJ_N_CONTINUE: return CONTINUE;
    default: tn__jj_fail(j, TN_E_INTERNAL, "unknown statement node %u", node->kind);
    }
    return GO_ON;
}

static flow run(jj *j, const jj_node *statement) {
    flow result = GO_ON;
    tn__jj_enter(j);
    for (; statement && result == GO_ON; statement = statement->next) {
        tn__jj_charge(j, 1);
        j->line = statement->line;
        result = run_one(j, statement);
    }
    jj_leave(j);
    return result;
}

void tn__jj_run(jj *j, const jj_node *statements) {
    j->scope = tn__jj_new_scope(j, NULL);
    run(j, statements);
}

/* ---- Entry points ---- */

struct tn__jinja {
    jj memory; /* holds the tree */
    jj_node *statements;
};

tn_status tn__jinja_parse(const char *text, size_t length, const tn__jinja_limits *limits, tn__jinja **out) {
    *out = NULL;
    tn__jinja *template = tn_malloc(sizeof *template);
    if (!template) return TN_E_NOMEM;
    jj *j = &template->memory;
    tn__jj_open(j, limits);
    if (setjmp(j->landing) == 0) {
        template->statements = tn__jj_parse(j, text, length);
        *out = template;
        return TN_OK;
    }
    tn_status status = j->status;
    tn__jinja_free(template);
    return status;
}

void tn__jinja_free(tn__jinja *template) {
    if (!template) return;
    tn__jj_close(&template->memory);
    tn_free(template);
}

static tn_status read_clock(const struct tm *given, struct tm *now) {
    const char *fixed = getenv("TENON_NOW");
    if (given) {
        *now = *given;
    } else if (fixed && *fixed) {
        memset(now, 0, sizeof *now);
        const char *end = strptime(fixed, "%Y-%m-%dT%H:%M:%S", now);
        if (!end || *end) return tn_fail(TN_E_INVALID, "TENON_NOW is '%s', not like 2026-11-15T12:00:00", fixed);
    } else {
        time_t seconds = time(NULL);
        if (!localtime_r(&seconds, now)) return tn_fail(TN_E_INTERNAL, "the clock cannot be read");
    }
    return TN_OK;
}

static void render(jj *j, const tn__jinja *template, const json_t *variables, jj_buffer *buffer) {
    j->out = buffer;
    if (variables) {
        jj_value v = tn__jj_from_json(j, variables);
        if (v.type != JJ_DICT) tn__jj_fail(j, TN_E_INVALID, "the variables are not a JSON object");
        j->variables = v.as.dict;
    } else
        j->variables = tn__jj_new_dict(j);
    tn__jj_run(j, template->statements);
}

tn_status tn__jinja_render(const tn__jinja *template, const json_t *variables, const tn__jinja_params *params,
                           char **text, size_t *length) {
    *text = NULL;
    struct tm now;
    TN_TRY(read_clock(params ? params->now : NULL, &now));
    jj *j = tn_malloc(sizeof *j);
    jj_buffer *buffer = tn_calloc(1, sizeof *buffer); /* not a local: it must survive the jump */
    tn_status status = TN_E_NOMEM;
    if (!j || !buffer) goto out;
    tn__jj_open(j, params ? &params->limits : NULL);
    j->allow_mutation = params && params->allow_mutation;
    j->now = now;
    if (setjmp(j->landing) == 0) render(j, template, variables, buffer);
    status = j->status;
    if (status == TN_OK) {
        *text = tn_malloc(buffer->length + 1);
        if (*text) {
            if (buffer->length) memcpy(*text, buffer->data, buffer->length);
            (*text)[buffer->length] = '\0';
            if (length) *length = buffer->length;
        } else
            status = TN_E_NOMEM;
    }
    tn__jj_close(j);
out:
    tn_free(j);
    tn_free(buffer);
    return status;
}
