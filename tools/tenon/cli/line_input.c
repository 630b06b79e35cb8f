/* Lines of input: with editing and history at a terminal (libedit), plain from a pipe. */
#include "cli/line_input.h"

#include "cli/cli.h"
#include "cli/term.h"

#include <errno.h>
#include <glob.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000 };

struct line_reader {
    EditLine *editor; /* NULL: plain lines */
    History *history;
    char history_path[4096];
    const char *const *words;
    bool continued; /* the previous line ended in a backslash; shown in the prompt */
    bool typed;     /* a key was pressed since the prompt */
    char prompt[64];
};

/* ---- Editing ---- */

static volatile sig_atomic_t resized;
static void on_resize(int number) {
    (void)number;
    resized = 1;
}

/* The editor's own reader retries after a signal; this one returns after Ctrl-C. */
static int read_wide(EditLine *editor, wchar_t *out) {
    mbstate_t state = {0};
    struct line_reader *reader = NULL;
    if (el_get(editor, EL_CLIENTDATA, &reader) != 0 || !reader) return -1;
    for (;;) {
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got < 0 && errno == EINTR && !interrupted()) {
            if (resized) el_resize(editor);
            resized = 0;
            continue;
        }
        if (got <= 0) return (int)got;
        reader->typed = true;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2) continue;
        if (used == (size_t)-1) {
            memset(&state, 0, sizeof state);
            *out = L'\xfffd';
        } else if (used == 0) {
            *out = L'\0';
        }
        return 1;
    }
}

static unsigned char insert_newline(EditLine *editor, int key) {
    (void)key;
    return el_insertstr(editor, "\n") == 0 ? CC_REFRESH : CC_ERROR;
}

/* Called for ESC[200~; the pasted text follows, up to ESC[201~. */
static unsigned char insert_pasted(EditLine *editor, int key) {
    static const wchar_t end[] = L"\033[201~";
    size_t matched = 0;
    wchar_t c;
    (void)key;
    while (el_wgetc(editor, &c) == 1) {
        if (c == end[matched]) {
            if (end[++matched] == L'\0') return CC_REFRESH;
            continue;
        }
        for (size_t i = 0; i < matched; i++) el_winsertstr(editor, (wchar_t[]){end[i] == 033 ? L' ' : end[i], 0});
        matched = 0;
        if (c == L'\r') c = L'\n';
        if (c < 32 && c != L'\n') c = L' ';
        if (el_winsertstr(editor, (wchar_t[]){c, 0}) != 0) return CC_ERROR;
    }
    return CC_REFRESH;
}

/* One of several candidates, below the line that is edited. */
static void show_candidate(const char *text, size_t number) {
    enum { MOST = 60 };
    if (number == 0) putchar('\n');
    if (number < MOST)
        printf("%s  ", text);
    else if (number == MOST)
        fputs("…", stdout);
}

/* Completes the name of a file after "/command ": as far as all that match agree. */
static unsigned char complete_file(EditLine *editor, const char *begin, size_t length) {
    char pattern[4096];
    glob_t found;
    if ((size_t)snprintf(pattern, sizeof pattern, "%.*s*", (int)length, begin) >= sizeof pattern)
        return CC_REFRESH_BEEP;
    if (glob(pattern, GLOB_MARK | GLOB_TILDE, NULL, &found) != 0) return CC_REFRESH_BEEP;
    char common[4096];
    snprintf(common, sizeof common, "%s", found.gl_pathv[0]);
    for (size_t i = 1; i < found.gl_pathc; i++) {
        size_t n = 0;
        while (common[n] && common[n] == found.gl_pathv[i][n]) n++;
        common[n] = '\0';
    }
    const bool several = found.gl_pathc > 1, longer = strlen(common) > length && strncmp(common, begin, length) == 0;
    for (size_t i = 0; several && !longer && i < found.gl_pathc; i++) show_candidate(found.gl_pathv[i], i);
    if (several && !longer) putchar('\n');
    globfree(&found);
    if (!longer) return several ? CC_REDISPLAY : CC_REFRESH_BEEP;
    el_insertstr(editor, common + length);
    return several ? CC_REFRESH_BEEP : CC_REFRESH;
}

static unsigned char complete_word(EditLine *editor, int key) {
    struct line_reader *reader = NULL;
    const LineInfo *line = el_line(editor);
    size_t length = (size_t)(line->cursor - line->buffer);
    const char *found = NULL;
    (void)key;
    if (el_get(editor, EL_CLIENTDATA, &reader) != 0 || !reader) return CC_ERROR;
    const char *space = memchr(line->buffer, ' ', length);
    if (length && line->buffer[0] == '/' && space)
        return complete_file(editor, space + 1, length - (size_t)(space + 1 - line->buffer));
    size_t matches = 0, same = 0; /* bytes that all of them share */
    for (size_t i = 0; length && reader->words[i]; i++) {
        if (strncmp(reader->words[i], line->buffer, length) != 0) continue;
        if (!matches++) same = strlen(found = reader->words[i]);
        for (size_t n = 0; n < same; n++)
            if (found[n] != reader->words[i][n]) same = n;
    }
    if (!matches) return CC_REFRESH_BEEP;
    if (matches > 1 && same > length) {
        char common[64];
        snprintf(common, sizeof common, "%.*s", (int)(same - length), found + length);
        el_insertstr(editor, common);
        return CC_REFRESH_BEEP;
    }
    for (size_t i = 0, shown = 0; matches > 1 && reader->words[i]; i++)
        if (strncmp(reader->words[i], line->buffer, length) == 0) show_candidate(reader->words[i], shown++);
    if (matches > 1) {
        putchar('\n');
        return CC_REDISPLAY;
    }
    el_insertstr(editor, found + length);
    el_insertstr(editor, " ");
    return CC_REFRESH;
}

/* Escape sequences between \1 and \1 count no columns; text must follow them, or the editor drops them. */
static char *prompt_text(EditLine *editor) {
    struct line_reader *reader = NULL;
    if (el_get(editor, EL_CLIENTDATA, &reader) != 0 || !reader) return (char *)(uintptr_t) "> ";
    const char *colour = style(stdout, STYLE_GREEN), *plain = style(stdout, STYLE_NONE);
    snprintf(reader->prompt, sizeof reader->prompt, *colour ? "\1%s\1%s\1%s\1 " : "%s%s%s ", colour,
             reader->continued ? "…" : ">", plain);
    return reader->prompt;
}

/* ---- History ---- */

/* $XDG_STATE_HOME/tenon/chat_history; its folders are created. Without a home folder there is no history. */
static void find_history(struct line_reader *reader) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = reader->history_path;
    int size = sizeof reader->history_path;
    int n = state && *state ? snprintf(path, (size_t)size, "%s/tenon/chat_history", state)
            : home && *home ? snprintf(path, (size_t)size, "%s/.local/state/tenon/chat_history", home)
                            : size;
    if (n >= size) {
        *path = '\0';
        return;
    }
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
}

static void add_to_history(struct line_reader *reader, const char *text) {
    HistEvent event;
    if (!*text) return;
    history(reader->history, &event, H_ENTER, text);
    if (!*reader->history_path) return;
    mode_t mask = umask(077);
    history(reader->history, &event, H_SAVE, reader->history_path);
    umask(mask);
}

/* ---- Reader ---- */

static void bind_keys(EditLine *editor) {
    static const struct {
        const char *keys, *function;
    } keys[] = {
        {"\033\r", "tenon-newline"},   {"\033\n", "tenon-newline"},   {"\033[200~", "tenon-paste"},
        {"\t", "tenon-complete"},      {"\033[H", "ed-move-to-beg"},  {"\033[F", "ed-move-to-end"},
        {"\033[1~", "ed-move-to-beg"}, {"\033[4~", "ed-move-to-end"}, {"\033[3~", "ed-delete-next-char"},
        {"\033[1;5C", "em-next-word"}, {"\033[1;5D", "ed-prev-word"}, {"^R", "em-inc-search-prev"},
        {"^W", "ed-delete-prev-word"},
    };
    el_set(editor, EL_ADDFN, "tenon-newline", "insert a line end", insert_newline);
    el_set(editor, EL_ADDFN, "tenon-paste", "insert pasted text", insert_pasted);
    el_set(editor, EL_ADDFN, "tenon-complete", "complete a command", complete_word);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        el_set(editor, EL_BIND, keys[i].keys, keys[i].function, NULL);
}

static bool open_editor(struct line_reader *reader) {
    HistEvent event;
    /* Only LC_CTYPE follows the user's locale: numbers keep their decimal point. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    reader->history = history_init();
    reader->editor = el_init("tenon", stdin, stdout, stderr);
    if (!reader->history || !reader->editor) return false;
    history(reader->history, &event, H_SETSIZE, HISTORY_LINES);
    history(reader->history, &event, H_SETUNIQUE, 1);
    find_history(reader);
    if (*reader->history_path) history(reader->history, &event, H_LOAD, reader->history_path);
    el_set(reader->editor, EL_CLIENTDATA, reader);
    el_set(reader->editor, EL_PROMPT_ESC, prompt_text, '\1');
    el_set(reader->editor, EL_EDITOR, "emacs");
    el_set(reader->editor, EL_HIST, history, reader->history);
    bind_keys(reader->editor);
    el_source(reader->editor, NULL); /* ~/.editrc */
    el_set(reader->editor, EL_SIGNAL, 0);
    el_set(reader->editor, EL_GETCFN, read_wide);
    struct sigaction action = {.sa_handler = on_resize};
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, NULL);
    return true;
}

struct line_reader *line_open(const char *const *words, bool plain) {
    struct line_reader *reader = calloc(1, sizeof *reader);
    const char *terminal = getenv("TERM");
    if (!reader) return NULL;
    reader->words = words;
    if (plain || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !terminal || strcmp(terminal, "dumb") == 0)
        return reader;
    if (open_editor(reader)) return reader;
    line_close(reader);
    return NULL;
}

void line_close(struct line_reader *reader) {
    if (!reader) return;
    if (reader->editor) el_end(reader->editor);
    if (reader->history) history_end(reader->history);
    free(reader);
}

bool line_is_terminal(const struct line_reader *reader) { return reader->editor != NULL; }

static enum line_result read_edited(struct line_reader *reader, char **text) {
    int count = 0;
    reader->typed = false;
    fputs("\033[?2004h", stdout); /* the terminal marks pasted text */
    fflush(stdout);
    const char *line = el_gets(reader->editor, &count);
    fputs("\033[?2004l", stdout);
    fflush(stdout);
    if (!line || count <= 0) return interrupted() ? LINE_INTERRUPTED : LINE_END;
    *text = strdup(line);
    return *text ? LINE_TEXT : LINE_END;
}

static enum line_result read_plain(char **text) {
    size_t capacity = 0;
    *text = NULL;
    if (getline(text, &capacity, stdin) >= 0) return LINE_TEXT;
    free(*text);
    *text = NULL;
    return interrupted() ? LINE_INTERRUPTED : LINE_END;
}

enum line_result line_read(struct line_reader *reader, char **text) {
    char *whole = NULL;
    size_t length = 0;
    *text = NULL;
    reader->continued = false;
    for (;;) {
        char *line;
        enum line_result result = reader->editor ? read_edited(reader, &line) : read_plain(&line);
        if (result != LINE_TEXT) {
            bool something = whole && result == LINE_END;
            if (something) break;
            if (result == LINE_INTERRUPTED && (whole || reader->typed)) result = LINE_CLEARED;
            free(whole);
            return result;
        }
        size_t n = strlen(line);
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        bool more = n > 0 && line[n - 1] == '\\';
        if (more) line[n - 1] = '\n';
        char *longer = realloc(whole, length + n + 1);
        if (!longer) {
            free(line);
            free(whole);
            return LINE_END;
        }
        whole = longer;
        memcpy(whole + length, line, n + 1);
        length += n;
        free(line);
        if (!more) break;
        reader->continued = true;
    }
    if (reader->editor) add_to_history(reader, whole);
    *text = whole;
    return LINE_TEXT;
}
