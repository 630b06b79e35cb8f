/* Filters on single values: defaults, numbers, lengths, JSON. Also the lookup in all tables of filters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template/engine.h"

static jj_value filter_default(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2];
    tn__jj_bind(j, args, "default", "default_value boolean", 0, out);
    jj_value instead = jj_is_absent(out[0]) ? tn__jj_literal(j, "") : out[0];
    return v.type == JJ_UNDEFINED || (tn__jj_truth(j, out[1]) && !tn__jj_truth(j, v)) ? instead : v;
}

static jj_value filter_length(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "length", "", 0, NULL);
    return jj_int(tn__jj_length(j, v));
}

static jj_value filter_string(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "string", "", 0, NULL);
    return jj_str(tn__jj_to_string(j, v));
}

static jj_value filter_attr(jj *j, jj_value v, const jj_args *args) {
    jj_value name;
    tn__jj_bind(j, args, "attr", "name", 1, &name);
    const jj_string *s = tn__jj_to_string(j, name);
    jj_value found = tn__jj_method(j, v, s);
    if (!jj_is_absent(found)) return found;
    return tn__jj_undefined(j, "'%s object' has no attribute '%.*s'", tn__jj_type_name(v),
                            s->length > 60 ? 60 : (int)s->length, s->data ? s->data : "");
}

/* ---- Numbers ---- */

static jj_value filter_abs(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "abs", "", 0, NULL);
    if (!tn__jj_is_number(v)) tn__jj_fail(j, TN_E_INVALID, "bad operand type for abs(): '%s'", tn__jj_type_name(v));
    if (v.type == JJ_FLOAT) return jj_real(fabs(v.as.real));
    int64_t i = tn__jj_need_int(j, v, "a number");
    return i < 0 ? tn__jj_negate(j, jj_int(i)) : jj_int(i);
}

static int digit_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

/* Python's int(text, base), underscores between digits included. */
static bool parse_python_int(jj *j, jj_string *text, int base, int64_t *out) {
    const jj_string *s = tn__jj_trim(j, text, NULL, true, true);
    const char *p = s->data, *end = p + s->length;
    bool negative = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (end - p > 2 && *p == '0') {
        char c = p[1] | 32;
        int prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (prefix && (base == prefix || base == 0)) p += 2, base = prefix;
    }
    if (base == 0) base = 10;
    uint64_t n = 0;
    bool digit = false;
    for (; p < end; p++) {
        if (*p == '_' && digit && p + 1 < end && p[1] != '_') {
            digit = false;
            continue;
        }
        int d = digit_value(*p);
        if (d >= base || __builtin_mul_overflow(n, (uint64_t)base, &n) || __builtin_add_overflow(n, (uint64_t)d, &n))
            return false;
        digit = true;
    }
    if (!digit || n > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - n) : (int64_t)n;
    return true;
}

static bool parse_python_float(jj *j, jj_string *text, double *out) {
    const jj_string *s = tn__jj_trim(j, text, NULL, true, true);
    char copy[32];
    size_t n = 0;
    if (tn__jj_read_real(s->data, s->length, out)) return true;
    for (size_t i = 0; i < s->length && n + 1 < sizeof copy; i++) copy[n++] = s->data[i] | 32;
    copy[n] = '\0';
    const char *p = copy[0] == '-' || copy[0] == ('+' | 32) ? copy + 1 : copy;
    if (strcmp(p, "inf") == 0 || strcmp(p, "infinity") == 0)
        *out = copy[0] == '-' ? -INFINITY : INFINITY;
    else if (strcmp(p, "nan") == 0)
        *out = NAN;
    else
        return false;
    return true;
}

static jj_value filter_int(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2];
    int64_t i;
    double d;
    tn__jj_bind(j, args, "int", "default base", 0, out);
    int64_t base = jj_is_absent(out[1]) ? 10 : tn__jj_need_int(j, out[1], "a base");
    jj_value instead = jj_is_absent(out[0]) ? jj_int(0) : out[0];
    if (base < 0 || base == 1 || base > 36) return instead;
    if (tn__jj_as_int(v, &i)) return jj_int(i);
    if (v.type == JJ_STRING) {
        if (parse_python_int(j, v.as.string, (int)base, &i)) return jj_int(i);
        if (!parse_python_float(j, v.as.string, &d)) return instead;
    } else if (v.type == JJ_FLOAT)
        d = v.as.real;
    else if (v.type == JJ_UNDEFINED)
        tn__jj_fail(j, TN_E_INVALID, "int: the value is undefined");
    else
        return instead;
    if (!(d >= -0x1p63 && d < 0x1p63)) return instead;
    return jj_int((int64_t)d);
}

static jj_value filter_float(jj *j, jj_value v, const jj_args *args) {
    jj_value instead;
    double d;
    tn__jj_bind(j, args, "float", "default", 0, &instead);
    if (tn__jj_is_number(v)) return jj_real(tn__jj_number(v));
    if (v.type == JJ_STRING && parse_python_float(j, v.as.string, &d)) return jj_real(d);
    if (v.type == JJ_UNDEFINED) tn__jj_fail(j, TN_E_INVALID, "float: the value is undefined");
    return jj_is_absent(instead) ? jj_real(0) : instead;
}

static jj_value filter_round(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2];
    tn__jj_bind(j, args, "round", "precision method", 0, out);
    int64_t precision = jj_is_absent(out[0]) ? 0 : tn__jj_need_int(j, out[0], "a precision");
    const char *methods[] = {"common", "ceil", "floor"};
    size_t method = 0;
    if (!jj_is_absent(out[1])) {
        const jj_string *name = tn__jj_need_string(j, out[1], "a rounding method");
        while (method < 3 && !tn__jj_same_text(name, methods[method])) method++;
        if (method == 3) tn__jj_fail(j, TN_E_INVALID, "method must be common, ceil or floor");
    }
    if (!tn__jj_is_number(v))
        tn__jj_fail(j, TN_E_INVALID, "type %s doesn't define __round__ method", tn__jj_type_name(v));
    if (precision < -300 || precision > 300) tn__jj_fail(j, TN_E_LIMIT, "a precision of %lld", (long long)precision);
    double d = tn__jj_number(v), scale = pow(10, (double)precision);
    if (!isfinite(d)) return v;
    if (method) return jj_real((method == 1 ? ceil : floor)(d * scale) / scale);
    int64_t i;
    if (tn__jj_as_int(v, &i) && precision >= 0) return jj_int(i);
    if (precision < 0) { /* to tens, hundreds …: ties to even */
        double r = nearbyint(d * scale) / scale;
        return tn__jj_as_int(v, &i) ? jj_int((int64_t)r) : jj_real(r);
    }
    jj_buffer text = {0}; /* printing rounds the exact value, scaling does not */
    tn__jj_put_printf_real(j, &text, 'f', (int)precision, false, d);
    tn__jj_read_real(text.data, text.length, &d);
    return jj_real(d);
}

static jj_value filter_filesizeformat(jj *j, jj_value v, const jj_args *args) {
    static const char *const units[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    jj_value binary;
    char text[64];
    jj_buffer b = {0};
    tn__jj_bind(j, args, "filesizeformat", "binary", 0, &binary);
    double bytes = filter_float(j, v, &(jj_args){0}).as.real, base = tn__jj_truth(j, binary) ? 1024 : 1000,
           unit = base;
    if (bytes == 1) return tn__jj_literal(j, "1 Byte");
    if (bytes < base) {
        snprintf(text, sizeof text, "%lld Bytes", (long long)bytes);
        return jj_str(tn__jj_copy_string(j, text, strlen(text)));
    }
    size_t i = 0;
    while (i < 7 && bytes >= unit * base) unit *= base, i++;
    tn__jj_put_printf_real(j, &b, 'f', 1, false, bytes / unit);
    tn__jj_put_char(j, &b, ' ');
    jj_puts(j, &b, units[base == 1024][i]);
    return tn__jj_from_buffer(j, &b);
}

/* ---- JSON ---- */

static jj_string *separator(jj *j, jj_value pair, size_t index, const char *standard) {
    if (jj_is_absent(pair) || pair.type == JJ_NONE) return tn__jj_string(j, standard, strlen(standard));
    if ((pair.type != JJ_TUPLE && pair.type != JJ_LIST) || pair.as.list->count != 2)
        tn__jj_fail(j, TN_E_INVALID, "tojson: separators must be a pair of strings");
    return tn__jj_need_string(j, pair.as.list->items[index], "a separator");
}

static jj_value filter_tojson(jj *j, jj_value v, const jj_args *args) {
    jj_value out[4];
    jj_buffer b = {0}, indent = {0};
    tn__jj_bind(j, args, "tojson", "ensure_ascii indent separators sort_keys", 0, out);
    jj_json_style style = {.ascii = tn__jj_truth(j, out[0]), .sort_keys = tn__jj_truth(j, out[3])};
    if (out[1].type == JJ_STRING)
        style.indent = out[1].as.string;
    else if (!jj_is_absent(out[1]) && out[1].type != JJ_NONE) {
        int64_t spaces = tn__jj_need_int(j, out[1], "an indentation");
        for (int64_t i = 0; i < spaces; i++) tn__jj_put_char(j, &indent, ' ');
        style.indent = tn__jj_string(j, indent.data, indent.length);
    }
    style.item_separator = separator(j, out[2], 0, style.indent ? "," : ", ");
    style.key_separator = separator(j, out[2], 1, ": ");
    tn__jj_put_json(j, &b, v, &style, 0);
    return tn__jj_from_buffer(j, &b);
}

static jj_value filter_from_json(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "from_json", "", 0, NULL);
    return tn__jj_parse_json(j, tn__jj_need_string(j, v, "JSON"));
}

const jj_named tn__jj_value_filters[] = {
    {"abs", filter_abs, 0},         {"attr", filter_attr, 0},
    {"count", filter_length, 0},    {"d", filter_default, 0},
    {"default", filter_default, 0}, {"filesizeformat", filter_filesizeformat, 0},
    {"float", filter_float, 0},     {"from_json", filter_from_json, 0},
    {"int", filter_int, 0},         {"length", filter_length, 0},
    {"round", filter_round, 0},     {"string", filter_string, 0},
    {"tojson", filter_tojson, 0},   {NULL, NULL, 0},
};

const jj_named *tn__jj_find_filter(const jj_string *name) {
    const jj_named *const tables[] = {tn__jj_value_filters, tn__jj_text_filters, tn__jj_list_filters};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const jj_named *filter = tn__jj_search(tables[i], name);
        if (filter) return filter;
    }
    return NULL;
}
