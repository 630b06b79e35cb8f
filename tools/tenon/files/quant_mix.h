/* Quantization mixes: the type of each tensor under names such as Q4_K_M. */
#ifndef TENON_TOOL_QUANT_MIX_H
#define TENON_TOOL_QUANT_MIX_H

#include "tenon/arch.h"
#include "tenon/gguf.h"

struct mix {
    const char *name;
    tn_type type;       /* of most tensors */
    uint32_t file_type; /* the value of "general.file_type" */
};

extern const struct mix mix_table[]; /* ended by an entry without a name */
/* By name, ignoring case, or by the number of its file type; NULL when there is none. */
const struct mix *mix_find(const char *name);

/* Properties of a model that the rules use. */
struct mix_model {
    uint32_t layers, experts, heads, kv_heads;
    bool has_output;  /* has an output matrix; otherwise the token embedding is also the output */
    bool output_q8_0; /* the output matrix is q8_0 whatever the mix */
    bool importance;  /* an importance file is used */
};
struct mix_model mix_model_of(const tn_gguf *file, bool importance);

/* True for matrices that are quantized: weights of at least two dimensions, except small ones that need their
 * precision (norms, routers, positions, …). */
bool mix_quantizes(const char *name, int n_dims);
/* The type of a tensor under a mix; mix_fitting() adapts it to the row length. */
tn_type mix_type(const struct mix *mix, const struct mix_model *model, const char *name, const int64_t ne[4]);
/* Whether a mix is of little use without an importance file: below three and a half bits. */
bool mix_wants_importance(const struct mix *mix);
/* The closest type whose block size divides rows of `columns` elements. */
tn_type mix_fitting(tn_type type, int64_t columns);

#endif
