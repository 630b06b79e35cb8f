/* Routes: API keys, the files of the web UI, and the handler of each path. */
#include "serve/http/http.h"

#include <event2/buffer.h>
#include <event2/keyvalq_struct.h>
#include <string.h>
#include <strings.h>

enum { MAX_OWN_BODY = 512 * 1024 }; /* bytes of the body of a request that the HTTP thread handles itself */

/* The model that a route needs: none, a known name, one that is already loaded, any loaded model, or one that
 * generates text. */
enum route_need { NEEDS_NOTHING, NEEDS_NAME, NEEDS_LOADED, NEEDS_MODEL, NEEDS_GENERATOR };

struct route {
    const char *path;
    enum evhttp_cmd_type method;
    handler *handle;
    enum route_need need;
    bool is_public;
};

static const struct route routes[] = {
    {"/health", EVHTTP_REQ_GET, serve_health, NEEDS_NOTHING, true},
    {"/v1/health", EVHTTP_REQ_GET, serve_health, NEEDS_NOTHING, true},
    {"/v1/models", EVHTTP_REQ_GET, serve_models, NEEDS_NOTHING, false},
    {"/models", EVHTTP_REQ_GET, serve_models, NEEDS_NOTHING, false},
    {"/models", EVHTTP_REQ_POST, serve_models_download, NEEDS_NOTHING, false},
    {"/models", EVHTTP_REQ_DELETE, serve_models_delete, NEEDS_NOTHING, false},
    {"/models/sse", EVHTTP_REQ_GET, serve_models_events, NEEDS_NOTHING, false},
    {"/models/load", EVHTTP_REQ_POST, serve_models_load, NEEDS_NOTHING, false},
    {"/models/unload", EVHTTP_REQ_POST, serve_models_unload, NEEDS_NOTHING, false},
    {"/v1/completions", EVHTTP_REQ_POST, serve_completions, NEEDS_GENERATOR, false},
    {"/completions", EVHTTP_REQ_POST, serve_native, NEEDS_GENERATOR, false},
    {"/completion", EVHTTP_REQ_POST, serve_native, NEEDS_GENERATOR, false},
    {"/infill", EVHTTP_REQ_POST, serve_infill, NEEDS_GENERATOR, false},
    {"/v1/chat/completions", EVHTTP_REQ_POST, serve_chat, NEEDS_GENERATOR, false},
    {"/chat/completions", EVHTTP_REQ_POST, serve_chat, NEEDS_GENERATOR, false},
    {"/v1/chat/completions/input_tokens", EVHTTP_REQ_POST, serve_chat_count, NEEDS_GENERATOR, false},
    {"/chat/completions/input_tokens", EVHTTP_REQ_POST, serve_chat_count, NEEDS_GENERATOR, false},
    {"/v1/messages", EVHTTP_REQ_POST, serve_messages, NEEDS_GENERATOR, false},
    {"/v1/messages/count_tokens", EVHTTP_REQ_POST, serve_message_count, NEEDS_GENERATOR, false},
    {"/v1/responses", EVHTTP_REQ_POST, serve_responses, NEEDS_GENERATOR, false},
    {"/responses", EVHTTP_REQ_POST, serve_responses, NEEDS_GENERATOR, false},
    {"/v1/responses/input_tokens", EVHTTP_REQ_POST, serve_response_count, NEEDS_GENERATOR, false},
    {"/responses/input_tokens", EVHTTP_REQ_POST, serve_response_count, NEEDS_GENERATOR, false},
    {"/v1/embeddings", EVHTTP_REQ_POST, serve_embeddings, NEEDS_MODEL, false},
    {"/embeddings", EVHTTP_REQ_POST, serve_native_embeddings, NEEDS_MODEL, false},
    {"/embedding", EVHTTP_REQ_POST, serve_native_embeddings, NEEDS_MODEL, false},
    {"/v1/rerank", EVHTTP_REQ_POST, serve_rerank, NEEDS_MODEL, false},
    {"/rerank", EVHTTP_REQ_POST, serve_rerank, NEEDS_MODEL, false},
    {"/v1/reranking", EVHTTP_REQ_POST, serve_rerank, NEEDS_MODEL, false},
    {"/reranking", EVHTTP_REQ_POST, serve_rerank, NEEDS_MODEL, false},
    {"/api/version", EVHTTP_REQ_GET, serve_ollama_version, NEEDS_NOTHING, false},
    {"/api/tags", EVHTTP_REQ_GET, serve_ollama_tags, NEEDS_NOTHING, false},
    {"/api/ps", EVHTTP_REQ_GET, serve_ollama_running, NEEDS_NOTHING, false},
    {"/api/show", EVHTTP_REQ_POST, serve_ollama_show, NEEDS_MODEL, false},
    {"/api/chat", EVHTTP_REQ_POST, serve_ollama_chat, NEEDS_GENERATOR, false},
    {"/api/generate", EVHTTP_REQ_POST, serve_ollama_generate, NEEDS_GENERATOR, false},
    {"/api/embed", EVHTTP_REQ_POST, serve_ollama_embed, NEEDS_MODEL, false},
    {"/api/embeddings", EVHTTP_REQ_POST, serve_ollama_embeddings, NEEDS_MODEL, false},
    {"/v1/stream", EVHTTP_REQ_GET, serve_recording, NEEDS_NOTHING, false},
    {"/v1/stream", EVHTTP_REQ_DELETE, serve_recording_stop, NEEDS_NOTHING, false},
    {"/predict", EVHTTP_REQ_POST, serve_predict, NEEDS_GENERATOR, false},
    {"/tokenize", EVHTTP_REQ_POST, serve_tokenize, NEEDS_MODEL, false},
    {"/detokenize", EVHTTP_REQ_POST, serve_detokenize, NEEDS_MODEL, false},
    {"/apply-template", EVHTTP_REQ_POST, serve_template, NEEDS_MODEL, false},
    {"/tokenizer_info", EVHTTP_REQ_GET, serve_tokenizer_info, NEEDS_MODEL, false},
    {"/props", EVHTTP_REQ_GET, serve_props, NEEDS_NAME, false},
    {"/slots", EVHTTP_REQ_GET, serve_slots, NEEDS_LOADED, false},
    {"/lora-adapters", EVHTTP_REQ_GET, serve_adapters, NEEDS_LOADED, false},
    {"/lora-adapters", EVHTTP_REQ_POST, serve_adapter_scales, NEEDS_LOADED, false},
    {"/metrics", EVHTTP_REQ_GET, serve_metrics, NEEDS_NAME, false},
    {"/memory", EVHTTP_REQ_GET, serve_memory, NEEDS_LOADED, false},
    {"/plan.svg", EVHTTP_REQ_GET, serve_plan, NEEDS_LOADED, false},
    {"/plan.json", EVHTTP_REQ_GET, serve_plan_list, NEEDS_LOADED, false},
    {"/frontier.svg", EVHTTP_REQ_GET, serve_frontier, NEEDS_LOADED, false},
    {"/fit", EVHTTP_REQ_POST, serve_fit, NEEDS_NOTHING, false},
};

/* Takes the same time for a wrong key as for the right one of the same length. */
static bool same_key(const char *a, const char *b) {
    size_t n = strlen(a), different = n ^ strlen(b);
    for (size_t i = 0; i < n && i < strlen(b); i++) different |= (size_t)(unsigned char)(a[i] ^ b[i]);
    return different == 0;
}

/* The key that the client has sent, or NULL. */
static const char *sent_key(struct evhttp_request *http) {
    struct evkeyvalq *in = evhttp_request_get_input_headers(http);
    const char *key = evhttp_find_header(in, "X-Api-Key"), *bearer = evhttp_find_header(in, "Authorization");
    return !key && bearer && strncasecmp(bearer, "Bearer ", 7) == 0 ? bearer + 7 : key;
}

uint64_t prefix_key(const struct server *server, struct evhttp_request *http) {
    uint64_t hash = 0xcbf29ce484222325u;
    const char *key = server->n_keys && !server->share_prefixes ? sent_key(http) : NULL;
    for (; key && *key; key++) hash = (hash ^ (unsigned char)*key) * 0x100000001b3u;
    return hash;
}

bool key_is_valid(const struct server *server, const char *key) {
    bool allowed = false;
    for (size_t i = 0; i < server->n_keys; i++) allowed = same_key(server->keys[i], key) || allowed;
    return allowed;
}

static bool has_valid_key(const struct server *server, struct evhttp_request *http) {
    const char *key = sent_key(http);
    return !server->n_keys || (key && key_is_valid(server, key));
}

/* Browsers cache the files, but revalidate them each time. */
static bool serve_web_ui(struct server *server, struct evhttp_request *http, const char *path) {
    for (size_t i = 0; i < n_web_files; i++) {
        const struct web_file *file = &web_files[i];
        if (strcmp(path, file->path) != 0) continue;
        struct evkeyvalq *out = evhttp_request_get_output_headers(http);
        const char *known = evhttp_find_header(evhttp_request_get_input_headers(http), "If-None-Match");
        evhttp_add_header(out, "Content-Security-Policy",
                          "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
                          "font-src 'self'; worker-src 'self'; connect-src 'self'; base-uri 'none'; "
                          "form-action 'none'; frame-ancestors 'none'");
        evhttp_add_header(out, "Referrer-Policy", "no-referrer");
        evhttp_add_header(out, "Cache-Control", "no-cache");
        evhttp_add_header(out, "ETag", file->tag);
        if (known && strcmp(known, file->tag) == 0) {
            reply_text(server, http, 304, file->type, "", 0);
            return true;
        }
        if (file->compressed) evhttp_add_header(out, "Content-Encoding", "gzip");
        reply_text(server, http, 200, file->type, file->bytes, file->length);
        return true;
    }
    return false;
}

/* The model that a request names in its body or query; NULL when there is none of this name. */
static struct served *requested_model(struct server *server, struct evhttp_request *http, json_t *body) {
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(http));
    const char *name = json_string_value(json_object_get(body, "model"));
    struct evkeyvalq values;
    if (!server->on_demand) return server->models[0];
    if (name || !query || evhttp_parse_query_str(query, &values) != 0) return models_find(server, name);
    struct served *served = models_find(server, evhttp_find_header(&values, "model"));
    evhttp_clear_headers(&values);
    return served;
}

void dispatch_request(struct server *server, struct evhttp_request *http, const struct route *route, json_t *body,
                      size_t size) {
    struct problem problem = {0};
    struct served *served = route->need == NEEDS_NOTHING ? server->models[0] : requested_model(server, http, body);
    int phase = served ? atomic_load(&served->phase) : PHASE_ABSENT;
    if (route->need == NEEDS_NOTHING) {
        route->handle(served, http, body);
        return;
    }
    if (served && route->need == NEEDS_NAME) {
        route->handle(served, http, body);
        return;
    }
    if (!served) {
        problem_set(&problem, 404, "unknown model; GET /v1/models lists the available ones");
        problem.more = json_pack("{s:s}", "code", "model_not_found");
    } else if (server->stopping)
        problem_set(&problem, 503, "the server is stopping");
    else if (phase != PHASE_READY && phase != PHASE_LOADING && server->on_demand && !server->autoload)
        problem_set(&problem, 400, "the model is not loaded; POST /models/load loads it");
    else if (phase != PHASE_READY && !server->on_demand && !served->sleeping)
        problem_set(&problem, 503, "the model is being loaded");
    else if (phase != PHASE_READY && route->need == NEEDS_LOADED)
        problem_set(&problem, 503, "the model is not loaded");
    else if (phase != PHASE_READY)
        models_wait(served, http, route->handle, route->need == NEEDS_GENERATOR, body);
    else if (route->need == NEEDS_GENERATOR && !served->session)
        problem_set(&problem, 501, "this model makes embeddings and cannot generate text");
    else {
        if (route->need != NEEDS_LOADED) {
            served->last_used = tn_time_ns();
            server->current = served;
        }
        const bool apart = route->method == EVHTTP_REQ_POST && route->need >= NEEDS_MODEL;
        if (!apart || !prepare_request(served, http, route->handle, body, size)) {
            json_t *own = body                               ? NULL
                          : route->method == EVHTTP_REQ_POST ? read_body(server, http, false)
                                                             : json_null();
            if (body || own) route->handle(served, http, body ? body : own);
            json_decref(own);
        }
    }
    if (problem.code) reply_problem(server, http, &problem);
}

/* Rejects requests that other web sites could make a browser send, even without a key. */
static bool is_forged(const struct server *server, struct evhttp_request *http, struct problem *problem) {
    struct evkeyvalq *in = evhttp_request_get_input_headers(http);
    const enum evhttp_cmd_type method = evhttp_request_get_command(http);
    const char *origin = evhttp_find_header(in, "Origin"), *host = evhttp_find_header(in, "Host");
    const char *type = evhttp_find_header(in, "Content-Type");
    const bool changes = method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD && method != EVHTTP_REQ_OPTIONS;
    /* Whether the origin is a page of this server, under the host name that the browser used. */
    const char *own = origin ? strstr(origin, "://") : NULL;
    const bool same = own && host && strcasecmp(own + 3, host) == 0;
    if (server->loopback && host && !host_is_loopback(host) && strcmp(server->origins, "*") != 0)
        return !problem_set(problem, 403, "this server answers to localhost; --cors-origins allows other names");
    if (changes && origin && !same && !origin_allowed(server, origin))
        return !problem_set(problem, 403, "scripts of this web site may not use the server; see --cors-origins");
    if (changes && type && strncasecmp(type, "text/plain", 10) == 0)
        return !problem_set(problem, 415, "bodies are JSON: send Content-Type: application/json");
    return false;
}

void on_request(struct evhttp_request *http, void *user) {
    struct server *server = user;
    struct problem problem = {0};
    enum evhttp_cmd_type method = evhttp_request_get_command(http);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(http);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    if (!path || !*path) path = "/";
    const size_t prefix = strlen(server->prefix);
    if (prefix && strncmp(path, server->prefix, prefix) == 0 && (path[prefix] == '/' || !path[prefix]))
        path = path[prefix] ? path + prefix : "/";
    else if (prefix && strcmp(path, "/health") != 0)
        path = ""; /* no route; load balancers may ask without the prefix */
    if (method == EVHTTP_REQ_OPTIONS) {
        struct evkeyvalq *out = evhttp_request_get_output_headers(http);
        evhttp_add_header(out, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        evhttp_add_header(out, "Access-Control-Allow-Headers", "*");
        evhttp_add_header(out, "Access-Control-Max-Age", "86400");
        reply_text(server, http, 200, "text/plain", "", 0);
        return;
    }
    bool is_get = method == EVHTTP_REQ_GET || method == EVHTTP_REQ_HEAD;
    if (is_get && server->web_ui && serve_web_ui(server, http, path)) return;
    static const struct route slot_route = {"", EVHTTP_REQ_POST, serve_slot_action, NEEDS_LOADED, false};
    const struct route *route = NULL;
    static const struct route model_route = {"", EVHTTP_REQ_GET, serve_model, NEEDS_NOTHING, false};
    bool known = false, is_slot = strncmp(path, "/slots/", 7) == 0;
    const bool is_name = strncmp(path, "/v1/models/", 11) == 0 && path[11];
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) != 0) continue;
        known = true;
        if (routes[i].method == (method == EVHTTP_REQ_HEAD ? EVHTTP_REQ_GET : method)) route = &routes[i];
    }
    if (is_slot && method == EVHTTP_REQ_POST) route = &slot_route;
    if (is_name && is_get) route = &model_route;
    if (is_forged(server, http, &problem)) {
        reply_problem(server, http, &problem);
        return;
    }
    if (strcmp(path, "/cors-proxy") == 0) {
        problem_set(&problem, 403, "this server is not a proxy");
        reply_problem(server, http, &problem);
        return;
    }
    if (!(route && route->is_public) && !has_valid_key(server, http))
        problem_set(&problem, 401, "missing or invalid API key; send the header Authorization: Bearer KEY");
    else if (!known && !is_slot && !is_name)
        problem_set(&problem, 404, "unknown path %.100s", path);
    else if (!route)
        problem_set(&problem, 405, "%.100s does not support this method", path);
    else if (route->need < NEEDS_MODEL && evbuffer_get_length(evhttp_request_get_input_buffer(http)) > MAX_OWN_BODY)
        problem_set(&problem, 413, "the body is too large for %.100s: at most %d bytes", path, (int)MAX_OWN_BODY);
    if (problem.code) {
        reply_problem(server, http, &problem);
        return;
    }
    json_t *body = NULL;
    const size_t size = evbuffer_get_length(evhttp_request_get_input_buffer(http));
    /* Erasing a slot takes no body. */
    const bool empty = is_slot && size == 0, is_list = route->handle == serve_adapter_scales;
    /* With one model, the field `model` of the body does not matter, so it need not be parsed here. */
    const bool later = route->need >= NEEDS_MODEL && !server->on_demand && server->preparers && !server->stopping &&
                       atomic_load(&server->models[0]->phase) == PHASE_READY;
    if (route->method == EVHTTP_REQ_POST && !later) {
        if (!server->stopping && parse_apart(server, http, route, is_list)) return;
        body = empty ? json_object() : read_body(server, http, is_list);
        if (!body && empty && !problem_set(&problem, 500, "out of memory")) reply_problem(server, http, &problem);
        if (!body) return;
    }
    dispatch_request(server, http, route, body, size);
    json_decref(body);
}
