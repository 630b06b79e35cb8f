/* Cost of the scheduler: host time per run of an unchanged graph, and overlap of copies with computation.
 *
 *     sched [LATENCY]    of the simulated devices, per copy and per program (default 5ms)
 *
 * The first part runs on devices whose kernels and copies take no time, so that only the host's work is measured;
 * times are medians. Times of the second part are the best of three, because they include waking threads. */
#include "tenon/sched.h"
#include "tenon/backend_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what) {
    fprintf(stderr, "sched: %s: %s\n", what, tn_error());
    exit(1);
}
#define TRY(expr)                                                                                                    \
    do {                                                                                                             \
        if ((expr) != TN_OK) die(#expr);                                                                             \
    } while (0)

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

/* ---- Devices that do nothing ---- */

static tn_status idle_memory(tn_device *d, size_t *free_bytes, size_t *total) {
    (void)d;
    *free_bytes = *total = (size_t)1 << 40;
    return TN_OK;
}
static bool idle_supports(tn_device *d, const tn_tensor *node, char *reason, size_t size) {
    (void)d, (void)node, (void)reason, (void)size;
    return true;
}
static bool idle_supports_type(tn_device *d, const tn_buffer_type *type) { return type->device == d; }

static void idle_buffer_free(tn_buffer *b) {
    free(b->base);
    free(b);
}
static tn_status idle_set(tn_buffer *b, tn_tensor *t, const void *data, size_t offset, size_t size) {
    (void)b;
    memcpy((char *)t->data + offset, data, size);
    return TN_OK;
}
static tn_status idle_get(tn_buffer *b, const tn_tensor *t, void *data, size_t offset, size_t size) {
    (void)b;
    memcpy(data, (const char *)t->data + offset, size);
    return TN_OK;
}
static const tn_buffer_ops idle_buffer_ops = {.free = idle_buffer_free, .set = idle_set, .get = idle_get};

static tn_status idle_buffer_new(tn_buffer_type *type, size_t size, tn_buffer **buffer) {
    tn_buffer *b = calloc(1, sizeof *b);
    void *base = aligned_alloc(64, (size + 64) & ~(size_t)63);
    if (!b || !base) die("no memory");
    *b = (tn_buffer){.ops = &idle_buffer_ops, .type = type, .base = base, .size = size};
    *buffer = b;
    return TN_OK;
}
static const tn_buffer_type_ops idle_type_ops = {.buffer_new = idle_buffer_new};

static void idle_backend_free(tn_stream *b) { free(b); }
static tn_status idle_copy(tn_stream *from, tn_stream *to, const tn_tensor *source, tn_tensor *target) {
    (void)from, (void)to, (void)source, (void)target;
    return TN_OK;
}
static tn_status idle_program_new(tn_stream *b, tn_tensor *const *nodes, size_t n, tn_program **program) {
    (void)nodes, (void)n;
    tn_program *p = calloc(1, sizeof *p);
    if (!p) die("no memory");
    p->stream = b;
    *program = p;
    return TN_OK;
}
static void idle_program_free(tn_program *p) { free(p); }
static tn_status idle_program_run(tn_program *p, tn_buffer *scratch) {
    (void)p, (void)scratch;
    return TN_OK;
}
static const tn_stream_ops idle_backend_ops = {.free = idle_backend_free,
                                               .copy_async = idle_copy,
                                               .program_new = idle_program_new,
                                               .program_free = idle_program_free,
                                               .program_run = idle_program_run};
static tn_status idle_backend_new(tn_device *d, const tn_stream_params *params, tn_stream **stream) {
    (void)params;
    tn_stream *b = calloc(1, sizeof *b);
    if (!b) die("no memory");
    *b = (tn_stream){.ops = &idle_backend_ops, .device = d};
    *stream = b;
    return TN_OK;
}
static const tn_device_ops idle_device_ops = {.memory = idle_memory,
                                              .supports_op = idle_supports,
                                              .supports_buffer_type = idle_supports_type,
                                              .stream_new = idle_backend_new};

static tn_buffer_type idle_types[2];
static tn_device idle_devices[2] = {
    {.ops = &idle_device_ops, .name = "idle", .kind = TN_DEVICE_GPU, .buffer_type = &idle_types[0]},
    {.ops = &idle_device_ops, .name = "host", .kind = TN_DEVICE_CPU, .buffer_type = &idle_types[1]}};

/* ---- Overhead ---- */

enum { NODES = 1000, PER_SPLIT = 50, RUNS = 2000 };

/* 1,000 nodes that alternate between two devices every 50 nodes, with one state and two inputs copied each time. */
static tn_graph *build_alternating_graph(tn_arena *arena, tn_sched *sched) {
    tn_graph *graph;
    tn_tensor *x = tn_input(arena, TN_F32, 64), *positions = tn_input(arena, TN_F32, 64);
    for (int i = 0; i < NODES; i++) {
        x = i % 10 ? tn_silu(arena, x) : tn_add(arena, x, positions);
        if (sched) TRY(tn_sched_pin(sched, x, i / PER_SPLIT % 2));
    }
    TRY(tn_graph_new(arena, 2 * NODES, &graph));
    TRY(tn_graph_add(graph, tn_output(x)));
    return graph;
}

static void overhead(void) {
    tn_stream *streams[2];
    tn_sched *sched;
    tn_arena *arena;
    for (int d = 0; d < 2; d++) {
        idle_types[d] = (tn_buffer_type){
            .ops = &idle_type_ops, .name = "idle", .device = &idle_devices[d], .alignment = 64, .max_size = SIZE_MAX};
        TRY(tn_stream_new(&idle_devices[d], NULL, &streams[d]));
    }
    TRY(tn_sched_new(&(tn_sched_params){.streams = streams, .n_streams = 2}, &sched));
    TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(NODES + 8, 2 * NODES), .no_alloc = true}, &arena));
    tn_graph *graph = build_alternating_graph(arena, sched);
    uint64_t begin = tn_time_ns();
    TRY(tn_sched_reserve(sched, graph));
    tn_sched_stats first = tn_sched_get_stats(sched);
    tn_sched_info info;
    TRY(tn_sched_describe(sched, graph, &info));
    printf("%zu nodes over 2 devices, %zu splits, %zu copies per run\n", info.nodes, info.splits, info.copies);
    printf("%-28s %9s %9s %9s %9s %9s\n", "microseconds per run", "split", "plan", "bind", "submit", "all");
    printf("%-28s %9.2f %9.2f %9.2f %9.2f %9.2f\n", "the first time", (double)first.split_ns * 1e-3,
           (double)first.plan_ns * 1e-3, (double)first.bind_ns * 1e-3, (double)first.submit_ns * 1e-3,
           (double)(tn_time_ns() - begin) * 1e-3);
    static double parts[5][RUNS];
    for (int i = 0; i < RUNS; i++) {
        tn_sched_stats a = tn_sched_get_stats(sched);
        uint64_t start = tn_time_ns();
        TRY(tn_sched_alloc(sched, graph)); /* like a token loop, which then sets its inputs */
        TRY(tn_sched_run(sched, graph));
        uint64_t end = tn_time_ns();
        tn_sched_stats b = tn_sched_get_stats(sched);
        parts[0][i] = (double)(b.split_ns - a.split_ns) * 1e-3;
        parts[1][i] = (double)(b.plan_ns - a.plan_ns) * 1e-3;
        parts[2][i] = (double)(b.bind_ns - a.bind_ns) * 1e-3;
        parts[3][i] = (double)(b.submit_ns - a.submit_ns) * 1e-3;
        parts[4][i] = (double)(end - start) * 1e-3;
    }
    printf("%-28s", "nothing changed");
    for (int p = 0; p < 5; p++) printf(" %9.2f", median(parts[p], RUNS));
    printf("   (goal: at most 30)\n\n");
    tn_sched_free(sched);
    for (int d = 0; d < 2; d++) tn_stream_free(streams[d]);
    tn_arena_free(arena);
}

/* ---- Overlap ---- */

enum { WIDTH = 4096, ROWS = 8, BATCHES = 24 };

/* Sends batches from the host through one or two devices. Returns milliseconds per batch; writes the outputs to
 * `results`. */
static double stream_once(const char *latency, int n_devices, int copies, float *results) {
    char specs[2][96];
    tn_sched_params p = {.n_threads = 1, .n_in_flight = copies};
    for (int d = 0; d < n_devices; d++) {
        snprintf(specs[d], sizeof specs[d], "sim:256M,latency=%s,name=slow%d", latency, d);
        p.devices[d] = specs[d];
    }
    tn_sched *sched;
    tn_arena *arena;
    tn_graph *graph;
    TRY(tn_sched_new(&p, &sched));
    TRY(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &arena));
    tn_tensor *in = tn_input(arena, TN_F32, WIDTH, ROWS), *x = in;
    for (int d = 0; d < n_devices; d++) {
        x = tn_silu(arena, x);
        TRY(tn_sched_pin(sched, x, d));
    }
    tn_output(x);
    TRY(tn_graph_of(arena, x, &graph));
    TRY(tn_sched_reserve(sched, graph));
    static float data[WIDTH * ROWS];
    uint64_t begin = 0;
    for (int b = -2; b < BATCHES; b++) { /* two to warm up */
        if (b == 0) {
            TRY(tn_sched_synchronize(sched));
            begin = tn_time_ns();
        }
        for (int i = 0; i < WIDTH * ROWS; i++) data[i] = (float)((i * 7 + b) % 100) * 0.01f;
        if (copies < 2) TRY(tn_sched_synchronize(sched)); /* the input may still be read */
        TRY(tn_tensor_set(in, data));
        TRY(tn_sched_run_async(sched, graph));
    }
    TRY(tn_sched_synchronize(sched));
    double ms = (double)(tn_time_ns() - begin) * 1e-6 / BATCHES;
    TRY(tn_tensor_get(x, results));
    tn_sched_free(sched);
    tn_arena_free(arena);
    return ms;
}

static double stream(const char *latency, int n_devices, int copies, float *results) {
    double best = 1e300;
    for (int i = 0; i < 3; i++) {
        double ms = stream_once(latency, n_devices, copies, results);
        if (ms < best) best = ms;
    }
    return best;
}

static bool same_bits(const void *a, const void *b, size_t size) { return memcmp(a, b, size) == 0; }

static bool overlap(const char *latency, int n_devices) {
    static float want[WIDTH * ROWS], got[WIDTH * ROWS];
    bool same = true;
    printf("batches from the host through %d device%s, %s per copy and per program\n", n_devices,
           n_devices > 1 ? "s" : "", latency);
    double one = stream(latency, n_devices, 1, want);
    printf("  no overlap  %8.2f ms per batch\n", one);
    for (int copies = 2; copies <= 4; copies += 2) {
        double ms = stream(latency, n_devices, copies, got);
        bool equal = same_bits(want, got, sizeof want);
        same = same && equal;
        printf("  %d in flight %8.2f ms per batch, %.2f times as fast%s\n", copies, ms, one / ms,
               equal ? "" : ", OTHER RESULTS");
    }
    printf("\n");
    return same;
}

int main(int argc, char **argv) {
    const char *latency = argc > 1 ? argv[1] : "5ms";
    overhead();
    bool same = overlap(latency, 1);
    return overlap(latency, 2) && same ? 0 : 1;
}
