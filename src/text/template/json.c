/* JSON: documents to values, and values to JSON text as Python writes it (tojson). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template/engine.h"

jj_value tn__jj_from_json(jj *j, const json_t *json) {
    jj_value v = jj_none();
    tn__jj_charge(j, 1);
    tn__jj_enter(j);
    switch (json_typeof(json)) {
    case JSON_OBJECT: {
        jj_dict *dict = tn__jj_new_dict(j);
        void *iterator = json_object_iter((json_t *)json);
        for (; iterator; iterator = json_object_iter_next((json_t *)json, iterator)) {
            const char *key = json_object_iter_key(iterator);
            jj_value name = jj_str(tn__jj_copy_string(j, key, strlen(key)));
            tn__jj_dict_set(j, dict, name, tn__jj_from_json(j, json_object_iter_value(iterator)));
        }
        v = jj_dicted(dict);
        break;
    }
    case JSON_ARRAY: {
        jj_list *list = tn__jj_new_list(j, json_array_size(json));
        for (size_t i = 0; i < json_array_size(json); i++)
            tn__jj_append(j, list, tn__jj_from_json(j, json_array_get(json, i)));
        v = jj_listed(JJ_LIST, list);
        break;
    }
    case JSON_STRING:
        jj_charge_bytes(j, json_string_length(json));
        v = jj_str(tn__jj_copy_string(j, json_string_value(json), json_string_length(json)));
        break;
    case JSON_INTEGER: v = jj_int(json_integer_value(json)); break;
    case JSON_REAL: v = jj_real(json_real_value(json)); break;
    case JSON_TRUE: v = jj_bool(true); break;
    case JSON_FALSE: v = jj_bool(false); break;
    case JSON_NULL: break;
    }
    jj_leave(j);
    return v;
}

jj_value tn__jj_parse_json(jj *j, const jj_string *text) {
    json_error_t error;
    jj_charge_bytes(j, text->length * 8);
    json_decref(j->json_loaded); /* there is never a second one: copying a document parses no other */
    j->json_loaded = json_loadb(text->data ? text->data : "", text->length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!j->json_loaded) tn__jj_fail(j, TN_E_INVALID, "from_json: %s", error.text);
    jj_value v = tn__jj_from_json(j, j->json_loaded);
    json_decref(j->json_loaded);
    j->json_loaded = NULL;
    return v;
}

static void put_json_string(jj *j, jj_buffer *b, const jj_string *s, bool ascii) {
    const char *end = s->data + s->length;
    char escape[16];
    tn__jj_put_char(j, b, '"');
    for (const char *p = s->data; p < end;) {
        uint32_t code;
        size_t n = tn__jj_decode(p, end, &code);
        escape[0] = '\0';
        switch (code) {
        case '"': jj_puts(j, b, "\\\""); break;
        case '\\': jj_puts(j, b, "\\\\"); break;
        case '\n': jj_puts(j, b, "\\n"); break;
        case '\r': jj_puts(j, b, "\\r"); break;
        case '\t': jj_puts(j, b, "\\t"); break;
        case '\b': jj_puts(j, b, "\\b"); break;
        case '\f': jj_puts(j, b, "\\f"); break;
        default:
            if (code < 0x20 || (ascii && code >= 0x80 && code < 0x10000)) {
                snprintf(escape, sizeof escape, "\\u%04x", code);
            } else if (ascii && code >= 0x10000) {
                uint32_t rest = code - 0x10000;
                snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
            }
            if (escape[0])
                jj_puts(j, b, escape);
            else if (n == 1)
                tn__jj_put_char(j, b, *p);
            else
                tn__jj_put(j, b, p, n);
        }
        p += n;
    }
    tn__jj_put_char(j, b, '"');
}

static void put_json_number(jj *j, jj_buffer *b, jj_value v) {
    if (v.type == JJ_FLOAT && isnan(v.as.real))
        jj_puts(j, b, "NaN");
    else if (v.type == JJ_FLOAT && isinf(v.as.real))
        jj_puts(j, b, v.as.real < 0 ? "-Infinity" : "Infinity");
    else
        tn__jj_put_repr(j, b, v);
}

static void put_json_line_end(jj *j, jj_buffer *b, const jj_json_style *style, size_t level) {
    if (!style->indent) return;
    tn__jj_put_char(j, b, '\n');
    for (size_t i = 0; i < level; i++) tn__jj_put(j, b, style->indent->data, style->indent->length);
}

static void put_json_key(jj *j, jj_buffer *b, jj_value key, const jj_json_style *style) {
    if (key.type == JJ_STRING) {
        put_json_string(j, b, key.as.string, style->ascii);
        return;
    }
    tn__jj_put_char(j, b, '"');
    if (key.type == JJ_NONE)
        jj_puts(j, b, "null");
    else if (key.type == JJ_BOOL)
        jj_puts(j, b, key.as.boolean ? "true" : "false");
    else if (tn__jj_is_number(key))
        put_json_number(j, b, key);
    else
        tn__jj_fail(j, TN_E_INVALID, "a %s cannot be a key of a JSON object", tn__jj_type_name(key));
    tn__jj_put_char(j, b, '"');
}

static void put_json_dict(jj *j, jj_buffer *b, const jj_dict *dict, const jj_json_style *style, size_t level) {
    jj_value *keys = tn__jj_array(j, dict->count, sizeof *keys),
             *values = tn__jj_array(j, dict->count, sizeof *values);
    for (size_t i = 0; i < dict->count; i++) keys[i] = dict->entries[i].key, values[i] = dict->entries[i].value;
    if (style->sort_keys) {
        jj_value *sort_by = tn__jj_array(j, dict->count, sizeof *sort_by);
        if (dict->count) memcpy(sort_by, keys, dict->count * sizeof *keys);
        tn__jj_sort(j, values, sort_by, dict->count, false);
        memcpy(keys, sort_by, dict->count * sizeof *keys);
    }
    tn__jj_put_char(j, b, '{');
    for (size_t i = 0; i < dict->count; i++) {
        if (i) tn__jj_put(j, b, style->item_separator->data, style->item_separator->length);
        put_json_line_end(j, b, style, level + 1);
        put_json_key(j, b, keys[i], style);
        tn__jj_put(j, b, style->key_separator->data, style->key_separator->length);
        tn__jj_put_json(j, b, values[i], style, level + 1);
    }
    if (dict->count) put_json_line_end(j, b, style, level);
    tn__jj_put_char(j, b, '}');
}

void tn__jj_put_json(jj *j, jj_buffer *b, jj_value v, const jj_json_style *style, size_t level) {
    tn__jj_charge(j, 1);
    tn__jj_enter(j);
    switch (v.type) {
    case JJ_NONE: jj_puts(j, b, "null"); break;
    case JJ_BOOL: jj_puts(j, b, v.as.boolean ? "true" : "false"); break;
    case JJ_INT:
    case JJ_FLOAT: put_json_number(j, b, v); break;
    case JJ_STRING: put_json_string(j, b, v.as.string, style->ascii); break;
    case JJ_LIST:
    case JJ_TUPLE:
        tn__jj_put_char(j, b, '[');
        for (size_t i = 0; i < v.as.list->count; i++) {
            if (i) tn__jj_put(j, b, style->item_separator->data, style->item_separator->length);
            put_json_line_end(j, b, style, level + 1);
            tn__jj_put_json(j, b, v.as.list->items[i], style, level + 1);
        }
        if (v.as.list->count) put_json_line_end(j, b, style, level);
        tn__jj_put_char(j, b, ']');
        break;
    case JJ_DICT: put_json_dict(j, b, v.as.dict, style, level); break;
    default: tn__jj_fail(j, TN_E_INVALID, "Object of type %s is not JSON serializable", tn__jj_type_name(v));
    }
    jj_leave(j);
}
