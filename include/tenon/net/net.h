/* Ranks: processes or threads that compute one model together, and the transport between them.
 *
 * Collectives are called by all ranks in the same order. They wait for the others, at most for the timeout of the
 * transport. After the first failure the transport is broken: every later call on every rank returns that failure, so
 * that all ranks end. Nothing grows after a transport was opened. A rank's transport belongs to one thread at a time.
 * docs/distributed.md describes the design. */
#ifndef TENON_NET_NET_H
#define TENON_NET_NET_H

#include "tenon/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_NET_RANKS_MOST = 64 };

typedef struct tn_net tn_net;

/* Encoding of the numbers of sums and of tn_net_send_floats: bf16 takes half the bytes of f32, q8 (blocks of 32
 * with one scale) a little more than a quarter. Results are rounded accordingly, and identical on all ranks. */
typedef enum tn_net_type { TN_NET_F32, TN_NET_BF16, TN_NET_Q8 } tn_net_type;

typedef struct tn_net_params {
    int rank, n_ranks;
    uint32_t timeout_ms;  /* 0: 30 seconds */
    size_t message_bytes; /* largest message of tn_net_send that is buffered, four per pair of ranks; 0: 1 MiB */
    tn_net_type type;     /* the same on all ranks */
} tn_net_params;

/* Opens a transport by its specification:
 *   "shm:FD"      memory between processes of this machine, made by tn_net_shm_new and inherited
 *   "mpi"         MPI, through a module that is loaded; rank and number of ranks are MPI's
 *   "nccl:SPEC"   large sums through the GPUs of the ranks with NCCL, a module that is loaded; all else through
 * another transport "delay:LATENCY[,RATE]:SPEC"  another transport whose messages arrive later, e.g.
 * "delay:100us,1G:shm:5" TN_E_NOT_FOUND: there is no such transport or module. */
TN_API tn_status tn_net_open(const char *spec, const tn_net_params *params, tn_net **net) TN_MUST_CHECK;
TN_API void tn_net_free(tn_net *net);
/* The ranks of a group of threads: nets[0 … n_ranks-1]. Free all of them. */
TN_API tn_status tn_net_threads(const tn_net_params *params, tn_net **nets) TN_MUST_CHECK;
/* A transport between ranks first … first+n-1 of `parent`, this rank among them; its collectives are messages of
 * `parent`. Free it before `parent`. TN_E_INVALID: this rank is not one of them, or a message of `parent` holds less
 * than a float. */
TN_API tn_status tn_net_group(tn_net *parent, int first, int n, tn_net **net) TN_MUST_CHECK;
/* Memory of a group of n ranks: of this transport's messages, or with NULL of the default ones in f32. */
TN_API size_t tn_net_group_bytes(const tn_net *parent, int n);
/* Makes memory for the ranks of this machine: a file descriptor that child processes inherit, for "shm:FD". */
TN_API tn_status tn_net_shm_new(const tn_net_params *params, int *fd) TN_MUST_CHECK;

TN_API int tn_net_rank(const tn_net *net);
TN_API int tn_net_size(const tn_net *net);
TN_API const char *tn_net_name(const tn_net *net);
TN_API tn_net_type tn_net_get_type(const tn_net *net);
TN_API size_t tn_net_bytes(const tn_net *net); /* memory of its buffers that a run may touch */
/* The first failure, or TN_OK; sets the message. */
TN_API tn_status tn_net_status(const tn_net *net) TN_MUST_CHECK;

/* out[i] = Σ over ranks of in[i] in the transport's type, added in the order of ranks: all ranks get the same bits.
 * in == out is allowed. */
TN_API tn_status tn_net_all_reduce(tn_net *net, const float *in, float *out, size_t n) TN_MUST_CHECK;
/* The blocks of all ranks in their order; rank r's has sizes[r] bytes. */
TN_API tn_status tn_net_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) TN_MUST_CHECK;
TN_API tn_status tn_net_broadcast(tn_net *net, int root, void *data, size_t size) TN_MUST_CHECK;
TN_API tn_status tn_net_barrier(tn_net *net) TN_MUST_CHECK;
/* Broadcasts up to TN_NET_NOTE bytes from rank 0. The other ranks wait for a note without timeout, as long as
 * rank 0 lives. */
enum { TN_NET_NOTE = 4096 };
TN_API tn_status tn_net_note(tn_net *net, void *data, size_t size) TN_MUST_CHECK;
/* Messages of a pair of ranks arrive in their order. Up to four that fit the buffers are sent without waiting. */
TN_API tn_status tn_net_send(tn_net *net, int to, const void *data, size_t size) TN_MUST_CHECK;
TN_API tn_status tn_net_receive(tn_net *net, int from, void *data, size_t size) TN_MUST_CHECK;
/* The same as tn_net_receive, but without timeout, as long as rank 0 lives. */
TN_API tn_status tn_net_wait(tn_net *net, int from, void *data, size_t size) TN_MUST_CHECK;
/* Messages of numbers, in the transport's type. */
TN_API tn_status tn_net_send_floats(tn_net *net, int to, const float *values, size_t n) TN_MUST_CHECK;
TN_API tn_status tn_net_receive_floats(tn_net *net, int from, float *values, size_t n) TN_MUST_CHECK;
/* Breaks the transport on all ranks; they report the text. */
TN_API void tn_net_abort(tn_net *net, tn_status status, const char *text);

#ifdef __cplusplus
}
#endif
#endif
