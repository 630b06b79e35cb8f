/* Which file of a repository: by quant, by name, and the parts of split models. */
#include "hub/hub.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool hub_files_add(struct hub_files *files, const char *path, uint64_t size, const char *sha256) {
    struct hub_file *longer = realloc(files->list, (files->count + 1) * sizeof *longer);
    if (!longer) return false;
    files->list = longer;
    struct hub_file *f = &longer[files->count++];
    *f = (struct hub_file){.size = size};
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(f->sha256, sizeof f->sha256, "%s", sha256 ? sha256 : "");
    return true;
}

/* NAME-00001-of-00003.gguf: the position of the first number, or NULL. */
static const char *part_number(const char *path) {
    const size_t length = strlen(path), tail = strlen("00001-of-00003.gguf");
    const char *at = length > tail ? path + length - tail : NULL;
    if (!at || at[-1] != '-' || strncmp(at + 5, "-of-", 4) != 0 || strcmp(at + 14, ".gguf") != 0) return NULL;
    for (int i = 0; i < 5; i++)
        if (!isdigit((unsigned char)at[i]) || !isdigit((unsigned char)at[9 + i])) return NULL;
    return at;
}

int hub_parts(const char *path) {
    const char *at = part_number(path);
    return at ? (int)strtol(at + 9, NULL, 10) : 1;
}

void hub_part_name(const char *path, int k, char out[512]) {
    const char *at = part_number(path);
    snprintf(out, 512, "%s", path);
    char digits[16];
    snprintf(digits, sizeof digits, "%05d", (k + 1) % 100000);
    if (at) memcpy(out + (at - path), digits, 5);
}

static bool is_model_path(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t length = strlen(name);
    if (length < 6 || strcasecmp(name + length - 5, ".gguf") != 0) return false;
    if (strncasecmp(name, "mmproj", 6) == 0 || strcasestr(name, "imatrix") || strcasestr(name, "-mtp-draft"))
        return false;
    const char *part = part_number(path);
    return !part || strncmp(part, "00001", 5) == 0;
}

/* Whether the quant stands in the path as a word of its own: after - . _ or /, before - . or /. */
static bool names_quant(const char *path, const char *quant) {
    const size_t length = strlen(quant);
    for (const char *at = path; (at = strcasestr(at, quant)); at++) {
        const bool begins = at == path || strchr("-._/", at[-1]) != NULL;
        if (begins && strchr("-./", at[length])) return true;
    }
    return false;
}

size_t hub_choose(const struct hub_files *files, const char *quant, const char *name) {
    static const char *const good[] = {"Q4_K_M", "Q4_K_S", "Q4_0", "MXFP4", "Q5_K_M", "Q8_0"};
    const size_t n_good = sizeof good / sizeof *good;
    for (size_t i = 0; name && *name && i < files->count; i++)
        if (strcmp(files->list[i].path, name) == 0) return i;
    if (name && *name) return SIZE_MAX;
    if (*quant && strcasecmp(quant, "latest") != 0) {
        for (size_t i = 0; i < files->count; i++)
            if (is_model_path(files->list[i].path) && names_quant(files->list[i].path, quant)) return i;
        return SIZE_MAX;
    }
    for (size_t q = 0; q < n_good; q++)
        for (size_t i = 0; i < files->count; i++)
            if (is_model_path(files->list[i].path) && names_quant(files->list[i].path, good[q])) return i;
    for (size_t i = 0; i < files->count; i++)
        if (is_model_path(files->list[i].path)) return i;
    return SIZE_MAX;
}
