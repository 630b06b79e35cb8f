/* Appending to growing texts and lists of tokens. */
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

tn_status tokens_append(tn_tokens *tokens, const tn_token *ids, size_t count) {
    if (tokens->count + count > tokens->capacity) {
        size_t capacity = 2 * (tokens->count + count) + 64;
        tn_token *larger = tn_realloc(tokens->ids, capacity * sizeof *larger);
        if (!larger) return TN_E_NOMEM;
        tokens->ids = larger;
        tokens->capacity = capacity;
    }
    if (count) memcpy(tokens->ids + tokens->count, ids, count * sizeof *ids);
    tokens->count += count;
    return TN_OK;
}
