/* Replays the inputs of a fuzz target in unit tests. */
#include "corpus.h"
#include "support.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int replay_below(const char *folder, int (*target)(const uint8_t *, size_t)) {
    DIR *dir = opendir(folder);
    int count = 0;
    if (!dir) fail_msg("cannot open %s", folder);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[2048];
        struct stat info;
        size_t size;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            count += replay_below(path, target);
            continue;
        }
        uint8_t *bytes = read_file(path, &size);
        if (!bytes) fail_msg("cannot read %s", path);
        (void)target(bytes, size);
        free(bytes);
        count++;
    }
    closedir(dir);
    return count;
}

int replay_corpus(const char *name, int (*target)(const uint8_t *bytes, size_t size)) {
    char folder[1024];
    snprintf(folder, sizeof folder, TENON_SOURCE_DIR "/tests/fuzz/corpus/%s", name);
    return replay_below(folder, target);
}
