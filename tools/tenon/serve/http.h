/* Between the server's set-up (commands/serve.c) and its HTTP side (http.c). */
#ifndef TENON_SERVE_HTTP_H
#define TENON_SERVE_HTTP_H

#include "serve.h"

void on_request(struct evhttp_request *http, void *user); /* evhttp's callback; user is the server */
void take_pieces(struct served *served);                  /* what the engine has said since the last time */
void ping_requests(struct server *server);                /* comments into streams that are silent */
void cancel_requests(struct server *server);

#endif
