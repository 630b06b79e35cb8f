/* Simulated devices: the device interface. */
#include "backend/sim/sim.h"

#include "backend/registry.h"

#include <stdio.h>
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

/* ---- Device ---- */

static tn_status sim_memory(tn_device *device, size_t *free_bytes, size_t *total_bytes) {
    const tn__sim *sim = device->impl;
    /* A device without memory has 1 byte in all: 0 of 0 would mean that nothing is reported. */
    *total_bytes = sim->silent ? 0 : sim->limit ? sim->limit : 1;
    *free_bytes = sim->silent ? 0 : tn__sim_free_bytes(sim);
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

static void sim_device_free(tn_device *device) {
    tn__sim *sim = device->impl;
    tn__sim_memory_close(sim);
    tn_free(sim);
}

static const tn_device_ops device_ops = {
    .memory = sim_memory,
    .supports_op = sim_supports_op,
    .supports_buffer_type = sim_supports_buffer_type,
    .wants_op = sim_wants_op,
    .wrap_host = tn__sim_wrap_host,
    .stream_new = tn__sim_stream_new,
    .event_new = tn__sim_event_new,
    .event_free = tn__sim_event_free,
    .event_record = tn__sim_event_record,
    .event_wait = tn__sim_event_wait,
    .event_synchronize = tn__sim_event_synchronize,
    .free = sim_device_free,
};

bool tn__sim_is(const tn_device *device, const char *specification) {
    return device->ops == &device_ops && strcmp(((const tn__sim *)device->impl)->specification, specification) == 0;
}

/* Names that the specification does not give: sim0, sim1…, and rtx4090, rtx4090-1… of presets. */
static void name_device(tn__sim *sim) {
    static atomic_int count, counts[64];
    size_t n, size = sizeof sim->device.name;
    const tn_device_preset *p = sim->preset, *presets = tn_device_presets(&n);
    if (sim->device.name[0]) return;
    if (!p || (size_t)(p - presets) >= sizeof counts / sizeof *counts) {
        snprintf(sim->device.name, size, "sim%d", atomic_fetch_add(&count, 1));
        return;
    }
    int number = atomic_fetch_add(&counts[p - presets], 1);
    snprintf(sim->device.name, size, number ? "%.20s-%d" : "%.20s", p->name, number);
}

tn_status tn__sim_device_new(const char *specification, tn_device **device) {
    tn__sim *sim = tn_calloc(1, sizeof *sim);
    if (!sim) return TN_E_NOMEM;
    sim->type = (tn_buffer_type){
        .ops = &tn__sim_type_ops, .device = &sim->device, .alignment = 128, .max_size = SIZE_MAX, .impl = sim};
    sim->device = (tn_device){
        .ops = &device_ops,
        .kind = TN_DEVICE_GPU,
        .caps = {.async = true, .events = true, .repeatable = true},
        .buffer_type = &sim->type,
        .impl = sim,
    };
    memset(sim->ops, 1, sizeof sim->ops);
    tn_status status = tn__sim_parse(sim, specification);
    if (status == TN_OK) status = tn__sim_memory_open(sim);
    if (status != TN_OK) {
        tn_free(sim);
        return status;
    }
    name_device(sim);
    if (sim->type.max_size > sim->limit) sim->type.max_size = sim->limit;
    snprintf(sim->specification, sizeof sim->specification, "%s", specification);
    snprintf(sim->device.description, sizeof sim->device.description, "simulated %.30s, %.80s",
             sim->preset ? sim->preset->title : "device", specification);
    memcpy(sim->type.name, sim->device.name, sizeof sim->type.name);
    sim->wrapped_type = (tn_buffer_type){.ops = &tn__sim_wrapped_type_ops,
                                         .device = &sim->device,
                                         .alignment = 8, /* of tensors in a mapped GGUF file */
                                         .max_size = SIZE_MAX,
                                         .is_host = true,
                                         .impl = sim};
    snprintf(sim->wrapped_type.name, sizeof sim->wrapped_type.name, "%.24s-mapped", sim->device.name);
    *device = &sim->device;
    return TN_OK;
}
