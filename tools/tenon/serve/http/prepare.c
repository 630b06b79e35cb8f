/* Preparing requests on threads other than the HTTP thread: parsing JSON, rendering templates, tokenizing, compiling
 * grammars.
 *
 * The HTTP thread passes a request and its body to one of two threads, one for small and one for large bodies, so
 * that a large request delays only other large ones. The handler runs there as on the HTTP thread, except that its
 * response or submission is recorded and executed by the HTTP thread afterwards. Until then the HTTP thread does not
 * touch the evhttp_request, except to note that the client has disconnected. Where the body decides what is done with
 * the request, a large one is only parsed there (parse_apart), and the HTTP thread continues with it. */
#include "serve/http/http.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SMALL_BODY = 32 * 1024, N_PREPARERS = 2 };

struct preparation {
    struct preparation *next;
    struct server *server;
    struct served *served; /* NULL: the body is only parsed */
    const struct route *route;
    struct evhttp_request *http;
    handler *handle;
    json_t *body; /* NULL: `bytes` are parsed first */
    char *bytes;
    size_t size;
    bool is_list;
    bool closed; /* the client has disconnected */
    /* The outcome: a response, or a request to submit. */
    int code;
    const char *type;
    char *text;
    size_t length;
    struct request *request;
};

struct preparer {
    struct server *server;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct preparation *queue, **queue_end, *done, **done_end;
    struct event *ready;
    bool stopping, started;
};

/* The request that the current thread prepares; NULL on the HTTP thread. */
static _Thread_local struct preparation *current;

bool prepare_reply(int code, const char *type, const void *text, size_t length) {
    if (!current) return false;
    if (current->text || current->request) return true; /* the first answer counts */
    current->code = code;
    current->type = type;
    current->text = malloc(length + 1);
    current->length = current->text ? length : 0;
    if (current->text) memcpy(current->text, text, length);
    return true;
}

bool prepare_submit(struct request *request) {
    if (current) current->request = request;
    return current != NULL;
}

static void run_preparation(struct preparation *p) {
    current = p;
    if (!p->body) p->body = parse_body(p->server, p->http, p->bytes, p->size, p->is_list);
    free(p->bytes);
    p->bytes = NULL;
    if (p->served) {
        if (p->body) p->handle(p->served, p->http, p->body);
        json_decref(p->body);
        p->body = NULL;
    }
    current = NULL;
}

static void *preparer_thread(void *user) {
    struct preparer *t = user;
    /* Large requests may take long, so their thread has a lower priority than the engine. */
    if (t != t->server->preparers) setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->queue && !t->stopping) pthread_cond_wait(&t->wake, &t->lock);
        struct preparation *p = t->queue;
        if (!p) break;
        if (!(t->queue = p->next)) t->queue_end = &t->queue;
        pthread_mutex_unlock(&t->lock);
        run_preparation(p);
        pthread_mutex_lock(&t->lock);
        p->next = NULL;
        *t->done_end = p;
        t->done_end = &p->next;
        event_active(t->ready, EV_READ, 0);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- The HTTP thread ---- */

static void on_preparation_close(struct evhttp_connection *connection, void *user) {
    (void)connection;
    ((struct preparation *)user)->closed = true;
}

static void finish_preparation(struct preparation *p) {
    struct served *served = p->served;
    struct server *server = p->server;
    if (!p->closed) unwatch_close(server, p->http);
    if (p->closed) {
        request_free(p->request);
        evhttp_request_set_on_complete_cb(p->http, NULL, NULL);
        evhttp_request_free(p->http);
    } else if (p->request && server->stopping) {
        struct problem problem = {0};
        problem_set(&problem, 503, "the server is stopping");
        request_free(p->request);
        reply_problem(server, p->http, &problem);
    } else if (p->request) {
        request_submit(p->request);
    } else if (p->body) {
        dispatch_request(server, p->http, p->route, p->body, p->size);
    } else {
        struct problem problem = {0};
        problem_set(&problem, 500, "out of memory");
        if (p->text)
            reply_text(server, p->http, p->code, p->type, p->text, p->length);
        else
            reply_problem(server, p->http, &problem);
    }
    free(p->text);
    json_decref(p->body);
    tn_free(p);
    if (!served) return;
    served->n_alive--;
    models_request_done(served);
}

static void on_prepared(evutil_socket_t fd, short what, void *user) {
    struct preparer *t = user;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&t->lock);
    struct preparation *p = t->done;
    t->done = NULL;
    t->done_end = &t->done;
    pthread_mutex_unlock(&t->lock);
    while (p) {
        struct preparation *next = p->next;
        finish_preparation(p);
        p = next;
    }
}

/* Passes it to the thread for bodies of its size. */
static void queue_preparation(struct preparation *p) {
    struct preparer *t = &p->server->preparers[p->size > SMALL_BODY];
    watch_close(p->server, p->http, on_preparation_close, p);
    pthread_mutex_lock(&t->lock);
    *t->queue_end = p;
    t->queue_end = &p->next;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* With the bytes of the body, which are removed from the request: they are no longer needed there, and answers may
 * take long. NULL: out of memory, or there are no such threads. */
static struct preparation *new_preparation(struct server *server, struct evhttp_request *http, bool with_bytes) {
    struct evbuffer *input = evhttp_request_get_input_buffer(http);
    struct preparation *p = server->preparers ? tn_calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->server = server;
    p->http = http;
    p->size = evbuffer_get_length(input);
    if (with_bytes && !(p->bytes = malloc(p->size + 1))) {
        tn_free(p);
        return NULL;
    }
    if (with_bytes) evbuffer_copyout(input, p->bytes, p->size);
    evbuffer_drain(input, p->size);
    return p;
}

bool prepare_request(struct served *served, struct evhttp_request *http, handler *handle, json_t *body, size_t size) {
    struct preparation *p = new_preparation(served->server, http, !body);
    if (!p) return false;
    if (body) p->size = size;
    p->served = served;
    p->handle = handle;
    p->body = json_incref(body);
    served->n_alive++;
    queue_preparation(p);
    return true;
}

bool parse_apart(struct server *server, struct evhttp_request *http, const struct route *route, bool is_list) {
    if (evbuffer_get_length(evhttp_request_get_input_buffer(http)) <= SMALL_BODY) return false;
    struct preparation *p = new_preparation(server, http, true);
    if (!p) return false;
    p->route = route;
    p->is_list = is_list;
    queue_preparation(p);
    return true;
}

bool preparers_start(struct server *server) {
    server->preparers = tn_calloc(N_PREPARERS, sizeof *server->preparers);
    bool fine = server->preparers != NULL;
    for (int i = 0; fine && i < N_PREPARERS; i++) {
        struct preparer *t = &server->preparers[i];
        t->server = server;
        t->queue_end = &t->queue;
        t->done_end = &t->done;
        pthread_mutex_init(&t->lock, NULL);
        pthread_cond_init(&t->wake, NULL);
        t->ready = event_new(server->base, -1, EV_PERSIST, on_prepared, t);
        fine = t->started = t->ready && pthread_create(&t->thread, NULL, preparer_thread, t) == 0;
    }
    return fine;
}

void preparers_stop(struct server *server) {
    for (int i = 0; server->preparers && i < N_PREPARERS; i++) {
        struct preparer *t = &server->preparers[i];
        if (!t->started) continue;
        pthread_mutex_lock(&t->lock);
        t->stopping = true;
        pthread_cond_signal(&t->wake);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
        on_prepared(-1, 0, t);
        event_free(t->ready);
    }
    tn_free(server->preparers);
    server->preparers = NULL;
}
