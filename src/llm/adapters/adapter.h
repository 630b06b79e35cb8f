/* Files of adapters: LoRA matrices and control vectors, checked against their model. */
#ifndef TN_LLM_ADAPTERS_ADAPTER_H
#define TN_LLM_ADAPTERS_ADAPTER_H

#include "llm/model_internal.h"

/* One adapted weight: B·A is added to it. */
typedef struct tn__low_rank {
    size_t weight; /* its number in the model */
    const tn_gguf_tensor *a, *b;
    int32_t rank;
    /* The token embedding: A has a row of `rank` elements for every token. In other weights A multiplies the input,
     * and has `rank` rows. */
    bool lookup;
} tn__low_rank;

struct tn_adapter {
    const tn_model *model;
    tn_gguf *file;
    tn__low_rank *pairs;
    size_t n_pairs;
    float alpha;
    uint64_t hash;
};

/* What its scale is multiplied by: alpha / rank. */
float tn__low_rank_factor(const tn_adapter *adapter, const tn__low_rank *pair);
/* All values of A or B. The caller frees them. Values that are not finite are
 * TN_E_FORMAT. */
tn_status tn__adapter_values(const tn_gguf *file, const tn_gguf_tensor *tensor, float **values);

struct tn_control_vector {
    const tn_model *model;
    tn_gguf *file;
    const tn_gguf_tensor **directions; /* by layer, or NULL */
    uint64_t hash;
};

#endif
