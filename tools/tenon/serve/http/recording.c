/* Event streams that a client can resume: a request with the header X-Conversation-Id is recorded, continues when its
 * client disconnects, and GET /v1/stream?conv_id=ID&from=BYTE returns the recorded bytes. Everything here runs on the
 * HTTP thread. */
#include "serve/http/http.h"

#include "cli/text_buffer.h"

#include <event2/keyvalq_struct.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RECORDINGS = 32, MAX_RECORDED = 1 << 20 };

struct recording {
    struct recording *next;
    char id[512];
    uint64_t key;         /* the client's key: other keys have no access */
    struct request *live; /* NULL: it has ended */
    tn_text bytes;
};

static void recording_free(struct recording *one) {
    if (one->live) one->live->recording = NULL;
    tn_text_free(&one->bytes);
    tn_free(one);
}

static struct recording **recording_at(struct server *server, const char *id, uint64_t key) {
    struct recording **at = &server->recordings;
    while (*at && ((*at)->key != key || strcmp((*at)->id, id) != 0)) at = &(*at)->next;
    return at;
}

static void recording_remove(struct recording **at) {
    struct recording *one = *at;
    *at = one->next;
    recording_free(one);
}

void recording_begin(struct request *r) {
    struct server *server = r->served->server;
    const char *id = evhttp_find_header(evhttp_request_get_input_headers(r->http), "X-Conversation-Id");
    if (!id || !*id || strlen(id) >= sizeof server->recordings->id) return;
    struct recording **at = recording_at(server, id, r->key), *one = tn_calloc(1, sizeof *one);
    if (!one) return; /* without memory the stream is not recorded */
    if (*at) recording_remove(at);
    snprintf(one->id, sizeof one->id, "%s", id);
    one->key = r->key;
    one->live = r;
    one->next = server->recordings;
    server->recordings = one;
    r->recording = one;
    size_t n = 0;
    for (at = &server->recordings; *at; at = &(*at)->next)
        if (++n > MAX_RECORDINGS && !(*at)->live) {
            recording_remove(at);
            break;
        }
}

void recording_add(struct request *r, const void *bytes, size_t length) {
    if (r->recording->bytes.length + length <= MAX_RECORDED) text_append(&r->recording->bytes, bytes, length);
}

void recording_end(struct request *r) {
    if (r->recording) r->recording->live = NULL;
    r->recording = NULL;
}

void recordings_free(struct server *server) {
    while (server->recordings) recording_remove(&server->recordings);
}

/* The recording that the query names; *from is its parameter. */
static struct recording **queried(struct server *server, struct evhttp_request *http, size_t *from) {
    static struct recording *none;
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(http));
    struct evkeyvalq values;
    none = NULL;
    if (!query || evhttp_parse_query_str(query, &values) != 0) return &none;
    const char *id = evhttp_find_header(&values, "conv_id"), *begin = evhttp_find_header(&values, "from");
    struct recording **at = id ? recording_at(server, id, prefix_key(server, http)) : &none;
    *from = begin ? strtoul(begin, NULL, 10) : 0;
    evhttp_clear_headers(&values);
    return at;
}

void serve_recording(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    size_t from = 0;
    const struct recording *one = *queried(served->server, http, &from);
    (void)body;
    if (one && from <= one->bytes.length) {
        reply_text(served->server, http, 200, "text/event-stream; charset=utf-8",
                   one->bytes.bytes ? one->bytes.bytes + from : "", one->bytes.length - from);
        return;
    }
    problem_set(&problem, one ? 400 : 404, one ? "`from` is beyond the end of the stream" : "unknown stream");
    reply_problem(served->server, http, &problem);
}

void serve_recording_stop(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    size_t from = 0;
    struct recording **at = queried(served->server, http, &from);
    (void)body;
    if (!*at) {
        problem_set(&problem, 404, "unknown stream");
        reply_problem(served->server, http, &problem);
        return;
    }
    if ((*at)->live) request_cancel((*at)->live);
    recording_remove(at);
    reply_text(served->server, http, 204, "text/plain", "", 0);
}
