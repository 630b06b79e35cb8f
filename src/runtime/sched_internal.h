/* What the scheduler's files share: assignment, schedule, splits. */
#ifndef TN_RUNTIME_SCHED_INTERNAL_H
#define TN_RUNTIME_SCHED_INTERNAL_H

#include "runtime/alloc.h"
#include "tenon/sched.h"

#include "base/hash.h"

/* Why a tensor is where it is: X(NAME, "text"). */
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

/* Per tensor of a graph (nodes, then leaves). */
typedef struct tn__place {
    int16_t stream; /* -1: none yet */
    uint8_t cause;
} tn__place;

typedef struct tn__copy {
    tn_tensor *source, *target; /* both in the scheduled graph */
    int16_t from;               /* stream */
    size_t first_slot;    /* in schedule->slots, one for each run that may be in flight; target lies in the first */
    const tn_tensor *ids; /* or NULL; expert weights: only the matrices that these name are copied, to target */
} tn__copy;

typedef struct tn__split {
    int16_t stream;
    size_t first_copy, n_copies;
    size_t first_node, n_nodes; /* in schedule->work */
    size_t n_slots;             /* runs that may be in flight in this split */
    size_t first_program;       /* in schedule->programs, one for each of them */
} tn__split;

/* A tensor of a program for another slot, and the one in the scheduled graph whose place it shares. */
typedef struct tn__twin {
    tn_tensor *tensor;
    const tn_tensor *of;
} tn__twin;

/* A tensor with memory that the caller gave it, and which that was when it was bound. */
typedef struct tn__own {
    const tn_tensor *tensor;
    uint32_t index; /* in the caller's graph */
    void *data, *extra;
    tn_buffer *buffer;
} tn__own;

/* A scheduled graph: clones of all tensors, in order, with copies between streams as nodes of their own. */
typedef struct tn__schedule {
    tn_fingerprint key;
    uint64_t placement; /* hash of where leaves are and what is pinned */
    tn_arena *arena;
    tn_graph *graph;
    size_t n_nodes, n_leaves; /* of the caller's graph */
    tn__place *places;        /* by index in the caller's graph */
    tn_tensor **clones;       /* the same index → scheduled tensor */
    uint16_t *type_of;        /* by index in the scheduled graph */
    tn__split *splits;
    size_t n_splits;
    tn__copy *copies;
    size_t n_copies;
    tn_tensor **work; /* [slot][n_nodes]: nodes that compute something, in order of the splits */
    size_t copy_bytes;
    size_t *scratch;       /* per stream */
    tn_program **programs; /* NULL where a split computes nothing */
    tn_event **slot_free;  /* by program: its last run is over. NULL where a split has one slot */
    size_t n_programs;
    tn_tensor **slots; /* leaves of the scheduled graph that nothing else shares memory with */
    size_t n_slots;
    tn__twin *twins;
    size_t n_twins;
    void *ids;       /* room for the largest list of experts */
    uint8_t *wanted; /* room for a mark per expert */
    /* Tensors that the caller may set or read, whose clones have planned places. */
    uint32_t *outer;
    size_t n_outer;
    tn__own *own;
    size_t n_own;
    bool pipelined;
    uint64_t turn; /* runs so far */
    bool keep;     /* reserved, or its plan was handed out: not forgotten to make room */
    /* The caller's graph whose tensors carry this schedule's addresses now. */
    uint64_t bound_serial, bound_generation;
    uint64_t last_used;
} tn__schedule;

/* Tensors that the caller put on a stream (pins.c). */
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

/* What schedulers that share have in common: the devices' streams and their memory. */
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
    tn_event **pushed; /* per stream, or NULL as long as there is no pipeline */
    bool *async;       /* per stream: work is queued, and events order it */
    tn_sched *last_user;
    const tn__schedule *last_run;
} tn__sched_core;

struct tn_sched {
    tn__sched_core *core;
    tn__alloc *alloc; /* plans of its own, in memory of all */
    bool exclusive;
    size_t n_slots; /* of split inputs in schedules made now; 1: no pipeline */
    size_t max_schedules;
    tn__schedule **schedules;
    size_t n_schedules, cap_schedules;
    uint64_t clock;
    tn__pins pins;
    tn_eval_fn eval;
    void *eval_user;
    tn_sched_stats stats;
    /* A failure of work queued here that another scheduler noticed: told here, once. */
    tn_status late;
    char late_text[512];
};

/* Memory the caller gave a tensor. What some run bound does not count, and its buffer must not be looked at: it is
 * gone once the reservation grew or that scheduler was freed. */
static inline bool tn__has_own_data(const tn_tensor *t) { return t->data && !(t->flags & TN_FLAG_PLANNED); }
/* Before this one of several that share uses their devices or memory. */
void tn__sched_take_turn(tn_sched *sched);
/* Makes sure that the graph is scheduled, has memory and is bound. */
tn_status tn__sched_ready(tn_sched *sched, tn_graph *graph, tn__schedule **schedule);
/* Ops that compute nothing. */
static inline bool tn__is_view_op(const tn_tensor *t) { return tn_op_get_family(t->op) == TN_FAMILY_VIEW; }

/* Fills places[0 … nodes+leaves-1]. */
tn_status tn__sched_assign(const tn_sched *sched, const tn_graph *graph, tn__place *places);
/* Part of it: moves cheap nodes at the borders between devices to where less has to be copied. */
tn_status tn__sched_trim_borders(const tn_sched *sched, const tn_graph *graph, tn__place *places);
/* The memory a tensor on `stream` lives in: its own buffer's type, or the stream's. */
tn_buffer_type *tn__sched_memory_type(const tn_sched *sched, const tn_tensor *tensor, int stream);
/* Assigns, cuts and clones; no memory is taken. */
tn_status tn__schedule_new(const tn_sched *sched, tn_graph *graph, tn__schedule **schedule);
void tn__schedule_free(tn__schedule *schedule);
const char *tn__cause_text(tn__cause cause);

#endif
