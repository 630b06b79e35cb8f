/* Classes of graphs with their plans: found by structure, enlarged, remembered and evicted. */
#ifndef TN_RUNTIME_CLASSES_H
#define TN_RUNTIME_CLASSES_H

#include "plan/plan_cover.h"
#include "runtime/alloc.h"
#include "runtime/pools.h"

/* A class may have several plans, each serving all that those before it serve. */
typedef enum tn__class_level {
    TN__CLASS_CURRENT, /* graphs are bound with this one */
    TN__CLASS_WANTED,  /* covered, not taken yet */
    TN__CLASS_TRIAL,   /* of a call that may still fail, or that only measures */
    TN__CLASS_LEVELS
} tn__class_level;

typedef struct tn__class {
    tn__structure structure;
    uint16_t *memory_of;
    tn__cover *plans[TN__CLASS_LEVELS];
    bool reserved; /* part of what the reservation holds: never evicted */
    bool handed_out;
    bool busy; /* the running call has a pointer to it */
    uint64_t last_used;
} tn__class;

/* A graph that was bound lately: found again without computing its structure. */
typedef struct tn__known_graph {
    tn_fingerprint key;
    /* Serial number of the graph that was last compared: it need not be compared again. */
    uint64_t serial;
    uint64_t last_used;
    tn__class *class;
} tn__known_graph;
enum { TN__KNOWN_GRAPHS = 256 };

struct tn__alloc {
    tn__pools *pools;
    tn__class **classes;
    size_t n_classes, cap_classes;
    tn__known_graph known[TN__KNOWN_GRAPHS];
    size_t n_known;
    tn__cover *retired; /* plans in callers' hands that larger ones have replaced */
    tn_pack_params pack;
    bool sealed;
    uint64_t clock;
    tn__alloc_stats stats;
};

/* A graph on its way to its class. */
typedef struct tn__request {
    tn_graph *graph;
    const uint16_t *type_of;
    uint16_t *memory_of;
    tn__alloc_context context;
    tn_plan_params params;
    tn__structure structure;
    tn__extents extents;
} tn__request;
tn_status tn__request_begin(const tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of,
                            tn__request *request) TN_MUST_CHECK;
void tn__request_end(tn__request *request);

/* The plan of the highest level, which serves the most. */
tn__cover *tn__class_top(const tn__class *class);
/* The class one of whose plans, up to this level, serves the graph; or NULL. `plan` (may be NULL) receives the first
 * such plan. */
tn__class *tn__class_find(tn__alloc *alloc, const tn__request *request, tn__class_level up_to, tn__cover **plan);
/* Makes the plan that serves the graph, and with `join` all that the class serves. Chunks that exist, or that the
 * reservation wants, are filled first. */
tn_status tn__class_plan(tn__alloc *alloc, const tn__request *request, const tn__class *join,
                         const tn_pack_params *pack, tn__cover **plan) TN_MUST_CHECK;
/* Gives the plan to a class, or to a new one (NULL). The plan is freed on failure. */
tn_status tn__class_put(tn__alloc *alloc, const tn__request *request, tn__class *class, tn__class_level level,
                        tn__cover *plan, tn__class **out) TN_MUST_CHECK;
/* Finds or makes a plan at `level` that serves the graph. */
tn_status tn__class_cover(tn__alloc *alloc, const tn__request *request, tn__class_level level,
                          tn__class **class) TN_MUST_CHECK;
/* The top plan becomes the current one. */
void tn__class_settle(tn__alloc *alloc, tn__class *class);
/* Ends a trial: classes that were there before return to what they were; new ones are remembered, unreserved. */
void tn__classes_end_trial(tn__alloc *alloc);
void tn__classes_forget(tn__alloc *alloc, bool reserved_too);
/* Sizes of the chunks that exist, raised to what all reserved classes want. */
tn_status tn__classes_sizes(const tn__alloc *alloc, tn__chunk_sizes **sizes) TN_MUST_CHECK;

/* ---- Known graphs ---- */
tn__class *tn__known_find(tn__alloc *alloc, tn_graph *graph, const uint16_t *type_of);
void tn__known_add(tn__alloc *alloc, tn_graph *graph, tn__class *class);

#endif
