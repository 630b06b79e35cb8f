/* TLS with OpenSSL and libevent_openssl, which are loaded on demand. */
#include "serve/http/guard.h"

#include "cli/cli.h"

#ifdef TENON_HAS_TLS

#include <dlfcn.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

struct tls {
    SSL_CTX *context;
};

static struct {
    const SSL_METHOD *(*TLS_server_method)(void);
    SSL_CTX *(*SSL_CTX_new)(const SSL_METHOD *method);
    void (*SSL_CTX_free)(SSL_CTX *context);
    long (*SSL_CTX_ctrl)(SSL_CTX *context, int command, long number, void *pointer);
    int (*SSL_CTX_use_certificate_chain_file)(SSL_CTX *context, const char *file);
    int (*SSL_CTX_use_PrivateKey_file)(SSL_CTX *context, const char *file, int type);
    int (*SSL_CTX_check_private_key)(const SSL_CTX *context);
    SSL *(*SSL_new)(SSL_CTX *context);
    void (*SSL_free)(SSL *ssl);
    unsigned long (*ERR_get_error)(void);
    const char *(*ERR_reason_error_string)(unsigned long error);
    struct bufferevent *(*bufferevent_openssl_socket_new)(struct event_base *base, evutil_socket_t fd,
                                                          struct ssl_st *ssl, enum bufferevent_ssl_state state,
                                                          int options);
    void (*bufferevent_openssl_set_allow_dirty_shutdown)(struct bufferevent *bev, int allow);
} lib;

static bool find_function(const char *name, void *function, size_t size) {
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &symbol, size); /* ISO C has no cast from object to function pointers */
    return symbol != NULL;
}

static bool load_tls(void) {
    /* Global, as libevent_openssl finds its symbols by name. */
    if (!dlopen("libssl.so.3", RTLD_NOW | RTLD_GLOBAL) ||
        !dlopen("libevent_openssl-2.1.so.7", RTLD_NOW | RTLD_GLOBAL))
        return false;
#define LOAD(name) find_function(#name, &lib.name, sizeof lib.name)
    return LOAD(TLS_server_method) && LOAD(SSL_CTX_new) && LOAD(SSL_CTX_free) && LOAD(SSL_CTX_ctrl) &&
           LOAD(SSL_CTX_use_certificate_chain_file) && LOAD(SSL_CTX_use_PrivateKey_file) &&
           LOAD(SSL_CTX_check_private_key) && LOAD(SSL_new) && LOAD(SSL_free) && LOAD(ERR_get_error) &&
           LOAD(ERR_reason_error_string) && LOAD(bufferevent_openssl_socket_new) &&
           LOAD(bufferevent_openssl_set_allow_dirty_shutdown);
#undef LOAD
}

static int fail_with_reason(const char *what, const char *file) {
    const char *reason = lib.ERR_reason_error_string(lib.ERR_get_error());
    return fail("%s%s: %s", what, file, reason ? reason : "not valid");
}

int tls_start(const char *key_file, const char *certificate_file, struct tls **out) {
    int code = EXIT_OK;
    if (!load_tls()) return fail("TLS needs OpenSSL (Debian: apt install libssl3 libevent-openssl-2.1-7)");
    struct tls *tls = tn_calloc(1, sizeof *tls);
    if (tls) tls->context = lib.SSL_CTX_new(lib.TLS_server_method());
    if (!tls || !tls->context)
        code = fail("out of memory for TLS");
    else if (lib.SSL_CTX_ctrl(tls->context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL) != 1)
        code = fail_with_reason("TLS 1.2", "");
    else if (lib.SSL_CTX_use_certificate_chain_file(tls->context, certificate_file) != 1)
        code = fail_with_reason("certificate ", certificate_file);
    else if (lib.SSL_CTX_use_PrivateKey_file(tls->context, key_file, SSL_FILETYPE_PEM) != 1)
        code = fail_with_reason("private key ", key_file);
    else if (lib.SSL_CTX_check_private_key(tls->context) != 1)
        code = fail_with_reason("certificate and private key of ", key_file);
    if (!code) {
        *out = tls;
        return EXIT_OK;
    }
    tls_stop(tls);
    return code;
}

struct bufferevent *tls_accept(struct tls *tls, struct event_base *base) {
    SSL *ssl = lib.SSL_new(tls->context);
    struct bufferevent *bev =
        ssl ? lib.bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE)
            : NULL;
    if (ssl && !bev) lib.SSL_free(ssl);
    /* Many clients close a connection without close_notify; lengths show whether a message is complete. */
    if (bev) lib.bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

void tls_stop(struct tls *tls) {
    if (!tls) return;
    if (tls->context) lib.SSL_CTX_free(tls->context);
    tn_free(tls);
}

#else

int tls_start(const char *key_file, const char *certificate_file, struct tls **out) {
    (void)key_file, (void)certificate_file, (void)out;
    return fail("this build has no TLS: libssl-dev was missing when it was built");
}
struct bufferevent *tls_accept(struct tls *tls, struct event_base *base) {
    (void)tls, (void)base;
    return NULL;
}
void tls_stop(struct tls *tls) { (void)tls; }

#endif
