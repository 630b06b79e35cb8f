/* The models that a server offers: found in a folder, loaded when first requested, unloaded when another needs the
 * memory. Everything here runs on the HTTP thread. */
#include "http.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void on_outbox(evutil_socket_t fd, short what, void *user) {
    struct served *served = user;
    (void)fd;
    (void)what;
    take_pieces(served);
    models_event(served);
}

struct served *models_add(struct server *server, const char *path, const char *alias) {
    struct served *served = tn_calloc(1, sizeof *served);
    struct served **models = tn_realloc(server->models, (server->n_models + 1) * sizeof *models);
    if (models) server->models = models;
    struct event *ready = served && models ? event_new(server->base, -1, EV_PERSIST, on_outbox, served) : NULL;
    if (!ready) {
        tn_free(served);
        return NULL;
    }
    const char *slash = strrchr(path, '/');
    served->server = server;
    served->outbox_ready = ready;
    served->queue_end = &served->queue;
    served->outbox_end = &served->outbox;
    pthread_mutex_init(&served->lock, NULL);
    pthread_cond_init(&served->wake, NULL);
    snprintf(served->path, sizeof served->path, "%s", path);
    snprintf(served->alias, sizeof served->alias, "%s", alias ? alias : slash ? slash + 1 : path);
    char *dot = strrchr(served->alias, '.');
    if (!alias && dot && strcasecmp(dot, ".gguf") == 0) *dot = '\0';
    json_t *text = json_string(served->alias);
    if (!text) snprintf(served->alias, sizeof served->alias, "model-%zu", server->n_models);
    json_decref(text);
    server->models[server->n_models++] = served;
    return served;
}

/* Of a split model only the first file is listed. */
static int is_model(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.'), *part = strstr(entry->d_name, "-of-");
    if (entry->d_name[0] == '.' || !dot || strcasecmp(dot, ".gguf") != 0) return 0;
    return !part || part - entry->d_name < 6 || strncmp(part - 6, "-00001", 6) == 0;
}

int models_scan(struct server *server, const char *folder) {
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, is_model, alphasort), code = EXIT_OK;
    if (n < 0) return fail("cannot read the folder %s", folder);
    for (int i = 0; i < n; i++) {
        char path[4096];
        bool fits = (size_t)snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < sizeof path;
        if (!code && (!fits || !models_add(server, path, NULL))) code = fail_status(TN_E_NOMEM, "%s", folder);
        free(entries[i]);
    }
    free(entries);
    if (!code && n == 0) code = fail("there are no GGUF files in %s", folder);
    return code;
}

struct served *models_find(struct server *server, const char *name) {
    if (!name || !*name) return server->current ? server->current : server->models[0];
    for (size_t i = 0; i < server->n_models; i++)
        if (strcmp(server->models[i]->alias, name) == 0) return server->models[i];
    return NULL;
}

/* ---- Requests that wait for a model ---- */

struct waiting_request {
    struct waiting_request *next;
    struct served *served;
    struct evhttp_request *http; /* NULL once the client has disconnected */
    handler *handle;
    bool generates;
    json_t *body;
};

static void on_waiting_close(struct evhttp_connection *connection, void *user) {
    struct waiting_request *p = user;
    (void)connection;
    if (p->http) evhttp_request_free(p->http);
    p->http = NULL;
}

/* Lets all waiting requests go on, or answers them with the problem. */
static void release_waiting(struct served *served, const struct problem *problem) {
    struct waiting_request *p = served->waiting;
    served->waiting = NULL;
    while (p) {
        struct waiting_request *next = p->next;
        struct problem own = problem ? *problem : (struct problem){0};
        if (p->http) unwatch_close(served->server, p->http);
        if (!problem && p->generates && !served->session)
            problem_set(&own, 501, "this model makes embeddings and cannot generate text");
        if (p->http && own.code)
            reply_problem(served->server, p->http, &own);
        else if (p->http)
            p->handle(served, p->http, p->body);
        json_decref(p->body);
        tn_free(p);
        p = next;
    }
}

static void load_next(struct server *server) {
    for (size_t i = 0; i < server->n_models && !server->loading && !server->stopping; i++) {
        struct served *served = server->models[i];
        if (!served->waiting || atomic_load(&served->phase) != PHASE_ABSENT || served->has_thread) continue;
        if (engine_start(served) == EXIT_OK) {
            server->loading = served;
            continue;
        }
        struct problem problem = {0};
        problem_set(&problem, 500, "%s could not be loaded: cannot start a thread", served->alias);
        release_waiting(served, &problem);
    }
}

void models_wait(struct served *served, struct evhttp_request *http, handler *handle, bool generates, json_t *body) {
    struct problem problem = {0};
    struct waiting_request *p = tn_calloc(1, sizeof *p), **end = &served->waiting;
    if (!p) {
        problem_set(&problem, 500, "out of memory");
        reply_problem(served->server, http, &problem);
        return;
    }
    *p = (struct waiting_request){
        .served = served, .http = http, .handle = handle, .generates = generates, .body = json_incref(body)};
    while (*end) end = &(*end)->next;
    *end = p;
    watch_close(served->server, http, on_waiting_close, p);
    load_next(served->server);
}

/* ---- Loading and unloading ---- */

static void answer_memory(struct served *served, enum memory_request answer) {
    pthread_mutex_lock(&served->lock);
    if (served->memory == MEMORY_REQUESTED) served->memory = answer;
    pthread_cond_signal(&served->wake);
    pthread_mutex_unlock(&served->lock);
}

/* Unloads the least recently used idle model. */
static void unload_idle(struct served *wanting) {
    struct server *server = wanting->server;
    struct served *oldest = NULL;
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *other = server->models[i];
        if (other->unloaded_for) return; /* already in progress */
        if (other == wanting || atomic_load(&other->phase) != PHASE_READY || other->n_alive || other->waiting)
            continue;
        if (!oldest || other->last_used < oldest->last_used) oldest = other;
    }
    if (!oldest) {
        answer_memory(wanting, MEMORY_UNAVAILABLE);
        return;
    }
    oldest->unloaded_for = wanting;
    atomic_store(&oldest->phase, PHASE_STOPPING);
    engine_wake(oldest);
}

static void print_ready(const struct served *served) {
    const struct server *server = served->server;
    const char *why = served->context_note;
    fprintf(stderr, "tenon: %s is ready: %d slots share a context of %d%s%s%s", served->alias, server->n_slots,
            served->n_pool, *why ? " (" : "", why, *why ? ")" : "");
    if (served->n_ctx < served->n_pool) fprintf(stderr, ", %d at most for a request", served->n_ctx);
    fputc('\n', stderr);
}

static void on_loaded(struct served *served) {
    struct server *server = served->server;
    server->loading = NULL;
    served->last_used = tn_time_ns();
    server->current = served;
    print_ready(served);
    release_waiting(served, NULL);
}

static void on_ended(struct served *served, int phase) {
    struct server *server = served->server;
    struct served *wanting = served->unloaded_for;
    struct problem problem = {0};
    if (phase == PHASE_FAILED && !server->on_demand) {
        event_base_loopbreak(server->base);
        return;
    }
    if (phase == PHASE_FAILED)
        problem_set(&problem, served->status == TN_E_TOO_BIG ? 503 : 500, "%s could not be loaded: %s", served->alias,
                    served->error);
    if (server->loading == served) server->loading = NULL;
    if (server->current == served) server->current = NULL;
    served->unloaded_for = NULL;
    engine_join(served);
    if (phase != PHASE_FAILED) fprintf(stderr, "tenon: %s is unloaded\n", served->alias);
    if (problem.code) release_waiting(served, &problem);
    if (wanting) answer_memory(wanting, MEMORY_FREED);
}

void models_event(struct served *served) {
    struct server *server = served->server;
    pthread_mutex_lock(&served->lock);
    bool wants_memory = served->memory == MEMORY_REQUESTED;
    pthread_mutex_unlock(&served->lock);
    int phase = atomic_load(&served->phase);
    if (server->loading == served && phase == PHASE_READY) on_loaded(served);
    if (wants_memory) unload_idle(served);
    if (served->has_thread && atomic_load(&served->ended) && !server->stopping) on_ended(served, phase);
    load_next(server);
}

void models_stop(struct server *server) {
    server->stopping = true;
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *served = server->models[i];
        struct problem problem = {0};
        int ready = PHASE_READY, loading = PHASE_LOADING;
        if (!atomic_compare_exchange_strong(&served->phase, &ready, PHASE_STOPPING))
            atomic_compare_exchange_strong(&served->phase, &loading, PHASE_STOPPING);
        problem_set(&problem, 503, "the server is stopping");
        release_waiting(served, &problem);
        engine_wake(served);
    }
}

void models_free(struct server *server) {
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *served = server->models[i];
        engine_join(served);
        event_free(served->outbox_ready);
        pthread_mutex_destroy(&served->lock);
        pthread_cond_destroy(&served->wake);
        tn_free(served);
    }
    tn_free(server->models);
}
