/* Text that a command reads as a whole: standard input, a file, or an option's value. */
#ifndef TENON_TOOL_TEXT_INPUT_H
#define TENON_TOOL_TEXT_INPUT_H

#include "cli/cli.h"

/* Each reads everything into *text, with a NUL behind it; the caller frees it with free(). Returns 0, or prints a
 * message and returns an exit code. */
int read_input(char **text, size_t *size); /* standard input */
int read_text_file(const char *path, char **text, size_t *size);

/* The value of option `name`, or the content of the file given with option `file_name`; *text is NULL when neither
 * was given. The caller frees it with free(). Returns an exit code. */
int read_text_option(const struct args *args, const char *name, const char *file_name, char **text);

#endif
