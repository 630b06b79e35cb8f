/* The scheduler: one graph over several devices.
 *
 * It decides which stream runs each node, cuts the graph into splits where the stream changes, copies what a split
 * needs from elsewhere, plans every byte, reserves it once and runs. Your graph is not changed: the scheduled graph
 * is the scheduler's own; only data and buffer of your unplaced tensors are set, so that tn_tensor_set/get work on
 * them.
 *
 * A graph with the same fingerprint, placement and sizes as one seen before costs no new assignment, split or plan.
 * A scheduler belongs to one thread at a time. Several may share devices and memory (`share` below): they have
 * schedules, pins and callbacks of their own and take turns, without disturbing each other, in buffers as large as
 * the largest of all their graphs needs. Together they belong to one thread at a time. */
#ifndef TENON_SCHED_H
#define TENON_SCHED_H

#include "tenon/backend.h"
#include "tenon/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_sched tn_sched;

/* Called for every node. With ask true: return whether the data is wanted; then again with ask false once it is
 * computed and readable (return false to stop the run with TN_E_ABORTED). */
typedef bool (*tn_eval_fn)(void *user, tn_tensor *node, bool ask);

typedef struct tn_sched_params {
    const char *devices[16]; /* names in order of priority; "cpu" is added at the end when missing */
    tn_stream *const
        *streams; /* or the caller's own, any number, outliving the scheduler; the last must be the CPU */
    size_t n_streams;
    int n_threads;          /* for CPU streams made here; 0: one per core */
    tn_threadpool *threads; /* their pool, outliving the scheduler; NULL: each makes its own */
    /* Several runs may be in flight on asynchronous devices: there are so many places (at most 64; 0: four) for what
     * is copied into a split, so that the inputs of the next run are copied while this one computes. */
    bool pipeline;
    int pipeline_copies; /* 2 or more: with `pipeline` */
    /* Or: the devices, streams, threads and memory of this one, with all that is said about them above. They last as
     * long as any scheduler that uses them. */
    const tn_sched *share;
    bool exclusive;       /* and nobody may share this one */
    size_t max_schedules; /* remembered beside the reserved ones, the least recently used are forgotten; 0: 128 */
    tn_abort_fn abort;    /* for streams made here */
    void *abort_user;
} tn_sched_params;

TN_API tn_status tn_sched_new(const tn_sched_params *params, tn_sched **sched) TN_MUST_CHECK;
TN_API void tn_sched_free(tn_sched *sched);

TN_API size_t tn_sched_stream_count(const tn_sched *sched);
TN_API tn_stream *tn_sched_stream(const tn_sched *sched, size_t index);
/* Pins a tensor to a stream (by index), until tn_sched_reset or unpinning with -1. */
TN_API tn_status tn_sched_pin(tn_sched *sched, const tn_tensor *tensor, int stream) TN_MUST_CHECK;
/* Where a tensor of a scheduled graph runs or lives; -1 when that is not known. */
TN_API int tn_sched_stream_of(const tn_sched *sched, const tn_graph *graph, const tn_tensor *tensor);

/* Bytes per stream that would be reserved with a set of graphs, beside what is, without allocating any of it. */
typedef struct tn_sched_memory {
    size_t compute;     /* planned tensors, the largest graph */
    size_t scratch;     /* kernels' working memory, the largest program */
    size_t missing;     /* of both, what must be free: a buffer is given up only when a larger one is there */
    size_t lower_bound; /* of compute for these graphs: no plan can be smaller */
} tn_sched_memory;
TN_API tn_status tn_sched_measure(tn_sched *sched, tn_graph *const *graphs, size_t n_graphs,
                                  tn_sched_memory *per_stream) TN_MUST_CHECK;

/* Takes the memory for these graphs, beside what earlier reservations need. The only place, with a first
 * tn_sched_alloc of an unreserved graph, where memory is taken. On failure everything stays as it was. */
TN_API tn_status tn_sched_reserve(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
TN_API tn_status tn_sched_reserve_many(tn_sched *sched, tn_graph *const *graphs, size_t n_graphs) TN_MUST_CHECK;
/* Binds the graph's tensors to the reserved memory, growing the reservation when it is too small, so that inputs can
 * be set. tn_sched_run does this by itself when it was not done. */
TN_API tn_status tn_sched_alloc(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;

TN_API tn_status tn_sched_run(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK; /* and waits */
/* And does not wait: leave outputs alone until tn_sched_synchronize, or queue tn_stream_get_async on the stream
 * that computes them before the next run. Inputs too, unless the graph has a pipeline and only asynchronous
 * devices read them: then they have been copied when this returns. */
TN_API tn_status tn_sched_run_async(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
TN_API tn_status tn_sched_synchronize(tn_sched *sched);
/* Forgets schedules, pins and errors; keeps the buffers. After a device failed, try this or free. */
TN_API void tn_sched_reset(tn_sched *sched);
/* The number of places in graphs that are scheduled from now on: 1 is no pipeline, 0 four. */
TN_API tn_status tn_sched_set_pipeline(tn_sched *sched, int copies);
TN_API void tn_sched_set_eval(tn_sched *sched, tn_eval_fn eval, void *user);

typedef struct tn_sched_info {
    size_t nodes, splits, copies; /* of one graph */
    size_t copy_bytes;            /* moved between devices per run */
    size_t in_flight;             /* runs that may be under way at once; 1: no pipeline */
} tn_sched_info;
TN_API tn_status tn_sched_describe(tn_sched *sched, tn_graph *graph, tn_sched_info *info) TN_MUST_CHECK;
TN_API tn_sched_memory tn_sched_memory_of(const tn_sched *sched, size_t stream); /* now reserved */
/* The plan of a graph's memory, as an object: tn_plan_export prints and draws it. Made if there was none; nothing is
 * reserved. It belongs to the scheduler and lasts until tn_sched_reset or tn_sched_free. Tensors are numbered as in
 * the scheduled graph: the caller's, plus copies between devices. `memory_of` (one entry per stream, may be NULL)
 * receives which of the plan's memories each stream uses; streams that share a buffer type share one. */
TN_API tn_status tn_sched_plan(tn_sched *sched, tn_graph *graph, const tn_plan **plan,
                               size_t *memory_of) TN_MUST_CHECK;
/* The splits, with the cause of every assignment and the bytes copied. */
TN_API tn_status tn_sched_dump(tn_sched *sched, tn_graph *graph, FILE *out);
/* What a run of the graph launches on each device (tn_program_print). Reserves memory for the graph if need be. */
TN_API tn_status tn_sched_print_programs(tn_sched *sched, tn_graph *graph, FILE *out);

typedef struct tn_sched_stats {
    uint64_t schedules_made, schedules_reused, schedules_forgotten, plans_made, plans_reused, runs;
    uint64_t buffers_grown; /* times that buffers were replaced by larger ones */
    uint64_t bytes_copied;  /* between devices, by all runs */
    /* Time of the calling thread: finding or making schedules; planning and taking memory; binding; copies and
     * programs of runs, with what the CPU computes and with waiting for devices. */
    uint64_t split_ns, plan_ns, bind_ns, submit_ns;
} tn_sched_stats;
TN_API tn_sched_stats tn_sched_get_stats(const tn_sched *sched);

#ifdef __cplusplus
}
#endif
#endif
