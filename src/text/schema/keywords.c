/* Values of JSON schema keywords: types, counts, bounds, and equality of JSON values. */
#include "base/checked.h"
#include "text/schema/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned type;
} type_names[] = {
    {"null", TN__TYPE_NULL},     {"boolean", TN__TYPE_BOOLEAN}, {"integer", TN__TYPE_INTEGER},
    {"number", TN__TYPE_NUMBER}, {"string", TN__TYPE_STRING},   {"array", TN__TYPE_ARRAY},
    {"object", TN__TYPE_OBJECT},
};

/* Keywords that restrict one type only. Without "type" they imply that type: the author of {"properties": …} expects
 * an object, and objects are among the documents that the schema allows. */
static const struct {
    const char *key;
    unsigned type;
} implied_types[] = {
    {"properties", TN__TYPE_OBJECT},
    {"required", TN__TYPE_OBJECT},
    {"additionalProperties", TN__TYPE_OBJECT},
    {"minProperties", TN__TYPE_OBJECT},
    {"maxProperties", TN__TYPE_OBJECT},
    {"patternProperties", TN__TYPE_OBJECT},
    {"propertyNames", TN__TYPE_OBJECT},
    {"items", TN__TYPE_ARRAY},
    {"prefixItems", TN__TYPE_ARRAY},
    {"minItems", TN__TYPE_ARRAY},
    {"maxItems", TN__TYPE_ARRAY},
    {"uniqueItems", TN__TYPE_ARRAY},
    {"contains", TN__TYPE_ARRAY},
    {"minLength", TN__TYPE_STRING},
    {"maxLength", TN__TYPE_STRING},
    {"pattern", TN__TYPE_STRING},
    {"format", TN__TYPE_STRING},
    {"minimum", TN__TYPE_NUMBER},
    {"maximum", TN__TYPE_NUMBER},
    {"exclusiveMinimum", TN__TYPE_NUMBER},
    {"exclusiveMaximum", TN__TYPE_NUMBER},
    {"multipleOf", TN__TYPE_NUMBER},
};

static tn_status type_of_name(json_t *name, const tn__schema_path *path, unsigned *types) {
    for (size_t i = 0; json_is_string(name) && i < TN__COUNT(type_names); i++)
        if (strcmp(json_string_value(name), type_names[i].name) == 0) {
            *types |= type_names[i].type;
            return TN_OK;
        }
    return tn__schema_fail(TN_E_SYNTAX, path,
                           "\"type\" must be one of null, boolean, integer, number, string, array, "
                           "object, or an array of these");
}

tn_status tn__schema_types(json_t *flat, const tn__schema_path *path, unsigned *types, bool *stated) {
    json_t *type = json_object_get(flat, "type"), *name;
    size_t i;
    *types = 0;
    *stated = type != NULL;
    if (json_is_array(type)) {
        json_array_foreach(type, i, name) TN_TRY(type_of_name(name, path, types));
    } else if (type) {
        TN_TRY(type_of_name(type, path, types));
    } else {
        for (i = 0; i < TN__COUNT(implied_types); i++)
            if (json_object_get(flat, implied_types[i].key)) *types |= implied_types[i].type;
        if (*types == 0) *types = TN__TYPE_ALL;
    }
    if (*types & TN__TYPE_NUMBER) *types |= TN__TYPE_INTEGER;
    return TN_OK;
}

tn_status tn__schema_count(json_t *flat, const char *key, const tn__schema_path *path, size_t missing, size_t *out) {
    json_t *value = json_object_get(flat, key);
    *out = missing;
    if (!value) return TN_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number != floor(number))
        return tn__schema_fail(TN_E_SYNTAX, path, "\"%s\" must be a non-negative integer", key);
    *out = number >= 1e15 ? (size_t)1e15 : (size_t)number;
    return TN_OK;
}

static tn_status one_bound(json_t *flat, const tn__schema_path *path, const char *key, const char *exclusive_key,
                           double sign, double *bound, bool *exclusive) {
    json_t *value = json_object_get(flat, key), *other = json_object_get(flat, exclusive_key);
    *exclusive = false;
    if (value && !json_is_number(value)) return tn__schema_fail(TN_E_SYNTAX, path, "\"%s\" must be a number", key);
    if (value) *bound = json_number_value(value);
    if (json_is_boolean(other)) { /* as in draft 4 */
        *exclusive = value && json_is_true(other);
    } else if (other) {
        if (!json_is_number(other))
            return tn__schema_fail(TN_E_SYNTAX, path, "\"%s\" must be a number", exclusive_key);
        double x = json_number_value(other);
        if (sign * x >= sign * *bound) {
            *bound = x;
            *exclusive = true;
        }
    }
    return TN_OK;
}

tn_status tn__schema_bounds(json_t *flat, const tn__schema_path *path, tn__bounds *out) {
    *out = (tn__bounds){.low = -INFINITY, .high = INFINITY};
    TN_TRY(one_bound(flat, path, "minimum", "exclusiveMinimum", 1, &out->low, &out->above_low));
    return one_bound(flat, path, "maximum", "exclusiveMaximum", -1, &out->high, &out->below_high);
}

bool tn__json_same(const json_t *a, const json_t *b) {
    if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!tn__json_same(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a)) {
        const char *key;
        json_t *value;
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)a, key, value) {
            const json_t *other = json_object_get(b, key);
            if (!other || !tn__json_same(value, other)) return false;
        }
        return true;
    }
    return json_equal(a, b);
}

void tn__number_text(double x, char out[32]) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, x);
        if (strtod(out, NULL) == x) return;
    }
}
