/* Writing model files: copying with progress, removing incomplete output. */
#include "files/output_file.h"
#include "cli/cli.h"
#include "cli/term.h"

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

void remove_partial(const char *path) {
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISREG(info.st_mode)) unlink(path);
}
