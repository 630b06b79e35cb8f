/* Runs a fuzz target over all files below a folder, without a fuzzer, so that inputs that once failed stay tested. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) return -1;
    long size = ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(size > 0 ? (size_t)size : 1); /* of exactly this size, so that a sanitizer sees its end */
    int result = bytes && size >= 0 && fread(bytes, 1, (size_t)size, f) == (size_t)size ? 0 : -1;
    fclose(f);
    if (result == 0) LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    return result;
}

/* Replays the files of a folder and of its subfolders and adds their number to *count. */
static int replay_folder(const char *folder, int *count) {
    char path[4096];
    int result = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && result == 0 && (e = readdir(dir));) {
        struct stat info;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            result = replay_folder(path, count);
            continue;
        }
        result = replay_file(path);
        if (result != 0) fprintf(stderr, "cannot read %s\n", path);
        ++*count;
    }
    if (dir) closedir(dir);
    return result;
}

int main(int argc, char **argv) {
    int count = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    if (replay_folder(argv[1], &count) != 0) return 1;
    printf("%d inputs\n", count);
    return count == 0; /* a target without inputs is a mistake */
}
