/* Where a file that is written beside and renamed will appear. */
#ifndef TN_BASE_OUTPUT_PATH_H
#define TN_BASE_OUTPUT_PATH_H

#include "tenon/base.h"

/* The path to rename to: `path`, or the file that it links to, so that a link stays a link. Fails where `path` exists
 * and is not a regular file: renaming would replace a device or a pipe. The caller frees `*target` with tn_free(). */
tn_status tn__output_path(const char *path, char **target);

#endif
