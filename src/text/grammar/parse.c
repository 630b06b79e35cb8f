/* Parses GBNF text to a tree: rules, alternatives, sequences, literals, character classes, groups, repetitions. */
#include "base/checked.h"
#include "base/hash.h"
#include "text/grammar/internal.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

tn_status tn__grammar_grow(void *array_pointer, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return TN_OK;
    size_t grown = TN__MAX(need, *capacity * 2), bytes;
    grown = TN__MAX(grown, (size_t)16);
    if (!tn__mul_size(grown, size, &bytes))
        return tn_fail(TN_E_OVERFLOW, "an array of %zu items of %zu bytes is too large", grown, size);
    void *old, *fresh;
    memcpy(&old, array_pointer, sizeof old);
    fresh = tn_realloc(old, bytes);
    if (!fresh) return TN_E_NOMEM;
    memcpy(array_pointer, &fresh, sizeof fresh);
    *capacity = grown;
    return TN_OK;
}

typedef struct gbnf_parser {
    tn__gbnf *g;
    const char *text;
    size_t at, length;
} gbnf_parser;

void tn__gbnf_line_of(const char *text, size_t at, unsigned *line, unsigned *column) {
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

static tn_status gbnf_fail_at(const gbnf_parser *p, size_t at, tn_status status, const char *what) {
    unsigned line, column;
    tn__gbnf_line_of(p->text, at, &line, &column);
    return tn_fail(status, "grammar line %u, column %u: %s", line, column, what);
}
static tn_status gbnf_syntax(const gbnf_parser *p, const char *what) {
    return gbnf_fail_at(p, p->at, TN_E_SYNTAX, what);
}

static char gbnf_peek(const gbnf_parser *p) { return p->at < p->length ? p->text[p->at] : '\0'; }
static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Skips blanks and comments; with `lines` also line ends. */
static void skip_gbnf_space(gbnf_parser *p, bool lines) {
    for (;;) {
        char c = gbnf_peek(p);
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

static tn_status new_gbnf_node(gbnf_parser *p, tn__gbnf_node node, uint32_t *out) {
    tn__gbnf *g = p->g;
    TN_TRY(tn__grammar_grow(&g->nodes, &g->node_capacity, g->n_nodes + 1, sizeof *g->nodes));
    node.next = TN__NONE;
    g->nodes[g->n_nodes] = node;
    *out = (uint32_t)g->n_nodes++;
    return TN_OK;
}

/* ---- Rule names ---- */

static size_t find_name_slot(const tn__gbnf *g, const char *name, size_t length) {
    size_t i = (size_t)tn__hash_bytes(name, length, 0) & (g->name_slots - 1);
    for (; g->names[i]; i = (i + 1) & (g->name_slots - 1)) {
        const tn__gbnf_rule *rule = &g->rules[g->names[i] - 1];
        if (rule->name_length == length && memcmp(g->text + rule->name, name, length) == 0) break;
    }
    return i;
}

uint32_t tn__gbnf_find_rule(const tn__gbnf *g, const char *name, size_t length) {
    return g->name_slots ? g->names[find_name_slot(g, name, length)] - 1 : TN__NONE;
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
        fresh[find_name_slot(g, g->text + g->rules[r].name, g->rules[r].name_length)] = (uint32_t)r + 1;
    return TN_OK;
}

/* Parses a name and returns its rule, which is added if it is new. */
static tn_status gbnf_name(gbnf_parser *p, uint32_t *rule) {
    tn__gbnf *g = p->g;
    size_t start = p->at;
    while (is_name_char(gbnf_peek(p))) p->at++;
    if (p->at == start) return gbnf_syntax(p, "expected a rule name");
    TN_TRY(grow_names(g));
    size_t slot = find_name_slot(g, p->text + start, p->at - start);
    if (!g->names[slot]) {
        if (g->n_rules == TN__GRAMMAR_RULES_MAX) return gbnf_fail_at(p, start, TN_E_LIMIT, "too many rules");
        TN_TRY(tn__grammar_grow(&g->rules, &g->rule_capacity, g->n_rules + 1, sizeof *g->rules));
        g->rules[g->n_rules] = (tn__gbnf_rule){(uint32_t)start, (uint32_t)(p->at - start), TN__NONE};
        g->names[slot] = (uint32_t)++g->n_rules;
    }
    *rule = g->names[slot] - 1;
    return TN_OK;
}

/* ---- Characters ---- */

static tn_status gbnf_hex(gbnf_parser *p, int digits, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        char c = gbnf_peek(p);
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return gbnf_syntax(p, "expected a hexadecimal digit");
        value = value << 4 | digit;
    }
    *out = value;
    return TN_OK;
}

/* One character of the text. Invalid UTF-8 is an error. */
static tn_status gbnf_utf8(gbnf_parser *p, uint32_t *out) {
    unsigned n = tn__utf8_decode(p->text + p->at, p->length - p->at, out);
    if (!n) return gbnf_syntax(p, "the text is not UTF-8");
    p->at += n;
    return TN_OK;
}

/* One character of a literal or class, escaped or not. */
static tn_status gbnf_char(gbnf_parser *p, uint32_t *out) {
    *out = 0;
    if (gbnf_peek(p) != '\\') return gbnf_utf8(p, out);
    size_t start = p->at++;
    char c = gbnf_peek(p);
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
    case 'x': TN_TRY(gbnf_hex(p, 2, out)); break;
    case 'u': TN_TRY(gbnf_hex(p, 4, out)); break;
    case 'U': TN_TRY(gbnf_hex(p, 8, out)); break;
    default:
        p->at = start;
        return gbnf_syntax(
            p, "unknown escape; the escapes are \\n \\r \\t \\\\ \\\" \\[ \\] \\^ \\- \\xHH \\uHHHH \\UHHHHHHHH");
    }
    if (*out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000))
        return gbnf_fail_at(p, start, TN_E_SYNTAX, "the escape is not a Unicode character");
    return TN_OK;
}

static tn_status append_utf8(gbnf_parser *p, uint32_t code) {
    tn__gbnf *g = p->g;
    TN_TRY(tn__grammar_grow(&g->bytes, &g->byte_capacity, g->n_bytes + 4, 1));
    g->n_bytes += tn__utf8_encode(code, (char *)g->bytes + g->n_bytes);
    return TN_OK;
}

static tn_status gbnf_literal(gbnf_parser *p, uint32_t *node) {
    size_t start = p->at++, first = p->g->n_bytes;
    while (gbnf_peek(p) != '"') {
        uint32_t code;
        if (p->at >= p->length || gbnf_peek(p) == '\n')
            return gbnf_fail_at(p, start, TN_E_SYNTAX, "the string does not end");
        TN_TRY(gbnf_char(p, &code));
        TN_TRY(append_utf8(p, code));
    }
    p->at++;
    return new_gbnf_node(p,
                         (tn__gbnf_node){.kind = TN__GBNF_LITERAL,
                                         .first = (uint32_t)first,
                                         .count = (uint32_t)(p->g->n_bytes - first)},
                         node);
}

/* ---- Classes ---- */

static int compare_range_starts(const void *a, const void *b) {
    uint32_t x = ((const tn__code_range *)a)->low, y = ((const tn__code_range *)b)->low;
    return x < y ? -1 : x > y;
}

static tn_status add_class_range(gbnf_parser *p, uint32_t low, uint32_t high) {
    tn__gbnf *g = p->g;
    TN_TRY(tn__grammar_grow(&g->ranges, &g->range_capacity, g->n_ranges + 1, sizeof *g->ranges));
    g->ranges[g->n_ranges++] = (tn__code_range){low, high};
    return TN_OK;
}

/* Replaces the ranges from `first` on by their complement, in order. */
static tn_status complement_ranges(gbnf_parser *p, size_t first) {
    tn__gbnf *g = p->g;
    qsort(g->ranges + first, g->n_ranges - first, sizeof *g->ranges, compare_range_starts);
    size_t input_end = g->n_ranges;
    uint32_t next = 0; /* the complement below is complete */
    for (size_t i = first; i < input_end; i++) {
        tn__code_range r = g->ranges[i];
        if (r.low > next) TN_TRY(add_class_range(p, next, r.low - 1));
        next = TN__MAX(next, r.high + 1);
    }
    if (next <= 0x10ffff) TN_TRY(add_class_range(p, next, 0x10ffff));
    size_t n = g->n_ranges - input_end;
    memmove(g->ranges + first, g->ranges + input_end, n * sizeof *g->ranges);
    g->n_ranges = first + n;
    return TN_OK;
}

static tn_status new_class_node(gbnf_parser *p, size_t first, bool negated, uint32_t *node) {
    /* A complement sorts and joins the ranges; the last one also removes the surrogates. */
    if (!negated) TN_TRY(complement_ranges(p, first));
    TN_TRY(add_class_range(p, 0xd800, 0xdfff));
    TN_TRY(complement_ranges(p, first));
    return new_gbnf_node(p,
                         (tn__gbnf_node){.kind = TN__GBNF_CLASS,
                                         .first = (uint32_t)first,
                                         .count = (uint32_t)(p->g->n_ranges - first)},
                         node);
}

static tn_status gbnf_class(gbnf_parser *p, uint32_t *node) {
    size_t start = p->at++, first = p->g->n_ranges;
    bool negated = gbnf_peek(p) == '^';
    if (negated) p->at++;
    while (gbnf_peek(p) != ']') {
        uint32_t low, high;
        if (p->at >= p->length || gbnf_peek(p) == '\n')
            return gbnf_fail_at(p, start, TN_E_SYNTAX, "the class does not end");
        size_t range_start = p->at;
        TN_TRY(gbnf_char(p, &low));
        high = low;
        if (gbnf_peek(p) == '-' && p->at + 1 < p->length && p->text[p->at + 1] != ']') {
            p->at++;
            if (gbnf_peek(p) == '\n') return gbnf_fail_at(p, start, TN_E_SYNTAX, "the class does not end");
            TN_TRY(gbnf_char(p, &high));
            if (high < low) return gbnf_fail_at(p, range_start, TN_E_SYNTAX, "the range runs backwards");
        }
        TN_TRY(add_class_range(p, low, high));
    }
    p->at++;
    if (p->g->n_ranges == first) return gbnf_fail_at(p, start, TN_E_SYNTAX, "the class is empty");
    TN_TRY(new_class_node(p, first, negated, node));
    if (p->g->nodes[*node].count == 0) return gbnf_fail_at(p, start, TN_E_SYNTAX, "the class matches no character");
    return TN_OK;
}

/* ---- Repetitions, sequences, choices ---- */

static tn_status gbnf_number(gbnf_parser *p, uint32_t *out) {
    if (gbnf_peek(p) < '0' || gbnf_peek(p) > '9') return gbnf_syntax(p, "expected a number");
    uint32_t value = 0;
    for (; gbnf_peek(p) >= '0' && gbnf_peek(p) <= '9'; p->at++) {
        value = value * 10 + (uint32_t)(gbnf_peek(p) - '0');
        if (value > TN__GBNF_REPEAT_MAX) return gbnf_fail_at(p, p->at, TN_E_LIMIT, "more than 100000 repetitions");
    }
    *out = value;
    return TN_OK;
}

static tn_status gbnf_bounds(gbnf_parser *p, uint32_t *min, uint32_t *max) {
    p->at++;
    skip_gbnf_space(p, true);
    TN_TRY(gbnf_number(p, min));
    *max = *min;
    skip_gbnf_space(p, true);
    if (gbnf_peek(p) == ',') {
        p->at++;
        skip_gbnf_space(p, true);
        *max = TN__REPEAT_FOREVER;
        if (gbnf_peek(p) != '}') TN_TRY(gbnf_number(p, max));
        skip_gbnf_space(p, true);
    }
    if (gbnf_peek(p) != '}') return gbnf_syntax(p, "expected '}'");
    if (*max < *min) return gbnf_syntax(p, "the maximum of repetitions is below the minimum");
    p->at++;
    return TN_OK;
}

static tn_status gbnf_choice(gbnf_parser *p, int depth, bool nested, uint32_t *node);

static tn_status gbnf_item(gbnf_parser *p, int depth, uint32_t *node) {
    char c = gbnf_peek(p);
    if (c == '"') return gbnf_literal(p, node);
    if (c == '[') return gbnf_class(p, node);
    if (c == '.') {
        p->at++;
        return new_class_node(p, p->g->n_ranges, true, node);
    }
    if (c == '(') {
        p->at++;
        skip_gbnf_space(p, true);
        TN_TRY(gbnf_choice(p, depth + 1, true, node));
        skip_gbnf_space(p, true);
        if (gbnf_peek(p) != ')') return gbnf_syntax(p, "expected ')'");
        p->at++;
        return TN_OK;
    }
    uint32_t rule;
    TN_TRY(gbnf_name(p, &rule));
    return new_gbnf_node(p, (tn__gbnf_node){.kind = TN__GBNF_RULE, .first = rule}, node);
}

static tn_status gbnf_repetitions(gbnf_parser *p, int depth, bool nested, uint32_t *node) {
    for (;; depth++) {
        skip_gbnf_space(p, nested);
        uint32_t min = 0, max = TN__REPEAT_FOREVER;
        char c = gbnf_peek(p);
        if (c == '{') {
            TN_TRY(gbnf_bounds(p, &min, &max));
        } else if (c == '*' || c == '+' || c == '?') {
            p->at++;
            min = c == '+';
            if (c == '?') max = 1;
        } else {
            return TN_OK;
        }
        if (depth > TN__GBNF_DEPTH_MAX) return gbnf_fail_at(p, p->at, TN_E_LIMIT, "nested too deeply");
        TN_TRY(new_gbnf_node(p, (tn__gbnf_node){.kind = TN__GBNF_REPEAT, .first = *node, .count = min, .max = max},
                             node));
    }
}

/* Appends a child to a node. */
static void append_child(tn__gbnf *g, uint32_t parent, uint32_t *last, uint32_t child) {
    if (*last == TN__NONE)
        g->nodes[parent].first = child;
    else
        g->nodes[*last].next = child;
    *last = child;
}

static tn_status gbnf_sequence(gbnf_parser *p, int depth, bool nested, uint32_t *node) {
    TN_TRY(new_gbnf_node(p, (tn__gbnf_node){.kind = TN__GBNF_SEQUENCE, .first = TN__NONE}, node));
    uint32_t last = TN__NONE, item;
    for (;;) {
        skip_gbnf_space(p, nested);
        char c = gbnf_peek(p);
        if (!(c == '"' || c == '[' || c == '(' || c == '.' || is_name_char(c))) return TN_OK;
        TN_TRY(gbnf_item(p, depth, &item));
        TN_TRY(gbnf_repetitions(p, depth, nested, &item));
        append_child(p->g, *node, &last, item);
    }
}

/* Alternatives. Outside groups a line end ends the rule, unless the next line begins with '|'. */
static tn_status gbnf_choice(gbnf_parser *p, int depth, bool nested, uint32_t *node) {
    if (depth > TN__GBNF_DEPTH_MAX) return gbnf_fail_at(p, p->at, TN_E_LIMIT, "nested too deeply");
    TN_TRY(new_gbnf_node(p, (tn__gbnf_node){.kind = TN__GBNF_CHOICE, .first = TN__NONE}, node));
    uint32_t last = TN__NONE, sequence;
    for (;;) {
        TN_TRY(gbnf_sequence(p, depth, nested, &sequence));
        append_child(p->g, *node, &last, sequence);
        size_t end = p->at;
        skip_gbnf_space(p, true);
        if (gbnf_peek(p) != '|') {
            p->at = end;
            return TN_OK;
        }
        p->at++;
        skip_gbnf_space(p, true);
    }
}

static tn_status gbnf_rule(gbnf_parser *p) {
    uint32_t rule, body;
    size_t start = p->at;
    TN_TRY(gbnf_name(p, &rule));
    skip_gbnf_space(p, false);
    if (p->length - p->at < 3 || memcmp(p->text + p->at, "::=", 3) != 0) return gbnf_syntax(p, "expected '::='");
    p->at += 3;
    skip_gbnf_space(p, true);
    if (p->g->rules[rule].body != TN__NONE) return gbnf_fail_at(p, start, TN_E_SYNTAX, "this rule is defined twice");
    TN_TRY(gbnf_choice(p, 0, false, &body));
    p->g->rules[rule].body = body;
    skip_gbnf_space(p, false);
    if (p->at < p->length && gbnf_peek(p) != '\n' && gbnf_peek(p) != '\r')
        return gbnf_syntax(p, "unexpected character");
    return TN_OK;
}

static tn_status gbnf_rules(gbnf_parser *p) {
    skip_gbnf_space(p, true);
    while (p->at < p->length) {
        TN_TRY(gbnf_rule(p));
        skip_gbnf_space(p, true);
    }
    for (size_t r = 0; r < p->g->n_rules; r++) {
        const tn__gbnf_rule *rule = &p->g->rules[r];
        if (rule->body != TN__NONE) continue;
        unsigned line, column;
        tn__gbnf_line_of(p->text, rule->name, &line, &column);
        return tn_fail(TN_E_SYNTAX, "grammar line %u, column %u: rule \"%.*s\" is not defined", line, column,
                       (int)TN__MIN(rule->name_length, 64u), p->text + rule->name);
    }
    return TN_OK;
}

tn_status tn__gbnf_parse(const char *text, tn__gbnf *out) {
    *out = (tn__gbnf){.text = text};
    gbnf_parser p = {.g = out, .text = text, .length = strlen(text)};
    if (p.length > TN__GRAMMAR_TEXT_MAX)
        return tn_fail(TN_E_LIMIT, "a grammar of %zu bytes; at most %d", p.length, TN__GRAMMAR_TEXT_MAX);
    tn_status status = gbnf_rules(&p);
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
