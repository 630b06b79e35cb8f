/* Appending to a growing text. */
#include "cli/text_buffer.h"

#include <string.h>

tn_status text_append(tn_text *text, const void *bytes, size_t length) {
    if (text->length + length + 1 > text->capacity) {
        size_t capacity = 2 * (text->length + length + 64);
        char *larger = tn_realloc(text->bytes, capacity);
        if (!larger) return TN_E_NOMEM;
        text->bytes = larger;
        text->capacity = capacity;
    }
    if (length) memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
    return TN_OK;
}
