/* Helpers of scheduler tests: a graph of any length, the memory used on a device, and access to a simulated device.
 */
#ifndef TN_TESTS_SCHED_CASE_H
#define TN_TESTS_SCHED_CASE_H

#include "support.h"

#include "backend/sim/sim.h"
#include "tenon/sched.h"

enum { WIDTH = 32 };

/* A series of n nodes over rows of WIDTH, which keep the scale of their values. */
static inline void chain(tn_arena *arena, int n, int64_t rows, tn_tensor **in, tn_tensor **out, tn_graph **graph) {
    tn_tensor *x = *in = tn_input(arena, TN_F32, WIDTH, rows);
    for (int i = 0; i < n; i++) x = tn_rms_norm(arena, tn_add(arena, tn_silu(arena, x), *in), NULL, 1e-5f);
    *out = tn_output(x);
    assert_ok(tn_graph_new(arena, (size_t)n * 4 + 16, graph));
    assert_ok(tn_graph_add(*graph, *out));
}

/* Bytes used on a device. */
static inline size_t used_on(const char *name) {
    tn_device *device;
    size_t free_bytes, total;
    assert_ok(tn_device_find(name, &device));
    assert_ok(tn_device_memory(device, &free_bytes, &total));
    return total - free_bytes;
}

/* The internals of a simulated device, to inject faults. */
static inline tn__sim *sim_of(const char *name) {
    tn_device *device;
    assert_ok(tn_device_find(name, &device));
    return device->impl;
}

#endif
