/* Strings: UTF-8 by code points, Unicode classes and case, numbers as text, Python's str() and repr(). */
#include "text/template/engine.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

size_t tn__jj_decode(const char *p, const char *end, uint32_t *code) {
    unsigned char c = (unsigned char)*p;
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    utf8proc_int32_t decoded;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)p, end - p, &decoded);
    if (n < 1) {
        *code = 0xfffd;
        return 1;
    }
    *code = (uint32_t)decoded;
    return (size_t)n;
}

size_t tn__jj_chars(jj *j, jj_string *s) {
    if (s->chars != SIZE_MAX) return s->chars;
    jj_charge_bytes(j, s->length);
    size_t count = 0;
    const char *end = s->data + s->length;
    uint32_t code;
    for (const char *p = s->data; p < end; p += tn__jj_decode(p, end, &code)) count++;
    return s->chars = count;
}

const char *tn__jj_seek(jj *j, jj_string *s, size_t char_index) {
    size_t chars = tn__jj_chars(j, s);
    if (char_index >= chars) return s->data + s->length;
    if (chars == s->length) return s->data + char_index;
    jj_charge_bytes(j, char_index * 4);
    const char *p = s->data, *end = s->data + s->length;
    uint32_t code;
    while (char_index--) p += tn__jj_decode(p, end, &code);
    return p;
}

jj_value tn__jj_slice_chars(jj *j, jj_string *s, size_t from, size_t to) {
    const char *start = tn__jj_seek(j, s, from), *stop = tn__jj_seek(j, s, to);
    if (stop < start) stop = start;
    jj_value v = tn__jj_text(j, start, (size_t)(stop - start));
    v.as.string->safe = s->safe;
    return v;
}

bool tn__jj_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool in_set(const char *at, size_t n, uint32_t code, const jj_string *chars) {
    if (!chars) return tn__jj_space(code);
    const char *end = chars->data + chars->length;
    uint32_t other;
    for (const char *p = chars->data; p < end;) {
        size_t m = tn__jj_decode(p, end, &other);
        if (m == n && memcmp(p, at, n) == 0) return true;
        p += m;
    }
    return false;
}

/* The first byte of the character that ends at `end`. */
static const char *step_back(const char *start, const char *end) {
    const char *p = end - 1;
    for (int i = 0; i < 3 && p > start && ((unsigned char)*p & 0xc0) == 0x80; i++) p--;
    uint32_t code;
    return p + tn__jj_decode(p, end, &code) == end ? p : end - 1;
}

jj_string *tn__jj_trim(jj *j, jj_string *s, const jj_string *chars, bool left, bool right) {
    const char *start = s->data, *end = s->data + s->length;
    uint32_t code;
    size_t per_char = chars ? chars->length : 1;
    while (left && start < end) {
        jj_charge_bytes(j, per_char);
        size_t n = tn__jj_decode(start, end, &code);
        if (!in_set(start, n, code, chars)) break;
        start += n;
    }
    while (right && start < end) {
        jj_charge_bytes(j, per_char);
        const char *last = step_back(start, end);
        size_t n = tn__jj_decode(last, end, &code);
        if (!in_set(last, n, code, chars)) break;
        end = last;
    }
    if (start == s->data && end == s->data + s->length) return s;
    jj_string *trimmed = tn__jj_string(j, start, (size_t)(end - start));
    trimmed->safe = s->safe;
    return trimmed;
}

static bool cased(uint32_t code) {
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT: return true;
    default: return false;
    }
}

static void put_upper(jj *j, jj_buffer *b, uint32_t code, bool title) {
    const utf8proc_int32_t c = (utf8proc_int32_t)code;
    if (code == 0xdf)
        jj_puts(j, b, title ? "Ss" : "SS"); /* the only common letter with a two-letter capital */
    else
        tn__jj_put_code(j, b, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)));
}

jj_value tn__jj_change_case(jj *j, jj_string *s, char mode) {
    jj_buffer b = {0};
    const char *end = s->data + s->length;
    bool start_of_word = true, first = true;
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        bool upper = mode == 'u' || (mode == 'c' && first) || (mode == 't' && start_of_word);
        if (mode == 's') upper = utf8proc_toupper((utf8proc_int32_t)code) != (utf8proc_int32_t)code;
        if (code == 0xfffd)
            tn__jj_put(j, &b, p, n); /* invalid bytes stay unchanged */
        else if (upper)
            put_upper(j, &b, code, mode == 'c' || mode == 't');
        else if (mode == 'f' && code == 0xdf)
            jj_puts(j, &b, "ss");
        else
            tn__jj_put_code(j, &b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
        start_of_word = !cased(code);
        first = false;
        p += n;
    }
    jj_value v = tn__jj_from_buffer(j, &b);
    v.as.string->safe = s->safe;
    return v;
}

/* ---- Numbers ---- */

/* printf and strtod use the locale's decimal point; numbers of templates always have a period. */
static void fix_point(char *text) {
    const char *point = localeconv()->decimal_point;
    size_t n = strlen(point);
    if (n == 1 && *point == '.') return;
    char *at = strstr(text, point);
    if (!at) return;
    *at = '.';
    memmove(at + 1, at + n, strlen(at + n) + 1);
}

bool tn__jj_read_real(const char *text, size_t length, double *out) {
    char copy[512];
    const char *point = localeconv()->decimal_point;
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (!((c >= '0' && c <= '9') || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E')) return false;
        size_t n = c == '.' ? strlen(point) : 1;
        if (used + n >= sizeof copy) return false;
        memcpy(copy + used, c == '.' ? point : &c, n);
        used += n;
    }
    copy[used] = '\0';
    char *end;
    *out = strtod(copy, &end);
    return used && *end == '\0';
}

size_t tn__jj_print_real(double d, char out[64]) {
    if (isnan(d)) return (size_t)snprintf(out, 64, "nan");
    if (isinf(d)) return (size_t)snprintf(out, 64, d < 0 ? "-inf" : "inf");
    char digits[40];
    /* The fewest significant digits that parse to the same number. 15 digits are always exact, except for the
     * smallest numbers, which have fewer. */
    int precision = fabs(d) < 1e-290 ? 1 : 15;
    for (; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, d);
        if (strtod(digits, NULL) == d) break;
    }
    fix_point(digits);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    char mantissa[24];
    size_t n = 0;
    for (char *p = digits; p < e; p++)
        if (*p >= '0' && *p <= '9') mantissa[n++] = *p;
    while (n > 1 && mantissa[n - 1] == '0') n--;
    char *o = out;
    if (signbit(d)) *o++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *o++ = mantissa[0];
        if (n > 1) {
            *o++ = '.';
            memcpy(o, mantissa + 1, n - 1);
            o += n - 1;
        }
        o += snprintf(o, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        *o++ = '0', *o++ = '.';
        for (int i = -1; i > exponent; i--) *o++ = '0';
        memcpy(o, mantissa, n);
        o += n;
    } else {
        for (int i = 0; i <= exponent || i < (int)n; i++) {
            if (i == exponent + 1) *o++ = '.';
            *o++ = i < (int)n ? mantissa[i] : '0';
        }
        if ((int)n <= exponent + 1) *o++ = '.', *o++ = '0';
    }
    *o = '\0';
    return (size_t)(o - out);
}

void tn__jj_put_printf_real(jj *j, jj_buffer *b, char type, int precision, bool alternate, double d) {
    char format[8], text[1600]; /* 309 digits before the point, at most 1,000 after it */
    if (precision > 1000) tn__jj_fail(j, TN_E_LIMIT, "a precision of %d digits is too large", precision);
    snprintf(format, sizeof format, alternate ? "%%#.*%c" : "%%.*%c", type);
    snprintf(text, sizeof text, format, precision, d);
    fix_point(text);
    jj_puts(j, b, text);
}

/* ---- str() and repr() ---- */

static bool printable(uint32_t code) {
    if (code == ' ') return true;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void put_string_repr(jj *j, jj_buffer *b, const jj_string *s) {
    bool single = s->length && memchr(s->data, '\'', s->length), twice = s->length && memchr(s->data, '"', s->length);
    char quote = single && !twice ? '"' : '\'';
    const char *end = s->data + s->length;
    if (s->safe) jj_puts(j, b, "Markup(");
    tn__jj_put_char(j, b, quote);
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        char escape[16];
        if (code == (uint32_t)quote || code == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)code);
        else if (code == '\n')
            snprintf(escape, sizeof escape, "\\n");
        else if (code == '\r')
            snprintf(escape, sizeof escape, "\\r");
        else if (code == '\t')
            snprintf(escape, sizeof escape, "\\t");
        else if (printable(code))
            escape[0] = '\0';
        else if (code < 0x100)
            snprintf(escape, sizeof escape, "\\x%02x", code);
        else if (code < 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x", code);
        else
            snprintf(escape, sizeof escape, "\\U%08x", code);
        if (escape[0])
            jj_puts(j, b, escape);
        else
            tn__jj_put(j, b, p, n);
        p += n;
    }
    tn__jj_put_char(j, b, quote);
    if (s->safe) tn__jj_put_char(j, b, ')');
}

static void put_items_repr(jj *j, jj_buffer *b, const jj_list *list, const char *open, const char *close) {
    jj_puts(j, b, open);
    for (size_t i = 0; i < list->count; i++) {
        if (i) jj_puts(j, b, ", ");
        tn__jj_put_repr(j, b, list->items[i]);
    }
    jj_puts(j, b, close);
}

static void put_dict_repr(jj *j, jj_buffer *b, const jj_dict *dict) {
    tn__jj_put_char(j, b, '{');
    for (size_t i = 0; i < dict->count; i++) {
        if (i) jj_puts(j, b, ", ");
        tn__jj_put_repr(j, b, dict->entries[i].key);
        jj_puts(j, b, ": ");
        tn__jj_put_repr(j, b, dict->entries[i].value);
    }
    tn__jj_put_char(j, b, '}');
}

void tn__jj_put_repr(jj *j, jj_buffer *b, jj_value v) {
    char text[96];
    tn__jj_enter(j);
    switch (v.type) {
    case JJ_UNDEFINED: jj_puts(j, b, "Undefined"); break;
    case JJ_NONE: jj_puts(j, b, "None"); break;
    case JJ_BOOL: jj_puts(j, b, v.as.boolean ? "True" : "False"); break;
    case JJ_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.as.integer);
        jj_puts(j, b, text);
        break;
    case JJ_FLOAT:
        tn__jj_print_real(v.as.real, text);
        jj_puts(j, b, text);
        break;
    case JJ_STRING: put_string_repr(j, b, v.as.string); break;
    case JJ_LIST: put_items_repr(j, b, v.as.list, "[", "]"); break;
    case JJ_TUPLE: put_items_repr(j, b, v.as.list, "(", v.as.list->count == 1 ? ",)" : ")"); break;
    case JJ_DICT: put_dict_repr(j, b, v.as.dict); break;
    case JJ_RANGE: {
        const jj_range *r = v.as.range;
        snprintf(text, sizeof text, r->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)r->start, (long long)r->stop, (long long)r->step);
        jj_puts(j, b, text);
        break;
    }
    case JJ_VIEW:
        jj_puts(j, b, tn__jj_type_name(v));
        tn__jj_put_char(j, b, '(');
        put_items_repr(j, b, tn__jj_collect(j, v), "[", "]");
        tn__jj_put_char(j, b, ')');
        break;
    case JJ_NAMESPACE:
        jj_puts(j, b, "<Namespace ");
        put_dict_repr(j, b, v.as.dict);
        tn__jj_put_char(j, b, '>');
        break;
    default:
        snprintf(text, sizeof text, "<%s object>", tn__jj_type_name(v));
        jj_puts(j, b, text);
        break;
    }
    jj_leave(j);
}

void tn__jj_put_value(jj *j, jj_buffer *b, jj_value v) {
    if (v.type == JJ_STRING)
        tn__jj_put(j, b, v.as.string->data, v.as.string->length);
    else if (v.type != JJ_UNDEFINED)
        tn__jj_put_repr(j, b, v);
}

jj_string *tn__jj_to_string(jj *j, jj_value v) {
    if (v.type == JJ_STRING) return v.as.string;
    jj_buffer b = {0};
    tn__jj_put_value(j, &b, v);
    return tn__jj_string(j, b.data, b.length);
}

jj_string *tn__jj_escape(jj *j, jj_value v) {
    jj_string *s = tn__jj_to_string(j, v);
    if (s->safe) return s;
    jj_buffer b = {0};
    for (size_t i = 0; i < s->length; i++) switch (s->data[i]) {
        case '&': jj_puts(j, &b, "&amp;"); break;
        case '<': jj_puts(j, &b, "&lt;"); break;
        case '>': jj_puts(j, &b, "&gt;"); break;
        case '"': jj_puts(j, &b, "&#34;"); break;
        case '\'': jj_puts(j, &b, "&#39;"); break;
        default: tn__jj_put_char(j, &b, s->data[i]); break;
        }
    jj_string *escaped = tn__jj_string(j, b.data, b.length);
    escaped->safe = true;
    return escaped;
}

jj_value tn__jj_join(jj *j, const jj_string *separator, jj_value items) {
    jj_buffer b = {0};
    jj_cursor cursor;
    jj_value item;
    tn__jj_cursor(j, items, &cursor);
    for (bool first = true; tn__jj_next(j, &cursor, &item); first = false) {
        if (!first) tn__jj_put(j, &b, separator->data, separator->length);
        tn__jj_put_value(j, &b, item);
    }
    return tn__jj_from_buffer(j, &b);
}
