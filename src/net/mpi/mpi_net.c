/* Ranks of an MPI job: a module that is loaded under mpirun or Slurm.
 *
 * Every call is non-blocking and polled with the timeout, so that a rank that stalls ends the job. Sums are added in
 * the order of ranks, small ones by every rank, large ones in segments, one per rank: MPI_Allreduce may give ranks
 * different last bits, and a MoE router would then choose other experts.
 *
 * MPI makes progress only while it is called. While messages are in flight and the rank computes, a progress
 * thread calls it; a mutex serialises calls. The same thread sends the heartbeat of rank 0, which lets ranks that
 * wait for a note distinguish an idle rank 0 from one that is stopped or cut off. */
#include "tenon/net/net_impl.h"

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    GATHERED = 16 << 10,   /* max bytes of an addend, if every rank adds them all */
    SEGMENT = 256 << 10,   /* bytes of a large sum that a rank adds at once */
    PIECE = 1 << 28,       /* bytes of one call, whose count is an int */
    SENDS = 8,             /* messages of a rank that may be in flight */
    POLL_NS = 1000 * 1000, /* then waiting sleeps between polls */
    NAP_NS = 50 * 1000,
    TAG_MESSAGE = 0,
    TAG_BEAT = 1,
    BEATS_PER_TIMEOUT = 4,
    ABORT_SECONDS = 1 /* time for the launcher to end this rank; then it exits itself */
};

typedef struct mpi_net {
    float *addends; /* SEGMENT bytes of every rank */
    bool finalizes;
    /* Buffers of messages under way, and their requests. */
    char *messages[SENDS];
    MPI_Request requests[SENDS];
    size_t message_bytes;
    uint32_t n_sent;
    pthread_mutex_t lock; /* of all calls of MPI, and of `requests` */
    pthread_cond_t wake;
    pthread_t mover;
    bool moves, stopping;
    uint64_t beat_ns; /* between heartbeats */
    char beat;
    MPI_Request beats[TN_NET_RANKS_MOST];
} mpi_net;

static tn_status check_call(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return TN_OK;
    MPI_Error_string(code, text, &length);
    return tn_fail(TN_E_DEVICE_LOST, "%s: %s", what, text);
}
static int unlock_after(mpi_net *m, int code) {
    pthread_mutex_unlock(&m->lock);
    return code;
}
#define LOCKED(m, call) (pthread_mutex_lock(&(m)->lock), unlock_after((m), (call)))
#define MPI_TRY(m, call) TN_TRY(check_call(LOCKED(m, call), #call))

/* Conditions wait for times of tn_time_ns(), which is monotonic. With the default clock such a time is long past, and
 * waiting would not block. */
static int init_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    const int error = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}
static int wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t ns) {
    const struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return pthread_cond_timedwait(condition, lock, &until);
}

/* If a rank has not received the previous heartbeat, it stays in flight and no new one is sent. */
static void send_beats(const tn_net *net) {
    mpi_net *m = net->impl;
    for (int r = 1; r < net->size; r++) {
        int done = 1;
        if (MPI_Test(&m->beats[r], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done)
            (void)MPI_Isend(&m->beat, 1, MPI_BYTE, r, TAG_BEAT, MPI_COMM_WORLD, &m->beats[r]);
    }
}

/* Completes messages in flight while the rank computes. A failure is reported by the next message. */
static void *move_messages(void *user) {
    const tn_net *net = user;
    mpi_net *m = net->impl;
    uint64_t beaten = 0;
    pthread_mutex_lock(&m->lock);
    while (!m->stopping) {
        int left = 0, done = 0;
        const uint64_t now = tn_time_ns();
        if (net->rank == 0 && now - beaten >= m->beat_ns) {
            send_beats(net);
            beaten = now;
        }
        for (int i = 0; i < SENDS; i++)
            if (m->requests[i] != MPI_REQUEST_NULL &&
                MPI_Test(&m->requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS)
                left += !done;
        (void)wait_until(&m->wake, &m->lock, tn_time_ns() + (left ? NAP_NS : m->beat_ns));
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* Receives the heartbeats that have arrived; *heard is the time of the last one. */
static tn_status take_beats(const tn_net *net, uint64_t *heard) {
    mpi_net *m = net->impl;
    for (int there = 1; there;) {
        char beat;
        MPI_TRY(m, MPI_Iprobe(0, TAG_BEAT, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE));
        if (!there) break;
        MPI_TRY(m, MPI_Recv(&beat, 1, MPI_BYTE, 0, TAG_BEAT, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        *heard = tn_time_ns();
    }
    return TN_OK;
}

/* Waits until the request is complete; if `idle`, without timeout while rank 0's heartbeat continues. */
static tn_status finish_request(const tn_net *net, MPI_Request *request, const char *what, bool idle) {
    mpi_net *m = net->impl;
    const uint64_t begin = tn_time_ns();
    uint64_t heard = begin;
    for (int done = 0;;) {
        MPI_TRY(m, MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) return TN_OK;
        const uint64_t waited = tn_time_ns() - begin;
        if (idle && waited > POLL_NS) TN_TRY(take_beats(net, &heard));
        if (begin + waited > heard + (uint64_t)net->timeout_ms * 1000000)
            return tn_fail(TN_E_DEVICE_LOST, "rank %d of %d: %s: the other ranks have not answered for %u ms",
                           net->rank, net->size, what, net->timeout_ms);
        if (waited > POLL_NS)
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
        else if (waited > POLL_NS / 20)
            sched_yield();
    }
}

static tn_status reduce_gathered(tn_net *net, const float *in, float *out, int n) {
    mpi_net *m = net->impl;
    MPI_Request request;
    MPI_TRY(m, MPI_Iallgather(in, n, MPI_FLOAT, m->addends, n, MPI_FLOAT, MPI_COMM_WORLD, &request));
    TN_TRY(finish_request(net, &request, "all-reduce", false));
    for (int i = 0; i < n; i++) {
        float sum = m->addends[i];
        for (int r = 1; r < net->size; r++) sum += m->addends[(size_t)r * (size_t)n + (size_t)i];
        out[i] = sum;
    }
    return TN_OK;
}

static tn_status mpi_broadcast(tn_net *net, int root, void *data, size_t size, bool idle) {
    mpi_net *m = net->impl;
    for (size_t begin = 0; begin < size; begin += PIECE) {
        const size_t count = size - begin < PIECE ? size - begin : PIECE;
        MPI_Request request;
        MPI_TRY(m, MPI_Ibcast((char *)data + begin, (int)count, MPI_BYTE, root, MPI_COMM_WORLD, &request));
        TN_TRY(finish_request(net, &request, "broadcast", idle && net->rank != root));
    }
    return TN_OK;
}

/* Every rank adds its segment of all addends, then all segments are gathered: no link carries more than twice the
 * bytes. */
static tn_status reduce_segments(tn_net *net, const float *in, float *out, size_t n) {
    mpi_net *m = net->impl;
    int counts[TN_NET_RANKS_MOST] = {0}, starts[TN_NET_RANKS_MOST], own[TN_NET_RANKS_MOST], at[TN_NET_RANKS_MOST];
    for (int r = 0; r < net->size; r++) {
        starts[r] = (int)(n * (size_t)r / (size_t)net->size);
        counts[r] = (int)(n * ((size_t)r + 1) / (size_t)net->size) - starts[r];
    }
    const int mine = counts[net->rank];
    for (int r = 0; r < net->size; r++) {
        own[r] = mine;
        at[r] = r * mine;
    }
    MPI_Request request;
    MPI_TRY(m,
            MPI_Ialltoallv(in, counts, starts, MPI_FLOAT, m->addends, own, at, MPI_FLOAT, MPI_COMM_WORLD, &request));
    TN_TRY(finish_request(net, &request, "all-reduce", false));
    float *sum = m->addends;
    for (int r = 1; r < net->size; r++)
        for (int i = 0; i < mine; i++) sum[i] += m->addends[(size_t)r * (size_t)mine + (size_t)i];
    MPI_TRY(m, MPI_Iallgatherv(sum, mine, MPI_FLOAT, out, counts, starts, MPI_FLOAT, MPI_COMM_WORLD, &request));
    return finish_request(net, &request, "all-reduce", false);
}

static tn_status mpi_all_reduce(tn_net *net, const float *in, float *out, size_t n) {
    if (n * sizeof *in <= GATHERED) return reduce_gathered(net, in, out, (int)n);
    const size_t most = SEGMENT / sizeof *in * (size_t)net->size;
    for (size_t begin = 0; begin < n; begin += most)
        TN_TRY(reduce_segments(net, in + begin, out + begin, n - begin < most ? n - begin : most));
    return TN_OK;
}

static tn_status mpi_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) {
    mpi_net *m = net->impl;
    int counts[TN_NET_RANKS_MOST], starts[TN_NET_RANKS_MOST];
    size_t at = 0;
    for (int r = 0; r < net->size; at += sizes[r++]) {
        if (sizes[r] > PIECE || at > PIECE)
            return tn_fail(TN_E_TOO_BIG, "a block of %zu bytes is too large", sizes[r]);
        counts[r] = (int)sizes[r];
        starts[r] = (int)at;
    }
    MPI_Request request;
    MPI_TRY(m, MPI_Iallgatherv(own, counts[net->rank], MPI_BYTE, out, counts, starts, MPI_BYTE, MPI_COMM_WORLD,
                               &request));
    return finish_request(net, &request, "all-gather", false);
}

static tn_status mpi_send(tn_net *net, int to, const void *data, size_t size) {
    mpi_net *m = net->impl;
    for (size_t begin = 0; begin < size; begin += m->message_bytes) {
        const size_t count = size - begin < m->message_bytes ? size - begin : m->message_bytes;
        const uint32_t i = m->n_sent++ % SENDS;
        TN_TRY(finish_request(net, &m->requests[i], "send", false)); /* at once if there is none */
        memcpy(m->messages[i], (const char *)data + begin, count);
        MPI_TRY(m, MPI_Isend(m->messages[i], (int)count, MPI_BYTE, to, TAG_MESSAGE, MPI_COMM_WORLD, &m->requests[i]));
        pthread_cond_signal(&m->wake);
    }
    return TN_OK;
}

static tn_status mpi_receive(tn_net *net, int from, void *data, size_t size, bool idle) {
    mpi_net *m = net->impl;
    for (size_t begin = 0; begin < size; begin += m->message_bytes) {
        const size_t count = size - begin < m->message_bytes ? size - begin : m->message_bytes;
        MPI_Request request;
        MPI_TRY(m,
                MPI_Irecv((char *)data + begin, (int)count, MPI_BYTE, from, TAG_MESSAGE, MPI_COMM_WORLD, &request));
        TN_TRY(finish_request(net, &request, "receive", idle));
    }
    return TN_OK;
}

/* MPI_Init and MPI_Finalize wait for all ranks without a timeout: a signal ends this process if they take too long.
 */
typedef struct mpi_watch {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    pthread_t thread;
    bool runs, done;
    uint32_t timeout_ms;
    const char *what;
} mpi_watch;

static void *watch_call(void *user) {
    mpi_watch *w = user;
    const uint64_t until = tn_time_ns() + (uint64_t)w->timeout_ms * 1000000;
    pthread_mutex_lock(&w->lock);
    while (!w->done)
        if (wait_until(&w->ended, &w->lock, until) != 0 && !w->done) {
            fprintf(stderr, "%s: the other ranks have not answered for %u ms\n", w->what, w->timeout_ms);
            signal(SIGALRM, SIG_DFL);
            kill(getpid(), SIGALRM); /* as in end_job() */
        }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}
static void begin_watch(mpi_watch *w, const tn_net *net, const char *what) {
    *w = (mpi_watch){.lock = PTHREAD_MUTEX_INITIALIZER, .timeout_ms = net->timeout_ms, .what = what};
    w->runs = init_condition(&w->ended) == 0 && pthread_create(&w->thread, NULL, watch_call, w) == 0;
}
static void end_watch(mpi_watch *w) {
    if (!w->runs) return;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
}

/* MPI cannot interrupt ranks that wait in a call: the launcher ends them. If it is cut off, this rank exits itself,
 * and the others after their timeout. */
static void end_job(int status) {
    signal(SIGALRM, SIG_DFL);
    alarm(ABORT_SECONDS);
    MPI_Abort(MPI_COMM_WORLD, status);
}
static void mpi_abort(tn_net *net, tn_status status, const char *text) {
    mpi_net *m = net->impl;
    fprintf(stderr, "rank %d of %d: %s\n", net->rank, net->size, text);
    pthread_mutex_lock(&m->lock); /* no beats */
    m->stopping = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    if (net->rank != 0) end_job((int)status); /* rank 0 answers requests before it ends the job (mpi_free) */
}

static size_t mpi_bytes(const tn_net *net) {
    const mpi_net *m = net->impl;
    return (size_t)net->size * SEGMENT + SENDS * m->message_bytes;
}

static void mpi_free(tn_net *net) {
    mpi_net *m = net->impl;
    if (m->moves) {
        pthread_mutex_lock(&m->lock);
        m->stopping = true;
        pthread_cond_signal(&m->wake);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->mover, NULL);
    }
    for (int i = 0; i < SENDS; i++) {
        if (net->status == TN_OK) (void)finish_request(net, &m->requests[i], "send", false);
        tn_free(m->messages[i]);
    }
    for (int r = 1; r < net->size && net->rank == 0 && net->status == TN_OK; r++)
        (void)finish_request(net, &m->beats[r], "heartbeat", false);
    uint64_t heard;
    if (net->rank != 0 && net->status == TN_OK) (void)take_beats(net, &heard);
    if (m->finalizes && net->status == TN_OK) {
        mpi_watch watch;
        begin_watch(&watch, net, "MPI_Finalize");
        MPI_Finalize();
        end_watch(&watch);
    }
    if (net->status != TN_OK) end_job((int)net->status);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
    tn_free(m->addends);
    tn_free(m);
}

static tn_status mpi_open(const tn_net_params *params, tn_net *net) {
    static const tn_net_ops ops = {.free = mpi_free,
                                   .all_reduce = mpi_all_reduce,
                                   .all_gather = mpi_all_gather,
                                   .broadcast = mpi_broadcast,
                                   .send = mpi_send,
                                   .receive = mpi_receive,
                                   .abort = mpi_abort,
                                   .bytes = mpi_bytes};
    int ready = 0, level;
    mpi_net *m = tn_calloc(1, sizeof *m);
    if (!m) return TN_E_NOMEM;
    if (pthread_mutex_init(&m->lock, NULL) || init_condition(&m->wake)) {
        tn_free(m);
        return TN_E_NOMEM;
    }
    net->impl = m;
    net->ops = &ops;
    net->name = "mpi";
    for (int i = 0; i < SENDS; i++) m->requests[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < TN_NET_RANKS_MOST; i++) m->beats[i] = MPI_REQUEST_NULL;
    m->beat_ns = (uint64_t)net->timeout_ms * 1000000 / BEATS_PER_TIMEOUT;
    MPI_TRY(m, MPI_Initialized(&ready));
    if (!ready) {
        /* Calls come from the threads of a session, one at a time. */
        mpi_watch watch;
        begin_watch(&watch, net, "MPI_Init");
        const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        end_watch(&watch);
        TN_TRY(check_call(code, "MPI_Init_thread"));
        m->finalizes = true;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &net->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &net->size);
    if (net->size > TN_NET_RANKS_MOST)
        return tn_fail(TN_E_LIMIT, "1 to %d ranks are supported, not %d", TN_NET_RANKS_MOST, net->size);
    m->message_bytes = params->message_bytes ? params->message_bytes : (size_t)1 << 20;
    m->addends = tn_calloc((size_t)net->size, SEGMENT);
    for (int i = 0; i < SENDS; i++) m->messages[i] = tn_malloc(m->message_bytes);
    if (!m->addends || !m->messages[0] || !m->messages[SENDS - 1]) return TN_E_NOMEM;
    MPI_TRY(m, MPI_Query_thread(&level));
    m->moves = level >= MPI_THREAD_SERIALIZED && pthread_create(&m->mover, NULL, move_messages, net) == 0;
    return TN_OK;
}

TN_API tn_status tn_net_entry(tn_net_module *module);
tn_status tn_net_entry(tn_net_module *module) {
    *module = (tn_net_module){TN_NET_INTERFACE, mpi_open};
    return TN_OK;
}
