/* Sums on the GPUs of the ranks: a module that wraps another transport, which handles everything except large sums.
 *
 * Collectives are nodes on the host (docs/distributed.md), so a sum is staged: copied to the GPU, reduced there, and
 * copied back, in pieces of STAGED bytes. Rank r takes GPU r modulo the number of GPUs that it sees; NCCL refuses two
 * ranks on one GPU. NCCL gives all ranks the same bits, in an order of its own. */
#include "nccl_library.h"
#include "tenon/net/net_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    SMALL = 16 << 10, /* sums up to this size use the other transport: staging would take longer */
    STAGED = 4 << 20, /* bytes on the GPU */
    NAP_NS = 20 * 1000,
    POLL_NS = 200 * 1000 /* then waiting sleeps between polls */
};

typedef struct nccl_net {
    nccl_library library;
    nccl_comm comm;
    void *context;
    cuda_stream stream;
    cuda_address memory;
    int device;
    bool retained;
} nccl_net;

/* Joining waits for all ranks inside NCCL, without a timeout: it runs in a thread that is abandoned if it hangs. */
typedef struct nccl_join {
    const nccl_library *library;
    void *context;
    nccl_id id;
    nccl_comm comm;
    int rank, size, result;
} nccl_join;

static void *join_nccl(void *user) {
    nccl_join *j = user;
    j->result = j->library->set_context(j->context);
    if (j->result == CUDA_OK) j->result = j->library->init_rank(&j->comm, j->size, j->id, j->rank);
    return NULL;
}

static tn_status join_in_time(tn_net *net, const nccl_id *id) {
    nccl_net *n = net->impl;
    pthread_t thread;
    struct timespec until;
    nccl_join *j = tn_calloc(1, sizeof *j);
    if (!j) return TN_E_NOMEM;
    *j = (nccl_join){&n->library, n->context, *id, NULL, net->rank, net->size, 0};
    const int error = pthread_create(&thread, NULL, join_nccl, j);
    if (error) {
        tn_free(j);
        return tn_fail(TN_E_NOMEM, "a thread cannot be started: %s", strerror(error));
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += net->timeout_ms / 1000;
    until.tv_nsec += (long)(net->timeout_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) { /* the thread keeps `j` and the library */
        pthread_detach(thread);
        net->impl = NULL;
        return tn_fail(TN_E_DEVICE_LOST, "rank %d of %d: NCCL has not joined the ranks for %u ms", net->rank,
                       net->size, net->timeout_ms);
    }
    n->comm = j->comm;
    tn_status status = nccl_check(&n->library, j->result, "ncclCommInitRank");
    tn_free(j);
    return status;
}

static tn_status wait_stream(const tn_net *net) {
    const nccl_net *n = net->impl;
    const uint64_t begin = tn_time_ns();
    for (;;) {
        const int done = n->library.query_stream(n->stream);
        if (done != CUDA_NOT_READY) return nccl_check_cuda(&n->library, done, "all-reduce");
        int failed = NCCL_OK;
        TN_TRY(nccl_check(&n->library, n->library.async_error(n->comm, &failed), "ncclCommGetAsyncError"));
        TN_TRY(nccl_check(&n->library, failed, "all-reduce"));
        const uint64_t waited = tn_time_ns() - begin;
        if (waited > (uint64_t)net->timeout_ms * 1000000)
            return tn_fail(TN_E_DEVICE_LOST, "rank %d of %d: all-reduce: the other ranks have not answered for %u ms",
                           net->rank, net->size, net->timeout_ms);
        if (waited > POLL_NS) nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

static tn_status reduce_staged(tn_net *net, const float *in, float *out, size_t n) {
    const nccl_net *m = net->impl;
    const nccl_library *l = &m->library;
    void *memory = (void *)(uintptr_t)m->memory;
    TN_TRY(nccl_check_cuda(l, l->to_device(m->memory, in, n * sizeof *in, m->stream), "copy to the GPU"));
    TN_TRY(
        nccl_check(l, l->all_reduce(memory, memory, n, NCCL_FLOAT32, NCCL_SUM, m->comm, m->stream), "ncclAllReduce"));
    TN_TRY(nccl_check_cuda(l, l->to_host(out, m->memory, n * sizeof *out, m->stream), "copy from the GPU"));
    return wait_stream(net);
}

static tn_status nccl_all_reduce(tn_net *net, const float *in, float *out, size_t n) {
    const nccl_net *m = net->impl;
    if (n * sizeof *in <= SMALL) return net->inner->ops->all_reduce(net->inner, in, out, n);
    /* Graphs run on threads of their own. */
    TN_TRY(nccl_check_cuda(&m->library, m->library.set_context(m->context), "cuCtxSetCurrent"));
    const size_t most = STAGED / sizeof *in;
    for (size_t begin = 0; begin < n; begin += most)
        TN_TRY(reduce_staged(net, in + begin, out + begin, n - begin < most ? n - begin : most));
    return TN_OK;
}

static tn_status nccl_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) {
    return net->inner->ops->all_gather(net->inner, own, sizes, out);
}
static tn_status nccl_broadcast(tn_net *net, int root, void *data, size_t size, bool idle) {
    return net->inner->ops->broadcast(net->inner, root, data, size, idle);
}
static tn_status nccl_send(tn_net *net, int to, const void *data, size_t size) {
    return net->inner->ops->send(net->inner, to, data, size);
}
static tn_status nccl_receive(tn_net *net, int from, void *data, size_t size, bool idle) {
    return net->inner->ops->receive(net->inner, from, data, size, idle);
}
static void nccl_abort(tn_net *net, tn_status status, const char *text) { tn_net_abort(net->inner, status, text); }
static size_t nccl_bytes(const tn_net *net) { return tn_net_bytes(net->inner); }

static void nccl_free(tn_net *net) {
    nccl_net *n = net->impl;
    if (!n) return;
    const nccl_library *l = &n->library;
    if (n->context) (void)l->set_context(n->context);
    if (n->comm) (void)(net->status == TN_OK ? l->destroy(n->comm) : l->abort(n->comm));
    if (n->memory) (void)l->free_memory(n->memory);
    if (n->stream) (void)l->free_stream(n->stream);
    if (n->retained) (void)l->release(n->device);
    tn_free(n);
}

static tn_status take_gpu(nccl_net *n, int rank) {
    const nccl_library *l = &n->library;
    int count = 0;
    TN_TRY(nccl_check_cuda(l, l->init(0), "cuInit"));
    TN_TRY(nccl_check_cuda(l, l->device_count(&count), "cuDeviceGetCount"));
    if (count < 1) return tn_fail(TN_E_NOT_FOUND, "NCCL is not usable: this rank sees no GPU");
    TN_TRY(nccl_check_cuda(l, l->device(&n->device, rank % count), "cuDeviceGet"));
    TN_TRY(nccl_check_cuda(l, l->retain(&n->context, n->device), "cuDevicePrimaryCtxRetain"));
    n->retained = true;
    TN_TRY(nccl_check_cuda(l, l->set_context(n->context), "cuCtxSetCurrent"));
    TN_TRY(nccl_check_cuda(l, l->new_stream(&n->stream, 1), "cuStreamCreate")); /* 1: not ordered with others */
    return nccl_check_cuda(l, l->allocate(&n->memory, STAGED), "cuMemAlloc");
}

/* Whether all ranks have reached this point, so that none waits for the others inside NCCL forever. */
static tn_status check_all(tn_net *net, tn_status own, const char *what) {
    char text[256];
    float failed = own != TN_OK;
    snprintf(text, sizeof text, "%s", tn_error());
    TN_TRY(net->inner->ops->all_reduce(net->inner, &failed, &failed, 1));
    if (own != TN_OK) return tn_fail(own, "%s", text);
    return failed > 0 ? tn_fail(TN_E_NOT_FOUND, "%d of %d ranks cannot %s", (int)failed, net->size, what) : TN_OK;
}

static tn_status nccl_open(const tn_net_params *params, tn_net *net) {
    static const tn_net_ops ops = {.free = nccl_free,
                                   .all_reduce = nccl_all_reduce,
                                   .all_gather = nccl_all_gather,
                                   .broadcast = nccl_broadcast,
                                   .send = nccl_send,
                                   .receive = nccl_receive,
                                   .abort = nccl_abort,
                                   .bytes = nccl_bytes};
    (void)params;
    nccl_net *n = tn_calloc(1, sizeof *n);
    if (!n) return TN_E_NOMEM;
    net->impl = n;
    net->ops = &ops;
    net->name = "nccl";
    tn_status status = nccl_library_open(&n->library);
    if (status == TN_OK) status = take_gpu(n, net->rank);
    nccl_id id = {{0}};
    if (status == TN_OK && net->rank == 0)
        status = nccl_check(&n->library, n->library.get_unique_id(&id), "ncclGetUniqueId");
    TN_TRY(check_all(net, status, "use NCCL"));
    TN_TRY(net->inner->ops->broadcast(net->inner, 0, &id, sizeof id, false));
    return check_all(net, join_in_time(net, &id), "join NCCL");
}

TN_API tn_status tn_net_entry(tn_net_module *module);
tn_status tn_net_entry(tn_net_module *module) {
    *module = (tn_net_module){TN_NET_INTERFACE, nccl_open};
    return TN_OK;
}
