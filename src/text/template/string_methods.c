/* The methods of strings, as in Python, by code points. Methods of a safe string return safe strings. */
#include <utf8proc.h>

#include "text/template/engine.h"

static jj_value safe_like(jj_value v, const jj_string *s) {
    if (s->safe) v.as.string->safe = true;
    return v;
}

static jj_value strip_with(jj *j, jj_value self, const jj_args *args, const char *who, bool left, bool right) {
    jj_value chars;
    tn__jj_bind(j, args, who, "chars", 0, &chars);
    const jj_string *set = NULL;
    if (!jj_is_absent(chars) && chars.type != JJ_NONE) set = tn__jj_need_string(j, chars, "the characters to strip");
    return jj_str(tn__jj_trim(j, self.as.string, set, left, right));
}
static jj_value string_strip(jj *j, jj_value s, const jj_args *a) { return strip_with(j, s, a, "strip", true, true); }
static jj_value string_lstrip(jj *j, jj_value s, const jj_args *a) {
    return strip_with(j, s, a, "lstrip", true, false);
}
static jj_value string_rstrip(jj *j, jj_value s, const jj_args *a) {
    return strip_with(j, s, a, "rstrip", false, true);
}

static jj_value change_case(jj *j, jj_value self, const jj_args *args, const char *who, char mode) {
    tn__jj_bind(j, args, who, "", 0, NULL);
    return tn__jj_change_case(j, self.as.string, mode);
}
static jj_value string_upper(jj *j, jj_value s, const jj_args *a) { return change_case(j, s, a, "upper", 'u'); }
static jj_value string_lower(jj *j, jj_value s, const jj_args *a) { return change_case(j, s, a, "lower", 'l'); }
static jj_value string_capitalize(jj *j, jj_value s, const jj_args *a) {
    return change_case(j, s, a, "capitalize", 'c');
}
static jj_value string_title(jj *j, jj_value s, const jj_args *a) { return change_case(j, s, a, "title", 't'); }
static jj_value string_swapcase(jj *j, jj_value s, const jj_args *a) { return change_case(j, s, a, "swapcase", 's'); }
static jj_value string_casefold(jj *j, jj_value s, const jj_args *a) { return change_case(j, s, a, "casefold", 'f'); }

/* ---- Searching ---- */

static const char *find_last(const char *data, size_t length, const jj_string *part) {
    if (part->length > length) return NULL;
    for (const char *p = data + length - part->length;; p--) {
        if (part->length == 0 || memcmp(p, part->data, part->length) == 0) return p;
        if (p == data) return NULL;
    }
}

static const char *find_first(const char *data, size_t length, const jj_string *part) {
    if (part->length == 0) return data;
    return length ? memmem(data, length, part->data, part->length) : NULL;
}

/* The part of a string between the optional start and end arguments; false if start is after the end. */
static bool search_window(jj *j, jj_string *s, jj_value start, jj_value end, const char **from, const char **to) {
    int64_t count = (int64_t)tn__jj_chars(j, s), a = 0, b = count;
    if (!jj_is_absent(start) && start.type != JJ_NONE) a = tn__jj_need_int(j, start, "start");
    if (!jj_is_absent(end) && end.type != JJ_NONE) b = tn__jj_need_int(j, end, "end");
    if (a < 0) a = a < -count ? 0 : a + count;
    if (b < 0) b = b < -count ? 0 : b + count;
    if (b > count) b = count;
    if (a > b) return false;
    *from = tn__jj_seek(j, s, (size_t)a);
    *to = tn__jj_seek(j, s, (size_t)b);
    return true;
}

static bool affix_matches(const char *from, const char *to, const jj_string *part, bool at_end) {
    size_t length = (size_t)(to - from);
    if (part->length > length) return false;
    return part->length == 0 || memcmp(at_end ? to - part->length : from, part->data, part->length) == 0;
}

static jj_value check_affix(jj *j, jj_value self, const jj_args *args, const char *who, bool at_end) {
    jj_value out[3];
    const char *from, *to;
    tn__jj_bind(j, args, who, "prefix start end", 1, out);
    if (!search_window(j, self.as.string, out[1], out[2], &from, &to)) return jj_bool(false);
    if (out[0].type != JJ_TUPLE) {
        const jj_string *part = tn__jj_need_string(j, out[0], at_end ? "a suffix" : "a prefix");
        jj_charge_bytes(j, part->length);
        return jj_bool(affix_matches(from, to, part, at_end));
    }
    for (size_t i = 0; i < out[0].as.list->count; i++) {
        const jj_string *part = tn__jj_need_string(j, out[0].as.list->items[i], "an affix");
        jj_charge_bytes(j, part->length);
        if (affix_matches(from, to, part, at_end)) return jj_bool(true);
    }
    return jj_bool(false);
}
static jj_value string_startswith(jj *j, jj_value s, const jj_args *a) {
    return check_affix(j, s, a, "startswith", false);
}
static jj_value string_endswith(jj *j, jj_value s, const jj_args *a) {
    return check_affix(j, s, a, "endswith", true);
}

static jj_value find_with(jj *j, jj_value self, const jj_args *args, const char *who, bool last, bool must) {
    jj_value out[3];
    jj_string *s = self.as.string;
    const char *from, *to, *at = NULL;
    tn__jj_bind(j, args, who, "sub start end", 1, out);
    const jj_string *part = tn__jj_need_string(j, out[0], "what to find");
    jj_charge_bytes(j, s->length * (last ? 1 + part->length / 8 : 1));
    if (search_window(j, s, out[1], out[2], &from, &to))
        at = last ? find_last(from, (size_t)(to - from), part) : find_first(from, (size_t)(to - from), part);
    if (!at && must) tn__jj_fail(j, TN_E_INVALID, "substring not found");
    if (!at) return jj_int(-1);
    jj_string before = {.data = s->data, .length = (size_t)(at - s->data), .chars = SIZE_MAX};
    return jj_int((int64_t)tn__jj_chars(j, &before));
}
static jj_value string_find(jj *j, jj_value s, const jj_args *a) { return find_with(j, s, a, "find", false, false); }
static jj_value string_rfind(jj *j, jj_value s, const jj_args *a) { return find_with(j, s, a, "rfind", true, false); }
static jj_value string_index(jj *j, jj_value s, const jj_args *a) { return find_with(j, s, a, "index", false, true); }
static jj_value string_rindex(jj *j, jj_value s, const jj_args *a) {
    return find_with(j, s, a, "rindex", true, true);
}

static jj_value string_count(jj *j, jj_value self, const jj_args *args) {
    jj_value out[3];
    const char *from, *to;
    tn__jj_bind(j, args, "count", "sub start end", 1, out);
    const jj_string *part = tn__jj_need_string(j, out[0], "what to count");
    jj_charge_bytes(j, self.as.string->length);
    if (!search_window(j, self.as.string, out[1], out[2], &from, &to)) return jj_int(0);
    if (part->length == 0) {
        jj_string inside = {.data = from, .length = (size_t)(to - from), .chars = SIZE_MAX};
        return jj_int((int64_t)tn__jj_chars(j, &inside) + 1);
    }
    int64_t n = 0;
    while ((from = find_first(from, (size_t)(to - from), part))) from += part->length, n++;
    return jj_int(n);
}

static jj_value string_replace(jj *j, jj_value self, const jj_args *args) {
    jj_value out[3];
    jj_string *s = self.as.string;
    tn__jj_bind(j, args, "replace", "old new count", 2, out);
    const jj_string *old = tn__jj_need_string(j, out[0], "what to replace");
    const jj_string *new = tn__jj_need_string(j, out[1], "the replacement");
    if (s->safe) new = tn__jj_escape(j, out[1]);
    int64_t left = jj_is_absent(out[2]) ? -1 : tn__jj_need_int(j, out[2], "count");
    const char *p = s->data, *end = s->data + s->length;
    jj_buffer b = {0};
    jj_charge_bytes(j, s->length);
    if (left < 0) left = INT64_MAX;
    if (old->length == 0) { /* between all characters */
        uint32_t code;
        for (; left > 0; left--) {
            tn__jj_put(j, &b, new->data, new->length);
            if (p >= end) break;
            size_t n = tn__jj_decode(p, end, &code);
            tn__jj_put(j, &b, p, n);
            p += n;
        }
    } else {
        const char *hit;
        while (left-- > 0 && (hit = find_first(p, (size_t)(end - p), old))) {
            tn__jj_put(j, &b, p, (size_t)(hit - p));
            tn__jj_put(j, &b, new->data, new->length);
            p = hit + old->length;
        }
        if (p == s->data) return self;
    }
    tn__jj_put(j, &b, p, (size_t)(end - p));
    return safe_like(tn__jj_from_buffer(j, &b), s);
}

static jj_value remove_affix(jj *j, jj_value self, const jj_args *args, const char *who, bool at_end) {
    jj_value out;
    jj_string *s = self.as.string;
    tn__jj_bind(j, args, who, "affix", 1, &out);
    const jj_string *part = tn__jj_need_string(j, out, "an affix");
    if (!part->length || !affix_matches(s->data, s->data + s->length, part, at_end)) return self;
    return safe_like(tn__jj_text(j, at_end ? s->data : s->data + part->length, s->length - part->length), s);
}
static jj_value string_removeprefix(jj *j, jj_value s, const jj_args *a) {
    return remove_affix(j, s, a, "removeprefix", false);
}
static jj_value string_removesuffix(jj *j, jj_value s, const jj_args *a) {
    return remove_affix(j, s, a, "removesuffix", true);
}

/* ---- Splitting and joining ---- */

static void append_part(jj *j, jj_list *list, const jj_string *s, const char *from, const char *to) {
    tn__jj_append(j, list, safe_like(tn__jj_text(j, from, (size_t)(to - from)), s));
}

static bool has_space_at(const char *p, const char *end, size_t *n) {
    uint32_t code;
    *n = tn__jj_decode(p, end, &code);
    return tn__jj_space(code);
}

static void split_space(jj *j, jj_list *list, const jj_string *s, int64_t left) {
    const char *p = s->data, *end = s->data + s->length;
    size_t n;
    for (;;) {
        while (p < end && has_space_at(p, end, &n)) p += n;
        if (p >= end) return;
        const char *from = p;
        if (left-- == 0) {
            append_part(j, list, s, from, end);
            return;
        }
        while (p < end && !has_space_at(p, end, &n)) p += n;
        append_part(j, list, s, from, p);
    }
}

static void rsplit_space(jj *j, jj_list *list, jj_string *s, int64_t left) {
    jj_list *all = tn__jj_new_list(j, 0);
    split_space(j, all, s, -1);
    size_t keep = left < 0 || (size_t)left >= all->count ? 0 : all->count - (size_t)left;
    if (keep) { /* the first words stay together, including the spaces between them */
        const jj_string *last = all->items[keep - 1].as.string;
        append_part(j, list, s, s->data, last->data + last->length);
    }
    for (size_t i = keep; i < all->count; i++) tn__jj_append(j, list, all->items[i]);
}

static void reverse(jj_list *list) {
    for (size_t i = 0; i < list->count / 2; i++) {
        jj_value v = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = v;
    }
}

static jj_value split_with(jj *j, jj_value self, const jj_args *args, const char *who, bool from_right) {
    jj_value out[2];
    jj_string *s = self.as.string;
    jj_list *list = tn__jj_new_list(j, 0);
    tn__jj_bind(j, args, who, "sep maxsplit", 0, out);
    int64_t left = jj_is_absent(out[1]) ? -1 : tn__jj_need_int(j, out[1], "maxsplit");
    jj_charge_bytes(j, s->length);
    if (jj_is_absent(out[0]) || out[0].type == JJ_NONE) {
        if (from_right)
            rsplit_space(j, list, s, left);
        else
            split_space(j, list, s, left);
        return jj_listed(JJ_LIST, list);
    }
    const jj_string *separator = tn__jj_need_string(j, out[0], "a separator");
    const char *p = s->data, *end = s->data + s->length, *hit;
    if (!separator->length) tn__jj_fail(j, TN_E_INVALID, "empty separator");
    if (!from_right) {
        while (left-- != 0 && (hit = find_first(p, (size_t)(end - p), separator))) {
            append_part(j, list, s, p, hit);
            p = hit + separator->length;
        }
        append_part(j, list, s, p, end);
    } else {
        jj_charge_bytes(j, s->length * (separator->length / 8));
        while (left-- != 0 && (hit = find_last(p, (size_t)(end - p), separator))) {
            append_part(j, list, s, hit + separator->length, end);
            end = hit;
        }
        append_part(j, list, s, p, end);
        reverse(list);
    }
    return jj_listed(JJ_LIST, list);
}
static jj_value string_split(jj *j, jj_value s, const jj_args *a) { return split_with(j, s, a, "split", false); }
static jj_value string_rsplit(jj *j, jj_value s, const jj_args *a) { return split_with(j, s, a, "rsplit", true); }

static bool line_break(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static jj_value string_splitlines(jj *j, jj_value self, const jj_args *args) {
    jj_value keep;
    const jj_string *s = self.as.string;
    jj_list *list = tn__jj_new_list(j, 0);
    tn__jj_bind(j, args, "splitlines", "keepends", 0, &keep);
    bool keep_ends = tn__jj_truth(j, keep);
    const char *end = s->data + s->length, *from = s->data;
    for (const char *p = from; p < end;) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        if (!line_break(code)) {
            p += n;
            continue;
        }
        if (code == '\r' && p + 1 < end && p[1] == '\n') n = 2;
        append_part(j, list, s, from, keep_ends ? p + n : p);
        from = p += n;
    }
    if (from < end) append_part(j, list, s, from, end);
    return jj_listed(JJ_LIST, list);
}

static jj_value partition_with(jj *j, jj_value self, const jj_args *args, const char *who, bool last) {
    jj_value out;
    jj_string *s = self.as.string;
    tn__jj_bind(j, args, who, "sep", 1, &out);
    const jj_string *separator = tn__jj_need_string(j, out, "a separator");
    if (!separator->length) tn__jj_fail(j, TN_E_INVALID, "empty separator");
    jj_charge_bytes(j, s->length * (last ? 1 + separator->length / 8 : 1));
    const char *end = s->data + s->length;
    const char *hit = last ? find_last(s->data, s->length, separator) : find_first(s->data, s->length, separator);
    jj_list *list = tn__jj_new_list(j, 3);
    const char *middle = hit ? hit : last ? s->data : end, *after = hit ? hit + separator->length : middle;
    append_part(j, list, s, s->data, middle);
    append_part(j, list, s, middle, after);
    append_part(j, list, s, after, end);
    return jj_listed(JJ_TUPLE, list);
}
static jj_value string_partition(jj *j, jj_value s, const jj_args *a) {
    return partition_with(j, s, a, "partition", false);
}
static jj_value string_rpartition(jj *j, jj_value s, const jj_args *a) {
    return partition_with(j, s, a, "rpartition", true);
}

static jj_value string_join(jj *j, jj_value self, const jj_args *args) {
    jj_value out, item;
    jj_cursor cursor;
    tn__jj_bind(j, args, "join", "iterable", 1, &out);
    jj_list *items = tn__jj_collect(j, out);
    tn__jj_cursor(j, jj_listed(JJ_LIST, items), &cursor);
    while (tn__jj_next(j, &cursor, &item)) tn__jj_need_string(j, item, "an item to join");
    return safe_like(tn__jj_join(j, self.as.string, jj_listed(JJ_LIST, items)), self.as.string);
}

/* ---- Padding ---- */

static jj_value pad_with(jj *j, jj_value self, const jj_args *args, const char *who, char where) {
    jj_value out[2];
    jj_string *s = self.as.string, space = {.data = " ", .length = 1, .chars = 1};
    tn__jj_bind(j, args, who, "width fillchar", 1, out);
    int64_t width = tn__jj_need_int(j, out[0], "width"), have = (int64_t)tn__jj_chars(j, s);
    jj_string *fill = jj_is_absent(out[1]) ? &space : tn__jj_need_string(j, out[1], "the fill character");
    if (tn__jj_chars(j, fill) != 1) tn__jj_fail(j, TN_E_INVALID, "the fill character must be exactly one character");
    if (width <= have) return self;
    int64_t total = width - have, left = where == 'l' ? 0 : where == 'r' ? total : total / 2 + (total & width & 1);
    jj_buffer b = {0};
    if ((uint64_t)total > j->limits.max_output) tn__jj_fail(j, TN_E_LIMIT, "a width of %lld", (long long)width);
    for (int64_t i = 0; i < left; i++) tn__jj_put(j, &b, fill->data, fill->length);
    tn__jj_put(j, &b, s->data, s->length);
    for (int64_t i = left; i < total; i++) tn__jj_put(j, &b, fill->data, fill->length);
    return safe_like(tn__jj_from_buffer(j, &b), s);
}
static jj_value string_center(jj *j, jj_value s, const jj_args *a) { return pad_with(j, s, a, "center", 'c'); }
static jj_value string_ljust(jj *j, jj_value s, const jj_args *a) { return pad_with(j, s, a, "ljust", 'l'); }
static jj_value string_rjust(jj *j, jj_value s, const jj_args *a) { return pad_with(j, s, a, "rjust", 'r'); }

static jj_value string_zfill(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    jj_string *s = self.as.string;
    tn__jj_bind(j, args, "zfill", "width", 1, &out);
    int64_t width = tn__jj_need_int(j, out, "width"), have = (int64_t)tn__jj_chars(j, s);
    jj_buffer b = {0};
    size_t sign = s->length && (s->data[0] == '-' || s->data[0] == '+');
    tn__jj_put(j, &b, s->data, sign);
    for (; have < width; have++) tn__jj_put(j, &b, "0", 1);
    tn__jj_put(j, &b, s->data + sign, s->length - sign);
    return safe_like(tn__jj_from_buffer(j, &b), s);
}

static jj_value string_expandtabs(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    const jj_string *s = self.as.string;
    tn__jj_bind(j, args, "expandtabs", "tabsize", 0, &out);
    int64_t size = jj_is_absent(out) ? 8 : tn__jj_need_int(j, out, "tabsize"), column = 0;
    const char *end = s->data + s->length;
    jj_buffer b = {0};
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        if (code == '\t') {
            for (int64_t i = size > 0 ? size - column % size : 0; i > 0; i--, column++) tn__jj_put(j, &b, " ", 1);
        } else {
            tn__jj_put(j, &b, p, n);
            column = code == '\n' || code == '\r' ? 0 : column + 1;
        }
        p += n;
    }
    return safe_like(tn__jj_from_buffer(j, &b), s);
}

/* ---- Character classes ---- */

static bool is_decimal_char(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND; }
static bool is_letter_char(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
static bool is_numeric_char(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}
static bool is_superscript_char(uint32_t c) {
    return c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
           (c >= 0x2080 && c <= 0x2089);
}
static bool is_digit_char(uint32_t c) { return is_decimal_char(c) || is_superscript_char(c); }
static bool is_alnum_char(uint32_t c) { return is_letter_char(c) || is_numeric_char(c); }
static bool is_space_char(uint32_t c) { return tn__jj_space(c); }
static bool is_printable_char(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == ' ' || !(k == UTF8PROC_CATEGORY_CN || k >= UTF8PROC_CATEGORY_ZS);
}

static jj_value all_chars_are(jj *j, jj_value self, const jj_args *args, const char *who, bool (*is)(uint32_t),
                              bool empty) {
    const jj_string *s = self.as.string;
    tn__jj_bind(j, args, who, "", 0, NULL);
    jj_charge_bytes(j, s->length);
    const char *end = s->data + s->length;
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        p += tn__jj_decode(p, end, &code);
        if (!is(code)) return jj_bool(false);
    }
    return jj_bool(s->length || empty);
}
static bool is_ascii_char(uint32_t c) { return c < 0x80; }
static jj_value string_isalnum(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isalnum", is_alnum_char, false);
}
static jj_value string_isalpha(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isalpha", is_letter_char, false);
}
static jj_value string_isascii(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isascii", is_ascii_char, true);
}
static jj_value string_isdecimal(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isdecimal", is_decimal_char, false);
}
static jj_value string_isdigit(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isdigit", is_digit_char, false);
}
static jj_value string_isnumeric(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isnumeric", is_numeric_char, false);
}
static jj_value string_isprintable(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isprintable", is_printable_char, true);
}
static jj_value string_isspace(jj *j, jj_value s, const jj_args *a) {
    return all_chars_are(j, s, a, "isspace", is_space_char, false);
}

static jj_value case_is(jj *j, jj_value self, const jj_args *args, const char *who, char mode) {
    const jj_string *s = self.as.string;
    tn__jj_bind(j, args, who, "", 0, NULL);
    jj_charge_bytes(j, s->length);
    const char *end = s->data + s->length;
    bool any = false, inside = false;
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        p += tn__jj_decode(p, end, &code);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)code);
        bool up = k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT, low = k == UTF8PROC_CATEGORY_LL;
        if ((mode == 'u' && low) || (mode == 'l' && up)) return jj_bool(false);
        if (mode == 't' && ((up && inside) || (low && !inside))) return jj_bool(false);
        inside = up || low;
        any |= inside;
    }
    return jj_bool(any);
}
static jj_value string_isupper(jj *j, jj_value s, const jj_args *a) { return case_is(j, s, a, "isupper", 'u'); }
static jj_value string_islower(jj *j, jj_value s, const jj_args *a) { return case_is(j, s, a, "islower", 'l'); }
static jj_value string_istitle(jj *j, jj_value s, const jj_args *a) { return case_is(j, s, a, "istitle", 't'); }

static jj_value string_isidentifier(jj *j, jj_value self, const jj_args *args) {
    const jj_string *s = self.as.string;
    tn__jj_bind(j, args, "isidentifier", "", 0, NULL);
    const char *end = s->data + s->length;
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        bool first = p == s->data;
        p += tn__jj_decode(p, end, &code);
        if (!(code == '_' || is_letter_char(code) || (!first && is_decimal_char(code)))) return jj_bool(false);
    }
    return jj_bool(s->length != 0);
}

static jj_value string_format(jj *j, jj_value self, const jj_args *args) {
    return tn__jj_format(j, self.as.string, args);
}

const jj_named tn__jj_string_methods[] = {
    {"capitalize", string_capitalize, 0},
    {"casefold", string_casefold, 0},
    {"center", string_center, 0},
    {"count", string_count, 0},
    {"endswith", string_endswith, 0},
    {"expandtabs", string_expandtabs, 0},
    {"find", string_find, 0},
    {"format", string_format, 0},
    {"index", string_index, 0},
    {"isalnum", string_isalnum, 0},
    {"isalpha", string_isalpha, 0},
    {"isascii", string_isascii, 0},
    {"isdecimal", string_isdecimal, 0},
    {"isdigit", string_isdigit, 0},
    {"isidentifier", string_isidentifier, 0},
    {"islower", string_islower, 0},
    {"isnumeric", string_isnumeric, 0},
    {"isprintable", string_isprintable, 0},
    {"isspace", string_isspace, 0},
    {"istitle", string_istitle, 0},
    {"isupper", string_isupper, 0},
    {"join", string_join, 0},
    {"ljust", string_ljust, 0},
    {"lower", string_lower, 0},
    {"lstrip", string_lstrip, 0},
    {"partition", string_partition, 0},
    {"removeprefix", string_removeprefix, 0},
    {"removesuffix", string_removesuffix, 0},
    {"replace", string_replace, 0},
    {"rfind", string_rfind, 0},
    {"rindex", string_rindex, 0},
    {"rjust", string_rjust, 0},
    {"rpartition", string_rpartition, 0},
    {"rsplit", string_rsplit, 0},
    {"rstrip", string_rstrip, 0},
    {"split", string_split, 0},
    {"splitlines", string_splitlines, 0},
    {"startswith", string_startswith, 0},
    {"strip", string_strip, 0},
    {"swapcase", string_swapcase, 0},
    {"title", string_title, 0},
    {"upper", string_upper, 0},
    {"zfill", string_zfill, 0},
    {NULL, NULL, 0},
};
