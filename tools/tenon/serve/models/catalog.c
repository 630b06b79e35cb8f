/* The list of models: the files of a folder, the sections of a preset file, and downloads. */
#include "serve/models/catalog.h"

#include "cli/text_input.h"
#include "hub/hub.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Updates the model of this name, or adds it. */
static struct served *note_model(struct server *server, const char *path, const char *name, const char *repo) {
    struct served *served = NULL;
    for (size_t i = 0; name && i < server->n_models && !served; i++)
        if (strcmp(server->models[i]->alias, name) == 0) served = server->models[i];
    if (!served && !(served = models_add(server, path, name))) return NULL;
    if (!served->has_thread) snprintf(served->path, sizeof served->path, "%s", path);
    snprintf(served->repo, sizeof served->repo, "%s", repo ? repo : "");
    served->missing = served->hidden = false;
    return served;
}

/* ---- A folder ---- */

/* Of a split model only the first file is listed. */
static bool is_first_part(const char *name) {
    const char *dot = strrchr(name, '.'), *part = strstr(name, "-of-");
    if (name[0] == '.' || !dot || strcasecmp(dot, ".gguf") != 0) return false;
    return !part || part - name < 6 || strncmp(part - 6, "-00001", 6) == 0;
}

static int is_model(const struct dirent *entry) { return is_first_part(entry->d_name); }

static int scan_folder(struct server *server, const char *folder) {
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, is_model, alphasort), code = EXIT_OK;
    if (n < 0) return fail("cannot read the folder %s", folder);
    for (int i = 0; i < n; i++) {
        char path[4096], name[256];
        bool fits = (size_t)snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < sizeof path;
        snprintf(name, sizeof name, "%.*s", (int)(strlen(entries[i]->d_name) - strlen(".gguf")), entries[i]->d_name);
        if (!code && (!fits || !note_model(server, path, name, NULL))) code = fail_status(TN_E_NOMEM, "%s", folder);
        free(entries[i]);
    }
    free(entries);
    return code;
}

/* ---- Downloads ---- */

/* The quantization in a file's name: "x-Q4_K_M.gguf" has Q4_K_M. */
static void quant_of(const char *path, char out[32]) {
    const char *name = strrchr(path, '/'), *from = name ? name + 1 : path, *best = NULL;
    size_t length = 0;
    for (const char *at = from; *at; at++) {
        if (at != from && at[-1] != '-' && at[-1] != '.') continue;
        const size_t n = strcspn(at, "-.");
        static const char *const begins[] = {"Q", "IQ", "F16", "F32", "BF16", "MXFP", "TQ", "NVFP"};
        for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
            if (strncasecmp(at, begins[i], strlen(begins[i])) == 0 && n < 32 && n > 1) best = at, length = n;
    }
    snprintf(out, 32, "%.*s", (int)length, best ? best : "");
    for (char *c = out; *c; c++) *c = (char)toupper((unsigned char)*c);
}

struct cache_scan {
    struct server *server;
    const char *wanted; /* OWNER/NAME[:QUANT] to find, "" for any, or NULL: note all */
    char *path;         /* of the one found */
    size_t size;
    bool failed;
};

static void scan_repository(struct cache_scan *scan, const char *root, const char *entry) {
    char folder[HUB_PATH + 300], repo[256];
    struct hub_files files = {0};
    snprintf(repo, sizeof repo, "%s", entry + strlen("models--"));
    char *dashes = strstr(repo, "--");
    if (!dashes) return;
    memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    *dashes = '/';
    snprintf(folder, sizeof folder, "%s/%s/snapshots", root, entry);
    hub_list_cached(folder, &files);
    for (size_t i = 0; i < files.count; i++) {
        char path[sizeof folder + 520], name[300], quant[32];
        const char *file = strrchr(files.list[i].path, '/');
        if (!is_first_part(file ? file + 1 : files.list[i].path)) continue;
        quant_of(files.list[i].path, quant);
        snprintf(path, sizeof path, "%s/%s", folder, files.list[i].path);
        snprintf(name, sizeof name, "%s%s%s", repo, *quant ? ":" : "", quant);
        if (scan->wanted) {
            if (!*scan->wanted || strcasecmp(scan->wanted, name) == 0 || strcmp(scan->wanted, repo) == 0)
                snprintf(scan->path, scan->size, "%s", path);
            continue;
        }
        if (strlen(name) >= sizeof((struct served *)0)->alias || strlen(path) >= 4096) continue;
        struct served *served = note_model(scan->server, path, name, name);
        if (served) served->from_cache = true;
        scan->failed = scan->failed || !served;
    }
    free(files.list);
}

static void scan_cache(struct cache_scan *scan) {
    char root[HUB_PATH];
    struct dirent **entries = NULL;
    int n = hub_cache_root(root) ? scandir(root, &entries, NULL, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        if (strncmp(entries[i]->d_name, "models--", 8) == 0) scan_repository(scan, root, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

bool catalog_find_download(const char *repo, char *path, size_t size) {
    struct cache_scan scan = {.wanted = repo, .path = path, .size = size};
    *path = '\0';
    scan_cache(&scan);
    return *path != '\0';
}

bool catalog_has_downloads(void) {
    char path[HUB_PATH + 900];
    return catalog_find_download("", path, sizeof path);
}

/* ---- Presets ---- */

/* A section of a file of presets. */
struct preset {
    char name[256], path[4096], repo[256];
    bool dedup, startup;
};

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) *--end = '\0';
    return text;
}

static void set_preset(struct preset *p, const char *key, const char *value) {
    const bool on = strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0 || strcasecmp(value, "on") == 0;
    while (*key == '-') key++;
    if (strcmp(key, "model") == 0 || strcmp(key, "m") == 0 || strcmp(key, "LLAMA_ARG_MODEL") == 0)
        snprintf(p->path, sizeof p->path, "%s", value);
    else if (strcmp(key, "hf-repo") == 0 || strcmp(key, "hf") == 0 || strcmp(key, "LLAMA_ARG_HF_REPO") == 0)
        snprintf(p->repo, sizeof p->repo, "%s", value);
    else if (strcmp(key, "dedup-cache-models") == 0)
        p->dedup = on;
    else if (strcmp(key, "load-on-startup") == 0)
        p->startup = on;
    else
        warn("presets: %s of [%s] has no effect: options apply to all models, on the command line", key, p->name);
}

/* Hides the download that a preset stands for. */
static void hide_download(struct server *server, const char *path) {
    for (size_t i = 0; i < server->n_models; i++)
        if (server->models[i]->from_cache && strcmp(server->models[i]->path, path) == 0)
            server->models[i]->hidden = true;
}

static bool note_preset(struct server *server, struct preset *p, const struct preset *all) {
    if (!*p->name || strcmp(p->name, "*") == 0) return true;
    if (!*p->path && *p->repo) catalog_find_download(p->repo, p->path, sizeof p->path);
    struct served *served = note_model(server, p->path, p->name, p->repo);
    if (!served) return false;
    if ((p->dedup || all->dedup) && *p->path) hide_download(server, p->path);
    served->wanted = served->wanted || (p->startup && !served->has_thread && !server->started_once);
    return true;
}

static int read_presets(struct server *server, const char *file) {
    char *text = NULL, *rest = NULL;
    size_t size;
    struct preset p = {0}, all = {0};
    bool fine = true;
    int code = read_text_file(file, &text, &size);
    if (code) return code;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        line = trim(line);
        char *equals = strchr(line, '='), *end = strchr(line, ']');
        if (*line == '[' && end) {
            fine = fine && note_preset(server, &p, &all);
            p = (struct preset){0};
            *end = '\0';
            snprintf(p.name, sizeof p.name, "%s", trim(line + 1));
        } else if (*line && *line != '#' && *line != ';' && equals) {
            *equals = '\0';
            set_preset(strcmp(p.name, "*") == 0 ? &all : &p, trim(line), trim(equals + 1));
        }
    }
    fine = fine && note_preset(server, &p, &all);
    free(text);
    return fine ? EXIT_OK : fail_status(TN_E_NOMEM, "%s", file);
}

/* ---- All ---- */

int models_find_all(struct server *server) {
    const char *folder = args_text(server->args, "models-dir"), *presets = args_text(server->args, "models-preset");
    int code = folder ? scan_folder(server, folder) : EXIT_OK;
    struct cache_scan scan = {.server = server};
    if (!code && server->use_cache) scan_cache(&scan);
    if (!code && presets) code = read_presets(server, presets);
    if (!code && scan.failed) code = fail_status(TN_E_NOMEM, "models");
    if (!code && server->n_models == 0 && folder) code = fail("no GGUF files in %s", folder);
    if (!code && server->n_models == 0) code = fail("no models to serve");
    return code;
}

void models_reload(struct server *server) {
    if (!server->on_demand) return;
    for (size_t i = 0; i < server->n_models; i++) server->models[i]->missing = true;
    models_find_all(server);
    size_t n = 0;
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *served = server->models[i];
        const bool used = served->has_thread || served->n_alive || served->waiting || served->wanted;
        if (!served->missing || used) {
            served->hidden = served->hidden || served->missing;
            server->models[n++] = served;
            continue;
        }
        if (server->current == served) server->current = NULL;
        models_drop(served);
    }
    server->n_models = n;
}
