/* Text that a command reads as a whole: standard input, a file, or an option's value. */
#include "cli/text_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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

int read_text_option(const struct args *args, const char *name, const char *file_name, char **text) {
    const char *direct = args_text(args, name), *file = args_text(args, file_name);
    size_t size;
    *text = NULL;
    if (direct && file) return fail_usage(args, "use either --%s or --%s, not both", name, file_name);
    if (file) return read_text_file(file, text, &size);
    if (direct && !(*text = strdup(direct))) return fail("out of memory");
    return EXIT_OK;
}
