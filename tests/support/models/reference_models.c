/* Reference logits in files: int32 n_tokens, int32 n_vocab, tokens, f32 logits. */
#include "models/reference_models.h"

#include "tenon/arch.h"

#include <dirent.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

const char *const golden_archs[] = {
    "falcon-dense",   "gemma-dense",     "gemma2-dense",     "gpt-oss-moe",  "gpt2-dense",
    "granite-dense",  "granitemoe-moe",  "llama-dense",      "llama-moe",    "mistral3-dense",
    "phi3-dense",     "qwen2-dense",     "qwen3-dense",      "qwen3moe-moe", "smollm3-dense",
    "stablelm-dense", "starcoder-dense", "starcoder2-dense", NULL,
};

enum { REFERENCE_TOKENS = 24, NAMES_MOST = 256 };

static bool golden_run;
static char temporary[64]; /* folder of the tiny models of this process */

bool reference_is_golden(void) { return golden_run; }

/* ---- Names ---- */

static char name_texts[2][NAMES_MOST][512];
static const char *name_lists[2][NAMES_MOST + 1];
static size_t n_names[2];

static void add_name(const char *folder, const char *name, size_t length) {
    size_t *used = &n_names[golden_run];
    if (*used == NAMES_MOST) return;
    snprintf(name_texts[golden_run][*used], sizeof name_texts[0][0], "%s%.*s", folder, (int)length, name);
    name_lists[golden_run][*used] = name_texts[golden_run][*used];
    ++*used;
}

static void list_folder(const char *folder) {
    struct dirent **entries;
    char prefix[480];
    snprintf(prefix, sizeof prefix, "%s/", folder);
    int n = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(entries[i]->d_name);
        if (length > 5 && strcmp(entries[i]->d_name + length - 5, ".gguf") == 0)
            add_name(prefix, entries[i]->d_name, length - 5);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
}

const char *const *reference_names(void) {
    const char *folder = getenv("TENON_LLM_FOLDER");
    if (n_names[golden_run]) return name_lists[golden_run];
    if (folder) {
        list_folder(folder);
    } else if (golden_run) {
        for (const char *const *name = golden_archs; *name; name++) add_name("", *name, strlen(*name));
    } else {
        for (size_t i = 0; tn_arch_at(i); i++)
            if (tiny_arch_is_tested(tn_arch_at(i)->name) &&
                !(tn_arch_at(i)->traits & (TN_ARCH_ENCODER | TN_ARCH_DIFFUSION)))
                add_name("", tn_arch_at(i)->name, strlen(tn_arch_at(i)->name));
        add_name("", "llama-moe", 9);
    }
    return name_lists[golden_run];
}

/* ---- Tiny models ---- */

static void remove_temporary(void) {
    DIR *dir = opendir(temporary);
    char path[512];
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", temporary, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (dir) closedir(dir);
    rmdir(temporary);
}

static const char *in_temporary(const char *name, const char *suffix) {
    static char path[512];
    if (!temporary[0]) {
        snprintf(temporary, sizeof temporary, "/tmp/tenon-models-XXXXXX");
        if (!mkdtemp(temporary)) fail_msg("no temporary folder %s", temporary);
        atexit(remove_temporary);
    }
    snprintf(path, sizeof path, "%s/%s%s", temporary, name, suffix);
    return path;
}

/* "qwen3moe-moe" and "qwen3moe" are the same model; "llama-moe" has experts where the architecture need not. */
static void write_named(const char *path, const char *name) {
    char arch[64];
    const char *suffix = strrchr(name, '-');
    const bool dense = suffix && strcmp(suffix, "-dense") == 0, experts = suffix && strcmp(suffix, "-moe") == 0;
    const bool whole = tn_arch_find(name) || !(dense || experts); /* "hunyuan-dense" is an architecture */
    snprintf(arch, sizeof arch, "%.*s", (int)(whole ? (long)strlen(name) : suffix - name), name);
    const tn_arch *row = tn_arch_find(arch);
    if (!row) fail_msg("there is no architecture '%s'", arch);
    const uint32_t period = (uint32_t)(row->window_period > 2 ? row->window_period + 1 : row->fewest_layers);
    const uint32_t layers = period > 3 ? period : 3;
    assert_ok(tiny_model_write(path, &(tiny_options){.arch = arch,
                                                     .layers = layers,
                                                     .width = 128,
                                                     .kv_heads = row->typical.kv_heads == 1 ? 1 : 2,
                                                     .ffn = 192,
                                                     .vocab = 128,
                                                     .experts = experts ? 4 : 0,
                                                     .seed = 1}));
}

static tn_status write_logits(const char *path, FILE *out) {
    tn_model *model;
    tn_session *session = NULL;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 64;
    p.n_ubatch = p.n_batch = 1;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    p.no_repack = true;
    p.devices[0] = "cpu";
    TN_TRY(tn_model_open(path, &(tn_model_params){.no_mmap = true}, &model));
    const int32_t n_vocab = tn_model_get_info(model).n_vocab, head[2] = {REFERENCE_TOKENS, n_vocab};
    tn_token tokens[REFERENCE_TOKENS];
    rng r = {3};
    for (int i = 0; i < REFERENCE_TOKENS; i++) tokens[i] = (tn_token)rng_below(&r, (uint64_t)n_vocab);
    fwrite(head, sizeof head, 1, out);
    fwrite(tokens, sizeof tokens, 1, out);
    tn_status status = tn_session_open(model, &p, &session);
    for (int i = 0; i < REFERENCE_TOKENS && status == TN_OK; i++) {
        status = tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &tokens[i]});
        if (status == TN_OK) fwrite(tn_session_logits(session, 0), sizeof(float), (size_t)n_vocab, out);
    }
    tn_session_free(session);
    tn_model_close(model);
    return status;
}

/* In the process that computes a reference: writes the logits of $TENON_REFERENCE_OF beside it and ends. */
static void serve_reference(void) {
    const char *path = getenv("TENON_REFERENCE_OF");
    char name[600];
    if (!path) return;
    snprintf(name, sizeof name, "%.580s.logits", path);
    FILE *out = fopen(name, "wb");
    tn_status status = out ? write_logits(path, out) : TN_E_IO;
    if (out && fclose(out) != 0) status = TN_E_IO;
    if (status != TN_OK) fprintf(stderr, "reference of %s: %s: %s\n", path, tn_status_name(status), tn_error());
    exit(status == TN_OK ? 0 : 1);
}

/* The level of the kernels is chosen once per process, so the generic ones need a process of their own. */
static void compute_reference(const char *path) {
    char program[512], variable[600];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) fail_msg("the test's own program is not known");
    program[length] = '\0';
    snprintf(variable, sizeof variable, "TENON_REFERENCE_OF=%s", path);
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **environment = calloc(n + 3, sizeof *environment);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "TENON_CPU=", 10) != 0) environment[kept++] = environ[i];
    environment[kept++] = variable;
    environment[kept] = "TENON_CPU=generic";
    pid_t child;
    int status = -1;
    if (posix_spawn(&child, program, NULL, NULL, (char *[]){program, NULL}, environment) == 0)
        waitpid(child, &status, 0);
    free(environment);
    if (status != 0) fail_msg("no reference logits of %s (status %d)", path, status);
}

static const char *tiny_path(const char *name) {
    const char *path = in_temporary(name, ".gguf");
    if (access(path, R_OK) != 0) write_named(path, name);
    return path;
}

/* ---- Loading ---- */

static bool read_logits(const char *path, reference_model *m) {
    size_t size;
    if (!(m->memory = read_file(path, &size))) return false;
    const int32_t *head = m->memory;
    m->n_tokens = head[0];
    m->n_vocab = head[1];
    m->tokens = (tn_token *)m->memory + 2;
    m->logits = (float *)m->memory + 2 + m->n_tokens;
    return size == 4 * (2 + (size_t)m->n_tokens * (1 + (size_t)m->n_vocab));
}

bool golden_load(const char *relative, reference_model *m) {
    char name[600];
    memset(m, 0, sizeof *m);
    for (int logits = 0; logits < 2; logits++) {
        snprintf(name, sizeof name, "%.512s.%s", relative, logits ? "logits" : "gguf");
        const char *path = name[0] == '/' ? name : golden_path(name);
        if (!path) return false;
        if (!logits) snprintf(m->path, sizeof m->path, "%.511s", path);
        if (logits && !read_logits(path, m)) return false;
    }
    return true;
}

static const char *golden_arch_path(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s%s.gguf", name[0] == '/' ? "" : "archs/", name);
    return name[0] == '/' ? path : golden_path(path);
}

void reference_load(const char *name, reference_model *m) {
    char path[600];
    if (golden_run && golden_arch_path(name)) {
        snprintf(path, sizeof path, "%s%s", name[0] == '/' ? "" : "archs/", name);
        if (!golden_load(path, m)) fail_msg("the logits of %s cannot be read", path);
        return;
    }
    memset(m, 0, sizeof *m);
    snprintf(m->path, sizeof m->path, "%s", tiny_path(name));
    snprintf(path, sizeof path, "%s.logits", m->path);
    if (access(path, R_OK) != 0) compute_reference(m->path);
    if (!read_logits(path, m)) fail_msg("%s cannot be read", path);
}

const char *reference_path(const char *name) {
    const char *golden = golden_run ? golden_arch_path(name) : NULL;
    return golden ? golden : tiny_path(name);
}

void reference_free(reference_model *m) { free(m->memory); }

/* Devices last as long as a process, so each source has one of its own: tests may give them the same names. */
int run_on_models(bool with_golden, const struct CMUnitTest *tests, size_t n_tests, CMFixtureFunction set_up,
                  CMFixtureFunction tear_down) {
    serve_reference();
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    const bool golden = getenv("TENON_LLM_FOLDER") || (with_golden && golden_path("archs/llama-dense.gguf"));
    int status = 0;
    if (!getenv("TENON_LLM_FOLDER")) {
        fflush(NULL);
        const pid_t child = golden ? fork() : 0;
        if (child == 0) {
            status = _cmocka_run_group_tests("tiny models", tests, n_tests, set_up, tear_down);
            if (!golden && with_golden) print_message("golden models: none here (set TENON_GOLDEN)\n");
            if (golden) exit(status != 0);
            return status;
        }
        if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    }
    golden_run = true;
    return (status != 0) + _cmocka_run_group_tests("golden models", tests, n_tests, set_up, tear_down);
}

/* ---- Comparison ---- */

void nmse_add(nmse *n, const float *got, const float *want, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        double d = (double)got[i] - want[i];
        n->error += d * d;
        n->scale += (double)want[i] * want[i];
    }
}

double nmse_value(const nmse *n) { return isfinite(n->error) && n->scale > 0 ? n->error / n->scale : INFINITY; }
