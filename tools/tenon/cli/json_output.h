/* JSON on standard output, for the --json option of commands. */
#ifndef TENON_TOOL_JSON_OUTPUT_H
#define TENON_TOOL_JSON_OUTPUT_H

#include <jansson.h>

/* Prints a document, indented or on one line, and releases it. NULL means that it could not be built for lack of
 * memory. Returns an exit code. */
int print_json_document(json_t *root);
int print_json_line(json_t *root);

#endif
