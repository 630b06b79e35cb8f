/* Conversion of JSON schemas to GBNF: declarations that the module's files share. */
#ifndef TN_TEXT_SCHEMA_INTERNAL_H
#define TN_TEXT_SCHEMA_INTERNAL_H

#include "base/text.h"
#include "tenon/grammar.h"

#include <jansson.h>

enum {
    TN__SCHEMA_DEPTH_MAX = 100,        /* nested schemas and references to references */
    TN__SCHEMA_ALTERNATIVES_MAX = 200, /* of one schema after anyOf, oneOf and allOf are expanded */
    TN__SCHEMA_RULES_MAX = 20000,
    TN__SCHEMA_WORK_MAX = 200000,  /* expanded schemas in total */
    TN__SCHEMA_MERGES_MAX = 20000, /* merged pairs of schemas in total */
    TN__SCHEMA_TEXT_MAX = 8 << 20, /* bytes of GBNF */
    TN__SCHEMA_REPEAT_MAX = 10000, /* items of the longest strings and arrays generated */
};

/* Initializer of every text of a conversion: it limits the text's length. */
#define TN__SCHEMA_TEXT                                                                                              \
    { .limit = TN__SCHEMA_TEXT_MAX }

/* Appends one character of a GBNF literal or class, escaped as needed (gbnf.c). */
void tn__schema_append_code(tn__text *out, uint32_t code);
/* Appends a GBNF literal of UTF-8 text. */
void tn__schema_append_literal(tn__text *out, const char *utf8, size_t count);

/* A position in the schema, for messages: "#/properties/name". */
typedef struct tn__schema_path {
    const struct tn__schema_path *parent;
    const char *key; /* NULL: the index counts */
    size_t index;
    int depth;
} tn__schema_path;
tn__schema_path tn__schema_below(const tn__schema_path *parent, const char *key);
tn__schema_path tn__schema_at(const tn__schema_path *parent, size_t index);
/* Like tn_fail, with the path before the message. */
tn_status tn__schema_fail(tn_status status, const tn__schema_path *path, const char *format, ...) TN_PRINTF(3, 4);
typedef struct tn__schema tn__schema;
/* For a keyword that cannot be converted: fails with TN_E_UNSUPPORTED, or, where keywords may be ignored, notes it
 * and returns TN_OK. */
tn_status tn__schema_unsupported(tn__schema *s, const tn__schema_path *path, const char *format, ...) TN_PRINTF(3, 4);

#define TN__RULE_EMPTY UINT32_MAX /* the "rule" of a schema that no document matches */

/* The rule of a schema, in a hash table by the schema's address. */
typedef struct tn__schema_memo {
    uint32_t rule;
    bool open;       /* the rule is being written */
    bool referenced; /* another rule refers to it while it is open */
} tn__schema_memo;

struct tn__schema {
    json_t *root;
    bool relaxed;   /* keywords that cannot be converted are ignored */
    tn__text notes; /* which, one per line */
    tn__text text;  /* finished rules */
    json_t *owned;  /* array that keeps merged schemas alive, because rules are looked up by address */
    const json_t **memo_keys;
    tn__schema_memo *memo;
    size_t memo_slots, memo_count;
    uint32_t n_rules;
    uint32_t work, merges;
    unsigned formats_used; /* bits by row of the table of formats */
};

/* The rule that generates a schema; it is written on first use. */
tn_status tn__schema_rule(tn__schema *s, json_t *schema, const tn__schema_path *path, uint32_t *rule);
/* Writes a new rule with this body, for parts of larger expressions. */
tn_status tn__schema_add_rule(tn__schema *s, const tn__text *body, uint32_t *rule);
/* The schema that a reference within the document points to. */
tn_status tn__schema_resolve(tn__schema *s, const char *ref, const tn__schema_path *path, json_t **out);

/* Expands a schema into an array of flat schemas, which have no $ref, allOf, anyOf or oneOf at their top level and
 * whose union is `schema`. `s` owns the array. */
tn_status tn__schema_expand(tn__schema *s, json_t *schema, const tn__schema_path *path, json_t **out);
/* Fails with TN_E_UNSUPPORTED unless no document generated for one of the schemas can match another. */
tn_status tn__schema_check_apart(tn__schema *s, json_t *schemas, const tn__schema_path *path);
/* "allOf" of two schemas, either of which may be NULL (no restriction). Returns a new reference, NULL if out of
 * memory. */
json_t *tn__schema_both(json_t *a, json_t *b);

/* Writes an expression for a flat schema. *empty is set if no document matches. */
tn_status tn__schema_emit(tn__schema *s, json_t *flat, const tn__schema_path *path, tn__text *out, bool *empty);
/* Writes the rules of the formats that were used. */
void tn__schema_add_formats(tn__schema *s);
tn_status tn__schema_emit_number(tn__schema *s, json_t *flat, bool integer, const tn__schema_path *path,
                                 tn__text *out, bool *empty);
/* Writes the texts of min to max characters that match a regular expression. *empty is set if there are none. */
tn_status tn__schema_emit_pattern(const char *pattern, size_t min, size_t max, const tn__schema_path *path,
                                  tn__text *out, bool *empty);
/* Writes arrays of min to max items that all differ, if `items` lists at most eight values and the schema has few
 * rules so far; otherwise *listed is false and nothing is written. *empty is set if no array has that many. */
tn_status tn__schema_emit_unique(tn__schema *s, json_t *items, size_t min, size_t max, const tn__schema_path *path,
                                 tn__text *out, bool *listed, bool *empty);

/* Bits of the types that a flat schema allows, by its "type" or, if it has none, as its other keywords imply. */
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
/* The value of a keyword that is a non-negative count, or `missing`. */
tn_status tn__schema_count(json_t *flat, const char *key, const tn__schema_path *path, size_t missing, size_t *out);
/* Bounds of numbers; infinite if there are none. */
typedef struct tn__bounds {
    double low, high;
    bool above_low, below_high; /* exclusive */
} tn__bounds;
tn_status tn__schema_bounds(json_t *flat, const tn__schema_path *path, tn__bounds *out);
/* Equality as JSON schema defines it: 1 and 1.0 are equal. */
bool tn__json_same(const json_t *a, const json_t *b);
/* The shortest decimal text that parses to the same number. */
void tn__number_text(double x, char out[32]);

#endif
