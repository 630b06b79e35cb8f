/* Building graphs: what the parts of a layer (src/llm/parts) are written with.
 *
 * A part takes the state of the tokens, [width, tokens], and returns what it makes of it. Constructors pass NULL
 * through and the arena keeps the first error, so that a part is an expression without checks; code that looks into a
 * tensor checks for NULL first. */
#ifndef TN_LLM_BUILD_BUILDER_H
#define TN_LLM_BUILD_BUILDER_H

#include "llm/plan/session_plan.h"

typedef struct tn__builder {
    const tn_session_plan *plan;
    const tn_model *m;
    const tn__hparams *h;
    const tn__arch *arch;
    tn_arena *a;
    tn__graph_set *set;
    tn_graph *graph;
    tn_tensor *tokens;       /* an input, or the argmax that the step before left on the device */
    tn_tensor *embedding;    /* of the tokens, before the first layer */
    tn_tensor *shared;       /* what the architecture's `begin` computes once for all layers */
    tn_tensor *layer_states; /* the states before params.state_layers, so far … */
    int32_t n_layer_states;  /* … and their number */
    tn_tensor *first_value;  /* values of the first layer (RWKV 7) */
    tn_tensor *selected;     /* positions that the last indexer selected */
    tn_tensor *router_input; /* what the MoE router of this layer reads; NULL: the input of the experts */
    tn_status status;        /* of tn__append_now */
    /* While a chunk of the rows is built: its beginning, and the number of all rows; 0: all are. */
    int64_t chunk_begin, chunk_of;
    tn_tensor **wanted_scales; /* of adapters, for the output rows: made where they are first needed */
    char suffix[40]; /* of the names of what is built now: ".3" in layer 3, ".3@128" for its rows from 128 on */
} tn__builder;

tn__builder tn__begin_graph(const tn_session_plan *plan, tn__shape shape, tn__graph_set *set);

/* ---- Pieces (build/builder.c) ---- */

tn_tensor *tn__builder_input(const tn__builder *b, tn__input source); /* NULL: graphs of this kind do not have it */
/* Names a tensor for plans, dumps and callbacks. A tensor that has a name keeps it: where a part of a layer is
 * missing, its input passes through. */
tn_tensor *tn__name_node(const tn__builder *b, tn_tensor *t, const char *what);
/* Appends a node to the graph now. Other nodes are appended in the order in which the last node's sources need them.
 */
void tn__append_now(tn__builder *b, tn_tensor *t);
tn_tensor *tn__build_norm(const tn__builder *b, tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
tn_tensor *tn__build_post_norm(const tn__builder *b, tn_tensor *x, tn_tensor *weight); /* after a part */
/* Applies a matrix's scale, its adapters and its bias to y, the result of its matmul with x. The last node has the
 * plain name. */
tn_tensor *tn__finish_linear(const tn__builder *b, tn_tensor *w, tn_tensor *x, tn_tensor *y, tn_tensor *scale,
                             tn_tensor *bias, const char *what);
tn_tensor *tn__build_linear(const tn__builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias, tn_tensor *x,
                            const char *what);
tn_tensor *tn__build_scaled(const tn__builder *b, tn_tensor *x, float scale); /* 0 and 1: as it is */
/* Columns begin … begin+n-1 of every row. */
tn_tensor *tn__build_columns(const tn__builder *b, tn_tensor *x, int64_t begin, int64_t n);

/* ---- Adapters (build/low_rank.c) ---- */

/* Whether the graph's adapters change what the weight multiplies. */
bool tn__is_adapted(const tn__builder *b, const tn_tensor *weight);
/* Adds to y, the result of a matmul of w with x, or of a lookup in w, what the graph's adapters change in it. */
tn_tensor *tn__adapt_linear(const tn__builder *b, const tn_tensor *w, tn_tensor *x, tn_tensor *y, const char *what);
tn_tensor *tn__adapt_experts(const tn__builder *b, const tn_tensor *w, tn_tensor *x, tn_tensor *ids, tn_tensor *y,
                             const char *what);
tn_tensor *tn__adapt_lookup(const tn__builder *b, const tn_tensor *w, tn_tensor *tokens, tn_tensor *y,
                            const char *what);

/* ---- Attention (parts/attention.c) ---- */

/* Rows of a head each: [size, heads, tokens] out of a matrix whose rows start at `offset` bytes. */
tn_tensor *tn__split_heads(const tn__builder *b, tn_tensor *x, int32_t size, int32_t heads, size_t offset);
tn_tensor *tn__flatten_heads(const tn__builder *b, tn_tensor *x);
/* Normalises q or k: over a whole row when the weight is as long as that, else head by head. */
tn_tensor *tn__build_head_norm(const tn__builder *b, tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               const char *what);
tn_rope_params tn__rope_params(const tn__builder *b, int32_t il);
/* On the layer's own device: such a small tensor must move neither itself nor its op to another device. */
tn_tensor *tn__layer_rope_factors(const tn__builder *b, int32_t il);
/* Rotates the heads of q or k by their positions, where the layer does that. */
tn_tensor *tn__build_rope(const tn__builder *b, int32_t il, tn_tensor *x, const char *what);
/* Queries, keys and values, [head, heads, tokens] each, normalised and rotated. */
typedef struct tn__qkv {
    tn_tensor *q, *k, *v;
} tn__qkv;
tn__qkv tn__build_qkv(tn__builder *b, int32_t il, tn_tensor *x);
/* The two steps of that: the matmuls; norms, RoPE and scales of queries. */
tn__qkv tn__build_projections(tn__builder *b, int32_t il, tn_tensor *x);
tn__qkv tn__norm_and_rotate(const tn__builder *b, int32_t il, tn__qkv x);
tn_attention_params tn__attention_params(const tn__builder *b, int32_t il);
/* Stores k and v in the layer's cells (NULL: they are there, or another layer's). Returns the sources of attention
 * over what the sequence holds, and sets the page of its parameters. */
tn_attention_sources tn__build_cells(tn__builder *b, int32_t il, const tn__qkv *x, tn_attention_params *params);
/* From the result of attention over cells to that of the layer. */
tn_tensor *tn__finish_attend(const tn__builder *b, int32_t il, tn_tensor *y);
/* All of these: [head, heads, tokens]. */
tn_tensor *tn__build_attend(tn__builder *b, int32_t il, const tn__qkv *x, const tn_attention_params *params);
/* All of it, with the output matrix. */
tn_tensor *tn__build_attention(tn__builder *b, int32_t il, tn_tensor *x);

/* ---- Feed-forward (parts/feed_forward.c, parts/experts.c, parts/activation.c) ---- */

/* Experts that tokens use: [used, tokens]; probabilities of all of them: [experts, tokens]. */
typedef struct tn__expert_choice {
    tn_tensor *ids, *weights, *probs;
} tn__expert_choice;
tn__expert_choice tn__build_choice(const tn__builder *b, const tn__layer *l, tn_tensor *logits);
/* Normalised and scaled, as the model has it. */
tn_tensor *tn__build_expert_weights(const tn__builder *b, tn_tensor *weights);

/* In the feed-forward part a matrix's scale covers its bias too. */
tn_tensor *tn__build_ffn_linear(const tn__builder *b, tn_tensor *w, tn_tensor *scale, tn_tensor *bias, tn_tensor *x,
                                const char *what);
/* The activation of a feed-forward part without gates (parts/activation.c). */
tn_tensor *tn__build_activation(const tn__builder *b, const tn__layer *l, tn_tensor *x);
/* act(gate) · up; without `up` the rows of `gate` hold both. */
/* Up to ±limit, and the activated gate up to the limit; 0: no limit. */
tn_tensor *tn__build_gated(const tn__builder *b, tn_tensor *gate, tn_tensor *up, float limit);
/* The result of a part of a layer. If `partial`, every rank has one addend of it, and the sum over ranks is still to
 * be taken. */
typedef struct tn__part_result {
    tn_tensor *y;
    bool partial;
} tn__part_result;
tn__part_result tn__build_dense_part(const tn__builder *b, const tn__layer *l, tn_tensor *x);
tn__part_result tn__build_experts_part(const tn__builder *b, int32_t il, tn_tensor *x);
tn__part_result tn__build_feed_forward_part(const tn__builder *b, int32_t il, tn_tensor *x); /* dense or experts */
/* The same, summed over ranks. */
tn_tensor *tn__build_dense_ffn(const tn__builder *b, const tn__layer *l, tn_tensor *x);
tn_tensor *tn__build_experts(const tn__builder *b, int32_t il, tn_tensor *x);
tn_tensor *tn__build_feed_forward(const tn__builder *b, int32_t il, tn_tensor *x);
/* x + ffn(norm(x)), in chunks of tokens that add to x in place. */
tn_tensor *tn__build_serial_ffn(tn__builder *b, int32_t il, tn_tensor *x);

/* The most chunks that a layer's feed-forward part has. */
size_t tn__ffn_most_chunks(const tn_session_plan *plan, int32_t n_tokens);

/* ---- Layers (build/graph.c) ---- */

/* The layer that the switches of the architecture describe: from the state before it to the state after it. */
tn_tensor *tn__build_layer(tn__builder *b, int32_t il, tn_tensor *x);
/* What mixes the tokens of a layer: attention, or the layer's own mixer. */
tn_tensor *tn__build_mixer(tn__builder *b, int32_t il, tn_tensor *x);
tn__part_result tn__build_mixer_part(tn__builder *b, int32_t il, tn_tensor *x);
/* After the last layer's mixer only the output rows are computed further: those rows of x, or x. */
tn_tensor *tn__build_wanted(const tn__builder *b, int32_t il, tn_tensor *x, const char *what);

/* ---- Ranks (ranks/collectives.c) ---- */

/* What of the layer is divided among ranks; nothing where there is one. */
const tn__layer_division *tn__division_of(const tn__builder *b, int32_t il);
/* The sum of x over ranks; x itself where it is not divided. */
tn_tensor *tn__sum_ranks(const tn__builder *b, bool divided, tn_tensor *x, const char *what);
tn_tensor *tn__sum_result(const tn__builder *b, tn__part_result result, const char *what);
/* The sum of two results. It stays partial if both are: then one collective sums both. */
tn__part_result tn__add_results(const tn__builder *b, tn__part_result one, tn__part_result other, const char *what);
/* This rank's rows of the output matrix, and all logits from those of the ranks. */
tn_tensor *tn__vocabulary_slice(const tn__builder *b, tn_tensor *head);
tn_tensor *tn__gather_vocabulary(const tn__builder *b, tn_tensor *logits);
/* To the next rank, and from the one before: [width, rows], after `after` (NULL: at once) (ranks/layers.c). */
tn_tensor *tn__send_state(const tn__builder *b, tn_tensor *x, const char *what);
tn_tensor *tn__receive_state(const tn__builder *b, tn_tensor *after, int64_t width, int64_t rows, const char *what);
/* Numbers of experts, counted from this rank's first one; those of others are out of range. */
tn_tensor *tn__own_experts(const tn__builder *b, int32_t il, tn_tensor *ids);

/* A head's layer begins with the embedding of a token and the model's state after the token before (parts/nextn.c).
 */
tn_tensor *tn__build_head_input(const tn__builder *b, tn_tensor *embedding);

/* ---- Recurrent state ---- */

/* State number 0 or 1 of a layer, [size, rows]; `steps` names the rows (inputs.h). */
tn_tensor *tn__layer_state(const tn__builder *b, int32_t il, int number);

#endif
