/* Loading weights: their bytes per device, and the loading itself. */
#ifndef TN_LLM_LOAD_H
#define TN_LLM_LOAD_H

#include "llm/model_internal.h"

typedef struct tn__load {
    tn_buffer_type *const *types; /* per device */
    size_t n_types;
    bool repack;  /* weights go to a buffer type with a faster layout, if the device has one */
    int32_t rows; /* activation rows usually multiplied at once; 0: any number, repeatable */
    int (*device_of)(const void *user, const tn__weight *weight);
    const void *user;
    bool (*progress)(void *user, size_t done, size_t total);
    void *progress_user;
    tn_abort_fn abort; /* called between pieces, from any thread; may be NULL */
    void *abort_user;
} tn__load;

/* The memory that a weight is loaded into. */
tn_buffer_type *tn__weight_memory(const tn__load *load, const tn__weight *weight);
/* Bytes that loading would allocate for it: 0 when it stays in the file's map. */
size_t tn__load_size(const tn_model *model, const tn__load *load, const tn__weight *weight);
/* Bytes per device that loading would allocate, and bytes that stay in the file's map. */
tn_status tn__load_sizes(const tn_model *model, const tn__load *load, size_t *sizes, size_t *mapped);
/* TN_E_TOO_BIG when a weight is larger than the largest allocation of its memory. */
tn_status tn__load_check(const tn_model *model, const tn__load *load);
/* Loads once; later calls do nothing. On failure nothing stays loaded. */
tn_status tn__load_weights(tn_model *model, const tn__load *load);

#endif
