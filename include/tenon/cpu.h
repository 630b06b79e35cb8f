/* The CPU backend: thread pools, processor masks, and the kernels in use. */
#ifndef TENON_CPU_H
#define TENON_CPU_H

#include "tenon/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TN_MAX_THREADS = 4096, TN_MAX_CPUS = 1024 };

typedef struct tn_cpu_mask {
    uint64_t words[TN_MAX_CPUS / 64]; /* bit c%64 of word c/64 allows logical processor c; all zero: no restriction */
} tn_cpu_mask;
TN_API tn_status tn_cpu_mask_parse(const char *text, tn_cpu_mask *mask); /* "0-3,8,10-11" */

typedef enum tn_thread_priority {
    TN_PRIORITY_NORMAL,
    TN_PRIORITY_LOW,     /* yields to everything else on the machine */
    TN_PRIORITY_HIGH,    /* needs a privilege; without it the priority stays normal, with a warning in the log */
    TN_PRIORITY_REALTIME /* the same */
} tn_thread_priority;

typedef enum tn_numa_policy {
    TN_NUMA_NONE,   /* the kernel decides */
    TN_NUMA_SPREAD, /* threads are assigned to the memory nodes in turn */
    TN_NUMA_LOCAL   /* all threads stay on the memory node of the thread that creates the pool */
} tn_numa_policy;

typedef struct tn_threadpool_params {
    int n_threads; /* including the thread that calls tn_threadpool_run; 0: one per usable core */
    int poll;      /* how long idle threads poll for work before they sleep: from 0 (not at all) to 100 (forever) */
    tn_thread_priority priority; /* of the pool's own threads */
    tn_cpu_mask mask;            /* processors the threads may use */
    bool strict;                 /* thread i uses the i-th processor of the mask only; otherwise all share the mask */
    tn_numa_policy numa;         /* used without a mask */
    bool paused;                 /* start paused */
    /* Threads of programs that multiply single rows, as decoding one token does; 0: all. The others use all. */
    int n_decode;
} tn_threadpool_params;
TN_API tn_threadpool_params tn_threadpool_params_default(int n_threads);

/* A pool can serve any number of streams. It owns its threads; the thread that starts a run takes part as thread 0.
 * Runs started by several threads are serialised. While a pool is paused, idle threads sleep whatever the poll level,
 * until it is resumed or the next run starts. Free a pool when no stream uses it any more. */
TN_API tn_status tn_threadpool_new(const tn_threadpool_params *params, tn_threadpool **pool) TN_MUST_CHECK;
TN_API void tn_threadpool_free(tn_threadpool *pool);
TN_API int tn_threadpool_size(const tn_threadpool *pool);
TN_API int tn_threadpool_decode_size(const tn_threadpool *pool); /* n_decode, or the size */
TN_API void tn_threadpool_pause(tn_threadpool *pool);
TN_API void tn_threadpool_resume(tn_threadpool *pool);

/* Calls fn(user, i, n) on n threads at once (at most the pool's size; 0: all) and waits for all of them. Within fn,
 * tn_threadpool_barrier() waits for all n threads of the run. */
typedef void (*tn_threadpool_fn)(void *user, int index, int count);
TN_API void tn_threadpool_run(tn_threadpool *pool, int n_threads, tn_threadpool_fn fn, void *user);
TN_API void tn_threadpool_barrier(tn_threadpool *pool);

TN_API int tn_cpu_count(void);         /* processors this process may use */
TN_API const char *tn_cpu_name(void);  /* the model name */
TN_API const char *tn_cpu_level(void); /* the kernels in use: "generic", "avx2", "avx512", "amx", "neon" */

#ifdef __cplusplus
}
#endif
#endif
