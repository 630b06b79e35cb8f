/* The transports that are part of the library. */
#ifndef TN_NET_TRANSPORTS_H
#define TN_NET_TRANSPORTS_H

#include "tenon/net/net_impl.h"

/* Each fills `net`, which has been cleared but for `inner`. */
tn_status tn__net_shm_open(int fd, const tn_net_params *params, tn_net *net);
/* Each message of net->inner takes latency_ns and its bytes at `rate` per second (0: no limit) longer. */
tn_status tn__net_delay_open(uint64_t latency_ns, double rate, tn_net *net);
tn_status tn__net_module_open(const char *name, const tn_net_params *params, tn_net *net);

/* Sums and states in net->type, which is not f32. */
size_t tn__coded_bytes(const tn_net *net); /* of net->coded */
tn_status tn__coded_reduce(tn_net *net, const float *in, float *out, size_t n);
tn_status tn__coded_send(tn_net *net, int to, const float *values, size_t n);
tn_status tn__coded_receive(tn_net *net, int from, float *values, size_t n);
/* Takes net->coded. */
tn_status tn__coded_begin(tn_net *net, tn_net_type type);

#endif
