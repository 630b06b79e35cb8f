/* Arrays of JSON schema whose items all differ ("uniqueItems"), where the items are chosen from few values. */
#include "base/checked.h"
#include "text/schema/internal.h"

#include <string.h>

/* A rule for each set of values used so far: 256 sets for eight values. */
enum { VALUES_MAX = 8 };
typedef struct distinct_values {
    json_t *values[VALUES_MAX];
    uint32_t rules[VALUES_MAX];
    size_t n;
    bool listed;
} distinct_values;

/* Adds a value that the flat schema lists, unless it is there or does not satisfy the schema's other keywords. */
static tn_status values_add(tn__schema *s, json_t *flat, json_t *value, const tn__schema_path *path,
                            distinct_values *c) {
    uint32_t rule;
    for (size_t i = 0; i < c->n; i++)
        if (tn__json_same(c->values[i], value)) return TN_OK;
    json_t *one = json_copy(flat);
    if (!one || json_object_set_new(one, "enum", json_pack("[O]", value)) != 0) {
        json_decref(one);
        return tn_fail(TN_E_NOMEM, "out of memory while listing values");
    }
    if (json_array_append_new(s->owned, one) != 0) return tn_fail(TN_E_NOMEM, "out of memory while listing values");
    TN_TRY(tn__schema_rule(s, one, path, &rule));
    if (rule == TN__RULE_EMPTY) return TN_OK;
    c->listed = c->n < VALUES_MAX;
    if (!c->listed) return TN_OK;
    c->values[c->n] = value;
    c->rules[c->n++] = rule;
    return TN_OK;
}

static tn_status values_collect(tn__schema *s, json_t *items, const tn__schema_path *path, distinct_values *c) {
    json_t *flats, *flat, *value;
    size_t i, k;
    TN_TRY(tn__schema_expand(s, items, path, &flats));
    json_array_foreach(flats, i, flat) {
        unsigned types;
        bool stated;
        json_t *list = json_object_get(flat, "enum");
        TN_TRY(tn__schema_types(flat, path, &types, &stated));
        if (list) {
            json_array_foreach(list, k, value) if (c->listed) TN_TRY(values_add(s, flat, value, path, c));
        } else if (stated && types == TN__TYPE_BOOLEAN) {
            TN_TRY(values_add(s, flat, json_true(), path, c));
            if (c->listed) TN_TRY(values_add(s, flat, json_false(), path, c));
        } else {
            c->listed = false;
        }
        if (!c->listed) return TN_OK;
    }
    return TN_OK;
}

static size_t count_bits(size_t set) {
    size_t n = 0;
    for (; set; set &= set - 1) n++;
    return n;
}

/* The items that can follow a set of values: any other one, and what follows the larger set. */
static void emit_next(const distinct_values *c, const uint32_t *after, size_t used, const char *open, tn__text *out) {
    const char *between = "";
    for (size_t i = 0; i < c->n; i++) {
        const size_t bit = (size_t)1 << i;
        if (used & bit) continue;
        tn__text_printf(out, "%s%sr%u ws r%u", between, open, c->rules[i], after[used | bit]);
        between = " | ";
    }
}

tn_status tn__schema_emit_unique(tn__schema *s, json_t *items, size_t min, size_t max, const tn__schema_path *path,
                                 tn__text *out, bool *listed, bool *empty) {
    distinct_values c = {.listed = true};
    uint32_t after[1 << VALUES_MAX];
    /* Many such arrays must not take all rules that a schema may have. */
    if (s->n_rules > TN__SCHEMA_RULES_MAX / 2) c.listed = false;
    if (c.listed) TN_TRY(values_collect(s, items, path, &c));
    *listed = c.listed;
    *empty = c.listed && min > c.n;
    if (!c.listed || *empty) return TN_OK;
    max = TN__MIN(max, c.n);
    for (size_t used = ((size_t)1 << c.n) - 1; used > 0; used--) {
        const size_t count = count_bits(used);
        tn__text body = TN__SCHEMA_TEXT;
        if (count > max) continue;
        if (count >= min) tn__text_puts(&body, count < max ? "\"\" | " : "\"\"");
        if (count < max) emit_next(&c, after, used, "\",\" ws ", &body);
        const tn_status status = tn__schema_add_rule(s, &body, &after[used]);
        tn__text_free(&body);
        TN_TRY(status);
    }
    tn__text_puts(out, "\"[\" ws ");
    if (max > 0) {
        tn__text_puts(out, "(");
        emit_next(&c, after, 0, "", out);
        tn__text_puts(out, min > 0 ? ") " : ")? ");
    }
    tn__text_puts(out, "\"]\"");
    return TN_OK;
}
