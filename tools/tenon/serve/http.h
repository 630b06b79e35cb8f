/* What the files of the HTTP side share: request.c, event_stream.c, reply.c and routes.c. */
#ifndef TENON_SERVE_HTTP_H
#define TENON_SERVE_HTTP_H

#include "serve.h"

void on_request(struct evhttp_request *http, void *user); /* evhttp's callback; user is the server */
/* Prefixes are shared by requests of the same API key, or by all. */
uint64_t prefix_key(const struct server *server, struct evhttp_request *http);
void take_pieces(struct served *served);   /* handles what the engine has produced since the last call */
void ping_requests(struct server *server); /* sends comments to event streams that are silent */
void cancel_requests(struct server *server);

struct bufferevent *bufferevent_of(struct evhttp_request *http); /* of its connection; NULL when that is closed */
void request_detach(struct request *request); /* before the last response; the connection lives on */

void add_reply_headers(struct evhttp_request *http, const char *type);
void log_access(struct server *server, struct evhttp_request *http, int code);

void stream_start(struct request *request);          /* sends the headers of an event stream, once */
void stream_send_collected(struct request *request); /* sends what was collected while pieces were handled */

#endif
