/* Internals of tensors and graphs: layout of arenas and graphs, shape rules, construction of nodes. */
#ifndef TN_TENSOR_INTERNAL_H
#define TN_TENSOR_INTERNAL_H

#include "tenon/graph.h"

#include "base/hash.h"

/* The header of an object in an arena; the payload follows. */
typedef enum tn__object_kind { TN__OBJECT_TENSOR, TN__OBJECT_GRAPH, TN__OBJECT_BYTES } tn__object_kind;
typedef struct tn__object {
    struct tn__object *next;
    tn__object_kind kind;
} tn__object;

/* Stored at the start of its own pool, so that an arena in the caller's memory allocates nothing. */
struct tn_arena {
    size_t size;
    size_t used;
    tn__object *first, *last;
    size_t n_tensors;
    bool owns_memory;
    bool no_alloc;
    bool repeatable;
    tn_status status;
    char error[512];
};

enum { TN__OBJECT_ALIGN = 16 };
_Static_assert(sizeof(tn__object) % TN__OBJECT_ALIGN == 0, "the payload after a header must be aligned");

/* Allocates an object with `size` bytes of payload and returns the payload. On failure returns NULL; the arena keeps
 * the error. */
void *tn__arena_object(tn_arena *arena, tn__object_kind kind, size_t size);

/* Stores the calling thread's current error in the arena, unless it already has one. Returns NULL. */
void *tn__arena_fail(tn_arena *arena, tn_status status);

/* A shape rule: given op, params and sources of `t`, sets its type and ne and, for views, nb, view_src and
 * view_offset. */
typedef tn_status (*tn__shape_rule)(tn_tensor *t);
extern const tn__shape_rule tn__shape_rules[TN_OP_COUNT];

/* Properties of a result that its sources do not determine. */
typedef struct tn__wanted {
    tn_type type;
    int n_dims;
    int64_t ne[TN_MAX_DIMS];
    size_t nb[TN_MAX_DIMS];
    size_t offset;
} tn__wanted;

/* Builds a node according to the op table: checks the number of sources, applies the shape rule, allocates. Optional
 * sources, `params` and `wanted` may be NULL. */
tn_tensor *tn__op_new(tn_arena *arena, tn_op op, tn_tensor *const *src, int n_src, const tn_op_params *params,
                      const tn__wanted *wanted);

/* Fails with the op's name, the reason and the shapes of all sources. */
tn_status tn__op_fail(const tn_tensor *t, tn_status status, const char *format, ...) TN_PRINTF(3, 4);

/* Contiguous strides for type and ne. False if a size overflows or dimension 0 is not a multiple of the block. */
bool tn__set_strides(tn_type type, const int64_t *ne, size_t *nb);

typedef struct tn__walk_frame {
    tn_tensor *tensor;
    int32_t next; /* index of the source to visit next */
} tn__walk_frame;

/* The gradients of tensors, after tn_graph_backward. */
typedef struct tn__gradients {
    tn__ptr_map map; /* tensor → number in the list */
    tn_tensor **list;
} tn__gradients;

struct tn_graph {
    size_t capacity; /* of nodes, and of leaves */
    size_t n_nodes, n_leaves;
    tn_tensor **nodes, **leaves;
    tn__walk_frame *stack; /* room for one frame per tensor */
    tn__ptr_map map;       /* tensor → number in the order of the visit, see graph.c */
    uint32_t *uses;        /* by map slot */
    uint64_t serial;       /* identifies this content: new for every graph and every change, never used twice */
    bool has_fingerprint;
    tn_fingerprint fingerprint;
    tn__gradients *gradients; /* or NULL */
};

/* tn_graph_add for several tensors: all of them, or none. */
tn_status tn__graph_add_all(tn_graph *graph, tn_tensor *const *tensors, size_t count);

#endif
