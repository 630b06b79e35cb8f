/* Lines from people at a terminal, with editing and history, and from pipes, as they come. */
#ifndef TENON_TOOL_LINE_H
#define TENON_TOOL_LINE_H

#include <stdbool.h>

/* Ctrl-C on a line with text only clears it. */
enum line_result { LINE_TEXT, LINE_END, LINE_INTERRUPTED, LINE_CLEARED };

struct line_reader;

/* `words` are completed by the tab key at the beginning of a line; ended by NULL, kept by the caller. History is read
 * from and written to the user's state folder. NULL when there is no memory. One at a time. */
struct line_reader *line_open(const char *const *words);
void line_close(struct line_reader *reader);
bool line_is_terminal(const struct line_reader *reader);

/* One message without its line end, to be freed with free(). A line that ends in a backslash goes on in the next; at
 * a terminal Alt-Enter makes a new line, and pasted lines stay together. */
enum line_result line_read(struct line_reader *reader, char **text);

#endif
