/* JSON schema to GBNF inside: the text being written, paths for messages, rules by schema. */
#ifndef TN_LLM_SCHEMA_INTERNAL_H
#define TN_LLM_SCHEMA_INTERNAL_H

#include "base/text.h"
#include "tenon/grammar.h"

#include <jansson.h>

enum {
    TN__SCHEMA_DEPTH_MAX = 100,        /* schemas within schemas, and references behind references */
    TN__SCHEMA_ALTERNATIVES_MAX = 200, /* of one schema after anyOf, oneOf and allOf are multiplied out */
    TN__SCHEMA_RULES_MAX = 20000,
    TN__SCHEMA_WORK_MAX = 200000,  /* schemas multiplied out in all */
    TN__SCHEMA_MERGES_MAX = 20000, /* pairs of schemas merged in all */
    TN__SCHEMA_TEXT_MAX = 8 << 20,
    TN__SCHEMA_REPEAT_MAX = 10000, /* longer strings and arrays than this are not generated */
};

/* Every text of a conversion starts with this, so that each is limited. */
#define TN__SCHEMA_TEXT                                                                                              \
    { .limit = TN__SCHEMA_TEXT_MAX }

/* One character of a GBNF literal or class, escaped as needed. */
void tn__schema_append_code(tn__text *out, uint32_t code);
/* A GBNF literal of UTF-8 text. */
void tn__schema_append_literal(tn__text *out, const char *utf8, size_t count);

/* Where we are in the schema, for messages: "#/properties/name". */
typedef struct tn__schema_path {
    const struct tn__schema_path *parent;
    const char *key; /* or, where NULL, the index */
    size_t index;
    int depth;
} tn__schema_path;
tn__schema_path tn__schema_below(const tn__schema_path *parent, const char *key);
tn__schema_path tn__schema_at(const tn__schema_path *parent, size_t index);
/* tn_fail with the path before the message. */
tn_status tn__schema_fail(tn_status status, const tn__schema_path *path, const char *format, ...) TN_PRINTF(3, 4);

#define TN__RULE_EMPTY UINT32_MAX /* "rule" of a schema that nothing matches */

/* What is known of a schema, found by its address. */
typedef struct tn__schema_memo {
    uint32_t rule;
    bool open;    /* being made */
    bool awaited; /* referred to while it was being made */
} tn__schema_memo;

typedef struct tn__schema {
    json_t *root;
    tn__text text; /* finished rules */
    json_t *owned; /* array: keeps schemas made by merging alive, because rules are found by their address */
    const json_t **memo_keys;
    tn__schema_memo *memo;
    size_t memo_slots, memo_count;
    uint32_t n_rules;
    uint32_t work, merges;
    unsigned formats_used; /* bit per row of the table of formats */
} tn__schema;

/* The rule that generates a schema, made on first use. */
tn_status tn__schema_rule(tn__schema *s, json_t *schema, const tn__schema_path *path, uint32_t *rule);
/* A fresh rule number with this body, for parts of larger constructions. */
tn_status tn__schema_add_rule(tn__schema *s, const tn__text *body, uint32_t *rule);
tn_status tn__schema_resolve(tn__schema *s, const char *ref, const tn__schema_path *path, json_t **out);

/* Array of flat schemas (no $ref, allOf, anyOf, oneOf at their top) that together generate `schema`. Owned by s. */
tn_status tn__schema_expand(tn__schema *s, json_t *schema, const tn__schema_path *path, json_t **out);
/* TN_E_UNSUPPORTED unless nothing generated for one of the schemas can be valid for another. */
tn_status tn__schema_check_apart(tn__schema *s, json_t *schemas, const tn__schema_path *path);
/* "allOf" of two schemas, either of which may be NULL (no restriction). A new reference, NULL when out of memory. */
json_t *tn__schema_both(json_t *a, json_t *b);

/* Writes an expression for a flat schema; *empty tells that nothing matches. */
tn_status tn__schema_emit(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty);
/* The rules of the formats that were used. */
void tn__schema_add_formats(tn__schema *s);
tn_status tn__schema_emit_number(json_t *flat, bool integer, const tn__schema_path *path, tn__text *out, bool *empty);
tn_status tn__schema_emit_pattern(const char *pattern, const tn__schema_path *path, tn__text *out);

/* Whether a flat schema's "type" (or what its other keywords imply) admits a type. */
enum {
    TN__TYPE_NULL = 1,
    TN__TYPE_BOOLEAN = 2,
    TN__TYPE_INTEGER = 4,
    TN__TYPE_NUMBER = 8,
    TN__TYPE_STRING = 16,
    TN__TYPE_ARRAY = 32,
    TN__TYPE_OBJECT = 64,
    TN__TYPE_ALL = 127
};
tn_status tn__schema_types(json_t *flat, const tn__schema_path *path, unsigned *types, bool *stated);
/* A non-negative count keyword, or `missing`. */
tn_status tn__schema_count(json_t *flat, const char *key, const tn__schema_path *path, size_t missing, size_t *out);
/* The bounds of numbers; *low is -infinity and *high infinity where there are none. */
typedef struct tn__bounds {
    double low, high;
    bool above_low, below_high; /* exclusive */
} tn__bounds;
tn_status tn__schema_bounds(json_t *flat, const tn__schema_path *path, tn__bounds *out);
/* Equality as JSON schema has it: 1 and 1.0 are the same. */
bool tn__json_same(const json_t *a, const json_t *b);
/* Shortest decimal text that reads back as the same number. */
void tn__number_text(double x, char out[32]);

#endif
