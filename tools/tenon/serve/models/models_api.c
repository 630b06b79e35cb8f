/* Loading, unloading, downloading and deleting models on request, and the event stream of their states. */
#include "serve/models/catalog.h"

#include "hub/hub.h"

#include <dirent.h>
#include <event2/buffer.h>
#include <event2/keyvalq_struct.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Listeners ---- */

struct models_listener {
    struct models_listener *next;
    struct server *server;
    struct evhttp_request *http;
};

static void on_listener_close(struct evhttp_connection *connection, void *user) {
    struct models_listener *listener = user, **at = &listener->server->listeners;
    (void)connection;
    while (*at && *at != listener) at = &(*at)->next;
    if (*at) *at = listener->next;
    evhttp_request_free(listener->http);
    tn_free(listener);
}

void serve_models_events(struct served *served, struct evhttp_request *http, json_t *body) {
    struct server *server = served->server;
    struct models_listener *listener = tn_calloc(1, sizeof *listener);
    struct problem problem = {0};
    (void)body;
    if (!listener) {
        problem_set(&problem, 500, "out of memory");
        reply_problem(server, http, &problem);
        return;
    }
    *listener = (struct models_listener){.next = server->listeners, .server = server, .http = http};
    server->listeners = listener;
    add_reply_headers(server, http, "text/event-stream; charset=utf-8");
    evhttp_add_header(evhttp_request_get_output_headers(http), "Cache-Control", "no-cache");
    watch_close(server, http, on_listener_close, listener);
    evhttp_send_reply_start(http, 200, "OK");
}

/* Takes the reference. */
static void send_models_event(struct server *server, json_t *event) {
    char *text = json_dumps(event, JSON_COMPACT);
    json_decref(event);
    for (struct models_listener *l = server->listeners, *next; text && l; l = next) {
        struct evbuffer *out = evbuffer_new();
        next = l->next;
        if (!out) break;
        evbuffer_add_printf(out, "data: %s\n\n", text);
        evhttp_send_reply_chunk(l->http, out);
        evbuffer_free(out);
    }
    free(text);
}

void models_announce(struct served *served, const char *state) {
    if (served->server->listeners)
        send_models_event(served->server, json_pack("{s:s, s:s, s:{s:s}}", "event", "status_change", "model",
                                                    served->alias, "data", "status", state));
}

void models_forget_listeners(struct server *server) {
    while (server->listeners) {
        struct models_listener *listener = server->listeners;
        server->listeners = listener->next;
        unwatch_close(server, listener->http);
        reply_end(server, listener->http);
        tn_free(listener);
    }
}

/* ---- Loading ---- */

static struct served *named_model(struct server *server, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    const char *name = json_string_value(json_object_get(body, "model"));
    struct served *served = name ? models_find(server, name) : NULL;
    if (served && server->on_demand) return served;
    if (!server->on_demand)
        problem_set(&problem, 400, "this server has one model, which is always loaded");
    else
        problem_set(&problem, name ? 404 : 400, name ? "there is no model of this name" : "model is missing");
    reply_problem(server, http, &problem);
    return NULL;
}

void serve_models_load(struct served *any, struct evhttp_request *http, json_t *body) {
    struct served *served = named_model(any->server, http, body);
    if (!served) return;
    models_load(served);
    reply_json(served->server, http, 200, json_pack("{s:b}", "success", 1));
}

void serve_models_unload(struct served *any, struct evhttp_request *http, json_t *body) {
    struct served *served = named_model(any->server, http, body);
    if (!served) return;
    models_unload(served);
    reply_json(served->server, http, 200, json_pack("{s:b}", "success", 1));
}

/* ---- Downloads ---- */

struct model_download {
    struct server *server;
    struct event *done;
    pthread_t thread;
    char repo[256], path[HUB_PATH];
    int code;
};

static void *download_thread(void *user) {
    struct model_download *d = user;
    d->code = hub_fetch(d->server->args, d->repo, NULL, d->path);
    event_active(d->done, EV_READ, 0);
    return NULL;
}

static void on_downloaded(evutil_socket_t fd, short what, void *user) {
    struct model_download *d = user;
    (void)fd;
    (void)what;
    pthread_join(d->thread, NULL);
    event_free(d->done);
    d->server->n_downloads--;
    if (d->code == EXIT_OK) models_reload(d->server);
    send_models_event(d->server, json_pack("{s:s, s:s, s:{s:s}}", "event",
                                           d->code == EXIT_OK ? "download_finished" : "download_failed", "model",
                                           d->repo, "data", "status", d->code == EXIT_OK ? "done" : "failed"));
    tn_free(d);
}

bool models_download(struct server *server, const char *repo, struct problem *problem) {
    if (args_flag(server->args, "offline")) return problem_set(problem, 400, "the server is --offline");
    if (server->n_downloads >= 4) return problem_set(problem, 503, "four downloads are under way; try again");
    struct model_download *d = tn_calloc(1, sizeof *d);
    if (d) d->done = event_new(server->base, -1, EV_PERSIST, on_downloaded, d);
    if (!d || !d->done) {
        tn_free(d);
        return problem_set(problem, 500, "out of memory");
    }
    d->server = server;
    snprintf(d->repo, sizeof d->repo, "%s", repo);
    if (pthread_create(&d->thread, NULL, download_thread, d) != 0) {
        event_free(d->done);
        tn_free(d);
        return problem_set(problem, 500, "cannot start a thread");
    }
    server->n_downloads++;
    send_models_event(
        server, json_pack("{s:s, s:s, s:{s:i}}", "event", "download_progress", "model", repo, "data", "done", 0));
    return true;
}

void serve_models_download(struct served *any, struct evhttp_request *http, json_t *body) {
    struct server *server = any->server;
    struct problem problem = {0};
    const char *name = json_string_value(json_object_get(body, "model"));
    if (!server->on_demand || !server->use_cache)
        problem_set(&problem, 400, "start the server with --models-cache to download models");
    else if (!name || !strchr(name, '/') || strlen(name) > 200 || strstr(name, ".."))
        problem_set(&problem, 400, "model must be OWNER/REPO or OWNER/REPO:QUANT");
    else if (models_download(server, name, &problem)) {
        reply_json(server, http, 200, json_pack("{s:b}", "success", 1));
        return;
    }
    reply_problem(server, http, &problem);
}

/* Removes a link of the cache and the file that it points to. */
bool models_delete(struct served *served, struct problem *problem) {
    char *target = realpath(served->path, NULL);
    if (!served->from_cache)
        problem_set(problem, 400, "only downloaded models can be deleted");
    else if (served->has_thread || served->n_alive || served->waiting)
        problem_set(problem, 400, "the model is in use; unload it first");
    else if (!target || unlink(target) != 0 || (strcmp(target, served->path) != 0 && unlink(served->path) != 0))
        problem_set(problem, 500, "cannot remove the files of %s", served->alias);
    free(target);
    if (problem->code) return false;
    models_reload(served->server);
    return true;
}

void serve_models_delete(struct served *any, struct evhttp_request *http, json_t *body) {
    struct server *server = any->server;
    struct problem problem = {0};
    struct evkeyvalq values = {0};
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(http)), *name = NULL;
    (void)body;
    bool parsed = query && evhttp_parse_query_str(query, &values) == 0;
    if (parsed) name = evhttp_find_header(&values, "model");
    struct served *served = name ? models_find(server, name) : NULL;
    if (!served)
        problem_set(&problem, 404, "there is no model of this name");
    else if (models_delete(served, &problem))
        reply_json(server, http, 200, json_pack("{s:b}", "success", 1));
    if (problem.code) reply_problem(server, http, &problem);
    if (parsed) evhttp_clear_headers(&values);
}
