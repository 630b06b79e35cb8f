/* Evaluates the expressions of templates, including calls. */
#include <stdio.h>

#include "text/template/engine.h"

static jj_value look_up_name(jj *j, const jj_string *name) {
    for (const jj_scope *scope = j->scope; scope; scope = scope->parent)
        for (size_t i = 0; i < scope->count; i++)
            if (scope->variables[i].name == name) return scope->variables[i].value;
    jj_entry *entry = tn__jj_dict_text(j, j->variables, name);
    if (entry) return entry->value;
    const jj_named *global = tn__jj_find_global(name);
    if (global) {
        jj_function *function = tn__jj_alloc(j, sizeof *function);
        *function = (jj_function){.name = global->name, .call = global->call, .self = jj_none()};
        return (jj_value){.type = JJ_FUNCTION, .as.function = function};
    }
    return tn__jj_undefined(j, "'%.*s' is undefined", name->length > 100 ? 100 : (int)name->length, name->data);
}

static jj_list *eval_items(jj *j, const jj_node *item) {
    jj_list *list = tn__jj_new_list(j, 0);
    for (; item; item = item->next) tn__jj_append(j, list, tn__jj_eval(j, item));
    return list;
}

static jj_value eval_dict(jj *j, const jj_node *pair) {
    jj_dict *dict = tn__jj_new_dict(j);
    for (; pair; pair = pair->next) {
        jj_value key = tn__jj_eval(j, pair->a);
        tn__jj_dict_set(j, dict, key, tn__jj_eval(j, pair->b));
    }
    return jj_dicted(dict);
}

static bool comparison_holds(jj *j, int op, jj_value a, jj_value b) {
    int order;
    switch (op) {
    case '=': return tn__jj_equal(j, a, b);
    case '!': return !tn__jj_equal(j, a, b);
    case 'i': return tn__jj_contains(j, b, a);
    case 'n': return !tn__jj_contains(j, b, a);
    case '<': return tn__jj_compare(j, a, b, "<") == -1;
    case '>': return tn__jj_compare(j, a, b, ">") == 1;
    case 'l': order = tn__jj_compare(j, a, b, "<="); return order == -1 || order == 0;
    default: order = tn__jj_compare(j, a, b, ">="); return order == 1 || order == 0;
    }
}

static jj_value eval_compare(jj *j, const jj_node *node) {
    jj_value left = tn__jj_eval(j, node->a);
    for (const jj_node *operand = node->list; operand; operand = operand->next) {
        jj_value right = tn__jj_eval(j, operand->a);
        if (!comparison_holds(j, operand->op, left, right)) return jj_bool(false);
        left = right;
    }
    return jj_bool(true);
}

static jj_value eval_concat(jj *j, const jj_node *node) {
    jj_buffer b = {0};
    for (const jj_node *item = node->list; item; item = item->next) tn__jj_put_value(j, &b, tn__jj_eval(j, item));
    return tn__jj_from_buffer(j, &b);
}

static jj_value eval_item(jj *j, const jj_node *node) {
    jj_value object = tn__jj_eval(j, node->a);
    if (node->b->kind != JJ_N_SLICE) return tn__jj_item(j, object, tn__jj_eval(j, node->b));
    const jj_node *slice = node->b;
    jj_value start = slice->a ? tn__jj_eval(j, slice->a) : jj_absent();
    jj_value stop = slice->b ? tn__jj_eval(j, slice->b) : jj_absent();
    jj_value step = slice->c ? tn__jj_eval(j, slice->c) : jj_absent();
    return tn__jj_slice(j, object, start, stop, step);
}

/* ---- Arguments and calls ---- */

static void push_argument(jj *j, jj_args *args, size_t *capacity, jj_value v) {
    if (args->count == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 4;
        args->values = tn__jj_grow(j, args->values, *capacity * sizeof v, grown * sizeof v);
        *capacity = grown;
    }
    args->values[args->count++] = v;
}

static void push_keyword(jj *j, jj_args *args, size_t *capacity, jj_string *name, jj_value v) {
    for (size_t i = 0; i < args->keyword_count; i++)
        if (tn__jj_same_string(args->keywords[i], name))
            tn__jj_fail(j, TN_E_INVALID, "the argument '%.*s' is given twice", (int)name->length, name->data);
    tn__jj_charge(j, 1 + args->keyword_count);
    if (args->keyword_count == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 4;
        args->keywords = tn__jj_grow(j, args->keywords, *capacity * sizeof name, grown * sizeof name);
        args->keyword_values = tn__jj_grow(j, args->keyword_values, *capacity * sizeof v, grown * sizeof v);
        *capacity = grown;
    }
    args->keywords[args->keyword_count] = name;
    args->keyword_values[args->keyword_count++] = v;
}

void tn__jj_eval_args(jj *j, const jj_node *list, jj_args *args) {
    size_t capacity = 0, keyword_capacity = 0;
    *args = (jj_args){0};
    for (; list; list = list->next) {
        if (list->kind == JJ_N_KEYWORD) {
            push_keyword(j, args, &keyword_capacity, list->name, tn__jj_eval(j, list->a));
        } else if (list->kind != JJ_N_SPREAD) {
            push_argument(j, args, &capacity, tn__jj_eval(j, list));
        } else if (list->op == '*') {
            jj_cursor cursor;
            jj_value item;
            tn__jj_cursor(j, tn__jj_eval(j, list->a), &cursor);
            while (tn__jj_next(j, &cursor, &item)) push_argument(j, args, &capacity, item);
        } else {
            jj_value pairs = tn__jj_eval(j, list->a);
            if (pairs.type != JJ_DICT)
                tn__jj_fail(j, TN_E_INVALID, "the argument after ** must be a dict, not %s", tn__jj_type_name(pairs));
            for (size_t i = 0; i < pairs.as.dict->count; i++)
                push_keyword(j, args, &keyword_capacity,
                             tn__jj_need_string(j, pairs.as.dict->entries[i].key, "a keyword"),
                             pairs.as.dict->entries[i].value);
        }
    }
}

void tn__jj_bind(jj *j, const jj_args *args, const char *who, const char *names, size_t required, jj_value *out) {
    size_t count = 0, used = 0;
    for (const char *name = names; *name; count++) {
        size_t n = strcspn(name, " ");
        out[count] = jj_absent();
        if (count < args->count) out[count] = args->values[count];
        for (size_t k = 0; k < args->keyword_count; k++) {
            const jj_string *keyword = args->keywords[k];
            if (keyword->length != n || memcmp(keyword->data, name, n) != 0) continue;
            if (count < args->count) tn__jj_fail(j, TN_E_INVALID, "%s() got '%.*s' twice", who, (int)n, name);
            out[count] = args->keyword_values[k];
            used++;
        }
        if (count < required && jj_is_absent(out[count]))
            tn__jj_fail(j, TN_E_INVALID, "%s() is missing its argument '%.*s'", who, (int)n, name);
        name += n;
        if (*name) name++;
    }
    if (args->count > count)
        tn__jj_fail(j, TN_E_INVALID, "%s() takes %zu argument%s, not %zu", who, count, count == 1 ? "" : "s",
                    args->count);
    if (used == args->keyword_count) return;
    for (size_t k = 0; k < args->keyword_count; k++) {
        const jj_string *keyword = args->keywords[k];
        const char *at = names;
        bool known = false;
        for (; *at && !known; at += strcspn(at, " "), at += *at == ' ')
            known = strcspn(at, " ") == keyword->length && memcmp(at, keyword->data, keyword->length) == 0;
        if (!known)
            tn__jj_fail(j, TN_E_INVALID, "%s() has no argument '%.*s'", who,
                        keyword->length > 60 ? 60 : (int)keyword->length, keyword->data);
    }
}

static jj_value call_joiner(jj *j, jj_value callee, const jj_args *args) {
    tn__jj_bind(j, args, "joiner", "", 0, NULL);
    jj_joiner *joiner = callee.as.joiner;
    if (joiner->used) return joiner->separator;
    joiner->used = true;
    return tn__jj_literal(j, "");
}

jj_value tn__jj_call(jj *j, jj_value callee, const jj_args *args) {
    jj_value v;
    uint32_t line = j->line;
    tn__jj_enter(j);
    switch (callee.type) {
    case JJ_FUNCTION: v = callee.as.function->call(j, callee.as.function->self, args); break;
    case JJ_MACRO: v = tn__jj_call_macro(j, callee.as.macro, args); break;
    case JJ_LOOP: v = tn__jj_call_loop(j, callee.as.loop, args); break;
    case JJ_JOINER: v = call_joiner(j, callee, args); break;
    case JJ_UNDEFINED:
        tn__jj_fail(j, TN_E_INVALID, "%.*s", callee.as.string ? (int)callee.as.string->length : 9,
                    callee.as.string ? callee.as.string->data : "undefined");
    default: tn__jj_fail(j, TN_E_INVALID, "'%s' object is not callable", tn__jj_type_name(callee));
    }
    j->line = line;
    jj_leave(j);
    return v;
}

static jj_value eval_call(jj *j, const jj_node *node) {
    jj_args args;
    jj_value callee = tn__jj_eval(j, node->a);
    tn__jj_eval_args(j, node->list, &args);
    return tn__jj_call(j, callee, &args);
}

jj_value tn__jj_apply_filter(jj *j, const jj_node *filter, jj_value input) {
    jj_args args;
    const jj_named *entry = tn__jj_find_filter(filter->name);
    if (!entry)
        tn__jj_fail(j, TN_E_UNSUPPORTED, "no filter named '%.*s'",
                    filter->name->length > 60 ? 60 : (int)filter->name->length, filter->name->data);
    tn__jj_eval_args(j, filter->list, &args);
    return entry->call(j, input, &args);
}

static jj_value eval_test(jj *j, const jj_node *node) {
    jj_args args;
    jj_value v = tn__jj_eval(j, node->a);
    tn__jj_eval_args(j, node->list, &args);
    return jj_bool(tn__jj_test(j, node->name, v, &args));
}

static jj_value eval_unary(jj *j, const jj_node *node) {
    jj_value v = tn__jj_eval(j, node->a);
    if (node->op == '!') return jj_bool(!tn__jj_truth(j, v));
    if (node->op == '-') return tn__jj_negate(j, v);
    int64_t i;
    if (tn__jj_as_int(v, &i)) return jj_int(i);
    if (v.type != JJ_FLOAT) tn__jj_fail(j, TN_E_INVALID, "bad operand type for unary +: '%s'", tn__jj_type_name(v));
    return v;
}

static jj_value eval_condition(jj *j, const jj_node *node) {
    if (tn__jj_truth(j, tn__jj_eval(j, node->b))) return tn__jj_eval(j, node->a);
    if (node->c) return tn__jj_eval(j, node->c);
    return tn__jj_undefined(j, "the inline if on line %u evaluated to false and has no else", node->line);
}

jj_value tn__jj_eval(jj *j, const jj_node *node) {
    jj_value v, left;
    if (node->kind == JJ_N_CONST) return node->value;
    tn__jj_charge(j, 1);
    j->line = node->line;
    if (node->kind == JJ_N_NAME) return look_up_name(j, node->name);
    tn__jj_enter(j);
    switch ((jj_kind)node->kind) {
    case JJ_N_TUPLE: v = jj_listed(JJ_TUPLE, eval_items(j, node->list)); break;
    case JJ_N_LIST: v = jj_listed(JJ_LIST, eval_items(j, node->list)); break;
    case JJ_N_DICT: v = eval_dict(j, node->list); break;
    case JJ_N_UNARY: v = eval_unary(j, node); break;
    case JJ_N_BINARY:
        left = tn__jj_eval(j, node->a);
        v = tn__jj_eval(j, node->b);
        j->line = node->line;
        v = tn__jj_binary(j, node->op, left, v);
        break;
    case JJ_N_AND:
        v = tn__jj_eval(j, node->a);
        if (tn__jj_truth(j, v)) v = tn__jj_eval(j, node->b);
        break;
    case JJ_N_OR:
        v = tn__jj_eval(j, node->a);
        if (!tn__jj_truth(j, v)) v = tn__jj_eval(j, node->b);
        break;
    case JJ_N_COMPARE: v = eval_compare(j, node); break;
    case JJ_N_CONCAT: v = eval_concat(j, node); break;
    case JJ_N_CONDITION: v = eval_condition(j, node); break;
    case JJ_N_ATTRIBUTE: v = tn__jj_attribute(j, tn__jj_eval(j, node->a), node->name); break;
    case JJ_N_ITEM: v = eval_item(j, node); break;
    case JJ_N_CALL: v = eval_call(j, node); break;
    case JJ_N_FILTER: v = tn__jj_apply_filter(j, node, tn__jj_eval(j, node->a)); break;
    case JJ_N_TEST: v = eval_test(j, node); break;
    case JJ_N_SLICE: tn__jj_fail(j, TN_E_INVALID, "a slice cannot be part of a key");
    default: tn__jj_fail(j, TN_E_INTERNAL, "unknown expression node %u", node->kind);
    }
    jj_leave(j);
    return v;
}
