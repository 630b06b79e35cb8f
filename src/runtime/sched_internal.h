/* What the scheduler's files share: assignments, schedules, splits. */
#ifndef TN_RUNTIME_SCHED_INTERNAL_H
#define TN_RUNTIME_SCHED_INTERNAL_H

#include "runtime/alloc.h"
#include "tenon/sched.h"

#include "base/hash.h"
#include "tensor/external.h"

/* Why a tensor is assigned to its stream: X(NAME, "text"). */
#define TN__CAUSE_TABLE(X)                                                                                           \
    X(NONE, "not assigned")                                                                                          \
    X(PINNED, "pinned by the caller")                                                                                \
    X(DATA, "its data is there")                                                                                     \
    X(INPUT, "graph input, on the host")                                                                             \
    X(WEIGHTS, "its weights are there")                                                                              \
    X(OFFLOAD, "large enough to move its host weights over")                                                         \
    X(WRITES, "writes into memory there")                                                                            \
    X(WRITTEN, "what writes into it is there")                                                                       \
    X(NEXT_TO, "next to its neighbours")                                                                             \
    X(BORDER, "with what it reads: less is copied")                                                                  \
    X(UPGRADED, "a better device reads the same memory")                                                             \
    X(SOURCES, "most of its sources are there")                                                                      \
    X(READER, "its first reader is there")                                                                           \
    X(VIEW, "part of a tensor there")                                                                                \
    X(ONLY, "no preferred device supports it")
typedef enum tn__cause {
#define TN_X(name, text) TN__CAUSE_##name,
    TN__CAUSE_TABLE(TN_X)
#undef TN_X
} tn__cause;
const char *tn__cause_text(tn__cause cause);

/* The stream of one tensor of a graph. Tables of them are indexed by node, then leaf. */
typedef struct tn__assignment {
    int16_t stream; /* -1: none yet */
    uint8_t cause;
} tn__assignment;

typedef struct tn__copy {
    tn_tensor *source, *target; /* both in the scheduled graph */
    int16_t from;               /* stream */
    /* In schedule->targets, one for each run that may be in flight; `target` is a view of the first. */
    size_t first_target;
    /* Expert weights: only the matrices that these ids name are copied, to `target`. NULL: the whole tensor. */
    const tn_tensor *ids;
} tn__copy;

typedef struct tn__split {
    int16_t stream;
    size_t first_copy, n_copies;
    /* Copies for the next split, after this one's own: they are filled in a stream of their own while this one
     * computes (prefetch.c). */
    size_t n_prefetches;
    bool waits_prefetch;        /* the split before has some */
    size_t first_node, n_nodes; /* in schedule->work */
    size_t n_in_flight;         /* runs that may be in flight in this split */
    size_t first_program;       /* in schedule->programs, one for each of them */
} tn__split;

/* A node of a further in-flight program, and the node of the scheduled graph whose memory it uses. */
typedef struct tn__twin {
    tn_tensor *tensor;
    const tn_tensor *of;
} tn__twin;

/* A tensor whose memory belongs to the caller, and the address it had when the graph was bound. */
typedef struct tn__own {
    const tn_tensor *tensor;
    uint32_t index; /* in the caller's graph */
    void *data, *extra;
    tn_buffer *buffer;
} tn__own;

/* A scheduled graph: clones of all tensors, in order, with copies between streams as nodes of their own. */
typedef struct tn__schedule {
    tn_fingerprint key;
    uint64_t placement; /* hash of the leaves' memory and of the pins */
    tn_arena *arena;
    tn_graph *graph;
    size_t n_nodes, n_leaves; /* of the caller's graph */
    tn__assignment *assigned; /* by index in the caller's graph */
    tn_tensor **clones;       /* the same index → scheduled tensor */
    tn_location *locations;   /* indexed alike: memory declared for clones; NULL: none has any */
    uint16_t *type_of;        /* by index in the scheduled graph */
    tn__split *splits;
    size_t n_splits;
    tn__copy *copies;
    size_t n_copies;
    tn_tensor **work; /* [in flight][n_nodes]: nodes that compute something, in order of the splits */
    size_t copy_bytes;
    size_t *scratch;       /* per stream */
    tn_program **programs; /* NULL where a split computes nothing */
    tn_event **run_done;   /* by program: its last run is over. NULL where a split has one run in flight */
    size_t n_programs;
    /* Copy targets of splits with several runs in flight, one per copy and run. They are leaves of the scheduled
     * graph, and no other tensor of it shares their memory. */
    tn_tensor **targets;
    size_t n_targets;
    tn__twin *twins;
    size_t n_twins;
    void *ids;               /* for the largest list of expert ids */
    uint8_t *wanted;         /* a mark per expert */
    const tn_tensor *marked; /* the ids whose experts `wanted` marks, since run number marked_run began */
    uint64_t marked_run;
    /* Tensors that the caller may set or read and whose clones have planned memory. */
    uint32_t *outer;
    size_t n_outer;
    tn__own *own;
    size_t n_own;
    size_t n_work_lists;
    struct tn__order *order; /* of its structure; NULL: none is known */
    bool pipelined;
    bool allows_eval; /* `scratch` suffices for every node that runs by itself */
    uint64_t runs;
    bool keep; /* reserved, or its plan was handed out: never evicted */
    /* The caller's graph whose tensors carry this schedule's addresses now. */
    uint64_t bound_serial, bound_generation;
    uint64_t last_used;
} tn__schedule;

/* Tensors that the caller pinned to a stream (pins.c). */
typedef struct tn__pins {
    const tn_tensor **tensors;
    int16_t *streams; /* -1: not any more */
    size_t n, capacity;
    tn__ptr_map map; /* tensor → number */
    void *memory;    /* of the map */
} tn__pins;
tn_status tn__pins_set(tn__pins *pins, const tn_tensor *tensor, int stream);
int tn__pins_get(const tn__pins *pins, const tn_tensor *tensor);     /* or -1 */
uint64_t tn__pins_hash(const tn__pins *pins, const tn_graph *graph); /* of those in the graph */
void tn__pins_clear(tn__pins *pins);
void tn__pins_free(tn__pins *pins);

/* Copies for the next split (prefetch.c): a stream beside that of the programs, and the events between the two. All
 * NULL as long as no schedule has such copies. */
typedef struct tn__prefetch {
    tn_stream *stream;
    tn_event *may_fill, *filled;
} tn__prefetch;

/* What several schedulers can share: the devices' streams and their memory. */
typedef struct tn__sched_core {
    size_t n_users;
    tn_stream **streams;
    size_t n_streams;
    bool owns_streams;
    tn_buffer_type **types; /* per stream; the allocators merge equal ones */
    tn_buffer **scratch;    /* per stream, grown to the largest program */
    /* Copies out of host memory that a device may still be reading: the host must not compute over it meanwhile. */
    tn_event **host_read; /* per stream, or NULL where the device has no events */
    bool *reads_host;
    /* With several runs in flight: what a stream pushed to others has arrived. */
    tn_event **pushed;      /* per stream, or NULL as long as there is no pipeline */
    tn__prefetch *prefetch; /* per stream: what fills copies of the next split */
    bool *async;            /* per stream: work is queued, and events order it */
    tn_sched *last_user;
    const tn__schedule *last_run;
    tn_abort_fn abort;
    void *abort_user;
} tn__sched_core;

struct tn_sched {
    tn__sched_core *core;
    tn__alloc *alloc; /* plans of its own, in memory of all */
    bool exclusive;
    bool strict, sealed, reorder;
    struct tn__order **orders;
    size_t n_orders, cap_orders;
    size_t *wanted_scratch; /* per stream: of all graphs covered or reserved */
    size_t n_in_flight;     /* in schedules made from now on; 1: no pipeline */
    size_t max_schedules;
    tn__schedule **schedules;
    size_t n_schedules, cap_schedules;
    uint64_t clock;
    tn__pins pins;
    tn_location_fn location_of;
    void *location_user;
    tn_eval_fn eval;
    void *eval_user;
    tn_sched_stats stats;
    /* A failure of work queued here, which another scheduler found when it waited; reported here, once. */
    tn_status deferred;
    char deferred_text[512];
};

/* Waits for what another scheduler that shares these devices and memory has queued, before this one uses them. */
void tn__sched_take_turn(tn_sched *sched);
/* The schedule of a graph: remembered, or made and remembered; or only looked up. */
tn_status tn__sched_schedule_for(tn_sched *sched, tn_graph *graph, tn__schedule **schedule);
tn__schedule *tn__sched_find_schedule(const tn_sched *sched, tn_graph *graph);
/* Devices are asked about the caller's tensors and look at their memory: memory that an earlier run bound must not
 * count. */
void tn__sched_unbind_planned(const tn_graph *graph);
/* Makes sure that there is memory for a schedule (reserve.c). */
tn_status tn__sched_prepare(tn_sched *sched, const tn__schedule *schedule);
/* More scratch for one node that runs by itself: an error when the reservation is sealed or strict. */
tn_status tn__sched_grow_scratch(tn_sched *sched, int stream, size_t needed, const char *node);
/* Makes sure that the graph is scheduled, has memory and is bound. */
tn_status tn__sched_ready(tn_sched *sched, tn_graph *graph, tn__schedule **schedule);
/* Ops that compute nothing. */
static inline bool tn__is_view_op(const tn_tensor *t) { return tn_op_get_family(t->op) == TN_FAMILY_VIEW; }

/* ---- Locations (location.c) ---- */

/* The memory of a tensor, or of a view's root, that the caller gave it or declared. False: the scheduler plans it. */
bool tn__sched_location(const tn_sched *sched, const tn_tensor *tensor, tn_location *location);
/* Weights: a leaf in memory that is used as such. */
bool tn__sched_is_weight(const tn_sched *sched, const tn_tensor *tensor);
/* The memory a tensor assigned to `stream` lives in: its own, or the stream's. */
tn_buffer_type *tn__sched_memory_type(const tn_sched *sched, const tn_tensor *tensor, int stream);
bool tn__sched_supports_op(const tn_sched *sched, int stream, const tn_tensor *node, char *reason, size_t size);
bool tn__sched_wants_op(const tn_sched *sched, int stream, const tn_tensor *node);

/* ---- Making a schedule ---- */

/* Fills assigned[0 … nodes+leaves-1]. */
tn_status tn__sched_assign(const tn_sched *sched, const tn_graph *graph, tn__assignment *assigned);
/* Part of it: moves cheap nodes at the borders between devices to where less has to be copied. */
tn_status tn__sched_trim_borders(const tn_sched *sched, const tn_graph *graph, tn__assignment *assigned);
/* Assigns, cuts, clones and reorders; no memory is taken. */
tn_status tn__schedule_new(tn_sched *sched, tn_graph *graph, tn__schedule **schedule);
void tn__schedule_free(tn__schedule *schedule);
/* With an eval callback any node may run by itself: adds what that needs to the schedule's scratch. */
tn_status tn__schedule_allow_eval(const tn_sched *sched, tn__schedule *schedule);

/* ---- Copies for the next split (prefetch.c) ---- */

/* Opens what prefetching on this stream needs; does nothing where it is open. */
tn_status tn__prefetch_open(tn__sched_core *core, int stream);
void tn__prefetch_free(tn__prefetch *prefetch);
/* Whether copies can be prefetched: work of the stream is queued and events order it. */
bool tn__prefetch_possible(const tn_sched *sched, int stream);
/* Around a split's program: before it, the copies filled for it have arrived and memory for the next may be filled;
 * after it, those are queued with `fill`. */
typedef tn_status (*tn__prefetch_fill_fn)(tn_sched *s, tn__schedule *schedule, tn_stream *stream,
                                          const tn__copy *copy);
tn_status tn__prefetch_before(tn_sched *s, const tn__split *split);
tn_status tn__prefetch_after(tn_sched *s, tn__schedule *schedule, const tn__split *split, tn__prefetch_fill_fn fill);

/* ---- Order (order.c) ---- */

typedef struct tn__order tn__order;
/* Reorders the nodes of each split so that less memory is needed, or as an earlier graph of the same structure.
 * `segments`: first nodes of the runs of nodes that are reordered within themselves. */
tn_status tn__schedule_reorder(tn_sched *sched, tn__schedule *schedule, const size_t *segments, size_t n_segments);
/* The schedule's graph is reserved: the order of its structure stays. */
void tn__order_reserve(const tn__schedule *schedule);
void tn__orders_forget(tn_sched *sched, bool reserved_too);

#endif
