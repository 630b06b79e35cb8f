/* Quantization mixes: which type each tensor of a model gets under names such as Q4_K_M. */
#ifndef TENON_TOOL_MIX_H
#define TENON_TOOL_MIX_H

#include "tenon/gguf.h"

struct mix {
    const char *name;
    tn_type type;       /* of most tensors */
    uint32_t file_type; /* the value of "general.file_type" */
};

extern const struct mix mix_table[];          /* ended by an entry without a name */
const struct mix *mix_find(const char *name); /* case does not matter; NULL when there is none */

/* What the rules need to know about a model. */
struct mix_model {
    uint32_t layers, experts, heads, kv_heads;
    bool has_output; /* an output matrix of its own; else the token embedding is also the output */
    bool falcon;
    bool importance; /* weights are at hand */
};
struct mix_model mix_model_of(const tn_gguf *file, bool importance);

/* True for matrices whose precision may be reduced: weights of at least two dimensions, except those that are small
 * and delicate (norms, routers, positions, …). */
bool mix_quantizes(const char *name, int n_dims);
/* The type of a tensor under a mix. Rows that do not fit the type's block fall back to the nearest type they fit. */
tn_type mix_type(const struct mix *mix, const struct mix_model *model, const char *name, const int64_t ne[4]);
/* The nearest type whose block divides rows of this many elements. */
tn_type mix_fitting(tn_type type, int64_t columns);

#endif
