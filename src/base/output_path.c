/* Where a file that is written beside and renamed will appear. */
#include "base/output_path.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

tn_status tn__output_path(const char *path, char **target) {
    struct stat info;
    *target = NULL;
    if (stat(path, &info) != 0) { /* a missing folder is reported by the one who creates the file */
        *target = tn_strdup(path);
        return *target ? TN_OK : TN_E_NOMEM;
    }
    if (!S_ISREG(info.st_mode)) return tn_fail(TN_E_IO, "%s is not a regular file; it is not replaced", path);
    char real[PATH_MAX];
    if (!realpath(path, real)) return tn_fail(TN_E_IO, "%s: %s", path, strerror(errno));
    *target = tn_strdup(real);
    return *target ? TN_OK : TN_E_NOMEM;
}
