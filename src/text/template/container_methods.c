/* The methods of lists, tuples and dicts. Methods that change the object fail unless mutation is allowed. */
#include "text/template/engine.h"

/* ---- Lists ---- */

static jj_value list_append(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    tn__jj_bind(j, args, "append", "object", 1, &out);
    tn__jj_append(j, self.as.list, out);
    return jj_none();
}

static jj_value list_extend(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    tn__jj_bind(j, args, "extend", "iterable", 1, &out);
    jj_list *more = tn__jj_collect(j, out);
    for (size_t i = 0; i < more->count; i++) tn__jj_append(j, self.as.list, more->items[i]);
    return jj_none();
}

static void remove_at(jj *j, jj_list *list, size_t index) {
    tn__jj_charge(j, list->count - index);
    memmove(list->items + index, list->items + index + 1, (list->count - index - 1) * sizeof *list->items);
    list->count--;
}

static jj_value list_insert(jj *j, jj_value self, const jj_args *args) {
    jj_value out[2];
    jj_list *list = self.as.list;
    tn__jj_bind(j, args, "insert", "index object", 2, out);
    int64_t index = tn__jj_need_int(j, out[0], "index"), count = (int64_t)list->count;
    if (index < 0) index = index < -count ? 0 : index + count;
    if (index > count) index = count;
    tn__jj_append(j, list, out[1]);
    tn__jj_charge(j, (uint64_t)(count - index));
    memmove(list->items + index + 1, list->items + index, (size_t)(count - index) * sizeof *list->items);
    list->items[index] = out[1];
    return jj_none();
}

static jj_value list_pop(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    jj_list *list = self.as.list;
    tn__jj_bind(j, args, "pop", "index", 0, &out);
    int64_t count = (int64_t)list->count, index = jj_is_absent(out) ? -1 : tn__jj_need_int(j, out, "index");
    if (index < 0) index += count;
    if (index < 0 || index >= count)
        tn__jj_fail(j, TN_E_INVALID, count ? "pop index out of range" : "pop from empty list");
    jj_value item = list->items[index];
    remove_at(j, list, (size_t)index);
    return item;
}

static int64_t find_list_item(jj *j, const jj_list *list, jj_value wanted) {
    for (size_t i = 0; i < list->count; i++)
        if (tn__jj_equal(j, list->items[i], wanted)) return (int64_t)i;
    return -1;
}

static jj_value list_remove(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    tn__jj_bind(j, args, "remove", "value", 1, &out);
    int64_t index = find_list_item(j, self.as.list, out);
    if (index < 0) tn__jj_fail(j, TN_E_INVALID, "list.remove(x): x not in list");
    remove_at(j, self.as.list, (size_t)index);
    return jj_none();
}

static jj_value list_index(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    tn__jj_bind(j, args, "index", "value", 1, &out);
    int64_t index = find_list_item(j, self.as.list, out);
    if (index < 0) tn__jj_fail(j, TN_E_INVALID, "the value is not in the list");
    return jj_int(index);
}

static jj_value list_count(jj *j, jj_value self, const jj_args *args) {
    jj_value out;
    int64_t n = 0;
    tn__jj_bind(j, args, "count", "value", 1, &out);
    for (size_t i = 0; i < self.as.list->count; i++) n += tn__jj_equal(j, self.as.list->items[i], out);
    return jj_int(n);
}

static jj_value list_copy(jj *j, jj_value self, const jj_args *args) {
    tn__jj_bind(j, args, "copy", "", 0, NULL);
    return jj_listed(JJ_LIST, tn__jj_collect(j, self));
}

static jj_value list_clear(jj *j, jj_value self, const jj_args *args) {
    tn__jj_bind(j, args, "clear", "", 0, NULL);
    self.as.list->count = 0;
    return jj_none();
}

static jj_value list_reverse(jj *j, jj_value self, const jj_args *args) {
    jj_list *list = self.as.list;
    tn__jj_bind(j, args, "reverse", "", 0, NULL);
    tn__jj_charge(j, list->count);
    for (size_t i = 0; i < list->count / 2; i++) {
        jj_value v = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = v;
    }
    return jj_none();
}

static jj_value list_sort(jj *j, jj_value self, const jj_args *args) {
    jj_value reverse;
    jj_list *list = self.as.list;
    tn__jj_bind(j, args, "sort", "reverse", 0, &reverse);
    jj_list *sorted = tn__jj_collect(j, self), *keys = tn__jj_collect(j, self);
    tn__jj_sort(j, sorted->items, keys->items, sorted->count, tn__jj_truth(j, reverse));
    if (list->count) memcpy(list->items, sorted->items, list->count * sizeof *list->items);
    return jj_none();
}

const jj_named tn__jj_list_methods[] = {
    {"append", list_append, true},   {"clear", list_clear, true},   {"copy", list_copy, false},
    {"count", list_count, false},    {"extend", list_extend, true}, {"index", list_index, false},
    {"insert", list_insert, true},   {"pop", list_pop, true},       {"remove", list_remove, true},
    {"reverse", list_reverse, true}, {"sort", list_sort, true},     {NULL, NULL, false},
};
const jj_named tn__jj_tuple_methods[] = {
    {"count", list_count, false}, {"index", list_index, false}, {NULL, NULL, false}};

/* ---- Dicts ---- */

static jj_value make_view(jj *j, jj_value self, const jj_args *args, const char *who, char kind) {
    tn__jj_bind(j, args, who, "", 0, NULL);
    jj_view *view = tn__jj_alloc(j, sizeof *view);
    *view = (jj_view){.dict = self.as.dict, .kind = kind};
    return (jj_value){.type = JJ_VIEW, .as.view = view};
}
static jj_value dict_keys(jj *j, jj_value s, const jj_args *a) { return make_view(j, s, a, "keys", 'k'); }
static jj_value dict_values(jj *j, jj_value s, const jj_args *a) { return make_view(j, s, a, "values", 'v'); }
static jj_value dict_items(jj *j, jj_value s, const jj_args *a) { return make_view(j, s, a, "items", 'i'); }

static jj_value dict_get(jj *j, jj_value self, const jj_args *args) {
    jj_value out[2];
    tn__jj_bind(j, args, "get", "key default", 1, out);
    jj_entry *entry = tn__jj_dict_find(j, self.as.dict, out[0]);
    return entry ? entry->value : jj_is_absent(out[1]) ? jj_none() : out[1];
}

static jj_value dict_pop(jj *j, jj_value self, const jj_args *args) {
    jj_value out[2];
    tn__jj_bind(j, args, "pop", "key default", 1, out);
    jj_entry *entry = tn__jj_dict_find(j, self.as.dict, out[0]);
    if (!entry && jj_is_absent(out[1])) tn__jj_fail(j, TN_E_INVALID, "pop: the dict has no such key");
    if (!entry) return out[1];
    jj_value v = entry->value;
    tn__jj_dict_remove(j, self.as.dict, entry);
    return v;
}

static jj_value dict_popitem(jj *j, jj_value self, const jj_args *args) {
    jj_dict *dict = self.as.dict;
    tn__jj_bind(j, args, "popitem", "", 0, NULL);
    if (!dict->count) tn__jj_fail(j, TN_E_INVALID, "popitem(): dictionary is empty");
    jj_entry *entry = &dict->entries[dict->count - 1];
    jj_value pair = tn__jj_pair(j, entry->key, entry->value);
    tn__jj_dict_remove(j, dict, entry);
    return pair;
}

static jj_value dict_setdefault(jj *j, jj_value self, const jj_args *args) {
    jj_value out[2];
    tn__jj_bind(j, args, "setdefault", "key default", 1, out);
    jj_entry *entry = tn__jj_dict_find(j, self.as.dict, out[0]);
    if (entry) return entry->value;
    jj_value v = jj_is_absent(out[1]) ? jj_none() : out[1];
    tn__jj_dict_set(j, self.as.dict, out[0], v);
    return v;
}

static jj_value dict_update(jj *j, jj_value self, const jj_args *args) {
    if (args->count > 1) tn__jj_fail(j, TN_E_INVALID, "update() takes at most one argument");
    if (args->count && args->values[0].type == JJ_DICT) {
        const jj_dict *from = args->values[0].as.dict;
        for (size_t i = 0; i < from->count; i++)
            tn__jj_dict_set(j, self.as.dict, from->entries[i].key, from->entries[i].value);
    } else if (args->count) {
        jj_cursor cursor;
        jj_value pair;
        tn__jj_cursor(j, args->values[0], &cursor);
        while (tn__jj_next(j, &cursor, &pair)) {
            jj_list *two = tn__jj_collect(j, pair);
            if (two->count != 2) tn__jj_fail(j, TN_E_INVALID, "update() needs pairs of key and value");
            tn__jj_dict_set(j, self.as.dict, two->items[0], two->items[1]);
        }
    }
    for (size_t i = 0; i < args->keyword_count; i++)
        tn__jj_dict_set(j, self.as.dict, jj_str(args->keywords[i]), args->keyword_values[i]);
    return jj_none();
}

static jj_value dict_copy(jj *j, jj_value self, const jj_args *args) {
    jj_dict *copy = tn__jj_new_dict(j);
    tn__jj_bind(j, args, "copy", "", 0, NULL);
    for (size_t i = 0; i < self.as.dict->count; i++)
        tn__jj_dict_set(j, copy, self.as.dict->entries[i].key, self.as.dict->entries[i].value);
    return jj_dicted(copy);
}

static jj_value dict_clear(jj *j, jj_value self, const jj_args *args) {
    tn__jj_bind(j, args, "clear", "", 0, NULL);
    *self.as.dict = (jj_dict){0};
    return jj_none();
}

const jj_named tn__jj_dict_methods[] = {
    {"clear", dict_clear, true},
    {"copy", dict_copy, false},
    {"get", dict_get, false},
    {"items", dict_items, false},
    {"keys", dict_keys, false},
    {"pop", dict_pop, true},
    {"popitem", dict_popitem, true},
    {"setdefault", dict_setdefault, true},
    {"update", dict_update, true},
    {"values", dict_values, false},
    {NULL, NULL, false},
};
