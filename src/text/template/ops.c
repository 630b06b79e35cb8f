/* Operators with Python's rules: arithmetic, membership, attributes, items and slices. */
#include <math.h>

#include "text/template/engine.h"

static _Noreturn void fail_undefined(jj *j, jj_value v) {
    const jj_string *why = v.as.string;
    tn__jj_fail(j, TN_E_INVALID, "%.*s", why ? (int)why->length : 18, why ? why->data : "value is undefined");
}

static _Noreturn void fail_operands(jj *j, const char *op, jj_value a, jj_value b) {
    if (a.type == JJ_UNDEFINED) fail_undefined(j, a);
    if (b.type == JJ_UNDEFINED) fail_undefined(j, b);
    tn__jj_fail(j, TN_E_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'", op, tn__jj_type_name(a),
                tn__jj_type_name(b));
}

static _Noreturn void fail_overflow(jj *j) { tn__jj_fail(j, TN_E_UNSUPPORTED, "an integer result beyond 64 bits"); }

static jj_value floor_divide(jj *j, jj_value a, jj_value b, bool remainder) {
    int64_t x, y;
    if (tn__jj_number(b) == 0) tn__jj_fail(j, TN_E_INVALID, "division by zero");
    if (tn__jj_as_int(a, &x) && tn__jj_as_int(b, &y)) {
        if (y == -1) { /* INT64_MIN / -1 traps */
            if (remainder) return jj_int(0);
            if (x == INT64_MIN) fail_overflow(j);
            return jj_int(-x);
        }
        int64_t q = x / y, r = x % y;
        if (r != 0 && (r < 0) != (y < 0)) q--, r += y;
        return jj_int(remainder ? r : q);
    }
    double p = tn__jj_number(a), d = tn__jj_number(b), r = fmod(p, d);
    if (r != 0 && (r < 0) != (d < 0)) r += d;
    return jj_real(remainder ? r : floor((p - r) / d + 0.5));
}

static jj_value raise_to_power(jj *j, jj_value a, jj_value b) {
    int64_t base, exponent, result = 1;
    if (tn__jj_as_int(a, &base) && tn__jj_as_int(b, &exponent) && exponent >= 0) {
        while (exponent) {
            if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) fail_overflow(j);
            exponent >>= 1;
            if (exponent && __builtin_mul_overflow(base, base, &base)) fail_overflow(j);
        }
        return jj_int(result);
    }
    double x = tn__jj_number(a), y = tn__jj_number(b);
    if (x == 0 && y < 0) tn__jj_fail(j, TN_E_INVALID, "0.0 cannot be raised to a negative power");
    double r = pow(x, y);
    if (isnan(r) && !isnan(x) && !isnan(y)) tn__jj_fail(j, TN_E_UNSUPPORTED, "complex numbers are not supported");
    if (isinf(r) && !isinf(x) && !isinf(y)) tn__jj_fail(j, TN_E_INVALID, "numerical result out of range");
    return jj_real(r);
}

static jj_value repeat_sequence(jj *j, jj_value sequence, int64_t times) {
    if (times < 0) times = 0;
    if (sequence.type == JJ_STRING) {
        jj_buffer b = {0};
        const jj_string *s = sequence.as.string;
        if (s->length && (uint64_t)times > j->limits.max_output / s->length)
            tn__jj_fail(j, TN_E_LIMIT, "a text grows beyond %zu bytes", j->limits.max_output);
        for (int64_t i = 0; s->length && i < times; i++) tn__jj_put(j, &b, s->data, s->length);
        jj_value v = tn__jj_from_buffer(j, &b);
        v.as.string->safe = s->safe;
        return v;
    }
    jj_list *list = tn__jj_new_list(j, 0), *from = sequence.as.list;
    for (int64_t i = 0; from->count && i < times; i++)
        for (size_t k = 0; k < from->count; k++) tn__jj_append(j, list, from->items[k]);
    return jj_listed(sequence.type, list);
}

static jj_value add_strings(jj *j, jj_value a, jj_value b) {
    bool safe = a.as.string->safe || b.as.string->safe;
    const jj_string *x = safe ? tn__jj_escape(j, a) : a.as.string, *y = safe ? tn__jj_escape(j, b) : b.as.string;
    jj_buffer buffer = {0};
    tn__jj_put(j, &buffer, x->data, x->length);
    tn__jj_put(j, &buffer, y->data, y->length);
    jj_value v = tn__jj_from_buffer(j, &buffer);
    v.as.string->safe = safe;
    return v;
}

static jj_value add_values(jj *j, jj_value a, jj_value b) {
    if (a.type == JJ_STRING && b.type == JJ_STRING) return add_strings(j, a, b);
    if (a.type == b.type && (a.type == JJ_LIST || a.type == JJ_TUPLE)) {
        jj_list *list = tn__jj_new_list(j, a.as.list->count + b.as.list->count);
        for (size_t i = 0; i < a.as.list->count; i++) tn__jj_append(j, list, a.as.list->items[i]);
        for (size_t i = 0; i < b.as.list->count; i++) tn__jj_append(j, list, b.as.list->items[i]);
        return jj_listed(a.type, list);
    }
    if (a.type == JJ_STRING && b.type != JJ_UNDEFINED)
        tn__jj_fail(j, TN_E_INVALID, "can only concatenate str (not \"%s\") to str", tn__jj_type_name(b));
    fail_operands(j, "+", a, b);
}

static bool is_repeatable(jj_value v) { return v.type == JJ_STRING || v.type == JJ_LIST || v.type == JJ_TUPLE; }

jj_value tn__jj_binary(jj *j, int op, jj_value a, jj_value b) {
    int64_t x, y, r;
    bool numbers = tn__jj_is_number(a) && tn__jj_is_number(b),
         integers = tn__jj_as_int(a, &x) && tn__jj_as_int(b, &y);
    switch (op) {
    case '+':
        if (!numbers) return add_values(j, a, b);
        if (!integers) return jj_real(tn__jj_number(a) + tn__jj_number(b));
        if (__builtin_add_overflow(x, y, &r)) fail_overflow(j);
        return jj_int(r);
    case '-':
        if (!numbers) fail_operands(j, "-", a, b);
        if (!integers) return jj_real(tn__jj_number(a) - tn__jj_number(b));
        if (__builtin_sub_overflow(x, y, &r)) fail_overflow(j);
        return jj_int(r);
    case '*':
        if (is_repeatable(a) && tn__jj_as_int(b, &y)) return repeat_sequence(j, a, y);
        if (is_repeatable(b) && tn__jj_as_int(a, &x)) return repeat_sequence(j, b, x);
        if (!numbers) fail_operands(j, "*", a, b);
        if (!integers) return jj_real(tn__jj_number(a) * tn__jj_number(b));
        if (__builtin_mul_overflow(x, y, &r)) fail_overflow(j);
        return jj_int(r);
    case '/':
        if (!numbers) fail_operands(j, "/", a, b);
        if (tn__jj_number(b) == 0) tn__jj_fail(j, TN_E_INVALID, "division by zero");
        return jj_real(tn__jj_number(a) / tn__jj_number(b));
    case 'f':
        if (!numbers) fail_operands(j, "//", a, b);
        return floor_divide(j, a, b, false);
    case '%':
        if (a.type == JJ_STRING) return tn__jj_percent(j, a.as.string, b);
        if (!numbers) fail_operands(j, "%", a, b);
        return floor_divide(j, a, b, true);
    default:
        if (!numbers) fail_operands(j, "**", a, b);
        return raise_to_power(j, a, b);
    }
}

jj_value tn__jj_negate(jj *j, jj_value v) {
    int64_t i;
    if (v.type == JJ_FLOAT) return jj_real(-v.as.real);
    if (v.type == JJ_UNDEFINED) fail_undefined(j, v);
    if (!tn__jj_as_int(v, &i))
        tn__jj_fail(j, TN_E_INVALID, "bad operand type for unary -: '%s'", tn__jj_type_name(v));
    if (i == INT64_MIN) fail_overflow(j);
    return jj_int(-i);
}

bool tn__jj_contains(jj *j, jj_value container, jj_value item) {
    if (container.type == JJ_STRING) {
        if (item.type != JJ_STRING)
            tn__jj_fail(j, TN_E_INVALID, "'in <string>' requires string as left operand, not %s",
                        tn__jj_type_name(item));
        const jj_string *s = container.as.string, *part = item.as.string;
        jj_charge_bytes(j, s->length);
        return part->length == 0 || (s->length && memmem(s->data, s->length, part->data, part->length));
    }
    if (container.type == JJ_DICT) return tn__jj_dict_find(j, container.as.dict, item) != NULL;
    if (container.type == JJ_VIEW && container.as.view->kind == 'k')
        return tn__jj_dict_find(j, container.as.view->dict, item) != NULL;
    if (!tn__jj_iterable(container))
        tn__jj_fail(j, TN_E_INVALID, "argument of type '%s' is not iterable", tn__jj_type_name(container));
    jj_cursor cursor;
    jj_value other;
    tn__jj_cursor(j, container, &cursor);
    while (tn__jj_next(j, &cursor, &other))
        if (tn__jj_equal(j, other, item)) return true;
    return false;
}

/* ---- Attributes and items ---- */

static jj_value bind_method(jj *j, const jj_named *table, const jj_string *name, jj_value self) {
    const jj_named *method = tn__jj_search(table, name);
    if (!method) return jj_absent();
    if (method->mutates && !j->allow_mutation)
        return tn__jj_undefined(j, "access to attribute '%s' of '%s' object is unsafe", method->name,
                                tn__jj_type_name(self));
    jj_function *function = tn__jj_alloc(j, sizeof *function);
    *function = (jj_function){.name = method->name, .call = method->call, .self = self};
    return (jj_value){.type = JJ_FUNCTION, .as.function = function};
}

static jj_value macro_attribute(jj *j, const jj_macro *macro, const jj_string *name) {
    const jj_node *node = macro->node;
    if (tn__jj_same_text(name, "name")) return node->name ? jj_str(node->name) : jj_none();
    if (tn__jj_same_text(name, "caller")) return jj_bool(node->flags & JJ_USES_CALLER);
    if (tn__jj_same_text(name, "catch_kwargs")) return jj_bool(node->flags & JJ_USES_KWARGS);
    if (tn__jj_same_text(name, "catch_varargs")) return jj_bool(node->flags & JJ_USES_VARARGS);
    if (!tn__jj_same_text(name, "arguments")) return jj_absent();
    jj_list *names = tn__jj_new_list(j, 0);
    for (const jj_node *parameter = node->list; parameter; parameter = parameter->next)
        tn__jj_append(j, names, jj_str(parameter->name));
    return jj_listed(JJ_TUPLE, names);
}

static jj_value cycler_next(jj *j, jj_value self, const jj_args *args) {
    tn__jj_bind(j, args, "next", "", 0, NULL);
    jj_cycler *cycler = self.as.cycler;
    jj_value item = cycler->items->items[cycler->position];
    cycler->position = (cycler->position + 1) % cycler->items->count;
    return item;
}
static jj_value cycler_reset(jj *j, jj_value self, const jj_args *args) {
    tn__jj_bind(j, args, "reset", "", 0, NULL);
    self.as.cycler->position = 0;
    return jj_none();
}
static const jj_named cycler_methods[] = {{"next", cycler_next, 0}, {"reset", cycler_reset, 0}, {NULL, NULL, 0}};

jj_value tn__jj_method(jj *j, jj_value object, const jj_string *name) {
    switch (object.type) {
    case JJ_STRING: return bind_method(j, tn__jj_string_methods, name, object);
    case JJ_LIST: return bind_method(j, tn__jj_list_methods, name, object);
    case JJ_TUPLE:
        if (object.as.list->group && tn__jj_same_text(name, "grouper")) return object.as.list->items[0];
        if (object.as.list->group && tn__jj_same_text(name, "list")) return object.as.list->items[1];
        return bind_method(j, tn__jj_tuple_methods, name, object);
    case JJ_DICT: return bind_method(j, tn__jj_dict_methods, name, object);
    case JJ_NAMESPACE: {
        jj_entry *entry = tn__jj_dict_text(j, object.as.dict, name);
        return entry ? entry->value : jj_absent();
    }
    case JJ_LOOP: return tn__jj_loop_attribute(j, object, name);
    case JJ_MACRO: return macro_attribute(j, object.as.macro, name);
    case JJ_CYCLER:
        if (tn__jj_same_text(name, "current")) return object.as.cycler->items->items[object.as.cycler->position];
        return bind_method(j, cycler_methods, name, object);
    default: return jj_absent();
    }
}

static jj_value undefined_item(jj *j, jj_value object, jj_value key) {
    if (key.type == JJ_STRING) {
        const jj_string *s = key.as.string;
        return tn__jj_undefined(j, "'%s object' has no attribute '%.*s'", tn__jj_type_name(object),
                                s->length > 100 ? 100 : (int)s->length, s->data ? s->data : "");
    }
    jj_string *s = tn__jj_to_string(j, key);
    return tn__jj_undefined(j, "%s object has no element %.*s", tn__jj_type_name(object),
                            s->length > 100 ? 100 : (int)s->length, s->data ? s->data : "");
}

/* The item, or absent if there is none for any reason. */
static jj_value item_or_absent(jj *j, jj_value object, jj_value key) {
    int64_t index, count;
    switch (object.type) {
    case JJ_DICT: {
        if (key.type == JJ_LIST || key.type == JJ_DICT) return jj_absent(); /* unhashable */
        jj_entry *entry = tn__jj_dict_find(j, object.as.dict, key);
        return entry ? entry->value : jj_absent();
    }
    case JJ_STRING:
    case JJ_LIST:
    case JJ_TUPLE:
    case JJ_RANGE: break;
    default: return jj_absent();
    }
    if (!tn__jj_as_int(key, &index)) return jj_absent();
    count = tn__jj_length(j, object);
    if (index < 0) index += count;
    if (index < 0 || index >= count) return jj_absent();
    if (object.type == JJ_STRING) return tn__jj_slice_chars(j, object.as.string, (size_t)index, (size_t)index + 1);
    if (object.type == JJ_RANGE) return jj_int(object.as.range->start + index * object.as.range->step);
    return object.as.list->items[index];
}

jj_value tn__jj_attribute(jj *j, jj_value object, const jj_string *name) {
    if (object.type == JJ_UNDEFINED) fail_undefined(j, object);
    jj_string copy = *name;
    jj_value key = jj_str(&copy);
    jj_value v = tn__jj_method(j, object, name);
    if (jj_is_absent(v)) v = item_or_absent(j, object, key);
    return jj_is_absent(v) ? undefined_item(j, object, key) : v;
}

jj_value tn__jj_item(jj *j, jj_value object, jj_value key) {
    if (object.type == JJ_UNDEFINED) fail_undefined(j, object);
    jj_value v = item_or_absent(j, object, key);
    if (jj_is_absent(v) && key.type == JJ_STRING) v = tn__jj_method(j, object, key.as.string);
    return jj_is_absent(v) ? undefined_item(j, object, key) : v;
}

/* ---- Slices ---- */

static int64_t clamp_bound(jj *j, jj_value v, int64_t absent, int64_t count, int64_t low, int64_t high) {
    if (jj_is_absent(v) || v.type == JJ_NONE) return absent;
    int64_t i = tn__jj_need_int(j, v, "a slice bound");
    if (i < 0) i = i < -count ? low : i + count;
    return i < low ? low : i > high ? high : i;
}

jj_value tn__jj_slice(jj *j, jj_value object, jj_value start, jj_value stop, jj_value step) {
    if (object.type == JJ_UNDEFINED) fail_undefined(j, object);
    if (object.type != JJ_STRING && object.type != JJ_LIST && object.type != JJ_TUPLE && object.type != JJ_RANGE)
        return tn__jj_undefined(j, "%s object cannot be sliced", tn__jj_type_name(object));
    int64_t by = jj_is_absent(step) || step.type == JJ_NONE ? 1 : tn__jj_need_int(j, step, "a slice step");
    if (by == 0) tn__jj_fail(j, TN_E_INVALID, "slice step cannot be zero");
    int64_t count = tn__jj_length(j, object), low = by < 0 ? -1 : 0, high = by < 0 ? count - 1 : count;
    int64_t from = clamp_bound(j, start, by < 0 ? high : low, count, low, high);
    int64_t to = clamp_bound(j, stop, by < 0 ? low : high, count, low, high);
    if (object.type == JJ_STRING && by == 1)
        return tn__jj_slice_chars(j, object.as.string, (size_t)from, (size_t)(to < from ? from : to));
    jj_list *items = object.type == JJ_LIST || object.type == JJ_TUPLE ? object.as.list : tn__jj_collect(j, object);
    jj_list *list = tn__jj_new_list(j, 0);
    /* A step beyond the length takes one item. Clamping it prevents an overflow of the sum. */
    if (by > count + 1) by = count + 1;
    if (by < -count - 1) by = -count - 1;
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by) tn__jj_append(j, list, items->items[i]);
    if (object.type != JJ_STRING) return jj_listed(object.type == JJ_TUPLE ? JJ_TUPLE : JJ_LIST, list);
    jj_string nothing = {.data = "", .length = 0, .chars = 0};
    jj_value v = tn__jj_join(j, &nothing, jj_listed(JJ_LIST, list));
    v.as.string->safe = object.as.string->safe;
    return v;
}
