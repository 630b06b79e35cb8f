/* The scheduler: runs one graph on several devices.
 *
 * It assigns each node to a stream, cuts the graph into splits where the stream changes, copies the inputs of a
 * split from other devices, plans all memory, reserves it once and runs. The caller's graph is not changed: the
 * scheduler makes its own. It sets only data and buffer of the caller's tensors without memory, so that tn_tensor_set
 * and tn_tensor_get work on them.
 *
 * A graph with the same fingerprint, sizes and memory of its leaves as an earlier one needs no new assignment, split
 * or plan. A scheduler belongs to one thread at a time. Several may share devices and memory (`share` below): each
 * has its own schedules, pins and callbacks; they take turns using buffers of the size of the largest graph. Only
 * one thread at a time may use any of them. */
#ifndef TENON_SCHED_H
#define TENON_SCHED_H

#include "tenon/backend.h"
#include "tenon/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_sched tn_sched;

/* Called for every node. With `ask`: returns whether the node's data is needed. Then again without `ask`, once it is
 * computed and readable; returning false there stops the run with TN_E_ABORTED. */
typedef bool (*tn_eval_fn)(void *user, tn_tensor *node, bool ask);

typedef struct tn_sched_params {
    /* Names in order of priority; "cpu" is added at the end when missing. */
    const char *devices[16];
    /* Or the caller's own streams, any number, outliving the scheduler; the last must be the CPU's. */
    tn_stream *const *streams;
    size_t n_streams;
    int n_threads;          /* for CPU streams made here; 0: one per core */
    tn_threadpool *threads; /* their pool, outliving the scheduler; NULL: each makes its own */
    /* Allows several runs in flight on asynchronous devices: each has copy targets of its own, so that the inputs of
     * the next run are copied while this one computes. */
    bool pipeline;
    int n_in_flight; /* 2 to 64 imply `pipeline`; 0 selects its default of 4 */
    /* Or a scheduler whose devices, streams, threads and memory this one uses; nothing above is given then. They last
     * as long as any scheduler that uses them. */
    const tn_sched *share;
    bool exclusive;       /* no other scheduler may share this one */
    size_t max_schedules; /* cached in addition to the reserved ones, least recently used evicted first; 0: 128 */
    /* Effort and step budget of the plans of reserved graphs, for each class and memory; NULL: balanced, within 10
     * million steps (some 30 ms at most; graphs of language models take a few). Other graphs are planned with fast
     * effort. */
    const tn_pack_params *pack;
    /* Reorders the nodes of a split where that lowers the peak of memory by a percent or more. Results do not change.
     * The first graph of a class determines the order of all, so cover the largest first. It is slower if it
     * separates nodes that backends compute together, usually queries, keys and values of one input. */
    bool reorder;
    bool strict; /* a graph that needs more than is reserved fails with TN_E_STATE; otherwise memory grows, with a log
                    message */
    /* Called before every run, between splits, and by streams made here between nodes, from any thread; also
     * while plans are made, unless `pack` has its own callback. When it returns true, the run waits for queued work
     * and returns TN_E_ABORTED; the scheduler can be used again. */
    tn_abort_fn abort;
    void *abort_user;
} tn_sched_params;

TN_API tn_status tn_sched_new(const tn_sched_params *params, tn_sched **sched) TN_MUST_CHECK;
TN_API void tn_sched_free(tn_sched *sched);

TN_API size_t tn_sched_stream_count(const tn_sched *sched);
TN_API tn_stream *tn_sched_stream(const tn_sched *sched, size_t index);
/* Pins a tensor to a stream (by index), until tn_sched_reset or unpinning with -1. */
TN_API tn_status tn_sched_pin(tn_sched *sched, const tn_tensor *tensor, int stream) TN_MUST_CHECK;
/* The stream that computes a tensor of a scheduled graph, or in whose memory it lives; -1 when that is not known. */
TN_API int tn_sched_stream_of(const tn_sched *sched, const tn_graph *graph, const tn_tensor *tensor);

/* Declares where a tensor without memory will live. Returns false for tensors that the scheduler is to plan. */
typedef bool (*tn_location_fn)(void *user, const tn_tensor *tensor, tn_location *location);
/* Lets graphs be scheduled, measured and planned before weights and caches exist: `location_of` is called for the
 * tensors without memory of graphs scheduled from now on. A declared tensor is treated as one that has memory, and
 * the schedule stays valid once it has. Binding or running the graph before that is TN_E_STATE. NULL: nothing is
 * declared. The caller's tensors are not changed. */
TN_API void tn_sched_set_locations(tn_sched *sched, tn_location_fn location_of, void *user);

/* How much would be reserved on each stream after reserving a set of graphs; nothing is allocated. */
typedef struct tn_sched_memory {
    size_t compute; /* planned tensors, the largest graph */
    size_t scratch; /* kernels' working memory, the largest program */
    size_t missing; /* of both, the bytes that must be free: a buffer is freed after its larger successor exists */
    size_t lower_bound; /* of compute for these graphs: no plan can be smaller */
    /* Set by tn_sched_needs: compute memory that an online best-fit allocator would need. */
    size_t in_order;
} tn_sched_memory;
TN_API tn_status tn_sched_measure(tn_sched *sched, tn_graph *const *graphs, size_t n_graphs,
                                  tn_sched_memory *per_stream) TN_MUST_CHECK;

/* Reservation in steps: cover every graph that may run, check the needs, take the memory, seal.
 *
 * Graphs that differ only in sizes form a class: the same ops, edges, views, flags, devices, and tensors with memory
 * of their own. A class has one plan, for the largest size of every tensor, and all its graphs are bound with the
 * same offsets. A covered graph therefore never needs more than was reserved. Covering adds a graph's needs to
 * the reservation; nothing is allocated, and the graph may be freed afterwards. Cover the largest graphs first: any
 * order is valid, but each graph that enlarges a class replans it. */
TN_API tn_status tn_sched_cover(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
/* Covers a graph with a plan made earlier for its class (tn_sched_plan), which is verified and copied. TN_E_STATE:
 * the plan does not fit the graph, or the graphs that its class has covered so far; the message says why. */
TN_API tn_status tn_sched_adopt(tn_sched *sched, tn_graph *graph, const tn_plan *plan) TN_MUST_CHECK;
/* The same with only the offsets of such a plan (nodes, then leaves of the scheduled graph). Nothing is packed and
 * nothing in the list is trusted: lifetimes come from the graph, chunks end with their last tensor, and it is
 * verified that no two live tensors overlap. This creates a new class. TN_E_STATE: the message says what is wrong. */
TN_API tn_status tn_sched_adopt_offsets(tn_sched *sched, tn_graph *graph, const tn_plan_offset *offsets,
                                        size_t n_offsets) TN_MUST_CHECK;
/* Covers a graph that the plan of a covered class serves. TN_E_STATE if a plan would have to be made. */
TN_API tn_status tn_sched_cover_served(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
/* Effort of plans made from now on, as `pack` in tn_sched_params. */
TN_API void tn_sched_set_effort(tn_sched *sched, const tn_pack_params *pack);
/* The plan of a graph's class on disk, and adopting it from there. The file is bound to the scheduled graph: sizes,
 * devices and the version of the format must be the same (TN_E_STATE, TN_E_VERSION, TN_E_CHECKSUM, TN_E_FORMAT). */
TN_API tn_status tn_sched_save_plan(tn_sched *sched, tn_graph *graph, const char *path) TN_MUST_CHECK;
TN_API tn_status tn_sched_load_plan(tn_sched *sched, tn_graph *graph, const char *path) TN_MUST_CHECK;
/* The size of the reservation once everything that is covered has been taken. */
TN_API tn_status tn_sched_needs(tn_sched *sched, tn_sched_memory *per_stream) TN_MUST_CHECK;
/* Takes it, all or nothing. */
TN_API tn_status tn_sched_take(tn_sched *sched) TN_MUST_CHECK;
/* From now on memory does not grow: a graph that no class covers, or that needs more scratch, is TN_E_INTERNAL with
 * the graph, the tensor, and the bytes needed and reserved. tn_sched_reset keeps the reservation and the seal. Other
 * schedulers that share the memory may still enlarge it. */
TN_API tn_status tn_sched_seal(tn_sched *sched);

/* Allocates the memory for these graphs, in addition to earlier reservations. Memory is allocated only here and
 * by the first tn_sched_alloc of a graph that was not reserved. On failure nothing changes. */
TN_API tn_status tn_sched_reserve(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
TN_API tn_status tn_sched_reserve_many(tn_sched *sched, tn_graph *const *graphs, size_t n_graphs) TN_MUST_CHECK;
/* Binds the graph's tensors to the reserved memory, growing the reservation when it is too small, so that inputs can
 * be set. tn_sched_run calls it when needed. */
TN_API tn_status tn_sched_alloc(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;

/* Runs the graph and waits. */
TN_API tn_status tn_sched_run(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
/* Queues a run and returns. Outputs must not be used until tn_sched_synchronize; or queue tn_stream_get_async, before
 * the next run, on the stream that computes them. Inputs must not be changed until then, either, unless
 * the graph is pipelined and only asynchronous devices read them: then they have been copied when this returns. */
TN_API tn_status tn_sched_run_async(tn_sched *sched, tn_graph *graph) TN_MUST_CHECK;
TN_API tn_status tn_sched_synchronize(tn_sched *sched);
/* Calls the abort callback, for long work of the caller between runs: TN_E_ABORTED if it returns true. */
TN_API tn_status tn_sched_check_abort(const tn_sched *sched);
/* Drops schedules, pins, errors and, unless it is sealed, the covered classes; keeps the buffers and the
 * location callback. After a device failed, call this or free the scheduler. */
TN_API void tn_sched_reset(tn_sched *sched);
/* Runs in flight of graphs scheduled from now on: 0 selects the default of 4; 1 disables pipelining. */
TN_API tn_status tn_sched_set_in_flight(tn_sched *sched, int n);
/* Runs the nodes of a split in pieces, in the reserved scratch. A node that runs by itself may need more of it than
 * the whole split: set the callback before covering or reserving graphs, so that this is part of the reservation. */
TN_API void tn_sched_set_eval(tn_sched *sched, tn_eval_fn eval, void *user);

typedef struct tn_sched_info {
    size_t nodes, splits, copies; /* of one graph */
    size_t copy_bytes;            /* moved between devices per run */
    size_t in_flight;             /* runs that may be in flight; 1: no pipeline */
} tn_sched_info;
TN_API tn_status tn_sched_describe(tn_sched *sched, tn_graph *graph, tn_sched_info *info) TN_MUST_CHECK;
TN_API tn_sched_memory tn_sched_memory_of(const tn_sched *sched, size_t stream); /* reserved now */
/* The plan of a graph's memory, as an object that tn_plan_export prints and draws. Made if there was none; nothing is
 * reserved. It belongs to the scheduler and lasts until tn_sched_reset or tn_sched_free. Tensors are numbered as in
 * the scheduled graph: the caller's, plus copies between devices. `memory_of` (one entry per stream, may be NULL)
 * receives which of the plan's memories each stream uses; streams with the same buffer type have the same one. */
TN_API tn_status tn_sched_plan(tn_sched *sched, tn_graph *graph, const tn_plan **plan,
                               size_t *memory_of) TN_MUST_CHECK;
/* Prints the splits with the reason for every assignment and the bytes copied. */
TN_API tn_status tn_sched_dump(tn_sched *sched, tn_graph *graph, FILE *out);
/* Prints the launches of a run of the graph on each device (tn_program_print). Reserves memory for the graph if
 * necessary. */
TN_API tn_status tn_sched_print_programs(tn_sched *sched, tn_graph *graph, FILE *out);

typedef struct tn_sched_stats {
    uint64_t schedules_made, schedules_reused, schedules_forgotten, plans_made, plans_adopted, plans_reused, runs;
    uint64_t schedules_reordered;
    uint64_t buffers_grown; /* times that buffers were replaced by larger ones */
    uint64_t bytes_copied;  /* between devices, by all runs */
    /* Time of the calling thread: to find or make schedules; to plan and allocate memory; to bind; to queue copies
     * and programs, including computation on the CPU and waiting for devices. */
    uint64_t split_ns, plan_ns, bind_ns, submit_ns;
} tn_sched_stats;
TN_API tn_sched_stats tn_sched_get_stats(const tn_sched *sched);

#ifdef __cplusplus
}
#endif
#endif
