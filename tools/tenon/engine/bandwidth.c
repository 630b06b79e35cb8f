/* Measured peak memory bandwidth: plain reads on the host, tensor additions on other devices. */
#include "engine/bandwidth.h"

#include "tenon/sched.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

/* ---- Host ---- */

enum { ROUNDS = 8, MAX_THREADS = 1024 };
static const size_t host_bytes = (size_t)1 << 28; /* larger than any cache */

struct memory_reader {
    const uint64_t *words;
    size_t count;
    pthread_barrier_t *barrier;
    uint64_t times[ROUNDS + 1]; /* at the barriers */
    uint64_t sum;
};

static void *read_rounds(void *user) {
    struct memory_reader *r = user;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(r->barrier);
        r->times[round] = tn_time_ns();
        uint64_t sums[8] = {0};
        for (size_t i = 0; i + 8 <= r->count; i += 8)
            for (int k = 0; k < 8; k++) sums[k] += r->words[i + (size_t)k];
        for (int k = 0; k < 8; k++) r->sum += sums[k];
    }
    pthread_barrier_wait(r->barrier);
    r->times[ROUNDS] = tn_time_ns();
    return NULL;
}

/* The fastest round counts: slower ones were disturbed by other work on the machine. */
static double fastest_round(const struct memory_reader *r) {
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t ns = r->times[round + 1] - r->times[round];
        if (ns < best) best = ns;
    }
    return best ? (double)host_bytes * 1e9 / (double)best : 0;
}

double bandwidth_host(int threads) {
    if (threads < 1 || threads > MAX_THREADS) return 0;
    struct memory_reader *readers = tn_calloc((size_t)threads, sizeof *readers);
    pthread_t *ids = tn_calloc((size_t)threads, sizeof *ids);
    pthread_barrier_t barrier;
    void *memory = mmap(NULL, host_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double result = 0;
    if (readers && ids && memory != MAP_FAILED && pthread_barrier_init(&barrier, NULL, (unsigned)threads) == 0) {
        madvise(memory, host_bytes, MADV_HUGEPAGE);
        memset(memory, 1, host_bytes);
        size_t each = host_bytes / sizeof(uint64_t) / (size_t)threads;
        int started = 0;
        for (int i = 0; i < threads; i++)
            readers[i] = (struct memory_reader){
                .words = (const uint64_t *)memory + each * (size_t)i, .count = each, .barrier = &barrier};
        while (started + 1 < threads &&
               pthread_create(&ids[started + 1], NULL, read_rounds, &readers[started + 1]) == 0)
            started++;
        if (started + 1 == threads) {
            read_rounds(&readers[0]);
            for (int i = 1; i < threads; i++) pthread_join(ids[i], NULL);
            uint64_t sum = 0;
            for (int i = 0; i < threads; i++) sum += readers[i].sum;
            result = sum ? fastest_round(&readers[0]) : 0;
        } else {
            /* The started threads would wait at the barrier forever. */
            for (int i = 1; i <= started; i++) pthread_cancel(ids[i]);
            for (int i = 1; i <= started; i++) pthread_join(ids[i], NULL);
        }
        pthread_barrier_destroy(&barrier);
    }
    if (memory != MAP_FAILED) munmap(memory, host_bytes);
    tn_free(readers);
    tn_free(ids);
    return result;
}

/* ---- Devices ---- */

tn_status bandwidth_device(const char *device, double *bytes_per_second) {
    enum { STEPS = 32, SIDE = 8192 }; /* tensors of 256 MiB */
    tn_arena *arena = NULL;
    tn_graph *graph;
    tn_sched *sched = NULL;
    void *zeros = NULL;
    tn_status status;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(2 + STEPS, 256), .no_alloc = true}, &arena));
    tn_tensor *a = tn_input(arena, TN_F32, SIDE, SIDE), *b = tn_input(arena, TN_F32, SIDE, SIDE), *sum = a;
    for (int i = 0; i < STEPS; i++) sum = tn_add(arena, sum, b);
    TN_TRY_GOTO(tn_graph_of(arena, tn_output(sum), &graph), status, out);
    TN_TRY_GOTO(tn_sched_new(&(tn_sched_params){.devices = {device}}, &sched), status, out);
    /* Unpinned inputs would stay on the host and be copied in every run. */
    TN_TRY_GOTO(tn_sched_pin(sched, a, 0), status, out);
    TN_TRY_GOTO(tn_sched_pin(sched, b, 0), status, out);
    TN_TRY_GOTO(tn_sched_reserve(sched, graph), status, out);
    zeros = tn_calloc(1, tn_nbytes(a));
    status = zeros ? tn_tensor_set(a, zeros) : TN_E_NOMEM;
    if (status == TN_OK) status = tn_tensor_set(b, zeros);
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < 4 && status == TN_OK; round++) {
        uint64_t begin = tn_time_ns();
        status = tn_sched_run(sched, graph);
        uint64_t ns = tn_time_ns() - begin;
        if (ns && ns < best) best = ns;
    }
    /* Two tensors are read and one is written in every step. */
    *bytes_per_second = 3.0 * STEPS * SIDE * SIDE * sizeof(float) * 1e9 / (double)best;
out:
    tn_free(zeros);
    tn_sched_free(sched);
    tn_arena_free(arena);
    return status;
}
