/* JSON schema to GBNF: references, one rule per schema, and the rules that all schemas use. */
#include "text/schema/internal.h"

#include "base/checked.h"
#include "base/hash.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Paths ---- */

tn__schema_path tn__schema_below(const tn__schema_path *parent, const char *key) {
    return (tn__schema_path){parent, key, 0, parent->depth + 1};
}
tn__schema_path tn__schema_at(const tn__schema_path *parent, size_t index) {
    return (tn__schema_path){parent, NULL, index, parent->depth + 1};
}

static void write_schema_path(const tn__schema_path *path, char *out, size_t size) {
    const tn__schema_path *nodes[2 * TN__SCHEMA_DEPTH_MAX] = {0};
    size_t n = 0, at = 1;
    for (; path->parent && n < TN__COUNT(nodes); path = path->parent) nodes[n++] = path;
    snprintf(out, size, "#");
    while (n-- > 0 && at < size) {
        int written = nodes[n]->key ? snprintf(out + at, size - at, "/%.64s", nodes[n]->key)
                                    : snprintf(out + at, size - at, "/%zu", nodes[n]->index);
        at += written > 0 ? (size_t)written : 0;
    }
}

tn_status tn__schema_fail(tn_status status, const tn__schema_path *path, const char *format, ...) {
    char where[256], message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_schema_path(path, where, sizeof where);
    return tn_fail(status, "schema %s: %s", where, message);
}

tn_status tn__schema_unsupported(tn__schema *s, const tn__schema_path *path, const char *format, ...) {
    enum { NOTES_MAX = 4000 };
    char where[256], message[512], line[800];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_schema_path(path, where, sizeof where);
    if (!s->relaxed) return tn_fail(TN_E_UNSUPPORTED, "schema %s: %s", where, message);
    snprintf(line, sizeof line, "%s: %s\n", where, message);
    if (s->notes.length < NOTES_MAX && !(s->notes.data && strstr(s->notes.data, line)))
        tn__text_puts(&s->notes, line);
    return s->notes.status;
}

/* ---- References ---- */

/* Decodes one step of a JSON pointer in a URI fragment: %XX, then ~1 and ~0. Returns the rest of the pointer. */
static const char *decode_pointer_step(const char *at, char *out, size_t size) {
    size_t n = 0;
    for (; *at && *at != '/'; at++) {
        char c = *at, hex[3] = {0};
        if (c == '%' && at[1] && at[2]) {
            memcpy(hex, at + 1, 2);
            c = (char)strtol(hex, NULL, 16);
            at += 2;
        } else if (c == '~' && (at[1] == '0' || at[1] == '1')) {
            c = *++at == '0' ? '~' : '/';
        }
        if (n + 1 < size) out[n++] = c;
    }
    out[n] = '\0';
    return at;
}

tn_status tn__schema_resolve(tn__schema *s, const char *ref, const tn__schema_path *path, json_t **out) {
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        *out = json_true();
        return tn__schema_unsupported(s, path,
                                      "$ref \"%.100s\": only references into this document (#/…) are supported", ref);
    }
    json_t *at = s->root;
    char step[512];
    for (const char *rest = ref + 1; *rest && at;) {
        rest = decode_pointer_step(rest + 1, step, sizeof step);
        at = json_is_array(at) ? json_array_get(at, strtoul(step, NULL, 10)) : json_object_get(at, step);
    }
    if (!at) return tn__schema_fail(TN_E_NOT_FOUND, path, "$ref \"%.100s\" does not exist", ref);
    *out = at;
    return TN_OK;
}

/* ---- Rules ---- */

static size_t find_memo(const tn__schema *s, const json_t *key) {
    size_t i = (size_t)tn__mix64((uint64_t)(uintptr_t)key >> 4) & (s->memo_slots - 1);
    while (s->memo_keys[i] && s->memo_keys[i] != key) i = (i + 1) & (s->memo_slots - 1);
    return i;
}

static tn_status grow_memos(tn__schema *s) {
    if (2 * (s->memo_count + 1) <= s->memo_slots) return TN_OK;
    tn__schema old = *s;
    size_t slots = s->memo_slots ? 2 * s->memo_slots : 64;
    s->memo_keys = tn_calloc(slots, sizeof *s->memo_keys);
    s->memo = tn_calloc(slots, sizeof *s->memo);
    if (!s->memo_keys || !s->memo) {
        tn_free(s->memo_keys);
        tn_free(s->memo);
        *s = old;
        return TN_E_NOMEM;
    }
    s->memo_slots = slots;
    for (size_t i = 0; i < old.memo_slots; i++) {
        if (!old.memo_keys[i]) continue;
        size_t slot = find_memo(s, old.memo_keys[i]);
        s->memo_keys[slot] = old.memo_keys[i];
        s->memo[slot] = old.memo[i];
    }
    tn_free(old.memo_keys);
    tn_free(old.memo);
    return TN_OK;
}

static tn_status new_rule_number(tn__schema *s, const tn__schema_path *path, uint32_t *rule) {
    if (s->n_rules >= TN__SCHEMA_RULES_MAX)
        return path ? tn__schema_fail(TN_E_LIMIT, path, "more than %d rules", TN__SCHEMA_RULES_MAX)
                    : tn_fail(TN_E_LIMIT, "the schema needs more than %d rules", TN__SCHEMA_RULES_MAX);
    *rule = s->n_rules++;
    return TN_OK;
}

tn_status tn__schema_add_rule(tn__schema *s, const tn__text *body, uint32_t *rule) {
    if (body->status != TN_OK) return body->status;
    TN_TRY(new_rule_number(s, NULL, rule));
    tn__text_printf(&s->text, "r%u ::= ", *rule);
    tn__text_join(&s->text, body);
    tn__text_puts(&s->text, "\n");
    return s->text.status;
}

/* Keywords that describe a schema without restricting it. */
static bool is_annotation(const char *key) {
    static const char *const list[] = {"title",
                                       "description",
                                       "default",
                                       "examples",
                                       "example",
                                       "$schema",
                                       "$id",
                                       "id",
                                       "$comment",
                                       "$anchor",
                                       "deprecated",
                                       "readOnly",
                                       "writeOnly",
                                       "$defs",
                                       "definitions",
                                       "$vocabulary",
                                       "contentEncoding",
                                       "contentMediaType",
                                       "contentSchema",
                                       "$dynamicAnchor",
                                       "discriminator",
                                       "xml",
                                       "externalDocs"};
    for (size_t i = 0; i < TN__COUNT(list); i++)
        if (strcmp(key, list[i]) == 0) return true;
    return strncmp(key, "x-", 2) == 0;
}

/* The value of `key` if it is the schema's only restriction, else NULL. */
static json_t *sole_keyword(json_t *schema, const char *key) {
    json_t *value = json_object_get(schema, key), *other;
    const char *name;
    if (!value) return NULL;
    json_object_foreach(schema, name, other) if (strcmp(name, key) != 0 && !is_annotation(name)) return NULL;
    return value;
}

static tn_status emit_choice_of_rules(tn__schema *s, json_t *list, const tn__schema_path *path, tn__text *out,
                                      bool *empty) {
    if (!json_is_array(list)) return tn__schema_fail(TN_E_SYNTAX, path, "must be an array of schemas");
    *empty = true;
    size_t i;
    json_t *branch;
    json_array_foreach(list, i, branch) {
        tn__schema_path at = tn__schema_at(path, i);
        uint32_t rule = TN__RULE_EMPTY;
        TN_TRY(tn__schema_rule(s, branch, &at, &rule));
        if (rule == TN__RULE_EMPTY) continue;
        tn__text_printf(out, "%sr%u", *empty ? "" : " | ", rule);
        *empty = false;
    }
    return TN_OK;
}

/* A schema that is only a reference or a choice refers to its parts by their rules, so that a recursive schema
 * becomes a recursive rule. Every other schema is expanded into flat schemas first. */
static tn_status emit_schema(tn__schema *s, json_t *schema, const tn__schema_path *path, tn__text *out, bool *empty) {
    json_t *value;
    *empty = false;
    if (json_is_boolean(schema)) {
        *empty = json_is_false(schema);
        tn__text_puts(out, "value");
        return TN_OK;
    }
    if (!json_is_object(schema)) return tn__schema_fail(TN_E_SYNTAX, path, "a schema must be an object or a boolean");
    if ((value = sole_keyword(schema, "$ref")) && json_is_string(value)) {
        json_t *target;
        uint32_t rule;
        TN_TRY(tn__schema_resolve(s, json_string_value(value), path, &target));
        tn__schema_path below = tn__schema_below(path, "$ref"); /* the depth bounds cyclic references */
        TN_TRY(tn__schema_rule(s, target, &below, &rule));
        *empty = rule == TN__RULE_EMPTY;
        tn__text_printf(out, "r%u", rule);
        return TN_OK;
    }
    if ((value = sole_keyword(schema, "anyOf"))) {
        tn__schema_path below = tn__schema_below(path, "anyOf");
        return emit_choice_of_rules(s, value, &below, out, empty);
    }
    if ((value = sole_keyword(schema, "oneOf"))) {
        tn__schema_path below = tn__schema_below(path, "oneOf");
        TN_TRY(tn__schema_check_apart(s, value, &below));
        return emit_choice_of_rules(s, value, &below, out, empty);
    }
    json_t *flats, *flat;
    TN_TRY(tn__schema_expand(s, schema, path, &flats));
    *empty = true;
    size_t i;
    json_array_foreach(flats, i, flat) {
        tn__text body = TN__SCHEMA_TEXT;
        bool none = false;
        uint32_t rule = TN__RULE_EMPTY;
        tn_status status = tn__schema_emit(s, flat, path, &body, &none);
        if (status == TN_OK && !none && json_array_size(flats) == 1) {
            tn__text_join(out, &body);
            status = body.status;
            *empty = false;
        } else if (status == TN_OK && !none) {
            status = tn__schema_add_rule(s, &body, &rule);
            if (status == TN_OK) tn__text_printf(out, "%sr%u", *empty ? "" : " | ", rule);
            *empty = false;
        }
        tn__text_free(&body);
        TN_TRY(status);
    }
    return TN_OK;
}

tn_status tn__schema_rule(tn__schema *s, json_t *schema, const tn__schema_path *path, uint32_t *rule) {
    if (path->depth > TN__SCHEMA_DEPTH_MAX) return tn__schema_fail(TN_E_LIMIT, path, "nested too deeply");
    TN_TRY(grow_memos(s));
    size_t slot = find_memo(s, schema);
    if (s->memo_keys[slot]) {
        if (s->memo[slot].open) s->memo[slot].referenced = true;
        *rule = s->memo[slot].rule;
        return TN_OK;
    }
    TN_TRY(new_rule_number(s, path, rule));
    s->memo_keys[slot] = schema;
    s->memo[slot] = (tn__schema_memo){.rule = *rule, .open = true};
    s->memo_count++;
    tn__text body = TN__SCHEMA_TEXT;
    bool empty = false;
    tn_status status = emit_schema(s, schema, path, &body, &empty);
    if (status == TN_OK) status = body.status;
    tn__schema_memo *memo = &s->memo[find_memo(s, schema)];
    memo->open = false;
    if (status == TN_OK && empty) {
        /* If a part of this schema refers to the rule, the rule must exist. It is written without an end, so that it
         * matches nothing and check_grammar() fails. */
        if (memo->referenced) tn__text_printf(&s->text, "r%u ::= [x] r%u\n", *rule, *rule);
        memo->rule = *rule = TN__RULE_EMPTY;
    } else if (status == TN_OK) {
        tn__text_printf(&s->text, "r%u ::= ", *rule);
        tn__text_join(&s->text, &body);
        tn__text_puts(&s->text, "\n");
    }
    tn__text_free(&body);
    return status == TN_OK ? s->text.status : status;
}

/* ---- The grammar ---- */

/* Rules that the rules made from the schema refer to. White space, digits and escapes are bounded as in
 * tn_grammar_json(). */
static const char core_rules[] =
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (string \":\" ws value ws (\",\" ws string \":\" ws value ws)*)? \"}\"\n"
    "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\"\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" code)\n"
    "code ::= [1-9a-cA-CeEfF] hex{3} | [dD] [0-7] hex{2} | \"0\" [1-9a-fA-F] hex{2}\n"
    "  | \"00\" [1-9a-fA-F] hex | \"000\" [1-9a-fA-F] | [dD] [89abAB] hex{2} \"\\\\u\" [dD] [c-fC-F] hex{2}\n"
    "hex ::= [0-9a-fA-F]\n"
    "dot ::= [^\"\\\\\\x00-\\x1F\\x7F\\u2028\\u2029] | \"\\\\\" [\"\\\\/bft]\n"
    "integer ::= \"0\" | \"-\"? [1-9] [0-9]{0,14}\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9] [0-9]?)?\n"
    "ws ::= \" \"? | \"\\n\" [ \\t]{0,20}\n";

static tn_status write_grammar(tn__schema *s) {
    tn__schema_path root = {0};
    uint32_t rule;
    TN_TRY(tn__schema_rule(s, s->root, &root, &rule));
    if (rule == TN__RULE_EMPTY) return tn_fail(TN_E_INFEASIBLE, "no JSON document matches the schema");
    tn__text_printf(&s->text, "root ::= r%u\n", rule);
    tn__text_puts(&s->text, core_rules);
    tn__schema_add_formats(s);
    return s->text.status;
}

/* Compiles the grammar once: this fails for a schema that only infinite documents match. */
static tn_status check_grammar(const char *gbnf) {
    tn_grammar *grammar;
    tn_status status = tn_grammar_new(gbnf, NULL, &grammar);
    if (status == TN_OK) tn_grammar_free(grammar);
    if (status == TN_E_SYNTAX) {
        char reason[300];
        snprintf(reason, sizeof reason, "%s", tn_error());
        return tn_fail(TN_E_INFEASIBLE, "no finite JSON document matches the schema (%s)", reason);
    }
    return status;
}

static tn_status convert_schema(const char *schema_json, bool relaxed, char **gbnf, char **notes) {
    json_error_t error;
    tn__schema s = {.text = TN__SCHEMA_TEXT, .relaxed = relaxed};
    s.root = json_loads(schema_json, JSON_DECODE_ANY, &error);
    if (!s.root)
        return tn_fail(TN_E_SYNTAX, "the schema is not JSON: line %d, column %d: %s", error.line, error.column,
                       error.text);
    tn_status status = TN_E_NOMEM;
    s.owned = json_array();
    if (s.owned) status = write_grammar(&s);
    if (status == TN_OK) status = check_grammar(s.text.data);
    if (status == TN_OK && notes && s.notes.length) status = tn__text_take(&s.notes, notes);
    if (status == TN_OK && (status = tn__text_take(&s.text, gbnf)) != TN_OK && notes) {
        tn_free(*notes);
        *notes = NULL;
    }
    tn__text_free(&s.text);
    tn__text_free(&s.notes);
    tn_free(s.memo_keys);
    tn_free(s.memo);
    json_decref(s.owned);
    json_decref(s.root);
    return status;
}

tn_status tn_schema_to_grammar(const char *schema_json, char **gbnf) {
    if (!schema_json || !gbnf) return tn_fail(TN_E_INVALID, "tn_schema_to_grammar: schema_json or gbnf is NULL");
    *gbnf = NULL;
    return convert_schema(schema_json, false, gbnf, NULL);
}

tn_status tn_schema_to_grammar_relaxed(const char *schema_json, char **gbnf, char **notes) {
    if (!schema_json || !gbnf)
        return tn_fail(TN_E_INVALID, "tn_schema_to_grammar_relaxed: schema_json or gbnf is NULL");
    *gbnf = NULL;
    if (notes) *notes = NULL;
    return convert_schema(schema_json, true, gbnf, notes);
}
