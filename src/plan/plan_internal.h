/* The plan object and the steps of its creation. */
#ifndef TN_PLAN_INTERNAL_H
#define TN_PLAN_INTERNAL_H

#include "tenon/plan.h"

/* The kind of a tensor, for pictures and lists. */
typedef enum tn__plan_kind {
    TN__KIND_EXTERNAL,
    TN__KIND_VIEW,
    TN__KIND_INPUT,
    TN__KIND_OUTPUT,
    TN__KIND_LEAF,
    TN__KIND_MATMUL,
    TN__KIND_ATTENTION,
    TN__KIND_NORM,
    TN__KIND_ELEMENT,
    TN__KIND_OTHER,
    TN__KIND_COUNT
} tn__plan_kind;
extern const char *const tn__plan_kinds[TN__KIND_COUNT];

/* One memory's part of a plan. */
typedef struct tn__plan_part {
    char name[64];
    size_t alignment, max_chunk;
    size_t n_chunks;
    size_t *chunk_sizes;
    size_t lower_bound;
    bool optimal;
    uint64_t steps;
} tn__plan_part;

struct tn_plan {
    size_t n_nodes, n_leaves;
    tn_plan_entry *entries;
    uint32_t *until; /* last step of a tensor's memory, including tensors computed in place of it */
    uint8_t *kinds;  /* tn__plan_kind */
    size_t *labels;  /* offset of a tensor's label in `text` */
    char *text;
    size_t text_size;
    size_t n_parts;
    tn__plan_part *parts;
};

static inline bool tn__plan_owns(const tn_plan_entry *entry) {
    return entry->memory >= 0 && entry->inplace_of == TN_GRAPH_NONE;
}

/* Tensor i of a graph in the numbering of plans: nodes, then leaves. */
static inline const tn_tensor *tn__plan_tensor(const tn_graph *graph, size_t i) {
    size_t n = tn_graph_node_count(graph);
    return i < n ? tn_graph_node(graph, i) : tn_graph_leaf(graph, i - n);
}
static inline const tn_tensor *tn__root(const tn_tensor *t) { return t->view_src ? t->view_src : t; }

/* Bytes of a tensor in a memory, rounded up to its alignment. */
tn_status tn__plan_bytes(const tn_plan_params *params, size_t memory, size_t index, const tn_tensor *t,
                         size_t *bytes);
/* Mask of the sources in place of which node i may be computed. */
static inline uint32_t tn__plan_mask(const tn_plan_params *params, const tn_tensor *t, size_t i) {
    return params->inplace_mask ? params->inplace_mask(params->user, t, i) : tn_op_inplace_mask(t->op);
}
tn_status tn__plan_check_params(const tn_graph *graph, const tn_plan_params *params);

/* An empty plan for the given number of tensors and memories. */
tn_status tn__plan_new(size_t n_nodes, size_t n_leaves, size_t n_parts, tn_plan **plan);

/* Copies kinds and labels, so that the plan does not refer to the graph. */
tn_status tn__plan_describe(tn_plan *plan, const tn_graph *graph);
/* Copies name, alignment and limit of a memory. */
void tn__plan_begin_part(tn__plan_part *part, const tn_plan_memory *memory);

/* Fills memory, size, first, last and inplace_of of every entry, and `until`, from the graph. The packer sets
 * offsets. */
tn_status tn__plan_liveness(const tn_graph *graph, const tn_plan_params *params, tn_plan_entry *entries,
                            uint32_t *until);

#endif
