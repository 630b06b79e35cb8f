/* JSON schemas that combine others: $ref beside other keywords, allOf, anyOf and oneOf, expanded into flat schemas.
 */
#include "base/checked.h"
#include "text/schema/internal.h"

#include <math.h>
#include <string.h>

/* For failed calls of jansson, which fail only if memory runs out. */
static tn_status no_memory(void) { return tn_fail(TN_E_NOMEM, "out of memory while reading a schema"); }

/* Passes the schema object to s, which frees it at the end. */
static tn_status own_schema(tn__schema *s, json_t *object) {
    if (!object || json_array_append_new(s->owned, object) != 0) return no_memory();
    return TN_OK;
}

json_t *tn__schema_both(json_t *a, json_t *b) {
    if (!a || json_is_true(a)) return json_incref(b ? b : json_true());
    if (!b || json_is_true(b)) return json_incref(a);
    if (json_is_false(a) || json_is_false(b)) return json_false();
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

/* ---- Merging two flat schemas ---- */

/* The schema of properties that a schema does not name; NULL: no restriction. */
static json_t *rest_of_properties(json_t *flat) { return json_object_get(flat, "additionalProperties"); }

/* Each property must match both sides: the side's schema for its name, or for names that the side does not list. */
static tn_status merge_properties(json_t *a, json_t *b, json_t *out) {
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties"), *value;
    const char *name;
    json_t *merged = json_object();
    if (!merged) return no_memory();
    json_object_foreach(pa, name, value) {
        json_t *other = json_object_get(pb, name);
        if (json_object_set_new(merged, name, tn__schema_both(value, other ? other : rest_of_properties(b))) != 0)
            goto failed;
    }
    json_object_foreach(pb, name, value) {
        if (json_object_get(merged, name)) continue;
        if (json_object_set_new(merged, name, tn__schema_both(value, rest_of_properties(a))) != 0) goto failed;
    }
    if (json_object_size(merged) > 0 && json_object_set(out, "properties", merged) != 0) goto failed;
    json_decref(merged);
    json_t *ra = rest_of_properties(a), *rb = rest_of_properties(b);
    if ((ra || rb) && json_object_set_new(out, "additionalProperties", tn__schema_both(ra, rb)) != 0)
        return no_memory();
    return TN_OK;
failed:
    json_decref(merged);
    return no_memory();
}

static tn_status merge_items(json_t *a, json_t *b, json_t *out) {
    json_t *pa = json_object_get(a, "prefixItems"), *pb = json_object_get(b, "prefixItems");
    json_t *ra = json_object_get(a, "items"), *rb = json_object_get(b, "items");
    size_t n = TN__MAX(json_array_size(pa), json_array_size(pb));
    if (n > 0) {
        json_t *merged = json_array();
        for (size_t i = 0; i < n; i++) {
            json_t *x = i < json_array_size(pa) ? json_array_get(pa, i) : ra;
            json_t *y = i < json_array_size(pb) ? json_array_get(pb, i) : rb;
            if (json_array_append_new(merged, tn__schema_both(x, y)) != 0) {
                json_decref(merged);
                return no_memory();
            }
        }
        if (json_object_set_new(out, "prefixItems", merged) != 0) return no_memory();
    }
    if ((ra || rb) && json_object_set_new(out, "items", tn__schema_both(ra, rb)) != 0) return no_memory();
    return TN_OK;
}

static bool list_has_value(json_t *list, json_t *value) {
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) if (tn__json_same(item, value)) return true;
    return false;
}

static tn_status merge_lists(json_t *a, json_t *b, const char *key, bool both, json_t *out) {
    json_t *x = json_object_get(a, key), *y = json_object_get(b, key), *value;
    if (!x || !y) return TN_OK;
    json_t *merged = json_array();
    size_t i;
    if (!merged) return no_memory();
    json_array_foreach(x, i, value) {
        if (both && !list_has_value(y, value)) continue;
        if (json_array_append(merged, value) != 0) goto failed;
    }
    json_array_foreach(y, i, value) {
        if (both || list_has_value(x, value)) continue;
        if (json_array_append(merged, value) != 0) goto failed;
    }
    return json_object_set_new(out, key, merged) == 0 ? TN_OK : no_memory();
failed:
    json_decref(merged);
    return no_memory();
}

static tn_status merge_types(json_t *a, json_t *b, const tn__schema_path *path, json_t *out) {
    unsigned x, y;
    bool stated_a, stated_b;
    TN_TRY(tn__schema_types(a, path, &x, &stated_a));
    TN_TRY(tn__schema_types(b, path, &y, &stated_b));
    if (!stated_a || !stated_b) return TN_OK;
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    json_t *list = json_array();
    for (unsigned i = 0; i < 7; i++)
        if (x & y & 1u << i && json_array_append_new(list, json_string(names[i])) != 0) {
            json_decref(list);
            return no_memory();
        }
    return json_object_set_new(out, "type", list) == 0 ? TN_OK : no_memory();
}

/* Keeps the stricter of two limits. */
static tn_status merge_numbers(json_t *a, json_t *b, json_t *out) {
    static const char *const largest[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const smallest[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    for (size_t i = 0; i < 10; i++) {
        const char *key = i < 5 ? largest[i] : smallest[i - 5];
        json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if (!json_is_number(x) || !json_is_number(y)) continue;
        bool take_x = (json_number_value(x) > json_number_value(y)) == (i < 5);
        if (json_object_set(out, key, take_x ? x : y) != 0) return no_memory();
    }
    return TN_OK;
}

/* Keywords that cannot be merged must have equal values. */
static tn_status check_conflicts(tn__schema *s, json_t *a, json_t *b, const tn__schema_path *path) {
    static const char *const merged[] = {
        "type",        "enum",     "required", "properties",       "additionalProperties", "items",
        "prefixItems", "minimum",  "maximum",  "exclusiveMinimum", "exclusiveMaximum",     "minLength",
        "maxLength",   "minItems", "maxItems", "minProperties",    "maxProperties"};
    const char *key;
    json_t *x;
    json_object_foreach(a, key, x) {
        json_t *y = json_object_get(b, key);
        bool known = false;
        for (size_t i = 0; i < TN__COUNT(merged); i++) known |= strcmp(key, merged[i]) == 0;
        if (!y || known || tn__json_same(x, y)) continue;
        TN_TRY(tn__schema_unsupported(s, path, "two different values of \"%s\" cannot be combined", key));
    }
    /* "additionalProperties" speaks of the names that its own schema does not list. */
    json_t *x_patterns = json_object_get(a, "patternProperties"),
           *y_patterns = json_object_get(b, "patternProperties");
    if ((x_patterns && !y_patterns && json_object_get(b, "additionalProperties")) ||
        (y_patterns && !x_patterns && json_object_get(a, "additionalProperties")))
        return tn__schema_unsupported(
            s, path, "\"patternProperties\" and another schema's \"additionalProperties\" cannot be combined");
    return TN_OK;
}

static tn_status merge_schemas(tn__schema *s, json_t *a, json_t *b, const tn__schema_path *path, json_t **result) {
    TN_TRY(check_conflicts(s, a, b, path));
    json_t *out = json_copy(a);
    tn_status status = out && json_object_update_missing(out, b) == 0 ? TN_OK : no_memory();
    if (status == TN_OK) status = merge_types(a, b, path, out);
    if (status == TN_OK) status = merge_lists(a, b, "enum", true, out);
    if (status == TN_OK) status = merge_lists(a, b, "required", false, out);
    if (status == TN_OK) status = merge_properties(a, b, out);
    if (status == TN_OK) status = merge_items(a, b, out);
    if (status == TN_OK) status = merge_numbers(a, b, out);
    if (status == TN_OK)
        *result = out;
    else
        json_decref(out);
    return status;
}

/* ---- Expanding ---- */

/* A copy of the schema without the keywords that combine others, and with old keywords replaced by current ones. */
static tn_status flat_base(json_t *schema, const tn__schema_path *path, json_t **out) {
    static const char *const shapes[][2] = {
        {"properties", "o"}, {"required", "a"}, {"enum", "a"}, {"prefixItems", "a"}};
    for (size_t i = 0; i < TN__COUNT(shapes); i++) {
        json_t *value = json_object_get(schema, shapes[i][0]);
        if (value && (shapes[i][1][0] == 'o' ? !json_is_object(value) : !json_is_array(value)))
            return tn__schema_fail(TN_E_SYNTAX, path, "\"%s\" must be an %s", shapes[i][0],
                                   shapes[i][1][0] == 'o' ? "object" : "array");
    }
    json_t *base = json_copy(schema), *value;
    if (!base) return no_memory();
    static const char *const others[] = {
        "$ref", "allOf",    "anyOf", "oneOf",       "title",      "description", "default",   "examples", "$schema",
        "$id",  "$comment", "$defs", "definitions", "deprecated", "readOnly",    "writeOnly", "example",  "$anchor"};
    for (size_t i = 0; i < TN__COUNT(others); i++) json_object_del(base, others[i]);
    int failed = 0;
    if (json_is_array(value = json_object_get(schema, "items"))) { /* tuples before draft 2020-12 */
        failed |= json_object_set(base, "prefixItems", value);
        json_object_del(base, "items");
        if ((value = json_object_get(schema, "additionalItems"))) failed |= json_object_set(base, "items", value);
    }
    json_object_del(base, "additionalItems"); /* without meaning if "items" is a schema */
    if ((value = json_object_get(base, "const"))) {
        json_t *list = json_pack("[O]", value);
        if (json_object_get(base, "enum") && list && !list_has_value(json_object_get(base, "enum"), value))
            json_array_clear(list);
        failed |= json_object_set_new(base, "enum", list);
        json_object_del(base, "const");
    }
    if (failed) {
        json_decref(base);
        return no_memory();
    }
    *out = base;
    return TN_OK;
}

/* Merges every pair of a schema from each list. Pairs that no document matches are dropped when they are written. */
static tn_status combine_lists(tn__schema *s, json_t *left, json_t *right, const tn__schema_path *path,
                               json_t **result) {
    json_t *out = json_array(), *a, *b;
    size_t i, k;
    tn_status status = out ? TN_OK : no_memory();
    json_array_foreach(left, i, a) json_array_foreach(right, k, b) {
        json_t *merged = NULL;
        if (status == TN_OK && json_array_size(out) >= TN__SCHEMA_ALTERNATIVES_MAX)
            status = tn__schema_fail(TN_E_LIMIT, path, "more than %d combinations of alternatives",
                                     TN__SCHEMA_ALTERNATIVES_MAX);
        if (status == TN_OK && ++s->merges > TN__SCHEMA_MERGES_MAX)
            status = tn__schema_fail(TN_E_LIMIT, path, "too many combinations of allOf, anyOf and oneOf");
        if (status == TN_OK) status = merge_schemas(s, a, b, path, &merged);
        if (status == TN_OK && json_array_append_new(out, merged) != 0) status = no_memory();
    }
    if (status == TN_OK)
        *result = out;
    else
        json_decref(out);
    return status;
}

/* Replaces *list by its combinations with the expansion of `schema`. */
static tn_status combine_with(tn__schema *s, json_t **list, json_t *schema, const tn__schema_path *path) {
    json_t *factor, *product;
    TN_TRY(tn__schema_expand(s, schema, path, &factor));
    TN_TRY(combine_lists(s, *list, factor, path, &product));
    TN_TRY(own_schema(s, product));
    *list = product;
    return TN_OK;
}

/* The expansions of all schemas of a list, concatenated. */
static tn_status expand_all(tn__schema *s, json_t *schemas, const tn__schema_path *path, json_t **result) {
    json_t *out = json_array(), *schema, *part;
    size_t i;
    TN_TRY(own_schema(s, out));
    json_array_foreach(schemas, i, schema) {
        tn__schema_path at = tn__schema_at(path, i);
        TN_TRY(tn__schema_expand(s, schema, &at, &part));
        if (json_array_extend(out, part) != 0) return no_memory();
    }
    if (json_array_size(out) > TN__SCHEMA_ALTERNATIVES_MAX)
        return tn__schema_fail(TN_E_LIMIT, path, "more than %d alternatives", TN__SCHEMA_ALTERNATIVES_MAX);
    *result = out;
    return TN_OK;
}

static tn_status combine_with_choice(tn__schema *s, json_t **list, json_t *schema, const char *key,
                                     const tn__schema_path *path) {
    json_t *choices = json_object_get(schema, key), *factor = NULL, *product;
    if (!choices) return TN_OK;
    tn__schema_path below = tn__schema_below(path, key);
    if (!json_is_array(choices)) return tn__schema_fail(TN_E_SYNTAX, &below, "must be an array of schemas");
    if (strcmp(key, "oneOf") == 0) TN_TRY(tn__schema_check_apart(s, choices, &below));
    TN_TRY(expand_all(s, choices, &below, &factor));
    TN_TRY(combine_lists(s, *list, factor, path, &product));
    TN_TRY(own_schema(s, product));
    *list = product;
    return TN_OK;
}

tn_status tn__schema_expand(tn__schema *s, json_t *schema, const tn__schema_path *path, json_t **out) {
    if (path->depth > TN__SCHEMA_DEPTH_MAX)
        return tn__schema_fail(TN_E_LIMIT, path, "nested too deeply, or defined by itself");
    if (++s->work > TN__SCHEMA_WORK_MAX)
        return tn__schema_fail(TN_E_LIMIT, path, "too many combinations of allOf, anyOf and oneOf");
    if (json_is_boolean(schema)) {
        json_t *list = json_is_true(schema) ? json_pack("[{}]") : json_array();
        TN_TRY(own_schema(s, list));
        *out = list;
        return TN_OK;
    }
    if (!json_is_object(schema)) return tn__schema_fail(TN_E_SYNTAX, path, "a schema must be an object or a boolean");
    json_t *base = NULL, *list = json_array(), *all = json_object_get(schema, "allOf"),
           *ref = json_object_get(schema, "$ref");
    TN_TRY(own_schema(s, list));
    TN_TRY(flat_base(schema, path, &base));
    if (json_array_append_new(list, base) != 0) return no_memory();
    if (json_is_string(ref)) {
        json_t *target;
        tn__schema_path below = tn__schema_below(path, "$ref");
        TN_TRY(tn__schema_resolve(s, json_string_value(ref), path, &target));
        TN_TRY(combine_with(s, &list, target, &below));
    }
    if (all) {
        tn__schema_path below = tn__schema_below(path, "allOf");
        size_t i;
        json_t *part;
        if (!json_is_array(all)) return tn__schema_fail(TN_E_SYNTAX, &below, "must be an array of schemas");
        json_array_foreach(all, i, part) {
            tn__schema_path at = tn__schema_at(&below, i);
            TN_TRY(combine_with(s, &list, part, &at));
        }
    }
    TN_TRY(combine_with_choice(s, &list, schema, "anyOf", path));
    TN_TRY(combine_with_choice(s, &list, schema, "oneOf", path));
    *out = list;
    return TN_OK;
}

/* ---- oneOf ----
 * A grammar cannot express "exactly one". It need not if no document generated for one schema matches another.
 * schemas_apart(a, b) is true only if that is certain for documents generated from a. */

static tn_status flat_schemas_apart(tn__schema *s, json_t *a, json_t *b, const tn__schema_path *path, bool *result);

static tn_status schemas_apart(tn__schema *s, json_t *a, json_t *b, const tn__schema_path *path, bool *result) {
    json_t *as, *bs, *x, *y;
    size_t i, k;
    *result = false;
    if (!a || !b) return TN_OK;
    if (path->depth > TN__SCHEMA_DEPTH_MAX / 2) return TN_OK; /* too deep: not certain */
    tn__schema_path deeper = tn__schema_below(path, "");
    size_t mark = json_array_size(s->owned); /* schemas made here are freed below */
    tn_status status = tn__schema_expand(s, a, &deeper, &as);
    if (status == TN_OK) status = tn__schema_expand(s, b, &deeper, &bs);
    if (status == TN_OK) {
        *result = true;
        json_array_foreach(as, i, x) json_array_foreach(bs, k, y) {
            if (status == TN_OK && *result) status = flat_schemas_apart(s, x, y, &deeper, result);
        }
    }
    while (json_array_size(s->owned) > mark) json_array_remove(s->owned, json_array_size(s->owned) - 1);
    return status;
}

static bool is_required(json_t *flat, const char *name) {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(flat, "required"), i,
                       item) if (json_is_string(item) && strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

static tn_status objects_apart(tn__schema *s, json_t *a, json_t *b, const tn__schema_path *path, bool *result) {
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    json_t *ra = rest_of_properties(a), *rb = rest_of_properties(b), *item, *value;
    /* Documents of a have unnamed properties only if a allows them explicitly or names no properties at all. */
    *result = false;
    bool a_is_closed = ra ? json_is_false(ra) : pa != NULL;
    size_t i;
    const char *name;
    json_array_foreach(json_object_get(b, "required"), i, item) {
        name = json_string_value(item);
        if (name && a_is_closed && !json_object_get(pa, name) && !is_required(a, name)) {
            *result = true;
            return TN_OK;
        }
    }
    json_object_foreach(pa, name, value) {
        json_t *other = json_object_get(pb, name);
        if (!other) other = rb;
        if (!is_required(a, name) && !is_required(b, name)) continue;
        TN_TRY(schemas_apart(s, value, other, path, result));
        if (*result) return TN_OK;
    }
    return TN_OK;
}

static tn_status flat_schemas_apart(tn__schema *s, json_t *a, json_t *b, const tn__schema_path *path, bool *result) {
    unsigned ta, tb;
    bool stated_a, stated_b;
    json_t *ea = json_object_get(a, "enum"), *eb = json_object_get(b, "enum"), *value;
    size_t i;
    *result = false;
    TN_TRY(tn__schema_types(a, path, &ta, &stated_a));
    TN_TRY(tn__schema_types(b, path, &tb, &stated_b));
    if (!stated_b) tb = TN__TYPE_ALL; /* implied types restrict what is generated, not what matches */
    if (ea) {
        ta = 0;
        bool shared = false;
        json_array_foreach(ea, i, value) {
            static const unsigned types[] = {
                [JSON_OBJECT] = TN__TYPE_OBJECT,   [JSON_ARRAY] = TN__TYPE_ARRAY, [JSON_STRING] = TN__TYPE_STRING,
                [JSON_INTEGER] = TN__TYPE_INTEGER, [JSON_REAL] = TN__TYPE_NUMBER, [JSON_TRUE] = TN__TYPE_BOOLEAN,
                [JSON_FALSE] = TN__TYPE_BOOLEAN,   [JSON_NULL] = TN__TYPE_NULL};
            ta |= types[json_typeof(value)];
            if (json_is_real(value)) ta |= TN__TYPE_INTEGER; /* 1.0 is an integer too */
            shared |= list_has_value(eb, value);
        }
        if (eb && !shared) *result = true;
    }
    unsigned common = ta & tb;
    if (common & TN__TYPE_INTEGER) common |= ta & TN__TYPE_NUMBER;
    if (common == 0) *result = true;
    if (*result || ea || eb) return TN_OK;
    bool all_apart = true;
    if (common & (TN__TYPE_NULL | TN__TYPE_BOOLEAN)) all_apart = false;
    if (all_apart && common & (TN__TYPE_INTEGER | TN__TYPE_NUMBER)) {
        tn__bounds x, y;
        TN_TRY(tn__schema_bounds(a, path, &x));
        TN_TRY(tn__schema_bounds(b, path, &y));
        all_apart = x.low > y.high || y.low > x.high || (x.low == y.high && (x.above_low || y.below_high)) ||
                    (y.low == x.high && (y.above_low || x.below_high));
    }
    static const struct {
        unsigned type;
        const char *min, *max;
    } sized[] = {{TN__TYPE_STRING, "minLength", "maxLength"}, {TN__TYPE_ARRAY, "minItems", "maxItems"}};
    for (i = 0; i < 2 && all_apart; i++) {
        if (!(common & sized[i].type)) continue;
        size_t min_a, max_a, min_b, max_b;
        TN_TRY(tn__schema_count(a, sized[i].min, path, 0, &min_a));
        TN_TRY(tn__schema_count(a, sized[i].max, path, SIZE_MAX, &max_a));
        TN_TRY(tn__schema_count(b, sized[i].min, path, 0, &min_b));
        TN_TRY(tn__schema_count(b, sized[i].max, path, SIZE_MAX, &max_b));
        all_apart = min_a > max_b || min_b > max_a;
    }
    if (all_apart && common & TN__TYPE_OBJECT) TN_TRY(objects_apart(s, a, b, path, &all_apart));
    *result = all_apart;
    return TN_OK;
}

tn_status tn__schema_check_apart(tn__schema *s, json_t *schemas, const tn__schema_path *path) {
    json_t *a, *b;
    size_t i, k;
    if (!json_is_array(schemas)) return tn__schema_fail(TN_E_SYNTAX, path, "must be an array of schemas");
    if (json_array_size(schemas) > TN__SCHEMA_ALTERNATIVES_MAX)
        return tn__schema_fail(TN_E_LIMIT, path, "more than %d alternatives", TN__SCHEMA_ALTERNATIVES_MAX);
    tn__schema_path shallow = *path;
    shallow.depth = 0; /* schemas_apart() has its own limit of depth */
    json_array_foreach(schemas, i, a) json_array_foreach(schemas, k, b) {
        bool separate;
        if (i == k) continue;
        TN_TRY(schemas_apart(s, a, b, &shallow, &separate));
        if (!separate)
            return tn__schema_unsupported(
                s, path,
                "what matches alternative %zu might match alternative %zu too, and a grammar cannot "
                "express \"exactly one\"; distinguish them by a required property, or use anyOf",
                i, k);
    }
    return TN_OK;
}
