/* Connections: their number, the memory of their bodies, and TLS (guard.c, tls.c). */
#ifndef TENON_SERVE_GUARD_H
#define TENON_SERVE_GUARD_H

#include "serve/serve.h"

#include <event2/bufferevent.h>
#include <event2/listener.h>

/* evhttp's callback for a new connection; user is the server. */
struct bufferevent *guard_connection(struct event_base *base, void *user);
/* Ten times a second; the listener may be NULL. Enables it while more connections are allowed. */
void guards_tick(struct server *server, struct evconnlistener *listener);
void guards_free(struct server *server); /* after evhttp_free() */

/* TLS with OpenSSL, which is loaded on demand. Returns an exit code. */
int tls_start(const char *key_file, const char *certificate_file, struct tls **out);
struct bufferevent *tls_accept(struct tls *tls, struct event_base *base); /* NULL without memory */
void tls_stop(struct tls *tls);

#endif
