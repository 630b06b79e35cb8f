/* Event streams (SSE): chunks of a response that is sent while it is generated. */
#include "serve/http/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Bytes that a client may be behind before its jobs pause; while others wait for a slot, before it loses its own. */
enum { MAX_UNSENT = 256 * 1024, MAX_BEHIND = 4 * 1024 * 1024 };

void stream_start(struct request *r) {
    if (r->started || !r->http) return;
    struct evkeyvalq *out = evhttp_request_get_output_headers(r->http);
    add_reply_headers(r->served->server, r->http,
                      r->lines ? "application/x-ndjson" : "text/event-stream; charset=utf-8");
    evhttp_add_header(out, "Cache-Control", "no-cache");
    evhttp_add_header(out, "X-Accel-Buffering", "no");
    /* Sends every piece of text at once instead of waiting until the previous one is acknowledged. */
    struct bufferevent *bev = bufferevent_of(r->http);
    int on = 1;
    if (bev) setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    log_access(r->served->server, r->http, 200);
    evhttp_send_reply_start(r->http, 200, "OK");
    const char *coding = evhttp_find_header(out, "Transfer-Encoding");
    r->chunked = coding && strcmp(coding, "chunked") == 0;
    r->started = true;
}

/* The connection has sent everything: resumes jobs that were paused for a slow client. */
static void resume_jobs(struct evhttp_connection *connection, void *user) {
    struct request *r = user;
    (void)connection;
    bool any = false;
    for (size_t i = 0; i < r->n_jobs; i++) any = atomic_exchange(&r->jobs[i]->paused, false) || any;
    if (any) engine_wake(r->served);
}

static size_t bytes_behind(struct request *r) {
    struct bufferevent *bev = r->http && r->started ? bufferevent_of(r->http) : NULL;
    return bev ? evbuffer_get_length(bufferevent_get_output(bev)) : 0;
}

static bool is_paused(const struct request *r) {
    for (size_t i = 0; i < r->n_jobs; i++)
        if (r->jobs[i] && atomic_load(&r->jobs[i]->paused)) return true;
    return false;
}

static bool has_preempted(const struct request *r) {
    for (size_t i = 0; i < r->n_jobs; i++)
        if (r->jobs[i] && atomic_load(&r->jobs[i]->preempted)) return true;
    return false;
}

/* Counts the requests of each model that wait for cells although their clients read. */
static void count_waiting(struct server *server) {
    for (struct request *r = server->requests; r; r = r->next) {
        const bool waits = has_preempted(r) && bytes_behind(r) <= MAX_UNSENT;
        if (waits == r->waits_for_cells) continue;
        r->waits_for_cells = waits;
        r->served->n_waiting_for_cells += waits ? 1 : -1;
    }
}

/* Whether a job waits for a slot, or, as of the last tick, a preempted job of another request waits for cells.
 * Preempted jobs whose own clients have stopped reading do not count. */
static bool others_wait(struct request *r) {
    struct served *served = r->served;
    pthread_mutex_lock(&served->lock);
    bool wait = served->n_queued > 0;
    pthread_mutex_unlock(&served->lock);
    return wait || served->n_waiting_for_cells > (r->waits_for_cells ? 1 : 0);
}

/* A client that has stopped reading must not hold a slot: while others wait, its answer continues, and ends early
 * when the client is too far behind. */
void streams_yield(struct server *server) {
    count_waiting(server);
    for (struct request *r = server->requests; r; r = r->next) {
        const size_t behind = bytes_behind(r);
        /* A job stays paused until all is sent, also when its client has read some: it holds its slot and cells. */
        if ((behind <= MAX_BEHIND && !is_paused(r)) || !others_wait(r)) continue;
        if (behind > MAX_BEHIND)
            request_cancel(r);
        else
            resume_jobs(NULL, r);
    }
}

enum { MAX_PARTS = 4 };

/* Writes a chunk to the socket directly while nothing else is waiting to be sent, which saves the round trip through
 * the event loop. Returns false if libevent must send it. libevent sends the bytes that the socket did not
 * accept. */
static bool send_directly(struct request *r, const struct iovec *parts, int n, size_t length) {
    struct bufferevent *bev = bufferevent_of(r->http);
    if (!bev || !r->chunked || r->served->server->tls || evbuffer_get_length(bufferevent_get_output(bev)) > 0)
        return false;
    char size[24];
    struct iovec all[MAX_PARTS + 2] = {{size, (size_t)snprintf(size, sizeof size, "%zx\r\n", length)}};
    memcpy(all + 1, parts, (size_t)n * sizeof *parts);
    all[n + 1] = (struct iovec){"\r\n", 2};
    ssize_t sent = sendmsg(bufferevent_getfd(bev), &(struct msghdr){.msg_iov = all, .msg_iovlen = (size_t)n + 2},
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return false; /* libevent notices a broken connection */
    for (int i = 0; i < n + 2; i++) {
        size_t done = (size_t)sent < all[i].iov_len ? (size_t)sent : all[i].iov_len;
        sent -= (ssize_t)done;
        if (done < all[i].iov_len) bufferevent_write(bev, (char *)all[i].iov_base + done, all[i].iov_len - done);
    }
    return true;
}

static void send_or_queue(struct request *r, const struct iovec *parts, int n, size_t length) {
    r->last_sent = tn_time_ns();
    if (send_directly(r, parts, n, length)) return;
    struct evbuffer *buffer = evbuffer_new();
    if (!buffer) return;
    for (int i = 0; i < n; i++) evbuffer_add(buffer, parts[i].iov_base, parts[i].iov_len);
    evhttp_send_reply_chunk_with_cb(r->http, buffer, resume_jobs, r);
    evbuffer_free(buffer);
    const size_t behind = bytes_behind(r);
    if (behind > MAX_UNSENT && (behind > MAX_BEHIND || !others_wait(r)))
        for (size_t i = 0; i < r->n_jobs; i++) atomic_store(&r->jobs[i]->paused, true);
}

void stream_send_collected(struct request *r) {
    const size_t length = r->n_unsent;
    r->n_unsent = 0;
    if (r->http && length > 0) send_or_queue(r, &(struct iovec){r->unsent, length}, 1, length);
}

/* While pieces are handled, their text is collected and sent as one chunk per connection. */
static void send_chunk(struct request *r, const struct iovec *parts, int n) {
    size_t length = 0;
    for (int i = 0; r->recording && i < n; i++) recording_add(r, parts[i].iov_base, parts[i].iov_len);
    if (!r->http) return;
    stream_start(r);
    for (int i = 0; i < n; i++) length += parts[i].iov_len;
    if (length > sizeof r->unsent - r->n_unsent) stream_send_collected(r);
    if (!r->served->server->collecting || length > sizeof r->unsent) {
        send_or_queue(r, parts, n, length);
        return;
    }
    for (int i = 0; i < n; i++) {
        memcpy(r->unsent + r->n_unsent, parts[i].iov_base, parts[i].iov_len);
        r->n_unsent += parts[i].iov_len;
    }
}

void stream_send_raw(struct request *r, const char *text) {
    send_chunk(r, &(struct iovec){(void *)(uintptr_t)text, strlen(text)}, 1);
}

void stream_send_text(struct request *r, const char *event, const char *json, size_t length) {
    char name[80] = "data: ";
    if (event) snprintf(name, sizeof name, "event: %s\ndata: ", event);
    send_chunk(r, (struct iovec[]){{name, strlen(name)}, {(void *)(uintptr_t)json, length}, {"\n\n", 2}}, 3);
}

void stream_send(struct request *r, const char *event, json_t *json) {
    char *text = (r->http || r->recording) && json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (text) stream_send_text(r, event, text, strlen(text));
    free(text);
}

/* evhttp's own callback for output that was sent, the same function for all connections. */
static bufferevent_data_cb evhttp_sent;

static void on_sent(struct bufferevent *bev, void *connection) {
    if (evbuffer_get_length(bufferevent_get_output(bev)) == 0) evhttp_sent(bev, connection);
}

void reply_end(struct server *server, struct evhttp_request *http) {
    struct bufferevent *bev = server->tls ? bufferevent_of(http) : NULL;
    if (bev) bufferevent_incref(bev);
    evhttp_send_reply_end(http);
    if (!bev) return;
    /* With TLS, libevent calls back some time after output was sent. evhttp ends the response at the next call, and
     * closes the connection: if that call is for an earlier chunk, the last ones are lost. */
    bufferevent_data_cb on_read, sent;
    bufferevent_event_cb on_event;
    void *own;
    bufferevent_getcb(bev, &on_read, &sent, &on_event, &own);
    if (sent && sent != on_sent) {
        evhttp_sent = sent;
        bufferevent_setcb(bev, on_read, on_sent, on_event, own);
    }
    bufferevent_decref(bev);
}

void stream_end(struct request *r) {
    stream_send_collected(r);
    if (!r->http) return;
    struct evhttp_request *http = r->http;
    request_detach(r);
    reply_end(r->served->server, http);
}
