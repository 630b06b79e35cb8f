/* Text that a command reads as a whole: standard input, a file, or an option's value. */
#include "cli/text_input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_descriptor(int descriptor, const char *name, char **text, size_t *size) {
    size_t capacity = 0;
    *text = NULL;
    *size = 0;
    for (;;) {
        if (capacity - *size < 2) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *larger = realloc(*text, capacity);
            if (!larger) {
                free(*text);
                return fail("out of memory: cannot hold %zu bytes of input", capacity);
            }
            *text = larger;
        }
        ssize_t got = read(descriptor, *text + *size, capacity - *size - 1);
        if (got == 0) break;
        if (got > 0) {
            *size += (size_t)got;
            continue;
        }
        if (errno == EINTR && !interrupted()) continue;
        int error = errno;
        free(*text);
        return error == EINTR ? EXIT_INTERRUPTED : fail("cannot read %s: %s", name, strerror(error));
    }
    (*text)[*size] = 0;
    return 0;
}

int read_input(char **text, size_t *size) { return read_descriptor(STDIN_FILENO, "standard input", text, size); }

int read_text_file(const char *path, char **text, size_t *size) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return fail("cannot open %s: %s", path, strerror(errno));
    int code = read_descriptor(descriptor, path, text, size);
    close(descriptor);
    return code;
}

void drop_last_newline(char *text, size_t *size) {
    if (*size && text[*size - 1] == '\n') text[--*size] = 0;
    if (*size && text[*size - 1] == '\r') text[--*size] = 0;
}

int read_piped_input(char **text, size_t *size) {
    struct stat info;
    *text = NULL;
    *size = 0;
    if (fstat(STDIN_FILENO, &info) != 0 ||
        !(S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode)))
        return EXIT_OK;
    struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&ready, 1, 1000) == 0)
        fputs("tenon: waiting for text from standard input; < /dev/null gives none\n", stderr);
    int code = read_input(text, size);
    if (code) return code;
    drop_last_newline(*text, size);
    if (*size) return EXIT_OK;
    free(*text);
    *text = NULL;
    return EXIT_OK;
}

static int hex_value_of(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

void replace_escapes(char *text, size_t *size) {
    static const char letters[] = "ntr\\'\"", values[] = "\n\t\r\\'\"";
    size_t out = 0;
    for (size_t i = 0; i < *size; i++) {
        const char next = text[i] == '\\' && i + 1 < *size ? text[i + 1] : 0;
        const char *letter = next ? strchr(letters, next) : NULL;
        const bool hex =
            next == 'x' && i + 3 < *size && hex_value_of(text[i + 2]) >= 0 && hex_value_of(text[i + 3]) >= 0;
        if (letter) {
            text[out++] = values[letter - letters];
            i++;
        } else if (hex) {
            text[out++] = (char)(hex_value_of(text[i + 2]) * 16 + hex_value_of(text[i + 3]));
            i += 3;
        } else {
            text[out++] = text[i];
        }
    }
    text[out] = 0;
    *size = out;
}

const char *escaped_text_at(const struct args *args, const char *name, int index) {
    const char *text = args_text_at(args, name, index);
    if (command_has_option(args->command, "--escape") && !args_flag(args, "escape")) return text;
    size_t size = strlen(text);
    char *copy = args_keep(args, text, size + 1);
    if (copy) replace_escapes(copy, &size);
    return copy;
}

int read_text_option(const struct args *args, const char *name, const char *file_name, char **text) {
    const char *direct = args_text(args, name), *file = args_text(args, file_name);
    size_t size;
    *text = NULL;
    if (direct && file) return fail_usage(args, "use either --%s or --%s, not both", name, file_name);
    if (file) {
        int code = read_text_file(file, text, &size);
        if (!code) drop_last_newline(*text, &size);
        return code;
    }
    if (direct && !(*text = strdup(direct))) return fail("out of memory");
    return EXIT_OK;
}
