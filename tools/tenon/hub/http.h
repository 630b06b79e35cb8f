/* HTTP requests for downloads. libcurl is loaded when the first one is made, so that programs that download nothing
 * stay small.
 */
#ifndef TENON_TOOL_HTTP_CLIENT_H
#define TENON_TOOL_HTTP_CLIENT_H

#include "cli/cli.h"

struct http_response {
    long status;            /* of the last response; 0: none */
    uint64_t length, total; /* of the body, and of the whole file where a part was sent; 0: not said */
    uint64_t linked_size;   /* X-Linked-Size, X-Linked-Etag, X-Repo-Commit of the first response that has them */
    char linked_etag[160], commit[160];
    char etag[160];   /* of the last response, without quotes and W/; where there is none, its Last-Modified */
    char next[2048];  /* the Link of the next page */
    long retry_after; /* seconds; -1: not said */
    char error[256];  /* why there was no complete response */
    bool cut;         /* a transfer failed: trying again may help */
};

struct http_request {
    const char *url;
    const char *token; /* sent as bearer to the first host only; may be NULL */
    bool head, stay;   /* HEAD instead of GET; do not follow redirects */
    uint64_t from;     /* first byte wanted; 0: all */
    /* Called with the bodies of responses with status 200 and 206; false stops the transfer. */
    bool (*write)(void *user, const struct http_response *response, const void *bytes, size_t size);
    void *user;
};

/* False where no complete response came: `error` says why. Ctrl-C stops it. */
bool http_perform(const struct http_request *request, struct http_response *response);

#endif
