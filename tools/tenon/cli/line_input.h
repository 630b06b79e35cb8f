/* Lines of input: with editing and history at a terminal, plain from a pipe. */
#ifndef TENON_TOOL_LINE_H
#define TENON_TOOL_LINE_H

#include <stdbool.h>

/* LINE_CLEARED: Ctrl-C on a line that has text only clears it. */
enum line_result { LINE_TEXT, LINE_END, LINE_INTERRUPTED, LINE_CLEARED };

struct line_reader;

/* The tab key completes `words` at the start of a line; the list ends with NULL and stays the caller's. The history
 * is kept in the user's state folder. NULL without memory. Only one reader may be open at a time. */
struct line_reader *line_open(const char *const *words, bool plain);
void line_close(struct line_reader *reader);
bool line_is_terminal(const struct line_reader *reader);

/* One message without its line end; the caller frees it with free(). A backslash at the end of a line continues the
 * message on the next; at a terminal Alt-Enter inserts a line break, and pasted lines stay together. */
enum line_result line_read(struct line_reader *reader, char **text);

#endif
