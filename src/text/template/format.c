/* Formatting as in Python: "…" % values, "…".format(…) and format specifications. */
#include <math.h>
#include <stdio.h>

#include "text/template/engine.h"

typedef struct format_spec {
    uint32_t fill;
    char align; /* '<', '>', '^', '=' or 0 */
    char sign;  /* '+', ' ' or '-' */
    bool alternate, zero;
    int64_t width;
    char grouping;
    int64_t precision; /* -1: not given */
    char type;
} format_spec;

static int64_t read_count(jj *j, const char **p, const char *end) {
    int64_t n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        n = n * 10 + (**p - '0');
        if (n > INT32_MAX) tn__jj_fail(j, TN_E_LIMIT, "a width or precision beyond %d", INT32_MAX);
    }
    return n;
}

/* ---- Padding and numbers for both kinds ---- */

static void put_padded(jj *j, jj_buffer *b, const format_spec *s, size_t sign_bytes, jj_string *body,
                       char default_align) {
    char align = s->align ? s->align : default_align;
    int64_t missing = s->width - (int64_t)tn__jj_chars(j, body);
    int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    if (missing > 0 && (uint64_t)missing > j->limits.max_output)
        tn__jj_fail(j, TN_E_LIMIT, "a width of %lld", (long long)s->width);
    if (align == '=') {
        tn__jj_put(j, b, body->data, sign_bytes);
        for (int64_t i = 0; i < missing; i++) tn__jj_put_code(j, b, s->fill);
        tn__jj_put(j, b, body->data + sign_bytes, body->length - sign_bytes);
        return;
    }
    for (int64_t i = 0; i < before; i++) tn__jj_put_code(j, b, s->fill);
    tn__jj_put(j, b, body->data, body->length);
    for (int64_t i = before > 0 ? before : 0; i < missing; i++) tn__jj_put_code(j, b, s->fill);
}

/* Digits of a magnitude in a base, with a separator every three (or four) digits. */
static void put_digits(jj *j, jj_buffer *b, uint64_t magnitude, unsigned base, bool capitals, char grouping) {
    char reversed[160];
    size_t n = 0, digits = 0, every = base == 10 ? 3 : 4;
    do {
        if (grouping && digits && digits % every == 0) reversed[n++] = grouping;
        reversed[n++] = (capitals ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base];
        digits++;
    } while (magnitude /= base);
    while (n) tn__jj_put_char(j, b, reversed[--n]);
}

/* Writes the sign and returns the length of the text so far, for '=' alignment. */
static size_t put_sign(jj *j, jj_buffer *b, const format_spec *s, bool negative) {
    if (negative)
        tn__jj_put_char(j, b, '-');
    else if (s->sign == '+' || s->sign == ' ')
        tn__jj_put_char(j, b, s->sign);
    return b->length;
}

static void put_int(jj *j, jj_buffer *b, const format_spec *s, int64_t i) {
    jj_buffer body = {0};
    size_t lead = put_sign(j, &body, s, i < 0);
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    if (s->alternate && base != 10) {
        tn__jj_put_char(j, &body, '0');
        tn__jj_put_char(j, &body, s->type);
        lead = body.length;
    }
    jj_buffer digits = {0};
    put_digits(j, &digits, magnitude, base, s->type == 'X', s->grouping);
    for (int64_t n = (int64_t)digits.length; n < s->precision; n++) tn__jj_put_char(j, &body, '0'); /* "%.3d" */
    tn__jj_put(j, &body, digits.data, digits.length);
    put_padded(j, b, s, lead, tn__jj_string(j, body.data, body.length), '>');
}

/* Inserts separators into the whole part of a printed number. */
static void group_whole(jj *j, jj_buffer *body, size_t from, char grouping) {
    jj_buffer out = {0};
    size_t end = from;
    while (end < body->length && body->data[end] >= '0' && body->data[end] <= '9') end++;
    tn__jj_put(j, &out, body->data, from);
    for (size_t i = from; i < end; i++) {
        if (i > from && (end - i) % 3 == 0) tn__jj_put_char(j, &out, grouping);
        tn__jj_put_char(j, &out, body->data[i]);
    }
    tn__jj_put(j, &out, body->data + end, body->length - end);
    *body = out;
}

static void put_real(jj *j, jj_buffer *b, const format_spec *s, double d) {
    jj_buffer body = {0};
    char type = s->type;
    bool percent = type == '%';
    if (percent) d *= 100, type = 'f';
    size_t lead = put_sign(j, &body, s, signbit(d) && !isnan(d));
    double magnitude = fabs(d);
    if (!isfinite(magnitude)) {
        bool capitals = type == 'F' || type == 'E' || type == 'G';
        jj_puts(j, &body, isnan(magnitude) ? (capitals ? "NAN" : "nan") : (capitals ? "INF" : "inf"));
    } else if (!type && s->precision < 0) {
        char text[64];
        tn__jj_put(j, &body, text, tn__jj_print_real(magnitude, text));
    } else {
        int precision = s->precision < 0 ? 6 : (int)s->precision;
        if (!type || type == 'n') type = 'g';
        if ((type == 'g' || type == 'G') && precision == 0) precision = 1;
        tn__jj_put_printf_real(j, &body, type, precision, s->alternate, magnitude);
    }
    if (percent) tn__jj_put_char(j, &body, '%');
    if (s->grouping) group_whole(j, &body, lead, s->grouping);
    put_padded(j, b, s, lead, tn__jj_string(j, body.data, body.length), '>');
}

static void put_padded_text(jj *j, jj_buffer *b, const format_spec *s, jj_string *text) {
    if (s->precision >= 0 && (size_t)s->precision < tn__jj_chars(j, text))
        text = tn__jj_slice_chars(j, text, 0, (size_t)s->precision).as.string;
    put_padded(j, b, s, 0, text, '<');
}

/* ---- Format specifications ---- */

static bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

static format_spec parse_spec(jj *j, const jj_string *text) {
    format_spec s = {.fill = ' ', .sign = '-', .precision = -1};
    const char *p = text->data, *end = p + text->length;
    bool filled = false;
    if (p < end) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        if (p + n < end && is_align(p[n])) {
            s.fill = code;
            filled = true;
            s.align = p[n];
            p += n + 1;
        } else if (is_align(*p))
            s.align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) s.sign = *p++;
    if (p < end && *p == '#') s.alternate = true, p++;
    if (p < end && *p == '0') {
        p++;
        s.zero = true;
        if (!filled) s.fill = '0';
        if (!s.align) s.align = '=';
    }
    s.width = read_count(j, &p, end);
    if (p < end && (*p == ',' || *p == '_')) s.grouping = *p++;
    if (p < end && *p == '.') {
        p++;
        if (p >= end || *p < '0' || *p > '9') tn__jj_fail(j, TN_E_INVALID, "Format specifier missing precision");
        s.precision = read_count(j, &p, end);
    }
    if (p < end) s.type = *p++;
    if (p != end) tn__jj_fail(j, TN_E_INVALID, "Invalid format specifier");
    return s;
}

static void put_formatted(jj *j, jj_buffer *b, jj_value v, const jj_string *text) {
    format_spec s = parse_spec(j, text);
    int64_t i;
    if (v.type == JJ_STRING || (v.type != JJ_FLOAT && !tn__jj_as_int(v, &i)) ||
        (v.type == JJ_BOOL && !text->length)) {
        if (v.type != JJ_STRING && text->length)
            tn__jj_fail(j, TN_E_INVALID, "unsupported format string passed to %s.__format__", tn__jj_type_name(v));
        if (s.align == '=' && !s.zero)
            tn__jj_fail(j, TN_E_INVALID, "'=' alignment not allowed in string format specifier");
        if (s.align == '=') s.align = '<';
        if (s.type && s.type != 's')
            tn__jj_fail(j, TN_E_INVALID, "Unknown format code '%c' for object of type 'str'", s.type);
        put_padded_text(j, b, &s, tn__jj_to_string(j, v));
        return;
    }
    bool integral = !s.type || strchr("bcdoxXn", s.type);
    if (tn__jj_as_int(v, &i) && integral) {
        if (s.precision >= 0) tn__jj_fail(j, TN_E_INVALID, "Precision not allowed in integer format specifier");
        if (s.type != 'c') {
            put_int(j, b, &s, i);
            return;
        }
        if (i < 0 || i > 0x10ffff) tn__jj_fail(j, TN_E_INVALID, "%%c arg not in range");
        jj_buffer one = {0};
        tn__jj_put_code(j, &one, (uint32_t)i);
        put_padded(j, b, &s, 0, tn__jj_string(j, one.data, one.length), '<');
        return;
    }
    if (s.type && !strchr("eEfFgGn%", s.type))
        tn__jj_fail(j, TN_E_INVALID, "Unknown format code '%c' for object of type '%s'", s.type, tn__jj_type_name(v));
    put_real(j, b, &s, tn__jj_number(v));
}

jj_value tn__jj_format_spec(jj *j, jj_value v, const jj_string *text) {
    jj_buffer b = {0};
    put_formatted(j, &b, v, text);
    return tn__jj_from_buffer(j, &b);
}

/* ---- "…".format(…) ---- */

typedef struct formatter {
    jj *j;
    const jj_args *args;
    size_t next;   /* automatic numbering */
    int numbering; /* 0 undecided, 1 automatic, 2 manual */
    bool safe;
} formatter;

static void format_into(formatter *f, jj_buffer *b, const char *p, const char *end, int depth);

static jj_value field_root(formatter *f, const char *from, const char *to) {
    jj *j = f->j;
    bool digits = to > from;
    for (const char *q = from; q < to; q++) digits = digits && *q >= '0' && *q <= '9';
    if (from == to || digits) {
        int kind = from == to ? 1 : 2;
        if (f->numbering && f->numbering != kind)
            tn__jj_fail(j, TN_E_INVALID, "cannot mix automatic field numbering and manual field specification");
        f->numbering = kind;
        const char *q = from;
        size_t index = kind == 1 ? f->next++ : (size_t)read_count(j, &q, to);
        if (index >= f->args->count) tn__jj_fail(j, TN_E_INVALID, "Replacement index %zu out of range", index);
        return f->args->values[index];
    }
    for (size_t i = 0; i < f->args->keyword_count; i++) {
        const jj_string *name = f->args->keywords[i];
        if (name->length == (size_t)(to - from) && memcmp(name->data, from, name->length) == 0)
            return f->args->keyword_values[i];
    }
    tn__jj_fail(j, TN_E_INVALID, "format() has no argument '%.*s'", to - from > 60 ? 60 : (int)(to - from), from);
}

static jj_value field_value(formatter *f, const char *p, const char *end) {
    jj *j = f->j;
    const char *from = p;
    while (p < end && *p != '.' && *p != '[') p++;
    jj_value v = field_root(f, from, p);
    while (p < end) {
        char kind = *p++;
        from = p;
        if (kind == '.') {
            while (p < end && *p != '.' && *p != '[') p++;
            if (p == from) tn__jj_fail(j, TN_E_INVALID, "Empty attribute in format string");
            v = tn__jj_attribute(j, v, tn__jj_string(j, from, (size_t)(p - from)));
            continue;
        }
        while (p < end && *p != ']') p++;
        if (kind != '[' || p == end || p == from) tn__jj_fail(j, TN_E_INVALID, "malformed field in format string");
        const char *q = from;
        int64_t index = read_count(j, &q, p);
        v = tn__jj_item(j, v, q == p ? jj_int(index) : tn__jj_text(j, from, (size_t)(p - from)));
        p++;
    }
    return v;
}

/* One {…}: `p` is after the opening brace; returns the position after the closing one. */
static const char *format_field(formatter *f, jj_buffer *b, const char *p, const char *end, int depth) {
    jj *j = f->j;
    const char *from = p;
    while (p < end && *p != '}' && *p != '!' && *p != ':') {
        if (*p == '{') tn__jj_fail(j, TN_E_INVALID, "unexpected '{' in field name");
        if (*p == '[')
            while (p < end && *p != ']') p++;
        if (p < end) p++;
    }
    if (p >= end) tn__jj_fail(j, TN_E_INVALID, "expected '}' before end of string");
    jj_value v = field_value(f, from, p);
    if (*p == '!') {
        char conversion = p + 1 < end ? p[1] : 0;
        if (conversion != 'r' && conversion != 's' && conversion != 'a')
            tn__jj_fail(j, TN_E_INVALID, "Unknown conversion specifier in format string");
        jj_buffer text = {0};
        if (conversion == 's')
            v = jj_str(tn__jj_to_string(j, v));
        else {
            tn__jj_put_repr(j, &text, v);
            v = tn__jj_from_buffer(j, &text);
        }
        p += 2;
        if (p >= end || (*p != '}' && *p != ':'))
            tn__jj_fail(j, TN_E_INVALID, "expected ':' after conversion specifier");
    }
    jj_buffer specification = {0};
    if (*p == ':') {
        from = ++p;
        for (int open = 1; p < end; p++) {
            open += (*p == '{') - (*p == '}');
            if (!open) break;
        }
        if (p >= end) tn__jj_fail(j, TN_E_INVALID, "expected '}' before end of string");
        if (depth >= 2) tn__jj_fail(j, TN_E_INVALID, "Max string recursion exceeded");
        format_into(f, &specification, from, p, depth + 1);
    }
    jj_string *text = tn__jj_string(j, specification.data ? specification.data : "", specification.length);
    if (v.type == JJ_UNDEFINED && !text->length) return p + 1;
    if (f->safe && !(v.type == JJ_STRING && v.as.string->safe))
        v = jj_str(tn__jj_escape(j, tn__jj_format_spec(j, v, text)));
    else
        v = tn__jj_format_spec(j, v, text);
    tn__jj_put_value(j, b, v);
    return p + 1;
}

static void format_into(formatter *f, jj_buffer *b, const char *p, const char *end, int depth) {
    while (p < end) {
        char c = *p++;
        bool twice = p < end && *p == c;
        if ((c == '{' || c == '}') && twice && depth == 0)
            p++;
        else if (c == '{') {
            p = format_field(f, b, p, end, depth);
            continue;
        } else if (c == '}')
            tn__jj_fail(f->j, TN_E_INVALID, "Single '}' encountered in format string");
        tn__jj_put_char(f->j, b, c);
    }
}

jj_value tn__jj_format(jj *j, jj_string *format, const jj_args *args) {
    formatter f = {.j = j, .args = args, .safe = format->safe};
    jj_buffer b = {0};
    format_into(&f, &b, format->data, format->data + format->length, 0);
    jj_value v = tn__jj_from_buffer(j, &b);
    v.as.string->safe = format->safe;
    return v;
}

/* ---- "…" % values ---- */

typedef struct percent {
    jj *j;
    jj_value values;
    size_t next, count; /* positional */
    bool used_names, safe;
} percent;

static jj_value next_value(percent *f) {
    if (f->next >= f->count) tn__jj_fail(f->j, TN_E_INVALID, "not enough arguments for format string");
    return f->values.type == JJ_TUPLE ? f->values.as.list->items[f->next++] : (f->next++, f->values);
}

static jj_value named_value(percent *f, const char *from, const char *to) {
    f->used_names = true;
    if (f->values.type != JJ_DICT) tn__jj_fail(f->j, TN_E_INVALID, "format requires a mapping");
    jj_entry *entry = tn__jj_dict_find(f->j, f->values.as.dict, tn__jj_text(f->j, from, (size_t)(to - from)));
    if (!entry)
        tn__jj_fail(f->j, TN_E_INVALID, "no value named '%.*s' to format", to - from > 60 ? 60 : (int)(to - from),
                    from);
    return entry->value;
}

static void put_percent(percent *f, jj_buffer *b, const format_spec *s, jj_value v) {
    jj *j = f->j;
    int64_t i;
    format_spec t = *s;
    switch (s->type) {
    case 's':
    case 'r':
    case 'a': {
        jj_buffer text = {0};
        if (s->type == 's')
            tn__jj_put_value(j, &text, v);
        else
            tn__jj_put_repr(j, &text, v);
        jj_value printed = tn__jj_from_buffer(j, &text);
        if (f->safe)
            printed = jj_str(v.type == JJ_STRING && v.as.string->safe ? v.as.string : tn__jj_escape(j, printed));
        t.fill = ' ';
        if (t.align == '=') t.align = '>';
        if (!t.align) t.align = '>';
        put_padded_text(j, b, &t, printed.as.string);
        return;
    }
    case 'c':
        if (v.type == JJ_STRING && tn__jj_chars(j, v.as.string) == 1) {
            tn__jj_put_value(j, b, v);
            return;
        }
        i = tn__jj_need_int(j, v, "%c");
        if (i < 0 || i > 0x10ffff) tn__jj_fail(j, TN_E_INVALID, "%%c arg not in range");
        tn__jj_put_code(j, b, (uint32_t)i);
        return;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
        if (v.type == JJ_FLOAT && (s->type == 'd' || s->type == 'i' || s->type == 'u') && fabs(v.as.real) < 0x1p63)
            v = jj_int((int64_t)v.as.real);
        i = tn__jj_need_int(j, v, "a number to format");
        if (s->type == 'i' || s->type == 'u') t.type = 'd';
        put_int(j, b, &t, i);
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!tn__jj_is_number(v)) tn__jj_fail(j, TN_E_INVALID, "must be real number, not %s", tn__jj_type_name(v));
        put_real(j, b, &t, tn__jj_number(v));
        return;
    default: tn__jj_fail(j, TN_E_INVALID, "unsupported format character U+%04X", (unsigned char)s->type);
    }
}

jj_value tn__jj_percent(jj *j, jj_string *format, jj_value values) {
    percent f = {.j = j, .values = values, .safe = format->safe};
    f.count = values.type == JJ_TUPLE ? values.as.list->count : 1;
    jj_buffer b = {0};
    const char *p = format->data, *end = p + format->length;
    while (p < end) {
        if (*p != '%') {
            tn__jj_put_char(j, &b, *p++);
            continue;
        }
        format_spec s = {.fill = ' ', .sign = '-', .precision = -1};
        jj_value v = jj_absent();
        p++;
        if (p < end && *p == '(') {
            const char *from = ++p;
            for (int open = 1; p < end; p++) {
                open += (*p == '(') - (*p == ')');
                if (!open) break;
            }
            if (p >= end) tn__jj_fail(j, TN_E_INVALID, "incomplete format key");
            v = named_value(&f, from, p++);
        }
        for (; p < end && strchr("-+ #0", *p) && *p; p++) {
            if (*p == '-')
                s.align = '<';
            else if (*p == '+')
                s.sign = '+';
            else if (*p == ' ' && s.sign != '+')
                s.sign = ' ';
            else if (*p == '#')
                s.alternate = true;
            else if (*p == '0')
                s.zero = true;
        }
        if (s.zero && s.align != '<') s.fill = '0', s.align = '=';
        if (p < end && *p == '*') {
            s.width = tn__jj_need_int(j, next_value(&f), "a width");
            if (s.width < 0) s.align = '<', s.width = s.width < -INT32_MAX ? INT32_MAX : -s.width;
            p++;
        } else
            s.width = read_count(j, &p, end);
        if (p < end && *p == '.') {
            p++;
            if (p < end && *p == '*') {
                s.precision = tn__jj_need_int(j, next_value(&f), "a precision");
                if (s.precision < 0) s.precision = 0;
                p++;
            } else
                s.precision = read_count(j, &p, end);
        }
        while (p < end && (*p == 'h' || *p == 'l' || *p == 'L')) p++;
        if (p >= end) tn__jj_fail(j, TN_E_INVALID, "incomplete format");
        s.type = *p++;
        if (s.type == '%') {
            tn__jj_put_char(j, &b, '%');
            continue;
        }
        if (s.precision > INT32_MAX) s.precision = INT32_MAX;
        put_percent(&f, &b, &s, jj_is_absent(v) ? next_value(&f) : v);
    }
    if (!f.used_names && f.next < f.count && values.type != JJ_DICT)
        tn__jj_fail(j, TN_E_INVALID, "not all arguments converted during string formatting");
    jj_value v = tn__jj_from_buffer(j, &b);
    v.as.string->safe = format->safe;
    return v;
}
