/* Simulated devices: parsing of specifications, and the device interface. */
#include "backend/sim/sim.h"

#include "backend/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool tn__sim_fault(atomic_long *counter) { return atomic_load(counter) > 0 && atomic_fetch_sub(counter, 1) == 1; }

tn_status tn__sim_check(tn__sim *sim) {
    return atomic_load(&sim->lost) ? tn_fail(TN_E_DEVICE_LOST, "%s is lost", sim->device.name) : TN_OK;
}

void tn__sim_delay(const tn__sim *sim, size_t bytes) {
    uint64_t ns = sim->latency_ns + (sim->bytes_per_ns > 0 ? (uint64_t)((double)bytes / sim->bytes_per_ns) : 0);
    if (!ns) return;
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&time, &time) != 0) {}
}

/* ---- Specification ---- */

static bool parse_repeat(const char *text, double *value, const char **rest) {
    char *end;
    *value = strtod(text, &end);
    *rest = end;
    return end != text && *value >= 0 && *value < 1e18;
}

/* "8G", "512M", "4096": powers of 1024. */
static bool parse_size(const char *text, size_t *bytes) {
    double value;
    const char *rest;
    if (!parse_repeat(text, &value, &rest)) return false;
    switch (*rest) {
    case 'T': value *= 1024; /* fall through */
    case 'G': value *= 1024; /* fall through */
    case 'M': value *= 1024; /* fall through */
    case 'K': value *= 1024; rest++;
    }
    if (rest[0] == 'i' && rest[1] == 'B') rest += 2;
    if (*rest || value > 0x1p60) return false;
    *bytes = (size_t)value;
    return true;
}

/* "20us", "1ms", "500ns", "2s". */
static bool parse_time(const char *text, uint64_t *ns) {
    double value;
    const char *unit;
    if (!parse_repeat(text, &value, &unit)) return false;
    double factor = !strcmp(unit, "ns")   ? 1
                    : !strcmp(unit, "us") ? 1e3
                    : !strcmp(unit, "ms") ? 1e6
                    : !strcmp(unit, "s")  ? 1e9
                                          : -1;
    if (factor < 0 || value * factor > 6e10) return false;
    *ns = (uint64_t)(value * factor);
    return true;
}

/* "mul_mat+add": only these; "-rope-attention": all but these. Views are always supported. */
static tn_status parse_ops(tn__sim *sim, const char *text) {
    bool without = text[0] == '-';
    memset(sim->ops, without, sizeof sim->ops);
    char name[64];
    for (const char *p = text; *p;) {
        p += *p == '+' || *p == '-';
        size_t length = strcspn(p, "+-");
        if (length >= sizeof name) return tn_fail(TN_E_INVALID, "unknown op '%.60s'", p);
        memcpy(name, p, length);
        name[length] = '\0';
        p += length;
        bool known = false;
        for (int op = 0; op < TN_OP_COUNT; op++) {
            if (strcmp(tn_op_name((tn_op)op), name) != 0) continue;
            sim->ops[op] = !without;
            known = true;
        }
        if (!known) return tn_fail(TN_E_INVALID, "unknown op '%s'", name);
    }
    for (int op = 0; op < TN_OP_COUNT; op++)
        if (tn_op_get_family((tn_op)op) == TN_FAMILY_VIEW) sim->ops[op] = 1;
    return TN_OK;
}

static tn_status parse_fault(tn__sim *sim, const char *text) {
    char kind[16];
    long n;
    if (sscanf(text, "%15[a-z]:%ld", kind, &n) != 2 || n < 1)
        return tn_fail(TN_E_INVALID, "fail=%s: must be alloc:N, copy:N or lost:N", text);
    if (!strcmp(kind, "alloc"))
        atomic_store(&sim->fail_alloc, n);
    else if (!strcmp(kind, "copy"))
        atomic_store(&sim->fail_copy, n);
    else if (!strcmp(kind, "lost"))
        atomic_store(&sim->fail_run, n);
    else
        return tn_fail(TN_E_INVALID, "fail=%s: must be alloc:N, copy:N or lost:N", text);
    return TN_OK;
}

static tn_status parse_option(tn__sim *sim, const char *key, const char *value) {
    size_t bytes;
    if (!strcmp(key, "align") && parse_size(value, &bytes) && bytes && !(bytes & (bytes - 1)) && bytes <= 4096)
        sim->type.alignment = bytes;
    else if (!strcmp(key, "max-alloc") && parse_size(value, &bytes) && bytes)
        sim->type.max_size = bytes;
    else if (!strcmp(key, "latency") && parse_time(value, &sim->latency_ns))
        return TN_OK;
    else if (!strcmp(key, "bandwidth") && parse_size(value, &bytes) && bytes)
        sim->bytes_per_ns = (double)bytes / 1e9;
    else if (!strcmp(key, "ops"))
        return parse_ops(sim, value);
    else if (!strcmp(key, "fail"))
        return parse_fault(sim, value);
    else if (!strcmp(key, "offload") && !strcmp(value, "1"))
        sim->wants_ops = true;
    else if (!strcmp(key, "memory-only") && !strcmp(value, "1"))
        sim->memory_only = true;
    else if (!strcmp(key, "name") && *value && strlen(value) < sizeof sim->device.name)
        snprintf(sim->device.name, sizeof sim->device.name, "%s", value);
    else
        return tn_fail(TN_E_INVALID,
                       "simulated device: invalid setting '%s=%s'; settings are align=BYTES (a power of two up to "
                       "4096), max-alloc=BYTES, latency=TIME (20us), "
                       "bandwidth=BYTES per second, ops=NAME+NAME or -NAME, fail=alloc:N|copy:N|lost:N, offload=1, "
                       "memory-only=1, name=NAME",
                       key, value);
    return TN_OK;
}

static tn_status parse(tn__sim *sim, const char *specification) {
    char text[256];
    if (strncmp(specification, "sim:", 4) != 0 || strlen(specification) >= sizeof text)
        return tn_fail(TN_E_INVALID, "invalid simulated device '%.100s': must be sim:SIZE[,align=…][,max-alloc=…]…",
                       specification);
    snprintf(text, sizeof text, "%s", specification + 4);
    char *rest, *part = strtok_r(text, ",", &rest);
    if (!part || !parse_size(part, &sim->size))
        return tn_fail(TN_E_INVALID, "'%.100s': a size like 8G or 512M must follow sim:", specification);
    while ((part = strtok_r(NULL, ",", &rest))) {
        char *equal = strchr(part, '=');
        if (equal) *equal = '\0';
        TN_TRY(parse_option(sim, part, equal ? equal + 1 : "1"));
    }
    return TN_OK;
}

/* ---- Device ---- */

static tn_status sim_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    tn__sim *sim = device->impl;
    size_t used = atomic_load(&sim->used);
    *total_bytes = sim->size;
    *free_bytes = used < sim->size ? sim->size - used : 0;
    return TN_OK;
}

static bool sim_supports_op(tn_device *device, const tn_tensor *node, char *reason, size_t reason_size) {
    const tn__sim *sim = device->impl;
    if (!sim->ops[node->op]) {
        if (reason) snprintf(reason, reason_size, "%s is not supported", tn_op_name(node->op));
        return false;
    }
    if (node->op == TN_OP_CUSTOM) {
        if (reason) snprintf(reason, reason_size, "custom ops run on the CPU");
        return false;
    }
    return tn_device_supports_op(tn__cpu_device(), node, reason, reason_size);
}
static bool sim_supports_buffer_type(tn_device *device, const tn_buffer_type *type) { return type->device == device; }

/* Like a GPU: for a mat-mul with many columns the transfer of its weights pays. */
static bool sim_wants_op(tn_device *device, const tn_tensor *node) {
    const tn__sim *sim = device->impl;
    return sim->wants_ops && tn_op_get_family(node->op) == TN_FAMILY_MATMUL && node->ne[1] * node->ne[2] >= 32;
}

static void sim_device_free(tn_device *device) { tn_free(device->impl); }

static const tn_device_ops device_ops = {
    .memory = sim_memory,
    .supports_op = sim_supports_op,
    .supports_buffer_type = sim_supports_buffer_type,
    .wants_op = sim_wants_op,
    .stream_new = tn__sim_stream_new,
    .event_new = tn__sim_event_new,
    .event_free = tn__sim_event_free,
    .event_record = tn__sim_event_record,
    .event_wait = tn__sim_event_wait,
    .event_synchronize = tn__sim_event_synchronize,
    .free = sim_device_free,
};

tn_status tn__sim_device_new(const char *specification, tn_device **device) {
    static atomic_int count;
    tn__sim *sim = tn_calloc(1, sizeof *sim);
    if (!sim) return TN_E_NOMEM;
    sim->type = (tn_buffer_type){
        .ops = &tn__sim_type_ops, .device = &sim->device, .alignment = 128, .max_size = SIZE_MAX, .impl = sim};
    sim->device = (tn_device){
        .ops = &device_ops,
        .kind = TN_DEVICE_GPU,
        .caps = {.async = true, .events = true},
        .buffer_type = &sim->type,
        .impl = sim,
    };
    memset(sim->ops, 1, sizeof sim->ops);
    tn_status status = parse(sim, specification);
    if (status != TN_OK) {
        tn_free(sim);
        return status;
    }
    if (!sim->device.name[0])
        snprintf(sim->device.name, sizeof sim->device.name, "sim%d", atomic_fetch_add(&count, 1));
    if (sim->type.max_size > sim->size) sim->type.max_size = sim->size;
    snprintf(sim->specification, sizeof sim->specification, "%s", specification);
    snprintf(sim->device.description, sizeof sim->device.description, "simulated device, %.100s", specification);
    memcpy(sim->type.name, sim->device.name, sizeof sim->type.name);
    *device = &sim->device;
    return TN_OK;
}
