/* The simulated device: behaves like a GPU, but runs on the CPU, with configurable limits and faults.
 *
 * The host cannot access its memory: the visible mapping has no access rights, and only set, get, copy and the
 * device's thread use a second mapping of the same pages. Work is queued and runs on a separate thread. */
#ifndef TN_BACKEND_SIM_H
#define TN_BACKEND_SIM_H

#include "tenon/backend_impl.h"

#include <pthread.h>
#include <stdatomic.h>

/* Memory that one simulated device draws from, or several with the same card=NAME. Unified memory stands for that of
 * the whole simulated machine: buffers in the host's memory count, too. */
typedef struct tn__sim_memory {
    tn_device device; /* the domain of devices with unified memory; it reports memory and computes nothing */
    size_t size;
    atomic_size_t used; /* by simulated devices */
    atomic_int users;
} tn__sim_memory;

typedef struct tn__sim {
    tn_device device;
    tn_buffer_type type, wrapped_type;
    tn__sim_memory *memory;
    size_t size;              /* bytes of memory */
    size_t limit;             /* of them for this device */
    atomic_size_t used;       /* by this device */
    bool memory_only, silent; /* silent: memory is reported as 0 of 0 */
    uint8_t ops[TN_OP_COUNT]; /* 1: supported */
    bool wants_ops;           /* accepts large ops whose weights are in host memory */
    uint64_t latency_ns;      /* per copy and per program */
    double bytes_per_ns;      /* 0: not limited */
    /* Faults: the n-th operation of its kind from now fails, once (0: never). */
    atomic_long fail_alloc, fail_copy, fail_run;
    atomic_bool lost;               /* every operation on a lost device fails */
    const tn_device_preset *preset; /* NULL if none */
    char specification[256];
} tn__sim;

typedef struct tn__sim_buffer {
    tn_buffer base;
    char *inner; /* the accessible mapping; NULL in memory-only mode */
    size_t mapped;
    bool wrapped; /* the caller's memory */
} tn__sim_buffer;

/* The device's address of the host's `address` inside this buffer. */
char *tn__sim_inner(const tn_buffer *buffer, const void *address);
extern const tn_buffer_type_ops tn__sim_type_ops, tn__sim_wrapped_type_ops;
/* Memory of its own, or that of the simulated devices of the same card. */
tn_status tn__sim_memory_open(tn__sim *sim);
void tn__sim_memory_close(tn__sim *sim);
size_t tn__sim_free_bytes(const tn__sim *sim);
void tn__sim_resize(tn__sim *sim, size_t size, size_t max_alloc); /* for tests; max_alloc 0: no further limit */
tn_status tn__sim_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **buffer);
tn_status tn__sim_parse(tn__sim *sim, const char *specification); /* spec.c */

/* Counts a fault counter down; true if this operation fails. */
bool tn__sim_fault(atomic_long *counter);
tn_status tn__sim_check(tn__sim *sim); /* TN_E_DEVICE_LOST if lost */
void tn__sim_delay(const tn__sim *sim, size_t bytes);

/* ---- The queue (queue.c) ---- */
tn_status tn__sim_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream);
tn_status tn__sim_event_new(tn_device *device, tn_event **event);
void tn__sim_event_free(tn_event *event);
tn_status tn__sim_event_record(tn_event *event, tn_stream *stream);
tn_status tn__sim_event_wait(tn_event *event, tn_stream *stream);
tn_status tn__sim_event_synchronize(tn_event *event);

#endif
