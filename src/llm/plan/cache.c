/* The cache of session plans: a folder of saved plans, named after a hash of their inputs. */
#include "llm/plan/saved.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A plan of 80 layers takes about half a megabyte. */
enum { DEFAULT_FILES = 64, DEFAULT_BYTES = 64 << 20 };
/* With the default effort, adopting a plan takes as long as making it: both compare the shapes of all graphs, a tenth
 * of a second for 80 layers. Plans that took longer are those whose packing took long. */
enum { DEFAULT_MIN_MS = 300 };
/* Unrenamed files were left behind by killed processes. */
enum { PARTIAL_SECONDS = 3600 };
enum { NAME_DIGITS = 32 };
static const char plan_suffix[] = ".plan";

/* ---- Names ---- */

static tn_status cache_file_path(const tn_plan_cache *cache, const tn__plan_keys *keys, char **path) {
    uint64_t rest = tn__hash_combine(tn__hash_combine(keys->version, keys->params), keys->devices);
    tn__text t = {0};
    tn__text_printf(&t, "%s/%016llx%016llx%s", cache->folder, (unsigned long long)keys->model,
                    (unsigned long long)rest, plan_suffix);
    return tn__text_take(&t, path);
}

/* Whether a file is one of the cache's plans or, with `partial`, one that was not finished. Other files are not
 * touched. */
static bool is_cache_name(const char *name, bool partial) {
    static const char end[] = ".partial";
    const size_t length = strlen(name);
    if (strspn(name, "0123456789abcdef") != NAME_DIGITS) return false;
    if (!partial) return strcmp(name + NAME_DIGITS, plan_suffix) == 0;
    return strncmp(name + NAME_DIGITS, plan_suffix, sizeof plan_suffix - 1) == 0 &&
           length > NAME_DIGITS + sizeof plan_suffix + sizeof end && strcmp(name + length - sizeof end + 1, end) == 0;
}

/* Creates a folder and those above it. */
static void make_cache_folder(const char *folder) {
    tn__text t = {0};
    tn__text_printf(&t, "%s", folder);
    for (char *at = t.status == TN_OK ? strchr(t.data + 1, '/') : NULL; at; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(t.data, 0777); /* a failure shows when the file is written */
        *at = '/';
    }
    (void)mkdir(folder, 0777);
    tn__text_free(&t);
}

/* ---- Limits ---- */

typedef struct cached_file {
    char name[NAME_DIGITS + sizeof plan_suffix];
    struct timespec used;
    size_t bytes;
} cached_file;

static int compare_last_use(const void *a, const void *b) {
    const cached_file *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

static tn_status list_cached_files(DIR *folder, cached_file **files, size_t *n) {
    size_t capacity = 0;
    for (struct dirent *e; (e = readdir(folder));) {
        const bool partial = is_cache_name(e->d_name, true);
        struct stat info;
        if ((!partial && !is_cache_name(e->d_name, false)) ||
            fstatat(dirfd(folder), e->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
            continue;
        if (partial) {
            if (time(NULL) - info.st_mtim.tv_sec > PARTIAL_SECONDS) (void)unlinkat(dirfd(folder), e->d_name, 0);
            continue;
        }
        if (*n == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            cached_file *grown = tn_realloc(*files, capacity * sizeof *grown);
            if (!grown) return TN_E_NOMEM;
            *files = grown;
        }
        cached_file *f = &(*files)[(*n)++];
        memcpy(f->name, e->d_name, sizeof f->name);
        f->used = info.st_mtim;
        f->bytes = (size_t)info.st_size;
    }
    return TN_OK;
}

/* Removes the least recently used plans until the limits hold. */
static tn_status trim_cache(const tn_plan_cache *cache) {
    const size_t max_files = cache->max_files ? cache->max_files : DEFAULT_FILES;
    const size_t max_bytes = cache->max_bytes ? cache->max_bytes : DEFAULT_BYTES;
    DIR *folder = opendir(cache->folder);
    if (!folder) return tn_fail(TN_E_IO, "cannot list %s: %s", cache->folder, strerror(errno));
    cached_file *files = NULL;
    size_t n = 0, bytes = 0;
    tn_status status = list_cached_files(folder, &files, &n);
    if (status == TN_OK && n) qsort(files, n, sizeof *files, compare_last_use);
    for (size_t i = 0; i < n; i++) bytes += files[i].bytes;
    for (size_t i = 0; status == TN_OK && i < n && (n - i > max_files || bytes > max_bytes); i++) {
        (void)unlinkat(dirfd(folder), files[i].name, 0);
        bytes -= files[i].bytes;
    }
    tn_free(files);
    closedir(folder);
    return status;
}

/* ---- Using plans ---- */

/* If more memory is free now than when the placement was chosen, it may no longer be the best, unless nothing was
 * lacking then. Differences of up to a hundredth of the device are ignored. */
static bool is_still_best(const tn_session_plan *p, bool repack_wanted) {
    bool whole = !p->sequential && p->placement.repack == repack_wanted;
    for (int32_t i = 0; i < p->model->h.n_layer + 2; i++) whole = whole && p->placement.device_of_layer[i] == 0;
    for (size_t d = 0; !whole && d < p->placement.n_devices; d++) {
        const size_t then = p->saved->devices[d].free, now = tn__saved_free_of(p, d);
        if (now > then && now - then > p->placement.budgets[d].total / 100) return false;
    }
    return true;
}

/* Adopts the cached plan if it is valid, fits, and is still the best choice. Otherwise the plan is
 * unchanged. */
static tn_status use_cached(tn_session_plan *p, const char *path, bool *used) {
    tn__saved_plan saved;
    const bool repack = p->placement.repack;
    *used = false;
    tn_status status = tn__saved_read(path, &saved);
    if (status == TN_OK) {
        p->saved = &saved;
        status = tn__saved_adopt_into(p);
        *used = status == TN_OK && p->fits && is_still_best(p, repack);
        p->saved = NULL;
        tn__saved_free(&saved);
    }
    if (*used) {
        (void)utimensat(AT_FDCWD, path, NULL, 0); /* used now: others are evicted first */
        tn_log(TN_LOG_INFO, "using the session plan from %s", path);
        return TN_OK;
    }
    if (status == TN_E_NOMEM || status == TN_E_ABORTED) return status;
    if (status != TN_OK && status != TN_E_IO) { /* TN_E_IO: there is none */
        tn_log(TN_LOG_INFO, "cached plan not used: %s", tn_error());
        (void)unlink(path); /* it would be refused every time */
    }
    p->adopted = p->sequential = false;
    p->placement.repack = repack;
    return TN_OK;
}

static tn_status keep_plan(tn_session_plan *p, const char *path) {
    tn__saved_plan saved;
    TN_TRY(tn__saved_from(p, &saved));
    make_cache_folder(p->cache->folder);
    tn_status status = tn__saved_write(&saved, path);
    tn__saved_free(&saved);
    return status == TN_OK ? trim_cache(p->cache) : status;
}

/* Processor time of the calling thread, which does all the planning: the same on a busy machine. */
static uint64_t thread_ms(void) {
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static tn_status choose_with_cache(tn_session_plan *p) {
    const int32_t min_ms = p->cache->min_ms ? p->cache->min_ms : DEFAULT_MIN_MS;
    const tn__plan_keys keys = tn__plan_keys_of(p);
    char *path;
    bool used = false;
    TN_TRY(cache_file_path(p->cache, &keys, &path));
    tn_status status = use_cached(p, path, &used);
    const uint64_t begin = thread_ms();
    if (status == TN_OK && !used) status = tn__session_plan_choose(p);
    const uint64_t ms = thread_ms() - begin;
    /* The plan is valid even if it cannot be cached. */
    if (status == TN_OK && !used && p->fits && (min_ms < 0 || ms >= (uint64_t)min_ms) && keep_plan(p, path) != TN_OK)
        tn_log(TN_LOG_WARN, "session plan not cached: %s", tn_error());
    tn_free(path);
    return status;
}

tn_status tn_session_plan_cached(tn_model *model, const tn_session_params *params, const tn_plan_cache *cache,
                                 tn_session_plan **plan) {
    if (!model || !cache || !cache->folder || !cache->folder[0] || !plan)
        return tn_fail(TN_E_INVALID, "tn_session_plan_cached: NULL argument");
    /* Such plans depend on inputs that are not part of the key. */
    if (model->loaded || (params && (params->sched || params->n_budgets)))
        return tn_session_plan_new(model, params, plan);
    tn_session_params p = params ? *params : tn_session_params_default();
    *plan = NULL;
    TN_TRY(tn__context_choose(model, &p));
    return tn__session_plan_with(model, &p, &(tn__plan_source){.cache = cache}, choose_with_cache, plan);
}

bool tn_session_plan_adopted(const tn_session_plan *plan) { return plan && plan->adopted; }
