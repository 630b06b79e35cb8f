/* Cost of running a known graph: finding its cached plan, binding its tensors, and both through a scheduler. Medians
 * of many calls. */
#include "runtime/alloc.h"
#include "tenon/sched.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(tn_status status, const char *what) {
    if (status == TN_OK) return;
    fprintf(stderr, "alloc: %s: %s\n", what, tn_error());
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

enum { CALLS = 1001, WIDTH = 64 };
static double times[CALLS];
static double median(void) {
    qsort(times, CALLS, sizeof *times, ascending);
    return times[CALLS / 2];
}

/* `n` tensors that all need memory: no views, no tensors with data. */
static tn_graph *make_graph(tn_arena *a, size_t n) {
    tn_graph *graph;
    tn_tensor *x = tn_input(a, TN_F32, WIDTH, 4), *w = tn_input(a, TN_F32, WIDTH, WIDTH);
    for (size_t i = 2; i < n; i++) x = i % 3 ? tn_silu(a, x) : tn_mul_mat(a, w, x);
    check(tn_graph_new(a, n, &graph), "graph");
    check(tn_graph_add(graph, tn_output(x)), "graph");
    return graph;
}

static void measure(tn_buffer_type *type, size_t n) {
    tn_arena *arena;
    tn__alloc *alloc;
    tn_sched *sched;
    check(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(n + 8, n + 8), .no_alloc = true}, &arena),
          "arena");
    tn_graph *graph = make_graph(arena, n);
    uint16_t *type_of = calloc(n, sizeof *type_of);
    check(tn__alloc_new((tn_buffer_type *[]){type, type}, 2, &alloc), "tn__alloc_new");
    check(tn__alloc_reserve(alloc, &graph, (const uint16_t *[]){type_of}, 1), "tn__alloc_reserve");
    check(tn__alloc_bind(alloc, graph, type_of, false), "tn__alloc_bind");
    for (int i = 0; i < CALLS; i++) {
        double begun = now();
        check(tn__alloc_reserve(alloc, &graph, (const uint16_t *[]){type_of}, 1), "tn__alloc_reserve");
        times[i] = now() - begun;
    }
    double reuse = median();
    for (int i = 0; i < CALLS; i++) {
        double begun = now();
        check(tn__alloc_bind(alloc, graph, type_of, false), "tn__alloc_bind");
        times[i] = now() - begun;
    }
    double bind = median();
    tn_graph_reset(graph);
    check(tn_sched_new(&(tn_sched_params){.n_threads = 1}, &sched), "tn_sched_new");
    check(tn_sched_reserve(sched, graph), "tn_sched_reserve");
    for (int i = 0; i < CALLS; i++) {
        double begun = now();
        check(tn_sched_alloc(sched, graph), "tn_sched_alloc");
        times[i] = now() - begun;
    }
    printf("%10zu %16.2f %16.2f %20.2f\n", n, 1e6 * reuse, 1e6 * bind, 1e6 * median());
    tn_sched_free(sched);
    tn__alloc_free(alloc);
    free(type_of);
    tn_arena_free(arena);
}

int main(void) {
    tn_device *cpu;
    check(tn_device_find("cpu", &cpu), "cpu");
    printf("microseconds for a known graph\n%10s %16s %16s %20s\n", "tensors", "finding its plan", "and binding it",
           "through a scheduler");
    for (size_t n = 100; n <= 10000; n *= 10) measure(tn_device_buffer_type(cpu), n);
    return 0;
}
