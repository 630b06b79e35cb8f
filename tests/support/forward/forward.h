/* The whole forward pass of a model in double precision, token after token and head after head, from the weights and
 * keys of its file. It is the reference for tiny models of every causal architecture: slow, obvious, and without a
 * line of the library but the reader of GGUF files. */
#ifndef TN_TESTS_FORWARD_H
#define TN_TESTS_FORWARD_H

#include "tenon/gguf.h"
#include "tenon/tokenizer.h"

#include <stdbool.h>

/* Limits of what the reference computes. */
enum { FORWARD_TOKENS = 24, FORWARD_WIDTH = 64, FORWARD_MOST = 512, FORWARD_LAYERS = 16 };

typedef enum forward_rope { ROPE_NONE, ROPE_NEIGHBOURS, ROPE_HALVES } forward_rope;
typedef enum forward_activation {
    ACT_SILU_GATE, /* the gates multiply the other matrix's result */
    ACT_GELU_GATE,
    ACT_RELU_GATE,
    ACT_OAI_GATE,
    ACT_SITU_GATE,
    ACT_GELU, /* the others are all there is between two matrices */
    ACT_GELU_ERF,
    ACT_RELU2,
    ACT_XIELU
} forward_activation;
/* Where the feed-forward part reads: after attention's sum, or the same as attention, or the state with its own norm.
 */
typedef enum forward_flow { FLOW_SERIAL, FLOW_PARALLEL, FLOW_PARALLEL_NORM } forward_flow;
typedef enum forward_gating { GATE_SOFTMAX, GATE_SIGMOID, GATE_SOFTMAX_OF_CHOSEN, GATE_MIXER } forward_gating;
typedef enum forward_kind { /* of a layer's mixer */
                            MIX_NOTHING,
                            MIX_ATTENTION,
                            MIX_MATRIX,
                            MIX_LATENT,
                            MIX_MAMBA,
                            MIX_MAMBA2,
                            MIX_BOTH, /* Mamba-2 and attention */
                            MIX_PLAMO,
                            MIX_CONV,
                            MIX_DELTA,
                            MIX_KDA,
                            MIX_LIGHTNING
} forward_kind;

/* What the file of a family does not say. */
typedef struct forward_family {
    const char *arch;
    forward_rope rope;
    forward_activation act;
    bool mean;       /* norms subtract the mean */
    bool bare;       /* norms without weights before each part and at the end */
    bool qk_after;   /* norms of q and k after RoPE */
    bool post_names; /* the feed-forward part's norm is called post_attention_norm */
    forward_flow flow;
    forward_gating gating;
    bool sum_to_one; /* the weights of the experts in use */
    int period;      /* of windows: one layer in so many sees everything; 0: none does */
    bool full_first; /* … the first of a period, otherwise the last */
    bool listed;     /* windows only in layers that the file lists */
    bool rope_in_windows;
    forward_kind without_heads; /* the mixer of layers without key/value heads */
} forward_family;

const forward_family *forward_find(const char *arch);

typedef struct forward_layer {
    forward_kind kind;
    int heads, kv_heads, head_k, head_v, rotated, window;
    double base;
    bool rope, experts;
    int cells_of; /* the layer whose keys and values this one reads, or -1 */
} forward_layer;

typedef double forward_rows[FORWARD_TOKENS][FORWARD_MOST];

typedef struct forward_model {
    const tn_gguf *file;
    const forward_family *f;
    int tokens, width, vocab, layers, stored; /* stored layers run several times in one family */
    bool causal;
    double eps;
    forward_layer layer[FORWARD_LAYERS];
    const tn_token *token;
    forward_rows keys[FORWARD_LAYERS], values[FORWARD_LAYERS];
    forward_rows embedding, per_layer; /* the latter: embeddings that layers have of their own */
    double kept[FORWARD_LAYERS][FORWARD_TOKENS][FORWARD_MOST]; /* states of attention residuals */
    int n_kept;
    bool selected[FORWARD_TOKENS][FORWARD_TOKENS]; /* by the last indexer */
} forward_model;

/* Logits of all tokens, [n][n_vocab]. False for a family that it does not know, or a model that is too large. */
bool forward_logits(const tn_gguf *file, const tn_token *tokens, int n, double *logits);

/* ---- Between the files of this folder ---- */

bool forward_is(const forward_model *m, const char *arch);
double forward_key(const forward_model *m, const char *name, double missing);
double forward_key_at(const forward_model *m, const char *name, int layer, double missing);
bool forward_has_key(const forward_model *m, const char *name);
/* A layer of -1 is the model itself. NULL where the file has no such tensor. */
const tn_gguf_tensor *forward_tensor(const forward_model *m, int layer, const char *name);
const float *forward_weight(const forward_model *m, int layer, const char *name);
/* y = M x + b with "NAME.weight" and "NAME.bias" of expert `e` (0 for others). The number of rows, 0 without M. */
int forward_linear(const forward_model *m, int layer, const char *name, int e, const double *x, double *y);
void forward_norm(const forward_model *m, bool mean, const float *w, const float *b, int n, double eps, double *x);
/* The family's norm of this name, if the model has it. */
bool forward_norm_named(const forward_model *m, int layer, const char *name, int n, double *x);
void forward_rotate(forward_rope kind, int dims, double base, int position, double *x);
double forward_silu(double x);
double forward_sigmoid(double x);
double forward_softplus(double x);
double forward_gelu(double x); /* with the tangent */
double forward_gated(const forward_model *m, double gate, double up);

/* In place: the normalised input of all tokens becomes the mixer's result. */
void forward_attention(forward_model *m, int il, forward_rows x);
void forward_latent(forward_model *m, int il, forward_rows x);
void forward_recurrent(forward_model *m, int il, forward_rows x);
/* One token's feed-forward part in place. The router reads `state`. */
void forward_feed(const forward_model *m, int il, const double *state, double *x);
void forward_dense(const forward_model *m, int il, double *x);
void forward_experts(const forward_model *m, int il, const double *state, double *x);
void forward_select(forward_model *m, int il, const forward_rows q_low, const forward_rows x, int list);
/* Whole layers that are unlike the others; begin returns false where they are not. */
bool forward_special_begin(forward_model *m, forward_rows x);
void forward_special_layer(forward_model *m, int il, forward_rows x);
void forward_special_end(forward_model *m, forward_rows x);
void forward_rwkv_layer(forward_model *m, int il, forward_rows x);
void forward_mix(forward_model *m, int il, forward_rows x);

#endif
