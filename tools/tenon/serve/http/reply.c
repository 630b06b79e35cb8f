/* Responses: JSON, text and errors, with their headers and the access log. */
#include "serve/http/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Errors ---- */

static const char *error_type(int code) {
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

static const char *reason_phrase(int code) {
    switch (code) {
    case 200: return "OK";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
    }
}

bool problem_set(struct problem *problem, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    problem->code = code;
    problem->type = error_type(code);
    vsnprintf(problem->text, sizeof problem->text, format, args);
    va_end(args);
    /* Quoted parts of requests must not control the client's terminal. */
    for (char *c = problem->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    return false;
}

bool problem_status(struct problem *problem, tn_status status, const char *what) {
    int code = status == TN_E_NOMEM ? 500 : status == TN_E_UNSUPPORTED ? 501 : 400;
    return problem_set(problem, code, "%s%s%s", what, *what ? ": " : "", tn_error());
}

void hide_folder(char *text, const char *path) {
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash + 1 - path) : 0;
    for (char *at = text; n > 1 && (at = strchr(at, *path));)
        if (strncmp(at, path, n) == 0)
            memmove(at, at + n, strlen(at + n) + 1);
        else
            at++;
}

json_t *problem_json(const struct problem *problem) {
    json_t *error = json_pack("{s:i, s:s#, s:s}", "code", problem->code, "message", problem->text,
                              (int)strlen(problem->text), "type", problem->type);
    /* A message that quotes a cut-off character is not valid UTF-8. */
    if (!error)
        error = json_pack("{s:i, s:s, s:s}", "code", problem->code, "message", "the request is not valid", "type",
                          problem->type);
    if (problem->more) json_object_update(error, problem->more);
    return json_pack("{s:o}", "error", error);
}

/* ---- Responses ---- */

/* Whether `host`, optionally with a port, is a name of the local machine. */
static bool is_loopback(const char *host, size_t length) {
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i]);
        if (length >= n && strncasecmp(host, names[i], n) == 0 && (length == n || host[n] == ':')) return true;
    }
    return false;
}

bool host_is_loopback(const char *host) { return is_loopback(host, strlen(host)); }

bool origin_allowed(const struct server *server, const char *origin) {
    const char *list = server->origins, *host = strstr(origin, "://");
    if (strcmp(list, "*") == 0) return true;
    while (*list) {
        const size_t n = strcspn(list, ",");
        if (n == strlen("localhost") && memcmp(list, "localhost", n) == 0 && host &&
            is_loopback(host + 3, strcspn(host + 3, "/")))
            return true;
        if (n == strlen(origin) && memcmp(list, origin, n) == 0) return true;
        list += n + (list[n] == ',');
    }
    return false;
}

void add_reply_headers(const struct server *server, struct evhttp_request *http, const char *type) {
    struct evkeyvalq *out = evhttp_request_get_output_headers(http);
    evhttp_add_header(out, "Content-Type", type);
    const char *origin = evhttp_find_header(evhttp_request_get_input_headers(http), "Origin");
    if (origin && strlen(origin) < 256 && !strpbrk(origin, "\r\n") && origin_allowed(server, origin)) {
        evhttp_add_header(out, "Access-Control-Allow-Origin", origin);
        evhttp_add_header(out, "Access-Control-Allow-Credentials", "true");
        evhttp_add_header(out, "Vary", "Origin");
    }
    evhttp_add_header(out, "Server", "tenon");
    evhttp_add_header(out, "X-Content-Type-Options", "nosniff");
}

void log_access(struct server *server, struct evhttp_request *http, int code) {
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
    if (prepare_reply(code, type, text, length)) return;
    struct evbuffer *buffer = evbuffer_new();
    add_reply_headers(server, http, type);
    /* The answer to HEAD has the length of the body, and no body. */
    if (evhttp_request_get_command(http) == EVHTTP_REQ_HEAD) {
        char size[24];
        snprintf(size, sizeof size, "%zu", length);
        evhttp_add_header(evhttp_request_get_output_headers(http), "Content-Length", size);
        length = 0;
    }
    if (buffer) evbuffer_add(buffer, text, length);
    log_access(server, http, code);
    evhttp_send_reply(http, code, reason_phrase(code), buffer);
    if (buffer) evbuffer_free(buffer);
}

void reply_json(struct server *server, struct evhttp_request *http, int code, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    static const char no_memory[] =
        "{\"error\":{\"code\":500,\"message\":\"out of memory\",\"type\":\"server_error\"}}";
    json_decref(json);
    reply_text(server, http, text ? code : 500, "application/json; charset=utf-8", text ? text : no_memory,
               strlen(text ? text : no_memory));
    free(text);
}

/* Anthropic's clients expect another form of errors. */
static json_t *anthropic_problem(const struct problem *problem) {
    const char *type = problem->code == 503   ? "overloaded_error"
                       : problem->code >= 500 ? "api_error"
                       : problem->code == 400 ? "invalid_request_error"
                                              : problem->type;
    json_t *text = json_string(problem->text);
    return json_pack("{s:s, s:{s:s, s:o}}", "type", "error", "error", "type", type, "message",
                     text ? text : json_string("the request is not valid"));
}

json_t *problem_for(struct evhttp_request *http, const struct problem *problem) {
    const struct evhttp_uri *uri = http ? evhttp_request_get_evhttp_uri(http) : NULL;
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    if (path && strstr(path, "/api/")) { /* Ollama's */
        json_t *text = json_string(problem->text);
        return json_pack("{s:o}", "error", text ? text : json_string("the request is not valid"));
    }
    return path && strstr(path, "/v1/messages") ? anthropic_problem(problem) : problem_json(problem);
}

void reply_problem(struct server *server, struct evhttp_request *http, struct problem *problem) {
    if (problem->code == 503) evhttp_add_header(evhttp_request_get_output_headers(http), "Retry-After", "1");
    reply_json(server, http, problem->code, problem_for(http, problem));
    json_decref(problem->more);
    problem->more = NULL;
}

json_t *parse_body(struct server *server, struct evhttp_request *http, const char *bytes, size_t length,
                   bool is_list) {
    json_error_t error;
    errno = 0; /* jansson reports most failed allocations as invalid tokens */
    json_t *body = bytes ? json_loadb(bytes, length, 0, &error) : NULL;
    struct problem problem = {0};
    if (is_list ? json_is_array(body) : json_is_object(body)) return body;
    size_t blank = 0;
    while (bytes && blank < length && strchr(" \t\r\n", bytes[blank]) && bytes[blank]) blank++;
    if (!body && (!bytes || errno == ENOMEM))
        problem_set(&problem, 500, "out of memory");
    else if (body)
        problem_set(&problem, 400, "the body must be a JSON %s", is_list ? "list" : "object");
    else if (blank == length)
        problem_set(&problem, 400, "the request has no body; send a JSON %s", is_list ? "list" : "object");
    else if (json_error_code(&error) == json_error_null_character)
        problem_set(&problem, 400, "the body is not valid JSON: line %d, column %d: strings cannot contain \\u0000",
                    error.line, error.column);
    else
        problem_set(&problem, 400, "the body is not valid JSON: line %d, column %d: %.200s", error.line, error.column,
                    error.text);
    json_decref(body);
    reply_problem(server, http, &problem);
    return NULL;
}

json_t *read_body(struct server *server, struct evhttp_request *http, bool is_list) {
    struct evbuffer *input = evhttp_request_get_input_buffer(http);
    const size_t length = evbuffer_get_length(input);
    return parse_body(server, http, length ? (const char *)evbuffer_pullup(input, -1) : "", length, is_list);
}
