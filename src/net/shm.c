/* A transport in memory that the ranks share: processes of one machine (a memory file), or threads of one process.
 *
 * Every rank has two chunks. In step s of a collective a rank copies a piece of its data into chunk s % 2 and
 * publishes s; the others read it there. A chunk is written again two steps later, after all others have finished
 * step s. Pairs of ranks have four message buffers each. Pages of unused buffers are never touched and take no
 * memory. */
#include "net/transports.h"

#include "base/checked.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNK = 256 << 10, /* fits the second-level cache beside what it is added to */
    SHM_PAGE = 4096,
    MESSAGES = 4, /* of a pair of ranks under way */
    SHM_MAGIC = 0x4e544e31,
    POLL_NS = 20 * 1000,          /* after that every poll yields: the other rank may need this core */
    SLEEP_AFTER_NS = 1000 * 1000, /* then waiting sleeps in the kernel */
    NAP_NS = 5 * 1000 * 1000,     /* and checks that the other ranks are alive this often */
    BEATS_PER_TIMEOUT = 4
};

typedef struct shm_rank {
    _Alignas(64) _Atomic uint32_t written; /* the last step whose chunk is published */
    _Atomic uint32_t done;                 /* the last step whose chunks were read */
    _Atomic uint32_t sleepers;             /* ranks that sleep until one of these changes */
    _Atomic uint32_t joined;
    pthread_mutex_t alive; /* held while the process lives */
} shm_rank;

typedef struct shm_ring {
    _Alignas(64) _Atomic uint32_t sent, taken, sleepers;
} shm_ring;

typedef struct shm_region {
    uint32_t magic, n_ranks, processes;
    uint64_t message_bytes, size;
    _Atomic uint32_t beat;   /* incremented while rank 0 runs */
    _Atomic uint32_t broken; /* 1: being written; 2: what follows is valid */
    int32_t broken_status, broken_rank;
    char broken_text[384];
    _Atomic uint32_t leavers; /* threads: the last one frees the memory */
    shm_rank ranks[TN_NET_RANKS_MOST];
} shm_region;

typedef struct shm_net {
    shm_region *region;
    uint32_t step;
    bool beats;
    pthread_t heart;
    pthread_mutex_t lock; /* for the sleep of the heartbeat thread */
    pthread_cond_t stop;
    bool stopping;
} shm_net;

/* ---- Layout ---- */

static size_t chunks_at(void) { return tn__align_up(sizeof(shm_region), SHM_PAGE); }
static size_t rings_at(const shm_region *g) { return chunks_at() + (size_t)g->n_ranks * 2 * CHUNK; }
static size_t ring_bytes(const shm_region *g) { return SHM_PAGE + MESSAGES * g->message_bytes; }
static size_t region_bytes(const shm_region *g) {
    return rings_at(g) + (size_t)g->n_ranks * g->n_ranks * ring_bytes(g);
}
static char *chunk_of(shm_region *g, int rank, uint32_t step) {
    return (char *)g + chunks_at() + ((size_t)rank * 2 + step % 2) * CHUNK;
}
static shm_ring *ring_of(shm_region *g, int from, int to) {
    return (shm_ring *)(void *)((char *)g + rings_at(g) + ((size_t)from * g->n_ranks + (size_t)to) * ring_bytes(g));
}
static char *ring_message(const shm_region *g, shm_ring *ring, uint32_t number) {
    return (char *)ring + SHM_PAGE + number % MESSAGES * g->message_bytes;
}

static shm_region *shm_region_of(const tn_net *net) { return ((const shm_net *)net->impl)->region; }

/* ---- Waiting ---- */

static bool reached(_Atomic uint32_t *word, uint32_t step) {
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - step) >= 0;
}

static void publish(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers) {
    atomic_store(word, value);
    if (atomic_load(sleepers)) syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static tn_status check_broken(const tn_net *net) {
    shm_region *g = shm_region_of(net);
    if (atomic_load_explicit(&g->broken, memory_order_acquire) != 2) return TN_OK;
    return tn_fail((tn_status)g->broken_status, "rank %d: %s", g->broken_rank, g->broken_text);
}

/* TN_E_DEVICE_LOST once the process of that rank has exited: the kernel releases the lock of a process that dies. */
static tn_status check_alive(const tn_net *net, int peer) {
    shm_region *g = shm_region_of(net);
    shm_rank *r = &g->ranks[peer];
    if (!g->processes || !atomic_load_explicit(&r->joined, memory_order_acquire)) return TN_OK;
    const int error = pthread_mutex_trylock(&r->alive);
    if (error == EBUSY) return TN_OK;
    if (error == EOWNERDEAD) (void)pthread_mutex_consistent(&r->alive);
    if (error == 0 || error == EOWNERDEAD) (void)pthread_mutex_unlock(&r->alive);
    TN_TRY(check_broken(net));
    return tn_fail(TN_E_DEVICE_LOST, "rank %d of %d has ended", peer, net->size);
}

typedef struct patience {
    uint64_t begin, beat_seen;
    uint32_t beat;
    bool idle; /* waits without timeout, as long as rank 0's heartbeat continues */
} patience;

static tn_status check_patience(const tn_net *net, patience *p, int peer, uint64_t now) {
    shm_region *g = shm_region_of(net);
    const uint64_t timeout = (uint64_t)net->timeout_ms * 1000000;
    TN_TRY(check_broken(net));
    TN_TRY(check_alive(net, peer));
    if (p->idle && !g->processes) return TN_OK;
    if (p->idle) {
        const uint32_t beat = atomic_load_explicit(&g->beat, memory_order_relaxed);
        if (beat != p->beat || !p->beat_seen) {
            p->beat = beat;
            p->beat_seen = now;
        }
        if (now - p->beat_seen <= timeout) return TN_OK;
    } else if (now - p->begin <= timeout) {
        return TN_OK;
    }
    return tn_fail(TN_E_DEVICE_LOST, "rank %d of %d has not answered for %u ms", peer, net->size, net->timeout_ms);
}

/* Until *word has reached the step. */
static tn_status wait_for(const tn_net *net, _Atomic uint32_t *word, uint32_t step, _Atomic uint32_t *sleepers,
                          int peer, bool idle) {
    if (reached(word, step)) return TN_OK;
    patience p = {.begin = tn_time_ns(), .idle = idle};
    uint64_t checked = p.begin;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (reached(word, step)) return TN_OK;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        const uint64_t now = tn_time_ns(), waited = now - p.begin;
        if (now - checked > NAP_NS) {
            TN_TRY(check_patience(net, &p, peer, now));
            checked = now;
        }
        if (waited < POLL_NS) continue;
        if (waited < SLEEP_AFTER_NS) {
            sched_yield();
            continue;
        }
        const struct timespec nap = {0, NAP_NS};
        const uint32_t old = atomic_load(word);
        atomic_fetch_add(sleepers, 1);
        if (!reached(word, step)) syscall(SYS_futex, word, FUTEX_WAIT, old, &nap, NULL, 0);
        atomic_fetch_sub(sleepers, 1);
    }
}

/* ---- Steps of collectives ---- */

static tn_status wait_written(const tn_net *net, int peer, uint32_t step, bool idle) {
    shm_rank *r = &shm_region_of(net)->ranks[peer];
    return wait_for(net, &r->written, step, &r->sleepers, peer, idle);
}

/* Begins the next step; afterwards this rank may write its chunk of the step. */
static tn_status begin_exchange(tn_net *net, char **chunk) {
    shm_net *s = net->impl;
    const uint32_t step = ++s->step;
    for (int r = 0; r < net->size; r++) {
        shm_rank *rank = &s->region->ranks[r];
        if (r != net->rank) TN_TRY(wait_for(net, &rank->done, step - 2, &rank->sleepers, r, false));
    }
    *chunk = chunk_of(s->region, net->rank, step);
    return TN_OK;
}
static void publish_chunk(tn_net *net) {
    shm_net *s = net->impl;
    shm_rank *me = &s->region->ranks[net->rank];
    publish(&me->written, s->step, &me->sleepers);
}
static void end_exchange(tn_net *net) {
    shm_net *s = net->impl;
    shm_rank *me = &s->region->ranks[net->rank];
    publish(&me->done, s->step, &me->sleepers);
}

static void add_two(const float *restrict a, const float *restrict b, float *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}
static void add_to(float *restrict out, const float *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] += b[i];
}

static tn_status shm_all_reduce(tn_net *net, const float *in, float *out, size_t n) {
    shm_net *s = net->impl;
    const size_t most = CHUNK / sizeof(float);
    for (size_t begin = 0; begin < n; begin += most) {
        const size_t count = TN__MIN(n - begin, most);
        char *chunk;
        TN_TRY(begin_exchange(net, &chunk));
        memcpy(chunk, in + begin, count * sizeof *in);
        publish_chunk(net);
        const float *sum = NULL; /* rank 0's addend; they are added in the order of ranks */
        for (int r = 0; r < net->size; r++) {
            if (r != net->rank) TN_TRY(wait_written(net, r, s->step, false));
            const float *addend = (const float *)(const void *)chunk_of(s->region, r, s->step);
            if (r == 1) add_two(sum, addend, out + begin, count);
            if (r > 1) add_to(out + begin, addend, count);
            if (r == 0) sum = addend;
        }
        if (net->size == 1) memcpy(out + begin, chunk, count * sizeof *out);
        end_exchange(net);
    }
    return TN_OK;
}

static tn_status shm_all_gather(tn_net *net, const void *own, const size_t *sizes, void *out) {
    shm_net *s = net->impl;
    size_t longest = 0;
    for (int r = 0; r < net->size; r++) longest = TN__MAX(longest, sizes[r]);
    for (size_t begin = 0; begin < longest; begin += CHUNK) {
        char *chunk, *to = out;
        TN_TRY(begin_exchange(net, &chunk));
        const size_t size = sizes[net->rank] > begin ? TN__MIN(sizes[net->rank] - begin, (size_t)CHUNK) : 0;
        memcpy(chunk, (const char *)own + begin, size);
        publish_chunk(net);
        for (int r = 0; r < net->size; to += sizes[r++]) {
            const size_t count = sizes[r] > begin ? TN__MIN(sizes[r] - begin, (size_t)CHUNK) : 0;
            if (r != net->rank) TN_TRY(wait_written(net, r, s->step, false));
            const char *from = chunk_of(s->region, r, s->step);
            if (count && (r != net->rank || to + begin != (const char *)own + begin)) memcpy(to + begin, from, count);
        }
        end_exchange(net);
    }
    return TN_OK;
}

static tn_status shm_broadcast(tn_net *net, int root, void *data, size_t size, bool idle) {
    shm_net *s = net->impl;
    for (size_t begin = 0; begin < size; begin += CHUNK) {
        const size_t count = TN__MIN(size - begin, (size_t)CHUNK);
        if (net->rank == root) {
            char *chunk;
            TN_TRY(begin_exchange(net, &chunk));
            memcpy(chunk, (char *)data + begin, count);
        } else {
            s->step++;
            TN_TRY(wait_written(net, root, s->step, idle));
            memcpy((char *)data + begin, chunk_of(s->region, root, s->step), count);
        }
        publish_chunk(net);
        end_exchange(net);
    }
    return TN_OK;
}

/* ---- Messages ---- */

static tn_status shm_send(tn_net *net, int to, const void *data, size_t size) {
    shm_region *g = shm_region_of(net);
    shm_ring *ring = ring_of(g, net->rank, to);
    for (size_t begin = 0; begin < size; begin += g->message_bytes) {
        const uint32_t number = atomic_load_explicit(&ring->sent, memory_order_relaxed);
        TN_TRY(wait_for(net, &ring->taken, number + 1 - MESSAGES, &ring->sleepers, to, false));
        memcpy(ring_message(g, ring, number), (const char *)data + begin, TN__MIN(size - begin, g->message_bytes));
        publish(&ring->sent, number + 1, &ring->sleepers);
    }
    return TN_OK;
}

static tn_status shm_receive(tn_net *net, int from, void *data, size_t size, bool idle) {
    shm_region *g = shm_region_of(net);
    shm_ring *ring = ring_of(g, from, net->rank);
    for (size_t begin = 0; begin < size; begin += g->message_bytes) {
        const uint32_t number = atomic_load_explicit(&ring->taken, memory_order_relaxed);
        TN_TRY(wait_for(net, &ring->sent, number + 1, &ring->sleepers, from, idle && !begin));
        memcpy((char *)data + begin, ring_message(g, ring, number), TN__MIN(size - begin, g->message_bytes));
        publish(&ring->taken, number + 1, &ring->sleepers);
    }
    return TN_OK;
}

/* ---- Life ---- */

static void shm_abort(tn_net *net, tn_status status, const char *text) {
    shm_region *g = shm_region_of(net);
    uint32_t whole = 0;
    if (!atomic_compare_exchange_strong(&g->broken, &whole, 1)) return;
    g->broken_status = (int32_t)status;
    g->broken_rank = net->rank;
    snprintf(g->broken_text, sizeof g->broken_text, "%s", text);
    atomic_store(&g->broken, 2);
}

static size_t shm_bytes(const tn_net *net) {
    const shm_region *g = shm_region_of(net);
    return chunks_at() + (size_t)g->n_ranks * 2 * CHUNK + 2 * ring_bytes(g);
}

/* Rank 0's heartbeat: a counter that stands still while the process is stopped. */
static void *beat(void *user) {
    tn_net *net = user;
    shm_net *s = net->impl;
    const uint64_t pause = (uint64_t)net->timeout_ms * 1000000 / BEATS_PER_TIMEOUT;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct timespec until;
        atomic_fetch_add(&s->region->beat, 1);
        clock_gettime(CLOCK_MONOTONIC, &until);
        const uint64_t ns = (uint64_t)until.tv_nsec + pause;
        until.tv_sec += (time_t)(ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
        (void)pthread_cond_timedwait(&s->stop, &s->lock, &until);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static tn_status start_heart(tn_net *net) {
    shm_net *s = net->impl;
    pthread_condattr_t attributes;
    if (net->rank != 0 || !s->region->processes) return TN_OK;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->stop, &attributes);
    pthread_condattr_destroy(&attributes);
    const int error = pthread_create(&s->heart, NULL, beat, net);
    if (error) return tn_fail(TN_E_NOMEM, "a thread cannot be started: %s", strerror(error));
    s->beats = true;
    return TN_OK;
}

static void shm_free(tn_net *net) {
    shm_net *s = net->impl;
    if (!s) return;
    if (s->beats) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_cond_signal(&s->stop);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->heart, NULL);
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->stop);
    }
    shm_region *g = s->region;
    if (g->processes) (void)pthread_mutex_unlock(&g->ranks[net->rank].alive);
    if (g->processes || atomic_fetch_add(&g->leavers, 1) + 1 == g->n_ranks) munmap(g, g->size);
    tn_free(s);
    net->impl = NULL;
}

static const tn_net_ops shm_ops = {.free = shm_free,
                                   .all_reduce = shm_all_reduce,
                                   .all_gather = shm_all_gather,
                                   .broadcast = shm_broadcast,
                                   .send = shm_send,
                                   .receive = shm_receive,
                                   .abort = shm_abort,
                                   .bytes = shm_bytes};

static tn_status join(shm_region *g, const char *name, tn_net *net) {
    shm_net *s = tn_calloc(1, sizeof *s);
    if (!s) return TN_E_NOMEM;
    s->region = g;
    net->impl = s;
    net->ops = &shm_ops;
    net->name = name;
    if (g->processes) {
        const int error = pthread_mutex_trylock(&g->ranks[net->rank].alive);
        if (error && error != EOWNERDEAD)
            return tn_fail(TN_E_STATE, "rank %d of %d has already joined", net->rank, net->size);
    }
    atomic_store(&g->ranks[net->rank].joined, 1);
    return start_heart(net);
}

static tn_status check_ranks(const tn_net_params *p) {
    if (p->n_ranks >= 1 && p->n_ranks <= TN_NET_RANKS_MOST) return TN_OK;
    return tn_fail(TN_E_INVALID, "1 to %d ranks are supported, not %d", TN_NET_RANKS_MOST, p->n_ranks);
}

static void describe_region(const tn_net_params *p, bool processes, shm_region *g) {
    memset(g, 0, sizeof *g);
    g->magic = SHM_MAGIC;
    g->n_ranks = (uint32_t)p->n_ranks;
    g->processes = processes;
    g->message_bytes = tn__align_up(p->message_bytes ? p->message_bytes : (size_t)1 << 20, SHM_PAGE);
    g->size = region_bytes(g);
}

static tn_status init_locks(shm_region *g) {
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes)) return TN_E_NOMEM;
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (uint32_t r = 0; r < g->n_ranks; r++) pthread_mutex_init(&g->ranks[r].alive, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return TN_OK;
}

tn_status tn_net_shm_new(const tn_net_params *params, int *out) {
    if (!params || !out) return tn_fail(TN_E_INVALID, "tn_net_shm_new: NULL argument");
    TN_TRY(check_ranks(params));
    shm_region about;
    describe_region(params, true, &about);
    const int fd = memfd_create("tenon", 0);
    if (fd < 0) return tn_fail(TN_E_IO, "cannot create shm between processes: %s", strerror(errno));
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)about.size) == 0)
        memory = mmap(NULL, about.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;
        close(fd);
        return tn_fail(TN_E_NOMEM, "cannot map %zu bytes of shm between processes: %s", about.size, strerror(error));
    }
    memcpy(memory, &about, sizeof about);
    tn_status status = init_locks(memory);
    munmap(memory, about.size);
    if (status != TN_OK)
        close(fd);
    else
        *out = fd;
    return status;
}

tn_status tn__net_shm_open(int fd, const tn_net_params *params, tn_net *net) {
    struct stat info;
    if (fstat(fd, &info) != 0) return tn_fail(TN_E_IO, "shm:%d: %s", fd, strerror(errno));
    shm_region *g = info.st_size < (off_t)sizeof *g
                        ? MAP_FAILED
                        : mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (g == MAP_FAILED) return tn_fail(TN_E_IO, "cannot map shm:%d", fd);
    if (g->magic != SHM_MAGIC || g->n_ranks != (uint32_t)params->n_ranks || params->rank < 0 ||
        params->rank >= params->n_ranks || g->size != (uint64_t)info.st_size) {
        munmap(g, (size_t)info.st_size);
        return tn_fail(TN_E_FORMAT, "shm:%d is not memory for rank %d of %d", fd, params->rank, params->n_ranks);
    }
    return join(g, "shm", net);
}

tn_status tn_net_threads(const tn_net_params *params, tn_net **nets) {
    if (!params || !nets) return tn_fail(TN_E_INVALID, "tn_net_threads: NULL argument");
    TN_TRY(check_ranks(params));
    shm_region about;
    describe_region(params, false, &about);
    for (int r = 0; r < params->n_ranks; r++) nets[r] = NULL;
    shm_region *g =
        mmap(NULL, about.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g == MAP_FAILED) return tn_fail(TN_E_NOMEM, "cannot map %zu bytes between threads", about.size);
    memcpy(g, &about, sizeof about);
    for (int r = 0; r < params->n_ranks; r++) {
        tn_net *net = nets[r] = tn_calloc(1, sizeof *net);
        if (net)
            *net = (tn_net){.rank = r,
                            .size = params->n_ranks,
                            .timeout_ms = params->timeout_ms,
                            .message_bytes = g->message_bytes};
        if (net && !net->timeout_ms) net->timeout_ms = 30000;
        if (net && tn__coded_begin(net, params->type) == TN_OK && join(g, "threads", net) == TN_OK) continue;
        if (net) tn_free(net->coded);
        if (net) tn_free(net); /* joining cannot fail for threads, except for lack of memory */
        nets[r] = NULL;
        atomic_store(&g->leavers, (uint32_t)(params->n_ranks - r));
        if (r == 0) munmap(g, about.size);
        for (int i = 0; i < r; i++) tn_net_free(nets[i]);
        for (int i = 0; i < params->n_ranks; i++) nets[i] = NULL;
        return TN_E_NOMEM;
    }
    return TN_OK;
}
