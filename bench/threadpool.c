/* Benchmark of the thread pool: the cost of a barrier, the time for a run to reach all threads, and the cost of an
 * empty step of a program.
 *
 *   build/bench/threadpool [threads=2] [poll=50] [rounds=20000] */
#include "tenon/cpu.h"

#include "backend/cpu/program.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void print_distribution(const char *what, double *us, int n) {
    qsort(us, (size_t)n, sizeof *us, compare);
    printf("%-44s median %8.3f us   90%% %8.3f   99%% %8.3f   least %8.3f\n", what, us[n / 2], us[n * 9 / 10],
           us[n * 99 / 100], us[0]);
}

typedef struct context {
    tn_threadpool *pool;
    int barriers;
    uint64_t ns;
    _Atomic uint64_t arrived[64]; /* when each thread entered the run */
} context;

static void cross_barriers(void *user, int index, int count) {
    context *c = user;
    (void)count;
    tn_threadpool_barrier(c->pool);
    uint64_t start = tn_time_ns();
    for (int i = 0; i < c->barriers; i++) tn_threadpool_barrier(c->pool);
    if (index == 0) c->ns = tn_time_ns() - start;
}

static void note_arrival(void *user, int index, int count) {
    context *c = user;
    (void)count;
    atomic_store_explicit(&c->arrived[index], tn_time_ns(), memory_order_relaxed);
}

/* Time from the start of a run until its last thread has started, with a pause of `idle_us` between runs. */
static void wake_up(context *c, int threads, int rounds, int idle_us, double *us) {
    for (int r = 0; r < rounds; r++) {
        uint64_t until = tn_time_ns() + (uint64_t)idle_us * 1000;
        while (tn_time_ns() < until) {}
        uint64_t start = tn_time_ns(), last = start;
        tn_threadpool_run(c->pool, threads, note_arrival, c);
        for (int i = 0; i < threads; i++) {
            uint64_t at = atomic_load_explicit(&c->arrived[i], memory_order_relaxed);
            last = at > last ? at : last;
        }
        us[r] = (double)(last - start) * 1e-3;
    }
}

static void nothing(const tn_custom_job *job) { (void)job; }

/* A series of empty nodes, each of which depends on the one before: one step and one barrier each. */
static int empty_nodes(tn_threadpool *pool, int threads, int rounds, double *us) {
    enum { NODES = 200 };
    tn_arena *arena;
    tn_tensor *nodes[NODES], *x;
    tn_device *cpu;
    tn_stream *stream;
    tn_program *program;
    if (tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &arena) != TN_OK) return 1;
    x = tn_tensor_nd(arena, TN_F32, 16);
    for (int i = 0; i < NODES; i++)
        x = nodes[i] = tn_custom(arena, TN_F32, 1, (int64_t[]){16}, &x, 1, nothing, NULL, 0);
    if (tn_arena_status(arena) != TN_OK || tn_device_find("cpu", &cpu) != TN_OK ||
        tn_stream_new(cpu, &(tn_stream_params){.threads = pool, .n_threads = threads}, &stream) != TN_OK ||
        tn_program_new(stream, nodes, NODES, &program) != TN_OK || tn_program_run(program, NULL) != TN_OK) {
        fprintf(stderr, "threadpool: %s\n", tn_error());
        return 1;
    }
    if (tn__cpu_program_steps(program) != NODES)
        fprintf(stderr, "threadpool: nodes share steps, so the figures are meaningless\n");
    for (int r = 0; r < rounds; r++) {
        uint64_t start = tn_time_ns();
        if (tn_program_run(program, NULL) != TN_OK) return 1;
        us[r] = (double)(tn_time_ns() - start) * 1e-3 / NODES;
    }
    tn_program_free(program);
    tn_stream_free(stream);
    tn_arena_free(arena);
    return 0;
}

int main(int argc, char **argv) {
    int threads = 2, poll = 50, rounds = 20000;
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "threads=%d", &threads) == 1 || sscanf(argv[i], "poll=%d", &poll) == 1 ||
            sscanf(argv[i], "rounds=%d", &rounds) == 1)
            continue;
        fprintf(stderr, "usage: threadpool [threads=2] [poll=50] [rounds=20000]\n");
        return 2;
    }
    if (threads < 1 || threads > 64 || rounds < 100) return 2;
    tn_threadpool_params p = tn_threadpool_params_default(threads);
    p.poll = poll;
    context c = {.barriers = 100};
    double *us = malloc((size_t)rounds * sizeof *us);
    if (!us || tn_threadpool_new(&p, &c.pool) != TN_OK) {
        fprintf(stderr, "threadpool: %s\n", tn_error());
        return 1;
    }
    printf("%s, %d of %d cores, poll level %d\n", tn_cpu_name(), threads, tn_cpu_count(), poll);
    int runs = rounds / 100;
    for (int r = 0; r < runs; r++) {
        tn_threadpool_run(c.pool, threads, cross_barriers, &c);
        us[r] = (double)c.ns * 1e-3 / c.barriers;
    }
    print_distribution("barrier", us, runs);
    if (empty_nodes(c.pool, threads, runs, us)) return 1;
    print_distribution("empty node of a program, barrier included", us, runs);
    wake_up(&c, threads, runs, 10, us);
    print_distribution("wake-up after 10 us", us, runs);
    wake_up(&c, threads, runs, 300, us);
    print_distribution("wake-up after 300 us", us, runs);
    wake_up(&c, threads, runs / 10 + 1, 10000, us);
    print_distribution("wake-up after 10 ms", us, runs / 10 + 1);
    tn_threadpool_free(c.pool);
    free(us);
    return 0;
}
