/* Processor masks, memory nodes and priorities of threads. */
#ifndef TN_CPU_TOPOLOGY_H
#define TN_CPU_TOPOLOGY_H

#include "tenon/cpu.h"

#if defined(__linux__)
#include <sched.h>
#endif

/* Saved affinity of the calling thread during a run. */
typedef struct tn__saved_affinity {
#if defined(__linux__)
    cpu_set_t set;
#else
    int unused;
#endif
} tn__saved_affinity;

int tn__default_threads(const tn_cpu_mask *mask);
/* Checks the mask against the machine, and replaces "local" by the mask of the calling thread's memory node. */
tn_status tn__resolve_placement(tn_threadpool_params *params);
/* Applies the parameters to the calling thread, number `index` of the pool. */
void tn__apply_placement(const tn_threadpool_params *params, int index);
void tn__apply_priority(tn_thread_priority priority);
/* The same for the duration of a run on the caller's thread; false when there was nothing to do. */
bool tn__enter_placement(const tn_threadpool_params *params, tn__saved_affinity *saved);
void tn__leave_placement(const tn__saved_affinity *saved);

#endif
