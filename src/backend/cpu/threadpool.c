/* The thread pool: created once, started for every run, with a barrier between the steps of a run.
 *
 * The `work` word holds both the number of the run and the number of its threads, so that a worker that does not take
 * part never reads the function of a run that may already be over. */
#include "backend/cpu/program.h"
#include "backend/cpu/topology.h"
#include "backend/cpu/wait.h"
#include "base/checked.h"
#include "tenon/cpu.h"

#include <pthread.h>
#include <stdalign.h>

enum { ACTIVE_BITS = 13, ACTIVE_MASK = (1 << ACTIVE_BITS) - 1 }; /* TN_MAX_THREADS fits */
_Static_assert((int)TN_MAX_THREADS <= (int)ACTIVE_MASK, "the number of threads must fit into the work word");

/* For steps longer than this the cost of sleeping is negligible. */
static const uint64_t barrier_poll_ns = 2 * 1000 * 1000;
/* One unit of the poll level: level 50 polls for 2.5 ms, the pause between two tokens. */
static const uint64_t poll_unit_ns = 50 * 1000;

typedef struct worker {
    struct tn_threadpool *pool;
    pthread_t thread;
    int index; /* 1 … n_threads-1 */
    bool started;
} worker;

struct tn_threadpool {
    int n_threads;
    tn_threadpool_params params;
    uint64_t idle_poll_ns, step_poll_ns;
    pthread_mutex_t run_lock; /* one run at a time */
    worker *workers;

    alignas(64) _Atomic uint32_t work; /* run number << ACTIVE_BITS | threads in it */
    _Atomic uint32_t idle_sleepers;
    _Atomic bool stop, paused;
    _Atomic int crowded, idle_crowded; /* whether polling threads delay the threads they wait for */
    tn_threadpool_fn fn;               /* of the current run; written before `work` */
    void *user;
    int active;

    alignas(64) _Atomic uint32_t arrived;
    alignas(64) _Atomic uint32_t turn; /* counts barriers */
    _Atomic uint32_t turn_sleepers;
};

tn_threadpool_params tn_threadpool_params_default(int n_threads) {
    return (tn_threadpool_params){.n_threads = n_threads, .poll = 50};
}

/* The last thread to arrive opens the barrier. A thread that goes to sleep first registers itself and then checks
 * `turn` once more, so that either it sees the new turn or the opener sees the sleeper. Both sides use sequentially
 * consistent accesses. */
void tn__threadpool_meet(tn_threadpool *pool, void (*last)(void *user), void *user) {
    uint32_t active = (uint32_t)pool->active;
    uint32_t turn = atomic_load_explicit(&pool->turn, memory_order_relaxed);
    if (active == 1 || atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 == active) {
        if (last) last(user);
        if (active == 1) return;
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store(&pool->turn, turn + 1);
        if (atomic_load(&pool->turn_sleepers)) tn__wake_all(&pool->turn);
        return;
    }
    while (!tn__poll(&pool->turn, turn, pool->step_poll_ns, &pool->crowded)) {
        atomic_fetch_add(&pool->turn_sleepers, 1);
        if (atomic_load(&pool->turn) == turn) tn__sleep_on(&pool->turn, turn);
        atomic_fetch_sub(&pool->turn_sleepers, 1);
    }
}
void tn_threadpool_barrier(tn_threadpool *pool) { tn__threadpool_meet(pool, NULL, NULL); }

static void wait_for_work(tn_threadpool *pool, uint32_t last) {
    for (;;) {
        uint64_t limit = atomic_load_explicit(&pool->paused, memory_order_relaxed) ? 0 : pool->idle_poll_ns;
        if (tn__poll(&pool->work, last, limit, &pool->idle_crowded)) return;
        atomic_fetch_add(&pool->idle_sleepers, 1);
        if (atomic_load(&pool->work) == last) tn__sleep_on(&pool->work, last);
        atomic_fetch_sub(&pool->idle_sleepers, 1);
    }
}

static void *worker_main(void *user) {
    worker *self = user;
    tn_threadpool *pool = self->pool;
    tn__apply_placement(&pool->params, self->index);
    tn__apply_priority(pool->params.priority);
    uint32_t last = 0;
    for (;;) {
        wait_for_work(pool, last);
        last = atomic_load_explicit(&pool->work, memory_order_acquire);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return NULL;
        if (self->index >= (int)(last & ACTIVE_MASK)) continue;
        pool->fn(pool->user, self->index, pool->active);
        tn_threadpool_barrier(pool);
    }
}

static void start_workers(tn_threadpool *pool, int active) {
    uint32_t old = atomic_load_explicit(&pool->work, memory_order_relaxed);
    atomic_store(&pool->work, ((old >> ACTIVE_BITS) + 1) << ACTIVE_BITS | (uint32_t)active);
    if (atomic_load(&pool->idle_sleepers)) tn__wake_all(&pool->work);
}

void tn_threadpool_run(tn_threadpool *pool, int n_threads, tn_threadpool_fn fn, void *user) {
    int active = n_threads <= 0 || n_threads > pool->n_threads ? pool->n_threads : n_threads;
    pthread_mutex_lock(&pool->run_lock);
    pool->fn = fn;
    pool->user = user;
    pool->active = active;
    tn__saved_affinity saved;
    bool moved = tn__enter_placement(&pool->params, &saved);
    if (active > 1) {
        atomic_store_explicit(&pool->paused, false, memory_order_relaxed);
        start_workers(pool, active);
    }
    fn(user, 0, active);
    tn_threadpool_barrier(pool);
    if (moved) tn__leave_placement(&saved);
    pthread_mutex_unlock(&pool->run_lock);
}

tn_status tn_threadpool_new(const tn_threadpool_params *params, tn_threadpool **out) {
    if (!out) return tn_fail(TN_E_INVALID, "tn_threadpool_new: `pool` must not be NULL");
    tn_threadpool_params p = params ? *params : tn_threadpool_params_default(0);
    if (p.n_threads < 0 || p.n_threads > TN_MAX_THREADS)
        return tn_fail(TN_E_INVALID, "%d threads: must be 0 to %d", p.n_threads, TN_MAX_THREADS);
    if (p.n_decode < 0) return tn_fail(TN_E_INVALID, "%d threads for decoding: must not be negative", p.n_decode);
    if (p.poll < 0 || p.poll > 100) return tn_fail(TN_E_INVALID, "poll level %d: must be 0 to 100", p.poll);
    if ((unsigned)p.priority > TN_PRIORITY_REALTIME) return tn_fail(TN_E_INVALID, "unknown thread priority");
    if ((unsigned)p.numa > TN_NUMA_LOCAL) return tn_fail(TN_E_INVALID, "unknown NUMA policy");
    if (p.n_threads == 0) p.n_threads = tn__default_threads(&p.mask);
    TN_TRY(tn__resolve_placement(&p));

    tn_threadpool *pool = tn_malloc_aligned(sizeof *pool, 64);
    if (!pool) return TN_E_NOMEM;
    *pool = (tn_threadpool){.n_threads = p.n_threads, .params = p, .active = 1};
    pool->idle_poll_ns = p.poll == 100 ? UINT64_MAX : (uint64_t)p.poll * poll_unit_ns;
    /* Level 0 still polls for a moment between steps: going to sleep costs more than a short step. */
    pool->step_poll_ns = p.poll == 0 ? 5 * 1000 : p.poll == 100 ? UINT64_MAX : barrier_poll_ns;
    atomic_store(&pool->paused, p.paused);
    pthread_mutex_init(&pool->run_lock, NULL);
    pool->workers = tn_calloc((size_t)p.n_threads, sizeof *pool->workers);
    if (!pool->workers) {
        tn_threadpool_free(pool);
        return TN_E_NOMEM;
    }
    for (int i = 1; i < p.n_threads; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->index = i;
        int error = pthread_create(&w->thread, NULL, worker_main, w);
        if (error) {
            tn_threadpool_free(pool);
            return tn_fail(TN_E_NOMEM, "cannot start thread %d of %d (error %d)", i, p.n_threads, error);
        }
        w->started = true;
    }
    *out = pool;
    return TN_OK;
}

void tn_threadpool_free(tn_threadpool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, true);
    start_workers(pool, 1);
    for (int i = 1; pool->workers && i < pool->n_threads; i++)
        if (pool->workers[i].started) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->run_lock);
    tn_free(pool->workers);
    tn_free(pool);
}

int tn_threadpool_size(const tn_threadpool *pool) { return pool ? pool->n_threads : 0; }
int tn_threadpool_decode_size(const tn_threadpool *pool) {
    const int n = pool ? pool->params.n_decode : 0;
    return n > 0 && n < tn_threadpool_size(pool) ? n : tn_threadpool_size(pool);
}

/* Starts a run without workers, which makes all of them, including those that spin, check `paused` again. */
static void set_paused(tn_threadpool *pool, bool paused) {
    pthread_mutex_lock(&pool->run_lock);
    atomic_store(&pool->paused, paused);
    start_workers(pool, 1);
    pthread_mutex_unlock(&pool->run_lock);
}
void tn_threadpool_pause(tn_threadpool *pool) { set_paused(pool, true); }
void tn_threadpool_resume(tn_threadpool *pool) { set_paused(pool, false); }
