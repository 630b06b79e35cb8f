/* Terminal output: colour, human-readable sizes and times, progress. */
#ifndef TENON_TOOL_TERM_H
#define TENON_TOOL_TERM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum style { STYLE_NONE, STYLE_BOLD, STYLE_DIM, STYLE_RED, STYLE_GREEN, STYLE_YELLOW, STYLE_BLUE, STYLE_CYAN };

/* The escape sequence that switches `out` to a style; "" when `out` is not a terminal, when NO_COLOR is set, TERM is
 * "dumb", or the option "no-color" was given. STYLE_NONE switches back to plain. */
const char *style(FILE *out, enum style style);
void term_no_colour(void);
int term_width(FILE *out); /* columns; 80 when `out` is not a terminal */

/* Writes text that a model generated. On a terminal, control characters (and so escape sequences) become U+FFFD;
 * files and pipes get the bytes unchanged. */
void term_write(FILE *out, const char *text, size_t length);

/* The same with words that do not fit on the line moved to the next, for text that comes in pieces. `wrap` begins
 * empty; a terminal only. Lines of code keep their spaces. */
struct word_wrap {
    int column, word_columns;
    char word[256]; /* the one under way, as far as it is on the line */
    size_t word_length;
};
void term_write_wrapped(FILE *out, struct word_wrap *wrap, const char *text, size_t length);

/* Short texts in the caller's buffer, which they return. */
enum { HUMAN_SIZE = 32 };
char *human_bytes(char out[HUMAN_SIZE], uint64_t bytes);   /* "1.50 GiB", "312 B" */
char *human_count(char out[HUMAN_SIZE], double count);     /* "1.1 B" tokens or parameters: K, M, B, T */
char *human_seconds(char out[HUMAN_SIZE], double seconds); /* "850 ms", "12.3 s", "4 m 05 s" */

/* Progress of work that may take more than a second, on standard error: on a terminal a bar with rate and time left,
 * elsewhere a line every five seconds, nothing for quick work. One at a time, from one thread. */
enum progress_unit { PROGRESS_BYTES, PROGRESS_ITEMS };
struct progress {
    const char *title;
    uint64_t total; /* 0: unknown */
    uint64_t done;
    enum progress_unit unit;
    uint64_t started_ns, shown_ns, shown_done;
    bool visible;
};
void progress_start(struct progress *progress, const char *title, uint64_t total, enum progress_unit unit);
void progress_update(struct progress *progress, uint64_t done);
/* Erases the bar before other text is written; the next update draws it again. */
void progress_hide(void);
void progress_end(struct progress *progress); /* erases the bar, or prints the closing line */

#endif
