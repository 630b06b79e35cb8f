/* HTTP: connections, routes, keys, answers and streams. Everything here runs on the HTTP thread. */
#include "serve.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/keyvalq_struct.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "http.h"

enum { MOST_UNSENT = 256 * 1024, PING_SECONDS = 5 };

/* ---- Problems ---- */

static const char *type_of(int code) {
    switch (code) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 500: return "server_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return "invalid_request_error";
    }
}

static const char *reason_of(int code) {
    switch (code) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
    }
}

bool problem_set(struct problem *problem, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    problem->code = code;
    problem->type = type_of(code);
    vsnprintf(problem->text, sizeof problem->text, format, args);
    va_end(args);
    return false;
}

bool problem_status(struct problem *problem, tn_status status, const char *what) {
    int code = status == TN_E_NOMEM ? 500 : status == TN_E_UNSUPPORTED ? 501 : 400;
    return problem_set(problem, code, "%s%s%s", what, *what ? ": " : "", tn_error());
}

json_t *problem_json(const struct problem *problem) {
    json_t *error = json_pack("{s:i, s:s#, s:s}", "code", problem->code, "message", problem->text,
                              (int)strlen(problem->text), "type", problem->type);
    /* A message that quotes half a character is no UTF-8. */
    if (!error)
        error = json_pack("{s:i, s:s, s:s}", "code", problem->code, "message", "the request is not valid", "type",
                          problem->type);
    if (problem->more) json_object_update(error, problem->more);
    return json_pack("{s:o}", "error", error);
}

/* ---- Answers ---- */

static void add_headers(struct evhttp_request *http, const char *type) {
    struct evkeyvalq *out = evhttp_request_get_output_headers(http);
    evhttp_add_header(out, "Content-Type", type);
    const char *origin = evhttp_find_header(evhttp_request_get_input_headers(http), "Origin");
    if (origin && strlen(origin) < 256 && !strpbrk(origin, "\r\n")) {
        evhttp_add_header(out, "Access-Control-Allow-Origin", origin);
        evhttp_add_header(out, "Vary", "Origin");
    }
    evhttp_add_header(out, "Server", "tenon");
    evhttp_add_header(out, "X-Content-Type-Options", "nosniff");
}

static void log_access(struct server *server, struct evhttp_request *http, int code) {
    if (!server->log_requests) return;
    char *peer = NULL;
    ev_uint16_t port = 0;
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    if (connection) evhttp_connection_get_peer(connection, &peer, &port);
    const char *uri = evhttp_request_get_uri(http);
    json_t *line = json_pack("{s:I, s:s, s:s#, s:i}", "time", (json_int_t)time(NULL), "peer", peer ? peer : "",
                             "path", uri ? uri : "", (int)(uri ? strcspn(uri, "?") : 0), "status", code);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text) fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(line);
}

void reply_text(struct server *server, struct evhttp_request *http, int code, const char *type, const void *text,
                size_t length) {
    struct evbuffer *buffer = evbuffer_new();
    add_headers(http, type);
    if (buffer) evbuffer_add(buffer, text, length);
    log_access(server, http, code);
    evhttp_send_reply(http, code, reason_of(code), buffer);
    if (buffer) evbuffer_free(buffer);
}

void reply_json(struct server *server, struct evhttp_request *http, int code, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    static const char broken[] = "{\"error\":{\"code\":500,\"message\":\"out of memory\",\"type\":\"server_error\"}}";
    json_decref(json);
    reply_text(server, http, text ? code : 500, "application/json; charset=utf-8", text ? text : broken,
               strlen(text ? text : broken));
    free(text);
}

void reply_problem(struct server *server, struct evhttp_request *http, struct problem *problem) {
    if (problem->code == 503) evhttp_add_header(evhttp_request_get_output_headers(http), "Retry-After", "1");
    reply_json(server, http, problem->code, problem_json(problem));
    json_decref(problem->more);
    problem->more = NULL;
}

json_t *read_body(struct server *server, struct evhttp_request *http) {
    struct evbuffer *input = evhttp_request_get_input_buffer(http);
    size_t length = evbuffer_get_length(input);
    const char *bytes = length ? (const char *)evbuffer_pullup(input, -1) : "";
    json_error_t error;
    json_t *body = bytes ? json_loadb(bytes, length, 0, &error) : NULL;
    struct problem problem = {0};
    if (json_is_object(body)) return body;
    if (body)
        problem_set(&problem, 400, "the body must be a JSON object");
    else
        problem_set(&problem, 400, "the body is not valid JSON: line %d, column %d: %.200s", bytes ? error.line : 0,
                    bytes ? error.column : 0, bytes ? error.text : "no memory");
    json_decref(body);
    reply_problem(server, http, &problem);
    return NULL;
}

/* ---- Requests ---- */

struct request *request_new(struct served *served, struct evhttp_request *http, const struct wording *wording,
                            const char *id_prefix) {
    struct request *r = tn_calloc(1, sizeof *r);
    if (!r) return NULL;
    unsigned char random[12];
    evutil_secure_rng_get_bytes(random, sizeof random);
    int n = snprintf(r->id, sizeof r->id, "%s", id_prefix);
    for (size_t i = 0; i < sizeof random; i++) n += snprintf(r->id + n, sizeof r->id - (size_t)n, "%02x", random[i]);
    struct server *server = served->server;
    r->served = served;
    served->n_alive++;
    r->http = http;
    r->wording = wording;
    r->created = time(NULL);
    r->begin = r->last_sent = tn_time_ns();
    r->next = server->requests;
    if (r->next) r->next->previous = r;
    server->requests = r;
    return r;
}

struct job *request_add_job(struct request *r) {
    struct job *job = tn_calloc(1, sizeof *job);
    struct job **jobs = tn_realloc(r->jobs, (r->n_jobs + 1) * sizeof(struct job *));
    if (jobs) r->jobs = jobs;
    if (!job || !jobs) {
        tn_free(job);
        return NULL;
    }
    job->request = r;
    job->index = r->n_jobs;
    job->n_top = -1;
    job->tokens = json_array();
    job->logprobs = json_array();
    r->jobs[r->n_jobs++] = job;
    return job;
}

static void job_free(struct job *job) {
    tn_tokens_free(&job->prompt);
    tn_generator_free(job->generator);
    tn_sampler_free(job->sampler);
    for (size_t i = 0; i < job->n_stops; i++) tn_free(job->stops[i]);
    tn_text_free(&job->text);
    json_decref(job->tokens);
    json_decref(job->logprobs);
    tn_chat_parser_free(job->parser);
    tn_free(job->path);
    tn_free(job->vector);
    tn_free(job);
}

void request_free(struct request *r) {
    if (!r) return;
    if (r->previous)
        r->previous->next = r->next;
    else
        r->served->server->requests = r->next;
    if (r->next) r->next->previous = r->previous;
    for (size_t i = 0; i < r->n_jobs; i++) job_free(r->jobs[i]);
    tn_free(r->jobs);
    json_decref(r->extra);
    free(r->head);
    tn_chat_prompt_free(r->prompt);
    r->served->n_alive--;
    tn_free(r);
}

static void cancel(struct request *r) {
    for (size_t i = 0; i < r->n_jobs; i++) atomic_store(&r->jobs[i]->cancelled, true);
    engine_wake(r->served);
}

static struct bufferevent *bufferevent_of(struct evhttp_request *http) {
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    return connection ? evhttp_connection_get_bufferevent(connection) : NULL;
}

/* The connection went away under a request. libevent has detached the evhttp_request by then, and leaves it to us. */
static void on_close(struct evhttp_connection *connection, void *user) {
    struct request *r = user;
    (void)connection;
    if (!r->http) return;
    evhttp_request_set_on_complete_cb(r->http, NULL, NULL);
    evhttp_request_free(r->http);
    r->http = NULL;
    cancel(r);
}

void unwatch_close(struct server *server, struct evhttp_request *http) {
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    struct bufferevent *bev = bufferevent_of(http);
    if (connection) evhttp_connection_set_closecb(connection, NULL, NULL);
    if (bev) {
        struct timeval patience = {.tv_sec = (time_t)server->timeout};
        bufferevent_set_timeouts(bev, &patience, &patience);
    }
}

static void detach(struct request *r) {
    unwatch_close(r->served->server, r->http);
    r->http = NULL;
}

/* Bounds what a client can make us store while its answer is made; evhttp reads on for the next request. A watermark
 * would do the same, but where there is no memory for it libevent 2.1.12 crashes. */
static void on_early(struct bufferevent *bev, void *connection) {
    (void)connection;
    if (evbuffer_get_length(bufferevent_get_input(bev)) >= 64 * 1024) bufferevent_disable(bev, EV_READ);
}
/* While an answer is made, the connection is read only to learn that the client closed it. evhttp's own read callback
 * would end the program on bytes that arrive in this state, so it is taken out until evhttp puts it back for the next
 * request. */
void watch_close(struct server *server, struct evhttp_request *http,
                 void (*closed)(struct evhttp_connection *connection, void *user), void *user) {
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    struct bufferevent *bev = bufferevent_of(http);
    if (!connection || !bev) return;
    bufferevent_data_cb on_read, on_write;
    bufferevent_event_cb on_event;
    void *own;
    struct timeval patience = {.tv_sec = (time_t)server->timeout};
    bufferevent_getcb(bev, &on_read, &on_write, &on_event, &own);
    bufferevent_setcb(bev, on_early, on_write, on_event, own);
    bufferevent_set_timeouts(bev, NULL, &patience);
    bufferevent_enable(bev, EV_READ);
    evhttp_connection_set_closecb(connection, closed, user);
}

static void stream_start(struct request *r) {
    if (r->started || !r->http) return;
    struct evkeyvalq *out = evhttp_request_get_output_headers(r->http);
    add_headers(r->http, "text/event-stream; charset=utf-8");
    evhttp_add_header(out, "Cache-Control", "no-cache");
    evhttp_add_header(out, "X-Accel-Buffering", "no");
    /* Every piece of text leaves at once, instead of waiting for the one before to be confirmed. */
    struct bufferevent *bev = bufferevent_of(r->http);
    int on = 1;
    if (bev) setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    log_access(r->served->server, r->http, 200);
    evhttp_send_reply_start(r->http, 200, "OK");
    const char *coding = evhttp_find_header(out, "Transfer-Encoding");
    r->chunked = coding && strcmp(coding, "chunked") == 0;
    r->started = true;
}

void request_submit(struct request *r) {
    struct problem problem = {0};
    if (!engine_submit(r->served, r->jobs, r->n_jobs)) {
        problem_set(&problem, 503, "all slots are busy and the queue is full; try again");
        reply_problem(r->served->server, r->http, &problem);
        request_free(r);
        return;
    }
    r->served->server->n_requests++;
    watch_close(r->served->server, r->http, on_close, r);
    if (r->stream) stream_start(r);
}

/* ---- Streams ---- */

static void on_drained(struct evhttp_connection *connection, void *user) {
    struct request *r = user;
    (void)connection;
    bool any = false;
    for (size_t i = 0; i < r->n_jobs; i++) any = atomic_exchange(&r->jobs[i]->paused, false) || any;
    if (any) engine_wake(r->served);
}

enum { MOST_PARTS = 4 };

/* Straight into the socket, as long as everything before has left: no event needs to be waited for, and none asked
 * for. False when it must take the long way; what the socket did not take of a chunk is left to the connection. */
static bool send_now(struct request *r, const struct iovec *parts, int n, size_t length) {
    struct bufferevent *bev = bufferevent_of(r->http);
    if (!bev || !r->chunked || evbuffer_get_length(bufferevent_get_output(bev)) > 0) return false;
    char size[24];
    struct iovec all[MOST_PARTS + 2] = {{size, (size_t)snprintf(size, sizeof size, "%zx\r\n", length)}};
    memcpy(all + 1, parts, (size_t)n * sizeof *parts);
    all[n + 1] = (struct iovec){"\r\n", 2};
    ssize_t sent = sendmsg(bufferevent_getfd(bev), &(struct msghdr){.msg_iov = all, .msg_iovlen = (size_t)n + 2},
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return false; /* if the connection is broken, writing the long way finds out */
    for (int i = 0; i < n + 2; i++) {
        size_t done = (size_t)sent < all[i].iov_len ? (size_t)sent : all[i].iov_len;
        sent -= (ssize_t)done;
        if (done < all[i].iov_len) bufferevent_write(bev, (char *)all[i].iov_base + done, all[i].iov_len - done);
    }
    return true;
}

static void send_parts(struct request *r, const struct iovec *parts, int n, size_t length) {
    r->last_sent = tn_time_ns();
    if (send_now(r, parts, n, length)) return;
    struct evbuffer *buffer = evbuffer_new();
    if (!buffer) return;
    for (int i = 0; i < n; i++) evbuffer_add(buffer, parts[i].iov_base, parts[i].iov_len);
    evhttp_send_reply_chunk_with_cb(r->http, buffer, on_drained, r);
    evbuffer_free(buffer);
    struct bufferevent *bev = bufferevent_of(r->http);
    if (bev && evbuffer_get_length(bufferevent_get_output(bev)) > MOST_UNSENT)
        for (size_t i = 0; i < r->n_jobs; i++) atomic_store(&r->jobs[i]->paused, true);
}

static void send_collected(struct request *r) {
    const size_t length = r->n_unsent;
    r->n_unsent = 0;
    if (r->http && length > 0) send_parts(r, &(struct iovec){r->unsent, length}, 1, length);
}

/* While pieces are taken, what they say is collected, so that a connection gets it in one chunk. */
static void send_chunk(struct request *r, const struct iovec *parts, int n) {
    size_t length = 0;
    if (!r->http) return;
    stream_start(r);
    for (int i = 0; i < n; i++) length += parts[i].iov_len;
    if (length > sizeof r->unsent - r->n_unsent) send_collected(r);
    if (!r->served->server->collecting || length > sizeof r->unsent) {
        send_parts(r, parts, n, length);
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
    char *text = r->http && json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (text) stream_send_text(r, event, text, strlen(text));
    free(text);
}

void stream_end(struct request *r) {
    send_collected(r);
    if (!r->http) return;
    struct evhttp_request *http = r->http;
    detach(r);
    evhttp_send_reply_end(http);
}

/* ---- Pieces ---- */

static void end_request(struct request *r) {
    if (r->http && r->failed[0]) {
        struct problem problem = {0};
        problem_set(&problem, 500, "%s", r->failed);
        if (r->started) {
            stream_send(r, NULL, problem_json(&problem));
            stream_end(r);
        } else {
            struct evhttp_request *http = r->http;
            detach(r);
            reply_problem(r->served->server, http, &problem);
        }
    } else if (r->http) {
        r->wording->end(r);
    }
    request_free(r);
}

struct evhttp_request *request_take(struct request *r) {
    struct evhttp_request *http = r->http;
    if (http) detach(r);
    return http;
}

static void take_piece(struct piece *p) {
    struct job *job = p->job;
    struct request *r = job->request;
    if (p->finish) {
        job->done = true;
        job->finish = p->finish;
        job->stats = p->stats;
        memcpy(job->stop_word, p->stop_word, sizeof job->stop_word);
        job->vector = p->vector;
        job->n_vector = p->n_vector;
        if (p->finish == FINISH_ERROR) memcpy(r->failed, p->error, sizeof r->failed);
        if (p->finish == FINISH_CANCELLED && r->http) snprintf(r->failed, sizeof r->failed, "the server is stopping");
    }
    if (r->http && p->finish != FINISH_ERROR && p->finish != FINISH_CANCELLED) r->wording->piece(r, job, p);
    if (p->finish && ++r->n_done == r->n_jobs) end_request(r);
}

/* Sending to many clients costs more than they gain by hearing of every single token: the engine is asked to wait so
 * long before it calls again that sending takes a thirtieth of the time, within what nobody notices. With few
 * clients, or where that is less than two milliseconds, it need not wait. */
void take_pieces(struct served *served) {
    enum { MANY = 8, PAUSES = 29, SHORTEST_PAUSE_NS = 2000000, LONGEST_PAUSE_NS = 30000000 };
    struct server *server = served->server;
    const uint64_t begin = tn_time_ns();
    pthread_mutex_lock(&served->lock);
    struct piece *p = served->outbox;
    served->outbox = NULL;
    served->outbox_end = &served->outbox;
    pthread_mutex_unlock(&served->lock);
    server->collecting = true;
    while (p) {
        struct piece *next = p->next;
        take_piece(p);
        tn_free(p->text);
        tn_free(p);
        p = next;
    }
    server->collecting = false;
    int n_sent = 0;
    for (struct request *r = server->requests; r; r = r->next) {
        n_sent += r->n_unsent > 0;
        send_collected(r);
    }
    const uint64_t end = tn_time_ns();
    uint64_t pause = PAUSES * (end - begin);
    if (pause < SHORTEST_PAUSE_NS || n_sent < MANY) pause = 0;
    if (pause > LONGEST_PAUSE_NS) pause = LONGEST_PAUSE_NS;
    atomic_store(&served->call_after, end + pause);
}

void ping_requests(struct server *server) {
    uint64_t now = tn_time_ns();
    for (struct request *r = server->requests; r; r = r->next)
        if (r->http && r->stream && now - r->last_sent > PING_SECONDS * 1000000000ull)
            stream_send_raw(r, ": ping\n\n");
}

void cancel_requests(struct server *server) {
    for (struct request *r = server->requests; r; r = r->next) cancel(r);
}

/* ---- Routes ---- */

/* What a request needs to be answered: nothing, a model that is loaded already, any model, one that writes. */
enum need { NEEDS_NOTHING, NEEDS_LOADED, NEEDS_MODEL, NEEDS_WRITER };

struct route {
    const char *path;
    enum evhttp_cmd_type method;
    handler *handle;
    enum need need;
    bool is_public;
};

static const struct route routes[] = {
    {"/health", EVHTTP_REQ_GET, serve_health, NEEDS_NOTHING, true},
    {"/v1/health", EVHTTP_REQ_GET, serve_health, NEEDS_NOTHING, true},
    {"/v1/models", EVHTTP_REQ_GET, serve_models, NEEDS_NOTHING, false},
    {"/models", EVHTTP_REQ_GET, serve_models, NEEDS_NOTHING, false},
    {"/v1/completions", EVHTTP_REQ_POST, serve_completions, NEEDS_WRITER, false},
    {"/completions", EVHTTP_REQ_POST, serve_native, NEEDS_WRITER, false},
    {"/completion", EVHTTP_REQ_POST, serve_native, NEEDS_WRITER, false},
    {"/v1/chat/completions", EVHTTP_REQ_POST, serve_chat, NEEDS_WRITER, false},
    {"/chat/completions", EVHTTP_REQ_POST, serve_chat, NEEDS_WRITER, false},
    {"/v1/messages", EVHTTP_REQ_POST, serve_messages, NEEDS_WRITER, false},
    {"/v1/responses", EVHTTP_REQ_POST, serve_responses, NEEDS_WRITER, false},
    {"/v1/embeddings", EVHTTP_REQ_POST, serve_embeddings, NEEDS_MODEL, false},
    {"/embeddings", EVHTTP_REQ_POST, serve_embeddings, NEEDS_MODEL, false},
    {"/tokenize", EVHTTP_REQ_POST, serve_tokenize, NEEDS_MODEL, false},
    {"/detokenize", EVHTTP_REQ_POST, serve_detokenize, NEEDS_MODEL, false},
    {"/apply-template", EVHTTP_REQ_POST, serve_template, NEEDS_MODEL, false},
    {"/tokenizer_info", EVHTTP_REQ_GET, serve_tokenizer_info, NEEDS_MODEL, false},
    {"/props", EVHTTP_REQ_GET, serve_props, NEEDS_MODEL, false},
    {"/slots", EVHTTP_REQ_GET, serve_slots, NEEDS_LOADED, false},
    {"/metrics", EVHTTP_REQ_GET, serve_metrics, NEEDS_LOADED, false},
    {"/memory", EVHTTP_REQ_GET, serve_memory, NEEDS_LOADED, false},
    {"/plan.svg", EVHTTP_REQ_GET, serve_plan, NEEDS_LOADED, false},
};

/* Takes as long for a wrong key as for the right one of the same length. */
static bool same_key(const char *a, const char *b) {
    size_t n = strlen(a), different = n ^ strlen(b);
    for (size_t i = 0; i < n && i < strlen(b); i++) different |= (size_t)(unsigned char)(a[i] ^ b[i]);
    return different == 0;
}

static bool may_enter(const struct server *server, struct evhttp_request *http) {
    if (!server->n_keys) return true;
    struct evkeyvalq *in = evhttp_request_get_input_headers(http);
    const char *key = evhttp_find_header(in, "X-Api-Key"), *bearer = evhttp_find_header(in, "Authorization");
    if (!key && bearer && strncasecmp(bearer, "Bearer ", 7) == 0) key = bearer + 7;
    bool allowed = false;
    for (size_t i = 0; key && i < server->n_keys; i++) allowed = same_key(server->keys[i], key) || allowed;
    return allowed;
}

static bool serve_page(struct server *server, struct evhttp_request *http, const char *path) {
    for (size_t i = 0; i < n_web_files; i++) {
        const struct web_file *file = &web_files[i];
        if (strcmp(path, file->path) != 0) continue;
        evhttp_add_header(evhttp_request_get_output_headers(http), "Content-Security-Policy",
                          "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
                          "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
        reply_text(server, http, 200, file->type, file->bytes, file->length);
        return true;
    }
    return false;
}

/* The model that a request names in its body or its query; NULL: there is none of this name. */
static struct served *model_of(struct server *server, struct evhttp_request *http, json_t *body) {
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(http));
    const char *name = json_string_value(json_object_get(body, "model"));
    struct evkeyvalq values;
    if (!server->on_demand) return server->models[0];
    if (name || !query || evhttp_parse_query_str(query, &values) != 0) return models_find(server, name);
    struct served *served = models_find(server, evhttp_find_header(&values, "model"));
    evhttp_clear_headers(&values);
    return served;
}

static void dispatch(struct server *server, struct evhttp_request *http, const struct route *route, json_t *body) {
    struct problem problem = {0};
    struct served *served = route->need == NEEDS_NOTHING ? server->models[0] : model_of(server, http, body);
    int phase = served ? atomic_load(&served->phase) : PHASE_ABSENT;
    if (route->need == NEEDS_NOTHING) {
        route->handle(served, http, body);
        return;
    }
    if (!served)
        problem_set(&problem, 404, "there is no model of this name; GET /v1/models lists them");
    else if (server->stopping)
        problem_set(&problem, 503, "the server is stopping");
    else if (phase != PHASE_READY && !server->on_demand)
        problem_set(&problem, 503, "the model is being loaded");
    else if (phase != PHASE_READY && route->need == NEEDS_LOADED)
        problem_set(&problem, 503, "the model is not loaded");
    else if (phase != PHASE_READY)
        models_park(served, http, route->handle, route->need == NEEDS_WRITER, body);
    else if (route->need == NEEDS_WRITER && !served->session)
        problem_set(&problem, 501, "this model makes embeddings and does not write");
    else {
        if (route->need != NEEDS_LOADED) {
            served->last_used = tn_time_ns();
            server->current = served;
        }
        route->handle(served, http, body);
    }
    if (problem.code) reply_problem(server, http, &problem);
}

void on_request(struct evhttp_request *http, void *user) {
    struct server *server = user;
    struct problem problem = {0};
    enum evhttp_cmd_type method = evhttp_request_get_command(http);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(http);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    if (!path || !*path) path = "/";
    if (method == EVHTTP_REQ_OPTIONS) {
        struct evkeyvalq *out = evhttp_request_get_output_headers(http);
        evhttp_add_header(out, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        evhttp_add_header(out, "Access-Control-Allow-Headers", "Content-Type, Authorization, X-Api-Key, *");
        evhttp_add_header(out, "Access-Control-Max-Age", "86400");
        reply_text(server, http, 204, "text/plain", "", 0);
        return;
    }
    bool reading = method == EVHTTP_REQ_GET || method == EVHTTP_REQ_HEAD;
    if (reading && serve_page(server, http, path)) return;
    static const struct route slot_route = {"", EVHTTP_REQ_POST, serve_slot_action, NEEDS_LOADED, false};
    const struct route *route = NULL;
    bool known = false, is_slot = strncmp(path, "/slots/", 7) == 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) != 0) continue;
        known = true;
        if (routes[i].method == (method == EVHTTP_REQ_HEAD ? EVHTTP_REQ_GET : method)) route = &routes[i];
    }
    if (is_slot && method == EVHTTP_REQ_POST) route = &slot_route;
    if (!(route && route->is_public) && !may_enter(server, http))
        problem_set(&problem, 401, "a valid API key is needed: Authorization: Bearer KEY");
    else if (!known && !is_slot)
        problem_set(&problem, 404, "there is no %.100s here", path);
    else if (!route)
        problem_set(&problem, 405, "%.100s does not take this method", path);
    if (problem.code) {
        reply_problem(server, http, &problem);
        return;
    }
    json_t *body = NULL;
    /* Erasing a slot needs no body. */
    bool empty = is_slot && evbuffer_get_length(evhttp_request_get_input_buffer(http)) == 0;
    if (route->method == EVHTTP_REQ_POST && !(body = empty ? json_object() : read_body(server, http))) return;
    dispatch(server, http, route, body);
    json_decref(body);
}
