/* A growing string, and the ways of quoting in XML, JSON and CSV. */
#include "plan/text.h"

#include <stdio.h>
#include <string.h>

static bool reserve(tn__text *t, size_t more) {
    if (t->failed) return false;
    if (t->length + more + 1 <= t->capacity) return true;
    size_t capacity = 2 * t->capacity + more + 256;
    char *grown = tn_realloc(t->data, capacity);
    if (!grown) {
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->capacity = capacity;
    return true;
}

void tn__text_bytes(tn__text *t, const char *bytes, size_t length) {
    if (!reserve(t, length)) return;
    memcpy(t->data + t->length, bytes, length);
    t->length += length;
}

void tn__text_add(tn__text *t, const char *format, ...) {
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    int length = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (length >= 0 && reserve(t, (size_t)length)) {
        vsnprintf(t->data + t->length, (size_t)length + 1, format, again);
        t->length += (size_t)length;
    }
    va_end(again);
}

/* Length of the UTF-8 character at s, 0 if it is not one. Overlong forms and surrogates are not. */
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

void tn__text_xml(tn__text *t, const char *words) {
    for (const unsigned char *s = (const unsigned char *)words; *s;) {
        size_t length = utf8_length(s);
        const char *instead = *s == '<'                 ? "&lt;"
                              : *s == '>'               ? "&gt;"
                              : *s == '&'               ? "&amp;"
                              : *s == '"'               ? "&quot;"
                              : length == 0 || *s < ' ' ? "?"
                                                        : NULL;
        if (instead)
            tn__text_bytes(t, instead, strlen(instead));
        else
            tn__text_bytes(t, (const char *)s, length);
        s += length ? length : 1;
    }
}

void tn__text_json(tn__text *t, const char *words) {
    tn__text_bytes(t, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)words; *s;) {
        size_t length = utf8_length(s);
        if (*s == '"' || *s == '\\')
            tn__text_add(t, "\\%c", *s);
        else if (*s < ' ')
            tn__text_add(t, "\\u%04x", *s);
        else if (length == 0)
            tn__text_bytes(t, "?", 1);
        else
            tn__text_bytes(t, (const char *)s, length);
        s += length ? length : 1;
    }
    tn__text_bytes(t, "\"", 1);
}

void tn__text_csv(tn__text *t, const char *words) {
    if (!strpbrk(words, ",\"\r\n")) {
        tn__text_bytes(t, words, strlen(words));
        return;
    }
    tn__text_bytes(t, "\"", 1);
    for (; *words; words++) tn__text_bytes(t, *words == '"' ? "\"\"" : words, *words == '"' ? 2 : 1);
    tn__text_bytes(t, "\"", 1);
}

tn_status tn__text_take(tn__text *t, char **out) {
    *out = NULL;
    if (!reserve(t, 0)) {
        tn_free(t->data);
        *t = (tn__text){0};
        return TN_E_NOMEM;
    }
    t->data[t->length] = '\0';
    *out = t->data;
    *t = (tn__text){0};
    return TN_OK;
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
