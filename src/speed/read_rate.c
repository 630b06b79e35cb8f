/* The peak read rate of a device's memory: the best of several access patterns.
 *
 * A peak is an upper bound, so one pattern is not enough: which of them a memory system serves fastest depends on the
 * width of the loads, on its prefetchers, on how many streams each core has open and on the page size. On the CPU
 * threads read one stream each, several streams each, and blocks that they take in turn as the matmul kernels do; on
 * other devices rows are summed. Everywhere matrices are multiplied by a vector. */
#include "speed/measure_internal.h"

#include "base/checked.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

typedef uint64_t wide_word __attribute__((vector_size(64), aligned(64), may_alias));

/* ---- Host ---- */

enum { BLOCK = 1 << 20 };

typedef struct host_reader {
    const char *memory;
    size_t size;
    int pattern;
    _Atomic size_t next;
    _Atomic uint64_t sum; /* keeps the compiler from dropping the reads */
} host_reader;

/* Sanitizers are not ready when the loader chooses a version. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&                     \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

/* Reads several streams in turn, 256 bytes of each. Loads are as wide as the processor has them: eight bytes at a
 * time reach two thirds of the rate. */
WIDEST static uint64_t read_streams(const char *from, size_t size, size_t streams) {
    const size_t each = size / streams / 256 * 256;
    wide_word sums[4] = {0};
    for (size_t at = 0; at < each; at += 256)
        for (size_t s = 0; s < streams; s++) {
            const wide_word *words = (const wide_word *)(const void *)(from + s * each + at);
            for (size_t k = 0; k < 4; k++) sums[k] += words[k];
        }
    sums[0] += sums[1] + sums[2] + sums[3];
    uint64_t sum = 0;
    for (int i = 0; i < 8; i++) sum += sums[0][i];
    return sum;
}

/* Streams per thread; 0: threads take blocks in turn. */
static const size_t patterns[] = {1, 4, 8, 0};
enum { PATTERNS = sizeof patterns / sizeof *patterns, MAPPED_PATTERNS = 2 };

static void read_share(const tn_custom_job *job) {
    host_reader *r = job->user;
    const size_t streams = patterns[r->pattern];
    uint64_t sum = 0;
    if (streams == 0) {
        for (size_t at; (at = atomic_fetch_add(&r->next, BLOCK)) < r->size;)
            sum += read_streams(r->memory + at, TN__MIN((size_t)BLOCK, r->size - at), 1);
    } else {
        const size_t each = r->size / (size_t)job->nth / 4096 * 4096;
        sum = read_streams(r->memory + (size_t)job->ith * each, each, streams);
    }
    atomic_fetch_add(&r->sum, sum);
    if (job->ith == 0) memset(job->result->data, 0, tn_nbytes(job->result));
}

/* The best rate of some patterns over memory that was written to. */
static tn_status read_patterns(tn__measure *m, const void *memory, size_t size, int n_patterns, double *rate) {
    tn_arena *arena = NULL;
    tn_graph *graph;
    tn_status status;
    host_reader reader = {.memory = memory, .size = size};
    TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(4, 16), .no_alloc = true}, &arena), status,
                out);
    tn_tensor *node = tn_custom(arena, TN_F32, 1, (const int64_t[]){1}, NULL, 0, read_share, &reader, 0);
    TN_TRY_GOTO(tn_graph_of(arena, tn_output(node), &graph), status, out);
    TN_TRY_GOTO(tn_sched_reserve(m->sched, graph), status, out);
    for (int round = 0; round < 3 * n_patterns + 1; round++) {
        reader.pattern = round % n_patterns;
        atomic_store(&reader.next, 0);
        const uint64_t begin = tn_time_ns();
        TN_TRY_GOTO(tn_sched_run(m->sched, graph), status, out);
        const uint64_t ns = tn_time_ns() - begin;
        if (round && ns) *rate = TN__MAX(*rate, (double)size * 1e9 / (double)ns); /* the first round warms up */
    }
out:
    tn_sched_reset(m->sched);
    tn_arena_free(arena);
    return status;
}

static size_t host_bytes(const tn__measure *m) { return TN__MIN((size_t)256 << 20, m->memory / 4 / 4096 * 4096); }

static tn_status read_host(tn__measure *m, double *rate) {
    tn_buffer *buffer;
    const size_t size = host_bytes(m);
    TN_TRY(tn_buffer_new(tn_device_buffer_type(m->device), size, &buffer));
    tn_status status = tn_buffer_clear(buffer, 1);
    if (status == TN_OK) status = read_patterns(m, tn_buffer_base(buffer), size, PATTERNS, rate);
    tn_buffer_free(buffer);
    return status;
}

/* Few streams per thread, as matmul kernels read a file's pages: plain ones, in which neither the processor's address
 * tables nor its prefetchers reach as far as in large ones. */
tn_status tn__measure_read_mapped(tn__measure *m) {
    const size_t size = host_bytes(m);
    if (tn_device_get_kind(m->device) != TN_DEVICE_CPU) return TN_OK;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return tn_fail(TN_E_NOMEM, "cannot map %zu bytes for measuring", size);
#ifdef MADV_NOHUGEPAGE
    (void)madvise(memory, size, MADV_NOHUGEPAGE);
#endif
    memset(memory, 1, size);
    tn_status status = read_patterns(m, memory, size, MAPPED_PATTERNS, &m->speed->read_mapped);
    munmap(memory, size);
    return status;
}

/* ---- Other devices ---- */

static tn_status read_device(tn__measure *m, double *rate) {
    tn_arena *arena = NULL;
    tn_graph *graph;
    tn_buffer *buffer = NULL;
    tn_buffer_type *type = tn_device_buffer_type(m->device);
    const size_t most = TN__MIN(TN__MIN((size_t)1 << 30, m->memory / 2), tn_buffer_type_max_size(type));
    const int64_t rows = (int64_t)(most / (16384 * sizeof(float)));
    tn_status status;
    if (rows < 1) return TN_OK;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(4, 16), .no_alloc = true}, &arena));
    tn_tensor *x = tn_tensor_nd(arena, TN_F32, 16384, rows);
    tn_tensor *sum = tn_output(tn_sum_rows(arena, x));
    TN_TRY_GOTO(tn_arena_status(arena), status, out);
    TN_TRY_GOTO(tn_buffer_new(type, tn_buffer_type_tensor_size(type, x), &buffer), status, out);
    tn_buffer_set_usage(buffer, TN_USAGE_WEIGHTS);
    TN_TRY_GOTO(tn_buffer_clear(buffer, 0), status, out);
    TN_TRY_GOTO(tn_buffer_bind(buffer, x, 0), status, out);
    TN_TRY_GOTO(tn_graph_of(arena, sum, &graph), status, out);
    TN_TRY_GOTO(tn_sched_reserve(m->sched, graph), status, out);
    for (int round = 0; round < 8; round++) {
        const uint64_t begin = tn_time_ns();
        TN_TRY_GOTO(tn_sched_run(m->sched, graph), status, out);
        const uint64_t ns = tn_time_ns() - begin;
        if (round > 1 && ns) *rate = TN__MAX(*rate, (double)tn_nbytes(x) * 1e9 / (double)ns);
    }
out:
    tn_sched_reset(m->sched);
    tn_arena_free(arena);
    tn_buffer_free(buffer);
    return status;
}

/* A matrix times a vector, with the kernels that decode uses. */
static tn_status read_matrices(tn__measure *m, tn_type type, double *rate) {
    tn__stack_shape shape = tn__measure_shape(m, type);
    tn__stack stack;
    double seconds;
    TN_TRY(tn__stack_new(m->sched, &shape, &stack));
    tn_status status = tn__stack_prepare(&stack, shape.layers, 1);
    if (status == TN_OK) status = tn__measure_time(m, &stack, 0, &seconds, NULL);
    if (status == TN_OK && seconds > 0) *rate = TN__MAX(*rate, tn__stack_weight_bytes(&shape) / seconds);
    tn__stack_free(&stack);
    return status;
}

tn_status tn__measure_read(tn__measure *m, double *rate) {
    *rate = 0;
    const bool host = tn_device_get_kind(m->device) == TN_DEVICE_CPU;
    TN_TRY(host ? read_host(m, rate) : read_device(m, rate));
    static const tn_type types[] = {TN_F16, TN_Q8_0};
    for (size_t i = 0; i < TN__COUNT(types); i++) {
        tn_status status = read_matrices(m, types[i], rate);
        if (status == TN_OK) continue;
        if (status != TN_E_UNSUPPORTED && status != TN_E_DEVICE_MEMORY && status != TN_E_TOO_BIG) return status;
        tn_error_clear();
    }
    return TN_OK;
}
