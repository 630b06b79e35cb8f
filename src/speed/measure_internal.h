/* What measuring a device's peaks shares. */
#ifndef TN_SPEED_MEASURE_INTERNAL_H
#define TN_SPEED_MEASURE_INTERNAL_H

#include "speed/speed_internal.h"

typedef struct tn__measure {
    tn_device *device;
    tn_measure_params params;
    tn_sched *sched; /* of the device and the CPU */
    tn_stream *streams[2];
    size_t memory; /* bytes of the device that may be taken */
    uint64_t began, limit_ns;
    size_t done, total; /* for progress */
    tn_device_speed *speed;
} tn__measure;

/* A stack of a large model's layers, with more weights than caches hold. */
tn__stack_shape tn__measure_shape(const tn__measure *m, tn_type type);
/* The time of one run with n_past cells in the cache: the lower quartile of several, because other work on the
 * machine only ever makes a run slower. `best` (may be NULL): the fastest. */
tn_status tn__measure_time(tn__measure *m, tn__stack *stack, int64_t n_past, double *seconds, double *best);
tn_status tn__measure_read(tn__measure *m, double *bytes_per_second);
tn_status tn__measure_read_mapped(tn__measure *m);

#endif
