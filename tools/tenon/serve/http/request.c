/* Requests and their connections: from the handler that creates them to the last piece of output from the engine. */
#include "serve/http/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <string.h>

/* ---- Requests ---- */

struct request *request_new(struct served *served, struct evhttp_request *http, const struct response_format *format,
                            const char *id_prefix) {
    struct request *r = tn_calloc(1, sizeof *r);
    if (!r) return NULL;
    unsigned char random[12];
    evutil_secure_rng_get_bytes(random, sizeof random);
    int n = snprintf(r->id, sizeof r->id, "%s", id_prefix);
    for (size_t i = 0; i < sizeof random; i++) n += snprintf(r->id + n, sizeof r->id - (size_t)n, "%02x", random[i]);
    r->served = served;
    r->http = http;
    r->format = format;
    r->key = prefix_key(served->server, http);
    r->created = time(NULL);
    r->begin = r->last_sent = tn_time_ns();
    return r;
}

/* The list has only requests that were submitted to the engine. */
static void link_request(struct request *r) {
    struct server *server = r->served->server;
    r->next = server->requests;
    if (r->next) r->next->previous = r;
    server->requests = r;
    r->served->n_alive++;
    r->linked = true;
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
    job->slot = -1;
    job->key = r->key;
    memcpy(job->scales, r->served->scales, sizeof job->scales);
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
    tn_free(job->biases);
    tn_free(job->vector);
    tn_free(job);
}

void request_free(struct request *r) {
    if (!r) return;
    recording_end(r);
    if (r->previous)
        r->previous->next = r->next;
    else if (r->linked)
        r->served->server->requests = r->next;
    if (r->next) r->next->previous = r->previous;
    for (size_t i = 0; i < r->n_jobs; i++) job_free(r->jobs[i]);
    tn_free(r->jobs);
    json_decref(r->extra);
    free(r->head);
    tn_chat_prompt_free(r->prompt);
    tn_grammar_state_free(r->grammar);
    tn_free(r->schema_notes);
    struct served *served = r->served;
    const bool linked = r->linked;
    served->n_waiting_for_cells -= r->waits_for_cells;
    tn_free(r);
    if (!linked) return;
    served->n_alive--;
    served->last_used = tn_time_ns();
    models_request_done(served);
}

void request_cancel(struct request *r) {
    for (size_t i = 0; i < r->n_jobs; i++) atomic_store(&r->jobs[i]->cancelled, true);
    engine_wake(r->served);
}

struct bufferevent *bufferevent_of(struct evhttp_request *http) {
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    return connection ? evhttp_connection_get_bufferevent(connection) : NULL;
}

/* The client closed the connection. libevent has detached the evhttp_request, so that it is freed here. */
static void on_request_close(struct evhttp_connection *connection, void *user) {
    struct request *r = user;
    (void)connection;
    if (!r->http) return;
    evhttp_request_set_on_complete_cb(r->http, NULL, NULL);
    evhttp_request_free(r->http);
    r->http = NULL;
    if (!r->recording) request_cancel(r);
}

void unwatch_close(struct server *server, struct evhttp_request *http) {
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    struct bufferevent *bev = bufferevent_of(http);
    if (connection) evhttp_connection_set_closecb(connection, NULL, NULL);
    if (bev) {
        struct timeval timeout = {.tv_sec = (time_t)server->timeout};
        bufferevent_set_timeouts(bev, &timeout, &timeout);
    }
}

void request_detach(struct request *r) {
    unwatch_close(r->served->server, r->http);
    r->http = NULL;
}

/* Bounds the bytes stored for a client that sends more before it has its response; evhttp continues to read for the
 * next request. A watermark would do the same, but libevent 2.1.12 crashes when it has no memory for one. */
static void on_early_input(struct bufferevent *bev, void *connection) {
    (void)connection;
    if (evbuffer_get_length(bufferevent_get_input(bev)) >= 64 * 1024) bufferevent_disable(bev, EV_READ);
}
/* evhttp's own read callback would end the program on bytes that arrive before the response, so it is removed until
 * evhttp sets it again for the next request. */
void watch_close(struct server *server, struct evhttp_request *http,
                 void (*closed)(struct evhttp_connection *connection, void *user), void *user) {
    struct evhttp_connection *connection = evhttp_request_get_connection(http);
    struct bufferevent *bev = bufferevent_of(http);
    if (!connection || !bev) return;
    bufferevent_data_cb on_read, on_write;
    bufferevent_event_cb on_event;
    void *own;
    struct timeval timeout = {.tv_sec = (time_t)server->timeout};
    bufferevent_getcb(bev, &on_read, &on_write, &on_event, &own);
    bufferevent_setcb(bev, on_early_input, on_write, on_event, own);
    bufferevent_set_timeouts(bev, NULL, &timeout);
    bufferevent_enable(bev, EV_READ);
    evhttp_connection_set_closecb(connection, closed, user);
}

void request_submit(struct request *r) {
    struct problem problem = {0};
    if (prepare_submit(r)) return;
    link_request(r);
    if (!engine_submit(r->served, r->jobs, r->n_jobs)) {
        problem_set(&problem, 503, "all slots are busy and the queue is full; try again");
        reply_problem(r->served->server, r->http, &problem);
        request_free(r);
        return;
    }
    r->served->server->n_requests++;
    watch_close(r->served->server, r->http, on_request_close, r);
    if (r->stream) recording_begin(r);
    if (r->stream) stream_start(r);
}

void request_start(struct request *r, struct evhttp_request *http, struct served *served, bool fine,
                   struct problem *problem) {
    if (fine) {
        request_submit(r);
        return;
    }
    request_free(r);
    reply_problem(served->server, http, problem);
}

/* ---- Pieces ---- */

static void end_request(struct request *r) {
    if (r->http && r->failed[0]) {
        struct problem problem = {0};
        problem_set(&problem, r->failed_code ? r->failed_code : 500, "%s", r->failed);
        if (r->started) {
            json_t *error = problem_for(r->http, &problem);
            if (r->lines) {
                char *line = json_dumps(error, JSON_COMPACT);
                if (line) stream_send_raw(r, line);
                free(line);
                json_decref(error);
            } else
                stream_send(r, json_object_get(error, "type") ? "error" : NULL, error);
            stream_end(r);
        } else {
            struct evhttp_request *http = r->http;
            request_detach(r);
            reply_problem(r->served->server, http, &problem);
        }
    } else if (r->http || (r->recording && !r->failed[0])) {
        r->format->end(r);
    }
    request_free(r);
}

struct evhttp_request *request_take(struct request *r) {
    struct evhttp_request *http = r->http;
    if (http) request_detach(r);
    return http;
}

static void handle_piece(struct piece *p) {
    struct job *job = p->job;
    struct request *r = job->request;
    if (p->progress || job->timings) job->stats = p->stats;
    if (p->progress) {
        if ((r->http || r->recording) && r->stream && r->format->progress) r->format->progress(r, job);
        return;
    }
    if (p->finish) {
        job->done = true;
        job->finish = p->finish;
        job->stats = p->stats;
        memcpy(job->stop_word, p->stop_word, sizeof job->stop_word);
        job->vector = p->vector;
        job->n_vector = p->n_vector;
        if (p->finish == FINISH_ERROR) {
            memcpy(r->failed, p->error, sizeof r->failed);
            r->failed_code = p->error_code;
        }
        if (p->finish == FINISH_CANCELLED && r->http) snprintf(r->failed, sizeof r->failed, "the server is stopping");
    }
    if ((r->http || r->recording) && p->finish != FINISH_ERROR && p->finish != FINISH_CANCELLED)
        r->format->piece(r, job, p);
    if (p->finish && ++r->n_done == r->n_jobs) end_request(r);
}

/* With many clients, sending every token as a separate chunk takes processor time from the engine. After a round of
 * sending, the engine therefore waits 29 times as long as that took before it wakes this thread again: sending then
 * takes a thirtieth of the time. The wait is at most 30 ms, too short to notice, and is skipped with few clients or
 * below 2 ms. */
void take_pieces(struct served *served) {
    enum { MANY_CLIENTS = 8, PAUSE_FACTOR = 29, SHORTEST_PAUSE_NS = 2000000, LONGEST_PAUSE_NS = 30000000 };
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
        handle_piece(p);
        tn_free(p->text);
        tn_free(p);
        p = next;
    }
    server->collecting = false;
    int n_sent = 0;
    for (struct request *r = server->requests; r; r = r->next) {
        n_sent += r->n_unsent > 0;
        stream_send_collected(r);
    }
    const uint64_t end = tn_time_ns();
    uint64_t pause = PAUSE_FACTOR * (end - begin);
    if (pause < SHORTEST_PAUSE_NS || n_sent < MANY_CLIENTS) pause = 0;
    if (pause > LONGEST_PAUSE_NS) pause = LONGEST_PAUSE_NS;
    atomic_store(&served->call_after, end + pause);
}

void ping_requests(struct server *server) {
    const uint64_t now = tn_time_ns(), pause = (uint64_t)server->ping_seconds * 1000000000u;
    if (server->ping_seconds < 0) return;
    for (struct request *r = server->requests; r; r = r->next)
        if (r->http && r->stream && !r->lines && now - r->last_sent > pause) stream_send_raw(r, ": ping\n\n");
}

void cancel_requests(struct server *server) {
    for (struct request *r = server->requests; r; r = r->next) request_cancel(r);
}
