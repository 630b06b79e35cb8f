/* The thread pool: shares, barriers, pausing, several pools and several callers at once, abort of a graph. */
#include "support.h"

#include "tenon/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8 };

typedef struct counted {
    tn_threadpool *pool;
    _Atomic int calls, barriers_broken;
    _Atomic int round[MOST];
    int seen_count;
} counted;

static void count_call(void *user, int index, int count) {
    counted *c = user;
    atomic_fetch_add(&c->calls, 1);
    if (index == 0) c->seen_count = count;
}

static tn_threadpool *pool_of(int n, int poll) {
    tn_threadpool_params p = tn_threadpool_params_default(n);
    p.poll = poll;
    tn_threadpool *pool;
    assert_ok(tn_threadpool_new(&p, &pool));
    return pool;
}

static void every_thread_runs_once_per_run(void **state) {
    (void)state;
    static const int polls[] = {0, 1, 50, 100};
    for (size_t p = 0; p < 4; p++) {
        for (int n = 1; n <= 5; n += 2) {
            counted c = {.pool = pool_of(n, polls[p])};
            assert_int_equal(tn_threadpool_size(c.pool), n);
            for (int run = 0; run < 50; run++) {
                int want = 1 + run % n;
                atomic_store(&c.calls, 0);
                tn_threadpool_run(c.pool, want, count_call, &c);
                assert_int_equal(atomic_load(&c.calls), want);
                assert_int_equal(c.seen_count, want);
            }
            tn_threadpool_run(c.pool, 0, count_call, &c);
            assert_int_equal(c.seen_count, n);
            tn_threadpool_run(c.pool, 100, count_call, &c);
            assert_int_equal(c.seen_count, n);
            tn_threadpool_free(c.pool);
        }
    }
}

/* No thread may be a round ahead of another. */
static void check_rounds(void *user, int index, int count) {
    counted *c = user;
    for (int r = 1; r <= 100; r++) {
        atomic_store_explicit(&c->round[index], r, memory_order_relaxed);
        tn_threadpool_barrier(c->pool);
        for (int i = 0; i < count; i++)
            if (atomic_load_explicit(&c->round[i], memory_order_relaxed) != r)
                atomic_fetch_add(&c->barriers_broken, 1);
        tn_threadpool_barrier(c->pool);
    }
}

static void a_barrier_holds_everyone(void **state) {
    (void)state;
    static const int polls[] = {0, 50, 100};
    for (size_t p = 0; p < 3; p++) {
        for (int n = 2; n <= 5; n++) {
            counted c = {.pool = pool_of(n, polls[p])};
            tn_threadpool_run(c.pool, n, check_rounds, &c);
            assert_int_equal(atomic_load(&c.barriers_broken), 0);
            tn_threadpool_free(c.pool);
        }
    }
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void a_paused_pool_uses_no_processor(void **state) {
    (void)state;
    counted c = {.pool = pool_of(2, 100)};
    tn_threadpool_run(c.pool, 2, count_call, &c);
    tn_threadpool_pause(c.pool);
    usleep(20000); /* let it go to sleep */
    double before = cpu_seconds();
    usleep(100000);
    double used = cpu_seconds() - before;
    assert_true(used < 0.05);
    tn_threadpool_resume(c.pool);
    tn_threadpool_run(c.pool, 2, count_call, &c);
    tn_threadpool_pause(c.pool);
    tn_threadpool_run(c.pool, 2, count_call, &c); /* a run wakes it by itself */
    assert_int_equal(atomic_load(&c.calls), 6);
    tn_threadpool_free(c.pool);

    tn_threadpool_params p = tn_threadpool_params_default(3);
    p.paused = true;
    assert_ok(tn_threadpool_new(&p, &c.pool));
    tn_threadpool_run(c.pool, 3, count_call, &c);
    assert_int_equal(atomic_load(&c.calls), 9);
    tn_threadpool_free(c.pool);
}

typedef struct caller {
    counted *c;
    int runs;
} caller;
static void *call_repeatedly(void *user) {
    caller *me = user;
    for (int i = 0; i < me->runs; i++) tn_threadpool_run(me->c->pool, 3, count_call, me->c);
    return NULL;
}

static void callers_take_turns_and_pools_are_independent(void **state) {
    (void)state;
    counted shared = {.pool = pool_of(3, 1)}, other = {.pool = pool_of(3, 0)};
    caller callers[4] = {{&shared, 100}, {&shared, 100}, {&other, 100}, {&shared, 50}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, call_repeatedly, &callers[i]), 0);
    for (int i = 0; i < 20; i++) {
        tn_threadpool_pause(shared.pool);
        tn_threadpool_resume(shared.pool);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&shared.calls), 750);
    assert_int_equal(atomic_load(&other.calls), 300);
    tn_threadpool_free(shared.pool);
    tn_threadpool_free(other.pool);
}

static void record_processor(void *user, int index, int count) {
    (void)count;
    ((int *)user)[index] = sched_getcpu();
}

static void strict_masks_place_every_thread(void **state) {
    (void)state;
    if (tn_cpu_count() < 2) skip();
    cpu_set_t allowed, after;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int cpus[2], found = 0;
    tn_threadpool_params p = tn_threadpool_params_default(2);
    for (int cpu = 0; cpu < TN_MAX_CPUS && found < 2; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        cpus[found++] = cpu;
        p.mask.words[cpu / 64] |= (uint64_t)1 << (cpu % 64);
    }
    p.strict = true;
    p.priority = TN_PRIORITY_LOW;
    tn_threadpool *pool;
    assert_ok(tn_threadpool_new(&p, &pool));
    for (int i = 0; i < 20; i++) {
        int at[2] = {-1, -1};
        tn_threadpool_run(pool, 2, record_processor, at);
        assert_int_equal(at[0], cpus[0]);
        assert_int_equal(at[1], cpus[1]);
    }
    tn_threadpool_free(pool);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&allowed, &after)); /* the caller's processor mask is restored */

    for (int numa = TN_NUMA_NONE; numa <= TN_NUMA_LOCAL; numa++) {
        tn_threadpool_params q = tn_threadpool_params_default(2);
        q.numa = (tn_numa_policy)numa;
        assert_ok(tn_threadpool_new(&q, &pool));
        int at[2];
        tn_threadpool_run(pool, 2, record_processor, at);
        tn_threadpool_free(pool);
    }
}

static void wrong_parameters_are_refused(void **state) {
    (void)state;
    tn_threadpool *pool;
    tn_threadpool_params p = tn_threadpool_params_default(-1);
    assert_fails(TN_E_INVALID, tn_threadpool_new(&p, &pool));
    p = tn_threadpool_params_default(2);
    p.poll = 101;
    assert_fails(TN_E_INVALID, tn_threadpool_new(&p, &pool));
    p = tn_threadpool_params_default(2);
    p.mask.words[15] = (uint64_t)1 << 63; /* processor 1023 */
    assert_fails(TN_E_INVALID, tn_threadpool_new(&p, &pool));
    assert_fails(TN_E_INVALID, tn_threadpool_new(&p, NULL));

    tn_cpu_mask mask;
    assert_ok(tn_cpu_mask_parse("0-2,64,70-71", &mask));
    assert_int_equal(mask.words[0], 7);
    assert_int_equal(mask.words[1], 1 | 3 << 6);
    assert_fails(TN_E_SYNTAX, tn_cpu_mask_parse("1-", &mask));
    assert_fails(TN_E_SYNTAX, tn_cpu_mask_parse("a", &mask));
    assert_fails(TN_E_SYNTAX, tn_cpu_mask_parse("3-1", &mask));
    assert_fails(TN_E_SYNTAX, tn_cpu_mask_parse("1024", &mask));
    assert_fails(TN_E_SYNTAX, tn_cpu_mask_parse("1;2", &mask));
}

static tn_status make_and_free(void *user) {
    (void)user;
    tn_threadpool_params p = tn_threadpool_params_default(3);
    tn_threadpool *pool;
    TN_TRY(tn_threadpool_new(&p, &pool));
    tn_threadpool_free(pool);
    return TN_OK;
}
static void lack_of_memory_is_survived(void **state) {
    (void)state;
    check_every_allocation_failure(make_and_free, NULL);
}

/* ---- Abort ---- */

typedef struct slow_graph {
    _Atomic int nodes_run;
    _Atomic bool stop;
} slow_graph;

static void slow_node(const tn_custom_job *job) {
    slow_graph *g = job->user;
    if (job->ith == 0) atomic_fetch_add(&g->nodes_run, 1);
    usleep(2000);
}
static bool should_stop(void *user) { return atomic_load(&((slow_graph *)user)->stop); }
static void *stop_soon(void *user) {
    slow_graph *g = user;
    while (atomic_load(&g->nodes_run) < 3) usleep(100);
    atomic_store(&g->stop, true);
    return NULL;
}

static void abort_stops_within_one_node(void **state) {
    (void)state;
    enum { NODES = 500 };
    slow_graph g = {0};
    tn_arena *arena;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &arena));
    tn_tensor *nodes[NODES], *x = tn_tensor_nd(arena, TN_F32, 4);
    for (int i = 0; i < NODES; i++) {
        x = tn_custom(arena, TN_F32, 1, (int64_t[]){4}, &x, 1, slow_node, &g, 0);
        nodes[i] = x;
    }
    assert_ok(tn_arena_status(arena));
    tn_device *cpu;
    tn_stream *stream;
    tn_program *program;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(
        tn_stream_new(cpu, &(tn_stream_params){.n_threads = 2, .abort = should_stop, .abort_user = &g}, &stream));
    assert_ok(tn_program_new(stream, nodes, NODES, &program));
    pthread_t stopper;
    assert_int_equal(pthread_create(&stopper, NULL, stop_soon, &g), 0);
    assert_fails(TN_E_ABORTED, tn_program_run(program, NULL));
    pthread_join(stopper, NULL);
    assert_true(atomic_load(&g.nodes_run) < 20);

    atomic_store(&g.stop, false); /* the pool is usable afterwards */
    atomic_store(&g.nodes_run, 0);
    tn_program *rest;
    assert_ok(tn_program_new(stream, nodes, 5, &rest));
    assert_ok(tn_program_run(rest, NULL));
    assert_int_equal(atomic_load(&g.nodes_run), 5);
    tn_program_free(rest);
    tn_program_free(program);
    tn_stream_free(stream);
    tn_arena_free(arena);
}

typedef struct asked {
    int count, last; /* calls so far; the call that returns true */
} asked;
static void quick_node(const tn_custom_job *job) { (void)job; }
static bool stop_at_last(void *user) {
    asked *a = user;
    return ++a->count >= a->last;
}

/* Threads that leave a barrier late (there are more threads than cores) must not stop at the wrong barrier. */
static void abort_at_any_barrier_releases_every_thread(void **state) {
    (void)state;
    enum { NODES = 12, RUNS = 4000 };
    asked a = {0};
    tn_arena *arena;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &arena));
    tn_tensor *nodes[NODES], *x = tn_tensor_nd(arena, TN_F32, 4);
    for (int i = 0; i < NODES; i++)
        nodes[i] = x = tn_custom(arena, TN_F32, 1, (int64_t[]){4}, &x, 1, quick_node, NULL, 0);
    assert_ok(tn_arena_status(arena));
    tn_device *cpu;
    tn_stream *stream;
    tn_program *program;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(
        tn_stream_new(cpu, &(tn_stream_params){.n_threads = 4, .abort = stop_at_last, .abort_user = &a}, &stream));
    assert_ok(tn_program_new(stream, nodes, NODES, &program));
    alarm(120); /* a thread that waits forever fails the test */
    for (int i = 0; i < RUNS; i++) {
        a = (asked){.last = 1 + i % (NODES - 1)};
        assert_fails(TN_E_ABORTED, tn_program_run(program, NULL));
    }
    alarm(0);
    tn_program_free(program);
    tn_stream_free(stream);
    tn_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once_per_run),
        cmocka_unit_test(a_barrier_holds_everyone),
        cmocka_unit_test(a_paused_pool_uses_no_processor),
        cmocka_unit_test(callers_take_turns_and_pools_are_independent),
        cmocka_unit_test(strict_masks_place_every_thread),
        cmocka_unit_test(wrong_parameters_are_refused),
        cmocka_unit_test(lack_of_memory_is_survived),
        cmocka_unit_test(abort_stops_within_one_node),
        cmocka_unit_test(abort_at_any_barrier_releases_every_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
