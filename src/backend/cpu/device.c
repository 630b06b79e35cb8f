/* The CPU as a device: name, memory, supported ops, and creation of streams. */
#include "backend/registry.h"

#include "backend/cpu/host_buffer.h"
#include "backend/cpu/ops/ops.h"
#include "backend/cpu/program.h"
#include "backend/cpu/repacked_buffer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Memory ---- */

static bool read_number(const char *path, uint64_t *value) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    unsigned long long number;
    bool read = fscanf(file, "%llu", &number) == 1; /* "max" is not a number: no limit */
    fclose(file);
    if (read) *value = number;
    return read;
}

/* The memory of the machine, or the limit of the container of this process. */
tn_status tn__host_memory(size_t *free_bytes, size_t *total_bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page, total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    FILE *file = fopen("/proc/meminfo", "r"); /* also counts reclaimable memory; absent in a bare chroot */
    char line[256];
    unsigned long long kib;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) total = kib * 1024;
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) available = kib * 1024;
    }
    if (file) fclose(file);
    uint64_t limit, used;
    if (read_number("/sys/fs/cgroup/memory.max", &limit) && read_number("/sys/fs/cgroup/memory.current", &used)) {
        total = TN__MIN(total, limit);
        available = TN__MIN(available, limit > used ? limit - used : 0);
    }
    *free_bytes = (size_t)available;
    *total_bytes = (size_t)total;
    return TN_OK;
}

static tn_status cpu_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    return tn__host_memory(free_bytes, total_bytes);
}

/* ---- Ops ---- */

bool tn__cpu_supports(const tn_tensor *node, char *reason, size_t reason_size) {
    if ((unsigned)node->op >= TN_OP_COUNT || !tn__cpu_ops[node->op].run)
        return tn__refuse(reason, reason_size, "the CPU does not support %s", tn_op_name(node->op));
    const tn__cpu_op *op = &tn__cpu_ops[node->op];
    /* Copies within a type move bytes, and a custom op interprets its sources itself. */
    bool moves_bytes = op->run == tn__run_copy && node->src[0]->type == node->type;
    if (!moves_bytes && node->op != TN_OP_CUSTOM && !tn__readable(node, reason, reason_size)) return false;
    if (!tn__supports_repacked_sources(node, reason, reason_size)) return false;
    return !op->supports || op->supports(node, reason, reason_size);
}

static bool cpu_supports_op(tn_device *device, const tn_tensor *node, char *reason, size_t reason_size) {
    return tn__cpu_supports(node, reason, reason_size);
}
static bool cpu_supports_buffer_type(tn_device *device, const tn_buffer_type *type) {
    return type->is_host || type == tn__repacked_buffer_type();
}
static tn_buffer_type *extra_buffer_type(tn_device *device, size_t index) {
    return index == 0 ? tn__repacked_buffer_type() : NULL;
}

/* ---- Streams ---- */

static void cpu_stream_free(tn_stream *stream) {
    tn__cpu_stream *impl = stream->impl;
    if (impl->owns_pool) tn_threadpool_free(impl->pool);
    tn_free(impl);
}

static const tn_stream_ops stream_ops = {
    .free = cpu_stream_free,
    .program_new = tn__cpu_program_new,
    .program_free = tn__cpu_program_free,
    .program_moved = tn__cpu_program_moved,
    .program_run = tn__cpu_program_run,
};

static tn_status cpu_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream) {
    if (params->n_threads < 0 || params->n_threads > TN_MAX_THREADS)
        return tn_fail(TN_E_INVALID, "%d threads: must be 0 to %d", params->n_threads, TN_MAX_THREADS);
    tn__cpu_stream *impl = tn_calloc(1, sizeof *impl);
    if (!impl) return TN_E_NOMEM;
    impl->base = (tn_stream){.ops = &stream_ops, .device = device, .impl = impl};
    impl->kernels = tn__cpu_kernels_get();
    impl->tiny_ns = 3000; /* about the cost of a barrier and a shared cache line */
    impl->abort = params->abort;
    impl->abort_user = params->abort_user;
    impl->pool = params->threads;
    if (!impl->pool) {
        tn_threadpool_params p = tn_threadpool_params_default(params->n_threads);
        tn_status status = tn_threadpool_new(&p, &impl->pool);
        if (status != TN_OK) {
            tn_free(impl);
            return status;
        }
        impl->owns_pool = true;
    }
    int size = tn_threadpool_size(impl->pool);
    impl->n_threads = params->n_threads > 0 ? TN__MIN(params->n_threads, size) : size;
    *stream = &impl->base;
    return TN_OK;
}

/* ---- The device ---- */

static const tn_device_ops device_ops = {
    .memory = cpu_memory,
    .supports_op = cpu_supports_op,
    .supports_buffer_type = cpu_supports_buffer_type,
    .extra_buffer_type = extra_buffer_type,
    .wrap_host = tn__host_buffer_wrap,
    .stream_new = cpu_stream_new,
};

static tn_device cpu = {
    .ops = &device_ops,
    .name = "cpu",
    .kind = TN_DEVICE_CPU,
    .caps = {.wrap_host = true, .unified = true, .repeatable = true},
};
static tn_buffer_type host_type = {
    .ops = &tn__host_buffer_type_ops,
    .name = "cpu",
    .device = &cpu,
    .alignment = TN__HOST_ALIGN,
    .max_size = PTRDIFF_MAX - 4096,
    .is_host = true,
};

/* The "model name" of /proc/cpuinfo (x86), otherwise the name of the architecture. */
static char model[96];
static void read_model(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && !model[0] && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " ");
        snprintf(model, sizeof model, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    if (file) fclose(file);
#if defined(__aarch64__)
    if (!model[0]) snprintf(model, sizeof model, "ARM64 processor");
#else
    if (!model[0]) snprintf(model, sizeof model, "unknown processor");
#endif
}

const char *tn_cpu_name(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_model);
    return model;
}
const char *tn_cpu_level(void) { return tn__cpu_kernels_get()->name; }

static void describe_cpu(void) {
    cpu.buffer_type = &host_type;
    tn__host_buffer_init(&cpu);
    tn__repacked_buffer_init(&cpu);
    snprintf(cpu.description, sizeof cpu.description, "%s, %d cores, %s", tn_cpu_name(), tn_cpu_count(),
             tn_cpu_level());
}

tn_device *tn__cpu_device(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, describe_cpu);
    return &cpu;
}
