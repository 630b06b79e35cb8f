/* Output files: written beside and renamed when complete, never over an input or, without --force, an existing file.
 */
#include "files/output_file.h"
#include "cli/cli.h"
#include "cli/term.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct copy_state {
    struct progress bar;
    const char *title;
    bool started;
};

static bool copy_progress(void *user, uint64_t done, uint64_t total) {
    struct copy_state *state = user;
    if (!state->started) progress_start(&state->bar, state->title, total, PROGRESS_BYTES);
    state->started = true;
    progress_update(&state->bar, done);
    return !interrupted();
}

int copy_with_progress(const tn_gguf *file, const char *out, const tn_gguf_copy_params *params, const char *title) {
    struct copy_state state = {.title = title};
    tn_gguf_copy_params with_progress = *params;
    with_progress.progress = copy_progress;
    with_progress.user = &state;
    tn_status status = tn_gguf_copy(file, out, &with_progress);
    if (state.started) progress_end(&state.bar);
    return status == TN_OK ? 0 : fail_status(status, "%s", title);
}

/* ---- Checks ---- */

/* The same, also for devices and pipes, where nothing can be lost. */
static int check_any_output(const char *target, bool force, const char *const *inputs, size_t n_inputs) {
    struct stat out, in;
    if (strcmp(target, "-") == 0) return fail("the output cannot be \"-\"; give the name of a file");
    if (stat(target, &out) != 0) {
        if (lstat(target, &out) == 0) return fail("%s is a link to a file that does not exist", target);
        return EXIT_OK; /* where the folder is missing or read-only, the writer says so */
    }
    if (S_ISDIR(out.st_mode)) return fail("%s is a folder; give the name of a file", target);
    if (!S_ISREG(out.st_mode) || out.st_size == 0) return EXIT_OK; /* nothing can be lost */
    for (size_t i = 0; i < n_inputs; i++)
        if (inputs[i] && stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return fail("%s is also the input and would be lost; give another name for the output", target);
    return force ? EXIT_OK : fail("%s exists; --force replaces it", target);
}

int check_output(const char *target, bool force, const char *const *inputs, size_t n_inputs) {
    struct stat out;
    if (stat(target, &out) == 0 && !S_ISREG(out.st_mode) && !S_ISDIR(out.st_mode))
        return fail("%s is not a regular file, and renaming the finished output would replace it", target);
    return check_any_output(target, force, inputs, n_inputs);
}

int check_split_output(const char *base, bool force) {
    char pattern[4096 + 32];
    size_t length = strlen(base);
    glob_t found;
    if (length > 5 && strcmp(base + length - 5, ".gguf") == 0) length -= 5;
    if (force || (size_t)snprintf(pattern, sizeof pattern, "%.*s-[0-9][0-9][0-9][0-9][0-9]-of-*.gguf", (int)length,
                                  base) >= sizeof pattern)
        return EXIT_OK;
    if (glob(pattern, 0, NULL, &found) != 0) return EXIT_OK;
    int code = found.gl_pathc ? fail("%s exists; --force replaces it", found.gl_pathv[0]) : EXIT_OK;
    globfree(&found);
    return code;
}

/* ---- Written beside and renamed ---- */

int output_open(struct output_file *file, const char *target, bool force, const char *const *inputs,
                size_t n_inputs) {
    struct stat info;
    char *real = NULL;
    *file = (struct output_file){0};
    int code = check_any_output(target, force, inputs, n_inputs);
    if (code) return code;
    bool exists = stat(target, &info) == 0;
    file->direct = exists && !S_ISREG(info.st_mode);
    if (exists && !file->direct) real = realpath(target, NULL);
    snprintf(file->target, sizeof file->target, "%s", real ? real : target);
    free(real);
    int n = file->direct ? snprintf(file->path, sizeof file->path, "%s", target)
                         : snprintf(file->path, sizeof file->path, "%s.%d.part", file->target, (int)getpid());
    return n < (int)sizeof file->path ? EXIT_OK : fail("%s: the path is too long", target);
}

int output_close(const struct output_file *file, bool complete) {
    if (file->direct) return EXIT_OK;
    if (complete && rename(file->path, file->target) == 0) return EXIT_OK;
    const int error = errno;
    unlink(file->path);
    return complete ? fail("cannot write %s: %s", file->target, strerror(error)) : EXIT_OK;
}
