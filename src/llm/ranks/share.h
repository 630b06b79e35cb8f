/* Weights of one file for all ranks: rank 0 reads it, the others receive the metadata and their slices. */
#ifndef TN_LLM_RANKS_SHARE_H
#define TN_LLM_RANKS_SHARE_H

#include "tenon/base.h"

#include <pthread.h>

struct tn_model;
struct tn__weight;
struct tn__load;

typedef struct tn__share {
    bool sends, receives;
    pthread_mutex_t lock; /* of the transport, while several threads load */
} tn__share;

/* Host memory of rank 0 while it sends. */
size_t tn__share_bytes(const struct tn_model *model);

/* Opens the model's file, or receives its metadata. */
tn_status tn__share_open(struct tn_model *model, const char *path);
void tn__share_end(tn__share *share);

/* All ranks report the bytes that they will receive; rank 0 gets the sum. */
tn_status tn__share_begin(const struct tn_model *model, size_t own, size_t *others);
/* On other ranks: receives bytes of this rank's slice of a weight; any thread. */
tn_status tn__share_read(struct tn_model *model, const struct tn__weight *weight, size_t offset, void *to,
                         size_t size);
/* On other ranks: reports that this rank has all its weights. */
tn_status tn__share_done(const struct tn_model *model);
/* On rank 0: sends until all ranks have their weights. *done counts the bytes for progress reports. */
tn_status tn__share_serve(const struct tn_model *model, const struct tn__load *load, size_t *done, size_t total);

#endif
