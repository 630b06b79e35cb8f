/* GBNF text to a tree: rules, alternatives, sequences, literals, character classes, groups, repetitions. */
#include "base/checked.h"
#include "base/hash.h"
#include "text/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

tn_status tn__grammar_grow(void *array_pointer, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return TN_OK;
    size_t grown = TN__MAX(need, *capacity * 2), bytes;
    grown = TN__MAX(grown, (size_t)16);
    if (!tn__mul_size(grown, size, &bytes)) return tn_fail(TN_E_OVERFLOW, "%zu items of %zu bytes", grown, size);
    void *old, *fresh;
    memcpy(&old, array_pointer, sizeof old);
    fresh = tn_realloc(old, bytes);
    if (!fresh) return TN_E_NOMEM;
    memcpy(array_pointer, &fresh, sizeof fresh);
    *capacity = grown;
    return TN_OK;
}

typedef struct parser {
    tn__gbnf *g;
    const char *text;
    size_t at, length;
} parser;

void tn__gbnf_place(const char *text, size_t at, unsigned *line, unsigned *column) {
    *line = *column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        } else {
            ++*column;
        }
    }
}

static tn_status fail_at(const parser *p, size_t at, tn_status status, const char *what) {
    unsigned line, column;
    tn__gbnf_place(p->text, at, &line, &column);
    return tn_fail(status, "grammar line %u, column %u: %s", line, column, what);
}
static tn_status syntax(const parser *p, const char *what) { return fail_at(p, p->at, TN_E_SYNTAX, what); }

static char peek(const parser *p) { return p->at < p->length ? p->text[p->at] : '\0'; }
static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Skips blanks and comments, and line ends too where they mean nothing. */
static void skip_space(parser *p, bool lines) {
    for (;;) {
        char c = peek(p);
        if (c == '#') {
            while (p->at < p->length && p->text[p->at] != '\n') p->at++;
        } else if (c == ' ' || c == '\t' || (c == '\r' && (lines || p->text[p->at + 1] != '\n')) ||
                   (lines && c == '\n')) {
            p->at++;
        } else {
            return;
        }
    }
}

static tn_status new_node(parser *p, tn__gbnf_node node, uint32_t *out) {
    tn__gbnf *g = p->g;
    TN_TRY(tn__grammar_grow(&g->nodes, &g->node_capacity, g->n_nodes + 1, sizeof *g->nodes));
    node.next = TN__NONE;
    g->nodes[g->n_nodes] = node;
    *out = (uint32_t)g->n_nodes++;
    return TN_OK;
}

/* ---- Rule names ---- */

static size_t name_slot(const tn__gbnf *g, const char *name, size_t length) {
    size_t i = (size_t)tn__hash_bytes(name, length, 0) & (g->name_slots - 1);
    for (; g->names[i]; i = (i + 1) & (g->name_slots - 1)) {
        const tn__gbnf_rule *rule = &g->rules[g->names[i] - 1];
        if (rule->name_length == length && memcmp(g->text + rule->name, name, length) == 0) break;
    }
    return i;
}

uint32_t tn__gbnf_find_rule(const tn__gbnf *g, const char *name, size_t length) {
    return g->name_slots ? g->names[name_slot(g, name, length)] - 1 : TN__NONE;
}

static tn_status grow_names(tn__gbnf *g) {
    if (2 * (g->n_rules + 1) <= g->name_slots) return TN_OK;
    size_t slots = g->name_slots ? g->name_slots * 2 : 64;
    uint32_t *fresh = tn_calloc(slots, sizeof *fresh);
    if (!fresh) return TN_E_NOMEM;
    tn_free(g->names);
    g->names = fresh;
    g->name_slots = slots;
    for (size_t r = 0; r < g->n_rules; r++)
        fresh[name_slot(g, g->text + g->rules[r].name, g->rules[r].name_length)] = (uint32_t)r + 1;
    return TN_OK;
}

/* Reads a name and finds or makes its rule. */
static tn_status parse_name(parser *p, uint32_t *rule) {
    tn__gbnf *g = p->g;
    size_t start = p->at;
    while (is_name_char(peek(p))) p->at++;
    if (p->at == start) return syntax(p, "a rule name is expected here");
    TN_TRY(grow_names(g));
    size_t slot = name_slot(g, p->text + start, p->at - start);
    if (!g->names[slot]) {
        if (g->n_rules == TN__GRAMMAR_RULES_MAX) return fail_at(p, start, TN_E_LIMIT, "too many rules");
        TN_TRY(tn__grammar_grow(&g->rules, &g->rule_capacity, g->n_rules + 1, sizeof *g->rules));
        g->rules[g->n_rules] = (tn__gbnf_rule){(uint32_t)start, (uint32_t)(p->at - start), TN__NONE};
        g->names[slot] = (uint32_t)++g->n_rules;
    }
    *rule = g->names[slot] - 1;
    return TN_OK;
}

/* ---- Characters ---- */

static tn_status parse_hex(parser *p, int digits, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = peek(p);
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return syntax(p, "a hexadecimal digit is expected here");
        value = value << 4 | digit;
    }
    *out = value;
    return TN_OK;
}

/* One character of the text, strictly decoded. */
static tn_status parse_utf8(parser *p, uint32_t *out) {
    const uint8_t *s = (const uint8_t *)p->text + p->at;
    int extra = s[0] < 0x80                   ? 0
                : s[0] >= 0xc2 && s[0] < 0xe0 ? 1
                : s[0] >= 0xe0 && s[0] < 0xf0 ? 2
                : s[0] >= 0xf0 && s[0] < 0xf5 ? 3
                                              : -1;
    if (extra < 0) return syntax(p, "the text is not UTF-8");
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    uint32_t code = extra == 0 ? s[0] : s[0] & (0x3fu >> extra);
    for (int i = 1; i <= extra; i++) {
        if ((s[i] & 0xc0) != 0x80) return syntax(p, "the text is not UTF-8");
        code = code << 6 | (s[i] & 0x3f);
    }
    if (code < least[extra] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return syntax(p, "the text is not UTF-8");
    p->at += (size_t)extra + 1;
    *out = code;
    return TN_OK;
}

/* One character of a literal or class, escaped or not. */
static tn_status parse_char(parser *p, uint32_t *out) {
    *out = 0;
    if (peek(p) != '\\') return parse_utf8(p, out);
    size_t start = p->at++;
    char c = peek(p);
    p->at++;
    switch (c) {
    case 'n': *out = '\n'; return TN_OK;
    case 'r': *out = '\r'; return TN_OK;
    case 't': *out = '\t'; return TN_OK;
    case '\\':
    case '"':
    case '\'':
    case '/':
    case '^':
    case '-':
    case '[':
    case ']': *out = (uint8_t)c; return TN_OK;
    case 'x': TN_TRY(parse_hex(p, 2, out)); break;
    case 'u': TN_TRY(parse_hex(p, 4, out)); break;
    case 'U': TN_TRY(parse_hex(p, 8, out)); break;
    default:
        p->at = start;
        return syntax(p, "unknown escape; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\^ \\- \\xHH \\uHHHH \\UHHHHHHHH");
    }
    if (*out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000))
        return fail_at(p, start, TN_E_SYNTAX, "the escape is not a Unicode character");
    return TN_OK;
}

static tn_status add_bytes_of(parser *p, uint32_t code) {
    tn__gbnf *g = p->g;
    TN_TRY(tn__grammar_grow(&g->bytes, &g->byte_capacity, g->n_bytes + 4, 1));
    uint8_t *b = g->bytes + g->n_bytes;
    size_t n = 0;
    if (code < 0x80) {
        b[n++] = (uint8_t)code;
    } else if (code < 0x800) {
        b[n++] = (uint8_t)(0xc0 | code >> 6);
    } else if (code < 0x10000) {
        b[n++] = (uint8_t)(0xe0 | code >> 12);
        b[n++] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    } else {
        b[n++] = (uint8_t)(0xf0 | code >> 18);
        b[n++] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
        b[n++] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    }
    if (code >= 0x80) b[n++] = (uint8_t)(0x80 | (code & 0x3f));
    g->n_bytes += n;
    return TN_OK;
}

static tn_status parse_literal(parser *p, uint32_t *node) {
    size_t start = p->at++, first = p->g->n_bytes;
    while (peek(p) != '"') {
        uint32_t code;
        if (p->at >= p->length || peek(p) == '\n') return fail_at(p, start, TN_E_SYNTAX, "the string does not end");
        TN_TRY(parse_char(p, &code));
        TN_TRY(add_bytes_of(p, code));
    }
    p->at++;
    return new_node(p,
                    (tn__gbnf_node){.kind = TN__GBNF_LITERAL,
                                    .first = (uint32_t)first,
                                    .count = (uint32_t)(p->g->n_bytes - first)},
                    node);
}

/* ---- Classes ---- */

static int compare_ranges(const void *a, const void *b) {
    uint32_t x = ((const tn__code_range *)a)->low, y = ((const tn__code_range *)b)->low;
    return x < y ? -1 : x > y;
}

static tn_status add_range(parser *p, uint32_t low, uint32_t high) {
    tn__gbnf *g = p->g;
    TN_TRY(tn__grammar_grow(&g->ranges, &g->range_capacity, g->n_ranges + 1, sizeof *g->ranges));
    g->ranges[g->n_ranges++] = (tn__code_range){low, high};
    return TN_OK;
}

/* Replaces the ranges from `first` on by the ranges of all other code points, in order. */
static tn_status complement(parser *p, size_t first) {
    tn__gbnf *g = p->g;
    qsort(g->ranges + first, g->n_ranges - first, sizeof *g->ranges, compare_ranges);
    size_t input_end = g->n_ranges;
    uint32_t next = 0; /* everything below is decided */
    for (size_t i = first; i < input_end; i++) {
        tn__code_range r = g->ranges[i];
        if (r.low > next) TN_TRY(add_range(p, next, r.low - 1));
        next = TN__MAX(next, r.high + 1);
    }
    if (next <= 0x10ffff) TN_TRY(add_range(p, next, 0x10ffff));
    size_t n = g->n_ranges - input_end;
    memmove(g->ranges + first, g->ranges + input_end, n * sizeof *g->ranges);
    g->n_ranges = first + n;
    return TN_OK;
}

static tn_status class_node(parser *p, size_t first, bool negated, uint32_t *node) {
    /* Complementing sorts and joins; what is complemented last takes the surrogates out. */
    if (!negated) TN_TRY(complement(p, first));
    TN_TRY(add_range(p, 0xd800, 0xdfff));
    TN_TRY(complement(p, first));
    return new_node(p,
                    (tn__gbnf_node){.kind = TN__GBNF_CLASS,
                                    .first = (uint32_t)first,
                                    .count = (uint32_t)(p->g->n_ranges - first)},
                    node);
}

static tn_status parse_class(parser *p, uint32_t *node) {
    size_t start = p->at++, first = p->g->n_ranges;
    bool negated = peek(p) == '^';
    if (negated) p->at++;
    while (peek(p) != ']') {
        uint32_t low, high;
        if (p->at >= p->length || peek(p) == '\n') return fail_at(p, start, TN_E_SYNTAX, "the class does not end");
        size_t place = p->at;
        TN_TRY(parse_char(p, &low));
        high = low;
        if (peek(p) == '-' && p->at + 1 < p->length && p->text[p->at + 1] != ']') {
            p->at++;
            if (peek(p) == '\n') return fail_at(p, start, TN_E_SYNTAX, "the class does not end");
            TN_TRY(parse_char(p, &high));
            if (high < low) return fail_at(p, place, TN_E_SYNTAX, "the range runs backwards");
        }
        TN_TRY(add_range(p, low, high));
    }
    p->at++;
    if (p->g->n_ranges == first) return fail_at(p, start, TN_E_SYNTAX, "the class is empty");
    TN_TRY(class_node(p, first, negated, node));
    if (p->g->nodes[*node].count == 0) return fail_at(p, start, TN_E_SYNTAX, "the class matches no character");
    return TN_OK;
}

/* ---- Repetitions, sequences, choices ---- */

static tn_status parse_number(parser *p, uint32_t *out) {
    if (peek(p) < '0' || peek(p) > '9') return syntax(p, "a number is expected here");
    uint32_t value = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        value = value * 10 + (uint32_t)(peek(p) - '0');
        if (value > TN__GBNF_REPEAT_MAX) return fail_at(p, p->at, TN_E_LIMIT, "more than 100000 repetitions");
    }
    *out = value;
    return TN_OK;
}

static tn_status parse_bounds(parser *p, uint32_t *min, uint32_t *max) {
    p->at++;
    skip_space(p, true);
    TN_TRY(parse_number(p, min));
    *max = *min;
    skip_space(p, true);
    if (peek(p) == ',') {
        p->at++;
        skip_space(p, true);
        *max = TN__REPEAT_FOREVER;
        if (peek(p) != '}') TN_TRY(parse_number(p, max));
        skip_space(p, true);
    }
    if (peek(p) != '}') return syntax(p, "'}' is expected here");
    if (*max < *min) return syntax(p, "the most repetitions are fewer than the least");
    p->at++;
    return TN_OK;
}

static tn_status parse_choice(parser *p, int depth, bool nested, uint32_t *node);

static tn_status parse_item(parser *p, int depth, uint32_t *node) {
    char c = peek(p);
    if (c == '"') return parse_literal(p, node);
    if (c == '[') return parse_class(p, node);
    if (c == '.') {
        p->at++;
        return class_node(p, p->g->n_ranges, true, node);
    }
    if (c == '(') {
        p->at++;
        skip_space(p, true);
        TN_TRY(parse_choice(p, depth + 1, true, node));
        skip_space(p, true);
        if (peek(p) != ')') return syntax(p, "')' is expected here");
        p->at++;
        return TN_OK;
    }
    uint32_t rule;
    TN_TRY(parse_name(p, &rule));
    return new_node(p, (tn__gbnf_node){.kind = TN__GBNF_RULE, .first = rule}, node);
}

static tn_status parse_repetitions(parser *p, int depth, bool nested, uint32_t *node) {
    for (;; depth++) {
        skip_space(p, nested);
        uint32_t min = 0, max = TN__REPEAT_FOREVER;
        char c = peek(p);
        if (c == '{') {
            TN_TRY(parse_bounds(p, &min, &max));
        } else if (c == '*' || c == '+' || c == '?') {
            p->at++;
            min = c == '+';
            if (c == '?') max = 1;
        } else {
            return TN_OK;
        }
        if (depth > TN__GBNF_DEPTH_MAX) return fail_at(p, p->at, TN_E_LIMIT, "nested too deeply");
        TN_TRY(new_node(p, (tn__gbnf_node){.kind = TN__GBNF_REPEAT, .first = *node, .count = min, .max = max}, node));
    }
}

/* Appends to a list of siblings. */
static void append(tn__gbnf *g, uint32_t parent, uint32_t *last, uint32_t child) {
    if (*last == TN__NONE)
        g->nodes[parent].first = child;
    else
        g->nodes[*last].next = child;
    *last = child;
}

static tn_status parse_sequence(parser *p, int depth, bool nested, uint32_t *node) {
    TN_TRY(new_node(p, (tn__gbnf_node){.kind = TN__GBNF_SEQUENCE, .first = TN__NONE}, node));
    uint32_t last = TN__NONE, item;
    for (;;) {
        skip_space(p, nested);
        char c = peek(p);
        if (!(c == '"' || c == '[' || c == '(' || c == '.' || is_name_char(c))) return TN_OK;
        TN_TRY(parse_item(p, depth, &item));
        TN_TRY(parse_repetitions(p, depth, nested, &item));
        append(p->g, *node, &last, item);
    }
}

/* Alternatives. Outside groups a line end closes the rule, unless the next line goes on with '|'. */
static tn_status parse_choice(parser *p, int depth, bool nested, uint32_t *node) {
    if (depth > TN__GBNF_DEPTH_MAX) return fail_at(p, p->at, TN_E_LIMIT, "nested too deeply");
    TN_TRY(new_node(p, (tn__gbnf_node){.kind = TN__GBNF_CHOICE, .first = TN__NONE}, node));
    uint32_t last = TN__NONE, sequence;
    for (;;) {
        TN_TRY(parse_sequence(p, depth, nested, &sequence));
        append(p->g, *node, &last, sequence);
        size_t end = p->at;
        skip_space(p, true);
        if (peek(p) != '|') {
            p->at = end;
            return TN_OK;
        }
        p->at++;
        skip_space(p, true);
    }
}

static tn_status parse_rule(parser *p) {
    uint32_t rule, body;
    size_t start = p->at;
    TN_TRY(parse_name(p, &rule));
    skip_space(p, false);
    if (p->length - p->at < 3 || memcmp(p->text + p->at, "::=", 3) != 0) return syntax(p, "'::=' is expected here");
    p->at += 3;
    skip_space(p, true);
    if (p->g->rules[rule].body != TN__NONE) return fail_at(p, start, TN_E_SYNTAX, "this rule is defined twice");
    TN_TRY(parse_choice(p, 0, false, &body));
    p->g->rules[rule].body = body;
    skip_space(p, false);
    if (p->at < p->length && peek(p) != '\n' && peek(p) != '\r') return syntax(p, "this does not belong here");
    return TN_OK;
}

static tn_status parse_rules(parser *p) {
    skip_space(p, true);
    while (p->at < p->length) {
        TN_TRY(parse_rule(p));
        skip_space(p, true);
    }
    for (size_t r = 0; r < p->g->n_rules; r++) {
        const tn__gbnf_rule *rule = &p->g->rules[r];
        if (rule->body != TN__NONE) continue;
        unsigned line, column;
        tn__gbnf_place(p->text, rule->name, &line, &column);
        return tn_fail(TN_E_SYNTAX, "grammar line %u, column %u: rule \"%.*s\" is not defined", line, column,
                       (int)TN__MIN(rule->name_length, 64u), p->text + rule->name);
    }
    return TN_OK;
}

tn_status tn__gbnf_parse(const char *text, tn__gbnf *out) {
    *out = (tn__gbnf){.text = text};
    parser p = {.g = out, .text = text, .length = strlen(text)};
    if (p.length > TN__GRAMMAR_TEXT_MAX)
        return tn_fail(TN_E_LIMIT, "a grammar of %zu bytes; at most %d", p.length, TN__GRAMMAR_TEXT_MAX);
    tn_status status = parse_rules(&p);
    if (status != TN_OK) tn__gbnf_free(out);
    return status;
}

void tn__gbnf_free(tn__gbnf *g) {
    tn_free(g->nodes);
    tn_free(g->rules);
    tn_free(g->bytes);
    tn_free(g->ranges);
    tn_free(g->names);
    *g = (tn__gbnf){0};
}
