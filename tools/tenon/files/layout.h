/* A model to be written: its architecture and numbers, and the metadata keys and tensors that follow from them. */
#ifndef TENON_TOOL_LAYOUT_H
#define TENON_TOOL_LAYOUT_H

#include "tenon/arch.h"
#include "tenon/gguf.h"

/* 0 means absent for what is optional. */
struct layout {
    const tn_arch *arch;
    uint64_t traits; /* TN_ARCH_…: those of the architecture; TN_ARCH_TIED as the model is */
    uint32_t nextn;  /* further layers, which predict further tokens */
    uint32_t layers, width, heads, kv_heads, head, ffn, vocab, context;
    uint32_t experts, experts_used, expert_ffn, shared_ffn;
    uint32_t rotated; /* elements of a head */
    uint32_t window;
    uint32_t token_types;
    float eps, rope_base, rope_base_local;
    float softcap_attention, softcap_output;
    float scale_output, scale_residual, scale_embedding, scale_attention;
    float clamp_qkv, alibi;
    bool parallel_residual;
    bool experts_normalized;  /* the weights of experts sum to 1, which is unusual for the architecture */
    bool experts_as_weighted; /* they do not, which is unusual */
};

/* The architecture's constants that do not depend on the shape; the size of a head is set. */
void layout_use_constants(struct layout *layout, const tn_arch *arch);
/* Checks the numbers against each other; TN_E_INVALID names what does not fit. */
tn_status layout_check(const struct layout *layout);
/* Every tensor of a model with the keys that the writer has, in the order of GGUF files. Stops at the first failure.
 */
tn_status layout_tensors(const tn_gguf_writer *writer, tn_arch_tensor_fn fn, void *user);
/* Sets "general.architecture" and all "ARCH.*" keys. */
tn_status layout_keys(const struct layout *layout, tn_gguf_writer *writer);
/* Sets the further keys that synthetic models of the architecture have. */
tn_status layout_synthetic_keys(const struct layout *layout, tn_gguf_writer *writer);

#endif
