/* Guards connections until their requests are complete. libevent buffers a whole body before it calls a handler, so
 * this file parses incoming bytes as they arrive. It refuses large bodies without a valid key at their headers,
 * requests whose end is ambiguous (request smuggling), headers and bodies beyond the limits, and requests that take
 * too long to arrive; and it limits the number of connections. What libevent would refuse is refused here, because
 * its own answers are pages of HTML. */
#include "serve/http/guard.h"

#include "serve/http/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/listener.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LINE_KEPT = 2048,        /* bytes of a line that are parsed */
    CHUNK_LINE = 32,         /* bytes of the line before a chunk; libevent searches all of it for its end each time */
    FREE_BODY = 64 * 1024,   /* bytes of a body that need no key: the handlers refuse them in the form of their API */
    BYTES_A_SECOND = 65536,  /* bytes of a body per second of additional time beyond the timeout */
    GOODBYE_NS = 2000000000, /* time for which bytes of a refused client are discarded */
    TRIM_AFTER = 8 << 20,    /* bytes of finished bodies after which memory is returned to the system */
};

enum reading { IN_FIRST_LINE, IN_HEADERS, IN_BODY, IN_CHUNK_LINE, IN_CHUNK, IN_CHUNK_END, IN_TRAILERS, REFUSED };

struct guard {
    struct guard *next, *previous;
    struct server *server;
    struct bufferevent *bev; /* with our own reference, to detect its end */
    struct event *drain;     /* of a refused connection */
    enum reading reading;
    char line[LINE_KEPT];
    size_t length; /* length of the line, which may exceed the stored part */
    bool has_body, chunked, has_length, has_host, has_key, is_messages;
    size_t head;              /* bytes of the first line, the headers and the trailers */
    uint64_t announced, left; /* bytes of the body, of the body or chunk */
    uint64_t held;            /* bytes of the last body, which may still be in use by its request */
    uint64_t accepted;        /* 0: a request has begun since */
    uint64_t begun;           /* when the request began to arrive; 0: none is arriving */
    bool is_client;           /* it has sent a whole request */
    uint64_t goodbye;         /* when a refused connection ends at the latest */
    int code;                 /* of the refusal */
    const char *why;
};

static void refuse(struct guard *g, int code, const char *why) {
    if (g->reading == REFUSED) return;
    g->reading = REFUSED;
    g->code = code;
    g->why = why;
    g->goodbye = tn_time_ns() + GOODBYE_NS;
    /* Hides the bytes that have just arrived from libevent; it still sees the end of the connection. */
    bufferevent_event_cb on_event;
    void *own;
    bufferevent_getcb(g->bev, NULL, NULL, &on_event, &own);
    bufferevent_setcb(g->bev, NULL, NULL, on_event, own);
    bufferevent_disable(g->bev, EV_READ);
}

/* ---- Reading along ---- */

static void release_body(struct guard *g) {
    struct guards *all = &g->server->guards;
    all->held -= g->held;
    all->released += g->held;
    g->held = 0;
}

static void hold_bytes(struct guard *g, uint64_t bytes) {
    struct guards *all = &g->server->guards;
    g->held += bytes;
    all->held += bytes;
    if (g->held > FREE_BODY && !g->has_key)
        refuse(g, 401, "missing or invalid API key; send the header Authorization: Bearer KEY");
    else if (g->held > all->max_body)
        refuse(g, 413, "the body is too large; --max-body sets the limit");
    else if (all->held > all->max_held && g->held > FREE_BODY)
        refuse(g, 503, "bodies of other requests use all the memory reserved for bodies (--max-bodies); try again");
}

static void request_begins(struct guard *g) {
    release_body(g);
    g->reading = IN_FIRST_LINE;
    g->has_body = g->chunked = g->has_length = g->has_host = g->is_messages = false;
    g->has_key = g->server->n_keys == 0;
    g->announced = g->left = g->begun = 0;
    g->head = 0;
}

static void request_is_whole(struct guard *g) {
    g->reading = IN_FIRST_LINE;
    g->begun = 0;
    g->is_client = true;
}

static void end_headers(struct guard *g) {
    if ((g->chunked && g->has_length) || (!g->has_body && (g->chunked || g->announced)))
        refuse(g, 400,
               g->has_body ? "a request has Content-Length or Transfer-Encoding, not both"
                           : "requests of this method have no body");
    else if (g->announced > FREE_BODY && !g->has_key)
        refuse(g, 401, "missing or invalid API key; send the header Authorization: Bearer KEY");
    else if (g->announced > g->server->guards.max_body)
        refuse(g, 413, "the body is too large; --max-body sets the limit");
    else if (g->chunked)
        g->reading = IN_CHUNK_LINE;
    else if (g->announced) {
        g->reading = IN_BODY;
        g->left = g->announced;
    } else
        request_is_whole(g);
}

/* Parses a number that consists only of digits in the given base; otherwise false. */
static bool read_length(const char *text, int base, const char *ends, uint64_t *out) {
    char *end;
    const size_t n = strspn(text, base == 10 ? "0123456789" : "0123456789abcdefABCDEF");
    if (n == 0 || n > 15) return false;
    *out = strtoull(text, &end, base);
    return !*end || strchr(ends, *end);
}

/* Whether every byte of the line, which may be longer than the stored part, is one that a header can have. */
static bool is_clean(const struct guard *g, size_t n) {
    return !memchr(g->line, '\0', n) && !memchr(g->line, '\r', n);
}

static void note_first_line(struct guard *g, size_t n) {
    static const char *const methods[] = {"GET ", "POST ", "HEAD ", "OPTIONS ", "PUT ", "DELETE ", "PATCH "};
    const bool is_whole = g->length < LINE_KEPT;
    const char *path = strchr(g->line, ' '), *version = strrchr(g->line, ' ');
    bool known = false;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        known = known || strncmp(g->line, methods[i], strlen(methods[i])) == 0;
    if (!is_clean(g, n) || !path || path == g->line ||
        (is_whole && (version == path || strncmp(version, " HTTP/", 6) != 0)))
        refuse(g, 400, "this is not an HTTP request; the first line must be METHOD PATH HTTP/1.1");
    else if (is_whole && strcmp(version, " HTTP/1.1") != 0 && strcmp(version, " HTTP/1.0") != 0)
        refuse(g, 505, "this server speaks HTTP/1.1");
    else if (!known)
        refuse(g, 501, "unknown method");
    if (g->reading == REFUSED) return;
    g->has_body = *g->line == 'P'; /* POST, PUT, PATCH */
    g->is_messages = strstr(g->line, "/v1/messages") != NULL;
    g->reading = IN_HEADERS;
}

/* Names are tokens: a space before the colon, for example, is read differently by different servers. */
static bool is_header_name(const char *name, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (name[i] <= ' ' || name[i] > '~' || strchr("\"(),/:;<=>?@[\\]{}", name[i])) return false;
    return length > 0;
}

static void note_header(struct guard *g, char *line, size_t length) {
    char *colon = strchr(line, ':');
    if (!colon || !is_header_name(line, (size_t)(colon - line)) || !is_clean(g, length)) {
        refuse(g, 400, "a header line is a name, a colon and a value");
        return;
    }
    char *value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t n = strlen(value); n && strchr(" \t", value[n - 1]); n--) value[n - 1] = '\0';
    *colon = '\0';
    if (g->length >= LINE_KEPT && strcasecmp(line, "X-Api-Key") != 0 && strcasecmp(line, "Authorization") != 0)
        value = ""; /* its end is not stored, so that none of the values below is right */
    if (strcasecmp(line, "Content-Length") == 0) {
        if (g->has_length || !read_length(value, 10, "", &g->announced))
            refuse(g, 400, "Content-Length is one number");
        g->has_length = true;
    } else if (strcasecmp(line, "Transfer-Encoding") == 0) {
        if (g->chunked || strcasecmp(value, "chunked") != 0) refuse(g, 400, "Transfer-Encoding can only be chunked");
        g->chunked = true;
    } else if (strcasecmp(line, "Content-Encoding") == 0 && strcasecmp(value, "identity") != 0) {
        refuse(g, 415, "bodies must not be compressed");
    } else if (strcasecmp(line, "Expect") == 0 && strcasecmp(value, "100-continue") != 0) {
        refuse(g, 417, "Expect can only be 100-continue");
    } else if (strcasecmp(line, "Host") == 0) {
        if (g->has_host) refuse(g, 400, "a request has only one Host header");
        g->has_host = true;
    } else if (strcasecmp(line, "X-Api-Key") == 0)
        g->has_key = g->has_key || key_is_valid(g->server, value);
    else if (strcasecmp(line, "Authorization") == 0 && strncasecmp(value, "Bearer ", 7) == 0)
        g->has_key = g->has_key || key_is_valid(g->server, value + 7);
}

static void end_line(struct guard *g) {
    size_t n = g->length < LINE_KEPT ? g->length : LINE_KEPT - 1;
    if (n && g->length < LINE_KEPT && g->line[n - 1] == '\r') n--;
    g->line[n] = '\0';
    switch (g->reading) {
    case IN_FIRST_LINE: note_first_line(g, n); break;
    case IN_HEADERS:
        if (n)
            note_header(g, g->line, n);
        else
            end_headers(g);
        break;
    case IN_CHUNK_LINE:
        if (!read_length(g->line, 16, "", &g->left))
            refuse(g, 400, "a chunk begins with its length in hexadecimal digits, and nothing else");
        else if (g->left > g->server->guards.max_body)
            refuse(g, 413, "the body is too large; --max-body sets the limit");
        else
            g->reading = g->left ? IN_CHUNK : IN_TRAILERS;
        break;
    case IN_CHUNK_END:
        if (n)
            refuse(g, 400, "a chunk is longer than its length");
        else
            g->reading = IN_CHUNK_LINE;
        break;
    case IN_TRAILERS:
        if (!n) request_is_whole(g);
        break;
    default: break;
    }
    g->length = 0;
}

/* Parses the bytes that have arrived; they stay in the buffer for libevent. */
static void read_along(struct guard *g, const char *bytes, size_t size) {
    while (size && g->reading != REFUSED) {
        if (g->reading == IN_BODY || g->reading == IN_CHUNK) {
            const size_t n = size < g->left ? size : (size_t)g->left;
            bytes += n;
            size -= n;
            g->left -= n;
            hold_bytes(g, n);
            if (!g->left && g->reading == IN_CHUNK)
                g->reading = IN_CHUNK_END;
            else if (!g->left && g->reading == IN_BODY)
                request_is_whole(g);
            continue;
        }
        if (!g->begun) {
            request_begins(g);
            g->begun = tn_time_ns();
            g->accepted = 0;
        }
        const char *end = memchr(bytes, '\n', size);
        const size_t n = end ? (size_t)(end - bytes) : size;
        if (g->length < LINE_KEPT) {
            const size_t room = LINE_KEPT - g->length;
            memcpy(g->line + g->length, bytes, n < room ? n : room);
        }
        g->length += n;
        bytes += n + (end != NULL);
        size -= n + (end != NULL);
        if (g->reading == IN_CHUNK_LINE || g->reading == IN_CHUNK_END) {
            if (g->length > CHUNK_LINE)
                refuse(g, 400, "a chunk begins with its length in hexadecimal digits, and nothing else");
        } else if ((g->head += n + (end != NULL)) > g->server->guards.max_head)
            refuse(g, 431, "the headers are longer than 64 KiB");
        if (end && g->reading != REFUSED) end_line(g);
    }
}

static void on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *user) {
    struct guard *g = user;
    struct evbuffer_ptr at;
    struct evbuffer_iovec parts[8];
    size_t left = info->n_added;
    if (!left || g->reading == REFUSED) return;
    /* Bytes inside a body need no inspection, and evbuffer_ptr_set() takes longer the more has arrived before. */
    if ((g->reading == IN_BODY || g->reading == IN_CHUNK) && left < g->left) {
        g->left -= left;
        hold_bytes(g, left);
        return;
    }
    size_t from = evbuffer_get_length(input) - left;
    while (left && evbuffer_ptr_set(input, &at, from, EVBUFFER_PTR_SET) == 0) {
        const int n = evbuffer_peek(input, (ev_ssize_t)left, &at, parts, 8);
        size_t taken = 0;
        for (int i = 0; i < n && i < 8 && taken < left; i++) {
            const size_t size = parts[i].iov_len < left - taken ? parts[i].iov_len : left - taken;
            read_along(g, parts[i].iov_base, size);
            taken += size;
        }
        if (!taken) break;
        from += taken;
        left -= taken;
    }
}

/* ---- The end of connections ---- */

/* The descriptor is closed with the last reference to the bufferevent. */
static void guard_free(struct guard *g) {
    struct guards *all = &g->server->guards;
    struct evbuffer *input = bufferevent_get_input(g->bev);
    release_body(g);
    /* Frees the input now, because the bufferevent is freed only after memory was returned to the system. */
    evbuffer_remove_cb(input, on_input, g);
    evbuffer_drain(input, evbuffer_get_length(input));
    if (g->drain) event_free(g->drain);
    if (g->next) g->next->previous = g->previous;
    *(g->previous ? &g->previous->next : &all->first) = g->next;
    all->count--;
    bufferevent_decref(g->bev);
    tn_free(g);
}

/* libevent has freed its connection, with its callbacks. */
static bool has_ended(const struct guard *g) {
    bufferevent_event_cb on_event;
    bufferevent_getcb(g->bev, NULL, NULL, &on_event, NULL);
    return !on_event;
}

static void on_drain(evutil_socket_t fd, short what, void *user) {
    static char nothing[65536];
    struct guard *g = user;
    (void)what;
    const ssize_t n = recv(fd, nothing, sizeof nothing, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    g->goodbye = 0;
    event_del(g->drain);
}

static void say_why(struct guard *g) {
    static const struct {
        int code;
        const char *phrase, *type, *anthropic;
    } *r = NULL, refusals[] = {{400, "Bad Request", "invalid_request_error", "invalid_request_error"},
                               {401, "Unauthorized", "authentication_error", "authentication_error"},
                               {408, "Request Timeout", "invalid_request_error", "timeout_error"},
                               {413, "Content Too Large", "invalid_request_error", "request_too_large"},
                               {415, "Unsupported Media Type", "invalid_request_error", "invalid_request_error"},
                               {417, "Expectation Failed", "invalid_request_error", "invalid_request_error"},
                               {431, "Request Header Fields Too Large", "invalid_request_error", "request_too_large"},
                               {501, "Not Implemented", "not_supported_error", "invalid_request_error"},
                               {503, "Service Unavailable", "unavailable_error", "overloaded_error"},
                               {505, "HTTP Version Not Supported", "not_supported_error", "invalid_request_error"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals && (!r || r->code != g->code); i++) r = &refusals[i];
    char body[512];
    const int size =
        g->is_messages
            ? snprintf(body, sizeof body, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"%s\"}}",
                       r->anthropic, g->why)
            : snprintf(body, sizeof body, "{\"error\":{\"code\":%d,\"message\":\"%s\",\"type\":\"%s\"}}", g->code,
                       g->why, r->type);
    struct evbuffer *out = bufferevent_get_output(g->bev);
    g->why = NULL;
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n%s"
                        "Server: tenon\r\nConnection: close\r\n\r\n%s",
                        g->code, r->phrase, size, g->code == 503 ? "Retry-After: 1\r\n" : "", body);
    bufferevent_enable(g->bev, EV_WRITE);
    g->drain = event_new(g->server->base, bufferevent_getfd(g->bev), EV_READ | EV_PERSIST, on_drain, g);
    if (!g->drain || event_add(g->drain, NULL) != 0) g->goodbye = 0;
}

/* A refused client gets the reason; further bytes from it are discarded, so that it can read the reply. Then
 * libevent sees the end of the connection and frees it. */
static void see_off(struct guard *g, uint64_t now) {
    const evutil_socket_t fd = bufferevent_getfd(g->bev);
    if (g->why)
        say_why(g);
    else if (now >= g->goodbye) {
        if (g->drain) event_free(g->drain);
        g->drain = NULL;
        shutdown(fd, SHUT_RDWR);
        bufferevent_enable(g->bev, EV_READ);
    } else if (!evbuffer_get_length(bufferevent_get_output(g->bev)))
        shutdown(fd, SHUT_WR);
}

/* Seconds for a request to arrive completely. */
static uint64_t time_to_arrive(const struct guard *g) {
    const uint64_t bytes = g->chunked ? g->held : g->announced;
    return (uint64_t)(g->server->timeout * 1e9) + bytes * 1000000000u / BYTES_A_SECOND;
}

void guards_tick(struct server *server, struct evconnlistener *listener) {
    struct guards *all = &server->guards;
    const uint64_t now = tn_time_ns();
    for (struct guard *g = all->first, *next; g; g = next) {
        next = g->next;
        if (has_ended(g))
            guard_free(g);
        else if (g->reading == REFUSED)
            see_off(g, now);
        else if ((g->begun && now - g->begun > time_to_arrive(g)) ||
                 (g->accepted && now - g->accepted > 2 * time_to_arrive(g)))
            refuse(g, 408, "the request took too long to arrive");
        else if (all->count >= all->max_count && !g->is_client &&
                 now - (g->begun ? g->begun : g->accepted) > 1000000000)
            refuse(g, 503, "too many connections (--max-connections); try again");
    }
    if (all->released > TRIM_AFTER) {
        all->released = 0;
#ifdef __GLIBC__
        malloc_trim(0);
#endif
    }
    if (listener && all->count < all->max_count) evconnlistener_enable(listener);
}

struct bufferevent *guard_connection(struct event_base *base, void *user) {
    struct server *server = user;
    struct guards *all = &server->guards;
    struct bufferevent *bev =
        server->tls ? tls_accept(server->tls, base) : bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    struct guard *g = bev ? tn_calloc(1, sizeof *g) : NULL;
    if (!g) return bev;
    *g = (struct guard){.server = server, .bev = bev, .accepted = tn_time_ns(), .next = all->first};
    if (!evbuffer_add_cb(bufferevent_get_input(bev), on_input, g)) {
        tn_free(g);
        return bev;
    }
    bufferevent_incref(bev);
    if (all->first) all->first->previous = g;
    all->first = g;
    if (++all->count >= all->max_count && server->listener) evconnlistener_disable(server->listener);
    return bev;
}

void guards_free(struct server *server) {
    while (server->guards.first) guard_free(server->guards.first);
}
