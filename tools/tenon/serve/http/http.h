/* Declarations shared by the files of http/: request.c, event_stream.c, reply.c and routes.c. */
#ifndef TENON_SERVE_HTTP_H
#define TENON_SERVE_HTTP_H

#include "serve/serve.h"

void on_request(struct evhttp_request *http, void *user); /* evhttp's callback; user is the server */
/* Prefixes are shared by requests of the same API key, or by all. */
uint64_t prefix_key(const struct server *server, struct evhttp_request *http);
bool key_is_valid(const struct server *server, const char *key);
void take_pieces(struct served *served);   /* handles the engine's output since the last call */
void ping_requests(struct server *server); /* sends comments to idle event streams */
void cancel_requests(struct server *server);
void streams_yield(struct server *server); /* ten times a second: clients that do not read hold no slots */

struct bufferevent *bufferevent_of(struct evhttp_request *http); /* of its connection; NULL when that is closed */
void request_detach(struct request *request); /* before the last response; the connection lives on */

/* Whether scripts of this web site may read answers (--cors-origins). */
bool origin_allowed(const struct server *server, const char *origin);
bool host_is_loopback(const char *host);
/* recording.c: begin (if the client requests it), add to and end the recording of an event stream. */
void recording_begin(struct request *request);
void recording_add(struct request *request, const void *bytes, size_t length);
void recording_end(struct request *request);
void recordings_free(struct server *server);
void request_cancel(struct request *request);
/* Runs a handler on another thread (prepare.c); `body` NULL: that thread parses it, else `size` is that of its text.
 * False: out of memory, or there are no such threads. */
bool prepare_request(struct served *served, struct evhttp_request *http, handler *handle, json_t *body, size_t size);
/* Parses a large body on another thread, after which dispatch_request() is called. False: it is small, or as above.
 */
struct route;
bool parse_apart(struct server *server, struct evhttp_request *http, const struct route *route, bool is_list);
/* `size` is that of the body's text. */
void dispatch_request(struct server *server, struct evhttp_request *http, const struct route *route, json_t *body,
                      size_t size);
bool preparers_start(struct server *server);
void preparers_stop(struct server *server);
/* On such a thread: records the response to send or the request to submit, and returns true. False on the HTTP
 * thread. */
bool prepare_reply(int code, const char *type, const void *text, size_t length);
bool prepare_submit(struct request *request);
json_t *parse_body(struct server *server, struct evhttp_request *http, const char *bytes, size_t length,
                   bool is_list);
void add_reply_headers(const struct server *server, struct evhttp_request *http, const char *type);
void log_access(struct server *server, struct evhttp_request *http, int code);

/* Ends a response that was sent in chunks. */
void reply_end(struct server *server, struct evhttp_request *http);
void stream_start(struct request *request);          /* sends the headers of an event stream, once */
void stream_send_collected(struct request *request); /* sends what was collected while pieces were handled */

#endif
