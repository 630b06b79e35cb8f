/* How metadata values and text from files are shown: safe on a terminal, exact in JSON. */
#ifndef TENON_TOOL_SHOW_H
#define TENON_TOOL_SHOW_H

#include "tenon/gguf.h"

#include <jansson.h>
#include <stdio.h>

/* Prints bytes as text: valid UTF-8 as it is, control characters and everything else escaped (\n, \x1b). Stops after
 * `limit` bytes with "…". */
void show_text(FILE *out, tn_gguf_str text, size_t limit);
/* A value on one line; long texts and arrays are cut short. */
void show_value(FILE *out, const tn_gguf_value *value, size_t limit);
/* A value in full: text as its bytes, arrays with one element per line. */
void show_whole(FILE *out, const tn_gguf_value *value);
/* "[4096, 32]" */
char *show_shape(char *out, size_t size, int n_dims, const int64_t *ne);

/* The value as JSON, complete. Bytes that are no UTF-8 become U+FFFD; infinities and NaN become texts. */
json_t *show_json(const tn_gguf_value *value);
json_t *show_json_text(tn_gguf_str text);

#endif
