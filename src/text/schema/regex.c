/* Regular expressions of JSON schema's "pattern" as grammar expressions over the inside of a JSON string.
 *
 * Supported: literals, ., classes, \d \w \s and their negations, groups, |, * + ? {m,n}, and ^ $ at the ends. Without
 * ^ or $ any text can precede or follow. Characters that JSON must escape are generated escaped. */
#include "base/checked.h"
#include "text/schema/internal.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct regex {
    const char *pattern;
    size_t at;
    const tn__schema_path *path;
    tn__text *out;
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

/* ---- Structure ---- */

static tn_status regex_alternatives(regex *r, int depth);

static tn_status regex_group(regex *r, int depth) {
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
    TN_TRY(regex_alternatives(r, depth + 1));
    if (regex_peek(r) != ')') return regex_syntax(r, "expected ')'");
    r->at++;
    tn__text_puts(r->out, ")");
    return TN_OK;
}

static tn_status regex_atom(regex *r, int depth) {
    char c = regex_peek(r);
    uint32_t code;
    switch (c) {
    case '(': return regex_group(r, depth);
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

static tn_status regex_repeat(regex *r) {
    char c = regex_peek(r);
    if (c == '*' || c == '+' || c == '?') {
        r->at++;
        tn__text_printf(r->out, "%c", c);
    } else if (c == '{' && r->pattern[r->at + 1] >= '0' && r->pattern[r->at + 1] <= '9') {
        r->at++;
        size_t min = regex_count(r), max = min;
        bool open = false;
        if (regex_peek(r) == ',') {
            r->at++;
            open = regex_peek(r) == '}';
            if (!open) max = regex_count(r);
        }
        if (regex_peek(r) != '}' || max < min) return regex_syntax(r, "this repetition is malformed");
        r->at++;
        if (min > TN__SCHEMA_REPEAT_MAX)
            return tn__schema_fail(TN_E_LIMIT, r->path, "%zu repetitions are too many", min);
        if (open)
            tn__text_printf(r->out, "{%zu,}", min);
        else
            tn__text_printf(r->out, "{%zu,%zu}", min, TN__MIN(max, (size_t)TN__SCHEMA_REPEAT_MAX));
    } else {
        return TN_OK;
    }
    if (regex_peek(r) == '?') r->at++; /* lazy repetitions match the same texts */
    if (regex_peek(r) == '*' || regex_peek(r) == '+' || regex_peek(r) == '?')
        return regex_syntax(r, "there is nothing to repeat");
    return TN_OK;
}

/* Up to the next |, the end of the group or pattern, or a $ at the end of an alternative. */
static tn_status regex_sequence(regex *r, int depth) {
    size_t start = r->out->length;
    while (regex_peek(r) && regex_peek(r) != '|' && regex_peek(r) != ')') {
        if (depth == 0 && regex_peek(r) == '$' && (!r->pattern[r->at + 1] || r->pattern[r->at + 1] == '|')) break;
        if (r->out->length > start) tn__text_puts(r->out, " ");
        TN_TRY(regex_atom(r, depth));
        TN_TRY(regex_repeat(r));
        if (r->out->status != TN_OK) return r->out->status;
    }
    if (r->out->length == start) tn__text_puts(r->out, "\"\"");
    return TN_OK;
}

static tn_status regex_alternatives(regex *r, int depth) {
    if (depth > 50) return tn__schema_fail(TN_E_LIMIT, r->path, "groups are nested more than 50 levels deep");
    for (;;) {
        if (depth == 0) {
            if (regex_peek(r) == '^')
                r->at++;
            else
                tn__text_puts(r->out, "char* ");
        }
        TN_TRY(regex_sequence(r, depth));
        if (depth == 0) {
            if (regex_peek(r) == '$')
                r->at++;
            else
                tn__text_puts(r->out, " char*");
        }
        if (regex_peek(r) != '|') return TN_OK;
        r->at++;
        tn__text_puts(r->out, " | ");
    }
}

tn_status tn__schema_emit_pattern(const char *pattern, const tn__schema_path *path, tn__text *out) {
    regex r = {.pattern = pattern, .path = path, .out = out};
    TN_TRY(regex_alternatives(&r, 0));
    if (regex_peek(&r)) return regex_syntax(&r, "unexpected character");
    return out->status;
}
