/* Options whose values are lists of whole numbers, as llama-bench has them: 128,512 and 128-512+128. */
#include "cli/length_list.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_LENGTH = 1 << 24 };

/* N, or FIRST-LAST with +STEP or *FACTOR (+1 without). The text after it, NULL where it is none or too long a list.
 */
static const char *read_range(const char *text, int32_t list[MOST_LENGTHS], int *count) {
    char *end;
    const long long first = strtoll(text, &end, 10);
    long long last = first, step = 1;
    if (end == text || first < 0 || first > LONGEST_LENGTH) return NULL;
    if (*end == '-') {
        last = strtoll(text = end + 1, &end, 10);
        if (end == text || last < first || last > LONGEST_LENGTH) return NULL;
    }
    const bool multiplies = last > first && *end == '*';
    if (multiplies || (last > first && *end == '+')) {
        step = strtoll(text = end + 1, &end, 10);
        if (end == text || step < 1 + multiplies || step > LONGEST_LENGTH || (multiplies && first == 0)) return NULL;
    }
    if (*end && *end != ',') return NULL;
    for (long long n = first; n <= last; n = multiplies ? n * step : n + step) {
        if (*count == MOST_LENGTHS) return NULL;
        list[(*count)++] = (int32_t)n;
    }
    return end + (*end == ',');
}

bool read_lengths(const struct args *args, const char *name, int32_t list[MOST_LENGTHS], int *count) {
    const int given = args_repeats(args, name);
    *count = 0;
    for (int i = 0; i < (given ? given : 1); i++) {
        const char *text = given ? args_text_at(args, name, i) : args_text(args, name);
        while (*text) {
            const char *next = read_range(text, list, count);
            if (!next) {
                fail_usage(
                    args,
                    "--%s takes up to %d whole numbers separated by commas, or ranges such as 128-512+128, not "
                    "\"%s\"",
                    name, MOST_LENGTHS, text);
                return false;
            }
            text = next;
        }
    }
    return true;
}

bool is_single_length(const struct args *args, const char *name) {
    const char *text = args_text(args, name);
    return args_repeats(args, name) <= 1 && strspn(text, "0123456789") == strlen(text);
}
