/* A growing text buffer, and quoting for XML, JSON and CSV. */
#include "base/text.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* Makes room for `more` bytes and a NUL. The capacity is at most limit + 1, so that the first test covers the limit.
 */
static bool text_reserve(tn__text *t, size_t more) {
    if (t->status != TN_OK) return false;
    if (more < t->capacity - t->length) return true;
    size_t needed, capacity;
    if (!tn__add_size(t->length, more, &needed) || !tn__add_size(needed, 1, &needed)) {
        t->status = TN_E_NOMEM;
        return false;
    }
    if (t->limit && needed - 1 > t->limit) {
        t->status = tn_fail(TN_E_LIMIT, "a text grows beyond %zu bytes", t->limit);
        return false;
    }
    if (!tn__add_size(t->capacity, t->capacity, &capacity) || !tn__add_size(capacity, more, &capacity) ||
        !tn__add_size(capacity, 64, &capacity)) /* avoids tiny first steps */
        capacity = needed;
    if (t->limit && capacity - 1 > t->limit) capacity = t->limit + 1;
    char *grown = tn_realloc(t->data, capacity);
    if (!grown) {
        t->status = TN_E_NOMEM;
        return false;
    }
    t->data = grown;
    t->capacity = capacity;
    return true;
}

void tn__text_append(tn__text *t, const char *bytes, size_t length) {
    if (!text_reserve(t, length)) return;
    if (length) memcpy(t->data + t->length, bytes, length);
    t->length += length;
    t->data[t->length] = '\0';
}

void tn__text_puts(tn__text *t, const char *string) { tn__text_append(t, string, strlen(string)); }

void tn__text_join(tn__text *t, const tn__text *other) {
    if (t->status == TN_OK) t->status = other->status;
    tn__text_append(t, other->data, other->length);
}

void tn__text_vprintf(tn__text *t, const char *format, va_list list) {
    va_list again;
    va_copy(again, list);
    int length = vsnprintf(NULL, 0, format, list);
    if (length < 0 && t->status == TN_OK) t->status = TN_E_INVALID;
    if (length >= 0 && text_reserve(t, (size_t)length)) {
        vsnprintf(t->data + t->length, (size_t)length + 1, format, again);
        t->length += (size_t)length;
    }
    va_end(again);
}

void tn__text_printf(tn__text *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    tn__text_vprintf(t, format, list);
    va_end(list);
}

void tn__text_truncate(tn__text *t, size_t length) {
    if (!t->data || length >= t->length) return;
    t->length = length;
    t->data[length] = '\0';
}

void tn__text_remove_front(tn__text *t, size_t count) {
    if (!count || !t->data) return;
    memmove(t->data, t->data + count, t->length - count + 1);
    t->length -= count;
}

void tn__text_clear(tn__text *t) {
    t->status = TN_OK;
    tn__text_truncate(t, 0);
}

void tn__text_free(tn__text *t) {
    tn_free(t->data);
    *t = (tn__text){.limit = t->limit};
}

/* Length of the UTF-8 character at s; 0 for invalid bytes, which include overlong forms and surrogates. */
static size_t utf8_length(const unsigned char *s) {
    size_t length = s[0] < 0x80                   ? 1
                    : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                    : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                    : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                  : 0;
    for (size_t k = 1; k < length; k++)
        if ((s[k] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return length;
}

void tn__text_xml(tn__text *t, const char *string) {
    for (const unsigned char *s = (const unsigned char *)string; *s;) {
        size_t length = utf8_length(s);
        const char *instead = *s == '<'                 ? "&lt;"
                              : *s == '>'               ? "&gt;"
                              : *s == '&'               ? "&amp;"
                              : *s == '"'               ? "&quot;"
                              : length == 0 || *s < ' ' ? "?"
                                                        : NULL;
        if (instead)
            tn__text_append(t, instead, strlen(instead));
        else
            tn__text_append(t, (const char *)s, length);
        s += length ? length : 1;
    }
}

void tn__text_json(tn__text *t, const char *string) {
    tn__text_append(t, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)string; *s;) {
        size_t length = utf8_length(s);
        if (*s == '"' || *s == '\\')
            tn__text_printf(t, "\\%c", *s);
        else if (*s < ' ')
            tn__text_printf(t, "\\u%04x", *s);
        else if (length == 0)
            tn__text_append(t, "?", 1);
        else
            tn__text_append(t, (const char *)s, length);
        s += length ? length : 1;
    }
    tn__text_append(t, "\"", 1);
}

void tn__text_csv(tn__text *t, const char *string) {
    if (!strpbrk(string, ",\"\r\n")) {
        tn__text_append(t, string, strlen(string));
        return;
    }
    tn__text_append(t, "\"", 1);
    for (; *string; string++) tn__text_append(t, *string == '"' ? "\"\"" : string, *string == '"' ? 2 : 1);
    tn__text_append(t, "\"", 1);
}

tn_status tn__text_take(tn__text *t, char **out) {
    tn__text_append(t, "", 0); /* makes sure that there is a string, even an empty one */
    tn_status status = t->status;
    *out = status == TN_OK ? t->data : NULL;
    if (status != TN_OK) tn_free(t->data);
    *t = (tn__text){.limit = t->limit};
    return status;
}

const char *tn__text_size(size_t bytes, char *buffer, size_t size) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 5; unit++) value /= 1024;
    if (unit == 0)
        snprintf(buffer, size, "%zu B", bytes);
    else
        snprintf(buffer, size, value < 9.995 ? "%.2f %s" : value < 99.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}
