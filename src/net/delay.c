/* A transport that delays messages, to simulate a slower network. Every message is delayed by the latency plus its
 * bytes divided by the rate. An all-reduce counts as the exchanges of recursive doubling. */
#include "net/transports.h"

#include <time.h>

typedef struct delay_net {
    uint64_t latency;
    double rate;
} delay_net;

/* Sleeps are coarse, so the last 80 µs is polled. */
static void hold(const tn_net *net, int exchanges, size_t size) {
    const delay_net *d = net->impl;
    enum { POLLED_NS = 80 * 1000 };
    const double ns = exchanges * ((double)d->latency + (d->rate > 0 ? (double)size / d->rate * 1e9 : 0));
    const uint64_t until = tn_time_ns() + (uint64_t)ns;
    for (uint64_t now = tn_time_ns(); now < until; now = tn_time_ns()) {
        if (until - now <= POLLED_NS) continue;
        const uint64_t pause = until - now - POLLED_NS;
        nanosleep(&(struct timespec){(time_t)(pause / 1000000000), (long)(pause % 1000000000)}, NULL);
    }
}
static int rounds(const tn_net *net) {
    int n = 0;
    while (1 << n < net->size) n++;
    return n;
}

static tn_status delay_all_reduce(tn_net *net, const float *in, float *out, size_t n) {
    TN_TRY(net->inner->ops->all_reduce(net->inner, in, out, n));
    hold(net, rounds(net), n * sizeof *in);
    return TN_OK;
}
static tn_status delay_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) {
    size_t others = 0;
    for (int r = 0; r < net->size; r++) others += r == net->rank ? 0 : sizes[r];
    TN_TRY(net->inner->ops->all_gather(net->inner, own, sizes, out));
    hold(net, net->size > 1, others);
    return TN_OK;
}
static tn_status delay_broadcast(tn_net *net, int root, void *data, size_t size, bool idle) {
    TN_TRY(net->inner->ops->broadcast(net->inner, root, data, size, idle));
    if (net->rank != root) hold(net, 1, size);
    return TN_OK;
}
static tn_status delay_send(tn_net *net, int to, const void *data, size_t size) {
    return net->inner->ops->send(net->inner, to, data, size);
}
static tn_status delay_receive(tn_net *net, int from, void *data, size_t size, bool idle) {
    TN_TRY(net->inner->ops->receive(net->inner, from, data, size, idle));
    hold(net, 1, size);
    return TN_OK;
}
static void delay_abort(tn_net *net, tn_status status, const char *text) { tn_net_abort(net->inner, status, text); }
static size_t delay_bytes(const tn_net *net) { return tn_net_bytes(net->inner); }
static void delay_free(tn_net *net) { tn_free(net->impl); }

tn_status tn__net_delay_open(uint64_t latency_ns, double rate, tn_net *net) {
    static const tn_net_ops ops = {.free = delay_free,
                                   .all_reduce = delay_all_reduce,
                                   .all_gather = delay_all_gather,
                                   .broadcast = delay_broadcast,
                                   .send = delay_send,
                                   .receive = delay_receive,
                                   .abort = delay_abort,
                                   .bytes = delay_bytes};
    delay_net *d = tn_calloc(1, sizeof *d);
    if (!d) return TN_E_NOMEM;
    *d = (delay_net){latency_ns, rate};
    net->impl = d;
    net->ops = &ops;
    net->name = "delay";
    net->rank = net->inner->rank;
    net->size = net->inner->size;
    return TN_OK;
}
