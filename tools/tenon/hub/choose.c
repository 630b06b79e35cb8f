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
    /* Parts of multimodal models, importance matrices, draft models. */
    static const char *const others[] = {"mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcasestr(name, others[i])) return false;
    const char *part = part_number(path);
    return !part || strncmp(part, "00001", 5) == 0;
}

/* Whether the quant stands in the path before - . or /; with `word` as a word of its own, also after - . _ or /. */
static bool names_quant(const char *path, const char *quant, bool word) {
    const size_t length = strlen(quant);
    for (const char *at = path; (at = strcasestr(at, quant)); at++) {
        const bool begins = !word || at == path || strchr("-._/", at[-1]) != NULL;
        if (begins && at[length] && strchr("-./", at[length])) return true;
    }
    return false;
}

static size_t choose_quant(const struct hub_files *files, const char *quant) {
    for (int word = 1; word >= 0; word--)
        for (size_t i = 0; i < files->count; i++)
            if (is_model_path(files->list[i].path) && names_quant(files->list[i].path, quant, word)) return i;
    return SIZE_MAX;
}

size_t hub_choose(const struct hub_files *files, const char *quant, const char *name) {
    for (size_t i = 0; name && *name && i < files->count; i++)
        if (strcmp(files->list[i].path, name) == 0) return i;
    if (name && *name) return SIZE_MAX;
    if (*quant && strcasecmp(quant, "latest") != 0) return choose_quant(files, quant);
    /* The order of llama.cpp, so that both take the same file of a repository. */
    size_t chosen = choose_quant(files, "Q4_K_M");
    if (chosen == SIZE_MAX) chosen = choose_quant(files, "Q8_0");
    for (size_t i = 0; chosen == SIZE_MAX && i < files->count; i++)
        if (is_model_path(files->list[i].path)) chosen = i;
    return chosen;
}
