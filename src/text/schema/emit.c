/* Flat JSON schemas as grammar expressions: values, objects, arrays, strings. */
#include "base/checked.h"
#include "base/hash.h"
#include "text/schema/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keywords whose restrictions a grammar cannot express. */
static tn_status check_unsupported(tn__schema *s, json_t *flat, const tn__schema_path *path) {
    static const char *const list[] = {"not",
                                       "if",
                                       "then",
                                       "else",
                                       "propertyNames",
                                       "dependentSchemas",
                                       "dependentRequired",
                                       "dependencies",
                                       "contains",
                                       "minContains",
                                       "maxContains",
                                       "unevaluatedItems",
                                       "$dynamicRef",
                                       "$recursiveRef"};
    for (size_t i = 0; i < TN__COUNT(list); i++)
        if (json_object_get(flat, list[i]))
            TN_TRY(tn__schema_unsupported(s, path, "the keyword \"%s\" is not supported", list[i]));
    /* With "properties" and without "additionalProperties" only named properties are generated: none is unevaluated.
     */
    if (json_object_get(flat, "unevaluatedProperties") &&
        (json_object_get(flat, "additionalProperties") || !json_object_get(flat, "properties")))
        return tn__schema_unsupported(s, path, "\"unevaluatedProperties\" is not supported here");
    return TN_OK;
}

/* ---- Formats ---- */

static const struct {
    const char *name;
    size_t length; /* of every match; 0: variable */
    const char *rules;
} formats[] = {
    {"date", 10,
     "f-date ::= [0-9]{4} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01])"
     " | (\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\")"
     " | \"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8])) | f-leap \"-02-29\"\n"
     "f-leap ::= [0-9]{2} f-fourth | f-fourth \"00\"\n"
     "f-fourth ::= \"0\" [48] | [2468] [048] | [13579] [26]\n"},
    {"time", 0,
     "f-time ::= f-hour \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? (\"Z\" | [-+] f-hour \":\" [0-5] "
     "[0-9])\n"
     "f-hour ::= [01] [0-9] | \"2\" [0-3]\n"},
    {"date-time", 0, "f-date-time ::= f-date \"T\" f-time\n"},
    {"uuid", 36, "f-uuid ::= hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12}\n"},
    {"ipv4", 0,
     "f-ipv4 ::= f-octet (\".\" f-octet){3}\n"
     "f-octet ::= [0-9] | [1-9] [0-9] | \"1\" [0-9] [0-9] | \"2\" [0-4] [0-9] | \"25\" [0-5]\n"},
};
enum { FORMAT_DATE, FORMAT_TIME, FORMAT_DATE_TIME };

void tn__schema_add_formats(tn__schema *s) {
    if (s->formats_used & 1u << FORMAT_DATE_TIME) s->formats_used |= 1u << FORMAT_DATE | 1u << FORMAT_TIME;
    for (size_t i = 0; i < TN__COUNT(formats); i++)
        if (s->formats_used & 1u << i) tn__text_puts(&s->text, formats[i].rules);
}

/* The row of the table for a "format", or -1: the standard treats other formats as annotations. */
static int find_format(json_t *flat) {
    const char *name = json_string_value(json_object_get(flat, "format"));
    for (size_t i = 0; name && i < TN__COUNT(formats); i++)
        if (strcmp(name, formats[i].name) == 0) return (int)i;
    return -1;
}

/* ---- Values ---- */

static size_t count_characters(const char *utf8) {
    size_t n = 0;
    for (; *utf8; utf8++) n += ((uint8_t)*utf8 & 0xc0) != 0x80;
    return n;
}

/* Whether a value of "enum" satisfies the schema's other keywords. */
static tn_status enum_value_matches(tn__schema *s, json_t *flat, json_t *value, unsigned types,
                                    const tn__schema_path *path, bool *fits) {
    static const char *const untested[] = {
        "pattern",     "properties",  "required",         "additionalProperties", "items",
        "prefixItems", "uniqueItems", "multipleOf",       "minProperties",        "maxProperties",
        "minItems",    "maxItems",    "patternProperties"};
    *fits = false;
    double number = json_number_value(value);
    unsigned type = json_is_null(value)      ? TN__TYPE_NULL
                    : json_is_boolean(value) ? TN__TYPE_BOOLEAN
                    : json_is_number(value)  ? (number == floor(number) ? TN__TYPE_INTEGER : TN__TYPE_NUMBER)
                    : json_is_string(value)  ? TN__TYPE_STRING
                    : json_is_array(value)   ? TN__TYPE_ARRAY
                                             : TN__TYPE_OBJECT;
    if (!(types & type)) return TN_OK;
    if (json_is_number(value)) {
        tn__bounds b;
        TN_TRY(tn__schema_bounds(flat, path, &b));
        if (number < b.low || number > b.high || (b.above_low && number == b.low) ||
            (b.below_high && number == b.high))
            return TN_OK;
    }
    if (json_is_string(value)) {
        size_t min, max, n = count_characters(json_string_value(value));
        TN_TRY(tn__schema_count(flat, "minLength", path, 0, &min));
        TN_TRY(tn__schema_count(flat, "maxLength", path, SIZE_MAX, &max));
        if (n < min || n > max) return TN_OK;
    }
    for (size_t i = 0; i < TN__COUNT(untested); i++) {
        bool concerns = i == 0   ? type == TN__TYPE_STRING
                        : i == 7 ? type & (TN__TYPE_NUMBER | TN__TYPE_INTEGER)
                                 : type & (TN__TYPE_ARRAY | TN__TYPE_OBJECT);
        if (concerns && json_object_get(flat, untested[i]))
            TN_TRY(tn__schema_unsupported(s, path, "\"enum\" or \"const\" together with \"%s\" is not supported",
                                          untested[i]));
    }
    if (type == TN__TYPE_STRING && find_format(flat) >= 0)
        TN_TRY(tn__schema_unsupported(s, path, "\"enum\" or \"const\" together with \"format\" is not supported"));
    *fits = true;
    return TN_OK;
}

static tn_status emit_json_value(json_t *value, tn__text *out) {
    if (json_is_real(value)) {
        char number[32];
        tn__number_text(json_real_value(value), number);
        tn__schema_append_literal(out, number, strlen(number));
        return TN_OK;
    }
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!dump) return tn_fail(TN_E_NOMEM, "out of memory while writing a value");
    tn__schema_append_literal(out, dump, strlen(dump));
    free(dump); /* allocated by jansson */
    return TN_OK;
}

static tn_status emit_enum(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty) {
    json_t *list = json_object_get(flat, "enum"), *value;
    unsigned types;
    bool stated;
    size_t i;
    TN_TRY(tn__schema_types(flat, path, &types, &stated));
    if (!stated) types = TN__TYPE_ALL;
    *empty = true;
    json_array_foreach(list, i, value) {
        bool fits;
        TN_TRY(enum_value_matches(s, flat, value, types, path, &fits));
        if (!fits) continue;
        if (!*empty) tn__text_puts(out, " | ");
        TN_TRY(emit_json_value(value, out));
        *empty = false;
    }
    return TN_OK;
}

/* ---- Strings ---- */

/* A string that matches the pattern at `path`; nothing is written if that fails. */
static tn_status emit_pattern(const char *pattern, size_t min, size_t max, const tn__schema_path *path, tn__text *out,
                              bool *empty) {
    const size_t before = out->length;
    tn__text_puts(out, "\"\\\"\" (");
    const tn_status status = tn__schema_emit_pattern(pattern, min, max, path, out, empty);
    tn__text_puts(out, ") \"\\\"\"");
    if (status == TN_OK) return TN_OK;
    tn__text_truncate(out, before);
    *empty = false;
    return status;
}

static tn_status emit_string(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty) {
    json_t *pattern = json_object_get(flat, "pattern");
    size_t min, max;
    TN_TRY(tn__schema_count(flat, "minLength", path, 0, &min));
    TN_TRY(tn__schema_count(flat, "maxLength", path, SIZE_MAX, &max));
    if (min > max) {
        *empty = true;
        return TN_OK;
    }
    int known = find_format(flat);
    bool sized = min > 0 || max != SIZE_MAX;
    if (pattern) {
        if (!json_is_string(pattern)) return tn__schema_fail(TN_E_SYNTAX, path, "\"pattern\" must be a string");
        if (known >= 0) TN_TRY(tn__schema_unsupported(s, path, "\"pattern\" together with format is not supported"));
        tn__schema_path below = tn__schema_below(path, "pattern");
        tn_status status = emit_pattern(json_string_value(pattern), min, max, &below, out, empty);
        if (status != TN_E_UNSUPPORTED || !s->relaxed) return status;
        TN_TRY(tn__schema_unsupported(s, path, "%s", tn_error()));
        /* Either the lengths are ignored or the pattern is. */
        status = sized ? emit_pattern(json_string_value(pattern), 0, SIZE_MAX, &below, out, empty) : status;
        if (status != TN_E_UNSUPPORTED) return status;
    }
    if (known >= 0) {
        size_t length = formats[known].length;
        if (sized && length == 0)
            TN_TRY(tn__schema_unsupported(
                s, path, "format \"%s\" together with minLength or maxLength is not supported", formats[known].name));
        *empty = sized && length && (length < min || length > max);
        s->formats_used |= 1u << known;
        tn__text_printf(out, "\"\\\"\" f-%s \"\\\"\"", formats[known].name);
        return TN_OK;
    }
    if (min > TN__SCHEMA_REPEAT_MAX)
        return tn__schema_fail(TN_E_LIMIT, path, "strings of at least %zu characters are not generated", min);
    if (!sized)
        tn__text_puts(out, "string");
    else if (max == SIZE_MAX)
        tn__text_printf(out, "\"\\\"\" char{%zu,} \"\\\"\"", min);
    else
        tn__text_printf(out, "\"\\\"\" char{%zu,%zu} \"\\\"\"", min, TN__MIN(max, (size_t)TN__SCHEMA_REPEAT_MAX));
    return TN_OK;
}

/* ---- Arrays ---- */

/* "," ws item, min to max times; SIZE_MAX: without maximum. */
static void emit_further_items(tn__text *out, uint32_t item, size_t min, size_t max) {
    if (max == 0) return;
    tn__text_printf(out, " (\",\" ws r%u ws)", item);
    if (max == SIZE_MAX)
        tn__text_printf(out, "{%zu,}", min);
    else
        tn__text_printf(out, "{%zu,%zu}", min, TN__MAX(min, TN__MIN(max, (size_t)TN__SCHEMA_REPEAT_MAX)));
}

static size_t subtract_count(size_t a, size_t b) { return a == SIZE_MAX ? SIZE_MAX : a > b ? a - b : 0; }

/* Written from the last item backwards: rule i generates what follows the first i items. */
static tn_status emit_tuple(tn__schema *s, const uint32_t *items, size_t n, uint32_t rest, size_t min, size_t max,
                            tn__text *out) {
    tn__text tail = TN__SCHEMA_TEXT;
    if (rest != TN__RULE_EMPTY && max > n)
        emit_further_items(&tail, rest, subtract_count(min, n), subtract_count(max, n));
    tn_status status = TN_OK;
    for (size_t i = n; i-- > 0 && status == TN_OK;) {
        uint32_t rule;
        if (tail.length == 0) tn__text_puts(&tail, "\"\"");
        status = tn__schema_add_rule(s, &tail, &rule);
        tn__text_free(&tail);
        if (i >= max) continue; /* beyond the maximum nothing follows */
        const char *open = i < min ? "" : "(", *close = i < min ? "" : ")?";
        tn__text_printf(&tail, "%s%sr%u ws r%u%s", open, i > 0 ? "\",\" ws " : "", items[i], rule, close);
    }
    tn__text_puts(out, "\"[\" ws ");
    tn__text_join(out, &tail);
    tn__text_puts(out, " \"]\"");
    if (status == TN_OK) status = tail.status;
    tn__text_free(&tail);
    return status;
}

static tn_status emit_array(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty) {
    json_t *prefix = json_object_get(flat, "prefixItems"), *items = json_object_get(flat, "items");
    size_t min, max, n = json_array_size(prefix);
    TN_TRY(tn__schema_count(flat, "minItems", path, 0, &min));
    TN_TRY(tn__schema_count(flat, "maxItems", path, SIZE_MAX, &max));
    if (json_is_true(json_object_get(flat, "uniqueItems")) && max > 1) {
        tn__schema_path below = tn__schema_below(path, "items");
        bool listed = false;
        if (n == 0 && items) TN_TRY(tn__schema_emit_unique(s, items, min, max, &below, out, &listed, empty));
        if (listed) return TN_OK;
        TN_TRY(tn__schema_unsupported(
            s, path, "\"uniqueItems\" is supported only for few arrays, with items of at most eight values"));
    }
    /* Without "items" no items after the tuple are generated unless minItems requires them. */
    if (!items && n > 0 && min <= n) max = TN__MIN(max, n);
    if (min > TN__SCHEMA_REPEAT_MAX)
        return tn__schema_fail(TN_E_LIMIT, path, "arrays of at least %zu items are not generated", min);
    if (min > max) {
        *empty = true;
        return TN_OK;
    }
    uint32_t rest = TN__RULE_EMPTY;
    if (max > n) {
        tn__schema_path below = tn__schema_below(path, "items");
        TN_TRY(tn__schema_rule(s, items ? items : json_true(), &below, &rest));
        if (rest == TN__RULE_EMPTY) max = TN__MIN(max, n);
    }
    if (n == 0) {
        if (min > max) {
            *empty = true;
            return TN_OK;
        }
        tn__text_puts(out, "\"[\" ws ");
        if (max > 0) {
            tn__text_printf(out, "%sr%u ws", min == 0 ? "(" : "", rest);
            emit_further_items(out, rest, subtract_count(min, 1), subtract_count(max, 1));
            tn__text_printf(out, "%s ", min == 0 ? ")?" : "");
        }
        tn__text_puts(out, "\"]\"");
        return TN_OK;
    }
    uint32_t *rules = tn_malloc(n * sizeof *rules);
    if (!rules) return TN_E_NOMEM;
    tn__schema_path below = tn__schema_below(path, "prefixItems");
    tn_status status = TN_OK;
    for (size_t i = 0; i < n && i < max && status == TN_OK; i++) {
        tn__schema_path at = tn__schema_at(&below, i);
        status = tn__schema_rule(s, json_array_get(prefix, i), &at, &rules[i]);
        if (status == TN_OK && rules[i] == TN__RULE_EMPTY)
            max = i; /* the array must end before an item that nothing matches */
    }
    *empty = min > max;
    if (status == TN_OK && !*empty) status = emit_tuple(s, rules, TN__MIN(n, max), rest, min, max, out);
    tn_free(rules);
    return status;
}

/* ---- Objects ---- */

typedef struct property {
    const char *name;
    uint32_t rule;
    bool required;
} property;

/* A rule for the rest of a key after its first `prefix` bytes, such that the key differs from all names, which share
 * that prefix. Escapes are generated only after the key has diverged from the names, because an escape can spell any
 * of their characters. A name is followed only up to its first character that JSON must escape. */
static tn_status emit_other_key(tn__schema *s, const char **names, size_t n, size_t prefix, int depth,
                                uint32_t *rule) {
    tn__text body = TN__SCHEMA_TEXT;
    tn_status status = TN_OK;
    bool is_name = false;
    if (depth > 1000) return tn_fail(TN_E_LIMIT, "a property name has more than 1000 characters");
    for (size_t i = 0; i < n; i++) is_name |= names[i][prefix] == '\0';
    tn__text children = TN__SCHEMA_TEXT, excluded = TN__SCHEMA_TEXT;
    /* The names are sorted, so those with the same next character are adjacent. */
    for (size_t i = 0; i < n && status == TN_OK;) {
        size_t bytes = 1, end = i + 1;
        uint8_t first = (uint8_t)names[i][prefix];
        if (first == '\0') {
            i++;
            continue;
        }
        while (((uint8_t)names[i][prefix + bytes] & 0xc0) == 0x80) bytes++;
        while (end < n && strncmp(names[i] + prefix, names[end] + prefix, bytes) == 0) end++;
        if (first >= 0x20 && first != '"' && first != '\\' && first != 0x7f) {
            uint32_t child;
            status = emit_other_key(s, names + i, end - i, prefix + bytes, depth + 1, &child);
            if (first == '[' || first == ']' || first == '^' || first == '-') tn__text_puts(&excluded, "\\");
            tn__text_append(&excluded, names[i] + prefix, bytes);
            tn__text_puts(&children, " | ");
            tn__schema_append_literal(&children, names[i] + prefix, bytes);
            tn__text_printf(&children, " r%u", child);
        }
        i = end;
    }
    tn__text_puts(&body, "[^\"\\\\\\x00-\\x1F\\x7F");
    tn__text_join(&body, &excluded);
    tn__text_printf(&body, "] char*%s", is_name ? "" : " | \"\"");
    tn__text_join(&body, &children);
    if (status == TN_OK) status = excluded.status;
    if (status == TN_OK) status = children.status;
    if (status == TN_OK) status = tn__schema_add_rule(s, &body, rule);
    tn__text_free(&body);
    tn__text_free(&children);
    tn__text_free(&excluded);
    return status;
}

static int compare_property_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A rule for a member whose name is not among the properties. */
static tn_status emit_other_member(tn__schema *s, const property *properties, size_t n, uint32_t value,
                                   uint32_t *rule) {
    tn__text body = TN__SCHEMA_TEXT;
    tn_status status = TN_OK;
    if (n == 0) {
        tn__text_printf(&body, "string \":\" ws r%u", value);
    } else {
        const char **names = tn_malloc(n * sizeof *names);
        uint32_t key;
        if (!names) return TN_E_NOMEM;
        for (size_t i = 0; i < n; i++) names[i] = properties[i].name;
        qsort(names, n, sizeof *names, compare_property_names);
        status = emit_other_key(s, names, n, 0, 0, &key);
        if (status == TN_OK) tn__text_printf(&body, "\"\\\"\" r%u \"\\\":\" ws r%u", key, value);
        tn_free(names);
    }
    if (status == TN_OK) status = tn__schema_add_rule(s, &body, rule);
    tn__text_free(&body);
    return status;
}

static tn_status emit_member(const property *p, tn__text *out) {
    json_t *name = json_string(p->name);
    char *dump = name ? json_dumps(name, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    json_decref(name);
    if (!dump) return tn_fail(TN_E_NOMEM, "out of memory while writing a property");
    tn__schema_append_literal(out, dump, strlen(dump));
    tn__text_printf(out, " \":\" ws r%u ws", p->rule);
    free(dump);
    return TN_OK;
}

/* Members in order: every required one, optional ones or not, commas only in between. The text `after` generates what
 * can follow a member when the properties from i on are left; `first` generates the first member and all that follows
 * it, which is one of the leading optional members or the first required one. `other` is the rule of further members,
 * or TN__RULE_EMPTY; with `some` there is at least one member. */
static tn_status emit_members(tn__schema *s, const property *p, size_t n, uint32_t other, size_t max_other, bool some,
                              tn__text *out) {
    tn__text after = TN__SCHEMA_TEXT, first = TN__SCHEMA_TEXT;
    tn_status status = TN_OK;
    if (other != TN__RULE_EMPTY) {
        tn__text_printf(&first, "r%u ws", other);
        emit_further_items(&first, other, 0, subtract_count(max_other, 1));
        emit_further_items(&after, other, 0, max_other);
    }
    bool may_be_empty = !some;
    for (size_t i = n; i-- > 0 && status == TN_OK;) {
        tn__text member = TN__SCHEMA_TEXT;
        uint32_t follow;
        if (after.length == 0) tn__text_puts(&after, "\"\"");
        status = tn__schema_add_rule(s, &after, &follow);
        if (status == TN_OK) status = emit_member(&p[i], &member);
        if (status == TN_OK) status = member.status;
        tn__text_free(&after);
        if (status == TN_OK) {
            if (p[i].required) {
                tn__text_free(&first);
                may_be_empty = false;
            }
            tn__text rest = first;
            first = (tn__text)TN__SCHEMA_TEXT;
            tn__text_printf(&first, "%s r%u", member.data, follow);
            if (rest.length) tn__text_printf(&first, " | %s", rest.data);
            if (status == TN_OK) status = rest.status;
            tn__text_free(&rest);
            tn__text_printf(&after, p[i].required ? "\",\" ws %s r%u" : "(\",\" ws %s)? r%u", member.data, follow);
        }
        tn__text_free(&member);
    }
    tn__text_puts(out, "\"{\" ws ");
    if (first.length) tn__text_printf(out, "(%s)%s ", first.data, may_be_empty ? "?" : "");
    tn__text_puts(out, "\"}\"");
    if (status == TN_OK) status = first.status;
    if (status == TN_OK) status = after.status;
    tn__text_free(&first);
    tn__text_free(&after);
    return status;
}

static bool required_has_name(json_t *list, const char *name) {
    size_t i;
    json_t *item;
    json_array_foreach(list, i,
                       item) if (json_is_string(item) && strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

/* Collects the properties that can be generated: those in "properties" and those only in "required". */
static tn_status collect_properties(tn__schema *s, json_t *flat, const tn__schema_path *path, property *list,
                                    size_t *count, bool *empty) {
    json_t *properties = json_object_get(flat, "properties"), *required = json_object_get(flat, "required");
    json_t *rest = json_object_get(flat, "additionalProperties"), *value;
    tn__schema_path below = tn__schema_below(path, "properties");
    const char *name;
    size_t i, n = 0;
    json_object_foreach(properties, name, value) {
        tn__schema_path at = tn__schema_below(&below, name);
        property p = {.name = name, .required = required_has_name(required, name)};
        TN_TRY(tn__schema_rule(s, value, &at, &p.rule));
        if (p.rule == TN__RULE_EMPTY) {
            *empty |= p.required;
            continue;
        }
        list[n++] = p;
    }
    json_array_foreach(required, i, value) {
        if (!json_is_string(value)) return tn__schema_fail(TN_E_SYNTAX, path, "\"required\" must list strings");
        property p = {.name = json_string_value(value), .required = true};
        bool known = json_object_get(properties, p.name);
        for (size_t k = 0; k < n; k++) known |= strcmp(list[k].name, p.name) == 0;
        if (known) continue;
        tn__schema_path at = tn__schema_below(path, "additionalProperties");
        TN_TRY(tn__schema_rule(s, rest ? rest : json_true(), &at, &p.rule));
        if (p.rule == TN__RULE_EMPTY) *empty = true;
        list[n++] = p;
    }
    *count = n;
    return TN_OK;
}

/* A member whose name matches the only pattern of "patternProperties"; members of other names are not generated. */
static tn_status emit_pattern_member(tn__schema *s, json_t *patterns, const tn__schema_path *path, uint32_t *rule) {
    tn__schema_path below = tn__schema_below(path, "patternProperties");
    void *first = json_object_iter(patterns);
    const char *pattern = json_object_iter_key(first);
    tn__text body = TN__SCHEMA_TEXT;
    uint32_t value;
    bool empty;
    tn_status status = emit_pattern(pattern, 0, SIZE_MAX, &below, &body, &empty);
    tn__schema_path at = tn__schema_below(&below, pattern);
    if (status == TN_OK) status = tn__schema_rule(s, json_object_iter_value(first), &at, &value);
    *rule = TN__RULE_EMPTY;
    if (status == TN_OK && value != TN__RULE_EMPTY) {
        tn__text_printf(&body, " \":\" ws r%u", value);
        status = tn__schema_add_rule(s, &body, rule);
    }
    tn__text_free(&body);
    return status;
}

/* Objects with "patternProperties": *done unless the keyword is ignored. */
static tn_status emit_pattern_object(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out,
                                     bool *empty, bool *done) {
    json_t *patterns = json_object_get(flat, "patternProperties");
    size_t min, max;
    uint32_t member = TN__RULE_EMPTY;
    TN_TRY(tn__schema_count(flat, "minProperties", path, 0, &min));
    TN_TRY(tn__schema_count(flat, "maxProperties", path, SIZE_MAX, &max));
    *done = false;
    if (json_object_size(patterns) != 1 || json_object_size(json_object_get(flat, "properties")) ||
        json_array_size(json_object_get(flat, "required")) || min > 1)
        return tn__schema_unsupported(s, path,
                                      "\"patternProperties\" is supported only with one pattern and without "
                                      "properties, required and minProperties above 1");
    const tn_status status = emit_pattern_member(s, patterns, path, &member);
    if (status == TN_E_UNSUPPORTED && s->relaxed) return tn__schema_unsupported(s, path, "%s", tn_error());
    TN_TRY(status);
    *done = true;
    if (max == 0) member = TN__RULE_EMPTY;
    *empty = min > max || (min > 0 && member == TN__RULE_EMPTY);
    return *empty ? TN_OK : emit_members(s, NULL, 0, member, max, min > 0, out);
}

static tn_status emit_object(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty) {
    bool done = false;
    if (json_object_get(flat, "patternProperties")) TN_TRY(emit_pattern_object(s, flat, path, out, empty, &done));
    if (done) return TN_OK;
    json_t *properties = json_object_get(flat, "properties"), *rest = json_object_get(flat, "additionalProperties");
    size_t min, max, n = 0, n_required = 0;
    /* Where patternProperties is ignored, the names that it allows are still allowed. */
    if (json_is_false(rest) && json_object_get(flat, "patternProperties")) rest = json_true();
    TN_TRY(tn__schema_count(flat, "minProperties", path, 0, &min));
    TN_TRY(tn__schema_count(flat, "maxProperties", path, SIZE_MAX, &max));
    size_t room = json_object_size(properties) + json_array_size(json_object_get(flat, "required"));
    property *list = tn_malloc((room + 1) * sizeof *list);
    if (!list) return TN_E_NOMEM;
    *empty = false;
    tn_status status = collect_properties(s, flat, path, list, &n, empty);
    if (status != TN_OK || *empty) goto out;
    for (size_t i = 0; i < n; i++) n_required += list[i].required;
    /* Other properties are generated if additionalProperties allows them, or if the schema names no properties at
     * all. Their names must also differ from names that are forbidden (their schema is false). */
    uint32_t other = TN__RULE_EMPTY;
    if (rest ? !json_is_false(rest) : room == 0 && !properties) {
        uint32_t value;
        tn__schema_path below = tn__schema_below(path, "additionalProperties");
        TN_TRY_GOTO(tn__schema_rule(s, rest ? rest : json_true(), &below, &value), status, out);
        size_t n_names = n;
        const char *name;
        json_t *unused;
        json_object_foreach(properties, name, unused) {
            bool listed = false;
            for (size_t k = 0; k < n; k++) listed |= strcmp(list[k].name, name) == 0;
            if (!listed) list[n_names++].name = name;
        }
        if (value != TN__RULE_EMPTY) TN_TRY_GOTO(emit_other_member(s, list, n_names, value, &other), status, out);
    }
    if (max < n_required) {
        *empty = true;
        goto out;
    }
    /* Generated keys may repeat, so several further members guarantee only one more property. */
    if (min > TN__MAX(n_required, (size_t)1) || n > max) {
        status = tn__schema_unsupported(s, path, "\"%s\" is supported only where the required properties meet it",
                                        n > max ? "maxProperties" : "minProperties");
        if (status != TN_OK) goto out;
        min = 0;
        if (n > max) max = SIZE_MAX;
    }
    size_t max_other = max == SIZE_MAX ? SIZE_MAX : max - n;
    if (max_other == 0) other = TN__RULE_EMPTY;
    *empty = min > 0 && n == 0 && other == TN__RULE_EMPTY;
    if (!*empty) status = emit_members(s, list, n, other, max_other, min > 0, out);
out:
    tn_free(list);
    return status;
}

/* ---- Flat schemas ---- */

tn_status tn__schema_emit(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty) {
    unsigned types;
    bool stated;
    TN_TRY(check_unsupported(s, flat, path));
    TN_TRY(tn__schema_types(flat, path, &types, &stated));
    if (json_object_get(flat, "enum")) return emit_enum(s, flat, path, out, empty);
    *empty = true;
    if (types == TN__TYPE_ALL && !stated) {
        tn__text_puts(out, "value");
        *empty = false;
        return TN_OK;
    }
    static const unsigned order[] = {TN__TYPE_OBJECT,  TN__TYPE_ARRAY,   TN__TYPE_STRING, TN__TYPE_NUMBER,
                                     TN__TYPE_INTEGER, TN__TYPE_BOOLEAN, TN__TYPE_NULL};
    for (size_t i = 0; i < TN__COUNT(order); i++) {
        tn__text part = TN__SCHEMA_TEXT;
        bool none = false;
        tn_status status = TN_OK;
        if (!(types & order[i])) continue;
        if (order[i] == TN__TYPE_INTEGER && types & TN__TYPE_NUMBER) continue; /* numbers include integers */
        switch (order[i]) {
        case TN__TYPE_OBJECT: status = emit_object(s, flat, path, &part, &none); break;
        case TN__TYPE_ARRAY: status = emit_array(s, flat, path, &part, &none); break;
        case TN__TYPE_STRING: status = emit_string(s, flat, path, &part, &none); break;
        case TN__TYPE_NUMBER: status = tn__schema_emit_number(s, flat, false, path, &part, &none); break;
        case TN__TYPE_INTEGER: status = tn__schema_emit_number(s, flat, true, path, &part, &none); break;
        case TN__TYPE_BOOLEAN: tn__text_puts(&part, "\"true\" | \"false\""); break;
        default: tn__text_puts(&part, "\"null\""); break;
        }
        if (status == TN_OK) status = part.status;
        if (status == TN_OK && !none) {
            tn__text_printf(out, "%s%s", *empty ? "" : " | ", part.data);
            *empty = false;
        }
        tn__text_free(&part);
        TN_TRY(status);
    }
    return TN_OK;
}
