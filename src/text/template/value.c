/* Values: creation, truth, equality, order, length and iteration. */
#include <stdio.h>

#include "text/template/engine.h"

jj_string *tn__jj_string(jj *j, const char *data, size_t length) {
    jj_string *s = tn__jj_alloc(j, sizeof *s);
    *s = (jj_string){
        .data = data ? data : "", .length = length, .chars = SIZE_MAX}; /* an empty buffer has no memory */
    return s;
}

jj_string *tn__jj_copy_string(jj *j, const char *data, size_t length) {
    char *copy = tn__jj_alloc(j, length + 1);
    if (length) memcpy(copy, data, length);
    return tn__jj_string(j, copy, length);
}

jj_value tn__jj_text(jj *j, const char *data, size_t length) { return jj_str(tn__jj_string(j, data, length)); }
jj_value tn__jj_literal(jj *j, const char *text) { return tn__jj_text(j, text, strlen(text)); }
jj_value tn__jj_from_buffer(jj *j, const jj_buffer *buffer) { return tn__jj_text(j, buffer->data, buffer->length); }

jj_value tn__jj_undefined(jj *j, const char *format, ...) {
    char message[256];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    return (jj_value){.type = JJ_UNDEFINED, .as.string = tn__jj_copy_string(j, message, strlen(message))};
}

jj_list *tn__jj_new_list(jj *j, size_t capacity) {
    jj_list *list = tn__jj_alloc(j, sizeof *list);
    if (capacity) list->items = tn__jj_array(j, capacity, sizeof *list->items);
    list->capacity = capacity;
    return list;
}

void tn__jj_append(jj *j, jj_list *list, jj_value value) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 4; /* bounded by max_memory, so it cannot wrap */
        list->items = tn__jj_grow(j, list->items, list->capacity * sizeof value, capacity * sizeof value);
        list->capacity = capacity;
    }
    tn__jj_charge(j, 1);
    list->items[list->count++] = value;
}

jj_value tn__jj_pair(jj *j, jj_value first, jj_value second) {
    jj_list *pair = tn__jj_new_list(j, 2);
    pair->items[0] = first;
    pair->items[1] = second;
    pair->count = 2;
    return jj_listed(JJ_TUPLE, pair);
}

const char *tn__jj_type_name(jj_value v) {
    switch (v.type) {
    case JJ_UNDEFINED: return "Undefined";
    case JJ_NONE: return "NoneType";
    case JJ_BOOL: return "bool";
    case JJ_INT: return "int";
    case JJ_FLOAT: return "float";
    case JJ_STRING: return v.as.string->safe ? "Markup" : "str";
    case JJ_LIST: return "list";
    case JJ_TUPLE: return "tuple";
    case JJ_DICT: return "dict";
    case JJ_RANGE: return "range";
    case JJ_GENERATOR: return "generator";
    case JJ_VIEW: return v.as.view->kind == 'k' ? "dict_keys" : v.as.view->kind == 'v' ? "dict_values" : "dict_items";
    case JJ_FUNCTION: return "function";
    case JJ_MACRO: return "Macro";
    case JJ_NAMESPACE: return "Namespace";
    case JJ_LOOP: return "LoopContext";
    case JJ_CYCLER: return "Cycler";
    case JJ_JOINER: return "Joiner";
    }
    return "object";
}

bool tn__jj_truth(jj *j, jj_value v) {
    (void)j;
    switch (v.type) {
    case JJ_UNDEFINED:
    case JJ_NONE: return false;
    case JJ_BOOL: return v.as.boolean;
    case JJ_INT: return v.as.integer != 0;
    case JJ_FLOAT: return v.as.real != 0;
    case JJ_STRING: return v.as.string->length != 0;
    case JJ_LIST:
    case JJ_TUPLE: return v.as.list->count != 0;
    case JJ_DICT: return v.as.dict->count != 0;
    case JJ_RANGE: return v.as.range->count != 0;
    case JJ_VIEW: return v.as.view->dict->count != 0;
    default: return true;
    }
}

bool tn__jj_as_int(jj_value v, int64_t *out) {
    if (v.type == JJ_INT)
        *out = v.as.integer;
    else if (v.type == JJ_BOOL)
        *out = v.as.boolean;
    else
        return false;
    return true;
}

bool tn__jj_is_number(jj_value v) { return v.type == JJ_INT || v.type == JJ_BOOL || v.type == JJ_FLOAT; }

double tn__jj_number(jj_value v) {
    int64_t i;
    return tn__jj_as_int(v, &i) ? (double)i : v.as.real;
}

int64_t tn__jj_need_int(jj *j, jj_value v, const char *what) {
    int64_t i;
    if (!tn__jj_as_int(v, &i))
        tn__jj_fail(j, TN_E_INVALID, "%s must be an integer, not %s", what, tn__jj_type_name(v));
    return i;
}

jj_string *tn__jj_need_string(jj *j, jj_value v, const char *what) {
    if (v.type != JJ_STRING) tn__jj_fail(j, TN_E_INVALID, "%s must be a string, not %s", what, tn__jj_type_name(v));
    return v.as.string;
}

bool tn__jj_same_text(const jj_string *s, const char *text) {
    size_t length = strlen(text);
    return s->length == length && memcmp(s->data, text, length) == 0;
}

bool tn__jj_same_string(const jj_string *a, const jj_string *b) {
    return a == b || (a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0));
}

/* Exact comparison of an integer with a double; converting the integer would round it. */
static int compare_int_real(int64_t i, double d) {
    if (d != d) return 2; /* not ordered */
    if (d >= 0x1p63) return -1;
    if (d < -0x1p63) return 1;
    int64_t whole = (int64_t)d;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = d - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int compare_numbers(jj_value a, jj_value b) {
    int64_t x, y;
    bool a_int = tn__jj_as_int(a, &x), b_int = tn__jj_as_int(b, &y);
    if (a_int && b_int) return x < y ? -1 : x > y;
    if (a_int) return compare_int_real(x, b.as.real);
    if (b_int) {
        int order = compare_int_real(y, a.as.real);
        return order == 2 ? 2 : -order;
    }
    if (a.as.real != a.as.real || b.as.real != b.as.real) return 2;
    return a.as.real < b.as.real ? -1 : a.as.real > b.as.real;
}

static bool equal_lists(jj *j, const jj_list *a, const jj_list *b) {
    if (a == b) return true;
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (!tn__jj_equal(j, a->items[i], b->items[i])) return false;
    return true;
}

static bool equal_dicts(jj *j, const jj_dict *a, const jj_dict *b) {
    if (a == b) return true;
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const jj_entry *other = tn__jj_dict_find(j, b, a->entries[i].key);
        if (!other || !tn__jj_equal(j, a->entries[i].value, other->value)) return false;
    }
    return true;
}

bool tn__jj_equal(jj *j, jj_value a, jj_value b) {
    tn__jj_charge(j, 1);
    if (tn__jj_is_number(a) && tn__jj_is_number(b)) return compare_numbers(a, b) == 0;
    if (a.type != b.type) return false;
    bool equal = false;
    tn__jj_enter(j);
    switch (a.type) {
    case JJ_UNDEFINED:
    case JJ_NONE: equal = true; break;
    case JJ_STRING:
        jj_charge_bytes(j, a.as.string->length);
        equal = tn__jj_same_string(a.as.string, b.as.string);
        break;
    case JJ_LIST:
    case JJ_TUPLE: equal = equal_lists(j, a.as.list, b.as.list); break;
    case JJ_DICT: equal = equal_dicts(j, a.as.dict, b.as.dict); break;
    case JJ_RANGE:
        equal = a.as.range->count == b.as.range->count &&
                (a.as.range->count == 0 || (a.as.range->start == b.as.range->start &&
                                            (a.as.range->count == 1 || a.as.range->step == b.as.range->step)));
        break;
    default: equal = a.as.string == b.as.string; break; /* the same object */
    }
    jj_leave(j);
    return equal;
}

int tn__jj_compare(jj *j, jj_value a, jj_value b, const char *op) {
    tn__jj_charge(j, 1);
    if (tn__jj_is_number(a) && tn__jj_is_number(b)) return compare_numbers(a, b);
    if (a.type == JJ_STRING && b.type == JJ_STRING) {
        /* UTF-8 bytes have the same order as code points. */
        const jj_string *x = a.as.string, *y = b.as.string;
        size_t n = x->length < y->length ? x->length : y->length;
        jj_charge_bytes(j, n);
        int order = n ? memcmp(x->data, y->data, n) : 0;
        if (order) return order < 0 ? -1 : 1;
        return x->length < y->length ? -1 : x->length > y->length;
    }
    if (a.type == b.type && (a.type == JJ_LIST || a.type == JJ_TUPLE)) {
        const jj_list *x = a.as.list, *y = b.as.list;
        tn__jj_enter(j);
        for (size_t i = 0; i < x->count && i < y->count; i++)
            if (!tn__jj_equal(j, x->items[i], y->items[i])) {
                int order = tn__jj_compare(j, x->items[i], y->items[i], op);
                jj_leave(j);
                return order;
            }
        jj_leave(j);
        return x->count < y->count ? -1 : x->count > y->count;
    }
    if (a.type == JJ_UNDEFINED || b.type == JJ_UNDEFINED) {
        const jj_string *why = a.type == JJ_UNDEFINED ? a.as.string : b.as.string;
        tn__jj_fail(j, TN_E_INVALID, "%.*s", why ? (int)why->length : 9, why ? why->data : "undefined");
    }
    tn__jj_fail(j, TN_E_INVALID, "'%s' not supported between instances of '%s' and '%s'", op, tn__jj_type_name(a),
                tn__jj_type_name(b));
}

bool tn__jj_has_length(jj_value v) {
    switch (v.type) {
    case JJ_UNDEFINED:
    case JJ_STRING:
    case JJ_LIST:
    case JJ_TUPLE:
    case JJ_DICT:
    case JJ_RANGE:
    case JJ_VIEW:
    case JJ_LOOP: return true;
    default: return false;
    }
}

int64_t tn__jj_length(jj *j, jj_value v) {
    switch (v.type) {
    case JJ_UNDEFINED: return 0;
    case JJ_STRING: return (int64_t)tn__jj_chars(j, v.as.string);
    case JJ_LIST:
    case JJ_TUPLE: return (int64_t)v.as.list->count;
    case JJ_DICT: return (int64_t)v.as.dict->count;
    case JJ_RANGE: return v.as.range->count;
    case JJ_VIEW: return (int64_t)v.as.view->dict->count;
    case JJ_LOOP: {
        jj_string name = {.data = "length", .length = 6, .chars = 6};
        return tn__jj_loop_attribute(j, v, &name).as.integer;
    }
    default: tn__jj_fail(j, TN_E_INVALID, "object of type '%s' has no len()", tn__jj_type_name(v));
    }
}

bool tn__jj_iterable(jj_value v) { return v.type == JJ_GENERATOR || (tn__jj_has_length(v) && v.type != JJ_LOOP); }

void tn__jj_cursor(jj *j, jj_value v, jj_cursor *cursor) {
    if (!tn__jj_iterable(v)) tn__jj_fail(j, TN_E_INVALID, "'%s' object is not iterable", tn__jj_type_name(v));
    *cursor = (jj_cursor){.source = v};
}

bool tn__jj_next(jj *j, jj_cursor *cursor, jj_value *out) {
    tn__jj_charge(j, 1);
    jj_value v = cursor->source;
    switch (v.type) {
    case JJ_STRING: {
        const jj_string *s = v.as.string;
        if (cursor->index >= s->length) return false;
        const char *at = s->data + cursor->index;
        uint32_t code;
        size_t n = tn__jj_decode(at, s->data + s->length, &code);
        *out = tn__jj_text(j, at, n);
        cursor->index += n;
        return true;
    }
    case JJ_LIST:
    case JJ_TUPLE:
        if (cursor->index >= v.as.list->count) return false;
        *out = v.as.list->items[cursor->index++];
        return true;
    case JJ_GENERATOR:
        if (v.as.list->position >= v.as.list->count) return false;
        *out = v.as.list->items[v.as.list->position++];
        return true;
    case JJ_DICT:
        if (cursor->index >= v.as.dict->count) return false;
        *out = v.as.dict->entries[cursor->index++].key;
        return true;
    case JJ_VIEW: {
        if (cursor->index >= v.as.view->dict->count) return false;
        const jj_entry *entry = &v.as.view->dict->entries[cursor->index++];
        *out = v.as.view->kind == 'k'   ? entry->key
               : v.as.view->kind == 'v' ? entry->value
                                        : tn__jj_pair(j, entry->key, entry->value);
        return true;
    }
    case JJ_RANGE:
        if ((int64_t)cursor->index >= v.as.range->count) return false;
        *out = jj_int(v.as.range->start + (int64_t)cursor->index++ * v.as.range->step);
        return true;
    default: return false; /* undefined: no items */
    }
}

jj_list *tn__jj_collect(jj *j, jj_value v) {
    jj_cursor cursor;
    jj_value item;
    tn__jj_cursor(j, v, &cursor);
    jj_list *list = tn__jj_new_list(j, tn__jj_has_length(v) && v.type != JJ_STRING ? (size_t)tn__jj_length(j, v) : 0);
    while (tn__jj_next(j, &cursor, &item)) tn__jj_append(j, list, item);
    return list;
}
