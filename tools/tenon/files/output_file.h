/* Writing model files: copying with progress, removing incomplete output. */
#ifndef TENON_TOOL_OUTPUT_FILE_H
#define TENON_TOOL_OUTPUT_FILE_H

#include "tenon/gguf.h"

/* tn_gguf_copy() with a progress bar; Ctrl-C stops it and leaves no file. Returns an exit code. */
int copy_with_progress(const tn_gguf *file, const char *out, const tn_gguf_copy_params *params, const char *title);

/* Deletes an incomplete output file, but never a device, pipe or link. */
void remove_partial(const char *path);

#endif
