/* Sessions with tiers of kept prefixes, beside sessions without: what a sequence takes, and that it computes what a
 * cold one computes. */
#ifndef TN_TESTS_TIER_CASES_H
#define TN_TESTS_TIER_CASES_H

#include "support.h"

#include "llm/memory/tier.h"
#include "models/reference_models.h"
#include "tenon/arch.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONTEXT = 256, POOL = 2048, PAGE = 16, UBATCH = 32, SEQS = 3, VOCAB = 64 };
enum { RAM = 512 << 10, DISK = 4 << 20 };

/* ---- Models, sessions, folders ---- */

typedef struct tier_case {
    tn_model *model;
    tn_session *warm, *cold; /* with tiers; without */
    tn_session_params params;
    const char *name;
} tier_case;

static char work_folder[64], model_path[128], disk_folder[128];

static inline tn_session_params tier_params(int32_t n_ctx, int32_t n_prefixes, size_t ram, uint64_t disk) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = "cpu";
    p.n_ctx = p.n_batch = n_ctx;
    p.n_ubatch = UBATCH;
    p.n_seqs = SEQS;
    p.n_prefixes = n_prefixes;
    p.page = PAGE;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    p.repeatable = true; /* how tokens are divided into batches makes no difference */
    p.cache_ram = ram;
    p.cache_disk = disk ? disk_folder : NULL;
    p.cache_disk_bytes = disk;
    return p;
}

static inline void open_seed(tier_case *c, const char *arch, uint64_t seed, const tn_session_params *params) {
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB, .seed = seed};
    const tn_session_params cold = tier_params(POOL, 0, 0, 0);
    assert_ok(tiny_model_write(model_path, &options));
    *c = (tier_case){.name = arch, .params = *params};
    assert_ok(tn_model_open(model_path, NULL, &c->model));
    assert_ok(tn_session_open(c->model, &c->params, &c->warm));
    assert_ok(tn_session_open(c->model, &cold, &c->cold));
}
static inline void open_tiers(tier_case *c, const char *arch, const tn_session_params *params) {
    open_seed(c, arch, 0, params);
}
static inline void close_tiers(tier_case *c) {
    tn_session_free(c->warm);
    tn_session_free(c->cold);
    tn_model_close(c->model);
}
static inline void restart(tier_case *c) {
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

static inline void on_every_arch(void (*test)(tier_case *c), const tn_session_params *params) {
    for (size_t i = 0; tn_arch_at(i); i++) {
        tier_case c;
        if (tn_arch_at(i)->traits & (TN_ARCH_ENCODER | TN_ARCH_DIFFUSION)) continue;
        if (!tiny_arch_is_tested(tn_arch_at(i)->name)) continue;
        clear_disk();
        open_tiers(&c, tn_arch_at(i)->name, params);
        test(&c);
        close_tiers(&c);
    }
}

/* ---- Texts ---- */

static inline void make_text(tn_token *tokens, int32_t n, uint32_t text) {
    for (int32_t i = 0; i < n; i++) tokens[i] = (tn_token)((text * 2654435761u + (uint32_t)i * 40503u) >> 9) % 60 + 3;
}

static inline tn_status decode_from(tn_session *s, int32_t seq, const tn_token *tokens, int32_t from, int32_t to) {
    int32_t seqs[CONTEXT], positions[CONTEXT];
    for (int32_t i = from; i < to; i++) {
        seqs[i - from] = seq;
        positions[i - from] = i;
    }
    const tn_batch batch = {.n_tokens = to - from, .tokens = tokens + from, .seqs = seqs, .positions = positions};
    return tn_session_decode(s, &batch);
}

static inline void compare_cold(tier_case *c, const tn_token *tokens, int32_t n, const char *what) {
    nmse error = {0};
    assert_ok(tn_session_seq_remove(c->cold, 0, 0, -1));
    assert_ok(decode_from(c->cold, 0, tokens, 0, n));
    nmse_add(&error, tn_session_logits(c->warm, -1), tn_session_logits(c->cold, -1), VOCAB);
    if (!(nmse_value(&error) <= 1e-10)) fail_msg("%s, %s: NMSE %g", c->name, what, nmse_value(&error));
}

/* Begins an empty sequence with these tokens and compares it to a cold one. Returns how many were taken. */
static inline int32_t begin_seq(tier_case *c, int32_t seq, uint64_t key, const tn_token *tokens, int32_t n,
                                const char *what) {
    int32_t taken = -1;
    assert_ok(tn_session_prefix_take(c->warm, seq, key, tokens, n - 1, &taken));
    assert_true(taken >= 0 && taken < n);
    assert_int_equal(tn_session_seq_last(c->warm, seq), taken - 1);
    assert_ok(decode_from(c->warm, seq, tokens, taken, n));
    compare_cold(c, tokens, n, what);
    return taken;
}
static inline void end_seq(tier_case *c, int32_t seq) {
    assert_ok(tn_session_prefix_keep(c->warm, seq));
    assert_ok(tn_session_seq_remove(c->warm, seq, 0, -1));
}
static inline int32_t serve_text(tier_case *c, uint64_t key, const tn_token *tokens, int32_t n, const char *what) {
    const int32_t taken = begin_seq(c, 0, key, tokens, n, what);
    end_seq(c, 0);
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
