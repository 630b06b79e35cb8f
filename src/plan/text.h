/* A growing string for documents written piece by piece. Errors wait until the end. */
#ifndef TN_PLAN_TEXT_H
#define TN_PLAN_TEXT_H

#include "tenon/base.h"

typedef struct tn__text {
    char *data;
    size_t length, capacity;
    bool failed; /* out of memory: what follows is dropped */
} tn__text;

void tn__text_add(tn__text *text, const char *format, ...) TN_PRINTF(2, 3);
void tn__text_bytes(tn__text *text, const char *bytes, size_t length);
void tn__text_xml(tn__text *text, const char *words);  /* escaped for XML; what is not UTF-8 becomes '?' */
void tn__text_json(tn__text *text, const char *words); /* as a JSON string with its quotes, likewise */
void tn__text_csv(tn__text *text, const char *words);  /* quoted where needed */
/* Hands the string to the caller, who frees it with tn_free(); NULL and TN_E_NOMEM if something failed. */
tn_status tn__text_take(tn__text *text, char **out);

/* "3.2 MiB": for people. Returns buffer. */
const char *tn__text_size(size_t bytes, char *buffer, size_t size);

#endif
