/* Output files: written beside and renamed when complete, never over an input or, without --force, an existing file.
 */
#ifndef TENON_TOOL_OUTPUT_FILE_H
#define TENON_TOOL_OUTPUT_FILE_H

#include "tenon/gguf.h"

#include <stddef.h>

#define OPTION_FORCE                                                                                                 \
    { .name = "force", .kind = OPTION_FLAG, .help = "replace an existing output file", .env = "TENON_FORCE" }

struct output_file {
    char path[4096];   /* to be written */
    char target[4096]; /* what it becomes */
    bool direct;       /* a device or a pipe: `path` is the target */
};

/* Whether `target` may be written: an error where it is one of the inputs, also through links and with `force`; a
 * folder; a device or a pipe; or an existing file that is not empty without `force`. Inputs that are NULL are left
 * out. For writers that rename themselves. Returns an exit code. */
int check_output(const char *target, bool force, const char *const *inputs, size_t n_inputs);
/* The same for the files of a split model, which are named after `base`. */
int check_split_output(const char *base, bool force);
/* The same for a file to be written to `path`; output_close() then renames it to its target, or deletes it where it
 * is not complete. A link to a file stays a link; devices and pipes are written directly. Both return an exit code.
 */
int output_open(struct output_file *file, const char *target, bool force, const char *const *inputs, size_t n_inputs);
int output_close(const struct output_file *file, bool complete);

/* tn_gguf_copy() with a progress bar; Ctrl-C stops it and leaves no file. Returns an exit code. */
int copy_with_progress(const tn_gguf *file, const char *out, const tn_gguf_copy_params *params, const char *title);

#endif
