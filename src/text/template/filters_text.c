/* Filters from text to text. */
#include <stdio.h>
#include <utf8proc.h>

#include "text/template/engine.h"

/* Filters accept any value and use its text. */
static jj_value method_of_text(jj *j, jj_value v, const char *method, const jj_args *args) {
    jj_string name = {.data = method, .length = strlen(method), .chars = SIZE_MAX};
    return tn__jj_call(j, tn__jj_method(j, jj_str(tn__jj_to_string(j, v)), &name), args);
}

static jj_value filter_upper(jj *j, jj_value v, const jj_args *args) { return method_of_text(j, v, "upper", args); }
static jj_value filter_lower(jj *j, jj_value v, const jj_args *args) { return method_of_text(j, v, "lower", args); }
static jj_value filter_capitalize(jj *j, jj_value v, const jj_args *args) {
    return method_of_text(j, v, "capitalize", args);
}
static jj_value filter_trim(jj *j, jj_value v, const jj_args *args) { return method_of_text(j, v, "strip", args); }

static jj_value filter_center(jj *j, jj_value v, const jj_args *args) {
    jj_value width;
    tn__jj_bind(j, args, "center", "width", 0, &width);
    if (jj_is_absent(width)) width = jj_int(80);
    return method_of_text(j, v, "center", &(jj_args){.count = 1, .values = &width});
}

static jj_value filter_replace(jj *j, jj_value v, const jj_args *args) {
    jj_value out[3];
    tn__jj_bind(j, args, "replace", "old new count", 2, out);
    for (size_t i = 0; i < 2; i++) out[i] = jj_str(tn__jj_to_string(j, out[i]));
    size_t given = jj_is_absent(out[2]) || out[2].type == JJ_NONE ? 2 : 3;
    jj_string plain = *tn__jj_to_string(j, v), *copy = tn__jj_alloc(j, sizeof *copy);
    *copy = plain;
    copy->safe = false;
    return method_of_text(j, jj_str(copy), "replace", &(jj_args){.count = given, .values = out});
}

/* Words begin after white space, hyphens and opening brackets. */
static jj_value filter_title(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "title", "", 0, NULL);
    const jj_string *s = tn__jj_to_string(j, v);
    const char *end = s->data + s->length;
    jj_buffer b = {0};
    bool start = true;
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        jj_string one = {.data = p, .length = n, .chars = 1};
        tn__jj_put_value(j, &b, tn__jj_change_case(j, &one, start ? 'u' : 'l'));
        start = tn__jj_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code));
        p += n;
    }
    jj_value titled = tn__jj_from_buffer(j, &b);
    titled.as.string->safe = s->safe;
    return titled;
}

static jj_value filter_indent(jj *j, jj_value v, const jj_args *args) {
    jj_value out[3];
    jj_buffer b = {0}, with = {0};
    tn__jj_bind(j, args, "indent", "width first blank", 0, out);
    if (out[0].type == JJ_STRING)
        tn__jj_put_value(j, &with, out[0]);
    else {
        int64_t width = jj_is_absent(out[0]) ? 4 : tn__jj_need_int(j, out[0], "an indentation");
        for (int64_t i = 0; i < width; i++) tn__jj_put_char(j, &with, ' ');
    }
    bool first = tn__jj_truth(j, out[1]), blank = tn__jj_truth(j, out[2]);
    jj_string *s = tn__jj_to_string(j, v);
    jj_buffer ended = {0}; /* a line end at the end would be lost otherwise */
    tn__jj_put(j, &ended, s->data, s->length);
    tn__jj_put_char(j, &ended, '\n');
    jj_list *lines = method_of_text(j, tn__jj_from_buffer(j, &ended), "splitlines", &(jj_args){0}).as.list;
    for (size_t i = 0; i < lines->count; i++) {
        const jj_string *line = lines->items[i].as.string;
        if (i) tn__jj_put_char(j, &b, '\n');
        if (i ? blank || line->length : first) tn__jj_put(j, &b, with.data, with.length);
        tn__jj_put(j, &b, line->data, line->length);
    }
    jj_value indented = tn__jj_from_buffer(j, &b);
    indented.as.string->safe = s->safe;
    return indented;
}

static jj_value filter_truncate(jj *j, jj_value v, const jj_args *args) {
    jj_value out[4];
    tn__jj_bind(j, args, "truncate", "length killwords end leeway", 0, out);
    jj_string *s = tn__jj_to_string(j, v),
              *tail = jj_is_absent(out[2]) ? tn__jj_string(j, "...", 3) : tn__jj_to_string(j, out[2]);
    int64_t length = jj_is_absent(out[0]) ? 255 : tn__jj_need_int(j, out[0], "a length");
    int64_t leeway = jj_is_absent(out[3]) || out[3].type == JJ_NONE ? 5 : tn__jj_need_int(j, out[3], "a leeway");
    int64_t have = (int64_t)tn__jj_chars(j, s), tail_length = (int64_t)tn__jj_chars(j, tail);
    if (length < tail_length)
        tn__jj_fail(j, TN_E_INVALID, "truncate: expected length >= %lld", (long long)tail_length);
    if (leeway < 0) tn__jj_fail(j, TN_E_INVALID, "truncate: expected leeway >= 0");
    if (have <= length || have - length <= leeway) return jj_str(s);
    const jj_string *kept = tn__jj_slice_chars(j, s, 0, (size_t)(length - tail_length)).as.string;
    size_t keep = kept->length;
    if (!tn__jj_truth(j, out[1])) {
        const char *space = kept->length ? memrchr(kept->data, ' ', kept->length) : NULL;
        if (space) keep = (size_t)(space - kept->data);
    }
    jj_buffer b = {0};
    tn__jj_put(j, &b, kept->data, keep);
    tn__jj_put(j, &b, tail->data, tail->length);
    return tn__jj_from_buffer(j, &b);
}

static bool word_char(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static jj_value filter_wordcount(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "wordcount", "", 0, NULL);
    const jj_string *s = tn__jj_to_string(j, v);
    const char *end = s->data + s->length;
    int64_t words = 0;
    bool inside = false;
    jj_charge_bytes(j, s->length);
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        p += tn__jj_decode(p, end, &code);
        bool word = word_char(code);
        words += word && !inside;
        inside = word;
    }
    return jj_int(words);
}

/* ---- wordwrap ---- */

typedef struct wrap {
    jj *j;
    jj_buffer *out;
    const jj_string *separator;
    int64_t width, column;
    jj_string *space; /* white space before the next piece; removed at a line end */
    bool break_words, any_line;
} wrap;

static void wrap_line(wrap *w) {
    tn__jj_put(w->j, w->out, w->separator->data, w->separator->length);
    w->column = 0;
    w->space = NULL;
}

static void wrap_piece(wrap *w, jj_string *piece) {
    jj *j = w->j;
    int64_t length = (int64_t)tn__jj_chars(j, piece), gap = w->space ? (int64_t)tn__jj_chars(j, w->space) : 0;
    if (w->column && w->column + gap + length > w->width && !(w->break_words && length > w->width)) {
        wrap_line(w);
        gap = 0;
    }
    while (w->break_words && length > w->width) { /* a piece wider than a line is split */
        int64_t room = w->width - w->column - gap;
        if (room < 1) {
            wrap_line(w);
            gap = 0;
            continue;
        }
        if (w->space) tn__jj_put(j, w->out, w->space->data, w->space->length);
        tn__jj_put_value(j, w->out, tn__jj_slice_chars(j, piece, 0, (size_t)room));
        piece = tn__jj_slice_chars(j, piece, (size_t)room, (size_t)length).as.string;
        length -= room;
        wrap_line(w);
        gap = 0;
    }
    if (w->space && (w->column || !w->any_line))
        tn__jj_put(j, w->out, w->space->data, w->space->length);
    else
        gap = 0;
    tn__jj_put(j, w->out, piece->data, piece->length);
    w->column += gap + length;
    w->space = NULL;
    w->any_line = true;
}

static void wrap_paragraph(wrap *w, const jj_string *line, bool hyphens) {
    jj *j = w->j;
    const char *p = line->data, *end = p + line->length;
    w->column = 0;
    w->space = NULL;
    w->any_line = false;
    while (p < end) {
        const char *from = p;
        uint32_t code;
        tn__jj_decode(p, end, &code);
        bool space = tn__jj_space(code);
        while (p < end) {
            size_t n = tn__jj_decode(p, end, &code);
            if (tn__jj_space(code) != space) break;
            p += n;
            bool inner = code == '-' && p - from > 1 && p < end;
            if (!space && hyphens && inner && word_char((unsigned char)p[-2]) && word_char((unsigned char)*p)) break;
        }
        if (space)
            w->space = tn__jj_string(j, from, (size_t)(p - from));
        else
            wrap_piece(w, tn__jj_string(j, from, (size_t)(p - from)));
    }
}

static jj_value filter_wordwrap(jj *j, jj_value v, const jj_args *args) {
    jj_value out[4];
    jj_buffer b = {0};
    tn__jj_bind(j, args, "wordwrap", "width break_long_words wrapstring break_on_hyphens", 0, out);
    wrap w = {.j = j, .out = &b, .width = jj_is_absent(out[0]) ? 79 : tn__jj_need_int(j, out[0], "a width")};
    if (w.width < 1) tn__jj_fail(j, TN_E_INVALID, "wordwrap: the width must be positive");
    w.break_words = jj_is_absent(out[1]) || tn__jj_truth(j, out[1]);
    w.separator =
        jj_is_absent(out[2]) || out[2].type == JJ_NONE ? tn__jj_string(j, "\n", 1) : tn__jj_to_string(j, out[2]);
    bool hyphens = jj_is_absent(out[3]) || tn__jj_truth(j, out[3]);
    jj_list *lines = method_of_text(j, v, "splitlines", &(jj_args){0}).as.list;
    for (size_t i = 0; i < lines->count; i++) {
        if (i) tn__jj_put(j, &b, w.separator->data, w.separator->length);
        wrap_paragraph(&w, lines->items[i].as.string, hyphens);
    }
    return tn__jj_from_buffer(j, &b);
}

/* ---- HTML and URLs ---- */

static jj_value filter_safe(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "safe", "", 0, NULL);
    jj_string *s = tn__jj_to_string(j, v), *copy = tn__jj_string(j, s->data, s->length);
    copy->safe = true;
    return jj_str(copy);
}

static jj_value filter_escape(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "escape", "", 0, NULL);
    return jj_str(tn__jj_escape(j, v));
}

static jj_value filter_forceescape(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "forceescape", "", 0, NULL);
    const jj_string *s = tn__jj_to_string(j, v);
    return jj_str(tn__jj_escape(j, tn__jj_text(j, s->data, s->length)));
}

static bool starts(const char *p, const char *end, const char *text) {
    size_t n = strlen(text);
    return (size_t)(end - p) >= n && memcmp(p, text, n) == 0;
}

/* Converts entities to characters: the five that escape produces, and numeric ones. */
static const char *put_entity(jj *j, jj_buffer *b, const char *p, const char *end) {
    static const struct {
        const char *name;
        char c;
    } known[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (starts(p, end, known[i].name)) {
            tn__jj_put_char(j, b, known[i].c);
            return p + strlen(known[i].name);
        }
    uint32_t code = 0;
    const char *q = p + 2;
    if (starts(p, end, "&#"))
        for (; q < end && *q >= '0' && *q <= '9' && code < 0x110000; q++) code = code * 10 + (uint32_t)(*q - '0');
    if (code && code < 0x110000 && q < end && *q == ';') {
        tn__jj_put_code(j, b, code);
        return q + 1;
    }
    tn__jj_put_char(j, b, '&');
    return p + 1;
}

static jj_value filter_striptags(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "striptags", "", 0, NULL);
    const jj_string *s = tn__jj_to_string(j, v);
    const char *p = s->data, *end = p + s->length;
    jj_buffer b = {0}, plain = {0};
    while (p < end) {
        const char *close = NULL;
        size_t n = 0;
        if (starts(p, end, "<!--")) close = memmem(p + 4, (size_t)(end - p - 4), "-->", 3), n = 3;
        if (!close && *p == '<') close = memchr(p, '>', (size_t)(end - p)), n = 1;
        jj_charge_bytes(j, close ? (size_t)(close - p) : *p == '<' ? (size_t)(end - p) : 0);
        if (close)
            p = close + n;
        else
            tn__jj_put_char(j, &b, *p++);
    }
    jj_string space = {.data = " ", .length = 1, .chars = 1};
    jj_value words = method_of_text(j, tn__jj_from_buffer(j, &b), "split", &(jj_args){0});
    const jj_string *joined = tn__jj_join(j, &space, words).as.string;
    p = joined->data, end = p + joined->length;
    while (p < end) {
        if (*p == '&')
            p = put_entity(j, &plain, p, end);
        else
            tn__jj_put_char(j, &plain, *p++);
    }
    return tn__jj_from_buffer(j, &plain);
}

static void put_quoted(jj *j, jj_buffer *b, jj_value v, bool query) {
    const jj_string *s = tn__jj_to_string(j, v);
    for (size_t i = 0; i < s->length; i++) {
        unsigned char c = (unsigned char)s->data[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        char hex[4];
        if (plain)
            tn__jj_put_char(j, b, (char)c);
        else if (c == ' ' && query)
            tn__jj_put_char(j, b, '+');
        else {
            snprintf(hex, sizeof hex, "%%%02X", c);
            jj_puts(j, b, hex);
        }
    }
}

static jj_value filter_urlencode(jj *j, jj_value v, const jj_args *args) {
    jj_buffer b = {0};
    jj_cursor cursor;
    jj_value pair;
    tn__jj_bind(j, args, "urlencode", "", 0, NULL);
    if (v.type == JJ_STRING || !tn__jj_iterable(v)) {
        put_quoted(j, &b, v, false);
        return tn__jj_from_buffer(j, &b);
    }
    jj_view view = {.dict = v.as.dict, .kind = 'i'};
    tn__jj_cursor(j, v.type == JJ_DICT ? (jj_value){.type = JJ_VIEW, .as.view = &view} : v, &cursor);
    while (tn__jj_next(j, &cursor, &pair)) {
        jj_list *two = tn__jj_collect(j, pair);
        if (two->count != 2) tn__jj_fail(j, TN_E_INVALID, "urlencode needs pairs of key and value");
        if (b.length) tn__jj_put_char(j, &b, '&');
        put_quoted(j, &b, two->items[0], true);
        tn__jj_put_char(j, &b, '=');
        put_quoted(j, &b, two->items[1], true);
    }
    return tn__jj_from_buffer(j, &b);
}

static jj_value filter_xmlattr(jj *j, jj_value v, const jj_args *args) {
    jj_value autospace;
    jj_buffer b = {0};
    tn__jj_bind(j, args, "xmlattr", "autospace", 0, &autospace);
    if (v.type != JJ_DICT) tn__jj_fail(j, TN_E_INVALID, "xmlattr needs a dict, not %s", tn__jj_type_name(v));
    for (size_t i = 0; i < v.as.dict->count; i++) {
        const jj_entry *entry = &v.as.dict->entries[i];
        if (entry->value.type == JJ_NONE || entry->value.type == JJ_UNDEFINED) continue;
        const jj_string *key = tn__jj_to_string(j, entry->key);
        for (size_t k = 0; k < key->length; k++)
            if (tn__jj_space((unsigned char)key->data[k]) || strchr("/>=", key->data[k]))
                tn__jj_fail(j, TN_E_INVALID, "invalid character in attribute name");
        if (b.length || jj_is_absent(autospace) || tn__jj_truth(j, autospace)) tn__jj_put_char(j, &b, ' ');
        tn__jj_put_value(j, &b, jj_str(tn__jj_escape(j, entry->key)));
        jj_puts(j, &b, "=\"");
        tn__jj_put_value(j, &b, jj_str(tn__jj_escape(j, entry->value)));
        tn__jj_put_char(j, &b, '"');
    }
    return tn__jj_from_buffer(j, &b);
}

static jj_value filter_format(jj *j, jj_value v, const jj_args *args) {
    if (args->count && args->keyword_count)
        tn__jj_fail(j, TN_E_INVALID, "format takes positional or keyword arguments, not both");
    jj_string *s = tn__jj_to_string(j, v);
    if (!args->keyword_count) {
        jj_list *values = tn__jj_new_list(j, args->count);
        for (size_t i = 0; i < args->count; i++) tn__jj_append(j, values, args->values[i]);
        return tn__jj_percent(j, s, jj_listed(JJ_TUPLE, values));
    }
    jj_dict *values = tn__jj_new_dict(j);
    for (size_t i = 0; i < args->keyword_count; i++)
        tn__jj_dict_set(j, values, jj_str(args->keywords[i]), args->keyword_values[i]);
    return tn__jj_percent(j, s, jj_dicted(values));
}

const jj_named tn__jj_text_filters[] = {
    {"capitalize", filter_capitalize, 0},
    {"center", filter_center, 0},
    {"e", filter_escape, 0},
    {"escape", filter_escape, 0},
    {"forceescape", filter_forceescape, 0},
    {"format", filter_format, 0},
    {"indent", filter_indent, 0},
    {"lower", filter_lower, 0},
    {"replace", filter_replace, 0},
    {"safe", filter_safe, 0},
    {"striptags", filter_striptags, 0},
    {"title", filter_title, 0},
    {"trim", filter_trim, 0},
    {"truncate", filter_truncate, 0},
    {"upper", filter_upper, 0},
    {"urlencode", filter_urlencode, 0},
    {"wordcount", filter_wordcount, 0},
    {"wordwrap", filter_wordwrap, 0},
    {"xmlattr", filter_xmlattr, 0},
    {NULL, NULL, 0},
};
