/* Metadata values and text from model files, printed for people (safe on a terminal) or as JSON (exact). */
#ifndef TENON_TOOL_METADATA_TEXT_H
#define TENON_TOOL_METADATA_TEXT_H

#include "tenon/gguf.h"

#include <jansson.h>
#include <stdio.h>

/* Prints bytes as text; control characters and invalid UTF-8 are escaped (\n, \x1b). Stops after `limit` bytes with
 * "…". */
void show_text(FILE *out, tn_gguf_str text, size_t limit);
/* A value on one line; long texts and arrays are cut short. */
void show_value(FILE *out, const tn_gguf_value *value, size_t limit);
/* A value in full: text as its bytes, arrays with one element per line. */
void show_whole(FILE *out, const tn_gguf_value *value);
/* "[4096, 32]" */
char *show_shape(char *out, size_t size, int n_dims, const int64_t *ne);

/* The complete value as JSON. Invalid UTF-8 becomes U+FFFD; infinities and NaN become strings. */
json_t *show_json(const tn_gguf_value *value);
json_t *show_json_text(tn_gguf_str text);

#endif
