/* A model divided by rows among ranks: which slice of every matrix this rank has. */
#ifndef TN_LLM_RANKS_DIVISION_H
#define TN_LLM_RANKS_DIVISION_H

#include "tenon/gguf.h"
#include "tenon/net/net.h"
#include "tenon/tensor.h"

struct tn_model;

/* What a rank has of a tensor of the file: ranges of one axis, one after the other. n = 0: all of it. */
enum { TN__SLICE_RANGES = 3 };
typedef struct tn__slice {
    int axis, n;
    int64_t begin[TN__SLICE_RANGES], end[TN__SLICE_RANGES];
} tn__slice;
/* Reads bytes offset … offset+size-1 of the slice. */
tn_status tn__slice_read(const tn_gguf *file, const tn_gguf_tensor *info, const tn__slice *slice, size_t offset,
                         void *to, size_t size);
/* Where the slice begins in the file's data if it is contiguous there; SIZE_MAX: it is not. */
size_t tn__slice_start(const tn_gguf_tensor *info, const tn__slice *slice);

/* The divided parts of a layer. Every rank computes the others. */
typedef struct tn__layer_division {
    bool mixer, dense, experts, shared; /* results are sums over ranks */
    int32_t first_expert;
} tn__layer_division;

typedef struct tn__division {
    tn_net *net; /* NULL: a rank that is only planned */
    int rank, n_ranks;
    /* Ranks of a stage have the same layers and divide every matrix of them: n_ranks = n_stages ·
     * stage_size. */
    int stage, n_stages, rank_in_stage, stage_size;
    int stage_ranks;            /* as in tn_model_params */
    tn_net *stage_net;          /* between the ranks of this stage */
    tn__layer_division *layers; /* NULL: nothing is divided */
    bool vocabulary;            /* rows of the output matrix are */
    int64_t first_row, end_row;
    size_t row_bytes[TN_NET_RANKS_MOST]; /* of every rank's slice of a row of logits */
    float shares[TN_NET_RANKS_MOST];     /* as in tn_model_params */
    bool by_layers;                      /* there are several stages */
    int32_t first_layer, end_layer;
} tn__division;

/* Takes this rank's slices: shrinks the tensors and hyperparameters of the model, which has found all its weights. */
tn_status tn__divide(struct tn_model *model);
/* The fraction, 0 to 1, of all layers that belong to stages before this one. */
double tn__share_before_stage(const tn__division *division, int stage);
tn_status tn__divide_layers(struct tn_model *model); /* of it: by layers (layers.c) */
/* Whether this rank computes the layer, the embedding, and what follows the last layer. */
static inline bool tn__holds_layer(const tn__division *d, int32_t il) {
    return !d->by_layers || (il >= d->first_layer && il < d->end_layer);
}
static inline bool tn__holds_start(const tn__division *d) { return !d->by_layers || d->stage == 0; }
static inline bool tn__holds_end(const tn__division *d) { return !d->by_layers || d->stage == d->n_stages - 1; }
/* Memory of the transport between the ranks of this stage. */
size_t tn__division_bytes(const tn__division *division);
void tn__division_free(tn__division *division);

#endif
