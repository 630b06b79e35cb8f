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

/* Standard input where it is a pipe or a file, without its last line end; *text is NULL where it is a terminal, a
 * device or empty. A line on standard error says so when nothing comes for a second. Returns an exit code. */
int read_piped_input(char **text, size_t *size);
/* Drops one line end at the end. */
void drop_last_newline(char *text, size_t *size);
/* Replaces \n, \t, \r, \xHH, and a backslash before a quote or a backslash, by what they stand for, in place. */
void replace_escapes(char *text, size_t *size);
/* args_text_at() with escapes replaced, unless --no-escape was given; NULL when out of memory. */
const char *escaped_text_at(const struct args *args, const char *name, int index);

#endif
