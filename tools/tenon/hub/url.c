/* Models by URL, kept in the user's cache with the ETag that they had. */
#include "hub/http.h"
#include "hub/hub.h"
#include "hub/sha256.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

/* ROOT/HASH-NAME, where HASH stands for the URL. */
static int url_path(const char *url, char path[HUB_PATH]) {
    char root[HUB_PATH], digest[65], name[256];
    struct sha256 hash;
    const size_t length = strcspn(url, "?#");
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return fail("\"%s\" is not a URL: it begins with https:// or http://", url);
    if (!hub_download_root(root)) return fail("there is no folder for downloads: set HOME or XDG_CACHE_HOME");
    size_t begin = length;
    while (begin > 0 && url[begin - 1] != '/') begin--;
    snprintf(name, sizeof name, "%.*s", (int)(length - begin), url + begin);
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c)) *c = '_';
    if (name[0] == '.' || strlen(name) < 6 || strcmp(name + strlen(name) - 5, ".gguf") != 0)
        return fail("%s: the URL does not name a GGUF file", url);
    sha256_start(&hash);
    sha256_add(&hash, url, begin); /* parts of a split model stay together */
    sha256_text(&hash, digest);
    snprintf(path, HUB_PATH, "%.3500s/%.12s-%s", root, digest, name);
    return EXIT_OK;
}

static int fetch_one(const struct args *args, const char *url, char path[HUB_PATH]) {
    char partial[HUB_PATH + 256], lock[HUB_PATH + 16], tag_path[HUB_PATH + 16];
    struct http_response h;
    struct stat info;
    int code = url_path(url, path);
    if (code) return code;
    const bool there = stat(path, &info) == 0;
    if (args_flag(args, "offline")) return there ? EXIT_OK : fail("%s was not downloaded before (--offline)", url);
    struct http_request head = {.url = url, .head = true, .stay = true};
    bool complete = http_perform(&head, &h);
    if (complete && h.status / 100 == 3 && !h.linked_etag[0]) {
        head.stay = false;
        complete = http_perform(&head, &h);
    }
    if (!complete && there) {
        warn("%s: %s; using what was downloaded before", url, h.error);
        return EXIT_OK;
    }
    if (!complete || (h.status != 200 && h.status / 100 != 3)) return fail_http(url, &h);
    const char *tag = h.linked_etag[0] ? h.linked_etag : h.etag;
    struct sha256 hash;
    char digest[65];
    sha256_start(&hash);
    sha256_add(&hash, tag, strlen(tag));
    sha256_text(&hash, digest);
    snprintf(tag_path, sizeof tag_path, "%s.etag", path);
    snprintf(lock, sizeof lock, "%s.lock", path);
    snprintf(partial, sizeof partial, "%s.%.12s.incomplete", path, digest);
    return download_file(
        &(struct download){.url = url,
                           .name = strrchr(path, '/') + 14,
                           .size = h.linked_size ? h.linked_size : h.length,
                           .sha256 = strlen(tag) == 64 && strspn(tag, "0123456789abcdef") == 64 ? tag : NULL,
                           .tag = tag,
                           .tag_path = tag_path,
                           .partial = partial,
                           .path = path,
                           .lock = lock});
}

int hub_fetch_url(const struct args *args, const char *url, char path[HUB_PATH]) {
    char part_url[512], part_path[HUB_PATH];
    const int parts = strlen(url) < sizeof part_url ? hub_parts(url) : 1;
    if (parts == 1) return fetch_one(args, url, path);
    for (int k = 0; k < parts; k++) {
        hub_part_name(url, k, part_url);
        int code = fetch_one(args, part_url, part_path);
        if (code) return code;
        if (k == 0) snprintf(path, HUB_PATH, "%s", part_path);
    }
    return EXIT_OK;
}
