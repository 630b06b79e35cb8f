/* Models from a hub: owner/repo[:quant] or a URL, kept in the user's cache. The cache has the layout of Hugging
 * Face's own programs, so that all of them share the files. */
#ifndef TENON_TOOL_HUB_H
#define TENON_TOOL_HUB_H

#include "hub/download.h"

/* Rows of an option table. */
#define OPTIONS_HUB                                                                                                  \
    {.name = "hf-file",                                                                                              \
     .letter = "hff",                                                                                                \
     .value = "FILE",                                                                                                \
     .kind = OPTION_TEXT,                                                                                            \
     .help = "the file of the repository, instead of the one for the quant",                                         \
     .env = "LLAMA_ARG_HF_FILE"},                                                                                    \
        {.name = "hf-token",                                                                                         \
         .letter = "hft",                                                                                            \
         .value = "TOKEN",                                                                                           \
         .kind = OPTION_TEXT,                                                                                        \
         .help = "access token for the hub",                                                                         \
         .env = "HF_TOKEN"},                                                                                         \
    {                                                                                                                \
        .name = "offline", .kind = OPTION_FLAG, .help = "use only what was downloaded before",                       \
        .env = "LLAMA_ARG_OFFLINE HF_HUB_OFFLINE"                                                                    \
    }

/* The path of the model, which is downloaded where it is not there yet. `file` names one of the repository's files,
 * or is NULL. Return an exit code. */
int hub_fetch(const struct args *args, const char *repo, const char *file, char path[HUB_PATH]);
int hub_fetch_url(const struct args *args, const char *url, char path[HUB_PATH]);

/* ---- Between the files of this folder ---- */

struct hub_file {
    char path[512];
    uint64_t size;
    char sha256[65]; /* or "" */
};
struct hub_files {
    struct hub_file *list;
    size_t count;
};
bool hub_files_add(struct hub_files *files, const char *path, uint64_t size, const char *sha256);
/* The file for a quant ("" for the best one), or for a name; with the further parts of a split model after it.
 * SIZE_MAX: none. */
size_t hub_choose(const struct hub_files *files, const char *quant, const char *name);
/* The name of part k (from 0) of `path`, and how many there are; 1 for files that are not split. */
int hub_parts(const char *path);
void hub_part_name(const char *path, int k, char out[512]);

bool hub_cache_root(char path[HUB_PATH]);                         /* of repositories; false without a home folder */
bool hub_download_root(char path[HUB_PATH]);                      /* of files by URL */
void hub_list(FILE *out);                                         /* what is in the cache */
int hub_list_cached(const char *folder, struct hub_files *files); /* the files of a snapshot */

#endif
