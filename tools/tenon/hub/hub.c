/* Models of a hub's repositories: which files there are, and where they are in the cache.
 *
 * models--OWNER--REPO/refs/main        the commit that was seen last
 * models--OWNER--REPO/blobs/ETAG       contents; ETAG is the SHA-256 of large files
 * models--OWNER--REPO/snapshots/COMMIT/PATH   links to the blobs */
#include "hub/hub.h"

#include "hub/http.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hub_repo {
    const struct args *args;
    const char *file;          /* wanted, or NULL for the one of the quant */
    char name[256], quant[64]; /* owner/repo; "" for the best quant */
    char folder[HUB_PATH];     /* in the cache */
    char root[HUB_PATH];
    char endpoint[512];
    char token[512]; /* or "" */
};

/* ---- Names ---- */

static bool is_name(const char *text, size_t length) {
    if (!length || text[0] == '.') return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i])) return false;
    return true;
}

/* A path that stays within its folder. */
static bool is_safe_path(const char *path) {
    if (!*path || *path == '/' || strlen(path) >= 512) return false;
    for (const char *at = path; *at; at += strcspn(at, "/"), at += *at == '/')
        if (strcspn(at, "/") == 0 || strncmp(at, "..", 2) == 0 || *at == '.') return false;
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < 32 || *c == '\\' || *c == 127) return false;
    return true;
}

static int parse_repo(struct hub_repo *r, const char *text) {
    static const char *const prefixes[] = {"https://huggingface.co/", "huggingface.co/", "hf.co/", "https://hf.co/"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) {
            text += strlen(prefixes[i]);
            break;
        }
    const char *colon = strchr(text, ':'), *slash = strchr(text, '/');
    const size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (!slash || (colon && slash > colon) || length >= sizeof r->name || !is_name(text, (size_t)(slash - text)) ||
        !is_name(slash + 1, (size_t)(text + length - slash - 1)) || (colon && !is_name(colon + 1, strlen(colon + 1))))
        return fail("\"%s\" is not the name of a repository: it looks like owner/repo or owner/repo:Q4_K_M", text);
    snprintf(r->name, sizeof r->name, "%.*s", (int)length, text);
    snprintf(r->quant, sizeof r->quant, "%s", colon ? colon + 1 : "");
    return EXIT_OK;
}

/* HF_TOKEN, --hf-token, or the file that Hugging Face's login writes. */
static void read_token(struct hub_repo *r) {
    const char *token = args_text(r->args, "hf-token"), *home = getenv("HF_HOME"), *user = getenv("HOME");
    char path[HUB_PATH];
    if (token) snprintf(r->token, sizeof r->token, "%s", token);
    if (token || (!home && !user)) return;
    snprintf(path, sizeof path, home ? "%s/token" : "%s/.cache/huggingface/token", home ? home : user);
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (!fgets(r->token, sizeof r->token, file)) r->token[0] = '\0';
    r->token[strcspn(r->token, "\r\n ")] = '\0';
    fclose(file);
}

static int open_repo(struct hub_repo *r, const struct args *args, const char *text) {
    const char *endpoint = getenv("HF_ENDPOINT");
    *r = (struct hub_repo){.args = args};
    int code = parse_repo(r, text);
    if (code) return code;
    if (!endpoint || !*endpoint) endpoint = getenv("MODEL_ENDPOINT");
    snprintf(r->endpoint, sizeof r->endpoint, "%s", endpoint && *endpoint ? endpoint : "https://huggingface.co");
    for (size_t n = strlen(r->endpoint); n && r->endpoint[n - 1] == '/'; n--) r->endpoint[n - 1] = '\0';
    if (!hub_cache_root(r->root)) return fail("there is no folder for downloads: set HOME or HF_HUB_CACHE");
    const char *slash = strchr(r->name, '/');
    snprintf(r->folder, sizeof r->folder, "%.3500s/models--%.*s--%s", r->root, (int)(slash - r->name), r->name,
             slash + 1);
    read_token(r);
    return EXIT_OK;
}

/* ---- Files of the repository ---- */

struct hub_body {
    char *text;
    size_t size;
};

static bool keep_body(void *user, const struct http_response *response, const void *bytes, size_t size) {
    enum { MOST = 64 << 20 };
    struct hub_body *body = user;
    (void)response;
    char *longer = body->size + size < MOST ? realloc(body->text, body->size + size + 1) : NULL;
    if (!longer) return false;
    memcpy(longer + body->size, bytes, size);
    body->text = longer;
    body->size += size;
    body->text[body->size] = '\0';
    return true;
}

/* A page of JSON; asks again when the server is busy. */
static int get_page(const struct hub_repo *r, const char *url, json_t **root, struct http_response *response) {
    struct hub_body body = {0};
    for (int attempt = 0;; attempt++) {
        struct http_request request = {
            .url = url, .token = *r->token ? r->token : NULL, .write = keep_body, .user = &body};
        const bool complete = http_perform(&request, response);
        if (complete && response->status == 200) break;
        free(body.text);
        body = (struct hub_body){0};
        const bool again = complete ? response->status == 429 || response->status >= 500 : response->cut;
        if (!again || attempt == 3 || interrupted()) return EXIT_ERROR;
        wait_to_retry(attempt, complete ? response->retry_after : -1);
    }
    *root = body.text ? json_loadb(body.text, body.size, 0, NULL) : NULL;
    free(body.text);
    if (!*root) snprintf(response->error, sizeof response->error, "the answer is not JSON");
    return *root ? EXIT_OK : EXIT_ERROR;
}

static void add_listed(const json_t *list, struct hub_files *files) {
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) {
        const char *path = json_string_value(json_object_get(item, "path"));
        const char *kind = json_string_value(json_object_get(item, "type"));
        json_t *lfs = json_object_get(item, "lfs");
        json_t *size = json_object_get(lfs ? lfs : item, "size");
        if (path && is_safe_path(path) && (!kind || strcmp(kind, "file") == 0))
            hub_files_add(files, path, (uint64_t)json_integer_value(size),
                          json_string_value(json_object_get(lfs, "oid")));
    }
}

static int list_online(const struct hub_repo *r, struct hub_files *files, struct http_response *response) {
    char url[2048];
    snprintf(url, sizeof url, "%s/api/models/%s/tree/main?recursive=true", r->endpoint, r->name);
    for (int page = 0; page < 100; page++) {
        json_t *root = NULL;
        int code = get_page(r, url, &root, response);
        if (code) return code;
        add_listed(root, files);
        json_decref(root);
        if (!response->next[0]) break;
        snprintf(url, sizeof url, "%s", response->next);
    }
    return EXIT_OK;
}

/* ---- Cached snapshots ---- */

static bool read_ref(const struct hub_repo *r, char commit[160]) {
    char path[HUB_PATH + 16];
    snprintf(path, sizeof path, "%s/refs/main", r->folder);
    FILE *file = fopen(path, "r");
    bool read = file && fgets(commit, 160, file);
    if (file) fclose(file);
    if (read) commit[strcspn(commit, "\r\n ")] = '\0';
    return read && is_name(commit, strlen(commit));
}

static bool write_ref(const struct hub_repo *r, const char *commit) {
    char path[HUB_PATH + 16], partial[HUB_PATH + 64];
    snprintf(path, sizeof path, "%s/refs/main", r->folder);
    snprintf(partial, sizeof partial, "%s.%d", path, (int)getpid());
    if (!make_folders_of(path)) return false;
    FILE *file = fopen(partial, "w");
    if (!file) return false;
    const bool written = fputs(commit, file) >= 0;
    return fclose(file) == 0 && written && rename(partial, path) == 0;
}

static int fail_choice(const struct hub_repo *r, const struct hub_files *files) {
    if (r->file)
        fail("%s has no file %s", r->name, r->file);
    else if (*r->quant)
        fail("%s has no GGUF file for %s", r->name, r->quant);
    else
        return fail("%s has no GGUF files; tenon convert makes them from a folder of safetensors", r->name);
    for (size_t i = 0, n = 0; i < files->count && n < 40; i++) {
        const size_t length = strlen(files->list[i].path);
        if (length > 5 && strcmp(files->list[i].path + length - 5, ".gguf") == 0 && ++n)
            fprintf(stderr, "  %s\n", files->list[i].path);
    }
    return EXIT_ERROR;
}

/* From the cache alone. `reason` is why. */
static int find_cached(const struct hub_repo *r, const char *reason, char path[HUB_PATH]) {
    char commit[160], folder[HUB_PATH + 256], part[512];
    struct hub_files files = {0};
    size_t chosen = SIZE_MAX;
    if (read_ref(r, commit)) {
        snprintf(folder, sizeof folder, "%s/snapshots/%s", r->folder, commit);
        if (hub_list_cached(folder, &files) == EXIT_OK) chosen = hub_choose(&files, r->quant, r->file);
    }
    int code = EXIT_OK;
    if (chosen == SIZE_MAX)
        code = fail("%s%s%s was not downloaded before (%s)", r->name, *r->quant ? ":" : "", r->quant, reason);
    for (int k = 0; !code && k < hub_parts(files.list[chosen].path); k++) {
        hub_part_name(files.list[chosen].path, k, part);
        if (hub_choose(&files, "", part) == SIZE_MAX)
            code = fail("%s: part %s was not downloaded before (%s)", r->name, part, reason);
    }
    if (!code && snprintf(path, HUB_PATH, "%s/%s", folder, files.list[chosen].path) >= HUB_PATH)
        code = fail("the path of the cache is too long");
    free(files.list);
    return code;
}

/* ---- Downloads ---- */

static void encode_path(const char *path, char *out, size_t size) {
    size_t n = 0;
    for (; *path && n + 4 < size; path++) {
        if (isalnum((unsigned char)*path) || strchr("/._-~", *path))
            out[n++] = *path;
        else
            n += (size_t)snprintf(out + n, size - n, "%%%02X", (unsigned char)*path);
    }
    out[n] = '\0';
}

static bool is_sha256(const char *text) { return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64; }

/* The link from the snapshot to the blob. */
static int link_snapshot(const struct hub_repo *r, const char *commit, const char *name, const char *etag,
                         char path[HUB_PATH]) {
    char target[1024] = "../../", found[1024];
    if (snprintf(path, HUB_PATH, "%s/snapshots/%s/%s", r->folder, commit, name) >= HUB_PATH)
        return fail("the path of the cache is too long");
    size_t n = strlen(target);
    for (const char *c = name; (c = strchr(c, '/')); c++) n += (size_t)snprintf(target + n, sizeof target - n, "../");
    snprintf(target + n, sizeof target - n, "blobs/%s", etag);
    const ssize_t length = readlink(path, found, sizeof found - 1);
    if (length >= 0 && (size_t)length == strlen(target) && memcmp(found, target, (size_t)length) == 0) return EXIT_OK;
    if (length >= 0) unlink(path);
    if (!make_folders_of(path) || (symlink(target, path) != 0 && errno != EEXIST))
        return fail("cannot write %s: %m", path);
    return EXIT_OK;
}

/* Asks for size, checksum and commit, without following the redirect to the storage, which does not know them. */
static int ask_about(const struct hub_repo *r, const char *url, const char *name, struct http_response *h) {
    struct http_request head = {.url = url, .token = *r->token ? r->token : NULL, .head = true, .stay = true};
    for (int attempt = 0; attempt < 4; attempt++) {
        bool complete = http_perform(&head, h);
        if (complete && h->status / 100 == 3 && !h->linked_etag[0] && !h->commit[0]) { /* a repository that moved */
            head.stay = false;
            complete = http_perform(&head, h);
        }
        if (complete && (h->status == 200 || h->status / 100 == 3)) return EXIT_OK;
        const bool again = complete ? h->status == 429 || h->status >= 500 : h->cut;
        if (!again || interrupted() || attempt == 3) break;
        wait_to_retry(attempt, complete ? h->retry_after : -1);
    }
    return fail_http(name, h);
}

static int fetch_part(const struct hub_repo *r, const struct hub_file *file, char commit[160], char path[HUB_PATH]) {
    char url[4096], encoded[2048], partial[HUB_PATH + 272], blob[HUB_PATH + 256], lock[HUB_PATH + 512];
    struct http_response h;
    encode_path(file->path, encoded, sizeof encoded);
    /* All parts of a split model are of one commit. */
    snprintf(url, sizeof url, "%s/%s/resolve/%s/%s", r->endpoint, r->name, *commit ? commit : "main", encoded);
    int code = ask_about(r, url, file->path, &h);
    if (code) return code;
    const char *etag = h.linked_etag[0] ? h.linked_etag : file->sha256[0] ? file->sha256 : h.etag;
    if (!is_name(etag, strlen(etag))) return fail("%s: the server sent no usable ETag", file->path);
    if (h.commit[0] && is_name(h.commit, strlen(h.commit))) snprintf(commit, 160, "%s", h.commit);
    if (!*commit) snprintf(commit, 160, "main");
    snprintf(blob, sizeof blob, "%s/blobs/%s", r->folder, etag);
    snprintf(partial, sizeof partial, "%s.incomplete", blob);
    snprintf(lock, sizeof lock, "%s/.locks/%s/%s.lock", r->root, strrchr(r->folder, '/') + 1, etag);
    const uint64_t size = h.linked_size ? h.linked_size : h.status == 200 && h.length ? h.length : file->size;
    code = download_file(&(struct download){.url = url,
                                            .token = *r->token ? r->token : NULL,
                                            .name = file->path,
                                            .size = size,
                                            .sha256 = is_sha256(etag) ? etag : NULL,
                                            .tag = etag == h.etag ? etag : NULL,
                                            .partial = partial,
                                            .path = blob,
                                            .lock = lock});
    return code ? code : link_snapshot(r, commit, file->path, etag, path);
}

static int fetch_chosen(const struct hub_repo *r, const struct hub_files *files, size_t chosen, char path[HUB_PATH]) {
    const struct hub_file *first = &files->list[chosen];
    const int parts = hub_parts(first->path);
    char commit[160] = "", part_path[HUB_PATH], name[512];
    for (int k = 0; k < parts; k++) {
        hub_part_name(first->path, k, name);
        const size_t at = hub_choose(files, "", name);
        if (at == SIZE_MAX) return fail("%s: part %s is missing in the repository", r->name, name);
        int code = fetch_part(r, &files->list[at], commit, part_path);
        if (code) return code;
        if (k == 0) snprintf(path, HUB_PATH, "%s", part_path);
    }
    return write_ref(r, commit) ? EXIT_OK : fail("cannot write %s/refs/main: %m", r->folder);
}

int hub_fetch(const struct args *args, const char *repo, const char *file, char path[HUB_PATH]) {
    struct hub_repo *r = args_keep(args, NULL, sizeof *r);
    struct hub_files files = {0};
    struct http_response response = {0};
    if (!r) return fail("out of memory");
    int code = open_repo(r, args, repo);
    if (code) return code;
    r->file = file;
    if (args_flag(args, "offline")) return find_cached(r, "--offline", path);
    if (list_online(r, &files, &response) != EXIT_OK) {
        char commit[160];
        free(files.list);
        if (!interrupted() && response.error[0] && read_ref(r, commit)) {
            warn("%s: %s; using what was downloaded before", r->name, response.error);
            return find_cached(r, response.error, path);
        }
        return fail_http(r->name, &response);
    }
    const size_t chosen = hub_choose(&files, r->quant, file);
    code = chosen == SIZE_MAX ? fail_choice(r, &files) : fetch_chosen(r, &files, chosen, path);
    free(files.list);
    return code;
}
