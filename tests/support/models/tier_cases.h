/* Sessions with tiers of kept prefixes. */
#ifndef TN_TESTS_TIER_CASES_H
#define TN_TESTS_TIER_CASES_H

#include "llm/memory/tier.h"
#include "models/kept_cases.h"

#include <dirent.h>
#include <sys/stat.h>

enum { SEQS = 3, RAM = 512 << 10, DISK = 4 << 20 };

static char work_folder[64], model_path[128], disk_folder[128];

static inline tn_session_params tier_params(int32_t n_ctx, int32_t n_prefixes, size_t ram, uint64_t disk) {
    tn_session_params p = kept_params(n_ctx, SEQS, n_prefixes);
    p.cache_ram = ram;
    p.cache_disk = disk ? disk_folder : NULL;
    p.cache_disk_bytes = disk;
    return p;
}

static inline void open_seed(kept_case *c, const char *arch, uint64_t seed, const tn_session_params *params) {
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB, .seed = seed};
    open_kept(c, model_path, &options, params);
}
static inline void open_tiers(kept_case *c, const char *arch, const tn_session_params *params) {
    open_seed(c, arch, 0, params);
}
static inline void restart(kept_case *c) {
    tn_session_free(c->warm);
    assert_ok(tn_session_open(c->model, &c->params, &c->warm));
}

/* Calls `fn` with every file of the folder; returns the bytes of all. */
static inline uint64_t each_file(void (*fn)(const char *path, size_t size)) {
    uint64_t bytes = 0;
    DIR *folder = opendir(disk_folder);
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", disk_folder, e->d_name);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        bytes += (uint64_t)info.st_size;
        if (fn) fn(path, (size_t)info.st_size);
    }
    if (folder) closedir(folder);
    return bytes;
}
static inline void remove_file(const char *path, size_t size) {
    (void)size;
    unlink(path);
}
static inline void clear_disk(void) {
    (void)each_file(remove_file);
    rmdir(disk_folder);
}

static inline void on_every_arch(void (*test)(kept_case *c), const tn_session_params *params) {
    for (size_t i = 0; tn_arch_at(i); i++) {
        kept_case c;
        if (tn_arch_at(i)->traits & (TN_ARCH_ENCODER | TN_ARCH_DIFFUSION)) continue;
        if (!tiny_arch_is_tested(tn_arch_at(i)->name)) continue;
        clear_disk();
        open_tiers(&c, tn_arch_at(i)->name, params);
        test(&c);
        close_kept(&c);
    }
}

static inline int32_t serve_text(kept_case *c, uint64_t key, const tn_token *tokens, int32_t n, const char *what) {
    const int32_t taken = begin_sequence(c, 0, key, tokens, n, what);
    end_sequence(c, 0);
    return taken;
}

static inline int make_work(void **state) {
    (void)state;
    strcpy(work_folder, "/dev/shm/tenon-tiers-XXXXXX"); /* in memory: files are synchronised hundreds of times */
    if (!mkdtemp(work_folder)) strcpy(work_folder, "/tmp/tenon-tiers-XXXXXX");
    if (access(work_folder, W_OK) != 0 && !mkdtemp(work_folder)) return 1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", work_folder);
    snprintf(disk_folder, sizeof disk_folder, "%s/kept/prefixes", work_folder);
    return 0;
}
static inline int remove_work(void **state) {
    char between[128];
    (void)state;
    clear_disk();
    snprintf(between, sizeof between, "%s/kept", work_folder);
    rmdir(between);
    unlink(model_path);
    return rmdir(work_folder);
}

#endif
