/* Text that a command takes from its arguments or from standard input, and the vocabulary to use on it. */
#ifndef TENON_TOOL_TEXT_INPUT_H
#define TENON_TOOL_TEXT_INPUT_H

#include "cli/cli.h"
#include "tenon/tokenizer.h"

/* Opens the vocabulary of a model file. Returns 0, or prints a message and returns an exit code. */
int open_tokenizer(const char *path, bool allow_unknown_pre, tn_tokenizer **out);
/* Reads standard input to its end; the caller frees. Returns 0, or prints a message and returns an exit code. */
int read_input(char **text, size_t *size);
int read_text_file(const char *path, char **text, size_t *size); /* the same for a file */

#endif
