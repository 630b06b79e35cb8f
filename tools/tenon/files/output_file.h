/* What the commands that write model files share. */
#ifndef TENON_TOOL_FILEWORK_H
#define TENON_TOOL_FILEWORK_H

#include "tenon/gguf.h"

/* tn_gguf_copy with a progress bar; Ctrl-C stops it without leaving a file. Returns an exit code. */
int copy_with_progress(const tn_gguf *file, const char *out, const tn_gguf_copy_params *params, const char *title);

/* Takes away an output that did not become complete. Devices, pipes and links are left alone. */
void remove_partial(const char *path);

#endif
