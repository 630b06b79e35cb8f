/* What the files of this module share. */
#ifndef TN_SPEED_INTERNAL_H
#define TN_SPEED_INTERNAL_H

#include "tenon/speed.h"

/* A rate for this many rows, from rates at tn_speed_rows(). */
double tn__speed_between(const double rates[TN_SPEED_POINTS], double rows);

/* Bytes of a key and its part of V in the caches that attention is measured with: 2 × 128 f16 numbers. */
enum { TN__KEY_BYTES = 512 };

/* ---- What a node does (cost.c) ---- */

typedef enum tn__cost_kind {
    TN__COST_MULTIPLY,
    TN__COST_EXPERTS,
    TN__COST_ATTENTION,
    TN__COST_RECURRENT,
    TN__COST_OTHER
} tn__cost_kind;

typedef struct tn__cost {
    tn__cost_kind kind;
    tn_type type;      /* of the weights */
    double rows;       /* activation rows per matrix of weights */
    double weights;    /* bytes of weights or cache */
    double bytes;      /* everything that is read or written, with the weights */
    double operations; /* of matmuls and attention */
    double keys;       /* of attention: cells times key/value heads, */
    double scores;     /* …and a head of a row times a cell */
} tn__cost;
tn__cost tn__node_cost(const tn_tensor *node, const tn_predict_params *params);
/* The expected number of experts that the ids name, if tokens choose them evenly and independently. */
double tn__experts_in_use(const tn_tensor *ids, double n_experts);

/* ---- Prediction (predict.c) ---- */

/* The same with these peaks for every stream. */
tn_status tn__predict_with(tn_sched *sched, tn_graph *graph, const tn_predict_params *params,
                           const tn_device_speed *speeds, tn_prediction *prediction);

/* ---- Measuring graphs (stack.c) ---- */

/* A stack of transformer layers with the ops of a language model's graph, in memory of its own. Rates are taken from
 * such stacks and not from single ops, because devices fuse neighbouring nodes. */
typedef struct tn__stack_shape {
    tn_type type; /* of all matrices */
    int64_t width, heads, kv_heads, head, ffn, layers, cells;
    int64_t experts, used; /* 0: none */
    int64_t rows;          /* of the graph */
} tn__stack_shape;

typedef struct tn__stack_layer {
    tn_tensor *attn_norm, *q, *k, *v, *o, *ffn_norm, *up, *gate, *down, *k_cache, *v_cache;
    tn_tensor *router, *q_norm, *k_norm; /* with experts */
} tn__stack_layer;

typedef struct tn__stack {
    tn__stack_shape shape;
    tn_sched *sched;
    tn_arena *tensors, *arena; /* of weights and cache; of the graph */
    tn__stack_layer *layers;
    int64_t used_layers; /* by the graph */
    bool filled;
    tn_graph *graph;
    tn_buffer *buffers[3]; /* matrices, small weights, caches */
    tn_tensor *positions, *q_pos, *pages, *cell_rows, *x, *result;
    int32_t *ints;
    float *floats;
} tn__stack;

/* Takes the memory, from the scheduler's first device. A failed call leaves an empty stack. */
tn_status tn__stack_new(tn_sched *sched, const tn__stack_shape *shape, tn__stack *stack);
/* Makes the graph of the first layers for this many rows; the scheduler forgets all others. TN_E_UNSUPPORTED: the
 * device does not compute all of it. */
tn_status tn__stack_prepare(tn__stack *stack, int64_t layers, int64_t rows);
void tn__stack_free(tn__stack *stack);
/* Runs it once with n_past cells in the cache before the rows. */
tn_status tn__stack_run(tn__stack *stack, int64_t n_past);
double tn__stack_weight_bytes(const tn__stack_shape *shape); /* of all matrices */
double tn__stack_bytes(const tn__stack_shape *shape);        /* with the caches */

#endif
