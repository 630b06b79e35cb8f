/* Ordered dictionaries: linear search while small, open addressing otherwise. */
#include "base/hash.h"
#include "text/template/engine.h"

enum { LINEAR_MAX = 8 };

jj_dict *tn__jj_new_dict(jj *j) { return tn__jj_alloc(j, sizeof(jj_dict)); }

static uint64_t hash_key_bytes(const char *data, size_t length) {
    return tn__hash_bytes(data, length, 0x6a696e6a61u);
}

uint64_t tn__jj_hash(jj *j, jj_value v) {
    int64_t i;
    tn__jj_charge(j, 1);
    switch (v.type) {
    case JJ_STRING:
        jj_charge_bytes(j, v.as.string->length);
        return hash_key_bytes(v.as.string->data, v.as.string->length);
    case JJ_NONE: return 0x4e6f6e65u;
    case JJ_INT:
    case JJ_BOOL: tn__jj_as_int(v, &i); return hash_key_bytes((const char *)&i, sizeof i);
    case JJ_FLOAT: /* 1.0 and 1 are equal keys */
        if (v.as.real >= -0x1p62 && v.as.real <= 0x1p62 && v.as.real == (double)(i = (int64_t)v.as.real))
            return hash_key_bytes((const char *)&i, sizeof i);
        return hash_key_bytes((const char *)&v.as.real, sizeof v.as.real);
    case JJ_TUPLE: {
        uint64_t hash = 0x7475706cu;
        tn__jj_enter(j);
        for (size_t n = 0; n < v.as.list->count; n++) hash = hash * 31 + tn__jj_hash(j, v.as.list->items[n]);
        jj_leave(j);
        return hash;
    }
    case JJ_LIST:
    case JJ_DICT: tn__jj_fail(j, TN_E_INVALID, "unhashable type: '%s'", tn__jj_type_name(v));
    default: return (uint64_t)(uintptr_t)v.as.string;
    }
}

/* The index of the entry, or count if there is none. */
static size_t find_entry_index(jj *j, const jj_dict *dict, jj_value key, uint64_t hash) {
    if (!dict->slots) {
        for (size_t i = 0; i < dict->count; i++)
            if (dict->entries[i].hash == hash && tn__jj_equal(j, dict->entries[i].key, key)) return i;
        return dict->count;
    }
    size_t mask = dict->slot_count - 1;
    for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
        uint32_t index = dict->slots[slot];
        tn__jj_charge(j, 1);
        if (!index) return dict->count;
        const jj_entry *entry = &dict->entries[index - 1];
        if (entry->hash == hash && tn__jj_equal(j, entry->key, key)) return index - 1;
    }
}

jj_entry *tn__jj_dict_find(jj *j, const jj_dict *dict, jj_value key) {
    size_t index = find_entry_index(j, dict, key, tn__jj_hash(j, key));
    return index < dict->count ? &dict->entries[index] : NULL;
}

jj_entry *tn__jj_dict_text(jj *j, const jj_dict *dict, const jj_string *key) {
    jj_string copy = *key;
    return tn__jj_dict_find(j, dict, jj_str(&copy));
}

static void index_entries(jj *j, jj_dict *dict) {
    if (dict->count <= LINEAR_MAX) {
        dict->slots = NULL;
        dict->slot_count = 0;
        return;
    }
    size_t slots = 32;
    while (slots < dict->count * 2) slots *= 2;
    if (slots != dict->slot_count) {
        dict->slots = tn__jj_array(j, slots, sizeof *dict->slots);
        dict->slot_count = slots;
    } else
        memset(dict->slots, 0, slots * sizeof *dict->slots);
    tn__jj_charge(j, dict->count);
    for (size_t i = 0; i < dict->count; i++) {
        size_t slot = dict->entries[i].hash & (slots - 1);
        while (dict->slots[slot]) slot = (slot + 1) & (slots - 1);
        dict->slots[slot] = (uint32_t)i + 1;
    }
}

void tn__jj_dict_set(jj *j, jj_dict *dict, jj_value key, jj_value value) {
    uint64_t hash = tn__jj_hash(j, key);
    size_t index = find_entry_index(j, dict, key, hash);
    if (index < dict->count) {
        dict->entries[index].value = value;
        return;
    }
    if (dict->count == dict->capacity) {
        size_t capacity = dict->capacity ? dict->capacity * 2 : 4;
        if (capacity > UINT32_MAX / 2) tn__jj_fail(j, TN_E_LIMIT, "a dict grows beyond %zu entries", dict->count);
        dict->entries = tn__jj_grow(j, dict->entries, dict->capacity * sizeof(jj_entry), capacity * sizeof(jj_entry));
        dict->capacity = capacity;
    }
    dict->entries[dict->count++] = (jj_entry){.key = key, .value = value, .hash = hash};
    if (dict->count <= LINEAR_MAX) return;
    if (dict->slot_count < dict->count * 2) {
        index_entries(j, dict);
        return;
    }
    size_t slot = hash & (dict->slot_count - 1);
    while (dict->slots[slot]) slot = (slot + 1) & (dict->slot_count - 1);
    dict->slots[slot] = (uint32_t)dict->count;
}

void tn__jj_dict_remove(jj *j, jj_dict *dict, jj_entry *entry) {
    size_t index = (size_t)(entry - dict->entries);
    tn__jj_charge(j, dict->count - index);
    memmove(entry, entry + 1, (dict->count - index - 1) * sizeof *entry);
    dict->count--;
    index_entries(j, dict);
}
