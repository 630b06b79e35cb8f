/* Tiers of kept prefixes: a sequence that begins with what host memory or the disk kept computes what a cold one
 * computes, for every architecture and after a restart; blocks are kept once; budgets hold; nothing damaged, of
 * another model, key or text is taken; the memory is planned to the byte. */
#include "support.h"

#include "llm/memory/tier.h"
#include "models/reference_models.h"
#include "tenon/arch.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

static tn_session_params tier_params(int32_t n_ctx, int32_t n_prefixes, size_t ram, uint64_t disk) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = "cpu";
    p.n_ctx = p.n_batch = n_ctx;
    p.n_ubatch = UBATCH;
    p.n_seqs = SEQS;
    p.n_prefixes = n_prefixes;
    p.page = PAGE;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    p.cache_ram = ram;
    p.cache_disk = disk ? disk_folder : NULL;
    p.cache_disk_bytes = disk;
    return p;
}

static void open_seed(tier_case *c, const char *arch, uint64_t seed, const tn_session_params *params) {
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB, .seed = seed};
    const tn_session_params cold = tier_params(POOL, 0, 0, 0);
    assert_ok(tiny_model_write(model_path, &options));
    *c = (tier_case){.name = arch, .params = *params};
    assert_ok(tn_model_open(model_path, NULL, &c->model));
    assert_ok(tn_session_open(c->model, &c->params, &c->warm));
    assert_ok(tn_session_open(c->model, &cold, &c->cold));
}
static void open_tiers(tier_case *c, const char *arch, const tn_session_params *params) {
    open_seed(c, arch, 0, params);
}
static void close_tiers(tier_case *c) {
    tn_session_free(c->warm);
    tn_session_free(c->cold);
    tn_model_close(c->model);
}
static void restart(tier_case *c) {
    tn_session_free(c->warm);
    assert_ok(tn_session_open(c->model, &c->params, &c->warm));
}

/* Calls `fn` with every file of the folder; returns the bytes of all. */
static uint64_t each_file(void (*fn)(const char *path, size_t size)) {
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
static void remove_file(const char *path, size_t size) {
    (void)size;
    unlink(path);
}
static void clear_disk(void) {
    (void)each_file(remove_file);
    rmdir(disk_folder);
}

static void on_every_arch(void (*test)(tier_case *c), const tn_session_params *params) {
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

static void make_text(tn_token *tokens, int32_t n, uint32_t text) {
    for (int32_t i = 0; i < n; i++) tokens[i] = (tn_token)((text * 2654435761u + (uint32_t)i * 40503u) >> 9) % 60 + 3;
}

static tn_status decode_from(tn_session *s, int32_t seq, const tn_token *tokens, int32_t from, int32_t to) {
    int32_t seqs[CONTEXT], positions[CONTEXT];
    for (int32_t i = from; i < to; i++) {
        seqs[i - from] = seq;
        positions[i - from] = i;
    }
    const tn_batch batch = {.n_tokens = to - from, .tokens = tokens + from, .seqs = seqs, .positions = positions};
    return tn_session_decode(s, &batch);
}

static void compare_cold(tier_case *c, const tn_token *tokens, int32_t n, const char *what) {
    nmse error = {0};
    assert_ok(tn_session_seq_remove(c->cold, 0, 0, -1));
    assert_ok(decode_from(c->cold, 0, tokens, 0, n));
    nmse_add(&error, tn_session_logits(c->warm, -1), tn_session_logits(c->cold, -1), VOCAB);
    if (!(nmse_value(&error) <= 1e-10)) fail_msg("%s, %s: NMSE %g", c->name, what, nmse_value(&error));
}

/* Begins an empty sequence with these tokens and compares it to a cold one. Returns how many were taken. */
static int32_t begin_seq(tier_case *c, int32_t seq, uint64_t key, const tn_token *tokens, int32_t n,
                         const char *what) {
    int32_t taken = -1;
    assert_ok(tn_session_prefix_take(c->warm, seq, key, tokens, n - 1, &taken));
    assert_true(taken >= 0 && taken < n);
    assert_int_equal(tn_session_seq_last(c->warm, seq), taken - 1);
    assert_ok(decode_from(c->warm, seq, tokens, taken, n));
    compare_cold(c, tokens, n, what);
    return taken;
}
static void end_seq(tier_case *c, int32_t seq) {
    assert_ok(tn_session_prefix_keep(c->warm, seq));
    assert_ok(tn_session_seq_remove(c->warm, seq, 0, -1));
}
static int32_t serve_text(tier_case *c, uint64_t key, const tn_token *tokens, int32_t n, const char *what) {
    const int32_t taken = begin_seq(c, 0, key, tokens, n, what);
    end_seq(c, 0);
    return taken;
}

/* ---- Taking ---- */

/* Recurrent layers continue where a state was kept: after the last token of a text. */
static void check_states(tier_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    make_text(a, CONTEXT, 11);
    make_text(b, CONTEXT, 12);
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 90, "another"), 0);
    for (int32_t i = 0; i < 4; i++) {
        if (c->params.cache_disk) restart(c);
        if (serve_text(c, 0, a, 101 + i, "with its state") != 100 + i) fail_msg("%s: text a, %d", c->name, i);
        if (serve_text(c, 0, b, 100 + 10 * i, "with its state") != 90 + 10 * i)
            fail_msg("%s: text b, %d", c->name, i);
    }
    const int32_t taken = serve_text(c, 0, a, 80, "without a state there");
    if (taken) fail_msg("%s: %d taken", c->name, taken);
    assert_true(each_file(NULL) <= DISK);
    assert_int_equal(tn_session_tier_usage(c->warm).dropped, 0);
}

/* One prefix is kept on the device, so that every other text moves the last one to host memory. */
static void check_host(tier_case *c) {
    tn_token a[CONTEXT], b[CONTEXT], branch[CONTEXT];
    if (tn_model_get_info(c->model).is_recurrent) {
        check_states(c);
        return;
    }
    make_text(a, CONTEXT, 1);
    make_text(b, CONTEXT, 2);
    memcpy(branch, b, sizeof branch);
    memcpy(branch, a, 75 * sizeof *a);
    branch[75] = a[75] == 5 ? 6 : 5;
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 90, "another"), 0);
    assert_int_equal(tn_session_tier_usage(c->warm).host_tokens, 0);
    assert_int_equal(serve_text(c, 0, a, 100, "from host memory"), 99);
    assert_int_equal(tn_session_tier_usage(c->warm).host_tokens, 99);
    assert_int_equal(serve_text(c, 0, b, 130, "continued from host memory"), 90);
    assert_int_equal(serve_text(c, 0, a, 101, "again"), 100);
    (void)serve_text(c, 0, b, 131, "moves the other");
    const int32_t taken = serve_text(c, 0, branch, 120, "a branch inside a block");
    if (taken != 75) fail_msg("%s: %d taken", c->name, taken);
    assert_int_equal(serve_text(c, 0, b, 132, "once more"), 131);
    assert_int_equal(serve_text(c, 0, branch, 121, "the branch"), 120);
    assert_int_equal(tn_session_tier_usage(c->warm).dropped, 0);
}
static void host_memory_gives_what_was_computed(void **state) {
    (void)state;
    const tn_session_params p = tier_params(POOL, 1, RAM, 0);
    on_every_arch(check_host, &p);
}

static void check_disk(tier_case *c) {
    tn_token a[CONTEXT], b[CONTEXT];
    if (tn_model_get_info(c->model).is_recurrent) {
        check_states(c);
        return;
    }
    make_text(a, CONTEXT, 3);
    make_text(b, CONTEXT, 4);
    assert_int_equal(serve_text(c, 0, a, 100, "cold"), 0);
    assert_int_equal(serve_text(c, 0, b, 110, "another"), 0);
    restart(c);
    assert_int_equal(serve_text(c, 0, a, 105, "from disk"), 100);
    assert_int_equal(tn_session_tier_usage(c->warm).disk_tokens, 100);
    assert_int_equal(serve_text(c, 0, b, 70, "a part from disk"), 69);
    assert_int_equal(serve_text(c, 0, b, 111, "from disk"), 110);
    restart(c);
    restart(c);
    assert_int_equal(serve_text(c, 0, a, 106, "after another restart"), 105);
    assert_true(each_file(NULL) <= DISK);
    assert_int_equal(tn_session_tier_usage(c->warm).disk_failed, 0);
}
static void disks_give_what_was_computed_after_a_restart(void **state) {
    (void)state;
    tn_session_params p = tier_params(POOL, 1, 0, DISK);
    on_every_arch(check_disk, &p);
    p.cache_ram = RAM;
    p.page = 64;
    on_every_arch(check_disk, &p);
}

/* Two host tiers too small for the texts: blocks pass to the disk while the session runs. */
static void blocks_move_on_to_disk(void **state) {
    (void)state;
    tier_case c;
    tn_token text[CONTEXT];
    clear_disk();
    const tn_session_params p = tier_params(CONTEXT, 2, 0, DISK);
    open_tiers(&c, "llama", &p);
    const int n_texts = (int)(tn_session_tier_usage(c.warm).host_limit / (200 * 256)) + 12; /* 256 bytes per token */
    for (int i = 0; i < n_texts; i++) {
        make_text(text, CONTEXT, 100 + (uint32_t)i);
        assert_true(serve_text(&c, 0, text, 200, "cold") < 8); /* few tokens begin several texts */
    }
    const tn_tier_usage usage = tn_session_tier_usage(c.warm);
    assert_true(usage.disk_stored > 0 && usage.disk_blocks > 0);
    assert_int_equal(usage.dropped, 0);
    assert_int_equal(each_file(NULL), usage.disk_bytes);
    for (int i = 0; i < n_texts; i++) {
        make_text(text, CONTEXT, 100 + (uint32_t)i);
        assert_int_equal(serve_text(&c, 0, text, 200, "again"), 199);
    }
    assert_true(tn_session_tier_usage(c.warm).disk_tokens > 0);
    close_tiers(&c);
}

/* ---- Keeping once ---- */

static void blocks_are_kept_once(void **state) {
    (void)state;
    tier_case c;
    tn_token text[CONTEXT];
    const tn_session_params p = tier_params(POOL, 1, 4 * RAM, 0);
    open_tiers(&c, "llama", &p);
    for (uint32_t i = 0; i < 10; i++) { /* all begin with the same two blocks */
        make_text(text, CONTEXT, 200 + i);
        make_text(text, 64, 199);
        text[64] = (tn_token)(3 + i);
        assert_int_equal(serve_text(&c, 0, text, 96, "branches"), i ? 64 : 0);
    }
    make_text(text, CONTEXT, 210);
    (void)serve_text(&c, 0, text, 32, "moves the last");
    assert_int_equal(tn_session_tier_usage(c.warm).host_blocks, 2 + 10);
    /* A longer text of the same beginning replaces its last block. */
    make_text(text, CONTEXT, 220);
    for (int32_t n = 40; n <= 60; n += 5) {
        (void)serve_text(&c, 0, text, n, "grows");
        make_text(text, CONTEXT, 230);
        (void)serve_text(&c, 0, text, 32, "moves it");
        make_text(text, CONTEXT, 220);
    }
    assert_int_equal(tn_session_tier_usage(c.warm).host_blocks, 2 + 10 + 1 + 2 + 1);
    close_tiers(&c);
}

/* ---- What must not be taken ---- */

static void keys_models_and_settings_are_separate(void **state) {
    (void)state;
    tier_case c;
    tn_token a[CONTEXT];
    clear_disk();
    make_text(a, CONTEXT, 5);
    tn_session_params p = tier_params(POOL, 1, RAM, DISK);
    open_tiers(&c, "llama", &p);
    assert_int_equal(serve_text(&c, 1, a, 100, "key 1"), 0);
    assert_int_equal(serve_text(&c, 2, a, 100, "key 2"), 0);
    assert_int_equal(serve_text(&c, 3, a, 100, "key 3"), 0);
    restart(&c);
    assert_int_equal(serve_text(&c, 1, a, 101, "key 1 again"), 100);
    assert_int_equal(serve_text(&c, 4, a, 101, "key 4"), 0);
    close_tiers(&c);
    open_seed(&c, "llama", 7, &p); /* the same shape, other weights */
    assert_int_equal(serve_text(&c, 1, a, 101, "another model"), 0);
    close_tiers(&c);
    p.cache_k = TN_F16;
    open_tiers(&c, "llama", &p);
    int32_t taken;
    assert_ok(tn_session_prefix_take(c.warm, 0, 1, a, 100, &taken));
    assert_int_equal(taken, 0); /* another cache type */
    close_tiers(&c);
    p.cache_k = TN_F32;
    p.rope_base = 5000;
    open_tiers(&c, "llama", &p);
    assert_ok(tn_session_prefix_take(c.warm, 0, 1, a, 100, &taken));
    assert_int_equal(taken, 0);
    close_tiers(&c);
    p.rope_base = 0;
    open_tiers(&c, "llama", &p);
    assert_int_equal(serve_text(&c, 1, a, 102, "as before"), 101);
    assert_int_equal(serve_text(&c, 2, a, 102, "as before"), 100);
    close_tiers(&c);
}

static void shifted_and_forgotten_cells_are_not_taken(void **state) {
    (void)state;
    tier_case c;
    tn_token a[CONTEXT], joined[CONTEXT];
    clear_disk();
    make_text(a, CONTEXT, 6);
    memcpy(joined, a, sizeof joined);
    memmove(joined + 10, a + 20, 100 * sizeof *a);
    const tn_session_params p = tier_params(POOL, 1, RAM, DISK);
    open_tiers(&c, "llama", &p);
    (void)begin_seq(&c, 0, 0, a, 100, "cold");
    assert_ok(tn_session_seq_remove(c.warm, 0, 10, 20));
    assert_ok(tn_session_seq_shift(c.warm, 0, 20, -1, -10));
    end_seq(&c, 0);
    restart(&c);
    assert_int_equal(serve_text(&c, 0, joined, 80, "shifted"), 10);
    restart(&c);
    assert_ok(tn_session_prefix_forget(c.warm, 0, joined, 80));
    assert_int_equal(serve_text(&c, 0, joined, 80, "forgotten"), 0);
    tn_session_prefix_clear(c.warm);
    assert_int_equal(tn_session_tier_usage(c.warm).host_blocks, 0);
    close_tiers(&c);
}

/* ---- Damage ---- */

static size_t flip_at;
static void flip_byte(const char *path, size_t size) {
    FILE *file = fopen(path, "r+b");
    if (!file) return;
    if (flip_at < size && !strstr(path, "/lock")) {
        fseek(file, (long)flip_at, SEEK_SET);
        const int byte = fgetc(file);
        fseek(file, (long)flip_at, SEEK_SET);
        fputc(byte ^ 0x20, file);
        flip_at += flip_at < sizeof(tn__blob_header) ? 1 : 97; /* another one in the next file */
    }
    fclose(file);
}
static size_t cut_to;
static void cut_file(const char *path, size_t size) {
    if (cut_to < size && !strstr(path, "/lock")) assert_int_equal(truncate(path, (off_t)cut_to), 0);
}

static int n_notes;
static void count_notes(void *user, tn_log_level level, const char *text) {
    (void)user;
    (void)level;
    n_notes += strstr(text, "ignored") != NULL;
}

/* Every byte of the header, and some of the content, in all files. */
static void damaged_files_are_ignored(void **state) {
    (void)state;
    tier_case c;
    tn_token a[CONTEXT];
    make_text(a, CONTEXT, 8);
    const tn_session_params p = tier_params(CONTEXT, 2, 0, DISK);
    clear_disk();
    open_tiers(&c, "llama", &p);
    tn_log_set(count_notes, NULL, TN_LOG_WARN);
    for (flip_at = 0; flip_at < 70 * TN__BLOCK;) {
        (void)serve_text(&c, 0, a, 100, "whole");
        tn_session_free(c.warm);
        (void)each_file(flip_byte);
        assert_ok(tn_session_open(c.model, &c.params, &c.warm));
        n_notes = 0;
        const int32_t taken = begin_seq(&c, 0, 0, a, 100, "damaged");
        assert_int_equal(taken, 0);
        assert_true(n_notes == 0 || n_notes == 1);
        assert_ok(tn_session_seq_remove(c.warm, 0, 0, -1));
        assert_true(each_file(NULL) <= DISK);
    }
    for (cut_to = 0; cut_to < 3000; cut_to += 173) {
        (void)serve_text(&c, 0, a, 100, "whole");
        tn_session_free(c.warm);
        (void)each_file(cut_file);
        assert_ok(tn_session_open(c.model, &c.params, &c.warm));
        assert_int_equal(serve_text(&c, 0, a, 100, "cut"), 0);
    }
    tn_log_set(NULL, NULL, TN_LOG_WARN);
    close_tiers(&c);
}

/* Files of others stay and do not count; the salt of a damaged lock file is made anew, and old files age out. */
static void foreign_files_stay(void **state) {
    (void)state;
    tier_case c;
    tn_token a[CONTEXT];
    char foreign[256], lock[256];
    make_text(a, CONTEXT, 9);
    clear_disk();
    const tn_session_params p = tier_params(POOL, 1, RAM, DISK);
    open_tiers(&c, "llama", &p);
    snprintf(foreign, sizeof foreign, "%s/notes.txt", disk_folder);
    snprintf(lock, sizeof lock, "%s/lock", disk_folder);
    FILE *file = fopen(foreign, "w");
    fputs("mine", file);
    fclose(file);
    (void)serve_text(&c, 0, a, 100, "cold");
    restart(&c);
    assert_int_equal(serve_text(&c, 0, a, 101, "beside others"), 100);
    tn_session_free(c.warm);
    assert_int_equal(truncate(lock, 3), 0);
    assert_ok(tn_session_open(c.model, &c.params, &c.warm));
    assert_int_equal(serve_text(&c, 0, a, 102, "another salt"), 0);
    assert_true(tn_session_tier_usage(c.warm).disk_blocks >= 4);
    restart(&c);
    assert_int_equal(serve_text(&c, 0, a, 103, "with it"), 102);
    assert_int_equal(access(foreign, R_OK), 0);
    close_tiers(&c);
}

/* ---- Budgets ---- */

typedef struct conversation {
    tn_token tokens[CONTEXT];
    int32_t n;
} conversation;

static uint64_t random_state;
static uint32_t pick(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static void check_budgets(tier_case *c) {
    const tn_tier_usage usage = tn_session_tier_usage(c->warm);
    assert_true(usage.host_limit <= (c->params.cache_ram ? c->params.cache_ram : SIZE_MAX));
    assert_true(usage.host_bytes <= usage.host_limit);
    if (c->params.cache_disk) {
        assert_true(usage.disk_bytes <= usage.disk_limit);
        assert_true(each_file(NULL) <= usage.disk_limit);
    }
}

/* Random turns of conversations that branch, on a device, in host memory and on a disk that hold a part of them. */
static void fuzz_turns(tier_case *c) {
    enum { HISTORIES = 16, TURNS = 60, MOST = 150 };
    static conversation histories[HISTORIES];
    uint64_t taken = 0;
    random_state = 4711;
    for (uint32_t i = 0; i < HISTORIES; i++) {
        make_text(histories[i].tokens, CONTEXT, 300 + i % 4);
        histories[i].n = 20 + (int32_t)(i * 7 % 60);
    }
    for (int turn = 0; turn < (getenv("TENON_LONG") ? 40 * TURNS : TURNS); turn++) {
        conversation x = histories[pick(HISTORIES)];
        if (pick(4) == 0) x.n = 1 + (int32_t)pick((uint32_t)x.n);
        const int32_t more = 1 + (int32_t)pick(30);
        if (x.n + more > MOST) x.n = 20;
        for (int32_t i = 0; i < more; i++) x.tokens[x.n++] = (tn_token)(3 + pick(50));
        const uint64_t key = pick(5) == 0;
        taken += (uint64_t)begin_seq(c, 0, key, x.tokens, x.n, "a turn");
        for (uint32_t i = pick(5); i > 0; i--) {
            x.tokens[x.n++] = (tn_token)(3 + pick(50));
            assert_ok(decode_from(c->warm, 0, x.tokens, x.n - 1, x.n));
        }
        compare_cold(c, x.tokens, x.n, "its reply");
        if (pick(8) == 0 && tn_session_seq_remove(c->warm, 0, 3, 6) == TN_OK)
            (void)tn_session_seq_shift(c->warm, 0, 6, -1, -3);
        if (pick(6)) assert_ok(tn_session_prefix_keep(c->warm, 0));
        assert_ok(tn_session_seq_remove(c->warm, 0, 0, -1));
        histories[pick(HISTORIES)] = x;
        check_budgets(c);
        if (pick(20) == 0) restart(c);
        if (pick(20) == 0) assert_ok(tn_session_defragment(c->warm));
    }
    assert_true(taken > 0);
}
static void turns_equal_cold_ones_within_budgets(void **state) {
    (void)state;
    static const struct {
        int32_t n_ctx, n_prefixes;
        size_t ram;
        uint64_t disk;
    } sizes[] = {{192, 8, 256 << 10, 0}, {192, 8, 256 << 10, 512 << 10}, {POOL, 4, 0, 256 << 10}};
    static const char *const archs[] = {"llama", "gemma2", "gemma3", "phi3", "gpt2", "mamba", "jamba", "qwen3next"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof archs / sizeof *archs; k++) {
            tier_case c;
            clear_disk();
            const tn_session_params p = tier_params(sizes[i].n_ctx, sizes[i].n_prefixes, sizes[i].ram, sizes[i].disk);
            open_tiers(&c, archs[k], &p);
            fuzz_turns(&c);
            close_tiers(&c);
            assert_true(each_file(NULL) <= DISK);
        }
}

/* The least recently used text goes first, and of a text its end. */
static void least_recently_used_goes_first(void **state) {
    (void)state;
    enum { TEXTS = 8 };
    tier_case c;
    tn_token texts[TEXTS][CONTEXT];
    const size_t token = 256; /* bytes of the tiny model */
    const tn_session_params p = tier_params(POOL, 1, (size_t)(3 * 128 + 40) * (token + 64), 0);
    open_tiers(&c, "llama", &p);
    for (uint32_t i = 0; i < TEXTS; i++) make_text(texts[i], CONTEXT, 400 + i);
    for (int i = 0; i < 4; i++) (void)serve_text(&c, 0, texts[i], 128, "cold"); /* 0, 1, 2 in host memory */
    assert_int_equal(serve_text(&c, 0, texts[0], 128, "0 again"), 127);         /* 3 moves, 0 is on the device */
    (void)serve_text(&c, 0, texts[4], 128, "cold");                             /* 0 moves; 1 is the oldest */
    (void)serve_text(&c, 0, texts[5], 128, "cold");                             /* 4 moves: 1 goes */
    assert_int_equal(serve_text(&c, 0, texts[0], 128, "0 stays"), 127);
    const int32_t taken = serve_text(&c, 0, texts[1], 128, "1 has gone");
    assert_true(taken < 127 && taken % TN__BLOCK == 0);
    assert_true(tn_session_tier_usage(c.warm).dropped > 0);
    close_tiers(&c);
}

/* Several sessions in several processes share a folder and its budget. */
static void processes_share_a_folder(void **state) {
    (void)state;
    enum { PROCESSES = 3, ROUNDS = 30 };
    tier_case c;
    tn_token text[CONTEXT];
    pid_t children[PROCESSES];
    const uint64_t budget = 300 << 10;
    clear_disk();
    const tn_session_params p = tier_params(CONTEXT, 1, 0, budget);
    open_tiers(&c, "llama", &p);
    tn_session_free(c.warm);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i]) continue;
        for (uint32_t k = 0; k < ROUNDS; k++) {
            if (k % 10 == 0 && tn_session_open(c.model, &p, &c.warm) != TN_OK) _exit(2);
            make_text(text, CONTEXT, 500 + (k * 7 + (uint32_t)i * 3) % 20);
            (void)serve_text(&c, 0, text, 150, "shared");
            if (each_file(NULL) > budget + 40) _exit(3); /* the lock file may appear twice in a listing */
            if (k % 10 == 9) tn_session_free(c.warm);
        }
        _exit(0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int code = 0;
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_true(WIFEXITED(code));
        assert_int_equal(WEXITSTATUS(code), 0);
    }
    assert_ok(tn_session_open(c.model, &p, &c.warm));
    assert_true(each_file(NULL) <= budget);
    int32_t found = 0;
    for (uint32_t k = 0; k < 20; k++) {
        make_text(text, CONTEXT, 500 + k);
        found += serve_text(&c, 0, text, 150, "after them") > 0;
    }
    assert_true(found > 0);
    close_tiers(&c);
}

/* ---- Memory and arguments ---- */

static _Atomic size_t live_bytes, live_blocks;

static void *count_alloc(void *user, size_t size, size_t align) {
    (void)user;
    atomic_fetch_add(&live_bytes, size);
    atomic_fetch_add(&live_blocks, 1);
    return aligned_alloc(align, (size + align - 1) / align * align);
}
static void count_free(void *user, void *pointer, size_t size) {
    (void)user;
    atomic_fetch_sub(&live_bytes, size);
    atomic_fetch_sub(&live_blocks, 1);
    free(pointer);
}

/* Bytes planned on the host beside tensors, and those that a session took from the heap. */
static void measure_session(const char *arch, size_t ram, uint64_t disk, size_t *planned, size_t *taken,
                            size_t *blocks) {
    tn_model *model;
    tn_session_plan *plan;
    tn_session *session;
    tn_fit fit, now;
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB};
    assert_ok(tiny_model_write(model_path, &options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    const tn_session_params p = tier_params(POOL, 8, ram, disk);
    const size_t before = atomic_load(&live_bytes), blocks_before = atomic_load(&live_blocks);
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    assert_ok(tn_session_new(plan, &session));
    *taken = atomic_load(&live_bytes) - before;
    *blocks = atomic_load(&live_blocks) - blocks_before;
    assert_ok(tn_session_memory(session, &now));
    assert_int_equal(now.devices[0].staging, fit.devices[0].staging);
    assert_int_equal(now.devices[0].tier, fit.devices[0].tier);
    assert_int_equal(fit.devices[0].tier, tn_session_tier_usage(session).host_limit);
    if (ram) assert_true(fit.devices[0].tier <= ram && fit.devices[0].tier > ram - ram / 50);
    *planned = fit.devices[0].staging + fit.devices[0].tier;
    tn_fit_free(&fit);
    tn_fit_free(&now);
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_model_close(model);
}

static void memory_is_planned(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "gemma2", "phi3"};
    enum { HEADER = 16, ALIGNED_HEADER = 64 };
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        size_t planned[3], taken[3], blocks[3];
        clear_disk();
        measure_session(archs[i], 0, 0, &planned[0], &taken[0], &blocks[0]);
        measure_session(archs[i], RAM, 0, &planned[1], &taken[1], &blocks[1]);
        measure_session(archs[i], RAM, DISK, &planned[2], &taken[2], &blocks[2]);
        /* Every allocation has a header; those of the tier, the index and the buffer are aligned. */
        const size_t host_headers = (blocks[1] - blocks[0] - 1) * HEADER + ALIGNED_HEADER;
        assert_int_equal(taken[1] - taken[0], planned[1] - planned[0] + host_headers);
        const size_t disk_headers = (blocks[2] - blocks[1] - 2) * HEADER + 2 * ALIGNED_HEADER;
        assert_int_equal(taken[2] - taken[1], planned[2] - planned[1] + disk_headers);
    }
}

static void arguments_are_checked(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    const tiny_options options = {.arch = "llama", .context = POOL, .vocab = VOCAB};
    assert_ok(tiny_model_write(model_path, &options));
    assert_ok(tn_model_open(model_path, NULL, &model));
    tn_session_params p = tier_params(POOL, 0, RAM, 0);
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &session)); /* none are kept */
    p = tier_params(POOL, 1, 1000, 0);
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &session)); /* too little for a block */
    p = tier_params(POOL, 1, 0, DISK);
    p.cache_disk_bytes = 0;
    assert_fails(TN_E_INVALID, tn_session_open(model, &p, &session));
    p = tier_params(POOL, 1, 0, DISK);
    p.cache_disk = model_path; /* a file */
    assert_fails(TN_E_IO, tn_session_open(model, &p, &session));
    p = tier_params(POOL, 1, (size_t)1 << 50, 0);
    assert_fails(TN_E_TOO_BIG, tn_session_open(model, &p, &session));
    assert_int_equal(tn_session_tier_usage(NULL).host_limit, 0);
    p = tier_params(POOL, 1, 0, 0);
    assert_ok(tn_session_open(model, &p, &session));
    assert_int_equal(tn_session_tier_usage(session).host_limit, 0);
    tn_session_free(session);
    tn_model_close(model);
}

static int make_work(void **state) {
    (void)state;
    strcpy(work_folder, "/dev/shm/tenon-tiers-XXXXXX"); /* in memory: files are synchronised hundreds of times */
    if (!mkdtemp(work_folder)) strcpy(work_folder, "/tmp/tenon-tiers-XXXXXX");
    if (access(work_folder, W_OK) != 0 && !mkdtemp(work_folder)) return 1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", work_folder);
    snprintf(disk_folder, sizeof disk_folder, "%s/kept/prefixes", work_folder);
    return 0;
}
static int remove_work(void **state) {
    char between[128];
    (void)state;
    clear_disk();
    snprintf(between, sizeof between, "%s/kept", work_folder);
    rmdir(between);
    unlink(model_path);
    return rmdir(work_folder);
}

int main(void) {
    const tn_allocator counting = {count_alloc, count_free, NULL};
    tn_set_allocator(&counting);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_gives_what_was_computed),
        cmocka_unit_test(disks_give_what_was_computed_after_a_restart),
        cmocka_unit_test(blocks_move_on_to_disk),
        cmocka_unit_test(blocks_are_kept_once),
        cmocka_unit_test(keys_models_and_settings_are_separate),
        cmocka_unit_test(shifted_and_forgotten_cells_are_not_taken),
        cmocka_unit_test(damaged_files_are_ignored),
        cmocka_unit_test(foreign_files_stay),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(turns_equal_cold_ones_within_budgets),
        cmocka_unit_test(processes_share_a_folder),
        cmocka_unit_test(memory_is_planned),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, make_work, remove_work);
}
