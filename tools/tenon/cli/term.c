/* Terminal output: colour, human-readable sizes and times, progress. */
#include "cli/term.h"
#include "tenon/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

static bool colour_off;

void term_no_colour(void) { colour_off = true; }

const char *style(FILE *out, enum style wanted) {
    static const char *const escapes[] = {
        [STYLE_NONE] = "\033[0m",   [STYLE_BOLD] = "\033[1m",    [STYLE_DIM] = "\033[2m",   [STYLE_RED] = "\033[31m",
        [STYLE_GREEN] = "\033[32m", [STYLE_YELLOW] = "\033[33m", [STYLE_BLUE] = "\033[34m", [STYLE_CYAN] = "\033[36m",
    };
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if (colour_off || (no_colour && *no_colour) || (terminal && strcmp(terminal, "dumb") == 0) ||
        !isatty(fileno(out)))
        return "";
    return escapes[wanted];
}

int term_width(FILE *out) {
    struct winsize size;
    if (isatty(fileno(out)) && ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
    return 80;
}

void term_write(FILE *out, const char *text, size_t length) {
    if (!isatty(fileno(out))) {
        fwrite(text, 1, length, out);
        return;
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        bool second_half = c == 0xc2 && i + 1 < length && (unsigned char)text[i + 1] < 0xa0; /* U+0080 … U+009F */
        if ((c < 32 && c != '\n' && c != '\t') || c == 127 || second_half)
            fputs("\xef\xbf\xbd", out);
        else
            fputc(c, out);
        i += second_half;
    }
}

/* A word longer than the buffer or the line is not moved. */
static void move_word(FILE *out, struct word_wrap *w) {
    fprintf(out, "\033[%dD\033[K\n", w->word_columns);
    fwrite(w->word, 1, w->word_length, out);
    w->column = w->word_columns;
}

void term_write_wrapped(FILE *out, struct word_wrap *w, const char *text, size_t length) {
    if (!isatty(fileno(out)) || !*style(stdout, STYLE_NONE)) {
        term_write(out, text, length);
        return;
    }
    const int width = term_width(out);
    for (size_t i = 0; i < length;) {
        size_t n = 1; /* bytes of the character */
        while (i + n < length && ((unsigned char)text[i + n] & 0xC0) == 0x80) n++;
        wchar_t wide = 0;
        mbstate_t state = {0};
        const size_t read = mbrtowc(&wide, text + i, n, &state);
        const int columns = read == (size_t)-1 || read == (size_t)-2 || wcwidth(wide) < 0 ? 1 : wcwidth(wide);
        const bool ends = strchr(" \n\t", text[i]) != NULL;
        if (ends || columns == 2) w->word_length = 0, w->word_columns = 0; /* a line may end before wide characters */
        if (!ends && w->column + columns >= width && w->word_columns && w->word_columns < w->column)
            move_word(out, w);
        else if (!ends && w->column + columns >= width && !w->word_length && w->column) {
            fputc('\n', out);
            w->column = 0;
        }
        term_write(out, text + i, n);
        w->column = text[i] == '\n' ? 0 : text[i] == '\t' ? w->column / 8 * 8 + 8 : w->column + columns;
        if (w->column >= width) w->column = 0, w->word_length = 0, w->word_columns = 0;
        if (columns == 2) {
            w->word_length = 0; /* … and after them */
        } else if (!ends && w->word_length + n <= sizeof w->word) {
            memcpy(w->word + w->word_length, text + i, n);
            w->word_length += n;
            w->word_columns += columns;
        } else if (!ends) {
            w->word_columns = 0; /* too long to be moved */
        }
        i += n;
    }
}

char *human_bytes(char out[HUMAN_SIZE], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(out, HUMAN_SIZE, unit == 0 ? "%.0f %s" : value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
    return out;
}

char *human_count(char out[HUMAN_SIZE], double count) {
    static const char *const units[] = {"", " K", " M", " B", " T"};
    int unit = 0;
    while (count >= 1000 && unit < 4) {
        count /= 1000;
        unit++;
    }
    snprintf(out, HUMAN_SIZE, unit == 0 ? "%.0f%s" : "%.2f%s", count, units[unit]);
    return out;
}

char *human_seconds(char out[HUMAN_SIZE], double seconds) {
    if (seconds < 1e-3)
        snprintf(out, HUMAN_SIZE, "%.0f µs", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, HUMAN_SIZE, "%.0f ms", seconds * 1e3);
    else if (seconds < 60)
        snprintf(out, HUMAN_SIZE, "%.1f s", seconds);
    else if (seconds < 3600)
        snprintf(out, HUMAN_SIZE, "%d m %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(out, HUMAN_SIZE, "%.0f h %02.0f m", floor(seconds / 3600), floor(fmod(seconds, 3600) / 60));
    return out;
}

/* ---- Progress ---- */

enum { BAR_WIDTH = 30 };
static bool bar_on_screen;
static const uint64_t second = 1000000000;

static char *progress_amount(char out[HUMAN_SIZE], const struct progress *p, double value) {
    return p->unit == PROGRESS_BYTES ? human_bytes(out, (uint64_t)value) : human_count(out, value);
}

void progress_start(struct progress *progress, const char *title, uint64_t total, enum progress_unit unit) {
    *progress = (struct progress){.title = title, .total = total, .unit = unit, .started_ns = tn_time_ns()};
}

static void draw_progress(struct progress *p, bool terminal) {
    p->shown_done = p->done;
    char done[HUMAN_SIZE], total[HUMAN_SIZE], rate[HUMAN_SIZE], left[HUMAN_SIZE];
    double seconds = (double)(tn_time_ns() - p->started_ns) / 1e9, speed = (double)p->done / seconds;
    double share = p->total ? (double)p->done / (double)p->total : 0;
    if (share > 1) share = 1;
    if (terminal) fputs("\r\033[K", stderr);
    fprintf(stderr, "%s ", p->title);
    if (p->total) {
        if (terminal) {
            int filled = (int)(share * BAR_WIDTH);
            fputc('[', stderr);
            for (int i = 0; i < BAR_WIDTH; i++) fputc(i < filled ? '#' : '.', stderr);
            fputs("] ", stderr);
        }
        fprintf(stderr, "%3.0f%% %s of %s", share * 100, progress_amount(done, p, (double)p->done),
                progress_amount(total, p, (double)p->total));
    } else {
        fputs(progress_amount(done, p, (double)p->done), stderr);
    }
    fprintf(stderr, ", %s/s", progress_amount(rate, p, speed));
    if (p->total && speed > 0 && p->done < p->total)
        fprintf(stderr, ", %s left", human_seconds(left, (double)(p->total - p->done) / speed));
    if (terminal)
        bar_on_screen = true;
    else
        fputc('\n', stderr);
    fflush(stderr);
}

void progress_hide(void) {
    if (bar_on_screen) fputs("\r\033[K", stderr);
    bar_on_screen = false;
}

void progress_update(struct progress *progress, uint64_t done) {
    bool terminal = isatty(STDERR_FILENO);
    progress->done = done;
    uint64_t now = tn_time_ns();
    /* A bar is redrawn five times a second; a log gets a line every five seconds. */
    uint64_t pause = !progress->visible ? second : terminal ? second / 5 : 5 * second;
    if (now - (progress->visible ? progress->shown_ns : progress->started_ns) < pause) return;
    progress->visible = true;
    progress->shown_ns = now;
    draw_progress(progress, terminal);
}

void progress_end(struct progress *progress) {
    if (!progress->visible) return;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    else if (progress->shown_done != progress->done)
        draw_progress(progress, false);
    progress->visible = false;
}
