/* The inputs of graphs, set before every run: one table lists their tensors and values. */
#ifndef TN_LLM_INPUTS_H
#define TN_LLM_INPUTS_H

#include "llm/memory/kv_cache.h"

/* Dimensions that follow from the graph's shape. */
enum { TN__TOKENS = -1, TN__OUTPUTS = -2, TN__ADAPTERS = -3, TN__WIDTH = -4 };

/* X(NAME, function, "tensor name", TYPE, dimensions). Which graphs have the input is decided by has_<function>, its
 * values are computed by stage_<function>, both in inputs.c. */
#define TN__INPUT_TABLE(X)                                                                                           \
    X(TOKENS, tokens, "tokens", I32, TN__TOKENS)                                                                     \
    X(POSITIONS, positions, "positions", I32, TN__TOKENS)                                                            \
    X(TOKEN_TYPES, token_types, "token_types", I32, TN__TOKENS)                                                      \
    X(QUERY_CELLS, query_cells, "query_cells", I32, 2, TN__TOKENS)                                                   \
    X(QUERY_SCALES, query_scales, "query_scales", F32, 1, 1, TN__TOKENS)                                             \
    X(ROWS_FULL, rows_full, "rows.0", I32, TN__TOKENS)                                                               \
    X(ROWS_WINDOW, rows_window, "rows.1", I32, TN__TOKENS)                                                           \
    X(STATES, states, "states", F32, TN__WIDTH, TN__TOKENS)                                                          \
    X(STEPS, steps, "steps", I32, 4, TN__TOKENS)                                                                     \
    X(OUTPUT_ROWS, output_rows, "outputs", I32, TN__OUTPUTS)                                                         \
    X(ADAPTER_SCALES, adapter_scales, "adapter_scales", F32, TN__TOKENS, TN__ADAPTERS)                               \
    X(MOVE_FROM, move_from, "cells.from", I32, TN__TOKENS)                                                           \
    X(MOVE_TO, move_to, "cells.to", I32, TN__TOKENS)                                                                 \
    X(MOVE_DELTA, move_delta, "cells.delta", I32, TN__TOKENS)

typedef enum tn__input {
#define TN_X(NAME, ...) TN__INPUT_##NAME,
    TN__INPUT_TABLE(TN_X)
#undef TN_X
        TN__INPUT_COUNT
} tn__input;
_Static_assert(TN__CACHE_FULL == 0 && TN__CACHE_WINDOW == 1, "rows.N belongs to group N");

typedef enum tn__graph_kind {
    TN__GRAPH_LOGITS,     /* tokens → logits of the output rows */
    TN__GRAPH_ARGMAX,     /* tokens → argmax of the output rows */
    TN__GRAPH_CANDIDATES, /* tokens → logits of the output rows, which stay on the device, and the largest of each row
                           */
    TN__GRAPH_NEXT,       /* the argmax that the previous graph left on the device → the next argmax */
    TN__GRAPH_HIDDEN,     /* tokens → normalised hidden states of the output rows */
    TN__GRAPH_RANK,       /* tokens → the classifier's scores of the output rows */
    TN__GRAPH_PASS,       /* tokens → nothing: a micro-batch without output rows, on ranks with whole layers */
    TN__GRAPH_SHIFT,      /* cells of a cache group → the same cells, K rotated further; n_outputs is the group */
    TN__GRAPH_MOVE        /* cells of a cache group → other cells */
} tn__graph_kind;

typedef struct tn__shape {
    tn__graph_kind kind;
    int32_t n_tokens, n_outputs;
    uint32_t adapters; /* the set of adapters that the graph contains, one bit each (adapters/session_adapters.h) */
} tn__shape;
static inline bool tn__shape_is(tn__shape a, tn__shape b) {
    return a.kind == b.kind && a.n_tokens == b.n_tokens && a.n_outputs == b.n_outputs && a.adapters == b.adapters;
}
static inline bool tn__moves_cells(tn__shape shape) {
    return shape.kind == TN__GRAPH_SHIFT || shape.kind == TN__GRAPH_MOVE;
}

/* One input of one graph. */
typedef struct tn__graph_input {
    tn_tensor *tensor;
    tn__input source; /* its values, by row of the table */
    size_t bytes;
} tn__graph_input;

typedef struct tn__graph_inputs {
    tn__graph_input list[TN__INPUT_COUNT];
    size_t n;
} tn__graph_inputs;

/* A micro-batch, from which the values of all inputs follow. Graphs have `padded` rows, of which `n` are tokens. */
typedef struct tn__micro_batch {
    int32_t n, padded;
    const tn__hparams *h;
    const tn_token *tokens;
    const int32_t *positions, *seqs;
    const int32_t *lists;                  /* the tokens' page tables, if they are not those of `seqs` */
    const int32_t *rows[TN__CACHE_GROUPS]; /* the tokens' cells */
    const tn__step *steps;                 /* of recurrent layers */
    const float *states;                   /* hidden states that come with the tokens of a head */
    const int32_t *out_rows;               /* of the graph's outputs, all of them */
    int32_t n_outputs;
    /* The graph's adapters, and the session's: scales [sequence][adapter], factors of their scales. */
    uint32_t adapters;
    size_t n_adapters;
    const float *scales, *factors;
    /* Of graphs that move cells: n entries each. */
    const int32_t *move_from, *move_to, *move_delta;
} tn__micro_batch;

/* Makes the tensors of the inputs that a graph of this shape has. Errors stay in the arena. */
void tn__inputs_build(tn_arena *arena, const tn__hparams *h, const tn__kv *kv, tn__shape shape,
                      tn__graph_inputs *inputs);
tn_tensor *tn__input_tensor(const tn__graph_inputs *inputs, tn__input source); /* or NULL */
/* Bytes that the values of an input take in a graph of this shape; `width` of the hidden states of a head, or 0. */
size_t tn__input_bytes(tn__input source, tn__shape shape, int32_t width);
static inline int32_t tn__states_width(const tn__hparams *h) {
    const int32_t features = tn__feature_width(h);
    return features || h->head_layer ? features + h->n_embd : 0;
}

/* Computes the values of a graph's inputs; values[source] has tn__input_bytes() bytes. */
void tn__inputs_stage(const tn__graph_inputs *inputs, const tn__micro_batch *batch, void *const *values);
/* Writes them to the bound tensors, at once or queued (tn_stream). Inputs that the graph does not read have no memory
 * and are skipped. */
tn_status tn__inputs_set(const tn__graph_inputs *inputs, void *const *values);
tn_status tn__inputs_set_async(const tn__graph_inputs *inputs, void *const *values, tn_stream *queue);

#endif
