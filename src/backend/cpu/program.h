/* CPU programs: nodes arranged into steps that the threads of a pool execute together. */
#ifndef TN_CPU_PROGRAM_H
#define TN_CPU_PROGRAM_H

#include "tenon/cpu.h"

#include "tenon/backend_impl.h"

typedef struct tn__cpu_stream {
    tn_stream base;
    tn_threadpool *pool;
    bool owns_pool;
    int n_threads;
    const struct tn__cpu_kernels *kernels;
    double tiny_ns; /* nodes that take less than this are run by one thread */
    tn_abort_fn abort;
    void *abort_user;
} tn__cpu_stream;

/* A barrier. The last thread to arrive calls `last` (unless NULL) before it releases the others. */
void tn__threadpool_meet(tn_threadpool *pool, void (*last)(void *user), void *user);

tn_status tn__cpu_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **program);
void tn__cpu_program_free(tn_program *program);
void tn__cpu_program_moved(tn_program *program);
tn_status tn__cpu_program_run(tn_program *program, tn_buffer *scratch);

/* For tests and benchmarks: steps (each ends with a barrier) and threads of a program that has run. */
size_t tn__cpu_program_steps(const tn_program *program);
int tn__cpu_program_threads(const tn_program *program);

/* Whether the CPU can run the node, ignoring the memory of its sources. */
bool tn__cpu_supports(const tn_tensor *node, char *reason, size_t reason_size);

#endif
