/* Regular expressions of JSON schema's "pattern" as grammar expressions over the inside of a JSON string.
 *
 * Supported: literals, ., classes, \d \w \s and their negations, groups, |, * + ? {m,n}, and ^ $ at the ends. Without
 * ^ or $ any text can precede or follow. Characters that JSON must escape are generated escaped.
 *
 * Limits of the length narrow the one repetition of an alternative that varies: ^[a-z][a-z0-9]*$ of at most 8
 * characters is [a-z] [a-z0-9]{0,7}. */
#include "base/checked.h"
#include "text/schema/internal.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Numbers of characters of a text; SIZE_MAX: any number. */
typedef struct extent {
    size_t low, high;
} extent;

typedef struct regex {
    const char *pattern;
    size_t at;
    const tn__schema_path *path;
    tn__text *out;
    extent wanted;
    /* Of the alternative being read at depth 0. Parts are its atoms with their repetitions, and its open ends. */
    extent fixed;           /* of all parts but the last one that varies */
    int n_parts, n_varying; /* parts so far; those whose length varies */
    int varying;            /* the last one that varies: `times` repetitions of a text of the extent `unit` */
    extent unit, times;
    int narrow; /* the part that gets `narrowed` as its repetitions, or -1 */
    extent narrowed;
} regex;

typedef struct code_range {
    uint32_t low, high;
} code_range;

enum { RANGES_MAX = 256 };
typedef struct code_set {
    code_range ranges[RANGES_MAX];
    size_t n;
} code_set;

static char regex_peek(const regex *r) { return r->pattern[r->at]; }
static tn_status regex_unsupported(const regex *r, const char *what) {
    return tn__schema_fail(TN_E_UNSUPPORTED, r->path, "at character %zu: %s", r->at + 1, what);
}
static tn_status regex_syntax(const regex *r, const char *what) {
    return tn__schema_fail(TN_E_SYNTAX, r->path, "at character %zu: %s", r->at + 1, what);
}

/* ---- Characters ---- */

static tn_status add_code_range(const regex *r, code_set *set, uint32_t low, uint32_t high) {
    if (set->n == RANGES_MAX)
        return tn__schema_fail(TN_E_LIMIT, r->path, "the class has more than %d ranges", RANGES_MAX);
    set->ranges[set->n++] = (code_range){low, high};
    return TN_OK;
}

static int compare_code_ranges(const void *a, const void *b) {
    uint32_t x = ((const code_range *)a)->low, y = ((const code_range *)b)->low;
    return x < y ? -1 : x > y;
}

static tn_status complement_set(const regex *r, code_set *set) {
    code_set out = {.n = 0};
    uint32_t next = 0;
    qsort(set->ranges, set->n, sizeof *set->ranges, compare_code_ranges);
    for (size_t i = 0; i < set->n; i++) {
        if (set->ranges[i].low > next) TN_TRY(add_code_range(r, &out, next, set->ranges[i].low - 1));
        next = TN__MAX(next, set->ranges[i].high + 1);
    }
    if (next <= 0x10ffff) TN_TRY(add_code_range(r, &out, next, 0x10ffff));
    *set = out;
    return TN_OK;
}

/* Whether \c is a class: \d, \w, \s or one of their negations. */
static bool is_shorthand(char c) { return c && strchr("dDwWsS", c); }
static tn_status add_shorthand(const regex *r, code_set *set, char c) {
    static const code_range digits[] = {{'0', '9'}};
    static const code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const code_range spaces[] = {{9, 13},          {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680},
                                        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                        {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    const code_range *list = c == 'd' || c == 'D' ? digits : c == 'w' || c == 'W' ? words : spaces;
    size_t n = list == digits ? 1 : list == words ? 4 : TN__COUNT(spaces);
    code_set part = {.n = 0};
    for (size_t i = 0; i < n; i++) TN_TRY(add_code_range(r, &part, list[i].low, list[i].high));
    if (c == 'D' || c == 'W' || c == 'S') TN_TRY(complement_set(r, &part));
    for (size_t i = 0; i < part.n; i++) TN_TRY(add_code_range(r, set, part.ranges[i].low, part.ranges[i].high));
    return TN_OK;
}

static tn_status regex_hex(regex *r, int digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        char c = regex_peek(r);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return regex_syntax(r, "expected a hexadecimal digit");
        *out = *out << 4 | (uint32_t)digit;
    }
    if (*out >= 0xd800 && *out <= 0xdfff) return regex_unsupported(r, "surrogates are not supported");
    return TN_OK;
}

/* The character that an escape stands for; the backslash is consumed. */
static tn_status regex_escape(regex *r, uint32_t *code) {
    char c = regex_peek(r);
    r->at += c != '\0';
    switch (c) {
    case 'n': *code = '\n'; return TN_OK;
    case 'r': *code = '\r'; return TN_OK;
    case 't': *code = '\t'; return TN_OK;
    case 'f': *code = '\f'; return TN_OK;
    case 'v': *code = '\v'; return TN_OK;
    case 'x': return regex_hex(r, 2, code);
    case 'u': return regex_hex(r, 4, code);
    default: break;
    }
    if (c && strchr("\\/^$.*+?()[]{}|-\"' ,:;<>=!@#%&_~`", c)) {
        *code = (uint8_t)c;
        return TN_OK;
    }
    r->at -= c != '\0';
    return regex_unsupported(r, "this escape is not supported");
}

/* One character of the pattern. It is valid UTF-8, because jansson checked it, and the NUL ends it before 4 bytes. */
static uint32_t regex_utf8(regex *r) {
    uint32_t code = 0;
    r->at += tn__utf8_decode(r->pattern + r->at, 4, &code);
    return code;
}

/* Characters that JSON escapes, and their escapes. Other control characters are not generated in classes. */
static const struct {
    uint32_t code;
    const char *literal; /* GBNF */
} escaped[] = {
    {'"', "\"\\\\\\\"\""}, {'\\', "\"\\\\\\\\\""}, {'\b', "\"\\\\b\""}, {'\f', "\"\\\\f\""},
    {'\n', "\"\\\\n\""},   {'\r', "\"\\\\r\""},    {'\t', "\"\\\\t\""},
};

static bool is_unescaped(uint32_t code) { return code >= 0x20 && code != '"' && code != '\\' && code != 0x7f; }

static tn_status emit_character(regex *r, uint32_t code) {
    for (size_t i = 0; i < TN__COUNT(escaped); i++)
        if (escaped[i].code == code) {
            tn__text_puts(r->out, escaped[i].literal);
            return TN_OK;
        }
    if (!is_unescaped(code)) {
        tn__text_printf(r->out, "\"\\\\u%04x\"", code);
        return TN_OK;
    }
    tn__text_puts(r->out, "\"");
    tn__schema_append_code(r->out, code);
    tn__text_puts(r->out, "\"");
    return TN_OK;
}

/* The part of a range that JSON does not escape. */
static void emit_plain_range(regex *r, uint32_t low, uint32_t high, bool *any) {
    static const code_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7e}, {0x80, 0xd7ff}, {0xe000, 0x10ffff}};
    for (size_t i = 0; i < TN__COUNT(plain); i++) {
        uint32_t from = TN__MAX(low, plain[i].low), to = TN__MIN(high, plain[i].high);
        if (from > to) continue;
        if (!*any) tn__text_puts(r->out, "[");
        *any = true;
        tn__schema_append_code(r->out, from);
        if (to == from) continue;
        tn__text_puts(r->out, "-");
        tn__schema_append_code(r->out, to);
    }
}

static tn_status emit_set(regex *r, const code_set *set) {
    bool any = false, some;
    tn__text_puts(r->out, "(");
    for (size_t i = 0; i < set->n; i++) emit_plain_range(r, set->ranges[i].low, set->ranges[i].high, &any);
    if (any) tn__text_puts(r->out, "]");
    some = any;
    for (size_t e = 0; e < TN__COUNT(escaped); e++)
        for (size_t i = 0; i < set->n; i++) {
            if (escaped[e].code < set->ranges[i].low || escaped[e].code > set->ranges[i].high) continue;
            tn__text_printf(r->out, "%s%s", some ? " | " : "", escaped[e].literal);
            some = true;
            break;
        }
    tn__text_puts(r->out, ")");
    return some ? TN_OK : regex_unsupported(r, "this class has no character that can be generated");
}

static tn_status regex_class(regex *r) {
    code_set set = {.n = 0};
    r->at++;
    bool negated = regex_peek(r) == '^';
    if (negated) r->at++;
    while (regex_peek(r) != ']') {
        uint32_t low, high;
        if (!regex_peek(r)) return regex_syntax(r, "the class does not end");
        if (regex_peek(r) == '\\' && is_shorthand(r->pattern[r->at + 1])) {
            TN_TRY(add_shorthand(r, &set, r->pattern[r->at + 1]));
            r->at += 2;
            continue;
        }
        for (int end = 0; end < 2; end++) {
            uint32_t code;
            if (regex_peek(r) == '\\') {
                r->at++;
                if (is_shorthand(regex_peek(r))) return regex_unsupported(r, "a range cannot end in a class");
                if (regex_peek(r) == 'b') {
                    r->at++;
                    code = '\b';
                } else {
                    TN_TRY(regex_escape(r, &code));
                }
            } else {
                code = regex_utf8(r);
            }
            if (end == 0) {
                low = high = code;
                if (regex_peek(r) != '-' || r->pattern[r->at + 1] == ']' || !r->pattern[r->at + 1]) break;
                r->at++;
            } else {
                high = code;
            }
        }
        if (high < low) return regex_syntax(r, "the range runs backwards");
        TN_TRY(add_code_range(r, &set, low, high));
    }
    r->at++;
    if (negated) TN_TRY(complement_set(r, &set));
    return emit_set(r, &set);
}

/* ---- Lengths ---- */

static size_t add_lengths(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }
static size_t times_length(size_t n, size_t length) {
    return n == 0 || length == 0 ? 0 : n > SIZE_MAX / length ? SIZE_MAX : n * length;
}

/* Counts a part of an alternative at depth 0: `times` repetitions of a text of the extent `unit`. */
static void count_part(regex *r, extent unit, extent times) {
    const extent part = {times_length(times.low, unit.low), times_length(times.high, unit.high)};
    if (part.low == part.high) {
        r->fixed.low = add_lengths(r->fixed.low, part.low);
        r->fixed.high = add_lengths(r->fixed.high, part.high);
    } else {
        if (r->n_varying++ > 0) {
            r->fixed.low = add_lengths(r->fixed.low, times_length(r->times.low, r->unit.low));
            r->fixed.high = add_lengths(r->fixed.high, times_length(r->times.high, r->unit.high));
        }
        r->varying = r->n_parts;
        r->unit = unit;
        r->times = times;
    }
    r->n_parts++;
}

static extent alternative_extent(const regex *r) {
    if (!r->n_varying) return r->fixed;
    return (extent){add_lengths(r->fixed.low, times_length(r->times.low, r->unit.low)),
                    add_lengths(r->fixed.high, times_length(r->times.high, r->unit.high))};
}

static void emit_times(regex *r, extent times) {
    if (times.high == SIZE_MAX)
        tn__text_printf(r->out, "{%zu,}", times.low);
    else
        tn__text_printf(r->out, "{%zu,%zu}", times.low, TN__MIN(times.high, (size_t)TN__SCHEMA_REPEAT_MAX));
}

/* Repetitions of the varying part for which the alternative has a wanted length; low > high: there are none. */
static extent narrowed_times(const regex *r) {
    const size_t unit = r->unit.low, fixed = r->fixed.low;
    const size_t least = r->wanted.low > fixed ? (r->wanted.low - fixed + unit - 1) / unit : 0;
    const size_t most = r->wanted.high == SIZE_MAX ? SIZE_MAX : (r->wanted.high - fixed) / unit;
    return (extent){TN__MAX(least, r->times.low), TN__MIN(most, r->times.high)};
}

/* ---- Structure ---- */

static tn_status regex_alternatives(regex *r, int depth, extent *length);

static tn_status regex_group(regex *r, int depth, extent *length) {
    r->at++;
    if (regex_peek(r) == '?') {
        r->at++;
        if (regex_peek(r) == '<' && r->pattern[r->at + 1] != '=' && r->pattern[r->at + 1] != '!') {
            while (regex_peek(r) && regex_peek(r) != '>') r->at++; /* the group's name is ignored */
            if (!regex_peek(r)) return regex_syntax(r, "the group's name does not end");
            r->at++;
        } else if (regex_peek(r) == ':') {
            r->at++;
        } else {
            return regex_unsupported(r, "lookahead and lookbehind are not supported");
        }
    }
    tn__text_puts(r->out, "(");
    TN_TRY(regex_alternatives(r, depth + 1, length));
    if (regex_peek(r) != ')') return regex_syntax(r, "expected ')'");
    r->at++;
    tn__text_puts(r->out, ")");
    return TN_OK;
}

static tn_status regex_atom(regex *r, int depth, extent *length) {
    char c = regex_peek(r);
    uint32_t code;
    *length = (extent){1, 1};
    switch (c) {
    case '(': return regex_group(r, depth, length);
    case '[': return regex_class(r);
    case '.':
        r->at++;
        tn__text_puts(r->out, "dot");
        return TN_OK;
    case '^':
    case '$': return regex_unsupported(r, "^ and $ are supported only at the ends of the pattern");
    case '*':
    case '+':
    case '?': return regex_syntax(r, "there is nothing to repeat");
    case '\\':
        r->at++;
        if (is_shorthand(regex_peek(r))) {
            code_set set = {.n = 0};
            TN_TRY(add_shorthand(r, &set, regex_peek(r)));
            r->at++;
            return emit_set(r, &set);
        }
        TN_TRY(regex_escape(r, &code));
        return emit_character(r, code);
    default: return emit_character(r, regex_utf8(r));
    }
}

static size_t regex_count(regex *r) {
    size_t n = 0;
    for (; regex_peek(r) >= '0' && regex_peek(r) <= '9'; r->at++)
        if (n < 1000000) n = n * 10 + (size_t)(regex_peek(r) - '0');
    return n;
}

/* How often the atom before is repeated; written unless the repetition is to be narrowed. */
static tn_status regex_repeat(regex *r, bool narrow, extent *times) {
    char c = regex_peek(r);
    *times = (extent){1, 1};
    if (c == '*' || c == '+' || c == '?') {
        r->at++;
        *times = (extent){c == '+', c == '?' ? 1 : SIZE_MAX};
        if (!narrow) tn__text_printf(r->out, "%c", c);
    } else if (c == '{' && r->pattern[r->at + 1] >= '0' && r->pattern[r->at + 1] <= '9') {
        r->at++;
        times->low = times->high = regex_count(r);
        if (regex_peek(r) == ',') {
            r->at++;
            times->high = regex_peek(r) == '}' ? SIZE_MAX : regex_count(r);
        }
        if (regex_peek(r) != '}' || times->high < times->low) return regex_syntax(r, "this repetition is malformed");
        r->at++;
        if (times->low > TN__SCHEMA_REPEAT_MAX)
            return tn__schema_fail(TN_E_LIMIT, r->path, "%zu repetitions are too many", times->low);
        if (!narrow) emit_times(r, *times);
    } else {
        return TN_OK;
    }
    if (regex_peek(r) == '?') r->at++; /* lazy repetitions match the same texts */
    if (regex_peek(r) == '*' || regex_peek(r) == '+' || regex_peek(r) == '?')
        return regex_syntax(r, "there is nothing to repeat");
    return TN_OK;
}

/* Up to the next |, the end of the group or pattern, or a $ at the end of an alternative. */
static tn_status regex_sequence(regex *r, int depth, extent *length) {
    size_t start = r->out->length;
    *length = (extent){0, 0};
    while (regex_peek(r) && regex_peek(r) != '|' && regex_peek(r) != ')') {
        if (depth == 0 && regex_peek(r) == '$' && (!r->pattern[r->at + 1] || r->pattern[r->at + 1] == '|')) break;
        if (r->out->length > start) tn__text_puts(r->out, " ");
        extent unit, times;
        const bool narrow = depth == 0 && r->narrow == r->n_parts;
        TN_TRY(regex_atom(r, depth, &unit));
        TN_TRY(regex_repeat(r, narrow, &times));
        if (narrow) emit_times(r, r->narrowed);
        if (depth == 0) count_part(r, unit, times);
        length->low = add_lengths(length->low, times_length(times.low, unit.low));
        length->high = add_lengths(length->high, times_length(times.high, unit.high));
        if (r->out->status != TN_OK) return r->out->status;
    }
    if (r->out->length == start) tn__text_puts(r->out, "\"\"");
    return TN_OK;
}

/* Any text before or after what the pattern says. */
static void regex_open_end(regex *r) {
    tn__text_puts(r->out, " char");
    if (r->narrow == r->n_parts)
        emit_times(r, r->narrowed);
    else
        tn__text_puts(r->out, "*");
    tn__text_puts(r->out, " ");
    count_part(r, (extent){1, 1}, (extent){0, SIZE_MAX});
}

/* One alternative of the pattern, with its ends. */
static tn_status regex_alternative(regex *r) {
    extent length;
    r->fixed = r->unit = r->times = (extent){0, 0};
    r->n_parts = r->n_varying = 0;
    if (regex_peek(r) == '^')
        r->at++;
    else
        regex_open_end(r);
    TN_TRY(regex_sequence(r, 0, &length));
    if (regex_peek(r) == '$')
        r->at++;
    else
        regex_open_end(r);
    return TN_OK;
}

/* One alternative of the pattern, of a wanted length. Nothing is written if it has none. */
static tn_status regex_sized_alternative(regex *r) {
    const size_t at = r->at, before = r->out->length;
    r->narrow = -1;
    TN_TRY(regex_alternative(r));
    const extent all = alternative_extent(r);
    if (all.low >= r->wanted.low && all.high <= r->wanted.high) return TN_OK;
    tn__text_truncate(r->out, before);
    if (all.high < r->wanted.low || all.low > r->wanted.high) return TN_OK;
    if (r->n_varying != 1 || r->unit.low != r->unit.high)
        return tn__schema_fail(TN_E_UNSUPPORTED, r->path,
                               "together with minLength or maxLength this is supported only if one repetition of one "
                               "length varies");
    r->narrowed = narrowed_times(r);
    if (r->narrowed.low > r->narrowed.high) return TN_OK;
    if (r->narrowed.low > TN__SCHEMA_REPEAT_MAX)
        return tn__schema_fail(TN_E_LIMIT, r->path, "%zu repetitions are too many", r->narrowed.low);
    r->narrow = r->varying;
    r->at = at;
    return regex_alternative(r);
}

static tn_status regex_alternatives(regex *r, int depth, extent *length) {
    if (depth > 50) return tn__schema_fail(TN_E_LIMIT, r->path, "groups are nested more than 50 levels deep");
    for (*length = (extent){SIZE_MAX, 0};;) {
        extent one;
        TN_TRY(regex_sequence(r, depth, &one));
        *length = (extent){TN__MIN(length->low, one.low), TN__MAX(length->high, one.high)};
        if (regex_peek(r) != '|') return TN_OK;
        r->at++;
        tn__text_puts(r->out, " | ");
    }
}

tn_status tn__schema_emit_pattern(const char *pattern, size_t min, size_t max, const tn__schema_path *path,
                                  tn__text *out, bool *empty) {
    regex r = {.pattern = pattern, .path = path, .out = out, .wanted = {min, max}};
    *empty = true;
    for (;;) {
        const size_t before = out->length;
        if (!*empty) tn__text_puts(out, " | ");
        const size_t start = out->length;
        TN_TRY(regex_sized_alternative(&r));
        if (out->length > start)
            *empty = false;
        else
            tn__text_truncate(out, before);
        if (regex_peek(&r) != '|') break;
        r.at++;
    }
    if (regex_peek(&r)) return regex_syntax(&r, "unexpected character");
    return out->status;
}
