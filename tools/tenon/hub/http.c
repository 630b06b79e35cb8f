/* HTTP requests by libcurl, which is loaded when the first one is made. */
#include "hub/http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#ifdef TENON_HAS_CURL

#define CURL_DISABLE_TYPECHECK 1
#include <curl/curl.h>
#include <dlfcn.h>

static struct {
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *curl, CURLoption option, ...);
    CURLcode (*easy_perform)(CURL *curl);
    void (*easy_cleanup)(CURL *curl);
    const char *(*easy_strerror)(CURLcode code);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
} lib;

static bool load_function(void *library, const char *name, void *function, size_t size) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, size); /* ISO C has no cast from object to function pointers */
    return symbol != NULL;
}

static bool load_curl(char *error, size_t size) {
    static int state; /* 1: loaded, -1: not to be had */
    if (state) return state > 0;
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
#define LOAD(name) load_function(library, "curl_" #name, &lib.name, sizeof lib.name)
    state = library && LOAD(global_init) && LOAD(easy_init) && LOAD(easy_setopt) && LOAD(easy_perform) &&
                    LOAD(easy_cleanup) && LOAD(easy_strerror) && LOAD(slist_append) && LOAD(slist_free_all) &&
                    lib.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK
                ? 1
                : -1;
#undef LOAD
    if (state < 0) snprintf(error, size, "libcurl is not installed (Debian: apt install libcurl4)");
    return state > 0;
}

struct transfer {
    const struct http_request *request;
    struct http_response *response;
};

/* The value of a header with this name, or NULL. */
static const char *header_value(const char *line, const char *name) {
    const size_t length = strlen(name);
    if (strncasecmp(line, name, length) != 0 || line[length] != ':') return NULL;
    line += length + 1;
    return line + strspn(line, " \t");
}

static void copy_etag(const char *value, char out[160]) {
    if (strncmp(value, "W/", 2) == 0) value += 2;
    value += *value == '"';
    snprintf(out, 160, "%.*s", (int)strcspn(value, "\"\r\n"), value);
}

static void copy_next_link(const char *value, char out[2048]) {
    const char *open = strchr(value, '<'), *close = open ? strchr(open, '>') : NULL;
    if (close && strstr(close, "rel=\"next\"")) snprintf(out, 2048, "%.*s", (int)(close - open - 1), open + 1);
}

static size_t on_header(char *bytes, size_t unit, size_t count, void *user) {
    struct http_response *r = ((struct transfer *)user)->response;
    char line[4096];
    const char *v;
    snprintf(line, sizeof line, "%.*s", (int)(unit * count), bytes);
    if (strncmp(line, "HTTP/", 5) == 0 && strchr(line, ' ')) {
        r->status = strtol(strchr(line, ' '), NULL, 10);
        r->length = r->total = 0;
        r->etag[0] = '\0';
    } else if ((v = header_value(line, "Content-Length"))) {
        r->length = strtoull(v, NULL, 10);
    } else if ((v = header_value(line, "Content-Range")) && strchr(v, '/')) {
        r->total = strtoull(strchr(v, '/') + 1, NULL, 10);
    } else if ((v = header_value(line, "ETag"))) {
        copy_etag(v, r->etag);
    } else if ((v = header_value(line, "Last-Modified")) && !r->etag[0]) {
        copy_etag(v, r->etag);
    } else if ((v = header_value(line, "X-Linked-Etag")) && !r->linked_etag[0]) {
        copy_etag(v, r->linked_etag);
    } else if ((v = header_value(line, "X-Linked-Size")) && !r->linked_size) {
        r->linked_size = strtoull(v, NULL, 10);
    } else if ((v = header_value(line, "X-Repo-Commit")) && !r->commit[0]) {
        copy_etag(v, r->commit);
    } else if ((v = header_value(line, "Retry-After"))) {
        r->retry_after = *v >= '0' && *v <= '9' ? strtol(v, NULL, 10) : -1; /* dates are not read */
    } else if ((v = header_value(line, "Link"))) {
        copy_next_link(v, r->next);
    }
    return unit * count;
}

static size_t on_body(char *bytes, size_t unit, size_t count, void *user) {
    const struct transfer *t = user;
    const bool wanted = t->response->status == 200 || t->response->status == 206;
    if (!wanted || !t->request->write) return unit * count;
    return t->request->write(t->request->user, t->response, bytes, unit * count) ? unit * count : 0;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)user, (void)a, (void)b, (void)c, (void)d;
    return interrupted();
}

static long seconds_from(const char *variable, long fallback) {
    const char *text = getenv(variable);
    return text && *text ? strtol(text, NULL, 10) : fallback;
}

bool http_perform(const struct http_request *request, struct http_response *r) {
    struct transfer t = {request, r};
    char range[32], agent[64], authorization[1024];
    struct curl_slist *headers = NULL;
    *r = (struct http_response){.retry_after = -1};
    CURL *curl = load_curl(r->error, sizeof r->error) ? lib.easy_init() : NULL;
    if (!curl) return false;
    const bool secure = strncasecmp(request->url, "https:", 6) == 0;
    snprintf(agent, sizeof agent, "tenon/%s", tn_version());
    snprintf(range, sizeof range, "%llu-", (unsigned long long)request->from);
    snprintf(authorization, sizeof authorization, "Authorization: Bearer %s", request->token ? request->token : "");
    lib.easy_setopt(curl, CURLOPT_URL, request->url);
    lib.easy_setopt(curl, CURLOPT_USERAGENT, agent);
    lib.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    lib.easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request->stay ? 0L : 1L);
    lib.easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
    lib.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    lib.easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
    lib.easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 30L);
    lib.easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    lib.easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, seconds_from("TENON_PULL_STALL", 60));
    lib.easy_setopt(curl, CURLOPT_NOBODY, request->head ? 1L : 0L);
    lib.easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    lib.easy_setopt(curl, CURLOPT_HEADERDATA, &t);
    lib.easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    lib.easy_setopt(curl, CURLOPT_WRITEDATA, &t);
    lib.easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    lib.easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    if (request->from) lib.easy_setopt(curl, CURLOPT_RANGE, range);
    /* libcurl sends this header to the first host only, not to those that it is redirected to. */
    if (request->token) headers = lib.slist_append(headers, authorization);
    if (headers) lib.easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    const CURLcode code = lib.easy_perform(curl);
    if (code != CURLE_OK) snprintf(r->error, sizeof r->error, "%s", lib.easy_strerror(code));
    r->cut = code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
             code == CURLE_GOT_NOTHING || code == CURLE_OPERATION_TIMEDOUT || code == CURLE_COULDNT_CONNECT ||
             code == CURLE_HTTP2_STREAM || code == CURLE_SSL_CONNECT_ERROR;
    lib.slist_free_all(headers);
    lib.easy_cleanup(curl);
    return code == CURLE_OK;
}

#else

bool http_perform(const struct http_request *request, struct http_response *r) {
    (void)request;
    *r = (struct http_response){.retry_after = -1};
    snprintf(r->error, sizeof r->error,
             "downloads are not supported by this build: libcurl4-openssl-dev was missing when it was made");
    return false;
}

#endif
