/* JSON appended to a text buffer as Python's json module writes it. */
#include "text/chat/internal.h"
#include "text/utf8.h"

#include <stdio.h>

tn_status tn__chat_nomem(void) { return tn_fail(TN_E_NOMEM, "out of memory for a JSON document"); }

static int append_dump(const char *buffer, size_t size, void *user) {
    tn__text_append(user, buffer, size);
    return 0;
}

/* jansson's default separators are ", " and ": ", the ones that templates and models are trained on. */
void tn__chat_append_json(tn__text *text, const json_t *json) {
    if (json_dump_callback(json, append_dump, text, JSON_ENCODE_ANY) != 0) text->status = tn__chat_nomem();
}

void tn__chat_append_json_string(tn__text *text, const char *data, size_t length) {
    tn__text_puts(text, "\"");
    for (size_t i = 0, from = 0; i <= length; i++) {
        unsigned char c = i < length ? (unsigned char)data[i] : 0;
        uint32_t cp;
        unsigned n = c >= 0x80 ? tn__utf8_decode(data + i, length - i, &cp) : 1;
        bool plain = i < length && n && c >= 0x20 && c != '"' && c != '\\';
        if (plain) {
            i += n - 1;
            continue;
        }
        tn__text_append(text, data + from, i - from);
        from = i + 1;
        char escape[8] = {'\\', (char)c, '\0'};
        if (i == length) break;
        if (c >= 0x80) /* not UTF-8: the replacement character */
            memcpy(escape, "\\ufffd", 7);
        else if (c == '\n')
            escape[1] = 'n';
        else if (c == '\t')
            escape[1] = 't';
        else if (c == '\r')
            escape[1] = 'r';
        else if (c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", c);
        tn__text_puts(text, escape);
    }
    tn__text_puts(text, "\"");
}
