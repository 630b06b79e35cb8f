/* The tests (x is …) and the global functions of templates. */
#include <stdio.h>
#include <stdlib.h>

#include "text/template/engine.h"

#define TEST(name, expression)                                                                                       \
    static jj_value test_##name(jj *j, jj_value v, const jj_args *args) {                                            \
        tn__jj_bind(j, args, #name, "", 0, NULL);                                                                    \
        return jj_bool(expression);                                                                                  \
    }
TEST(defined, v.type != JJ_UNDEFINED)
TEST(undefined, v.type == JJ_UNDEFINED)
TEST(none, v.type == JJ_NONE)
TEST(boolean, v.type == JJ_BOOL)
TEST(true, v.type == JJ_BOOL && v.as.boolean)
TEST(false, v.type == JJ_BOOL && !v.as.boolean)
TEST(integer, v.type == JJ_INT)
TEST(float, v.type == JJ_FLOAT)
TEST(number, tn__jj_is_number(v))
TEST(string, v.type == JJ_STRING)
TEST(mapping, v.type == JJ_DICT)
TEST(sequence, v.type == JJ_STRING || v.type == JJ_LIST || v.type == JJ_TUPLE || v.type == JJ_DICT ||
                   v.type == JJ_RANGE || v.type == JJ_UNDEFINED)
TEST(iterable, tn__jj_iterable(v) || v.type == JJ_LOOP)
TEST(callable, v.type == JJ_FUNCTION || v.type == JJ_MACRO || v.type == JJ_JOINER || v.type == JJ_LOOP)
TEST(escaped, v.type == JJ_STRING && v.as.string->safe)

static jj_value test_even(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "even", "", 0, NULL);
    return jj_bool(tn__jj_equal(j, tn__jj_binary(j, '%', v, jj_int(2)), jj_int(0)));
}
static jj_value test_odd(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "odd", "", 0, NULL);
    return jj_bool(tn__jj_equal(j, tn__jj_binary(j, '%', v, jj_int(2)), jj_int(1)));
}
static jj_value test_divisibleby(jj *j, jj_value v, const jj_args *args) {
    jj_value by;
    tn__jj_bind(j, args, "divisibleby", "num", 1, &by);
    return jj_bool(tn__jj_equal(j, tn__jj_binary(j, '%', v, by), jj_int(0)));
}
static jj_value case_test(jj *j, jj_value v, const jj_args *args, const char *method) {
    jj_string *s = tn__jj_to_string(j, v), name = {.data = method, .length = strlen(method), .chars = SIZE_MAX};
    return tn__jj_call(j, tn__jj_method(j, jj_str(s), &name), args);
}
static jj_value test_lower(jj *j, jj_value v, const jj_args *args) { return case_test(j, v, args, "islower"); }
static jj_value test_upper(jj *j, jj_value v, const jj_args *args) { return case_test(j, v, args, "isupper"); }

static jj_value order_test(jj *j, jj_value v, const jj_args *args, const char *op) {
    jj_value other;
    tn__jj_bind(j, args, "comparison", "other", 1, &other);
    int order = tn__jj_compare(j, v, other, op);
    bool equal = op[1] == '=';
    return jj_bool(order == (op[0] == '<' ? -1 : 1) || (equal && order == 0));
}
static jj_value test_lt(jj *j, jj_value v, const jj_args *args) { return order_test(j, v, args, "<"); }
static jj_value test_le(jj *j, jj_value v, const jj_args *args) { return order_test(j, v, args, "<="); }
static jj_value test_gt(jj *j, jj_value v, const jj_args *args) { return order_test(j, v, args, ">"); }
static jj_value test_ge(jj *j, jj_value v, const jj_args *args) { return order_test(j, v, args, ">="); }
static jj_value test_eq(jj *j, jj_value v, const jj_args *args) {
    jj_value other;
    tn__jj_bind(j, args, "eq", "other", 1, &other);
    return jj_bool(tn__jj_equal(j, v, other));
}
static jj_value test_ne(jj *j, jj_value v, const jj_args *args) { return jj_bool(!test_eq(j, v, args).as.boolean); }
static jj_value test_in(jj *j, jj_value v, const jj_args *args) {
    jj_value container;
    tn__jj_bind(j, args, "in", "seq", 1, &container);
    return jj_bool(tn__jj_contains(j, container, v));
}
static jj_value test_sameas(jj *j, jj_value v, const jj_args *args) {
    jj_value other;
    tn__jj_bind(j, args, "sameas", "other", 1, &other);
    if (v.type != other.type) return jj_bool(false);
    if (v.type == JJ_FLOAT) return jj_bool(v.as.real == other.as.real);
    if (v.type == JJ_STRING) return jj_bool(tn__jj_same_string(v.as.string, other.as.string));
    if (v.type <= JJ_INT) return jj_bool(tn__jj_equal(j, v, other));
    return jj_bool(v.as.list == other.as.list);
}
static jj_value test_filter(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "filter", "", 0, NULL);
    return jj_bool(tn__jj_find_filter(tn__jj_need_string(j, v, "a filter's name")));
}
static jj_value test_test(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "test", "", 0, NULL);
    return jj_bool(tn__jj_find_test(tn__jj_need_string(j, v, "a test's name")));
}

static const jj_named tests[] = {
    {"!=", test_ne, 0},
    {"<", test_lt, 0},
    {"<=", test_le, 0},
    {"==", test_eq, 0},
    {">", test_gt, 0},
    {">=", test_ge, 0},
    {"boolean", test_boolean, 0},
    {"callable", test_callable, 0},
    {"defined", test_defined, 0},
    {"divisibleby", test_divisibleby, 0},
    {"eq", test_eq, 0},
    {"equalto", test_eq, 0},
    {"escaped", test_escaped, 0},
    {"even", test_even, 0},
    {"false", test_false, 0},
    {"filter", test_filter, 0},
    {"float", test_float, 0},
    {"ge", test_ge, 0},
    {"greaterthan", test_gt, 0},
    {"gt", test_gt, 0},
    {"in", test_in, 0},
    {"integer", test_integer, 0},
    {"iterable", test_iterable, 0},
    {"le", test_le, 0},
    {"lessthan", test_lt, 0},
    {"lower", test_lower, 0},
    {"lt", test_lt, 0},
    {"mapping", test_mapping, 0},
    {"ne", test_ne, 0},
    {"none", test_none, 0},
    {"number", test_number, 0},
    {"odd", test_odd, 0},
    {"sameas", test_sameas, 0},
    {"sequence", test_sequence, 0},
    {"string", test_string, 0},
    {"test", test_test, 0},
    {"true", test_true, 0},
    {"undefined", test_undefined, 0},
    {"upper", test_upper, 0},
    {NULL, NULL, 0},
};

const jj_named *tn__jj_find_test(const jj_string *name) { return tn__jj_search(tests, name); }

bool tn__jj_test(jj *j, const jj_string *name, jj_value v, const jj_args *args) {
    const jj_named *test = tn__jj_find_test(name);
    if (!test)
        tn__jj_fail(j, TN_E_UNSUPPORTED, "no test named '%.*s'", name->length > 60 ? 60 : (int)name->length,
                    name->data);
    return tn__jj_truth(j, test->call(j, v, args));
}

const jj_named *tn__jj_search(const jj_named *table, const jj_string *name) {
    for (; table->name; table++)
        if (tn__jj_same_text(name, table->name)) return table;
    return NULL;
}

/* ---- Global functions ---- */

static jj_value make_range(jj *j, jj_value self, const jj_args *args) {
    int64_t bounds[3] = {0, 0, 1};
    (void)self;
    if (args->keyword_count || args->count < 1 || args->count > 3)
        tn__jj_fail(j, TN_E_INVALID, "range() takes one to three positional arguments");
    for (size_t i = 0; i < args->count; i++) bounds[i] = tn__jj_need_int(j, args->values[i], "a bound of range()");
    if (args->count == 1) bounds[1] = bounds[0], bounds[0] = 0;
    int64_t step = bounds[2];
    if (step == 0) tn__jj_fail(j, TN_E_INVALID, "range() step must not be zero");
    __int128 span = step > 0 ? (__int128)bounds[1] - bounds[0] : (__int128)bounds[0] - bounds[1];
    __int128 size = step > 0 ? step : -(__int128)step;
    __int128 count = span > 0 ? (span + size - 1) / size : 0;
    if (count > 100000) tn__jj_fail(j, TN_E_LIMIT, "range() is longer than 100000");
    jj_range *range = tn__jj_alloc(j, sizeof *range);
    *range = (jj_range){.start = bounds[0], .step = step, .count = (int64_t)count, .stop = bounds[1]};
    return (jj_value){.type = JJ_RANGE, .as.range = range};
}

static void fill_dict(jj *j, jj_dict *dict, const jj_args *args) {
    jj_string name = {.data = "update", .length = 6, .chars = 6};
    bool mutation = j->allow_mutation;
    j->allow_mutation = true; /* the dict is new */
    jj_value update = tn__jj_method(j, jj_dicted(dict), &name);
    j->allow_mutation = mutation;
    tn__jj_call(j, update, args);
}

static jj_value make_dict(jj *j, jj_value self, const jj_args *args) {
    jj_dict *dict = tn__jj_new_dict(j);
    (void)self;
    fill_dict(j, dict, args);
    return jj_dicted(dict);
}

static jj_value make_namespace(jj *j, jj_value self, const jj_args *args) {
    jj_dict *dict = tn__jj_new_dict(j);
    (void)self;
    fill_dict(j, dict, args);
    return (jj_value){.type = JJ_NAMESPACE, .as.dict = dict};
}

static jj_value make_cycler(jj *j, jj_value self, const jj_args *args) {
    (void)self;
    if (!args->count || args->keyword_count) tn__jj_fail(j, TN_E_INVALID, "cycler() needs at least one item");
    jj_cycler *cycler = tn__jj_alloc(j, sizeof *cycler);
    cycler->items = tn__jj_new_list(j, args->count);
    for (size_t i = 0; i < args->count; i++) tn__jj_append(j, cycler->items, args->values[i]);
    return (jj_value){.type = JJ_CYCLER, .as.cycler = cycler};
}

static jj_value make_joiner(jj *j, jj_value self, const jj_args *args) {
    jj_value separator;
    (void)self;
    tn__jj_bind(j, args, "joiner", "sep", 0, &separator);
    jj_joiner *joiner = tn__jj_alloc(j, sizeof *joiner);
    joiner->separator = jj_is_absent(separator) ? tn__jj_literal(j, ", ") : separator;
    return (jj_value){.type = JJ_JOINER, .as.joiner = joiner};
}

static jj_value raise_exception(jj *j, jj_value self, const jj_args *args) {
    jj_value message;
    (void)self;
    tn__jj_bind(j, args, "raise_exception", "message", 1, &message);
    const jj_string *s = tn__jj_to_string(j, message);
    tn__jj_fail(j, TN_E_INVALID, "%.*s", s->length > 400 ? 400 : (int)s->length, s->data ? s->data : "");
}

static jj_value strftime_now(jj *j, jj_value self, const jj_args *args) {
    jj_value format;
    char text[1024];
    (void)self;
    tn__jj_bind(j, args, "strftime_now", "format", 1, &format);
    const jj_string *s = tn__jj_need_string(j, format, "a time format");
    if (!s->length) return format;
    const jj_string *ended = tn__jj_copy_string(j, s->data, s->length);
    struct tm now = j->now;
    size_t n = strftime(text, sizeof text, ended->data, &now);
    /* 0 means that the text is too long, or that it is empty, as %p in some locales. */
    if (n == 0 && s->length > sizeof text / 8) tn__jj_fail(j, TN_E_LIMIT, "strftime_now: the text is too long");
    return jj_str(tn__jj_copy_string(j, text, n));
}

static const jj_named globals[] = {
    {"cycler", make_cycler, 0},
    {"dict", make_dict, 0},
    {"joiner", make_joiner, 0},
    {"namespace", make_namespace, 0},
    {"raise_exception", raise_exception, 0},
    {"range", make_range, 0},
    {"strftime_now", strftime_now, 0},
    {NULL, NULL, 0},
};

const jj_named *tn__jj_find_global(const jj_string *name) { return tn__jj_search(globals, name); }
