/* Options whose values are lists of whole numbers, as llama-bench has them: 128,512 and 128-512+128. */
#ifndef TENON_TOOL_LENGTH_LIST_H
#define TENON_TOOL_LENGTH_LIST_H

#include "cli/cli.h"

enum { MOST_LENGTHS = 32 };

/* The numbers of all values of an option. False after a message. */
bool read_lengths(const struct args *args, const char *name, int32_t list[MOST_LENGTHS], int *count);
/* Whether the option's values are one number. */
bool is_single_length(const struct args *args, const char *name);

#endif
