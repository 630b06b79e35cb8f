/* The mixers of layers that are not attention alone. An architecture's `read` gives them to its layers. */
#ifndef TN_LLM_PARTS_MIXERS_H
#define TN_LLM_PARTS_MIXERS_H

#include "llm/build/builder.h"
#include "tenon/recurrent.h"

extern const tn__mixer tn__mamba, tn__mamba2, tn__mamba2_and_attention, tn__short_conv, tn__delta_net,
    tn__gated_attention, tn__latent_attention, tn__expanded_latent_attention, tn__kda, tn__lightning_attention,
    tn__plamo_mamba, tn__block_sparse_attention, tn__rwkv6, tn__rwkv7;

/* Whether the hyper-parameters describe such layers: TN_E_FORMAT. */
tn_status tn__check_mamba(const tn_gguf *file, const tn__hparams *h);
tn_status tn__check_mamba2(const tn_gguf *file, const tn__hparams *h);

/* Reads the keys and gives the mixer to all layers without heads of attention. */
tn_status tn__read_kda(const tn_gguf *file, tn__hparams *h);

/* RWKV (rwkv/rwkv.c): for tn__arch.begin and tn__arch.layer; reads the keys and gives the mixer to all layers. */
tn_tensor *tn__rwkv_begin(tn__builder *b, tn_tensor *x);
tn_tensor *tn__build_rwkv_layer(tn__builder *b, int32_t il, tn_tensor *x);
tn_status tn__read_rwkv(const tn_gguf *file, tn__hparams *h, const tn__mixer *mixer);

/* ---- Indexers (indexer.c) ---- */

/* Adds the row of an indexer's key to the cells of a layer that has an indexer. */
void tn__indexer_memory(const tn__hparams *h, int32_t il, struct tn__layer_memory *m);
tn_rope_params tn__index_rope_params(const tn__builder *b, int32_t il);
/* Positions for every query, [k, tokens], from what queries are made of and the layer's input; NULL: all. */
tn_tensor *tn__build_selection(tn__builder *b, int32_t il, tn_tensor *q_low, tn_tensor *x);
/* Reads the keys that indexers share. */
tn_status tn__read_indexer(const tn_gguf *file, tn__hparams *h);
/* TN_E_FORMAT where a layer uses an earlier selection that does not exist. */
tn_status tn__check_indexers(const tn_gguf *file, const tn__hparams *h);

/* ---- Embeddings of every layer (layer_embedding.c) ---- */

/* Of all layers, [size, layers, tokens], from the model's embedding; NULL where the model has none. */
tn_tensor *tn__build_layer_embeddings(tn__builder *b, tn_tensor *x);
/* What layer `il` makes of its part of b->shared and of x, [width, tokens]; NULL where the model has none. */
tn_tensor *tn__build_layer_embedding(tn__builder *b, int32_t il, tn_tensor *x);

/* ---- Alternating updates (residual/altup.c): several copies of the state, [width, tokens, copies] ---- */

tn_tensor *tn__altup_begin(tn__builder *b, tn_tensor *x); /* from the embedding */
tn_tensor *tn__altup_end(tn__builder *b, tn_tensor *x);   /* to one state, of the output rows */
tn_tensor *tn__altup_first(const tn__builder *b, tn_tensor *x);
tn_tensor *tn__altup_predict(tn__builder *b, int32_t il, tn_tensor *x);
/* x: what the layer has made of the first of the predicted copies. */
tn_tensor *tn__altup_correct(tn__builder *b, int32_t il, tn_tensor *predicted, tn_tensor *x);
/* Adds y, [width, tokens], to all copies but the first. */
tn_tensor *tn__altup_add_to_rest(tn__builder *b, tn_tensor *x, tn_tensor *y);
/* A branch of low rank beside attention: x and what it makes of x. */
tn_tensor *tn__build_laurel(tn__builder *b, int32_t il, tn_tensor *x);

/* ---- Attention residuals (residual/attention_residuals.c) ---- */

/* x and the kept states, mixed by their scores; x where no state is kept. */
tn_tensor *tn__build_residual_mix(const tn__builder *b, tn_tensor *x, tn_tensor *weight, const char *what);
tn_tensor *tn__build_residual_layer(tn__builder *b, int32_t il, tn_tensor *x); /* for tn__arch.layer */
tn_tensor *tn__build_residual_end(tn__builder *b, tn_tensor *x);               /* for tn__arch.end */

/* ---- Latent attention (latent_attention.c) ---- */

typedef struct tn__latent {
    tn_tensor *q;     /* [latent_k, heads, tokens], not rotated */
    tn_tensor *q_low; /* what q was made from */
    tn_tensor *row;   /* [kv_rank, tokens]: from which keys and values follow */
    tn_tensor *key;   /* [rotated, 1, tokens]: the part of the keys that all heads share */
} tn__latent;
tn__latent tn__build_latent(tn__builder *b, int32_t il, tn_tensor *x);
float tn__latent_scale(const tn__builder *b, int32_t il); /* of the scores */
/* Stores the rows and attends to them, or to the selected positions: all heads' values, [heads*latent_v, tokens]. */
tn_tensor *tn__build_latent_attend(tn__builder *b, int32_t il, const tn__latent *x, tn_tensor *selected);
/* Reads the keys and gives the mixer to all layers that attend and have none. */
tn_status tn__read_latent(const tn_gguf *file, tn__hparams *h);

#endif
