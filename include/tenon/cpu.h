/* The CPU backend's own knobs: thread pools, and what the processor can do. */
#ifndef TENON_CPU_H
#define TENON_CPU_H

#include "tenon/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_MAX_THREADS = 4096, TN_MAX_CPUS = 1024 };

typedef struct tn_cpu_mask {
    uint64_t words[TN_MAX_CPUS / 64]; /* bit c%64 of word c/64: logical processor c may be used; all zero: no limit */
} tn_cpu_mask;
TN_API tn_status tn_cpu_mask_parse(const char *text, tn_cpu_mask *mask); /* "0-3,8,10-11" */

typedef enum tn_thread_priority {
    TN_PRIORITY_NORMAL,
    TN_PRIORITY_LOW,  /* yields to everything else on the machine */
    TN_PRIORITY_HIGH, /* these two need the privilege; without it a log line says so and nothing changes */
    TN_PRIORITY_REALTIME
} tn_thread_priority;

typedef enum tn_numa_policy {
    TN_NUMA_NONE,   /* the kernel decides */
    TN_NUMA_SPREAD, /* threads go round the memory nodes in turn */
    TN_NUMA_LOCAL   /* all threads stay on the node of the thread that makes the pool */
} tn_numa_policy;

typedef struct tn_threadpool_params {
    int n_threads; /* including the thread that calls run; 0: one per usable core */
    int poll;      /* how long idle threads look for work before they sleep: 0 sleep at once … 100 spin */
    tn_thread_priority priority; /* of the pool's own threads */
    tn_cpu_mask mask;            /* where threads may run */
    bool strict;                 /* one processor of the mask for each thread, in order; otherwise they share it */
    tn_numa_policy numa;         /* without a mask */
    bool paused;                 /* start asleep */
} tn_threadpool_params;
TN_API tn_threadpool_params tn_threadpool_params_default(int n_threads);

/* A pool is made once and used by any number of backends. Its threads belong to it; the thread that starts a run
 * works along as number 0. Runs from several threads take turns. Pausing makes idle threads sleep whatever the poll
 * level, until resumed or until the next run. Free it when no backend uses it any more. */
TN_API tn_status tn_threadpool_new(const tn_threadpool_params *params, tn_threadpool **pool) TN_MUST_CHECK;
TN_API void tn_threadpool_free(tn_threadpool *pool);
TN_API int tn_threadpool_size(const tn_threadpool *pool);
TN_API void tn_threadpool_pause(tn_threadpool *pool);
TN_API void tn_threadpool_resume(tn_threadpool *pool);

/* Calls fn(user, i, n) on n threads at once (at most the pool's size; 0: all) and waits for all of them. Inside,
 * tn_threadpool_barrier makes the n threads of the run wait for each other. */
typedef void (*tn_threadpool_fn)(void *user, int index, int count);
TN_API void tn_threadpool_run(tn_threadpool *pool, int n_threads, tn_threadpool_fn fn, void *user);
TN_API void tn_threadpool_barrier(tn_threadpool *pool);

TN_API int tn_cpu_count(void);         /* processors this process may use */
TN_API const char *tn_cpu_name(void);  /* the model, as the processor or the kernel calls it */
TN_API const char *tn_cpu_level(void); /* the kernels in use: "generic", "avx2", "avx512", "amx", "neon" */

#ifdef __cplusplus
}
#endif
#endif
