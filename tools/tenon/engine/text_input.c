/* Text from standard input, and vocabularies of model files. */
#include "engine/text_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int open_tokenizer(const char *path, bool allow_unknown_pre, tn_tokenizer **out) {
    tn_gguf *file;
    tn_status status = tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file);
    if (status != TN_OK) return fail_status(status, "vocabulary");
    status = tn_tokenizer_new(file, &(tn_tokenizer_params){.allow_unknown_pre = allow_unknown_pre}, out);
    tn_gguf_close(file);
    return status == TN_OK ? 0 : fail_status(status, "vocabulary");
}

static int read_all(int descriptor, const char *name, char **text, size_t *size) {
    size_t capacity = 0;
    *text = NULL;
    *size = 0;
    for (;;) {
        if (capacity - *size < 2) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *larger = realloc(*text, capacity);
            if (!larger) {
                free(*text);
                return fail("no memory for %zu bytes of input", capacity);
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
        return error == EINTR ? EXIT_INTERRUPTED : fail("%s cannot be read: %s", name, strerror(error));
    }
    (*text)[*size] = 0;
    return 0;
}

int read_input(char **text, size_t *size) { return read_all(STDIN_FILENO, "standard input", text, size); }

int read_text_file(const char *path, char **text, size_t *size) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return fail("%s cannot be opened: %s", path, strerror(errno));
    int code = read_all(descriptor, path, text, size);
    close(descriptor);
    return code;
}
