/* Sequence memory: a page table for every group of layers with cells, the table of recurrent states, and the tensors
 * behind them. */
#ifndef TN_LLM_MEMORY_KV_CACHE_H
#define TN_LLM_MEMORY_KV_CACHE_H

#include "llm/memory/cache_types.h"
#include "llm/memory/page_table.h"
#include "llm/memory/recurrent.h"
#include "llm/model_internal.h"

/* Layers with a window may have fewer cells than the others: two groups of layers, each with pages of its own. */
enum { TN__CACHE_FULL, TN__CACHE_WINDOW, TN__CACHE_GROUPS };

/* What one layer stores of a sequence: the fields that are not 0 determine its kind of memory. */
typedef struct tn__layer_memory {
    int32_t k, v;   /* elements of a cell's rows; without v, V is part of K's row (latent attention) */
    int32_t x;      /* elements of a further row of a cell: keys of an indexer */
    int32_t head_k; /* of these, the elements of a head, which blocks of a type and rotation must divide */
    int32_t head_v;
    int32_t window;   /* cells that attention sees; 0: all */
    int32_t from;     /* the layer whose cells this layer reads; itself, unless it stores none */
    int32_t state[2]; /* floats of recurrent state per sequence */
} tn__layer_memory;
tn__layer_memory tn__layer_memory_of(const tn__hparams *h, int32_t il);

enum { TN__CELL_TENSORS = 3, TN__STATE_TENSORS = 2, TN__LAYER_TENSORS_MOST = TN__CELL_TENSORS + TN__STATE_TENSORS };
typedef struct tn__kv_layer {
    tn_tensor *k, *v, *x;                /* [elements, cells], or NULL */
    tn_tensor *state[TN__STATE_TENSORS]; /* f32 [elements, rows], or NULL */
    int32_t from;                        /* the layer that owns the cells */
    int group, device;                   /* of the cells and states */
    int32_t rotate_k, rotate_v;          /* blocks in which rows are rotated; 0: they are not */
} tn__kv_layer;

typedef struct tn__kv_buffer {
    tn_buffer *buffer;
    size_t device;
} tn__kv_buffer;

typedef struct tn__kv {
    tn__page_table groups[TN__CACHE_GROUPS];
    tn__recurrent states;
    tn__kv_layer *layers;
    int32_t n_layer, n_seqs;
    size_t n_devices;
    tn_tensor **tables;  /* [group][device]: the page table on the device, or NULL */
    tn_tensor **factors; /* per device: a copy of the model's RoPE factors; NULL where the originals are */
    const tn_tensor *factors_from;
    /* Graphs of one token leave the argmax here, and the sum of its logits: the next graph reads it on the device. */
    tn_tensor *argmax;
    /* Graphs with candidates store them here: tokens, logits and sums, each `candidates_part` words. NULL: none.
     */
    tn_tensor *candidates;
    int64_t candidates_part;
    int argmax_device; /* of both */
    tn_arena *arena;
    tn__kv_buffer *buffers; /* as few per device as its largest allocation allows */
    size_t n_buffers;
} tn__kv;

typedef struct tn__kv_params {
    const tn_model *model;
    int32_t n_ctx, n_ubatch, n_seqs;
    int32_t page;                     /* cells per page */
    int32_t n_kept, n_checkpoints;    /* prefixes; how many of their windows fit */
    int32_t n_guess;                  /* guessed tokens of a sequence that can be rolled back */
    int32_t n_branches;               /* of trees of them, in all sequences */
    const tn_session_params *session; /* types of the cache */
    tn_buffer_type *const *types;     /* per device */
    const int *device_of_layer;
    size_t n_devices;
    const tn_tensor *factors; /* RoPE factors that all layers share, or NULL, and their device */
    int factors_device;
    int output_device;
    int32_t n_candidates;
} tn__kv_params;

/* Makes tensors and sizes page tables; takes no device memory yet. */
tn_status tn__kv_new(const tn__kv_params *params, tn__kv *kv);
tn_status tn__kv_sizes(const tn__kv *kv, tn_buffer_type *const *types, size_t *sizes);
/* Host memory of the page tables. */
tn_status tn__kv_host_bytes(const tn__kv *kv, size_t *bytes);
/* TN_E_TOO_BIG when one tensor is larger than the largest allocation of its memory. */
tn_status tn__kv_check(const tn__kv *kv, tn_buffer_type *const *types);
tn_status tn__kv_allocate(tn__kv *kv, tn_buffer_type *const *types);
void tn__kv_free(tn__kv *kv);
/* The cache's tensors on one device are tn__kv_tensor(kv, device, 0 … tn__kv_tensor_count(kv) - 1); some are NULL. */
size_t tn__kv_tensor_count(const tn__kv *kv);
tn_tensor *tn__kv_tensor(const tn__kv *kv, size_t device, size_t i);

/* The cell tensors (0 … TN__CELL_TENSORS-1), then the states that a layer owns; NULL where it has none. */
tn_tensor *tn__kv_layer_tensor(const tn__kv *kv, int32_t layer, int i);

/* Allocates a cell for every token and lists the cells, one list per group, and the steps of recurrent layers.
 * TN_E_FULL: nothing has changed. */
tn_status tn__kv_take(tn__kv *kv, int32_t n, const int32_t *positions, const int32_t *seqs, int32_t *const *rows,
                      tn__step *steps);
/* Sends what has changed in the page tables to the devices, and to other ranks (ranks/lead.h). */
struct tn__notes;
tn_status tn__kv_send_tables(tn__kv *kv, struct tn__notes *notes);

#endif
