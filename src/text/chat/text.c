/* Growing text for chat, with JSON written into it as Python's json module would. */
#include "text/chat/internal.h"

#include <stdio.h>

tn_status tn__chat_nomem(void) { return tn_fail(TN_E_NOMEM, "out of memory for a JSON document"); }

void tn__chat_add(tn__chat_text *text, const char *data, size_t length) {
    if (text->failed) return;
    if (length >= text->capacity - text->length) { /* one more for the NUL */
        size_t capacity = text->capacity ? text->capacity : 64;
        while (capacity - text->length <= length && capacity < SIZE_MAX / 4) capacity *= 2;
        char *grown = capacity - text->length > length ? tn_realloc(text->data, capacity) : NULL;
        if (!grown) {
            text->failed = true;
            return;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    if (length) memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void tn__chat_adds(tn__chat_text *text, const char *string) { tn__chat_add(text, string, strlen(string)); }

static int dump(const char *buffer, size_t size, void *user) {
    tn__chat_add(user, buffer, size);
    return 0;
}

/* jansson separates with ", " and ": " unless told otherwise, which is what templates and models are used to. */
void tn__chat_add_json(tn__chat_text *text, const json_t *json) {
    if (json_dump_callback(json, dump, text, JSON_ENCODE_ANY) != 0) text->failed = true;
}

void tn__chat_add_json_string(tn__chat_text *text, const char *data, size_t length) {
    tn__chat_adds(text, "\"");
    for (size_t i = 0, from = 0; i <= length; i++) {
        unsigned char c = i < length ? (unsigned char)data[i] : 0;
        bool plain = i < length && c >= 0x20 && c != '"' && c != '\\';
        if (plain) continue;
        tn__chat_add(text, data + from, i - from);
        from = i + 1;
        char escape[8] = {'\\', (char)c, '\0'};
        if (i == length) break;
        if (c == '\n')
            escape[1] = 'n';
        else if (c == '\t')
            escape[1] = 't';
        else if (c == '\r')
            escape[1] = 'r';
        else if (c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", c);
        tn__chat_adds(text, escape);
    }
    tn__chat_adds(text, "\"");
}

void tn__chat_drop(tn__chat_text *text, size_t count) {
    if (!count || !text->data) return;
    memmove(text->data, text->data + count, text->length - count + 1);
    text->length -= count;
}

void tn__chat_clear(tn__chat_text *text) {
    text->length = 0;
    if (text->data) text->data[0] = '\0';
}

void tn__chat_release(tn__chat_text *text) {
    tn_free(text->data);
    *text = (tn__chat_text){0};
}

tn_status tn__chat_take(tn__chat_text *text, char **out, size_t *length) {
    if (!text->data) tn__chat_add(text, "", 0);
    if (text->failed) {
        tn__chat_release(text);
        return tn_fail(TN_E_NOMEM, "out of memory for a text");
    }
    *out = text->data;
    if (length) *length = text->length;
    *text = (tn__chat_text){0};
    return TN_OK;
}
