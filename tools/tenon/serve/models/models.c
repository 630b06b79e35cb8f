/* The models that a server offers: loaded on first request; unloaded when another needs the memory, when too many
 * are loaded, or when idle. Everything here runs on the HTTP thread. */
#include "serve/http/http.h"
#include "serve/models/catalog.h"

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

/* The first of names that are separated by commas, in alphabetical order. */
static void first_name(const char *names, char *out, size_t size) {
    *out = '\0';
    while (*names) {
        char name[256];
        const size_t n = strcspn(names, ",");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), names);
        if (*name && (!*out || strcmp(name, out) < 0)) snprintf(out, size, "%s", name);
        names += n + (names[n] == ',');
    }
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
    served->posted_end = &served->posted;
    pthread_mutex_init(&served->lock, NULL);
    pthread_cond_init(&served->wake, NULL);
    snprintf(served->path, sizeof served->path, "%s", path);
    snprintf(served->alias, sizeof served->alias, "%s", alias ? alias : slash ? slash + 1 : path);
    if (alias && !server->on_demand) first_name(alias, served->alias, sizeof served->alias);
    char *dot = strrchr(served->alias, '.');
    if (!alias && dot && strcasecmp(dot, ".gguf") == 0) *dot = '\0';
    json_t *text = json_string(served->alias);
    if (!text) snprintf(served->alias, sizeof served->alias, "model-%zu", server->n_models);
    json_decref(text);
    server->models[server->n_models++] = served;
    return served;
}

/* A model with several names is found by each of them; its id is the first in alphabetical order. */
static bool has_alias(const struct served *served, const char *name) {
    const char *names = served->server->on_demand ? NULL : served->server->aliases;
    if (strcmp(served->alias, name) == 0) return true;
    while (names && *names) {
        const size_t n = strcspn(names, ",");
        if (n == strlen(name) && memcmp(names, name, n) == 0) return true;
        names += n + (names[n] == ',');
    }
    return false;
}

/* Ollama's clients add a tag to names that have none. */
static struct served *find_without_tag(struct server *server, const char *name) {
    const size_t n = strlen(name), tag = strlen(":latest");
    char shorter[256];
    if (n <= tag || n - tag >= sizeof shorter || strcmp(name + n - tag, ":latest") != 0) return NULL;
    snprintf(shorter, sizeof shorter, "%.*s", (int)(n - tag), name);
    return models_find(server, shorter);
}

struct served *models_find(struct server *server, const char *name) {
    if (!name || !*name) return server->current ? server->current : server->n_models ? server->models[0] : NULL;
    for (size_t i = 0; i < server->n_models; i++)
        if (has_alias(server->models[i], name)) return server->models[i];
    return find_without_tag(server, name);
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

static void release_waiting(struct served *served, const struct problem *problem);

static void on_waiting_close(struct evhttp_connection *connection, void *user) {
    struct waiting_request *p = user;
    (void)connection;
    if (p->http) evhttp_request_free(p->http);
    p->http = NULL;
    /* No request waits for the model any more: it is not loaded. */
    struct served *served = p->served;
    for (struct waiting_request *other = served->waiting; other; other = other->next)
        if (other->http) return;
    if (atomic_load(&served->phase) == PHASE_ABSENT) release_waiting(served, NULL);
}

/* Resumes all waiting requests, or answers them with the problem. */
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
        else if (p->http &&
                 !(json_is_object(p->body) && prepare_request(served, p->http, p->handle, p->body, SIZE_MAX)))
            p->handle(served, p->http, p->body);
        json_decref(p->body);
        tn_free(p);
        p = next;
    }
}

static bool is_idle(const struct served *served) {
    return atomic_load(&served->phase) == PHASE_READY && !served->n_alive && !served->waiting && !served->wanted;
}

/* The idle model that was not used for the longest time, or NULL. */
static struct served *longest_unused(const struct server *server, const struct served *but) {
    struct served *oldest = NULL;
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *other = server->models[i];
        if (other != but && is_idle(other) && (!oldest || other->last_used < oldest->last_used)) oldest = other;
    }
    return oldest;
}

static void unload(struct served *served) {
    atomic_store(&served->phase, PHASE_STOPPING);
    models_announce(served, "unloading");
    engine_wake(served);
}

/* Whether one more model may be loaded. If there are too many, an idle one is unloaded first; loading continues
 * afterwards. */
static bool may_load(struct server *server) {
    int loaded = 0;
    if (server->models_max <= 0) return true;
    for (size_t i = 0; i < server->n_models; i++) {
        if (server->models[i]->has_thread) loaded++;
        if (server->models[i]->has_thread && atomic_load(&server->models[i]->phase) == PHASE_STOPPING)
            return false; /* room is being made */
    }
    if (loaded < server->models_max) return true;
    struct served *oldest = longest_unused(server, NULL);
    if (oldest) unload(oldest);
    return false;
}

/* The model that was requested first is loaded first. */
static struct served *next_to_load(const struct server *server) {
    struct served *next = NULL;
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *served = server->models[i];
        if ((!served->waiting && !served->wanted) || atomic_load(&served->phase) != PHASE_ABSENT ||
            served->has_thread)
            continue;
        if (!next || served->asked < next->asked) next = served;
    }
    return next;
}

static void load_next(struct server *server) {
    struct served *served;
    while (!server->loading && !server->stopping && (served = next_to_load(server)) && may_load(server)) {
        served->error[0] = '\0';
        if (engine_start(served) == EXIT_OK) {
            server->loading = served;
            models_announce(served, "loading");
            return;
        }
        struct problem problem = {0};
        problem_set(&problem, 500, "cannot load %s: cannot start a thread", served->alias);
        served->wanted = false;
        release_waiting(served, &problem);
    }
}

void models_load(struct served *served) {
    if (!served->wanted && !served->waiting) served->asked = tn_time_ns();
    served->wanted = atomic_load(&served->phase) != PHASE_READY && atomic_load(&served->phase) != PHASE_LOADING;
    load_next(served->server);
}

void models_unload(struct served *served) {
    served->wanted = false;
    if (atomic_load(&served->phase) == PHASE_READY) unload(served);
}

void models_request_done(struct served *served) {
    if (served->server->models_max > 0) load_next(served->server);
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
    if (!served->waiting && !served->wanted) served->asked = tn_time_ns();
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
    for (size_t i = 0; i < server->n_models; i++)
        if (server->models[i]->unloaded_for) return; /* already in progress */
    struct served *oldest = longest_unused(server, wanting);
    if (!oldest) {
        answer_memory(wanting, MEMORY_UNAVAILABLE);
        return;
    }
    oldest->unloaded_for = wanting;
    unload(oldest);
}

/* ---- Sleep ---- */

static void forget_sleep(struct served *served) {
    served->sleeping = false;
    json_decref(served->props);
    served->props = NULL;
    for (int i = 0; i < 2; i++) {
        free(served->last_metrics[i]);
        served->last_metrics[i] = NULL;
    }
}

/* The only model is unloaded after an idle time. Responses that do not need it are kept. */
void models_tick(struct server *server) {
    struct served *served = server->n_models ? server->models[0] : NULL;
    if (server->on_demand || server->sleep_after <= 0 || !served || server->stopping || !is_idle(served)) return;
    if ((double)(tn_time_ns() - served->last_used) < server->sleep_after * 1e9) return;
    forget_sleep(served);
    served->props = props_json(served);
    json_object_set_new(served->props, "is_sleeping", json_true());
    served->last_metrics[0] = metrics_text(server);
    served->last_metrics[1] = metrics_text(server);
    if (!served->props || !served->last_metrics[0] || !served->last_metrics[1])
        return; /* out of memory: stays loaded */
    served->sleeping = true;
    unload(served);
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
    served->wanted = false;
    served->last_used = tn_time_ns();
    server->current = served;
    forget_sleep(served);
    print_ready(served);
    models_announce(served, "loaded");
    release_waiting(served, NULL);
}

static void on_ended(struct served *served, int phase) {
    struct server *server = served->server;
    struct served *wanting = served->unloaded_for;
    struct problem problem = {0};
    if (phase == PHASE_FAILED && !server->on_demand && !served->sleeping) {
        /* Requests that failed because a rank was lost get their replies first. */
        const struct timeval soon = {.tv_usec = server->net || served->last_used ? 300000 : 0};
        event_base_loopexit(server->base, &soon);
        return;
    }
    if (phase == PHASE_FAILED)
        problem_set(&problem, served->status == TN_E_TOO_BIG ? 503 : 500, "cannot load %s: %s", served->alias,
                    served->error);
    if (phase == PHASE_FAILED) hide_folder(problem.text, served->path);
    if (phase == PHASE_FAILED) served->wanted = false;
    if (server->loading == served) server->loading = NULL;
    if (server->current == served) server->current = NULL;
    served->unloaded_for = NULL;
    engine_join(served);
    if (phase != PHASE_FAILED) {
        served->error[0] = '\0';
        fprintf(stderr, "tenon: %s is unloaded\n", served->alias);
    }
    models_announce(served, phase == PHASE_FAILED ? "failed" : "unloaded");
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

void models_drop(struct served *served) {
    forget_sleep(served);
    event_free(served->outbox_ready);
    pthread_mutex_destroy(&served->lock);
    pthread_cond_destroy(&served->wake);
    tn_free(served);
}

void models_free(struct server *server) {
    fit_forget(server);
    for (size_t i = 0; i < server->n_models; i++) {
        struct served *served = server->models[i];
        engine_join(served);
        models_drop(served);
    }
    tn_free(server->models);
}
