/* Runs a fuzz target over the files of a folder, without a fuzzer: what was found once stays found. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static int replay(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) return -1;
    long size = ftell(f);
    rewind(f);
    uint8_t *bytes = malloc(size > 0 ? (size_t)size : 1); /* exactly as large, so that a sanitizer sees its end */
    int result = bytes && size >= 0 && fread(bytes, 1, (size_t)size, f) == (size_t)size ? 0 : -1;
    fclose(f);
    if (result == 0) LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    return result;
}

int main(int argc, char **argv) {
    char path[4096];
    int count = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    DIR *dir = opendir(argv[1]);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (replay(path) != 0) {
            fprintf(stderr, "%s cannot be read\n", path);
            return 1;
        }
        count++;
    }
    if (dir) closedir(dir);
    printf("%d inputs\n", count);
    return count == 0; /* a target without inputs is a mistake */
}
