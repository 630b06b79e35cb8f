/* One file over HTTP: resumed, checked, and renamed when it is complete. */
#ifndef TENON_TOOL_DOWNLOAD_H
#define TENON_TOOL_DOWNLOAD_H

#include "cli/cli.h"

enum { HUB_PATH = 4096 };

struct download {
    const char *url, *token; /* token may be NULL */
    const char *name;        /* for messages and progress */
    uint64_t size;           /* expected; 0: what the server says */
    const char *sha256;      /* expected, 64 digits; NULL: unknown */
    /* Without sha256: the ETag, which all parts of the file must have; NULL or "": unknown. `tag_path` is a file that
     * keeps the ETag of the complete one, so that other content is downloaded again; NULL where `path` names it. */
    const char *tag, *tag_path;
    const char *partial; /* grows while it is incomplete, and is continued by a later download of the same content */
    const char *path;    /* the complete file */
    const char *lock;    /* held meanwhile: two processes do not write one file */
};

/* Does nothing where the file is there already. Returns an exit code after a message; then there is no new file at
 * `path`, and the partial one is either a beginning of the right content or gone. */
int download_file(const struct download *d);

/* Makes the folders above a path. */
bool make_folders_of(const char *path);
/* What went wrong, and what to do. Returns EXIT_ERROR. */
struct http_response;
int fail_http(const char *what, const struct http_response *response);
/* Waits before another attempt, the `attempt`-th; Ctrl-C ends the wait. */
void wait_to_retry(int attempt, long retry_after);

#endif
