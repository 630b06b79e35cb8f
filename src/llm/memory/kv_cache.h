/* The KV cache: cells that sequences share, and the tensors behind them. */
#ifndef TN_LLM_MEMORY_KV_CACHE_H
#define TN_LLM_MEMORY_KV_CACHE_H

#include "llm/model_internal.h"

/* Layers with a window may have fewer cells than the others: two groups of layers, each with cells of its own. */
enum { TN__CACHE_FULL, TN__CACHE_WINDOW, TN__CACHE_GROUPS };

/* The position and the sequences of every cell. One set of cells serves all layers of a group. */
typedef struct tn__cells {
    int32_t n; /* 0: the group is not used */
    int32_t window;
    int32_t words;     /* of sequence bits */
    int32_t *meta;     /* [n][1 + words]: position (-1: empty), then bits; the layout of attention's k_pos */
    int32_t used, end; /* cells in use; one past the highest in use */
    int32_t *last;     /* by sequence: the cell it took last, -1 when that may have changed */
    uint32_t changes;  /* of meta so far */
    /* Cells whose metadata was not yet sent to the devices: a range, and a list as long as they are few. */
    int32_t dirty_first, dirty_end;
    int32_t n_dirty;
    int32_t dirty[256];
} tn__cells;

static inline int32_t *tn__cell_meta(const tn__cells *c, int32_t cell) {
    return c->meta + (size_t)cell * (size_t)(1 + c->words);
}
static inline bool tn__cell_has_seq(const tn__cells *c, int32_t cell, int32_t seq) {
    return (uint32_t)tn__cell_meta(c, cell)[1 + seq / 32] >> (seq % 32) & 1;
}

typedef struct tn__kv_layer {
    tn_tensor *k, *v; /* [heads*size, cells] */
    int group, device;
} tn__kv_layer;

typedef struct tn__kv_buffer {
    tn_buffer *buffer;
    size_t device;
} tn__kv_buffer;

typedef struct tn__kv {
    tn__cells groups[TN__CACHE_GROUPS];
    tn__kv_layer *layers;
    int32_t n_layer, n_seqs;
    size_t n_devices;
    tn_tensor **meta;    /* [group][device]: the cells' metadata on the device, or NULL */
    tn_tensor **factors; /* per device: a copy of the model's RoPE factors; NULL where the originals are */
    const tn_tensor *factors_from;
    /* Graphs of one token leave the argmax here, and the sum of its logits: the next graph reads it on the device. */
    tn_tensor *argmax;
    int argmax_device;
    tn_arena *arena;
    tn__kv_buffer *buffers; /* as few per device as its largest allocation allows */
    size_t n_buffers;
    int32_t peak;
} tn__kv;

typedef struct tn__kv_params {
    const tn_model *model;
    int32_t n_ctx, n_ubatch, n_seqs;
    tn_type type_k, type_v;
    tn_buffer_type *const *types; /* per device */
    const int *device_of_layer;
    size_t n_devices;
    const tn_tensor *factors; /* RoPE factors that all layers share, or NULL, and their device */
    int factors_device;
    int output_device;
} tn__kv_params;

/* Makes tensors and cells; takes no device memory yet. */
tn_status tn__kv_new(const tn__kv_params *params, tn__kv *kv);
tn_status tn__kv_sizes(const tn__kv *kv, tn_buffer_type *const *types, size_t *sizes);
/* Host memory of the cells' metadata. */
tn_status tn__kv_host_bytes(const tn__kv *kv, size_t *bytes);
/* TN_E_TOO_BIG when one tensor is larger than the largest allocation of its memory. */
tn_status tn__kv_check(const tn__kv *kv, tn_buffer_type *const *types);
tn_status tn__kv_allocate(tn__kv *kv, tn_buffer_type *const *types);
void tn__kv_free(tn__kv *kv);
/* The cache's tensors on one device are tn__kv_tensor(kv, device, 0 … tn__kv_tensor_count(kv) - 1); some are NULL. */
size_t tn__kv_tensor_count(const tn__kv *kv);
tn_tensor *tn__kv_tensor(const tn__kv *kv, size_t device, size_t i);

/* Takes a cell for every token, writes its metadata, and lists the cells (one list per group). */
tn_status tn__kv_take(tn__kv *kv, int32_t n, const int32_t *positions, const int32_t *seqs, int32_t *const *rows);
/* Undoes taking a cell for one token, where there is only the full group. `last` and `peak`: their values before. */
void tn__kv_untake(tn__kv *kv, int32_t seq, int32_t cell, int32_t last, int32_t peak);
void tn__cells_touch(tn__cells *cells, int32_t cell); /* after its metadata changed */
void tn__cell_empty(tn__cells *cells, int32_t cell);
/* TN_E_FULL: n tokens need more cells than are free. */
tn_status tn__cells_fail_full(const tn__cells *cells, int32_t n);
tn_status tn__kv_send_meta(tn__kv *kv);
/* The cells that attention has to look at: [range[0], range[1]). */
void tn__kv_range(const tn__kv *kv, int group, int32_t range[2]);

#endif
