/* A growing text buffer, and quoting for XML, JSON and CSV. After the first failure all calls do nothing, so that a
 * document is written as a list of calls and checked once, by tn__text_take or by reading `status`. */
#ifndef TN_BASE_TEXT_H
#define TN_BASE_TEXT_H

#include "tenon/base.h"

#include <stdarg.h>

typedef struct tn__text {
    char *data; /* ends with a NUL whenever it is not NULL */
    size_t length, capacity;
    size_t limit;     /* longest text allowed, 0: any length; survives tn__text_free and tn__text_take */
    tn_status status; /* TN_E_NOMEM after a failed allocation, TN_E_LIMIT beyond the limit */
} tn__text;

void tn__text_append(tn__text *text, const char *bytes, size_t length);
void tn__text_puts(tn__text *text, const char *string);
/* Appends another buffer's text. A failure of the other buffer becomes a failure of this one. */
void tn__text_join(tn__text *text, const tn__text *other);
void tn__text_printf(tn__text *text, const char *format, ...) TN_PRINTF(2, 3);
void tn__text_vprintf(tn__text *text, const char *format, va_list list);
/* Escaped for XML; bytes that are not UTF-8 become '?'. */
void tn__text_xml(tn__text *text, const char *string);
/* A JSON string with its quotes; bytes that are not UTF-8 become '?'. */
void tn__text_json(tn__text *text, const char *string);
/* A CSV field, quoted where needed. */
void tn__text_csv(tn__text *text, const char *string);
/* Shortens the text to `length` bytes. Does nothing if it is not longer. */
void tn__text_truncate(tn__text *text, size_t length);
/* Removes the first `count` bytes, which must exist. */
void tn__text_remove_front(tn__text *text, size_t count);
/* Empties the text, keeps its memory and forgets a failure. */
void tn__text_clear(tn__text *text);
/* Hands the string to the caller, who frees it with tn_free(). The buffer is empty afterwards. On failure `*out` is
 * NULL and the status is returned. */
tn_status tn__text_take(tn__text *text, char **out);
/* Frees the string and makes the buffer usable again. */
void tn__text_free(tn__text *text);

/* Writes a size such as "3.2 MiB" to `buffer` and returns it. */
const char *tn__text_size(size_t bytes, char *buffer, size_t size);

#endif
