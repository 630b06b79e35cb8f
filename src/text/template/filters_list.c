/* Filters on sequences: selecting, mapping, sorting, grouping, joining. */
#include "text/template/engine.h"

/* ---- Shared helpers ---- */

/* Stable merge sort of items by keys. Both arrays are permuted. */
void tn__jj_sort(jj *j, jj_value *items, jj_value *keys, size_t count, bool reverse) {
    if (count < 2) return;
    jj_value *other_items = tn__jj_array(j, count, sizeof *items), *other_keys = tn__jj_array(j, count, sizeof *keys);
    jj_value *from_items = items, *from_keys = keys, *to_items = other_items, *to_keys = other_keys;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = middle + width < count ? middle + width : count, a = start, b = middle;
            for (size_t k = start; k < end; k++) {
                bool right = a == middle;
                if (!right && b < end) {
                    int order = tn__jj_compare(j, from_keys[b], from_keys[a], "<");
                    right = reverse ? order == 1 : order == -1;
                }
                size_t pick = right ? b++ : a++;
                to_items[k] = from_items[pick];
                to_keys[k] = from_keys[pick];
            }
        }
        jj_value *swap_items = from_items, *swap_keys = from_keys;
        from_items = to_items, from_keys = to_keys;
        to_items = swap_items, to_keys = swap_keys;
    }
    if (from_items != items) {
        memcpy(items, from_items, count * sizeof *items);
        memcpy(keys, from_keys, count * sizeof *keys);
    }
}

static jj_value fold_case(jj *j, jj_value v, bool case_sensitive) {
    return v.type == JJ_STRING && !case_sensitive ? tn__jj_change_case(j, v.as.string, 'l') : v;
}

jj_value tn__jj_follow(jj *j, jj_value v, jj_value path) {
    if (path.type != JJ_STRING) return tn__jj_item(j, v, path);
    const char *p = path.as.string->data, *end = p + path.as.string->length;
    for (;;) {
        const char *dot = p < end ? memchr(p, '.', (size_t)(end - p)) : NULL;
        size_t n = (size_t)((dot ? dot : end) - p);
        int64_t index = 0;
        bool digits = n > 0 && n < 18;
        for (size_t i = 0; digits && i < n; i++) {
            digits = p[i] >= '0' && p[i] <= '9';
            index = index * 10 + (p[i] - '0');
        }
        v = tn__jj_item(j, v, digits ? jj_int(index) : tn__jj_text(j, p, n));
        if (!dot) return v;
        p = dot + 1;
    }
}

static jj_value follow_or(jj *j, jj_value v, jj_value path, jj_value instead) {
    if (jj_is_absent(path) || path.type == JJ_NONE) return v;
    jj_value found = tn__jj_follow(j, v, path);
    return found.type == JJ_UNDEFINED && !jj_is_absent(instead) && instead.type != JJ_NONE ? instead : found;
}

/* ---- Selecting ---- */

static jj_value filter_first(jj *j, jj_value v, const jj_args *args) {
    jj_cursor cursor;
    jj_value item;
    tn__jj_bind(j, args, "first", "", 0, NULL);
    tn__jj_cursor(j, v, &cursor);
    return tn__jj_next(j, &cursor, &item) ? item : tn__jj_undefined(j, "No first item, sequence was empty.");
}

static jj_value filter_last(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "last", "", 0, NULL);
    if (v.type == JJ_GENERATOR || !tn__jj_iterable(v))
        tn__jj_fail(j, TN_E_INVALID, "'%s' object is not reversible", tn__jj_type_name(v));
    if (v.type == JJ_LIST || v.type == JJ_TUPLE) {
        if (v.as.list->count) return v.as.list->items[v.as.list->count - 1];
    } else {
        jj_list *all = tn__jj_collect(j, v);
        if (all->count) return all->items[all->count - 1];
    }
    return tn__jj_undefined(j, "No last item, sequence was empty.");
}

static jj_value filter_random(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "random", "", 0, NULL);
    jj_list *all = tn__jj_collect(j, v);
    if (!all->count) return tn__jj_undefined(j, "No random item, sequence was empty.");
    /* The seed is constant, so that prompts are reproducible. */
    j->random ^= j->random << 13, j->random ^= j->random >> 7, j->random ^= j->random << 17;
    return all->items[j->random % all->count];
}

/* select, reject, selectattr, rejectattr: [attribute,] [test, arguments…]. */
static jj_value select_items(jj *j, jj_value v, const jj_args *args, const char *who, bool attribute, bool wanted) {
    jj_list *chosen = tn__jj_new_list(j, 0);
    jj_cursor cursor;
    jj_value item, path = jj_absent();
    jj_args rest = *args;
    if (!tn__jj_truth(j, v)) return jj_listed(JJ_GENERATOR, chosen); /* none and 0 count as empty */
    if (attribute) {
        if (!rest.count) tn__jj_fail(j, TN_E_INVALID, "%s is missing its attribute name", who);
        path = *rest.values++;
        rest.count--;
    }
    jj_string *test = NULL;
    if (rest.count) {
        test = tn__jj_need_string(j, *rest.values++, "a test's name");
        rest.count--;
    } else if (rest.keyword_count)
        tn__jj_fail(j, TN_E_INVALID, "%s has no keyword arguments without a test", who);
    tn__jj_cursor(j, v, &cursor);
    while (tn__jj_next(j, &cursor, &item)) {
        jj_value tested = follow_or(j, item, path, jj_absent());
        bool passes = test ? tn__jj_test(j, test, tested, &rest) : tn__jj_truth(j, tested);
        if (passes == wanted) tn__jj_append(j, chosen, item);
    }
    return jj_listed(JJ_GENERATOR, chosen);
}
static jj_value filter_select(jj *j, jj_value v, const jj_args *a) {
    return select_items(j, v, a, "select", false, true);
}
static jj_value filter_reject(jj *j, jj_value v, const jj_args *a) {
    return select_items(j, v, a, "reject", false, false);
}
static jj_value filter_selectattr(jj *j, jj_value v, const jj_args *a) {
    return select_items(j, v, a, "selectattr", true, true);
}
static jj_value filter_rejectattr(jj *j, jj_value v, const jj_args *a) {
    return select_items(j, v, a, "rejectattr", true, false);
}

static jj_value filter_unique(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2], item;
    jj_cursor cursor;
    jj_list *kept = tn__jj_new_list(j, 0);
    jj_dict *seen = tn__jj_new_dict(j);
    tn__jj_bind(j, args, "unique", "case_sensitive attribute", 0, out);
    tn__jj_cursor(j, v, &cursor);
    while (tn__jj_next(j, &cursor, &item)) {
        jj_value key = fold_case(j, follow_or(j, item, out[1], jj_absent()), tn__jj_truth(j, out[0]));
        if (tn__jj_dict_find(j, seen, key)) continue;
        tn__jj_dict_set(j, seen, key, jj_none());
        tn__jj_append(j, kept, item);
    }
    return jj_listed(JJ_GENERATOR, kept);
}

static jj_value extreme_item(jj *j, jj_value v, const jj_args *args, const char *who, int wanted) {
    jj_value out[2], item, best = jj_absent(), best_key = jj_absent();
    jj_cursor cursor;
    tn__jj_bind(j, args, who, "case_sensitive attribute", 0, out);
    tn__jj_cursor(j, v, &cursor);
    for (bool any = false; tn__jj_next(j, &cursor, &item); any = true) {
        jj_value key = fold_case(j, follow_or(j, item, out[1], jj_absent()), tn__jj_truth(j, out[0]));
        if (any && tn__jj_compare(j, key, best_key, wanted < 0 ? "<" : ">") != wanted) continue;
        best = item;
        best_key = key;
    }
    return jj_is_absent(best) ? tn__jj_undefined(j, "No aggregated item, sequence was empty.") : best;
}
static jj_value filter_min(jj *j, jj_value v, const jj_args *args) { return extreme_item(j, v, args, "min", -1); }
static jj_value filter_max(jj *j, jj_value v, const jj_args *args) { return extreme_item(j, v, args, "max", 1); }

/* ---- Mapping and joining ---- */

static jj_value filter_map(jj *j, jj_value v, const jj_args *args) {
    jj_list *mapped = tn__jj_new_list(j, 0);
    jj_cursor cursor;
    jj_value item, out[2];
    if (!tn__jj_truth(j, v)) return jj_listed(JJ_GENERATOR, mapped);
    tn__jj_cursor(j, v, &cursor);
    if (!args->count) {
        tn__jj_bind(j, args, "map", "attribute default", 1, out);
        while (tn__jj_next(j, &cursor, &item)) tn__jj_append(j, mapped, follow_or(j, item, out[0], out[1]));
        return jj_listed(JJ_GENERATOR, mapped);
    }
    jj_string *name = tn__jj_need_string(j, args->values[0], "a filter's name");
    const jj_named *filter = tn__jj_find_filter(name);
    if (!filter)
        tn__jj_fail(j, TN_E_UNSUPPORTED, "no filter named '%.*s'", name->length > 60 ? 60 : (int)name->length,
                    name->data);
    jj_args rest = *args;
    rest.values++;
    rest.count--;
    tn__jj_enter(j);
    while (tn__jj_next(j, &cursor, &item)) tn__jj_append(j, mapped, filter->call(j, item, &rest));
    jj_leave(j);
    return jj_listed(JJ_GENERATOR, mapped);
}

static jj_value filter_join(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2], item;
    tn__jj_bind(j, args, "join", "d attribute", 0, out);
    if (!jj_is_absent(out[1]) && out[1].type != JJ_NONE) {
        jj_cursor cursor;
        jj_list *values = tn__jj_new_list(j, 0);
        tn__jj_cursor(j, v, &cursor);
        while (tn__jj_next(j, &cursor, &item)) tn__jj_append(j, values, tn__jj_follow(j, item, out[1]));
        v = jj_listed(JJ_LIST, values);
    }
    return tn__jj_join(j, jj_is_absent(out[0]) ? tn__jj_string(j, "", 0) : tn__jj_to_string(j, out[0]), v);
}

static jj_value filter_sum(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2], item;
    jj_cursor cursor;
    tn__jj_bind(j, args, "sum", "attribute start", 0, out);
    jj_value total = jj_is_absent(out[1]) ? jj_int(0) : out[1];
    tn__jj_cursor(j, v, &cursor);
    while (tn__jj_next(j, &cursor, &item))
        total = tn__jj_binary(j, '+', total, follow_or(j, item, out[0], jj_absent()));
    return total;
}

static jj_value filter_list(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "list", "", 0, NULL);
    return jj_listed(JJ_LIST, tn__jj_collect(j, v));
}

static jj_value filter_items(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "items", "", 0, NULL);
    jj_list *pairs = tn__jj_new_list(j, 0);
    if (v.type == JJ_UNDEFINED) return jj_listed(JJ_GENERATOR, pairs);
    if (v.type != JJ_DICT) tn__jj_fail(j, TN_E_INVALID, "Can only get item pairs from a mapping.");
    for (size_t i = 0; i < v.as.dict->count; i++)
        tn__jj_append(j, pairs, tn__jj_pair(j, v.as.dict->entries[i].key, v.as.dict->entries[i].value));
    return jj_listed(JJ_GENERATOR, pairs);
}

static jj_value filter_reverse(jj *j, jj_value v, const jj_args *args) {
    tn__jj_bind(j, args, "reverse", "", 0, NULL);
    jj_list *all = tn__jj_collect(j, v), *reversed = tn__jj_new_list(j, all->count);
    for (size_t i = all->count; i > 0; i--) tn__jj_append(j, reversed, all->items[i - 1]);
    if (v.type != JJ_STRING) return jj_listed(v.type == JJ_GENERATOR ? JJ_LIST : JJ_GENERATOR, reversed);
    jj_value text = tn__jj_join(j, tn__jj_string(j, "", 0), jj_listed(JJ_LIST, reversed));
    text.as.string->safe = v.as.string->safe;
    return text;
}

/* ---- Sorting and grouping ---- */

/* The sort key of an item: an attribute, several ("age,name", compared in order), or the item itself. */
static jj_value sort_key(jj *j, jj_value item, jj_value attribute, bool case_sensitive, jj_value instead) {
    if (attribute.type != JJ_STRING || !memchr(attribute.as.string->data, ',', attribute.as.string->length))
        return fold_case(j, follow_or(j, item, attribute, instead), case_sensitive);
    jj_list *keys = tn__jj_new_list(j, 0);
    const char *p = attribute.as.string->data, *end = p + attribute.as.string->length;
    for (;;) {
        const char *comma = p < end ? memchr(p, ',', (size_t)(end - p)) : NULL;
        jj_value path = tn__jj_text(j, p, (size_t)((comma ? comma : end) - p));
        tn__jj_append(j, keys, fold_case(j, follow_or(j, item, path, instead), case_sensitive));
        if (!comma) return jj_listed(JJ_LIST, keys);
        p = comma + 1;
    }
}

static jj_list *sorted(jj *j, jj_value v, jj_value attribute, bool case_sensitive, bool reversed, jj_value instead,
                       jj_value **keys_out) {
    jj_list *all = tn__jj_collect(j, v);
    jj_value *keys = tn__jj_array(j, all->count, sizeof *keys);
    for (size_t i = 0; i < all->count; i++) keys[i] = sort_key(j, all->items[i], attribute, case_sensitive, instead);
    tn__jj_sort(j, all->items, keys, all->count, reversed);
    if (keys_out) *keys_out = keys;
    return all;
}

static jj_value filter_sort(jj *j, jj_value v, const jj_args *args) {
    jj_value out[3];
    tn__jj_bind(j, args, "sort", "reverse case_sensitive attribute", 0, out);
    return jj_listed(JJ_LIST,
                     sorted(j, v, out[2], tn__jj_truth(j, out[1]), tn__jj_truth(j, out[0]), jj_absent(), NULL));
}

static jj_value filter_dictsort(jj *j, jj_value v, const jj_args *args) {
    jj_value out[3];
    tn__jj_bind(j, args, "dictsort", "case_sensitive by reverse", 0, out);
    if (v.type != JJ_DICT) tn__jj_fail(j, TN_E_INVALID, "dictsort needs a dict, not %s", tn__jj_type_name(v));
    bool by_value = out[1].type == JJ_STRING && tn__jj_same_text(out[1].as.string, "value");
    if (!jj_is_absent(out[1]) && !by_value &&
        !(out[1].type == JJ_STRING && tn__jj_same_text(out[1].as.string, "key")))
        tn__jj_fail(j, TN_E_INVALID, "You can only sort by either \"key\" or \"value\"");
    jj_view view = {.dict = v.as.dict, .kind = 'i'};
    jj_value pairs = {.type = JJ_VIEW, .as.view = &view};
    return jj_listed(JJ_LIST, sorted(j, pairs, jj_int(by_value), tn__jj_truth(j, out[0]), tn__jj_truth(j, out[2]),
                                     jj_absent(), NULL));
}

static jj_value filter_groupby(jj *j, jj_value v, const jj_args *args) {
    jj_value out[3], *keys;
    tn__jj_bind(j, args, "groupby", "attribute default case_sensitive", 1, out);
    jj_list *all = sorted(j, v, out[0], tn__jj_truth(j, out[2]), false, out[1], &keys);
    jj_list *groups = tn__jj_new_list(j, 0), *members = NULL;
    for (size_t i = 0; i < all->count; i++) {
        if (i == 0 || !tn__jj_equal(j, keys[i - 1], keys[i])) {
            members = tn__jj_new_list(j, 0);
            jj_value group =
                tn__jj_pair(j, sort_key(j, all->items[i], out[0], true, out[1]), jj_listed(JJ_LIST, members));
            group.as.list->group = true;
            tn__jj_append(j, groups, group);
        }
        tn__jj_append(j, members, all->items[i]);
    }
    return jj_listed(JJ_LIST, groups);
}

static jj_value filter_batch(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2], item;
    jj_list *rows = tn__jj_new_list(j, 0), *row = NULL;
    jj_cursor cursor;
    tn__jj_bind(j, args, "batch", "linecount fill_with", 1, out);
    int64_t width = tn__jj_need_int(j, out[0], "a line count");
    if (width < 1) tn__jj_fail(j, TN_E_INVALID, "batch: the line count must be positive");
    tn__jj_cursor(j, v, &cursor);
    while (tn__jj_next(j, &cursor, &item)) {
        if (!row || (int64_t)row->count == width) {
            row = tn__jj_new_list(j, 0);
            tn__jj_append(j, rows, jj_listed(JJ_LIST, row));
        }
        tn__jj_append(j, row, item);
    }
    if (row && !jj_is_absent(out[1]) && out[1].type != JJ_NONE)
        while ((int64_t)row->count < width) tn__jj_append(j, row, out[1]);
    return jj_listed(JJ_GENERATOR, rows);
}

static jj_value filter_slice(jj *j, jj_value v, const jj_args *args) {
    jj_value out[2];
    jj_list *all = tn__jj_collect(j, v), *slices = tn__jj_new_list(j, 0);
    tn__jj_bind(j, args, "slice", "slices fill_with", 1, out);
    int64_t count = tn__jj_need_int(j, out[0], "a number of slices"), have = (int64_t)all->count, at = 0;
    if (count < 1) tn__jj_fail(j, TN_E_INVALID, "slice: the number of slices must be positive");
    for (int64_t i = 0; i < count; i++) {
        jj_list *part = tn__jj_new_list(j, 0);
        bool longer = i < have % count;
        for (int64_t n = have / count + longer; n > 0; n--) tn__jj_append(j, part, all->items[at++]);
        if (!longer && !jj_is_absent(out[1]) && out[1].type != JJ_NONE) tn__jj_append(j, part, out[1]);
        tn__jj_append(j, slices, jj_listed(JJ_LIST, part));
    }
    return jj_listed(JJ_GENERATOR, slices);
}

const jj_named tn__jj_list_filters[] = {
    {"batch", filter_batch, 0},
    {"dictsort", filter_dictsort, 0},
    {"first", filter_first, 0},
    {"groupby", filter_groupby, 0},
    {"items", filter_items, 0},
    {"join", filter_join, 0},
    {"last", filter_last, 0},
    {"list", filter_list, 0},
    {"map", filter_map, 0},
    {"max", filter_max, 0},
    {"min", filter_min, 0},
    {"random", filter_random, 0},
    {"reject", filter_reject, 0},
    {"rejectattr", filter_rejectattr, 0},
    {"reverse", filter_reverse, 0},
    {"select", filter_select, 0},
    {"selectattr", filter_selectattr, 0},
    {"slice", filter_slice, 0},
    {"sort", filter_sort, 0},
    {"sum", filter_sum, 0},
    {"unique", filter_unique, 0},
    {NULL, NULL, 0},
};
