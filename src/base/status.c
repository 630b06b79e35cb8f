/* Status names and the per-thread error message. */
#include "tenon/base.h"

#include <stdio.h>
#include <string.h>

enum { TN__ERROR_CAPACITY = 2048 };
static _Thread_local char error_text[TN__ERROR_CAPACITY];

const char *tn_status_name(tn_status status) {
    switch (status) {
#define TN_X(name, value, text)                                                                                      \
    case TN_##name: return "TN_" #name;
        TN_STATUS_TABLE(TN_X)
#undef TN_X
    }
    return "TN_UNKNOWN";
}

const char *tn_status_text(tn_status status) {
    switch (status) {
#define TN_X(name, value, text)                                                                                      \
    case TN_##name: return text;
        TN_STATUS_TABLE(TN_X)
#undef TN_X
    }
    return "unknown status";
}

const char *tn_error(void) { return error_text; }
void tn_error_clear(void) { error_text[0] = '\0'; }

tn_status tn_fail(tn_status status, const char *format, ...) {
    /* Formatted aside first: an argument may point into the current message. */
    char text[TN__ERROR_CAPACITY];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(error_text, text, sizeof text);
    return status;
}

tn_status tn_fail_more(tn_status status, const char *format, ...) {
    size_t used = strlen(error_text);
    va_list args;
    va_start(args, format);
    vsnprintf(error_text + used, sizeof error_text - used, format, args);
    va_end(args);
    return status;
}
