/* The interface that a transport implements (net.h is the interface for callers). */
#ifndef TENON_NET_NET_IMPL_H
#define TENON_NET_NET_IMPL_H

#include "tenon/net/net.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a structure below changes. A module with another number is not loaded. */
enum { TN_NET_INTERFACE = 4 };

typedef struct tn_net_ops {
    void (*free)(tn_net *net);
    tn_status (*all_reduce)(tn_net *net, const float *in, float *out, size_t n);
    tn_status (*all_gather)(tn_net *net, const void *own, const size_t *sizes, void *out);
    /* `idle`: waits for any time while the root lives. */
    tn_status (*broadcast)(tn_net *net, int root, void *data, size_t size, bool idle);
    tn_status (*send)(tn_net *net, int to, const void *data, size_t size);
    tn_status (*receive)(tn_net *net, int from, void *data, size_t size, bool idle);
    void (*abort)(tn_net *net, tn_status status, const char *text); /* optional: notifies the other ranks */
    size_t (*bytes)(const tn_net *net);
} tn_net_ops;

struct tn_net {
    const tn_net_ops *ops;
    const char *name;
    int rank, size;
    uint32_t timeout_ms;
    void *impl;
    tn_net *inner;        /* that this transport uses for what it does not do itself; freed after it, may be NULL */
    tn_net_type type;     /* of sums and states, which the library encodes */
    char *coded;          /* its buffer; NULL: f32 */
    size_t message_bytes; /* largest message that is sent without waiting; four fit per pair of ranks */
    tn_status status;     /* the first failure */
    char error[2048];
};

/* The entry point of a loadable transport, libtenon_net-NAME.so. `open` fills `net`, which the library has cleared
 * except for `inner`; rank and size may come from the launcher. */
typedef struct tn_net_module {
    uint32_t interface; /* TN_NET_INTERFACE it was built with */
    tn_status (*open)(const tn_net_params *params, tn_net *net);
} tn_net_module;
typedef tn_status (*tn_net_entry_fn)(tn_net_module *module);
#define TN_NET_ENTRY_NAME "tn_net_entry"

#ifdef __cplusplus
}
#endif
#endif
