/* The folders of downloaded models, and what is in them. */
#include "cli/term.h"
#include "hub/hub.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool from_variable(const char *name, const char *rest, char path[HUB_PATH]) {
    const char *value = getenv(name);
    return value && *value && snprintf(path, HUB_PATH, "%s%s", value, rest) < HUB_PATH - 1024;
}

bool hub_cache_root(char path[HUB_PATH]) {
    return from_variable("HF_HUB_CACHE", "", path) || from_variable("HUGGINGFACE_HUB_CACHE", "", path) ||
           from_variable("HF_HOME", "/hub", path) || from_variable("XDG_CACHE_HOME", "/huggingface/hub", path) ||
           from_variable("HOME", "/.cache/huggingface/hub", path);
}

bool hub_download_root(char path[HUB_PATH]) {
    return from_variable("XDG_CACHE_HOME", "/tenon/models", path) ||
           from_variable("HOME", "/.cache/tenon/models", path);
}

/* Files below `folder`, named from `base` on; links whose file is missing are left out. */
static void add_folder(const char *folder, const char *base, int depth, struct hub_files *files) {
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[HUB_PATH], name[512];
        struct stat info;
        if (entry->d_name[0] == '.') continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= sizeof path) continue;
        if ((size_t)snprintf(name, sizeof name, "%s%s%s", base, *base ? "/" : "", entry->d_name) >= sizeof name)
            continue;
        if (stat(path, &info) != 0) continue;
        if (S_ISDIR(info.st_mode) && depth < 4)
            add_folder(path, name, depth + 1, files);
        else if (S_ISREG(info.st_mode))
            hub_files_add(files, name, (uint64_t)info.st_size, NULL);
    }
    closedir(dir);
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

int hub_list_cached(const char *folder, struct hub_files *files) {
    add_folder(folder, "", 0, files);
    if (files->count) qsort(files->list, files->count, sizeof *files->list, by_path);
    return files->count ? EXIT_OK : EXIT_ERROR;
}

static void print_snapshots(FILE *out, const char *root, const char *entry) {
    char folder[HUB_PATH], repo[512], size[HUMAN_SIZE];
    snprintf(repo, sizeof repo, "%s", entry + strlen("models--"));
    char *dashes = strstr(repo, "--");
    if (dashes) memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1), *dashes = '/';
    if ((size_t)snprintf(folder, sizeof folder, "%s/%s/snapshots", root, entry) >= sizeof folder) return;
    struct hub_files files = {0};
    hub_list_cached(folder, &files);
    for (size_t i = 0; i < files.count; i++) {
        const char *name = strchr(files.list[i].path, '/'); /* after the commit */
        const size_t length = strlen(files.list[i].path);
        if (name && length > 5 && strcmp(files.list[i].path + length - 5, ".gguf") == 0)
            fprintf(out, "%-10s %s %s\n", human_bytes(size, files.list[i].size), repo, name + 1);
    }
    free(files.list);
}

void hub_list(FILE *out) {
    char root[HUB_PATH], size[HUMAN_SIZE];
    struct dirent **entries = NULL;
    int count = hub_cache_root(root) ? scandir(root, &entries, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        if (strncmp(entries[i]->d_name, "models--", 8) == 0) print_snapshots(out, root, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    struct hub_files files = {0};
    if (hub_download_root(root)) hub_list_cached(root, &files);
    for (size_t i = 0; i < files.count; i++) {
        const size_t length = strlen(files.list[i].path);
        if (length > 5 && strcmp(files.list[i].path + length - 5, ".gguf") == 0)
            fprintf(out, "%-10s %s/%s\n", human_bytes(size, files.list[i].size), root, files.list[i].path);
    }
    free(files.list);
}
